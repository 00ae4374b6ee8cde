"""A selection step costs what it touches: its loop makes nothing of the size of a table."""

import jax
import jax.numpy as jnp
import pytest
from compiled_program import large_results_in_loops
from quick_jit import SAME_PROGRAM, quick_compile

from pickmix.gradient.adam import Adam
from pickmix.gradient.algorithm import Batch, Root, State, make_chunk
from pickmix.gradient.components import ComponentMixture
from pickmix.gradient.partitions import Blocks
from pickmix.gradient.realnvp import RealNVP
from pickmix.gradient.settings import Settings
from pickmix.gradient.sptn import SumProductTransform

N_STEPS, BATCH, N_SAMPLES, N_ROWS = 3, 4, 1, 50
# Tables much larger than anything that belongs to a batch.
NETWORKS = {
    "flows": ComponentMixture(RealNVP(hidden=1), 4099, 2),
    "trees": SumProductTransform(127, 2, 2, 2),
}


def shapes_of_arguments(network, block_size=None):
    """Shapes of (data, state, batches, n_steps): all that a compiler needs."""
    n_blocks = -(-network.n_children // block_size) if block_size else 0

    def zeros(*shape, dtype=jnp.float32):
        return jnp.zeros(shape, dtype)

    def make():
        tables = tuple(zeros(*shape) for shape in network.shapes)
        logits = zeros(network.n_children)
        state = State(
            tables,
            tuple(Adam.start(table) for table in tables),
            Root(logits, Adam.start(logits[None])),
            zeros(N_ROWS, network.n_slots, dtype=jnp.int32),
            zeros(0),
            Blocks(
                zeros(network.n_slots, n_blocks, block_size, dtype=jnp.int32),
                zeros(network.n_slots, network.n_children, dtype=jnp.int32),
            )
            if block_size
            else None,
        )
        shape = (N_STEPS, BATCH, N_SAMPLES)
        batches = Batch(
            zeros(*shape[:2], dtype=jnp.int32),
            zeros(*shape[:2]),
            zeros(*shape, network.n_slots, dtype=jnp.int32),
            zeros(*shape),
            zeros(*shape[:2]),
            zeros(*shape[:2], 2) if block_size else zeros(*shape),
            zeros(*shape[:2], 0),
            *[zeros(N_STEPS)] * 3,
            zeros(N_STEPS, dtype=jnp.int32),
        )
        return zeros(N_ROWS, network.n_features), state, batches, jnp.int32(0)

    return jax.eval_shape(make)


def sizes_of(network):
    """Elements of the tables, and of their longest row."""
    return [rows * width for rows, width in network.shapes], max(
        width for _, width in network.shapes
    )


@pytest.mark.parametrize("block_size", [None, 4], ids=["uniform", "partition"])
@pytest.mark.parametrize("name", NETWORKS)
def test_no_step_makes_anything_of_a_tables_size(name, block_size):
    network = NETWORKS[name]
    sizes, row = sizes_of(network)
    algorithm = "mhsaem" if block_size is None else "partition"
    chunk = make_chunk(network, Settings(algorithm, N_SAMPLES), False)
    arguments = shapes_of_arguments(network, block_size)
    compiled = chunk.lower(*arguments).compile(compiler_options=SAME_PROGRAM)
    assert large_results_in_loops(compiled.as_text(), min(sizes), row) == []
    # The text says what is asked for; this, that no copy was made room for.
    memory = compiled.memory_analysis()
    assert memory.temp_size_in_bytes < 4 * min(sizes)
    # The state's memory is used again: tables and two moments.
    assert memory.alias_size_in_bytes >= 4 * 3 * sum(sizes)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_check_notices_dense_adam(name):
    network = NETWORKS[name]
    sizes, row = sizes_of(network)
    chunk = make_chunk(network, Settings("mhsaem", N_SAMPLES, row_adam=False), False)
    compiled = quick_compile(chunk, *shapes_of_arguments(network))
    # A gradient, two moments and the change, for each table.
    assert len(large_results_in_loops(compiled.as_text(), min(sizes), row)) >= 4 * len(sizes)
    assert compiled.memory_analysis().temp_size_in_bytes > 4 * max(sizes)


def test_the_check_notices_a_copy_and_follows_writes():
    """A loop that writes a row at a time, and one that needs the table as it was before."""

    def in_place(table, n):
        def body(number, table):
            return jax.lax.dynamic_update_slice(table, table[:1] + 1.0, (number, 0))

        return jax.lax.fori_loop(0, n, body, table)

    def with_a_copy(table, n):
        def body(number, tables):
            table, before = tables
            return jax.lax.dynamic_update_slice(table, before[:1] + 1.0, (number, 0)), table

        return jax.lax.fori_loop(0, n, body, (table, table))

    shapes = jax.ShapeDtypeStruct((100, 3), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
    texts = [
        jax.jit(function, donate_argnums=0).lower(*shapes).compile().as_text()
        for function in (in_place, with_a_copy)
    ]
    assert large_results_in_loops(texts[0], 300, 3) == []
    assert any(found.startswith("copy ") for found in large_results_in_loops(texts[1], 300, 3))
    # A write of more than a row is not let through either.
    assert large_results_in_loops(texts[0], 300, 2) != []

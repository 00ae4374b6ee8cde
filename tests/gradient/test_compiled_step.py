"""A selection step costs what it touches: a component more costs it nothing but a weight more."""

import jax
import jax.numpy as jnp
import pytest
from quick_jit import quick_compile

from pickmix.gradient.adam import Adam
from pickmix.gradient.algorithm import Batch, Root, State, make_chunk
from pickmix.gradient.candidates import Blocks
from pickmix.gradient.components import ComponentMixture
from pickmix.gradient.realnvp import RealNVP
from pickmix.gradient.settings import StepSettings
from pickmix.gradient.sptn import SumProductTransform

N_STEPS, BATCH, N_ROWS = 3, 4, 50
FEW, MANY = 512, 2048
NETWORKS = {
    "flows": lambda n_children: ComponentMixture(RealNVP(hidden=4), n_children, 2),
    "trees": lambda n_children: SumProductTransform((n_children, 3), 2, 2, 4),
}


def shapes_of_arguments(network, block_size):
    """Shapes of (data, state, batches, n_steps): all that a compiler needs."""

    def zeros(*shape, dtype=jnp.float32):
        return jnp.zeros(shape, dtype)

    def make():
        tables = tuple(zeros(*shape) for shape in network.shapes)
        logits, blocks = zeros(network.n_children), None
        if block_size:
            n_blocks = -(-network.n_children // block_size)
            blocks = Blocks(
                zeros(network.n_slots, n_blocks, block_size, dtype=jnp.int32),
                zeros(network.n_slots, network.n_children, dtype=jnp.int32),
            )
        state = State(
            tables,
            tuple(Adam.start(table) for table in tables),
            Root(logits, Adam.start(logits[None])),
            zeros(N_ROWS, network.n_slots, dtype=jnp.int32),
            zeros(0),
            blocks,
        )
        shape = (N_STEPS, BATCH)
        batches = Batch(
            zeros(*shape, dtype=jnp.int32),
            zeros(*shape),
            zeros(*shape, 1, network.n_slots, dtype=jnp.int32),
            zeros(*shape, 1),
            zeros(*shape),
            zeros(*shape, 2 if block_size else 1),
            zeros(*shape, 0),
            *[zeros(N_STEPS)] * 3,
            zeros(N_STEPS, dtype=jnp.int32),
        )
        return zeros(N_ROWS, network.n_features), state, batches, jnp.int32(0)

    return jax.eval_shape(make)


@pytest.mark.parametrize(
    ("name", "algorithm", "block_size", "row_adam"),
    [
        ("flows", "mhsaem", None, True),
        ("trees", "partition", 4, True),
        pytest.param("flows", "mhsaem", None, False, marks=pytest.mark.slow),
    ],
)
def test_cost_of_one_more_component(name, algorithm, block_size, row_adam):
    costs = []
    for n_children in (FEW, MANY):
        network = NETWORKS[name](n_children)
        chunk = make_chunk(network, StepSettings(algorithm, row_adam=row_adam), False)
        compiled = quick_compile(chunk, *shapes_of_arguments(network, block_size))
        memory = compiled.memory_analysis()
        costs.append((compiled.cost_analysis()["flops"], memory.temp_size_in_bytes))
    n_numbers = sum(rows * width for rows, width in network.shapes)
    # The state's memory is used again: tables and two moments.
    assert memory.alias_size_in_bytes >= 4 * 3 * n_numbers
    per_component = n_numbers / MANY
    flops, memory = ((many - few) / (MANY - FEW) for few, many in zip(*costs, strict=True))
    if row_adam:
        # Adam on the root's logits, and copies of a few of them.
        assert flops < 50 < per_component
        assert memory < 40 < 4 * per_component
    else:
        # Adam on all rows: the law above notices.
        assert flops > 10 * per_component
        assert memory > 4 * per_component

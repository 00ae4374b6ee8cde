"""Many steps in one compiled call."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pickmix.gradient.network import Network
from pickmix.gradient.state import Batch, Options, State
from pickmix.gradient.step import dense_step, selection_step


class Summary(NamedTuple):
    """What a chunk tells: acceptance by steps (L,), refused steps, chain states (L, B, M, n_slots).

    Acceptance is summed by whoever counts it, step by step: a sum over a chunk would depend on how
    long the chunk is, in its last bits.
    """

    acceptances: jax.Array
    refused: jax.Array
    states: jax.Array

    @property
    def acceptance(self) -> float:
        """That of all steps."""
        return float(self.acceptances.sum())


Chunk = Callable[[jax.Array, State, Batch, jax.Array], tuple[State, Summary]]


@lru_cache(maxsize=64)
def make_chunk(network: Network, options: Options, returns_states: bool) -> Chunk:
    """Compile a function (data, state, batches, n_steps) -> (state, summary).

    `batches` holds the inputs of L steps, of which the first `n_steps` are made; so one compiled
    program serves chunks of any length. (A `lax.scan` has a fixed length: a loop with a bound that
    is known at run time is the same program without that.) The state's memory is reused.
    """
    step = dense_step if options.algorithm in ("em", "sgd") else selection_step

    def chunk(
        data: jax.Array, state: State, batches: Batch, n_steps: jax.Array
    ) -> tuple[State, Summary]:
        def body(number: jax.Array, carry: tuple[State, Summary]) -> tuple[State, Summary]:
            state, summary = carry
            batch = jax.tree.map(lambda values: values[number], batches)
            state, info = step(network, options, data, state, batch)
            states = summary.states
            if returns_states:
                states = states.at[number].set(info.states)
            return state, Summary(
                summary.acceptances.at[number].set(info.acceptance),
                summary.refused + info.refused,
                states,
            )

        shape = (*batches.rows.shape, options.n_samples, network.n_slots)
        none = Summary(
            jnp.zeros(batches.rows.shape[:1], data.dtype),
            jnp.zeros((), jnp.int32),
            jnp.zeros(shape if returns_states else (), jnp.int32),
        )
        end: tuple[State, Summary] = jax.lax.fori_loop(0, n_steps, body, (state, none))
        return end

    return partial(jax.jit, donate_argnames="state")(chunk)

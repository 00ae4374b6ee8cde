"""Chains of rows that a model has not met before: trees drawn from the exact posterior."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from pickmix.gradient.compilation import kept_programs
from pickmix.gradient.network import AnyTables, Network, Tables, to_jax
from pickmix.gradient.precision import DType, precision
from pickmix.gradient.queries import block_rows
from pickmix.selection.randomness import StepRandomness, Stream


@lru_cache(maxsize=64)
def _compiled_draw(
    network: Network,
) -> Callable[[Tables, jax.Array, jax.Array, jax.Array], jax.Array]:
    @jax.jit
    def draw(
        tables: Tables, log_weights: jax.Array, rows: jax.Array, uniforms: jax.Array
    ) -> jax.Array:
        return network.draw(tables, log_weights, rows, uniforms[:, None])[:, 0]

    return draw


def draw_chain(
    network: Network,
    tables: AnyTables,
    log_weights: np.ndarray,
    rows: np.ndarray,
    seed: int,
    dtype: DType,
) -> np.ndarray:
    """Trees (N, n_slots) of rows (N, D), each drawn from p(tree | x) over all trees.

    Parameters
    ----------
    network : Network
    tables : tables of the network
    log_weights : (s,) array
        Of the root's children.
    rows : (N, D) array
        As the network sees them.
    seed : int
    dtype : dtype
    """
    n_rows = rows.shape[0]
    random = StepRandomness(seed, 0)
    uniforms = random.uniforms(Stream.POSTERIOR, np.arange(n_rows), network.n_slots)
    size = block_rows(network, n_rows)
    parts = []
    with precision(dtype), kept_programs():
        draw = _compiled_draw(network)
        there, weights = to_jax(tables, dtype), jnp.asarray(log_weights, dtype)
        for start in range(0, n_rows, size):
            block = slice(start, start + size)
            n_here = rows[block].shape[0]
            values = [
                jnp.pad(jnp.asarray(array[block], dtype), ((0, size - n_here), (0, 0)))
                for array in (rows, uniforms)
            ]
            parts.append(np.asarray(draw(there, weights, *values))[:n_here])
    return np.concatenate(parts)

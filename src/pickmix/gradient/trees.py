"""Questions about the trees of a sum-product-transform network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from pickmix.gradient.network import AnyTables, Tables, draw_columns, to_jax
from pickmix.gradient.precision import DType, precision
from pickmix.gradient.sptn import SumProductTransform

_BLOCK_ROWS = 256


def _blocks(n_rows: int) -> Iterator[slice]:
    for start in range(0, n_rows, _BLOCK_ROWS):
        yield slice(start, min(n_rows, start + _BLOCK_ROWS))


def _filled(rows: np.ndarray, dtype: DType) -> jax.Array:
    """Rows of a block, filled up to the size that is compiled for."""
    return jnp.pad(jnp.asarray(rows, dtype), ((0, _BLOCK_ROWS - rows.shape[0]), (0, 0)))


@lru_cache(maxsize=64)
def _compiled_trees(
    network: SumProductTransform,
) -> Callable[[Tables, jax.Array, jax.Array], jax.Array]:
    return jax.jit(network.most_probable_tree)


def most_probable_trees(
    network: SumProductTransform,
    tables: AnyTables,
    log_weights: np.ndarray,
    rows: np.ndarray,
    dtype: DType,
) -> np.ndarray:
    """Choices (N, n_slots) of the most probable tree of each row (N, D)."""
    return _by_blocks(_compiled_trees(network), tables, log_weights, rows, dtype)


def _by_blocks(
    ask: Callable[[Tables, jax.Array, jax.Array], jax.Array],
    tables: AnyTables,
    log_weights: np.ndarray,
    rows: np.ndarray,
    dtype: DType,
) -> np.ndarray:
    with precision(dtype):
        there, weights = to_jax(tables, dtype), jnp.asarray(log_weights, dtype)
        parts = [
            np.asarray(ask(there, weights, _filled(rows[block], dtype)))[: rows[block].shape[0]]
            for block in _blocks(rows.shape[0])
        ]
    return np.concatenate(parts)


@lru_cache(maxsize=64)
def _compiled_marginal(
    network: SumProductTransform, observed: tuple[bool, ...]
) -> Callable[[Tables, jax.Array, jax.Array], jax.Array]:
    @jax.jit
    def score(tables: Tables, weights: jax.Array, rows: jax.Array) -> jax.Array:
        values = network.upward(tables, rows, observed=np.array(observed))
        return logsumexp(values[0][0].T + weights, axis=1)

    return score


@lru_cache(maxsize=64)
def _compiled_conditional(
    network: SumProductTransform, observed: tuple[bool, ...]
) -> Callable[[Tables, jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]:
    @jax.jit
    def draw(
        tables: Tables, weights: jax.Array, rows: jax.Array, uniforms: jax.Array, key: jax.Array
    ) -> jax.Array:
        seen = np.array(observed)
        values = network.upward(tables, rows, observed=seen)
        first = draw_columns(values[0][0].T + weights, uniforms[:, :1])[:, 0]

        def choose(scores: jax.Array, place: int) -> jax.Array:
            return draw_columns(scores, uniforms[:, place, None])[:, 0]

        trees = network.downward(tables, values, first, choose, 1.0)
        return jnp.where(seen, rows, network.sample(tables, trees, key))

    return draw


def score_marginal(
    network: SumProductTransform,
    tables: AnyTables,
    log_weights: np.ndarray,
    rows: np.ndarray,
    observed: np.ndarray,
    dtype: DType,
) -> np.ndarray:
    """Log-density (N,) of the observed columns of rows (N, D); the others may hold anything."""
    score = _compiled_marginal(network, tuple(observed.tolist()))
    return _by_blocks(score, tables, log_weights, rows, dtype).astype(np.float64)


def sample_conditional(
    network: SumProductTransform,
    tables: AnyTables,
    log_weights: np.ndarray,
    rows: np.ndarray,
    observed: np.ndarray,
    uniforms: np.ndarray,
    seed: int,
    dtype: DType,
) -> np.ndarray:
    """Rows (N, D) with the columns that are not observed drawn, given those that are.

    A tree from its posterior given the observed columns, then the leaves of the others.
    """
    with precision(dtype):
        there, weights = to_jax(tables, dtype), jnp.asarray(log_weights, dtype)
        draw = _compiled_conditional(network, tuple(observed.tolist()))
        parts = []
        for number, block in enumerate(_blocks(rows.shape[0])):
            key = jax.random.fold_in(jax.random.key(seed), number)
            drawn = draw(
                there, weights, _filled(rows[block], dtype), _filled(uniforms[block], dtype), key
            )
            parts.append(np.asarray(drawn, np.float64)[: rows[block].shape[0]])
    return np.concatenate(parts)

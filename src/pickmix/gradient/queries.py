"""Questions to a network about rows, answered in blocks, and rows drawn from it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from pickmix.gradient.compilation import kept_programs
from pickmix.gradient.network import AnyTables, Network, Tables, to_jax
from pickmix.gradient.precision import DType, precision

# Log-densities of all components are computed in blocks of about this many numbers.
_BLOCK_NUMBERS = 4_000_000


@lru_cache(maxsize=64)
def _compiled_scores(
    network: Network,
) -> Callable[[Tables, jax.Array, jax.Array], jax.Array]:
    @jax.jit
    def scores(tables: Tables, log_weights: jax.Array, rows: jax.Array) -> jax.Array:
        return log_weights + network.log_density_all(tables, rows)

    return scores


def block_rows(network: Network, n_rows: int) -> int:
    """Rows of a block in which all components are evaluated."""
    per_row = network.n_evaluated_by_all * max(network.n_features, 8)
    # Powers of two: few different sizes, so few programs are compiled.
    size = int(np.clip(_BLOCK_NUMBERS / per_row, 1, 4096))
    return int(2 ** int(np.log2(min(size, 2 * n_rows - 1))))


def map_blocks(
    function: Callable[[jax.Array], Any],
    network: Network,
    tables: AnyTables,
    log_weights: np.ndarray,
    rows: np.ndarray | jax.Array,
    dtype: DType,
) -> list[Any]:
    """Apply a function to log p(x, child of the root) (R, s), block by block of rows (N, D).

    Results are arrays, or tuples of them, with the block's rows first; they come as NumPy's.
    """
    results = []
    with precision(dtype):
        scores = _compiled_scores(network)
        size = block_rows(network, len(rows))
        there = to_jax(tables, dtype)
        weights = jnp.asarray(log_weights, dtype)
        for start in range(0, len(rows), size):
            block = jnp.asarray(rows[start : start + size], dtype)
            n_here = block.shape[0]
            block = jnp.pad(block, ((0, size - n_here), (0, 0)))
            with kept_programs() if start == 0 else nullcontext():
                values = function(scores(there, weights, block))
            results.append(jax.tree.map(lambda array, n=n_here: np.asarray(array)[:n], values))
    return results


@jax.jit
def _log_sum(log_joint: jax.Array) -> jax.Array:
    return logsumexp(log_joint, axis=1)


def score_samples(
    network: Network,
    tables: AnyTables,
    log_weights: np.ndarray,
    rows: np.ndarray | jax.Array,
    dtype: DType,
) -> np.ndarray:
    """log p(x) of rows (N, D), as (N,) float64."""
    parts = map_blocks(_log_sum, network, tables, log_weights, rows, dtype)
    return np.concatenate(parts).astype(np.float64)


@jax.jit
def posterior(log_joint: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Posterior probabilities (R, s) and log-likelihoods (R,) of log-joints (R, s)."""
    likelihood = logsumexp(log_joint, axis=1)
    return jnp.exp(log_joint - likelihood[:, None]), likelihood


@partial(jax.jit, static_argnames="m")
def top(log_joint: jax.Array, m: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The m most probable components (R, m), their probabilities, and log-likelihoods (R,)."""
    likelihood = logsumexp(log_joint, axis=1)
    values, components = jax.lax.top_k(log_joint, m)
    return components, jnp.exp(values - likelihood[:, None]), likelihood


@lru_cache(maxsize=64)
def _compiled_draws(
    network: Network,
) -> Callable[[Tables, jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    @jax.jit
    def draws(
        tables: Tables, log_weights: jax.Array, uniforms: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        trees = network.draw_prior(tables, log_weights, uniforms)
        return network.sample(tables, trees, key), trees

    return draws


def draw_rows(
    network: Network,
    tables: AnyTables,
    log_weights: np.ndarray,
    uniforms: np.ndarray,
    seed: int,
    dtype: DType,
) -> tuple[np.ndarray, np.ndarray]:
    """Rows (R, D) drawn from the network, and their trees (R, n_slots), as uniforms decide."""
    with precision(dtype):
        rows, trees = _compiled_draws(network)(
            to_jax(tables, dtype),
            jnp.asarray(log_weights, dtype),
            jnp.asarray(uniforms, dtype),
            jax.random.key(seed),
        )
        return np.asarray(rows, np.float64), np.asarray(trees)

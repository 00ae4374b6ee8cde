"""Queries of a network: densities and posteriors of rows in blocks, and draws."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from pickmix.gradient.compilation import DType, compiled, kept_programs, precision
from pickmix.gradient.network import AnyTables, Network, Tables, draw_columns, to_jax
from pickmix.selection.randomness import StepRandomness, Stream

if TYPE_CHECKING:
    from pickmix.gradient.sptn import SumProductTransform

# Log-densities of all components are computed in blocks of about this many numbers.
_BLOCK_NUMBERS = 4_000_000
# Rows of a block in queries of trees.
_TREE_ROWS = 256


def _block_rows(network: Network, n_rows: int) -> int:
    """Rows of a block in which all components are evaluated."""
    per_row = network.n_evaluated_by_all * max(network.n_features, 8)
    # Powers of two: few different sizes, so few programs are compiled.
    size = int(np.clip(_BLOCK_NUMBERS / per_row, 1, 4096))
    return int(2 ** int(np.log2(min(size, 2 * n_rows - 1))))


def _by_blocks(
    query: Callable[..., Any],
    size: int,
    tables: AnyTables,
    log_weights: np.ndarray,
    *arrays: np.ndarray | jax.Array,
    dtype: DType,
) -> list[Any]:
    """Apply a query to blocks of rows of arrays (N, ...), padded to one size.

    Results are arrays, or tuples of them, with the block's rows first; they come as NumPy's.
    """
    results = []
    with precision(dtype):
        device_tables, weights = to_jax(tables, dtype), jnp.asarray(log_weights, dtype)
        for start in range(0, len(arrays[0]), size):
            blocks = [jnp.asarray(array[start : start + size], dtype) for array in arrays]
            n_rows = blocks[0].shape[0]
            padded = [jnp.pad(block, ((0, size - n_rows), (0, 0))) for block in blocks]
            with kept_programs() if start == 0 else nullcontext():
                values = query(device_tables, weights, *padded)
            results.append(jax.tree.map(lambda array, n=n_rows: np.asarray(array)[:n], values))
    return results


# -- all components -------------------------------------------------------------------------


def _log_joint(
    network: Network, tables: Tables, log_weights: jax.Array, rows: jax.Array
) -> jax.Array:
    return log_weights + network.log_density_all(tables, rows)


def map_blocks(
    function: Callable[[jax.Array], Any],
    network: Network,
    tables: AnyTables,
    log_weights: np.ndarray,
    rows: np.ndarray | jax.Array,
    dtype: DType,
) -> list[Any]:
    """Apply a function to log p(x, child of the root) (R, s), block by block of rows (N, D)."""
    scores, size = compiled(_log_joint, network), _block_rows(network, len(rows))
    return _by_blocks(
        lambda *values: function(scores(*values)), size, tables, log_weights, rows, dtype=dtype
    )


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


# -- draws ----------------------------------------------------------------------------------


def _draw_rows(
    network: Network,
    tables: Tables,
    log_weights: jax.Array,
    uniforms: jax.Array,
    key: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    trees = network.draw_prior(tables, log_weights, uniforms)
    return network.sample(tables, trees, key), trees


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
        rows, trees = compiled(_draw_rows, network)(
            to_jax(tables, dtype),
            jnp.asarray(log_weights, dtype),
            jnp.asarray(uniforms, dtype),
            jax.random.key(seed),
        )
        return np.asarray(rows, np.float64), np.asarray(trees)


def _draw_trees(
    network: Network,
    tables: Tables,
    log_weights: jax.Array,
    rows: jax.Array,
    uniforms: jax.Array,
) -> jax.Array:
    return network.draw(tables, log_weights, rows, uniforms[:, None])[:, 0]


def draw_chain(
    network: Network,
    tables: AnyTables,
    log_weights: np.ndarray,
    rows: np.ndarray,
    seed: int,
    dtype: DType,
) -> np.ndarray:
    """Trees (N, n_slots) of rows (N, D), each drawn from p(tree | x) over all trees."""
    random = StepRandomness(seed, 0)
    uniforms = random.uniforms(Stream.POSTERIOR, np.arange(rows.shape[0]), network.n_slots)
    draw, size = compiled(_draw_trees, network), _block_rows(network, rows.shape[0])
    return np.concatenate(_by_blocks(draw, size, tables, log_weights, rows, uniforms, dtype=dtype))


# -- trees of sum-product-transform networks ------------------------------------------------


def most_probable_trees(
    network: SumProductTransform,
    tables: AnyTables,
    log_weights: np.ndarray,
    rows: np.ndarray,
    dtype: DType,
) -> np.ndarray:
    """Choices (N, n_slots) of the most probable tree of each row (N, D)."""
    query = compiled(type(network).most_probable_tree, network)
    return np.concatenate(_by_blocks(query, _TREE_ROWS, tables, log_weights, rows, dtype=dtype))


def _draw_others(
    network: SumProductTransform,
    tables: Tables,
    log_weights: jax.Array,
    rows: jax.Array,
    uniforms: jax.Array,
    key: jax.Array,
) -> jax.Array:
    values = network.upward(tables, rows)
    first = draw_columns(values[0][0].T + log_weights, uniforms[:, :1])[:, 0]

    def choose(scores: jax.Array, place: int) -> jax.Array:
        return draw_columns(scores, uniforms[:, place, None])[:, 0]

    trees = network.downward(tables, values, first, choose, 1.0)
    return jnp.where(jnp.isnan(rows), network.sample(tables, trees, key), rows)


def sample_conditional(
    network: SumProductTransform,
    tables: AnyTables,
    log_weights: np.ndarray,
    rows: np.ndarray,
    uniforms: np.ndarray,
    seed: int,
    dtype: DType,
) -> np.ndarray:
    """Rows (N, D) with missing values (NaN) drawn, given the others.

    A tree from its posterior given what was observed, then the leaves of the rest.
    """
    draw = compiled(_draw_others, network)
    numbers = itertools.count()

    def draw_block(*values: jax.Array) -> jax.Array:
        drawn: jax.Array = draw(*values, jax.random.fold_in(jax.random.key(seed), next(numbers)))
        return drawn

    parts = _by_blocks(draw_block, _TREE_ROWS, tables, log_weights, rows, uniforms, dtype=dtype)
    return np.concatenate(parts).astype(np.float64)

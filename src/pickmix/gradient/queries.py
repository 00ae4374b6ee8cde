"""Queries of a network: densities and posteriors of rows in blocks, and draws."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from pickmix.gradient.compilation import DType, compiled, kept_programs, precision
from pickmix.gradient.network import AnyTables, Network, Tables, cast, to_jax
from pickmix.selection.randomness import StepRandomness, Stream

if TYPE_CHECKING:
    from pickmix.gradient.sptn import SumProductTransform

# Log-densities of all components are computed in blocks of about this many numbers.
_BLOCK_NUMBERS = 4_000_000
# Rows of a block in queries of trees.
_TREE_ROWS = 256


# Draws whose mean and covariance stand for a component, and rows drawn at a time.
_LIKE_DRAWS, _DRAWN_ROWS = 512, 8192
# What is wider, and how many times the covariance.
_WIDE_SHARE, _WIDE = 0.1, 4.0


@dataclass(frozen=True, eq=False)
class Fitted:
    """A network with parameters. Its queries take rows (N, D) in the network's coordinates."""

    network: Network
    tables: AnyTables
    log_weights: np.ndarray  # Of the root's children, (s,).
    dtype: DType

    def _block_rows(self, n_rows: int) -> int:
        """Rows of a block in which all components are evaluated."""
        per_row = self.network.n_evaluated_by_all * max(self.network.n_features, 8)
        # Powers of two: few different sizes, so few programs are compiled.
        size = int(np.clip(_BLOCK_NUMBERS / per_row, 1, 4096))
        return int(2 ** int(np.log2(min(size, 2 * n_rows - 1))))

    def _by_blocks(self, query: Callable[..., Any], size: int, *arrays: np.ndarray) -> list[Any]:
        """Apply (tables, log_weights, *arrays) -> results to blocks of arrays (N, ...).

        Blocks are padded to one size. Results are arrays, or tuples of them, with the block's rows
        first; they come as NumPy's.
        """
        results = []
        with precision(self.dtype):
            tables = to_jax(self.tables, self.dtype)
            weights = cast(self.log_weights, self.dtype)
            for start in range(0, len(arrays[0]), size):
                blocks = [cast(array[start : start + size], self.dtype) for array in arrays]
                n_rows = blocks[0].shape[0]
                padded = [np.pad(block, ((0, size - n_rows), (0, 0))) for block in blocks]
                with kept_programs() if start == 0 else nullcontext():
                    values = query(tables, weights, *padded)
                results.append(jax.tree.map(lambda array, n=n_rows: np.asarray(array)[:n], values))
        return results

    def map(self, function: Callable[[jax.Array], Any], rows: np.ndarray) -> list[Any]:
        """Apply a function to log p(x, child of the root) (R, s), block by block of rows."""
        scores = compiled(_log_joint, self.network)
        size = self._block_rows(len(rows))
        return self._by_blocks(lambda *values: function(scores(*values)), size, rows)

    def score_samples(self, rows: np.ndarray) -> np.ndarray:
        """log p(x), (N,) in float64."""
        return np.concatenate(self.map(_log_sum, rows)).astype(np.float64)

    def draw_rows(self, uniforms: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows (R, D), and their trees (R, n_slots), as uniforms (R, n_slots) decide."""
        with precision(self.dtype):
            rows, trees = compiled(_draw_rows, self.network)(
                to_jax(self.tables, self.dtype),
                cast(self.log_weights, self.dtype),
                cast(uniforms, self.dtype),
                jax.random.key(seed),
            )
            return np.asarray(rows, np.float64), np.asarray(trees)

    def draw_chain(self, rows: np.ndarray, seed: int) -> np.ndarray:
        """Trees (N, n_slots) of rows, each drawn from p(tree | x) over all trees."""
        every = np.arange(rows.shape[0])
        uniforms = StepRandomness(seed, 0).uniforms(Stream.POSTERIOR, every, self.network.n_slots)
        draw, size = compiled(_draw_trees, self.network), self._block_rows(rows.shape[0])
        return np.concatenate(self._by_blocks(draw, size, rows, uniforms))

    def normals(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, bool]:
        """Gaussians that the mixture consists of, or is like.

        Children (M,) of the root, in order, shares of them (M,), means (M, D), covariances
        (M, D, D), and whether the mixture consists of them. Of children that are no mixtures of
        Gaussians, draws give a mean and a covariance. A share is wider, so that ratios of densities
        are not far above one.
        """
        found, rest = [], np.arange(self.log_weights.shape[0])
        with precision("float64"), kept_programs():
            tables = to_jax(self.tables, "float64")
            known = self.network.normals(tables)
        if known is not None:
            kept = np.asarray(known[1]) > 0.0
            children, shares, means, roots = (np.asarray(values)[kept] for values in known)
            found.append((children, shares, means, roots @ roots.swapaxes(1, 2)))
            rest = np.setdiff1d(rest, children)
        n_draws = max(_LIKE_DRAWS, 4 * self.network.n_features)
        size = max(1, _DRAWN_ROWS // n_draws)
        for some in (rest[first : first + size] for first in range(0, rest.size, size)):
            uniforms = np.random.default_rng(0).random((some.size * n_draws, self.network.n_slots))
            # Of equal weights, so that the first uniform chooses the child.
            uniforms[:, 0] = (some.repeat(n_draws) + 0.5) / self.log_weights.size
            with kept_programs():
                alike = replace(self, log_weights=np.zeros(self.log_weights.size))
                rows = alike.draw_rows(uniforms, 0)[0].reshape(some.size, n_draws, -1)
            means = rows.mean(axis=1)
            away = rows - means[:, None]
            covariances = away.swapaxes(1, 2) @ away / n_draws
            for share, factor in ((1.0 - _WIDE_SHARE, 1.0), (_WIDE_SHARE, _WIDE)):
                found.append((some, np.full(some.size, share), means, factor * covariances))
        children, shares, means, covariances = (np.concatenate(a) for a in zip(*found, strict=True))
        order = np.argsort(children, kind="stable")
        return children[order], shares[order], means[order], covariances[order], not rest.size

    # Of sum-product-transform networks.

    def most_probable_trees(self, rows: np.ndarray) -> np.ndarray:
        """Choices (N, n_slots) of the most probable tree of each row."""
        network: Any = self.network
        query = compiled(type(network).most_probable_tree, network)
        return np.concatenate(self._by_blocks(query, _TREE_ROWS, rows))

    def sample_conditional(self, rows: np.ndarray, uniforms: np.ndarray, seed: int) -> np.ndarray:
        """Rows with missing values (NaN) drawn, given the others.

        A tree from its posterior given what was observed, then the leaves of the rest.
        """
        draw = compiled(_draw_others, self.network)
        numbers = itertools.count()

        def draw_block(*values: jax.Array) -> jax.Array:
            key = jax.random.fold_in(jax.random.key(seed), next(numbers))
            drawn: jax.Array = draw(*values, key)
            return drawn

        parts = self._by_blocks(draw_block, _TREE_ROWS, rows, uniforms)
        return np.concatenate(parts).astype(np.float64)


def _log_joint(
    network: Network, tables: Tables, log_weights: jax.Array, rows: jax.Array
) -> jax.Array:
    return log_weights + network.log_density_all(tables, rows)


@jax.jit
def _log_sum(log_joint: jax.Array) -> jax.Array:
    return logsumexp(log_joint, axis=1)


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


def _draw_rows(
    network: Network, tables: Tables, log_weights: jax.Array, uniforms: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    trees = network.draw_prior(tables, log_weights, uniforms)
    return network.sample(tables, trees, key), trees


def _draw_trees(
    network: Network, tables: Tables, log_weights: jax.Array, rows: jax.Array, uniforms: jax.Array
) -> jax.Array:
    return network.draw(tables, log_weights, rows, uniforms[:, None])[:, 0]


def _draw_others(
    network: SumProductTransform,
    tables: Tables,
    log_weights: jax.Array,
    rows: jax.Array,
    uniforms: jax.Array,
    key: jax.Array,
) -> jax.Array:
    trees = _draw_trees(network, tables, log_weights, rows, uniforms)
    return jnp.where(jnp.isnan(rows), network.sample(tables, trees, key), rows)

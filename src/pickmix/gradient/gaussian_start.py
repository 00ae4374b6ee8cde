"""Starts from a Gaussian mixture: components that begin as its Gaussians, chains drawn from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pickmix.gradient.compilation import kept_programs
from pickmix.gradient.network import Network
from pickmix.gradient.precision import DType, precision
from pickmix.gradient.start import Start, random_trees
from pickmix.selection.randomness import StepRandomness, Stream

# Numbers of a block of rows times components.
_BLOCK_NUMBERS = 4_000_000


@dataclass(frozen=True)
class Gaussians:
    """A Gaussian mixture: sum_k weights[k] N(means[k], (L_k' L_k)^-1).

    Attributes
    ----------
    weights : (K,) array
    means : (K, D) array
    cholesky : (K, D, D) array
        The L_k, lower triangular with positive diagonals.
    """

    weights: np.ndarray
    means: np.ndarray
    cholesky: np.ndarray

    @property
    def n_components(self) -> int:
        """K."""
        return int(self.weights.shape[0])

    def repeated(self, n_components: int, seed: int) -> Gaussians:
        """The same density with more components: some of them several times, with shared weights.

        Examples
        --------
        >>> one = Gaussians(np.ones(1), np.zeros((1, 2)), np.eye(2)[None])
        >>> one.repeated(4, seed=0).weights
        array([0.25, 0.25, 0.25, 0.25])
        """
        n_copies = n_components - self.n_components
        if n_copies == 0:
            return self
        generator = np.random.default_rng([seed, 6])
        copies = generator.choice(self.n_components, n_copies, p=self.weights / self.weights.sum())
        which = np.concatenate([np.arange(self.n_components), copies])
        shared = np.bincount(which, minlength=self.n_components)
        return Gaussians(
            self.weights[which] / shared[which], self.means[which], self.cholesky[which]
        )

    def log_joint(self, rows: np.ndarray) -> np.ndarray:
        """log p(x, k) of rows (N, D), as (N, K).

        NaN is a value that was not seen: it is integrated out, for diagonal L_k alone.
        """
        diagonals = np.diagonal(self.cholesky, axis1=1, axis2=2)
        if np.isnan(rows).any():
            return self._log_joint_of_seen(rows, diagonals)
        with np.errstate(divide="ignore"):
            constants = np.log(self.weights) + np.log(diagonals).sum(axis=1)
        constants -= 0.5 * rows.shape[1] * np.log(2.0 * np.pi)
        values = np.empty((rows.shape[0], self.n_components))
        for k, (mean, factor) in enumerate(zip(self.means, self.cholesky, strict=True)):
            whitened = (rows - mean) @ factor.T
            values[:, k] = constants[k] - 0.5 * np.einsum("ij,ij->i", whitened, whitened)
        return values

    def _log_joint_of_seen(self, rows: np.ndarray, diagonals: np.ndarray) -> np.ndarray:
        seen = ~np.isnan(rows)
        filled = np.where(seen, rows, 0.0)
        with np.errstate(divide="ignore"):
            log_weights = np.log(self.weights)
        values = seen @ (np.log(diagonals) - 0.5 * np.log(2.0 * np.pi)).T + log_weights
        for k, (mean, diagonal) in enumerate(zip(self.means, diagonals, strict=True)):
            whitened = np.where(seen, (filled - mean) * diagonal, 0.0)
            values[:, k] -= 0.5 * np.einsum("ij,ij->i", whitened, whitened)
        return np.asarray(values)

    def draw_components(self, rows: np.ndarray, seed: int) -> np.ndarray:
        """A component for each row (N, D), drawn from its posterior: (N,)."""
        random = StepRandomness(seed, 0)
        uniforms = random.uniforms(Stream.POSTERIOR, np.arange(rows.shape[0]), 1)
        components = np.empty(rows.shape[0], np.int32)
        size = max(1, _BLOCK_NUMBERS // self.n_components)
        for start in range(0, rows.shape[0], size):
            scores = self.log_joint(rows[start : start + size])
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            cumulative = weights.cumsum(axis=1)
            targets = uniforms[start : start + size] * cumulative[:, -1:]
            components[start : start + size] = (cumulative <= targets).sum(axis=1)
        return np.minimum(components, self.n_components - 1)


def gaussian_start(
    network: Network, gaussians: Gaussians, rows: np.ndarray, seed: int, dtype: DType
) -> Start:
    """Begin with the density of a Gaussian mixture, and with chains drawn from its posterior.

    Networks with several layers then fit small mixtures below, where rows left out gain by them.

    Parameters
    ----------
    network : Network
        Its root has at least as many children as there are Gaussians; if it has more, some
        Gaussians become several children.
    gaussians : Gaussians
    rows : (N, D) array
    seed : int
    dtype : dtype
    """
    gaussians = gaussians.repeated(network.n_children, seed)
    chain = random_trees(network, rows.shape[0], seed)
    chain[:, 0] = gaussians.draw_components(rows, seed)
    with precision(dtype), kept_programs():
        tables = network.start(seed, np.dtype(dtype))
        tables = network.take_gaussians(tables, gaussians.means, gaussians.cholesky, seed)
        below = getattr(network, "take_gaussians_below", None)
        if below is not None:
            tables, chain = below(tables, chain, rows, seed)
    with np.errstate(divide="ignore"):
        log_weights = np.log(gaussians.weights)
    return Start(tables, log_weights, chain)

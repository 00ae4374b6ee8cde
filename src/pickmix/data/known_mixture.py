"""A Gaussian mixture whose parameters are known: what generators return."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from pickmix.inputs.arrays import check_integer

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
RandomState = int | np.random.Generator | None

# Elements of the largest temporary array (16 MB), whatever K and N are.
BLOCK_ELEMENTS = 1 << 21


@dataclass(frozen=True, eq=False)
class KnownMixture:
    """A Gaussian mixture with exact samples and densities.

    Attributes
    ----------
    weights : ndarray, shape (K,)
    means : ndarray, shape (K, D)
    covariances : ndarray, shape (K, D, D)

    Examples
    --------
    >>> mixture = KnownMixture(np.ones(1), np.zeros((1, 2)), np.eye(2)[None])
    >>> X, labels = mixture.sample(100, random_state=0)
    >>> X.shape, labels.shape
    ((100, 2), (100,))
    >>> mixture.score_samples([[0.0, 0.0]]).round(6)  # -log(2 pi)
    array([-1.837877])
    """

    weights: FloatArray
    means: FloatArray
    covariances: FloatArray

    def __post_init__(self) -> None:
        if self.means.ndim != 2:
            raise ValueError(f"means must have shape (K, D); got {self.means.shape}")
        K, D = self.means.shape
        if self.weights.shape != (K,) or self.covariances.shape != (K, D, D):
            raise ValueError(
                f"weights and covariances must have shapes {(K,)} and {(K, D, D)} to go with "
                f"means of shape {(K, D)}; got {self.weights.shape} and {self.covariances.shape}"
            )

    def sample(self, n: int, random_state: RandomState = None) -> tuple[FloatArray, IntArray]:
        """Draw n rows, in random order.

        Returns
        -------
        X : ndarray, shape (n, D)
        labels : ndarray, shape (n,)
            The component that each row was drawn from.
        """
        K, D = self.means.shape
        rng = np.random.default_rng(random_state)
        counts = self._component_sizes(n, rng)
        labels = np.repeat(np.arange(K), counts)
        X = rng.standard_normal((n, D))
        factors = np.linalg.cholesky(self.covariances)
        ends = np.cumsum(counts)
        for k in range(K):
            rows = slice(ends[k] - counts[k], ends[k])
            X[rows] = self.means[k] + X[rows] @ factors[k].T
        order = rng.permutation(n)
        return X[order], labels[order]

    def _component_sizes(self, n: int, rng: np.random.Generator) -> IntArray:
        """How many of n rows each component gives, (K,)."""
        check_integer("n", n, 1)
        return rng.multinomial(n, self.weights)

    def score_samples(self, X: ArrayLike) -> FloatArray:
        r"""Return the log density :math:`\log \sum_k \pi_k \phi(x; \mu_k, S_k)` of every row.

        Parameters
        ----------
        X : array_like, shape (N, D)

        Returns
        -------
        ndarray, shape (N,)
        """
        X = np.asarray(X, dtype=np.float64)
        K, D = self.means.shape
        if X.ndim != 2 or X.shape[1] != D:
            raise ValueError(f"X must have shape (N, {D}); got {X.shape}")
        factors = np.linalg.cholesky(self.covariances)
        whitening = np.linalg.inv(factors)
        offsets = np.einsum("kde,ke->kd", whitening, self.means)
        log_norms = -np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
        log_norms += np.log(self.weights) - 0.5 * D * math.log(2.0 * math.pi)
        # One matrix product whitens a block of rows for all components.
        stacked = whitening.reshape(K * D, D).T
        result = np.empty(X.shape[0])
        block = max(1, BLOCK_ELEMENTS // (K * D))
        for start in range(0, X.shape[0], block):
            z = (X[start : start + block] @ stacked).reshape(-1, K, D) - offsets
            log_joint = log_norms - 0.5 * np.einsum("nkd,nkd->nk", z, z)
            result[start : start + block] = logsumexp(log_joint, axis=1)
        return result

"""Overlaps of pairs of Gaussian components, all pairs of many, in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pickmix.data.quadratic_forms import quadratic_cdf_rows

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Elements of the largest temporary array (16 MB), whatever K and N are.
BLOCK_ELEMENTS = 1 << 21
_FIRST_CHUNK = 32


@dataclass(frozen=True)
class PairGeometry:
    """Pairs (i, j) in coordinates where S_i is the identity and S_j is diagonal.

    In these, S_j has eigenvalues 1 / lam, and the means differ by delta; each (P, D).
    kappa (P,) is 2 log(pi_j / pi_i) + log|S_i| - log|S_j|.
    """

    lam: FloatArray
    delta_squared: FloatArray
    kappa: FloatArray

    @classmethod
    def of(
        cls, weights: FloatArray, means: FloatArray, covariances: FloatArray, pairs: IntArray
    ) -> PairGeometry:
        """Geometry of the pairs (P, 2) of a mixture's components."""
        first, second = pairs[:, 0], pairs[:, 1]
        factor = np.linalg.cholesky(covariances[first])
        # A Cholesky factor serves as S_i^(1/2): it differs by a rotation, which the
        # eigenvectors absorb.
        product = np.swapaxes(factor, 1, 2) @ np.linalg.solve(covariances[second], factor)
        lam, vectors = np.linalg.eigh(0.5 * (product + np.swapaxes(product, 1, 2)))
        whitened = np.linalg.solve(factor, (means[first] - means[second])[..., None])
        delta = (np.swapaxes(vectors, 1, 2) @ whitened)[..., 0]
        kappa = 2.0 * np.log(weights[second] / weights[first]) + np.log(lam).sum(axis=1)
        return cls(lam, delta**2, kappa)

    def take(self, index: list[int] | NDArray[np.bool_]) -> PairGeometry:
        """Some of the pairs."""
        return PairGeometry(self.lam[index], self.delta_squared[index], self.kappa[index])

    def overlaps(self, scale: float) -> FloatArray:
        """Return (P, 2): omega_(j|i) and omega_(i|j) with all covariances times scale."""
        lam, delta_squared = self.lam, self.delta_squared / scale
        result = np.empty((2, len(lam)))
        # x ~ i with z standard normal: lam (z + delta)^2 - z^2 sums to at most kappa. Expanding
        # the square, not completing it, needs no special case for lam = 1.
        quadratic_cdf_rows(
            self.kappa - (lam * delta_squared).sum(axis=1),
            lam - 1.0,
            4.0 * lam**2 * delta_squared,
            result[0],
        )
        # x ~ j: the same with lam -> 1 / lam and delta -> -sqrt(lam) delta.
        quadratic_cdf_rows(
            -self.kappa - delta_squared.sum(axis=1),
            1.0 / lam - 1.0,
            4.0 * delta_squared / lam,
            result[1],
        )
        if np.isnan(result).any():
            raise FloatingPointError(
                "a pair overlap could not be integrated; are S_k near singular?"
            )
        return result.T


def pairwise_overlap(
    weights: ArrayLike, means: ArrayLike, covariances: ArrayLike, pairs: ArrayLike
) -> FloatArray:
    r"""Return the misclassification probabilities of pairs of Gaussian components.

    .. math:: \omega_{j|i} = P_{x \sim \phi_i}[\pi_i \phi_i(x) < \pi_j \phi_j(x)]

    Parameters
    ----------
    weights : array_like, shape (K,)
    means : array_like, shape (K, D)
    covariances : array_like, shape (K, D, D)
    pairs : array_like of int, shape (P, 2)
        The pairs (i, j).

    Returns
    -------
    ndarray, shape (P, 2)
        :math:`\omega_{j|i}` and :math:`\omega_{i|j}`; the overlap of a pair is their sum.

    References
    ----------
    Melnykov, Chen and Maitra (2012), MixSim: an R package for simulating data to study performance
    of clustering algorithms. Journal of Statistical Software 51(12).

    Examples
    --------
    Two unit normals at distance 2 are cut in the middle, one deviation from each:

    >>> overlap = pairwise_overlap([0.5, 0.5], [[0.0], [2.0]], [[[1.0]], [[1.0]]], [[0, 1]])
    >>> overlap.round(4)
    array([[0.1587, 0.1587]])
    """
    geometry = PairGeometry.of(
        np.asarray(weights, dtype=np.float64),
        np.asarray(means, dtype=np.float64),
        np.asarray(covariances, dtype=np.float64),
        np.asarray(pairs, dtype=np.int64),
    )
    return geometry.overlaps(1.0)


def pair_block_distances(
    means: FloatArray, covariances: FloatArray
) -> Iterator[tuple[IntArray, FloatArray, FloatArray]]:
    r"""Yield all pairs i < j in blocks, with the two parts of -log rho.

    :math:`-\log \rho = m / c + h` when all covariances are scaled by c:
    m = (mu_i - mu_j)' S^-1 (mu_i - mu_j) / 8 and h = log|S| / 2 - log|S_i| / 4 - log|S_j| / 4
    with S = (S_i + S_j) / 2.
    """
    K, D = means.shape
    block = max(1, BLOCK_ELEMENTS // (D * D))
    quarter_log_determinants = 0.25 * np.linalg.slogdet(covariances)[1]
    for i in range(K - 1):
        for start in range(i + 1, K, block):
            j = np.arange(start, min(start + block, K))
            factor = np.linalg.cholesky(0.5 * (covariances[i] + covariances[j]))
            whitened = np.linalg.solve(factor, (means[i] - means[j])[..., None])[..., 0]
            separation = np.einsum("pd,pd->p", whitened, whitened) / 8.0
            log_shape = np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
            log_shape -= quarter_log_determinants[i] + quarter_log_determinants[j]
            yield np.stack([np.full_like(j, i), j], axis=1), separation, log_shape


def chunks(n: int, n_features: int) -> Iterator[slice]:
    """Split range(n), small first: the first pairs often decide about all others."""
    start, size = 0, _FIRST_CHUNK
    while start < n:
        yield slice(start, min(start + size, n))
        start += size
        size = min(2 * size, max(_FIRST_CHUNK, BLOCK_ELEMENTS // n_features**2))

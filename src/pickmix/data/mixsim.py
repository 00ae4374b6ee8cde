r"""MixSim: random Gaussian mixtures whose components overlap by a given amount.

With equal weights the overlap of a pair is :math:`\int \min(\phi_i, \phi_j)`. Two facts about it
make the generator fast and exact at once:

- it lies between :math:`1 - \sqrt{1 - \rho^2}` and :math:`\rho`, where
  :math:`\rho = \int \sqrt{\phi_i \phi_j}` has a closed form, so that almost every pair is ruled
  out as the largest without integrating anything;
- it never falls as all covariances grow by a common factor c, because its level sets are
  intersections of two ellipsoids that move towards each other. A pair that is not above the asked
  overlap at some c therefore cannot force a smaller c.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from pickmix.data.known_mixture import (
    BLOCK_ELEMENTS,
    FloatArray,
    IntArray,
    KnownMixture,
    RandomState,
)
from pickmix.data.quadratic_forms import quadratic_cdf_rows
from pickmix.inputs.arrays import check_integer

__all__ = ["MixSimMixture", "generate", "pairwise_overlap"]

# Overlaps are integrated to an absolute error well below this.
_SMALLEST_OVERLAP = 1e-8
# Past this multiple of the first guess the means coincide for all purposes.
_UNREACHABLE_SCALE = 2.0**60
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


@dataclass(frozen=True, eq=False)
class MixSimMixture(KnownMixture):
    r"""A Gaussian mixture with exact samples, densities and overlaps.

    Samples have every component at least once: component sizes are
    :math:`1 + \mathrm{Multinomial}(n - K, \pi)`.

    Attributes
    ----------
    weights : ndarray, shape (K,)
    means : ndarray, shape (K, D)
    covariances : ndarray, shape (K, D, D)
    """

    def _component_sizes(self, n: int, rng: np.random.Generator) -> IntArray:
        K = self.weights.shape[0]
        check_integer("n", n, K, ", a row per component")
        return 1 + rng.multinomial(n - K, self.weights)

    def max_overlap(self) -> float:
        """Return the largest overlap over all pairs of components (0 for one component).

        No pair is skipped but those whose upper bound is below another pair's overlap.
        """
        kept_pairs = []
        kept_bounds = []
        largest = 0.0
        for pairs, separation, log_shape in pair_block_distances(self.means, self.covariances):
            affinity = np.exp(-separation - log_shape)
            ratio = self.weights[pairs[:, 0]] / self.weights[pairs[:, 1]]
            bounds = affinity * np.sqrt(np.maximum(ratio, 1.0 / ratio))
            # No rule that separates the two errs less than this, for any weights.
            top = min(1.0, float(affinity.max()))
            largest = max(largest, 1.0 - math.sqrt(1.0 - top**2))
            keep = bounds >= largest
            kept_pairs.append(pairs[keep])
            kept_bounds.append(bounds[keep])
        if not kept_pairs:
            return 0.0
        bounds = np.concatenate(kept_bounds)
        order = np.argsort(-bounds, kind="stable")
        pairs, bounds = np.concatenate(kept_pairs)[order], bounds[order]
        largest = 0.0
        for chunk in chunks(len(pairs), self.means.shape[1]):
            if bounds[chunk.start] < largest:
                break
            overlaps = pairwise_overlap(self.weights, self.means, self.covariances, pairs[chunk])
            largest = max(largest, float(overlaps.sum(axis=1).max()))
        return largest


def generate(
    n_components: int,
    n_features: int,
    max_overlap: float,
    *,
    random_state: RandomState = None,
    max_eccentricity: float = 0.9,
    max_draws: int = 100,
) -> MixSimMixture:
    r"""Draw a Gaussian mixture whose largest pair overlap is given.

    Weights are 1/K, means uniform in the unit cube, and covariances c S_k, where S_k is the sample
    covariance of D + 1 standard normal draws. The factor c solves

    .. math:: \max_{i<j}\; \omega_{j|i}(c) + \omega_{i|j}(c) = \omega,

    with :math:`\omega_{j|i}` as in `pairwise_overlap`.

    Parameters
    ----------
    n_components : int
        K >= 2.
    n_features : int
        D >= 1.
    max_overlap : float
        The asked overlap, in [1e-8, 1).
    random_state : int, numpy Generator or None
    max_eccentricity : float, default 0.9
        Limit in [0, 1) on sqrt(1 - smallest / largest eigenvalue) of each S_k, kept by shrinking
        the spectrum towards its largest value. 0 makes spheres.
    max_draws : int, default 100
        Covariances of different shape overlap by less than 1 even with equal means, so a draw can
        fall short of the asked overlap. Another is tried, up to this many.

    Returns
    -------
    MixSimMixture

    References
    ----------
    Melnykov, Chen and Maitra (2012), MixSim: an R package for simulating data to study performance
    of clustering algorithms. Journal of Statistical Software 51(12).

    Examples
    --------
    >>> mixture = generate(5, 2, 0.05, random_state=0)
    >>> round(mixture.max_overlap(), 6)
    0.05
    >>> X, labels = mixture.sample(100, random_state=1)
    >>> X.shape, mixture.score_samples(X).shape
    ((100, 2), (100,))
    """
    check_integer("n_components", n_components, 2)
    check_integer("n_features", n_features, 1)
    check_integer("max_draws", max_draws, 1)
    if not _SMALLEST_OVERLAP <= max_overlap < 1.0:
        raise ValueError(f"max_overlap must be in [{_SMALLEST_OVERLAP:g}, 1); got {max_overlap!r}")
    if not 0.0 <= max_eccentricity < 1.0:
        raise ValueError(f"max_eccentricity must be in [0, 1); got {max_eccentricity!r}")
    rng = np.random.default_rng(random_state)
    weights = np.full(n_components, 1.0 / n_components)
    for _ in range(max_draws):
        means = rng.uniform(size=(n_components, n_features))
        covariances = _draw_covariances(n_components, n_features, max_eccentricity, rng)
        scale = _solve_scale(weights, means, covariances, max_overlap)
        if scale is not None:
            return MixSimMixture(weights, means, scale * covariances)
    raise ValueError(
        f"max_overlap={max_overlap!r} was out of reach in {max_draws} draws, even with equal "
        f"means: the shapes of {n_components} components in {n_features} dimensions differ too "
        "much. Ask for a smaller max_overlap, a smaller max_eccentricity or more max_draws"
    )


def _draw_covariances(
    K: int, D: int, max_eccentricity: float, rng: np.random.Generator
) -> FloatArray:
    draws = rng.standard_normal((K, D + 1, D))
    draws -= draws.mean(axis=1, keepdims=True)
    eigenvalues, vectors = np.linalg.eigh(np.swapaxes(draws, 1, 2) @ draws / D)
    largest = eigenvalues[:, -1:]
    shortfall = (largest - eigenvalues) / largest  # its maximum is the squared eccentricity
    limit = max_eccentricity**2
    shrinkage = limit / np.maximum(shortfall[:, :1], max(limit, np.finfo(float).tiny))
    eigenvalues = largest * (1.0 - shrinkage * shortfall)
    covariances: FloatArray = (vectors * eigenvalues[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    return covariances


def _scale_at_affinity(
    log_affinity: float, separation: FloatArray, log_shape: FloatArray
) -> FloatArray:
    """Return the c with log rho = log_affinity; infinite where rho stays below it."""
    room = -log_affinity - log_shape
    result = np.full_like(separation, np.inf)
    return np.divide(separation, room, out=result, where=room > 0.0)


def _solve_scale(
    weights: FloatArray, means: FloatArray, covariances: FloatArray, max_overlap: float
) -> float | None:
    """Return the smallest c at which some pair reaches max_overlap; None if no c is enough.

    Each pair's own c lies between two values known in closed form. Pairs are visited by the lower
    one, and only those above max_overlap at the smallest c found so far are solved.
    """
    log_low, log_high = math.log(max_overlap), 0.5 * math.log(max_overlap * (2.0 - max_overlap))
    best = np.inf
    kept_pairs, kept_lowest = [], []
    for pairs, separation, log_shape in pair_block_distances(means, covariances):
        lowest = _scale_at_affinity(log_low, separation, log_shape)
        best = min(best, float(_scale_at_affinity(log_high, separation, log_shape).min()))
        keep = (lowest <= best) & np.isfinite(lowest)
        kept_pairs.append(pairs[keep])
        kept_lowest.append(lowest[keep])
    lowest = np.concatenate(kept_lowest)
    order = np.argsort(lowest, kind="stable")
    pairs, lowest = np.concatenate(kept_pairs)[order], lowest[order]
    best *= 1.0 + 1e-9  # the pair that set it must come out above max_overlap despite rounding
    solved = False
    for chunk in chunks(len(pairs), means.shape[1]):
        if lowest[chunk.start] > best:
            break
        geometry = PairGeometry.of(weights, means, covariances, pairs[chunk])
        starts = lowest[chunk]
        while len(starts):
            overlaps = geometry.overlaps(best).sum(axis=1)
            leader = int(overlaps.argmax())
            if overlaps[leader] <= max_overlap:
                break
            scale = _solve_pair_scale(geometry.take([leader]), starts[leader], best, max_overlap)
            if scale is None:
                break
            best, solved = scale, True
            above = overlaps > max_overlap
            above[leader] = False
            geometry, starts = geometry.take(above), starts[above]
    return best if solved else None


def _solve_pair_scale(
    geometry: PairGeometry, low: float, high: float, max_overlap: float
) -> float | None:
    """Return c in [low, high] (high may be infinite) where one pair's overlap is max_overlap."""

    def excess(log_scale: float) -> float:
        return float(geometry.overlaps(math.exp(log_scale)).sum()) - max_overlap

    if not np.isfinite(high):
        high = low
        while excess(math.log(high)) <= 0.0:
            high *= 4.0
            if high > _UNREACHABLE_SCALE * low:
                return None
    # The lower bound can fail by rounding when it is tight.
    while excess(math.log(low)) > 0.0:
        low *= 0.5
    return math.exp(brentq(excess, math.log(low), math.log(high), xtol=1e-13, rtol=1e-13))

"""Quantiles of one-dimensional mixtures."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr, ndtri, pdtr, pdtrik

_MOST_STEPS = 200
_TOLERANCE = 1e-12  # In standard deviations of the narrowest component.
_NEWTON_TOLERANCE = 1e-7


def normal_quantiles(
    weights: np.ndarray,
    means: np.ndarray,
    deviations: np.ndarray,
    starts: np.ndarray,
    quantile: float,
) -> np.ndarray:
    """Quantiles (R,), in (0, 1), of R mixtures of normal distributions.

    Weights, means and deviations (P,) are of the components of all mixtures, one mixture after
    another, mixture r from starts[r] on. Weights of each sum to one.

    >>> weights, means = np.array([0.5, 0.5, 1.0]), np.array([-3.0, 3.0, 7.0])
    >>> normal_quantiles(weights, means, np.ones(3), np.array([0, 2]), 0.5).round(6) + 0.0
    array([0., 7.])
    """
    if quantile > 0.5:
        # Tails on the left keep their digits.
        return -normal_quantiles(weights, -means, deviations, starts, 1.0 - quantile)
    n_rows = starts.shape[0]
    found = np.empty(n_rows)
    which = _rows_of(starts, weights.shape[0])
    own = means + ndtri(quantile) * deviations
    # A mixture's quantile lies between those of its components.
    low, high = np.minimum.reduceat(own, starts), np.maximum.reduceat(own, starts)
    # The quantile of a normal distribution with the mixture's mean and variance is near.
    mean = np.add.reduceat(weights * means, starts)
    variance = np.add.reduceat(
        weights * (np.square(deviations) + np.square(means - mean[which])), starts
    )
    place = np.clip(mean + ndtri(quantile) * np.sqrt(variance), low, high)
    narrowest = np.minimum.reduceat(deviations, starts)
    stride = high - low
    active = np.arange(n_rows)
    for _ in range(_MOST_STEPS):
        away = (place[which] - means) / deviations
        excess = np.add.reduceat(weights * ndtr(away), starts) - quantile
        with np.errstate(under="ignore", divide="ignore", invalid="ignore", over="ignore"):
            densities = weights * np.exp(-0.5 * np.square(away)) / deviations
            slope = np.add.reduceat(densities, starts) / np.sqrt(2.0 * np.pi)
            following = place - excess / slope
        low, high = np.where(excess < 0.0, place, low), np.where(excess < 0.0, high, place)
        # Bisection where Newton's step leaves the bracket, or creeps along a tail.
        newton = (following >= low) & (following <= high)
        newton &= np.abs(following - place) <= 0.5 * stride
        following = np.where(newton, following, 0.5 * (low + high))
        stride = np.abs(following - place)
        # The error of a Newton step is about its square.
        tolerance = np.where(newton, _NEWTON_TOLERANCE, _TOLERANCE) * narrowest
        done = (stride <= np.maximum(tolerance, 1e-15 * np.abs(following))) | (excess == 0.0)
        place = np.where(excess == 0.0, place, following)
        if not done.any():
            continue
        found[active[done]] = place[done]
        if done.all():
            return found
        stays = ~done
        kept = stays[which]
        weights, means, deviations = weights[kept], means[kept], deviations[kept]
        sizes = np.bincount(which, minlength=stays.shape[0])[stays]
        starts = np.cumsum(sizes) - sizes
        which = np.repeat(np.arange(sizes.shape[0]), sizes)
        active, place, narrowest = active[stays], place[stays], narrowest[stays]
        low, high, stride = low[stays], high[stays], stride[stays]
    found[active] = place
    return found


def poisson_quantiles(
    weights: np.ndarray, rates: np.ndarray, starts: np.ndarray, quantile: float
) -> np.ndarray:
    """Quantiles (R,) of mixtures of Poisson distributions: the least counts with F >= quantile.

    >>> poisson_quantiles(np.array([0.5, 0.5]), np.array([1.0, 20.0]), np.array([0]), 0.5)
    array([6.])
    """
    which = _rows_of(starts, weights.shape[0])
    # Where F passes the quantile between two counts; nowhere, if it is above it from 0 on.
    own = np.nan_to_num(np.ceil(pdtrik(quantile, rates)))
    # F is below the quantile at `low`, and not at `high`; one more on both sides for rounding.
    low = np.maximum(np.minimum.reduceat(own, starts) - 2.0, -1.0)
    high = np.maximum(np.maximum.reduceat(own, starts), 0.0) + 1.0
    while (high - low > 1.0).any():
        # Where the bracket is closed this is `low`, which stays: F is below the quantile there.
        middle = np.floor(0.5 * (low + high))
        shares = pdtr(np.maximum(middle, 0.0)[which], rates)
        reached = np.add.reduceat(weights * shares, starts) >= quantile
        reached &= middle > low
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    return np.asarray(high)


def _rows_of(starts: np.ndarray, n_pairs: int) -> np.ndarray:
    """The mixture (P,) of each component."""
    return np.repeat(np.arange(starts.shape[0]), np.diff(starts, append=n_pairs))

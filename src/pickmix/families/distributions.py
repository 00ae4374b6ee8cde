"""Distributions of one column under a mixture: of normals, of counts, of levels, or by draws.

And quantiles of many such mixtures at a time.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from functools import partial
from typing import Self

import numpy as np
from scipy.special import gammaln, ndtr, ndtri, pdtr, pdtrik, stdtr, stdtrit

# Mixtures of up to so many components are not simplified.
_MANY = 1000
# Components count as alike if their means differ by less than this share of their standard
# deviation, and its logarithm by less than this; of counts, square roots of rates.
_ALIKE, _ALIKE_ROOTS = 0.2, 0.02
# Components times values that are evaluated at a time, 16 MB.
_BLOCK_NUMBERS = 2_000_000
# Steps to a quantile at most, and its error in standard deviations of the narrowest component; that
# of a Newton step is about its square.
_MOST_STEPS, _TOLERANCE, _NEWTON_TOLERANCE = 200, 1e-12, 1e-7


Inverse = Callable[[np.ndarray], np.ndarray]


class Distribution(abc.ABC):
    """A distribution of numbers."""

    #: "number", "count" or "level".
    kind: str = "number"
    #: What values are multiples of, if they are rounded.
    step: float | None = None
    #: Components that one evaluation looks at.
    n_components: int = 1
    #: Draws behind the distribution; infinite if it was computed.
    n_draws: float = np.inf

    def simplified(self) -> Distribution:
        """The same to four digits of its probabilities, with fewer components if possible."""
        return self

    def in_units(self, scale: float, offset: float, step: float | None) -> Distribution:
        """The distribution of value * scale + offset, rounded to multiples of `step`."""
        return self

    @abc.abstractmethod
    def cumulative(self, values: np.ndarray) -> np.ndarray:
        """P(x <= value), (n,). Of a rounded column: before rounding."""

    def bounds(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """P(x < value) and P(x <= value), (n,) each: equal unless values repeat."""
        probabilities = self.cumulative(values)
        return probabilities, probabilities

    def shares(self, edges: np.ndarray) -> np.ndarray:
        """Probabilities (B,) of bins with B + 1 edges; the outer bins are open."""
        inner = self.cumulative(edges[1:-1])
        return np.diff(np.concatenate([[0.0], inner, [1.0]]))

    def densities(self, values: np.ndarray) -> np.ndarray | None:
        """w_k p_k(value) of all components, (n, K); None if they have no densities."""
        return None


class _Mixed(Distribution):
    """A mixture of distributions of one form."""

    weights: np.ndarray

    @property
    def n_components(self) -> int:  # type: ignore[override]
        return int(self.weights.shape[0])

    def cumulative(self, values: np.ndarray) -> np.ndarray:
        probabilities = np.empty(values.shape[0])
        size = max(1, _BLOCK_NUMBERS // self.weights.shape[0])
        for first in range(0, values.shape[0], size):
            block = slice(first, first + size)
            probabilities[block] = self._below(values[block, None]) @ self.weights
        return np.clip(probabilities, 0.0, 1.0)

    @abc.abstractmethod
    def _below(self, values: np.ndarray) -> np.ndarray:
        """P_k(x <= value), (n, K), of values (n, 1)."""


class NormalMixture(_Mixed):
    """A mixture of normal distributions, rounded to multiples of `step` if there is one.

    `deviations` are (K,), or (1,) if all components share it.

    >>> mixture = NormalMixture(np.array([0.5, 0.5]), np.array([-1.0, 1.0]), np.ones(1))
    >>> mixture.cumulative(np.array([0.0]))
    array([0.5])
    """

    def __init__(
        self,
        weights: np.ndarray,
        means: np.ndarray,
        deviations: np.ndarray,
        step: float | None = None,
    ) -> None:
        self.weights, self.means, self.deviations, self.step = weights, means, deviations, step

    def simplified(self) -> Self | NormalMixture:
        """Components that are alike become one, with their common mean and variance."""
        if self.n_components <= _MANY:
            return self
        deviations = np.broadcast_to(self.deviations, self.means.shape)
        width = np.rint(np.log(deviations) / _ALIKE)
        # Means in units of a typical deviation of those that are as wide.
        place = np.rint(self.means / (_ALIKE * np.exp(_ALIKE * width)))
        which, totals = _groups(np.stack([width, place]), self.weights)
        means = np.bincount(which, self.weights * self.means) / totals
        squares = np.square(deviations) + np.square(self.means - means[which])
        variances = np.bincount(which, self.weights * squares) / totals
        return NormalMixture(totals, means, np.sqrt(variances), self.step)

    def in_units(self, scale: float, offset: float, step: float | None) -> NormalMixture:
        return NormalMixture(
            self.weights, self.means * scale + offset, self.deviations * scale, step
        )

    def _below(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(ndtr((values - self.means) / self.deviations))

    def densities(self, values: np.ndarray) -> np.ndarray:
        away = (values[:, None] - self.means) / self.deviations
        with np.errstate(under="ignore"):
            heights = np.exp(-0.5 * np.square(away)) / (np.sqrt(2.0 * np.pi) * self.deviations)
        return np.asarray(self.weights * heights)

    def bounds(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.step is None:
            return super().bounds(values)
        # A rounded value stands for all that round to it.
        half = 0.5 * self.step
        return self.cumulative(values - half), self.cumulative(values + half)


class StudentMixture(_Mixed):
    """A mixture of t distributions; locations, scales and degrees of freedom are (K,).

    >>> mixture = StudentMixture(np.ones(1), np.zeros(1), np.ones(1), np.array([3.0]))
    >>> mixture.cumulative(np.array([0.0]))
    array([0.5])
    """

    def __init__(
        self,
        weights: np.ndarray,
        means: np.ndarray,
        scales: np.ndarray,
        degrees: np.ndarray,
    ) -> None:
        self.weights, self.means = weights, means
        self.scales, self.degrees = scales, degrees

    def _below(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(stdtr(self.degrees, (values - self.means) / self.scales))

    def densities(self, values: np.ndarray) -> np.ndarray:
        squares = np.square((values[:, None] - self.means) / self.scales) / self.degrees
        half = 0.5 * (self.degrees + 1.0)
        heights = np.exp(gammaln(half) - gammaln(half - 0.5) - half * np.log1p(squares))
        return np.asarray(self.weights * heights / (np.sqrt(np.pi * self.degrees) * self.scales))


class CountMixture(_Mixed):
    """A mixture of Poisson distributions with rates (K,)."""

    kind = "count"
    step = 1.0

    def __init__(self, weights: np.ndarray, rates: np.ndarray) -> None:
        self.weights, self.rates = weights, rates

    def simplified(self) -> Self | CountMixture:
        """Components with nearly the same rate become one with their mean."""
        if self.n_components <= _MANY:
            return self
        # Square roots of counts have one spread, whatever the rate.
        which, totals = _groups(np.rint(np.sqrt(self.rates) / _ALIKE_ROOTS)[None], self.weights)
        return CountMixture(totals, np.bincount(which, self.weights * self.rates) / totals)

    def _below(self, values: np.ndarray) -> np.ndarray:
        whole = np.floor(values)
        return np.where(whole < 0.0, 0.0, pdtr(np.maximum(whole, 0.0), self.rates))

    def bounds(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.cumulative(values - 1.0), self.cumulative(values)


class Levels(Distribution):
    """Levels 0, 1, 2, ... with these probabilities (L,), in that order."""

    kind = "level"

    def __init__(self, shares: np.ndarray) -> None:
        # Probabilities have a floor, so their sum is one only to so many digits.
        self.probabilities = shares / shares.sum()

    def cumulative(self, values: np.ndarray) -> np.ndarray:
        sums = np.concatenate([[0.0], np.cumsum(self.probabilities)])
        return np.asarray(np.clip(sums[np.floor(values).astype(np.int64) + 1], 0.0, 1.0))

    def bounds(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.cumulative(values - 1.0), self.cumulative(values)


class Draws(Distribution):
    """The distribution of values (n,) that were drawn.

    >>> Draws(np.array([3.0, 1.0, 2.0, 4.0])).cumulative(np.array([2.5]))
    array([0.5])
    """

    def __init__(self, drawn: np.ndarray) -> None:
        self.drawn = np.sort(drawn)
        self.n_draws = float(drawn.shape[0])

    def cumulative(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(np.searchsorted(self.drawn, values, side="right") / self.n_draws)

    def bounds(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        low = np.searchsorted(self.drawn, values, side="left")
        high = np.searchsorted(self.drawn, values, side="right")
        n = self.n_draws + 1.0
        # A value between two draws falls anywhere between their ranks.
        return low / n, (high + 1.0) / n


def _groups(marks: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Group (K,) of each component by equal columns of marks (m, K), and weights (G,) of groups."""
    _, which = np.unique(marks, axis=1, return_inverse=True)
    which = which.reshape(-1)
    # A group of components without weight has a mean all the same.
    return which, np.maximum(np.bincount(which, weights), 1e-300)


def normal_within(
    means: np.ndarray,
    deviations: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    degrees: np.ndarray | None = None,
) -> tuple[np.ndarray, Inverse]:
    """Probabilities between two ends, and values there by uniforms; arrays are broadcast.

    With `degrees` of freedom, of t distributions.

    >>> normal_within(np.zeros(1), np.ones(1), np.array([-1.0, 9.0]), np.array([1.0, np.inf]))[0]
    array([6.82689492e-01, 1.12858841e-19])
    """
    a, b = (low - means) / deviations, (high - means) / deviations
    # Tails on the left keep their digits.
    sign = np.where(a > 0.0, -1.0, 1.0)
    below, above = (
        (ndtr, ndtri) if degrees is None else (partial(stdtr, degrees), partial(stdtrit, degrees))
    )
    first, last = below(np.where(a > 0.0, -b, a)), below(np.where(a > 0.0, -a, b))

    def inverse(uniforms: np.ndarray) -> np.ndarray:
        places = sign * above(first + uniforms * (last - first))
        return np.asarray(np.clip(means + deviations * places, low, high))

    return last - first, inverse


def normal_quantiles(
    weights: np.ndarray,
    means: np.ndarray,
    deviations: np.ndarray,
    starts: np.ndarray,
    quantile: float | np.ndarray,
) -> np.ndarray:
    """Quantiles (R,), one in (0, 1) or (R,), of R mixtures of normal distributions.

    Weights, means and deviations (P,) are of the components of all mixtures, one mixture after
    another, mixture r from starts[r] on. Weights of each sum to one.

    >>> weights, means = np.array([0.5, 0.5, 1.0]), np.array([-3.0, 3.0, 7.0])
    >>> normal_quantiles(weights, means, np.ones(3), np.array([0, 2]), 0.5).round(6) + 0.0
    array([0., 7.])
    """
    which = _rows_of(starts, weights.shape[0])
    quantile = np.broadcast_to(np.asarray(quantile, dtype=np.float64), starts.shape)
    # Tails on the left keep their digits.
    sign = np.where(quantile > 0.5, -1.0, 1.0)
    means, quantile = means * sign[which], np.where(quantile > 0.5, 1.0 - quantile, quantile)
    own = means + ndtri(quantile)[which] * deviations
    # A mixture's quantile lies between those of its components.
    low, high = np.minimum.reduceat(own, starts), np.maximum.reduceat(own, starts)
    # The quantile of a normal distribution with the mixture's mean and variance is near.
    mean = np.add.reduceat(weights * means, starts)
    squares = np.square(deviations) + np.square(means - mean[which])
    variance = np.add.reduceat(weights * squares, starts)
    place = np.clip(mean + ndtri(quantile) * np.sqrt(variance), low, high)
    narrowest = np.minimum.reduceat(deviations, starts)
    stride, done = high - low, np.zeros(starts.shape[0], dtype=bool)
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
        following = np.where(done | (excess == 0.0), place, following)
        stride = np.abs(following - place)
        place = following
        tolerance = np.where(newton, _NEWTON_TOLERANCE, _TOLERANCE) * narrowest
        done |= stride <= np.maximum(tolerance, 1e-15 * np.abs(place))
        if done.all():
            break
    return np.asarray(place * sign)


def student_quantiles(
    weights: np.ndarray,
    means: np.ndarray,
    scales: np.ndarray,
    degrees: np.ndarray,
    starts: np.ndarray,
    quantile: float,
) -> np.ndarray:
    """Quantiles (R,) of R mixtures of t distributions, by bisection; see `normal_quantiles`.

    >>> one, degrees = np.ones(1), np.array([3.0])
    >>> student_quantiles(one, 5.0 * one, one, degrees, np.array([0]), 0.5)
    array([5.])
    """
    which = _rows_of(starts, weights.shape[0])
    own = means + stdtrit(degrees, quantile) * scales
    low, high = np.minimum.reduceat(own, starts), np.maximum.reduceat(own, starts)
    tolerance = _TOLERANCE * np.minimum.reduceat(scales, starts)
    for _ in range(_MOST_STEPS):
        middle = 0.5 * (low + high)
        shares = stdtr(degrees, (middle[which] - means) / scales)
        below = np.add.reduceat(weights * shares, starts) < quantile
        low, high = np.where(below, middle, low), np.where(below, high, middle)
        if (high - low <= np.maximum(tolerance, 1e-15 * np.abs(high))).all():
            break
    return np.asarray(0.5 * (low + high))


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

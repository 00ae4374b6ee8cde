"""Distributions of one column under a model: mixtures of normals, of counts, levels, or draws."""

from __future__ import annotations

import abc

import numpy as np
from scipy.special import ndtr, pdtr

# Components up to which none are put together; and what counts as alike: means that differ by less
# than this share of their spread, and logarithms of the spread; square roots of rates.
_MANY = 1000
_ALIKE, _ALIKE_ROOTS = 0.2, 0.02
# Components times values that are evaluated at a time, 16 MB.
_BLOCK_NUMBERS = 2_000_000


class Law(abc.ABC):
    """A distribution of numbers."""

    #: "number", "count" or "level".
    kind: str = "number"
    #: What values are multiples of, if they are rounded.
    step: float | None = None
    #: Components that one evaluation looks at.
    n_components: int = 1
    #: Rows behind the law, if it was not computed but drawn.
    n_draws: float = np.inf

    def grouped(self) -> Law:
        """The same law to four digits of its probabilities, with fewer components if it can be."""
        return self

    @abc.abstractmethod
    def cumulative(self, values: np.ndarray) -> np.ndarray:
        """P(x <= value), (n,). Of a rounded column: before rounding."""

    def bounds(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """P(x < value) and P(x <= value), (n,) each: equal unless values repeat."""
        found = self.cumulative(values)
        return found, found

    def shares(self, edges: np.ndarray) -> np.ndarray:
        """Probabilities (B,) of bins with B + 1 edges; the outer bins are open."""
        inner = self.cumulative(edges[1:-1])
        return np.diff(np.concatenate([[0.0], inner, [1.0]]))


class _Mixed(Law):
    """A mixture of distributions of one form."""

    weights: np.ndarray

    def cumulative(self, values: np.ndarray) -> np.ndarray:
        """Weighted sums over the components, some values at a time."""
        found = np.empty(values.shape[0])
        size = max(1, _BLOCK_NUMBERS // self.weights.shape[0])
        for first in range(0, values.shape[0], size):
            some = slice(first, first + size)
            found[some] = self._below(values[some, None]) @ self.weights
        return np.clip(found, 0.0, 1.0)

    @abc.abstractmethod
    def _below(self, values: np.ndarray) -> np.ndarray:
        """P_k(x <= value), (n, K), of values (n, 1)."""


class NormalLaw(_Mixed):
    """A mixture of normal distributions, rounded to multiples of `step` if there is one.

    Parameters
    ----------
    weights, means : (K,) arrays
    spread : (K,) array, or (1,) if all share it
        Standard deviations.
    step : float, default=None

    Examples
    --------
    >>> law = NormalLaw(np.array([0.5, 0.5]), np.array([-1.0, 1.0]), np.ones(1))
    >>> law.cumulative(np.array([0.0]))
    array([0.5])
    """

    def __init__(
        self,
        weights: np.ndarray,
        means: np.ndarray,
        spread: np.ndarray,
        step: float | None = None,
    ) -> None:
        self.weights, self.means, self.spread, self.step = weights, means, spread, step
        self.n_components = int(weights.shape[0])

    def grouped(self) -> NormalLaw:
        """Components that are alike become one, with their common mean and variance."""
        if self.n_components <= _MANY:
            return self
        spread = np.broadcast_to(self.spread, self.means.shape)
        width = np.rint(np.log(spread) / _ALIKE)
        # Places in units of a typical spread of those that are as wide.
        place = np.rint(self.means / (_ALIKE * np.exp(_ALIKE * width)))
        which, totals = _groups(np.stack([width, place]), self.weights)
        means = np.bincount(which, self.weights * self.means) / totals
        squares = np.square(spread) + np.square(self.means - means[which])
        variances = np.bincount(which, self.weights * squares) / totals
        return NormalLaw(totals, means, np.sqrt(variances), self.step)

    def _below(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(ndtr((values - self.means) / self.spread))

    def densities(self, values: np.ndarray) -> np.ndarray:
        """w_k p_k(value) of all components, (n, K); their sum is the density."""
        away = (values[:, None] - self.means) / self.spread
        with np.errstate(under="ignore"):
            heights = np.exp(-0.5 * np.square(away)) / (np.sqrt(2.0 * np.pi) * self.spread)
        return np.asarray(self.weights * heights)

    def bounds(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A rounded value stands for all that round to it."""
        if self.step is None:
            return super().bounds(values)
        half = 0.5 * self.step
        return self.cumulative(values - half), self.cumulative(values + half)


class CountLaw(_Mixed):
    """A mixture of Poisson distributions with rates (K,)."""

    kind = "count"
    step = 1.0

    def __init__(self, weights: np.ndarray, rates: np.ndarray) -> None:
        self.weights, self.rates = weights, rates
        self.n_components = int(weights.shape[0])

    def grouped(self) -> CountLaw:
        """Components with nearly the same rate become one with their mean."""
        if self.n_components <= _MANY:
            return self
        # Square roots of counts have one spread, whatever the rate.
        which, totals = _groups(np.rint(np.sqrt(self.rates) / _ALIKE_ROOTS)[None], self.weights)
        return CountLaw(totals, np.bincount(which, self.weights * self.rates) / totals)

    def _below(self, values: np.ndarray) -> np.ndarray:
        whole = np.floor(values)
        return np.where(whole < 0.0, 0.0, pdtr(np.maximum(whole, 0.0), self.rates))

    def bounds(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Below a count, and up to it."""
        return self.cumulative(values - 1.0), self.cumulative(values)


class LevelLaw(Law):
    """Levels 0, 1, 2, ... with these probabilities (L,), in that order."""

    kind = "level"

    def __init__(self, shares: np.ndarray) -> None:
        # Probabilities have a floor, so their sum is one only to so many digits.
        self.probabilities = shares / shares.sum()

    def cumulative(self, values: np.ndarray) -> np.ndarray:
        """Sums over the levels up to each value."""
        sums = np.concatenate([[0.0], np.cumsum(self.probabilities)])
        return np.asarray(np.clip(sums[np.floor(values).astype(np.int64) + 1], 0.0, 1.0))

    def bounds(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Before a level, and up to it."""
        return self.cumulative(values - 1.0), self.cumulative(values)


class DrawnLaw(Law):
    """The law of values (n,) that were drawn.

    Examples
    --------
    >>> DrawnLaw(np.array([3.0, 1.0, 2.0, 4.0])).cumulative(np.array([2.5]))
    array([0.5])
    """

    def __init__(self, drawn: np.ndarray) -> None:
        self.drawn = np.sort(drawn)
        self.n_draws = float(drawn.shape[0])

    def cumulative(self, values: np.ndarray) -> np.ndarray:
        """The share of draws up to each value."""
        return np.asarray(np.searchsorted(self.drawn, values, side="right") / self.n_draws)

    def bounds(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draws below each value, and up to it, with the next one above for what lies between."""
        low = np.searchsorted(self.drawn, values, side="left")
        high = np.searchsorted(self.drawn, values, side="right")
        n = self.n_draws + 1.0
        # A value between two draws falls anywhere between their ranks.
        return low / n, (high + 1.0) / n


def _groups(marks: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Group (K,) of each component by equal columns of marks (m, K), and weights (G,) of groups."""
    _, which = np.unique(marks, axis=1, return_inverse=True)
    which = which.reshape(-1)
    # A group of nothing has a mean all the same.
    return which, np.maximum(np.bincount(which, weights), 1e-300)

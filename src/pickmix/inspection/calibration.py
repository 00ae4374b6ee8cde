"""Whether columns are spread as the model says: the probability integral transform."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import binom, kstwobign

from pickmix.estimators.validation import check_integer
from pickmix.families.distributions import Distribution
from pickmix.inspection.marginals import read_columns
from pickmix.inspection.view import some_rows

# Evaluations of components, over all columns: some seconds.
_MOST_EVALUATIONS = 1e8
_FEWEST_ROWS = 500
_SALT = 7_316_081


@dataclass(frozen=True)
class Calibration:
    """Where rows fall in the model's distribution of each column.

    u = F_j(x_j) is uniform on (0, 1) if the model's distribution F_j of column j is right. Where
    values repeat (counts, levels, rounded numbers), u is drawn evenly between P(x < x_j) and
    P(x <= x_j), which is uniform as well. A number that is there several times stands for all that
    is nearer to it than to any other.
    """

    names: tuple[str, ...]
    #: "number", "count" or "level", of each column.
    kinds: tuple[str, ...]
    #: u of the cells that were seen, sorted, for each column.
    values: tuple[np.ndarray, ...]
    #: Shares (D, n_bins) of u in equal bins of (0, 1); 1 / n_bins each if the model is right.
    shares: np.ndarray
    #: Largest distance (D,) between the share of u below a place and the place itself
    #: (Kolmogorov and Smirnov's).
    distances: np.ndarray
    #: Cells (D,) behind each column. If the model's distribution was drawn, fewer: so many cells
    #: would say as much about a distribution that was computed.
    n_rows: np.ndarray

    def limit(self, level: float = 0.99) -> np.ndarray:
        """Distances (D,) that chance alone stays below with probability `level`."""
        return np.asarray(kstwobign.ppf(level) / np.sqrt(np.maximum(self.n_rows, 1.0)))

    def band(self, level: float = 0.99) -> tuple[np.ndarray, np.ndarray]:
        """Least and largest shares (D,) that chance alone gives a bin with probability `level`."""
        n_bins, n = self.shares.shape[1], np.maximum(np.rint(self.n_rows), 1.0)
        outside = round(0.5 * (1.0 - level), 12)
        low, high = (binom.ppf(q, n, 1.0 / n_bins) / n for q in (outside, 1.0 - outside))
        return np.asarray(low), np.asarray(high)

    def __len__(self) -> int:
        return len(self.names)


def calibration(
    model: Any,
    X: Any,
    columns: Any = None,
    *,
    n_bins: int = 20,
    max_rows: int = 5_000,
    seed: int = 0,
) -> Calibration:
    """The probability integral transform of rows under the model's distribution of each column.

    At most `max_rows` rows are looked at, chosen at random; fewer if components and columns are
    very many. Rows that the model was not fitted to say more: those of the fit lie nearer to it
    than chance would have it. `seed` is for values that repeat.

    >>> from pickmix import GaussianMixture
    >>> X = np.random.default_rng(0).normal(size=(2000, 2))
    >>> columns = calibration(GaussianMixture(1).fit(X), X)
    >>> bool((columns.distances < columns.limit()).all())
    True
    """
    check_integer("n_bins", n_bins, 2)
    check_integer("max_rows", max_rows, 1)
    read = read_columns(model, X, columns, max_rows)
    # Of very many components, those that are alike are one: probabilities keep four digits.
    distributions = [column.distribution.simplified() for column in read]
    affordable = int(_MOST_EVALUATIONS / sum(each.n_components for each in distributions))
    few = some_rows(read[0].values.shape[0], max(_FEWEST_ROWS, affordable), seed=1)
    # Rows may have been made from the same seed, and their ties by the same uniforms.
    random = np.random.default_rng([seed, _SALT])
    values = tuple(
        _transform(distribution, column.values[few], random)
        for distribution, column in zip(distributions, read, strict=True)
    )
    edges = np.linspace(0.0, 1.0, n_bins + 1)
    sizes = np.array([float(u.shape[0]) for u in values])
    draws = np.array([each.n_draws for each in distributions])
    return Calibration(
        names=tuple(column.terms.name for column in read),
        kinds=tuple(each.kind for each in distributions),
        values=values,
        shares=np.array([np.histogram(u, edges)[0] / max(u.shape[0], 1) for u in values]),
        distances=np.array([_distance(u) for u in values]),
        n_rows=sizes / (1.0 + sizes / draws),
    )


def _transform(
    distribution: Distribution, values: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """u of the cells (N,) of a column that were seen, sorted."""
    seen = values[~np.isnan(values)]
    if distribution.kind == "number" and distribution.step is None:
        low, high = _bounds_of_ties(distribution, seen)
    else:
        low, high = distribution.bounds(seen)
    return np.sort(low + (high - low) * random.uniform(size=seen.shape[0]))


def _bounds_of_ties(distribution: Distribution, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Between which probabilities each value (n,) lies.

    A density knows no ties, so a number that is there several times is taken for a rounded one: it
    stands for all that is nearer to it than to any other.
    """
    values, which, counts = np.unique(seen, return_inverse=True, return_counts=True)
    low, high = distribution.bounds(values)
    tied = np.flatnonzero(counts > 1)
    if values.shape[0] == 1:
        # All rows are alike, and no other value says how far they reach.
        low, high = np.zeros(1), np.ones(1)
    elif tied.size:
        half = 0.5 * np.diff(values)
        below = np.concatenate([half[:1], half])[tied]
        above = np.concatenate([half, half[-1:]])[tied]
        low, high = low.copy(), high.copy()
        low[tied] = distribution.cumulative(values[tied] - below)
        high[tied] = distribution.cumulative(values[tied] + above)
    return low[which], high[which]


def _distance(u: np.ndarray) -> float:
    """The largest distance between the empirical distribution of sorted u and the uniform one."""
    n = u.shape[0]
    if n == 0:
        return float("nan")
    ranks = np.arange(n + 1) / n
    return float(max((ranks[1:] - u).max(), (u - ranks[:-1]).max()))

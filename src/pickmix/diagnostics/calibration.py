"""Whether columns are spread as the model says: the probability integral transform."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import binom, kstwobign

from pickmix.diagnostics.columns import Column, read_columns, some_rows
from pickmix.estimators.validation import check_integer

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

    Attributes
    ----------
    names : tuple of D str
    kinds : tuple of D str
        "number", "count" or "level".
    values : tuple of D arrays
        u of the cells that were seen, sorted.
    shares : (D, n_bins) array
        Shares of u in equal bins of (0, 1); 1 / n_bins each if the model is right.
    distances : (D,) array
        Largest distance between the share of u below a place and the place itself
        (Kolmogorov and Smirnov's).
    n_rows : (D,) array
        Cells behind each column. If the model's distribution was drawn, fewer: so many cells would
        say as much about a distribution that was computed.

    Examples
    --------
    >>> import numpy as np
    >>> from pickmix import GaussianMixture
    >>> from pickmix.diagnostics.calibration import calibration
    >>> X = np.random.default_rng(0).normal(size=(2000, 2))
    >>> found = calibration(GaussianMixture(1).fit(X), X)
    >>> bool((found.distances < found.limit()).all())
    True
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    values: tuple[np.ndarray, ...]
    shares: np.ndarray
    distances: np.ndarray
    n_rows: np.ndarray

    def limit(self, level: float = 0.99) -> np.ndarray:
        """Distances (D,) that chance alone stays below with probability `level`."""
        return np.asarray(kstwobign.ppf(level) / np.sqrt(np.maximum(self.n_rows, 1.0)))

    def band(self, level: float = 0.99) -> tuple[np.ndarray, np.ndarray]:
        """Least and largest shares (D,) that chance alone gives a bin with probability `level`."""
        n_bins, n = self.shares.shape[1], np.maximum(np.rint(self.n_rows), 1.0)
        low, high = (binom.ppf(q, n, 1.0 / n_bins) / n for q in binom_tails(level))
        return np.asarray(low), np.asarray(high)

    def __len__(self) -> int:
        return len(self.names)


def binom_tails(level: float) -> tuple[float, float]:
    """Probabilities below which, and above which, chance leaves the middle `level`.

    >>> binom_tails(0.9)
    (0.05, 0.95)
    """
    outside = round(0.5 * (1.0 - level), 12)
    return outside, 1.0 - outside


def calibration(
    model: Any,
    rows: Any,
    columns: Any = None,
    *,
    n_bins: int = 20,
    max_rows: int = 5_000,
    seed: int = 0,
) -> Calibration:
    """The probability integral transform of rows under the model's distribution of each column.

    Parameters
    ----------
    model : fitted estimator of pickmix
        Distributions of a `GaussianMixture`, `FamilyMixture` or `TableMixture` are exact, those of
        other models come from 20,000 drawn rows.
    rows : table of shape (N, D)
        As the model takes it. Cells that are missing are left out. Rows that the model was not
        fitted to say more: those of the fit lie nearer to it than chance would have it.
    columns : list of names or numbers, default=None
        None is all.
    n_bins : int, default=20
    max_rows : int, default=5,000
        Look at so many rows, chosen at random; fewer if components and columns are very many.
    seed : int, default=0
        For values that repeat.

    Returns
    -------
    calibration : Calibration
    """
    check_integer("n_bins", n_bins, 2)
    check_integer("max_rows", max_rows, 1)
    found = read_columns(model, rows, columns, max_rows)
    # Of very many components, those that are alike are one: probabilities keep four digits.
    found = [replace(column, law=column.law.grouped()) for column in found]
    affordable = int(_MOST_EVALUATIONS / sum(column.law.n_components for column in found))
    some = some_rows(found[0].values.shape[0], max(_FEWEST_ROWS, affordable), seed=1)
    found = [replace(column, values=column.values[some]) for column in found]
    # Rows may have been made from the same seed, and their ties by the same uniforms.
    random = np.random.default_rng([seed, _SALT])
    values = tuple(_transform(column, random) for column in found)
    edges = np.linspace(0.0, 1.0, n_bins + 1)
    shares = [np.histogram(u, edges)[0] / max(u.shape[0], 1) for u in values]
    sizes = np.array([float(u.shape[0]) for u in values])
    draws = np.array([column.law.n_draws for column in found])
    return Calibration(
        names=tuple(column.name for column in found),
        kinds=tuple(column.kind for column in found),
        values=values,
        shares=np.array(shares),
        distances=np.array([_distance(u) for u in values]),
        n_rows=sizes / (1.0 + sizes / draws),
    )


def _transform(column: Column, random: np.random.Generator) -> np.ndarray:
    """u of the seen cells of a column, sorted."""
    seen = column.values[~np.isnan(column.values)]
    if column.kind == "number" and column.step is None:
        low, high = _bounds_of_ties(column, seen)
    else:
        low, high = column.law.bounds(seen)
    return np.sort(low + (high - low) * random.uniform(size=seen.shape[0]))


def _bounds_of_ties(column: Column, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Between which probabilities each value (n,) lies.

    A density knows no ties, so a number that is there several times is taken for a rounded one: it
    stands for all that is nearer to it than to any other.
    """
    values, which, counts = np.unique(seen, return_inverse=True, return_counts=True)
    low, high = column.law.bounds(values)
    tied = np.flatnonzero(counts > 1)
    if values.shape[0] == 1:
        # All rows are alike, and no other value says how far they reach.
        low, high = np.zeros(1), np.ones(1)
    elif tied.size:
        half = 0.5 * np.diff(values)
        below = np.concatenate([half[:1], half])[tied]
        above = np.concatenate([half, half[-1:]])[tied]
        low, high = low.copy(), high.copy()
        low[tied] = column.law.cumulative(values[tied] - below)
        high[tied] = column.law.cumulative(values[tied] + above)
    return low[which], high[which]


def _distance(u: np.ndarray) -> float:
    """The largest distance between the empirical distribution of sorted u and the uniform one."""
    n = u.shape[0]
    if n == 0:
        return float("nan")
    ranks = np.arange(n + 1) / n
    return float(max((ranks[1:] - u).max(), (u - ranks[:-1]).max()))

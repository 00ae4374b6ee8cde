"""Each column by itself: shares of rows in bins or levels, and those of the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.estimators.validation import check_integer
from pickmix.families.distributions import Distribution
from pickmix.inputs.kinds import find_step
from pickmix.inspection.view import view_of
from pickmix.model.conditional import ColumnTerms

# Rows beyond these percentages are in the outer bins, if they would stretch the picture.
_MIDDLE = (0.1, 99.9)
_STRETCH = 1.5
# Steps in a bin beyond which it does not matter whether there is one more.
_MOST_STEPS = 20


@dataclass(frozen=True)
class Column:
    """One column of rows in the user's terms, and its distribution under the model."""

    terms: ColumnTerms
    #: (N,), NaN where nothing was seen; days since `terms.start` of dates, codes of levels.
    values: np.ndarray
    distribution: Distribution

    @property
    def seen(self) -> np.ndarray:
        return np.asarray(self.values[~np.isnan(self.values)])


def read_columns(model: Any, X: Any, columns: Any = None, most: int | None = None) -> list[Column]:
    """Columns by name or number (None is all) of at most so many rows."""
    view = view_of(model)
    values = view.values(view.read(X, most).values)
    wanted = view.find(columns).tolist()
    distributions = view.distributions()
    return [Column(view.columns[d], values[:, d], distributions[d]) for d in wanted]


@dataclass(frozen=True)
class Marginal:
    """One column: how rows are spread over bins or levels, and how the model spreads them."""

    name: str
    #: "number" (also counts and dates) or "levels".
    kind: str
    #: Of the bins of a number (B + 1,), rising; datetime64 of dates. The first and the last bin
    #: hold all that lies beyond as well. Empty for levels.
    edges: np.ndarray
    #: Names of the B levels; the last one may stand for several. Empty for numbers.
    levels: tuple[str, ...]
    #: Shares (B,) of the rows, and probabilities under the model; both sum to one.
    observed: np.ndarray
    expected: np.ndarray
    #: Cells that were seen.
    n_rows: int
    #: Whether `expected` was computed and not drawn.
    exact: bool

    @property
    def distance(self) -> float:
        """Half the sum of |observed - expected|: the share of rows in wrong bins, 0 to 1."""
        return float(0.5 * np.abs(self.observed - self.expected).sum())


def marginals(
    model: Any,
    X: Any,
    n_bins: int = 40,
    columns: Any = None,
    *,
    max_levels: int = 20,
    max_rows: int = 1_000_000,
) -> list[Marginal]:
    """Shares of rows in bins or levels of each column, and what the model says of them.

    Shares under a mixture in closed form are exact, those of others come from 20,000 drawn rows.
    Columns of whole or rounded numbers have bins of whole steps. Of more than `max_levels` levels
    the rarest are put together.

    >>> from pickmix import FamilyMixture
    >>> counts = np.random.default_rng(0).poisson(2.0, (500, 1))
    >>> (column,) = marginals(FamilyMixture("poisson", 1, random_state=0).fit(counts), counts)
    >>> column.edges[:4], column.observed.shape
    (array([-0.5,  0.5,  1.5,  2.5]), (10,))
    """
    check_integer("n_bins", n_bins, 1)
    check_integer("max_levels", max_levels, 2)
    check_integer("max_rows", max_rows, 1)
    return [
        _levels(column, max_levels) if column.terms.levels else _numbers(column, n_bins)
        for column in read_columns(model, X, columns, max_rows)
    ]


def _levels(column: Column, most: int) -> Marginal:
    seen = column.seen.astype(np.int64)
    names = list(column.terms.levels)
    n_levels = len(names)
    expected = column.distribution.shares(np.arange(n_levels + 1) - 0.5)
    observed = np.bincount(seen, minlength=n_levels) / max(seen.shape[0], 1)
    if n_levels > most:
        order = np.argsort(-(observed + expected), kind="stable")
        kept, rest = order[: most - 1], order[most - 1 :]
        names = [names[code] for code in kept] + [f"{rest.shape[0]:,} others"]
        observed = np.append(observed[kept], observed[rest].sum())
        expected = np.append(expected[kept], expected[rest].sum())
    n_seen = int(seen.shape[0])
    return Marginal(
        column.terms.name, "levels", np.zeros(0), tuple(names), observed, expected, n_seen, True
    )


def _numbers(column: Column, n_bins: int) -> Marginal:
    seen, start = column.seen, column.terms.start
    edges = _edges(seen, column.distribution.step, n_bins)
    places = np.clip(np.searchsorted(edges, seen, side="left") - 1, 0, edges.shape[0] - 2)
    observed = np.bincount(places, minlength=edges.shape[0] - 1) / max(seen.shape[0], 1)
    expected = column.distribution.shares(edges)
    if start is not None:
        seconds = np.rint(edges * 86_400.0).astype("timedelta64[s]")
        edges = start.astype("datetime64[s]") + seconds
    n_seen, exact = int(seen.shape[0]), bool(np.isinf(column.distribution.n_draws))
    return Marginal(column.terms.name, "number", edges, (), observed, expected, n_seen, exact)


def _step_of(seen: np.ndarray, width: float) -> float | None:
    """What all values are multiples of, if bins of this width would hold a few of them.

    A bin with three whole numbers beside one with two makes stripes that are not in the rows.
    """
    if not seen.shape[0] or width <= 0.0:
        return None
    short = seen.astype(np.float32)
    # Rounded numbers of 32 bits have other digits in 64.
    step = find_step(short if (short == seen).all() else seen)
    if step is None or step.size * _MOST_STEPS < width:
        return None
    return float(step.size)


def _edges(seen: np.ndarray, step: float | None, n_bins: int) -> np.ndarray:
    """Edges of bins over most of the values; between steps where values are rounded."""
    if not seen.shape[0]:
        low, high = 0.0, 1.0
    else:
        low, high = float(seen.min()), float(seen.max())
        inner = np.percentile(seen, _MIDDLE)
        if inner[1] > inner[0] and high - low > _STRETCH * (inner[1] - inner[0]):
            low, high = float(inner[0]), float(inner[1])
    step = step or _step_of(seen, (high - low) / n_bins)
    if step is None:
        if high <= low:
            # A single value: a bin of any width around it.
            width = max(abs(low), 1.0) * 1e-3
            low, high = low - width, high + width
        values = np.unique(seen)
        few = 1 < values.shape[0] <= min(n_bins, seen.shape[0] // 3)
        if few and low == values[0] and high == values[-1]:
            # A few values, each many times: a bin for each.
            half = 0.5 * np.diff(values)
            ends = values[0] - half[0], values[-1] + half[-1]
            return np.concatenate([ends[:1], values[:-1] + half, ends[1:]])
        return np.linspace(low, high, n_bins + 1)
    # Steps are counted from the least value seen, which is one of them.
    n_steps = max(int(np.rint((high - low) / step)), 0) + 1
    per_bin = -(-n_steps // n_bins)
    first = seen.min() if seen.shape[0] else 0.0
    start = first + np.floor((low - first) / step) * step
    count = -(-n_steps // per_bin)
    return np.asarray(start - 0.5 * step + step * per_bin * np.arange(count + 1.0))

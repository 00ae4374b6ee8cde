"""Each column by itself: shares of rows in bins or levels, and what the model says of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.data.typed_kinds import find_step
from pickmix.diagnostics.columns import Column, read_columns
from pickmix.diagnostics.laws import LevelLaw
from pickmix.estimators.validation import check_integer

# Rows beyond these percentages are in the outer bins, if they would stretch the picture.
_MIDDLE = (0.1, 99.9)
_STRETCH = 1.5
# Steps in a bin beyond which it does not matter whether there is one more.
_MOST_STEPS = 20


@dataclass(frozen=True)
class Marginal:
    """One column: how rows are spread, and how they should be by the model.

    Attributes
    ----------
    name : str
    kind : str
        "number" (also counts and dates) or "levels".
    edges : (B + 1,) array
        Of the bins of a number, rising; datetime64 of dates. The first and the last bin hold all
        that lies beyond as well. Empty for levels.
    levels : tuple of B str
        Names of the levels; the last one may stand for several. Empty for numbers.
    observed : (B,) array
        Shares of the rows. They sum to one, as the others do.
    expected : (B,) array
        Probabilities under the model: exact, or shares of drawn rows.
    n_rows : int
        Cells that were seen.
    exact : bool
        Whether `expected` was computed and not drawn.
    """

    name: str
    kind: str
    edges: np.ndarray
    levels: tuple[str, ...]
    observed: np.ndarray
    expected: np.ndarray
    n_rows: int
    exact: bool

    @property
    def distance(self) -> float:
        """Half the sum of |observed - expected|: the share of rows in wrong bins, 0 to 1."""
        return float(0.5 * np.abs(self.observed - self.expected).sum())


def marginals(
    model: Any,
    rows: Any,
    n_bins: int = 40,
    columns: Any = None,
    *,
    max_levels: int = 20,
    max_rows: int = 1_000_000,
) -> list[Marginal]:
    """Shares of rows in bins or levels of each column, and what the model says of them.

    Parameters
    ----------
    model : fitted estimator of pickmix
        Shares under a `GaussianMixture`, `FamilyMixture` or `TableMixture` are exact, those of
        other models come from 20,000 drawn rows.
    rows : table of shape (N, D)
        As the model takes it. Cells that are missing are left out.
    n_bins : int, default=40
        At most; columns of whole or rounded numbers have bins of whole steps, with edges between
        two of them.
    columns : list of names or numbers, default=None
        None is all.
    max_levels : int, default=20
        The most frequent levels, and one for all others.
    max_rows : int, default=1,000,000
        Look at so many rows, chosen at random.

    Returns
    -------
    found : list of Marginal

    Examples
    --------
    >>> import numpy as np
    >>> from pickmix import FamilyMixture
    >>> counts = np.random.default_rng(0).poisson(2.0, (500, 1))
    >>> (found,) = marginals(FamilyMixture("poisson", 1, random_state=0).fit(counts), counts)
    >>> found.edges[:4], found.observed.shape
    (array([-0.5,  0.5,  1.5,  2.5]), (10,))
    """
    check_integer("n_bins", n_bins, 1)
    check_integer("max_levels", max_levels, 2)
    check_integer("max_rows", max_rows, 1)
    found = read_columns(model, rows, columns, max_rows)
    return [
        _levels(column, max_levels)
        if isinstance(column.law, LevelLaw)
        else _numbers(column, n_bins)
        for column in found
    ]


def _levels(column: Column, most: int) -> Marginal:
    assert isinstance(column.law, LevelLaw)
    seen = column.values[~np.isnan(column.values)].astype(np.int64)
    expected = column.law.probabilities
    n_levels = expected.shape[0]
    counts = np.bincount(seen, minlength=n_levels)
    observed = counts / max(seen.shape[0], 1)
    names = list(column.levels)
    if n_levels > most:
        order = np.argsort(-(observed + expected), kind="stable")
        kept, rest = order[: most - 1], order[most - 1 :]
        names = [names[code] for code in kept] + [f"{rest.shape[0]:,} others"]
        observed = np.append(observed[kept], observed[rest].sum())
        expected = np.append(expected[kept], expected[rest].sum())
    return Marginal(
        column.name,
        "levels",
        np.zeros(0),
        tuple(names),
        observed,
        expected,
        int(seen.shape[0]),
        True,
    )


def _numbers(column: Column, n_bins: int) -> Marginal:
    seen = column.values[~np.isnan(column.values)]
    edges = _edges(column, seen, n_bins)
    places = np.clip(np.searchsorted(edges, seen, side="left") - 1, 0, edges.shape[0] - 2)
    observed = np.bincount(places, minlength=edges.shape[0] - 1) / max(seen.shape[0], 1)
    shown = edges
    if column.origin is not None:
        seconds = np.rint(edges * 86_400.0).astype("timedelta64[s]")
        shown = column.origin.astype("datetime64[s]") + seconds
    return Marginal(
        column.name,
        "number",
        shown,
        (),
        observed,
        column.law.shares(edges),
        int(seen.shape[0]),
        bool(np.isinf(column.law.n_draws)),
    )


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


def _edges(column: Column, seen: np.ndarray, n_bins: int) -> np.ndarray:
    """Edges of bins over most of the values; between steps where values are rounded."""
    if not seen.shape[0]:
        low, high = 0.0, 1.0
    else:
        low, high = float(seen.min()), float(seen.max())
        inner = np.percentile(seen, _MIDDLE)
        if inner[1] > inner[0] and high - low > _STRETCH * (inner[1] - inner[0]):
            low, high = float(inner[0]), float(inner[1])
    step = column.step or _step_of(seen, (high - low) / n_bins)
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

"""Columns one by one: contents, predictions, shares of rows in bins, and calibration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import binom, kstwobign

from pickmix.checks import check_integer
from pickmix.families.distributions import Distribution
from pickmix.inputs.kinds import find_step
from pickmix.inspection.components import shown_values
from pickmix.inspection.view import Rows, View, sample_rows, view_of
from pickmix.model.columns import ColumnTerms
from pickmix.model.explanation import answer_rows
from pickmix.model.rows import QueryRows

# Rows beyond these percentages are in the outer bins, if they would stretch the picture.
_MIDDLE = (0.1, 99.9)
_STRETCH = 1.5
# Steps in a bin beyond which it does not matter whether there is one more.
_MOST_STEPS = 20
# Evaluations of components in a calibration, over all columns: a few seconds.
_MOST_EVALUATIONS = 1e8
_FEWEST_ROWS = 500
_SALT = 7_316_081
# Numbers of covariances, and rows, by which predictions are judged: a second or two.
_PREDICTION_WORK, _FEWEST_PREDICTED, _MOST_PREDICTED = 1e8, 200, 2_000


@dataclass(frozen=True)
class Column:
    """One column of rows in the user's terms, and its distribution under the model."""

    terms: ColumnTerms
    #: (n,) without missing cells; days since `terms.start` of dates, codes of levels.
    seen: np.ndarray
    distribution: Distribution


def read_columns(model: Any, X: Any, columns: Any = None, most: int | None = None) -> list[Column]:
    """Columns by name or number (None is all) of at most so many rows."""
    view = view_of(model)
    values = view.values(view.read(X, most).values)
    wanted = view.find(columns).tolist()
    return [Column(view.columns[d], _seen(values[:, d]), view.distributions[d]) for d in wanted]


def _seen(values: np.ndarray) -> np.ndarray:
    return np.asarray(values[~np.isnan(values)])


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
    #: Cells that are not missing.
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
    """Shares of rows in bins or levels of each column, and their probabilities under the model.

    Probabilities of a mixture in closed form are exact, those of others come from 20,000 drawn
    rows. Columns of whole or rounded numbers have bins of whole steps. Of more than `max_levels`
    levels the rarest are put together.
    """
    check_integer("n_bins", n_bins, 1)
    check_integer("max_levels", max_levels, 2)
    check_integer("max_rows", max_rows, 1)
    return [
        _levels(column, max_levels) if column.terms.levels else _numbers(column, n_bins)
        for column in read_columns(model, X, columns, max_rows)
    ]


def _levels(column: Column, most: int) -> Marginal:
    names, n_seen = list(column.terms.levels), column.seen.shape[0]
    n_levels = len(names)
    expected = column.distribution.shares(np.arange(n_levels + 1) - 0.5)
    observed = np.bincount(column.seen.astype(np.int64), minlength=n_levels) / max(n_seen, 1)
    if n_levels > most:
        order = np.argsort(-(observed + expected), kind="stable")
        kept, rest = order[: most - 1], order[most - 1 :]
        names = [names[code] for code in kept] + [f"{rest.shape[0]:,} others"]
        observed = np.append(observed[kept], observed[rest].sum())
        expected = np.append(expected[kept], expected[rest].sum())
    name = column.terms.name
    return Marginal(name, "levels", np.zeros(0), tuple(names), observed, expected, n_seen, True)


def _numbers(column: Column, n_bins: int) -> Marginal:
    seen, start = column.seen, column.terms.start
    edges = _edges(seen, column.distribution.step, n_bins)
    bins = np.clip(np.searchsorted(edges, seen, side="left") - 1, 0, edges.shape[0] - 2)
    observed = np.bincount(bins, minlength=edges.shape[0] - 1) / max(seen.shape[0], 1)
    expected = column.distribution.shares(edges)
    if start is not None:
        seconds = np.rint(edges * 86_400.0).astype("timedelta64[s]")
        edges = start.astype("datetime64[s]") + seconds
    n_seen, exact = seen.shape[0], bool(np.isinf(column.distribution.n_draws))
    return Marginal(column.terms.name, "number", edges, (), observed, expected, n_seen, exact)


def _edges(seen: np.ndarray, step: float | None, n_bins: int) -> np.ndarray:
    """Edges of bins over most of the values; between steps where values are rounded."""
    least, low, high = 0.0, 0.0, 1.0
    if seen.size:
        least, low, high = float(seen.min()), float(seen.min()), float(seen.max())
        inner = np.percentile(seen, _MIDDLE)
        if inner[1] > inner[0] and high - low > _STRETCH * (inner[1] - inner[0]):
            low, high = inner.tolist()
    if not step and seen.size and high > low:
        # A bin with three whole numbers beside one with two makes stripes that are not in the rows.
        # Rounded numbers of 32 bits have other digits in 64.
        short = seen.astype(np.float32)
        found = find_step(short if (short == seen).all() else seen)
        if found is not None and found.size * _MOST_STEPS >= (high - low) / n_bins:
            step = float(found.size)
    if step:
        # Steps are counted from the least value, which is one of them.
        n_steps = max(int(np.rint((high - low) / step)), 0) + 1
        per_bin = -(-n_steps // n_bins)
        start = least + np.floor((low - least) / step) * step
        count = -(-n_steps // per_bin)
        return np.asarray(start - 0.5 * step + step * per_bin * np.arange(count + 1.0))
    if high <= low:
        # A single value: a bin of any width around it.
        width = max(abs(low), 1.0) * 1e-3
        return np.linspace(low - width, high + width, n_bins + 1)
    values = np.unique(seen)
    few = 1 < values.shape[0] <= min(n_bins, seen.shape[0] // 3)
    if few and low == values[0] and high == values[-1]:
        # A few values, each many times: a bin for each.
        half = 0.5 * np.diff(values)
        ends = values[0] - half[0], values[-1] + half[-1]
        return np.concatenate([ends[:1], values[:-1] + half, ends[1:]])
    return np.linspace(low, high, n_bins + 1)


@dataclass(frozen=True)
class Calibration:
    """Where rows fall in the model's distribution of each column.

    u = F_j(x_j) is uniform on (0, 1) if the model's distribution F_j of column j is right. Where
    values repeat (counts, levels, rounded numbers), u is drawn evenly between P(x < x_j) and
    P(x <= x_j), which is uniform as well. A number that occurs several times stands for all that
    is nearer to it than to any other.
    """

    names: tuple[str, ...]
    #: "number", "count" or "level", of each column.
    kinds: tuple[str, ...]
    #: u of the cells that are not missing, sorted, for each column.
    values: tuple[np.ndarray, ...]
    #: Shares (D, n_bins) of u in equal bins of (0, 1); 1 / n_bins each if the model is right.
    shares: np.ndarray
    #: Largest distance (D,) between the share of u below a value and the value itself
    #: (Kolmogorov and Smirnov's).
    distances: np.ndarray
    #: Cells (D,) behind each column. If the model's distribution was drawn, fewer: as many as would
    #: say the same about a distribution that was computed.
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

    At most `max_rows` rows are evaluated, chosen at random; fewer if components and columns are
    very many. Held-out rows say more: those of the fit lie nearer to the model than chance would
    have it. `seed` is for values that repeat.
    """
    check_integer("n_bins", n_bins, 2)
    check_integer("max_rows", max_rows, 1)
    view = view_of(model)
    wanted, rows = view.find(columns).tolist(), view.read(X, max_rows)
    # Of very many components, those that are alike are one: probabilities keep four digits.
    distributions = [view.distributions[d].simplified() for d in wanted]
    affordable = int(_MOST_EVALUATIONS / sum(each.n_components for each in distributions))
    cells = view.values(rows.values)[sample_rows(len(rows), max(_FEWEST_ROWS, affordable), seed=1)]
    # Rows may have been made from the same seed, and their ties by the same uniforms.
    random = np.random.default_rng([seed, _SALT])
    values = tuple(
        _transform(distribution, _seen(cells[:, d]), random)
        for distribution, d in zip(distributions, wanted, strict=True)
    )
    edges = np.linspace(0.0, 1.0, n_bins + 1)
    sizes = np.array([float(u.shape[0]) for u in values])
    draws = np.array([each.n_draws for each in distributions])
    return Calibration(
        names=tuple(view.names[d] for d in wanted),
        kinds=tuple(each.kind for each in distributions),
        values=values,
        shares=np.array([np.histogram(u, edges)[0] / max(u.shape[0], 1) for u in values]),
        distances=np.array([_distance(u) for u in values]),
        n_rows=sizes / (1.0 + sizes / draws),
    )


def _transform(
    distribution: Distribution, seen: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """Sorted u of cells (n,).

    A density has no ties, so a number that occurs several times is taken for a rounded one.
    """
    values, which, counts = np.unique(seen, return_inverse=True, return_counts=True)
    low, high = map(np.array, distribution.bounds(values))
    tied = np.flatnonzero(counts > 1)
    is_density = distribution.kind == "number" and distribution.step is None
    if is_density and values.shape[0] == 1:
        # All rows are alike, and no other value says how far they reach.
        low, high = np.zeros(1), np.ones(1)
    elif is_density and tied.size:
        half = 0.5 * np.diff(values)
        below, above = np.append(half[:1], half)[tied], np.append(half, half[-1:])[tied]
        low[tied] = distribution.cumulative(values[tied] - below)
        high[tied] = distribution.cumulative(values[tied] + above)
    return np.sort(low[which] + (high - low)[which] * random.uniform(size=seen.shape[0]))


def _distance(u: np.ndarray) -> float:
    """The largest distance between the empirical distribution of sorted u and the uniform one."""
    if not u.size:
        return float("nan")
    ranks = np.arange(u.size + 1) / u.size
    return float(max((ranks[1:] - u).max(), (u - ranks[:-1]).max()))


@dataclass(frozen=True)
class ColumnSummary:
    """What a column holds, and how well the others predict it."""

    name: str
    #: "number", "count" or "level"; of a table as in its schema.
    kind: str
    #: Share of the rows without a value.
    missing: float
    #: Range of numbers, or number of levels, of the rows.
    content: str
    #: What values are multiples of, if the model knows it.
    step: float | None
    #: By the conditional mean: the share of the variance. By the most probable level: the share of
    #: right ones. NaN if nothing is known.
    predicted: float
    #: The same for the mean, or for the most frequent level.
    baseline: float


def summarise_columns(view: View, rows: Rows) -> list[ColumnSummary]:
    """Describe every column by rows, and predict its cells from the others of their rows."""
    summaries = []
    values = view.values(rows.values).T
    for column, cells, scores in zip(
        view.columns, values, _predict_columns(view, rows), strict=True
    ):
        seen, content = _seen(cells), ""
        if seen.size and column.levels:
            n_seen, n_levels = np.unique(seen).shape[0], len(column.levels)
            content = f"{'' if n_seen == n_levels else f'{n_seen:,} of '}{n_levels:,} levels"
        elif seen.size:
            content = " to ".join(shown_values(column, float(seen.min()), float(seen.max())))
        missing = float(np.isnan(cells).mean())
        summary = ColumnSummary(column.name, column.kind, missing, content, column.step, *scores)
        summaries.append(summary)
    return summaries


def _predict_columns(view: View, rows: Rows) -> list[tuple[float, float]]:
    """How well each column is predicted by the others, and by its mean or most frequent level.

    NaN for deep mixtures, which have no conditionals, for a single column, and for columns that do
    not vary.
    """
    unknown = float("nan"), float("nan")
    if not view.is_closed_form or len(view.columns) == 1:
        return [unknown] * len(view.columns)
    D = rows.values.shape[1]
    affordable = _PREDICTION_WORK / (view.n_components * D * D)
    most = int(np.clip(affordable, _FEWEST_PREDICTED, _MOST_PREDICTED))
    values = rows.values[sample_rows(len(rows), most, seed=2)]
    query = QueryRows(view.model, values, None, view.level_weights, view.maps)
    # The few cells that would need kernels for gaps may be missing in a summary.
    expected = answer_rows(query, all_cells=False).expected
    scores: list[tuple[float, float]] = []
    for column in view.columns:
        seen = ~np.isnan(values[:, column.place] + expected[:, column.place])
        observed, means = values[seen, column.place], expected[seen, column.place]
        if np.unique(observed).shape[0] < 2:
            scores.append(unknown)
        elif column.levels or column.kind == "ordinal":
            frequent = np.unique(observed, return_counts=True)[1].max() / observed.shape[0]
            scores.append((float((observed == means).mean()), float(frequent)))
        else:
            left = float(np.square(observed - means).mean() / observed.var())
            scores.append((1.0 - left, 0.0))
    return scores

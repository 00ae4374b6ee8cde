"""Components, clusters of components and the most unusual rows, as plain values."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.neighbors import NearestNeighbors

from pickmix.checks import check_integer
from pickmix.estimators.detector import MixtureDetector
from pickmix.families.base import Part
from pickmix.inspection.view import Rows, RowScores, View, spread_of, view_of
from pickmix.model.columns import LEVEL_KINDS, ColumnTerms

# Components at near positions that are compared with each one.
_CANDIDATES = 6
# Beyond so many components all pairs are too many, and positions are projected to so few
# coordinates that a tree can search them.
_MOST_PAIRS, _FEW_COORDINATES = 20_000, 10
# Clusters that are described, and deep components that count as clusters, at most.
MOST_CLUSTERS = 10
# Columns of a cluster that are named, and how different they must be to be worth a word.
_MOST_TRAITS, _WORTH = 4, 0.25
# Rows that a detector needs, and columns with which it takes a few seconds at most.
_FEWEST_DETECTED, _MOST_DETECTED = 50, 100


@dataclass(frozen=True)
class ComponentTable:
    """K components, described by N rows."""

    #: (K,), of sum one.
    weight: np.ndarray
    #: How many rows (K,) have it as their most probable component.
    rows: np.ndarray
    #: See `Part.log_volumes`, (K,); NaN of deep components without rows.
    log_volume: np.ndarray
    #: The nearest other component (K,), -1 if there is none, and how far it is in standard
    #: deviations: sqrt(8 B) with the Bhattacharyya distance B.
    neighbour: np.ndarray
    separation: np.ndarray
    #: Which of its rows (K,) is nearest to its centre; -1 if it has none.
    typical: np.ndarray
    #: Means, rates and most probable levels (codes), (K, D), in the user's units and order.
    centre: np.ndarray
    scores: RowScores

    def __len__(self) -> int:
        return int(self.weight.shape[0])

    @property
    def side(self) -> np.ndarray:
        """Side (K,) of a cube with the component's volume, in units of the columns' spread."""
        return np.asarray(np.exp(self.log_volume / self.centre.shape[1]))


def component_table(model: Any, X: Any, *, scores: RowScores | None = None) -> ComponentTable:
    """Describe every component of a fitted mixture by rows."""
    view = view_of(model)
    scores = view.score(view.read(X)) if scores is None else scores
    parts, known = view.parts_from(scores)
    K, rows, component = view.n_components, scores.rows, scores.component
    spread = spread_of(rows)
    # A missing cell counts as one standard deviation away, as it is on average.
    log_volume, distance = np.zeros(K), np.isnan(rows).sum(axis=1).astype(np.float64)
    centre = np.full((K, rows.shape[1]), np.nan)
    for part in parts:
        log_volume += part.log_volumes(rows[:, part.columns], spread[part.columns])
        distance += part.squared_distances(rows[:, part.columns], component)
        centre[:, part.columns] = part.typical()
    log_volume[~known], centre[~known] = np.nan, np.nan
    typical = np.full(K, -1, dtype=np.int64)
    # The nearest one is written last.
    order = np.argsort(-distance, kind="stable")
    typical[component[order]] = order
    neighbour, separation = _neighbours(parts, known)
    return ComponentTable(
        weight=view.weights,
        rows=np.bincount(component, minlength=K).astype(np.int64),
        log_volume=log_volume,
        neighbour=neighbour,
        separation=separation,
        typical=typical,
        centre=view.centres(centre),
        scores=scores,
    )


def _neighbours(parts: Sequence[Part], known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nearest other component (K,) of those known (K,), and how far it is (K,).

    Among a few components at near positions, it is the one with the least Bhattacharyya distance B.
    The distance is sqrt(8 B): between components of one shape, that of their centres in standard
    deviations.
    """
    neighbour = np.full(known.shape[0], -1, dtype=np.int64)
    separation = np.full(known.shape[0], np.nan)
    numbers = np.flatnonzero(known)
    if numbers.size < 2:
        return neighbour, separation
    points = np.concatenate([part.positions() for part in parts], axis=1)[numbers]
    if points.shape[1] > _FEW_COORDINATES and numbers.size > _MOST_PAIRS:
        random = np.random.default_rng(0)
        points = points @ random.standard_normal((points.shape[1], _FEW_COORDINATES))
    # Beyond so many coordinates a tree is slower than all pairs.
    algorithm = "brute" if points.shape[1] > _FEW_COORDINATES else "kd_tree"
    n_candidates = min(_CANDIDATES, numbers.size - 1)
    search = NearestNeighbors(n_neighbors=n_candidates, algorithm=algorithm).fit(points)
    candidates = numbers[search.kneighbors(return_distance=False)]
    first = np.repeat(numbers, n_candidates)
    distances = sum(part.bhattacharyya(first, candidates.ravel()) for part in parts)
    distances = np.reshape(distances, candidates.shape)
    rows, best = np.arange(numbers.size), distances.argmin(axis=1)
    neighbour[numbers] = candidates[rows, best]
    separation[numbers] = np.sqrt(8.0 * np.maximum(distances[rows, best], 0.0))
    return neighbour, separation


# Clusters.


@dataclass(frozen=True)
class Trait:
    """A column in which a cluster differs from the whole mixture."""

    column: str
    #: The level that differs most, of a column of levels.
    level: str | None
    #: Mean of the column, or probability of the level: in the cluster, and in all.
    value: float
    overall: float
    #: Their difference in standard deviations of the whole.
    difference: float
    text: str


@dataclass(frozen=True)
class Cluster:
    """A cluster of components, and what sets it apart: the largest difference first."""

    weight: float
    n_components: int
    n_rows: int
    traits: tuple[Trait, ...]


def cluster_labels(view: View, tree: Any) -> np.ndarray | None:
    """Labels (K,) of the clusters to describe; None if there are too many to tell apart."""
    if tree is not None:
        return np.asarray(tree.labels(min(MOST_CLUSTERS, view.n_components)))
    few = 1 < view.n_components <= MOST_CLUSTERS
    return np.argsort(np.argsort(-view.weights, kind="stable")) if few else None


def describe_clusters(view: View, scores: RowScores, labels: np.ndarray) -> list[Cluster]:
    """Describe the clusters of components by labels (K,), 0, 1, 2, ...

    A cluster and the whole are compared by the means of each column, and by the probabilities of
    each level, in standard deviations of the whole.
    """
    parts, known = view.parts_from(scores)
    weights = np.where(known, view.weights, 0.0)
    n_clusters = int(labels.max()) + 1
    share = np.zeros((n_clusters, view.n_components))
    share[labels, np.arange(view.n_components)] = weights
    totals = share.sum(axis=1)
    share /= np.maximum(totals, 1e-300)[:, None]
    by_place = view.model_terms()
    traits: list[list[Trait]] = [[] for _ in range(n_clusters)]
    for part in parts:
        means, variances = part.coordinate_means(), part.coordinate_variances()
        overall = weights @ means / weights.sum()
        spread = np.sqrt(weights @ (variances + np.square(means - overall)) / weights.sum())
        values = share @ means
        differences = (values - overall) / np.where(spread > 0.0, spread, 1.0)
        first = 0
        for place, n_levels in zip(part.columns.tolist(), part.n_levels(), strict=True):
            last = first + max(n_levels, 1)
            # Of two levels that differ as much, the one that is frequent in the cluster.
            sizes = np.abs(differences[:, first:last] + 1e-9)
            for cluster, level in enumerate(sizes.argmax(axis=1).tolist()):
                at = first + level
                numbers = values[cluster, at], overall[at], differences[cluster, at]
                which = level if n_levels else None
                traits[cluster].append(_trait(by_place[place], which, *map(float, numbers)))
            first = last
    n_rows = np.bincount(labels[scores.component], minlength=n_clusters)
    clusters = []
    for cluster, described in enumerate(traits):
        described.sort(key=lambda trait: -abs(trait.difference))
        worth = [trait for trait in described if abs(trait.difference) >= _WORTH]
        weight = float(totals[cluster] / max(totals.sum(), 1e-300))
        n_components = int(np.count_nonzero(labels == cluster))
        kept = tuple(worth[:_MOST_TRAITS])
        clusters.append(Cluster(weight, n_components, int(n_rows[cluster]), kept))
    return clusters


def _trait(
    column: ColumnTerms, level: int | None, value: float, overall: float, difference: float
) -> Trait:
    if level is not None:
        name = column.levels[level]
        text = f"{column.name} is {name} in {value:.0%} ({overall:.0%} of all)"
        return Trait(column.name, name, value, overall, difference, text)
    value, overall = column.values(np.array([value, overall])).tolist()
    shown, usual = shown_values(column, value, overall)
    text = f"{column.name} {shown} ({usual} in all)"
    return Trait(column.name, None, value, overall, difference, text)


def shown_values(column: ColumnTerms, *values: float) -> list[str]:
    """Values of a column of numbers as texts: three digits, or all whole ones."""
    if column.start is not None:
        return column.dates(np.array(values))
    unit = " days" if column.kind == "date" else ""
    # An exponent only where zeros would be many.
    return [f"{v:.0f}{unit}" if 1e3 <= abs(v) < 1e15 else f"{v + 0.0:.3g}{unit}" for v in values]


# Unusual rows.


class Reason(NamedTuple):
    """A cell that is a surprise, given the other cells of its row, in the user's terms."""

    column: str
    observed: Any
    #: The mean given the other cells, or the most probable level.
    expected: Any
    #: Standard deviation given the others; of a level, the probability of the expected one.
    spread: float
    #: log p(observed | others)
    log_conditional: float
    is_level: bool
    #: "days" of the spread of dates, else empty.
    unit: str = ""
    surprise: float = 0.0  # What reasons are ordered by: see `Explanation.surprise`.
    together: str = ""  # Columns that are unusual together with this one.


@dataclass(frozen=True)
class UnusualRow:
    """A row of low log-density, or of a high score of a detector."""

    #: Its number among the rows that were read, from 0.
    row: int
    log_density: float
    #: Its most probable component.
    component: int
    #: The most surprising cell first; empty for models that cannot explain.
    reasons: tuple[Reason, ...]
    #: Of a detector: the score, and the scale at which the row is most unusual.
    score: float = math.nan
    scale: str = ""


def detector_of(model: Any, X: Any) -> MixtureDetector | None:
    """A detector fitted to the rows that a model is shown with; None where it does not suit them.

    It is for tables whose words are read as it reads them, and for arrays of numbers and counts.
    """
    view = view_of(model)
    rows, estimator, kinds = view.read(X), view.estimator, None
    if len(rows) < _FEWEST_DETECTED or len(view.columns) > _MOST_DETECTED:
        return None
    if rows.table is None:
        suits = {column.kind for column in view.columns} <= {"number", "count"}
    else:
        suits = not len(estimator.missing_values) and not len(estimator.gap_levels)
        kinds = {n: kind for n, kind in (estimator.schema or {}).items() if n in view.names}
    if not suits:
        return None
    # Columns may have one value in these rows, or be of a kind that a detector does not know.
    with contextlib.suppress(ValueError):
        return MixtureDetector(schema=kinds or None, random_state=0).fit(_plain(view, rows))
    return None


def _plain(view: View, rows: Rows) -> Any:
    """What a detector reads: numbers, or the columns of a table that the model has."""
    if rows.table is None:
        return rows.values
    known = {name: rows.table.columns[name] for name in view.names if name in rows.table.columns}
    return replace(rows.table, columns=known)


def unusual_rows(
    model: Any,
    X: Any,
    n_rows: int = 10,
    *,
    reasons: int = 5,
    scores: RowScores | None = None,
    detector: MixtureDetector | None = None,
) -> list[UnusualRow]:
    """The rows of lowest log-density, the lowest first, with explanations.

    Rows without any value are left out. Rows with gaps have the log-density of fewer columns, so
    they tend to come later than complete ones. With a `detector` that was fitted to these rows,
    they are those that it finds most unusual, and it explains them.
    """
    check_integer("n_rows", n_rows, 0)
    check_integer("reasons", reasons, 1)
    view = view_of(model)
    rows = view.read(X)
    scores = view.score(rows) if scores is None else scores
    seen = np.flatnonzero(~np.isnan(scores.rows).all(axis=1))
    usual = scores.log_density if detector is None else -detector.decision_scores_
    lowest = seen[np.argsort(usual[seen], kind="stable")[:n_rows]]
    why: list[tuple[Reason, ...]] = [()] * lowest.shape[0]
    scales = [""] * lowest.shape[0]
    if lowest.size and (detector is not None or view.is_closed_form):
        if detector is None:
            explanation = view.explain(rows.take(lowest), reasons)
        else:
            explanation = detector.explain(_plain(view, rows.take(lowest)), reasons)
            scales = list(explanation.scales)
        names = view.names if rows.table is None else explanation.names
        why = [_reasons(explanation, row, names) for row in range(lowest.shape[0])]
    return [
        UnusualRow(
            row,
            float(scores.log_density[row]),
            int(scores.component[row]),
            cells,
            math.nan if detector is None else -float(usual[row]),
            scale,
        )
        for row, cells, scale in zip(lowest.tolist(), why, scales, strict=True)
    ]


def _reasons(explanation: Any, row: int, names: Sequence[str]) -> tuple[Reason, ...]:
    def plain(value: Any) -> Any:
        value = value.item() if isinstance(value, np.generic) else value
        # Booleans are levels, with the names that Python gives them.
        return str(value) if isinstance(value, bool) else value

    return tuple(
        Reason(
            names[column],
            plain(explanation.values[row, column]),
            plain(explanation.expected[row, column]),
            float(explanation.spread[row, column]),
            float(explanation.log_conditional[row, column]),
            explanation.kinds[column] in LEVEL_KINDS,
            "days" if explanation.kinds[column] == "date" else "",
            float(explanation.surprise[row, column]),
            explanation.beside(row, column).removeprefix(" with "),
        )
        for column in explanation.ranked[row].tolist()
        if column >= 0
    )

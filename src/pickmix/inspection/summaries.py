"""What clusters are, what columns hold, and how well each column is predicted by the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.inspection.view import Looked, Rows, View, some_rows
from pickmix.model.conditional import ColumnTerms
from pickmix.model.explanation import explain_rows
from pickmix.model.rows import QueryRows

# Clusters that are described, and deep components that stand for clusters, at most.
MOST_CLUSTERS = 10
# Columns of a cluster that are named, and how different they must be to be worth a word.
_MOST_TRAITS, _WORTH = 4, 0.25
# Numbers of covariances, and rows, by which predictions are judged: a second or two.
_PREDICTION_WORK, _FEWEST_PREDICTED, _MOST_PREDICTED = 1e8, 200, 2_000


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


def describe_clusters(view: View, looked: Looked, labels: np.ndarray) -> list[Cluster]:
    """Describe the clusters of components by labels (K,), 0, 1, 2, ...

    A cluster and the whole are compared by the means of each column, and by the probabilities of
    each level, in standard deviations of the whole.
    """
    parts, known = view.parts_from(looked)
    weights = np.where(known, view.weights, 0.0)
    n_clusters = int(labels.max()) + 1
    share = np.zeros((n_clusters, view.n_components))
    share[labels, np.arange(view.n_components)] = weights
    totals = share.sum(axis=1)
    share /= np.maximum(totals, 1e-300)[:, None]
    by_place = {column.place: column for column in view.columns}
    traits: list[list[Trait]] = [[] for _ in range(n_clusters)]
    for part in parts:
        means, variances = part.coordinate_means(), part.coordinate_variances()
        overall = weights @ means / weights.sum()
        between = np.square(means - overall)
        spread = np.sqrt(weights @ (variances + between) / weights.sum())
        values = share @ means
        differences = (values - overall) / np.where(spread > 0.0, spread, 1.0)
        first = 0
        for place, n_levels in zip(part.columns.tolist(), part.n_levels(), strict=True):
            here = slice(first, first + max(n_levels, 1))
            first = here.stop
            for cluster in range(n_clusters):
                # Of two levels that differ as much, the one that is frequent in the cluster.
                sizes = np.abs(differences[cluster, here] + 1e-9)
                best = here.start + int(sizes.argmax())
                level = best - here.start if n_levels else None
                numbers = values[cluster, best], overall[best], differences[cluster, best]
                traits[cluster].append(_trait(by_place[place], level, *map(float, numbers)))
    n_rows = np.bincount(labels[looked.component], minlength=n_clusters)
    return [
        Cluster(
            float(totals[cluster] / max(totals.sum(), 1e-300)),
            int(np.count_nonzero(labels == cluster)),
            int(n_rows[cluster]),
            tuple(_largest(traits[cluster])),
        )
        for cluster in range(n_clusters)
    ]


def _largest(traits: list[Trait]) -> list[Trait]:
    order = sorted(traits, key=lambda trait: -abs(trait.difference))
    return [trait for trait in order if abs(trait.difference) >= _WORTH][:_MOST_TRAITS]


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
    """Values of a column of numbers as texts."""
    if column.start is not None:
        return column.dates(np.array(values))
    unit = " days" if column.kind == "date" else ""
    return [f"{_digits(value)}{unit}" for value in values]


def _digits(value: float) -> str:
    """Three digits or all whole ones, and an exponent only where zeros would be many.

    >>> _digits(51234.7), _digits(0.031234), _digits(3.2e-9), _digits(-0.0)
    ('51235', '0.0312', '3.2e-09', '0')
    """
    return f"{value:.0f}" if 1e3 <= abs(value) < 1e15 else f"{value + 0.0:.3g}"


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
    predicted = predict_columns(view, rows)
    values = view.values(rows.values)
    return [
        ColumnSummary(
            column.name,
            column.kind,
            float(np.isnan(values[:, d]).mean()),
            _content(column, values[~np.isnan(values[:, d]), d]),
            column.step,
            *predicted[d],
        )
        for d, column in enumerate(view.columns)
    ]


def _content(column: ColumnTerms, seen: np.ndarray) -> str:
    if not seen.size:
        return ""
    if column.levels:
        n_seen, n_levels = np.unique(seen).shape[0], len(column.levels)
        return (
            f"{n_levels:,} levels" if n_seen == n_levels else f"{n_seen:,} of {n_levels:,} levels"
        )
    return " to ".join(shown_values(column, float(seen.min()), float(seen.max())))


def predict_columns(view: View, rows: Rows) -> list[tuple[float, float]]:
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
    values = rows.values[some_rows(len(rows), most, seed=2)]
    query = QueryRows(view.model, values, None, view.level_weights)
    # The few cells that would need kernels for gaps may be missing in a summary.
    expected = explain_rows(query, [""] * D, None, all_cells=False).expected
    scores: list[tuple[float, float]] = []
    for column in view.columns:
        seen = ~np.isnan(values[:, column.place] + expected[:, column.place])
        observed, means = values[seen, column.place], expected[seen, column.place]
        if np.unique(observed).shape[0] < 2:
            scores.append(unknown)
        elif column.levels:
            frequent = np.bincount(observed.astype(np.int64)).max() / observed.shape[0]
            scores.append((float((observed == means).mean()), float(frequent)))
        else:
            left = float(np.square(observed - means).mean() / observed.var())
            scores.append((1.0 - left, 0.0))
    return scores


def cluster_labels(view: View, tree: Any) -> np.ndarray | None:
    """Labels (K,) of the clusters to describe; None if there are too many to tell apart."""
    if tree is not None:
        return np.asarray(tree.labels(min(MOST_CLUSTERS, view.n_components)))
    few = 1 < view.n_components <= MOST_CLUSTERS
    return np.argsort(np.argsort(-view.weights, kind="stable")) if few else None

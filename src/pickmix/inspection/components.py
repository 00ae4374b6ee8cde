"""The components of a mixture as a table: weight, rows, volume, neighbour and typical row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.neighbors import NearestNeighbors

from pickmix.families.base import Part
from pickmix.inspection.view import Looked, spread_of, view_of

# Components near another one, by their positions, that are compared with it.
_CANDIDATES = 6
# Beyond so many components all pairs are too many, and points are projected to so few coordinates
# that a tree can search them.
_MOST_PAIRS, _FEW_COORDINATES = 20_000, 10


@dataclass(frozen=True)
class ComponentTable:
    """What there is to say of each of K components, by N rows."""

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
    looked: Looked

    def __len__(self) -> int:
        return int(self.weight.shape[0])

    @property
    def side(self) -> np.ndarray:
        """Side (K,) of a cube with the component's volume, in units of the columns' spread."""
        return np.asarray(np.exp(self.log_volume / self.centre.shape[1]))


def component_table(model: Any, X: Any, *, looked: Looked | None = None) -> ComponentTable:
    """Describe every component of a fitted mixture by rows.

    >>> from pickmix import GaussianMixture
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(c, 1.0, (200, 2)) for c in (0.0, 10.0)])
    >>> table = component_table(GaussianMixture(2, random_state=0).fit(X), X)
    >>> table.rows, table.neighbour
    (array([200, 200]), array([1, 0]))
    >>> bool(13.0 < table.separation[0] < 16.0)
    True
    """
    view = view_of(model)
    looked = view.look(view.read(X)) if looked is None else looked
    parts, known = view.parts_from(looked)
    K, rows, component = view.n_components, looked.rows, looked.component
    spread = spread_of(rows)
    log_volume, distance = np.zeros(K), np.isnan(rows).sum(axis=1).astype(np.float64)
    centre = np.full((K, rows.shape[1]), np.nan)
    for part in parts:
        log_volume += part.log_volumes(rows[:, part.columns], spread[part.columns])
        # A cell that was not seen counts as one standard deviation away, as it is on average.
        distance += part.squared_distances(rows[:, part.columns], component)
        centre[:, part.columns] = part.typical()
    log_volume[~known], centre[~known] = np.nan, np.nan
    typical = np.full(K, -1, dtype=np.int64)
    # The nearest one is written last.
    order = np.argsort(-distance, kind="stable")
    typical[component[order]] = order
    neighbour, separation = neighbours(parts, known)
    return ComponentTable(
        weight=view.weights,
        rows=np.bincount(component, minlength=K).astype(np.int64),
        log_volume=log_volume,
        neighbour=neighbour,
        separation=separation,
        typical=typical,
        centre=view.values(centre),
        looked=looked,
    )


def neighbours(parts: Sequence[Part], known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nearest other component (K,) of those known (K,), and how far it is (K,).

    Among some components at near positions, it is the one with the least Bhattacharyya distance B.
    The distance is sqrt(8 B): between components of one shape, that of their centres in standard
    deviations.
    """
    neighbour = np.full(known.shape[0], -1, dtype=np.int64)
    separation = np.full(known.shape[0], np.nan)
    numbers = np.flatnonzero(known)
    if numbers.size < 2:
        return neighbour, separation
    positions = np.concatenate([part.positions() for part in parts], axis=1)[numbers]
    candidates = numbers[_nearest(positions, min(_CANDIDATES, numbers.size - 1))]
    first = np.repeat(numbers, candidates.shape[1])
    distances = sum(part.bhattacharyya(first, candidates.ravel()) for part in parts)
    distances = np.reshape(distances, candidates.shape)
    best = distances.argmin(axis=1)
    rows = np.arange(numbers.size)
    neighbour[numbers] = candidates[rows, best]
    separation[numbers] = np.sqrt(8.0 * np.maximum(distances[rows, best], 0.0))
    return neighbour, separation


def _nearest(points: np.ndarray, n: int) -> np.ndarray:
    """Numbers (K, n) of the points nearest to each one of K, itself not among them."""
    K, d = points.shape
    if d > _FEW_COORDINATES and K > _MOST_PAIRS:
        random = np.random.default_rng(0)
        points = points @ random.standard_normal((d, _FEW_COORDINATES))
    # Beyond so many coordinates a tree is slower than all pairs.
    algorithm = "brute" if points.shape[1] > _FEW_COORDINATES else "kd_tree"
    search = NearestNeighbors(n_neighbors=n, algorithm=algorithm).fit(points)
    return np.asarray(search.kneighbors(return_distance=False))

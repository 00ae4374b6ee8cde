"""Which rows a report shows, and where rows and components are on its map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.inspection.components import ComponentTable
from pickmix.inspection.page import numbers
from pickmix.inspection.plane import choose_plane, component_means, coordinates, plane_covariances
from pickmix.inspection.unusual import UnusualRow
from pickmix.inspection.view import Rows, View, some_rows

# Cells of the rows in a report, which take some six bytes each, and rows of the sample.
_MOST_CELLS = 120_000
_MOST_SAMPLED = 3_000
# Rows of each component, if there is room.
_OF_EACH = 8
# Rows by which principal axes are found.
_FOR_AXES = 5_000


@dataclass(frozen=True)
class Shown:
    """Rows of a report."""

    #: Their numbers (n,) among those that were looked at. The sample comes first.
    rows: np.ndarray
    #: How many of them are the sample, which stands for all rows.
    n_sampled: int
    #: From the number of a row to its place in the report.
    place: dict[int, int]


def choose_shown(table: ComponentTable, unusual: Sequence[UnusualRow], n_columns: int) -> Shown:
    """Choose the rows of a report.

    First a sample, for the map. Then unusual rows, the typical rows of all components, the heaviest
    first, and a few more of each component, as far as there is room.
    """
    component = table.looked.component
    room = max(600, _MOST_CELLS // n_columns)
    sample = some_rows(component.shape[0], min(_MOST_SAMPLED, room // 2))
    typical = table.typical[np.argsort(-table.weight, kind="stable")]
    every = np.concatenate(
        [
            sample,
            np.array([row.row for row in unusual], dtype=np.int64),
            typical[typical >= 0][: room // 2],
            _of_each(component)[: max(0, room - sample.size)],
        ]
    )
    # The first of each, in this order.
    _, first = np.unique(every, return_index=True)
    rows = every[np.sort(first)]
    place = {row: number for number, row in enumerate(rows.tolist())}
    return Shown(rows, int(sample.shape[0]), place)


def _of_each(component: np.ndarray) -> np.ndarray:
    """The first rows of every component, then the second ones, and so on."""
    order = np.argsort(component, kind="stable")
    starts = np.searchsorted(component[order], component[order], side="left")
    turn = np.arange(order.shape[0]) - starts
    few = turn < _OF_EACH
    return np.asarray(order[few][np.argsort(turn[few], kind="stable")])


def make_map(view: View, rows: Rows, table: ComponentTable, shown: np.ndarray) -> dict[str, Any]:
    """Places of rows, and centres and covariances of components, in a plane."""
    plane = choose_plane(view, rows.take(some_rows(len(rows), _FOR_AXES)))
    points = plane.project(coordinates(view, rows.take(shown)))
    if view.is_closed_form:
        every = np.arange(view.n_components)
        centres = plane.project(component_means(view, every))
        covariances = plane_covariances(view, every, plane)
    else:
        projected = plane.project(coordinates(view, rows))
        centres, covariances = _from_rows(projected, table.looked.component, view.n_components)
    names = list(plane.names)
    if not names[1]:
        names[1] = "spread at random"
        points, centres, covariances = _flat(points, centres, covariances)
    return {
        "names": names,
        "x": numbers(points[:, 0], 4),
        "y": numbers(points[:, 1], 4),
        "cx": numbers(centres[:, 0], 4),
        "cy": numbers(centres[:, 1], 4),
        "xx": numbers(covariances[:, 0, 0], 3),
        "xy": numbers(covariances[:, 0, 1], 3),
        "yy": numbers(covariances[:, 1, 1], 3),
    }


def _from_rows(
    points: np.ndarray, component: np.ndarray, n_components: int
) -> tuple[np.ndarray, np.ndarray]:
    """Means (K, 2) and covariances (K, 2, 2) of the points of each component; NaN without any."""
    placed = ~np.isnan(points).any(axis=1)
    points, component = points[placed], component[placed]
    counts = np.bincount(component, minlength=n_components).astype(np.float64)
    safe = np.maximum(counts, 1.0)
    sums, squares = np.zeros((n_components, 2)), np.zeros((n_components, 2, 2))
    np.add.at(sums, component, points)
    centres = sums / safe[:, None]
    away = points - centres[component]
    np.add.at(squares, component, away[:, :, None] * away[:, None, :])
    covariances = squares / safe[:, None, None]
    centres[counts == 0.0], covariances[counts == 0.0] = np.nan, np.nan
    return centres, covariances


def _flat(
    points: np.ndarray, centres: np.ndarray, covariances: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A single column has no second axis: rows are spread along one at random."""
    random = np.random.default_rng(0)
    points, centres, covariances = points.copy(), centres.copy(), covariances.copy()
    width = 0.2 * max(float(np.nanstd(points[:, 0])), 1e-12)
    points[:, 1] = width * random.uniform(-1.0, 1.0, points.shape[0])
    centres[:, 1] = 0.0
    covariances[:, 0, 1] = covariances[:, 1, 0] = 0.0
    covariances[:, 1, 1] = 0.25 * width**2
    return points, centres, covariances

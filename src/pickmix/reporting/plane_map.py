"""The map of a report: rows and components in a plane."""

from __future__ import annotations

from typing import Any

import numpy as np

from pickmix.diagnostics.columns import some_rows
from pickmix.diagnostics.component_table import ComponentTable
from pickmix.diagnostics.plane import (
    Plane,
    choose_plane,
    component_means,
    coordinates,
    has_shapes,
    plane_covariances,
)
from pickmix.reporting.plain import numbers
from pickmix.reporting.subject import Subject, take_rows

# Rows by which principal axes are found.
_FOR_AXES = 5_000


def make_map(subject: Subject, table: ComponentTable, shown: np.ndarray) -> dict[str, Any]:
    """Places of rows, and centres and covariances of components, in a plane."""
    model = subject.model
    some = some_rows(subject.numbers.shape[0], _FOR_AXES)
    plane = choose_plane(model, take_rows(subject.rows, some))
    points = plane.project(coordinates(model, take_rows(subject.rows, shown)))
    K = len(table)
    if has_shapes(model):
        every = np.arange(K)
        centres = plane.project(component_means(model, every))
        covariances = plane_covariances(model, every, plane)
    else:
        everywhere = plane.project(coordinates(model, subject.rows))
        centres, covariances = _from_rows(everywhere, table.looked.component, K)
    if not plane.names[1]:
        points, centres, covariances = _flat(points, centres, covariances)
    return {
        "names": _axis_names(plane, subject.names),
        "x": numbers(points[:, 0], 4),
        "y": numbers(points[:, 1], 4),
        "cx": numbers(centres[:, 0], 4),
        "cy": numbers(centres[:, 1], 4),
        "xx": numbers(covariances[:, 0, 0], 3),
        "xy": numbers(covariances[:, 0, 1], 3),
        "yy": numbers(covariances[:, 1, 1], 3),
    }


def _axis_names(plane: Plane, names: list[str]) -> list[str]:
    if plane.columns and len(names) == 2:
        return [names[column] for column in plane.columns]
    if not plane.names[1]:
        return [names[0], "spread at random"]
    return list(plane.names)


def _from_rows(
    points: np.ndarray, component: np.ndarray, n_components: int
) -> tuple[np.ndarray, np.ndarray]:
    """Means (K, 2) and covariances (K, 2, 2) of the points of each component; NaN without any."""
    placed = ~np.isnan(points).any(axis=1)
    points, component = points[placed], component[placed]
    counts = np.bincount(component, minlength=n_components).astype(np.float64)
    safe = np.maximum(counts, 1.0)
    sums = np.zeros((n_components, 2))
    np.add.at(sums, component, points)
    centres = sums / safe[:, None]
    away = points - centres[component]
    squares = np.zeros((n_components, 2, 2))
    np.add.at(squares, component, away[:, :, None] * away[:, None, :])
    centres[counts == 0.0] = np.nan
    covariances = squares / safe[:, None, None]
    covariances[counts == 0.0] = np.nan
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

"""What is drawn of a mixture in a plane: ellipses, contours and curves, as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pickmix.diagnostics.columns import nameless
from pickmix.diagnostics.plane import Plane, some_rows
from pickmix.displays.ellipses import choose_n_std, limits_of

# Percentages of the rows that lie where the density is higher than on a contour.
CONTOURS = (99, 90, 70, 50, 30, 10)
# Components on points of a grid, and points along its side.
_GRID_EVALUATIONS = 5_000_000
_COARSEST_GRID, _FINEST_GRID = 60, 250


@dataclass
class Ellipses:
    """Components as means and covariances in a plane, the heaviest first.

    Attributes
    ----------
    components : (n,) int array
        Their numbers in the model.
    centers : (n, 2) array
    covariances : (n, 2, 2) array
    weights : (n,) array
    clusters : (n,) int array or None
        The cluster of each, numbered by falling weight.
    """

    components: np.ndarray
    centers: np.ndarray
    covariances: np.ndarray
    weights: np.ndarray
    clusters: np.ndarray | None = None

    @property
    def n_std(self) -> int:
        """Standard deviations to draw: two, or one where ellipses would hide each other."""
        return choose_n_std(self.centers, self.covariances)


@dataclass
class Contours:
    """A density on a grid: values (m, m) at places x (m,) and y (m,), and levels of contours."""

    x: np.ndarray
    y: np.ndarray
    values: np.ndarray
    levels: np.ndarray


@dataclass
class Curve:
    """A density of one column: its values (m,) at a grid (m,), and those of components (m, K)."""

    grid: np.ndarray
    density: np.ndarray
    parts: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))


def cluster_centers(ellipses: Ellipses) -> tuple[np.ndarray, np.ndarray]:
    """Numbers (k,) of the clusters that are drawn, and their centres (k, 2)."""
    assert ellipses.clusters is not None
    numbers, which = np.unique(ellipses.clusters, return_inverse=True)
    totals = np.bincount(which, ellipses.weights)
    centers = [np.bincount(which, ellipses.weights * c) / totals for c in ellipses.centers.T]
    return numbers, np.stack(centers, axis=1)


def find_contours(model: Any, points: np.ndarray, plane: Plane) -> Contours:
    """Where the density of two columns is as high as at shares of the rows."""
    alone = nameless(model)
    n_side = np.sqrt(_GRID_EVALUATIONS / getattr(model, "n_paths_", model.weights_.shape[0]))
    n_side = int(np.clip(n_side, _COARSEST_GRID, _FINEST_GRID))
    low, high = limits_of(points)
    x, y = np.linspace(low, high, n_side).T
    grid = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    # The plane may show the second column first.
    order = np.argsort(plane.columns)
    values = alone.score_samples(grid[:, order]).reshape(n_side, n_side)
    some = points[some_rows(points.shape[0], 2000)][:, order]
    levels = np.unique(np.percentile(alone.score_samples(some), [100 - p for p in CONTOURS]))
    # Data on a line have densities that no point of the grid reaches.
    return Contours(x, y, values, levels[(levels > values.min()) & (levels < values.max())])

"""A plane to look at rows and components in: two columns, or the first two principal axes.

Numbers, counts and dates (in days) have one coordinate. A column of levels has one for each level,
1 for the level that a row has and 0 for all others; a column of very many levels has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse.linalg import svds

from pickmix.families.base import Part
from pickmix.inspection.view import View, view_of

# Columns with more levels have no part in planes.
_MOST_LEVELS = 50
# Rows or coordinates up to which all principal axes are computed; beyond, only two of them.
_ALL_AXES = 300


@dataclass(frozen=True)
class Plane:
    """A plane in the space of coordinates.

    >>> plane = Plane(np.zeros(3), np.eye(3)[:, [2, 0]], ("c", "a"), (2, 0))
    >>> plane.project(np.array([[1.0, 2.0, 3.0]]))
    array([[3., 1.]])
    """

    #: (C,)
    origin: np.ndarray
    #: (C, 2), or (C, d) of d columns.
    basis: np.ndarray
    #: Of its axes; the second is empty if there is a single coordinate to look at.
    names: tuple[str, ...]
    #: The coordinates that it shows, if it shows columns; empty for principal axes.
    columns: tuple[int, ...] = ()

    def project(self, rows: np.ndarray) -> np.ndarray:
        """Points (n, 2) of rows of coordinates (n, C).

        A gap counts as the origin (the mean) among principal axes. In a plane of two columns, it is
        NaN.
        """
        away = np.asarray(rows, dtype=np.float64) - self.origin
        if self.columns:
            return np.asarray(away[:, list(self.columns)])
        return np.asarray(np.nan_to_num(away, nan=0.0) @ self.basis)


def coordinates(model: Any, X: Any) -> np.ndarray:
    """Rows (N, C) in the space of a `Plane`, NaN where a cell is missing.

    >>> from pickmix import FamilyMixture
    >>> rows = np.array([[0.5, 0.0], [1.5, 2.0], [2.0, 1.0]])
    >>> mixture = FamilyMixture([("diag", [0]), ("categorical", [1])], 1).fit(rows)
    >>> coordinates(mixture, rows)
    array([[0.5, 1. , 0. , 0. ],
           [1.5, 0. , 0. , 1. ],
           [2. , 0. , 1. , 0. ]])
    """
    view = view_of(model)
    blocks = []
    values = view.values(view.read(X).values).T[:, :, None]
    for column, n_levels, size in zip(values, _levels(view), _sizes(view), strict=True):
        if n_levels:
            column = np.where(np.isnan(column), np.nan, column == np.arange(size))
        blocks.append(column)
    return np.concatenate(blocks, axis=1)


def _levels(view: View) -> list[int]:
    """Levels of each column, 0 if it holds numbers."""
    return [len(column.levels) for column in view.columns]


def _sizes(view: View) -> list[int]:
    """Coordinates of each column."""
    return [max(n, 1) if n <= _MOST_LEVELS else 0 for n in _levels(view)]


def _starts(view: View) -> np.ndarray:
    """The first coordinate (D + 1,) of each column."""
    return np.concatenate([[0], np.cumsum(_sizes(view))])


def number_columns(view: View) -> np.ndarray:
    """Numbers of the columns that hold no levels."""
    return np.flatnonzero(np.array(_levels(view)) == 0)


def choose_plane(model: Any, X: Any, columns: Any = None) -> Plane:
    """A plane of two columns of numbers, or else the one that shows most of the rows.

    None are all columns if there are one or two of numbers, else the first two principal axes of
    the standardised coordinates: columns have mean 0 and variance 1 before, so their units do not
    matter. Each level is divided by the square root of its share instead, so that rare levels count
    for less; columns of more than 50 levels do not count.

    >>> from pickmix import GaussianMixture
    >>> X = np.random.default_rng(0).normal(size=(100, 3))
    >>> choose_plane(GaussianMixture(1).fit(X), X, [2, 0]).names
    ('column 2', 'column 0')
    """
    view = view_of(model)
    if columns is not None:
        wanted = view.find(columns)
        if wanted.shape[0] != 2:
            raise ValueError(f"columns must be two names or numbers, got {columns!r}.")
        return plane_of(view, wanted)
    if not any(_levels(view)) and len(view.columns) == 2:
        return plane_of(view, np.arange(2))
    points = coordinates(view, X)
    if points.shape[1] < 2:
        shown = next((d for d, size in enumerate(_sizes(view)) if size), 0)
        basis = np.eye(points.shape[1], 2)
        return Plane(np.zeros(points.shape[1]), basis, (view.names[shown], ""))
    mean = np.nan_to_num(np.nanmean(without_empty(points), axis=0))
    away = np.nan_to_num(points - mean)
    scales = _scales(view, mean, away)
    lengths, axes = _principal_axes(away * scales)
    total = max(float(np.square(away * scales).sum()), 1e-300)
    basis, names = np.zeros((points.shape[1], 2)), ["", ""]
    # A single row has a single axis.
    for number, (length, axis) in enumerate(zip(lengths, axes, strict=True)):
        # The sign of an axis is arbitrary: its largest weight is made positive.
        sign = np.sign(axis[np.abs(axis).argmax()]) or 1.0
        basis[:, number] = sign * axis * scales
        share = 100.0 * length**2 / total
        ordinal = ("first", "second")[number]
        names[number] = f"{ordinal} principal axis ({share:.0f} % of the variance)"
    return Plane(mean, basis, tuple(names))


def _principal_axes(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest two singular values of points (N, C) and their axes (2, C)."""
    if min(points.shape) <= _ALL_AXES:
        _, lengths, axes = np.linalg.svd(points, full_matrices=False)
        return lengths[:2], axes[:2]
    # All axes of thousands of levels would take minutes. The start is fixed, so results repeat.
    start = np.random.default_rng(0).standard_normal(min(points.shape))
    _, lengths, axes = svds(points, k=2, v0=start, return_singular_vectors="vh")
    return lengths[::-1], axes[::-1]


def without_empty(points: np.ndarray) -> np.ndarray:
    """Points with zeros in empty columns, whose mean would warn."""
    empty = np.isnan(points).all(axis=0)
    return np.where(empty, 0.0, points) if empty.any() else points


def plane_of(view: View, columns: np.ndarray) -> Plane:
    """The plane, or the space, of columns of numbers, given by their numbers."""
    levels, starts = _levels(view), _starts(view)
    for column in columns.tolist():
        if levels[column]:
            raise ValueError(
                f"columns must hold numbers to span a plane, got {view.names[column]!r}, which "
                "holds levels."
            )
    at = starts[columns]
    names = tuple(view.columns[column].axis_name for column in columns.tolist())
    return Plane(np.zeros(starts[-1]), np.eye(starts[-1])[:, at], names, tuple(at.tolist()))


def _scales(view: View, mean: np.ndarray, away: np.ndarray) -> np.ndarray:
    """Factors of coordinates before principal axes are computed; 0 leaves a coordinate out."""
    spread = np.sqrt(np.square(away).mean(axis=0))
    # Rounding leaves a constant column a spread that is not quite zero.
    varies = spread > 1e-12 * np.maximum(np.abs(mean), 1e-300)
    is_level = np.repeat(np.array(_levels(view)) > 0, _sizes(view))
    divisors = np.where(is_level, np.sqrt(np.maximum(mean, 1e-12)), spread)
    return np.where(varies, 1.0 / np.where(varies, divisors, 1.0), 0.0)


def component_means(model: Any, components: np.ndarray) -> np.ndarray:
    """Means (n, C) of components, in `coordinates`; of levels, their probabilities."""
    view = _with_parts(model)
    means = np.zeros((components.shape[0], int(_starts(view)[-1])))
    for part in view.parts:
        at, scale, offset = _coordinates_of(view, part)
        kept = at >= 0
        means[:, at[kept]] = (part.coordinate_means()[components] * scale + offset)[:, kept]
    return means


def plane_covariances(model: Any, components: np.ndarray, plane: Plane) -> np.ndarray:
    """Covariances (n, 2, 2) of components in a plane, or (n, d, d) in a space of d columns."""
    view = _with_parts(model)
    m = plane.basis.shape[1]
    covariances = np.zeros((components.shape[0], m, m))
    for part in view.parts:
        at, scale, _ = _coordinates_of(view, part)
        basis = np.where((at >= 0)[:, None], plane.basis[at] * scale[:, None], 0.0)
        covariances += part.covariances_along(components, basis)
    return covariances


def _with_parts(model: Any) -> View:
    view = view_of(model)
    if not view.is_closed_form:
        raise ValueError(
            f"model must be a mixture in closed form, got {type(view.estimator).__name__}, whose "
            "components have no means and covariances."
        )
    return view


def _coordinates_of(view: View, part: Part) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of a part's coordinates (c,), -1 if left out; their scales and offsets."""
    number = {column.place: d for d, column in enumerate(view.columns)}
    starts, sizes = _starts(view), _sizes(view)
    at, scale, offset = [], [], []
    for place, n_levels in zip(part.columns.tolist(), part.n_levels(), strict=True):
        d = number[place]
        n = max(n_levels, 1)
        at.append(starts[d] + np.arange(n) if sizes[d] else np.full(n, -1))
        # Probabilities of levels have no units.
        scale.append(np.full(n, view.columns[d].scale))
        offset.append(np.full(n, view.columns[d].offset))
    return np.concatenate(at), np.concatenate(scale), np.concatenate(offset)

"""A plane to look at rows and components in: two columns, or the first two principal axes.

Numbers, counts and dates (in days) have one coordinate. A column of levels has one for each level,
1 for the level that a row has and 0 for all others; a column of very many levels has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse.linalg import svds

from pickmix.families.base import Pairs, Part
from pickmix.inspection.view import View, view_of
from pickmix.model.mapped import mapped_covariances, pair_moments
from pickmix.model.rows import Posterior, QueryRows

# Columns with more levels have no part in planes.
_MOST_LEVELS = 50
# Rows or coordinates up to which all principal axes are computed; beyond, only two of them.
_ALL_AXES = 300


@dataclass(frozen=True)
class Plane:
    """A plane in the space of coordinates."""

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


def _layout(view: View) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Levels of columns (D,), 0 of numbers; coordinates (D,), and where they begin (D + 1,)."""
    levels = np.array([len(column.levels) for column in view.columns])
    sizes = np.where(levels <= _MOST_LEVELS, np.maximum(levels, 1), 0)
    return levels, sizes, np.concatenate([[0], np.cumsum(sizes)])


def coordinates(model: Any, X: Any) -> np.ndarray:
    """Rows (N, C) in the space of a `Plane`, NaN where a cell is missing."""
    view = view_of(model)
    levels, sizes, _ = _layout(view)
    values = view.values(view.read(X).values).T[:, :, None]
    return np.concatenate(
        [
            np.where(np.isnan(column), np.nan, column == np.arange(size)) if n_levels else column
            for column, n_levels, size in zip(values, levels, sizes, strict=True)
        ],
        axis=1,
    )


def number_columns(view: View) -> np.ndarray:
    """Numbers of the columns that hold no levels."""
    return np.flatnonzero(_layout(view)[0] == 0)


def choose_plane(model: Any, X: Any, columns: Any = None) -> Plane:
    """A plane of two columns of numbers, or else the one that shows most of the rows.

    None are all columns if there are one or two of numbers, else the first two principal axes of
    the standardised coordinates: columns have mean 0 and variance 1 before, so their units do not
    matter. Each level is divided by the square root of its share instead, so that rare levels count
    for less; columns of more than 50 levels do not count.
    """
    view = view_of(model)
    levels, sizes, _ = _layout(view)
    if columns is not None:
        wanted = view.find(columns)
        if wanted.shape[0] != 2:
            raise ValueError(f"columns must be two names or numbers, got {columns!r}.")
        return plane_of(view, wanted)
    if levels.tolist() == [0, 0]:
        return plane_of(view, np.arange(2))
    points = coordinates(view, X)
    C = points.shape[1]
    if C < 2:
        return Plane(np.zeros(C), np.eye(C, 2), (view.names[int(sizes.argmax())], ""))
    mean, away = centred(points)
    spread = np.sqrt(np.square(away).mean(axis=0))
    # Rounding leaves a constant column a spread that is not quite zero.
    varies = spread > 1e-12 * np.maximum(np.abs(mean), 1e-300)
    is_level = np.repeat(levels > 0, sizes)
    divisors = np.where(is_level, np.sqrt(np.maximum(mean, 1e-12)), spread)
    scales = np.where(varies, 1.0 / np.where(varies, divisors, 1.0), 0.0)
    total = max(float(np.square(away * scales).sum()), 1e-300)
    basis, names = np.zeros((C, 2)), ["", ""]
    # A single row has a single axis.
    for number, (length, axis) in enumerate(zip(*_principal_axes(away * scales), strict=True)):
        # The sign of an axis is arbitrary: its largest weight is made positive.
        sign = np.sign(axis[np.abs(axis).argmax()]) or 1.0
        basis[:, number] = sign * axis * scales
        share, ordinal = 100.0 * length**2 / total, ("first", "second")[number]
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


def centred(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means (C,) of what was seen of points (N, C), 0 of nothing; and points minus them, gaps 0."""
    counts = np.maximum(np.count_nonzero(~np.isnan(points), axis=0), 1)
    mean = np.nansum(points, axis=0) / counts
    return mean, np.nan_to_num(points - mean)


def plane_of(view: View, columns: np.ndarray) -> Plane:
    """The plane, or the space, of columns of numbers, given by their numbers."""
    levels, _, starts = _layout(view)
    for column in columns.tolist():
        if levels[column]:
            raise ValueError(
                f"columns must hold numbers to span a plane, got {view.names[column]!r}, which "
                "holds levels."
            )
    at = starts[columns]
    names = tuple(view.columns[column].axis_name for column in columns.tolist())
    return Plane(np.zeros(starts[-1]), np.eye(starts[-1])[:, at], names, tuple(at.tolist()))


def component_moments(
    model: Any, plane: Plane, components: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Means (n, d) and covariances (n, d, d) of components in a plane, or in a space of columns.

    None are all components. The coordinates of levels are their probabilities.
    """
    view = view_of(model)
    if not view.is_closed_form:
        raise ValueError(
            f"model must be a mixture in closed form, got {type(view.estimator).__name__}, whose "
            "components have no means and covariances."
        )
    if components is None:
        components = np.arange(view.n_components)
    _, sizes, starts = _layout(view)
    order = {column.place: d for d, column in enumerate(view.columns)}
    n, m = components.shape[0], plane.basis.shape[1]
    means, covariances = np.zeros((n, starts[-1])), np.zeros((n, m, m))
    for part in view.parts:
        if view.maps is not None and not part.tables and view.maps[int(part.columns[0])]:
            numbers = np.array([starts[order[place]] for place in part.columns.tolist()])
            found = mapped_components(view, part, components, plane.basis[numbers])
            means[:, numbers] = found[0]
            covariances += found[1]
            continue
        # Of the part's coordinates: their numbers, -1 if left out, scales and offsets.
        at, units = [], []
        for place, n_levels in zip(part.columns.tolist(), part.n_levels(), strict=True):
            each = None if view.maps is None or place not in order else view.maps[place]
            if each is not None or place not in order:
                # A mean is a sum over levels. Atoms are part of their columns.
                at.append(np.full(n_levels, starts[order[place]] if each is not None else -1))
                values = np.zeros(n_levels) if each is None else each.levels
                units += [(value, 0.0) for value in values.tolist()]
                continue
            d, width = order[place], max(n_levels, 1)
            at.append(starts[d] + np.arange(width) if sizes[d] else np.full(width, -1))
            # Probabilities of levels have no units.
            units += [(view.columns[d].scale, view.columns[d].offset)] * width
        number, (scale, offset) = np.concatenate(at), np.array(units).T
        kept = number >= 0
        inner = (part.coordinate_means()[components] * scale + offset)[:, kept]
        np.add.at(means.T, number[kept], inner.T)
        basis = np.where(kept[:, None], plane.basis[number] * scale[:, None], 0.0)
        covariances += part.covariances_along(components, basis)
    return plane.project(means), covariances


def mapped_components(
    view: View, part: Part, components: np.ndarray, basis: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Means (n, d) of a part's mapped columns, and covariances (n, m, m) along a basis (d, m)."""
    D = len(view.columns)
    query = QueryRows(view.model, np.full((1, D), np.nan), maps=view.maps)
    which = np.zeros(components.shape[0], dtype=np.int64)
    pairs = Pairs(query.seen_rows(np.zeros(1, dtype=np.int64)), which, components)
    block = Posterior(which[:1], pairs, np.ones(components.shape[0]), which[:1], components[:1])
    terms = {column.place: column for column in view.columns}
    scale, offset = np.array(
        [(terms[place].scale, terms[place].offset) for place in part.columns.tolist()]
    ).T
    means = np.stack(
        [
            pair_moments(query, block, part, target, place)[0]
            for target, place in enumerate(part.columns.tolist())
        ],
        axis=1,
    )
    shown = np.flatnonzero(basis.any(axis=1))
    inner = mapped_covariances(query, block, part, shown, part.columns[shown])
    along = basis[shown] * scale[shown, None]
    return means * scale + offset, np.asarray(along.T @ inner @ along)

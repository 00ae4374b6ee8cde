"""A plane to look at rows and components in: two columns, or the first two principal axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.diagnostics.columns import (
    code_names,
    find_columns,
    is_closed_form,
    is_table,
    read_values,
)
from pickmix.diagnostics.columns import column_names as column_names
from pickmix.diagnostics.columns import some_rows as some_rows
from pickmix.estimators.questions_rows import AskedRows
from pickmix.families.conditioning import CountPart, DiagonalPart, LevelPart, Part
from pickmix.families.conditioning_dense import DensePart

# Columns with more levels have no part in principal axes.
_MOST_LEVELS = 50
_ORDINALS = ("first", "second")


@dataclass(frozen=True)
class Plane:
    """A plane in the space of a model's coordinates.

    Attributes
    ----------
    origin : (D,) array
    basis : (D, 2) array
        Or (D, d), of d columns.
    names : pair of str
        Of its axes; the second is empty if there is a single coordinate to look at.
    columns : tuple of int
        The coordinates that it shows, if it shows columns; empty for principal axes.

    Examples
    --------
    >>> plane = Plane(np.zeros(3), np.eye(3)[:, [2, 0]], ("c", "a"), (2, 0))
    >>> plane.project(np.array([[1.0, 2.0, 3.0]]))
    array([[3., 1.]])
    """

    origin: np.ndarray
    basis: np.ndarray
    names: tuple[str, ...]
    columns: tuple[int, ...] = ()

    def project(self, rows: np.ndarray) -> np.ndarray:
        """Points (n, 2) of rows of coordinates (n, D).

        A gap counts as the origin (the mean) among principal axes. In a plane of two columns, a
        row with a gap there has no place: NaN.
        """
        away = np.asarray(rows, dtype=np.float64) - self.origin
        if self.columns:
            return np.asarray(away[:, list(self.columns)])
        return np.asarray(np.nan_to_num(away, nan=0.0) @ self.basis)


def coordinates(model: Any, X: Any) -> np.ndarray:
    """Rows (N, D) in which a `Plane` lies, NaN where nothing was seen.

    Numbers, counts and dates (in days) have one coordinate. A column of levels has one for each
    level, 1 for the level that a row has and 0 for all others. So D is the number of columns where
    there are no levels, and coordinates are the rows themselves.

    Parameters
    ----------
    model : fitted estimator of pickmix
    X : table of shape (N, columns)
        As the model takes it.

    Examples
    --------
    >>> from pickmix import FamilyMixture
    >>> rows = np.array([[0.5, 0.0], [1.5, 2.0], [2.0, 1.0]])
    >>> mixture = FamilyMixture([("diag", [0]), ("categorical", [1])], 1).fit(rows)
    >>> coordinates(mixture, rows)
    array([[0.5, 1. , 0. , 0. ],
           [1.5, 0. , 0. , 1. ],
           [2. , 0. , 1. , 0. ]])
    """
    values = read_values(model, X)
    sizes = _sizes(model, values.shape[1])
    found = []
    for d, size in enumerate(sizes):
        own = values[:, d, None]
        if size:
            own = np.where(np.isnan(own), np.nan, own == np.arange(size))
        found.append(own)
    return np.concatenate(found, axis=1)


def _sizes(model: Any, n_columns: int) -> list[int]:
    """Levels of each column, 0 if it holds numbers."""
    if is_table(model):
        kept = [model.schema_[name] for name in column_names(model)]
        return [len(code_names(c)) if c.kind in ("boolean", "category") else 0 for c in kept]
    sizes = [0] * n_columns
    if is_closed_form(model):
        for part in _asked(model).parts:
            if isinstance(part, LevelPart):
                for place, column in enumerate(part.columns.tolist()):
                    sizes[column] = part.tables[place].shape[1]
    return sizes


def _asked(mixture: Any) -> AskedRows:
    return AskedRows(mixture, np.full((1, mixture.n_features_in_), np.nan))


def _starts(sizes: list[int]) -> np.ndarray:
    """The first coordinate (D + 1,) of each column."""
    return np.concatenate([[0], np.cumsum([max(size, 1) for size in sizes])])


def choose_plane(model: Any, rows: Any, columns: Any = None) -> Plane:
    """A plane to look at rows and components in.

    Parameters
    ----------
    model : fitted estimator of pickmix
    rows : table of shape (N, columns)
        As the model takes it.
    columns : pair of names or numbers, default=None
        Two columns of numbers. None are all columns if there are one or two of numbers, else the
        first two principal axes of the standardised coordinates: columns have mean 0 and variance
        1 before, so their units do not matter. Each level is divided by the square root of its
        share instead, so that rare levels count for less; columns of more than 50 levels do not
        count.

    Returns
    -------
    plane : Plane

    Examples
    --------
    >>> from pickmix import GaussianMixture
    >>> X = np.random.default_rng(0).normal(size=(100, 3))
    >>> mixture = GaussianMixture(1).fit(X)
    >>> choose_plane(mixture, X, [2, 0]).names
    ('column 2', 'column 0')
    """
    names = column_names(model)
    sizes = _sizes(model, len(names))
    if columns is not None:
        wanted = find_columns(model, columns)
        if wanted.shape[0] != 2:
            raise ValueError(f"columns must be two names or numbers, got {columns!r}.")
        return plane_of(model, wanted)
    if not any(sizes) and len(sizes) == 2:
        return plane_of(model, np.arange(2))
    points = coordinates(model, rows)
    mean = np.nan_to_num(np.nanmean(_with_one(points), axis=0))
    away = np.nan_to_num(points - mean)
    if points.shape[1] == 1:
        return Plane(mean * 0.0, np.array([[1.0, 0.0]]), (names[0], ""))
    scales = _scales(sizes, mean, away)
    _, lengths, axes = np.linalg.svd(away * scales, full_matrices=False)
    total = max(float(np.square(lengths).sum()), 1e-300)
    basis = np.zeros((points.shape[1], 2))
    texts = ["", ""]
    for axis in range(min(2, axes.shape[0])):
        # An axis has no direction of its own: its largest weight is made positive.
        sign = np.sign(axes[axis, np.abs(axes[axis]).argmax()]) or 1.0
        basis[:, axis] = sign * axes[axis] * scales
        share = 100.0 * lengths[axis] ** 2 / total
        texts[axis] = f"{_ORDINALS[axis]} principal axis ({share:.0f} % of the variance)"
    return Plane(mean, basis, (texts[0], texts[1]))


def _with_one(points: np.ndarray) -> np.ndarray:
    """Points with a zero in columns that hold nothing: their mean would warn."""
    empty = np.isnan(points).all(axis=0)
    return np.where(empty, 0.0, points) if empty.any() else points


def number_columns(model: Any) -> np.ndarray:
    """Numbers of the columns that hold no levels."""
    return np.flatnonzero(np.array(_sizes(model, len(column_names(model)))) == 0)


def plane_of(model: Any, columns: np.ndarray) -> Plane:
    """The plane, or the space, of some columns of numbers, given by their numbers."""
    names = column_names(model)
    sizes = _sizes(model, len(names))
    starts = _starts(sizes)
    shown = []
    for column in columns.tolist():
        if sizes[column]:
            raise ValueError(
                f"columns must hold numbers to span a plane, got {names[column]!r}, which holds "
                "levels."
            )
        shown.append(f"{names[column]}{_since(model, names[column])}")
    places = starts[columns]
    return Plane(
        np.zeros(starts[-1]), np.eye(starts[-1])[:, places], tuple(shown), tuple(places.tolist())
    )


def _since(model: Any, name: str) -> str:
    """What the coordinates of a date count."""
    if not is_table(model) or model.schema_[name].kind != "date":
        return ""
    column = model.schema_[name]
    if column.form.get("duration"):
        return " (days)"
    first = np.datetime64(column.origin, column.unit).astype("datetime64[D]")
    return f" (days since {first})"


def _scales(sizes: list[int], mean: np.ndarray, away: np.ndarray) -> np.ndarray:
    """What coordinates are multiplied by before principal axes are found; 0 leaves them out."""
    spread = np.sqrt(np.square(away).mean(axis=0))
    # Rounding leaves a constant column a spread that is not quite zero.
    varies = spread > 1e-12 * np.maximum(np.abs(mean), 1e-300)
    scales = np.where(varies, 1.0 / np.where(varies, spread, 1.0), 0.0)
    for size, start in zip(sizes, _starts(sizes), strict=False):
        if size:
            some = slice(start, start + size)
            share = np.maximum(mean[some], 1e-12)
            allowed = varies[some] & (size <= _MOST_LEVELS)
            scales[some] = np.where(allowed, 1.0 / np.sqrt(share), 0.0)
    return np.asarray(scales)


def has_shapes(model: Any) -> bool:
    """Whether components have means and covariances, so that they can be drawn as ellipses."""
    return is_closed_form(model)


def component_means(model: Any, components: np.ndarray) -> np.ndarray:
    """Means (n, D) of some components, in `coordinates`; of levels, their probabilities."""
    return _moments(model, components)[0]


def plane_covariances(model: Any, components: np.ndarray, plane: Plane) -> np.ndarray:
    """Covariances (n, 2, 2) of some components in a plane, or (n, d, d) in a space of d columns."""
    return _moments(model, components, plane.basis)[1]


def _moments(
    model: Any, components: np.ndarray, basis: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Means (n, D) and covariances (n, d, d) along the columns of a basis (D, d)."""
    if not has_shapes(model):
        raise ValueError(
            f"model must be a mixture in closed form, got {type(model).__name__}, whose components "
            "have no means and covariances."
        )
    components = np.asarray(components)
    sizes = _sizes(model, len(column_names(model)))
    starts = _starts(sizes)
    places, scale, first = _units(model, sizes)
    basis = np.zeros((int(starts[-1]), 0)) if basis is None else basis
    means = np.zeros((components.shape[0], int(starts[-1])))
    covariances = np.zeros((components.shape[0], basis.shape[1], basis.shape[1]))
    asked = _asked(model.mixture_ if is_table(model) else model)
    for part in asked.parts:
        own = places[part.columns]
        at = starts[own]
        if isinstance(part, LevelPart):
            for table, column in zip(part.tables, own.tolist(), strict=True):
                some = slice(starts[column], starts[column] + sizes[column])
                means[:, some] = table[components]
                covariances += _of_levels(table[components], basis[some])
            continue
        inner, spread = _inside(part, components)
        means[:, at] = (inner + asked.centre[part.columns]) * scale[own] + first[own]
        scaled = basis[at] * scale[own][:, None]
        if spread.ndim == 3:
            covariances += scaled.T @ spread @ scaled
        else:
            covariances += (scaled.T * spread[:, None, :]) @ scaled
    return means, covariances


def _units(model: Any, sizes: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the mixture's columns stand among `column_names`, their scales and origins (D,)."""
    scale, first = np.ones(len(sizes)), np.zeros(len(sizes))
    if not is_table(model):
        return np.arange(len(sizes)), scale, first
    names = column_names(model)
    for d, name in enumerate(names):
        column = model.schema_[name]
        if not sizes[d]:
            scale[d] = column.scale
            first[d] = 0.0 if column.kind == "date" else column.origin
    return np.array([names.index(c.name) for c in model.schema_.modelled]), scale, first


def _inside(part: Part, components: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means (n, d) about the centre, and covariances (n, d, d) or (1, d, d), or variances."""
    if isinstance(part, DensePart):
        own = part.matrices if part.matrices.shape[0] == 1 else part.matrices[components]
        return part.means[components], own
    if isinstance(part, DiagonalPart):
        return part.means[components], part.variances[components]
    assert isinstance(part, CountPart)
    return part.rates[components], part.rates[components]


def _of_levels(shares: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Covariances (n, d, d) of one level drawn by shares (n, L): diag(p) - p p', along a basis."""
    along = shares @ basis
    return np.asarray(
        (basis.T * shares[:, None, :]) @ basis - along[:, :, None] * along[:, None, :]
    )

"""The families by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pickmix.families.base import Family
from pickmix.families.categorical import Categorical
from pickmix.families.column_trees import TreeOfColumnsError
from pickmix.families.gaussian import (
    DiagonalGaussian,
    FullGaussian,
    SphericalGaussian,
    TiedGaussian,
)
from pickmix.families.low_rank import LowRankGaussian, most_rank
from pickmix.families.poisson import Poisson
from pickmix.families.product import Product
from pickmix.families.student import StudentT
from pickmix.families.tree import TreeCategorical

#: The user's description of a family: a name, or groups of columns with a name each.
Description = str | Sequence[tuple[str, Sequence[int]]]

#: Added to variances: one number, or one per column.
Floors = float | np.ndarray

#: Makes a family for rows (N, D) and reg_covar.
Constructor = Callable[[np.ndarray, Floors], Family]

FAMILIES: dict[str, Constructor] = {
    "full": lambda rows, reg_covar: FullGaussian(rows.shape[1], reg_covar),
    "tied": lambda rows, reg_covar: TiedGaussian(rows.shape[1], reg_covar),
    "diag": lambda rows, reg_covar: DiagonalGaussian(rows.shape[1], reg_covar),
    "spherical": lambda rows, reg_covar: SphericalGaussian(rows.shape[1], reg_covar),
    "low_rank": lambda rows, reg_covar: LowRankGaussian(
        rows.shape[1], reg_covar, most_rank("auto", rows.shape[1])
    ),
    "student_t": lambda rows, reg_covar: StudentT(rows.shape[1], reg_covar),
    "poisson": lambda rows, reg_covar: Poisson(rows.shape[1]),
    "categorical": lambda rows, reg_covar: Categorical.of_rows(rows),
}


def make_family(
    description: Description,
    rows: np.ndarray,
    reg_covar: Floors,
    parents: np.ndarray | None = None,
    low_rank: Constructor | None = None,
) -> Family:
    """Make the described family: a name in `FAMILIES`, or groups (name, columns), for rows (N, D).

    Levels of categories are counted in the rows, from 0 to the largest. `reg_covar`, one number or
    (D,), is added to the diagonals of covariances. `parents` (D,), -1 if there is none, are columns
    that categories depend on given the component. `low_rank` makes the family of that name. Raises
    ValueError for unknown names, columns not covered once, and rows that the family does not
    describe.

    >>> rows = np.array([[0.5, 2.0, 7.0], [1.5, 0.0, 3.0]])
    >>> make_family("diag", rows, 1e-6).n_parameters(2)
    12
    >>> family = make_family([("diag", [0]), ("categorical", [1]), ("poisson", [2])], rows, 1e-6)
    >>> family.n_parameters(2)
    10
    """
    if not isinstance(description, str | Sequence):
        raise ValueError(f"family must be a name or a list of (name, columns), got {description!r}")
    if isinstance(description, str):
        family = _named(description, rows, reg_covar, parents, range(rows.shape[1]), low_rank)
    else:
        groups = [_group(part) for part in description]
        _require_cover(groups, rows.shape[1])
        if len(groups) > 1 and any(name == StudentT.name for name, _ in groups):
            raise ValueError(
                f"family {StudentT.name!r} is for all columns together, not for groups"
            )
        family = Product(
            [
                (_named(name, rows, reg_covar, parents, columns, low_rank), columns)
                for name, columns in groups
            ]
        )
    problem = family.check(rows)
    if problem is not None:
        raise ValueError(f"family={description!r}: {problem}")
    return family


def _named(
    name: str,
    rows: np.ndarray,
    reg_covar: Floors,
    parents: np.ndarray | None,
    columns: Sequence[int],
    low_rank: Constructor | None,
) -> Family:
    if name not in FAMILIES:
        raise ValueError(f"family must be one of {sorted(FAMILIES)}, got {name!r}")
    make = low_rank if low_rank and name == LowRankGaussian.name else FAMILIES[name]
    floors = np.asarray(reg_covar)[list(columns)] if np.ndim(reg_covar) else reg_covar
    family = make(rows[:, columns], floors)
    above = [-1] if parents is None else [int(parents[column]) for column in columns]
    if max(above) < 0:
        return family
    if not isinstance(family, Categorical):
        raise ValueError(f"parents are for categories, got some for columns of family {name!r}")
    places = {column: place for place, column in enumerate(columns)}
    # Columns of other groups are no parents, which the tree refuses.
    within = [places.get(parent, len(columns)) if parent >= 0 else -1 for parent in above]
    return TreeCategorical(family.n_levels, within)


def _group(part: tuple[str, Sequence[int]]) -> tuple[str, list[int]]:
    try:
        name, columns = part
        numbers = [int(column) for column in columns]
        sound = isinstance(name, str) and numbers == list(columns)
    except (TypeError, ValueError):
        sound = False
    if not sound:
        raise ValueError(
            "family must be a name or a list of (name, columns) with numbers of columns, such as "
            f'[("full", [0, 1]), ("categorical", [2])], got the group {part!r}'
        )
    return name, numbers


def _require_cover(groups: Sequence[tuple[str, Sequence[int]]], n_columns: int) -> None:
    if not groups or not all(columns for _, columns in groups):
        raise ValueError("family must have a column in every group, and at least one group")
    named = np.array([column for _, columns in groups for column in columns])
    outside = named[(named < 0) | (named >= n_columns)]
    if outside.size:
        raise ValueError(
            f"family names column {outside[0]}, but columns are numbered 0 to {n_columns - 1}"
        )
    times = np.bincount(named, minlength=n_columns)
    if (times != 1).any():
        column = int(np.flatnonzero(times != 1)[0])
        raise ValueError(
            "family must name every column in one group, "
            f"but column {column} stands in {times[column]}"
        )


def describe_family(family: Family) -> str | list[tuple[str, list[int]]]:
    """The description from which `make_family` makes a family, with its `limits` as a row."""
    groups = family.column_groups()
    if groups is None:
        return family.name
    return [(inner.name, columns.tolist()) for inner, columns in groups]


def restrict_family(family: Family, columns: np.ndarray) -> Family:
    """The family of some of the columns (d,), in a new order, without regularisation."""
    groups = family.column_groups()
    if isinstance(family, LowRankGaussian):
        return family.restricted(columns.shape[0])
    if isinstance(family, TreeCategorical):
        return family.restricted(columns)
    if groups is None:
        return FAMILIES[family.name](family.limits()[None, columns], 0.0)
    restricted = []
    for inner, own_columns in groups:
        among = np.flatnonzero(np.isin(columns, own_columns))
        if among.size:
            in_order = np.argsort(own_columns)
            places = np.searchsorted(own_columns, columns[among], sorter=in_order)
            try:
                narrowed = restrict_family(inner, in_order[places])
            except TreeOfColumnsError as error:
                # It numbers the columns of the group.
                raise TreeOfColumnsError(int(own_columns[error.column])) from None
            restricted.append((narrowed, among.tolist()))
    return Product(restricted)

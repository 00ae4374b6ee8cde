"""Columns with their gaps filled."""

from __future__ import annotations

from typing import Any

import numpy as np

from pickmix.data.typed_checks import as_numbers, as_times, settled, zone_of
from pickmix.data.typed_encoding import decode_column
from pickmix.data.typed_levels import as_fitted, level_places
from pickmix.data.typed_schema import LEVEL_KINDS, ColumnSchema
from pickmix.data.typed_tables import TypedColumn, as_objects


def filled_column(
    schema: ColumnSchema,
    column: TypedColumn,
    coordinates: np.ndarray,
    random: np.random.Generator | np.random.RandomState | None = None,
    same_origin: bool = True,
) -> TypedColumn:
    """A column with its gaps filled by what coordinates (N,) stand for, other values as they are.

    A column of another type than the fit had, such as numbers where levels are text, gets that of
    the fit, or a plain one unless both tables are of one kind (`same_origin`).

    Examples
    --------
    >>> from pickmix.data.typed_tables import from_objects
    >>> levels = {"levels": ("1", "x"), "codes": (0, 1), "shares": (1.0, 1.0)}
    >>> schema = ColumnSchema("c", "category", "text", **levels)
    >>> found = filled_column(schema, from_objects("c", [1.0, None], {}), np.array([0.0, 1.0]))
    >>> [found.value(row) for row in range(2)]
    ['1', 'x']
    """
    column = settled(schema, as_fitted(schema, column))
    gaps = np.flatnonzero(column.missing)
    found = decode_column(schema, coordinates[gaps], random)
    complete = np.zeros_like(column.missing)
    form, fitted_form = column.form, schema.form if same_origin else {}
    if column.missing.all():
        # Nothing says what the column is; of pandas, say, floats or objects.
        same = found.storage == column.storage and form.get("dtype") not in (None, "null")
        same = same and (zone_of(form) is not None or zone_of(fitted_form) is None)
        form = form if same else fitted_form
        return TypedColumn(found.storage, found.values, complete, found.levels, form)
    if found.levels is not None and column.levels is None:
        column, n_unseen = _as_levels(schema, column)
        form = fitted_form if n_unseen == 0 else {}
    if column.levels is not None and schema.kind in (*LEVEL_KINDS, "constant"):
        added: list[Any] = [*found.levels] if found.levels is not None else []
        numbers = found.values
        if found.levels is None:
            # Text for what was numbers or times in the fit: it stays text.
            added, numbers = list(map(str, found.values.tolist())), np.arange(gaps.shape[0])
        values = column.values.copy()
        values[gaps] = len(column.levels) + numbers
        return TypedColumn("text", values, complete, as_objects([*column.levels, *added]), form)
    if found.storage == "time":
        column = as_times(schema.name, column)
    elif found.storage == "number":
        column = as_numbers(schema.name, column)
    filled = column.values.astype(np.promote_types(column.values.dtype, found.values.dtype))
    filled[gaps] = found.values
    return TypedColumn(found.storage, filled, complete, None, column.form)


def _as_levels(schema: ColumnSchema, column: TypedColumn) -> tuple[TypedColumn, int]:
    """Numbers or the like as the levels that they stand for, and how many stand for none."""
    places, _ = level_places(schema, column)
    unseen = np.flatnonzero((places < 0) & ~column.missing)
    texts = [str(column.value(row)) for row in unseen.tolist()]
    values = np.where(places < 0, 0, places)
    values[unseen] = len(schema.levels) + np.arange(len(texts))
    levels = as_objects([*schema.levels, *texts])
    return TypedColumn("text", values, column.missing, levels), len(texts)

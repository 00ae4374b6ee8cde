"""Levels of categories: which level of the fit a value of another table is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pickmix.data.typed_checks import level_values
from pickmix.data.typed_schema import ColumnSchema
from pickmix.data.typed_tables import TypedColumn, as_objects

_WORDS = {"true": True, "false": False}


def as_fitted(schema: ColumnSchema, column: TypedColumn) -> TypedColumn:
    """The column as it was written if the fit took the cells for text, else as it is."""
    if column.written is not None and schema.storage == "text":
        return column.written
    return column


def level_places(schema: ColumnSchema, column: TypedColumn) -> tuple[np.ndarray, list[Any]]:
    """Where each value (N,) stands in the levels of a category, and values that are no level.

    Places are -1 where nothing was seen or the level is unknown. A value is a level if both are
    equal, or spelled in the same way, or the same number, or both true or both false.

    Examples
    --------
    >>> from pickmix.data.typed_tables import from_objects
    >>> schema = ColumnSchema("size", "category", "text", levels=("1.50", "2.00", "none"))
    >>> level_places(schema, from_objects("size", [2.0, None, 3.0, 1.5], {}))
    (array([ 1, -1, -1,  0]), [3.0])
    """
    column = as_fitted(schema, column)
    if column.missing.all():
        return np.full(column.missing.shape, -1, dtype=np.int64), []
    if schema.storage == column.storage == "time":
        column = _in_unit_of(schema, column)
    values, numbers = level_values(column)
    known: dict[Any, int] = {level: place for place, level in enumerate(schema.levels)}
    spelled = {str(level): place for place, level in enumerate(schema.levels)}
    meant: dict[Any, int] | None = None
    places = np.full(len(values), -1, dtype=np.int64)
    for number, value in enumerate(values):
        place = known.get(value, spelled.get(str(value), -1))
        both_text = isinstance(value, str) and schema.storage == "text"
        if place < 0 and not both_text:
            meant = _meanings(schema.levels) if meant is None else meant
            place = meant.get(_meaning(value), -1)
        places[number] = place
    unseen = [value for value, place in zip(values, places.tolist(), strict=True) if place < 0]
    return np.where(column.missing, -1, places[numbers]), unseen


def _in_unit_of(schema: ColumnSchema, column: TypedColumn) -> TypedColumn:
    """Times in the unit of the levels if they are whole there, so that they are spelled alike."""
    letter = "m" if schema.form.get("duration") else "M"
    whole = column.values.astype(np.array(schema.levels, dtype=f"{letter}8").dtype)
    return replace(column, values=whole) if (whole == column.values).all() else column


def _meaning(value: Any) -> tuple[str, Any]:
    """The truth value or the number that a level spells; itself if it spells none."""
    word = _WORDS.get(str(value).lower())
    if word is not None:
        return "boolean", word
    try:
        return "number", float(value)
    except (TypeError, ValueError):
        return "text", str(value)


def _meanings(levels: Sequence[Any]) -> dict[Any, int]:
    """Places of levels by what they mean; without those that mean the same as another."""
    found: dict[Any, int] = {}
    for place, level in enumerate(levels):
        meaning = _meaning(level)
        found[meaning] = -1 if meaning in found else place
    return found


def levels_of(schema: ColumnSchema, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Values (N,) of a column of levels by their places, and the levels if it is text."""
    if schema.storage == "text":
        return numbers, as_objects(schema.levels)
    if schema.storage == "time":
        letter = "m" if schema.form.get("duration") else "M"
        return np.array(schema.levels, dtype=f"{letter}8")[numbers], None
    return np.array(schema.levels)[numbers], None


def usual_levels(schema: ColumnSchema) -> np.ndarray:
    """The place (C,) of the most frequent level of each code."""
    of_level = np.array(schema.codes)
    order = np.argsort(np.array(schema.shares), kind="stable")
    usual = np.zeros(of_level.max() + 1, dtype=np.int64)
    usual[of_level[order]] = order
    return usual


def level_weights(schema: ColumnSchema) -> np.ndarray | None:
    """Share (C,) of the most frequent level of each code; None if no levels share a code.

    The most probable level is the one with the largest product of this and its code's probability.
    """
    if not schema.codes or max(schema.codes) + 1 == len(schema.codes):
        return None
    return np.asarray(np.array(schema.shares)[usual_levels(schema)])

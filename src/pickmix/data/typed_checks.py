"""Columns as a kind needs them: conversions, and what is refused with column, row and value."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pickmix.data.typed_kinds import parse_numbers, parse_times, readable_cells
from pickmix.data.typed_schema import ColumnSchema
from pickmix.data.typed_tables import TypedColumn

_PACKAGE = str(Path(__file__).resolve().parents[1])
_ZONE = re.compile(r"\[\w+, *(?:tz=)?([^\]]+)\]")
#: Kinds whose cells may be written as text.
READ_KINDS = ("number", "integer", "count", "date")


def warn_caller(message: str) -> None:
    """Warn in the name of the line that called pickmix."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)


def without_unreadable(column: TypedColumn, kind: str) -> TypedColumn:
    """A column of text in which what spells no number, or no date, is missing."""
    return replace(column, missing=~readable_cells(column, kind))


def settled(schema: ColumnSchema, column: TypedColumn) -> TypedColumn:
    """A column of another table, in which cells are missing that the schema takes for missing."""
    if schema.lenient and column.storage == "text" and schema.kind in READ_KINDS:
        return without_unreadable(column, schema.kind)
    return column


def check_usable(column: TypedColumn) -> None:
    """Refuse a column that no model can have."""
    if column.problem:
        raise ValueError(column.problem)


def zone_of(form: Mapping[str, Any]) -> str | None:
    """The time zone of a column of times, None if it has none."""
    found = _ZONE.search(str(form.get("dtype", "")))
    zone = found[1].strip() if found else form.get("time_zone") or form.get("text_zone")
    return str(zone) if zone else None


def check_finite(name: str, column: TypedColumn) -> None:
    """Refuse infinities."""
    if column.values.dtype.kind == "f":
        bad = np.isinf(column.values) & ~column.missing
        if bad.any():
            row = int(bad.argmax())
            raise ValueError(
                f"Column {name!r} must hold finite numbers, but row {row} holds "
                f"{column.values[row]}."
            )


def as_numbers(name: str, column: TypedColumn) -> TypedColumn:
    """A column as numbers; text must spell them."""
    found: TypedColumn | None = column
    level = None
    if column.storage == "time":
        level = column.value(int((~column.missing).argmax()))
        found = None
    elif column.storage != "number":
        found, level = parse_numbers(column)
    if found is None:
        raise wrong_kind(name, column, level, "numbers")
    check_finite(name, found)
    return found


def as_times(name: str, column: TypedColumn) -> TypedColumn:
    """A column as times; text must spell them as ISO dates."""
    if column.storage == "time":
        return column
    found, level = None, None
    if column.storage == "text":
        found, level = parse_times(column)
    else:
        level = column.value(int((~column.missing).argmax()))
    if found is None:
        raise wrong_kind(name, column, level, "dates, such as 2024-05-31")
    return found


def check_counts(name: str, column: TypedColumn) -> None:
    """Refuse what is no count."""
    values = column.values
    bad = ~((values >= 0) & (values == np.rint(values))) & ~column.missing
    if bad.any():
        raise wrong_kind(name, column, column.value(int(bad.argmax())), "whole numbers from 0 on")


def check_booleans(name: str, column: TypedColumn) -> None:
    """Refuse what is neither true nor false."""
    if column.storage == "boolean":
        return
    bad = ~column.missing
    if column.storage == "number":
        bad &= (column.values != 0) & (column.values != 1)
    if bad.any():
        raise wrong_kind(
            name, column, column.value(int(bad.argmax())), "true and false, or 1 and 0"
        )


def wrong_kind(name: str, column: TypedColumn, value: Any, wanted: str) -> ValueError:
    """What to say of a value that is of another kind than its column."""
    there = ~column.missing
    for row in np.flatnonzero(there).tolist():
        if column.value(row) == value:
            return ValueError(f"Column {name!r} must hold {wanted}, but row {row} holds {value!r}.")
    return ValueError(f"Column {name!r} must hold {wanted}, got {value!r}.")


def level_values(column: TypedColumn) -> tuple[list[Any], np.ndarray]:
    """The different values of a column, sorted, and the number (N,) of each row's among them."""
    used, numbers = np.unique(column.values, return_inverse=True)
    seen = np.zeros(used.shape[0], dtype=np.bool_)
    seen[numbers[~column.missing]] = True
    if column.levels is not None:
        values = [column.levels[code] for code in used.tolist()]
        texts = not all(isinstance(value, int | float) for value in values)
        order = sorted(
            np.flatnonzero(seen).tolist(), key=lambda n: str(values[n]) if texts else values[n]
        )
    else:
        values = used.astype(str).tolist() if column.storage == "time" else used.tolist()
        order = np.flatnonzero(seen).tolist()
    place = np.zeros(used.shape[0], dtype=np.int64)
    place[order] = np.arange(len(order))
    return [values[n] for n in order], place[numbers]

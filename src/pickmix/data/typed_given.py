"""Values that a question gives for some columns: what they mean to a model, and giving them back.

An unknown level or a value of another kind is a mistake here, and not a gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pickmix.data.typed_checks import as_numbers, as_times, settled, zone_of
from pickmix.data.typed_encoding import decode_column, encode, encode_column
from pickmix.data.typed_levels import level_places, levels_of
from pickmix.data.typed_readers import read_typed
from pickmix.data.typed_schema import ColumnSchema, TableSchema
from pickmix.data.typed_tables import TypedColumn, TypedTable

_UNITS = {"D": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_UNITS |= {"ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


def is_single(value: Any) -> bool:
    """Whether this is one value, and not several."""
    if isinstance(value, np.ndarray):
        return value.ndim == 0
    return isinstance(value, str) or not hasattr(value, "__len__")


def n_given(given: Mapping[str, Any]) -> int | None:
    """How many values are given for a column; None if there is one for each."""
    return next((len(value) for value in given.values() if not is_single(value)), None)


def given_rows(schema: TableSchema, given: Mapping[str, Any], n_rows: int) -> TypedTable | None:
    """A table of `n_rows` rows out of single values, or of n values, by column.

    None if only the values of constant columns are given, which say nothing.

    Examples
    --------
    >>> from pickmix.data.typed_inference import infer_schema
    >>> schema = infer_schema(read_typed({"x": [1, 4], "unit": ["kg", "kg"]}))
    >>> given_rows(schema, {"x": 4, "unit": "kg"}, 2).columns["x"].values
    array([4, 4])
    """
    listed: dict[str, Any] = {}
    for name, value in given.items():
        known = schema.columns.get(name)
        if known is None or known.kind == "skip":
            names = ", ".join(repr(column.name) for column in schema.modelled)
            raise ValueError(f"given names {name!r}, expected columns of the model: {names}.")
        if is_single(value):
            value = value[()] if isinstance(value, np.ndarray) else value
            listed[name] = [value] * n_rows
            if read_typed({name: [value]}).columns[name].missing[0]:
                raise ValueError(
                    f"given[{name!r}] must be a value, got {value!r}. Leave the column out if "
                    "nothing is known of it."
                )
        else:
            listed[name] = value
        if len(listed[name]) != n_rows:
            raise ValueError(
                f"given[{name!r}] must be one value or {n_rows}, got {len(listed[name])}."
            )
    if not listed:
        return None
    table = read_typed(listed)
    for name in listed:
        if schema[name].kind == "constant":
            _check_constant(schema[name], table.columns.pop(name))
    return table if table.columns else None


def _check_constant(schema: ColumnSchema, column: TypedColumn) -> None:
    if column.missing.all():
        return
    if schema.storage == "time":
        times = as_times(schema.name, column)
        other = times.values != decode_column(schema, np.zeros(1)).values[0]
    else:
        other = level_places(schema, column)[0] < 0
    other &= ~column.missing
    if other.any():
        raise ValueError(
            f"given[{schema.name!r}] must be {schema.levels[0]!r}, the only value in the fit, got "
            f"{column.value(int(other.argmax()))!r}."
        )


def encode_given(schema: TableSchema, table: TypedTable) -> np.ndarray:
    """Rows (n, D) of given values, NaN where nothing is given."""
    for column in schema.modelled:
        if column.name in table.columns:
            _check_given(column, table.columns[column.name])
    return encode(schema, table, [column.name for column in schema.modelled])[0]


def _check_given(schema: ColumnSchema, column: TypedColumn) -> None:
    """Refuse what the model cannot take, in the name of the parameter."""
    place = f"given[{schema.name!r}]"
    if schema.kind == "category":
        unseen = level_places(schema, column)[1]
        if unseen:
            raise ValueError(
                f"{place} must be a level that the fit has seen, got {min(unseen, key=str)!r}."
            )
        return
    if schema.kind == "boolean" and column.storage == "number":
        wrong = (column.values != 0) & (column.values != 1) & ~column.missing
        if wrong.any():
            value = column.value(int(wrong.argmax()))
            raise ValueError(f"{place} must be true or false, or 1 or 0, got {value!r}.")
    if schema.lenient:
        column = replace(column, missing=column.missing & settled(schema, column).missing)
        schema = replace(schema, lenient=False)
    try:
        encode_column(schema, column)
    except ValueError as error:
        message = str(error).replace(f"Column {schema.name!r}", place, 1)
        if column.missing.shape[0] == 1:
            message = message.replace("but row 0 holds", "got")
        raise ValueError(message) from error
    zone = zone_of(schema.form)
    if schema.kind == "date" and zone and not column.missing.all():
        times = as_times(schema.name, column)
        if "text_zone" not in schema.form and zone_of(times.form) is None:
            raise ValueError(
                f"{place} must have a time zone, as the column has ({zone}), got "
                f"{column.value(int((~column.missing).argmax()))!r}. A Z after a time in text "
                "stands for UTC."
            )


def as_given(schema: ColumnSchema, given: TypedColumn, drawn: TypedColumn) -> TypedColumn:
    """A drawn column with the given values in it, to the last digit, each for as many rows."""
    given = given.take(np.repeat(np.arange(given.missing.shape[0]), _each(given, drawn)))
    there = ~given.missing
    if not there.any() or schema.kind == "boolean":
        return drawn
    values = drawn.values.copy()
    if schema.kind == "category":
        places = level_places(schema, given)[0]
        values[there] = levels_of(schema, places[there])[0]
    elif schema.kind == "date":
        times = as_times(schema.name, given).values
        whole = times.astype(values.dtype)
        _refuse(schema, given, there & (whole != times), f"a time of whole {_UNITS[schema.unit]}")
        values[there] = whole[there]
    else:
        numbers = as_numbers(schema.name, given).values
        if schema.whole:
            broken = there & (numbers != np.rint(numbers))
            _refuse(schema, given, broken, "a whole number, as all values in the fit are")
        values = values.astype(np.promote_types(values.dtype, numbers.dtype))
        if schema.whole and values.dtype.kind == "f":
            values = drawn.values.astype(np.int64)
        values[there] = numbers[there]
    return replace(drawn, values=values)


def _each(given: TypedColumn, drawn: TypedColumn) -> int:
    return int(drawn.missing.shape[0] // given.missing.shape[0])


def _refuse(schema: ColumnSchema, given: TypedColumn, wrong: np.ndarray, wanted: str) -> None:
    if wrong.any():
        value = given.value(int(wrong.argmax()))
        raise ValueError(f"given[{schema.name!r}] must be {wanted}, got {value!r}.")

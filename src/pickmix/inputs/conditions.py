"""Values that a query gives for some columns: what they mean to a model, and giving them back.

An unknown level or a value of another kind is a mistake here, and not a gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pickmix.inputs.columns import TypedColumn, TypedTable
from pickmix.inputs.encoding import decode_column, encode, encode_column, level_places, levels_of
from pickmix.inputs.errors import InputError, listed, shown
from pickmix.inputs.frames import read_typed, zone_of
from pickmix.inputs.kinds import as_numbers, as_times, settled
from pickmix.inputs.schema import UNITS, ColumnSchema, TableSchema


def is_single(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 0
    return isinstance(value, str) or not hasattr(value, "__len__")


def n_given(given: Mapping[str, Any]) -> int | None:
    """Return how many values are given for a column; None if there is one for each."""
    return next((len(value) for value in given.values() if not is_single(value)), None)


def _wrong(column: str, problem: str, value: Any = None, remedy: str = "") -> InputError:
    return InputError(problem, parameter="given", column=column, value=value, remedy=remedy)


def given_rows(schema: TableSchema, given: Mapping[str, Any], n_rows: int) -> TypedTable | None:
    """Make a table of `n_rows` rows out of single values, or of n values, by column.

    None if only the values of constant columns are given, which say nothing.
    """
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in schema.columns or schema[name].kind == "skip":
            names = listed(column.name for column in schema.modelled)
            raise ValueError(f"given names {shown(name)}, expected columns of the model: {names}.")
        values[name] = value
        if is_single(value):
            value = value[()] if isinstance(value, np.ndarray) else value
            values[name] = [value] * n_rows
            if read_typed({name: [value]}).columns[name].missing[0]:
                remedy = "Leave the column out if nothing is known of it."
                raise _wrong(name, f"must be a value, got {shown(value)}", remedy=remedy)
        if len(values[name]) != n_rows:
            raise _wrong(name, f"must be one value or {n_rows}", len(values[name]))
    if not values:
        return None
    table = read_typed(values)
    for name in values:
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
    problem = f"must be {shown(schema.levels[0])}, the only value in the fit"
    _refuse(schema, column, other & ~column.missing, problem)


def _refuse(schema: ColumnSchema, given: TypedColumn, wrong: np.ndarray, problem: str) -> None:
    if wrong.any():
        raise _wrong(schema.name, problem, given.value(int(wrong.argmax())))


def encode_given(schema: TableSchema, table: TypedTable) -> np.ndarray:
    """Return rows (n, D) of given values, NaN where nothing is given."""
    for column in schema.modelled:
        if column.name in table.columns:
            _check_given(column, table.columns[column.name])
    return encode(schema, table, [column.name for column in schema.modelled])[0]


def _check_given(schema: ColumnSchema, column: TypedColumn) -> None:
    if schema.kind == "category":
        unseen = level_places(schema, column)[1]
        if unseen:
            problem = "must be a level that the fit has seen"
            raise _wrong(schema.name, problem, min(unseen, key=str))
        return
    if schema.kind == "boolean" and column.storage == "number":
        wrong = (column.values != 0) & (column.values != 1) & ~column.missing
        _refuse(schema, column, wrong, "must be true or false, or 1 or 0")
    if schema.lenient:
        column = replace(column, missing=column.missing & settled(schema, column).missing)
        schema = replace(schema, lenient=False)
    try:
        encode_column(schema, column)
    except InputError as error:
        row = None if column.missing.shape[0] == 1 else error.row
        raise error.replaced(parameter="given", row=row) from error
    zone = zone_of(schema.form)
    if schema.kind == "date" and zone and not column.missing.all():
        times = as_times(schema.name, column)
        if "text_zone" not in schema.form and zone_of(times.form) is None:
            problem = f"must have a time zone, as the column has ({zone})"
            remedy = "A Z after a time in text stands for UTC."
            raise _wrong(schema.name, problem, column.value(column.first), remedy)


def as_given(schema: ColumnSchema, given: TypedColumn, drawn: TypedColumn) -> TypedColumn:
    """Put the given values into a drawn column, to the last digit, each for as many rows."""
    n_given, n_drawn = given.missing.shape[0], drawn.missing.shape[0]
    given = given.take(np.repeat(np.arange(n_given), n_drawn // n_given))
    known = ~given.missing
    if not known.any() or schema.kind == "boolean":
        return drawn
    values = drawn.values.copy()
    if schema.kind == "category":
        values[known] = levels_of(schema, level_places(schema, given)[0][known])[0]
    elif schema.kind == "date":
        times = as_times(schema.name, given).values
        whole = times.astype(values.dtype)
        problem = f"must be a time of whole {UNITS[schema.unit]}"
        _refuse(schema, given, known & (whole != times), problem)
        values[known] = whole[known]
    else:
        numbers = as_numbers(schema.name, given).values
        if schema.whole:
            problem = "must be a whole number, as all values in the fit are"
            _refuse(schema, given, known & (numbers != np.rint(numbers)), problem)
        values = values.astype(np.promote_types(values.dtype, numbers.dtype))
        if schema.whole and values.dtype.kind == "f":
            values = drawn.values.astype(np.int64)
        values[known] = numbers[known]
    return replace(drawn, values=values)

"""Typed tables as rows of numbers with NaN for gaps, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pickmix.data.typed_checks import (
    as_numbers,
    as_times,
    check_booleans,
    check_counts,
    check_usable,
    level_values,
    settled,
    warn_caller,
)
from pickmix.data.typed_kinds import Step, from_origin
from pickmix.data.typed_levels import as_fitted, level_places, levels_of, usual_levels
from pickmix.data.typed_schema import (
    DAY,
    GAUSSIAN_KINDS,
    LEVEL_KINDS,
    ColumnSchema,
    TableSchema,
)
from pickmix.data.typed_tables import TypedColumn, TypedTable, whole_array

# Levels that a warning names.
_MOST_NAMED = 3


def encode(
    schema: TableSchema, table: TypedTable, absent: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a model, and what their log-densities gain in the units of the table.

    Parameters
    ----------
    schema : TableSchema
    table : TypedTable
        Columns that the schema does not know are not looked at.
    absent : sequence of str
        Columns that the table need not have; others that it lacks are warned of.

    Returns
    -------
    rows : (N, D) array
        The columns of `schema.modelled`: numbers and dates in units of their spread, codes of
        levels, counts. NaN where nothing is known.
    log_units : (N, D) array
        log p(value) - log p(coordinate): -log(scale) of a number, the log-share of a level that
        shares a code with others, else 0.

    Examples
    --------
    >>> from pickmix.data.typed_inference import infer_schema
    >>> from pickmix.data.typed_readers import read_typed
    >>> table = read_typed({"x": [0.0, 4.0, None], "y": ["a", "b", "b"]})
    >>> rows, log_units = encode(infer_schema(table), table)
    >>> rows
    array([[ 0.,  0.],
           [ 2.,  1.],
           [nan,  1.]])
    >>> log_units[:, 0].round(2)
    array([-0.69, -0.69,  0.  ])
    """
    if table.n_rows == 0:
        raise ValueError("The table must have rows, got none.")
    lacking = [c.name for c in schema.modelled if c.name not in table.columns]
    if len(lacking) == len(schema.modelled):
        raise ValueError(
            f"The table must have columns of the fitted one ({', '.join(map(repr, lacking))}), "
            f"got {', '.join(map(repr, table.columns))}."
        )
    unasked = [name for name in lacking if name not in absent]
    if unasked:
        warn_caller(f"The table lacks {_named(unasked)}: all cells there count as missing.")
    rows = np.full((table.n_rows, len(schema.modelled)), np.nan)
    log_units = np.zeros_like(rows)
    for place, column in enumerate(schema.modelled):
        if column.name in table.columns:
            own = encode_column(column, table.columns[column.name])
            rows[:, place], log_units[:, place] = own
    for column in schema.columns.values():
        if column.kind == "constant" and column.name in table.columns:
            _check_constant(column, table.columns[column.name])
    return rows, log_units


def _named(names: Sequence[str]) -> str:
    return f"the column{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))}"


def encode_column(
    schema: ColumnSchema, column: TypedColumn
) -> tuple[np.ndarray, np.ndarray | float]:
    """Coordinates (N,) of a column, and what log-densities gain by its units."""
    check_usable(column)
    column = _readable(schema, column)
    if column.missing.all():
        return np.full(column.values.shape[0], np.nan), 0.0
    if schema.kind in LEVEL_KINDS:
        return _encode_levels(schema, column)
    if schema.kind == "date":
        times = as_times(schema.name, column)
        letter = "m" if schema.form.get("duration") else "M"
        if times.values.dtype.kind != letter:
            raise ValueError(
                f"Column {schema.name!r} must hold {'durations' if letter == 'm' else 'dates'}, "
                f"but row {int((~times.missing).argmax())} holds "
                f"{times.value(int((~times.missing).argmax()))!r}."
            )
        values = (times.values - _origin(schema)) / DAY
    else:
        found = as_numbers(schema.name, column)
        if schema.kind == "count":
            check_counts(schema.name, found)
        values = from_origin(found.values, schema.origin)
    # What stands at missing places may be anything.
    coordinates = np.where(column.missing, np.nan, values) / schema.scale
    if schema.kind not in GAUSSIAN_KINDS:
        return coordinates, 0.0
    return coordinates, np.where(column.missing, 0.0, -np.log(schema.scale))


def _readable(schema: ColumnSchema, column: TypedColumn) -> TypedColumn:
    """The column without what is no number or date, if the fit has left such cells out, too."""
    found = settled(schema, column)
    lost = found.missing & ~column.missing
    if lost.any():
        warn_caller(
            f"Column {schema.name!r} holds {int(np.count_nonzero(lost)):,} value(s) that are no "
            f"{'dates' if schema.kind == 'date' else 'numbers'}, such as "
            f"{column.value(int(lost.argmax()))!r}. They count as missing."
        )
    return found


def _origin(schema: ColumnSchema) -> Any:
    make: Any = np.timedelta64 if schema.form.get("duration") else np.datetime64
    return make(schema.origin, schema.unit)


def _encode_levels(schema: ColumnSchema, column: TypedColumn) -> tuple[np.ndarray, np.ndarray]:
    if schema.kind == "boolean":
        if schema.storage == "number" and column.storage == "number":
            column = _known_booleans(schema, column)
        check_booleans(schema.name, column)
        return np.where(column.missing, np.nan, column.values.astype(np.float64)), np.zeros(1)
    found, unseen = level_places(schema, column)
    if unseen:
        _warn_of_unseen(schema, list(map(repr, unseen)), (found < 0) & ~column.missing)
    codes = np.append(np.array(schema.codes, dtype=np.float64), np.nan)
    log_shares = np.append(np.log(np.array(schema.shares)), 0.0)
    return codes[found], log_shares[found]


def _known_booleans(schema: ColumnSchema, column: TypedColumn) -> TypedColumn:
    """Numbers that were 0 and 1 in the fit; others are levels that it has not seen."""
    unseen = (column.values != 0) & (column.values != 1) & ~column.missing
    if not unseen.any():
        return column
    _warn_of_unseen(schema, [f"{value:g}" for value in np.unique(column.values[unseen])], unseen)
    return replace(column, missing=column.missing | unseen)


def _warn_of_unseen(schema: ColumnSchema, levels: Sequence[str], unseen: np.ndarray) -> None:
    more = f" and {len(levels) - _MOST_NAMED} more" if len(levels) > _MOST_NAMED else ""
    warn_caller(
        f"Column {schema.name!r} holds levels that were not there in the fit: "
        f"{', '.join(levels[:_MOST_NAMED])}{more}. Their {int(np.count_nonzero(unseen))} cell(s) "
        "count as missing."
    )


def _check_constant(schema: ColumnSchema, column: TypedColumn) -> None:
    """Say if a column that had one value in the fit has others now."""
    check_usable(column)
    column = as_fitted(schema, column)
    if column.missing.all():
        return
    constant = decode_column(schema, np.zeros(1))
    if constant.storage == column.storage and constant.levels is None:
        other = ~column.missing & (column.values != constant.values[0])
    else:
        values, numbers = level_values(column)
        same = [str(value) == str(schema.levels[0]) for value in values]
        other = ~column.missing & ~np.array(same)[numbers]
    if other.any():
        warn_caller(
            f"Column {schema.name!r} was constant in the fit ({schema.levels[0]!r}), so it is not "
            f"part of the model: {int(np.count_nonzero(other))} row(s) with other values, such as "
            f"{column.value(int(other.argmax()))!r}, are not marked by it."
        )


def decode(
    schema: TableSchema,
    rows: np.ndarray,
    columns: Sequence[str] | None = None,
    random: np.random.Generator | np.random.RandomState | None = None,
) -> TypedTable:
    """The table of rows (N, D) of a model; constants are put back.

    Parameters
    ----------
    schema : TableSchema
    rows : (N, D) array without NaN
    columns : sequence of str, default=None
        Which columns; None is all that the schema knows but those it skips.
    random : optional
        Draws levels that share a code by their shares; without it the most frequent one stands
        for all of them.
    """
    place = {column.name: number for number, column in enumerate(schema.modelled)}
    names = list(schema.columns) if columns is None else list(columns)
    found: dict[str, TypedColumn] = {}
    for name in names:
        column = schema.columns[name]
        if column.kind == "skip":
            continue
        own = rows[:, place[name]] if name in place else np.zeros(rows.shape[0])
        found[name] = decode_column(column, own, random)
    return TypedTable(found, rows.shape[0], schema.origin)


def decode_column(
    schema: ColumnSchema,
    coordinates: np.ndarray,
    random: np.random.Generator | np.random.RandomState | None = None,
) -> TypedColumn:
    """The values (N,) of coordinates (N,) that hold no NaN."""
    missing = np.zeros(coordinates.shape[0], dtype=np.bool_)

    def made(values: np.ndarray, levels: np.ndarray | None = None) -> TypedColumn:
        return TypedColumn(schema.storage, values, missing, levels, schema.form)

    if schema.kind == "constant" and schema.storage == "time":
        return made(np.full(missing.shape, _origin(schema)))
    if schema.kind in LEVEL_KINDS or schema.kind == "constant":
        return _decode_levels(schema, coordinates, random, made)
    if schema.kind == "date":
        n_steps = coordinates * (schema.scale / float(schema.step or 1.0))
        whole = np.rint(n_steps).astype(np.int64) * schema.multiple
        return made(_origin(schema) + whole.astype(f"m8[{schema.unit}]"))
    values = coordinates * schema.scale
    if schema.origin:
        steps = Step(schema.multiple, schema.decimals).snap(values)
        return made(_from_large(schema, np.rint(steps)))
    if schema.kind == "count":
        values = np.rint(values)
    elif schema.kind == "integer":
        values = Step(schema.multiple, schema.decimals).snap(values)
    # Beyond that they are no int64; the writer knows their type.
    fits = schema.whole and bool((np.abs(values) < 2.0**63).all())
    return made(np.rint(values).astype(np.int64) if fits else values)


def _from_large(schema: ColumnSchema, differences: np.ndarray) -> np.ndarray:
    """The sums (N,) of a large origin and whole numbers, not rounded, as far as 64 bits go."""
    sums = [schema.origin + int(difference) for difference in differences.tolist()]
    signed = schema.highest < 2**63
    lowest, highest = (-(2**63), 2**63 - 1) if signed else (0, 2**64 - 1)
    found = whole_array([min(max(value, lowest), highest) for value in sums])
    assert found is not None
    return found


def _decode_levels(
    schema: ColumnSchema, coordinates: np.ndarray, random: Any, made: Callable[..., TypedColumn]
) -> TypedColumn:
    codes = coordinates.astype(np.int64)
    if schema.kind == "boolean":
        if schema.storage == "boolean":
            return made(codes == 1)
        return made(codes if schema.whole else codes.astype(np.float64))
    numbers = usual_levels(schema)[codes]
    of_level = np.array(schema.codes)
    n_alike = np.bincount(of_level)
    if random is not None and n_alike.max() > 1:
        shares = np.array(schema.shares)
        pooled = int(n_alike.argmax())
        alike = np.flatnonzero(of_level == pooled)
        drawn = codes == pooled
        numbers[drawn] = random.choice(
            alike, size=int(np.count_nonzero(drawn)), p=shares[alike] / shares[alike].sum()
        )
    return made(*levels_of(schema, numbers))


def level_names(schema: ColumnSchema) -> list[Any]:
    """What stands for each code of a column of levels: its most frequent level."""
    column = decode_column(schema, np.arange(max(schema.codes) + 1, dtype=np.float64))
    if column.levels is not None:
        return [column.levels[number] for number in column.values.tolist()]
    listed: list[Any] = column.values.tolist()
    return listed

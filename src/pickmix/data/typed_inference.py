"""What the columns of a table hold, found from their values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pickmix.data.typed_checks import (
    READ_KINDS,
    as_numbers,
    as_times,
    check_booleans,
    check_counts,
    check_finite,
    check_usable,
    level_values,
    without_unreadable,
)
from pickmix.data.typed_kinds import (
    KINDS,
    Step,
    find_step,
    find_time_step,
    from_origin,
    looks_like_counts,
    parse_times,
    readable_cells,
)
from pickmix.data.typed_schema import DAY, LEVEL_KINDS, ColumnSchema, TableSchema
from pickmix.data.typed_tables import TypedColumn, TypedTable

# Text with so many different values, and in half of the rows or more, is no category.
_FEWEST_IDENTIFIERS = 20
_FEWEST_ALL_DIFFERENT = 10
# Text of which this share are numbers, or dates, is no category by itself if it has some values.
_NEARLY_ALL, _FEWEST_NEARLY = 0.9, 20
_LEADING_ZERO = re.compile(r"[+-]?0\d+\Z")
# Whole numbers beyond this count from the smallest one: float64 divides larger ones too coarsely.
_LARGE = 2**48


def infer_schema(
    table: TypedTable,
    kinds: Mapping[str, str] | None = None,
    exclude: Sequence[str] = (),
    max_levels: int = 1000,
) -> TableSchema:
    """Find what the columns of a table hold.

    Parameters
    ----------
    table : TypedTable
    kinds : dict, optional
        Kinds of some columns; those of the others are found.
    exclude : sequence of str
        Columns to skip.
    max_levels : int
        As in `infer_column`.

    Examples
    --------
    >>> from pickmix.data.typed_readers import read_typed
    >>> table = read_typed({"age": [31, 40, None, 50], "smokes": [True, False, False, True]})
    >>> print(infer_schema(table))
    column  kind     levels or range  step  missing
    age     integer  31 to 50            1    25.0%
    smokes  boolean  False, True               0.0%
    """
    kinds = dict(kinds or {}) | {name: "skip" for name in exclude}
    for name in kinds:
        if name not in table.columns:
            parameter = "exclude" if name in exclude else "schema"
            raise ValueError(
                f"{parameter} names the column {name!r}, but the table has only "
                f"{', '.join(map(repr, table.columns))}."
            )
    if table.n_rows == 0:
        raise ValueError("The table must have rows, got none.")
    columns = [
        infer_column(name, column, kinds.get(name), max_levels)
        for name, column in table.columns.items()
    ]
    schema = TableSchema(columns, table.origin)
    if not schema.modelled:
        found = ", ".join(f"{column.name!r} ({column.kind})" for column in columns)
        raise ValueError(f"The table must have a column to fit, got only {found}.")
    return schema


def infer_column(
    name: str, column: TypedColumn, kind: str | None = None, max_levels: int = 1000
) -> ColumnSchema:
    """Find what a column holds, or see it as a given kind.

    Parameters
    ----------
    name : str
        For messages.
    column : TypedColumn
    kind : str or None
        None: the kind is found from the values.
    max_levels : int
        A category with more levels keeps its most frequent ones; the others share a code.

    Raises
    ------
    ValueError
        If the column cannot be part of a model. The message says what helps.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f'schema["{name}"] must be one of {", ".join(KINDS)}, got {kind!r}.')
    share = float(column.missing.mean()) if column.missing.size else 0.0
    if kind == "skip":
        return ColumnSchema(name, "skip", column.storage, column.form, share)
    check_usable(column)
    found = column
    if kind in READ_KINDS and column.storage == "text":
        readable = without_unreadable(column, kind)
        # Where most cells are something else, the kind is a mistake.
        if 2 * np.count_nonzero(readable.missing & ~column.missing) < column.observed.shape[0]:
            column, share = readable, float(readable.missing.mean())
    schema = _infer_column(name, column, kind, max_levels, share)
    return replace(schema, lenient=bool((column.missing & ~found.missing).any()))


def _infer_column(
    name: str, column: TypedColumn, kind: str | None, max_levels: int, share: float
) -> ColumnSchema:
    if column.missing.all():
        raise ValueError(f"Column {name!r} has no value in any row. {_remedy(name)}")
    check_finite(name, column)
    distinct = np.unique(column.observed)
    if distinct.shape[0] == 1:
        return _constant(name, column, share)
    if kind == "constant":
        values = [column.value(int(row)) for row in np.flatnonzero(~column.missing)[:2]]
        raise ValueError(
            f'schema["{name}"] must not be "constant", as the column has several values '
            f'(it begins with {values}). Did you mean "skip"?'
        )
    column, kind = _settle(name, column, kind, distinct)
    common = {"name": name, "kind": kind, "storage": column.storage, "missing": share}
    common |= {"form": column.form}
    if kind in LEVEL_KINDS:
        return _level_column(common, column, max_levels)
    if kind == "date":
        return _date_column(common, column)
    return _number_column(common, column)


def _settle(
    name: str, column: TypedColumn, kind: str | None, distinct: np.ndarray
) -> tuple[TypedColumn, str]:
    """The kind of a column, and the column as that kind needs it."""
    if column.storage == "text" and kind is None:
        if "categories" not in column.form:
            _refuse_nearly_all(name, column)
        if column.mixes:
            mixed = f"mixes {column.mixes}"
            if column.mixes == "other":
                value = column.value(int((~column.missing).argmax()))
                mixed = f"holds objects that are no numbers, text or times, such as {value}"
            raise ValueError(
                f"Column {name!r} {mixed}. Convert it to one type, or take all values "
                f'as text: schema={{"{name}": "category"}}.'
            )
        if "categories" in column.form:
            return column, "category"
        times = parse_times(column)[0]
        if times is not None:
            return times, "date"
        _refuse_identifier(name, int(distinct.shape[0]), column)
        return column, "category"
    if kind is None:
        if column.storage == "boolean":
            return column, "boolean"
        return column, "date" if column.storage == "time" else _number_kind(column.observed)
    if kind == "date":
        return as_times(name, column), kind
    if kind in ("number", "integer", "count"):
        column = as_numbers(name, column)
        if kind == "count":
            check_counts(name, column)
        if kind == "integer" and find_step(column.observed) is None:
            raise ValueError(
                f'schema["{name}"] must not be "integer": values are no multiples of a decimal '
                f"step, for example {column.value(int(np.flatnonzero(~column.missing)[0]))!r}. "
                'Take "number".'
            )
    if kind == "boolean":
        check_booleans(name, column)
    return column, kind


def _number_kind(observed: np.ndarray) -> str:
    step = find_step(observed)
    if step is None:
        return "number"
    if step.decimals == 0 and step.multiple == 1:
        if observed.min() == 0 and observed.max() == 1:
            return "boolean"
        if looks_like_counts(observed):
            return "count"
    return "integer"


def _refuse_identifier(name: str, n_levels: int, column: TypedColumn) -> None:
    n_values = int(np.count_nonzero(~column.missing))
    all_different = n_levels == n_values and n_values >= _FEWEST_ALL_DIFFERENT
    if all_different or n_levels > max(_FEWEST_IDENTIFIERS, n_values / 2):
        raise ValueError(
            f"Column {name!r} looks like an identifier: {n_levels:,} different texts in "
            f"{n_values:,} rows, which say nothing about other rows. {_remedy(name)} If it is a "
            f'category all the same: schema={{"{name}": "category"}}.'
        )


def _refuse_nearly_all(name: str, column: TypedColumn) -> None:
    """Refuse text that is numbers or dates but for a few cells, and numbers beyond 64 bits."""
    n_values = int(np.count_nonzero(~column.missing))
    assert column.levels is not None
    used = [str(column.levels[code]) for code in np.unique(column.observed).tolist()]
    if any(map(_LEADING_ZERO.match, used)):
        # Zip codes, say.
        return
    for kind, things in (("number", "numbers"), ("date", "dates")):
        readable = readable_cells(column, kind)
        n_readable = int(np.count_nonzero(readable))
        if n_values > n_readable >= _NEARLY_ALL * n_values and n_values >= _FEWEST_NEARLY:
            row = int((~column.missing & ~readable).argmax())
            raise ValueError(
                f"Column {name!r} holds {n_readable:,} {things} among {n_values:,} values, but row "
                f"{row} holds {column.value(row)!r}. To take what is no {kind} for missing: "
                f'schema={{"{name}": "{kind}"}}. To take all values for levels: '
                f'schema={{"{name}": "category"}}.'
            )
        if kind == "number" and n_readable == n_values:
            _refuse_long(name, max(used, key=len))


def _refuse_long(name: str, longest: str) -> None:
    """Refuse whole numbers that 64 bits cannot hold; float64 would make many of them equal."""
    if longest.lstrip("+-").isdigit() and not -(2**63) <= int(longest) < 2**64:
        raise ValueError(
            f"Column {name!r} looks like an identifier: whole numbers such as {longest}, which 64 "
            f"bits cannot hold. {_remedy(name)} If it is a category, or 16 digits are enough: "
            f'schema={{"{name}": "category"}} or schema={{"{name}": "number"}}.'
        )


def _remedy(name: str) -> str:
    return f'Leave it out: exclude=["{name}"] or schema={{"{name}": "skip"}}.'


def _constant(name: str, column: TypedColumn, share: float) -> ColumnSchema:
    row = int((~column.missing).argmax())
    unit = np.datetime_data(column.values.dtype)[0] if column.storage == "time" else ""
    origin = int(column.values.view(np.int64)[row]) if unit else 0
    form = column.form | ({"duration": True} if column.values.dtype.kind == "m" else {})
    return ColumnSchema(
        name,
        "constant",
        column.storage,
        form,
        share,
        levels=(column.value(row),),
        codes=(0,),
        shares=(1.0,),
        whole=column.values.dtype.kind in "iu",
        unit=unit,
        origin=origin,
    )


def _level_column(common: dict[str, Any], column: TypedColumn, max_levels: int) -> ColumnSchema:
    whole = column.values.dtype.kind in "iu"
    if common["kind"] == "boolean":
        return ColumnSchema(
            **common, levels=(False, True), codes=(0, 1), shares=(1.0, 1.0), whole=whole
        )
    levels, numbers = level_values(column)
    counts = np.bincount(numbers[~column.missing], minlength=len(levels))
    codes = np.arange(len(levels))
    if len(levels) > max_levels:
        # The most frequent ones keep codes of their own, in the order of their names.
        order = np.argsort(-counts, kind="stable")
        codes[np.sort(order[: max_levels - 1])] = np.arange(max_levels - 1)
        codes[order[max_levels - 1 :]] = max_levels - 1
    shares = counts / np.bincount(codes, weights=counts)[codes]
    return ColumnSchema(
        **common,
        levels=tuple(levels),
        codes=tuple(codes.tolist()),
        shares=tuple(shares.tolist()),
        whole=whole,
    )


def spread_of(values: np.ndarray) -> float:
    """Standard deviation of values that are not all equal, without overflow."""
    centred = values - values.mean()
    largest = float(np.abs(centred).max())
    if not 0.0 < largest < np.inf:
        # Values that differ by less than the mean can hold, or by more than a float can.
        return max(float(np.abs(values).max()), 1e-300)
    return largest * float(np.sqrt(np.square(centred / largest).mean()))


def _number_column(common: dict[str, Any], column: TypedColumn) -> ColumnSchema:
    values = column.observed
    step = find_step(values) if common["kind"] == "integer" else None
    size = step or Step(1, 0)
    whole, origin = values.dtype.kind in "iu", 0
    if whole and max(-int(values.min()), int(values.max())) > _LARGE:
        origin = int(values.min())
    as_float = from_origin(values, origin)
    return ColumnSchema(
        **common,
        lowest=values.min().item(),
        highest=values.max().item(),
        step=None if step is None else size.size,
        scale=1.0 if common["kind"] == "count" else spread_of(as_float),
        whole=whole,
        multiple=size.multiple,
        decimals=size.decimals,
        origin=origin,
    )


def _date_column(common: dict[str, Any], column: TypedColumn) -> ColumnSchema:
    values = column.observed
    step = find_time_step(values)
    origin = values.min()
    if values.dtype.kind == "m":
        common["form"] = common["form"] | {"duration": True}
    unit, multiple = np.datetime_data(step.dtype)[0], int(step.astype(np.int64))
    return ColumnSchema(
        **common,
        lowest=str(origin.astype(f"{values.dtype.kind}8[{unit}]")),
        highest=str(values.max().astype(f"{values.dtype.kind}8[{unit}]")),
        step=float(step / DAY),
        scale=spread_of((values - origin) / DAY),
        whole=True,
        multiple=multiple,
        unit=unit,
        origin=int(origin.astype(f"{values.dtype.kind}8[{unit}]").astype(np.int64)),
    )

"""Typed tables as rows of numbers with NaN for gaps, and back; columns with their gaps filled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pickmix.inputs.columns import TypedColumn, TypedTable, as_objects, whole_array
from pickmix.inputs.errors import InputError, listed, shown, warn_caller
from pickmix.inputs.frames import zone_of
from pickmix.inputs.kinds import (
    Step,
    as_fitted,
    as_numbers,
    as_times,
    check_booleans,
    check_counts,
    check_usable,
    from_start,
    level_values,
    settled,
    without_words,
)
from pickmix.inputs.schema import GAUSSIAN_KINDS, LEVEL_KINDS, ColumnSchema, TableSchema

# Levels that a warning names.
_MOST_NAMED = 3
Random = np.random.Generator | np.random.RandomState | None


def encode(
    schema: TableSchema, table: TypedTable, absent: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows (N, D) of a model, and what their log-densities (N, D) gain by the table's units.

    Rows have the columns of `schema.modelled`: numbers and dates in units of their spread, codes of
    levels, counts; NaN where nothing is known. The gain log p(value) - log p(coordinate) is
    -log(scale) of a number, and the log-share of a level that shares a code with others. Columns
    that the schema does not know are not looked at; those that the table lacks are warned of unless
    `absent` names them.
    """
    if table.n_rows == 0:
        raise InputError("must have rows, got none")
    lacking = [c.name for c in schema.modelled if c.name not in table.columns]
    if len(lacking) == len(schema.modelled):
        raise InputError(
            f"must have columns of the fitted one ({listed(lacking)}), got {listed(table.columns)}"
        )
    lost = [name for name in lacking if name not in absent]
    if lost:
        columns = f"column{'s' if len(lost) > 1 else ''} {listed(lost)}"
        warn_caller(f"The table lacks the {columns}: all cells there count as missing.")
    rows = np.full((table.n_rows, len(schema.modelled)), np.nan)
    log_units = np.zeros_like(rows)
    for place, column in enumerate(schema.modelled):
        if column.name in table.columns:
            encoded = encode_column(column, table.columns[column.name])
            rows[:, place], log_units[:, place] = encoded
    for column in schema.columns.values():
        if column.kind == "constant" and column.name in table.columns:
            _check_constant(column, table.columns[column.name])
    return rows, log_units


def encode_column(
    schema: ColumnSchema, column: TypedColumn
) -> tuple[np.ndarray, np.ndarray | float]:
    """Return coordinates (N,) of a column, and what log-densities gain by its units."""
    check_usable(column)
    column = without_words(column, schema.gap_words)
    readable = settled(schema, column)
    lost = readable.missing & ~column.missing
    if lost.any():
        warn_caller(
            f"Column {shown(schema.name)} holds {int(np.count_nonzero(lost)):,} value(s) that are "
            f"no {'dates' if schema.kind == 'date' else 'numbers'}, such as "
            f"{shown(column.value(int(lost.argmax())))}. They count as missing."
        )
    column = readable
    if column.missing.all() and not schema.has_gap_level:
        return np.full(column.values.shape[0], np.nan), 0.0
    if schema.kind in LEVEL_KINDS:
        return _encode_levels(schema, column)
    if schema.kind == "date":
        times = as_times(schema.name, column)
        letter = _letter(schema)
        if times.values.dtype.kind != letter:
            expected = "durations" if letter == "m" else "dates"
            row, value = times.first, times.value(times.first)
            raise InputError(column=schema.name, row=row, value=value, expected=expected)
        values = from_start(schema, times.values)
    else:
        numbers = as_numbers(schema.name, column)
        if schema.kind == "count":
            check_counts(schema.name, numbers)
        values = from_start(schema, numbers.values)
        if schema.kind == "ordinal":
            unseen = ~np.isin(values, schema.levels) & ~column.missing
            if unseen.any():
                named = [f"{value:g}" for value in np.unique(values[unseen])]
                _warn_of_unseen(schema, named, unseen)
                column = replace(column, missing=column.missing | unseen)
    # What stands at missing places may be anything.
    coordinates = np.where(column.missing, np.nan, values) / schema.scale
    if schema.kind not in GAUSSIAN_KINDS:
        return coordinates, 0.0
    # Atoms have probabilities, whatever the unit.
    unitless = column.missing | np.isin(values, schema.atoms)
    return coordinates, np.where(unitless, 0.0, -np.log(schema.scale))


def _letter(schema: ColumnSchema) -> str:
    return "m" if schema.form.get("duration") else "M"


def _origin(schema: ColumnSchema) -> Any:
    make: Any = np.timedelta64 if schema.form.get("duration") else np.datetime64
    return make(schema.origin, schema.unit)


def _encode_levels(schema: ColumnSchema, column: TypedColumn) -> tuple[np.ndarray, np.ndarray]:
    if schema.kind == "boolean":
        if schema.storage == "number" and column.storage == "number":
            unseen = (column.values != 0) & (column.values != 1) & ~column.missing
            if unseen.any():
                levels = [f"{value:g}" for value in np.unique(column.values[unseen])]
                _warn_of_unseen(schema, levels, unseen)
                column = replace(column, missing=column.missing | unseen)
        check_booleans(schema.name, column)
        return np.where(column.missing, np.nan, column.values.astype(np.float64)), np.zeros(1)
    places, unknown = level_places(schema, column)
    if unknown:
        _warn_of_unseen(schema, list(map(shown, unknown)), (places < 0) & ~column.missing)
    if schema.has_gap_level:
        places[column.missing] = len(schema.levels) - 1
    codes = np.append(np.array(schema.codes, dtype=np.float64), np.nan)
    log_shares = np.append(np.log(np.array(schema.shares)), 0.0)
    return codes[places], log_shares[places]


def _warn_of_unseen(schema: ColumnSchema, levels: Sequence[str], unseen: np.ndarray) -> None:
    more = f" and {len(levels) - _MOST_NAMED} more" if len(levels) > _MOST_NAMED else ""
    warn_caller(
        f"Column {shown(schema.name)} holds levels that were not in the fit: "
        f"{', '.join(levels[:_MOST_NAMED])}{more}. Their {int(np.count_nonzero(unseen))} cell(s) "
        "count as missing."
    )


def _check_constant(schema: ColumnSchema, column: TypedColumn) -> None:
    """Warn if a column that had one value in the fit has others now."""
    check_usable(column)
    column = settled(schema, as_fitted(schema, column))
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
            f"Column {shown(schema.name)} was constant in the fit ({shown(schema.levels[0])}), so "
            f"it is not part of the model: {int(np.count_nonzero(other))} row(s) with other "
            f"values, such as {shown(column.value(int(other.argmax())))}, are not marked by it."
        )


# Levels


def level_places(schema: ColumnSchema, column: TypedColumn) -> tuple[np.ndarray, list[Any]]:
    """Return where each value (N,) stands in the levels of a category, and values that are none.

    Places are -1 where nothing was seen or the level is unknown. A value is a level if both are
    equal, or spelled in the same way, or the same number, or both true or both false.
    """
    column = as_fitted(schema, column)
    if column.missing.all():
        return np.full(column.missing.shape, -1, dtype=np.int64), []
    if schema.storage == column.storage == "time":
        # In the unit of the levels if they are whole there, so that they are spelled alike.
        whole = column.values.astype(np.array(schema.levels, dtype=f"{_letter(schema)}8").dtype)
        if (whole == column.values).all():
            column = replace(column, values=whole)
    values, numbers = level_values(column)
    known: dict[Any, int] = {level: place for place, level in enumerate(schema.levels)}
    spelled = {str(level): place for place, level in enumerate(schema.levels)}
    meant: dict[Any, int] = {}
    places = np.full(len(values), -1, dtype=np.int64)
    for number, value in enumerate(values):
        place = known.get(value, spelled.get(str(value), -1))
        both_text = isinstance(value, str) and schema.storage == "text"
        if place < 0 and not both_text:
            meant = meant or _meanings(schema.levels)
            place = meant.get(_meaning(value), -1)
        places[number] = place
    unseen = [value for value, place in zip(values, places.tolist(), strict=True) if place < 0]
    return np.where(column.missing, -1, places[numbers]), unseen


def _meaning(value: Any) -> tuple[str, Any]:
    """Return the truth value or the number that a level spells; itself if it spells none."""
    word = {"true": True, "false": False}.get(str(value).lower())
    if word is not None:
        return "boolean", word
    try:
        return "number", float(value)
    except (TypeError, ValueError):
        return "text", str(value)


def _meanings(levels: Sequence[Any]) -> dict[Any, int]:
    """Return places of levels by what they mean; -1 for those that mean the same as another."""
    places: dict[Any, int] = {}
    for place, level in enumerate(levels):
        meaning = _meaning(level)
        places[meaning] = -1 if meaning in places else place
    return places


def levels_of(schema: ColumnSchema, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Return values (N,) of a column of levels by their places, and the levels if it is text."""
    if schema.storage == "text":
        return numbers, as_objects(schema.levels)
    dtype = f"{_letter(schema)}8" if schema.storage == "time" else None
    return np.array(schema.levels, dtype=dtype)[numbers], None


def _usual_levels(schema: ColumnSchema) -> np.ndarray:
    """Return the place (C,) of the most frequent level of each code."""
    codes = np.array(schema.codes)
    order = np.argsort(np.array(schema.shares), kind="stable")
    usual = np.zeros(codes.max() + 1, dtype=np.int64)
    usual[codes[order]] = order
    return usual


def level_weights(schema: ColumnSchema) -> np.ndarray | None:
    """Return the share (C,) of the most frequent level of each code; None if no levels share one.

    The most probable level is the one with the largest product of this and its code's probability.
    """
    if not schema.codes or max(schema.codes) + 1 == len(schema.codes):
        return None
    return np.asarray(np.array(schema.shares)[_usual_levels(schema)])


def level_names(schema: ColumnSchema) -> list[Any]:
    """Return what stands for each code of a column of levels: its most frequent level."""
    column = decode_column(schema, np.arange(max(schema.codes) + 1, dtype=np.float64))
    if column.levels is not None:
        return [column.levels[number] for number in column.values.tolist()]
    values: list[Any] = column.values.tolist()
    return values


# Decoding


def decode(
    schema: TableSchema,
    rows: np.ndarray,
    columns: Sequence[str] | None = None,
    random: Random = None,
) -> TypedTable:
    """Return the table of rows (N, D) of a model, which hold no NaN; constants are put back.

    Without `columns` it has all that the schema knows but those it skips. `random` draws levels
    that share a code by their shares; without it the most frequent one stands for all of them.
    """
    place = {column.name: number for number, column in enumerate(schema.modelled)}
    decoded: dict[str, TypedColumn] = {}
    for name in schema.columns if columns is None else columns:
        if schema[name].kind != "skip":
            coordinates = rows[:, place[name]] if name in place else np.zeros(rows.shape[0])
            decoded[name] = decode_column(schema[name], coordinates, random)
    return TypedTable(decoded, rows.shape[0], schema.origin)


def decode_column(
    schema: ColumnSchema, coordinates: np.ndarray, random: Random = None
) -> TypedColumn:
    """Return the values (N,) of coordinates (N,) that hold no NaN."""
    missing = np.zeros(coordinates.shape[0], dtype=np.bool_)
    values, levels = _decoded(schema, coordinates, random)
    if schema.has_gap_level:
        missing = values == len(schema.levels) - 1
    return TypedColumn(schema.storage, values, missing, levels, schema.form)


def _decoded(
    schema: ColumnSchema, coordinates: np.ndarray, random: Random
) -> tuple[np.ndarray, np.ndarray | None]:
    if schema.kind == "constant" and schema.storage == "time":
        return np.full(coordinates.shape, _origin(schema)), None
    if schema.kind in LEVEL_KINDS or schema.kind == "constant":
        return _decoded_levels(schema, coordinates.astype(np.int64), random)
    if schema.kind == "ordinal":
        levels = np.array(schema.levels)
        # After the last level of a period comes the first.
        around = np.append(levels, levels[0] + schema.period if schema.period else np.inf)
        places = np.searchsorted(0.5 * (around[1:] + around[:-1]), coordinates)
        values = levels[places % levels.shape[0]]
        return values.astype(np.int64) if schema.whole else values, None
    if schema.kind == "date":
        if schema.knots:
            coordinates = np.clip(coordinates, schema.ends[0], schema.ends[1])
        n_steps = coordinates * (schema.scale / float(schema.step or 1.0))
        whole = np.rint(n_steps).astype(np.int64) * schema.multiple
        return _origin(schema) + whole.astype(f"m8[{schema.unit}]"), None
    values, step = coordinates * schema.scale, Step(schema.multiple, schema.decimals)
    if schema.knots:
        values = np.clip(_exact(schema, coordinates, values), *_limits(schema))
    if schema.origin:
        # Sums of a large origin and whole numbers, not rounded, as far as 64 bits go.
        low, high = (-(2**63), 2**63 - 1) if schema.highest < 2**63 else (0, 2**64 - 1)
        sums = [schema.origin + int(rest) for rest in np.rint(step.snap(values)).tolist()]
        large = whole_array([min(max(value, low), high) for value in sums])
        assert large is not None
        return large, None
    if schema.kind == "count":
        values = np.rint(values)
    elif schema.kind == "integer":
        values = step.snap(values)
    # A zero has no sign.
    values = values + 0.0
    # Beyond that they are no int64; the writer knows their type.
    fits = schema.whole and bool((np.abs(values) < 2.0**63).all())
    return np.rint(values).astype(np.int64) if fits else values, None


def _limits(schema: ColumnSchema) -> tuple[float, float]:
    """Return the smallest and largest value of numbers, counted from the origin."""
    return float(schema.lowest - schema.origin), float(schema.highest - schema.origin)


def _exact(schema: ColumnSchema, coordinates: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return atoms and values of the support to the last bit where coordinates are theirs."""
    for exact in (np.array(schema.support), np.array(schema.atoms)):
        if exact.size:
            place = np.minimum(np.searchsorted(exact / schema.scale, coordinates), exact.size - 1)
            same = exact[place] / schema.scale == coordinates
            values = np.where(same, exact[place], values)
    return values


def _decoded_levels(
    schema: ColumnSchema, codes: np.ndarray, random: Random
) -> tuple[np.ndarray, np.ndarray | None]:
    if schema.kind == "boolean":
        if schema.storage == "boolean":
            return codes == 1, None
        return codes if schema.whole else codes.astype(np.float64), None
    numbers = _usual_levels(schema)[codes]
    of_level = np.array(schema.codes)
    n_alike = np.bincount(of_level)
    if random is not None and n_alike.max() > 1:
        shares, pooled = np.array(schema.shares), int(n_alike.argmax())
        alike = np.flatnonzero(of_level == pooled)
        drawn = codes == pooled
        size, p = int(np.count_nonzero(drawn)), shares[alike] / shares[alike].sum()
        numbers[drawn] = random.choice(alike, size=size, p=p)
    return levels_of(schema, numbers)


# Filling


def filled_column(
    schema: ColumnSchema,
    column: TypedColumn,
    coordinates: np.ndarray,
    random: Random = None,
    same_origin: bool = True,
) -> TypedColumn:
    """Fill the gaps of a column by what coordinates (N,) stand for; other values stay.

    A column of another type than the fit had, such as numbers where levels are text, gets that of
    the fit, or a plain one unless both tables are of one kind (`same_origin`).
    """
    column = settled(schema, as_fitted(schema, column))
    gaps = np.flatnonzero(column.missing)
    fill = decode_column(schema, coordinates[gaps], random)
    complete = np.zeros_like(column.missing)
    form, fitted_form = column.form, schema.form if same_origin else {}
    if column.missing.all():
        # Nothing says what the column is; of pandas, say, floats or objects.
        same = fill.storage == column.storage and form.get("dtype") not in (None, "null")
        same = same and (zone_of(form) is not None or zone_of(fitted_form) is None)
        return replace(fill, missing=complete, form=form if same else fitted_form)
    if fill.levels is not None and column.levels is None:
        column, n_unseen = _as_levels(schema, column)
        form = fitted_form if n_unseen == 0 else {}
    if column.levels is not None and schema.kind in (*LEVEL_KINDS, "constant"):
        added, numbers = fill.levels, fill.values
        if added is None:
            # Text for what was numbers or times in the fit: it stays text.
            added = as_objects(list(map(str, fill.values.tolist())))
            numbers = np.arange(gaps.shape[0])
        values = column.values.copy()
        values[gaps] = len(column.levels) + numbers
        return TypedColumn("text", values, complete, as_objects([*column.levels, *added]), form)
    if fill.storage == "time":
        column = as_times(schema.name, column)
    elif fill.storage == "number":
        column = as_numbers(schema.name, column)
    filled = column.values.astype(np.promote_types(column.values.dtype, fill.values.dtype))
    filled[gaps] = fill.values
    return TypedColumn(fill.storage, filled, complete, None, column.form)


def _as_levels(schema: ColumnSchema, column: TypedColumn) -> tuple[TypedColumn, int]:
    """Return numbers or the like as levels that they stand for, and how many stand for none."""
    places, _ = level_places(schema, column)
    unseen = np.flatnonzero((places < 0) & ~column.missing)
    texts = [str(column.value(row)) for row in unseen.tolist()]
    values = np.where(places < 0, 0, places)
    values[unseen] = len(schema.levels) + np.arange(len(texts))
    levels = as_objects([*schema.levels, *texts])
    return TypedColumn("text", values, column.missing, levels), len(texts)

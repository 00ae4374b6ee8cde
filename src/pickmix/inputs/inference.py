"""What the columns of a table hold, found from their values."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pickmix.inputs.columns import TypedColumn, TypedTable
from pickmix.inputs.errors import InputError, listed, shown, warn_caller
from pickmix.inputs.kinds import (
    READ_KINDS,
    Step,
    as_numbers,
    as_times,
    check_booleans,
    check_counts,
    check_finite,
    check_usable,
    find_step,
    find_time_step,
    from_origin,
    from_start,
    level_values,
    looks_like_counts,
    parse_numbers,
    parse_times,
    readable_cells,
    without_unreadable,
    without_words,
)
from pickmix.inputs.maps import is_ordinal, learn_map
from pickmix.inputs.schema import (
    DAY,
    GAUSSIAN_KINDS,
    KINDS,
    LEVEL_KINDS,
    ColumnSchema,
    TableSchema,
)

# Text with so many different values, and in half of the rows or more, is no category.
_FEWEST_IDENTIFIERS = 20
_FEWEST_ALL_DIFFERENT = 10
# Text of which this share are numbers, or dates, is no category by itself if it has some values.
_NEARLY_ALL, _FEWEST_NEARLY = 0.9, 20
_LEADING_ZERO = re.compile(r"[+-]?0\d+\Z")
_DATE_LIKE = re.compile(
    r"\d{1,2}[/.-]\d{1,2}[/.-]\d{2,4}\b|[A-Za-z]{3,9}\.? \d{1,2},? \d{4}\b|"
    r"\d{1,2}[. -]+[A-Za-z]{3,9}[. -]+\d{4}\b"
)
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:([.,' ])\d{3})(?:\1\d{3})*(?:[.,]\d+)?\Z")
# Whole numbers beyond this count from the smallest one: float64 divides larger ones too coarsely.
_LARGE = 2**48
# Most values that may be called "ordinal", and rows from which on counts are mapped like others.
_MOST_ORDINAL, _FEWEST_MAPPED_COUNTS = 1000, 1000
# Days of a week, months, hours, minutes and degrees.
_PERIODS = (7.0, 12.0, 24.0, 60.0, 360.0)
_LEAVE_OUT = "Leave it out: {exclude} or {skip}."


def check_words(parameter: str, words: object) -> tuple[str, ...]:
    """Return a list of texts as a tuple; raise if it is none."""
    if isinstance(words, Sequence) and not isinstance(words, str):
        texts = tuple(word.strip() for word in words if isinstance(word, str))
        if len(texts) == len(words):
            return texts
    raise ValueError(f"{parameter} must be a list of texts, got {words!r}.")


def infer_schema(
    table: TypedTable,
    kinds: Mapping[str, str] | None = None,
    exclude: Sequence[str] = (),
    max_levels: int = 1000,
    mapped: bool | None = None,
    gap_words: Sequence[str] = (),
    gap_levels: Sequence[str] = (),
) -> TableSchema:
    """Find what the columns of a table hold; `kinds` and `exclude` say it of some.

    A category with more than `max_levels` levels keeps its most frequent ones; the others share a
    code. If `mapped`, numbers with few values are "ordinal", and others have atoms and a map to
    normal scores; None means that the model does not know such columns. `gap_words` mean a gap, and
    in columns `gap_levels` a gap is a level.
    """
    kinds = dict(kinds or {}) | {name: "skip" for name in exclude}
    for name in (*kinds, *gap_levels):
        if name not in table.columns:
            parameter = "schema" if name in kinds else "gap_levels"
            parameter = "exclude" if name in exclude else parameter
            raise ValueError(
                f"{parameter} names the column {shown(name)}, but the table has only "
                f"{listed(table.columns)}."
            )
    if table.n_rows == 0:
        raise InputError("must have rows, got none")
    columns: list[ColumnSchema] = []
    refused: list[InputError] = []
    for name, column in table.columns.items():
        try:
            column, words = _without_words(column, gap_words)
            gaps = name in gap_levels and bool(column.missing.any())
            found = _infer_column(name, column, kinds.get(name), max_levels, mapped, gaps)
            columns.append(replace(found, gap_words=words))
        except InputError as error:
            if "{exclude}" not in error.remedy:
                raise
            refused.append(error)
    if refused:
        raise refused[0].replaced(also=tuple(error.column for error in refused[1:]))
    schema = TableSchema(columns, table.origin)
    if not schema.modelled:
        names = listed(columns, lambda column: f"{shown(column.name)} ({column.kind})")
        raise InputError(f"must have a column to fit, got only {names}")
    return schema


def _without_words(
    column: TypedColumn, words: Sequence[str]
) -> tuple[TypedColumn, tuple[str, ...]]:
    """Return a column with gaps at words, as numbers if it is then; and the words for later."""
    known = without_words(column, words)
    if known is column or known.missing.all():
        return column, ()
    if known.levels is not None and (known.missing & ~column.missing).any():
        used = [str(known.levels[code]) for code in np.unique(known.observed).tolist()]
        # Data frames say that theirs are texts; a number would lose the zeros of a zip code.
        if known.form.get("dtype") == "list" and not any(map(_LEADING_ZERO.match, used)):
            known = parse_numbers(known)[0] or known
    return known, tuple(words)


def _infer_column(
    name: str,
    column: TypedColumn,
    kind: str | None,
    max_levels: int,
    mapped: bool | None,
    gaps_are_level: bool = False,
) -> ColumnSchema:
    known = [*KINDS, "periodic"]
    if mapped is None:
        known = [one for one in KINDS if one != "ordinal"]
    period = None
    if isinstance(kind, str) and kind.split()[:1] == ["periodic"] and "periodic" in known:
        kind, period = "ordinal", kind.removeprefix("periodic").strip()
    if kind is not None and kind not in known:
        problem = f"must be one of {', '.join(known)}"
        raise InputError(problem, parameter="schema", column=name, value=kind)
    share = float(column.missing.mean()) if column.missing.size else 0.0
    if kind == "skip":
        return ColumnSchema(name, "skip", column.storage, column.form, share)
    check_usable(column)
    lenient = False
    if kind in READ_KINDS and column.storage == "text":
        readable = without_unreadable(column, kind)
        n_lost = np.count_nonzero(readable.missing & ~column.missing)
        # Where most cells are something else, the kind is a mistake.
        if 2 * n_lost < column.observed.shape[0]:
            column, share, lenient = readable, float(readable.missing.mean()), bool(n_lost)
    if column.missing.all():
        raise InputError("has no value in any row", column=name, remedy=_LEAVE_OUT)
    check_finite(name, column)
    distinct = np.unique(column.observed)
    if distinct.shape[0] == 1 and not gaps_are_level:
        return replace(_constant(name, column, share), lenient=lenient)
    if kind == "constant":
        values = [column.value(int(row)) for row in np.flatnonzero(~column.missing)[:2]]
        raise InputError(
            'must not be "constant", as the column has several values (it begins with '
            f"{shown(values)})",
            parameter="schema",
            column=name,
            remedy='Did you mean "skip"?',
        )
    is_given = kind is not None
    column, kind = _settle(name, column, kind, distinct)
    if mapped and not is_given and kind in ("number", "integer", "count"):
        if is_ordinal(column.observed):
            kind = "ordinal"
        elif kind == "count" and column.observed.shape[0] > _FEWEST_MAPPED_COUNTS:
            kind = "integer"
    if gaps_are_level and (kind != "category" or column.storage != "text"):
        raise InputError(
            f'must be a category of texts for its gaps to be a level, got kind "{kind}" of '
            f"{column.storage}s",
            parameter="gap_levels",
            column=name,
            remedy="Write its values as text.",
        )
    common = {"name": name, "kind": kind, "storage": column.storage, "missing": share}
    common |= {"form": column.form, "lenient": lenient}
    if kind in LEVEL_KINDS:
        found = _level_column(common, column, max_levels)
        if gaps_are_level:
            codes, shares = (*found.codes, max(found.codes) + 1), (*found.shares, 1.0)
            found = replace(found, levels=(*found.levels, None), codes=codes, shares=shares)
        return found
    if kind == "ordinal":
        made = _ordinal_column(common, column)
        return made if period is None else replace(made, period=_period(made, period))
    made = _date_column(common, column) if kind == "date" else _number_column(common, column)
    if mapped and kind in GAUSSIAN_KINDS:
        made = learn_map(made, from_start(made, column.observed))
    return made


def _settle(
    name: str, column: TypedColumn, kind: str | None, distinct: np.ndarray
) -> tuple[TypedColumn, str]:
    if column.storage == "text" and kind is None:
        return _settle_text(name, column, int(distinct.shape[0]))
    if kind is None:
        if column.storage == "boolean":
            return column, "boolean"
        return column, "date" if column.storage == "time" else _number_kind(column.observed)
    if kind == "date":
        return as_times(name, column), kind
    if kind in ("number", "integer", "ordinal", "count"):
        column = as_numbers(name, column)
        if kind == "count":
            check_counts(name, column)
        if kind == "integer" and find_step(column.observed) is None:
            raise InputError(
                'must not be "integer": values are no multiples of a decimal step, for example '
                f"{column.value(column.first)!r}",
                parameter="schema",
                column=name,
                remedy='Take "number".',
            )
    if kind == "boolean":
        check_booleans(name, column)
    return column, kind


def _settle_text(name: str, column: TypedColumn, n_levels: int) -> tuple[TypedColumn, str]:
    if "categories" in column.form:
        return column, "category"
    _refuse_nearly_all(name, column)
    if column.mixes:
        problem = f"mixes {column.mixes}"
        if column.mixes == "other":
            value = str(column.value(column.first))[:80]
            problem = f"holds objects that are no numbers, text or times, such as {value}"
        raise InputError(
            problem,
            column=name,
            remedy="Convert it to one type, or take all values as text: {category}.",
        )
    times = parse_times(column)[0]
    if times is not None:
        return times, "date"
    _refuse_identifier(name, n_levels, column)
    example = str(column.value(column.first))
    if _DATE_LIKE.match(example) and n_levels >= _FEWEST_IDENTIFIERS:
        warn_caller(
            f"Column {shown(name)} is a category, though {shown(example)} looks like a date. Write "
            "dates as in 2024-02-28 to have them as dates."
        )
    return column, "category"


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
        example = str(column.value(column.first))
        numbers = f" Are texts such as {shown(example)} numbers? Write them without marks between "
        numbers += "thousands."
        raise InputError(
            f"looks like an identifier: {n_levels:,} different texts in {n_values:,} rows, which "
            "say nothing about other rows",
            column=name,
            remedy=f"{_LEAVE_OUT} If it is a category all the same: {{category}}."
            + (numbers if _THOUSANDS.match(example) else ""),
        )


def _refuse_nearly_all(name: str, column: TypedColumn) -> None:
    """Refuse text that is numbers or dates but for a few cells, and numbers beyond 64 bits."""
    n_values = int(np.count_nonzero(~column.missing))
    assert column.levels is not None
    used = [str(column.levels[code]) for code in np.unique(column.observed).tolist()]
    if any(map(_LEADING_ZERO.match, used)):
        # Zip codes, say.
        return
    for kind in ("number", "date"):
        readable = readable_cells(column, kind)
        n_readable = int(np.count_nonzero(readable))
        if n_values > n_readable >= _NEARLY_ALL * n_values and n_values >= _FEWEST_NEARLY:
            row = int((~column.missing & ~readable).argmax())
            raise InputError(
                f"holds {n_readable:,} {kind}s among {n_values:,} values",
                column=name,
                row=row,
                value=column.value(row),
                expected=f"{kind}s",
                remedy=f"To take what is no {kind} for missing: {{{kind}}}. To take all values for "
                "levels: {category}.",
            )
        longest = max(used, key=len)
        is_whole = kind == "number" and longest.lstrip("+-").isdigit()
        # float64 would make many of them equal.
        if is_whole and n_readable == n_values and not -(2**63) <= int(longest) < 2**64:
            raise InputError(
                f"looks like an identifier: whole numbers such as {longest[:80]}, which 64 bits "
                "cannot hold",
                column=name,
                remedy=f"{_LEAVE_OUT} If it is a category, or 16 digits are enough: "
                "{category} or {number}.",
            )


def _constant(name: str, column: TypedColumn, share: float) -> ColumnSchema:
    row, is_time = column.first, column.storage == "time"
    return ColumnSchema(
        name,
        "constant",
        column.storage,
        column.form | ({"duration": True} if column.values.dtype.kind == "m" else {}),
        share,
        levels=(column.value(row),),
        codes=(0,),
        shares=(1.0,),
        whole=column.values.dtype.kind in "iu",
        unit=np.datetime_data(column.values.dtype)[0] if is_time else "",
        origin=int(column.values.view(np.int64)[row]) if is_time else 0,
    )


def _level_column(common: dict[str, Any], column: TypedColumn, max_levels: int) -> ColumnSchema:
    common |= {"whole": column.values.dtype.kind in "iu"}
    if common["kind"] == "boolean":
        return ColumnSchema(**common, levels=(False, True), codes=(0, 1), shares=(1.0, 1.0))
    levels, numbers = level_values(column)
    counts = np.bincount(numbers[~column.missing], minlength=len(levels))
    codes = np.arange(len(levels))
    if len(levels) > max_levels:
        # The most frequent ones keep codes of their own, in the order of their names.
        order = np.argsort(-counts, kind="stable")
        codes[np.sort(order[: max_levels - 1])] = np.arange(max_levels - 1)
        codes[order[max_levels - 1 :]] = max_levels - 1
    shares = (counts / np.bincount(codes, weights=counts)[codes]).tolist()
    return ColumnSchema(
        **common, levels=tuple(levels), codes=tuple(codes.tolist()), shares=tuple(shares)
    )


def _ordinal_column(common: dict[str, Any], column: TypedColumn) -> ColumnSchema:
    levels = np.unique(column.observed)
    if levels.shape[0] > _MOST_ORDINAL or np.abs(levels.astype(np.float64)).max() > _LARGE:
        raise InputError(
            f'must not be "ordinal": the column has {levels.shape[0]:,} values, up to '
            f"{levels[-1]:g}",
            parameter="schema",
            column=common["name"],
            remedy='Take "number" or "category".',
        )
    step, n_levels = find_step(levels), levels.shape[0]
    size = step or Step(1, 0)
    return ColumnSchema(
        **common,
        lowest=levels[0].item(),
        highest=levels[-1].item(),
        levels=tuple((levels.astype(np.float64) + 0.0).tolist()),
        codes=tuple(range(n_levels)),
        shares=(1.0,) * n_levels,
        step=None if step is None else size.size,
        whole=levels.dtype.kind in "iu",
        multiple=size.multiple,
        decimals=size.decimals,
    )


def _period(column: ColumnSchema, given: str) -> float:
    """Return the period that is given, or a usual one that the values of a column fit into."""
    candidates: tuple[float, ...] = _PERIODS if column.step == 1.0 else (2.0 * math.pi, 24.0, 360.0)
    try:
        candidates = (float(given),) if given else candidates
    except ValueError:
        candidates = ()
    width = column.highest - column.lowest
    fitting = [p for p in candidates if width < p and (given or column.highest <= p)]
    if not fitting:
        raise InputError(
            f"must have a period that is larger than all differences of values, here {width:g}",
            parameter="schema",
            column=column.name,
            value=f"periodic {given}".strip(),
            remedy='Give one, such as "periodic 24".',
        )
    return fitting[0]


def _spread(values: np.ndarray) -> float:
    """Return the standard deviation of values that are not all equal, without overflow."""
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
    return ColumnSchema(
        **common,
        lowest=values.min().item(),
        highest=values.max().item(),
        step=None if step is None else size.size,
        scale=1.0 if common["kind"] == "count" else _spread(from_origin(values, origin)),
        whole=whole,
        multiple=size.multiple,
        decimals=size.decimals,
        origin=origin,
    )


def _date_column(common: dict[str, Any], column: TypedColumn) -> ColumnSchema:
    values = column.observed
    step = find_time_step(values)
    unit, kind = np.datetime_data(step.dtype)[0], values.dtype.kind
    if kind == "m":
        common["form"] = common["form"] | {"duration": True}
    ends = [end.astype(f"{kind}8[{unit}]") for end in (values.min(), values.max())]
    return ColumnSchema(
        **common,
        lowest=str(ends[0]),
        highest=str(ends[1]),
        step=float(step / DAY),
        scale=_spread((values - values.min()) / DAY),
        whole=True,
        multiple=int(step.astype(np.int64)),
        unit=unit,
        origin=int(ends[0].astype(np.int64)),
    )

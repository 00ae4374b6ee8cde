"""What values of a column are: rounded numbers, counts, dates in text; and columns as a kind needs.

What a kind cannot hold is refused by column, row and value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pickmix.inputs.columns import TypedColumn, whole_array
from pickmix.inputs.errors import InputError
from pickmix.inputs.schema import DAY, ColumnSchema
from pickmix.inputs.text import with_points

#: Kinds whose cells may be written as text.
READ_KINDS = ("number", "integer", "ordinal", "count", "date")
# Numbers with more decimals than this are not taken for rounded ones.
_MOST_DECIMALS = 9
# Share of the values that a step must divide.
_NEARLY_ALL = 0.999
# Counts by Poisson distributions: no larger mean, and no larger value.
_MOST_MEAN, _MOST_COUNT = 10.0, 1000
_ISO = re.compile(r"(\d{4}-\d{2}-\d{2})(?:([T ])(\d{2}:\d{2}(?::\d{2}(?:\.(\d{1,9}))?)?)(Z?))?\Z")
_DIGITS = re.compile(r"\s*[+-]?\d{1,300}\s*\Z")
_TIME_STEPS = [("D", 1), ("h", 1), ("m", 30), ("m", 15)]
_TIME_STEPS += [(unit, 1) for unit in ("m", "s", "ms", "us", "ns")]


@dataclass(frozen=True)
class Step:
    """A decimal step, `multiple` / 10**`decimals`, in whole numbers so that values are exact."""

    multiple: int
    decimals: int

    @property
    def size(self) -> float:
        return self.multiple / 10.0**self.decimals

    def snap(self, values: np.ndarray) -> np.ndarray:
        """Return the nearest multiples of the step, with the bits that their digits have."""
        whole = np.rint(values * (10.0**self.decimals / self.multiple)) * self.multiple
        return np.asarray(whole / 10.0**self.decimals)


def find_step(values: np.ndarray) -> Step | None:
    """Find the largest decimal step that values (N,) are multiples of, but for one in a thousand.

    Steps are 1, 2, 2.5 or 5 times a power of ten, down to 1e-9. None if there is none that the
    digits of the type could show.

    >>> find_step(np.append(np.arange(2000.0), 1.0 / 3.0))
    Step(multiple=1, decimals=0)
    """
    distinct, counts = np.unique(values, return_counts=True)
    # Zeros are multiples of everything.
    counts[distinct == 0] = 0
    enough = _NEARLY_ALL * counts.sum()
    noise = np.finfo(distinct.dtype).eps if distinct.dtype.kind == "f" else 0.0
    if noise == 0.0 and distinct.dtype != np.float64:
        whole = distinct if distinct.dtype.kind == "u" else np.abs(distinct.astype(np.int64))
        # The smallest int64 has no positive counterpart: its bits are those of 2**63.
        return _largest_step(whole.astype(np.uint64), counts, enough, 0)
    distinct = distinct.astype(np.float64)
    largest = float(np.abs(distinct).max(initial=0.0))
    for decimals in range(_MOST_DECIMALS + 1):
        # Beyond this the rounding of the type itself looks like whole numbers.
        if largest * 10.0**decimals * noise > 1e-3:
            return None
        scaled = distinct * 10.0**decimals
        whole = np.rint(scaled)
        obey = np.abs(scaled - whole) <= 4.0 * noise * np.abs(scaled)
        if counts[obey].sum() >= enough:
            exact = np.abs(whole[obey]).astype(np.uint64)
            return _largest_step(exact, counts[obey], enough, decimals)
    return None


def _largest_step(whole: np.ndarray, counts: np.ndarray, enough: float, decimals: int) -> Step:
    """Find 1, 2, 2.5 or 5 times a power of ten that divides enough of the values (n,)."""

    def divides(multiple: int) -> bool:
        return bool(counts[whole % np.uint64(multiple) == 0].sum() >= enough)

    power, most = 1, min(int(whole.max(initial=0)), 10**18)
    while power * 10 <= most and divides(power * 10):
        power *= 10
    multiple = power * next((m for m in (25, 5, 2) if power * m <= most and divides(power * m)), 1)
    while decimals and multiple % 10 == 0:
        multiple, decimals = multiple // 10, decimals - 1
    return Step(multiple, decimals)


def find_time_step(values: np.ndarray) -> Any:
    unit = np.datetime_data(values.dtype)[0]
    counts = np.unique(values).view(np.int64)
    # Of type Any: the names of units are no literals here.
    make: Any = np.timedelta64
    for name, multiple in _TIME_STEPS:
        step = make(multiple, name)
        if step < make(1, unit):
            break
        if (counts % int(step / make(1, unit)) == 0).all():
            return step
    return make(1, unit)


def looks_like_counts(values: np.ndarray) -> bool:
    """Whether whole numbers look like draws of a mixture of Poisson distributions.

    They do if the smallest is 0, there are at least three different ones, the mean is at most 10
    and the largest at most 1000, the variance is at least 0.9 of the mean (no mixture of Poisson
    distributions has less than the mean), and the skewness is at least half of that of one Poisson
    distribution. So visits, children and faults are counts; ratings, hours and ages are not.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.min() != 0.0 or x.max() > _MOST_COUNT or np.unique(x).shape[0] < 3:
        return False
    mean, variance = float(x.mean()), float(x.var())
    if mean > _MOST_MEAN or variance < 0.9 * mean:
        return False
    skewness = float(np.mean((x - mean) ** 3)) / variance**1.5
    return bool(skewness >= 0.5 / np.sqrt(mean))


def from_origin(values: np.ndarray, origin: int) -> np.ndarray:
    """Return numbers (N,) less a whole one, as floats; the difference is taken without rounding."""
    if not origin:
        return values.astype(np.float64)
    if values.dtype.kind not in "iu":
        return values.astype(np.float64) - origin
    # Python's own numbers: differences may be beyond 64 bits.
    return np.array([value - origin for value in values.tolist()], dtype=np.float64)


def from_start(schema: ColumnSchema, values: np.ndarray) -> np.ndarray:
    """Return numbers (N,) counted from the column's origin; times as days since then."""
    if schema.kind != "date":
        return from_origin(values, schema.origin)
    make: Any = np.timedelta64 if schema.form.get("duration") else np.datetime64
    return np.asarray((values - make(schema.origin, schema.unit)) / DAY)


# Text


def _parsed_levels(column: TypedColumn, kind: str) -> dict[int, Any]:
    """Return what the used levels of text spell, by their codes: matches, numbers or None."""
    assert column.levels is not None
    decimal = column.form.get("decimal", ".")
    used = {code: column.levels[code] for code in np.unique(column.observed).tolist()}
    if kind != "date":
        return {code: _as_number(level, decimal) for code, level in used.items()}
    return {c: _ISO.match(level) if isinstance(level, str) else None for c, level in used.items()}


def parse_times(column: TypedColumn) -> tuple[TypedColumn | None, Any]:
    """Read text of ISO dates or times as times, or return None and a level that is none.

    How they were written is kept in the form: the mark between date and time, and a Z for UTC.
    """
    assert column.levels is not None
    matches = _parsed_levels(column, "date")
    for code, match in matches.items():
        if match is None:
            return None, column.levels[code]
    fraction = max((len(match[4] or "") for match in matches.values()), default=0)
    timed = [match for match in matches.values() if match[3] is not None]
    unit = "D" if not timed else ("s", "ms", "us", "ns")[-(-fraction // 3)]
    parsed: Any = np.full(len(column.levels) + 1, "NaT", dtype=f"datetime64[{unit}]")
    for code, match in matches.items():
        try:
            parsed[code] = match[1] if match[3] is None else f"{match[1]}T{match[3]}"
        except ValueError:
            return None, column.levels[code]
    form = column.form | {
        "text_unit": unit if not timed or any(len(m[3]) > 5 for m in timed) else "m",
        "text_mark": timed[0][2] if timed else "T",
        "text_zone": timed[0][5] if timed else "",
    }
    return TypedColumn("time", parsed[column.values], column.missing, form=form), None


def parse_numbers(column: TypedColumn) -> tuple[TypedColumn | None, Any]:
    """Read text of numbers, or booleans, as numbers; or return None and a level that is none."""
    if column.storage == "boolean":
        return replace(column, storage="number", values=column.values.astype(np.int64)), None
    assert column.levels is not None
    spelled = _parsed_levels(column, "number")
    for code, number in spelled.items():
        if number is None:
            return None, column.levels[code]
    numbers = list(spelled.values())
    whole = whole_array(numbers) if all(isinstance(number, int) for number in numbers) else None
    array = np.array(numbers, dtype=np.float64) if whole is None else whole
    parsed = np.zeros(len(column.levels) + 1, dtype=array.dtype)
    parsed[list(spelled)] = array
    return TypedColumn("number", parsed[column.values], column.missing, form=column.form), None


def _as_number(level: Any, decimal: str = ".") -> int | float | None:
    """Return the number that a level spells, whole if it is and no digit is lost by that."""
    if isinstance(level, str) and decimal == ",":
        level = with_points(level)
    try:
        if isinstance(level, int) or (isinstance(level, str) and _DIGITS.match(level)):
            return int(level)
        number = float(level)
    except (TypeError, ValueError, OverflowError):
        return None
    return int(number) if number.is_integer() and abs(number) < 2.0**53 else number


def readable_cells(column: TypedColumn, kind: str) -> np.ndarray:
    """Return which cells (N,) of text spell a number, or a date; False where one is missing."""
    assert column.levels is not None
    # One more than the levels: a column of gaps only has none.
    flags = np.zeros(len(column.levels) + 1, dtype=np.bool_)
    for code, parsed in _parsed_levels(column, kind).items():
        is_number = isinstance(parsed, int | float)
        flags[code] = np.isfinite(float(parsed)) if is_number else parsed is not None
    return np.asarray(flags[column.values] & ~column.missing)


def without_words(column: TypedColumn, words: Sequence[str]) -> TypedColumn:
    """Return the column with gaps where a text is one of the words, or a number that one spells."""
    if not words or column.storage not in ("text", "number"):
        return column
    if column.levels is None:
        numbers = [number for number in map(_as_number, words) if number is not None]
        meant = np.isin(column.values, numbers)
    else:
        flags = [str(level).strip() in words for level in column.levels.tolist()]
        # One more than the levels: a column of gaps only has none.
        meant = np.array([*flags, False])[column.values]
    cells = column.as_written
    written = None if cells is None else lambda: without_words(cells(), words)
    return replace(column, missing=column.missing | meant, as_written=written)


def without_unreadable(column: TypedColumn, kind: str) -> TypedColumn:
    return replace(column, missing=~readable_cells(column, kind))


def as_fitted(schema: ColumnSchema, column: TypedColumn) -> TypedColumn:
    """Return the column as it was written if the fit took the cells for text, else as it is."""
    if column.as_written is not None and schema.storage == "text":
        return column.as_written()
    return column


def settled(schema: ColumnSchema, column: TypedColumn) -> TypedColumn:
    """Return a column of another table without cells that the schema takes for missing."""
    column = without_words(column, schema.gap_words)
    if schema.lenient and column.storage == "text" and schema.kind in READ_KINDS:
        return without_unreadable(column, schema.kind)
    return column


# Columns as a kind needs them


def check_usable(column: TypedColumn) -> None:
    if column.problem is not None:
        raise column.problem


def check_finite(name: str, column: TypedColumn) -> None:
    if column.values.dtype.kind == "f":
        bad = np.isinf(column.values) & ~column.missing
        if bad.any():
            row = int(bad.argmax())
            value = column.values[row].item()
            raise InputError(column=name, row=row, value=value, expected="finite numbers")


def as_numbers(name: str, column: TypedColumn) -> TypedColumn:
    numbers: TypedColumn | None = column
    level = column.value(column.first)
    if column.storage == "time":
        numbers = None
    elif column.storage != "number":
        numbers, level = parse_numbers(column)
    if numbers is None:
        raise wrong_kind(name, column, level, "numbers")
    check_finite(name, numbers)
    return numbers


def as_times(name: str, column: TypedColumn) -> TypedColumn:
    if column.storage == "time":
        return column
    times, level = None, column.value(column.first)
    if column.storage == "text":
        times, level = parse_times(column)
    if times is None:
        raise wrong_kind(name, column, level, "dates, such as 2024-05-31")
    return times


def check_counts(name: str, column: TypedColumn) -> None:
    values = column.values
    bad = ~((values >= 0) & (values == np.rint(values))) & ~column.missing
    if bad.any():
        raise wrong_kind(name, column, column.value(int(bad.argmax())), "whole numbers from 0 on")


def check_booleans(name: str, column: TypedColumn) -> None:
    bad = ~column.missing & (column.storage != "boolean")
    if column.storage == "number":
        bad &= (column.values != 0) & (column.values != 1)
    if bad.any():
        value = column.value(int(bad.argmax()))
        raise wrong_kind(name, column, value, "true and false, or 1 and 0")


def wrong_kind(name: str, column: TypedColumn, value: Any, expected: str) -> InputError:
    """Make the error for a value that is of another kind than its column."""
    rows = np.flatnonzero(~column.missing).tolist()
    row = next((row for row in rows if column.value(row) == value), None)
    return InputError(column=name, row=row, value=value, expected=expected)


def level_values(column: TypedColumn) -> tuple[list[Any], np.ndarray]:
    """Return the different values of a column, sorted, and the number (N,) of each row's."""
    used, numbers = np.unique(column.values, return_inverse=True)
    seen = np.zeros(used.shape[0], dtype=np.bool_)
    seen[numbers[~column.missing]] = True
    order = np.flatnonzero(seen).tolist()
    if column.levels is not None:
        levels = column.levels
        values: list[Any] = [levels[code] if code < len(levels) else None for code in used.tolist()]
        texts = not all(isinstance(values[n], int | float) for n in order)
        order.sort(key=lambda n: str(values[n]) if texts else values[n])
    else:
        values = used.astype(str).tolist() if column.storage == "time" else used.tolist()
    place = np.zeros(used.shape[0], dtype=np.int64)
    place[order] = np.arange(len(order))
    return [values[n] for n in order], place[numbers]

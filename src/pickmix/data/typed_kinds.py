"""What a column holds, found from its values: rounded numbers, counts, dates in text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.data.text_files import with_points
from pickmix.data.typed_tables import TypedColumn, whole_array

#: Kinds of columns. The last three are not part of a model.
KINDS = ("number", "integer", "count", "boolean", "category", "date", "constant", "skip")

# Numbers with more decimals than this are not taken for rounded ones.
_MOST_DECIMALS = 9
# Counts by Poisson distributions: no larger mean, and no larger value.
_MOST_MEAN, _MOST_COUNT = 10.0, 1000
_ISO = re.compile(r"(\d{4}-\d{2}-\d{2})(?:([T ])(\d{2}:\d{2}(?::\d{2}(?:\.(\d{1,9}))?)?)(Z?))?\Z")
_DIGITS = re.compile(r"\s*[+-]?\d{1,300}\s*\Z")
_TIME_STEPS = (
    ("D", 1),
    ("h", 1),
    ("m", 30),
    ("m", 15),
    ("m", 1),
    ("s", 1),
    ("ms", 1),
    ("us", 1),
    ("ns", 1),
)


@dataclass(frozen=True)
class Step:
    """A decimal step, `multiple` / 10**`decimals`, in whole numbers so that values are exact."""

    multiple: int
    decimals: int

    @property
    def size(self) -> float:
        """The step itself."""
        return self.multiple / 10.0**self.decimals

    def snap(self, values: np.ndarray) -> np.ndarray:
        """The nearest multiples of the step, each with the bits that its decimal digits have."""
        whole = np.rint(values * (10.0**self.decimals / self.multiple)) * self.multiple
        return np.asarray(whole / 10.0**self.decimals)


def find_step(values: np.ndarray) -> Step | None:
    """The largest decimal step that all values are multiples of.

    Steps are 1, 2, 2.5 or 5 times a power of ten, down to 1e-9.

    Parameters
    ----------
    values : (N,) array of finite numbers

    Returns
    -------
    step : Step or None
        None if there is none that the type's digits could show.

    Examples
    --------
    >>> find_step(np.array([0.1, 0.3, 12.7])).size
    0.1
    >>> find_step(np.array([50, 125, 1000])).size
    25.0
    >>> find_step(np.array([0.1234567890123, 2.0])) is None
    True
    """
    distinct = np.unique(values)
    noise = np.finfo(distinct.dtype).eps if distinct.dtype.kind == "f" else 0.0
    if noise == 0.0 and distinct.dtype != np.float64:
        whole = distinct if distinct.dtype.kind == "u" else np.abs(distinct.astype(np.int64))
        # The smallest int64 has no positive counterpart: its bits are those of 2**63.
        return _largest_step(int(np.gcd.reduce(whole.astype(np.uint64))), 0)
    distinct = distinct.astype(np.float64)
    largest = float(np.abs(distinct).max(initial=0.0))
    for decimals in range(_MOST_DECIMALS + 1):
        # Beyond this the rounding of the type itself looks like whole numbers.
        if largest * 10.0**decimals * noise > 1e-3:
            return None
        scaled = distinct * 10.0**decimals
        whole = np.rint(scaled)
        if (np.abs(scaled - whole) <= 4.0 * noise * np.abs(scaled)).all():
            return _largest_step(int(np.gcd.reduce(np.abs(whole).astype(np.int64))), decimals)
    return None


def _largest_step(divisor: int, decimals: int) -> Step:
    """1, 2, 2.5 or 5 times a power of ten that divides what all values are multiples of."""
    power = 1
    while divisor and divisor % 10 == 0:
        divisor, power = divisor // 10, power * 10
    multiple = next((m for m in (25, 5, 2) if divisor and divisor % m == 0), 1) * power
    while decimals and multiple % 10 == 0:
        multiple, decimals = multiple // 10, decimals - 1
    return Step(multiple, decimals)


def find_time_step(values: np.ndarray) -> Any:
    """The largest usual step of times: a day, an hour, half of it, a quarter, a minute, ...

    Examples
    --------
    >>> find_time_step(np.array(["2020-01-01T10:30", "2020-03-01T12:00"], dtype="M8[s]"))
    np.timedelta64(30,'m')
    """
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

    Examples
    --------
    >>> visits = np.random.default_rng(0).poisson(2.0, 500)
    >>> looks_like_counts(visits), looks_like_counts(np.arange(500) % 24)
    (True, False)
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
    """Numbers (N,) less a whole one, as floats; the difference is taken without rounding."""
    if not origin:
        return values.astype(np.float64)
    if values.dtype.kind not in "iu":
        return values.astype(np.float64) - origin
    # Python's own numbers: differences may be beyond 64 bits.
    return np.array([value - origin for value in values.tolist()], dtype=np.float64)


def parse_times(column: TypedColumn) -> tuple[TypedColumn | None, Any]:
    """Text of ISO dates or times as a column of times, or None and a level that is none.

    How they were written is kept in the form: the mark between date and time, and a Z for UTC.
    """
    assert column.levels is not None
    used = np.unique(column.observed)
    matches = {}
    for code in used.tolist():
        level = column.levels[code]
        match = _ISO.match(level) if isinstance(level, str) else None
        if match is None:
            return None, level
        matches[code] = match
    fraction = max(len(match[4] or "") for match in matches.values())
    days = all(match[3] is None for match in matches.values())
    unit = "D" if days else "s" if fraction == 0 else "ms" if fraction <= 3 else "us"
    unit = "ns" if fraction > 6 else unit
    parsed: Any = np.full(len(column.levels), "NaT", dtype=f"datetime64[{unit}]")
    for code, match in matches.items():
        text = match[1] if match[3] is None else f"{match[1]}T{match[3]}"
        try:
            parsed[code] = text
        except ValueError:
            return None, column.levels[code]
    marks = [match for match in matches.values() if match[3] is not None]
    form = column.form | {
        "text_unit": unit if days or any(len(m[3]) > 5 for m in marks) else "m",
        "text_mark": marks[0][2] if marks else "T",
        "text_zone": marks[0][5] if marks else "",
    }
    values = parsed[column.values] if len(parsed) else np.full(len(column.values), "NaT", "M8[D]")
    return TypedColumn("time", values, column.missing, form=form), None


def parse_numbers(column: TypedColumn) -> tuple[TypedColumn | None, Any]:
    """Text of numbers, or booleans, as a column of numbers; or None and a level that is none."""
    if column.storage == "boolean":
        values = column.values.astype(np.int64)
        return TypedColumn("number", values, column.missing, form=column.form), None
    assert column.levels is not None
    used = np.unique(column.observed).tolist()
    numbers: list[Any] = []
    for code in used:
        number = _as_number(column.levels[code], column.form.get("decimal", "."))
        if number is None:
            return None, column.levels[code]
        numbers.append(number)
    whole = None
    if all(isinstance(number, int) for number in numbers):
        whole = whole_array(numbers)
    found = np.array(numbers, dtype=np.float64) if whole is None else whole
    parsed = np.zeros(len(column.levels) + 1, dtype=found.dtype)
    parsed[used] = found
    return TypedColumn("number", parsed[column.values], column.missing, form=column.form), None


def _as_number(level: Any, decimal: str = ".") -> int | float | None:
    """The number that a level spells, whole if it is and no digit is lost by that."""
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
    """Which cells (N,) of a column of text spell a number, or a date; False where one is missing.

    Parameters
    ----------
    column : TypedColumn
        Of text.
    kind : str
        "date", or a kind of numbers.
    """
    assert column.levels is not None
    flags = np.zeros(len(column.levels) + 1, dtype=np.bool_)
    for code in np.unique(column.observed).tolist():
        level = column.levels[code]
        if kind == "date":
            flags[code] = isinstance(level, str) and _ISO.match(level) is not None
        else:
            number = _as_number(level, column.form.get("decimal", "."))
            flags[code] = number is not None and bool(np.isfinite(float(number)))
    return np.asarray(flags[column.values] & ~column.missing)

"""Columns with types and gaps: one light form for those of all kinds of tables."""

from __future__ import annotations

import datetime
import decimal
import numbers
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pickmix.inputs.errors import InputError, listed, shown

#: What a column may hold.
STORAGES = ("number", "boolean", "text", "time")


@dataclass(frozen=True)
class TypedColumn:
    """Values of a column, and which of them are missing."""

    #: "number", "boolean", "text" or "time".
    storage: str
    #: (N,) numbers of any width, booleans, codes of levels (int64), datetime64 or timedelta64. What
    #: stands at missing rows has no meaning.
    values: np.ndarray
    missing: np.ndarray
    #: Of text: the distinct values (L,) as objects, in the order of their codes.
    levels: np.ndarray | None = None
    #: What the column was in its own table, as JSON: enough to make such a column again.
    form: dict[str, Any] = field(default_factory=dict)
    #: Of text that was made out of values of several types: which types.
    mixes: str = ""
    #: Of numbers and booleans out of a text file: makes the column of cells as they were written.
    as_written: Callable[[], TypedColumn] | None = None
    #: Why the column can be no part of a model. Its values then have no meaning.
    problem: InputError | None = None

    @property
    def observed(self) -> np.ndarray:
        return self.values if not self.missing.any() else self.values[~self.missing]

    @property
    def first(self) -> int:
        return int((~self.missing).argmax())

    def value(self, row: int) -> Any:
        """Return the value of a row, for messages."""
        if self.missing[row]:
            return None
        if self.levels is not None:
            return self.levels[self.values[row]]
        return self.values[row].item() if self.storage != "time" else str(self.values[row])

    def take(self, rows: np.ndarray) -> TypedColumn:
        cells = self.as_written
        written = None if cells is None else lambda: cells().take(rows)
        values, missing = self.values[rows], self.missing[rows]
        return replace(self, values=values, missing=missing, as_written=written)


@dataclass(frozen=True)
class TypedTable:
    """Columns of one length by their names, in the order of the table."""

    columns: dict[str, TypedColumn]
    n_rows: int
    #: "dict", "pandas", "polars" or "pyarrow": what they come from, or are to be given back as.
    origin: str

    def __len__(self) -> int:
        return self.n_rows

    def take(self, rows: np.ndarray, axis: int = 0) -> TypedTable:
        """Return some rows, as `ndarray.take` does."""
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        return TypedTable(columns, int(rows.shape[0]), self.origin)


def make_table(columns: Iterable[tuple[Any, TypedColumn]], origin: str) -> TypedTable:
    """Make a table of columns whose names differ and whose lengths are equal."""
    table: dict[str, TypedColumn] = dict(columns)
    if not table:
        raise InputError("must have columns, got none")
    lengths = {name: column.values.shape[0] for name, column in table.items()}
    if len(set(lengths.values())) > 1:
        pairs = listed(lengths.items(), lambda pair: f"{shown(pair[0])}: {pair[1]}")
        raise ValueError(f"Columns must have one length, got {{{pairs}}}.")
    return TypedTable(table, next(iter(lengths.values())), origin)


def check_names(names: Sequence[Any]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise ValueError(
                f"Column names must be text, got {shown(name)}. In pandas: "
                "table.columns = table.columns.astype(str)."
            )
    if len(set(names)) < len(names):
        twice = next(name for number, name in enumerate(names) if name in names[:number])
        raise ValueError(f"Column names must differ, but {shown(twice)} stands there twice.")


def read_column(read: Callable[[str, Any], TypedColumn], name: str, values: Any) -> TypedColumn:
    """Read a column. What is wrong with it is kept: perhaps it is not part of the model."""
    try:
        return read(name, values)
    except InputError as error:
        codes = np.zeros(len(values), dtype=np.int64)
        missing = np.ones(len(values), dtype=np.bool_)
        return TypedColumn("text", codes, missing, as_objects([]), problem=error)


def unknown_type(name: str, kind: Any, remedy: str = "Leave it out: {exclude} or {skip}.") -> Any:
    expected = "numbers, booleans, text or times"
    return InputError(column=name, expected=expected, got=str(kind)[:80], remedy=remedy)


def from_array(name: str, array: np.ndarray) -> TypedColumn:
    """Make a column of a NumPy array (N,), masked or not."""
    masked = np.ma.getmaskarray(array) if isinstance(array, np.ma.MaskedArray) else None
    array = np.asarray(array)
    if array.ndim != 1:
        raise InputError(f"must have one dimension, got shape {array.shape}", column=name)
    kind, dtype = array.dtype.kind, array.dtype
    form = {"dtype": "str" if kind in "UST" else dtype.str if kind in "mM" else dtype.name}
    missing = np.zeros(array.shape[0], dtype=np.bool_) if masked is None else masked
    if kind in "biuf":
        missing = missing | np.isnan(array) if kind == "f" else missing
        return TypedColumn("boolean" if kind == "b" else "number", array, missing, form=form)
    if kind in "mM":
        if np.datetime_data(dtype)[0] in ("Y", "M", "W", "generic"):
            # Months have no length of their own: their first days stand for them.
            array = array.astype(f"{kind}8[D]")
        return TypedColumn("time", array, missing | np.isnat(array), form=form)
    if kind in "OUST":
        column = from_objects(name, array.tolist(), form)
        return replace(column, missing=column.missing | missing)
    raise unknown_type(name, dtype)


def from_objects(name: str, values: Sequence[Any], form: dict[str, Any]) -> TypedColumn:
    """Make a column of Python objects: their types say what it holds."""
    try:
        # Without a loop in Python: millions of cells come through here.
        distinct = list(dict.fromkeys(values))
    except TypeError:
        row = next(row for row, value in enumerate(values) if not _is_hashable(value))
        raise InputError(
            column=name,
            row=row,
            value=values[row],
            expected="single values",
            remedy="Leave the column out: {skip}.",
        ) from None
    code = dict(zip(distinct, range(len(distinct)), strict=True))
    codes = np.fromiter(map(code.__getitem__, values), dtype=np.int64, count=len(values))
    return from_codes(codes, distinct, form)


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def from_codes(codes: np.ndarray, distinct: Sequence[Any], form: dict[str, Any]) -> TypedColumn:
    """Make a column of codes (N,), -1 for missing, and the values that they stand for."""
    kinds = [_kind_of(value) for value in distinct]
    present = sorted(set(kinds) - {"missing"})
    plain = [None if k == "missing" else v for v, k in zip(distinct, kinds, strict=True)]
    missing = np.array([*(value is None for value in plain), True], dtype=np.bool_)[codes]
    if present == ["boolean"]:
        truth = np.array([*map(bool, plain), False])
        return TypedColumn("boolean", truth[codes], missing, form=form)
    if present == ["number"]:
        filled = [*(0 if value is None else value for value in plain), 0]
        is_whole = all(isinstance(value, numbers.Integral) for value in filled)
        array = (
            whole_array(list(map(int, filled))) if is_whole else np.array(list(map(float, filled)))
        )
        # Whole numbers that 64 bits cannot hold are text.
        if array is not None:
            return TypedColumn("number", array[codes], missing, form=form)
    if present in (["time"], ["duration"]):
        if any(getattr(value, "tzinfo", None) is not None for value in plain):
            form = {"time_zone": "UTC"} | form
        if any(isinstance(value, datetime.datetime) for value in plain):
            form = form | {"datetime": True}
        return TypedColumn("time", _time_array([*plain, None])[codes], missing, form=form)
    # Text; values of several types, or of others, as text.
    places: dict[str, int] = {}
    level = [0 if v is None else places.setdefault(str(v), len(places)) for v in plain]
    mixes = "" if len(present) < 2 and present != ["other"] else " and ".join(present)
    values = np.array([*level, 0], dtype=np.int64)[codes]
    return TypedColumn("text", values, missing, as_objects(list(places)), form, mixes)


def as_objects(values: Sequence[Any]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _kind_of(value: Any) -> str:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return "missing"
    if isinstance(value, str):
        return "text" if value else "missing"
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, np.datetime64 | np.timedelta64) and np.isnat(value):
        return "missing"
    # Before numbers, as NumPy calls its durations whole numbers.
    if isinstance(value, datetime.timedelta | np.timedelta64):
        return "duration"
    if isinstance(value, numbers.Real | decimal.Decimal):
        return "missing" if value != value else "number"
    return "time" if isinstance(value, datetime.date | np.datetime64) else "other"


def whole_array(values: Sequence[int]) -> np.ndarray | None:
    """Return whole numbers in 64 bits, with a sign if need be; None if they do not fit."""
    lowest, highest = min(values, default=0), max(values, default=0)
    if lowest >= -(2**63) and highest < 2**63:
        return np.array(values, dtype=np.int64)
    return np.array(values, dtype=np.uint64) if lowest >= 0 and highest < 2**64 else None


def _time_array(values: Sequence[Any]) -> np.ndarray:
    """Return dates as days; times without their zones, in UTC; durations; NaT for None."""
    if any(isinstance(value, datetime.timedelta | np.timedelta64) for value in values):
        return np.array(["NaT" if value is None else value for value in values], dtype="m8[us]")
    timed = any(isinstance(value, datetime.datetime | np.datetime64) for value in values)
    plain = [
        value.astimezone(datetime.UTC).replace(tzinfo=None)
        if isinstance(value, datetime.datetime) and value.tzinfo is not None
        else value
        for value in values
    ]
    known: list[Any] = ["NaT" if value is None else value for value in plain]
    return np.array(known, dtype="datetime64[us]" if timed else "datetime64[D]")

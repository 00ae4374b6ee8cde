"""Tables with columns of several types and with gaps: one light form for all kinds of tables."""

from __future__ import annotations

import datetime
import decimal
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

#: What a column may hold.
STORAGES = ("number", "boolean", "text", "time")


@dataclass(frozen=True)
class TypedColumn:
    """One column: values, and which of them are missing.

    Attributes
    ----------
    storage : {"number", "boolean", "text", "time"}
    values : (N,) array
        Numbers of any width, booleans, codes of levels (int64), or datetime64 and timedelta64.
        What stands at missing places has no meaning.
    missing : (N,) bool array
    levels : (L,) object array or None
        Of text: the distinct values, in the order of their codes.
    form : dict
        What the column was in its own table, as JSON: enough to make such a column again.
    mixes : str
        Of text that was made out of values of several types: which types. Otherwise empty.
    written : TypedColumn or None
        Of numbers and booleans out of a text file: the cells as they were written.
    problem : str
        Why the column can be no part of a model. Its values then have no meaning.
    """

    storage: str
    values: np.ndarray
    missing: np.ndarray
    levels: np.ndarray | None = None
    form: dict[str, Any] = field(default_factory=dict)
    mixes: str = ""
    written: TypedColumn | None = None
    problem: str = ""

    @property
    def observed(self) -> np.ndarray:
        """The values that are not missing."""
        return self.values if not self.missing.any() else self.values[~self.missing]

    def value(self, row: int) -> Any:
        """The value of a row, for messages."""
        if self.missing[row]:
            return None
        if self.levels is not None:
            return self.levels[self.values[row]]
        return self.values[row].item() if self.storage != "time" else str(self.values[row])

    def take(self, rows: np.ndarray) -> TypedColumn:
        """Some rows of the column."""
        written = None if self.written is None else self.written.take(rows)
        return replace(self, values=self.values[rows], missing=self.missing[rows], written=written)


@dataclass(frozen=True)
class TypedTable:
    """Columns of one length by their names.

    Attributes
    ----------
    columns : dict of TypedColumn
        In the order of the table.
    n_rows : int
    origin : {"dict", "pandas", "polars", "pyarrow"}
        What kind of table they come from, or are to be given back as.
    """

    columns: dict[str, TypedColumn]
    n_rows: int
    origin: str

    def take(self, rows: np.ndarray) -> TypedTable:
        """Some rows of the table, by their numbers."""
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        return TypedTable(columns, int(rows.shape[0]), self.origin)


def unusable(n_rows: int, problem: str) -> TypedColumn:
    """A column that can be no part of a model; it does no harm where it is not looked at."""
    nothing = np.ones(n_rows, dtype=np.bool_)
    codes = np.zeros(n_rows, dtype=np.int64)
    return TypedColumn("text", codes, nothing, as_objects([]), problem=problem)


def make_table(columns: Iterable[tuple[Any, TypedColumn]], origin: str) -> TypedTable:
    """A table of columns, once their names and lengths are found to be sound."""
    found: dict[str, TypedColumn] = {}
    for name, column in columns:
        check_name(name)
        if name in found:
            raise ValueError(f"Column names must differ, but {name!r} stands there twice.")
        found[name] = column
    if not found:
        raise ValueError("The table must have columns, got none.")
    lengths = {name: column.values.shape[0] for name, column in found.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"Columns must have one length, got {lengths}.")
    n_rows = next(iter(lengths.values()))
    return TypedTable(found, n_rows, origin)


def check_name(name: Any) -> None:
    """Refuse a name that is not text."""
    if not isinstance(name, str):
        raise ValueError(
            f"Column names must be text, got {name!r}. In pandas: "
            "table.columns = table.columns.astype(str)."
        )


def from_array(name: str, array: np.ndarray, form: dict[str, Any] | None = None) -> TypedColumn:
    """A column out of a NumPy array (N,), masked or not."""
    masked = np.ma.getmaskarray(array) if isinstance(array, np.ma.MaskedArray) else None
    array = np.asarray(array)
    if array.ndim != 1:
        raise ValueError(f"Column {name!r} must have one dimension, got shape {array.shape}.")
    form = {"dtype": _dtype_name(array.dtype)} if form is None else form
    kind = array.dtype.kind
    missing = np.zeros(array.shape[0], dtype=np.bool_) if masked is None else masked
    if kind == "b":
        return TypedColumn("boolean", array, missing, form=form)
    if kind in "iu":
        return TypedColumn("number", array, missing, form=form)
    if kind == "f":
        return TypedColumn("number", array, missing | np.isnan(array), form=form)
    if kind in "mM":
        unit = np.datetime_data(array.dtype)[0]
        if unit in ("Y", "M", "W", "generic"):
            # Months have no length of their own: their first days stand for them.
            array = array.astype(f"{kind}8[D]")
        return TypedColumn("time", array, missing | np.isnat(array), form=form)
    if kind in "OUST":
        column = from_objects(name, array.tolist(), form)
        return column if masked is None else _also_missing(column, missing)
    raise ValueError(
        f"Column {name!r} must hold numbers, booleans, text or times, got {array.dtype}."
    )


def _also_missing(column: TypedColumn, missing: np.ndarray) -> TypedColumn:
    return replace(column, missing=column.missing | missing)


def _dtype_name(dtype: np.dtype[Any]) -> str:
    return "str" if dtype.kind in "UST" else dtype.str if dtype.kind in "mM" else dtype.name


def factorise(name: str, values: Sequence[Any]) -> tuple[np.ndarray, list[Any]]:
    """Codes (N,) and the distinct values, in the order in which they come."""
    try:
        # Without a loop in Python: millions of cells come through here.
        distinct = list(dict.fromkeys(values))
    except TypeError:
        row = next(row for row, value in enumerate(values) if not _is_hashable(value))
        raise ValueError(
            f"Column {name!r} must hold single values, but row {row} holds {values[row]!r}. "
            f'Leave the column out: schema={{"{name}": "skip"}}.'
        ) from None
    place = dict(zip(distinct, range(len(distinct)), strict=True))
    codes = np.fromiter(map(place.__getitem__, values), dtype=np.int64, count=len(values))
    return codes, distinct


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def from_objects(name: str, values: Sequence[Any], form: dict[str, Any]) -> TypedColumn:
    """A column out of Python objects: their types say what it holds."""
    codes, distinct = factorise(name, values)
    return from_codes(codes, distinct, form)


def from_codes(codes: np.ndarray, distinct: Sequence[Any], form: dict[str, Any]) -> TypedColumn:
    """A column out of codes (N,), -1 for missing, and the values that they stand for."""
    kinds = [_kind_of(value) for value in distinct]
    present = sorted(set(kinds) - {"missing"})
    absent = np.array([*(kind == "missing" for kind in kinds), True], dtype=np.bool_)
    missing = absent[codes]
    if present == ["boolean"]:
        true = [kind != "missing" and bool(v) for v, kind in zip(distinct, kinds, strict=True)]
        return TypedColumn("boolean", np.array([*true, False])[codes], missing, form=form)
    if present == ["number"]:
        plain = [0 if kind == "missing" else v for v, kind in zip(distinct, kinds, strict=True)]
        array = _number_array([*plain, 0])
        if array is not None:
            return TypedColumn("number", array[codes], missing, form=form)
    if present in (["time"], ["duration"]):
        plain = [None if kind == "missing" else v for v, kind in zip(distinct, kinds, strict=True)]
        if any(getattr(value, "tzinfo", None) is not None for value in plain):
            form = form | {"time_zone": "UTC"} if "time_zone" not in form else form
        if any(isinstance(value, datetime.datetime) for value in plain):
            form = form | {"datetime": True}
        times = _time_array([*plain, None], present[0])
        return TypedColumn("time", times[codes], missing, form=form)
    # Text; values of several types, or of others, as text.
    levels, place = [], np.zeros(len(distinct) + 1, dtype=np.int64)
    known: dict[str, int] = {}
    for number, (value, kind) in enumerate(zip(distinct, kinds, strict=True)):
        if kind != "missing":
            text = str(value)
            place[number] = known.setdefault(text, len(known))
    levels = list(known)
    mixes = "" if len(present) < 2 and present != ["other"] else " and ".join(present)
    return TypedColumn("text", place[codes], missing, as_objects(levels), form, mixes)


def as_objects(values: Sequence[Any]) -> np.ndarray:
    """Values as an object array (L,), whatever they are."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _kind_of(value: Any) -> str:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return "missing"
    if isinstance(value, str):
        return "missing" if not value else "text"
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, numbers.Real | decimal.Decimal):
        return "missing" if value != value else "number"
    if isinstance(value, np.datetime64 | np.timedelta64):
        if np.isnat(value):
            return "missing"
        return "time" if isinstance(value, np.datetime64) else "duration"
    if isinstance(value, datetime.timedelta):
        return "duration"
    return "time" if isinstance(value, datetime.date) else "other"


def _number_array(values: Sequence[Any]) -> np.ndarray | None:
    """Numbers as an array; None for whole ones that 64 bits cannot hold."""
    if all(isinstance(value, numbers.Integral) for value in values):
        return whole_array([int(value) for value in values])
    return np.array([float(value) for value in values])


def whole_array(values: Sequence[int]) -> np.ndarray | None:
    """Whole numbers in 64 bits, with a sign if need be; None if they do not fit."""
    lowest, highest = min(values, default=0), max(values, default=0)
    if lowest >= -(2**63) and highest < 2**63:
        return np.array(values, dtype=np.int64)
    return np.array(values, dtype=np.uint64) if lowest >= 0 and highest < 2**64 else None


def _time_array(values: Sequence[Any], kind: str) -> np.ndarray:
    """Dates as days; times without their zones, in UTC; durations."""
    if kind == "duration":
        return np.array(["NaT" if value is None else value for value in values], dtype="m8[us]")
    plain = []
    for value in values:
        if isinstance(value, datetime.datetime) and value.tzinfo is not None:
            value = value.astimezone(datetime.UTC).replace(tzinfo=None)
        plain.append("NaT" if value is None else value)
    days = all(
        value == "NaT" or not isinstance(value, datetime.datetime | np.datetime64)
        for value in plain
    )
    return np.array(plain, dtype="datetime64[D]" if days else "datetime64[us]")

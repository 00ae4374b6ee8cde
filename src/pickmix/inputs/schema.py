"""The columns of a table: kinds, levels, steps and scales."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from pickmix.inputs.columns import STORAGES
from pickmix.inputs.errors import InputError, aligned, shown

#: Kinds of columns. The last two are not part of a model.
KINDS = ("number", "integer", "ordinal", "count", "boolean", "category", "date", "constant", "skip")
#: Kinds by the family that models them.
GAUSSIAN_KINDS = ("number", "integer", "date")
LEVEL_KINDS = ("boolean", "category")
#: The unit of dates in a model.
DAY: Any = np.timedelta64(1, "D")
#: Units of times, as NumPy names them.
UNITS = {"D": "days", "h": "hours", "m": "minutes", "s": "seconds"}
UNITS |= {"ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
# What columns of a kind are stored as; others may be stored as anything.
_STORAGES: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("number", "integer", "ordinal", "count"), ("number",)
)
_STORAGES |= {"date": ("time",), "boolean": ("boolean", "number")}
_ORIGINS = ("dict", "pandas", "polars", "pyarrow")
# Fields of `inputs/maps.py`.
_NUMBERS = ("atoms", "knots", "support", "ends")
# What fields are in JSON by the types of their defaults, and the names of that in messages.
_FIELD_TYPES: dict[type, tuple[Any, str]] = {str: (str, "text"), tuple: (list | tuple, "a list")}
_FIELD_TYPES |= {bool: (bool, "true or false"), int: (int, "a whole number")}


@dataclass(frozen=True)
class ColumnSchema:
    """One column: what it holds, and how its values become coordinates and back."""

    name: str
    kind: str
    #: As in `TypedColumn`.
    storage: str
    form: dict[str, Any] = field(default_factory=dict)
    #: Share of rows without a value.
    missing: float = 0.0
    #: Smallest and largest value of numbers and dates (as text); None of others.
    lowest: Any = None
    highest: Any = None
    #: Of categories and booleans, sorted, None last if gaps are a level; of a constant its value.
    levels: tuple[Any, ...] = ()
    #: The coordinate of each level. Rare levels may share one.
    codes: tuple[int, ...] = ()
    #: Share of each level among the levels of its code.
    shares: tuple[float, ...] = ()
    #: Of rounded numbers, and of dates in days.
    step: float | None = None
    #: A coordinate of numbers and dates is value / scale; dates count days.
    scale: float = 1.0
    #: Whether values are stored as whole numbers.
    whole: bool = False
    #: The step in whole numbers, multiple / 10**decimals; of dates in units.
    multiple: int = 1
    decimals: int = 0
    #: Of dates, as NumPy has it.
    unit: str = ""
    #: Of dates: their smallest value, in such units. Of whole numbers so large that float64 would
    #: lose digits: the smallest one. Coordinates count from there.
    origin: int = 0
    #: Whether cells that are not numbers or dates count as missing: the fitted table had such cells
    #: and the kind was given.
    lenient: bool = False
    #: Texts, also of numbers, that mean a missing value.
    gap_words: tuple[str, ...] = ()
    #: Of ordinals: after which values begin anew, such as hours after 24; 0 if they do not.
    period: float = 0.0
    #: Of numbers and dates, counted from the origin: values with probabilities of their own, and
    #: the only values of draws, if not all are possible.
    atoms: tuple[float, ...] = ()
    support: tuple[float, ...] = ()
    #: The map of other values to normal scores (`inputs/maps.py`): coordinates and scores, whether
    #: it is smooth, and the smallest and largest coordinate.
    knots: tuple[tuple[float, ...], ...] = ()
    is_smooth: bool = False
    ends: tuple[float, ...] = ()

    @property
    def is_modelled(self) -> bool:
        return self.kind not in ("constant", "skip")

    @property
    def has_gap_level(self) -> bool:
        return bool(self.levels) and self.levels[-1] is None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ColumnSchema:
        """Make a column of plain values; what no fit could have made is refused."""
        if not isinstance(values, Mapping):
            raise _damaged(None, "columns", "a dict for each column", values)
        known = {entry.name for entry in fields(cls)}
        plain = {name: value for name, value in values.items() if name in known}
        for each in fields(cls):
            default = "" if each.name in ("name", "kind", "storage") else each.default
            kind, expected = _FIELD_TYPES.get(type(default), (object, ""))
            if not isinstance(plain.get(each.name, each.default), kind):
                raise _damaged(plain.get("name"), each.name, expected, plain.get(each.name))
        for name in ("levels", "codes", "shares", "gap_words"):
            plain[name] = tuple(plain.get(name, ()))
        for name in _NUMBERS:
            plain[name] = _nested(plain.get("name"), name, plain.get(name, ()))
        column = cls(**plain)
        _check_column(column)
        return column

    def describe(self) -> tuple[str, str, str, str, str]:
        """Return name, kind, levels or range, step and share of missing values, for people."""
        if self.kind == "skip":
            return self.name, self.kind, "", "", ""
        content = ""
        if self.levels:
            is_number = self.kind == "ordinal"
            levels = ["(gap)" if level is None else level for level in self.levels]
            named = [f"{level:.6g}" if is_number else str(level) for level in levels[:4]]
            rest = len(self.levels) - len(named)
            content = ", ".join(named) + (f", ... ({rest:,} more)" if rest else "")
            content += f"; period {self.period:g}" if self.period else ""
        elif self.lowest is not None:
            ends = (self.lowest, self.highest)
            content = " to ".join(end if isinstance(end, str) else f"{end:.6g}" for end in ends)
        if self.atoms:
            content += f"; {self.shown_atoms()}"
        step = "" if self.step is None else f"{self.step:g}"
        if self.kind == "date" and self.step is not None:
            step = f"{self.multiple} {self.unit}"
        return self.name, self.kind, content, step, f"{100.0 * self.missing:.1f}%"

    def shown_atoms(self) -> str:
        """Name the values that have probabilities of their own, for people."""
        values = self.atoms
        if self.kind == "date":
            make: Any = np.timedelta64 if self.form.get("duration") else np.datetime64
            days = np.rint(np.array(values) / float(self.step or 1.0)) * self.multiple
            first = make(self.origin, self.unit)
            named = [str(first + day) for day in days.astype(f"m8[{self.unit}]")]
        else:
            named = [f"{value + self.origin:.6g}" for value in values]
        rest = len(named) - 3
        return "often " + ", ".join(named[:3]) + (f", ... ({rest} more)" if rest > 0 else "")


class TableSchema:
    """What the columns of a table hold. Printing it shows a table.

    Parameters
    ----------
    columns : sequence of ColumnSchema
        In the order of the table.
    origin : str
        As in `TypedTable`: the kind of table that answers come as.

    Examples
    --------
    >>> smokes = ColumnSchema("smokes", "boolean", "boolean", levels=(False, True))
    >>> print(TableSchema([ColumnSchema("note", "skip", "text"), smokes], "dict"))
    column  kind     levels or range  step  missing
    note    skip
    smokes  boolean  False, True               0.0%
    """

    def __init__(self, columns: Sequence[ColumnSchema], origin: str) -> None:
        self.columns = {column.name: column for column in columns}
        self.origin = origin
        #: Columns of the model, in an order that does not depend on the table's.
        self.modelled = [
            self.columns[name] for name in sorted(self.columns) if self.columns[name].is_modelled
        ]

    def __getitem__(self, name: str) -> ColumnSchema:
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.columns)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TableSchema):
            return NotImplemented
        return self.columns == other.columns and self.origin == other.origin

    __hash__ = None  # type: ignore[assignment]

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each column, as the parameter `schema` of an estimator takes them."""
        return {
            name: f"periodic {column.period:.17g}" if column.period else column.kind
            for name, column in self.columns.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        columns = [column.as_dict() for column in self.columns.values()]
        return {"origin": self.origin, "columns": columns}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TableSchema:
        """Make a schema of plain values; what no fit could have made is refused."""
        columns = values.get("columns") if isinstance(values, Mapping) else None
        if not isinstance(columns, list | tuple) or not columns:
            raise _damaged(None, "columns", "a list of columns", columns)
        if values.get("origin") not in _ORIGINS:
            raise _damaged(None, "origin", f"one of {_ORIGINS}", values.get("origin"))
        schema = cls([ColumnSchema.from_dict(entry) for entry in columns], values["origin"])
        if len(schema) < len(columns) or not schema.modelled:
            names = [entry["name"] for entry in columns]
            raise _damaged(None, "columns", "different names, and a column of the model", names)
        return schema

    def __str__(self) -> str:
        lines = [("column", "kind", "levels or range", "step", "missing")]
        lines += [column.describe() for column in self.columns.values()]
        return "\n".join(aligned(lines, 3))

    __repr__ = __str__


def _damaged(column: Any, name: str, expected: str, value: Any) -> InputError:
    where = f" in the schema of column {shown(column)}" if column is not None else " of a schema"
    problem = (
        f"must be as it was fitted: expected {expected} for {name!r}{where}, got {shown(value)}"
    )
    return InputError(problem, column=column, expected=expected)


def _nested(column: Any, name: str, values: Any) -> tuple[Any, ...]:
    try:
        return tuple(
            tuple(map(float, value)) if isinstance(value, list | tuple) else float(value)
            for value in values
        )
    except (TypeError, ValueError) as error:
        raise _damaged(column, name, "numbers", values) from error


def _rises(values: Sequence[Any]) -> bool:
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    return array.ndim == 1 and bool(np.isfinite(array).all() and (np.diff(array) > 0.0).all())


def _is_map(column: ColumnSchema) -> bool:
    sizes = [len(part) if isinstance(part, tuple) else 0 for part in column.knots]
    if len(sizes) != 2 or sizes[0] != sizes[1] or sizes[0] < 2 or len(column.ends) != 2:
        return False
    return all(map(_rises, column.knots)) and column.ends[0] <= column.ends[1]


def _check_column(column: ColumnSchema) -> None:
    """Refuse what would make rows of another model: fields of other types, levels without codes."""

    def is_number(value: Any) -> bool:
        return type(value) in (int, float) and math.isfinite(value)

    kind, codes, shares = column.kind, column.codes, column.shares
    n_levels, has_levels = len(column.levels), kind in (*LEVEL_KINDS, "ordinal", "constant")
    is_dated = kind == "date" or (kind == "constant" and column.storage == "time")
    coded = len(codes) == n_levels and all(type(code) is int for code in codes)
    coded = coded and set(codes) == set((0, 1) if kind == "boolean" else range(len(set(codes))))
    shared = len(shares) == n_levels and all(is_number(share) and share > 0 for share in shares)
    if coded and shared and n_levels:
        shared = bool((np.abs(np.bincount(codes, shares) - 1.0) < 1e-6).all())
    texts = column.levels[:-1] if column.has_gap_level else column.levels
    readable = column.storage != "text" or all(isinstance(text, str) for text in texts)
    stepped = is_number(column.step) and float(column.step or 0) > 0
    checks = {
        "kind": (kind in KINDS, f"one of {KINDS}"),
        "storage": (column.storage in _STORAGES.get(kind, STORAGES), "that of the kind"),
        "form": (isinstance(column.form, dict), "a dict"),
        "levels": (bool(n_levels) == has_levels, "levels where the kind has some"),
        "levels of texts": (readable, "texts"),
        "codes": (coded, "whole numbers from 0 on, one for each level"),
        "shares": (shared, "numbers that sum to one over the levels of each code"),
        "step": (stepped or kind not in ("integer", "date"), "a positive number"),
        "scale": (
            isinstance(column.scale, float) and 0.0 < column.scale < math.inf,
            "a finite positive number",
        ),
        "unit": (column.unit in UNITS if is_dated else column.unit == "", f"one of {[*UNITS]}"),
        "levels of an ordinal": (
            kind != "ordinal" or _rises(column.levels),
            "numbers, each larger than the one before",
        ),
        "period": (
            not column.period
            or (is_number(column.period) and column.levels[-1] - column.levels[0] < column.period),
            "a number larger than all differences of levels",
        ),
        "knots": (not column.knots or _is_map(column), "values and scores, both rising"),
        "atoms": (_rises(column.atoms) and (not column.atoms or column.knots), "rising numbers"),
        "support": (_rises(column.support), "rising numbers"),
        "origin": (-(2**63) <= column.origin < 2**64, "a whole number of 64 bits"),
    }
    for name, (is_right, expected) in checks.items():
        if not is_right:
            raise _damaged(column.name, name, expected, getattr(column, name.split()[0]))

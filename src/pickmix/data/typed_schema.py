"""The columns of a table: kinds, levels, steps and scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

#: Kinds by the family that models them.
GAUSSIAN_KINDS = ("number", "integer", "date")
LEVEL_KINDS = ("boolean", "category")
#: The unit of dates in a model.
DAY: Any = np.timedelta64(1, "D")


@dataclass(frozen=True)
class ColumnSchema:
    """One column: what it holds, and how its values become coordinates and back.

    Attributes
    ----------
    name, kind : str
    storage, form
        As in `TypedColumn`.
    missing : float
        Share of rows without a value.
    lowest, highest
        Smallest and largest value of numbers and dates (as text); None of others.
    levels : tuple
        Of categories and booleans, sorted; of a constant its value.
    codes : tuple of int
        The coordinate of each level. Rare levels may share one.
    shares : tuple of float
        Share of each level among the levels of its code.
    step : float or None
        Of rounded numbers, and of dates in days.
    scale : float
        A coordinate of numbers and dates is value / scale; dates count days.
    whole : bool
        Whether values are stored as whole numbers.
    multiple, decimals : int
        The step in whole numbers, multiple / 10**decimals; of dates in units.
    unit : str
        Of dates, as NumPy has it.
    origin : int
        Of dates: their smallest value, in such units. Of whole numbers so large that float64 would
        lose digits: the smallest one. Coordinates count from there.
    lenient : bool
        Whether cells that are not numbers or dates count as missing. True if the fitted table had
        such cells and the kind was given.
    """

    name: str
    kind: str
    storage: str
    form: dict[str, Any] = field(default_factory=dict)
    missing: float = 0.0
    lowest: Any = None
    highest: Any = None
    levels: tuple[Any, ...] = ()
    codes: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()
    step: float | None = None
    scale: float = 1.0
    whole: bool = False
    multiple: int = 1
    decimals: int = 0
    unit: str = ""
    origin: int = 0
    lenient: bool = False

    @property
    def is_modelled(self) -> bool:
        """Whether the column is part of a model."""
        return self.kind not in ("constant", "skip")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ColumnSchema:
        """Inverse of `as_dict`."""
        known = {entry.name for entry in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})

    def describe(self) -> tuple[str, str, str, str, str]:
        """Name, kind, levels or range, step and share of missing values, for people."""
        if self.kind == "skip":
            return self.name, self.kind, "", "", ""
        content = ""
        if self.levels:
            named = [str(level) for level in self.levels[:4]]
            rest = len(self.levels) - len(named)
            content = ", ".join(named) + (f", ... ({rest:,} more)" if rest else "")
        elif self.lowest is not None:
            low, high = (
                value if isinstance(value, str) else f"{value:.6g}"
                for value in (self.lowest, self.highest)
            )
            content = f"{low} to {high}"
        step = "" if self.step is None else f"{self.step:g}"
        if self.kind == "date" and self.step is not None:
            step = f"{self.multiple} {self.unit}"
        return self.name, self.kind, content, step, f"{100.0 * self.missing:.1f}%"


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
        return {name: column.kind for name, column in self.columns.items()}

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "origin": self.origin,
            "columns": [column.as_dict() for column in self.columns.values()],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TableSchema:
        """Inverse of `as_dict`."""
        return cls([ColumnSchema.from_dict(entry) for entry in values["columns"]], values["origin"])

    def __str__(self) -> str:
        lines = [("column", "kind", "levels or range", "step", "missing")]
        lines += [column.describe() for column in self.columns.values()]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if place > 2 else cell.ljust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )

    __repr__ = __str__

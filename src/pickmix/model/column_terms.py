"""How one column of a model reads in the terms of the user's table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ColumnTerms:
    """A column: its name and place, and how coordinates of the model become values.

    A value is coordinate * scale + offset; of dates, days since `start`.
    """

    name: str
    #: Number of the column in the model's rows.
    place: int
    #: As the schema of a table has it; empty for arrays.
    kind: str = ""
    scale: float = 1.0
    offset: float = 0.0
    #: What values are multiples of, if the model knows that they are rounded.
    step: float | None = None
    #: Names of the codes of a column of levels.
    levels: tuple[str, ...] = ()
    #: The date that days are counted from; None of durations and of what is no date.
    start: Any = None

    def values(self, coordinates: np.ndarray) -> np.ndarray:
        return coordinates if self.levels else np.asarray(coordinates * self.scale + self.offset)

    @property
    def axis_name(self) -> str:
        """The name, and what days of a date are counted from."""
        if self.kind != "date":
            return self.name
        since = "" if self.start is None else f" since {self.start.astype('datetime64[D]')}"
        return f"{self.name} (days{since})"

    def dates(self, days: np.ndarray) -> list[str]:
        """Days as dates; of a column with a `start`."""
        whole = np.rint(days).astype("timedelta64[D]")
        return [str(date) for date in (self.start + whole).astype("datetime64[D]")]

"""A table's content, apart from how it is written: see `render`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar


@dataclass(frozen=True)
class Text:
    """Words; no words are shown as missing."""

    text: str


@dataclass(frozen=True)
class Number:
    """One number; NaN and infinities are shown as missing.

    Attributes
    ----------
    value : float
    digits : int
        Behind the point.
    best : bool
        Whether it is the better one of those that are compared.
    cut : bool
        Whether it rests on a run that did not come to its end.
    """

    value: float = math.nan
    digits: int = 2
    best: bool = False
    cut: bool = False


@dataclass(frozen=True)
class Spread:
    """A mean with its standard deviation, which is NaN if there is one value only.

    Attributes
    ----------
    value, std : float
    digits, best, cut
        As in `Number`.
    """

    value: float = math.nan
    std: float = math.nan
    digits: int = 2
    best: bool = False
    cut: bool = False


Cell = Text | Number | Spread
Numeric = TypeVar("Numeric", Number, Spread)


@dataclass(frozen=True)
class Column:
    """What stands above a column.

    Attributes
    ----------
    key : str
        Name in CSV files, and in `Row.cells`.
    heading : str
    group : str
        Heading shared with neighbours.
    spread : bool
        Whether cells may be of type `Spread`; the column is then two in CSV files.
    """

    key: str
    heading: str
    group: str = ""
    spread: bool = False


@dataclass(frozen=True)
class Row:
    """Cells by column key; what is not there stays empty.

    Attributes
    ----------
    cells : mapping of str to Cell
    summary : bool
        Whether the row sums up others, such as one of mean ranks.
    """

    cells: Mapping[str, Cell]
    summary: bool = False


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes
    ----------
    name : str
        Tells the tables of one file apart.
    title : str
    columns : tuple of Column
        The first one names the rows.
    rows : tuple of Row
    notes : tuple of str
        Sentences to stand below.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


def with_best(cells: Sequence[Numeric], *, lowest: bool = False) -> list[Numeric]:
    """Mark the highest or lowest of some cells, all of them in a tie, none if any is missing.

    Examples
    --------
    >>> [cell.best for cell in with_best([Number(1.0), Number(2.0)])]
    [False, True]
    >>> [cell.best for cell in with_best([Number(1.0), Number()])]
    [False, False]
    """
    values = [cell.value for cell in cells]
    if not all(math.isfinite(value) for value in values):
        return list(cells)
    best = min(values) if lowest else max(values)
    return [replace(cell, best=cell.value == best) for cell in cells]

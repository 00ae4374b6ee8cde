"""Cells of text files as they are written, so that what was there can be written back."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pickmix.data.text_files import TextLayout, open_text, text_layout


@dataclass
class Cells:
    """The rows of a text file, cell by cell.

    Attributes
    ----------
    layout : TextLayout
    before : list of str
        Lines before the first row: comments, blank lines, the header.
    rows : list of list of str
        Cells as they are written, with quotes and blanks.
    end : str
        What ends a line.
    """

    layout: TextLayout
    before: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    end: str = "\n"

    def values(self, column: int) -> list[str]:
        """What the cells of a column mean: without quotes and blanks around."""
        return [unquoted(row[column]) for row in self.rows]

    def line(self, row: list[str]) -> str:
        """A row as a line of the file."""
        return (self.layout.delimiter or " ").join(row) + self.end


def read_cells(path: Path, decimal: str | None = None) -> Cells:
    """Read a text file without changing anything; rows of another length are refused by line."""
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: expected rows, got an empty file")
    layout = text_layout(path, decimal)
    cells = Cells(layout)
    for number, text, row in _records(path, layout, cells.before):
        if not cells.rows and text.endswith("\r\n"):
            cells.end = "\r\n"
        if len(row) != layout.n_columns:
            raise ValueError(
                f"{path}: expected {layout.n_columns} columns, got {len(row)} in line {number}"
            )
        cells.rows.append(row)
    if not cells.rows:
        raise ValueError(
            f"{path}: expected rows, got only a header: {', '.join(layout.names or [])}"
        )
    return cells


def column_cells(path: Path, layout: TextLayout, column: int, numbers: bool) -> Iterator[str]:
    """Yield what the cells of one column mean, row by row.

    With `numbers`, rows are those that NumPy finds: all lines that begin with # are comments.
    """
    for number, _, row in _records(path, layout, []):
        if numbers and row[0].lstrip().startswith("#"):
            continue
        if len(row) <= column:
            raise ValueError(
                f"{path}: expected {layout.n_columns} columns, got {len(row)} in line {number}"
            )
        yield unquoted(row[column])


def _records(
    path: Path, layout: TextLayout, before: list[str]
) -> Iterator[tuple[int, str, list[str]]]:
    """Yield (number of the first line from 1, text, cells) of each row.

    Lines before the rows go to `before`. A cell in quotes may go over several lines.
    """
    with open_text(path) as file:
        lines = enumerate(file, start=1)
        for number, line in lines:
            if number <= layout.n_skipped:
                before.append(line)
                continue
            blank = not (line.strip(" \r\n") if layout.delimiter == "\t" else line.strip())
            if blank:
                continue
            cells = raw_cells(line.rstrip("\r\n"), layout.delimiter)
            # A quotation mark in a comment opens nothing.
            while cells is None and not line.lstrip().startswith("#"):
                line += _to_next_quote(lines, path, number)
                cells = raw_cells(line.rstrip("\r\n"), layout.delimiter)
            # A colour may be #ff0000, but a comment has as many cells as a row by chance only.
            if cells is not None and (
                not line.lstrip().startswith("#") or len(cells) == layout.n_columns
            ):
                yield number, line, cells


def _to_next_quote(lines: Iterator[tuple[int, str]], path: Path, first: int) -> str:
    text = ""
    for _, line in lines:
        text += line
        if '"' in line:
            return text
    raise ValueError(f"{path}: a quotation mark in line {first} has no end")


def raw_cells(line: str, delimiter: str | None) -> list[str] | None:
    """Split a row into its cells, as written; None if the last cell continues in the next line.

    Examples
    --------
    >>> raw_cells('1,"a, b", 2', ",")
    ['1', '"a, b"', ' 2']
    """
    if '"' not in line:
        return line.split(delimiter)
    if delimiter is None:
        return re.findall(r'"(?:[^"]|"")*"|\S+', line)
    cells, start = [], 0
    pattern = _cell_pattern(delimiter)
    while True:
        found = pattern.match(line, start)
        assert found is not None
        # Only a quotation mark at the beginning of a cell means something.
        if found["quoted"] is None and found["cell"].lstrip(" ").startswith('"'):
            return None
        cells.append(found["cell"])
        if found.end() == len(line) and not found["mark"]:
            return cells
        start = found.end()


@functools.cache
def _cell_pattern(delimiter: str) -> re.Pattern[str]:
    mark = re.escape(delimiter)
    cell = rf'(?P<cell>(?P<quoted>[ ]*"(?:[^"]|"")*"(?!"))?[^{mark}]*)'
    return re.compile(rf"{cell}(?P<mark>{mark}|$)", re.DOTALL)


def unquoted(cell: str) -> str:
    """What a cell means: without blanks and quotes around it.

    Examples
    --------
    >>> unquoted(' "a ""b"" c" ')
    'a "b" c'
    """
    cell = cell.strip()
    if len(cell) >= 2 and cell[0] == cell[-1] == '"':
        return cell[1:-1].replace('""', '"')
    return cell


def quoted(text: str, delimiter: str | None) -> str:
    """Write a value as a cell, in quotes only where it needs them.

    Examples
    --------
    >>> quoted("a, b", ","), quoted("a", ",")
    ('"a, b"', 'a')
    """
    special = {delimiter or " ", '"', "\n", "\r"}
    if text.strip() != text or any(mark in text for mark in special):
        return '"' + text.replace('"', '""') + '"'
    return text


def as_text(value: Any, decimal: str = ".") -> str:
    """Write a value as a cell.

    Examples
    --------
    >>> as_text(np.float64(0.5), ","), as_text(np.datetime64("2008-05-01")), as_text(3)
    ('0,5', '2008-05-01', '3')
    """
    if isinstance(value, np.datetime64):
        return str(value)
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float):
        # The shortest digits that read back to the same number.
        return repr(value).replace(".", decimal)
    return str(value)

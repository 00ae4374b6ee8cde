"""Tables in text files: .csv, .tsv and .txt, plain or packed by gzip.

The delimiter, the header and the decimal mark are found from the first rows. Numbers are parsed by
NumPy; missing values (empty cells, NA, nan, ...) become NaN.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import itertools
import os
import re
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

TEXT = (".csv", ".tsv", ".txt")
PACKED = ".gz"
#: Cells that mean: nothing is known.
MISSING_CELLS = frozenset(
    ["", "NA", "N/A", "n/a", "<NA>", "NaN", "nan", "NAN", "-nan", "null", "NULL", "None", "NaT"]
)
_GZIP_MARK = b"\x1f\x8b"
# Rows that are looked at to find the decimal mark.
_START = 200
_DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+(?:[eE][-+]?\d+)?")
_QUOTED = re.compile(r'"[^"]*"')


def table_suffix(path: str | os.PathLike[str]) -> str:
    """The suffix that says how a table is written, in lower case and without that of gzip.

    Examples
    --------
    >>> table_suffix("rows.CSV"), table_suffix("rows.tsv.gz"), table_suffix("rows.npy.gz")
    ('.csv', '.tsv', '.npy.gz')
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix != PACKED:
        return suffix
    inner = Path(path.stem).suffix.lower()
    return inner if inner in TEXT else inner + suffix


def is_packed(path: str | os.PathLike[str]) -> bool:
    """Whether the name is that of a text packed by gzip."""
    return Path(path).suffix.lower() == PACKED and table_suffix(path) in TEXT


@contextlib.contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """Open a text in UTF-8, packed by gzip or not; what is wrong with it is a ValueError."""
    opener: Callable[..., IO[str]] = open
    if is_packed(path):
        with open(path, "rb") as start:
            if start.read(2) != _GZIP_MARK:
                raise ValueError(
                    f"{path}: expected a file packed by gzip, got another kind; if it is plain "
                    f"text, name it {path.stem}"
                )
        opener = gzip.open
    try:
        with opener(path, "rt", newline="", encoding="utf-8-sig") as file:
            yield file
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected text in UTF-8, but {error}") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: the file is damaged or cut short: {error}") from error


@contextlib.contextmanager
def write_text(path: Path, packed: bool) -> Iterator[IO[str]]:
    """Open a text in UTF-8 for writing, packed by gzip or not."""
    with contextlib.ExitStack() as stack:
        raw: Any = stack.enter_context(open(path, "wb"))
        if packed:
            # Without name and time, so that the same rows give the same bytes. Level 6 is gzip's
            # own; Python's 9 takes three times as long for a hundredth of the bytes.
            packing = gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0)
            raw = stack.enter_context(packing)
        yield stack.enter_context(io.TextIOWrapper(raw, encoding="utf-8", newline=""))


@dataclass(frozen=True)
class TextLayout:
    """How a text file is written: what is found from its first rows."""

    delimiter: str | None
    names: list[str] | None
    n_columns: int
    n_skipped: int
    """Lines before the first row."""
    has_rows: bool
    decimal: str = "."
    words: frozenset[int] = frozenset()
    """Columns whose first rows hold neither numbers nor gaps."""

    def fields(self, line: str) -> list[str]:
        """The cells of a line, without quotes and blanks around."""
        return _split(_without_comment(line, self), self.delimiter)


def text_layout(path: Path, decimal: str | None = None) -> TextLayout:
    """Find the delimiter, the header, the number of columns and the decimal mark of a text file.

    A comma is taken for the decimal mark if semicolons or tabs are between the cells, some cells
    are numbers with a comma and none is one with a point. `decimal` says it instead.
    """
    delimiter, rows, header_line = _look_at_start(path, decimal)
    if decimal is None:
        decimal = "," if delimiter in ("\t", ";") and _has_decimal_commas(rows) else "."
    first = rows[0]
    second = rows[1] if len(rows) > 1 else None
    # A header is a first row whose words stand over numbers, or one of words only.
    number = [is_number(field, decimal) for field in first]
    # NA is a name (of sodium, say) unless numbers stand beside it.
    no_word = is_missing if any(number) else lambda field: not field
    words = [not (is_one or no_word(field)) for is_one, field in zip(number, first, strict=True)]
    over_numbers = second is not None and any(
        word and is_number(below, decimal) for word, below in zip(words, second, strict=False)
    )
    filled = [word for word, field in zip(words, first, strict=True) if field]
    if all(filled) or over_numbers:
        found = _with_words(rows[1:], decimal)
        has_rows = second is not None
        return TextLayout(delimiter, first, len(first), header_line, has_rows, decimal, found)
    return TextLayout(delimiter, None, len(first), 0, True, decimal, _with_words(rows, decimal))


def _with_words(rows: list[list[str]], decimal: str) -> frozenset[int]:
    return frozenset(
        column
        for row in rows
        for column, cell in enumerate(row)
        if not is_number(cell, decimal) and not is_missing(cell)
    )


def parse_text(
    path: Path,
    lines: Path | Iterable[str],
    layout: TextLayout,
    numbers: list[int] | None,
    n_rows: int | None = None,
) -> np.ndarray:
    """Parse rows of numbers, (N, D) float64; a missing value becomes NaN.

    `lines` is the path again for all rows, or the lines from some row on, without blank ones, of
    which `n_rows` rows are taken.
    """
    taken: list[str] = []
    try:
        if layout.decimal == ".":
            with contextlib.suppress(ValueError):
                if isinstance(lines, Path):
                    with _naming(path):
                        return _load(lines, layout, numbers, layout.n_skipped)
                # What NumPy has taken from them before it fails must be there again.
                return _load(_recording(lines, taken), layout, numbers, 0, n_rows)
        if isinstance(lines, Path):
            with open_text(path) as file:
                rest: list[str] = list(file)[layout.n_skipped :]
        else:
            left = None if n_rows is None else n_rows - len(taken)
            rest = [*taken, *itertools.islice(lines, left)]
        return _load(_plain(rest, layout), layout, numbers, comments=None)
    except ValueError as error:
        raise ValueError(_explain(path, layout, numbers)) from error


def _load(
    lines: Path | Iterable[str],
    layout: TextLayout,
    numbers: list[int] | None,
    n_skipped: int = 0,
    n_rows: int | None = None,
    comments: str | None = "#",
) -> np.ndarray:
    rows: np.ndarray = np.loadtxt(
        lines,
        comments=comments,
        delimiter=layout.delimiter,
        skiprows=n_skipped,
        usecols=numbers,
        quotechar='"',
        ndmin=2,
        encoding="utf-8-sig",
        max_rows=n_rows,
    )
    return rows


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let `open_text` say what is wrong with a file that NumPy cannot read."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: {error}") from error


def _recording(lines: Iterable[str], taken: list[str]) -> Iterator[str]:
    for line in lines:
        taken.append(line)
        yield line


def with_points(text: str) -> str:
    """Turn decimal commas into points; what had points is no number any more.

    Examples
    --------
    >>> with_points("1,5;2.5")
    '1.5;2·5'
    """
    return text.translate({ord(","): ".", ord("."): "\u00b7"})


def _plain(lines: list[str], layout: TextLayout) -> list[str]:
    """Lines with decimal points, nan for missing values and no comments.

    All at once, as lines are many.
    """
    plain = (line.rstrip("\r\n") for line in lines)
    text = "\n".join(_without_comment(line, layout) if "#" in line else line for line in plain)
    if layout.decimal == ",":
        text = with_points(text)
    found = sorted(MISSING_CELLS, reverse=True)
    if layout.delimiter is None:
        found.remove("")
        start, end = r"(?:^|(?<=\s))", r"(?=\s|$)"
    else:
        mark = re.escape(layout.delimiter)
        start, end = rf"(?:^|(?<={mark}))[ ]*", rf"[ ]*(?={mark}|$)"
        # A line without anything is none; the cells of the others may all be missing.
        start = rf"(?!^[ ]*$){start}"
    words = "|".join(map(re.escape, found))
    missing = re.compile(rf'{start}(?:"(?:{words})"|(?:{words})){end}', re.M)
    return missing.sub("nan", text).split("\n")


def _without_comment(line: str, layout: TextLayout) -> str:
    """A line without what is no part of its row: after a whole row of cells # begins a comment."""
    for place, letter in enumerate(line):
        if letter == "#":
            kept = line[:place]
            fields = _split(kept, layout.delimiter) if kept.strip() else []
            whole = len(fields) == layout.n_columns
            if not fields or (whole and _are_numbers(fields[-1:], layout.decimal)):
                return kept
    return line


def _are_numbers(fields: list[str], decimal: str) -> bool:
    return all(is_number(field, decimal) or is_missing(field) for field in fields)


def _fields(line: str, delimiter: str | None) -> list[str]:
    """Cells of a line. After numbers, # begins a comment; among words it is a letter."""
    kept = line.split("#", 1)[0]
    fields = _split(kept, delimiter)
    # The decimal mark may not be known yet.
    if kept != line and not (_are_numbers(fields, ".") or _are_numbers(fields, ",")):
        return _split(line, delimiter)
    return fields


def _split(line: str, delimiter: str | None) -> list[str]:
    if delimiter is None:
        return line.split()
    return [field.strip() for field in next(csv.reader([line], delimiter=delimiter))]


def _find_delimiters(line: str, marks: str) -> list[str | None]:
    """Marks that may part the cells of a line, the likeliest first; None stands for blanks."""
    # A mark within quotes is part of a name, one within a comment only what a # may begin.
    outside = _QUOTED.sub("", line)
    kept = outside.split("#", 1)[0]
    for text in (kept, outside):
        found: list[str | None] = [mark for mark in marks if mark in text]
        if found or all(map(is_number, kept.split())):
            break
    return found or [None]


def _look_at_start(path: Path, decimal: str | None) -> tuple[str | None, list[list[str]], int]:
    """Find the delimiter, the first rows and the number of the first one's line."""
    start = list(itertools.islice(text_lines(path), _START))
    if not start:
        raise ValueError(f"{path}: expected rows of numbers, got only blank lines and comments")
    lines = [line for _, line in start]
    delimiters = _find_delimiters(lines[0], "\t;|" if decimal == "," else "\t;,|")
    # Marks within words are not in all rows, or not as often.
    for delimiter in delimiters:
        found = [_fields(line, delimiter) for line in lines]
        if len(set(map(len, found))) == 1:
            break
    else:
        delimiter = delimiters[0]
        found = [_fields(line, delimiter) for line in lines]
    return delimiter, found, start[0][0]


def text_lines(path: Path) -> Generator[tuple[int, str], None, None]:
    """Yield (line number from 1, text) of the lines that are not blank and no comments."""
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            text = line.split("#", 1)[0].rstrip("\r\n")
            # Tabs alone are a row of empty cells.
            if text.strip(" ") if "\t" in text else text.strip():
                yield number, line.rstrip("\r\n")


def is_number(field: str, decimal: str = ".") -> bool:
    """Whether a cell holds a number, with this decimal mark."""
    if decimal == ",":
        if "." in field:
            return False
        field = field.replace(",", ".", 1)
    try:
        float(field)
    except ValueError:
        return False
    # Python takes underscores between digits for nothing; tables do not.
    return "_" not in field


def is_missing(field: str) -> bool:
    """Whether a cell is empty or a word for a missing value."""
    return field.strip() in MISSING_CELLS


def _has_decimal_commas(rows: list[list[str]]) -> bool:
    cells = [cell for row in rows for cell in row]
    points = any("." in cell and is_number(cell) for cell in cells)
    return not points and any(_DECIMAL_COMMA.fullmatch(cell) for cell in cells)


def _explain(path: Path, layout: TextLayout, numbers: list[int] | None) -> str:
    """Say what is wrong with a text file that NumPy refused: the first bad line and column."""
    names, n_columns = layout.names, layout.n_columns
    lines = text_lines(path)
    if names is not None:
        next(lines)
    for line_number, line in lines:
        fields = layout.fields(line)
        if len(fields) != n_columns:
            return f"{path}: expected {n_columns} columns, got {len(fields)} in line {line_number}"
        for number in range(n_columns) if numbers is None else numbers:
            cell = fields[number]
            if not is_number(cell, layout.decimal) and not is_missing(cell):
                column = number if names is None else repr(names[number])
                remedy = "leave that column out with columns="
                if _DECIMAL_COMMA.fullmatch(cell):
                    remedy = "is the comma a decimal one? say so with decimal=','"
                elif layout.decimal == "," and is_number(cell):
                    remedy = "is the point a decimal one? say so with decimal='.'"
                return (
                    f"{path}: expected numbers in column {column}, got {cell!r} in line "
                    f"{line_number}; {remedy}"
                )
    return f"{path}: expected rows of numbers"

"""Rows that verbs work on: small files in memory, large ones and many of them piece by piece."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from pickmix.data.files import read_table
from pickmix.data.open_rows import open_rows
from pickmix.data.sources import RowSource, read_ahead, refuse_bad
from pickmix.data.text_files import is_packed
from pickmix.estimators.row_sources import ranges_of

# Bytes of a file that is still read as a whole.
LARGEST_FILE = 256 * 2**20
# Rows that stand for all of them in pictures and measurements, and how many lie together.
SAMPLED_ROWS, _BLOCK_ROWS = 100_000, 1000
# How messages about what is in a table begin.
_OF_CONTENT = ("Column ", "Columns ", "The table ")
# Standard input or output, as a path.
STANDARD = Path("-")


@dataclass(frozen=True)
class Place:
    """Where rows are, as given on the command line.

    Attributes
    ----------
    data : Path
        A file, a folder of Parquet files or a pattern; `-` is standard input.
    columns, exclude : list of str, or None
    key : str or None
        Of an .npz.
    cache : Path or None
        Folder for converted rows.
    chunk_size : int or None
    id : str or None
        A column that names the rows.
    decimal : str or None
        Decimal mark of a text; None: it is found.
    """

    data: Path
    columns: list[str] | None
    key: str | None
    cache: Path | None
    chunk_size: int | None
    exclude: list[str] | None = None
    id: str | None = None
    decimal: str | None = None

    @property
    def is_small(self) -> bool:
        """Whether the rows are read as a whole."""
        if self.key is not None:
            return True
        if self.cache is not None or self.chunk_size is not None or self.data.is_dir():
            return False
        if not self.data.exists():
            # A pattern. What is not a pattern either is refused when it is read.
            return not any(mark in str(self.data) for mark in "*?[")
        return _size(self.data) <= LARGEST_FILE


def _size(path: Path) -> int:
    """Bytes of a file, at least about those of what is packed in it."""
    size = path.stat().st_size
    if is_packed(path) and size >= 4:
        with open(path, "rb") as file:
            # gzip writes the size at the end, as far as four bytes can.
            file.seek(-4, 2)
            size = max(size, int.from_bytes(file.read(4), "little"))
    return size


def place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a `Place`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def _split_columns(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> list[str] | None:
    """Turn `a,b,c` into a list."""
    if value is None:
        return None
    return [name.strip() for name in value.split(",") if name.strip()]


_OPTIONS = [
    click.option(
        "--columns",
        metavar="NAMES",
        callback=_split_columns,
        help="Columns to use: names, or numbers from 0, separated by commas.",
    ),
    click.option(
        "--exclude",
        metavar="NAMES",
        callback=_split_columns,
        help="Columns to leave out, written in the same way.",
    ),
    click.option(
        "--id",
        metavar="NAME",
        help="A column that names the rows. It is not part of the model, but the first column of "
        "every result.",
    ),
    click.option(
        "--decimal",
        type=click.Choice([".", ","]),
        help="Decimal mark of text files. [default: found in the file; a comma only if semicolons "
        "or tabs separate the cells]",
    ),
    click.option(
        "--key", metavar="NAME", help="Which array of an .npz. [default: the only one, or X]"
    ),
    click.option(
        "--cache",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder that keeps the converted rows of large .csv, .npz or .parquet files, for the "
        "next time. [default: a temporary one]",
    ),
    click.option(
        "--chunk-size",
        type=click.IntRange(min=1),
        metavar="ROWS",
        help="Rows of large files to read at a time. [default: some ten megabytes]",
    ),
]


def read_rows(place: Place) -> tuple[np.ndarray, list[str] | None]:
    """Read rows as `read_table` does; a missing value is NaN, infinities are refused by place."""
    with explained():
        rows, names = read_table(
            place.data, columns=place.columns, key=place.key, decimal=place.decimal
        )
    infinite = np.isinf(rows)
    if infinite.any():
        row, column = np.argwhere(infinite)[0]
        raise ValueError(
            f"{place.data}: expected finite numbers, got {rows[row, column]} in row {row + 1} of "
            f"column {column_label(names, column)}"
        )
    return rows, names


def first_gap(rows: np.ndarray) -> tuple[int, int] | None:
    """Row and column of the first missing value, from 0."""
    gaps = np.isnan(rows)
    if not gaps.any():
        return None
    row, column = np.argwhere(gaps)[0]
    return int(row), int(column)


def column_label(names: list[str] | None, column: int) -> str:
    """What messages call a column."""
    return str(column) if names is None else repr(names[column])


def open_place(place: Place, columns: list[str] | None = None) -> RowSource:
    """Open rows to be read piece by piece, with these columns or those of the place."""
    with explained():
        return open_rows(
            place.data,
            columns=place.columns if columns is None else columns,
            cache=place.cache,
            chunk_size="auto" if place.chunk_size is None else place.chunk_size,
            decimal=place.decimal,
        )


@contextlib.contextmanager
def explained(name: str | None = None) -> Iterator[None]:
    """Let messages name options instead of parameters, and the file if `name` is given."""
    try:
        yield
    except ValueError as error:
        message = _as_options(str(error))
        if name is not None and message.startswith(_OF_CONTENT):
            message = f"{name}: {message[0].lower()}{message[1:]}"
        raise ValueError(message) from error
    except OSError as error:
        if error.strerror is None or "cache=" not in error.strerror:
            raise
        raise OSError(error.errno, error.strerror.replace("cache=", "--cache")) from error


def _as_options(message: str) -> str:
    for mark in ",.":
        message = message.replace(f"decimal='{mark}'", f"--decimal {mark}")
    message = re.sub(r'exclude=\["([^"]*)"\]', r"--exclude \1", message)
    message = re.sub(r'schema=\{"([^"]*)": "(\w+)"\}', r"--kind \1=\2", message)
    message = re.sub(r'schema\["([^"]*)"\]', r"--kind \1", message)
    message = re.sub(r"given\['([^']*)'\]", r"--given \1", message)
    if message.startswith("Column "):
        # Python counts rows from 0, people from 1.
        message = re.sub(r"\brow (\d+) holds", lambda m: f"row {int(m[1]) + 1} holds", message)
    return message.replace("columns=", "--columns")


def chunks(source: RowSource, gaps: bool) -> Iterator[np.ndarray]:
    """The rows of a source, chunk by chunk; a value that the model does not take is refused."""
    ranges = ranges_of(source)
    for (first, _), rows in zip(ranges, read_ahead(source, ranges), strict=True):
        refuse_bad(source, first, rows, allow_nan=gaps)
        yield rows


def sample_rows(source: RowSource) -> np.ndarray:
    """Rows that stand for all: blocks of them, evenly spaced; all, if there are few."""
    if source.n_rows <= SAMPLED_ROWS:
        return source.read(0, source.n_rows)
    n_blocks = -(-SAMPLED_ROWS // _BLOCK_ROWS)
    n_each = SAMPLED_ROWS // n_blocks
    starts = np.linspace(0, source.n_rows - n_each, n_blocks).astype(np.int64).tolist()
    return np.concatenate([source.read(start, start + n_each) for start in starts])

"""Rows that verbs work on: small files in memory, large ones and many of them piece by piece."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from pickmix.data.files import read_table
from pickmix.data.open_rows import open_rows
from pickmix.data.sources import RowSource, read_ahead, refuse_bad
from pickmix.estimators.row_sources import ranges_of

# Bytes of a file that is still read as a whole.
LARGEST_FILE = 256 * 2**20
# Rows that stand for all of them in pictures and measurements, and how many lie together.
SAMPLED_ROWS, _BLOCK_ROWS = 100_000, 1000


@dataclass(frozen=True)
class Place:
    """Where rows are, as the command line says it.

    Attributes
    ----------
    data : Path
        A file, a folder of Parquet files or a pattern.
    columns : list of str, or None
    key : str or None
        Of an .npz.
    cache : Path or None
        Folder for converted rows.
    chunk_size : int or None
    """

    data: Path
    columns: list[str] | None
    key: str | None
    cache: Path | None
    chunk_size: int | None

    @property
    def is_small(self) -> bool:
        """Whether the rows are read as a whole."""
        if self.key is not None:
            return True
        if self.cache is not None or self.chunk_size is not None or self.data.is_dir():
            return False
        if not self.data.exists():
            # A pattern; what is no pattern either is refused by whoever reads a file.
            return not any(mark in str(self.data) for mark in "*?[")
        return self.data.stat().st_size <= LARGEST_FILE


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
        help="Columns to use: names or numbers from 0, with commas between.",
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


def read_finite(place: Place) -> tuple[np.ndarray, list[str] | None]:
    """Read rows as `read_table` does, and tell where a number is missing."""
    with _explained():
        rows, names = read_table(place.data, columns=place.columns, key=place.key)
    finite = np.isfinite(rows)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        name = column if names is None else repr(names[column])
        raise ValueError(
            f"{place.data}: expected finite numbers, got {rows[row, column]} in row {row + 1} of "
            f"column {name}"
        )
    return rows, names


def open_place(place: Place, columns: list[str] | None = None) -> RowSource:
    """Open rows that stay where they are, with columns of their own choice or the place's."""
    with _explained():
        return open_rows(
            place.data,
            columns=place.columns if columns is None else columns,
            cache=place.cache,
            chunk_size="auto" if place.chunk_size is None else place.chunk_size,
        )


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Name options where messages name parameters."""
    try:
        yield
    except ValueError as error:
        raise ValueError(str(error).replace("columns=", "--columns")) from error
    except OSError as error:
        if error.strerror is None or "cache=" not in error.strerror:
            raise
        raise OSError(error.errno, error.strerror.replace("cache=", "--cache")) from error


def finite_chunks(source: RowSource) -> Iterator[np.ndarray]:
    """The rows of a source, chunk by chunk; tells where a number is missing."""
    ranges = ranges_of(source)
    for (first, _), rows in zip(ranges, read_ahead(source, ranges), strict=True):
        refuse_bad(source, first, rows)
        yield rows


def sample_rows(source: RowSource) -> np.ndarray:
    """Rows that stand for all: blocks of them, evenly spaced; all, if there are few."""
    if source.n_rows <= SAMPLED_ROWS:
        return source.read(0, source.n_rows)
    n_blocks = -(-SAMPLED_ROWS // _BLOCK_ROWS)
    n_each = SAMPLED_ROWS // n_blocks
    starts = np.linspace(0, source.n_rows - n_each, n_blocks).astype(np.int64).tolist()
    return np.concatenate([source.read(start, start + n_each) for start in starts])

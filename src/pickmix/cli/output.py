"""Where results go: a file, standard output, or their first rows on the screen."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Self

import click
import numpy as np

from pickmix.cli.data import STANDARD
from pickmix.inputs.files import check_writable, replacing, write_csv, write_table
from pickmix.inputs.text import TEXT, is_packed, quoted, table_suffix, write_text

# Rows shown when there is no --out.
SHOWN = 10
Command = Callable[..., Any]

out_option = click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    help="File for the result: .csv, .tsv, .csv.gz, .tsv.gz, .npy, .npz or .parquet; - writes CSV "
    "to standard output.",
)


def count_option(
    *names: str, default: int, help: str, metavar: str | None = None
) -> Callable[[Command], Command]:
    number = click.IntRange(min=1)
    settings: dict[str, Any] = {"type": number, "default": default, "metavar": metavar}
    return click.option(*names, show_default=True, help=help, **settings)


def seed_option(help: str) -> Callable[[Command], Command]:
    return click.option("--seed", type=int, default=0, show_default=True, help=help)


class Output:
    """Takes a result chunk by chunk, and writes it or shows its beginning.

    Text is written as the chunks come; for other formats they are collected. A file appears whole
    or not at all. `id` is the column of --id, which files of numbers cannot have.
    """

    def __init__(self, path: Path | None, id: str | None = None) -> None:
        # Before the work, not after it.
        self._path = path if path is None or path == STANDARD else check_writable(path)
        self._is_standard = path == STANDARD
        suffix = "" if path is None or self._is_standard else table_suffix(path)
        self._numbers_only = suffix in (".npy", ".npz")
        if id is not None and self._numbers_only:
            raise ValueError(
                f"{path}: expected a name ending in .csv, .tsv or .parquet with --id {id}, as "
                f"{suffix} holds numbers only"
            )
        #: What separates the cells of a text.
        self.delimiter = "\t" if suffix == ".tsv" else ","
        self.is_text = self._is_standard or suffix in TEXT
        self._stack = contextlib.ExitStack()
        self._chunks: list[dict[str, np.ndarray]] = []
        self._file: IO[str] = sys.stdout
        self._n_rows = 0

    def delimiter_after(self, original: str | None) -> str | None:
        """What separates cells that `original` separated before (None: blanks)."""
        keeps = self._is_standard or (self.delimiter == "," and original == ";")
        return original if keeps else self.delimiter

    def __enter__(self) -> Self:
        if self._path is not None and self.is_text and not self._is_standard:
            temporary = self._stack.enter_context(replacing(self._path))
            self._file = self._stack.enter_context(write_text(temporary, is_packed(self._path)))
        return self

    def add(self, columns: dict[str, np.ndarray], ids: dict[str, np.ndarray] | None = None) -> None:
        """Take the next rows; the column of --id comes first, if the file can have it."""
        if ids and not self._numbers_only:
            for name in ids.keys() & columns.keys():
                raise ValueError(
                    f"--id {name}: the result has a column of that name too; rename that of the "
                    "data"
                )
            columns = ids | columns
        for name, values in columns.items():
            if self._numbers_only and values.dtype.kind not in "fiub":
                raise ValueError(
                    f"{self._path}: expected a name ending in .csv, .tsv or .parquet, as column "
                    f"{name!r} does not hold numbers only"
                )
        n_before, self._n_rows = self._n_rows, self._n_rows + len(next(iter(columns.values())))
        if self.is_text:
            # What reads pipes line by line takes a carriage return for a part of the last cell.
            end = "\n" if self._is_standard else "\r\n"
            write_csv(self._file, columns, self.delimiter, end, header=n_before == 0)
        elif self._path is not None:
            self._chunks.append(columns)
        elif n_before < SHOWN:
            # Copies: a part of a large array would keep all of it.
            most = SHOWN - n_before
            self._chunks.append({name: values[:most].copy() for name, values in columns.items()})

    def add_text(self, text: str) -> None:
        self._file.write(text)

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)
        if self._path is not None and not self.is_text and error[0] is None:
            write_table(self._path, self._columns())

    def _columns(self) -> dict[str, np.ndarray]:
        names = self._chunks[0]
        return {name: np.concatenate([chunk[name] for chunk in self._chunks]) for name in names}

    def say(self, message: str) -> None:
        """Print a message where it does not get among the rows."""
        click.echo(message, err=self._is_standard)

    def show(self) -> None:
        """Say where the result is, or show its beginning."""
        if self._path is not None:
            if not self._is_standard:
                click.echo(f"wrote {self._path}")
            return
        columns = self._columns()
        click.echo(",".join(columns))
        for row in zip(*columns.values(), strict=True):
            click.echo(",".join(quoted(short_text(value), ",") for value in row))
        if self._n_rows > SHOWN:
            click.echo(more_rows(self._n_rows - SHOWN))


def more_rows(n_rows: int) -> str:
    return f"... {n_rows:,} more rows; --out FILE writes all, --out - prints all"


def short_text(value: Any) -> str:
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, np.timedelta64)
    return f"{value:.6g}" if is_number else str(value)


def short_float(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)

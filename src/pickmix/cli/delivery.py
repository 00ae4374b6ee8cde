"""Where results go: a file, standard output, or their first rows on the screen."""

from __future__ import annotations

import contextlib
import csv
import sys
from pathlib import Path
from typing import IO, Any, Self

import click
import numpy as np

from pickmix.cli.reading import STANDARD
from pickmix.data.files import check_writable, replacing, write_table
from pickmix.data.text_cells import quoted
from pickmix.data.text_files import TEXT, is_packed, table_suffix, write_text

# Rows shown when there is no --out.
SHOWN = 10

out_option = click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    help="File for the result: .csv, .tsv, .csv.gz, .tsv.gz, .npy, .npz or .parquet; - writes CSV "
    "to standard output.",
)


class Delivery:
    """Takes a result piece by piece, and writes it or shows its beginning.

    Text is written as the pieces come; for other formats they are collected. A file appears whole
    or not at all.

    Parameters
    ----------
    out : Path or None
        The file; `-` is standard output; None shows the first rows.
    id : str, optional
        The column of --id. Files of numbers cannot have it.
    """

    def __init__(self, out: Path | None, id: str | None = None) -> None:
        # Before the work, not after it.
        self._out = out if out is None or out == STANDARD else check_writable(out)
        self._numbers_only = out is not None and table_suffix(out) in (".npy", ".npz")
        if id is not None and self._numbers_only:
            raise ValueError(
                f"{out}: expected a name ending in .csv, .tsv or .parquet with --id {id}, as "
                f"{table_suffix(out or STANDARD)} holds numbers only"
            )
        self._stack = contextlib.ExitStack()
        self._pieces: list[dict[str, np.ndarray]] = []
        self._file: IO[str] | None = None
        self._n_rows = 0

    @property
    def delimiter(self) -> str:
        """What separates the cells of a text."""
        return "\t" if self._out is not None and table_suffix(self._out) == ".tsv" else ","

    def delimiter_of(self, own: str | None) -> str | None:
        """What separates the cells of a text whose cells `own` separated (None: blanks)."""
        if self._out == STANDARD or (self.delimiter == "," and own == ";"):
            return own
        return self.delimiter

    @property
    def is_text(self) -> bool:
        """Whether the result is written as text."""
        return self._out is not None and (self._out == STANDARD or table_suffix(self._out) in TEXT)

    def __enter__(self) -> Self:
        if self._out == STANDARD:
            self._file = sys.stdout
        elif self._out is not None and self.is_text:
            temporary = self._stack.enter_context(replacing(self._out))
            self._file = self._stack.enter_context(write_text(temporary, is_packed(self._out)))
        return self

    def add(self, columns: dict[str, np.ndarray], ids: dict[str, np.ndarray] | None = None) -> None:
        """Take the next rows; the column of --id comes first, if the file can have it."""
        if not self._numbers_only:
            both = [name for name in ids or {} if name in columns]
            if both:
                raise ValueError(
                    f"--id {both[0]}: the result has a column of that name too; rename that of the "
                    "data"
                )
            columns = {**(ids or {}), **columns}
        for name, values in columns.items():
            if self._numbers_only and values.dtype.kind not in "fiub":
                raise ValueError(
                    f"{self._out}: expected a name ending in .csv, .tsv or .parquet, as column "
                    f"{name!r} does not hold numbers only"
                )
        n_before, self._n_rows = self._n_rows, self._n_rows + len(next(iter(columns.values())))
        if self._file is not None:
            writer = self._writer(self._file)
            if n_before == 0:
                writer.writerow(columns)
            # Python's floats print the shortest digits that read back to the same number.
            writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
        elif self._out is not None:
            self._pieces.append(columns)
        elif n_before < SHOWN:
            n_here = SHOWN - n_before
            # Copies: a piece of a large array would keep all of it.
            self._pieces.append({name: values[:n_here].copy() for name, values in columns.items()})

    def add_text(self, text: str) -> None:
        """Write a text as it is; only for results that are written as text."""
        assert self._file is not None
        self._file.write(text)

    def _writer(self, file: IO[str]) -> Any:
        # What reads pipes line by line takes a carriage return for a part of the last cell.
        end = "\n" if self._out == STANDARD else "\r\n"
        return csv.writer(file, delimiter=self.delimiter, lineterminator=end)

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)
        if self._out is not None and self._file is None and error[0] is None:
            write_table(self._out, self._columns())

    def _columns(self) -> dict[str, np.ndarray]:
        return {
            name: np.concatenate([piece[name] for piece in self._pieces])
            for name in self._pieces[0]
        }

    def say(self, message: str) -> None:
        """Print a message where it does not get among the rows."""
        click.echo(message, err=self._out == STANDARD)

    def tell(self) -> None:
        """Say where the result is, or show its beginning."""
        if self._out == STANDARD:
            return
        if self._out is not None:
            click.echo(f"wrote {self._out}")
            return
        columns = self._columns()
        click.echo(",".join(columns))
        for row in zip(*columns.values(), strict=True):
            click.echo(",".join(quoted(_shown(value), ",") for value in row))
        if self._n_rows > SHOWN:
            click.echo(more_rows(self._n_rows - SHOWN))


def more_rows(n_rows: int) -> str:
    """What is said after the first rows of a result."""
    return f"... {n_rows:,} more rows; --out FILE writes all, --out - prints all"


def _shown(value: Any) -> str:
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, np.timedelta64)
    return f"{value:.6g}" if is_number else str(value)

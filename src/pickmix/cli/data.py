"""DATA of a command: its options, and its rows as an array, as chunks or as a whole table."""

from __future__ import annotations

import contextlib
import csv
import functools
import glob
import io
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from pickmix.inputs.columns import TypedTable, make_table
from pickmix.inputs.errors import Described, Wording
from pickmix.inputs.files import column_numbers, describe_file, find_files, open_parquet, read_table
from pickmix.inputs.frames import read_typed
from pickmix.inputs.open_rows import open_rows
from pickmix.inputs.schema import KINDS
from pickmix.inputs.sources import RowSource
from pickmix.inputs.text import (
    TEXT,
    TextLayout,
    column_cells,
    is_packed,
    name_columns,
    read_cells,
    table_suffix,
    text_column,
    text_layout,
)

# Bytes of a file that is still read as a whole.
LARGEST_FILE = 256 * 2**20
# Standard input or output, as a path.
STANDARD = Path("-")
_STANDARD_INPUT = "standard input"
# How files begin; what begins otherwise is text.
_MARKS = {b"\x93NUMPY": ".npy", b"PAR1": ".parquet", b"PK\x03\x04": ".npz", b"\x1f\x8b": ".csv.gz"}


def split_names(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    """Names separated by commas; one that holds a comma stands in quotes, as in a CSV file."""
    return None if value is None else names_in(value)


def names_in(text: str) -> list[str]:
    names = next(csv.reader([text], skipinitialspace=True), [])
    return [name.strip() for name in names if name.strip()]


def quote_names(names: Iterable[Any]) -> str:
    """Names as `names_in` reads them, to be pasted into a shell."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(names)
    return shlex.quote(text.getvalue())


_OPTIONS = [
    click.option(
        "--columns",
        metavar="NAMES",
        callback=split_names,
        help="Columns to use: names, or numbers from 0, separated by commas. A name with a comma "
        "stands in double quotes.",
    ),
    click.option(
        "--exclude",
        metavar="NAMES",
        callback=split_names,
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


kind_option = click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="NAME=KIND",
    help=f"What a column holds, if that was found wrongly: {', '.join(KINDS)}.",
)


def kinds_of(texts: Iterable[str]) -> dict[str, str]:
    """Kinds of columns, by name, of the texts NAME=KIND of --kind."""
    # Names may hold the sign, kinds do not.
    parts = {text: text.rpartition("=") for text in texts}
    for text, (_, sign, kind) in parts.items():
        if not sign or kind.strip() not in KINDS:
            raise ValueError(
                f"--kind must be NAME=KIND, with one of {', '.join(KINDS)}, got {text!r}"
            )
    return {name.strip(): kind.strip() for name, _, kind in parts.values()}


def data_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return functools.reduce(lambda given, option: option(given), reversed(_OPTIONS), command)


@dataclass(frozen=True)
class DataFiles:
    #: A file, a folder of Parquet files or a pattern.
    path: Path
    #: What messages call it.
    name: str
    columns: list[str] | None = None
    exclude: list[str] | None = None
    id: str | None = None
    decimal: str | None = None
    key: str | None = None
    cache: Path | None = None
    chunk_size: int | None = None

    @property
    def is_small(self) -> bool:
        if self.key is not None:
            return True
        if self.cache is not None or self.chunk_size is not None or self.path.is_dir():
            return False
        if not self.path.exists():
            # What is no pattern either is refused when it is read.
            return not glob.has_magic(str(self.path))
        size = self.path.stat().st_size
        if is_packed(self.path) and size >= 4:
            with open(self.path, "rb") as file:
                # gzip writes the size of what is packed at the end, as far as four bytes can.
                file.seek(-4, 2)
                size = max(size, int.from_bytes(file.read(4), "little"))
        return size <= LARGEST_FILE

    @functools.cached_property
    def heading(self) -> tuple[list[str] | None, int]:
        """Names of the columns, if they have any, and how many there are."""
        path = find_files(str(self.path))[0]
        if table_suffix(path) == ".npy":
            with open_rows(path) as source:
                return None, source.n_columns
        part = describe_file(path, self.decimal, self.key)
        return part.names, part.n_columns

    def find(self, columns: Sequence[Any], option: str = "columns") -> list[int]:
        return column_numbers(self.name, columns, *self.heading, option)

    @property
    def id_column(self) -> tuple[int, str] | None:
        """Number of the column of --id, and what results call it."""
        if self.id is None:
            return None
        (number,) = self.find([self.id], "--id")
        names, _ = self.heading
        return number, "id" if names is None else names[number]

    def chosen_numbers(self) -> list[int]:
        """Numbers of the columns that --columns, --exclude and --id leave."""
        kept = range(self.heading[1]) if self.columns is None else self.find(self.columns)
        left_out = self.find(self.exclude, "--exclude") if self.exclude else []
        left_out += [] if self.id_column is None else [self.id_column[0]]
        chosen = [number for number in kept if number not in left_out]
        if not chosen:
            raise ValueError(f"{self.name}: --exclude and --id leave no column")
        return chosen

    def chosen(self) -> list[Any] | None:
        """Columns to read, None for all; those of --columns are looked up in each file."""
        plain = self.exclude is None and self.id is None
        return self.columns if plain else self.chosen_numbers()

    def read_rows(self, columns: list[Any] | None) -> tuple[np.ndarray, list[str] | None]:
        """Read rows of numbers and their names; a missing value is NaN, infinity is refused."""
        rows, names = read_table(self.path, columns=columns, key=self.key, decimal=self.decimal)
        infinite = _first_place(np.isinf(rows), names)
        if infinite is not None:
            cell, place = infinite
            raise ValueError(f"{self.name}: expected finite numbers, got {rows[cell]} in {place}")
        return rows, names

    def open_rows(self, columns: list[Any] | None) -> RowSource:
        chunk_size = "auto" if self.chunk_size is None else self.chunk_size
        options: dict[str, Any] = {"columns": columns, "cache": self.cache, "decimal": self.decimal}
        return open_rows(self.path, chunk_size=chunk_size, **options)

    def read_ids(self) -> Iterator[Any]:
        """Yield what the column of --id holds beside rows of numbers; texts as they are."""
        for path in find_files(str(self.path)):
            column = replace(self, path=path, name=str(path)).id_column
            number = 0 if column is None else column[0]
            if table_suffix(path) in TEXT:
                yield from column_cells(path, text_layout(path, self.decimal), number)
            elif table_suffix(path) == ".parquet":
                with open_parquet(path) as file:
                    for batch in file.iter_batches(columns=[file.schema_arrow.names[number]]):
                        yield from batch.column(0).to_pylist()
            else:
                yield from read_table(path, columns=[number], key=self.key)[0][:, 0].tolist()

    def read_table(self) -> WholeTable:
        from pyarrow import concat_tables

        paths = find_files(str(self.path))
        first, *others = tables = [_read_file(path, self) for path in paths]
        for path, table in zip(paths[1:], others, strict=True):
            if table.names != first.names:
                raise ValueError(
                    f"{path}: expected columns {', '.join(first.names)} as in the first file, got "
                    f"{', '.join(table.names)}"
                )
        content = concat_tables([table.content for table in tables])
        return WholeTable(content, [text for table in tables for text in table.texts])


@dataclass(frozen=True)
class WholeTable:
    #: A pyarrow Table; of text files, what the cells mean.
    content: Any
    #: Text files that it was read from, and their layouts.
    texts: list[tuple[Path, TextLayout]]

    @property
    def names(self) -> list[str]:
        return list(self.content.column_names)

    @property
    def n_rows(self) -> int:
        return int(self.content.num_rows)

    def typed(self, names: Sequence[str]) -> TypedTable:
        """Some columns, those of a text with the types that their cells spell."""
        columns = self.content.select(names)
        if not self.texts:
            return read_typed(columns)
        typed = [text_column(column, self.texts[0][1].decimal) for column in columns.columns]
        return make_table(zip(names, typed, strict=True), "dict")

    def cells(self, name: str) -> list[Any]:
        values = self.content.column(name).to_pylist()
        return [value.strip() for value in values] if self.texts else values


def _read_file(path: Path, files: DataFiles) -> WholeTable:
    suffix, texts = table_suffix(path), []
    names: list[str] | None
    if suffix in TEXT:
        content, layout = read_cells(path, files.decimal)
        names, texts = layout.names, [(path, layout)]
    elif suffix == ".parquet":
        with open_parquet(path) as file:
            content = file.read()
        names = content.column_names
    else:
        import pyarrow as pa

        rows, names = read_table(path, key=files.key)
        content = pa.table(list(rows.T), [str(number) for number in range(rows.shape[1])])
    return WholeTable(content.rename_columns(name_columns(names, content.num_columns)), texts)


def first_gap(rows: np.ndarray, names: list[str] | None) -> str | None:
    place = _first_place(np.isnan(rows), names)
    return None if place is None else f"a missing value in {place[1]}"


def _first_place(flags: np.ndarray, names: list[str] | None) -> tuple[Any, str] | None:
    if not flags.any():
        return None
    row, column = np.argwhere(flags)[0].tolist()
    label = str(column) if names is None else repr(names[column])
    return (row, column), f"row {row + 1} of column {label}"


@contextlib.contextmanager
def open_data(data: Path, **options: Any) -> Iterator[DataFiles]:
    """Files of DATA. Standard input is kept in a temporary one; messages do not tell."""
    with contextlib.ExitStack() as stack:
        name = str(data)
        if data == STANDARD:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pickmix-rows-"))
            data, name = _keep_standard_input(Path(folder)), _STANDARD_INPUT
        stack.enter_context(option_wording(name, data))
        yield DataFiles(data, name, **options)


def _keep_standard_input(folder: Path) -> Path:
    stream = sys.stdin.buffer
    start = stream.read(1 << 16)
    if not start:
        raise ValueError(
            f"{_STANDARD_INPUT}: expected rows, got nothing; - reads what another program writes, "
            "as in: sort rows.csv | pickmix score model -"
        )
    suffix = next((known for mark, known in _MARKS.items() if start.startswith(mark)), ".csv")
    path = folder / f"rows{suffix}"
    try:
        with open(path, "wb") as file:
            file.write(start)
            shutil.copyfileobj(stream, file, 1 << 20)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{_STANDARD_INPUT}: its rows could not be kept in {folder.parent} ({error.strerror}); "
            "TMPDIR names another folder for temporary files",
        ) from error
    return path


class _OptionWording(Wording):
    first_row = 1
    columns, cache, comma, point = "--columns", "--cache", "--decimal ,", "--decimal ."

    # Both can be pasted into a shell.
    def kind(self, column: Any, kind: str) -> str:
        return f"--kind {shlex.quote(f'{column}={kind}')}"

    def exclude(self, columns: Iterable[Any]) -> str:
        return f"--exclude {quote_names(columns)}"

    def parameter(self, parameter: str, column: Any) -> str:
        option = {"schema": "kind", "where": "given"}.get(parameter, parameter)
        return f"--{option} {column}"


@contextlib.contextmanager
def option_wording(name: str = "", path: Path | None = None) -> Iterator[None]:
    """Let messages name options instead of parameters, and the file at `path` by its `name`."""
    try:
        yield
    except Described as error:
        is_temporary = path is not None and str(error.path) == str(path)
        named = error.replaced(path=name) if is_temporary else error
        message = named.worded(_OptionWording())
        if name and error.is_of_content:
            message = f"{name}: {message[0].lower()}{message[1:]}"
        raise error.replaced(message=message) from error

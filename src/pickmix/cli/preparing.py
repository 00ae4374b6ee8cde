"""Before rows are read: standard input, and which columns there are."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pickmix.cli.reading import STANDARD, Place, explained
from pickmix.data.files import column_numbers, import_parquet, read_table
from pickmix.data.open_rows import find_files, open_rows
from pickmix.data.readers import naming_parquet
from pickmix.data.temporary import TemporaryFolder
from pickmix.data.text_cells import column_cells
from pickmix.data.text_files import TEXT, table_suffix, text_layout

STANDARD_INPUT = "standard input"
# How files begin; what begins otherwise is text.
_MARKS = {b"\x93NUMPY": ".npy", b"PAR1": ".parquet", b"PK\x03\x04": ".npz", b"\x1f\x8b": ".csv.gz"}


@contextlib.contextmanager
def ready(place: Place) -> Iterator[Place]:
    """A place whose rows can be read by path.

    Standard input goes to a temporary file. Messages name what the user named.
    """
    with contextlib.ExitStack() as stack:
        kept = place
        if place.data == STANDARD:
            path = _keep_standard_input(_folder(stack))
            kept = replace(place, data=path)
        try:
            yield kept
        except (ValueError, TypeError, OSError) as error:
            here, named = str(kept.data), name_of(place)
            if kept is place or here not in str(error):
                raise
            raise ValueError(str(error).replace(here, named)) from error


def name_of(place: Place) -> str:
    """What messages call the rows of a place."""
    return STANDARD_INPUT if place.data == STANDARD else str(place.data)


def _folder(stack: contextlib.ExitStack) -> Path:
    folder = TemporaryFolder(Path(tempfile.gettempdir()))
    stack.callback(folder.remove)
    return folder.path


def _keep_standard_input(folder: Path) -> Path:
    stream = sys.stdin.buffer
    start = stream.read(1 << 16)
    if not start:
        raise ValueError(
            f"{STANDARD_INPUT}: expected rows, got nothing; - reads what another program writes, "
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
            f"{STANDARD_INPUT}: its rows could not be kept in {folder.parent} ({error.strerror}); "
            "TMPDIR names another folder for temporary files",
        ) from error
    return path


def heading(place: Place) -> tuple[list[str] | None, int]:
    """Names of the columns, if they have any, and how many there are."""
    path = find_files(str(place.data))[0]
    suffix = table_suffix(path)
    if suffix in TEXT:
        layout = text_layout(path, place.decimal)
        return layout.names, layout.n_columns
    if suffix == ".parquet":
        with naming_parquet(path), import_parquet(path).ParquetFile(path) as file:
            names = list(file.schema_arrow.names)
        return names, len(names)
    if suffix == ".npy":
        with open_rows(path) as source:
            return None, source.n_columns
    rows, found = read_table(path, key=place.key)
    return found, rows.shape[1]


def chosen_columns(place: Place) -> list[Any] | None:
    """Columns to read, after --columns, --exclude and --id; None: all of them."""
    if place.exclude is None and place.id is None:
        return place.columns
    names, n_columns = heading(place)
    name = name_of(place)
    with explained():
        kept = list(range(n_columns))
        if place.columns is not None:
            kept = column_numbers(name, place.columns, names, n_columns)
    left_out: set[int] = set()
    if place.exclude:
        left_out.update(column_numbers(name, place.exclude, names, n_columns, "--exclude"))
    if place.id is not None:
        left_out.update(column_numbers(name, [place.id], names, n_columns, "--id"))
    kept = [number for number in kept if number not in left_out]
    if not kept:
        raise ValueError(f"{name}: --exclude and --id leave no column")
    return kept


def with_chosen_columns(place: Place) -> Place:
    """The same place with --exclude and --id worked into --columns."""
    return replace(place, columns=chosen_columns(place))


def id_name(place: Place) -> str:
    """What results call the column of --id."""
    assert place.id is not None
    names, n_columns = heading(place)
    (number,) = column_numbers(name_of(place), [place.id], names, n_columns, "--id")
    return "id" if names is None else names[number]


def read_ids(place: Place, numbers: bool) -> Iterator[Any]:
    """Yield what the column of --id holds, row by row; texts as they are.

    With `numbers`, the other columns are read as numbers.
    """
    assert place.id is not None
    for path in find_files(str(place.data)):
        suffix = table_suffix(path)
        if suffix in TEXT:
            layout = text_layout(path, place.decimal)
            (number,) = column_numbers(path, [place.id], layout.names, layout.n_columns, "--id")
            yield from column_cells(path, layout, number, numbers)
        elif suffix == ".parquet":
            with naming_parquet(path), import_parquet(path).ParquetFile(path) as file:
                (number,) = column_numbers(
                    path, [place.id], file.schema_arrow.names, len(file.schema_arrow), "--id"
                )
                name = file.schema_arrow.names[number]
                for batch in file.iter_batches(columns=[name]):
                    yield from batch.column(0).to_pylist()
        else:
            rows, _ = read_table(path, columns=[place.id], key=place.key)
            yield from rows[:, 0].tolist()

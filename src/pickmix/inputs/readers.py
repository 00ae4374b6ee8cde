"""Rows that come in batches, from first to last: files, Arrow data, slices and functions.

They are converted once, before they can be read in ranges.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pickmix.inputs.arrays import check_matrix, check_numbers, without_mask
from pickmix.inputs.files import (
    arrow_rows,
    check_size,
    column_numbers,
    numeric_fields,
    read_table,
    working_dtype,
)
from pickmix.inputs.files import open_parquet as open_parquet
from pickmix.inputs.sources import Stamp, short_labels
from pickmix.inputs.text import number_blocks, text_layout

# Bytes of a batch of rows as they are written: small enough for the processor's cache.
BATCH = 2 << 20
Columns = Sequence[str | int] | None


@dataclass
class Reader:
    """Rows in batches. What is None is known once the first batch was read."""

    kind: str  # for fingerprints
    name: str  # for messages
    #: Makes pairs of the number of a part from 0 and an array, data frame or Arrow table.
    make: Callable[[], Iterable[tuple[int, Any]]]
    #: What to choose from each batch.
    columns: Columns = None
    n_rows: int | None = None
    n_columns: int | None = None
    dtype: np.dtype[Any] | None = None
    names: list[str] | None = None
    #: Numbers of the columns in the data.
    numbers: list[int] | None = None
    #: What messages call the parts that rows come from. None: batches are counted.
    labels: list[str] | None = None
    #: Of the files that rows come from.
    stamps: Sequence[tuple[Path, Stamp]] = ()
    decimal: str | None = None

    def origin(self) -> dict[str, Any]:
        """What the rows are made from, JSON-able; without "files" they cannot be recognised."""
        files = [stamp.describe(path) for path, stamp in self.stamps]
        known = {"files": files, "decimal": self.decimal} if files else {}
        return {"kind": self.kind, **known}

    def check_unchanged(self) -> None:
        """Refuse files that have changed since they were opened."""
        for path, stamp in self.stamps:
            stamp.check(path, path.stat())

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (number of the part from 0, rows): 2-D arrays of real numbers."""
        n_read = 0
        expected = ""
        for part, batch in self.make():
            label = f"batch {part + 1} of {self.name}"
            if self.labels is not None:
                label = f"{self.name}, rows from {n_read + 1}"
            rows, names, numbers = _batch_rows(label, batch, self.columns)
            if rows.shape[0] > 0 and not self.stamps:
                got = f"{rows.shape[1]} columns" if names is None else "columns " + ", ".join(names)
                if not expected:
                    expected = got
                    self.names, self.n_columns, self.numbers = names, rows.shape[1], numbers
                if got != expected:
                    raise ValueError(f"{label}: expected {expected} as before, got {got}")
            n_read += rows.shape[0]
            yield part, rows
            # Not kept while the next one is made.
            del batch, rows
        if not self.stamps and self.n_rows is not None and n_read != self.n_rows:
            raise ValueError(f"{self.name}: expected {self.n_rows} rows, got {n_read}")


def _batch_rows(
    label: str, batch: Any, columns: Columns
) -> tuple[np.ndarray, list[str] | None, list[int]]:
    """Rows, names and numbers of the chosen columns of a batch."""
    if is_arrow(batch, "Table", "RecordBatch"):
        fields, dtype = numeric_fields(label, batch.schema, columns)
        names = [field.name for field in fields]
        return arrow_rows(batch, names, dtype), names, list(map(batch.schema.names.index, names))
    if is_frame(batch):
        return frame_rows(label, batch, columns)
    try:
        rows = np.asarray(without_mask(batch))
    except Exception as error:
        raise ValueError(f"{label}: expected rows of numbers, but {error}") from error
    if rows.ndim == 2 and rows.shape[0] == 0:
        return rows, None, []
    if rows.ndim != 2:
        check_matrix(label, rows)
    check_numbers(label, rows.dtype)
    if columns is None:
        return rows, None, list(range(rows.shape[1]))
    numbers = column_numbers(label, columns, None, rows.shape[1])
    return rows[:, numbers], None, numbers


def is_arrow(data: object, *kinds: str) -> bool:
    """Whether data is one of pyarrow's objects of these names, without importing pyarrow."""
    return any(
        base.__module__.split(".")[0] == "pyarrow" and base.__name__ in kinds
        for base in type(data).__mro__
    )


def is_frame(data: object) -> bool:
    """Whether data is a data frame, as those of pandas and polars."""
    # In this order: a LazyFrame has columns, but warns when they are asked for.
    return hasattr(data, "to_numpy") and hasattr(data, "columns")


def frame_rows(name: str, frame: Any, columns: Columns) -> tuple[np.ndarray, list[str], list[int]]:
    """Rows, names and numbers of the chosen columns of a data frame."""
    names = [str(column) for column in frame.columns]
    numbers = list(range(len(names)))
    if columns is not None:
        numbers = column_numbers(name, columns, names, len(names))
    arrays = []
    for number in numbers:
        # By position, as names may come twice.
        values = frame.iloc[:, number] if hasattr(frame, "iloc") else frame[names[number]]
        dtype = values.dtype
        # polars' types have no kinds.
        kind = getattr(dtype, "kind", None)
        if kind is not None and kind in "fiub" and not isinstance(dtype, np.dtype):
            # A nullable type of pandas.
            narrow = kind == "f" and dtype.itemsize <= 4
            array = values.to_numpy(dtype="f4" if narrow else "f8", na_value=np.nan)
        else:
            array = values.to_numpy()
        if (kind or array.dtype.kind) not in "fiub":
            raise ValueError(
                f"{name}: expected numbers in column {names[number]!r}, got {dtype}; leave "
                "that column out with columns="
            )
        arrays.append(array)
    rows = np.empty((len(frame), len(arrays)), dtype=working_dtype(*(a.dtype for a in arrays)))
    for position, array in enumerate(arrays):
        rows[:, position] = array
    return rows, [names[number] for number in numbers], numbers


# Files


class _Part(NamedTuple):
    """What is known of a file before its rows are read."""

    n_rows: int | None
    names: list[str] | None
    n_columns: int
    #: From numbers of columns to a dtype that holds them; refuses what is not numbers.
    dtype: Callable[[list[int]], np.dtype[Any]]
    #: From numbers of columns and a dtype to batches of rows.
    read: Callable[[list[int], np.dtype[Any]], Iterable[np.ndarray]]


def _parquet_part(path: Path, decimal: str | None) -> _Part:
    with open_parquet(path) as file:
        schema, n_rows = file.schema_arrow, file.metadata.num_rows

    def read(numbers: list[int], dtype: np.dtype[Any]) -> Iterator[np.ndarray]:
        names = [schema.names[number] for number in numbers]
        n_read = 0
        # Otherwise pyarrow reads all that a group of rows holds at once, and keeps it to the end.
        with open_parquet(path, pre_buffer=False, buffer_size=1 << 20) as file:
            # Not `Dataset.to_batches`, which keeps what was read, too (arrow#39808).
            for batch in file.iter_batches(_batch_size(len(names), dtype), columns=names):
                n_read += batch.num_rows
                yield arrow_rows(batch, names, dtype)
        if n_read != n_rows:
            raise OSError(f"{path}: expected {n_rows} rows, got {n_read}")

    def find_dtype(numbers: list[int]) -> np.dtype[Any]:
        return numeric_fields(path, schema, numbers)[1]

    return _Part(n_rows, schema.names, len(schema), find_dtype, read)


def _text_part(path: Path, decimal: str | None) -> _Part:
    layout = text_layout(path, decimal)

    def read(numbers: list[int], dtype: np.dtype[Any]) -> Iterator[np.ndarray]:
        return number_blocks(path, layout, numbers)

    n_rows = None if layout.has_rows else 0
    return _Part(n_rows, layout.names, layout.n_columns, lambda _: np.dtype(np.float64), read)


def _archive_part(path: Path, decimal: str | None) -> _Part:
    rows, names = read_table(path)
    stored = rows.dtype

    def read(numbers: list[int], dtype: np.dtype[Any]) -> Iterator[np.ndarray]:
        # Once more, as not all files may fit into memory together.
        yield read_table(path)[0][:, numbers]

    return _Part(rows.shape[0], names, rows.shape[1], lambda _: stored, read)


_KINDS = {".parquet": _parquet_part, ".csv": _text_part, ".npz": _archive_part}


def _batch_size(n_columns: int, dtype: np.dtype[Any]) -> int:
    """How many rows a batch has."""
    return max(1, BATCH // (dtype.itemsize * max(1, n_columns)))


def file_reader(
    kind: str,  # .parquet, .npz, or .csv for all texts
    name: str,
    paths: Sequence[Path],
    columns: Columns = None,
    decimal: str | None = None,
) -> Reader:
    """Rows of files of one kind, one after the other; the first with rows defines the columns."""

    def make() -> Iterator[tuple[int, np.ndarray]]:
        for place, part, numbers in parts:
            for rows in part.read(numbers, dtype):
                yield place, rows

    reader = Reader(kind, name, make, n_rows=0, decimal=decimal)
    reader.labels, reader.stamps = short_labels(paths), [(path, _stamp(path)) for path in paths]
    parts: list[tuple[int, _Part, list[int]]] = []
    dtypes, first = [], paths[0]
    for place, path in enumerate(paths):
        part = _KINDS[kind](path, decimal)
        if reader.n_rows is not None:
            reader.n_rows = None if part.n_rows is None else reader.n_rows + part.n_rows
        # Often columns of a file without rows have no types either.
        if part.n_rows == 0:
            continue
        numbers = _choose(path, part, columns, reader, first)
        dtypes.append(part.dtype(numbers))
        parts.append((place, part, numbers))
        if reader.n_columns is None:
            first, reader.numbers, reader.n_columns = path, numbers, len(numbers)
            reader.names = part.names and [part.names[number] for number in numbers]
    dtype = reader.dtype = working_dtype(*dtypes)
    return reader


def _choose(path: Path, part: _Part, columns: Columns, reader: Reader, first: Path) -> list[int]:
    """Numbers of the columns of a file that are chosen, or that the first file has."""
    chosen: Sequence[str | int] = range(part.n_columns) if columns is None else columns
    if reader.n_columns is not None and (columns is None or reader.names is not None):
        names, is_equally_wide = reader.names or [], part.n_columns == reader.n_columns
        if is_equally_wide and part.names == reader.names:
            chosen = range(part.n_columns)
        elif names and set(names) <= set(part.names or ()) and (is_equally_wide or columns):
            # In another order they are the same columns.
            chosen = names
        else:
            expected, got = (
                f"{table.n_columns} without names"
                if table.names is None
                else ", ".join(table.names)
                for table in (reader, part)
            )
            raise ValueError(f"{path}: expected columns {expected} as in {first.name}, got {got}")
    return column_numbers(path, chosen, part.names, part.n_columns)


def _stamp(path: Path) -> Stamp:
    # Opened, so that what may not be read is refused at once and by name.
    with open(path, "rb") as file:
        stamp = Stamp.of(os.fstat(file.fileno()))
    check_size(path, stamp.size)
    return stamp


# Batches of other objects


def function_reader(function: Callable[[], Any], columns: Columns) -> Reader:
    """Rows of a function that returns an iterator of batches."""
    name = getattr(function, "__qualname__", None) or type(function).__name__
    name = f"{name.rsplit('.', 1)[-1]}()"

    def make() -> Iterable[tuple[int, Any]]:
        batches = function()
        got = "" if isinstance(batches, Iterable) else type(batches).__name__
        if isinstance(batches, np.ndarray) or is_frame(batches) or is_arrow(batches, "Table"):
            got = "one table"
        if got:
            raise TypeError(f"{name}: expected an iterator of batches, got {got}")
        return enumerate(batches)

    return Reader("batches", name, make, columns)


def sequence_reader(sequence: Any, columns: Columns) -> Reader:
    """Rows of an object with a length and slices."""
    n_rows = len(sequence)
    name = type(sequence).__name__

    def make() -> Iterator[tuple[int, Any]]:
        n_batch = getattr(sequence, "batch_size", None)
        if not isinstance(n_batch, int) or n_batch < 1:
            width = np.shape(sequence[0:1])[-1] if n_rows else 1
            n_batch = _batch_size(width, np.dtype(np.float64))
        for start in range(0, n_rows, n_batch):
            stop = min(start + n_batch, n_rows)
            batch = sequence[start:stop]
            if len(batch) != stop - start:
                raise ValueError(
                    f"{name}: expected {stop - start} rows in [{start}:{stop}], got {len(batch)}"
                )
            yield 0, batch

    return Reader("sequence", name, make, columns, n_rows, labels=[name])


def arrow_reader(data: Any, columns: Columns) -> Reader:
    """Rows of a pyarrow.Table or Dataset; of the files of one, if they are local Parquet files."""
    is_table = is_arrow(data, "Table")
    name = "the Arrow table" if is_table else "the Arrow dataset"
    fields, dtype = numeric_fields(name, data.schema, columns)
    names = [field.name for field in fields]
    n_rows = data.num_rows if is_table else data.count_rows()
    by_file = None if is_table else _local_parquet(data, names)
    # Fewer rows: the dataset has a filter, which only its own scanner knows.
    if by_file is not None and by_file.n_rows == n_rows:
        return by_file
    n_batch = _batch_size(len(names), dtype)

    def make() -> Iterator[tuple[int, Any]]:
        if is_table:
            batches = data.select(names).to_batches(n_batch)
        else:
            from pyarrow.dataset import ParquetFragmentScanOptions

            options: dict[str, Any] = {"batch_readahead": 1, "fragment_readahead": 1}
            if is_arrow(getattr(data, "format", None), "ParquetFileFormat"):
                little_memory = ParquetFragmentScanOptions(
                    pre_buffer=False, use_buffered_stream=True
                )
                options["fragment_scan_options"] = little_memory
            batches = data.to_batches(columns=names, batch_size=n_batch, **options)
        return ((0, batch) for batch in batches)

    return Reader("arrow", name, make, names, n_rows, len(names), dtype, labels=[name])


def _local_parquet(dataset: Any, names: list[str]) -> Reader | None:
    """The local Parquet files of a dataset, if they hold these columns."""
    if not is_arrow(dataset, "FileSystemDataset"):
        return None
    is_local = is_arrow(dataset.filesystem, "LocalFileSystem")
    paths = [Path(path) for path in dataset.files]
    if not is_local or not paths or not is_arrow(dataset.format, "ParquetFileFormat"):
        return None
    for path in paths:
        with open_parquet(path) as file:
            # Columns may also come from the names of folders.
            if file.metadata.num_rows > 0 and not set(names) <= set(file.schema_arrow.names):
                return None
    name = str(paths[0]) if len(paths) == 1 else f"{paths[0].parent} ({len(paths)} files)"
    return file_reader(".parquet", name, paths, names)

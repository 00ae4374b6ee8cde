"""Readers of rows that Python objects hand out: Arrow, objects with slices, functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pickmix.data.checks import check_numbers, check_rows
from pickmix.data.files import column_numbers, numeric_fields
from pickmix.data.readers import BATCH, ParquetReader, Reader, arrow_rows, naming_parquet
from pickmix.data.sources import working_dtype


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


def frame_rows(
    name: str, frame: Any, columns: Sequence[str | int] | None
) -> tuple[np.ndarray, list[str], list[int]]:
    """Rows, names and numbers of the chosen columns of a data frame."""
    names = [str(column) for column in frame.columns]
    numbers = list(range(len(names)))
    if columns is not None:
        numbers = column_numbers(name, columns, names, len(names))
    arrays = []
    for number in numbers:
        values = frame.iloc[:, number] if hasattr(frame, "iloc") else frame[names[number]]
        kind = getattr(values.dtype, "kind", None)
        if kind is None:
            # polars, whose types have no kinds; missing values become NaN by themselves.
            array = values.to_numpy()
            kind = array.dtype.kind
        elif kind in "fiub" and not isinstance(values.dtype, np.dtype):
            # A nullable type of pandas.
            array = values.to_numpy(dtype=np.float64, na_value=np.nan)
            if values.dtype.kind == "f" and values.dtype.itemsize <= 4:
                array = array.astype(np.float32)
        else:
            array = values.to_numpy()
        if kind not in "fiub":
            raise ValueError(
                f"{name}: expected numbers in column {names[number]!r}, got {values.dtype}; leave "
                "that column out with columns="
            )
        arrays.append(array)
    rows = np.empty((len(frame), len(arrays)), dtype=working_dtype(*(a.dtype for a in arrays)))
    for place, array in enumerate(arrays):
        rows[:, place] = array
    return rows, [names[number] for number in numbers], numbers


class BatchReader(Reader):
    """Rows that come in batches of any kind: arrays, data frames, Arrow tables.

    Parameters
    ----------
    kind, name : str
        For fingerprints and for messages.
    make : callable
        Gives the batches.
    columns : sequence of str or int, optional
        Which columns to take from each of them.
    n_rows : int, optional
        How many rows there must be, if that is known.
    counted : bool
        Whether messages count batches, or rows from the first one on.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        make: Callable[[], Iterable[Any]],
        columns: Sequence[str | int] | None,
        n_rows: int | None = None,
        counted: bool = True,
    ) -> None:
        self.kind = kind
        self.name = name
        self.n_rows = n_rows
        self._make = make
        self._chosen = columns
        self._counted = counted
        if not counted:
            self.labels = [name]

    def batches(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (number of the batch, rows)."""
        n_read = 0
        expected: tuple[list[str] | None, int] | None = None
        for number, batch in enumerate(self._make()):
            label = f"batch {number + 1} of {self.name}"
            if not self._counted:
                label = f"{self.name}, rows from {n_read + 1}"
            rows, names, stored = self._rows(label, batch)
            if rows.shape[0] > 0:
                if expected is None:
                    expected = (names, rows.shape[1])
                    self.names, self.n_columns, self.stored = names, rows.shape[1], stored
                self._check(label, rows, names, expected)
            n_read += rows.shape[0]
            yield number if self._counted else 0, rows
            # Not kept while the next one is made.
            del batch, rows
        if self.n_rows is not None and n_read != self.n_rows:
            raise ValueError(f"{self.name}: expected {self.n_rows} rows, got {n_read}")

    def _check(
        self,
        label: str,
        rows: np.ndarray,
        names: list[str] | None,
        expected: tuple[list[str] | None, int],
    ) -> None:
        wanted, got = (
            f"{number} columns" if known is None else f"columns {', '.join(known)}"
            for known, number in (expected, (names, rows.shape[1]))
        )
        if wanted != got:
            raise ValueError(f"{label}: expected {wanted} as before, got {got}")

    def _rows(self, label: str, batch: Any) -> tuple[np.ndarray, list[str] | None, list[int]]:
        if is_arrow(batch, "Table", "RecordBatch"):
            fields, dtype = numeric_fields(label, batch.schema, self._chosen)
            names = [field.name for field in fields]
            numbers = [batch.schema.names.index(name) for name in names]
            return arrow_rows(batch, names, dtype), names, numbers
        if is_frame(batch):
            return frame_rows(label, batch, self._chosen)
        try:
            rows = np.asarray(batch)
        except Exception as error:
            raise ValueError(f"{label}: expected rows of numbers, but {error}") from error
        if rows.ndim == 2 and rows.shape[0] == 0:
            return rows, None, []
        if rows.ndim != 2:
            check_rows(label, rows)
        check_numbers(label, rows.dtype)
        numbers = list(range(rows.shape[1]))
        if self._chosen is not None:
            numbers = column_numbers(label, self._chosen, None, rows.shape[1])
            rows = rows[:, numbers]
        return rows, None, numbers


def function_reader(
    function: Callable[[], Any], columns: Sequence[str | int] | None
) -> BatchReader:
    """Rows of a function that returns an iterator of batches."""
    name = getattr(function, "__qualname__", None) or type(function).__name__
    name = f"{name.rsplit('.', 1)[-1]}()"

    def make() -> Iterable[Any]:
        made = function()
        if isinstance(made, np.ndarray) or is_frame(made) or is_arrow(made, "Table"):
            raise TypeError(f"{name}: expected an iterator of batches, got one table")
        if not isinstance(made, Iterable):
            raise TypeError(f"{name}: expected an iterator of batches, got {type(made).__name__}")
        return made

    return BatchReader("batches", name, make, columns)


def sequence_reader(sequence: Any, columns: Sequence[str | int] | None) -> BatchReader:
    """Rows of an object with a length and slices."""
    n_rows = len(sequence)
    name = type(sequence).__name__

    def make() -> Iterator[Any]:
        n_batch = getattr(sequence, "batch_size", None)
        if not isinstance(n_batch, int) or n_batch < 1:
            # As many as fit into a batch, once it is known how wide they are.
            width = np.shape(sequence[0:1])[-1] if n_rows else 1
            n_batch = max(1, BATCH // (8 * max(1, width)))
        for start in range(0, n_rows, n_batch):
            stop = min(start + n_batch, n_rows)
            batch = sequence[start:stop]
            if len(batch) != stop - start:
                raise ValueError(
                    f"{name}: expected {stop - start} rows in [{start}:{stop}], got {len(batch)}"
                )
            yield batch

    return BatchReader("sequence", name, make, columns, n_rows, counted=False)


def arrow_table_reader(table: Any, columns: Sequence[str | int] | None) -> BatchReader:
    """Rows of a pyarrow.Table."""
    fields, dtype = numeric_fields("the Arrow table", table.schema, columns)
    names = [field.name for field in fields]
    n_batch = max(1, BATCH // (dtype.itemsize * max(1, len(names))))
    chosen = table.select(names)

    def make() -> Iterator[Any]:
        for start in range(0, table.num_rows, n_batch):
            yield chosen.slice(start, n_batch)

    reader = BatchReader("arrow", "the Arrow table", make, names, table.num_rows, counted=False)
    reader.dtype, reader.n_columns = dtype, len(names)
    return reader


def dataset_reader(dataset: Any, columns: Sequence[str | int] | None) -> Reader:
    """Rows of a pyarrow.dataset.Dataset: of its files, if they are local Parquet files."""
    fields, dtype = numeric_fields("the Arrow dataset", dataset.schema, columns)
    names = [field.name for field in fields]
    n_rows = dataset.count_rows()
    paths = _local_parquet(dataset)
    if paths:
        name = str(paths[0]) if len(paths) == 1 else f"{paths[0].parent} ({len(paths)} files)"
        if _all_hold(paths, names):
            by_file = ParquetReader(name, paths, names)
            # Fewer rows: the dataset has a filter, which only its own scanner knows.
            if by_file.n_rows == n_rows:
                return by_file
    n_batch = max(1, BATCH // (dtype.itemsize * max(1, len(names))))

    def make() -> Iterator[Any]:
        from pyarrow import dataset as arrow_dataset

        options: dict[str, Any] = {"batch_readahead": 1, "fragment_readahead": 1}
        if is_arrow(getattr(dataset, "format", None), "ParquetFileFormat"):
            options["fragment_scan_options"] = arrow_dataset.ParquetFragmentScanOptions(
                pre_buffer=False, use_buffered_stream=True
            )
        yield from dataset.to_batches(columns=names, batch_size=n_batch, **options)

    reader = BatchReader("arrow", "the Arrow dataset", make, names, n_rows, counted=False)
    reader.dtype, reader.n_columns = dtype, len(names)
    return reader


def _local_parquet(dataset: Any) -> list[Path]:
    if not is_arrow(dataset, "FileSystemDataset"):
        return []
    if not is_arrow(dataset.filesystem, "LocalFileSystem"):
        return []
    if not is_arrow(dataset.format, "ParquetFileFormat"):
        return []
    return [Path(path) for path in dataset.files]


def _all_hold(paths: Sequence[Path], names: Sequence[str]) -> bool:
    # Columns may also come from the names of folders.
    import pyarrow.parquet

    for path in paths:
        with naming_parquet(path):
            found = pyarrow.parquet.read_metadata(path)
        if found.num_rows > 0 and not set(names) <= set(found.schema.to_arrow_schema().names):
            return False
    return True

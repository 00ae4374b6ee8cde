"""Readers: rows that must be converted before they can be read in ranges, batch by batch.

Here those of files: Parquet, text, .npz, and .npy files that are stored column by column.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pickmix.data.files import (
    column_numbers,
    import_parquet,
    numeric_fields,
    parse_text,
    read_table,
    text_layout,
)
from pickmix.data.raw_files import RawSource, Stamp, describe_file, short_labels
from pickmix.data.sources import working_dtype
from pickmix.data.text_files import text_lines

# Bytes of a batch of rows as they are written: small enough for the processor's cache.
BATCH = 2 << 20
# Without these pyarrow reads all that a group of rows holds at once, and keeps it to the end.
_LITTLE_MEMORY = {"pre_buffer": False, "buffer_size": 1 << 20}


class Reader(abc.ABC):
    """Rows in batches, from first to last.

    Attributes
    ----------
    kind, name : str
        For fingerprints and for messages.
    n_rows, dtype, names
        None if not known yet. They are known once the first batch was read (`n_rows`
        only then, if at all).
    n_columns : int or None
        The same.
    stored : list of int or None
        Numbers of the columns where they come from, if they have no names.
    labels : list of str or None
        What messages call the parts that rows come from. None: batches are counted.
    """

    kind: str
    name: str
    n_rows: int | None = None
    n_columns: int | None = None
    dtype: np.dtype[Any] | None = None
    names: list[str] | None = None
    stored: list[int] | None = None
    labels: list[str] | None = None

    @abc.abstractmethod
    def batches(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (number of the part from 0, rows): 2-D arrays of real numbers."""

    def origin(self) -> dict[str, Any] | None:
        """What the rows are made from, JSON-able; None if that is known only from the rows."""
        return None

    def check_unchanged(self) -> None:  # noqa: B027 - most cannot tell
        """Refuse what has changed since it was opened."""

    def column_labels(self) -> Sequence[str | int] | None:
        """Names of the columns, or their numbers where they come from."""
        return self.stored if self.names is None else self.names


class FileReader(Reader):
    """Rows of files of one kind, one after the other."""

    def __init__(self, kind: str, name: str, paths: Sequence[Path]) -> None:
        self.kind = kind
        self.name = name
        self.paths = list(paths)
        self.labels = short_labels(self.paths)
        # The first file that has rows; it says what columns there are.
        self.first = self.paths[0]
        self.stamps = []
        for path in self.paths:
            # Opened, so that what may not be read is refused at once and by name.
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
            if status.st_size == 0:
                raise ValueError(f"{path}: expected rows of numbers, got an empty file")
            self.stamps.append(Stamp.of(status))

    def origin(self) -> dict[str, Any] | None:
        """Kind, and path, size and time of change of each file."""
        pairs = zip(self.paths, self.stamps, strict=True)
        return {"kind": self.kind, "files": [describe_file(*pair) for pair in pairs]}

    def check_unchanged(self) -> None:
        """Refuse files that have changed since they were opened."""
        for path, stamp in zip(self.paths, self.stamps, strict=True):
            stamp.check(path, path.stat())

    def match(
        self, path: Path, found: list[str] | None, n_found: int, all_columns: bool
    ) -> list[str] | list[int]:
        """Which columns of a file are those of the first file: names, or numbers."""
        names = self.names
        if found == names and n_found == self.n_columns:
            return list(range(n_found))
        named = found is not None and names is not None and set(names) <= set(found)
        # In another order they are the same columns.
        if named and (n_found == self.n_columns or not all_columns):
            return list(names or ())
        expected, got = (
            f"{number} without names" if known is None else ", ".join(known)
            for number, known in ((self.n_columns, names), (n_found, found))
        )
        raise ValueError(f"{path}: expected columns {expected} as in {self.first.name}, got {got}")


class ParquetReader(FileReader):
    """Rows of Parquet files, by batches that are freed one after the other."""

    def __init__(
        self, name: str, paths: Sequence[Path], columns: Sequence[str | int] | None = None
    ) -> None:
        parquet = import_parquet(name)
        super().__init__("parquet", name, paths)
        self.n_rows = 0
        self._counts = []
        dtypes = []
        for path in self.paths:
            with naming_parquet(path), parquet.ParquetFile(path) as file:
                n_rows, schema = file.metadata.num_rows, file.schema_arrow
            self._counts.append(n_rows)
            if n_rows == 0:
                # Often its columns have no types either.
                continue
            if self.n_columns is None:
                fields, dtype = numeric_fields(path, schema, columns)
                self.names = [field.name for field in fields]
                self.n_columns = len(fields)
                self.first = path
            else:
                self.match(path, schema.names, len(schema), all_columns=columns is None)
                _, dtype = numeric_fields(path, schema, self.names)
            dtypes.append(dtype)
            self.n_rows += n_rows
        self.dtype = working_dtype(*dtypes)

    def batches(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (number of the file, rows)."""
        parquet = import_parquet(self.name)
        assert self.dtype is not None
        assert self.n_columns is not None
        assert self.names is not None
        n_batch = max(1, BATCH // (self.n_columns * self.dtype.itemsize))
        for number, path in enumerate(self.paths):
            if self._counts[number] == 0:
                continue
            n_read = 0
            with naming_parquet(path), parquet.ParquetFile(path, **_LITTLE_MEMORY) as file:
                # Not `Dataset.to_batches`, which keeps what was read, too (arrow#39808).
                for batch in file.iter_batches(n_batch, columns=self.names):
                    n_read += batch.num_rows
                    yield number, arrow_rows(batch, self.names, self.dtype)
            if n_read != self._counts[number]:
                raise OSError(f"{path}: expected {self._counts[number]} rows, got {n_read}")


def arrow_rows(batch: Any, names: Sequence[str], dtype: np.dtype[Any]) -> np.ndarray:
    """Columns of an Arrow batch or table as rows; a missing value becomes NaN."""
    rows = np.empty((batch.num_rows, len(names)), dtype=dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        for place, name in enumerate(names):
            column = batch.column(name)
            if hasattr(column, "combine_chunks"):
                rows[:, place] = column.to_numpy()
            else:
                rows[:, place] = column.to_numpy(zero_copy_only=False)
    return rows


@contextlib.contextmanager
def naming_parquet(path: Path) -> Iterator[None]:
    """Name the file in errors of pyarrow."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, EOFError) as error:
        raise ValueError(f"{path}: expected a Parquet file, but {error}") from error
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(f"{path}: {error}") from error


class TextReader(FileReader):
    """Rows of text files, packed by gzip or not, by blocks of lines."""

    def __init__(
        self,
        name: str,
        paths: Sequence[Path],
        columns: Sequence[str | int] | None = None,
        decimal: str | None = None,
    ) -> None:
        super().__init__("text", name, paths)
        self.dtype = np.dtype(np.float64)
        self._decimal = decimal
        self._layouts = [text_layout(path, decimal) for path in self.paths]
        self._numbers: list[list[int]] = []
        for path, layout in zip(self.paths, self._layouts, strict=True):
            chosen: Sequence[str | int] = range(layout.n_columns)
            if not layout.has_rows:
                self._numbers.append([])
                continue
            if self.n_columns is None or (columns is not None and self.names is None):
                chosen = chosen if columns is None else columns
            else:
                chosen = self.match(path, layout.names, layout.n_columns, columns is None)
            numbers = column_numbers(path, chosen, layout.names, layout.n_columns)
            if self.n_columns is None:
                self.n_columns = len(numbers)
                self.first = path
                self.stored = numbers
                if layout.names is not None:
                    self.names = [layout.names[number] for number in numbers]
            self._numbers.append(numbers)
        if self.n_columns is None:
            self.n_rows = 0

    def origin(self) -> dict[str, Any] | None:
        """What other files have, and the decimal mark if it was asked for."""
        origin = super().origin()
        return (
            origin
            if origin is None or self._decimal is None
            else {**origin, "decimal": self._decimal}
        )

    def batches(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (number of the file, rows)."""
        assert self.n_columns is not None
        n_batch = max(1, BATCH // (8 * self.n_columns))
        for number, path in enumerate(self.paths):
            layout = self._layouts[number]
            if not layout.has_rows:
                continue
            with contextlib.closing(text_lines(path)) as numbered:
                lines = (line for place, line in numbered if place > layout.n_skipped)
                n_rows = n_batch
                while n_rows == n_batch:
                    first = next(lines, None)
                    if first is None:
                        break
                    rows = parse_text(
                        path,
                        itertools.chain([first], lines),
                        layout,
                        self._numbers[number],
                        n_batch,
                    )
                    n_rows = rows.shape[0]
                    yield number, rows


class ArchiveReader(FileReader):
    """Rows of .npz files, each read as a whole."""

    def __init__(
        self, name: str, paths: Sequence[Path], columns: Sequence[str | int] | None = None
    ) -> None:
        super().__init__("npz", name, paths)
        self._chosen = columns

    def column_labels(self) -> Sequence[str | int] | None:
        """The columns as they were asked for: what there is shows when a file is read."""
        return self._chosen

    def batches(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (number of the file, rows)."""
        for number, path in enumerate(self.paths):
            rows, names = read_table(path, columns=self._chosen)
            if self.n_columns is None:
                self.names, self.n_columns = names, rows.shape[1]
            matched = self.match(path, names, rows.shape[1], all_columns=True)
            order = column_numbers(path, matched, names, rows.shape[1])
            yield number, rows if order == list(range(len(order))) else rows[:, order]


class ScatteredReader(Reader):
    """Rows of .npy files that are stored column by column."""

    kind = "npy"

    def __init__(self, source: RawSource) -> None:
        self._source = source
        self.name = source.name
        self.n_rows, self.n_columns = source.n_rows, source.n_columns
        self.dtype = source.dtype
        self.stored = [int(column) for column in source.column_labels()]
        self.labels = short_labels([file.path for file in source.files])

    def origin(self) -> dict[str, Any] | None:
        """Path, size and time of change of each file."""
        origin = self._source.fingerprint()
        return {name: origin[name] for name in ("kind", "files", "layouts")}

    def batches(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (number of the file, rows)."""
        assert self.dtype is not None
        assert self.n_columns is not None
        # Larger than elsewhere: each batch takes one read per column.
        n_batch = max(1, 8 * BATCH // (self.n_columns * self.dtype.itemsize))
        first = 0
        for number, file in enumerate(self._source.files):
            last = first + file.n_rows
            for start in range(first, last, n_batch):
                yield number, self._source.read(start, min(start + n_batch, last))
            first = last

    def check_unchanged(self) -> None:
        """Refuse files that have changed since they were opened."""
        for file in self._source.files:
            file.stamp.check(file.path, os.stat(file.path))

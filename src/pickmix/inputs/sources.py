"""Row sources: rows of numbers that are read in ranges, wherever they are.

A fit that goes chunk by chunk sees its rows only through a `RowSource`. `open_rows` makes one.
"""

from __future__ import annotations

import copy
import hashlib
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from pickmix.inputs.arrays import check_matrix, check_numbers, check_shape
from pickmix.inputs.errors import InputError
from pickmix.inputs.files import (
    PICKLED,
    cast_into,
    check_beginning,
    check_size,
    column_numbers,
    working_dtype,
)

# Rows that stand for all of them in a fingerprint.
N_SAMPLED = 66
# Rows whose values are checked together.
_BLOCK_ROWS = 65536
# Bytes of a buffer where rows are not read straight into the result.
BUFFER = 4 << 20


class Stamp(NamedTuple):
    """Shows whether a file is still the same."""

    size: int
    mtime_ns: int
    device: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        return cls(status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino)

    def check(self, path: Path, status: os.stat_result) -> None:
        now = Stamp.of(status)
        if now != self:
            what = "replaced by another file"
            if now[2:] == self[2:]:
                what = f"changed (from {self.size} bytes to {now.size}, or in its contents)"
            raise OSError(f"{path}: the file was {what} since it was opened")

    def describe(self, path: Path) -> dict[str, Any]:
        return {"path": os.path.abspath(path), "size": self.size, "mtime_ns": self.mtime_ns}


@dataclass(frozen=True)
class ArrayFile:
    """A 2-D array of numbers that lies in a .npy file.

    It is read, never mapped: the system kills a process that touches a mapped page whose file was
    cut meanwhile. Each read opens the file again, which shows whether it is still the same.
    """

    path: Path
    #: None for cached rows, which another process may replace by the same ones.
    stamp: Stamp | None
    offset: int
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    fortran: bool

    def fill(self, start: int, stop: int, columns: np.ndarray | None, out: np.ndarray) -> None:
        """Read rows start to stop - 1, the given columns, into `out` and its dtype."""
        n_rows, n_columns = self.shape
        chosen = np.arange(n_columns) if columns is None else columns
        with open(self.path, "rb") as file:
            if self.stamp is not None:
                self.stamp.check(self.path, os.fstat(file.fileno()))
            if self.fortran:
                for position, column in enumerate(chosen.tolist()):
                    values = self._read(file, column * n_rows + start, (stop - start,))
                    cast_into(out[:, position], values)
            else:
                n_block = max(1, BUFFER // (n_columns * self.dtype.itemsize))
                for first in range(start, stop, n_block):
                    shape = min(n_block, stop - first), n_columns
                    rows = self._read(file, first * n_columns, shape)
                    rows = rows if columns is None else rows[:, columns]
                    cast_into(out[first - start : first - start + shape[0]], rows)
            # Once more: what changed while it was read may be half old and half new.
            if self.stamp is not None:
                self.stamp.check(self.path, os.fstat(file.fileno()))

    def _read(self, file: Any, first: int, shape: tuple[int, ...]) -> np.ndarray:
        values = np.empty(shape, dtype=self.dtype)
        file.seek(self.offset + first * self.dtype.itemsize)
        # As bytes, since views of memory know no foreign byte orders.
        if file.readinto(values.view(np.uint8)) < values.nbytes:
            raise OSError(f"{self.path}: the file was cut while it was read")
        return values


class RowSource:
    """Rows of numbers that are read in ranges: arrays or .npy files, one after the other."""

    def __init__(
        self,
        name: str,  # what messages call it, for example the path
        arrays: Sequence[np.ndarray | ArrayFile],
        parts: tuple[list[int], list[str] | None],  # first rows and names (None: batches) of parts
        origin: dict[str, Any],  # JSON-able; without "files" or with a mapped one, rows are hashed
        names: list[str] | None = None,
        numbers: list[int] | None = None,  # of the columns in the data
        mapped: tuple[Path, Stamp] | None = None,  # the file behind an array
    ) -> None:
        self.name = name
        self.n_columns = arrays[0].shape[1]
        self.names = names
        #: Of the rows that are read: float32 or float64.
        self.dtype = working_dtype(*(array.dtype for array in arrays))
        #: Rows per chunk that the user chose. None: the fit decides.
        self.chunk_size: int | None = None
        self._arrays = tuple(arrays)
        self._ends = np.cumsum([array.shape[0] for array in arrays]).tolist()
        self.n_rows: int = self._ends[-1]
        self._parts, self._origin, self._mapped = parts, origin, mapped
        self._numbers = list(range(self.n_columns)) if numbers is None else numbers
        # Positions of the columns among those that are stored; None: all of them, in order.
        self._columns: np.ndarray | None = None

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows start to stop - 1, (stop - start, D), C-contiguous; a view of an array if possible.

        Safe to call from several threads.
        """
        if not self._arrays:
            raise InputError("the source is closed", path=self.name)
        if not 0 <= start <= stop <= self.n_rows:
            expected = f"expected a range within 0 to {self.n_rows}"
            raise IndexError(f"{self.name}: {expected}, got {start} to {stop}")
        array = self._arrays[0]
        # What is mapped may change under a view of it.
        if isinstance(array, np.ndarray) and self._columns is None and self._mapped is None:
            rows = array[start:stop]
            if rows.dtype == self.dtype and rows.flags.c_contiguous:
                return rows
        out = np.empty((stop - start, self.n_columns), dtype=self.dtype)
        # First: the system kills a process that touches a mapped page whose file was cut.
        self._check_mapped()
        first = 0
        for array, last in zip(self._arrays, self._ends, strict=True):
            low, high = max(start, first), min(stop, last)
            if low < high:
                target = out[low - start : high - start]
                if isinstance(array, ArrayFile):
                    array.fill(low - first, high - first, self._columns, target)
                else:
                    rows = array[low - first : high - first]
                    cast_into(target, rows if self._columns is None else rows[:, self._columns])
            first = last
        self._check_mapped()
        return out

    def _check_mapped(self) -> None:
        if self._mapped is not None:
            path, stamp = self._mapped
            stamp.check(path, path.stat())

    def fingerprint(self) -> dict[str, Any]:
        """What identifies these rows, JSON-able.

        Two sources with equal fingerprints are taken for the same rows. Files count by path,
        size and time of change; rows that are in no file by a hash of some of them.
        """
        origin = dict(self._origin)
        if "files" not in origin or origin["kind"] == "array":
            # The first, the last and rows evenly spaced between them.
            sampled = np.unique(np.linspace(0, self.n_rows - 1, N_SAMPLED).astype(int)).tolist()
            content = b"".join(self.read(row, row + 1).tobytes() for row in sampled)
            origin["sample"] = hashlib.sha256(content).hexdigest()[:32]
        shape = [self.n_rows, self.n_columns]
        return {**origin, "columns": self.column_labels(), "dtype": self.dtype.name, "shape": shape}

    def column_labels(self) -> list[str] | list[int]:
        """Names of the columns, or their numbers in the data."""
        return list(self._numbers) if self.names is None else list(self.names)

    def place(self, row: int) -> str:
        """Where a row is, for messages; numbers from 1."""
        starts, labels = self._parts
        part = bisect_right(starts, row) - 1
        label = f"batch {part + 1} of {self.name}" if labels is None else labels[part]
        return f"{label}, row {row - starts[part] + 1}"

    def choose_columns(self, columns: Sequence[str | int]) -> None:
        """Read only these columns from now on, given by name or number from 0."""
        check_columns(columns)
        chosen = column_numbers(self.name, columns, self.names, self.n_columns)
        stored = np.arange(self.n_columns) if self._columns is None else self._columns
        self._columns = stored[chosen]
        self.n_columns = len(chosen)
        self._numbers = [self._numbers[number] for number in chosen]
        if self.names is not None:
            self.names = [self.names[number] for number in chosen]

    def with_columns(self, columns: Sequence[str | int]) -> Self:
        """The same rows with some of these columns only, by name or number from 0."""
        view = copy.copy(self)
        view.choose_columns(columns)
        return view

    def close(self) -> None:
        """End the use of the source; a temporary cache goes away with the last source of it."""
        self._arrays = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        shape = f"{self.n_rows} x {self.n_columns}"
        return f"<{type(self).__name__} {self.name}: {shape} {self.dtype.name}>"


def array_source(array: np.ndarray, name: str, names: list[str] | None = None) -> RowSource:
    """Rows of an array, perhaps a mapped file."""
    check_matrix(name, array)
    mapped = None
    origin: dict[str, Any] = {"kind": "array"}
    if isinstance(array, np.memmap) and os.path.exists(array.filename or ""):
        if array.mode != "r":
            # What is written to pages reaches the file's time of change at the latest now.
            array.flush()
        path = Path(str(array.filename))
        mapped = path, Stamp.of(path.stat())
        origin["files"] = [mapped[1].describe(path)]
    held = np.asarray(array)
    return RowSource(name, [held], ([0], [name]), origin, names, mapped=mapped)


def short_labels(paths: Sequence[Path]) -> list[str]:
    """Names of files for messages: without folders if they differ without them."""
    if len({path.name for path in paths}) == len(paths):
        return [path.name for path in paths]
    return [str(path) for path in paths]


def open_npy(path: Path) -> ArrayFile:
    with open(path, "rb") as file:
        stamp = Stamp.of(os.fstat(file.fileno()))
        check_size(path, stamp.size)
        check_beginning(path, file)
        try:
            formats: Any = np.lib.format
            is_first = formats.read_magic(file) == (1, 0)
            read = formats.read_array_header_1_0 if is_first else formats.read_array_header_2_0
            shape, fortran, dtype = read(file)
        except ValueError as error:
            raise InputError(f"expected a .npy file, but {error}", path=path) from error
        offset = file.tell()
    if dtype.hasobject:
        raise InputError(PICKLED, path=path)
    check_numbers(str(path), dtype)
    if len(shape) != 2:
        # Words the message; a shape without memory behind it.
        check_matrix(str(path), np.broadcast_to(np.zeros((), dtype), shape))
    expected = offset + shape[0] * shape[1] * dtype.itemsize
    if stamp.size < expected:
        problem = f"the file is cut: expected {expected} bytes, got {stamp.size}"
        raise InputError(problem, path=path)
    return ArrayFile(path, stamp, offset, shape, dtype, fortran)


def open_npy_files(name: str, paths: Sequence[Path]) -> RowSource:
    """Several .npy files as one table; those without rows are left out."""
    files = [file for file in map(open_npy, paths) if file.shape[0] > 0]
    if not files:
        raise InputError("expected rows, got none", path=name)
    first = files[0]
    check_shape(name, *first.shape)
    for file in files:
        if file.shape[1] != first.shape[1]:
            problem = f"expected {first.shape[1]} columns as in {first.path.name}"
            raise InputError(f"{problem}, got {file.shape[1]}", path=file.path)
    starts = np.cumsum([0] + [file.shape[0] for file in files[:-1]]).tolist()
    labels = short_labels([file.path for file in files])
    stamps = [file.stamp.describe(file.path) for file in files if file.stamp is not None]
    return RowSource(name, files, (starts, labels), {"kind": "raw", "files": stamps})


def check_columns(columns: Sequence[str | int]) -> None:
    """Refuse a single name, which would be taken for a sequence of letters."""
    if isinstance(columns, str | int):
        raise TypeError(f"columns must be a list of names or numbers, got {columns!r}")


def bad_value(value: Any, place: str, column: Any, parameter: str = "X") -> str:
    if np.isnan(value):
        return (
            f"{parameter} has a missing value (NaN or an empty cell) in {place}, column "
            f"{column!r}. Leave out that row or column, fill it with `pickmix impute`, or use a "
            "mixture that takes missing values, such as GaussianMixture or TableMixture."
        )
    return f"{parameter} must hold finite numbers, got {value} in {place}, column {column!r}."


def refuse_bad(
    source: RowSource, first: int, rows: np.ndarray, parameter: str = "X", allow_nan: bool = False
) -> None:
    """Refuse rows of a source, from number `first` on, that hold infinity, or NaN."""
    # Block by block: a mask of all entries would take memory of its own.
    for start in range(0, rows.shape[0], _BLOCK_ROWS):
        block = rows[start : start + _BLOCK_ROWS]
        finite = ~np.isinf(block) if allow_nan else np.isfinite(block)
        if not finite.all():
            row, column = (int(number) for number in np.argwhere(~finite)[0])
            label = source.column_labels()[column]
            place = source.place(first + start + row)
            raise ValueError(bad_value(block[row, column], place, label, parameter))


def read_ahead(
    source: RowSource, ranges: Iterable[tuple[int, int]]
) -> Generator[np.ndarray, None, None]:
    """Yield the rows of each range, while a thread reads the next two.

    Leaving early (`close()`, or the iterator goes away) ends the thread.
    """
    waiting: deque[Future[np.ndarray]] = deque()
    reader = ThreadPoolExecutor(1, thread_name_prefix="pickmix-read-ahead")
    try:
        for start, stop in ranges:
            waiting.append(reader.submit(source.read, start, stop))
            if len(waiting) > 2:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        reader.shutdown(cancel_futures=True)

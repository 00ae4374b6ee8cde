"""Rows that lie in files as raw numbers: .npy files and mapped arrays, read into buffers.

Files are read, never mapped: the system kills a process that touches a mapped page whose file was
cut meanwhile. Each read opens the file again. That costs some microseconds, keeps no descriptors,
and shows whether the file is still the one that was opened.
"""

from __future__ import annotations

import mmap
import os
import threading
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pickmix.data.checks import check_numbers, check_rows, check_shape
from pickmix.data.files import PICKLED, check_beginning
from pickmix.data.sources import RowSource, cast_into, working_dtype

# Bytes of a buffer where rows are not read straight to where they go.
BUFFER = 4 << 20

_seeking = threading.Lock()


@dataclass(frozen=True)
class Stamp:
    """What shows whether a file is still the same."""

    size: int
    mtime_ns: int
    device: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        """The stamp in what stat or fstat gave."""
        return cls(status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino)

    def check(self, path: Path, now: os.stat_result) -> None:
        """Refuse a file that is no longer the one of this stamp."""
        found = Stamp.of(now)
        if found != self:
            what = "replaced by another file"
            if (found.device, found.inode) == (self.device, self.inode):
                what = f"changed (from {self.size} bytes to {found.size}, or in its contents)"
            raise OSError(f"{path}: the file was {what} since it was opened")


@dataclass(frozen=True)
class RawFile:
    """A 2-D array of numbers that lies in a file."""

    path: Path
    stamp: Stamp
    offset: int
    n_rows: int
    n_columns: int
    dtype: np.dtype[Any]
    fortran: bool = False

    def fill(self, start: int, stop: int, columns: np.ndarray | None, out: np.ndarray) -> None:
        """Read rows start to stop - 1, the given columns, into `out` and its dtype."""
        with open(self.path, "rb", buffering=0) as file:
            self.stamp.check(self.path, os.fstat(file.fileno()))
            if self.fortran:
                self._fill_by_columns(file, start, stop, columns, out)
            else:
                self._fill_by_rows(file, start, stop, columns, out)
            # Once more: what changed while it was read may be half old and half new.
            self.stamp.check(self.path, os.fstat(file.fileno()))

    def _fill_by_rows(
        self, file: BinaryIO, start: int, stop: int, columns: np.ndarray | None, out: np.ndarray
    ) -> None:
        row_bytes = self.n_columns * self.dtype.itemsize
        if columns is None and self.dtype == out.dtype and out.flags.c_contiguous:
            self._read_into(file, self.offset + start * row_bytes, out)
            return
        n_block = min(stop - start, max(1, BUFFER // row_bytes))
        buffer = np.empty((n_block, self.n_columns), dtype=self.dtype)
        for first in range(start, stop, n_block):
            rows = buffer[: min(n_block, stop - first)]
            self._read_into(file, self.offset + first * row_bytes, rows)
            chosen = rows if columns is None else rows[:, columns]
            cast_into(out[first - start : first - start + rows.shape[0]], chosen)

    def _fill_by_columns(
        self, file: BinaryIO, start: int, stop: int, columns: np.ndarray | None, out: np.ndarray
    ) -> None:
        values = np.empty(stop - start, dtype=self.dtype)
        for place, column in enumerate(range(self.n_columns) if columns is None else columns):
            first = int(column) * self.n_rows + start
            self._read_into(file, self.offset + first * self.dtype.itemsize, values)
            cast_into(out[:, place], values)

    def _read_into(self, file: BinaryIO, position: int, out: np.ndarray) -> None:
        # As bytes, since views of memory know no foreign byte orders.
        view = out.view(np.uint8).data.cast("B")
        while view:
            n_read = _read_at(file, position, view)
            if n_read == 0:
                raise OSError(f"{self.path}: the file was cut while it was read")
            view = view[n_read:]
            position += n_read


def _read_at(file: BinaryIO, position: int, view: memoryview) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(file.fileno(), [view], position)
    with _seeking:
        file.seek(position)
        return int(file.readinto(view) or 0)  # type: ignore[attr-defined]


class RawSource(RowSource):
    """Rows of one or several raw files, one after the other."""

    def __init__(self, name: str, files: Sequence[RawFile], kind: str = "raw") -> None:
        dtype = working_dtype(*(file.dtype for file in files))
        super().__init__(name, sum(f.n_rows for f in files), files[0].n_columns, dtype)
        self._files = tuple(files)
        self._kind = kind
        self._starts = np.cumsum([0] + [file.n_rows for file in files]).tolist()
        self._labels = short_labels([file.path for file in files])

    @property
    def any_fortran(self) -> bool:
        """Whether some file is stored column by column, so that ranges of rows lie scattered."""
        return any(file.fortran and file.n_columns > 1 for file in self._files)

    @property
    def files(self) -> tuple[RawFile, ...]:
        """The files, in order."""
        return self._files

    def _fill(self, start: int, stop: int, out: np.ndarray) -> None:
        number = bisect_right(self._starts, start) - 1
        while start < stop:
            first = self._starts[number]
            end = min(stop, self._starts[number + 1])
            target, out = out[: end - start], out[end - start :]
            if end > start:
                self._files[number].fill(start - first, end - first, self._columns, target)
            start, number = end, number + 1

    def place(self, row: int) -> str:
        """Where a row is, for messages; numbers from 1."""
        number = bisect_right(self._starts, row) - 1
        return f"{self._labels[number]}, row {row - self._starts[number] + 1}"

    def _origin(self) -> dict[str, Any]:
        layouts = [[f.offset, f.n_rows, f.dtype.str, f.fortran] for f in self._files]
        return {
            "kind": self._kind,
            "files": [describe_file(file.path, file.stamp) for file in self._files],
            "layouts": layouts,
        }


def describe_file(path: Path, stamp: Stamp) -> dict[str, Any]:
    """A file's part of a fingerprint."""
    return {"path": os.path.abspath(path), "size": stamp.size, "mtime_ns": stamp.mtime_ns}


def short_labels(paths: Sequence[Path]) -> list[str]:
    """Names of files for messages: without folders if they differ without them."""
    if len({path.name for path in paths}) == len(paths):
        return [path.name for path in paths]
    return [str(path) for path in paths]


def open_npy(path: Path) -> RawFile:
    """Look at the header of a .npy file."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_size == 0:
            raise ValueError(f"{path}: expected rows of numbers, got an empty file")
        check_beginning(path, file)
        try:
            version = np.lib.format.read_magic(file)
            if version == (1, 0):
                shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
            else:
                shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
        except ValueError as error:
            raise ValueError(f"{path}: expected a .npy file, but {error}") from error
        offset = file.tell()
    if dtype.hasobject:
        raise ValueError(f"{path}: {PICKLED}")
    check_numbers(str(path), dtype)
    if len(shape) != 2:
        # Says what is wrong with it; a shape without memory behind it.
        check_rows(str(path), np.broadcast_to(np.zeros((), dtype), shape))
    n_rows, n_columns = shape
    expected = offset + n_rows * n_columns * dtype.itemsize
    if status.st_size < expected:
        raise ValueError(
            f"{path}: the file is cut: expected {expected} bytes, got {status.st_size}"
        )
    return RawFile(path, Stamp.of(status), offset, n_rows, n_columns, dtype, fortran)


def open_npy_files(name: str, paths: Sequence[Path]) -> RawSource:
    """Several .npy files as one table; those without rows are left out."""
    opened = [open_npy(path) for path in paths]
    files = [file for file in opened if file.n_rows > 0]
    if not files:
        raise ValueError(f"{name}: expected rows, got none")
    check_shape(name, files[0].n_rows, files[0].n_columns)
    for file in files:
        if file.n_columns != files[0].n_columns:
            raise ValueError(
                f"{file.path}: expected {files[0].n_columns} columns as in {files[0].path.name}, "
                f"got {file.n_columns}"
            )
    return RawSource(name, files)


def find_mapped_file(mapped: np.memmap[Any, Any]) -> RawFile | None:
    """The raw file behind a mapped array, or None if it cannot be read in its place.

    That is so for arrays that are not C-contiguous, for private copies of pages, and where the
    path no longer leads to what is mapped.
    """
    pages = getattr(mapped, "_mmap", None)
    if pages is None or mapped.filename is None or mapped.ndim != 2:
        return None
    if not mapped.flags.c_contiguous or mapped.mode == "c" or mapped.dtype.kind not in "fiub":
        return None
    if mapped.mode != "r":
        # What is written to pages reaches the file's time of change at the latest now.
        mapped.flush()
    path = Path(mapped.filename)
    try:
        status = path.stat()
    except OSError:
        return None
    # Slices keep the offset of the whole array, so where they lie follows from their address.
    first_page = mapped.offset - mapped.offset % mmap.ALLOCATIONGRANULARITY
    address = np.frombuffer(pages, dtype=np.uint8).ctypes.data
    offset = first_page + mapped.ctypes.data - address
    n_rows, n_columns = mapped.shape
    file = RawFile(path, Stamp.of(status), offset, n_rows, n_columns, mapped.dtype)
    if status.st_size < offset + mapped.nbytes or mapped.size == 0:
        return None
    # Another file may have taken the path: the same in some rows is the same.
    row = np.empty((1, n_columns), dtype=mapped.dtype)
    for number in np.unique(np.linspace(0, n_rows - 1, 66).astype(np.int64)).tolist():
        try:
            file.fill(number, number + 1, None, row)
        except OSError:
            return None
        if row.tobytes() != mapped[number : number + 1].tobytes():
            return None
    return file

"""Row sources: rows of numbers that are read in ranges, wherever they are.

A fit that goes chunk by chunk sees its rows only through a `RowSource`. `open_rows` makes one.
"""

from __future__ import annotations

import abc
import copy
import hashlib
import queue
import sys
import threading
from collections.abc import Generator, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from pickmix.data.checks import check_rows
from pickmix.data.files import column_numbers

# Rows that stand for all of them in a fingerprint.
N_SAMPLED = 66

# Rows whose values are looked at together.
_BLOCK_ROWS = 65536


class RowSource(abc.ABC):
    """Rows of numbers that are read in ranges.

    Parameters
    ----------
    name : str
        What messages call it, for example the path.
    n_rows : int
    n_columns : int
    dtype : float32 or float64
        Of the rows that are read.
    names : list of str, optional
        Column names.

    Attributes
    ----------
    chunk_size : int or None
        Rows per chunk that the user asked for. None: the fit decides.
    """

    n_rows: int
    n_columns: int
    dtype: np.dtype[Any]
    names: list[str] | None
    chunk_size: int | None
    name: str

    def __init__(
        self,
        name: str,
        n_rows: int,
        n_columns: int,
        dtype: np.dtype[Any],
        names: list[str] | None = None,
    ) -> None:
        self.name = name
        self.n_rows = n_rows
        self.n_columns = n_columns
        self.dtype = dtype
        self.names = names
        self.chunk_size = None
        # Places of the columns among those that are stored; None: all of them, in order.
        self._columns: np.ndarray | None = None
        self._owner = True
        self._closed = False

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows start to stop - 1, (stop - start, D), C-contiguous, in memory of their own.

        Safe to call from several threads.
        """
        self._check_range(start, stop)
        out = np.empty((stop - start, self.n_columns), dtype=self.dtype)
        if stop > start:
            self._fill(start, stop, out)
        return out

    @abc.abstractmethod
    def _fill(self, start: int, stop: int, out: np.ndarray) -> None:
        """Write the chosen columns of rows start to stop - 1 into `out`."""

    @abc.abstractmethod
    def _origin(self) -> dict[str, Any]:
        """Where rows come from, for the fingerprint: JSON-able, and the same for the same rows."""

    def fingerprint(self) -> dict[str, Any]:
        """What identifies these rows, JSON-able.

        Two sources with equal fingerprints are taken for the same rows. Files count by path,
        size and time of change; rows that are in no file by a hash of some of them.
        """
        return {
            **self._origin(),
            "columns": self.column_labels(),
            "dtype": self.dtype.name,
            "shape": [self.n_rows, self.n_columns],
        }

    def column_labels(self) -> list[str] | list[int]:
        """Names of the columns, or their numbers among the stored ones."""
        if self.names is not None:
            return list(self.names)
        if self._columns is None:
            return list(range(self.n_columns))
        return [int(column) for column in self._columns]

    def place(self, row: int) -> str:
        """Where a row is, for messages; numbers from 1."""
        return f"{self.name}, row {row + 1}"

    def with_columns(self, columns: Sequence[str | int]) -> Self:
        """The same rows with some of these columns only, by name or number from 0.

        The new source lives as long as this one is not closed; closing the new one leaves this
        one alone.
        """
        check_columns(columns)
        numbers = column_numbers(self.name, columns, self.names, self.n_columns)
        view = self._view()
        stored = np.arange(self.n_columns) if self._columns is None else self._columns
        view._columns = stored[numbers]
        view.n_columns = len(numbers)
        view.names = None if self.names is None else [self.names[number] for number in numbers]
        return view

    def with_dtype(self, dtype: np.dtype[Any]) -> Self:
        """The same rows as float32 or float64."""
        view = self._view()
        view.dtype = dtype
        return view

    def with_chunk_size(self, chunk_size: int | None) -> Self:
        """The same rows, to be visited in chunks of so many."""
        view = self._view()
        view.chunk_size = chunk_size
        return view

    def _view(self) -> Self:
        view = copy.copy(self)
        view._owner = False
        return view

    def own(self) -> None:
        """Let closing this source remove its temporary cache, if there is one."""
        self._owner = True

    def close(self) -> None:
        """End the use of the source; a temporary cache goes away."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        shape = f"{self.n_rows} x {self.n_columns}"
        return f"<{type(self).__name__} {self.name}: {shape} {self.dtype.name}>"

    def _check_range(self, start: int, stop: int) -> None:
        if self._closed:
            raise ValueError(f"{self.name}: the source is closed")
        if not 0 <= start <= stop <= self.n_rows:
            raise IndexError(
                f"{self.name}: expected a range within 0 to {self.n_rows}, got {start} to {stop}"
            )

    def _sample_hash(self) -> str:
        """A hash of the first, the last and rows evenly spaced between them."""
        chosen = np.unique(np.linspace(0, self.n_rows - 1, N_SAMPLED).astype(np.int64))
        digest = hashlib.sha256()
        for row in chosen.tolist():
            digest.update(np.ascontiguousarray(self.read(row, row + 1)).tobytes())
        return digest.hexdigest()[:32]


class ArraySource(RowSource):
    """Rows of an array, or of a mapped file that cannot be read otherwise.

    `read` gives views where the array is C-contiguous and of the right dtype.

    Examples
    --------
    >>> source = ArraySource(np.arange(6).reshape(3, 2), "X")
    >>> source.read(1, 3)
    array([[2., 3.],
           [4., 5.]])
    >>> source.place(2)
    'X, row 3'
    """

    def __init__(self, array: np.ndarray, name: str, names: list[str] | None = None) -> None:
        check_rows(name, array)
        n_rows, n_columns = array.shape
        super().__init__(name, n_rows, n_columns, working_dtype(array.dtype), names)
        self._array = array
        # A mapped file may change under a view of it.
        self._copies = isinstance(array, np.memmap)
        if self._copies:
            self._array = np.asarray(array)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows start to stop - 1, (stop - start, D), C-contiguous; maybe a view of the array."""
        rows = self._array[start:stop]
        if (
            self._copies
            or self._columns is not None
            or rows.dtype != self.dtype
            or not rows.flags.c_contiguous
        ):
            return super().read(start, stop)
        self._check_range(start, stop)
        return rows

    def _fill(self, start: int, stop: int, out: np.ndarray) -> None:
        rows = self._array[start:stop]
        cast_into(out, rows if self._columns is None else rows[:, self._columns])

    def _origin(self) -> dict[str, Any]:
        return {"kind": "array", "sample": self._sample_hash()}

    def close(self) -> None:
        """End the use of the source and let go of the array."""
        super().close()
        self._array = np.empty((0, self.n_columns), dtype=self.dtype)


def check_columns(columns: Sequence[str | int]) -> None:
    """Refuse a single name, which would be taken for a sequence of letters."""
    if isinstance(columns, str | int):
        raise TypeError(f"columns must be a list of names or numbers, got {columns!r}")


def working_dtype(*stored: np.dtype[Any]) -> np.dtype[Any]:
    """float32 if nothing wider is stored, else float64.

    Examples
    --------
    >>> working_dtype(np.dtype("float16"), np.dtype(">f4")).name
    'float32'
    >>> working_dtype(np.dtype("int8")).name
    'float64'
    """
    narrow = all(dtype.kind == "f" and dtype.itemsize <= 4 for dtype in stored)
    return np.dtype(np.float32 if narrow else np.float64)


def cast_into(out: np.ndarray, rows: np.ndarray) -> None:
    """Copy rows; what float32 cannot hold becomes infinite, which a fit reports by its place."""
    with np.errstate(over="ignore", invalid="ignore"):
        out[...] = rows


def bad_value(value: Any, place: str, column: Any, parameter: str = "X") -> str:
    """What to say of a value that is not a finite number."""
    if np.isnan(value):
        return (
            f"{parameter} has a missing value (NaN or an empty cell) in {place}, column "
            f"{column!r}. Leave out that row or column, fill it with `pickmix impute`, or use a "
            "mixture that takes missing values, such as GaussianMixture or TableMixture."
        )
    return f"{parameter} must hold finite numbers, got {value} in {place}, column {column!r}."


def refuse_bad(
    source: RowSource,
    first: int,
    rows: np.ndarray,
    parameter: str = "X",
    allow_nan: bool = False,
) -> None:
    """Refuse rows of a source, from number `first` on, that hold infinity, or NaN."""
    # Block by block: a mask of all entries would take memory of its own.
    for start in range(0, rows.shape[0], _BLOCK_ROWS):
        some = rows[start : start + _BLOCK_ROWS]
        finite = ~np.isinf(some) if allow_nan else np.isfinite(some)
        if not finite.all():
            row, column = (int(number) for number in np.argwhere(~finite)[0])
            label = source.column_labels()[column]
            place = source.place(first + start + row)
            raise ValueError(bad_value(rows[start + row, column], place, label, parameter))


def read_ahead(
    source: RowSource, ranges: Iterable[tuple[int, int]]
) -> Generator[np.ndarray, None, None]:
    """Yield the rows of each range, while a thread reads the next ones.

    At most two ranges wait. An error of the thread is raised here. Leaving early (`close()`, or
    the iterator goes away) ends the thread.

    Examples
    --------
    >>> source = ArraySource(np.arange(8.0).reshape(4, 2), "X")
    >>> [rows.sum().item() for rows in read_ahead(source, [(2, 4), (0, 2)])]
    [22.0, 6.0]
    """
    results: queue.SimpleQueue[tuple[np.ndarray | None, BaseException | None]] = queue.SimpleQueue()
    # Taken before a range is read, so that no third one is held while two wait.
    room = threading.Semaphore(2)
    left = threading.Event()

    def work() -> None:
        try:
            for start, stop in ranges:
                room.acquire()
                if left.is_set():
                    return
                results.put((source.read(start, stop), None))
        except BaseException as error:
            results.put((None, error))
        else:
            results.put((None, None))

    thread = threading.Thread(target=work, name="pickmix-read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            rows, error = results.get()
            if error is not None:
                raise error
            if rows is None:
                return
            room.release()
            yield rows
            # The caller has done with these rows: they must not stay while the next are awaited.
            del rows
    finally:
        left.set()
        room.release()
        # When the interpreter ends it has stopped the thread already, which would never be joined.
        if not sys.is_finalizing():
            thread.join()

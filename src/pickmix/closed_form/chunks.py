"""Where the chunks of a large table are, and where work on them is done.

Rows stay where they are. A task is a pure function of what all chunks share, one chunk, and the
states of its chains; its result is returned, and its parts are added up on the way. The order of
the additions is fixed, so the bits are the same wherever the tasks run.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from pickmix.inputs.sources import RowSource, read_ahead
from pickmix.sweep.contract import Backend


class Chunk(NamedTuple):
    """Rows (n, D) that lie one after another."""

    rows: np.ndarray
    #: Number of the first row in the whole table.
    first: int
    #: (n,); None means one each.
    weights: np.ndarray | None = None


# (shared, backend, chunk, states) -> (result, parts). Module-level functions: they travel by name.
# `shared.n_parts` is the number of parts, `shared.compiled` says which backend.
Task = Callable[[Any, Backend, Chunk, Any], tuple[Any, list[Any]]]
# (shared, one part, other part) -> their sum.
Add = Callable[[Any, Any, Any], Any]


class Chunks(Protocol):
    """Chunks of rows, and a place to work on them."""

    #: Chunk c holds the rows offsets[c]..offsets[c + 1] of the table.
    offsets: np.ndarray
    n_columns: int
    #: float32 or float64.
    dtype: np.dtype
    #: Chunks, a power of two, that are worth handing over in one `run`.
    chunks_per_run: int

    def run(
        self, task: Task, chunks: Sequence[int], shared: Any, states: Sequence[Any], add: Add
    ) -> tuple[list[Any], list[Any]]:
        """Do a task on some chunks, states[i] going to chunks[i].

        Returns the results in the order of the chunks, and the sums of the parts: part q of the
        result is the sum of all parts q, added up by `add_in_pairs`.
        """
        ...

    def place(self, row: int) -> str:
        """Where a row of the table is, for messages."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """What identifies these rows, for checkpoints; as JSON."""
        ...

    def close(self) -> None:
        """Let go of what the work needed."""
        ...


class LocalChunks:
    """Chunks of a source, read one after another while the one before is worked on.

    The backend has as many threads as there are for one chunk.
    """

    chunks_per_run = 1

    def __init__(
        self,
        source: RowSource,
        chunk_size: int,
        backend: Backend,
        weights: np.ndarray | None = None,
    ) -> None:
        self.source, self.backend, self.weights = source, backend, weights
        self.offsets = cut(source.n_rows, chunk_size)
        self.n_columns, self.dtype = source.n_columns, source.dtype
        self._reader: Iterator[np.ndarray] | None = None
        self._next = -1

    def _read(self, chunk: int) -> Chunk:
        """Read a chunk; the ones after it are read ahead, as a pass continues with them."""
        if self._reader is None or chunk != self._next:
            self.close()
            ends = self.offsets[chunk:].tolist()
            self._reader = read_ahead(self.source, list(itertools.pairwise(ends)))
        try:
            rows = next(self._reader)
        except BaseException:
            self.close()
            raise
        self._next = chunk + 1
        if self._next == self.offsets.shape[0] - 1:
            self.close()
        first, last = int(self.offsets[chunk]), int(self.offsets[chunk + 1])
        return Chunk(rows, first, None if self.weights is None else self.weights[first:last])

    def run(
        self, task: Task, chunks: Sequence[int], shared: Any, states: Sequence[Any], add: Add
    ) -> tuple[list[Any], list[Any]]:
        results = []
        sums = Pairwise(
            lambda one, other: [add(shared, a, b) for a, b in zip(one, other, strict=True)]
        )
        for chunk, state in zip(chunks, states, strict=True):
            result, parts = task(shared, self.backend, self._read(chunk), state)
            results.append(result)
            sums.put(parts)
        return results, sums.total() or []

    def place(self, row: int) -> str:
        return self.source.place(row)

    def fingerprint(self) -> dict[str, Any]:
        return self.source.fingerprint() | {"chunks": self.offsets[1:3].tolist()}

    def close(self) -> None:
        """Stop reading ahead."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()  # type: ignore[attr-defined]


def cut(n_rows: int, chunk_size: int) -> np.ndarray:
    """Ends of chunks of so many rows, (n_chunks + 1,).

    >>> cut(10, 4).tolist()
    [0, 4, 8, 10]
    """
    return np.append(np.arange(0, n_rows, chunk_size), n_rows).astype(np.int64)


def add_in_pairs(values: Sequence[Any], add: Callable[[Any, Any], Any]) -> Any:
    """Sum of values, neighbours first, then neighbouring sums, and so on; None of none.

    >>> add_in_pairs("abcde", lambda one, other: f"({one}{other})")
    '(((ab)(cd))e)'
    """
    sums = Pairwise(add)
    for value in values:
        sums.put(value)
    return sums.total()


class Pairwise:
    """`add_in_pairs` of values that come one by one, or as sums of 2^n neighbours each.

    Only some sums are kept at a time, as many as the number of values has binary digits.

    Examples
    --------
    >>> sums = Pairwise(lambda one, other: f"({one}{other})")
    >>> for letter in "abcde":
    ...     sums.put(letter)
    >>> sums.total()
    '(((ab)(cd))e)'
    """

    def __init__(self, add: Callable[[Any, Any], Any]) -> None:
        self._add = add
        # (how many values, their sum), ever fewer.
        self.kept: list[tuple[int, Any]] = []

    def put(self, value: Any, count: int = 1) -> None:
        """Add the sum of the next `count` values."""
        while self.kept and self.kept[-1][0] == count:
            _, before = self.kept.pop()
            value = self._add(before, value)
            count *= 2
        self.kept.append((count, value))

    def total(self) -> Any:
        """The sum of all; None of none."""
        values = [value for _, value in reversed(self.kept)]
        return functools.reduce(lambda after, before: self._add(before, after), values or [None])

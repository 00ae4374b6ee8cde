"""Chunks of a large table: where work on them is done, sums over them, and what they hold.

Rows stay where they are. A job is a pure function of one chunk and the state of its chains. It
returns a result for the chunk, and statistics that are added up on the way. The order of the
additions is fixed, so the bits are the same wherever the work is done.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from pickmix.inputs.sources import RowSource, read_ahead

_BLOCK_ROWS = 16384  # Rows that are inspected together: they stay in the cache.


class Chunk(NamedTuple):
    """Rows (n, D) that lie one after another."""

    rows: np.ndarray
    first: int  # Number of the first row in the whole table.
    weights: np.ndarray | None = None  # (n,); None means one each.


class Job(Protocol):
    """What is done to every chunk. It travels to where they are."""

    def work(self, chunk: Chunk, state: Any) -> tuple[Any, Any]:
        """Return a result for the chunk, and statistics."""
        ...

    def add(self, one: Any, other: Any) -> Any:
        """Add statistics of neighbouring chunks."""
        ...


class Chunks(Protocol):
    """Chunks of rows, and a place to work on them."""

    offsets: np.ndarray  # Chunk c holds the rows offsets[c]..offsets[c + 1] of the table.
    n_columns: int
    dtype: np.dtype  # float32 or float64.
    chunks_per_run: int  # A power of two that is worth handing over in one `run`.

    def run(self, job: Job, chunks: Sequence[int], states: Sequence[Any]) -> tuple[list[Any], Any]:
        """Do a job on some chunks, states[i] going to chunks[i].

        Returns the results in the order of the chunks, and the sum of their statistics, in the
        order of `add_in_pairs`.
        """
        ...

    def place(self, row: int) -> str:
        """Where a row of the table is, for messages."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """What identifies these rows, for checkpoints; as JSON."""
        ...

    def close(self) -> None:
        """Release what the work needed."""
        ...


class LocalChunks:
    """Chunks of a source, read one after another while the one before is worked on."""

    chunks_per_run = 1

    def __init__(
        self,
        source: RowSource,
        chunk_size: int,
        weights: np.ndarray | None = None,
    ) -> None:
        self.source, self.weights = source, weights
        ends = np.append(np.arange(0, source.n_rows, chunk_size), source.n_rows)
        self.offsets = ends.astype(np.int64)
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

    def run(self, job: Job, chunks: Sequence[int], states: Sequence[Any]) -> tuple[list[Any], Any]:
        results, sums = [], Pairwise(job.add)
        for chunk, state in zip(chunks, states, strict=True):
            result, statistics = job.work(self._read(chunk), state)
            results.append(result)
            sums.put(statistics)
        return results, sums.total()

    def place(self, row: int) -> str:
        return self.source.place(row)

    def fingerprint(self) -> dict[str, Any]:
        return self.source.fingerprint() | {"chunks": self.offsets[1:3].tolist()}

    def close(self) -> None:
        """Stop reading ahead."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()  # type: ignore[attr-defined]


class Pairwise:
    """`add_in_pairs` of values that come one by one, or as sums of 2^n neighbours each.

    Only some sums are kept at a time, as many as the number of values has binary digits.
    """

    def __init__(self, add: Callable[[Any, Any], Any]) -> None:
        self._add = add
        self.kept: list[tuple[int, Any]] = []  # (how many values, their sum), ever fewer.

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


def add_in_pairs(values: Sequence[Any], add: Callable[[Any, Any], Any]) -> Any:
    """Sum of values, neighbours first, then neighbouring sums, and so on; None of none.

    >>> add_in_pairs("abcde", lambda one, other: f"({one}{other})")
    '(((ab)(cd))e)'
    """
    sums = Pairwise(add)
    for value in values:
        sums.put(value)
    return sums.total()


@dataclass(frozen=True)
class Facts:
    """What some rows hold: their weight, and arrays (D,) about the columns."""

    weight: float  # Of rows of which something was seen.
    masses: np.ndarray  # Weights of the values that were seen of each column,
    mean: np.ndarray  # and their weighted mean.
    low: np.ndarray  # Smallest and largest value.
    high: np.ndarray
    n_unseen: int  # Rows that weigh something, and of which nothing was seen.

    @classmethod
    def of(cls, rows: np.ndarray, weights: np.ndarray | None) -> Facts:
        """Facts about rows (n, D) of float64, with NaN for what was not seen."""
        seen = ~np.isnan(rows)
        if weights is None:
            weights = np.ones(rows.shape[0])
        masses = weights @ seen
        # About a value that was seen, so that no digits are lost far from the origin.
        first = rows[seen.argmax(axis=0), np.arange(rows.shape[1])]
        first = np.where(masses > 0.0, first, 0.0)
        sums = weights @ np.where(seen, rows - first, 0.0)
        seen_rows = seen.any(axis=1)
        return cls(
            float(weights[seen_rows].sum()),
            masses,
            first + sums / np.where(masses > 0.0, masses, 1.0),
            rows.min(axis=0, initial=np.inf, where=seen),
            rows.max(axis=0, initial=-np.inf, where=seen),
            int(np.count_nonzero(~seen_rows & (weights > 0.0))),
        )

    def plus(self, other: Facts) -> Facts:
        masses = self.masses + other.masses
        share = np.divide(other.masses, masses, out=np.zeros_like(masses), where=masses > 0.0)
        start = np.where(self.masses > 0.0, self.mean, other.mean)
        both = (self.masses > 0.0) & (other.masses > 0.0)
        away = np.where(both, other.mean - self.mean, 0.0)
        return Facts(
            self.weight + other.weight,
            masses,
            start + share * away,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.n_unseen + other.n_unseen,
        )


class Sampled(NamedTuple):
    """Sampled rows of a chunk."""

    rows: np.ndarray
    weights: np.ndarray | None
    #: The first value that is infinite: number of its row in the whole table, column, value.
    bad: tuple[int, int, float] | None = None


@dataclass(frozen=True)
class Inspection:
    """The job of a first look: `Facts` about all rows, and a sample drawn without repetition."""

    seed: int
    n_rows: int  # Of the whole table.
    n_sampled: int

    def work(self, chunk: Chunk, state: None) -> tuple[Sampled, Facts]:
        rows, weights = chunk.rows, chunk.weights
        infinite = np.argwhere(np.isinf(rows))
        if infinite.size:
            row, column = infinite[0].tolist()
            bad = chunk.first + row, column, float(rows[row, column])
            nothing = Facts.of(np.full((1, rows.shape[1]), np.nan), np.zeros(1))
            return Sampled(rows[:0], None, bad), nothing
        facts = Pairwise(Facts.plus)
        for start in range(0, rows.shape[0], _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            block_weights = None if weights is None else weights[block]
            facts.put(Facts.of(rows[block].astype(np.float64, order="C"), block_weights))
        chosen = self._choose_rows(chunk)
        kept = None if weights is None else weights[chosen]
        return Sampled(np.ascontiguousarray(rows[chosen]), kept), facts.total()

    def add(self, one: Facts, other: Facts) -> Facts:
        return one.plus(other)

    def _choose_rows(self, chunk: Chunk) -> np.ndarray:
        """Draw the sampled rows of a chunk, (m,): its share of those that count."""
        n = chunk.rows.shape[0]
        first = chunk.first * self.n_sampled // self.n_rows
        n_chosen = (chunk.first + n) * self.n_sampled // self.n_rows - first
        counts = ~np.isnan(chunk.rows).all(axis=1)
        if chunk.weights is not None:
            counts &= chunk.weights > 0.0
        candidates = np.flatnonzero(counts)
        if n_chosen >= candidates.shape[0]:
            return candidates
        generator = np.random.Generator(
            np.random.Philox(key=np.array([self.seed, chunk.first], dtype=np.uint64))
        )
        chosen = np.sort(generator.choice(candidates.shape[0], n_chosen, replace=False))
        return np.asarray(candidates[chosen])

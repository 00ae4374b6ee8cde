"""What is done to one chunk of rows: an inspection of what it holds, and a sweep.

Both are pure functions. They run where the chunk is, on this machine or on another one.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pickmix.closed_form.cells import Cells
from pickmix.closed_form.chunks import Chunk
from pickmix.closed_form.search import Routes, search
from pickmix.closed_form.state import FrozenMixture
from pickmix.data.partial_rows import make_rows
from pickmix.data.rows import ArrayRows
from pickmix.families.base import Family
from pickmix.families.layout import Model
from pickmix.selection.partitions import Partition
from pickmix.sweep.contract import Backend
from pickmix.sweep.statistics import Statistics

# Rows that are inspected together: they stay in the cache.
_BLOCK_ROWS = 16384
# Components whose statistics travel together, at least, and ranges of them at most: each is a task
# for the scheduler of a cluster.
RANGE = 16384
MOST_RANGES = 8


@dataclass(frozen=True)
class Inspection:
    """How to inspect chunks."""

    seed: int
    #: Rows of the whole table, and how many of them are sampled.
    n_rows: int
    n_sampled: int
    n_parts: int = 1
    compiled: bool = False


@dataclass(frozen=True)
class Facts:
    """What some rows hold: weight and number of rows, and arrays (D,) about the columns."""

    #: Sum of the weights of rows of which something was seen.
    weight: float
    #: Weights of the values that were seen of each column, and their weighted mean.
    masses: np.ndarray
    mean: np.ndarray
    #: Smallest and largest value.
    low: np.ndarray
    high: np.ndarray
    #: Rows that weigh something, and of which nothing was seen.
    n_unseen: int = 0

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


def inspect_chunk(
    shared: Inspection, backend: Backend, chunk: Chunk, states: None
) -> tuple[Sampled, list[Facts]]:
    """Inspect a chunk: sums for means, extremes, and a sample drawn without repetition."""
    rows, weights = chunk.rows, chunk.weights
    facts: Facts | None = None
    for start in range(0, rows.shape[0], _BLOCK_ROWS):
        stop = start + _BLOCK_ROWS
        block = rows[start:stop].astype(np.float64, order="C")
        if np.isinf(block).any():
            row, column = np.argwhere(np.isinf(block))[0].tolist()
            bad = (chunk.first + start + row, column, float(block[row, column]))
            return Sampled(rows[:0], None, bad), [_no_facts(rows.shape[1])]
        block_facts = _facts_of(block, None if weights is None else weights[start:stop])
        facts = block_facts if facts is None else facts.plus(block_facts)
    assert facts is not None
    chosen = _choose_rows(shared, chunk)
    kept = None if weights is None else weights[chosen]
    return Sampled(np.ascontiguousarray(rows[chosen]), kept), [facts]


def _no_facts(n_columns: int) -> Facts:
    zeros = np.zeros(n_columns)
    return Facts(0.0, zeros, zeros, zeros + np.inf, zeros - np.inf)


def _facts_of(block: np.ndarray, weights: np.ndarray | None) -> Facts:
    if np.isnan(block).any():
        return _facts_of_partial(block, weights)
    # About the first row, so that no digits are lost far from the origin.
    away = block - block[0]
    weight = float(block.shape[0]) if weights is None else float(weights.sum())
    if not weight > 0.0:
        return _no_facts(block.shape[1])
    sums = away.sum(axis=0) if weights is None else weights @ away
    masses = np.full(block.shape[1], weight)
    return Facts(weight, masses, block[0] + sums / weight, block.min(axis=0), block.max(axis=0))


def _facts_of_partial(block: np.ndarray, weights: np.ndarray | None) -> Facts:
    seen = ~np.isnan(block)
    if weights is None:
        weights = np.ones(block.shape[0])
    masses = weights @ seen
    # About a value that was seen.
    first = block[seen.argmax(axis=0), np.arange(block.shape[1])]
    first = np.where(masses > 0.0, first, 0.0)
    sums = weights @ np.where(seen, block - first, 0.0)
    seen_rows = seen.any(axis=1)
    return Facts(
        float(weights[seen_rows].sum()),
        masses,
        first + sums / np.where(masses > 0.0, masses, 1.0),
        block.min(axis=0, initial=np.inf, where=seen),
        block.max(axis=0, initial=-np.inf, where=seen),
        int(np.count_nonzero(~seen_rows & (weights > 0.0))),
    )


def _choose_rows(shared: Inspection, chunk: Chunk) -> np.ndarray:
    """Draw the sampled rows of a chunk, (m,): its share of those that count."""
    n = chunk.rows.shape[0]
    first = chunk.first * shared.n_sampled // shared.n_rows
    n_chosen = (chunk.first + n) * shared.n_sampled // shared.n_rows - first
    counts = ~np.isnan(chunk.rows).all(axis=1)
    if chunk.weights is not None:
        counts &= chunk.weights > 0.0
    candidates = np.flatnonzero(counts)
    if n_chosen >= candidates.shape[0]:
        return candidates
    generator = np.random.Generator(
        np.random.Philox(key=np.array([shared.seed, chunk.first], dtype=np.uint64))
    )
    chosen = np.sort(generator.choice(candidates.shape[0], n_chosen, replace=False))
    return np.asarray(candidates[chosen])


def add_facts(shared: Inspection, one: Facts, other: Facts) -> Facts:
    return one.plus(other)


@dataclass(frozen=True)
class Sweeping:
    """What all chunks of a pass share."""

    family: Family
    #: Of all components, frozen.
    model: Model
    partition: Partition
    #: Where rows without a chain look for a component; None if all components are in one block.
    cells: Cells | None
    #: How many of them a row looks into; see `search`.
    n_probes: int
    #: Of the draws.
    key: np.uint64
    beta: float
    #: Origin of the coordinates, (D,), in the order of the family's columns.
    centre: np.ndarray
    #: What a row weighs on average.
    mean_weight: float
    compiled: bool

    @property
    def range_size(self) -> int:
        """Components whose statistics travel together."""
        return max(RANGE, -(-len(self.model.location) // MOST_RANGES))

    @property
    def n_parts(self) -> int:
        return -(-len(self.model.location) // self.range_size)


class ChunkSwept(NamedTuple):
    """Result of the sweep of a chunk."""

    #: Where its chains stand now, (n,).
    states: np.ndarray
    evaluations: int


class NumberedRows:
    """Rows of a chunk under their numbers in the whole table."""

    def __init__(self, rows: ArrayRows, first: int, mean_weight: float) -> None:
        self._rows, self._first, self._mean_weight = rows, first, mean_weight

    def gather(self, rows: np.ndarray) -> np.ndarray:
        return self._rows.gather(rows - self._first)

    def weights_of(self, rows: np.ndarray) -> tuple[np.ndarray, float]:
        return self._rows.weights_of(rows - self._first)[0], rows.shape[0] * self._mean_weight

    def patterns_of(self, rows: np.ndarray) -> np.ndarray | None:
        return self._rows.patterns_of(rows - self._first)


def sweep_chunk(
    shared: Sweeping, backend: Backend, chunk: Chunk, states: np.ndarray | None
) -> tuple[ChunkSwept, list[Statistics]]:
    """Move the chains of a chunk once; a chunk that has none yet finds them by a search."""
    family, model = shared.family, shared.model
    values = chunk.rows
    if states is None:
        problem = family.check(values)
        if problem is not None:
            last = chunk.first + len(values)
            raise ValueError(f"X, among rows {chunk.first + 1} to {last}: {problem}.")
    if family.column_order is not None:
        values = values[:, family.column_order]
    rows = make_rows(values, _weights_of(chunk), shared.centre)
    evaluations = 0
    if states is not None:
        chain = states.astype(np.int32)
    elif shared.cells is not None:
        mixture = FrozenMixture(family, model, backend)
        chain, _, evaluations = search(mixture, rows, Routes(shared.cells, shared.n_probes))
    else:
        chain = np.zeros(rows.n_rows, dtype=np.int32)
    swept = backend.sweep(
        family.layout,
        model,
        NumberedRows(rows, chunk.first, shared.mean_weight),
        np.arange(chunk.first, chunk.first + rows.n_rows),
        chain,
        shared.partition,
        shared.key,
        shared.beta,
        wants_log_sums=False,
    )
    assert swept.statistics is not None
    states = swept.components.astype(state_dtype(model.location.shape[0]))
    result = ChunkSwept(states, evaluations + swept.evaluations)
    return result, _in_ranges(swept.statistics, shared)


def state_dtype(n_components: int) -> type[np.integer[Any]]:
    """Type of the numbers of components that stay with a chunk between passes."""
    return np.uint16 if n_components <= 2**16 else np.int32


def _weights_of(chunk: Chunk) -> np.ndarray | None:
    """Weights of rows; those of which nothing was seen have none."""
    nothing = np.isnan(chunk.rows).all(axis=1)
    if not nothing.any():
        return chunk.weights
    weights = np.ones(nothing.shape[0]) if chunk.weights is None else chunk.weights
    return np.where(nothing, 0.0, weights)


def _in_ranges(statistics: Statistics, shared: Sweeping) -> list[Statistics]:
    """Cut the statistics of the components that were met, in rising order, into ranges."""
    met = np.flatnonzero(statistics.mass > 0.0)
    met = met[np.argsort(statistics.members[met], kind="stable")]
    ordered = statistics.at(met)
    ends = np.searchsorted(ordered.members, shared.range_size * np.arange(shared.n_parts + 1))
    return [ordered.at(np.arange(first, last)) for first, last in itertools.pairwise(ends.tolist())]


def add_statistics(shared: Sweeping, one: Statistics, other: Statistics) -> Statistics:
    return one.plus(other, shared.family.layout)


def joined(parts: list[Statistics]) -> Statistics:
    """Join the statistics of all ranges; each of them weighs all rows."""
    members = np.concatenate([part.members for part in parts])
    mass, squares, mean, scatter, counts = (
        np.concatenate(arrays) for arrays in zip(*(part.sums for part in parts), strict=True)
    )
    return Statistics(members, mass, squares, mean, scatter, counts, parts[0].total_weight)

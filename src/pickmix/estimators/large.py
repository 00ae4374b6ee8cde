"""Tables that are not in memory: a sample of the rows, and facts about all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pickmix.closed_form.chunks import (
    Chunks,
    Facts,
    Inspection,
    LocalChunks,
    Pairwise,
    Sampled,
)
from pickmix.closed_form.dask_chunks import DaskChunks
from pickmix.closed_form.fit import AllRows
from pickmix.data.partial_rows import make_rows
from pickmix.data.rows import ArrayRows
from pickmix.estimators.row_sources import (
    MEMORY_SHARE,
    chunk_rows,
    learn_names,
    memory,
    open_for,
)
from pickmix.families.base import Family
from pickmix.fitting.checkpoint import describe
from pickmix.fitting.progress import PassProgress
from pickmix.fitting.settings import partition_settings, resolve_batch_size
from pickmix.inputs.arrays import check_weights, refuse_empty, warn_about_unseen
from pickmix.inputs.open_rows import is_dask
from pickmix.inputs.sources import RowSource, bad_value
from pickmix.model.mixture import make_backend
from pickmix.sweep.reference import Reference
from pickmix.threads import Threads

_SAMPLE_BYTES = 2**30  # Of a sample at most, unless components would have too few rows.
_LEAST_PER_COMPONENT = 10  # Rows.
_NEARLY_ALL = 1.5  # Tables of so many times the sample come into memory as a whole.


def sample_size(n_rows: int, row_bytes: int, wanted: int, n_components: int) -> int:
    """Rows that a fit begins with in memory: enough for all components, or all.

    >>> sample_size(10**9, 32, 200_000, 300), sample_size(250_000, 32, 200_000, 300)
    (200000, 250000)
    """
    most = max(_LEAST_PER_COMPONENT * n_components, _SAMPLE_BYTES // row_bytes)
    n = min(wanted, most)
    return n_rows if n_rows <= min(_NEARLY_ALL * n, most) else n


class LargeTable:
    """A table X of rows that are not in memory, of which a sample comes into memory.

    The estimator's parameters say how many rows are needed; it gets the names of the columns.
    """

    def __init__(
        self, estimator: Any, X: Any, sample_weight: Any, columns: Any, threads: Threads
    ) -> None:
        self.chunks: Chunks
        # A source that the user has opened is the user's to close.
        self._own_source: RowSource | None = None
        names: list[str] | None
        if is_dask(X):
            collection = X if columns is None else choose_columns(X, columns)
            if not is_dask(sample_weight):
                sample_weight = check_weights(sample_weight, None)
            self.chunks = DaskChunks(collection, weights=sample_weight)
            names = self.chunks.names
            self._labels: Sequence[Any] = names or range(self.chunks.n_columns)
        else:
            source = open_for(X, columns)
            if not isinstance(X, RowSource):
                self._own_source = source
            sample_weight = check_weights(sample_weight, source.n_rows)
            size = chunk_rows(source, int(estimator.n_components))
            self.chunks = LocalChunks(source, size, Reference(), sample_weight)
            names = source.names
            self._labels = source.column_labels()
        self.n_rows = int(self.chunks.offsets[-1])
        # Rows that weigh something, as far as that is known here.
        self.n_heavy = self.n_rows
        if sample_weight is not None and not is_dask(sample_weight):
            self.n_heavy = int(np.count_nonzero(np.asarray(sample_weight)))
        self.n_columns = self.chunks.n_columns
        self._threads = threads
        self._weights = sample_weight
        learn_names(estimator, self.n_columns, names)

    def fingerprint(self) -> dict[str, Any]:
        weights = self._weights
        if is_dask(weights):
            weights = str(getattr(weights, "_name", type(weights)))
        elif weights is not None:
            weights = np.asarray(weights)
        return self.chunks.fingerprint() | {"sample_weight": describe(weights)}

    def look(self, estimator: Any, seeds: list[int]) -> tuple[np.ndarray, np.ndarray | None]:
        """Read the table once: facts about its columns, and a sample of rows, which is returned.

        Fits that need all rows in memory get all.
        """
        chunks, n_rows = self.chunks, self.n_rows
        row_bytes = chunks.n_columns * chunks.dtype.itemsize
        partition = partition_settings(estimator.algorithm, estimator.proposal)
        if partition is None:
            needed = n_rows * row_bytes
            if needed > MEMORY_SHARE * memory():
                raise MemoryError(
                    f"X takes {needed / 1e9:.1f} GB, and algorithm={estimator.algorithm!r} with "
                    f"proposal={estimator.proposal!r} needs all rows in memory. This machine has "
                    f"{memory() / 1e9:.1f} GB. The default algorithm reads them chunk by chunk."
                )
            n_sampled = n_rows
        else:
            K = int(estimator.n_components)
            wanted = resolve_batch_size("auto", estimator.algorithm, n_rows, K, partition)
            n_sampled = sample_size(n_rows, row_bytes, wanted, K)
        shared = Inspection(seeds[0] * 2**31 + seeds[1], n_rows, n_sampled)
        results, self.facts = self._inspect(shared, int(estimator.verbose))
        if not self.facts.weight > 0.0:
            raise ValueError("sample_weight must hold a positive weight, got only zeros.")
        refuse_empty(self.facts.masses, self._labels)
        warn_about_unseen(self.facts.n_unseen, stacklevel=5)
        self.n_heavy -= self.facts.n_unseen
        self.is_whole = n_sampled == n_rows
        self.mean_weight = self.facts.weight / n_rows
        return _gathered(results)

    def _inspect(self, shared: Inspection, verbose: int) -> tuple[list[Sampled], Facts]:
        chunks = self.chunks
        n_chunks, size = chunks.offsets.shape[0] - 1, chunks.chunks_per_run
        results: list[Sampled] = []
        sums = Pairwise(Facts.plus)
        progress = PassProgress(self.n_rows, verbose, label="first look")
        try:
            for first in range(0, n_chunks, size):
                run = range(first, min(first + size, n_chunks))
                sampled, facts = chunks.run(shared, run, [None] * len(run))
                for result in sampled:
                    if result.bad is not None:
                        row, column, value = result.bad
                        where = chunks.place(row)
                        raise ValueError(bad_value(value, where, self._labels[column]))
                results += sampled
                sums.put(facts, len(run))
                progress.advance(1, int(chunks.offsets[run.stop]))
        finally:
            progress.close()
        return results, sums.total()

    def extremes(self) -> np.ndarray:
        """The smallest and the largest value of every column, (2, D)."""
        return np.stack([self.facts.low, self.facts.high])

    def all_rows(self) -> AllRows:
        return AllRows(self.chunks, self.mean_weight)

    def sample_source(
        self, rows: np.ndarray, weights: np.ndarray | None, family: Family, compiled: bool
    ) -> ArrayRows:
        """The sample as the engine's source; columns of `rows` are in the family's order."""
        order = slice(None) if family.column_order is None else family.column_order
        facts = self.facts
        centre = family.centre(facts.mean[order])
        source = make_rows(rows, weights, centre, compiled)
        source.limits = facts.low[order], facts.high[order]
        if isinstance(self.chunks, LocalChunks):
            self.chunks.backend = make_backend(compiled, self._threads)
        return source

    def close(self) -> None:
        self.chunks.close()
        if self._own_source is not None:
            self._own_source.close()


def _gathered(results: list[Sampled]) -> tuple[np.ndarray, np.ndarray | None]:
    """The rows of all chunks, and their weights; chunks are released one by one."""
    n_rows = sum(result.rows.shape[0] for result in results)
    first = results[0]
    rows = np.empty((n_rows, first.rows.shape[1]), dtype=first.rows.dtype)
    weights = None if first.weights is None else np.empty(n_rows)
    end = n_rows
    while results:
        part = results.pop()
        begin = end - part.rows.shape[0]
        rows[begin:end] = part.rows
        if weights is not None and part.weights is not None:
            weights[begin:end] = part.weights
        end = begin
    return rows, weights


def choose_columns(collection: Any, columns: Any) -> Any:
    """Some columns of a Dask collection: by name from a dataframe, by number from an array."""
    return collection[list(columns)] if hasattr(collection, "columns") else collection[:, columns]

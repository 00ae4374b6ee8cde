"""The rows that a fit in closed form learns from: in memory, or a sample of a larger table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from pickmix.data.rows import ArrayRows, make_rows
from pickmix.estimators.row_sources import chunk_rows, learn_names, open_for, refuse_too_large
from pickmix.families.base import Family
from pickmix.fitting.checkpoint import describe
from pickmix.fitting.loop import PassProgress
from pickmix.fitting.settings import partition_settings, resolve_batch_size
from pickmix.inputs.arrays import check_weights, refuse_empty, warn_about_unseen
from pickmix.inputs.open_rows import is_dask
from pickmix.inputs.sources import RowSource, bad_value

LARGEST_SPREAD = 1e60  # Squares and their products must stay within float64.
_SAMPLE_BYTES = 2**30  # Of a sample at most, unless components would have too few rows.
_LEAST_PER_COMPONENT = 10  # Rows.
_AUTOMATIC_COMPONENTS = 400
_NEARLY_ALL = 1.5  # Tables of so many times the sample come into memory as a whole.


@dataclass
class FitRows:
    """Rows (N, D) in memory, all or a sample, with weights (N,) and noise."""

    rows: np.ndarray
    weights: np.ndarray | None
    noise: np.ndarray | None = None
    facts: Facts | None = None  # About all rows, if these are a sample.
    log_units: np.ndarray | None = None  # Of log-likelihoods in the table's units, (N,).

    @property
    def is_partial(self) -> bool:
        """Whether rows have gaps or noise."""
        return self.noise is not None or bool(np.isnan(self.rows).any())

    def source(self, family: Family, compiled: bool, centre: np.ndarray | None = None) -> ArrayRows:
        """Rows as the engine sees them, checked; about their mean unless a centre is given."""
        if self.noise is not None and not family.takes_noise:
            raise ValueError(f"noise is for Gaussian components, got family {family.name!r}.")
        problem = family.check(self.rows)
        if problem is not None:
            raise ValueError(f"X: {problem}.")
        if self.facts is not None:
            centre = family.centre(family.coordinates(self.facts.mean[None])[0])
        # Sums of huge values may overflow; the check of the spread then says so by name.
        with np.errstate(over="ignore", invalid="ignore"):
            source = make_rows(family.coordinates(self.rows), self.weights, centre, self.noise)
            if centre is None:
                source.center = family.centre(source.center)
            if self.facts is not None and family.keeps_columns:
                low, high = family.coordinates(np.stack([self.facts.low, self.facts.high]))
                source.limits = low, high
            source.log_units = self.log_units
            spread = float(np.sqrt(source.spread().max()))
        if not spread < LARGEST_SPREAD:
            raise ValueError(
                f"X must have columns with a spread below {LARGEST_SPREAD:.0e}, so that squares "
                f"fit into float64, got {spread:.3g}. Rescale it."
            )
        return source


def _number(estimator: Any) -> int:
    """Components to read rows for; of "auto" as many as the smallest sample suffices for."""
    number = estimator.n_components
    return _AUTOMATIC_COMPONENTS if isinstance(number, str) else int(number)


def check_enough_rows(n_rows: int, n_components: int) -> None:
    if n_rows < n_components:
        raise ValueError(
            f"n_components must be at most the number of rows (n_samples={n_rows}, rows of "
            f"zero weight not counted), got n_components={n_components}."
        )


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

    def __init__(self, estimator: Any, X: Any, sample_weight: Any, columns: Any) -> None:
        self.chunks: Chunks
        # A source that the user has opened is the user's to close.
        self._opened: RowSource | None = None
        if is_dask(X):
            if columns is not None:
                X = X[list(columns)] if hasattr(X, "columns") else X[:, columns]
            if not is_dask(sample_weight):
                sample_weight = check_weights(sample_weight, None)
            self.chunks = DaskChunks(X, weights=sample_weight)
            names = self.chunks.names
            self._labels: Sequence[Any] = names or range(self.chunks.n_columns)
        else:
            source = open_for(X, columns)
            self._opened = None if source is X else source
            sample_weight = check_weights(sample_weight, source.n_rows)
            size = chunk_rows(source, _number(estimator))
            self.chunks = LocalChunks(source, size, sample_weight)
            names, self._labels = source.names, source.column_labels()
        #: Rows that weigh something, as far as that is known.
        self.n_rows = int(self.chunks.offsets[-1])
        if sample_weight is not None and not is_dask(sample_weight):
            self.n_rows = int(np.count_nonzero(sample_weight))
        self.n_columns = self.chunks.n_columns
        self._weights = sample_weight
        learn_names(estimator, self.n_columns, names)

    def fingerprint(self) -> dict[str, Any]:
        weights = self._weights
        if is_dask(weights):
            weights = str(getattr(weights, "_name", type(weights)))
        return self.chunks.fingerprint() | {"sample_weight": describe(weights)}

    def sample(self, estimator: Any, seeds: list[int]) -> tuple[FitRows, np.ndarray]:
        """Read the table once: a sample of the rows, and the extremes of all columns (2, D).

        Fits that need all rows in memory get all.
        """
        chunks, n_all = self.chunks, int(self.chunks.offsets[-1])
        row_bytes = chunks.n_columns * chunks.dtype.itemsize
        partition = partition_settings(estimator.algorithm, estimator.proposal)
        if partition is None:
            refuse_too_large(
                n_all * row_bytes,
                "X takes",
                f"algorithm={estimator.algorithm!r} with proposal={estimator.proposal!r} needs all "
                "rows in memory",
                " The default algorithm reads them chunk by chunk.",
            )
            n_sampled = n_all
        else:
            K = _number(estimator)
            wanted = resolve_batch_size("auto", estimator.algorithm, n_all, K, partition)
            n_sampled = sample_size(n_all, row_bytes, wanted, K)
        shared = Inspection(seeds[0] * 2**31 + seeds[1], n_all, n_sampled)
        results, facts = self._inspect(shared, int(estimator.verbose))
        if not facts.weight > 0.0:
            raise ValueError("sample_weight must hold a positive weight, got only zeros.")
        refuse_empty(facts.masses, self._labels)
        warn_about_unseen(facts.n_unseen)
        self.n_rows -= facts.n_unseen
        rows, weights = _gathered(results)
        extremes = np.stack([facts.low, facts.high])
        #: What passes over all rows need, unless all are in memory.
        self.all_rows: AllRows | None = None
        if n_sampled == n_all:
            return FitRows(rows, weights), extremes
        self.all_rows = AllRows(chunks, facts.weight / n_all)
        return FitRows(rows, weights, facts=facts), extremes

    def _inspect(self, shared: Inspection, verbose: int) -> tuple[list[Sampled], Facts]:
        chunks = self.chunks
        n_chunks, size = chunks.offsets.shape[0] - 1, chunks.chunks_per_run
        results: list[Sampled] = []
        sums = Pairwise(Facts.plus)
        with PassProgress(shared.n_rows, verbose, label="first look") as progress:
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
        return results, sums.total()

    def close(self) -> None:
        self.chunks.close()
        if self._opened is not None:
            self._opened.close()


def _gathered(results: list[Sampled]) -> tuple[np.ndarray, np.ndarray | None]:
    """The rows of all chunks, and their weights; chunks are released one by one."""
    end = sum(result.rows.shape[0] for result in results)
    first = results[0]
    rows = np.empty((end, first.rows.shape[1]), dtype=first.rows.dtype)
    weights = None if first.weights is None else np.empty(end)
    while results:
        part = results.pop()
        begin = end - part.rows.shape[0]
        rows[begin:end] = part.rows
        if weights is not None and part.weights is not None:
            weights[begin:end] = part.weights
        end = begin
    return rows, weights

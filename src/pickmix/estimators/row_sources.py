"""Rows that are not in memory: what an estimator takes beside arrays, and how it reads them."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import os
from collections.abc import Callable, Generator
from typing import Any, TypeVar, cast

import numpy as np
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from pickmix.data.checks import check_weights
from pickmix.data.dask_data import is_dask
from pickmix.data.open_rows import is_source, open_rows, read_ahead
from pickmix.data.sources import RowSource, refuse_bad
from pickmix.estimators.lazy import lazily

# Bytes of a chunk: at least, and at most for very many components, which need so many rows each to
# be worth a visit.
_CHUNK_BYTES = 2**25
_LARGEST_CHUNK_BYTES = 2**29
_CHUNK_ROWS_PER_COMPONENT = 64
# Share of the memory that rows may take.
MEMORY_SHARE = 0.7
Query = TypeVar("Query", bound=Callable[..., Any])


def is_large(X: Any) -> bool:
    """Whether rows come from files, from a cluster or piece by piece, and not from an array."""
    return is_dask(X) or is_source(X)


def open_for(X: Any, columns: Any = None) -> RowSource:
    """The source of rows that X describes, with the columns that are asked for."""
    if columns is not None and not is_large(X):
        raise ValueError(
            "columns is for files, sources and the like; choose the columns of an array or a frame "
            f"before, got columns={columns!r} and X of {type(X)!r}."
        )
    return open_rows(X, columns=columns)


def open_fitted(estimator: Any, X: Any) -> RowSource:
    """The source of rows that X describes, with the columns that an estimator was fitted to.

    A table whose columns have names may have others beside them, in any order.
    """
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None and _may_have_names(X):
        return open_rows(X, columns=list(names))
    source = open_rows(X)
    if names is not None and source.names is not None and source.names != list(names):
        return _with_columns(source, list(names), owns=source is not X)
    if source.n_columns != estimator.n_features_in_:
        message = (
            f"X has {source.n_columns} features, but {type(estimator).__name__} is expecting "
            f"{estimator.n_features_in_} features as input ({source.name}). "
            "open_rows(..., columns=...) chooses some."
        )
        source.close()
        raise ValueError(message)
    return source


def _with_columns(source: RowSource, names: list[str], owns: bool) -> RowSource:
    """A source with other columns, which takes the place of the first one if that was ours."""
    try:
        chosen = source.with_columns(names)
    except BaseException:
        if owns:
            source.close()
        raise
    if owns:
        chosen.own()
    return chosen


def _may_have_names(X: Any) -> bool:
    if isinstance(X, RowSource):
        return X.names is not None
    if isinstance(X, str | os.PathLike):
        return not str(X).endswith((".npy", ".npz"))
    # Arrow's tables and data sets.
    return hasattr(X, "schema")


def chunk_rows(source: RowSource, n_components: int) -> int:
    """Rows per chunk: what the user asked for, or as many as are worth reading at a time."""
    if source.chunk_size is not None:
        return source.chunk_size
    row_bytes = source.n_columns * source.dtype.itemsize
    wished = max(_CHUNK_BYTES // row_bytes, _CHUNK_ROWS_PER_COMPONENT * n_components)
    return int(max(1, min(wished, _LARGEST_CHUNK_BYTES // row_bytes)))


def ranges_of(source: RowSource) -> list[tuple[int, int]]:
    """Ranges of rows to read one after another."""
    size = chunk_rows(source, 1)
    return [(first, min(first + size, source.n_rows)) for first in range(0, source.n_rows, size)]


def read_all(source: RowSource, why: str) -> np.ndarray:
    """All rows in memory, if they fit; `why` they must be there."""
    needed = source.n_rows * source.n_columns * source.dtype.itemsize
    if needed > MEMORY_SHARE * memory():
        raise MemoryError(
            f"{source.name}: its {source.n_rows:,} rows take {needed / 1e9:.1f} GB, and {why}. "
            f"This machine has {memory() / 1e9:.1f} GB."
        )
    return source.read(0, source.n_rows)


def memory() -> float:
    """Bytes of memory of this machine; infinite where that is not known."""
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return float("inf")


def learn_names(estimator: Any, n_columns: int, names: list[str] | None) -> None:
    """Keep the columns of a table as scikit-learn does those of a frame."""
    estimator.n_features_in_ = n_columns
    if names is not None:
        estimator.feature_names_in_ = np.array(names, dtype=object)
    elif hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_


def by_chunks(query: Query) -> Query:
    """Let a query of an estimator take rows that are not in memory.

    Chunk by chunk for files and the like; lazily for Dask collections.
    """

    @functools.wraps(query)
    def answer(self: Any, X: Any, *args: Any, **options: Any) -> Any:
        if options.get("noise") is not None and is_large(X):
            raise ValueError("noise needs rows in memory: read X into an array first.")
        if is_dask(X):
            check_is_fitted(self)
            return _ask_lazily(self, query, X, *args, **options)
        if not is_source(X):
            return query(self, X, *args, **options)
        check_is_fitted(self)
        with contextlib.closing(read_fitted(self, X)) as chunks:
            # The columns were compared when they were chosen.
            bare = copy.copy(self)
            vars(bare).pop("feature_names_in_", None)
            parts = [query(bare, rows, *args, **options) for rows in chunks]
        if isinstance(parts[0], tuple):
            return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return np.concatenate(parts)

    return cast(Query, answer)


def _ask_lazily(estimator: Any, query: Query, X: Any, *args: Any, **options: Any) -> Any:
    """The answer of a query, to be computed later."""
    name = query.__name__
    bound = inspect.signature(query).bind(estimator, X, *args, **options)
    bound.apply_defaults()
    arguments = dict(list(bound.arguments.items())[2:])
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None and hasattr(X, "columns"):
        X = X[list(names)]
    n_columns = arguments.get("m")
    if name == "predict_proba":
        n_columns = arguments.get("level") or estimator.weights_.shape[0]
    dtype = {"predict": np.int64, "top_components": (np.int64, np.float64)}.get(name, np.float64)
    return lazily(getattr(estimator, name), X, dtype, n_columns, **arguments)


def learn_by_chunks(estimator: Any, X: Any, sample_weight: Any, is_begun: bool) -> None:
    """Call `partial_fit` with the chunks of a source, one after another.

    If the estimator `is_begun`, the source must have its columns.
    """
    if is_dask(X):
        raise TypeError(
            "partial_fit takes one batch at a time: compute the partitions of a Dask "
            "collection one by one, or use fit, which leaves them where they are."
        )
    source = open_fitted(estimator, X) if is_begun else open_for(X)
    # Chunks come without names: the columns have been chosen.
    names = vars(estimator).pop("feature_names_in_", source.names)
    ranges = ranges_of(source)
    allow_nan = get_tags(estimator).input_tags.allow_nan
    try:
        weights = check_weights(sample_weight, source.n_rows)
        with contextlib.closing(read_ahead(source, ranges)) as chunks:
            for (first, last), rows in zip(ranges, chunks, strict=True):
                refuse_bad(source, first, rows, allow_nan=allow_nan)
                some = None if weights is None else weights[first:last]
                has_say = ~np.isnan(rows).all(axis=1)
                if (has_say if some is None else has_say & (some > 0.0)).any():
                    estimator.partial_fit(rows, sample_weight=some)
    finally:
        if source is not X:
            source.close()
        learn_names(estimator, source.n_columns, None if names is None else list(names))


def read_fitted(estimator: Any, X: Any) -> Generator[np.ndarray, None, None]:
    """Chunks of X one after another, with the columns that an estimator was fitted to."""
    source = open_fitted(estimator, X)
    allow_nan = get_tags(estimator).input_tags.allow_nan
    try:
        ranges = ranges_of(source)
        with contextlib.closing(read_ahead(source, ranges)) as reader:
            for (first, _), rows in zip(ranges, reader, strict=True):
                refuse_bad(source, first, rows, allow_nan=allow_nan)
                yield rows
    finally:
        if source is not X:
            source.close()

"""Rows that are not in memory: what an estimator takes beside arrays, and how it reads them.

Files and the like are read chunk by chunk. Queries of Dask collections are computed later, where
the rows are.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import operator
import os
import pickle
from collections.abc import Callable, Generator
from typing import Any, TypeVar, cast

import numpy as np
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from pickmix.closed_form.dask_chunks import send
from pickmix.inputs.arrays import check_weights
from pickmix.inputs.open_rows import is_dask, is_source, open_rows
from pickmix.inputs.sources import RowSource, read_ahead, refuse_bad

# Bytes of a chunk: at least, and at most for very many components, which need so many rows each to
# be worth a visit.
_CHUNK_BYTES = 2**25
_LARGEST_CHUNK_BYTES = 2**29
_CHUNK_ROWS_PER_COMPONENT = 64
# Share of the memory that rows may take.
MEMORY_SHARE = 0.7
# An estimator of more bytes than this is sent to a worker beforehand. Graphs go through the
# scheduler, and Dask warns of large ones.
_SMALL = 1_000_000
# What a fit keeps in order to continue, and a query does not need.
_FOR_FITS = ("_chain", "_effective_counts", "trace_", "lower_bounds_")
Query = TypeVar("Query", bound=Callable[..., Any])


def is_large(X: Any) -> bool:
    return is_dask(X) or is_source(X)


def open_for(X: Any, columns: Any = None) -> RowSource:
    """Open the rows that X describes, with the columns that a fit is to use."""
    if columns is not None and not is_large(X):
        raise ValueError(
            "columns is for files, sources and the like; choose the columns of an array or a frame "
            f"before, got columns={columns!r} and X of {type(X)!r}."
        )
    return open_rows(X, columns=columns)


def open_fitted(estimator: Any, X: Any) -> RowSource:
    """Open the rows that X describes, with the columns that an estimator was fitted to.

    A table whose columns have names may have others beside them, in any order.
    """
    fitted = getattr(estimator, "feature_names_in_", None)
    names = None if fitted is None else list(fitted)
    if isinstance(X, RowSource):
        may_have_names = X.names is not None
    elif isinstance(X, str | os.PathLike):
        may_have_names = not str(X).endswith((".npy", ".npz"))
    else:
        # Arrow's tables and data sets.
        may_have_names = hasattr(X, "schema")
    if names is not None and may_have_names:
        return open_rows(X, columns=names)
    source = open_rows(X)
    if names is not None and source.names is not None and source.names != names:
        source.choose_columns(names)
    elif source.n_columns != estimator.n_features_in_:
        raise ValueError(
            f"X has {source.n_columns} features, but {type(estimator).__name__} is expecting "
            f"{estimator.n_features_in_} features as input ({source.name}). "
            "open_rows(..., columns=...) chooses some."
        )
    return source


def chunk_rows(source: RowSource, n_components: int) -> int:
    """Rows per chunk: as the user chose, or as many as are worth reading at a time."""
    if source.chunk_size is not None:
        return source.chunk_size
    row_bytes = source.n_columns * source.dtype.itemsize
    preferred = max(_CHUNK_BYTES // row_bytes, _CHUNK_ROWS_PER_COMPONENT * n_components)
    return int(max(1, min(preferred, _LARGEST_CHUNK_BYTES // row_bytes)))


def read_chunks(
    source: RowSource, allow_nan: bool
) -> Generator[tuple[int, np.ndarray], None, None]:
    """Yield (number of the first row, rows) of chunk after chunk; refuse what is not finite."""
    size = chunk_rows(source, 1)
    starts = range(0, source.n_rows, size)
    ranges = [(first, min(first + size, source.n_rows)) for first in starts]
    with contextlib.closing(read_ahead(source, ranges)) as chunks:
        for first, rows in zip(starts, chunks, strict=True):
            refuse_bad(source, first, rows, allow_nan=allow_nan)
            yield first, rows


def read_fitted(estimator: Any, X: Any) -> Generator[np.ndarray, None, None]:
    """Yield chunks of X, with the columns that an estimator was fitted to."""
    source = open_fitted(estimator, X)
    try:
        allow_nan = get_tags(estimator).input_tags.allow_nan
        with contextlib.closing(read_chunks(source, allow_nan)) as chunks:
            for _, rows in chunks:
                yield rows
    finally:
        if source is not X:
            source.close()


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
    allow_nan = get_tags(estimator).input_tags.allow_nan
    try:
        weights = check_weights(sample_weight, source.n_rows)
        with contextlib.closing(read_chunks(source, allow_nan)) as chunks:
            for first, rows in chunks:
                counts = ~np.isnan(rows).all(axis=1)
                chunk_weights = None
                if weights is not None:
                    chunk_weights = weights[first : first + rows.shape[0]]
                    counts &= chunk_weights > 0.0
                if counts.any():
                    estimator.partial_fit(rows, sample_weight=chunk_weights)
    finally:
        if source is not X:
            source.close()
        learn_names(estimator, source.n_columns, None if names is None else list(names))


def by_chunks(query: Query) -> Query:
    """Let a query of an estimator take rows that are not in memory.

    Chunk by chunk for files and the like; lazily for Dask collections.
    """

    @functools.wraps(query)
    def answer(self: Any, X: Any, *args: Any, **options: Any) -> Any:
        if not getattr(self, "_takes_sources", True):
            return query(self, X, *args, **options)
        if options.get("noise") is not None and is_large(X):
            raise ValueError("noise needs rows in memory: read X into an array first.")
        if is_dask(X):
            check_is_fitted(self)
            return _query_later(self, query, X, *args, **options)
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


def _query_later(estimator: Any, query: Query, X: Any, *args: Any, **options: Any) -> Any:
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


def lazily(
    method: Callable[..., Any],
    collection: Any,
    dtype: Any,
    n_columns: int | None = None,
    **arguments: Any,
) -> Any:
    """Query rows of a Dask collection, partition by partition; nothing is computed yet.

    The method of a fitted estimator goes from rows (n, D) to an array (n,) or (n, n_columns) of
    this dtype, or to a pair of them if `dtype` is a pair. The result is a Dask array or a pair of
    them. The estimator is in the graph once, or on the cluster once if it is large.
    """
    is_pair = isinstance(dtype, tuple)
    options: dict[str, Any] = {
        "method": method.__name__,
        "arguments": arguments,
        "dtypes": dtype if is_pair else (dtype,),
        "n_columns": n_columns,
        "meta": _empty(object if is_pair else dtype, n_columns),
    }
    estimator = _in_graph(_for_queries(method.__self__))  # type: ignore[attr-defined]
    if hasattr(collection, "columns"):
        answers = collection.map_partitions(_query_partition, estimator, **options)
    elif collection.ndim != 2:
        raise ValueError(f"X must have shape (N, D), got {collection.shape}.")
    else:
        rows = collection.rechunk({1: -1}) if collection.numblocks[1] > 1 else collection
        if n_columns is None:
            options["drop_axis"] = 1
        else:
            options["chunks"] = (rows.chunks[0], (n_columns,))
        answers = rows.map_blocks(_query_partition, estimator, **options)
    if not is_pair:
        return answers
    # Blocks are pairs. Both results are made of them, so rows are queried once.
    return tuple(
        answers.map_blocks(operator.itemgetter(k), dtype=kind, meta=_empty(kind, n_columns))
        for k, kind in enumerate(dtype)
    )


def _empty(dtype: Any, n_columns: int | None) -> np.ndarray:
    return np.empty((0,) if n_columns is None else (0, n_columns), dtype=dtype)


def _for_queries(estimator: Any) -> Any:
    """A copy for a worker: with one thread, as each thread of a worker has a task of its own."""
    light = copy.copy(estimator)
    for name in _FOR_FITS:
        vars(light).pop(name, None)
    if hasattr(light, "n_jobs"):
        light.n_jobs = 1
    if hasattr(light, "callbacks"):
        light.callbacks = ()
    return light


def _in_graph(estimator: Any) -> Any:
    """A Dask object that stands for an estimator."""
    from dask.base import tokenize
    from dask.delayed import delayed

    content = pickle.dumps(estimator)
    if len(content) > _SMALL:
        # Without a cluster, threads of this process share it.
        with contextlib.suppress(ImportError, ValueError):
            from distributed import default_client

            estimator = send(default_client(), estimator)
    return delayed(estimator, name=f"estimator-{tokenize(content)}", traverse=False)


def _query_partition(
    rows: Any,
    estimator: Any,
    *,
    method: str,
    arguments: dict[str, Any],
    dtypes: tuple[Any, ...],
    n_columns: int | None,
    block_id: Any = None,  # from map_blocks
    partition_info: Any = None,  # from map_partitions
) -> Any:
    """Run on a worker: query one partition."""
    if rows.shape[0] == 0:
        answers = tuple(_empty(dtype, n_columns) for dtype in dtypes)
    else:
        try:
            answer = getattr(estimator, method)(rows, **arguments)
        except ValueError as error:
            number = block_id[0] if partition_info is None else partition_info["number"]
            raise ValueError(f"partition {number}: {error}") from error
        pairs = zip(answer if len(dtypes) > 1 else (answer,), dtypes, strict=True)
        answers = tuple(np.asarray(values, dtype=dtype) for values, dtype in pairs)
    return answers if len(dtypes) > 1 else answers[0]

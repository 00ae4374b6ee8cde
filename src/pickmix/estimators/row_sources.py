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
from collections.abc import Callable, Generator, Sequence
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
_MEMORY_SHARE = 0.7  # Of the memory that rows may take.
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
    with (
        _closing_unless_given(open_fitted(estimator, X), X) as source,
        contextlib.closing(read_chunks(source, allow_nan=True)) as chunks,
    ):
        for _, rows in chunks:
            yield rows


@contextlib.contextmanager
def _closing_unless_given(source: RowSource, X: Any) -> Generator[RowSource, None, None]:
    """Close a source at the end, unless it is the X that the user opened."""
    try:
        yield source
    finally:
        if source is not X:
            source.close()


def read_all(source: RowSource, why: str) -> np.ndarray:
    """All rows in memory, if they fit; `why` they must be there."""
    needed = source.n_rows * source.n_columns * source.dtype.itemsize
    refuse_too_large(needed, f"{source.name}: its {source.n_rows:,} rows take", why)
    return source.read(0, source.n_rows)


def refuse_too_large(n_bytes: int, what: str, why: str, remedy: str = "") -> None:
    if n_bytes > _MEMORY_SHARE * memory():
        raise MemoryError(
            f"{what} {n_bytes / 1e9:.1f} GB, and {why}. This machine has {memory() / 1e9:.1f} GB."
            f"{remedy}"
        )


def memory() -> float:
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return float("inf")


def refuse_noise(noise: Any) -> None:
    """Raise for noise of rows that are not in memory."""
    if noise is not None:
        raise ValueError("noise needs rows in memory: read X into an array first.")


def learn_names(estimator: Any, n_columns: int, names: Sequence[str] | None) -> None:
    """Keep the columns of a table as scikit-learn does those of a frame."""
    estimator.n_features_in_ = n_columns
    vars(estimator).pop("feature_names_in_", None)
    if names is not None:
        estimator.feature_names_in_ = np.array(list(names), dtype=object)


def learn_by_chunks(estimator: Any, X: Any, sample_weight: Any, is_begun: bool) -> None:
    """Call `partial_fit` with the chunks of a source, one after another.

    If the estimator `is_begun`, the source must have its columns.
    """
    if is_dask(X):
        raise TypeError(
            "partial_fit takes one batch at a time: compute the partitions of a Dask "
            "collection one by one, or use fit, which leaves them where they are."
        )
    opened = open_fitted(estimator, X) if is_begun else open_for(X)
    with _closing_unless_given(opened, X) as source:
        # Chunks come without names: the columns have been chosen.
        names = vars(estimator).pop("feature_names_in_", source.names)
        try:
            weights = check_weights(sample_weight, source.n_rows)
            allow_nan = get_tags(estimator).input_tags.allow_nan
            with contextlib.closing(read_chunks(source, allow_nan)) as chunks:
                for first, rows in chunks:
                    some = None if weights is None else weights[first : first + rows.shape[0]]
                    counts = ~np.isnan(rows).all(axis=1)
                    if (counts if some is None else counts & (some > 0.0)).any():
                        estimator.partial_fit(rows, sample_weight=some)
        finally:
            learn_names(estimator, source.n_columns, names)


def by_chunks(query: Query) -> Query:
    """Let a query of an estimator take rows that are not in memory.

    Chunk by chunk for files and the like; lazily for Dask collections.
    """

    @functools.wraps(query)
    def answer(self: Any, X: Any, *args: Any, **options: Any) -> Any:
        if not (getattr(self, "_takes_sources", True) and is_large(X)):
            return query(self, X, *args, **options)
        refuse_noise(options.get("noise"))
        check_is_fitted(self)
        if is_dask(X):
            return _query_later(self, query, X, *args, **options)
        with contextlib.closing(read_fitted(self, X)) as chunks:
            # The columns were compared when they were chosen.
            unnamed = copy.copy(self)
            vars(unnamed).pop("feature_names_in_", None)
            parts = [query(unnamed, rows, *args, **options) for rows in chunks]
        if isinstance(parts[0], tuple):
            return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return np.concatenate(parts)

    return cast(Query, answer)


def _query_later(estimator: Any, query: Query, X: Any, *args: Any, **options: Any) -> Any:
    """Query rows of a Dask collection, partition by partition; nothing is computed yet.

    The result is a Dask array, or a pair of them. The estimator is in the graph once, or on the
    cluster once if it is large.
    """
    name = query.__name__
    bound = inspect.signature(query).bind(estimator, X, *args, **options)
    bound.apply_defaults()
    arguments = dict(list(bound.arguments.items())[2:])
    n_columns: int | None = arguments.get("m")
    if name == "predict_proba":
        n_columns = arguments.get("level") or estimator.weights_.shape[0]
    dtypes: tuple[Any, ...] = (np.int64 if name == "predict" else np.float64,)
    if name == "top_components":
        dtypes = np.int64, np.float64
    task: dict[str, Any] = {
        "method": name,
        "arguments": arguments,
        "dtypes": dtypes,
        "n_columns": n_columns,
        "meta": _empty(dtypes[0] if len(dtypes) == 1 else object, n_columns),
    }
    model = _in_graph(estimator)
    if hasattr(X, "columns"):
        names = getattr(estimator, "feature_names_in_", None)
        rows = X if names is None else X[list(names)]
        answers = rows.map_partitions(_query_partition, model, **task)
    elif X.ndim != 2:
        raise ValueError(f"X must have shape (N, D), got {X.shape}.")
    else:
        rows = X.rechunk({1: -1}) if X.numblocks[1] > 1 else X
        shape = (
            {"drop_axis": 1} if n_columns is None else {"chunks": (rows.chunks[0], (n_columns,))}
        )
        answers = rows.map_blocks(_query_partition, model, **task, **shape)
    if len(dtypes) == 1:
        return answers
    # Blocks are pairs. Both results are made of them, so rows are queried once.
    return tuple(
        answers.map_blocks(operator.itemgetter(k), dtype=kind, meta=_empty(kind, n_columns))
        for k, kind in enumerate(dtypes)
    )


def _empty(dtype: Any, n_columns: int | None) -> np.ndarray:
    return np.empty((0,) if n_columns is None else (0, n_columns), dtype=dtype)


def _in_graph(estimator: Any) -> Any:
    """A Dask object that stands for an estimator, without what only fits need.

    It has one thread, as each thread of a worker has a task to itself.
    """
    from dask.base import tokenize
    from dask.delayed import delayed

    light = copy.copy(estimator)
    for name in _FOR_FITS:
        vars(light).pop(name, None)
    light.n_jobs, light.callbacks = 1, ()
    content = pickle.dumps(light)
    if len(content) > _SMALL:
        # Without a cluster, threads of this process share it.
        with contextlib.suppress(ImportError, ValueError):
            from distributed import default_client

            light = send(default_client(), light)
    return delayed(light, name=f"estimator-{tokenize(content)}", traverse=False)


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

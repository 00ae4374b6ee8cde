"""Queries of Dask collections: computed when they are asked for, where the rows are."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

# An estimator of more bytes than this is sent to a worker beforehand. Graphs go through the
# scheduler, and Dask warns of large ones.
_SMALL = 1_000_000
# What a fit keeps in order to continue, and a query does not need.
_FOR_FITS = ("_chain", "_effective_counts", "trace_", "lower_bounds_")


def lazily(
    method: Callable[..., Any],
    collection: Any,
    dtype: Any,
    n_columns: int | None = None,
    **arguments: Any,
) -> Any:
    """Query rows of a Dask collection, partition by partition; nothing is computed yet.

    The estimator is in the graph once, or on the cluster once if it is large.

    Parameters
    ----------
    method : bound method of a fitted estimator
        From rows (n, D) to an array (n,) or (n, n_columns), or to a pair of them.
    collection : dask array of shape (N, D), or dask dataframe
    dtype : dtype, or pair of them
        Of the result. If it is a pair the result is one.
    n_columns : int, optional
        Columns of the result; None: it has one dimension.
    **arguments
        Passed to the method.

    Returns
    -------
    dask array of shape (N,) or (N, n_columns), or a pair of them
    """
    name: str = method.__name__
    estimator = _put(_for_queries(method.__self__))  # type: ignore[attr-defined]
    if isinstance(dtype, tuple):
        # Blocks are pairs. Both results are made of them, so rows are queried once.
        pairs = _map(collection, estimator, name, arguments, dtype, n_columns)
        return tuple(
            pairs.map_blocks(operator.itemgetter(k), dtype=kind, meta=_nothing(kind, n_columns))
            for k, kind in enumerate(dtype)
        )
    return _map(collection, estimator, name, arguments, dtype, n_columns)


def _map(
    collection: Any, estimator: Any, name: str, arguments: Any, dtype: Any, n_columns: int | None
) -> Any:
    meta = _nothing(object if isinstance(dtype, tuple) else dtype, n_columns)
    options = {"method": name, "arguments": arguments, "dtype": dtype, "n_columns": n_columns}
    if hasattr(collection, "columns"):
        return collection.map_partitions(_query_frame, estimator, **options, meta=meta)
    if collection.ndim != 2:
        raise ValueError(f"X must have shape (N, D), got {collection.shape}.")
    if collection.numblocks[1] > 1:
        collection = collection.rechunk({1: -1})
    shape: dict[str, Any] = {"drop_axis": 1}
    if n_columns is not None:
        shape = {"chunks": (collection.chunks[0], (n_columns,))}
    # `dtype` would be taken for map_blocks' own.
    options["kinds"] = options.pop("dtype")
    return collection.map_blocks(_query_block, estimator, **options, **shape, meta=meta)


def _nothing(dtype: Any, n_columns: int | None) -> np.ndarray:
    return np.empty((0,) if n_columns is None else (0, n_columns), dtype=dtype)


def _for_queries(estimator: Any) -> Any:
    """A copy for a worker: with one thread, as each thread of a worker has a task of its own."""
    light = copy.copy(estimator)
    for name in _FOR_FITS:
        light.__dict__.pop(name, None)
    if hasattr(light, "n_jobs"):
        light.n_jobs = 1
    if hasattr(light, "callbacks"):
        light.callbacks = ()
    return light


def _put(estimator: Any) -> Any:
    """Something that stands for an estimator in a graph."""
    from dask.base import tokenize
    from dask.delayed import delayed

    body = pickle.dumps(estimator)
    if len(body) > _SMALL:
        try:
            from distributed import default_client

            estimator = default_client().scatter(estimator)
        except (ImportError, ValueError):
            # No cluster: threads of this process share it.
            pass
    return delayed(estimator, name=f"estimator-{tokenize(body)}", traverse=False)


# What runs on workers.


def _query_block(
    block: Any, estimator: Any, *, block_id: Any = (None,), kinds: Any, **options: Any
) -> Any:
    return _query(block, estimator, block_id[0], dtype=kinds, **options)


def _query_frame(frame: Any, estimator: Any, *, partition_info: Any = None, **options: Any) -> Any:
    number = None if partition_info is None else partition_info["number"]
    return _query(frame, estimator, number, **options)


def _query(
    rows: Any,
    estimator: Any,
    number: Any,
    method: str,
    arguments: dict[str, Any],
    dtype: Any,
    n_columns: int | None,
) -> Any:
    kinds = dtype if isinstance(dtype, tuple) else (dtype,)
    if rows.shape[0] == 0:
        answers: tuple[Any, ...] = tuple(_nothing(kind, n_columns) for kind in kinds)
    else:
        try:
            answer = getattr(estimator, method)(rows, **arguments)
        except ValueError as error:
            raise ValueError(f"partition {number}: {error}") from error
        several = answer if isinstance(dtype, tuple) else (answer,)
        answers = tuple(np.asarray(a, dtype=kind) for a, kind in zip(several, kinds, strict=True))
    return answers if isinstance(dtype, tuple) else answers[0]

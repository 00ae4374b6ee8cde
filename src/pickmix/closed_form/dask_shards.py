"""Chunks that are the partitions of a Dask collection, and stay on its workers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from pickmix.closed_form.dask_cluster import (
    DISCONNECTED,
    Sent,
    await_any,
    await_workers,
    explain,
)
from pickmix.closed_form.dask_leg import Leg
from pickmix.closed_form.shards import Add, Task
from pickmix.data.dask_data import is_dask

# So many lengths of partitions are put into a fingerprint as they are.
_FEW = 64


class DaskShards:
    """Partitions of a Dask collection; see `Shards`.

    Parameters
    ----------
    collection : dask array of shape (N, D), or dask dataframe of numbers
        Chunk c is the c-th partition that has rows.
    client : distributed.Client, optional
        Default: the one that is active.
    weights : (N,) array, or dask array or series cut like the collection, optional
    patience : float
        Seconds to wait for workers when there are none.

    Attributes
    ----------
    names : list of str or None
        Columns of a dataframe.
    bytes_sent : int
        Bytes that the last `run` sent from here and received here. What all tasks share is sent
        once, when it is new; workers hand it on to each other.
    """

    def __init__(
        self, collection: Any, client: Any = None, weights: Any = None, patience: float = 60.0
    ) -> None:
        self._kind, self._name, columns, self.dtype, blocks = _describe(collection)
        self.names = columns if columns and all(isinstance(c, str) for c in columns) else None
        self.client = _active_client() if client is None else client
        self.patience = patience
        self.bytes_sent = 0
        self._shared = Sent(None)
        self._n_parts: dict[Task, int] = {}
        await_workers(self.client, patience)

        self._recipes = _on_each(blocks, _rows_of, columns, self.dtype.str)
        self._rows = self.client.compute(self._recipes)
        self._weights: list[Any] = [None] * len(self._rows)
        self._weight_recipes: list[Any] | None = None
        if is_dask(weights):
            self._weight_recipes = _on_each(_weight_blocks(weights, len(blocks)), _weights_of)
            self._weights = self.client.compute(self._weight_recipes)
        sizes = self._measure()
        self._numbers = [number for number, size in enumerate(sizes) if size[0]]
        if not self._numbers:
            raise ValueError(f"X must hold rows, got a {self._kind} of empty partitions.")
        self.n_columns = _check_sizes(sizes, self._numbers[0])
        lengths = [sizes[number][0] for number in self._numbers]
        self.offsets = np.append(0, np.cumsum(lengths)).astype(np.int64)
        self._rows = [self._rows[number] for number in self._numbers]
        self._weights = [self._weights[number] for number in self._numbers]
        if weights is not None and self._weight_recipes is None:
            weights = np.asarray(weights)
            if weights.shape != (self.offsets[-1],):
                raise ValueError(
                    f"sample_weight must have shape ({self.offsets[-1]},), got {weights.shape}."
                )
            self._weights = [Sent(part) for part in np.split(weights, self.offsets[1:-1])]
        n_threads = sum(self.client.nthreads().values())
        # Enough that the last ones to finish do not matter much.
        self.chunks_per_leg = 1 << (min(4 * n_threads, len(lengths)) - 1).bit_length()

    def _measure(self) -> list[tuple[int, int, int]]:
        """Rows, columns and weights of each partition. Workers read them now."""
        asked = [
            self.client.submit(_size, *pair, pure=False)
            for pair in zip(self._rows, self._weights, strict=True)
        ]
        sizes = []
        for number, future in enumerate(asked):
            # `result` would wait for ever without workers.
            await_any([future], self.client, self.patience)
            if future.status == "error":
                raise explain(future.exception(), number)
            if future.status == "cancelled":
                raise RuntimeError(
                    f"partition {number} is lost: it was made of something that only a worker held "
                    "which is gone. Make the collection again, best from shared storage."
                )
            sizes.append(future.result())
        return sizes

    def run(
        self, task: Task, chunks: Sequence[int], shared: Any, own: Sequence[Any], add: Add
    ) -> tuple[list[Any], list[Any]]:
        """Do a task on some chunks, on the cluster; see `Shards.run`.

        `shared.compiled` says which backend tasks are given.
        """
        self.bytes_sent = 0
        if self._shared.value is not shared:
            self._shared.release()
            self._shared = Sent(shared)
        leg = Leg(self, task, chunks, self._shared, own, add, self._n_parts.get(task))
        try:
            outcome = leg.run()
            self._n_parts[task] = len(outcome[1])
            return outcome
        except Exception as error:
            if self.client.status != "running":
                raise RuntimeError(DISCONNECTED) from error
            raise
        finally:
            leg.close()

    def rows_of(self, chunk: int) -> Any:
        """Future of the rows of a chunk."""
        if self._rows[chunk].status == "cancelled":
            # The cluster has forgotten it: it was restarted.
            self._rows[chunk] = self.client.compute(self._recipes[self._numbers[chunk]])
        elif self._rows[chunk].status == "error":
            self._rows[chunk].retry()
        return self._rows[chunk]

    def weights_of(self, chunk: int) -> Any:
        """Future of the weights of a chunk's rows, or weights to be sent, or None."""
        if self._weight_recipes is not None and self._weights[chunk].status == "cancelled":
            recipe = self._weight_recipes[self._numbers[chunk]]
            self._weights[chunk] = self.client.compute(recipe)
        return self._weights[chunk]

    def number(self, chunk: int) -> int:
        """Number of the partition that a chunk is."""
        return self._numbers[chunk]

    def place(self, row: int) -> str:
        """Where a row of the table is, for messages."""
        chunk = int(np.searchsorted(self.offsets, row, side="right")) - 1
        return f"partition {self._numbers[chunk]}, row {row - self.offsets[chunk] + 1} of it"

    def fingerprint(self) -> dict[str, Any]:
        """What identifies these rows."""
        lengths = np.diff(self.offsets)
        few = lengths.shape[0] <= _FEW
        return {
            "kind": self._kind,
            "name": self._name,
            "shape": [int(self.offsets[-1]), self.n_columns],
            "dtype": str(self.dtype),
            "chunks": lengths.tolist() if few else hashlib.sha256(lengths.tobytes()).hexdigest(),
        }

    def close(self) -> None:
        """Let the cluster forget the rows, and what was sent last."""
        self._shared.release()
        self._rows, self._weights = [], []


def _active_client() -> Any:
    try:
        from distributed import default_client
    except ImportError as error:
        raise ImportError(
            "a fit of a Dask collection needs Dask's scheduler: pip install 'pickmix[cluster]'"
        ) from error
    try:
        client = default_client()
    except ValueError as error:
        raise RuntimeError(
            "a fit of a Dask collection needs a cluster, and no client is active. Start one: "
            "`from distributed import Client; client = Client()` uses this machine, "
            "`Client('tcp://host:8786')` a scheduler elsewhere."
        ) from error
    if client.asynchronous:
        raise RuntimeError("a fit of a Dask collection needs a client that is not asynchronous.")
    return client


def _describe(collection: Any) -> tuple[str, str, list[Any] | None, np.dtype, list[Any]]:
    """Kind, name, columns (of a dataframe), dtype and blocks of a collection."""
    if hasattr(collection, "columns"):
        columns = list(collection.columns)
        kinds = [collection.dtypes.iloc[i] for i in range(len(columns))]
        for column, kind in zip(columns, kinds, strict=True):
            _check_kind(kind, f"column {column!r}")
        name, blocks = str(collection._name), collection.to_delayed()
        return "dask dataframe", name, columns, _float_for(kinds), list(blocks)
    if not hasattr(collection, "chunks") or collection.ndim != 2:
        shape = getattr(collection, "shape", None)
        what = type(collection).__name__ if shape is None else f"shape {shape}"
        raise ValueError(f"X must be a Dask array of shape (N, D) or a dataframe, got {what}.")
    _check_kind(collection.dtype, "the array")
    whole = collection if collection.numblocks[1] == 1 else collection.rechunk({1: -1})
    blocks = whole.to_delayed().ravel()
    return "dask array", collection.name, None, _float_for([collection.dtype]), list(blocks)


def _float_for(dtypes: list[Any]) -> np.dtype:
    """float32 if that holds all columns as they are, as `open_rows` would have it."""
    plain = [getattr(dtype, "numpy_dtype", dtype) for dtype in dtypes]
    small = all(dtype.kind == "f" and dtype.itemsize <= 4 for dtype in plain)
    return np.dtype(np.float32 if small else np.float64)


def _on_each(blocks: list[Any], function: Any, *args: Any) -> list[Any]:
    """Call a function with each block and its number, some day."""
    from dask.delayed import delayed

    call = delayed(function, pure=True, traverse=False)
    return [call(block, number, *args) for number, block in enumerate(blocks)]


def _weight_blocks(weights: Any, n_blocks: int) -> list[Any]:
    blocks = list(np.ravel(weights.to_delayed()))
    if weights.ndim != 1 or len(blocks) != n_blocks:
        raise ValueError(
            f"sample_weight must be one-dimensional and have the {n_blocks} partitions of X, "
            f"got {weights.ndim} dimension(s) and {len(blocks)} partition(s)."
        )
    return blocks


def _check_sizes(sizes: list[tuple[int, int, int]], first: int) -> int:
    """Number of columns of all partitions."""
    n_columns = sizes[first][1]
    for number, (n, here, n_weights) in enumerate(sizes):
        if n and here != n_columns:
            raise ValueError(
                "X must have the same columns everywhere, "
                f"got {here} in partition {number} and {n_columns} in partition {first}."
            )
        if n != n_weights:
            raise ValueError(
                "sample_weight must have the partitions of X, "
                f"got {n_weights} weight(s) for {n} row(s) in partition {number}."
            )
    return n_columns


def _check_kind(dtype: Any, what: str) -> None:
    kind = getattr(dtype, "numpy_dtype", dtype)
    numeric = isinstance(kind, np.dtype) and issubclass(
        kind.type, np.bool_ | np.floating | np.integer
    )
    if not numeric:
        raise ValueError(f"X must hold numbers, got dtype {dtype} in {what}.")


# What runs on workers.


def _rows_of(block: Any, number: int, columns: list[Any] | None, dtype: str) -> np.ndarray:
    """Rows of a block as plain numbers, (n, D)."""
    where = f"partition {number}"
    if columns is not None:
        found = list(block.columns)
        if found != columns:
            other = [c for c in columns if c not in found] + [c for c in found if c not in columns]
            raise ValueError(
                f"X must have the same columns everywhere, got others in {where}: {other or found}."
            )
        for i, column in enumerate(columns):
            _check_kind(block.dtypes.iloc[i], f"column {column!r} of {where}")
        values = block.to_numpy(dtype=dtype, na_value=np.nan)
    else:
        values = np.asarray(block)
        _check_kind(values.dtype, where)
        if values.ndim != 2:
            raise ValueError(f"X must have shape (N, D), got {values.shape} in {where}.")
    # Kernels are compiled for arrays that may be written, as those of files are.
    return np.require(values, dtype=dtype, requirements=["C", "W"])


def _weights_of(block: Any, number: int) -> np.ndarray:
    weights = np.asarray(block)
    _check_kind(weights.dtype, f"sample_weight, partition {number}")
    weights = np.require(weights, dtype=np.float64, requirements=["C", "W"])
    if not (np.isfinite(weights).all() and (weights >= 0.0).all()):
        raise ValueError(
            f"sample_weight must be finite and not negative, got others in partition {number}."
        )
    return weights


def _size(rows: np.ndarray, weights: np.ndarray | None) -> tuple[int, int, int]:
    return rows.shape[0], rows.shape[1], rows.shape[0] if weights is None else weights.shape[0]

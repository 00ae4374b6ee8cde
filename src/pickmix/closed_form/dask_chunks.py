"""Chunks that are the partitions of a Dask collection, and stay on its workers.

Everything on the cluster has lineage: if a worker dies, others read its rows again, unpickle the
job again and do its tasks again. What Dask gives up (tasks that were there when several workers
died, all of a cluster that was restarted) is submitted again. Tasks are pure and sums have one
order, so the bits are the same whatever happens on the way.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import CancelledError
from typing import Any

import numpy as np

from pickmix.checks import require
from pickmix.closed_form.chunks import Chunk, Job, add_in_pairs
from pickmix.inputs.files import working_dtype
from pickmix.inputs.open_rows import is_dask

# A run is tried so many times if workers die; at last one chunk after the other, which leaves each
# most memory, and no doubt about which one it is.
_ATTEMPTS = 3
_RETRIES = 2  # Times that a task is tried again if it raises an error: storage may be busy.
_FAN = 4  # Statistics that one task adds up, a power of two.
_DISCONNECTED = (
    "the connection to the Dask scheduler is lost: it has ended, or the client was closed."
)
_ADVICE = (
    "Give workers more memory or fewer threads, or make partitions smaller: "
    "`rechunk` of an array, `repartition` of a dataframe."
)


class WorkerLossError(RuntimeError):
    """Workers have died and taken with them what Dask does not make again."""


class DaskChunks:
    """Partitions of a Dask array or dataframe; see `Chunks`. Chunk c is the c-th that has rows.

    Weights are an array, or a Dask array or series cut like the collection. By default the client
    is the one that is active. `patience` is for how many seconds there may be no workers.
    """

    def __init__(
        self, collection: Any, client: Any = None, weights: Any = None, patience: float = 60.0
    ) -> None:
        self._kind, self._name, columns, self.dtype, blocks = _describe(collection)
        #: Columns of a dataframe.
        self.names = columns if columns and all(isinstance(c, str) for c in columns) else None
        self.client = _active_client() if client is None else client
        self.patience = patience
        self._await_workers()
        self._rows = _Partitions(self.client, _rows_of, blocks, columns, self.dtype.str)
        shapes = self._measure(self._rows)
        # Numbers of the partitions that are chunks.
        self._numbers = [number for number, shape in enumerate(shapes) if shape[0]]
        if not self._numbers:
            raise ValueError(f"X must hold rows, got a {self._kind} of empty partitions.")
        first = self._numbers[0]
        self.n_columns = shapes[first][1]
        for number in self._numbers:
            if shapes[number][1] != self.n_columns:
                raise ValueError(
                    f"X must have the same columns everywhere, got {shapes[number][1]} in "
                    f"partition {number} and {self.n_columns} in partition {first}."
                )
        lengths = [shape[0] for shape in shapes]
        self.offsets = np.append(0, np.cumsum([n for n in lengths if n])).astype(np.int64)
        self._weights: _Partitions | None = None
        if weights is not None:
            blocks = _weight_blocks(weights, lengths)
            self._weights = _Partitions(self.client, _weights_of, blocks)
            for number, (n_weights,) in enumerate(self._measure(self._weights)):
                if n_weights != lengths[number]:
                    raise ValueError(
                        f"sample_weight must have the partitions of X, got {n_weights} weight(s) "
                        f"for {lengths[number]} row(s) in partition {number}."
                    )
        self._job: tuple[Any, Any] = None, None  # The last one, and its future.
        n_threads = sum(self.client.nthreads().values())
        # Enough that the last ones to finish do not matter much.
        self.chunks_per_run = 1 << (min(4 * n_threads, len(self._numbers)) - 1).bit_length()

    def run(self, job: Job, chunks: Sequence[int], states: Sequence[Any]) -> tuple[list[Any], Any]:
        numbers = [self._numbers[chunk] for chunk in chunks]
        for attempt in range(1, _ATTEMPTS + 1):
            tasks: list[Any] = []
            try:
                self._await_workers()
                if attempt == _ATTEMPTS:
                    # Nothing else is going on while a chunk is worked on.
                    self._measure(self._rows)
                tasks, total = self._submit(job, chunks, states, attempt == _ATTEMPTS)
                (outcome,) = self._gather([total], tasks, numbers)
                return outcome  # type: ignore[no-any-return]
            except WorkerLossError:
                if attempt == _ATTEMPTS:
                    raise
            finally:
                for future in tasks:
                    future.release()
        raise AssertionError

    def _submit(
        self, job: Job, chunks: Sequence[int], states: Sequence[Any], one_by_one: bool
    ) -> tuple[list[Any], Any]:
        """Futures of what is done to each chunk, and of all results with the total."""
        submit = functools.partial(self.client.submit, retries=_RETRIES, pure=False)
        tasks: list[Any] = []
        with _large_graphs():
            if self._job[0] is not job or self._job[1].status in ("cancelled", "error"):
                self._job = job, send(self.client, job)
            sent = self._job[1]
            for chunk, state in zip(chunks, states, strict=True):
                number, first = self._numbers[chunk], int(self.offsets[chunk])
                weights = None if self._weights is None else self._weights.future(number)
                before = tasks[-1] if one_by_one and tasks else None
                rows = self._rows.future(number)
                tasks.append(submit(_work, sent, state, before, first, rows, weights))
            level = tasks
            while len(level) > 1:
                groups = [level[i : i + _FAN] for i in range(0, len(level), _FAN)]
                level = [submit(_add, sent, *group, priority=1) for group in groups]
        return tasks, level[0]

    def _measure(self, partitions: _Partitions) -> list[tuple[int, ...]]:
        """Return the shapes of all partitions. Workers read them now."""
        numbers = range(len(partitions.futures))
        futures = [partitions.future(number) for number in numbers]
        shapes = self.client.map(np.shape, futures, pure=False)
        return self._gather(shapes, shapes, numbers)

    def _gather(self, futures: list[Any], tasks: list[Any], numbers: Sequence[int]) -> list[Any]:
        """Collect results of futures, which depend on tasks of these partitions."""
        values = asyncio.run_coroutine_threadsafe(
            self.client.gather(futures, asynchronous=True), self.client.loop.asyncio_loop
        )
        try:
            while True:
                try:
                    return list(values.result(timeout=1.0))
                except TimeoutError:
                    if values.done():
                        raise
                    self._await_workers()
        except (Exception, asyncio.CancelledError) as error:
            if self.client.status != "running":
                raise RuntimeError(_DISCONNECTED) from error
            if not values.done():
                raise
            raise _explain(error, tasks, numbers)  # noqa: B904
        finally:
            values.cancel()

    def _await_workers(self) -> None:
        """Wait until there is a worker that takes tasks; raise if that takes too long."""
        until = time.monotonic() + self.patience
        while True:
            if self.client.status != "running":
                raise RuntimeError(_DISCONNECTED)
            # Those that are paused, for want of memory, do not count.
            if self.client.sync(self.client.scheduler.ncores_running, workers=None):
                return
            if time.monotonic() > until:
                raise RuntimeError(
                    f"the Dask cluster has had no worker that takes tasks for {self.patience:g} s: "
                    "none is there, or all have paused for want of memory. Start workers. "
                    f"{_ADVICE}"
                )
            time.sleep(0.2)

    def place(self, row: int) -> str:
        chunk = int(np.searchsorted(self.offsets, row, side="right")) - 1
        return f"partition {self._numbers[chunk]}, row {row - self.offsets[chunk] + 1} of it"

    def fingerprint(self) -> dict[str, Any]:
        return {
            "kind": self._kind,
            "name": self._name,
            "shape": [int(self.offsets[-1]), self.n_columns],
            "dtype": str(self.dtype),
            "chunks": hashlib.sha256(self.offsets.tobytes()).hexdigest(),
        }

    def close(self) -> None:
        """Let the cluster forget the rows and the last job."""
        self._job, self._weights = (None, None), None
        self._rows.futures.clear()


class _Partitions:
    """Rows or weights on the cluster: a function of each block and its number."""

    def __init__(self, client: Any, function: Any, blocks: list[Any], *args: Any) -> None:
        from dask.delayed import delayed

        self.client = client
        call = delayed(function, pure=True, traverse=False)
        with _large_graphs():
            self.recipes = [call(block, number, *args) for number, block in enumerate(blocks)]
            self.futures = client.compute(self.recipes, retries=_RETRIES)

    def future(self, number: int) -> Any:
        future = self.futures[number]
        again = future.status == "cancelled"  # The cluster was restarted.
        if future.status == "error":
            try:
                future.retry()
            except KeyError:
                # The task that failed is one that the partition is made of, of which the client
                # has no future. The cluster forgets the failure with the last future of it.
                again = True
        if again:
            future.release()
            self.futures[number] = self.client.compute(self.recipes[number], retries=_RETRIES)
        return self.futures[number]


def send(client: Any, value: Any) -> Any:
    """Future of a value on the cluster, which is unpickled again if a worker dies.

    Dask takes a dataclass for a few bytes, whatever it refers to. So rows are what weighs, and a
    task goes where the rows are, also if a job is larger.
    """
    from distributed.protocol.pickle import dumps, loads

    key = f"pickmix-{type(value).__name__}-{uuid.uuid4().hex}"
    with _large_graphs():
        return client.submit(loads, dumps(value), key=key, retries=_RETRIES)


def _large_graphs() -> Any:
    """Let Dask not warn: jobs, chain states and weights are parts of graphs on purpose."""
    from dask import config

    return config.set({"distributed.admin.large-graph-warning-threshold": "1 PiB"})


def _explain(error: Any, tasks: list[Any], numbers: Sequence[int]) -> Any:
    """Return the error that ended some tasks, with the number of its partition."""
    from distributed.scheduler import KilledWorker

    where = f"partitions {numbers[0]} to {numbers[-1]}"
    failures = [
        (future.exception() or CancelledError(), f"partition {number}")
        for number, future in zip(numbers, tasks, strict=True)
        if future.status in ("error", "cancelled")
    ]
    if failures:
        # Dask blames the death of a worker on all tasks that waited there.
        error, where = min(failures, key=lambda failure: isinstance(failure[0], KilledWorker))
    if isinstance(error, KilledWorker):
        return WorkerLossError(
            f"{where}: workers died again and again, probably for want of memory. {_ADVICE}"
        )
    if isinstance(error, CancelledError | asyncio.CancelledError):
        return WorkerLossError(
            f"{where} is lost: it was made of something that only a worker held "
            "which is gone. Make the collection again, best from shared storage."
        )
    text = str(error)
    if isinstance(error, MemoryError):
        error.args = (f"{where}: {text or 'a worker is out of memory'}. {_ADVICE}",)
    elif "partition" not in text and len(error.args) == 1:
        error.args = (f"{where}: {text}",)
    elif "partition" not in text:
        error.add_note(f"in {where}")
    return error


def _active_client() -> Any:
    message = "a fit of a Dask collection needs Dask's scheduler: pip install 'pickmix[cluster]'"
    require("distributed", message)
    from distributed import default_client

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
        dtypes = [
            _check_dtype(collection.dtypes.iloc[i], f"column {column!r}")
            for i, column in enumerate(columns)
        ]
        name, blocks = str(collection._name), collection.to_delayed()
        return "dask dataframe", name, columns, working_dtype(*dtypes), list(blocks)
    if not hasattr(collection, "chunks") or collection.ndim != 2:
        shape = getattr(collection, "shape", None)
        what = type(collection).__name__ if shape is None else f"shape {shape}"
        raise ValueError(f"X must be a Dask array of shape (N, D) or a dataframe, got {what}.")
    dtype = working_dtype(_check_dtype(collection.dtype, "the array"))
    whole = collection if collection.numblocks[1] == 1 else collection.rechunk({1: -1})
    return "dask array", collection.name, None, dtype, list(whole.to_delayed().ravel())


def _check_dtype(dtype: Any, what: str) -> np.dtype:
    """Return the dtype in NumPy's terms; refuse one that does not hold numbers."""
    plain = getattr(dtype, "numpy_dtype", dtype)
    numbers = np.bool_ | np.floating | np.integer
    if not (isinstance(plain, np.dtype) and issubclass(plain.type, numbers)):
        raise ValueError(f"X must hold numbers, got dtype {dtype} in {what}.")
    return plain


def _weight_blocks(weights: Any, lengths: list[int]) -> list[Any]:
    """Cut weights like the rows."""
    if not is_dask(weights):
        weights = np.asarray(weights)
        if weights.shape != (sum(lengths),):
            raise ValueError(
                f"sample_weight must have shape ({sum(lengths)},), got {weights.shape}."
            )
        return list(np.split(weights, np.cumsum(lengths)[:-1]))
    blocks = list(np.ravel(weights.to_delayed()))
    if weights.ndim != 1 or len(blocks) != len(lengths):
        raise ValueError(
            f"sample_weight must be one-dimensional and have the {len(lengths)} partitions of X, "
            f"got {weights.ndim} dimension(s) and {len(blocks)} partition(s)."
        )
    return blocks


# What runs on workers.


def _rows_of(block: Any, number: int, columns: list[Any] | None, dtype: str) -> np.ndarray:
    """Rows of a block as plain numbers, (n, D)."""
    where = f"partition {number}"
    if columns is not None:
        present = list(block.columns)
        if present != columns:
            other = [c for c in columns if c not in present]
            other += [c for c in present if c not in columns]
            raise ValueError(
                "X must have the same columns everywhere, "
                f"got others in {where}: {other or present}."
            )
        for i, column in enumerate(columns):
            _check_dtype(block.dtypes.iloc[i], f"column {column!r} of {where}")
        values = block.to_numpy(dtype=dtype, na_value=np.nan)
    else:
        values = np.asarray(block)
        _check_dtype(values.dtype, where)
        if values.ndim != 2:
            raise ValueError(f"X must have shape (N, D), got {values.shape} in {where}.")
    # Kernels are compiled for arrays that may be written, as those of files are.
    return np.require(values, dtype=dtype, requirements=["C", "W"])


def _weights_of(block: Any, number: int) -> np.ndarray:
    weights = np.asarray(block)
    _check_dtype(weights.dtype, f"sample_weight, partition {number}")
    weights = np.require(weights, dtype=np.float64, requirements=["C", "W"])
    if not (np.isfinite(weights).all() and (weights >= 0.0).all()):
        raise ValueError(
            f"sample_weight must be finite and not negative, got others in partition {number}."
        )
    return weights


def _work(
    job: Job, state: Any, before: Any, first: int, rows: np.ndarray, weights: Any
) -> tuple[list[Any], Any]:
    """Return results of one chunk, and its statistics. `before` has only been waited for."""
    # A worker gives each of its threads a task, so a task has one thread.
    result, statistics = job.work(Chunk(rows, first, weights), state)
    return [result], statistics


def _add(job: Job, *outcomes: tuple[list[Any], Any]) -> tuple[list[Any], Any]:
    return add_in_pairs(  # type: ignore[no-any-return]
        outcomes, lambda one, other: (one[0] + other[0], job.add(one[1], other[1]))
    )

"""One leg of a pass on a Dask cluster: tasks on some partitions, and the sums of their parts.

Only plain futures are used. Rows have lineage: if a worker dies, others read its partitions again.
What is sent from here (models, chain states) has none. When its holder dies Dask cancels every task
that needs it, so it is sent again and those tasks are submitted again. Tasks are pure: the bits are
the same whatever happens on the way.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any, Protocol

import numpy as np

from pickmix.closed_form.dask_cluster import (
    KILLED,
    LOOK_EVERY,
    Parcel,
    Sent,
    await_any,
    await_workers,
    explain,
    messages,
    n_bytes,
)
from pickmix.closed_form.shards import Add, Chunk, Task, add_in_pairs
from pickmix.sweep.contract import Backend

# Tasks that are submitted in one graph: some hundred kilobytes.
_TASKS = 1000
# Parts that one task adds up.
_FAN = 4
# Times that something may be lost and nothing be done in between: at all, with one chunk at a time,
# and with all chunks at a time.
_ATTEMPTS = 12
_ATTEMPTS_ALONE = 4
_ATTEMPTS_TOGETHER = 2
# ("work", i) and ("head", i) of the i-th chunk; ("sum", q, level, i): part q of the chunks from
# i * _FAN^level on, _FAN^level of them.
_Name = tuple[Any, ...]
_count = itertools.count()


class Table(Protocol):
    """The partitions that a leg works on."""

    client: Any
    offsets: np.ndarray
    patience: float
    bytes_sent: int

    def rows_of(self, chunk: int) -> Any:
        """Future of the rows of a chunk."""
        ...

    def weights_of(self, chunk: int) -> Any:
        """Future of their weights, or weights to be sent, or None."""
        ...

    def number(self, chunk: int) -> int:
        """Number of the partition that a chunk is."""
        ...


class Leg:
    """What has come home, and futures of what has not.

    A future that is needed no more is dropped, so the cluster forgets it. What is lost is made
    again, from whatever is still there.
    """

    def __init__(
        self,
        table: Table,
        task: Task,
        chunks: Sequence[int],
        shared: Sent,
        own: Sequence[Any],
        add: Add,
        n_parts: int | None = None,
    ) -> None:
        self.table, self.client = table, table.client
        self.task, self.chunks, self.shared, self.add = task, chunks, shared, add
        self.own = [None if value is None else Sent(value) for value in own]
        self.results: dict[int, Any] = {}
        self.sums: dict[int, Any] = {}
        # Parts that a task returns. Until the first one is home this is what the last leg had.
        self.n_parts = n_parts
        self.futures: dict[_Name, Any] = {}
        # What is submitted next: key and task.
        self.batch: dict[_Name, tuple[str, Any]] = {}
        levels = itertools.count()
        self.root = self._resolve(next(n for n in levels if _FAN**n >= len(chunks)), 0)
        # Chunks that are worked on at a time. Fewer if workers die and nothing gets done: there is
        # more room then, and in the end no doubt about which chunk it is.
        self.width = len(chunks)

        self.last_error: Exception | None = None

    def run(self) -> tuple[list[Any], list[Any]]:
        """Go on until everything is home."""
        n_lost = 0
        while len(self.results) < len(self.chunks) or len(self.sums) < (self.n_parts or 0):
            before = len(self.results) + len(self.sums)
            lost = not self._send()
            if not lost:
                wanted = self._submit()
                await_any(list(wanted.values()), self.client, self.table.patience)
                lost = not self._collect(wanted)
            if len(self.results) + len(self.sums) > before:
                n_lost, self.width = 0, min(2 * self.width, len(self.chunks))
            elif lost:
                n_lost += 1
                self._give_up_or_go_on(n_lost)
        results = [self.results[i] for i in range(len(self.chunks))]
        return results, [self.sums[q] for q in range(self.n_parts or 0)]

    def _give_up_or_go_on(self, n_lost: int) -> None:
        """Something was lost so many times, and nothing was done in between."""
        missing = self._missing()
        if n_lost >= _ATTEMPTS or (missing and self.width == 1 and n_lost >= _ATTEMPTS_ALONE):
            numbers = [
                self.table.number(self.chunks[i]) for i in missing or range(len(self.chunks))
            ]
            some = ", ".join(map(str, numbers[: min(5, self.width)]))
            raise RuntimeError(f"partition {some}: {KILLED}") from self.last_error
        if n_lost >= _ATTEMPTS_TOGETHER:
            self.width = max(1, self.width // 8)
        await_workers(self.client, self.table.patience)

    def close(self) -> None:
        """Let the cluster forget all of this."""
        for future in self.futures.values():
            future.release()
        for sent in self.own:
            if sent is not None:
                sent.release()

    def _missing(self) -> list[int]:
        return [i for i in range(len(self.chunks)) if i not in self.results]

    # Sending and submitting.

    def _send(self) -> bool:
        """Send what no worker has; whether that went well."""
        weights = (self.table.weights_of(chunk) for chunk in self.chunks)
        everything = (self.shared, *self.own, *weights)
        absent = [sent for sent in everything if isinstance(sent, Sent) and not sent.is_there()]
        for message in messages(absent):
            try:
                parcels = [Parcel(sent.value) for sent in message]
                futures = self.client.scatter(parcels, hash=False, timeout=LOOK_EVERY)
            except (CancelledError, OSError):
                return False
            for sent, future in zip(message, futures, strict=True):
                sent.future = future
                self.table.bytes_sent += n_bytes(sent.value)
        return True

    def _submit(self) -> dict[_Name, Any]:
        """Submit what is not under way, all at once; futures of what shall come home next."""
        missing = self._missing()
        names: list[_Name] = [("head", i) for i in missing[: self.width]]
        for name in names:
            self._head(name[1])
        adds_up = self.n_parts is not None and len(missing) <= self.width
        if adds_up:
            # Early, so that parts are added up and forgotten while other tasks still run.
            names += [
                ("sum", q, *self.root) for q in range(self.n_parts or 0) if q not in self.sums
            ]
            for name in names[len(missing) :]:
                self._sum(*name[1:])
        self._submit_batch()
        if adds_up:
            self._drop()
        return {name: self.futures[name] for name in names}

    def _submit_batch(self) -> None:
        names, made = list(self.batch), dict[str, Any]()
        for start in range(0, len(names), _TASKS):
            some = names[start : start + _TASKS]
            graph = {}
            for key, (function, *args) in (self.batch[name] for name in some):
                # A key of another graph would be taken for a text.
                graph[key] = (function, *(made.get(a, a) if type(a) is str else a for a in args))
            futures = self.client.get(graph, list(graph), sync=False)
            made.update(zip(graph, futures, strict=True))
            self.futures.update(zip(some, futures, strict=True))
        self.batch.clear()

    def _under_way(self, name: _Name) -> Any:
        """The future of that name, or its key if it is about to be submitted; None if neither."""
        if name in self.batch:
            return self.batch[name][0]
        return (
            None if self._status(*name) in ("cancelled", "error", "absent") else self.futures[name]
        )

    def _plan(self, name: _Name, function: Callable[..., Any], *args: Any) -> str:
        # A key of its own: the scheduler may still know the last one.
        key = f"pickmix-{name[0]}-{next(_count)}-{self.client.id}"
        self.batch[name] = key, (function, *args)
        return key

    def _work(self, i: int) -> Any:
        there = self._under_way(("work", i))
        if there is not None:
            return there
        chunk, own = self.chunks[i], self.own[i]
        weights = self.table.weights_of(chunk)
        facts = self.table.number(chunk), int(self.table.offsets[chunk])
        futures = (
            self.table.rows_of(chunk),
            weights.future if isinstance(weights, Sent) else weights,
            self.shared.future,
            None if own is None else own.future,
        )
        return self._plan(("work", i), _work, self.task, *facts, *futures)

    def _head(self, i: int) -> Any:
        name = ("head", i)
        return self._under_way(name) or self._plan(name, _head, self._work(i))

    def _sum(self, q: int, level: int, i: int) -> Any:
        name = ("sum", q, level, i)
        there = self._under_way(name)
        if there is not None:
            return there
        if level == 0:
            return self._plan(name, _part, self._work(i), q)
        parts = [self._sum(q, *child) for child in self._children(level, i)]
        return self._plan(name, _add, self.add, self.shared.future, *parts)

    def _children(self, level: int, i: int) -> list[tuple[int, int]]:
        """Level and number of the sums that a sum is made of."""
        n_below = -(-len(self.chunks) // _FAN ** (level - 1))
        some = range(_FAN * i, min(_FAN * (i + 1), n_below))
        return [self._resolve(level - 1, child) for child in some]

    def _resolve(self, level: int, i: int) -> tuple[int, int]:
        """The sum that is meant: one of a single sum is that sum."""
        while level and _FAN ** (level - 1) * (_FAN * i + 1) >= len(self.chunks):
            level, i = level - 1, _FAN * i
        return level, i

    def _drop(self) -> None:
        """Drop futures of what has been added up. All sums are under way."""
        for name in [name for name in self.futures if name[0] == "sum" and name[1] in self.sums]:
            del self.futures[name]
        finished = [name for name, future in self.futures.items() if future.status == "finished"]
        for kind, q, level, i in (name for name in finished if name[0] == "sum"):
            for child in self._children(level, i) if level else ():
                self.futures.pop((kind, q, *child), None)
        for i in self.results:
            parts = (self.futures.get(("sum", q, 0, i)) for q in range(self.n_parts or 0))
            if all(part is None or part.status == "finished" for part in parts):
                self.futures.pop(("work", i), None)

    # Coming home.

    def _collect(self, wanted: dict[_Name, Any]) -> bool:
        """Bring home what is done; whether nothing was lost."""
        states = {name: future.status for name, future in wanted.items()}
        for name, state in states.items():
            if state == "error":
                self._judge(name, wanted[name].exception())
        done = [name for name in states if states[name] == "finished" and name in self.futures]
        try:
            parcels = self.client.gather([wanted[name] for name in done])
        except Exception as error:
            # Its worker has just died. If there was more to it, its future will say so; and who
            # gives up shows the last error.
            self.last_error = error
            return False
        for name, parcel in zip(done, parcels, strict=True):
            self.table.bytes_sent += n_bytes(parcel.value)
            if self.futures.pop(name, None) is None:
                # A sum of parts that are not there, as a result has just shown.
                continue
            if name[0] == "sum":
                self.sums[name[1]] = parcel.value
            else:
                self._take(name[1], *parcel.value)
        return "cancelled" not in states.values() and "error" not in states.values()

    def _take(self, i: int, result: Any, n_parts: int) -> None:
        if self.results and self.n_parts != n_parts:
            raise ValueError(f"tasks must return equally many parts, got {self.n_parts}, {n_parts}")
        if self.n_parts != n_parts:
            self._forget_sums()
        self.results[i], self.n_parts = result, n_parts

    def _forget_sums(self) -> None:
        """Tasks do not return as many parts as was thought."""
        for name in [name for name in self.futures if name[0] == "sum"]:
            self.futures.pop(name).release()
        self.sums.clear()
        self.n_parts = None

    def _judge(self, name: _Name, error: Any) -> None:
        """Raise an error, unless another attempt may help."""
        from distributed.scheduler import KilledWorker

        killed = isinstance(error, KilledWorker)
        if isinstance(error, CancelledError) or (killed and self.width > 1):
            # Dask blames the death of a worker on all tasks that waited there.
            return
        if name[0] == "sum" and not self.results:
            # The first result will show whether this was right.
            self._forget_sums()
            return
        # A sum fails with one of the tasks that it is made of.
        failed = [i for i in range(len(self.chunks)) if self._status("work", i) == "error"]
        position = name[1] if name[0] == "head" else next(iter(failed), None)
        if position is not None:
            raise explain(error, self.table.number(self.chunks[position]))
        if not killed:
            raise error

    def _status(self, *name: Any) -> str:
        return str(self.futures[name].status) if name in self.futures else "absent"


# What runs on workers.


def _work(
    task: Task, number: int, first: int, rows: np.ndarray, weights: Any, shared: Parcel, own: Any
) -> Parcel:
    value = shared.value
    weights, own = (x.value if isinstance(x, Parcel) else x for x in (weights, own))
    try:
        return Parcel(task(value, _backend(value.compiled), Chunk(rows, first, weights), own))
    except Exception as error:
        raise explain(error, number)  # noqa: B904


def _backend(compiled: bool) -> Backend:
    """A worker gives each of its threads a task, so a task has one thread."""
    if compiled:
        from pickmix.sweep.partial_compiled import PartialCompiled
        from pickmix.threads import Threads

        return PartialCompiled(Threads(1))
    from pickmix.sweep.partial_reference import PartialReference

    return PartialReference()


def _head(done: Parcel) -> Parcel:
    result, parts = done.value
    return Parcel((result, len(parts)))


def _part(done: Parcel, q: int) -> Parcel:
    return Parcel(done.value[1][q])


def _add(add: Add, shared: Parcel, *parts: Parcel) -> Parcel:
    values = [part.value for part in parts]
    return Parcel(add_in_pairs(values, functools.partial(add, shared.value)))

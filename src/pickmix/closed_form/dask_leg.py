"""One leg of a pass on a Dask cluster: tasks on some partitions, and the sums of their parts.

Only plain futures are used. Rows have lineage: if a worker dies, others read its partitions again.
What is sent from here (models, chain states) has none. When its holder dies Dask cancels every task
that needs it, so it is sent again and those tasks are submitted again. Tasks are pure: the bits are
the same whatever happened on the way.
"""

from __future__ import annotations

import functools
import itertools
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any, Protocol

import numpy as np

from pickmix.closed_form.shards import Add, Chunk, Task, add_in_pairs
from pickmix.sweep.contract import Backend

# Bytes that are sent in one message.
_MESSAGE = 64_000_000
# Parts that one task adds up.
_FAN = 4
# Times that something may be lost and nothing be done in between: at all, with one chunk at a time,
# and with all chunks at a time.
_ATTEMPTS = 12
_ATTEMPTS_ALONE = 4
_ATTEMPTS_TOGETHER = 2
# Seconds between two looks at whether there are workers.
_LOOK_EVERY = 1.0
DISCONNECTED = (
    "the connection to the Dask scheduler is lost: it has ended, or the client was closed."
)
ADVICE = (
    "Give workers more memory or fewer threads, or make partitions smaller: "
    "`rechunk` of an array, `repartition` of a dataframe."
)
KILLED = f"workers died again and again, probably for want of memory. {ADVICE}"
# ("work", i) and ("head", i) of the i-th chunk; ("sum", q, level, i): part q of the chunks from
# i * _FAN^level on, _FAN^level of them.
_Name = tuple[Any, ...]
_count = itertools.count()


class Parcel:
    """A value on its way.

    Dask counts an object as some bytes, whatever it refers to. So rows are what weighs, and a task
    goes where the rows are, also if a model is larger.
    """

    def __init__(self, value: Any) -> None:
        self.value = value


class Sent:
    """A value that a worker has been sent, or will be."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.future: Any = None

    def is_there(self) -> bool:
        """Whether some worker holds it, as far as is known here."""
        return self.future is not None and self.future.status != "cancelled"

    def release(self) -> None:
        """Let the worker forget it."""
        if self.future is not None:
            self.future.release()
            self.future = None


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
    ) -> None:
        self.table, self.client = table, table.client
        self.task, self.chunks, self.shared, self.add = task, chunks, shared, add
        self.own = [None if value is None else Sent(value) for value in own]
        self.results: dict[int, Any] = {}
        self.sums: dict[int, Any] = {}
        self.n_parts: int | None = None
        self.futures: dict[_Name, Any] = {}
        levels = itertools.count()
        self.root = self._resolve(next(n for n in levels if _FAN**n >= len(chunks)), 0)
        # Chunks that are worked on at a time. Fewer if workers die and nothing gets done: there is
        # more room then, and in the end no doubt about which chunk it is.
        self.width = len(chunks)

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
            raise RuntimeError(f"partition {some}: {KILLED}")
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
        for message in _messages(absent):
            try:
                parcels = [Parcel(sent.value) for sent in message]
                futures = self.client.scatter(parcels, hash=False, timeout=_LOOK_EVERY)
            except (CancelledError, OSError):
                return False
            for sent, future in zip(message, futures, strict=True):
                sent.future = future
                self.table.bytes_sent += n_bytes(sent.value)
        return True

    def _submit(self) -> dict[_Name, Any]:
        """Submit what is not under way; futures of what shall come home next."""
        missing = self._missing()
        wanted: dict[_Name, Any] = {("head", i): self._head(i) for i in missing[: self.width]}
        if self.n_parts is not None and len(missing) <= self.width:
            # Early, so that parts are added up and forgotten while other tasks still run.
            for q in set(range(self.n_parts)) - set(self.sums):
                wanted["sum", q, *self.root] = self._sum(q, *self.root)
            self._drop()
        return wanted

    def _get(self, name: _Name, priority: int, function: Callable[..., Any], *args: Any) -> Any:
        """The future of that name, submitted if it is not under way."""
        future = self.futures.get(name)
        if future is None or future.status in ("cancelled", "error"):
            # A key of its own: the scheduler may still know the last one.
            key = f"pickmix-{'-'.join(map(str, name))}-{next(_count)}-{self.client.id}"
            future = self.client.submit(function, *args, key=key, priority=priority)
            self.futures[name] = future
        return future

    def _work(self, i: int) -> Any:
        chunk, own = self.chunks[i], self.own[i]
        weights = self.table.weights_of(chunk)
        first = int(self.table.offsets[chunk])
        futures = (
            self.table.rows_of(chunk),
            weights.future if isinstance(weights, Sent) else weights,
            self.shared.future,
            None if own is None else own.future,
        )
        number = self.table.number(chunk)
        return self._get(("work", i), 0, _work, self.task, number, first, *futures)

    def _head(self, i: int) -> Any:
        return self._get(("head", i), 2, _head, self._work(i))

    def _sum(self, q: int, level: int, i: int) -> Any:
        name = ("sum", q, level, i)
        future = self.futures.get(name)
        if future is not None and future.status not in ("cancelled", "error"):
            return future
        if level == 0:
            return self._get(name, 1, _part, self._work(i), q)
        parts = [self._sum(q, *child) for child in self._children(level, i)]
        return self._get(name, 1, _add, self.add, self.shared.future, *parts)

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
        done = [name for name, state in states.items() if state == "finished"]
        try:
            parcels = self.client.gather([wanted[name] for name in done])
        except Exception:
            # Its worker has just died. If there was more to it, its future will say so.
            return False
        for name, parcel in zip(done, parcels, strict=True):
            self.table.bytes_sent += n_bytes(parcel.value)
            del self.futures[name]
            if name[0] == "sum":
                self.sums[name[1]] = parcel.value
            else:
                self._take(name[1], *parcel.value)
        return "cancelled" not in states.values() and "error" not in states.values()

    def _take(self, i: int, result: Any, n_parts: int) -> None:
        if self.n_parts not in (None, n_parts):
            raise ValueError(f"tasks must return equally many parts, got {self.n_parts}, {n_parts}")
        self.results[i], self.n_parts = result, n_parts

    def _judge(self, name: _Name, error: Any) -> None:
        """Raise an error, unless another attempt may help."""
        from distributed.scheduler import KilledWorker

        killed = isinstance(error, KilledWorker)
        if isinstance(error, CancelledError) or (killed and self.width > 1):
            # Dask blames the death of a worker on all tasks that waited there.
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
        from pickmix.sweep.compiled import Compiled
        from pickmix.threads import Threads

        return Compiled(Threads(1))
    from pickmix.sweep.reference import Reference

    return Reference()


def _head(done: Parcel) -> Parcel:
    result, parts = done.value
    return Parcel((result, len(parts)))


def _part(done: Parcel, q: int) -> Parcel:
    return Parcel(done.value[1][q])


def _add(add: Add, shared: Parcel, *parts: Parcel) -> Parcel:
    values = [part.value for part in parts]
    return Parcel(add_in_pairs(values, functools.partial(add, shared.value)))


# What there is to know about clusters.


def await_any(futures: list[Any], client: Any, patience: float) -> None:
    """Wait until one is finished, failed or cancelled."""
    from distributed import wait

    while all(future.status in ("pending", "lost") for future in futures):
        try:
            wait(futures, timeout=_LOOK_EVERY, return_when="FIRST_COMPLETED")
        except CancelledError:
            return
        except TimeoutError:
            await_workers(client, patience)


def await_workers(client: Any, patience: float) -> None:
    """Wait until there is a worker that takes tasks; raise if that takes too long."""
    until = time.monotonic() + patience
    while True:
        if client.status != "running":
            raise RuntimeError(DISCONNECTED)
        # Those that are paused, for want of memory, do not count.
        if client.sync(client.scheduler.ncores_running, workers=None):
            return
        if time.monotonic() > until:
            raise RuntimeError(
                f"the Dask cluster has had no worker that takes tasks for {patience:g} s: none is "
                f"there, or all have paused for want of memory. Start workers. {ADVICE}"
            )
        time.sleep(min(_LOOK_EVERY, 0.2))


def explain(error: Any, number: int) -> Any:
    """An error that names its partition."""
    from distributed.scheduler import KilledWorker

    if isinstance(error, KilledWorker):
        return RuntimeError(f"partition {number}: {KILLED}")
    text = str(error)
    if isinstance(error, MemoryError):
        text = f"{text or 'a worker is out of memory'}. {ADVICE}"
    if "partition" not in str(error) and (isinstance(error, MemoryError) or len(error.args) == 1):
        error.args = (f"partition {number}: {text}",)
    elif "partition" not in str(error):
        error.add_note(f"in partition {number}")
    return error


def n_bytes(value: Any) -> int:
    """Bytes that a value has on the wire."""
    from distributed.protocol.pickle import dumps

    buffers: list[pickle.PickleBuffer] = []
    body = dumps(value, buffer_callback=buffers.append)
    return len(body) + sum(buffer.raw().nbytes for buffer in buffers)


def _messages(values: list[Sent]) -> Iterator[list[Sent]]:
    """Values that are sent together."""
    message: list[Sent] = []
    size = 0
    for value in values:
        here = n_bytes(value.value)
        if message and size + here > _MESSAGE:
            yield message
            message, size = [], 0
        message.append(value)
        size += here
    if message:
        yield message

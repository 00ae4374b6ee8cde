"""What there is to know about Dask clusters: sending, waiting, and what failures mean."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

# Bytes that are sent in one message.
_MESSAGE = 64_000_000
# Seconds between two looks at whether there are workers.
LOOK_EVERY = 1.0
DISCONNECTED = (
    "the connection to the Dask scheduler is lost: it has ended, or the client was closed."
)
ADVICE = (
    "Give workers more memory or fewer threads, or make partitions smaller: "
    "`rechunk` of an array, `repartition` of a dataframe."
)
KILLED = f"workers died again and again, probably for want of memory. {ADVICE}"


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


def await_any(futures: list[Any], client: Any, patience: float) -> None:
    """Wait until one is finished, failed or cancelled."""
    from distributed import wait

    while all(future.status in ("pending", "lost") for future in futures):
        try:
            wait(futures, timeout=LOOK_EVERY, return_when="FIRST_COMPLETED")
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
        time.sleep(min(LOOK_EVERY, 0.2))


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


def messages(values: list[Sent]) -> Iterator[list[Sent]]:
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

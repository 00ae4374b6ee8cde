"""Tasks on chunks that are quick, and go wrong in known ways; workers import them from here."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# Sums of such numbers depend on the order of the additions.
SCALES = 10.0 ** np.arange(-8, 9)


@dataclass
class Setting:
    """What all chunks share."""

    factor: float = 1.0
    n_parts: int = 3
    seconds: float = 0.0
    folder: str = ""
    compiled: bool = False
    ballast: np.ndarray | None = None


def weigh(setting, backend, chunk, state):
    """Result: what it saw; parts: numbers whose sum depends on the order."""
    time.sleep(setting.seconds)
    total = chunk.rows.sum(dtype=np.float64) * setting.factor
    if chunk.weights is not None:
        total += chunk.weights @ chunk.rows.sum(axis=1)
    if state is not None:
        total += state.sum()
    result = {
        "first": chunk.first,
        "shape": chunk.rows.shape,
        "dtype": str(chunk.rows.dtype),
        "plain": chunk.rows.flags.c_contiguous and chunk.rows.flags.writeable,
        "states": np.full(chunk.rows.shape[0], chunk.first, dtype=np.int32),
        "backend": type(backend).__name__,
        "threads": backend.threads and backend.threads.n_threads,
    }
    number = chunk.first // 7
    return result, [
        total * np.roll(SCALES, 5 * number + q) + number for q in range(setting.n_parts)
    ]


def plus(setting, one, other):
    return one + other * setting.factor


def note(setting, backend, chunk, state):
    """Leave a file behind at the start, then `weigh`."""
    if setting.folder:
        (Path(setting.folder) / f"{chunk.first}-{os.getpid()}").touch()
    return weigh(setting, backend, chunk, state)


def refuse(setting, backend, chunk, state):
    if chunk.first == state:
        raise ValueError("a row is not finite")
    return weigh(setting, backend, chunk, None)


def run_out_of_memory(setting, backend, chunk, state):
    raise MemoryError


def die(setting, backend, chunk, state):
    """Kill the worker, whichever it is, at one chunk."""
    if chunk.first == state:
        os.kill(os.getpid(), signal.SIGKILL)
    return weigh(setting, backend, chunk, None)


def die_once(setting, backend, chunk, state):
    """Kill the first worker that takes this chunk."""
    mark = Path(setting.folder) / "killed"
    if chunk.first == state and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return weigh(setting, backend, chunk, None)


def read_block(path, number, length):
    """Rows of one partition of a file."""
    return np.load(path)[number * length : (number + 1) * length]


def fail_at(block, number, block_id=None):
    if block_id[0] == number:
        raise OSError("the disk is broken")
    return block


def spoil(block, number, kind, block_id=None):
    """A partition of another shape or dtype than the collection says."""
    if block_id[0] != number:
        return block
    return {
        "columns": lambda: np.hstack([block, block]),
        "dtype": lambda: block.astype(object),
        "empty": lambda: block[:0],
        "flat": lambda: block[:, 0],
    }[kind]()

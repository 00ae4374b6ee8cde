"""A quick job on chunks that goes wrong in known ways; workers import it from here."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pickmix.threads import n_threads

# Sums of such numbers depend on the order of the additions.
SCALES = 10.0 ** np.arange(-8, 9)


@dataclass
class Weigh:
    """Results say what a chunk was; statistics are numbers whose sum depends on the order."""

    action: str = ""  # What happens at the chunk whose first row is `at`.
    at: int = 35
    folder: str = ""  # Where every chunk leaves a file behind.
    seconds: float = 0.0

    def work(self, chunk, state):
        if self.folder:
            (Path(self.folder) / f"{chunk.first}").touch()
        time.sleep(self.seconds)
        if chunk.first == self.at:
            self.act()
        total = chunk.rows.sum(dtype=np.float64)
        if chunk.weights is not None:
            total += chunk.weights @ chunk.rows.sum(axis=1)
        if state is not None:
            total += state.sum()
        result = {
            "first": chunk.first,
            "shape": chunk.rows.shape,
            "dtype": str(chunk.rows.dtype),
            "plain": chunk.rows.flags.c_contiguous and chunk.rows.flags.writeable,
            "threads": n_threads(),
        }
        return result, total * np.roll(SCALES, 5 * chunk.first // 7) + chunk.first

    def add(self, one, other):
        return one + other * 0.37

    def act(self):
        if self.action == "refuse":
            raise ValueError("a row is not finite")
        if self.action == "run out of memory":
            raise MemoryError
        mark = Path(self.folder) / "killed"
        if self.action == "die" or (self.action == "die once" and not mark.exists()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def read_block(path, number, length):
    """Rows of one partition of a file."""
    return np.load(path)[number * length : (number + 1) * length]


def spoil(block, number, kind, block_id=None):
    """A partition that cannot be read, or of another shape or dtype than the collection says."""
    if block_id[0] != number:
        return block
    if kind == "disk":
        raise OSError("the disk is broken")
    return {
        "columns": lambda: np.hstack([block, block]),
        "dtype": lambda: block.astype(object),
        "empty": lambda: block[:0],
        "flat": lambda: block[:, 0],
    }[kind]()

"""Threads over ranges of work, for kernels that release the GIL.

Kernels take `(..., start, stop)` and write only what belongs to their range, so
a result never depends on how many threads took part. Plain Python threads are
used instead of Numba's own: they start no global thread pool, they nest inside
other thread pools, and compilation stays fast.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

# Handing a range to another thread costs some 30 microseconds. Below this many
# multiply-adds per thread the work is done before the other thread wakes up.
MINIMUM_WORK = 400_000


def resolve_n_jobs(n_jobs: int | None) -> int:
    """Number of threads meant by scikit-learn's `n_jobs`; None means every usable core."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    if n_jobs is None:
        return cores
    if n_jobs < 0:
        return max(1, cores + 1 + n_jobs)
    return n_jobs


class Threads:
    """Runs a range kernel on up to `n_threads` threads.

    Parameters
    ----------
    n_threads : int
        At most this many ranges run at the same time.
    """

    def __init__(self, n_threads: int = 1) -> None:
        self.n_threads = n_threads
        self._pool: ThreadPoolExecutor | None = None

    def run(self, kernel: Callable[..., Any], n_items: int, work: float, *args: Any) -> None:
        """Call `kernel(*args, start, stop)` on ranges that cover `n_items`.

        `work` is the rough number of multiply-adds of the whole call.
        """
        if self.n_threads < 2 or work < 2 * MINIMUM_WORK or n_items < 2:
            kernel(*args, 0, n_items)
            return
        n_ranges = int(min(self.n_threads, n_items, work // MINIMUM_WORK))
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.n_threads - 1)
        bounds = [n_items * r // n_ranges for r in range(n_ranges + 1)]
        others = [
            self._pool.submit(kernel, *args, bounds[r], bounds[r + 1]) for r in range(1, n_ranges)
        ]
        kernel(*args, bounds[0], bounds[1])
        for other in others:
            other.result()

    def close(self) -> None:
        """Let the threads go."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

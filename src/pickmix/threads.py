"""Threads over ranges of work, for kernels that release the GIL.

Kernels take `(..., start, stop)` and write only what belongs to their range, so a result never
depends on how many threads took part. How many may is set by `use_threads` for all that is called
inside of it, and is one elsewhere. Plain Python threads are used instead of Numba's own: they nest
inside other thread pools, and compilation stays fast.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

# Handing a range to another thread costs some 30 microseconds. Below this many
# multiply-adds per thread the work is done before the other thread wakes up.
MINIMUM_WORK = 400_000

_n_threads: ContextVar[int] = ContextVar("n_threads", default=1)


def _make_pool() -> None:
    """Make a pool, which starts threads when it has none to spare."""
    global _pool
    _pool = ThreadPoolExecutor(4096, "pickmix-kernels")


_pool: ThreadPoolExecutor
_make_pool()
if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork.
    os.register_at_fork(after_in_child=_make_pool)


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


def n_threads() -> int:
    """How many threads kernels may use here."""
    return _n_threads.get()


@contextlib.contextmanager
def use_threads(n_jobs: int | None) -> Iterator[None]:
    """Let kernels use so many threads, as scikit-learn counts them.

    >>> with use_threads(3):
    ...     n_threads()
    3
    >>> n_threads()
    1
    """
    before = _n_threads.get()
    _n_threads.set(resolve_n_jobs(n_jobs))
    try:
        yield
    finally:
        _n_threads.set(before)


def run(kernel: Callable[..., Any], n_items: int, work: float, *args: Any) -> None:
    """Call `kernel(*args, start, stop)` on ranges that cover `n_items`.

    `work` is the rough number of multiply-adds of the whole call.
    """
    n_ranges = int(min(_n_threads.get(), n_items, work // MINIMUM_WORK))
    if n_ranges < 2:
        kernel(*args, 0, n_items)
        return
    bounds = [n_items * r // n_ranges for r in range(n_ranges + 1)]
    others = [_pool.submit(kernel, *args, bounds[r], bounds[r + 1]) for r in range(1, n_ranges)]
    kernel(*args, bounds[0], bounds[1])
    for other in others:
        other.result()

"""Where runs are made: processes of this machine, one process for each run, or a Dask cluster."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for
from typing import Any

from threadpoolctl import threadpool_limits

from pickmix.experiments.fits.perform import perform
from pickmix.experiments.machine import cpu_count
from pickmix.experiments.runs import Run
from pickmix.experiments.store import History

# Until a cluster that does not answer counts as not there.
_CONNECT_SECONDS = 10.0


@dataclass
class Workers:
    """Where to make runs: so many at a time, each with so many threads."""

    executor: Executor
    n_slots: int
    threads: int


@contextlib.contextmanager
def local_workers(n_jobs: int) -> Iterator[Workers]:
    """Processes of this machine, each with its share of the cores to itself."""
    threads = max(1, cpu_count() // n_jobs)
    # Not forked: threads of this process, and JAX's, would not survive it.
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(
        n_jobs, context, initializer=_settle, initargs=(context.Value("i", 0), threads)
    )
    try:
        yield Workers(executor, n_jobs, threads)
    except BaseException:
        # End the workers now: a run may take hours.
        for process in list((executor._processes or {}).values()):
            process.terminate()
        # The pool's own thread waits for its processes. If this one did so too, both would ask
        # the system for the same process, and one of them would return before it is gone.
        executor.shutdown(cancel_futures=True)
        raise
    executor.shutdown()


@contextlib.contextmanager
def cluster_workers(address: str) -> Iterator[Workers]:
    """Workers of a running Dask cluster; its scheduler decides who does what."""
    try:
        from distributed import Client
    except ImportError as error:
        raise ImportError("--cluster needs Dask: pip install 'pickmix[cluster]'") from error
    with Client(address, timeout=_CONNECT_SECONDS) as client:
        n_threads = sum(client.nthreads().values())
        if not n_threads:
            raise OSError(f"--cluster: the cluster at {address} has no workers")
        # A run is one task of one thread; Dask gives a worker as many as it has threads.
        yield Workers(client.get_executor(pure=False), n_threads, 1)


def _settle(counter: Any, threads: int) -> None:
    """Begin a worker: cores of its own, deaf to Ctrl-C, and gone when its parent is."""
    with counter.get_lock():
        number = counter.value
        counter.value += 1
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        first = number * threads % len(cores)
        os.sched_setaffinity(0, cores[first : first + threads])
    # NumPy and its BLAS are loaded by now: environment variables would come too late.
    threadpool_limits(threads)
    if hasattr(os, "setpgrp"):
        # Ctrl-C goes to the group in front. A fit that hears it ends early with a result.
        os.setpgrp()
    parent: Any = multiprocessing.parent_process()

    def leave_with_parent() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()


Report = Callable[[Run, History], None]


def make_all(runs: list[Run], workers: Workers, limit: float | None, report: Report) -> None:
    """Make runs under a limit of seconds, and report each as it ends."""
    waiting = list(reversed(runs))
    under_way: dict[Future[History], Run] = {}
    while waiting or under_way:
        # Few at a time: those in a queue would have to be cancelled one by one.
        while waiting and len(under_way) < workers.n_slots:
            run = waiting.pop()
            future = workers.executor.submit(perform, run, limit, workers.threads)
            under_way[future] = run
        done, _ = wait(under_way, return_when=FIRST_COMPLETED)
        for future in done:
            run = under_way.pop(future)
            try:
                report(run, future.result())
            except BrokenProcessPool as error:
                died = f"a worker died, probably for want of memory, beside or in {run}"
                raise OSError(f"{died}; the same command resumes from here") from error

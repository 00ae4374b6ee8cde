"""Runs in processes of their own: what is measured there, and what starts and ends them.

Measurements are sent as they are made, so that those of a killed process are not lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import math
import multiprocessing
import os
import platform
import queue
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import numpy as np

from pickmix import __version__
from pickmix_experiments.runs import Run
from pickmix_experiments.store import NO_DATA, Row, make_row

_RECORDS = 60
_PACKAGES = ("numpy", "numba", "scikit-learn", "jax")
_MODULES = {"convergence": "convergence", "bench": "methods"}
# Until a cluster that does not answer counts as missing.
_CONNECT_SECONDS = 10.0


def versions(packages: tuple[str, ...]) -> str:
    """Return the versions of pickmix, Python and those of the packages that are installed."""
    parts = [f"pickmix {__version__}", f"python {platform.python_version()}"]
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            parts.append(f"{name} {metadata.version(name)}")
    return "; ".join(parts)


def cpu_count() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def record_steps(n_steps: int) -> list[int]:
    """Return steps to measure at: evenly spaced on a log axis, with the first and the last."""
    return sorted({round(step) for step in np.geomspace(1, max(1, n_steps), _RECORDS)})


class Recorder:
    """Collects what one run measures, records (names of `SERIES`) and facts, and sends it on."""

    def __init__(self, send: Callable[[tuple[str, dict[str, Any]]], None] = lambda _: None) -> None:
        self.records: list[dict[str, float]] = []
        self.facts: dict[str, Any] = {}
        self._send = send

    def add(self, **values: float) -> None:
        self.records.append(values)
        self._send(("add", values))

    def know(self, **facts: Any) -> None:
        self.facts |= facts
        self._send(("know", facts))

    def shift(self, **amounts: float) -> None:
        """Add amounts to all records."""
        for record in self.records:
            record.update({name: record[name] + amount for name, amount in amounts.items()})
        self._send(("shift", amounts))


def perform(
    run: Run, limit_seconds: float | None = None, threads: int = 1, recorder: Recorder | None = None
) -> Row:
    """Make a run in this process, under a limit of work; return its row.

    The outcome is "failed: ..." of a fit that raised, and "no data: ..." without its files.
    """
    recorder = recorder or Recorder()
    started = time.perf_counter()
    recorder.know(
        limit_seconds=math.nan if limit_seconds is None else limit_seconds,
        threads=threads,
        cpu=cpu_name(),
        load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else math.nan,
        versions=versions(_PACKAGES),
    )
    # Here and not above: Gaussian runs need no JAX.
    module = importlib.import_module(f"pickmix_experiments.{_MODULES.get(run.kind, 'fits')}")
    try:
        with warnings.catch_warnings():
            # Of fits that have not converged; the outcome says so.
            warnings.simplefilter("ignore")
            getattr(module, f"perform_{run.kind}")(run, limit_seconds, threads, recorder)
    except FileNotFoundError as error:
        recorder.know(outcome=f"{NO_DATA}: {error}")
    except Exception as error:
        # An error of a fit is the outcome of its run; the other runs continue.
        lines = str(error).strip().splitlines() or [""]
        recorder.know(outcome=f"failed: {type(error).__name__}: {lines[0]}".removesuffix(": "))
    finished_at = datetime.now(UTC).isoformat(timespec="seconds")
    recorder.know(wall_seconds=time.perf_counter() - started, finished_at=finished_at)
    return make_row(run, recorder.records, recorder.facts)


class Meter:
    """A clock, a memory gauge and a time limit, all of which stop while something is measured.

    On Linux the peak of the resident memory can be reset, so that neither what came before the
    start nor what happens in a pause hides the peak of the work. Elsewhere the peak of the whole
    process has to do. When the work has taken `max_seconds`, the signal SIGALRM ends the process:
    the only way that also ends a call into another library which never returns to Python.
    """

    def __init__(self, max_seconds: float | None = None) -> None:
        if max_seconds is not None and not hasattr(signal, "setitimer"):
            raise OSError("max_seconds needs a POSIX system: there is no interval timer here")
        self._left = max_seconds
        self._since = math.nan
        self._before = self._peak = 0
        #: Seconds of work up to the last stop.
        self.seconds = 0.0

    def start(self) -> None:
        """Start the clock; the memory in use now is what the work's peak is counted from."""
        gc.collect()
        # Memory that was freed but not returned would be used again, unseen. glibc only.
        with contextlib.suppress(OSError, AttributeError, TypeError):
            ctypes.CDLL(None).malloc_trim(0)
        _reset_peak()
        self._before = self._peak = peak_bytes()
        self._resume()

    def stop(self) -> None:
        self.seconds += time.perf_counter() - self._since
        if self._left is not None:
            # What is left of the limit; this also switches the timer off.
            self._left = signal.setitimer(signal.ITIMER_REAL, 0.0)[0]
        self._peak = max(self._peak, peak_bytes())

    def _resume(self) -> None:
        _reset_peak()
        if self._left is not None:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            # Zero would switch the timer off.
            signal.setitimer(signal.ITIMER_REAL, max(self._left, 1e-6))
        self._since = time.perf_counter()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what happens inside."""
        self.stop()
        try:
            yield
        finally:
            self._resume()

    @property
    def peak_megabytes(self) -> float:
        """Largest resident memory of the work above what was in use before it, in 10^6 bytes."""
        return (self._peak - self._before) / 1e6


def peak_bytes() -> int:
    """Return the largest resident memory of this process since the last reset."""
    if (status := Path("/proc/self/status")).exists():
        # Not getrusage's ru_maxrss: a new process inherits that of the one which started it.
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    import resource  # not on Windows

    # macOS counts bytes, the others kilobytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _reset_peak() -> None:
    # Where this is not possible or not allowed, peaks add up over the process's life.
    with contextlib.suppress(OSError):
        if (clear := Path("/proc/self/clear_refs")).exists():
            clear.write_text("5")


class Worker:
    """A process that makes runs, one at a time, on all cores or on the share of its number."""

    def __init__(self, number: int = 0, threads: int | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, remote = context.Pipe()
        self.process = context.Process(target=_serve, args=(remote, number, threads), daemon=True)
        self.process.start()
        remote.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # At once: a run may take hours.
        self.process.kill()
        self.process.join()
        self._connection.close()

    def perform(self, run: Run, limit_seconds: float | None = None) -> Row:
        """Make a run; the outcome says how the process ended if that came first."""
        recorder = Recorder()
        try:
            self._connection.send((run, limit_seconds))
            while (message := self._connection.recv()) is not None:
                method, values = message
                getattr(recorder, method)(**values)
        except (EOFError, OSError):
            self.process.join()
            recorder.facts.setdefault("outcome", _outcome(self.process.exitcode, limit_seconds))
        return make_row(run, recorder.records, recorder.facts)


def _outcome(code: int | None, limit_seconds: float | None) -> str:
    """Name the outcome of a process that ended without one."""
    if code is None or code >= 0:
        return f"failed: exit code {code}"
    name = signal.Signals(-code).name
    if name == "SIGALRM":
        return f"timed out after {limit_seconds:g} s"
    # SIGKILL is how the kernel ends a process that takes more memory than there is.
    return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


def _serve(connection: Any, number: int, threads: int | None) -> None:
    """Make the runs that come, until the parent ends."""
    # Ctrl-C is for the parent. Our fits would end early with a result of their own.
    if hasattr(os, "setsid"):
        os.setsid()
    # Other libraries may print.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    # A fit that takes more memory than there is must not cost another process its life.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")

    def follow_parent() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=follow_parent, daemon=True).start()
    if threads is not None:
        from threadpoolctl import threadpool_limits

        if hasattr(os, "sched_setaffinity"):
            cores = sorted(os.sched_getaffinity(0))
            first = number * threads % len(cores)
            os.sched_setaffinity(0, cores[first : first + threads])
        # NumPy and its BLAS are loaded by now: environment variables would come too late.
        threadpool_limits(threads)
    while True:
        run, limit_seconds = connection.recv()
        perform(run, limit_seconds, threads or cpu_count(), Recorder(connection.send))
        connection.send(None)


@contextlib.contextmanager
def local_workers(n_jobs: int) -> Iterator[tuple[Executor, Callable[..., Row]]]:
    """Start processes of this machine, each with its share of the cores to itself."""
    threads = max(1, cpu_count() // n_jobs)
    idle: queue.SimpleQueue[tuple[int, Worker | None]] = queue.SimpleQueue()
    for number in range(n_jobs):
        idle.put((number, None))

    with contextlib.ExitStack() as stack:
        # Threads only wait for their processes; they end when those have been killed.
        executor = stack.enter_context(ThreadPoolExecutor(n_jobs))

        def make(run: Run, limit_seconds: float | None) -> Row:
            number, worker = idle.get()
            worker = worker or stack.enter_context(Worker(number, threads))
            row = worker.perform(run, limit_seconds)
            # One that died, most often for want of memory, is replaced.
            idle.put((number, worker if worker.process.is_alive() else None))
            return row

        yield executor, make


@contextlib.contextmanager
def cluster_workers(address: str) -> Iterator[tuple[Executor, Callable[..., Row]]]:
    """Use the workers of a running Dask cluster; its scheduler decides who does what."""
    try:
        from distributed import Client
    except ImportError as error:
        raise ImportError("--cluster needs Dask: pip install 'pickmix[cluster]'") from error
    with Client(address, timeout=_CONNECT_SECONDS) as client:
        if not client.nthreads():
            raise OSError(f"--cluster: the cluster at {address} has no workers")
        # A run is one task of one thread; Dask gives a worker as many as it has threads.
        yield client.get_executor(pure=False), perform


def make_all(
    runs: list[Run], executor: Executor, make: Callable[..., Row], limit_seconds: float | None
) -> Iterator[Row]:
    """Make runs under a limit of seconds; return their rows as they end."""
    futures = [executor.submit(make, run, limit_seconds) for run in runs]
    try:
        for future in as_completed(futures):
            yield future.result()
    finally:
        for future in futures:
            future.cancel()

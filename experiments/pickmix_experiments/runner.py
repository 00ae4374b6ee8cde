"""Runs in processes of their own: what a worker process does, and what starts and stops it.

    python -m pickmix_experiments.runner [NUMBER THREADS]

is a worker, with cores of its own if they are given. It reads runs from standard input, a line of
JSON each, and writes their measurements to standard output as they come, so that those of a killed
process are not lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import math
import os
import platform
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import numpy as np

from pickmix import __version__
from pickmix_experiments.runs import Run, run_of
from pickmix_experiments.store import NO_DATA, History, make_history

_RECORDS = 60
_PACKAGES = ("numpy", "numba", "scikit-learn", "jax")
_MODULES = {"convergence": "convergence", "bench": "baselines"}
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
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
    """Collects what one run measures, records (names of `SERIES`) and facts.

    With a file, every call is also written to it, a line of JSON each, for a recorder elsewhere.
    """

    def __init__(self, file: Any = None) -> None:
        self.records: list[dict[str, float]] = []
        self.facts: dict[str, Any] = {}
        self._file = file

    def add(self, **values: float) -> None:
        self.records.append(values)
        self.send("add", values)

    def know(self, **facts: Any) -> None:
        self.facts |= facts
        self.send("know", facts)

    def shift(self, **amounts: float) -> None:
        """Add amounts to all records."""
        for record in self.records:
            record.update({name: record[name] + amount for name, amount in amounts.items()})
        self.send("shift", amounts)

    def send(self, method: str, values: dict[str, Any]) -> None:
        if self._file:
            print(json.dumps([method, values], default=float), file=self._file, flush=True)


def perform(
    run: Run, limit_seconds: float | None = None, threads: int = 1, recorder: Recorder | None = None
) -> History:
    """Make a run in this process, under a limit of work.

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
    return make_history(run, recorder.records, recorder.facts)


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
    if _STATUS.exists():
        # Not getrusage's ru_maxrss: a new process inherits that of the one which started it.
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    import resource  # not on Windows

    # macOS counts bytes, the others kilobytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _reset_peak() -> None:
    # Where this is not possible or not allowed, peaks add up over the process's life.
    with contextlib.suppress(OSError):
        if _CLEAR.exists():
            _CLEAR.write_text("5")


class Worker:
    """A process that makes runs, one at a time."""

    COMMAND = (sys.executable, "-m", "pickmix_experiments.runner")

    def __init__(self, *cores: int) -> None:
        """Start it, on all cores or with its number and that of its threads."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [*self.COMMAND, *map(str, cores)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # Ctrl-C is for the parent. Our fits would end early with a result of their own.
            start_new_session=True,
            encoding="utf-8",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # At once: a run may take hours.
        self._process.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError):
                file.close()  # type: ignore[union-attr]

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def perform(self, run: Run, limit_seconds: float | None = None) -> History:
        """Make a run; the outcome says how the process ended if that came first."""
        recorder = Recorder()
        channel: Any = self._process
        job = {"settings": json.dumps(run.settings()), "seed": run.seed, "limit": limit_seconds}
        with contextlib.suppress(OSError):
            channel.stdin.write(json.dumps(job) + "\n")
            channel.stdin.flush()
        for line in channel.stdout:
            # The last line of a killed process may have been cut short.
            method, values = json.loads(line) if line.endswith("\n") else ("know", {})
            if method == "end":
                break
            getattr(recorder, method)(**values)
        else:
            code = self._process.wait()
            self._errors.seek(0)
            text = self._errors.read().decode("utf-8", errors="replace")
            recorder.facts.setdefault("outcome", _outcome(code, limit_seconds, text))
        return make_history(run, recorder.records, recorder.facts)


def _outcome(code: int, limit_seconds: float | None, errors: str) -> str:
    """Name the outcome of a process that ended without one."""
    if code < 0:
        if limit_seconds is not None and -code == getattr(signal, "SIGALRM", 0):
            return f"timed out after {limit_seconds:g} s"
        name = signal.Signals(-code).name
        # This is how the kernel ends a process that takes more memory than there is.
        return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    lines = errors.strip().splitlines()
    return f"failed: {lines[-1]}" if lines else f"failed: exit code {code}"


@dataclass
class Workers:
    """Where to make runs: so many at a time, by `executor.submit(make, run, limit)`."""

    executor: Executor
    n_slots: int
    make: Callable[[Run, float | None], History]


@contextlib.contextmanager
def local_workers(n_jobs: int) -> Iterator[Workers]:
    """Start processes of this machine, each with its share of the cores to itself."""
    threads = max(1, cpu_count() // n_jobs)
    workers = [Worker(number, threads) for number in range(n_jobs)]
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def make(run: Run, limit_seconds: float | None) -> History:
        worker = idle.get()
        history = worker.perform(run, limit_seconds)
        if worker.ended:
            died = f"a worker died, probably for want of memory, beside or in {run}"
            raise OSError(f"{died}; the same command resumes from here")
        idle.put(worker)
        return history

    with contextlib.ExitStack() as stack:
        # Threads only wait for their processes; they end when those have been killed.
        executor = stack.enter_context(ThreadPoolExecutor(n_jobs))
        for worker in workers:
            stack.enter_context(worker)
        yield Workers(executor, n_jobs, make)


@contextlib.contextmanager
def cluster_workers(address: str) -> Iterator[Workers]:
    """Use the workers of a running Dask cluster; its scheduler decides who does what."""
    try:
        from distributed import Client
    except ImportError as error:
        raise ImportError("--cluster needs Dask: pip install 'pickmix[cluster]'") from error
    with Client(address, timeout=_CONNECT_SECONDS) as client:
        n_threads = sum(client.nthreads().values())
        if not n_threads:
            raise OSError(f"--cluster: the cluster at {address} has no workers")
        # A run is one task of one thread; Dask gives a worker as many as it has threads.
        yield Workers(client.get_executor(pure=False), n_threads, perform)


def make_all(
    runs: list[Run],
    workers: Workers,
    limit_seconds: float | None,
    report: Callable[[Run, History], None],
) -> None:
    """Make runs under a limit of seconds, and report each as it ends."""
    waiting = list(reversed(runs))
    under_way: dict[Future[History], Run] = {}
    while waiting or under_way:
        # Few at a time: those in a queue would have to be cancelled one by one.
        while waiting and len(under_way) < workers.n_slots:
            run = waiting.pop()
            under_way[workers.executor.submit(workers.make, run, limit_seconds)] = run
        done, _ = wait(under_way, return_when=FIRST_COMPLETED)
        for future in done:
            report(under_way.pop(future), future.result())


def serve(threads: int) -> None:
    """Make the runs that standard input names; exit when it closes, as the parent has ended."""
    # Other libraries may print: that goes to standard error.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    while True:
        job = json.loads(lines.get())
        run = run_of(job["settings"], job["seed"])
        assert run is not None
        recorder = Recorder(out)
        perform(run, job["limit"], threads, recorder)
        recorder.send("end", {})


def _take_cores(number: int, threads: int) -> None:
    """Pin this process to its share of the cores, and BLAS to as many threads."""
    from threadpoolctl import threadpool_limits

    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        first = number * threads % len(cores)
        os.sched_setaffinity(0, cores[first : first + threads])
    # NumPy and its BLAS are loaded by now: environment variables would come too late.
    threadpool_limits(threads)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _take_cores(*map(int, sys.argv[1:]))
    # A fit that takes more memory than there is must not cost another process its life.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    serve(int(sys.argv[2]) if len(sys.argv) > 1 else cpu_count())

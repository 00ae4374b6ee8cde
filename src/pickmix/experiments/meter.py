"""A clock, a memory gauge and a time limit, all of which stop while something is measured."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


class Meter:
    """Measures the work between `start` and `stop`, pauses left out.

    On Linux the peak of the resident memory can be set back, so that neither what came before the
    start nor what happens in a pause hides the peak of the work. Elsewhere the peak of the whole
    process is all there is, and a pause may raise it. When the work has taken `max_seconds`, the
    process is ended by the signal SIGALRM: the only way that also ends a call into another library
    which never returns to Python.
    """

    def __init__(self, max_seconds: float | None = None) -> None:
        if max_seconds is not None and not hasattr(signal, "setitimer"):
            raise OSError("max_seconds needs a POSIX system: there is no interval timer here")
        self._left = max_seconds
        self._seconds = 0.0
        self._since = math.nan
        self._before = 0
        self._peak = 0

    def start(self) -> None:
        """Start the clock; the memory in use now is what the work's peak is counted from."""
        gc.collect()
        _give_back_free_memory()
        _set_peak_back()
        self._before = self._peak = peak_bytes()
        self._resume()

    def stop(self) -> None:
        """Stop the clock and the limit."""
        self._seconds += time.perf_counter() - self._since
        if self._left is not None:
            # What is left of the limit; the timer is off from here on.
            self._left = signal.setitimer(signal.ITIMER_REAL, 0.0)[0]
        self._peak = max(self._peak, peak_bytes())

    def _resume(self) -> None:
        _set_peak_back()
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
    def seconds(self) -> float:
        """Seconds of work up to the last stop."""
        return self._seconds

    @property
    def peak_megabytes(self) -> float:
        """Largest resident memory of the work above what was in use before it, in 10^6 bytes."""
        return (self._peak - self._before) / 1e6


def peak_bytes() -> int:
    """Largest resident memory of this process since it was last set back."""
    if _STATUS.exists():
        # Not getrusage's ru_maxrss: a new process inherits that of the one which started it.
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    import resource  # not on Windows

    # macOS counts bytes, the others kilobytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _set_peak_back() -> None:
    # Where this is not possible or not allowed, peaks add up over the process's life.
    with contextlib.suppress(OSError):
        if _CLEAR.exists():
            _CLEAR.write_text("5")


def _give_back_free_memory() -> None:
    # What was freed before but not given back would be used again by the work, unseen. glibc only.
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)

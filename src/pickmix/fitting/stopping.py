"""When a fit ends, and under which name."""

from __future__ import annotations

import enum
import math
import os
import signal
import threading
from dataclasses import dataclass
from types import FrameType
from typing import Any


class Outcome(enum.StrEnum):
    """How a fit ended."""

    CONVERGED = "converged"
    MAX_ITER = "max_iter"
    MAX_STEPS = "max_steps"
    MAX_TIME = "max_time"
    CALLBACK = "callback"
    INTERRUPTED = "interrupted"
    SINGULAR = "singular_covariance"
    NON_FINITE = "non_finite"


@dataclass
class Plateau:
    """Detects when a log-likelihood (nats per row) has stopped rising.

    The plateau is reached when `patience` values in a row, smoothed exponentially (`smoothing` in
    [0, 1) is the weight of the past), have not come `tol` above an earlier one. A slow but steady
    rise is not a plateau.

    >>> plateau = Plateau(tol=0.1)
    >>> [plateau.reached(value) for value in (-5.0, -4.0, -3.95)]
    [False, False, True]
    """

    tol: float
    smoothing: float = 0.0
    patience: int = 1
    smoothed: float = math.nan
    reference: float = -math.inf
    waited: int = 0

    def reached(self, value: float) -> bool:
        """Add the next value; True if the plateau is reached."""
        first = math.isnan(self.smoothed)
        past = value if first else self.smoothed
        self.smoothed = self.smoothing * past + (1.0 - self.smoothing) * value
        if self.smoothed - self.reference >= self.tol:
            self.reference = self.smoothed
            self.waited = 0
        else:
            self.waited += 1
        return self.waited >= self.patience


@dataclass(frozen=True)
class Limits:
    """Hard limits of a fit: the last step, why that is the last, and seconds of work."""

    last_step: int
    reason: Outcome
    max_time: float | None = None


class InterruptGuard:
    """Holds back the first Ctrl-C until a step is done, so that the model is complete.

    Only in the main thread. `terminates` holds SIGTERM back too, until the block is left.
    """

    def __init__(self, terminates: bool = False) -> None:
        self.interrupted = False
        self._terminated = False
        self._terminates = terminates
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> InterruptGuard:
        if threading.current_thread() is threading.main_thread():
            # A handler other than Python's belongs to another library.
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._previous[signal.SIGINT] = signal.signal(signal.SIGINT, self._hold)
            if self._terminates and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
                self._previous[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._hold)
        return self

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            self._terminated = True
        elif self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._terminated:
            os.kill(os.getpid(), signal.SIGTERM)

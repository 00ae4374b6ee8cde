"""The one fitting loop. It knows steps, clocks and log-likelihoods, and nothing about models."""

from __future__ import annotations

import enum
import math
import os
import signal
import sys
import threading
import time
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import FrameType
from typing import Any, Protocol, Self

import numpy as np


class Progress:
    """A tqdm bar over steps with log-likelihood, acceptance and rows per second.

    verbose = 0 shows nothing, 1 a bar, 2 and more one line per evaluation. Settings are tqdm's.
    """

    def __init__(self, verbose: int, done: int = 0, **settings: Any) -> None:
        self.verbose, self._done = verbose, done
        self._settings: dict[str, Any] = {"unit": "step"} | settings
        self._bar: Any = self._new_bar(initial=done) if verbose == 1 else None

    def _new_bar(self, **settings: Any) -> Any:
        """A widget in a notebook that has ipywidgets, else text on stderr."""
        with warnings.catch_warnings():
            # Without ipywidgets text does as well, and what is called experimental is the choice.
            warnings.simplefilter("ignore")
            from tqdm.autonotebook import tqdm
        return tqdm(file=sys.stderr, dynamic_ncols=True, **self._settings | settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def advance(self, n_steps: int, n_rows: int) -> None:
        """Count steps, and the rows visited since the beginning."""
        if self._bar is not None:
            self._bar.update(n_steps)

    def report(self, record: Any, speed: float) -> None:
        """Show the newest evaluation, a `FitInfo`, and the rows visited per second."""
        values = {"log-likelihood": f"{record.log_likelihood:.4f}"}
        if not math.isnan(record.validation):
            values["validation"] = f"{record.validation:.4f}"
        # It is 1, and uninformative, where nothing can be rejected.
        if not math.isnan(record.acceptance) and record.acceptance != 1.0:
            values["acceptance"] = f"{record.acceptance:.3f}"
        values["rows/s"] = f"{speed:,.0f}"
        self._show(values, f"step {record.step}  pass {record.epoch:.1f}  ")

    def tell(self, n_components: int, log_likelihood: float) -> None:
        """Show a round of growth: components, and the leave-one-out log-likelihood per row."""
        self._show({"components": f"{n_components:,}", "left-out": f"{log_likelihood:.4f}"})
        self.advance(1, 0)

    def _show(self, values: dict[str, str], where: str = "") -> None:
        if self._bar is not None:
            self._bar.set_postfix(values, refresh=False)
        elif self.verbose > 1:
            print(where + "  ".join(f"{n} {value}" for n, value in values.items()), flush=True)

    def close(self) -> None:
        if hasattr(self._bar, "container"):
            # Widgets turn red if the total was not reached, but a fit that converges is no failure.
            self._bar.total = self._bar.n
        if self._bar is not None:
            self._bar.close()


class PassProgress(Progress):
    """A bar over the rows of each pass, with the remaining time; `label` replaces its number."""

    def __init__(self, n_rows: int, verbose: int, done: int = 0, label: str = "") -> None:
        self._n_rows, self._label = n_rows, label
        super().__init__(verbose, done, total=n_rows, unit=" rows", unit_scale=True)

    def _new_bar(self, **settings: Any) -> Any:
        number, done = divmod(self._done, self._n_rows)
        return super()._new_bar(initial=done, desc=self._label or f"pass {number + 1}")

    def advance(self, n_steps: int, n_rows: int) -> None:
        if self._bar is None:
            return
        if self._done and self._done % self._n_rows == 0:
            self.close()
            self._bar = self._new_bar()
        self._bar.update(n_rows - self._done)
        self._done = n_rows


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


# Every so many steps, or after the steps of a rising sequence.
EvaluateEvery = int | Sequence[int]

#: The record of a fit, a row per evaluation: steps; passes over the data; seconds of work (no
#: evaluation, callback or progress bar); evaluations of a component on a row; mean log-likelihood
#: per row, and the same on rows that are not learnt from, NaN without them; mean acceptance
#: probability since the last record; and components that still explain rows.
TRACE_DTYPE = np.dtype(
    [
        ("step", np.int64),
        ("epoch", np.float64),
        ("seconds", np.float64),
        ("evaluations", np.int64),
        ("log_likelihood", np.float64),
        ("validation", np.float64),
        ("acceptance", np.float64),
        ("live_components", np.int64),
    ]
)


def next_evaluation(evaluate_every: EvaluateEvery, step: int) -> float:
    """Step after which the next evaluation comes; infinite if only the end is left.

    >>> next_evaluation(10, 20), next_evaluation([1, 10, 100], 10), next_evaluation([1, 10], 10)
    (30, 100, inf)
    """
    if isinstance(evaluate_every, int | np.integer):
        return step + evaluate_every
    position = bisect_right(evaluate_every, step)
    return evaluate_every[position] if position < len(evaluate_every) else math.inf


@dataclass
class Counters:
    """Totals since the engine was made."""

    rows: int = 0  # Row visits.
    evaluations: int = 0  # Evaluations of a component on a row.
    acceptance_sum: float = 0.0  # Acceptance probabilities, means over draws, summed over visits.
    refused: int = 0  # Updates refused because they had no finite, positive definite covariance.


class Engine(Protocol):
    """What the loop needs of an engine."""

    counters: Counters
    refusal: str  # Value of `Outcome` when the engine has refused an update.

    def advance(self, first: int, most: int) -> int:
        """Make steps first, first + 1, ..., at most `most` of them; return how many."""

    def log_likelihood(self) -> float:
        """Estimate the mean log-likelihood per row."""

    def validation(self) -> float | None:
        """Mean log-likelihood per held-out row, if there are any."""

    def live_components(self) -> int:
        """Number of components that still explain rows."""

    def may_end(self, step: int) -> bool:
        """Whether a plateau after this step ends the fit."""


@dataclass
class FitInfo:
    """What a callback sees after each evaluation.

    Attributes
    ----------
    step, epoch, seconds, evaluations, log_likelihood, validation, acceptance, live_components
        As in `trace_`.
    estimator : callable
        `estimator()` returns a copy of the estimator with the current parameters, to score or
        predict with.
    """

    step: int
    epoch: float
    seconds: float
    evaluations: int
    log_likelihood: float
    validation: float
    acceptance: float
    live_components: int
    estimator: Callable[[], Any] = field(repr=False)


@dataclass
class FitResult:
    outcome: Outcome
    n_steps: int
    seconds: float
    trace: np.ndarray


@dataclass
class LoopState:
    """State of the loop between two steps."""

    #: The last step done, and the last one that was followed by an evaluation.
    step: int
    evaluated: int
    work: float  # Seconds of work.
    seen: Counters  # The engine's at that evaluation.
    trace: list[tuple[float, ...]]  # Records, as in TRACE_DTYPE.
    best: float
    plateau: Plateau | None
    outcome: Outcome | None = None  # How the fit ended, if it did.

    def result(self, outcome: Outcome) -> FitResult:
        trace = np.array(self.trace, dtype=TRACE_DTYPE)
        return FitResult(outcome, self.step, self.work, trace)

    def content(self) -> dict[str, Any]:
        """The state as numbers and arrays."""
        outcome = None if self.outcome is None else str(self.outcome)
        trace = np.array(self.trace, dtype=TRACE_DTYPE)
        return asdict(self) | {"trace": trace, "outcome": outcome}

    @classmethod
    def of_content(cls, content: dict[str, Any]) -> LoopState:
        outcome, plateau = content["outcome"], content["plateau"]
        return cls(
            int(content["step"]),
            int(content["evaluated"]),
            float(content["work"]),
            Counters(**content["seen"]),
            content["trace"].tolist(),
            float(content["best"]),
            None if plateau is None else Plateau(**plateau),
            None if outcome is None else Outcome(outcome),
        )


def run(
    engine: Engine,
    *,
    limits: Limits,
    steps_per_pass: int,
    evaluate_every: EvaluateEvery,
    plateau: Plateau | None,
    progress: Progress,
    callbacks: Iterable[Callable[[FitInfo], Any]] = (),
    snapshot: Callable[[], Any] = lambda: None,
    remember: Callable[[], Any] = lambda: None,
    best_before: float = -math.inf,
    first_step: int = 1,
    passes_before: float = 0.0,
    save: Callable[[LoopState, bool], None] | None = None,
    resumed: LoopState | None = None,
) -> FitResult:
    """Make steps until a limit, a plateau, a callback, Ctrl-C or a failure ends the fit.

    Evaluations, callbacks and the progress bar never count as work time. On a failure the model is
    the last good one, because the engine refuses updates that would break it. With held-out rows,
    `remember` is called whenever their log-likelihood is the highest so far (`best_before` is the
    start's), and the plateau is theirs; without, whenever the log-likelihood is finite. The
    state is given to `save` after each step, with True before an early end and at the end, where it
    must be saved. A fit `resumed` from a state makes the same steps as one that was never
    interrupted; `max_time` starts again.
    """
    start = LoopState(first_step - 1, first_step - 1, 0.0, Counters(), [], best_before, plateau)
    now = start if resumed is None else resumed
    plateau, work_before = now.plateau, now.work
    if now.outcome is not None:
        progress.close()
        return now.result(now.outcome)
    outcome = limits.reason
    last_step = first_step - 1 + limits.last_step
    callbacks = list(callbacks)
    with InterruptGuard(terminates=save is not None) as guard:
        try:
            while now.evaluated < last_step:
                upto = int(min(last_step, next_evaluation(evaluate_every, now.evaluated)))
                early = False
                while now.step < upto:
                    started = time.perf_counter()
                    n_steps = engine.advance(now.step + 1, upto - now.step)
                    now.work += time.perf_counter() - started
                    now.step += n_steps
                    progress.advance(n_steps, engine.counters.rows)
                    early = guard.interrupted or _is_over(limits, now.work - work_before)
                    if save is not None:
                        save(now, early)
                    if early:
                        break

                rows = engine.counters.rows - now.seen.rows
                acceptance = engine.counters.acceptance_sum - now.seen.acceptance_sum
                now.seen = replace(engine.counters)
                now.evaluated = now.step
                validation = engine.validation()
                record = FitInfo(
                    step=now.step,
                    epoch=passes_before + (now.step - first_step + 1) / steps_per_pass,
                    seconds=now.work,
                    evaluations=engine.counters.evaluations,
                    log_likelihood=engine.log_likelihood(),
                    validation=math.nan if validation is None else validation,
                    acceptance=acceptance / max(1, rows),
                    live_components=engine.live_components(),
                    estimator=snapshot,
                )
                now.trace.append(tuple(getattr(record, n) for n in TRACE_DTYPE.names or ()))
                speed = engine.counters.rows / max(now.work, 1e-9)
                progress.report(record, speed)
                watched = record.log_likelihood
                if validation is not None:
                    watched = validation
                    if now.best < watched < math.inf:
                        now.best = watched
                        remember()
                elif math.isfinite(watched):
                    remember()

                # With checkpoints, an interrupt in an evaluation ends the fit after the next step.
                if guard.interrupted and (early or save is None):
                    outcome = Outcome.INTERRUPTED
                    break
                if engine.counters.refused:
                    outcome = Outcome(engine.refusal)
                    break
                if not (math.isfinite(record.log_likelihood) and math.isfinite(watched)):
                    outcome = Outcome.NON_FINITE
                    break
                # Every callback sees every record, also the one that ends the fit.
                wishes = [bool(callback(record)) for callback in callbacks]
                if any(wishes):
                    outcome = Outcome.CALLBACK
                    break
                if plateau is not None and plateau.reached(watched) and engine.may_end(now.step):
                    outcome = Outcome.CONVERGED
                    break
                if _is_over(limits, now.work - work_before):
                    outcome = Outcome.MAX_TIME
                    break
        except KeyboardInterrupt:
            outcome = Outcome.INTERRUPTED
        finally:
            progress.close()
        if save is not None and outcome not in (Outcome.INTERRUPTED, Outcome.MAX_TIME):
            save(replace(now, outcome=outcome), True)
    # Ctrl-C during the last evaluation or callback must not be lost: other fits may follow.
    if guard.interrupted:
        outcome = Outcome.INTERRUPTED
    return now.result(outcome)


def _is_over(limits: Limits, seconds: float) -> bool:
    return limits.max_time is not None and seconds >= limits.max_time

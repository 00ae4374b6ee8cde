"""The one fitting loop. It knows steps, clocks and log-likelihoods, and nothing of models."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from pickmix.fitting.progress import Progress
from pickmix.fitting.stopping import InterruptGuard, Limits, Outcome, Plateau
from pickmix.fitting.trace import Trace
from pickmix.selection.counters import Counters

# Every so many steps, or after the steps of a rising sequence.
EvaluateEvery = int | Sequence[int]


def next_evaluation(evaluate_every: EvaluateEvery, step: int) -> float:
    """Step after which the next evaluation comes; infinite if only the end is left.

    Examples
    --------
    >>> next_evaluation(10, 20), next_evaluation([1, 10, 100], 10), next_evaluation([1, 10], 10)
    (30, 100, inf)
    """
    if isinstance(evaluate_every, int | np.integer):
        return step + evaluate_every
    position = bisect_right(evaluate_every, step)
    return evaluate_every[position] if position < len(evaluate_every) else math.inf


class Engine(Protocol):
    """What the loop needs of an engine."""

    counters: Counters
    #: Value of `Outcome` when the engine has refused an update.
    refusal: str

    def advance(self, first: int, most: int) -> int:
        """Make steps first, first + 1, ..., at most `most` of them; return how many."""
        ...

    def log_likelihood(self) -> float:
        """Estimate the mean log-likelihood per row of the present model."""
        ...

    def validation(self) -> float | None:
        """Mean log-likelihood per row of rows that are not learnt from, if there are any."""
        ...

    def live_components(self) -> int:
        """Components that still explain rows."""
        ...

    def may_end(self, step: int) -> bool:
        """Whether a plateau after this step ends the fit; if not, the engine has more to do."""
        ...


@dataclass
class FitInfo:
    """What a callback sees after each evaluation.

    Attributes
    ----------
    step, epoch, seconds, evaluations, log_likelihood, validation, acceptance, live_components
        As in `trace_`.
    estimator : callable
        `estimator()` returns a copy of the estimator with the parameters as they stand, to score
        or predict with.
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
    """How the loop ended: the name, the last step done and the record."""

    outcome: Outcome
    n_steps: int
    seconds: float
    trace: Trace


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
) -> FitResult:
    """Make steps until a limit, a plateau, a callback, Ctrl-C or a failure ends the fit.

    Evaluations, callbacks and the progress bar never count as work time. A failure to stay
    finite ends the fit under its name; the engine refuses updates that would break the model, so
    what remains is the last good one. With validation rows, `remember` is called whenever their
    log-likelihood is the highest so far (`best_before` is the start's), and the plateau is theirs;
    without, whenever the log-likelihood is finite.
    """
    trace = Trace()
    work = 0.0
    seen = Counters()
    step = first_step - 1
    outcome = limits.reason
    last_step = first_step - 1 + limits.last_step
    callbacks = list(callbacks)
    best = best_before
    with InterruptGuard() as guard:
        try:
            while step < last_step:
                upto = int(min(last_step, next_evaluation(evaluate_every, step)))
                begin = step
                started = time.perf_counter()
                while step < upto:
                    step += engine.advance(step + 1, upto - step)
                    if guard.interrupted:
                        break
                    spent = work + time.perf_counter() - started
                    if limits.max_time is not None and spent >= limits.max_time:
                        break
                work += time.perf_counter() - started
                progress.advance(step - begin)

                rows = engine.counters.rows - seen.rows
                acceptance = (engine.counters.acceptance_sum - seen.acceptance_sum) / max(1, rows)
                seen = Counters(rows=engine.counters.rows)
                seen.acceptance_sum = engine.counters.acceptance_sum
                validation = engine.validation()
                record = FitInfo(
                    step=step,
                    epoch=passes_before + (step - first_step + 1) / steps_per_pass,
                    seconds=work,
                    evaluations=engine.counters.evaluations,
                    log_likelihood=engine.log_likelihood(),
                    validation=math.nan if validation is None else validation,
                    acceptance=acceptance,
                    live_components=engine.live_components(),
                    estimator=snapshot,
                )
                columns = {n: getattr(record, n) for n in record.__dict__ if n != "estimator"}
                trace.add(**columns)
                speed = engine.counters.rows / max(work, 1e-9)
                progress.report(record, speed)
                watched = record.log_likelihood
                if validation is not None:
                    watched = validation
                    if best < watched < math.inf:
                        best = watched
                        remember()
                elif math.isfinite(watched):
                    remember()

                if guard.interrupted:
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
                if plateau is not None and plateau.reached(watched) and engine.may_end(step):
                    outcome = Outcome.CONVERGED
                    break
                if limits.max_time is not None and work >= limits.max_time:
                    outcome = Outcome.MAX_TIME
                    break
        except KeyboardInterrupt:
            outcome = Outcome.INTERRUPTED
        finally:
            progress.close()
    # Ctrl-C during the last evaluation or callback must not be lost: other fits may follow.
    if guard.interrupted:
        outcome = Outcome.INTERRUPTED
    return FitResult(outcome, step, work, trace)

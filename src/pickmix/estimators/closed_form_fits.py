"""Fits of one estimator: several starts, the best of them, and then passes over all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pickmix.closed_form.engine import ClosedFormEngine
from pickmix.closed_form.starts import Start, Starter
from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows
from pickmix.estimators.checkpointing import FitSaver, Progressed
from pickmix.estimators.closed_form_fit import Before, Fitted, finish_on_all, fit_once
from pickmix.estimators.large import LargeTable
from pickmix.estimators.plan import Plan
from pickmix.fitting import loop
from pickmix.fitting.checkpoint import Checkpoints
from pickmix.fitting.stopping import Outcome
from pickmix.sweep.contract import Backend

_SAMPLE_SHARE = 0.5  # Of `max_time` for a sample, if passes over all rows follow.
# Outcomes after which there is a mixture to continue with.
_GOES_ON = (Outcome.CONVERGED, Outcome.MAX_ITER, Outcome.MAX_STEPS, Outcome.MAX_TIME)


@dataclass
class Fits:
    """All that the fits of one call need."""

    plan: Plan
    source: ArrayRows  # Rows in memory.
    seeds: Sequence[int]  # One per start.
    backend: Backend
    table: LargeTable | None  # The table that `source` is a sample of.
    choose_start: Callable[[Starter, np.random.RandomState], Start]
    before: Before
    max_time: float | None  # Seconds of work for everything.
    #: As in `fit_once`.
    verbose: int
    callbacks: list[Callable[[loop.FitInfo], Any]]
    make_estimator: Callable[[MixtureState], Any]
    _was_cut: bool = field(default=False, init=False)

    def run(
        self,
        draws: np.random.RandomState,
        checkpoints: Checkpoints | None,
        classes: tuple[type, ...],
    ) -> tuple[Fitted, Outcome]:
        """Fit, or resume; return result and outcome. `draws` are scikit-learn's, one per start."""
        progressed = Progressed()
        saver: FitSaver | None = None
        if checkpoints is not None:
            saver = FitSaver(checkpoints, self._here(), progressed, draws)
            progressed = saver.resume(classes) or progressed
        # `max_time` is meant for this call.
        work_before = progressed.work
        if progressed.stage is not None:
            work_before += progressed.stage.moment.work
        if not progressed.passing:
            outcome = self._fit_starts(progressed, draws, saver, work_before)
            if outcome is not None or self.table is None:
                assert progressed.best is not None
                return progressed.best, outcome or progressed.best.outcome
            if self._was_cut:
                # The next call continues with the sample, as if there had been no limit.
                saver = None
        return self._finish(progressed, saver, work_before)

    def _here(self) -> dict[str, Any]:
        """Objects of this process, which no checkpoint holds."""
        plan = self.plan
        return {
            "source": self.source,
            "data": self.source.data,
            "weights": self.source.weights,
            "backend": self.backend,
            "operations": self.backend.operations,
            "threads": self.backend.threads,
            "family": plan.family,
            "step size": plan.step_size,
            "annealing": plan.annealing,
            "shards": None if self.table is None else self.table.shards,
        }

    def _time_left(self, spent: float, share: float = 1.0) -> float | None:
        return None if self.max_time is None else max(1e-9, share * self.max_time - max(0.0, spent))

    def _fit_starts(
        self,
        progressed: Progressed,
        draws: np.random.RandomState,
        saver: FitSaver | None,
        work_before: float,
    ) -> Outcome | None:
        """Fit from the remaining starts; return an outcome if it ends everything."""
        share = 1.0 if self.table is None else _SAMPLE_SHARE
        stage = progressed.stage
        try:
            for number in range(progressed.start, len(self.seeds)):
                progressed.start, progressed.stage = number, None
                fitted, engine = fit_once(
                    self.plan.within(self._time_left(progressed.work - work_before, share)),
                    self.source,
                    self.seeds[number],
                    self.backend,
                    lambda starter: self.choose_start(starter, draws),
                    before=self.before,
                    verbose=self.verbose,
                    callbacks=self.callbacks,
                    make_estimator=self.make_estimator,
                    saver=saver,
                    resumed=stage,
                )
                stage = None
                self._compare(progressed, number, fitted, engine)
                if fitted.outcome == Outcome.INTERRUPTED:
                    # An interrupted fit is one, whichever of its starts was the best so far.
                    return Outcome.INTERRUPTED
                if fitted.outcome == Outcome.MAX_TIME:
                    self._was_cut = True
                    break
        except KeyboardInterrupt:
            # Between two starts: what the first ones found is there.
            if progressed.best is None:
                raise
            return Outcome.INTERRUPTED
        assert progressed.best is not None
        ended = progressed.best.outcome
        return None if self.table is not None and ended in _GOES_ON else ended

    def _compare(
        self, progressed: Progressed, number: int, fitted: Fitted, engine: ClosedFormEngine
    ) -> None:
        progressed.work += fitted.seconds
        best = progressed.best
        better = best is None or not np.isfinite(best.lower_bound)
        if better or (best is not None and fitted.lower_bound > best.lower_bound):
            progressed.best, progressed.best_start = fitted, number
            progressed.best_engine = engine if self.table is not None else None

    def _finish(
        self, progressed: Progressed, saver: FitSaver | None, work_before: float
    ) -> tuple[Fitted, Outcome]:
        best, engine = progressed.best, progressed.best_engine
        assert best is not None
        assert engine is not None or progressed.stage is not None
        assert self.table is not None
        stage, progressed.stage = progressed.stage, None
        progressed.passing, progressed.best_engine = True, None
        finished = finish_on_all(
            self.plan.within(self._time_left(progressed.work - work_before)),
            best,
            engine,
            self.table.shards,
            self.table.mean_weight,
            self.seeds[progressed.best_start],
            verbose=self.verbose,
            callbacks=self.callbacks,
            make_estimator=self.make_estimator,
            saver=saver,
            resumed=stage,
        )
        return finished, finished.outcome

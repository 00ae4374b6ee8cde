"""A fit in closed form as one function: starts, steps, the best start, passes over all rows."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pickmix.closed_form.algorithm import Engine
from pickmix.closed_form.chunks import Chunks
from pickmix.closed_form.passes import PassEngine
from pickmix.closed_form.starts import GivenStart, WarmStart, choose_start
from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows
from pickmix.families.base import Family
from pickmix.fitting import loop
from pickmix.fitting.checkpoint import Checkpoints
from pickmix.fitting.loop import FitInfo, LoopState
from pickmix.fitting.progress import PassProgress, Progress
from pickmix.fitting.settings import FitSettings
from pickmix.fitting.stopping import Limits, Outcome, Plateau
from pickmix.sweep.contract import Backend

_SAMPLE_SHARE = 0.5  # Of `max_time` for a sample, if passes over all rows follow.
# Outcomes after which there is a mixture to continue with.
_CONTINUES_AFTER = (Outcome.CONVERGED, Outcome.MAX_ITER, Outcome.MAX_STEPS, Outcome.MAX_TIME)


@dataclass
class FitResult:
    """The result of a fit."""

    weights: np.ndarray
    parameters: dict[str, np.ndarray]
    effective_counts: np.ndarray
    background: int | None  # The component that is a background.
    chain: np.ndarray  # (N,) Components of the chains of all rows.
    trace: np.ndarray
    outcome: Outcome
    n_steps: int  # Steps made, including those of earlier fits.
    n_passes: int  # Passes made in this fit, the last one perhaps in part.
    passes: float  # Passes made, including those of earlier fits.
    evaluations: int
    start_evaluations: int
    #: Time of the start, and of the work after it.
    start_seconds: float
    seconds: float

    @property
    def lower_bound(self) -> float:
        """Last log-likelihood per row; minus infinity if no step was made."""
        values = self.trace["log_likelihood"]
        return float(values[-1]) if values.size else -math.inf

    def content(self) -> dict[str, Any]:
        return vars(self) | {"outcome": str(self.outcome)}

    @classmethod
    def of_content(cls, content: dict[str, Any]) -> FitResult:
        return cls(**content | {"outcome": Outcome(content["outcome"])})


@dataclass
class _Progress:
    """How far the fits of one call have come: what a checkpoint holds."""

    start: int = 0  # Number of the start that is under way.
    best: FitResult | None = None  # Of the starts before it.
    best_start: int = 0
    best_state: dict[str, Any] | None = None  # Its mixture, if passes over all rows follow.
    work: float = 0.0  # Seconds that these took.
    passing: bool = False  # Whether it has come to passes over all rows.
    #: The fit under way: its engine, its loop, and what its start took.
    engine: dict[str, Any] | None = None
    loop: dict[str, Any] | None = None
    start_evaluations: int = 0
    start_seconds: float = 0.0
    draws: dict[str, Any] = field(default_factory=dict)  # State of the generator of starts.

    def content(self) -> dict[str, Any]:
        best = None if self.best is None else self.best.content()
        return vars(self) | {"best": best}

    @classmethod
    def of_content(cls, content: dict[str, Any]) -> _Progress:
        best = content["best"]
        return cls(**content | {"best": None if best is None else FitResult.of_content(best)})


@dataclass(frozen=True)
class AllRows:
    """All rows of a table, of which a fit has a sample in memory."""

    chunks: Chunks
    mean_weight: float


def fit_mixture(
    source: ArrayRows,
    family: Family,
    settings: FitSettings,
    backend: Backend,
    seeds: Sequence[int],
    *,
    start: GivenStart | WarmStart | None = None,
    draws: np.random.RandomState | None = None,
    all_rows: AllRows | None = None,
    callbacks: Iterable[Callable[[FitInfo], Any]] = (),
    snapshot: Callable[[MixtureState], Any] = lambda state: None,
    checkpoints: Checkpoints | None = None,
) -> tuple[FitResult, Outcome]:
    """Fit a mixture to rows in memory from one start per seed, and keep the best.

    With `all_rows`, of which `source` is a sample, passes over them follow. `draws` makes
    scikit-learn's draws for starts that are named after it. `snapshot(state)` gives callbacks an
    estimator with the present parameters. Returns the result and how everything ended.
    """
    fit = _Fit(
        source,
        family,
        settings,
        backend,
        seeds,
        start or GivenStart(),
        draws or np.random.RandomState(0),
        all_rows,
        list(callbacks),
        snapshot,
        checkpoints,
    )
    return fit.run()


@dataclass
class _Fit:
    """One call of `fit_mixture`."""

    source: ArrayRows
    family: Family
    settings: FitSettings
    backend: Backend
    seeds: Sequence[int]
    start: GivenStart | WarmStart
    draws: np.random.RandomState
    all_rows: AllRows | None
    callbacks: list[Callable[[FitInfo], Any]]
    snapshot: Callable[[MixtureState], Any]
    checkpoints: Checkpoints | None
    progress: _Progress = field(default_factory=_Progress)
    was_cut: bool = False  # Whether `max_time` ended a start.

    def run(self) -> tuple[FitResult, Outcome]:
        if self.checkpoints is not None:
            self._resume(self.checkpoints)
        progress = self.progress
        # `max_time` is meant for this call.
        work_before = progress.work
        if progress.loop is not None:
            work_before += progress.loop["work"]
        if not progress.passing:
            outcome = self._fit_starts(work_before)
            assert progress.best is not None
            if outcome is not None or self.all_rows is None:
                return progress.best, outcome or progress.best.outcome
            if self.was_cut:
                # The next call continues with the sample, as if there had been no limit.
                self.checkpoints = None
        result = self._pass_over_all_rows(work_before)
        return result, result.outcome

    def _resume(self, checkpoints: Checkpoints) -> None:
        content = checkpoints.read()
        if content is None:
            return
        with checkpoints.about_damage():
            self.progress = _Progress.of_content(content)
            self.draws.set_state(self.progress.draws)
            if self.progress.loop is not None:
                checkpoints.say_resumed(LoopState.of_content(self.progress.loop))

    def _time_left(self, work_before: float, share: float = 1.0) -> float | None:
        if self.settings.max_time is None:
            return None
        spent = self.progress.work - work_before
        return max(1e-9, share * self.settings.max_time - max(0.0, spent))

    def _saver(self, engine: Engine | PassEngine) -> Callable[[LoopState, bool], None] | None:
        """Return how the loop saves the fit under way, if it does."""
        checkpoints, progress = self.checkpoints, self.progress
        if checkpoints is None:
            return None

        def save(state: LoopState, must: bool) -> None:
            if must or checkpoints.due():
                progress.engine, progress.loop = engine.content(), state.content()
                progress.draws = self.draws.get_state(legacy=False)
                checkpoints.write(progress.content())
                progress.engine = progress.loop = None

        return save

    def _fit_starts(self, work_before: float) -> Outcome | None:
        """Fit from the remaining starts; return an outcome if it ends everything."""
        progress = self.progress
        share = 1.0 if self.all_rows is None else _SAMPLE_SHARE
        try:
            for number in range(progress.start, len(self.seeds)):
                progress.start = number
                max_time = self._time_left(work_before, share)
                result, engine = self._fit_once(self.seeds[number], max_time)
                self._compare(number, result, engine)
                if result.outcome == Outcome.INTERRUPTED:
                    # An interrupted fit is one, whichever of its starts was the best so far.
                    return Outcome.INTERRUPTED
                if result.outcome == Outcome.MAX_TIME:
                    self.was_cut = True
                    break
        except KeyboardInterrupt:
            # Between two starts: what the first ones found is there.
            if progress.best is None:
                raise
            return Outcome.INTERRUPTED
        assert progress.best is not None
        ended = progress.best.outcome
        return None if self.all_rows is not None and ended in _CONTINUES_AFTER else ended

    def _compare(self, number: int, result: FitResult, engine: Engine) -> None:
        progress, best = self.progress, self.progress.best
        progress.work += result.seconds
        replaces = best is None or not np.isfinite(best.lower_bound)
        if replaces or (best is not None and result.lower_bound > best.lower_bound):
            progress.best, progress.best_start = result, number
            if self.all_rows is not None:
                progress.best_state = engine.state.content()

    def _fit_once(self, seed: int, max_time: float | None) -> tuple[FitResult, Engine]:
        """Start, and make steps until something ends the fit."""
        settings, progress = self.settings, self.progress
        warm = self.start if isinstance(self.start, WarmStart) else None
        steps_before, passes_before = (0, 0.0) if warm is None else (warm.n_steps, warm.passes)
        engine, resumed = self._begin(seed, steps_before + 1)
        done = steps_before if resumed is None else resumed.step
        ended = resumed is not None and resumed.outcome is not None
        limits = replace(settings.limits, max_time=max_time)
        result = loop.run(
            engine,
            limits=limits,
            steps_per_pass=settings.n_batches,
            passes_before=passes_before,
            evaluate_every=settings.evaluate_every,
            plateau=settings.plateau(-math.inf if warm is None else warm.lower_bound),
            progress=Progress(
                limits.last_step, 0 if ended else int(settings.verbose), done - steps_before
            ),
            callbacks=self.callbacks,
            snapshot=lambda: self.snapshot(engine.state),
            first_step=steps_before + 1,
            save=self._saver(engine),
            resumed=resumed,
        )
        n_new_steps = result.n_steps - steps_before
        fitted = FitResult(
            **self._mixture(engine.state),
            chain=engine.chain,
            trace=result.trace.table(),
            outcome=result.outcome,
            n_steps=result.n_steps,
            n_passes=-(-n_new_steps // settings.n_batches),
            passes=passes_before + n_new_steps / settings.n_batches,
            evaluations=engine.counters.evaluations,
            start_evaluations=progress.start_evaluations,
            start_seconds=progress.start_seconds,
            seconds=result.seconds,
        )
        return fitted, engine

    def _begin(self, seed: int, first_step: int) -> tuple[Engine, LoopState | None]:
        """Make the engine of a start, or resume that of a checkpoint."""
        settings, family, progress = self.settings, self.family, self.progress
        if progress.engine is not None and progress.loop is not None:
            assert self.checkpoints is not None
            with self.checkpoints.about_damage():
                content = progress.engine
                state = self._state_of(content["state"])
                chain = np.zeros(settings.n_rows, dtype=np.int32)
                engine = Engine(state, self.source, chain, settings, seed, first_step)
                engine.restore(content)
                resumed = LoopState.of_content(progress.loop)
            progress.engine = progress.loop = None
            return engine, resumed
        started = time.perf_counter()
        start = choose_start(
            family, self.source, settings, seed, self.backend, self.start, self.draws
        )
        prior = family.make_prior(start.moments, settings.shrinkage, float(settings.n_rows))
        if settings.background:
            prior.allow_background(self.source.extent())
        if isinstance(self.start, WarmStart):
            if self.start.background is not None and family.has_background(prior):
                prior.background = self.start.background
            # Components begin as they were. Shrinking them once more would blur the narrow ones.
            prior.resume()
        state = MixtureState(family, start.moments, self.backend, prior, settings.weight_floor)
        state.require_sound()
        progress.start_seconds = time.perf_counter() - started
        progress.start_evaluations = start.evaluations
        return Engine(state, self.source, start.chain, settings, seed, first_step), None

    def _state_of(self, content: dict[str, Any]) -> MixtureState:
        return MixtureState.of_content(self.family, self.backend, self.settings.shrinkage, content)

    def _mixture(self, state: MixtureState) -> dict[str, Any]:
        background = state.prior.background
        return {
            "weights": state.weights,
            "parameters": self.family.parameters(state.model, self.source.center),
            "effective_counts": state.effective_counts(),
            "background": background if background >= 0 else None,
        }

    def _pass_over_all_rows(self, work_before: float) -> FitResult:
        """Continue the best mixture of the sample with passes over all rows."""
        settings, progress, all_rows = self.settings, self.progress, self.all_rows
        best = progress.best
        assert best is not None
        assert all_rows is not None
        content = progress.best_state if progress.engine is None else progress.engine["state"]
        assert content is not None
        progress.passing, progress.best_state = True, None
        engine = PassEngine(
            self._state_of(content),
            self.source,
            best.chain,
            all_rows.chunks,
            all_rows.mean_weight,
            settings,
            self.seeds[progress.best_start],
        )
        engine.counters.evaluations = best.evaluations
        resumed: LoopState | None = None
        if progress.engine is not None and progress.loop is not None:
            assert self.checkpoints is not None
            with self.checkpoints.about_damage():
                engine.restore(progress.engine)
                resumed = LoopState.of_content(progress.loop)
            progress.engine = progress.loop = None
        n_runs = engine.steps_per_pass
        ended = resumed is not None and resumed.outcome is not None
        max_passes = int(settings.max_iter)
        max_time = self._time_left(work_before)
        result = loop.run(
            engine,
            limits=Limits(max_passes * n_runs, Outcome.MAX_ITER, max_time),
            steps_per_pass=n_runs,
            passes_before=best.passes,
            evaluate_every=n_runs,
            plateau=Plateau(settings.least_rise) if settings.least_rise > 0.0 else None,
            progress=PassProgress(
                engine.n_rows, 0 if ended else int(settings.verbose), engine.counters.rows
            ),
            callbacks=self.callbacks,
            snapshot=lambda: self.snapshot(engine.state),
            first_step=best.n_steps + 1,
            save=self._saver(engine),
            resumed=resumed,
        )
        trace = result.trace.table()
        trace["seconds"] += best.seconds
        n_runs_made = result.n_steps - best.n_steps
        return dataclasses.replace(
            best,
            **self._mixture(engine.state),
            # That of a sample is of no use to another fit.
            chain=np.empty(0, dtype=np.int32),
            trace=np.concatenate([best.trace, trace]),
            outcome=result.outcome,
            n_steps=result.n_steps,
            n_passes=best.n_passes + -(-n_runs_made // n_runs),
            passes=best.passes + n_runs_made / n_runs,
            evaluations=engine.counters.evaluations,
            seconds=best.seconds + result.seconds,
        )

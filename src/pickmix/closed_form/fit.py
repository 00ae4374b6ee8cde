"""Fits in closed form: starts, steps, the best start, passes over all rows, and streams."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pickmix.closed_form.algorithm import Engine, PartitionSelection, step
from pickmix.closed_form.chains import Chains
from pickmix.closed_form.chunks import Chunks
from pickmix.closed_form.passes import PassEngine
from pickmix.closed_form.relocation import Relocation
from pickmix.closed_form.search import Routes, draw_routes, search
from pickmix.closed_form.starts import GivenStart, Start, WarmStart, choose_start
from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows, Batches
from pickmix.families.base import Family
from pickmix.fitting import loop
from pickmix.fitting.checkpoint import Checkpoints
from pickmix.fitting.loop import (
    FitInfo,
    Limits,
    LoopState,
    Outcome,
    PassProgress,
    Plateau,
    Progress,
)
from pickmix.fitting.settings import FitSettings
from pickmix.kernels import choose
from pickmix.selection.partitions import RandomPartition
from pickmix.selection.randomness import StepRandomness

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
    seeds: Sequence[int],
    *,
    start: GivenStart | WarmStart | Start | None = None,
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
    draws = draws or np.random.RandomState(0)
    callbacks = list(callbacks)
    progress = _Progress()
    if checkpoints is not None:
        progress = _resumed(checkpoints, draws) or progress
    # `max_time` is meant for this call.
    work_before = progress.work + (0.0 if progress.loop is None else progress.loop["work"])
    fit = _Fit(
        source,
        family,
        settings,
        start or GivenStart(),
        draws,
        callbacks,
        snapshot,
        checkpoints,
        progress,
        work_before,
    )
    try:
        for number in range(progress.start, 0 if progress.passing else len(seeds)):
            progress.start = number
            result = fit.fit_once(seeds[number], 1.0 if all_rows is None else _SAMPLE_SHARE)
            if result.outcome == Outcome.INTERRUPTED:
                # An interrupted fit is one, whichever of its starts was the best so far.
                assert progress.best is not None
                return progress.best, Outcome.INTERRUPTED
            if result.outcome == Outcome.MAX_TIME:
                # The next call continues with the sample, as if there had been no limit.
                fit.checkpoints = None if all_rows is not None else checkpoints
                break
    except KeyboardInterrupt:
        # Between two starts: what the first ones found is there.
        if progress.best is None:
            raise
        return progress.best, Outcome.INTERRUPTED
    best = progress.best
    assert best is not None
    if all_rows is None or (not progress.passing and best.outcome not in _CONTINUES_AFTER):
        return best, best.outcome
    result = fit.pass_over_all_rows(all_rows, seeds[progress.best_start])
    return result, result.outcome


def _resumed(checkpoints: Checkpoints, draws: np.random.RandomState) -> _Progress | None:
    """The progress of the newest checkpoint; `draws` continue from there."""
    content = checkpoints.read()
    if content is None:
        return None
    with checkpoints.about_damage():
        progress = _Progress.of_content(content)
        draws.set_state(progress.draws)
        if progress.loop is not None:
            checkpoints.say_resumed(LoopState.of_content(progress.loop))
    return progress


@dataclass
class _Fit:
    """What the fits of one call share; see `fit_mixture`."""

    source: ArrayRows
    family: Family
    settings: FitSettings
    start: GivenStart | WarmStart | Start
    draws: np.random.RandomState
    callbacks: list[Callable[[FitInfo], Any]]
    snapshot: Callable[[MixtureState], Any]
    checkpoints: Checkpoints | None
    progress: _Progress
    work_before: float  # Seconds of work before this call.

    def _time_left(self, share: float = 1.0) -> float | None:
        if self.settings.max_time is None:
            return None
        spent = self.progress.work - self.work_before
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

    def fit_once(self, seed: int, time_share: float) -> FitResult:
        """Start, and make steps until something ends the fit; note the best mixture so far."""
        settings, progress = self.settings, self.progress
        warm = self.start if isinstance(self.start, WarmStart) else None
        steps_before, passes_before = (0, 0.0) if warm is None else (warm.n_steps, warm.passes)
        engine, resumed = self._begin(seed, steps_before + 1)
        done = steps_before if resumed is None else resumed.step
        ended = resumed is not None and resumed.outcome is not None
        limits = replace(settings.limits, max_time=self._time_left(time_share))
        result = loop.run(
            engine,
            limits=limits,
            steps_per_pass=settings.n_batches,
            passes_before=passes_before,
            evaluate_every=settings.evaluate_every,
            plateau=settings.plateau(-math.inf if warm is None else warm.lower_bound),
            progress=Progress(
                0 if ended else int(settings.verbose), done - steps_before, total=limits.last_step
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
            trace=result.trace,
            outcome=result.outcome,
            n_steps=result.n_steps,
            n_passes=-(-n_new_steps // settings.n_batches),
            passes=passes_before + n_new_steps / settings.n_batches,
            evaluations=engine.counters.evaluations,
            start_evaluations=progress.start_evaluations,
            start_seconds=progress.start_seconds,
            seconds=result.seconds,
        )
        best = progress.best
        progress.work += fitted.seconds
        replaces = best is None or not np.isfinite(best.lower_bound)
        if replaces or (best is not None and fitted.lower_bound > best.lower_bound):
            progress.best, progress.best_start = fitted, progress.start
            # Passes over all rows may follow.
            progress.best_state = None if time_share == 1.0 else engine.state.content()
        return fitted

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
        backend = choose(settings.compiled)
        given = self.start
        if isinstance(given, Start) and progress.start > 0:
            # Further starts are others.
            given = GivenStart()
        start = choose_start(family, self.source, settings, seed, backend, given, self.draws)
        prior = family.make_prior(start.moments, settings.shrinkage, float(settings.n_rows))
        if settings.background:
            prior.allow_background(self.source.extent())
        background = given.background if isinstance(given, WarmStart | Start) else None
        if background is not None and family.has_background(prior):
            prior.background = background
        if isinstance(given, WarmStart):
            # Components begin as they were. Shrinking them once more would blur the narrow ones.
            prior.resume()
        state = MixtureState(family, start.moments, backend, prior, settings.weight_floor)
        state.require_sound()
        progress.start_seconds = time.perf_counter() - started
        progress.work += progress.start_seconds
        progress.start_evaluations = start.evaluations
        return Engine(state, self.source, start.chain, settings, seed, first_step), None

    def _state_of(self, content: dict[str, Any]) -> MixtureState:
        backend = choose(self.settings.compiled)
        return MixtureState.of_content(self.family, backend, self.settings.shrinkage, content)

    def _mixture(self, state: MixtureState) -> dict[str, Any]:
        background = state.prior.background
        return {
            "weights": state.weights,
            "parameters": self.family.parameters(state.model, self.source.center),
            "effective_counts": state.effective_counts(),
            "background": background if background >= 0 else None,
        }

    def pass_over_all_rows(self, all_rows: AllRows, seed: int) -> FitResult:
        """Continue the best mixture of the sample with passes over all rows."""
        settings, progress = self.settings, self.progress
        best = progress.best
        assert best is not None
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
            seed,
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
        max_time = self._time_left()
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
        trace = result.trace
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


_PROBES = 4  # Cells searched by new rows: fewer than in a fit, which searches once.
_ROWS_PER_COMPONENT = 100  # In which a step may replace all statistics.
_POWER = 0.6
_RELOCATE_EVERY = 4  # Batches between rounds of relocation.
_RELOCATION_ROWS = 40  # Rows per component that such a batch must have.
# Times the usual margin that a move must gain. Halves are fitted to the batch that judges them,
# wholes are not; and moves by chance would never end in a stream, each one undoing what was
# learnt from many batches.
_CAUTION = 20.0


def automatic_gamma(n_rows: int, n_seen: float, n_components: int) -> float:
    """Step size (1 + u)^-0.6 of a batch, u rows seen in units that suffice for all components.

    A batch that is only a part of such a unit gets that part of it.
    """
    unit = max(n_rows, _ROWS_PER_COMPONENT * n_components)
    return n_rows / unit * float((1.0 + n_seen / unit) ** -_POWER)


class OnlineMixture:
    """A mixture that follows a stream of batches, updated in place, about `center` (D,)."""

    def __init__(
        self,
        state: MixtureState,
        settings: RandomPartition,
        center: np.ndarray,
        seed: int,
        n_seen: float,
        n_batches: int,
    ) -> None:
        self.state = state
        self.settings = settings
        self.center = center
        self.seed = seed
        self.n_seen = n_seen
        self.n_batches = n_batches
        self.evaluations = 0
        self._routes: Routes | None = None
        self._rows_to_go = 0
        self._selection: PartitionSelection | None = None

    def learn(self, source: ArrayRows, gamma: float | None, relocates: bool) -> tuple[float, int]:
        """Learn from one batch; return a bound of its log-likelihood and the updates refused.

        The bound is the mean log-density per row of the best blocks that the rows met, under the
        parameters before the update.
        """
        state = self.state
        self.n_batches += 1
        random = StepRandomness(self.seed, self.n_batches)
        if gamma is None:
            gamma = automatic_gamma(source.n_rows, self.n_seen, state.n_components)
        self.n_seen += source.n_rows
        if self._routes is None or self._rows_to_go <= 0:
            self._rows_to_go = state.n_components
            self._routes = draw_routes(state, random, n_probes=_PROBES)
        self._rows_to_go -= source.n_rows
        chain, bounds, evaluations = search(state, source, self._routes)
        weights = source.weights_of(np.arange(source.n_rows))[0]
        bound = float(weights @ bounds / weights.sum()) - state.log_total()
        batches = Batches(source.n_rows, source.n_rows, self.seed)
        chains = Chains(source, chain, batches)
        if self._selection is None:
            self._selection = PartitionSelection(state, chains, self.settings, 1)
        selection = self._selection
        selection.use(chains, self.n_seen)
        counters = selection.counters
        counters.evaluations = counters.refused = 0
        step(state, selection, self.n_batches, gamma, 1.0, random)
        self.evaluations += evaluations + counters.evaluations
        enough = source.n_rows >= _RELOCATION_ROWS * state.n_components
        if relocates and enough and self.n_batches % _RELOCATE_EVERY == 0:
            relocation = Relocation(state, chains, _CAUTION)
            relocation.round(self.n_batches, random)
            self.evaluations += relocation.evaluations
        return bound, counters.refused

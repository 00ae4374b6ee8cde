"""One fit in closed form, from a plan and a start to parameters."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from pickmix.closed_form.chunks import Chunks
from pickmix.closed_form.engine import ClosedFormEngine, RuleEngine
from pickmix.closed_form.local_fleet import LocalFleet
from pickmix.closed_form.partition_engine import PartitionEngine
from pickmix.closed_form.pass_engine import PassEngine
from pickmix.closed_form.starts import Start, Starter
from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows, Batches
from pickmix.estimators.plan import Plan
from pickmix.families.base import Family
from pickmix.fitting import loop
from pickmix.fitting.progress import PassProgress, Progress
from pickmix.fitting.stopping import Limits, Outcome, Plateau
from pickmix.selection.schedules import ConstantStep
from pickmix.sweep.contract import Backend


@dataclass(frozen=True)
class Before:
    """The state of an earlier fit, from which this one continues."""

    n_steps: int = 0
    passes: float = 0.0
    lower_bound: float = -math.inf
    background: int | None = None
    resumes: bool = False  # Whether there was an earlier fit.


@dataclass
class Fitted:
    """The result of one fit."""

    #: The mixture.
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


@dataclass
class Stage:
    """A fit under way: what a checkpoint holds of it."""

    engine: ClosedFormEngine
    moment: loop.Moment
    start_evaluations: int
    start_seconds: float


class Saver(Protocol):
    """Saves stages of a fit."""

    def due(self) -> bool:
        """True if a checkpoint is due."""

    def save(self, stage: Stage) -> None: ...


@dataclass
class _Keeper:
    """Adds the engine to the moments that the loop keeps."""

    saver: Saver
    stage: Stage

    def due(self) -> bool:
        return self.saver.due()

    def keep(self, moment: loop.Moment) -> None:
        self.saver.save(replace(self.stage, moment=moment))


def fit_once(
    plan: Plan,
    source: ArrayRows,
    seed: int,
    backend: Backend,
    choose_start: Callable[[Starter], Start],
    *,
    before: Before,
    verbose: int,
    callbacks: Iterable[Callable[[loop.FitInfo], Any]],
    make_estimator: Callable[[MixtureState], Any],
    saver: Saver | None = None,
    resumed: Stage | None = None,
) -> tuple[Fitted, ClosedFormEngine]:
    """Start, and make steps until something ends the fit; return the result and the engine.

    `make_estimator(state)` gives callbacks an estimator with the present parameters. A fit
    `resumed` from a stage has no start.
    """
    first_step = before.n_steps + 1
    if resumed is None:
        resumed = _begin(plan, source, seed, backend, choose_start, before)
    engine, state = resumed.engine, resumed.engine.state
    moment = resumed.moment if resumed.moment.step >= 0 else None
    result = loop.run(
        engine,
        limits=plan.limits,
        steps_per_pass=plan.n_batches,
        passes_before=before.passes,
        evaluate_every=plan.monitor.evaluate_every,
        plateau=plan.monitor.plateau(before.lower_bound),
        progress=Progress(
            plan.limits.last_step,
            0 if resumed.moment.outcome else verbose,
            max(0, resumed.moment.step - first_step + 1),
        ),
        callbacks=callbacks,
        snapshot=lambda: make_estimator(state),
        first_step=first_step,
        keeper=None if saver is None else _Keeper(saver, resumed),
        resumed=moment,
    )
    n_new_steps = result.n_steps - first_step + 1
    fitted = Fitted(
        weights=state.weights,
        parameters=plan.family.parameters(state.model, source.center),
        effective_counts=state.effective_counts(),
        background=state.prior.background if state.prior.background >= 0 else None,
        chain=engine.chain,
        trace=result.trace.table(),
        outcome=result.outcome,
        n_steps=result.n_steps,
        n_passes=-(-n_new_steps // plan.n_batches),
        passes=before.passes + n_new_steps / plan.n_batches,
        evaluations=engine.counters.evaluations,
        start_evaluations=resumed.start_evaluations,
        start_seconds=resumed.start_seconds,
        seconds=result.seconds,
    )
    return fitted, engine


def _begin(
    plan: Plan,
    source: ArrayRows,
    seed: int,
    backend: Backend,
    choose_start: Callable[[Starter], Start],
    before: Before,
) -> Stage:
    started = time.perf_counter()
    # Starts need complete rows: missing cells are filled from nearest neighbours.
    start = choose_start(Starter(plan.family, source.filled(), plan.n_components, seed, backend))
    prior = plan.family.make_prior(start.moments, plan.shrinkage, float(plan.n_rows))
    if plan.background:
        prior.allow_background(source.extent())
    if before.background is not None and plan.family.has_background(prior):
        prior.background = before.background
    if before.resumes:
        # Components begin as they were. Shrinking them once more would blur the narrow ones.
        prior.resume()
    state = MixtureState(plan.family, start.moments, backend, prior, plan.weight_floor)
    state.require_sound()
    seconds = time.perf_counter() - started
    engine = _make_engine(plan, state, source, start.chain, seed, before.n_steps + 1)
    return Stage(engine, loop.NOT_YET, start.evaluations, seconds)


def finish_on_all(
    plan: Plan,
    fitted: Fitted,
    engine: ClosedFormEngine | None,
    shards: Chunks,
    mean_weight: float,
    seed: int,
    *,
    verbose: int,
    callbacks: Iterable[Callable[[loop.FitInfo], Any]],
    make_estimator: Callable[[MixtureState], Any],
    saver: Saver | None = None,
    resumed: Stage | None = None,
) -> Fitted:
    """Continue a mixture that was fitted to a sample by `engine` with passes over all rows."""
    assert plan.partition is not None
    if resumed is None:
        assert engine is not None
        sample = engine.source
        fresh = PassEngine(
            engine.state,
            sample,
            fitted.chain,
            shards,
            mean_weight,
            plan.partition,
            seed,
            engine.probe,
            engine.log_base,
            plan.max_passes,
        )
        fresh.counters.evaluations = fitted.evaluations
        resumed = Stage(fresh, loop.NOT_YET, fitted.start_evaluations, fitted.start_seconds)
    passing = resumed.engine
    assert isinstance(passing, PassEngine)
    n_legs = passing.steps_per_pass
    state = passing.state
    first_step = fitted.n_steps + 1
    limits = Limits(plan.max_passes * n_legs, Outcome.MAX_ITER, plan.limits.max_time)
    result = loop.run(
        passing,
        limits=limits,
        steps_per_pass=n_legs,
        passes_before=fitted.passes,
        evaluate_every=n_legs,
        plateau=Plateau(plan.monitor.tol) if plan.monitor.tol > 0.0 else None,
        progress=PassProgress(
            passing.n_rows, 0 if resumed.moment.outcome else verbose, passing.counters.rows
        ),
        callbacks=callbacks,
        snapshot=lambda: make_estimator(state),
        first_step=first_step,
        keeper=None if saver is None else _Keeper(saver, resumed),
        resumed=resumed.moment if resumed.moment.step >= 0 else None,
    )
    trace = result.trace.table()
    trace["seconds"] += fitted.seconds
    n_legs_made = result.n_steps - first_step + 1
    return replace(
        fitted,
        weights=state.weights,
        parameters=plan.family.parameters(state.model, passing.source.center),
        effective_counts=state.effective_counts(),
        background=state.prior.background if state.prior.background >= 0 else None,
        # That of a sample is of no use to another fit.
        chain=np.empty(0, dtype=np.int32),
        trace=np.concatenate([fitted.trace, trace]),
        outcome=result.outcome,
        n_steps=result.n_steps,
        n_passes=fitted.n_passes + -(-n_legs_made // n_legs),
        passes=fitted.passes + n_legs_made / n_legs,
        evaluations=passing.counters.evaluations,
        seconds=fitted.seconds + result.seconds,
    )


def _make_engine(
    plan: Plan,
    state: MixtureState,
    source: ArrayRows,
    chain: np.ndarray,
    seed: int,
    first_step: int,
) -> ClosedFormEngine:
    probe = None
    if plan.monitor.n_probe is not None:
        # The same rows for every start, so that their log-likelihoods can be compared.
        generator = np.random.Generator(np.random.Philox(key=0))
        probe = np.sort(generator.choice(plan.n_rows, plan.monitor.n_probe, replace=False))
    log_base = mean_log_base(plan.family, source, probe)
    batches = Batches(plan.n_rows, plan.batch_size, seed)
    if plan.partition is not None:
        return PartitionEngine(
            state,
            source,
            LocalFleet(state.backend, source, chain, batches),
            plan.partition,
            plan.n_samples,
            plan.step_size,
            plan.annealing,
            seed,
            probe,
            log_base,
            first_step=first_step,
            last_step=first_step - 1 + plan.n_steps,
            relocates=plan.relocates,
        )
    rule = plan.make_rule(state.positions())
    rule.start(chain, plan.n_components, state.backend.operations)
    step_size = plan.step_size or ConstantStep(1.0)
    return RuleEngine(
        state,
        source,
        rule,
        chain,
        batches,
        step_size,
        plan.annealing,
        seed,
        probe,
        log_base,
        first_step,
    )


def mean_log_base(family: Family, source: ArrayRows, rows: np.ndarray | None) -> float:
    """Mean of `Family.log_base` over some rows or all."""
    total, weight = 0.0, 0.0
    numbers = np.arange(source.n_rows) if rows is None else rows
    for start in range(0, numbers.shape[0], 65536):
        part = numbers[start : start + 65536]
        values = family.log_base(np.asarray(source.data[part], dtype=np.float64))
        if values is None:
            return 0.0
        weights = source.weights_of(part)[0]
        total += float(weights @ values)
        weight += float(weights.sum())
    return total / weight

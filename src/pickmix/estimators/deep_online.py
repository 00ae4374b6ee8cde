"""One batch of a stream, learnt by a deep mixture. Needs JAX."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pickmix.data.rows import Batches
from pickmix.estimators.deep_engine import check_memory, make_engine
from pickmix.estimators.deep_fit import Task, first_start
from pickmix.estimators.deep_plan import DeepPlan
from pickmix.estimators.deep_results import DeepFit, Parameters, Reached
from pickmix.fitting import loop
from pickmix.fitting.progress import Progress
from pickmix.fitting.stopping import Limits, Outcome
from pickmix.gradient.chains import draw_chain
from pickmix.gradient.engine import Schedules
from pickmix.gradient.network import Network
from pickmix.gradient.start import Start
from pickmix.gradient.stream import StreamEngine, padded_rows

# Passes over each batch. More of them learn small batches by heart, fewer waste rows.
N_PASSES = 10


def learn_batch(
    make_network: Callable[[int | None], Network],
    plan: DeepPlan,
    X: np.ndarray,
    weights: np.ndarray | None,
    seed: int,
    former: Reached | None,
    n_seen: float,
    show: Callable[[Parameters], Any],
) -> DeepFit:
    """Make some passes over a batch.

    All randomness is a function of the stream's seed and of the steps before, so a stream that was
    saved and loaded continues with the same bits.

    Parameters
    ----------
    make_network : callable
        From the number of the root's children to a network; None is the number that was asked for.
    plan : DeepPlan
    X : (N, D) array
    weights : (N,) array or None
    seed : int
        Of the stream.
    former : Reached or None
        Where the batch before has ended; None begins a stream, as a fit begins.
    n_seen : float
        Rows of the stream, these included.
    show : callable
        What callbacks get from the parameters as they stand.
    """
    started = time.perf_counter()
    n_rows = X.shape[0]
    if former is None:
        task = Task(plan, X, weights, None, seed, seed, show)
        network, frame, start = first_start(make_network, task)
        before = Parameters(frame, tuple(map(np.array, start.tables)), np.exp(start.log_weights))
        former = Reached(before, start.chain[:0], 0, 0.0, seed)
        n_drawn = 0
    else:
        network = make_network(former.n_children)
        start = _meet(network, plan, former, X, seed)
        n_drawn = n_rows if plan.step not in ("em", "sgd") else 0
    check_memory(network, plan.dtype)
    frame = former.parameters.frame
    engine = _make_engine(network, plan, start, frame.to_model(X), weights, former, n_seen)
    start_seconds = time.perf_counter() - started
    compile_seconds = engine.compile()
    n_batches = engine.batches.n_batches
    last_step = N_PASSES * n_batches
    result = loop.run(
        engine,
        limits=Limits(last_step, Outcome.MAX_STEPS, plan.limits.max_time),
        steps_per_pass=n_batches,
        passes_before=former.passes,
        evaluate_every=plan.evaluate_every or last_step,
        plateau=None,
        progress=Progress(last_step, plan.verbose),
        callbacks=plan.callbacks,
        snapshot=lambda: show(Parameters(frame, engine.parameters(), np.exp(engine.log_weights()))),
        first_step=former.n_steps + 1,
    )
    n_steps = result.n_steps - former.n_steps
    if result.outcome == Outcome.NON_FINITE:
        # A batch that the model cannot bear leaves it as it was.
        reached = former
    else:
        parameters = Parameters(frame, engine.parameters(), np.exp(engine.log_weights()))
        passes = former.passes + n_steps / n_batches
        # Nothing is kept of the rows.
        nothing = np.zeros((0, network.n_slots), np.int32)
        reached = Reached(
            parameters, nothing, result.n_steps, passes, former.split_seed, engine.moments()
        )
    return DeepFit(
        reached,
        n_passes=-(-n_steps // n_batches),
        trace=result.trace.table(),
        outcome=result.outcome,
        n_evaluations=engine.counters.evaluations + n_drawn * network.n_evaluated_by_all,
        best_validation=math.nan,
        start_validation=math.nan,
        watched_scores=None,
        start_seconds=start_seconds,
        compile_seconds=compile_seconds,
    )


def _meet(network: Network, plan: DeepPlan, former: Reached, X: np.ndarray, seed: int) -> Start:
    """The parameters as they are, with chains of new rows drawn from their posterior."""
    parameters = former.parameters
    with np.errstate(divide="ignore"):
        log_weights = np.log(parameters.weights)
    if plan.step in ("em", "sgd"):
        chain = np.zeros((X.shape[0], network.n_slots), np.int32)
    else:
        chain = draw_chain(
            network,
            parameters.tables,
            log_weights,
            parameters.frame.to_model(X),
            _seed_of(seed, former),
            plan.dtype,
        )
    return Start(parameters.tables, log_weights, chain)


def _make_engine(
    network: Network,
    plan: DeepPlan,
    start: Start,
    rows: np.ndarray,
    weights: np.ndarray | None,
    former: Reached,
    n_seen: float,
) -> StreamEngine:
    """An engine for one batch, with the moments of the stream."""
    n_rows = rows.shape[0]
    batch_size = plan.batch_size or n_rows
    seed = _seed_of(former.split_seed, former)
    batches = Batches(n_rows, min(batch_size, n_rows), seed)
    before = former.n_steps
    # Closed-form weights average over all that was seen, not over a batch alone.
    gamma = plan.step_size(max(batches.n_batches, math.ceil(n_seen / batch_size)))
    rate, annealing = plan.rate, plan.annealing
    schedules = Schedules(
        lambda step: rate(step + before),
        lambda step: gamma(step + before),
        None if annealing is None else lambda step: annealing(step + before),
    )
    engine = make_engine(
        StreamEngine,
        network,
        plan,
        start,
        rows,
        weights,
        None,
        batches,
        schedules,
        seed,
        former.parameters.frame,
    )
    engine.steps_before = before
    engine.fill_up(min(plan.batch_size or padded_rows(n_rows), padded_rows(n_rows)))
    if former.moments is not None:
        engine.set_moments(former.moments)
    return engine


def _seed_of(seed: int, former: Reached) -> int:
    """The seed of a batch: steps of a batch are numbered from 1, so each has a seed of its own."""
    state = np.random.SeedSequence([seed, former.n_steps]).generate_state(1, np.uint64)
    return int(state[0]) >> 2

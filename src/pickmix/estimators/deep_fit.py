"""One fit of a network by gradients: from rows and a plan to fitted parameters. Needs JAX."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pickmix.data.partial_rows import fill
from pickmix.data.rows import Batches
from pickmix.estimators.deep_checkpoint import (
    DeepKeeper,
    DeepSearch,
    DeepStage,
    check_keepable,
    resume,
    resume_search,
)
from pickmix.estimators.deep_engine import check_memory, make_engine, make_schedules
from pickmix.estimators.deep_frame import Frame, find_frame
from pickmix.estimators.deep_gaussians import GaussianFits
from pickmix.estimators.deep_plan import DeepPlan
from pickmix.estimators.deep_results import DeepFit, Parameters, Reached
from pickmix.fitting import loop
from pickmix.fitting.checkpoint import Checkpoints
from pickmix.fitting.progress import Progress
from pickmix.fitting.stopping import Outcome
from pickmix.gradient.chains import draw_chain
from pickmix.gradient.engine import GradientEngine
from pickmix.gradient.gaussian_start import Gaussians, gaussian_start
from pickmix.gradient.network import Network
from pickmix.gradient.remembered import rises
from pickmix.gradient.start import Clusters, Start, choose_start, find_clusters

#: A frame, and a start in it.
Beginning = tuple[Frame, Start]
# With fewer rows than this, none is watched.
_FEWEST_SPLIT = 20


@dataclass(frozen=True)
class Task:
    """Rows of a fit and all that does not depend on the network.

    Attributes
    ----------
    plan : DeepPlan
    X : (N, D) array
        Rows to learn from.
    weights : (N,) array or None
    watched : (V, D) array or None
    seed, split_seed : int
    show : callable
        What callbacks get from the parameters as they stand.
    """

    plan: DeepPlan
    X: np.ndarray
    weights: np.ndarray | None
    watched: np.ndarray | None
    seed: int
    split_seed: int
    show: Callable[[Parameters], Any]

    def gaussian_fits(self, frame: Frame) -> GaussianFits:
        """How Gaussian mixtures to begin with are fitted: with the user's seed, if it is one."""
        plan = self.plan
        seed = self.seed % 2**32 if plan.random_state is None else plan.random_state
        return GaussianFits(frame, plan.gaussian_form, plan.reg_covar, seed)


def fit_network(
    make_network: Callable[[int | None], Network],
    plan: DeepPlan,
    X: np.ndarray,
    weights: np.ndarray | None,
    watched: np.ndarray | None,
    seed: int,
    former: Reached | None,
    show: Callable[[Parameters], Any],
    checkpoints: Checkpoints | None = None,
) -> DeepFit:
    """Fit a network.

    Parameters
    ----------
    make_network : callable
        From the number of the root's children to a network; None is the number that was asked for.
    plan : DeepPlan
    X : (N, D) array
    weights : (N,) array or None
    watched : (V, D) array or None
        Rows to watch; without them, a share of X is.
    seed : int
    former : Reached or None
        A fit with tables of the same shapes, to continue from.
    show : callable
        What callbacks get from the parameters as they stand.
    checkpoints : Checkpoints or None
        Where the fit is saved now and then, and from where it resumes.
    """
    started = time.perf_counter()
    # A fit that continues must not learn from rows that were for validation before.
    split_seed = seed if former is None else former.split_seed
    if watched is None:
        X, weights, watched = _split(X, weights, plan.validation_share, split_seed)
    task = Task(plan, X, weights, watched, seed, split_seed, show)
    if former is not None:
        network = make_network(former.n_children)
        return _fit_one(network, task, lambda: _go_on(network, former, task), former, checkpoints)
    if plan.chooses:
        return _fit_best(make_network, task, checkpoints, started)
    network = make_network(None)
    return _fit_one(network, task, lambda: _begin(network, task), None, checkpoints)


def _fit_best(
    make_network: Callable[[int | None], Network],
    task: Task,
    checkpoints: Checkpoints | None,
    started: float,
) -> DeepFit:
    """Fit from several Gaussian mixtures, and keep the fit that explains watched rows best."""
    search = None if checkpoints is None else resume_search(checkpoints)
    if search is None:
        search = _search(task, started)
        if checkpoints is not None:
            checkpoints.write(search, {})
    frame, candidates, plan = search.frame, search.candidates, task.plan
    rows = frame.to_model(task.X)
    limits = plan.limits
    if limits.max_time is not None:
        limits = replace(limits, max_time=limits.max_time / len(candidates))
    task = replace(task, plan=replace(plan, limits=limits))
    fits: list[DeepFit] = []
    for gaussians in candidates:
        network = make_network(gaussians.n_components)

        def start(network: Network = network, gaussians: Gaussians = gaussians) -> Beginning:
            return frame, gaussian_start(network, gaussians, rows, task.seed, plan.dtype)

        own = None if checkpoints is None else checkpoints.within(str(gaussians.n_components))
        fits.append(_fit_one(network, task, start, None, own))
        if fits[-1].outcome in (Outcome.INTERRUPTED, Outcome.CALLBACK):
            break
    # Another number of components must be better by more than chance.
    best = fits[0]
    for fit in fits[1:]:
        best = fit if _is_better(fit, best) else best
    return replace(
        best,
        n_evaluations=sum(fit.n_evaluations for fit in fits),
        # Trying other numbers of components is part of finding the start.
        start_seconds=search.seconds
        + sum(fit.start_seconds for fit in fits)
        + sum(fit.work_seconds for fit in fits if fit is not best),
        compile_seconds=sum(fit.compile_seconds for fit in fits),
    )


def _is_better(fit: DeepFit, other: DeepFit) -> bool:
    """Whether a fit explains watched rows better, by more than chance; larger ones watch fewer."""
    if fit.watched_scores is None or other.watched_scores is None:
        return False
    n_rows = min(fit.watched_scores.shape[0], other.watched_scores.shape[0])
    return rises(fit.watched_scores[:n_rows], other.watched_scores[:n_rows])


def _search(task: Task, started: float) -> DeepSearch:
    """Gaussian mixtures to begin with, the most promising first."""
    frame = find_frame(task.X, task.plan.frames[0])
    candidates = task.gaussian_fits(frame).choose(task.X, task.weights, task.watched)
    return DeepSearch(frame, candidates, time.perf_counter() - started)


def first_start(
    make_network: Callable[[int | None], Network], task: Task
) -> tuple[Network, Frame, Start]:
    """The network, the frame and the start of a fit of which no rows are watched."""
    if not task.plan.chooses:
        network = make_network(None)
        return network, *_begin(network, task)
    search = _search(task, time.perf_counter())
    gaussians = search.candidates[0]
    network = make_network(gaussians.n_components)
    rows = search.frame.to_model(task.X)
    start = gaussian_start(network, gaussians, rows, task.seed, task.plan.dtype)
    return network, search.frame, start


def _fit_one(
    network: Network,
    task: Task,
    begin: Callable[[], Beginning],
    former: Reached | None,
    checkpoints: Checkpoints | None,
) -> DeepFit:
    """Fit a network from one start, or resume from a checkpoint."""
    plan, seed = task.plan, task.seed
    started = time.perf_counter()
    check_memory(network, plan.dtype)
    stage = None if checkpoints is None else resume(checkpoints)
    if stage is None:
        frame, start = begin()
    else:
        frame, start = stage.frame, stage.start()
    rows = frame.to_model(task.X)
    first_step, passes_before = 1, 0.0
    if former is not None:
        first_step, passes_before = 1 + former.n_steps, former.passes
    n_rows = rows.shape[0]
    batches = Batches(n_rows, min(plan.batch_size or n_rows, n_rows), seed)
    watched_rows = None if task.watched is None else frame.to_model(task.watched)
    engine = make_engine(
        GradientEngine,
        network,
        plan,
        start,
        rows,
        task.weights,
        watched_rows,
        batches,
        make_schedules(plan, batches.n_batches, first_step),
        seed,
        frame,
    )
    if checkpoints is not None and engine.proposal is not None:
        check_keepable(engine.proposal)
    start_seconds = time.perf_counter() - started
    compile_seconds = 0.0 if stage is not None and stage.has_ended else engine.compile()
    if stage is None:
        # On few rows a start may be better than all that follows it.
        first_value = engine.validation()
        engine.remember()
    else:
        engine.take_up(stage.engine)
        first_value, start_seconds = stage.first_value, stage.start_seconds
    keeper = None
    if checkpoints is not None:
        keeper = DeepKeeper(checkpoints, engine, frame, first_value, start_seconds)
    result = loop.run(
        engine,
        limits=plan.limits,
        steps_per_pass=batches.n_batches,
        passes_before=passes_before,
        evaluate_every=plan.records(batches.n_batches),
        plateau=plan.plateau(first_value),
        progress=_progress(plan, stage, first_step),
        callbacks=plan.callbacks,
        snapshot=lambda: task.show(
            Parameters(frame, engine.parameters(), np.exp(engine.log_weights()))
        ),
        remember=engine.remember,
        best_before=-math.inf if first_value is None else first_value,
        first_step=first_step,
        keeper=keeper,
        resumed=None if stage is None else stage.moment,
    )
    trace = result.trace.table()
    n_new_steps = result.n_steps - first_step + 1
    passes = passes_before + n_new_steps / batches.n_batches
    first = math.nan if first_value is None else first_value
    kept = engine.best()
    parameters = Parameters(frame, kept.tables, np.exp(kept.log_weights))
    return DeepFit(
        Reached(parameters, engine.chain(), result.n_steps, passes, task.split_seed),
        n_passes=max(1, -(-n_new_steps // batches.n_batches)),
        trace=trace,
        outcome=result.outcome,
        n_evaluations=engine.counters.evaluations,
        best_validation=math.nan if kept.scores is None else float(kept.scores.mean()),
        start_validation=first,
        watched_scores=kept.scores,
        start_seconds=start_seconds,
        compile_seconds=compile_seconds,
    )


def _begin(network: Network, task: Task) -> Beginning:
    """The frame and the start of a fit whose number of components is given."""
    plan, seed = task.plan, task.seed
    if plan.init_params == "gaussian" or (plan.init_params == "auto" and network.takes_gaussians):
        if not network.takes_gaussians:
            raise ValueError(
                "init_params must be 'auto', 'data' or 'paper' for a component without a method "
                "from_gaussian(params, mean, precision_cholesky), got 'gaussian'."
            )
        frame = find_frame(task.X, plan.frames[0])
        gaussians = task.gaussian_fits(frame).fit(task.X, task.weights, network.n_children)
        return frame, gaussian_start(network, gaussians, frame.to_model(task.X), seed, plan.dtype)
    frame, rows, clusters = _choose_frame(network, plan, task.X, seed)
    return frame, choose_start(network, clusters, rows, seed, plan.dtype)


def _progress(plan: DeepPlan, stage: DeepStage | None, first_step: int) -> Progress:
    """A progress bar that begins where the fit resumes; none if the fit has ended."""
    if stage is None:
        return Progress(plan.limits.last_step, plan.verbose)
    verbose = 0 if stage.has_ended else plan.verbose
    return Progress(plan.limits.last_step, verbose, stage.moment.step - first_step + 1)


def _split(
    X: np.ndarray, weights: np.ndarray | None, share: float, seed: int
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Set a share of the rows apart: rows, their weights, and rows to watch."""
    n_rows = X.shape[0]
    n_watched = round(share * n_rows)
    if n_watched == 0 or n_rows < _FEWEST_SPLIT:
        return X, weights, None
    order = np.random.default_rng([seed, 2]).permutation(n_rows)
    watched, kept = np.sort(order[:n_watched]), np.sort(order[n_watched:])
    return X[kept], None if weights is None else weights[kept], X[watched]


def _choose_frame(
    network: Network, plan: DeepPlan, X: np.ndarray, seed: int
) -> tuple[Frame, np.ndarray, Clusters | None]:
    """The frame, the rows in it, and their clusters if the start needs them.

    Among several frames, take the one in which clusters explain rows that they have not seen best.
    """
    searches = len(plan.frames) > 1 or (plan.init_params != "paper" and network.places)
    choices: list[tuple[float, Frame, np.ndarray, Clusters | None]] = []
    for kind in plan.frames:
        frame = find_frame(X, kind)
        rows = frame.to_model(X)
        if np.isnan(rows).any():
            # Distances need all columns. Only the start sees what is filled in.
            rows = fill(rows)
        clusters, score = None, 0.0
        if searches:
            clusters, score = find_clusters(rows, network.n_children, seed)
        choices.append((score + frame.log_volume(), frame, rows, clusters))
    return max(choices, key=lambda choice: choice[0])[1:]


def _go_on(network: Network, former: Reached, task: Task) -> Beginning:
    """Take the last fit's parameters, and its chains if they belong to as many rows."""
    parameters, chain = former.parameters, former.chain
    with np.errstate(divide="ignore"):
        log_weights = np.log(parameters.weights)
    if chain.shape[0] != task.X.shape[0]:
        rows = parameters.frame.to_model(task.X)
        chain = draw_chain(
            network, parameters.tables, log_weights, rows, task.seed, task.plan.dtype
        )
    return parameters.frame, Start(parameters.tables, log_weights, chain)

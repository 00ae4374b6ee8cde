"""One fit of a network by gradients: from rows and a plan to fitted parameters. Needs JAX."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.data.rows import Batches
from pickmix.estimators.checkpointing import fingerprint_of
from pickmix.estimators.deep_checkpoint import DeepKeeper, DeepStage, check_keepable, resume
from pickmix.estimators.deep_frame import Frame, find_frame
from pickmix.estimators.deep_plan import DeepPlan
from pickmix.fitting import loop
from pickmix.fitting.checkpoint import Checkpoints
from pickmix.fitting.progress import Progress
from pickmix.fitting.stopping import Outcome
from pickmix.gradient.engine import GradientEngine, Schedules
from pickmix.gradient.network import Network
from pickmix.gradient.partitions import Partitions
from pickmix.gradient.proposals import TreeProposal
from pickmix.gradient.start import Clusters, Start, choose_start, find_clusters, random_trees
from pickmix.gradient.state import Options

# Evaluations of components that a measurement of the log-likelihood may cost, and its least rows.
_PROBE_EVALUATIONS = 500_000
_FEWEST_PROBED = 100
# With fewer rows than this, none is watched.
_FEWEST_SPLIT = 20


@dataclass(frozen=True)
class Parameters:
    """A frame, the tables of a network in it and the root's weights (s,)."""

    frame: Frame
    tables: tuple[np.ndarray, ...]
    weights: np.ndarray


@dataclass(frozen=True)
class Reached:
    """Where a fit has come to and another may go on; steps and passes are those of all so far."""

    parameters: Parameters
    chain: np.ndarray
    n_steps: int
    passes: float
    split_seed: int

    def fingerprint(self) -> dict[str, Any]:
        """What tells where one fit has come to from where others have."""
        parameters = self.parameters
        arrays = {"weights": parameters.weights, "chain": self.chain}
        arrays |= {f"table {number}": table for number, table in enumerate(parameters.tables)}
        found: dict[str, Any] = {name: fingerprint_of(array) for name, array in arrays.items()}
        return found | {"n_steps": self.n_steps}


@dataclass(frozen=True)
class DeepFit:
    """What there is to know about a fit."""

    reached: Reached
    n_passes: int
    trace: np.ndarray
    outcome: Outcome
    n_evaluations: int
    best_validation: float
    start_seconds: float
    compile_seconds: float


def fit_network(
    network: Network,
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
    network : Network
    plan : DeepPlan
    X : (N, D) array
    weights : (N,) array or None
    watched : (V, D) array or None
        Rows to watch; without them, a share of X is.
    seed : int
    former : Reached or None
        A fit with tables of the same shapes, to go on from.
    show : callable
        What callbacks get from the parameters as they stand.
    checkpoints : Checkpoints or None
        Where the fit keeps what it has, and from where it goes on.
    """
    started = time.perf_counter()
    check_memory(network, plan.dtype)
    stage = None if checkpoints is None else resume(checkpoints)
    # A fit that goes on must not learn from rows that were watched before.
    split_seed = seed if former is None else former.split_seed
    if watched is None:
        X, weights, watched = _split(X, weights, plan.validation_share, split_seed)
    if stage is not None:
        frame = stage.frame
        rows = frame.to_model(X)
        start = stage.start()
    elif former is None:
        frame, rows, clusters = _choose_frame(network, plan, X, seed)
        start = choose_start(network, clusters, rows, seed, plan.dtype)
    else:
        frame = former.parameters.frame
        rows = frame.to_model(X)
        start = _go_on(network, former, rows.shape[0], seed)
    first_step, passes_before = 1, 0.0
    if former is not None:
        first_step, passes_before = 1 + former.n_steps, former.passes
    n_rows = rows.shape[0]
    batches = Batches(n_rows, min(plan.batch_size or n_rows, n_rows), seed)
    watched_rows = None if watched is None else frame.to_model(watched)
    engine = _make_engine(
        network, plan, start, rows, weights, watched_rows, batches, seed, first_step, frame
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
        evaluate_every=plan.evaluate_every,
        plateau=plan.plateau(),
        progress=_progress(plan, stage, first_step),
        callbacks=plan.callbacks,
        snapshot=lambda: show(Parameters(frame, engine.parameters(), np.exp(engine.log_weights()))),
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
    tables, log_weights = engine.best()
    parameters = Parameters(frame, tables, np.exp(log_weights))
    return DeepFit(
        Reached(parameters, engine.chain(), result.n_steps, passes, split_seed),
        n_passes=max(1, -(-n_new_steps // batches.n_batches)),
        trace=trace,
        outcome=result.outcome,
        n_evaluations=engine.counters.evaluations,
        best_validation=float(np.fmax.reduce(trace["validation"], initial=first)),
        start_seconds=start_seconds,
        compile_seconds=compile_seconds,
    )


def _progress(plan: DeepPlan, stage: DeepStage | None, first_step: int) -> Progress:
    """A bar that begins where the fit goes on; none for one that has ended."""
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
    searches = len(plan.frames) > 1 or (plan.places and network.places)
    choices: list[tuple[float, Frame, np.ndarray, Clusters | None]] = []
    for kind in plan.frames:
        frame = find_frame(X, kind)
        rows = frame.to_model(X)
        clusters, score = None, 0.0
        if searches:
            clusters, score = find_clusters(rows, network.n_children, seed)
        choices.append((score + frame.log_volume(), frame, rows, clusters))
    return max(choices, key=lambda choice: choice[0])[1:]


def _go_on(network: Network, former: Reached, n_rows: int, seed: int) -> Start:
    """Take the last fit's parameters, and its chains if they belong to as many rows."""
    chain = former.chain
    if chain.shape[0] != n_rows:
        chain = random_trees(network, n_rows, seed)
    with np.errstate(divide="ignore"):
        log_weights = np.log(former.parameters.weights)
    return Start(former.parameters.tables, log_weights, chain)


def _make_engine(
    network: Network,
    plan: DeepPlan,
    start: Start,
    rows: np.ndarray,
    weights: np.ndarray | None,
    watched: np.ndarray | None,
    batches: Batches,
    seed: int,
    first_step: int,
    frame: Frame,
) -> GradientEngine:
    n_rows = rows.shape[0]
    proposal = None
    if plan.proposal is not None:
        sizes = (n_rows, network.n_slots, network.n_children, plan.n_samples)
        proposal = TreeProposal(plan.proposal, *sizes, seed, plan.dtype)
    partitions = None
    if plan.partition is not None:
        partitions = Partitions(network, plan.partition, batches, seed)
    probe, watched = _choose_probe(n_rows, watched, network.n_evaluated_by_all)
    return GradientEngine(
        network,
        start,
        _options(plan, proposal),
        rows,
        weights,
        proposal,
        batches,
        _schedules(plan, batches.n_batches, first_step),
        seed,
        probe,
        watched,
        plan.dtype,
        log_volume=frame.log_volume(),
        partitions=partitions,
    )


def _options(plan: DeepPlan, proposal: TreeProposal | None) -> Options:
    propose_again = None
    if proposal is not None and not proposal.proposal.independent and plan.n_samples > 1:
        propose_again = proposal.propose_again
    return Options(
        plan.step,
        plan.n_samples,
        row_adam=plan.row_adam,
        closed_form_weights=plan.closed_form_weights,
        reuse_log_joint=plan.reuse_log_joint,
        gradient_clip=plan.gradient_clip,
        propose_again=propose_again,
    )


def _schedules(plan: DeepPlan, steps_per_pass: int, first_step: int) -> Schedules:
    """Learning rate, gamma and beta. Schedules with an end count the steps of this fit."""
    rate, annealing = plan.rate, plan.annealing
    return Schedules(
        lambda step: rate(step - first_step + 1),
        plan.step_size(steps_per_pass),
        None if annealing is None else lambda step: annealing(step - first_step + 1),
    )


def _choose_probe(
    n_rows: int, watched: np.ndarray | None, evaluations_per_row: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows on which the training log-likelihood is measured, and validation rows to watch.

    As many as can be afforded, the same in every fit.
    """
    affordable = max(_FEWEST_PROBED, _PROBE_EVALUATIONS // evaluations_per_row)
    generator = np.random.Generator(np.random.Philox(key=0))
    probe = np.sort(generator.choice(n_rows, min(n_rows, affordable), replace=False))
    if watched is not None and watched.shape[0] > 2 * affordable:
        watched = watched[generator.choice(watched.shape[0], 2 * affordable, replace=False)]
    return probe, watched


def check_memory(network: Network, dtype: np.dtype) -> None:
    """Refuse a model that cannot fit into memory before it is built."""
    # Parameters, two moments and the best parameters so far.
    needed = 4 * sum(rows * width for rows, width in network.shapes) * dtype.itemsize
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed > there:
            raise MemoryError(
                f"The model needs {needed / 1e9:.3g} GB for its {network.n_parameters:,} "
                f"parameters and their moments; this machine has {there / 1e9:.3g} GB. Take fewer "
                "components, children or layers."
            )

"""One plan: an estimator's strings and "auto"s, resolved once into typed values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from pickmix.closed_form.seeding import WEIGHT_FLOOR
from pickmix.estimators.validation import check_choice, check_integer, resolve_evaluate_every
from pickmix.families.base import Family
from pickmix.fitting.stopping import Limits, Outcome, Plateau
from pickmix.selection.proposals import (
    Proposal,
    TableForgettingProposal,
    TableProposal,
    UniformProposal,
)
from pickmix.selection.randomness import MOST_DRAWS
from pickmix.selection.rules import (
    ExactPosterior,
    MetropolisHastings,
    PosteriorDraws,
    SelectionRule,
    TopComponents,
    TruncatedSearch,
)
from pickmix.selection.schedules import (
    ConstantStep,
    Schedule,
    resolve_annealing,
    resolve_step_size,
)
from pickmix.selection.settings import RandomPartition, SearchSet
from pickmix.sweep.contract import needs_compiled

ALGORITHMS = ("em", "saem", "ssaem", "tsaem", "mcsaem", "mhsaem")
PROPOSALS = ("auto", "partition", "uniform", "optimal", "table", "table-forgetting")
_EXHAUSTIVE = ("em", "saem", "ssaem", "mcsaem", "optimal")  # Rules that evaluate all K.

_ROWS_PER_COMPONENT = 500  # In a step of a partition fit.
_LEAST_ROWS = 200_000  # In a step of a partition fit.
# Steps of a partition fit between evaluations: over so many, a converged log-likelihood rises by
# less than `tol`.
_STEPS_PER_EVALUATION = 5
_PATIENCE = 5  # Passes without a rise of `tol` after which a stochastic fit has converged.
_PROBE_COST = 1.0 / 15.0  # Of evaluating a component on a row, relative to a visit.
_PROBE_SHARE = 0.1  # Of the work that evaluations may take.
_FREE_EVALUATIONS = 200_000  # Evaluations of negligible cost.
_SMALLEST_PROBE, _WISHED_PROBE, _LARGEST_PROBE = 100, 1000, 5000


@dataclass(frozen=True)
class Monitor:
    """When to evaluate, on how many rows (None: by the rule), and the plateau if `patience`."""

    evaluate_every: int | list[int]
    n_probe: int | None
    tol: float
    smoothing: float = 0.0
    patience: int | None = 1

    def plateau(self, reference: float = -math.inf) -> Plateau | None:
        """A plateau for one fit; `reference` is the value that an earlier fit ended at."""
        if self.patience is None:
            return None
        return Plateau(self.tol, self.smoothing, self.patience, reference=reference)


@dataclass(frozen=True)
class Plan:
    """Everything that a fit in closed form does, decided."""

    family: Family
    n_rows: int
    n_components: int
    compiled: bool  # Whether kernels are compiled, or NumPy does it all: a matter of sizes alone.
    algorithm: str  # One of `ALGORITHMS`.
    proposal_name: str  # The resolved `proposal`; the algorithm's name where it has none.
    partition: RandomPartition | None  # Settings of random-partition Gibbs, if used.
    make_rule: Callable[[np.ndarray], SelectionRule]  # The rule of Table 1 otherwise, from means.
    n_samples: int
    batch_size: int
    n_batches: int
    n_steps: int
    step_size: Schedule | None  # None: partition fits replace, then average.
    annealing: Schedule | None
    shrinkage: str  # Of `Family.make_prior`.
    weight_floor: float
    relocates: bool
    background: bool  # Whether a component may become a background of outlying rows.
    spreads_out: bool  # Whether the start spreads components over the rows.
    start_batch_size: int  # Rows per sweep of that start.
    max_passes: int  # Over rows that are not in memory.
    limits: Limits
    monitor: Monitor

    def within(self, max_time: float | None) -> Plan:
        return replace(self, limits=replace(self.limits, max_time=max_time))


def resolve_plan(settings: Any, family: Family, n_rows: int, given: bool) -> Plan:
    """Resolve an estimator's checked parameters; `given` means that the user chose the start."""
    K = int(settings.n_components)
    algorithm = str(settings.algorithm)
    exact = algorithm == "em"
    partition = partition_settings(algorithm, settings.proposal)
    n_samples = resolve_n_samples(settings.n_samples, algorithm, settings.proposal)
    batch_size = resolve_batch_size(settings.batch_size, algorithm, n_rows, K, partition)
    n_batches = max(1, -(-n_rows // batch_size))
    # A step that takes all rows, or enough of them to learn every component from.
    enough = n_batches == 1 or n_rows / n_batches >= 0.2 * _ROWS_PER_COMPONENT * K
    if settings.max_steps is not None:
        limits = Limits(int(settings.max_steps), Outcome.MAX_STEPS, settings.max_time)
    else:
        n_most = int(settings.max_iter) * n_batches
        limits = Limits(n_most, Outcome.MAX_ITER, settings.max_time)
    automatic = isinstance(settings.step_size, str) and settings.step_size == "auto"
    step_size: Schedule | None = ConstantStep(1.0)
    if partition is not None and automatic and enough:
        step_size = None
    elif not exact:
        step_size = resolve_step_size(settings.step_size, n_batches)
    relocates = False
    if partition is not None:
        wished = not given if partition.relocate == "auto" else bool(partition.relocate)
        # Splits by chance outweigh real ones on too few rows.
        relocates = wished and enough
    name = _proposal_name(algorithm, settings.proposal)
    return Plan(
        family=family,
        n_rows=n_rows,
        n_components=K,
        compiled=needs_compiled(family.layout, n_rows, K),
        algorithm=algorithm,
        proposal_name=name,
        partition=partition,
        make_rule=lambda means: make_rule(
            algorithm, settings.proposal, n_samples, bool(settings.reuse_log_joint), means
        ),
        n_samples=n_samples,
        batch_size=batch_size,
        n_batches=n_batches,
        n_steps=limits.last_step,
        step_size=step_size,
        annealing=resolve_annealing(settings.annealing, limits.last_step),
        shrinkage="none" if exact else "few" if partition is None else "pooled",
        # A component that batches miss keeps a weight at which it can still be selected.
        weight_floor=1e-17 if exact else WEIGHT_FLOOR / K,
        relocates=relocates,
        background=bool(getattr(settings, "background", False)),
        spreads_out=partition is not None and settings.init_params == "auto",
        start_batch_size=resolve_batch_size("auto", algorithm, n_rows, K, partition),
        max_passes=int(settings.max_iter),
        limits=limits,
        monitor=_make_monitor(
            settings, name, n_rows, K, n_batches, n_samples, limits, partition, step_size is None
        ),
    )


def resolve_proposal(proposal: Any) -> str | Proposal | RandomPartition:
    if isinstance(proposal, Proposal | RandomPartition):
        return proposal
    if not isinstance(proposal, str):
        names = ", ".join(map(repr, PROPOSALS))
        raise ValueError(
            f"proposal must be one of {names}, a RandomPartition or a Proposal, got {proposal!r}."
        )
    name = check_choice("proposal", proposal, PROPOSALS)
    # Blocks are never worse than draws: up to a block of components the posterior is exact.
    return "partition" if name == "auto" else name


def partition_settings(algorithm: str, proposal: Any) -> RandomPartition | None:
    """Settings of random-partition Gibbs, if that is what a fit does."""
    if algorithm != "mhsaem":
        return None
    resolved = resolve_proposal(proposal)
    if resolved == "partition":
        return RandomPartition()
    return resolved if isinstance(resolved, RandomPartition) else None


def _proposal_name(algorithm: str, proposal: Any) -> str:
    if algorithm != "mhsaem":
        return algorithm
    resolved = resolve_proposal(proposal)
    if isinstance(resolved, RandomPartition):
        return "partition"
    return resolved if isinstance(resolved, str) else type(resolved).__name__


def resolve_n_samples(n_samples: Any, algorithm: str, proposal: Any) -> int:
    """M: "auto" is one partition per visit, three components kept by TSAEM, else two."""
    if isinstance(n_samples, str) and n_samples == "auto":
        if algorithm == "tsaem":
            return 3
        return 2 if partition_settings(algorithm, proposal) is None else 1
    if isinstance(n_samples, str):
        raise ValueError(f"n_samples must be 'auto' or an integer >= 1, got {n_samples!r}.")
    if check_integer("n_samples", n_samples, 1) >= MOST_DRAWS:
        raise ValueError(f"n_samples must be below {MOST_DRAWS}, got {n_samples!r}.")
    return int(n_samples)


def make_rule(
    algorithm: str, proposal: Any, n_samples: int, reuse_log_joint: bool, means: np.ndarray
) -> SelectionRule:
    """Selection rule of an algorithm of the paper's Table 1, for a start at `means` (K, D)."""
    n_kept = min(n_samples, means.shape[0])
    if algorithm in ("em", "saem"):
        return ExactPosterior()
    if algorithm == "ssaem":
        return TopComponents(n_kept)
    if algorithm == "tsaem":
        search = proposal if isinstance(proposal, SearchSet) else SearchSet()
        return TruncatedSearch(n_kept, search, nearest_components(means, search.n_neighbours))
    resolved = "optimal" if algorithm == "mcsaem" else resolve_proposal(proposal)
    if resolved == "optimal":
        return PosteriorDraws(n_samples)
    named: dict[str, Callable[[], Proposal]] = {
        "uniform": UniformProposal,
        "table": TableProposal,
        "table-forgetting": TableForgettingProposal,
    }
    chosen = named[resolved]() if isinstance(resolved, str) else resolved
    assert isinstance(chosen, Proposal)
    return MetropolisHastings(chosen, n_samples, reuse_log_joint)


def nearest_components(means: np.ndarray, n_neighbours: int) -> np.ndarray:
    """The nearest components of each by distance of means, itself first, (K, G) int32."""
    n_components = means.shape[0]
    n_neighbours = min(n_neighbours, n_components)
    nearest = cKDTree(means).query(means, k=n_neighbours)[1].reshape(n_components, n_neighbours)
    nearest = nearest.astype(np.int32)
    # Coinciding means may push a component off the head of its own list.
    for k in np.flatnonzero(nearest[:, 0] != np.arange(n_components)):
        others = nearest[k][nearest[k] != k][: n_neighbours - 1]
        nearest[k] = np.concatenate(([k], others))
    return np.asarray(nearest)


def resolve_batch_size(
    batch_size: Any,
    algorithm: str,
    n_rows: int,
    n_components: int,
    partition: RandomPartition | None,
) -> int:
    """Rows per step: all of them for EM, else `batch_size`, or enough for every component."""
    if algorithm == "em":
        return n_rows
    if isinstance(batch_size, str) and batch_size == "auto":
        if partition is None:
            return min(n_rows, max(256, 4 * n_components))
        # Each step replaces the statistics, so it takes enough rows for a covariance.
        return min(n_rows, max(_LEAST_ROWS, _ROWS_PER_COMPONENT * n_components))
    if isinstance(batch_size, str):
        raise ValueError(f"batch_size must be 'auto' or an integer >= 1, got {batch_size!r}.")
    return min(check_integer("batch_size", batch_size, 1), n_rows)


def _make_monitor(
    settings: Any,
    proposal_name: str,
    n_rows: int,
    n_components: int,
    steps_per_pass: int,
    n_samples: int,
    limits: Limits,
    partition: RandomPartition | None,
    replaces: bool,
) -> Monitor:
    """Plan evaluations so that they cost little; `replaces`: steps replace all statistics."""
    tol = float(settings.tol)
    # A schedule of T steps is meant to be run to its end.
    to_end = settings.max_steps is not None or settings.annealing is not None or tol == 0.0
    # Some twenty records at least of a fit whose length is known.
    most_steps = max(1, limits.last_step)
    if settings.max_steps is not None:
        most_steps = -(-limits.last_step // 20)

    def monitor(steps: int, n_probe: int | None, smoothing: float, patience: int) -> Monitor:
        every = resolve_evaluate_every(settings.evaluate_every, min(steps, most_steps))
        least_rise = 2.0 * tol if replaces else tol
        return Monitor(every, n_probe, least_rise, smoothing, None if to_end else patience)

    if settings.algorithm == "em":
        return monitor(1, None, 0.0, 1)
    # Fits from several starts are compared on the same rows.
    if proposal_name in _EXHAUSTIVE and settings.n_init == 1:
        return monitor(steps_per_pass, None, 0.5, _PATIENCE)
    if replaces and partition is not None:
        step_work = n_rows / steps_per_pass * min(partition.block_size * n_samples, n_components)
        # Rows whose evaluation over all components costs half as much as a step.
        affordable = 0.5 * step_work / n_components
        free = _FREE_EVALUATIONS / n_components
        n_probe = int(min(n_rows, _LARGEST_PROBE, max(affordable, _SMALLEST_PROBE, free)))
        steps = max(_STEPS_PER_EVALUATION, min(20, math.ceil(_SMALLEST_PROBE / affordable)))
        return monitor(steps, n_probe, 0.0, 1)
    work_per_pass = n_rows * (n_samples + 1)
    affordable = _PROBE_SHARE * work_per_pass / (_PROBE_COST * n_components)
    # Fewer rows than wished, or several passes between evaluations, or both.
    wished = max(affordable, min(_WISHED_PROBE, 5.0 * affordable), _SMALLEST_PROBE)
    n_probe = int(min(n_rows, _LARGEST_PROBE, wished))
    cost = _PROBE_COST * n_probe * n_components / work_per_pass
    passes = max(1, min(10, math.ceil(cost / _PROBE_SHARE)))
    patience = max(2, math.ceil(_PATIENCE / passes))
    return monitor(passes * steps_per_pass, n_probe, 0.5, patience)

"""From an estimator's parameters to the parts of a fit: rule, batches, schedules, limits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from pickmix.data.rows import Batches
from pickmix.estimators.validation import check_choice, check_integer
from pickmix.fitting.stopping import Limits, Outcome, Plateau
from pickmix.selection.partitions import RandomPartition
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
    PartitionGibbs,
    PosteriorDraws,
    SelectionRule,
    TopComponents,
)
from pickmix.selection.schedules import Schedule, resolve_step_size
from pickmix.selection.truncated import SearchSet, TruncatedSearch

ALGORITHMS = ("em", "saem", "ssaem", "tsaem", "mcsaem", "mhsaem")
PROPOSALS = ("auto", "partition", "uniform", "optimal", "table", "table-forgetting")

# Rows per component in a step of a partition fit, and rows at least.
_ROWS_PER_COMPONENT = 500
_LEAST_ROWS = 200_000
# Steps of a partition fit between evaluations: the log-likelihood rises by less than `tol` over
# that many when it has converged.
_STEPS_PER_EVALUATION = 5
# Passes without a rise of `tol` after which a stochastic fit has converged.
_PATIENCE = 5
# Evaluating one component on one row of the probe costs about this fraction of a visit's.
_PROBE_COST = 1.0 / 15.0
_PROBE_SHARE = 0.1
_SMALLEST_PROBE, _WISHED_PROBE, _LARGEST_PROBE = 100, 1000, 5000


@dataclass(frozen=True)
class Sizes:
    """N rows, D features, K components."""

    n_rows: int
    n_features: int
    n_components: int


def resolve_proposal(proposal: Any) -> str | Proposal | RandomPartition:
    """Turn "auto" into what it stands for, and check the rest."""
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
    n_components = means.shape[0]
    n_kept = min(n_samples, n_components)
    if algorithm in ("em", "saem"):
        return ExactPosterior()
    if algorithm == "ssaem":
        return TopComponents(n_kept)
    if algorithm == "tsaem":
        search = proposal if isinstance(proposal, SearchSet) else SearchSet()
        return TruncatedSearch(n_kept, search, nearest_components(means, search.n_neighbours))
    if algorithm == "mcsaem":
        return PosteriorDraws(n_samples)
    settings = partition_settings(algorithm, proposal)
    if settings is not None:
        return PartitionGibbs(settings, n_samples)
    resolved = resolve_proposal(proposal)
    if resolved == "optimal":
        return PosteriorDraws(n_samples)
    if resolved == "uniform":
        resolved = UniformProposal()
    elif resolved == "table":
        resolved = TableProposal()
    elif resolved == "table-forgetting":
        resolved = TableForgettingProposal()
    assert isinstance(resolved, Proposal)
    return MetropolisHastings(resolved, n_samples, reuse_log_joint)


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
    return nearest


def resolve_batch_size(batch_size: Any, algorithm: str, sizes: Sizes, partitions: bool) -> int:
    """Rows per step: all of them for EM, else `batch_size`, or enough for every component."""
    if algorithm == "em":
        return sizes.n_rows
    if isinstance(batch_size, str) and batch_size == "auto" and partitions:
        # Each step replaces the statistics, so it takes enough rows for a covariance.
        return min(sizes.n_rows, max(_LEAST_ROWS, _ROWS_PER_COMPONENT * sizes.n_components))
    if isinstance(batch_size, str) and batch_size == "auto":
        return min(sizes.n_rows, max(256, 4 * sizes.n_components))
    if isinstance(batch_size, str):
        raise ValueError(f"batch_size must be 'auto' or an integer >= 1, got {batch_size!r}.")
    return min(check_integer("batch_size", batch_size, 1), sizes.n_rows)


def partition_step_size(step_size: Any, batches: Batches, sizes: Sizes) -> Schedule | None:
    """Step size of a partition fit; None lets statistics be replaced, then averaged.

    That takes batches of all rows, or of enough of them for every component.
    """
    if not isinstance(step_size, str) or step_size != "auto":
        return resolve_step_size(step_size, batches.n_batches)
    if has_enough_rows(batches, sizes):
        return None
    return resolve_step_size(step_size, batches.n_batches)


def has_enough_rows(batches: Batches, sizes: Sizes) -> bool:
    """Whether a step takes all rows, or enough of them to learn every component from."""
    batch_size = sizes.n_rows / batches.n_batches
    return batches.n_batches == 1 or batch_size >= 0.2 * _ROWS_PER_COMPONENT * sizes.n_components


def relocates(estimator: Any, settings: RandomPartition, warm: bool) -> bool:
    """Whether a fit may move components: "auto" leaves starts alone that were asked for."""
    if settings.relocate != "auto":
        return bool(settings.relocate)
    given = estimator.means_init is not None or estimator.init_params != "auto"
    return not (warm or given)


@dataclass(frozen=True)
class Monitor:
    """When to evaluate, on how many rows, and when that shows a plateau."""

    evaluate_every: int
    n_probe: int | None
    plateau: Plateau | None
    limits: Limits


def make_monitor(
    rule: SelectionRule,
    algorithm: str,
    sizes: Sizes,
    steps_per_pass: int,
    evaluations_per_row: int,
    max_iter: int,
    max_steps: int | None,
    max_time: float | None,
    tol: float,
    annealed: bool,
    compares: bool = False,
    replaces: bool = False,
) -> Monitor:
    """Plan evaluations so that they cost little beside the work, and set the limits.

    `compares`: fits from several starts will be compared, which takes the same rows for all.
    `replaces`: each step replaces all statistics, so that steps count and not passes.
    """
    # A schedule of T steps is meant to be run to its end.
    runs_to_end = max_steps is not None or annealed or tol == 0.0
    if max_steps is not None:
        limits = Limits(max_steps, Outcome.MAX_STEPS, max_time)
    else:
        limits = Limits(max_iter * steps_per_pass, Outcome.MAX_ITER, max_time)
    if algorithm == "em":
        return Monitor(1, None, None if runs_to_end else Plateau(tol), limits)
    # Some twenty records at least of a fit whose length is known.
    most_steps = limits.last_step if max_steps is None else -(-max_steps // 20)
    if rule.evaluates_all and not compares:
        plateau = None if runs_to_end else Plateau(tol, smoothing=0.5, patience=_PATIENCE)
        return Monitor(min(steps_per_pass, most_steps), None, plateau, limits)
    if replaces and rule.width is not None:
        # An evaluation over all components costs about as much as the work of `cost` steps.
        step_work = sizes.n_rows / steps_per_pass * min(rule.width, sizes.n_components)
        affordable = 0.5 * step_work / sizes.n_components
        n_probe = int(min(sizes.n_rows, _LARGEST_PROBE, max(affordable, _SMALLEST_PROBE)))
        steps = max(_STEPS_PER_EVALUATION, min(20, math.ceil(_SMALLEST_PROBE / affordable)))
        plateau = None if runs_to_end else Plateau(2.0 * tol)
        return Monitor(min(steps, most_steps), n_probe, plateau, limits)
    work_per_pass = sizes.n_rows * evaluations_per_row
    affordable = _PROBE_SHARE * work_per_pass / (_PROBE_COST * sizes.n_components)
    # Fewer rows than wished, or several passes between evaluations, or both.
    wished = max(affordable, min(_WISHED_PROBE, 5.0 * affordable), _SMALLEST_PROBE)
    n_probe = int(min(sizes.n_rows, _LARGEST_PROBE, wished))
    cost = _PROBE_COST * n_probe * sizes.n_components / work_per_pass
    passes = max(1, min(10, math.ceil(cost / _PROBE_SHARE)))
    patience = max(2, math.ceil(_PATIENCE / passes))
    plateau = None if runs_to_end else Plateau(tol, smoothing=0.5, patience=patience)
    return Monitor(min(passes * steps_per_pass, most_steps), n_probe, plateau, limits)

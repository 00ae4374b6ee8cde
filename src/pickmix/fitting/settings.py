"""Settings of fits in closed form: what users set, and the same with every "auto" resolved."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any

import numpy as np

from pickmix.checks import (
    RandomSeed,
    check_choice,
    check_flag,
    check_integer,
    check_n_jobs,
    check_number,
)
from pickmix.families.base import Family
from pickmix.fitting.loop import FitInfo
from pickmix.fitting.stopping import Limits, Outcome, Plateau
from pickmix.selection.proposals import Proposal
from pickmix.selection.randomness import MOST_DRAWS
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

WEIGHT_FLOOR = 1e-4  # No component of a stochastic fit weighs less than this share of 1/K.
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


@dataclass(eq=False, repr=False)
class ClosedFormSettings:
    """The parameters that mixtures in closed form share; see `GaussianMixture`."""

    _: KW_ONLY
    algorithm: str = "mhsaem"
    proposal: str | RandomPartition | Proposal | SearchSet = "auto"
    n_samples: int | str = "auto"
    reuse_log_joint: bool = False
    batch_size: int | str = "auto"
    step_size: float | str | Callable[[int], float] = "auto"
    annealing: str | Callable[[int], float] | None = None
    max_iter: int = 100
    max_steps: int | None = None
    max_time: float | None = None
    tol: float = 1e-3
    evaluate_every: int | str | Sequence[int] = "auto"
    reg_covar: Any = 1e-6
    n_init: int = 1
    init_params: str = "auto"
    random_state: RandomSeed = None
    n_jobs: int | None = None
    warm_start: bool = False
    verbose: int = 0
    callbacks: Callable[[FitInfo], Any] | Sequence[Callable[[FitInfo], Any]] = ()
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: float = 300.0


@dataclass(eq=False, repr=False, kw_only=True)
class FitSettings(ClosedFormSettings):
    """Settings of one fit of K components to N rows, without an "auto"."""

    proposal: RandomPartition | Proposal | SearchSet | str
    n_samples: int
    batch_size: int
    step_size: Schedule | None  # type: ignore[assignment]  # None: replace, then average.
    annealing: Schedule | None
    evaluate_every: int | list[int]
    n_components: int
    n_rows: int
    compiled: bool  # Whether kernels are compiled, or NumPy does it all: a matter of sizes alone.
    background: bool  # Whether a component may become a background of outlying rows.
    relocates: bool
    n_probe: int | None  # Rows on which the log-likelihood is evaluated; None: by the rule.
    least_rise: float  # Of the log-likelihood between evaluations.
    smoothing: float  # Of log-likelihoods.
    patience: int | None  # Evaluations without a rise that end the fit; None: made to its end.

    @property
    def partition(self) -> RandomPartition | None:
        """Settings of random-partition Gibbs, if that is what the fit does."""
        mhsaem = self.algorithm == "mhsaem"
        return self.proposal if mhsaem and isinstance(self.proposal, RandomPartition) else None

    @property
    def proposal_name(self) -> str:
        return _proposal_name(self.algorithm, self.proposal)

    @property
    def n_batches(self) -> int:
        """Steps per pass."""
        return max(1, -(-self.n_rows // self.batch_size))

    @property
    def is_exact(self) -> bool:
        """Whether a step is one of EM: all rows, and all components in one block."""
        partition = self.partition
        in_one_block = partition is not None and self.n_components <= partition.block_size
        return in_one_block and self.n_batches == 1

    @property
    def limits(self) -> Limits:
        return _limits(self, self.n_batches)

    @property
    def shrinkage(self) -> str:
        """As in `Family.make_prior`."""
        exact = self.algorithm == "em"
        return "none" if exact else "few" if self.partition is None else "pooled"

    @property
    def weight_floor(self) -> float:
        # A component that batches miss keeps a weight at which it can still be selected.
        return 1e-17 if self.algorithm == "em" else WEIGHT_FLOOR / self.n_components

    @property
    def spreads_out(self) -> bool:
        """Whether the start spreads components over the rows."""
        return self.partition is not None and self.init_params == "auto"

    def plateau(self, reference: float = -math.inf) -> Plateau | None:
        """A plateau for one fit; `reference` is the value that an earlier fit ended at."""
        if self.patience is None:
            return None
        return Plateau(self.least_rise, self.smoothing, self.patience, reference=reference)


def resolve(
    parameters: Any,
    family: Family,
    n_rows: int,
    *,
    start_is_given: bool,
    n_all_rows: int | None = None,
    is_partial: bool = False,
    **changes: Any,
) -> FitSettings:
    """Resolve the parameters of an estimator, with some `changes`, for rows in memory.

    `start_is_given` means that the user chose the start, `n_all_rows` is the size of the table that
    the rows are a sample of, `is_partial` that rows have gaps or noise.
    """
    inherited = {f.name: getattr(parameters, f.name) for f in fields(ClosedFormSettings)} | changes
    settings = ClosedFormSettings(**inherited)
    K, algorithm = int(parameters.n_components), str(settings.algorithm)
    partition = partition_settings(algorithm, settings.proposal)
    n_samples = resolve_n_samples(settings.n_samples, algorithm, settings.proposal)
    batch_size = resolve_batch_size(settings.batch_size, algorithm, n_rows, K, partition)
    n_batches = max(1, -(-n_rows // batch_size))
    # A step that takes all rows, or enough of them to learn every component from.
    enough = n_batches == 1 or n_rows / n_batches >= 0.2 * _ROWS_PER_COMPONENT * K
    limits = _limits(settings, n_batches)
    automatic = isinstance(settings.step_size, str) and settings.step_size == "auto"
    step_size: Schedule | None = ConstantStep(1.0)
    if partition is not None and automatic and enough:
        step_size = None
    elif algorithm != "em":
        step_size = resolve_step_size(settings.step_size, n_batches)
    relocates = False
    if partition is not None:
        wished = not start_is_given if partition.relocate == "auto" else bool(partition.relocate)
        # Splits by chance outweigh real ones on too few rows.
        relocates = wished and enough
    every, probe = _plan_evaluations(
        settings, K, n_rows, n_batches, n_samples, limits, partition, step_size is None
    )
    proposal = settings.proposal if algorithm == "tsaem" else resolve_proposal(settings.proposal)
    return FitSettings(
        **inherited
        | {
            "proposal": proposal,
            "n_samples": n_samples,
            "batch_size": batch_size,
            "step_size": step_size,
            "annealing": resolve_annealing(settings.annealing, limits.last_step),
            "evaluate_every": every,
        },
        n_components=K,
        n_rows=n_rows,
        compiled=needs_compiled(family.layout, n_all_rows or n_rows, K, is_partial),
        background=bool(getattr(parameters, "background", False)),
        relocates=relocates,
        **probe,
    )


def check_settings(settings: Any, init_params: tuple[str, ...]) -> None:
    """Raise for a parameter of an estimator that no fit could take."""
    check_integer("n_components", settings.n_components, 1)
    check_choice("algorithm", settings.algorithm, ALGORITHMS)
    check_choice("init_params", settings.init_params, init_params)
    if settings.algorithm != "tsaem" or not isinstance(settings.proposal, SearchSet):
        resolve_proposal(settings.proposal)
    resolve_n_samples(settings.n_samples, settings.algorithm, settings.proposal)
    check_flag("reuse_log_joint", settings.reuse_log_joint)
    # EM ignores batch_size, but a mistake in it is refused all the same.
    resolve_batch_size(settings.batch_size, "mhsaem", 1, settings.n_components, None)
    check_integer("max_iter", settings.max_iter, 0)
    check_integer("n_init", settings.n_init, 1)
    if settings.max_steps is not None:
        check_integer("max_steps", settings.max_steps, 1)
    if settings.max_time is not None:
        check_number("max_time", settings.max_time, 0.0, strict=True)
    check_n_jobs(settings.n_jobs)
    check_flag("warm_start", settings.warm_start)
    if not isinstance(settings.verbose, bool):
        check_integer("verbose", settings.verbose, 0)
    check_number("tol", settings.tol, 0.0)
    resolve_evaluate_every(settings.evaluate_every, 1)
    check_callbacks(settings.callbacks)
    check_checkpoint(settings.checkpoint, settings.checkpoint_every)
    resolve_step_size(settings.step_size, 2)
    resolve_annealing(settings.annealing, 2)


def check_checkpoint(folder: Any, every: Any) -> None:
    if folder is not None and not isinstance(folder, str | os.PathLike):
        raise ValueError(f"checkpoint must be None or the path of a folder, got {folder!r}.")
    check_number("checkpoint_every", every, 0.0)


def check_callbacks(callbacks: Any) -> list[Callable[..., object]]:
    listed = [callbacks] if callable(callbacks) else callbacks
    for callback in listed if isinstance(listed, (list, tuple)) else ():
        if isinstance(callback, type):
            name = callback.__name__
            raise ValueError(f"callbacks must be objects, got the class {name}: write {name}(...).")
    if not isinstance(listed, (list, tuple)) or not all(map(callable, listed)):
        raise ValueError(f"callbacks must be a callable or a list of them, got {callbacks!r}.")
    return list(listed)


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
    return RandomPartition() if name in ("auto", "partition") else name


def partition_settings(algorithm: str, proposal: Any) -> RandomPartition | None:
    """Settings of random-partition Gibbs, if that is what a fit does."""
    if algorithm != "mhsaem":
        return None
    resolved = resolve_proposal(proposal)
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


def resolve_evaluate_every(value: Any, automatic: int) -> int | list[int]:
    """Steps between evaluations, or the steps after which they come; "auto" is `automatic`."""
    if isinstance(value, str) and value == "auto":
        return automatic
    if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str):
        steps = np.asarray(value)
        whole = steps.ndim == 1 and steps.size > 0 and np.issubdtype(steps.dtype, np.integer)
        if whole and steps[0] >= 1 and np.all(np.diff(steps) > 0):
            return [int(step) for step in steps]
    elif isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 1:
        return int(value)
    raise ValueError(
        "evaluate_every must be 'auto', an integer >= 1 or a rising sequence of steps >= 1, "
        f"got {value!r}."
    )


def _limits(settings: ClosedFormSettings, n_batches: int) -> Limits:
    if settings.max_steps is not None:
        return Limits(int(settings.max_steps), Outcome.MAX_STEPS, settings.max_time)
    return Limits(int(settings.max_iter) * n_batches, Outcome.MAX_ITER, settings.max_time)


def _plan_evaluations(
    settings: ClosedFormSettings,
    K: int,
    n_rows: int,
    steps_per_pass: int,
    n_samples: int,
    limits: Limits,
    partition: RandomPartition | None,
    replaces: bool,
) -> tuple[int | list[int], dict[str, Any]]:
    """When to evaluate, and on how many rows, so that it costs little; how a plateau is found.

    `replaces`: steps replace all statistics.
    """
    tol = float(settings.tol)
    # A schedule of T steps is meant to be run to its end.
    to_end = settings.max_steps is not None or settings.annealing is not None or tol == 0.0
    # Some twenty records at least of a fit whose length is known.
    most_steps = max(1, limits.last_step)
    if settings.max_steps is not None:
        most_steps = -(-limits.last_step // 20)

    def plan(
        steps: int, n_probe: int | None, smoothing: float, patience: int
    ) -> tuple[int | list[int], dict[str, Any]]:
        every = resolve_evaluate_every(settings.evaluate_every, min(steps, most_steps))
        return every, {
            "n_probe": n_probe,
            "least_rise": 2.0 * tol if replaces else tol,
            "smoothing": smoothing,
            "patience": None if to_end else patience,
        }

    if settings.algorithm == "em":
        return plan(1, None, 0.0, 1)
    # Fits from several starts are compared on the same rows.
    if _proposal_name(settings.algorithm, settings.proposal) in _EXHAUSTIVE and (
        settings.n_init == 1
    ):
        return plan(steps_per_pass, None, 0.5, _PATIENCE)
    if replaces and partition is not None:
        step_work = n_rows / steps_per_pass * min(partition.block_size * n_samples, K)
        # Rows whose evaluation over all components costs half as much as a step.
        affordable = 0.5 * step_work / K
        free = _FREE_EVALUATIONS / K
        n_probe = int(min(n_rows, _LARGEST_PROBE, max(affordable, _SMALLEST_PROBE, free)))
        steps = max(_STEPS_PER_EVALUATION, min(20, math.ceil(_SMALLEST_PROBE / affordable)))
        # One component needs two steps: its moments, and its shrinkage.
        steps = 2 if K == 1 else steps
        return plan(steps, n_probe, 0.0, 1)
    work_per_pass = n_rows * (n_samples + 1)
    affordable = _PROBE_SHARE * work_per_pass / (_PROBE_COST * K)
    # Fewer rows than wished, or several passes between evaluations, or both.
    wished = max(affordable, min(_WISHED_PROBE, 5.0 * affordable), _SMALLEST_PROBE)
    n_probe = int(min(n_rows, _LARGEST_PROBE, wished))
    cost = _PROBE_COST * n_probe * K / work_per_pass
    passes = max(1, min(10, math.ceil(cost / _PROBE_SHARE)))
    patience = max(2, math.ceil(_PATIENCE / passes))
    return plan(passes * steps_per_pass, n_probe, 0.5, patience)

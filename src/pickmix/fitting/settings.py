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
from pickmix.fitting.loop import FitInfo, Limits, Outcome, Plateau
from pickmix.kernels import needs_compiled
from pickmix.selection.partitions import RandomPartition, SearchSet
from pickmix.selection.proposals import Proposal
from pickmix.selection.randomness import MOST_DRAWS
from pickmix.selection.schedules import ConstantStep, Schedule, resolve_annealing, resolve_step_size

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
    max_components: int | None = None
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
    relocates: bool = False
    n_probe: int | None = None  # Rows to evaluate the log-likelihood on; None: by the rule.
    least_rise: float = 0.0  # Of the log-likelihood between evaluations.
    smoothing: float = 0.0  # Of log-likelihoods.
    patience: int | None = None  # Evaluations without a rise that end a fit; None: made to its end.

    @property
    def partition(self) -> RandomPartition | None:
        """Settings of random-partition Gibbs, if that is what the fit does."""
        return partition_settings(self.algorithm, self.proposal)

    @property
    def proposal_name(self) -> str:
        if self.algorithm != "mhsaem":
            return self.algorithm
        if isinstance(self.proposal, RandomPartition):
            return "partition"
        return self.proposal if isinstance(self.proposal, str) else type(self.proposal).__name__

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
        if self.max_steps is not None:
            return Limits(int(self.max_steps), Outcome.MAX_STEPS, self.max_time)
        return Limits(int(self.max_iter) * self.n_batches, Outcome.MAX_ITER, self.max_time)

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
    n_components: int,
    *,
    start_is_given: bool,
    n_all_rows: int | None = None,
    is_partial: bool = False,
    **changes: Any,
) -> FitSettings:
    """Resolve the parameters of an estimator, with some `changes`, for K components.

    `start_is_given` means that the user chose the start, `n_all_rows` is the size of the table that
    the rows are a sample of, `is_partial` that rows have gaps or noise.
    """
    values = {f.name: getattr(parameters, f.name) for f in fields(ClosedFormSettings)} | changes
    K, algorithm, proposal = int(n_components), values["algorithm"], values["proposal"]
    partition = partition_settings(algorithm, proposal)
    values["n_samples"] = resolve_n_samples(values["n_samples"], algorithm, proposal)
    values["batch_size"] = resolve_batch_size(values["batch_size"], algorithm, n_rows, K, partition)
    if algorithm != "tsaem":
        values["proposal"] = resolve_proposal(proposal)
    settings = FitSettings(
        **values,
        n_components=K,
        n_rows=n_rows,
        compiled=needs_compiled(family.layout, n_all_rows or n_rows, K, is_partial),
        background=bool(getattr(parameters, "background", False)),
    )
    settings.annealing = resolve_annealing(settings.annealing, settings.limits.last_step)
    n_batches = settings.n_batches
    # A step that takes all rows, or enough of them to learn every component from.
    enough = n_batches == 1 or n_rows / n_batches >= 0.2 * _ROWS_PER_COMPONENT * K
    if algorithm == "em":
        settings.step_size = ConstantStep(1.0)
    elif partition is not None and enough and _is_auto(settings.step_size):
        settings.step_size = None
    else:
        settings.step_size = resolve_step_size(settings.step_size, n_batches)
    if partition is not None:
        wished = not start_is_given if partition.relocate == "auto" else bool(partition.relocate)
        # Splits by chance outweigh real ones on too few rows.
        settings.relocates = wished and enough
    _plan_evaluations(settings)
    settings.least_rise *= family.rise_scale
    return settings


def check_settings(settings: Any, init_params: tuple[str, ...]) -> None:
    """Raise for a parameter of an estimator that no fit could take."""
    for name, least in (("max_iter", 0), ("n_init", 1)):
        check_integer(name, getattr(settings, name), least)
    check_choice("algorithm", settings.algorithm, ALGORITHMS)
    check_choice("init_params", settings.init_params, init_params)
    _check_n_components(settings)
    if settings.algorithm != "tsaem" or not isinstance(settings.proposal, SearchSet):
        resolve_proposal(settings.proposal)
    resolve_n_samples(settings.n_samples, settings.algorithm, settings.proposal)
    # EM ignores batch_size, but a mistake in it is refused all the same.
    resolve_batch_size(settings.batch_size, "mhsaem", 1, 1, None)
    check_flag("reuse_log_joint", settings.reuse_log_joint)
    check_flag("warm_start", settings.warm_start)
    if settings.max_steps is not None:
        check_integer("max_steps", settings.max_steps, 1)
    if settings.max_time is not None:
        check_number("max_time", settings.max_time, 0.0, strict=True)
    check_n_jobs(settings.n_jobs)
    if not isinstance(settings.verbose, bool):
        check_integer("verbose", settings.verbose, 0)
    check_number("tol", settings.tol, 0.0)
    resolve_evaluate_every(settings.evaluate_every, 1)
    check_callbacks(settings.callbacks)
    check_checkpoint(settings.checkpoint, settings.checkpoint_every)
    resolve_step_size(settings.step_size, 2)
    resolve_annealing(settings.annealing, 2)


def _check_n_components(settings: Any) -> None:
    if settings.max_components is not None:
        check_integer("max_components", settings.max_components, 1)
    if not _is_auto(settings.n_components):
        if isinstance(settings.n_components, str):
            raise ValueError(
                f"n_components must be 'auto' or an integer >= 1, got {settings.n_components!r}."
            )
        check_integer("n_components", settings.n_components, 1)
        return
    given = [
        f"{name}={value}"
        for name, value, automatic in (
            ("algorithm", repr(settings.algorithm), settings.algorithm == "mhsaem"),
            ("init_params", repr(settings.init_params), settings.init_params == "auto"),
            *(
                (name, "...", getattr(settings, name, None) is None)
                for name in ("weights_init", "means_init", "precisions_init")
            ),
        )
        if not automatic
    ]
    if not given and partition_settings(settings.algorithm, settings.proposal) is None:
        given = [f"proposal={settings.proposal!r}"]
    if given:
        raise ValueError(
            "n_components='auto' grows a mixture by random-partition Gibbs from its start, got "
            f"{', '.join(given)}. Give a number, or leave these parameters at their defaults."
        )


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
    resolved = resolve_proposal(proposal) if algorithm == "mhsaem" else None
    return resolved if isinstance(resolved, RandomPartition) else None


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _integer_or(automatic: int, name: str, value: Any) -> int:
    if isinstance(value, str) and value != "auto":
        raise ValueError(f"{name} must be 'auto' or an integer >= 1, got {value!r}.")
    return automatic if _is_auto(value) else check_integer(name, value, 1)


def resolve_n_samples(n_samples: Any, algorithm: str, proposal: Any) -> int:
    """M: "auto" is one partition per visit, three components kept by TSAEM, else two."""
    automatic = 3 if algorithm == "tsaem" else 2
    if _is_auto(n_samples) and partition_settings(algorithm, proposal) is not None:
        automatic = 1
    if (resolved := _integer_or(automatic, "n_samples", n_samples)) >= MOST_DRAWS:
        raise ValueError(f"n_samples must be below {MOST_DRAWS}, got {n_samples!r}.")
    return resolved


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
    # Each step of a partition fit replaces the statistics: enough rows for covariances.
    automatic = max(_LEAST_ROWS, _ROWS_PER_COMPONENT * n_components)
    if partition is None:
        automatic = max(256, 4 * n_components)
    return min(n_rows, _integer_or(automatic, "batch_size", batch_size))


def resolve_evaluate_every(value: Any, automatic: int) -> int | list[int]:
    """Steps between evaluations, or the steps after which they come; "auto" is `automatic`."""
    if _is_auto(value):
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


def _plan_evaluations(settings: FitSettings) -> None:
    """Set when to evaluate, and on how many rows, so that it costs little; and the plateau."""
    K, n_rows, steps_per_pass = settings.n_components, settings.n_rows, settings.n_batches
    partition, replaces = settings.partition, settings.step_size is None
    steps, patience, settings.smoothing = steps_per_pass, _PATIENCE, 0.5
    if settings.algorithm == "em":
        steps, patience, settings.smoothing = 1, 1, 0.0
    elif settings.proposal_name in _EXHAUSTIVE and settings.n_init == 1:
        pass  # The rule knows it. Fits from several starts are compared on the same rows.
    elif replaces and partition is not None:
        step_work = n_rows / steps_per_pass * min(partition.block_size * settings.n_samples, K)
        # Rows whose evaluation over all components costs half as much as a step.
        affordable = 0.5 * step_work / K
        wished = max(affordable, _SMALLEST_PROBE, _FREE_EVALUATIONS / K)
        settings.n_probe = int(min(n_rows, _LARGEST_PROBE, wished))
        steps = max(_STEPS_PER_EVALUATION, min(20, math.ceil(_SMALLEST_PROBE / affordable)))
        # One component is known after two steps: its moments, and its shrinkage.
        steps = 2 if K == 1 else steps
        patience, settings.smoothing = 1, 0.0
    else:
        work_per_pass = n_rows * (settings.n_samples + 1)
        affordable = _PROBE_SHARE * work_per_pass / (_PROBE_COST * K)
        # Fewer rows than wished, or several passes between evaluations, or both.
        wished = max(affordable, min(_WISHED_PROBE, 5.0 * affordable), _SMALLEST_PROBE)
        settings.n_probe = int(min(n_rows, _LARGEST_PROBE, wished))
        cost = _PROBE_COST * settings.n_probe * K / work_per_pass
        passes = max(1, min(10, math.ceil(cost / _PROBE_SHARE)))
        steps, patience = passes * steps_per_pass, max(2, math.ceil(_PATIENCE / passes))
    tol = float(settings.tol)
    settings.least_rise = 2.0 * tol if replaces else tol
    # A schedule of T steps is meant to be run to its end.
    to_end = settings.max_steps is not None or settings.annealing is not None or tol == 0.0
    settings.patience = None if to_end else patience
    # Some twenty records at least of a fit whose length is known.
    last = settings.limits.last_step
    most_steps = max(1, last) if settings.max_steps is None else -(-last // 20)
    settings.evaluate_every = resolve_evaluate_every(
        settings.evaluate_every, min(steps, most_steps)
    )

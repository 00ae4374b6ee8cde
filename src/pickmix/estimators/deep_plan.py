"""What a deep fit does: the estimator's words and "auto"s, checked and resolved once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pickmix.estimators import validation as check
from pickmix.estimators.checkpointing import check_checkpoint
from pickmix.estimators.deep_parameters import Callback, DeepParameters
from pickmix.fitting.loop import EvaluateEvery
from pickmix.fitting.stopping import Limits, Outcome, Plateau
from pickmix.selection.proposals import (
    Proposal,
    TableForgettingProposal,
    TableProposal,
    UniformProposal,
)
from pickmix.selection.randomness import MOST_DRAWS
from pickmix.selection.schedules import (
    Schedule,
    resolve_annealing,
    resolve_rate,
    resolve_step_size,
)
from pickmix.selection.settings import RandomPartition

ALGORITHMS = ("mhsaem", "mcsaem", "em", "sgd")
PROPOSALS = ("uniform", "optimal", "table", "table-forgetting", "partition")
STARTS = ("auto", "gaussian", "data", "paper")
FRAMES = ("auto", "whiten", "columns")
_NAMED_PROPOSALS: dict[str, Callable[[], Proposal]] = {
    "uniform": UniformProposal,
    "table": TableProposal,
    "table-forgetting": TableForgettingProposal,
}
# Components per block where none is said: deep ones cost too much for the blocks of Gaussians.
_BLOCK_SIZE = 4
# Beyond this many children of the root, weights come in closed form.
_MOST_GRADIENT_WEIGHTS = 1024
# Records of a fit that makes all its steps, at least; else one after so many passes and steps.
_RECORDS = 100
_PASSES_PER_RECORD = 2
_FEWEST_STEPS = 10

Step = Literal["mhsaem", "partition", "mcsaem", "em", "sgd"]


@dataclass(frozen=True)
class DeepPlan:
    """All that a deep fit needs to know beyond its rows, its network and its seed.

    What is not named here is as in the estimator.

    Attributes
    ----------
    step : {"mhsaem", "partition", "mcsaem", "em", "sgd"}
        Kind of step; "mhsaem" has a `proposal`, "partition" a `partition`.
    proposal_name : str
        What `proposal_` says.
    init_params : str
        As in the estimator.
    gaussian_form : {"full", "diag"}
        Covariances of the Gaussian mixture that a fit begins with.
    chooses : bool
        Whether the number of components is chosen.
    noise : float
        Standard deviation of the noise that rows get at each visit, as the model sees them.
    frames : tuple of str
        Kinds of `find_frame` to choose from.
    rate, annealing : schedules
        They count the steps of this fit.
    step_size : callable
        From the steps of a pass to a schedule.
    """

    step: Step
    proposal: Proposal | None
    partition: RandomPartition | None
    proposal_name: str
    n_samples: int
    reuse_log_joint: bool
    gradient_clip: float | None
    batch_size: int | None
    row_adam: bool
    closed_form_weights: bool
    init_params: str
    gaussian_form: str
    chooses: bool
    noise: float
    reg_covar: float
    random_state: int | None
    frames: tuple[str, ...]
    rate: Schedule
    annealing: Schedule | None
    step_size: Callable[[int], Schedule]
    validation_share: float
    limits: Limits
    patience: int | None
    tol: float
    evaluate_every: EvaluateEvery | None
    dtype: np.dtype
    verbose: int
    callbacks: tuple[Callback, ...]

    def plateau(self, first: float | None) -> Plateau | None:
        """A plateau that has seen the start's value alone, if there is one."""
        if self.patience is None:
            return None
        reference = -math.inf if first is None else first
        return Plateau(self.tol, patience=self.patience, reference=reference)

    def records(self, steps_per_pass: int) -> EvaluateEvery:
        """Steps between evaluations, or the steps after which they come.

        Where nothing is said, after some passes: a small table is learnt by heart soon. A fit that
        makes all its steps has a hundred evaluations at least.
        """
        if self.evaluate_every is not None:
            return self.evaluate_every
        fewest = max(1, self.limits.last_step // _RECORDS)
        return min(fewest, max(_FEWEST_STEPS, _PASSES_PER_RECORD * steps_per_pass))


def make_plan(
    parameters: DeepParameters,
    n_children: int | None,
    can_whiten: bool = False,
    gaussian_form: str = "full",
) -> DeepPlan:
    """Check the parameters that all families share, and resolve them.

    Parameters
    ----------
    parameters : DeepParameters
    n_children : int or None
        Components, or children of the root; None chooses the number.
    can_whiten : bool
        Whether the family may see its columns mixed.
    gaussian_form : {"full", "diag"}
        Covariances of the Gaussians that the family can begin with.
    """
    given = parameters
    _check_numbers(given)
    step, proposal, partition, name = _resolve_proposal(given)
    steps = check.check_integer("max_steps", given.max_steps, 1)
    weights = given.weight_update
    # Gaussians of a start have their own correlations; places and spreads need a frame for them.
    frames = ("columns", "whiten") if can_whiten and given.init_params == "data" else ("columns",)
    return DeepPlan(
        step=step,
        proposal=proposal,
        partition=partition,
        proposal_name=name,
        n_samples=int(given.n_samples) if step in ("mhsaem", "mcsaem") else 1,
        reuse_log_joint=bool(given.reuse_log_joint) and step == "mhsaem",
        gradient_clip=given.gradient_clip,
        batch_size=given.batch_size,
        row_adam=given.adam == "row",
        closed_form_weights=weights == "closed_form"
        or (weights == "auto" and step != "sgd" and (n_children or 0) > _MOST_GRADIENT_WEIGHTS),
        init_params=given.init_params,
        gaussian_form=gaussian_form,
        chooses=n_children is None,
        noise=float(given.noise),
        reg_covar=float(given.reg_covar),
        random_state=given.random_state if isinstance(given.random_state, int) else None,
        frames=frames if given.standardize == "auto" else (str(given.standardize or "none"),),
        rate=resolve_rate(given.learning_rate, steps),
        annealing=resolve_annealing(given.annealing, steps),
        step_size=lambda steps_per_pass: resolve_step_size(given.step_size, steps_per_pass),
        validation_share=given.validation_fraction or 0.0,
        limits=Limits(steps, Outcome.MAX_STEPS, given.max_time),
        patience=given.patience,
        tol=given.tol,
        evaluate_every=check.resolve_evaluate_every(given.evaluate_every, 0) or None,
        dtype=np.dtype(given.dtype),
        verbose=int(given.verbose),
        callbacks=tuple(check.check_callbacks(given.callbacks)),
    )


def _resolve_proposal(
    given: DeepParameters,
) -> tuple[Step, Proposal | None, RandomPartition | None, str]:
    """Kind of step, its proposal or its partitions, and the name of either."""
    algorithm, proposal = given.algorithm, given.proposal
    if algorithm == "mhsaem" and proposal != "optimal":
        if isinstance(proposal, Proposal):
            return "mhsaem", proposal, None, type(proposal).__name__
        if isinstance(proposal, RandomPartition) or proposal == "partition":
            partition = RandomPartition(block_size=_BLOCK_SIZE)
            if isinstance(proposal, RandomPartition):
                partition = proposal
            _check_partition(given, partition)
            return "partition", None, partition, "partition"
        return "mhsaem", _NAMED_PROPOSALS[proposal](), None, proposal
    # Other algorithms look at all components, which is the best that a proposal can do.
    if algorithm == "em":
        return "em", None, None, "optimal"
    return ("sgd" if algorithm == "sgd" else "mcsaem"), None, None, "optimal"


def check_number_of(name: str, number: int | str, given: DeepParameters) -> int | None:
    """Check a number of components; None stands for "auto", which needs a Gaussian start."""
    if isinstance(number, str):
        check.check_choice(name, number, ("auto",))
        if given.init_params not in ("auto", "gaussian"):
            raise ValueError(
                f"{name} must be an integer with init_params={given.init_params!r}: 'auto' chooses "
                "the number by Gaussian mixtures, got 'auto'."
            )
        return None
    return check.check_integer(name, number, 1)


def _check_numbers(given: DeepParameters) -> None:
    check.check_choice("algorithm", given.algorithm, ALGORITHMS)
    if not isinstance(given.proposal, Proposal | RandomPartition):
        check.check_choice("proposal", given.proposal, PROPOSALS)
    if check.check_integer("n_samples", given.n_samples, 1) >= MOST_DRAWS:
        raise ValueError(f"n_samples must be below {MOST_DRAWS}, got {given.n_samples!r}.")
    for name in ("batch_size", "patience"):
        if getattr(given, name) is not None:
            check.check_integer(name, getattr(given, name), 1)
    for name in ("max_time", "gradient_clip"):
        if getattr(given, name) is not None:
            check.check_number(name, getattr(given, name), 0.0, strict=True)
    check.check_choice("adam", given.adam, ("row", "dense"))
    check.check_choice("weight_update", given.weight_update, ("auto", "gradient", "closed_form"))
    check.check_choice("init_params", given.init_params, STARTS)
    check.check_choice("dtype", given.dtype, ("float32", "float64"))
    for name in ("reuse_log_joint", "warm_start"):
        check.check_flag(name, getattr(given, name))
    if given.standardize is not False:
        check.check_choice("standardize", given.standardize, FRAMES)
    if given.validation_fraction is not None:
        check.check_number("validation_fraction", given.validation_fraction, 0.0)
        if given.validation_fraction >= 1.0:
            raise ValueError(
                "validation_fraction must be None or a number in [0, 1), "
                f"got {given.validation_fraction!r}."
            )
    check.check_number("tol", given.tol, 0.0)
    for name in ("noise", "reg_covar"):
        check.check_number(name, getattr(given, name), 0.0)
    check_checkpoint(given.checkpoint, given.checkpoint_every)
    if not isinstance(given.verbose, bool):
        check.check_integer("verbose", given.verbose, 0)
    resolve_step_size(given.step_size, 2)
    if given.algorithm == "sgd" and given.annealing is not None:
        raise ValueError(
            f"annealing must be None with algorithm='sgd', got {given.annealing!r}; "
            "algorithm='em' takes the same gradients at any temperature."
        )
    if given.algorithm == "sgd" and given.weight_update == "closed_form":
        raise ValueError(
            "weight_update must be 'auto' or 'gradient' with algorithm='sgd', "
            f"got {given.weight_update!r}."
        )


def _check_partition(given: DeepParameters, partition: RandomPartition) -> None:
    if given.n_samples != 1:
        raise ValueError(
            "n_samples must be 1 with proposal='partition', which weighs all components of a "
            f"block, got {given.n_samples!r}. Take larger blocks: "
            "proposal=RandomPartition(block_size=...)."
        )
    if given.reuse_log_joint:
        raise ValueError(
            "reuse_log_joint must be False with proposal='partition', which evaluates all "
            "components of a block, got True."
        )
    if partition.relocate is True:
        raise ValueError(
            "proposal must have relocate=False or 'auto' for a mixture that is fitted by "
            f"gradients: its components are not relocated, got {given.proposal!r}."
        )

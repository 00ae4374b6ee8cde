"""The parameters of mixtures that are fitted by gradients, and how "auto" is resolved."""

from __future__ import annotations

import inspect
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING, Any

from pickmix.checks import RandomSeed, check_choice, check_flag, check_integer, check_number
from pickmix.fitting.loop import FitInfo
from pickmix.fitting.settings import check_callbacks, check_checkpoint, resolve_evaluate_every
from pickmix.selection.partitions import RandomPartition
from pickmix.selection.proposals import (
    Proposal,
    TableForgettingProposal,
    TableProposal,
    UniformProposal,
)
from pickmix.selection.randomness import MOST_DRAWS
from pickmix.selection.schedules import Schedule, resolve_annealing, resolve_rate, resolve_step_size

if TYPE_CHECKING:
    import jax

    from pickmix.gradient.network import Network

    #: (rows, current trees (B, S), draw, step) -> candidates (B, 1, S), log_q (B, 1) and log q of
    #: the current trees (B,)
    ProposeAgain = Callable[
        [jax.Array, jax.Array, int, jax.Array], tuple[jax.Array, jax.Array, jax.Array]
    ]

ALGORITHMS = ("mhsaem", "mcsaem", "em", "sgd")
STARTS = ("auto", "gaussian", "data", "paper")
_NAMED_PROPOSALS: dict[str, Callable[[], Proposal]] = {
    "uniform": UniformProposal,
    "table": TableProposal,
    "table-forgetting": TableForgettingProposal,
}
PROPOSALS = ("uniform", "optimal", "table", "table-forgetting", "partition")
_CHOICES: dict[str, tuple[str, ...]] = {
    "algorithm": ALGORITHMS,
    "adam": ("row", "dense"),
    "weight_update": ("auto", "gradient", "closed_form"),
    "init_params": STARTS,
    "dtype": ("float32", "float64"),
}
#: Passes over each batch of a stream. More of them overfit small batches, fewer waste rows.
N_PASSES = 10
# Components per block unless given: deep ones cost too much for the blocks of Gaussians.
_BLOCK_SIZE = 4
# Beyond this many children of the root, weights come in closed form.
_MOST_GRADIENT_WEIGHTS = 1024
# Evaluations of a fit that makes all its steps, at least; else one after so many passes and steps.
_RECORDS = 100
_PASSES_PER_RECORD = 2
_FEWEST_STEPS = 10

Callback = Callable[[FitInfo], Any]
_BEFORE_HEADING = re.compile(r"\n\n(?=\w+\n-+\n)")


# Estimators are compared by identity and shown by scikit-learn.
@dataclass(eq=False, repr=False)
class DeepParameters:
    """Parameters of mixtures that are fitted by gradients.

    A family adds its own parameters as a dataclass that inherits from this one. Its docstring gets
    the sections of this one, so that `help` shows all parameters.

    Parameters
    ----------
    algorithm : {"mhsaem", "mcsaem", "em", "sgd"}, default="mhsaem"
        "mhsaem" evaluates `n_samples` + 1 components per row, or a block of them. The others
        evaluate all: "mcsaem" draws from the exact posterior, "em" takes exact responsibilities,
        "sgd" follows the gradient of log p(x).
    proposal : {"uniform", "optimal", "table", "table-forgetting", "partition"}, Proposal or \
            RandomPartition, default="uniform"
        For "mhsaem": how the next component of a row is proposed. "optimal" is "mcsaem".
        "partition" evaluates a small random block of components (4, or
        `RandomPartition(block_size=...)`), draws the next component from the posterior within the
        block, and weights the gradients of the block by that posterior.
    n_samples : int, default=1
        M, the draws per visit of a row; 1 with "partition".
    reuse_log_joint : bool, default=False
        For "mhsaem": take the log-joint of a row's current component from its last visit.
    batch_size : int or None, default=100
        B, the rows per step; None means all rows.
    max_steps : int, default=20000
        T, the most steps.
    max_time : float, default=None
        Most seconds of work.
    learning_rate : float, "cosine" or callable, default=1e-3
        Learning rate of Adam. "cosine" falls from 1e-3 to zero over `max_steps`; a callable is
        called with t = 1, 2, ...
    adam : {"row", "dense"}, default="row"
        "row" updates Adam's moments only for the rows of the parameter tables that a step visits,
        "dense" for all of them. "em" and "sgd" visit all rows.
    weight_update : {"auto", "gradient", "closed_form"}, default="auto"
        Mixture weights by gradients of a softmax, or as a running average with `step_size`. "auto"
        means gradients up to 1024 components. "sgd" takes gradients only.
    step_size : float, "paper", callable or "auto", default="auto"
        Step size gamma_t of weights in closed form and of the table proposals.
    annealing : None, "anti" or callable, default=None
        Inverse temperature beta_t of the posteriors. "anti" flattens them first and sharpens them
        later. Not for "sgd".
    gradient_clip : float, default=None
        Largest norm of the gradient of a step.
    init_params : {"auto", "gaussian", "data", "paper"}, default="auto"
        "gaussian" fits `GaussianMixture` with the same `random_state` first. Components begin as
        its Gaussians, with its weights, and chains are drawn from its posterior, so the fit begins
        where the Gaussian fit ended. "data" places components by k-means and starts each chain at
        the nearest one; "paper" does not use the data. "auto" is "gaussian" for components that can
        be Gaussians, else "data" for components that can be placed, else "paper".
    reg_covar : float, default=1e-6
        `reg_covar` of the Gaussian mixture that the fit begins with. Columns with spreads below
        1e-2 or above 1e2 are standardised for it.
    noise : float, default=1e-4
        Standard deviation of the noise that is added to a row at each visit, in units of the
        columns as the model sees them (standardised, unless `standardize` says otherwise). It keeps
        densities finite where columns are rounded or rows lie in a plane.
    standardize : {"auto", "whiten", "columns"} or False, default="auto"
        How rows are transformed for the model. "whiten": shifted, and mapped to the identity as
        covariance, so that components need not learn correlations from their few rows. "columns":
        columns shifted and scaled to variance one. False: rows as they are. "auto" is "columns";
        with `init_params="data"` it chooses one of the first two for flows and networks with
        transforms, by rows held out from k-means. Validation rows do not take part. Densities are
        always those of the original data.
    validation_fraction : float or None, default=0.1
        Share of the rows used for validation, which the fit does not learn from; none if there are
        fewer than 20 rows. Validation rows count equally, whatever their weights. Where a Gaussian
        start is kept, Gaussians are fitted once more, to all rows.
    patience : int or None, default=20
        Stop after this many evaluations in a row that did not raise the validation log-likelihood
        by `tol` (the training log-likelihood, if there are no validation rows). None makes all
        steps. The best parameters are kept if they beat the start by one standard error, or a
        Gaussian one by three; else the start is kept.
    tol : float, default=1e-4
        Smallest rise that counts, in nats per row.
    evaluate_every : int, sequence of int or "auto", default="auto"
        Steps between evaluations, or the steps after which to evaluate. "auto" is two passes over
        the rows, at least ten steps, and at most a hundredth of `max_steps`.
    dtype : {"float32", "float64"}, default="float32"
        Precision of the computation. "float64" does not touch JAX's global setting.
    random_state : int, RandomState, Generator or None, default=None
        The same number gives the same result.
    warm_start : bool, default=False
        Continue from the parameters, the chains (if the number of rows is the same) and the step
        number of the last fit. Adam's moments start again.
    verbose : int, default=0
        1 shows a bar, 2 a line per evaluation.
    callbacks : callable or list of callables, default=()
        Called with a `FitInfo` after each evaluation; one that returns True ends the fit.
    checkpoint : path, default=None
        Folder for checkpoints. A fit that was killed or interrupted resumes from the last one when
        the same call is made again, and gives the same result to the last bit. Other parameters or
        rows are refused. Ctrl-C and SIGTERM write a checkpoint before they end a fit.
    checkpoint_every : float, default=300
        Seconds between checkpoints. The last two are kept.
    """

    _: KW_ONLY
    algorithm: str = "mhsaem"
    proposal: str | Proposal | RandomPartition = "uniform"
    n_samples: int = 1
    reuse_log_joint: bool = False
    batch_size: int | None = 100
    max_steps: int = 20000
    max_time: float | None = None
    learning_rate: float | str | Callable[[int], float] = 1e-3
    adam: str = "row"
    weight_update: str = "auto"
    step_size: float | str | Callable[[int], float] = "auto"
    annealing: str | Callable[[int], float] | None = None
    gradient_clip: float | None = None
    init_params: str = "auto"
    reg_covar: float = 1e-6
    noise: float = 1e-4
    standardize: str | bool = "auto"
    validation_fraction: float | None = 0.1
    patience: int | None = 20
    tol: float = 1e-4
    evaluate_every: int | Sequence[int] | str = "auto"
    dtype: str = "float32"
    random_state: RandomSeed = None
    warm_start: bool = False
    verbose: int = 0
    callbacks: Callback | Sequence[Callback] = ()
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: float = 300.0

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Add the base class's parameters and attributes to the docstring."""
        super().__init_subclass__(**keywords)
        base = next(base for base in cls.__mro__[1:] if issubclass(base, DeepParameters))
        # Python may have been told to drop docstrings.
        if cls.__doc__ and base.__doc__:
            cls.__doc__ = _with_sections(cls.__doc__, base.__doc__)


def _with_sections(docstring: str, base: str) -> str:
    sections = _BEFORE_HEADING.split(inspect.cleandoc(docstring))
    for added in _BEFORE_HEADING.split(inspect.cleandoc(base))[1:]:
        title, _, entries = added.split("\n", 2)
        titles = [section.split("\n", 1)[0] for section in sections]
        if title in titles:
            sections[titles.index(title)] += f"\n{entries}"
        elif title in ("Parameters", "Attributes"):
            # After the summary, and after the parameters if there are any.
            sections.insert(1 + ("Parameters" in titles), added)
    return "\n\n".join(sections)


@dataclass(frozen=True)
class StepSettings:
    """What shapes a step. Steps with equal settings are the same compiled program."""

    algorithm: str  # "mhsaem", "partition", "mcsaem", "em" or "sgd".
    n_samples: int = 1
    row_adam: bool = True  # Adam on the visited rows of the tables only, instead of on all.
    closed_form_weights: bool = False
    reuse_log_joint: bool = False
    gradient_clip: float | None = None
    noise: float = 0.0
    #: Draws all candidates but the first, for proposals that depend on the current tree.
    propose_again: ProposeAgain | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class Settings(DeepParameters):
    """Settings of one fit, without an "auto"."""

    algorithm: str = "mhsaem"  # Also "partition".
    proposal: Proposal | RandomPartition | None = None  # type: ignore[assignment]
    learning_rate: Schedule
    step_size: Schedule
    annealing: Schedule | None = None
    evaluate_every: int | list[int] = 100
    proposal_name: str = ""
    closed_form_weights: bool = False
    frames: tuple[str, ...] = ("columns",)  # Kinds of `find_frame` to choose from.
    gaussian_seed: int = 0
    n_children: int | None = None  # Of the root; None lets Gaussian mixtures choose.

    def of_step(self) -> StepSettings:
        return StepSettings(
            self.algorithm,
            self.n_samples,
            self.adam == "row",
            self.closed_form_weights,
            self.reuse_log_joint,
            self.gradient_clip,
            self.noise,
        )


def resolve(
    parameters: DeepParameters,
    network: Network,
    n_children: int | None,
    n_rows: int,
    seed: int,
    first_step: int = 1,
    n_seen: float | None = None,
) -> Settings:
    """Resolve checked parameters of an estimator for a fit to `n_rows` rows.

    `n_children` is None if the number is to be chosen. Schedules with an end count steps from
    `first_step` on. `n_seen` are the rows of a stream so far, if the rows are a batch of one.
    """
    given = {each.name: getattr(parameters, each.name) for each in fields(DeepParameters)}
    algorithm, proposal, name = _resolve_proposal(parameters.algorithm, parameters.proposal)
    batch_size = parameters.batch_size or n_rows
    steps_per_pass = -(-n_rows // min(batch_size, n_rows))
    all_steps = max_steps = int(parameters.max_steps)
    # Few rows are overfitted soon, so evaluations come after some passes.
    evaluate_every = min(
        max(1, max_steps // _RECORDS), max(_FEWEST_STEPS, _PASSES_PER_RECORD * steps_per_pass)
    )
    steps_averaged = steps_per_pass
    if n_seen is not None:
        evaluate_every = max_steps = N_PASSES * steps_per_pass
        # Closed-form weights average over all rows of the stream, not over a batch alone.
        steps_averaged = max(steps_per_pass, math.ceil(n_seen / batch_size))
    weights = parameters.weight_update
    many = (n_children or 0) > _MOST_GRADIENT_WEIGHTS
    random_state = parameters.random_state
    resolved = {
        "algorithm": algorithm,
        "proposal": proposal,
        "proposal_name": name,
        "n_samples": int(parameters.n_samples) if algorithm in ("mhsaem", "mcsaem") else 1,
        "closed_form_weights": weights == "closed_form"
        or (weights == "auto" and algorithm != "sgd" and many),
        "reuse_log_joint": bool(parameters.reuse_log_joint) and algorithm == "mhsaem",
        "noise": float(parameters.noise),
        "learning_rate": _from_step(first_step, resolve_rate(parameters.learning_rate, all_steps)),
        "step_size": resolve_step_size(parameters.step_size, steps_averaged),
        "annealing": _from_step(first_step, resolve_annealing(parameters.annealing, all_steps)),
        "max_steps": max_steps,
        "evaluate_every": resolve_evaluate_every(parameters.evaluate_every, evaluate_every),
        "patience": parameters.patience if n_seen is None else None,
        "verbose": int(parameters.verbose),
        "init_params": _resolve_start(parameters.init_params, network),
        "frames": _resolve_frames(parameters, network),
        "gaussian_seed": random_state if isinstance(random_state, int) else seed % 2**32,
        "n_children": n_children,
    }
    return Settings(**given | resolved)


def _resolve_proposal(
    algorithm: str, proposal: Any
) -> tuple[str, Proposal | RandomPartition | None, str]:
    """Resolve the kind of step, its proposal or its blocks, and the name of either."""
    if algorithm == "mhsaem" and proposal != "optimal":
        if isinstance(proposal, Proposal):
            return "mhsaem", proposal, type(proposal).__name__
        if isinstance(proposal, RandomPartition):
            return "partition", proposal, "partition"
        if proposal == "partition":
            return "partition", RandomPartition(block_size=_BLOCK_SIZE), "partition"
        return "mhsaem", _NAMED_PROPOSALS[proposal](), proposal
    # The others evaluate all components, which is the best that a proposal can do.
    return "mcsaem" if algorithm == "mhsaem" else algorithm, None, "optimal"


def _resolve_start(init_params: str, network: Network) -> str:
    if init_params == "gaussian" and not network.takes_gaussians:
        raise ValueError(
            "init_params must be 'auto', 'data' or 'paper' for a component without a method "
            "from_gaussian(params, mean, precision_cholesky), got 'gaussian'."
        )
    if init_params != "auto":
        return init_params
    if network.takes_gaussians:
        return "gaussian"
    return "data" if network.places else "paper"


def _resolve_frames(parameters: DeepParameters, network: Network) -> tuple[str, ...]:
    if parameters.standardize != "auto":
        return (str(parameters.standardize or "none"),)
    # Gaussians have correlations of their own; clusters with spreads need a frame for them.
    if parameters.init_params == "data" and network.mixes_columns:
        return "columns", "whiten"
    return ("columns",)


def _from_step(first_step: int, schedule: Schedule | None) -> Any:
    """Make a schedule count from `first_step` on."""
    if schedule is None or first_step == 1:
        return schedule
    return lambda step: schedule(step - first_step + 1)


def check_parameters(given: DeepParameters) -> None:
    """Raise for a parameter of an estimator that no fit could take."""
    for name, choices in _CHOICES.items():
        check_choice(name, getattr(given, name), choices)
    if not isinstance(given.proposal, Proposal | RandomPartition):
        check_choice("proposal", given.proposal, PROPOSALS)
    if check_integer("n_samples", given.n_samples, 1) >= MOST_DRAWS:
        raise ValueError(f"n_samples must be below {MOST_DRAWS}, got {given.n_samples!r}.")
    for name in ("batch_size", "patience"):
        if getattr(given, name) is not None:
            check_integer(name, getattr(given, name), 1)
    for name in ("max_time", "gradient_clip"):
        if getattr(given, name) is not None:
            check_number(name, getattr(given, name), 0.0, strict=True)
    for name in ("reuse_log_joint", "warm_start"):
        check_flag(name, getattr(given, name))
    if given.standardize is not False:
        check_choice("standardize", given.standardize, ("auto", "whiten", "columns"))
    if given.validation_fraction is not None:
        check_number("validation_fraction", given.validation_fraction, 0.0)
        if given.validation_fraction >= 1.0:
            raise ValueError(
                "validation_fraction must be None or a number in [0, 1), "
                f"got {given.validation_fraction!r}."
            )
    for name in ("tol", "noise", "reg_covar"):
        check_number(name, getattr(given, name), 0.0)
    check_checkpoint(given.checkpoint, given.checkpoint_every)
    if not isinstance(given.verbose, bool):
        check_integer("verbose", given.verbose, 0)
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
    _check_partition(given)
    steps = check_integer("max_steps", given.max_steps, 1)
    resolve_rate(given.learning_rate, steps)
    resolve_annealing(given.annealing, steps)
    resolve_evaluate_every(given.evaluate_every, 1)
    check_callbacks(given.callbacks)


def _check_partition(given: DeepParameters) -> None:
    partition = _resolve_proposal(given.algorithm, given.proposal)[1]
    if not isinstance(partition, RandomPartition):
        return
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


def check_number_of(given: DeepParameters, name: str, number: int | str) -> int | None:
    """Check a number of components; None stands for "auto", which needs a Gaussian start."""
    if not isinstance(number, str):
        return check_integer(name, number, 1)
    check_choice(name, number, ("auto",))
    if given.init_params not in ("auto", "gaussian"):
        raise ValueError(
            f"{name} must be an integer with init_params={given.init_params!r}: 'auto' chooses "
            "the number by Gaussian mixtures, got 'auto'."
        )
    return None

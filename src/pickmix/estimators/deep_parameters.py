"""The parameters that FlowMixture, SumProductTransformNetwork and Mixture share."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from pickmix.estimators.validation import RandomSeed
from pickmix.fitting.loop import FitInfo
from pickmix.selection.proposals import Proposal
from pickmix.selection.settings import RandomPartition

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
        fewer than 20 rows. Validation rows count equally, whatever their weights.
    patience : int or None, default=20
        Stop after this many evaluations in a row that did not raise the validation log-likelihood
        by `tol` (the training log-likelihood, if there are no validation rows). None makes all
        steps. The best parameters are kept if they beat the start by one standard error; else the
        start is kept.
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
    for section in _BEFORE_HEADING.split(inspect.cleandoc(base))[1:]:
        title, _, entries = section.split("\n", 2)
        titles = [own.split("\n", 1)[0] for own in sections]
        if title in titles:
            sections[titles.index(title)] += f"\n{entries}"
        elif title in ("Parameters", "Attributes"):
            # After the summary, and after the parameters if there are any.
            sections.insert(1 + ("Parameters" in titles), section)
    return "\n\n".join(sections)

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
    """What a mixture that is fitted by gradients can be told.

    A family adds its own parameters as a dataclass that inherits from this one; its docstring
    gets the sections of this one, so that `help` tells all of them.

    Parameters
    ----------
    algorithm : {"mhsaem", "mcsaem", "em", "sgd"}, default="mhsaem"
        "mhsaem" evaluates `n_samples` + 1 components per row, or a block of them. The others
        evaluate all: "mcsaem" draws from the exact posterior, "em" takes exact responsibilities,
        "sgd" follows the gradient of log p(x).
    proposal : {"uniform", "optimal", "table", "table-forgetting", "partition"}, Proposal or \
            RandomPartition, default="uniform"
        For "mhsaem": where a row's chain may go next. "optimal" is "mcsaem". "partition" evaluates
        a small random block of components (4, or `RandomPartition(block_size=...)`), draws the
        row's next one from the posterior within it and weighs the gradients of all by that.
    n_samples : int, default=1
        M, draws per visit of a row; 1 with "partition".
    reuse_log_joint : bool, default=False
        For "mhsaem": take the log-joint of a row's current component from its last visit.
    batch_size : int or None, default=100
        B, rows per step; None takes all.
    max_steps : int, default=20000
        T.
    max_time : float, default=None
        Seconds of work.
    learning_rate : float, "cosine" or callable, default=1e-3
        Adam's. "cosine" falls from 1e-3 to zero over `max_steps`; a callable is given t = 1, 2, ...
    adam : {"row", "dense"}, default="row"
        Whether moments move only with the rows that a step visits, or all of them. "em" and "sgd"
        visit all rows.
    weight_update : {"auto", "gradient", "closed_form"}, default="auto"
        Mixture weights by gradients of a softmax, or as a running average with `step_size`. "auto"
        is the former up to 1024 components. "sgd" knows gradients only.
    step_size : float, "paper", callable or "auto", default="auto"
        gamma_t of closed-form weights and of the table proposals.
    annealing : None, "anti" or callable, default=None
        Inverse temperature beta_t; not for "sgd".
    gradient_clip : float, default=None
        Largest norm of a step's gradient.
    init_params : {"auto", "gaussian", "data", "paper"}, default="auto"
        "gaussian" fits `GaussianMixture` with the same `random_state` first. Components begin as
        its Gaussians, with its weights, and chains are drawn from its posterior, so the fit begins
        where the Gaussian one has ended. "data" places components by k-means and begins each chain
        at the nearest; "paper" does not look at the data. "auto" is "gaussian" for components that
        can be Gaussians, else "data" for those that can be placed, else "paper".
    reg_covar : float, default=1e-6
        That of the Gaussian mixture that a fit begins with. Columns with spreads below 1e-2 or
        above 1e2 are standardised for it.
    noise : float, default=1e-4
        Standard deviation of noise that is added to a row each time it is visited, in units of the
        columns as the model sees them (standardised, if `standardize` says nothing else). It keeps
        densities finite where columns are rounded or rows lie in a plane.
    standardize : {"auto", "whiten", "columns"} or False, default="auto"
        What the model sees: rows shifted and mapped to covariance one ("whiten"; correlations then
        need not be learnt by every component from its own few rows), columns shifted and scaled to
        variance one, or the rows as they are. "auto" is "columns"; with `init_params="data"` it
        chooses one of the first two, by rows held out from k-means, for flows and networks with
        transforms. Only rows that are learnt from decide. Densities are those of the data as they
        came.
    validation_fraction : float or None, default=0.1
        Share of the rows that is watched and not learnt from; with fewer than 20 rows, none is.
        Watched rows count alike, whatever they weigh.
    patience : int or None, default=20
        End when so many evaluations in a row have not raised the validation log-likelihood by
        `tol` (the training one, without validation rows). None makes all steps. What is kept must
        be above the start by one standard error, or else the start is.
    tol : float, default=1e-4
        Nats per row.
    evaluate_every : int, sequence of int or "auto", default="auto"
        Steps between evaluations, or the steps after which to evaluate. "auto" is two passes over
        the rows, at least ten steps, and at most a hundredth of `max_steps`.
    dtype : {"float32", "float64"}, default="float32"
        What the model computes in. "float64" does not touch JAX's global setting.
    random_state : int, RandomState, Generator or None, default=None
        Same number, same result.
    warm_start : bool, default=False
        Go on from the last fit's parameters, chains (if the rows are as many) and step number.
        Adam's moments begin anew.
    verbose : int, default=0
        1 shows a bar, 2 a line per evaluation.
    callbacks : callable or list of callables, default=()
        Called with a `FitInfo` after each evaluation; one that returns True ends the fit.
    checkpoint : path, default=None
        Folder for checkpoints. A fit that was killed or interrupted goes on from the last one when
        the same call is made again, and ends with the same bits. Other parameters or rows are
        refused. Ctrl-C and SIGTERM write one before they end a fit.
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

"""What a fit by gradients does, with every choice made: nothing is left to "auto"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from pickmix.selection.proposals import Proposal
from pickmix.selection.schedules import ConstantRate, ConstantStep, Schedule
from pickmix.selection.settings import RandomPartition

if TYPE_CHECKING:
    import jax

    #: (rows, current trees (B, S), draw, step) -> candidates (B, 1, S), log_q (B, 1) and log q of
    #: the current trees (B,)
    ProposeAgain = Callable[
        [jax.Array, jax.Array, int, jax.Array], tuple[jax.Array, jax.Array, jax.Array]
    ]


@dataclass(frozen=True)
class Settings:
    """How a network is fitted.

    Settings are equal if their steps are the same compiled program: only fields that shape it are
    compared.
    """

    #: "mhsaem", "partition", "mcsaem", "em" or "sgd".
    algorithm: str
    #: M, the draws per visit of a row; 1 for "partition".
    n_samples: int = 1
    #: Adam on the visited rows of the tables only, instead of on all.
    row_adam: bool = True
    closed_form_weights: bool = False
    reuse_log_joint: bool = False
    #: Largest norm of the gradient.
    gradient_clip: float | None = None
    #: Standard deviation of the noise that is added to rows at each visit, as the model sees them.
    noise: float = 0.0
    #: Draws all candidates but the first, for proposals that depend on the current tree.
    propose_again: ProposeAgain | None = None

    # Engine: the proposal of "mhsaem" or the blocks of "partition"; learning rate, step size of
    # closed-form weights and learning proposals, and inverse temperature by step.
    proposal: Proposal | RandomPartition | None = field(default=None, compare=False)
    rate: Schedule = field(default=ConstantRate(1e-3), compare=False)
    gamma: Schedule = field(default=ConstantStep(0.1), compare=False)
    beta: Schedule | None = field(default=None, compare=False)
    #: B; None means all rows.
    batch_size: int | None = field(default=None, compare=False)
    dtype: np.dtype = field(default=np.dtype(np.float32), compare=False)

    # Loop.
    max_steps: int = field(default=20000, compare=False)
    max_time: float | None = field(default=None, compare=False)
    evaluate_every: int | Sequence[int] = field(default=100, compare=False)
    patience: int | None = field(default=None, compare=False)
    tol: float = field(default=1e-4, compare=False)
    verbose: int = field(default=0, compare=False)
    callbacks: tuple[Callable[..., Any], ...] = field(default=(), compare=False)

    # Start: "gaussian", "data" or "paper"; kinds of `find_frame` to choose from; covariances,
    # regularisation and seed of the Gaussian mixtures.
    init_params: str = field(default="paper", compare=False)
    frames: tuple[str, ...] = field(default=("columns",), compare=False)
    gaussian_form: str = field(default="full", compare=False)
    reg_covar: float = field(default=1e-6, compare=False)
    gaussian_seed: int = field(default=0, compare=False)
    #: Of the root; None lets Gaussian mixtures choose.
    n_children: int | None = field(default=None, compare=False)
    #: What `proposal_` says.
    proposal_name: str = field(default="", compare=False)

    def of_program(self) -> Settings:
        """The fields that are compared alone: programs outlive fits, whose objects must not."""
        compared = (each.name for each in fields(self) if each.compare)
        return Settings(**{name: getattr(self, name) for name in compared})

"""Checkpoints of deep fits: what they hold, and how a fit resumes from one. Needs JAX."""

from __future__ import annotations

import pickle
import tempfile
from dataclasses import dataclass
from typing import Any

from pickmix.estimators.deep_frame import Frame
from pickmix.fitting.checkpoint import Checkpoints, say_resumed
from pickmix.fitting.loop import Moment
from pickmix.gradient.engine import GradientEngine
from pickmix.gradient.gaussian_start import Gaussians
from pickmix.gradient.proposals import TreeProposal
from pickmix.gradient.start import Start


@dataclass(frozen=True)
class DeepStage:
    """A fit under way: what a checkpoint holds of it.

    Attributes
    ----------
    engine : dict
        What `GradientEngine.export` gave.
    moment : Moment
    frame : Frame
    first_value : float or None
        Validation log-likelihood of the start.
    start_seconds : float
    """

    engine: dict[str, Any]
    moment: Moment
    frame: Frame
    first_value: float | None
    start_seconds: float

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.moment.outcome is not None

    def start(self) -> Start:
        """Something to make an engine of, before it takes up the rest."""
        state = self.engine["state"]
        return Start(state["tables"], state["root"][0], state["chain"])


@dataclass(frozen=True)
class DeepSearch:
    """What a fit that chooses its number of components begins with, kept beside its fits.

    Attributes
    ----------
    frame : Frame
    candidates : list of Gaussians
        The most promising first.
    seconds : float
        What the search took.
    """

    frame: Frame
    candidates: list[Gaussians]
    seconds: float


@dataclass
class DeepKeeper:
    """Writes the moments of the loop with what the engine holds."""

    checkpoints: Checkpoints
    engine: GradientEngine
    frame: Frame
    first_value: float | None
    start_seconds: float

    def due(self) -> bool:
        """Whether it is time to."""
        return self.checkpoints.due()

    def keep(self, moment: Moment) -> None:
        """Write a checkpoint."""
        stage = DeepStage(
            self.engine.export(), moment, self.frame, self.first_value, self.start_seconds
        )
        self.checkpoints.write(stage, {})


def resume(checkpoints: Checkpoints) -> DeepStage | None:
    """The state of an earlier fit of the same call, if there is one; a message says so."""
    found: DeepStage | None = checkpoints.read({})
    if found is not None:
        ended = f", where it had ended ({found.moment.outcome})" if found.has_ended else ""
        say_resumed(checkpoints.folder, f"step {found.moment.step}{ended}")
    return found


def resume_search(checkpoints: Checkpoints) -> DeepSearch | None:
    """What the search of this call has found, if it was made before."""
    found: DeepSearch | None = checkpoints.read({})
    return found


def check_keepable(proposal: TreeProposal) -> None:
    """Refuse a user's own proposal that checkpoints cannot hold: now, not when one is needed."""
    kind = type(proposal.proposal)
    if kind.__module__.startswith("pickmix."):
        return
    with tempfile.TemporaryDirectory() as folder:
        trial = Checkpoints(folder, 0.0, {})
        try:
            trial.write(proposal.export(), {})
            trial.read({})
        except (ValueError, TypeError, AttributeError, pickle.PicklingError) as error:
            raise ValueError(
                "checkpoint must be None, or the attributes of the proposal must be numbers, "
                f"strings, arrays or containers of them; a {kind.__name__} cannot be kept: {error}"
            ) from error

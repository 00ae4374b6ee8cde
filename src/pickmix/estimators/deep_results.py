"""What deep fits hand on: parameters, where a fit has come to, and what there is to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.estimators.checkpointing import fingerprint_of
from pickmix.estimators.deep_frame import Frame
from pickmix.fitting.stopping import Outcome
from pickmix.gradient.stream import Moments


@dataclass(frozen=True)
class Parameters:
    """A frame, the tables of a network in it and the root's weights (s,)."""

    frame: Frame
    tables: tuple[np.ndarray, ...]
    weights: np.ndarray


@dataclass(frozen=True)
class Reached:
    """The state of a fit, from which another may continue; steps and passes are of all so far.

    `moments` are Adam's, for a stream that continues.
    """

    parameters: Parameters
    chain: np.ndarray
    n_steps: int
    passes: float
    split_seed: int
    moments: Moments | None = None

    @property
    def n_children(self) -> int:
        """Children of the root."""
        return int(self.parameters.weights.shape[0])

    def fingerprint(self) -> dict[str, Any]:
        """What identifies this state."""
        parameters = self.parameters
        arrays = {"weights": parameters.weights, "chain": self.chain}
        arrays |= {f"table {number}": table for number, table in enumerate(parameters.tables)}
        found: dict[str, Any] = {name: fingerprint_of(array) for name, array in arrays.items()}
        return found | {"n_steps": self.n_steps}


@dataclass(frozen=True)
class DeepFit:
    """What there is to know about a fit."""

    reached: Reached
    n_passes: int
    trace: np.ndarray
    outcome: Outcome
    n_evaluations: int
    best_validation: float
    start_validation: float
    watched_scores: np.ndarray | None
    start_seconds: float
    compile_seconds: float

    @property
    def work_seconds(self) -> float:
        """Seconds of steps."""
        return float(self.trace["seconds"][-1]) if self.trace.size else 0.0

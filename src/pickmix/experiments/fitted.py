"""What a rival hands back, and how it reports on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pickmix.experiments.scoring import GaussianParameters

# Called with the evaluations of a component on a row so far, and a function that gives the
# parameters as they stand. The harness decides whether to measure; its clock stops meanwhile.
Record = Callable[[int, Callable[[], GaussianParameters]], None]


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted mixture.

    Attributes
    ----------
    parameters : GaussianParameters
    outcome : str
        "converged", "max_iter" or another name for how the fit ended.
    evaluations : int or None
        Evaluations of a component on a row, the start's left out; None where that has no meaning.
    compile_seconds : float
        Part of the time that went into compilation.
    work_seconds : float or None
        Time by the library's own clock, where it has one.
    """

    parameters: GaussianParameters
    outcome: str
    evaluations: int | None = None
    compile_seconds: float = 0.0
    work_seconds: float | None = None

    def score_samples(self, X: np.ndarray) -> np.ndarray:
        """Log-density of each row of X (N, D), as (N,)."""
        return self.parameters.score_samples(X)


def record_nothing(evaluations: int, parameters: Callable[[], GaussianParameters]) -> None:
    """Serve as a `Record` that keeps nothing."""

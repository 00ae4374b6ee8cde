"""The result of a rival, and how well it explains rows: one measure for all and the truth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pickmix.data.known_mixture import KnownMixture
from pickmix.data.pair_overlap import FloatArray
from pickmix.estimators.gaussian_mixture import GaussianMixture

# A component that weighs less than half a row of the training data explains none of them.
_LEAST_ROWS = 0.5


@dataclass(frozen=True, eq=False)
class GaussianParameters(KnownMixture):
    """Weights (K,), means (K, D) and covariances (K, D, D) of a mixture, from any library.

    Rivals deliver different precisions and types; float64 arrays come out here.
    """

    def __post_init__(self) -> None:
        for name in ("weights", "means", "covariances"):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            if not np.isfinite(values).all():
                raise ValueError(f"{name} must be finite; got {values[~np.isfinite(values)][0]}")
            object.__setattr__(self, name, values)
        super().__post_init__()

    def score_samples(self, X: ArrayLike) -> FloatArray:
        """Log-density of each row of X (N, D), as (N,); an error if a covariance is singular."""
        K, D = self.means.shape
        # The estimator's kernels: many times faster than NumPy at thousands of components.
        mixture = GaussianMixture(K)
        mixture.weights_ = self.weights / self.weights.sum()
        mixture.means_, mixture.covariances_ = self.means, self.covariances
        mixture.n_features_in_ = D
        return np.asarray(mixture.score_samples(X), dtype=np.float64)

    def live_components(self, n_rows: int) -> int:
        """Components that weigh at least half a row of n_rows."""
        shares = self.weights / self.weights.sum()
        return int(np.count_nonzero(shares * n_rows >= _LEAST_ROWS))


# Called with the evaluations of a component on a row so far, and a function that gives the
# parameters as they stand. The harness decides whether to measure; its clock stops meanwhile.
Record = Callable[[int, Callable[[], GaussianParameters]], None]


def record_nothing(evaluations: int, parameters: Callable[[], GaussianParameters]) -> None:
    """Serve as a `Record` that keeps nothing."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted mixture, and how the fit ended: "converged", "max_iter" or another name.

    Evaluations of a component on a row are counted without the start's, where that has a meaning.
    Work seconds are by the library's own clock, where it has one; part of the time may have gone
    into compilation.
    """

    parameters: GaussianParameters
    outcome: str
    evaluations: float = math.nan
    compile_seconds: float = 0.0
    work_seconds: float = math.nan

    def score_samples(self, X: np.ndarray) -> np.ndarray:
        """Log-density of each row of X (N, D), as (N,)."""
        return self.parameters.score_samples(X)

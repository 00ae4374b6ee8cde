"""How well a Gaussian mixture explains rows: one measure for all rivals and for the truth."""

from __future__ import annotations

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
    """Weights (K,), means (K, D) and covariances (K, D, D) of a mixture, whoever fitted it.

    Rivals deliver different precisions and types; float64 arrays come out here.

    Examples
    --------
    >>> standard = GaussianParameters([1.0], [[0.0, 0.0]], [np.eye(2)])
    >>> standard.score_samples(np.zeros((1, 2))).round(6)  # -log(2 pi)
    array([-1.837877])
    """

    def __post_init__(self) -> None:
        for name in ("weights", "means", "covariances"):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            if not np.isfinite(values).all():
                raise ValueError(f"{name} must be finite; got {values[~np.isfinite(values)][0]}")
            object.__setattr__(self, name, values)
        super().__post_init__()

    def score_samples(self, X: ArrayLike) -> FloatArray:
        """Log-density of each row of X (N, D), as (N,).

        Raises
        ------
        ValueError
            If a covariance is not positive definite.
        """
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

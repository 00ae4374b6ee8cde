"""What Gaussian components have in common: a pooled covariance, and how much they lean on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pickmix.families.base import Prior
from pickmix.families.covariance_forms import CovarianceForm
from pickmix.families.layout import Moments
from pickmix.families.leaning_prior import pooled_floor


@dataclass
class GaussianPrior(Prior):
    """The pooled covariance and the rules by which components lean on it.

    Attributes
    ----------
    form : CovarianceForm
    pooled : (P,) array
        Covariance that the components have in common.
    n_rows : float
        Rows behind all statistics together.
    least_count : float
        Components with fewer effective rows lean on the pooled covariance; 0 switches that off.
    scatter, totals
        Sum of mass times covariance, and sums of mass, squared weights and degrees of freedom,
        each with forgetting: what the pooled covariance comes from without pseudo-rows.
    is_shared : bool
        Whether the pooled covariance is that of every component.
    """

    form: CovarianceForm
    pooled: np.ndarray
    n_rows: float
    least_count: float
    scatter: np.ndarray
    totals: np.ndarray
    is_shared: bool

    def floor(self) -> np.ndarray:
        """A lower bound (P,) of the pooled covariance."""
        return pooled_floor(self.form, self.pooled)

    def pool(self, moments: Moments, masses: np.ndarray) -> None:
        """The pooled covariance is learnt from updates."""

    def shrink(
        self, covariances: np.ndarray, masses: np.ndarray, squares: np.ndarray
    ) -> np.ndarray:
        """Covariances in use (U, P), before reg_covar; masses (U,) are shares of all rows."""
        if self.least_count == 0.0:
            return covariances
        spread = squares * self.least_count
        ratio = np.divide(masses**2, spread, out=np.zeros_like(masses), where=spread > 0.0)
        trust = np.minimum(1.0, ratio)[:, None]
        return np.asarray(trust * covariances + (1.0 - trust) * self.pooled)

    @property
    def needs_gains(self) -> bool:
        """Whether the pooled covariance is learnt from every update."""
        return 0.0 < self.least_count < np.inf or self.is_shared

    def absorb(
        self, kept: float, mass: float, squares: float, freedom: float, scatter: np.ndarray
    ) -> None:
        """Update the pooled covariance by sums over the components that a step has touched.

        kept = 1 - gamma. Without a least count the pooled covariance is scatter / mass, the maximum
        of the likelihood. Otherwise it is scatter / freedom, since components with a row or two
        have mass but hardly any scatter; and as long as there are fewer than `least_count`
        effective degrees of freedom it leans on its past.
        """
        self.scatter = kept * self.scatter + self.form.project(scatter[None])[0]
        self.totals = np.array([kept, kept * kept, kept]) * self.totals + [mass, squares, freedom]
        trust, divisor = 1.0, self.totals[0]
        if self.least_count > 0.0:
            divisor = self.totals[2]
            spread = self.totals[1] * self.least_count
            trust = min(1.0, self.totals[0] * self.totals[2] / spread) if spread > 0.0 else 0.0
        if divisor > 1e-140 and trust > 0.0:
            self.pooled = trust * self.scatter / divisor + (1.0 - trust) * self.pooled

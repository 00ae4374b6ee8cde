"""What Gaussian components have in common: a pooled covariance, and how much they lean on it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import numpy as np

from pickmix.families.covariance_forms import CovarianceForm
from pickmix.families.layout import Moments

# Pseudo-rows of the prior on covariances before the components have been asked.
PRIOR_COUNT = 10.0
# Components that tell how much the prior should weigh, and how often they are asked.
_JUDGED = 200
_POOLINGS_PER_CHOICE = 5


def relative_sizes(
    covariances: np.ndarray, trace_weights: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """How large covariances (K, P) are, relative to the pooled one: tr(pooled^-1 C) / D.

    The size of a covariance from few rows is uncertain and leans on 1, in logarithms: two
    pseudo-rows are of size 1.
    """
    many = counts > 1.0
    freedom = np.where(many, counts - 1.0, 1.0)
    sizes = covariances @ trace_weights * (counts / freedom)
    powers = freedom / (counts + 1.0)
    return np.where(many, np.exp(powers * np.log(np.maximum(sizes, 1e-280))), 1.0)


@dataclass
class GaussianPrior:
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
    prior_count : float
        Pseudo-rows with the shape of the pooled covariance, in the component's own size, that are
        added to every covariance; 0 switches that off.
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
    prior_count: float
    scatter: np.ndarray
    totals: np.ndarray
    is_shared: bool
    trace_weights: np.ndarray = field(init=False)
    _n_poolings: int = 0

    def __post_init__(self) -> None:
        self.trace_weights = np.ones_like(self.pooled)

    def copy(self) -> GaussianPrior:
        """A copy that learns on its own."""
        other = copy.copy(self)
        other.pooled = self.pooled.copy()
        other.scatter = self.scatter.copy()
        other.totals = self.totals.copy()
        return other

    def shrinkage(self) -> tuple[float, float, float]:
        """Least count, pseudo-rows and rows, as kernels take them."""
        return float(self.least_count), float(self.prior_count), float(self.n_rows)

    def floor(self) -> np.ndarray:
        """A lower bound (P,) of the pooled covariance."""
        unit = self.form.identity()
        mean_variance = float(self.pooled @ unit) / float(unit @ unit)
        return (self.form.reg_covar + 1e-10 * mean_variance + 1e-280) * unit

    def pool(self, moments: Moments, masses: np.ndarray) -> None:
        """Let the pooled covariance follow the components', by shape.

        It is the mean of covariance / size, times their geometric mean size, components counted by
        their degrees of freedom. Unlike the plain mean it is not ruled by the widest components.
        """
        if self.prior_count == 0.0:
            return
        floor = self.floor()
        self.trace_weights = self.form.trace_weights(self.pooled + floor)
        freedom = np.maximum(masses * self.n_rows - 1.0, 0.0)
        covariances = self.form.project(moments.scatter)
        sizes = covariances @ self.trace_weights
        freedom[~(sizes > 1e-280)] = 0.0
        total = float(freedom.sum())
        if not total > 0.0:
            return
        sizes = np.where(freedom > 0.0, sizes, 1.0)
        shape = (freedom / sizes) @ covariances / total
        self.pooled = shape * float(np.exp(freedom @ np.log(sizes) / total))
        self.trace_weights = self.form.trace_weights(self.pooled + floor)
        self._n_poolings += 1
        if self._n_poolings % _POOLINGS_PER_CHOICE == 1:
            self._choose_prior_count(covariances, masses, floor)

    def _choose_prior_count(
        self, covariances: np.ndarray, masses: np.ndarray, floor: np.ndarray
    ) -> None:
        """Empirical Bayes: the pseudo-rows under which the covariances are most probable.

        Few if components have shapes of their own, many if they are alike.
        """
        n_components = masses.shape[0]
        some = np.linspace(0, n_components - 1, min(_JUDGED, n_components)).astype(np.int64)
        counts = masses[some] * self.n_rows - 1.0
        some, counts = some[counts > 1.0], counts[counts > 1.0]
        if some.shape[0] < 3:
            return
        covariances = covariances[some] * (1.0 + 1.0 / counts)[:, None] + floor
        sizes = covariances @ self.trace_weights
        targets = sizes[:, None] * (self.pooled + floor)
        candidates = self.form.prior_counts()
        evidence = [
            self.form.log_evidence(covariances, counts, targets, float(candidate))
            for candidate in candidates
        ]
        self.prior_count = float(candidates[int(np.argmax(evidence))])

    def shrink(
        self, covariances: np.ndarray, masses: np.ndarray, squares: np.ndarray
    ) -> np.ndarray:
        """Covariances in use (U, P), before reg_covar; masses (U,) are shares of all rows."""
        if self.prior_count > 0.0:
            counts = masses * self.n_rows
            sizes = relative_sizes(covariances, self.trace_weights, counts)
            trust = counts / (counts + self.prior_count)
        elif self.least_count > 0.0:
            spread = squares * self.least_count
            ratio = np.divide(masses**2, spread, out=np.zeros_like(masses), where=spread > 0.0)
            trust = np.minimum(1.0, ratio)
            sizes = np.ones_like(trust)
        else:
            return covariances
        leaning = ((1.0 - trust) * sizes)[:, None] * self.pooled
        return np.asarray(trust[:, None] * covariances + leaning)

    @property
    def needs_gains(self) -> bool:
        """Whether the pooled covariance is learnt from every update."""
        return self.prior_count == 0.0 and (0.0 < self.least_count < np.inf or self.is_shared)

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

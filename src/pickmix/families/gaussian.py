"""Gaussian components: full, tied, diagonal and spherical covariances."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from pickmix.families.base import Family, Parameters, Prior, RandomSource
from pickmix.families.cholesky import factorise, factorise_components, unpack_symmetric
from pickmix.families.conditioning import DiagonalPart, Part
from pickmix.families.conditioning_dense import DensePart
from pickmix.families.covariance_forms import (
    CovarianceForm,
    DiagonalForm,
    FullForm,
    SphericalForm,
    TiedForm,
)
from pickmix.families.layout import SCALE, SQUARE_SCALE, Model, Moments, make_layout
from pickmix.families.leaning_prior import LeaningPrior, pooled_floor
from pickmix.families.leave_one_out import without_row
from pickmix.threads import Threads

_SPLIT_DISTANCE = 0.8  # Standard deviations of halves from the mean of the whole.


@dataclass
class GaussianPrior(Prior):
    """The pooled covariance and the rules of shrinkage towards it."""

    form: CovarianceForm
    pooled: np.ndarray  # (P,) Covariance that the components have in common.
    n_rows: float  # Rows behind all statistics together.
    least_count: float  # Components of fewer effective rows are shrunk; 0: none.
    #: Sum of mass times covariance, and sums of mass, squared weights and degrees of freedom,
    #: each with forgetting: what the pooled covariance comes from without pseudo-rows.
    scatter: np.ndarray
    totals: np.ndarray
    is_shared: bool  # Whether the pooled covariance is that of every component.

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
        return 0.0 < self.least_count < np.inf or self.is_shared

    def absorb(
        self, kept: float, mass: float, squares: float, freedom: float, scatter: np.ndarray
    ) -> None:
        self.scatter = kept * self.scatter + self.form.project(scatter[None])[0]
        self.totals = np.array([kept, kept * kept, kept]) * self.totals + [mass, squares, freedom]
        trust, divisor = 1.0, self.totals[0]
        if self.least_count > 0.0:
            divisor = self.totals[2]
            spread = self.totals[1] * self.least_count
            trust = min(1.0, self.totals[0] * self.totals[2] / spread) if spread > 0.0 else 0.0
        if divisor > 1e-140 and trust > 0.0:
            self.pooled = trust * self.scatter / divisor + (1.0 - trust) * self.pooled


def check_positive_definite(name: str, matrices: np.ndarray, covariance_type: str) -> np.ndarray:
    """Check precisions or covariances: symmetric and positive definite, or positive."""
    if covariance_type in ("diag", "spherical"):
        if (matrices <= 0.0).any():
            raise ValueError(
                f"{name} must be positive, got a smallest value of {float(matrices.min())!r}."
            )
        return matrices
    stacked = matrices if matrices.ndim == 3 else matrices[None]
    # Relative to each matrix: precisions of data in small units are huge, in large units tiny.
    asymmetry = np.abs(stacked - stacked.transpose(0, 2, 1)).max(axis=(1, 2))
    if (asymmetry > 1e-8 * np.abs(stacked).max(axis=(1, 2))).any():
        raise ValueError(
            f"{name} must be symmetric, got matrices that differ from their transposes by up to "
            f"{asymmetry.max():.3g}."
        )
    try:
        # Much faster for many matrices, and the factor that is used later.
        np.linalg.cholesky(stacked)
        return matrices
    except np.linalg.LinAlgError:
        smallest = np.linalg.eigvalsh(stacked).min()
    if not smallest > 0.0:
        raise ValueError(
            f"{name} must be positive definite, got a smallest eigenvalue of {smallest:.3g}."
        )
    return matrices


class Gaussian(CovarianceForm, Family):
    """N(mean, covariance), with one of four forms of covariances.

    `reg_covar`, one number or (D,), is added to the diagonal of every covariance; a spherical
    covariance takes the mean.
    """

    def __init__(self, n_columns: int, reg_covar: float | np.ndarray = 1e-6) -> None:
        self.n_features = n_columns
        self.floors = self.project_floors(reg_covar)
        self.reg_covar = float(self.floors.max())
        self.layout = make_layout([(self.products, n_columns)])

    @property
    def takes_noise(self) -> bool:
        return True

    def parameter_shapes(self, n_components: int) -> dict[str, tuple[int, ...]]:
        shape = n_components, self.n_features
        return {"means": shape, "covariances": self.shape(n_components)}

    def check_parameters(self, parameters: Parameters, prefix: str = "") -> None:
        check_positive_definite(f"{prefix}covariances", parameters["covariances"], self.name)

    def places(self, model: Model) -> np.ndarray:
        return model.location

    def widths(self, prior: Prior) -> np.ndarray:
        assert isinstance(prior, GaussianPrior | LeaningPrior)
        variances = self.variances(prior.pooled) + self.floors
        return np.asarray(np.sqrt(np.maximum(variances, 1e-12 * variances.max() + 1e-280)))

    def make_prior(
        self, moments: Moments, shrinkage: str, n_rows: float
    ) -> GaussianPrior | LeaningPrior:
        mass, squares = moments.mass, moments.squares
        least_count = 0.0 if shrinkage == "none" else self.n_features + 1.0
        covariances = self.project(moments.scatter)
        # Divided by the largest first: masses may be at the edge of float64.
        shares = mass / mass.max()
        pooled = shares @ covariances / shares.sum()
        own = np.divide(squares, mass, out=np.zeros_like(mass), where=mass > 0.0)
        totals = np.array([mass.sum(), squares.sum(), (mass - own).sum()])
        if shrinkage == "pooled" and not self.shared:
            return LeaningPrior.of(self, pooled, mass.shape[0], n_rows)
        return GaussianPrior(
            form=self,
            pooled=pooled,
            n_rows=n_rows,
            least_count=least_count,
            scatter=pooled * totals[2 if least_count > 0.0 else 0],
            totals=totals,
            is_shared=self.shared,
        )

    def maximise(
        self,
        moments: Moments,
        members: np.ndarray,
        prior: Prior,
        model: Model,
        threads: Threads | None,
    ) -> np.ndarray:
        assert isinstance(prior, GaussianPrior | LeaningPrior)
        if self.shared:
            factor, log_normaliser, failed = factorise(
                prior.pooled[None], self.n_features, self.floors
            )
            if not failed[0]:
                model.factor[:], model.log_normaliser[:] = factor, log_normaliser
                model.location[members] = moments.mean[members]
            return np.full(members.shape[0], failed[0])
        failures = np.empty(members.shape[0], dtype=np.bool_)
        covariances, least_count, in_order = moments.scatter, 0.0, False
        if isinstance(prior, LeaningPrior):
            counts = moments.mass[members] * (model.decay[SCALE] * prior.n_rows)
            covariances = prior.shrink(self.project(moments.scatter[members]), members, counts)
            in_order = True
        else:
            least_count = prior.least_count
        if threads is None:
            if not isinstance(prior, LeaningPrior):
                covariances = prior.shrink(
                    self.project(moments.scatter[members]),
                    moments.mass[members] * model.decay[SCALE],
                    moments.squares[members] * model.decay[SQUARE_SCALE],
                )
            factor, log_normaliser, failures = factorise(covariances, self.n_features, self.floors)
            model.factor[members[~failures]] = factor[~failures]
            model.log_normaliser[members[~failures]] = log_normaliser[~failures]
        else:
            threads.run(
                factorise_components,
                members.shape[0],
                members.shape[0] * self.layout.n_products * (self.n_features + 10.0),
                self.layout,
                covariances,
                moments.mass,
                moments.squares,
                model.decay,
                members,
                in_order,
                least_count,
                prior.pooled,
                self.averages,
                self.floors,
                model.factor,
                model.log_normaliser,
                failures,
            )
        good = members[~failures] if failures.any() else members
        self._locate(moments, good, prior, model)
        return failures

    @staticmethod
    def _locate(
        moments: Moments, members: np.ndarray, prior: GaussianPrior | LeaningPrior, model: Model
    ) -> None:
        """Put components on their means, and the background on the mean of all rows."""
        model.location[members] = moments.mean[members]
        if isinstance(prior, LeaningPrior) and prior.background >= 0:
            model.location[prior.background] = 0.0

    def falls(
        self,
        model: Model,
        prior: Prior,
        counts: np.ndarray,
        components: np.ndarray,
        log_densities: np.ndarray,
        weights: np.ndarray,
    ) -> np.ndarray:
        factors = np.zeros_like(components) if self.shared else components
        distances = 2.0 * np.maximum(model.log_normaliser[factors] - log_densities, 0.0)
        own = np.zeros(counts.shape[0])
        if isinstance(prior, LeaningPrior):
            own = prior.own_shares(counts)
        found = without_row(distances, weights, counts[components], own[components])
        if isinstance(prior, LeaningPrior):
            found = np.where(components == prior.background, 0.0, found)
        return found

    def has_background(self, prior: Prior) -> bool:
        return isinstance(prior, LeaningPrior) and bool((prior.reach > 0.0).any())

    def background_log_densities(self, prior: Prior, rows: np.ndarray) -> np.ndarray:
        assert isinstance(prior, LeaningPrior)
        variances = self.variances(prior.broad()) + self.floors
        values, noise = rows[:, : self.n_features], rows[:, self.n_features :]
        if noise.shape[1] == 0 and not np.isnan(values).any():
            constant = np.log(variances).sum() + self.n_features * np.log(2.0 * np.pi)
            return np.asarray(-0.5 * (constant + (np.square(values) / variances).sum(axis=1)))
        # Of what was seen; noise of all columns together counts by its variances.
        if noise.shape[1] > self.n_features:
            noise = noise[:, np.cumsum(np.arange(1, self.n_features + 1)) - 1]
        if noise.shape[1]:
            variances = variances + noise
        terms = np.log(2.0 * np.pi * variances) + np.square(values) / variances
        return np.asarray(-0.5 * np.where(np.isnan(values), 0.0, terms).sum(axis=1))

    def split(
        self, model: Model, moments: Moments, prior: Prior, uniforms: np.ndarray
    ) -> tuple[Moments, Moments]:
        assert isinstance(prior, GaussianPrior | LeaningPrior)
        shift = _SPLIT_DISTANCE * self.directions(moments.scatter, prior.pooled + prior.floor())
        halved = moments._replace(
            mass=0.5 * moments.mass, squares=0.5 * moments.squares, scatter=0.5 * moments.scatter
        )
        return halved._replace(mean=halved.mean + shift), halved._replace(mean=halved.mean - shift)

    def negative_entropy(self, moments: Moments, shared: np.ndarray) -> np.ndarray:
        if not self.shared:
            return -0.5 * self.log_determinants(self.project(moments.scatter))
        factor = np.linalg.cholesky(unpack_symmetric(shared[None], self.n_features)[0])
        lengths = solve_triangular(factor, moments.mean.T, lower=True)
        return np.asarray(0.5 * np.square(lengths).sum(axis=0))

    def moments_of(self, parameters: Parameters, centre: np.ndarray) -> Moments:
        means = parameters["means"] - centre
        n_components = means.shape[0]
        unit = self.identity()
        packed = self.pack(parameters["covariances"]) - self.on_diagonal(self.floors)
        # Parameters may have been fitted with a smaller reg_covar.
        packed = np.where(unit > 0.0, np.maximum(packed, 0.0), packed)
        scatter = np.broadcast_to(packed, (n_components, packed.shape[1]))
        return Moments(
            np.ones(n_components),
            np.ones(n_components),
            means,
            np.array(scatter),
            np.zeros((n_components, 0)),
        )

    def parameters(self, model: Model, centre: np.ndarray) -> dict[str, np.ndarray]:
        covariances = self.unpack(self.covariance_of_factor(model.factor))
        return {"means": model.location + centre, "covariances": covariances}

    def sample(
        self, parameters: Parameters, component: int, n: int, random: RandomSource
    ) -> np.ndarray:
        noise = random.standard_normal((n, self.n_features))
        away = self.scale_noise(parameters["covariances"], component, noise)
        return np.asarray(parameters["means"][component] + away)

    def parts(self, parameters: Parameters, centre: np.ndarray) -> list[Part]:
        columns = np.arange(self.n_features)
        means, covariances = parameters["means"], parameters["covariances"]
        if self.products == "full":
            return [DensePart(columns, means, covariances, centre)]
        return [DiagonalPart(columns, means, self.pack(covariances), centre, covariances)]


class FullGaussian(FullForm, Gaussian):
    """A full covariance per component, (K, D, D)."""

    name = "full"


class TiedGaussian(TiedForm, Gaussian):
    """One full covariance for all components, (D, D)."""

    name = "tied"


class DiagonalGaussian(DiagonalForm, Gaussian):
    """D variances per component, (K, D)."""

    name = "diag"


class SphericalGaussian(SphericalForm, Gaussian):
    """One variance per component, (K,)."""

    name = "spherical"


GAUSSIANS: dict[str, type[Gaussian]] = {
    family.name: family
    for family in (FullGaussian, TiedGaussian, DiagonalGaussian, SphericalGaussian)
}

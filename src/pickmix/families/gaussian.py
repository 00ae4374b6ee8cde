"""Gaussian components: full, tied, diagonal and spherical covariances."""

from __future__ import annotations

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
from pickmix.families.gaussian_prior import GaussianPrior
from pickmix.families.layout import SCALE, SQUARE_SCALE, Model, Moments, make_layout
from pickmix.families.leaning_prior import LeaningPrior
from pickmix.families.leave_one_out import without_row
from pickmix.threads import Threads

# Halves of a split stand this many standard deviations from the mean of the whole.
_SPLIT_DISTANCE = 0.8


class Gaussian(CovarianceForm, Family):
    """N(mean, covariance), with one of four forms of covariances.

    Parameters
    ----------
    n_columns : int
        D.
    reg_covar : float or (D,) array
        Added to the diagonal of every covariance: one number, or a floor for each column. A
        spherical covariance takes the mean of the floors.
    """

    def __init__(self, n_columns: int, reg_covar: float | np.ndarray = 1e-6) -> None:
        self.n_features = n_columns
        self.floors = self.project_floors(reg_covar)
        self.reg_covar = float(self.floors.max())
        self.layout = make_layout([(self.products, n_columns)])

    def places(self, model: Model) -> np.ndarray:
        """The means."""
        return model.location

    def widths(self, prior: Prior) -> np.ndarray:
        """Standard deviations of the pooled covariance."""
        assert isinstance(prior, GaussianPrior | LeaningPrior)
        variances = self.variances(prior.pooled) + self.floors
        return np.asarray(np.sqrt(np.maximum(variances, 1e-12 * variances.max() + 1e-280)))

    def make_prior(
        self, moments: Moments, shrinkage: str, n_rows: float
    ) -> GaussianPrior | LeaningPrior:
        """Pooled covariance of the components, and how much they lean on it."""
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
        """Means are those of the moments; covariances lean on the pooled one as the prior says."""
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
        """Components stand on their means, a background on the mean of all rows."""
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
        """Leave-one-out in closed form, by the row's distance; see leave_one_out.py."""
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
        """Under a prior that knows how far rows reach."""
        return isinstance(prior, LeaningPrior) and bool((prior.reach > 0.0).any())

    def background_log_densities(self, prior: Prior, rows: np.ndarray) -> np.ndarray:
        """Those of a Gaussian about the centre that is as wide as the rows reach."""
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
        """Halves on both sides of the mean, in the direction that exceeds the pooled one most."""
        assert isinstance(prior, GaussianPrior | LeaningPrior)
        shift = _SPLIT_DISTANCE * self.directions(moments.scatter, prior.pooled + prior.floor())
        halved = moments._replace(
            mass=0.5 * moments.mass, squares=0.5 * moments.squares, scatter=0.5 * moments.scatter
        )
        return halved._replace(mean=halved.mean + shift), halved._replace(mean=halved.mean - shift)

    def negative_entropy(self, moments: Moments, shared: np.ndarray) -> np.ndarray:
        """-1/2 log|covariance|; with a shared covariance, half the squared length of the mean."""
        if not self.shared:
            return -0.5 * self.log_determinants(self.project(moments.scatter))
        factor = np.linalg.cholesky(unpack_symmetric(shared[None], self.n_features)[0])
        lengths = solve_triangular(factor, moments.mean.T, lower=True)
        return np.asarray(0.5 * np.square(lengths).sum(axis=0))

    def moments_of(self, parameters: Parameters, centre: np.ndarray) -> Moments:
        """Moments of components with these `means` and `covariances`, reg_covar taken off."""
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
        """Means (K, D), and covariances in scikit-learn's shapes."""
        covariances = self.unpack(self.covariance_of_factor(model.factor))
        return {"means": model.location + centre, "covariances": covariances}

    def sample(
        self, parameters: Parameters, component: int, n: int, random: RandomSource
    ) -> np.ndarray:
        """Draw n rows of one component."""
        noise = random.standard_normal((n, self.n_features))
        away = self.scale_noise(parameters["covariances"], component, noise)
        return np.asarray(parameters["means"][component] + away)

    def parts(self, parameters: Parameters, centre: np.ndarray) -> list[Part]:
        """One part of all columns."""
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

"""Gaussian components: full, tied, diagonal and spherical covariances."""

from __future__ import annotations

import numpy as np

from pickmix.families.base import Family, Parameters, Prior, RandomSource
from pickmix.families.cholesky import factorise, factorise_components
from pickmix.families.covariance_forms import (
    CovarianceForm,
    DiagonalForm,
    FullForm,
    SphericalForm,
    TiedForm,
)
from pickmix.families.gaussian_prior import PRIOR_COUNT, GaussianPrior
from pickmix.families.layout import SCALE, SQUARE_SCALE, Model, Moments, make_layout
from pickmix.threads import Threads

# Halves of a split stand this many standard deviations from the mean of the whole.
_SPLIT_DISTANCE = 0.8


class Gaussian(CovarianceForm, Family):
    """N(mean, covariance), with one of four forms of covariances.

    Parameters
    ----------
    n_columns : int
        D.
    reg_covar : float
        Added to the diagonal of every covariance.
    """

    def __init__(self, n_columns: int, reg_covar: float = 1e-6) -> None:
        self.n_features = n_columns
        self.reg_covar = float(reg_covar)
        self.layout = make_layout([(self.products, n_columns)])

    def places(self, model: Model) -> np.ndarray:
        """The means."""
        return model.location

    def widths(self, prior: Prior) -> np.ndarray:
        """Standard deviations of the pooled covariance."""
        assert isinstance(prior, GaussianPrior)
        variances = self.variances(prior.pooled) + self.reg_covar
        return np.asarray(np.sqrt(np.maximum(variances, 1e-12 * variances.max() + 1e-280)))

    def make_prior(self, moments: Moments, shrinkage: str, n_rows: float) -> GaussianPrior:
        """Pooled covariance of the components, and how much they lean on it."""
        mass, squares = moments.mass, moments.squares
        least_count = 0.0 if shrinkage == "none" else self.n_features + 1.0
        covariances = self.project(moments.scatter)
        # Divided by the largest first: masses may be at the edge of float64.
        shares = mass / mass.max()
        pooled = shares @ covariances / shares.sum()
        own = np.divide(squares, mass, out=np.zeros_like(mass), where=mass > 0.0)
        totals = np.array([mass.sum(), squares.sum(), (mass - own).sum()])
        pooled_prior = shrinkage == "pooled" and not self.shared
        return GaussianPrior(
            form=self,
            pooled=pooled,
            n_rows=n_rows,
            least_count=least_count,
            prior_count=PRIOR_COUNT if pooled_prior else 0.0,
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
        assert isinstance(prior, GaussianPrior)
        if self.shared:
            factor, log_normaliser, failed = factorise(
                prior.pooled[None], self.n_features, self.reg_covar
            )
            if not failed[0]:
                model.factor[:], model.log_normaliser[:] = factor, log_normaliser
                model.location[members] = moments.mean[members]
            return np.full(members.shape[0], failed[0])
        failures = np.empty(members.shape[0], dtype=np.bool_)
        if threads is None:
            covariances = prior.shrink(
                self.project(moments.scatter[members]),
                moments.mass[members] * model.decay[SCALE],
                moments.squares[members] * model.decay[SQUARE_SCALE],
            )
            factor, log_normaliser, failures = factorise(
                covariances, self.n_features, self.reg_covar
            )
            good = members[~failures]
            model.location[good] = moments.mean[good]
            model.factor[good] = factor[~failures]
            model.log_normaliser[good] = log_normaliser[~failures]
            return failures
        threads.run(
            factorise_components,
            members.shape[0],
            members.shape[0] * self.layout.n_products * (self.n_features + 10.0),
            self.layout,
            moments,
            model.decay,
            members,
            prior.shrinkage(),
            prior.pooled,
            prior.trace_weights,
            self.averages,
            self.reg_covar,
            model.factor,
            model.log_normaliser,
            failures,
        )
        good = members[~failures] if failures.any() else members
        model.location[good] = moments.mean[good]
        return failures

    def split(
        self, model: Model, moments: Moments, prior: Prior, uniforms: np.ndarray
    ) -> tuple[Moments, Moments]:
        """Halves on both sides of the mean, in the direction that exceeds the pooled one most."""
        assert isinstance(prior, GaussianPrior)
        shift = _SPLIT_DISTANCE * self.directions(moments.scatter, prior.pooled + prior.floor())
        halved = moments._replace(
            mass=0.5 * moments.mass, squares=0.5 * moments.squares, scatter=0.5 * moments.scatter
        )
        return halved._replace(mean=halved.mean + shift), halved._replace(mean=halved.mean - shift)

    def moments_of(self, parameters: Parameters, centre: np.ndarray) -> Moments:
        """Moments of components with these `means` and `covariances`, reg_covar taken off."""
        means = parameters["means"] - centre
        n_components = means.shape[0]
        unit = self.identity()
        packed = self.pack(parameters["covariances"]) - self.reg_covar * unit
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

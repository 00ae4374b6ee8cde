"""Gaussian components: full, tied, diagonal and spherical covariances, packed in P numbers."""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve_triangular

from pickmix.families.base import Family, LeftOutPairs, Parameters, Part, Prior
from pickmix.families.cholesky import (
    factorise,
    factorise_components,
    invert_lower,
    pack,
    unpack_lower,
    unpack_symmetric,
)
from pickmix.families.gaussian_parts import DensePart, DiagonalPart
from pickmix.families.layout import Model, Moments, halves, make_layout, moments_of_mass_one
from pickmix.families.shrinkage import CovariancePrior, ShrinkagePrior, without_row
from pickmix.families.shrinkage import GaussianPrior as GaussianPrior
from pickmix.threads import run

_SPLIT_DISTANCE = 0.8  # Standard deviations of halves from the mean of the whole.
_DIRECTION_STEPS = 8  # Power iterations to the direction of a split.
_BLOCK = 4096  # Matrices inverted at a time, so that K of them are never in memory at once.
# Full covariances of more columns (256) leave the cache in the compiled factorisation, and LAPACK's
# is faster: 48 times for one component of 1,000 columns.
_MOST_COMPILED_PRODUCTS = 256 * 257 // 2
_LEAST_VARIANCE = 1e-300  # Logarithms of variances must be finite.


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


class Gaussian(Family):
    """N(mean, covariance). Covariances have one of four forms, and are packed in P numbers each.

    `reg_covar`, one number or (D,), is added to the diagonal of every covariance; a spherical
    covariance takes the mean.
    """

    #: "full" or "diagonal": the products of coordinates that a covariance is made of.
    products: str = "full"
    averages: bool = False  # True if all variances of a component are one.
    takes_noise = True

    def __init__(self, n_columns: int, reg_covar: float | np.ndarray = 1e-6) -> None:
        self.n_features = n_columns
        floors = np.asarray(reg_covar, dtype=np.float64)
        if floors.shape not in ((), (n_columns,)):
            raise ValueError(
                f"reg_covar must be a number or of shape ({n_columns},), got {floors.shape}"
            )
        #: (D,) Added to the variance of each column; `reg_covar` is the largest. Components that
        #: have one variance have one floor.
        self.floors = np.full(n_columns, floors.mean() if self.averages else floors)
        self.reg_covar = float(self.floors.max())
        self.layout = make_layout([(self.products, n_columns)])
        self._diagonal = self.layout.starts[1:] - 1  # (D,) Variances in packed covariances.

    def parameter_shapes(self, n_components: int) -> dict[str, tuple[int, ...]]:
        means = n_components, self.n_features
        return {"means": means, "covariances": self.shape(n_components)}

    def check_parameters(self, parameters: Parameters, prefix: str = "") -> None:
        check_positive_definite(f"{prefix}covariances", parameters["covariances"], self.name)

    @property
    def least_variance(self) -> float:
        return float(self.floors.min())

    def positions(self, model: Model) -> np.ndarray:
        return model.location

    def scales(self, prior: Prior) -> np.ndarray:
        assert isinstance(prior, CovariancePrior)
        variances = self.variances(prior.pooled) + self.floors
        return np.asarray(np.sqrt(np.maximum(variances, 1e-12 * variances.max() + 1e-280)))

    def make_prior(self, moments: Moments, shrinkage: str, n_rows: float) -> CovariancePrior:
        mass, squares = moments.mass, moments.squares
        least_count = 0.0 if shrinkage == "none" else self.n_features + 1.0
        covariances = self.project(moments.scatter)
        # Divided by the largest first: masses may be at the edge of float64.
        shares = mass / mass.max()
        pooled = shares @ covariances / shares.sum()
        if shrinkage == "pooled" and not self.shared:
            return ShrinkagePrior.of(self, pooled, mass.shape[0], n_rows)
        own = np.divide(squares, mass, out=np.zeros_like(mass), where=mass > 0.0)
        totals = np.array([mass.sum(), squares.sum(), (mass - own).sum()])
        scatter = pooled * totals[2 if least_count > 0.0 else 0]
        return GaussianPrior(self, n_rows, pooled, least_count, scatter, totals, self.shared)

    def maximise(
        self,
        moments: Moments,
        members: np.ndarray,
        prior: Prior,
        model: Model,
        compiled: bool,
    ) -> np.ndarray:
        assert isinstance(prior, CovariancePrior)
        U, D = members.shape[0], self.n_features
        if self.shared:
            factor, log_normaliser, failed = factorise(prior.pooled[None], D, self.floors)
            if not failed[0]:
                model.factor[:], model.log_normaliser[:] = factor, log_normaliser
                model.location[members] = moments.mean[members]
            return np.full(U, failed[0])
        covariances = prior.shrink(moments, members, model.decay)
        if not compiled or self.layout.n_products > _MOST_COMPILED_PRODUCTS:
            factor, log_normaliser, failures = factorise(covariances, D, self.floors)
            model.factor[members[~failures]] = factor[~failures]
            model.log_normaliser[members[~failures]] = log_normaliser[~failures]
        else:
            failures = np.empty(U, dtype=np.bool_)
            run(
                factorise_components,
                U,
                U * self.layout.n_products * (D + 10.0),
                self.layout,
                covariances,
                members,
                self.floors,
                model.factor,
                model.log_normaliser,
                failures,
            )
        good = members[~failures] if failures.any() else members
        model.location[good] = moments.mean[good]
        if prior.background >= 0:
            # The background is about the mean of all rows.
            model.location[prior.background] = 0.0
        return failures

    def left_out_falls(self, model: Model, prior: Prior, pairs: LeftOutPairs) -> np.ndarray:
        assert isinstance(prior, CovariancePrior)
        components = pairs.components
        factors = np.zeros_like(components) if self.shared else components
        distances = 2.0 * np.maximum(model.log_normaliser[factors] - pairs.log_densities, 0.0)
        own = prior.sample_shares(components, pairs.counts)
        falls = without_row(distances, pairs.weights, pairs.counts, own)
        return np.where((components == prior.background) & (components >= 0), 0.0, falls)

    def has_background(self, prior: Prior) -> bool:
        return isinstance(prior, CovariancePrior) and prior.allows_background

    def background_log_densities(self, prior: Prior, rows: np.ndarray) -> np.ndarray:
        assert isinstance(prior, ShrinkagePrior)
        variances = self.variances(prior.broad()) + self.floors
        # Of what was seen; noise of all columns together counts by its variances.
        values, noise = rows[:, : self.n_features], rows[:, self.n_features :]
        if noise.shape[1] > self.n_features:
            noise = noise[:, np.cumsum(np.arange(1, self.n_features + 1)) - 1]
        if noise.shape[1]:
            variances = variances + noise
        terms = np.log(2.0 * np.pi * variances) + np.square(values) / variances
        return np.asarray(-0.5 * np.where(np.isnan(values), 0.0, terms).sum(axis=1))

    def split(
        self, model: Model, moments: Moments, prior: Prior, uniforms: np.ndarray
    ) -> tuple[Moments, Moments]:
        assert isinstance(prior, CovariancePrior)
        typical = prior.pooled + prior.lower_bound()
        shift = _SPLIT_DISTANCE * self.directions(moments.scatter, typical)
        narrow = moments._replace(scatter=0.5 * moments.scatter)
        return halves(narrow, mean=shift)

    def negative_entropy(self, moments: Moments, shared: np.ndarray) -> np.ndarray:
        if not self.shared:
            return -0.5 * self.log_determinants(self.project(moments.scatter))
        factor = np.linalg.cholesky(unpack_symmetric(shared[None], self.n_features)[0])
        lengths = solve_triangular(factor, moments.mean.T, lower=True)
        return np.asarray(0.5 * np.square(lengths).sum(axis=0))

    def moments_of(self, parameters: Parameters, centre: np.ndarray) -> Moments:
        means = parameters["means"] - centre
        packed = self.pack(parameters["covariances"]) - self.on_diagonal(self.floors)
        # Parameters may have been fitted with a smaller reg_covar.
        packed[:, self._diagonal] = np.maximum(packed[:, self._diagonal], 0.0)
        shape = means.shape[0], packed.shape[1]
        return moments_of_mass_one(mean=means, scatter=np.array(np.broadcast_to(packed, shape)))

    def parameters(self, model: Model, centre: np.ndarray) -> dict[str, np.ndarray]:
        covariances = self.unpack(self.covariance_of_factor(model.factor))
        return {"means": model.location + centre, "covariances": covariances}

    def parts(self, parameters: Parameters, centre: np.ndarray) -> list[Part]:
        columns = np.arange(self.n_features)
        means, covariances = parameters["means"], parameters["covariances"]
        if self.products == "full":
            return [DensePart(columns, means, covariances, centre)]
        return [DiagonalPart(columns, means, self.pack(covariances), centre, covariances)]

    # The form of covariances: full ones, unless a subclass overrides it.

    def project(self, scatter: np.ndarray) -> np.ndarray:
        """Covariances of this form (K, P) from scatters (K, P)."""
        return scatter

    def variances(self, packed: np.ndarray) -> np.ndarray:
        """Variances (D,) of one packed covariance (P,)."""
        return np.asarray(packed[self._diagonal])

    def on_diagonal(self, values: np.ndarray | float) -> np.ndarray:
        """The packed diagonal matrix (P,) of values (D,)."""
        packed = np.zeros(self.layout.n_products)
        packed[self._diagonal] = values
        return packed

    def identity(self) -> np.ndarray:
        return self.on_diagonal(1.0)

    def trace_weights(self, packed: np.ndarray) -> np.ndarray:
        """Weights w (P,) with w . S = tr(C^-1 S) / D for packed covariances C (P,) and S (P,)."""
        inverse = np.linalg.inv(unpack_symmetric(packed[None], self.n_features))
        twice = 2.0 - np.eye(self.n_features)
        return np.asarray(pack(inverse * twice)[0] / self.n_features)

    def stacked(self, matrices: np.ndarray) -> np.ndarray:
        """Matrices in the user's shape as one (D, D) or (D,) per factor."""
        return matrices

    def in_users_shape(self, stacked: np.ndarray) -> np.ndarray:
        return stacked

    def pack(self, matrices: np.ndarray) -> np.ndarray:
        """Pack covariances in the user's shape into (K, P), or (1, P) if shared."""
        return pack(self.stacked(matrices))

    def pack_matrices(self, matrices: np.ndarray) -> np.ndarray:
        """Project full covariances (K, D, D) onto the form and pack them, (K, P)."""
        i, j = self.layout.pairs()
        return self.project(np.ascontiguousarray(matrices[:, i, j]))

    def unpack(self, packed: np.ndarray) -> np.ndarray:
        return self.in_users_shape(unpack_symmetric(packed, self.n_features))

    def unpack_factor(self, packed: np.ndarray) -> np.ndarray:
        """Packed factors as scikit-learn's `precisions_cholesky_`."""
        return self.in_users_shape(unpack_lower(packed, self.n_features).transpose(0, 2, 1))

    def shape(self, n_components: int) -> tuple[int, ...]:
        """The user's shape of covariances."""
        sides = 2 if self.products == "full" else 1
        nothing = np.broadcast_to(0.0, (n_components, *(self.n_features,) * sides))
        return self.in_users_shape(nothing).shape

    def invert(self, matrices: np.ndarray) -> np.ndarray:
        """Covariances from precisions or the other way round, in the user's shape."""
        half = invert_lower(np.linalg.cholesky(self.stacked(matrices)))
        return self.in_users_shape(half.transpose(0, 2, 1) @ half)

    def n_parameters(self, n_components: int) -> int:
        return n_components * (self.n_features + self.layout.n_products)

    def directions(self, scatter: np.ndarray, pooled: np.ndarray) -> np.ndarray:
        """Direction (K, D), times standard deviation, in which each scatter exceeds the pooled."""
        directions = np.zeros((scatter.shape[0], self.n_features))
        unwhitener = np.linalg.cholesky(unpack_symmetric(pooled[None], self.n_features)[0])
        whitener = np.linalg.inv(unwhitener)
        for start in range(0, scatter.shape[0], _BLOCK):
            part = slice(start, start + _BLOCK)
            matrices = unpack_symmetric(scatter[part], self.n_features)
            white = whitener @ matrices @ whitener.T
            widest = np.diagonal(white, axis1=1, axis2=2).argmax(axis=1)
            vector = white[np.arange(white.shape[0]), :, widest]
            variance = np.zeros(white.shape[0])
            for _ in range(_DIRECTION_STEPS):
                norm = np.sqrt(np.einsum("kd,kd->k", vector, vector))
                vector = vector / np.where(norm > 0.0, norm, 1.0)[:, None]
                following = np.einsum("kde,ke->kd", white, vector)
                variance = np.einsum("kd,kd->k", vector, following)
                vector, last = following, vector
            directions[part] = np.sqrt(np.maximum(variance, 0.0))[:, None] * (last @ unwhitener.T)
        return directions

    def log_determinants(self, packed: np.ndarray) -> np.ndarray:
        """Logarithms (K,) of the determinants of packed covariances (K, P)."""
        return np.asarray(np.linalg.slogdet(unpack_symmetric(packed, self.n_features))[1])

    def covariance_of_factor(self, packed: np.ndarray) -> np.ndarray:
        """Packed covariances (W' W)^-1 of packed factors W."""
        covariance = np.empty_like(packed)
        identity = np.eye(self.n_features)
        for start in range(0, packed.shape[0], _BLOCK):
            part = slice(start, start + _BLOCK)
            lower = np.linalg.solve(unpack_lower(packed[part], self.n_features), identity)
            covariance[part] = pack(lower @ lower.transpose(0, 2, 1))
        return covariance


class FullGaussian(Gaussian):
    """A full covariance per component, (K, D, D)."""

    name = "full"


class TiedGaussian(Gaussian):
    """One full covariance for all components, (D, D)."""

    name = "tied"
    shared = True

    def stacked(self, matrices: np.ndarray) -> np.ndarray:
        return matrices[None]

    def in_users_shape(self, stacked: np.ndarray) -> np.ndarray:
        return np.asarray(stacked[0])

    def n_parameters(self, n_components: int) -> int:
        return n_components * self.n_features + self.layout.n_products


class DiagonalGaussian(Gaussian):
    """D variances per component, (K, D)."""

    name = "diag"
    products = "diagonal"

    def trace_weights(self, packed: np.ndarray) -> np.ndarray:
        return np.asarray(1.0 / (packed * packed.shape[0]))

    def pack(self, matrices: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(self.stacked(matrices))

    def unpack(self, packed: np.ndarray) -> np.ndarray:
        return self.in_users_shape(packed)

    def unpack_factor(self, packed: np.ndarray) -> np.ndarray:
        return self.in_users_shape(packed)

    def invert(self, matrices: np.ndarray) -> np.ndarray:
        return 1.0 / matrices

    def directions(self, scatter: np.ndarray, pooled: np.ndarray) -> np.ndarray:
        widest = (scatter / pooled).argmax(axis=1)
        components = np.arange(scatter.shape[0])
        directions = np.zeros(scatter.shape)
        directions[components, widest] = np.sqrt(scatter[components, widest])
        return directions

    def log_determinants(self, packed: np.ndarray) -> np.ndarray:
        return np.asarray(np.log(np.maximum(packed, _LEAST_VARIANCE)).sum(axis=1))

    def covariance_of_factor(self, packed: np.ndarray) -> np.ndarray:
        # Where the square leaves float64, the variance is zero and an error names it.
        with np.errstate(over="ignore"):
            return np.asarray(1.0 / np.square(packed))


class SphericalGaussian(DiagonalGaussian):
    """One variance per component, (K,). It is held as D equal ones."""

    name = "spherical"
    averages = True

    def project(self, scatter: np.ndarray) -> np.ndarray:
        return self.stacked(scatter.mean(axis=1))

    def stacked(self, matrices: np.ndarray) -> np.ndarray:
        return np.repeat(matrices[:, None], self.n_features, axis=1)

    def in_users_shape(self, stacked: np.ndarray) -> np.ndarray:
        return stacked[:, 0].copy()

    def n_parameters(self, n_components: int) -> int:
        return n_components * (self.n_features + 1)


GAUSSIANS: dict[str, type[Gaussian]] = {
    family.name: family
    for family in (FullGaussian, TiedGaussian, DiagonalGaussian, SphericalGaussian)
}

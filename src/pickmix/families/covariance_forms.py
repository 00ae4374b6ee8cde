"""Forms of covariances: full, tied, diagonal and spherical, packed in P numbers per component."""

from __future__ import annotations

import abc

import numpy as np
from scipy.linalg import solve_triangular

from pickmix.families.cholesky import pack, unpack_lower, unpack_symmetric
from pickmix.families.layout import Layout

_DIRECTION_STEPS = 8
# Matrices inverted at a time, so that K of them never stand in memory at once.
_BLOCK = 4096
# Logarithms of variances must be finite.
_LEAST_VARIANCE = 1e-300


class CovarianceForm(abc.ABC):
    """Packed numbers, the shapes that users know, and what the prior on covariances needs."""

    n_features: int
    reg_covar: float
    #: What is added to the variance of each column, (D,); `reg_covar` is the largest.
    floors: np.ndarray
    layout: Layout
    #: "full" or "diagonal": the products of coordinates that a covariance is made of.
    products: str
    #: True if all variances of a component are one.
    averages: bool = False
    #: True if all components share one covariance.
    shared: bool = False

    def project(self, scatter: np.ndarray) -> np.ndarray:
        """Covariances of this form (K, P) from scatters (K, P)."""
        return scatter

    def project_floors(self, reg_covar: float | np.ndarray) -> np.ndarray:
        """Floors of variances (D,) that this form can have."""
        floors = np.asarray(reg_covar, dtype=np.float64)
        if floors.ndim == 0:
            return np.full(self.n_features, float(floors))
        if floors.shape != (self.n_features,):
            raise ValueError(
                f"reg_covar must be a number or of shape ({self.n_features},), got {floors.shape}"
            )
        # Components that have one variance have one floor.
        return np.full_like(floors, floors.mean()) if self.averages else floors.copy()

    def on_diagonal(self, values: np.ndarray) -> np.ndarray:
        """The packed diagonal matrix (P,) of values (D,)."""
        packed = self.identity()
        packed[packed > 0.0] = values
        return packed

    @abc.abstractmethod
    def identity(self) -> np.ndarray:
        """The packed unit matrix, (P,)."""

    @abc.abstractmethod
    def trace_weights(self, packed: np.ndarray) -> np.ndarray:
        """Weights w (P,) with w . S = tr(C^-1 S) / D for packed covariances C (P,) and S (P,)."""

    @abc.abstractmethod
    def pack(self, matrices: np.ndarray) -> np.ndarray:
        """Pack covariances in the user's shape into (K, P), or (1, P) if shared."""

    @abc.abstractmethod
    def unpack(self, packed: np.ndarray) -> np.ndarray:
        """Inverse of `pack`."""

    @abc.abstractmethod
    def pack_matrices(self, matrices: np.ndarray) -> np.ndarray:
        """Project full covariances (K, D, D) onto the form and pack them, (K, P)."""

    @abc.abstractmethod
    def unpack_factor(self, packed: np.ndarray) -> np.ndarray:
        """Packed factors as scikit-learn's `precisions_cholesky_`."""

    @abc.abstractmethod
    def shape(self, n_components: int) -> tuple[int, ...]:
        """Shape of `covariances_` and `precisions_` for K components."""

    @abc.abstractmethod
    def invert(self, matrices: np.ndarray) -> np.ndarray:
        """Covariances from precisions or the other way round, in the user's shape."""

    @abc.abstractmethod
    def variances(self, packed: np.ndarray) -> np.ndarray:
        """Variances (D,) of one packed covariance (P,)."""

    @abc.abstractmethod
    def directions(self, scatter: np.ndarray, pooled: np.ndarray) -> np.ndarray:
        """Direction (K, D), times standard deviation, in which each scatter exceeds the pooled."""

    @abc.abstractmethod
    def log_determinants(self, packed: np.ndarray) -> np.ndarray:
        """Logarithms (K,) of the determinants of packed covariances (K, P)."""

    @abc.abstractmethod
    def covariance_of_factor(self, packed: np.ndarray) -> np.ndarray:
        """Packed covariances (W' W)^-1 of packed factors W."""

    @abc.abstractmethod
    def scale_noise(self, covariances: np.ndarray, k: int, noise: np.ndarray) -> np.ndarray:
        """Turn standard normal noise (n, D) into draws of component k about its mean."""


class FullForm(CovarianceForm):
    """A full covariance per component, (K, D, D)."""

    products = "full"

    def identity(self) -> np.ndarray:
        """The packed unit matrix, (P,)."""
        return np.asarray(pack(np.eye(self.n_features)[None])[0])

    def trace_weights(self, packed: np.ndarray) -> np.ndarray:
        """Entries of C^-1 / D; those off the diagonal stand for two."""
        inverse = np.linalg.inv(unpack_symmetric(packed[None], self.n_features))
        twice = 2.0 - np.eye(self.n_features)
        return np.asarray(pack(inverse * twice)[0] / self.n_features)

    def pack(self, matrices: np.ndarray) -> np.ndarray:
        """Pack (K, D, D)."""
        return pack(matrices)

    def unpack(self, packed: np.ndarray) -> np.ndarray:
        """Unpack to (K, D, D)."""
        return unpack_symmetric(packed, self.n_features)

    def pack_matrices(self, matrices: np.ndarray) -> np.ndarray:
        """Pack (K, D, D)."""
        return pack(matrices)

    def unpack_factor(self, packed: np.ndarray) -> np.ndarray:
        """Upper triangular factors, (K, D, D)."""
        return unpack_lower(packed, self.n_features).transpose(0, 2, 1)

    def shape(self, n_components: int) -> tuple[int, ...]:
        """(K, D, D)."""
        return (n_components, self.n_features, self.n_features)

    def invert(self, matrices: np.ndarray) -> np.ndarray:
        """Inverses of positive definite matrices (K, D, D), symmetric to the last bit."""
        inverses = np.empty_like(matrices)
        identity = np.eye(self.n_features)
        for k, matrix in enumerate(matrices):
            half = solve_triangular(np.linalg.cholesky(matrix), identity, lower=True)
            inverses[k] = half.T @ half
        return inverses

    def n_parameters(self, n_components: int) -> int:
        """Means and covariances."""
        return n_components * (self.n_features + self.layout.n_products)

    def variances(self, packed: np.ndarray) -> np.ndarray:
        """The diagonal."""
        return np.diagonal(unpack_symmetric(packed[None], self.n_features)[0])

    def directions(self, scatter: np.ndarray, pooled: np.ndarray) -> np.ndarray:
        """Power iterations on the scatter in the metric of the pooled covariance."""
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
        """By elimination, which needs no matrix to be positive definite to the last bit."""
        return np.asarray(np.linalg.slogdet(unpack_symmetric(packed, self.n_features))[1])

    def covariance_of_factor(self, packed: np.ndarray) -> np.ndarray:
        """Inverses of W' W, block by block."""
        covariance = np.empty_like(packed)
        identity = np.eye(self.n_features)
        for start in range(0, packed.shape[0], _BLOCK):
            part = slice(start, start + _BLOCK)
            lower = np.linalg.solve(unpack_lower(packed[part], self.n_features), identity)
            covariance[part] = pack(lower @ lower.transpose(0, 2, 1))
        return covariance

    def scale_noise(self, covariances: np.ndarray, k: int, noise: np.ndarray) -> np.ndarray:
        """Noise times the Cholesky factor."""
        return np.asarray(noise @ np.linalg.cholesky(covariances[k]).T)


class TiedForm(FullForm):
    """One full covariance for all components, (D, D)."""

    shared = True

    def pack(self, matrices: np.ndarray) -> np.ndarray:
        """Pack (D, D) into (1, P)."""
        return pack(matrices[None])

    def unpack(self, packed: np.ndarray) -> np.ndarray:
        """Unpack to (D, D)."""
        return np.asarray(super().unpack(packed)[0])

    def unpack_factor(self, packed: np.ndarray) -> np.ndarray:
        """Upper triangular factor, (D, D)."""
        return np.asarray(super().unpack_factor(packed)[0])

    def shape(self, n_components: int) -> tuple[int, ...]:
        """(D, D)."""
        return (self.n_features, self.n_features)

    def invert(self, matrices: np.ndarray) -> np.ndarray:
        """Inverse of a positive definite matrix (D, D)."""
        return np.asarray(super().invert(matrices[None])[0])

    def n_parameters(self, n_components: int) -> int:
        """Means, and one covariance."""
        return n_components * self.n_features + self.layout.n_products

    def scale_noise(self, covariances: np.ndarray, k: int, noise: np.ndarray) -> np.ndarray:
        """Noise times the Cholesky factor that all share."""
        return super().scale_noise(covariances[None], 0, noise)


class DiagonalForm(CovarianceForm):
    """D variances per component, (K, D)."""

    products = "diagonal"

    def identity(self) -> np.ndarray:
        """Ones, (D,)."""
        return np.ones(self.n_features)

    def trace_weights(self, packed: np.ndarray) -> np.ndarray:
        """1 / (D variance)."""
        return np.asarray(1.0 / (packed * packed.shape[0]))

    def pack(self, matrices: np.ndarray) -> np.ndarray:
        """(K, D) as it is."""
        return np.ascontiguousarray(matrices)

    def unpack(self, packed: np.ndarray) -> np.ndarray:
        """(K, D) as it is."""
        return packed

    def pack_matrices(self, matrices: np.ndarray) -> np.ndarray:
        """Diagonals of (K, D, D)."""
        return np.ascontiguousarray(np.diagonal(matrices, axis1=1, axis2=2))

    def unpack_factor(self, packed: np.ndarray) -> np.ndarray:
        """Inverse standard deviations, (K, D)."""
        return packed

    def shape(self, n_components: int) -> tuple[int, ...]:
        """(K, D)."""
        return (n_components, self.n_features)

    def invert(self, matrices: np.ndarray) -> np.ndarray:
        """Inverses of variances."""
        return 1.0 / matrices

    def n_parameters(self, n_components: int) -> int:
        """Means and variances."""
        return 2 * n_components * self.n_features

    def variances(self, packed: np.ndarray) -> np.ndarray:
        """The numbers themselves."""
        return packed

    def directions(self, scatter: np.ndarray, pooled: np.ndarray) -> np.ndarray:
        """The column whose variance exceeds the pooled one most."""
        widest = (scatter / pooled).argmax(axis=1)
        components = np.arange(scatter.shape[0])
        directions = np.zeros(scatter.shape)
        directions[components, widest] = np.sqrt(scatter[components, widest])
        return directions

    def log_determinants(self, packed: np.ndarray) -> np.ndarray:
        """Sums of logarithms of variances."""
        return np.asarray(np.log(np.maximum(packed, _LEAST_VARIANCE)).sum(axis=1))

    def covariance_of_factor(self, packed: np.ndarray) -> np.ndarray:
        """Variances of inverse standard deviations."""
        # Where the square leaves float64, the variance is zero and is refused by name.
        with np.errstate(over="ignore"):
            return np.asarray(1.0 / np.square(packed))

    def scale_noise(self, covariances: np.ndarray, k: int, noise: np.ndarray) -> np.ndarray:
        """Noise times standard deviations."""
        return np.asarray(noise * np.sqrt(covariances[k]))


class SphericalForm(DiagonalForm):
    """One variance per component, (K,). It is held as D equal ones."""

    averages = True

    def project(self, scatter: np.ndarray) -> np.ndarray:
        """All variances become their mean."""
        return np.repeat(scatter.mean(axis=1, keepdims=True), self.n_features, axis=1)

    def pack(self, matrices: np.ndarray) -> np.ndarray:
        """(K,) as (K, D)."""
        return np.repeat(matrices[:, None], self.n_features, axis=1)

    def unpack(self, packed: np.ndarray) -> np.ndarray:
        """(K, D) as (K,)."""
        return packed[:, 0].copy()

    def pack_matrices(self, matrices: np.ndarray) -> np.ndarray:
        """Mean diagonals of (K, D, D), as (K, D)."""
        return self.project(super().pack_matrices(matrices))

    def unpack_factor(self, packed: np.ndarray) -> np.ndarray:
        """Inverse standard deviations, (K,)."""
        return packed[:, 0].copy()

    def shape(self, n_components: int) -> tuple[int, ...]:
        """(K,)."""
        return (n_components,)

    def n_parameters(self, n_components: int) -> int:
        """Means, and a variance each."""
        return n_components * (self.n_features + 1)

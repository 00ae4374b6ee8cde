"""Forms of covariances: full, tied, diagonal and spherical, packed in P numbers per component."""

from __future__ import annotations

import abc

import numpy as np
from scipy.linalg import solve_triangular

from pickmix.families.cholesky import pack, unpack_lower, unpack_symmetric
from pickmix.families.layout import Layout

_DIRECTION_STEPS = 8
_BLOCK = 4096  # Matrices inverted at a time, so that K of them are never in memory at once.
_LEAST_VARIANCE = 1e-300  # Logarithms of variances must be finite.


class CovarianceForm(abc.ABC):
    """Packed numbers, the user's shapes, and what the prior on covariances needs."""

    n_features: int
    reg_covar: float
    #: (D,) Added to the variance of each column; `reg_covar` is the largest.
    floors: np.ndarray
    layout: Layout
    products: str  # "full" or "diagonal": the products of coordinates that a covariance is made of.
    averages: bool = False  # True if all variances of a component are one.
    shared: bool = False  # True if all components share one covariance.

    def project(self, scatter: np.ndarray) -> np.ndarray:
        """Covariances of this form (K, P) from scatters (K, P)."""
        return scatter

    def project_floors(self, reg_covar: float | np.ndarray) -> np.ndarray:
        """Floors of variances (D,) in this form."""
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
    def identity(self) -> np.ndarray: ...

    @abc.abstractmethod
    def trace_weights(self, packed: np.ndarray) -> np.ndarray:
        """Weights w (P,) with w . S = tr(C^-1 S) / D for packed covariances C (P,) and S (P,)."""

    @abc.abstractmethod
    def pack(self, matrices: np.ndarray) -> np.ndarray:
        """Pack covariances in the user's shape into (K, P), or (1, P) if shared."""

    @abc.abstractmethod
    def unpack(self, packed: np.ndarray) -> np.ndarray: ...

    @abc.abstractmethod
    def pack_matrices(self, matrices: np.ndarray) -> np.ndarray:
        """Project full covariances (K, D, D) onto the form and pack them, (K, P)."""

    @abc.abstractmethod
    def unpack_factor(self, packed: np.ndarray) -> np.ndarray:
        """Packed factors as scikit-learn's `precisions_cholesky_`."""

    @abc.abstractmethod
    def shape(self, n_components: int) -> tuple[int, ...]: ...

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
        return np.asarray(pack(np.eye(self.n_features)[None])[0])

    def trace_weights(self, packed: np.ndarray) -> np.ndarray:
        inverse = np.linalg.inv(unpack_symmetric(packed[None], self.n_features))
        twice = 2.0 - np.eye(self.n_features)
        return np.asarray(pack(inverse * twice)[0] / self.n_features)

    def pack(self, matrices: np.ndarray) -> np.ndarray:
        return pack(matrices)

    def unpack(self, packed: np.ndarray) -> np.ndarray:
        return unpack_symmetric(packed, self.n_features)

    def pack_matrices(self, matrices: np.ndarray) -> np.ndarray:
        return pack(matrices)

    def unpack_factor(self, packed: np.ndarray) -> np.ndarray:
        return unpack_lower(packed, self.n_features).transpose(0, 2, 1)

    def shape(self, n_components: int) -> tuple[int, ...]:
        return (n_components, self.n_features, self.n_features)

    def invert(self, matrices: np.ndarray) -> np.ndarray:
        inverses = np.empty_like(matrices)
        identity = np.eye(self.n_features)
        for k, matrix in enumerate(matrices):
            half = solve_triangular(np.linalg.cholesky(matrix), identity, lower=True)
            inverses[k] = half.T @ half
        return inverses

    def n_parameters(self, n_components: int) -> int:
        return n_components * (self.n_features + self.layout.n_products)

    def variances(self, packed: np.ndarray) -> np.ndarray:
        return np.diagonal(unpack_symmetric(packed[None], self.n_features)[0])

    def directions(self, scatter: np.ndarray, pooled: np.ndarray) -> np.ndarray:
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
        return np.asarray(np.linalg.slogdet(unpack_symmetric(packed, self.n_features))[1])

    def covariance_of_factor(self, packed: np.ndarray) -> np.ndarray:
        covariance = np.empty_like(packed)
        identity = np.eye(self.n_features)
        for start in range(0, packed.shape[0], _BLOCK):
            part = slice(start, start + _BLOCK)
            lower = np.linalg.solve(unpack_lower(packed[part], self.n_features), identity)
            covariance[part] = pack(lower @ lower.transpose(0, 2, 1))
        return covariance

    def scale_noise(self, covariances: np.ndarray, k: int, noise: np.ndarray) -> np.ndarray:
        return np.asarray(noise @ np.linalg.cholesky(covariances[k]).T)


class TiedForm(FullForm):
    """One full covariance for all components, (D, D)."""

    shared = True

    def pack(self, matrices: np.ndarray) -> np.ndarray:
        return pack(matrices[None])

    def unpack(self, packed: np.ndarray) -> np.ndarray:
        return np.asarray(super().unpack(packed)[0])

    def unpack_factor(self, packed: np.ndarray) -> np.ndarray:
        return np.asarray(super().unpack_factor(packed)[0])

    def shape(self, n_components: int) -> tuple[int, ...]:
        return (self.n_features, self.n_features)

    def invert(self, matrices: np.ndarray) -> np.ndarray:
        return np.asarray(super().invert(matrices[None])[0])

    def n_parameters(self, n_components: int) -> int:
        return n_components * self.n_features + self.layout.n_products

    def scale_noise(self, covariances: np.ndarray, k: int, noise: np.ndarray) -> np.ndarray:
        return super().scale_noise(covariances[None], 0, noise)


class DiagonalForm(CovarianceForm):
    """D variances per component, (K, D)."""

    products = "diagonal"

    def identity(self) -> np.ndarray:
        return np.ones(self.n_features)

    def trace_weights(self, packed: np.ndarray) -> np.ndarray:
        return np.asarray(1.0 / (packed * packed.shape[0]))

    def pack(self, matrices: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(matrices)

    def unpack(self, packed: np.ndarray) -> np.ndarray:
        return packed

    def pack_matrices(self, matrices: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.diagonal(matrices, axis1=1, axis2=2))

    def unpack_factor(self, packed: np.ndarray) -> np.ndarray:
        return packed

    def shape(self, n_components: int) -> tuple[int, ...]:
        return (n_components, self.n_features)

    def invert(self, matrices: np.ndarray) -> np.ndarray:
        return 1.0 / matrices

    def n_parameters(self, n_components: int) -> int:
        return 2 * n_components * self.n_features

    def variances(self, packed: np.ndarray) -> np.ndarray:
        return packed

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

    def scale_noise(self, covariances: np.ndarray, k: int, noise: np.ndarray) -> np.ndarray:
        return np.asarray(noise * np.sqrt(covariances[k]))


class SphericalForm(DiagonalForm):
    """One variance per component, (K,). It is held as D equal ones."""

    averages = True

    def project(self, scatter: np.ndarray) -> np.ndarray:
        return np.repeat(scatter.mean(axis=1, keepdims=True), self.n_features, axis=1)

    def pack(self, matrices: np.ndarray) -> np.ndarray:
        return np.repeat(matrices[:, None], self.n_features, axis=1)

    def unpack(self, packed: np.ndarray) -> np.ndarray:
        return packed[:, 0].copy()

    def pack_matrices(self, matrices: np.ndarray) -> np.ndarray:
        return self.project(super().pack_matrices(matrices))

    def unpack_factor(self, packed: np.ndarray) -> np.ndarray:
        return packed[:, 0].copy()

    def shape(self, n_components: int) -> tuple[int, ...]:
        return (n_components,)

    def n_parameters(self, n_components: int) -> int:
        return n_components * (self.n_features + 1)

"""Covariance structures as classes: packing, naming and counting parameters.

The numerical work per structure is in `full.py` and `diagonal.py`; these classes translate
between the packed arrays that kernels use and the shapes that users know.
"""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import gammaln

from pickmix.closed_form.models import (
    DiagonalLayout,
    DiagonalModel,
    FullModel,
    SphericalLayout,
    SphericalModel,
    TiedModel,
    TriangularLayout,
)

# Matrices unpacked at a time, so that K of them never stand in memory at once beside the result.
_BLOCK = 4096


class CovarianceStructure(abc.ABC):
    """How covariances are stored: P numbers per component, shapes, parameter counts."""

    name: str
    model_class: Any
    layout_class: Any
    #: True if one covariance serves all components.
    shared: bool = False

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features

    @property
    @abc.abstractmethod
    def packed_size(self) -> int:
        """P, numbers per covariance."""

    @abc.abstractmethod
    def pack(self, matrices: np.ndarray) -> np.ndarray:
        """Pack covariances in this structure's user shape into (K, P), or (1, P) if shared."""

    @abc.abstractmethod
    def unpack(self, packed: np.ndarray) -> np.ndarray:
        """Inverse of `pack`."""

    @abc.abstractmethod
    def pack_matrices(self, matrices: np.ndarray) -> np.ndarray:
        """Project full covariances (K, D, D) onto the structure and pack them, (K, P)."""

    @abc.abstractmethod
    def unpack_factor(self, packed: np.ndarray) -> np.ndarray:
        """Packed factors W as scikit-learn's `precisions_cholesky_`."""

    @abc.abstractmethod
    def covariance_of_factor(self, packed: np.ndarray) -> np.ndarray:
        """Packed covariances (W' W)^-1 of packed factors W."""

    @abc.abstractmethod
    def unpack_pooled(self, packed: np.ndarray) -> np.ndarray:
        """One packed covariance (P,) as a matrix (D, D)."""

    def pack_outers(self, differences: np.ndarray) -> np.ndarray:
        """Packed outer products d d' of each row of (K, D)."""
        packed = np.empty((differences.shape[0], self.packed_size))
        for start in range(0, differences.shape[0], _BLOCK):
            part = differences[start : start + _BLOCK]
            outers = part[:, :, None] * part[:, None, :]
            packed[start : start + _BLOCK] = self.pack_matrices(outers)
        return packed

    @abc.abstractmethod
    def trace_weights(self, packed: np.ndarray) -> np.ndarray:
        """Weights w (P,) with w . S = tr(C^-1 S) / D for packed covariances C (P,) and S (P,)."""

    def prior_counts(self) -> np.ndarray:
        """Numbers of pseudo-rows that a prior on covariances may have; see `choose_prior_count`.

        A covariance takes P / D rows to estimate at all.
        """
        return self.packed_size / self.n_features * np.array([0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0])

    @abc.abstractmethod
    def log_evidence(
        self, covariances: np.ndarray, counts: np.ndarray, targets: np.ndarray, prior: float
    ) -> float:
        """Log-probability of scatters under an inverse-Wishart prior, up to what it has not to do.

        covariances (M, P) from `counts` (M,) rows each about their means, expected at `targets`
        (M, P) with the certainty of `prior` rows.
        """

    @abc.abstractmethod
    def n_parameters(self, n_components: int) -> int:
        """Free parameters in the covariances of K components."""

    @abc.abstractmethod
    def shape(self, n_components: int) -> tuple[int, ...]:
        """Shape of `covariances_` and `precisions_` for K components."""

    @abc.abstractmethod
    def invert(self, matrices: np.ndarray) -> np.ndarray:
        """Covariances from precisions or the other way round, in the user shape."""

    @abc.abstractmethod
    def scale_noise(self, covariances: np.ndarray, k: int, noise: np.ndarray) -> np.ndarray:
        """Turn standard normal noise (n, D) into draws of component k about its mean."""


class _Triangular(CovarianceStructure):
    layout_class = TriangularLayout

    @property
    def packed_size(self) -> int:
        return self.n_features * (self.n_features + 1) // 2

    def pack_matrices(self, matrices):
        rows, columns = np.tril_indices(self.n_features)
        return np.ascontiguousarray(matrices[:, rows, columns])

    def _unpack_lower(self, packed):
        lower = np.zeros((packed.shape[0], self.n_features, self.n_features))
        rows, columns = np.tril_indices(self.n_features)
        lower[:, rows, columns] = packed
        return lower

    def _unpack_symmetric(self, packed):
        full = self._unpack_lower(packed)
        rows, columns = np.tril_indices(self.n_features)
        full[:, columns, rows] = packed
        return full

    def covariance_of_factor(self, packed):
        covariance = np.empty_like(packed)
        identity = np.eye(self.n_features)
        for start in range(0, packed.shape[0], _BLOCK):
            block = slice(start, start + _BLOCK)
            lower = np.linalg.solve(self._unpack_lower(packed[block]), identity)
            covariance[block] = self.pack_matrices(lower @ lower.transpose(0, 2, 1))
        return covariance

    def log_evidence(self, covariances, counts, targets, prior):
        """See the base class."""
        D = self.n_features
        freedom = prior + D + 1.0
        expected = np.linalg.slogdet(prior * self._unpack_symmetric(targets))[1]
        total = prior * targets + counts[:, None] * covariances
        found = np.linalg.slogdet(self._unpack_symmetric(total))[1]
        evidence = 0.5 * freedom * expected - 0.5 * (freedom + counts) * found
        evidence += multigammaln_of(0.5 * (freedom + counts), D)
        return float(np.sum(evidence - multigammaln_of(0.5 * freedom, D)))

    def unpack_pooled(self, packed):
        """See the base class."""
        return self._unpack_symmetric(packed[None])[0]

    def trace_weights(self, packed):
        """See the base class."""
        inverse = np.linalg.inv(self._unpack_symmetric(packed[None]))
        # Entries off the diagonal stand for two.
        twice = 2.0 - np.eye(self.n_features)
        return self.pack_matrices(inverse * twice)[0] / self.n_features


class FullCovariance(_Triangular):
    """A full covariance per component, (K, D, D)."""

    name = "full"
    model_class = FullModel

    def pack(self, matrices):
        """See the base class."""
        return self.pack_matrices(matrices)

    def unpack(self, packed):
        """See the base class."""
        return self._unpack_symmetric(packed)

    def unpack_factor(self, packed):
        """See the base class."""
        return self._unpack_lower(packed).transpose(0, 2, 1)

    def n_parameters(self, n_components):
        """See the base class."""
        return n_components * self.packed_size

    def shape(self, n_components):
        """See the base class."""
        return (n_components, self.n_features, self.n_features)

    def invert(self, matrices):
        """See the base class."""
        return _invert_symmetric(matrices)

    def scale_noise(self, covariances, k, noise):
        """See the base class."""
        return noise @ np.linalg.cholesky(covariances[k]).T


class TiedCovariance(_Triangular):
    """One full covariance for all components, (D, D)."""

    name = "tied"
    model_class = TiedModel
    shared = True

    def pack(self, matrices):
        """See the base class."""
        return self.pack_matrices(matrices[None])

    def unpack(self, packed):
        """See the base class."""
        return self._unpack_symmetric(packed)[0]

    def unpack_factor(self, packed):
        """See the base class."""
        return self._unpack_lower(packed)[0].T

    def n_parameters(self, n_components):
        """See the base class."""
        return self.packed_size

    def shape(self, n_components):
        """See the base class."""
        return (self.n_features, self.n_features)

    def invert(self, matrices):
        """See the base class."""
        return _invert_symmetric(matrices[None])[0]

    def scale_noise(self, covariances, k, noise):
        """See the base class."""
        return noise @ np.linalg.cholesky(covariances).T


class DiagonalCovariance(CovarianceStructure):
    """D variances per component, (K, D)."""

    name = "diag"
    model_class: Any = DiagonalModel
    layout_class: Any = DiagonalLayout

    @property
    def packed_size(self):
        """See the base class."""
        return self.n_features

    def pack(self, matrices):
        """See the base class."""
        return np.ascontiguousarray(matrices)

    def unpack(self, packed):
        """See the base class."""
        return packed

    def pack_matrices(self, matrices):
        """See the base class."""
        return np.ascontiguousarray(np.diagonal(matrices, axis1=1, axis2=2))

    def unpack_factor(self, packed):
        """See the base class."""
        return packed

    def covariance_of_factor(self, packed):
        """See the base class."""
        return 1.0 / np.square(packed)

    def log_evidence(self, covariances, counts, targets, prior):
        """See the base class."""
        # P independent inverse-gamma priors; a variance that stands for several columns has seen
        # as many values.
        repeats = self.n_features / self.packed_size
        counts = repeats * counts[:, None]
        freedom = prior * repeats + 2.0
        scale = prior * repeats * targets
        evidence = 0.5 * freedom * np.log(scale) + gammaln(0.5 * (freedom + counts))
        evidence -= 0.5 * (freedom + counts) * np.log(scale + counts * covariances)
        return float(np.sum(evidence - gammaln(0.5 * freedom)))

    def unpack_pooled(self, packed):
        """See the base class."""
        return np.diag(np.broadcast_to(packed, self.n_features))

    def trace_weights(self, packed):
        """See the base class."""
        return 1.0 / (packed * packed.shape[0])

    def n_parameters(self, n_components):
        """See the base class."""
        return n_components * self.n_features

    def shape(self, n_components):
        """See the base class."""
        return (n_components, self.n_features)

    def invert(self, matrices):
        """See the base class."""
        return 1.0 / matrices

    def scale_noise(self, covariances, k, noise):
        """See the base class."""
        return noise * np.sqrt(covariances[k])


class SphericalCovariance(DiagonalCovariance):
    """One variance per component, (K,)."""

    name = "spherical"
    model_class = SphericalModel
    layout_class = SphericalLayout

    @property
    def packed_size(self):
        """See the base class."""
        return 1

    def pack(self, matrices):
        """See the base class."""
        return np.ascontiguousarray(matrices[:, None])

    def unpack(self, packed):
        """See the base class."""
        return packed[:, 0]

    def pack_matrices(self, matrices):
        """See the base class."""
        return super().pack_matrices(matrices).mean(axis=1, keepdims=True)

    def unpack_factor(self, packed):
        """See the base class."""
        return packed[:, 0]

    def n_parameters(self, n_components):
        """See the base class."""
        return n_components

    def shape(self, n_components):
        """See the base class."""
        return (n_components,)


def multigammaln_of(values: np.ndarray | float, dimension: int) -> np.ndarray:
    """Logarithm of the multivariate gamma function, up to a constant, of an array."""
    steps = 0.5 * np.arange(dimension)
    return gammaln(np.asarray(values)[..., None] - steps).sum(axis=-1)


def _invert_symmetric(matrices: np.ndarray) -> np.ndarray:
    """Inverses of positive definite matrices (K, D, D), symmetric to the last bit."""
    inverses = np.empty_like(matrices)
    identity = np.eye(matrices.shape[-1])
    for k, matrix in enumerate(matrices):
        half = solve_triangular(np.linalg.cholesky(matrix), identity, lower=True)
        inverses[k] = half.T @ half
    return inverses


STRUCTURES: dict[str, type[CovarianceStructure]] = {
    structure.name: structure
    for structure in (FullCovariance, TiedCovariance, DiagonalCovariance, SphericalCovariance)
}

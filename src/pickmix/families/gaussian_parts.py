"""Conditionals of Gaussian columns: independent ones, and those with full covariances.

Of the latter, many patterns of seen cells at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pickmix.families.base import LeftOut, Pairs, Part, RandomSource, SeenRows
from pickmix.families.cholesky import invert_lower

_BLOCK_NUMBERS = 2_000_000  # In matrices at a time, 16 MB.


class DiagonalPart(Part):
    """Gaussian columns that are independent given the component.

    means, variances (K, d); `covariances` are the variances in the user's shape, (K, d) or (K,).
    """

    kind = "number"

    def __init__(
        self,
        columns: np.ndarray,
        means: np.ndarray,
        variances: np.ndarray,
        centre: np.ndarray,
        covariances: np.ndarray,
    ) -> None:
        self.columns = columns
        self.parameters = {"means": means, "covariances": covariances}
        self.means, self.variances = means - centre, variances

    def leave_out(self, rows: SeenRows) -> LeftOut:
        seen = np.flatnonzero(rows.seen[0])
        means, variances = self.means[:, None, seen], self.variances[:, None, seen]
        squares = np.square(rows.values[:, seen] - means) / variances
        return LeftOut(-0.5 * (squares + np.log(2.0 * np.pi * variances)), means, variances)

    def with_noise(self) -> Part:
        d = self.columns.shape[0]
        matrices = self.variances[:, :, None] * np.eye(d)
        return DensePart(self.columns, self.means, matrices, np.zeros(d))


class _Given(NamedTuple):
    """Conditionals of m columns given seen cells, for Q pairs of a pattern and a component.

    gains (Q, m, d) multiply the seen deviations from the mean, and are zero for unseen cells.
    factors (Q, m, d) have the conditional covariance as their square, variances (Q, m) are its
    diagonal.
    """

    gains: np.ndarray
    factors: np.ndarray
    variances: np.ndarray


class DensePart(Part):
    """Gaussian columns with covariances (K, d, d), or (d, d) if all components share it.

    Seen cells S go first in a Cholesky factor of the covariance, then the others M. With its blocks
    L_SS, L_MS and L_MM, the conditional mean is mu_M + L_MS L_SS^-1 (x_S - mu_S), and L_MM is a
    factor of the conditional covariance. Nothing is subtracted, so narrow conditionals keep their
    digits. Noise adds to the seen block.
    """

    kind = "number"

    def __init__(
        self, columns: np.ndarray, means: np.ndarray, covariances: np.ndarray, centre: np.ndarray
    ) -> None:
        self.columns = columns
        self.parameters = {"means": means, "covariances": covariances}
        self._centre = centre
        self._shared = covariances.ndim == 2
        self.means = means - centre
        self.matrices = covariances[None] if self._shared else covariances
        self.variances = np.broadcast_to(
            np.diagonal(self.matrices, axis1=1, axis2=2), self.means.shape
        )
        self._last_seen = self._last_whitener = np.zeros(0)

    def marginal(self, targets: np.ndarray) -> dict[str, np.ndarray]:
        matrices = self.matrices[:, targets[:, None], targets]
        covariances = matrices[0] if self._shared else matrices
        return {"means": self.parameters["means"][:, targets], "covariances": covariances}

    def conditional(self, rows: SeenRows, targets: np.ndarray) -> dict[str, np.ndarray]:
        components = np.arange(self.means.shape[0])
        pairs = Pairs(rows, np.zeros_like(components), components)
        means, _ = self.moments(pairs, targets)
        if self._shared:
            pairs = Pairs(rows, pairs.which[:1], components[:1])
        covariances = self.covariances(pairs, targets)
        return {
            "means": means + self._centre[targets],
            "covariances": covariances[0] if self._shared else covariances,
        }

    def moments(self, pairs: Pairs, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shape = pairs.which.shape[0], targets.shape[0]
        means, variances = np.empty(shape), np.empty(shape)
        for some, kind, given in self._given(pairs, targets):
            means[some] = self._means(pairs, some, targets, kind, given)
            variances[some] = given.variances[kind]
        return means, variances

    def covariances(self, pairs: Pairs, targets: np.ndarray) -> np.ndarray:
        m = targets.shape[0]
        covariances = np.empty((pairs.which.shape[0], m, m))
        for some, kind, given in self._given(pairs, targets):
            covariances[some] = (given.factors @ given.factors.transpose(0, 2, 1))[kind]
        return covariances

    def draw(self, pairs: Pairs, targets: np.ndarray, random: RandomSource) -> np.ndarray:
        n_pairs = pairs.which.shape[0]
        normals = random.standard_normal((n_pairs, self.means.shape[1]))
        drawn = np.empty((n_pairs, targets.shape[0]))
        for some, kind, given in self._given(pairs, targets):
            means = self._means(pairs, some, targets, kind, given)
            drawn[some] = means + _multiply(given.factors, kind, normals[some])
        return drawn

    def leave_out(self, rows: SeenRows) -> LeftOut:
        seen = np.flatnonzero(rows.seen[0])
        whitener = self._whitener(seen, None if rows.noise is None else rows.noise[0])
        away = rows.values[:, seen] - self.means[:, None, seen]
        pulls = (away @ whitener.transpose(0, 2, 1)) @ whitener
        precisions = np.square(whitener).sum(axis=1)[:, None, :]
        # In place from here: these are the largest arrays.
        residuals = np.divide(pulls, precisions, out=away)
        pulls *= residuals
        log_densities = np.subtract(np.log(precisions / (2.0 * np.pi)), pulls, out=pulls)
        log_densities *= 0.5
        means = np.subtract(rows.values[:, seen], residuals, out=residuals)
        return LeftOut(log_densities, means, 1.0 / precisions)

    def covariances_along(self, components: np.ndarray, basis: np.ndarray) -> np.ndarray:
        matrices = self.matrices[self._matrix_of(components)]
        return np.asarray(basis.T @ matrices @ basis)

    def log_volumes(self, rows: np.ndarray, spread: np.ndarray) -> np.ndarray:
        factors = np.diagonal(_cholesky(self.matrices), axis1=1, axis2=2)
        volumes = np.log(factors / spread).sum(axis=1)
        return np.broadcast_to(volumes, self.means.shape[:1])

    def squared_distances(self, rows: np.ndarray, component: np.ndarray) -> np.ndarray:
        away = np.nan_to_num(rows - self.typical()[component])
        whiteners = invert_lower(_cholesky(self.matrices))
        matrix = self._matrix_of(component)
        distances = np.empty(rows.shape[0])
        for block in _blocks(rows.shape[0], rows.shape[1]):
            distances[block] = np.square(_multiply(whiteners, matrix[block], away[block])).sum(1)
        return distances

    def bhattacharyya(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        one, other = self._matrix_of(first), self._matrix_of(second)
        half_logs = np.log(np.diagonal(_cholesky(self.matrices), axis1=1, axis2=2)).sum(axis=1)
        distances = np.empty(first.shape[0])
        for block in _blocks(first.shape[0], self.columns.shape[0]):
            p, q = one[block], other[block]
            lower = _cholesky(0.5 * (self.matrices[p] + self.matrices[q]))
            away = (self.means[first[block]] - self.means[second[block]])[:, :, None]
            squares = np.square(np.linalg.solve(lower, away)).sum(axis=(1, 2))
            half_log = np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
            distances[block] = 0.125 * squares + half_log - 0.5 * (half_logs[p] + half_logs[q])
        return distances

    def _matrix_of(self, components: np.ndarray) -> np.ndarray:
        """The matrices of components."""
        return np.zeros_like(components) if self._shared else components

    def _whitener(self, seen: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
        """Inverse Cholesky factors (K, s, s) of the covariances of seen cells."""
        if noise is None and np.array_equal(self._last_seen, seen):
            return self._last_whitener
        matrices = self.matrices[:, seen[:, None], seen]
        if noise is not None:
            matrices = matrices + noise[seen[:, None], seen]
        whitener = invert_lower(_cholesky(matrices))
        if noise is None:
            # Blocks of rows with one pattern follow each other.
            self._last_seen, self._last_whitener = seen, whitener
        return whitener

    def _given(
        self, pairs: Pairs, targets: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, _Given]]:
        """Yield (numbers of pairs, which of Q conditionals each has, these conditionals)."""
        rows, which, components = pairs
        d = self.means.shape[1]
        alike = rows.patterns if rows.noise is None else np.arange(rows.patterns.shape[0])
        matrices = self._matrix_of(components)
        keys = alike[which] * self.matrices.shape[0] + matrices
        _, first, kinds = np.unique(keys, return_index=True, return_inverse=True)
        in_order = np.argsort(kinds, kind="stable")
        size = max(1, _BLOCK_NUMBERS // (d * d))
        for begin in range(0, first.shape[0], size):
            chosen = first[begin : begin + size]
            noise = None if rows.noise is None else rows.noise[which[chosen]]
            seen = rows.seen[which[chosen]]
            given = _condition(self.matrices[matrices[chosen]], seen, noise, targets)
            ends = np.searchsorted(kinds[in_order], [begin, begin + size])
            for start in range(ends[0], ends[1], size):
                some = in_order[start : min(start + size, ends[1])]
                yield some, kinds[some] - begin, given

    def _means(
        self,
        pairs: Pairs,
        some: np.ndarray,
        targets: np.ndarray,
        kind: np.ndarray,
        given: _Given,
    ) -> np.ndarray:
        """Conditional means (n, m) for `some` (n,) of the pairs."""
        rows, which, components = pairs.rows, pairs.which[some], pairs.components[some]
        seen = rows.seen[which]
        away = np.where(seen, rows.values[which] - self.means[components], 0.0)
        unseen = ~seen[:, targets]
        if unseen.all():
            means = self.means[components[:, None], targets]
            return np.asarray(means + _multiply(given.gains, kind, away))
        # Most rows may have seen most of the queried columns.
        means = rows.values[which[:, None], targets]
        cells, columns = np.nonzero(unseen)
        pulls = np.einsum("ed,ed->e", given.gains[kind[cells], columns], away[cells])
        means[cells, columns] = self.means[components[cells], targets[columns]] + pulls
        return np.asarray(means)


def _blocks(n: int, d: int) -> list[slice]:
    """Ranges of n matrices (d, d) that are held at a time."""
    size = max(1, _BLOCK_NUMBERS // (d * d))
    return [slice(first, first + size) for first in range(0, n, size)]


def _multiply(matrices: np.ndarray, kind: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Products (P, m) of the matrices kind (P,) among (Q, m, d) with vectors (P, d)."""
    return np.asarray(np.matmul(matrices[kind], vectors[:, :, None])[:, :, 0])


def _condition(
    matrices: np.ndarray, seen: np.ndarray, noise: np.ndarray | None, targets: np.ndarray
) -> _Given:
    """Conditionals of columns under covariances (Q, d, d), given the cells seen (Q, d)."""
    d = seen.shape[1]
    order = np.argsort(~seen, axis=1, kind="stable")
    if noise is not None:
        matrices = matrices + np.where(seen[:, :, None] & seen[:, None, :], noise, 0.0)
    rows = np.arange(seen.shape[0])[:, None, None]
    lower = _cholesky(matrices[rows, order[:, :, None], order[:, None, :]])
    rank = np.argsort(order, axis=1)
    # The factor's rows of the queried columns.
    wanted = np.take_along_axis(lower, rank[:, targets, None], axis=1)
    is_seen = (np.arange(d) < seen.sum(axis=1)[:, None])[:, None, :]
    factors = np.where(is_seen, 0.0, wanted)
    # Solve gains L_SS = L_MS from the last column on; unseen ones have a zero on the right.
    rest = np.where(is_seen, wanted, 0.0)
    for j in range(d - 1, -1, -1):
        rest[:, :, j] /= lower[:, j, None, j]
        rest[:, :, :j] -= rest[:, :, j, None] * lower[:, None, j, :j]
    gains = np.take_along_axis(rest, rank[:, None, :], axis=2)
    return _Given(gains, factors, np.einsum("qmd,qmd->qm", factors, factors))


def _cholesky(matrices: np.ndarray) -> np.ndarray:
    try:
        return np.asarray(np.linalg.cholesky(matrices))
    except np.linalg.LinAlgError as error:
        raise ValueError(
            "covariances must be positive definite, got one that is singular to working "
            "precision. Fit again with a larger reg_covar."
        ) from error

"""Conditionals of Gaussian columns with full covariances, many patterns of seen cells at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pickmix.families.conditioning import DiagonalPart, LeftOut, Part, RandomSource, SeenRows
from pickmix.families.conditioning_kernels import ROWS_AT_A_TIME, in_lanes, leave_out_groups
from pickmix.threads import Threads

# Numbers in the matrices that are held at a time, 16 MB.
_BLOCK_NUMBERS = 2_000_000
_SINGULAR = (
    "covariances must be positive definite, got one that is singular to working precision. Fit "
    "again with a larger reg_covar."
)


class _Given(NamedTuple):
    """Conditionals of m columns given seen cells, for Q pairs of a pattern and a component.

    gains (Q, m, d) multiply what was seen, in deviations from the mean; those of unseen cells are
    zero. factors (Q, m, d) have the conditional covariance as their square, variances (Q, m) are
    its diagonal.
    """

    gains: np.ndarray
    factors: np.ndarray
    variances: np.ndarray


class DensePart(Part):
    """Gaussian columns with a full covariance per component, or one for all.

    Seen cells S go first in a Cholesky factor of the covariance, then the others M. Its blocks are
    all there is to know: with L_SS, L_MS and L_MM, the conditional mean is mu_M + L_MS L_SS^-1
    (x_S - mu_S), and L_MM is a factor of the conditional covariance. Nothing is subtracted, so
    narrow conditionals keep their digits. Noise adds to the seen block.

    Parameters
    ----------
    columns : (d,) int array
    means : (K, d) array
    covariances : (K, d, d) array, or (d, d) if all components share it
    centre : (d,) array
    """

    kind = "number"

    def __init__(
        self, columns: np.ndarray, means: np.ndarray, covariances: np.ndarray, centre: np.ndarray
    ) -> None:
        self.columns = columns
        self._centre = centre
        self._own_means = means
        self._shared = covariances.ndim == 2
        self.means = means - centre
        self.matrices = covariances[None] if self._shared else covariances
        self._last_seen = self._last_whitener = np.zeros(0)
        self._lanes: tuple[np.ndarray, np.ndarray] | None = None

    def marginal(self, places: np.ndarray) -> dict[str, np.ndarray]:
        """Means and covariances of the columns."""
        matrices = self.matrices[:, places[:, None], places]
        covariances = matrices[0] if self._shared else matrices
        return {"means": self._own_means[:, places], "covariances": covariances}

    def conditional(self, rows: SeenRows, places: np.ndarray) -> dict[str, np.ndarray]:
        """Means and covariances given what the first row has seen."""
        components = np.arange(self.means.shape[0])
        row = np.zeros(components.shape[0], dtype=np.int64)
        means, _ = self.moments(rows, row, components, places)
        few = slice(0, 1 if self._shared else None)
        covariances = self.covariances(rows, row[few], components[few], places)
        return {
            "means": means + self._centre[places],
            "covariances": covariances[0] if self._shared else covariances,
        }

    def moments(
        self, rows: SeenRows, which: np.ndarray, components: np.ndarray, places: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances given what was seen."""
        shape = components.shape[0], places.shape[0]
        means, variances = np.empty(shape), np.empty(shape)
        for pairs, kind, given in self._given(rows, which, components, places):
            means[pairs] = self._means(rows, which[pairs], components[pairs], places, kind, given)
            variances[pairs] = given.variances[kind]
        return means, variances

    def covariances(
        self, rows: SeenRows, which: np.ndarray, components: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        """Covariances (P, m, m) given what was seen."""
        m = places.shape[0]
        covariances = np.empty((components.shape[0], m, m))
        for pairs, kind, given in self._given(rows, which, components, places):
            covariances[pairs] = (given.factors @ given.factors.transpose(0, 2, 1))[kind]
        return covariances

    def modes(
        self, rows: SeenRows, which: np.ndarray, components: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        """The means."""
        return self.moments(rows, which, components, places)[0]

    def draw(
        self,
        rows: SeenRows,
        which: np.ndarray,
        components: np.ndarray,
        places: np.ndarray,
        random: RandomSource,
    ) -> np.ndarray:
        """Normal draws given what was seen."""
        normals = random.standard_normal((components.shape[0], self.means.shape[1]))
        drawn = np.empty((components.shape[0], places.shape[0]))
        for pairs, kind, given in self._given(rows, which, components, places):
            means = self._means(rows, which[pairs], components[pairs], places, kind, given)
            drawn[pairs] = means + _multiply(given.factors, kind, normals[pairs])
        return drawn

    def leave_out(self, rows: SeenRows) -> LeftOut:
        """With the precision P of the seen cells: x_j has variance 1 / P_jj given the others.

        Its mean is x_j - (P (x - mu))_j / P_jj. Noise must be that of a single row.
        """
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

    def leave_out_of(
        self, rows: SeenRows, log_joint: np.ndarray, far: float, slack: float, threads: Threads
    ) -> np.ndarray:
        """What a mixture says of each cell given the others of its row: compiled, for any rows.

        Parameters
        ----------
        rows : SeenRows
            Rows of one pattern stand together.
        log_joint : (K, R) array
            log p(x, k), of all cells of the row.
        far, slack : float
            As in `leave_out_groups`.
        threads : Threads

        Returns
        -------
        answers : (4, R, d) array
            log p(x_-j), mean and spread of x_j about the centre, and 1 where digits may have been
            lost. NaN where nothing was seen.
        """
        n_rows, d = rows.values.shape
        K = log_joint.shape[0]
        if self._lanes is None:
            matrices = np.broadcast_to(self.matrices, (K, d, d)).reshape(K, d * d)
            self._lanes = in_lanes(matrices), in_lanes(self.means)
        changes = np.flatnonzero(np.diff(rows.patterns)) + 1
        starts = np.concatenate([[0], changes, [n_rows]])
        size = 1 if rows.noise is not None else ROWS_AT_A_TIME
        groups = np.concatenate([np.arange(a, b, size) for a, b in itertools.pairwise(starts)])
        noise = np.zeros((1, d, d)) if rows.noise is None else rows.noise
        answers = np.full((4, n_rows, d), np.nan)
        threads.run(
            leave_out_groups,
            groups.shape[0],
            groups.shape[0] * K * d**3 / 3.0,
            np.where(rows.seen, rows.values, 0.0),
            rows.seen,
            np.ascontiguousarray(noise),
            rows.noise is not None,
            *self._lanes,
            np.ascontiguousarray(log_joint.T),
            np.append(groups, n_rows),
            far,
            slack,
            answers,
        )
        if np.isnan(answers[2][rows.seen]).any():
            raise ValueError(_SINGULAR)
        return answers

    def _whitener(self, seen: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
        """Inverse Cholesky factors (K, s, s) of the covariances of seen cells."""
        if noise is None and np.array_equal(self._last_seen, seen):
            return self._last_whitener
        matrices = self.matrices[:, seen[:, None], seen]
        if noise is not None:
            matrices = matrices + noise[seen[:, None], seen]
        whitener = _invert_lower(_cholesky(matrices))
        if noise is None:
            # Blocks of rows with one pattern follow each other.
            self._last_seen, self._last_whitener = seen, whitener
        return whitener

    def _given(
        self, rows: SeenRows, which: np.ndarray, components: np.ndarray, places: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, _Given]]:
        """Yield (some pairs, their places among Q conditionals, these conditionals)."""
        d = self.means.shape[1]
        alike = rows.patterns if rows.noise is None else np.arange(rows.patterns.shape[0])
        matrices = np.zeros_like(components) if self._shared else components
        keys = alike[which] * self.matrices.shape[0] + matrices
        _, first, kinds = np.unique(keys, return_index=True, return_inverse=True)
        in_order = np.argsort(kinds, kind="stable")
        size = max(1, _BLOCK_NUMBERS // (d * d))
        for begin in range(0, first.shape[0], size):
            chosen = first[begin : begin + size]
            noise = None if rows.noise is None else rows.noise[which[chosen]]
            seen = rows.seen[which[chosen]]
            given = _condition(self.matrices[matrices[chosen]], seen, noise, places)
            ends = np.searchsorted(kinds[in_order], [begin, begin + size])
            for start in range(ends[0], ends[1], size):
                pairs = in_order[start : min(start + size, ends[1])]
                yield pairs, kinds[pairs] - begin, given

    def _means(
        self,
        rows: SeenRows,
        which: np.ndarray,
        components: np.ndarray,
        places: np.ndarray,
        kind: np.ndarray,
        given: _Given,
    ) -> np.ndarray:
        seen = rows.seen[which]
        away = np.where(seen, rows.values[which] - self.means[components], 0.0)
        unseen = ~seen[:, places]
        if unseen.all():
            own = self.means[components[:, None], places]
            return np.asarray(own + _multiply(given.gains, kind, away))
        # Of the columns that are asked for, most rows may have seen most.
        means = rows.values[which[:, None], places]
        pairs, targets = np.nonzero(unseen)
        pulls = np.einsum("ed,ed->e", given.gains[kind[pairs], targets], away[pairs])
        means[pairs, targets] = self.means[components[pairs], places[targets]] + pulls
        return np.asarray(means)


def _multiply(matrices: np.ndarray, kind: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Products (P, m) of the matrices kind (P,) among (Q, m, d) with vectors (P, d)."""
    return np.asarray(np.matmul(matrices[kind], vectors[:, :, None])[:, :, 0])


def _condition(
    matrices: np.ndarray, seen: np.ndarray, noise: np.ndarray | None, places: np.ndarray
) -> _Given:
    """Conditionals of the columns `places` under covariances (Q, d, d), given cells seen (Q, d)."""
    d = seen.shape[1]
    order = np.argsort(~seen, axis=1, kind="stable")
    if noise is not None:
        matrices = matrices + np.where(seen[:, :, None] & seen[:, None, :], noise, 0.0)
    rows = np.arange(seen.shape[0])[:, None, None]
    lower = _cholesky(matrices[rows, order[:, :, None], order[:, None, :]])
    place = np.argsort(order, axis=1)
    # The factor's rows of the columns that are asked for.
    wanted = np.take_along_axis(lower, place[:, places, None], axis=1)
    is_seen = (np.arange(d) < seen.sum(axis=1)[:, None])[:, None, :]
    factors = np.where(is_seen, 0.0, wanted)
    # Solve gains L_SS = L_MS from the last column on; unseen ones have a zero on the right.
    rest = np.where(is_seen, wanted, 0.0)
    for j in range(d - 1, -1, -1):
        rest[:, :, j] /= lower[:, j, None, j]
        rest[:, :, :j] -= rest[:, :, j, None] * lower[:, None, j, :j]
    gains = np.take_along_axis(rest, place[:, None, :], axis=2)
    return _Given(gains, factors, np.einsum("qmd,qmd->qm", factors, factors))


def _cholesky(matrices: np.ndarray) -> np.ndarray:
    try:
        return np.asarray(np.linalg.cholesky(matrices))
    except np.linalg.LinAlgError as error:
        raise ValueError(_SINGULAR) from error


def _invert_lower(lower: np.ndarray) -> np.ndarray:
    """Inverses of lower triangles (K, d, d)."""
    inverse = np.zeros_like(lower)
    for i in range(lower.shape[1]):
        inverse[:, i, i] = 1.0 / lower[:, i, i]
        row = np.matmul(lower[:, i, None, :i], inverse[:, :i, :i])[:, 0]
        inverse[:, i, :i] = -row * inverse[:, i, i, None]
    return inverse


def as_dense(part: Part) -> Part:
    """A diagonal part as a dense one: noise may tie its columns together. Others stay."""
    if not isinstance(part, DiagonalPart):
        return part
    d = part.columns.shape[0]
    matrices = part.variances[:, :, None] * np.eye(d)
    return DensePart(part.columns, part.means, matrices, np.zeros(d))

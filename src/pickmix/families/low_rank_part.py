"""Conditionals of Gaussian columns with covariances of low rank, without a matrix of all columns.

With loadings L and noise variances psi of a component, and seen cells S, the factors z of a row
have the precision M = I + L_S' diag(1 / psi_S) L_S and the mean M^-1 L_S' (r_S / psi_S), where r
are deviations from the mean. Cells are independent given z.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from pickmix.families.base import LeftOut, Pairs, Parameters, Part, RandomSource, SeenRows

_PAIRS = 4096  # Pairs of a row and a component at a time.


class _Factors(NamedTuple):
    """The factors of a component given the cells that are seen."""

    weights: np.ndarray  # (s, H) L_S / psi_S.
    lower: np.ndarray  # (H, H) Cholesky factor of M.

    @classmethod
    def of(cls, loadings: np.ndarray, noise: np.ndarray) -> _Factors:
        weights = loadings / noise[:, None]
        return cls(weights, np.linalg.cholesky(np.eye(loadings.shape[1]) + loadings.T @ weights))

    def half(self, loadings: np.ndarray) -> np.ndarray:
        """Loadings (m, H) whose square is the part of the covariance that the factors leave."""
        return np.asarray(solve_triangular(self.lower, loadings.T, lower=True).T)

    def means(self, away: np.ndarray) -> np.ndarray:
        """Mean factors (R, H) of rows with seen deviations (R, s)."""
        half = solve_triangular(self.lower, (away @ self.weights).T, lower=True)
        return np.asarray(solve_triangular(self.lower, half, lower=True, trans="T").T)

    def half_log_determinant(self) -> float:
        return float(np.log(np.diagonal(self.lower)).sum())


class LowRankPart(Part):
    """Gaussian columns with loadings (K, d, H) and noise variances (K, d)."""

    kind = "number"

    def __init__(self, columns: np.ndarray, parameters: Parameters, centre: np.ndarray) -> None:
        self.columns = columns
        self.parameters = dict(parameters)
        self._centre = centre
        self.means = parameters["means"] - centre
        self.loadings, self.noise = parameters["loadings"], parameters["noise_variances"]
        self.variances = self.noise + np.square(self.loadings).sum(axis=2)

    def _groups(self, pairs: Pairs) -> Iterator[tuple[np.ndarray, int, np.ndarray, _Factors]]:
        """Yield (pairs, their component, the cells they have seen, its factors given these)."""
        keys = pairs.rows.patterns[pairs.which] * self.means.shape[0] + pairs.components
        order = np.argsort(keys, kind="stable")
        ends = np.flatnonzero(np.diff(keys[order], prepend=-1, append=-1))
        for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            one = order[first]
            k, seen = int(pairs.components[one]), pairs.rows.seen[pairs.which[one]]
            factors = _Factors.of(self.loadings[k][seen], self.noise[k][seen])
            for start in range(first, last, _PAIRS):
                yield order[start : min(start + _PAIRS, last)], k, seen, factors

    def _factor_means(
        self, pairs: Pairs, some: np.ndarray, k: int, seen: np.ndarray, factors: _Factors
    ) -> np.ndarray:
        values = pairs.rows.values[pairs.which[some]]
        return factors.means(values[:, seen] - self.means[k, seen])

    def factors(self, pairs: Pairs) -> np.ndarray:
        """Expected factors (P, H) of pairs."""
        z = np.empty((pairs.which.shape[0], self.loadings.shape[2]))
        for some, k, seen, factors in self._groups(pairs):
            z[some] = self._factor_means(pairs, some, k, seen, factors)
        return z

    def conditional(self, rows: SeenRows, targets: np.ndarray) -> dict[str, np.ndarray]:
        K = self.means.shape[0]
        pairs = Pairs(rows, np.zeros(K, dtype=np.int64), np.arange(K))
        loadings = np.empty((K, targets.shape[0], self.loadings.shape[2]))
        for _, k, _, factors in self._groups(pairs):
            loadings[k] = factors.half(self.loadings[k][targets])
        return {
            "means": self.moments(pairs, targets)[0] + self._centre[targets],
            "loadings": loadings,
            "noise_variances": self.noise[:, targets],
        }

    def moments(self, pairs: Pairs, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shape = pairs.which.shape[0], targets.shape[0]
        means, variances = np.empty(shape), np.empty(shape)
        for some, k, seen, factors in self._groups(pairs):
            z = self._factor_means(pairs, some, k, seen, factors)
            loadings, known = self.loadings[k][targets], seen[targets]
            own = pairs.rows.values[pairs.which[some]][:, targets]
            means[some] = np.where(known, own, self.means[k, targets] + z @ loadings.T)
            spread = self.noise[k, targets] + np.square(factors.half(loadings)).sum(axis=1)
            variances[some] = np.where(known, 0.0, spread)
        return means, variances

    def covariances(self, pairs: Pairs, targets: np.ndarray) -> np.ndarray:
        m = targets.shape[0]
        out = np.empty((pairs.which.shape[0], m, m))
        for some, k, seen, factors in self._groups(pairs):
            unseen = ~seen[targets]
            half = factors.half(self.loadings[k][targets]) * unseen[:, None]
            out[some] = half @ half.T + np.diag(self.noise[k, targets] * unseen)
        return out

    def draw(self, pairs: Pairs, targets: np.ndarray, random: RandomSource) -> np.ndarray:
        n_pairs, H = pairs.which.shape[0], self.loadings.shape[2]
        drawn = random.standard_normal((n_pairs, targets.shape[0]))
        normals = random.standard_normal((n_pairs, H))
        for some, k, seen, factors in self._groups(pairs):
            z = self._factor_means(pairs, some, k, seen, factors)
            z += solve_triangular(factors.lower, normals[some].T, lower=True, trans="T").T
            own = pairs.rows.values[pairs.which[some]][:, targets]
            made = self.means[k, targets] + z @ self.loadings[k][targets].T
            made += np.sqrt(self.noise[k, targets]) * drawn[some]
            drawn[some] = np.where(seen[targets], own, made)
        return drawn

    def leave_out(self, rows: SeenRows) -> LeftOut:
        seen = np.flatnonzero(rows.seen[0])
        K, R = self.means.shape[0], rows.values.shape[0]
        pulls, precisions = np.empty((K, R, seen.shape[0])), np.empty((K, 1, seen.shape[0]))
        for k in range(K):
            noise = self.noise[k, seen]
            factors = _Factors.of(self.loadings[k][seen], noise)
            half = factors.half(factors.weights)
            away = rows.values[:, seen] - self.means[k, seen]
            pulls[k] = away / noise - (away @ half) @ half.T
            precisions[k] = 1.0 / noise - np.square(half).sum(axis=1)
        residuals = pulls / precisions
        log_densities = 0.5 * (np.log(precisions / (2.0 * np.pi)) - pulls * residuals)
        return LeftOut(log_densities, rows.values[:, seen] - residuals, 1.0 / precisions)

    def covariances_along(self, components: np.ndarray, basis: np.ndarray) -> np.ndarray:
        out = np.empty((components.shape[0], basis.shape[1], basis.shape[1]))
        for place, k in enumerate(components.tolist()):
            along = basis.T @ self.loadings[k]
            out[place] = along @ along.T + (basis.T * self.noise[k]) @ basis
        return out

    def _half_logs(self) -> np.ndarray:
        """Half the log-determinants (K,) of the covariances."""
        K = self.means.shape[0]
        factors = [_Factors.of(self.loadings[k], self.noise[k]) for k in range(K)]
        known = np.array([each.half_log_determinant() for each in factors])
        return np.asarray(known + 0.5 * np.log(self.noise).sum(axis=1))

    def log_volumes(self, rows: np.ndarray, spread: np.ndarray) -> np.ndarray:
        return np.asarray(self._half_logs() - np.log(spread).sum())

    def squared_distances(self, rows: np.ndarray, component: np.ndarray) -> np.ndarray:
        away = np.nan_to_num(rows - self.typical()[component])
        distances = np.empty(rows.shape[0])
        for k in np.unique(component).tolist():
            some = np.flatnonzero(component == k)
            distances[some] = _distances(self.loadings[k], self.noise[k], away[some])
        return distances

    def bhattacharyya(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        half_logs = self._half_logs()
        out = np.empty(first.shape[0])
        for place, (p, q) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
            loadings = np.concatenate([self.loadings[p], self.loadings[q]], axis=1) * np.sqrt(0.5)
            noise = 0.5 * (self.noise[p] + self.noise[q])
            half_log = _Factors.of(loadings, noise).half_log_determinant()
            half_log += 0.5 * float(np.log(noise).sum())
            away = (self.means[p] - self.means[q])[None]
            out[place] = 0.125 * _distances(loadings, noise, away)[0] + half_log
        return np.asarray(out - 0.5 * (half_logs[first] + half_logs[second]))


def _distances(loadings: np.ndarray, noise: np.ndarray, away: np.ndarray) -> np.ndarray:
    """Squared Mahalanobis distances (R,) of deviations (R, d)."""
    factors = _Factors.of(loadings, noise)
    along = away @ factors.half(factors.weights)
    return np.asarray((np.square(away) / noise).sum(axis=1) - np.square(along).sum(axis=1))

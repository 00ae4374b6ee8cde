"""Where components are, how large, and how far apart: for every family, from its parts."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from pickmix.diagnostics.columns import is_closed_form
from pickmix.diagnostics.looking import Looked
from pickmix.estimators.questions_rows import AskedRows
from pickmix.families.conditioning import CountPart, DiagonalPart, LevelPart, Part
from pickmix.families.conditioning_dense import DensePart

# Numbers in the matrices that are held at a time, 16 MB.
_BLOCK_NUMBERS = 2_000_000
# Components near another one, by their centres, that are compared with it.
_CANDIDATES = 6
# Beyond so many coordinates a tree of points is no faster than all pairs; beyond so many
# components all pairs are too many, and points are projected.
_TREE_COORDINATES, _MOST_PAIRS = 10, 20_000
# Of deep components: no narrower than this share of the columns' spread.
_LEAST_WIDTH = 1e-3


class Shapes:
    """Components of a mixture, in the coordinates that the mixture sees.

    Those of a deep mixture have no moments in closed form. Their rows stand for them: means and
    variances of the rows whose most probable component they are.

    Parameters
    ----------
    model : fitted estimator of pickmix
    looked : Looked
    """

    def __init__(self, model: Any, looked: Looked) -> None:
        rows = looked.rows
        self.n_components = int(model.weights_.shape[0])
        self.n_columns = rows.shape[1]
        self.spread = _spread(rows)
        self.centre = np.zeros(self.n_columns)
        #: Components of which anything is known.
        self.known = np.ones(self.n_components, dtype=bool)
        if is_closed_form(model):
            mixture = getattr(model, "mixture_", model)
            asked = AskedRows(mixture, np.full((1, self.n_columns), np.nan))
            self.parts: list[Part] = list(asked.parts)
            self.centre = asked.centre
        else:
            self.parts = [self._from_rows(rows, looked.component)]

    def _from_rows(self, rows: np.ndarray, component: np.ndarray) -> Part:
        seen = ~np.isnan(rows)
        filled = np.where(seen, rows, 0.0)
        counts, sums, squares = (np.zeros((self.n_components, self.n_columns)) for _ in range(3))
        np.add.at(counts, component, seen)
        np.add.at(sums, component, filled)
        least = np.maximum(counts, 1.0)
        means = sums / least
        np.add.at(squares, component, np.where(seen, np.square(rows - means[component]), 0.0))
        floor = np.square(_LEAST_WIDTH * self.spread)
        self.known = np.bincount(component, minlength=self.n_components) > 0
        variances = np.maximum(squares / least, floor)
        columns = np.arange(self.n_columns)
        return DiagonalPart(columns, means, variances, self.centre, variances)

    def centres(self) -> np.ndarray:
        """Means (K, D), most probable levels of categories; NaN of components not known."""
        found = np.full((self.n_components, self.n_columns), np.nan)
        for part in self.parts:
            if isinstance(part, LevelPart):
                for place, column in enumerate(part.columns.tolist()):
                    found[:, column] = part.tables[place].argmax(axis=1)
            elif isinstance(part, CountPart):
                found[:, part.columns] = part.rates
            elif isinstance(part, DensePart | DiagonalPart):
                found[:, part.columns] = part.means + self.centre[part.columns]
        found[~self.known] = np.nan
        return found

    def log_volumes(self, rows: np.ndarray) -> np.ndarray:
        """How much smaller components (K,) are than the rows as a whole, in nats.

        Half the log-determinant of the covariance in units of the columns' spread; of levels, the
        entropy in the component less that among the rows. Both are differences of entropies, so
        they add up.
        """
        found = np.zeros(self.n_components)
        for part in self.parts:
            own = self.spread[part.columns]
            if isinstance(part, DensePart):
                factors = np.diagonal(_choleskys(part.matrices), axis1=1, axis2=2)
                found += np.log(factors / own).sum(axis=1)
            elif isinstance(part, DiagonalPart):
                found += (0.5 * np.log(part.variances) - np.log(own)).sum(axis=1)
            elif isinstance(part, CountPart):
                found += (0.5 * np.log(part.rates) - np.log(own)).sum(axis=1)
            elif isinstance(part, LevelPart):
                for table, column in zip(part.tables, part.columns.tolist(), strict=True):
                    levels = rows[~np.isnan(rows[:, column]), column].astype(np.int64)
                    shares = np.bincount(levels, minlength=table.shape[1])
                    found += _entropy(table) - _entropy(shares[None] / max(1, levels.size))
        found[~self.known] = np.nan
        return found

    def squared_distances(self, rows: np.ndarray, component: np.ndarray) -> np.ndarray:
        """Distances (N,) of rows from the centre of a component each, in its standard deviations.

        A cell that was not seen counts as one standard deviation away, as it is on average.
        """
        found: np.ndarray = np.isnan(rows).sum(axis=1).astype(np.float64)
        for part in self.parts:
            columns = part.columns
            if isinstance(part, LevelPart):
                for table, column in zip(part.tables, columns.tolist(), strict=True):
                    seen = np.flatnonzero(~np.isnan(rows[:, column]))
                    own = component[seen]
                    levels = rows[seen, column].astype(np.int64)
                    best = np.log(table.max(axis=1))[own]
                    found[seen] += 2.0 * (best - np.log(table[own, levels]))
                continue
            values = rows[:, columns]
            if isinstance(part, CountPart):
                rates = part.rates[component]
                found += np.nansum(np.square(values - rates) / np.maximum(rates, 1e-9), axis=1)
            elif isinstance(part, DensePart | DiagonalPart):
                away = np.nan_to_num(values - self.centre[columns] - part.means[component])
                if isinstance(part, DiagonalPart):
                    found += (np.square(away) / part.variances[component]).sum(axis=1)
                else:
                    found += _whitened(part.matrices, away, component)
        return found

    def neighbours(self) -> tuple[np.ndarray, np.ndarray]:
        """The nearest other component (K,), -1 if there is none, and how far it is (K,).

        Among some components whose centres are near, it is the one with the least Bhattacharyya
        distance B. The distance is sqrt(8 B): between components of one shape, that of their
        centres in standard deviations.
        """
        neighbour = np.full(self.n_components, -1, dtype=np.int64)
        distance = np.full(self.n_components, np.nan)
        known = np.flatnonzero(self.known)
        if known.size < 2:
            return neighbour, distance
        candidates = known[_nearest(self._places()[known], min(_CANDIDATES, known.size - 1))]
        first = np.repeat(known, candidates.shape[1])
        found = self._bhattacharyya(first, candidates.ravel()).reshape(candidates.shape)
        best = found.argmin(axis=1)
        rows = np.arange(known.size)
        neighbour[known] = candidates[rows, best]
        distance[known] = np.sqrt(8.0 * np.maximum(found[rows, best], 0.0))
        return neighbour, distance

    def _places(self) -> np.ndarray:
        """Points (K, d) whose distances are about those of components with typical widths."""
        found = []
        for part in self.parts:
            if isinstance(part, LevelPart):
                found += [2.0 * np.sqrt(table) for table in part.tables]
            elif isinstance(part, CountPart):
                found.append(2.0 * np.sqrt(part.rates))
            elif isinstance(part, DensePart):
                variances = np.diagonal(part.matrices, axis1=1, axis2=2)
                found.append(part.means / np.sqrt(np.median(variances, axis=0)))
            elif isinstance(part, DiagonalPart):
                found.append(part.means / np.sqrt(np.median(part.variances, axis=0)))
        return np.concatenate(found, axis=1)

    def _bhattacharyya(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """-log of the integral of sqrt(p q), (P,), for pairs of components (P,)."""
        found = np.zeros(one.shape[0])
        for part in self.parts:
            if isinstance(part, LevelPart):
                for table in part.tables:
                    roots = np.sqrt(table)
                    found -= np.log(np.einsum("pl,pl->p", roots[one], roots[other]))
            elif isinstance(part, CountPart):
                roots = np.sqrt(part.rates)
                found += 0.5 * np.square(roots[one] - roots[other]).sum(axis=1)
            elif isinstance(part, DiagonalPart):
                middle = 0.5 * (part.variances[one] + part.variances[other])
                away = np.square(part.means[one] - part.means[other])
                logs = np.log(part.variances)
                found += 0.125 * (away / middle).sum(axis=1)
                found += 0.5 * (np.log(middle) - 0.5 * (logs[one] + logs[other])).sum(axis=1)
            elif isinstance(part, DensePart):
                found += _between_gaussians(part, one, other)
        return found


def _spread(rows: np.ndarray) -> np.ndarray:
    """Standard deviations (D,) of what was seen; one where nothing varies."""
    seen = ~np.isnan(rows)
    counts = np.maximum(seen.sum(axis=0), 1)
    means = np.where(seen, rows, 0.0).sum(axis=0) / counts
    squares = np.where(seen, np.square(rows - means), 0.0).sum(axis=0) / counts
    return np.where(squares > 0.0, np.sqrt(squares), 1.0)


def _entropy(shares: np.ndarray) -> np.ndarray:
    logs = np.log(np.where(shares > 0.0, shares, 1.0))
    return np.asarray(-(shares * logs).sum(axis=1))


def _choleskys(matrices: np.ndarray) -> np.ndarray:
    try:
        return np.asarray(np.linalg.cholesky(matrices))
    except np.linalg.LinAlgError as error:
        raise ValueError(
            "covariances must be positive definite, got one that is singular to working "
            "precision. Fit again with a larger reg_covar."
        ) from error


def _whitened(matrices: np.ndarray, away: np.ndarray, component: np.ndarray) -> np.ndarray:
    """Squared lengths (N,) of vectors (N, d) in standard deviations of a component each."""
    d = away.shape[1]
    whiteners = np.linalg.inv(_choleskys(matrices))
    which = component if matrices.shape[0] > 1 else np.zeros_like(component)
    found = np.empty(away.shape[0])
    size = max(1, _BLOCK_NUMBERS // (d * d))
    for first in range(0, away.shape[0], size):
        some = slice(first, first + size)
        whitened = np.matmul(whiteners[which[some]], away[some, :, None])[:, :, 0]
        found[some] = np.square(whitened).sum(axis=1)
    return found


def _between_gaussians(part: DensePart, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    matrices, d = part.matrices, part.columns.shape[0]
    if matrices.shape[0] == 1:
        one_of = other_of = np.zeros_like(one)
    else:
        one_of, other_of = one, other
    half_logs = np.log(np.diagonal(_choleskys(matrices), axis1=1, axis2=2)).sum(axis=1)
    found = np.empty(one.shape[0])
    size = max(1, _BLOCK_NUMBERS // (d * d))
    for first in range(0, one.shape[0], size):
        some = slice(first, first + size)
        p, q = one_of[some], other_of[some]
        lower = _choleskys(0.5 * (matrices[p] + matrices[q]))
        away = (part.means[one[some]] - part.means[other[some]])[:, :, None]
        squares = np.square(np.linalg.solve(lower, away)).sum(axis=(1, 2))
        half_log = np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
        found[some] = 0.125 * squares + half_log - 0.5 * (half_logs[p] + half_logs[q])
    return found


def _nearest(points: np.ndarray, n: int) -> np.ndarray:
    """Numbers (K, n) of the points nearest to each one of K, itself not among them."""
    K, d = points.shape
    if d > _TREE_COORDINATES and K > _MOST_PAIRS:
        random = np.random.default_rng(0)
        points = points @ random.standard_normal((d, _TREE_COORDINATES))
        d = _TREE_COORDINATES
    if d <= _TREE_COORDINATES:
        found = cKDTree(points).query(points, k=n + 1)[1]
    else:
        found = np.empty((K, n + 1), dtype=np.int64)
        squares = np.square(points).sum(axis=1)
        size = max(1, _BLOCK_NUMBERS // K)
        for first in range(0, K, size):
            some = slice(first, first + size)
            away = squares - 2.0 * points[some] @ points.T
            found[some] = np.argpartition(away, n, axis=1)[:, : n + 1]
    # Of points that coincide, the point itself need not come first, or at all.
    is_self = found == np.arange(K)[:, None]
    is_self[~is_self.any(axis=1), -1] = True
    return np.asarray(found[~is_self].reshape(K, n))

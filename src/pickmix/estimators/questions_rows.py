"""Rows of queries: their observed cells, and the components that matter."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from pickmix.estimators.queries import refuse_overflow
from pickmix.families.conditioning import Part, SeenRows

# Components with less than this share of a row say nothing that float64 could hold.
_LITTLE = 1e-14
# Numbers in the largest arrays of a block, 16 MB each.
_BLOCK_NUMBERS = 2_000_000


class Posterior(NamedTuple):
    """Some rows, and the components that matter to each of them: pairs, row after row.

    Attributes
    ----------
    numbers : (R,) int array
        Of the rows, among all that were asked about.
    rows : SeenRows
    which, components : (P,) int arrays
        Row (0 to R - 1) and component of each pair.
    weights : (P,) array
        Posterior probabilities. Those of a row sum to one.
    starts : (R,) int array
        Where the pairs of each row start.
    best : (R,) int array
        The most probable components.
    """

    numbers: np.ndarray
    rows: SeenRows
    which: np.ndarray
    components: np.ndarray
    weights: np.ndarray
    starts: np.ndarray
    best: np.ndarray

    def average(self, values: np.ndarray) -> np.ndarray:
        """Weighted means (R, ...) of what pairs have, (P, ...)."""
        weights = self.weights.reshape(-1, *(1,) * (values.ndim - 1))
        return np.asarray(np.add.reduceat(weights * values, self.starts, axis=0))

    def average_components(self, values: np.ndarray) -> np.ndarray:
        """Weighted means (R, L) of what components have, (K, L)."""
        bounds = np.append(self.starts, self.weights.shape[0])
        shape = self.starts.shape[0], values.shape[0]
        shares = csr_array((self.weights, self.components, bounds), shape=shape)
        return np.asarray(shares @ values)

    def choose(self, uniforms: np.ndarray) -> np.ndarray:
        """Components (R, n) drawn by uniforms (R, n)."""
        cumulative = np.cumsum(self.weights)
        ends = np.append(self.starts[1:], self.weights.shape[0])
        before = cumulative[ends - 1] - np.add.reduceat(self.weights, self.starts)
        marks = before[:, None] + uniforms * (cumulative[ends - 1] - before)[:, None]
        pairs = np.searchsorted(cumulative, marks, side="right")
        pairs = np.clip(pairs, self.starts[:, None], ends[:, None] - 1)
        return np.asarray(self.components[pairs])


class AskedRows:
    """Rows with observed and missing cells, in the coordinates of the mixture.

    Parameters
    ----------
    mixture : fitted mixture in closed form
    rows : (N, D) array
        NaN for missing values.
    noise : (N, D) or (N, D, D) array, default=None
        Variances or covariances of the noise of observed cells, 0 elsewhere.
    level_weights : dict of (L,) arrays, default=None
        By number of a column of levels: what probabilities are multiplied by to find the most
        probable level, if some of its levels stand for several.
    """

    def __init__(
        self,
        mixture: Any,
        rows: np.ndarray,
        noise: np.ndarray | None = None,
        level_weights: Mapping[int, np.ndarray] | None = None,
    ) -> None:
        # Arrays have no names: a mixture that has forgotten its own does not miss them.
        self.mixture = copy.copy(mixture)
        if hasattr(self.mixture, "feature_names_in_"):
            del self.mixture.feature_names_in_
        self.rows = np.asarray(rows, dtype=np.float64)
        self.seen = ~np.isnan(self.rows)
        self.noise = noise
        self.level_weights = level_weights or {}
        self.n_components = int(mixture.weights_.shape[0])
        family = mixture._fitted_family()
        self.centre = mixture._fitted_centre(family)
        if family.column_order is not None:
            centre = np.empty_like(self.centre)
            centre[family.column_order] = self.centre
            self.centre = centre
        self.parts: list[Part] = family.parts(mixture._get_parameters(), self.centre)
        packed = np.packbits(self.seen, axis=1)
        _, patterns = np.unique(packed, axis=0, return_inverse=True)
        self.patterns = patterns.reshape(-1)
        # Rows that have seen the same cells stand together.
        self.order = np.argsort(self.patterns, kind="stable")

    def kinds(self) -> np.ndarray:
        """Whether each column (D,) holds a "number", a "count" or a "level"."""
        kinds = np.empty(self.rows.shape[1], dtype=object)
        for part in self.parts:
            kinds[part.columns] = part.kind
        return kinds

    def parts_of(self, targets: np.ndarray) -> list[tuple[Part, np.ndarray, np.ndarray]]:
        """Parts with a target column, which columns these are there, and which among the targets.

        Targets keep their order within a part.
        """
        found = []
        for part in self.parts:
            among = np.flatnonzero(np.isin(targets, part.columns))
            if among.size:
                in_order = np.argsort(part.columns)
                places = np.searchsorted(part.columns, targets[among], sorter=in_order)
                found.append((part, in_order[places], among))
        return found

    def seen_rows(self, numbers: np.ndarray) -> SeenRows:
        """Some of the rows, about the centre."""
        noise = None if self.noise is None else self.noise[numbers]
        if noise is not None and noise.ndim == 2:
            noise = noise[:, :, None] * np.eye(noise.shape[1])
        return SeenRows(
            self.rows[numbers] - self.centre, self.seen[numbers], self.patterns[numbers], noise
        )

    def log_joints(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (numbers of rows (R,), log p(x, k) of their observed cells (K, R))."""
        done = 0
        noise = None if self.noise is None else self.noise[self.order]
        for log_joint, log_base, _ in self.mixture._blocks(self.rows[self.order], noise):
            numbers = self.order[done : done + log_joint.shape[1]]
            done += log_joint.shape[1]
            log_joint += log_base
            yield numbers, log_joint

    def posteriors(self, width: int = 1) -> Iterator[Posterior]:
        """Yield all rows, some at a time; arrays of `width` numbers per pair stay small."""
        for numbers, log_joint in self.log_joints():
            best = log_joint.argmax(axis=0)
            largest = log_joint.max(axis=0)
            refuse_overflow(largest)
            log_joint -= largest
            weights = np.exp(log_joint, out=log_joint).T
            weights /= weights.sum(axis=1, keepdims=True)
            which, components = np.nonzero(weights > _LITTLE)
            kept = weights[which, components]
            starts = np.searchsorted(which, np.arange(numbers.shape[0]))
            kept /= np.add.reduceat(kept, starts)[which]
            rows = self.seen_rows(numbers)
            yield from _cut(
                Posterior(numbers, rows, which, components, kept, starts, best),
                max(1, _BLOCK_NUMBERS // width),
            )

    def log_densities(self) -> np.ndarray:
        """log p of the observed cells of each row, (N,); 0 if there are none."""
        found = np.empty(self.rows.shape[0])
        for numbers, log_joint in self.log_joints():
            found[numbers] = log_sum_exp(log_joint)
        refuse_overflow(found)
        found[~self.seen.any(axis=1)] = 0.0
        return found


def log_sum_exp(values: np.ndarray) -> np.ndarray:
    """log sum exp over the first axis."""
    largest = values.max(axis=0)
    return np.asarray(largest + np.log(np.exp(values - largest).sum(axis=0)))


def _cut(whole: Posterior, most: int) -> Iterator[Posterior]:
    """Yield pieces of a posterior, each with at most so many pairs or a single row."""
    n_pairs, n_rows = whole.weights.shape[0], whole.starts.shape[0]
    if n_pairs <= most:
        yield whole
        return
    bounds = np.append(whole.starts, n_pairs)
    first = 0
    while first < n_rows:
        last = int(np.searchsorted(bounds, bounds[first] + most, side="right")) - 1
        last = min(max(last, first + 1), n_rows)
        pairs = slice(bounds[first], bounds[last])
        rows = slice(first, last)
        values, seen, patterns, noise = whole.rows
        yield Posterior(
            whole.numbers[rows],
            SeenRows(
                values[rows], seen[rows], patterns[rows], None if noise is None else noise[rows]
            ),
            whole.which[pairs] - first,
            whole.components[pairs],
            whole.weights[pairs],
            whole.starts[rows] - bounds[first],
            whole.best[rows],
        )
        first = last

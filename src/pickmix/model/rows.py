"""Rows of queries: observed cells, components that matter, and columns whose values are mapped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.special import ndtr, ndtri

from pickmix.checks import refuse_overflow
from pickmix.families.base import Pairs, Part, SeenRows
from pickmix.families.distributions import Distribution, normal_quantiles
from pickmix.inputs.maps import ColumnMap, ColumnMaps
from pickmix.model.mixture import MixtureModel, parts_of

_LITTLE = 1e-14  # Smaller shares of a row are below the resolution of float64.
_BLOCK_NUMBERS = 2_000_000  # Numbers in the largest arrays of a block, 16 MB each.


class Posterior(NamedTuple):
    """Some rows and their relevant components: pairs, row after row."""

    numbers: np.ndarray  # (R,) Rows among all of the query.
    pairs: Pairs
    weights: np.ndarray  # Posterior probabilities (P,). Those of a row sum to one.
    starts: np.ndarray  # Where the pairs of each row start, (R,).
    best: np.ndarray  # The most probable components (R,).

    def average(self, values: np.ndarray) -> np.ndarray:
        """Weighted means (R, ...) over pairs (P, ...)."""
        weights = self.weights.reshape(-1, *(1,) * (values.ndim - 1))
        return np.asarray(np.add.reduceat(weights * values, self.starts, axis=0))

    def average_components(self, values: np.ndarray) -> np.ndarray:
        """Weighted means (R, L) over components (K, L)."""
        bounds = np.append(self.starts, self.weights.shape[0])
        shape = self.starts.shape[0], values.shape[0]
        shares = csr_array((self.weights, self.pairs.components, bounds), shape=shape)
        return np.asarray(shares @ values)

    def choose(self, uniforms: np.ndarray) -> np.ndarray:
        """Components (R, n) drawn by uniforms (R, n)."""
        cumulative = np.cumsum(self.weights)
        ends = np.append(self.starts[1:], self.weights.shape[0])
        before = cumulative[ends - 1] - np.add.reduceat(self.weights, self.starts)
        marks = before[:, None] + uniforms * (cumulative[ends - 1] - before)[:, None]
        chosen = np.searchsorted(cumulative, marks, side="right")
        chosen = np.clip(chosen, self.starts[:, None], ends[:, None] - 1)
        return np.asarray(self.pairs.components[chosen])


class QueryRows:
    """Rows (N, D) with NaN for missing cells, in the coordinates of a mixture.

    `noise`: variances (N, D) or covariances (N, D, D) of observed cells, 0 elsewhere.
    `level_weights`, by column: factors (L,) of probabilities in the choice of the best level, if
    levels stand for several. With `maps` of columns, the rows are natural ones (`natural`), of
    which `rows` of the model are made; `log_slopes` (N, D) are what log-densities gain by that.
    """

    def __init__(
        self,
        model: MixtureModel,
        rows: np.ndarray,
        noise: np.ndarray | None = None,
        level_weights: Mapping[int, np.ndarray] | None = None,
        maps: ColumnMaps | None = None,
    ) -> None:
        self.model, self.maps = model, maps
        self.natural = self.rows = np.asarray(rows, dtype=np.float64)
        self.log_slopes: np.ndarray | float = 0.0
        if maps is not None:
            self.rows, log_slopes = maps.forward(self.natural)
            self.log_slopes = log_slopes
        self.seen = ~np.isnan(self.rows)
        self.noise = None if noise is None else _of_seen(noise, self.seen)
        self.level_weights = level_weights or {}
        self.parts, self.centre = model.parts()
        packed = np.packbits(self.seen, axis=1)
        _, patterns = np.unique(packed, axis=0, return_inverse=True)
        self.patterns = patterns.reshape(-1)
        # Rows of one pattern of seen cells are adjacent.
        self.order = np.argsort(self.patterns, kind="stable")

    def with_rows(self, rows: np.ndarray, noise: np.ndarray | None) -> QueryRows:
        return QueryRows(self.model, rows, noise, self.level_weights, self.maps)

    def has_map(self, column: int) -> bool:
        return self.maps is not None and self.maps[column] is not None

    def map_of(self, column: int) -> ColumnMap:
        each = None if self.maps is None else self.maps[column]
        assert each is not None
        return each

    def atom_table(self, column: int) -> np.ndarray | None:
        """Probabilities (K, 1 + A) of no atom and of each; None of a column without atoms."""
        place = None if self.maps is None else self.maps.indicators.get(int(column))
        if place is None:
            return None
        ((part, (target,), _),) = self.parts_of(np.array([place]))
        table: np.ndarray = part.tables[target]
        return np.asarray(table / table.sum(axis=1, keepdims=True))

    def kinds(self) -> np.ndarray:
        """Whether each column (D,) holds a "number", a "count" or a "level"."""
        kinds = np.empty(self.rows.shape[1], dtype=object)
        for part in self.parts:
            kinds[part.columns] = part.kind
        return kinds

    def parts_of(self, targets: np.ndarray) -> list[tuple[Part, np.ndarray, np.ndarray]]:
        return parts_of(self.parts, targets)

    def weights_of(self, column: int) -> np.ndarray | float:
        """Factors of the probabilities of a column's levels."""
        return self.level_weights.get(int(column), 1.0)

    def weights(self) -> np.ndarray:
        """Posterior probabilities of all components, (N, K). Large."""
        weights = np.empty((self.rows.shape[0], self.model.n_components))
        for numbers, log_joint in self.log_joints():
            log_joint -= log_joint.max(axis=0)
            shares = np.exp(log_joint, out=log_joint)
            weights[numbers] = (shares / shares.sum(axis=0)).T
        return weights

    def seen_rows(self, numbers: np.ndarray) -> SeenRows:
        noise = None if self.noise is None else self.noise[numbers]
        if noise is not None and noise.ndim == 2:
            noise = noise[:, :, None] * np.eye(noise.shape[1])
        return SeenRows(
            self.rows[numbers] - self.centre, self.seen[numbers], self.patterns[numbers], noise
        )

    def log_joints(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (numbers of rows (R,), log p(x, k) of their observed cells (K, R))."""
        done = 0
        noise = None if self.noise is None else packed_noise(self.noise[self.order])
        for log_joint, log_base, _ in self.model.log_joint_blocks(self.rows[self.order], noise):
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
            pairs = Pairs(self.seen_rows(numbers), which, components)
            whole = Posterior(numbers, pairs, kept, starts, best)
            yield from _cut(whole, max(1, _BLOCK_NUMBERS // width))

    def log_densities(self) -> np.ndarray:
        """log p of the observed cells of each row, (N,); 0 if there are none."""
        found = np.empty(self.rows.shape[0])
        for numbers, log_joint in self.log_joints():
            found[numbers] = log_sum_exp(log_joint)
        refuse_overflow(found)
        found[~self.seen.any(axis=1)] = 0.0
        return found

    def natural_log_densities(self) -> np.ndarray:
        """As `log_densities`, of natural rows."""
        return np.asarray(self.log_densities() + np.sum(self.log_slopes, axis=-1))


def log_sum_exp(values: np.ndarray) -> np.ndarray:
    largest = values.max(axis=0)
    return np.asarray(largest + np.log(np.exp(values - largest).sum(axis=0)))


def _of_seen(noise: np.ndarray, seen: np.ndarray) -> np.ndarray:
    if noise.ndim == 2:
        return np.where(seen, noise, 0.0)
    return np.where(seen[:, :, None] & seen[:, None, :], noise, 0.0)


def packed_noise(noise: np.ndarray) -> np.ndarray:
    """Variances (N, D) as they are; lower triangles of covariances (N, D, D)."""
    if noise.ndim == 2:
        return noise
    i, j = np.tril_indices(noise.shape[1])
    return np.asarray(noise[:, i, j])


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
        some, rows = slice(bounds[first], bounds[last]), slice(first, last)
        values, seen, patterns, noise = whole.pairs.rows
        noise = None if noise is None else noise[rows]
        seen_rows = SeenRows(values[rows], seen[rows], patterns[rows], noise)
        yield Posterior(
            whole.numbers[rows],
            Pairs(seen_rows, whole.pairs.which[some] - first, whole.pairs.components[some]),
            whole.weights[some],
            whole.starts[rows] - bounds[first],
            whole.best[rows],
        )
        first = last


# Points of equal probability of a standard normal distribution, for products of two columns.
_NODES = ndtri((np.arange(48) + 0.5) / 48)


def _continuous(
    query: QueryRows, block: Posterior, part: Part, target: int, column: int
) -> tuple[ColumnMap, np.ndarray, np.ndarray, np.ndarray | None]:
    """The map, means and deviations (P,) of scores, and probabilities (P, 1 + A) of atoms."""
    each = query.map_of(column)
    means, variances = part.moments(block.pairs.of(part.columns), np.array([target]))
    table = query.atom_table(column)
    shares = None if table is None else table[block.pairs.components]
    # Cells that are given have no spread.
    deviations = np.sqrt(np.maximum(variances[:, 0], 1e-24))
    return each, means[:, 0] + query.centre[column], deviations, shares


def mapped_moments(
    query: QueryRows, block: Posterior, part: Part, target: int, column: int
) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances (R,) of a column's natural values."""
    first, second = pair_moments(query, block, part, target, column)
    mean = block.average(first)
    return mean, block.average(second + np.square(first - mean[block.pairs.which]))


def pair_moments(
    query: QueryRows, block: Posterior, part: Part, target: int, column: int
) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances (P,) of a column's natural values in the components of pairs."""
    each = query.map_of(column)
    if each.levels.size:
        table = part.tables[target] / part.tables[target].sum(axis=1, keepdims=True)
        means = table @ each.levels
        variances = table @ np.square(each.levels) - np.square(means)
        chosen = block.pairs.components
        return means[chosen], np.maximum(variances, 0.0)[chosen]
    each, centres, deviations, shares = _continuous(query, block, part, target, column)
    first, second = each.moments(centres, deviations)
    if shares is None:
        return first, second
    mean = shares[:, 0] * first + shares[:, 1:] @ each.atoms
    second = shares[:, 0] * (second + np.square(first - mean))
    second += (shares[:, 1:] * np.square(each.atoms - mean[:, None])).sum(axis=1)
    return mean, second


def mapped_covariances(
    query: QueryRows, block: Posterior, part: Part, targets: np.ndarray, columns: np.ndarray
) -> np.ndarray:
    """Covariances (P, m, m) of natural values of a part's columns within components of pairs.

    Given the component, whether a cell is an atom does not depend on other cells.
    """
    m = columns.shape[0]
    found = np.zeros((block.weights.shape[0], m, m))
    latent = None if part.tables else part.covariances(block.pairs.of(part.columns), targets)
    parts = []
    for i, (target, column) in enumerate(zip(targets.tolist(), columns.tolist(), strict=True)):
        found[:, i, i] = pair_moments(query, block, part, target, column)[1]
        if not part.tables:
            parts.append(_continuous(query, block, part, target, column))
    if latent is None:
        return found
    for i in range(m):
        for j in range(i):
            (first, a, s, p), (second, b, t, q) = parts[i], parts[j]
            r = np.clip(latent[:, i, j] / (s * t), -1.0, 1.0)[:, None]
            x = first.backward(a[:, None] + s[:, None] * _NODES)
            # Given the one score, the other is normal.
            inner = b[:, None] + t[:, None] * r * _NODES
            rest = np.broadcast_to(t[:, None] * np.sqrt(np.maximum(1.0 - r * r, 1e-12)), x.shape)
            y = second.moments(inner.ravel(), rest.ravel())[0].reshape(x.shape)
            found[:, i, j] = (x * y).mean(axis=1) - x.mean(axis=1) * y.mean(axis=1)
            for shares in (p, q):
                if shares is not None:
                    found[:, i, j] *= shares[:, 0]
            found[:, j, i] = found[:, i, j]
    return found


def mapped_quantiles(
    query: QueryRows, block: Posterior, part: Part, target: int, column: int, quantile: float
) -> np.ndarray:
    """Quantiles (R,) of a column's natural values: the least x with P(X <= x) >= quantile."""
    each = query.map_of(column)
    if each.levels.size:
        sums = np.cumsum(block.average_components(part.tables[target]), axis=1)
        places = (sums < quantile * sums[:, -1:]).sum(axis=1)
        return np.asarray(each.levels[np.minimum(places, each.levels.shape[0] - 1)])
    each, centres, deviations, shares = _continuous(query, block, part, target, column)
    if shares is None:
        scores = normal_quantiles(block.weights, centres, deviations, block.starts, quantile)
        return each.rounded(each.backward(scores))
    which, weights = block.pairs.which, block.weights * shares[:, 0]
    total = np.add.reduceat(weights, block.starts)
    masses = block.average(shares[:, 1:])
    places = each.forward(each.atoms)[0]
    below = [
        np.add.reduceat(weights * ndtr((place - centres) / deviations), block.starts)
        for place in places
    ]
    # P(X < atom) and P(X <= atom), (R, A).
    before = np.cumsum(masses, axis=1) - masses
    low = np.stack(below, axis=1) + before
    high = low + masses
    passed = np.where(high < quantile, masses, 0.0).sum(axis=1)
    wanted = np.clip((quantile - passed) / total, 1e-12, 1.0 - 1e-12)
    scores = normal_quantiles(weights / total[which], centres, deviations, block.starts, wanted)
    found = each.rounded(each.backward(scores))
    is_atom = (low < quantile) & (quantile <= high)
    return np.where(is_atom.any(axis=1), each.atoms[is_atom.argmax(axis=1)], found)


def mapped_modes(
    query: QueryRows, part: Part, target: int, column: int, scores: np.ndarray, best: np.ndarray
) -> np.ndarray:
    """Modes (R,) in components `best`: the likeliest atom, or the value of the likeliest score."""
    each = query.map_of(column)
    if each.levels.size:
        return np.asarray(each.levels[part.tables[target][best].argmax(axis=1)])
    values, table = each.rounded(each.backward(scores)), query.atom_table(column)
    if table is None:
        return values
    which = table[best].argmax(axis=1)
    return np.where(which > 0, np.append(0.0, each.atoms)[which], values)


class MappedDistribution(Distribution):
    """The distribution of a column in the user's units, x * scale + offset, x = natural value."""

    def __init__(
        self,
        scores: Distribution,
        each: ColumnMap,
        masses: np.ndarray,
        scale: float,
        offset: float,
        step: float | None,
    ) -> None:
        self._scores, self._map, self._masses = scores, each, masses
        self._atoms = each.levels if each.levels.size else each.atoms
        self._scale, self._offset = scale, offset
        self.step = step
        self.n_components = scores.n_components

    def simplified(self) -> Distribution:
        parts = self._map, self._masses, self._scale, self._offset, self.step
        return MappedDistribution(self._scores.simplified(), *parts)

    def cumulative(self, values: np.ndarray) -> np.ndarray:
        x = (values - self._offset) / self._scale
        return self._up_to(x, x, "right")

    def bounds(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = (values - self._offset) / self._scale
        half = 0.5 * (self.step or 0.0) / self._scale
        low, high = x - half, x + half
        if self._map.support.size:
            edges = 0.5 * (self._map.support[1:] + self._map.support[:-1])
            edges = np.concatenate([[-np.inf], edges, [np.inf]])
            place = np.searchsorted(edges[1:-1], x)
            low, high = edges[place], edges[place + 1]
        return self._up_to(low, x, "left"), self._up_to(high, x, "right")

    def _up_to(self, edges: np.ndarray, x: np.ndarray, side: str) -> np.ndarray:
        """Probabilities of atoms below x, or at it too, and of the rest below edges."""
        sums = np.append(0.0, np.cumsum(self._masses))
        atoms = sums[np.searchsorted(self._atoms, x, side=side)]  # type: ignore[call-overload]
        if self._map.levels.size:
            return np.asarray(np.clip(atoms, 0.0, 1.0))
        # What lies beyond the range is on its ends.
        inside = np.clip(edges, self._map.lowest, self._map.highest)
        rest = self._scores.cumulative(self._map.forward(inside)[0])
        rest = np.where(edges >= self._map.highest, 1.0, rest)
        rest = np.where(edges < self._map.lowest, 0.0, rest) * (1.0 - sums[-1])
        return np.asarray(np.clip(rest + atoms, 0.0, 1.0))

    def densities(self, values: np.ndarray) -> np.ndarray | None:
        if self._map.levels.size:
            return None
        scores, log_slopes = self._map.forward((values - self._offset) / self._scale)
        heights = self._scores.densities(scores)
        assert heights is not None
        unit = (1.0 - self._masses.sum()) * np.exp(log_slopes) / self._scale
        return np.asarray(heights * unit[:, None])

"""Columns of a query whose natural values are mapped to what the model has (`inputs/maps.py`)."""

from __future__ import annotations

import itertools

import numpy as np
from scipy.special import ndtr, ndtri

from pickmix.families.base import Pairs, Part
from pickmix.families.distributions import Distribution, normal_quantiles
from pickmix.inputs.maps import ColumnMap
from pickmix.model.rows import Posterior, QueryRows

# Points of equal probability of a standard normal distribution, for products of two columns.
_NODES = ndtri((np.arange(48) + 0.5) / 48)


def _continuous(
    query: QueryRows, block: Posterior, part: Part, target: int, column: int
) -> tuple[ColumnMap, np.ndarray, np.ndarray, np.ndarray | None]:
    """The map, means and deviations (P,) of scores, and probabilities (P, 1 + A) of atoms."""
    each = query.map_of(column)
    means, variances = part.moments(block.pairs.of(part.columns), np.array([target]))
    shares = atom_shares(query, block.pairs, column)
    # Cells that are given have no spread.
    deviations = np.sqrt(np.maximum(variances[:, 0], 1e-24))
    return each, means[:, 0] + query.centre[column], deviations, shares


def atom_shares(query: QueryRows, pairs: Pairs, column: int) -> np.ndarray | None:
    """Probabilities (P, 1 + A) of no atom and of each; None of a column without atoms."""
    place = query.atom_part(column)
    return None if place is None else place[0].level_shares(pairs.of(place[0].columns), place[1])


def mapped_moments(
    query: QueryRows, block: Posterior, part: Part, target: int, column: int
) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances (R,) of a column's natural values."""
    if query.map_of(column).period:
        return query.map_of(column).circular_moments(block.average_levels(part, target))
    first, second = pair_moments(query, block, part, target, column)
    mean = block.average(first)
    return mean, block.average(second + np.square(first - mean[block.pairs.which]))


def pair_moments(
    query: QueryRows, block: Posterior, part: Part, target: int, column: int
) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances (P,) of a column's natural values in the components of pairs."""
    each = query.map_of(column)
    if each.levels.size:
        levels = part.level_shares(block.pairs.of(part.columns), target)
        means = levels @ each.levels
        return means, np.maximum(levels @ np.square(each.levels) - np.square(means), 0.0)
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

    Whether cells are atoms is taken as independent; see `add_level_covariances`.
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


def add_level_covariances(
    query: QueryRows, block: Posterior, columns: np.ndarray, within: np.ndarray
) -> None:
    """Add to covariances (P, d, d) what values and atoms that depend on each other bring."""
    terms: dict[int, tuple[Part, int, np.ndarray]] = {}
    for i, column in enumerate(columns.tolist()):
        if not query.has_map(column):
            continue
        ((part, (target,), _),) = query.parts_of(np.array([column]))
        each, place = query.map_of(column), query.atom_part(column) or (part, int(target))
        if not place[0].levels_depend:
            continue
        values = np.broadcast_to(each.levels, (block.weights.shape[0], each.levels.shape[0]))
        if not each.levels.size:
            _, centres, deviations, _ = _continuous(query, block, part, int(target), column)
            atoms = np.broadcast_to(each.atoms, (centres.shape[0], each.atoms.shape[0]))
            values = np.column_stack([each.moments(centres, deviations)[0], atoms])
        terms[i] = (*place, values)
    for i, j in itertools.combinations(terms, 2):
        (part, one, first), (other, two, second) = terms[i], terms[j]
        if part is not other:
            continue
        joint = part.joint_shares(block.pairs.of(part.columns), one, two)
        apart = joint.sum(axis=2)[:, :, None] * joint.sum(axis=1)[:, None, :]
        # Where both are numbers, and not atoms, they have the covariance of the numbers.
        within[:, i, j] *= joint[:, 0, 0] / np.maximum(apart[:, 0, 0], 1e-300)
        within[:, i, j] += np.einsum("pab,pa,pb->p", joint - apart, first, second)
        within[:, j, i] = within[:, i, j]


def mapped_quantiles(
    query: QueryRows, block: Posterior, part: Part, target: int, column: int, quantile: float
) -> np.ndarray:
    """Quantiles (R,) of a column's natural values: the least x with P(X <= x) >= quantile."""
    each = query.map_of(column)
    if each.levels.size:
        masses = block.average_levels(part, target)
        order = np.broadcast_to(np.arange(each.levels.shape[0]), masses.shape)
        if each.period:
            # From opposite of the circular mean.
            order = np.argsort(each.away(each.circular_moments(masses)[0]), axis=1)
        sums = np.cumsum(np.take_along_axis(masses, order, axis=1), axis=1)
        places = np.minimum((sums < quantile * sums[:, -1:]).sum(axis=1), order.shape[1] - 1)
        return np.asarray(each.levels[order[np.arange(places.shape[0]), places]])
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
    query: QueryRows, part: Part, target: int, column: int, scores: np.ndarray, pairs: Pairs
) -> np.ndarray:
    """Modes (P,) in components of pairs: the likeliest atom, or the likeliest score's value."""
    each = query.map_of(column)
    if each.levels.size:
        shares = part.level_shares(pairs.of(part.columns), target)
        return np.asarray(each.levels[shares.argmax(axis=1)])
    values, atoms = each.rounded(each.backward(scores)), atom_shares(query, pairs, column)
    if atoms is None:
        return values
    which = atoms.argmax(axis=1)
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

"""Rows of queries: their observed cells, and the components that matter to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from pickmix.checks import refuse_overflow
from pickmix.families.base import Pairs, Part, RandomSource, SeenRows
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

    def average_levels(self, part: Part, target: int) -> np.ndarray:
        """Probabilities (R, L) of the levels of a part's column."""
        if not part.levels_depend:
            return self.average_components(part.tables[target])
        width = part.tables[target].shape[1]
        pieces = [
            piece.average(part.level_shares(piece.pairs.of(part.columns), target))
            for piece in _cut(self, max(1, _BLOCK_NUMBERS // width))
        ]
        return np.concatenate(pieces)

    def choose(self, uniforms: np.ndarray) -> np.ndarray:
        """Components (R, n) drawn by uniforms (R, n)."""
        rows = np.arange(uniforms.shape[0])[:, None]
        return np.asarray(self.pairs.components[self.choose_pairs(rows, uniforms)])

    def choose_pairs(self, rows: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        """Pairs of rows, drawn by uniforms; both arrays have one shape, or are broadcast."""
        cumulative = np.cumsum(self.weights)
        ends = np.append(self.starts[1:], self.weights.shape[0])
        before = cumulative[ends - 1] - np.add.reduceat(self.weights, self.starts)
        marks = before[rows] + uniforms * (cumulative[ends - 1] - before)[rows]
        chosen = np.searchsorted(cumulative, marks, side="right")
        return np.asarray(np.clip(chosen, self.starts[rows], ends[rows] - 1))


class QueryRows:
    """Rows (N, D) with NaN for missing cells, in the coordinates of a mixture.

    `noise`: variances (N, D) or covariances (N, D, D) of observed cells, 0 elsewhere.
    `level_weights`, by column: factors (L,) of probabilities in the choice of the best level, if
    levels stand for several. With `maps` of columns, the rows are natural ones (`natural`), of
    which `rows` of the model are made; `log_slopes` (N, D) are what log-densities gain by that.
    """

    #: Whether components are of a family: conditionals are then mixtures of it.
    is_family = True
    #: Whether draws can be made to meet conditions.
    takes_events = True

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

    def atom_part(self, column: int) -> tuple[Part, int] | None:
        """The part, and the number in it, of which atom a column has; None if it has none."""
        place = None if self.maps is None else self.maps.indicators.get(int(column))
        if place is None:
            return None
        ((part, (target,), _),) = self.parts_of(np.array([place]))
        return part, int(target)

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

    def posteriors_to_draw(self, n_draws: int, random: RandomSource) -> Iterator[Posterior]:
        """Yield all rows, to draw so often from each."""
        return self.posteriors()

    def effective_draws(self) -> np.ndarray:
        """How many independent draws (n,) answers are worth; infinite where they are exact."""
        return np.full(self.rows.shape[0], np.inf)

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

"""Categories that depend on each other given the component, along a tree of columns.

Every column but the roots has a parent, another column, and log p_k(x) is the sum of the logarithms
of p_k(level | level of the parent). To the sweep a pair of levels is one level of a larger table,
so it knows nothing of trees: `coordinates` numbers the pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.special import gammaln, xlogy

from pickmix.families.base import LeftOutPairs, Parameters, Part, Prior
from pickmix.families.categorical import (
    LEAST_LEFT,
    LEAST_PROBABILITY,
    SPLIT_TILT,
    WIDTH,
    Categorical,
    CategoricalPrior,
    check_sums,
)
from pickmix.families.column_trees import inner_gaps, parents_first, restricted_parents
from pickmix.families.layout import (
    SCALE,
    Model,
    Moments,
    halves,
    make_layout,
    moments_of_mass_one,
)
from pickmix.families.tree_part import TreePart

# Pseudo-rows of conditional distributions to choose from, and how many numbers judge them.
_EDGE_COUNTS = 2.0 ** np.arange(-3.0, 11.0)
_JUDGED_NUMBERS = 200_000
_POOLINGS_PER_CHOICE = 5
_RATIO_COUNT = 1.0  # Pseudo-rows of each pair of levels that occur as often as expected.
_LEAST_ROWS = 1e-250  # Fewer rows of a level of the parent are none.


@dataclass(frozen=True)
class Places:
    """Where the numbers of a tree of columns are.

    Codes of column q are offsets[q]..offsets[q + 1] of L: its levels (roots, and where the parent
    is missing), one code for a missing level, and pairs of a level of the parent and a level.
    """

    offsets: np.ndarray  # (Q + 1,) Of codes.
    level_offsets: np.ndarray  # (Q + 1,) Of levels, among M.
    levels: np.ndarray  # (M,) Codes of levels alone.
    pairs: np.ndarray  # (E,) Codes of pairs.
    child: np.ndarray  # (E,) The level of a pair, among M.
    parent: np.ndarray  # (E,) The level of the parent, among M.
    column: np.ndarray  # (E,) The column of a pair.
    #: (C,) Where the pairs of a level of the parent begin, and how many they are.
    starts: np.ndarray
    sizes: np.ndarray
    to_levels: csr_array  # (E, M) Sums pairs over the parent.

    @classmethod
    def of(cls, n_levels: Sequence[int], parents: Sequence[int]) -> Places:
        level_offsets = np.append(0, np.cumsum(n_levels)).astype(np.int64)
        rows = [n_levels[p] if p >= 0 else 0 for p in parents]
        n_codes = [n + 1 + n * m for n, m in zip(n_levels, rows, strict=True)]
        offsets = np.append(0, np.cumsum(n_codes)).astype(np.int64)
        levels = [offsets[q] + np.arange(n) for q, n in enumerate(n_levels)]
        pairs, child, parent, column, sizes = ([np.empty(0, dtype=np.int64)] for _ in range(5))
        for q, (n, m) in enumerate(zip(n_levels, rows, strict=True)):
            pairs.append(offsets[q] + n + 1 + np.arange(n * m))
            child.append(np.tile(level_offsets[q] + np.arange(n), m))
            parent.append(np.repeat(level_offsets[parents[q]] + np.arange(m), n))
            column.append(np.full(n * m, q))
            sizes.append(np.full(m, n))
        to, size = np.concatenate(child), np.concatenate(sizes)
        shape = to.shape[0], int(level_offsets[-1])
        sums = csr_array((np.ones(shape[0]), (np.arange(shape[0]), to)), shape=shape)
        return cls(
            offsets,
            level_offsets,
            np.concatenate(levels),
            np.concatenate(pairs),
            to,
            np.concatenate(parent),
            np.concatenate(column),
            np.cumsum(size) - size,
            size,
            sums,
        )

    def sum_columns(self, values: np.ndarray) -> np.ndarray:
        """Sums of values (n, M) over the levels of their column, (n, M)."""
        sums = np.add.reduceat(values, self.level_offsets[:-1], axis=1)
        return np.repeat(sums, np.diff(self.level_offsets), axis=1)

    def sum_pairs(self, values: np.ndarray) -> np.ndarray:
        """Sums of values (n, E) over the pairs with one level of the parent, (n, E)."""
        if not self.starts.size:
            return values
        return np.repeat(np.add.reduceat(values, self.starts, axis=1), self.sizes, axis=1)

    def split_counts(self, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Shares of levels (n, M), however seen, and of pairs (n, E)."""
        pairs = counts[:, self.pairs]
        return counts[:, self.levels] + pairs @ self.to_levels, pairs


@dataclass
class TreePrior(Prior):
    """Shrinkage of levels as in `CategoricalPrior`, and of pairs towards a common interaction.

    A component that has few rows of a pair of levels has p(level | parent's) in proportion to
    p(level) times how much more often the pair occurs, over all components, than it would if its
    columns were independent given the component.
    """

    n_rows: float
    places: Places
    levels: CategoricalPrior
    ratios: np.ndarray  # (E,) How much more often pairs occur than expected.
    #: (Q,) Pseudo-rows of each level of the parent; 0 where there is no prior.
    counts: np.ndarray
    _n_poolings: int = 0

    def pool(self, moments: Moments, masses: np.ndarray) -> None:
        shares, pairs = self.places.split_counts(moments.counts)
        self.levels.n_rows = self.n_rows
        self.levels.pool(moments._replace(counts=shares), masses)
        if not self.counts.any() or not pairs.shape[1]:
            return
        places, rows = self.places, np.maximum(masses * self.n_rows, 0.0)
        levels = self.shrink_levels(shares, rows)
        seen = rows[:, None] * pairs
        of_parent = np.add.reduceat(seen, places.starts, axis=1)
        expected = np.empty(pairs.shape[1])
        for q, first, last in _runs(places.column):
            cells = np.searchsorted(places.starts, [first, last])
            own = levels[:, places.level_offsets[q] : places.level_offsets[q + 1]]
            expected[first:last] = (of_parent[:, cells[0] : cells[1]].T @ own).ravel()
        self.ratios = (seen.sum(axis=0) + _RATIO_COUNT) / (expected + _RATIO_COUNT)
        if self._n_poolings % _POOLINGS_PER_CHOICE == 0:
            n = min(rows.shape[0], max(4, _JUDGED_NUMBERS // pairs.shape[1]), 200)
            judged = np.linspace(0, rows.shape[0] - 1, n).astype(np.int64)
            self._choose_counts(seen[judged], self.targets(levels[judged]))
        self._n_poolings += 1

    def _choose_counts(self, seen: np.ndarray, targets: np.ndarray) -> None:
        """Pseudo-rows under which rows (n, E) of pairs are most probable."""
        places = self.places
        columns, firsts = np.unique(places.column, return_index=True)
        totals = np.add.reduceat(seen, places.starts, axis=1)
        column_of_total = places.column[places.starts]
        evidence = np.empty((_EDGE_COUNTS.shape[0], columns.shape[0]))
        for number, candidate in enumerate(_EDGE_COUNTS.tolist()):
            pseudo = np.maximum(candidate * targets, 1e-30)
            gains = (gammaln(seen + pseudo) - gammaln(pseudo)).sum(axis=0)
            whole = (gammaln(totals + candidate) - gammaln(candidate)).sum(axis=0)
            whole = np.bincount(column_of_total, whole, self.counts.shape[0])[columns]
            evidence[number] = np.add.reduceat(gains, firsts) - whole
        self.counts = self.counts.copy()
        self.counts[columns] = _EDGE_COUNTS[evidence.argmax(axis=0)]

    def shrink_levels(self, shares: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Probabilities (n, M) of levels, of their shares among `rows` (n,) rows."""
        places, rows = self.places, rows[:, None]
        pseudo = np.repeat(self.levels.counts, np.diff(places.level_offsets))
        frequencies = self.levels.frequencies
        totals = rows * places.sum_columns(shares) + pseudo
        found = np.broadcast_to(frequencies, shares.shape).copy()
        np.divide(rows * shares + pseudo * frequencies, totals, out=found, where=totals > 0.0)
        return found

    def targets(self, levels: np.ndarray) -> np.ndarray:
        """What conditional distributions (n, E) are shrunk to, by probabilities (n, M)."""
        found = levels[:, self.places.child] * self.ratios
        return np.asarray(found / np.maximum(self.places.sum_pairs(found), 1e-300))

    def copy(self) -> TreePrior:
        made = super().copy()
        made.levels = self.levels.copy()
        return made

    def content(self) -> dict[str, object]:
        return super().content() | {"levels": self.levels.content()}

    def restore(self, content: dict[str, object]) -> None:
        levels = content["levels"]
        assert isinstance(levels, dict)
        self.levels.restore(levels)
        super().restore({name: value for name, value in content.items() if name != "levels"})


def _runs(numbers: np.ndarray) -> list[tuple[int, int, int]]:
    """Runs of equal numbers: the number, where it begins and where it ends."""
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    ends = np.append(starts[1:], numbers.shape[0])
    return list(zip(numbers[starts].tolist(), starts.tolist(), ends.tolist(), strict=True))


class TreeCategorical(Categorical):
    """Levels 0, 1, ... that depend on those of a parent column; parents (Q,), -1 of roots.

    Missing levels need nothing of the sweep: they are a code of probability one, and a level with a
    missing parent counts by itself. So in a fit what a missing cell separates is independent given
    the component. Queries are exact (`log_gap_terms`).

    >>> family = TreeCategorical([2, 3], [-1, 0])
    >>> family.coordinates(np.array([[1.0, 2.0], [np.nan, 2.0], [0.0, np.nan]]))
    array([[1., 9.],
           [2., 2.],
           [0., 3.]])
    >>> family.n_parameters(1)
    5
    """

    keeps_columns = False

    def __init__(self, n_levels: Sequence[int], parents: Sequence[int]) -> None:
        self.n_levels = tuple(int(n) for n in n_levels)
        self._parents = tuple(int(parent) for parent in parents)
        self.order = parents_first(self._parents, len(self.n_levels))
        self.places = Places.of(self.n_levels, self._parents)
        self.layout = make_layout([], np.diff(self.places.offsets).tolist())

    def parents(self) -> np.ndarray:
        return np.array(self._parents, dtype=np.int64)

    def coordinates(self, rows: np.ndarray) -> np.ndarray:
        missing = np.isnan(rows)
        codes = np.where(missing, np.array(self.n_levels, dtype=rows.dtype), rows)
        for q, parent in enumerate(self._parents):
            if parent < 0:
                continue
            both = ~(missing[:, q] | missing[:, parent])
            n = self.n_levels[q]
            codes[both, q] = n + 1 + rows[both, parent] * n + rows[both, q]
        return codes

    def positions(self, model: Model) -> np.ndarray:
        return np.asarray(np.exp(0.5 * model.tables[:, self.places.levels]))

    def row_positions(self, rows: np.ndarray) -> np.ndarray:
        sizes = np.array(self.n_levels)
        positions = np.zeros((rows.shape[0], int(sizes.sum())))
        codes = rows.astype(np.int64)
        # A missing level is as far from every component.
        known = codes != sizes
        levels = np.where(codes > sizes, (codes - sizes - 1) % sizes, codes)
        which, column = np.nonzero(known)
        positions[which, levels[known] + self.places.level_offsets[:-1][column]] = 1.0
        return positions

    def scales(self, prior: Prior) -> np.ndarray:
        return np.full(self.places.levels.shape[0], WIDTH)

    def make_prior(  # type: ignore[override]
        self, moments: Moments, shrinkage: str, n_rows: float
    ) -> TreePrior:
        places, Q = self.places, len(self.n_levels)
        pooled = moments.mass @ places.split_counts(moments.counts)[0] + 1e-9
        frequencies = pooled / places.sum_columns(pooled[None])[0]
        counts = np.full(Q, 0.0 if shrinkage == "none" else 1.0)
        levels = CategoricalPrior(float(n_rows), places.level_offsets, frequencies, counts.copy())
        ratios = np.ones(places.pairs.shape[0])
        prior = TreePrior(float(n_rows), places, levels, ratios, counts)
        prior.pool(moments, moments.mass / moments.mass.sum())
        return prior

    def maximise(
        self,
        moments: Moments,
        members: np.ndarray,
        prior: Prior,
        model: Model,
        compiled: bool,
    ) -> np.ndarray:
        assert isinstance(prior, TreePrior)
        places = self.places
        rows = moments.mass[members] * (model.decay[SCALE] * prior.n_rows)
        shares, pairs = places.split_counts(moments.counts[members])
        failures = ~np.isfinite(shares).all(axis=1)
        good = members[~failures]
        rows, shares, pairs = rows[~failures], shares[~failures], pairs[~failures]
        levels = prior.shrink_levels(shares, rows)
        conditionals = prior.targets(levels)
        pseudo = prior.counts[places.column]
        seen = rows[:, None] * pairs if pseudo.any() else pairs
        totals = places.sum_pairs(seen) + pseudo
        np.divide(
            seen + pseudo * conditionals, totals, out=conditionals, where=totals > _LEAST_ROWS
        )
        tables = np.zeros((good.shape[0], self.layout.n_levels))
        tables[:, places.levels] = np.log(np.maximum(levels, LEAST_PROBABILITY))
        tables[:, places.pairs] = np.log(np.maximum(conditionals, LEAST_PROBABILITY))
        model.tables[good] = tables
        return np.asarray(failures)

    def left_out_falls(self, model: Model, prior: Prior, pairs: LeftOutPairs) -> np.ndarray:
        assert isinstance(prior, TreePrior)
        places, components, which = self.places, pairs.components, pairs.which
        falls = np.zeros(components.shape[0])
        probabilities = np.exp(model.tables)
        first_number = components.astype(np.int64) * probabilities.shape[1]
        effective = pairs.counts

        def of(codes: np.ndarray, q: int) -> np.ndarray:
            return np.asarray(probabilities.ravel()[first_number + (places.offsets[q] + codes)])

        for q, (n, parent) in enumerate(zip(self.n_levels, self._parents, strict=True)):
            codes = pairs.rows[:, q].astype(np.int64)[which]
            is_pair = codes > n
            levels = np.where(is_pair, (codes - n - 1) % n, np.minimum(codes, n - 1))
            # Rows of the component and of the prior, all of them and of this level.
            total = effective + prior.levels.counts[q]
            share = of(levels, q)
            before = share * total
            least = prior.levels.counts[q] * prior.levels.frequencies[places.level_offsets[q] :]
            least = np.minimum(np.maximum(least[levels], LEAST_LEFT), before)
            left = np.maximum(before - pairs.weights, least)
            if parent >= 0:
                level_total, level_left = total, np.maximum(total - pairs.weights, left)
                numbers = np.maximum(codes - n - 1, 0)
                pseudo = prior.counts[q]
                total = np.where(is_pair, effective * of(numbers // n, parent) + pseudo, total)
                of_pair = of(codes, q) * total
                # The prior's rows of this pair fall as the level's probability does.
                ratios = prior.ratios[int(np.searchsorted(places.column, q)) :]
                common = np.minimum(pseudo * np.minimum(share * ratios[numbers], 1.0), of_pair)
                kept = common * np.minimum(left * level_total / (before * level_left), 1.0)
                least = np.minimum(np.maximum(kept, LEAST_LEFT), of_pair)
                of_pair_left = np.maximum(of_pair - pairs.weights - (common - kept), least)
                left = np.where(is_pair, of_pair_left, left)
                before = np.where(is_pair, of_pair, before)
            ratio = before * np.maximum(total - pairs.weights, left) / (left * total)
            falls += np.where(codes == n, 0.0, np.log(ratio))
        return falls

    def split(
        self, model: Model, moments: Moments, prior: Prior, uniforms: np.ndarray
    ) -> tuple[Moments, Moments]:
        places = self.places
        shares = places.split_counts(moments.counts)[0]
        tilt = np.where(uniforms < 0.5, -1.0, 1.0)
        # Halves stay distributions, with the whole as their mean.
        totals = np.maximum(places.sum_columns(shares), 1e-300)
        tilt -= places.sum_columns(shares * tilt) / totals
        largest = np.maximum.reduceat(np.abs(tilt), places.level_offsets[:-1], axis=1)
        tilt *= SPLIT_TILT / np.repeat(np.maximum(largest, 1e-3), self.n_levels, axis=1)
        shifts = np.zeros_like(moments.counts)
        shifts[:, places.levels] = moments.counts[:, places.levels] * tilt
        shifts[:, places.pairs] = moments.counts[:, places.pairs] * tilt[:, places.child]
        return halves(moments, counts=shifts)

    def negative_entropy(self, moments: Moments, shared: np.ndarray) -> np.ndarray:
        places = self.places
        shares, pairs = places.split_counts(moments.counts)
        probabilities = shares / np.maximum(places.sum_columns(shares), 1e-300)
        alone = xlogy(moments.counts[:, places.levels], np.maximum(probabilities, 1e-300))
        within = xlogy(pairs, np.maximum(pairs, 1e-300)) - xlogy(
            pairs, np.maximum(places.sum_pairs(pairs), 1e-300)
        )
        return np.asarray(alone.sum(axis=1) + within.sum(axis=1))

    def parameters(self, model: Model, centre: np.ndarray) -> dict[str, np.ndarray]:
        probabilities = np.exp(model.tables[:, self.places.levels])
        conditionals = np.exp(model.tables[:, self.places.pairs])
        self._propagate(probabilities, conditionals)
        return {"probabilities": probabilities, "conditionals": conditionals}

    def _propagate(self, probabilities: np.ndarray, conditionals: np.ndarray) -> None:
        """Write the probabilities (K, M) of levels that follow from those of roots."""
        places = self.places
        for q in self.order:
            parent = self._parents[q]
            if parent < 0:
                continue
            above = probabilities[
                :, places.level_offsets[parent] : places.level_offsets[parent + 1]
            ]
            table = self.table_of(conditionals, q)
            here = np.einsum("ka,kab->kb", above, table)
            probabilities[:, places.level_offsets[q] : places.level_offsets[q + 1]] = here

    def table_of(self, conditionals: np.ndarray, q: int) -> np.ndarray:
        """p(level of q | level of its parent), (K, n of the parent, n)."""
        first, last = np.searchsorted(self.places.column, [q, q + 1])
        return conditionals[:, first:last].reshape(len(conditionals), -1, self.n_levels[q])

    def moments_of(self, parameters: Parameters, centre: np.ndarray) -> Moments:
        probabilities = np.array(parameters["probabilities"], dtype=np.float64)
        conditionals = np.asarray(parameters["conditionals"], dtype=np.float64)
        self._propagate(probabilities, conditionals)
        counts = np.zeros((len(probabilities), self.layout.n_levels))
        roots = np.repeat(self.parents() < 0, self.n_levels)
        counts[:, self.places.levels[roots]] = probabilities[:, roots]
        counts[:, self.places.pairs] = probabilities[:, self.places.parent] * conditionals
        return moments_of_mass_one(counts=counts)

    def check_parameters(self, parameters: Parameters, prefix: str = "") -> None:
        places = self.places
        sums = ("probabilities", places.level_offsets[:-1]), ("conditionals", places.starts)
        for name, starts in sums:
            check_sums(f"{prefix}{name}", parameters[name], starts)

    def n_parameters(self, n_components: int) -> int:
        roots = int((np.array(self.n_levels) - 1)[self.parents() < 0].sum())
        return n_components * (roots + int((self.places.sizes - 1).sum()))

    def n_parameters_each(self) -> int:
        # Pairs of levels follow the common interaction unless a component has many rows.
        return sum(self.n_levels) - len(self.n_levels)

    def parts(self, parameters: Parameters, centre: np.ndarray) -> list[Part]:
        tables = [
            self.table_of(parameters["conditionals"], q) if parent >= 0 else None
            for q, parent in enumerate(self._parents)
        ]
        columns = np.arange(len(self.n_levels))
        levels = parameters["probabilities"], self.places.level_offsets
        return [TreePart(columns, *levels, self._parents, self.order, tables)]

    def has_inner_gaps(self, rows: np.ndarray) -> np.ndarray:
        return inner_gaps(np.isnan(rows), self._parents)

    def log_gap_terms(self, parameters: Parameters, rows: np.ndarray) -> np.ndarray:
        """What the sweep's log p(x | k) of rows (N, Q) with gaps lacks, (K, N)."""
        (part,) = self.parts(parameters, np.zeros(rows.shape[1]))
        assert isinstance(part, TreePart)
        return np.asarray(part.log_densities(rows) - part.log_densities_apart(rows))

    def restricted(self, columns: np.ndarray) -> Categorical:
        """The tree of some columns, with others summed out."""
        n_levels = [self.n_levels[column] for column in columns]
        parents = restricted_parents(self._parents, columns.tolist())
        return Categorical(n_levels) if max(parents) < 0 else TreeCategorical(n_levels, parents)

"""Where a fit begins: the moments of the components, and the component of each row's chain.

The start of the default fit, for any number of components:

1. k-means++ on a subsample of the rows; beyond some thousand components within the cells of a
   random tree over the subsample, so that its cost does not grow with K^2. The number of centres of
   a cell is proportional to its rows.
2. Sweeps of random-partition Gibbs with one spherical covariance for all components, which is a
   soft k-means that meets a few centres per row.
3. Moments of the rows of each component.

Distances are between positions (`Family.row_positions`), in standard deviations of the columns, so
units do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import numpy as np

from pickmix.closed_form.chains import sample_numbers
from pickmix.closed_form.seeding import (
    PlacedRows,
    nearest_centres,
    plus_plus,
    seed_in_cells,
    soften,
)
from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows, Batches
from pickmix.families.base import Family
from pickmix.families.layout import Moments
from pickmix.fitting.settings import FitSettings, resolve_batch_size
from pickmix.kernels.statistics import Statistics, Sums, stack
from pickmix.selection.partitions import RandomPartition
from pickmix.selection.randomness import StepRandomness, Stream, draw_uniformly

_SUBSAMPLE_PER_COMPONENT = 20  # Rows for k-means++ and the first moments.
_SMALLEST_SUBSAMPLE = 10_000
_SEEDING_WORK = 2e9  # Multiply-adds for trials per centre, and for Lloyd iterations.
_MOST_LLOYD = 20
_LARGEST_PLUS_PLUS = 3000  # With more components "auto" draws rows, at less cost.
_LARGEST_WHOLE = 2000  # With more components k-means++ runs in cells.
_BLOCK_ROWS = 65536


@dataclass
class Start:
    """Moments to start from, in centred coordinates, and the chains (N,) of all rows."""

    moments: Moments
    chain: np.ndarray
    evaluations: int = 0
    background: int | None = None


@dataclass(frozen=True)
class GivenStart:
    """Parameters of the start that the user gave, as moments about the centre of the rows."""

    means: np.ndarray | None = None  # (K, C)
    weights: np.ndarray | None = None  # (K,)
    scatter: np.ndarray | None = None  # (K, P) Mean products of coordinates about the means.


@dataclass(frozen=True)
class WarmStart:
    """Where an earlier fit ended, from which this one continues."""

    moments: Moments
    chain: np.ndarray
    n_steps: int = 0
    passes: float = 0.0
    lower_bound: float = -np.inf
    background: int | None = None


def choose_start(
    family: Family,
    source: ArrayRows,
    settings: FitSettings,
    seed: int,
    backend: ModuleType,
    given: GivenStart | WarmStart | Start,
    draws: np.random.RandomState,
) -> Start:
    """Make the start that the settings ask for; `draws` makes scikit-learn's draws."""
    if isinstance(given, Start):
        moments = Moments(*(array.copy() for array in given.moments))
        return Start(moments, given.chain.copy(), given.evaluations, given.background)
    # Starts need complete rows: missing cells are filled from nearest neighbours.
    starter = Starter(family, source.filled(), settings.n_components, seed, backend)
    if isinstance(given, WarmStart):
        chain, K = given.chain.copy(), settings.n_components
        # Kernels trust these indices, wherever they come from.
        if chain.shape[0] != settings.n_rows or chain.min() < 0 or chain.max() >= K:
            chain = starter.chain_near(given.moments)
        return Start(Moments(*(array.copy() for array in given.moments)), chain)
    if given.means is not None:
        start = starter.from_means(given.means)
    elif settings.init_params in ("kmeans", "random"):
        start = starter.as_scikit_learn(settings.init_params, draws)
    elif settings.init_params == "paper":
        start = starter.unit_cube()
    elif settings.spreads_out and settings.partition is not None:
        batch_size = resolve_batch_size(
            "auto", settings.algorithm, settings.n_rows, settings.n_components, settings.partition
        )
        start = starter.spread_out(settings.partition, batch_size)
    else:
        start = starter.from_data(settings.init_params)
    if given.weights is not None:
        mass = start.moments.mass
        ratio = np.divide(given.weights, mass, out=np.ones_like(mass), where=mass > 0.0)
        squares = start.moments.squares * np.square(ratio)
        start.moments = start.moments._replace(mass=given.weights.copy(), squares=squares)
    if given.scatter is not None:
        start.moments = start.moments._replace(scatter=given.scatter.copy())
    return start


class Starter:
    """Makes starts for K components of a family on a source of rows."""

    def __init__(
        self, family: Family, source: ArrayRows, n_components: int, seed: int, backend: ModuleType
    ) -> None:
        self.family = family
        self.source = source
        self.n_components = n_components
        self.seed = seed
        self.backend = backend
        self.random = StepRandomness(seed, 0)
        self.generator = np.random.Generator(
            np.random.Philox(key=np.array([seed, 2**63], dtype=np.uint64))
        )

    def from_data(self, method: str) -> Start:
        """Start at rows of the data: "random_from_data", "k-means++", "kmeans" or "auto"."""
        if method == "auto":
            few = self.n_components <= _LARGEST_PLUS_PLUS
            method = "k-means++" if few else "random_from_data"
        rows, weights = self._subsample()
        places = self.family.row_positions(rows)
        if method == "random_from_data":
            # Distinct rows; heavier ones first in the sense of weighted sampling without
            # replacement (Efraimidis and Spirakis 2006).
            keys = self.generator.exponential(size=rows.shape[0]) / weights
            # Fewer distinct rows than components: go round again.
            centres = places[np.resize(np.argsort(keys)[: self.n_components], self.n_components)]
        else:
            trials = 2.0 + np.log(self.n_components)
            centres, affordable = self._plus_plus_of(places, weights, trials)
            for _ in range(int(min(affordable, _MOST_LLOYD))):
                centres = self._lloyd(centres, places, weights)
        return self._at_centres(centres, rows, weights)

    def from_means(self, means: np.ndarray) -> Start:
        """Start at given means (K, C): weights and spreads from the nearest rows."""
        rows, weights = self._subsample()
        start = self._at_centres(self.family.row_positions(means), rows, weights)
        start.moments.mean[:] = means
        return start

    def from_labels(self, labels: np.ndarray) -> Start:
        """Start from given labels (N,), without shrinkage."""
        chain = labels.astype(np.int32)
        numbers = np.arange(self.source.n_rows)
        return Start(self._moments_of_chain(chain, numbers, shrinks=False), chain)

    def from_responsibilities(self, responsibilities: np.ndarray) -> Start:
        """Start from responsibilities (N, K), which sum to one per row."""
        layout = self.family.layout
        all_components = np.arange(self.n_components, dtype=np.int32)
        statistics: Statistics | None = None
        for start in range(0, self.source.n_rows, _BLOCK_ROWS):
            numbers = np.arange(start, min(start + _BLOCK_ROWS, self.source.n_rows))
            weights, total = self.source.weights_of(numbers)
            rows = self.source.gather(numbers)
            shares = np.ascontiguousarray(responsibilities[numbers].T)
            sums: Sums = self.backend.sums_of_all(layout, rows, weights, shares)
            part = Statistics(all_components, *sums, total)
            statistics = part if statistics is None else statistics.plus(part, layout)
        assert statistics is not None
        moments = self._moments_of(statistics, self.source.gather(np.arange(1)), shrinks=False)
        return Start(moments, responsibilities.argmax(axis=1).astype(np.int32))

    def as_scikit_learn(self, method: str, draws: np.random.RandomState) -> Start:
        """Start by scikit-learn's "kmeans" or "random", with its draws."""
        source = self.source
        if method == "kmeans":
            # Imported here, as few fits need it.
            from sklearn.cluster import KMeans

            clusters = KMeans(self.n_components, n_init=1, random_state=draws)
            clusters.fit(source.data, sample_weight=source.weights)
            return self.from_labels(clusters.labels_)
        shares = draws.uniform(size=(source.n_rows, self.n_components))
        return self.from_responsibilities(shares / shares.sum(axis=1, keepdims=True))

    def unit_cube(self) -> Start:
        """The paper's start: means uniform in the unit cube, unit covariances, random weights."""
        layout = self.family.layout
        means = self.generator.random((self.n_components, layout.n_coordinates))
        weights = self.generator.random(self.n_components)
        i, j = layout.pairs()
        n_levels = np.diff(layout.offsets)
        uniform = np.repeat(1.0 / n_levels, n_levels)
        weights /= weights.sum()
        moments = Moments(
            weights,
            self._squares(weights, np.full(self.n_components, layout.n_coordinates + 1.0)),
            means - self.source.center[: layout.n_coordinates],
            np.repeat((i == j).astype(np.float64)[None], self.n_components, axis=0),
            np.repeat(uniform[None], self.n_components, axis=0),
        )
        return Start(moments, self.random_chain())

    def random_chain(self) -> np.ndarray:
        rows = np.arange(self.source.n_rows)
        key = self.random.key(Stream.START)
        return draw_uniformly(rows, self.n_components, key, 0, 1)[:, 0]

    def chain_near(self, moments: Moments) -> np.ndarray:
        """Chains (N,) on the nearest component with these moments."""
        prior = self.family.make_prior(moments, "none", float(self.source.n_rows))
        state = MixtureState(self.family, moments, self.backend, prior)
        return self.chain_at(state.positions())

    def chain_at(self, centres: np.ndarray) -> np.ndarray:
        """Chains (N,) on the nearest centre (K, d)."""
        return self._chain_in(PlacedRows(self.source, self.family), centres)

    @staticmethod
    def _squares(weights: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Sums of squared weights of components of so many effective rows."""
        return np.asarray(np.square(weights) / np.maximum(counts, 1e-300))

    def _plus_plus_of(
        self, places: np.ndarray, weights: np.ndarray, most_trials: float
    ) -> tuple[np.ndarray, float]:
        """Centres, and how often the work of one trial for all of them is affordable."""
        affordable = _SEEDING_WORK / (places.size * self.n_components)
        n_trials = int(min(max(1.0, affordable), most_trials))
        uniforms = self.generator.random((self.n_components, n_trials))
        return places[plus_plus(places, weights, uniforms)], affordable

    def _lloyd(self, centres: np.ndarray, places: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """One Lloyd step; a centre without rows stays."""
        nearest = nearest_centres(places, centres)
        mass = np.bincount(nearest, weights, self.n_components)
        order = np.argsort(nearest, kind="stable")
        begins = np.searchsorted(nearest[order], np.flatnonzero(mass > 0.0))
        sums = np.add.reduceat(weights[order, None] * places[order], begins, axis=0)
        moved = centres.copy()
        moved[mass > 0.0] = sums / mass[mass > 0.0, None]
        return moved

    def _at_centres(self, centres: np.ndarray, rows: np.ndarray, row_weights: np.ndarray) -> Start:
        """Moments of the rows nearest to each centre, and chains there."""
        nearest = nearest_centres(self.family.row_positions(rows), centres)
        statistics = self.backend.pair_statistics(
            self.family.layout,
            self.n_components,
            rows,
            row_weights,
            nearest[:, None],
            np.ones((rows.shape[0], 1)),
            float(row_weights.sum()),
        )
        moments = self._moments_of(statistics, rows)
        # Chains begin at the means of the nearest rows.
        settled = self._lloyd(centres, self.family.row_positions(rows), row_weights)
        return Start(moments, self.chain_at(settled))

    def _moments_of(
        self, statistics: Statistics, rows: np.ndarray, shrinks: bool = True
    ) -> Moments:
        """Moments of assigned rows; with `shrinks`, components of few rows are shrunk to all."""
        layout, n_components = self.family.layout, self.n_components
        members = statistics.members
        mass, squares = np.zeros(n_components), np.zeros(n_components)
        mass[members], squares[members] = statistics.mass, statistics.squares
        counts = np.divide(mass * mass, squares, out=np.zeros_like(mass), where=squares > 0.0)
        total = statistics.mass.sum()
        # A component without rows is put on a row.
        mean = rows[np.arange(n_components) % rows.shape[0], : layout.n_coordinates].copy()
        mean[members] = statistics.mean
        pooled = statistics.scatter.sum(axis=0) / total
        pooled_counts = statistics.counts.sum(axis=0) / total
        trust = np.ones(n_components)
        if shrinks:
            trust = np.minimum(1.0, counts / (2.0 * (layout.n_coordinates + 1.0)))
        scatter = (1.0 - trust)[:, None] * pooled
        levels = (1.0 - trust)[:, None] * pooled_counts
        share = (trust[members] / np.where(statistics.mass > 0.0, statistics.mass, 1.0))[:, None]
        scatter[members] += share * statistics.scatter
        levels[members] += share * statistics.counts
        weights = mass / total
        if shrinks:
            # A pseudo-row each, so that no component starts with weight zero.
            weights = weights * counts.sum() + 1.0
        weights /= weights.sum()
        squares = self._squares(weights, np.maximum(counts, 1.0))
        return Moments(weights, squares, mean, scatter, levels)

    def subsample_numbers(self) -> np.ndarray:
        """Row numbers of the subsample that a start comes from."""
        size = max(_SMALLEST_SUBSAMPLE, _SUBSAMPLE_PER_COMPONENT * self.n_components)
        return sample_numbers(self.source.n_rows, size, self.seed)

    def _subsample(self) -> tuple[np.ndarray, np.ndarray]:
        chosen = self.subsample_numbers()
        # Distinct rows in the order of their values, with the weights of equal rows added up. Where
        # all rows are taken, a start then depends neither on their order nor on whether a row is
        # repeated or weighted.
        rows, place = np.unique(self.source.gather(chosen), axis=0, return_inverse=True)
        return rows, np.bincount(place.ravel(), self.source.weights_of(chosen)[0])

    # The start of the default fit.

    def spread_out(self, settings: RandomPartition, batch_size: int) -> Start:
        """Start with components spread over the rows, whose columns count alike."""
        placed = PlacedRows(self.source, self.family)
        some = placed.gather(sample_numbers(self.source.n_rows, _BLOCK_ROWS, 0))
        spread = np.sqrt(some.var(axis=0))
        scaled = PlacedRows(self.source, self.family, np.where(spread > 0.0, spread, 1.0))
        if self.n_components <= _LARGEST_WHOLE:
            numbers = self.subsample_numbers()
            weights = self.source.weights_of(numbers)[0]
            centres = self._plus_plus_of(scaled.gather(numbers), weights, most_trials=2.0)[0]
            chain = self._chain_in(scaled, centres)
        else:
            centres, chain = seed_in_cells(
                scaled,
                self.subsample_numbers(),
                self.n_components,
                self.random.key(Stream.PARTITION),
                self.generator,
                self.backend,
            )
        batches = Batches(self.source.n_rows, batch_size, self.seed)
        evaluations = soften(scaled, centres, chain, batches, settings, self.backend, self.seed)
        moments = self._moments_of_chain(chain, batches.rows(1))
        # All begin as wide as they are on average, and without correlations: covariances of rows
        # that a soft k-means put together are those of its cells.
        i, j = self.family.layout.pairs()
        pooled = np.where(i == j, moments.mass @ moments.scatter / moments.mass.sum(), 0.0)
        moments.scatter[:] = pooled
        return Start(moments, chain, evaluations)

    def _chain_in(self, placed: PlacedRows, centres: np.ndarray) -> np.ndarray:
        chain = np.empty(placed.n_rows, dtype=np.int32)
        for start in range(0, chain.shape[0], _BLOCK_ROWS):
            part = np.arange(start, min(start + _BLOCK_ROWS, chain.shape[0]))
            chain[part] = nearest_centres(placed.gather(part), centres)
        return chain

    def _moments_of_chain(
        self, chain: np.ndarray, numbers: np.ndarray, shrinks: bool = True
    ) -> Moments:
        """Moments of the rows `numbers` by the components of their chains."""
        K = self.n_components
        components = chain[numbers]
        order, ends = self.backend.group_rows(components, np.arange(K, dtype=np.int32), K)
        parts: list[Statistics] = []
        begin = 0
        while begin < order.shape[0]:
            # Whole components, so that the parts share none.
            target = min(begin + _BLOCK_ROWS, order.shape[0])
            end = int(ends[np.searchsorted(ends, target)])
            here = order[begin:end]
            rows = self.source.gather(numbers[here])
            weights, total = self.source.weights_of(numbers[here])
            parts.append(
                self.backend.pair_statistics(
                    self.family.layout,
                    K,
                    rows,
                    weights,
                    components[here][:, None],
                    np.ones((here.shape[0], 1)),
                    total,
                )
            )
            begin = end
        members = np.concatenate([part.members for part in parts])
        sums = stack([part.sums for part in parts])
        statistics = Statistics(members, *sums, sum(part.total_weight for part in parts))
        return self._moments_of(statistics, self.source.gather(numbers[: 4 * K]), shrinks)

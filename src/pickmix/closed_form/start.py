"""Where a fit begins: means, covariances, weights and the component each row's chain stands on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

from pickmix.closed_form.mixture import GaussianMixtureState, Increment
from pickmix.closed_form.structures import CovarianceStructure
from pickmix.compiled import kernel, part
from pickmix.data.rows import ArrayRows
from pickmix.selection.randomness import StepRandomness, Stream
from pickmix.threads import Threads

# Rows of the subsample that k-means++ and the first covariances come from, per component.
_SUBSAMPLE_PER_COMPONENT = 20
_SMALLEST_SUBSAMPLE = 10_000
# Trials per centre and Lloyd iterations on the subsample: as many as fit into this many
# multiply-adds each.
_SEEDING_WORK = 2e9
_MOST_LLOYD = 20
# k-means++ costs K times the subsample: beyond this many components "auto" draws rows instead.
_LARGEST_PLUS_PLUS = 3000
# Beyond this many components, in few dimensions, a tree finds the nearest mean faster.
_TREE_COMPONENTS = 4096
_TREE_FEATURES = 16


@kernel(fastmath={"reassoc", "contract", "nsz"})
def _nearest(rows, mean_columns, nearest, start, stop):
    """nearest[i] = argmin_k |rows[i] - mean_k|^2, with the means as columns (D, K)."""
    n_features, n_components = mean_columns.shape
    distance = np.empty(n_components)
    for i in range(start, stop):
        distance[:] = 0.0
        for d in range(n_features):
            x = rows[i, d]
            column = mean_columns[d]
            for k in range(n_components):
                y = x - column[k]
                distance[k] += y * y
        best = 0
        for k in range(1, n_components):
            if distance[k] < distance[best]:
                best = k
        nearest[i] = best


def nearest_means(rows: np.ndarray, means: np.ndarray, threads: Threads) -> np.ndarray:
    """Index of the nearest mean (Euclidean) of each row, (B,) int32."""
    n_components, n_features = means.shape
    if n_components > _TREE_COMPONENTS and n_features <= _TREE_FEATURES:
        found = cKDTree(means).query(rows, workers=threads.n_threads)[1]
        return np.asarray(found, dtype=np.int32)
    nearest = np.empty(rows.shape[0], dtype=np.int32)
    columns = np.ascontiguousarray(means.T)
    threads.run(_nearest, rows.shape[0], float(rows.shape[0] * means.size), rows, columns, nearest)
    return nearest


@part(fastmath={"reassoc", "contract", "nsz"})
def _squared_distances(columns, row, out):
    """out (S,) = squared distances of all rows, as columns (D, S), from one of them."""
    out[:] = 0.0
    for d in range(columns.shape[0]):
        values = columns[d]
        x = values[row]
        for i in range(out.shape[0]):
            y = values[i] - x
            out[i] += y * y


@part()
def _pick(mass, total, u):
    """The row at which the running sum of mass passes u * total."""
    target = u * total
    for i in range(mass.shape[0]):
        target -= mass[i]
        if target < 0.0:
            return i
    return mass.shape[0] - 1


@kernel()
def plus_plus(columns, weights, uniforms, chosen):
    """Greedy k-means++ (Arthur and Vassilvitskii 2007): the best of a few draws by w d^2.

    uniforms (K, trials) decides the draws; chosen (K,) receives the rows.
    """
    n_rows = columns.shape[1]
    squared = np.full(n_rows, np.inf)
    distance = np.empty(n_rows)
    best_distance = np.empty(n_rows)
    mass = weights.copy()
    for k in range(chosen.shape[0]):
        total = mass.sum()
        if not total > 0.0:
            # Fewer distinct rows than centres: repeat rows, as no other place has data.
            for i in range(n_rows):
                mass[i] = weights[i]
            total = mass.sum()
        best_potential = np.inf
        for trial in range(uniforms.shape[1]):
            pick = _pick(mass, total, uniforms[k, trial])
            _squared_distances(columns, pick, distance)
            potential = 0.0
            for i in range(n_rows):
                distance[i] = min(distance[i], squared[i])
                potential += weights[i] * distance[i]
            if potential < best_potential or trial == 0:
                best_potential = potential
                chosen[k] = pick
                for i in range(n_rows):
                    best_distance[i] = distance[i]
        for i in range(n_rows):
            squared[i] = best_distance[i]
            mass[i] = weights[i] * squared[i]


@dataclass
class Start:
    """Parameters to start from, in coordinates centred on the data.

    Attributes
    ----------
    weights : (K,) array
    means : (K, D) array
    covariances : (K, P) or (1, P) array
        Packed, without reg_covar.
    counts : (K,) array or None
        Effective rows behind each component.
    chain : (N,) int32 array
        The component that each row's chain stands on.
    evaluations : int
        Component evaluations that the start took.
    """

    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    counts: np.ndarray | None
    chain: np.ndarray
    evaluations: int = 0


class Starter:
    """Makes starts for K components of a covariance structure on a source of rows."""

    def __init__(
        self,
        source: ArrayRows,
        structure: CovarianceStructure,
        n_components: int,
        seed: int,
        threads: Threads,
    ) -> None:
        self.source = source
        self.structure = structure
        self.n_components = n_components
        self.random = StepRandomness(seed, 0)
        self.generator = np.random.Generator(
            np.random.Philox(key=np.array([seed, 2**63], dtype=np.uint64))
        )
        self.threads = threads

    def from_data(self, method: str) -> Start:
        """Start at rows of the data: "random_from_data", "k-means++" or "auto"."""
        if method == "auto":
            few = self.n_components <= _LARGEST_PLUS_PLUS
            method = "k-means++" if few else "random_from_data"
        rows, weights = self._subsample()
        if method == "k-means++":
            trials = 2.0 + np.log(self.n_components)
            means, affordable = self._plus_plus_of(rows, weights, trials)
            for _ in range(int(min(affordable, _MOST_LLOYD))):
                means = self._moments_of_nearest(means, rows, weights)[2]
        else:
            # Distinct rows; heavier ones first in the sense of weighted sampling without
            # replacement (Efraimidis and Spirakis 2006).
            keys = self.generator.exponential(size=rows.shape[0]) / weights
            # Fewer distinct rows than components: go round again.
            means = rows[np.resize(np.argsort(keys)[: self.n_components], self.n_components)]
        return self._from_nearest_rows(means, rows, weights)

    def plus_plus_means(self) -> np.ndarray:
        """Means chosen by k-means++ from a subsample, (K, D), the better of two trials each."""
        return self._plus_plus_of(*self._subsample(), most_trials=2.0)[0]

    def _plus_plus_of(
        self, rows: np.ndarray, weights: np.ndarray, most_trials: float
    ) -> tuple[np.ndarray, float]:
        """Means, and how often the work of one trial for all centres is affordable."""
        affordable = _SEEDING_WORK / (rows.size * self.n_components)
        n_trials = int(min(max(1.0, affordable), most_trials))
        uniforms = self.generator.random((self.n_components, n_trials))
        chosen = np.empty(self.n_components, dtype=np.int64)
        plus_plus(np.ascontiguousarray(rows.T), weights, uniforms, chosen)
        return rows[chosen], affordable

    def from_means(self, means: np.ndarray) -> Start:
        """Start at given means: weights and covariances from the nearest rows of a subsample."""
        rows, weights = self._subsample()
        start = self._from_nearest_rows(means, rows, weights)
        start.means = means.copy()
        return start

    def _moments_of_nearest(
        self, means: np.ndarray, rows: np.ndarray, row_weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Mass, squares, mean and scatter of the rows nearest to each mean; it stays if none is."""
        structure = self.structure
        unit = structure.pack_matrices(np.eye(structure.n_features)[None])
        state = GaussianMixtureState(
            structure,
            np.full(self.n_components, 1.0 / self.n_components),
            means,
            np.repeat(unit, 1 if structure.shared else self.n_components, axis=0),
            reg_covar=0.0,
            threads=self.threads,
        )
        nearest = nearest_means(rows, means, self.threads)[:, None]
        moments = Increment(state, self.n_components)
        total = float(row_weights.sum())
        moments.add_pairs(rows, row_weights, total, nearest, np.ones(nearest.shape))
        mass, squares, centres, scatter = moments.gathered()
        return mass, squares, np.where(mass[:, None] > 0.0, centres, means), scatter

    def _from_nearest_rows(
        self, means: np.ndarray, rows: np.ndarray, row_weights: np.ndarray
    ) -> Start:
        """One Lloyd step, and weights and covariances from the same assignment."""
        structure = self.structure
        mass, squares, centres, scatter = self._moments_of_nearest(means, rows, row_weights)
        counts = np.divide(mass * mass, squares, out=np.zeros_like(mass), where=squares > 0.0)
        covariances = scatter.sum(axis=0, keepdims=True) / mass.sum()
        if not structure.shared:
            statistic = np.divide(scatter, mass[:, None], out=scatter, where=mass[:, None] > 0.0)
            # A covariance from fewer than twice D + 1 rows leans on the pooled one.
            trust = np.minimum(1.0, counts / (2.0 * (structure.n_features + 1.0)))[:, None]
            covariances = trust * statistic + (1.0 - trust) * covariances
        # One pseudo-row each, so that no component starts with weight zero.
        weights = mass / mass.sum() * rows.shape[0] + 1.0
        return Start(
            weights=weights / weights.sum(),
            means=centres,
            covariances=covariances,
            counts=np.maximum(counts, 1.0),
            chain=self.chain_at(centres),
        )

    def unit_cube(self) -> Start:
        """The paper's start: means uniform in the unit cube, unit covariances, random weights."""
        shape = (self.n_components, self.structure.n_features)
        means = self.generator.random(shape) - self.source.center
        weights = self.generator.random(self.n_components)
        n_factors = 1 if self.structure.shared else self.n_components
        unit = self.structure.pack_matrices(np.eye(self.structure.n_features)[None])
        return Start(
            weights=weights / weights.sum(),
            means=means,
            covariances=np.repeat(unit, n_factors, axis=0),
            counts=None,
            chain=self.random_chain(),
        )

    def random_chain(self) -> np.ndarray:
        """Chains that stand anywhere, (N,)."""
        rows = np.arange(self.source.n_rows)
        uniforms = self.random.uniforms(Stream.START, rows, 1)[:, 0]
        return np.minimum(uniforms * self.n_components, self.n_components - 1).astype(np.int32)

    def chain_at(self, means: np.ndarray) -> np.ndarray:
        """Chains that stand on the nearest mean, (N,)."""
        chain = np.empty(self.source.n_rows, dtype=np.int32)
        for start in range(0, self.source.n_rows, 65536):
            stop = min(start + 65536, self.source.n_rows)
            rows = self.source.gather(np.arange(start, stop))
            chain[start:stop] = nearest_means(rows, means, self.threads)
        return chain

    def subsample_numbers(self) -> np.ndarray:
        """Row numbers of the subsample that a start comes from."""
        n_rows = self.source.n_rows
        size = max(_SMALLEST_SUBSAMPLE, _SUBSAMPLE_PER_COMPONENT * self.n_components)
        if size >= n_rows:
            return np.arange(n_rows)
        return np.sort(self.generator.choice(n_rows, size, replace=False))

    def _subsample(self) -> tuple[np.ndarray, np.ndarray]:
        chosen = self.subsample_numbers()
        # Distinct rows in the order of their values, with the weights of equal rows added up. Where
        # all rows are taken, a start then depends neither on their order nor on whether a row is
        # repeated or weighted.
        rows, place = np.unique(self.source.gather(chosen), axis=0, return_inverse=True)
        return rows, np.bincount(place.ravel(), self.source.weights_of(chosen)[0])

"""Seeds of a start: k-means++, in cells of many rows, nearest centres, and a soft k-means."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from pickmix.closed_form.algorithm import PartitionSelection, step
from pickmix.closed_form.chains import Chains
from pickmix.closed_form.state import MixtureState, SingularCovarianceError
from pickmix.compiled import kernel, part
from pickmix.data.rows import ArrayRows, Batches
from pickmix.families.base import Family
from pickmix.families.gaussian import GaussianPrior, SphericalGaussian
from pickmix.families.layout import Moments
from pickmix.fitting.settings import WEIGHT_FLOOR
from pickmix.selection.partitions import RandomPartition
from pickmix.selection.randomness import StepRandomness
from pickmix.threads import n_threads, run

# Beyond this many centres, in few dimensions, a tree finds the nearest one faster.
_TREE_CENTRES = 4096
_TREE_FEATURES = 16
_BLOCK_NUMBERS = 100_000  # Distances computed at a time.
_SPHERICAL_STEPS = 10  # Sweeps with one spherical covariance.
_CELL_CENTRES = 48  # Centres per cell.
_BLOCK_ROWS = 65536
_WIDE, _PROJECTED = 96, 48  # Dimensions of positions that are projected, and onto how many.


def nearest_centres(rows: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Index of the nearest centre (Euclidean) of each row, (B,) int32."""
    n_centres, n_features = centres.shape
    if n_centres > _TREE_CENTRES and n_features <= _TREE_FEATURES:
        return np.asarray(cKDTree(centres).query(rows, workers=n_threads())[1], dtype=np.int32)
    nearest = np.empty(rows.shape[0], dtype=np.int32)
    half_squares = 0.5 * np.einsum("kd,kd->k", centres, centres)
    block = max(1, _BLOCK_NUMBERS // n_centres)
    # One array for all blocks: new memory for each takes longer than what is computed in it.
    distances, columns = np.empty((block, n_centres)), np.ascontiguousarray(centres.T)
    for start in range(0, rows.shape[0], block):
        part = rows[start : start + block]
        products = np.matmul(part, columns, out=distances[: part.shape[0]])
        np.subtract(half_squares, products, out=products)
        nearest[start : start + block] = products.argmin(axis=1)
    return nearest


def plus_plus(rows: np.ndarray, weights: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """Greedy k-means++ (Arthur and Vassilvitskii 2007): the best of a few draws by w d^2.

    uniforms (K, trials) decide the draws. Returns the numbers of K rows.
    """
    chosen = np.empty(uniforms.shape[0], dtype=np.int64)
    columns = np.ascontiguousarray(rows.T)
    squared = np.full(rows.shape[0], np.inf)
    mass = weights
    for k in range(chosen.shape[0]):
        running = np.cumsum(mass)
        if not running[-1] > 0.0:
            # Fewer distinct rows than centres: repeat rows, as no other place has data.
            running = np.cumsum(weights)
        picks = np.searchsorted(running, uniforms[k] * running[-1], side="right")
        picks = np.minimum(picks, rows.shape[0] - 1)
        trials = []
        for pick in picks.tolist():
            away = columns - columns[:, pick : pick + 1]
            trials.append(np.minimum(np.einsum("dn,dn->n", away, away), squared))
        best = int(np.argmin([weights @ trial for trial in trials]))
        chosen[k], squared = picks[best], trials[best]
        mass = weights * squared
    return chosen


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


@part()
def _plus_plus(columns, weights, uniforms, chosen):
    """`plus_plus` of rows as columns (D, S)."""
    n_rows = columns.shape[1]
    squared = np.full(n_rows, np.inf)
    distance = np.empty(n_rows)
    best_distance = np.empty(n_rows)
    mass = weights.copy()
    for k in range(chosen.shape[0]):
        total = mass.sum()
        if not total > 0.0:
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


@kernel()
def seed_cells(rows, order, offsets, centre_offsets, uniforms, chosen, start, stop):
    """k-means++ within the cells start..stop: chosen (K,) receives rows' numbers."""
    for cell in range(start, stop):
        first, last = offsets[cell], offsets[cell + 1]
        columns = np.empty((rows.shape[1], last - first))
        for i in range(first, last):
            for d in range(rows.shape[1]):
                columns[d, i - first] = rows[order[i], d]
        low, high = centre_offsets[cell], centre_offsets[cell + 1]
        picks = np.empty(high - low, dtype=np.int64)
        _plus_plus(columns, np.ones(last - first), uniforms[low:high], picks)
        for c in range(high - low):
            chosen[low + c] = order[first + picks[c]]


@kernel()
def nearest_in_cell(rows, cells, centres, centre_offsets, nearest, start, stop):
    """nearest[i] = the nearest of the centres that row i's cell holds."""
    for i in range(start, stop):
        best, least = -1, np.inf
        for k in range(centre_offsets[cells[i]], centre_offsets[cells[i] + 1]):
            square = 0.0
            for d in range(rows.shape[1]):
                y = rows[i, d] - centres[k, d]
                square += y * y
            if square < least:
                best, least = k, square
        nearest[i] = best


class PlacedRows:
    """The positions of a source's rows, each column divided by its scale.

    Wide positions, as those of many levels, are projected at random onto fewer dimensions, which
    keeps distances to about a tenth (Johnson and Lindenstrauss 1984).
    """

    def __init__(self, source: ArrayRows, family: Family, scale: np.ndarray | None = None) -> None:
        self._source = source
        self._family = family
        self._projection: np.ndarray | None = None
        self._placed: np.ndarray | None = None
        if scale is not None and scale.shape[0] > _WIDE:
            generator = np.random.Generator(np.random.Philox(key=scale.shape[0]))
            drawn = generator.normal(size=(scale.shape[0], _PROJECTED))
            self._projection = drawn / scale[:, None] / np.sqrt(_PROJECTED)
            scale = None
        self._scale = scale
        self.n_rows = source.n_rows
        self.mean_weight = source.mean_weight
        self._all: ArrayRows | None = None

    def gather(self, rows: np.ndarray) -> np.ndarray:
        if self._projection is not None:
            return self._project(rows)
        places = self._family.row_positions(self._source.gather(rows))
        return places if self._scale is None else places / self._scale

    def gather_about(self, rows: np.ndarray, origin: np.ndarray) -> np.ndarray:
        return np.asarray(self.gather(rows) - origin, dtype=np.float32)

    def _project(self, rows: np.ndarray) -> np.ndarray:
        assert self._projection is not None
        if self._placed is not None:
            return np.asarray(self._placed[rows])
        is_all = rows.shape[0] == self.n_rows
        placed = np.empty((rows.shape[0], _PROJECTED))
        size = max(1, _BLOCK_NUMBERS // self._projection.shape[0])
        for start in range(0, rows.shape[0], size):
            some = self._source.gather(rows[start : start + size])
            placed[start : start + size] = self._family.row_positions(some) @ self._projection
        if is_all and np.array_equal(rows, np.arange(self.n_rows)):
            self._placed = placed
        return placed

    def weights_of(self, rows: np.ndarray) -> tuple[np.ndarray, float]:
        return self._source.weights_of(rows)

    def patterns_of(self, rows: np.ndarray) -> np.ndarray | None:
        return None

    def features(self, make: Callable[[np.ndarray], Any], size: int) -> Any:
        if self._all is None:
            self._all = self.part(np.arange(self.n_rows), np.ones(self.n_rows))
        return self._all.features(make, size)

    def part(self, rows: np.ndarray, weights: np.ndarray) -> ArrayRows:
        places = self.gather(rows)
        return ArrayRows(places, weights.copy(), np.zeros(places.shape[1]))


def soften(
    placed: PlacedRows,
    centres: np.ndarray,
    chain: np.ndarray,
    batches: Batches,
    settings: RandomPartition,
    backend: ModuleType,
    seed: int,
) -> int:
    """Soft k-means through blocks; moves the chains, returns the evaluations made."""
    K, n_features = centres.shape
    some = np.unique(np.linspace(0, placed.n_rows - 1, 5000).astype(np.int64))
    rows = placed.gather(some)
    variance = float(np.mean(np.square(rows - centres[chain[some]])))
    # Rows that are centres have distance zero.
    variance = max(variance, 1e-6 * float(np.mean(np.square(rows))), 1e-200)
    family = SphericalGaussian(n_features, reg_covar=0.0)
    weights = np.full(K, 1.0 / K)
    moments = Moments(
        weights,
        np.square(weights) / (n_features + 1.0),
        centres,
        np.full((K, n_features), variance),
        np.zeros((K, 0)),
    )
    prior = family.make_prior(moments, "few", placed.n_rows)
    assert isinstance(prior, GaussianPrior)
    # All have the pooled variance, whatever their rows.
    prior.least_count = np.inf
    state = MixtureState(family, moments, backend, prior, WEIGHT_FLOOR / K)
    selection = PartitionSelection(state, Chains(placed, chain, batches), settings, 1)
    for t in range(1, _SPHERICAL_STEPS + 1):
        step(state, selection, t, 1.0, 1.0, StepRandomness(seed, t))
    if selection.counters.refused:
        raise SingularCovarianceError(0.0, selection.counters.refused)
    return selection.counters.evaluations


def seed_in_cells(
    placed: PlacedRows,
    subsample: np.ndarray,
    n_components: int,
    key: np.uint64,
    generator: np.random.Generator,
    backend: ModuleType,
) -> tuple[np.ndarray, np.ndarray]:
    """Centres from k-means++ within the cells of a random tree, and the nearest of the cell."""
    K = n_components
    rows = placed.gather(subsample)
    spread = np.sqrt(rows.var(axis=0))
    scales = 1.0 / np.maximum(spread, 1e-12 * spread.max() + 1e-280)
    cell_rows = max(2, _CELL_CENTRES * rows.shape[0] // K)
    order, offsets, tree = backend.grow_tree(rows, cell_rows, key, scales)
    centre_offsets = offsets * K // rows.shape[0]
    chosen = np.empty(K, dtype=np.int64)
    uniforms = generator.random((K, 2))
    run(
        seed_cells,
        offsets.shape[0] - 1,
        float(rows.size * _CELL_CENTRES),
        rows,
        order,
        offsets,
        centre_offsets,
        uniforms,
        chosen,
    )
    centres = rows[chosen]
    chain = np.empty(placed.n_rows, dtype=np.int32)
    for start in range(0, placed.n_rows, _BLOCK_ROWS):
        numbers = np.arange(start, min(start + _BLOCK_ROWS, placed.n_rows))
        part = placed.gather(numbers)
        cells = backend.leaf_of(tree, part)
        run(
            nearest_in_cell,
            part.shape[0],
            float(part.size * _CELL_CENTRES),
            part,
            cells,
            centres,
            centre_offsets,
            chain[start : start + _BLOCK_ROWS],
        )
    return centres, chain

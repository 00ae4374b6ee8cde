"""Where the components of a partition fit begin: spread over the rows, whatever K is.

1. k-means++ on a subsample of some rows per component. Beyond a few thousand components that is K^2
   work, so the subsample is first cut into cells by a random tree, and each cell is given the
   centres that its share of the rows makes.
2. Sweeps of random-partition Gibbs with one spherical covariance for all components, which is a
   soft k-means that meets a few centres per row.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from pickmix.closed_form.mixture import GaussianMixtureState
from pickmix.closed_form.partition_engine import PartitionEngine
from pickmix.closed_form.start import Start, Starter, plus_plus
from pickmix.closed_form.structures import SphericalCovariance
from pickmix.data.rows import ArrayRows, Batches
from pickmix.selection.partitions import RandomPartition, grow_tree
from pickmix.selection.randomness import Stream
from pickmix.selection.rules import PartitionGibbs
from pickmix.threads import Threads

# Sweeps with one spherical covariance.
_SPHERICAL_STEPS = 10
# Up to this many components k-means++ sees the subsample as a whole.
_LARGEST_WHOLE = 2000
# Centres per cell beyond that.
_CELL_CENTRES = 48


@njit(cache=True, nogil=True)
def _seed_cells(rows, order, offsets, centre_offsets, uniforms, chosen, start, stop):
    """k-means++ within the cells start..stop: chosen (K,) receives rows' numbers."""
    for cell in range(start, stop):
        first, last = offsets[cell], offsets[cell + 1]
        columns = np.empty((rows.shape[1], last - first))
        for i in range(first, last):
            for d in range(rows.shape[1]):
                columns[d, i - first] = rows[order[i], d]
        low, high = centre_offsets[cell], centre_offsets[cell + 1]
        picks = np.empty(high - low, dtype=np.int64)
        plus_plus(columns, np.ones(last - first), uniforms[low:high], picks)
        for c in range(high - low):
            chosen[low + c] = order[first + picks[c]]


@njit(cache=True, nogil=True)
def _nearest_in_cell(rows, cells, means, centre_offsets, nearest, start, stop):
    """nearest[i] = the nearest of the means that row i's cell holds."""
    for i in range(start, stop):
        best, least = -1, np.inf
        for k in range(centre_offsets[cells[i]], centre_offsets[cells[i] + 1]):
            square = 0.0
            for d in range(rows.shape[1]):
                y = rows[i, d] - means[k, d]
                square += y * y
            if square < least:
                best, least = k, square
        nearest[i] = best


def spread_out(starter: Starter, settings: RandomPartition, batch_size: int, seed: int) -> Start:
    """Start with components spread over the rows, and one spherical covariance for all."""
    source, structure, threads = starter.source, starter.structure, starter.threads
    n_components, n_features = starter.n_components, structure.n_features
    if n_components <= _LARGEST_WHOLE:
        means = starter.plus_plus_means()
        chain = starter.chain_at(means)
    else:
        means, chain = _seed_in_cells(starter)
    variance = _variance_about(starter, means, chain)
    spherical = SphericalCovariance(n_features)
    state = GaussianMixtureState(
        spherical,
        np.full(n_components, 1.0 / n_components),
        means,
        np.full((n_components, 1), variance),
        reg_covar=0.0,
        weight_floor=1e-4 / n_components,
        # All lean on the pooled variance, whatever they have seen.
        least_count=np.inf,
        threads=threads,
    )
    rule = PartitionGibbs(settings)
    rule.start(chain, n_components)
    batches = Batches(source.n_rows, batch_size, seed)
    engine = PartitionEngine(
        state, source, rule, batches, lambda t: 1.0, None, seed, None, last_step=_SPHERICAL_STEPS
    )
    for step in range(1, _SPHERICAL_STEPS + 1):
        engine.step(step)
    variance = max(float(state.pooled[0]), 1e-300)
    unit = structure.pack_matrices(np.eye(n_features)[None])
    return Start(
        weights=state.weights,
        means=state.model.mean,
        covariances=variance * np.repeat(unit, 1 if structure.shared else n_components, axis=0),
        counts=None,
        chain=chain,
        evaluations=engine.counters.evaluations,
    )


def _variance_about(starter: Starter, means: np.ndarray, chain: np.ndarray) -> float:
    """Mean squared distance from the own mean, per column, on some rows; positive."""
    source = starter.source
    some = np.unique(np.linspace(0, source.n_rows - 1, 5000).astype(np.int64))
    rows = source.gather(some)
    variance = float(np.mean(np.square(rows - means[chain[some]])))
    # Rows that are their own centres have no distance.
    return max(variance, 1e-6 * float(np.mean(np.square(rows))), 1e-200)


def _seed_in_cells(starter: Starter) -> tuple[np.ndarray, np.ndarray]:
    """Means from k-means++ within the cells of a random tree, and the nearest of its cell's."""
    source, threads, n_components = starter.source, starter.threads, starter.n_components
    numbers = starter.subsample_numbers()
    rows = source.gather(numbers)
    spread = np.sqrt(rows.var(axis=0))
    scales = 1.0 / np.maximum(spread, 1e-12 * spread.max() + 1e-280)
    key = starter.random.key(Stream.PARTITION)
    cell_rows = max(2, _CELL_CENTRES * rows.shape[0] // n_components)
    order, offsets, tree = grow_tree(rows, cell_rows, key, threads, scales)
    centre_offsets = offsets * n_components // rows.shape[0]
    chosen = np.empty(n_components, dtype=np.int64)
    uniforms = starter.generator.random((n_components, 2))
    threads.run(
        _seed_cells,
        offsets.shape[0] - 1,
        float(rows.size * _CELL_CENTRES),
        rows,
        order,
        offsets,
        centre_offsets,
        uniforms,
        chosen,
    )
    means = rows[chosen]
    chain = np.empty(source.n_rows, dtype=np.int32)
    for start in range(0, source.n_rows, 65536):
        part = source.gather(np.arange(start, min(start + 65536, source.n_rows)))
        nearest = chain[start : start + 65536]
        cells = tree.leaf_of(part, threads)
        work = float(part.size * _CELL_CENTRES)
        threads.run(
            _nearest_in_cell, part.shape[0], work, part, cells, means, centre_offsets, nearest
        )
    return means, chain


def compile_seeding(source: ArrayRows) -> None:
    """Compile what only starts with very many components need."""
    starter = Starter(source, SphericalCovariance(source.n_features), 2, 0, Threads())
    _seed_in_cells(starter)

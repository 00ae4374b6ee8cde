"""Where the components of a partition fit begin: spread over the rows, whatever K is.

1. k-means++ on a subsample of some rows per component. Beyond a few thousand components that is K^2
   work, so the subsample is first cut into cells by a random tree, and each cell is given the
   centres that its share of the rows makes.
2. Sweeps of random-partition Gibbs with one spherical covariance for all components, which is a
   soft k-means that meets a few centres per row.
3. One sweep with covariances of the structure that is wanted.

Distances are measured in standard deviations of the columns, so units do not matter.
"""

from __future__ import annotations

import numpy as np

from pickmix.closed_form.mixture import (
    PRIOR_COUNT,
    GaussianMixtureState,
    SingularCovarianceError,
)
from pickmix.closed_form.partition_engine import PartitionEngine
from pickmix.closed_form.start import Start, Starter, plus_plus
from pickmix.closed_form.structures import SphericalCovariance
from pickmix.compiled import kernel
from pickmix.data.rows import ArrayRows, Batches, ScaledRows
from pickmix.selection.partitions import RandomPartition, grow_tree
from pickmix.selection.randomness import Stream
from pickmix.selection.rules import PartitionGibbs
from pickmix.selection.schedules import ConstantStep
from pickmix.threads import Threads

# Sweeps with one spherical covariance.
_SPHERICAL_STEPS = 10
# Up to this many components k-means++ sees the subsample as a whole.
_LARGEST_WHOLE = 2000
# Centres per cell beyond that.
_CELL_CENTRES = 48


@kernel()
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


@kernel()
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


def spread_out(
    starter: Starter, settings: RandomPartition, batch_size: int, reg_covar: float, seed: int
) -> Start:
    """Start with components spread over the rows, whose columns count alike."""
    source, structure, threads = starter.source, starter.structure, starter.threads
    n_components = starter.n_components
    spread = np.sqrt(source.spread())
    scale = np.where(spread > 0.0, spread, 1.0)
    scaled = ScaledRows(source, scale)
    seeder = Starter(scaled, structure, n_components, seed, threads)
    if n_components <= _LARGEST_WHOLE:
        means = seeder.plus_plus_means()
        chain = seeder.chain_at(means)
    else:
        means, chain = _seed_in_cells(seeder)
    spherical = GaussianMixtureState(
        SphericalCovariance(structure.n_features),
        np.full(n_components, 1.0 / n_components),
        means,
        np.full((n_components, 1), _variance_about(scaled, means, chain)),
        reg_covar=0.0,
        weight_floor=1e-4 / n_components,
        # All lean on the pooled variance, whatever they have seen.
        least_count=np.inf,
        threads=threads,
    )
    rule = PartitionGibbs(settings)
    rule.start(chain, n_components)
    batches = Batches(source.n_rows, batch_size, seed)
    evaluations = _sweep_through(spherical, scaled, rule, batches, seed, _SPHERICAL_STEPS)
    # One more sweep finds covariances of the structure that is wanted.
    variance = float(spherical.pooled[0])
    round_ones = structure.pack_matrices(variance * np.diag(np.square(scale))[None])
    state = GaussianMixtureState(
        structure,
        spherical.weights,
        spherical.model.mean * scale,
        np.repeat(round_ones, 1 if structure.shared else n_components, axis=0),
        reg_covar=reg_covar,
        weight_floor=1e-4 / n_components,
        threads=threads,
        prior_count=PRIOR_COUNT,
        n_rows=source.n_rows,
    )
    evaluations += _sweep_through(state, source, rule, batches, seed, 1)
    return Start(
        weights=state.weights,
        means=state.model.mean,
        covariances=state.model.covariance,
        counts=np.maximum(state.effective_counts(), 1.0),
        chain=chain,
        evaluations=evaluations,
    )


def _sweep_through(
    state: GaussianMixtureState,
    source: ArrayRows,
    rule: PartitionGibbs,
    batches: Batches,
    seed: int,
    n_steps: int,
) -> int:
    """Make steps that replace all statistics; returns the component evaluations made."""
    engine = PartitionEngine(
        state, source, rule, batches, ConstantStep(1.0), None, seed, None, last_step=n_steps
    )
    for step in range(1, n_steps + 1):
        engine.step(step)
    if engine.counters.refused:
        raise SingularCovarianceError(state.reg_covar, engine.counters.refused)
    return engine.counters.evaluations


def _variance_about(source: ArrayRows, means: np.ndarray, chain: np.ndarray) -> float:
    """Mean squared distance from the own mean, per column, on some rows; positive."""
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

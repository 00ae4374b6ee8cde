"""Parts of the start of the default fit: places of rows, seeds in cells, and a soft k-means."""

from __future__ import annotations

import numpy as np

from pickmix.closed_form.local_fleet import LocalFleet
from pickmix.closed_form.partition_engine import PartitionSweeps
from pickmix.closed_form.plus_plus import nearest_in_cell, seed_cells
from pickmix.closed_form.state import MixtureState, SingularCovarianceError
from pickmix.data.rows import ArrayRows, Batches
from pickmix.families.base import Family
from pickmix.families.gaussian import SphericalGaussian
from pickmix.families.gaussian_prior import GaussianPrior
from pickmix.families.layout import Moments
from pickmix.selection.randomness import StepRandomness
from pickmix.selection.settings import RandomPartition
from pickmix.sweep.contract import Backend

# Sweeps with one spherical covariance.
_SPHERICAL_STEPS = 10
# Centres per cell.
_CELL_CENTRES = 48
_BLOCK_ROWS = 65536
# No component of a stochastic fit weighs less than this share of 1/K.
WEIGHT_FLOOR = 1e-4


class PlacedRows:
    """The rows of a source where random trees look for them, each column divided by its scale."""

    def __init__(self, source: ArrayRows, family: Family, scale: np.ndarray | None = None) -> None:
        self._source = source
        self._family = family
        self._scale = scale
        self.n_rows = source.n_rows
        self.mean_weight = source.mean_weight

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """The given rows, as (B, d)."""
        places = self._family.row_places(self._source.gather(rows))
        return places if self._scale is None else places / self._scale

    def weights_of(self, rows: np.ndarray) -> tuple[np.ndarray, float]:
        """Weights of the given rows, and what as many weigh on average."""
        return self._source.weights_of(rows)

    def patterns_of(self, rows: np.ndarray) -> np.ndarray | None:
        """Nothing is missing."""
        return None

    def part(self, rows: np.ndarray, weights: np.ndarray) -> ArrayRows:
        """Some rows with other weights, copied."""
        places = self.gather(rows)
        return ArrayRows(places, weights.copy(), np.zeros(places.shape[1]), compiled=False)


def soften(
    placed: PlacedRows,
    centres: np.ndarray,
    chain: np.ndarray,
    batches: Batches,
    settings: RandomPartition,
    backend: Backend,
    seed: int,
) -> int:
    """Soft k-means through blocks; moves the chains, returns the evaluations made."""
    K, n_features = centres.shape
    some = np.unique(np.linspace(0, placed.n_rows - 1, 5000).astype(np.int64))
    rows = placed.gather(some)
    variance = float(np.mean(np.square(rows - centres[chain[some]])))
    # Rows that are their own centres have no distance.
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
    # All lean on the pooled variance, whatever they have seen.
    prior.least_count = np.inf
    state = MixtureState(family, moments, backend, prior, WEIGHT_FLOOR / K)
    fleet = LocalFleet(backend, placed, chain, batches)
    sweeps = PartitionSweeps(state, fleet, settings, 1)
    for step in range(1, _SPHERICAL_STEPS + 1):
        sweeps.step(step, 1.0, 1.0, StepRandomness(seed, step))
    if sweeps.refused:
        raise SingularCovarianceError(0.0, sweeps.refused)
    return sweeps.evaluations


def seed_in_cells(
    placed: PlacedRows,
    subsample: np.ndarray,
    n_components: int,
    key: np.uint64,
    generator: np.random.Generator,
    backend: Backend,
) -> tuple[np.ndarray, np.ndarray]:
    """Centres from k-means++ within the cells of a random tree, and the nearest of the cell."""
    threads, operations, K = backend.threads, backend.operations, n_components
    assert threads is not None
    rows = placed.gather(subsample)
    spread = np.sqrt(rows.var(axis=0))
    scales = 1.0 / np.maximum(spread, 1e-12 * spread.max() + 1e-280)
    cell_rows = max(2, _CELL_CENTRES * rows.shape[0] // K)
    order, offsets, tree = operations.grow_tree(rows, cell_rows, key, scales)
    centre_offsets = offsets * K // rows.shape[0]
    chosen = np.empty(K, dtype=np.int64)
    uniforms = generator.random((K, 2))
    threads.run(
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
        cells = operations.leaf_of(tree, part)
        threads.run(
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

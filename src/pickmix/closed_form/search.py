"""Searches for rows without a chain, in the cells that are nearest to them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from pickmix.closed_form.cells import Cells, draw_cells
from pickmix.closed_form.state import FrozenMixture, MixtureState
from pickmix.data.partial_rows import DONORS, fill_from
from pickmix.data.rows import ArrayRows
from pickmix.selection.partitions import Partition
from pickmix.selection.randomness import StepRandomness, Stream

CELL_SIZE = 40  # Components per cell, about.
N_PROBES = 6  # Cells that are searched for a row.
_CELLS = 1000  # Child of a step's randomness that draws cells.
_BLOCK_ROWS = 65536  # Rows whose nearest cells are searched together.


@dataclass(frozen=True)
class Routes:
    """Cells and their number per row for a search."""

    cells: Cells
    n_probes: int = N_PROBES  # Cells that each row looks into, the nearest ones.


def search(
    mixture: MixtureState | FrozenMixture, source: ArrayRows, routes: Routes
) -> tuple[np.ndarray, np.ndarray, int]:
    """Find a likely component (N,) int32 of each row and a lower bound (N,) of its log-density.

    Each row looks into its nearest cells, and at the background if there is one. Its component is
    the best one met; the bound is log sum of p(x, k) over all that were met, each once. Returns
    also the number of evaluations.
    """
    cells = routes.cells
    nearest, highest = _begin(mixture, source, routes)
    # Where the background's cell is searched too, it is counted there.
    again = nearest == _cell_of(cells, cells.background)
    bounds = np.where(again.any(axis=1), -np.inf, highest)
    chain = np.full(source.n_rows, max(cells.background, 0), dtype=np.int32)
    evaluations = source.n_rows if cells.background >= 0 else 0
    first_member = cells.partition.members[cells.partition.offsets[:-1]]
    # The best component of a cell has at least this share of the sum over the cell.
    log_size = float(np.log(np.diff(cells.partition.offsets).max()))
    for probed in nearest.T:
        begin = first_member[probed]
        found, sums, n = _best_of_blocks(mixture, source, begin, cells.partition)
        better = sums - log_size > highest
        doubtful = np.flatnonzero(~better & (sums > highest - log_size))
        better[doubtful] = _is_better(mixture, source, doubtful, chain[doubtful], found[doubtful])
        evaluations += n + 2 * doubtful.shape[0]
        np.copyto(chain, found, where=better)
        # A row that is too far away for float64 has no sum.
        with np.errstate(invalid="ignore"):
            np.maximum(highest, sums, out=highest)
            np.logaddexp(bounds, sums, out=bounds)
    return chain, bounds, evaluations


def _cell_of(cells: Cells, component: int) -> int:
    """The cell that holds a component; -1 for component -1."""
    if component < 0:
        return -1
    place = np.flatnonzero(cells.partition.members == component)[0]
    return int(np.searchsorted(cells.partition.offsets, place, side="right")) - 1


def _is_better(
    mixture: MixtureState | FrozenMixture,
    source: ArrayRows,
    rows: np.ndarray,
    one: np.ndarray,
    other: np.ndarray,
) -> np.ndarray:
    """Whether p(x, k) of a row is larger for component `other` than for `one`, all (B,)."""
    better = np.empty(rows.shape[0], dtype=np.bool_)
    for start in range(0, rows.shape[0], _BLOCK_ROWS):
        some = slice(start, start + _BLOCK_ROWS)
        pairs = np.stack([one[some], other[some]], axis=1)
        values = source.gather(rows[some])
        log_joint = mixture.backend.log_joint(mixture.layout, mixture.model, values, pairs)
        better[some] = log_joint[:, 1] > log_joint[:, 0]
    return better


def _best_of_blocks(
    mixture: MixtureState | FrozenMixture,
    source: ArrayRows,
    begin: np.ndarray,
    partition: Partition,
) -> tuple[np.ndarray, np.ndarray, int]:
    """The best component in the block that each row begins in, log-sums over it, evaluations."""
    done = mixture.backend.sweep(
        mixture.layout,
        mixture.model,
        source,
        np.arange(source.n_rows),
        begin,
        partition,
        StepRandomness(0, 0).key(Stream.POSTERIOR),
        wants_statistics=False,
        greedy=True,
    )
    return done.components, done.log_sums, done.evaluations


def _begin(
    mixture: MixtureState | FrozenMixture, source: ArrayRows, routes: Routes
) -> tuple[np.ndarray, np.ndarray]:
    """The cells that rows look into, (N, P) int32, and log-joints of the background."""
    cells = routes.cells
    nearest = np.zeros((source.n_rows, min(routes.n_probes, cells.n_cells)), dtype=np.int32)
    log_joint = np.full(source.n_rows, -np.inf)
    if cells.n_cells == 1 and cells.background < 0:
        return nearest, log_joint
    for start in range(0, source.n_rows, _BLOCK_ROWS):
        some = slice(start, min(start + _BLOCK_ROWS, source.n_rows))
        rows = source.gather(np.arange(some.start, some.stop))
        places = mixture.family.row_positions(_without_gaps(mixture, rows))
        nearest[some] = cells.nearest(places, nearest.shape[1], mixture.backend)
        if cells.background >= 0:
            candidates = np.full((rows.shape[0], 1), cells.background, dtype=np.int32)
            log_joint[some] = mixture.backend.log_joint(
                mixture.layout, mixture.model, rows, candidates
            )[:, 0]
    return nearest, log_joint


def _without_gaps(mixture: MixtureState | FrozenMixture, rows: np.ndarray) -> np.ndarray:
    """Rows whose missing cells are filled from the nearest component, by their seen cells."""
    rows = rows[:, : mixture.layout.n_columns]
    if not np.isnan(rows).any():
        return rows
    model, offsets = mixture.model, mixture.layout.offsets
    K = model.location.shape[0]
    some = np.unique(np.linspace(0, K - 1, DONORS).astype(np.int64))
    levels = [
        model.tables[some, first:last].argmax(axis=1)
        for first, last in itertools.pairwise(offsets.tolist())
    ]
    typical = np.column_stack([model.location[some], *levels])
    return fill_from(rows, typical)


def draw_routes(
    state: MixtureState,
    random: StepRandomness,
    *,
    cell_size: int = CELL_SIZE,
    n_probes: int = N_PROBES,
    background: int | None = None,
) -> Routes:
    """Routes for `search` under a mixture; the background is the prior's unless given."""
    cells = draw_cells(
        state.positions(), state.scales(), cell_size, random.child(_CELLS), state.backend
    )
    if background is None:
        background = state.prior.background
    return Routes(replace(cells, background=background), n_probes)

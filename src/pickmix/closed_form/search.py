"""Cells of neighbouring components, and searches in them for rows without a chain.

Cells come from k-means over the positions of the components, in units of a typical component's
scale. A row looks for its components in the few cells whose centres are nearest. Very many cells
are grouped into regions: then a row looks among the cells of the nearest regions only.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np

from pickmix.closed_form.state import FrozenMixture, MixtureState
from pickmix.data.rows import DONORS, ArrayRows, fill_from
from pickmix.selection.partitions import Partition
from pickmix.selection.randomness import StepRandomness, Stream

_STEPS = 4  # Steps of k-means.
_LARGEST = 2  # A cell has at most this many times the wished number of components.
_MOST_UNGROUPED = 800  # More cells are grouped into regions.
_REGION_SIZE = 24  # Cells per region, about.
_REGIONS = 8  # Regions that are searched for a row, at least.
_FEWER_REGIONS = 4  # And for the one cell of a component.
_FARTHEST = 1e15  # Squares of float32 end at 1e38; so far out all cells are equally near.


@dataclass(frozen=True)
class Cells:
    """Blocks of neighbouring components, and their positions."""

    partition: Partition  # Its block c is cell c.
    centres: np.ndarray  # (C, d) Mean positions of the cells' components, scaled.
    widths: np.ndarray  # (d,) Typical scales of a component along its positions.
    offsets: np.ndarray  # (R + 1,) Region r holds the cells offsets[r] to offsets[r + 1].
    region_centres: np.ndarray  # (R, d) Mean positions of the regions' cells, scaled.
    background: int = -1  # The background component; -1 if there is none.

    @property
    def n_cells(self) -> int:
        return int(self.centres.shape[0])

    def nearest(self, places: np.ndarray, n_nearest: int, backend: ModuleType) -> np.ndarray:
        """Cells (B, n_nearest) int32 by distance from positions (B, d), padded with -1."""
        scaled = np.clip(places / self.widths, -_FARTHEST, _FARTHEST).astype(np.float32, order="C")
        # So many regions hold at least as many cells as are wanted: none of them is empty.
        return self.nearest_of_scaled(scaled, n_nearest, backend, max(_REGIONS, 2 * n_nearest))

    def nearest_of_scaled(
        self, scaled: np.ndarray, n_nearest: int, backend: ModuleType, most_regions: int
    ) -> np.ndarray:
        """`nearest` for scaled float32 positions, in at most so many regions; else -1."""
        n_regions = self.region_centres.shape[0]
        regions = np.zeros((scaled.shape[0], 1), dtype=np.int32)
        if n_regions > 1:
            everywhere, n_chosen = np.array([0, n_regions]), min(n_regions, most_regions)
            centres = self.region_centres
            regions = backend.nearest_in_regions(scaled, centres, everywhere, regions, n_chosen)
        return np.asarray(
            backend.nearest_in_regions(scaled, self.centres, self.offsets, regions, n_nearest)
        )


def draw_cells(
    places: np.ndarray,
    widths: np.ndarray,
    size: int,
    random: StepRandomness,
    backend: ModuleType,
) -> Cells:
    """Divide components at positions (K, d) into cells of about `size` neighbours.

    k-means starts from the leaves of a random tree. Cells of more than twice the size are cut by
    random trees.

    >>> from pickmix.kernels import numpy_kernels
    >>> places = np.array([0.0, 0.1, 0.2, 5.0, 5.1, 5.2, 9.0, 9.1, 9.2])[:, None]
    >>> cells = draw_cells(places, np.ones(1), 3, StepRandomness(0, 1), numpy_kernels)
    >>> blocks = np.split(cells.partition.members, cells.partition.offsets[1:-1])
    >>> [blocks[c].tolist() for c in cells.nearest(np.array([[6.0]]), 2, numpy_kernels)[0]]
    [[3, 4, 5], [6, 7, 8]]
    """
    points = np.clip(places / widths, -_FARTHEST, _FARTHEST)
    members, offsets = _leaves(points, np.arange(points.shape[0]), size, random, backend)
    cells = _grouped(points, members, offsets, widths, random, backend)
    if cells.n_cells > 1:
        scaled = points.astype(np.float32, order="C")
        for _ in range(_STEPS):
            own = cells.nearest_of_scaled(scaled, 1, backend, _FEWER_REGIONS)[:, 0]
            cells = _moved(cells, points, own)
        members, offsets = _cut(points, cells.partition, size, random, backend)
        cells = _grouped(points, members, offsets, widths, random, backend)
    return cells


def _leaves(
    points: np.ndarray, some: np.ndarray, size: int, random: StepRandomness, backend: ModuleType
) -> tuple[np.ndarray, np.ndarray]:
    """Members and offsets of the leaves of a random tree over a sample (n,) of the points."""
    key = random.key(Stream.PARTITION)
    scales = np.ones(points.shape[1])
    order, offsets, _ = backend.grow_tree(points[some], size, key, scales)
    return some[order].astype(np.int32), offsets


def _means(points: np.ndarray, members: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Mean points of blocks, none of which is empty."""
    sums = np.add.reduceat(points[members], offsets[:-1], axis=0)
    return np.asarray(sums / np.diff(offsets)[:, None])


def _moved(cells: Cells, points: np.ndarray, own: np.ndarray) -> Cells:
    """One step of k-means for points (K, d) in cells `own` (K,); empty cells and regions stay."""
    members = np.argsort(own, kind="stable").astype(np.int32)
    counts = np.bincount(own, minlength=cells.n_cells)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    some = np.flatnonzero(counts)
    centres = cells.centres.astype(np.float64)
    centres[some] = _means(points, members, np.append(offsets[some], members.shape[0]))
    every = np.arange(cells.n_cells)
    return replace(
        cells,
        partition=Partition(members, offsets),
        centres=centres.astype(np.float32),
        region_centres=_means(centres, every, cells.offsets).astype(np.float32),
    )


def _cut(
    points: np.ndarray, partition: Partition, size: int, random: StepRandomness, backend: ModuleType
) -> tuple[np.ndarray, np.ndarray]:
    """Members and offsets of cells, none of them empty or far too large."""
    members = partition.members.copy()
    bounds = [partition.offsets]
    for cell in np.flatnonzero(np.diff(partition.offsets) > _LARGEST * size).tolist():
        first, last = partition.offsets[cell], partition.offsets[cell + 1]
        n_parts = -(-(last - first) // size)
        part_size = int(-(-(last - first) // n_parts))
        here = random.child(cell)
        members[first:last], inner = _leaves(points, members[first:last], part_size, here, backend)
        bounds.append(first + inner)
    return members, np.unique(np.concatenate(bounds))


def _grouped(
    points: np.ndarray,
    members: np.ndarray,
    offsets: np.ndarray,
    widths: np.ndarray,
    random: StepRandomness,
    backend: ModuleType,
) -> Cells:
    """Cells with centres; very many of them ordered by region."""
    centres = _means(points, members, offsets)
    n_cells = centres.shape[0]
    if n_cells <= _MOST_UNGROUPED:
        regions = np.array([0, n_cells])
    else:
        # Regions are to cells what cells are to components.
        ones = np.ones(points.shape[1])
        grouping = draw_cells(centres, ones, _REGION_SIZE, random.child(n_cells), backend)
        order, regions = grouping.partition.members, grouping.partition.offsets
        counts = np.diff(offsets)[order]
        starts = np.repeat(offsets[order] - (np.cumsum(counts) - counts), counts)
        members = members[np.arange(members.shape[0]) + starts]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        centres = centres[order]
    return Cells(
        Partition(members, offsets.astype(np.int64)),
        centres.astype(np.float32),
        widths,
        regions.astype(np.int64),
        _means(centres, np.arange(n_cells), regions).astype(np.float32),
    )


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


def near_components(mixture: MixtureState, rows: np.ndarray, routes: Routes) -> np.ndarray:
    """Components (B, W) int32 of the cells nearest to rows (B, D), padded with -1."""
    cells = routes.cells
    places = mixture.family.row_positions(_without_gaps(mixture, rows))
    n_nearest = min(routes.n_probes, cells.n_cells)
    return cells.partition.members_of(cells.nearest(places, n_nearest, mixture.backend))


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

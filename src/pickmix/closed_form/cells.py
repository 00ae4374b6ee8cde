"""Cells of neighbouring components, and the cells that are nearest to a row.

Cells come from k-means over the positions of the components, in units of a typical component's
scale. A row looks for its components in the few cells whose centres are nearest. Very many cells
are grouped into regions: then a row looks among the cells of the nearest regions only.
"""

# Numba infers types in the kernels.
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pickmix.compiled import kernel, part
from pickmix.selection.partitions import Partition
from pickmix.selection.randomness import StepRandomness, Stream
from pickmix.sweep.contract import Backend

_STEPS = 4  # Steps of k-means.
_LARGEST = 2  # A cell has at most this many times the wished number of components.
_MOST_UNGROUPED = 800  # More cells are grouped into regions.
_REGION_SIZE = 24  # Cells per region, about.
_REGIONS = 8  # Regions that are searched for a row, at least.
_FEWER_REGIONS = 4  # And for the one cell of a component.
_LANES = 16  # Distances compared together.
_INFINITE = 0x7F800000 << 32  # The key of an infinite distance.
_BLOCK_NUMBERS = 500_000  # Differences computed at a time in NumPy.
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

    def nearest(self, places: np.ndarray, n_nearest: int, backend: Backend) -> np.ndarray:
        """Cells (B, n_nearest) int32 by distance from positions (B, d), padded with -1."""
        scaled = np.clip(places / self.widths, -_FARTHEST, _FARTHEST).astype(np.float32, order="C")
        # So many regions hold at least as many cells as are wanted: none of them is empty.
        return self.nearest_of_scaled(scaled, n_nearest, backend, max(_REGIONS, 2 * n_nearest))

    def nearest_of_scaled(
        self, scaled: np.ndarray, n_nearest: int, backend: Backend, most_regions: int
    ) -> np.ndarray:
        """`nearest` for scaled float32 positions, in at most so many regions; else -1."""
        n_regions = self.region_centres.shape[0]
        regions = np.zeros((scaled.shape[0], 1), dtype=np.int32)
        if n_regions > 1:
            everywhere, n_chosen = np.array([0, n_regions]), min(n_regions, most_regions)
            centres = self.region_centres
            regions = _nearest(scaled, centres, everywhere, regions, n_chosen, backend)
        return _nearest(scaled, self.centres, self.offsets, regions, n_nearest, backend)


def _nearest(
    rows: np.ndarray,
    centres: np.ndarray,
    offsets: np.ndarray,
    regions: np.ndarray,
    n_nearest: int,
    backend: Backend,
) -> np.ndarray:
    """The nearest centres (C, d) of rows (B, d), among those in the regions (B, r) of each."""
    nearest = np.full((rows.shape[0], n_nearest), -1, dtype=np.int32)
    if backend.threads is not None:
        # Copies: arrays that have travelled may be read-only, which kernels are not compiled for.
        columns, offsets = np.array(centres.T, order="C"), offsets.copy()
        share = regions.shape[1] / (offsets.shape[0] - 1)
        work = float(rows.shape[0]) * centres.shape[0] * (centres.shape[1] + 4.0) * share
        arguments = rows, columns, offsets, regions, nearest
        backend.threads.run(_find_nearest, rows.shape[0], work, *arguments)
        return nearest
    region_of = np.repeat(np.arange(offsets.shape[0] - 1), np.diff(offsets))
    block = max(1, _BLOCK_NUMBERS // centres.size)
    for start in range(0, rows.shape[0], block):
        some = slice(start, start + block)
        away = rows[some, None, :].astype(np.float64) - centres
        squares = np.einsum("bcd,bcd->bc", away, away)
        if offsets.shape[0] > 2:
            squares[~(region_of == regions[some, :, None]).any(axis=1)] = np.inf
        best = np.argsort(squares, axis=1, kind="stable")[:, :n_nearest]
        there = np.take_along_axis(squares, best, axis=1) < np.inf
        nearest[some, : best.shape[1]] = np.where(there, best, -1)
    return nearest


@part(fastmath={"reassoc", "contract", "nsz"})
def _squared_distances(row, columns, first, last, out):
    """out[k] = |row - centre first + k|^2 up to `last`; four columns at a time, in registers."""
    n_columns = columns.shape[0]
    n = last - first
    for k in range(n):
        out[k] = np.float32(0.0)
    d = 0
    while d + 4 <= n_columns:
        a, b, c, e = row[d], row[d + 1], row[d + 2], row[d + 3]
        one, two = columns[d][first:last], columns[d + 1][first:last]
        three, four = columns[d + 2][first:last], columns[d + 3][first:last]
        for k in range(n):
            p, q, r, s = a - one[k], b - two[k], c - three[k], e - four[k]
            out[k] += (p * p + q * q) + (r * r + s * s)
        d += 4
    while d < n_columns:
        a = row[d]
        one = columns[d][first:last]
        for k in range(n):
            p = a - one[k]
            out[k] += p * p
        d += 1


@kernel(fastmath={"reassoc", "contract", "nsz"})
def _find_nearest(rows, columns, offsets, regions, nearest, start, stop):
    """The nearest centres, as columns (d, C), among those in the regions of each row.

    Branch-free, because mispredicted branches cost more than the distances: the least of every
    _LANES-th distance are kept, and whenever the least of all is taken out, the next one of its
    lane follows. A key is a distance, whose bits are in order as they are not negative, and below
    it the number of the centre.
    """
    n_nearest = nearest.shape[1]
    size = columns.shape[1] + _LANES
    distance, numbers = np.empty(size, dtype=np.float32), np.empty(size, dtype=np.int32)
    bits, keys = distance.view(np.int32), np.empty(size, dtype=np.int64)
    lanes = np.empty(_LANES, dtype=np.int64)
    for i in range(start, stop):
        n = 0
        for r in range(regions.shape[1]):
            first, last = offsets[regions[i, r]], offsets[regions[i, r] + 1]
            _squared_distances(rows[i], columns, first, last, distance[n:])
            for k in range(last - first):
                numbers[n + k] = first + k
            n += last - first
        while n % _LANES:
            distance[n] = np.inf
            n += 1
        for k in range(n):
            keys[k] = (np.int64(bits[k]) << 32) | k
        for lane in range(_LANES):
            lanes[lane] = keys[lane]
        for group in range(_LANES, n, _LANES):
            some = keys[group : group + _LANES]
            for lane in range(_LANES):
                lanes[lane] = min(some[lane], lanes[lane])
        for place in range(n_nearest):
            best = lanes[0]
            for lane in range(1, _LANES):
                best = min(best, lanes[lane])
            if best >= _INFINITE:
                break
            k = best & 0xFFFFFFFF
            nearest[i, place] = numbers[k]
            follower = _INFINITE
            for other in range(k % _LANES, n, _LANES):
                follower = min(follower, keys[other] if keys[other] > best else _INFINITE)
            lanes[k % _LANES] = follower


def draw_cells(
    places: np.ndarray,
    widths: np.ndarray,
    size: int,
    random: StepRandomness,
    backend: Backend,
) -> Cells:
    """Divide components at positions (K, d) into cells of about `size` neighbours.

    k-means starts from the leaves of a random tree. Cells of more than twice the size are cut by
    random trees.

    >>> from pickmix.sweep.reference import Reference
    >>> places = np.array([0.0, 0.1, 0.2, 5.0, 5.1, 5.2, 9.0, 9.1, 9.2])[:, None]
    >>> cells = draw_cells(places, np.ones(1), 3, StepRandomness(0, 1), Reference())
    >>> blocks = np.split(cells.partition.members, cells.partition.offsets[1:-1])
    >>> [blocks[c].tolist() for c in cells.nearest(np.array([[6.0]]), 2, Reference())[0]]
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
    points: np.ndarray, some: np.ndarray, size: int, random: StepRandomness, backend: Backend
) -> tuple[np.ndarray, np.ndarray]:
    """Members and offsets of the leaves of a random tree over a sample (n,) of the points."""
    key = random.key(Stream.PARTITION)
    scales = np.ones(points.shape[1])
    order, offsets, _ = backend.operations.grow_tree(points[some], size, key, scales)
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
    points: np.ndarray, partition: Partition, size: int, random: StepRandomness, backend: Backend
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
    backend: Backend,
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

"""Columns of numbers as coordinates that mixtures of Gaussians and levels suit.

A column of numbers may have *atoms*, values that very many rows share, and a continuous rest. The
rest is mapped to a standard normal distribution by a monotone function (normal scores). A column of
few values becomes levels. Rows in units of the table's spread are *natural*, those of a model are
*latent*: these have one more column, of levels, for each column with atoms.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.special import ndtr, ndtri

from pickmix.inputs.schema import ColumnSchema, TableSchema

# Few values: at most so many, so many rows for each of them on average, and for half of them.
_MOST_LEVELS, _ROWS_PER_LEVEL, _LEAST_MEDIAN = 50, 30, 5
# An atom has this share of the rows, and so many times the median count of its neighbours.
_ATOM_SHARE, _ATOM_EXCESS, _NEIGHBOURS = 0.01, 5.0, 5
_FEWEST_ATOM_ROWS = 30
# Rows without atoms, and different values among them, that a continuous rest needs.
_FEWEST_REST = 10
# Values that occur so many times on average are the only ones that draws take.
_TIED = 4.0
# Knots are at least this far apart in scores, _WIDTH / N^(1/3), and have so many rows in between.
_WIDTH, _ROWS_PER_KNOT = 3.0, 5
# Where values are tied, those between two knots are divided further if that gains so many nats per
# piece. Of 2 to log N, 4 was best on left-out values of most of 55 columns of 10 tables.
_PIECE_GAIN, _MOST_DIVIDED = 4.0, 2_000
# Pieces of a smooth map between two knots.
_PIECES = 8
_BLOCK_NUMBERS = 500_000  # In the largest arrays, 4 MB each.


@dataclass(frozen=True)
class ColumnMap:
    """What natural values x of one column are in latent coordinates z, and back.

    Either x is one of `levels`, and z its number; or it is one of `atoms`; or z is the value at x
    of the function through `knots`, which is linear between them and beyond.
    """

    levels: np.ndarray
    atoms: np.ndarray
    knots: np.ndarray  # (2, J) x and z, both strictly rising.
    support: np.ndarray  # What draws are rounded to; empty if that is anything.
    lowest: float
    highest: float
    period: float = 0.0  # Of levels that begin anew after it.

    def away(self, means: np.ndarray) -> np.ndarray:
        """Return the shortest ways (n, L) from means (n,) to levels, around the circle."""
        half = 0.5 * self.period
        return np.asarray((self.levels - means[:, None] + half) % self.period - half)

    def circular_moments(self, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return circular means (n,) by shares (n, L) of levels, and mean squares of ways there."""
        turns = np.exp(2j * np.pi * self.levels / self.period)
        means = np.angle(shares @ turns) * (self.period / (2.0 * np.pi))
        means = self.lowest + (means - self.lowest) % self.period
        return means, (shares * np.square(self.away(means))).sum(axis=1)

    @cached_property
    def _slopes(self) -> np.ndarray:
        x, z = self.knots
        slopes = np.diff(z) / np.diff(x)
        return np.concatenate([slopes[:1], slopes, slopes[-1:]])

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return z of the continuous part and log dz/dx, NaN and 0 at gaps."""
        places, scores = self.knots
        piece = np.searchsorted(places, x, side="right")
        base = np.clip(piece - 1, 0, places.shape[0] - 1)
        slope = self._slopes[np.minimum(piece, places.shape[0])]
        z = scores[base] + (x - places[base]) * slope
        missing = np.isnan(x)
        return np.where(missing, np.nan, z), np.where(missing, 0.0, np.log(slope))

    def backward(self, z: np.ndarray) -> np.ndarray:
        """Return x of the continuous part, within the range of the fitted rows."""
        places, scores = self.knots
        piece = np.searchsorted(scores, z, side="right")
        base = np.clip(piece - 1, 0, places.shape[0] - 1)
        x = places[base] + (z - scores[base]) / self._slopes[piece]
        return np.asarray(np.clip(x, self.lowest, self.highest))

    def moments(self, means: np.ndarray, deviations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means and variances (P,) of x where z is normal, exactly: x is linear in pieces.

        In a piece x = a + b w, where w is standard normal, and over it the integrals of 1, w and
        w^2 are differences of Phi, -phi and Phi - w phi.
        """
        places, scores = self.knots
        ends = np.array([self.lowest, self.highest])
        inside = (places > ends[0]) & (places < ends[1])
        x = np.concatenate([ends[:1], places[inside], ends[1:]])
        z = np.concatenate([self.forward(ends[:1])[0], scores[inside], self.forward(ends[1:])[0]])
        found = np.empty((2, means.shape[0]))
        size = max(1, _BLOCK_NUMBERS // x.shape[0])
        slopes = np.diff(x) / np.diff(z)
        for first in range(0, means.shape[0], size):
            m, s = means[first : first + size, None], deviations[first : first + size, None]
            away = x - self.backward(m)
            w = (z - m) / s
            below, heights = ndtr(w), np.exp(-0.5 * np.square(w)) / np.sqrt(2.0 * np.pi)
            share, height = np.diff(below, axis=1), np.diff(heights, axis=1)
            square = share - np.diff(w * heights, axis=1)
            b = slopes * s
            a = away[:, :-1] - b * w[:, :-1]
            outer = np.stack([below[:, 0], 1.0 - below[:, -1]], axis=1)
            beyond = away[:, [0, -1]]
            mean = (a * share - b * height).sum(axis=1) + (outer * beyond).sum(axis=1)
            second = (a * a * share - 2.0 * a * b * height + b * b * square).sum(axis=1)
            second += (outer * np.square(beyond)).sum(axis=1)
            found[0, first : first + size] = mean + self.backward(m)[:, 0]
            found[1, first : first + size] = np.maximum(second - np.square(mean), 0.0)
        return found[0], found[1]

    def rounded(self, x: np.ndarray) -> np.ndarray:
        """Return the nearest values that draws of the continuous part may have."""
        if not self.support.size:
            return x
        edges = 0.5 * (self.support[1:] + self.support[:-1])
        return np.asarray(self.support[np.searchsorted(edges, x)])


class ColumnMaps:
    """The maps of D columns, by number, and where the levels of atoms stand in latent rows.

    Latent rows have the D columns, in their order, and behind them one for each column with atoms:
    0 where the cell is none, else the number of the atom, from 1 on.
    """

    def __init__(self, maps: Sequence[ColumnMap | None]) -> None:
        self.maps = list(maps)
        self.n_natural = len(self.maps)
        with_atoms = [d for d, each in enumerate(self.maps) if each is not None and each.atoms.size]
        #: Where the levels of atoms are, by the number of the column.
        self.indicators = {d: self.n_natural + n for n, d in enumerate(with_atoms)}
        self.n_latent = self.n_natural + len(with_atoms)

    def __getitem__(self, column: int) -> ColumnMap | None:
        return self.maps[column]

    def latent(self, columns: np.ndarray) -> np.ndarray:
        """Return numbers of latent columns: those given, then the levels of their atoms."""
        more = [self.indicators[d] for d in columns.tolist() if d in self.indicators]
        return np.concatenate([columns, np.array(more, dtype=np.int64)])

    def forward(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return latent rows of natural ones (N, D), and log-Jacobians (N, D)."""
        latent = np.full((rows.shape[0], self.n_latent), np.nan)
        latent[:, : self.n_natural] = rows
        log_slopes = np.zeros(rows.shape)
        for d, column in enumerate(self.maps):
            if column is None:
                continue
            x = rows[:, d]
            seen = ~np.isnan(x)
            if column.levels.size:
                latent[seen, d] = _nearest(column.levels, x[seen])
                continue
            rest = seen
            if d in self.indicators:
                which = np.searchsorted(column.atoms, x[seen])
                which = np.minimum(which, column.atoms.shape[0] - 1)
                is_atom = column.atoms[which] == x[seen]
                latent[seen, self.indicators[d]] = np.where(is_atom, which + 1.0, 0.0)
                rest = seen.copy()
                rest[seen] = ~is_atom
                latent[seen & ~rest, d] = np.nan
            latent[rest, d], log_slopes[rest, d] = column.forward(x[rest])
        return latent, log_slopes

    def backward(self, latent: np.ndarray, columns: np.ndarray | None = None) -> np.ndarray:
        """Return natural values (..., d) of complete latent ones, of the columns `latent(columns)`.

        None means all columns.
        """
        chosen = range(self.n_natural) if columns is None else columns.tolist()
        natural = latent[..., : len(chosen)].copy()
        place = len(chosen)
        for number, d in enumerate(chosen):
            column, z = self.maps[d], latent[..., number]
            if column is None:
                continue
            if column.levels.size:
                natural[..., number] = column.levels[z.astype(np.int64)]
                continue
            natural[..., number] = column.rounded(column.backward(z))
            if d in self.indicators:
                which = latent[..., place].astype(np.int64)
                place += 1
                atoms = np.append(0.0, column.atoms)[which]
                natural[..., number] = np.where(which > 0, atoms, natural[..., number])
        return natural


def _nearest(levels: np.ndarray, values: np.ndarray) -> np.ndarray:
    edges = 0.5 * (levels[1:] + levels[:-1])
    return np.searchsorted(edges, values)


# What a schema says


def maps_of(schema: TableSchema) -> ColumnMaps | None:
    """Return the maps of a schema's columns in the model; None if it has none."""
    maps = [_map_of(column) for column in schema.modelled]
    return ColumnMaps(maps) if any(each is not None for each in maps) else None


def _map_of(column: ColumnSchema) -> ColumnMap | None:
    none = np.zeros(0)
    if column.kind == "ordinal":
        levels = np.array(column.levels, dtype=np.float64)
        return ColumnMap(levels, none, none, none, levels[0], levels[-1], column.period)
    if not column.knots:
        return None
    knots = np.array(column.knots, dtype=np.float64)
    if column.is_smooth:
        places = np.linspace(knots[0, :-1], knots[0, 1:], _PIECES, endpoint=False).T.ravel()
        places = np.append(places, knots[0, -1])
        knots = np.stack([places, PchipInterpolator(*knots)(places)])
        kept = np.append(True, (np.diff(knots[0]) > 0) & (np.diff(knots[1]) > 0))
        knots = knots[:, kept]
    # The same division as of cells, so that equal ones have equal bits.
    atoms, support = (np.array(v) / column.scale for v in (column.atoms, column.support))
    return ColumnMap(none, atoms, knots, support, *column.ends)


# What rows say


def is_ordinal(values: np.ndarray, most: int = _MOST_LEVELS) -> bool:
    """Whether numbers (N,) have few values, each many times."""
    most = min(most, values.shape[0] // _ROWS_PER_LEVEL)
    counts = np.unique(values, return_counts=True)[1]
    return bool(2 <= counts.shape[0] <= most and np.median(counts) >= _LEAST_MEDIAN)


def learn_map(column: ColumnSchema, seen: np.ndarray) -> ColumnSchema:
    """Return a column of numbers or dates with the map of values (N,), counted from its origin."""
    # A zero has no sign.
    seen = seen[np.isfinite(seen)] + 0.0
    atoms = find_atoms(seen)
    rest = np.sort(seen[~np.isin(seen, atoms)])
    values, counts = np.unique(rest, return_counts=True)
    if values.shape[0] < _FEWEST_REST:
        atoms, rest = atoms[:0], np.sort(seen)
        values, counts = np.unique(rest, return_counts=True)
    step = column.step
    tied = rest.shape[0] >= _TIED * values.shape[0]
    full = step is not None and (values[-1] - values[0]) / step < 2.0 * values.shape[0]
    if step is not None and full:
        # Values off the step share the cells of those on it.
        steps, which = np.unique(np.rint(values / step), return_inverse=True)
        values, counts = steps * step, np.bincount(which, weights=counts)
    knots = _learn_knots(values, counts, step, tied)
    if (np.diff(knots[0]) <= 1e-12 * np.abs(knots[0]).max()).any():
        # Values that differ by rounding only.
        knots = np.array([[-1.0, 1.0], [-1.0, 1.0]]) * [[column.scale], [1.0]] + [[seen[0]], [0.0]]
    is_smooth = not tied and (step is None or np.diff(knots[0]).min() > 4.0 * step)
    return replace(
        column,
        atoms=tuple(atoms.tolist()),
        knots=tuple(map(tuple, (knots / [[column.scale], [1.0]]).tolist())),
        support=tuple(values.tolist()) if tied and not full else (),
        is_smooth=bool(is_smooth),
        ends=(float(seen.min()) / column.scale, float(seen.max()) / column.scale),
    )


def without_scores(schema: TableSchema) -> TableSchema:
    """Return the schema with maps that only centre and scale; atoms, support and bounds stay."""
    columns = []
    for column in schema.columns.values():
        if column.knots:
            x, z = np.array(column.knots)
            # Where half of the rows lie, as of a normal distribution.
            low, high = np.interp(ndtri([0.25, 0.75]), z, x)
            centre, spread = 0.5 * (low + high), max((high - low) / 1.349, 1e-3)
            knots = ((centre - spread, centre + spread), (-1.0, 1.0))
            column = replace(column, knots=tuple(tuple(map(float, k)) for k in knots))
            column = replace(column, is_smooth=False)
        columns.append(column)
    return TableSchema(columns, schema.origin)


def find_atoms(values: np.ndarray) -> np.ndarray:
    """Return values that far more of all values (N,) are equal to than to their neighbours.

    >>> find_atoms(np.concatenate([np.zeros(60), np.arange(1.0, 41.0)]))
    array([0.])
    """
    distinct, counts = np.unique(values, return_counts=True)
    least = max(_ATOM_SHARE * values.shape[0], _FEWEST_ATOM_ROWS)
    atoms = []
    for number in np.flatnonzero(counts >= least).tolist():
        first = max(number - _NEIGHBOURS, 0)
        around = np.delete(counts[first : number + _NEIGHBOURS + 1], number - first)
        if around.size and counts[number] >= _ATOM_EXCESS * np.median(around):
            atoms.append(distinct[number])
    return np.array(atoms)


def _edges(values: np.ndarray, step: float | None) -> np.ndarray:
    """Return edges (n + 1,) of the cells of sorted values (n,): halfway to neighbours."""
    half = 0.5 * np.diff(values)
    first, last = (half[0], half[-1]) if step is None else (0.5 * step, 0.5 * step)
    return np.concatenate([[values[0] - first], values[:-1] + half, [values[-1] + last]])


def _learn_knots(
    values: np.ndarray, counts: np.ndarray, step: float | None, tied: bool
) -> np.ndarray:
    """Return knots (2, J) at edges of cells, so far apart that chance does not shape the map.

    Tied values may be far more frequent than their neighbours.
    """
    n = float(counts.sum())
    edges = _edges(values, step)
    below = np.concatenate([[0.0], np.cumsum(counts)])
    scores = ndtri((below + 0.5) / (n + 1.0))
    width = _WIDTH / np.cbrt(n)
    kept = [0]
    for number in range(1, edges.shape[0] - 1):
        far = scores[number] - scores[kept[-1]] >= width
        # A value that fills a cell by itself has edges of its own.
        ahead = scores[number + 1] - scores[number] >= width
        enough = below[number] - below[kept[-1]] >= _ROWS_PER_KNOT
        if enough and (far or ahead) and n - below[number] >= _ROWS_PER_KNOT:
            kept.append(number)
    kept.append(edges.shape[0] - 1)
    if tied:
        widths = np.diff(edges)
        for first, last in pairwise(tuple(kept)):
            if last - first <= _MOST_DIVIDED:
                kept += [first + n for n in _division(counts[first:last], widths[first:last])]
        kept.sort()
    return np.stack([edges[kept], scores[kept]])


def _division(counts: np.ndarray, widths: np.ndarray) -> list[int]:
    """Return where cells (n,) are divided into pieces of even density, the most probable ones.

    Each piece costs `_PIECE_GAIN` nats (Bayesian blocks: Scargle et al. 2013).

    >>> _division(np.array([5, 4, 90, 6, 5]), np.ones(5))
    [2, 3]
    """
    rows, lengths = (np.append(0.0, np.cumsum(each)) for each in (counts, widths))
    best, begins = np.zeros(rows.shape[0]), [0]
    for end in range(1, rows.shape[0]):
        inside = rows[end] - rows[:end]
        gains = best[:end] + inside * np.log(inside / (lengths[end] - lengths[:end]))
        begins.append(int(gains.argmax()))
        best[end] = gains[begins[end]] - _PIECE_GAIN
    found, end = [], begins[-1]
    while end:
        found.append(end)
        end = begins[end]
    return found[::-1]


def spread_ties(schema: TableSchema, rows: np.ndarray) -> np.ndarray:
    """Return natural rows (N, D) for a fit: equal numbers lie anywhere in their cells.

    A value stands for all that is nearer to it than to its neighbours, where draws take no others,
    else for its step. Uniforms depend on the name of the column and the number of the row only.
    """
    spread = rows.copy()
    for d, column in enumerate(schema.modelled):
        if not column.knots or (column.step is None and not column.support):
            continue
        x = rows[:, d]
        seed = zlib.crc32(column.name.encode("utf-8", "surrogatepass"))
        low, high = cells_of(column, x)
        spread[:, d] = low + (high - low) * np.random.default_rng(seed).random(x.shape)
    return spread


def cells_of(column: ColumnSchema, x: np.ndarray) -> np.ndarray:
    """Return where the cells of values (N,) of a column begin and end, (2, N); atoms have none."""
    half = np.where(np.isin(x, np.array(column.atoms) / column.scale), 0.0, 0.5)
    if not column.support:
        return x + np.array([[-1.0], [1.0]]) * half * ((column.step or 0.0) / column.scale)
    values = np.array(column.support) / column.scale
    edges = _edges(values, None if column.step is None else column.step / column.scale)
    cell = _nearest(values, x)
    inside = (half > 0.0) & (x > edges[0]) & (x < edges[-1])
    return np.where(inside, np.stack([edges[cell], edges[cell + 1]]), x)

"""What the compiled sweep computes once per block: its origin, parameters, and ways to evaluate."""

# Numba infers types in the kernels.
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pickmix.compiled import part
from pickmix.families.layout import LOG_FLOOR, LOG_SCALE, Layout, Model
from pickmix.kernels.numba_kernels.multiply import DOUBLE

TILE = 64  # Rows of a tile.
KEPT_TILES = 4  # Tiles of a block whose posterior weights are kept until it is done.
_LARGEST_TERMS = 8e4  # Largest terms of a log-joint that cancel: float32 then leaves 0.005.
# A whitened coordinate may have terms this large: float32 then leaves 0.003 of it.
_LARGEST_WHITENED = 4e4
_LARGEST_COORDINATE = 1e15
_MOST_FEATURES = 256  # More features of a tile would leave the fastest cache.
# A coordinate that so often is what it was in the row before is constant in some components: their
# sums about the origin would lose all digits, and the block be done again.
_REPEATED = 1.0 / 16.0

PRODUCTS, FACTOR, EXACT = range(3)


# Functions unpack these once: every access to a field of a tuple of arrays is slow to compile.
class Block(NamedTuple):
    """At most G components, about the origin of their block."""

    origin: np.ndarray  # (C,)
    common: np.ndarray  # (C + 1,) Slopes and a constant that linear parts have in common.
    shifts: np.ndarray  # (G, C) Locations about the origin.
    factors: np.ndarray  # (G, P)
    linear: np.ndarray  # (G, C) Without what is common.
    constants: np.ndarray  # (G,)
    tables: np.ndarray  # (G, L)
    parameters: np.ndarray  # (G, P + C + 1) Natural parameters about the origin.
    scratch: np.ndarray  # (3, C)


class Panels(NamedTuple):
    """How components are evaluated, and their parameters in columns of four."""

    #: Of the layout: for every four coordinates, the first of their factor's columns, how many,
    #: and where they are in a panel.
    bands: np.ndarray
    way: np.ndarray  # (G,)
    wide: np.ndarray  # (G,) Components evaluated by products.
    products: np.ndarray  # Their parameters.
    factors: np.ndarray  # Factors of the others, in float32 or float64.
    exact: np.ndarray


class Tile(NamedTuple):
    """Some rows."""

    #: Coordinates about the origin in float32 and float64, features, levels.
    columns: np.ndarray
    exact_columns: np.ndarray
    features: np.ndarray
    levels: np.ndarray
    four: np.ndarray  # (4, TILE) Four rows of a product.
    #: (KEPT_TILES, G, TILE) Log-joints, and then posterior weights; (G, TILE) in float64.
    values: np.ndarray
    exact_values: np.ndarray
    #: (TILE,) What is known of each row.
    largest: np.ndarray
    floor: np.ndarray
    exact_floor: np.ndarray
    total: np.ndarray
    running: np.ndarray
    uniforms: np.ndarray
    row_weights: np.ndarray
    drawn: np.ndarray


class Totals(NamedTuple):
    """Sums over the rows of a block."""

    sums: np.ndarray  # (G, P + C) Sums of features about the origin.
    weights: np.ndarray  # (G, 2) Sums of weights and of squared weights.
    #: Of narrow components: a row that each has seen (G, C), and for four rows of the matrix at a
    #: time the moments of (x - that row, 1), (G * height, width).
    anchors: np.ndarray
    moments: np.ndarray
    #: Rows of a narrow component without and with their weights.
    kept: np.ndarray
    weighted: np.ndarray


Workspace = tuple[Block, Panels, Tile, Totals]


def _find_bands(layout: Layout) -> np.ndarray:
    """For coordinates i..i + 3: the first column of their factor, how many, where in a panel."""
    n, total = layout.first.shape[0], 0
    bands = np.empty(((n + 3) // 4, 3), dtype=np.int64)
    for band in range(bands.shape[0]):
        i, end = 4 * band, min(4 * band + 4, n)
        begin = min(end, int(layout.first[i:end].min()))
        size = end - begin if layout.starts[end] > layout.starts[i] else 0
        bands[band] = begin, size, total
        total += size + 1
    return bands


def make_workspace(layout: Layout, block_size: int) -> Workspace:
    """Memory of a thread for blocks of at most `block_size` components."""
    n, n_columns = layout.n_coordinates, layout.offsets.shape[0] - 1
    n_features = layout.n_products + n
    n_tiled = n_features if n_features <= _MOST_FEATURES else 0
    bands = _find_bands(layout)
    height = int(bands[-1, 1:].sum()) + 1 if n else 0
    n_moments, width = (n + 4) // 4 * 4, (n + DOUBLE) // DOUBLE * DOUBLE

    def single(*shape: int) -> np.ndarray:
        return np.empty(shape, dtype=np.float32)

    def whole(*shape: int) -> np.ndarray:
        return np.empty(shape, dtype=np.int64)

    block = Block(
        origin=np.empty(n),
        common=np.zeros(n + 1),
        shifts=np.empty((block_size, n)),
        factors=np.empty((block_size, layout.n_products)),
        linear=np.empty((block_size, n)),
        constants=np.empty(block_size),
        tables=single(block_size, layout.n_levels),
        parameters=single(block_size, n_tiled + 1),
        scratch=np.empty((3, n)),
    )
    panels = Panels(
        bands=bands,
        way=whole(block_size),
        wide=whole(block_size),
        products=single((block_size + 3) // 4 * n_tiled, 4),
        factors=single(block_size * height, 4),
        exact=np.empty((block_size * height, 4)),
    )
    tile = Tile(
        columns=single(n, TILE),
        exact_columns=np.empty((n, TILE)),
        features=single(n_tiled, TILE),
        levels=whole(n_columns, TILE),
        four=single(4, TILE),
        values=single(KEPT_TILES, block_size, TILE),
        exact_values=np.empty((block_size, TILE)),
        largest=single(TILE),
        floor=single(TILE),
        exact_floor=np.empty(TILE),
        total=single(TILE),
        running=single(TILE),
        uniforms=single(TILE),
        row_weights=single(TILE),
        drawn=np.empty(TILE, dtype=np.int32),
    )
    totals = Totals(
        sums=np.empty((block_size, n_tiled)),
        weights=np.empty((block_size, 2)),
        anchors=np.empty((block_size, n)),
        moments=np.empty((block_size * n_moments, width)),
        kept=np.empty((TILE, width)),
        weighted=np.empty((TILE, width)),
    )
    return block, panels, tile, totals


@part()
def prepare(layout: Layout, model: Model, members, place, n, beta, block: Block):
    """Find the block's origin and the parameters of its n components about it."""
    first, last, starts, _ = layout
    location, factor, slopes, _, log_tables, log_normaliser, log_mass, decay = model
    origin, common, shifts, factors, linear, constants, tables, parameters, scratch = block
    C, P = first.shape[0], starts[first.shape[0]]
    for c in range(C):
        total = 0.0
        for g in range(n):
            total += location[members[place + g], c]
        origin[c] = total / n
    if slopes.shape[0]:
        # What linear parts have in common cancels in posteriors, but not in float32.
        for c in range(C):
            total = 0.0
            for g in range(n):
                total += slopes[members[place + g], c]
            common[c] = beta * total / n
        constant = 0.0
        for g in range(n):
            k = members[place + g]
            constant += beta * log_normaliser[0 if factor.shape[0] == 1 else k]
            for c in range(C):
                constant -= common[c] * (location[k, c] - origin[c])
        common[C] = constant / n
    row = scratch[0]
    root = math.sqrt(beta)
    for g in range(n):
        k = members[place + g]
        f = 0 if factor.shape[0] == 1 else k
        log_weight = max(log_mass[k] + decay[LOG_SCALE], decay[LOG_FLOOR])
        constant = beta * (log_weight + log_normaliser[f]) - common[C]
        for c in range(C):
            shifts[g, c] = location[k, c] - origin[c]
            linear[g, c] = 0.0
            if slopes.shape[0]:
                linear[g, c] = beta * slopes[k, c] - common[c]
                constant -= common[c] * shifts[g, c]
        constants[g] = constant
        for p in range(P):
            factors[g, p] = root * factor[f, p]
        for level in range(tables.shape[1]):
            tables[g, level] = beta * log_tables[k, level]
        if parameters.shape[1] == 1:
            continue
        # About the origin, beside the constant that every way begins with.
        constant = 0.0
        for c in range(C):
            row[c] = 0.0
        for i in range(C):
            for j in range(first[i], i + 1):
                # The precision F' F.
                total = 0.0
                for m in range(i, last[i] + 1):
                    base = starts[m] - first[m]
                    total += factor[f, base + i] * factor[f, base + j]
                p = starts[i] + j - first[i]
                parameters[g, p] = -beta * total if j < i else -0.5 * beta * total
                row[i] += total * shifts[g, j]
                if j < i:
                    row[j] += total * shifts[g, i]
        for c in range(C):
            slope = linear[g, c] + beta * row[c]
            parameters[g, P + c] = slope
            constant -= (slope - 0.5 * beta * row[c]) * shifts[g, c]
        parameters[g, P + C] = constant


@part()
def choose_ways(layout: Layout, n, rows, begin, end, block: Block, way):
    """Choose how each component is evaluated; returns the most exact of the ways chosen."""
    first, _, starts, _ = layout
    origin, _, shifts, factors, linear, constants, _, parameters, scratch = block
    C, P = first.shape[0], starts[first.shape[0]]
    # How far rows are from the origin, and how many are like the row before, by coordinate.
    reach, repeats = scratch[1], scratch[2]
    for c in range(C):
        reach[c] = 0.0
        repeats[c] = 0.0
    for i in range(begin, end):
        before = max(i - 1, begin)
        for c in range(C):
            away = abs(rows[i, c] - origin[c])
            # What is not a number reaches far.
            reach[c] = reach[c] if away <= reach[c] else away
            repeats[c] += 1.0 if rows[i, c] == rows[before, c] else 0.0
    tiled = parameters.shape[1] > 1
    for c in range(C):
        if starts[c + 1] > starts[c] and repeats[c] > _REPEATED * (end - begin):
            tiled = False
    ways = PRODUCTS
    for g in range(n):
        # The terms that add up to a log-joint are at most this large, and those of a whitened
        # coordinate.
        terms, whitened = abs(constants[g]), 0.0
        straight = terms
        held = True
        for i in range(C):
            held = held and reach[i] < _LARGEST_COORDINATE
            size = 0.0
            for j in range(first[i], i + 1):
                p = starts[i] + j - first[i]
                size += abs(factors[g, p]) * (reach[j] + abs(shifts[g, j]))
                if tiled:
                    terms += abs(parameters[g, p]) * reach[i] * reach[j]
            whitened = max(whitened, size)
            straight += abs(linear[g, i]) * reach[i]
            if tiled:
                terms += abs(parameters[g, P + i]) * reach[i]
        if tiled:
            terms += abs(parameters[g, P + C])
        if tiled and held and terms <= _LARGEST_TERMS:
            way[g] = PRODUCTS
        elif held and whitened <= _LARGEST_WHITENED and straight <= _LARGEST_TERMS:
            way[g] = FACTOR
        else:
            way[g] = EXACT
        ways = max(ways, way[g])
    return ways


@part()
def pack(layout: Layout, n, block: Block, panels: Panels):
    """Pack parameters and factors in columns of four; return the number of wide components.

    Those are evaluated by products. A panel of the others holds -F m and F for every four rows of
    F.
    """
    first, _, starts, _ = layout
    _, _, shifts, factors, _, _, _, parameters, _ = block
    bands, way, wide, products, factor_panels, exact_panels = panels
    n_features = parameters.shape[1] - 1
    height = factor_panels.shape[0] // way.shape[0]
    n_wide = 0
    for g in range(n):
        if way[g] == PRODUCTS:
            base = n_wide // 4 * n_features
            for p in range(n_features):
                products[base + p, n_wide % 4] = parameters[g, p]
            wide[n_wide] = g
            n_wide += 1
            continue
        for i in range(4 * bands.shape[0]):
            column, size = bands[i // 4, 0], bands[i // 4, 1]
            top = g * height + bands[i // 4, 2]
            start = 0.0
            for j in range(column, column + size):
                factor = 0.0
                if i < first.shape[0] and first[i] <= j <= i:
                    factor = factors[g, starts[i] + j - first[i]]
                start -= factor * shifts[g, j]
                if way[g] == FACTOR:
                    factor_panels[top + 1 + j - column, i % 4] = factor
                else:
                    exact_panels[top + 1 + j - column, i % 4] = factor
            if way[g] == FACTOR:
                factor_panels[top, i % 4] = start
            else:
                exact_panels[top, i % 4] = start
    for slot in range(n_wide, (n_wide + 3) // 4 * 4):
        for p in range(n_features):
            products[slot // 4 * n_features + p, slot % 4] = 0.0
    return n_wide

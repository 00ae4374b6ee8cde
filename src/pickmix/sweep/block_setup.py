"""What the compiled sweep computes once per block: its origin, parameters, and ways to evaluate."""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np

from pickmix.compiled import part
from pickmix.families.layout import LOG_FLOOR, LOG_SCALE, Layout, Model
from pickmix.sweep.multiply import DOUBLE
from pickmix.sweep.tiles import TILE

_LARGEST_TERMS = 8e4  # Largest terms of a log-joint that cancel: float32 then leaves 0.005.
# A whitened coordinate may have terms this large: float32 then leaves 0.003 of it.
_LARGEST_WHITENED = 4e4
_LARGEST_COORDINATE = 1e15
_MOST_FEATURES = 256  # More features of a tile would leave the fastest cache.
# A coordinate that so often is what it was in the row before is constant in some components: their
# sums about the origin would lose all digits, and the block be done again.
_REPEATED = 1.0 / 16.0

PRODUCTS, FACTOR, EXACT = range(3)

Workspace = namedtuple(
    "Workspace",
    [
        # Of the layout: for every four coordinates (first of their factor's columns, how many,
        # where they are in a panel).
        "bands",
        # Of the block: its origin (C,), locations about it (G, C), natural parameters about it
        # (G, P + C + 1), factors, linear parts and constants (G, ...), tables (G, L), how each
        # component is evaluated (G,), sums about the origin (G, P + C) and their weights (G, 2).
        # Slopes and a constant that linear parts have in common, taken off them (C + 1,).
        "origin",
        "common",
        "shifts",
        "parameters",
        "factors",
        "linear",
        "constants",
        "tables",
        "way",
        "sums",
        "totals",
        # Of narrow components: a row that each has seen (G, C), and for four rows of the matrix at
        # a time the moments of (x - that row, 1), (G * height, width).
        "anchors",
        "moments",
        # The same parameters and factors in columns of four, as products of matrices take them:
        # four components that are evaluated by products, four rows of a factor, and in float64.
        "wide",
        "parameter_panels",
        "factor_panels",
        "exact_panels",
        # Of the tile: coordinates about the origin and about one location, features, levels.
        "columns",
        "exact_columns",
        "features",
        "levels",
        # Four rows of a product, and rows of a narrow component with and without their weights.
        "four",
        "kept",
        "weighted",
        # Posterior weights (G, TILE), and what is known of each row.
        "values",
        "exact_values",
        "largest",
        "floor",
        "exact_floor",
        "total",
        "running",
        "uniforms",
        "row_weights",
        "drawn",
    ],
)


@part()
def _find_bands(layout: Layout) -> np.ndarray:
    """For coordinates i..i + 3: the first column of their factor, how many, where in a panel."""
    first, _, starts, _ = layout
    C = first.shape[0]
    bands = np.empty(((C + 3) // 4, 3), dtype=np.int64)
    total = 0
    for band in range(bands.shape[0]):
        i, end = 4 * band, min(4 * band + 4, C)
        begin = end
        for c in range(i, end):
            begin = min(begin, first[c])
        bands[band, 0], bands[band, 2] = begin, total
        bands[band, 1] = end - begin if starts[end] > starts[i] else 0
        total += bands[band, 1] + 1
    return bands


@part()
def make_workspace(layout: Layout, block_size: int) -> Workspace:
    n = layout[0].shape[0]
    n_products, n_columns = layout[2][n], layout[3].shape[0] - 1
    n_levels = layout[3][n_columns]
    n_features = n_products + n
    n_tiled = n_features if n_features <= _MOST_FEATURES else 0
    bands = _find_bands(layout)
    last = bands.shape[0] - 1
    height = bands[last, 2] + bands[last, 1] + 1 if last >= 0 else 0
    n_fours = (block_size + 3) // 4
    n_moments, width = (n + 4) // 4 * 4, (n + DOUBLE) // DOUBLE * DOUBLE
    single = np.float32
    return Workspace(
        bands,
        np.empty(n),
        np.zeros(n + 1),
        np.empty((block_size, n)),
        np.empty((block_size, n_tiled + 1), dtype=single),
        np.empty((block_size, n_products)),
        np.empty((block_size, n)),
        np.empty(block_size),
        np.empty((block_size, n_levels), dtype=single),
        np.empty(block_size, dtype=np.int64),
        np.empty((block_size, n_tiled)),
        np.empty((block_size, 2)),
        np.empty((block_size, n)),
        np.empty((block_size * n_moments, width)),
        np.empty(block_size, dtype=np.int64),
        np.empty((n_fours * n_tiled, 4), dtype=single),
        np.empty((block_size * height, 4), dtype=single),
        np.empty((block_size * height, 4)),
        np.empty((n, TILE), dtype=single),
        np.empty((n, TILE)),
        np.empty((n_tiled, TILE), dtype=single),
        np.empty((n_columns, TILE), dtype=np.int64),
        np.empty((4, TILE), dtype=single),
        np.empty((TILE, width)),
        np.empty((TILE, width)),
        np.empty((block_size, TILE), dtype=single),
        np.empty((block_size, TILE)),
        np.empty(TILE, dtype=single),
        np.empty(TILE, dtype=single),
        np.empty(TILE),
        np.empty(TILE, dtype=single),
        np.empty(TILE, dtype=single),
        np.empty(TILE, dtype=single),
        np.empty(TILE, dtype=single),
        np.empty(TILE, dtype=np.int32),
    )


@part()
def _find_common(
    model: Model, members: np.ndarray, place: int, n: int, beta: float, work: Workspace
) -> None:
    """Find the common linear part of the block: it cancels in posteriors, but not in float32."""
    C = work.origin.shape[0]
    if not model.linear.shape[0]:
        return
    for c in range(C):
        total = 0.0
        for g in range(n):
            total += model.linear[members[place + g], c]
        work.common[c] = beta * total / n
    constant = 0.0
    for g in range(n):
        k = members[place + g]
        constant += beta * model.log_normaliser[0 if model.factor.shape[0] == 1 else k]
        for c in range(C):
            constant -= work.common[c] * (model.location[k, c] - work.origin[c])
    work.common[C] = constant / n


@part()
def prepare(
    layout: Layout,
    model: Model,
    members: np.ndarray,
    place: int,
    n: int,
    beta: float,
    work: Workspace,
) -> None:
    """Find the block's origin and the parameters of its n components about it."""
    first, last, starts, _ = layout
    C, P = first.shape[0], starts[first.shape[0]]
    for c in range(C):
        total = 0.0
        for g in range(n):
            total += model.location[members[place + g], c]
        work.origin[c] = total / n
    _find_common(model, members, place, n, beta, work)
    row = np.empty(C)
    root = math.sqrt(beta)
    for g in range(n):
        k = members[place + g]
        f = 0 if model.factor.shape[0] == 1 else k
        log_weight = max(model.log_mass[k] + model.decay[LOG_SCALE], model.decay[LOG_FLOOR])
        constant = beta * (log_weight + model.log_normaliser[f]) - work.common[C]
        for c in range(C):
            work.shifts[g, c] = model.location[k, c] - work.origin[c]
            work.linear[g, c] = 0.0
            if model.linear.shape[0]:
                work.linear[g, c] = beta * model.linear[k, c] - work.common[c]
                constant -= work.common[c] * work.shifts[g, c]
        work.constants[g] = constant
        for p in range(P):
            work.factors[g, p] = root * model.factor[f, p]
        for level in range(work.tables.shape[1]):
            work.tables[g, level] = beta * model.tables[k, level]
        if not work.features.shape[0]:
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
                    total += model.factor[f, base + i] * model.factor[f, base + j]
                p = starts[i] + j - first[i]
                work.parameters[g, p] = -beta * total if j < i else -0.5 * beta * total
                row[i] += total * work.shifts[g, j]
                if j < i:
                    row[j] += total * work.shifts[g, i]
        for c in range(C):
            slope = work.linear[g, c] + beta * row[c]
            work.parameters[g, P + c] = slope
            constant -= (slope - 0.5 * beta * row[c]) * work.shifts[g, c]
        work.parameters[g, P + C] = constant


@part()
def choose_ways(
    layout: Layout, n: int, rows: np.ndarray, begin: int, end: int, work: Workspace
) -> int:
    """Choose how each component is evaluated; returns the most exact of the ways chosen."""
    first, _, starts, _ = layout
    C, P = first.shape[0], starts[first.shape[0]]
    # How far rows are from the origin, and how many are like the row before, by coordinate.
    reach, repeats = np.zeros(C), np.zeros(C)
    for i in range(begin, end):
        before = max(i - 1, begin)
        for c in range(C):
            away = abs(rows[i, c] - work.origin[c])
            # What is not a number reaches far.
            reach[c] = reach[c] if away <= reach[c] else away
            repeats[c] += 1.0 if rows[i, c] == rows[before, c] else 0.0
    tiled = work.features.shape[0] > 0
    for c in range(C):
        if starts[c + 1] > starts[c] and repeats[c] > _REPEATED * (end - begin):
            tiled = False
    ways = PRODUCTS
    for g in range(n):
        # The terms that add up to a log-joint are at most this large, and those of a whitened
        # coordinate.
        terms, whitened = abs(work.constants[g]), 0.0
        straight = terms
        held = True
        for i in range(C):
            held = held and reach[i] < _LARGEST_COORDINATE
            size = 0.0
            for j in range(first[i], i + 1):
                p = starts[i] + j - first[i]
                size += abs(work.factors[g, p]) * (reach[j] + abs(work.shifts[g, j]))
                if tiled:
                    terms += abs(work.parameters[g, p]) * reach[i] * reach[j]
            whitened = max(whitened, size)
            straight += abs(work.linear[g, i]) * reach[i]
            if tiled:
                terms += abs(work.parameters[g, P + i]) * reach[i]
        if tiled:
            terms += abs(work.parameters[g, P + C])
        if tiled and held and terms <= _LARGEST_TERMS:
            work.way[g] = PRODUCTS
        elif held and whitened <= _LARGEST_WHITENED and straight <= _LARGEST_TERMS:
            work.way[g] = FACTOR
        else:
            work.way[g] = EXACT
        ways = max(ways, work.way[g])
    return ways


@part()
def pack(layout: Layout, n: int, work: Workspace) -> int:
    """Pack parameters and factors in columns of four; return the number of components in work.wide.

    Those are evaluated by products. A panel of the others holds -F m and F for every four rows of
    F.
    """
    first, _, starts, _ = layout
    n_features = work.features.shape[0]
    height = work.factor_panels.shape[0] // work.way.shape[0]
    n_wide = 0
    for g in range(n):
        if work.way[g] == PRODUCTS:
            base = n_wide // 4 * n_features
            for p in range(n_features):
                work.parameter_panels[base + p, n_wide % 4] = work.parameters[g, p]
            work.wide[n_wide] = g
            n_wide += 1
            continue
        for i in range(4 * work.bands.shape[0]):
            column, size = work.bands[i // 4, 0], work.bands[i // 4, 1]
            top = g * height + work.bands[i // 4, 2]
            start = 0.0
            for j in range(column, column + size):
                factor = 0.0
                if i < first.shape[0] and first[i] <= j <= i:
                    factor = work.factors[g, starts[i] + j - first[i]]
                start -= factor * work.shifts[g, j]
                if work.way[g] == FACTOR:
                    work.factor_panels[top + 1 + j - column, i % 4] = factor
                else:
                    work.exact_panels[top + 1 + j - column, i % 4] = factor
            if work.way[g] == FACTOR:
                work.factor_panels[top, i % 4] = start
            else:
                work.exact_panels[top, i % 4] = start
    for slot in range(n_wide, (n_wide + 3) // 4 * 4):
        for p in range(n_features):
            work.parameter_panels[slot // 4 * n_features + p, slot % 4] = 0.0
    return n_wide

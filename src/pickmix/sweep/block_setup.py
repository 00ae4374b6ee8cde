"""What the compiled sweep computes once per block: its origin, parameters, and ways to evaluate."""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np

from pickmix.compiled import part
from pickmix.families.layout import LOG_FLOOR, LOG_SCALE, Layout, Model
from pickmix.sweep.tiles import TILE

# Terms of a log-joint may be this large before they cancel: float32 then leaves 0.005.
_LARGEST_TERMS = 8e4
# A whitened coordinate may have terms this large: float32 then leaves 0.003 of it.
_LARGEST_WHITENED = 4e4
_LARGEST_COORDINATE = 1e15

PRODUCTS, FACTOR, EXACT = range(3)

Workspace = namedtuple(
    "Workspace",
    [
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
        # Of the tile: coordinates about the origin and about one location, features, levels.
        "columns",
        "own",
        "own_exact",
        "features",
        "levels",
        # Posterior weights (G, TILE), and what is known of each row.
        "values",
        "exact_values",
        "largest",
        "total",
        "running",
        "offset",
        "uniforms",
        "row_weights",
        "drawn",
    ],
)


@part()
def make_workspace(layout: Layout, block_size: int) -> Workspace:
    """Allocate what a thread needs for blocks of at most block_size components."""
    n = layout[0].shape[0]
    n_products, n_columns = layout[2][n], layout[3].shape[0] - 1
    n_levels = layout[3][n_columns]
    n_features = n_products + n
    single = np.float32
    return Workspace(
        np.empty(n),
        np.zeros(n + 1),
        np.empty((block_size, n)),
        np.empty((block_size, n_features + 1), dtype=single),
        np.empty((block_size, n_products), dtype=single),
        np.empty((block_size, n), dtype=single),
        np.empty(block_size),
        np.empty((block_size, n_levels), dtype=single),
        np.empty(block_size, dtype=np.int64),
        np.empty((block_size, n_features)),
        np.empty((block_size, 2)),
        np.empty((n, TILE), dtype=single),
        np.empty((n, TILE), dtype=single),
        np.empty((n, TILE)),
        np.empty((n_features, TILE), dtype=single),
        np.empty((n_columns, TILE), dtype=np.int64),
        np.empty((block_size, TILE), dtype=single),
        np.empty((block_size, TILE)),
        np.empty(TILE, dtype=single),
        np.empty(TILE, dtype=single),
        np.empty(TILE, dtype=single),
        np.empty(TILE),
        np.empty(TILE, dtype=single),
        np.empty(TILE, dtype=single),
        np.empty(TILE, dtype=np.int32),
    )


@part()
def _find_common(
    model: Model, members: np.ndarray, place: int, n: int, beta: float, work: Workspace
) -> None:
    """Find what the linear parts of the block have in common, as a function of x - origin.

    It cancels in posteriors, but for large counts it is so large that float32 would hold no more
    than that.
    """
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
    """Find the block's origin and the natural parameters of its n components."""
    first, last, starts, _ = layout
    C, P = first.shape[0], starts[first.shape[0]]
    shared = model.factor.shape[0] == 1
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
        f = 0 if shared else k
        log_weight = max(model.log_mass[k] + model.decay[LOG_SCALE], model.decay[LOG_FLOOR])
        constant = beta * (log_weight + model.log_normaliser[f]) - work.common[C]
        for c in range(C):
            work.shifts[g, c] = model.location[k, c] - work.origin[c]
            row[c] = 0.0
            work.linear[g, c] = 0.0
            if model.linear.shape[0]:
                work.linear[g, c] = beta * model.linear[k, c] - work.common[c]
                constant -= work.common[c] * work.shifts[g, c]
        work.constants[g] = constant
        for i in range(C):
            for j in range(first[i], i + 1):
                # The precision F' F.
                total = 0.0
                for m in range(i, last[i] + 1):
                    base = starts[m] - first[m]
                    total += model.factor[f, base + i] * model.factor[f, base + j]
                p = starts[i] + j - first[i]
                work.factors[g, p] = root * model.factor[f, p]
                work.parameters[g, p] = -beta * total if j < i else -0.5 * beta * total
                row[i] += total * work.shifts[g, j]
                if j < i:
                    row[j] += total * work.shifts[g, i]
        for c in range(C):
            slope = work.linear[g, c] + beta * row[c]
            work.parameters[g, P + c] = slope
            constant -= (slope - 0.5 * beta * row[c]) * work.shifts[g, c]
        work.parameters[g, P + C] = constant
        for level in range(work.tables.shape[1]):
            work.tables[g, level] = beta * model.tables[k, level]


@part()
def choose_ways(
    layout: Layout, n: int, rows: np.ndarray, begin: int, end: int, work: Workspace
) -> int:
    """Choose how each component is evaluated; returns the most exact of the ways chosen."""
    first, _, starts, _ = layout
    C, P = first.shape[0], starts[first.shape[0]]
    reach = np.zeros(C)
    for i in range(begin, end):
        for c in range(C):
            reach[c] = max(reach[c], abs(rows[i, c] - work.origin[c]))
    ways = PRODUCTS
    for g in range(n):
        # The terms that add up to a log-joint are at most this large, and those of a whitened
        # coordinate.
        terms, whitened = abs(work.parameters[g, P + C]), 0.0
        straight = abs(work.constants[g])
        held = True
        for i in range(C):
            held = held and reach[i] < _LARGEST_COORDINATE
            size = 0.0
            for j in range(first[i], i + 1):
                p = starts[i] + j - first[i]
                terms += abs(work.parameters[g, p]) * reach[i] * reach[j]
                size += abs(work.factors[g, p]) * (reach[j] + abs(work.shifts[g, j]))
            whitened = max(whitened, size)
            terms += abs(work.parameters[g, P + i]) * reach[i]
            straight += abs(work.linear[g, i]) * reach[i]
        if held and terms <= _LARGEST_TERMS:
            work.way[g] = PRODUCTS
        elif held and whitened <= _LARGEST_WHITENED and straight <= _LARGEST_TERMS:
            work.way[g] = FACTOR
        else:
            work.way[g] = EXACT
        ways = max(ways, work.way[g])
    return ways

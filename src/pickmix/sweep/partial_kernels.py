"""Rows seen in part, compiled: the arithmetic of partial_reference.py, many components at a time.

Rows come sorted by what was seen of them. Those with the same cells missing share the factors of
their components, so a group of them is worked on together. The innermost loops run over the
components of a block, one per lane of the vector units, which keeps these busy however few rows a
group has. Everything is float64 about each component's own location, so that nothing cancels.

Coordinates that were seen of a group are numbered 0, 1, ... as "places"; those that are to be
completed stand in `hidden`.
"""

# Numba infers types in the kernels.
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pickmix.compiled import part
from pickmix.families.base import NO_MASS
from pickmix.families.layout import LOG_FLOOR, LOG_SCALE, Layout, Model
from pickmix.sweep.lane_products import (
    LANES,
    add_products,
    add_row,
    fill_row,
    invert_root,
    load_row,
    scale_row,
    subtract_products,
)

_FAST = {"reassoc", "contract", "nsz"}
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
# Factors of normalisers that are multiplied before a logarithm is taken.
_FACTORS_PER_LOG = 4
# What a component that explains nothing is given.
NOTHING = -1e300
# Values so much below the largest have no weight, and what exponents are divided by.
_LEAST_EXPONENT = -20.0
_SHRINK = 1.0 / 1024.0


class Workspace(NamedTuple):
    """What a thread needs for blocks of at most n components, in W lanes.

    Attributes
    ----------
    first, group : (C,) int64 arrays
        The first coordinate that coordinate i depends on, i + 1 for counts; coordinates of one
        group may depend on each other.
    location, linear, constants : (C, W) arrays
        m, l, and l m - m for counts.
    covariance : (C C, W) array
        S, row by row.
    log_weight, normaliser : (1, W) arrays
        Log-weights, and these with the normaliser of what was seen.
    seen, begin : (C,) int64 arrays
        The coordinate at each place, and the first place that it depends on; for counts, the next.
    hidden, low, high : (C,) int64 arrays
        Coordinates to complete, and the places low..high that each depends on.
    noise : (C, C) array
    root, factor : (C C, W) arrays
        The Cholesky factor of T, and its inverse, by places.
    away : (C, W) array
        x - m, by places.
    squares, values : (1, W) arrays
    means : (C, W) array
    products : (C C, W) array
        Weighted sums over the rows of a group, by places.
    mass : (1, W) array
    solved, gains : (C C, W) arrays
        root^-1 S and T^-1 S, row h C + a for hidden coordinate h and place a.
    cross : (C, W) array
    total, total_squares : (1, W) arrays
    sums : (C, W) array
    sums_of_products : (P, W) array
        Sums over the rows of a block, completed.
    """

    first: np.ndarray
    group: np.ndarray
    location: np.ndarray
    linear: np.ndarray
    constants: np.ndarray
    covariance: np.ndarray
    log_weight: np.ndarray
    normaliser: np.ndarray
    seen: np.ndarray
    begin: np.ndarray
    hidden: np.ndarray
    low: np.ndarray
    high: np.ndarray
    noise: np.ndarray
    root: np.ndarray
    factor: np.ndarray
    away: np.ndarray
    squares: np.ndarray
    values: np.ndarray
    means: np.ndarray
    products: np.ndarray
    mass: np.ndarray
    solved: np.ndarray
    gains: np.ndarray
    cross: np.ndarray
    total: np.ndarray
    total_squares: np.ndarray
    sums: np.ndarray
    sums_of_products: np.ndarray


@part()
def make_workspace(layout: Layout, n_noise: int, n: int) -> Workspace:
    """Allocate what a thread needs for blocks of at most n components."""
    C, P = layout[0].shape[0], layout[2][layout[0].shape[0]]
    W = (n + LANES - 1) // LANES * LANES
    first, group = layout[0].copy(), np.empty(C, dtype=np.int64)
    for c in range(C):
        if n_noise > C and first[c] <= c:
            # Noise of all columns together makes them depend on each other.
            first[c] = 0
        group[c] = first[c] if first[c] <= c else -1 - c
    return Workspace(
        first,
        group,
        np.zeros((C, W)),
        np.zeros((C, W)),
        np.zeros((C, W)),
        np.zeros((C * C, W)),
        np.zeros((1, W)),
        np.zeros((1, W)),
        np.zeros(C, dtype=np.int64),
        np.zeros(C, dtype=np.int64),
        np.zeros(C, dtype=np.int64),
        np.zeros(C, dtype=np.int64),
        np.zeros(C, dtype=np.int64),
        np.zeros((C, C)),
        np.zeros((C * C, W)),
        np.zeros((C * C, W)),
        np.zeros((C, W)),
        np.zeros((1, W)),
        np.zeros((1, W)),
        np.zeros((C, W)),
        np.zeros((C * C, W)),
        np.zeros((1, W)),
        np.zeros((C * C, W)),
        np.zeros((C * C, W)),
        np.zeros((C, W)),
        np.zeros((1, W)),
        np.zeros((1, W)),
        np.zeros((C, W)),
        np.zeros((P, W)),
    )


@part()
def prepare(layout: Layout, model: Model, members, place, n, work: Workspace) -> None:
    """Load the n components members[place : place + n], and clear their sums."""
    first, _, starts, _ = layout
    C, W = first.shape[0], work.log_weight.shape[1]
    has_linear = model.linear.shape[0] > 0
    root = np.zeros((C, C))
    work.total[:] = 0.0
    work.total_squares[:] = 0.0
    work.sums[:] = 0.0
    work.sums_of_products[:] = 0.0
    for g in range(n, W):
        # Lanes beyond the last component are unit Gaussians that weigh nothing.
        work.log_weight[0, g] = NOTHING
        for c in range(C):
            work.location[c, g] = 0.0
            for d in range(C):
                work.covariance[c * C + d, g] = 1.0 if c == d else 0.0
    for g in range(n):
        k = members[place + g]
        f = 0 if model.factor.shape[0] == 1 else k
        weight = max(model.log_mass[k] + model.decay[LOG_SCALE], model.decay[LOG_FLOOR])
        work.log_weight[0, g] = weight
        for c in range(C):
            work.location[c, g] = model.location[k, c]
            if has_linear and first[c] > c:
                work.linear[c, g] = model.linear[k, c]
                rate = model.location[k, c]
                work.constants[c, g] = model.linear[k, c] * rate - rate
        # The inverse of the factor is the root of the covariance.
        for i in range(C):
            if first[i] > i:
                continue
            base = starts[i] - first[i]
            diagonal = 1.0 / model.factor[f, base + i]
            for j in range(first[i], i):
                total = 0.0
                for m in range(j, i):
                    total += model.factor[f, base + m] * root[m, j]
                root[i, j] = -total * diagonal
            root[i, i] = diagonal
            for j in range(first[i], i + 1):
                total = 0.0
                for m in range(first[i], j + 1):
                    total += root[i, m] * root[j, m]
                work.covariance[i * C + j, g] = total
                work.covariance[j * C + i, g] = total


@part()
def look(rows, i, n_columns, work: Workspace):
    """Find what was seen of row i, and its noise; returns (places, coordinates to complete)."""
    C = work.first.shape[0]
    n_noise = rows.shape[1] - n_columns
    n_seen, n_hidden = 0, 0
    for c in range(C):
        there = not np.isnan(rows[i, c])
        if there:
            work.seen[n_seen] = c
            begin = n_seen
            while begin > 0 and work.seen[begin - 1] >= work.first[c]:
                begin -= 1
            work.begin[n_seen] = begin if work.first[c] <= c else n_seen + 1
            n_seen += 1
        if work.first[c] <= c and (n_noise > 0 or not there):
            work.hidden[n_hidden] = c
            n_hidden += 1
    for h in range(n_hidden):
        low = 0
        while low < n_seen and work.group[work.seen[low]] != work.group[work.hidden[h]]:
            low += 1
        high = low
        while high < n_seen and work.group[work.seen[high]] == work.group[work.hidden[h]]:
            high += 1
        work.low[h], work.high[h] = low, high
    if n_noise == C:
        for c in range(C):
            work.noise[c, c] = rows[i, n_columns + c]
    elif n_noise > 0:
        p = n_columns
        for c in range(C):
            for d in range(c + 1):
                work.noise[c, d] = rows[i, p]
                p += 1
    return n_seen, n_hidden


@part()
def _add_logarithms(factors, normaliser):
    for g in range(normaliser.shape[1]):
        normaliser[0, g] += math.log(factors[0, g])


@part()
def factorise(n_seen, has_noise, work: Workspace) -> None:
    """The Cholesky factors of T, their inverses, and the normalisers, of what was seen."""
    C = work.first.shape[0]
    seen, root, factor, normaliser = work.seen, work.root, work.factor, work.normaliser
    fill_row(normaliser, 0, 0.0, normaliser, 0)
    diagonal, n_factors, constant = work.squares, 0, 0.0
    fill_row(diagonal, 0, 1.0, diagonal, 0)
    for a in range(n_seen):
        i, begin = seen[a], work.begin[a]
        if begin > a:
            add_row(work.constants, i, 1.0, normaliser, 0)
            continue
        constant += _HALF_LOG_2PI
        for b in range(begin, a + 1):
            j, here = seen[b], a * C + b
            noise = work.noise[i, j] if has_noise else 0.0
            load_row(work.covariance, i * C + j, noise, root, here)
            left, right = a * C + begin, b * C + begin
            subtract_products(root, left, 1, root, right, 1, b - begin, root, here)
            if a == b:
                invert_root(root, here, 1.0, factor, here)
            else:
                scale_row(factor, b * C + b, 1.0, root, here)
        # Row a of the inverse: -F[a, a] sum over m of root[a, m] F[m, b].
        for b in range(begin, a):
            here = a * C + b
            fill_row(factor, here, 0.0, factor, here)
            subtract_products(root, here, 1, factor, b * C + b, C, a - b, factor, here)
            scale_row(factor, a * C + a, 1.0, factor, here)
        scale_row(factor, a * C + a, 1.0, diagonal, 0)
        n_factors += 1
        if n_factors % _FACTORS_PER_LOG == 0:
            _add_logarithms(diagonal, normaliser)
            fill_row(diagonal, 0, 1.0, diagonal, 0)
    if n_factors % _FACTORS_PER_LOG:
        _add_logarithms(diagonal, normaliser)
    add_row(work.log_weight, 0, 1.0, normaliser, 0)
    load_row(normaliser, 0, -constant, normaliser, 0)


# Tuples of many arrays are costly to hand over, so functions for every row take single arrays.


@part()
def add_other_columns(
    rows, i, beta, members, place, n, n_seen, first, seen, linear, away, offsets, tables, values
) -> None:
    """Add what counts and levels contribute to the values of row i."""
    C = first.shape[0]
    for a in range(n_seen):
        c = seen[a]
        if first[c] > c:
            for g in range(n):
                values[0, g] -= beta * linear[c, g] * away[a, g]
    for q in range(offsets.shape[0] - 1):
        if not np.isnan(rows[i, C + q]):
            level = offsets[q] + int(rows[i, C + q])
            for g in range(n):
                values[0, g] += beta * tables[members[place + g], level]


@part(fastmath=_FAST)
def exponentiate(values):
    """Replace values by exp(value - largest); returns the largest, and the sum.

    exp(y) = exp(y / 1024)^1024 with a Taylor polynomial, which unlike a library's function
    vectorises; its relative error is about 1e-13.
    """
    largest = values[0, 0]
    for g in range(1, values.shape[1]):
        largest = max(largest, values[0, g])
    total = 0.0
    for g in range(values.shape[1]):
        away = values[0, g] - largest
        y = max(away, _LEAST_EXPONENT) * _SHRINK
        e = y * (1.0 / 6.0 + y * (1.0 / 24.0 + y * (1.0 / 120.0 + y * (1.0 / 720.0))))
        e = 1.0 + y * (1.0 + y * (0.5 + e))
        e *= e
        e *= e
        e *= e
        e *= e
        e *= e
        e *= e
        e *= e
        e *= e
        e *= e
        e *= e
        e = e if away > _LEAST_EXPONENT else 0.0
        values[0, g] = e
        total += e
    return largest, total


@part()
def add_levels(rows, i, C, n, place, offsets, weights, counts) -> None:
    """Add the levels of row i to the components' counts."""
    for q in range(offsets.shape[0] - 1):
        if not np.isnan(rows[i, C + q]):
            level = offsets[q] + int(rows[i, C + q])
            for g in range(n):
                counts[place + g, level] += weights[0, g]


@part()
def add_group(
    layout, tables, rows, i, members, place, n, n_seen, n_hidden, has_noise, counts, work: Workspace
) -> None:
    """Complete the sums of a group of rows like row i, and add them to those of the block."""
    first, _, starts, offsets = layout
    C = first.shape[0]
    if not has_noise:
        # What was seen without noise is known.
        for a in range(n_seen):
            c = work.seen[a]
            add_row(work.means, a, -1.0, work.sums, c)
            for b in range(work.begin[a], a + 1):
                d = work.seen[b]
                if first[c] <= d:
                    p = starts[c] + d - first[c]
                    add_row(work.products, a * C + b, 1.0, work.sums_of_products, p)
    if n_hidden:
        _complete(layout, n_hidden, has_noise, work)
    add_row(work.mass, 0, 1.0, work.total, 0)
    for q in range(offsets.shape[0] - 1):
        if np.isnan(rows[i, C + q]):
            for g in range(n):
                mass = work.mass[0, g]
                for level in range(offsets[q], offsets[q + 1] if mass > 0.0 else 0):
                    counts[place + g, level] += mass * math.exp(tables[members[place + g], level])
    fill_row(work.mass, 0, 0.0, work.mass, 0)
    for a in range(n_seen):
        fill_row(work.means, a, 0.0, work.means, a)
        for b in range(work.begin[a], a + 1):
            fill_row(work.products, a * C + b, 0.0, work.products, a * C + b)


@part()
def _complete(layout, n_hidden, has_noise, work: Workspace) -> None:
    """Add what is expected of hidden coordinates, and how they vary about that.

    `means` are those of m - x, so what they say of hidden coordinates is subtracted.
    """
    first, _, starts, _ = layout
    C = first.shape[0]
    seen, hidden, factor = work.seen, work.hidden, work.factor
    solved, gains, cross = work.solved, work.gains, work.cross
    for h in range(n_hidden):
        m, low, high = hidden[h], work.low[h], work.high[h]
        # solved = F S, gains = F' solved = T^-1 S.
        for a in range(low, high):
            fill_row(solved, h * C + a, 0.0, solved, h * C + a)
            for b in range(low, a + 1):
                source = seen[b] * C + m
                add_products(factor, a * C + b, 1, work.covariance, source, 1, 1, solved, h * C + a)
        for a in range(low, high):
            n, here = high - a, h * C + a
            fill_row(gains, here, 0.0, gains, here)
            add_products(factor, a * C + a, C, solved, here, 1, n, gains, here)
        subtract_products(gains, h * C + low, 1, work.means, low, 1, high - low, work.sums, m)
    for h in range(n_hidden):
        m, low, high = hidden[h], work.low[h], work.high[h]
        for a in range(low, high):
            # Sums of products of this hidden coordinate and a seen one.
            fill_row(cross, a, 0.0, cross, a)
            n, below = a + 1 - low, (a + 1) * C + a
            add_products(gains, h * C + low, 1, work.products, a * C + low, 1, n, cross, a)
            n = high - a - 1
            add_products(gains, h * C + a + 1, 1, work.products, below, C, n, cross, a)
            i, j = max(seen[a], m), min(seen[a], m)
            if not has_noise and first[i] <= j:
                add_row(cross, a, 1.0, work.sums_of_products, starts[i] + j - first[i])
        for e in range(h + 1):
            other = hidden[e]
            if other < first[m]:
                continue
            # The covariance that is left, and that of what is expected.
            p, n = starts[m] + other - first[m], high - low
            one, two = h * C + low, e * C + low
            load_row(work.covariance, m * C + other, 0.0, work.squares, 0)
            subtract_products(solved, one, 1, solved, two, 1, n, work.squares, 0)
            add_products(cross, low, 1, gains, two, 1, n, work.sums_of_products, p)
            add_products(work.mass, 0, 1, work.squares, 0, 1, 1, work.sums_of_products, p)


@part()
def finish(layout, place, n, sums, work: Workspace) -> None:
    """Turn sums about locations into moments about means."""
    first, _, starts, _ = layout
    mass, squares, mean, scatter, _ = sums
    for g in range(n):
        u, total = place + g, work.total[0, g]
        if not total > NO_MASS:
            continue
        mass[u], squares[u] = total, work.total_squares[0, g]
        for i in range(first.shape[0]):
            shift = work.sums[i, g] / total
            mean[u, i] = work.location[i, g] + shift
            for j in range(first[i], i + 1):
                p = starts[i] + j - first[i]
                scatter[u, p] = work.sums_of_products[p, g] - shift * work.sums[j, g]

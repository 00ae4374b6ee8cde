"""Rows seen in part, compiled: the arithmetic of partial_reference.py, many components at a time.

Rows come sorted by what was seen of them. Those with the same cells missing share the factors of
their components, so a group of them is worked on together. The innermost loops run over the
components of a block, one per lane of the vector units, which keeps these busy however few rows a
group has. Everything is float64 about each component's own location, so that nothing cancels.
"""

# Numba infers types in the kernels.
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
from __future__ import annotations

import math

import numpy as np

from pickmix.compiled import part
from pickmix.families.base import NO_MASS
from pickmix.sweep.lane_products import (
    add_moments,
    add_products,
    add_row,
    add_weighted,
    fill_row,
    invert_root,
    load_row,
    multiply_lower,
    multiply_upper,
    reduce_row,
    scale_row,
    subtract_products,
)
from pickmix.sweep.partial_workspace import Workspace

_FAST = {"reassoc", "contract", "nsz"}
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
# Factors of normalisers that are multiplied before a logarithm is taken.
_FACTORS_PER_LOG = 4
# Values so much below the largest have no weight, and what exponents are divided by.
_LEAST_EXPONENT = -20.0
_SHRINK = 1.0 / 1024.0


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
            left, right = a * C + begin, b * C + begin
            scale = b * C + b if b < a else -1
            reduce_row(
                work.covariance,
                i * C + j,
                noise,
                root,
                left,
                root,
                right,
                1,
                b - begin,
                factor,
                scale,
                root,
                here,
            )
        invert_root(root, a * C + a, 1.0, factor, a * C + a)
        # Row a of the inverse: -F[a, a] sum over m of root[a, m] F[m, b].
        for b in range(begin, a):
            here = a * C + b
            reduce_row(
                work.nothing,
                0,
                0.0,
                root,
                here,
                factor,
                b * C + b,
                C,
                a - b,
                factor,
                a * C + a,
                factor,
                here,
            )
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
    layout, tables, rows, i, members, place, n, n_seen, n_hidden, counts, work: Workspace
) -> None:
    """Complete the sums of a group of rows like row i, and add them to those of the block."""
    first, _, starts, offsets = layout
    C = first.shape[0]
    # What was seen without noise is known.
    for a in range(n_seen):
        c = work.seen[a]
        add_row(work.means, a, -1.0, work.sums, c)
        for b in range(work.begin[a], a + 1):
            p = starts[c] + work.seen[b] - first[c]
            add_row(work.products, a * C + b, 1.0, work.sums_of_products, p)
    if n_hidden:
        _complete(layout, n_hidden, work)
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
def _complete(layout, n_hidden, work: Workspace) -> None:
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
        multiply_lower(factor, C, low, high, work.covariance, m * C, seen, solved, h * C)
        multiply_upper(factor, C, low, high, solved, h * C, gains)
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
            add_row(cross, a, 1.0, work.sums_of_products, starts[i] + j - first[i])
        for e in range(h + 1):
            other = hidden[e]
            if other < first[m]:
                continue
            # The covariance that is left, and that of what is expected.
            p, n = starts[m] + other - first[m], high - low
            one, two = h * C + low, e * C + low
            add_products(
                work.mass, 0, 1, work.covariance, m * C + other, 1, 1, work.sums_of_products, p
            )
            add_weighted(work.mass, -1.0, solved, one, solved, two, n, work.sums_of_products, p)
            add_products(cross, low, 1, gains, two, 1, n, work.sums_of_products, p)


@part()
def add_noisy_row(n_seen, n_hidden, scale, work: Workspace) -> None:
    """Complete a row with noise, and add it to the sums of the block; weights are in `values`.

    Nothing is known of it but distributions, so all coordinates are completed.
    """
    C, seen, covariance, solved = work.first.shape[0], work.seen, work.covariance, work.solved
    for a in range(n_seen):
        # white = F away, and then T^-1 away = F' white, group by group.
        if work.begin[a] == a:
            low, high = a, a + 1
            while high < n_seen and work.begin[high] == low:
                high += 1
            multiply_lower(work.factor, C, low, high, work.away, 0, work.numbers, work.gains, 0)
            multiply_upper(work.factor, C, low, high, work.gains, 0, work.cross)
    for h in range(n_hidden):
        m, low, high = work.hidden[h], work.low[h], work.high[h]
        multiply_lower(work.factor, C, low, high, covariance, m * C, seen, solved, m * C)
        fill_row(work.shift, m, 0.0, work.shift, m)
        for b in range(low, high):
            add_products(covariance, m * C + seen[b], 1, work.cross, b, 1, 1, work.shift, m)
    add_moments(
        work.values,
        scale,
        work.shift,
        C,
        work.first,
        C,
        work.mass,
        work.total_squares,
        work.means,
        work.products,
    )
    for h in range(n_hidden):
        m, low, n = work.hidden[h], work.low[h], work.high[h] - work.low[h]
        for other in range(work.first[m], m + 1):
            one, two = m * C + low, other * C + low
            add_weighted(
                work.values, -1.0, solved, one, solved, two, n, work.products, m * C + other
            )


@part()
def add_noisy_rows(layout, work: Workspace) -> None:
    """Add the sums of all rows with noise to those of the block.

    `means` are those of m - v.
    """
    first, _, starts, _ = layout
    C = first.shape[0]
    for c in range(C):
        add_row(work.means, c, -1.0, work.sums, c)
        fill_row(work.means, c, 0.0, work.means, c)
        for d in range(work.first[c], c + 1):
            here = c * C + d
            if d >= first[c]:
                p = starts[c] + d - first[c]
                add_row(work.products, here, 1.0, work.sums_of_products, p)
                add_products(work.mass, 0, 1, work.covariance, here, 1, 1, work.sums_of_products, p)
            fill_row(work.products, here, 0.0, work.products, here)
    add_row(work.mass, 0, 1.0, work.total, 0)
    fill_row(work.mass, 0, 0.0, work.mass, 0)


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

"""Partial rows, compiled: the arithmetic of partial_reference.py, many components at a time.

Rows are sorted by their missing cells. Rows of one pattern share the factors of their components,
so they are worked on as a group. The innermost loops run over the components of a block, one per
lane, which fills the vector units however few rows a group has. All is float64 about each
component's location, so that nothing cancels.
"""

# Numba infers types in the kernels.
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
from __future__ import annotations

import math

import numpy as np

from pickmix.compiled import part
from pickmix.families.base import NO_MASS
from pickmix.sweep.lanes import (
    add_moments,
    add_products,
    add_row,
    fill_row,
    invert_root,
    multiply_lower,
    multiply_upper,
    reduce_row,
    subtract_weighted,
)
from pickmix.sweep.partial_workspace import HALF_LOG_2PI, Workspace

_FAST = {"reassoc", "contract", "nsz"}
_FACTORS_PER_LOG = 2  # Factors of normalisers that are multiplied before a logarithm is taken.
# Values so much below the largest have no weight, and what exponents are divided by.
_LEAST_EXPONENT = -20.0
_SHRINK = 1.0 / 1024.0


@part()
def _copy(source, number, target):
    for g in range(target.shape[1]):
        target[0, g] = source[0, g] + number


@part()
def _add_logarithms(factors, normaliser):
    for g in range(normaliser.shape[1]):
        normaliser[0, g] += math.log(factors[0, g])


@part()
def _invert(n, places, begin, source, noise, root, factor, nothing, diagonal, normaliser) -> None:
    """Cholesky factors of parts of matrices, their inverses and summed logarithms.

    Row a C + b of `root` and `factor` is about the coordinates places[a] and places[b] of `source`.
    """
    C, n_factors = places.shape[0], 0
    fill_row(diagonal, 0, 1.0)
    for a in range(n):
        i, low = places[a], begin[a]
        if low > a:
            continue
        for b in range(low, a + 1):
            reduce_row(
                source,
                i * C + places[b],
                noise[i, places[b]],
                root,
                a * C + low,
                root,
                b * C + low,
                1,
                b - low,
                factor,
                b * C + b if b < a else -1,
                root,
                a * C + b,
            )
        invert_root(root, a * C + a, factor, a * C + a, diagonal)
        # Row a of the inverse: -F[a, a] sum over m of root[a, m] F[m, b].
        for b in range(low, a):
            here = a * C + b
            reduce_row(
                nothing,
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
        n_factors += 1
        if n_factors % _FACTORS_PER_LOG == 0:
            _add_logarithms(diagonal, normaliser)
            fill_row(diagonal, 0, 1.0)
    if n_factors % _FACTORS_PER_LOG:
        _add_logarithms(diagonal, normaliser)


@part()
def factorise(n_seen, work: Workspace) -> None:
    """The inverse Cholesky factors of T, and the normalisers, of what was seen."""
    _copy(work.log_weight, 0.0, work.normaliser)
    constant = 0.0
    for a in range(n_seen):
        if work.begin[a] > a:
            add_row(work.constants, work.seen[a], 1.0, work.normaliser, 0)
        else:
            constant -= HALF_LOG_2PI
    _copy(work.normaliser, constant, work.normaliser)
    _invert(
        n_seen,
        work.seen,
        work.begin,
        work.covariance,
        work.noise,
        work.root,
        work.factor,
        work.nothing,
        work.squares,
        work.normaliser,
    )


@part()
def factorise_hidden(n_seen, n_hidden, work: Workspace) -> None:
    """The inverse Cholesky factors of the precision of hidden coordinates, and the normalisers.

    With x = (o, h), log p(o) = log p(o, h) at the best h, and a constant: h has the precision P_hh
    given o. Where little is hidden, that is much less work than T.
    """
    _copy(work.plain_normaliser, n_hidden * HALF_LOG_2PI, work.normaliser)
    for a in range(n_seen):
        if work.begin[a] > a:
            add_row(work.constants, work.seen[a], 1.0, work.normaliser, 0)
    for h in range(n_hidden):
        fill_row(work.away, work.hidden[h], 0.0)
    for c in range(work.first.shape[0]):
        if work.first[c] > c:
            # A count that was not seen is what is expected.
            fill_row(work.away, c, 0.0)
    _invert(
        n_hidden,
        work.hidden,
        work.hidden_begin,
        work.precision,
        work.noise,
        work.root,
        work.factor,
        work.nothing,
        work.squares,
        work.normaliser,
    )


@part()
def find_hidden(n_hidden, beta, work: Workspace) -> None:
    """Complete hidden coordinates in `cross`; reduce squared distances. `away` is 0 for them."""
    C = work.first.shape[0]
    for h in range(n_hidden):
        # P_ho away, and then P_hh^-1 of that.
        m = work.hidden[h]
        low, high = work.first[m], m + 1
        while high < C and work.group[high] == work.group[m]:
            high += 1
        fill_row(work.gains, h, 0.0)
        add_products(
            work.precision, m * C + low, 1, work.away, low, 1, high - low, 1.0, work.gains, h
        )
    for h in range(n_hidden):
        if work.hidden_begin[h] == h:
            end = h + 1
            while end < n_hidden and work.hidden_begin[end] == h:
                end += 1
            multiply_lower(work.factor, C, h, end, work.gains, 0, work.numbers, work.solved, 0)
            multiply_upper(work.factor, C, h, end, work.solved, 0, work.cross)
    fill_row(work.gains, 0, 0.0)
    add_products(work.solved, 0, 1, work.solved, 0, 1, n_hidden, 1.0, work.gains, 0)
    add_row(work.gains, 0, -1.0, work.squares, 0)
    add_row(work.gains, 0, 0.5 * beta, work.values, 0)


# Tuples of many arrays are costly to hand over, so functions for every row take single arrays.


@part()
def add_other_columns(
    rows,
    i,
    beta,
    members,
    place,
    n,
    n_seen,
    first,
    seen,
    linear,
    targets,
    away,
    offsets,
    tables,
    values,
) -> None:
    """Add the terms of counts and levels to the values of row i."""
    C = first.shape[0]
    for a in range(n_seen):
        c = seen[a]
        if first[c] > c:
            for g in range(n):
                values[0, g] -= beta * linear[c, g] * away[targets[a], g]
    for q in range(offsets.shape[0] - 1):
        if not np.isnan(rows[i, C + q]):
            level = offsets[q] + int(rows[i, C + q])
            for g in range(n):
                values[0, g] += beta * tables[members[place + g], level]


@part(fastmath=_FAST)
def exponentiate(values):
    """Replace values by exp(value - largest); return the largest and the sum.

    exp(y) = exp(y / 1024)^1024 by a Taylor polynomial, which vectorises; relative error about
    1e-13.
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
def add_completed_row(n_hidden, scale, work: Workspace) -> None:
    """Add a row whose hidden coordinates `find_hidden` has found to the sums of the block."""
    C = work.first.shape[0]
    for h in range(n_hidden):
        add_row(work.cross, h, -1.0, work.away, work.hidden[h])
    add_moments(
        work.values,
        scale,
        work.away,
        C,
        work.first,
        C,
        work.mass,
        work.total_squares,
        work.full_means,
        work.full_products,
    )
    for h in range(n_hidden):
        fill_row(work.away, work.hidden[h], 0.0)


@part()
def add_levels(rows, i, C, n, place, offsets, weights, counts) -> None:
    for q in range(offsets.shape[0] - 1):
        if not np.isnan(rows[i, C + q]):
            level = offsets[q] + int(rows[i, C + q])
            for g in range(n):
                counts[place + g, level] += weights[0, g]


@part()
def add_group(layout, n_seen, n_hidden, work: Workspace) -> None:
    """Complete the sums of a group of rows, and add them to those of the block."""
    first, _, starts, _ = layout
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
    for a in range(n_seen):
        fill_row(work.means, a, 0.0)
        for b in range(work.begin[a], a + 1):
            fill_row(work.products, a * C + b, 0.0)


@part()
def add_hidden(n_hidden, work: Workspace) -> None:
    """Add how hidden coordinates of a group vary about what was expected: P_hh^-1 = F' F."""
    C = work.first.shape[0]
    for h in range(n_hidden):
        m = work.hidden[h]
        for e in range(work.hidden_begin[h], h + 1):
            fill_row(work.gains, 0, 0.0)
            for k in range(h, n_hidden):
                if work.hidden_begin[k] == work.hidden_begin[h]:
                    one, two = k * C + h, k * C + e
                    add_products(work.factor, one, 1, work.factor, two, 1, 1, 1.0, work.gains, 0)
            here = m * C + work.hidden[e]
            add_products(work.mass, 0, 1, work.gains, 0, 1, 1, 1.0, work.full_products, here)


@part()
def end_group(layout, tables, rows, i, members, place, n, counts, work: Workspace) -> None:
    """Count a group of rows like row i: its mass, and levels that are missing in it."""
    offsets = layout[3]
    C = work.first.shape[0]
    add_row(work.mass, 0, 1.0, work.total, 0)
    for q in range(offsets.shape[0] - 1):
        if np.isnan(rows[i, C + q]):
            for g in range(n):
                mass = work.mass[0, g]
                for level in range(offsets[q], offsets[q + 1] if mass > 0.0 else 0):
                    counts[place + g, level] += mass * math.exp(tables[members[place + g], level])
    fill_row(work.mass, 0, 0.0)


@part()
def _complete(layout, n_hidden, work: Workspace) -> None:
    """Add mean and variance of hidden coordinates. `means` are of m - x, hence subtracted."""
    first, _, starts, _ = layout
    C = first.shape[0]
    seen, hidden, factor = work.seen, work.hidden, work.factor
    solved, gains, cross = work.solved, work.gains, work.cross
    for h in range(n_hidden):
        m, low, high = hidden[h], work.low[h], work.high[h]
        # solved = F S, gains = F' solved = T^-1 S.
        multiply_lower(factor, C, low, high, work.covariance, m * C, seen, solved, h * C)
        multiply_upper(factor, C, low, high, solved, h * C, gains)
        add_products(gains, h * C + low, 1, work.means, low, 1, high - low, -1.0, work.sums, m)
    for h in range(n_hidden):
        m, low, high = hidden[h], work.low[h], work.high[h]
        for a in range(low, high):
            # Sums of products of this hidden coordinate and a seen one.
            fill_row(cross, a, 0.0)
            n, below = a + 1 - low, (a + 1) * C + a
            add_products(gains, h * C + low, 1, work.products, a * C + low, 1, n, 1.0, cross, a)
            n = high - a - 1
            add_products(gains, h * C + a + 1, 1, work.products, below, C, n, 1.0, cross, a)
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
                work.mass, 0, 1, work.covariance, m * C + other, 1, 1, 1.0, work.sums_of_products, p
            )
            subtract_weighted(work.mass, solved, one, solved, two, n, work.sums_of_products, p)
            add_products(cross, low, 1, gains, two, 1, n, 1.0, work.sums_of_products, p)


@part()
def add_noisy_row(n_seen, n_hidden, scale, work: Workspace) -> None:
    """Complete all coordinates of a noisy row, and add it; weights are in `values`."""
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
        fill_row(work.shift, m, 0.0)
        for b in range(low, high):
            add_products(covariance, m * C + seen[b], 1, work.cross, b, 1, 1, 1.0, work.shift, m)
    add_moments(
        work.values,
        scale,
        work.shift,
        C,
        work.first,
        C,
        work.mass,
        work.total_squares,
        work.full_means,
        work.full_products,
    )
    for h in range(n_hidden):
        m, low, n = work.hidden[h], work.low[h], work.high[h] - work.low[h]
        for other in range(work.first[m], m + 1):
            one, two = m * C + low, other * C + low
            subtract_weighted(
                work.values, solved, one, solved, two, n, work.full_products, m * C + other
            )


@part()
def add_full_rows(layout, work: Workspace) -> None:
    """Add the sums of completed rows, whose means are those of m - v, to those of the block."""
    first, _, starts, _ = layout
    C = first.shape[0]
    for c in range(C):
        add_row(work.full_means, c, -1.0, work.sums, c)
        fill_row(work.full_means, c, 0.0)
        for d in range(work.first[c], c + 1):
            here = c * C + d
            if d >= first[c]:
                p = starts[c] + d - first[c]
                add_row(work.full_products, here, 1.0, work.sums_of_products, p)
            fill_row(work.full_products, here, 0.0)


@part()
def add_noisy_rows(work: Workspace) -> None:
    """Add the sums of all rows with noise to those of the block."""
    C = work.first.shape[0]
    for c in range(C):
        for d in range(work.first[c], c + 1):
            here = c * C + d
            add_products(
                work.mass, 0, 1, work.covariance, here, 1, 1, 1.0, work.full_products, here
            )
    add_row(work.mass, 0, 1.0, work.total, 0)
    fill_row(work.mass, 0, 0.0)


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

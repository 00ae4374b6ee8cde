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
from pickmix.sweep.lane_products import (
    add_products,
    add_row,
    fill_row,
    invert_root,
    load_row,
    multiply_lower,
    multiply_upper,
    reduce_row,
    scale_row,
)
from pickmix.sweep.partial_workspace import HALF_LOG_2PI, Workspace

_FAST = {"reassoc", "contract", "nsz"}
# Factors of normalisers that are multiplied before a logarithm is taken.
_FACTORS_PER_LOG = 2
# Values so much below the largest have no weight, and what exponents are divided by.
_LEAST_EXPONENT = -20.0
_SHRINK = 1.0 / 1024.0


@part()
def _add_logarithms(factors, normaliser):
    for g in range(normaliser.shape[1]):
        normaliser[0, g] += math.log(factors[0, g])


@part()
def _invert(n, places, begin, source, noise, root, factor, nothing, diagonal, normaliser) -> None:
    """Cholesky factors of parts of matrices, and their inverses, whose logarithms are added.

    Row a C + b of `root` and `factor` is about the coordinates places[a] and places[b] of `source`.
    """
    C, n_factors = places.shape[0], 0
    fill_row(diagonal, 0, 1.0, diagonal, 0)
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
        invert_root(root, a * C + a, 1.0, factor, a * C + a)
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
        scale_row(factor, a * C + a, 1.0, diagonal, 0)
        n_factors += 1
        if n_factors % _FACTORS_PER_LOG == 0:
            _add_logarithms(diagonal, normaliser)
            fill_row(diagonal, 0, 1.0, diagonal, 0)
    if n_factors % _FACTORS_PER_LOG:
        _add_logarithms(diagonal, normaliser)


@part()
def factorise(n_seen, work: Workspace) -> None:
    """The inverse Cholesky factors of T, and the normalisers, of what was seen."""
    load_row(work.log_weight, 0, 0.0, work.normaliser, 0)
    constant = 0.0
    for a in range(n_seen):
        if work.begin[a] > a:
            add_row(work.constants, work.seen[a], 1.0, work.normaliser, 0)
        else:
            constant -= HALF_LOG_2PI
    load_row(work.normaliser, 0, constant, work.normaliser, 0)
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
    """The inverse Cholesky factors of the precision of what is hidden, and the normalisers.

    With x = (o, h), log p(o) = log p(o, h) at the best h, and a constant: what is hidden has the
    precision P_hh given the rest. Where little is hidden, that is much less work than T.
    """
    load_row(work.plain_normaliser, 0, n_hidden * HALF_LOG_2PI, work.normaliser, 0)
    for a in range(n_seen):
        if work.begin[a] > a:
            add_row(work.constants, work.seen[a], 1.0, work.normaliser, 0)
    for h in range(n_hidden):
        fill_row(work.away, work.hidden[h], 0.0, work.away, work.hidden[h])
    for c in range(work.first.shape[0]):
        if work.first[c] > c:
            # A count that was not seen is what is expected.
            fill_row(work.away, c, 0.0, work.away, c)
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
    """Take off squared distances what hidden coordinates explain, and find these in `cross`.

    `away` has zeros for them.
    """
    C = work.first.shape[0]
    for h in range(n_hidden):
        # P_ho away, and then P_hh^-1 of that.
        m = work.hidden[h]
        low, high = work.first[m], m + 1
        while high < C and work.group[high] == work.group[m]:
            high += 1
        fill_row(work.gains, h, 0.0, work.gains, h)
        add_products(work.precision, m * C + low, 1, work.away, low, 1, high - low, work.gains, h)
    for h in range(n_hidden):
        if work.hidden_begin[h] == h:
            end = h + 1
            while end < n_hidden and work.hidden_begin[end] == h:
                end += 1
            multiply_lower(work.factor, C, h, end, work.gains, 0, work.numbers, work.solved, 0)
            multiply_upper(work.factor, C, h, end, work.solved, 0, work.cross)
    fill_row(work.gains, 0, 0.0, work.gains, 0)
    add_products(work.solved, 0, 1, work.solved, 0, 1, n_hidden, work.gains, 0)
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
    """Add what counts and levels contribute to the values of row i."""
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

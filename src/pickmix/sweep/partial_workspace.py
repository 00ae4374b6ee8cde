"""Workspace of a thread for a block of components and a group of partial rows.

Seen coordinates of a group are numbered 0, 1, ... as "places"; those to complete are in `hidden`.
"""

# Numba infers types in the kernels.
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pickmix.compiled import part
from pickmix.families.layout import LOG_FLOOR, LOG_SCALE, Layout, Model
from pickmix.sweep.lanes import LANES

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
NOTHING = -1e300  # What a component that explains nothing is given.


class Workspace(NamedTuple):
    """Arrays for blocks of at most n components, in W lanes."""

    #: (C,) The first coordinate that coordinate i depends on, i + 1 for counts; coordinates of
    #: one group may depend on each other.
    first: np.ndarray
    group: np.ndarray
    #: (C, W) m, l, and l m - m for counts.
    location: np.ndarray
    linear: np.ndarray
    constants: np.ndarray
    covariance: np.ndarray  # (C C, W) S, row by row.
    #: (C C, W) The factor F of complete rows, and S^-1 = F' F.
    plain: np.ndarray
    precision: np.ndarray
    plain_normaliser: np.ndarray  # (1, W) Log-weights with the normaliser of complete rows.
    #: (1, W) Log-weights, and these with the normaliser of what was seen.
    log_weight: np.ndarray
    normaliser: np.ndarray
    #: (C,) The coordinate at each place, and the first place that it depends on; for counts, the
    #: next.
    seen: np.ndarray
    begin: np.ndarray
    #: (C,) Coordinates to complete, the places low..high that each depends on, and the first of
    #: the hidden ones that does so with it.
    hidden: np.ndarray
    low: np.ndarray
    high: np.ndarray
    hidden_begin: np.ndarray
    noise: np.ndarray  # (C, C)
    #: (C C, W) The Cholesky factor of T, and its inverse, by places.
    root: np.ndarray
    factor: np.ndarray
    away: np.ndarray  # (C, W) x - m, by places.
    #: (1, W)
    squares: np.ndarray
    values: np.ndarray
    means: np.ndarray  # (C, W)
    products: np.ndarray  # (C C, W) Weighted sums over the rows of a group, by places.
    mass: np.ndarray  # (1, W)
    full_means: np.ndarray  # (C, W)
    full_products: np.ndarray  # (C C, W) Sums over completed rows of a block, by coordinates.
    #: (C C, W) root^-1 S and T^-1 S, row h C + a for hidden coordinate h and place a.
    solved: np.ndarray
    gains: np.ndarray
    #: (C, W)
    cross: np.ndarray
    shift: np.ndarray
    nothing: np.ndarray  # (1, W) Zeros.
    numbers: np.ndarray  # (C,) 0, 1, ...
    #: (1, W)
    total: np.ndarray
    total_squares: np.ndarray
    sums: np.ndarray  # (C, W)
    sums_of_products: np.ndarray  # (P, W) Sums over the rows of a block, completed.
    scratch: np.ndarray  # (C, C)


def make_workspace(layout: Layout, n_noise: int, n: int) -> Workspace:
    """Arrays for blocks of at most n components and rows with `n_noise` columns of noise."""
    C = layout.n_coordinates
    W = -(-max(n, 1) // LANES) * LANES
    numbers = np.arange(C)
    first = layout.first.copy()
    if n_noise > C:
        # Noise of all columns together makes them depend on each other.
        first[first <= numbers] = 0
    arrays = {name: np.zeros((rows, W)) for name, rows in _lanes(layout).items()}
    integers = {name: np.zeros(C, dtype=np.int64) for name in _INTEGERS}
    return Workspace(
        first=first,
        group=np.where(first <= numbers, first, -1 - numbers),
        numbers=numbers,
        noise=np.zeros((C, C)),
        scratch=np.zeros((C, C)),
        **integers,
        **arrays,
    )


_INTEGERS = ("seen", "begin", "hidden", "low", "high", "hidden_begin")


def _lanes(layout: Layout) -> dict[str, int]:
    """Rows of each array that holds a number for every component of a block."""
    C = layout.n_coordinates
    vectors = "location linear constants away means full_means cross shift sums"
    matrices = "covariance plain precision root factor products full_products solved gains"
    singles = "plain_normaliser log_weight normaliser squares values mass nothing total"
    sizes = dict.fromkeys(vectors.split(), C) | dict.fromkeys(matrices.split(), C * C)
    sizes |= dict.fromkeys((singles + " total_squares").split(), 1)
    return sizes | {"sums_of_products": layout.n_products}


@part()
def prepare(layout: Layout, model: Model, members, place, n, work: Workspace) -> None:
    """Load the n components members[place : place + n], and clear their sums."""
    first, last, starts, _ = layout
    C, W = first.shape[0], work.log_weight.shape[1]
    has_linear = model.linear.shape[0] > 0
    root = work.scratch
    work.total[:] = 0.0
    work.total_squares[:] = 0.0
    work.sums[:] = 0.0
    work.sums_of_products[:] = 0.0
    for g in range(n, W):
        # Lanes beyond the last component are unit Gaussians that weigh nothing.
        work.log_weight[0, g] = NOTHING
        work.plain_normaliser[0, g] = NOTHING
        for c in range(C):
            work.location[c, g] = 0.0
            for d in range(C):
                unit = 1.0 if c == d else 0.0
                work.covariance[c * C + d, g] = unit
                work.plain[c * C + d, g] = unit
                work.precision[c * C + d, g] = unit
    for g in range(n):
        k = members[place + g]
        f = 0 if model.factor.shape[0] == 1 else k
        weight = max(model.log_mass[k] + model.decay[LOG_SCALE], model.decay[LOG_FLOOR])
        work.log_weight[0, g] = weight
        normaliser = weight
        for c in range(C):
            work.location[c, g] = model.location[k, c]
            if has_linear and first[c] > c:
                work.linear[c, g] = model.linear[k, c]
                work.constants[c, g] = model.constants[k, c]
        # The inverse of the factor is the root of the covariance.
        for i in range(C):
            if first[i] > i:
                continue
            base = starts[i] - first[i]
            normaliser += math.log(model.factor[f, base + i]) - HALF_LOG_2PI
            for j in range(first[i], i + 1):
                work.plain[i * C + j, g] = model.factor[f, base + j]
                total = 0.0
                for m in range(i, last[i] + 1):
                    here = starts[m] - first[m]
                    total += model.factor[f, here + i] * model.factor[f, here + j]
                work.precision[i * C + j, g] = total
                work.precision[j * C + i, g] = total
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
        work.plain_normaliser[0, g] = normaliser


@part()
def look(rows, i, n_columns, work: Workspace):
    """Find seen cells and noise of row i; return the numbers of places and of hidden
    coordinates."""
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
        begin = h
        while begin > 0 and work.hidden[begin - 1] >= work.first[work.hidden[h]]:
            begin -= 1
        work.hidden_begin[h] = begin
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

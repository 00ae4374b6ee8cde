"""Partial rows, compiled: what numpy_kernels/partial.py computes, a block of components at a time.

All numbers of a block are rows of one array (n, W), the workspace, with a lane for each component:
innermost loops run over lanes and vectorise, and one array is quick to compile. `At` says at which
row what begins; matrices are row by row. All is float64 about locations, so that nothing cancels.

A row is completed before it is evaluated. Without noise, hidden coordinates h have the precision
P_hh given those that were seen, o, and log p(o) = log p(o, h) at the best h, but for a constant.
Rows with the same cells missing share the factor of P_hh. With noise every coordinate is hidden,
and every row has a factor of its own: that of T, the covariance of what was seen.
"""

# Numba infers types in the kernels.
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pickmix.compiled import kernel, part
from pickmix.families.base import NO_MASS
from pickmix.families.layout import LOG_FLOOR, LOG_SCALE, Layout, Model
from pickmix.kernels.numba_kernels.choices import uniform

_LANES = 8
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
NOTHING = -1e300  # Log-joint of a component that explains nothing.
# Values so much below the largest have no weight, and what exponents are divided by.
_LEAST_EXPONENT = -20.0
_SHRINK = 1.0 / 1024.0
_CONTRACT = {"contract"}
_FAST = {"reassoc", "contract", "nsz"}


class At(NamedTuple):
    """The row of the workspace at which each quantity begins."""

    zero: int
    one: int
    log_weight: int
    normaliser: int  # Log-weights with the normaliser of complete rows.
    base: int  # Log-weights with the normaliser of what was seen.
    values: int
    squares: int
    mass: int  # Of rows with the same cells missing.
    total: int  # Of all rows of the block, as are the next three.
    total_squares: int
    means: int  # (C,)
    products: int  # (C, C)
    location: int  # (C,)
    factor: int  # (C, C) F.
    matrix: int  # (C, C) The precision F' F; the covariance if there is noise.
    root: int  # (C, C) Scratch.
    inverse: int  # (C, C) Inverse Cholesky factor of P_hh or T, by places in a list.
    away: int  # (C,) m - v, where v is the completed row.
    vector: int  # (C,) By places.
    white: int  # (C,) By places.


class Workspace(NamedTuple):
    """Memory of a thread."""

    lanes: np.ndarray  # (n, W)
    at: At
    #: (3, C) The coordinates on a list, the first place on it that each depends on, and the first
    #: coordinate that each coordinate depends on.
    lists: np.ndarray
    noise: np.ndarray  # (C, C)


def make_workspace(layout: Layout, n_noise: int, n: int) -> Workspace:
    """Arrays for blocks of at most n components and rows with `n_noise` columns of noise."""
    C = layout.n_coordinates
    vectors = {"means", "location", "away", "vector", "white"}
    matrices = {"products", "factor", "matrix", "root", "inverse"}
    sizes = [C if f in vectors else C * C if f in matrices else 1 for f in At._fields]
    lanes = np.zeros((sum(sizes), -(-max(n, 1) // _LANES) * _LANES))
    at = At(*np.cumsum([0, *sizes[:-1]]).tolist())
    lanes[at.one] = 1.0
    lists = np.zeros((3, C), dtype=np.int64)
    lists[2] = layout.first
    if n_noise > C:
        # Noise of all columns together makes them depend on each other.
        lists[2][layout.first <= np.arange(C)] = 0
    return Workspace(lanes, at, lists, np.zeros((C, C)))


@part(fastmath=_CONTRACT)
def _fill(work, row, n, number):
    for r in range(row, row + n):
        for g in range(work.shape[1]):
            work[r, g] = number


@part(fastmath=_CONTRACT)
def _dot(work, a, a_step, b, b_step, n, row):
    """work[row] = sum over k < n of work[a + k a_step] work[b + k b_step]."""
    for g in range(work.shape[1]):
        work[row, g] = 0.0
    for k in range(n):
        for g in range(work.shape[1]):
            work[row, g] += work[a + k * a_step, g] * work[b + k * b_step, g]


@part(fastmath=_CONTRACT)
def _reduce(work, base, number, a, b, b_step, n, scale, row):
    """work[row] = (work[base] + number - sum over k < n of work[a + k] work[b + k b_step]) scale.

    The scale is work[scale].
    """
    for g in range(work.shape[1]):
        work[row, g] = work[base, g] + number
    for k in range(n):
        for g in range(work.shape[1]):
            work[row, g] -= work[a + k, g] * work[b + k * b_step, g]
    for g in range(work.shape[1]):
        work[row, g] *= work[scale, g]


@part(fastmath=_CONTRACT)
def _add(work, source, number, row):
    for g in range(work.shape[1]):
        work[row, g] += number * work[source, g]


@part(fastmath=_CONTRACT)
def _load(layout, model, members, place, n, noisy, work, at):
    """Load the n components members[place : place + n], and clear the sums of the block."""
    first, last, starts, _ = layout
    C = first.shape[0]
    _fill(work, at.total, 2 + C + C * C, 0.0)
    # Lanes beyond the last component repeat it, and weigh nothing.
    for g in range(work.shape[1]):
        k = members[place + min(g, n - 1)]
        f = 0 if model.factor.shape[0] == 1 else k
        weight = NOTHING
        if g < n:
            weight = max(model.log_mass[k] + model.decay[LOG_SCALE], model.decay[LOG_FLOOR])
        work[at.log_weight, g] = weight
        for i in range(C):
            work[at.location + i, g] = model.location[k, i]
            for j in range(first[i], i + 1):
                work[at.factor + i * C + j, g] = model.factor[f, starts[i] + j - first[i]]
            if first[i] <= i:
                weight += math.log(work[at.factor + i * C + i, g]) - _HALF_LOG_2PI
        work[at.normaliser, g] = weight
    for i in range(C):
        row = i * C
        if noisy and first[i] <= i:
            # The inverse of the factor is the root of the covariance.
            for g in range(work.shape[1]):
                work[at.root + row + i, g] = 1.0 / work[at.factor + row + i, g]
            for j in range(first[i], i):
                a, b, here = at.factor + row + j, at.root + j * C + j, at.root + row + j
                _reduce(work, at.zero, 0.0, a, b, C, i - j, at.root + row + i, here)
        for j in range(first[i], i + 1):
            here, there = at.matrix + row + j, at.matrix + j * C + i
            if noisy:
                low = first[i]
                _dot(work, at.root + row + low, 1, at.root + j * C + low, 1, j + 1 - low, here)
            else:
                _dot(work, at.factor + row + i, C, at.factor + row + j, C, last[i] + 1 - i, here)
            if i > j:
                _fill(work, there, 1, 0.0)
                _add(work, here, 1.0, there)


@part(fastmath=_CONTRACT)
def _list(rows, i, first, noisy, lists):
    """List coordinates of row i that are hidden, or if there is noise seen; return how many."""
    n = 0
    for c in range(first.shape[0]):
        if first[c] <= c and np.isnan(rows[i, c]) != noisy:
            begin = n
            while begin > 0 and lists[0, begin - 1] >= lists[2, c]:
                begin -= 1
            lists[0, n] = c
            lists[1, n] = begin
            n += 1
    return n


@part(fastmath=_CONTRACT)
def _load_noise(rows, i, column, noise):
    C = noise.shape[0]
    diagonal = rows.shape[1] - column == C
    for c in range(C):
        for d in range(c if diagonal else 0, c + 1):
            noise[c, d] = rows[i, column]
            column += 1


@part(fastmath=_CONTRACT)
def _invert(n, noise, work, at, lists):
    """Inverse Cholesky factor of a part of the matrix and noise; adds its log-determinant."""
    C, places, begin = noise.shape[0], lists[0], lists[1]
    _fill(work, at.squares, 1, 1.0)
    for a in range(n):
        low, row, here = begin[a], a * C, at.inverse + a * C + a
        for b in range(low, a + 1):
            base, number = at.matrix + places[a] * C + places[b], noise[places[a], places[b]]
            one, two = at.root + row + low, at.root + b * C + low
            scale = at.inverse + b * C + b if b < a else at.one
            _reduce(work, base, number, one, two, 1, b - low, scale, at.root + row + b)
        for g in range(work.shape[1]):
            work[here, g] = 1.0 / math.sqrt(work[at.root + row + a, g])
            work[at.squares, g] *= work[here, g]
        # One logarithm for two factors, whose product does not overflow.
        if a % 2 == 1 or a == n - 1:
            for g in range(work.shape[1]):
                work[at.base, g] += math.log(work[at.squares, g])
                work[at.squares, g] = 1.0
        for b in range(low, a):
            one, two = at.root + row + b, at.inverse + b * C + b
            _reduce(work, at.zero, 0.0, one, two, C, a - b, here, at.inverse + row + b)


@part(fastmath=_CONTRACT)
def _condition(layout, model, members, place, rows, i, noisy, work, at, lists, noise):
    """Factorise for rows like row i, and find their normalisers; return the length of the list."""
    first = layout[0]
    n = _list(rows, i, first, noisy, lists)
    if noisy:
        _load_noise(rows, i, first.shape[0] + layout[3].shape[0] - 1, noise)
    for g in range(work.shape[1]):
        base = work[at.log_weight if noisy else at.normaliser, g]
        work[at.base, g] = base + (-n if noisy else n) * _HALF_LOG_2PI
    if model.linear.shape[0]:
        for c in range(first.shape[0]):
            if first[c] > c and not np.isnan(rows[i, c]):
                for g in range(work.shape[1]):
                    k = members[min(place + g, members.shape[0] - 1)]
                    work[at.base, g] += model.constants[k, c]
    _invert(n, noise, work, at, lists)
    return n


@part(fastmath=_CONTRACT)
def _whiten(work, matrix, begin, n, vector, white):
    """white = (a lower triangle) vector, for n rows of the triangle that begin at `begin`."""
    C = begin.shape[0]
    for a in range(n):
        low = begin[a]
        _dot(work, matrix + a * C + low, 1, vector + low, 1, a + 1 - low, white + a)


@part(fastmath=_CONTRACT)
def _solve(work, at, begin, n):
    """vector = M^-1 vector where M^-1 = (inverse)' inverse; leaves inverse vector in white."""
    C = begin.shape[0]
    _whiten(work, at.inverse, begin, n, at.vector, at.white)
    for a in range(n):
        end = a + 1
        while end < n and begin[end] <= a:
            end += 1
        _dot(work, at.inverse + a * C + a, C, at.white + a, 1, end - a, at.vector + a)


@part(fastmath=_CONTRACT)
def _complete(first, last, rows, i, n, noisy, work, at, lists):
    """Complete row i in `away`, and find its squared distances from the components."""
    C, places, begin = first.shape[0], lists[0], lists[1]
    for c in range(C):
        # A hidden coordinate, and a count that was not seen, begins as what is expected.
        x, seen = rows[i, c], not np.isnan(rows[i, c])
        for g in range(work.shape[1]):
            work[at.away + c, g] = work[at.location + c, g] - x if seen else 0.0
    for a in range(n):
        c = places[a]
        if noisy:
            _fill(work, at.vector + a, 1, 0.0)
            _add(work, at.away + c, 1.0, at.vector + a)
        else:
            low = first[c]
            row = at.matrix + c * C + low
            _dot(work, row, 1, at.away + low, 1, last[c] + 1 - low, at.vector + a)
    _solve(work, at, begin, n)
    if noisy:
        _dot(work, at.white, 1, at.white, 1, n, at.squares)
        for c in range(C):
            if first[c] <= c:
                _fill(work, at.away + c, 1, 0.0)
                for a in range(n):
                    _add_product(work, at.matrix + c * C + places[a], at.vector + a, at.away + c)
        return
    for a in range(n):
        _add(work, at.vector + a, -1.0, at.away + places[a])
    _whiten(work, at.factor, first, C, at.away, at.white)
    _dot(work, at.white, 1, at.white, 1, C, at.squares)


@part(fastmath=_CONTRACT)
def _add_product(work, a, b, row):
    for g in range(work.shape[1]):
        work[row, g] += work[a, g] * work[b, g]


@part(fastmath=_CONTRACT)
def _evaluate(layout, model, members, place, n, rows, i, beta, work, at):
    """Log-joints of row i, times beta, from its squared distances."""
    first, _, _, offsets = layout
    C = first.shape[0]
    for g in range(work.shape[1]):
        value = beta * (work[at.base, g] - 0.5 * work[at.squares, g])
        work[at.values, g] = value if value > NOTHING else NOTHING
    for c in range(C if model.linear.shape[0] else 0):
        if first[c] > c:
            for g in range(n):
                slope = model.linear[members[place + g], c]
                work[at.values, g] -= beta * slope * work[at.away + c, g]
    for q in range(offsets.shape[0] - 1):
        if not np.isnan(rows[i, C + q]):
            level = offsets[q] + int(rows[i, C + q])
            for g in range(n):
                work[at.values, g] += beta * model.tables[members[place + g], level]


@part(fastmath=_FAST)
def _exponentiate(work, row):
    """Replace values by exp(value - largest); return the largest and the sum.

    exp(y) = exp(y / 1024)^1024 by a Taylor polynomial, which vectorises; relative error about
    1e-13.
    """
    largest = work[row, 0]
    for g in range(1, work.shape[1]):
        largest = max(largest, work[row, g])
    total = 0.0
    for g in range(work.shape[1]):
        away = work[row, g] - largest
        y = max(away, _LEAST_EXPONENT) * _SHRINK
        e = y * (1.0 / 6.0 + y * (1.0 / 24.0 + y * (1.0 / 120.0 + y * (1.0 / 720.0))))
        e = 1.0 + y * (1.0 + y * (0.5 + e))
        for _ in range(10):
            e *= e
        e = e if away > _LEAST_EXPONENT else 0.0
        work[row, g] = e
        total += e
    return largest, total


@part(fastmath=_CONTRACT)
def _choose(work, row, n, u, greedy):
    """The first component at which the running sum passes u; or the best one."""
    best = 0
    if greedy:
        for g in range(1, n):
            best = g if work[row, g] > work[row, best] else best
        return best
    running = work[row, 0]
    while best < n - 1 and running <= u:
        best += 1
        running += work[row, best]
    return best


@part(fastmath=_CONTRACT)
def _add_row(first, scale, work, at):
    """Scale the weights, and add the completed row to the moments of the block."""
    C = first.shape[0]
    for g in range(work.shape[1]):
        work[at.values, g] *= scale
        weight = work[at.values, g]
        work[at.mass, g] += weight
        work[at.total_squares, g] += weight * weight
    for c in range(C):
        for g in range(work.shape[1]):
            work[at.white, g] = work[at.values, g] * work[at.away + c, g]
            work[at.means + c, g] += work[at.white, g]
        for d in range(first[c], c + 1):
            _add_product(work, at.white, at.away + d, at.products + c * C + d)


@part(fastmath=_CONTRACT)
def _add_rest(first, n, noisy, work, at, lists):
    """Add how hidden coordinates vary about what is expected of them, times the mass."""
    C, places, begin = first.shape[0], lists[0], lists[1]
    if not noisy:
        for a in range(n):
            end = a + 1
            while end < n and begin[end] <= a:
                end += 1
            for b in range(begin[a], a + 1):
                row = at.inverse + a * C
                _dot(work, row + a, C, row + b, C, end - a, at.white)
                here = at.products + places[a] * C + places[b]
                _add_product(work, at.mass, at.white, here)
        return
    # S - Q' Q with Q = (inverse of the root of T) S, row by row.
    for a in range(n):
        for c in range(C):
            row = at.root + a * C + c
            _fill(work, row, 1, 0.0)
            for b in range(begin[a], a + 1):
                _add_product(work, at.inverse + a * C + b, at.matrix + places[b] * C + c, row)
    for c in range(C):
        for d in range(first[c], c + 1):
            _fill(work, at.white, 1, 0.0)
            _add(work, at.matrix + c * C + d, 1.0, at.white)
            for a in range(n):
                for g in range(work.shape[1]):
                    one, two = work[at.root + a * C + c, g], work[at.root + a * C + d, g]
                    work[at.white, g] -= one * two
            _add_product(work, at.mass, at.white, at.products + c * C + d)


@part(fastmath=_CONTRACT)
def _add_levels(layout, tables, rows, i, ends, members, place, n, counts, work, at):
    """Add the levels of row i; with the last row of its kind, those that they miss."""
    C, offsets = layout[0].shape[0], layout[3]
    for q in range(offsets.shape[0] - 1):
        if not np.isnan(rows[i, C + q]):
            level = offsets[q] + int(rows[i, C + q])
            for g in range(n):
                counts[place + g, level] += work[at.values, g]
        elif ends:
            for g in range(n):
                mass = work[at.mass, g]
                for level in range(offsets[q], offsets[q + 1] if mass > 0.0 else 0):
                    counts[place + g, level] += mass * math.exp(tables[members[place + g], level])


@part(fastmath=_CONTRACT)
def _finish(layout, place, n, sums, work, at):
    """Turn sums about locations into moments about means."""
    first, _, starts, _ = layout
    mass, squares, mean, scatter, _ = sums
    C = first.shape[0]
    for g in range(n):
        u, total = place + g, work[at.total, g]
        if not total > NO_MASS:
            continue
        mass[u], squares[u] = total, work[at.total_squares, g]
        for i in range(C):
            shift = -work[at.means + i, g] / total
            mean[u, i] = work[at.location + i, g] + shift
            for j in range(first[i], i + 1):
                product = work[at.products + i * C + j, g] + shift * work[at.means + j, g]
                scatter[u, starts[i] + j - first[i]] = product


@kernel(fastmath=_CONTRACT, _nrt=False)
def sweep_partial_blocks(
    layout: Layout,
    model: Model,
    rows,
    row_weights,
    numbers,
    patterns,
    members,
    places,
    begins,
    ends,
    offset,
    first_block,
    last_block,
    beta,
    key,
    greedy,
    order,
    drawn,
    sums,
    log_sums,
    tops,
    given,
    log_joint,
    squares,
    workspace: Workspace,
):
    """`sweep_blocks` for partial rows, sorted by patterns (B,) of missing cells within blocks.

    Block b holds the rows begins[b] - offset .. ends[b] - offset. With weights `given`, nothing is
    evaluated: the components of block b weigh row i by given[tops[b], i], given[tops[b] + 1, i],
    ... If `log_joint` is not empty, log-joints are written to it likewise, squared distances to
    `squares`, and nothing is drawn.
    """
    work, at, lists, noise = workspace
    first, last, _, offsets = layout
    C = first.shape[0]
    noisy = rows.shape[1] > C + offsets.shape[0] - 1
    n_listed = 0
    for b in range(first_block, last_block):
        place, n, top = places[b], places[b + 1] - places[b], tops[b]
        begin, end = begins[b] - offset, ends[b] - offset
        if begin == end:
            continue
        _load(layout, model, members, place, n, noisy, work, at)
        for i in range(begin, end):
            if noisy or i == begin or patterns[i] != patterns[i - 1]:
                n_listed = _condition(
                    layout, model, members, place, rows, i, noisy, work, at, lists, noise
                )
                _fill(work, at.mass, 1, 0.0)
            _complete(first, last, rows, i, n_listed, noisy, work, at, lists)
            scale = row_weights[i]
            if given.shape[0]:
                for g in range(work.shape[1]):
                    work[at.values, g] = given[top + g, i] if g < n else 0.0
            else:
                _evaluate(layout, model, members, place, n, rows, i, beta, work, at)
                if log_joint.shape[0]:
                    for g in range(n):
                        value = work[at.values, g]
                        log_joint[top + g, i] = value if value > NOTHING else -np.inf
                        squares[top + g, i] = work[at.squares, g]
                    continue
                largest, total = _exponentiate(work, at.values)
                u = 0.0 if greedy else total * uniform(key, numbers[i], 0)
                drawn[order[i]] = members[place + _choose(work, at.values, n, u, greedy)]
                if log_sums.shape[0]:
                    log_sum = largest + math.log(total) if largest > NOTHING else -np.inf
                    log_sums[order[i]] = log_sum
                scale /= total
            if not sums[0].shape[0]:
                continue
            _add_row(first, scale, work, at)
            is_last = noisy or i == end - 1 or patterns[i + 1] != patterns[i]
            _add_levels(
                layout, model.tables, rows, i, is_last, members, place, n, sums[4], work, at
            )
            if is_last:
                _add_rest(first, n_listed, noisy, work, at, lists)
                _add(work, at.mass, 1.0, at.total)
        if sums[0].shape[0]:
            _finish(layout, place, n, sums, work, at)

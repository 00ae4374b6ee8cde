"""The compiled sweep: evaluate, draw and sum up, block by block, for every family.

Rows come grouped by block, so a block is a small dense E-step: a few tiles of rows against at most
G components. Each component stands in one block, so blocks share nothing that they write, and what
a block computes does not depend on which thread does it.

A component is evaluated in one of three ways, chosen by how many digits its terms may lose:

- PRODUCTS: natural parameters times features (products of coordinates about the block's origin),
  in float32. Its sums are a product of weights with the same features.
- FACTOR: |F (x - m)|^2 in float32. The error grows with width of the block / width of the
  component, not with its square. Few rows have weight in so narrow a component: they are added one
  by one in float64, about the component's own mean.
- EXACT: the same with differences in float64.
"""

from __future__ import annotations

import math

import numpy as np

from pickmix.compiled import kernel, part
from pickmix.families.base import NO_MASS
from pickmix.selection.kernels import uniform
from pickmix.sweep.block_setup import (
    EXACT,
    FACTOR,
    PRODUCTS,
    choose_ways,
    make_workspace,
    prepare,
)
from pickmix.sweep.tiles import (
    TILE,
    add_weighted_features,
    add_weights,
    draw,
    evaluate_linear,
    evaluate_two,
    find_best,
    largest_weight,
    scale_weights,
    softmax,
)

# Weights of a whole tile, or of a row in a narrow component, below this are not worth adding up.
_NEGLIGIBLE = np.float32(1e-7)
# A variance that is this small a part of the sum of squares about the origin has lost its digits.
_DEEP_CANCELLATION = 2e-5


@part()
def _load(layout, rows, row_weights, numbers, begin, n_rows, key, work):
    """Load a tile of rows, their features, uniforms and weights; what is left weighs nothing."""
    first, _, starts, offsets = layout
    C, P = first.shape[0], starts[first.shape[0]]
    for r in range(TILE):
        i = begin + min(r, n_rows - 1)
        for c in range(C):
            work.columns[c, r] = rows[i, c] - work.origin[c]
        work.uniforms[r] = uniform(key, numbers[i], 0)
        work.row_weights[r] = row_weights[i] if r < n_rows else 0.0
    for i in range(C):
        for j in range(first[i], i + 1):
            p = starts[i] + j - first[i]
            for r in range(TILE):
                work.features[p, r] = work.columns[i, r] * work.columns[j, r]
        for r in range(TILE):
            work.features[P + i, r] = work.columns[i, r]
    for q in range(offsets.shape[0] - 1):
        for r in range(TILE):
            work.levels[q, r] = offsets[q] + int(rows[begin + min(r, n_rows - 1), C + q])


@part(fastmath={"reassoc", "contract", "nsz"})
def _evaluate_by_factor(layout, factors, linear, g, constant, own, whitened, out):
    """out[g] = constant + linear . y - |F y|^2 / 2 for the columns y of `own` (C, TILE)."""
    first, _, starts, _ = layout
    for r in range(TILE):
        out[g, r] = constant
    for i in range(first.shape[0]):
        slope = linear[g, i]
        for r in range(TILE):
            whitened[r] = 0.0
            out[g, r] += slope * own[i, r]
        for j in range(first[i], i + 1):
            f = factors[g, starts[i] + j - first[i]]
            for r in range(TILE):
                whitened[r] += f * own[j, r]
        for r in range(TILE):
            out[g, r] -= whitened[r] * whitened[r] * 0.5


@part()
def _evaluate_by_products(n, way, parameters, features, values):
    """Log-joints of the components for which products are exact enough."""
    n_features = features.shape[0]
    g = 0
    while g < n:
        if way[g] != PRODUCTS:
            g += 1
        elif g + 1 < n and way[g + 1] == PRODUCTS:
            evaluate_two(parameters, g, n_features, features, values)
            g += 2
        else:
            evaluate_linear(parameters, g, n_features, features, values)
            g += 1


@part()
def _evaluate_narrow(layout, n, work):
    """Log-joints of the components that are evaluated by their factors."""
    for g in range(n):
        if work.way[g] == FACTOR:
            for c in range(work.origin.shape[0]):
                shift = np.float32(work.shifts[g, c])
                for r in range(TILE):
                    work.own[c, r] = work.columns[c, r] - shift
            constant = np.float32(work.constants[g])
            _evaluate_by_factor(
                layout, work.factors, work.linear, g, constant, work.own, work.running, work.values
            )


@part()
def _evaluate_exactly(layout, model, members, place, n, rows, begin, n_rows, beta, work):
    """Evaluate in float64 what needs it, and take the largest of each row off all of them."""
    C = work.origin.shape[0]
    linear = np.zeros((1, C))
    factor = np.empty((1, model.factor.shape[1]))
    whitened = np.empty(TILE)
    for g in range(n):
        if work.way[g] != EXACT:
            for r in range(TILE):
                work.exact_values[g, r] = work.values[g, r]
            continue
        k = members[place + g]
        f = 0 if model.factor.shape[0] == 1 else k
        for c in range(C):
            if model.linear.shape[0]:
                linear[0, c] = model.linear[k, c] - work.common[c] / beta
            for r in range(TILE):
                i = begin + min(r, n_rows - 1)
                work.own_exact[c, r] = rows[i, c] - model.location[k, c]
        for p in range(model.factor.shape[1]):
            factor[0, p] = model.factor[f, p]
        out = work.exact_values[g : g + 1]
        peak = work.constants[g] / beta
        _evaluate_by_factor(layout, factor, linear, 0, peak, work.own_exact, whitened, out)
        for r in range(TILE):
            work.exact_values[g, r] *= beta
    for r in range(TILE):
        largest = -np.inf
        for g in range(n):
            largest = max(largest, work.exact_values[g, r])
        work.offset[r] = largest
        for g in range(n):
            work.values[g, r] = max(work.exact_values[g, r] - largest, -1e30)


@part()
def _add_levels(n, levels, tables, values):
    """Add what the tables of levels say to the log-joints of the tile."""
    for q in range(levels.shape[0]):
        for g in range(n):
            for r in range(TILE):
                values[g, r] += tables[g, levels[q, r]]


@part()
def _add_row(layout, weight, rows, i, place, sums, difference):
    """Add one row to moments (West 1979): nothing cancels."""
    first, _, starts, _ = layout
    mass, squares, mean, scatter, _ = sums
    before = mass[place]
    total = before + weight
    mass[place] = total
    squares[place] += weight * weight
    share = weight / total
    for c in range(first.shape[0]):
        difference[c] = rows[i, c] - mean[place, c]
        mean[place, c] += share * difference[c]
    inner = weight * (before / total)
    if inner > 0.0:
        for a in range(first.shape[0]):
            scaled = inner * difference[a]
            base = starts[a] - first[a]
            for b in range(first[a], a + 1):
                scatter[place, base + b] += scaled * difference[b]


@part()
def _add_products(n, way, values, row_weights, features, sums, totals):
    """Weigh the tile by its rows' weights, and add weights times features to the block's sums."""
    n_features = features.shape[0]
    for g in range(n):
        if not largest_weight(values, g) > _NEGLIGIBLE:
            # Nobody reads these weights again but as none.
            values[g, 0] = -1.0
            continue
        scale_weights(values, g, row_weights)
        if way[g] == PRODUCTS:
            add_weighted_features(values, g, n_features, features, sums, g)
            add_weights(values, g, totals, g)


@part()
def _add_row_by_row(layout, n, rows, begin, n_rows, place, work, sums, difference):
    """Add the tile's rows to narrow components, and its levels to all."""
    counts = sums[4]
    for g in range(n):
        if work.values[g, 0] < 0.0:
            continue
        if work.way[g] != PRODUCTS:
            for r in range(n_rows):
                weight = np.float64(work.values[g, r])
                if weight > _NEGLIGIBLE * work.row_weights[r]:
                    _add_row(layout, weight, rows, begin + r, place + g, sums, difference)
                else:
                    # Nor do levels count of rows that do not.
                    work.values[g, r] = 0.0
        for q in range(work.levels.shape[0]):
            for r in range(n_rows):
                counts[place + g, work.levels[q, r]] += work.values[g, r]


@part()
def _finish(layout, n, place, work, sums):
    """Turn sums about the origin into moments; marks components that lost digits, True if none."""
    first, _, starts, _ = layout
    mass, squares, mean, scatter, _ = sums
    C, P = first.shape[0], starts[first.shape[0]]
    sound = True
    for g in range(n):
        total = work.totals[g, 0]
        if work.way[g] != PRODUCTS or not total > NO_MASS:
            continue
        u = place + g
        mass[u], squares[u] = total, work.totals[g, 1]
        lost = False
        for i in range(C):
            a = work.sums[g, P + i] / total
            mean[u, i] = work.origin[i] + a
            for j in range(first[i], i + 1):
                p = starts[i] + j - first[i]
                scatter[u, p] = work.sums[g, p] - a * work.sums[g, P + j]
                if i == j and scatter[u, p] < _DEEP_CANCELLATION * work.sums[g, p]:
                    lost = True
        if lost and total * total <= 1.0001 * work.totals[g, 1]:
            # A single row has no scatter to lose.
            for p in range(P):
                scatter[u, p] = 0.0
        elif lost:
            work.way[g] = FACTOR
            sound = False
    return sound


@part()
def _clear(place, n, work, sums):
    mass, squares, mean, scatter, counts = sums
    for g in range(n):
        mass[place + g] = 0.0
        squares[place + g] = 0.0
        for c in range(mean.shape[1]):
            mean[place + g, c] = 0.0
        for p in range(scatter.shape[1]):
            scatter[place + g, p] = 0.0
        for level in range(counts.shape[1]):
            counts[place + g, level] = 0.0
        work.totals[g, 0] = 0.0
        work.totals[g, 1] = 0.0
        for p in range(work.sums.shape[1]):
            work.sums[g, p] = 0.0


@kernel()
def sweep_blocks(
    layout,
    model,
    rows,
    row_weights,
    numbers,
    members,
    places,
    ends,
    first_block,
    last_block,
    beta,
    key,
    greedy,
    order,
    drawn,
    sums,
    log_sums,
):
    """Draw a component for all rows of some blocks, and sum up the statistics of the components.

    Parameters
    ----------
    layout, model : the family's features, and the mixture, frozen
    rows (B, D), row_weights (B,), numbers (B,) : the rows of these blocks, their weights, and
        their numbers, which choose the draws
    members, places (n_blocks + 1,) : block b holds the components members[places[b]:places[b + 1]]
    ends (n_blocks + 1,) : its rows are ends[b] - ends[first_block] .. ends[b + 1] - ...
    first_block, last_block : the blocks to work on
    beta : inverse temperature
    key : of the draws; `greedy` takes the best component of the block instead
    order (B,) : where the results of each row go
    drawn : receives each row's component
    sums : (mass, squares, mean, scatter, counts) by place, or empty ones if none are wanted
    log_sums : receives log sum_k p(x, k)^beta over the row's block; empty if not wanted
    """
    wanted, wants_log_sums = sums[0].shape[0] > 0, log_sums.shape[0] > 0
    block_size = 1
    for b in range(first_block, last_block):
        block_size = max(block_size, places[b + 1] - places[b])
    work = make_workspace(layout, block_size)
    C = layout[0].shape[0]
    difference = np.empty(C)
    for b in range(first_block, last_block):
        place, n = places[b], places[b + 1] - places[b]
        begin, end = ends[b] - ends[first_block], ends[b + 1] - ends[first_block]
        if wanted:
            _clear(place, n, work, sums)
        if begin == end:
            continue
        prepare(layout, model, members, place, n, beta, work)
        ways = choose_ways(layout, n, rows, begin, end, work)
        for r in range(TILE):
            work.offset[r] = 0.0
        # Components that lost digits are summed up again, row by row.
        for _ in range(2):
            for tile in range(begin, end, TILE):
                n_rows = min(TILE, end - tile)
                _load(layout, rows, row_weights, numbers, tile, n_rows, key, work)
                # Tuples of many arrays are costly to hand over, so calls for every tile take few.
                _evaluate_by_products(n, work.way, work.parameters, work.features, work.values)
                if ways != PRODUCTS:
                    _evaluate_narrow(layout, n, work)
                if ways == EXACT:
                    _evaluate_exactly(
                        layout, model, members, place, n, rows, tile, n_rows, beta, work
                    )
                _add_levels(n, work.levels, work.tables, work.values)
                # The posterior; offset + largest + log(total) is the log of its sum.
                softmax(work.values, n, work.largest, work.total, work.running)
                for r in range(n_rows if wants_log_sums else 0):
                    sum_of_row = work.offset[r] + work.largest[r]
                    if model.linear.shape[0]:
                        sum_of_row += work.common[C]
                        for c in range(C):
                            sum_of_row += work.common[c] * (rows[tile + r, c] - work.origin[c])
                    log_sums[order[tile + r]] = sum_of_row + math.log(work.total[r])
                if greedy:
                    find_best(work.values, n, work.running, work.drawn)
                else:
                    draw(work.values, n, work.uniforms, work.running, work.drawn)
                for r in range(n_rows):
                    drawn[order[tile + r]] = members[place + work.drawn[r]]
                if wanted:
                    _add_products(
                        n,
                        work.way,
                        work.values,
                        work.row_weights,
                        work.features,
                        work.sums,
                        work.totals,
                    )
                    if ways != PRODUCTS or work.levels.shape[0]:
                        _add_row_by_row(
                            layout, n, rows, tile, n_rows, place, work, sums, difference
                        )
            if not wanted or _finish(layout, n, place, work, sums):
                break
            ways = max(ways, FACTOR)
            _clear(place, n, work, sums)

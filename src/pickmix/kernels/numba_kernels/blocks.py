"""The compiled sweep: evaluate, draw and sum up, block by block, for every family.

Rows are grouped by block, so a block is a small dense E-step: a few tiles of rows against at most G
components. Each component is in one block, so blocks share no output, and results do not depend on
threads. A component is evaluated in one of three ways, by how many digits its terms may lose:

- PRODUCTS: natural parameters times features (products of coordinates about the block's origin),
  in float32. Its sums are a product of weights with the same features.
- FACTOR: |F (x - m)|^2 in float32. The error grows with the ratio of the scales of block and
  component, not with its square. Few rows have weight in so narrow a component: they are gathered,
  and their moments about one of them added up in float64.
- EXACT: the same in float64.

With many coordinates nothing is evaluated by products: factors do as much in less memory.
"""

from __future__ import annotations

import math

import numpy as np

from pickmix.compiled import kernel, part, prefetch_row
from pickmix.families.base import NO_MASS
from pickmix.kernels.numba_kernels.block_setup import (
    EXACT,
    FACTOR,
    KEPT_TILES,
    PRODUCTS,
    TILE,
    choose_ways,
    pack,
    prepare,
)
from pickmix.kernels.numba_kernels.choices import uniform
from pickmix.kernels.numba_kernels.multiply import DOUBLE, SINGLE, add_product, subtract_squares

# Sums may be reordered and divisions replaced by products; NaN and infinity keep their meaning.
_FAST = {"reassoc", "contract", "nsz", "arcp"}

# Weights below exp(_LEAST_EXPONENT) of the largest, 2e-9, are none.
_LEAST_EXPONENT = np.float32(-20.0)
# So much less than the largest of its row, a value is below that however it is rounded.
_HOPELESS = np.float32(-21.0)
_SHRINK = np.float32(1.0 / 32.0)
# Taylor coefficients of exp.
_C2, _C3, _C4 = np.float32(1.0 / 2.0), np.float32(1.0 / 6.0), np.float32(1.0 / 24.0)
_C5 = np.float32(1.0 / 120.0)
_ONE, _ZERO, _TINY = np.float32(1.0), np.float32(0.0), np.float32(1e-30)
_NEGLIGIBLE = np.float32(1e-7)  # Weights of a tile or narrow component not added up.
_DEEP_CANCELLATION = 2e-5  # Variances below this share of the sum of squares lost digits.


@part()
def _load(offsets, rows, weights, numbers, begin, n_rows, key, needs_exact, origin, tile):
    """Load a tile of rows, their levels, uniforms and weights; padding rows have zero weight."""
    columns, exact_columns, _, levels, _, _, _, _, _, _, _, _, uniforms, row_weights, _ = tile
    C = origin.shape[0]
    for r in range(TILE):
        i = begin + min(r, n_rows - 1)
        for c in range(C):
            columns[c, r] = rows[i, c] - origin[c]
        for c in range(C if needs_exact else 0):
            exact_columns[c, r] = rows[i, c] - origin[c]
        uniforms[r] = uniform(key, numbers[i], 0)
        row_weights[r] = weights[i] if r < n_rows else 0.0
    for q in range(offsets.shape[0] - 1):
        for r in range(TILE):
            levels[q, r] = offsets[q] + int(rows[begin + min(r, n_rows - 1), C + q])


@part(fastmath={"contract", "nsz"})
def _begin_values(n, constants, levels, tables, way, linear, columns, shifts, has_linear, values):
    """Log-joints without the squares, or products of coordinates, that are added later."""
    for g in range(n):
        constant = constants[g]
        for r in range(TILE):
            values[g, r] = constant
        for q in range(levels.shape[0]):
            for r in range(TILE):
                values[g, r] += tables[g, levels[q, r]]
        if has_linear and way[g] != PRODUCTS:
            for c in range(columns.shape[0]):
                slope, shift = linear[g, c], shifts[g, c]
                for r in range(TILE):
                    values[g, r] += slope * (columns[c, r] - shift)


@part()
def _multiply_columns(layout, columns, features):
    """The features of a tile: products of its coordinates, and these themselves."""
    first, _, starts, _ = layout
    C = first.shape[0]
    for i in range(C):
        for j in range(first[i], i + 1):
            p = starts[i] + j - first[i]
            for r in range(TILE):
                features[p, r] = columns[i, r] * columns[j, r]
        for r in range(TILE):
            features[starts[C] + i, r] = columns[i, r]


@part()
def _evaluate_by_products(wide, n_wide, parameters, panels, features, four, values):
    """Log-joints of the components for which products are exact enough."""
    n_features = features.shape[0]
    for slot in range(0, n_wide, 4):
        n_slots = min(4, n_wide - slot)
        for s in range(4):
            g = wide[slot + min(s, n_slots - 1)]
            constant = parameters[g, n_features]
            for r in range(TILE):
                four[s, r] = values[g, r] + constant
        panel = slot // 4 * n_features
        for r in range(0, TILE, SINGLE):
            add_product(panels, panel, 0, n_features, features, r, four, 0, r)
        for s in range(n_slots):
            g = wide[slot + s]
            for r in range(TILE):
                values[g, r] = four[s, r]


@part()
def _evaluate_by_factors(n, start, wanted, way, bands, panels, columns, lanes, floor, out):
    """Subtract |F (x - m)|^2 / 2 for the components of one way, a likely one first.

    Once all values of some rows are so far below the largest that softmax makes them zero, the rest
    of the factor is skipped, since squares only add up.
    """
    height = panels.shape[0] // way.shape[0]
    for step in range(n):
        g = start + step if start + step < n else start + step - n
        if way[g] != wanted:
            continue
        base = g * height
        for r in range(0, TILE, lanes):
            for band in range(bands.shape[0]):
                place, size = base + bands[band, 2], bands[band, 1]
                if not subtract_squares(
                    panels, place, size, columns, bands[band, 0], r, floor, out, g
                ):
                    break
        _raise_floor(out, g, floor)


@part()
def _join(n, way, exact, floor, values):
    """Take the floor of each row, which is close to the largest, off all log-joints in float64."""
    for g in range(n):
        for r in range(TILE):
            value = exact[g, r] if way[g] == EXACT else np.float64(values[g, r])
            values[g, r] = max(value - floor[r], -1e30)


@part(fastmath=_FAST)
def _add_products(n, way, values, row_weights, features, sums, totals):
    """Weigh the tile by its rows' weights, and add weights times features to the block's sums.

    Four features at a time, in float32 over the tile and in float64 over tiles.
    """
    n_features = features.shape[0]
    whole = n_features - n_features % 4
    for g in range(n):
        largest = _ZERO
        for r in range(TILE):
            largest = max(largest, values[g, r])
        if not largest > _NEGLIGIBLE:
            # -1 marks a component with no weight in this tile.
            values[g, 0] = -1.0
            continue
        for r in range(TILE):
            values[g, r] *= row_weights[r]
        if way[g] != PRODUCTS:
            continue
        for p in range(0, whole, 4):
            a, b, c, d = _ZERO, _ZERO, _ZERO, _ZERO
            for r in range(TILE):
                weight = values[g, r]
                a += weight * features[p, r]
                b += weight * features[p + 1, r]
                c += weight * features[p + 2, r]
                d += weight * features[p + 3, r]
            sums[g, p] += a
            sums[g, p + 1] += b
            sums[g, p + 2] += c
            sums[g, p + 3] += d
        for p in range(whole, n_features):
            a = _ZERO
            for r in range(TILE):
                a += values[g, r] * features[p, r]
            sums[g, p] += a
        total, squares = _ZERO, _ZERO
        for r in range(TILE):
            total += values[g, r]
            squares += values[g, r] * values[g, r]
        totals[g, 0] += total
        totals[g, 1] += squares


@part()
def _add_kept_rows(n, way, rows, begin, n_rows, bands, values, row_weights, totals):
    """Add the rows that count to the moments of narrow components, about an anchor."""
    _, weights, anchors, moments, kept, weighted = totals
    C = anchors.shape[1]
    height = moments.shape[0] // way.shape[0]
    for g in range(n):
        if way[g] == PRODUCTS or values[g, 0] < 0.0:
            continue
        if weights[g, 1] == 0.0:
            # A component that has seen nothing is anchored at the row that counts most.
            best = 0
            for r in range(1, n_rows):
                best = r if values[g, r] > values[g, best] else best
            for c in range(C):
                anchors[g, c] = rows[begin + best, c]
        n_kept = 0
        for r in range(n_rows):
            weight = np.float64(values[g, r])
            if not weight > _NEGLIGIBLE * row_weights[r]:
                # Nor do levels count of rows that do not.
                values[g, r] = 0.0
                continue
            for c in range(C):
                away = rows[begin + r, c] - anchors[g, c]
                kept[n_kept, c] = away
                weighted[n_kept, c] = weight * away
            # Behind the coordinates a 1, whose products are sums of coordinates and of weights.
            kept[n_kept, C] = 1.0
            weighted[n_kept, C] = weight
            weights[g, 1] += weight * weight
            n_kept += 1
        for i in range(0, C + 1, 4):
            first = bands[i // 4, 0] if i + 4 <= C else 0
            for j in range(first // DOUBLE * DOUBLE, i + 4, DOUBLE):
                add_product(weighted, 0, i, n_kept, kept, j, moments, g * height + i, j)


@part()
def _add_levels_of_rows(n, n_rows, levels, values, slots, place, counts):
    for g in range(n):
        if values[g, 0] < 0.0:
            continue
        u = slots[place + g]
        for q in range(levels.shape[0]):
            for r in range(n_rows):
                counts[u, levels[q, r]] += values[g, r]


@part()
def _finish(layout, n, slots, place, origin, way, totals, sums):
    """Turn sums into moments about means; marks components that lost digits, True if none."""
    first, _, starts, _ = layout
    mass, squares, mean, scatter, _ = sums
    features, weights, anchors, moments, _, _ = totals
    C, P = first.shape[0], starts[first.shape[0]]
    height = moments.shape[0] // way.shape[0]
    sound = True
    for g in range(n):
        u, below = slots[place + g], g * height + C
        narrow = way[g] != PRODUCTS
        total = moments[below, C] if narrow else weights[g, 0]
        if not total > NO_MASS:
            continue
        mass[u], squares[u] = total, weights[g, 1]
        lost = False
        for i in range(C):
            a = (moments[below, i] if narrow else features[g, P + i]) / total
            mean[u, i] = a + (anchors[g, i] if narrow else origin[i])
            for j in range(first[i], i + 1):
                p = starts[i] + j - first[i]
                if narrow:
                    product = moments[below - C + i, j]
                    scatter[u, p] = product - a * moments[below, j]
                    continue
                scatter[u, p] = features[g, p] - a * features[g, P + j]
                if i == j and scatter[u, p] < _DEEP_CANCELLATION * features[g, p]:
                    lost = True
        if lost and total * total <= 1.0001 * weights[g, 1]:
            # A single row has no scatter to lose.
            for p in range(P):
                scatter[u, p] = 0.0
        elif lost:
            way[g] = FACTOR
            sound = False
    return sound


@part()
def _clear(slots, place, n, totals, sums):
    mass, squares, mean, scatter, counts = sums
    features, weights, _, _, _, _ = totals
    for g in range(n):
        u = slots[place + g]
        mass[u] = 0.0
        squares[u] = 0.0
        for c in range(mean.shape[1]):
            mean[u, c] = 0.0
        for p in range(scatter.shape[1]):
            scatter[u, p] = 0.0
        for level in range(counts.shape[1]):
            counts[u, level] = 0.0
        weights[g, 0] = 0.0
        weights[g, 1] = 0.0
        for p in range(features.shape[1]):
            features[g, p] = 0.0


@part()
def _clear_narrow(n, totals):
    """Clear the sums of narrow components, which few blocks have."""
    features, _, _, moments, kept, weighted = totals
    # What is behind the coordinates is multiplied too, and garbage there would be slow.
    for r in range(TILE):
        for c in range(kept.shape[1]):
            kept[r, c] = 0.0
            weighted[r, c] = 0.0
    for i in range(n * (moments.shape[0] // features.shape[0])):
        for j in range(moments.shape[1]):
            moments[i, j] = 0.0


# Arithmetic on tiles: the innermost loops run over TILE rows, which keeps the vector units busy.


@part(fastmath=_FAST)
def _raise_floor(values, g, floor):
    """Raise `floor`, below which softmax makes values zero, by values[g]."""
    for r in range(TILE):
        floor[r] = max(floor[r], values[g, r] + _HOPELESS)


@part(fastmath=_FAST)
def _softmax(values, n, largest, total, inverse):
    """Replace values[:n] by exp(value) / sum over g; largest + log(total) is the log of that sum.

    exp(y) = exp(y / 32)^32 by a Taylor polynomial, which vectorises: its relative error is below
    1e-5 for weights above 1e-4 of the largest, and below 0.003 for all.
    """
    for r in range(TILE):
        largest[r] = values[0, r]
        total[r] = _ZERO
    for g in range(1, n):
        for r in range(TILE):
            largest[r] = max(largest[r], values[g, r])
    for g in range(n):
        for r in range(TILE):
            away = values[g, r] - largest[r]
            y = max(away, _LEAST_EXPONENT) * _SHRINK
            e = _ONE + y * (_ONE + y * (_C2 + y * (_C3 + y * (_C4 + y * _C5))))
            e *= e
            e *= e
            e *= e
            e *= e
            e *= e
            # None at all: next to nothing of very many rows would blur a component of equal rows.
            e = e if away > _LEAST_EXPONENT else _ZERO
            values[g, r] = e
            total[r] += e
    for r in range(TILE):
        # A row that nothing explains (NaN) has no weights; others have at least one.
        total[r] = max(total[r], _TINY)
        inverse[r] = _ONE / total[r]
    for g in range(n):
        for r in range(TILE):
            values[g, r] *= inverse[r]


@part(fastmath=_FAST)
def _draw(weights, n, uniforms, running, drawn):
    """drawn[r] = the first g at which the running sum of weights[:n, r] passes uniforms[r]."""
    for r in range(TILE):
        running[r] = 0.0
        drawn[r] = 0
    for g in range(n - 1):
        for r in range(TILE):
            running[r] += weights[g, r]
            drawn[r] += 1 if running[r] <= uniforms[r] else 0


@part(fastmath=_FAST)
def _find_best(weights, n, running, drawn):
    """drawn[r] = argmax_g weights[g, r]."""
    for r in range(TILE):
        running[r] = weights[0, r]
        drawn[r] = 0
    for g in range(1, n):
        for r in range(TILE):
            better = weights[g, r] > running[r]
            running[r] = weights[g, r] if better else running[r]
            drawn[r] = g if better else drawn[r]


@part()
def _prefetch(model, members, start, stop, slots, sums):
    """Fetch components ahead: those of a block are anywhere in memory, and so are their sums."""
    location, factor, _, _, _, log_normaliser, log_mass, _ = model
    for place in range(start, stop):
        k = members[place]
        prefetch_row(location, k)
        prefetch_row(log_mass, k)
        if factor.shape[0] > 1:
            prefetch_row(factor, k)
            prefetch_row(log_normaliser, k)
        if sums[0].shape[0]:
            mass, squares, mean, scatter, _ = sums
            prefetch_row(mass, slots[place])
            prefetch_row(squares, slots[place])
            prefetch_row(mean, slots[place])
            prefetch_row(scatter, slots[place])


@kernel(_nrt=False)
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
    slots,
    sums,
    log_sums,
    work,
):
    """Draw a component for all rows of some blocks, and sum up the statistics of the components.

    rows (B, D), row_weights (B,), numbers (B,): of the rows of these blocks; numbers key the draws.
    Block b holds the components members[places[b]:places[b + 1]] and the rows ends[b] -
    ends[first_block] .. ends[b + 1] - ends[first_block]. `greedy` takes the best component of the
    block instead of a draw. order (B,): where the results of each row go. Written to: drawn, each
    row's component; sums (mass, squares, mean, scatter, counts), those of a component in row
    slots[its place]; log_sums, log sum_k p(x, k)^beta over the row's block. Empty sums or log_sums
    are not computed. `work` is scratch memory.
    """
    wanted, wants_log_sums = sums[0].shape[0] > 0, log_sums.shape[0] > 0
    C, has_linear = layout[0].shape[0], model.linear.shape[0] > 0
    # Tuples of many arrays are costly to hand over, so calls for every tile take few.
    block, panels, tile, totals = work
    origin, common, shifts, _, linear, constants, tables, parameters, _ = block
    bands, way, wide, product_panels, factor_panels, exact_panels = panels
    columns, exact_columns, features, levels, four, kept_values, exact_values = tile[:7]
    largest, floor, exact_floor, total, running, uniforms, weights, choice = tile[7:]
    feature_sums, weight_sums = totals[:2]
    for b in range(first_block, last_block):
        place, n = places[b], places[b + 1] - places[b]
        begin, end = ends[b] - ends[first_block], ends[b + 1] - ends[first_block]
        if wanted:
            _clear(slots, place, n, totals, sums)
        if b + 1 < last_block:
            _prefetch(model, members, places[b + 1], places[b + 2], slots, sums)
        if begin == end:
            continue
        prepare(layout, model, members, place, n, beta, block)
        ways = choose_ways(layout, n, rows, begin, end, block, way)
        start = 0
        # Components that lost digits are summed up again, row by row.
        for _ in range(2):
            n_wide = pack(layout, n, block, panels)
            if wanted and ways != PRODUCTS:
                _clear_narrow(n, totals)
            for top in range(begin, end, TILE):
                n_rows = min(TILE, end - top)
                values = kept_values[min((top - begin) // TILE, KEPT_TILES - 1)]
                exact = ways == EXACT
                _load(layout[3], rows, row_weights, numbers, top, n_rows, key, exact, origin, tile)
                _begin_values(
                    n, constants, levels, tables, way, linear, columns, shifts, has_linear, values
                )
                if n_wide:
                    _multiply_columns(layout, columns, features)
                    _evaluate_by_products(
                        wide, n_wide, parameters, product_panels, features, four, values
                    )
                if ways != PRODUCTS:
                    for r in range(TILE):
                        floor[r] = -np.inf
                    for s in range(n_wide):
                        _raise_floor(values, wide[s], floor)
                    _evaluate_by_factors(
                        n, start, FACTOR, way, bands, factor_panels, columns, SINGLE, floor, values
                    )
                if exact:
                    for r in range(TILE):
                        exact_floor[r] = floor[r]
                    inputs = constants, levels, tables, way, linear, exact_columns, shifts
                    _begin_values(n, *inputs, has_linear, exact_values)
                    others = way, bands, exact_panels, exact_columns, DOUBLE, exact_floor
                    _evaluate_by_factors(n, start, EXACT, *others, exact_values)
                    _join(n, way, exact_values, exact_floor, values)
                # The posterior; floor + largest + log(total) is the log of its sum.
                _softmax(values, n, largest, total, running)
                for r in range(n_rows if wants_log_sums else 0):
                    sum_of_row = np.float64(largest[r])
                    if exact:
                        sum_of_row += exact_floor[r]
                    if has_linear:
                        sum_of_row += common[C]
                        for c in range(C):
                            sum_of_row += common[c] * (rows[top + r, c] - origin[c])
                    log_sums[order[top + r]] = sum_of_row + math.log(total[r])
                if greedy:
                    _find_best(values, n, running, choice)
                else:
                    _draw(values, n, uniforms, running, choice)
                for r in range(n_rows):
                    drawn[order[top + r]] = members[place + choice[r]]
                # Rows come in the order of their chains' components.
                start = choice[n_rows - 1]
                if wanted:
                    _add_products(n, way, values, weights, features, feature_sums, weight_sums)
                    if ways != PRODUCTS:
                        _add_kept_rows(n, way, rows, top, n_rows, bands, values, weights, totals)
                    if levels.shape[0]:
                        _add_levels_of_rows(n, n_rows, levels, values, slots, place, sums[4])
            if not wanted or _finish(layout, n, slots, place, origin, way, totals, sums):
                break
            if ways == PRODUCTS and end - begin <= KEPT_TILES * TILE and not levels.shape[0]:
                # Where components have few rows this is common. Their weights are known.
                _clear_narrow(n, totals)
                for g in range(n):
                    weight_sums[g, 1] = weight_sums[g, 1] if way[g] == PRODUCTS else 0.0
                for top in range(begin, end, TILE):
                    n_rows = min(TILE, end - top)
                    for r in range(n_rows):
                        weights[r] = row_weights[top + r]
                    values = kept_values[(top - begin) // TILE]
                    _add_kept_rows(n, way, rows, top, n_rows, bands, values, weights, totals)
                _finish(layout, n, slots, place, origin, way, totals, sums)
                break
            ways = max(ways, FACTOR)
            _clear(slots, place, n, totals, sums)

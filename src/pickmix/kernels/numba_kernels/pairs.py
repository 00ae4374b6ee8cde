"""Compiled parts of the sweep beside blocks: pairs, dense E-steps, and the SA-step.

Rows are (B, D) float64, centred on the data, or columns (D, B) where every component meets every
row. Each kernel works on a range start..stop of rows or components and writes nothing outside it.
"""

from __future__ import annotations

import math

import numpy as np

from pickmix.compiled import kernel, part, prefetch_row
from pickmix.families.base import NO_MASS
from pickmix.families.layout import LOG_FLOOR, LOG_SCALE, SCALE, SQUARE_SCALE

_FAST_SUMS = {"reassoc", "contract", "nsz"}
_CACHED_NUMBERS = 32_768  # Smaller models (256 KB) stay in the cache without prefetching.
_ROWS_AHEAD = 8  # How many rows ahead of the one in hand the components of a row are fetched.


# Arrays, not tuples of them: these are handed over for every pair.
@part(fastmath=_FAST_SUMS)
def _half_square(first, location, k, factor, f, rows, i, scratch):
    """|F (x - m)|^2 / 2 for x = rows[i]; leaves x - m in scratch (C,)."""
    for c in range(first.shape[0]):
        scratch[c] = rows[i, c] - location[k, c]
    total = 0.0
    p = 0
    for c in range(first.shape[0]):
        y = 0.0
        if first[c] == 0:
            # The compiler sees that no index is negative, and vectorises.
            for j in range(c + 1):
                y += factor[f, p + j] * scratch[j]
        else:
            for j in range(first[c], c + 1):
                y += factor[f, p + j - first[c]] * scratch[j]
        total += y * y
        p += c + 1 - first[c]
    return 0.5 * total


@part(fastmath=_FAST_SUMS)
def _linear_part(linear, k, scratch):
    total = 0.0
    for c in range(scratch.shape[0]):
        total += linear[k, c] * scratch[c]
    return total


@kernel()
def evaluate_candidates(layout, model, rows, candidates, log_joint, start, stop):
    """log_joint[i, j] = log p(x_i, k) for k = candidates[i, j]; -inf where k < 0."""
    first, _, _, offsets = layout
    n, has_linear = first.shape[0], model.linear.shape[0] > 0
    scratch = np.empty(n)
    shared = model.factor.shape[0] == 1
    scattered = model.location.size + model.factor.size + model.tables.size > _CACHED_NUMBERS
    log_scale, log_floor = model.decay[LOG_SCALE], model.decay[LOG_FLOOR]
    for i in range(start, stop):
        ahead = min(i + _ROWS_AHEAD, stop - 1)
        for j in range(candidates.shape[1] if scattered else 0):
            k = candidates[ahead, j]
            if k >= 0:
                f = 0 if shared else k
                prefetch_row(model.factor, f)
                prefetch_row(model.location, k)
                prefetch_row(model.log_mass, k)
                prefetch_row(model.log_normaliser, f)
        for j in range(candidates.shape[1]):
            k = candidates[i, j]
            if k < 0:
                log_joint[i, j] = -np.inf
                continue
            f = 0 if shared else k
            constant = max(model.log_mass[k] + log_scale, log_floor) + model.log_normaliser[f]
            constant -= _half_square(first, model.location, k, model.factor, f, rows, i, scratch)
            if has_linear:
                constant += _linear_part(model.linear, k, scratch)
            for q in range(offsets.shape[0] - 1):
                constant += model.tables[k, offsets[q] + int(rows[i, n + q])]
            log_joint[i, j] = constant


@part(fastmath=_FAST_SUMS)
def _log_densities(layout, model, k, f, columns, own, whitened, out):
    """Add log p(x | k), but for the normaliser, of all columns (D, R); the loops vectorise."""
    first, _, starts, offsets = layout
    n, n_rows = first.shape[0], columns.shape[1]
    for c in range(n):
        location = model.location[k, c]
        for r in range(n_rows):
            own[c, r] = columns[c, r] - location
    for c in range(n):
        base = starts[c] - first[c]
        if starts[c + 1] > starts[c]:
            w = model.factor[f, base + c]
            for r in range(n_rows):
                whitened[r] = w * own[c, r]
            for j in range(first[c], c):
                w = model.factor[f, base + j]
                for r in range(n_rows):
                    whitened[r] += w * own[j, r]
            for r in range(n_rows):
                out[r] -= 0.5 * whitened[r] * whitened[r]
        if model.linear.shape[0]:
            slope = model.linear[k, c]
            for r in range(n_rows):
                out[r] += slope * own[c, r]
    for q in range(offsets.shape[0] - 1):
        for r in range(n_rows):
            out[r] += model.tables[k, offsets[q] + int(columns[n + q, r])]


@kernel()
def evaluate_all(layout, model, columns, log_joint, start, stop):
    """log_joint[k, r] = log p(x_r, k) for the components start..stop and all columns (D, R)."""
    n_rows = columns.shape[1]
    own = np.empty((layout[0].shape[0], n_rows))
    whitened = np.empty(n_rows)
    shared = model.factor.shape[0] == 1
    log_scale, log_floor = model.decay[LOG_SCALE], model.decay[LOG_FLOOR]
    for k in range(start, stop):
        f = 0 if shared else k
        out = log_joint[k]
        constant = max(model.log_mass[k] + log_scale, log_floor) + model.log_normaliser[f]
        for r in range(n_rows):
            out[r] = constant
        _log_densities(layout, model, k, f, columns, own, whitened, out)


@kernel()
def group_by_component(
    components, weights, row_weights, slot_of, members, offsets, pairs, pair_weights
):
    """Group the pairs (B, W) by component, in slots numbered as components appear.

    slot_of (K,) is -1 everywhere, before and after. Pairs of slot u end up at offsets[u]..offsets[u
    + 1] of `pairs` and `pair_weights`, in row order, times row weights. Returns the number of
    slots.
    """
    n_rows, width = components.shape
    n_slots = 0
    # offsets[u + 2] counts the pairs of slot u, then becomes the place of its next pair.
    offsets[0] = 0
    offsets[1] = 0
    for i in range(n_rows):
        for j in range(width):
            k = components[i, j]
            if k < 0:
                continue
            if slot_of[k] < 0:
                slot_of[k] = n_slots
                members[n_slots] = k
                n_slots += 1
                offsets[n_slots + 1] = 0
            offsets[slot_of[k] + 2] += 1
    for u in range(n_slots):
        offsets[u + 2] += offsets[u + 1]
    for i in range(n_rows):
        for j in range(width):
            k = components[i, j]
            if k >= 0:
                u = slot_of[k]
                place = offsets[u + 1]
                pairs[place] = i
                pair_weights[place] = weights[i, j] * row_weights[i]
                offsets[u + 1] = place + 1
    for u in range(n_slots):
        slot_of[members[u]] = -1
    return n_slots


@kernel()
def accumulate_pairs(layout, rows, offsets, pairs, pair_weights, sums, start, stop):
    """Moments of the grouped pairs of the slots start..stop."""
    first, _, starts, level_offsets = layout
    mass, squares, mean, scatter, counts = sums
    n = first.shape[0]
    difference = np.empty(n)
    for u in range(start, stop):
        begin, end = offsets[u], offsets[u + 1]
        total, square = 0.0, 0.0
        for pair in range(begin, end):
            weight = pair_weights[pair]
            total += weight
            square += weight * weight
            i = pairs[pair]
            for c in range(n):
                mean[u, c] += weight * rows[i, c]
            for q in range(level_offsets.shape[0] - 1):
                counts[u, level_offsets[q] + int(rows[i, n + q])] += weight
        mass[u], squares[u] = total, square
        if not total > NO_MASS:
            mass[u] = 0.0
            continue
        for c in range(n):
            mean[u, c] /= total
        # A single row has no scatter about itself.
        for pair in range(begin, end if end - begin > 1 else begin):
            i = pairs[pair]
            for c in range(n):
                difference[c] = rows[i, c] - mean[u, c]
            for a in range(n):
                scaled = pair_weights[pair] * difference[a]
                base = starts[a] - first[a]
                for b in range(first[a], a + 1):
                    scatter[u, base + b] += scaled * difference[b]


@part(fastmath=_FAST_SUMS)
def _weighted_sum(weights, values, n):
    total = 0.0
    for r in range(n):
        total += weights[r] * values[r]
    return total


@kernel()
def accumulate_all(layout, columns, row_weights, responsibilities, sums, start, stop):
    """Moments of all rows, as columns (D, R), for the components start..stop.

    Row r has row_weights[r] * responsibilities[k, r] in component k; below NO_MASS it is skipped.
    """
    first, _, starts, level_offsets = layout
    mass, squares, mean, scatter, counts = sums
    n, n_rows = first.shape[0], columns.shape[1]
    weights = np.empty(n_rows)
    scaled = np.empty(n_rows)
    kept = np.empty((n, n_rows))
    where = np.empty(n_rows, dtype=np.int64)
    for k in range(start, stop):
        n_kept = 0
        for r in range(n_rows):
            weight = responsibilities[k, r] * row_weights[r]
            if weight > NO_MASS:
                where[n_kept] = r
                weights[n_kept] = weight
                mass[k] += weight
                squares[k] += weight * weight
                n_kept += 1
        if n_kept == 0:
            continue
        for c in range(n):
            for r in range(n_kept):
                kept[c, r] = columns[c, where[r]]
            mean[k, c] = _weighted_sum(weights, kept[c], n_kept) / mass[k]
            for r in range(n_kept):
                kept[c, r] -= mean[k, c]
        for a in range(n):
            for r in range(n_kept):
                scaled[r] = weights[r] * kept[a, r]
            for b in range(first[a], a + 1):
                scatter[k, starts[a] + b - first[a]] = _weighted_sum(scaled, kept[b], n_kept)
        for q in range(level_offsets.shape[0] - 1):
            for r in range(n_kept):
                counts[k, level_offsets[q] + int(columns[n + q, where[r]])] += weights[r]


@kernel()
def blend(layout, moments, model, members, sums, share, gains, freedom, start, stop):
    """`blend` for members[start:stop]; gains (U, P) and freedom (U,) may be empty."""
    first, _, starts, _ = layout
    n = first.shape[0]
    own_mass, own_squares, own_mean, own_scatter, own_counts = moments
    mass, squares, mean, scatter, counts = sums
    scale, square_scale = model.decay[SCALE], model.decay[SQUARE_SCALE]
    difference = np.empty(n)
    for u in range(start, stop):
        k = members[u]
        if u + 4 < stop:
            prefetch_row(own_scatter, members[u + 4])
            prefetch_row(own_mean, members[u + 4])
        kept, added = own_mass[k] * scale, share * mass[u]
        total = kept + added
        old, new = kept / total, 1.0 / total
        for c in range(n):
            difference[c] = mean[u, c] - own_mean[k, c]
            # With kept = 0 the mean becomes that of the statistics to the last bit.
            own_mean[k, c] = mean[u, c] - old * difference[c]
        cross = kept * (added / total)
        for a in range(n):
            base = starts[a] - first[a]
            scaled = cross * difference[a]
            for b in range(first[a], a + 1):
                gain = share * scatter[u, base + b] + scaled * difference[b]
                own_scatter[k, base + b] = old * own_scatter[k, base + b] + new * gain
                if gains.shape[0]:
                    gains[u, base + b] = gain
        for level in range(counts.shape[1]):
            own_counts[k, level] = old * own_counts[k, level] + share * new * counts[u, level]
        kept_squares = own_squares[k] * square_scale
        all_squares = kept_squares + share * share * squares[u]
        if freedom.shape[0]:
            kept_freedom = kept - kept_squares / kept if kept > NO_MASS else 0.0
            freedom[u] = (total - all_squares / total) - kept_freedom
        own_mass[k] = total / scale
        own_squares[k] = all_squares / square_scale
        model.log_mass[k] = math.log(own_mass[k])

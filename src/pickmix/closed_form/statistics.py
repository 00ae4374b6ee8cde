"""Compiled sufficient statistics and their maximisation, for every covariance structure.

Each kernel works on a range start..stop of components or slots and writes nothing outside it.
"""

from __future__ import annotations

import math

import numpy as np

# Imported for their implementations of the operations.
from pickmix.closed_form import diagonal, full  # noqa: F401
from pickmix.closed_form.lanes import LANES
from pickmix.closed_form.operations import (
    FAST_SUMS,
    SCALE,
    SQUARE_SCALE,
    add_outer,
    add_outers,
    factor_index,
    factorise_lanes,
    has_own_covariance,
    layout_of,
)
from pickmix.closed_form.prefetch import prefetch_row
from pickmix.compiled import kernel, part

# Masses at or below this are none: their squares would leave float64.
NO_MASS = 1e-140


@kernel()
def group_by_component(
    components,
    weights,
    row_weights,
    slot_of,
    slot_component,
    n_slots,
    offsets,
    pair_row,
    pair_weight,
):
    """Group the pairs (B, W) by component: slots are numbered as components appear.

    slot_of (K,) maps components to slots (-1: none yet), slot_component is its inverse, and
    slots 0..n_slots exist from earlier blocks. Afterwards the pairs of slot u stand at
    offsets[u]..offsets[u + 1] of pair_row and pair_weight, in row order, with weights that
    include the row's own. Returns the number of slots.
    """
    n_rows, width = components.shape
    # offsets[u + 2] counts the pairs of slot u, then becomes the place of its next pair.
    offsets[: n_slots + 2] = 0
    for i in range(n_rows):
        for j in range(width):
            k = components[i, j]
            if k < 0:
                continue
            if slot_of[k] < 0:
                slot_of[k] = n_slots
                slot_component[n_slots] = k
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
                pair_row[place] = i
                pair_weight[place] = weights[i, j] * row_weights[i]
                offsets[u + 1] = place + 1
    return n_slots


@part()
def merge_moments(layout, u, mass, squares, mean, scatter, sums, difference):
    """Merge moments (mass, squares, mean (D,), scatter (1, P)) of some rows into slot u.

    After Chan, Golub and LeVeque (1983). Only non-negative terms are added to the scatter: nothing
    cancels, wherever the data lie.
    """
    slot_mass, slot_squares, slot_mean, slot_scatter = sums
    before = slot_mass[u]
    total = before + mass
    if total == 0.0:
        return
    slot_mass[u] = total
    slot_squares[u] += squares
    if before == 0.0:
        for d in range(mean.shape[0]):
            slot_mean[u, d] = mean[d]
        for p in range(scatter.shape[1]):
            slot_scatter[u, p] = scatter[0, p]
        return
    for d in range(mean.shape[0]):
        difference[d] = mean[d] - slot_mean[u, d]
        slot_mean[u, d] += (mass / total) * difference[d]
    for p in range(scatter.shape[1]):
        slot_scatter[u, p] += scatter[0, p]
    add_outer(layout, before * (mass / total), difference, slot_scatter, u)


@kernel()
def accumulate_pairs(layout, rows, offsets, pair_row, pair_weight, sums, start, stop):
    """Add the grouped pairs to the moments of the slots start..stop.

    sums = (mass (U,), squares (U,), mean (U, D), scatter (U, P)).
    """
    n_features = rows.shape[1]
    mean = np.empty(n_features)
    difference = np.empty(n_features)
    scatter = np.empty((1, sums[3].shape[1]))
    for u in range(start, stop):
        first, last = offsets[u], offsets[u + 1]
        mass, squares = 0.0, 0.0
        for d in range(n_features):
            mean[d] = 0.0
        for pair in range(first, last):
            weight = pair_weight[pair]
            mass += weight
            squares += weight * weight
            i = pair_row[pair]
            for d in range(n_features):
                mean[d] += weight * rows[i, d]
        if not mass > NO_MASS:
            continue
        for d in range(n_features):
            mean[d] /= mass
        for p in range(scatter.shape[1]):
            scatter[0, p] = 0.0
        # A single row has no scatter about itself.
        if last - first > 1:
            for pair in range(first, last):
                i = pair_row[pair]
                for d in range(n_features):
                    difference[d] = rows[i, d] - mean[d]
                add_outer(layout, pair_weight[pair], difference, scatter, 0)
        merge_moments(layout, u, mass, squares, mean, scatter, sums, difference)


@part(fastmath=FAST_SUMS)
def _weighted_sum(weights, values, n):
    total = 0.0
    for r in range(n):
        total += weights[r] * values[r]
    return total


@kernel()
def accumulate_all(layout, columns, row_weights, responsibilities, sums, start, stop):
    """Add every row to the moments of the components start..stop, weighted by responsibilities.

    columns (D, R), responsibilities (K, R). Rows without mass (see NO_MASS) are skipped.
    """
    n_features, n_rows = columns.shape
    mean = np.empty(n_features)
    difference = np.empty(n_features)
    scatter = np.empty((1, sums[3].shape[1]))
    weights = np.empty(n_rows)
    kept = np.empty((n_features, n_rows))
    where = np.empty(n_rows, dtype=np.int64)
    for k in range(start, stop):
        n = 0
        mass, squares = 0.0, 0.0
        for r in range(n_rows):
            weight = responsibilities[k, r] * row_weights[r]
            if weight > NO_MASS:
                where[n] = r
                weights[n] = weight
                mass += weight
                squares += weight * weight
                n += 1
        if n == 0:
            continue
        for d in range(n_features):
            for r in range(n):
                kept[d, r] = columns[d, where[r]]
            mean[d] = _weighted_sum(weights, kept[d], n) / mass
            for r in range(n):
                kept[d, r] -= mean[d]
        scatter[:] = 0.0
        add_outers(layout, weights, kept, n, scatter[0])
        merge_moments(layout, k, mass, squares, mean, scatter, sums, difference)


@part()
def _prefetch(model, k):
    """Fetch all that an update of component k touches."""
    prefetch_row(model.covariance, factor_index(model, k))
    prefetch_row(model.factor, factor_index(model, k))
    prefetch_row(model.log_normaliser, factor_index(model, k))
    prefetch_row(model.mean, k)
    prefetch_row(model.mass, k)
    prefetch_row(model.log_mass, k)
    prefetch_row(model.squares, k)


@kernel()
def relative_size(covariances, lane, trace_weights, count):
    """How large a covariance is, relative to the pooled one: tr(pooled^-1 covariance) / D.

    covariances (P, LANES), trace_weights (P,) of the pooled covariance. The size of a covariance
    from few rows is uncertain and leans on 1, in logarithms: two pseudo-rows are of size 1.
    """
    if count <= 1.0:
        return 1.0
    size = 0.0
    for p in range(trace_weights.shape[0]):
        size += trace_weights[p] * covariances[p, lane]
    size *= count / (count - 1.0)
    return math.exp((count - 1.0) / (count + 1.0) * math.log(max(size, 1e-280)))


@part()
def lean(covariances, lane, trust, pooled, size):
    """covariances[:, lane] <- trust * itself + (1 - trust) * size * pooled."""
    for p in range(pooled.shape[0]):
        covariances[p, lane] = trust * covariances[p, lane] + (1.0 - trust) * size * pooled[p]


@part()
def lean_by_prior(covariances, lane, count, prior_count, trace_weights, pooled):
    """Add `prior_count` rows of the pooled shape to a covariance from `count` rows."""
    size = relative_size(covariances, lane, trace_weights, count)
    lean(covariances, lane, count / (count + prior_count), pooled, size)


@kernel()
def pool_shapes(covariance, mass, n_rows, trace_weights, pooled):
    """pooled (P,) <- mean over components of covariance / size, times their geometric mean size.

    Components count by their degrees of freedom. Unlike the plain mean it is not ruled by the
    widest components.
    """
    total, log_size = 0.0, 0.0
    pooled[:] = 0.0
    for k in range(covariance.shape[0]):
        freedom = mass[k] * n_rows - 1.0
        if freedom <= 0.0:
            continue
        size = 0.0
        for p in range(pooled.shape[0]):
            size += trace_weights[p] * covariance[k, p]
        if not size > 1e-280:
            continue
        total += freedom
        log_size += freedom * math.log(size)
        for p in range(pooled.shape[0]):
            pooled[p] += freedom / size * covariance[k, p]
    if total > 0.0:
        scale = math.exp(log_size / total) / total
        for p in range(pooled.shape[0]):
            pooled[p] *= scale
    return total > 0.0


@kernel()
def add_moments(layout, members, moments, slot_of, slot_component, n_slots, sums):
    """Merge moments that stand in the order of `members` into slots; returns how many there are."""
    difference = np.empty(layout.n_features)
    for place in range(members.shape[0]):
        mass = moments[0][place]
        if not mass > NO_MASS:
            continue
        k = members[place]
        u = slot_of[k]
        if u < 0:
            u = n_slots
            slot_of[k] = u
            slot_component[u] = k
            n_slots += 1
        merge_moments(
            layout,
            u,
            mass,
            moments[1][place],
            moments[2][place],
            moments[3][place : place + 1],
            sums,
            difference,
        )
    return n_slots


@kernel()
def absorb(
    model,
    slot_component,
    sums,
    share,
    pooled,
    least_count,
    prior,
    trace_weights,
    reg_covar,
    freedom_gains,
    failures,
    start,
    stop,
):
    """SA-step and M-step for the components of the slots start..stop.

    With gamma the step size and `share` = gamma / (sum of the batch's row weights), per component

        s0 <- (1 - gamma) s0 + share * mass        (the clock has applied 1 - gamma already)
        mean <- mean + (share * mass / s0) (batch mean - mean)
        covariance <- ((1 - gamma) s0_old covariance + share * scatter + cross term) / s0,

    which is s_k <- (1 - gamma) s_k + gamma s_batch for the statistics (1, x, x x') followed by
    their closed-form maximisation, written about the component's own mean.

    A component whose effective number of rows is below `least_count` leans on the pooled
    covariance. With a `prior` = (pseudo-rows, rows behind all statistics) of more than no
    pseudo-rows, every covariance leans on the pooled one in its own size (see `relative_size`). The
    slot's scatter is replaced by what the component adds to the pooled scatter, and
    freedom_gains[u] by what it adds to the pooled degrees of freedom, s0 - (squared weights) / s0.
    An update that has no factorisation is refused and counted in failures[u]; a component that
    gained no mass stays as it is.
    """
    slot_mass, slot_squares, slot_mean, slot_scatter = sums
    layout = layout_of(model)
    scale, square_scale = model.clock[SCALE], model.clock[SQUARE_SCALE]
    n_features, n_packed = model.mean.shape[1], slot_scatter.shape[1]
    difference = np.empty(n_features)
    # Covariances in use, one per lane, then their factors. What an idle lane holds harms nobody.
    factor = np.ones((n_packed, LANES))
    log_normaliser = np.zeros(LANES)
    for first in range(start, stop, LANES):
        n_lanes = min(LANES, stop - first)
        for lane in range(n_lanes):
            u = first + lane
            k = slot_component[u]
            added = share * slot_mass[u]
            kept = model.mass[k] * scale
            total = kept + added
            if u + LANES < stop:
                _prefetch(model, slot_component[u + LANES])
            if not added > NO_MASS:
                slot_scatter[u, :] = 0.0
                continue
            for p in range(n_packed):
                slot_scatter[u, p] *= share
            for d in range(n_features):
                difference[d] = slot_mean[u, d] - model.mean[k, d]
            if kept > 0.0:
                add_outer(layout, kept * (added / total), difference, slot_scatter, u)
            if has_own_covariance(model):
                squares = model.squares[k] * square_scale + share * share * slot_squares[u]
                trust = 1.0
                if least_count > 0.0:
                    trust = min(1.0, total * total / (squares * least_count))
                old, new = kept / total, 1.0 / total
                for p in range(n_packed):
                    own = old * model.covariance[k, p] + new * slot_scatter[u, p]
                    factor[p, lane] = own
                if prior[0] > 0.0:
                    lean_by_prior(factor, lane, total * prior[1], prior[0], trace_weights, pooled)
                else:
                    lean(factor, lane, trust, pooled, 1.0)
        if has_own_covariance(model):
            factorise_lanes(layout, factor, reg_covar, log_normaliser)
        for lane in range(n_lanes):
            u = first + lane
            k = slot_component[u]
            added = share * slot_mass[u]
            failures[u] = 0
            freedom_gains[u] = 0.0
            if not added > NO_MASS:
                continue
            if not log_normaliser[lane] < np.inf:
                failures[u] = 1
                slot_scatter[u, :] = 0.0
                continue
            kept = model.mass[k] * scale
            total = kept + added
            if has_own_covariance(model):
                model.log_normaliser[k] = log_normaliser[lane]
                old, new = kept / total, 1.0 / total
                for p in range(n_packed):
                    model.covariance[k, p] = old * model.covariance[k, p] + new * slot_scatter[u, p]
                for p in range(n_packed):
                    model.factor[k, p] = factor[p, lane]
            # With kept = 0 the mean must become the batch's to the last bit.
            for d in range(n_features):
                offset = (kept / total) * (model.mean[k, d] - slot_mean[u, d])
                model.mean[k, d] = slot_mean[u, d] + offset
            kept_squares = model.squares[k] * square_scale
            squares = kept_squares + share * share * slot_squares[u]
            kept_freedom = kept - kept_squares / kept if kept > NO_MASS else 0.0
            freedom_gains[u] = (total - squares / total) - kept_freedom
            model.mass[k] = total / scale
            model.log_mass[k] = math.log(model.mass[k])
            model.squares[k] = squares / square_scale


@kernel()
def absorb_pooled(
    sums, freedom_gains, n_slots, share, kept, least_count, scatter, totals, covariance
):
    """Update the covariance that all components have in common.

    scatter (P,) sums s0 * covariance over components, and totals = (s0, squared weights, degrees of
    freedom s0 - squares / s0), each with forgetting; sums are taken in slot order. With least_count
    = 0 the covariance (P,) is scatter / s0, the maximum of the likelihood. Otherwise it is
    scatter / freedom, since components with a row or two have mass but hardly any scatter; and as
    long as there are fewer than least_count effective degrees of freedom it leans on its past.
    """
    slot_mass, slot_squares, _, gains = sums
    for p in range(scatter.shape[0]):
        scatter[p] *= kept
    mass, squares, freedom = 0.0, 0.0, 0.0
    for u in range(n_slots):
        mass += slot_mass[u]
        squares += slot_squares[u]
        freedom += freedom_gains[u]
        for p in range(scatter.shape[0]):
            scatter[p] += gains[u, p]
    totals[0] = kept * totals[0] + share * mass
    totals[1] = kept * kept * totals[1] + share * share * squares
    totals[2] = kept * totals[2] + freedom
    trust, divisor = 1.0, totals[0]
    if least_count > 0.0:
        divisor = totals[2]
        trust = min(1.0, totals[0] * totals[2] / (totals[1] * least_count))
    if divisor > NO_MASS and trust > 0.0:
        for p in range(scatter.shape[0]):
            own = scatter[p] / divisor
            covariance[p] = trust * own + (1.0 - trust) * covariance[p]


@kernel()
def factorise_components(model, pooled, prior, trace_weights, reg_covar, failures, start, stop):
    """Factorise the model's covariances + reg_covar I, with the prior of `absorb`.

    Where there is no factor, failures[k] = 1 and the old one stays.
    """
    n_packed = model.covariance.shape[1]
    factor = np.ones((n_packed, LANES))
    log_normaliser = np.empty(LANES)
    for first in range(start, stop, LANES):
        n_lanes = min(LANES, stop - first)
        # Loops: Numba takes seconds to compile what an assignment of arrays might complain of.
        for lane in range(n_lanes):
            for p in range(n_packed):
                factor[p, lane] = model.covariance[first + lane, p]
        if prior[0] > 0.0 and has_own_covariance(model):
            for lane in range(n_lanes):
                count = model.mass[first + lane] * model.clock[SCALE] * prior[1]
                lean_by_prior(factor, lane, count, prior[0], trace_weights, pooled)
        factorise_lanes(layout_of(model), factor, reg_covar, log_normaliser)
        for lane in range(n_lanes):
            k = first + lane
            failures[k] = 0 if log_normaliser[lane] < np.inf else 1
            if not failures[k]:
                for p in range(n_packed):
                    model.factor[k, p] = factor[p, lane]
                model.log_normaliser[k] = log_normaliser[lane]


@kernel()
def clear_slots(slot_of, slot_component, sums, n_slots):
    """Forget the slots in use, in time proportional to their number."""
    for u in range(n_slots):
        slot_of[slot_component[u]] = -1
        sums[0][u] = 0.0
        sums[1][u] = 0.0

"""Random-partition Gibbs on blocks of components: evaluate, draw and sum up, block by block.

Rows come grouped by block, so a block is a small dense E-step: a few tiles of rows against at most
G components (see `tiles.py`). Each component stands in one block, so blocks share nothing that
they write, and what a block computes does not depend on which thread does it.

Products and sums run in float32, about the block's own origin: they are exact enough as long as a
block is not wider than some hundred times the narrowest width of a component in it. Components
that are narrower are evaluated about their own mean, and blocks that float32 cannot hold at all
(outliers, a tight group among far-away strangers) in float64, where nothing cancels.
"""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np

# Imported for their implementations of the operations.
from pickmix.closed_form import diagonal, full  # noqa: F401
from pickmix.closed_form.operations import (
    LOG_FLOOR,
    LOG_SCALE,
    add_outers,
    factor_index,
    fill_products,
    layout_of,
    set_natural,
    squared_distances,
)
from pickmix.closed_form.statistics import NO_MASS, merge_moments
from pickmix.closed_form.tiles import (
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
from pickmix.compiled import kernel, part
from pickmix.selection.randomness import uniform

# Weights of a whole tile below this are not worth adding up.
_NEGLIGIBLE = np.float32(1e-7)
# Terms of a log-joint may be this large before they cancel: float32 then leaves 0.005.
_LARGEST_TERMS = 8e4
# Beyond this not even differences from the own mean are exact enough in float32.
_LARGEST_OWN_TERMS = 1e10
_LARGEST_COORDINATE = 1e15
# A variance that is this small a part of the sum of squares about the origin has lost its digits.
_DEEP_CANCELLATION = 2e-5


Workspace = namedtuple(
    "Workspace",
    [
        # Of the block: its origin (D,), means about it (G, D), natural parameters about it
        # (G, P + D + 1) and about each mean (G, P + 1), sums about both (2 G, P + D) and
        # their weights (2 G, 2).
        "origin",
        "shifts",
        "parameters",
        "own_parameters",
        "sums",
        "totals",
        # Of the tile: coordinates and features about the origin, and about one mean.
        "columns",
        "features",
        "own_columns",
        "own_features",
        "in_own_frame",
        # Posterior weights (G, TILE), and what is known of each row.
        "values",
        "largest",
        "total",
        "running",
        "uniforms",
        "row_weights",
        "drawn",
    ],
)


@part()
def _make_workspace(n_features, n_products, block_size):
    n_linear = n_products + n_features
    single = np.float32
    return Workspace(
        np.empty(n_features),
        np.empty((block_size, n_features)),
        np.empty((block_size, n_linear + 1), dtype=single),
        np.empty((block_size, n_products + 1), dtype=single),
        np.empty((2 * block_size, n_linear)),
        np.empty((2 * block_size, 2)),
        np.empty((n_features, TILE), dtype=single),
        np.empty((n_linear, TILE), dtype=single),
        np.empty((n_features, TILE), dtype=single),
        np.empty((n_linear, TILE), dtype=single),
        np.empty(block_size, dtype=np.bool_),
        np.empty((block_size, TILE), dtype=single),
        np.empty(TILE, dtype=single),
        np.empty(TILE, dtype=single),
        np.empty(TILE, dtype=single),
        np.empty(TILE, dtype=single),
        np.empty(TILE, dtype=single),
        np.empty(TILE, dtype=np.int32),
    )


@part()
def _log_peak(model, k):
    log_weight = max(model.log_mass[k] + model.clock[LOG_SCALE], model.clock[LOG_FLOOR])
    return log_weight + model.log_normaliser[factor_index(model, k)]


@part()
def _prepare(model, members, first, n, beta, work):
    """Find the block's origin and the natural parameters of its n components."""
    n_features = work.origin.shape[0]
    n_linear = work.features.shape[0]
    n_products = n_linear - n_features
    precision = np.empty((n_features, n_features))
    shift = np.empty(n_features)
    for d in range(n_features):
        total = 0.0
        for g in range(n):
            total += model.mean[members[first + g], d]
        work.origin[d] = total / n
    for g in range(n):
        k = members[first + g]
        for d in range(n_features):
            shift[d] = model.mean[k, d] - work.origin[d]
            work.shifts[g, d] = shift[d]
        constant = set_natural(model, k, shift, work.parameters, g, precision)
        peak = _log_peak(model, k)
        for p in range(n_linear):
            work.parameters[g, p] *= beta
        work.parameters[g, n_linear] = beta * (peak - 0.5 * constant)
        for p in range(n_products):
            work.own_parameters[g, p] = work.parameters[g, p]
        work.own_parameters[g, n_products] = beta * peak


@part()
def _load(rows, row_weights, numbers, first, n_rows, key, work):
    """Load a tile of rows, their uniforms and weights; what is left over of it weighs nothing."""
    n_features = work.origin.shape[0]
    for r in range(TILE):
        i = first + min(r, n_rows - 1)
        for d in range(n_features):
            work.columns[d, r] = rows[i, d] - work.origin[d]
        work.uniforms[r] = uniform(key, numbers[i], 0)
        work.row_weights[r] = row_weights[i] if r < n_rows else 0.0


@part()
def _float32_suffices(layout, n, rows, first, last, work):
    """Mark the components that need their own frame; False if float32 cannot hold the rows."""
    n_features = work.origin.shape[0]
    n_linear = work.features.shape[0]
    n_products = n_linear - n_features
    reach = np.zeros((n_features, 1))
    features = np.empty((n_linear, 1))
    for i in range(first, last):
        for d in range(n_features):
            reach[d, 0] = max(reach[d, 0], abs(rows[i, d] - work.origin[d]))
    fill_products(layout, reach, features)
    for d in range(n_features):
        features[n_products + d, 0] = reach[d, 0]
        if not reach[d, 0] < _LARGEST_COORDINATE:
            return False
    for g in range(n):
        # The terms that add up to a log-joint are at most this large.
        terms = 0.0
        for p in range(n_linear):
            terms += abs(work.parameters[g, p]) * features[p, 0]
        work.in_own_frame[g] = terms > _LARGEST_TERMS
        if not terms < _LARGEST_OWN_TERMS:
            return False
    return True


@part()
def _move_to_own_frame(layout, g, work):
    """Coordinates and features of the tile about the mean of component g."""
    n_features = work.origin.shape[0]
    n_products = work.features.shape[0] - n_features
    for d in range(n_features):
        shift = np.float32(work.shifts[g, d])
        for r in range(TILE):
            work.own_columns[d, r] = work.columns[d, r] - shift
            work.own_features[n_products + d, r] = work.own_columns[d, r]
    fill_products(layout, work.own_columns, work.own_features)


@part()
def _find_posterior(layout, n, work):
    """Block posteriors of the tile: values (n, TILE); their log-sum is largest + log(total)."""
    n_features = work.origin.shape[0]
    n_linear = work.features.shape[0]
    n_products = n_linear - n_features
    fill_products(layout, work.columns, work.features)
    for d in range(n_features):
        for r in range(TILE):
            work.features[n_products + d, r] = work.columns[d, r]
    g = 0
    while g < n:
        if work.in_own_frame[g]:
            _move_to_own_frame(layout, g, work)
            evaluate_linear(work.own_parameters, g, n_products, work.own_features, work.values)
            g += 1
        elif g + 1 < n and not work.in_own_frame[g + 1]:
            evaluate_two(work.parameters, g, n_linear, work.features, work.values)
            g += 2
        else:
            evaluate_linear(work.parameters, g, n_linear, work.features, work.values)
            g += 1
    softmax(work.values, n, work.largest, work.total, work.running)


@part()
def _add_statistics(layout, n, work):
    """Add the tile's weights times features to the sums of the block's components."""
    n_linear = work.features.shape[0]
    block_size = work.values.shape[0]
    for g in range(n):
        if not largest_weight(work.values, g) > _NEGLIGIBLE:
            continue
        scale_weights(work.values, g, work.row_weights)
        if work.in_own_frame[g]:
            _move_to_own_frame(layout, g, work)
            u, features = block_size + g, work.own_features
        else:
            u, features = g, work.features
        add_weighted_features(work.values, g, n_linear, features, work.sums, u)
        add_weights(work.values, g, work.totals, u)


@part()
def _merge_sums(layout, g, place, work, reference, moments):
    """Merge sums about `reference` into the moments of `place`; False if digits were lost."""
    sums = work.sums
    mass, squares = work.totals[g, 0], work.totals[g, 1]
    if not mass > NO_MASS:
        return True
    n_features = reference.shape[0]
    n_products = sums.shape[1] - n_features
    mean = np.empty(n_features)
    point = np.empty((n_features, 1))
    products = np.empty((n_products, 1))
    scatter = np.empty((1, n_products))
    for d in range(n_features):
        point[d, 0] = sums[g, n_products + d] / mass
        mean[d] = reference[d] + point[d, 0]
    fill_products(layout, point, products)
    for p in range(n_products):
        scatter[0, p] = sums[g, p] - mass * products[p, 0]
    for d in range(min(n_products, n_features)):
        # Squares are all of the products, or the diagonal of a packed triangle.
        p = d if n_products <= n_features else d * (d + 3) // 2
        if scatter[0, p] < _DEEP_CANCELLATION * sums[g, p]:
            # A single row has no scatter to lose.
            if mass * mass > 2.0 * squares:
                return False
            scatter[:] = 0.0
            break
    merge_moments(layout, place, mass, squares, mean, scatter, moments, np.empty(n_features))
    return True


@part()
def _merge_block(layout, place, n, work, moments):
    """Merge the block's sums into the moments of its places; False if digits were lost."""
    own_mean = np.empty(work.origin.shape[0])
    block_size = work.values.shape[0]
    for g in range(n):
        for d in range(own_mean.shape[0]):
            own_mean[d] = work.origin[d] + work.shifts[g, d]
        if not _merge_sums(layout, g, place + g, work, work.origin, moments):
            return False
        if not _merge_sums(layout, block_size + g, place + g, work, own_mean, moments):
            return False
    return True


@part()
def _find_posterior_exactly(model, members, place, n, rows, first, n_rows, beta, values, log_sums):
    """Block posteriors in float64, from differences to each mean alone.

    values (n, n_rows) receives them, log_sums[first:] the logarithms of their sums.
    """
    columns = np.ascontiguousarray(rows[first : first + n_rows].T)
    scratch = np.empty((columns.shape[0] + 1, n_rows))
    for g in range(n):
        k = members[place + g]
        squared_distances(model, k, columns, scratch, values[g])
        peak = _log_peak(model, k)
        for r in range(n_rows):
            values[g, r] = beta * (peak - 0.5 * values[g, r])
    for r in range(n_rows):
        largest, total = -np.inf, 0.0
        for g in range(n):
            largest = max(largest, values[g, r])
        for g in range(n):
            values[g, r] = math.exp(values[g, r] - largest)
            total += values[g, r]
        for g in range(n):
            values[g, r] /= total
        log_sums[first + r] = largest + math.log(total)


@part()
def _add_statistics_exactly(layout, n, rows, row_weights, first, n_rows, values, place, moments):
    """Merge the moments of the tile into those of the block's places, in float64."""
    n_features = rows.shape[1]
    mean = np.empty(n_features)
    difference = np.empty(n_features)
    scatter = np.empty((1, moments[3].shape[1]))
    weights = np.empty(n_rows)
    kept = np.empty((n_features, n_rows))
    for g in range(n):
        mass, squares = 0.0, 0.0
        for r in range(n_rows):
            weights[r] = values[g, r] * row_weights[first + r]
            mass += weights[r]
            squares += weights[r] * weights[r]
        if not mass > NO_MASS:
            continue
        for d in range(n_features):
            total = 0.0
            for r in range(n_rows):
                total += weights[r] * rows[first + r, d]
            mean[d] = total / mass
            for r in range(n_rows):
                kept[d, r] = rows[first + r, d] - mean[d]
        for p in range(scatter.shape[1]):
            scatter[0, p] = 0.0
        add_outers(layout, weights, kept, n_rows, scatter[0])
        merge_moments(layout, place + g, mass, squares, mean, scatter, moments, difference)


@part()
def _clear(place, n, moments, work):
    for g in range(n):
        moments[0][place + g] = 0.0
        moments[1][place + g] = 0.0
    for g in range(work.sums.shape[0]):
        work.totals[g, 0] = 0.0
        work.totals[g, 1] = 0.0
        for p in range(work.sums.shape[1]):
            work.sums[g, p] = 0.0


@kernel()
def sweep_blocks(
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
    exact,
    drawn,
    moments,
    log_sums,
):
    """Draw a component for all rows of some blocks, and sum up the statistics of the components.

    Parameters
    ----------
    model : the mixture, frozen
    rows (B, D), row_weights (B,), numbers (B,) : the rows of these blocks, their weights, and
        their numbers, which choose the draws
    members, places (n_blocks + 1,) : block b holds the components members[places[b]:places[b + 1]]
    ends (n_blocks + 1,) : its rows are ends[b] - ends[first_block] .. ends[b + 1] - ...
    first_block, last_block : the blocks to work on
    beta : inverse temperature
    key : of the draws; `greedy` takes the best component of the block instead
    exact : compute everything in float64
    drawn (B,) : receives each row's component
    moments : (mass, squares, mean, scatter) by place, or empty ones if none are wanted
    log_sums (B,) : receives log sum_k p(x, k)^beta over the row's block
    """
    layout = layout_of(model)
    wants_moments = moments[0].shape[0] > 0
    block_size = 1
    for b in range(first_block, last_block):
        block_size = max(block_size, places[b + 1] - places[b])
    work = _make_workspace(rows.shape[1], model.covariance.shape[1], block_size)
    exact_values = np.empty((block_size, TILE))
    for b in range(first_block, last_block):
        place, n = places[b], places[b + 1] - places[b]
        first_row, last_row = ends[b] - ends[first_block], ends[b + 1] - ends[first_block]
        if wants_moments:
            _clear(place, n, moments, work)
        if first_row == last_row:
            continue
        _prepare(model, members, place, n, beta, work)
        suffices = not exact and _float32_suffices(layout, n, rows, first_row, last_row, work)
        # A second attempt in float64 is made if the first has lost digits.
        for attempt in range(2):
            fast = suffices and attempt == 0
            for first in range(first_row, last_row, TILE):
                n_rows = min(TILE, last_row - first)
                _load(rows, row_weights, numbers, first, n_rows, key, work)
                if fast:
                    _find_posterior(layout, n, work)
                    for r in range(n_rows):
                        log_sums[first + r] = work.largest[r] + math.log(work.total[r])
                else:
                    values = exact_values[:, :n_rows]
                    _find_posterior_exactly(
                        model, members, place, n, rows, first, n_rows, beta, values, log_sums
                    )
                    for g in range(n):
                        for r in range(n_rows):
                            work.values[g, r] = values[g, r]
                if greedy:
                    find_best(work.values, n, work.running, work.drawn)
                else:
                    draw(work.values, n, work.uniforms, work.running, work.drawn)
                for r in range(n_rows):
                    drawn[first + r] = members[place + work.drawn[r]]
                if wants_moments and fast:
                    _add_statistics(layout, n, work)
                elif wants_moments:
                    _add_statistics_exactly(
                        layout, n, rows, row_weights, first, n_rows, values, place, moments
                    )
            if not (wants_moments and fast) or _merge_block(layout, place, n, work, moments):
                break
            _clear(place, n, moments, work)

"""Full and tied covariances: lower triangles packed row by row, P = D (D + 1) / 2."""

from __future__ import annotations

import math

import numpy as np

from pickmix.closed_form.lanes import (
    LANES,
    copy_row,
    invert_pivots,
    multiply,
    subtract_product,
)
from pickmix.closed_form.models import FullModel, TiedModel, TriangularLayout
from pickmix.closed_form.operations import (
    FAST_SUMS,
    HALF_LOG_2PI,
    add_outer,
    add_outers,
    factor_index,
    factorise_lanes,
    fill_products,
    has_own_covariance,
    implements,
    layout_of,
    set_natural,
    squared_distance,
    squared_distances,
)
from pickmix.compiled import part


@part(fastmath=FAST_SUMS)
def whitened_norm(means, k, factors, f, rows, i, scratch):
    """|W (x - mean)|^2 for x = rows[i], mean = means[k] and packed lower triangle factors[f]."""
    n_features = means.shape[1]
    for d in range(n_features):
        scratch[d] = rows[i, d] - means[k, d]
    total = 0.0
    p = 0
    for d in range(n_features):
        y = 0.0
        for j in range(d + 1):
            y += factors[f, p + j] * scratch[j]
        total += y * y
        p += d + 1
    return total


@part(fastmath=FAST_SUMS)
def whitened_norms(mean, factor, columns, scratch, out):
    """|W (x - mean)|^2 for every column x; the loops over columns vectorise."""
    n_features, n_rows = columns.shape
    differences = scratch[:n_features]
    y = scratch[n_features]
    for i in range(n_features):
        for r in range(n_rows):
            differences[i, r] = columns[i, r] - mean[i]
    for r in range(n_rows):
        out[r] = 0.0
    p = 0
    for i in range(n_features):
        for r in range(n_rows):
            y[r] = factor[p] * differences[0, r]
        for j in range(1, i + 1):
            w = factor[p + j]
            for r in range(n_rows):
                y[r] += w * differences[j, r]
        for r in range(n_rows):
            out[r] += y[r] * y[r]
        p += i + 1


@part(fastmath=FAST_SUMS)
def add_packed_outer(weight, difference, scatter, u):
    """scatter[u] += weight * difference difference', packed."""
    p = 0
    for i in range(difference.shape[0]):
        scaled = weight * difference[i]
        for j in range(i + 1):
            scatter[u, p + j] += scaled * difference[j]
        p += i + 1


@part(fastmath=FAST_SUMS)
def add_packed_outers(weights, differences, n, scatter):
    """scatter += sum_r weights[r] d_r d_r', packed; the sums over columns vectorise."""
    n_features = differences.shape[0]
    scaled = np.empty(n)
    p = 0
    for i in range(n_features):
        for r in range(n):
            scaled[r] = weights[r] * differences[i, r]
        for j in range(i + 1):
            total = 0.0
            for r in range(n):
                total += scaled[r] * differences[j, r]
            scatter[p] += total
            p += 1


@part(fastmath=FAST_SUMS)
def factorise_packed(factor, n_features, reg_covar, log_normaliser):
    """Replace C by W = L^-1 where L L' = C + reg_covar I, packed (P, LANES), one per lane.

    Both halves run over independent entries in their inner loops, so that no sum waits for itself.
    """
    # Row n_features of the scratch stays zero; the first rows hold the diagonal of C at first.
    scratch = np.zeros((n_features + 1, LANES))
    p = 0
    for j in range(n_features):
        copy_row(scratch, j, factor, p)
        p += j + 2
    # Right-looking Cholesky: finish column j, then take it out of everything to its right. The
    # diagonal is stored inverted.
    diagonal = 0
    for j in range(n_features):
        invert_pivots(factor, diagonal, scratch, j, reg_covar)
        below = diagonal + j + 1
        for i in range(j + 1, n_features):
            multiply(factor, below, factor, below, factor, diagonal)
            other = diagonal + j + 1
            for m in range(1, i - j + 1):
                subtract_product(factor, below + m, factor, below, factor, other)
                other += j + m + 1
            below += i + 1
        diagonal += j + 2
    # Invert, row by row: W_ij = W_ii (-sum_{j <= m < i} L_im W_mj).
    determinant = np.ones(LANES)
    log_normaliser[:] = -n_features * HALF_LOG_2PI
    p = 0
    for i in range(n_features):
        for j in range(i):
            copy_row(scratch, j, scratch, n_features)
        q = 0
        for m in range(i):
            for j in range(m + 1):
                subtract_product(scratch, j, factor, p + m, factor, q + j)
            q += m + 1
        for j in range(i):
            multiply(factor, p + j, factor, p + i, scratch, j)
        for lane in range(LANES):
            determinant[lane] *= factor[p + i, lane]
        p += i + 1
        # One logarithm for five pivots. Columns spread less than 1e60, so their product cannot
        # underflow; if it overflows, variances are below 1e-120 and count as singular.
        if i % 5 == 4 or i == n_features - 1:
            for lane in range(LANES):
                log_normaliser[lane] += math.log(determinant[lane])
                determinant[lane] = 1.0


@implements(layout_of, FullModel, TiedModel)
def _(model):
    return TriangularLayout(model.mean.shape[1])


@implements(factor_index, FullModel)
def _(model, k):
    return k


@implements(factor_index, TiedModel)
def _(model, k):
    return 0


@implements(squared_distance, FullModel)
def _(model, k, rows, i, scratch):
    return whitened_norm(model.mean, k, model.factor, k, rows, i, scratch)


@implements(squared_distance, TiedModel)
def _(model, k, rows, i, scratch):
    return whitened_norm(model.mean, k, model.factor, 0, rows, i, scratch)


@implements(squared_distances, FullModel)
def _(model, k, columns, scratch, out):
    whitened_norms(model.mean[k], model.factor[k], columns, scratch, out)


@implements(squared_distances, TiedModel)
def _(model, k, columns, scratch, out):
    whitened_norms(model.mean[k], model.factor[0], columns, scratch, out)


@implements(add_outer, TriangularLayout)
def _(layout, weight, difference, scatter, u):
    add_packed_outer(weight, difference, scatter, u)


@implements(add_outers, TriangularLayout)
def _(layout, weights, differences, n, scatter):
    add_packed_outers(weights, differences, n, scatter)


@implements(factorise_lanes, TriangularLayout)
def _(layout, factor, reg_covar, log_normaliser):
    factorise_packed(factor, layout.n_features, reg_covar, log_normaliser)


@implements(has_own_covariance, FullModel)
def _(model):
    return True


@implements(has_own_covariance, TiedModel)
def _(model):
    return False


@implements(fill_products, TriangularLayout)
def _(layout, columns, features):
    p = 0
    for i in range(columns.shape[0]):
        for j in range(i + 1):
            for r in range(columns.shape[1]):
                features[p, r] = columns[i, r] * columns[j, r]
            p += 1


@implements(set_natural, FullModel, TiedModel)
def _(model, k, shift, parameters, g, scratch):
    n_features = shift.shape[0]
    f = factor_index(model, k)
    # The precision W' W, from the packed lower triangle W.
    for i in range(n_features):
        for j in range(i + 1):
            total = 0.0
            p = i * (i + 1) // 2
            for m in range(i, n_features):
                total += model.factor[f, p + i] * model.factor[f, p + j]
                p += m + 1
            scratch[i, j] = total
            scratch[j, i] = total
    p = 0
    for i in range(n_features):
        for j in range(i):
            parameters[g, p] = -scratch[i, j]
            p += 1
        parameters[g, p] = -0.5 * scratch[i, i]
        p += 1
    constant = 0.0
    for i in range(n_features):
        total = 0.0
        for j in range(n_features):
            total += scratch[i, j] * shift[j]
        parameters[g, p + i] = total
        constant += total * shift[i]
    return constant

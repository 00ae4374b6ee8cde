"""Diagonal (P = D variances) and spherical (P = 1 variance) covariances."""

from __future__ import annotations

import math

import numpy as np

from pickmix.closed_form.lanes import LANES
from pickmix.closed_form.models import (
    DiagonalLayout,
    DiagonalModel,
    SphericalLayout,
    SphericalModel,
)
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


@implements(layout_of, DiagonalModel)
def _(model):
    return DiagonalLayout(model.mean.shape[1])


@implements(layout_of, SphericalModel)
def _(model):
    return SphericalLayout(model.mean.shape[1])


@implements(factor_index, DiagonalModel, SphericalModel)
def _(model, k):
    return k


@implements(squared_distance, DiagonalModel)
def _(model, k, rows, i, scratch):
    total = 0.0
    for d in range(rows.shape[1]):
        y = model.factor[k, d] * (rows[i, d] - model.mean[k, d])
        total += y * y
    return total


@implements(squared_distance, SphericalModel)
def _(model, k, rows, i, scratch):
    total = 0.0
    for d in range(rows.shape[1]):
        y = rows[i, d] - model.mean[k, d]
        total += y * y
    return total * model.factor[k, 0] * model.factor[k, 0]


@part(fastmath=FAST_SUMS)
def add_scaled_squares(columns, i, mean, factor, out):
    """out[r] += (factor (columns[i, r] - mean))^2."""
    for r in range(columns.shape[1]):
        y = factor * (columns[i, r] - mean)
        out[r] += y * y


@implements(squared_distances, DiagonalModel)
def _(model, k, columns, scratch, out):
    for r in range(columns.shape[1]):
        out[r] = 0.0
    for i in range(columns.shape[0]):
        add_scaled_squares(columns, i, model.mean[k, i], model.factor[k, i], out)


@implements(squared_distances, SphericalModel)
def _(model, k, columns, scratch, out):
    for r in range(columns.shape[1]):
        out[r] = 0.0
    for i in range(columns.shape[0]):
        add_scaled_squares(columns, i, model.mean[k, i], model.factor[k, 0], out)


@implements(add_outer, DiagonalLayout)
def _(layout, weight, difference, scatter, u):
    for i in range(difference.shape[0]):
        scatter[u, i] += weight * difference[i] * difference[i]


@implements(add_outer, SphericalLayout)
def _(layout, weight, difference, scatter, u):
    total = 0.0
    for i in range(difference.shape[0]):
        total += difference[i] * difference[i]
    scatter[u, 0] += weight * total / difference.shape[0]


@part(fastmath=FAST_SUMS)
def weighted_squares(weights, values, n):
    """sum_r weights[r] values[r]^2."""
    total = 0.0
    for r in range(n):
        total += weights[r] * values[r] * values[r]
    return total


@implements(add_outers, DiagonalLayout)
def _(layout, weights, differences, n, scatter):
    for i in range(differences.shape[0]):
        scatter[i] += weighted_squares(weights, differences[i], n)


@implements(add_outers, SphericalLayout)
def _(layout, weights, differences, n, scatter):
    total = 0.0
    for i in range(differences.shape[0]):
        total += weighted_squares(weights, differences[i], n)
    scatter[0] += total / differences.shape[0]


@implements(factorise_lanes, DiagonalLayout, SphericalLayout)
def _(layout, factor, reg_covar, log_normaliser):
    n_features = layout.n_features
    # One variance stands for n_features of them in the spherical structure.
    repeats = n_features / factor.shape[0]
    log_normaliser[:] = -n_features * HALF_LOG_2PI
    for i in range(factor.shape[0]):
        for lane in range(LANES):
            variance = factor[i, lane] + reg_covar
            if not variance > 0.0:
                variance = np.nan
            factor[i, lane] = 1.0 / math.sqrt(variance)
            log_normaliser[lane] -= 0.5 * repeats * math.log(variance)


@implements(has_own_covariance, DiagonalModel, SphericalModel)
def _(model):
    return True


@implements(fill_products, DiagonalLayout)
def _(layout, columns, features):
    for i in range(columns.shape[0]):
        for r in range(columns.shape[1]):
            features[i, r] = columns[i, r] * columns[i, r]


@implements(fill_products, SphericalLayout)
def _(layout, columns, features):
    for r in range(columns.shape[1]):
        features[0, r] = 0.0
    for i in range(columns.shape[0]):
        for r in range(columns.shape[1]):
            features[0, r] += columns[i, r] * columns[i, r]
    # As in a spherical scatter: the mean over coordinates.
    for r in range(columns.shape[1]):
        features[0, r] /= columns.shape[0]


@implements(set_natural, DiagonalModel)
def _(model, k, shift, parameters, g, scratch):
    n_features = shift.shape[0]
    constant = 0.0
    for i in range(n_features):
        precision = model.factor[k, i] * model.factor[k, i]
        parameters[g, i] = -0.5 * precision
        parameters[g, n_features + i] = precision * shift[i]
        constant += precision * shift[i] * shift[i]
    return constant


@implements(set_natural, SphericalModel)
def _(model, k, shift, parameters, g, scratch):
    n_features = shift.shape[0]
    precision = model.factor[k, 0] * model.factor[k, 0]
    parameters[g, 0] = -0.5 * precision * n_features
    constant = 0.0
    for i in range(n_features):
        parameters[g, 1 + i] = precision * shift[i]
        constant += precision * shift[i] * shift[i]
    return constant

"""Compiled evaluation of log-joints, written once for every covariance structure.

Rows come as (B, D) float64 in coordinates centred on the data, or transposed as columns (D, B)
where every component meets every row. Each kernel works on a range start..stop of rows or
components and writes nothing outside it.
"""

from __future__ import annotations

import numpy as np

# Imported for their implementations of the operations.
from pickmix.closed_form import diagonal, full  # noqa: F401
from pickmix.closed_form.operations import (
    LOG_FLOOR,
    LOG_SCALE,
    factor_index,
    squared_distance,
    squared_distances,
)
from pickmix.closed_form.prefetch import prefetch_row
from pickmix.compiled import kernel

# Models of up to this many numbers (256 KB) stay in the cache, and need no fetching ahead.
_CACHED_NUMBERS = 32_768
# How many rows ahead of the one in hand the components of a row are fetched.
_ROWS_AHEAD = 8


@kernel()
def evaluate_candidates(model, rows, candidates, log_joint, start, stop):
    """log_joint[i, j] = log p(x_i, k) for k = candidates[i, j]; -inf where k < 0."""
    scratch = np.empty(rows.shape[1])
    scattered = model.mean.size + model.factor.size > _CACHED_NUMBERS
    log_scale, log_floor = model.clock[LOG_SCALE], model.clock[LOG_FLOOR]
    for i in range(start, stop):
        ahead = min(i + _ROWS_AHEAD, stop - 1)
        for j in range(candidates.shape[1] if scattered else 0):
            k = candidates[ahead, j]
            if k >= 0:
                prefetch_row(model.factor, factor_index(model, k))
                prefetch_row(model.mean, k)
                prefetch_row(model.log_mass, k)
                prefetch_row(model.log_normaliser, factor_index(model, k))
        for j in range(candidates.shape[1]):
            k = candidates[i, j]
            if k < 0:
                log_joint[i, j] = -np.inf
                continue
            log_weight = max(model.log_mass[k] + log_scale, log_floor)
            log_joint[i, j] = (
                log_weight
                + model.log_normaliser[factor_index(model, k)]
                - 0.5 * squared_distance(model, k, rows, i, scratch)
            )


@kernel()
def evaluate_all(model, columns, log_joint, start, stop):
    """log_joint[k, r] = log p(x_r, k) for the components start..stop and all columns (D, R)."""
    scratch = np.empty((columns.shape[0] + 1, columns.shape[1]))
    log_scale, log_floor = model.clock[LOG_SCALE], model.clock[LOG_FLOOR]
    for k in range(start, stop):
        out = log_joint[k]
        squared_distances(model, k, columns, scratch, out)
        constant = max(model.log_mass[k] + log_scale, log_floor)
        constant += model.log_normaliser[factor_index(model, k)]
        for r in range(out.shape[0]):
            out[r] = constant - 0.5 * out[r]

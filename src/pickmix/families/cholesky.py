"""Factors of many small covariances: W with W' W = (C + diag(floors))^-1, packed as a layout says.

Compiled, eight matrices side by side, one per vector lane; and in NumPy. With both comes the
shrinkage of `gaussian_prior.py`, so that a covariance is loaded once.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from pickmix.compiled import kernel, part
from pickmix.families.lanes import (
    LANES,
    copy_row,
    invert_pivots,
    multiply,
    subtract_product,
)
from pickmix.families.layout import SCALE, SQUARE_SCALE
from pickmix.prefetch import prefetch_row

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
# A pivot below this share of its diagonal has cancelled down to noise: the matrix is singular.
_NOISE = 1e-15
_FAST_SUMS = {"reassoc", "contract", "nsz"}


@part(fastmath=_FAST_SUMS)
def _factorise_lanes(layout, factor, floors, log_normaliser):
    """Replace C by W = L^-1 where L L' = C + diag(floors), packed (P, LANES), one per lane.

    Both halves run over independent entries in their inner loops, so that no sum waits for itself.
    """
    first, last, starts, _ = layout
    n = first.shape[0]
    # Row n of the scratch stays zero; the first rows hold the diagonal of C at first.
    scratch = np.zeros((n + 1, LANES))
    for j in range(n):
        copy_row(scratch, j, factor, starts[j + 1] - 1)
    # Right-looking Cholesky: finish column j, then take it out of everything to its right. The
    # diagonal is stored inverted.
    for j in range(n):
        diagonal = starts[j + 1] - 1
        invert_pivots(factor, diagonal, scratch, j, floors[j])
        for i in range(j + 1, last[j] + 1):
            row = starts[i] - first[i]
            multiply(factor, row + j, factor, row + j, factor, diagonal)
            for m in range(j + 1, i + 1):
                other = starts[m] - first[m] + j
                subtract_product(factor, row + m, factor, row + j, factor, other)
    # Invert, row by row: W_ij = W_ii (-sum_{j <= m < i} L_im W_mj).
    determinant = np.ones(LANES)
    log_normaliser[:] = -n * HALF_LOG_2PI
    for i in range(n):
        row = starts[i] - first[i]
        for j in range(first[i], i):
            copy_row(scratch, j, scratch, n)
        for m in range(first[i], i):
            for j in range(first[i], m + 1):
                subtract_product(scratch, j, factor, row + m, factor, starts[m] - first[m] + j)
        for j in range(first[i], i):
            multiply(factor, row + j, factor, row + i, scratch, j)
        for lane in range(LANES):
            determinant[lane] *= factor[row + i, lane]
        # One logarithm for five pivots. Columns spread less than 1e60, so their product cannot
        # underflow; if it overflows, variances are below 1e-120 and count as singular.
        if i % 5 == 4 or i == n - 1:
            for lane in range(LANES):
                log_normaliser[lane] += math.log(determinant[lane])
                determinant[lane] = 1.0


@kernel()
def factorise_components(
    layout,
    scatter,
    mass,
    squares,
    decay,
    members,
    in_order,
    least_count,
    pooled,
    averages,
    floors,
    factor,
    log_normaliser,
    failures,
    start,
    stop,
):
    """Factorise the covariances of the components members[start:stop].

    With a least count, components of fewer effective rows lean on the pooled covariance (P,).
    `in_order`: row u of the scatter is that of members[u]. `averages`: all variances of a component
    are one. Where there is no factor, failures[u] is True and the old one stays.
    """
    n_packed = scatter.shape[1]
    lanes = np.ones((n_packed, LANES))
    found = np.empty(LANES)
    for begin in range(start, stop, LANES):
        n_lanes = min(LANES, stop - begin)
        for lane in range(n_lanes):
            k = members[begin + lane]
            if begin + lane + LANES < stop:
                ahead = members[begin + lane + LANES]
                prefetch_row(factor, ahead)
                if not in_order:
                    prefetch_row(scatter, ahead)
            source = begin + lane if in_order else k
            for p in range(n_packed):
                lanes[p, lane] = scatter[source, p]
            if averages:
                total = 0.0
                for p in range(n_packed):
                    total += scatter[source, p]
                for p in range(n_packed):
                    lanes[p, lane] = total / n_packed
            trust = 1.0
            if least_count > 0.0:
                weight = mass[k] * decay[SCALE]
                spread = squares[k] * decay[SQUARE_SCALE] * least_count
                trust = min(1.0, weight * weight / spread) if spread > 0.0 else 0.0
            if trust < 1.0:
                for p in range(n_packed):
                    lanes[p, lane] = trust * lanes[p, lane] + (1.0 - trust) * pooled[p]
        _factorise_lanes(layout, lanes, floors, found)
        for lane in range(n_lanes):
            k = members[begin + lane]
            failures[begin + lane] = not found[lane] < np.inf
            if not failures[begin + lane]:
                for p in range(n_packed):
                    factor[k, p] = lanes[p, lane]
                log_normaliser[k] = found[lane]


def factorise(
    covariances: np.ndarray, n_features: int, floors: float | np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Factors (K, P), log-normalisers (K,) and flags of failure (K,) of packed covariances.

    P = D means diagonals, else packed lower triangles. The floors, one number or (D,), are added
    to variances.
    """
    if covariances.shape[1] == n_features:
        variances = covariances + floors
        failures = np.asarray(~(variances > 0.0).all(axis=1))
        variances = np.where(failures[:, None], 1.0, variances)
        log_normaliser = -0.5 * np.log(variances).sum(axis=1) - n_features * HALF_LOG_2PI
        return 1.0 / np.sqrt(variances), log_normaliser, failures
    rows, columns = _triangle(n_features)
    matrices = unpack_symmetric(covariances, n_features)
    diagonal = np.arange(n_features)
    matrices[:, diagonal, diagonal] += floors
    lower = _cholesky(matrices)
    pivots = lower[:, diagonal, diagonal]
    sound = np.square(pivots) > _NOISE * matrices[:, diagonal, diagonal]
    failures = ~sound.all(axis=1)
    lower[failures] = np.eye(n_features)
    inverse = np.zeros_like(lower)
    for i in range(n_features):
        inverse[:, i, i] = 1.0 / lower[:, i, i]
        row = np.einsum("kj,kjl->kl", lower[:, i, :i], inverse[:, :i, :i])
        inverse[:, i, :i] = -row * inverse[:, i, i, None]
    log_normaliser = np.log(inverse[:, diagonal, diagonal]).sum(axis=1) - n_features * HALF_LOG_2PI
    return np.ascontiguousarray(inverse[:, rows, columns]), log_normaliser, failures


def _cholesky(matrices: np.ndarray) -> np.ndarray:
    """Lower Cholesky factors; NaN where there is none."""
    try:
        return np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        lower = np.full_like(matrices, np.nan)
        for k, matrix in enumerate(matrices):
            try:
                lower[k] = np.linalg.cholesky(matrix)
            except np.linalg.LinAlgError:
                continue
        return lower


@functools.cache
def _triangle(n_features: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of a lower triangle, row by row."""
    return np.tril_indices(n_features)


def unpack_lower(packed: np.ndarray, n_features: int) -> np.ndarray:
    """Packed lower triangles (K, P) as matrices (K, D, D)."""
    lower = np.zeros((packed.shape[0], n_features, n_features))
    rows, columns = _triangle(n_features)
    lower[:, rows, columns] = packed
    return lower


def unpack_symmetric(packed: np.ndarray, n_features: int) -> np.ndarray:
    """Packed symmetric matrices (K, P) as (K, D, D)."""
    full = unpack_lower(packed, n_features)
    rows, columns = _triangle(n_features)
    full[:, columns, rows] = packed
    return full


def pack(matrices: np.ndarray) -> np.ndarray:
    """Lower triangles of matrices (K, D, D), row by row, (K, P)."""
    rows, columns = _triangle(matrices.shape[-1])
    return np.ascontiguousarray(matrices[:, rows, columns])

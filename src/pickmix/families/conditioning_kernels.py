"""Each cell given the other cells of its row, compiled: the arithmetic of `DensePart.leave_out`.

Covariances of seen cells are factorised for LANES components at a time. Rows that have seen the
same cells share the factors, if they have no noise.
"""

# Numba infers types in the kernels.
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
from __future__ import annotations

import math

import numpy as np

from pickmix.compiled import kernel, part
from pickmix.families.lanes import LANES, copy_row, invert_pivots, multiply, subtract_product

# Rows that are worked on together.
ROWS_AT_A_TIME = 8
# Components with less than exp of this, in relation to the largest, say nothing.
_LEAST = -45.0
_ROUNDING = 1e-13
_LOG_2PI = math.log(2.0 * math.pi)


def in_lanes(values: np.ndarray) -> np.ndarray:
    """Numbers of components (K, n) as (K / LANES, n, LANES), the last component repeated.

    Examples
    --------
    >>> in_lanes(np.arange(10.0)[:, None]).shape
    (2, 1, 8)
    """
    n_components = values.shape[0]
    padded = np.minimum(np.arange(-(-n_components // LANES) * LANES), n_components - 1)
    return np.ascontiguousarray(values[padded].reshape(-1, LANES, values.shape[1]).swapaxes(1, 2))


@part()
def _factorise(matrix, noise, has_noise, seen, s, d, lower, diagonal, inverse):
    """Inverses of the Cholesky factors of the seen block, rows of LANES numbers."""
    for a in range(s):
        i = seen[a]
        for b in range(a + 1):
            here = a * s + b
            copy_row(lower, here, matrix, i * d + seen[b])
            if has_noise:
                for lane in range(LANES):
                    lower[here, lane] += noise[i, seen[b]]
            if b == a:
                copy_row(diagonal, 0, lower, here)
            for m in range(b):
                subtract_product(lower, here, lower, a * s + m, lower, b * s + m)
            if b < a:
                multiply(lower, here, lower, here, inverse, b * s + b)
        copy_row(inverse, a * s + a, lower, a * s + a)
        invert_pivots(inverse, a * s + a, diagonal, 0, 0.0)
        for b in range(a):
            here = a * s + b
            for lane in range(LANES):
                inverse[here, lane] = 0.0
            for m in range(b, a):
                subtract_product(inverse, here, lower, a * s + m, inverse, m * s + b)
            multiply(inverse, here, inverse, here, inverse, a * s + a)


@part()
def _precisions(s, inverse, precisions, log_precisions):
    """The diagonal of P, the square of the inverse factor, with a minus; logarithms without."""
    for a in range(s):
        for lane in range(LANES):
            precisions[a, lane] = 0.0
    for a in range(s):
        for b in range(a + 1):
            subtract_product(precisions, b, inverse, a * s + b, inverse, a * s + b)
    for a in range(s):
        for lane in range(LANES):
            log_precisions[a, lane] = math.log(-precisions[a, lane])


@part()
def _pull(s, away, inverse, halves, pulls):
    """P (x - mu)."""
    for a in range(s):
        for lane in range(LANES):
            halves[a, lane] = pulls[a, lane] = 0.0
    for a in range(s):
        for b in range(a + 1):
            subtract_product(halves, a, inverse, a * s + b, away, b)
        for b in range(a + 1):
            # The minus of `halves` and that of the subtraction make a plus.
            subtract_product(pulls, b, inverse, a * s + b, halves, a)


@part()
def _weigh(log_conditionals, means, variances, log_joint, far, slack):
    """log p(x_-j), mean, spread of one cell, and 1 if digits may have been lost."""
    K = log_joint.shape[0]
    largest = -np.inf
    for k in range(K):
        largest = max(largest, log_joint[k] - log_conditionals[k])
    doubtful, total, mean = 0.0, 0.0, 0.0
    for k in range(K):
        below = log_joint[k] - log_conditionals[k] - largest
        if log_conditionals[k] < far and below + slack - _ROUNDING * log_conditionals[k] > 0.0:
            doubtful = 1.0
        share = math.exp(below) if below > _LEAST else 0.0
        total += share
        mean += share * means[k]
        # From here on it is the share.
        log_conditionals[k] = share
    if not total > 0.0:
        return np.nan, np.nan, np.nan, 0.0
    mean /= total
    square = 0.0
    for k in range(K):
        square += log_conditionals[k] * (variances[k] + (means[k] - mean) ** 2)
    return largest + math.log(total), mean, math.sqrt(square / total), doubtful


@kernel()
def leave_out_groups(
    values, seen, noise, has_noise, matrices, means, log_joint, groups, far, slack, out, first, last
):
    """Answer for the groups first to last - 1 of rows, in `out` (4, R, d).

    Group g is the rows groups[g] to groups[g + 1] - 1, which have seen the same cells; with noise,
    a single row. `values` and `seen` are (R, d), `noise` (R, d, d); `matrices` (B, d * d, LANES)
    and `means` (B, d, LANES) are those of components in lanes; `log_joint` is (R, K). Of each cell
    that was seen there comes log p(x_-j), the mean and the spread of x_j given x_-j, and 1 if
    digits may have been lost: where log p_k(x_j | x_-j) is below `far` and component k within
    `slack` of the largest. All is NaN where a covariance is singular.
    """
    n_blocks, d = matrices.shape[0], values.shape[1]
    lower, inverse = np.empty((d * d, LANES)), np.empty((d * d, LANES))
    diagonal, away, halves = np.empty((1, LANES)), np.empty((d, LANES)), np.empty((d, LANES))
    pulls, precisions = np.empty((d, LANES)), np.empty((d, LANES))
    log_precisions = np.empty((d, LANES))
    said = np.empty((ROWS_AT_A_TIME, d, 3, n_blocks * LANES))
    cells = np.empty(d, dtype=np.int64)
    for group in range(first, last):
        start, stop = groups[group], groups[group + 1]
        s = 0
        for column in range(d):
            if seen[start, column]:
                cells[s] = column
                s += 1
        for block in range(n_blocks):
            own_noise = noise[start if has_noise else 0]
            own = matrices[block]
            _factorise(own, own_noise, has_noise, cells, s, d, lower, diagonal, inverse)
            _precisions(s, inverse, precisions, log_precisions)
            for row in range(start, stop):
                for a in range(s):
                    x = values[row, cells[a]]
                    for lane in range(LANES):
                        away[a, lane] = x - means[block, cells[a], lane]
                _pull(s, away, inverse, halves, pulls)
                for a in range(s):
                    x = values[row, cells[a]]
                    for lane in range(LANES):
                        k = block * LANES + lane
                        residual = -pulls[a, lane] / precisions[a, lane]
                        logarithm = log_precisions[a, lane] - _LOG_2PI
                        said[row - start, a, 0, k] = 0.5 * (logarithm - pulls[a, lane] * residual)
                        said[row - start, a, 1, k] = x - residual
                        said[row - start, a, 2, k] = -1.0 / precisions[a, lane]
        for row in range(start, stop):
            for a in range(s):
                here = said[row - start, a]
                answers = _weigh(here[0], here[1], here[2], log_joint[row], far, slack)
                for n in range(4):
                    out[n, row, cells[a]] = answers[n]

"""Arithmetic on tiles of TILE rows, in float32: small matrix products, softmax, draws.

log p(x, k) is linear in the features (products of two coordinates, coordinates, 1), so a block of
components on a tile of rows is one matrix product of natural parameters with features, and their
statistics are another, of weights with the same features. The innermost loops run over the TILE
rows, four features at a time, which keeps the vector units busy.
"""

from __future__ import annotations

import numpy as np

from pickmix.compiled import part

TILE = 64

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


@part(fastmath=_FAST)
def add_weighted_features(weights, g, n_features, features, sums, u):
    """sums[u, p] += sum_r weights[g, r] features[p, r], added up in float64 over tiles."""
    whole = n_features - n_features % 4
    for p in range(0, whole, 4):
        a, b, c, d = _ZERO, _ZERO, _ZERO, _ZERO
        for r in range(TILE):
            weight = weights[g, r]
            a += weight * features[p, r]
            b += weight * features[p + 1, r]
            c += weight * features[p + 2, r]
            d += weight * features[p + 3, r]
        sums[u, p] += a
        sums[u, p + 1] += b
        sums[u, p + 2] += c
        sums[u, p + 3] += d
    for p in range(whole, n_features):
        a = _ZERO
        for r in range(TILE):
            a += weights[g, r] * features[p, r]
        sums[u, p] += a


@part(fastmath=_FAST)
def add_weights(weights, g, totals, u):
    """totals[u] += (sum, sum of squares) of the weights of component g."""
    total, squares = _ZERO, _ZERO
    for r in range(TILE):
        total += weights[g, r]
        squares += weights[g, r] * weights[g, r]
    totals[u, 0] += total
    totals[u, 1] += squares


@part(fastmath=_FAST)
def largest_weight(weights, g):
    largest = _ZERO
    for r in range(TILE):
        largest = max(largest, weights[g, r])
    return largest


@part(fastmath=_FAST)
def raise_floor(values, g, floor):
    """Raise `floor`, below which softmax makes values zero, by values[g]."""
    for r in range(TILE):
        floor[r] = max(floor[r], values[g, r] + _HOPELESS)


@part(fastmath=_FAST)
def softmax(values, n, largest, total, inverse):
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
def draw(weights, n, uniforms, running, drawn):
    """drawn[r] = the first g at which the running sum of weights[:n, r] passes uniforms[r]."""
    for r in range(TILE):
        running[r] = 0.0
        drawn[r] = 0
    for g in range(n - 1):
        for r in range(TILE):
            running[r] += weights[g, r]
            drawn[r] += 1 if running[r] <= uniforms[r] else 0


@part(fastmath=_FAST)
def find_best(weights, n, running, drawn):
    """drawn[r] = argmax_g weights[g, r]."""
    for r in range(TILE):
        running[r] = weights[0, r]
        drawn[r] = 0
    for g in range(1, n):
        for r in range(TILE):
            better = weights[g, r] > running[r]
            running[r] = weights[g, r] if better else running[r]
            drawn[r] = g if better else drawn[r]


@part(fastmath=_FAST)
def scale_weights(weights, g, factors):
    for r in range(TILE):
        weights[g, r] *= factors[r]

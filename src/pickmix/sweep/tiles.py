"""Arithmetic on tiles of TILE rows, in float32: softmax and draws.

The innermost loops run over the TILE rows, which keeps the vector units busy.
"""

from __future__ import annotations

import numpy as np

from pickmix.compiled import part

TILE = 64

# Sums may be reordered and divisions replaced by products; NaN and infinity keep their meaning.
FAST = {"reassoc", "contract", "nsz", "arcp"}

# Weights below exp(_LEAST_EXPONENT) of the largest, 2e-9, are none.
_LEAST_EXPONENT = np.float32(-20.0)
# So much less than the largest of its row, a value is below that however it is rounded.
_HOPELESS = np.float32(-21.0)
_SHRINK = np.float32(1.0 / 32.0)
# Taylor coefficients of exp.
_C2, _C3, _C4 = np.float32(1.0 / 2.0), np.float32(1.0 / 6.0), np.float32(1.0 / 24.0)
_C5 = np.float32(1.0 / 120.0)
_ONE, _ZERO, _TINY = np.float32(1.0), np.float32(0.0), np.float32(1e-30)


@part(fastmath=FAST)
def raise_floor(values, g, floor):
    """Raise `floor`, below which softmax makes values zero, by values[g]."""
    for r in range(TILE):
        floor[r] = max(floor[r], values[g, r] + _HOPELESS)


@part(fastmath=FAST)
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


@part(fastmath=FAST)
def draw(weights, n, uniforms, running, drawn):
    """drawn[r] = the first g at which the running sum of weights[:n, r] passes uniforms[r]."""
    for r in range(TILE):
        running[r] = 0.0
        drawn[r] = 0
    for g in range(n - 1):
        for r in range(TILE):
            running[r] += weights[g, r]
            drawn[r] += 1 if running[r] <= uniforms[r] else 0


@part(fastmath=FAST)
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

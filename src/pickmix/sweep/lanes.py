"""Arithmetic on many small matrices side by side, for partial rows.

A row of an array holds one number for each component of a block, in lanes: arrays are C-ordered
float64 (n, width), of one width, a multiple of LANES. Loops over lanes are innermost and vectorise.
"""

from __future__ import annotations

import math

from pickmix.compiled import part

LANES = 8
_CONTRACT = {"contract"}


@part(fastmath=_CONTRACT)
def add_products(a, a_row, a_step, b, b_row, b_step, n, sign, out, row):
    """out[row] += sign sum over k < n of a[a_row + k a_step] b[b_row + k b_step]."""
    for k in range(n):
        for g in range(out.shape[1]):
            out[row, g] += sign * a[a_row + k * a_step, g] * b[b_row + k * b_step, g]


@part(fastmath=_CONTRACT)
def reduce_row(base, s, number, a, a_row, b, b_row, b_step, n, scale, t, out, row):
    """out[row] = (base[s] + number - sum over k < n of a[a_row + k] b[b_row + k b_step]) scale[t].

    t = -1: without the scale.
    """
    for g in range(out.shape[1]):
        out[row, g] = base[s, g] + number
    for k in range(n):
        for g in range(out.shape[1]):
            out[row, g] -= a[a_row + k, g] * b[b_row + k * b_step, g]
    if t >= 0:
        for g in range(out.shape[1]):
            out[row, g] *= scale[t, g]


@part(fastmath=_CONTRACT)
def multiply_lower(factor, height, low, high, x, x_row, places, out, row):
    """out[row + a] = sum over low <= b <= a of factor[a height + b] x[x_row + places[b]]."""
    for a in range(low, high):
        for g in range(out.shape[1]):
            out[row + a, g] = 0.0
        for b in range(low, a + 1):
            for g in range(out.shape[1]):
                out[row + a, g] += factor[a * height + b, g] * x[x_row + places[b], g]


@part(fastmath=_CONTRACT)
def multiply_upper(factor, height, low, high, x, row, out):
    """out[row + a] = sum over a <= k < high of factor[k height + a] x[row + k], low <= a < high."""
    for a in range(low, high):
        for g in range(out.shape[1]):
            out[row + a, g] = 0.0
        for k in range(a, high):
            for g in range(out.shape[1]):
                out[row + a, g] += factor[k * height + a, g] * x[row + k, g]


@part(fastmath=_CONTRACT)
def subtract_weighted(weights, a, a_row, b, b_row, n, out, row):
    """out[row] -= weights[0] sum over k < n of a[a_row + k] b[b_row + k]."""
    for k in range(n):
        for g in range(out.shape[1]):
            out[row, g] -= weights[0, g] * (a[a_row + k, g] * b[b_row + k, g])


@part()
def fill_row(target, t, number):
    for g in range(target.shape[1]):
        target[t, g] = number


@part(fastmath=_CONTRACT)
def add_row(source, s, number, target, t):
    """target[t] += number source[s]."""
    for g in range(target.shape[1]):
        target[t, g] += number * source[s, g]


@part()
def invert_root(source, s, target, t, product):
    """target[t] = 1 / sqrt(source[s]), and product[0] *= target[t]."""
    for g in range(target.shape[1]):
        target[t, g] = 1.0 / math.sqrt(source[s, g])
        product[0, g] *= target[t, g]


@part()
def find_away(rows, i, seen, n, location, targets, away):
    """away[targets[a]] = location[seen[a]] - rows[i, seen[a]] for a < n."""
    for a in range(n):
        for g in range(away.shape[1]):
            away[targets[a], g] = location[seen[a], g] - rows[i, seen[a]]


@part(fastmath=_CONTRACT)
def evaluate(factor, height, begin, n, away, base, beta, least, squares, values):
    """Squared distances and log-joints, without sums for places a < begin[a].

    white[a] = sum over begin[a] <= b <= a of factor[a height + b] away[b], for a < n
    squares[0] = sum of white[a]^2
    values[0] = beta (base[0] - squares[0] / 2), or `least` if that is larger or no number
    """
    width = values.shape[1]
    for g in range(width):
        squares[0, g] = 0.0
    for a in range(n):
        for g in range(width):
            values[0, g] = 0.0
        for b in range(begin[a], a + 1):
            for g in range(width):
                values[0, g] += factor[a * height + b, g] * away[b, g]
        for g in range(width):
            squares[0, g] += values[0, g] * values[0, g]
    for g in range(width):
        value = beta * (base[0, g] - 0.5 * squares[0, g])
        values[0, g] = value if value > least else least


@part(fastmath=_CONTRACT)
def add_moments(weights, scale, away, height, begin, n, mass, squares, means, products):
    """Scale weights, and add a row to the moments that they weigh.

    weights[0] *= scale, mass[0] += weights[0], squares[0] += weights[0]^2
    means[a] += weights[0] away[a]
    products[a height + b] += weights[0] away[a] away[b], for begin[a] <= b <= a < n
    """
    width = weights.shape[1]
    for g in range(width):
        weights[0, g] *= scale
        mass[0, g] += weights[0, g]
        squares[0, g] += weights[0, g] * weights[0, g]
    for a in range(n):
        for g in range(width):
            means[a, g] += weights[0, g] * away[a, g]
        for b in range(begin[a], a + 1):
            for g in range(width):
                products[a * height + b, g] += weights[0, g] * away[a, g] * away[b, g]

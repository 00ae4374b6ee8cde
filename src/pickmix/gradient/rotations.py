"""Orthogonal maps as products of Givens rotations, in a "brick" order that vectorises.

A brick wall of depth n rotates, in turn, the neighbour pairs (0, 1), (2, 3), ... and (1, 2),
(3, 4), ...; its n (n - 1) / 2 rotations reach every matrix of SO(n) (Clements et al. 2016), like
the lexicographic order, in n vectorised layers instead of n (n - 1) / 2 single rotations.

Coordinates travel as two halves, and after each layer the halves change places, one of them
shifted by a place: what is to be rotated next then always lies side by side. Where the shift
wraps around, and beyond the real coordinates of a padded scope, the angle is masked to zero.

Layout: coordinates first and the batch last, (n, M, C) with angles (depth, pairs, C): C different
maps, each applied to M columns.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

_Pair = tuple[jax.Array, jax.Array]

# Taylor coefficients of sin(h) / h and cos(h) in h^2, enough for float32 where |h| <= pi / 2; the
# highest power first.
_SIN = (-1.0 / 39916800, 1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6, 1.0)
_COS = (1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320, -1.0 / 720, 1.0 / 24, -0.5, 1.0)


def sine_cosine(angle: jax.Array) -> _Pair:
    """Sine and cosine to the precision of the type.

    XLA calls a library function for each float32 on the CPU, which takes two thirds of a step.
    Polynomials of the half angle are exact to 8e-7.
    """
    if angle.dtype != jnp.float32:
        return jnp.sin(angle), jnp.cos(angle)
    turns = jnp.round(angle * np.float32(0.5 / np.pi))
    # 2 pi in two parts, the first with few digits, so that the difference keeps its own.
    half = 0.5 * (angle - turns * np.float32(6.28125) - turns * np.float32(2 * np.pi - 6.28125))
    square = half * half
    sine = half * jnp.polyval(np.array(_SIN, np.float32), square, unroll=len(_SIN))
    cosine = jnp.polyval(np.array(_COS, np.float32), square, unroll=len(_COS))
    return 2.0 * sine * cosine, 1.0 - 2.0 * sine * sine


def n_pairs(n: int) -> int:
    """Pairs per layer for n coordinates."""
    return (n + 1) // 2


def rotation_mask(n: int, n_real: int) -> np.ndarray:
    """Which angles (n, pairs) of a wall for n coordinates rotate two of the first `n_real` ones."""
    pairs = n_pairs(n)
    first, second = np.arange(0, 2 * pairs, 2), np.arange(1, 2 * pairs, 2)
    mask = np.zeros((n, pairs), dtype=bool)
    for layer in range(n):
        # A scope with fewer coordinates needs no more layers than coordinates.
        mask[layer] = (second == first + 1) & (second < n_real) & (layer < n_real)
        first, second = second, np.roll(first, -1)
    return mask


def _halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Split coordinates into even and odd ones, with a zero for the last odd one if n is odd."""
    if x.shape[0] % 2:
        x = jnp.concatenate([x, jnp.zeros_like(x[:1])])
    pairs = x.reshape(-1, 2, *x.shape[1:])
    return pairs[:, 0], pairs[:, 1]


def _whole(first: jax.Array, second: jax.Array, depth: int, n: int) -> jax.Array:
    """Undo the exchanges and shifts of `depth` layers, and join the halves."""
    if depth % 2:
        even, odd = jnp.roll(second, (depth + 1) // 2, 0), jnp.roll(first, (depth - 1) // 2, 0)
    else:
        even, odd = jnp.roll(first, depth // 2, 0), jnp.roll(second, depth // 2, 0)
    return jnp.stack([even, odd], 1).reshape(-1, *even.shape[1:])[:n]


def _exchanged(x: jax.Array, depth: int) -> tuple[jax.Array, jax.Array]:
    """Bring coordinates into the places they have after `depth` layers."""
    even, odd = _halves(x)
    if depth % 2:
        return jnp.roll(odd, -((depth - 1) // 2), 0), jnp.roll(even, -((depth + 1) // 2), 0)
    return jnp.roll(even, -(depth // 2), 0), jnp.roll(odd, -(depth // 2), 0)


@jax.custom_vjp
def rotate(angles: jax.Array, x: jax.Array) -> jax.Array:
    """Apply brick walls to columns (n, M, C); angles are zero where `rotation_mask` is false."""
    sine, cosine = sine_cosine(angles)

    def layer(halves: _Pair, trigonometry: _Pair) -> tuple[_Pair, None]:
        first, second = halves
        s, c = trigonometry
        rotated = c[:, None] * first - s[:, None] * second
        return (s[:, None] * first + c[:, None] * second, jnp.roll(rotated, -1, 0)), None

    (first, second), _ = jax.lax.scan(layer, _halves(x), (sine, cosine))
    return _whole(first, second, angles.shape[0], x.shape[0])


def pull_back(
    angles: jax.Array, y: jax.Array, gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Rotate output and gradient (n, M, C) back together: nothing of the way forth is needed.

    Returns the gradients with respect to the angles (depth, pairs, C) and to x, and x itself.
    """
    n, n_columns = y.shape[0], y.shape[1]
    sine, cosine = sine_cosine(angles)
    both = jnp.concatenate([y, gradient], axis=1)

    def layer(halves: _Pair, trigonometry: _Pair) -> tuple[_Pair, jax.Array]:
        s, c = trigonometry
        second, first = halves[0], jnp.roll(halves[1], 1, 0)
        # d first / d angle = -second and d second / d angle = first, after the rotation.
        product = (
            second[:, n_columns:] * first[:, :n_columns]
            - first[:, n_columns:] * second[:, :n_columns]
        )
        back = (c[:, None] * first + s[:, None] * second, c[:, None] * second - s[:, None] * first)
        return back, product.sum(axis=1)

    halves = _exchanged(both, angles.shape[0])
    (even, odd), angle_gradient = jax.lax.scan(layer, halves, (sine, cosine), reverse=True)
    whole = jnp.stack([even, odd], 1).reshape(-1, *even.shape[1:])[:n]
    return angle_gradient, whole[:, n_columns:], whole[:, :n_columns]


def _forward(angles: jax.Array, x: jax.Array) -> tuple[jax.Array, _Pair]:
    y = rotate(angles, x)
    return y, (angles, y)


rotate.defvjp(_forward, lambda saved, gradient: pull_back(saved[0], saved[1], gradient)[:2])


def rotate_back(angles: jax.Array, y: jax.Array) -> jax.Array:
    """Invert `rotate`."""
    return pull_back(angles, y, y)[2]


def angles_of(matrices: np.ndarray, width: int | None = None) -> np.ndarray:
    """Angles (C, width, pairs) of the walls that are the rotations `matrices` (C, n, n).

    The way of Clements et al. (2016): rotations from the right and from the left, in turn, clear
    one diagonal after the other, from the lower left corner. What remains is a diagonal of signs,
    which the outer layers take up. Walls have `width` coordinates, by default n, of which the first
    n are rotated.
    """
    left = np.array(matrices, dtype=np.float64)
    n = left.shape[1]
    first_applied: list[tuple[int, np.ndarray]] = []
    last_applied: list[tuple[int, np.ndarray]] = []
    for diagonal in range(1, n):
        for step in range(diagonal):
            if diagonal % 2:
                row, column = n - 1 - step, diagonal - 1 - step
                # M = M' G(angle) on columns (column, column + 1), so that M'[row, column] = 0.
                angle = np.arctan2(left[:, row, column], left[:, row, column + 1])
                _turn(left.swapaxes(1, 2), column, angle)
                first_applied.append((column, angle))
            else:
                row, column = n - diagonal + step, step
                # M = G(angle) M' on rows (row - 1, row), so that M'[row, column] = 0.
                angle = np.arctan2(left[:, row, column], left[:, row - 1, column])
                _turn(left, row - 1, -angle)
                last_applied.append((row - 1, angle))
    signs = np.sign(np.diagonal(left, axis1=1, axis2=2)).copy()
    # M = (last, in turn) diag(signs) (first, reversed). Signs move to the left: they turn angles.
    in_order = first_applied
    for place, angle in reversed(last_applied):
        in_order.append((place, angle * signs[:, place] * signs[:, place + 1]))
    return _scheduled(in_order, signs, width or n)


def _turn(matrices: np.ndarray, place: int, angle: np.ndarray) -> None:
    """Rotate rows (place, place + 1) of matrices (C, n, m) by angles (C,), in place."""
    sine, cosine = np.sin(angle)[:, None], np.cos(angle)[:, None]
    above, below = matrices[:, place].copy(), matrices[:, place + 1].copy()
    matrices[:, place] = cosine * above - sine * below
    matrices[:, place + 1] = sine * above + cosine * below


def _scheduled(in_order: list[tuple[int, np.ndarray]], signs: np.ndarray, width: int) -> np.ndarray:
    """Put rotations (first coordinate, angles), the first applied first, into a wall's layers.

    `signs` (C, n), an even number of them negative, are applied at the end.
    """
    n = signs.shape[1]
    free = [0] * n
    layers: list[dict[int, np.ndarray]] = [{} for _ in range(n)]
    for place, angle in in_order:
        # As early as those before it on the same coordinates allow.
        layer = max(free[place], free[place + 1])
        layers[layer][place] = angle
        free[place] = free[place + 1] = layer + 1
    for place in range(n - 1):
        # A negative sign and its neighbour's are half a turn of the two.
        flip = signs[:, place] < 0.0
        signs[flip, place] *= -1.0
        signs[flip, place + 1] *= -1.0
        layer = n - 1
        while place not in layers[layer]:
            # On its way inwards, a change of one sign of a pair turns the pair's angle.
            for beside in (place - 1, place + 1):
                if beside in layers[layer]:
                    angle = layers[layer][beside]
                    layers[layer][beside] = np.where(flip, -angle, angle)
            layer -= 1
        layers[layer][place] = layers[layer][place] + np.pi * flip
    angles = np.zeros((signs.shape[0], width, n_pairs(width)))
    for layer, rotations in enumerate(layers):
        for place, angle in rotations.items():
            angles[:, layer, (place - layer) // 2 % n_pairs(width)] = angle
    return angles

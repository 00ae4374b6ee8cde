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

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

# Taylor coefficients of sin(h)/h and cos(h) in h^2, enough for float32 on |h| <= pi/2.
_SIN = (1.0, -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800)
_COS = (1.0, -0.5, 1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600)


_Pair = tuple[jax.Array, jax.Array]


def n_pairs(n: int) -> int:
    """Pairs per layer for n coordinates."""
    return (n + 1) // 2


def rotation_mask(n: int, n_real: int) -> np.ndarray:
    """Which angles (n, pairs) of a wall for n coordinates rotate two of the first `n_real` ones.

    Examples
    --------
    >>> rotation_mask(4, 4).sum(), rotation_mask(5, 5).sum(), rotation_mask(5, 4).sum()
    (np.int64(6), np.int64(10), np.int64(6))
    """
    pairs = n_pairs(n)
    first, second = np.arange(0, 2 * pairs, 2), np.arange(1, 2 * pairs, 2)
    mask = np.zeros((n, pairs), dtype=bool)
    for layer in range(n):
        # A scope with fewer coordinates needs no more layers than coordinates.
        mask[layer] = (second == first + 1) & (second < n_real) & (layer < n_real)
        first, second = second, np.roll(first, -1)
    return mask


def sine_cosine(angle: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sine and cosine to the precision of the type.

    XLA calls a scalar library function for each float32 on the CPU. A polynomial of the half
    angle is ten times faster and exact to 8e-7.
    """
    if angle.dtype != jnp.float32:
        return jnp.sin(angle), jnp.cos(angle)
    turns = jnp.round(angle * np.float32(0.5 / np.pi))
    # 2 pi in two parts, the first with few digits, so that the difference keeps its own.
    half = 0.5 * (angle - turns * np.float32(6.28125) - turns * np.float32(2 * np.pi - 6.28125))
    square = half * half
    sine = half * _polynomial(_SIN, square)
    return 2.0 * sine * _polynomial(_COS, square), 1.0 - 2.0 * sine * sine


def _polynomial(coefficients: tuple[float, ...], x: jax.Array) -> jax.Array:
    value = jnp.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + np.asarray(coefficient, x.dtype)
    return value


@jax.custom_vjp
def rotate(angles: jax.Array, x: jax.Array) -> jax.Array:
    """Apply brick walls to columns.

    Parameters
    ----------
    angles : (depth, pairs, C)
        Zero where `rotation_mask` is false.
    x : (n, M, C)

    Returns
    -------
    y : (n, M, C)
    """
    return _rotate(angles, x)


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


def _shift(x: jax.Array, by: int) -> jax.Array:
    return jnp.roll(x, by, 0)


def _rotate(angles: jax.Array, x: jax.Array) -> jax.Array:
    sine, cosine = sine_cosine(angles)

    def layer(halves: _Pair, trigonometry: _Pair) -> tuple[_Pair, None]:
        first, second = halves
        s, c = trigonometry
        rotated = c[:, None] * first - s[:, None] * second
        return (s[:, None] * first + c[:, None] * second, _shift(rotated, -1)), None

    (first, second), _ = jax.lax.scan(layer, _halves(x), (sine, cosine))
    return _whole(first, second, angles.shape[0], x.shape[0])


def rotate_back(angles: jax.Array, y: jax.Array) -> jax.Array:
    """Invert `rotate` (not differentiable through `angles` by hand-written rules)."""
    sine, cosine = sine_cosine(angles)

    def layer(halves: _Pair, trigonometry: _Pair) -> tuple[_Pair, None]:
        s, c = trigonometry
        second, first = halves[0], _shift(halves[1], 1)
        return (
            c[:, None] * first + s[:, None] * second,
            c[:, None] * second - s[:, None] * first,
        ), None

    halves = _exchanged(y, angles.shape[0])
    (even, odd), _ = jax.lax.scan(layer, halves, (sine, cosine), reverse=True)
    return jnp.stack([even, odd], 1).reshape(-1, *even.shape[1:])[: y.shape[0]]


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
        second, first = halves[0], _shift(halves[1], 1)
        # d first / d angle = -second and d second / d angle = first, after the rotation.
        product = (
            second[:, n_columns:] * first[:, :n_columns]
            - first[:, n_columns:] * second[:, :n_columns]
        )
        back = (
            c[:, None] * first + s[:, None] * second,
            c[:, None] * second - s[:, None] * first,
        )
        return back, product.sum(axis=1)

    halves = _exchanged(both, angles.shape[0])
    (even, odd), angle_gradient = jax.lax.scan(layer, halves, (sine, cosine), reverse=True)
    whole = jnp.stack([even, odd], 1).reshape(-1, *even.shape[1:])[:n]
    return angle_gradient, whole[:, n_columns:], whole[:, :n_columns]


def _forward(angles: jax.Array, x: jax.Array) -> tuple[jax.Array, _Pair]:
    y = _rotate(angles, x)
    return y, (angles, y)


def _backward(saved: _Pair, gradient: jax.Array) -> _Pair:
    angles, y = saved
    return pull_back(angles, y, gradient)[:2]


rotate.defvjp(_forward, _backward)


@partial(jax.jit, static_argnames="n")
def matrices(angles: jax.Array, n: int) -> jax.Array:
    """Orthogonal matrices (C, n, n) of the walls with angles (depth, pairs, C)."""
    identity = jnp.eye(n, dtype=angles.dtype)[:, :, None]
    columns = rotate(angles, jnp.broadcast_to(identity, (n, n, angles.shape[2])))
    return columns.transpose(2, 0, 1)

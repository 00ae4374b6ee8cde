"""Brick walls of Givens rotations against products of single rotations in NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from explicit_trees import pairs_of_wall, wall
from quick_jit import quick_jit
from scipy import stats

from pickmix.gradient.compilation import precision
from pickmix.gradient.rotations import (
    angles_of,
    n_pairs,
    pull_back,
    rotate,
    rotate_back,
    rotation_mask,
    sine_cosine,
)


@partial(jax.jit, static_argnames="n")
def matrices(angles, n):
    """Orthogonal matrices (C, n, n) of the walls with angles (depth, pairs, C)."""
    identity = jnp.eye(n, dtype=angles.dtype)[:, :, None]
    columns = rotate(angles, jnp.broadcast_to(identity, (n, n, angles.shape[2])))
    return columns.transpose(2, 0, 1)


def random_angles(n, n_real, n_walls, seed=0):
    """Angles (depth, pairs, C) with zeros where nothing may rotate."""
    rng = np.random.default_rng([seed, n, n_real])
    angles = rng.uniform(-np.pi, np.pi, (n, n_pairs(n), n_walls))
    return angles * rotation_mask(n, n_real)[:, :, None]


@pytest.mark.parametrize("n", range(1, 10))
def test_a_wall_has_as_many_angles_as_the_rotation_group_has_dimensions(n):
    for n_real in range(1, n + 1):
        assert rotation_mask(n, n_real).sum() == n_real * (n_real - 1) // 2
    expected = np.zeros((n, n_pairs(n)), bool)
    for layer, place, _ in pairs_of_wall(n, n_pairs(n)):
        expected[layer, place] = True
    np.testing.assert_array_equal(rotation_mask(n, n), expected)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8])
def test_matrices_are_products_of_single_rotations(n):
    # One wall for every number of real coordinates: what lies beyond them must stay where it is.
    angles = np.concatenate([random_angles(n, n_real, 1) for n_real in range(1, n + 1)], axis=2)
    with precision("float64"):
        maps = np.asarray(matrices(jnp.asarray(angles), n))
    assert maps.dtype == np.float64
    for n_real, matrix in zip(range(1, n + 1), maps, strict=True):
        expected = np.eye(n)
        expected[:n_real, :n_real] = wall(angles[:, :, n_real - 1], n_real)
        np.testing.assert_allclose(matrix, expected, atol=1e-14)
        np.testing.assert_allclose(matrix @ matrix.T, np.eye(n), atol=1e-14)
        assert np.linalg.det(matrix) == pytest.approx(1.0, abs=1e-13)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8])
def test_every_rotation_is_a_wall(n):
    drawn = stats.special_ortho_group.rvs(n, size=4, random_state=n) if n > 1 else np.ones(4)
    # Signs and exchanges of coordinates: many entries are already zero.
    signs = np.diag(np.r_[-np.ones(n // 2 * 2), np.ones(n % 2)])
    exchange = np.roll(np.eye(n), 1, axis=0)
    exchange[0] *= np.linalg.det(exchange)
    rotations = np.concatenate([drawn.reshape(4, n, n), [np.eye(n), signs, exchange]])
    angles = angles_of(rotations)
    assert not angles[:, ~rotation_mask(n, n)].any()
    for found, rotation in zip(angles, rotations, strict=True):
        np.testing.assert_allclose(wall(found, n), rotation, atol=1e-13)


@pytest.mark.parametrize(("n", "n_real"), [(1, 1), (2, 2), (5, 5), (5, 3), (6, 6)])
def test_ways_back_and_gradients(n, n_real):
    angles = random_angles(n, n_real, 3)
    rng = np.random.default_rng(7)
    x, weights = rng.normal(size=(2, n, 2, 3))

    @quick_jit
    def everything(angles, x):
        y, pull = jax.vjp(rotate, angles, x)
        return y, rotate_back(angles, y), pull(weights), pull_back(angles, y, weights)

    with precision("float64"):
        y, back, gradients, pulled = everything(jnp.asarray(angles), jnp.asarray(x))
    walls = np.stack([wall(angles[:, :, c], n) for c in range(3)])
    np.testing.assert_allclose(y, np.einsum("cij,jmc->imc", walls, x), atol=1e-13)
    np.testing.assert_allclose(back, x, atol=1e-13)
    np.testing.assert_allclose(pulled[2], x, atol=1e-13)
    for gradient in (gradients[1], pulled[1]):
        np.testing.assert_allclose(gradient, np.einsum("cji,jmc->imc", walls, weights), atol=1e-13)

    def objective(layer, place, column):
        # Differences by a step along the imaginary axis lose no digits.
        moved = angles[:, :, column].astype(complex)
        moved[layer, place] += 1e-30j
        return np.sum(weights[:, :, column] * (wall(moved, n) @ x[:, :, column])).imag / 1e-30

    for layer, place in np.argwhere(rotation_mask(n, n_real)):
        for column in range(3):
            expected = objective(layer, place, column)
            for gradient in (gradients[0], pulled[0]):
                assert gradient[layer, place, column] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-6), ("float64", 1e-15)])
def test_sines_have_the_precision_of_their_type(dtype, error):
    with precision(dtype):
        angles = np.linspace(-25.0, 25.0, 100_001).astype(dtype)
        sine, cosine = sine_cosine(jnp.asarray(angles))
        exact = angles.astype(np.float64)
        np.testing.assert_allclose(sine, np.sin(exact), rtol=0, atol=error)
        np.testing.assert_allclose(cosine, np.cos(exact), rtol=0, atol=error)

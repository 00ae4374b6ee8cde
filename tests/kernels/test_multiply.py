"""Products of small matrices in registers, and as plain loops, against NumPy."""

import numpy as np
import pytest
from numba import njit

from pickmix.kernels.numba_kernels import multiply
from pickmix.kernels.numba_kernels.multiply import DOUBLE, SINGLE


@pytest.fixture(scope="module", params=["", "plain_"])
def add(request):
    """The product in registers, and its fallback in plain loops."""
    add_product = getattr(multiply, f"{request.param}add_product")
    return njit(lambda a, b, out: add_product(a, 1, 2, a.shape[0] - 1, b, 3, out, 1, 2))


@pytest.fixture(scope="module", params=["", "plain_"])
def subtract(request):
    squares = getattr(multiply, f"{request.param}subtract_squares")

    @njit
    def run(a, b, column, floor, out):
        return squares(a, 2, a.shape[0] - 3, b, 1, column, floor, out, 1)

    return run


def numbers(shape, dtype, seed):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


both_types = pytest.mark.parametrize(
    ("dtype", "lanes"), [(np.float32, SINGLE), (np.float64, DOUBLE)]
)


@both_types
@pytest.mark.parametrize("n", [0, 1, 9])
def test_sums_of_products(dtype, lanes, n, add):
    a, b = numbers((n + 1, 7), dtype, 0), numbers((n + 2, lanes + 5), dtype, 1)
    out = numbers((6, lanes + 3), dtype, 2)
    expected = out.copy()
    expected[1:5, 2 : 2 + lanes] += a[1:, 2:6].T @ b[:n, 3 : 3 + lanes]
    add(a, b, out)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


@both_types
@pytest.mark.parametrize("n", [0, 1, 9])
def test_squares_of_sums(dtype, lanes, n, subtract):
    a, b = numbers((n + 3, 4), dtype, 0), numbers((n + 1, 2 * lanes), dtype, 1)
    out = numbers((3, 2 * lanes), dtype, 2)
    expected = out.copy()
    sums = a[2][:, None] + a[3:].T @ b[1:, lanes:]
    expected[1, lanes:] -= 0.5 * np.square(sums).sum(axis=0)
    subtract(a, b, lanes, np.zeros(2 * lanes, dtype), out)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


@both_types
def test_squares_say_whether_a_value_is_above_its_floor(dtype, lanes, subtract):
    a, b = numbers((4, 4), dtype, 0), numbers((2, 2 * lanes), dtype, 1)
    out = np.zeros((3, 2 * lanes), dtype)
    subtract(a, b, 0, np.zeros(2 * lanes, dtype), out)
    values = out[1].copy()

    def is_above(floor):
        out[:] = 0.0
        return subtract(a, b, 0, floor, out)

    above = np.nextafter(values, dtype(np.inf))
    assert not is_above(above)
    for lane in (0, lanes - 1):
        floor = above.copy()
        floor[lane] = values[lane]
        assert is_above(floor)
        floor[lane] = np.nan
        assert is_above(floor)
    # Other columns do not count.
    above[lanes:] = -np.inf
    assert not is_above(above)

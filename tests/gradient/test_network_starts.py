"""Networks that start where a Gaussian mixture ends."""

import numpy as np
import pytest
from quick_jit import quick_jit
from scipy import stats

from pickmix.gradient.compilation import precision
from pickmix.gradient.sptn import SumProductTransform

# s, b, l, D, transforms
SHAPES = [
    (2, 1, 2, 3, "triangular"),
    (2, 2, 3, 5, "triangular"),
    (2, 2, 3, 5, "rotations"),
    ((3, 2), 8, 2, 2, False),
]


def random_gaussians(network, seed=0):
    """Means and covariances, some narrow and far from zero, and their L with L'L = precision."""
    rng = np.random.default_rng(seed)
    n, width = network.n_children, network.n_features
    means = 20.0 * rng.normal(size=(n, width))
    factors = rng.normal(size=(n, width, width)) * np.exp(rng.normal(size=(n, 1, 1)))
    covariances = factors @ factors.swapaxes(1, 2)
    cholesky = []
    for covariance in covariances:
        # In reverse order an upper factor is a lower one.
        upper = np.linalg.cholesky(np.linalg.inv(covariance)[::-1, ::-1])[::-1, ::-1]
        cholesky.append(upper.T)
    return means, covariances, np.array(cholesky)


def log_densities(network, tables, rows):
    with precision("float64"):
        return np.asarray(quick_jit(network.log_density_all)(tables, rows))


@pytest.mark.parametrize("shape", SHAPES)
def test_children_of_the_root_are_the_gaussians(shape):
    network = SumProductTransform(*shape)
    means, covariances, cholesky = random_gaussians(network)
    np.testing.assert_allclose(
        np.linalg.inv(cholesky.swapaxes(1, 2) @ cholesky), covariances, rtol=1e-6
    )
    assert network.takes_gaussians
    with precision("float64"):
        tables = network.take_gaussians(network.start(1, np.float64), means, cholesky, 2)
    assert tuple(table.shape for table in tables) == network.shapes
    rng = np.random.default_rng(3)
    rows = np.concatenate(
        [rng.multivariate_normal(m, c, 4) for m, c in zip(means, covariances, strict=True)]
    )
    if shape[-1] is False:
        covariances = [np.diag(np.diag(covariance)) for covariance in covariances]
    found = log_densities(network, tables, rows)
    for child, (mean, covariance) in enumerate(zip(means, covariances, strict=True)):
        expected = stats.multivariate_normal(mean, covariance).logpdf(rows)
        # Far from a narrow Gaussian log-densities are large.
        np.testing.assert_allclose(found[:, child], expected, rtol=1e-9, atol=1e-7)


def test_a_narrow_child_far_away_keeps_its_digits_in_float32():
    network = SumProductTransform(1, 2, 2, 2, "triangular")
    means, cholesky = np.array([[1000.0, -500.0]]), 100.0 * np.array([[[1.0, 0.0], [0.9, 0.5]]])
    tables = network.take_gaussians(network.start(1, np.float32), means, cholesky, 2)
    assert tables[0].dtype == np.float32
    rows = (means + np.random.default_rng(0).normal(size=(50, 2)) / 50).astype(np.float32)
    covariance = np.linalg.inv(cholesky[0].T @ cholesky[0])
    expected = stats.multivariate_normal(means[0], covariance).logpdf(rows)
    found = np.asarray(quick_jit(network.log_density_all)(tables, rows))[:, 0]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_triangles_are_drawn_like_the_papers_transforms():
    """The scales of the paper's start are the singular values: uniform on (0, 1)."""
    network = SumProductTransform(400, 2, 2, 3, "triangular")
    (params, _) = network.unpack([np.asarray(t)[:, None] for t in network.start(0, np.float32)])
    matrices = np.zeros((400, 3, 3))
    matrices[:, np.arange(3), np.arange(3)] = np.exp(params["log_scale"][:, 0])
    matrices[:, [1, 2, 2], [0, 0, 1]] = params["below"][:, 0]
    scales = np.linalg.svd(matrices, compute_uv=False)
    assert stats.kstest(scales.ravel(), stats.uniform.cdf).pvalue > 1e-4
    np.testing.assert_array_equal(params["origin"], 0.0)
    np.testing.assert_array_equal(params["log_unit"], 0.0)
    assert stats.kstest(100 * params["shift"].ravel(), stats.norm.cdf).pvalue > 1e-4

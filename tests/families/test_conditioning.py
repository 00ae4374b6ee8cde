"""Parts of families and quantiles of mixtures, alone."""

import numpy as np
import pytest
from scipy import stats

from pickmix.families.base import Pairs, SeenRows
from pickmix.families.distributions import normal_quantiles, poisson_quantiles
from pickmix.families.gaussian_parts import DensePart


def random_part(n_components=3, d=5, seed=0, scale=None):
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(n_components, d, d)) + np.eye(d)
    matrices = half @ half.transpose(0, 2, 1)
    means = rng.normal(size=(n_components, d))
    if scale is not None:
        matrices, means = matrices * np.outer(scale, scale), means * scale
    return DensePart(np.arange(d), means, matrices, np.zeros(d))


def test_many_patterns_at_once_are_each_alone():
    part = random_part()
    rng = np.random.default_rng(1)
    seen = rng.uniform(size=(40, 5)) < 0.5
    rows = SeenRows(rng.normal(size=(40, 5)), seen, np.arange(40))
    which, components = np.repeat(np.arange(40), 3), np.tile(np.arange(3), 40)
    places = np.array([4, 0, 2])
    means, variances = part.moments(Pairs(rows, which, components), places)
    covariances = part.covariances(Pairs(rows, which, components), places)
    for p, (i, k) in enumerate(zip(which, components, strict=True)):
        S, C, m = np.flatnonzero(seen[i]), part.matrices[k], part.means[k]
        gain = C[:, S] @ np.linalg.pinv(C[np.ix_(S, S)]) if S.size else np.zeros((5, 0))
        mean = m + gain @ (rows.values[i, S] - m[S])
        covariance = C - gain @ C[S]
        # A seen column is itself, without spread.
        np.testing.assert_allclose(means[p], mean[places], rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(covariances[p], covariance[np.ix_(places, places)], atol=1e-9)
        np.testing.assert_allclose(variances[p], np.diagonal(covariances[p]), atol=1e-14)


def test_narrow_conditionals_keep_their_digits():
    """x_1 = x_0 + noise of 1e-6: the conditional variance is 1e-12, that of x_1 itself 1."""
    matrices = np.array([[[1.0, 1.0], [1.0, 1.0 + 1e-12]]])
    variance = matrices[0, 1, 1] - 1.0
    part = DensePart(np.arange(2), np.zeros((1, 2)), matrices, np.zeros(2))
    rows = SeenRows(np.array([[3.0, 0.0]]), np.array([[True, False]]), np.zeros(1, dtype=int))
    zero = np.zeros(1, dtype=int)
    mean, spread = part.moments(Pairs(rows, zero, zero), np.array([1]))
    np.testing.assert_allclose(mean, 3.0, rtol=1e-14)
    np.testing.assert_allclose(spread, variance, rtol=1e-12)


def test_leave_out_is_the_conditional_of_each_cell():
    part = random_part(d=4)
    rng = np.random.default_rng(3)
    seen = np.array([True, False, True, True])
    values = rng.normal(size=(6, 4))
    found = part.leave_out(SeenRows(values, np.tile(seen, (6, 1)), np.zeros(6, dtype=int)))
    for m, j in enumerate([0, 2, 3]):
        left = seen.copy()
        left[j] = False
        rows = SeenRows(values, np.tile(left, (6, 1)), np.zeros(6, dtype=int))
        for k in range(3):
            components = np.full(6, k)
            mean, variance = part.moments(Pairs(rows, np.arange(6), components), np.array([j]))
            np.testing.assert_allclose(found.means[k, :, m], mean[:, 0], rtol=1e-8, atol=1e-10)
            np.testing.assert_allclose(found.variances[k, 0, m], variance[0, 0], rtol=1e-9)
            expected = stats.norm(mean[:, 0], np.sqrt(variance[:, 0])).logpdf(values[:, j])
            np.testing.assert_allclose(found.log_densities[k, :, m], expected, rtol=1e-8)


def test_singular_covariances_are_named():
    part = DensePart(np.arange(2), np.zeros((1, 2)), np.ones((1, 2, 2)), np.zeros(2))
    rows = SeenRows(np.zeros((1, 2)), np.array([[True, False]]), np.zeros(1, dtype=int))
    zero = np.zeros(1, dtype=int)
    with pytest.raises(ValueError, match="positive definite"):
        part.moments(Pairs(rows, zero, zero), np.array([1]))


@pytest.mark.parametrize("quantile", [1e-9, 0.01, 0.3, 0.5, 0.9, 1.0 - 1e-9])
def test_quantiles_of_random_mixtures(quantile):
    rng = np.random.default_rng(4)
    sizes = rng.integers(1, 9, 200)
    starts = np.cumsum(sizes) - sizes
    total = sizes.sum()
    weights = rng.gamma(0.3, size=total) + 1e-12
    weights /= np.repeat(np.add.reduceat(weights, starts), sizes)
    means, deviations = 50.0 * rng.normal(size=total), np.exp(3.0 * rng.normal(size=total))
    found = normal_quantiles(weights, means, deviations, starts, quantile)
    away = (np.repeat(found, sizes) - means) / deviations
    if quantile <= 0.5:
        reached = np.add.reduceat(weights * stats.norm.cdf(away), starts)
        np.testing.assert_allclose(reached, quantile, rtol=1e-6)
    else:
        beyond = np.add.reduceat(weights * stats.norm.sf(away), starts)
        np.testing.assert_allclose(beyond, 1.0 - quantile, rtol=1e-6)
    rates = np.exp(2.0 * rng.normal(size=total))
    counts = poisson_quantiles(weights, rates, starts, quantile)
    repeated = np.repeat(counts, sizes)
    reached = np.add.reduceat(weights * stats.poisson(rates).cdf(repeated), starts)
    before = np.add.reduceat(weights * stats.poisson(rates).cdf(repeated - 1.0), starts)
    assert (reached >= quantile - 1e-12).all()
    assert (before < quantile + 1e-12).all()

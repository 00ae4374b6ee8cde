"""Small Gaussian mixtures, where they are better than N(0, I)."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from pickmix.gradient import start as starts
from pickmix.gradient.start import better_mixture


def covariances_of(mixture):
    return np.linalg.inv(mixture.cholesky.swapaxes(1, 2) @ mixture.cholesky)


def log_density(mixture, rows):
    parts = zip(mixture.weights, mixture.means, covariances_of(mixture), strict=True)
    return logsumexp(
        [np.log(w) + stats.multivariate_normal(m, c).logpdf(rows) for w, m, c in parts], axis=0
    )


def two_clusters(n, seed=0):
    """A third of the rows about (1, -1), two thirds about (-0.5, 0.5), whitened roughly."""
    rng = np.random.default_rng(seed)
    first = rng.random(n) < 1 / 3
    rows = rng.normal(size=(n, 2)) @ np.array([[0.3, 0.1], [0.0, 0.2]])
    return rows + np.where(first[:, None], [1.0, -1.0], [-0.5, 0.5]), first


def test_finds_the_clusters():
    rows, first = two_clusters(4000)
    found = better_mixture(rows, 2, np.random.default_rng(1))
    order = np.argsort(found.means[:, 0])[::-1]
    for k, members in zip(order, (rows[first], rows[~first]), strict=True):
        # A sample of 2000 rows, and a lean on the identity by a few of them.
        assert found.weights[k] == pytest.approx(members.shape[0] / 4000, abs=0.03)
        np.testing.assert_allclose(found.means[k], members.mean(axis=0), atol=0.03)
        np.testing.assert_allclose(covariances_of(found)[k], np.cov(members.T), atol=0.02)
    assert (np.triu(found.cholesky, 1) == 0.0).all()


def test_one_step_by_hand():
    rng = np.random.default_rng(0)
    rows, shares = rng.normal(size=(50, 3)), rng.dirichlet(np.ones(2), size=50)
    for form in ("full", "diag"):
        found = starts._gaussians(rows, shares, form)
        for k in range(2):
            count = shares[:, k].sum()
            assert found.weights[k] == pytest.approx((count + 1) / 52)
            mean = np.average(rows, axis=0, weights=shares[:, k])
            np.testing.assert_allclose(found.means[k], mean)
            covariance = np.cov(rows.T, aweights=shares[:, k], ddof=0)
            prior = starts._SHRINKAGE_ROWS
            expected = (count * covariance + prior * np.eye(3)) / (count + prior)
            expected += 1e-3 * np.eye(3)
            if form == "diag":
                expected = np.diag(np.diag(expected))
            np.testing.assert_allclose(covariances_of(found)[k], expected, rtol=1e-9, atol=1e-12)


def skewed(rng, n):
    turned = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    return (rng.exponential(size=(n, 3)) - 1.0) @ turned


def heavy(rng, n):
    return rng.standard_t(3, size=(n, 3)) / np.sqrt(3.0)


def normal(rng, n):
    return rng.normal(size=(n, 3))


@pytest.mark.parametrize(("draw", "least"), [(skewed, 0.1), (heavy, 0.02), (normal, -0.01)])
def test_rows_that_were_not_seen_do_not_lose(draw, least):
    gains = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        found = better_mixture(draw(rng, 300), 4, rng)
        fresh = draw(rng, 2000)
        base = stats.norm.logpdf(fresh).sum(axis=1)
        gains.append(0.0 if found is None else (log_density(found, fresh) - base).mean())
    assert np.mean(gains) > least
    assert min(gains) > -0.1
    if draw is normal:
        assert np.count_nonzero(gains) <= 4


def test_few_rows_allow_few_components():
    rows, _ = two_clusters(1000)
    # Two components of three numbers, four rows each, need 24.
    assert better_mixture(rows[:23], 8, np.random.default_rng(0)) is None
    assert better_mixture(rows[:24], 8, np.random.default_rng(0)).n_components == 2
    assert better_mixture(rows, 1, np.random.default_rng(0)) is None
    assert better_mixture(rows, 8, np.random.default_rng(0)).n_components in (2, 4, 8)


def test_equal_rows_do_not_make_it_narrow():
    rows = np.zeros((200, 2))
    rows[:20] = 1.0
    found = better_mixture(rows, 4, np.random.default_rng(0))
    assert np.isfinite(found.cholesky).all()
    assert np.linalg.eigvalsh(covariances_of(found)).min() >= 1e-3

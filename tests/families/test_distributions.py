"""Distributions of columns: thousands of components that are alike become few."""

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import trapezoid

from pickmix.families.distributions import CountMixture, Draws, NormalMixture


def many_normals(K=5_000):
    random = np.random.default_rng(0)
    return NormalMixture(
        random.dirichlet(np.ones(K)), random.normal(5.0, 3.0, K), random.gamma(4.0, 0.2, K)
    )


def test_grouped_normals_keep_their_probabilities():
    mixture = many_normals()
    grouped = mixture.simplified()
    assert grouped.n_components < 0.3 * mixture.n_components
    places = np.linspace(-8.0, 18.0, 200)
    np.testing.assert_allclose(grouped.cumulative(places), mixture.cumulative(places), atol=5e-5)
    np.testing.assert_allclose(grouped.weights.sum(), 1.0)
    np.testing.assert_allclose(grouped.weights @ grouped.means, mixture.weights @ mixture.means)


def test_grouped_counts_keep_their_probabilities():
    random = np.random.default_rng(0)
    mixture = CountMixture(random.dirichlet(np.ones(5_000)), random.gamma(2.0, 20.0, 5_000))
    grouped = mixture.simplified()
    assert grouped.n_components < 0.2 * mixture.n_components
    counts = np.arange(300.0)
    np.testing.assert_allclose(grouped.cumulative(counts), mixture.cumulative(counts), atol=2e-5)


def test_densities_integrate_to_the_cumulative_distribution():
    mixture = NormalMixture(np.array([0.3, 0.7]), np.array([0.0, 4.0]), np.array([1.0, 0.5]))
    grid = np.linspace(-8.0, 3.9, 20_001)
    found = trapezoid(mixture.densities(grid).sum(axis=1), grid)
    np.testing.assert_allclose(found, mixture.cumulative(grid[-1:])[0], atol=1e-7)


@pytest.mark.parametrize("count", [0.0, 1.0, 7.0])
def test_bounds_of_counts_are_below_and_up_to(count):
    low, high = CountMixture(np.ones(1), np.full(1, 3.0)).bounds(np.array([count]))
    np.testing.assert_allclose(high - low, stats.poisson.pmf(count, 3.0))
    np.testing.assert_allclose(low, stats.poisson.cdf(count - 1, 3.0), atol=1e-15)


def test_drawn_values_leave_room_at_both_ends():
    low, high = Draws(np.array([1.0, 2.0, 3.0])).bounds(np.array([0.0, 1.5, 9.0]))
    np.testing.assert_allclose(low, [0.0, 0.25, 0.75])
    np.testing.assert_allclose(high, [0.25, 0.5, 1.0])

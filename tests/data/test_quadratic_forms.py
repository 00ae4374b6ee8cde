"""Expected values come from scipy distributions, quadrature in other variables, or Monte Carlo."""

import itertools

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import ncx2, norm

from pickmix.data.quadratic_forms import quadratic_cdf_rows


def quadratic_cdf(x, quadratic, linear):
    """P[sum_l a_l z_l^2 + b_l z_l <= x] for each x."""
    x = np.atleast_1d(np.asarray(x, dtype=float))
    rows = [np.tile(np.asarray(values, dtype=float), (x.size, 1)) for values in (quadratic, linear)]
    result = np.empty(x.size)
    quadratic_cdf_rows(x, rows[0], rows[1] ** 2, result)
    return result


def weighted_chi2_cdf(x, coefficients, noncentralities, sigma=0.0):
    """P[sum_l a_l chi2_1(nu_l) + sigma z <= x]: a (z + m)^2 is a z^2 + 2 a m z + a m^2."""
    a, nu = np.asarray(coefficients, dtype=float), np.asarray(noncentralities, dtype=float)
    linear = np.append(2.0 * a * np.sqrt(nu), sigma)
    return quadratic_cdf(np.asarray(x) - a @ nu, np.append(a, 0.0), linear)


def imhof_cdf(x, coefficients, noncentralities, sigma):
    """Imhof's (1961) oscillating integral, which six terms or more make decay fast enough."""

    def integrand(u):
        t = coefficients * u
        theta = 0.5 * np.sum(np.arctan(t) + noncentralities * t / (1 + t**2)) - 0.5 * x * u
        log_rho = np.sum(0.25 * np.log1p(t**2) + 0.5 * noncentralities * t**2 / (1 + t**2))
        return np.sin(theta) * np.exp(-log_rho - 0.125 * (sigma * u) ** 2) / u

    pieces = itertools.pairwise([1e-12, 1.0, 5.0, 20.0, 100.0, 1000.0])
    total = sum(quad(integrand, u, v, epsabs=1e-11, epsrel=0, limit=2000)[0] for u, v in pieces)
    return 0.5 - total / np.pi


@pytest.mark.parametrize("noncentrality", [0.0, 0.3, 25.0, 1e6])
def test_one_term_is_the_normal_mass_of_an_interval(noncentrality):
    quantiles = np.array([-5.0, -1.0, 0.0, 0.5, 2.0, 5.0])
    x = 1 + noncentrality + quantiles * np.sqrt(2 + 4 * noncentrality)
    root, shift = np.sqrt(np.maximum(x, 0.0)), np.sqrt(noncentrality)
    expected = norm.cdf(root - shift) - norm.cdf(-root - shift)
    lower = weighted_chi2_cdf(3.0 * x, [3.0], [noncentrality])
    upper = weighted_chi2_cdf(-3.0 * x, [-3.0], [noncentrality])
    np.testing.assert_allclose(lower, expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(upper, 1 - expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("n_terms", [2, 3, 60])
def test_equal_weights_are_a_noncentral_chi_square(n_terms):
    rng = np.random.default_rng(n_terms)
    for size in (1e-3, 1.0, 30.0, 1000.0):
        noncentralities = rng.exponential(size, n_terms)
        probabilities = np.array([1e-9, 1e-5, 0.01, 0.2, 0.5, 0.8, 0.99, 1 - 1e-5, 1 - 1e-9])
        x = ncx2.ppf(probabilities, n_terms, noncentralities.sum())
        expected = ncx2.cdf(x, n_terms, noncentralities.sum())
        lower = weighted_chi2_cdf(0.02 * x, np.full(n_terms, 0.02), noncentralities)
        upper = weighted_chi2_cdf(-7.0 * x, np.full(n_terms, -7.0), noncentralities)
        np.testing.assert_allclose(lower, expected, rtol=0, atol=1e-9)
        np.testing.assert_allclose(upper, 1 - expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_many_terms_match_imhof(seed):
    rng = np.random.default_rng(seed)
    n_terms = int(rng.integers(8, 13))
    a = rng.uniform(0.5, 2.0, n_terms) * rng.choice([-1.0, 1.0], n_terms)
    nu, sigma = rng.exponential(2.0, n_terms), float(seed % 2)
    deviation = np.sqrt(np.sum(2 * a**2 * (1 + 2 * nu)) + sigma**2)
    x = np.sum(a * (1 + nu)) + deviation * rng.normal()
    expected = imhof_cdf(x, a, nu, sigma)
    assert weighted_chi2_cdf(x, a, nu, sigma) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(
    ("quadratic", "linear"),
    [
        ([1.0, -0.4, 0.0, 1e-4, 0.05], [0.5, 2.0, -1.0, 0.8, 0.0]),
        ([1.0, -1.0], [2.8, -1.4]),
        ([0.01, -1.0], [2.8, 20.0]),
        ([1.0, 0.0], [3.0, 0.001]),
    ],
)
def test_monte_carlo_of_all_kinds_of_terms_together(quadratic, linear):
    z = np.random.default_rng(7).standard_normal((100_000, len(linear)))
    draws = z**2 @ quadratic + z @ np.array(linear)
    for x in np.quantile(draws, [0.05, 0.4, 0.8]):
        value = quadratic_cdf(x, quadratic, linear)[0]
        error = np.sqrt(value * (1 - value) / len(draws))  # at most 0.0016
        assert abs(np.mean(draws <= x) - value) < 4.5 * error


def test_vanishing_quadratic_part_goes_over_into_a_normal():
    for x in (-7.0, 0.0, 2.0, 12.0):
        for size in (0.0, 1e-12, 1e-9):
            value = quadratic_cdf(x, [size, -2 * size], [3.0, 4.0])
            assert value == pytest.approx(norm.cdf(x / 5.0), abs=1e-8)


def test_far_tails_are_zero_and_one_without_nan():
    x = np.array([-np.inf, -1e300, -1e8, 1e8, 1e300, np.inf])
    for a, nu, sigma in (
        ([1.0, -2.0, 0.5], [0.0, 3.0, 1.0], 0.1),
        ([1.0, 2.0], [0.0, 1e4], 0.0),
        ([-1.0, -2.0], [0.0, 3.0], 0.0),
        ([1.0, -1e-200], [0.0, 3.0], 0.0),
        ([0.5], [2.0], 3.0),
    ):
        found = weighted_chi2_cdf(x, a, nu, sigma)
        np.testing.assert_allclose(found, [0, 0, 0, 1, 1, 1], atol=1e-12)
    np.testing.assert_array_equal(weighted_chi2_cdf([-1.0, 1.0], [0.0], [0.0]), [0.0, 1.0])


def test_extreme_forms_stay_monotone_in_x():
    rng = np.random.default_rng(3)
    for _ in range(30):
        n_terms = int(rng.integers(2, 8))
        a = 10 ** rng.uniform(-8, 0, n_terms) * rng.choice([-1.0, 1.0], n_terms)
        nu = 10 ** rng.uniform(-3, 8, n_terms)
        deviations = np.linspace(-6, 6, 25) * np.sqrt(np.sum(2 * a**2 * (1 + 2 * nu)))
        values = weighted_chi2_cdf(np.sum(a * (1 + nu)) + deviations, a, nu)
        assert (np.diff(values) > -1e-9).all()
        # Cantelli: six deviations away at most 1 / 37 is left.
        assert values[0] < 1 / 37
        assert values[-1] > 36 / 37

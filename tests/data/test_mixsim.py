"""Overlaps are checked against closed forms, the formula of METHOD.md and Monte Carlo."""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

from pickmix.data import known_mixture, mixsim
from pickmix.data.mixsim import MixSimMixture, generate, pairwise_overlap


def largest_overlap(weights, means, covariances):
    pairs = np.stack(np.triu_indices(len(weights), 1), axis=1)
    return pairwise_overlap(weights, means, covariances, pairs).sum(axis=1).max()


def parameters_of(mixture):
    return mixture.weights, mixture.means, mixture.covariances


def random_parameters(n_components, n_features, seed):
    rng = np.random.default_rng(seed)
    factors = rng.standard_normal((n_components, n_features, n_features + 2))
    covariances = factors @ factors.swapaxes(1, 2) / n_features
    weights = rng.dirichlet(np.full(n_components, 3.0))
    return weights, rng.normal(size=(n_components, n_features)), covariances


# An eigenvalue that is 1 exactly.
SHARED_AXIS = (
    np.array([0.4, 0.6]),
    np.array([[0.0, 0.0, 0.0], [1.0, -0.5, 0.8]]),
    np.stack([np.eye(3), np.diag([1.0, 3.0, 0.4])]),
)


def test_one_dimension_is_cut_at_the_roots_of_a_parabola():
    weights, means, deviations = [0.3, 0.7], [0.2, 1.7], [0.5, 1.6]
    # log pi_1 phi_1 - log pi_0 phi_0 as a polynomial; it is positive outside its two roots.
    difference = np.zeros(3)
    for sign, weight, mean, deviation in zip((-1, 1), weights, means, deviations, strict=True):
        polynomial = np.array([-0.5, mean, -0.5 * mean**2]) / deviation**2
        difference += sign * (polynomial + np.array([0, 0, np.log(weight / deviation)]))
    low, high = np.sort(np.roots(difference))
    inside = norm.cdf(high, means, deviations) - norm.cdf(low, means, deviations)
    covariances = np.square(deviations)[:, None, None]
    overlap = pairwise_overlap(weights, np.array(means)[:, None], covariances, [[0, 1]])
    np.testing.assert_allclose(overlap, [[1 - inside[0], inside[1]]], rtol=0, atol=1e-10)


@pytest.mark.parametrize("parameters", [random_parameters(2, 8, 8), SHARED_AXIS])
def test_overlaps_match_monte_carlo(parameters):
    weights, means, covariances = parameters
    rng, n_draws = np.random.default_rng(5), 50_000
    exact = pairwise_overlap(*parameters, [[0, 1]])[0]
    for k, probability in enumerate(exact):
        rows = rng.multivariate_normal(means[k], covariances[k], n_draws)
        joint = [
            np.log(weights[j]) + multivariate_normal(means[j], covariances[j]).logpdf(rows)
            for j in (k, 1 - k)
        ]
        error = np.sqrt(probability * (1 - probability) / n_draws)
        assert abs(np.mean(joint[0] < joint[1]) - probability) < 4.5 * error


@pytest.mark.parametrize(
    ("n_components", "n_features", "omega"),
    [(2, 1, 0.1), (3, 5, 0.02), (10, 2, 0.001), (40, 6, 0.1)],
)
def test_largest_of_all_pairs_is_the_asked_overlap(n_components, n_features, omega):
    mixture = generate(n_components, n_features, omega, random_state=11)
    assert largest_overlap(*parameters_of(mixture)) == pytest.approx(omega, abs=1e-6)
    assert mixture.max_overlap() == pytest.approx(omega, abs=1e-6)


def test_max_overlap_sees_every_pair_with_unequal_weights():
    for seed in range(3):
        weights, means, covariances = random_parameters(12, 3, seed)
        weights[0] *= 1e-3
        mixture = MixSimMixture(weights / weights.sum(), means, covariances)
        expected = largest_overlap(*parameters_of(mixture))
        assert mixture.max_overlap() == pytest.approx(expected, abs=1e-12)
    assert MixSimMixture(np.ones(1), np.zeros((1, 2)), np.eye(2)[None]).max_overlap() == 0.0


def test_components_are_drawn_as_described():
    mixture = generate(30, 6, 0.05, random_state=4)
    np.testing.assert_allclose(mixture.weights, 1 / 30)
    assert mixture.means.min() >= 0
    assert mixture.means.max() <= 1
    spectra = np.linalg.eigvalsh(mixture.covariances)
    # Seven draws in six dimensions are nearly always too flat, so the limit is met.
    eccentricities = np.sqrt(1 - spectra[:, 0] / spectra[:, -1])
    assert eccentricities.max() == pytest.approx(0.9, abs=1e-9)
    spheres = generate(5, 6, 0.05, random_state=4, max_eccentricity=0.0).covariances
    np.testing.assert_allclose(spheres, spheres[:, :1, :1] * np.eye(6), atol=1e-12)
    # In one dimension the variances are proportional to chi-squares with D = 1 degree of freedom:
    # median / mean is 0.4549 (two degrees: 0.69), estimated with standard error 0.056.
    variances = generate(500, 1, 0.1, random_state=0).covariances.ravel()
    assert abs(np.median(variances) / variances.mean() - 0.4549) < 3 * 0.056


def test_unreachable_overlap_is_drawn_again_then_refused():
    with pytest.raises(ValueError, match=r"max_overlap=0\.3 was out of reach in 1 draws"):
        generate(2, 3, 0.3, random_state=18, max_draws=1)
    mixture = generate(2, 3, 0.3, random_state=18)
    assert mixture.max_overlap() == pytest.approx(0.3, abs=1e-6)


def test_sample_has_every_component_in_random_order():
    mixture = generate(4, 3, 0.1, random_state=2)
    labels = mixture.sample(40_000, random_state=3)[1]
    # Binomial(40000, 1/4) has standard deviation 87.
    assert (abs(np.bincount(labels, minlength=4) - 10_000) < 4.5 * 87).all()
    assert (np.diff(labels) < 0).any(), "rows must not come sorted by component"
    np.testing.assert_array_equal(np.sort(mixture.sample(4, 0)[1]), np.arange(4))
    with pytest.raises(ValueError, match="n must be an integer >= 4, a row per component; got 3"):
        mixture.sample(3)


def test_score_samples_is_the_log_density(monkeypatch):
    weights, means, covariances = random_parameters(5, 4, 3)
    mixture = MixSimMixture(weights, means, covariances)
    X = np.vstack([mixture.sample(60, 0)[0], np.full((1, 4), 1e3)])  # one row far from everything
    log_density = [multivariate_normal(means[k], covariances[k]).logpdf(X) for k in range(5)]
    expected = logsumexp(np.log(weights)[:, None] + log_density, axis=0)
    monkeypatch.setattr(known_mixture, "BLOCK_ELEMENTS", 7 * 20)  # seven rows a block
    np.testing.assert_allclose(mixture.score_samples(X), expected, rtol=1e-9)
    with pytest.raises(ValueError, match=r"X must have shape \(N, 4\); got \(3, 2\)"):
        mixture.score_samples(np.zeros((3, 2)))


def test_the_deciding_pair_may_come_late(monkeypatch):
    # The pair with the smallest lower bound on c is often not the one that decides.
    expected = [generate(20, 3, 0.1, random_state=seed) for seed in range(4)]
    monkeypatch.setattr(mixsim, "_FIRST_CHUNK", 1)
    monkeypatch.setattr(mixsim, "BLOCK_ELEMENTS", 5 * 9)  # five pairs a block
    for seed, mixture in enumerate(expected):
        blocked = generate(20, 3, 0.1, random_state=seed)
        np.testing.assert_allclose(blocked.covariances, mixture.covariances, rtol=1e-8)
        assert blocked.max_overlap() == pytest.approx(0.1, abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_components": 2.5}, r"n_components must be an integer >= 2; got 2\.5"),
        ({"n_features": 0}, "n_features must be an integer >= 1; got 0"),
        ({"max_overlap": np.nan}, r"max_overlap must be in \[1e-08, 1\); got nan"),
        ({"max_eccentricity": 1.0}, r"max_eccentricity must be in \[0, 1\); got 1\.0"),
        ({"max_draws": 0}, "max_draws must be an integer >= 1; got 0"),
    ],
)
def test_bad_arguments_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        generate(**({"n_components": 3, "n_features": 2, "max_overlap": 0.1} | changes))


def test_mixture_refuses_shapes_that_do_not_agree():
    with pytest.raises(ValueError, match=r"weights and covariances must have shapes \(2,\)"):
        MixSimMixture(np.ones(3) / 3, np.zeros((2, 2)), np.stack([np.eye(2)] * 2))

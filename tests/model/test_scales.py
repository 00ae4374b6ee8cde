"""Mixtures at several scales, against scipy."""

import numpy as np
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

from pickmix import FamilyMixture, GaussianMixture
from pickmix.model import scales
from pickmix.model.scales import WIDTHS, ScaledMixture, Tails, levels_of, scale_names


def gaussian():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(centre, 1.0, (100, 2)) for centre in (0.0, 5.0, 30.0)])
    return X, GaussianMixture(3, random_state=0).fit(X)


def test_widened_densities_are_those_of_the_mixture_with_noise():
    X, mixture = gaussian()
    weights, means = mixture.weights_, mixture.means_
    centre = weights @ means
    variances = weights @ (
        np.diagonal(mixture.covariances_, axis1=1, axis2=2) + np.square(means - centre)
    )
    scores = ScaledMixture(mixture.model_, by_column=True)
    assert scores.levels.tolist() == [1, 3]
    densities = scores.log_densities(X)
    for number, width in enumerate(WIDTHS):
        noise = width * np.diag(variances)
        parts = [
            multivariate_normal(mean, covariance + noise).logpdf(X)
            for mean, covariance in zip(means, mixture.covariances_, strict=True)
        ]
        expected = logsumexp(np.stack(parts), b=weights[:, None], axis=0)
        np.testing.assert_allclose(densities[len(WIDTHS) + number], expected, rtol=1e-6)
        # The mixture of a scale, for explanations, is the same.
        at = scores.at(len(WIDTHS) + number)
        np.testing.assert_allclose(at.score_samples(X), expected, rtol=1e-6)
    columns = scores.column_log_densities(X)
    spreads = np.sqrt(mixture.covariances_[:, 1, 1] + 0.1 * variances[1])
    expected = logsumexp(norm(means[:, 1], spreads).logpdf(X[:, 1:]), b=weights, axis=1)
    np.testing.assert_allclose(columns[1], expected, rtol=1e-6)


def test_axes_give_what_covariances_give(monkeypatch):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(400, 4)) @ rng.normal(size=(4, 4)) * [1e-3, 1.0, 10.0, 1e3] + 50.0
    model = GaussianMixture(20, random_state=0).fit(X).model_
    X[0] *= 1e3
    by_axes = ScaledMixture(model, by_column=False)
    monkeypatch.setattr(scales, "_MOST_AXES", 0)
    by_covariances = ScaledMixture(model, by_column=False)
    assert (by_axes._axes is None, by_covariances._axes is None) == (False, True)
    expected = by_covariances.log_densities(X)
    np.testing.assert_allclose(by_axes.log_densities(X), expected, rtol=1e-9)


def test_levels_and_rates_are_mixed_with_those_of_all_rows():
    rng = np.random.default_rng(0)
    group = rng.integers(2, size=400)
    X = np.column_stack([group, rng.poisson(np.where(group, 20.0, 1.0))])
    mixture = FamilyMixture([("categorical", [0]), ("poisson", [1])], 2, random_state=0).fit(X)
    at = ScaledMixture(mixture.model_, by_column=False).at(len(WIDTHS) + 2)
    # Half of a component is as it was, and half as all rows are.
    for name, values in at.parameters.items():
        before = mixture.parameters_[name]
        by_value = np.argsort(before[:, 0]), np.argsort(values[:, 0])
        expected = 0.5 * (before + mixture.weights_ @ before)
        np.testing.assert_allclose(values[by_value[1]], expected[by_value[0]], rtol=1e-6)


def test_tails():
    scores = np.random.default_rng(0).exponential(size=(1, 200_000))
    # P(-E <= -x) = exp(-x), also where no score is.
    x = np.array([[0.5, 1.0, 2.0, 5.0, 30.0]])
    for tails in (Tails.of(-scores), Tails.of(-scores, 0.01)):
        np.testing.assert_allclose(tails.surprise(-x), x, rtol=0.05)
        assert tails.surprise(np.ones((1, 1)))[0, 0] == 0.0


def test_names_of_scales():
    assert levels_of(1).tolist() == [1]
    assert levels_of(20).tolist() == [1, 4, 16, 20]
    assert len(scale_names(20)) == 4 * len(WIDTHS) + 1

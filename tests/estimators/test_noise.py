"""Known noise in estimators: limits, what is refused, and that it is taken off."""

import numpy as np
import pytest
from missing_cases import (
    clusters,
    quiet_fit,
    with_gaps,
)

from pickmix import FamilyMixture, GaussianMixture


@pytest.mark.slow
@pytest.mark.parametrize("covariance_type", ["full", "diag"])
def test_noise_is_taken_off(covariance_type):
    rng = np.random.default_rng(0)
    rows = clusters(2000)
    variances = rng.uniform(0.5, 3.0, rows.shape)
    noisy = rows + np.sqrt(variances) * rng.normal(size=rows.shape)
    mixture = GaussianMixture(4, covariance_type=covariance_type, random_state=0)
    mixture.fit(noisy, noise=variances)
    held_out = clusters(2000, seed=9)
    truth = GaussianMixture(4, covariance_type=covariance_type, random_state=0).fit(rows)
    ignoring = GaussianMixture(4, covariance_type=covariance_type, random_state=0).fit(noisy)
    assert mixture.score(held_out) > truth.score(held_out) - 0.03
    assert mixture.score(held_out) > ignoring.score(held_out) + 0.2


class TestLimits:
    def test_no_noise_and_noise_of_nothing(self):
        """Another path, the same fit but for rounding."""
        rows = clusters()
        settings = {"n_components": 4, "algorithm": "em", "tol": 0.0, "max_iter": 5}
        one = quiet_fit(GaussianMixture(**settings, random_state=0), rows)
        other = quiet_fit(
            GaussianMixture(**settings, random_state=0), rows, noise=np.zeros((600, 3))
        )
        np.testing.assert_allclose(other.means_, one.means_, atol=1e-9)
        np.testing.assert_allclose(other.covariances_, one.covariances_, atol=1e-9)

    def test_noise_to_infinity_tends_to_missing(self):
        rows = with_gaps(clusters())
        seen = np.where(np.isnan(rows), 3.0, rows)
        mixture = quiet_fit(GaussianMixture(4, max_iter=10, random_state=0), rows)
        expected = mixture.predict_proba(rows)
        errors = []
        for size in (1e2, 1e4, 1e8):
            noise = np.where(np.isnan(rows), size, 0.0)
            actual = mixture.predict_proba(seen, noise=noise)
            errors.append(np.abs(actual - expected).max())
        assert errors[0] > errors[1] > errors[2]
        assert errors[2] < 1e-5


def test_checkpoints_tell_noise_apart(tmp_path):
    rows = with_gaps(clusters())
    noise = np.full(rows.shape, 0.5)
    plain = quiet_fit(GaussianMixture(3, max_iter=6, random_state=0), rows, noise=noise)
    settings = {"max_iter": 6, "random_state": 0, "checkpoint": tmp_path / "kept"}
    kept = quiet_fit(GaussianMixture(3, **settings), rows, noise=noise)
    np.testing.assert_array_equal(plain.means_, kept.means_)
    with pytest.raises(ValueError, match="noise"):
        GaussianMixture(3, **settings).fit(rows, noise=2.0 * noise)


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (np.ones((600, 2)), r"noise must have the shape \(600, 3\) for variances"),
        (np.full((600, 3), -1.0), r"variances from 0 to .* got -1.0 for row 0, column 0"),
        (np.full((600, 3), np.inf), r"variances from 0 to"),
        (np.full((600, 3), "x"), r"noise must be an array of real numbers"),
        (np.repeat([[[1, 2, 0], [0, 1, 0], [0, 0, 1]]], 600, axis=0), r"symmetric .* row 0"),
        (np.repeat([[[1, 2, 0], [2, 1, 0], [0, 0, 1]]], 600, axis=0), r"negative eigenvalues"),
        (np.repeat([[[1e12, 0, 0], [0, 1, 9], [0, 9, 1]]], 600, axis=0), r"negative eigenvalues"),
    ],
)
def test_noise_that_is_none(noise, message):
    with pytest.raises(ValueError, match=message):
        GaussianMixture(2).fit(clusters(), noise=noise)
    mixture = quiet_fit(GaussianMixture(2, max_iter=3, random_state=0), clusters())
    with pytest.raises(ValueError, match=message):
        mixture.score_samples(clusters(), noise=noise)


def test_noise_is_for_gaussians_and_for_arrays(tmp_path):
    counts = np.random.default_rng(0).poisson(3.0, (100, 2)).astype(np.float64)
    with pytest.raises(ValueError, match="noise is for Gaussian components, got family 'poisson'"):
        FamilyMixture("poisson", 2).fit(counts, noise=np.ones((100, 2)))
    np.save(tmp_path / "rows.npy", counts)
    with pytest.raises(ValueError, match="noise needs rows in memory"):
        GaussianMixture(2).fit(tmp_path / "rows.npy", noise=np.ones((100, 2)))


@pytest.mark.parametrize(("algorithm", "size"), [("em", 1e4), ("mhsaem", 1e12)])
def test_rows_of_very_much_noise_are_as_good_as_missing(algorithm, size):
    """They scatter as their noise says, and neither starts nor scales may follow them."""
    rows = clusters()
    noise = np.zeros(rows.shape)
    noise[:60] = size
    noisy = rows + np.sqrt(noise) * np.random.default_rng(4).normal(size=rows.shape)
    held_out = clusters(2000, seed=9)
    mixture = GaussianMixture(4, algorithm=algorithm, random_state=0)
    actual = quiet_fit(mixture, noisy, noise=noise).score(held_out)
    without = quiet_fit(mixture, rows[60:]).score(held_out)
    assert actual > without - 0.05


def test_correlations_are_found_under_noise():
    """Filled with what is expected, rows would confirm components as they are."""
    rng = np.random.default_rng(0)
    kind = rng.random(3000) < 0.5
    draws = rng.normal(size=(3000, 2))
    tight = draws @ np.linalg.cholesky([[0.04, 0.036], [0.036, 0.04]]).T
    rows = np.where(kind[:, None], tight, np.sqrt(0.02) * draws + [1.0, 0.8])
    noise = rng.uniform(0.01, 0.06, rows.shape)
    noisy = with_gaps(rows + np.sqrt(noise) * rng.normal(size=rows.shape), 0.2)
    mixture = GaussianMixture(2, random_state=0).fit(noisy, noise=noise)
    first = mixture.means_[:, 0].argmin()
    actual = mixture.covariances_[:, 0, 1] / np.sqrt(
        np.prod(mixture.covariances_[:, [0, 1], [0, 1]], axis=1)
    )
    assert actual[first] > 0.7
    assert abs(actual[1 - first]) < 0.15

"""Scores and predictions from a few components per row, against those from all of them."""

import numpy as np
import pytest

from pickmix import GaussianMixture
from pickmix.data.rotated import generate

COVARIANCE_TYPES = ("full", "tied", "diag", "spherical")
# Sums within blocks run in float32, which leaves some 1e-5 to 1e-4 of a log-density.
FLOAT32_ERROR = 1e-3
CANDIDATES = (32, 128, 512)


def known_mixture(n_components, n_features=4, width=0.08, covariance_type="full", **settings):
    """A mixture with given parameters, as if fitted, and rows drawn from it."""
    truth = generate(n_components, n_features, width, random_state=0)
    mixture = GaussianMixture(n_components, covariance_type=covariance_type, **settings)
    mixture.weights_, mixture.means_ = truth.weights, truth.means
    variances = np.diagonal(truth.covariances, 0, 1, 2)
    mixture.covariances_ = {
        "full": truth.covariances,
        "tied": truth.covariances.mean(axis=0),
        "diag": variances.copy(),
        "spherical": variances.mean(axis=1),
    }[covariance_type]
    mixture.n_features_in_ = n_features
    return mixture, truth.sample(2000, random_state=1)[0]


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_bounds_close_in_and_predictions_agree(covariance_type):
    mixture, X = known_mixture(300, covariance_type=covariance_type)
    exact, components = mixture.score_samples(X), mixture.predict(X)
    errors, shares = [], []
    for n_candidates in CANDIDATES:
        bound = mixture.score_samples(X, n_candidates=n_candidates)
        assert (bound <= exact + FLOAT32_ERROR).all()
        errors.append(float((exact - bound).mean()))
        shares.append(float(np.mean(mixture.predict(X, n_candidates=n_candidates) == components)))
    assert (np.diff(errors) < 0.0).all(), errors
    # Four cells hold nearly all that counts; one cell alone does not.
    assert errors[0] > 0.3
    assert errors[1] < 0.1
    assert errors[-1] < 0.01
    assert shares[0] < shares[1]
    assert shares[1] >= 0.95
    assert shares[-1] >= 0.995


@pytest.mark.parametrize("query", ["score_samples", "predict"])
class TestRefused:
    @pytest.mark.parametrize("n_candidates", [0, 1.5, "all", True])
    def test_bad_numbers(self, query, n_candidates):
        mixture, X = known_mixture(40)
        with pytest.raises(ValueError, match=r"n_candidates must be an integer >= 1, got"):
            getattr(mixture, query)(X, n_candidates=n_candidates)

    @pytest.mark.parametrize(("covariance_type", "n_components"), [("full", 20), ("diag", 300)])
    def test_rows_beyond_float64(self, query, covariance_type, n_components):
        mixture, X = known_mixture(n_components, covariance_type=covariance_type)
        X = np.concatenate([X[:5], [[1e200, 0.0, 0.0, 0.0]]])
        for options in ({}, {"n_candidates": 64}):
            with pytest.raises(ValueError, match=r"squared distances .* got 1 row\(s\) beyond"):
                getattr(mixture, query)(X, **options)


@pytest.mark.parametrize("covariance_type", ["full", "spherical"])
def test_far_away_rows(covariance_type):
    """Within one block the answer is exact however far out; of many it is a finite lower bound."""
    rows = np.array([[1e3] * 4, [1e8, 0.0, 0.0, 0.0], [0.0, -1e15, 0.0, 3.0], [0.0, 0.0, 1e100, 0]])
    mixture, _ = known_mixture(20, covariance_type=covariance_type)
    found = mixture.score_samples(rows, n_candidates=32)
    np.testing.assert_allclose(found, mixture.score_samples(rows), rtol=1e-9)
    np.testing.assert_array_equal(mixture.predict(rows, n_candidates=32), mixture.predict(rows))
    mixture, _ = known_mixture(300, covariance_type=covariance_type)
    exact = mixture.score_samples(rows)
    bound = mixture.score_samples(rows, n_candidates=64)
    assert np.isfinite(bound).all()
    # Kernels hold log-joints in float32.
    assert (bound <= exact + 1e-6 * np.abs(exact)).all()
    assert np.isfinite(mixture.predict(rows, n_candidates=64)).all()


def test_components_of_weight_zero():
    """A block of nothing but such components explains nothing, and breaks nothing."""
    mixture, rows = known_mixture(300)
    mixture.weights_ = np.where(np.arange(300) < 5, 0.2, 0.0)
    bound = mixture.score_samples(rows, n_candidates=64)
    assert np.isfinite(bound).all()
    assert (bound <= mixture.score_samples(rows) + 1e-3).all()

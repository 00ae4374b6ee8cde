"""Scores and predictions from a few components per row, against those from all of them."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from pickmix import GaussianMixture
from pickmix.data.rotated import generate

COVARIANCE_TYPES = ("full", "tied", "diag", "spherical")
# Sums within blocks run in float32, which leaves some 1e-5 to 1e-4 of a log-density.
FLOAT32_ERROR = 1e-3
CANDIDATES = (32, 64, 128, 256, 512)


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
class TestManyComponents:
    def test_scores_are_lower_bounds_that_close_in(self, covariance_type):
        mixture, X = known_mixture(300, covariance_type=covariance_type)
        exact = mixture.score_samples(X)
        errors = []
        for n_candidates in CANDIDATES:
            bound = mixture.score_samples(X, n_candidates=n_candidates)
            assert bound.shape == exact.shape
            assert (bound <= exact + FLOAT32_ERROR).all()
            errors.append(float((exact - bound).mean()))
        assert (np.diff(errors) < 0.0).all(), errors
        # Four cells hold nearly all that counts; one cell alone does not.
        assert errors[0] > 0.3
        assert errors[CANDIDATES.index(128)] < 0.1
        assert errors[-1] < 0.01

    def test_predictions_agree(self, covariance_type):
        mixture, X = known_mixture(300, covariance_type=covariance_type)
        exact = mixture.predict(X)
        shares = [
            float(np.mean(mixture.predict(X, n_candidates=n_candidates) == exact))
            for n_candidates in CANDIDATES
        ]
        assert shares[CANDIDATES.index(128)] >= 0.95
        assert shares[-1] >= 0.995
        assert shares[0] < shares[CANDIDATES.index(128)]


def test_kinds_of_rows():
    """float32 rows, rows in column order and lists are the same rows."""
    mixture, X = known_mixture(300)
    X = X[:200].astype(np.float32)
    wide = X.astype(np.float64)
    expected = mixture.score_samples(wide, n_candidates=64)
    for rows in (X, np.asfortranarray(wide), wide.tolist()):
        np.testing.assert_array_equal(mixture.score_samples(rows, n_candidates=64), expected)
    predicted = mixture.predict(X, n_candidates=64)
    assert np.issubdtype(predicted.dtype, np.integer)
    assert ((predicted >= 0) & (predicted < 300)).all()


@pytest.mark.parametrize("query", ["score_samples", "predict"])
class TestRefused:
    @pytest.mark.parametrize("n_candidates", [0, -1, 1.5, "all", True, np.nan])
    def test_bad_numbers(self, query, n_candidates):
        mixture, X = known_mixture(40)
        with pytest.raises(ValueError, match=r"n_candidates must be an integer >= 1, got"):
            getattr(mixture, query)(X, n_candidates=n_candidates)

    def test_unfitted(self, query):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            getattr(GaussianMixture(), query)(np.zeros((2, 2)), n_candidates=32)

    def test_other_features(self, query):
        mixture, X = known_mixture(40)
        with pytest.raises(ValueError, match=r"X has 3 features, but .* is expecting 4"):
            getattr(mixture, query)(X[:, :3], n_candidates=32)

    @pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
    @pytest.mark.parametrize("n_components", [20, 300])
    def test_rows_beyond_float64(self, query, covariance_type, n_components):
        mixture, X = known_mixture(n_components, covariance_type=covariance_type)
        X = np.concatenate([X[:5], [[1e200, 0.0, 0.0, 0.0]]])
        for options in ({}, {"n_candidates": 64}):
            with pytest.raises(ValueError, match=r"squared distances .* got 1 row\(s\) beyond"):
                getattr(mixture, query)(X, **options)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
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

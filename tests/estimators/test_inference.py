"""What a fitted mixture answers, against plain scipy and NumPy."""

import tracemalloc

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from pickmix import GaussianMixture
from pickmix.closed_form.evaluation import dense_block_rows

COVARIANCE_TYPES = ("full", "tied", "diag", "spherical")


def known_mixture(covariance_type, n_components=5, n_features=3, seed=0, **settings):
    """A mixture with given parameters, as if fitted, and its covariances as (K, D, D)."""
    rng = np.random.default_rng(seed)
    K, D = n_components, n_features
    half = np.eye(D) + 0.3 * rng.normal(size=(K, D, D))
    full = half @ half.transpose(0, 2, 1)
    variances = rng.uniform(0.3, 2.0, (K, D))
    stored, dense = {
        "full": (full, full),
        "tied": (full[0], np.repeat(full[:1], K, axis=0)),
        "diag": (variances, np.stack([np.diag(v) for v in variances])),
        "spherical": (variances[:, 0], variances[:, 0, None, None] * np.eye(D)),
    }[covariance_type]
    mixture = GaussianMixture(K, covariance_type=covariance_type, **settings)
    mixture.weights_ = rng.dirichlet(np.full(K, 2.0))
    mixture.means_ = rng.normal(0.0, 2.0, (K, D))
    mixture.covariances_ = stored
    mixture.n_features_in_ = D
    return mixture, dense


def expected_log_joint(mixture, covariances, X):
    """log weight + log density of every component, (N, K), by scipy."""
    columns = [
        np.log(weight) + multivariate_normal(mean, covariance).logpdf(X)
        for weight, mean, covariance in zip(
            mixture.weights_, mixture.means_, covariances, strict=True
        )
    ]
    return np.column_stack(columns)


@pytest.fixture(params=COVARIANCE_TYPES)
def case(request):
    mixture, covariances = known_mixture(request.param)
    # More rows than one block, and a last block that is not full.
    n_rows = 2 * dense_block_rows(5) + 77
    X = np.random.default_rng(1).normal(0.0, 3.0, (n_rows, 3))
    return mixture, X, expected_log_joint(mixture, covariances, X)


@pytest.mark.parametrize("m", [2, 5])
def test_top_components(case, m):
    mixture, X, log_joint = case
    posterior = np.exp(log_joint - logsumexp(log_joint, axis=1, keepdims=True))
    components, probabilities = mixture.top_components(X, m)
    assert components.shape == probabilities.shape == (X.shape[0], m)
    order = np.argsort(-log_joint, axis=1)[:, :m]
    np.testing.assert_array_equal(components, order)
    np.testing.assert_allclose(
        probabilities, np.take_along_axis(posterior, order, axis=1), rtol=1e-9, atol=1e-15
    )
    assert (np.diff(probabilities, axis=1) <= 0.0).all()
    if m == mixture.n_components:
        np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-12)


@pytest.mark.parametrize("m", [0, 6, 1.5, None])
def test_top_components_refuses(m):
    mixture, _ = known_mixture("full")
    with pytest.raises(ValueError, match=r"m must be .*got"):
        mixture.top_components(np.zeros((4, 3)), m)


def test_score_with_weights(case):
    mixture, X, log_joint = case
    weights = np.random.default_rng(2).uniform(0.0, 3.0, len(X))
    expected = np.average(logsumexp(log_joint, axis=1), weights=weights)
    assert mixture.score(X, sample_weight=weights) == pytest.approx(expected, rel=1e-12)
    kept = np.zeros(len(X))
    kept[7] = 3.0
    assert mixture.score(X, sample_weight=kept) == pytest.approx(mixture.score(X[7:8]), rel=1e-12)


def test_no_array_of_rows_by_components():
    N, K, D = 100_000, 400, 2
    mixture, _ = known_mixture("diag", K, D, n_jobs=2)
    X = np.random.default_rng(0).normal(size=(N, D))
    mixture.score_samples(X[:10])
    mixture.top_components(X[:10], 3)
    dense = 8 * N * K
    for query, answer in (
        (mixture.score_samples, 8 * N),
        (mixture.predict, 8 * N),
        (lambda rows: mixture.top_components(rows, 3), 12 * 3 * N),
    ):
        tracemalloc.start()
        query(X)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        # Twice the answer (its blocks, then joined), row numbers, and blocks of log-joints, of at
        # most 16 MB each. N x K numbers would take 320 MB.
        bound = 2 * answer + 16 * N + 3 * 16e6
        assert bound < 0.25 * dense
        assert peak < bound


class TestSample:
    N = 40_000

    @pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
    def test_moments(self, covariance_type):
        mixture, covariances = known_mixture(covariance_type, random_state=3)
        X, labels = mixture.sample(self.N)
        assert X.shape == (self.N, 3)
        assert labels.shape == (self.N,)
        assert (np.diff(labels) >= 0).all()
        counts = np.bincount(labels, minlength=5)
        spread = np.sqrt(self.N * mixture.weights_ * (1.0 - mixture.weights_))
        # Five standard deviations: one of these some 90 comparisons fails once in 20,000 seeds.
        assert (np.abs(counts - self.N * mixture.weights_) < 5.0 * spread).all()
        for k in range(5):
            rows, covariance = X[labels == k], covariances[k]
            variances = np.diag(covariance)
            deviation = np.abs(rows.mean(axis=0) - mixture.means_[k])
            assert (deviation < 5.0 * np.sqrt(variances / counts[k])).all()
            # Var of a sample covariance: (S_ij^2 + S_ii S_jj) / n.
            error = np.sqrt((covariance**2 + np.outer(variances, variances)) / counts[k])
            assert (np.abs(np.cov(rows.T) - covariance) < 5.0 * error).all()

    def test_seed(self):
        mixture, _ = known_mixture("full", random_state=3)
        np.testing.assert_array_equal(mixture.sample(20)[0], mixture.sample(20)[0])
        # A RandomState goes on, and None is different every time.
        mixture.random_state = np.random.RandomState(0)
        assert np.abs(mixture.sample(20)[0] - mixture.sample(20)[0]).max() > 0.0
        mixture.random_state = None
        assert np.abs(mixture.sample(20)[0] - mixture.sample(20)[0]).max() > 0.0

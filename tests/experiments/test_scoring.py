import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from pickmix.data.rotated import generate
from pickmix.experiments.scoring import GaussianParameters


def test_density_is_scipys_whatever_the_type_and_the_sum_of_weights():
    truth = generate(4, 3, 0.2, weights="power", random_state=0)
    X = np.random.default_rng(0).uniform(size=(30, 3))
    narrow = GaussianParameters(
        (3.0 * truth.weights).astype(np.float32),
        truth.means.astype(np.float32),
        truth.covariances.astype(np.float32),
    )
    parts = [
        np.log(w) + multivariate_normal(m, S).logpdf(X)
        for w, m, S in zip(truth.weights, truth.means, truth.covariances, strict=True)
    ]
    np.testing.assert_allclose(narrow.score_samples(X), logsumexp(parts, axis=0), rtol=1e-4)


def test_a_component_of_no_weight_counts_for_nothing():
    one = GaussianParameters([1.0], [[0.0]], [[[1.0]]])
    two = GaussianParameters([1.0, 0.0], [[0.0], [3.0]], [[[1.0]], [[1.0]]])
    X = np.array([[0.0], [3.0]])
    np.testing.assert_allclose(two.score_samples(X), one.score_samples(X))
    assert two.live_components(10**6) == 1


def test_half_a_row_makes_a_component_live():
    parameters = GaussianParameters([0.994, 0.006, 0.0], np.zeros((3, 1)), np.ones((3, 1, 1)))
    assert parameters.live_components(100) == 2
    assert parameters.live_components(50) == 1


def test_what_is_not_finite_or_of_another_shape_is_named():
    with pytest.raises(ValueError, match="means must be finite; got nan"):
        GaussianParameters([1.0], [[np.nan]], [[[1.0]]])
    with pytest.raises(ValueError, match=r"shapes \(1,\) and \(1, 2, 2\)"):
        GaussianParameters([1.0], [[0.0, 0.0]], [[1.0, 1.0]])


def test_a_flat_covariance_is_refused():
    flat = GaussianParameters([1.0], [[0.0, 0.0]], [[[1.0, 1.0], [1.0, 1.0]]])
    with pytest.raises(ValueError, match="singular"):
        flat.score_samples(np.zeros((1, 2)))

"""scikit-learn's checks of an estimator, and stronger versions of its weight equivalences."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from pickmix import FamilyMixture, GaussianMixture

COVARIANCE_TYPES = ("full", "tied", "diag", "spherical")
STOCHASTIC = [
    {"algorithm": "ssaem"},
    {"algorithm": "tsaem"},
    {"algorithm": "mcsaem"},
    {"algorithm": "mhsaem", "proposal": "table-forgetting"},
]

ESTIMATORS = [GaussianMixture(2), FamilyMixture("diag", 2, algorithm="em")]

# Checks fit noise with as few as one row and with max_iter set to 1 or 5; such fits do not
# converge, and saying so is what they should do.
ignore_unconverged = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
)


def equal_rows_are_not_one_row(estimator):
    """Half of one check, integer weights, is not promised by algorithms that select.

    The other half, zero weights, holds bit by bit and is tested below.
    """
    if estimator.algorithm == "em":
        return {}
    return {
        "check_sample_weight_equivalence_on_dense_data": (
            "n equal rows draw n times, and are n rows to the effective count behind a "
            "covariance; a row of weight n is one row to both (see the estimator's Notes)"
        )
    }


@ignore_unconverged
@parametrize_with_checks(
    ESTIMATORS, expected_failed_checks=equal_rows_are_not_one_row, xfail_strict=True
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def weighted_rows(n_rows=300, seed=0):
    """Rows of three overlapping clusters, integer weights 0..4, and means to start from."""
    rng = np.random.default_rng(seed)
    centres = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    X = centres[rng.integers(3, size=n_rows)] + rng.normal(size=(n_rows, 2))
    weights = rng.integers(0, 5, size=n_rows)
    return X, weights, centres + 0.5


def assert_same_fit(one, other, X, tolerance):
    for name in ("weights_", "means_", "covariances_"):
        np.testing.assert_allclose(
            getattr(one, name), getattr(other, name), rtol=tolerance, atol=tolerance, err_msg=name
        )
    np.testing.assert_allclose(
        one.trace_["log_likelihood"], other.trace_["log_likelihood"], rtol=tolerance
    )
    np.testing.assert_allclose(one.score_samples(X), other.score_samples(X), rtol=tolerance)


@pytest.mark.parametrize(
    ("covariance_type", "start"),
    [*((name, "given") for name in COVARIANCE_TYPES), ("full", "automatic")],
)
def test_weights_in_em(covariance_type, start):
    """A weight of zero removes a row, a weight of n repeats it, and only ratios count."""
    X, weights, means = weighted_rows()
    settings = {"algorithm": "em", "covariance_type": covariance_type, "random_state": 0}
    if start == "given":
        settings |= {"means_init": means, "weights_init": [0.2, 0.3, 0.5]}
        settings["precisions_init"] = {
            "full": np.repeat(np.eye(2)[None], 3, axis=0),
            "tied": np.eye(2),
            "diag": np.ones((3, 2)),
            "spherical": np.ones(3),
        }[covariance_type]
    mixture = GaussianMixture(3, max_steps=25, **settings)
    repeated = clone(mixture).fit(X.repeat(weights, axis=0))
    for factor in (1.0, 1e-250, 1e250):
        weighted = clone(mixture).fit(X, sample_weight=factor * weights)
        assert_same_fit(weighted, repeated, X, 1e-10)
    assert weighted.score(X, sample_weight=weights) == pytest.approx(
        repeated.score(X.repeat(weights, axis=0)), rel=1e-12
    )


@pytest.mark.parametrize(
    "settings", [*STOCHASTIC, {"covariance_type": "tied"}], ids=lambda s: "-".join(s.values())
)
def test_zero_weight_removes_bit_by_bit(settings):
    X, weights, _ = weighted_rows()
    settings = settings | {
        "batch_size": 50,
        "max_steps": 40,
        "random_state": 0,
    }
    positive = weights > 0
    weighted = GaussianMixture(3, **settings).fit(X, sample_weight=weights)
    removed = GaussianMixture(3, **settings).fit(X[positive], sample_weight=weights[positive])
    for name in ("weights_", "means_", "covariances_"):
        np.testing.assert_array_equal(getattr(weighted, name), getattr(removed, name))
    np.testing.assert_array_equal(
        weighted.trace_["log_likelihood"], removed.trace_["log_likelihood"]
    )
    # Rows that were there would have made a difference.
    present = GaussianMixture(3, **settings).fit(X, sample_weight=np.maximum(weights, 1))
    assert np.abs(present.means_ - weighted.means_).max() > 1e-6


@pytest.mark.parametrize("settings", [{"algorithm": "em"}, {}], ids=str)
def test_equal_weights_are_no_weights(settings):
    X, _, _ = weighted_rows()
    settings = settings | {"batch_size": 50, "max_steps": 10, "random_state": 0}
    plain = GaussianMixture(3, **settings).fit(X)
    ones = GaussianMixture(3, **settings).fit(X, sample_weight=np.ones(len(X)))
    eights = GaussianMixture(3, **settings).fit(X, sample_weight=np.full(len(X), 8.0))
    for name in ("weights_", "means_", "covariances_"):
        np.testing.assert_allclose(getattr(ones, name), getattr(plain, name), rtol=1e-10)
        np.testing.assert_array_equal(getattr(eights, name), getattr(ones, name))


def test_weights_move_a_stochastic_fit():
    # Two clusters; ten times the weight on one of them must show in the mixture weights.
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(-5.0, 1.0, (300, 1)), rng.normal(5.0, 1.0, (300, 1))])
    sample_weight = np.where(X[:, 0] < 0.0, 10.0, 1.0)
    for settings in STOCHASTIC:
        mixture = GaussianMixture(2, random_state=0, **settings).fit(X, sample_weight=sample_weight)
        low = np.argmin(mixture.means_[:, 0])
        # A heavy row whose chain is still on its way costs 10 / 3300; unweighted it were 1 / 2.
        assert mixture.weights_[low] == pytest.approx(10.0 / 11.0, abs=0.01), settings

"""scikit-learn's own checks of an estimator, with none expected to fail."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from pickmix import GaussianMixture

SETTINGS = [
    GaussianMixture(),
    GaussianMixture(algorithm="em"),
    GaussianMixture(n_components=2, algorithm="em", covariance_type="tied"),
    GaussianMixture(n_components=2, algorithm="mhsaem", proposal="uniform"),
    GaussianMixture(n_components=2, algorithm="mhsaem", proposal="table", covariance_type="diag"),
    GaussianMixture(n_components=2, algorithm="mhsaem", proposal="table-forgetting"),
    GaussianMixture(n_components=2, algorithm="tsaem", covariance_type="spherical"),
    GaussianMixture(n_components=2, algorithm="tsaem"),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(SETTINGS)
def test_scikit_learn_checks(estimator, check):
    check(estimator)

"""scikit-learn's checks of the imputer, the regressor and the classifier."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from pickmix import MixtureClassifier, MixtureImputer, MixtureRegressor

SMALL = {"n_folds": 2, "random_state": 0}


@parametrize_with_checks(
    [MixtureImputer(1, **SMALL), MixtureRegressor(1, **SMALL), MixtureClassifier(3, **SMALL)],
    xfail_strict=True,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)

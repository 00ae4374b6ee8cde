"""scikit-learn's checks of the imputer, the regressor and the classifier."""

from functools import partial

from sklearn.utils.estimator_checks import parametrize_with_checks

from pickmix import MixtureClassifier, MixtureImputer, MixtureRegressor
from pickmix.estimators import answering

SMALL = {"n_folds": 2, "random_state": 0}


@parametrize_with_checks(
    [MixtureImputer(1, **SMALL), MixtureRegressor(1, **SMALL), MixtureClassifier(3, **SMALL)],
    xfail_strict=True,
)
def test_scikit_learn_checks(estimator, check, monkeypatch):
    # The checks are about the interface, whatever there is to choose from and how long fits learn.
    monkeypatch.setattr(answering, "LimitedMixture", partial(answering.LimitedMixture, max_iter=5))
    monkeypatch.setattr(answering, "_WIDTHS", (0.0, 0.1))
    monkeypatch.setattr(answering, "_ASKED_WIDTHS", (0.0,))
    check(estimator)

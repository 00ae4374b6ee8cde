"""scikit-learn's checks of an estimator, for deep mixtures."""

import jax
import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from pickmix import FlowMixture, SumProductTransformNetwork

# Each check has data of a shape of its own, for which programs are compiled: all checks of both
# classes take two minutes. What follows is left out of the one class where the other has it or
# where our own tests say more; nothing else is.
ELSEWHERE = {
    "FlowMixture": {
        "check_dont_overwrite_attributes": "the networks'",
        "check_estimators_overwrite_params": "check_dict_unchanged sees parameters too",
        "check_f_contiguous_array_estimator": "the networks'",
        "check_fit2d_1sample": "test_deep_fit.py, a single row",
        "check_fit_check_is_fitted": "the networks'",
        "check_fit_score_takes_y": "the networks'",
        "check_n_features_in_after_fitting": "the networks'",
        "check_positive_only_tag_during_fit": "about estimators that want positive rows",
        "check_sample_weights_not_an_array": "the networks'",
        "check_sample_weights_shape": "the networks'",
    },
    "SumProductTransformNetwork": {
        "check_dict_unchanged": "the flows'",
        "check_dont_overwrite_attributes": "the flows'",
        "check_dtype_object": "the flows'",
        "check_estimators_dtypes": "the flows'",
        "check_estimators_nan_inf": "the flows'",
        "check_estimators_overwrite_params": "the flows'",
        "check_fit2d_1feature": "the flows'",
        "check_fit2d_1sample": "test_deep_fit.py, a single row",
        "check_fit_idempotent": "the flows'",
        "check_positive_only_tag_during_fit": "about estimators that want positive rows",
    },
}
# n equal rows draw n times, and a row of weight n once. test_deep_fit.py has what is promised: a
# weight of zero removes a row bit by bit, and only ratios matter.
NOT_PROMISED = {"check_sample_weight_equivalence_on_dense_data"}
# float64: checks compare to 1e-7 what rows give alone and among others.
SMALL = {"max_steps": 4, "batch_size": 20, "dtype": "float64"}


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    # Short fits: compiling them well costs more than it saves.
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def chosen():
    for estimator in (
        FlowMixture(n_components=2, hidden=2, **SMALL),
        SumProductTransformNetwork(2, 2, 1, **SMALL),
    ):
        for one, check in estimator_checks_generator(estimator, legacy=True):
            name = getattr(check, "func", check).__name__
            class_name = type(estimator).__name__
            if name not in ELSEWHERE[class_name] and name not in NOT_PROMISED:
                yield pytest.param(one, check, id=f"{class_name}-{name}")


@pytest.mark.parametrize(("estimator", "check"), list(chosen()))
def test_scikit_learn_checks(estimator, check):
    check(estimator)

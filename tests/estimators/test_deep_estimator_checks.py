"""scikit-learn's checks of an estimator, for deep mixtures."""

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from pickmix import FlowMixture, SumProductTransformNetwork

# Each check has data of a shape of its own, for which programs are compiled: all of them take two
# minutes for both classes, which share the code that they are about. They pass, but for
# check_sample_weight_equivalence_on_dense_data: n equal rows draw n times, a row of weight n once.
# (test_deep_fit.py has what is promised: a weight of zero removes a row bit by bit.) A few that say
# most to users and that no test of ours repeats are made here, most of them with the class whose
# programs compile sooner; the checks that fit nothing are made with both.
WITH_FITS = {
    # Networks have no layers that need two columns. `check_estimators_nan_inf` passes with neither:
    # queries of flows are about what was observed, though fits refuse NaN (test_deep_gaps.py).
    "FlowMixture": {
        "check_fit2d_1feature",
    },
    "SumProductTransformNetwork": {
        "check_fit_score_takes_y",
        "check_methods_sample_order_invariance",
        "check_methods_subset_invariance",
        "check_sample_weights_shape",
    },
}
WITHOUT_FITS = {
    "check_complex_data",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_sparse_array",
    "check_estimator_sparse_matrix",
    "check_estimator_sparse_tag",
    "check_estimator_tags_renamed",
    "check_estimators_empty_data_messages",
    "check_estimators_unfitted",
    "check_fit1d",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
}
# float64: checks compare to 1e-7 what rows give alone and among others.
SMALL = {"max_steps": 4, "batch_size": 20, "dtype": "float64", "init_params": "paper"}


def chosen():
    for estimator in (
        FlowMixture(n_components=2, n_layers=1, hidden=2, **SMALL),
        SumProductTransformNetwork(2, 2, 1, transforms=False, **SMALL),
    ):
        for one, check in estimator_checks_generator(estimator, legacy=True):
            name = getattr(check, "func", check).__name__
            class_name = type(estimator).__name__
            if name in WITH_FITS[class_name] | WITHOUT_FITS:
                yield pytest.param(one, check, id=f"{class_name}-{name}")


CHOSEN = list(chosen())


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "check"), CHOSEN)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_nothing_is_misspelt():
    made = {param.id.split("-")[1] for param in CHOSEN}
    assert made == WITHOUT_FITS.union(*WITH_FITS.values())

"""scikit-learn's tests of its `GaussianMixture`, run with ours and `algorithm="em"`.

They are those of the installed version. Each is taken over as it stands, with its parameters; only
the name `GaussianMixture` means ours in it.
"""

import functools
import importlib.util
import inspect
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn.mixture

from pickmix import GaussianMixture

THEIRS = Path(sklearn.mixture.__file__).parent / "tests" / "test_gaussian_mixture.py"
if not THEIRS.is_file():
    pytest.skip(
        f"scikit-learn {sklearn.__version__} ships without {THEIRS.name}", allow_module_level=True
    )

NOT_APPLICABLE = {
    "test_suffstat_sk_full": "tests private functions of scikit-learn, no estimator",
    "test_suffstat_sk_tied": "tests private functions of scikit-learn, no estimator",
    "test_suffstat_sk_diag": "tests private functions of scikit-learn, no estimator",
    "test_gaussian_suffstat_sk_spherical": "tests private functions of scikit-learn, no estimator",
    "test_compute_log_det_cholesky": "tests private functions of scikit-learn, no estimator",
    "test_gaussian_mixture_log_probabilities": "tests a private function of scikit-learn",
    "test_gaussian_mixture_precisions_init": "calls private methods: _set_parameters, _initialize",
    "test_gaussian_mixture_all_init_does_not_estimate_gaussian_parameters": (
        "counts the calls of a private function of scikit-learn"
    ),
    "test_gaussian_mixture_array_api_compliance": "tests the array API",
    "test_gaussian_mixture_raises_where_array_api_not_implemented": "tests the array API",
}
# These compare messages with scikit-learn's, word for word. Ours are worded differently, so
# only the kind of error or warning is compared; everything else in them is.
COMPARES_WORDING = {
    "test_check_weights",
    "test_check_means",
    "test_check_precisions",
    "test_gaussian_mixture_fit_convergence_warning",
    "test_regularisation",
    "test_sample",
}

# Warnings in our words, which the filters of these tests do not know.
pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:reg_covar=0.1 exceeds the variance:UserWarning"),
]


def load_theirs():
    """The module of scikit-learn's tests, in which `GaussianMixture` is ours."""
    name = "scikit_learn_tests"
    specification = importlib.util.spec_from_file_location(name, THEIRS)
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    module.GaussianMixture = functools.partial(
        GaussianMixture, algorithm="em", init_params="kmeans"
    )
    return module


def left_out(reason):
    """A test that is skipped. It has none of the parameters of the one that it stands for."""

    @pytest.mark.skip(reason=reason)
    def skipped():
        pass

    return skipped


theirs = load_theirs()
tests = {
    name: function
    for name, function in vars(theirs).items()
    if name.startswith("test_") and inspect.isfunction(function)
}
globals().update(tests)
globals().update(
    {name: left_out(reason) for name, reason in NOT_APPLICABLE.items() if name in tests}
)


@pytest.fixture
def global_dtype():
    """float64, as in scikit-learn's runs. Ours computes in float64 whatever it is given."""
    return np.float64


@pytest.fixture(params=[42])
def global_random_seed(request):
    return request.param


@pytest.fixture(autouse=True)
def only_the_kind_of_message(request, monkeypatch):
    """Leave the wording of messages out where scikit-learn's would be compared."""
    if request.node.originalname in COMPARES_WORDING:
        without_wording = SimpleNamespace(
            raises=lambda kind, match: pytest.raises(kind),
            warns=lambda kind, match: pytest.warns(kind),
        )
        monkeypatch.setattr(theirs, "pytest", without_wording)


def test_the_tables_name_tests_that_exist():
    assert len(tests) > 20
    # Other versions of scikit-learn may lack some, but a test is in one table only.
    assert not COMPARES_WORDING & set(NOT_APPLICABLE)

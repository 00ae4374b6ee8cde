"""Small data and short fits that several tests share."""

import numpy as np
import pytest

from pickmix import GaussianMixture

ALGORITHMS = [
    {"algorithm": "em"},
    {"algorithm": "ssaem"},
    {"algorithm": "tsaem"},
    {"algorithm": "mcsaem"},
    {"algorithm": "mhsaem", "proposal": "uniform"},
    {"algorithm": "mhsaem", "proposal": "table-forgetting"},
]
every_algorithm = pytest.mark.parametrize(
    "settings", ALGORITHMS, ids=lambda s: "-".join(s.values())
)
COVARIANCE_TYPES = ("full", "tied", "diag", "spherical")


def clusters(n_rows=300, n_features=2, seed=0):
    rng = np.random.default_rng(seed)
    centres = 3.0 * rng.normal(size=(3, n_features))
    return centres[rng.integers(3, size=n_rows)] + rng.normal(size=(n_rows, n_features))


def short_fit(X=None, n_components=3, **settings):
    settings = {"random_state": 0, "max_steps": 20, "batch_size": 50} | settings
    return GaussianMixture(n_components, **settings).fit(clusters() if X is None else X)


def assert_identical(one, other):
    for name in ("weights_", "means_", "covariances_"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for name in ("step", "evaluations", "log_likelihood", "acceptance", "live_components"):
        np.testing.assert_array_equal(one.trace_[name], other.trace_[name], err_msg=name)

"""Constructor parameters: what is refused and how, what is promised and kept."""

import numpy as np
import pytest
from short_fits import (
    clusters,
    short_fit,
)
from sklearn.exceptions import NotFittedError

from pickmix import GaussianMixture, SearchSet
from pickmix.callbacks import EarlyStopping

NOT_INTEGERS = (0, -1, 1.5, "3", None, True, np.nan)
NOT_NUMBERS = (-1e-3, np.nan, np.inf, "0.1", None, [1.0])
BAD = {
    "n_components": NOT_INTEGERS,
    "max_components": (0, -1, 1.5, "3", True),
    "covariance_type": ("diagonal", None, 3, "Full"),
    "rank": (-1, 1.5, "all", None, True),
    "axes": ("rows", None, 0),
    "algorithm": ("EM", None, "sgd", 1),
    "proposal": ("gibbs", None, 3, SearchSet()),
    "n_samples": NOT_INTEGERS,
    "reuse_log_joint": ("yes", None, 2),
    "batch_size": (0, -5, 1.5, "all", None, True),
    "step_size": (0.0, -0.1, 1.1, np.nan, "fast", None, True),
    "annealing": ("up", 0.5, True),
    "max_iter": tuple(value for value in NOT_INTEGERS if value != 0),
    "max_steps": (0, -1, 1.5, "3", True),
    "max_time": (0, -1.0, np.nan, np.inf, "1 s"),
    "tol": NOT_NUMBERS,
    "evaluate_every": (0, -1, 1.5, "often", None, True, [], [3, 3], [0, 3], [1.5], [[1, 2]]),
    "reg_covar": NOT_NUMBERS,
    "background": ("yes", None, 2),
    "n_init": NOT_INTEGERS,
    "init_params": ("k_means", None, 0),
    "random_state": ("seed", -1, 1.5, 2**32),
    "n_jobs": (0, 1.5, "all", True),
    "warm_start": ("yes", None, 2),
    "verbose": (-1, 1.5, "loud", None),
    "callbacks": (3, [print, 3], "print", {"print": print}),
    "checkpoint": (3, True, ["folder"]),
    "checkpoint_every": (-1.0, "often", np.inf, None),
}


def test_every_parameter_has_a_bad_value():
    checked_elsewhere = {"weights_init", "means_init", "precisions_init", "fixed_components"}
    assert set(BAD) | checked_elsewhere == set(GaussianMixture().get_params())


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD.items() for value in values], ids=repr
)
def test_bad_value(name, value):
    mixture = GaussianMixture(**({"n_components": 2} | {name: value}))
    with pytest.raises(ValueError) as caught:
        mixture.fit(clusters(20))
    message = str(caught.value)
    # The parameter, what was expected, and what came.
    assert message.startswith(name), message
    assert "must" in message
    assert "got" in message
    assert message[message.index("got") :].find(repr(value)) > 0, message
    # Nothing half-fitted remains.
    with pytest.raises(NotFittedError):
        mixture.predict(clusters(20))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("weights_init", [0.5, 0.5], r"weights_init must have shape \(3,\), got \(2,\)"),
        ("weights_init", [0.5, 0.6, -0.1], "weights_init must be non-negative.*got.*-0.1"),
        ("weights_init", [0.5, 0.5, 0.5], "weights_init must .* sum to 1, got .*1.5"),
        ("weights_init", [0.5, 0.5, np.nan], "weights_init must hold finite numbers only, got"),
        ("weights_init", "even", "weights_init must be an array of real numbers .*got 'even'"),
        ("weights_init", [0.5, None, 0.5], "weights_init must be an array of real numbers .*got"),
        ("means_init", np.zeros((2, 2)), r"means_init must have shape \(3, 2\), got \(2, 2\)"),
        ("means_init", np.zeros(3), r"means_init must have shape \(3, 2\), got \(3,\)"),
        ("means_init", np.full((3, 2), np.inf), "means_init must hold finite numbers only, got"),
        ("means_init", [[1, 2], [3]], "means_init must be an array of real numbers .*got"),
        ("means_init", np.full((3, 2), 1j), "means_init must be an array of real numbers .*got"),
        ("precisions_init", np.eye(2), r"precisions_init must have shape \(3, 2, 2\), got \(2, 2"),
        (
            "precisions_init",
            np.tile(np.diag([1.0, -2.0]), (3, 1, 1)),
            "precisions_init must be positive definite, got a smallest eigenvalue of -2",
        ),
        (
            "precisions_init",
            np.tile([[1.0, 0.5], [0.0, 1.0]], (3, 1, 1)),
            "precisions_init must be symmetric, got .* up to 0.5",
        ),
        ("precisions_init", np.full((3, 2, 2), np.nan), "precisions_init must hold finite numbers"),
    ],
)
def test_bad_start(name, value, message):
    with pytest.raises(ValueError, match=message):
        GaussianMixture(3, **{name: value}).fit(clusters())


@pytest.mark.parametrize(
    ("covariance_type", "value", "message"),
    [
        ("tied", np.zeros((3, 2, 2)), r"must have shape \(2, 2\), got \(3, 2, 2\)"),
        ("tied", -np.eye(2), "must be positive definite"),
        ("diag", np.ones(3), r"must have shape \(3, 2\), got \(3,\)"),
        ("diag", np.array([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), "must be positive, got .*0.0"),
        ("spherical", np.ones((3, 2)), r"must have shape \(3,\), got \(3, 2\)"),
        ("spherical", np.array([1.0, 1.0, -1.0]), "must be positive, got .*-1.0"),
    ],
)
def test_bad_precisions_of_other_structures(covariance_type, value, message):
    mixture = GaussianMixture(3, covariance_type=covariance_type, precisions_init=value)
    with pytest.raises(ValueError, match="precisions_init " + message):
        mixture.fit(clusters())


def test_bad_schedules_are_named_when_they_misbehave():
    with pytest.raises(ValueError, match=r"step_size must return .*got 2.0 at step 5"):
        short_fit(step_size=lambda t: 2.0 if t == 5 else 0.1)
    with pytest.raises(ValueError, match=r"annealing must return .*got -1.0 at step 3"):
        short_fit(annealing=lambda t: -1.0 if t == 3 else 1.0)


class TestCopies:
    def test_failed_refit_keeps_the_old_model(self):
        mixture = short_fit()
        before = mixture.means_.copy()

        def fail(info):
            raise RuntimeError("no")

        mixture.set_params(callbacks=fail, random_state=5)
        with pytest.raises(RuntimeError):
            mixture.fit(clusters(seed=9))
        np.testing.assert_array_equal(mixture.means_, before)


def test_a_callback_without_its_parentheses():
    with pytest.raises(
        ValueError, match=r"got the class EarlyStopping: write EarlyStopping\(...\)"
    ):
        GaussianMixture(2, callbacks=[EarlyStopping]).fit(np.zeros((9, 1)))

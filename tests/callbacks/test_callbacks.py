"""Callbacks on fits of every kind: when they end them, and what they leave."""

import copy
import math
import pickle
import sys

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold
from small_fits import make_flow, table_of, two_groups

import pickmix
from pickmix.callbacks import (
    CheckpointCallback,
    EarlyStopping,
    MLflowCallback,
    TensorBoardCallback,
)
from pickmix.fitting.loop import FitInfo


def info(step, log_likelihood=0.0, validation=math.nan, estimator=None):
    """An evaluation, as the loop makes one."""
    return FitInfo(
        step, step / 2, 0.1 * step, 10 * step, log_likelihood, validation, 0.5, 3, estimator
    )


class Scored:
    """Stands for an estimator with a score."""

    def __init__(self, score):
        self._score = score

    def score(self, rows):
        return self._score


rows = pytest.fixture(two_groups, scope="module")


# Values of evaluations; patience; and whether each ends the fit, with min_delta = 0.1.
STOPS = [
    # -3.85 is 0.15 above -4, the best before, so waiting begins anew there.
    ([-5.0, -4.0, -3.95, -3.85, -3.8, -3.8], 2, [False] * 5 + [True]),
    # Slow but steady gains count together.
    ([0.04 * step for step in range(50)], 3, [False] * 50),
    # Minus infinity is waited for, and not taken for a start.
    ([-math.inf, -3.0, -3.0], 1, [False, False, True]),
]


@pytest.mark.parametrize(("values", "patience", "ends"), STOPS)
def test_it_ends_after_patience_evaluations_without_enough_gain(values, patience, ends):
    stop = EarlyStopping(patience=patience, min_delta=0.1)
    assert [stop(info(step, validation=v)) for step, v in enumerate(values)] == ends
    # Rows are scored by the estimator as it stands.
    stop, scores = EarlyStopping(np.zeros((3, 2)), patience, 0.1), iter(values)
    estimator = lambda: Scored(next(scores))  # noqa: E731
    assert [stop(info(step, estimator=estimator)) for step in range(len(values))] == ends


def test_another_start_has_its_own_best():
    stop = EarlyStopping(patience=2)
    for step in range(1, 3):
        assert not stop(info(step, validation=-1.0))
    # Worse than the first start from beginning to end, but rising.
    assert not any(stop(info(step, validation=-10.0 + step)) for step in range(1, 6))


def test_each_start_of_a_mixture_is_ended(rows):
    steps = []
    stop = EarlyStopping(on=rows[::3], patience=3)
    settings = {"n_init": 2, "algorithm": "em", "tol": 0.0, "random_state": 0}
    mixture = pickmix.GaussianMixture(6, **settings)
    mixture.set_params(callbacks=[stop, lambda i: steps.append(i.step)]).fit(rows[1::3])
    assert mixture.outcome_ == "callback"
    assert steps.count(1) == 2
    assert len(steps) < 2 * mixture.max_iter


@pytest.mark.slow
def test_validation_rows_of_a_flow(rows, tmp_path):
    scores = []
    callbacks = [
        EarlyStopping(patience=1, min_delta=100.0),
        CheckpointCallback(tmp_path / "flow", evaluations=2),
        lambda i: scores.append(i.estimator().score(rows)),
    ]
    flow = make_flow(callbacks=callbacks).fit(rows)
    assert flow.outcome_ == "callback"
    assert flow.n_steps_ == 40
    # The model in the middle of its fit.
    assert pickmix.load(tmp_path / "flow").score(rows) == pytest.approx(scores[1], rel=1e-6)


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (EarlyStopping, {"on": "training"}, "on must be 'validation', or rows to score, got 'tr"),
        (EarlyStopping, {"on": None}, "on must be 'validation', or rows to score, got None"),
        (EarlyStopping, {"patience": 0}, "patience"),
        (EarlyStopping, {"min_delta": -1.0}, "min_delta"),
        (CheckpointCallback, {"keep": "all"}, "keep"),
        (CheckpointCallback, {"evaluations": 0}, "evaluations"),
        (CheckpointCallback, {"seconds": -1.0}, "seconds"),
        (
            CheckpointCallback,
            {"on": "loss"},
            "on must be 'validation' or 'log_likelihood'",
        ),
    ],
)
def test_bad_settings_are_named(make, settings, message):
    place = {"path": "model"} if make is CheckpointCallback else {}
    with pytest.raises(ValueError, match=message):
        make(**place, **settings)


def test_a_fit_without_validation_rows_is_told_what_to_give(rows, tmp_path):
    best = CheckpointCallback(tmp_path / "model", keep="best", on="validation")
    for callback, remedy in ((EarlyStopping(), "on=X_validation"), (best, "on='log_likelihood'")):
        with pytest.raises(ValueError, match=remedy):
            pickmix.GaussianMixture(2, callbacks=callback).fit(rows)


@pytest.mark.parametrize("make", [pickmix.GaussianMixture, pickmix.TableMixture])
def test_the_last_model_is_on_disk(make, rows, tmp_path):
    X = rows if make is pickmix.GaussianMixture else table_of(rows)
    saving = CheckpointCallback(tmp_path / "model.npz")
    mixture = make(2, random_state=0, callbacks=[saving]).fit(X)
    saved = pickmix.load(tmp_path / "model.npz")
    assert type(saved) is make
    np.testing.assert_array_equal(saved.score_samples(X), mixture.score_samples(X))
    # What the fit was shown does not stay behind.
    assert getattr(mixture, "mixture_", mixture).callbacks == [saving]
    pickle.dumps(mixture)


def test_best_keeps_what_is_better_only(monkeypatch, tmp_path):
    saved = []
    monkeypatch.setattr("pickmix.callbacks.save", lambda model, path: saved.append(model._score))
    saving = CheckpointCallback(tmp_path, keep="best")
    for number, value in enumerate([-3.0, -1.0, -2.0, -0.5]):
        saving(info(number, log_likelihood=value, estimator=lambda n=number: Scored(n)))
    # Another start is compared with all before it; validation rows count where they are.
    saving(info(0, log_likelihood=9.0, validation=-0.7, estimator=lambda: Scored("no")))
    saving(info(1, log_likelihood=-9.0, validation=-0.1, estimator=lambda: Scored("yes")))
    assert saved == [0, 1, 3, "yes"]


def test_seconds_between_saves(monkeypatch, tmp_path):
    saved, clock = [], iter([100.0, 100.0, 104.0, 111.0, 111.0])
    monkeypatch.setattr("pickmix.callbacks.save", lambda m, p: saved.append(m))
    monkeypatch.setattr("pickmix.callbacks.time.monotonic", lambda: next(clock))
    saving = CheckpointCallback(tmp_path, seconds=10.0)
    for step in range(3):
        saving(info(step, estimator=lambda: Scored(0.0)))
    assert len(saved) == 2


def test_copies_have_the_settings_and_no_past(tmp_path):
    stop = EarlyStopping(patience=1, on=np.ones((2, 2)))
    stop(info(5, estimator=lambda: Scored(-1.0)))
    for again in (copy.deepcopy(stop), pickle.loads(pickle.dumps(stop))):
        assert again.patience == 1
        np.testing.assert_array_equal(again.on, stop.on)
        # Worse than all that the first one has seen, but the first of its own.
        assert not again(info(9, estimator=lambda: Scored(-7.0)))
    assert stop(info(6, estimator=lambda: Scored(-1.0)))
    for other in (CheckpointCallback(tmp_path), TensorBoardCallback("b")):
        assert repr(copy.deepcopy(other)) == repr(other)
        assert repr(pickle.loads(pickle.dumps(other))) == repr(other)


def test_clones_and_grids(rows, tmp_path):
    board = TensorBoardCallback(tmp_path / "board")
    mixture = pickmix.GaussianMixture(
        2, random_state=0, callbacks=(EarlyStopping(on=rows[:20]), board)
    )
    mixture.fit(rows)
    again = clone(mixture).fit(rows)
    np.testing.assert_array_equal(again.means_, mixture.means_)
    for callback in (board, again.callbacks[1]):
        callback.close()
    stop = EarlyStopping(on=rows[:20])
    search = GridSearchCV(
        pickmix.GaussianMixture(random_state=0, callbacks=stop),
        {"n_components": [1, 2]},
        cv=KFold(2, shuffle=True, random_state=0),
    )
    assert search.fit(rows).best_params_ == {"n_components": 2}


@pytest.mark.parametrize(
    ("make", "package", "extra"),
    [
        (MLflowCallback, "mlflow", "mlflow"),
        (lambda: TensorBoardCallback("runs"), "tensorboardX", "tensorboard"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(monkeypatch, make, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"needs {package}: pip install 'pickmix\[{extra}\]'"):
        make()

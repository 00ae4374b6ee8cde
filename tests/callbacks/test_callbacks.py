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


class TestEarlyStopping:
    def test_ends_after_patience_evaluations_without_enough_gain(self):
        stop = EarlyStopping(patience=2, min_delta=0.1)
        values = [-5.0, -4.0, -3.95, -3.85, -3.8, -3.8]
        ends = [stop(info(step, validation=value)) for step, value in enumerate(values)]
        # -3.85 is 0.15 above -4, the best before, so waiting begins anew there.
        assert ends == [False, False, False, False, False, True]

    def test_slow_but_steady_gains_count_together(self):
        stop = EarlyStopping(patience=3, min_delta=0.1)
        assert not any(stop(info(step, validation=0.04 * step)) for step in range(50))

    def test_another_start_has_its_own_best(self):
        stop = EarlyStopping(patience=2)
        for step in range(1, 3):
            assert not stop(info(step, validation=-1.0))
        # Worse than the first start from beginning to end, but rising.
        assert not any(stop(info(step, validation=-10.0 + step)) for step in range(1, 6))

    def test_rows_are_scored_by_the_estimator_as_it_stands(self):
        stop = EarlyStopping(on=np.zeros((3, 2)), patience=1)
        scores = iter([-2.0, -1.0, -1.0])
        ends = [stop(info(step, estimator=lambda: Scored(next(scores)))) for step in range(3)]
        assert ends == [False, False, True]

    def test_minus_infinity_is_waited_for_and_not_taken_for_a_start(self):
        stop = EarlyStopping(patience=1)
        assert not stop(info(1, validation=-math.inf))
        assert not stop(info(2, validation=-3.0))
        assert stop(info(3, validation=-3.0))

    def test_each_start_of_a_mixture_is_ended(self, rows):
        steps = []
        mixture = pickmix.GaussianMixture(
            6,
            n_init=2,
            algorithm="em",
            tol=0.0,
            random_state=0,
            callbacks=[EarlyStopping(on=rows[::3], patience=3), lambda i: steps.append(i.step)],
        ).fit(rows[1::3])
        assert mixture.outcome_ == "callback"
        firsts = [k for k, step in enumerate(steps) if step == 1]
        assert len(firsts) == 2
        assert len(steps) < 2 * mixture.max_iter

    def test_validation_rows_of_a_flow(self, rows):
        flow = make_flow(callbacks=EarlyStopping(patience=1, min_delta=100.0)).fit(rows)
        assert flow.outcome_ == "callback"
        assert flow.n_steps_ == 40

    def test_a_fit_without_validation_rows_is_told_what_to_give(self, rows):
        with pytest.raises(ValueError, match=r"on=X_validation"):
            pickmix.GaussianMixture(2, callbacks=EarlyStopping()).fit(rows)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"on": "training"}, "on must be 'validation', or rows to score, got 'training'"),
            ({"on": None}, "on must be 'validation', or rows to score, got None"),
            ({"patience": 0}, "patience"),
            ({"min_delta": -1.0}, "min_delta"),
        ],
    )
    def test_bad_settings_are_named(self, settings, message):
        with pytest.raises(ValueError, match=message):
            EarlyStopping(**settings)


class TestCheckpoint:
    def test_the_last_model_of_a_mixture(self, rows, tmp_path):
        saving = CheckpointCallback(tmp_path / "model")
        mixture = pickmix.GaussianMixture(3, random_state=0, callbacks=saving).fit(rows)
        saved = pickmix.load(tmp_path / "model")
        np.testing.assert_array_equal(saved.score_samples(rows), mixture.score_samples(rows))
        assert saved.predict(rows).shape == saved.sample(200)[1].shape

    def test_a_table_is_saved_as_a_mixture_of_tables(self, rows, tmp_path):
        table = table_of(rows)
        saving = CheckpointCallback(tmp_path / "model.npz")
        mixture = pickmix.TableMixture(2, random_state=0, callbacks=[saving]).fit(table)
        saved = pickmix.load(tmp_path / "model.npz")
        assert isinstance(saved, pickmix.TableMixture)
        np.testing.assert_array_equal(saved.score_samples(table), mixture.score_samples(table))
        # What the fit was shown does not stay behind.
        assert mixture.mixture_.callbacks == [saving]
        pickle.dumps(mixture)

    def test_a_flow_in_the_middle_of_its_fit(self, rows, tmp_path):
        scores = []
        saving = CheckpointCallback(tmp_path / "flow", evaluations=2)
        make_flow(callbacks=[saving, lambda i: scores.append(i.estimator().score(rows))]).fit(rows)
        assert len(scores) == 3
        assert pickmix.load(tmp_path / "flow").score(rows) == pytest.approx(scores[1], rel=1e-6)

    def test_best_keeps_what_is_better_only(self, monkeypatch, tmp_path):
        saved = []
        monkeypatch.setattr(
            "pickmix.callbacks.save", lambda model, path: saved.append(model.number)
        )

        class Numbered:
            def __init__(self, number):
                self.number = number

        saving = CheckpointCallback(tmp_path, keep="best")
        for number, value in enumerate([-3.0, -1.0, -2.0, -0.5]):
            saving(info(number, log_likelihood=value, estimator=lambda n=number: Numbered(n)))
        # Another start is compared with all before it; validation rows count where they are.
        saving(info(0, log_likelihood=9.0, validation=-0.7, estimator=lambda: Numbered("no")))
        saving(info(1, log_likelihood=-9.0, validation=-0.1, estimator=lambda: Numbered("yes")))
        assert saved == [0, 1, 3, "yes"]

    def test_seconds_between_saves(self, monkeypatch, tmp_path):
        saved, clock = [], iter([100.0, 100.0, 104.0, 111.0, 111.0])
        monkeypatch.setattr("pickmix.callbacks.save", lambda m, p: saved.append(m))
        monkeypatch.setattr("pickmix.callbacks.time.monotonic", lambda: next(clock))
        saving = CheckpointCallback(tmp_path, seconds=10.0)
        for step in range(3):
            saving(info(step, estimator=lambda: Scored(0.0)))
        assert len(saved) == 2

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"keep": "all"}, "keep"),
            ({"evaluations": 0}, "evaluations"),
            ({"seconds": -1.0}, "seconds"),
            ({"on": "loss"}, "on must be 'validation' or 'log_likelihood', or rows to score"),
        ],
    )
    def test_bad_settings_are_named(self, settings, message):
        with pytest.raises(ValueError, match=message):
            CheckpointCallback("model", **settings)

    def test_best_on_validation_rows_that_are_not_there(self, rows, tmp_path):
        saving = CheckpointCallback(tmp_path / "model", keep="best", on="validation")
        with pytest.raises(ValueError, match="on='log_likelihood'"):
            pickmix.GaussianMixture(2, callbacks=saving).fit(rows)


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

"""The loop, on an engine that does nothing but count: no model is needed to test it."""

import math
import os
import signal
import time

import numpy as np
import pytest

from pickmix.fitting import loop
from pickmix.fitting.progress import Progress
from pickmix.fitting.stopping import Limits, Outcome, Plateau
from pickmix.fitting.trace import TRACE_DTYPE
from pickmix.selection.counters import Counters


@pytest.fixture(autouse=True)
def pythons_own_handler():
    # Workers of pytest-xdist ignore SIGINT, and then nobody may hold it back.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class CountingEngine:
    """Each step visits 10 rows and 30 components and accepts a quarter of its draws."""

    def __init__(self, values=None, step_seconds=0.0, evaluation_seconds=0.0):
        self.counters = Counters()
        self.steps = []
        self.values = values if values is not None else (lambda step: float(step))
        self.step_seconds = step_seconds
        self.evaluation_seconds = evaluation_seconds

    def step(self, t):
        time.sleep(self.step_seconds)
        self.steps.append(t)
        self.counters.rows += 10
        self.counters.evaluations += 30
        self.counters.acceptance_sum += 2.5

    refusal = "singular_covariance"

    def advance(self, first, most):
        self.step(first)
        return 1

    def validation(self):
        return None

    def may_end(self, step):
        return True

    def log_likelihood(self):
        time.sleep(self.evaluation_seconds)
        return self.values(self.steps[-1])

    def live_components(self):
        return 7


def run(engine, n_steps=10, every=3, max_time=None, reason=Outcome.MAX_STEPS, **options):
    options = {"plateau": None, "progress": Progress(n_steps, 0), "steps_per_pass": 5} | options
    limits = Limits(n_steps, reason, max_time)
    return loop.run(engine, limits=limits, evaluate_every=every, **options)


def test_every_step_once_in_order_and_a_record_every_third():
    engine = CountingEngine()
    result = run(engine)
    assert engine.steps == list(range(1, 11))
    assert result.outcome == Outcome.MAX_STEPS
    assert result.n_steps == 10
    table = result.trace.table()
    assert table.dtype == TRACE_DTYPE
    assert len(result.trace) == len(table) == 4
    np.testing.assert_array_equal(table["step"], [3, 6, 9, 10])
    np.testing.assert_allclose(table["epoch"], [0.6, 1.2, 1.8, 2.0])
    np.testing.assert_array_equal(table["evaluations"], [90, 180, 270, 300])
    np.testing.assert_array_equal(table["log_likelihood"], [3.0, 6.0, 9.0, 10.0])
    np.testing.assert_array_equal(table["live_components"], 7)


@pytest.mark.parametrize(
    ("every", "expected"),
    [([1, 4, 9], [1, 4, 9, 10]), ([2, 10], [2, 10]), ([40], [10]), (np.int64(5), [5, 10])],
)
def test_records_after_chosen_steps_and_at_the_end(every, expected):
    table = run(CountingEngine(), every=every).trace.table()
    np.testing.assert_array_equal(table["step"], expected)


def test_acceptance_is_that_since_the_last_record():
    engine = CountingEngine()
    step = engine.step

    def accept_more_and_more(t):
        step(t)
        engine.counters.acceptance_sum += t - 2.5

    engine.step = accept_more_and_more
    # Steps 1..3, 4..6, 7..9 and 10 of 10 rows each.
    expected = [6 / 30, 15 / 30, 24 / 30, 10 / 10]
    np.testing.assert_allclose(run(engine).trace.table()["acceptance"], expected)


def test_reason_of_the_limit_is_the_outcome():
    assert run(CountingEngine(), reason=Outcome.MAX_ITER).outcome == Outcome.MAX_ITER


def test_goes_on_from_a_given_step():
    engine = CountingEngine()
    result = run(engine, n_steps=4, first_step=21, passes_before=4.0)
    assert engine.steps == [21, 22, 23, 24]
    assert result.n_steps == 24
    np.testing.assert_array_equal(result.trace.table()["step"], [23, 24])
    np.testing.assert_allclose(result.trace.table()["epoch"], [4.6, 4.8])


def test_plateau():
    # Rises by one per step up to step 6, then stays.
    engine = CountingEngine(values=lambda step: float(min(step, 6)))
    result = run(engine, n_steps=100, every=1, plateau=Plateau(0.5, patience=3))
    assert result.outcome == Outcome.CONVERGED
    assert result.n_steps == 9


def test_callbacks_see_every_record_and_any_may_stop():
    seen, also_seen = [], []
    result = run(
        CountingEngine(),
        n_steps=100,
        every=2,
        callbacks=[
            lambda info: seen.append(info.step) or info.step >= 6,
            lambda info: also_seen.append((info.step, info.log_likelihood)),
        ],
    )
    assert result.outcome == Outcome.CALLBACK
    assert result.n_steps == 6
    assert seen == [2, 4, 6]
    assert also_seen == [(2, 2.0), (4, 4.0), (6, 6.0)]


def test_callback_gets_the_snapshot():
    snapshots = []
    run(
        CountingEngine(),
        callbacks=[lambda info: snapshots.append(info.estimator())],
        snapshot=lambda: "as it stands",
    )
    assert snapshots == ["as it stands"] * 4


def test_callback_errors_propagate():
    def fail(info):
        raise RuntimeError("in the callback")

    with pytest.raises(RuntimeError, match="in the callback"):
        run(CountingEngine(), callbacks=[fail])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite(value):
    engine = CountingEngine(values=lambda step: value if step > 5 else 0.0)
    result = run(engine, every=1)
    assert result.outcome == Outcome.NON_FINITE
    assert result.n_steps == 6


def test_refused_updates():
    engine = CountingEngine()
    step = engine.step

    def refuse_fifth(t):
        step(t)
        engine.counters.refused += t == 5

    engine.step = refuse_fifth
    result = run(engine, every=2)
    assert result.outcome == Outcome.SINGULAR
    assert result.n_steps == 6


class TestClock:
    """Sleeps are at least as long as asked, so lower bounds are sharp; upper ones are generous."""

    def test_work_is_steps_only(self):
        engine = CountingEngine(step_seconds=0.002, evaluation_seconds=0.1)
        result = run(engine, callbacks=[lambda info: time.sleep(0.1)])
        seconds = result.trace.table()["seconds"]
        assert (np.diff(seconds) > 0.0).all()
        assert seconds[-1] == result.seconds
        # 10 steps of 2 ms; the 0.8 s in evaluations and callbacks do not count.
        assert 0.02 <= result.seconds < 0.4

    def test_max_time_counts_work(self):
        engine = CountingEngine(step_seconds=0.005, evaluation_seconds=0.12)
        result = run(engine, n_steps=10_000, every=4, max_time=0.1)
        assert result.outcome == Outcome.MAX_TIME
        assert result.seconds >= 0.1
        # It ends with the step during which the time runs out: 20 at most, as each takes at least
        # 5 ms. Had the first evaluation used any of the time, there would be four.
        assert 4 < result.n_steps <= 20
        assert result.trace.table()["step"][-1] == result.n_steps


class TestInterrupt:
    @staticmethod
    def interrupt(condition):
        return lambda info: os.kill(os.getpid(), signal.SIGINT) if condition(info) else None

    def test_during_a_step(self):
        engine = CountingEngine()
        step = engine.step

        def interrupted_in_fifth(t):
            if t == 5:
                os.kill(os.getpid(), signal.SIGINT)
            step(t)

        engine.step = interrupted_in_fifth
        result = run(engine)
        assert result.outcome == Outcome.INTERRUPTED
        # The step was finished, counted and recorded.
        assert engine.steps == [1, 2, 3, 4, 5]
        assert result.n_steps == 5
        np.testing.assert_array_equal(result.trace.table()["step"], [3, 5])
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_during_a_callback(self):
        result = run(CountingEngine(), callbacks=[self.interrupt(lambda info: info.step == 3)])
        assert result.outcome == Outcome.INTERRUPTED
        assert result.n_steps <= 4

    def test_during_the_last_callback_is_not_lost(self):
        result = run(CountingEngine(), callbacks=[self.interrupt(lambda info: info.step == 10)])
        assert result.outcome == Outcome.INTERRUPTED
        assert result.n_steps == 10

    def test_twice_does_not_wait(self):
        def twice(info):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("the second is not held back")

        result = run(CountingEngine(), callbacks=[twice])
        assert result.outcome == Outcome.INTERRUPTED
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_raised_by_a_callback(self):
        def give_up(info):
            raise KeyboardInterrupt

        result = run(CountingEngine(), callbacks=[give_up])
        assert result.outcome == Outcome.INTERRUPTED
        assert result.n_steps == 3
        assert len(result.trace) == 1


class TestProgress:
    def test_silent(self, capfd):
        run(CountingEngine(), progress=Progress(10, 0))
        assert capfd.readouterr() == ("", "")

    def test_bar(self, capfd):
        run(CountingEngine(), progress=Progress(10, 1))
        shown = capfd.readouterr()
        assert shown.out == ""
        assert "10/10" in shown.err
        assert "log-likelihood=10.0000" in shown.err
        assert "acceptance=0.250" in shown.err
        assert "rows/s" in shown.err

    def test_lines(self, capfd):
        run(CountingEngine(), progress=Progress(10, 2))
        lines = capfd.readouterr().out.splitlines()
        assert len(lines) == 4
        assert lines[0].startswith("step 3  pass 0.6  log-likelihood 3.0000  acceptance 0.250")

    def test_no_acceptance_where_nothing_can_be_refused(self, capfd):
        class Accepting(CountingEngine):
            def step(self, t):
                super().step(t)
                self.counters.acceptance_sum = self.counters.rows

        run(Accepting(), progress=Progress(10, 2))
        shown = capfd.readouterr().out
        assert "log-likelihood" in shown
        assert "acceptance" not in shown

    def test_no_acceptance_without_draws(self, capfd):
        engine = CountingEngine()
        engine.counters.acceptance_sum = math.nan
        run(engine, progress=Progress(10, 2))
        assert "acceptance" not in capfd.readouterr().out


class Kept:
    """A keeper that wants nothing but what the loop gives it."""

    def __init__(self):
        self.steps = []

    def due(self):
        return False

    def keep(self, moment):
        self.steps.append((moment.step, moment.evaluated, moment.outcome))


def test_an_evaluation_that_is_interrupted_leaves_something_to_go_on_from():
    def interrupt(info):
        if info.step == 20:
            os.kill(os.getpid(), signal.SIGINT)

    kept = Kept()
    engine = CountingEngine()
    result = loop.run(
        engine,
        limits=Limits(100, Outcome.MAX_STEPS),
        steps_per_pass=10,
        evaluate_every=10,
        plateau=None,
        progress=Progress(100, 0),
        callbacks=[interrupt],
        keeper=kept,
    )
    # One more step, and then a moment from which nothing is repeated or left out.
    assert result.outcome == Outcome.INTERRUPTED
    assert kept.steps == [(21, 20, None)]

"""Plateaus, and Ctrl-C held back until a step is done."""

import os
import signal
import threading

import numpy as np
import pytest

from pickmix.fitting.stopping import InterruptGuard, Limits, Outcome, Plateau


class TestPlateau:
    def test_first_value_is_never_a_plateau(self):
        assert not Plateau(tol=1e9).reached(-1e12)

    def test_stops_at_the_first_small_rise_without_patience(self):
        plateau = Plateau(tol=0.1)
        rises = [0.0, 1.0, 1.2, 1.25]
        assert [plateau.reached(value) for value in rises] == [False, False, False, True]

    def test_a_fall_is_no_rise(self):
        plateau = Plateau(tol=0.1)
        assert [plateau.reached(value) for value in (0.0, -5.0)] == [False, True]

    def test_patience_counts_evaluations_in_a_row(self):
        plateau = Plateau(tol=0.1, patience=3)
        # Two waits, a rise that starts the count again, then three waits.
        values = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
        assert [plateau.reached(value) for value in values] == [False] * 6 + [True]

    def test_smoothing_sees_through_noise(self):
        # A steady rise of 1 under alternating noise of 3: every other raw value falls, so the raw
        # sequence waits at once, while the smoothed one rises on.
        values = np.arange(40.0) + 1.5 * (-1.0) ** np.arange(40)
        raw, smoothed = Plateau(tol=0.1), Plateau(tol=0.1, smoothing=0.5, patience=3)
        assert any(raw.reached(value) for value in values)
        assert not any(smoothed.reached(value) for value in values)

    def test_smoothing_is_exponential(self):
        plateau = Plateau(tol=0.1, smoothing=0.75, patience=99)
        expected = None
        for value in (3.0, -1.0, 10.0, 4.0):
            plateau.reached(value)
            expected = value if expected is None else 0.75 * expected + 0.25 * value
            assert plateau.smoothed == pytest.approx(expected)

    def test_noise_about_a_constant_ends(self):
        plateau = Plateau(tol=0.01, smoothing=0.5, patience=3)
        values = 5.0 + 0.001 * np.random.default_rng(0).normal(size=20)
        assert any(plateau.reached(value) for value in values)


def test_outcomes_are_their_names():
    assert Outcome.CONVERGED == "converged"
    assert str(Outcome.SINGULAR) == "singular_covariance"
    assert {str(outcome) for outcome in Outcome} == {
        "converged",
        "max_iter",
        "max_steps",
        "max_time",
        "callback",
        "interrupted",
        "singular_covariance",
        "non_finite",
    }


def test_limits_are_frozen():
    limits = Limits(10, Outcome.MAX_STEPS)
    assert limits.max_time is None
    with pytest.raises(AttributeError):
        limits.last_step = 11  # type: ignore[misc]


class TestInterruptGuard:
    @pytest.fixture(autouse=True)
    def pythons_own_handler(self):
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
        signal.signal(signal.SIGINT, before)

    def test_holds_back_the_first_only(self):
        with InterruptGuard() as guard:
            assert not guard.interrupted
            os.kill(os.getpid(), signal.SIGINT)
            assert guard.interrupted
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_restores_the_handler_after_an_exception(self):
        def fail():
            with InterruptGuard():
                assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
                raise RuntimeError("inside")

        with pytest.raises(RuntimeError, match="inside"):
            fail()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    @pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda number, frame: None])
    def test_leaves_other_peoples_handlers_alone(self, handler):
        signal.signal(signal.SIGINT, handler)
        with InterruptGuard() as guard:
            assert signal.getsignal(signal.SIGINT) is handler
            os.kill(os.getpid(), signal.SIGINT)
            assert not guard.interrupted

    def test_outside_the_main_thread_nothing_changes(self):
        seen = []

        def work():
            with InterruptGuard() as guard:
                seen.append(guard.interrupted)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert seen == [False]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

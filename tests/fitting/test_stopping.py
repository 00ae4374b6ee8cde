"""Plateaus, and Ctrl-C held back until a step is done."""

import os
import signal
import threading

import numpy as np
import pytest

from pickmix.fitting.stopping import InterruptGuard, Outcome, Plateau


class TestPlateau:
    @pytest.mark.parametrize(
        ("patience", "values", "n_before"),
        [
            (1, [-1e12], 1),
            (1, [0.0, 1.0, 1.2, 1.25], 3),
            # A fall is no rise.
            (1, [0.0, -5.0], 1),
            # Two waits, a rise that starts the count again, then three waits.
            (3, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0], 6),
        ],
    )
    def test_it_is_reached_after_so_many_small_rises_in_a_row(self, patience, values, n_before):
        plateau = Plateau(tol=0.1, patience=patience)
        reached = [plateau.reached(value) for value in values]
        assert reached == [False] * n_before + [True] * (len(values) - n_before)

    def test_smoothing_sees_through_noise(self):
        # A steady rise of 1 under alternating noise of 3: every other raw value falls, so the raw
        # sequence waits at once, while the smoothed one rises on.
        values = np.arange(40.0) + 1.5 * (-1.0) ** np.arange(40)
        raw, smoothed = Plateau(tol=0.1), Plateau(tol=0.1, smoothing=0.5, patience=3)
        assert any(raw.reached(value) for value in values)
        assert not any(smoothed.reached(value) for value in values)

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


class TestInterruptGuard:
    @pytest.fixture(autouse=True)
    def default_handler(self):
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

    @pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda number, frame: None])
    def test_leaves_other_handlers_alone(self, handler):
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

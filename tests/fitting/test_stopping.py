"""Plateaus, and Ctrl-C held back until a step is done."""

import os
import signal
import threading

import numpy as np
import pytest

from pickmix.fitting.loop import InterruptGuard, Outcome, Plateau

# A steady rise of 1 under alternating noise of 3: every other raw value falls, so the raw sequence
# waits at once, while the smoothed one rises on.
NOISY = (np.arange(40.0) + 1.5 * (-1.0) ** np.arange(40)).tolist()
FLAT = (5.0 + 0.001 * np.random.default_rng(0).normal(size=20)).tolist()


@pytest.mark.parametrize(
    ("settings", "values", "n_before"),
    [
        ({}, [-1e12], 1),
        ({}, [0.0, 1.0, 1.2, 1.25], 3),
        # A fall is no rise.
        ({}, [0.0, -5.0], 1),
        # Two waits, a rise that starts the count again, then three waits.
        ({"patience": 3}, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0], 6),
        ({}, NOISY[:2], 1),
        ({"smoothing": 0.5, "patience": 3}, NOISY, 40),
        ({"smoothing": 0.5, "patience": 3}, FLAT, 3),
    ],
)
def test_a_plateau_is_reached_after_so_many_small_rises_in_a_row(settings, values, n_before):
    plateau = Plateau(tol=0.1, **settings)
    reached = [plateau.reached(value) for value in values]
    assert reached == [False] * n_before + [True] * (len(values) - n_before)


def test_outcomes_are_their_names():
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

"""How fits end, what they record on the way and what they show."""

import os
import signal
import time

import numpy as np
import pytest
from short_fits import ALGORITHMS, clusters, every_algorithm, short_fit
from sklearn.exceptions import ConvergenceWarning

from pickmix.fitting.loop import TRACE_DTYPE


class TestEnding:
    @every_algorithm
    def test_max_steps_is_exact(self, settings):
        mixture = short_fit(max_steps=7, **settings)
        assert mixture.n_steps_ == 7
        assert mixture.outcome_ == "max_steps"
        assert not mixture.converged_
        assert mixture.trace_["step"][-1] == 7
        per_pass = 1 if settings["algorithm"] == "em" else 6
        assert mixture.n_iter_ == -(-7 // per_pass)

    @every_algorithm
    def test_max_iter_counts_passes_and_warns(self, settings):
        with pytest.warns(ConvergenceWarning, match="tol=1e-09 .* max_iter=3 passes"):
            mixture = short_fit(max_steps=None, max_iter=3, tol=1e-9, **settings)
        assert mixture.outcome_ == "max_iter"
        assert mixture.n_iter_ == 3
        assert mixture.n_steps_ == (3 if settings["algorithm"] == "em" else 18)

    @every_algorithm
    def test_converges(self, settings):
        mixture = short_fit(max_steps=None, tol=0.01, **settings)
        assert mixture.outcome_ == "converged"
        assert mixture.converged_ is True
        assert mixture.n_iter_ < 100
        assert mixture.lower_bound_ == mixture.trace_["log_likelihood"][-1]

    @every_algorithm
    def test_callback_stops(self, settings):
        seen = []

        def stop_at_third(info):
            seen.append(info)
            return len(seen) == 3

        mixture = short_fit(max_steps=10**6, callbacks=stop_at_third, **settings)
        assert mixture.outcome_ == "callback"
        assert len(seen) == len(mixture.trace_) == 3
        assert (np.diff([info.step for info in seen]) > 0).all()
        assert (np.diff([info.seconds for info in seen]) > 0.0).all()
        assert seen[-1].step == mixture.n_steps_
        np.testing.assert_array_equal(
            [info.log_likelihood for info in seen], mixture.trace_["log_likelihood"]
        )

    def test_callback_sees_the_model_as_it_stands(self):
        X = clusters()
        models = []
        mixture = short_fit(
            algorithm="em", max_steps=6, callbacks=[lambda info: models.append(info.estimator())]
        )
        scores = [model.score(X) for model in models]
        # The model after iteration t is the one whose likelihood iteration t + 1 reports.
        np.testing.assert_allclose(scores[:-1], mixture.trace_["log_likelihood"][1:], rtol=1e-12)
        np.testing.assert_array_equal(models[-1].means_, mixture.means_)

    def test_callback_time_is_not_work(self):
        # 1.2 s of sleep, and 12 steps of well below a millisecond each.
        mixture = short_fit(max_steps=12, max_time=1.0, callbacks=lambda info: time.sleep(0.1))
        assert mixture.outcome_ == "max_steps"


class TestInterrupted:
    @pytest.fixture(autouse=True)
    def default_handler(self):
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
        signal.signal(signal.SIGINT, before)

    @staticmethod
    def assert_usable_and_interrupted(mixture):
        X = clusters()
        assert mixture.outcome_ == "interrupted"
        assert not mixture.converged_
        assert np.isfinite(mixture.score_samples(X)).all()
        assert mixture.weights_.sum() == pytest.approx(1.0)
        assert 0 < mixture.n_steps_ < 10**6
        assert mixture.score(X) > clusters_score_of_one_gaussian() - 1.0
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        mixture.set_params(callbacks=(), max_steps=3).fit(X)
        assert mixture.outcome_ == "max_steps"

    @pytest.mark.parametrize("by_signal", [False, True])
    @pytest.mark.parametrize("settings", ALGORITHMS[::4], ids=lambda s: "-".join(s.values()))
    def test_in_a_callback(self, settings, by_signal):
        def interrupt(info):
            if info.step > 20 and by_signal:
                os.kill(os.getpid(), signal.SIGINT)
            elif info.step > 20:
                raise KeyboardInterrupt

        with pytest.warns(UserWarning, match=r"interrupted after \d+ steps; the model is usable"):
            mixture = short_fit(max_steps=10**6, callbacks=interrupt, **settings)
        self.assert_usable_and_interrupted(mixture)

    def test_interrupt_in_a_later_start(self):
        # Ctrl-C during the third of many starts ends the fit, keeps the best so far and says so.
        starts = []

        def interrupt(info):
            if info.step == 1:
                starts.append(info)
            if len(starts) == 3:
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.warns(UserWarning, match="interrupted"):
            mixture = short_fit(algorithm="em", max_steps=5, n_init=50, callbacks=interrupt)
        assert len(starts) == 3
        assert mixture.outcome_ == "interrupted"
        two = short_fit(algorithm="em", max_steps=5, n_init=2)
        assert mixture.lower_bound_ >= two.lower_bound_


def clusters_score_of_one_gaussian():
    X = clusters()
    deviation = X - X.mean(axis=0)
    covariance = deviation.T @ deviation / len(X)
    return -0.5 * (np.linalg.slogdet(2 * np.pi * covariance)[1] + X.shape[1])


class TestTrace:
    @pytest.mark.parametrize("settings", ALGORITHMS[::4], ids=lambda s: "-".join(s.values()))
    @pytest.mark.parametrize(
        ("every", "steps"),
        [([1, 5, 30], [1, 5, 30]), ([2, 9], [2, 9, 30]), (np.int64(12), [12, 24, 30])],
    )
    def test_records_after_chosen_steps(self, settings, every, steps):
        mixture = short_fit(max_steps=30, evaluate_every=every, **settings)
        assert mixture.trace_["step"].tolist() == steps

    @every_algorithm
    def test_columns(self, settings):
        mixture = short_fit(max_steps=30, **settings)
        trace = mixture.trace_
        assert trace.dtype == TRACE_DTYPE
        assert trace.dtype.names == (
            "step",
            "epoch",
            "seconds",
            "evaluations",
            "log_likelihood",
            "validation",
            "acceptance",
            "live_components",
        )
        for name in ("step", "epoch", "seconds", "evaluations"):
            assert (np.diff(trace[name]) > 0).all(), name
        per_pass = 1 if settings["algorithm"] == "em" else 6
        np.testing.assert_allclose(trace["epoch"], trace["step"] / per_pass)
        assert np.isfinite(trace["log_likelihood"]).all()
        assert np.isnan(trace["validation"]).all()
        assert (trace["live_components"] == 3).all()
        assert mixture.n_component_evaluations_ == trace["evaluations"][-1]
        draws = settings["algorithm"] in ("mcsaem", "mhsaem")
        if draws:
            assert ((trace["acceptance"] > 0.0) & (trace["acceptance"] <= 1.0)).all()
        else:
            assert np.isnan(trace["acceptance"]).all()

    @pytest.mark.parametrize(
        ("settings", "per_visit"),
        [
            ({"algorithm": "em"}, 40),
            ({"algorithm": "saem"}, 40),
            ({"algorithm": "ssaem"}, 40),
            ({"algorithm": "mcsaem"}, 40),
            ({"algorithm": "mhsaem", "proposal": "uniform", "n_samples": 4}, 5),
            ({"algorithm": "mhsaem", "proposal": "table-forgetting", "n_samples": 1}, 2),
        ],
        ids=str,
    )
    def test_component_evaluations(self, settings, per_visit):
        # 300 rows, 6 batches of 50; EM takes all rows in each step.
        mixture = short_fit(n_components=40, max_steps=6, **settings)
        visits = 6 * 300 if settings["algorithm"] == "em" else 300
        assert mixture.n_component_evaluations_ == visits * per_visit


class TestVerbose:
    def test_silent_by_default(self, capfd):
        short_fit()
        assert capfd.readouterr() == ("", "")

    def test_lines(self, capfd):
        mixture = short_fit(algorithm="em", verbose=2)
        lines = capfd.readouterr().out.splitlines()
        assert len(lines) == len(mixture.trace_) == 20
        assert lines[-1].startswith("step 20 ")
        assert f"log-likelihood {mixture.lower_bound_:.4f}" in lines[-1]

"""How fits of deep mixtures end, what they record and keep, and how they go on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from deep_cases import SETTINGS, flow, network, rows
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from pickmix import Mixture
from pickmix.fitting.loop import TRACE_DTYPE


class TestEnding:
    @pytest.mark.parametrize("max_steps", [1, 41])
    def test_max_steps_is_exact(self, max_steps):
        fitted = flow(max_steps=max_steps).fit(rows())
        assert fitted.n_steps_ == fitted.trace_["step"][-1] == max_steps
        assert fitted.outcome_ == "max_steps"
        assert fitted.converged_ is False
        # 180 rows are learnt from, in four batches.
        assert fitted.n_iter_ == -(-max_steps // 4)

    def test_converges_when_validation_stops_rising(self):
        fitted = flow(max_steps=1000, evaluate_every=4, tol=10.0, patience=3).fit(rows())
        assert fitted.outcome_ == "converged"
        assert fitted.converged_ is True
        # None of them is above the start by as much as that.
        assert fitted.n_steps_ == 12

    def test_converges_on_training_rows_without_validation(self):
        settings = {"validation_fraction": None, "tol": 10.0, "patience": 2}
        fitted = flow(max_steps=1000, evaluate_every=4, **settings).fit(rows(180))
        assert fitted.outcome_ == "converged"
        assert fitted.n_steps_ == 12

    def test_callback_stops(self):
        seen = []

        def stop_at_third(info):
            seen.append(info)
            return len(seen) == 3

        fitted = flow(max_steps=10**6, callbacks=stop_at_third).fit(rows())
        assert fitted.outcome_ == "callback"
        assert [info.step for info in seen] == [20, 40, 60]
        assert fitted.n_steps_ == 60
        np.testing.assert_array_equal(
            [info.validation for info in seen], fitted.trace_["validation"]
        )

    def test_callback_sees_the_model_as_it_stands(self):
        X = rows()
        models = []
        fitted = flow(callbacks=[lambda info: models.append(info.estimator())])
        fitted.fit(X[:180], validation_data=X[180:])
        scores = [model.score(X[180:]) for model in models]
        np.testing.assert_allclose(scores, fitted.trace_["validation"], atol=1e-5)

    def test_callback_errors_leave_the_former_model(self):
        def fail(info):
            raise LookupError("my own")

        fitted = flow(callbacks=fail)
        with pytest.raises(LookupError, match="my own"):
            fitted.fit(rows())
        with pytest.raises(NotFittedError):
            fitted.score(rows())
        fitted.set_params(callbacks=()).fit(rows())
        score = fitted.score(rows())
        with pytest.raises(LookupError, match="my own"):
            fitted.set_params(callbacks=fail).fit(rows() + 1.0)
        assert fitted.score(rows()) == score


class TestTrace:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("make", "settings", "per_visit"),
        [
            (flow, {}, 2),
            (flow, {"reuse_log_joint": True, "n_samples": 3}, 3),
            (flow, {"algorithm": "mcsaem"}, 4),
            (flow, {"algorithm": "em"}, 4),
            (network, {}, 2),
            # All that a network evaluates is s^l of its nodes, not s^(number of slots).
            (network, {"algorithm": "em"}, 9),
        ],
        ids=["uniform", "reuse", "exact", "em", "network", "network-em"],
    )
    def test_columns(self, make, settings, per_visit):
        fitted = make(evaluate_every=10, **settings).fit(rows())
        trace = fitted.trace_
        assert trace.dtype == TRACE_DTYPE
        np.testing.assert_array_equal(trace["step"], [10, 20, 30, 40])
        np.testing.assert_allclose(trace["epoch"], trace["step"] / 4)
        assert (np.diff(trace["seconds"]) > 0.0).all()
        # A step visits 45 of the 180 rows; what is reused is evaluated once before the first.
        first = 180 if "reuse_log_joint" in settings else 0
        np.testing.assert_array_equal(trace["evaluations"], first + trace["step"] * 45 * per_visit)
        assert fitted.n_component_evaluations_ == trace["evaluations"][-1]
        assert np.isfinite(trace["log_likelihood"]).all()
        assert np.isfinite(trace["validation"]).all()
        assert fitted.lower_bound_ == trace["log_likelihood"][-1]
        assert (trace["live_components"] == fitted.weights_.size).all()
        algorithm = settings.get("algorithm", "mhsaem")
        if algorithm == "mhsaem":
            assert ((trace["acceptance"] > 0.0) & (trace["acceptance"] < 1.0)).all()
        elif algorithm == "mcsaem":
            assert (trace["acceptance"] == 1.0).all()
        else:
            assert np.isnan(trace["acceptance"]).all()

    def test_a_hundred_records_of_a_whole_fit(self):
        fitted = flow(max_steps=300, evaluate_every="auto", patience=None).fit(rows())
        np.testing.assert_array_equal(fitted.trace_["step"], np.arange(3, 301, 3))


class TestValidation:
    def test_the_best_parameters_are_kept(self):
        # A learning rate that spoils what was learnt: the best is not the last.
        X = rows()
        settings = {"evaluate_every": 4, "patience": None}
        fitted = flow(learning_rate=lambda t: 0.02 if t <= 32 else 0.5, **settings)
        fitted.fit(X[:180], validation_data=X[180:])
        validation = fitted.trace_["validation"]
        assert validation[0] < validation.max() - 0.1
        assert validation[-1] < validation.max() - 0.1
        assert fitted.best_validation_ == validation.max()
        assert fitted.score(X[180:]) == pytest.approx(fitted.best_validation_, abs=1e-5)

    def test_a_share_of_the_rows_is_not_learnt_from(self):
        X = rows()
        fitted = flow(validation_fraction=0.1).fit(X)
        assert fitted._chain.shape[0] == 180
        # Rows that are watched are among all rows: some 20 of them have the score of the best.
        assert fitted.best_validation_ == pytest.approx(fitted.score(X), abs=0.5)
        for fraction in (None, 0.0):
            all_learnt = flow(validation_fraction=fraction).fit(X[:180])
            assert all_learnt._chain.shape[0] == 180
            assert np.isnan(all_learnt.best_validation_)
            assert np.isnan(all_learnt.trace_["validation"]).all()

    def test_given_rows_change_what_is_kept_but_not_what_is_learnt(self):
        X = rows()
        one = flow().fit(X[:180], validation_data=X[180:])
        other = flow().fit(X[:180], validation_data=X[180:] + 1.0)
        np.testing.assert_array_equal(one.trace_["log_likelihood"], other.trace_["log_likelihood"])
        assert (one.trace_["validation"] != other.trace_["validation"]).all()

    def test_given_rows_are_checked(self):
        X = rows()
        with pytest.raises(ValueError, match="X has 1 features, but FlowMixture is expecting 2"):
            flow().fit(X, validation_data=X[:, :1])
        with pytest.raises(ValueError, match="NaN"):
            flow().fit(X, validation_data=np.full((3, 2), np.nan))


class Fragile:
    """A Gaussian whose log-density is lost once its width has moved."""

    def init(self, key, n_features):
        return {"mean": jax.random.normal(key, (n_features,)), "log_width": jnp.zeros(())}

    def log_prob(self, params, x):
        square = jnp.sum((x - params["mean"]) ** 2) * jnp.exp(-2.0 * params["log_width"])
        value = -0.5 * square - x.shape[0] * params["log_width"]
        return jnp.where(jnp.abs(params["log_width"]) < 0.05, value, jnp.nan)


class TestNotFinite:
    @pytest.mark.parametrize(("algorithm", "validation_fraction"), [("mhsaem", 0.1), ("em", None)])
    def test_a_step_too_far(self, algorithm, validation_fraction):
        X = rows() if validation_fraction else rows(180)
        settings = {"algorithm": algorithm, "validation_fraction": validation_fraction}
        with pytest.warns(ConvergenceWarning, match="not finite"):
            fitted = flow(
                max_steps=200, learning_rate=lambda t: 1e30 if t == 30 else 0.01, **settings
            ).fit(X)
        assert fitted.outcome_ == "non_finite"
        assert not fitted.converged_
        assert 30 <= fitted.n_steps_ < 200
        # What remains is the model of step 20, the last that was seen to be good.
        whole = flow(max_steps=20, learning_rate=0.01, **settings).fit(X)
        assert fitted.score(X) == whole.score(X)

    def test_validation_rows_out_of_reach(self):
        X = rows()
        with pytest.warns(ConvergenceWarning, match="not finite"):
            fitted = flow().fit(X[:180], validation_data=1e30 * X[180:])
        assert fitted.outcome_ == "non_finite"

    def test_a_component_that_breaks(self):
        X = rows()
        mixture = Mixture(Fragile(), 4, **SETTINGS | {"max_steps": 200})
        with pytest.warns(ConvergenceWarning, match="not finite"):
            mixture.fit(X)
        assert mixture.outcome_ == "non_finite"
        assert np.isfinite(mixture.score_samples(X)).all()


class TestWarmStart:
    @pytest.mark.parametrize("make", [flow, network], ids=["flow", "network"])
    def test_goes_on(self, make):
        X = rows()
        fitted = make(warm_start=True, learning_rate=0.01).fit(X)
        score, chain = fitted.score(X), fitted._chain
        fitted.fit(X)
        assert fitted.n_steps_ == 80
        np.testing.assert_array_equal(fitted.trace_["step"], [60, 80])
        np.testing.assert_allclose(fitted.trace_["epoch"], [15.0, 20.0])
        assert fitted.score(X) > score - 0.02
        assert fitted._chain.shape == chain.shape
        # This fit's own work only.
        assert fitted.n_component_evaluations_ == 40 * 45 * 2

    def test_other_rows_are_learnt_in_the_old_frame(self):
        X = rows()
        fitted = flow(warm_start=True).fit(X)
        center = fitted.center_.copy()
        fitted.fit(X + 1.0)
        np.testing.assert_array_equal(fitted.center_, center)
        assert fitted.n_steps_ == 80

    @pytest.mark.slow
    def test_other_shapes_begin_anew(self):
        fitted = flow(warm_start=True).fit(rows())
        fitted.set_params(n_components=70, batch_size=None, max_steps=20).fit(rows(60))
        assert fitted.weights_.shape == (70,)
        assert fitted.n_steps_ == 20

    @pytest.mark.parametrize("random_state", [0, None])
    def test_the_watched_rows_stay_the_same(self, random_state):
        # A row that was watched in one fit and learnt in the next would make the second one's
        # validation look better than it is.
        X = rows()
        fitted = flow(warm_start=True, learning_rate=1e-12, random_state=random_state).fit(X)
        first = fitted.best_validation_
        assert fitted.fit(X).best_validation_ == pytest.approx(first, abs=1e-4)

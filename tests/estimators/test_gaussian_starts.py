"""Deep mixtures begin where a Gaussian mixture ends, and never end below that."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn.mixture import GaussianMixture as Exact

from pickmix import FlowMixture, GaussianMixture, Mixture, SumProductTransformNetwork
from pickmix.estimators import deep_gaussians
from pickmix.estimators.deep_gaussians import choose_gaussians, fit_gaussians
from pickmix.gradient.settings import Settings
from pickmix.model.frame import find_frame

# A start and nothing more: one step of no length.
STILL = {"max_steps": 1, "learning_rate": 1e-12, "dtype": "float64", "random_state": 0}


# Of a fit whose steps do not matter.
SETTINGS = Settings(algorithm="em", learning_rate=lambda step: 1e-3, step_size=lambda step: 1.0)


def rows(n_rows=300, seed=0):
    """Three clusters in the plane, one of them bent, in units far from one another."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 2))
    label = rng.integers(3, size=n_rows)
    X[label == 0, 1] += X[label == 0, 0] ** 2
    return (X + 5.0 * label[:, None]) * [0.1, 10.0] + [0.0, 1e4]


class FullGaussian:
    """A user's own component that can be a Gaussian."""

    def init(self, key, n_features):
        return {"mean": jax.random.normal(key, (n_features,)), "factor": jnp.eye(n_features)}

    def log_prob(self, params, x):
        factor = jnp.tril(params["factor"])
        y = factor @ (x - params["mean"])
        log_det = jnp.sum(jnp.log(jnp.abs(jnp.diagonal(factor))))
        return log_det - 0.5 * jnp.sum(y * y + jnp.log(2 * jnp.pi))

    def from_gaussian(self, params, mean, precision_cholesky):
        return {"mean": mean, "factor": precision_cholesky}


OWN = "own component"
MAKE = {
    "flow": lambda **settings: FlowMixture(3, hidden=3, **STILL | settings),
    "network": lambda **settings: SumProductTransformNetwork(3, **STILL | settings),
    OWN: lambda **settings: Mixture(FullGaussian(), 3, **STILL | settings),
}


class TestStart:
    @pytest.mark.parametrize(("name", "heavy"), [*((name, 1.0) for name in MAKE), (OWN, 1e9)])
    def test_density_is_that_of_the_gaussian_mixture(self, name, heavy):
        X = rows()
        weights = np.where(X[:, 0] < 0.3, heavy, 1.0)
        fitted = MAKE[name](validation_fraction=None).fit(X, sample_weight=weights)
        gaussian = GaussianMixture(3, random_state=0).fit(X, sample_weight=weights)
        expected = np.logaddexp.reduce(
            [
                np.log(weight) + stats.multivariate_normal(mean, covariance).logpdf(X)
                for weight, mean, covariance in zip(
                    gaussian.weights_, gaussian.means_, gaussian.covariances_, strict=True
                )
            ]
        )
        np.testing.assert_allclose(fitted.score_samples(X), expected, atol=1e-6)
        if heavy == 1.0:
            assert fitted.score(X) > GaussianMixture(1).fit(X).score(X) + 0.3

    @pytest.mark.parametrize("name", ["flow", "network"])
    def test_a_fit_does_not_end_below_its_start(self, name):
        # So long steps that all of them lead downwards.
        fitted = MAKE[name](max_steps=20, learning_rate=3.0, evaluate_every=5)
        fitted.fit(rows(), validation_data=rows(100, seed=1))
        assert fitted.best_validation_ == fitted.start_validation_
        assert fitted.trace_["validation"].max() < fitted.start_validation_

    @pytest.mark.parametrize(
        ("name", "settings"),
        [
            ("flow", {}),
            ("network", {"standardize": False, "n_layers": 1}),
            ("network", {"n_children": "auto", "n_layers": 1}),
        ],
    )
    def test_a_fit_that_keeps_its_start_has_the_gaussians_of_all_rows(self, name, settings):
        X = rows()
        number = settings.get("n_children", 3)
        weights = np.where(X[:, 0] < 0.3, 2.0, 1.0)
        fitted = MAKE[name](max_steps=20, learning_rate=3.0, evaluate_every=5, warm_start=True)
        fitted.set_params(**settings).fit(X, sample_weight=weights)
        assert fitted.best_validation_ == fitted.start_validation_
        gaussian = GaussianMixture(number, random_state=0).fit(X, sample_weight=weights)
        scores, expected = fitted.score_samples(X), gaussian.score_samples(X)
        if number == 3:
            np.testing.assert_allclose(scores, expected, atol=1e-6)
        else:
            # With a background of a row's weight.
            assert fitted.weights_.shape[0] == gaussian.n_components_ + 1
            assert (scores > expected + np.log(300 / 301) - 1e-6).all()
        again = fitted.set_params(learning_rate=1e-12).fit(X, sample_weight=weights)
        np.testing.assert_allclose(again.score_samples(X), scores, atol=1e-6)


class TestBackground:
    """Rows that no component reaches have the density of a broad one."""

    def constant_column(self):
        X = np.random.default_rng(0).normal(size=(200, 3)) * [1.0, 0.0, 5.0] + 3.0
        new = X[:5].copy()
        new[:, 1] += 0.5
        return X, new

    def test_a_broad_component_of_one_row_is_added(self):
        X, _ = self.constant_column()
        frame = find_frame(X, "none")
        plain = fit_gaussians(X, None, 2, "full", frame, SETTINGS)
        broad = fit_gaussians(X, None, 2, "full", frame, SETTINGS, True)
        extent = np.abs(X - X.mean(axis=0)).max(axis=0)
        extent[1] = np.median(extent[[0, 2]])
        expected = plain.weights @ np.exp(plain.log_joint(X) - np.log(plain.weights)).T * 200 / 201
        expected += stats.multivariate_normal(X.mean(axis=0), (extent / 2) ** 2).pdf(X) / 201
        np.testing.assert_allclose(np.exp(broad.log_joint(X)).sum(axis=1), expected)

    def test_rows_without_extent_have_none(self):
        X = np.ones((30, 2))
        frame = find_frame(X, "columns")
        assert fit_gaussians(X, None, 1, "full", frame, SETTINGS, True).n_components == 1

    @pytest.mark.parametrize(
        "kind",
        [
            pytest.param(FlowMixture, marks=pytest.mark.slow),
            partial(SumProductTransformNetwork, n_layers=1),
        ],
    )
    def test_new_values_in_a_constant_column(self, kind, monkeypatch):
        monkeypatch.setattr(deep_gaussians, "_MOST_CHOSEN", 2)
        X, new = self.constant_column()
        settings = {"max_steps": 30, "evaluate_every": 10, "random_state": 0}
        fitted = kind(**settings).fit(X)
        assert fitted.score(X) > 0.0
        assert fitted.score_samples(new).min() > -30.0
        # With a given number of components there are no others.
        assert kind(1, **settings).fit(X).score_samples(new).max() < -1000.0


class TestChoice:
    def test_the_number_that_a_gaussian_mixture_chooses(self):
        train, watched = rows(400), rows(200, seed=1)
        frame = find_frame(train, "columns")
        found = choose_gaussians(train, None, watched, "full", frame, SETTINGS)
        chosen = GaussianMixture("auto", random_state=0).fit(train)
        number = chosen.n_components_
        assert number > 4
        # A background comes with them, unless the fit has one.
        assert found[0].n_components == number + 1
        assert found[1].n_components - (number + 1) // 4 in (0, 1)
        # Without it, it is the same mixture.
        scores = np.logaddexp.reduce(found[0].log_joint(frame.to_model(train))[:, :-1], axis=1)
        expected = chosen.score_samples(train) + np.log(400 / 401)
        np.testing.assert_allclose(scores + frame.log_volume(), expected, atol=1e-9)
        assert len(choose_gaussians(train, None, None, "full", frame, SETTINGS)) == 1

    def test_fewer_components_where_they_explain_watched_rows_better(self):
        train = rows(400)
        # One broad cloud, which narrow components do not reach.
        draws = np.random.default_rng(2).normal(size=(200, 2))
        watched = train.mean(axis=0) + 1.5 * train.std(axis=0) * draws
        frame = find_frame(train, "columns")
        found = choose_gaussians(train, None, watched, "full", frame, SETTINGS)
        scores = {
            number: GaussianMixture(number, random_state=0).fit(train).score(watched)
            for number in (6, 3, 1)
        }
        best = max(scores, key=scores.get)
        assert best < 6
        assert found[0].n_components - best in (0, 1)

    def test_a_second_fit_ends_where_it_does_not_come_above_the_first(self):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(300, 2)) + 8.0 * rng.integers(0, 8, size=(300, 1))
        values = {}

        def watch(info):
            number = info.estimator().weights_.shape[0]
            values.setdefault(number, []).append(info.validation)

        settings = {"max_steps": 400, "evaluate_every": 10, "patience": 3, "random_state": 0}
        fitted = SumProductTransformNetwork("auto", 1, 1, callbacks=watch, **settings).fit(X)
        first, second = values.values()
        assert fitted.weights_.shape[0] == next(iter(values))
        assert max(second) < max(first)
        # It still rose.
        assert second[-1] > second[0] + 10 * fitted.tol
        assert len(second) == np.argmax(first) + 1 + settings["patience"]

    def test_diagonal_covariances(self):
        X = rows(400)
        frame = find_frame(X, "columns")
        found = fit_gaussians(X, None, 2, "diag", frame, SETTINGS)
        exact = Exact(2, covariance_type="diag", n_init=5, random_state=0).fit(X)
        assert not np.tril(found.cholesky, -1).any()
        scores = np.logaddexp.reduce(found.log_joint(frame.to_model(X)), axis=1)
        assert scores.mean() + frame.log_volume() == pytest.approx(exact.score(X), abs=0.02)

    @pytest.mark.slow
    def test_flows_with_the_chosen_number(self, monkeypatch):
        monkeypatch.setattr(deep_gaussians, "_MOST_CHOSEN", 4)
        X = rows(400)
        settings = {"hidden": 3, "max_steps": 20, "evaluate_every": 10, "random_state": 0}
        fitted = FlowMixture(**settings).fit(X)
        n_chosen = fitted.weights_.shape[0]
        # With a background, unless the Gaussians of the start have one.
        assert {n_chosen, n_chosen - 1} & {1, 2, 4}
        given = FlowMixture(n_chosen, **settings).fit(X)
        # The better of two fits, which have other Gaussians to begin with.
        assert fitted.best_validation_ == pytest.approx(given.best_validation_, abs=0.1)
        assert fitted.n_component_evaluations_ > given.n_component_evaluations_

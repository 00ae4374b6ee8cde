"""What deep mixtures refuse and how they say it; JAX: only when needed, and left as it was."""

import importlib.util
import inspect
import pydoc
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from deep_cases import flow, rows, small

from pickmix import FlowMixture, Mixture, RandomPartition, SumProductTransformNetwork

SHARED = [
    ("algorithm", "saem", r"one of 'mhsaem', 'mcsaem', 'em', 'sgd', got 'saem'"),
    ("proposal", "auto", r"one of 'uniform', .*'partition', got 'auto'"),
    ("proposal", 3, r"one of 'uniform', .* got 3"),
    ("n_samples", 0, "an integer >= 1, got 0"),
    ("n_samples", 1.5, r"an integer >= 1, got 1\.5"),
    ("n_samples", 2**40, r"below \d+, got 1099511627776"),
    ("reuse_log_joint", 1, "True or False, got 1"),
    ("batch_size", 0, "an integer >= 1, got 0"),
    ("batch_size", "auto", "an integer >= 1, got 'auto'"),
    ("max_steps", 0, "an integer >= 1, got 0"),
    ("max_steps", None, "an integer >= 1, got None"),
    ("max_time", 0.0, r"a finite number > 0\.0, got 0\.0"),
    ("learning_rate", 0.0, r"a number > 0, 'cosine' or a callable t -> rate, got 0\.0"),
    ("learning_rate", "linear", "a number > 0, 'cosine' or a callable t -> rate, got 'linear'"),
    ("learning_rate", float("nan"), "a number > 0, 'cosine' or a callable t -> rate, got nan"),
    ("adam", "sparse", "one of 'row', 'dense', got 'sparse'"),
    ("weight_update", "none", "one of 'auto', 'gradient', 'closed_form', got 'none'"),
    ("step_size", 2.0, r"lie in \(0, 1\], got 2\.0"),
    ("annealing", "down", "None, 'anti' or a callable t -> beta_t, got 'down'"),
    ("gradient_clip", -1.0, r"a finite number > 0\.0, got -1\.0"),
    ("init_params", "k-means++", "one of 'auto', 'gaussian', 'data', 'paper', got 'k-means"),
    ("reg_covar", -1e-6, r"a finite number >= 0\.0, got -1e-06"),
    ("noise", -0.1, r"a finite number >= 0\.0, got -0\.1"),
    ("standardize", "yes", "one of 'auto', 'whiten', 'columns', got 'yes'"),
    ("standardize", True, "one of 'auto', 'whiten', 'columns', got True"),
    ("validation_fraction", 1.0, r"None or a number in \[0, 1\), got 1\.0"),
    ("validation_fraction", -0.1, r"a finite number >= 0\.0, got -0\.1"),
    ("patience", 0, "an integer >= 1, got 0"),
    ("tol", -1.0, r"a finite number >= 0\.0, got -1\.0"),
    ("evaluate_every", 0, "'auto', .* or a rising sequence of steps >= 1, got 0"),
    ("evaluate_every", "often", "'auto', .* or a rising sequence of steps >= 1, got 'often'"),
    ("evaluate_every", [3, 3], r"'auto', .* a rising sequence of steps >= 1, got \[3, 3\]"),
    ("dtype", "float16", "one of 'float32', 'float64', got 'float16'"),
    ("dtype", np.float64, "one of 'float32', 'float64', got <class 'numpy.float64'>"),
    (
        "random_state",
        -1,
        r"None, an integer in \[0, 2\*\*32\), a numpy RandomState or a Generator, got -1",
    ),
    ("warm_start", None, "True or False, got None"),
    ("verbose", -1, "an integer >= 0, got -1"),
    ("callbacks", 3, "a callable or a list of them, got 3"),
    ("checkpoint", 3, "None or the path of a folder, got 3"),
    ("checkpoint_every", -1.0, "a finite number >= 0.0, got -1.0"),
]
FLOW = [
    ("n_components", 0, "an integer >= 1, got 0"),
    ("n_layers", 0, "an integer >= 1, got 0"),
    ("hidden", 2.5, r"an integer >= 1, got 2\.5"),
    ("translation_activation", "sin", "one of 'relu', .* got 'sin'"),
    ("scale_activation", None, "one of 'relu', .* got None"),
    ("bounded_scale", 1, "True or False, got 1"),
    ("identity_start", "no", "True or False, got 'no'"),
    ("linear", 1, "True or False, got 1"),
    ("gaussian_share", 1.0, r"a number in \[0, 1\), got 1\.0"),
]
NETWORK = [
    ("n_children", 0, "an integer >= 1, got 0"),
    ("n_partitions", True, "an integer >= 1, got True"),
    ("n_layers", -1, "an integer >= 1, got -1"),
    ("transforms", "none", "'triangular', 'rotations', True or False, got 'none'"),
]


class Good:
    def init(self, key, n_features):
        return jax.random.normal(key, (n_features,))

    def log_prob(self, params, x):
        return -0.5 * jnp.sum((x - params) ** 2)


def own():
    return Mixture(Good(), 2)


def sgd():
    return flow(algorithm="sgd")


def blocks():
    return flow(proposal="partition")


class TestRefused:
    @pytest.mark.parametrize(
        ("make", "name", "value", "message"),
        [
            *((flow, *case) for case in (*FLOW, *SHARED)),
            *((SumProductTransformNetwork, *case) for case in (*NETWORK, SHARED[0])),
            *((own, *case) for case in (FLOW[0], SHARED[0])),
        ],
    )
    def test_values(self, make, name, value, message):
        with pytest.raises(ValueError, match=f"^{name} must (be|have|lie)? ?{message}"):
            make().set_params(**{name: value}).fit(rows())

    @pytest.mark.parametrize(
        ("make", "settings", "message"),
        [
            (FlowMixture, {"init_params": "paper"}, "n_components must be an integer with init_p"),
            (FlowMixture, {"linear": False}, "n_components must be an integer with linear=False, "),
            (
                FlowMixture,
                {"n_components": 4, "linear": False, "init_params": "gaussian"},
                "init_params must not be 'gaussian' with linear=False",
            ),
            (FlowMixture, {"n_components": "many"}, "n_components must be one of 'auto', got 'man"),
            (own, {"n_components": "auto"}, "n_components must be an integer for a component with"),
            (own, {"init_params": "gaussian"}, "init_params must be 'auto', 'data' or 'paper' for"),
            (sgd, {"annealing": "anti"}, "annealing must be None with algorithm='sgd', got 'anti'"),
            (
                sgd,
                {"weight_update": "closed_form"},
                "weight_update must be 'auto' or 'gradient' with .* got 'closed_form'",
            ),
            (blocks, {"n_samples": 3}, "n_samples must be 1 with proposal='partition', .* got 3"),
            (blocks, {"reuse_log_joint": True}, "reuse_log_joint must be False with .* got True"),
            (
                blocks,
                {"proposal": RandomPartition(block_size=2, relocate=True)},
                "proposal must have relocate=False or 'auto' .* got RandomPartition",
            ),
            # Schedules are checked at every step.
            (
                flow,
                {"annealing": lambda t: 1.0 if t < 5 else -1.0},
                r"annealing must return values in \(0, inf\], got -1\.0 at step 5",
            ),
            (flow, {"learning_rate": lambda t: 1e-3 if t < 5 else -1.0}, "learning_rate must retu"),
        ],
    )
    def test_values_together(self, make, settings, message):
        with pytest.raises(ValueError, match=f"^{message}"):
            make().set_params(**settings).fit(rows())

    def test_a_refusal_leaves_the_former_model(self):
        fitted = flow().fit(rows())
        score = fitted.score(rows())
        with pytest.raises(ValueError, match="batch_size"):
            fitted.set_params(batch_size=-1).fit(rows() + 1.0)
        assert fitted.score(rows()) == score

    def test_a_model_that_memory_cannot_hold(self):
        with pytest.raises(MemoryError, match=r"needs .* GB .* Take fewer components, children"):
            FlowMixture(10**9, hidden=100).fit(rows())


class TestComponents:
    def test_methods_are_missed(self):
        class WithoutLogProb:
            init = Good.init

        for component, missing in ((WithoutLogProb(), "no log_prob"), (3, "no init and no log")):
            with pytest.raises(ValueError, match=f"^component must have methods .*{missing}"):
                Mixture(component, 2).fit(rows())

    def test_parameters_that_are_no_floats(self):
        class Integers(Good):
            def init(self, key, n_features):
                return jnp.zeros(n_features, int)

        with pytest.raises(ValueError, match=r"component\.init must return an array of floats"):
            Mixture(Integers(), 2).fit(rows())

    def test_a_log_density_that_is_no_scalar(self):
        class Columns(Good):
            def log_prob(self, params, x):
                return -0.5 * (x - params) ** 2

        with pytest.raises(ValueError, match=r"log_prob must return a scalar .* \(2,\)"):
            Mixture(Columns(), 2).fit(rows())


class TestJax:
    def test_without_it_the_extra_is_offered(self, monkeypatch):
        fitted = flow().fit(rows())
        original = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: None if name == "jax" else original(name)
        )
        message = r"^Deep mixtures need JAX: pip install 'pickmix\[deep\]'$"
        for ask in (
            lambda: flow().fit(rows()),
            lambda: fitted.score_samples(rows()),
            lambda: fitted.predict(rows()),
            lambda: fitted.sample(2),
        ):
            with pytest.raises(ImportError, match=message):
                ask()

    def test_float64_is_used_inside_only(self):
        X = rows()
        single, double = (small(dtype=dtype).fit(X) for dtype in ("float32", "float64"))
        assert jax.config.jax_enable_x64 is False
        assert jnp.ones(3).dtype == jnp.float32
        assert single.tables_[0].dtype == np.float32
        assert double.tables_[0].dtype == np.float64
        assert double.score_samples(X).dtype == single.score_samples(X).dtype == np.float64
        assert jax.config.jax_enable_x64 is False
        # The same start, drawn in another precision, is another one: compare the same parameters.
        double.tables_ = [table.astype(np.float64) for table in single.tables_]
        double.weights_ = single.weights_
        np.testing.assert_allclose(double.score_samples(X), single.score_samples(X), atol=1e-3)
        np.testing.assert_allclose(double.predict_proba(X), single.predict_proba(X), atol=1e-3)
        assert double.score(X) != single.score(X)

    def test_a_users_own_choice_of_precision_stays(self):
        X = rows()
        expected = flow().fit(X)
        jax.config.update("jax_enable_x64", True)
        try:
            fitted = flow().fit(X)
            assert fitted.tables_[0].dtype == np.float32
            np.testing.assert_array_equal(fitted.score_samples(X), expected.score_samples(X))
            assert jnp.ones(3).dtype == jnp.float64
        finally:
            jax.config.update("jax_enable_x64", False)

    def test_no_settings_of_the_disk_cache_stay_behind(self):
        before = jax.config.jax_compilation_cache_dir
        flow().fit(rows())
        assert jax.config.jax_compilation_cache_dir == before


ESTIMATORS = [FlowMixture, Mixture, SumProductTransformNetwork]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda estimator: estimator.__name__)
class TestConstructor:
    def test_what_is_not_the_default_is_shown(self, estimator):
        assert repr(estimator()) == f"{estimator.__name__}()"
        assert repr(estimator(tol=0.5)) == f"{estimator.__name__}(tol=0.5)"

    def test_help_tells_all(self, estimator):
        told = pydoc.render_doc(estimator, renderer=pydoc.plaintext)
        for name in [*inspect.signature(estimator).parameters, "weights_", "best_validation_"]:
            assert re.search(rf"^ \|  (\w+, )*{name}(, \w+)* : ", told, re.MULTILINE), name
        for title in ("Parameters", "Attributes", "Examples"):
            assert len(re.findall(rf"^ \|  {title}$", told, re.MULTILINE)) == 1

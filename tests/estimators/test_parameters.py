"""Constructor parameters: what is refused and how, what is promised and kept."""

import copy
import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError

import pickmix.threads
from pickmix import GaussianMixture, SearchSet
from pickmix.estimators import compilation
from pickmix.fitting.trace import TRACE_DTYPE

ALGORITHMS = [
    {"algorithm": "em"},
    {"algorithm": "saem"},
    {"algorithm": "ssaem"},
    {"algorithm": "tsaem"},
    {"algorithm": "mcsaem"},
    {"algorithm": "mhsaem", "proposal": "uniform"},
    {"algorithm": "mhsaem", "proposal": "optimal"},
    {"algorithm": "mhsaem", "proposal": "table"},
    {"algorithm": "mhsaem", "proposal": "table-forgetting"},
]
every_algorithm = pytest.mark.parametrize(
    "settings", ALGORITHMS, ids=lambda s: "-".join(s.values())
)
COVARIANCE_TYPES = ("full", "tied", "diag", "spherical")


def clusters(n_rows=300, n_features=2, seed=0):
    rng = np.random.default_rng(seed)
    centres = 3.0 * rng.normal(size=(3, n_features))
    return centres[rng.integers(3, size=n_rows)] + rng.normal(size=(n_rows, n_features))


def short_fit(X=None, n_components=3, **settings):
    settings = {"random_state": 0, "max_steps": 20, "batch_size": 50} | settings
    return GaussianMixture(n_components, **settings).fit(clusters() if X is None else X)


def assert_identical(one, other):
    for name in ("weights_", "means_", "covariances_"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for name in ("step", "evaluations", "log_likelihood", "acceptance", "live_components"):
        np.testing.assert_array_equal(one.trace_[name], other.trace_[name], err_msg=name)


NOT_INTEGERS = (0, -1, 1.5, "3", None, True, np.nan)
NOT_NUMBERS = (-1e-3, np.nan, np.inf, "0.1", None, [1.0])
BAD = {
    "n_components": NOT_INTEGERS,
    "covariance_type": ("diagonal", None, 3, "Full"),
    "algorithm": ("EM", None, "sgd", 1),
    "proposal": ("gibbs", None, 3, SearchSet()),
    "n_samples": NOT_INTEGERS,
    "reuse_log_joint": ("yes", None, 2),
    "batch_size": (0, -5, 1.5, "all", None, True),
    "step_size": (0.0, -0.1, 1.1, np.nan, "fast", None, True),
    "annealing": ("up", 0.5, True),
    "max_iter": NOT_INTEGERS,
    "max_steps": (0, -1, 1.5, "3", True),
    "max_time": (0, -1.0, np.nan, np.inf, "1 s"),
    "tol": NOT_NUMBERS,
    "reg_covar": NOT_NUMBERS,
    "n_init": NOT_INTEGERS,
    "init_params": ("kmeans", None, 0),
    "random_state": ("seed", -1, 1.5, 2**32),
    "n_jobs": (0, 1.5, "all", True),
    "warm_start": ("yes", None, 2),
    "verbose": (-1, 1.5, "loud", None),
    "callbacks": (3, [print, 3], "print", {"print": print}),
}


def test_every_parameter_has_a_bad_value():
    checked_elsewhere = {"weights_init", "means_init", "precisions_init"}
    assert set(BAD) | checked_elsewhere == set(GaussianMixture().get_params())


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD.items() for value in values], ids=repr
)
@pytest.mark.parametrize("algorithm", ["em", "mhsaem"])
def test_bad_value(name, value, algorithm):
    mixture = GaussianMixture(**({"n_components": 2, "algorithm": algorithm} | {name: value}))
    with pytest.raises(ValueError) as caught:
        mixture.fit(clusters(20))
    message = str(caught.value)
    # The parameter, what was expected, and what came.
    assert message.startswith(name), message
    assert "must" in message
    assert "got" in message
    assert message[message.index("got") :].find(repr(value)) > 0, message
    # Nothing half-fitted remains.
    with pytest.raises(NotFittedError):
        mixture.predict(clusters(20))


@pytest.mark.parametrize("algorithm", ["em", "mhsaem"])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("weights_init", [0.5, 0.5], r"weights_init must have shape \(3,\), got \(2,\)"),
        ("weights_init", [0.5, 0.6, -0.1], "weights_init must be non-negative.*got.*-0.1"),
        ("weights_init", [0.5, 0.5, 0.5], "weights_init must .* sum to 1, got .*1.5"),
        ("weights_init", [0.5, 0.5, np.nan], "weights_init must hold finite numbers only, got"),
        ("weights_init", "even", "weights_init must be an array of real numbers .*got 'even'"),
        ("weights_init", [0.5, None, 0.5], "weights_init must be an array of real numbers .*got"),
        ("means_init", np.zeros((2, 2)), r"means_init must have shape \(3, 2\), got \(2, 2\)"),
        ("means_init", np.zeros(3), r"means_init must have shape \(3, 2\), got \(3,\)"),
        ("means_init", np.full((3, 2), np.inf), "means_init must hold finite numbers only, got"),
        ("means_init", [[1, 2], [3]], "means_init must be an array of real numbers .*got"),
        ("means_init", np.full((3, 2), 1j), "means_init must be an array of real numbers .*got"),
        ("precisions_init", np.eye(2), r"precisions_init must have shape \(3, 2, 2\), got \(2, 2"),
        (
            "precisions_init",
            np.tile(np.diag([1.0, -2.0]), (3, 1, 1)),
            "precisions_init must be positive definite, got a smallest eigenvalue of -2",
        ),
        (
            "precisions_init",
            np.tile([[1.0, 0.5], [0.0, 1.0]], (3, 1, 1)),
            "precisions_init must be symmetric, got .* up to 0.5",
        ),
        ("precisions_init", np.full((3, 2, 2), np.nan), "precisions_init must hold finite numbers"),
    ],
)
def test_bad_start(algorithm, name, value, message):
    with pytest.raises(ValueError, match=message):
        GaussianMixture(3, algorithm=algorithm, **{name: value}).fit(clusters())


@pytest.mark.parametrize(
    ("covariance_type", "value", "message"),
    [
        ("tied", np.zeros((3, 2, 2)), r"must have shape \(2, 2\), got \(3, 2, 2\)"),
        ("tied", -np.eye(2), "must be positive definite"),
        ("diag", np.ones(3), r"must have shape \(3, 2\), got \(3,\)"),
        ("diag", np.array([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), "must be positive, got .*0.0"),
        ("spherical", np.ones((3, 2)), r"must have shape \(3,\), got \(3, 2\)"),
        ("spherical", np.array([1.0, 1.0, -1.0]), "must be positive, got .*-1.0"),
    ],
)
def test_bad_precisions_of_other_structures(covariance_type, value, message):
    mixture = GaussianMixture(3, covariance_type=covariance_type, precisions_init=value)
    with pytest.raises(ValueError, match="precisions_init " + message):
        mixture.fit(clusters())


def test_bad_schedules_are_named_when_they_misbehave():
    with pytest.raises(ValueError, match=r"step_size must return .*got 2.0 at step 5"):
        short_fit(step_size=lambda t: 2.0 if t == 5 else 0.1)
    with pytest.raises(ValueError, match=r"annealing must return .*got -1.0 at step 3"):
        short_fit(annealing=lambda t: -1.0 if t == 3 else 1.0)


class TestScikitLearnConventions:
    def test_parameters_round_trip(self):
        mixture = GaussianMixture()
        parameters = {name: object() for name in mixture.get_params()}
        mixture.set_params(**parameters)
        assert mixture.get_params() == parameters
        for name, value in parameters.items():
            assert getattr(mixture, name) is value
        with pytest.raises(ValueError, match="Invalid parameter"):
            mixture.set_params(n_clusters=3)

    def test_clone(self):
        fitted = short_fit(proposal="uniform", means_init=np.zeros((3, 2)), callbacks=[print])
        copied = clone(fitted)
        assert not hasattr(copied, "weights_")
        for name, value in fitted.get_params().items():
            np.testing.assert_array_equal(getattr(copied, name), value)

    @every_algorithm
    def test_fit_does_not_change_parameters(self, settings):
        mixture = GaussianMixture(3, max_steps=5, **settings)
        before = mixture.get_params()
        mixture.fit(clusters())
        after = mixture.get_params()
        assert list(before) == list(after)
        assert all(before[name] is after[name] for name in before)

    @pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
    def test_copies_answer_alike(self, covariance_type, duplicate):
        X = clusters()
        mixture = short_fit(covariance_type=covariance_type)
        other = duplicate(mixture)
        assert_identical(mixture, other)
        np.testing.assert_array_equal(mixture.score_samples(X), other.score_samples(X))
        np.testing.assert_array_equal(mixture.predict(X), other.predict(X))
        np.testing.assert_array_equal(mixture.sample(5)[0], other.sample(5)[0])
        # A copy stands on its own.
        other.means_ += 1.0
        assert (mixture.means_ != other.means_).all()
        other.fit(X)

    def test_failed_refit_keeps_the_old_model(self):
        mixture = short_fit()
        before = mixture.means_.copy()

        def fail(info):
            raise RuntimeError("no")

        mixture.set_params(callbacks=fail, random_state=5)
        with pytest.raises(RuntimeError):
            mixture.fit(clusters(seed=9))
        np.testing.assert_array_equal(mixture.means_, before)

    def test_fit_predict(self):
        X = clusters()
        mixture = GaussianMixture(3, random_state=0)
        np.testing.assert_array_equal(mixture.fit_predict(X), mixture.predict(X))


class TestRandomness:
    @every_algorithm
    @pytest.mark.parametrize("n_init", [1, 2])
    def test_same_seed_same_bits(self, settings, n_init):
        one, two = (short_fit(n_init=n_init, **settings) for _ in range(2))
        assert_identical(one, two)

    @every_algorithm
    def test_other_seed_other_fit(self, settings):
        one, two = (short_fit(random_state=seed, **settings) for seed in (0, 1))
        assert np.abs(one.means_ - two.means_).max() > 1e-9

    def test_random_state_objects(self):
        one, two = (short_fit(random_state=np.random.RandomState(4)) for _ in range(2))
        assert_identical(one, two)
        assert_identical(one, short_fit(random_state=4))
        # A generator that goes on gives another fit the second time.
        shared = np.random.RandomState(4)
        again = short_fit(random_state=shared)
        assert_identical(again, one)
        assert np.abs(short_fit(random_state=shared).means_ - again.means_).max() > 1e-9
        assert np.isfinite(short_fit(random_state=None).means_).all()

    @every_algorithm
    @pytest.mark.parametrize("covariance_type", ["full", "tied"])
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_number_of_threads_changes_nothing(self, settings, covariance_type, dtype, monkeypatch):
        # Every kernel call is cut into ranges, however little work it is.
        monkeypatch.setattr(pickmix.threads, "MINIMUM_WORK", 1)
        handed_over = []

        class SpyingPool(pickmix.threads.ThreadPoolExecutor):
            def submit(self, kernel, /, *args, **options):
                handed_over.append(kernel)
                return super().submit(kernel, *args, **options)

        monkeypatch.setattr(pickmix.threads, "ThreadPoolExecutor", SpyingPool)
        X = clusters(3000, 4).astype(dtype)
        settings = settings | {"covariance_type": covariance_type, "batch_size": 700}
        weights = np.random.default_rng(0).uniform(0.5, 2.0, 3000)
        fits = {}
        for n_jobs in (1, 2, 3):
            handed_over.clear()
            mixture = GaussianMixture(8, random_state=0, max_steps=10, n_jobs=n_jobs, **settings)
            fits[n_jobs] = mixture.fit(X, sample_weight=weights)
            assert (len(handed_over) > 0) == (n_jobs > 1)
        for n_jobs in (2, 3):
            assert_identical(fits[1], fits[n_jobs])
            for method in ("score_samples", "predict_proba", "predict"):
                np.testing.assert_array_equal(
                    getattr(fits[1], method)(X), getattr(fits[n_jobs], method)(X)
                )

    def test_threads_run_on_large_batches_by_themselves(self, monkeypatch):
        handed_over = []
        submit = pickmix.threads.ThreadPoolExecutor.submit

        def spying(self, kernel, /, *args, **options):
            handed_over.append(kernel)
            return submit(self, kernel, *args, **options)

        monkeypatch.setattr(pickmix.threads.ThreadPoolExecutor, "submit", spying)
        X = clusters(20_000, 8)
        fits = [
            GaussianMixture(30, algorithm="em", max_steps=3, random_state=0, n_jobs=n_jobs).fit(X)
            for n_jobs in (1, 2)
        ]
        assert handed_over
        assert_identical(*fits)

    def test_starts_are_compared_on_the_same_rows(self):
        # Steps so small that every start keeps the given parameters: then the log-likelihoods of
        # all starts are equal if they are those of the same rows. So many components are evaluated
        # on a sample of the rows only.
        X = clusters(2000)
        values = []
        GaussianMixture(
            1000,
            proposal="uniform",
            n_init=3,
            max_steps=1,
            step_size=1e-12,
            covariance_type="spherical",
            weights_init=np.full(1000, 1e-3),
            means_init=X[:1000],
            precisions_init=np.ones(1000),
            callbacks=lambda info: values.append(info.log_likelihood),
            random_state=0,
        ).fit(X)
        assert len(values) == 3
        assert np.ptp(values) < 1e-6

    def test_negative_n_jobs(self):
        for n_jobs in (-1, -2, -100):
            assert_identical(short_fit(n_jobs=n_jobs), short_fit(n_jobs=1))


class TestWarmStart:
    """Goes on from the last fit's parameters, chain states and step number."""

    @pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
    @pytest.mark.parametrize("algorithm", ["em", "saem", "mcsaem", "mhsaem"])
    def test_two_halves_are_a_whole(self, algorithm, covariance_type):
        # These algorithms keep nothing but parameters and, with a uniform proposal, chains. With
        # all components well filled, two fits of 20 steps are one of 40: the same batches, draws
        # and step sizes.
        X = clusters()
        settings = {
            "algorithm": algorithm,
            "proposal": "uniform",
            "covariance_type": covariance_type,
            "batch_size": 50,
            "random_state": 0,
        }
        whole = GaussianMixture(3, max_steps=40, **settings).fit(X)
        halves = GaussianMixture(3, max_steps=20, warm_start=True, **settings).fit(X)
        first = halves.means_.copy()
        halves.fit(X)
        assert halves.n_steps_ == whole.n_steps_ == 40
        assert halves.trace_["step"][0] > 20
        assert np.abs(halves.means_ - first).max() > 1e-6
        for name in ("weights_", "means_", "covariances_"):
            np.testing.assert_allclose(
                getattr(halves, name), getattr(whole, name), rtol=1e-8, atol=1e-8, err_msg=name
            )

    @every_algorithm
    def test_steps_and_passes_go_on(self, settings):
        mixture = short_fit(warm_start=True, **settings)
        assert mixture.n_steps_ == 20
        mixture.fit(clusters())
        assert mixture.n_steps_ == 40
        mixture.set_params(max_steps=3)
        mixture.fit(clusters())
        assert mixture.n_steps_ == 43
        assert mixture.trace_["step"][-1] == 43

    def test_passes_of_another_batch_size_are_carried_over_as_passes(self):
        """90 steps of 5 passes, then 3 iterations of EM: 8 passes in all, 3 of them new."""
        X = clusters()
        mixture = GaussianMixture(3, max_steps=30, batch_size=50, warm_start=True, random_state=0)
        mixture.fit(X)
        passes = 30 * 50 / X.shape[0]
        assert mixture.trace_["epoch"][-1] == pytest.approx(passes)
        mixture.set_params(algorithm="em", max_steps=3).fit(X)
        assert mixture.n_iter_ == 3
        np.testing.assert_allclose(mixture.trace_["epoch"], passes + np.arange(1, 4))

    def test_annealing_runs_over_the_steps_of_the_new_fit(self):
        """Anti-annealing from beta = 0.1 again: the second fit starts by spreading posteriors."""
        X = clusters()
        seen = []

        def record(t):
            seen.append(t)
            return 1.0

        mixture = short_fit(warm_start=True, max_steps=10, annealing=record)
        mixture.fit(X)
        assert seen == [*range(1, 11), *range(1, 11)]

    def test_equal_shapes_of_different_structures_are_told_apart(self):
        """K = D = 3: a table of variances has the shape of a tied covariance."""
        X = np.random.default_rng(0).normal(size=(300, 3))
        mixture = GaussianMixture(
            3, covariance_type="diag", max_steps=5, warm_start=True, random_state=0
        ).fit(X)
        mixture.set_params(covariance_type="tied").fit(X)
        assert mixture.n_steps_ == 5
        assert np.linalg.eigvalsh(mixture.covariances_).min() > 0.0

    def test_em_never_goes_down(self):
        X = clusters()
        mixture = GaussianMixture(
            3, algorithm="em", max_steps=4, warm_start=True, random_state=0, reg_covar=0.0
        )
        values = np.concatenate([mixture.fit(X).trace_["log_likelihood"] for _ in range(5)])
        assert len(values) == 20
        assert np.diff(values).min() >= -1e-12

    def test_off_means_a_new_start(self):
        X = clusters()
        mixture = GaussianMixture(3, max_steps=10, random_state=0).fit(X)
        first = mixture.means_.copy()
        np.testing.assert_array_equal(mixture.fit(X).means_, first)
        assert mixture.n_steps_ == 10

    @pytest.mark.parametrize(
        "change",
        [{"n_components": 4}, {"covariance_type": "diag"}, {"covariance_type": "tied"}],
        ids=str,
    )
    def test_other_shape_means_a_new_start(self, change):
        X = clusters()
        mixture = short_fit(warm_start=True).set_params(**change).fit(X)
        fresh = clone(mixture).fit(X)
        assert_identical(mixture, fresh)
        assert mixture.n_steps_ == 20

    def test_other_features_mean_a_new_start(self):
        mixture = short_fit(warm_start=True)
        X = clusters(n_features=3)
        assert_identical(mixture.fit(X), clone(mixture).fit(X))

    @every_algorithm
    def test_other_rows_go_on(self, settings):
        mixture = short_fit(warm_start=True, **settings)
        mixture.fit(clusters(200, seed=0)[::-1])
        assert mixture.n_steps_ == 40
        assert np.isfinite(mixture.score(clusters()))

    def test_other_algorithm_goes_on(self):
        X = clusters()
        mixture = short_fit(warm_start=True, algorithm="mhsaem").set_params(algorithm="em")
        before = mixture.score(X)
        mixture.fit(X)
        assert mixture.trace_["log_likelihood"][0] == pytest.approx(before, rel=1e-9)


class TestEnding:
    @every_algorithm
    @pytest.mark.parametrize("max_steps", [1, 7, 31])
    def test_max_steps_is_exact(self, settings, max_steps):
        mixture = short_fit(max_steps=max_steps, **settings)
        assert mixture.n_steps_ == max_steps
        assert mixture.outcome_ == "max_steps"
        assert not mixture.converged_
        assert mixture.trace_["step"][-1] == max_steps
        per_pass = 1 if settings["algorithm"] == "em" else 6
        assert mixture.n_iter_ == -(-max_steps // per_pass)

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
    def test_max_time(self, settings):
        X = clusters(3000)
        begin = time.perf_counter()
        mixture = short_fit(X, max_steps=10**9, max_time=0.1, **settings)
        assert mixture.outcome_ == "max_time"
        assert mixture.trace_["seconds"][-1] >= 0.1
        assert 1 <= mixture.n_steps_ < 10**9
        # Generous: evaluations are not work, and the machine may be busy.
        assert time.perf_counter() - begin < 20.0

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

    def test_callback_errors_propagate(self):
        def fail(info):
            raise LookupError("my own")

        mixture = GaussianMixture(3, callbacks=fail)
        with pytest.raises(LookupError, match="my own"):
            mixture.fit(clusters())
        with pytest.raises(NotFittedError):
            mixture.score(clusters())

    def test_callback_time_is_not_work(self):
        mixture = short_fit(max_steps=18, callbacks=lambda info: time.sleep(0.05))
        assert len(mixture.trace_) == 18
        # 0.9 s of sleep, and 18 steps of well below a millisecond each.
        assert mixture.trace_["seconds"][-1] < 0.3

    def test_callbacks_are_never_copied(self):
        """A lock cannot be copied; the fit and its compilation must not try."""

        class Locked:
            def __init__(self):
                self.lock = threading.Lock()
                self.calls = 0

            def __call__(self, info):
                with self.lock:
                    self.calls += 1

        callback = Locked()
        compilation._compiled.clear()
        short_fit(max_steps=6, callbacks=[callback])
        assert callback.calls == 6


class TestInterrupted:
    @pytest.fixture(autouse=True)
    def pythons_own_handler(self):
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

    @every_algorithm
    def test_keyboard_interrupt_in_a_callback(self, settings):
        def interrupt(info):
            if info.step > 20:
                raise KeyboardInterrupt

        with pytest.warns(UserWarning, match=r"interrupted after \d+ steps; the model is usable"):
            mixture = short_fit(max_steps=10**6, callbacks=interrupt, **settings)
        self.assert_usable_and_interrupted(mixture)

    @every_algorithm
    def test_signal_in_a_callback(self, settings):
        def interrupt(info):
            if info.step > 20:
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.warns(UserWarning, match="interrupted"):
            mixture = short_fit(max_steps=10**6, callbacks=interrupt, **settings)
        self.assert_usable_and_interrupted(mixture)

    @pytest.mark.parametrize("settings", ALGORITHMS[::4], ids=lambda s: "-".join(s.values()))
    def test_signal_at_any_moment(self, settings):
        started = threading.Event()

        def interrupt():
            started.wait(60.0)
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Thread(target=interrupt)
        timer.start()
        with pytest.warns(UserWarning, match="interrupted"):
            mixture = short_fit(
                max_steps=10**6, callbacks=lambda info: started.set(), n_jobs=2, **settings
            )
        timer.join()
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

    def test_interrupt_in_the_last_callback(self):
        def interrupt(info):
            os.kill(os.getpid(), signal.SIGINT)

        with pytest.warns(UserWarning, match="interrupted"):
            mixture = short_fit(algorithm="em", max_steps=1, n_init=3, callbacks=interrupt)
        assert mixture.outcome_ == "interrupted"
        assert mixture.n_steps_ == 1


def clusters_score_of_one_gaussian():
    X = clusters()
    deviation = X - X.mean(axis=0)
    covariance = deviation.T @ deviation / len(X)
    return -0.5 * (np.linalg.slogdet(2 * np.pi * covariance)[1] + X.shape[1])


class TestTrace:
    @every_algorithm
    def test_columns(self, settings):
        mixture = short_fit(max_steps=60, **settings)
        trace = mixture.trace_
        assert trace.dtype == TRACE_DTYPE
        assert trace.dtype.names == (
            "step",
            "epoch",
            "seconds",
            "evaluations",
            "log_likelihood",
            "acceptance",
            "live_components",
        )
        for name in ("step", "epoch", "seconds", "evaluations"):
            assert (np.diff(trace[name]) > 0).all(), name
        per_pass = 1 if settings["algorithm"] == "em" else 6
        np.testing.assert_allclose(trace["epoch"], trace["step"] / per_pass)
        assert np.isfinite(trace["log_likelihood"]).all()
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

    def test_acceptance_of_exact_draws_is_one(self):
        assert (short_fit(algorithm="mcsaem").trace_["acceptance"] == 1.0).all()


class TestVerbose:
    def test_silent_by_default(self, capfd):
        short_fit()
        assert capfd.readouterr() == ("", "")

    @pytest.mark.parametrize("verbose", [1, True])
    def test_bar(self, capfd, verbose):
        short_fit(algorithm="em", verbose=verbose)
        shown = capfd.readouterr().err
        assert "20/20" in shown
        assert "log-likelihood=" in shown

    def test_lines(self, capfd):
        mixture = short_fit(algorithm="em", verbose=2)
        lines = capfd.readouterr().out.splitlines()
        assert len(lines) == len(mixture.trace_) == 20
        assert lines[-1].startswith("step 20 ")
        assert f"log-likelihood {mixture.lower_bound_:.4f}" in lines[-1]

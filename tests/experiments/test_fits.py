"""Runs carried out: short fits of each kind, and what they record."""

import math
from dataclasses import replace

import numpy as np
import pytest

from pickmix import FlowMixture, GaussianMixture
from pickmix.data import uci
from pickmix.experiments.fits import deep_run, gaussian_run
from pickmix.experiments.fits.deep_run import make_estimator
from pickmix.experiments.fits.perform import perform, record_steps
from pickmix.experiments.runs import ConvergenceRun, DefaultRun, GaussianRun, flow, sptn
from pickmix.fitting.trace import TRACE_DTYPE

SMALL = {"D": 2, "K": 5, "N": 500, "omega": 0.1, "B": 50}
ALGORITHMS = (
    *("EM", "SAEM", "SSAEM", "TSAEM", "MCSAEM"),
    *("MHSAEM-U", "MHSAEM-T", "MHSAEM-TF", "MHSAEM-O", "MHSAEM-P", "pickmix"),
)


def small(algorithm, T=40, seed=0, **settings):
    return GaussianRun(algorithm, T, seed, **{**SMALL, **settings})


def check_series(history, counted=True):
    series = history.series
    assert np.all(np.diff(series["seconds"]) >= 0)
    if counted:
        assert np.all(np.diff(series["step"]) > 0)
        assert np.all(np.diff(series["evaluations"]) >= 0)
    assert np.isfinite(series["log_likelihood"]).all()


def test_records_are_even_on_a_log_axis():
    steps = record_steps(10_000)
    assert steps[0] == 1
    assert steps[-1] == 10_000
    assert np.all(np.diff(steps) > 0)
    late = np.array([step for step in steps if step > 100])
    assert np.ptp(late[1:] / late[:-1]) < 0.05
    assert record_steps(1) == [1]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_gaussian_runs(algorithm):
    history = perform(small(algorithm))
    check_series(history)
    assert history.facts["outcome"] in ("max_steps", "converged")
    assert history.facts["threads"] == 1
    X, true_scores = gaussian_run.rows_of(history.run)
    assert X.shape == (500, 2)
    assert history.facts["true_log_likelihood"] == pytest.approx(true_scores.mean())
    if algorithm != "pickmix":
        assert history.series["step"].tolist() == record_steps(40)


def test_gaussian_evaluations_per_row():
    def last(run):
        return perform(run).series["evaluations"][-1]

    # 40 steps of 50 rows, of 500; EM sees all of them in each step.
    assert last(small("EM")) == 40 * 5
    assert last(small("SAEM")) == 4 * 5
    assert last(small("MHSAEM-U", M=2)) == 4 * 3


def test_the_log_likelihood_is_exact():
    run = small("EM", T=3)
    X, _ = gaussian_run.rows_of(run)
    mixture = gaussian_run.make_estimator(run).fit(X)
    assert perform(run).series["log_likelihood"][-1] == pytest.approx(mixture.score(X), rel=1e-12)


def test_seeds_change_the_fit_and_not_the_data():
    one, other = perform(small("MHSAEM-U")), perform(small("MHSAEM-U", seed=1))
    assert one.facts["true_log_likelihood"] == other.facts["true_log_likelihood"]
    assert one.series["log_likelihood"][-1] != other.series["log_likelihood"][-1]


def test_the_same_run_twice_is_the_same():
    one, other = perform(small("MHSAEM-TF")), perform(small("MHSAEM-TF"))
    for name in ("step", "evaluations", "log_likelihood", "acceptance"):
        np.testing.assert_array_equal(one.series[name], other.series[name])


def test_schedules_of_a_run_are_those_of_its_fit():
    estimator = gaussian_run.make_estimator(small("MHSAEM-U", first_steps=7, step_size=0.3))
    assert [estimator.step_size(t) for t in (1, 7, 8)] == [1.0, 1.0, 0.3]
    assert estimator.annealing == "anti"
    assert gaussian_run.make_estimator(small("EM", annealing=False)).annealing is None
    search = gaussian_run.make_estimator(small("TSAEM", M=3)).proposal
    assert (search.n_neighbours, search.n_explore, search.all_pairs) == (3, 0, True)


def test_a_limit_breaks_a_run_off():
    history = perform(small("SAEM", T=10**6), limit_seconds=0.05)
    assert history.facts["outcome"] == "max_time"
    assert history.facts["limit_seconds"] == 0.05
    assert history.series["step"][-1] < 10**6


def test_a_fit_that_raises_is_a_result():
    history = perform(small("MHSAEM-U", K=0))
    assert history.failed
    assert history.facts["outcome"].startswith("failed: ")
    assert np.isnan(history.series["log_likelihood"]).all()


@pytest.mark.parametrize("algorithm", ["MHSAEM-O", "MHSAEM-TF", "MHSAEM-P"])
def test_convergence_runs(algorithm):
    history = perform(ConvergenceRun(algorithm, 60, 0, K=4, N=200, B=20))
    check_series(history)
    series = history.series
    assert series["step"].tolist() == record_steps(60)
    assert np.all(series["bias"] > 0.0)
    assert np.all(series["bias_by_chance"] > 0.0)
    assert np.all((series["acceptance"] > 0.0) & (series["acceptance"] <= 1.0))
    assert series["log_likelihood"][-1] > series["log_likelihood"][0]


def test_exact_draws_have_no_bias_beyond_chance():
    history = perform(ConvergenceRun("MHSAEM-O", 400, 0, K=4, N=200, B=20))
    ratio = history.series["bias"] / history.series["bias_by_chance"]
    # Squared norms scatter by about their mean; 50-odd of them by a seventh of it.
    assert len(ratio) > 40
    assert ratio.mean() == pytest.approx(1.0, abs=0.5)


@pytest.fixture
def tiny_set(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    folder = tmp_path / "loda" / "iris"
    folder.mkdir(parents=True)
    for name in ("normal", "easy"):
        np.savetxt(folder / f"{name}.txt", rng.normal(size=(60, 3)))
    monkeypatch.setenv("PICKMIX_DATA", str(tmp_path))


@pytest.mark.usefixtures("tiny_set")
@pytest.mark.parametrize(
    "run", [flow("iris", "SGD", 3, T=20), sptn("iris", "MHSAEM-U", 2, 2, 2, T=20)]
)
def test_deep_runs(run):
    history = perform(run)
    check_series(history)
    assert history.facts["outcome"] == "max_steps"
    assert history.facts["n_rows"] == 38
    assert history.facts["n_features"] == 3
    series = history.series
    assert series["step"].tolist() == record_steps(20)
    assert history.facts["best_validation"] >= series["validation"].max()
    assert math.isfinite(history.facts["test"])


@pytest.mark.usefixtures("tiny_set")
def test_gaussians_as_they_come_are_chosen_by_validation():
    history = perform(DefaultRun("pickmix Gaussians", 0, 1, dataset="iris"))
    check_series(history, counted=False)
    split = uci.load("iris", "paper", random_state=1)
    # 38 training rows: two for each of 16 components, and no more.
    fits = [GaussianMixture(K, random_state=1).fit(split.train) for K in (1, 2, 4, 8, 16)]
    values = [fit.score(split.validation) for fit in fits]
    assert history.series["validation"] == pytest.approx(values)
    best = int(np.argmax(values))
    assert history.facts["n_components"] == 2**best
    assert history.facts["test"] == pytest.approx(fits[best].score(split.test))
    assert history.facts["best_validation"] == max(history.series["validation"])


def test_estimators_as_they_come_are_not_told_anything(monkeypatch):
    made = []

    class Mixture:
        outcome_, best_validation_, start_seconds_, compile_seconds_ = "converged", -1.0, 2.0, 0.5
        weights_ = np.ones(4)
        trace_ = np.array([(9, 1.0, 3.0, 50, -2.0, -1.0, 1.0, 4)], dtype=TRACE_DTYPE)

        def __init__(self, **parameters):
            made.append(parameters)

        def fit(self, X, validation_data):
            assert (len(X), len(validation_data)) == (10, 4)

        def score(self, X):
            return -1.5

    split = uci.Split("iris", "paper", *(np.zeros((n, 2)) for n in (10, 4, 4)))
    monkeypatch.setattr(uci, "load", lambda *arguments, **settings: split)
    monkeypatch.setitem(deep_run._DEFAULTS, "pickmix flows", Mixture)
    history = perform(DefaultRun("pickmix flows", 0, 7), limit_seconds=60.0)
    assert made == [{"random_state": 7, "max_time": 60.0}]
    # The start is part of the work, compilation is not.
    assert history.series["seconds"].tolist() == [5.0]
    assert history.series["evaluations"].tolist() == [5.0]  # per row
    assert (history.facts["test"], history.facts["n_components"]) == (-1.5, 4.0)


def test_where_a_deep_run_starts():
    paper = make_estimator(flow("iris", "MHSAEM-U", 3))
    assert (paper.init_params, paper.standardize) == ("paper", False)
    # The paper's family, without what our defaults add to it.
    assert (paper.linear, paper.hidden, paper.noise, paper.learning_rate) == (False, 10, 0.0, 1e-3)
    assert make_estimator(sptn("iris", "SGD", 2, 2, 2)).transforms == "rotations"
    ours = make_estimator(replace(flow("iris", "MHSAEM-U", 3), start="gaussian"))
    assert (ours.init_params, ours.standardize) == ("gaussian", FlowMixture().standardize)
    assert ours.n_components == 3


def test_a_set_that_is_not_there_is_no_result(monkeypatch):
    def missing(*arguments, **settings):
        raise FileNotFoundError("wine: found its files nowhere.")

    monkeypatch.setattr(uci, "load", missing)
    history = perform(flow("wine", "SGD", 3, T=20))
    assert history.failed
    assert history.facts["outcome"] == "no data: wine: found its files nowhere."

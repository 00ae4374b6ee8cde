"""Runs carried out: short fits of each kind, and what they record."""

import math

import numpy as np
import pytest

from pickmix.data import uci
from pickmix.experiments.reproduction.fits import gaussian_run
from pickmix.experiments.reproduction.fits.perform import NoData, perform
from pickmix.experiments.reproduction.fits.recording import record_steps
from pickmix.experiments.reproduction.runs import ConvergenceRun, GaussianRun, flow, sptn

SMALL = {"D": 2, "K": 5, "N": 500, "omega": 0.1, "B": 50}
ALGORITHMS = (
    *("EM", "SAEM", "SSAEM", "TSAEM", "MCSAEM"),
    *("MHSAEM-U", "MHSAEM-T", "MHSAEM-TF", "MHSAEM-O", "MHSAEM-P", "pickmix"),
)


def small(algorithm, T=40, seed=0, **settings):
    return GaussianRun(algorithm, T, seed, **{**SMALL, **settings})


def check_series(history):
    series = history.series
    assert np.all(np.diff(series["step"]) > 0)
    assert np.all(np.diff(series["seconds"]) >= 0)
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


def test_a_set_that_is_not_there_is_no_result(monkeypatch):
    def missing(*arguments, **settings):
        raise FileNotFoundError("wine: found its files nowhere.")

    monkeypatch.setattr(uci, "load", missing)
    with pytest.raises(NoData, match="wine: found its files nowhere"):
        perform(flow("wine", "SGD", 3, T=20))

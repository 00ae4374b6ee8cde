"""Runs carried out: short fits of each kind, and what they record."""

import math
from dataclasses import replace

import jax
import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import multivariate_normal

import pickmix
from pickmix import FlowMixture, GaussianMixture
from pickmix.fitting.loop import TRACE_DTYPE
from pickmix.gradient.components import ComponentMixture
from pickmix.gradient.network import flatten
from pickmix_experiments import fits, uci
from pickmix_experiments.convergence import FullGaussian, gradient_error
from pickmix_experiments.runner import perform, record_steps
from pickmix_experiments.runs import ConvergenceRun, DefaultRun, GaussianRun, flow, sptn

SMALL = {"D": 2, "K": 5, "N": 500, "omega": 0.1, "B": 50}
ALGORITHMS = (
    *("EM", "SAEM", "SSAEM", "TSAEM", "MCSAEM"),
    *("MHSAEM-U", "MHSAEM-T", "MHSAEM-TF", "MHSAEM-O", "MHSAEM-P", "pickmix"),
)


def small(algorithm, T=40, seed=0, **settings):
    return GaussianRun(algorithm, T, seed, **{**SMALL, **settings})


def check_trace(row):
    trace = row["trace"]
    assert np.all(np.diff(trace["seconds"]) >= 0)
    assert np.all(np.diff(trace["evaluations"]) >= 0)
    assert None not in trace["log_likelihood"]
    return trace


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_gaussian_runs(algorithm):
    run = small(algorithm)
    row = perform(run)
    trace = check_trace(row)
    assert row["outcome"] in ("max_steps", "converged")
    X, true_scores = fits.rows_of(run)
    assert X.shape == (500, 2)
    assert row["true_log_likelihood"] == pytest.approx(true_scores.mean())
    if algorithm != "pickmix":
        assert trace["step"] == record_steps(40)
    # 40 steps of 50 rows, of 500; EM sees all of them in each step.
    evaluations = {"EM": 40 * 5, "SAEM": 4 * 5, "MHSAEM-U": 4 * 3}
    assert trace["evaluations"][-1] == evaluations.get(algorithm, trace["evaluations"][-1])


def test_schedules_of_a_run_are_those_of_its_fit():
    estimator = fits.make_gaussian(small("MHSAEM-U", first_steps=7, step_size=0.3))
    assert [estimator.step_size(t) for t in (1, 7, 8)] == [1.0, 1.0, 0.3]
    assert estimator.annealing == "anti"
    assert fits.make_gaussian(small("EM", annealing=False)).annealing is None
    search = fits.make_gaussian(small("TSAEM", M=3)).proposal
    assert (search.n_neighbours, search.n_explore, search.all_pairs) == (3, 0, True)


def test_a_limit_breaks_a_run_off_and_an_error_is_a_result():
    row = perform(small("SAEM", T=10**6), limit_seconds=0.05)
    assert (row["outcome"], row["limit_seconds"]) == ("max_time", 0.05)
    assert row["trace"]["step"][-1] < 10**6
    row = perform(small("MHSAEM-U", K=0))
    assert row["outcome"].startswith("failed: ")
    assert row["trace"] == {}


def test_exact_draws_have_no_bias_beyond_chance():
    row = perform(ConvergenceRun("MHSAEM-O", 400, 0, K=4, N=200, B=20))
    trace = {name: np.array(values) for name, values in check_trace(row).items()}
    assert trace["step"].tolist() == record_steps(400)
    assert np.all((trace["acceptance"] > 0.0) & (trace["acceptance"] <= 1.0))
    assert trace["log_likelihood"][-1] > trace["log_likelihood"][0]
    # Squared norms scatter by about their mean; 50-odd of them by a seventh of it.
    ratio = trace["bias"] / trace["bias_by_chance"]
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
def test_deep_runs():
    row = perform(replace(flow("iris", "MHSAEM-U", 3), T=20))
    trace = check_trace(row)
    assert (row["outcome"], row["n_rows"], row["n_features"]) == ("max_steps", 38, 3)
    assert trace["step"] == record_steps(20)
    assert row["best_validation"] >= max(trace["validation"]) - 1e-6
    assert math.isfinite(row["test"])


@pytest.mark.usefixtures("tiny_set")
def test_gaussians_as_they_come_are_chosen_by_validation():
    row = perform(DefaultRun("pickmix Gaussians", 0, 1, dataset="iris"))
    values = row["trace"]["validation"]
    # 38 training rows: two for each of 16 components, and no more.
    assert row["trace"]["live_components"] == [1, 2, 4, 8, 16]
    assert row["n_components"] == 2 ** int(np.argmax(values))
    assert row["best_validation"] == pytest.approx(max(values))
    split = uci.load("iris", "paper", random_state=1)
    best = GaussianMixture(row["n_components"], random_state=1).fit(split.train)
    assert row["test"] == pytest.approx(best.score(split.test))


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
    monkeypatch.setattr(pickmix, "FlowMixture", Mixture, raising=False)
    row = perform(DefaultRun("pickmix flows", 0, 7), limit_seconds=60.0)
    assert made == [{"random_state": 7, "max_time": 60.0}]
    # The start is part of the work, compilation is not; evaluations are per row.
    assert (row["trace"]["seconds"], row["trace"]["evaluations"]) == ([5.0], [5.0])
    assert (row["test"], row["n_components"]) == (-1.5, 4.0)


def test_where_a_deep_run_starts():
    paper = fits.make_deep(flow("iris", "MHSAEM-U", 3))
    assert (paper.init_params, paper.standardize) == ("paper", False)
    # The paper's family, without what our defaults add to it.
    assert (paper.linear, paper.hidden, paper.noise, paper.learning_rate) == (False, 10, 0.0, 1e-3)
    assert fits.make_deep(sptn("iris", "SGD", 2, 2, 2)).transforms == "rotations"
    ours = fits.make_deep(replace(flow("iris", "MHSAEM-U", 3), start="gaussian"))
    assert (ours.init_params, ours.standardize) == ("gaussian", FlowMixture().standardize)


K, D, B = 3, 2, 40


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    means = rng.normal(size=(K, D))
    logs = 0.3 * rng.normal(size=(K, D))
    lower = np.tril(rng.normal(size=(K, D, D)), -1)
    factors = lower + np.array([np.diag(np.exp(log)) for log in logs])
    log_weights = np.log(rng.dirichlet(np.ones(K)))
    rows = rng.normal(size=(B, D))
    with jax.enable_x64(True):
        table = flatten({"mean": means, "log_diagonal": logs, "lower": lower}, 1)
    return means, factors, log_weights, rows, (np.asarray(table),)


def written_out(means, factors, rows):
    """Gradients (B, K, P) of log N in mean, log-diagonal and strict lower part, and of the weight.

    With w = L^-1 (x - m): d/dm = L^-T w; d/dL = L^-T (w w^T - I), of which the diagonal is scaled
    by that of L and the upper part does not exist.
    """
    gradients = np.zeros((rows.shape[0], K, D + D + D * D + 1))
    for k in range(K):
        inverse = np.linalg.inv(factors[k])
        for i, row in enumerate(rows):
            white = inverse @ (row - means[k])
            of_factor = inverse.T @ (np.outer(white, white) - np.eye(D))
            of_log = np.diag(of_factor) * np.diag(factors[k])
            strict = np.tril(of_factor, -1)
            gradients[i, k] = np.concatenate([inverse.T @ white, of_log, strict.ravel(), [1.0]])
    return gradients


def posterior(means, factors, log_weights, rows):
    log_joint = np.stack(
        [
            multivariate_normal(means[k], factors[k] @ factors[k].T).logpdf(rows) + log_weights[k]
            for k in range(K)
        ],
        axis=1,
    )
    return softmax(log_joint, axis=1)


def error(problem, chosen):
    *_, log_weights, rows, tables = problem
    with jax.enable_x64(True):
        network = ComponentMixture(FullGaussian(), K, D)
        return gradient_error(network, tables, log_weights, rows, chosen)


def test_squared_norm_is_that_of_the_definition(problem):
    means, factors, log_weights, rows, _ = problem
    chosen = np.random.default_rng(1).integers(K, size=B)
    gradients = written_out(means, factors, rows)
    p = posterior(means, factors, log_weights, rows)
    difference = np.einsum("ik,ikp->kp", np.eye(K)[chosen] - p, gradients) / B
    found = error(problem, chosen)
    assert found.squared_norm == pytest.approx(np.sum(difference**2), rel=1e-8)

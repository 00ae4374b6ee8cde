"""Baselines of the benches: their fits, their scores and their runs."""

import dataclasses
import math
import warnings

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from pickmix import GaussianMixture
from pickmix.data.rotated import generate
from pickmix_experiments import baselines
from pickmix_experiments.baselines import BASELINES, gaussians_of_clusters
from pickmix_experiments.bench_data import SETTINGS, BenchData, GaussianParameters, Setting
from pickmix_experiments.runner import perform
from pickmix_experiments.runs import BenchRun

TRUTH = generate(4, 2, 0.03, random_state=3)


def nothing(evaluations, parameters):
    pass


@pytest.fixture(scope="module")
def X():
    # Four clusters far apart, so that every baseline finds them.
    return TRUTH.sample(400, random_state=0)[0]


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_finds_clusters(name, X):
    baseline = BASELINES[name]
    if baseline.needs:
        pytest.importorskip(baseline.needs)
    with warnings.catch_warnings():
        if baseline.needs:
            warnings.simplefilter("ignore")
        fitted = baseline.fit(X, 4, 0, nothing)
    assert fitted.parameters.means.shape == (4, 2)
    best = TRUTH.score_samples(X).mean()
    assert abs(fitted.parameters.score_samples(X).mean() - best) < 0.1
    assert fitted.parameters.live_components(400) == 4
    # A pass at least, and all of one for those that take no batches.
    assert baseline.needs or fitted.evaluations >= 400
    if name == "em" or name.startswith("sklearn"):
        assert fitted.evaluations % (4 * 400) == 0


def test_plain_is_plain(X):
    ours = GaussianMixture(n_components=4, random_state=7).fit(X)
    fitted = BASELINES["pickmix"].fit(X, 4, 7, nothing)
    np.testing.assert_array_equal(fitted.parameters.means, ours.means_)
    assert fitted.evaluations == ours.n_component_evaluations_
    assert fitted.work_seconds > 0.0


def test_clusters_become_gaussians_shrunk_by_one_row():
    X = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0], [9.0, 9.0]])
    parameters = gaussians_of_clusters(X, np.array([0, 0, 0, 0, 1]), np.full((3, 2), 7.0))
    np.testing.assert_allclose(parameters.weights, [0.8, 0.2, 0.0])
    np.testing.assert_allclose(parameters.means, [[1, 1], [9, 9], [7, 7]])
    # The scatter of all clusters is 4 per column, over five rows.
    pooled = 0.8 * np.eye(2)
    expected = [(4 * np.eye(2) + pooled) / 5, pooled / 2, pooled]
    np.testing.assert_allclose(parameters.covariances, np.array(expected) + 1e-6 * np.eye(2))


def test_density_is_scipys_whatever_the_type_and_the_sum_of_weights():
    truth = generate(4, 3, 0.2, weights="power", random_state=0)
    X = np.random.default_rng(0).uniform(size=(30, 3))
    arrays = (3.0 * truth.weights, truth.means, truth.covariances)
    narrow = GaussianParameters(*(values.astype(np.float32) for values in arrays))
    parts = [
        np.log(w) + multivariate_normal(m, S).logpdf(X)
        for w, m, S in zip(truth.weights, truth.means, truth.covariances, strict=True)
    ]
    np.testing.assert_allclose(narrow.score_samples(X), logsumexp(parts, axis=0), rtol=1e-4)


def test_parameters_that_cannot_be_scored_are_named():
    with pytest.raises(ValueError, match="means must be finite; got nan"):
        GaussianParameters([1.0], [[np.nan]], [[[1.0]]])
    flat = GaussianParameters([1.0], [[0.0, 0.0]], [[[1.0, 1.0], [1.0, 1.0]]])
    with pytest.raises(ValueError, match="singular"):
        flat.score_samples(np.zeros((1, 2)))


def draw(seed):
    train, held_out = (TRUTH.sample(n, random_state=seed + n)[0] for n in (300, 200))
    return BenchData(train, held_out, 4, TRUTH.score_samples(held_out))


@pytest.fixture
def make(monkeypatch):
    """Make a run of a baseline, or of one with another fit, on tiny data."""

    def make(name="em", fit=None, data=draw):
        monkeypatch.setitem(SETTINGS, "tiny", Setting("tiny", "made up", 4, data))
        if fit is not None:
            monkeypatch.setitem(BASELINES, name, dataclasses.replace(BASELINES[name], fit=fit))
        return perform(BenchRun(name, 0, 0, setting="tiny"), threads=2)

    return make


def test_a_run_measures_its_curve_and_its_end(make, monkeypatch):
    monkeypatch.setattr(baselines, "CURVE_SPACING", 0.0)
    monkeypatch.setattr(baselines, "CURVE_ROWS", 50)
    history = make()
    series, facts = history.series, history.facts
    assert len(series["seconds"]) >= 3
    assert series["seconds"][0] > 0.0
    assert np.all(np.diff(series["seconds"]) >= 0)
    # The last record on the way is the end.
    assert series["validation"][-2] == pytest.approx(series["validation"][-1])
    assert series["evaluations"][-2] == series["evaluations"][-1]
    assert series["evaluations"][-1] % 4 == 0
    data = draw(0)
    scores = BASELINES["em"].fit(data.train, 4, 0, nothing).parameters.score_samples(data.held_out)
    assert facts["test"] == pytest.approx(scores.mean())
    assert series["validation"][-1] == pytest.approx(scores[:50].mean())
    assert facts["true_test"] == pytest.approx(data.true_log_density.mean())
    assert facts["true_validation"] == pytest.approx(data.true_log_density[:50].mean())
    assert (facts["outcome"], facts["threads"]) == ("converged", 2)
    assert (facts["n_rows"], facts["n_features"], facts["n_components"]) == (300, 2, 4)
    assert series["live_components"][-1] == 4
    assert facts["peak_megabytes"] >= 0.0
    assert facts["compile_seconds"] > 0.0
    assert "numba" in facts["versions"]


def test_points_of_curves_are_spaced(make, monkeypatch):
    # One without callbacks has an end only.
    history = make("sklearn-kmeans")
    assert len(history.series["seconds"]) == 1
    assert math.isfinite(history.facts["test"])
    monkeypatch.setattr(baselines, "CURVE_SPACING", 1e9)
    assert len(make().series["seconds"]) == 2


def test_errors_are_outcomes(make):
    def broken(X, n_components, seed, record):
        raise ZeroDivisionError("first line\nsecond line")

    original = BASELINES["em"].fit

    def flat(X, n_components, seed, record):
        fitted = original(X, n_components, seed, record)
        fitted.parameters.covariances[:] = 1.0
        return fitted

    def missing(seed):
        raise FileNotFoundError("rows.txt: nothing there")

    history = make(fit=broken)
    assert history.facts["outcome"] == "failed: ZeroDivisionError: first line"
    assert math.isnan(history.facts["test"])
    assert history.facts["n_rows"] == 300
    assert "singular" in make(fit=flat).facts["outcome"]
    assert make(data=missing).facts["outcome"] == "no data: rows.txt: nothing there"

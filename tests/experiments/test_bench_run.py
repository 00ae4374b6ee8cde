"""Rivals of a bench, measured on the way and at their end."""

import dataclasses
import math

import numpy as np
import pytest

from pickmix.data.rotated import generate
from pickmix.experiments.fits import bench_run
from pickmix.experiments.fits.perform import perform
from pickmix.experiments.rivals import RIVALS
from pickmix.experiments.runs import BenchRun
from pickmix.experiments.settings import BenchData, Setting


def draw(seed):
    truth = generate(4, 2, 0.03, random_state=3)
    train, held_out = (truth.sample(n, random_state=seed + n)[0] for n in (300, 200))
    return BenchData(train, held_out, 4, truth.score_samples(held_out))


def missing(seed):
    raise FileNotFoundError("rows.txt: nothing there")


@pytest.fixture
def make(monkeypatch):
    """Make a run of a rival, or of one with another fit, on tiny data."""

    def make(name="em", fit=None, data=draw):
        monkeypatch.setitem(bench_run.SETTINGS, "tiny", Setting("tiny", "made up", 4, data))
        if fit is not None:
            monkeypatch.setitem(RIVALS, name, dataclasses.replace(RIVALS[name], fit=fit))
        return perform(BenchRun(name, 0, 0, setting="tiny"), threads=2)

    return make


def test_a_run_measures_its_curve_and_its_end(make, monkeypatch):
    monkeypatch.setattr(bench_run, "CURVE_SPACING", 0.0)
    monkeypatch.setattr(bench_run, "CURVE_ROWS", 50)
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
    fitted = RIVALS["em"].fit(data.train, 4, 0, lambda *_: None)
    scores = fitted.score_samples(data.held_out)
    assert facts["test"] == pytest.approx(scores.mean())
    assert series["validation"][-1] == pytest.approx(scores[:50].mean())
    assert facts["true_test"] == pytest.approx(data.true_log_density.mean())
    assert facts["true_validation"] == pytest.approx(data.true_log_density[:50].mean())
    assert facts["outcome"] == "converged"
    assert (facts["n_rows"], facts["n_features"], facts["n_components"]) == (300, 2, 4)
    assert series["live_components"][-1] == 4
    assert facts["peak_megabytes"] >= 0.0
    assert facts["compile_seconds"] > 0.0
    assert "numba" in facts["versions"]
    assert "scikit-learn" in facts["versions"]
    assert facts["threads"] == 2


def test_rivals_without_callbacks_have_an_end_only(make):
    history = make("sklearn-kmeans")
    assert len(history.series["seconds"]) == 1
    assert math.isfinite(history.facts["test"])


def test_points_are_spaced(make, monkeypatch):
    monkeypatch.setattr(bench_run, "CURVE_SPACING", 1e9)
    assert len(make().series["seconds"]) == 2


def test_an_error_is_an_outcome(make):
    def fit(X, n_components, seed, record):
        raise ZeroDivisionError("first line\nsecond line")

    history = make(fit=fit)
    assert history.facts["outcome"] == "failed: ZeroDivisionError: first line"
    assert math.isnan(history.facts["test"])
    assert math.isnan(history.series["seconds"][-1])
    assert history.facts["n_rows"] == 300


def test_parameters_that_cannot_be_scored_are_a_failure(make):
    original = RIVALS["em"].fit

    def fit(X, n_components, seed, record):
        fitted = original(X, n_components, seed, record)
        fitted.parameters.covariances[:] = 1.0
        return fitted

    outcome = make(fit=fit).facts["outcome"]
    assert outcome.startswith("failed: ")
    assert "singular" in outcome


def test_missing_data_are_an_outcome(make):
    assert make(data=missing).facts["outcome"] == "no data: rows.txt: nothing there"

import dataclasses
import json
import math
import subprocess
import sys

import numpy as np
import pytest

from pickmix.data.rotated import generate
from pickmix.experiments import one_run
from pickmix.experiments.results import COLUMNS
from pickmix.experiments.rivals import RIVALS
from pickmix.experiments.settings import BenchData


class Tiny:
    name, n_components, dense, summary = "tiny", 4, True, "made up"

    def make(self, seed):
        truth = generate(4, 2, 0.03, random_state=3)
        train, held_out = (truth.sample(n, random_state=seed + n)[0] for n in (300, 200))
        return BenchData(train, held_out, 4, truth.score_samples(held_out))


def perform(rival, setting=None, **arguments):
    rows = []
    one_run.perform(setting or Tiny(), rival, 0, rows.append, **arguments)
    assert rows[-1]["kind"] == "end"
    for row in rows:
        assert set(row) <= set(COLUMNS)
    return [row for row in rows if row["kind"] == "curve"], rows[-1]


@pytest.fixture
def every_point(monkeypatch):
    monkeypatch.setattr(one_run, "CURVE_SPACING", 0.0)
    monkeypatch.setattr(one_run, "CURVE_ROWS", 50)


def test_a_run_measures_its_curve_and_its_end(every_point):
    curve, end = perform(RIVALS["em"])
    assert len(curve) >= 2
    seconds = [row["seconds"] for row in curve]
    assert np.all(np.diff(seconds) >= 0)
    assert 0.0 < seconds[-1] <= end["seconds"]
    assert curve[-1]["held_out_some"] == pytest.approx(end["held_out_some"])
    assert curve[-1]["evaluations_per_row"] == end["evaluations_per_row"]
    assert end["evaluations_per_row"] % 4 == 0
    fitted = RIVALS["em"].fit(Tiny().make(0).train, 4, 0, lambda *_: None)
    scores = fitted.score_samples(Tiny().make(0).held_out)
    assert end["held_out"] == pytest.approx(scores.mean())
    assert end["held_out_some"] == pytest.approx(scores[:50].mean())
    assert end["true_held_out"] == pytest.approx(Tiny().make(0).true_log_density.mean())
    assert end["outcome"] == "converged"
    assert (end["n_rows"], end["n_features"], end["n_components"]) == (300, 2, 4)
    assert end["live_components"] == 4
    assert end["peak_megabytes"] >= 0.0
    assert end["compile_seconds"] > 0.0
    assert "numba" in end["versions"]
    assert "scikit-learn" in end["versions"]
    assert end["cpu_count"] >= 1


def test_rivals_without_callbacks_have_an_end_only():
    curve, end = perform(RIVALS["sklearn-kmeans"])
    assert curve == []
    assert math.isfinite(end["held_out"])


def test_points_are_spaced(monkeypatch):
    monkeypatch.setattr(one_run, "CURVE_SPACING", 1e9)
    curve, _ = perform(RIVALS["em"])
    assert len(curve) == 1


def test_an_error_is_an_outcome():
    def fit(X, n_components, seed, record):
        raise ZeroDivisionError("first line\nsecond line")

    curve, end = perform(dataclasses.replace(RIVALS["em"], fit=fit))
    assert curve == []
    assert end["outcome"] == "failed: ZeroDivisionError: first line"
    assert "held_out" not in end
    assert end["n_rows"] == 300


def test_parameters_that_cannot_be_scored_are_a_failure():
    def fit(X, n_components, seed, record):
        fitted = RIVALS["em"].fit(X, n_components, seed, record)
        fitted.parameters.covariances[:] = 1.0
        return fitted

    _, end = perform(dataclasses.replace(RIVALS["em"], fit=fit))
    assert end["outcome"].startswith("failed: ")
    assert "singular" in end["outcome"]


def test_missing_data_are_an_outcome():
    class Missing(Tiny):
        def make(self, seed):
            raise FileNotFoundError("rows.txt: nothing there")

    _, end = perform(RIVALS["em"], Missing())
    assert end["outcome"] == "no data: rows.txt: nothing there"


def test_the_process_leaves_with_the_one_that_started_it():
    program = (
        "from pickmix.experiments.one_run import _leave_with_parent; import time\n"
        "_leave_with_parent(); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    process.communicate(timeout=50)  # closes its standard input
    assert process.returncode == 1


def test_as_a_process_it_writes_lines_of_json(tmp_path, monkeypatch):
    monkeypatch.setitem(one_run.SETTINGS, "tiny", Tiny())
    # Both change the process that runs the tests.
    monkeypatch.setattr(one_run, "_leave_with_parent", lambda: None)
    monkeypatch.setattr(one_run, "_offer_to_be_killed", lambda: None)
    monkeypatch.setattr(sys, "argv", ["one_run"])
    out = tmp_path / "rows.jsonl"
    one_run.main(["tiny", "em", "0", str(out), "600"])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [rows[0]["kind"], rows[-1]["kind"]] == ["facts", "end"]

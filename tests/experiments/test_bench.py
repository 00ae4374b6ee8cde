import json
import sys
from dataclasses import replace

import pytest

from pickmix.experiments import bench
from pickmix.experiments.bench import plan, run_all, run_apart
from pickmix.experiments.results import Results, Run
from pickmix.experiments.rivals import RIVALS, find_rivals
from pickmix.experiments.settings import find_settings

RUN = Run("small", "em", 0)
FACTS = {"kind": "facts", "n_rows": 8000}
CURVE = {"kind": "curve", "seconds": 0.5, "held_out_some": -1.0}
END = {"kind": "end", "seconds": 1.0, "held_out": -0.5, "outcome": "converged"}


@pytest.fixture
def program(monkeypatch):
    """Let a program of our own take the place of a run; `out` is where its rows go."""

    def put(text, *rows):
        lines = "".join(json.dumps(row) + "\n" for row in rows)

        def command(run, out, max_seconds):
            start = f"out = {str(out)!r}; open(out, 'w').write({lines!r})\n"
            return [sys.executable, "-c", start + text]

        monkeypatch.setattr(bench, "_command", command)

    return put


def test_dense_rivals_are_left_out_where_there_are_too_many_components():
    rivals = find_rivals(["em", "pickmix"])
    runs = plan(find_settings(["small", "k10000"]), rivals, 2)
    assert runs == [
        ("small", "pickmix", 0),
        ("small", "em", 0),
        ("small", "pickmix", 1),
        ("small", "em", 1),
        ("k10000", "pickmix", 0),
        ("k10000", "pickmix", 1),
    ]
    with pytest.raises(ValueError, match="n_seeds must be an integer >= 1; got 0"):
        plan([], [], 0)


def test_rows_of_a_process_come_back(program):
    program("", FACTS, CURVE, END)
    assert run_apart(RUN) == [CURVE, END]


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGALRM)", "timed out after 5 s"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "killed by SIGKILL (out of memory?)",
        ),
        ("raise SystemError('broken')", "failed: SystemError: broken"),
        ("import sys; sys.exit(3)", "failed: exit code 3"),
        ('open(out, \'a\').write(\'{"kind": "end", "sec\')', "failed: exit code 0"),
    ],
)
def test_a_process_that_dies_leaves_its_curve_and_a_name(program, text, outcome):
    program(text, FACTS, CURVE)
    rows = run_apart(RUN, 5.0)
    assert rows == [CURVE, {"kind": "end", "n_rows": 8000, "outcome": outcome}]


def test_the_bench_goes_on_where_it_stopped(tmp_path, monkeypatch):
    made, reported = [], []

    def run_apart(run, max_seconds):
        made.append(run)
        if len(made) == 2:
            raise KeyboardInterrupt
        return [CURVE, END]

    monkeypatch.setattr(bench, "run_apart", run_apart)
    runs = [RUN, Run("small", "em", 1), Run("small", "pickmix", 0)]
    path = tmp_path / "r.csv"

    def report(number, total, run, end, there):
        reported.append((number, total, run, end["outcome"], there))

    with pytest.raises(KeyboardInterrupt):
        run_all(runs, Results(path), None, report)
    run_all(runs, Results(path), None, report)
    assert made == [runs[0], runs[1], runs[1], runs[2]]
    assert reported == [
        (1, 3, runs[0], "converged", False),
        (1, 3, runs[0], "converged", True),
        (2, 3, runs[1], "converged", False),
        (3, 3, runs[2], "converged", False),
    ]
    assert len(Results(path).rows) == 6


def test_a_library_that_is_missing_is_a_row(tmp_path, monkeypatch):
    monkeypatch.setitem(RIVALS, "gmmx", replace(RIVALS["gmmx"], needs="no_such_library"))
    results = Results(tmp_path / "r.csv")
    run_all([Run("small", "gmmx", 0)], results, None, lambda *_: None)
    assert results.rows[0]["outcome"] == "not installed: no_such_library"


def test_a_real_run_from_end_to_end():
    *curve, end = run_apart(RUN, 300.0)
    assert end["outcome"] == "converged"
    assert end["held_out"] > end["true_held_out"] - 0.3
    assert all(row["kind"] == "curve" for row in curve)
    assert len(curve) >= 2

"""`pickmix reproduce`: what it prints, writes and refuses; its runs and store. No fits."""

import contextlib
import gzip
import json
from concurrent.futures import Executor, Future
from dataclasses import fields, replace

import pandas as pd
import pytest
from click.testing import CliRunner
from made_rows import gaussian, row

from pickmix_experiments import drawing, reproduce
from pickmix_experiments.catalogue import EXPERIMENTS, PAPER, QUICK, seconds
from pickmix_experiments.runs import DeepRun, GaussianRun, flow
from pickmix_experiments.store import Store, frame_of


def run(*arguments):
    return CliRunner().invoke(reproduce.reproduce, [*map(str, arguments)])


class MadeUp(Executor):
    """Makes runs up instead of fitting, and remembers which were asked for."""

    def __init__(self):
        self.runs, self.results = [], {}

    def submit(self, function, run, limit_seconds):
        self.runs.append((run, limit_seconds))
        future = Future()
        known = {"true_log_likelihood": -19.5, "test": -1.0, "best_validation": -1.0}
        result = self.results.get(run.algorithm, known)
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(row(run, **result))
        return future


@pytest.fixture
def made(monkeypatch):
    """Fits and pictures take seconds each, so that neither is made."""
    executor = MadeUp()

    @contextlib.contextmanager
    def workers(where):
        executor.where = where
        yield executor, None

    def draw(figure, rows, path):
        if not any(len(panel.frame(rows)) for panel in figure.panels):
            return None
        for kind in (".png", ".pdf"):
            path.with_suffix(kind).write_text("picture")
        return path

    monkeypatch.setattr(reproduce, "local_workers", workers)
    monkeypatch.setattr(reproduce, "cluster_workers", workers)
    monkeypatch.setattr(drawing, "draw", draw)
    return executor


def test_a_figure_is_made_drawn_and_not_made_again(tmp_path, made):
    result = run("figure-2", "--repetitions", 2, "--jobs", 3, "--out", tmp_path / "r")
    assert result.exit_code == 0, result.output
    assert (len(made.runs), made.where) == (18, 3)
    assert "18 runs, 0 of them there from before" in result.output
    figure = {f"figure-2.{kind}" for kind in ("png", "pdf", "md", "csv")}
    assert {path.name for path in (tmp_path / "r").iterdir()} == {"results.jsonl", *figure}
    made.runs.clear()
    (tmp_path / "r" / "figure-2.png").unlink()
    assert (
        run("figure-2", "--repetitions", 2, "--out", tmp_path / "r", "--draw-only").exit_code == 0
    )
    assert not made.runs
    assert (tmp_path / "r" / "figure-2.png").exists()
    result = run("figure-2", "figure-annealing", "--repetitions", 1, "--out", tmp_path / "r")
    # The annealed half of the one is the other.
    assert [one.annealing for one, _ in made.runs] == [False] * 8


def test_all_quick_touches_every_name(tmp_path, made):
    listed = run("--list").output
    result = run("--all", "--quick", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    for name in EXPERIMENTS:
        assert f"  {name} " in listed
        assert f"{name}: wrote {name}." in result.output
        assert (tmp_path / f"{name}.md").stat().st_size > 0


def test_steps_limits_and_sets_reach_the_runs(tmp_path, made):
    arguments = ("--steps", 0.25, "--max-seconds", 7, "--set", "iris", "--repetitions", 1)
    arguments += ("--cluster", "tcp://somewhere:8786")
    result = run("table-fixed", *arguments, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert made.where == "tcp://somewhere:8786"
    assert {limit for _, limit in made.runs} == {7.0}
    # Estimators as they come know no steps.
    assert {one.T for one, _ in made.runs} == {0, 5_000}
    assert {one.dataset for one, _ in made.runs} == {"iris"}


def test_a_budget_cuts_steps(tmp_path, made):
    result = run("figure-2", "--budget", 30, "--repetitions", 1, "--out", tmp_path)
    assert "of the paper's steps, about" in result.output
    assert {one.T for one, _ in made.runs if one.algorithm == "SAEM"} < set(range(20_000))
    for name in EXPERIMENTS:
        assert all(0.0 < seconds(run) < 1e9 for run in EXPERIMENTS[name].runs(PAPER))


def test_data_that_are_not_there_are_named_and_tried_again(tmp_path, made):
    made.results["SGD"] = {"outcome": "no data: wine: found its files nowhere."}
    arguments = ("table-fixed", "--quick", "--out", tmp_path)
    assert run(*arguments).output.count("no data: wine: found its files nowhere.") == 1
    made.results.clear()
    made.runs.clear()
    run(*arguments)
    assert {one.algorithm for one, _ in made.runs} == {"SGD"}


def test_ctrl_c_keeps_what_was_made(tmp_path, made):
    made.results["TSAEM"] = KeyboardInterrupt()
    result = run("figure-2", "--repetitions", 1, "--out", tmp_path)
    assert result.exit_code == 130
    assert "the same command resumes from here" in result.output
    assert len(Store(tmp_path / "results.jsonl").rows) < 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected names or --all"),
        (("figure-2", "--all"), "expected names or --all"),
        (("figure-9",), "'figure-9' is not one of 'figure-1'"),
        (("figure-2", "--quick", "--budget", 5), "exclude each other"),
        (("figure-2", "--repetitions", 0), "0 is not in the range"),
        (("table-fixed", "--set", "irises"), "'irises' is not one of"),
        (("figure-2", "--draw-only"), "--draw-only: expected results in"),
    ],
)
def test_mistakes_are_named(tmp_path, arguments, message):
    result = run(*arguments, "--out", tmp_path / "r")
    assert result.exit_code != 0
    assert message in result.output
    assert not (tmp_path / "r").exists()


def test_what_an_algorithm_does_not_look_at_makes_no_second_run():
    assert gaussian("EM", B=50) == gaussian("EM", B=200, M=8)
    assert gaussian("SAEM", B=50) != gaussian("SAEM")
    assert gaussian("pickmix", annealing=True) == gaussian("pickmix", annealing=False)
    assert flow("iris", "SGD", 8).shortened(0.25).T == 5_000


@pytest.mark.parametrize("run", [GaussianRun("SSAEM", 10, 0), DeepRun("SGD", 10, 0)])
def test_every_setting_changes_the_key(run):
    keys = {replace(run, **{field.name: 77}).key for field in fields(run)} | {run.key}
    assert len(keys) == len(fields(run)) + 1


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_runs_are_distinct_and_a_seed_after_the_other(name):
    small, whole = (EXPERIMENTS[name].runs(scale) for scale in (QUICK, PAPER))
    assert 0 < len(small) < len(whole) == len(set(whole))
    seeds = [run.seed for run in whole]
    assert seeds == sorted(seeds)


def test_what_goes_in_comes_out(tmp_path):
    path = tmp_path / "results.jsonl"
    store, first = Store(path), row(gaussian(), true_log_likelihood=-19.0, cpu="good")
    store.add(first)
    store.add(row(gaussian(seed=1), "failed: nothing", values=(), seconds=()))
    with path.open("a") as file:
        file.write('{"spec": "cut sh')
    again = Store(path)
    assert again.rows[gaussian().key] == first
    again.add(row(gaussian(seed=2)))
    assert len(Store(path).rows) == 3
    lines = pd.DataFrame([json.loads(x) for x in path.read_text().splitlines() if x[-1:] == "}"])
    assert lines[["algorithm", "D", "K"]].drop_duplicates().to_numpy().tolist() == [["EM", 10, 100]]
    (one, _) = frame_of(again.rows).itertuples()
    assert (one.t95, one.t95_seconds, one.final, one.seconds) == (-20.8, 1.0, -20.0, 10.0)
    assert (one.error, one.cpu, one.cut) == (pytest.approx(1.8), "good", False)
    assert frame_of(again.rows, every=True)["failed"].tolist() == [False, True, False]
    # A compressed file is read as well, and what is new is beside it.
    (tmp_path / "results.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert len(Store(path).rows) == 3


@pytest.mark.parametrize(
    ("outcome", "limit", "new_limit", "expected"),
    [
        ("max_steps", 5.0, 9.0, True),
        ("max_time", 5.0, 5.0, True),
        ("max_time", 5.0, 9.0, False),
        ("max_time", 5.0, None, False),
        ("failed: nothing", None, 9.0, True),
        ("not installed: gmmx", None, None, False),
    ],
)
def test_a_run_that_may_now_end_otherwise_is_made_again(
    tmp_path, outcome, limit, new_limit, expected
):
    store = Store(tmp_path / "results.jsonl")
    store.add(row(gaussian(), outcome, **({"limit_seconds": limit} if limit else {})))
    assert store.has(gaussian(), new_limit) is expected

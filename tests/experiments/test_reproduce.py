"""`pickmix reproduce`: what it prints, writes and refuses. Fits are made up."""

import contextlib
from concurrent.futures import Executor, Future

import pytest
from click.testing import CliRunner
from made_histories import history

from pickmix_experiments import drawing, reproduce
from pickmix_experiments.catalogue import EXPERIMENTS
from pickmix_experiments.runner import Workers
from pickmix_experiments.store import Store


def run(*arguments):
    return CliRunner().invoke(reproduce.reproduce, [*map(str, arguments)])


class MadeUp(Executor):
    """Makes runs up instead of fitting, and remembers which were asked for."""

    def __init__(self):
        self.runs = []
        self.results = {}

    def submit(self, function, run, limit_seconds):
        self.runs.append((run, limit_seconds))
        future = Future()
        known = {"true_log_likelihood": -0.5, "test": -1.0, "best_validation": -1.0}
        result = self.results.get(run.algorithm, known)
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(history(run, **result))
        return future


@pytest.fixture
def made(monkeypatch):
    executor = MadeUp()

    @contextlib.contextmanager
    def workers(where):
        executor.where = where
        yield Workers(executor, 2, None)

    monkeypatch.setattr(reproduce, "local_workers", workers)
    monkeypatch.setattr(reproduce, "cluster_workers", workers)
    return executor


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures take a second each."""

    def draw(figure, histories, path):
        for kind in (".png", ".pdf"):
            path.with_suffix(kind).write_text("picture")
        return path

    monkeypatch.setattr(drawing, "draw", draw)


def test_list_names_everything():
    result = run("--list")
    assert result.exit_code == 0
    for name in EXPERIMENTS:
        assert f"  {name} " in result.output


@pytest.mark.usefixtures("undrawn")
def test_a_figure_is_made_and_drawn(tmp_path, made):
    result = run("figure-2", "--repetitions", 2, "--jobs", 3, "--out", tmp_path / "r")
    assert result.exit_code == 0, result.output
    assert len(made.runs) == 18
    assert made.where == 3
    assert {limit for _, limit in made.runs} == {None}
    assert "18 runs, 0 of them there from before" in result.output
    names = {path.name for path in (tmp_path / "r").iterdir()}
    figure = {f"figure-2.{kind}" for kind in ("png", "pdf", "md", "csv")}
    assert names == {"results.jsonl", *figure}


@pytest.mark.usefixtures("undrawn")
def test_what_is_there_is_not_made_again(tmp_path, made):
    run("figure-2", "--repetitions", 1, "--out", tmp_path)
    made.runs.clear()
    result = run("figure-2", "figure-annealing", "--repetitions", 1, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    # The annealed half of the one is the other.
    assert len(made.runs) == 8
    assert all(not one.annealing for one, _ in made.runs)


@pytest.mark.usefixtures("undrawn")
def test_all_quick_touches_every_name(tmp_path, made):
    result = run("--all", "--quick", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    for name in EXPERIMENTS:
        assert f"{name}: wrote {name}." in result.output
        suffixes = (".png", ".pdf") if name.startswith("figure") else (".md", ".csv")
        for suffix in suffixes:
            assert (tmp_path / f"{name}{suffix}").stat().st_size > 0


@pytest.mark.usefixtures("undrawn")
def test_draw_only_fits_nothing(tmp_path, made):
    run("figure-proposals", "--repetitions", 1, "--out", tmp_path)
    made.runs.clear()
    (tmp_path / "figure-proposals.png").unlink()
    result = run("figure-proposals", "--repetitions", 1, "--out", tmp_path, "--draw-only")
    assert result.exit_code == 0, result.output
    assert made.runs == []
    assert (tmp_path / "figure-proposals.png").is_file()


@pytest.mark.usefixtures("undrawn")
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


@pytest.mark.usefixtures("undrawn")
def test_a_budget_cuts_steps(tmp_path, made):
    result = run("figure-2", "--budget", 30, "--repetitions", 1, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "of the paper's steps, about" in result.output
    assert {one.T for one, _ in made.runs if one.algorithm == "SAEM"} < set(range(20_000))


@pytest.mark.usefixtures("undrawn")
def test_data_that_are_not_there_are_named_and_tried_again(tmp_path, made):
    made.results["SGD"] = {"outcome": "no data: wine: found its files nowhere."}
    arguments = ("table-fixed", "--quick", "--out", tmp_path)
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert result.output.count("no data: wine: found its files nowhere.") == 1
    made.results.clear()
    made.runs.clear()
    run(*arguments)
    assert {one.algorithm for one, _ in made.runs} == {"SGD"}


@pytest.mark.usefixtures("undrawn")
def test_ctrl_c_keeps_what_was_made(tmp_path, made):
    made.results["TSAEM"] = KeyboardInterrupt()
    result = run("figure-2", "--repetitions", 1, "--out", tmp_path)
    assert result.exit_code == 130
    assert "the same command resumes from here" in result.output
    assert 0 < len(Store(tmp_path / "results.jsonl").histories()) < 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected names or --all"),
        (("figure-2", "--all"), "expected names or --all"),
        (("figure-9",), "'figure-9' is not one of 'figure-1'"),
        (("figure-2", "--quick", "--budget", 5), "exclude each other"),
        (("figure-2", "--steps", 0.5, "--budget", 5), "exclude each other"),
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

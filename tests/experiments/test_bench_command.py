"""`pickmix bench`: what it prints, writes and refuses. Most fits are made up."""

from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from made_histories import bench as made_up

from pickmix_experiments import bench, uci
from pickmix_experiments.baselines import BASELINES
from pickmix_experiments.bench_data import SETTINGS, TABLES
from pickmix_experiments.runs import BenchRun
from pickmix_experiments.store import Store

QUICK = ("sklearn-kmeans-one-thread", "pickmix", "em", "tsaem")
DEFAULTS = ("sklearn-kmeans-one-thread", "pickmix", "em")


def run(*arguments):
    return CliRunner().invoke(bench.bench, [*map(str, arguments)])


@pytest.fixture
def made(monkeypatch):
    """Runs in the order in which they were made, each with its limit; none is fitted."""
    runs = []

    def perform(worker, run, max_seconds):
        runs.append((run.setting, run.algorithm, run.seed, max_seconds))
        test = -1.0 if run.algorithm == "pickmix" else -1.5
        return made_up(run.setting, run.algorithm, run.seed, test, seconds=2.0)

    monkeypatch.setattr(bench.Worker, "__init__", lambda worker: None)
    monkeypatch.setattr(bench.Worker, "__exit__", lambda *arguments: None)
    monkeypatch.setattr(bench.Worker, "perform", perform)
    return runs


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Data with one table of 240 rows, of which 180 are fitted."""
    data = tmp_path / "data"
    (data / "tables").mkdir(parents=True)
    centres = np.random.default_rng(0).normal(size=(3, 2))
    rows = np.repeat(centres, 80, axis=0) + np.random.default_rng(1).normal(0, 0.1, (240, 2))
    np.savez(data / "tables" / "skin.npz", X=rows.astype(np.float32))
    monkeypatch.setenv("PICKMIX_DATA", str(data))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "scikit-learn"))
    monkeypatch.setattr(uci, "_BASE_ADDRESS", "file:///nowhere")
    return tmp_path / "out"


@pytest.mark.parametrize(("verb", "names"), [("gaussian", SETTINGS), ("tables", TABLES)])
def test_help_and_lists(verb, names):
    text = run("--help").output
    assert "gaussian  mixtures of Gaussians" in text
    text = run(verb, "--help").output
    options = ("--rival", "--seeds", "--max-seconds", "--out", "--quick", "--draw-only", "--list")
    for option in (*options, "--setting" if verb == "gaussian" else "--components"):
        assert option in text
    result = run(verb, "--list")
    assert result.exit_code == 0
    for name in (*names, *BASELINES):
        assert f"\n  {name} " in result.output


def test_quick_is_one_small_setting_and_one_seed(tmp_path, made):
    result = run("gaussian", "--quick", "--out", tmp_path / "b")
    assert result.exit_code == 0, result.output
    assert made == [("small", name, 0, 3600.0) for name in QUICK]
    files = {file.name for file in (tmp_path / "b").iterdir()}
    assert files == {"gaussian.jsonl", "gaussian.md", "gaussian-small.png"}
    assert "[2/4] small, pickmix, seed 0: converged, -1.0000 held out in 2.00 s" in result.output
    assert "| pickmix | -1.000 |" in (tmp_path / "b" / "gaussian.md").read_text()


def test_choices_reach_the_runs_and_nothing_is_repeated(tmp_path, made):
    choice = ["--setting", "k10000", "--setting", "small", "--rival", "em", "--rival", "pickmix"]
    choice = ["gaussian", "--quick", *choice, "--seeds", 2, "--max-seconds", 7, "--out", tmp_path]
    assert run(*choice).exit_code == 0
    # Dense ones are left out where there are too many components.
    assert made == [
        *(("small", name, seed, 7.0) for seed in (0, 1) for name in ("pickmix", "em")),
        *(("k10000", "pickmix", seed, 7.0) for seed in (0, 1)),
    ]
    assert run(*choice).output.count("(from before)") == len(made) == 6


def test_all_settings_and_baselines_by_default(tmp_path, made, monkeypatch):
    monkeypatch.setattr(bench, "write_gaussian", lambda store: None)
    run("gaussian", "--seeds", 1, "--out", tmp_path)
    assert {row[0] for row in made} == set(SETTINGS)
    histories = Store(tmp_path / "gaussian.jsonl").histories().values()
    assert {history.run.algorithm for history in histories} == set(BASELINES)


def test_a_library_that_is_missing_is_a_result_that_is_tried_again(tmp_path, made, monkeypatch):
    gmmx = BASELINES["gmmx"]
    monkeypatch.setitem(BASELINES, "gmmx", replace(gmmx, needs="no_such_library"))
    choice = ["gaussian", "--quick", "--rival", "gmmx", "--out", tmp_path]
    assert "seed 0: not installed: no_such_library" in run(*choice).output
    assert "not installed: no_such_library" in (tmp_path / "gaussian.md").read_text()
    monkeypatch.setitem(BASELINES, "gmmx", replace(gmmx, needs=None))
    assert "seed 0: converged" in run(*choice).output


@pytest.mark.parametrize("verb", ["gaussian", "tables"])
def test_draw_only_fits_nothing(verb, tmp_path, made):
    run(verb, "--quick", "--out", tmp_path)
    made.clear()
    (picture,) = tmp_path.glob("*.png")
    picture.unlink()
    before = (tmp_path / f"{verb}.jsonl").read_bytes()
    assert run(verb, "--draw-only", "--out", tmp_path).exit_code == 0
    assert made == []
    assert picture.exists()
    assert (tmp_path / f"{verb}.jsonl").read_bytes() == before


def test_an_interrupt_keeps_the_finished_runs(tmp_path, made, monkeypatch):
    whole = bench.Worker.perform

    def perform(worker, run, max_seconds):
        if run.algorithm == "em":
            raise KeyboardInterrupt
        return whole(worker, run, max_seconds)

    monkeypatch.setattr(bench.Worker, "perform", perform)
    result = run("gaussian", "--quick", "--out", tmp_path)
    assert result.exit_code == 130
    assert "the same command resumes from here" in result.output
    assert len(Store(tmp_path / "gaussian.jsonl").histories()) == 2
    assert (tmp_path / "gaussian.md").exists()


def test_a_real_run_from_end_to_end(folder):
    choice = ("--table", "skin", "--table", "bike", "--rival", "em", "--out", folder)
    result = run("tables", "--quick", *choice)
    assert result.exit_code == 0, result.output
    assert "missing: bike: expected tables/bike.npz" in result.output
    (history,) = Store(folder / "tables.jsonl").histories().values()
    assert history.run == BenchRun("em", 0, 0, setting="skin-k8")
    facts, series = history.facts, history.series
    assert (facts["n_rows"], facts["n_features"], facts["n_components"]) == (180, 2, 8)
    assert facts["outcome"] in ("converged", "max_iter")
    assert np.isfinite([facts["test"], facts["peak_megabytes"], series["seconds"][-1]]).all()
    page = (folder / "tables.md").read_text()
    assert "| skin | 8 | 180 | 2 |" in page
    assert "- bike: expected tables/bike.npz" in page


def test_quick_is_three_small_tables_and_one_seed(folder, made):
    result = run("tables", "--quick", "--out", folder)
    assert result.exit_code == 0, result.output
    tables = ("sklearn-iris-k8", "sklearn-wine-k8", "sklearn-diabetes-k8")
    assert made == [(table, name, 0, 3600.0) for table in tables for name in DEFAULTS]
    assert {file.name for file in folder.iterdir()} == {"tables.jsonl", "tables.md", "tables.png"}
    page = (folder / "tables.md").read_text()
    assert "| pickmix | scikit-learn | all | 3 | 3 | 0 | 0 | +0.500 | 1.00 |" in page


def test_choices_of_tables(folder, made):
    choice = ["--table", "skin", "--components", 8, "--components", 40, "--components", 50]
    choice += ["--rival", "tsaem", "--seeds", 2, "--max-seconds", 7, "--out", folder]
    result = run("tables", *choice)
    assert result.exit_code == 0, result.output
    assert made == [(f"skin-k{K}", "tsaem", seed, 7.0) for K in (8, 40) for seed in (0, 1)]
    assert "left out, with fewer than 4 K rows to fit: skin K = 50" in result.output
    made.clear()
    result = run("tables", "--seeds", 1, "--out", folder)
    tables = {"skin": 2, "iris": 1, "wine": 2, "breast-cancer": 2, "digits": 3, "diabetes": 2}
    assert len({row[0] for row in made}) == sum(tables.values())
    assert result.output.count("missing: ") == len(TABLES) - len(tables)
    assert "- sklearn-california-housing: " in (folder / "tables.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gaussian", "--setting", "mixsom"], "'mixsom' is not one of 'small', 'mixsim'"),
        (["gaussian", "--rival", "sklearn"], "'sklearn' is not one of 'sklearn-kmeans'"),
        (["gaussian", "--seeds", "0"], "0 is not in the range"),
        (["gaussian", "--max-seconds", "0"], "0.0 is not in the range"),
        (["gaussian", "--draw-only"], "--draw-only: expected results in"),
        (["gaussian", "--setting", "k10000", "--rival", "em"], "--rival: "),
        (["tables", "--table", "skim"], "'skim' is not one of 'shuttle', "),
        (["tables", "--components", "0"], "0 is not in the range"),
        (["tables", "--draw-only"], "--draw-only: expected results in"),
        (["tables", "--table", "bike"], "--table: expected a table that is there"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(folder, made, arguments, message):
    result = run(*arguments, "--out", folder)
    assert result.exit_code == 2
    assert message in result.output
    assert made == []
    assert not folder.exists()

"""`pickmix bench tables`: what it prints, writes and refuses."""

import numpy as np
import pytest
from click.testing import CliRunner

from pickmix.cli import main
from pickmix.data import uci
from pickmix.experiments import apart
from pickmix.experiments.real_tables import TABLES
from pickmix.experiments.rivals import RIVALS
from pickmix.experiments.runs import BenchRun
from pickmix.experiments.store import Store, make_history

DEFAULTS = ("sklearn-kmeans-one-thread", "pickmix", "em")


def run(*arguments):
    return CliRunner().invoke(main, ["bench", "tables", *map(str, arguments)])


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


@pytest.fixture
def made(monkeypatch):
    """Runs that were asked for, in the place of real ones."""
    asked = []

    def perform_apart(run, max_seconds):
        asked.append((run.setting, run.algorithm, run.seed, max_seconds))
        test = -1.0 if run.algorithm == "pickmix" else -1.5
        return make_history(run, [{"seconds": 2.0}], {"outcome": "converged", "test": test})

    monkeypatch.setattr(apart, "perform_apart", perform_apart)
    return asked


def test_help_is_a_page():
    text = run("--help").output
    for option in ("--table", "--components", "--rival", "--seeds", "--max-seconds", "--out"):
        assert option in text
    assert "pickmix bench tables --quick" in text
    assert "[8, 32, 128]" in text


def test_list_names_everything():
    result = run("--list")
    assert result.exit_code == 0
    for name in (*TABLES, *RIVALS):
        assert f"\n  {name} " in result.output


def test_a_real_run_from_end_to_end(folder):
    result = run("--quick", "--table", "skin", "--table", "bike", "--rival", "em", "--out", folder)
    assert result.exit_code == 0, result.output
    assert "missing: bike: expected tables/bike.npz" in result.output
    (history,) = Store(folder / "tables.csv").histories().values()
    assert history.run == BenchRun("em", 0, 0, setting="skin-k8")
    facts, series = history.facts, history.series
    assert (facts["n_rows"], facts["n_features"], facts["n_components"]) == (180, 2, 8)
    assert facts["outcome"] in ("converged", "max_iter")
    assert np.isfinite([facts["test"], facts["peak_megabytes"], series["seconds"][-1]]).all()
    assert series["evaluations"][-1] > 0
    page = (folder / "tables.md").read_text()
    assert "| skin | 8 | 180 | 2 |" in page
    assert "- bike: expected tables/bike.npz" in page


def test_quick_is_three_small_tables_and_one_seed(folder, made):
    result = run("--quick", "--out", folder)
    assert result.exit_code == 0, result.output
    tables = ("sklearn-iris-k8", "sklearn-wine-k8", "sklearn-diabetes-k8")
    assert made == [(table, rival, 0, 3600.0) for table in tables for rival in DEFAULTS]
    assert {file.name for file in folder.iterdir()} == {"tables.csv", "tables.md", "tables.png"}
    page = (folder / "tables.md").read_text()
    assert "| pickmix | scikit-learn | all | 3 | 3 | 0 | 0 | +0.500 | 1.00 |" in page


def test_choices_reach_the_runs_and_nothing_is_repeated(folder, made):
    choice = ["--table", "skin", "--components", 8, "--components", 40, "--components", 50]
    choice += ["--rival", "tsaem", "--seeds", 2, "--max-seconds", 7, "--out", folder]
    result = run(*choice)
    assert result.exit_code == 0, result.output
    assert made == [(f"skin-k{K}", "tsaem", seed, 7.0) for K in (8, 40) for seed in (0, 1)]
    assert "left out, with fewer than 4 K rows to fit: skin K = 50" in result.output
    assert run(*choice).output.count("(from before)") == 4
    assert len(made) == 4


def test_everything_that_is_there_by_default(folder, made):
    result = run("--seeds", 1, "--out", folder)
    assert result.exit_code == 0, result.output
    assert {row[0] for row in made} == {
        "skin-k8",
        "skin-k32",
        "sklearn-iris-k8",
        "sklearn-wine-k8",
        "sklearn-wine-k32",
        "sklearn-breast-cancer-k8",
        "sklearn-breast-cancer-k32",
        "sklearn-digits-k8",
        "sklearn-digits-k32",
        "sklearn-digits-k128",
        "sklearn-diabetes-k8",
        "sklearn-diabetes-k32",
    }
    assert result.output.count("missing: ") == len(TABLES) - 6
    assert "- sklearn-california-housing: " in (folder / "tables.md").read_text()


def test_draw_only_fits_nothing(folder, made):
    run("--quick", "--out", folder)
    made.clear()
    (folder / "tables.png").unlink()
    assert run("--draw-only", "--out", folder).exit_code == 0
    assert made == []
    assert (folder / "tables.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--table", "skim"], "'skim' is not one of 'shuttle', "),
        (["--rival", "sklearn"], "'sklearn' is not one of 'sklearn-kmeans'"),
        (["--components", "0"], "0 is not in the range"),
        (["--draw-only"], "--draw-only: expected results in"),
        (["--table", "bike"], "--table: expected a table that is there"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(folder, made, arguments, message):
    result = run(*arguments, "--out", folder)
    assert result.exit_code == 2
    assert message in result.output
    assert made == []
    assert not folder.exists()

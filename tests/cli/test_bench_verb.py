"""`pickmix bench`: what it prints, writes and refuses. Fits are made up."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

from pickmix.cli import main
from pickmix.experiments import apart
from pickmix.experiments.rivals import RIVALS
from pickmix.experiments.settings import SETTINGS
from pickmix.experiments.store import Store, make_history


def run(*arguments):
    return CliRunner().invoke(main, ["bench", *map(str, arguments)])


@pytest.fixture
def made(monkeypatch):
    """Runs that were asked for, each with a limit."""
    asked = []

    def perform_apart(run, max_seconds):
        asked.append((run.setting, run.algorithm, run.seed, max_seconds))
        record = {"seconds": 2.0, "evaluations": 10.0, "validation": -1.25}
        return make_history(run, [record], {"outcome": "converged", "test": -1.25})

    monkeypatch.setattr(apart, "perform_apart", perform_apart)
    return asked


def test_help_is_a_page():
    text = run("--help").output
    assert "pickmix bench gaussian --quick" in text
    assert "gaussian  mixtures of Gaussians" in text
    assert "tables    the same mixtures on real tables" in text
    text = run("gaussian", "--help").output
    for option in ("--setting", "--rival", "--seeds", "--max-seconds", "--out", "--quick"):
        assert option in text
    assert "--draw-only" in text
    assert "--list" in text
    assert "bench" in CliRunner().invoke(main, ["--help"]).output


def test_list_names_everything():
    result = run("gaussian", "--list")
    assert result.exit_code == 0
    for name in (*SETTINGS, *RIVALS):
        assert f"\n  {name} " in result.output


def test_quick_is_one_small_setting_and_one_seed(tmp_path, made):
    result = run("gaussian", "--quick", "--out", tmp_path / "b")
    assert result.exit_code == 0, result.output
    assert made == [
        ("small", name, 0, 3600.0)
        for name in ("sklearn-kmeans-one-thread", "pickmix", "em", "tsaem")
    ]
    assert {file.name for file in (tmp_path / "b").iterdir()} == {
        "gaussian.csv",
        "gaussian.md",
        "gaussian-small.png",
    }
    assert "[2/4] small, pickmix, seed 0: converged, -1.2500 held out in 2.00 s" in result.output
    assert "| pickmix | -1.250 |" in (tmp_path / "b" / "gaussian.md").read_text()


def test_choices_reach_the_runs_and_nothing_is_repeated(tmp_path, made):
    choice = ["--setting", "mixsim", "--rival", "em", "--rival", "pickmix", "--seeds", 2]
    choice = ["gaussian", *choice, "--max-seconds", 7, "--out", tmp_path]
    assert run(*choice).exit_code == 0
    assert made == [("mixsim", rival, seed, 7.0) for seed in (0, 1) for rival in ("pickmix", "em")]
    result = run(*choice)
    assert len(made) == 4
    assert result.output.count("(from before)") == 4


def test_explicit_choices_win_over_quick(tmp_path, made):
    run("gaussian", "--quick", "--rival", "em", "--seeds", 2, "--out", tmp_path)
    assert [row[:3] for row in made] == [("small", "em", 0), ("small", "em", 1)]


def test_all_settings_and_rivals_by_default(tmp_path, made, monkeypatch):
    monkeypatch.setattr("pickmix.cli.bench_command._deliver_gaussian", lambda results: None)
    run("gaussian", "--seeds", 1, "--out", tmp_path)
    assert {row[0] for row in made} == set(SETTINGS)
    dense = {name for name, rival in RIVALS.items() if rival.dense}
    assert dense.isdisjoint(row[1] for row in made if row[0] == "k10000")
    histories = Store(tmp_path / "gaussian.csv").histories().values()
    listed = {history.run.algorithm for history in histories}
    assert listed == set(RIVALS)


def test_dense_rivals_are_left_out_where_there_are_too_many_components(tmp_path, made):
    choice = ["--setting", "k10000", "--setting", "small", "--rival", "em", "--rival", "pickmix"]
    run("gaussian", *choice, "--seeds", 2, "--out", tmp_path)
    assert [row[:3] for row in made] == [
        *(("small", rival, seed) for seed in (0, 1) for rival in ("pickmix", "em")),
        *(("k10000", "pickmix", seed) for seed in (0, 1)),
    ]


def test_a_library_that_is_missing_is_a_result_that_is_tried_again(tmp_path, made, monkeypatch):
    monkeypatch.setitem(RIVALS, "gmmx", replace(RIVALS["gmmx"], needs="no_such_library"))
    choice = ["gaussian", "--quick", "--rival", "gmmx", "--out", tmp_path]
    assert "seed 0: not installed: no_such_library" in run(*choice).output
    assert "not installed: no_such_library" in (tmp_path / "gaussian.md").read_text()
    monkeypatch.setitem(RIVALS, "gmmx", replace(RIVALS["gmmx"], needs=None))
    assert "seed 0: converged" in run(*choice).output


def test_draw_only_fits_nothing(tmp_path, made):
    run("gaussian", "--quick", "--out", tmp_path)
    made.clear()
    (tmp_path / "gaussian-small.png").unlink()
    before = (tmp_path / "gaussian.csv").read_bytes()
    assert run("gaussian", "--draw-only", "--out", tmp_path).exit_code == 0
    assert made == []
    assert (tmp_path / "gaussian-small.png").exists()
    assert (tmp_path / "gaussian.csv").read_bytes() == before


def test_interrupt_keeps_what_there_is(tmp_path, made, monkeypatch):
    whole = apart.perform_apart

    def perform_apart(run, max_seconds):
        if run.algorithm == "em":
            raise KeyboardInterrupt
        return whole(run, max_seconds)

    monkeypatch.setattr(apart, "perform_apart", perform_apart)
    result = run("gaussian", "--quick", "--out", tmp_path)
    assert result.exit_code == 130
    assert "the same command resumes from here" in result.output
    assert len(Store(tmp_path / "gaussian.csv").histories()) == 2
    assert (tmp_path / "gaussian.md").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--setting", "mixsom"], "'mixsom' is not one of 'small', 'mixsim'"),
        (["--rival", "sklearn"], "'sklearn' is not one of 'sklearn-kmeans'"),
        (["--seeds", "0"], "0 is not in the range"),
        (["--max-seconds", "0"], "0.0 is not in the range"),
        (["--draw-only"], "--draw-only: expected results in"),
        (["--setting", "k10000", "--rival", "em"], "--rival: "),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(tmp_path, made, arguments, message):
    result = run("gaussian", *arguments, "--out", tmp_path / "b")
    assert result.exit_code == 2
    assert message in result.output
    assert made == []
    assert not (tmp_path / "b").exists()

"""`pickmix fit` of numbers: what it prints, saves, refuses, and does when it is interrupted."""

import json
import re
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import pytest
from commands import (
    QUICK,
    ctrl_c_after_step,
    error_of,
    nameless,
    run,
    run_well,
    same_model,
    summary_of,
)

import pickmix
from pickmix.cli import fit as fit_command
from pickmix.data.mixsim import generate
from pickmix.inputs.files import read_table, write_table
from pickmix.inputs.sources import RowSource


@pytest.fixture
def refused(monkeypatch):
    """Rows that a mixture of Gaussians was asked to fit, and did not."""
    rows = []

    def refuse(self, X):
        rows.append(X)
        raise ValueError("enough")

    monkeypatch.setattr(pickmix.GaussianMixture, "fit", refuse)
    return rows


class TestResults:
    def test_low_rank_covariances(self, tmp_path):
        np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(200, 5)))
        options = ["--covariance", "low_rank", "--rank", "2", "--axes", "columns"]
        run_well("fit", tmp_path / "rows.npy", *options, "--out", tmp_path / "model", *QUICK)
        model = pickmix.load(tmp_path / "model")
        assert model.rank == 2
        assert model.axes == "columns"
        assert model.loadings_.shape[2] <= 2

    def test_fit_saves_what_it_says_and_sums_it_up(self, tmp_path, places, X):
        out = tmp_path / "model"
        result = run_well("fit", places / "rows.npy", "--components", 3, "--out", out)
        files = {"arrays.npz", "model.json", "fit.png", "report.html", "trace.csv"}
        assert {file.name for file in out.iterdir()} == files
        model, lines = pickmix.load(out), summary_of(result.stdout)
        evaluated = model.n_component_evaluations_ / (300 * model.n_iter_)
        expected = {
            "rows": "300",
            "columns": "2",
            "components": "3",
            "log-likelihood per row": f"{model.score(X):.4f}  (all rows)",
            "steps": str(model.n_steps_),
            "components per row and pass": f"{evaluated:.1f}",
            "outcome": "converged",
        }
        assert {name: lines[name] for name in expected} == expected
        assert str(out) in result.stdout.splitlines()[-1]
        assert "log-likelihood=" in result.stderr
        trace, names = read_table(out / "trace.csv")
        assert names == list(model.trace_.dtype.names)
        np.testing.assert_array_equal(trace[:, 0], model.trace_["step"])

    def test_the_model_is_that_of_the_estimator(self, places, X):
        model = pickmix.load(places / "model")
        again = pickmix.GaussianMixture(3, max_iter=3, tol=0.0, random_state=0).fit(X)
        np.testing.assert_array_equal(model.means_, again.means_)
        assert model.feature_names_in_.tolist() == ["a", "b"]
        description = json.loads((places / "model" / "model.json").read_text())
        assert description["attributes"]["feature_names_in_"] == {"strings": ["a", "b"]}
        assert description["parameters"]["verbose"] == 0

    @pytest.mark.parametrize(
        ("data", "options"),
        [
            ("comma.csv", []),
            ("comma.csv", ["--decimal", ",", "--chunk-size", 70]),
            ("named.csv", ["--exclude", "1", "--columns", "a,b"]),
            ("part-*.csv", []),
            ("packed-*.csv.gz", []),
        ],
    )
    def test_other_files_of_the_same_rows(self, tmp_path, places, monkeypatch, data, options):
        (tmp_path / "temporary").mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
        options = [*QUICK, *options, "--quiet", "--out", tmp_path / "model"]
        assert run_well("fit", places / data, *options).output == ""
        assert same_model(tmp_path / "model", places / "model")
        assert list((tmp_path / "temporary").iterdir()) == []

    def test_columns(self, tmp_path, places):
        out = ["--out", tmp_path / "model"]
        run_well("fit", places / "rows.csv", *QUICK, "--columns", "b", *out)
        assert pickmix.load(tmp_path / "model").feature_names_in_.tolist() == ["b"]
        run_well("fit", places / "named.csv", "--id", "who", "--exclude", "b", *QUICK, *out)
        model = pickmix.load(tmp_path / "model")
        assert model.feature_names_in_.tolist() == ["a"]
        assert model.id_column_ == "who"

    def test_the_example_shows_the_truth(self, tmp_path, monkeypatch):
        monkeypatch.setattr(fit_command, "EXAMPLE_ROWS", 1000)
        monkeypatch.setattr(fit_command, "EXAMPLE_COMPONENTS", 5)
        result = run_well("fit", "--no-plot", "--no-report", "--out", tmp_path / "model")
        lines = summary_of(result.stdout)
        assert (lines["rows"], lines["components"]) == ("1,000", "5")
        mixture = generate(5, 2, 0.75, random_state=0)
        truth = mixture.score_samples(mixture.sample(1000, random_state=0)[0]).mean()
        assert lines["the true mixture's"] == f"{truth:.4f}"
        assert float(lines["log-likelihood per row"].split()[0]) == pytest.approx(truth, abs=0.3)

    def test_notes(self, tmp_path, places, monkeypatch):
        options = ["--components", 3, "--max-iter", 2, "--tol", 1e-9, "--no-report", "--quiet"]
        options += ["--out", tmp_path / "model"]
        (line,) = run_well("fit", places / "rows.csv", "--no-plot", *options).stderr.splitlines()
        assert line.startswith("note: max_iter=2 passes were too few to see")
        monkeypatch.setattr(fit_command.importlib.util, "find_spec", lambda name: None)
        result = run_well("fit", places / "rows.csv", *options)
        assert "pip install pickmix[plot]" in result.stderr
        assert not (tmp_path / "model" / "fit.png").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["none.csv"], "none.csv: expected a file, found nothing there"),
        (
            ["words.csv", "--model", "gaussian"],
            "column 'b', got 'x' in line 2; leave that column out with --columns, or use --model "
            "table, which takes text, dates and missing values",
        ),
        (["rows.xlsx"], "expected a file ending in"),
        (["infinite.csv"], "infinite.csv: expected finite numbers, got inf in row 2 of column 'b'"),
        (["infinite.csv", "--chunk-size", 9], "got inf in infinite.csv, row 2, column 'b'"),
        (["rows.csv", "--components", "301"], "n_components must be at most"),
        (["rows.csv", "--tol", "-1"], "tol must be a finite number >= 0"),
        (["rows.csv", "--out", "rows.csv/x"], "rows.csv"),
        (["rows.csv", "--columns", "z"], "no column 'z'; there are a, b or 0 to 1"),
        (["rows.csv", "--batch-size", "some"], "expected auto|all|integer, got 'some'"),
        (["rows.csv", "--step-size", "some"], "expected auto|paper|number, got 'some'"),
        (["rows.csv", "--checkpoint-every", 5], "Error: --checkpoint-every needs --checkpoint"),
        (["named.csv", "--exclude", "whom"], "no column 'whom', but 'who'; there are b, who, a or"),
        (["named.csv", "--exclude", '"a,b"'], "no column 'a,b'"),
        (["named.csv", "--id", "Who"], "but 'who'; there are b, who, a or 0 to 2 (--id)"),
        (["named.csv", "--exclude", "a,b", "--id", "who"], "--exclude and --id leave no column"),
        (["none-*.csv"], "no file matches"),
        (["part-*.csv", "--columns", "z"], "no column 'z'"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path, places, monkeypatch, options, message):
    monkeypatch.chdir(places)
    (places / "infinite.csv").write_text("a,b\n1,2\n3,inf\n")
    (places / "words.csv").write_text("a,b\n1,x\n")
    before = sorted(places.rglob("*"))
    assert message in error_of("fit", "--out", tmp_path / "model", *options)
    assert sorted(places.rglob("*")) == before
    assert not (tmp_path / "model").exists()


class TestRowsInChunks:
    def test_a_folder_of_parquet_files(self, tmp_path, places, X):
        (tmp_path / "parts").mkdir()
        for number, start in enumerate((0, 150)):
            part = X[start : start + 150]
            columns = {"b": part[:, 1], "other": np.ones(150), "a": part[:, 0]}
            write_table(tmp_path / "parts" / f"{number}.parquet", columns)
        options = [*QUICK, "--columns", "a,b", "--out", tmp_path / "model"]
        result = run_well("fit", tmp_path / "parts", *options)
        assert same_model(tmp_path / "model", places / "model")
        assert "to 300 rows of 2 columns by mhsaem: " in result.stdout.splitlines()[0]
        # Every row of so few is looked at.
        assert "(all rows)" in result.stdout
        assert "components per row and pass" not in result.stdout
        straight = run_well("score", places / "model", places / "rows.csv").stdout
        # The model's columns are found by name.
        assert run_well("score", places / "model", tmp_path / "parts").stdout == straight

    def test_cache_and_chunk_size_reach_the_source(self, tmp_path, places, refused):
        options = ["--cache", tmp_path / "cache", "--chunk-size", 77, "--out", tmp_path / "model"]
        assert error_of("fit", places / "part-*.csv", *options) == "Error: enough"
        (source,) = refused
        assert isinstance(source, RowSource)
        assert source.chunk_size == 77
        assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".npy"]
        # It was closed on the way out.
        with pytest.raises(ValueError, match="closed"):
            source.read(0, 1)

    def test_what_is_said_of_many_rows_comes_from_some(self, tmp_path, places, X, monkeypatch):
        monkeypatch.setattr(fit_command, "SAMPLED_ROWS", 100)
        monkeypatch.setattr(fit_command, "BLOCK_ROWS", 25)
        options = ["--components", 3, "--max-iter", 3, "--tol", 0, "--no-report"]
        result = run_well("fit", places / "part-*.csv", *options, "--out", tmp_path / "model")
        sample = np.concatenate([X[start : start + 25] for start in (0, 91, 183, 275)])
        score = nameless(tmp_path / "model").score(sample)
        assert f" {score:.4f}  (100 of the rows)" in result.stdout
        assert result.stdout.splitlines()[-1].startswith("fit.png shows 100 of the rows, from all")


class TestPlace:
    def test_one_file_holds_the_model_alone(self, tmp_path, places):
        out = tmp_path / "made" / "model.npz"
        result = run_well("fit", places / "rows.csv", *QUICK, "--out", out)
        assert [path.name for path in out.parent.iterdir()] == ["model.npz"]
        alone = "the model alone, without trace.csv, fit.png and report.html"
        assert result.stdout.splitlines()[-1].startswith(f"The model is in {out} ({alone}")
        run_well("score", out, places / "rows.csv")
        # An earlier model is replaced.
        run_well("fit", places / "rows.csv", *QUICK, "--components", 4, "--out", out)
        assert pickmix.load(out).n_components == 4

    @pytest.mark.parametrize(
        ("out", "message"),
        [
            ("file", "{}: expected a folder or a name ending in .npz, found a file"),
            ("file/model", "{}: expected a folder, but {folder}/file is a file"),
            ("model.npz", "{}: expected a file, found a folder"),
            ("rows.npz", "{}: found a file that is not a saved model; it is not replaced."),
            ("notes", "{}: expected a new folder, an empty one or one with an earlier model"),
            ("notes", "found a, b, c and 2 more in it"),
            ("other", "found arrays.npz in it"),
            ("-", "--out must be a folder or a file name ending in .npz, got -"),
            ("/proc/new", "{}: cannot write to /proc ("),
        ],
    )
    def test_other_things_are_not_replaced(self, tmp_path, places, refused, out, message):
        (tmp_path / "file").write_text("mine")
        for name in ("model.npz", "notes", "other"):
            (tmp_path / name).mkdir()
        for name in ("rows.npz", "other/arrays.npz"):
            np.savez(tmp_path / name, X=np.ones((3, 2)))
        for name in "abcde":
            (tmp_path / "notes" / name).write_text("mine")
        before = sorted(tmp_path.rglob("*"))
        path = out if out == "-" else tmp_path / out
        line = error_of("fit", places / "rows.csv", *QUICK, "--out", path)
        assert message.format(f"--out {path}", folder=tmp_path) in line
        assert refused == []
        assert sorted(tmp_path.rglob("*")) == before

    def test_folders_that_may_be_there(self, tmp_path, places):
        out, both = tmp_path / "model", tmp_path / "both"
        for folder in (out, out / "kept", out / "cache", both):
            folder.mkdir()
        (out / ".gitignore").write_text("*")
        options = ["--checkpoint", out / "kept", "--cache", out / "cache", "--out", out]
        run_well("fit", places / "rows.csv", *QUICK, *options)
        # A folder with a model may hold more.
        (out / "notes.txt").write_text("mine")
        run_well("fit", places / "rows.csv", *QUICK, "--out", out)
        assert (out / "notes.txt").read_text() == "mine"
        (both / "checkpoint-000001.pickmix.old").write_text("")
        run_well("fit", places / "rows.csv", *QUICK, "--checkpoint", both, "--out", both)


@pytest.mark.parametrize("name", ["model", "model.npz"])
def test_an_interrupted_fit_is_saved_and_an_earlier_model_stays(
    tmp_path, places, monkeypatch, name
):
    out, suffix = tmp_path / name, name.removeprefix("model")

    def interrupted_fit(*options):
        with ctrl_c_after_step(monkeypatch, 3):
            options = [*QUICK, "--batch-size", 50, *options, "--out", out]
            result = run("fit", places / "rows.csv", *options)
        assert result.exit_code == 130, result.output
        return result

    result = interrupted_fit("--components", 4)
    assert "note: The fit was interrupted after 3 steps" in result.stderr
    assert f"The interrupted model is in {out} (" in result.stdout
    first = pickmix.load(out)
    assert (first.n_steps_, first.outcome_) == (3, "interrupted")
    # Nor is an earlier interrupted model lost.
    for end in ("-interrupted", "-interrupted-2"):
        beside, result = tmp_path / f"model{end}{suffix}", interrupted_fit()
        assert np.array_equal(pickmix.load(out).means_, first.means_)
        assert pickmix.load(beside).n_components == 3
        assert f"The interrupted model is in {beside} (" in result.stdout
        assert f"note: {out} holds an earlier model, which was kept." in result.stderr
        assert f"rm {'' if suffix else '-r '}{out} && mv {beside} {out}" in result.stderr
    result = interrupted_fit("--keep")
    assert pickmix.load(out).n_components == 3
    assert "earlier model" not in result.stderr
    assert len(list(tmp_path.glob("*-interrupted*"))) == 2


def assert_same_fit(one, other):
    assert same_model(one, other)
    one, other = pickmix.load(one), pickmix.load(other)
    for name in set(one.trace_.dtype.names) - {"seconds"}:
        assert one.trace_[name].tobytes() == other.trace_[name].tobytes(), name
    for name in ("outcome_", "n_steps_", "n_component_evaluations_"):
        assert getattr(one, name) == getattr(other, name)


class TestCheckpoints:
    def test_ctrl_c_says_how_to_resume(self, tmp_path, places, monkeypatch):
        kept = tmp_path / "kept"
        command = ["fit", places / "rows.csv", *QUICK, "--batch-size", 50, "--out"]
        run_well(*command, tmp_path / "expected")
        command = [*command, tmp_path / "model", "--checkpoint", kept]
        with ctrl_c_after_step(monkeypatch, 7):
            result = run(*command)
        assert result.exit_code == 130
        last = result.stderr.splitlines()[-1]
        assert last == f"note: The same command resumes from the checkpoint in {kept}."
        assert pickmix.load(tmp_path / "model").n_steps_ == 7
        result = run_well(*command)
        assert f"resuming from the checkpoint in {kept}: step 7\n" in result.stderr
        assert "The same command" not in result.output
        assert_same_fit(tmp_path / "model", tmp_path / "expected")
        # Whoever fits the saved model again begins anew.
        assert pickmix.load(tmp_path / "model").checkpoint is None
        assert "where it had ended (max_iter)" in run_well(*command).stderr
        message = error_of(*command, "--components", 4)
        assert "belongs to another fit: parameters.n_components was 3, is 4." in message

    @pytest.mark.parametrize("kept", [["--checkpoint", "kept"], []])
    def test_max_time_says_so_too(self, tmp_path, places, monkeypatch, kept):
        monkeypatch.chdir(tmp_path)
        options = ["--max-time", 1e-9, "--quiet", "--no-plot", "--no-report", "--out", "model"]
        result = run_well("fit", places / "rows.csv", *options, *kept)
        assert ("resumes from the checkpoint in" in result.stderr) == bool(kept)

    @pytest.mark.slow
    def test_a_killed_process_goes_on_in_another(self, tmp_path):
        rng, kept = np.random.default_rng(1), tmp_path / "kept"
        means = 6.0 * rng.normal(size=(10, 3))
        np.save(
            tmp_path / "rows.npy", means[rng.integers(10, size=2000)] + rng.normal(size=(2000, 3))
        )
        command = ["fit", tmp_path / "rows.npy", "--components", 20, "--max-steps", 150]
        command += ["--batch-size", 200, "--jobs", 1, "--no-plot", "--no-report", "--out"]
        run_well(*command, tmp_path / "expected")
        # With no seconds between them there is a checkpoint for every step.
        command += [tmp_path / "model", "--checkpoint", kept, "--checkpoint-every", 0]
        process = subprocess.Popen(
            [sys.executable, "-m", "pickmix", *map(str, command)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            deadline = time.monotonic() + 120.0
            while len(list(kept.glob("checkpoint-*"))) < 2:
                assert time.monotonic() < deadline
                time.sleep(0.005)
            process.kill()
            messages = process.communicate()[1]
        finally:
            process.kill()
            process.wait()
        assert process.returncode == -signal.SIGKILL, messages
        assert not (tmp_path / "model").exists()
        result = run_well(*command)
        (step,) = re.findall(r"resuming from the checkpoint in .*: step (\d+)\n", result.stderr)
        assert 1 <= int(step) < 150
        assert_same_fit(tmp_path / "model", tmp_path / "expected")
        assert list(kept.glob(".*")) == []

"""`pickmix fit` of numbers: what it prints, saves, refuses, and does when it is interrupted."""

import json
import os
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
def temporary(tmp_path, monkeypatch):
    """The system's folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


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
    def test_fit_saves_what_it_says_and_sums_it_up(self, tmp_path, places, X):
        out = tmp_path / "model"
        result = run_well("fit", places / "rows.npy", "--components", 3, "--out", out)
        files = {"arrays.npz", "model.json", "fit.png", "report.html", "trace.csv"}
        assert {file.name for file in out.iterdir()} == files
        model = pickmix.load(out)
        lines = summary_of(result.stdout)
        assert lines["rows"] == "300"
        assert lines["columns"] == "2"
        assert lines["components"] == "3"
        assert lines["log-likelihood per row"] == f"{model.score(X):.4f}  (all rows)"
        assert lines["steps"] == str(model.n_steps_)
        evaluated = model.n_component_evaluations_ / (300 * model.n_iter_)
        assert lines["components per row and pass"] == f"{evaluated:.1f}"
        assert lines["outcome"] == model.outcome_ == "converged"
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
            ("rows.csv.gz", []),
            ("comma.csv", []),
            ("comma.csv", ["--decimal", ","]),
            ("comma.csv", ["--chunk-size", 70]),
            ("comma.csv", ["--decimal", ",", "--chunk-size", 70]),
            ("named.csv", ["--exclude", "1", "--columns", "a,b"]),
            ("part-*.csv", []),
            ("packed-*.csv.gz", []),
        ],
    )
    def test_other_files_of_the_same_rows(self, tmp_path, places, temporary, data, options):
        options = [*QUICK, *options, "--quiet", "--out", tmp_path / "model"]
        assert run_well("fit", places / data, *options).output == ""
        assert same_model(tmp_path / "model", places / "model")
        assert list(temporary.iterdir()) == []

    def test_columns(self, tmp_path, places):
        out = ["--out", tmp_path / "model"]
        run_well("fit", places / "rows.csv", *QUICK, "--columns", "b", *out)
        assert pickmix.load(tmp_path / "model").feature_names_in_.tolist() == ["b"]
        run_well("fit", places / "named.csv", "--id", "who", "--exclude", "b", *QUICK, *out)
        model = pickmix.load(tmp_path / "model")
        assert model.feature_names_in_.tolist() == ["a"]
        assert model.id_column_ == "who"

    def test_the_example_shows_the_truth(self, tmp_path, monkeypatch):
        monkeypatch.setattr(fit_command, "EXAMPLE_ROWS", 2000)
        monkeypatch.setattr(fit_command, "EXAMPLE_COMPONENTS", 10)
        result = run_well("fit", "--no-plot", "--no-report", "--out", tmp_path / "model")
        lines = summary_of(result.stdout)
        assert lines["rows"] == "2,000"
        assert lines["components"] == "10"
        mixture = generate(10, 2, 0.75, random_state=0)
        truth = mixture.score_samples(mixture.sample(2000, random_state=0)[0]).mean()
        assert lines["the true mixture's"] == f"{truth:.4f}"
        assert float(lines["log-likelihood per row"].split()[0]) == pytest.approx(truth, abs=0.3)

    def test_notes(self, tmp_path, places, monkeypatch):
        out = ["--no-report", "--quiet", "--out", tmp_path / "model"]
        options = ["--components", 3, "--max-iter", 2, "--tol", 1e-9, "--no-plot", *out]
        (line,) = run_well("fit", places / "rows.csv", *options).stderr.splitlines()
        assert line.startswith("note: The log-likelihood still rose")
        monkeypatch.setattr(fit_command.importlib.util, "find_spec", lambda name: None)
        options = ["--components", 3, "--max-iter", 3, "--tol", 0, *out]
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
        (["rows.csv", "--components", "301"], "n_components must be at most"),
        (["rows.csv", "--tol", "-1"], "tol must be a finite number >= 0"),
        (["rows.csv", "--out", "rows.csv/x"], "rows.csv"),
        (["rows.csv", "--columns", "z"], "no column 'z'; there are a, b or 0 to 1"),
        (["rows.csv", "--batch-size", "some"], "expected auto|all|integer, got 'some'"),
        (["rows.csv", "--step-size", "some"], "expected auto|paper|number, got 'some'"),
        (["rows.csv", "--checkpoint-every", 5], "Error: --checkpoint-every needs --checkpoint"),
        (["named.csv", "--exclude", "whom"], "no column 'whom', but 'who'; there are b, who, a or"),
        (["named.csv", "--id", "Who"], "but 'who'; there are b, who, a or 0 to 2 (--id)"),
        (["named.csv", "--columns", "whom"], "no column 'whom', but 'who'"),
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
        run_well("fit", tmp_path / "parts", *options)
        assert same_model(tmp_path / "model", places / "model")
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
        options = ["--components", 3, "--max-iter", 3, "--tol", 0, "--out", tmp_path / "model"]
        result = run_well("fit", places / "part-*.csv", *options)
        sample = np.concatenate([X[start : start + 25] for start in (0, 91, 183, 275)])
        score = nameless(tmp_path / "model").score(sample)
        assert f" {score:.4f}  (100 of the rows)" in result.stdout
        assert result.stdout.splitlines()[-1].startswith("fit.png shows 100 of the rows, from all")

    @pytest.mark.parametrize(
        ("cell", "options", "message"),
        [
            ("x", ["--model", "gaussian"], r"leave that column out with --columns, or use --model"),
            ("inf", [], r"got inf in 1\.csv, row 2, column"),
        ],
    )
    def test_errors_name_place_and_option(self, tmp_path, temporary, cell, options, message):
        (tmp_path / "0.csv").write_text("a,b\n1,2\n3,4\n")
        (tmp_path / "1.csv").write_text(f"a,b\n5,6\n1,{cell}\n")
        out = ["--components", 2, "--out", tmp_path / "model"]
        line = error_of("fit", tmp_path / "[01].csv", *options, *out)
        assert "1.csv" in line
        assert re.search(message, line)
        assert not (tmp_path / "model").exists()
        assert list(temporary.iterdir()) == []


class TestPlace:
    def test_one_file_holds_the_model_alone(self, tmp_path, places):
        out = tmp_path / "made" / "model.npz"
        result = run_well("fit", places / "rows.csv", *QUICK, "--out", out)
        assert [path.name for path in out.parent.iterdir()] == ["model.npz"]
        last = result.stdout.splitlines()[-1]
        alone = "the model alone, without trace.csv, fit.png and report.html"
        assert last.startswith(f"The model is in {out} ({alone}")
        run_well("score", out, places / "rows.csv")
        # An earlier model is replaced.
        run_well("fit", places / "rows.csv", *QUICK, "--components", 4, "--out", out)
        assert pickmix.load(out).n_components == 4

    @pytest.mark.parametrize(
        ("out", "message"),
        [
            ("file", "{}: expected a folder or a name ending in .npz, found a file"),
            ("file/model", "{}: expected a folder, but {folder}/file is a file"),
            ("file/model.npz", "{}: expected a folder, but {folder}/file is a file"),
            ("model.npz", "{}: expected a file, found a folder"),
            ("rows.npz", "{}: found a file that is not a saved model; it is not replaced."),
            ("notes", "{}: expected a new folder, an empty one or one with an earlier model"),
            ("notes", "found a, b, c and 2 more in it"),
            ("other", "found arrays.npz in it"),
            ("-", "--out must be a folder or a file name ending in .npz, got -"),
        ],
    )
    def test_other_things_are_not_replaced(
        self, tmp_path, places, monkeypatch, refused, out, message
    ):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "file").write_text("mine")
        (tmp_path / "model.npz").mkdir()
        np.savez(tmp_path / "rows.npz", X=np.ones((3, 2)))
        for name in ("notes", "other"):
            (tmp_path / name).mkdir()
        for name in "abcde":
            (tmp_path / "notes" / name).write_text("mine")
        np.savez(tmp_path / "other" / "arrays.npz", X=np.ones((3, 2)))
        before = sorted(tmp_path.rglob("*"))
        path = out if out == "-" else tmp_path / out
        line = error_of("fit", places / "rows.csv", *QUICK, "--out", path)
        assert message.format(f"--out {path}", folder=tmp_path) in line
        assert refused == []
        assert sorted(tmp_path.rglob("*")) == before

    @pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="there is no /proc")
    @pytest.mark.parametrize("name", ["model", "model.npz", "new/model"])
    def test_a_place_that_cannot_be_written_to(self, places, refused, name):
        line = error_of("fit", places / "rows.csv", *QUICK, "--out", f"/proc/{name}")
        assert line.startswith(f"Error: --out /proc/{name}: cannot write to /proc (")
        assert refused == []

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


class TestInterrupted:
    """Ctrl-C after the third step of a fit."""

    def fit(self, monkeypatch, places, out, *options):
        with ctrl_c_after_step(monkeypatch, 3):
            options = [*QUICK, "--batch-size", 50, *options, "--out", out]
            result = run("fit", places / "rows.csv", *options)
        assert result.exit_code == 130, result.output
        return result

    def test_a_first_fit_is_saved_where_it_was_asked(self, tmp_path, places, monkeypatch):
        result = self.fit(monkeypatch, places, tmp_path / "model")
        assert "note: The fit was interrupted after 3 steps" in result.stderr
        assert "The interrupted model is in" in result.stdout
        model = pickmix.load(tmp_path / "model")
        assert model.n_steps_ == 3
        assert model.outcome_ == "interrupted"
        assert not list(tmp_path.glob("*-interrupted*"))

    @pytest.mark.parametrize("name", ["model", "model.npz"])
    def test_an_earlier_model_stays_unless_keep_is_given(self, tmp_path, places, monkeypatch, name):
        out = tmp_path / name
        run_well("fit", places / "rows.csv", *QUICK, "--components", 4, "--out", out)
        before = pickmix.load(out).means_
        beside = tmp_path / name.replace("model", "model-interrupted")
        result = self.fit(monkeypatch, places, out)
        assert np.array_equal(pickmix.load(out).means_, before)
        assert pickmix.load(beside).n_steps_ == 3
        assert f"The interrupted model is in {beside} (" in result.stdout
        assert f"note: {out} holds an earlier model, which was kept." in result.stderr
        flag = "-r " if out.is_dir() else ""
        assert f"rm {flag}{out} && mv {beside} {out}" in result.stderr
        # Nor is an earlier interrupted model lost.
        self.fit(monkeypatch, places, out, "--quiet")
        second = tmp_path / name.replace("model", "model-interrupted-2")
        assert pickmix.load(second).n_steps_ == 3
        result = self.fit(monkeypatch, places, out, "--keep")
        assert pickmix.load(out).n_components == 3
        assert f"The interrupted model is in {out} (" in result.stdout
        assert "earlier model" not in result.stderr
        assert len(list(tmp_path.glob("*-interrupted*"))) == 2


def assert_same_fit(one, other):
    assert same_model(one, other)
    one, other = pickmix.load(one), pickmix.load(other)
    for name in ("weights_", "covariances_"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name
    for name in set(one.trace_.dtype.names) - {"seconds"}:
        assert one.trace_[name].tobytes() == other.trace_[name].tobytes(), name
    for name in ("outcome_", "n_steps_", "n_component_evaluations_"):
        assert getattr(one, name) == getattr(other, name)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """A command without its last argument, and the model that it makes."""
    folder = tmp_path_factory.mktemp("expected")
    rng = np.random.default_rng(1)
    means = 6.0 * rng.normal(size=(10, 3))
    for part in range(2):
        rows = means[rng.integers(10, size=1000)] + rng.normal(size=(1000, 3))
        np.save(folder / f"part-{part}.npy", rows)
    command = ["fit", folder / "part-*.npy", "--components", 20, "--max-steps", 150]
    command += ["--batch-size", 200, "--jobs", 1, "--no-plot", "--no-report", "--out"]
    run_well(*command, folder / "model")
    return command, folder / "model"


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

    def test_a_killed_process_goes_on_in_another(self, tmp_path, expected):
        command, model = expected
        kept = tmp_path / "kept"
        # With no seconds between them there is a checkpoint for every step.
        killed = [*command, tmp_path / "model", "--checkpoint", kept, "--checkpoint-every", 0]
        process = subprocess.Popen(
            [sys.executable, "-m", "pickmix", *map(str, killed)],
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
        result = run_well(*killed)
        (step,) = re.findall(r"resuming from the checkpoint in .*: step (\d+)\n", result.stderr)
        assert 1 <= int(step) < 150
        assert_same_fit(tmp_path / "model", model)
        assert list(kept.glob(".*")) == []

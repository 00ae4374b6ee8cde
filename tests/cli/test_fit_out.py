"""Where `pickmix fit` puts a model: checks before the fit, one file, and earlier models."""

import os
import signal

import commands
import numpy as np
import pytest
from commands import run

import pickmix
from pickmix.closed_form.partition_engine import PartitionEngine
from pickmix.data.files import write_table

QUICK = [*commands.QUICK, "--batch-size", "50"]


@pytest.fixture
def rows(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2)) + 6.0 * rng.integers(0, 3, size=(300, 1))
    return write_table(tmp_path / "rows.csv", {"a": X[:, 0], "b": X[:, 1]})


@pytest.fixture
def no_fit(monkeypatch):
    """Fail if a fit begins."""

    def begin(*arguments):
        raise AssertionError("the fit began")

    monkeypatch.setattr(pickmix.GaussianMixture, "fit", begin)


def error_of(*arguments):
    """The one line of an error that comes before the fit."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert "Fitting" not in result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    return line


def test_one_file_holds_the_model_alone(tmp_path, rows):
    out = tmp_path / "made" / "model.npz"
    result = run("fit", rows, *QUICK, "--out", out)
    assert result.exit_code == 0, result.output
    assert [path.name for path in out.parent.iterdir()] == ["model.npz"]
    last = result.stdout.splitlines()[-1]
    assert last.startswith(
        f"The model is in {out} (the model alone, without trace.csv, fit.png and report.html"
    )
    assert pickmix.load(out).n_components == 3
    assert run("score", out, rows).exit_code == 0
    # An earlier model is replaced.
    assert run("fit", rows, *QUICK, "--components", 4, "--out", out).exit_code == 0
    assert pickmix.load(out).n_components == 4


@pytest.mark.usefixtures("no_fit")
class TestRefusedBeforeTheFit:
    def test_a_file_where_a_folder_is_expected(self, tmp_path, rows):
        (tmp_path / "file").write_text("mine")
        assert error_of("fit", rows, *QUICK, "--out", tmp_path / "file") == (
            f"Error: --out {tmp_path / 'file'}: expected a folder or a name ending in .npz, "
            "found a file"
        )
        line = error_of("fit", rows, *QUICK, "--out", tmp_path / "file" / "model")
        assert line == (
            f"Error: --out {tmp_path / 'file' / 'model'}: expected a folder, but "
            f"{tmp_path / 'file'} is a file"
        )
        line = error_of("fit", rows, *QUICK, "--out", tmp_path / "file" / "model.npz")
        assert "expected a folder, but" in line

    def test_a_folder_where_a_file_is_expected(self, tmp_path, rows):
        (tmp_path / "model.npz").mkdir()
        line = error_of("fit", rows, *QUICK, "--out", tmp_path / "model.npz")
        assert line == f"Error: --out {tmp_path / 'model.npz'}: expected a file, found a folder"

    def test_a_file_that_is_no_model(self, tmp_path, rows):
        np.savez(tmp_path / "rows.npz", X=np.ones((3, 2)))
        line = error_of("fit", rows, *QUICK, "--out", tmp_path / "rows.npz")
        assert f"{tmp_path / 'rows.npz'}: found a file that is not a saved model" in line
        assert "X" in np.load(tmp_path / "rows.npz")

    def test_a_folder_of_other_files(self, tmp_path, rows):
        folder = tmp_path / "notes"
        folder.mkdir()
        for name in "abcde":
            (folder / name).write_text("mine")
        line = error_of("fit", rows, *QUICK, "--out", folder)
        assert f"--out {folder}: expected a new folder, an empty one or one with an" in line
        assert "found a, b, c and 2 more in it" in line
        assert sorted(path.name for path in folder.iterdir()) == list("abcde")

    def test_arrays_of_others(self, tmp_path, rows):
        (tmp_path / "other").mkdir()
        np.savez(tmp_path / "other" / "arrays.npz", X=np.ones((3, 2)))
        line = error_of("fit", rows, *QUICK, "--out", tmp_path / "other")
        assert "found arrays.npz in it" in line

    @pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="there is no /proc")
    @pytest.mark.parametrize("name", ["model", "model.npz", "new/model"])
    def test_a_place_that_cannot_be_written_to(self, rows, name):
        line = error_of("fit", rows, *QUICK, "--out", f"/proc/{name}")
        assert line.startswith(f"Error: --out /proc/{name}: cannot write to /proc (")

    def test_standard_output(self, rows):
        line = error_of("fit", rows, *QUICK, "--out", "-")
        assert line == "Error: --out must be a folder or a file name ending in .npz, got -"


def test_folders_that_may_be_there(tmp_path, rows):
    out = tmp_path / "model"
    out.mkdir()
    (out / ".gitignore").write_text("*")
    (out / "kept").mkdir()
    (out / "cache").mkdir()
    options = ["--checkpoint", out / "kept", "--cache", out / "cache", "--out", out]
    assert run("fit", rows, *QUICK, *options).exit_code == 0
    # A folder with a model may hold more.
    (out / "notes.txt").write_text("mine")
    assert run("fit", rows, *QUICK, "--out", out).exit_code == 0
    assert (out / "notes.txt").read_text() == "mine"
    both = tmp_path / "both"
    both.mkdir()
    (both / "checkpoint-000001.pickmix.old").write_text("")
    assert run("fit", rows, *QUICK, "--checkpoint", both, "--out", both).exit_code == 0


class TestInterrupted:
    """Ctrl-C after the third step of a fit to a place that holds a model of four components."""

    @pytest.fixture
    def interrupt(self, monkeypatch):
        step = PartitionEngine.step

        def interrupted(self, t):
            step(self, t)
            if t == 3:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(PartitionEngine, "step", interrupted)
        # Hosts may run tests with SIGINT ignored; the fit heeds Python's own handler only.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
        signal.signal(signal.SIGINT, before)

    @pytest.fixture(params=["model", "model.npz"])
    def out(self, request, tmp_path, rows):
        out = tmp_path / request.param
        assert run("fit", rows, *QUICK, "--components", 4, "--out", out).exit_code == 0
        return out

    @pytest.fixture
    def fit(self, out, rows, interrupt):
        def fit(*options):
            result = run("fit", rows, *QUICK, *options, "--out", out)
            assert result.exit_code == 130, result.output
            return result

        return fit

    def test_the_earlier_model_stays(self, out, fit):
        before = pickmix.load(out).means_
        beside = out.with_name(out.name.replace("model", "model-interrupted"))
        result = fit()
        assert np.array_equal(pickmix.load(out).means_, before)
        assert pickmix.load(beside).n_steps_ == 3
        assert f"The interrupted model is in {beside} (" in result.stdout
        assert f"note: {out} holds an earlier model, which was kept." in result.stderr
        flag = "-r " if out.is_dir() else ""
        assert f"rm {flag}{out} && mv {beside} {out}" in result.stderr
        # Nor is an earlier interrupted model lost.
        fit("--quiet")
        second = out.with_name(out.name.replace("model", "model-interrupted-2"))
        assert pickmix.load(second).n_steps_ == 3

    def test_keep_replaces_it(self, out, fit):
        result = fit("--keep")
        assert pickmix.load(out).n_steps_ == 3
        assert pickmix.load(out).n_components == 3
        assert f"The interrupted model is in {out} (" in result.stdout
        assert "earlier model" not in result.stderr
        assert not list(out.parent.glob("*-interrupted*"))


def test_an_interrupted_first_fit_is_saved_where_it_was_asked(tmp_path, rows, monkeypatch):
    monkeypatch.setattr(PartitionEngine, "step", lambda self, t: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert run("fit", rows, *QUICK, "--out", tmp_path / "model").exit_code == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert pickmix.load(tmp_path / "model").outcome_ == "interrupted"
    assert not list(tmp_path.glob("*-interrupted*"))

"""The command line on rows that are read piece by piece, and fits that are killed and go on."""

import contextlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import pytest
from commands import QUICK, error_of, run, run_well

import pickmix
from pickmix.cli import reading
from pickmix.closed_form.partition_engine import PartitionEngine
from pickmix.data.files import read_table, write_table
from pickmix.data.sources import ArraySource, RowSource


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.normal(size=(300, 2)) + 6.0 * rng.integers(0, 3, size=(300, 1))


@pytest.fixture(scope="module")
def places(tmp_path_factory, X):
    """A folder with rows.csv, the same rows in parts, and a model fitted to them."""
    folder = tmp_path_factory.mktemp("places")
    write_table(folder / "rows.csv", {"a": X[:, 0], "b": X[:, 1]})
    for number, start in enumerate(range(0, 300, 100)):
        part = X[start : start + 100]
        write_table(folder / f"part-{number}.csv", {"a": part[:, 0], "b": part[:, 1]})
    run_well("fit", folder / "rows.csv", *QUICK, "--out", folder / "model")
    return folder


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The system's folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def assert_same_model(one, other):
    one, other = pickmix.load(one), pickmix.load(other)
    for name in ("weights_", "means_", "covariances_"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name
    for name in set(one.trace_.dtype.names) - {"seconds"}:
        assert one.trace_[name].tobytes() == other.trace_[name].tobytes(), name
    for name in ("outcome_", "n_steps_", "n_component_evaluations_"):
        assert getattr(one, name) == getattr(other, name)


class TestWhichRowsStayWhereTheyAre:
    def is_small(self, data, **options):
        options = dict.fromkeys(("columns", "key", "cache", "chunk_size")) | options
        return reading.Place(data, **options).is_small

    def test_by_size_kind_and_wish(self, places, monkeypatch):
        file = places / "rows.csv"
        assert self.is_small(file)
        assert not self.is_small(places)
        assert not self.is_small(places / "part-*.csv")
        assert not self.is_small(places / "part-[01].csv")
        assert not self.is_small(file, chunk_size=100)
        assert not self.is_small(file, cache=places)
        # Refused in the same words as before.
        assert self.is_small(places / "none.csv")
        monkeypatch.setattr(reading, "LARGEST_FILE", file.stat().st_size)
        assert self.is_small(file)
        monkeypatch.setattr(reading, "LARGEST_FILE", file.stat().st_size - 1)
        assert not self.is_small(file)
        assert self.is_small(file, key="X")

    def test_a_name_with_a_mark_of_patterns_is_a_file(self, tmp_path):
        path = tmp_path / "rows[1].npy"
        np.save(path, np.ones((3, 2)))
        assert self.is_small(path)


class TestFit:
    def test_parts_make_the_model_of_the_whole(self, tmp_path, places, temporary):
        result = run_well("fit", places / "part-*.csv", *QUICK, "--out", tmp_path / "model")
        assert_same_model(tmp_path / "model", places / "model")
        first = result.stdout.splitlines()[0]
        assert "to 300 rows of 2 columns by mhsaem: " in first
        assert first.endswith("part-*.csv")
        assert pickmix.load(tmp_path / "model").feature_names_in_.tolist() == ["a", "b"]
        # Every row of so few is looked at.
        assert "(all rows)" in result.stdout
        assert "components per row and pass" not in result.stdout
        assert list(temporary.iterdir()) == []

    def test_a_folder_of_parquet_files(self, tmp_path, places, X):
        pytest.importorskip("pyarrow")
        (tmp_path / "parts").mkdir()
        for number, start in enumerate((0, 150)):
            part = X[start : start + 150]
            columns = {"b": part[:, 1], "other": np.ones(150), "a": part[:, 0]}
            write_table(tmp_path / "parts" / f"{number}.parquet", columns)
        options = [*QUICK, "--columns", "a,b", "--out", tmp_path / "model"]
        run_well("fit", tmp_path / "parts", *options)
        assert_same_model(tmp_path / "model", places / "model")
        straight = run_well("score", places / "model", places / "rows.csv").stdout
        # The model's columns are found by name.
        assert run_well("score", places / "model", tmp_path / "parts").stdout == straight

    def test_cache_and_chunk_size_reach_the_source(self, tmp_path, places, monkeypatch):
        sources = []

        def refuse(self, X):
            sources.append(X)
            raise ValueError("enough")

        monkeypatch.setattr(pickmix.GaussianMixture, "fit", refuse)
        options = ["--cache", tmp_path / "cache", "--chunk-size", 77, "--out", tmp_path / "model"]
        assert error_of("fit", places / "part-*.csv", *options) == "Error: enough"
        (source,) = sources
        assert isinstance(source, RowSource)
        assert source.chunk_size == 77
        assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == [".json", ".npy"]
        # It was closed on the way out.
        with pytest.raises(ValueError, match="closed"):
            source.read(0, 1)

    def test_what_is_said_of_many_rows_comes_from_some(self, tmp_path, places, X, monkeypatch):
        monkeypatch.setattr(reading, "SAMPLED_ROWS", 100)
        monkeypatch.setattr(reading, "_BLOCK_ROWS", 25)
        options = ["--components", 3, "--max-iter", 3, "--tol", 0, "--out", tmp_path / "model"]
        result = run_well("fit", places / "part-*.csv", *options)
        model = pickmix.load(tmp_path / "model")
        del model.feature_names_in_
        sample = np.concatenate([X[start : start + 25] for start in (0, 91, 183, 275)])
        assert f" {model.score(sample):.4f}  (100 of the rows)" in result.stdout
        assert result.stdout.splitlines()[-1].startswith("fit.png shows 100 of the rows, from all")
        np.testing.assert_array_equal(reading.sample_rows(ArraySource(X, "X")), sample)

    def test_quiet(self, tmp_path, places):
        options = [*QUICK, "--quiet", "--out", tmp_path / "model"]
        assert run_well("fit", places / "part-*.csv", *options).output == ""

    def test_errors_name_place_and_option(self, tmp_path, places, temporary):
        out = ["--out", tmp_path / "model"]
        assert "no file matches" in error_of("fit", places / "none-*.csv", *out)
        assert "no column 'z'" in error_of("fit", places / "part-*.csv", "--columns", "z", *out)
        for number, value in enumerate(("1,x", "1,nan")):
            (tmp_path / f"{number}-0.csv").write_text("a,b\n1,2\n3,4\n")
            (tmp_path / f"{number}-1.csv").write_text(f"a,b\n5,6\n{value}\n")
        message = error_of("fit", tmp_path / "0-*.csv", "--model", "gaussian", *QUICK, *out)
        assert "1.csv" in message
        assert "leave that column out with --columns, or use --model table" in message
        (tmp_path / "1-1.csv").write_text("a,b\n5,6\n1,inf\n")
        message = error_of("fit", tmp_path / "1-*.csv", "--components", 2, *out)
        assert re.search(r"got inf in 1-1\.csv, row 2, column", message)
        assert not (tmp_path / "model").exists()
        assert list(temporary.iterdir()) == []


class TestQueries:
    @pytest.mark.parametrize("suffix", ["csv", "npy", "parquet"])
    def test_score_piece_by_piece(self, suffix, tmp_path, places, temporary):
        whole, pieces = (tmp_path / f"{name}.{suffix}" for name in ("whole", "pieces"))
        said = run_well("score", places / "model", places / "rows.csv", "--out", whole).stdout
        options = ["--chunk-size", 70, "--out", pieces]
        found = run_well("score", places / "model", places / "part-*.csv", *options).stdout
        assert found == said.replace("whole", "pieces")
        expected, names = read_table(whole)
        written, same_names = read_table(pieces)
        assert same_names == names
        np.testing.assert_allclose(written, expected, rtol=1e-12)
        assert list(temporary.iterdir()) == []

    def test_assign_piece_by_piece(self, tmp_path, places):
        whole, pieces = tmp_path / "whole.csv", tmp_path / "pieces.csv"
        options = ["--top", 2, "--out"]
        said = run_well("assign", places / "model", places / "rows.csv", *options, whole).stdout
        # The last piece is one row, with a component of its own.
        options = ["--chunk-size", 299, *options, pieces]
        found = run_well("assign", places / "model", places / "part-*.csv", *options).stdout
        assert found == said.replace("whole", "pieces")
        expected, names = read_table(whole)
        written, same_names = read_table(pieces)
        assert same_names == names
        np.testing.assert_allclose(written, expected, rtol=1e-9, atol=1e-300)

    def test_the_first_rows_are_shown_from_several_pieces(self, places):
        straight = run_well("assign", places / "model", places / "rows.csv").stdout
        found = run_well("assign", places / "model", places / "part-*.csv", "--chunk-size", 4)
        assert found.stdout == straight

    def test_columns_by_place_where_there_are_no_names(self, tmp_path, places, X):
        straight = run_well("score", places / "model", places / "rows.csv").stdout
        np.save(tmp_path / "rows.npy", X)
        np.savetxt(tmp_path / "rows.csv", X, delimiter=",", fmt="%.17g")
        for name in ("rows.npy", "rows.csv"):
            options = ["--chunk-size", 100]
            assert run_well("score", places / "model", tmp_path / name, *options).stdout == straight
        strange = write_table(tmp_path / "strange.csv", {"c": X[:, 0], "d": X[:, 1]})
        arguments = ["score", places / "model", strange, "--chunk-size", 100]
        assert "no column 'a'" in error_of(*arguments)
        assert run_well(*arguments, "--columns", "c,d").stdout == straight
        assert "expected the 2 columns" in error_of(*arguments, "--columns", "c")

    @pytest.mark.parametrize(("verb", "suffix"), [("score", "csv"), ("assign", "npy")])
    def test_a_missing_number_is_named_and_nothing_left(
        self, verb, suffix, tmp_path, places, X, temporary
    ):
        holes = X[:100].copy()
        holes[41, 1] = np.inf
        write_table(tmp_path / "part-0.csv", {"a": X[:100, 0], "b": X[:100, 1]})
        write_table(tmp_path / "part-1.csv", {"a": holes[:, 0], "b": holes[:, 1]})
        out = tmp_path / f"out.{suffix}"
        out.write_text("older")
        before = sorted(tmp_path.iterdir())
        arguments = ["--chunk-size", 30, "--out", out]
        message = error_of(verb, places / "model", tmp_path / "part-*.csv", *arguments)
        assert message.endswith(
            "must hold finite numbers, got inf in part-1.csv, row 42, column 'b'."
        )
        assert out.read_text() == "older"
        assert sorted(tmp_path.iterdir()) == before
        assert list(temporary.iterdir()) == []


@contextlib.contextmanager
def pythons_own_ctrl_c():
    # Hosts may run tests with SIGINT ignored; the fit heeds Python's own handler only.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """A command without its last argument, and the model that it makes."""
    folder = tmp_path_factory.mktemp("expected")
    rng = np.random.default_rng(1)
    means = 6.0 * rng.normal(size=(10, 3))
    for part in range(2):
        rows = means[rng.integers(10, size=4000)] + rng.normal(size=(4000, 3))
        np.save(folder / f"part-{part}.npy", rows)
    command = ["fit", folder / "part-*.npy", "--components", 20, "--max-steps", 400]
    command += ["--batch-size", 500, "--jobs", 1, "--no-plot", "--no-report", "--out"]
    run_well(*command, folder / "model")
    return command, folder / "model"


class TestCheckpoints:
    def test_ctrl_c_says_how_to_go_on(self, tmp_path, places, monkeypatch):
        step = PartitionEngine.step

        def interrupt(self, t):
            step(self, t)
            if t == 7:
                signal.raise_signal(signal.SIGINT)

        data, kept = places / "rows.csv", tmp_path / "kept"
        command = ["fit", data, *QUICK, "--batch-size", 50, "--out"]
        run_well(*command, tmp_path / "expected")
        command = [*command, tmp_path / "model", "--checkpoint", kept]
        with monkeypatch.context() as patch, pythons_own_ctrl_c():
            patch.setattr(PartitionEngine, "step", interrupt)
            result = run(*command)
        assert result.exit_code == 130
        said = result.stderr.splitlines()[-1]
        assert said == f"note: The same command resumes from the checkpoint in {kept}."
        assert pickmix.load(tmp_path / "model").n_steps_ == 7
        result = run_well(*command)
        assert f"resuming from the checkpoint in {kept}: step 7\n" in result.stderr
        assert "The same command" not in result.output
        assert_same_model(tmp_path / "model", tmp_path / "expected")
        # Whoever fits the saved model again begins anew.
        assert pickmix.load(tmp_path / "model").checkpoint is None
        assert "where it had ended (max_iter)" in run_well(*command).stderr
        message = error_of(*command, "--components", 4)
        assert "belongs to another fit: parameters.n_components was 3, is 4." in message

    def test_max_time_says_so_too(self, tmp_path, places):
        options = [
            "--max-time",
            1e-9,
            "--quiet",
            "--no-plot",
            "--no-report",
            "--out",
            tmp_path / "model",
        ]
        result = run_well("fit", places / "rows.csv", *options, "--checkpoint", tmp_path / "kept")
        assert "resumes from the checkpoint in" in result.stderr
        result = run_well("fit", places / "rows.csv", *options)
        assert "goes on" not in result.stderr

    def test_seconds_without_a_folder_are_refused(self, tmp_path, places):
        options = ["--checkpoint-every", 5, "--out", tmp_path / "model"]
        message = error_of("fit", places / "rows.csv", *options)
        assert message == "Error: --checkpoint-every needs --checkpoint"

    def test_flows(self, tmp_path, places):
        pytest.importorskip("jax")
        options = ["--model", "flow", "--components", 2, "--hidden", 2, "--max-steps", 20]
        options += ["--init", "paper", "--no-plot", "--no-report", "--chunk-size", 100, "--out"]
        kept = ["--checkpoint", tmp_path / "kept", "--max-time"]
        data = places / "part-*.csv"
        run_well("fit", data, *options, tmp_path / "expected")
        result = run_well("fit", data, *options, tmp_path / "model", *kept, 1e-9)
        assert "The same command resumes" in result.stderr
        assert pickmix.load(tmp_path / "model").n_steps_ < 20
        run_well("fit", data, *options, tmp_path / "model", *kept, 100)
        one, other = pickmix.load(tmp_path / "model"), pickmix.load(tmp_path / "expected")
        assert one.feature_names_in_.tolist() == ["a", "b"]
        for a, b in zip(one.tables_, other.tables_, strict=True):
            assert a.tobytes() == b.tobytes()
        said = run_well("score", tmp_path / "model", data, "--chunk-size", 100).stdout
        assert said == run_well("score", tmp_path / "model", places / "rows.csv").stdout

    # With no seconds between them there is a checkpoint for every step; with very many, none but
    # the one that SIGTERM asks for.
    @pytest.mark.parametrize(("number", "every"), [(signal.SIGKILL, 0), (signal.SIGTERM, 1e6)])
    def test_a_killed_process_goes_on_in_another(self, number, every, tmp_path, expected):
        command, model = expected
        kept = tmp_path / "kept"
        killed = [*command, tmp_path / "model", "--checkpoint", kept, "--checkpoint-every", every]
        process = subprocess.Popen(
            [sys.executable, "-m", "pickmix", *map(str, killed)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            said = b""
            while not re.search(rb"[1-9]\d*/400 ", said):
                said += process.stderr.read(1)
                assert process.poll() is None
            deadline = time.monotonic() + 60.0
            while every == 0 and not any(kept.glob("checkpoint-*")):
                assert time.monotonic() < deadline
            process.send_signal(number)
            said += process.communicate()[1]
        finally:
            process.kill()
            process.wait()
        assert process.returncode == -number, said
        found = sorted(path.name for path in kept.glob("checkpoint-*"))
        assert len(found) == (1 if every else 2)
        assert b"Traceback" not in said
        assert not (tmp_path / "model").exists()
        result = run_well(*killed)
        (step,) = re.findall(r"resuming from the checkpoint in .*: step (\d+)\n", result.stderr)
        assert 1 <= int(step) < 400
        assert_same_model(tmp_path / "model", model)
        assert list(kept.glob(".*")) == []

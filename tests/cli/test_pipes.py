"""Standard input and output, packed files, decimal commas, and columns that name rows."""

import csv
import gzip
import io
import os
import signal
import subprocess
import sys

import commands
import numpy as np
import pytest
from commands import error_of, run_well

import pickmix
from pickmix.cli import reading
from pickmix.data.files import read_table, write_table

QUICK = [*commands.QUICK, "--quiet"]
PICKMIX = f"{sys.executable} -m pickmix"


def lines_of(text):
    return list(csv.reader(io.StringIO(text)))


def same_model(one, other):
    return pickmix.load(one).means_.tobytes() == pickmix.load(other).means_.tobytes()


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 2)) + 6.0 * rng.integers(0, 3, size=(300, 1))
    return rows.round(4)


@pytest.fixture(scope="module")
def places(tmp_path_factory, X):
    """A folder with the same rows in several files, some with names of rows, and a model."""
    folder = tmp_path_factory.mktemp("places")
    write_table(folder / "rows.csv", {"a": X[:, 0], "b": X[:, 1]})
    write_table(folder / "rows.csv.gz", {"a": X[:, 0], "b": X[:, 1]})
    write_table(folder / "rows.parquet", {"a": X[:, 0], "b": X[:, 1]})
    np.save(folder / "rows.npy", X)
    with open(folder / "named.csv", "w") as file:
        file.write("b,who,a\n")
        file.writelines(f'{b!r},"No. {row}, x",{a!r}\n' for row, (a, b) in enumerate(X.tolist()))
    decimal = "".join(f"{a!r};{b!r}\n" for a, b in X.tolist()).replace(".", ",")
    (folder / "comma.csv").write_text("a;b\n" + decimal)
    run_well("fit", folder / "rows.csv", *QUICK, "--out", folder / "model")
    return folder


@pytest.fixture(scope="module")
def scores(places, X):
    model = pickmix.load(places / "model")
    del model.feature_names_in_
    return model.score_samples(X)


class TestStandardInput:
    @pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz", "rows.parquet", "rows.npy"])
    def test_every_kind_of_file_makes_the_same_model(self, tmp_path, places, name):
        content = (places / name).read_bytes()
        run_well("fit", "-", *QUICK, "--out", tmp_path / "model", stdin=content)
        assert same_model(tmp_path / "model", places / "model")

    def test_it_is_called_by_its_name(self, tmp_path, places):
        options = [
            "--components",
            3,
            "--max-iter",
            3,
            "--no-plot",
            "--no-report",
            "--out",
            tmp_path / "model",
        ]
        content = (places / "rows.csv").read_text()
        first = run_well("fit", "-", *options, stdin=content).stdout.splitlines()[0]
        assert first.endswith(": standard input")
        message = error_of("score", places / "model", "-", stdin="a,b\n1,x\n")
        assert message.startswith("Error: standard input: expected numbers in column 'b', got 'x'")
        message = error_of("score", places / "model", "-", stdin="a\n1\n")
        assert message.startswith("Error: standard input: no column 'b'")

    def test_nothing_is_refused_with_an_example(self, places):
        for verb in (["fit"], ["score", places / "model"]):
            message = error_of(*verb, "-", stdin="")
            assert message.startswith("Error: standard input: expected rows, got nothing; ")
            assert "pickmix score model -" in message

    def test_piece_by_piece(self, places, scores):
        content = (places / "rows.csv").read_text()
        arguments = ["score", places / "model", "-", "--chunk-size", 70, "--out", "-"]
        written = lines_of(run_well(*arguments, stdin=content).stdout)
        np.testing.assert_allclose(np.array(written[1:], dtype=float)[:, 0], scores, rtol=1e-12)


class TestStandardOutput:
    def test_rows_only(self, places, scores):
        result = run_well("score", places / "model", places / "rows.csv", "--out", "-")
        header, *rows = lines_of(result.stdout)
        assert header == ["log_density"]
        np.testing.assert_array_equal([float(row[0]) for row in rows], scores)
        assert result.stderr.splitlines() == [
            f"mean log-density of 300 rows: {scores.mean():.6f}",
        ]
        assert "\r" not in result.stdout

    def test_of_other_verbs(self, places):
        rows = lines_of(
            run_well("assign", places / "model", places / "rows.csv", "--out", "-").stdout
        )
        assert rows[0] == ["component_1", "probability_1"]
        assert len(rows) == 301
        result = run_well("sample", places / "model", "--rows", 7, "--out", "-")
        assert lines_of(result.stdout)[0] == ["a", "b", "component"]
        assert len(lines_of(result.stdout)) == 8
        assert result.stderr == ""

    def test_a_model_cannot_go_there(self, places):
        message = error_of("fit", places / "rows.csv", "--out", "-")
        assert message == "Error: --out must be a folder or a file name ending in .npz, got -"

    def test_verbs_in_a_pipe(self, places):
        # What one writes, the other reads.
        model = places / "model"
        command = f"{PICKMIX} sample {model} -n 50 --out - | {PICKMIX} score {model} - --out -"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
        assert len(done.stdout.splitlines()) == 51
        assert "mean log-density of 50 rows" in done.stderr

    @pytest.mark.parametrize(
        "verb", ["sample {model} -n 200000 --out -", "score {model} {rows}", "--help"]
    )
    def test_nobody_reads_to_the_end(self, places, verb):
        command = verb.format(model=places / "model", rows=places / "rows.csv")
        ended = f"{{ {PICKMIX} {command}; echo $? >&2; }} | head -1"
        done = subprocess.run(["sh", "-c", ended], capture_output=True, text=True, check=True)
        assert len(done.stdout.splitlines()) == 1
        # What the shell says of other programs, or all was written before the reader went away.
        assert done.stderr.splitlines() in (["141"], ["0"])
        if "200000" in verb:
            assert done.stderr == "141\n"

    @pytest.mark.parametrize(
        "verb",
        [
            "score {model} {rows}",
            "assign {model} {rows}",
            "sample {model} -n 9",
            "impute {model} {rows}",
            "explain {model} {rows}",
            "--help",
            "fit --help",
            "--version",
        ],
    )
    def test_a_reader_that_is_not_there_at_all(self, places, verb):
        command = [sys.executable, "-m", "pickmix"]
        command += verb.format(model=places / "model", rows=places / "rows.csv").split()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.close()
        said = process.stderr.read()
        process.stderr.close()
        assert process.wait() in (141, -signal.SIGPIPE)
        assert said == b""

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
    @pytest.mark.parametrize("verb", ["score {model} {rows}", "sample {model} --out -", "--help"])
    def test_a_full_disk(self, places, verb):
        command = verb.format(model=places / "model", rows=places / "rows.csv")
        done = subprocess.run(
            ["sh", "-c", f"{PICKMIX} {command} > /dev/full"], capture_output=True, text=True
        )
        assert done.returncode == 2
        assert done.stderr == "Error: standard output: No space left on device\n"


class TestPacked:
    def test_read_and_written(self, tmp_path, places, scores):
        out = tmp_path / "scores.csv.gz"
        run_well("score", places / "model", places / "rows.csv.gz", "--out", out)
        assert gzip.decompress(out.read_bytes()).startswith(b"log_density")
        np.testing.assert_array_equal(read_table(out)[0][:, 0], scores)
        run_well("fit", places / "rows.csv.gz", *QUICK, "--out", tmp_path / "model")
        assert same_model(tmp_path / "model", places / "model")

    def test_tabs(self, tmp_path, places, scores):
        out = tmp_path / "components.tsv.gz"
        run_well("assign", places / "model", places / "rows.csv", "--out", out)
        first = gzip.decompress(out.read_bytes()).decode().splitlines()[0]
        assert first == "component_1\tprobability_1"

    def test_piece_by_piece(self, tmp_path, places, X):
        for number, start in enumerate(range(0, 300, 100)):
            part = X[start : start + 100]
            write_table(tmp_path / f"part-{number}.csv.gz", {"a": part[:, 0], "b": part[:, 1]})
        run_well("fit", tmp_path / "part-*.csv.gz", *QUICK, "--out", tmp_path / "model")
        assert same_model(tmp_path / "model", places / "model")
        for _ in range(2):
            kept = ["--cache", tmp_path / "cache", "--out", tmp_path / "again"]
            run_well("fit", places / "rows.csv.gz", *QUICK, *kept)
            assert same_model(tmp_path / "again", places / "model")
        assert any((tmp_path / "cache").iterdir())

    def test_what_is_packed_counts_by_what_is_in_it(self, places, monkeypatch):
        path = places / "rows.csv.gz"
        size = len(gzip.decompress(path.read_bytes()))
        assert path.stat().st_size < size
        place = reading.Place(path, None, None, None, None)
        monkeypatch.setattr(reading, "LARGEST_FILE", size)
        assert place.is_small
        monkeypatch.setattr(reading, "LARGEST_FILE", size - 1)
        assert not place.is_small

    def test_a_gz_that_is_none(self, tmp_path, places):
        (tmp_path / "rows.csv.gz").write_text("a,b\n1,2\n")
        message = error_of("score", places / "model", tmp_path / "rows.csv.gz")
        assert message.endswith("got another kind; if it is plain text, name it rows.csv")


class TestDecimalComma:
    @pytest.mark.parametrize("options", [[], ["--decimal", ","], ["--chunk-size", "70"]])
    def test_the_same_model(self, tmp_path, places, options):
        run_well("fit", places / "comma.csv", *QUICK, *options, "--out", tmp_path / "model")
        assert same_model(tmp_path / "model", places / "model")

    def test_asked_for_piece_by_piece(self, tmp_path, places):
        options = ["--decimal", ",", "--chunk-size", 70, "--out", tmp_path / "model"]
        run_well("fit", places / "comma.csv", *QUICK, *options)
        assert same_model(tmp_path / "model", places / "model")

    def test_both_marks_are_asked_about(self, tmp_path, places):
        (tmp_path / "rows.csv").write_text("a;b\n1.5;2\n1;2,5\n")
        message = error_of("score", places / "model", tmp_path / "rows.csv")
        assert message.endswith("is the comma a decimal one? say so with --decimal ,")


class TestColumns:
    def test_exclude_and_id_leave_the_others(self, tmp_path, places):
        options = [*QUICK, "--out", tmp_path / "model"]
        run_well("fit", places / "named.csv", "--id", "who", "--exclude", "b", *options)
        model = pickmix.load(tmp_path / "model")
        assert model.feature_names_in_.tolist() == ["a"]
        assert model.id_column_ == "who"
        run_well("fit", places / "named.csv", "--exclude", "1", "--columns", "a,b", *options)
        assert same_model(tmp_path / "model", places / "model")

    @pytest.mark.parametrize("options", [[], ["--chunk-size", "70"]])
    def test_the_id_comes_first_in_every_result(self, places, scores, options):
        named = [places / "model", places / "named.csv", "--id", "who", *options, "--out", "-"]
        header, *rows = lines_of(run_well("score", *named).stdout)
        assert header == ["who", "log_density"]
        assert [row[0] for row in rows] == [f"No. {row}, x" for row in range(300)]
        np.testing.assert_allclose([float(row[1]) for row in rows], scores, rtol=1e-12)
        header = lines_of(run_well("assign", *named).stdout)[0]
        assert header == ["who", "component_1", "probability_1"]
        header, *rows = lines_of(run_well("explain", *named, "--top", 1).stdout)
        assert header[:3] == ["who", "row", "log_density"]
        assert rows[0][:2] == [f"No. {scores.argmin()}, x", str(scores.argmin() + 1)]

    def test_an_id_with_the_name_of_a_result_is_refused(self, tmp_path, places):
        text = (places / "named.csv").read_text()
        for verb, name in (("score", "log_density"), ("assign", "component_1"), ("explain", "row")):
            path = tmp_path / f"{verb}.csv"
            path.write_text(text.replace("who", name, 1))
            options = [verb, places / "model", path, "--id", name]
            message = error_of(*options, "--out", tmp_path / "out.csv")
            assert f"--id {name}: the result has a column of that name too" in message
            assert not (tmp_path / "out.csv").exists()
        # Other verbs have other names.
        run_well("assign", places / "model", tmp_path / "score.csv", "--id", "log_density")

    def test_the_model_remembers_the_id(self, tmp_path, places):
        options = [*QUICK, "--out", tmp_path / "model"]
        run_well("fit", places / "named.csv", "--id", "who", *options)
        shown = run_well("score", tmp_path / "model", places / "named.csv").stdout.splitlines()
        assert shown[1] == "who,log_density"
        assert shown[2].startswith('"No. 0, x",')
        # Rows that have none are scored without.
        shown = run_well("score", tmp_path / "model", places / "rows.csv").stdout.splitlines()
        assert shown[1] == "log_density"
        # A file of numbers has no room for it; only whoever asks for it is told so.
        named = ["score", tmp_path / "model", places / "named.csv", "--out", tmp_path / "x.npy"]
        run_well(*named)
        assert np.load(tmp_path / "x.npy").shape == (300, 1)
        assert "as .npy holds numbers only" in error_of(*named, "--id", "who")

    def test_an_excluded_column_counts_as_missing(self, places, X):
        model = pickmix.load(places / "model")
        for options in ([], ["--chunk-size", 70]):
            arguments = ["score", places / "model", places / "rows.csv", "--exclude", "b", *options]
            rows = lines_of(run_well(*arguments, "--out", "-").stdout)[1:]
            alone = model.marginal(["a"])
            del alone.feature_names_in_
            expected = alone.score_samples(X[:, :1])
            np.testing.assert_allclose([float(row[0]) for row in rows], expected, rtol=1e-9)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--exclude", "whom"], "no column 'whom', but 'who'; there are b, who, a or 0 to 2"),
            (["--id", "Who"], "no column 'Who', but 'who'; there are b, who, a or 0 to 2 (--id)"),
            (["--columns", "whom"], "no column 'whom', but 'who'"),
            (["--exclude", "a,b", "--id", "who"], "--exclude and --id leave no column"),
        ],
    )
    def test_names_that_are_not_there(self, places, options, message):
        assert message in error_of("fit", places / "named.csv", *QUICK, *options)

    def test_names_of_parquet_rows_keep_their_type(self, tmp_path, places, X):
        columns = {"key": np.arange(300) + 7, "a": X[:, 0], "b": X[:, 1]}
        write_table(tmp_path / "rows.parquet", columns)
        out = tmp_path / "scores.parquet"
        arguments = [places / "model", tmp_path / "rows.parquet", "--id", "key", "--out", out]
        run_well("score", *arguments)
        rows, names = read_table(out)
        assert names == ["key", "log_density"]
        np.testing.assert_array_equal(rows[:, 0], columns["key"])

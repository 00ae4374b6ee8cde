"""`pickmix score`, `assign` and `sample`: columns, names of rows, chunks, pipes and files."""

import contextlib
import gzip
import io
import os
import subprocess
import sys
import tempfile

import numpy as np
import pytest
from commands import QUICK, error_of, lines_of, nameless, printed_rows, run_well, same_model

import pickmix
from pickmix.cli import data, main
from pickmix.inputs.files import read_table, write_table

IN_CHUNKS = pytest.mark.parametrize("options", [[], ["--chunk-size", 70]])


@pytest.fixture(scope="module")
def scores(places, X):
    return nameless(places / "model").score_samples(X)


def first_column(rows):
    return [float(row[0]) for row in rows]


class TestAnswers:
    @pytest.mark.parametrize("suffix", ["csv", "csv.gz", "npy", "parquet"])
    def test_score(self, tmp_path, places, scores, suffix):
        out = tmp_path / f"scores.{suffix}"
        result = run_well("score", places / "model", places / "rows.csv", "--out", out)
        assert f"mean log-density of 300 rows: {scores.mean():.6f}" in result.stdout
        written, names = read_table(out)
        np.testing.assert_array_equal(written[:, 0], scores)
        assert names == (None if suffix == "npy" else ["log_density"])

    def test_assign(self, tmp_path, places, X):
        components, probabilities = nameless(places / "model").top_components(X, 2)
        out = tmp_path / "components.tsv.gz"
        run_well("assign", places / "model", places / "rows.csv", "--top", 2, "--out", out)
        names = ["component_1", "probability_1", "component_2", "probability_2"]
        assert gzip.decompress(out.read_bytes()).decode().splitlines()[0] == "\t".join(names)
        written, _ = read_table(out)
        np.testing.assert_array_equal(written[:, ::2], components)
        np.testing.assert_array_equal(written[:, 1::2], probabilities)

    @IN_CHUNKS
    def test_without_out_the_first_rows_are_shown(self, places, options):
        arguments = ["assign", places / "model", places / "rows.csv", *options]
        lines = run_well(*arguments).stdout.splitlines()
        assert lines[1] == "component_1,probability_1"
        assert len(lines) == 1 + 1 + 10 + 1
        assert lines[-1] == "... 290 more rows; --out FILE writes all, --out - prints all"

    def test_sample(self, tmp_path, places):
        def draw(seed):
            return printed_rows("sample", places / "model", "-n", 500, "--seed", seed)

        names, cells = draw(1)
        assert names == ["a", "b", "component"]
        assert draw(1) == (names, cells) != draw(2)
        rows, model = np.array(cells, dtype=float), pickmix.load(places / "model")
        assert rows[:, 0].mean() == pytest.approx(model.weights_ @ model.means_[:, 0], abs=1.0)
        # In mixed order, yet each row still beside its own component.
        assert (np.diff(rows[:, 2]) < 0).any()
        assert np.abs(rows[:, :2] - model.means_[rows[:, 2].astype(int)]).mean() < 2.0
        run_well("sample", places / "model", "-n", 5, "--out", tmp_path / "made.npy")
        assert np.load(tmp_path / "made.npy").shape == (5, 2)

    @pytest.mark.parametrize("suffix", ["csv", "npy"])
    def test_chunks_give_the_same(self, tmp_path, places, monkeypatch, suffix):
        temporary = tmp_path / "temporary"
        temporary.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))
        # The last chunk may be one row, with a component of its own.
        for verb, *options, size in (["score", 70], ["assign", "--top", 2, 299]):
            whole, chunks = (tmp_path / f"{name}.{suffix}" for name in ("whole", "chunks"))
            arguments = [verb, places / "model", places / "rows.csv", *options, "--out", whole]
            text = run_well(*arguments).stdout
            arguments = [verb, places / "model", places / "part-*.csv", *options]
            found = run_well(*arguments, "--chunk-size", size, "--out", chunks).stdout
            assert found == text.replace("whole", "chunks")
            one, other = read_table(chunks), read_table(whole)
            np.testing.assert_allclose(one[0], other[0], rtol=1e-9, atol=1e-300)
            assert one[1] == other[1]
        assert list(temporary.iterdir()) == []

    def test_a_gap_is_integrated_out(self, places, tmp_path):
        (tmp_path / "gaps.csv").write_text("a,b\n0.5,\n,1.5\n0.5,1.5\n")
        run_well("score", places / "model", tmp_path / "gaps.csv", "--out", tmp_path / "s.npy")
        model = nameless(places / "model")
        expected = [model.marginal([0]).score([[0.5]]), model.marginal([1]).score([[1.5]])]
        expected.append(model.score([[0.5, 1.5]]))
        np.testing.assert_allclose(np.load(tmp_path / "s.npy")[:, 0], expected, rtol=1e-9)


class TestColumns:
    @IN_CHUNKS
    def test_by_name_or_by_place(self, tmp_path, places, X, options):
        straight = run_well("score", places / "model", places / "rows.csv").stdout
        np.savetxt(tmp_path / "plain.csv", X, delimiter=",", fmt="%.17g")
        moved = {"b": X[:, 1], "other": np.ones(300), "a": X[:, 0]}
        files = [tmp_path / "plain.csv", places / "rows.npy"]
        for path in [*files, write_table(tmp_path / "moved.csv", moved)]:
            assert run_well("score", places / "model", path, *options).stdout == straight
        strange = write_table(tmp_path / "strange.csv", {"c": X[:, 0], "d": X[:, 1]})
        arguments = ["score", places / "model", strange, *options]
        assert "no column 'a'" in error_of(*arguments)
        assert run_well(*arguments, "--columns", "c,d").stdout == straight
        assert "expected the 2 columns" in error_of(*arguments, "--columns", "c")

    @IN_CHUNKS
    def test_an_excluded_column_counts_as_missing(self, places, X, options):
        arguments = ["score", places / "model", places / "rows.csv", "--exclude", "b", *options]
        expected = nameless(places / "model").marginal([0]).score_samples(X[:, :1])
        np.testing.assert_allclose(first_column(printed_rows(*arguments)[1]), expected, rtol=1e-9)

    @IN_CHUNKS
    def test_the_id_comes_first_in_every_result(self, places, scores, options):
        named = [places / "model", places / "named.csv", "--id", "who", *options]
        header, rows = printed_rows("score", *named)
        assert header == ["who", "log_density"]
        assert [row[0] for row in rows] == [f"No. {row}, x" for row in range(300)]
        np.testing.assert_allclose([float(row[1]) for row in rows], scores, rtol=1e-12)
        assert printed_rows("assign", *named)[0] == ["who", "component_1", "probability_1"]
        header, rows = printed_rows("explain", *named, "--top", 1)
        assert header[:3] == ["who", "row", "log_density"]
        assert rows[0][:2] == [f"No. {scores.argmin()}, x", str(scores.argmin() + 1)]

    @pytest.mark.parametrize(("verb", "name"), [("score", "log_density"), ("explain", "row")])
    def test_an_id_with_the_name_of_a_result_is_refused(self, tmp_path, places, verb, name):
        path = tmp_path / f"{verb}.csv"
        path.write_text((places / "named.csv").read_text().replace("who", name, 1))
        arguments = ["--id", name, "--out", tmp_path / "out.csv"]
        message = error_of(verb, places / "model", path, *arguments)
        assert f"--id {name}: the result has a column of that name too" in message
        assert not (tmp_path / "out.csv").exists()
        # Other verbs have other names.
        run_well("assign", places / "model", path, "--id", name)

    def test_the_model_remembers_the_id(self, tmp_path, places):
        model = tmp_path / "model"
        run_well("fit", places / "named.csv", "--id", "who", *QUICK, "--quiet", "--out", model)
        shown = run_well("score", model, places / "named.csv").stdout.splitlines()
        assert shown[1] == "who,log_density"
        assert shown[2].startswith('"No. 0, x",')
        # Rows that have none are scored without.
        shown = run_well("score", model, places / "rows.csv").stdout.splitlines()
        assert shown[1] == "log_density"
        # A file of numbers has no room for it; only whoever asks for it is told so.
        named = ["score", model, places / "named.csv", "--out", tmp_path / "x.npy"]
        run_well(*named)
        assert np.load(tmp_path / "x.npy").shape == (300, 1)
        assert "as .npy holds numbers only" in error_of(*named, "--id", "who")

    def test_ids_of_parquet_rows_keep_their_type(self, tmp_path, places, X):
        columns = {"key": np.arange(300) + 7, "a": X[:, 0], "b": X[:, 1]}
        write_table(tmp_path / "rows.parquet", columns)
        out = tmp_path / "scores.parquet"
        arguments = [places / "model", tmp_path / "rows.parquet", "--id", "key", "--out", out]
        run_well("score", *arguments)
        rows, names = read_table(out)
        assert names == ["key", "log_density"]
        np.testing.assert_array_equal(rows[:, 0], columns["key"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["score", "rows.csv", "rows.csv"], "expected a saved model"),
        (["score", "none", "rows.csv"], "none: expected a saved model, found nothing there"),
        (["score", "model", "rows.csv", "--columns", "a"], "expected the 2 columns"),
        (["score", "model", "rows.csv", "--out", "x.doc"], "got '.doc'"),
        (["assign", "model", "rows.csv", "--top", "4"], "n_components=3, got 4"),
        (["sample", "model", "--out", "none/x.csv"], "does not exist"),
        (["score", "model", "plain.csv.gz"], "if it is plain text, name it plain.csv"),
        (["score", "model", "marks.csv"], "is the comma a decimal one? say so with --decimal ,"),
    ],
)
def test_bad_input_is_one_clear_line(places, monkeypatch, arguments, message):
    monkeypatch.chdir(places)
    (places / "plain.csv.gz").write_text("a,b\n1,2\n")
    (places / "marks.csv").write_text("a;b\n1.5;2\n1;2,5\n")
    before = sorted(places.rglob("*"))
    assert message in error_of(*arguments)
    assert sorted(places.rglob("*")) == before


def test_an_infinite_number_is_named_and_nothing_left(tmp_path, places, X):
    holes = X[:100].copy()
    holes[41, 1] = np.inf
    write_table(tmp_path / "part-0.csv", {"a": X[:100, 0], "b": X[:100, 1]})
    write_table(tmp_path / "part-1.csv", {"a": holes[:, 0], "b": holes[:, 1]})
    for suffix in ("csv", "npy"):
        out = tmp_path / f"out.{suffix}"
        out.write_text("older")
        before = sorted(tmp_path.iterdir())
        arguments = [tmp_path / "part-*.csv", "--chunk-size", 30, "--out", out]
        message = error_of("score", places / "model", *arguments)
        assert message.endswith("finite numbers, got inf in part-1.csv, row 42, column 'b'.")
        assert out.read_text() == "older"
        assert sorted(tmp_path.iterdir()) == before


def test_which_files_are_read_in_chunks(tmp_path, places, monkeypatch):
    def is_small(path, **options):
        return data.DataFiles(path, str(path), **options).is_small

    file, pattern = places / "rows.csv", tmp_path / "rows[1].npy"
    np.save(pattern, np.ones((3, 2)))
    # A name with a mark of patterns is one file; what is not there is refused as before.
    assert all(map(is_small, (file, pattern, places / "none.csv")))
    assert not any(map(is_small, (places, places / "part-*.csv", places / "part-[01].csv")))
    assert not is_small(file, chunk_size=100)
    assert not is_small(file, cache=places)
    # What is packed counts by what is in it.
    size = file.stat().st_size
    for name in ("rows.csv", "rows.csv.gz"):
        monkeypatch.setattr(data, "LARGEST_FILE", size)
        assert is_small(places / name)
        monkeypatch.setattr(data, "LARGEST_FILE", size - 1)
        assert not is_small(places / name)
        assert is_small(places / name, key="X")


class TestStandardInput:
    @pytest.mark.parametrize("name", ["rows.csv.gz", "rows.parquet", "rows.npy"])
    def test_every_kind_of_file_makes_the_same_model(self, tmp_path, places, name):
        content = (places / name).read_bytes()
        result = run_well("fit", "-", *QUICK, "--out", tmp_path / "model", stdin=content)
        assert result.stdout.splitlines()[0].endswith(": standard input")
        assert same_model(tmp_path / "model", places / "model")

    @IN_CHUNKS
    def test_score(self, places, scores, options):
        text = (places / "rows.csv").read_text()
        _, rows = printed_rows("score", places / "model", "-", *options, stdin=text)
        np.testing.assert_allclose(first_column(rows), scores, rtol=1e-12)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a,b\n1,x\n", "expected numbers in column 'b', got 'x'"),
            ("a\n1\n", "no column 'b'"),
            ("", "expected rows, got nothing; - reads what another program writes, as in: sort"),
        ],
    )
    def test_messages_call_it_by_its_name(self, places, text, message):
        line = error_of("score", places / "model", "-", stdin=text)
        assert line.startswith(f"Error: standard input: {message}")


class TestStandardOutput:
    def test_rows_only(self, places, scores):
        result = run_well("score", places / "model", places / "rows.csv", "--out", "-")
        header, *rows = lines_of(result.stdout)
        assert header == ["log_density"]
        np.testing.assert_array_equal(first_column(rows), scores)
        assert result.stderr == f"mean log-density of 300 rows: {scores.mean():.6f}\n"
        assert "\r" not in result.stdout

    def test_nobody_reads_to_the_end(self, places):
        command = f"{sys.executable} -m pickmix sample {places / 'model'} -n 5000 --out -"
        ended = f"{{ {command}; echo $? >&2; }} | head -1"
        done = subprocess.run(["sh", "-c", ended], capture_output=True, text=True, check=True)
        assert len(done.stdout.splitlines()) == 1
        # What the shell says of other programs.
        assert done.stderr == "141\n"

    VERBS = pytest.mark.parametrize("verb", ["score {} {}/rows.csv", "sample {} --out -", "fit -h"])

    def exit_code(self, places, monkeypatch, verb, file):
        """Run a command with this file as standard output."""
        monkeypatch.setattr(sys, "stdout", file)
        with pytest.raises(SystemExit) as ended:
            main(verb.format(places / "model", places).split(), prog_name="pickmix")
        monkeypatch.undo()
        return ended.value.code

    @VERBS
    def test_a_reader_that_is_not_there_at_all(self, places, monkeypatch, capsys, verb):
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "w") as file:
            assert self.exit_code(places, monkeypatch, verb, file) == 141
        assert capsys.readouterr().err == ""

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
    @VERBS
    def test_a_full_disk(self, places, monkeypatch, capsys, verb):
        file = io.TextIOWrapper(io.FileIO("/dev/full", "w"))
        assert self.exit_code(places, monkeypatch, verb, file) == 2
        assert capsys.readouterr().err == "Error: standard output: No space left on device\n"
        # What is left in its buffer cannot be written either.
        with contextlib.suppress(OSError):
            file.close()

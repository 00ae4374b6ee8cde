"""Tables with text, dates and gaps on the command line: fit, score, assign."""

import gzip
import re
import shlex
import warnings

import commands
import numpy as np
import pandas as pd
import pyarrow
import pytest
from commands import as_csv, error_of, printed_rows, run_well, summary_of
from pyarrow import parquet
from sklearn.exceptions import ConvergenceWarning

import pickmix
from pickmix.inputs.files import read_table, write_table

QUICK = [*commands.QUICK, "--max-iter", "5"]


def kinds_of(path):
    return pickmix.load(path).schema_.kinds


class TestFit:
    def test_it_shows_what_the_columns_hold(self, tables):
        lines = (tables / "printed.txt").read_text().splitlines()
        assert lines[0].split() == ["column", "kind", "levels", "or", "range", "step", "missing"]
        assert [line.split()[:2] for line in lines[1:5]] == [
            ["species", "category"],
            ["mass", "integer"],
            ["height", "integer"],
            ["born", "date"],
        ]
        assert lines[6].startswith("Fitting 3 full components to 240 rows of 5 columns by mhsaem: ")
        assert lines[-1].endswith("model (model.json, arrays.npz, trace.csv).")

    def test_the_model_is_that_of_the_estimator(self, tables, people):
        table = {name: values for name, values in people.items() if name != "name"}
        expected = pickmix.TableMixture(3, max_iter=5, tol=0.0, random_state=0).fit(table)
        model = pickmix.load(tables / "model")
        scores = expected.score_samples(table)
        np.testing.assert_allclose(model.score_samples(table), scores, rtol=1e-12)
        printed = (tables / "printed.txt").read_text()
        assert f" {scores.mean():.4f}  (all rows)" in printed
        out = tables / "scores.csv"
        run_well("score", tables / "model", tables / "people.csv", "--out", out)
        written, names = read_table(out, columns=["log_density"])
        np.testing.assert_allclose(written[:, 0], scores, rtol=1e-12)
        top, probabilities = expected.top_components(table, 2)
        arguments = [tables / "people.csv", "--top", 2, "--out", out]
        run_well("assign", tables / "model", *arguments)
        written, names = read_table(out, columns=[1, 2, 3, 4])
        assert names == ["component_1", "probability_1", "component_2", "probability_2"]
        np.testing.assert_array_equal(written[:, ::2], top)
        np.testing.assert_allclose(written[:, 1::2], probabilities, rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("form", ["semicolons", "stdin", "parquet", "parts"])
    def test_other_files_of_the_same_table(self, tmp_path, tables, people, form):
        text = as_csv(people)
        path, stdin, id = tmp_path / "people.csv", None, ["--id", "name"]
        if form == "semicolons":
            path.write_text(as_csv(people, ";", ","))
        elif form == "stdin":
            path, stdin = "-", text
        elif form == "parquet":
            path = tmp_path / "people.parquet"
            parquet.write_table(pyarrow.table(people), path)
        else:
            header, *lines = text.splitlines(keepends=True)
            for number in range(2):
                part = lines[120 * number : 120 * (number + 1)]
                (tmp_path / f"part-{number}.csv").write_text(header + "".join(part))
            path = tmp_path / "part-*.csv"
        model = tmp_path / "model"
        run_well("fit", path, *id, *QUICK, "--quiet", "--out", model, stdin=stdin)
        straight = run_well("score", tables / "model", tables / "people.csv").stdout
        assert run_well("score", model, path, stdin=stdin).stdout == straight

    def test_auto_takes_gaussians_for_complete_numbers_only(self, tmp_path, people):
        numbers = [height for height in people["height"] if height is not None]
        out = ["--out", tmp_path / "model", "--quiet", "--no-plot", *QUICK]
        (tmp_path / "complete.csv").write_text(as_csv({"a": numbers, "b": numbers[::-1]}))
        run_well("fit", tmp_path / "complete.csv", *out)
        assert isinstance(pickmix.load(tmp_path / "model"), pickmix.GaussianMixture)
        run_well("fit", tmp_path / "complete.csv", "--model", "table", *out)
        assert kinds_of(tmp_path / "model") == {"a": "integer", "b": "integer"}
        gaps = {"a": [None, *numbers], "b": [*numbers, None]}
        (tmp_path / "gaps.csv").write_text(as_csv(gaps))
        run_well("fit", tmp_path / "gaps.csv", *out)
        assert kinds_of(tmp_path / "model") == {"a": "integer", "b": "integer"}
        run_well("fit", tmp_path / "gaps.csv", "--model", "gaussian", *out)
        assert isinstance(pickmix.load(tmp_path / "model"), pickmix.GaussianMixture)

    def test_a_word_far_down_still_makes_a_table(self, tmp_path):
        rows = "".join(f"{row % 7},{row % 5}\n" for row in range(400))
        (tmp_path / "late.csv").write_text("a,b\n" + rows + "1,x\n")
        line = error_of("fit", tmp_path / "late.csv", *QUICK, "--out", tmp_path / "model")
        assert "late.csv: column 'b' holds 400 numbers among 401 values, but row 401 holds" in line
        for kind in ("category", "integer"):
            options = ["--kind", f"b={kind}", *QUICK, "--quiet", "--out", tmp_path / kind]
            result = run_well("fit", tmp_path / "late.csv", *options)
            assert kinds_of(tmp_path / kind)["b"] == kind
        assert "note: Column 'b' holds 1 value(s) that are no numbers, such as 'x'" in result.stderr

    def test_words_that_mean_a_gap(self, tmp_path):
        rows = "".join(f"{row % 7},{row * 0.37 % 5:.2f}\n" for row in range(400))
        (tmp_path / "words.csv").write_text("a,b\n" + rows + "?,1.5\n1,none\n")
        options = ["--missing", "?, none", *QUICK, "--quiet", "--out", tmp_path / "model"]
        run_well("fit", tmp_path / "words.csv", *options)
        assert kinds_of(tmp_path / "model") == {"a": "ordinal", "b": "integer"}
        run_well("impute", tmp_path / "model", tmp_path / "words.csv", "--out", tmp_path / "f.csv")
        filled = (tmp_path / "f.csv").read_text()
        assert "?" not in filled
        assert "none" not in filled

    def test_gaps_that_are_answers(self, tmp_path):
        rows = "".join(f"no,,{row % 7}\nyes,{('a', 'b')[row % 2]},\n" for row in range(200))
        (tmp_path / "answers.csv").write_text("again,charge,n\n" + rows)
        options = ["--gap-levels", "charge", "--components", "2", "--quiet"]
        run_well("fit", tmp_path / "answers.csv", *options, "--out", tmp_path / "model")
        model, filled = tmp_path / "model", tmp_path / "filled.csv"
        result = run_well("impute", model, tmp_path / "answers.csv", "--out", filled)
        assert "200 of 1,200 cells filled" in result.stdout + result.stderr
        lines = filled.read_text().splitlines()[1:]
        assert all(line.startswith("no,,") for line in lines[::2])
        assert not any(line.endswith(",") for line in lines)
        drawn = tmp_path / "drawn.csv"
        run_well("sample", model, "-n", "300", "--out", drawn)
        lines = drawn.read_text().splitlines()[1:]
        assert sum(line.startswith("no,,") for line in lines) > 100
        # Levels that a component has not seen keep a small probability.
        assert sum(line.startswith("yes,,") for line in lines) < 6

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ([], "people.csv: column 'name' looks like an identifier: 240 different texts"),
            ([], "Leave it out: --exclude name or --kind name=skip."),
            (["--kind", "massa=count"], "no column 'massa', but 'mass'; there are"),
            (["--kind", "mass=counts"], "--kind must be NAME=KIND, with one of number, integer,"),
            (["--kind", "mass"], "--kind must be NAME=KIND"),
            (["--model", "gaussian"], "expected numbers in column 'name', got 'No. 0, x'"),
            (["--model", "gaussian", "--kind", "mass=count"], "--kind belongs to --model table"),
            (["--exclude", "specie"], "no column 'specie', but 'species'"),
        ],
    )
    def test_errors_say_what_helps(self, tmp_path, tables, options, message):
        line = error_of("fit", tables / "people.csv", *options, "--out", tmp_path / "m")
        assert message in line
        assert not (tmp_path / "m").exists()

    def test_remedies_can_be_pasted(self, tmp_path):
        texts = [f"text {i} of many" for i in range(100)]
        names = {"Full, name": texts, "wild species": texts, "a": [i % 17 for i in range(100)]}
        write_table(tmp_path / "rows.csv", names)
        options = ["fit", tmp_path / "rows.csv", *QUICK, "--no-report", "--out", tmp_path / "m"]
        line = error_of(*options)
        assert """--kind 'Full, name=skip'""" in line
        remedy = line.rsplit("without all of them: ", 1)[1].rstrip(". \n")
        run_well(*options, *shlex.split(remedy))
        assert pickmix.load(tmp_path / "m").feature_names_in_.tolist() == ["a"]

    def test_numbers_with_gaps_are_fitted_in_chunks(self, tmp_path):
        rng = np.random.default_rng(1)
        X = rng.normal(size=(200, 2)) + 5.0 * rng.integers(0, 2, (200, 1))
        X[rng.random(X.shape) < 0.1] = np.nan
        X = X[~np.isnan(X).all(axis=1)]
        write_table(tmp_path / "rows.csv", {"a": X[:, 0], "b": X[:, 1]})
        options = [*QUICK, "--no-plot", "--chunk-size", 50, "--out", tmp_path / "m"]
        run_well("fit", tmp_path / "rows.csv", *options)
        found = pickmix.load(tmp_path / "m")
        del found.feature_names_in_
        mine = pickmix.GaussianMixture(**found.get_params())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            mine.fit(X)
        # The sample of a small table is all of it; chunks add in another order.
        np.testing.assert_allclose(found.score(X), mine.score(X), atol=0.2)
        out = tmp_path / "scores.csv"
        run_well("score", tmp_path / "m", tmp_path / "rows.csv", "--chunk-size", 50, "--out", out)
        np.testing.assert_allclose(read_table(out)[0][:, 0], found.score_samples(X), rtol=1e-9)
        # What is infinite is none of these.
        (tmp_path / "bad.csv").write_text("a,b\n1,2\n3,inf\n4,\n")
        message = error_of("fit", tmp_path / "bad.csv", *options)
        assert "got inf in" in message


class TestQueries:
    def test_columns_are_found_by_name_and_absent_ones_told(self, tmp_path, tables, people):
        moved = {name: people[name] for name in ("born", "mass", "species", "tagged")}
        (tmp_path / "moved.csv").write_text(as_csv(moved))
        result = run_well("score", tables / "model", tmp_path / "moved.csv")
        assert "note: The table lacks the column 'height'" in result.stderr
        excluded = run_well("score", tables / "model", tables / "people.csv", "--exclude", "height")
        assert excluded.stdout.splitlines()[0] == result.stdout.splitlines()[0]
        assert excluded.stderr == ""
        (tmp_path / "other.csv").write_text("x,y\n1,a\n")
        message = error_of("score", tables / "model", tmp_path / "other.csv")
        assert "expected columns that" in message
        assert message.endswith("was fitted to (species, mass, height, born, tagged), got x, y")

    def test_new_levels_are_told(self, tmp_path, tables, people):
        (tmp_path / "new.csv").write_text(
            "species,mass,height,born,tagged\nEmperor,4000,200.5,2008-01-01,True\n"
        )
        result = run_well("score", tables / "model", tmp_path / "new.csv")
        assert "note: Column 'species' holds levels that were not in the fit" in result.stderr


def test_python_and_the_command_line_read_a_text_alike(people, tmp_path):
    text = as_csv(people, "|", gap="NA").partition("\n")[2]
    path = tmp_path / "people.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    run_well("fit", path, *QUICK, "--model", "table", "--exclude", "0", "--out", tmp_path / "model")
    theirs = pickmix.load(tmp_path / "model")
    mine = pickmix.TableMixture(**theirs.get_params()).set_params(exclude=["column_0"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mine.fit(path)
    theirs_by_name = {name: theirs.schema_[name] for name in theirs.schema_.kinds}
    assert {name: mine.schema_[name] for name in theirs_by_name} == theirs_by_name
    np.testing.assert_array_equal(mine.score_samples(path), theirs.score_samples(path))


def test_columns_of_whole_numbers_make_a_table(tmp_path):
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.poisson(30.0, 200), rng.normal(size=200)])
    np.save(tmp_path / "rows.npy", rows)
    run_well("fit", tmp_path / "rows.npy", *QUICK, "--out", tmp_path / "model")
    header, drawn = printed_rows("sample", tmp_path / "model", "-n", 20)
    assert header == ["column_0", "column_1"]
    assert all(float(row[0]).is_integer() for row in drawn)


def test_texts_that_look_like_dates_are_told(tmp_path):
    days = [f"{row % 12 + 1:02d}/{row % 28 + 1:02d}/2024" for row in range(300)]
    lines = [f"{day},{row % 7}" for row, day in enumerate(days)]
    (tmp_path / "rows.csv").write_text("\n".join(["day,x", *lines]) + "\n")
    result = run_well("fit", tmp_path / "rows.csv", *QUICK, "--out", tmp_path / "model")
    told = [line for line in result.stderr.splitlines() if "looks like a date" in line]
    assert len(told) == 1
    assert told[0].startswith("note: Column 'day' is a category, though '01/01/2024' looks")


def test_columns_that_the_fit_takes_as_levels_are_named(tmp_path):
    rng = np.random.default_rng(0)
    fine = rng.random(2400) < 0.5
    # The last digit of an amount depends on the yes or no, and neighbours do not say it.
    amounts = 2 * rng.zipf(1.5, size=2400).clip(1, 30) + fine
    pd.DataFrame({"fine": fine, "amount": amounts}).to_csv(tmp_path / "fines.csv", index=False)
    options = ("--components", 2, "--no-report", "--out", tmp_path / "model")
    result = run_well("fit", tmp_path / "fines.csv", *options)
    assert re.search(r"^amount +integer", result.stdout, re.MULTILINE)
    assert summary_of(result.stdout)["columns taken as levels"] == "amount"
    assert pickmix.load(tmp_path / "model").schema_.kinds["amount"] == "ordinal"

"""`pickmix report`, and the report that `pickmix fit` leaves."""

import json
import re

import numpy as np
import pytest
from commands import error_of, nameless, run_well

import pickmix
from pickmix.inputs.files import write_table

QUICK = ["--components", "3", "--max-iter", "3", "--tol", "0", "--no-plot"]


def payload_of(text):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(found[1])


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A folder with models of numbers and of a table, and what they were fitted to."""
    folder = tmp_path_factory.mktemp("reports")
    rng = np.random.default_rng(0)
    group = rng.integers(0, 3, 300)
    a = rng.normal(6.0 * group, 1.0)
    who = np.array([f"p{i}" for i in range(300)])
    numbers = {"who": who, "a": a, "b": 2.0 * a + rng.normal(0.0, 0.3, 300)}
    write_table(folder / "numbers.csv", numbers)
    options = [*QUICK, "--quiet", "--id", "who"]
    run_well("fit", folder / "numbers.csv", *options, "--out", folder / "numbers")
    table = {
        "who": who,
        "species": np.array(["Adelie", "Gentoo", "Chin, strap"])[group],
        "mass": np.where(rng.random(300) < 0.1, "", rng.normal(4000, 300, 300).round().astype(str)),
        "born": (np.datetime64("2007-01-01") + rng.integers(0, 900, 300)).astype(str),
    }
    write_table(folder / "table.csv", table)
    run_well("fit", folder / "table.csv", *options, "--no-report", "--out", folder / "table")
    return folder


class TestReport:
    def test_it_says_what_the_library_says(self, places, tmp_path):
        out = tmp_path / "r.html"
        result = run_well("report", places / "numbers", places / "numbers.csv", "--out", out)
        assert result.stdout.splitlines()[-1] == f"wrote {out}"
        assert result.stdout.startswith("300 of 300 rows, ")
        found = payload_of(out.read_text("utf-8"))
        model = nameless(places / "numbers")
        rows = np.loadtxt(places / "numbers.csv", delimiter=",", skiprows=1, usecols=(1, 2))
        assert f"{model.score(rows):.3f}" in found["verdict"]["headline"]
        assert found["columns"] == found["map"]["names"] == ["a", "b"]
        lowest = model.score_samples(rows).argmin()
        odd = found["unusual"][0]
        assert found["rows"]["number"][odd["row"]] == lowest + 1

    def test_the_id_that_the_model_remembers_names_the_rows(self, places, tmp_path):
        out = tmp_path / "r.html"
        run_well("report", places / "numbers", places / "numbers.csv", "--out", out, "--quiet")
        rows = payload_of(out.read_text("utf-8"))["rows"]
        assert rows["idName"] == "who"
        assert rows["id"] == [f"p{number - 1}" for number in rows["number"]]

    def test_options(self, places, tmp_path):
        out = tmp_path / "r.html"
        options = ["--title", "<b>", "--held-out", "--rows", 50, "--unusual", 2, "--quiet"]
        result = run_well(
            "report", places / "numbers", places / "numbers.csv", *options, "--out", out
        )
        assert result.output == ""
        found = payload_of(out.read_text("utf-8"))
        assert found["title"] == "<b>"
        assert "has not seen" in found["verdict"]["headline"]
        assert found["rows"]["n"] == 50
        assert len(set(found["rows"]["number"])) == 50
        assert len(found["unusual"]) == 2
        assert "50 of 300 rows" in found["verdict"]["facts"][0][2]

    def test_large_files_are_sampled_from_all_parts(self, places, tmp_path):
        out = tmp_path / "r.html"
        options = ["--chunk-size", 40, "--rows", 60, "--out", out]
        run_well("report", places / "numbers", places / "numbers.csv", *options)
        rows = payload_of(out.read_text("utf-8"))["rows"]
        numbers = np.array(sorted(rows["number"]))
        assert numbers.size == 60
        # Each eighth of the file has some.
        assert (np.histogram(numbers, np.linspace(0, 300, 9))[0] > 0).all()
        assert rows["id"] == [f"p{number - 1}" for number in rows["number"]]

    def test_tables_with_gaps(self, places, tmp_path):
        out = tmp_path / "r.html"
        run_well("report", places / "table", places / "table.csv", "--out", out)
        found = payload_of(out.read_text("utf-8"))
        assert found["columns"] == ["species", "mass", "born"]
        assert "Chin, strap" in found["rows"]["cells"][0]["texts"]
        assert None in found["rows"]["cells"][1]

    def test_standard_input_and_output(self, places):
        text = (places / "numbers.csv").read_text()
        result = run_well("report", places / "numbers", "-", "--out", "-", stdin=text)
        assert result.stdout.startswith("<!doctype html>")
        assert result.stdout.rstrip().endswith("</html>")
        assert "300 of 300 rows" in result.stderr

    def test_the_place_is_checked_before_the_work(self, places, tmp_path):
        line = error_of("report", "no-model", "no-data", "--out", tmp_path / "no" / "r.html")
        assert "does not exist" in line
        assert "expected a file name" in error_of("report", "no", "no", "--out", tmp_path)
        assert "no-model" in error_of("report", "no-model", "no-data", "--out", tmp_path / "r.html")

    def test_model_and_data_are_not_replaced(self, places, tmp_path):
        data, model = places / "numbers.csv", tmp_path / "model.npz"
        pickmix.save(pickmix.load(places / "numbers"), model)
        for target in (model, data):
            line = error_of("report", model, data, "--out", target)
            assert "expected a file name ending in .html or .htm" in line
        # A model loads whatever its file is called.
        renamed = model.rename(tmp_path / "model.html")
        assert "got MODEL itself" in error_of("report", renamed, data, "--out", renamed)
        table = tmp_path / "rows.htm"
        table.write_text("a,b\n")
        assert "got DATA itself" in error_of("report", renamed, table, "--out", table)
        pickmix.load(renamed)


class TestFit:
    def test_it_leaves_a_report_and_says_where(self, places, tmp_path):
        out = tmp_path / "model"
        result = run_well("fit", places / "numbers.csv", *QUICK, "--id", "who", "--out", out)
        assert "report.html)" in result.stdout
        assert f"Open {out / 'report.html'} in a browser" in result.stdout
        found = payload_of((out / "report.html").read_text("utf-8"))
        assert "rows of the fit" in found["verdict"]["headline"]
        assert found["columns"] == ["a", "b"]

    def test_a_report_of_the_model_before_does_not_stay(self, places, tmp_path):
        out = tmp_path / "model"
        options = [*QUICK, "--id", "who", "--quiet", "--out", out]
        run_well("fit", places / "numbers.csv", *options)
        assert (out / "report.html").exists()
        run_well("fit", places / "numbers.csv", *options, "--no-report")
        assert not (out / "report.html").exists()

    @pytest.mark.parametrize("name", ["numbers", "table"])
    def test_a_picture_of_the_model_before_does_not_stay(self, places, tmp_path, name):
        out = tmp_path / "model"
        pickmix.save(pickmix.load(places / "numbers"), out)
        (out / "fit.png").write_text("old")
        # There are no pictures of tables.
        options = [option for option in QUICK if name == "numbers" or option != "--no-plot"]
        options += ["--id", "who", "--quiet", "--no-report", "--out", out]
        run_well("fit", places / f"{name}.csv", *options)
        assert not (out / "fit.png").exists()

    def test_a_report_that_fails_leaves_the_model(self, places, tmp_path, monkeypatch):
        def fail(*args, **kwargs):
            raise ValueError("nothing to see\nin detail")

        monkeypatch.setattr("pickmix.inspection.report.leave_report", fail)
        out = tmp_path / "model"
        result = run_well("fit", places / "numbers.csv", *QUICK, "--id", "who", "--out", out)
        assert "note: no report.html: nothing to see" in result.stderr.splitlines()
        assert "report.html" not in result.stdout
        pickmix.load(out)

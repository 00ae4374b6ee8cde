"""`pickmix report`, and the report that `pickmix fit` leaves."""

import json
import re

import numpy as np
import pytest
from commands import error_of, nameless, run_well

import pickmix
from pickmix.inputs.files import write_table

QUICK = ["--components", "3", "--max-iter", "3", "--tol", "0", "--id", "who"]


def payload_of(path):
    text = path.read_text("utf-8")
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
    table = {
        "who": who,
        "species": np.array(["Adelie", "Gentoo", "Chin, strap"])[group],
        "mass": np.where(rng.random(300) < 0.1, "", rng.normal(4000, 300, 300).round().astype(str)),
        "born": (np.datetime64("2007-01-01") + rng.integers(0, 900, 300)).astype(str),
    }
    write_table(folder / "table.csv", table)
    for name in ("numbers", "table"):
        options = [*QUICK, "--no-plot", "--out", folder / name]
        result = run_well("fit", folder / f"{name}.csv", *options)
        assert "report.html)" in result.stdout
        assert f"Open {folder / name / 'report.html'} in a browser" in result.stdout
    return folder


def report(places, tmp_path, *options, name="numbers"):
    out = tmp_path / "r.html"
    arguments = ["report", places / name, places / f"{name}.csv", *options, "--out", out]
    return run_well(*arguments).output, payload_of(out)


def test_it_says_what_the_library_says(places, tmp_path):
    printed, found = report(places, tmp_path)
    assert printed.startswith("300 of 300 rows, ")
    assert printed.splitlines()[-1] == f"wrote {tmp_path / 'r.html'}"
    model = nameless(places / "numbers")
    X = np.loadtxt(places / "numbers.csv", delimiter=",", skiprows=1, usecols=(1, 2))
    assert f"{model.score(X):.3f}" in found["verdict"]["headline"]
    assert found["columns"] == found["map"]["names"] == ["a", "b"]
    detector = pickmix.MixtureDetector(random_state=0).fit(X)
    rows, lowest = found["rows"], detector.decision_scores_.argmax()
    assert rows["number"][found["unusual"][0]["row"]] == lowest + 1
    # The model remembers the column that names the rows.
    assert rows["idName"] == "who"
    assert rows["id"] == [f"p{number - 1}" for number in rows["number"]]


def test_pictures(places, tmp_path):
    assert report(places, tmp_path, "--column-shape", "1x2")[1]["pictures"]["shape"] == [1, 2]
    files = places / "numbers", places / "numbers.csv"
    line = error_of("report", *files, "--column-shape", "2xa", "--out", tmp_path / "r.html")
    assert "--column-shape must be a height and a width" in line


def test_options(places, tmp_path):
    options = ["--title", "<b>", "--held-out", "--rows", 50, "--unusual", 2, "--quiet"]
    printed, found = report(places, tmp_path, *options)
    assert printed == ""
    assert found["title"] == "<b>"
    assert "has not seen" in found["verdict"]["headline"]
    assert found["rows"]["n"] == len(set(found["rows"]["number"])) == 50
    assert len(found["unusual"]) == 2
    assert "50 of 300 rows" in found["verdict"]["facts"][0][2]


def test_large_files_are_sampled_from_all_parts(places, tmp_path):
    rows = report(places, tmp_path, "--chunk-size", 40, "--rows", 60)[1]["rows"]
    numbers = np.array(sorted(rows["number"]))
    assert numbers.size == 60
    # Each eighth of the file has some.
    assert (np.histogram(numbers, np.linspace(0, 300, 9))[0] > 0).all()
    assert rows["id"] == [f"p{number - 1}" for number in rows["number"]]


def test_tables_with_gaps(places, tmp_path):
    found = report(places, tmp_path, name="table")[1]
    assert found["columns"] == ["species", "mass", "born"]
    assert "Chin, strap" in found["rows"]["cells"][0]["texts"]
    assert None in found["rows"]["cells"][1]


def test_standard_input_and_output(places):
    text = (places / "numbers.csv").read_text()
    result = run_well("report", places / "numbers", "-", "--out", "-", stdin=text)
    assert result.stdout.startswith("<!doctype html>")
    assert result.stdout.rstrip().endswith("</html>")
    assert "300 of 300 rows" in result.stderr


def test_the_place_is_checked_before_the_work(places, tmp_path):
    line = error_of("report", "no-model", "no-data", "--out", tmp_path / "no" / "r.html")
    assert "does not exist" in line
    assert "expected a file name" in error_of("report", "no", "no", "--out", tmp_path)
    assert "no-model" in error_of("report", "no-model", "no-data", "--out", tmp_path / "r.html")
    # A model loads whatever its file is called.
    model, table = tmp_path / "model.html", tmp_path / "rows.htm"
    pickmix.save(pickmix.load(places / "numbers"), tmp_path / "model.npz")
    (tmp_path / "model.npz").rename(model)
    table.write_text("a,b\n")
    assert "got MODEL itself" in error_of("report", model, table, "--out", model)
    assert "got DATA itself" in error_of("report", model, table, "--out", table)
    pickmix.load(model)


class TestFit:
    def test_it_leaves_a_report(self, places):
        found = payload_of(places / "numbers" / "report.html")
        assert "rows of the fit" in found["verdict"]["headline"]
        assert found["columns"] == ["a", "b"]
        found = payload_of(places / "table" / "report.html")
        assert found["columns"] == ["species", "mass", "born"]

    def test_what_shows_the_model_before_does_not_stay(self, places, tmp_path):
        for name in ("numbers", "table"):
            out = tmp_path / name
            pickmix.save(pickmix.load(places / "numbers"), out)
            for file in ("fit.png", "report.html"):
                (out / file).write_text("old")
            # There are no pictures of tables.
            plot = ["--no-plot"] if name == "numbers" else []
            options = [*QUICK, *plot, "--quiet", "--no-report", "--out", out]
            run_well("fit", places / f"{name}.csv", *options)
            assert not {"fit.png", "report.html"} & {path.name for path in out.iterdir()}

    def test_a_report_that_fails_leaves_the_model(self, places, tmp_path, monkeypatch):
        def fail(*args, **kwargs):
            raise ValueError("nothing to see\nin detail")

        monkeypatch.setattr("pickmix.inspection.report.make_page", fail)
        out = tmp_path / "model"
        result = run_well("fit", places / "numbers.csv", *QUICK, "--no-plot", "--out", out)
        assert "note: no report.html: nothing to see" in result.stderr.splitlines()
        assert "report.html" not in result.stdout
        pickmix.load(out)

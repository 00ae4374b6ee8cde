"""`pickmix synthesize`: rows like those of a file, and what is said of them."""

import csv

import numpy as np
import pytest
from commands import error_of, run_well

from pickmix import TableMixture
from pickmix.cli.tables import _with_more_components
from pickmix.inputs.frames import read_typed


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    rng = np.random.default_rng(0)
    dry = rng.random(400) < 0.6
    path = tmp_path_factory.mktemp("synthesize") / "days.csv"
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["rain", "place", "note"])
        for number, is_dry in enumerate(dry.tolist()):
            rain = 0.0 if is_dry else round(float(rng.gamma(2.0, 2.0)), 3)
            lines.writerow([rain, "hill" if is_dry else "lake", f"n{number}"])
    return path


def test_rows_are_drawn_and_compared(path, tmp_path):
    out = tmp_path / "drawn.csv"
    arguments = ["--exclude", "note", "-n", 150, "--components", 3, "--out", out]
    said = run_well("synthesize", path, *arguments).stdout
    with out.open() as file:
        drawn = list(csv.DictReader(file))
    assert len(drawn) == 150
    zeros = [float(row["rain"]) == 0.0 for row in drawn]
    assert 0.4 < np.mean(zeros) < 0.8
    right = [(row["place"] == "hill") == zero for row, zero in zip(drawn, zeros, strict=True)]
    assert np.mean(right) > 0.95
    assert "150 rows of 3 components" in said
    assert "C2ST against held-out rows" in said
    assert "near copies" in said


def test_without_a_check(path):
    said = run_well("synthesize", path, "--exclude", "note", "--components", 2, "--no-check").stdout
    assert "C2ST" not in said
    assert "400 rows" in said
    assert "identifier" in error_of("synthesize", path, "--components", 2)


def test_more_components_where_held_out_rows_gain():
    rng = np.random.default_rng(0)
    centre = 10.0 * rng.integers(0, 4, 500)
    parts = [
        {"x": centre[some] + rng.normal(size=250), "y": -centre[some] + rng.normal(size=250)}
        for some in (slice(0, 250), slice(250, 500))
    ]
    fitted, held_out = map(read_typed, parts)
    few = TableMixture(1, random_state=0).fit(fitted)
    more = _with_more_components(few, fitted, held_out)
    assert more.n_components_ >= 4
    assert more.score(held_out) > few.score(held_out) + 0.5
    enough = TableMixture(4, random_state=0).fit(fitted)
    assert _with_more_components(enough, fitted, held_out).n_components_ == 4

import math

import pytest

from pickmix.experiments.comparison import cases_of, compare
from pickmix.experiments.results import Results, Run
from pickmix.experiments.tables_page import markdown
from pickmix.experiments.tables_picture import draw

SKLEARN = "sklearn-kmeans-one-thread"
FACTS = {"n_rows": 1000, "n_features": 3, "cpu_count": 2, "versions": "numpy 2"}


def end(held_out, seconds):
    return {
        "kind": "end",
        "outcome": "converged",
        "held_out": held_out,
        "seconds": seconds,
        **FACTS,
    }


FAILED = {"kind": "end", "outcome": "timed out after 5 s", **FACTS}


@pytest.fixture
def results(tmp_path):
    """Wins, a tie, losses, failures on either side, and a rival that is not installed."""
    results = Results(tmp_path / "tables.csv")
    runs = {
        # (pickmix, em, scikit-learn)
        "wine-k8": ([(-1.0, 2.0), (-1.0, 4.0), (-5.0, 3.0)], [(-2.0, 1.0)] * 3, [(-3.0, 6.0)] * 3),
        "skin-k32": ([(-1.0, 1.0)], [(-1.0, 1.0)], [(-1.05, 2.0)]),
        "skin-k8": ([(-1.0, 1.0)], [None], [(-0.5, 0.5)]),
        "bike-k128": ([(-1.0, 1.0)], [(-1.5, 1.0)], [None]),
        "iris-k8": ([None], [None], [None]),
    }
    for setting, of_rivals in runs.items():
        for rival, values in zip(("pickmix", "em", SKLEARN), of_rivals, strict=True):
            for seed, value in enumerate(values):
                results.add(Run(setting, rival, seed), [end(*value) if value else FAILED])
    missing = {"kind": "end", "outcome": "not installed: gmmx"}
    results.add(Run("wine-k8", "gmmx", 0), [missing])
    return results


def _cells(line):
    return [cell.strip() for cell in line[1:-1].split("|")]


def test_cases_are_in_order_and_hold_medians(results):
    cases = cases_of(results)
    assert [(case.table, case.n_components) for case in cases] == [
        ("bike", 128),
        ("skin", 8),
        ("skin", 32),
        ("iris", 8),
        ("wine", 8),
    ]
    wine = cases[-1]
    assert wine.held_out == {"pickmix": -1.0, "em": -2.0, SKLEARN: -3.0, "scikit-learn": -3.0}
    assert wine.gain("pickmix") == 2.0
    assert wine.gain("pickmix", "em") == 1.0
    assert wine.seconds_ratio("pickmix") == 0.5
    assert math.isnan(wine.gain("gmmx"))


def test_ties_wins_and_failures_are_counted(results):
    cases = cases_of(results)
    # Wins on wine and, as scikit-learn failed, bike; neither finished on iris.
    found = compare(cases, "pickmix")
    assert (found.wins, found.ties, found.losses, found.n_cases) == (2, 1, 1, 4)
    assert found.median_gain == pytest.approx(0.05)
    assert found.median_seconds_ratio == pytest.approx(0.5)
    # EM failed on skin with K = 8.
    found = compare(cases, "em")
    assert (found.wins, found.ties, found.losses) == (2, 1, 1)
    assert compare(cases, "gmmx").n_cases == 0


def test_scikit_learn_is_the_better_of_its_starts_in_its_faster_form(tmp_path):
    results = Results(tmp_path / "tables.csv")
    ends = {
        "sklearn-kmeans": (-2.0, 8.0),
        SKLEARN: (-2.0, 4.0),
        "sklearn-k-means++": (-3.0, 1.0),
        "pickmix": (-1.0, 2.0),
    }
    for rival, values in ends.items():
        results.add(Run("wine-k8", rival, 0), [end(*values)])
    (case,) = cases_of(results)
    assert (case.gain("pickmix"), case.seconds_ratio("pickmix")) == (1.0, 0.5)


def test_the_page_has_summary_tables_failures_and_missing_ones(results):
    missing = {"kdd-log": "no such file", "wine": "gone by now"}
    page = markdown(results, missing=missing, picture=True)
    lines = page.splitlines()
    assert "| pickmix | scikit-learn | all | 4 | 2 | 1 | 1 | +0.050 | 0.500 |" in lines
    assert "|  |  | 32 | 1 | 0 | 1 | 0 | +0.050 | 0.500 |" in lines
    assert any(line.startswith("| pickmix | em | all |") for line in lines)
    assert page.index("## Summary") < page.index("(tables.png)") < page.index("## Tables")
    (header,) = (line for line in lines if line.startswith("| table |"))
    (wine,) = (line for line in lines if line.startswith("| wine |"))
    found = dict(zip(_cells(header), _cells(wine), strict=True))
    assert (found["K"], found["rows"], found["columns"]) == ("8", "1,000", "3")
    assert (found["held-out, pickmix"], found["gain, pickmix"]) == ("-1.000", "+2.000")
    assert found["gain, gmmx"] == found["seconds, gmmx"] == "–"
    assert "- skin, K = 8, em: 1 timed out after 5 s" in lines
    assert "- wine, K = 8, gmmx: 1 not installed: gmmx" in lines
    # Results of wine are there.
    assert page.count("no such file") == 1
    assert "gone by now" not in page
    assert lines[-1] == "2 cores. numpy 2."


def test_without_scikit_learn_there_is_no_gain_and_no_picture(tmp_path):
    results = Results(tmp_path / "tables.csv")
    results.add(Run("wine-k8", "pickmix", 0), [end(-1.0, 2.0)])
    page = markdown(results)
    assert "gain, pickmix" not in page
    assert "## Summary" not in page
    assert "Missing" not in page
    assert draw(results, tmp_path / "tables.png") is None


def test_a_picture_is_drawn(results, tmp_path):
    path = tmp_path / "tables.png"
    assert draw(results, path) == path
    assert path.read_bytes().startswith(b"\x89PNG")

"""Verdicts: every word of advice follows from a number, and the number is in the text."""

import math
from dataclasses import replace

import numpy as np
import pytest

import pickmix
from pickmix import FamilyMixture, GaussianMixture, TableMixture
from pickmix.inspection.columns import calibration
from pickmix.inspection.components import component_table
from pickmix.inspection.verdict import Evidence, gather, independent_score, judge
from pickmix.inspection.view import View


def scores_of(model, X):
    view = View(model)
    return view.score(view.read(X))


PLAIN = Evidence(
    n_components=10,
    n_live=10,
    n_parameters=59,
    n_thin=0,
    thin_below=3,
    n_rows=1000,
    n_scored=1000,
    n_rows_fit=5000.0,
    held_out=True,
    score=-2.5,
    standard_error=0.05,
    gain=1.25,
    gap=0.05,
    gap_error=0.05,
    outcome="converged",
    passes=12.0,
    rise=0.0002,
    tol=0.001,
    worst_column="age",
    worst_distance=0.02,
    chance_distance=0.05,
)


def finding(evidence, about):
    found = [f for f in judge(evidence).findings if f.about == about]
    return found[0] if found else None


# Changes of PLAIN; the subject; the kind of its finding, None if there is none; words of the text,
# and of the advice. Without words, there is no advice.
RULES = [
    ({"n_scored": 1, "gap": 9.0, "gap_error": 0.0}, "score", "note", ["1 row is too few"], []),
    ({"n_scored": 1, "gap": 9.0, "gap_error": 0.0}, "overfit", None, [], []),
    ({"gain": 0.01}, "gain", "act", ["+0.01"], ["Try one component"]),
    ({}, "gain", None, [], []),
    ({"outcome": "max_iter", "rise": 0.02}, "ending", "act", ["0.02 nats per pass"], ["max_iter"]),
    ({"outcome": "max_steps", "rise": 0.02}, "ending", "act", ["steps after 12"], ["max_steps"]),
    ({"outcome": "max_time", "rise": 0.02}, "ending", "act", ["time limit"], ["max_time"]),
    ({"outcome": "callback", "rise": 0.02}, "ending", "act", ["A callback"], ["to its end"]),
    ({"outcome": "other", "rise": 0.02}, "ending", "act", ["is not known"], ["to its end"]),
    ({"outcome": "max_iter", "rise": 0.0005}, "ending", "good", ["0.0005 nats"], []),
    ({"outcome": "max_iter", "rise": math.nan}, "ending", "note", ["limit of passes"], []),
    ({"outcome": "interrupted", "rise": math.nan}, "ending", "act", [], ["to its end"]),
    ({"outcome": "singular_covariance", "rise": math.nan}, "ending", "act", [], ["reg_covar"]),
    ({"outcome": "non_finite", "rise": math.nan}, "ending", "act", [], ["rescale"]),
    ({"outcome": ""}, "ending", None, [], []),
    ({"n_thin": 4}, "components", "act", ["4 of 10"], ["about 6 components"]),
    ({"n_thin": 1}, "components", "good", ["1 of them fewer than 3"], []),
    ({"n_live": 9}, "components", "note", ["1 of 10 components explains no rows"], []),
    ({"held_out": False, "gap": math.nan}, "score", "note", ["too good"], ["--held-out"]),
    (
        {"worst_distance": 0.09, "n_off": 2},
        "columns",
        "act",
        ["0.090", "0.050", "1 more column is off"],
        ["age"],
    ),
    # What many rows show may be too little to act on.
    ({"chance_distance": 0.01}, "columns", "good", ["0.020"], []),
    (
        {"n_after_merges": 5, "merge_cost": 0.008},
        "merges",
        "act",
        ["5 components", "0.008"],
        ["reduce(5)"],
    ),
    ({"n_after_merges": 9, "merge_cost": 0.0}, "merges", "note", ["9 components"], []),
    ({"n_after_merges": 10}, "merges", None, [], []),
    ({"validation": -2.0, "validation_gain": 0.3}, "depth", "good", ["0.300 above"], []),
    ({"validation": -2.0, "validation_gain": 0.0}, "depth", "act", ["-2.000"], ["GaussianMixture"]),
    (
        {"gap": 0.4},
        "overfit",
        "act",
        ["-2.100", "-2.500 (give or take 0.050)", "0.400 lower"],
        ["fewer components than 10"],
    ),
    # Two to three standard errors are not good, and not sure either.
    ({"gap": 0.4, "gap_error": 0.15}, "overfit", "note", ["more than chance usually does"], []),
    ({"gap": 0.04, "gap_error": 0.01}, "overfit", "note", ["more than chance usually does"], []),
    # Errors so large that a large gap would not be seen.
    ({"gap": 0.579, "gap_error": 0.3}, "overfit", "note", ["cannot be told"], ["X_fit"]),
    ({"gap": -0.1, "gap_error": 0.3}, "overfit", "note", ["cannot be told"], ["X_fit"]),
    ({"gap": 0.3, "gap_error": 0.3, "is_gap_scored": True}, "overfit", "note", ["cannot be"], []),
    ({"gap": 0.05}, "overfit", "good", ["lower by 0.050, as chance may do"], []),
    ({"gap": -0.1}, "overfit", "good", ["no lower"], []),
]


@pytest.mark.parametrize(("changes", "about", "kind", "words", "advice"), RULES)
def test_rules(changes, about, kind, words, advice):
    found = finding(replace(PLAIN, **changes), about)
    assert (found and found.kind) == kind
    assert all(word in found.text for word in words)
    assert found is None or bool(found.advice) == bool(advice)
    assert all(word in found.advice for word in advice)


def test_all_is_well():
    found = judge(PLAIN)
    assert {f.kind for f in found.findings} == {"good"}
    assert found.next.startswith("Nothing")
    for text in ("10 of 10 components are live", "-2.500", "1.25 above", "12 passes"):
        assert text in found.headline
    assert "the rows of the fit" in judge(replace(PLAIN, held_out=False)).headline


@pytest.mark.parametrize(
    ("enough", "kind", "advice"),
    [(4, "act", "Try 4 components"), (9, "good", ""), (10, "act", "Try more than 10")],
)
def test_held_out_rows_say_how_many(enough, kind, advice):
    known = replace(PLAIN, n_enough=enough, enough_score=-2.51, path_score=-2.53)
    found = finding(known, "number")
    assert found.kind == kind
    assert found.advice.startswith(advice)
    for number in (f"with {enough} components", "-2.510", "-2.530", "all 10"):
        assert number in found.text
    # What merges cost is then not needed.
    assert finding(replace(known, n_after_merges=2, merge_cost=0.001), "merges") is None


# Everything that is about the number of components, at once.
@pytest.mark.parametrize(
    ("known", "number", "more"),
    [
        ({"n_enough": 4}, "Try 4 components", False),
        ({"n_enough": 10}, "Try more than 10", True),
        ({"n_enough": 9}, None, False),
        ({}, "See whether 5 components", False),
        ({"n_after_merges": None}, "fewer components than 10", False),
        ({"gain": 0.0}, "Try one component", False),
    ],
)
def test_there_is_one_advice_about_the_number(known, number, more):
    crowded = replace(
        PLAIN, n_thin=6, gap=0.9, n_after_merges=5, merge_cost=0.01, worst_distance=0.3
    )
    findings = judge(replace(crowded, **known)).findings
    advice = [f.advice for f in findings if f.advice]
    about_number = [text for text in advice if " component" in text and "Column" not in text]
    if more:
        assert any("more components, or another kind" in text for text in about_number)
        about_number = [text for text in about_number if "another kind" not in text]
    assert len(about_number) == (number is not None)
    assert all(number in text for text in about_number)
    # The other findings have a remedy of another sort.
    assert any("simpler covariances, or more rows" in text for text in advice)
    assert any("another kind or scale for column age" in text for text in advice)


def test_what_there_is_to_do_comes_first():
    found = judge(replace(PLAIN, n_thin=9, worst_distance=0.2))
    kinds = [f.kind for f in found.findings]
    assert kinds == sorted(kinds, key=["act", "note", "good"].index)
    assert found.next == found.findings[0].advice


# Numbers.


def rows_and_mixture(n_components=3, **settings):
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(c, 1.0, (100, 2)) for c in (-6.0, 0.0, 6.0)])
    others = np.concatenate([rng.normal(c, 1.0, (60, 2)) for c in (-6.0, 0.0, 6.0)])
    settings = {"random_state": 1, "max_iter": 7, "tol": 0.0, **settings}
    return X, others, GaussianMixture(n_components, **settings).fit(X)


def test_of_a_fit_that_was_cut_short():
    with pytest.warns(UserWarning, match="max_iter"):
        X, others, mixture = rows_and_mixture(algorithm="em", init_params="random", tol=1e-9)
    evidence = gather(mixture, component_table(mixture, X))
    values = mixture.trace_["log_likelihood"]
    assert evidence.rise == pytest.approx(values[-1] - values[-2])
    assert evidence.outcome == "max_iter"
    assert finding(evidence, "ending").kind == "act"
    assert evidence.score == pytest.approx(mixture.score(X))
    assert math.isnan(evidence.gap)
    # Rows are taken for others unless there are as many.
    assert evidence.held_out is False
    assert gather(mixture, component_table(mixture, others)).held_out is None
    assert gather(mixture, component_table(mixture, X), held_out=True).held_out is True


def test_overfitting_shows_on_other_rows():
    rng = np.random.default_rng(0)
    X, others = rng.normal(size=(120, 4)), rng.normal(size=(1000, 4))
    settings = {"algorithm": "em", "init_params": "kmeans", "max_iter": 30, "tol": 0.0}
    mixture = GaussianMixture(25, random_state=0, **settings).fit(X)
    table = component_table(mixture, others)
    assert finding(gather(mixture, table, held_out=True), "overfit").kind == "act"
    # The gap is that of scored rows, with its standard error.
    evidence = gather(mixture, table, held_out=True, fitted=scores_of(mixture, X))
    scores = mixture.score_samples(X), mixture.score_samples(others)
    assert evidence.gap == pytest.approx(scores[0].mean() - scores[1].mean())
    expected = np.sqrt(scores[0].var() / 120 + scores[1].var() / 1000)
    assert evidence.gap_error == pytest.approx(expected)
    assert evidence.is_gap_scored


def test_calibration_merges_and_path_are_read():
    _, others, mixture = rows_and_mixture(8)
    others = np.column_stack([others[:, 0], others[:, 1] ** 3])
    calibrated, over_k = calibration(mixture, others), pickmix.path(mixture, others)
    evidence = gather(
        mixture,
        component_table(mixture, others),
        calibration=calibrated,
        costs=np.array([0.004, 0.005, 0.004, 1.0]),
        path=over_k,
        held_out=True,
    )
    assert evidence.worst_column == "column 1"
    assert evidence.worst_distance == pytest.approx(calibrated.distances[1])
    assert finding(evidence, "columns").kind == "act"
    assert (evidence.n_after_merges, evidence.merge_cost) == (6, pytest.approx(0.009))
    assert evidence.n_enough == over_k.choose()
    reduced = mixture.reduce(evidence.n_enough)
    assert evidence.enough_score == pytest.approx(reduced.score(others))
    assert evidence.path_score == pytest.approx(mixture.score(others))


def test_columns_on_their_own_have_one_distribution_each():
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.normal(size=400), rng.poisson(3.0, 400), rng.integers(0, 3, 400)])
    rows[:20, 0] = np.nan
    family = [("diag", [0]), ("poisson", [1]), ("categorical", [2])]
    mixture = FamilyMixture(family, 1, reg_covar=0.0, random_state=0).fit(rows)
    alone = independent_score(mixture, scores_of(mixture, rows))
    assert alone == pytest.approx(mixture.score(rows), abs=2e-3)


def test_the_gain_of_a_table_does_not_depend_on_units():
    x = np.random.default_rng(0).normal(size=300)
    gains = []
    for unit in (1.0, 1000.0):
        table = {"x": unit * x, "y": 3.0 * x, "z": x > 0}
        mixture = TableMixture(2, random_state=0, max_iter=5, tol=0.0).fit(table)
        gains.append(gather(mixture, component_table(mixture, table)).gain)
    assert gains[0] == pytest.approx(gains[1], rel=1e-6)

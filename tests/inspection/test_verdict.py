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


def test_the_path_is_read():
    rng = np.random.default_rng(0)
    X = 9.0 * rng.integers(0, [3, 2], (1500, 2)) + rng.normal(size=(1500, 2))
    mixture = GaussianMixture(20, random_state=0).fit(X[:1000])
    way = pickmix.path(mixture, X[1000:])
    known = gather(mixture, component_table(mixture, X[1000:]), path=way, held_out=True)
    assert known.n_enough == 6
    assert known.enough_score == pytest.approx(mixture.reduce(6).score(X[1000:]))
    assert known.path_score == pytest.approx(mixture.score(X[1000:]))


class TestRules:
    def test_all_is_well(self):
        found = judge(PLAIN)
        assert {f.kind for f in found.findings} == {"good"}
        assert found.next.startswith("Nothing")
        for text in ("10 of 10 components are live", "-2.500", "1.25 above", "12 passes"):
            assert text in found.headline

    def test_few_rows_say_nothing(self):
        found = finding(replace(PLAIN, n_scored=1, gap=9.0, gap_error=0.0), "score")
        assert found.kind == "note"
        assert found.text.startswith("1 row is too few")
        assert finding(replace(PLAIN, n_scored=1, gap=9.0, gap_error=0.0), "overfit") is None

    def test_a_mixture_that_gains_nothing(self):
        found = finding(replace(PLAIN, gain=0.01), "gain")
        assert (found.kind, found.advice[:17]) == ("act", "Try one component")
        assert "+0.01" in found.text
        assert finding(PLAIN, "gain") is None

    @pytest.mark.parametrize(
        ("enough", "kind", "advice"),
        [(4, "act", "Try 4 components"), (9, "good", ""), (10, "act", "Try more than 10")],
    )
    def test_held_out_rows_say_how_many(self, enough, kind, advice):
        known = replace(PLAIN, n_enough=enough, enough_score=-2.51, path_score=-2.53)
        found = finding(known, "number")
        assert found.kind == kind
        assert found.advice.startswith(advice)
        for number in (f"with {enough} components", "-2.510", "-2.530", "all 10"):
            assert number in found.text
        # What merges cost is then not needed.
        assert finding(replace(known, n_after_merges=2, merge_cost=0.001), "merges") is None

    @pytest.mark.parametrize(
        ("outcome", "word"),
        [("max_iter", "max_iter"), ("max_steps", "max_steps"), ("max_time", "max_time")],
    )
    def test_a_curve_that_rises_wants_more(self, outcome, word):
        ending = finding(replace(PLAIN, outcome=outcome, rise=0.02), "ending")
        assert ending.kind == "act"
        assert "0.02 nats per pass" in ending.text
        assert word in ending.advice

    def test_a_curve_that_has_stopped_wants_nothing(self):
        ending = finding(replace(PLAIN, outcome="max_iter", rise=0.0005), "ending")
        assert ending.kind == "good"
        assert ending.advice == ""

    @pytest.mark.parametrize(
        ("outcome", "word"),
        [
            ("interrupted", "to its end"),
            ("singular_covariance", "reg_covar"),
            ("non_finite", "rescale"),
        ],
    )
    def test_bad_ends(self, outcome, word):
        ending = finding(replace(PLAIN, outcome=outcome, rise=math.nan), "ending")
        assert ending.kind == "act"
        assert word in ending.advice

    def test_thin_components(self):
        thin = finding(replace(PLAIN, n_thin=4), "components")
        assert thin.kind == "act"
        assert "4 of 10" in thin.text
        assert "about 6 components" in thin.advice
        assert finding(replace(PLAIN, n_thin=1), "components").kind == "good"

    @pytest.mark.parametrize(
        ("gap", "error", "kind", "text"),
        [
            (0.4, 0.05, "act", "0.400 lower"),
            # Two to three standard errors are not good, and not sure either.
            (0.4, 0.15, "note", "more than chance usually does"),
            (0.04, 0.01, "note", "more than chance usually does"),
            # Errors so large that a large gap would not be seen.
            (0.579, 0.3, "note", "cannot be told"),
            (-0.1, 0.3, "note", "cannot be told"),
            (0.05, 0.05, "good", "lower by 0.050, as chance may do"),
            (-0.1, 0.05, "good", "no lower"),
        ],
    )
    def test_a_gap_is_judged_by_its_standard_error(self, gap, error, kind, text):
        found = finding(replace(PLAIN, gap=gap, gap_error=error), "overfit")
        assert (found.kind, text in found.text) == (kind, True)
        assert f"{PLAIN.score + gap:.3f}" in found.text
        assert f"{PLAIN.score:.3f} (give or take {error:.3f})" in found.text
        assert ("fewer components than 10" in found.advice) == (kind == "act")

    def test_without_rows_of_the_fit_an_unknown_gap_has_a_remedy(self):
        unknown = replace(PLAIN, gap=0.3, gap_error=0.3)
        assert "X_fit" in finding(unknown, "overfit").advice
        assert finding(replace(unknown, is_gap_scored=True), "overfit").advice == ""

    # Everything that speaks about the number of components, at once.
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
    def test_there_is_one_advice_about_the_number(self, known, number, more):
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

    def test_rows_of_the_fit_are_called_so(self):
        evidence = replace(PLAIN, held_out=False, gap=math.nan)
        assert "--held-out" in finding(evidence, "score").advice
        assert "the rows of the fit" in judge(evidence).headline

    def test_columns_that_are_off(self):
        off = finding(replace(PLAIN, worst_distance=0.09, n_off=2), "columns")
        assert off.kind == "act"
        assert "0.090" in off.text
        assert "0.050" in off.text
        assert "1 more column is off" in off.text
        assert "age" in off.advice
        # What many rows show may be too little to mind.
        few = replace(PLAIN, worst_distance=0.02, chance_distance=0.01)
        assert finding(few, "columns").kind == "good"

    def test_merges_that_cost_nothing(self):
        merges = finding(replace(PLAIN, n_after_merges=5, merge_cost=0.008), "merges")
        assert merges.kind == "act"
        assert "5 components" in merges.text
        assert "0.008" in merges.text
        assert "reduce(5)" in merges.advice
        assert finding(replace(PLAIN, n_after_merges=9, merge_cost=0.0), "merges").kind == "note"
        assert finding(replace(PLAIN, n_after_merges=10), "merges") is None

    def test_a_deep_mixture_against_its_start(self):
        better = finding(replace(PLAIN, validation=-2.0, validation_gain=0.3), "depth")
        assert better.kind == "good"
        assert "0.300" in better.text
        assert finding(replace(PLAIN, validation=-2.0, validation_gain=0.0), "depth").kind == "act"

    def test_what_there_is_to_do_comes_first(self):
        found = judge(replace(PLAIN, n_thin=9, worst_distance=0.2))
        kinds = [f.kind for f in found.findings]
        assert kinds == sorted(kinds, key=["act", "note", "good"].index)
        assert found.next == found.findings[0].advice


class TestNumbers:
    def test_of_a_fit_that_was_cut_short(self):
        rng = np.random.default_rng(0)
        X = np.concatenate([rng.normal(c, 1.0, (300, 2)) for c in (-6.0, 0.0, 6.0)])
        settings = {"algorithm": "em", "init_params": "random", "tol": 1e-9, "max_iter": 7}
        with pytest.warns(UserWarning, match="max_iter"):
            mixture = GaussianMixture(3, random_state=1, **settings).fit(X)
        evidence = gather(mixture, component_table(mixture, X))
        values = mixture.trace_["log_likelihood"]
        assert evidence.rise == pytest.approx(values[-1] - values[-2])
        assert evidence.held_out is False
        assert evidence.outcome == "max_iter"
        assert finding(evidence, "ending").kind == "act"
        assert evidence.score == pytest.approx(mixture.score(X))

    def test_overfitting_shows_on_other_rows(self):
        rng = np.random.default_rng(0)
        X, others = rng.normal(size=(120, 4)), rng.normal(size=(2000, 4))
        settings = {"algorithm": "em", "init_params": "kmeans", "max_iter": 30, "tol": 0.0}
        mixture = GaussianMixture(25, random_state=0, **settings).fit(X)
        found = judge(gather(mixture, component_table(mixture, others), held_out=True))
        overfit = next(f for f in found.findings if f.about == "overfit")
        assert overfit.kind == "act"

    def test_the_gap_is_that_of_scored_rows_with_its_standard_error(self):
        rng = np.random.default_rng(0)
        X, others = rng.normal(size=(400, 3)), rng.normal(size=(300, 3))
        mixture = GaussianMixture(8, random_state=0, max_iter=5, tol=0.0).fit(X)
        table = component_table(mixture, others)
        evidence = gather(mixture, table, held_out=True, fitted=scores_of(mixture, X))
        scores = mixture.score_samples(X), mixture.score_samples(others)
        assert evidence.gap == pytest.approx(scores[0].mean() - scores[1].mean())
        expected = np.sqrt(scores[0].var() / 400 + scores[1].var() / 300)
        assert evidence.gap_error == pytest.approx(expected)
        assert evidence.is_gap_scored
        assert math.isnan(gather(mixture, component_table(mixture, X)).gap)

    def test_rows_are_taken_for_others_unless_there_are_as_many(self):
        X = np.random.default_rng(0).normal(size=(200, 2))
        mixture = GaussianMixture(2, random_state=0, max_iter=3, tol=0.0).fit(X)
        assert gather(mixture, component_table(mixture, X[:50])).held_out is None
        assert gather(mixture, component_table(mixture, X)).held_out is False
        assert gather(mixture, component_table(mixture, X), held_out=True).held_out is True

    def test_the_worst_column_is_that_of_the_calibration(self):
        rng = np.random.default_rng(0)
        X = np.column_stack([rng.normal(size=3000), rng.exponential(size=3000) ** 3])
        mixture = GaussianMixture(1, random_state=0).fit(X)
        fitted = calibration(mixture, X)
        evidence = gather(mixture, component_table(mixture, X), calibration=fitted)
        assert evidence.worst_column == "column 1"
        assert evidence.worst_distance == pytest.approx(fitted.distances[1])
        assert finding(evidence, "columns").kind == "act"

    def test_merges_add_up_to_what_is_free(self):
        X = np.random.default_rng(0).normal(size=(100, 1))
        mixture = GaussianMixture(5, random_state=0, max_iter=2, tol=0.0).fit(X)
        table = component_table(mixture, X)
        evidence = gather(mixture, table, costs=np.array([0.004, 0.005, 0.004, 1.0]))
        assert evidence.n_after_merges == 3
        assert evidence.merge_cost == pytest.approx(0.009)

    def test_columns_on_their_own_are_one_gaussian_each(self):
        X = np.random.default_rng(0).normal(size=(300, 3)) * [1.0, 5.0, 0.1]
        mixture = GaussianMixture(1, covariance_type="diag", reg_covar=0.0).fit(X)
        scores = scores_of(mixture, X)
        assert independent_score(mixture, scores) == pytest.approx(mixture.score(X), abs=1e-4)

    def test_columns_on_their_own_with_counts_levels_and_gaps(self):
        rng = np.random.default_rng(0)
        rows = np.column_stack(
            [rng.normal(size=400), rng.poisson(3.0, 400), rng.integers(0, 3, 400)]
        ).astype(float)
        rows[:20, 0] = np.nan
        family = [("diag", [0]), ("poisson", [1]), ("categorical", [2])]
        mixture = FamilyMixture(family, 1, reg_covar=0.0, random_state=0).fit(rows)
        own = independent_score(mixture, scores_of(mixture, rows))
        assert own == pytest.approx(mixture.score(rows), abs=2e-3)

    def test_the_gain_of_a_table_does_not_depend_on_units(self):
        rng = np.random.default_rng(0)
        x = rng.normal(size=300)
        gains = []
        for unit in (1.0, 1000.0):
            table = {"x": unit * x, "y": 3.0 * x + rng.normal(size=300) * 0.0, "z": x > 0}
            mixture = TableMixture(2, random_state=0, max_iter=5, tol=0.0).fit(table)
            gains.append(gather(mixture, component_table(mixture, table)).gain)
        assert gains[0] == pytest.approx(gains[1], rel=1e-6)

"""Explanations: each cell given the others, against joint densities and brute force."""

import numpy as np
import pytest
from query_cases import FAMILIES, GAUSSIANS, D, brute_levels, brute_mean_std, make_case
from scipy import stats
from scipy.special import logsumexp, softmax

from pickmix import GaussianMixture
from pickmix.model.explanation import answer_rows
from pickmix.model.rows import QueryRows


def without(row, column):
    left = row.copy()
    left[column] = np.nan
    return left


@pytest.mark.parametrize("family", FAMILIES)
def test_identity_and_expectations(family):
    case = make_case(family)
    rows = np.concatenate([case.draw(8, 1, 0.0), case.draw(7, 2, 0.4)])
    rows[7] = np.nan
    if case.kinds[0] == "number":
        rows[3, 0] += 30.0
    explanation = case.mixture.explain(rows)
    for i, row in enumerate(rows):
        if np.isnan(row).all():
            assert explanation.log_density[i] == 0.0
            continue
        np.testing.assert_allclose(explanation.log_density[i], case.score(row), rtol=1e-9)
        for j in range(D):
            found = explanation.log_conditional[i, j]
            cells = explanation.expected[i, j], explanation.spread[i, j]
            if np.isnan(row[j]):
                assert np.isnan([found, *cells]).all()
                continue
            left = without(row, j)
            rest = case.score(left) if not np.isnan(left).all() else 0.0
            np.testing.assert_allclose(found, case.score(row) - rest, rtol=1e-8, atol=1e-9)
            if (explanation.groups[i] >= 0).any():
                # Expected given what is left, see below.
                continue
            if case.kinds[j] == "level":
                shares = brute_levels(case, left, j)
                assert cells[0] == shares.argmax()
                np.testing.assert_allclose(cells[1], shares.max(), rtol=1e-9)
            else:
                np.testing.assert_allclose(cells, brute_mean_std(case, left, j), rtol=1e-7)


def test_ranks_the_most_surprising_first():
    case = make_case("full")
    rows = case.draw(200, 3, missing=0.3)
    explanation = case.mixture.explain(rows)
    for row, ranks, values in zip(rows, explanation.ranked, explanation.surprise, strict=True):
        seen = np.flatnonzero(~np.isnan(row))
        assert sorted(ranks[: seen.size]) == list(seen)
        assert (ranks[seen.size :] == -1).all()
        assert (np.diff(values[ranks[: seen.size]]) <= 1e-9).all()
    top = case.mixture.explain(rows, top=2)
    np.testing.assert_array_equal(top.ranked, explanation.ranked[:, :2])
    # Without notable cells: relative to the peak of a normal distribution.
    plain = np.nanmax(explanation.surprise, axis=1) < 4.0
    peak = stats.norm(0.0, explanation.spread[plain]).logpdf(0.0)
    expected = peak - explanation.log_conditional[plain]
    np.testing.assert_allclose(explanation.surprise[plain], expected, atol=1e-9)


def test_a_component_that_matters_only_without_the_cell():
    mixture = GaussianMixture(2, covariance_type="diag")
    mixture.weights_ = np.array([0.5, 0.5])
    mixture.means_ = np.array([[0.0, 0.0], [100.0, 50.0]])
    mixture.covariances_ = np.ones((2, 2))
    mixture.n_features_in_ = 2
    # Far nearer to the first component, but its second cell alone is the second's.
    answers = answer_rows(QueryRows(mixture.model_, np.array([[0.0, 50.0]])))
    np.testing.assert_allclose(answers.expected[0], [100.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(answers.spread[0], [1.0, 1.0])


def test_a_narrow_component_a_million_widths_away():
    """p_k(x) and p_k(x_0 | x_1) are both about exp(-5e17): their ratio keeps no digit."""
    mixture = GaussianMixture(2)
    mixture.weights_ = np.array([0.5, 0.5])
    mixture.means_ = np.array([[0.0, 0.0], [1e3, 1.0]])
    mixture.covariances_ = np.array([[[1e6, 0.0], [0.0, 1.0]], [[1e-12, 0.0], [0.0, 1.0]]])
    mixture.n_features_in_ = 2
    rows = np.array([[0.0, 1.0], [5.0, 3.0]])
    explanation = mixture.explain(rows)
    normals = stats.norm(0.0, 1.0).pdf(rows[:, 1]), stats.norm(1.0, 1.0).pdf(rows[:, 1])
    first = normals[0] / (normals[0] + normals[1])
    expected = np.log(first) + stats.norm(0.0, 1e3).logpdf(rows[:, 0])
    np.testing.assert_allclose(explanation.log_conditional[:, 0], expected, rtol=1e-12)
    np.testing.assert_allclose(explanation.expected[:, 0], 1e3 * (1.0 - first), rtol=1e-12)
    variance = first * 1e6 + first * (1.0 - first) * 1e6
    np.testing.assert_allclose(explanation.spread[:, 0], np.sqrt(variance), rtol=1e-9)


@pytest.mark.parametrize("name", GAUSSIANS)
def test_noise(name):
    case = make_case(name)
    rng = np.random.default_rng(0)
    rows = case.draw(6, 4, missing=0.2)
    half = rng.normal(size=(6, D, D))
    noise = half @ half.transpose(0, 2, 1)
    explanation = case.mixture.explain(rows, noise=noise)

    def score(i, row):
        S = np.flatnonzero(~np.isnan(row))
        if not S.size:
            return 0.0
        block = np.ix_(S, S)
        scores = [
            stats.multivariate_normal(case.means[k][S], (case.covariances[k] + noise[i])[block])
            for k in range(3)
        ]
        return logsumexp(np.log(case.weights) + [s.logpdf(row[S]) for s in scores])

    for i, row in enumerate(rows):
        np.testing.assert_allclose(explanation.log_density[i], score(i, row), rtol=1e-9)
        for j in np.flatnonzero(~np.isnan(row)):
            expected = score(i, row) - score(i, without(row, j))
            np.testing.assert_allclose(explanation.log_conditional[i, j], expected, atol=1e-8)


def test_text_and_frames():
    pandas = pytest.importorskip("pandas")
    case = make_case("product")
    rows = case.draw(5, 5)
    rows[0, 0] = np.nan
    explanation = case.mixture.explain(rows, top=3)
    assert len(explanation) == 5
    lines = explanation.table(0).splitlines()
    assert lines[0].startswith("row 0: log p(row) = ")
    assert len(lines) == 2 + 3
    assert lines[2].split()[0] == str(explanation.ranked[0, 0])
    assert len(explanation.table(1, top=1).splitlines()) == 3
    level = next(line for line in explanation.table(0).splitlines() if line.startswith("1 "))
    shares = softmax(case.log_joints(without(rows[0], 1))) @ case.tables[1]
    assert f"(p = {shares.max():.3g})" in level
    assert "... and 2 more rows" in str(explanation)
    frame = explanation.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == 15
    np.testing.assert_array_equal(frame["column"].astype(int), explanation.ranked.ravel())
    assert (frame.groupby("row")["surprise"].diff().dropna() <= 1e-9).all()


def bills(n=2000, seed=0):
    """Two costs that are nearly equal, a weekday that they do not depend on, and a size."""
    rng = np.random.default_rng(seed)
    repair = np.where(rng.random(n) < 0.1, rng.exponential(100.0, n), rng.normal(10.0, 1.0, n))
    rows = [repair, repair + rng.normal(0.0, 0.5, n), rng.normal(0.0, 1.0, (2, n))]
    return np.concatenate([np.stack(rows[:2]), rows[2]]).T


def test_cells_that_explain_each_other_are_named_together():
    mixture = GaussianMixture(6, random_state=0).fit(bills())
    # The dearest bill: both costs are what the other one lets expect. The third cell is not usual.
    explanation = mixture.explain([[5000.0, 5000.3, 2.3, 0.0], [10.0, 10.1, 0.2, 0.1]])
    assert set(explanation.ranked[0, :2]) == {0, 1}
    assert explanation.groups.tolist() == [[0, 0, -1, -1], [-1] * 4]
    assert explanation.surprise[0, 0] == explanation.surprise[0, 1] > 10.0
    assert explanation.surprise[0, 2] == pytest.approx(2.3**2 / 2, abs=1.0)
    # Given the rest, and not each other.
    left = without(np.array([5000.0, 5000.3, 2.3, 0.0]), 1)
    alone = mixture.explain(left[None])
    for name in ("expected", "spread"):
        np.testing.assert_allclose(getattr(explanation, name)[0, 0], getattr(alone, name)[0, 0])
    assert " with 1" in explanation.table(0).splitlines()[2]
    assert explanation.records()[0]["together"] == "1"


def test_a_wrong_cell_is_not_blamed_on_those_that_belong_to_it():
    rng = np.random.default_rng(0)
    base = rng.normal(size=(3000, 1))
    X = np.concatenate(
        [base + 0.1 * rng.normal(size=(3000, 4)), rng.normal(size=(3000, 1))], axis=1
    )
    mixture = GaussianMixture(1, random_state=0).fit(X)
    row = np.array([[0.5, 0.5, 2.0, 0.5, 2.5]])
    explanation = mixture.explain(row)
    # Without the third cell, the first two and the fourth are as they should be.
    assert explanation.ranked[0, :2].tolist() == [2, 4]
    assert explanation.surprise[0, [0, 1, 3]].max() < 1.0
    left = mixture.explain(without(row[0], 2)[None])
    np.testing.assert_allclose(explanation.expected[0, :2], left.expected[0, :2])
    np.testing.assert_allclose(explanation.surprise[0, 3:], left.surprise[0, 3:])
    assert explanation.groups[0].tolist() == [-1, -1, 0, -1, -1]

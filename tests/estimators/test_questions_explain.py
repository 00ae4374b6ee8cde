"""Explanations: each cell given the others, against joint densities and brute force."""

import numpy as np
import pytest
from question_cases import FAMILIES, GAUSSIANS, D, brute_levels, brute_mean_std, make_case
from scipy import stats
from scipy.special import logsumexp, softmax

from pickmix import GaussianMixture
from pickmix.model import explanation as questions_explain


@pytest.fixture(autouse=True, params=["numpy", "compiled"])
def path(request, monkeypatch):
    """All of it holds whichever way full covariances go."""
    if request.param == "compiled":
        monkeypatch.setattr(questions_explain, "_MUCH_WORK", 0.0)
    return request.param


@pytest.fixture(params=FAMILIES)
def case(request):
    return make_case(request.param)


def without(row, column):
    left = row.copy()
    left[column] = np.nan
    return left


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_identity_and_expectations(case, missing):
    rows = case.draw(25, 1, missing)
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
            if case.kinds[j] == "level":
                shares = brute_levels(case, left, j)
                assert cells[0] == shares.argmax()
                np.testing.assert_allclose(cells[1], shares.max(), rtol=1e-9)
            else:
                np.testing.assert_allclose(cells, brute_mean_std(case, left, j), rtol=1e-7)


def test_it_is_what_the_mixture_says_itself(case):
    rows = case.draw(10, 2)
    explanation = case.mixture.explain(rows)
    joint = case.mixture.score_samples(rows)
    np.testing.assert_allclose(explanation.log_density, joint, rtol=1e-10)
    for j in range(D):
        others = [c for c in range(D) if c != j]
        rest = case.mixture.marginal(others).score_samples(rows[:, others])
        np.testing.assert_allclose(explanation.log_conditional[:, j], joint - rest, atol=1e-8)


def test_order_of_rows_and_columns_does_not_matter(case):
    rows = case.draw(30, 6, missing=0.3)
    columns, order = np.array([3, 1, 0, 2]), np.random.default_rng(0).permutation(30)
    one = case.mixture.explain(rows)
    other = case.mixture.marginal(columns).explain(rows[np.ix_(order, columns)])
    turned = np.ix_(order, columns)
    np.testing.assert_allclose(other.log_density, one.log_density[order], rtol=1e-10)
    np.testing.assert_allclose(other.log_conditional, one.log_conditional[turned], atol=1e-9)
    np.testing.assert_allclose(other.expected, one.expected[turned], atol=1e-9)
    np.testing.assert_allclose(other.spread, one.spread[turned], atol=1e-9)


def test_many_rows_are_explained_in_blocks_as_one_by_one():
    case = make_case("full", n_components=200)
    rows = case.draw(3000, 7)
    rows[:1000, 2] = np.nan
    whole = case.mixture.explain(rows)
    some = np.arange(0, 3000, 211)
    alone = case.mixture.explain(rows[some])
    # Some of these covariances are nearly singular.
    np.testing.assert_allclose(whole.log_conditional[some], alone.log_conditional, rtol=1e-7)
    np.testing.assert_allclose(whole.expected[some], alone.expected, rtol=1e-7)


def test_ranks_the_most_surprising_first():
    case = make_case("full")
    rows = case.draw(200, 3, missing=0.3)
    explanation = case.mixture.explain(rows)
    for row, ranks, values in zip(
        rows, explanation.ranked, explanation.log_conditional, strict=True
    ):
        seen = np.flatnonzero(~np.isnan(row))
        assert sorted(ranks[: seen.size]) == list(seen)
        assert (ranks[seen.size :] == -1).all()
        assert (np.diff(values[ranks[: seen.size]]) >= 0.0).all()
    top = case.mixture.explain(rows, top=2)
    np.testing.assert_array_equal(top.ranked, explanation.ranked[:, :2])
    np.testing.assert_array_equal(explanation.surprise, -explanation.log_conditional)


def test_a_cell_that_was_changed_is_found():
    """Ten columns that follow one another; a value that is usual, but not in its row."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(2000, 1))
    X = base + 0.1 * rng.normal(size=(2000, 10))
    mixture = GaussianMixture(2, random_state=0).fit(X)
    rows = X[:50].copy()
    columns = rng.integers(10, size=50)
    rows[np.arange(50), columns] += np.where(rng.uniform(size=50) < 0.5, 1.0, -1.0)
    explanation = mixture.explain(rows)
    assert (explanation.ranked[:, 0] == columns).all()
    expected = explanation.expected[np.arange(50), columns]
    assert np.abs(expected - base[:50, 0]).max() < 0.25


def test_a_component_that_matters_only_without_the_cell():
    mixture = GaussianMixture(2, covariance_type="diag")
    mixture.weights_ = np.array([0.5, 0.5])
    mixture.means_ = np.array([[0.0, 0.0], [100.0, 50.0]])
    mixture.covariances_ = np.ones((2, 2))
    mixture.n_features_in_ = 2
    # Far nearer to the first component, but its second cell alone is the second's.
    explanation = mixture.explain([[0.0, 50.0]])
    np.testing.assert_allclose(explanation.expected[0], [100.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(explanation.spread[0], [1.0, 1.0])


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


def test_narrow_components_far_from_the_origin():
    rng = np.random.default_rng(1)
    base = rng.integers(-1000, 1000, (400, 1)) / 64.0
    X = base + rng.integers(-4, 5, (400, 3)) / 64.0
    near = GaussianMixture(2, random_state=0).fit(X)
    far = near.marginal([0, 1, 2])
    far.means_ = np.round(near.means_ * 2**20) / 2**20 + 2.0**27
    near.means_ = far.means_ - 2.0**27
    one, other = near.explain(X), far.explain(X + 2.0**27)
    np.testing.assert_allclose(other.log_conditional, one.log_conditional, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(other.spread, one.spread, rtol=1e-7)


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
    assert (frame.groupby("row")["log_conditional"].diff().dropna() >= 0.0).all()


def test_many_rows_take_the_kernel_and_say_the_same(path, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 6)) @ rng.normal(size=(6, 6)) + 1e3
    mixture = GaussianMixture(11, max_iter=3, tol=0.0, random_state=0, n_jobs=2).fit(X)
    X[rng.random(X.shape) < 0.3] = np.nan
    noise = rng.uniform(0.0, 0.1, X.shape)
    monkeypatch.setattr(questions_explain, "_MUCH_WORK", np.inf)
    plain = mixture.explain(X), mixture.explain(X, noise=noise)
    calls = []
    inner = questions_explain.DensePart.leave_out_of
    monkeypatch.setattr(
        questions_explain.DensePart,
        "leave_out_of",
        lambda *arguments: calls.append(1) or inner(*arguments),
    )
    mixture.explain(X[:20])
    assert not calls
    # 20 rows of 11 components and 36 numbers each.
    monkeypatch.setattr(questions_explain, "_MUCH_WORK", 20 * 11 * 36 * 7.0 / 6.0)
    mixture.explain(X[:20])
    assert not calls
    compiled = mixture.explain(X), mixture.explain(X, noise=noise)
    assert calls
    for a, b in zip(plain, compiled, strict=True):
        np.testing.assert_array_equal(a.log_density, b.log_density)
        np.testing.assert_allclose(a.log_conditional, b.log_conditional, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(a.expected, b.expected, rtol=1e-9)
        np.testing.assert_allclose(a.spread, b.spread, rtol=1e-8)

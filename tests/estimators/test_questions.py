"""Marginals, conditionals and regression, against SciPy, quadrature and enumeration."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from question_cases import FAMILIES, GAUSSIANS, D, brute_levels, brute_mean_std, make_case
from scipy import stats
from scipy.special import softmax

from pickmix import FamilyMixture, GaussianMixture


@pytest.fixture(params=FAMILIES)
def case(request):
    return make_case(request.param)


# Marginals


@pytest.mark.parametrize("columns", [[0], [2, 0], [3, 1, 0], [1, 2], [0, 1, 2, 3]])
def test_marginal_densities_are_those_of_scipy(case, columns):
    rows = case.draw(20, 1)
    marginal = case.mixture.marginal(columns)
    assert type(marginal) is type(case.mixture)
    expected = []
    for row in rows:
        some = np.full(D, np.nan)
        some[columns] = row[columns]
        expected.append(case.score(some))
    np.testing.assert_allclose(marginal.score_samples(rows[:, columns]), expected, rtol=1e-10)


def test_marginal_is_the_integral_of_the_joint():
    case = make_case("full")
    row = case.draw(1, 3)[0]
    grid = np.linspace(-14.0, 14.0, 1401)
    rows = np.repeat(row[None], grid.size, axis=0)
    rows[:, 2] = grid
    integral = np.trapezoid(np.exp(case.mixture.score_samples(rows)), grid)
    found = case.mixture.marginal([0, 1, 3]).score_samples(row[None, [0, 1, 3]])
    np.testing.assert_allclose(np.exp(found[0]), integral, rtol=1e-9)


@pytest.mark.parametrize("name", ["categorical", "product"])
def test_marginal_is_the_sum_over_levels(name):
    case = make_case(name)
    row = case.draw(1, 3)[0]
    rows = np.repeat(row[None], 2, axis=0)
    rows[:, 1] = [0.0, 1.0]
    total = np.exp(case.mixture.score_samples(rows)).sum()
    found = case.mixture.marginal([0, 2, 3]).score_samples(row[None, [0, 2, 3]])
    np.testing.assert_allclose(np.exp(found[0]), total, rtol=1e-10)


@pytest.mark.parametrize("name", GAUSSIANS)
def test_marginals_keep_their_form(name):
    case = make_case(name)
    marginal = case.mixture.marginal([3, 1])
    assert marginal.covariance_type == name
    shape = {"full": (3, 2, 2), "tied": (2, 2), "diag": (3, 2), "spherical": (3,)}[name]
    assert marginal.covariances_.shape == shape


def test_marginal_of_a_product_keeps_the_groups_that_are_left():
    marginal = make_case("product").mixture.marginal([2, 0])
    assert marginal.family == [("full", [1]), ("poisson", [0])]
    assert marginal.marginal([0]).family == [("poisson", [0])]
    draws = marginal.sample(50, random_state=0)[0]
    assert (draws[:, 0] == np.floor(draws[:, 0])).all()


def test_marginal_takes_what_belongs_to_its_columns():
    mixture = make_case("diag").mixture
    mixture.reg_covar = np.array([1.0, 2.0, 3.0, 4.0])
    mixture.means_init = np.zeros((3, D))
    mixture.background_ = 1
    marginal = mixture.marginal([2, 0])
    np.testing.assert_array_equal(marginal.reg_covar, [3.0, 1.0])
    assert marginal.means_init is None
    assert marginal.background_ == 1
    assert marginal.n_features_in_ == 2


# Conditionals


def test_conditionals_are_the_joint_over_the_marginal(case):
    rows = case.draw(15, 2)
    given = rows.copy()
    given[:, [1, 3]] = np.nan
    mixtures = case.mixture.conditional(given)
    assert list(mixtures.columns) == [1, 3]
    expected = [case.score(a) - case.score(b) for a, b in zip(rows, given, strict=True)]
    np.testing.assert_allclose(mixtures.score_samples(rows[:, [1, 3]]), expected, atol=1e-9)
    for i in (0, -1):
        alone = mixtures[i].score_samples(rows[[i]][:, [1, 3]])
        np.testing.assert_allclose(alone, expected[i], atol=1e-9)


def test_chain_rule(case):
    rows = case.draw(10, 5)
    mixture = case.mixture
    for j in range(D):
        others = [c for c in range(D) if c != j]
        first = mixture.marginal([j]).score_samples(rows[:, [j]])
        rest = mixture.conditional({j: rows[:, j]}, others).score_samples(rows[:, others])
        np.testing.assert_allclose(first + rest, mixture.score_samples(rows), atol=1e-9)


def test_conditional_densities_integrate_to_one():
    case = make_case("full")
    grid = np.linspace(-20.0, 20.0, 2001)
    mixtures = case.mixture.conditional(np.tile([0.5, np.nan, -1.0, 2.0], (grid.size, 1)))
    densities = np.exp(mixtures.score_samples(grid[:, None]))
    np.testing.assert_allclose(np.trapezoid(densities, grid), 1.0, rtol=1e-9)
    mean = np.trapezoid(grid * densities, grid)
    np.testing.assert_allclose(mixtures.mean()[0, 0], mean, rtol=1e-8)
    variance = np.trapezoid((grid - mean) ** 2 * densities, grid)
    np.testing.assert_allclose(mixtures.std()[0, 0], np.sqrt(variance), rtol=1e-8)


def test_weights_means_and_spreads(case):
    rows = case.draw(12, 4)
    rows[:, [0, 2]] = np.nan
    rows[::3, 1] = np.nan
    mixtures = case.mixture.conditional(rows, [2, 0])
    expected = np.array([softmax(case.log_joints(row)) for row in rows])
    np.testing.assert_allclose(mixtures.weights(), expected, atol=1e-12)
    mean, std = mixtures.mean(), mixtures.std()
    for i, row in enumerate(rows):
        for place, column in enumerate([2, 0]):
            if case.kinds[column] == "level":
                assert mean[i, place] == brute_levels(case, row, column).argmax()
                assert np.isnan(std[i, place])
                shares = mixtures.probabilities(column)[i]
                np.testing.assert_allclose(shares, brute_levels(case, row, column), rtol=1e-10)
            else:
                found = mean[i, place], std[i, place]
                np.testing.assert_allclose(found, brute_mean_std(case, row, column), rtol=1e-9)


def test_one_component_is_the_textbook_normal():
    case = make_case("full", n_components=1)
    x = np.array([1.0, -2.0])
    mixtures = case.mixture.conditional({3: x[0], 1: x[1]})
    S, M = [3, 1], [0, 2]
    C, m = case.covariances[0], case.means[0]
    gain = C[np.ix_(M, S)] @ np.linalg.inv(C[np.ix_(S, S)])
    mean = m[M] + gain @ (x - m[S])
    covariance = C[np.ix_(M, M)] - gain @ C[np.ix_(S, M)]
    np.testing.assert_allclose(mixtures.mean()[0], mean, rtol=1e-12)
    np.testing.assert_allclose(mixtures.covariance()[0], covariance, rtol=1e-11)
    y = np.array([[0.3, 0.7]])
    expected = stats.multivariate_normal(mean, covariance).logpdf(y)
    np.testing.assert_allclose(mixtures.score_samples(y)[0], expected, rtol=1e-11)
    np.testing.assert_allclose(mixtures[0].means_[0], mean, rtol=1e-12)
    np.testing.assert_allclose(mixtures.mode()[0], mean, rtol=1e-12)


@pytest.mark.parametrize("name", [*GAUSSIANS, "poisson"])
def test_covariances_are_those_of_the_conditional_mixture(name):
    case = make_case(name)
    mixtures = case.mixture.conditional({1: [0.0, 3.0]}, [3, 0])
    for i in range(2):
        draws = mixtures[i].sample(200_000, random_state=i)[0]
        spread = np.sqrt(np.diagonal(mixtures.covariance()[i]))
        np.testing.assert_allclose(mixtures.std()[i], spread, rtol=1e-12)
        # Products of standardised draws vary by less than 5 here, so by 0.012 in the mean.
        error = (np.cov(draws.T) - mixtures.covariance()[i]) / np.outer(spread, spread)
        assert np.abs(error).max() < 0.05


@pytest.mark.parametrize("name", [*GAUSSIANS, "poisson"])
def test_quantiles_go_back_through_the_distribution_function(name):
    case = make_case(name)
    q = [1e-4, 0.1, 0.5, 0.77, 0.999]
    given = {1: [0.0, 1.0, 4.0]}
    mixtures = case.mixture.conditional(given, [2, 3])
    found = mixtures.quantile(q)
    assert found.shape == (3, 2, 5)
    for i, place in itertools.product(range(3), range(2)):
        row = np.full(D, np.nan)
        row[1] = given[1][i]
        shares = softmax(case.log_joints(row))
        column = [2, 3][place]

        def reached(t, row=row, shares=shares, column=column):
            if name == "poisson":
                return shares @ stats.poisson(case.rates[:, column]).cdf(t)
            pairs = [case.conditional(row, k) for k in range(len(shares))]
            own = [stats.norm(m[column], np.sqrt(C[column, column])).cdf(t) for m, C in pairs]
            return shares @ np.array(own)

        for t, share in zip(found[i, place], q, strict=True):
            if name == "poisson":
                assert reached(t) >= share > reached(t - 1.0)
            else:
                np.testing.assert_allclose(reached(t), share, rtol=1e-9)


def test_quantiles_of_components_far_apart():
    mixture = GaussianMixture(2)
    mixture.weights_ = np.array([0.3, 0.7])
    mixture.means_ = np.array([[0.0, -1e6], [0.0, 1e6]])
    mixture.covariances_ = np.array([np.diag([1.0, 1e-4]), np.diag([1.0, 1.0])])
    mixture.n_features_in_ = 2
    found = mixture.conditional({0: 0.0}).quantile([0.15, 0.29, 0.31, 0.65])[0, 0]
    expected = [
        -1e6,
        -1e6 + 0.01 * stats.norm.ppf(0.29 / 0.3),
        1e6 + stats.norm.ppf(0.01 / 0.7),
        1e6,
    ]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)


def test_draws_have_the_moments_of_the_mixtures(case):
    rows = case.draw(3, 6)
    rows[:, [0, 2]] = np.nan
    mixtures = case.mixture.conditional(rows)
    n = 40_000
    draws = mixtures.sample(n, random_state=0)
    assert draws.shape == (3, n, 2)
    for place, column in enumerate([0, 2]):
        if case.kinds[column] == "level":
            for i in range(3):
                shares = brute_levels(case, rows[i], column)
                counts = np.bincount(draws[i, :, place].astype(int), minlength=len(shares))
                assert stats.chisquare(counts, n * shares).pvalue > 1e-4
            continue
        mean, std = mixtures.mean()[:, place], mixtures.std()[:, place]
        assert (np.abs(draws[:, :, place].mean(axis=1) - mean) < 4.5 * std / np.sqrt(n)).all()
        fourth = ((draws[:, :, place] - mean[:, None]) ** 4).mean(axis=1)
        error = np.abs(draws[:, :, place].var(axis=1) - std**2)
        assert (error < 4.5 * np.sqrt(fourth / n)).all()


def test_draws_of_columns_go_together():
    case = make_case("full", n_components=1)
    mixtures = case.mixture.conditional({0: 1.0}, [1, 2, 3])
    draws = mixtures.sample(100_000, random_state=0)[0]
    covariance = case.conditional(np.array([1.0, np.nan, np.nan, np.nan]), 0)[1][1:, 1:]
    spread = np.sqrt(np.diagonal(covariance))
    assert np.abs((np.cov(draws.T) - covariance) / np.outer(spread, spread)).max() < 0.025


# Regression


def test_predict_columns_takes_all_columns_or_the_others(case):
    rows = case.draw(8, 7)
    number = case.kinds[3] != "level"
    quantiles = [0.5] if number else None
    whole = case.mixture.predict_columns(rows, [3], return_std=True, quantiles=quantiles)
    others = case.mixture.predict_columns(rows[:, :3], 3, return_std=True, quantiles=quantiles)
    for one, other in zip(whole, others, strict=True):
        np.testing.assert_array_equal(one[:, 0], other)
    for i, row in enumerate(rows):
        given = np.append(row[:3], np.nan)
        if number:
            found = whole[0][i, 0], whole[1][i, 0]
            np.testing.assert_allclose(found, brute_mean_std(case, given, 3), rtol=1e-9)
        else:
            assert whole[0][i, 0] == brute_levels(case, given, 3).argmax()


def test_regression_allows_holes():
    case = make_case("full")
    rows = case.draw(30, 8, missing=0.4)
    mean = case.mixture.predict_columns(rows, 0)
    for value, row in zip(mean, rows, strict=True):
        given = row.copy()
        given[0] = np.nan
        np.testing.assert_allclose(value, brute_mean_std(case, given, 0)[0], rtol=1e-9)


# What is refused


def test_errors():
    mixture = make_case("full").mixture
    rows = np.zeros((2, D))
    for call, words in [
        (lambda: mixture.marginal([0, 7]), "columns must hold numbers of columns, from 0 to 3"),
        (lambda: mixture.marginal([]), "at least one column"),
        (lambda: mixture.marginal([0, 0]), "each once"),
        (lambda: mixture.marginal("age"), "without names"),
        (lambda: mixture.marginal(None), "list of names or numbers"),
        (lambda: mixture.conditional({0: 1.0}, [0, 1]), "must not be given as well"),
        (lambda: mixture.conditional(rows), "leave a column"),
        (lambda: mixture.conditional({0: [1.0, 2.0], 1: [1.0, 2.0, 3.0]}), "one length"),
        (lambda: mixture.conditional({0: np.inf}), "finite"),
        (lambda: mixture.conditional({0: []}), "at least one row"),
        (lambda: mixture.conditional({0: 1.0}).quantile([0.0]), "strictly between 0 and 1"),
        (lambda: mixture.conditional({0: 1.0}).score_samples([[1.0]]), "Y must have shape"),
        (lambda: mixture.conditional({0: 1.0}).probabilities(1), "categories"),
        (lambda: mixture.conditional({0: 1.0}).sample(0), "n_draws"),
        (lambda: mixture.predict_columns(rows[:, :2], 0), "the 3 beside those to predict"),
        (lambda: mixture.predict_columns(rows, 0, quantiles=2.0), "strictly between"),
        (lambda: mixture.impute(rows, "median"), "strategy must be one of"),
        (lambda: mixture.impute(rows, n_draws=2), 'strategy="draw"'),
        (lambda: mixture.impute(rows + np.inf), "infinity"),
        (lambda: mixture.impute(rows[:, :3]), "features"),
        (lambda: mixture.impute("rows.npy"), "the path 'rows.npy'.*numpy.load.*`pickmix impute`"),
        (lambda: mixture.explain("rows.csv"), "the path 'rows.csv'.*open_rows.*`pickmix explain`"),
        (lambda: mixture.predict_columns(Path("rows.npy"), 0), "got the path 'rows.npy'"),
        (lambda: mixture.conditional("rows.npy"), "given must be an array or a data frame"),
        (lambda: mixture.impute(rows, noise=np.zeros(3)), "noise must have the shape"),
        (lambda: mixture.impute(rows, noise=-np.ones(rows.shape)), "noise must hold"),
        (lambda: mixture.explain(rows, top=0), "top"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(IndexError, match="1 conditional mixtures"):
        mixture.conditional({0: 1.0})[1]


def test_errors_of_families():
    mixture = make_case("product").mixture
    with pytest.raises(ValueError, match="categories 1"):
        mixture.conditional({0: 1.0}).quantile(0.5)
    with pytest.raises(ValueError, match="levels, that is"):
        mixture.conditional({1: 7.0})
    with pytest.raises(ValueError, match="counts, that is"):
        mixture.impute([[np.nan, 0.0, 1.5, 0.0]])
    with pytest.raises(ValueError, match="mixture of Gaussians"):
        mixture.impute(np.zeros((1, D)), noise=np.zeros((1, D)))


def test_not_fitted():
    from sklearn.exceptions import NotFittedError

    for mixture in (GaussianMixture(), FamilyMixture()):
        for question in (mixture.marginal, mixture.conditional, mixture.impute, mixture.explain):
            with pytest.raises(NotFittedError):
                question([0])

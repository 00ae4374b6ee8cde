"""Marginals, conditionals and regression, against SciPy, quadrature and enumeration."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from query_cases import FAMILIES, GAUSSIANS, D, brute_levels, brute_mean_std, make_case
from scipy import stats
from scipy.special import softmax


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


@pytest.mark.parametrize("name", GAUSSIANS)
def test_marginals_keep_their_form(name):
    case = make_case(name)
    marginal = case.mixture.marginal([3, 1])
    assert marginal.covariance_type == name
    shape = {"full": (3, 2, 2), "tied": (2, 2), "diag": (3, 2), "spherical": (3,)}[name]
    assert marginal.covariances_.shape == shape


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

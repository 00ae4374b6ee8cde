"""Imputation, and noise on what was seen, against SciPy and enumeration."""

import numpy as np
import pytest
from query_cases import FAMILIES, GAUSSIANS, D, brute_levels, brute_mean_std, make_case
from scipy import stats
from scipy.special import softmax


@pytest.fixture(params=FAMILIES)
def case(request):
    return make_case(request.param)


# Imputation


def test_imputed_means(case):
    rows = case.draw(40, 9, missing=0.45)
    rows[5] = np.nan
    filled = case.mixture.impute(rows)
    seen = ~np.isnan(rows)
    np.testing.assert_array_equal(filled[seen], rows[seen])
    for i, column in np.argwhere(~seen):
        if case.kinds[column] == "level":
            assert filled[i, column] == brute_levels(case, rows[i], column).argmax()
        else:
            expected = brute_mean_std(case, rows[i], column)[0]
            np.testing.assert_allclose(filled[i, column], expected, rtol=1e-9)


def test_imputed_modes_are_of_the_most_probable_component(case):
    rows = case.draw(40, 9, missing=0.45)
    filled = case.mixture.impute(rows, "mode")
    for i, column in np.argwhere(np.isnan(rows)):
        k = case.log_joints(rows[i]).argmax()
        expected = {
            "number": case.conditional(rows[i], k)[0][column],
            "count": np.floor(case.rates[k, column]),
            "level": case.tables[column][k].argmax() if column < D else 0,
        }[case.kinds[column]]
        np.testing.assert_allclose(filled[i, column], expected, rtol=1e-9)


def test_imputed_draws(case):
    rows = case.draw(30, 10, missing=0.5)
    one = case.mixture.impute(rows, "draw", random_state=3)
    np.testing.assert_array_equal(one, case.mixture.sample_conditional(rows, random_state=3))
    many = case.mixture.impute(rows, "draw", n_draws=2000, random_state=3)
    assert many.shape == (2000, 30, D)
    seen = ~np.isnan(rows)
    assert (many[:, seen] == rows[seen]).all()
    for i, column in np.argwhere(~seen):
        values = many[:, i, column]
        if case.kinds[column] == "level":
            share = brute_levels(case, rows[i], column)[0]
            error = np.abs((values == 0).mean() - share)
            assert error < 5.0 * np.sqrt(share * (1 - share) / 2000) + 1e-9
        else:
            mean, std = brute_mean_std(case, rows[i], column)
            assert np.abs(values.mean() - mean) < 5.0 * std / np.sqrt(2000)


def test_far_from_the_origin_no_digit_is_lost():
    near, far = make_case("full"), make_case("full", shift=2.0**27)
    # Parameters that both hold exactly.
    near.mixture.means_ = far.mixture.means_ - 2.0**27
    rows = np.round(near.draw(30, 12), 6)
    moved = rows + 2.0**27
    rows = moved - 2.0**27
    holes = np.random.default_rng(1).uniform(size=rows.shape) < 0.4
    rows[holes] = moved[holes] = np.nan
    one, other = near.mixture.impute(rows), far.mixture.impute(moved)
    # Answers at 1e8 are rounded to 1.5e-8.
    np.testing.assert_allclose(other - 2.0**27, one, rtol=0, atol=4e-8)
    stds = [
        m.predict_columns(x, 0, return_std=True)[1]
        for m, x in ((near.mixture, rows), (far.mixture, moved))
    ]
    np.testing.assert_allclose(stds[0], stds[1], rtol=1e-12)


def test_float32_stays_float32():
    case = make_case("full")
    rows = case.draw(20, 13, missing=0.3).astype(np.float32)
    filled = case.mixture.impute(rows)
    assert filled.dtype == np.float32
    expected = case.mixture.impute(rows.astype(np.float64))
    np.testing.assert_allclose(filled, expected, rtol=1e-6)


# Noise


@pytest.mark.parametrize(
    ("name", "form"), list(zip(GAUSSIANS, ("variances", "covariances") * 2, strict=True))
)
def test_noise_on_what_is_seen(name, form):
    case = make_case(name)
    rng = np.random.default_rng(0)
    rows = case.draw(12, 15, missing=0.4)
    if form == "variances":
        noise = rng.uniform(0.0, 3.0, rows.shape)
        matrices = noise[:, :, None] * np.eye(D)
    else:
        half = rng.normal(size=(12, D, D))
        noise = matrices = half @ half.transpose(0, 2, 1)
    filled = case.mixture.impute(rows, noise=noise)
    for i, row in enumerate(rows):
        S = np.flatnonzero(~np.isnan(row))
        scores, means = [], []
        for k in range(3):
            mean, C = case.means[k], case.covariances[k]
            if not S.size:
                scores.append(0.0)
                means.append(mean)
                continue
            seen = C[np.ix_(S, S)] + matrices[i][np.ix_(S, S)]
            scores.append(stats.multivariate_normal(mean[S], seen).logpdf(row[S]))
            means.append(mean + C[:, S] @ np.linalg.solve(seen, row[S] - mean[S]))
        expected = softmax(np.log(case.weights) + scores) @ np.array(means)
        holes = np.isnan(row)
        np.testing.assert_allclose(filled[i, holes], expected[holes], rtol=1e-9)
        np.testing.assert_array_equal(filled[i, ~holes], row[~holes])


def test_conditionals_given_noisy_values():
    case = make_case("full", n_components=1)
    noise = np.full((2, D), np.nan)
    noise[:, [0, 3]] = [[0.5, 2.0], [0.0, 1.0]]
    rows = np.array([[1.0, np.nan, np.nan, -1.0], [2.0, np.nan, np.nan, 0.0]])
    mixtures = case.mixture.conditional(rows, noise=noise)
    S, M = [0, 3], [1, 2]
    C, m = case.covariances[0], case.means[0]
    for i in range(2):
        gain = C[np.ix_(M, S)] @ np.linalg.inv(C[np.ix_(S, S)] + np.diag(noise[i, S]))
        mean = m[M] + gain @ (rows[i, S] - m[S])
        covariance = C[np.ix_(M, M)] - gain @ C[np.ix_(S, M)]
        np.testing.assert_allclose(mixtures.mean()[i], mean, rtol=1e-11)
        np.testing.assert_allclose(mixtures.covariance()[i], covariance, rtol=1e-11)
        np.testing.assert_allclose(mixtures[i].covariances_[0], covariance, rtol=1e-11)
        y = np.array([0.4, -0.6])
        expected = stats.multivariate_normal(mean, covariance).logpdf(y)
        np.testing.assert_allclose(mixtures.score_samples(y)[i], expected, rtol=1e-10)

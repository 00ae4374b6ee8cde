"""Leave-one-out in closed form is what estimating anew without each row gives."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from pickmix.families.shrinkage import leave_one_out_scores, without_row

D = 3
SHRINKAGES = [0.0, 1e-4, 0.2, 0.7, 1.0]


def some_rows(n, seed, n_columns=D):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, n_columns)) @ rng.normal(size=(n_columns, n_columns))
    half = rng.normal(size=(n_columns, n_columns + 2))
    return rows + rng.normal(size=n_columns), half @ half.T


def mean_and_covariance(rows, weights, divisor):
    """Weighted mean, and the weighted scatter about it, divided."""
    mean = weights @ rows / weights.sum()
    away = rows - mean
    return mean, (weights[:, None] * away).T @ away / divisor


def in_use(rows, weights, target, shrinkage):
    """The mean, and G = (1 - lambda) n / (n - 1) S + lambda T."""
    mean, covariance = mean_and_covariance(rows, weights, weights.sum() - 1.0)
    return mean, (1.0 - shrinkage) * covariance + shrinkage * target


def log_density_without(rows, weights, target, shrinkage, row):
    """What the others make of a row: of weight 1 by the others alone, else as METHOD 15 says."""
    n = weights.sum()
    others = np.delete(np.arange(rows.shape[0]), row)
    mean, covariance = mean_and_covariance(rows[others], weights[others], n - 1.0)
    matrix = (1.0 - shrinkage) * covariance + shrinkage * target
    if weights[row] != 1.0:
        own_mean, matrix = in_use(rows, weights, target, shrinkage)
        away = rows[row] - own_mean
        b = (1.0 - shrinkage) * n / (n - 1.0) ** 2
        matrix = matrix - b * weights[row] * np.outer(away, away)
    return multivariate_normal(mean, matrix).logpdf(rows[row])


def all_left_out(rows, weights, target, shrinkage):
    return np.array(
        [log_density_without(rows, weights, target, shrinkage, i) for i in range(rows.shape[0])]
    )


WEIGHTS = {
    "one each": np.ones(12),
    "soft, and ones": np.where(np.arange(12) % 3 == 0, 1.0, np.linspace(0.2, 0.95, 12)),
}


@pytest.mark.parametrize("shrinkage", SHRINKAGES)
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_row_falls_by_what_the_others_make_of_it(name, shrinkage):
    weights = WEIGHTS[name]
    rows, target = some_rows(12, 1)
    mean, matrix = in_use(rows, weights, target, shrinkage)
    away = rows - mean
    distances = np.einsum("nd,nd->n", away, np.linalg.solve(matrix, away.T).T)
    falls = without_row(distances, weights, weights.sum(), 1.0 - shrinkage)
    found = multivariate_normal(mean, matrix).logpdf(rows) - falls
    expected = all_left_out(rows, weights, target, shrinkage)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    # That is less than it was with them: for a row of full weight, always.
    assert (falls[weights == 1.0] > 0.0).all()


def test_without_its_only_row_a_component_is_not_there():
    counts = np.array([0.7, 1.0, 1.4, 2.0])
    falls = without_row(np.zeros(4), 1.0, counts, 0.0)
    # Of 1.4 rows without one less than half a row is left.
    assert (falls[:3] == 1e4).all()
    assert falls[3] == 0.0


@pytest.mark.parametrize("name", WEIGHTS)
def test_scores_are_the_mean_log_density_of_rows_left_out(name):
    """Of more components than are decomposed at a time, whose rows end in places without any."""
    M, L = 300, len(SHRINKAGES)
    n, weights = 12, WEIGHTS[name]
    padded = np.zeros((M, n + 4))
    padded[:, :n] = weights
    residuals = np.full((M, n + 4, D), 7.0)
    covariances, targets = np.empty((M, D, D)), np.empty((M, D, D))
    rows = np.empty((M, n, D))
    for k in range(M):
        rows[k], targets[k] = some_rows(n, k)
        mean, covariances[k] = in_use(rows[k], weights, targets[k], 0.0)
        residuals[k, :n] = rows[k] - mean
    shrinkages = np.tile(SHRINKAGES, (M, 1))
    shrinkages[200:, 2] = 0.4
    counts = np.full(M, weights.sum())
    scores = leave_one_out_scores(covariances, targets, counts, residuals, padded, shrinkages)
    assert scores.shape == (M, L)
    for k in (0, 1, 255, 256, 299):
        expected = [
            weights @ all_left_out(rows[k], weights, targets[k], shrinkage) / weights.sum()
            for shrinkage in shrinkages[k]
        ]
        # Up to a constant: that of a density, and the target's determinant.
        constant = -0.5 * (D * np.log(2.0 * np.pi) + np.linalg.slogdet(targets[k])[1])
        np.testing.assert_allclose(scores[k] + constant, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kept", [0.0, 0.2, 0.4])
def test_a_target_may_be_made_of_the_same_rows(kept):
    """A part of it goes with the row: b = (1 - lambda + lambda kept) n / (n - 1)^2."""
    n, shrinkage = 12.0, 0.7
    rows, target = some_rows(12, 3)
    mean, covariance = in_use(rows, np.ones(12), target, 0.0)
    matrix = (1.0 - shrinkage) * covariance + shrinkage * target
    found = leave_one_out_scores(
        covariance[None],
        target[None],
        np.array([n]),
        (rows - mean)[None],
        np.ones((1, 12)),
        np.array([[shrinkage]]),
        kept,
    )[0, 0]
    b = (1.0 - shrinkage + shrinkage * kept) * n / (n - 1.0) ** 2
    expected = []
    for i in range(12):
        away = rows[i] - mean
        others = np.delete(rows, i, axis=0).mean(axis=0)
        left = matrix - b * np.outer(away, away)
        expected.append(multivariate_normal(others, left).logpdf(rows[i]))
    constant = -0.5 * (D * np.log(2.0 * np.pi) + np.linalg.slogdet(target)[1])
    assert found + constant == pytest.approx(np.mean(expected), rel=1e-9)


@pytest.mark.parametrize("n_columns", [5, 20])
def test_a_singular_covariance_is_ruled_out_by_its_rows(n_columns):
    """Four rows in more columns: without shrinkage nothing explains a row that is left out."""
    rows, target = some_rows(4, 9, n_columns)
    mean, covariance = in_use(rows, np.ones(4), target, 0.0)
    shrinkages = np.array([[0.0, 1e-4, 0.3, 1.0]])
    scores = leave_one_out_scores(
        covariance[None],
        target[None],
        np.array([4.0]),
        (rows - mean)[None],
        np.ones((1, 4)),
        shrinkages,
    )[0]
    assert np.isfinite(scores).all()
    assert scores[0] < scores[2] - 10.0
    expected = [
        all_left_out(rows, np.ones(4), target, shrinkage).mean() for shrinkage in (0.3, 1.0)
    ]
    assert scores[2] - scores[3] == pytest.approx(expected[0] - expected[1], rel=1e-8)


class TestRowsSeenInPart:
    @staticmethod
    def case(seed=0, D=4, m=12):
        rng = np.random.default_rng(seed)
        roots = rng.normal(size=(2, 3, D, D))
        covariances, targets = roots @ roots.transpose(0, 1, 3, 2) + 0.3 * np.eye(D)
        residuals = rng.normal(size=(3, m, D))
        weights, counts = rng.uniform(0.2, 1.0, (3, m)), np.array([15.0, 40.0, 200.0])
        shrinkages = np.tile([0.05, 0.4, 1.0], (3, 1))
        return covariances, targets, counts, residuals, weights, shrinkages

    @staticmethod
    def same_but_for_constants(found, expected):
        """Scores (M, L) are up to a constant per component."""
        difference = found - expected
        np.testing.assert_allclose(difference - difference[:, :1], 0.0, atol=1e-7)

    def test_complete_rows_give_the_same_scores(self):
        arguments = self.case()
        expected = leave_one_out_scores(*arguments, kept=0.3)
        residuals = arguments[3]
        no_noise = np.zeros((*residuals.shape, residuals.shape[2]))
        found = leave_one_out_scores(*arguments, kept=0.3, noise=no_noise)
        self.same_but_for_constants(found, expected)

    def test_a_column_that_nobody_saw_does_not_matter(self):
        covariances, targets, counts, residuals, weights, shrinkages = self.case()
        residuals[:, :, 2] = np.nan
        rest = np.array([0, 1, 3])
        # Of 16 pairs of columns 9 were seen.
        expected = leave_one_out_scores(
            covariances[:, rest[:, None], rest],
            targets[:, rest[:, None], rest],
            counts * 9.0 / 16.0,
            residuals[:, :, rest],
            weights,
            shrinkages,
            0.3,
        )
        found = leave_one_out_scores(
            covariances, targets, counts, residuals, weights, shrinkages, 0.3
        )
        self.same_but_for_constants(found, expected)

    def test_noise_to_infinity_tends_to_missing(self):
        covariances, targets, counts, residuals, weights, shrinkages = self.case()
        missing = residuals.copy()
        missing[:, ::2, 1] = np.nan
        noise = np.zeros((*residuals.shape, residuals.shape[2]))
        noise[:, ::2, 1, 1] = 1e9
        one = leave_one_out_scores(covariances, targets, counts, missing, weights, shrinkages)
        other = leave_one_out_scores(
            covariances, targets, counts, residuals, weights, shrinkages, noise=noise
        )
        # But for the width of the noise, which no shrinkage changes.
        difference = other - one
        np.testing.assert_allclose(difference - difference[:, :1], 0.0, atol=1e-6)

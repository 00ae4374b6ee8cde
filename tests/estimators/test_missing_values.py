"""Missing values in estimators: laws, against independent computations."""

import numpy as np
import pytest
from missing_cases import (
    clusters,
    correlated_rows,
    mixed_rows,
    observed_log_likelihood,
    quiet_fit,
    with_gaps,
)
from scipy import stats
from scipy.optimize import minimize

from pickmix import FamilyMixture, GaussianMixture

TYPES = ["full", "tied", "diag", "spherical"]
MIXED = [("poisson", [0, 1]), ("categorical", [2]), ("full", [3, 4])]


class TestOneGaussian:
    @staticmethod
    def maximum(rows, noise=None):
        """Maximum likelihood by a general optimiser, over the mean and a Cholesky factor."""
        seen = ~np.isnan(rows)
        kinds, kind = np.unique(seen, axis=0, return_inverse=True)
        lower = np.tril_indices(3)

        def loss(values):
            mean, root = values[:3], np.zeros((3, 3))
            root[lower] = values[3:]
            covariance = root @ root.T
            total = 0.0
            for number, mask in enumerate(kinds):
                here = rows[kind.ravel() == number][:, mask] - mean[mask]
                matrix = covariance[np.ix_(mask, mask)]
                if noise is not None:
                    matrix = matrix + noise[np.ix_(mask, mask)]
                factor = np.linalg.cholesky(matrix)
                total += 0.5 * np.square(np.linalg.solve(factor, here.T)).sum()
                total += len(here) * np.log(np.diagonal(factor)).sum()
            return total

        start = np.concatenate([np.nanmean(rows, axis=0), np.eye(3)[lower]])
        best = minimize(loss, start, method="BFGS", options={"gtol": 1e-8}).x
        root = np.zeros((3, 3))
        root[lower] = best[3:]
        return best[:3], root @ root.T

    def test_em_finds_the_maximum_likelihood(self):
        rows = with_gaps(correlated_rows())
        mean, covariance = self.maximum(rows)
        mixture = GaussianMixture(1, algorithm="em", reg_covar=0.0, tol=0.0, max_iter=400)
        quiet_fit(mixture, rows)
        np.testing.assert_allclose(mixture.means_[0], mean, atol=1e-6)
        np.testing.assert_allclose(mixture.covariances_[0], covariance, atol=1e-6)

    def test_em_with_noise_finds_the_maximum_likelihood(self):
        rows = with_gaps(correlated_rows(150))
        noise = np.array([[0.5, 0.1, 0.0], [0.1, 0.3, 0.0], [0.0, 0.0, 0.4]])
        mean, covariance = self.maximum(rows, noise)
        mixture = GaussianMixture(1, algorithm="em", reg_covar=0.0, tol=0.0, max_iter=600)
        quiet_fit(mixture, rows, noise=np.broadcast_to(noise, (150, 3, 3)))
        # A covariance here is nearly singular, and EM comes to such a place slowly.
        np.testing.assert_allclose(mixture.means_[0], mean, atol=5e-4)
        np.testing.assert_allclose(mixture.covariances_[0], covariance, atol=5e-3)

    def test_the_default_algorithm_comes_close(self):
        rows = with_gaps(correlated_rows(600))
        mean, covariance = self.maximum(rows)
        mixture = GaussianMixture(1, random_state=0).fit(rows)
        actual = observed_log_likelihood(rows, mixture.means_[0], mixture.covariances_[0])
        best = observed_log_likelihood(rows, mean, covariance)
        # It ends when five passes gain less than 0.002 nats per row.
        assert best - 0.02 * 600 < actual <= best + 1e-6
        # A mean filled in instead would lose much more.
        filled = np.where(np.isnan(rows), np.nanmean(rows, axis=0), rows)
        assert actual > observed_log_likelihood(rows, mean, np.cov(filled.T)) + 15.0

    def test_score_samples_are_marginal_densities(self):
        rows = with_gaps(correlated_rows())
        mixture = GaussianMixture(1, random_state=0).fit(rows)
        noise = np.random.default_rng(2).uniform(0.1, 1.0, rows.shape)
        for given in (None, noise):
            matrices = None if given is None else given[:, :, None] * np.eye(3)
            expected = observed_log_likelihood(
                rows, mixture.means_[0], mixture.covariances_[0], matrices
            )
            actual = mixture.score_samples(rows, noise=given).sum()
            np.testing.assert_allclose(actual, expected, rtol=1e-10)


@pytest.mark.parametrize(
    ("covariance_type", "noise"),
    [*((covariance_type, None) for covariance_type in TYPES), ("full", 0.5), ("diag", 0.5)],
)
def test_em_never_lowers_the_observed_likelihood(covariance_type, noise):
    rows = with_gaps(clusters())
    variances = None if noise is None else np.full(rows.shape, noise)
    mixture = GaussianMixture(
        3, covariance_type=covariance_type, algorithm="em", tol=0.0, max_iter=20, random_state=0
    )
    quiet_fit(mixture, rows, noise=variances)
    assert np.diff(mixture.lower_bounds_).min() > -1e-10
    # The last bound is that before the last step.
    assert mixture.score_samples(rows, noise=variances).mean() >= mixture.lower_bound_ - 1e-10


def test_em_never_lowers_the_observed_likelihood_of_mixed_columns():
    rows = with_gaps(mixed_rows())
    mixture = FamilyMixture(MIXED, 3, algorithm="em", tol=0.0, max_iter=40, random_state=0)
    quiet_fit(mixture, rows)
    assert np.diff(mixture.lower_bounds_).min() > -1e-10


@pytest.mark.parametrize("covariance_type", ["full", "tied"])
def test_components_are_found_with_a_third_of_the_cells_missing(covariance_type):
    rows = with_gaps(clusters(1500))
    mixture = GaussianMixture(4, covariance_type=covariance_type, random_state=0).fit(rows)
    held_out = clusters(2000, seed=9)
    complete = GaussianMixture(4, covariance_type=covariance_type, random_state=0)
    complete.fit(clusters(1500))
    assert mixture.score(held_out) > complete.score(held_out) - 0.02
    filled = np.where(np.isnan(rows), np.nanmean(rows, axis=0), rows)
    naive = GaussianMixture(4, covariance_type=covariance_type, random_state=0).fit(filled)
    assert mixture.score(held_out) > naive.score(held_out) + 0.5


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "ssaem"},
        {"algorithm": "tsaem"},
        {"proposal": "table"},
    ],
    ids=str,
)
def test_every_algorithm_takes_gaps_and_noise(settings):
    rows = with_gaps(clusters())
    held_out = clusters(1000, seed=9)
    one = quiet_fit(GaussianMixture(4, max_iter=30, random_state=0, **settings), rows)
    assert one.score(held_out) > -6.5
    noisy = rows + np.random.default_rng(3).normal(size=rows.shape)
    both = quiet_fit(
        GaussianMixture(4, max_iter=30, random_state=0, **settings),
        noisy,
        noise=np.ones(rows.shape),
    )
    assert both.score(held_out) > -7.0


class TestRowsWithoutValues:
    def test_they_do_not_count_and_are_named(self):
        rows = with_gaps(clusters())
        empty = np.insert(rows, [3, 100, 600], np.nan, axis=0)
        one = quiet_fit(GaussianMixture(3, max_iter=6, random_state=0), rows)
        with pytest.warns(UserWarning, match=r"3 row\(s\) of X hold missing values only"):
            other = quiet_fit(GaussianMixture(3, max_iter=6, random_state=0), empty)
        np.testing.assert_array_equal(one.means_, other.means_)
        assert other.n_rows_seen_ == 600

    def test_they_have_the_density_one_and_the_weights(self):
        mixture = GaussianMixture(4, random_state=0).fit(with_gaps(clusters()))
        nothing = np.full((2, 3), np.nan)
        np.testing.assert_allclose(mixture.score_samples(nothing), 0.0, atol=1e-12)
        np.testing.assert_allclose(mixture.predict_proba(nothing)[0], mixture.weights_, atol=1e-12)

    def test_only_such_rows(self):
        with pytest.raises(ValueError, match=r"X must hold a value, got 5 row\(s\)"):
            GaussianMixture(1).fit(np.full((5, 2), np.nan))

    def test_a_column_without_values(self):
        rows = clusters()
        rows[:, 1] = np.nan
        with pytest.raises(ValueError, match=r"only missing values in column 1"):
            GaussianMixture(1).fit(rows)


class TestWeights:
    def test_em_takes_a_row_of_weight_two_for_two_rows(self):
        rows = with_gaps(clusters(200))
        means = clusters(3, seed=5)
        settings = {
            "algorithm": "em",
            "means_init": means,
            "precisions_init": np.repeat(np.eye(3)[None], 3, axis=0),
            "weights_init": np.full(3, 1 / 3),
        }
        weights = np.ones(200)
        weights[:50] = 2.0
        one = quiet_fit(
            GaussianMixture(3, tol=0.0, max_iter=5, **settings), rows, sample_weight=weights
        )
        other = quiet_fit(
            GaussianMixture(3, tol=0.0, max_iter=5, **settings), np.concatenate([rows, rows[:50]])
        )
        np.testing.assert_allclose(one.means_, other.means_, atol=1e-9)
        np.testing.assert_allclose(one.covariances_, other.covariances_, atol=1e-9)


class TestInvariance:
    def test_far_from_the_origin_and_in_single_precision(self):
        rows = with_gaps(clusters())
        near = GaussianMixture(4, random_state=0).fit(rows)
        far = GaussianMixture(4, random_state=0).fit(rows + 1e8)
        # Values near 1e8 have eight digits behind the point less.
        np.testing.assert_allclose(far.means_ - 1e8, near.means_, atol=1e-5)
        single = GaussianMixture(4, random_state=0).fit(rows.astype(np.float32))
        np.testing.assert_allclose(single.means_, near.means_, atol=1e-3)


def test_searches_find_components_by_what_was_seen():
    rng = np.random.default_rng(0)
    centres = 20.0 * rng.normal(size=(300, 4))
    rows = centres[rng.integers(300, size=3000)] + rng.normal(size=(3000, 4))
    mixture = quiet_fit(GaussianMixture(300, max_iter=8, random_state=0), with_gaps(rows, 0.1))
    gaps = with_gaps(rows[:1000], 0.25, seed=7)
    exact = mixture.score_samples(gaps)
    bound = mixture.score_samples(gaps, n_candidates=128)
    assert (bound <= exact + 1e-6).all()
    assert np.mean(exact - bound) < 0.1
    mended = mixture.score_samples(gaps, n_candidates=128, exact_below=np.median(exact))
    below = exact < np.median(exact)
    np.testing.assert_allclose(mended[below], exact[below], atol=1e-9)


def test_families_of_several_kinds():
    rows = mixed_rows(2000)
    held_out = mixed_rows(2000, seed=9)
    complete = FamilyMixture(MIXED, 2, random_state=0).fit(rows)
    mixture = FamilyMixture(MIXED, 2, random_state=0).fit(with_gaps(rows))
    assert mixture.score(held_out) > complete.score(held_out) - 0.02
    # What was seen of a row has the density that the other columns do not change.
    subset = held_out[:50].copy()
    subset[:, [1, 2, 4]] = np.nan
    weights, parameters = mixture.weights_, mixture.parameters_
    rates = parameters["poisson0_rates"][:, 0]
    means = parameters["full2_means"][:, 0]
    deviations = np.sqrt(parameters["full2_covariances"][:, 0, 0])
    densities = stats.poisson.pmf(subset[:, 0, None], rates)
    densities = densities * stats.norm.pdf(subset[:, 3, None], means, deviations)
    np.testing.assert_allclose(
        mixture.score_samples(subset), np.log(densities @ weights), rtol=1e-9, atol=1e-9
    )


def test_rows_beyond_float64_are_refused_with_gaps_too():
    mixture = quiet_fit(GaussianMixture(2, max_iter=3, random_state=0), clusters())
    far = np.array([[1e160, np.nan, 0.0], [1.0, np.nan, 0.0]])
    for ask in (mixture.score_samples, mixture.predict_proba, mixture.predict):
        with pytest.raises(ValueError, match="squared distances"):
            ask(far)
    # As far as the noise reaches, nothing is too far.
    scores = mixture.score_samples(far[1:], noise=np.full((1, 3), 1e119))
    normal = stats.norm.logpdf(0.0, scale=np.sqrt(1e119))
    np.testing.assert_allclose(scores, 2.0 * normal, rtol=1e-6)


def test_an_empty_batch_of_a_stream_changes_nothing():
    mixture = GaussianMixture(2, random_state=0).partial_fit(with_gaps(clusters()))
    before = mixture.means_.copy()
    with pytest.warns(UserWarning, match=r"5 row\(s\) of X hold missing values only"):
        mixture.partial_fit(np.full((5, 3), np.nan))
    np.testing.assert_array_equal(mixture.means_, before)


@pytest.mark.parametrize("noise", [0.5])
def test_an_interrupted_fit_goes_on_to_the_same_bits(tmp_path, noise):
    rows = with_gaps(clusters())
    variances = None if noise is None else np.full(rows.shape, noise)
    settings = {"max_iter": 12, "random_state": 0, "evaluate_every": 1}
    whole = quiet_fit(GaussianMixture(4, **settings), rows, noise=variances)

    def interrupt(info):
        if info.step == 4:
            raise KeyboardInterrupt

    kept = {"checkpoint": tmp_path / "kept", "checkpoint_every": 1e-9}
    with pytest.warns(UserWarning, match="interrupted"):
        quiet_fit(
            GaussianMixture(4, **settings, **kept, callbacks=interrupt), rows, noise=variances
        )
    resumed = quiet_fit(GaussianMixture(4, **settings, **kept), rows, noise=variances)
    np.testing.assert_array_equal(resumed.means_, whole.means_)
    np.testing.assert_array_equal(resumed.covariances_, whole.covariances_)

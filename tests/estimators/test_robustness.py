"""Awkward data: a finite, sensible fit or a clear error, for exact and stochastic algorithms."""

import warnings

import numpy as np
import pytest
from robust_fits import (
    ALGORITHMS,
    assert_usable,
    clusters,
    diagonals,
    every_algorithm,
    every_covariance,
    fitted,
    named_pairs,
    some_pairs,
)
from scipy import stats
from sklearn.exceptions import ConvergenceWarning

from pickmix import GaussianMixture


class TestShiftAndScale:
    @some_pairs
    def test_shifted_by_1e8(self, settings, covariance_type):
        shifted = clusters() + 1e8
        # Exact: both sides are multiples of the spacing of float64 at 1e8, 2^-26 = 1.5e-8. So one
        # set of rows is the other moved, without the rounding that adding 1e8 cost both.
        X = shifted - 1e8
        near = fitted(X, covariance_type=covariance_type, **settings)
        far = fitted(shifted, covariance_type=covariance_type, **settings)
        # A mean at 1e8 cannot be written more exactly than half the spacing; that, and the same
        # for the centre that the rows are taken about, is all that may differ.
        np.testing.assert_allclose(far.means_ - 1e8, near.means_, rtol=0, atol=2.0**-26)
        # Rows about the centre are exact. Parameters agree to the rounding of sums, amplified by
        # the iterations; naive second moments at 1e8 would be wrong by 1e16 * 1e-16 = 1.
        np.testing.assert_allclose(far.covariances_, near.covariances_, rtol=1e-7, atol=1e-7)
        np.testing.assert_allclose(far.weights_, near.weights_, rtol=1e-7)
        # |d log p / d mean| is a distance in deviations, below 10 here, times the rounding above.
        np.testing.assert_allclose(
            far.score_samples(shifted), near.score_samples(X), rtol=0, atol=1e-6
        )
        np.testing.assert_array_equal(far.predict(shifted), near.predict(X))

    @some_pairs
    def test_scaled_with_its_regularisation(self, settings, covariance_type):
        X = clusters()
        settings = settings | {"covariance_type": covariance_type}
        plain = fitted(X, **settings)
        for scale in (1e-8, 1e8):
            self.check_scaled(X, plain, settings, scale)

    @staticmethod
    def check_scaled(X, plain, settings, scale):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            scaled = fitted(scale * X, reg_covar=1e-6 * scale**2, **settings)
        # Scaling rounds each number once (1e-16 relative); sums and iterations amplify that.
        tolerance = 1e-9
        np.testing.assert_allclose(scaled.means_ / scale, plain.means_, rtol=0, atol=tolerance)
        np.testing.assert_allclose(
            scaled.covariances_ / scale**2, plain.covariances_, rtol=0, atol=tolerance
        )
        np.testing.assert_allclose(scaled.weights_, plain.weights_, atol=tolerance)
        # p(x) changes by the Jacobian.
        np.testing.assert_allclose(
            scaled.score_samples(scale * X) + 2 * np.log(scale), plain.score_samples(X), rtol=1e-7
        )
        np.testing.assert_array_equal(scaled.predict(scale * X), plain.predict(X))

    @every_algorithm
    def test_tiny_data_warns_about_reg_covar(self, settings):
        X = 1e-8 * clusters()
        with pytest.warns(UserWarning, match=r"reg_covar=1e-06 exceeds the variance"):
            mixture = fitted(X, **settings)
        assert_usable(mixture, X)
        # The fit is what the warning says: all structure is below reg_covar.
        np.testing.assert_allclose(diagonals(mixture), 1e-6, rtol=1e-6)

    @every_algorithm
    def test_huge_values_are_refused(self, settings):
        X = clusters()
        X[3, 1] = 1e308
        X[4, 1] = -1e308
        with pytest.raises(ValueError, match=r"X must have columns with a spread below 1e\+60"):
            fitted(X, **settings)

    @named_pairs
    @pytest.mark.parametrize("scale", [1e-150, 1e59])
    def test_at_the_edges_of_float64(self, algorithm, covariance_type, scale):
        # Any warning is an error here. Squares are 1e-300, and 1e118.
        X = clusters()
        settings = {"algorithm": algorithm, "covariance_type": covariance_type}
        scaled = fitted(scale * X, reg_covar=0.0, **settings)
        assert_usable(scaled, scale * X)
        assert scaled.sample(5)[0].shape == (5, 2)
        # Trees of partition fits take no width below 1e-280: such a fit is another one.
        if algorithm != "mhsaem" or scale > 1.0:
            plain = fitted(X, reg_covar=0.0, **settings)
            np.testing.assert_allclose(scaled.means_ / scale, plain.means_, atol=1e-6)


class TestDegenerateRows:
    @some_pairs
    def test_constant_columns(self, settings, covariance_type):
        X = np.column_stack([clusters(), np.full(400, 7.0), np.zeros(400)])
        mixture = fitted(X, covariance_type=covariance_type, **settings)
        assert_usable(mixture, X)
        np.testing.assert_allclose(mixture.means_[:, 2], 7.0, rtol=1e-12)
        np.testing.assert_allclose(mixture.means_[:, 3], 0.0, atol=1e-12)
        if covariance_type != "spherical":
            # Nothing but reg_covar in the constant columns, and nothing of it in the others.
            # (Variances of a partition fit are shrunk to typical ones.)
            tolerance = 0.05 if settings["algorithm"] == "mhsaem" else 1e-6
            np.testing.assert_allclose(diagonals(mixture)[:, 2:], 1e-6, rtol=tolerance)
            without = fitted(X[:, :2], covariance_type=covariance_type, algorithm="em")
            if settings["algorithm"] == "em":
                # The constant columns add log N(0; 0, 1e-6) each.
                constant = 2 * stats.norm.logpdf(0.0, scale=1e-3)
                assert mixture.score(X) == pytest.approx(without.score(X[:, :2]) + constant)

    @some_pairs
    @pytest.mark.parametrize("n_components", [1, 3])
    def test_all_rows_equal(self, settings, covariance_type, n_components):
        row = np.array([0.1, -1e5])
        X = np.tile(row, (50, 1))
        mixture = fitted(X, n_components, covariance_type=covariance_type, **settings)
        assert_usable(mixture, X)
        np.testing.assert_allclose(mixture.means_, np.tile(row, (n_components, 1)), rtol=1e-12)
        np.testing.assert_allclose(diagonals(mixture), 1e-6, rtol=1e-6)
        expected = stats.norm.logpdf(0.0, scale=1e-3) * 2
        np.testing.assert_allclose(mixture.score_samples(X), expected, rtol=1e-6)

    @every_algorithm
    def test_many_duplicates_among_others(self, settings):
        X = np.concatenate([clusters(200), np.tile([20.0, 20.0], (500, 1))])
        # 27 passes, or 18 time constants of the averages, for the first covariance to fade away.
        mixture = fitted(X, 4, **({"max_steps": 300} | settings))
        assert_usable(mixture, X)
        # The duplicates have a component of their own, no wider than reg_covar.
        k = mixture.predict([[20.0, 20.0]])[0]
        np.testing.assert_allclose(mixture.means_[k], 20.0, atol=1e-6)
        np.testing.assert_allclose(diagonals(mixture)[k], 1e-6, rtol=1e-2)
        assert mixture.weights_[k] == pytest.approx(500 / 700, abs=0.01)
        assert (mixture.predict(X[200:]) == k).all()
        assert not (mixture.predict(X[:200]) == k).any()

    @some_pairs
    def test_as_many_components_as_rows(self, settings, covariance_type):
        X = clusters(20)
        mixture = fitted(X, 20, covariance_type=covariance_type, **settings)
        assert_usable(mixture, X)
        # It explains its own rows at least as well as a single Gaussian does.
        one = stats.multivariate_normal(X.mean(axis=0), np.cov(X.T, bias=True)).logpdf(X).mean()
        assert mixture.score(X) > one

    @pytest.mark.parametrize("settings", ALGORITHMS[:2], ids=["em", "mhsaem"])
    @every_covariance
    @pytest.mark.parametrize("case", ["constant column", "dependent columns", "rows equal"])
    def test_singular_without_regularisation(self, settings, covariance_type, case):
        X = clusters()
        if case == "constant column":
            X[:, 1] = 3.0
        elif case == "dependent columns":
            X[:, 1] = 2.0 * X[:, 0]
        else:
            X[:] = X[0]
        mixture, message = None, ""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                mixture = fitted(X, reg_covar=0.0, covariance_type=covariance_type, **settings)
            except ValueError as error:
                message = str(error)
        message += "".join(str(warning.message) for warning in caught)
        harmless = covariance_type == "spherical" or (
            covariance_type == "diag" and case == "dependent columns"
        )
        # Components of a partition fit begin round, and averaged steps remember that for a while.
        starts_round = settings == {"algorithm": "mhsaem"} and case == "dependent columns"
        if (harmless and case != "rows equal") or (starts_round and mixture is not None):
            assert_usable(mixture, X)
            return
        # An error, or a named outcome with a warning; both tell what is wrong and what helps.
        assert "singular" in message
        assert "ncrease reg_covar" in message
        if mixture is not None:
            assert mixture.outcome_ == "singular_covariance"
            assert_usable(mixture, X)

    def test_collapse_without_regularisation_keeps_the_last_good_model(self):
        # A component on a single row: the start is fine, the first M-step is not.
        X = np.concatenate([clusters(), [[100.0, 100.0]]])
        start = {
            "weights_init": [0.5, 0.5],
            "means_init": [[0.0, 0.0], [100.0, 100.0]],
            "precisions_init": [0.1, 1.0],
        }
        with pytest.warns(ConvergenceWarning, match="covariance became singular"):
            mixture = GaussianMixture(
                2, algorithm="em", covariance_type="spherical", reg_covar=0.0, **start
            ).fit(X)
        assert mixture.outcome_ == "singular_covariance"
        assert not mixture.converged_
        assert_usable(mixture, X)

    def test_vanishing_variances_are_singular(self):
        # More and more of the zeros gather in one component: its variance shrank to 1e-302.
        random = np.random.default_rng(98)
        X = np.where(random.random((30, 3)) < 0.6, 0.0, random.exponential(size=(30, 3)))
        X[random.random(X.shape) < 0.2] = np.nan
        mixture = GaussianMixture(3, reg_covar=0.0, background=False, max_iter=20, random_state=0)
        with pytest.warns(ConvergenceWarning):
            mixture.fit(X)
        assert np.diagonal(mixture.covariances_, axis1=1, axis2=2).min() > 1e-201
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert np.isfinite(mixture.explain(X[:3]).surprise[~np.isnan(X[:3])]).all()


class TestSmallCases:
    @every_covariance
    def test_one_component_is_the_sample_moments_in_em(self, covariance_type):
        X = clusters(n_features=3)
        mixture = fitted(X, 1, covariance_type=covariance_type, algorithm="em", reg_covar=0.0)
        full = np.cov(X.T, bias=True)
        expected = {
            "full": full[None],
            "tied": full,
            "diag": np.diag(full)[None],
            "spherical": np.array([np.trace(full) / 3]),
        }[covariance_type]
        np.testing.assert_allclose(mixture.means_[0], X.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(mixture.covariances_, expected, rtol=1e-12, atol=1e-14)
        np.testing.assert_array_equal(mixture.weights_, [1.0])

    @every_algorithm
    def test_more_components_than_rows(self, settings):
        with pytest.raises(ValueError, match=r"n_components must be at most .* n_components=11"):
            fitted(clusters(10), 11, **settings)
        weights = np.ones(10)
        weights[:3] = 0.0
        with pytest.raises(ValueError, match=r"n_samples=7.*n_components=8"):
            fitted(clusters(10), 8, sample_weight=weights, **settings)

"""Seeds, threads and warm starts: the same again, and going on."""

import numpy as np
import pytest
from short_fits import assert_identical, clusters, every_algorithm, short_fit
from sklearn.base import clone

from pickmix import GaussianMixture


class TestRandomness:
    @every_algorithm
    def test_same_seed_same_bits(self, settings):
        one, two = (short_fit(n_init=2, **settings) for _ in range(2))
        assert_identical(one, two)

    @every_algorithm
    def test_other_seed_other_fit(self, settings):
        one, two = (short_fit(random_state=seed, **settings) for seed in (0, 1))
        assert np.abs(one.means_ - two.means_).max() > 1e-9

    def test_random_state_objects(self):
        one, two = (short_fit(random_state=np.random.RandomState(4)) for _ in range(2))
        assert_identical(one, two)
        assert_identical(one, short_fit(random_state=4))
        # A generator that goes on gives another fit the second time.
        shared = np.random.RandomState(4)
        again = short_fit(random_state=shared)
        assert_identical(again, one)
        assert np.abs(short_fit(random_state=shared).means_ - again.means_).max() > 1e-9
        assert np.isfinite(short_fit(random_state=None).means_).all()

    @pytest.mark.parametrize(
        ("algorithm", "init_params"), [("em", "kmeans"), ("em", "random"), ("mhsaem", "auto")]
    )
    def test_generators(self, algorithm, init_params):
        settings = {"algorithm": algorithm, "init_params": init_params}
        generator = np.random.default_rng(4)
        mixture = GaussianMixture(3, max_steps=5, random_state=generator, **settings)
        # A clone has a copy that stands where the generator stands.
        copied = clone(mixture)
        assert copied.random_state is not generator
        assert_identical(mixture.fit(clusters()), copied.fit(clusters()))
        first = mixture.means_
        # The generator has gone on.
        assert np.abs(mixture.fit(clusters()).means_ - first).max() > 1e-12
        assert np.abs(mixture.sample(9)[0] - mixture.sample(9)[0]).max() > 0.0

    def test_starts_are_compared_on_the_same_rows(self):
        # Steps so small that every start keeps the given parameters: then the log-likelihoods of
        # all starts are equal if they are those of the same rows.
        X = clusters(800)
        values = []
        GaussianMixture(
            400,
            proposal="uniform",
            n_init=3,
            max_steps=1,
            step_size=1e-12,
            covariance_type="spherical",
            weights_init=np.full(400, 1 / 400),
            means_init=X[:400],
            precisions_init=np.ones(400),
            callbacks=lambda info: values.append(info.log_likelihood),
            random_state=0,
        ).fit(X)
        assert len(values) == 3
        assert np.ptp(values) < 1e-6


class TestWarmStart:
    """Goes on from the last fit's parameters, chain states and step number."""

    def test_narrow_components_stay_narrow(self):
        # Needles: a prior that begins anew would blur them, by nats.
        rng = np.random.default_rng(0)
        directions = rng.normal(size=(40, 3))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        which = rng.integers(40, size=2000)
        X = rng.uniform(-3.0, 3.0, (40, 3))[which]
        X += rng.normal(size=(2000, 1)) * directions[which] + 1e-3 * rng.normal(size=(2000, 3))
        mixture = GaussianMixture(40, max_iter=20, reg_covar=1e-9, tol=0.0, random_state=0).fit(X)
        before = mixture.score(X)
        mixture.set_params(warm_start=True, max_iter=3).fit(X)
        assert mixture.score(X) > before - 0.05

    @pytest.mark.parametrize(
        ("algorithm", "covariance_type"),
        [("em", "full"), ("saem", "spherical"), ("mcsaem", "diag"), ("mhsaem", "tied")],
    )
    def test_two_halves_are_a_whole(self, algorithm, covariance_type):
        # These algorithms keep nothing but parameters and, with a uniform proposal, chains. With
        # all components well filled, two fits of 20 steps are one of 40: the same batches, draws
        # and step sizes.
        X = clusters()
        settings = {
            "algorithm": algorithm,
            "proposal": "uniform",
            "covariance_type": covariance_type,
            "batch_size": 50,
            "random_state": 0,
        }
        whole = GaussianMixture(3, max_steps=40, **settings).fit(X)
        halves = GaussianMixture(3, max_steps=20, warm_start=True, **settings).fit(X)
        first = halves.means_.copy()
        halves.fit(X)
        assert halves.n_steps_ == whole.n_steps_ == 40
        assert halves.trace_["step"][0] > 20
        assert np.abs(halves.means_ - first).max() > 1e-6
        for name in ("weights_", "means_", "covariances_"):
            np.testing.assert_allclose(
                getattr(halves, name), getattr(whole, name), rtol=1e-8, atol=1e-8, err_msg=name
            )

    def test_equal_shapes_of_different_structures_are_told_apart(self):
        """K = D = 3: a table of variances has the shape of a tied covariance."""
        X = np.random.default_rng(0).normal(size=(300, 3))
        mixture = GaussianMixture(
            3, covariance_type="diag", max_steps=5, warm_start=True, random_state=0
        ).fit(X)
        mixture.set_params(covariance_type="tied").fit(X)
        assert mixture.n_steps_ == 5
        assert np.linalg.eigvalsh(mixture.covariances_).min() > 0.0

    @pytest.mark.parametrize(
        "change",
        [{"n_components": 4}, {"covariance_type": "diag"}, {"covariance_type": "tied"}],
        ids=str,
    )
    def test_other_shape_means_a_new_start(self, change):
        X = clusters()
        mixture = short_fit(warm_start=True).set_params(**change).fit(X)
        fresh = clone(mixture).fit(X)
        assert_identical(mixture, fresh)
        assert mixture.n_steps_ == 20

    def test_other_algorithm_goes_on(self):
        X = clusters()
        mixture = short_fit(warm_start=True, algorithm="mhsaem").set_params(algorithm="em")
        before = mixture.score(X)
        mixture.fit(X)
        assert mixture.trace_["log_likelihood"][0] == pytest.approx(before, rel=1e-9)

"""Mixtures of counts, levels and groups of columns, through the estimator."""

import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone

import pickmix
from pickmix import FamilyMixture, GaussianMixture

GROUPS = [("categorical", [3]), ("full", [0, 2]), ("poisson", [1])]


def mixed_rows(n, seed=0):
    """Three kinds of rows: two numbers, a count and a level, in mixed order of columns."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(3, size=n)
    rows = np.empty((n, 4))
    rows[:, 0] = rng.normal([-3.0, 0.0, 3.0], 0.5)[kind] + rng.normal(0.0, 0.5, n)
    rows[:, 2] = 0.5 * rows[:, 0] + rng.normal(0.0, 0.3, n)
    rows[:, 1] = rng.poisson(np.array([2.0, 8.0, 25.0])[kind])
    shares = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
    rows[:, 3] = (rng.random(n)[:, None] > np.cumsum(shares, axis=1)[kind]).sum(axis=1)
    return rows, kind


@pytest.fixture(scope="module")
def mixed():
    rows, kind = mixed_rows(1500)
    return rows, kind, FamilyMixture(GROUPS, 3, random_state=0).fit(rows)


def log_density(mixture, rows):
    """The mixture's log-density by scipy, from its public parameters."""
    p = mixture.parameters_
    parts = []
    for k in range(mixture.weights_.shape[0]):
        numbers = stats.multivariate_normal(p["full1_means"][k], p["full1_covariances"][k])
        parts.append(
            np.log(mixture.weights_[k])
            + numbers.logpdf(rows[:, [0, 2]])
            + stats.poisson(p["poisson2_rates"][k]).logpmf(rows[:, [1]]).sum(axis=1)
            + np.log(p["categorical0_probabilities"][k, rows[:, 3].astype(int)])
        )
    return np.array(parts)


class TestQueries:
    def test_densities_are_scipys(self, mixed):
        rows, _, mixture = mixed
        log_joint = log_density(mixture, rows)
        expected = np.logaddexp.reduce(log_joint)
        np.testing.assert_allclose(mixture.score_samples(rows), expected, rtol=1e-9)
        posterior = np.exp(log_joint - expected).T
        np.testing.assert_allclose(mixture.predict_proba(rows), posterior, atol=1e-9)
        np.testing.assert_array_equal(mixture.predict(rows), posterior.argmax(axis=1))
        assert mixture.score(rows) == pytest.approx(expected.mean())
        # Three weights less one, and per component two rates... : 2 + 3 * (2 + 3 + 1 + 2).
        assert mixture.bic(rows) == pytest.approx(-2 * expected.sum() + 26 * np.log(1500))

    def test_drawn_rows_have_the_columns_in_their_places(self, mixed):
        rows, _, mixture = mixed
        drawn, labels = mixture.sample(6000, random_state=3)
        again, _ = mixture.sample(6000, random_state=np.random.default_rng(3))
        assert drawn.shape == (6000, 4)
        assert labels.shape == (6000,)
        assert again.shape == (6000, 4)
        # Four standard errors of the difference of means.
        error = 4.0 * rows.std(axis=0) * np.sqrt(1 / 1500 + 1 / 6000)
        assert (np.abs(drawn.mean(axis=0) - rows.mean(axis=0)) < error).all()
        assert set(np.unique(drawn[:, 3])) <= {0.0, 1.0, 2.0}
        assert (drawn[:, 1] == drawn[:, 1].round()).all()

    def test_a_bound_with_exact_flags(self):
        rng = np.random.default_rng(0)
        rates = np.exp(rng.normal(1.0, 1.0, (200, 5)))
        rows = rng.poisson(rates[rng.integers(200, size=1000)])
        mixture = FamilyMixture("poisson", 200, random_state=0, max_iter=4, tol=0.0).fit(rows)
        exact = mixture.score_samples(rows)
        threshold = np.quantile(exact, 0.01)
        bound = mixture.score_samples(rows, n_candidates=32)
        assert (bound < exact + 1e-3).all()
        assert ((bound < threshold) != (exact < threshold)).any()
        flagged = mixture.score_samples(rows, n_candidates=32, exact_below=threshold)
        np.testing.assert_array_equal(flagged < threshold, exact < threshold)

    @pytest.mark.parametrize("family", ["categorical", GROUPS], ids=str)
    def test_bounds_of_levels_and_groups(self, family):
        """Rows of counts and of levels have other positions than their values."""
        rows = np.minimum(np.abs(mixed_rows(800)[0]).round(), 5.0)
        mixture = FamilyMixture(family, 80, max_iter=3, tol=0.0, random_state=0).fit(rows)
        exact = mixture.score_samples(rows)
        np.testing.assert_allclose(
            mixture.score_samples(rows, n_candidates=10_000), exact, atol=2e-3
        )
        bound = mixture.score_samples(rows, n_candidates=64)
        assert (bound <= exact + 2e-3).all()
        assert (exact - bound).mean() < 0.5


class TestGoingOn:
    def test_batches_of_a_stream(self):
        rows, _ = mixed_rows(3000, seed=1)
        held_out, _ = mixed_rows(3000, seed=2)
        stream = FamilyMixture(GROUPS, 3, random_state=0)
        for batch in np.split(rows, 6):
            stream.partial_fit(batch)
        whole = FamilyMixture(GROUPS, 3, random_state=0).fit(rows)
        assert stream.score(held_out) > whole.score(held_out) - 0.04
        assert stream.n_rows_seen_ == 3000

    def test_a_stream_knows_its_levels(self, mixed):
        rows, _, mixture = mixed
        stranger = rows[:10].copy()
        stranger[4, 3] = 7.0
        with pytest.raises(ValueError, match=r"column 3 .*0 to 2.* 7"):
            mixture.score_samples(stranger)
        with pytest.raises(ValueError, match=r"column 3 .*0 to 2.* 7"):
            clone(mixture).fit(rows).partial_fit(stranger)


class TestGaussians:
    @pytest.mark.parametrize("name", ["full", "spherical"])
    def test_are_those_of_the_other_estimator(self, name):
        X = np.random.default_rng(0).normal(size=(400, 3)) + np.repeat([0.0, 6.0], 200)[:, None]
        family = FamilyMixture(name, 2, random_state=0).fit(X)
        other = GaussianMixture(2, covariance_type=name, random_state=0).fit(X)
        np.testing.assert_array_equal(family.parameters_["means"], other.means_)
        np.testing.assert_array_equal(family.parameters_["covariances"], other.covariances_)

    def test_algorithms_of_the_paper_run_too(self):
        rows, _ = mixed_rows(600)
        scores = {}
        for algorithm in ("em", "saem", "ssaem", "tsaem", "mcsaem", "mhsaem"):
            mixture = FamilyMixture(
                GROUPS, 3, algorithm=algorithm, proposal="auto", random_state=0, tol=1e-2
            )
            scores[algorithm] = mixture.fit(rows).score(rows)
        assert min(scores.values()) > max(scores.values()) - 0.3


class TestRefused:
    @pytest.mark.parametrize(
        ("family", "message"),
        [
            ("gamma", "family must be one of"),
            ([("full", [0, 1])], "family must name every column in one group"),
            ([("full", [0, 1, 2, 9])], "family names column 9"),
            ("poisson", "family='poisson': .*column 0"),
            (5, "family must be a name or a list"),
        ],
    )
    def test_families(self, family, message):
        rows, _ = mixed_rows(50)
        with pytest.raises(ValueError, match=message):
            FamilyMixture(family, 2).fit(rows)

    def test_another_mixture_in_a_stream(self, mixed):
        rows, _, mixture = mixed
        other = clone(mixture).fit(rows).set_params(n_components=4)
        with pytest.raises(ValueError, match="n_components=3 and family="):
            other.partial_fit(rows)


class TestFloorsOfColumns:
    FLOORS = (0.5, 7.0, 0.25, 7.0)

    def test_one_component_has_the_covariance_of_the_rows_and_its_floors(self, tmp_path):
        rows, _ = mixed_rows(300)
        mixture = FamilyMixture(GROUPS, 1, algorithm="em", reg_covar=self.FLOORS).fit(rows)
        numbers = rows[:, [0, 2]]
        expected = np.cov(numbers.T, bias=True) + np.diag([0.5, 0.25])
        np.testing.assert_allclose(mixture.parameters_["full1_covariances"][0], expected)
        again = pickmix.load(pickmix.save(mixture, tmp_path / "model"))
        assert again.reg_covar == self.FLOORS
        np.testing.assert_array_equal(again.score_samples(rows), mixture.score_samples(rows))
        np.testing.assert_array_equal(clone(mixture).fit(rows).weights_, mixture.weights_)

    def test_a_marginal_has_the_floors_of_its_columns(self):
        rows, _ = mixed_rows(300)
        mixture = FamilyMixture(GROUPS, 2, reg_covar=self.FLOORS, random_state=0).fit(rows)
        np.testing.assert_array_equal(mixture.marginal([2, 1]).reg_covar, [0.25, 7.0])

    @pytest.mark.parametrize(
        ("floors", "message"),
        [
            ([0.1, 0.1], r"each of the 4 columns of X, got shape \(2,\)"),
            ([0.1] * 5, r"each of the 4 columns of X, got shape \(5,\)"),
            ([0.1, -0.1, 0.1, 0.1], "not negative, got"),
            ([0.1, np.nan, 0.1, 0.1], "finite and"),
            (np.ones((4, 4)), "one per column"),
            (["a", "b", "c", "d"], "one per column"),
            (-1.0, "reg_covar"),
        ],
    )
    def test_refused(self, floors, message):
        rows, _ = mixed_rows(50)
        with pytest.raises(ValueError, match=message):
            FamilyMixture(GROUPS, 2, reg_covar=floors).fit(rows)

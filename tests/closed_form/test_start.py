"""Starts: their positions, weights and moments, as a fit shows them that does not move."""

import numpy as np
import pytest
from scipy import stats
from scipy.spatial.distance import cdist
from sklearn.cluster import kmeans_plusplus

from pickmix import GaussianMixture
from pickmix.closed_form import seeding
from pickmix.closed_form.seeding import nearest_centres, plus_plus
from pickmix.threads import use_threads


def start_of(X, n_components, init_params="auto", sample_weight=None, seed=0, **settings):
    """Return a mixture after one step of no length."""
    settings = {"proposal": "uniform", "step_size": 1e-12, "max_steps": 1} | settings
    mixture = GaussianMixture(
        n_components, init_params=init_params, random_state=seed, evaluate_every=[1], **settings
    )
    return mixture.fit(X, sample_weight=sample_weight)


@pytest.mark.parametrize(("n_components", "n_features"), [(5, 3), (5000, 3), (5000, 20)])
def test_nearest_centres_equal_a_full_search(n_components, n_features):
    """Both ways of searching, by products and by tree."""
    rng = np.random.default_rng(0)
    means, rows = rng.normal(size=(n_components, n_features)), rng.normal(size=(200, n_features))
    expected = cdist(rows, means).argmin(axis=1)
    with use_threads(2):
        np.testing.assert_array_equal(nearest_centres(rows, means), expected)


class TestPlusPlus:
    def test_it_seeds_as_well_as_scikit_learn(self):
        """Mean potential over 10 seeds, against scikit-learn's greedy k-means++ on these rows."""
        rng = np.random.default_rng(1)
        groups = rng.normal(size=(50, 2))[rng.integers(0, 50, 1000)] * 10
        X = groups + rng.normal(size=(1000, 2)) * 0.3

        def potential(centres):
            return np.square(cdist(X, centres).min(axis=1)).mean()

        ours, theirs = [], []
        for seed in range(10):
            ours.append(potential(start_of(X, 50, "k-means++", seed=seed).means_))
            theirs.append(potential(kmeans_plusplus(X, 50, random_state=seed)[0]))
        # Lloyd steps follow ours, so it must be lower on average, whatever the luck of the seeds.
        assert np.mean(ours) < np.mean(theirs)

    def test_rows_are_drawn_by_weight_and_squared_distance(self):
        """Two centres of five rows on a line: the second by w d^2 given the first, that by w."""
        rows = np.array([[0.0], [1.0], [3.0], [3.5], [7.0]])
        weights = np.array([2.0, 1.0, 4.0, 0.5, 1.0])
        squared = weights * np.square(rows - rows.T)
        expected = (weights / weights.sum())[:, None] * squared
        expected /= squared.sum(axis=1, keepdims=True)
        rng = np.random.default_rng(0)
        n = 4000
        seen = np.zeros((5, 5))
        for _ in range(n):
            one, two = plus_plus(rows, weights, rng.random((2, 1)))
            seen[one, two] += 1
        off = ~np.eye(5, dtype=bool)
        assert seen[~off].sum() == 0
        assert stats.chisquare(seen[off], n * expected[off]).pvalue > 1e-4

    def test_the_best_of_several_draws_is_taken(self):
        """The second centre is that of the trials which leaves the least squared distance."""
        rng = np.random.default_rng(3)
        rows, weights = rng.normal(size=(30, 2)), rng.random(30) + 0.1
        for _ in range(20):
            u = rng.random((2, 3))
            # All trials agree on the first centre.
            u[0] = u[0, 0]
            first, second = plus_plus(rows, weights, u)
            trials = [plus_plus(rows, weights, u[:, [t]]) for t in range(3)]
            assert {int(trial[0]) for trial in trials} == {int(first)}
            left = [weights @ np.square(cdist(rows, rows[t]).min(axis=1)) for t in trials]
            assert second == trials[int(np.argmin(left))][1]

    def test_the_kernel_of_cells_chooses_alike(self):
        rng = np.random.default_rng(2)
        rows, weights, u = rng.normal(size=(400, 3)), rng.random(400) + 0.1, rng.random((60, 4))
        chosen = np.empty(60, dtype=np.int64)
        seeding._plus_plus(np.ascontiguousarray(rows.T), weights, u, chosen)
        np.testing.assert_array_equal(plus_plus(rows, weights, u), chosen)


@pytest.mark.parametrize("given_means", [False, True])
@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_starts_have_the_moments_of_their_nearest_rows(given_means, covariance_type):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(1000, 2)) * [1.0, 2.0] + 20.0 * (rng.random((1000, 1)) < 0.3)
    settings = {"covariance_type": covariance_type}
    if given_means:
        settings["means_init"] = [[0.0, 0.0], [20.0, 20.0]]
    mixture = start_of(X, 2, "k-means++", **settings)
    order = np.argsort(mixture.means_[:, 0])
    groups = [X[X[:, 0] < 10], X[X[:, 0] >= 10]]
    # A pseudo-row each.
    expected = [(len(group) + 1.0) / 1002.0 for group in groups]
    np.testing.assert_allclose(mixture.weights_[order], expected, rtol=1e-6)
    centres = [[0.0, 0.0], [20.0, 20.0]] if given_means else [g.mean(axis=0) for g in groups]
    np.testing.assert_allclose(mixture.means_[order], centres, rtol=1e-9, atol=1e-9)
    if covariance_type in ("full", "diag"):
        matrices = np.stack([np.cov(group.T, bias=True) for group in groups]) + 1e-6 * np.eye(2)
        if covariance_type == "diag":
            matrices = np.diagonal(matrices, axis1=1, axis2=2)
        np.testing.assert_allclose(mixture.covariances_[order], matrices, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("init_params", ["k-means++", "random_from_data", "auto"])
def test_the_order_of_rows_does_not_matter(init_params):
    X = np.random.default_rng(6).normal(size=(500, 3))
    order = np.random.default_rng(7).permutation(500)
    one, other = start_of(X, 7, init_params), start_of(X[order], 7, init_params)
    for name in ("weights_", "means_", "covariances_"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("init_params", ["k-means++", "random_from_data"])
def test_a_weight_is_a_repetition(init_params):
    rng = np.random.default_rng(8)
    X, counts = rng.normal(size=(300, 2)), rng.integers(1, 4, 300)
    repeated = start_of(np.repeat(X, counts, axis=0), 6, init_params)
    weighted = start_of(X, 6, init_params, sample_weight=counts.astype(float))
    np.testing.assert_allclose(repeated.means_, weighted.means_, rtol=1e-8, atol=1e-9)
    # One pseudo-row in 600 is another share than one in 300.
    np.testing.assert_allclose(repeated.covariances_, weighted.covariances_, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("init_params", ["k-means++", "random_from_data"])
def test_heavy_rows_attract_seeds(init_params):
    """Rows of weight 1e-9 in a far group are never drawn first nor given weight."""
    rng = np.random.default_rng(4)
    X = np.concatenate([rng.normal(size=(500, 2)), rng.normal(size=(500, 2)) + 50.0])
    mixture = start_of(X, 10, init_params, sample_weight=np.repeat([1.0, 1e-9], 500))
    assert (mixture.means_ < 10.0).all()


def test_random_rows_are_distinct_rows_of_the_data():
    """K = N leaves every row its own nearest, so that the means are the rows."""
    X = np.random.default_rng(5).normal(size=(40, 2))
    means = start_of(X, 40, "random_from_data").means_
    np.testing.assert_allclose(means[np.lexsort(means.T)], X[np.lexsort(X.T)], atol=1e-9)


def test_the_papers_start_is_the_unit_cube():
    X = np.random.default_rng(3).normal(5.0, 1.0, (500, 3))
    mixture = start_of(X, 200, "paper")
    assert mixture.means_.min() > -1e-9
    assert mixture.means_.max() < 1.0 + 1e-9
    # The deviation of 600 uniforms is known to about 1 / sqrt(600) / 2 of itself.
    assert mixture.means_.std() == pytest.approx(12**-0.5, abs=0.03)
    np.testing.assert_allclose(mixture.covariances_, [np.eye(3)] * 200, atol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_the_default_start_finds_every_group_whatever_the_units(scale):
    """Nine groups 12 standard deviations apart, one column in other units."""
    rng = np.random.default_rng(12)
    centres = 12.0 * np.array(list(np.ndindex(3, 3)), dtype=float)
    labels = np.repeat(np.arange(9), 100)
    X = (centres[labels] + rng.normal(size=(900, 2))) * [1.0, scale]
    mixture = start_of(X, 9, seed=1, proposal="partition")
    # A row is with those of its group and with no others.
    assert np.unique(np.stack([labels, mixture.predict(X)]), axis=1).shape[1] == 9
    assert mixture.n_start_evaluations_ == 10 * 900 * 9
    np.testing.assert_allclose(mixture.weights_, 1 / 9, rtol=1e-6)

"""Starts: where they lie, what they weigh, and that they find groups."""

import numpy as np
import pytest
from sklearn.cluster import kmeans_plusplus

from pickmix.closed_form.start import Starter, nearest_means
from pickmix.closed_form.structures import STRUCTURES
from pickmix.data.rows import ArrayRows
from pickmix.threads import Threads


def starter(X, n_components, name="full", weights=None, seed=0):
    structure = STRUCTURES[name](X.shape[1])
    return Starter(ArrayRows(X, weights), structure, n_components, seed, Threads())


@pytest.mark.parametrize(("n_components", "n_features"), [(5, 3), (5000, 3), (5000, 20)])
def test_nearest_means_equal_a_full_search(n_components, n_features):
    """Both ways of searching, compiled and by tree."""
    rng = np.random.default_rng(0)
    means, rows = rng.normal(size=(n_components, n_features)), rng.normal(size=(300, n_features))
    distances = np.square(rows[:, None] - means).sum(axis=2)
    np.testing.assert_array_equal(nearest_means(rows, means, Threads()), distances.argmin(axis=1))


def test_k_means_plus_plus_seeds_as_well_as_scikit_learn():
    """Mean potential over 20 seeds, against scikit-learn's greedy k-means++ on the same rows."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(50, 2))[rng.integers(0, 50, 2000)] * 10 + rng.normal(size=(2000, 2)) * 0.3

    def potential(centres):
        return np.square(X[:, None] - centres).sum(axis=2).min(axis=1).mean()

    ours, theirs = [], []
    for seed in range(20):
        maker = starter(X, 50, seed=seed)
        start = maker.from_data("k-means++")
        ours.append(potential(start.means + maker.source.center))
        theirs.append(potential(kmeans_plusplus(X, 50, random_state=seed)[0]))
    # Lloyd steps follow ours, so it must be lower on average, whatever the luck of the seeds.
    assert np.mean(ours) < np.mean(theirs)


@pytest.mark.parametrize("given_means", [False, True])
@pytest.mark.parametrize("name", list(STRUCTURES))
def test_starts_have_the_moments_of_their_nearest_rows(given_means, name):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(3000, 2)) + 20.0 * rng.integers(0, 2, (3000, 1))
    maker = starter(X, 2, name)
    # Seeds in both groups: then nearest rows are the groups, and moments are theirs.
    if given_means:
        start = maker.from_means(np.array([[0.0, 0.0], [20.0, 20.0]]) - maker.source.center)
    else:
        start = maker.from_data("k-means++")
    order = np.argsort(start.means[:, 0])
    groups = [X[X[:, 0] < 10], X[X[:, 0] >= 10]]
    np.testing.assert_allclose(start.weights[order], [g.shape[0] / 3000 for g in groups], atol=1e-3)
    within = np.mean([np.cov(g.T, bias=True) for g in groups], axis=0)
    unpacked = maker.structure.unpack(start.covariances)
    expected = {
        "full": within,
        "tied": within,
        "diag": np.diag(within),
        "spherical": np.trace(within) / 2,
    }
    got = unpacked if name == "tied" else unpacked.mean(axis=0)
    # The two groups' covariances differ by their sampling noise, about 0.04 each.
    np.testing.assert_allclose(got, expected[name], atol=0.05)
    np.testing.assert_array_equal(start.chain == order[1], X[:, 0] >= 10)


def test_the_papers_start_is_the_unit_cube():
    X = np.random.default_rng(3).normal(5.0, 1.0, (500, 3))
    maker = starter(X, 200)
    start = maker.unit_cube()
    means = start.means + maker.source.center
    assert means.min() > -1e-12
    assert means.max() < 1.0 + 1e-12
    assert means.std() == pytest.approx(12**-0.5, abs=0.03)
    np.testing.assert_array_equal(maker.structure.unpack(start.covariances), [np.eye(3)] * 200)
    assert start.weights.sum() == pytest.approx(1.0)
    # Chains stand anywhere: 500 rows on 200 components hit about 200 (1 - e^-2.5) = 184 of them.
    assert 170 < np.unique(start.chain).size < 198


def test_more_components_than_distinct_rows_still_start():
    X = np.repeat(np.array([[0.0, 0.0], [1.0, 1.0]]), 50, axis=0)
    start = starter(X, 5).from_data("k-means++")
    assert np.isfinite(start.means).all()
    assert start.weights.min() > 0.0


def test_heavy_rows_attract_seeds():
    """Rows of weight 1e-9 in a far group are never drawn first nor given weight."""
    rng = np.random.default_rng(4)
    X = np.concatenate([rng.normal(size=(500, 2)), rng.normal(size=(500, 2)) + 50.0])
    weights = np.repeat([1.0, 1e-9], 500)
    maker = starter(X, 10, weights=weights)
    start = maker.from_data("random_from_data")
    assert (start.means + maker.source.center < 10.0).all()


def test_random_rows_are_distinct_rows_of_the_data():
    """K = N leaves every row its own nearest, so that the means are the rows."""
    X = np.random.default_rng(5).normal(size=(40, 2))
    maker = starter(X, 40)
    start = maker.from_data("random_from_data")
    means = start.means + maker.source.center
    np.testing.assert_allclose(means[np.lexsort(means.T)], X[np.lexsort(X.T)], atol=1e-12)

"""Starts: where they lie, what they weigh, and that they find groups."""

import numpy as np
import pytest
from known_states import BACKENDS, both_backends, every_covariance
from scipy import stats
from scipy.spatial.distance import cdist
from sklearn.cluster import kmeans_plusplus

from pickmix.closed_form import starts
from pickmix.closed_form.seeding import nearest_centres, plus_plus
from pickmix.closed_form.starts import Starter
from pickmix.data.rows import ArrayRows
from pickmix.families.gaussian import GAUSSIANS
from pickmix.selection.settings import RandomPartition
from pickmix.threads import Threads


def starter(X, n_components, name="full", weights=None, seed=0, backend="reference"):
    family = GAUSSIANS[name](X.shape[1])
    return Starter(family, ArrayRows(X, weights), n_components, seed, BACKENDS[backend]())


def means_of(maker, start):
    return start.moments.mean + maker.source.center


class TestNearestCentres:
    @pytest.mark.parametrize("threads", [None, Threads(), Threads(2)], ids=["none", "one", "two"])
    @pytest.mark.parametrize(("n_components", "n_features"), [(5, 3), (5000, 3), (5000, 20)])
    def test_they_equal_a_full_search(self, n_components, n_features, threads, monkeypatch):
        """Both ways of searching, by products and by tree."""
        monkeypatch.setattr("pickmix.threads.MINIMUM_WORK", 1)
        rng = np.random.default_rng(0)
        means = rng.normal(size=(n_components, n_features))
        rows = rng.normal(size=(300, n_features))
        expected = cdist(rows, means).argmin(axis=1)
        np.testing.assert_array_equal(nearest_centres(rows, means, threads), expected)


class TestPlusPlus:
    def test_it_seeds_as_well_as_scikit_learn(self):
        """Mean potential over 20 seeds, against scikit-learn's greedy k-means++ on these rows."""
        rng = np.random.default_rng(1)
        groups = rng.normal(size=(50, 2))[rng.integers(0, 50, 2000)] * 10
        X = groups + rng.normal(size=(2000, 2)) * 0.3

        def potential(centres):
            return np.square(cdist(X, centres).min(axis=1)).mean()

        ours, theirs = [], []
        for seed in range(20):
            maker = starter(X, 50, seed=seed)
            ours.append(potential(means_of(maker, maker.from_data("k-means++"))))
            theirs.append(potential(kmeans_plusplus(X, 50, random_state=seed)[0]))
        # Lloyd steps follow ours, so it must be lower on average, whatever the luck of the seeds.
        assert np.mean(ours) < np.mean(theirs)

    @pytest.mark.parametrize("compiled", [False, True])
    def test_rows_are_drawn_by_weight_and_squared_distance(self, compiled):
        """Two centres of five rows on a line: the second by w d^2 given the first, that by w."""
        rows = np.array([[0.0], [1.0], [3.0], [3.5], [7.0]])
        weights = np.array([2.0, 1.0, 4.0, 0.5, 1.0])
        first = weights / weights.sum()
        squared = weights * np.square(rows - rows.T)
        expected = first[:, None] * squared / squared.sum(axis=1, keepdims=True)
        rng = np.random.default_rng(0)
        n = 4000
        seen = np.zeros((5, 5))
        for _ in range(n):
            one, two = plus_plus(rows, weights, rng.random((2, 1)), compiled)
            seen[one, two] += 1
        off = ~np.eye(5, dtype=bool)
        assert seen[~off].sum() == 0
        assert stats.chisquare(seen[off], n * expected[off]).pvalue > 1e-4

    def test_both_implementations_choose_alike(self):
        rng = np.random.default_rng(2)
        rows, weights = rng.normal(size=(400, 3)), rng.random(400) + 0.1
        u = rng.random((60, 4))
        np.testing.assert_array_equal(
            plus_plus(rows, weights, u, False), plus_plus(rows, weights, u, True)
        )

    @pytest.mark.parametrize("compiled", [False, True])
    def test_the_best_of_several_draws_is_taken(self, compiled):
        """The second centre is that of the trials which leaves the least squared distance."""
        rng = np.random.default_rng(3)
        rows, weights = rng.normal(size=(30, 2)), rng.random(30) + 0.1
        for _ in range(20):
            u = rng.random((2, 3))
            # All trials agree on the first centre.
            u[0] = u[0, 0]
            first, second = plus_plus(rows, weights, u, compiled)
            trials = [plus_plus(rows, weights, u[:, [t]], compiled) for t in range(3)]
            assert {int(trial[0]) for trial in trials} == {int(first)}
            left = [weights @ np.square(cdist(rows, rows[t]).min(axis=1)) for t in trials]
            assert second == trials[int(np.argmin(left))][1]


class TestFromData:
    @pytest.mark.parametrize("given_means", [False, True])
    @every_covariance
    @both_backends
    def test_starts_have_the_moments_of_their_nearest_rows(self, backend, given_means, name):
        rng = np.random.default_rng(2)
        X = rng.normal(size=(3000, 2)) + 20.0 * rng.integers(0, 2, (3000, 1))
        maker = starter(X, 2, name, backend=backend)
        # Seeds in both groups: then nearest rows are the groups, and moments are theirs.
        if given_means:
            start = maker.from_means(np.array([[0.0, 0.0], [20.0, 20.0]]) - maker.source.center)
        else:
            start = maker.from_data("k-means++")
        order = np.argsort(start.moments.mean[:, 0])
        groups = [X[X[:, 0] < 10], X[X[:, 0] >= 10]]
        # A pseudo-row each.
        expected = [(group.shape[0] + 1.0) / 3002.0 for group in groups]
        np.testing.assert_allclose(start.moments.mass[order], expected, rtol=1e-12)
        for k, group in zip(order, groups, strict=True):
            matrix = np.cov(group.T, bias=True)
            is_diagonal = maker.family.layout.n_products == 2
            packed = np.diag(matrix) if is_diagonal else matrix[[0, 1, 1], [0, 0, 1]]
            np.testing.assert_allclose(start.moments.scatter[k], packed, rtol=1e-9, atol=1e-12)
            mean = [[0.0, 0.0], [20.0, 20.0]][int(k == order[1])]
            mean = mean if given_means else group.mean(axis=0)
            np.testing.assert_allclose(means_of(maker, start)[k], mean, rtol=1e-9, atol=1e-9)
            assert start.moments.mass[k] ** 2 / start.moments.squares[k] == pytest.approx(
                group.shape[0]
            )
        np.testing.assert_array_equal(start.chain == order[1], X[:, 0] >= 10)

    @pytest.mark.parametrize("method", ["k-means++", "random_from_data", "auto"])
    @both_backends
    def test_the_order_of_rows_does_not_matter(self, backend, method):
        X = np.random.default_rng(6).normal(size=(500, 3))
        order = np.random.default_rng(7).permutation(500)
        one = starter(X, 7, backend=backend).from_data(method)
        other = starter(X[order], 7, backend=backend).from_data(method)
        for first, second in zip(one.moments, other.moments, strict=True):
            np.testing.assert_allclose(first, second, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(one.chain[order], other.chain)

    @pytest.mark.parametrize("method", ["k-means++", "random_from_data"])
    @both_backends
    def test_a_weight_is_a_repetition(self, backend, method):
        rng = np.random.default_rng(8)
        X, counts = rng.normal(size=(300, 2)), rng.integers(1, 4, 300)
        repeated = starter(np.repeat(X, counts, axis=0), 6, backend=backend).from_data(method)
        weighted = starter(X, 6, weights=counts.astype(float), backend=backend).from_data(method)
        mean = np.average(X, axis=0, weights=counts)
        np.testing.assert_allclose(
            repeated.moments.mean + mean, weighted.moments.mean + mean, rtol=1e-8, atol=1e-9
        )
        np.testing.assert_allclose(
            repeated.moments.scatter, weighted.moments.scatter, rtol=1e-8, atol=1e-9
        )
        np.testing.assert_array_equal(repeated.chain, np.repeat(weighted.chain, counts))

    @both_backends
    def test_more_components_than_distinct_rows_still_start(self, backend):
        X = np.repeat(np.array([[0.0, 0.0], [1.0, 1.0]]), 50, axis=0)
        start = starter(X, 5, backend=backend).from_data("k-means++")
        assert np.isfinite(start.moments.mean).all()
        assert start.moments.mass.min() > 0.0

    @pytest.mark.parametrize("method", ["k-means++", "random_from_data"])
    @both_backends
    def test_heavy_rows_attract_seeds(self, backend, method):
        """Rows of weight 1e-9 in a far group are never drawn first nor given weight."""
        rng = np.random.default_rng(4)
        X = np.concatenate([rng.normal(size=(500, 2)), rng.normal(size=(500, 2)) + 50.0])
        maker = starter(X, 10, weights=np.repeat([1.0, 1e-9], 500), backend=backend)
        start = maker.from_data(method)
        assert (means_of(maker, start) < 10.0).all()

    def test_random_rows_are_distinct_rows_of_the_data(self):
        """K = N leaves every row its own nearest, so that the means are the rows."""
        X = np.random.default_rng(5).normal(size=(40, 2))
        maker = starter(X, 40)
        means = means_of(maker, maker.from_data("random_from_data"))
        np.testing.assert_allclose(means[np.lexsort(means.T)], X[np.lexsort(X.T)], atol=1e-12)

    def test_components_of_few_rows_lean_on_all(self):
        """One row out of a hundred alone: its scatter is zero, trusted by 1 / (2 D + 2)."""
        X = np.random.default_rng(9).normal(size=(101, 2))
        X[100] = 1000.0
        maker = starter(X, 2)
        start = maker.from_means(np.array([[0.0, 0.0], [1000.0, 1000.0]]) - maker.source.center)
        pooled = 100 * np.cov(X[:100].T, bias=True)[[0, 1, 1], [0, 0, 1]] / 101
        np.testing.assert_allclose(start.moments.scatter[1], (1 - 1 / 6) * pooled, rtol=1e-6)
        np.testing.assert_allclose(start.moments.scatter[0], 1.01 * pooled, rtol=1e-6)


class TestGivenStarts:
    @both_backends
    def test_labels(self, backend):
        rng = np.random.default_rng(10)
        X, labels = rng.normal(size=(400, 3)), rng.integers(0, 5, 400)
        maker = starter(X, 5, backend=backend)
        start = maker.from_labels(labels)
        np.testing.assert_array_equal(start.chain, labels)
        for k in range(5):
            own = X[labels == k]
            assert start.moments.mass[k] == pytest.approx(own.shape[0] / 400)
            np.testing.assert_allclose(means_of(maker, start)[k], own.mean(axis=0), rtol=1e-9)
            matrix = np.cov(own.T, bias=True)[np.tril_indices(3)]
            np.testing.assert_allclose(start.moments.scatter[k], matrix, rtol=1e-9, atol=1e-12)

    @both_backends
    def test_responsibilities(self, backend, monkeypatch):
        monkeypatch.setattr(starts, "_BLOCK_ROWS", 90)
        rng = np.random.default_rng(11)
        X, shares = rng.normal(size=(400, 2)), rng.dirichlet(np.ones(3), 400)
        weights = rng.random(400) + 0.5
        maker = starter(X, 3, weights=weights, backend=backend)
        start = maker.from_responsibilities(shares)
        np.testing.assert_array_equal(start.chain, shares.argmax(axis=1))
        for k in range(3):
            own = weights * shares[:, k]
            assert start.moments.mass[k] == pytest.approx(own.sum() / weights.sum())
            mean = np.average(X, axis=0, weights=own)
            np.testing.assert_allclose(means_of(maker, start)[k], mean, rtol=1e-9)
            matrix = np.cov(X.T, aweights=own, bias=True)[[0, 1, 1], [0, 0, 1]]
            np.testing.assert_allclose(start.moments.scatter[k], matrix, rtol=1e-9, atol=1e-12)

    @both_backends
    def test_the_papers_start_is_the_unit_cube(self, backend):
        X = np.random.default_rng(3).normal(5.0, 1.0, (500, 3))
        maker = starter(X, 200, backend=backend)
        start = maker.unit_cube()
        means = means_of(maker, start)
        assert means.min() > -1e-12
        assert means.max() < 1.0 + 1e-12
        # The deviation of 600 uniforms is known to about 1 / sqrt(600) / 2 of itself.
        assert means.std() == pytest.approx(12**-0.5, abs=0.03)
        np.testing.assert_array_equal(maker.family.unpack(start.moments.scatter), [np.eye(3)] * 200)
        assert start.moments.mass.sum() == pytest.approx(1.0)
        # Chains stand anywhere: 500 rows on 200 components hit 200 (1 - e^-2.5) = 184 of them.
        assert 170 < np.unique(start.chain).size < 198


class TestSpreadOut:
    @pytest.mark.parametrize("scale", [1.0, 1e6])
    @both_backends
    def test_every_group_is_found_whatever_the_units(self, backend, scale):
        """Nine groups 12 standard deviations apart, one column in other units."""
        rng = np.random.default_rng(12)
        centres = 12.0 * np.array(list(np.ndindex(3, 3)), dtype=float)
        labels = np.repeat(np.arange(9), 100)
        X = (centres[labels] + rng.normal(size=(900, 2))) * [1.0, scale]
        start = starter(X, 9, seed=1, backend=backend).spread_out(RandomPartition(), 900)
        # A row stands with those of its group and with no others.
        pairs = np.unique(np.stack([labels, start.chain]), axis=1)
        assert pairs.shape[1] == 9
        assert start.evaluations == 10 * 900 * 9
        np.testing.assert_allclose(start.moments.mass, 1 / 9, rtol=1e-9)

    def test_seeds_in_cells_cover_the_rows_as_whole_ones_do(self, monkeypatch):
        """Cells see a part of the rows only, at hardly any loss of distance to the nearest."""
        rng = np.random.default_rng(13)
        X = rng.random((6000, 2))
        mean_distances = []
        for largest in (10_000, 10):
            monkeypatch.setattr(starts, "_LARGEST_WHOLE", largest)
            maker = starter(X, 300, backend="compiled")
            start = maker.spread_out(RandomPartition(), 6000)
            assert np.unique(start.chain).size > 290
            means = means_of(maker, start)
            mean_distances.append(cdist(X, means).min(axis=1).mean())
            # Chains stand near: not all on the nearest, for draws are soft.
            own = np.linalg.norm(X - means[start.chain], axis=1)
            assert own.mean() < 2.0 * mean_distances[-1]
        assert mean_distances[1] < 1.1 * mean_distances[0]

    def test_a_component_per_row_and_equal_rows(self):
        X = np.repeat(np.arange(5.0)[:, None], 4, axis=0)
        start = starter(X, 5).spread_out(RandomPartition(), 20)
        assert np.isfinite(start.moments.scatter).all()
        assert np.unique(start.chain).size == 5

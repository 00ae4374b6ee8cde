"""Components as a table: against densities, distances and rows that are computed otherwise."""

import numpy as np
import pytest
from fitted_cases import as_matrices

from pickmix import FamilyMixture, GaussianMixture, TableMixture
from pickmix.inspection.components import component_table
from pickmix.inspection.view import look_at


def clusters(n=400, D=3, K=4, seed=0):
    rng = np.random.default_rng(seed)
    centres = 6.0 * rng.normal(size=(K, D))
    return centres[rng.integers(K, size=n)] + rng.normal(size=(n, D)) * [1.0, 2.0, 0.5][:D]


def given(means, covariances, weights=None, covariance_type="full"):
    """A mixture with parameters set by hand."""
    means = np.asarray(means, dtype=float)
    mixture = GaussianMixture(means.shape[0], covariance_type=covariance_type)
    K = means.shape[0]
    mixture.weights_ = np.full(K, 1.0 / K) if weights is None else np.asarray(weights)
    mixture.means_, mixture.covariances_ = means, np.asarray(covariances, dtype=float)
    mixture.n_features_in_ = means.shape[1]
    return mixture


def bhattacharyya(mean, other_mean, covariance, other_covariance):
    middle = 0.5 * (covariance + other_covariance)
    away = mean - other_mean
    logs = [np.linalg.slogdet(matrix)[1] for matrix in (middle, covariance, other_covariance)]
    return 0.125 * away @ np.linalg.solve(middle, away) + 0.5 * (logs[0] - 0.5 * sum(logs[1:]))


class TestLook:
    def test_it_says_what_the_mixture_says(self):
        X = clusters()
        X[3, 1] = np.nan
        mixture = GaussianMixture(4, random_state=0, max_iter=10, tol=0.0).fit(X)
        looked = look_at(mixture, X)
        np.testing.assert_array_equal(looked.component, mixture.predict(X))
        np.testing.assert_allclose(looked.log_density, mixture.score_samples(X))

    def test_of_a_table_in_its_units(self):
        rng = np.random.default_rng(0)
        table = {"x": 1000.0 * rng.normal(size=200), "y": rng.choice(["a", "b"], 200)}
        mixture = TableMixture(2, random_state=0, max_iter=5, tol=0.0).fit(table)
        looked = look_at(mixture, table)
        np.testing.assert_allclose(looked.log_density, mixture.score_samples(table))
        np.testing.assert_allclose(
            looked.log_density - looked.log_units, mixture.mixture_.score_samples(looked.rows)
        )


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
class TestGaussians:
    def table(self, covariance_type):
        X = clusters()
        settings = {"covariance_type": covariance_type, "max_iter": 10, "tol": 0.0}
        mixture = GaussianMixture(4, random_state=0, **settings).fit(X)
        return mixture, X, component_table(mixture, X)

    def test_rows_and_weights(self, covariance_type):
        mixture, X, table = self.table(covariance_type)
        np.testing.assert_array_equal(table.rows, np.bincount(mixture.predict(X), minlength=4))
        np.testing.assert_allclose(table.weight.sum(), 1.0)
        np.testing.assert_allclose(table.centre, mixture.means_)

    def test_volumes_are_determinants_in_units_of_the_spread(self, covariance_type):
        mixture, X, table = self.table(covariance_type)
        scale = np.outer(X.std(axis=0), X.std(axis=0))
        volumes = 0.5 * np.linalg.slogdet(as_matrices(mixture) / scale)[1]
        np.testing.assert_allclose(table.log_volume, volumes)
        np.testing.assert_allclose(table.side, np.exp(volumes / 3.0))

    def test_units_of_columns_do_not_matter(self, covariance_type):
        mixture, X, table = self.table(covariance_type)
        # Spheres stay spheres only if all columns have the same unit.
        units = np.array([1000.0, 1.0, 0.01]) if covariance_type != "spherical" else np.full(3, 7.0)
        factor = units[:, None] if covariance_type in ("full", "tied") else units
        scaled = given(
            mixture.means_ * units,
            mixture.covariances_ * (49.0 if covariance_type == "spherical" else factor * units),
            mixture.weights_,
            covariance_type,
        )
        other = component_table(scaled, X * units)
        np.testing.assert_allclose(other.log_volume, table.log_volume)
        np.testing.assert_array_equal(other.neighbour, table.neighbour)
        np.testing.assert_array_equal(other.typical, table.typical)

    def test_neighbours_have_the_least_bhattacharyya_distance(self, covariance_type):
        mixture, _, table = self.table(covariance_type)
        matrices = as_matrices(mixture)
        for k in range(4):
            others = [other for other in range(4) if other != k]
            found = [
                bhattacharyya(mixture.means_[k], mixture.means_[o], matrices[k], matrices[o])
                for o in others
            ]
            assert table.neighbour[k] == others[int(np.argmin(found))]
            np.testing.assert_allclose(table.separation[k], np.sqrt(8.0 * min(found)))

    def test_the_typical_row_is_the_nearest_of_its_own(self, covariance_type):
        mixture, X, table = self.table(covariance_type)
        matrices, component = as_matrices(mixture), mixture.predict(X)
        for k in np.flatnonzero(table.rows):
            own = np.flatnonzero(component == k)
            away = X[own] - mixture.means_[k]
            far = np.einsum("nd,nd->n", away @ np.linalg.inv(matrices[k]), away)
            assert table.typical[k] == own[far.argmin()]


def test_the_distance_of_equal_shapes_is_that_of_their_centres():
    shape = np.array([[2.0, 0.5], [0.5, 1.0]])
    mixture = given([[0.0, 0.0], [3.0, 1.0]], [shape, shape])
    table = component_table(mixture, clusters(D=2))
    away = np.array([3.0, 1.0])
    np.testing.assert_allclose(table.separation, np.sqrt(away @ np.linalg.solve(shape, away)))


def test_components_without_rows_and_a_single_one():
    mixture = given([[0.0, 0.0], [900.0, 0.0]], np.ones((2, 2)), covariance_type="diag")
    X = np.random.default_rng(0).normal(size=(50, 2))
    table = component_table(mixture, X)
    assert table.rows.tolist() == [50, 0]
    assert table.typical[1] == -1
    alone = component_table(given([[0.0, 0.0]], np.ones((1, 2)), covariance_type="diag"), X)
    assert alone.neighbour.tolist() == [-1]
    assert np.isnan(alone.separation).all()


def test_components_that_coincide_have_others_as_neighbours():
    mixture = given(np.zeros((9, 2)), np.ones((9, 2)), covariance_type="diag")
    table = component_table(mixture, np.random.default_rng(0).normal(size=(50, 2)))
    assert (table.neighbour != np.arange(9)).all()
    # A root of what rounding leaves.
    np.testing.assert_allclose(table.separation, 0.0, atol=1e-6)


def test_many_columns_find_the_same_neighbours_as_all_pairs():
    rng = np.random.default_rng(0)
    means = rng.normal(size=(200, 14))
    table = component_table(given(means, np.ones((200, 14)), covariance_type="diag"), means)
    far = np.linalg.norm(means[:, None] - means, axis=2) + np.where(np.eye(200), np.inf, 0.0)
    np.testing.assert_array_equal(table.neighbour, far.argmin(axis=1))
    np.testing.assert_allclose(table.separation, far.min(axis=1))


def test_a_gap_counts_as_one_standard_deviation():
    mixture = given([[0.0, 0.0]], [[1.0, 1.0]], covariance_type="diag")
    # Squared distances: 0.8^2 + 0.8^2 = 1.28, then 1 + 0.1^2, then 1 + 0.7^2.
    X = np.array([[0.8, 0.8], [0.1, np.nan], [np.nan, 0.7]])
    assert component_table(mixture, X).typical.tolist() == [1]


def test_counts_and_levels():
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 400)
    rows = np.column_stack(
        [rng.poisson(np.array([2.0, 20.0])[group]), np.where(rng.random(400) < 0.9, group, 2)]
    ).astype(float)
    family = [("poisson", [0]), ("categorical", [1])]
    mixture = FamilyMixture(family, 2, random_state=0, max_iter=20, tol=0.0).fit(rows)
    table = component_table(mixture, rows)
    (rates, levels) = (values for _, values in sorted(mixture.parameters_.items())[::-1])
    rates = rates[:, 0]
    np.testing.assert_allclose(table.centre[:, 0], rates)
    np.testing.assert_array_equal(table.centre[:, 1], levels.argmax(axis=1))
    overlap = np.sqrt(levels[0] * levels[1]).sum()
    expected = 0.5 * (np.sqrt(rates[0]) - np.sqrt(rates[1])) ** 2 - np.log(overlap)
    np.testing.assert_allclose(table.separation, np.sqrt(8.0 * expected), rtol=1e-6)
    shares = np.bincount(rows[:, 1].astype(int)) / 400.0
    entropy = -(levels * np.log(levels)).sum(axis=1) + (shares * np.log(shares)).sum()
    volumes = 0.5 * np.log(rates) - np.log(rows[:, 0].std()) + entropy
    np.testing.assert_allclose(table.log_volume, volumes, rtol=1e-6)


def test_a_table_has_centres_in_its_own_units():
    rng = np.random.default_rng(0)
    n = 300
    table = {
        "zone": rng.choice(["north", "south"], n),
        "income": 50_000.0 + 1_000.0 * rng.normal(size=n),
        "since": np.datetime64("2020-01-01") + rng.integers(0, 100, n),
    }
    mixture = TableMixture(1, random_state=0, max_iter=5, tol=0.0).fit(table)
    centre = component_table(mixture, table).centre
    zones, counts = np.unique(table["zone"], return_counts=True)
    assert zones[int(centre[0, 0])] == zones[counts.argmax()]
    np.testing.assert_allclose(centre[0, 1], table["income"].mean(), rtol=1e-3)
    first = table["since"].min()
    days = (table["since"] - first).astype(float).mean()
    np.testing.assert_allclose(centre[0, 2], days, atol=0.5)

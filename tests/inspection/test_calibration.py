"""The probability integral transform is uniform for rows of the model, and for no others."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from fitted_cases import CLOSED_FORM, deep, drawn_rows, gaussian, table
from scipy import stats

from pickmix import FamilyMixture, GaussianMixture, Mixture, TableMixture
from pickmix.inspection.calibration import calibration


@pytest.mark.parametrize("kind", CLOSED_FORM)
def test_rows_of_the_model_itself_are_uniform(kind):
    model, _ = CLOSED_FORM[kind]()
    rows = drawn_rows(model, 4000)
    found = calibration(model, rows)
    assert (found.distances < found.limit(0.9999)).all()
    low, high = found.band(1.0 - 1e-6)
    assert (found.shares >= low[:, None]).all()
    assert (found.shares <= high[:, None]).all()
    for u, distance in zip(found.values, found.distances, strict=True):
        assert u.shape == (4000,)
        np.testing.assert_allclose(distance, stats.kstest(u, "uniform").statistic, atol=1e-12)


def test_a_wrong_model_is_found_in_the_column_where_it_is_wrong():
    model, _ = gaussian("full")
    rows = drawn_rows(model, 4000)
    rows[:, 1] += 1.0
    found = calibration(model, rows)
    assert ((found.distances > found.limit(0.9999)) == [False, True, False]).all()


def test_wrong_counts_and_levels_are_found():
    rng = np.random.default_rng(0)
    X = np.stack([rng.poisson(3.0, 3000), rng.choice(3, 3000, p=[0.6, 0.3, 0.1])], axis=1)
    mixture = FamilyMixture([("poisson", [0]), ("categorical", [1])], 1, random_state=0).fit(X)
    right = calibration(mixture, X)
    assert (right.distances < right.limit()).all()
    other = np.stack([rng.poisson(3.5, 3000), rng.choice(3, 3000, p=[0.5, 0.3, 0.2])], axis=1)
    wrong = calibration(mixture, other)
    assert (wrong.distances > wrong.limit(0.9999)).all()
    assert wrong.kinds == ("count", "level")


def test_a_number_is_where_its_cumulative_distribution_says():
    model, X = gaussian("diag")
    found = calibration(model, X, [2, 0])
    assert found.names == ("column 2", "column 0")
    for u, column in zip(found.values, (2, 0), strict=True):
        deviations = np.sqrt(model.covariances_[:, column])
        F = stats.norm.cdf(X[:, column, None], model.means_[:, column], deviations) @ model.weights_
        np.testing.assert_allclose(u, np.sort(F), atol=1e-12)


def test_whole_numbers_fall_between_their_two_bounds():
    X = np.array([[0.0], [1.0], [4.0]])
    mixture = FamilyMixture("poisson", 1, random_state=0).fit(X)
    (u,) = calibration(mixture, X).values
    law = stats.poisson(mixture.parameters_["rates"][0, 0])
    assert (u >= law.cdf(X[:, 0] - 1)).all()
    assert (u <= law.cdf(X[:, 0])).all()
    # The same at each call, and another for another seed.
    np.testing.assert_array_equal(u, calibration(mixture, X).values[0])
    assert (u != calibration(mixture, X, seed=1).values[0]).all()


def test_gaps_are_left_out():
    model, X = gaussian("full")
    holes = X.copy()
    holes[:100, 1] = np.nan
    found, whole = calibration(model, holes), calibration(model, X[100:])
    np.testing.assert_array_equal(found.n_rows, [400, 300, 400])
    np.testing.assert_array_equal(found.values[1], whole.values[1])


def test_a_table_is_spoken_of_in_its_own_columns():
    model, frame = table()
    found = calibration(model, frame)
    # Constants are no part of a model; the others come in the table's order.
    assert found.names == ("when", "kind", "age", "breath", "calls", "alive")
    assert found.kinds == ("number", "level", "number", "number", "count", "level")
    np.testing.assert_array_equal(found.n_rows, [400, 379, 400, 379, 400, 400])
    assert calibration(model, frame, ["age"]).names == ("age",)


def test_rounded_columns_of_a_table_are_judged_as_rounded():
    # A few values in all: without rounding the transform would have as few.
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"year": random.integers(2007, 2010, 500), "x": random.normal(size=500)})
    model = TableMixture(1, random_state=0).fit(frame)
    assert model.schema_["year"].step == 1.0
    rows = model.sample(4000, 1)
    found = calibration(model, rows, ["year"])
    assert np.unique(rows["year"]).shape[0] < 12
    assert np.unique(found.values[0]).shape[0] == 4000
    assert found.distances[0] < found.limit()[0]


def test_numbers_too_large_for_float64_are_judged_from_their_origin():
    random = np.random.default_rng(0)
    stamps = 2**55 + np.rint(random.normal(0.0, 1e9, 500)).astype(np.int64)
    frame = pd.DataFrame({"stamp": stamps, "x": random.normal(size=500)})
    model = TableMixture(1, schema={"stamp": "integer"}, random_state=0).fit(frame)
    assert model.schema_["stamp"].origin > 2**54
    found = calibration(model, frame)
    assert (found.distances < found.limit()).all()
    moved = calibration(model, frame.assign(stamp=stamps + 10**9))
    assert ((moved.distances > moved.limit(0.9999)) == [True, False]).all()


def test_ties_are_taken_for_rounded_numbers():
    random = np.random.default_rng(0)
    X = np.concatenate([random.normal(0.0, 1.0, (3000, 1)), random.normal(9.0, 2.0, (3000, 1))])
    model = GaussianMixture(2, random_state=0).fit(X)
    rounded = np.round(2.0 * X) / 2.0
    assert np.unique(rounded).shape[0] < 60
    found = calibration(model, rounded)
    assert found.distances[0] < found.limit()[0]
    moved = calibration(model, rounded + 0.5)
    assert moved.distances[0] > moved.limit(0.9999)[0]


def test_an_atom_is_right_if_the_model_has_one():
    # Zeros in half of the rows, and numbers beyond: as rates and amounts are.
    random = np.random.default_rng(0)
    X = np.where(random.random((4000, 1)) < 0.5, 0.0, random.normal(5.0, 1.0, (4000, 1)))
    model = GaussianMixture(2, random_state=0).fit(X)
    found = calibration(model, X)
    assert found.distances[0] < found.limit()[0]
    X[:400] = 0.0
    wrong = calibration(model, X)
    assert wrong.distances[0] > wrong.limit(0.9999)[0]


def test_a_constant_column_is_not_called_wrong():
    X = np.stack([np.full(500, 3.0), np.random.default_rng(0).normal(size=500)], axis=1)
    found = calibration(GaussianMixture(1).fit(X), X)
    assert found.distances[0] < found.limit()[0]


def test_many_rows_are_thinned():
    model, _ = gaussian("full")
    found = calibration(model, drawn_rows(model, 3000), max_rows=1000)
    np.testing.assert_array_equal(found.n_rows, 1000)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"columns": ["height"]}, "columns must hold numbers of columns"),
        ({"columns": [3]}, "from 0 to 2, got 3"),
        ({"n_bins": 1}, "n_bins"),
        ({"max_rows": 0}, "max_rows"),
    ],
)
def test_wrong_parameters_are_named(settings, message):
    model, X = gaussian("full")
    with pytest.raises(ValueError, match=message):
        calibration(model, X, **settings)


def test_names_of_a_frame_are_kept_and_near_ones_offered():
    frame = pd.DataFrame({"height": [1.0, 2.0, 4.0], "width": [1.0, 0.0, 3.0]})
    model = GaussianMixture(1).fit(frame)
    assert calibration(model, frame, ["width"]).names == ("width",)
    with pytest.raises(ValueError, match=r"'hight'\. Near ones are 'height'"):
        calibration(model, frame, ["hight"])


@pytest.mark.parametrize("kind", ["flow", "network"])
def test_deep_mixtures_are_judged_by_drawn_rows(kind):
    model, _ = deep(kind)
    rows = model.set_params(random_state=5).sample(4000)[0]
    found = calibration(model, rows)
    # 20,000 drawn rows stand for the model, so that distances are those of two samples.
    np.testing.assert_allclose(found.n_rows, 4000 * 20_000 / 24_000)
    assert (found.distances < found.limit(0.9999)).all()
    rows[:, 0] += 0.5 * rows[:, 0].std()
    moved = calibration(model, rows)
    assert ((moved.distances > moved.limit(0.9999)) == [True, False]).all()
    np.testing.assert_array_equal(moved.values[1], found.values[1])


def test_components_that_cannot_draw_are_named():
    class Silent:
        def init(self, key, n_features):
            return jnp.zeros(n_features)

        def log_prob(self, params, x):
            return -jnp.sum(jnp.square(x - params))

    X = gaussian("full", 2)[1]
    model = Mixture(Silent(), 2, algorithm="em", batch_size=50, max_steps=2).fit(X)
    with pytest.raises(ValueError, match="must be able to draw rows"):
        calibration(model, X)

"""Columns: calibration, shares in bins and levels, contents and predictions."""

import copy

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from cases import (
    CLOSED_FORM,
    COVARIANCE_TYPES,
    as_matrices,
    categories,
    counts,
    deep,
    drawn_rows,
    gaussian,
    people,
    table,
    two_groups,
)
from scipy import stats

from pickmix import FamilyMixture, GaussianMixture, Mixture, TableMixture
from pickmix.inspection.columns import calibration, marginals, summarise_columns
from pickmix.inspection.view import View


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


def off(model, rows, columns=None):
    """Columns that are off by more than chance ever does."""
    found = calibration(model, rows, columns)
    return (found.distances > found.limit(0.9999)).tolist()


def test_wrong_columns_are_found():
    model, _ = gaussian("full")
    rows = drawn_rows(model, 4000)
    rows[:, 1] += 1.0
    assert off(model, rows) == [False, True, False]
    rng = np.random.default_rng(0)
    X = np.stack([rng.poisson(3.0, 3000), rng.choice(3, 3000, p=[0.6, 0.3, 0.1])], axis=1)
    mixture = FamilyMixture([("poisson", [0]), ("categorical", [1])], 1, random_state=0).fit(X)
    right = calibration(mixture, X)
    assert (right.distances < right.limit()).all()
    assert right.kinds == ("count", "level")
    other = np.stack([rng.poisson(3.5, 3000), rng.choice(3, 3000, p=[0.5, 0.3, 0.2])], axis=1)
    assert off(mixture, other) == [True, True]


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
    distribution = stats.poisson(mixture.parameters_["rates"][0, 0])
    assert (u >= distribution.cdf(X[:, 0] - 1)).all()
    assert (u <= distribution.cdf(X[:, 0])).all()
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
    assert off(model, frame.assign(stamp=stamps + 10**9)) == [True, False]


def test_ties_are_taken_for_rounded_numbers():
    random = np.random.default_rng(0)
    X = np.concatenate([random.normal(0.0, 1.0, (3000, 1)), random.normal(9.0, 2.0, (3000, 1))])
    model = GaussianMixture(2, random_state=0).fit(X)
    rounded = np.round(2.0 * X) / 2.0
    assert np.unique(rounded).shape[0] < 60
    found = calibration(model, rounded)
    assert found.distances[0] < found.limit()[0]
    assert off(model, rounded + 0.5) == [True]


def test_an_atom_is_right_if_the_model_has_one():
    # Zeros in half of the rows, and numbers beyond: as rates and amounts are.
    random = np.random.default_rng(0)
    X = np.where(random.random((4000, 1)) < 0.5, 0.0, random.normal(5.0, 1.0, (4000, 1)))
    model = GaussianMixture(2, random_state=0).fit(X)
    found = calibration(model, X)
    assert found.distances[0] < found.limit()[0]
    X[:400] = 0.0
    assert off(model, X) == [True]


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
    rows = copy.copy(model).set_params(random_state=5).sample(4000)[0]
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

    X = two_groups()
    model = Mixture(Silent(), 2, algorithm="em", batch_size=50, max_steps=2).fit(X)
    with pytest.raises(ValueError, match="must be able to draw rows"):
        calibration(model, X)


# Shares.


@pytest.mark.parametrize("kind", CLOSED_FORM)
def test_shares_sum_to_one(kind):
    model, X = CLOSED_FORM[kind]()
    for found in marginals(model, X):
        np.testing.assert_allclose([found.observed.sum(), found.expected.sum()], 1.0)
        assert (found.expected >= 0.0).all()
        assert found.exact
        assert found.observed.shape == found.expected.shape
        assert len(found.levels) == (found.observed.shape[0] if found.kind == "levels" else 0)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_shares_of_numbers_are_integrals_of_the_density(covariance_type):
    model, X = gaussian(covariance_type)
    covariances = as_matrices(model)
    for column, found in enumerate(marginals(model, X, n_bins=12)):
        deviations = np.sqrt(covariances[:, column, column])
        F = stats.norm.cdf(found.edges[:, None], model.means_[:, column], deviations)
        F = F @ model.weights_
        F[0], F[-1] = 0.0, 1.0
        np.testing.assert_allclose(found.expected, np.diff(F), atol=1e-12)
        np.testing.assert_allclose(
            found.observed[1:], np.histogram(-X[:, column], -found.edges[::-1])[0][::-1][1:] / 400
        )
        assert found.distance == 0.5 * np.abs(found.observed - found.expected).sum()


def test_shares_of_counts_are_sums_of_probabilities():
    model, X = counts()
    (found, _) = marginals(model, X, n_bins=100)
    whole = np.arange(found.edges[0] + 0.5, found.edges[-1])
    np.testing.assert_array_equal(found.edges, np.append(whole - 0.5, whole[-1] + 0.5))
    distribution = stats.poisson(model.parameters_["rates"][:, 0])
    expected = distribution.pmf(whole[:, None]) @ model.weights_
    expected[-1] += distribution.sf(whole[-1]) @ model.weights_
    expected[0] += distribution.cdf(whole[0] - 1) @ model.weights_
    np.testing.assert_allclose(found.expected, expected, atol=1e-12)
    np.testing.assert_allclose(found.observed, [(X[:, 0] == n).mean() for n in whole])


def test_shares_of_levels_are_weighted_probabilities():
    model, X = categories()
    first, second = marginals(model, X)
    tables = model.parameters_["probabilities"]
    np.testing.assert_allclose(first.expected, model.weights_ @ tables[:, :4], atol=1e-6)
    np.testing.assert_allclose(second.observed, [(X[:, 1] == level).mean() for level in range(4)])
    assert first.levels == ("0", "1", "2", "3")


def test_wide_counts_have_bins_of_several():
    X = np.random.default_rng(0).poisson(200.0, (500, 1))
    (found,) = marginals(FamilyMixture("poisson", 1).fit(X), X, n_bins=10)
    widths = np.diff(found.edges)
    assert (widths == widths[0]).all()
    assert widths[0] == np.floor(widths[0]) > 1.0
    assert found.observed.shape[0] <= 10


def test_a_table_keeps_names_levels_and_dates():
    model, frame = table()
    found = {marginal.name: marginal for marginal in marginals(model, frame)}
    assert list(found) == ["when", "kind", "age", "breath", "calls", "alive"]
    kind = found["kind"]
    assert kind.levels == ("blue", "green", "red")
    assert kind.n_rows == 379
    shares = frame["kind"].value_counts(normalize=True)
    np.testing.assert_allclose(kind.observed, shares[list(kind.levels)])
    assert found["alive"].levels == ("False", "True")
    when = found["when"]
    assert when.edges.dtype.kind == "M"
    inside = [
        ((frame["when"] > low) & (frame["when"] <= high)).mean()
        for low, high in zip(when.edges[:-1], when.edges[1:], strict=True)
    ]
    np.testing.assert_allclose(when.observed, inside)
    # Whole years are bins of their own, with edges half way between.
    assert (found["age"].edges % 1.0 == 0.5).all()
    # Against rows drawn from the model, in the table's own units.
    drawn = model.sample(20_000, 0)
    for name in ("age", "breath", "calls"):
        marginal = found[name]
        places = np.clip(
            np.searchsorted(marginal.edges, drawn[name]) - 1, 0, marginal.observed.shape[0] - 1
        )
        shares = np.bincount(places, minlength=marginal.observed.shape[0]) / 20_000
        np.testing.assert_allclose(marginal.expected, shares, atol=5.0 * np.sqrt(0.25 / 20_000))


def test_rare_levels_are_put_together():
    rng = np.random.default_rng(0)
    names = np.array([f"level {n}" for n in range(30)])
    shares = 0.8 ** np.arange(30)
    frame = pd.DataFrame({"name": rng.choice(names, 2000, p=shares / shares.sum())})
    model = TableMixture(1, random_state=0).fit(frame)
    (found,) = marginals(model, frame, max_levels=5)
    assert found.levels[:4] == ("level 0", "level 1", "level 2", "level 3")
    assert found.levels[4].endswith("others")
    np.testing.assert_allclose([found.observed.sum(), found.expected.sum()], 1.0)
    # Levels that share a probability in the model are one.
    pooled = TableMixture(1, max_levels=4, random_state=0).fit(frame)
    (found,) = marginals(pooled, frame)
    assert [name for name in found.levels if name.endswith("rare levels")]


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("step", [1.0, 0.1])
def test_rounded_numbers_have_bins_of_whole_steps(step, kind):
    X = np.round(np.random.default_rng(0).normal(0.0, 30.0, (2000, 1))) * step
    X = np.round(X, 1).astype(kind)
    model = GaussianMixture(1).fit(X)
    (found,) = marginals(model, X, n_bins=40)
    per_bin = np.diff(found.edges) / step
    np.testing.assert_allclose(per_bin, np.round(per_bin[0]), rtol=1e-4)
    # Edges lie between two values.
    np.testing.assert_allclose(found.edges / step % 1.0, 0.5, atol=1e-3)
    # Before rounding, the same shares.
    F = stats.norm.cdf(found.edges, model.means_[0, 0], np.sqrt(model.covariances_[0, 0, 0]))
    np.testing.assert_allclose(found.expected[1:-1], np.diff(F)[1:-1], atol=1e-12)


def test_a_few_values_have_a_bin_each():
    values = np.sqrt([2.0, 3.0, 5.0, 11.0])
    X = np.random.default_rng(0).choice(values, (300, 1), p=[0.1, 0.2, 0.3, 0.4])
    (found,) = marginals(GaussianMixture(2, random_state=0).fit(X), X)
    np.testing.assert_allclose(found.edges[1:-1], 0.5 * (values[1:] + values[:-1]))
    np.testing.assert_allclose(found.observed, [(X[:, 0] == v).mean() for v in values])


def test_a_few_rows_far_off_do_not_stretch_the_bins():
    model, X = gaussian("full")
    X = np.concatenate([np.repeat(X, 10, axis=0), np.full((1, 3), 1e6)])
    for found in marginals(model, X):
        assert found.edges[-1] < 100.0
        np.testing.assert_allclose(found.observed.sum(), 1.0)
        assert found.n_rows == 4001


def test_a_column_of_gaps_has_no_observed_shares():
    model, X = gaussian("full")
    X[:, 1] = np.nan
    found = marginals(model, X)[1]
    assert found.n_rows == 0
    np.testing.assert_array_equal(found.observed, 0.0)
    np.testing.assert_allclose(found.expected.sum(), 1.0)


def test_deep_mixtures_have_shares_of_drawn_rows():
    model, X = deep()
    found = marginals(model, X, n_bins=8)
    drawn = copy.copy(model).set_params(random_state=99).sample(50_000)[0]
    for column, marginal in enumerate(found):
        assert not marginal.exact
        np.testing.assert_allclose([marginal.observed.sum(), marginal.expected.sum()], 1.0)
        places = np.clip(np.searchsorted(marginal.edges, drawn[:, column]) - 1, 0, 7)
        shares = np.bincount(places, minlength=8) / 50_000
        # Five standard errors of both samples.
        np.testing.assert_allclose(marginal.expected, shares, atol=5 * np.sqrt(0.25 / 14_000))


# Contents and predictions.


def test_columns_have_kinds_gaps_and_contents():
    model, frame = table()
    view = View(model)
    columns = {c.name: c for c in summarise_columns(view, view.read(frame))}
    kinds = {name: column.kind for name, column in columns.items()}
    assert kinds == {
        "when": "date",
        "kind": "category",
        "age": "integer",
        "breath": "number",
        "calls": "count",
        "alive": "boolean",
    }
    gaps = frame[list(columns)].isna().mean()
    assert {name: column.missing for name, column in columns.items()} == pytest.approx(
        gaps.to_dict()
    )
    assert columns["kind"].content == "3 levels"
    assert columns["age"].content == f"{frame['age'].min()} to {frame['age'].max()}"
    first, last = (str(date.date()) for date in (frame["when"].min(), frame["when"].max()))
    assert columns["when"].content == f"{first} to {last}"
    assert columns["age"].step == 1.0


def test_predictions_are_those_of_the_other_columns():
    rng = np.random.default_rng(0)
    x = rng.normal(size=2000)
    X = np.stack([x, 0.6 * x + 0.8 * rng.normal(size=2000), rng.normal(size=2000)], axis=1)
    model = GaussianMixture(1).fit(X)
    view = View(model)
    first, second, third = summarise_columns(view, view.read(X))
    expected = model.predict_columns(X, [1])[:, 0]
    share = 1.0 - np.square(X[:, 1] - expected).mean() / X[:, 1].var()
    assert second.predicted == pytest.approx(share)
    assert first.predicted == pytest.approx(0.36, abs=0.05)
    assert third.predicted == pytest.approx(0.0, abs=0.01)
    assert third.baseline == 0.0


def test_levels_are_predicted_against_the_most_frequent_one():
    model, frame, _ = people()
    view = View(model)
    town = summarise_columns(view, view.read(frame))[1]
    levels, probabilities = model.predict_levels(frame, "town")
    right = (levels[probabilities.argmax(axis=1)] == frame["town"]).mean()
    assert town.predicted == pytest.approx(right)
    assert town.baseline == pytest.approx((frame["town"] == "Rome").mean())
    assert town.predicted > town.baseline + 0.1


@pytest.mark.parametrize("make", [deep, lambda: gaussian("full", 1)])
def test_nothing_is_predicted_without_conditionals_or_other_columns(make):
    model, X = make()
    view = View(model)
    assert all(np.isnan(c.predicted) for c in summarise_columns(view, view.read(X)))

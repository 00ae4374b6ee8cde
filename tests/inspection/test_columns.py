"""Columns: calibration, shares in bins and levels, contents and predictions."""

import copy

import numpy as np
import pandas as pd
import pytest
from cases import (
    CLOSED_FORM,
    as_matrices,
    categories,
    counts,
    deep,
    drawn_rows,
    gaussian,
    people,
    table,
)
from scipy import stats

from pickmix import FamilyMixture, GaussianMixture, TableMixture
from pickmix.inspection.columns import calibration, marginals, summarise_columns
from pickmix.inspection.view import View


@pytest.mark.parametrize("kind", CLOSED_FORM)
def test_rows_of_the_model_itself_are_uniform_and_shares_sum_to_one(kind):
    model, X = CLOSED_FORM[kind]()
    found = calibration(model, drawn_rows(model, 2000))
    assert (found.distances < found.limit(0.9999)).all()
    low, high = found.band(1.0 - 1e-6)
    assert (found.shares >= low[:, None]).all()
    assert (found.shares <= high[:, None]).all()
    for u, distance in zip(found.values, found.distances, strict=True):
        assert u.shape == (2000,)
        np.testing.assert_allclose(distance, stats.kstest(u, "uniform").statistic, atol=1e-12)
    for column in marginals(model, X):
        np.testing.assert_allclose([column.observed.sum(), column.expected.sum()], 1.0)
        assert (column.expected >= 0.0).all()
        assert column.exact
        assert len(column.levels) == (len(column.observed) if column.kind == "levels" else 0)


def off(model, rows, columns=None):
    """Columns that are off by more than chance ever does."""
    found = calibration(model, rows, columns)
    return (found.distances > found.limit(0.9999)).tolist()


def test_wrong_columns_are_found():
    model, _ = gaussian("full")
    rows = drawn_rows(model, 2000)
    rows[:, 1] += 1.0
    assert off(model, rows) == [False, True, False]
    rng = np.random.default_rng(0)
    X = np.stack([rng.poisson(3.0, 3000), rng.choice(3, 3000, p=[0.6, 0.3, 0.1])], axis=1)
    mixture = FamilyMixture([("poisson", [0]), ("categorical", [1])], 1, random_state=0).fit(X)
    assert calibration(mixture, X).kinds == ("count", "level")
    assert off(mixture, X) == [False, False]
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
    # Gaps are left out, and many rows are thinned.
    X[:100, 1] = np.nan
    np.testing.assert_array_equal(calibration(model, X).n_rows, [400, 300, 400])
    whole = calibration(model, X[100:])
    np.testing.assert_array_equal(calibration(model, X).values[1], whole.values[1])
    np.testing.assert_array_equal(calibration(model, X[100:], max_rows=50).n_rows, 50)


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


def test_a_table_is_spoken_of_in_its_own_columns():
    model, frame = table()
    found = calibration(model, frame)
    # Constants are no part of a model; the others come in the table's order.
    assert found.names == ("when", "kind", "age", "breath", "calls", "alive")
    assert found.kinds == ("number", "level", "number", "number", "count", "level")
    np.testing.assert_array_equal(found.n_rows, [400, 379, 400, 379, 400, 400])
    assert calibration(model, frame, ["age"]).names == ("age",)
    with pytest.raises(ValueError, match=r"'breth'\. Near ones are 'breath'"):
        calibration(model, frame, ["breth"])


def test_rounded_and_huge_numbers_of_a_table():
    # A few values in all: without rounding the transform would have as few.
    random = np.random.default_rng(0)
    stamps = 2**55 + np.rint(random.normal(0.0, 1e9, 500)).astype(np.int64)
    frame = pd.DataFrame({"year": random.integers(2007, 2010, 500), "stamp": stamps})
    model = TableMixture(1, schema={"stamp": "integer"}, random_state=0).fit(frame)
    assert model.schema_["year"].step == 1.0
    assert model.schema_["stamp"].origin > 2**54
    assert off(model, frame.assign(stamp=stamps + 10**9))[1]
    assert not off(model, frame)[1]
    rows = model.sample(2000, 1)
    found = calibration(model, rows, ["year"])
    assert np.unique(rows["year"]).shape[0] < 12
    assert np.unique(found.values[0]).shape[0] == 2000
    assert found.distances[0] < found.limit()[0]


def test_ties_are_taken_for_rounded_numbers():
    random = np.random.default_rng(0)
    X = np.concatenate([random.normal(0.0, 1.0, (1500, 1)), random.normal(9.0, 2.0, (1500, 1))])
    model = GaussianMixture(2, random_state=0).fit(X)
    rounded = np.round(2.0 * X) / 2.0
    assert off(model, rounded) == [False]
    assert off(model, rounded + 0.5) == [True]


def test_an_atom_is_right_if_the_model_has_one():
    # Zeros in half of the rows, and numbers beyond: as rates and amounts are. One value is alike.
    random = np.random.default_rng(0)
    X = np.where(random.random((3000, 1)) < 0.5, 0.0, random.normal(5.0, 1.0, (3000, 1)))
    X = np.append(X, np.full((3000, 1), 3.0), axis=1)
    model = GaussianMixture(2, random_state=0).fit(X)
    assert off(model, X) == [False, False]
    X[:300, 0] = 0.0
    assert off(model, X) == [True, False]


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


def test_deep_mixtures_are_judged_by_drawn_rows():
    model, X = deep()
    # As many as the model draws for itself: JAX compiles for numbers of rows.
    rows = copy.copy(model).set_params(random_state=5).sample(20_000)[0][::5]
    found = calibration(model, rows)
    # 20,000 drawn rows stand for the model, so that distances are those of two samples.
    np.testing.assert_allclose(found.n_rows, 4000 * 20_000 / 24_000)
    assert (found.distances < found.limit(0.9999)).all()
    for column, marginal in enumerate(marginals(model, X, n_bins=8)):
        assert not marginal.exact
        places = np.clip(np.searchsorted(marginal.edges, rows[:, column]) - 1, 0, 7)
        shares = np.bincount(places, minlength=8) / 4000
        # Five standard errors of both samples.
        np.testing.assert_allclose(marginal.expected, shares, atol=5 * np.sqrt(0.25 / 3333))
    rows[:, 0] += 0.5 * rows[:, 0].std()
    assert off(model, rows) == [True, False]


# Shares.


def test_shares_of_numbers_are_integrals_of_the_density():
    model, X = gaussian("full")
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
    X[:, 1] = np.nan
    found = marginals(model, X)[1]
    assert found.n_rows == 0
    np.testing.assert_array_equal(found.observed, 0.0)
    np.testing.assert_allclose(found.expected.sum(), 1.0)


def test_shares_of_counts_and_levels_are_weighted_probabilities():
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
    # Wide counts have bins of several.
    (wide, _) = marginals(model, X * 20.0, n_bins=10)
    (width,) = set(np.diff(wide.edges))
    assert width == np.floor(width) > 1.0
    assert wide.observed.shape[0] <= 10
    model, X = categories()
    first, second = marginals(model, X)
    tables = model.parameters_["probabilities"]
    np.testing.assert_allclose(first.expected, model.weights_ @ tables[:, :4], atol=1e-6)
    np.testing.assert_allclose(second.observed, [(X[:, 1] == level).mean() for level in range(4)])
    assert first.levels == ("0", "1", "2", "3")


def test_a_table_keeps_names_levels_and_dates():
    model, frame = table()
    found = {marginal.name: marginal for marginal in marginals(model, frame)}
    assert list(found) == ["when", "kind", "age", "breath", "calls", "alive"]
    kind, when = found["kind"], found["when"]
    assert kind.levels == ("blue", "green", "red")
    assert kind.n_rows == 379
    shares = frame["kind"].value_counts(normalize=True)
    np.testing.assert_allclose(kind.observed, shares[list(kind.levels)])
    assert found["alive"].levels == ("False", "True")
    assert when.edges.dtype.kind == "M"
    inside = [
        ((frame["when"] > low) & (frame["when"] <= high)).mean()
        for low, high in zip(when.edges[:-1], when.edges[1:], strict=True)
    ]
    np.testing.assert_allclose(when.observed, inside)
    # Whole years are bins of their own, with edges half way between.
    assert (found["age"].edges % 1.0 == 0.5).all()
    # Against rows drawn from the model, in the table's own units.
    drawn = model.sample(5_000, 0)
    for name in ("age", "breath", "calls"):
        marginal = found[name]
        n_bins = marginal.observed.shape[0]
        places = np.clip(np.searchsorted(marginal.edges, drawn[name]) - 1, 0, n_bins - 1)
        shares = np.bincount(places, minlength=n_bins) / 5_000
        np.testing.assert_allclose(marginal.expected, shares, atol=5.0 * np.sqrt(0.25 / 5_000))


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
    assert [name for name in marginals(pooled, frame)[0].levels if name.endswith("rare levels")]


@pytest.mark.parametrize(("step", "kind"), [(1.0, np.float64), (0.1, np.float32)])
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


def test_bins_of_a_few_values_and_of_a_few_far_off():
    values = np.sqrt([2.0, 3.0, 5.0, 11.0])
    X = np.random.default_rng(0).choice(values, (300, 1), p=[0.1, 0.2, 0.3, 0.4])
    (found,) = marginals(GaussianMixture(2, random_state=0).fit(X), X)
    np.testing.assert_allclose(found.edges[1:-1], 0.5 * (values[1:] + values[:-1]))
    np.testing.assert_allclose(found.observed, [(X[:, 0] == v).mean() for v in values])
    model, X = gaussian("full")
    X = np.concatenate([np.repeat(X, 10, axis=0), np.full((1, 3), 1e6)])
    for found in marginals(model, X):
        assert found.edges[-1] < 100.0
        np.testing.assert_allclose(found.observed.sum(), 1.0)
        assert found.n_rows == 4001


# Contents and predictions.


def summaries(model, X):
    view = View(model)
    return {column.name: column for column in summarise_columns(view, view.read(X))}


def test_columns_have_kinds_gaps_and_contents():
    model, frame = table()
    columns = summaries(model, frame)
    kinds = ["date", "category", "integer", "number", "count", "boolean"]
    assert [column.kind for column in columns.values()] == kinds
    gaps = frame[list(columns)].isna().mean()
    assert {name: c.missing for name, c in columns.items()} == pytest.approx(gaps.to_dict())
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
    first, second, third = summaries(model, X).values()
    expected = model.predict_columns(X, [1])[:, 0]
    share = 1.0 - np.square(X[:, 1] - expected).mean() / X[:, 1].var()
    assert second.predicted == pytest.approx(share)
    assert first.predicted == pytest.approx(0.36, abs=0.05)
    assert third.predicted == pytest.approx(0.0, abs=0.01)
    assert third.baseline == 0.0
    # Levels, against the most frequent one.
    model, frame, _ = people()
    town = summaries(model, frame)["town"]
    levels, probabilities = model.predict_levels(frame, "town")
    right = (levels[probabilities.argmax(axis=1)] == frame["town"]).mean()
    assert town.predicted == pytest.approx(right)
    assert town.baseline == pytest.approx((frame["town"] == "Rome").mean())
    assert town.predicted > town.baseline + 0.1
    # Nothing is predicted without conditionals or other columns.
    for model, X in (deep(), gaussian("full", 1)):
        assert all(np.isnan(column.predicted) for column in summaries(model, X).values())

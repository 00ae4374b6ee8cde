"""Numbers with atoms, few values, bounds and ties: densities, draws and queries of tables."""

import warnings

import numpy as np
import pytest
from scipy.stats import chisquare, ks_2samp
from sklearn.exceptions import ConvergenceWarning

import pickmix
from pickmix import FamilyMixture, TableMixture
from pickmix.estimators import column_choice
from pickmix.inputs.frames import read_typed
from pickmix.inputs.maps import maps_of, without_scores

N = 1500


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    first = rng.random(N) < 0.5
    rain = np.exp(rng.normal(np.where(first, 0.0, 1.5), 0.5))
    return {
        "day": np.datetime64("2020-01-01") + rng.integers(0, 300, N).astype("m8[D]"),
        "rain": np.where(rng.random(N) < np.where(first, 0.7, 0.2), 0.0, rain),
        "rating": np.where(first, rng.integers(1, 4, N), rng.integers(2, 6, N)),
        "size": np.where(first, 20.0, 30.0) + 3.0 * np.log1p(rain) + rng.normal(0.0, 1.0, N),
        "where": np.where(first, "hill", "lake"),
    }


@pytest.fixture(scope="module")
def fitted(table):
    return TableMixture(4, random_state=0).fit(table)


@pytest.fixture(scope="module")
def grid(fitted, table):
    """Values of rain without the atom, fine and far, and their weights in a sum."""
    edges = np.linspace(-5.0, 1.0, 20_001)
    edges = np.concatenate([edges, np.linspace(1.0, 60.0, 20_001)[1:], [200.0, 1000.0]])
    middles = 0.5 * (edges[1:] + edges[:-1])
    return middles, np.diff(edges)


def joint(fitted, given, column, values):
    """Densities of values of one column together with given values of others."""
    rows = {name: np.full(len(values), value) for name, value in given.items()}
    return np.exp(fitted.marginal([column, *given]).score_samples({column: values, **rows}))


def test_kinds_of_numbers(fitted):
    assert fitted.schema_.kinds == {
        "day": "date",
        "rain": "number",
        "rating": "ordinal",
        "size": "number",
        "where": "category",
    }
    assert fitted.schema_["rain"].atoms == (0.0,)
    assert fitted.mixture_.n_features_in_ == 6


@pytest.mark.parametrize("given", [{}, {"where": "hill"}, {"rating": 2, "size": 24.0}])
def test_densities_and_masses_sum_to_those_of_the_rest(fitted, grid, given):
    values, widths = grid
    total = joint(fitted, given, "rain", np.zeros(1))[0]
    total += joint(fitted, given, "rain", values) @ widths
    rest = {name: [value] for name, value in given.items()}
    expected = np.exp(fitted.marginal([*given]).score_samples(rest))[0] if given else 1.0
    assert total == pytest.approx(expected, rel=1e-3)
    ratings = joint(fitted, {}, "rating", np.arange(1, 6))
    assert ratings.sum() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("given", [{"where": "hill"}, {"rating": 2, "size": 24.0}])
def test_conditionals_are_sums_over_atoms_and_the_rest(fitted, grid, given):
    values, widths = grid
    low, high = fitted.schema_["rain"].lowest, fitted.schema_["rain"].highest
    weights = np.append(joint(fitted, given, "rain", values) * widths, 0.0)
    weights[-1] = joint(fitted, given, "rain", np.zeros(1))[0]
    weights /= weights.sum()
    # Answers keep to the range of the table.
    kept = np.append(np.clip(values, low, high), 0.0)
    answers = fitted.conditional(given, "rain")
    mean = weights @ kept
    assert answers.mean()["rain"][0] == pytest.approx(mean, rel=5e-4)
    variance = weights @ np.square(kept - mean)
    assert answers.std()["rain"][0] == pytest.approx(np.sqrt(variance), rel=5e-4)
    levels, probabilities = answers.probabilities("rain")
    assert levels.tolist() == [0.0]
    assert probabilities[0, 0] == pytest.approx(weights[-1], rel=1e-3)
    order = np.argsort(kept, kind="stable")
    sums = np.cumsum(weights[order])
    for share in (0.1, 0.5, 0.9):
        expected = kept[order][np.searchsorted(sums, share)]
        found = answers.quantile(share)["rain"][0, 0]
        assert found == pytest.approx(expected, abs=0.02)


def test_ordinals_speak_numbers(fitted):
    given = {"where": ["hill", "lake"]}
    answers = fitted.conditional(given, "rating")
    levels, probabilities = answers.probabilities("rating")
    assert levels.tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(answers.mean()["rating"], probabilities @ levels, rtol=1e-6)
    spread = probabilities @ np.square(levels) - np.square(probabilities @ levels)
    np.testing.assert_allclose(answers.std()["rating"], np.sqrt(spread), rtol=1e-5)
    medians = levels[(np.cumsum(probabilities, axis=1) < 0.5).sum(axis=1)]
    np.testing.assert_array_equal(answers.quantile(0.5)["rating"][:, 0], medians)
    with pytest.warns(UserWarning, match="not in the fit: 9"):
        fitted.marginal(["rating", "size"]).score_samples({"rating": [9, 2], "size": [20.0, 20.0]})


def test_covariances_are_those_of_draws(fitted):
    answers = fitted.conditional({"where": "lake"}, ["rain", "size", "rating"])
    drawn = answers.sample(60_000, random_state=0)
    rows = np.stack([np.asarray(drawn[name], float) for name in answers.names])
    np.testing.assert_allclose(answers.covariance()[0], np.cov(rows), rtol=0.03, atol=0.05)


def test_draws_have_the_frequencies_of_the_model(fitted, table):
    drawn = fitted.sample(20_000, random_state=0)
    answers = fitted.conditional({"where": ["hill", "lake"]}, ["rain", "rating"])
    for row, place in enumerate(("hill", "lake")):
        some = drawn["where"] == place
        counts = np.bincount(drawn["rating"][some], minlength=6)[1:]
        shares = answers.probabilities("rating")[1][row]
        # Levels that are nearly impossible are too few for a chi-square test.
        kept = shares * counts.sum() > 5
        expected = shares[kept] / shares[kept].sum() * counts[kept].sum()
        assert chisquare(counts[kept], expected).pvalue > 1e-3
        zeros = np.count_nonzero(drawn["rain"][some] == 0.0)
        share = answers.probabilities("rain")[1][row, 0]
        edges = answers.quantile([0.8, 0.9])["rain"][row]
        bins = np.histogram(drawn["rain"][some], [1e-9, *edges, np.inf])[0]
        observed = np.array([zeros, *bins])
        assert chisquare(observed, np.array([share, 0.8 - share, 0.1, 0.1]) * some.sum()).pvalue > (
            1e-3
        )
    for name in ("rain", "rating", "size", "day"):
        assert drawn[name].min() >= np.min(table[name])
        assert drawn[name].max() <= np.max(table[name])


def test_explanations_are_differences_of_scores(fitted, table):
    some = {name: values[:40] for name, values in table.items()}
    explanation = fitted.explain(some)
    np.testing.assert_allclose(explanation.log_density, fitted.score_samples(some), rtol=1e-9)
    for number, name in enumerate(explanation.names):
        others = [other for other in explanation.names if other != name]
        rest = fitted.marginal(others).score_samples({other: some[other] for other in others})
        np.testing.assert_allclose(
            explanation.log_conditional[:, number], explanation.log_density - rest, atol=1e-8
        )


def test_an_atom_where_none_is_expected_is_explained(fitted):
    rows = {"rain": [0.0, 5.0], "where": ["lake", "lake"], "size": [35.0, 35.0], "rating": [5, 5]}
    with pytest.warns(UserWarning, match="lacks"):
        explanation = fitted.explain(rows)
    rain = explanation.names.index("rain")
    assert explanation.surprise[0, rain] > explanation.surprise[1, rain]
    assert explanation.expected[0, rain] > 0.0


def test_conditions_may_be_atoms(fitted):
    drawn = fitted.sample(300, random_state=0, given={"rain": 0.0})
    assert (drawn["rain"] == 0.0).all()
    assert (drawn["where"] == "hill").mean() > 0.6
    wet = fitted.conditional({"rain": [0.0, 8.0]}, "size").mean()["size"]
    assert wet[1] > wet[0] + 3.0


def test_filled_cells_keep_to_the_table(fitted, table):
    gaps = {name: values[:200].copy() for name, values in table.items()}
    gaps["rain"][::3] = np.nan
    for strategy in ("mean", "mode", "draw"):
        filled = fitted.impute(gaps, strategy, random_state=0)["rain"]
        assert not np.isnan(filled).any()
        assert filled.min() >= 0.0
    means = fitted.predict_columns(gaps, "rain")[::3]
    np.testing.assert_allclose(fitted.impute(gaps)["rain"][::3], means, rtol=1e-9)
    assert (fitted.impute(gaps, "draw", random_state=0)["rain"][::3] == 0.0).any()


def test_repeated_values_are_the_only_ones_of_draws():
    rng = np.random.default_rng(1)
    support = np.sort(rng.choice(10_000, 80, replace=False)) / 7.0
    table = {"x": rng.choice(support, 2000), "y": -np.round(rng.random(2000), 1)}
    drawn = TableMixture(3, random_state=0).fit(table).sample(500, random_state=0)
    assert np.isin(drawn["x"], table["x"]).all()
    assert not np.signbit(drawn["y"][drawn["y"] == 0.0]).any()


def test_saved_as_it_was(fitted, table, tmp_path):
    again = pickmix.load(pickmix.save(fitted, tmp_path / "model.npz"))
    np.testing.assert_array_equal(again.score_samples(table), fitted.score_samples(table))
    assert again.schema_ == fitted.schema_
    same = fitted.reduce(4)
    np.testing.assert_allclose(same.score_samples(table), fitted.score_samples(table), rtol=1e-6)


def test_em_never_lowers_the_likelihood(table):
    mixture = TableMixture(3, algorithm="em", tol=0.0, max_iter=15, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture.fit(table)
    values = mixture.trace_["log_likelihood"]
    assert (np.diff(values) > -1e-6).all()


def test_reports_and_displays_take_them(fitted, table, tmp_path):
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot as plt

    pickmix.report(fitted, table, tmp_path / "report.html")
    pickmix.ComponentsDisplay.from_estimator(fitted, table)
    display = pickmix.PairsDisplay.from_estimator(fitted, table, columns=["rain", "size"])
    plt.close("all")
    sample = fitted.sample(40_000, random_state=0)
    rows = np.stack([sample["rain"], sample["size"]])
    weights = display.weights / display.weights.sum()
    np.testing.assert_allclose(weights @ display.means, rows.mean(axis=1), rtol=0.03)


def test_a_transform_is_auto_or_none(table):
    with pytest.raises(ValueError, match="column_transform"):
        TableMixture(2, column_transform="log").fit(table)
    plain = TableMixture(2, column_transform=None, random_state=0).fit(table)
    assert plain.schema_.kinds["rating"] == "integer"
    assert plain.schema_["rain"].atoms == ()


def test_uneven_columns_of_some_values_are_levels_if_left_out_rows_pay():
    rng = np.random.default_rng(0)
    fine = rng.random(2400) < 0.5
    # The last digit of an amount depends on the yes or no, and neighbours do not say it.
    amounts = 2 * rng.zipf(1.5, size=2400).clip(1, 30) + fine
    table = {"fine": fine, "amount": amounts, "height": rng.normal(70.0, 9.0, 2400).round()}
    kinds = TableMixture(2, random_state=0).fit(table).schema_.kinds
    assert kinds == {"fine": "boolean", "amount": "ordinal", "height": "integer"}
    given = {"amount": "integer"}
    mixture = TableMixture(2, random_state=0, schema=given).fit(table)
    assert mixture.schema_.kinds["amount"] == "integer"


def test_numbers_of_some_values_are_no_levels_if_left_out_rows_pay():
    random = np.random.default_rng(0)
    hour, shares = random.integers(0, 40, 4000), random.dirichlet(np.ones(40))
    table = {
        "hour": hour,
        "heat": hour + random.normal(size=4000),
        "floor": random.choice(40, 4000, p=shares),
        "day": random.integers(0, 25, 4000),
    }
    settings = {"n_components": 2, "random_state": 0, "max_iter": 2, "tol": 0.0}
    given = {"day": "ordinal"}
    assert TableMixture(**settings, schema=given).fit(table).schema_.kinds["hour"] == "integer"
    # Neighbouring hours have nothing in common.
    apart = table | {"hour": random.permutation(40)[hour]}
    kinds = TableMixture(**settings, schema=given).fit(apart).schema_.kinds
    assert kinds["hour"] == kinds["day"] == "ordinal"


def test_a_learnt_map_gives_columns_of_a_mixture_the_distribution_of_the_table():
    rng = np.random.default_rng(0)
    first = rng.normal(0.0, 1.0, 6000)
    table = {"x": np.where(first < 0.0, first, 3.0 * first), "y": first + rng.normal(0, 1, 6000)}
    schema = TableMixture()._infer_schema(read_typed(table), ())
    plain, rows = without_scores(schema), np.column_stack([table["x"], table["y"]])
    rows /= [column.scale for column in schema.modelled]
    scores, _ = column_choice._number_scores(plain, rows, [0, 1])
    mixture = FamilyMixture("full", 1, random_state=0).fit(scores)
    learnt = column_choice._learnt(schema, plain, mixture, scores)
    drawn = maps_of(learnt).backward(mixture.sample(100_000, 0)[0])
    for d in (0, 1):
        assert ks_2samp(rows[:, d], drawn[:, d]).statistic < 0.03
    drawn = maps_of(plain).backward(mixture.sample(100_000, 0)[0])
    assert ks_2samp(rows[:, 0], drawn[:, 0]).statistic > 0.1

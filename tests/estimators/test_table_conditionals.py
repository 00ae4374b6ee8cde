"""Conditionals and marginals of tables, against integrals and sums of the table's density."""

import numpy as np
import pytest
from table_cases import mixed_table, rows_of

import pickmix
from pickmix import TableMixture

GIVEN = {"city": ["Lyon", "Rome", None], "age": [31.0, 70.0, 48.0], "visits": 2}


@pytest.fixture(scope="module")
def table():
    return mixed_table(seed=1, gaps=0.1)


@pytest.fixture(scope="module")
def fitted(table):
    return TableMixture(3, column_transform=None, random_state=0).fit(table)


@pytest.fixture(scope="module")
def answers(fitted):
    return fitted.conditional(GIVEN)


def density(fitted, row, values):
    """exp log p(given of row, values) for a dict of n values by column, up to other columns."""
    n = len(next(iter(values.values())))
    cells = {"city": GIVEN["city"][row], "age": GIVEN["age"][row], "visits": 2}
    full = {name: np.array([None] * n, dtype=object) for name in fitted.schema_.columns}
    full |= {name: np.array([value] * n, dtype=object) for name, value in cells.items()}
    return np.exp(fitted.score_samples(full | values))


def test_what_is_asked_for_is_the_rest_in_the_order_of_the_table(answers):
    assert answers.names == ["weight", "smokes", "since"]
    assert len(answers) == 3
    assert "weight, smokes, since" in repr(answers)
    np.testing.assert_allclose(answers.weights().sum(axis=1), 1.0)


def test_moments_and_quantiles_of_numbers_by_quadrature(fitted, answers):
    grid = np.linspace(-15.0, 25.0, 4001)
    means, deviations = answers.describe()
    only = fitted.conditional(GIVEN, "weight")
    quantiles = only.quantile([0.1, 0.9])["weight"]
    for row in range(3):
        p = density(fitted, row, {"weight": grid})
        p /= p.sum()
        mean = p @ grid
        assert means["weight"][row] == pytest.approx(mean, abs=1e-8)
        assert only.mean()["weight"][row] == pytest.approx(mean, abs=1e-8)
        spread = np.sqrt(p @ np.square(grid - mean))
        assert deviations["weight"][row] == pytest.approx(spread, abs=1e-7)
        # Steps are 0.01, and sums stand for integrals up to half of one.
        reached = np.interp(quantiles[row], grid + 0.005, np.cumsum(p))
        np.testing.assert_allclose(reached, [0.1, 0.9], atol=1e-5)


def test_moments_of_dates_are_dates_and_days(fitted, answers):
    days = np.datetime64("2018-01-01") + np.arange(1800)
    for row in range(3):
        p = density(fitted, row, {"since": days})
        p /= p.sum()
        numbers = np.arange(1800.0)
        mean = p @ numbers
        found = (answers.mean()["since"][row] - days[0]) / np.timedelta64(1, "D")
        assert found == pytest.approx(mean, abs=0.5 + 1e-6)
        spread = np.sqrt(p @ np.square(numbers - mean))
        assert answers.std()["since"][row] == pytest.approx(spread, rel=1e-6)


def test_levels_by_the_rule_of_bayes(fitted, answers):
    levels, probabilities = answers.probabilities("smokes")
    for row in range(3):
        p = density(fitted, row, {"smokes": np.array(levels, dtype=object)})
        np.testing.assert_allclose(probabilities[row], p / p.sum(), rtol=1e-9)
        assert answers.mean()["smokes"][row] == levels[p.argmax()]
        assert np.isnan(answers.std()["smokes"][row])


def test_scores_are_those_of_the_whole_less_those_of_what_is_given(fitted, answers):
    asked = {
        "weight": [0.5, 6.0, 3.0],
        "smokes": [False, True, None],
        "since": np.array(["2020-01-05", "2021-02-01", "2020-07-20"], dtype="M8[D]"),
    }
    nothing = {name: [None] * 3 for name in asked}
    given = GIVEN | {"visits": [2, 2, 2]}
    whole = fitted.score_samples(given | asked)
    expected = whole - fitted.score_samples(given | nothing)
    np.testing.assert_allclose(answers.score_samples(asked), expected, rtol=1e-9)
    one = {"weight": 0.5, "smokes": True, "since": np.datetime64("2020-01-05")}
    repeated = {name: [value] * 3 for name, value in one.items()}
    np.testing.assert_array_equal(answers.score_samples(one), answers.score_samples(repeated))


def test_draws_have_the_conditional_distribution(fitted, answers):
    drawn = answers.sample(4000, random_state=0)
    assert list(drawn) == answers.names
    weight = drawn["weight"].reshape(3, 4000)
    means, deviations = answers.describe()
    errors = (weight.mean(axis=1) - means["weight"]) / (deviations["weight"] / np.sqrt(4000))
    assert (np.abs(errors) < 4.0).all()
    np.testing.assert_allclose(weight.std(axis=1), deviations["weight"], rtol=0.06)
    shares = (drawn["smokes"].reshape(3, 4000) == True).mean(axis=1)  # noqa: E712
    np.testing.assert_allclose(shares, answers.probabilities("smokes")[1][:, 1], atol=0.04)
    assert drawn["since"].dtype.kind == "M"


def test_one_of_them_is_a_mixture_of_tables(fitted, answers, tmp_path):
    asked = {"weight": [0.5], "smokes": [False], "since": ["2020-01-05"]}
    for i, alone in enumerate(answers):
        expected = answers.score_samples(asked)[i]
        np.testing.assert_allclose(alone.score_samples(asked), expected, rtol=1e-9)
        assert list(alone.sample(2, random_state=0)) == answers.names
    again = pickmix.load(pickmix.save(answers[1], tmp_path / "given.npz"))
    np.testing.assert_array_equal(again.score_samples(asked), answers[1].score_samples(asked))
    # Names that do not stand by the alphabet.
    turned = fitted.conditional(GIVEN, ["weight", "since", "smokes"])
    np.testing.assert_array_equal(turned[1].score_samples(asked), answers[1].score_samples(asked))


def test_tables_of_given_cells(fitted, answers):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(GIVEN | {"weight": np.nan, "note": "x"})
    for question in ("mean", "std", "mode"):
        found = getattr(fitted.conditional(frame), question)()
        for name, values in getattr(answers, question)().items():
            np.testing.assert_array_equal(found[name], values)
    everything = fitted.conditional({})
    assert everything.names == list(fitted.schema_.columns)
    np.testing.assert_allclose(everything.weights()[0], fitted.weights_)


def test_marginals_are_the_whole_with_gaps(fitted, table, tmp_path):
    part = fitted.marginal(["weight", "city", "age"])
    some = {name: table[name] for name in ("age", "weight", "city")}
    nothing = {name: [None] * 300 for name in ("visits", "smokes", "since")}
    expected = fitted.score_samples(some | nothing)
    np.testing.assert_allclose(part.score_samples(some), expected, rtol=1e-9)
    assert list(part.sample(3, random_state=0)) == ["weight", "city", "age"]
    assert list(part.schema_.kinds) == ["weight", "city", "age"]
    again = pickmix.load(pickmix.save(part, tmp_path / "part"))
    np.testing.assert_array_equal(again.score_samples(some), part.score_samples(some))
    # Probabilities of levels sum to one.
    levels = {"city": list(fitted.schema_["city"].levels)}
    assert np.exp(fitted.marginal("city").score_samples(levels)).sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda m: m.conditional({"town": "Lyon"}), "given names 'town'"),
        (lambda m: m.conditional({"city": "Paris"}), "must be a level that the fit has seen"),
        (lambda m: m.conditional({"city": ["Lyon", "Oslo"], "age": [1, 2, 3]}), "one value or 2"),
        (lambda m: m.conditional({"city": "Lyon"}, ["city"]), "got both for 'city'"),
        (lambda m: m.conditional({"city": "Lyon"}, "town"), "part of the model"),
        (lambda m: m.conditional(GIVEN).probabilities("weight"), "got the number 'weight'"),
        (lambda m: m.conditional(GIVEN).probabilities("city"), "column must be one of weight"),
        (lambda m: m.conditional(GIVEN).quantile(0.5), "Ask for probabilities"),
        (lambda m: m.conditional(GIVEN).score_samples({"weight": [1.0]}), "Y must have 3 row"),
        (lambda m: m.marginal([]), "at least one name"),
        (lambda m: m.marginal(["age", "age"]), "each once"),
        (
            lambda m: m.conditional(rows_of(mixed_table(5, seed=1), slice(0, 2))),
            "must leave a column to ask for",
        ),
    ],
)
def test_refused(fitted, ask, message):
    with pytest.raises(ValueError, match=message):
        ask(fitted)


def test_covariances_are_in_the_units_of_the_table():
    rng = np.random.default_rng(0)
    table = {"x": rng.normal(0.0, 30.0, 400), "y": rng.normal(0.0, 0.1, 400)}
    table["z"] = table["x"] + rng.normal(0.0, 30.0, 400)
    answers = TableMixture(2, random_state=0).fit(table).conditional({"y": [0.0, 0.1]})
    covariances, std = answers.covariance(), answers.std()
    assert answers.names == ["x", "z"]
    assert covariances[:, 0, 0] == pytest.approx(np.square(std["x"]))
    assert covariances[:, 1, 1] == pytest.approx(np.square(std["z"]))
    drawn = answers.sample(20_000, random_state=0)
    x, z = drawn["x"][:20_000], drawn["z"][:20_000]
    # The standard error of a covariance of 20,000 draws is below 2 % of the variances.
    assert covariances[0, 0, 1] == pytest.approx(np.cov(x, z)[0, 1], rel=0.08)

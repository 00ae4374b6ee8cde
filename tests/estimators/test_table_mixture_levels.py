"""Levels of a TableMixture: pools of rare ones, levels of later tables, gaps of any type."""

import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from pickmix import TableMixture


def pooled_table(n_common=40, n_rare=400, seed=0):
    """One common level, many rare ones that share a code, and a number."""
    rng = np.random.default_rng(seed)
    texts = np.array(["often"] * n_common + [f"w{i}" for i in range(n_rare)], dtype=object)
    return {"s": texts, "x": rng.normal(size=texts.shape[0])}


@pytest.fixture(scope="module")
def pooled():
    settings = {"schema": {"s": "category"}, "max_levels": 3, "random_state": 0, "max_iter": 5}
    return TableMixture(1, tol=0.0, **settings).fit(pooled_table())


def quiet(call):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return call()


def test_given_levels_of_the_pool_come_back(pooled):
    assert set(pooled.sample(50, 0, given={"s": "w318"})["s"]) == {"w318"}
    wanted = ["w3", "often", "w77", None]
    drawn = pooled.sample(4, 0, given={"s": wanted})["s"].tolist()
    assert drawn[:3] == wanted[:3]
    assert drawn[3] is not None


def test_the_most_probable_level_is_one_level_and_not_the_pool(pooled):
    levels, probabilities = pooled.predict_levels({"x": [0.0]}, "s")
    best = levels[probabilities[0].argmax()]
    assert best == "often"
    assert probabilities[0].max() < 0.5
    assert pooled.predict_columns({"x": [0.0]}, "s").tolist() == ["often"]
    answers = pooled.conditional({"x": 0.0})
    assert answers.mean()["s"].tolist() == answers.mode()["s"].tolist() == ["often"]
    assert answers[0].conditional({}).mean()["s"].tolist() == ["often"]
    for strategy in ("mean", "mode"):
        filled = pooled.impute({"x": [0.0, 1.0], "s": [None, "w3"]}, strategy)
        assert filled["s"] == ["often", "w3"]
    actual = pooled.explain({"x": [0.0], "s": ["w3"]})
    column = actual.names.index("s")
    assert actual.expected[0, column] == "often"
    np.testing.assert_allclose(actual.spread[0, column], probabilities[0].max())
    np.testing.assert_allclose(
        actual.log_conditional[0, column], np.log(probabilities[0, levels.tolist().index("w3")])
    )


def fitted(levels, n=20, **settings):
    rng = np.random.default_rng(0)
    table = {"c": levels * n, "x": rng.normal(size=len(levels) * n)}
    settings = {
        "schema": {"c": "category"},
        "max_iter": 5,
        "tol": 0.0,
        "random_state": 0,
    } | settings
    return TableMixture(1, **settings).fit(table), table


@pytest.mark.parametrize(
    ("levels", "later", "meant"),
    [
        (["1.50", "2.00", "n/s"], [1.5, 2.0], ["1.50", "2.00"]),
        (["1", "2", "x"], [1.0, np.nan], ["1", None]),
        (["1", "2", "x"], np.array([2, 1], dtype=np.int8), ["2", "1"]),
        (["TRUE", "FALSE", "maybe"], [True, False], ["TRUE", "FALSE"]),
        ([8001, 8002, 8050], ["8001", "8050"], [8001, 8050]),
        ([8001.0, 8002.0, 8050.5], ["8001", "8050.5"], [8001.0, 8050.5]),
    ],
)
def test_levels_of_other_types_are_found(levels, later, meant):
    mixture, _ = fitted(levels)
    expected = mixture.score_samples({"c": meant, "x": [0.0, 0.0]})
    actual = quiet(lambda: mixture.score_samples({"c": later, "x": [0.0, 0.0]}))
    np.testing.assert_array_equal(actual, expected)
    assert np.isclose(actual[0], np.log(1 / 3) + mixture.marginal("x").score_samples({"x": [0.0]}))


@pytest.mark.parametrize(
    ("levels", "later"),
    [(["1.50", "2.00", "n/s"], "1.50,2.00"), (["TRUE", "FALSE", "maybe"], "TRUE,FALSE")],
)
def test_cells_of_a_file_are_taken_as_they_are_written(tmp_path, levels, later):
    rows = "".join(f"{levels[i % 3]},{i % 7}.5\n" for i in range(60))
    (tmp_path / "fit.csv").write_text("c,x\n" + rows)
    first, second = later.split(",")
    (tmp_path / "later.csv").write_text(f"c,x\n{first},1.5\n{second},2.5\n,3.5\n")
    mixture = TableMixture(1, random_state=0).fit(tmp_path / "fit.csv")
    assert mixture.schema_.kinds["c"] == "category"
    expected = mixture.score_samples({"c": [first, second, None], "x": [1.5, 2.5, 3.5]})
    np.testing.assert_array_equal(
        quiet(lambda: mixture.score_samples(tmp_path / "later.csv")), expected
    )
    filled = mixture.impute(tmp_path / "later.csv")["c"].tolist()
    assert filled[:2] == [first, second]
    assert filled[2] in levels
    assert mixture.explain(tmp_path / "later.csv").values[0, 0] == first


@pytest.mark.parametrize("as_frame", [False, True])
@pytest.mark.parametrize("strategy", ["mean", "mode", "draw"])
def test_gaps_are_filled_by_levels_whatever_the_type_of_the_column(as_frame, strategy):
    mixture, table = fitted(["1", "2", "x"])
    make = pd.DataFrame if as_frame else dict
    if as_frame:
        mixture = TableMixture(**mixture.get_params()).fit(pd.DataFrame(table))
    for column, kept in [
        (np.array([np.nan, np.nan]), []),
        (np.array([1.0, np.nan]), ["1"]),
        (np.array([7.0, np.nan]), ["7.0"]),
    ]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            filled = mixture.impute(make({"c": column, "x": np.zeros(2)}), strategy)["c"]
        actual = list(filled)
        assert actual[: len(kept)] == kept
        assert set(actual[len(kept) :]) <= {"1", "2", "x"}
        assert filled.dtype in (object, "str")


def test_rows_without_weight_leave_no_trace():
    rng = np.random.default_rng(1)
    n = 60
    table = {
        "c": np.array(["a", "b"] * 30, dtype=object),
        "x": rng.normal(size=n).round(1),
        "k": np.array(["same"] * n, dtype=object),
    }
    more = {
        "c": np.append(table["c"], ["zz", "zz"]),
        "x": np.append(table["x"], [1e9 + 0.123456, -1e9]),
        "k": np.append(table["k"], ["other", "same"]),
    }
    weights = np.append(rng.uniform(0.5, 2.0, n), [0.0, 0.0])
    settings = {"n_components": 2, "random_state": 0, "max_iter": 5, "tol": 0.0}
    alone = TableMixture(**settings).fit(table, sample_weight=weights[:n])
    mixture = TableMixture(**settings).fit(more, sample_weight=weights)
    assert mixture.schema_ == alone.schema_
    np.testing.assert_array_equal(mixture.score_samples(table), alone.score_samples(table))
    levels, probabilities = mixture.predict_levels({"x": [0.0]}, "c")
    assert levels.tolist() == ["a", "b"]
    assert np.isclose(probabilities.sum(), 1.0)
    with pytest.raises(ValueError, match="sample_weight"):
        TableMixture(**settings).fit(table, sample_weight=weights)
    with pytest.raises(ValueError, match="at least one non-zero"):
        TableMixture(**settings).fit(table, sample_weight=np.zeros(n))


def test_warnings_point_at_the_line_of_the_caller():
    mixture, _ = fitted(["a", "b"])
    table = {"c": ["new"], "x": [0.0]}
    for ask in (
        lambda: mixture.score_samples(table),
        lambda: mixture.impute(table),
        lambda: mixture.explain(table),
        lambda: mixture.predict(table),
    ):
        with pytest.warns(UserWarning, match="were not in the fit") as caught:
            ask()
        assert caught[0].filename == __file__


def test_arrow_columns_get_a_type_that_holds_their_levels():
    rng = np.random.default_rng(0)
    hours = pa.array(np.arange(60) * 3_600_000_000, pa.timestamp("us", tz="Europe/Paris"))
    table = pa.table({"c": ["a", "b", "2"] * 20, "x": rng.normal(size=60), "d": hours})
    mixture = TableMixture(1, random_state=0, max_iter=5, tol=0.0).fit(table)
    for c in (pa.nulls(2), pa.array([None, 2.0]), pa.array([None, None], pa.float64())):
        for d in (pa.nulls(2), pa.array([None, None], pa.timestamp("us"))):
            filled = mixture.impute(pa.table({"c": c, "x": [0.0, 1.0], "d": d}))
            assert filled.schema.field("c").type == pa.string()
            assert set(filled["c"].to_pylist()) <= {"a", "b", "2"}
            assert filled["c"].to_pylist()[1:] == ["2"] or c.null_count == 2
            assert filled.schema.field("d").type == hours.type


def test_dates_as_levels_are_found_in_any_unit():
    days = np.array(["2024-01-01", "2024-01-02"] * 30, dtype="M8[D]")
    mixture = TableMixture(1, schema={"d": "category"}, random_state=0, max_iter=5, tol=0.0)
    mixture.fit({"d": days, "x": np.arange(60.0)})
    for value in ("2024-01-02", days[1], days[1].astype("M8[ns]")):
        assert mixture.sample(2, 0, given={"d": value})["d"].tolist() == days[[1, 1]].tolist()
    with pytest.raises(ValueError, match="must be a level"):
        mixture.sample(2, 0, given={"d": "2024-01-03"})

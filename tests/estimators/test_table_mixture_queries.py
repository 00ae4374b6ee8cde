"""Questions to a TableMixture: samples, imputation, regression and explanations in its terms."""

import numpy as np
import pytest
from scipy.stats import norm
from table_cases import mixed_table, rows_of

import pickmix
from pickmix import TableMixture

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def with_gaps():
    return mixed_table(seed=1, gaps=0.15)


@pytest.fixture(scope="module")
def fitted(with_gaps):
    return TableMixture(3, column_transform=None, random_state=0).fit(with_gaps)


@pytest.fixture(scope="module")
def frame():
    """A pandas frame with types that can hold gaps, and columns outside of the model."""
    made = pd.DataFrame(mixed_table(seed=1, gaps=0.15))
    return made.assign(
        age=made["age"].astype("Int64"),
        visits=made["visits"].astype("Int16"),
        smokes=made["smokes"].astype("boolean"),
        city=pd.Categorical(made["city"], categories=["Rome", "Bonn", "Oslo", "Lyon"]),
        note=[f"note {k}" for k in range(300)],
        unit=pd.Series(["kg", None, "kg"] * 100, dtype="string"),
        iso=made["since"].dt.strftime("%Y-%m-%d"),
        since=made["since"].dt.tz_localize("UTC"),
    ).set_index(np.arange(300) * 2)


@pytest.fixture(scope="module")
def fitted_frame(frame):
    return TableMixture(3, exclude=["note"], random_state=0).fit(frame)


def test_samples_have_the_types_and_order_of_the_table(fitted_frame, frame, tmp_path):
    loaded = pickmix.load(pickmix.save(fitted_frame, tmp_path / "m.npz"))
    for mixture in (fitted_frame, loaded):
        drawn = mixture.sample(200, random_state=0)
        expected = frame.drop(columns="note")
        assert list(drawn.columns) == list(expected.columns)
        assert drawn.dtypes.to_dict() == expected.dtypes.to_dict()
        assert (drawn["unit"] == "kg").all()
        assert set(drawn["city"]) <= {"Rome", "Oslo", "Lyon"}
        assert pd.to_datetime(drawn["iso"], format="%Y-%m-%d").notna().all()
        assert not drawn.isna().any().any()


def test_types_of_pandas_that_are_backed_by_arrow(frame):
    backed = frame.drop(columns=["note", "city"]).convert_dtypes(dtype_backend="pyarrow")
    backed["day"] = frame["since"].dt.tz_localize(None).astype("date32[day][pyarrow]")
    mixture = TableMixture(3, random_state=0).fit(backed)
    assert mixture.schema_["day"].kind == mixture.schema_["since"].kind == "date"
    assert mixture.sample(5, random_state=0).dtypes.to_dict() == backed.dtypes.to_dict()
    filled = mixture.impute(backed)
    assert filled.dtypes.to_dict() == backed.dtypes.to_dict()
    assert filled.isna().sum().sum() == 0


def test_categories_that_are_no_text_stay_what_they_are(frame):
    days = pd.Categorical(pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(300) % 3, "D"))
    days[5] = np.nan
    table = pd.DataFrame({"x": np.arange(300.0) % 3, "day": days})
    filled = TableMixture(3, random_state=0).fit(table).impute(table)
    assert filled["day"].dtype == days.dtype
    assert filled["day"][5] == pd.Timestamp("2020-01-03")


def test_samples_given_some_columns(fitted):
    drawn = fitted.sample(4000, random_state=0, given={"weight": 6.25, "city": "Rome"})
    assert (drawn["weight"] == 6.25).all()
    assert (drawn["city"] == "Rome").all()
    given = {"weight": [6.25], "city": ["Rome"]}
    with pytest.warns(UserWarning, match="lacks the columns 'since', 'smokes', 'visits'"):
        expected = fitted.predict_columns(given, "age")
    assert drawn["age"].mean() == pytest.approx(expected[0], abs=0.5)
    ages = np.array([31.0, 70.0, 50.5])
    drawn = fitted.sample(3, random_state=0, given={"age": ages})
    np.testing.assert_array_equal(drawn["age"], ages)


def test_given_columns_that_are_refused(fitted):
    with pytest.raises(ValueError, match=r"'city'.* must be a level .* got 'Bonn'"):
        fitted.sample(2, given={"city": "Bonn"})
    with pytest.raises(ValueError, match="given names 'town'"):
        fitted.sample(2, given={"town": "Rome"})
    with pytest.raises(ValueError, match="must be one value or 2, got 3"):
        fitted.sample(2, given={"age": [1, 2, 3]})


@pytest.mark.parametrize("strategy", ["mean", "mode", "draw"])
def test_imputation_fills_gaps_in_their_types_and_touches_nothing_else(
    fitted_frame, frame, strategy
):
    filled = fitted_frame.impute(frame, strategy, random_state=0)
    assert filled.dtypes.to_dict() == frame.dtypes.to_dict()
    assert filled.index.equals(frame.index)
    assert filled.isna().sum().sum() == 0
    for name in frame:
        seen = frame[name].notna()
        pd.testing.assert_series_equal(filled.loc[seen, name], frame.loc[seen, name])
    assert (filled["unit"] == "kg").all()
    assert (filled["since"].dt.normalize() == filled["since"]).all()
    assert frame["city"].isna().any(), "the table itself must stay as it was"


def test_imputation_of_files(fitted, with_gaps, tmp_path):
    pd.DataFrame(with_gaps).to_csv(tmp_path / "t.csv", index=False)
    pd.DataFrame(with_gaps).to_parquet(tmp_path / "t.parquet")
    expected = fitted.impute(with_gaps)
    from_csv = fitted.impute(tmp_path / "t.csv")
    from_parquet = fitted.impute(tmp_path / "t.parquet")
    for name, values in expected.items():
        np.testing.assert_array_equal(from_csv[name].astype(str), values.astype(str))
        assert from_parquet[name].null_count == 0
    np.testing.assert_array_equal(from_parquet["age"].to_numpy(), expected["age"])


def test_unseen_levels_stay_when_gaps_are_filled(fitted, with_gaps):
    some = rows_of(with_gaps, slice(0, 3))
    some["city"] = np.array(["Bonn", None, "Oslo"], dtype=object)
    with pytest.warns(UserWarning, match="'Bonn'"):
        filled = fitted.impute(some)
    assert filled["city"][0] == "Bonn"
    assert filled["city"][1] in ("Lyon", "Oslo", "Rome")
    assert filled["city"][2] == "Oslo"


def test_regression_of_a_single_gaussian_is_least_squares():
    rng = np.random.default_rng(0)
    x = 100.0 * rng.normal(size=4000) + 1e3
    y = 3e-3 * x + 0.2 * rng.normal(size=4000)
    mixture = TableMixture(1, column_transform=None, algorithm="em").fit({"x": x, "y": y})
    slope, intercept = np.polyfit(x, y, 1)
    new = {"x": [900.0, 1200.0]}
    mean, std, quantiles = mixture.predict_columns(new, "y", return_std=True, quantiles=[0.1, 0.5])
    expected = intercept + slope * np.array(new["x"])
    spread = np.std(y - intercept - slope * x)
    np.testing.assert_allclose(mean, expected, rtol=1e-5)
    np.testing.assert_allclose(std, spread, rtol=1e-3)
    np.testing.assert_allclose(quantiles[:, 0], expected + norm.ppf(0.1) * spread, rtol=1e-4)
    np.testing.assert_allclose(quantiles[:, 1], expected, rtol=1e-5)


def test_predicted_levels_are_ratios_of_densities(fitted, with_gaps):
    some = rows_of(with_gaps, slice(0, 30))
    levels, probabilities = fitted.predict_levels(some, "city")
    joint = np.column_stack(
        [
            fitted.score_samples({**some, "city": np.full(30, level, dtype=object)})
            for level in levels
        ]
    )
    expected = np.exp(joint - joint.max(axis=1, keepdims=True))
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(probabilities, expected, rtol=1e-6, atol=1e-12)
    best = fitted.predict_columns(some, "city")
    np.testing.assert_array_equal(best, levels[expected.argmax(axis=1)])


def test_explanations_are_differences_of_scores(fitted, with_gaps):
    some = rows_of(with_gaps, slice(0, 12))
    explanation = fitted.explain(some)
    scores = fitted.score_samples(some)
    np.testing.assert_allclose(explanation.log_density, scores, rtol=1e-9)
    assert explanation.names == tuple(some)
    for place, name in enumerate(some):
        hidden = {**some, name: [None] * 12}
        expected = scores - fitted.score_samples(hidden)
        seen = [value is not None for value in explanation.values[:, place]]
        np.testing.assert_allclose(
            explanation.log_conditional[seen, place], expected[seen], rtol=1e-6, atol=1e-9
        )
        assert np.isnan(explanation.log_conditional[np.invert(seen), place]).all()
        if name in ("age", "weight"):
            predicted = fitted.predict_columns(some, name)[seen]
            shown = explanation.expected[seen, place].astype(float)
            np.testing.assert_allclose(shown, predicted, rtol=1e-9)


def test_the_strange_cell_is_named_whatever_the_units(with_gaps):
    for factor in (1e-6, 1e6):
        table = {**with_gaps, "weight": with_gaps["weight"] * factor}
        mixture = TableMixture(3, column_transform=None, random_state=0).fit(table)
        strange = {
            "weight": [0.0, 0.1 * factor],
            "age": [30, 31],
            "visits": [1, 1],
            "smokes": [False, False],
            "city": ["Lyon", "Lyon"],
            "since": ["2021-02-04", "2020-01-03"],
        }
        explanation = mixture.explain(strange, top=2)
        assert explanation.names[explanation.ranked[0, 0]] == "since"
        assert explanation.ranked.shape == (2, 2)
        assert explanation.surprise[0, 5] > 20.0
        assert (explanation.surprise[1] < 5.0).all()
        shown = explanation.table(0).splitlines()
        assert shown[2].split()[:2] == ["since", "2021-02-04"]
        assert "days" in shown[2]
        assert explanation.to_frame()["column"].iloc[0] == "since"
        assert str(explanation).count("log p(row)") == 2

"""Questions about data frames: columns by name, frames in and out."""

import numpy as np
import pytest

from pickmix import FamilyMixture, GaussianMixture

pandas = pytest.importorskip("pandas")
NAMES = ["height", "weight", "age"]


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    base = rng.normal(size=300)
    columns = [base, 2.0 * base + 0.3 * rng.normal(size=300), rng.normal(size=300)]
    return pandas.DataFrame(dict(zip(NAMES, columns, strict=True)), index=range(100, 400))


@pytest.fixture(scope="module")
def mixture(frame):
    return GaussianMixture(2, random_state=0).fit(frame)


@pytest.fixture
def holes(frame):
    holes = frame.copy()
    holes.loc[100, "weight"] = np.nan
    holes.loc[105, ["height", "age"]] = np.nan
    return holes


def test_names_and_numbers_are_the_same(mixture, frame):
    by_name, by_number = mixture.marginal(["age", "height"]), mixture.marginal([2, 0])
    np.testing.assert_array_equal(by_name.means_, by_number.means_)
    assert list(by_name.feature_names_in_) == ["age", "height"]
    some = frame[["age", "height"]]
    expected = by_number.score_samples(some)
    np.testing.assert_array_equal(by_name.score_samples(some), expected)


def test_wrong_names_list_near_ones(mixture, frame):
    with pytest.raises(ValueError, match=r"got 'wieght'. Near ones are 'weight'"):
        mixture.marginal(["wieght"])
    with pytest.raises(ValueError, match=r"There are 'height', 'weight', 'age'"):
        mixture.conditional({"xyz": 1.0})
    with pytest.raises(ValueError, match="none named 'age'"):
        mixture.predict_columns(frame[["height"]], "weight")
    with pytest.raises(ValueError, match="got 'size'"):
        mixture.predict_columns(frame.rename(columns={"age": "size"}), "weight")


def test_given_as_dict_frame_or_array(mixture, frame):
    rows = frame.to_numpy().copy()
    rows[:, 1] = np.nan
    as_frame = mixture.conditional(frame[["age", "height"]]).mean()
    as_dict = mixture.conditional({"height": frame["height"], "age": frame["age"]}).mean()
    as_array = mixture.conditional(pandas.DataFrame(rows, columns=NAMES)).mean()
    np.testing.assert_array_equal(as_frame, as_dict)
    np.testing.assert_allclose(as_frame, as_array, rtol=1e-12, atol=1e-12)
    alone = mixture.conditional(frame[["age", "height"]])[3]
    assert list(alone.feature_names_in_) == ["weight"]
    assert mixture.conditional({"age": 1.0}).names == ["height", "weight"]


def test_missing_values_of_pandas(mixture):
    given = pandas.DataFrame({"age": pandas.array([1, None], dtype="Int64"), "height": [0.5, 0.5]})
    found = mixture.conditional(given).mean()
    expected = mixture.conditional({"age": [1.0, np.nan], "height": 0.5}).mean()
    np.testing.assert_array_equal(found, expected)
    alone = mixture.predict_columns(given, "weight")
    np.testing.assert_array_equal(alone, expected[:, 0])


def test_impute_gives_a_frame_back(mixture, frame, holes):
    before = holes.copy()
    filled = mixture.impute(holes)
    pandas.testing.assert_frame_equal(holes, before)
    assert list(filled.columns) == NAMES
    assert filled.index.equals(frame.index)
    seen = holes.notna().to_numpy()
    np.testing.assert_array_equal(filled.to_numpy()[seen], frame.to_numpy()[seen])
    with_arrays = mixture.marginal([0, 1, 2])
    del with_arrays.feature_names_in_
    expected = with_arrays.impute(holes.to_numpy())
    np.testing.assert_allclose(filled.to_numpy(), expected, rtol=1e-12, atol=1e-12)
    many = mixture.impute(holes, "draw", n_draws=3, random_state=0)
    assert [type(one) for one in many] == [pandas.DataFrame] * 3
    assert len({float(one.loc[100, "weight"]) for one in many}) == 3


def test_types_of_columns_stay():
    rng = np.random.default_rng(0)
    counts = rng.poisson(4.0, (200, 3))
    frame = pandas.DataFrame(counts, columns=NAMES)
    frame["age"] = frame["age"].astype(np.float32)
    mixture = FamilyMixture("poisson", 2, random_state=0).fit(frame)
    holes = frame.copy()
    holes["weight"] = holes["weight"].astype("Int64")
    holes.loc[3, "weight"] = pandas.NA
    holes.loc[4, "age"] = np.nan
    filled = mixture.impute(holes)
    assert filled["height"].dtype == frame["height"].dtype
    assert filled["age"].dtype == np.float32
    assert filled["weight"].dtype == np.float64
    assert filled["weight"].notna().all()
    np.testing.assert_array_equal(filled["weight"].drop(3), frame["weight"].drop(3))


def test_explanations_carry_names(mixture, holes):
    explanation = mixture.explain(holes)
    assert explanation.names == tuple(NAMES)
    assert "weight" not in explanation.table(0)
    assert set(explanation.to_frame()["column"]) == set(NAMES)


def test_polars(mixture, holes):
    polars = pytest.importorskip("polars")
    own = polars.DataFrame({name: holes[name].to_numpy() for name in NAMES})
    filled = mixture.impute(own)
    assert isinstance(filled, polars.DataFrame)
    np.testing.assert_array_equal(filled.to_numpy(), mixture.impute(holes).to_numpy())

"""Columns of a TableMixture that are not quite what they seem: long numbers, marks, lists."""

import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from pickmix import TableMixture, load, save

SETTINGS = {"n_components": 1, "random_state": 0, "max_iter": 5, "tol": 0.0}


class TestLongNumbers:
    start = 2**62

    def table(self, dtype=np.int64, start=None):
        start = self.start if start is None else start
        values = [start + 7 * i for i in range(50)]
        return {"x": np.array(values, dtype=dtype), "y": np.arange(50) + 0.25}

    @pytest.mark.parametrize(
        ("dtype", "start"),
        [(np.int64, 2**62), (np.int64, -(2**63)), (np.uint64, 2**64 - 1000), (np.int64, 2**53)],
    )
    def test_they_are_modelled_to_the_last_digit(self, dtype, start):
        table = self.table(dtype, start)
        mixture = TableMixture(**SETTINGS).fit(table)
        near = TableMixture(**SETTINGS).fit({"x": 7 * np.arange(50), "y": table["y"]})
        assert mixture.schema_["x"].kind == "integer"
        np.testing.assert_allclose(
            mixture.score_samples(table),
            near.score_samples({"x": 7 * np.arange(50), "y": table["y"]}),
        )
        drawn = mixture.sample(200, random_state=0)["x"]
        assert drawn.dtype == dtype
        distances = [int(value) - start for value in drawn.tolist()]
        assert min(distances) > -600
        assert max(distances) < 1000
        assert np.std(distances) == pytest.approx(101.0, rel=0.3)
        assert mixture.sample(2, 0, given={"x": start + 3})["x"].tolist() == [start + 3] * 2
        gaps = {"x": [start + 14, None], "y": [2.25, 10.25]}
        filled = mixture.impute(gaps)["x"]
        assert filled[0] == start + 14
        assert abs(filled[1] - (start + 70)) < 40
        expected = mixture.explain(table).expected[:, 0]
        assert expected[10] == pytest.approx(float(start), rel=1e-15, abs=2000)

    def test_what_64_bits_cannot_hold_is_refused(self, tmp_path):
        values = [10**22 + i for i in range(50)]
        (tmp_path / "long.csv").write_text("x\n" + "".join(f"{x}\n" for x in values))
        message = "'x' looks like an identifier: whole numbers such as 1000000"
        for table in ({"x": values}, tmp_path / "long.csv"):
            with pytest.raises(ValueError, match=message):
                TableMixture(**SETTINGS).fit(table)
        mixture = TableMixture(**SETTINGS, schema={"x": "category"}).fit({"x": values * 2})
        assert mixture.score_samples({"x": [values[3]]})[0] == pytest.approx(-np.log(50))


class TestStrayMarks:
    def table(self, mark="?", n=300):
        ages = [str(20 + i % 50) for i in range(n)]
        ages[17] = mark
        return {"age": ages, "x": np.arange(n) + 0.5}

    @pytest.mark.parametrize("as_frame", [False, True])
    def test_they_are_named_with_what_helps(self, as_frame):
        table = self.table()
        table = pd.DataFrame(table) if as_frame else table
        message = (
            r"'age' holds 299 numbers among 300 values, but row 17 holds '\?'.*"
            r'schema=\{"age": "number"\}.*schema=\{"age": "category"\}'
        )
        with pytest.raises(ValueError, match=message):
            TableMixture(**SETTINGS).fit(table)

    def test_a_kind_takes_them_for_missing(self):
        table = self.table()
        mixture = TableMixture(**SETTINGS, schema={"age": "integer"})
        with pytest.warns(
            UserWarning, match="1 value.s. that are no numbers, such as '\\?'"
        ) as caught:
            mixture.fit(table)
        assert caught[0].filename == __file__
        assert len(caught) == 1
        ages = [None if age == "?" else int(age) for age in table["age"]]
        clean = TableMixture(**SETTINGS, schema={"age": "integer"}).fit(table | {"age": ages})
        assert mixture.schema_["age"].missing == pytest.approx(1 / 300)
        with pytest.warns(UserWarning, match="count as missing"):
            scores = mixture.score_samples(table)
        np.testing.assert_array_equal(scores, clean.score_samples(table | {"age": ages}))
        with pytest.warns(UserWarning, match="count as missing"):
            filled = mixture.impute(table)["age"]
        assert [int(age) for age in filled] == clean.impute(table | {"age": ages})["age"]


class TestColumnsThatNoModelHas:
    def tables(self):
        x = np.arange(30) + 0.5
        lists = [[i] for i in range(30)]
        yield {"x": x, "bad": lists}
        yield {"x": x, "bad": np.ones((30, 2))}
        yield pd.DataFrame({"x": x, "bad": lists})
        yield pd.DataFrame({"x": x, "bad": pd.period_range("2020-01", periods=30, freq="M")})
        yield pa.table({"x": x, "bad": pa.array(lists)})
        yield pa.table({"x": x, "bad": pa.array(range(30), pa.time64("us"))})

    def test_the_remedies_work(self):
        for table in self.tables():
            with pytest.raises(ValueError, match="'bad' must h"):
                TableMixture(**SETTINGS).fit(table)
            for remedy in ({"schema": {"bad": "skip"}}, {"exclude": ["bad"]}):
                mixture = TableMixture(**SETTINGS, **remedy).fit(table)
                assert mixture.schema_.kinds == {"x": "number", "bad": "skip"} or (
                    mixture.schema_.kinds == {"x": "integer", "bad": "skip"}
                )
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    assert mixture.score_samples(table).shape == (30,)
                    assert mixture.impute(table) is not None

    def test_they_are_refused_where_the_model_needs_them(self):
        both = {"x": np.arange(30) + 0.5, "bad": np.arange(30) + 0.1}
        mixture = TableMixture(**SETTINGS).fit(both)
        for table in self.tables():
            with pytest.raises(ValueError, match="'bad' must h"):
                mixture.score_samples(table)


def rows_with_words():
    rng = np.random.default_rng(0)
    label = rng.integers(2, size=150)
    table = pd.DataFrame(
        {
            "age": rng.integers(18, 80, 150) + 100 * label,
            "job": np.where(label, "cook", "nurse"),
            "pay": np.round(rng.normal(30.0, 2.0, 150) + 20.0 * label, 1),
        }
    )
    gaps = rng.random((150, 3)) < 0.1
    gaps[gaps.all(axis=1), 0] = False
    return table, gaps


@pytest.mark.parametrize("source", ["file", "frame"])
def test_words_that_mean_a_gap(tmp_path, source):
    """As the same table with empty cells, in the fit, in scores and in fills."""
    table, gaps = rows_with_words()
    words = table.astype(object).mask(gaps, "?")
    words["pay"] = table["pay"].mask(gaps[:, 2], -999.0)
    empty = table.mask(gaps)
    if source == "file":
        for name, some in (("words", words), ("empty", empty)):
            some.to_csv(tmp_path / f"{name}.csv", index=False)
        words, empty = tmp_path / "words.csv", tmp_path / "empty.csv"
        options = {}
    else:
        # Texts of a data frame are levels unless a kind says otherwise.
        options = {"schema": {"age": "integer"}}
    given = {"random_state": 0, "missing_values": ["?", "-999"], **options}
    mixture = TableMixture(2, **given).fit(words)
    plain = TableMixture(2, random_state=0, **options).fit(empty)
    assert mixture.schema_.kinds == plain.schema_.kinds
    assert mixture.schema_["job"].levels == ("cook", "nurse")
    np.testing.assert_allclose(mixture.score_samples(words), plain.score_samples(empty))
    np.testing.assert_allclose(mixture.score_samples(empty), plain.score_samples(empty))
    filled, expected = pd.DataFrame(mixture.impute(words)), pd.DataFrame(plain.impute(empty))
    assert not filled.isin(["?", -999.0]).any(axis=None)
    np.testing.assert_allclose(filled["age"].astype(float), expected["age"].astype(float))
    assert (filled["job"] == expected["job"]).all()
    save(mixture, tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.score_samples(words), mixture.score_samples(words))


def test_words_leave_texts_with_leading_zeros_alone():
    zips = {"zip": ["01234", "?", "02345", "01234"] * 20, "x": np.arange(80.0) % 7}
    mixture = TableMixture(1, random_state=0, missing_values=["?"]).fit(zips)
    assert mixture.schema_["zip"].levels == ("01234", "02345")


@pytest.mark.parametrize("words", ["?", [1, 2], None])
def test_words_must_be_a_list_of_texts(words):
    with pytest.raises(ValueError, match="missing_values must be a list of texts"):
        TableMixture(1, missing_values=words).fit({"x": [1.0, 2.0, 4.0]})


def rows_with_answers(kind):
    """Whether there was a second offence: its charge is missing where there was none."""
    rng = np.random.default_rng(0)
    again = rng.random(300) < 0.4
    charge = np.where(again, np.where(rng.random(300) < 0.7, "theft", "fraud"), None)
    table = {"again": np.where(again, "yes", "no"), "charge": charge, "x": rng.normal(size=300)}
    if kind == "dict":
        return {"again": list(table["again"]), "charge": list(charge), "x": table["x"]}
    frame = pd.DataFrame(table)
    if kind == "categorical":
        frame["charge"] = frame["charge"].astype("category")
    return pa.Table.from_pandas(frame) if kind == "pyarrow" else frame


@pytest.mark.parametrize("kind", ["categorical", "pyarrow", "dict"])
def test_gaps_that_are_answers(tmp_path, kind):
    table = rows_with_answers(kind)
    mixture = TableMixture(2, random_state=0, gap_levels=["charge"]).fit(table)
    column = mixture.schema_["charge"]
    assert column.levels == ("fraud", "theft", None)
    assert "(gap)" in str(mixture.schema_)
    # The probability of a row is that of its answers, a gap among them.
    frame = pd.DataFrame(rows_with_answers("pandas"))
    whole = TableMixture(2, random_state=0).fit(frame.fillna({"charge": "zero"}))
    np.testing.assert_allclose(
        mixture.score_samples(table), whole.score_samples(frame.fillna({"charge": "zero"}))
    )
    # Draws have the gaps where they belong, and fills keep them.
    drawn = mixture.sample(3000, random_state=0)
    drawn = drawn.to_pandas() if kind == "pyarrow" else pd.DataFrame(drawn)
    assert drawn["charge"].isna().mean() == pytest.approx(frame["charge"].isna().mean(), abs=0.04)
    assert (drawn["charge"].isna() == (drawn["again"] == "no")).mean() > 0.98
    filled = mixture.impute(table)
    filled = filled.to_pandas() if kind == "pyarrow" else pd.DataFrame(filled)
    assert (filled["charge"].isna() == frame["charge"].isna()).all()
    # A gap may be what is expected, and what is not.
    expected = mixture.predict_columns({"again": ["no", "yes"], "x": [0.0, 0.0]}, "charge")
    assert list(map(str, expected)) in (["None", "theft"], ["nan", "theft"])
    strange = frame.iloc[[int(np.flatnonzero(frame["again"] == "yes")[0])]].assign(charge=None)
    assert mixture.explain(strange, top=1).table(0).split("\n")[2].split()[0] in ("charge", "again")
    save(mixture, tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.score_samples(table), mixture.score_samples(table))


def test_a_level_beside_gaps_is_no_constant():
    table = {"phone": ["yes", None, None, "yes"] * 20, "x": np.arange(80.0) % 7}
    mixture = TableMixture(1, random_state=0, gap_levels=["phone"]).fit(table)
    assert mixture.schema_["phone"].levels == ("yes", None)
    probabilities = np.exp(mixture.marginal(["phone"]).score_samples({"phone": ["yes", None]}))
    np.testing.assert_allclose(probabilities, 0.5, atol=0.01)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["x"], "must be a category of texts"),
        (["y"], "gap_levels names the column 'y'"),
        ("charge", "gap_levels must be a list of texts"),
    ],
)
def test_gap_levels_are_of_texts(names, message):
    table = pd.DataFrame(rows_with_answers("pandas"))
    table.loc[::9, "x"] = np.nan
    with pytest.raises(ValueError, match=message):
        TableMixture(1, gap_levels=names).fit(table)


def test_a_step_decides_the_floor_of_numbers_as_they_are():
    """Ties are a hundred thousandth of the spread apart: narrow components are found."""
    rng = np.random.default_rng(0)
    x = np.where(rng.random(2000) < 0.9, rng.integers(0, 3, 2000), rng.integers(0, 300_000, 2000))
    mixture = TableMixture(4, random_state=0, column_transform=None).fit({"x": x})
    scale = mixture.schema_["x"].scale
    floor = 1.0 / 12.0 / scale**2
    assert floor < 1e-9
    (name,) = [name for name in mixture.parameters_ if name.endswith("covariances")]
    variances = mixture.parameters_[name].ravel()
    assert floor <= variances.min() < 1e-9

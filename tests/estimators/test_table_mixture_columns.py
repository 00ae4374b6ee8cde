"""Columns of a TableMixture that are not quite what they seem: long numbers, marks, lists."""

import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from pickmix import TableMixture

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

"""Schemas: what is inferred, overridden and refused, and what encoding makes of later tables."""

import ast
import copy
import json
import re

import numpy as np
import pytest

from pickmix.inputs.encoding import decode, encode
from pickmix.inputs.errors import InputError
from pickmix.inputs.frames import read_typed
from pickmix.inputs.inference import infer_schema
from pickmix.inputs.schema import TableSchema

PENGUINS = """\
species,island,bill_length_mm,bill_depth_mm,flipper_length_mm,body_mass_g,sex,year
Adelie,Torgersen,39.1,18.7,181,3750,male,2007
Adelie,Torgersen,39.5,17.4,186,3800,female,2007
Adelie,Torgersen,40.3,18,195,3250,female,2007
Adelie,Torgersen,NA,NA,NA,NA,NA,2007
Adelie,Biscoe,37.8,18.3,174,3400,female,2008
Gentoo,Biscoe,46.1,13.2,211,4500,female,2008
Gentoo,Biscoe,50,16.3,230,5700,male,2009
Gentoo,Biscoe,48.7,14.1,210,4450,female,2009
Chinstrap,Dream,46.5,17.9,192,3500,female,2007
Chinstrap,Dream,50,19.5,196,3925,male,2008
"""


def infer(table, *args, **settings):
    return infer_schema(read_typed(table), *args, **settings)


def test_schema_of_penguins(tmp_path):
    path = tmp_path / "penguins.csv"
    path.write_text(PENGUINS)
    schema = infer(path)
    assert str(schema) == (
        "column             kind      levels or range            step  missing\n"
        "species            category  Adelie, Chinstrap, Gentoo           0.0%\n"
        "island             category  Biscoe, Dream, Torgersen            0.0%\n"
        "bill_length_mm     integer   37.8 to 50                  0.1    10.0%\n"
        "bill_depth_mm      integer   13.2 to 19.5                0.1    10.0%\n"
        "flipper_length_mm  integer   174 to 230                    1    10.0%\n"
        "body_mass_g        integer   3250 to 5700                 25    10.0%\n"
        "sex                category  female, male                       10.0%\n"
        "year               integer   2007 to 2009                  1     0.0%"
    )
    masses = np.array([3750, 3800, 3250, 3400, 4500, 5700, 4450, 3500, 3925])
    np.testing.assert_allclose(schema["body_mass_g"].scale, masses.std(), rtol=1e-14)


def saved_schema():
    """A schema with a column of every kind, as JSON gives it back."""
    rng = np.random.default_rng(0)
    table = {
        "x": rng.normal(size=40),
        "n": rng.integers(0, 9, 40) + 100,
        "k": rng.poisson(2.0, 40),
        "flag": rng.random(40) < 0.5,
        "city": rng.choice(["Lyon", "Oslo", "Rome"], 40),
        "day": np.datetime64("2020-01-01") + rng.integers(0, 99, 40),
        "unit": ["kg"] * 40,
        "note": [f"note {k}" for k in range(40)],
    }
    return json.loads(json.dumps(infer(table, exclude=["note"], max_levels=2).as_dict()))


SAVED = saved_schema()


def test_a_schema_goes_through_json():
    assert json.loads(json.dumps(TableSchema.from_dict(SAVED).as_dict())) == SAVED


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("name", [None, 5]),
        ("kind", [None, -1, "float", ["number"]]),
        ("storage", [None, 3, "colour"]),
        ("form", [None, []]),
        ("levels", [None, 7, "ab", ["extra"] * 9]),
        ("codes", [None, "01", [0.5], [-1], [7], [[0]], [0] * 9]),
        ("shares", [None, 1.0, ["a"], [2.0], [float("nan")], [0.5] * 9]),
        ("scale", [None, "1", 0.0, -1.0, float("inf"), True, 10**30]),
        ("whole", [None, 1]),
        ("multiple", [None, 1.5]),
        ("decimals", [None, "2"]),
        ("unit", [None, 5, "fortnight"]),
        ("origin", [None, 10**30, 0.5]),
        ("lenient", [None, 0]),
    ],
)
@pytest.mark.parametrize("column", range(8))
def test_a_damaged_schema_is_refused_by_field(column, field, values):
    # Levels, codes and shares belong together: an error may name another of them.
    fields = "levels|codes|shares" if field in ("levels", "codes", "shares") else field
    for value in values:
        saved = copy.deepcopy(SAVED)
        saved["columns"][column][field] = value
        with pytest.raises(InputError, match=rf"for '({fields})'") as caught:
            TableSchema.from_dict(saved)
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize("level", [None, 7, []])
def test_levels_of_texts_are_texts(level):
    saved = copy.deepcopy(SAVED)
    city = next(column for column in saved["columns"] if column["name"] == "city")
    city["levels"][0] = level
    with pytest.raises(InputError, match="expected texts for 'levels of texts'"):
        TableSchema.from_dict(saved)


@pytest.mark.parametrize(
    "damage",
    [
        {"origin": None},
        {"origin": "excel"},
        {"columns": None},
        {"columns": []},
        {"columns": [5]},
        {"columns": SAVED["columns"] * 2},
        {"columns": SAVED["columns"][-2:]},
    ],
)
def test_a_damaged_table_schema_is_refused(damage):
    with pytest.raises(InputError, match="must be as it was fitted"):
        TableSchema.from_dict(SAVED | damage)


def test_overrides():
    rng = np.random.default_rng(0)
    table = {
        "zip": rng.integers(10_000, 10_005, 40),
        "visits": rng.poisson(2.0, 40),
        "size": ["1.5", "2", "30"] * 13 + [None],
        "rounded": np.arange(40.0),
        "note": [f"note {k}" for k in range(40)],
        "truth": ["yes", "no"] * 20,
    }
    kinds = {"zip": "category", "visits": "integer", "size": "number", "note": "skip"}
    kinds |= {"rounded": "number"}
    schema = infer(table, kinds)
    assert schema.kinds == kinds | {"truth": "category"}
    assert schema["zip"].levels == (10_000, 10_001, 10_002, 10_003, 10_004)
    assert schema["rounded"].step is None
    assert schema["visits"].step == 1.0
    rows, _ = encode(schema, read_typed(table))
    place = [column.name for column in schema.modelled].index("size")
    np.testing.assert_allclose(rows[:3, place] * schema["size"].scale, [1.5, 2.0, 30.0])
    again = decode(schema, np.nan_to_num(rows))
    assert "note" not in again.columns
    np.testing.assert_array_equal(again.columns["zip"].values, table["zip"])


def test_identifiers_are_refused_with_a_remedy():
    names, x = [f"person {k}" for k in range(30)], np.arange(30)
    with pytest.raises(ValueError, match=r"'name' looks like an identifier: 30 .* in 30 rows"):
        infer({"name": names, "x": x})
    with pytest.raises(ValueError, match=r'exclude=\["name"\] or schema=\{"name": "skip"\}'):
        infer({"name": names[:25] + names[:5], "x": x})
    with pytest.raises(InputError, match=r"Are texts such as '1\.000,50' numbers\?"):
        infer({"price": [f"1.{k:03},50" for k in range(30)], "x": x})
    assert infer({"name": names, "x": x}, exclude=["name"]).kinds["name"] == "skip"
    assert len(infer({"name": names, "x": x}, {"name": "category"})["name"].levels) == 30
    # Each value several times: a category.
    assert infer({"name": names * 3})["name"].kind == "category"


def test_rare_levels_share_a_code_and_their_shares_are_those_of_the_table():
    texts = ["a"] * 50 + ["b"] * 30 + ["c"] * 6 + ["d"] * 3 + ["e"]
    typed = read_typed({"t": texts})
    schema = infer_schema(typed, max_levels=3)
    column = schema["t"]
    assert column.codes == (0, 1, 2, 2, 2)
    np.testing.assert_allclose(column.shares, [1.0, 1.0, 0.6, 0.3, 0.1])
    _, log_units = encode(schema, typed)
    np.testing.assert_allclose(log_units[[0, 50, 80, 86, 89], 0], np.log(column.shares))
    # Without draws the most frequent one stands for them; draws have their shares.
    usual = decode(schema, np.array([[2.0]])).columns["t"]
    assert usual.levels[usual.values[0]] == "c"
    drawn = decode(schema, np.full((20_000, 1), 2.0), random=np.random.default_rng(0))
    counts = np.bincount(drawn.columns["t"].values, minlength=5)
    np.testing.assert_allclose(counts / 20_000, [0.0, 0.0, 0.6, 0.3, 0.1], atol=0.015)


@pytest.mark.parametrize(
    ("table", "kinds", "message"),
    [
        ({"a": []}, {}, "must have rows"),
        ({"a": [None, None], "b": [1, 2]}, {}, "'a' has no value in any row"),
        ({"a": [1.0, np.inf]}, {}, "'a' must hold finite numbers, but row 1 holds inf"),
        ({"a": [3, 3]}, {}, "must have a column to fit, got only 'a' \\(constant\\)"),
        ({"a": [1, 2]}, {"a": "skip"}, "got only 'a' \\(skip\\)"),
        ({"a": [1, "x", 2]}, {}, "'a' mixes number and text"),
        ({"a": [1, 2]}, {"b": "number"}, "schema names the column 'b'"),
        ({"a": [1, 2]}, {"a": "float"}, 'schema\\["a"\\] must be one of number, integer'),
        ({"a": ["x", "y"]}, {"a": "number"}, "'a' must hold numbers, but row 0 holds 'x'"),
        ({"a": [1, -2]}, {"a": "count"}, "'a' must hold whole numbers .* row 1 holds -2"),
        ({"a": [1.5, 2]}, {"a": "count"}, "row 0 holds 1.5"),
        ({"a": [0, 1, 2]}, {"a": "boolean"}, "'a' must hold true and false, .* row 2 holds 2"),
        ({"a": ["2020-01-01", "x"]}, {"a": "date"}, "'a' must hold dates.* row 1 holds 'x'"),
        ({"a": [1, 2]}, {"a": "date"}, "'a' must hold dates.* row 0 holds 1"),
        ({"a": [0.1, np.pi]}, {"a": "integer"}, "no multiples of a decimal step"),
        ({"a": [1, 2]}, {"a": "constant"}, "several values"),
    ],
)
def test_what_is_refused(table, kinds, message):
    with pytest.raises(ValueError, match=message):
        infer(table, kinds)


@pytest.mark.parametrize("name", ['"q"', "two\nlines", "back\\slash", "it's", "a{b}"])
def test_advice_is_valid_python(name):
    texts = [f"person {k}" for k in range(30)]
    with pytest.raises(InputError, match="looks like an identifier") as caught:
        infer({name: texts, "x": np.arange(30)})
    settings = re.search(r"exclude=(\[.*?\]) or schema=(\{.*?\})\. If", str(caught.value), re.S)
    assert ast.literal_eval(settings[1]) == [name]
    assert ast.literal_eval(settings[2]) == {name: "skip"}


def test_messages_stay_short():
    wide = {f"column {k}": [1, 1] for k in range(3000)}
    long = {"n" * 10**6: ["x" * 10**6, "y" * 10**6, 3]}
    cases = [
        (wide, {}),
        (wide, {"other": "number"}),
        (long, {}),
        (long, {next(iter(long)): "number"}),
        ({"a": [[0] * 10**6, 1]}, {}),
    ]
    for table, kinds in cases:
        with pytest.raises(ValueError) as caught:
            infer(table, kinds)
        assert len(str(caught.value)) < 600


def later(table, again):
    return encode(infer(table), read_typed(again))[0]


def test_unseen_levels_count_as_missing_and_are_counted():
    table = {"x": [1.0, 2.0, 4.0], "city": ["Oslo", "Lyon", "Oslo"]}
    with pytest.warns(UserWarning, match="'city' .* not in the fit: 'Rome'. Their 2 cell"):
        rows = later(table, {"x": [1.0, 2.0, 4.0], "city": ["Rome", "Rome", "Lyon"]})
    np.testing.assert_array_equal(rows[:, 0], [np.nan, np.nan, 0.0])
    # Numbers that were 0 and 1 only.
    with pytest.warns(UserWarning, match=r"'n' .* not in the fit: 2. Their 1 cell"):
        rows = later({"n": [0, 1, 1]}, {"n": [1.0, 2.0, None]})
    np.testing.assert_array_equal(rows[:, 0], [1.0, np.nan, np.nan])


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("x", ["3"], None),
        ("x", ["much"], "'x' must hold numbers, but row 0 holds 'much'"),
        ("x", [np.inf], "'x' must hold finite numbers, but row 0 holds inf"),
        ("x", np.array([1], "M8[D]"), "'x' must hold numbers, but row 0 holds '1970-01-02"),
        ("n", [2], r"'n' must hold true and false, .* row 0 holds 2"),
        ("d", [7.0], r"'d' must hold dates.* row 0 holds 7.0"),
    ],
)
def test_values_of_another_kind_are_refused_by_column_row_and_value(name, values, message):
    table = {"x": [1.0, 2.0, 4.0], "n": [False, True, True], "d": np.array([1, 2, 9], "M8[D]")}
    again = {"x": [1.0], "n": [1], "d": np.array([4], "M8[D]")} | {name: values}
    if message is None:
        later(table, again)
        return
    with pytest.raises(ValueError, match=message):
        later(table, again)


def test_other_types_of_the_same_values_are_taken():
    table = {"x": [1.0, 2.0, 4.0], "flag": [0, 1, 1], "d": np.array([1, 2, 9], "M8[D]")}
    table["zip"] = ["1", "2", "1"]
    same = {
        "x": ["1", "2.0", "4e0"],
        "flag": [False, True, True],
        "d": ["1970-01-02", "1970-01-03", "1970-01-10"],
        "zip": [1, 2, 1],
    }
    np.testing.assert_array_equal(later(table, same), later(table, table))
    fine = table["d"].astype("M8[ns]") + np.timedelta64(6, "h")
    shifted = later(table, {**table, "d": fine})
    scale = infer(table)["d"].scale
    np.testing.assert_allclose((shifted - later(table, table))[:, 0] * scale, 0.25, rtol=1e-12)


def test_a_constant_that_changes_is_warned_of():
    table = {"x": [1.0, 2.0, 4.0], "unit": ["mm"] * 3}
    with pytest.warns(UserWarning, match=r"'unit' was constant in the fit \('mm'\).* 1 row"):
        later(table, {"x": [1.0, 2.0, 4.0], "unit": ["mm", "cm", None]})
    with pytest.warns(UserWarning, match="'k' was constant in the fit"):
        later({"x": [1.0, 2.0], "k": [5, 5]}, {"x": [1.0, 2.0], "k": [5, 6]})

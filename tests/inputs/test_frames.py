"""Tables of pandas, polars, pyarrow, dicts, CSV and Parquet as typed columns, and back."""

import dataclasses
import datetime
import gzip
import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
import pytest

from pickmix.inputs.columns import TypedColumn, TypedTable
from pickmix.inputs.encoding import decode, encode, filled_column
from pickmix.inputs.frames import read_typed, replace_columns, write_typed
from pickmix.inputs.inference import infer_schema
from pickmix.inputs.schema import TableSchema
from pickmix.inputs.text import read_text

N = 60


def every_kind(seed=0):
    """A pandas frame with a column of every kind and type."""
    rng = np.random.default_rng(seed)
    days = rng.integers(0, 900, N)
    return pd.DataFrame(
        {
            "number": rng.normal(size=N) * 1e3,
            "single": rng.normal(size=N).astype(np.float32),
            "whole": rng.integers(-50, 50, N),
            "byte": rng.integers(0, 200, N).astype(np.uint8),
            "tenths": np.round(rng.gamma(2.0, 3.0, N), 1),
            "nullable": pd.array(rng.integers(20, 90, N), dtype="Int64"),
            "count": rng.poisson(2.0, N),
            "flag": rng.random(N) < 0.5,
            "nullable flag": pd.array(rng.random(N) < 0.5, dtype="boolean"),
            "zero or one": rng.integers(0, 2, N),
            "text": rng.choice(["u", "v", "w"], N),
            "ordered": pd.Categorical(
                rng.choice(["lo", "hi"], N), categories=["lo", "mid", "hi"], ordered=True
            ),
            "day": pd.to_datetime("2020-01-01") + pd.to_timedelta(days, "D"),
            "zoned": pd.to_datetime("2020-01-01").tz_localize("Europe/Oslo")
            + pd.to_timedelta(rng.integers(0, 90_000, N), "s"),
            "iso": [str(np.datetime64("2021-01-01") + k) for k in days],
            "clock": [f"2021-01-01 {k % 24:02d}:{k % 60:02d}" for k in days],
            "duration": pd.to_timedelta(rng.integers(0, 900, N), "h"),
            "dates": [datetime.date(2020, 1, 1) + datetime.timedelta(int(k)) for k in days],
            "same": 7,
            "same text": "x",
            "same day": pd.Timestamp("2020-05-05"),
        }
    )


KINDS = ["number"] * 2 + ["integer"] * 4 + ["count"] + ["boolean"] * 3 + ["category"] * 2
KINDS = dict(zip(every_kind(), KINDS + ["date"] * 6 + ["constant"] * 3, strict=True))


def round_trip(table):
    typed = read_typed(table)
    schema = infer_schema(typed)
    rows, _ = encode(schema, typed)
    assert not np.isnan(rows).any()
    return schema, write_typed(decode(schema, rows))


def test_pandas_round_trip_is_exact():
    frame = every_kind()
    schema, again = round_trip(frame)
    assert schema.kinds == KINDS
    # Numbers without a step are divided by their scale and multiplied again.
    np.testing.assert_array_max_ulp(again["number"].to_numpy(), frame["number"].to_numpy(), 1)
    again["number"] = frame["number"]
    pd.testing.assert_frame_equal(again, frame)


def gappy():
    """An Arrow table with a gap in every column, of all types that frames have."""
    rng = np.random.default_rng(2)
    stamps = np.datetime64("2020-01-01", "us") + rng.integers(0, 9 * 10**13, N).astype("m8[us]")
    level = rng.choice(["lo", "mid", "hi"], N)
    enum = pa.DictionaryArray.from_arrays(
        pa.array(np.searchsorted(["hi", "lo", "mid"], level), pa.uint8()),
        ["hi", "lo", "mid"],
        ordered=True,
    )
    table = {
        "number": pa.array(rng.normal(size=N)),
        "single": pa.array(rng.normal(size=N).astype(np.float32)),
        "byte": pa.array(rng.integers(-100, 100, N), pa.int8()),
        "large": pa.array((2**64 - 1 - rng.integers(0, 500, N).astype(np.uint64)), pa.uint64()),
        "flag": pa.array(rng.random(N) < 0.5),
        "text": pa.array(level),
        "category": pa.array(level).dictionary_encode(),
        "enum": enum,
        "day": pa.array(stamps.astype("M8[D]")),
        "naive": pa.array(stamps, pa.timestamp("ms"), safe=False),
        "zoned": pa.array(stamps, pa.timestamp("us")).cast(pa.timestamp("us", "Europe/Oslo")),
        "span": pa.array(rng.integers(0, 900, N) * 10**6, pa.int64()).cast(pa.duration("us")),
        "money": pa.array(rng.integers(0, 10**5, N) / 100).cast(pa.decimal128(12, 2), safe=False),
    }
    known = pa.array(np.arange(N) % 9 != 4)
    return pa.table({n: pa.compute.if_else(known, values, None) for n, values in table.items()})


def gappy_frames():
    arrow = gappy()
    nullable = {pa.int8(): pd.Int8Dtype(), pa.uint64(): pd.UInt64Dtype(), pa.bool_(): "boolean"}
    return {
        "pyarrow": arrow,
        "polars": pl.from_arrow(arrow),
        "pandas of Arrow": arrow.to_pandas(types_mapper=pd.ArrowDtype),
        "pandas": arrow.to_pandas(
            types_mapper=lambda kind: (
                pd.api.types.pandas_dtype(nullable[kind]) if kind in nullable else None
            )
        ),
    }


def types_of(frame):
    if isinstance(frame, pd.DataFrame):
        return dict(frame.dtypes)
    return dict(frame.schema) if isinstance(frame, pl.DataFrame) else frame.schema


@pytest.mark.parametrize("library", ["pyarrow", "polars", "pandas of Arrow", "pandas"])
def test_frames_of_all_libraries_give_the_same_rows_and_get_their_types_back(library):
    expected = read_typed(gappy())
    frame = gappy_frames()[library]
    typed = read_typed(frame)
    schema = infer_schema(typed, {"money": "number"})
    rows, log_units = encode(schema, typed)
    again, units = encode(infer_schema(expected, {"money": "number"}), expected)
    np.testing.assert_array_equal(rows, again)
    np.testing.assert_array_equal(log_units, units)
    # The schema of a saved model makes a table of the same types.
    loaded = TableSchema.from_dict(json.loads(json.dumps(schema.as_dict())))
    assert loaded == schema
    whole = rows[~np.isnan(rows).any(axis=1)]
    decoded = write_typed(decode(loaded, whole))
    assert types_of(decoded) == types_of(frame)
    # Filled columns keep their types and the values that were there.
    columns = {
        column.name: filled_column(column, typed.columns[column.name], np.zeros(N))
        for column in schema.modelled
    }
    filled = replace_columns(frame, typed.origin, columns)
    assert types_of(filled) == types_of(frame)
    known = np.arange(N) % 9 != 4
    for name, column in read_typed(filled).columns.items():
        assert not column.missing.any()
        before = typed.columns[name]
        assert [column.value(r) for r in np.flatnonzero(known)] == [
            before.value(r) for r in np.flatnonzero(known)
        ], name


def plain_table():
    """Columns that a CSV file can hold, as lists with None for gaps."""
    rng = np.random.default_rng(1)
    hole = rng.random((N, 6)) < 0.15
    columns = {
        "x": rng.normal(size=N).tolist(),
        "age": rng.integers(18, 90, N).tolist(),
        "price": np.round(rng.gamma(2.0, 30.0, N), 2).tolist(),
        "city": rng.choice(["Lyon", "Oslo", "São Paulo, SP"], N).tolist(),
        "seen": (np.datetime64("2020-01-01") + rng.integers(0, 500, N)).astype(str).tolist(),
        "ok": (rng.random(N) < 0.5).tolist(),
    }
    return {
        name: [None if hole[i, j] else value for i, value in enumerate(values)]
        for j, (name, values) in enumerate(columns.items())
    }


def write_csv(path, table, delimiter=",", missing=""):
    opened = gzip.open if path.suffix == ".gz" else open
    quoted = '"{}"' if delimiter == "," else "{}"
    with opened(path, "wt", encoding="utf-8") as file:
        file.write(delimiter.join(table) + "\n")
        for row in zip(*table.values(), strict=True):
            cells = [missing if v is None else repr(v) if v is not str(v) else v for v in row]
            file.write(delimiter.join(quoted.format(c) if "," in c else c for c in cells) + "\n")
    return path


def test_all_kinds_of_tables_give_the_same_rows(tmp_path):
    table = plain_table()
    frame = pd.DataFrame(table)
    arrow = pa.table(table)
    pa.parquet.write_table(arrow, tmp_path / "t.parquet")
    sources = {
        "dict": table,
        "pandas": frame,
        "better types": frame.convert_dtypes().assign(city=frame["city"].astype("category")),
        "pyarrow": arrow,
        "batch": arrow.to_batches()[0],
        "dictionary": arrow.set_column(3, "city", arrow["city"].dictionary_encode()),
        "parquet": tmp_path / "t.parquet",
        "csv": write_csv(tmp_path / "t.csv", table),
        "csv with NA": str(write_csv(tmp_path / "na.csv", table, missing="NA")),
        "gz": write_csv(tmp_path / "t.csv.gz", table, missing="null"),
        "tsv": write_csv(tmp_path / "t.tsv", table, "\t"),
        "semicolons": write_csv(tmp_path / "s.csv", table, ";"),
        "other order": {name: table[name] for name in reversed(table)},
    }
    expected = None
    for name, source in sources.items():
        typed = read_typed(source)
        schema = infer_schema(typed)
        rows, log_units = encode(schema, typed)
        if expected is None:
            expected = rows, log_units
            kinds = ["number", "integer", "integer", "category", "date", "boolean"]
            assert list(schema.kinds.values()) == kinds
            holes = np.array([[v is None for v in table[c]] for c in sorted(table)]).T
            np.testing.assert_array_equal(np.isnan(rows), holes)
        np.testing.assert_array_equal(rows, expected[0], err_msg=name)
        np.testing.assert_array_equal(log_units, expected[1], err_msg=name)


@pytest.mark.parametrize(
    "values",
    [
        [1.5, None, float("nan"), 2.0],
        np.array([1.5, np.nan, np.nan, 2.0], dtype=np.float32),
        np.ma.array([1.5, 0.0, 0.0, 2.0], mask=[0, 1, 1, 0]),
        np.array(["a", None, "", "b"], dtype=object),
        np.array(["a", "", "", "b"]),
        np.array(["2020-01-01", "NaT", "NaT", "2020-01-02"], dtype="M8[D]"),
        [True, None, None, False],
        pd.Series([1, pd.NA, None, 2], dtype="Int64"),
        pd.Series([pd.Timestamp("2020-01-01"), pd.NaT, None, pd.Timestamp("2021-01-01")]),
        pd.Series(["a", None, np.nan, "b"], dtype="category"),
        pd.Series([1, pd.NA, None, 2], dtype=object),
        [datetime.date(2020, 1, 1), None, None, datetime.date(2020, 1, 2)],
    ],
)
def test_what_counts_as_missing(values):
    table = pd.DataFrame({"a": values}) if isinstance(values, pd.Series) else {"a": values}
    column = read_typed(table).columns["a"]
    assert column.missing.tolist() == [False, True, True, False]


def test_csv_keeps_leading_zeros_as_text(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("zip,n,mixed\n01234,1,1\n99999,20,x\n01234,-3,2.5\n")
    columns = read_typed(path).columns
    assert columns["zip"].levels.tolist() == ["01234", "99999"]
    assert columns["n"].values.tolist() == [1, 20, -3]
    assert columns["n"].values.dtype == np.int64
    assert columns["mixed"].storage == "text"


def test_a_text_is_read_by_the_rules_of_tables_of_numbers(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("# of 2019, by hand\nsize;city;n\n1,5;Lyon, FR;1\nNA;;2\n-2,25e1;Oslo;nan\n")
    columns = read_typed(path).columns
    np.testing.assert_array_equal(columns["size"].values[[0, 2]], [1.5, -22.5])
    assert columns["size"].missing.tolist() == [False, True, False]
    assert [columns["city"].value(row) for row in range(3)] == ["Lyon, FR", None, "Oslo"]
    assert columns["n"].values[:2].tolist() == [1, 2]
    # Where decimal commas are asked for, a number with a point is text.
    path.write_text("a;b\n1,5;1,5\n2,5;2.5\n1,5;x\n")
    columns = read_text(path, ",").columns
    assert (columns["a"].storage, columns["b"].storage) == ("number", "text")
    assert columns["b"].value(0) == "1,5"
    # Both marks occur: which one is decimal cannot be found.
    assert read_typed(path).columns["a"].storage == "text"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "must have columns"),
        ({"a": [1, 2], "b": [1]}, "one length"),
        ({"a": [[1], [2]]}, "row 0 holds \\[1\\]"),
        ({"a": np.ones((2, 2))}, "one dimension"),
        ({"a": np.ones(2, dtype=complex)}, "got complex128"),
        ({1: [1, 2]}, "must be text, got 1"),
        ({"a": "text"}, "must be an array or a list"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "'a' stands there twice"),
        (pa.table([[1], [2]], names=["a", "a"]), "'a' stands there twice"),
        (pa.table({"a": [[1, 2], [3]]}), "'a' must hold numbers"),
        (pd.DataFrame({"a": pd.period_range("2020-01", periods=2, freq="M")}), "period"),
        (pd.DataFrame([[1, 2]]), "must be text, got 0"),
        (pd.DataFrame({"a": pd.interval_range(0, 2)}), r"got interval\S+ right\]. Leave it out"),
        (pd.DataFrame({"a": [1j, 2j]}), r"got complex128. Leave it out: exclude="),
        (pl.DataFrame({"a": [[1], [2]]}), "must hold numbers, booleans, text or times, got List"),
        (pl.DataFrame({"a": [datetime.time(1), datetime.time(2)]}), "got Time"),
    ],
)
def test_tables_that_are_refused(table, message):
    with pytest.raises(ValueError, match=message):
        infer_schema(read_typed(table))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", "a,b\n1,2\n3\n", "expected 2 columns, got 1 in line 3"),
        ("t.csv", "", "got an empty file"),
        ("t.xls", "", r"ends in \.csv"),
        ("t.parquet", "no", "Parquet"),
    ],
)
def test_files_that_are_refused(tmp_path, name, content, message):
    with pytest.raises(FileNotFoundError, match="found nothing there"):
        read_typed(tmp_path / name)
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        read_typed(tmp_path / name)
    with pytest.raises(TypeError, match="got ndarray"):
        read_typed(np.ones((2, 2)))


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint64"])
def test_whole_numbers_end_at_the_limits_of_their_type(dtype):
    limits = np.iinfo(dtype)
    column = TypedColumn(
        "number",
        np.array([-1e30, float(limits.min), 0.0, 3.4, float(limits.max), 1e30]),
        np.zeros(6, dtype=bool),
        form={"dtype": dtype},
    )
    found = write_typed(TypedTable({"x": column}, 6, "dict"))["x"]
    assert found.dtype == dtype
    assert found.tolist() == [limits.min, limits.min, 0, 3, limits.max, limits.max]
    whole = TypedColumn("number", np.array([-(2**63), 2**62 + 1]), np.zeros(2, dtype=bool))
    whole = dataclasses.replace(whole, form={"dtype": dtype})
    found = write_typed(TypedTable({"x": whole}, 2, "dict"))["x"]
    assert found.tolist() == [limits.min, min(limits.max, 2**62 + 1)]

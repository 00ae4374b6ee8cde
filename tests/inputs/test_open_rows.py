"""Every kind of data: rows in ranges equal an independent reading, and what is wrong is named."""

import json
import os
import tracemalloc

import numpy as np
import pandas as pd
import polars as pl
import pyarrow
import pyarrow.compute
import pyarrow.dataset
import pyarrow.parquet
import pytest

from pickmix.inputs import files as inputs_files
from pickmix.inputs.files import write_table
from pickmix.inputs.open_rows import open_rows

GENERATOR = np.random.default_rng(2)
ROWS = np.round(GENERATOR.normal(size=(120, 3)), 4)
NAMES = ["a", "b", "c"]
COLUMNS = dict(zip(NAMES, ROWS.T, strict=True))
PARTS = [ROWS[:30], ROWS[30:31], ROWS[31:]]


class Sliced:
    """Like lightgbm.Sequence."""

    def __init__(self, rows, batch_size=None, convert=np.asarray):
        self.rows, self.batch_size, self.convert = rows, batch_size, convert

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, what):
        return self.convert(self.rows[what])


def arrow(rows=ROWS, names=NAMES):
    return pyarrow.table({name: rows[:, i] for i, name in enumerate(names)})


def frame(rows=ROWS):
    return pd.DataFrame(rows, columns=NAMES)


def csv_parts(folder):
    for i, part in enumerate(PARTS):
        write_table(folder / f"p{i}.csv", dict(zip(NAMES, part.T, strict=True)))
    (folder / "p15.csv").write_text("a,b,c\n")
    return folder / "p*.csv"


def text_without_header(folder):
    np.savetxt(folder / "rows.txt", ROWS, fmt="%.17g")
    return folder / "rows.txt"


def parquet(folder):
    pyarrow.parquet.write_table(arrow(), folder / "rows.parquet", row_group_size=17)
    return folder / "rows.parquet"


def parquet_folder(folder):
    for i, part in enumerate(PARTS):
        pyarrow.parquet.write_table(arrow(part), folder / f"p{i}.parquet")
    empty = pyarrow.table({"a": pyarrow.nulls(0)})
    pyarrow.parquet.write_table(empty, folder / "p0-empty.parquet")
    for name in ("_SUCCESS", "_metadata.parquet"):
        (folder / name).write_text("")
    return folder


def dataset_of_csv(folder):
    write_table(folder / "rows.csv", COLUMNS)
    return pyarrow.dataset.dataset(folder, format="csv")


#: Ways to hold the rows, from a folder to data for `open_rows`.
NAMED = {
    "npz": lambda folder: write_table(folder / "rows.npz", COLUMNS),
    "csv": lambda folder: write_table(folder / "rows.csv", COLUMNS),
    "csv parts": csv_parts,
    "parquet": parquet,
    "parquet folder": parquet_folder,
    "dataset": lambda f: pyarrow.dataset.dataset(parquet_folder(f), schema=arrow().schema),
    "dataset of csv": dataset_of_csv,
    "dataset in memory": lambda _: pyarrow.dataset.dataset(arrow()),
    "table": lambda _: pyarrow.concat_tables([arrow(part) for part in PARTS]),
    "sliced frames": lambda _: Sliced(ROWS, 7, frame),
    "frames": lambda _: lambda: [frame(part) for part in PARTS],
    "polars frames": lambda _: lambda: [pl.from_pandas(frame(part)) for part in PARTS],
    "record batches": lambda _: lambda: arrow().to_batches(max_chunksize=11),
}
UNNAMED = {
    "text without header": text_without_header,
    "sliced": lambda _: Sliced(ROWS),
    "arrays": lambda _: lambda: iter([*PARTS, ROWS[:0]]),
    "lists": lambda _: lambda: (part.tolist() for part in PARTS),
}
KINDS = {**NAMED, **UNNAMED}


@pytest.fixture(autouse=True)
def _batch(monkeypatch):
    monkeypatch.setattr(inputs_files, "BATCH", 200)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_columns_are_those_of_the_data(tmp_path, kind):
    data, named = KINDS[kind](tmp_path), kind in NAMED
    with open_rows(data) as source:
        assert (source.n_rows, source.n_columns, source.dtype) == (120, 3, np.float64)
        assert source.names == (NAMES if named else None)
        for start, stop in [(0, 120), (0, 1), (29, 32), (119, 120), (60, 60)]:
            rows = source.read(start, stop)
            assert rows.flags.c_contiguous
            np.testing.assert_array_equal(rows, ROWS[start:stop])
        later = source.with_columns([2, 0])
        fingerprint, of_all = later.fingerprint(), source.fingerprint()
        json.dumps(of_all)
    choice = ["c", 0] if named else [2, "0"]
    with open_rows(data, columns=choice, dtype="float32") as chosen:
        assert chosen.names == later.names == (["c", "a"] if named else None)
        np.testing.assert_array_equal(chosen.read(0, 120), ROWS[:, [2, 0]].astype("f4"))
    with open_rows(data, columns=choice) as chosen:
        assert chosen.fingerprint() == fingerprint != of_all
    with pytest.raises(ValueError, match="no column 'z'"):
        open_rows(data, columns=["z"])


@pytest.mark.parametrize(
    ("kind", "row", "place"),
    [
        ("csv parts", 32, "p2.csv, row 2"),
        ("parquet folder", 31, "p2.parquet, row 1"),
        ("dataset", 30, "p1.parquet, row 1"),
        ("table", 33, "the Arrow table, row 34"),
        ("sliced", 33, "Sliced, row 34"),
        ("arrays", 32, "batch 3 of <lambda>(), row 2"),
    ],
)
def test_places_are_those_of_the_data(tmp_path, kind, row, place):
    with open_rows(KINDS[kind](tmp_path)) as source:
        assert source.place(row) == source.with_columns([1]).place(row) == place


@pytest.mark.parametrize(
    ("types", "expected"),
    [("ef", "float32"), ("fd", "float64"), ("fi", "float64"), ("?", "float64")],
)
def test_narrow_columns_stay_narrow(types, expected):
    columns = {f"c{i}": np.arange(4).astype(kind) for i, kind in enumerate(types)}
    rows = np.column_stack(list(columns.values())).astype(expected)
    made = pyarrow.table(columns)
    for data in (made, lambda: [pd.DataFrame(columns)], pd.DataFrame(columns)):
        with open_rows(data) as source:
            assert source.dtype == expected
            np.testing.assert_array_equal(source.read(0, 4), rows)


def test_missing_values_become_nan():
    types = {"f": "Float32", "i": "Int32", "b": "boolean"}
    values = {"f": [1.0, None], "i": [None, 2], "b": [True, None]}
    nullable = pd.DataFrame({name: pd.array(values[name], types[name]) for name in types})
    expected = [[1.0, np.nan, 1.0], [np.nan, 2.0, np.nan]]
    for data in (pyarrow.Table.from_pandas(nullable), nullable, lambda: [nullable]):
        with open_rows(data) as source:
            np.testing.assert_array_equal(source.read(0, 2), expected)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".npz"])
def test_columns_of_later_files(tmp_path, suffix):
    write_table(tmp_path / f"p0{suffix}", COLUMNS)
    # In another order they are the same.
    write_table(tmp_path / f"p1{suffix}", {name: COLUMNS[name] for name in "cab"})
    with open_rows(f"{tmp_path}/*{suffix}") as source:
        np.testing.assert_array_equal(source.read(0, 240), np.vstack([ROWS, ROWS]))
    write_table(tmp_path / f"p1{suffix}", {"a": ROWS[:, 0], "x": ROWS[:, 1], "c": ROWS[:, 2]})
    message = rf"p1\{suffix}: expected columns a, b, c as in p0\{suffix}, got a, x, c"
    with pytest.raises(ValueError, match=message):
        open_rows(f"{tmp_path}/*{suffix}")
    # Chosen ones may lie elsewhere.
    write_table(tmp_path / f"p2{suffix}", {"c": ROWS[:, 2], "a": ROWS[:, 0]})
    for columns in (["c", "a"], [2, 0]):
        with open_rows(f"{tmp_path}/*{suffix}", columns=columns) as source:
            np.testing.assert_array_equal(source.read(120, 360), np.tile(ROWS[:, [2, 0]], (2, 1)))


def test_a_dataset_with_a_filter_and_one_with_folders_as_columns(tmp_path):
    for year in (1, 2):
        (tmp_path / f"year={year}").mkdir()
        pyarrow.parquet.write_table(arrow(), tmp_path / f"year={year}" / "x.parquet")
    made = pyarrow.dataset.dataset(tmp_path, partitioning="hive")
    with open_rows(made) as source:
        assert source.names == [*NAMES, "year"]
        np.testing.assert_array_equal(source.read(0, 240)[:, 3], np.repeat([1.0, 2.0], 120))
    with open_rows(made.filter(pyarrow.compute.field("a") > 0), columns=NAMES) as source:
        expected = ROWS[ROWS[:, 0] > 0]
        np.testing.assert_array_equal(source.read(0, source.n_rows), np.vstack([expected] * 2))
    with open_rows(tmp_path) as source:
        assert source.names == NAMES
        assert source.place(120) == f"{tmp_path}/year=2/x.parquet, row 1"


def failing():
    yield ROWS
    raise RuntimeError("the database is gone")


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([ROWS, ROWS[:, :2]], "batch 2 of .*: expected 3 columns as before, got 2 columns"),
        ([ROWS, ROWS[:0], ROWS[0]], r"batch 3 of .*got an array of shape \(3,\)"),
        ([frame(), frame().rename(columns={"c": "d"})], "batch 2 .* a, b, c as before, got .*b, d"),
        ([frame(), ROWS], "batch 2 of .*: expected columns a, b, c as before, got 3 columns"),
        ([frame(), frame().assign(c="x")], "batch 2 of .*: expected numbers in column 'c', got"),
        ([ROWS, ROWS.astype(str)], "batch 2 of .*: expected real numbers, got dtype <U"),
        ([ROWS.astype("f4"), ROWS], r"float32 up to row 120 and are float64.*dtype="),
        ([[[1.0, 2.0], [3.0]]], "batch 1 of .*: expected rows of numbers, but"),
        ([ROWS[:0]], "expected rows, got none"),
        ([ROWS[:, :0]], "expected columns, got none"),
        (failing(), "the database is gone"),
        (Sliced(ROWS, 500, lambda rows: rows[:-1]), r"expected 120 rows in \[0:120\], got 119"),
        (Sliced(ROWS[:0]), "expected rows, got none"),
    ],
)
def test_bad_batches(tmp_path, batches, message):
    data = batches if isinstance(batches, Sliced) else lambda: iter(batches)
    with pytest.raises((ValueError, RuntimeError), match=message):
        open_rows(data, cache=tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".npz"])
@pytest.mark.parametrize("damage", ["empty", "cut", "other"])
def test_files_that_cannot_be_read_are_named(tmp_path, suffix, damage):
    write_table(tmp_path / f"p0{suffix}", COLUMNS)
    path = write_table(tmp_path / f"p1{suffix}", COLUMNS)
    content = {"empty": b"", "cut": path.read_bytes()[:-15], "other": b"\xff\xfe\x00"}[damage]
    path.write_bytes(content)
    with pytest.raises((ValueError, OSError), match=rf"p1\{suffix}: "):
        open_rows(f"{tmp_path}/*{suffix}")


@pytest.mark.parametrize(
    ("contents", "name", "message"),
    [
        (
            {"p0.csv": "1,2\n3,4\n", "p1.csv": "a,b\n3,4\n"},
            "*.csv",
            "p1.csv: .* 2 without names .*got a",
        ),
        (
            {"p0.csv": "1,2\n3,4\n", "p1.csv": "1,2,3\n"},
            "*.csv",
            "p1.csv: .* 2 without .*got 3 without",
        ),
        ({"rows.csv": "a,kind\n1,2\n3,red\n"}, "rows.csv", "column 'kind', got 'red' in line 3"),
        ({"rows.csv": "a,b\n"}, "*.csv", "expected rows, got none"),
        ({}, "none.npy", r"none\.npy: expected a file or a folder, found nothing there"),
        ({}, "none-*.npy", r"none-\*\.npy: no file matches"),
        ({}, "", "expected Parquet files in the folder, found none; .*a glob, such as"),
        ({"rows.xlsx": "1"}, "rows.xlsx", r"rows\.xlsx: expected a file ending in"),
        ({"rows.npy": "1", "rows.csv": "1"}, "*.[nc]*", r"one kind, got \.csv and \.npy"),
    ],
)
def test_files_that_are_refused(tmp_path, contents, name, message):
    for file, content in contents.items():
        (tmp_path / file).write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        open_rows(tmp_path / name)


def test_converting_keeps_some_batches_only(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs_files, "BATCH", 1 << 16)
    rows = GENERATOR.normal(size=(50_000, 8)).astype(np.float32)
    table = arrow(rows, [f"c{i}" for i in range(8)])
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=5000)
    del table

    def made():
        for start in range(0, 50_000, 2000):
            yield rows[start : start + 2000].astype(np.float64)

    # What is imported at the first use is not counted.
    open_rows(tmp_path / "rows.parquet").close()
    most, original = [], inputs_files.arrow_rows

    def watched(batch, *args):
        most.append(pyarrow.total_allocated_bytes() - before)
        return original(batch, *args)

    monkeypatch.setattr(inputs_files, "arrow_rows", watched)
    for data in (tmp_path / "rows.parquet", made):
        before = pyarrow.total_allocated_bytes()
        tracemalloc.start()
        with open_rows(data, dtype="float32") as source:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            np.testing.assert_array_equal(source.read(25_000, 35_000), rows[25_000:35_000])
        # All rows take 1.6 MB, a group of them 160 kB, a batch 64 kB.
        assert peak < 600_000
        assert max(most, default=0) < 1_000_000

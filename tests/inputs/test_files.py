"""Tables in files: what is read comes back as written; what is wrong is named."""

import subprocess
import sys

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from pickmix.inputs.files import read_table, replacing, write_table
from pickmix.inputs.open_rows import open_rows

COLUMNS = {"a": np.array([1.5, -2.0, 1 / 3]), "b": np.array([4, 5, 6])}
ROWS = np.column_stack(list(COLUMNS.values()))


def text(tmp_path, content, name="rows.csv"):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize("suffix", [".csv", ".npy", ".npz", ".parquet"])
def test_what_is_written_is_read_back_exactly(tmp_path, suffix):
    path = write_table(tmp_path / f"rows{suffix}", COLUMNS)
    rows, names = read_table(path)
    np.testing.assert_array_equal(rows, ROWS)
    assert rows.dtype == np.float64
    assert names == (None if suffix == ".npy" else ["a", "b"])
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".parquet"])
def test_columns_are_chosen_by_name_or_number_in_the_asked_order(tmp_path, suffix):
    path = write_table(tmp_path / f"rows{suffix}", COLUMNS)
    for columns in (["b", "a"], [1, 0], ["1", "0"]):
        rows, names = read_table(path, columns=columns)
        np.testing.assert_array_equal(rows, ROWS[:, ::-1])
        assert names == ["b", "a"]
    with pytest.raises(ValueError, match="no column 'c'; there are a, b or 0 to 1"):
        read_table(path, columns=["c"])
    with pytest.raises(ValueError, match="no column 2"):
        read_table(path, columns=[2])
    with pytest.raises(ValueError, match="at least one column"):
        read_table(path, columns=[])


def test_csv_keeps_integers_as_integers(tmp_path):
    path = write_table(tmp_path / "rows.csv", COLUMNS)
    assert path.read_text().splitlines()[1] == "1.5,4"


@pytest.mark.parametrize(
    ("stored", "read"),
    [("float32", "float32"), ("float16", "float32"), ("float64", "float64"), ("int8", "float64")],
)
def test_dtype(tmp_path, stored, read):
    array = np.arange(6).reshape(3, 2).astype(stored)
    np.save(tmp_path / "rows.npy", array)
    rows, _ = read_table(tmp_path / "rows.npy")
    assert rows.dtype == read
    np.testing.assert_array_equal(rows, array)


def test_float32_parquet_stays_float32_and_a_missing_value_becomes_nan(tmp_path):
    table = pyarrow.table({"a": pyarrow.array([1.0, None], pyarrow.float32())})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    rows, _ = read_table(tmp_path / "rows.parquet")
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, [[1.0], [np.nan]])


def test_which_array_of_an_npz(tmp_path):
    first, second = np.ones((2, 2)), np.zeros((3, 2))
    np.savez(tmp_path / "one.npz", anything=first)
    np.savez(tmp_path / "named.npz", X=first, y=second)
    np.savez(tmp_path / "many.npz", y=second, z=first)
    np.testing.assert_array_equal(read_table(tmp_path / "one.npz")[0], first)
    np.testing.assert_array_equal(read_table(tmp_path / "named.npz")[0], first)
    np.testing.assert_array_equal(read_table(tmp_path / "many.npz", key="y")[0], second)
    with pytest.raises(ValueError, match=r"many.npz: expected one array, or one named 'X'.* y, z"):
        read_table(tmp_path / "many.npz")


@pytest.mark.parametrize(
    "content",
    [
        "a,b\n1,2\n3,4\n",
        "a;b\n1;2\n3;4\n",
        "a\tb\n1\t2\n3\t4",
        "a b\n1   2\n3 4\n",
        "\ufeffa,b\r\n1,2\r\n3,4\r\n",
        '# a comment\n\n"a","b"\n"1",2\n\n3, 4\n',
    ],
)
def test_text_dialects(tmp_path, content):
    rows, names = read_table(text(tmp_path, content))
    np.testing.assert_array_equal(rows, [[1.0, 2.0], [3.0, 4.0]])
    assert names == ["a", "b"]


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.txt"])
def test_text_without_header_keeps_its_first_row(tmp_path, name):
    rows, names = read_table(text(tmp_path, "1 2e3\nnan 4\n", name))
    np.testing.assert_array_equal(rows, [[1.0, 2000.0], [np.nan, 4.0]])
    assert names is None


def test_one_line_and_one_column(tmp_path):
    assert read_table(text(tmp_path, "1,2,3"))[0].shape == (1, 3)
    assert read_table(text(tmp_path, "1\n2\n"))[0].shape == (2, 1)


def test_a_header_may_hold_numbers(tmp_path):
    rows, names = read_table(text(tmp_path, "id,2020\n1,2\n"))
    assert names == ["id", "2020"]
    assert rows.shape == (1, 2)


def test_words_in_a_column_are_named_and_can_be_left_out(tmp_path):
    path = text(tmp_path, "kind,x,y\nred,1,2\nblue,3,4\n")
    with pytest.raises(
        ValueError, match=r"rows.csv: .*column 'kind', got 'red' in line 2.*columns="
    ):
        read_table(path)
    rows, names = read_table(path, columns=["y", "x"])
    np.testing.assert_array_equal(rows, [[2.0, 1.0], [4.0, 3.0]])
    assert names == ["y", "x"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty file"),
        ("\n# only\n", "only blank lines and comments"),
        ("a,b\n", "only a header: a, b"),
        ("a,b\n1,2\n3\n", "expected 2 columns, got 1 in line 3"),
        ("1,2\n\n3,4,5\n", "expected 2 columns, got 3 in line 3"),
        ("a,b\n1,2\n3,-\n", "column 'b', got '-' in line 3"),
        ("1,2\n3,x\n", "column 1, got 'x' in line 2"),
        ("a,a\n1,2\n", "two columns are named 'a'"),
    ],
)
def test_bad_text(tmp_path, content, message):
    columns = ["a"] if content.startswith("a,a") else None
    with pytest.raises(ValueError, match=rf"rows\.csv: .*{message}"):
        read_table(text(tmp_path, content), columns=columns)


def test_text_that_is_not_utf8(tmp_path):
    (tmp_path / "rows.csv").write_bytes(b"\xff\xfe1,2\n")
    with pytest.raises(ValueError, match=r"rows\.csv: expected text in UTF-8"):
        read_table(tmp_path / "rows.csv")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.arange(3.0), r"rows and columns, got an array of shape \(3,\)"),
        (np.empty((0, 2)), "expected rows, got none"),
        (np.array([["x"]]), "real numbers, got dtype <U1"),
        (np.array([[1j]]), "real numbers, got dtype complex128"),
        (np.array([[None]], dtype=object), "expected numbers, got pickled objects"),
    ],
)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_bad_arrays(tmp_path, array, message, suffix):
    path = tmp_path / f"rows{suffix}"
    if suffix == ".npy":
        np.save(path, array)
    else:
        np.savez(path, array)
    with pytest.raises(ValueError, match=rf"rows\{suffix}: .*{message}"):
        read_table(path)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet"])
def test_a_damaged_file_is_named(tmp_path, suffix):
    path = tmp_path / f"rows{suffix}"
    write_table(path, {"a": np.arange(1000.0)})
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match=rf"rows\{suffix}: "):
        read_table(path)


def test_parquet_words_are_named(tmp_path):
    table = pyarrow.table({"kind": ["red"], "x": [1]})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match=r"column 'kind', got string; .*columns="):
        read_table(tmp_path / "rows.parquet")
    assert read_table(tmp_path / "rows.parquet", columns=["x"])[0].tolist() == [[1.0]]


def test_missing_file_folder_and_unknown_suffix(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.csv: expected a file, found nothing"):
        read_table(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(FileNotFoundError, match="found a folder"):
        read_table(tmp_path / "folder.csv")
    with pytest.raises(ValueError, match=r"ending in .*\.parquet, got '\.xlsx'"):
        read_table(tmp_path / "rows.xlsx")
    with pytest.raises(ValueError, match=r"ending in .*, got '\.txt'"):
        write_table(tmp_path / "rows.txt", COLUMNS)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        write_table(tmp_path / "none" / "rows.csv", COLUMNS)


def test_columns_of_different_length_are_refused(tmp_path):
    with pytest.raises(ValueError, match="one length"):
        write_table(tmp_path / "rows.csv", {"a": [1.0], "b": [1.0, 2.0]})


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError), replacing(path) as temporary:  # noqa: PT012
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".npy", ".npz", ".parquet"])
def test_a_full_disk_is_named_with_the_file(tmp_path, suffix):
    # A limit of the size of files does to a process what a full disk does.
    path = tmp_path / f"rows{suffix}"
    code = (
        "import resource, sys\n"
        "import numpy as np\n"
        "from pickmix.inputs.files import write_table\n"
        "values = np.random.default_rng(0).normal(size=50_000)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"
        "try:\n"
        "    write_table(sys.argv[1], {'x': values})\n"
        "except OSError as error:\n"
        "    print(error.filename, error.strerror, sep='|')\n"
    )
    pytest.importorskip("resource")
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    # NumPy does not say which of the two it was.
    assert done.stdout.strip() in (f"{path}|File too large", f"{path}|No space left on device")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["rows.npy", "rows.npz"])
@pytest.mark.parametrize("read", [read_table, open_rows])
def test_bytes_of_another_kind(tmp_path, name, read):
    path = tmp_path / name
    path.write_bytes(np.random.default_rng(0).bytes(5000))
    expected = rf"{name}: expected a \{path.suffix} file, but it begins with b.*of another kind"
    with pytest.raises(ValueError, match=expected):
        read(path)


@pytest.mark.parametrize("read", [read_table, open_rows])
@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([["a", "b"]]), r"expected real numbers, got dtype <U1 \(text\)"),
        (np.array([["a", 1]], dtype=object), "expected numbers, got pickled objects"),
        (np.ones((2, 2)) * 1j, "expected real numbers, got dtype complex128"),
        (np.ones(3), r"expected rows and columns, got an array of shape \(3,\); reshape\(-1, 1\)"),
    ],
)
def test_arrays_of_something_else(tmp_path, read, array, message):
    np.save(tmp_path / "rows.npy", array, allow_pickle=True)
    with pytest.raises(ValueError, match=rf"rows\.npy: {message}"):
        read(tmp_path / "rows.npy")

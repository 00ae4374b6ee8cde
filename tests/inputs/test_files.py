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

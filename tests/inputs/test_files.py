"""Tables in files: what is read comes back as written; what is wrong is named."""

import subprocess
import sys

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from pickmix.inputs.files import read_table, write_table
from pickmix.inputs.open_rows import open_rows

COLUMNS = {"a": np.array([1.5, -2.0, 1 / 3]), "b": np.array([4, 5, 6])}
ROWS = np.column_stack(list(COLUMNS.values()))


@pytest.mark.parametrize("suffix", [".csv", ".TSV.GZ", ".npy", ".npz", ".parquet"])
def test_what_is_written_is_read_back_exactly(tmp_path, suffix):
    path = write_table(tmp_path / f"rows{suffix}", COLUMNS)
    content = path.read_bytes()
    rows, names = read_table(path)
    np.testing.assert_array_equal(rows, ROWS)
    assert rows.dtype == np.float64
    assert names == (None if suffix == ".npy" else ["a", "b"])
    for columns in ([1, 0], ["1", "0"]) if names is None else (["b", "a"], ["b", 0]):
        rows, names = read_table(path, columns=columns)
        np.testing.assert_array_equal(rows, ROWS[:, ::-1])
        assert names == (None if suffix == ".npy" else ["b", "a"])
    # The same rows give the same bytes.
    assert write_table(path, COLUMNS).read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_what_is_refused(tmp_path):
    np.savez(tmp_path / "many.npz", y=ROWS, z=ROWS[:1])
    np.testing.assert_array_equal(read_table(tmp_path / "many.npz", key="y")[0], ROWS)
    (tmp_path / "folder.csv").mkdir()
    table = pyarrow.table({"kind": ["red"], "x": [1]})
    pyarrow.parquet.write_table(table, tmp_path / "words.parquet")
    for name, options, message in [
        ("many.npz", {}, r"many.npz: expected one array, or one named 'X'.* y, z"),
        ("none.csv", {}, r"none\.csv: expected a file, found nothing"),
        ("folder.csv", {}, "found a folder"),
        ("rows.xlsx", {}, r"ending in .*\.parquet, got '\.xlsx'"),
        ("words.parquet", {}, r"column 'kind', got string; .*columns="),
        ("words.parquet", {"columns": []}, "at least one column"),
    ]:
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            read_table(tmp_path / name, **options)
    with pytest.raises(ValueError, match=r"ending in .*, got '\.txt'"):
        write_table(tmp_path / "rows.txt", COLUMNS)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        write_table(tmp_path / "none" / "rows.csv", COLUMNS)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet"])
@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00" * 99])
@pytest.mark.parametrize("read", [read_table, open_rows])
def test_damaged_files_and_those_of_another_kind_are_named(tmp_path, suffix, content, read):
    path = write_table(tmp_path / f"rows{suffix}", {"a": np.arange(1000.0)})
    path.write_bytes(content or path.read_bytes()[:200])
    with pytest.raises((ValueError, OSError), match=rf"rows\{suffix}: "):
        read(path)


def test_a_full_disk_is_named_with_the_file(tmp_path):
    # A limit of the size of files does to a process what a full disk does.
    pytest.importorskip("resource")
    code = (
        "import resource, sys\n"
        "import numpy as np\n"
        "from pickmix.inputs.files import write_table\n"
        "values = np.random.default_rng(0).normal(size=50_000)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n"
        "        write_table(path, {'x': values})\n"
        "    except OSError as error:\n"
        "        print(error.filename, error.strerror, sep='|')\n"
    )
    paths = [str(tmp_path / f"rows{suffix}") for suffix in (".csv.gz", ".npy", ".npz", ".parquet")]
    command = [sys.executable, "-c", code, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # NumPy does not say which of the two it was.
    for path, line in zip(paths, done.stdout.splitlines(), strict=True):
        assert line in (f"{path}|File too large", f"{path}|No space left on device")
    assert list(tmp_path.iterdir()) == []

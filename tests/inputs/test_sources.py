"""Rows of arrays and .npy files in ranges, files that change, and reading ahead on a thread."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pyarrow
import pytest
import scipy.sparse

from pickmix.inputs import sources
from pickmix.inputs.open_rows import is_source, open_rows
from pickmix.inputs.sources import read_ahead

ROWS = (100 * np.random.default_rng(1).normal(size=(200, 5))).astype(np.float32)
RANGES = [(0, 200), (0, 1), (199, 200), (13, 77), (50, 50), (49, 51), (200, 200)]


@pytest.fixture(autouse=True)
def _small_buffer(monkeypatch):
    monkeypatch.setattr(sources, "BUFFER", 64)


def saved(path, array=ROWS):
    np.save(path, array)
    return path


def both(folder, array):
    """The same rows in memory and in a file."""
    return array, saved(folder / "rows.npy", array)


def check_ranges(source, rows):
    for start, stop in RANGES:
        read = source.read(start, stop)
        assert read.dtype == source.dtype
        assert read.flags.c_contiguous
        np.testing.assert_array_equal(read, rows[start:stop])


@pytest.mark.parametrize(
    ("stored", "dtype"), [("<f4", None), (">f8", None), ("<f8", "float32"), ("i1", None)]
)
@pytest.mark.parametrize("columns", [None, [4, 0]])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_type_and_order_is_read_in_place(tmp_path, stored, columns, dtype, order):
    array = np.abs(ROWS).astype(stored, order=order)
    for data in both(tmp_path, array):
        source = open_rows(data, columns=columns, dtype=dtype)
        assert source.dtype == (dtype or ("float32" if stored == "<f4" else "float64"))
        assert (source.names, source.chunk_size) == (None, None)
        check_ranges(source, array if columns is None else array[:, columns])
    assert os.listdir(tmp_path) == ["rows.npy"]


def test_several_files_are_one_table(tmp_path):
    bounds = [0, 50, 50, 51, 120, 200]
    for part in range(5):
        array = ROWS[bounds[part] : bounds[part + 1]]
        saved(tmp_path / f"part-{part}.npy", array.astype("f8") if part == 3 else array)
    source = open_rows(f"{tmp_path}/part-*.npy")
    assert source.dtype == np.float64
    check_ranges(source, ROWS)
    check_ranges(source.with_columns([3, 1]), ROWS[:, [3, 1]])
    places = [source.place(row) for row in (0, 50, 51, 199)]
    numbers = [(0, 1), (2, 1), (3, 1), (4, 80)]
    assert places == [f"part-{part}.npy, row {row}" for part, row in numbers]
    for folder, array in (("a", ROWS), ("b", ROWS), ("c", ROWS[:, :3])):
        (tmp_path / folder).mkdir()
        saved(tmp_path / folder / "x.npy", array)
    assert open_rows(f"{tmp_path}/[ab]/x.npy").place(200) == f"{tmp_path}/b/x.npy, row 1"
    with pytest.raises(ValueError, match=r"c/x\.npy: expected 5 columns as in x\.npy, got 3"):
        open_rows(f"{tmp_path}/*/x.npy")


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_mapped_files(tmp_path, mode):
    mapped = np.load(saved(tmp_path / "rows.npy"), mmap_mode=mode)
    expected = ROWS.copy()
    if mode != "r":
        mapped[7] = expected[7] = 0
    check_ranges(open_rows(mapped), expected)
    check_ranges(open_rows(mapped[:, 1:]), expected[:, 1:])
    assert not np.shares_memory(open_rows(mapped).read(0, 200), mapped)
    part = open_rows(mapped[60:190]).fingerprint()
    assert part["files"][0]["path"] == str(tmp_path / "rows.npy")
    assert part != open_rows(mapped[59:189]).fingerprint()
    assert is_source(mapped[60:190])
    assert not is_source(mapped + 1)


def test_columns_dtype_and_chunk_size_of_a_source(tmp_path):
    for data in both(tmp_path, ROWS):
        source = open_rows(data, columns=[3, 0], chunk_size=7)
        again = open_rows(source, columns=[1])
        assert source.chunk_size == again.chunk_size == 7
        assert again.column_labels() == [0]
        np.testing.assert_array_equal(again.read(4, 6), ROWS[4:6, [0]])
        assert open_rows(source) is source
        assert open_rows(source, chunk_size=3).chunk_size == 3
        assert open_rows(source, dtype="float64").read(0, 1).dtype == np.float64
        assert (source.chunk_size, source.read(0, 1).dtype) == (7, np.float32)
        with pytest.raises(ValueError, match="no column 2; there are 0 to 1"):
            source.with_columns([2])
        with pytest.raises(TypeError, match="columns must be a list of names or numbers, got 'ab'"):
            source.with_columns("ab")
        for start, stop in [(-1, 3), (3, 201), (5, 4)]:
            with pytest.raises(IndexError, match="within 0 to 200"):
                source.read(start, stop)
        source.close()
        assert again.read(0, 2).shape == (2, 1)
        with pytest.raises(ValueError, match="closed"):
            source.read(0, 2)
    array = ROWS.astype(np.float64)
    assert np.shares_memory(open_rows(array).read(3, 9), array)


def test_fingerprints_tell_rows_apart(tmp_path):
    fingerprint = open_rows(ROWS).fingerprint()
    assert fingerprint == open_rows(np.asfortranarray(ROWS)).fingerprint()
    others = [ROWS[:-1], ROWS.astype("f8"), ROWS[:, :3], ROWS.copy(), ROWS.copy()]
    others[3][0, 3] += 1e-3
    others[4][-1, 3] += 1e-3
    assert all(open_rows(other).fingerprint() != fingerprint for other in others)
    path = saved(tmp_path / "rows.npy")
    for data in (ROWS, path):
        fingerprint = open_rows(data).fingerprint()
        assert json.loads(json.dumps(fingerprint)) == fingerprint == open_rows(data).fingerprint()
        swapped = open_rows(data, columns=[1, 0]).fingerprint()
        assert swapped == open_rows(data).with_columns([1, 0]).fingerprint() != fingerprint
    os.utime(path, ns=(0, 0))
    assert open_rows(path).fingerprint() != fingerprint


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.arange(3.0), r"got an array of shape \(3,\); reshape\(-1, 1\) makes it one column"),
        (np.ones((2, 2, 2)), r"rows and columns, got shape \(2, 2, 2\)"),
        (np.empty((0, 2)), "expected rows, got none"),
        (np.empty((2, 0)), "expected columns, got none"),
        (np.array([["x"]]), "real numbers, got dtype <U1"),
        (np.array([[1j]]), "real numbers, got dtype complex128"),
        (np.array([[None]], dtype=object), "pickled objects|Python objects"),
    ],
)
def test_what_holds_no_rows(tmp_path, array, message):
    np.save(tmp_path / "rows.npy", array, allow_pickle=True)
    for data in (array, tmp_path / "rows.npy"):
        with pytest.raises(ValueError, match=message):
            open_rows(data)


def test_masked_values_are_missing():
    masked = np.ma.masked_array(ROWS.astype(int), ROWS > 10)
    for data in (masked, lambda: [masked]):
        with open_rows(data) as source:
            expected = np.where(ROWS > 10, np.nan, ROWS.astype(int))
            np.testing.assert_array_equal(source.read(0, 200), expected)


class TestFilesThatChange:
    def test_cut(self, tmp_path):
        path = saved(tmp_path / "rows.npy")
        source = open_rows(path)
        os.truncate(path, 1000)
        message = r"rows\.npy: the file was changed \(from 4128 bytes to 1000"
        with pytest.raises(OSError, match=message):
            source.read(0, 10)
        with pytest.raises(ValueError, match="the file is cut: expected 4128 bytes, got 1000"):
            open_rows(path)

    def test_replaced(self, tmp_path):
        path, new = saved(tmp_path / "rows.npy"), saved(tmp_path / "new.npy", ROWS + 1)
        source, status = open_rows(path), path.stat()
        os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
        os.replace(new, path)
        with pytest.raises(OSError, match=r"rows\.npy: the file was replaced by another"):
            source.read(0, 1)
        path.unlink()
        with pytest.raises(FileNotFoundError, match=r"rows\.npy"):
            source.read(0, 1)

    @pytest.mark.skipif(not hasattr(signal, "SIGBUS"), reason="no SIGBUS here")
    def test_a_mapped_file_that_is_cut_does_not_kill_the_process(self, tmp_path):
        path = saved(tmp_path / "rows.npy", np.zeros((100_000, 5)))
        program = (
            "import os, numpy as np\n"
            "from pickmix import open_rows\n"
            f"source = open_rows(np.load({str(path)!r}, mmap_mode='r'))\n"
            f"os.truncate({str(path)!r}, 5000)\n"
            "try:\n    source.read(50_000, 60_000)\n"
            "except OSError as error:\n    print(error)\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "rows.npy: the file was changed" in done.stdout


class Recording:
    """Rows that record when they are read, and fail from some row on."""

    def __init__(self, fails_from=1e9):
        self.starts, self.fails_from = [], fails_from

    def read(self, start, stop):
        self.starts.append(start)
        if start >= self.fails_from:
            raise OSError("the disk is gone")
        return np.arange(start, stop)[:, None]


class TestReadingAhead:
    @staticmethod
    def threads():
        return [t for t in threading.enumerate() if t.name.startswith("pickmix-read-ahead")]

    def test_the_ranges_come_in_order_and_errors_in_their_turn(self):
        ranges = [(10, 30), (0, 10), (7, 7), (45, 50)]
        source = open_rows(ROWS.astype("f2"))
        for rows, (start, stop) in zip(read_ahead(source, iter(ranges)), ranges, strict=True):
            np.testing.assert_array_equal(rows, source.read(start, stop))
        assert list(read_ahead(source, [])) == []
        reader = read_ahead(Recording(fails_from=2), [(i, i + 1) for i in range(9)])
        assert [next(reader)[0, 0], next(reader)[0, 0]] == [0.0, 1.0]
        with pytest.raises(OSError, match="the disk is gone"):
            next(reader)
        assert not self.threads()

    @pytest.mark.parametrize("n_taken", [0, 3])
    @pytest.mark.parametrize("how", ["close", "forget"])
    def test_leaving_early_ends_the_thread(self, n_taken, how):
        source = Recording()
        reader = read_ahead(source, [(i % 100, i % 100 + 1) for i in range(1000)])
        for _ in range(n_taken):
            next(reader)
        if how == "close":
            reader.close()
        del reader
        gc.collect(1)
        assert not self.threads()
        assert len(source.starts) <= n_taken + 3


def test_what_is_a_source():
    class Sliced:
        columns = "not those of a frame"

        def __len__(self):
            return 3

        def __getitem__(self, what):
            return ROWS[what]

    frame = pd.DataFrame(ROWS)
    for data in ("x.npy", Sliced(), lambda: iter([]), iter([]), (x for x in []), open_rows(ROWS)):
        assert is_source(data)
    assert is_source(pyarrow.table({"a": [1.0]}))
    others = [ROWS, ROWS.tolist(), tuple(ROWS), frame, frame[0], scipy.sparse.csr_matrix(ROWS)]
    for data in [*others, scipy.sparse.csr_array(ROWS), None, 3, 1.5, {}, b"x", range(3)]:
        assert not is_source(data)


@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        ([[1.0]], {}, TypeError, r"use np\.asarray"),
        ({"a": [1.0]}, {}, TypeError, r"use np\.asarray"),
        (None, {}, TypeError, r"expected an array, a path.*; got NoneType"),
        (iter([ROWS]), {}, TypeError, r"used up after one pass; give the function.*lambda"),
        (lambda: ROWS, {}, TypeError, r"<lambda>\(\): expected an iterator of batches, got one"),
        (lambda: 3, {}, TypeError, r"<lambda>\(\): expected an iterator of batches, got int"),
        (ROWS, {"chunk_size": 0}, ValueError, "chunk_size must be an integer >= 1"),
        (ROWS, {"dtype": "int8"}, ValueError, "dtype must be float32 or float64; got 'int8'"),
        (ROWS, {"decimal": ";"}, ValueError, r'decimal must be "\." or ","'),
    ],
)
def test_what_cannot_be_opened(data, options, error, message):
    with pytest.raises(error, match=message):
        open_rows(data, **options)

"""Rows of arrays and .npy files in ranges, files that change, and reading ahead on a thread."""

import contextlib
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


def saved(path, array=ROWS):
    np.save(path, array)
    return path


def check_ranges(source, rows):
    for start, stop in RANGES:
        read = source.read(start, stop)
        assert read.dtype == source.dtype
        assert read.flags.c_contiguous
        np.testing.assert_array_equal(read, rows[start:stop])


def both(folder, array):
    """The same rows in memory and in a file."""
    return array, saved(folder / "rows.npy", array)


class TestRanges:
    @pytest.fixture(autouse=True)
    def _buffer(self, monkeypatch):
        monkeypatch.setattr(sources, "BUFFER", 64)

    @pytest.mark.parametrize(
        ("stored", "dtype"), [("<f4", None), (">f8", None), ("<f8", "float32")]
    )
    @pytest.mark.parametrize("columns", [None, [4, 0]])
    @pytest.mark.parametrize("order", ["C", "F"])
    def test_every_type_and_order_is_read_in_place(self, tmp_path, stored, columns, dtype, order):
        array = np.abs(ROWS).astype(stored, order=order)
        narrow = stored == "<f4"
        for data in both(tmp_path, array):
            source = open_rows(data, columns=columns, dtype=dtype)
            assert source.dtype == (dtype or ("float32" if narrow else "float64"))
            assert (source.names, source.chunk_size) == (None, None)
            check_ranges(source, array if columns is None else array[:, columns])
        assert os.listdir(tmp_path) == ["rows.npy"]

    def test_several_files_are_one_table(self, tmp_path):
        bounds = [0, 50, 50, 51, 120, 200]
        for part in range(5):
            array = ROWS[bounds[part] : bounds[part + 1]]
            saved(tmp_path / f"part-{part}.npy", array.astype("f8") if part == 3 else array)
        source = open_rows(f"{tmp_path}/part-*.npy")
        assert source.dtype == np.float64
        check_ranges(source, ROWS)
        check_ranges(source.with_columns([3, 1]), ROWS[:, [3, 1]])
        assert [source.place(row) for row in (0, 49, 50, 51, 199)] == [
            "part-0.npy, row 1",
            "part-0.npy, row 50",
            "part-2.npy, row 1",
            "part-3.npy, row 1",
            "part-4.npy, row 80",
        ]

    @pytest.mark.parametrize("mode", ["r", "r+", "c"])
    def test_mapped_files(self, tmp_path, mode):
        mapped = np.load(saved(tmp_path / "rows.npy"), mmap_mode=mode)
        expected = ROWS.copy()
        if mode != "r":
            mapped[7] = expected[7] = 0
        check_ranges(open_rows(mapped), expected)
        check_ranges(open_rows(mapped[:, 1:]), expected[:, 1:])
        np.testing.assert_array_equal(open_rows(mapped[60::2]).read(0, 70), expected[60::2])
        assert not np.shares_memory(open_rows(mapped).read(0, 200), mapped)
        part = open_rows(mapped[60:190]).fingerprint()
        assert part["files"][0]["path"] == str(tmp_path / "rows.npy")
        assert part != open_rows(mapped[59:189]).fingerprint()
        assert is_source(mapped)
        assert is_source(mapped[60:190])
        assert not is_source(mapped + 1)


def test_columns_and_dtype_and_chunk_size_of_a_source(tmp_path):
    for data in both(tmp_path, ROWS):
        source = open_rows(data, columns=[3, 0], chunk_size=7)
        assert source.chunk_size == 7
        again = open_rows(source, columns=[1])
        assert again.chunk_size == 7
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


def test_ranges_outside_and_closed_sources_are_refused(tmp_path):
    for data in both(tmp_path, ROWS):
        with open_rows(data) as source:
            view = source.with_columns([1])
            for start, stop in [(-1, 3), (3, 201), (5, 4), (201, 201)]:
                for one in (source, view):
                    with pytest.raises(IndexError, match="within 0 to 200"):
                        one.read(start, stop)
            view.close()
            assert source.read(0, 2).shape == (2, 5)
        with pytest.raises(ValueError, match="closed"):
            source.read(0, 2)


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
        assert open_rows(data, dtype="float64").fingerprint() != fingerprint
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
        (np.zeros((2, 2), dtype=[("a", "f4")]), "real numbers, got dtype"),
        (np.array([[None]], dtype=object), "pickled objects|Python objects"),
    ],
)
def test_what_holds_no_rows(tmp_path, array, message):
    for data in (array, tmp_path / "rows.npy"):
        np.save(tmp_path / "rows.npy", array, allow_pickle=True)
        with pytest.raises(ValueError, match=message):
            open_rows(data)


def test_masked_values_are_missing():
    for array in (ROWS, ROWS.astype(int)):
        masked = np.ma.masked_array(array, array > 10)
        expected = np.where(array > 10, np.nan, array)
        for data in (masked, lambda masked=masked: [masked]):
            with open_rows(data) as source:
                np.testing.assert_array_equal(source.read(0, 200), expected)


def test_files_of_one_name_are_told_apart_and_widths_compared(tmp_path):
    for folder, array in (("a", ROWS), ("b", ROWS), ("c", ROWS[:, :3])):
        (tmp_path / folder).mkdir()
        saved(tmp_path / folder / "x.npy", array)
    assert open_rows(f"{tmp_path}/[ab]/x.npy").place(200) == f"{tmp_path}/b/x.npy, row 1"
    with pytest.raises(ValueError, match=r"c/x\.npy: expected 5 columns as in x\.npy, got 3"):
        open_rows(f"{tmp_path}/*/x.npy")


class TestFilesThatChange:
    @pytest.fixture
    def path(self, tmp_path):
        return saved(tmp_path / "rows.npy")

    def test_cut_before_it_is_opened(self, path):
        os.truncate(path, 3000)
        with pytest.raises(ValueError, match="the file is cut: expected 4128 bytes, got 3000"):
            open_rows(path)

    def test_cut_before_a_read(self, path):
        source = open_rows(path)
        os.truncate(path, 1000)
        message = r"rows\.npy: the file was changed \(from 4128 bytes to 1000"
        with pytest.raises(OSError, match=message):
            source.read(0, 10)

    @pytest.mark.parametrize("keep_time", [False, True])
    def test_replaced(self, tmp_path, path, keep_time):
        source = open_rows(path)
        status = path.stat()
        saved(tmp_path / "new.npy", ROWS + 1)
        if keep_time:
            os.utime(tmp_path / "new.npy", ns=(status.st_atime_ns, status.st_mtime_ns))
        os.replace(tmp_path / "new.npy", path)
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
            f"mapped = np.load({str(path)!r}, mmap_mode='r')\n"
            "source, part = open_rows(mapped), open_rows(mapped[10:])\n"
            f"os.truncate({str(path)!r}, 5000)\n"
            "for one in (source, part):\n"
            "    try:\n        one.read(50_000, 60_000)\n"
            "    except OSError as error:\n        print(error)\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("rows.npy: the file was changed") == 2


class Recording:
    """Rows that record when they are read, and fail from some row on."""

    def __init__(self, fails_from=None):
        self.starts = []
        self.fails_from = fails_from

    def read(self, start, stop):
        self.starts.append(start)
        if self.fails_from is not None and start >= self.fails_from:
            raise OSError("the disk is gone")
        return np.arange(start, stop)[:, None]


class TestReadingAhead:
    @staticmethod
    def threads():
        return [t for t in threading.enumerate() if t.name.startswith("pickmix-read-ahead")]

    def test_the_ranges_come_in_order(self):
        ranges = [(10, 30), (0, 10), (7, 7), (45, 50)]
        source = open_rows(ROWS.astype("f2"))
        read = list(read_ahead(source, iter(ranges)))
        for rows, (start, stop) in zip(read, ranges, strict=True):
            np.testing.assert_array_equal(rows, source.read(start, stop))
        assert not self.threads()
        assert list(read_ahead(source, [])) == []

    def test_an_error_of_the_thread_comes_in_its_turn(self):
        reader = read_ahead(Recording(fails_from=2), [(i, i + 1) for i in range(9)])
        assert [next(reader)[0, 0], next(reader)[0, 0]] == [0.0, 1.0]
        with pytest.raises(OSError, match="the disk is gone"):
            next(reader)
        assert not self.threads()

    @pytest.mark.parametrize("n_taken", [0, 1, 3])
    @pytest.mark.parametrize("how", ["close", "forget", "raise"])
    def test_leaving_early_ends_the_thread(self, n_taken, how):
        source = Recording()
        reader = read_ahead(source, [(i % 100, i % 100 + 1) for i in range(100_000)])
        for _ in range(n_taken):
            next(reader)
        if how == "close":
            reader.close()
        elif how == "forget":
            del reader
            gc.collect()
        else:
            with pytest.raises(ZeroDivisionError), contextlib.closing(reader):
                _ = 1 / 0
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
        (((1.0,),), {}, TypeError, r"use np\.asarray"),
        ({"a": [1.0]}, {}, TypeError, r"use np\.asarray"),
        (None, {}, TypeError, r"expected an array, a path.*; got NoneType"),
        (ROWS, {"chunk_size": 0}, ValueError, "chunk_size must be an integer >= 1"),
        (ROWS, {"dtype": "int8"}, ValueError, "dtype must be float32 or float64; got 'int8'"),
        (ROWS, {"decimal": ";"}, ValueError, r'decimal must be "\." or ","'),
    ],
)
def test_what_cannot_be_opened(data, options, error, message):
    with pytest.raises(error, match=message):
        open_rows(data, **options)

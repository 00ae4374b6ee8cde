"""Sources of arrays, and reading ahead on a thread."""

import contextlib
import gc
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from pickmix.data.open_rows import is_source, open_rows, read_ahead
from pickmix.data.sources import ArraySource, RowSource

ROWS = np.random.default_rng(0).normal(size=(50, 4))


def threads():
    return [t for t in threading.enumerate() if t.name == "pickmix-read-ahead"]


class Recording(RowSource):
    """Rows that say when they are read, and fail from some row on."""

    def __init__(self, fails_from=None):
        super().__init__("recorded", 100, 1, np.dtype(np.float64))
        self.starts = []
        self.fails_from = fails_from

    def _fill(self, start, stop, out):
        self.starts.append(start)
        if self.fails_from is not None and start >= self.fails_from:
            raise OSError("the disk is gone")
        out[:, 0] = np.arange(start, stop)

    def _origin(self):
        return {"kind": "recorded"}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_array_is_not_copied(dtype):
    array = ROWS.astype(dtype)
    source = open_rows(array)
    assert (source.n_rows, source.n_columns, source.dtype) == (50, 4, dtype)
    assert (source.names, source.chunk_size) == (None, None)
    assert np.shares_memory(source.read(3, 9), array)
    np.testing.assert_array_equal(source.read(3, 9), array[3:9])


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(ROWS),
        ROWS[::2],
        ROWS[:, ::2],
        (10 * ROWS).astype(np.int16),
        ROWS.astype(np.float16),
        ROWS.astype(">f8"),
        ROWS > 0,
    ],
)
def test_arrays_of_other_layouts_are_copied_range_by_range(array):
    source = open_rows(array)
    rows = source.read(2, 11)
    assert rows.flags.c_contiguous
    assert rows.dtype == source.dtype == (np.float32 if array.dtype == "f2" else np.float64)
    np.testing.assert_array_equal(rows, array[2:11])


def test_columns_and_dtype_and_chunk_size_of_a_source():
    source = open_rows(ROWS, columns=[3, 0], chunk_size=7)
    assert source.chunk_size == 7
    np.testing.assert_array_equal(source.read(0, 50), ROWS[:, [3, 0]])
    again = open_rows(source, columns=[1])
    assert again.chunk_size == 7
    np.testing.assert_array_equal(again.read(4, 6), ROWS[4:6, [0]])
    assert open_rows(source) is source
    assert open_rows(source, chunk_size=3).chunk_size == 3
    assert source.chunk_size == 7
    narrow = open_rows(source, dtype="float32")
    assert narrow.read(0, 1).dtype == np.float32
    assert source.read(0, 1).dtype == np.float64
    with pytest.raises(ValueError, match="no column 2; there are 0 to 1"):
        source.with_columns([2])
    with pytest.raises(TypeError, match="columns must be a list of names or numbers, got 'ab'"):
        source.with_columns("ab")


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 51), (5, 4), (51, 51)])
def test_ranges_outside_are_refused(start, stop):
    for source in (open_rows(ROWS), open_rows(ROWS, columns=[1])):
        with pytest.raises(IndexError, match="within 0 to 50"):
            source.read(start, stop)


def test_empty_ranges_are_empty():
    assert open_rows(ROWS).read(50, 50).shape == (0, 4)
    assert open_rows(ROWS, columns=[1]).read(7, 7).shape == (0, 1)


def test_a_closed_source_is_not_read():
    with open_rows(ROWS) as source:
        view = source.with_columns([1])
        view.close()
        assert source.read(0, 2).shape == (2, 4)
    with pytest.raises(ValueError, match="closed"):
        source.read(0, 2)


def test_fingerprints_tell_arrays_apart():
    fingerprint = open_rows(ROWS).fingerprint()
    assert fingerprint == open_rows(ROWS.copy()).fingerprint()
    assert fingerprint == open_rows(np.asfortranarray(ROWS)).fingerprint()
    for row in (0, 49):
        other = ROWS.copy()
        other[row, 3] += 1e-9
        assert open_rows(other).fingerprint() != fingerprint
    others = [ROWS[:-1], ROWS.astype("f4"), ROWS[:, :3]]
    assert all(open_rows(other).fingerprint() != fingerprint for other in others)
    assert open_rows(ROWS, columns=[0, 1, 3, 2]).fingerprint() != fingerprint


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.arange(3.0), r"got an array of shape \(3,\); reshape\(-1, 1\) makes it one column"),
        (np.ones((2, 2, 2)), r"rows and columns, got shape \(2, 2, 2\)"),
        (np.empty((0, 2)), "expected rows, got none"),
        (np.empty((2, 0)), "expected columns, got none"),
        (np.array([["x"]]), "real numbers, got dtype <U1"),
        (np.array([[1j]]), "real numbers, got dtype complex128"),
    ],
)
def test_arrays_that_are_no_rows(array, message):
    with pytest.raises(ValueError, match=message):
        open_rows(array)


def test_masks_are_refused():
    with pytest.raises(TypeError, match="filled"):
        open_rows(np.ma.masked_array(ROWS, ROWS > 1))


def test_values_too_large_for_float32_become_infinite():
    source = open_rows(np.array([[1e300, 1.0]]), dtype="float32")
    np.testing.assert_array_equal(source.read(0, 1), [[np.inf, 1.0]])


def test_reading_ahead_gives_the_ranges_in_order():
    ranges = [(10, 30), (0, 10), (7, 7), (45, 50)]
    for source in (ArraySource(ROWS, "X"), ArraySource(ROWS.astype("f2"), "X")):
        read = list(read_ahead(source, iter(ranges)))
        assert len(read) == 4
        for rows, (start, stop) in zip(read, ranges, strict=True):
            np.testing.assert_array_equal(rows, source.read(start, stop))
    assert not threads()
    assert list(read_ahead(source, [])) == []


def test_at_most_two_ranges_wait():
    source = Recording()
    reader = read_ahead(source, [(i, i + 1) for i in range(20)])
    for taken in range(1, 6):
        next(reader)
        deadline = time.monotonic() + 5
        while len(source.starts) < taken + 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)
        assert len(source.starts) == taken + 2
    reader.close()


def test_the_next_range_is_read_while_the_caller_works():
    source = Recording()
    reader = read_ahead(source, [(0, 1), (1, 2)])
    next(reader)
    deadline = time.monotonic() + 5
    while len(source.starts) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert source.starts == [0, 1]
    reader.close()


def test_an_error_of_the_thread_comes_in_its_turn():
    reader = read_ahead(Recording(fails_from=2), [(i, i + 1) for i in range(9)])
    assert [next(reader)[0, 0], next(reader)[0, 0]] == [0.0, 1.0]
    with pytest.raises(OSError, match="the disk is gone"):
        next(reader)
    assert not threads()


def test_an_error_of_the_ranges_is_raised_too():
    def ranges():
        yield 0, 1
        raise RuntimeError("no more")

    reader = read_ahead(Recording(), ranges())
    next(reader)
    with pytest.raises(RuntimeError, match="no more"):
        next(reader)


@pytest.mark.parametrize("n_taken", [0, 1, 3])
@pytest.mark.parametrize("how", ["close", "forget", "raise"])
def test_leaving_early_ends_the_thread(n_taken, how):
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
    assert not threads()
    assert len(source.starts) <= n_taken + 3


def test_an_iterator_that_is_left_at_exit_does_not_hang():
    program = (
        "import numpy as np\n"
        "from pickmix.data.open_rows import open_rows, read_ahead\n"
        "reader = read_ahead(open_rows(np.ones((9, 2))), [(0, 1)] * 9)\n"
        "print(next(reader))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def test_what_is_a_source():
    class Sliced:
        columns = "its own business"

        def __len__(self):
            return 3

        def __getitem__(self, what):
            return ROWS[what]

    import pandas as pd
    import pyarrow
    import scipy.sparse

    frame = pd.DataFrame(ROWS)
    for data in ("x.npy", Sliced(), lambda: iter([]), iter([]), (x for x in []), open_rows(ROWS)):
        assert is_source(data)
    assert is_source(pyarrow.table({"a": [1.0]}))
    others = [ROWS, ROWS.tolist(), tuple(ROWS), frame, frame[0], scipy.sparse.csr_matrix(ROWS)]
    for data in [*others, scipy.sparse.csr_array(ROWS), None, 3, 1.5, {}, b"x", range(3)]:
        assert not is_source(data)


def test_what_cannot_be_opened():
    for data in ([[1.0]], ((1.0,),), {"a": [1.0]}):
        with pytest.raises(TypeError, match=r"use np\.asarray"):
            open_rows(data)
    with pytest.raises(TypeError, match=r"expected an array, a path.*; got NoneType"):
        open_rows(None)
    with pytest.raises(ValueError, match="chunk_size must be an integer >= 1"):
        open_rows(ROWS, chunk_size=0)
    with pytest.raises(ValueError, match="dtype must be float32 or float64; got 'int8'"):
        open_rows(ROWS, dtype="int8")

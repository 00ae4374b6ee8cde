"""Raw numbers in files, read in place: laws against np.load, and files that change."""

import gc
import json
import os
import pickle
import signal
import subprocess
import sys

import numpy as np
import pytest

from pickmix.data import raw_files
from pickmix.data.open_rows import is_source, open_rows, read_ahead
from pickmix.data.raw_files import RawSource
from pickmix.data.sources import ArraySource

GENERATOR = np.random.default_rng(1)
ROWS = (100 * GENERATOR.normal(size=(200, 5))).astype(np.float32)
RANGES = [(0, 200), (0, 1), (199, 200), (13, 77), (50, 50), (49, 51), (200, 200)]


def saved(path, array=ROWS):
    np.save(path, array)
    return path


def same(source, rows):
    for start, stop in RANGES:
        read = source.read(start, stop)
        assert read.dtype == source.dtype
        assert read.flags.c_contiguous
        assert read.flags.writeable
        assert read.shape == (stop - start, source.n_columns)
        np.testing.assert_array_equal(read, rows[start:stop])


@pytest.fixture(autouse=True, params=[4 << 20, 64])
def buffer(request, monkeypatch):
    monkeypatch.setattr(raw_files, "BUFFER", request.param)


@pytest.mark.parametrize("stored", ["<f4", "<f8", ">f4", ">f8", "f2", "i1", "<i8", ">u2", "?"])
@pytest.mark.parametrize("columns", [None, [4, 0], [2]])
@pytest.mark.parametrize("dtype", [None, "float32", "float64"])
def test_every_type_is_read_in_place(tmp_path, stored, columns, dtype):
    array = np.abs(ROWS).astype(stored)
    source = open_rows(saved(tmp_path / "rows.npy", array), columns=columns, dtype=dtype)
    assert isinstance(source, RawSource)
    natural = np.float32 if stored in ("<f4", ">f4", "f2") else np.float64
    assert source.dtype == (natural if dtype is None else dtype)
    expected = np.load(tmp_path / "rows.npy")
    same(source, expected if columns is None else expected[:, columns])
    assert os.listdir(tmp_path) == ["rows.npy"]


def test_several_files_are_one_table(tmp_path):
    bounds = [0, 50, 50, 51, 120, 200]
    for part in range(5):
        array = ROWS[bounds[part] : bounds[part + 1]]
        saved(tmp_path / f"part-{part}.npy", array.astype("f8") if part == 3 else array)
    source = open_rows(f"{tmp_path}/part-*.npy")
    assert source.dtype == np.float64
    same(source, ROWS)
    same(source.with_columns([3, 1]), ROWS[:, [3, 1]])
    assert source.place(0) == "part-0.npy, row 1"
    assert source.place(49) == "part-0.npy, row 50"
    assert source.place(50) == "part-2.npy, row 1"
    assert source.place(51) == "part-3.npy, row 1"
    assert source.place(199) == "part-4.npy, row 80"
    json.dumps(source.fingerprint())
    read = np.concatenate(list(read_ahead(source, [(i, i + 40) for i in range(0, 200, 40)])))
    np.testing.assert_array_equal(read, ROWS)


def test_files_of_one_name_are_told_apart(tmp_path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
        saved(tmp_path / folder / "x.npy")
    assert open_rows(f"{tmp_path}/*/x.npy").place(200) == f"{tmp_path}/b/x.npy, row 1"


def test_another_width_is_named(tmp_path):
    saved(tmp_path / "a.npy")
    saved(tmp_path / "b.npy", ROWS[:, :3])
    with pytest.raises(ValueError, match=r"b\.npy: expected 5 columns as in a\.npy, got 3"):
        open_rows(str(tmp_path / "*.npy"))


def test_a_source_of_files_can_be_sent_elsewhere(tmp_path):
    source = open_rows(saved(tmp_path / "rows.npy"), columns=[1, 2])
    same(pickle.loads(pickle.dumps(source)), ROWS[:, [1, 2]])


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_mapped_files_are_read_not_mapped(tmp_path, mode):
    path = saved(tmp_path / "rows.npy")
    mapped = np.load(path, mmap_mode=mode)
    source = open_rows(mapped)
    assert isinstance(source, RawSource)
    same(source, ROWS)
    assert source.fingerprint()["files"][0]["path"] == str(path)
    part = open_rows(mapped[60:190])
    assert isinstance(part, RawSource)
    np.testing.assert_array_equal(part.read(0, 130), ROWS[60:190])
    assert part.fingerprint() != open_rows(mapped[59:189]).fingerprint()
    assert is_source(mapped)
    assert is_source(mapped[60:190])
    assert not is_source(mapped + 1)


def test_mapped_with_an_offset_beyond_a_page(tmp_path):
    path = tmp_path / "rows.bin"
    path.write_bytes(b"x" * 10_000 + ROWS.tobytes())
    mapped = np.memmap(path, dtype="<f4", mode="r", offset=10_000, shape=(200, 5))
    source = open_rows(mapped[3:])
    assert isinstance(source, RawSource)
    np.testing.assert_array_equal(source.read(0, 197), ROWS[3:])


def test_what_was_written_to_a_mapped_file_is_read(tmp_path):
    mapped = np.memmap(tmp_path / "rows.bin", dtype="f4", mode="w+", shape=(200, 5))
    mapped[...] = ROWS
    same(open_rows(mapped), ROWS)


def test_mapped_rows_that_do_not_lie_so_in_the_file_are_copied(tmp_path):
    path = saved(tmp_path / "rows.npy")
    mapped = np.load(path, mmap_mode="r")
    private = np.load(path, mmap_mode="c")
    private[7] = 0
    expected = ROWS.copy()
    expected[7] = 0
    for array, rows in ((mapped[:, 1:], ROWS[:, 1:]), (private, expected)):
        source = open_rows(array)
        assert isinstance(source, ArraySource)
        same(source, rows)
        assert not np.shares_memory(source.read(0, 200), array)
    every_second = open_rows(mapped[::2])
    np.testing.assert_array_equal(every_second.read(0, 100), ROWS[::2])


@pytest.mark.parametrize("fate", ["gone", "replaced", "shorter"])
def test_mapped_rows_whose_path_leads_elsewhere(tmp_path, fate):
    path = saved(tmp_path / "rows.npy")
    mapped = np.load(path, mmap_mode="r")
    os.rename(path, tmp_path / "old.npy")
    if fate != "gone":
        saved(path, ROWS + 1 if fate == "replaced" else ROWS[:10])
    source = open_rows(mapped)
    assert isinstance(source, ArraySource)
    same(source, ROWS)


def test_a_file_that_was_cut_before_a_read(tmp_path):
    path = saved(tmp_path / "rows.npy")
    source = open_rows(path)
    os.truncate(path, 1000)
    with pytest.raises(OSError, match=r"rows\.npy: the file was changed \(from 4128 bytes to 1000"):
        source.read(0, 10)


def test_a_file_that_is_cut_during_a_read(tmp_path, monkeypatch):
    path = saved(tmp_path / "rows.npy")
    source = open_rows(path)
    read_at = raw_files._read_at

    def cutting(file, position, view):
        os.truncate(path, 1000)
        return read_at(file, position, view)

    monkeypatch.setattr(raw_files, "_read_at", cutting)
    with pytest.raises(OSError, match=r"rows\.npy: the file was cut while it was read"):
        source.read(100, 200)


@pytest.mark.parametrize("columns", [None, [1]])
def test_a_file_that_is_rewritten_during_a_read(tmp_path, monkeypatch, columns):
    path = saved(tmp_path / "rows.npy")
    os.utime(path, ns=(0, 0))
    source = open_rows(path, columns=columns)
    read_at = raw_files._read_at

    def rewriting(file, position, view):
        with open(path, "r+b") as other:
            other.seek(2000)
            other.write(b"1234")
        return read_at(file, position, view)

    monkeypatch.setattr(raw_files, "_read_at", rewriting)
    with pytest.raises(OSError, match=r"rows\.npy: the file was changed"):
        source.read(0, 200)


@pytest.mark.parametrize("keep_time", [False, True])
def test_a_file_that_is_replaced(tmp_path, keep_time):
    path = saved(tmp_path / "rows.npy")
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


def test_short_reads_are_continued(tmp_path, monkeypatch):
    source = open_rows(saved(tmp_path / "rows.npy"))
    read_at = raw_files._read_at
    monkeypatch.setattr(
        raw_files, "_read_at", lambda file, position, view: read_at(file, position, view[:37])
    )
    same(source, ROWS)


def test_systems_without_positioned_reads(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "preadv")
    same(open_rows(saved(tmp_path / "rows.npy")), ROWS)


@pytest.mark.skipif(not hasattr(signal, "SIGBUS"), reason="no SIGBUS here")
def test_a_mapped_file_that_is_cut_does_not_kill_the_process(tmp_path):
    path = saved(tmp_path / "rows.npy", np.zeros((100_000, 5)))
    program = (
        "import os, numpy as np\n"
        "from pickmix.data.open_rows import open_rows\n"
        f"source = open_rows(np.load({str(path)!r}, mmap_mode='r'))\n"
        f"os.truncate({str(path)!r}, 5000)\n"
        "try:\n    source.read(50_000, 60_000)\n"
        "except OSError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "rows.npy: the file was changed" in done.stdout


def test_fingerprints_of_files(tmp_path):
    path = saved(tmp_path / "rows.npy")
    fingerprint = open_rows(path).fingerprint()
    assert fingerprint == open_rows(path).fingerprint()
    assert open_rows(path, columns=[1, 0]).fingerprint() == (
        open_rows(path).with_columns([1, 0]).fingerprint()
    )
    assert open_rows(path, columns=[1, 0]).fingerprint() != fingerprint
    assert open_rows(path, dtype="float64").fingerprint() != fingerprint
    os.utime(path, ns=(0, 0))
    assert open_rows(path).fingerprint() != fingerprint


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.arange(3.0), r"array of shape \(3,\); reshape\(-1, 1\)"),
        (np.float64(3.0), r"rows and columns, got shape \(\)"),
        (np.empty((0, 2)), "expected rows, got none"),
        (np.empty((2, 0)), "expected columns, got none"),
        (np.array([["x"]]), "real numbers, got dtype <U1"),
        (np.array([[1j]]), "real numbers, got dtype complex128"),
        (np.zeros((2, 2), dtype=[("a", "f4")]), "real numbers, got dtype"),
        (np.array([[None]], dtype=object), "pickled objects"),
    ],
)
def test_npy_files_that_hold_no_rows(tmp_path, array, message):
    path = tmp_path / "rows.npy"
    np.save(path, array, allow_pickle=True)
    with pytest.raises(ValueError, match=rf"rows\.npy: .*{message}"):
        open_rows(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ".*got an empty file"),
        (b"a,b\n1,2\n", r"expected a \.npy file, but"),
        (b"\x93NUMPY\x01\x00", r"expected a \.npy file, but"),
    ],
)
def test_files_that_are_no_npy(tmp_path, content, message):
    (tmp_path / "rows.npy").write_bytes(content)
    with pytest.raises(ValueError, match=rf"rows\.npy: {message}"):
        open_rows(tmp_path / "rows.npy")


def test_a_file_that_was_cut_before_it_is_opened(tmp_path):
    path = saved(tmp_path / "rows.npy")
    os.truncate(path, 3000)
    with pytest.raises(ValueError, match="the file is cut: expected 4128 bytes, got 3000"):
        open_rows(path)
    with pytest.raises(ValueError, match=r"array of shape \(3,\)"):
        open_rows(np.memmap(tmp_path / "x.bin", dtype="f4", mode="w+", shape=(3,)))
    gc.collect()

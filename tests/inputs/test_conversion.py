"""Caches of converted rows: when they serve, when they go away, and what goes wrong."""

import errno
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import namedtuple

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from pickmix.inputs import readers
from pickmix.inputs.open_rows import open_rows

ROWS = np.random.default_rng(3).normal(size=(100, 2))
OTHERS = ROWS[::-1].copy()


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The system's folder for temporary files."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def conversions(monkeypatch):
    """Names of what was converted, one for each time."""
    done = []
    original = readers._write

    def counted(rows, *args):
        done.append(rows.name)
        return original(rows, *args)

    monkeypatch.setattr(readers, "_write", counted)
    return done


@pytest.fixture(params=["parquet", "csv", "npz"])
def make(request):
    """Write rows to a file of a kind that is converted."""

    def written(folder, rows=ROWS):
        path = folder / f"rows.{request.param}"
        if request.param == "parquet":
            table = pyarrow.table({"a": rows[:, 0], "b": rows[:, 1]})
            pyarrow.parquet.write_table(table, path, compression="none")
        elif request.param == "csv":
            np.savetxt(path, rows, delimiter=",", header="a,b", comments="", fmt="%25.17e")
        else:
            np.savez(path, X=rows)
        return path

    return written


def files(folder):
    return sorted(os.listdir(folder)) if os.path.exists(folder) else []


def test_a_cache_serves_the_second_time(tmp_path, make, conversions, temporary):
    path, cache = make(tmp_path), tmp_path / "cache"
    first = open_rows(path, cache=cache)
    held = files(cache)
    assert [(name[:5], os.path.splitext(name)[1]) for name in held] == [
        ("rows-", ".json"),
        ("rows-", ".npy"),
    ]
    np.testing.assert_array_equal(np.load(cache / held[1]), ROWS)
    first_fingerprint = first.fingerprint()
    first.close()
    second = open_rows(path, cache=str(cache))
    assert len(conversions) == 1
    assert files(cache) == held
    np.testing.assert_array_equal(second.read(0, 100), ROWS)
    assert second.fingerprint() == first_fingerprint
    assert second.names == first.names
    assert second.place(7) == first.place(7) == f"{path.name}, row 8"
    assert files(temporary) == []


@pytest.mark.parametrize("change", ["contents", "time", "size", "replaced"])
def test_an_outdated_cache_is_noticed_and_goes(tmp_path, make, conversions, change):
    path, cache = make(tmp_path), tmp_path / "cache"
    os.utime(path, ns=(10**9, 10**9))
    fingerprint, held = open_rows(path, cache=cache).fingerprint(), files(cache)
    rows = ROWS
    if change == "time":
        os.utime(path, ns=(10**9, 10**9 + 1))
    elif change == "size":
        rows = ROWS[:90]
        make(tmp_path, rows)
        os.utime(path, ns=(10**9, 10**9))
    else:
        if change == "replaced":
            path.unlink()
        rows = OTHERS
        make(tmp_path, rows)
    second = open_rows(path, cache=cache)
    assert len(conversions) == 2
    np.testing.assert_array_equal(second.read(0, len(rows)), rows)
    assert second.fingerprint() != fingerprint
    assert len(files(cache)) == 2
    assert not set(files(cache)) & set(held)


def test_caches_of_other_columns_types_and_files_stand_side_by_side(tmp_path, make, conversions):
    path, cache = make(tmp_path), tmp_path / "cache"
    (tmp_path / "more").mkdir()
    other = make(tmp_path / "more", OTHERS)
    for _ in range(2):
        np.testing.assert_array_equal(open_rows(path, cache=cache).read(0, 100), ROWS)
        swapped = open_rows(path, columns=[1, 0], cache=cache)
        np.testing.assert_array_equal(swapped.read(0, 100), ROWS[:, ::-1])
        narrow = open_rows(path, dtype="float32", cache=cache)
        np.testing.assert_array_equal(narrow.read(0, 100), ROWS.astype("f4"))
        np.testing.assert_array_equal(open_rows(other, cache=cache).read(0, 100), OTHERS)
        assert len(conversions) == 4
        assert len(files(cache)) == 8


@pytest.mark.parametrize("damage", ["cut", "gone", "no json", "bad json", "other json", "format"])
def test_a_damaged_cache_is_written_anew(tmp_path, make, conversions, damage, monkeypatch):
    path, cache = make(tmp_path), tmp_path / "cache"
    open_rows(path, cache=cache)
    description, rows = (cache / name for name in files(cache))
    if damage == "cut":
        os.truncate(rows, 500)
    elif damage == "gone":
        rows.unlink()
    elif damage == "no json":
        description.unlink()
    elif damage == "bad json":
        description.write_text("{")
    elif damage == "other json":
        description.write_text(json.dumps(json.loads(description.read_text()) | {"key": {}}))
    else:
        monkeypatch.setattr(readers, "FORMAT", 0)
    np.testing.assert_array_equal(open_rows(path, cache=cache).read(0, 100), ROWS)
    assert len(conversions) == 2
    assert len(files(cache)) == (4 if damage == "format" else 2)
    open_rows(path, cache=cache)
    assert len(conversions) == 2


def test_functions_and_slices_are_converted_each_time_and_not_kept(tmp_path, conversions):
    cache = tmp_path / "cache"
    for _ in range(2):
        with open_rows(lambda: [ROWS], cache=cache) as source:
            assert len(files(cache)) == 1
            np.testing.assert_array_equal(source.read(0, 100), ROWS)
        assert files(cache) == []
    assert len(conversions) == 2


@pytest.mark.parametrize("how", ["close", "with", "forget", "forget the view"])
def test_a_temporary_cache_goes_away_with_the_source(tmp_path, make, how, temporary):
    source = open_rows(make(tmp_path), chunk_size=10, dtype="float32", columns=[1])
    assert len(files(temporary)) == 1
    view = source.with_columns([0])
    view.close()
    assert len(files(temporary)) == 1
    if how == "close":
        source.close()
    elif how == "with":
        with source:
            pass
    elif how == "forget":
        del source
    else:
        view = source.with_columns([0])
        del source
        gc.collect()
        np.testing.assert_array_equal(view.read(0, 100), ROWS[:, [1]].astype("f4"))
        del view
    gc.collect()
    assert files(temporary) == []


def run(program, folder, **options):
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | {"TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


PROGRAM = """
import numpy as np
from pickmix import open_rows
source = open_rows(lambda: [np.ones((9, 2))])
print("ready", flush=True)
"""


def test_a_forked_child_leaves_the_cache_to_its_parent_whose_exit_removes_it(temporary):
    program = PROGRAM + (
        "import os, gc\nchild = os.fork()\n"
        "if child == 0:\n    del source\n    gc.collect()\n    os._exit(0)\n"
        "os.waitpid(child, 0)\nprint(source.read(0, 9).sum())\n"
    )
    with run(program, temporary) as process:
        assert process.stdout.read() == "ready\n18.0\n"
    assert files(temporary) == []


def test_what_is_killed_while_converting_is_not_taken_for_a_cache(tmp_path, temporary):
    path, cache = tmp_path / "rows.csv", tmp_path / "cache"
    path.write_text("1,2\n")
    program = (
        "from pickmix import open_rows\n"
        "from pickmix.inputs import readers\n"
        "def write_rows(file, *_):\n"
        "    file.write(b'half')\n    print('ready', flush=True)\n    input()\n"
        "readers.write_rows = write_rows\n"
        f"open_rows({str(path)!r}, cache={str(cache)!r})\n"
    )
    with run(program, temporary, stdin=subprocess.PIPE) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
    np.testing.assert_array_equal(open_rows(path, cache=cache).read(0, 1), [[1.0, 2.0]])


STEPS = ["tempfile.mkdtemp", "os.fsync", "os.replace", "pathlib.Path.write_text"]
STEPS += ["pickmix.inputs.readers.write_rows"]


@pytest.mark.parametrize("folder", [None, "new/deep", "old"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_what_fails_at_any_step_leaves_nothing(
    tmp_path, temporary, make, monkeypatch, step, error, folder
):
    path, old = make(tmp_path), tmp_path / "old"
    old.mkdir()
    cache = folder and tmp_path / folder

    def raise_it(*_, **__):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(step, raise_it)
        # Only what is kept is moved and described.
        if folder is None and step in ("os.replace", "pathlib.Path.write_text"):
            open_rows(path).close()
            return
        with pytest.raises(type(error)) as caught:
            open_rows(path, cache=cache)
    if isinstance(error, OSError):
        assert caught.value.errno == errno.ENOSPC
        place = f"{path}: not enough room for the converted rows in {cache or temporary}: "
        assert place in str(caught.value)
        assert str(caught.value).endswith("choose another folder with cache=")
    assert files(temporary) == files(old) == []
    assert not (tmp_path / "new").exists()
    np.testing.assert_array_equal(open_rows(path, cache=cache).read(0, 100), ROWS)


class Sliced:
    def __len__(self):
        return 100

    def __getitem__(self, what):
        return ROWS[what]


@pytest.mark.parametrize("kind", ["parquet", "slices", "table"])
def test_room_is_checked_before_anything_is_written(tmp_path, monkeypatch, kind, temporary):
    table = pyarrow.table({"a": ROWS[:, 0], "b": ROWS[:, 1]})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    data = {"parquet": tmp_path / "rows.parquet", "slices": Sliced(), "table": table}[kind]
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2000, 273, 1727))
    with monkeypatch.context() as patched:
        patched.setattr(readers, "write_rows", lambda *_: pytest.fail("nothing may be written"))
        message = r"tmp: 1\.7 kB are free, 1\.7 kB needed; choose another folder with cache="
        with pytest.raises(OSError, match=message) as caught:
            open_rows(data)
    assert caught.value.errno == errno.ENOSPC
    assert files(temporary) == []
    # One byte more is enough, and half of it for half as many bytes per number.
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2000, 272, 1728))
    open_rows(data).close()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2000, 272, 928))
    open_rows(data, dtype="float32").close()


def test_a_file_that_changes_while_it_is_converted(tmp_path, make, monkeypatch):
    path = make(tmp_path)
    original = readers.write_rows

    def write_rows(*args):
        original(*args)
        os.utime(path, ns=(1, 1))

    monkeypatch.setattr(readers, "write_rows", write_rows)
    with pytest.raises(OSError, match=rf"{path.name}: the file was changed"):
        open_rows(path, cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_is_cut_while_it_is_read_is_named(tmp_path, make):
    source = open_rows(make(tmp_path), cache=tmp_path / "cache")
    name = files(tmp_path / "cache")[1]
    os.truncate(tmp_path / "cache" / name, 1000)
    with pytest.raises(OSError, match=rf"{name}: the file was cut"):
        source.read(0, 100)


def test_two_that_convert_at_the_same_time_share_one_cache(tmp_path, make, monkeypatch):
    path, cache = make(tmp_path), tmp_path / "cache"
    cache.mkdir()
    both_have_written = threading.Barrier(2)
    original = readers._write
    opened, failures = [], []

    def write(*args):
        starts = original(*args)
        both_have_written.wait(10)
        return starts

    def work():
        try:
            source = open_rows(path, cache=cache)
            both_have_written.wait(10)
            opened.append(source.read(0, 100))
        except Exception as error:
            failures.append(error)

    monkeypatch.setattr(readers, "_write", write)
    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures
    assert len(files(cache)) == 2
    for rows in opened:
        np.testing.assert_array_equal(rows, ROWS)


def test_a_cache_tells_decimal_marks_apart(tmp_path):
    (tmp_path / "a.csv").write_text("1,5\n2,5\n")
    for decimal in (None, ",", "."):
        expected = [[1.5], [2.5]] if decimal == "," else [[1.0, 5.0], [2.0, 5.0]]
        with open_rows(tmp_path / "a.csv", decimal=decimal, cache=tmp_path / "cache") as source:
            np.testing.assert_array_equal(source.read(0, 2), expected)

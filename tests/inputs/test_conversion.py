"""Caches of converted rows: when they serve, when they go away, and what goes wrong."""

import errno
import gc
import os
import shutil
import subprocess
import sys
import tempfile
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
    done, original = [], readers._write

    def counted(rows, *args):
        done.append(rows.name)
        return original(rows, *args)

    monkeypatch.setattr(readers, "_write", counted)
    return done


def make(folder, rows=ROWS, kind="csv"):
    """Write rows to a file of a kind that is converted."""
    path = folder / f"rows.{kind}"
    if kind == "parquet":
        table = pyarrow.table({"a": rows[:, 0], "b": rows[:, 1]})
        pyarrow.parquet.write_table(table, path, compression="none")
    elif kind == "csv":
        np.savetxt(path, rows, delimiter=",", header="a,b", comments="", fmt="%25.17e")
    else:
        np.savez(path, X=rows)
    return path


def files(folder):
    return sorted(os.listdir(folder)) if os.path.exists(folder) else []


@pytest.mark.parametrize("kind", ["parquet", "csv", "npz"])
def test_a_cache_serves_the_second_time(tmp_path, conversions, temporary, kind):
    path, cache = make(tmp_path, kind=kind), tmp_path / "cache"
    first = open_rows(path, cache=cache)
    (held,) = files(cache)
    np.testing.assert_array_equal(np.load(cache / held), ROWS)
    fingerprint = first.fingerprint()
    first.close()
    second = open_rows(path, cache=str(cache))
    assert len(conversions) == 1
    np.testing.assert_array_equal(second.read(0, 100), ROWS)
    assert second.fingerprint() == fingerprint
    assert second.names == first.names
    assert second.place(7) == first.place(7) == f"{path.name}, row 8"
    assert files(temporary) == []


@pytest.mark.parametrize("change", ["contents", "time", "size", "replaced"])
def test_an_outdated_cache_is_noticed_and_goes(tmp_path, conversions, change):
    path, cache = make(tmp_path), tmp_path / "cache"
    os.utime(path, ns=(10**9, 10**9))
    fingerprint, held = open_rows(path, cache=cache).fingerprint(), files(cache)
    rows = ROWS[:90] if change == "size" else ROWS if change == "time" else OTHERS
    if change == "replaced":
        path.unlink()
    if change != "time":
        make(tmp_path, rows)
    if change in ("time", "size"):
        os.utime(path, ns=(10**9, 10**9 + (change == "time")))
    second = open_rows(path, cache=cache)
    assert len(conversions) == 2
    np.testing.assert_array_equal(second.read(0, len(rows)), rows)
    assert second.fingerprint() != fingerprint
    assert len(files(cache)) == 1
    assert files(cache) != held


def test_caches_of_other_columns_types_marks_and_files_stand_side_by_side(tmp_path, conversions):
    path, cache = make(tmp_path), tmp_path / "cache"
    (tmp_path / "more").mkdir()
    other = make(tmp_path / "more", OTHERS)
    marks = tmp_path / "marks.csv"
    marks.write_text("1,5\n2,5\n")
    cases = [
        (path, {}, ROWS),
        (path, {"columns": [1, 0]}, ROWS[:, ::-1]),
        (path, {"dtype": "float32"}, ROWS.astype("f4")),
        (other, {}, OTHERS),
        (marks, {}, [[1.0, 5.0], [2.0, 5.0]]),
        (marks, {"decimal": ","}, [[1.5], [2.5]]),
    ]
    for _ in range(2):
        for data, options, expected in cases:
            source = open_rows(data, cache=cache, **options)
            np.testing.assert_array_equal(source.read(0, source.n_rows), expected)
        assert len(conversions) == len(files(cache)) == len(cases)


@pytest.mark.parametrize("damage", ["cut", "gone", "no description", "format"])
def test_a_damaged_cache_is_written_anew(tmp_path, conversions, damage, monkeypatch):
    path, cache = make(tmp_path), tmp_path / "cache"
    open_rows(path, cache=cache)
    rows = cache / files(cache)[0]
    if damage == "gone":
        rows.unlink()
    elif damage == "format":
        monkeypatch.setattr(readers, "FORMAT", 0)
    else:
        os.truncate(rows, 500 if damage == "cut" else 128 + ROWS.nbytes)
    for _ in range(2):
        np.testing.assert_array_equal(open_rows(path, cache=cache).read(0, 100), ROWS)
        assert len(conversions) == 2


def test_functions_are_converted_each_time_and_not_kept(tmp_path, conversions):
    for _ in range(2):
        with open_rows(lambda: [ROWS], cache=tmp_path / "cache") as source:
            assert len(files(tmp_path / "cache")) == 1
            np.testing.assert_array_equal(source.read(0, 100), ROWS)
        assert files(tmp_path / "cache") == []
    assert len(conversions) == 2


@pytest.mark.parametrize("how", ["close", "forget", "forget the view"])
def test_a_temporary_cache_goes_away_with_the_source(tmp_path, how, temporary):
    source = open_rows(make(tmp_path), chunk_size=10, dtype="float32", columns=[1])
    view = source.with_columns([0])
    view.close()
    assert len(files(temporary)) == 1
    if how == "close":
        source.close()
    elif how == "forget the view":
        view = source.with_columns([0])
        del source
        gc.collect(1)
        np.testing.assert_array_equal(view.read(0, 100), ROWS[:, [1]].astype("f4"))
        del view
    else:
        del source
    gc.collect(1)
    assert files(temporary) == []


def test_a_forked_child_leaves_the_cache_to_its_parent_whose_exit_removes_it(temporary):
    program = (
        "import gc, os\nimport numpy as np\nfrom pickmix import open_rows\n"
        "source = open_rows(lambda: [np.ones((9, 2))])\nchild = os.fork()\n"
        "if child == 0:\n    del source\n    gc.collect()\n    os._exit(0)\n"
        "os.waitpid(child, 0)\nprint(source.read(0, 9).sum())\n"
    )
    environment = os.environ | {"TMPDIR": str(temporary)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout == "18.0\n"
    assert files(temporary) == []


@pytest.mark.parametrize("folder", [None, "cache"])
@pytest.mark.parametrize("step", ["os.fsync", "os.replace", "pickmix.inputs.readers.write_rows"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_what_fails_at_any_step_leaves_nothing(
    tmp_path, temporary, monkeypatch, step, error, folder
):
    path, cache = make(tmp_path), folder and tmp_path / folder

    def raise_it(*_, **__):
        raise error

    # Only what is kept is moved.
    if folder is None and step == "os.replace":
        return
    with monkeypatch.context() as patched:
        patched.setattr(step, raise_it)
        with pytest.raises(type(error)) as caught:
            open_rows(path, cache=cache)
    if isinstance(error, OSError):
        assert caught.value.errno == errno.ENOSPC
        place = f"{path}: not enough room for the converted rows in {cache or temporary}: "
        assert place in str(caught.value)
        assert str(caught.value).endswith("choose another folder with cache=")
    assert files(temporary) == files(tmp_path / "cache") == []
    np.testing.assert_array_equal(open_rows(path, cache=cache).read(0, 100), ROWS)


def test_room_is_checked_before_anything_is_written(tmp_path, monkeypatch, temporary):
    path = make(tmp_path, kind="parquet")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2000, 273, 1727))
    with monkeypatch.context() as patched:
        patched.setattr(readers, "write_rows", lambda *_: pytest.fail("nothing may be written"))
        message = r"tmp: 1\.7 kB are free, 1\.7 kB needed; choose another folder with cache="
        with pytest.raises(OSError, match=message) as caught:
            open_rows(path)
    assert caught.value.errno == errno.ENOSPC
    assert files(temporary) == []
    # One byte more is enough, and half of it for half as many bytes per number.
    for free, options in ((1728, {}), (928, {"dtype": "float32"})):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: usage(2000, 0, free))
        open_rows(path, **options).close()


def test_a_file_that_changes_while_it_is_converted(tmp_path, monkeypatch):
    path, original = make(tmp_path), readers.write_rows

    def write_rows(*args):
        original(*args)
        os.utime(path, ns=(1, 1))

    monkeypatch.setattr(readers, "write_rows", write_rows)
    with pytest.raises(OSError, match=rf"{path.name}: the file was changed"):
        open_rows(path, cache=tmp_path / "cache")
    assert files(tmp_path / "cache") == []

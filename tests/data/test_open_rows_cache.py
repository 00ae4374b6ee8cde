"""Caches of converted rows: when they serve, when they go away, and what goes wrong."""

import errno
import gc
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import namedtuple
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from pickmix.data import conversion, readers, temporary
from pickmix.data.open_rows import open_rows

ROWS = np.random.default_rng(3).normal(size=(100, 2))
OTHERS = ROWS[::-1].copy()


@pytest.fixture(autouse=True)
def folder_for_temporary_files(tmp_path, monkeypatch):
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def conversions(monkeypatch):
    """Names of what was converted, one for each time."""
    done = []
    original = conversion._write

    def counted(reader, *args):
        done.append(reader.name)
        return original(reader, *args)

    monkeypatch.setattr(conversion, "_write", counted)
    return done


@pytest.fixture(params=["parquet", "csv", "npy", "npz"])
def make(request):
    """Write rows to a file of a kind that is converted."""

    def written(path, rows=ROWS):
        path = path / f"rows.{request.param}"
        if request.param == "parquet":
            table = pyarrow.table({"a": rows[:, 0], "b": rows[:, 1]})
            pyarrow.parquet.write_table(table, path, compression="none")
        elif request.param == "csv":
            np.savetxt(path, rows, delimiter=",", header="a,b", comments="", fmt="%25.17e")
        elif request.param == "npy":
            np.save(path, np.asfortranarray(rows))
        else:
            np.savez(path, X=rows)
        return path

    return written


def files(folder):
    return sorted(os.listdir(folder)) if os.path.exists(folder) else []


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fail_after(n_calls, error=full):
    """A write that fails half way through its call number n_calls + 1."""
    original = conversion.write_all
    calls = []

    def write_all(file, data):
        calls.append(1)
        if len(calls) > n_calls:
            original(file, memoryview(data).cast("B")[:10])
            error()
        original(file, data)

    return write_all


def test_a_cache_serves_the_second_time(tmp_path, make, conversions):
    path, cache = make(tmp_path), tmp_path / "cache"
    first = open_rows(path, cache=cache)
    held = files(cache)
    assert [name[:5] + name[-5:] for name in held] == [
        "rows-.json",
        "rows-s.npy"[:5] + held[1][-5:],
    ]
    np.testing.assert_array_equal(np.load(cache / held[1]), ROWS)
    first.close()
    second = open_rows(path, cache=str(cache))
    assert len(conversions) == 1
    assert files(cache) == held
    np.testing.assert_array_equal(second.read(0, 100), ROWS)
    assert second.fingerprint() == first.fingerprint()
    assert second.names == first.names
    assert second.place(7) == first.place(7) == f"{path.name}, row 8"
    assert files(tmp_path / "tmp") == []


@pytest.mark.parametrize("change", ["contents", "time", "size", "replaced"])
def test_a_changed_file_is_converted_again_and_the_old_cache_goes(
    tmp_path, make, conversions, change
):
    path, cache = make(tmp_path), tmp_path / "cache"
    os.utime(path, ns=(10**9, 10**9))
    first = open_rows(path, cache=cache)
    fingerprint, held = first.fingerprint(), files(cache)
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
        monkeypatch.setattr(conversion, "FORMAT", 2)
    source = open_rows(path, cache=cache)
    np.testing.assert_array_equal(source.read(0, 100), ROWS)
    assert len(conversions) == 2
    assert len(files(cache)) == 2
    open_rows(path, cache=cache)
    assert len(conversions) == 2


def test_functions_and_slices_are_converted_each_time_and_not_kept(tmp_path, conversions):
    cache = tmp_path / "cache"
    for _ in range(2):
        with open_rows(lambda: [ROWS], cache=cache) as source:
            assert len(files(cache)) == 1
            assert files(cache)[0].startswith(f"pickmix-rows-{os.getpid()}-")
            np.testing.assert_array_equal(source.read(0, 100), ROWS)
        assert files(cache) == []
    assert len(conversions) == 2


def test_fingerprints_of_functions_are_those_of_their_rows():
    first, second = (open_rows(lambda: [ROWS[:50], ROWS[50:]]) for _ in range(2))
    assert first.fingerprint() == second.fingerprint()
    assert open_rows(lambda: [ROWS]).fingerprint() == first.fingerprint()
    assert open_rows(lambda: [OTHERS]).fingerprint() != first.fingerprint()


@pytest.mark.parametrize("how", ["close", "forget", "with", "forget the view"])
def test_a_temporary_cache_goes_away_with_the_source(tmp_path, make, how):
    temporary_files = tmp_path / "tmp"
    path = make(tmp_path)
    source = open_rows(path, chunk_size=10, dtype="float32", columns=[1])
    assert len(files(temporary_files)) == 1
    view = source.with_columns([0])
    view.close()
    assert len(files(temporary_files)) == 1
    if how == "close":
        source.close()
    elif how == "with":
        with source:
            pass
    elif how == "forget":
        del source, view
    else:
        view = source.with_columns([0])
        del source
        gc.collect()
        np.testing.assert_array_equal(view.read(0, 100), ROWS[:, [1]].astype("f4"))
        del view
    gc.collect()
    assert files(temporary_files) == []


def run(program, folder, **options):
    environment = os.environ | {"TMPDIR": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


PROGRAM = """
import numpy as np
from pickmix.data.open_rows import open_rows
source = open_rows(lambda: [np.ones((9, 2))])
print("ready", flush=True)
"""


def test_a_temporary_cache_goes_away_at_exit(tmp_path):
    with run(PROGRAM, tmp_path / "tmp") as process:
        assert process.stdout.read() == "ready\n"
    assert process.returncode == 0
    assert files(tmp_path / "tmp") == []


def test_a_forked_child_leaves_the_cache_to_its_parent(tmp_path):
    program = PROGRAM + (
        "import os, gc\nchild = os.fork()\n"
        "if child == 0:\n    del source\n    gc.collect()\n    os._exit(0)\n"
        "os.waitpid(child, 0)\nprint(source.read(0, 9).sum())\n"
    )
    with run(program, tmp_path / "tmp") as process:
        assert process.stdout.read() == "ready\n18.0\n"
    assert files(tmp_path / "tmp") == []


def test_leftovers_of_killed_processes_are_removed_by_the_next(tmp_path):
    folder = tmp_path / "tmp"
    with run(PROGRAM + "input()", folder, stdin=subprocess.PIPE) as process:
        assert process.stdout.readline() == "ready\n"
        with open_rows(lambda: [ROWS]):
            # The other lives: its folder stays.
            assert len(files(folder)) == 2
        assert len(files(folder)) == 1
        process.send_signal(signal.SIGKILL)
    assert len(files(folder)) == 1
    with open_rows(lambda: [ROWS]):
        assert len(files(folder)) == 1
        assert files(folder)[0].startswith(f"pickmix-rows-{os.getpid()}-")
    assert files(folder) == []


def test_killed_while_converting(tmp_path):
    program = (
        "import numpy as np\n"
        "from pickmix.data.open_rows import open_rows\n"
        "def batches():\n    yield np.ones((9, 2))\n    print('ready', flush=True)\n    input()\n"
        f"open_rows(batches, cache={str(tmp_path / 'cache')!r})\n"
    )
    with run(program, tmp_path / "tmp", stdin=subprocess.PIPE) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
    assert len(files(tmp_path / "cache")) == 1
    (tmp_path / "rows.csv").write_text("1,2\n")
    open_rows(tmp_path / "rows.csv", cache=tmp_path / "cache")
    assert [Path(name).suffix for name in files(tmp_path / "cache")] == [".json", ".npy"]


def test_only_leftovers_are_removed(tmp_path, monkeypatch):
    folder = tmp_path / "tmp"
    with open_rows(lambda: [ROWS]) as source:
        kept = files(folder)
        for name in ("pickmix-rows-x-1", "pickmix-other", "pickmix-rows-999999999-new"):
            (folder / name).mkdir()
        (folder / "pickmix-rows-999999999-old").mkdir()
        os.utime(folder / "pickmix-rows-999999999-old", (0, 0))
        # To another container this process seems dead; the lock says that it is not.
        monkeypatch.setattr(temporary, "_is_running", lambda process: False)
        temporary.remove_leftovers(folder)
        assert set(files(folder)) == {
            *kept,
            "pickmix-rows-x-1",
            "pickmix-other",
            "pickmix-rows-999999999-new",
        }
        assert source.read(0, 1).shape == (1, 2)


@pytest.mark.parametrize("n_calls", [0, 1])
def test_a_full_disk_leaves_nothing(tmp_path, make, monkeypatch, n_calls):
    path = make(tmp_path)
    monkeypatch.setattr(conversion, "write_all", fail_after(n_calls))
    for cache in (None, tmp_path / "new", tmp_path / "new" / "deep", tmp_path / "there"):
        (tmp_path / "there").mkdir(exist_ok=True)
        where = tmp_path / "tmp" if cache is None else cache
        with pytest.raises(OSError, match=rf"not enough room .* in {where}: .* cache=") as caught:
            open_rows(path, cache=cache)
        assert caught.value.errno == errno.ENOSPC
        assert str(path) in str(caught.value)
        assert files(tmp_path / "tmp") == files(tmp_path / "there") == []
        assert not (tmp_path / "new").exists()


def test_a_full_disk_keeps_the_caches_that_are_there(tmp_path, make, monkeypatch):
    path, cache = make(tmp_path), tmp_path / "cache"
    open_rows(path, cache=cache)
    held = files(cache)
    make(tmp_path, OTHERS[:50])
    with monkeypatch.context() as patched:
        patched.setattr(conversion, "write_all", fail_after(1))
        with pytest.raises(OSError, match="not enough room"):
            open_rows(path, cache=cache)
    assert files(cache) == held
    np.testing.assert_array_equal(open_rows(path, cache=cache).read(0, 50), OTHERS[:50])


@pytest.mark.parametrize("step", ["link", "description", "folder", "lock", "fsync"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_what_fails_at_any_step_leaves_nothing(tmp_path, make, monkeypatch, step, error):
    path, cache = make(tmp_path), tmp_path / "cache"

    def fail(*_, **__):
        raise error

    with monkeypatch.context() as patched:
        if step == "link":
            patched.setattr(os, "link", fail)
            patched.setattr(
                os, "replace", lambda a, b: fail() if str(b).endswith("npy") else os.rename(a, b)
            )
        elif step == "description":
            patched.setattr("pathlib.Path.write_text", fail)
        elif step == "folder":
            patched.setattr(tempfile, "mkdtemp", fail)
        elif step == "lock":
            patched.setattr(temporary, "_lock", fail)
        else:
            patched.setattr(os, "fsync", fail)
        with pytest.raises(type(error)):
            open_rows(path, cache=cache)
    assert not cache.exists()
    np.testing.assert_array_equal(open_rows(path, cache=cache).read(0, 100), ROWS)


def test_writes_that_take_only_a_part_are_continued():
    class Slow(io.BytesIO):
        def write(self, data):
            return super().write(bytes(data[:7]))

    file = Slow()
    conversion.write_all(file, ROWS)
    assert file.getvalue() == ROWS.tobytes()


def test_interrupted_while_writing(tmp_path, make, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(conversion, "write_all", fail_after(0, interrupt))
    with pytest.raises(KeyboardInterrupt):
        open_rows(make(tmp_path))
    assert files(tmp_path / "tmp") == []


@pytest.mark.parametrize("kind", ["parquet", "slices", "table"])
def test_room_is_checked_before_anything_is_written(tmp_path, monkeypatch, kind):
    table = pyarrow.table({"a": ROWS[:, 0], "b": ROWS[:, 1]})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")

    class Sliced:
        def __len__(self):
            return 100

        def __getitem__(self, what):
            return ROWS[what]

    def write_all(file, data):
        raise AssertionError("nothing may be written")

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2000, 273, 1727))
    data = {"parquet": tmp_path / "rows.parquet", "slices": Sliced(), "table": table}[kind]
    with monkeypatch.context() as patched:
        patched.setattr(conversion, "write_all", write_all)
        message = r"tmp: 1\.7 kB are free, 1\.7 kB needed; choose another folder with cache="
        with pytest.raises(OSError, match=message) as caught:
            open_rows(data)
    assert caught.value.errno == errno.ENOSPC
    assert files(tmp_path / "tmp") == []
    # One byte more is enough, and half of it for half as many bytes per number.
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2000, 272, 1728))
    open_rows(data).close()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2000, 272, 928))
    open_rows(data, dtype="float32").close()


def test_a_file_that_changes_while_it_is_converted(tmp_path, make, monkeypatch):
    path = make(tmp_path)
    original = conversion.write_all

    def write_all(file, data):
        original(file, data)
        os.utime(path, ns=(1, 1))

    monkeypatch.setattr(conversion, "write_all", write_all)
    with pytest.raises(OSError, match=rf"{path.name}: the file was changed"):
        open_rows(path, cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_file_that_is_replaced_after_it_was_converted_does_not_matter(tmp_path, make):
    path = make(tmp_path)
    source = open_rows(path)
    make(tmp_path, OTHERS)
    np.testing.assert_array_equal(source.read(0, 100), ROWS)


def test_a_cache_that_is_cut_while_it_is_read_is_named(tmp_path, make):
    source = open_rows(make(tmp_path), cache=tmp_path / "cache")
    name = files(tmp_path / "cache")[1]
    os.truncate(tmp_path / "cache" / name, 1000)
    with pytest.raises(OSError, match=rf"{name}: the file was changed"):
        source.read(0, 1)


def test_two_that_convert_at_the_same_time_share_one_cache(tmp_path, make, monkeypatch):
    path, cache = make(tmp_path), tmp_path / "cache"
    cache.mkdir()
    both_have_written = threading.Barrier(2)
    original = conversion._publish
    opened, failures = [], []

    def publish(*args):
        both_have_written.wait(10)
        return original(*args)

    def work():
        try:
            opened.append(open_rows(path, cache=cache))
        except Exception as error:
            failures.append(error)

    monkeypatch.setattr(conversion, "_publish", publish)
    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures
    assert len(files(cache)) == 2
    for source in opened:
        np.testing.assert_array_equal(source.read(0, 100), ROWS)


def test_where_files_cannot_be_linked(tmp_path, make, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    source = open_rows(make(tmp_path), cache=tmp_path / "cache")
    np.testing.assert_array_equal(source.read(0, 100), ROWS)
    assert len(files(tmp_path / "cache")) == 2


def test_a_cache_of_many_parts_knows_their_places(tmp_path, conversions, monkeypatch):
    monkeypatch.setattr(readers, "BATCH", 100)
    for part in range(3):
        table = pyarrow.table({"a": ROWS[: 10 + part, 0]})
        pyarrow.parquet.write_table(table, tmp_path / f"p{part}.parquet")
    for _ in range(2):
        with open_rows(f"{tmp_path}/*.parquet", cache=tmp_path / "cache") as source:
            places = [source.place(row) for row in (0, 9, 10, 20, 21, 32)]
            assert places == [
                "p0.parquet, row 1",
                "p0.parquet, row 10",
                "p1.parquet, row 1",
                "p1.parquet, row 11",
                "p2.parquet, row 1",
                "p2.parquet, row 12",
            ]
    assert len(conversions) == 1


def test_files_that_come_or_go_make_another_cache(tmp_path, conversions):
    for part in range(2):
        pyarrow.parquet.write_table(
            pyarrow.table({"a": ROWS[:, part]}), tmp_path / f"p{part}.parquet"
        )
    for n_parts in (2, 3):
        with open_rows(f"{tmp_path}/*.parquet", cache=tmp_path / "cache") as source:
            assert source.n_rows == 100 * n_parts
        shutil.copy(tmp_path / "p0.parquet", tmp_path / "p2.parquet")
    assert len(conversions) == 2


def test_times_of_the_same_tick_do_not_matter_for_other_sizes(tmp_path, conversions):
    path = tmp_path / "rows.csv"
    for n_rows in (3, 4):
        path.write_text("1,2\n" * n_rows)
        os.utime(path, ns=(5, 5))
        with open_rows(path, cache=tmp_path / "cache") as source:
            assert source.n_rows == n_rows
    assert len(conversions) == 2

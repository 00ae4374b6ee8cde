"""Checkpoint files: what goes in comes out, two are kept, and nothing foreign is run."""

import errno
import os
import pickle

import numpy as np
import pytest

from pickmix.fitting.checkpoint import Checkpoints
from pickmix.fitting.stopping import Outcome, Plateau

CALL = {"parameters": {"n_components": 3, "tol": 0.1}, "rows": {"path": "a.npy"}}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_arrays_objects_and_shared_references_come_back(tmp_path):
    array = np.random.default_rng(0).normal(size=(1000, 3))
    rows = np.arange(5)
    values = {
        "a": array,
        "again": array,
        "plateau": Plateau(0.1, smoothed=2.0),
        "outcome": Outcome.MAX_TIME,
        "scalar": np.float64(0.1),
        "rows": rows,
        "trace": np.zeros(3, dtype=[("x", np.int64), ("y", np.float32)]),
    }
    Checkpoints(tmp_path, 1.0, CALL).write(values, {"rows": rows})
    others = np.arange(7)
    found = Checkpoints(tmp_path, 1.0, CALL).read({"rows": others})
    assert found["a"].tobytes() == array.tobytes()
    assert found["a"] is found["again"]
    assert found["plateau"] == values["plateau"]
    assert found["outcome"] is Outcome.MAX_TIME
    # What belongs to the process is the reader's own, not the writer's.
    assert found["rows"] is others
    assert found["trace"].dtype == values["trace"].dtype


def test_the_last_two_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, 1.0, CALL)
    for step in range(4):
        checkpoints.write(step, {})
    assert names(tmp_path) == ["checkpoint-000003.pickmix", "checkpoint-000004.pickmix"]
    assert checkpoints.read({}) == 3


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_one_is_passed_over(tmp_path, damage):
    checkpoints = Checkpoints(tmp_path, 1.0, CALL)
    checkpoints.write(np.arange(1000), {})
    checkpoints.write(np.arange(2000), {})
    last = tmp_path / "checkpoint-000002.pickmix"
    content = bytearray(last.read_bytes())
    if damage == "cut":
        content = content[:-100]
    elif damage == "flipped":
        content[-500] ^= 1
    else:
        content = bytearray()
    last.write_bytes(content)
    assert checkpoints.read({}).shape == (1000,)
    (tmp_path / "checkpoint-000001.pickmix").write_bytes(b"")
    with pytest.raises(ValueError, match="no checkpoint can be read"):
        checkpoints.read({})


def test_nothing_there_is_none(tmp_path):
    assert Checkpoints(tmp_path / "new", 1.0, CALL).read({}) is None
    assert Checkpoints(tmp_path / "new", 1.0, CALL).read_notes() is None


def test_another_call_is_refused_with_what_differs(tmp_path):
    Checkpoints(tmp_path, 1.0, CALL, {"seeds": [1]}).write(1, {})
    other = {"parameters": {"n_components": 4, "tol": 0.1}, "rows": {"path": "b.npy"}}
    with pytest.raises(ValueError, match="another fit") as caught:
        Checkpoints(tmp_path, 1.0, other).read({})
    assert "parameters.n_components was 3, is 4" in str(caught.value)
    assert "rows.path was 'a.npy', is 'b.npy'" in str(caught.value)
    assert "tol" not in str(caught.value)
    # Notes are not compared.
    assert Checkpoints(tmp_path, 1.0, CALL).read_notes() == {"seeds": [1]}


class Foreign:
    pass


def test_foreign_classes_and_functions_are_refused(tmp_path):
    checkpoints = Checkpoints(tmp_path, 1.0, CALL)
    for thing in (Foreign(), os.system, np.load, pickle.loads):
        checkpoints.write(thing, {})
        checkpoints.write(thing, {})
        with pytest.raises(ValueError, match="which no checkpoint does"):
            checkpoints.read({})
    checkpoints.write(Foreign(), {})
    assert isinstance(checkpoints.read({}, (Foreign,)), Foreign)


def test_functions_of_pickmix_are_not_called(tmp_path):
    from pickmix.inputs.files import write_table

    checkpoints = Checkpoints(tmp_path, 1.0, CALL)
    checkpoints.write(write_table, {})
    with pytest.raises(ValueError, match="which no checkpoint does"):
        checkpoints.read({})


def test_a_full_disk_leaves_the_last_one_and_no_debris(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, 1.0, CALL)
    checkpoints.write("good", {})

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"checkpoint-000002.*No space left.*checkpoint-000001"):
        checkpoints.write("lost", {})
    assert names(tmp_path) == ["checkpoint-000001.pickmix"]
    assert checkpoints.read({}) == "good"


def test_what_a_killed_process_was_writing_is_removed(tmp_path):
    (tmp_path / ".checkpoint-000001.pickmix.0a1b.tmp").write_bytes(b"half")
    Checkpoints(tmp_path, 1.0, CALL)
    assert names(tmp_path) == []


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="expected a folder"):
        Checkpoints(tmp_path / "file", 1.0, CALL)


def test_due_by_the_clock(tmp_path):
    assert Checkpoints(tmp_path, 0.0, CALL).due()
    assert not Checkpoints(tmp_path, 1000.0, CALL).due()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("pickmix.fitting.checkpoint", "io.FileIO"),
        ("pickmix.fitting.checkpoint", "Path"),
        ("pickmix.gradient.compilation", "Path"),
        ("pickmix.fitting.checkpoint", "os.system"),
    ],
)
def test_what_modules_import_is_out_of_reach(tmp_path, module, name):
    import pickmix.fitting.checkpoint as checkpoint

    target = tmp_path / "written"
    # GLOBAL, then a call with the path and "w".
    body = b"\x80\x04c" + f"{module}\n{name}\n".encode()
    body += b"(V" + str(target).encode() + b"\nVw\ntR."
    checkpoints = Checkpoints(tmp_path / "saved", 1.0, CALL)

    class Writer:
        def __init__(self, file, here):
            self.file = file

        def dump(self, values):
            self.file.write(body)

    original, checkpoint._Writer = checkpoint._Writer, Writer
    try:
        checkpoints.write(None, {})
    finally:
        checkpoint._Writer = original
    with pytest.raises(ValueError, match="which no checkpoint does"):
        checkpoints.read({})
    assert not target.exists()


def test_what_is_missing_here_is_named(tmp_path):
    thing = np.arange(3)
    Checkpoints(tmp_path, 1.0, CALL).write([thing], {"rows": thing})
    with pytest.raises(ValueError, match="needs 'rows'"):
        Checkpoints(tmp_path, 1.0, CALL).read({})

"""Archives return what was written, and files of other kinds do no harm."""

import contextlib
import os
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pickmix import archive
from pickmix.archive import DamagedFileError, Extension, UnsupportedValueError

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | arrays.arrays(
        st.sampled_from(
            [np.float32, np.int64, np.bool_, "U3", "M8[D]", [("a", "f8"), ("b", "i4")]]
        ),
        arrays.array_shapes(min_dims=0, max_dims=2, max_side=3),
    )
)
# The names of kinds of values are names like any others.
NAMES = st.text(max_size=3) | st.sampled_from(["array", "float", "dict", "path", "a.b", "a\0"])
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(NAMES, inner, max_size=3)
    ),
    max_leaves=6,
)


def assert_same(first, second):
    assert type(first) is type(second)
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for name, value in first.items():
            assert_same(value, second[name])
    elif isinstance(first, list | tuple):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_same(one, other)
    elif isinstance(first, np.ndarray):
        assert first.dtype == second.dtype
        assert first.shape == second.shape
        assert first.tobytes() == second.tobytes()
    else:
        assert first == second


@settings(max_examples=12, deadline=None)
@given(content=VALUES)
def test_values_come_back(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("archive") / "any.npz"
    archive.write(path, {"content": content, "other": {"content": content}}, kind="test")
    again = archive.read(path, kind="test")
    assert_same(again, {"content": content, "other": {"content": content}})


def test_values_that_need_care(tmp_path):
    path = tmp_path / "any.npz"
    names = np.array(["a", "ž"], dtype=object)
    content = {"nan": float("nan"), "inf": float("-inf"), "scalar": np.float32(0.1), "names": names}
    archive.write(path, content, kind="test")
    again = archive.read(path, kind="test")
    assert np.isnan(again["nan"])
    assert again["inf"] == float("-inf")
    assert_same(again["scalar"], np.float32(0.1))
    assert again["names"].dtype == object
    assert again["names"].tolist() == ["a", "ž"]


def test_types_that_are_added(tmp_path):
    extensions = {"complex": Extension(complex, lambda z: [z.real, z.imag], lambda z: complex(*z))}
    path = tmp_path / "any.npz"
    content = {"z": 1 + 2j, "also": {"complex": [3.0, 4.0]}}
    archive.write(path, content, kind="test", extensions=extensions)
    assert archive.read(path, kind="test", extensions=extensions) == content


@pytest.mark.parametrize(
    "value",
    [object(), {1: 2}, np.array([None]), {1, 2}, b"bytes", np.array(["a", 1], dtype=object)],
)
def test_values_that_are_none_of_these(tmp_path, value):
    with pytest.raises(UnsupportedValueError, match=r"^a\.0\.b: cannot save"):
        archive.write(tmp_path / "any.npz", {"a": [{"b": value}]}, kind="test")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("archive") / "whole.npz"
    archive.write(path, {"a": np.arange(20.0), "b": ["text", {"c": np.eye(3)}]}, kind="test")
    return path.read_bytes()


def test_any_changed_byte_is_noticed_or_does_no_harm(tmp_path, whole):
    path = tmp_path / "changed.npz"
    path.write_bytes(whole)
    expected = archive.read(path, kind="test")
    random = np.random.default_rng(0)
    for position in random.choice(len(whole), 100, replace=False):
        changed = bytearray(whole)
        changed[position] ^= 1 << random.integers(8)
        path.write_bytes(changed)
        with contextlib.suppress(DamagedFileError):
            assert_same(archive.read(path, kind="test"), expected)


def test_truncated_files(tmp_path, whole):
    path = tmp_path / "truncated.npz"
    for length in range(0, len(whole), 101):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedFileError, match="damaged or of another kind") as caught:
            archive.read(path, kind="test")
        assert caught.value.path == path


def write_members(path, compression=zipfile.ZIP_STORED, **members):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)


def npy(header, content=b""):
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content


HUGE = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000000,)}"
TEXT = "{{'descr': '|u1', 'fortran_order': False, 'shape': ({},)}}"


def described(text):
    return npy(TEXT.format(len(text)), text.encode())


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"test": npy(HUGE)}, r"shape \(1000000000000000000,\) .* must take 8\d+ bytes, got 0"),
        ({"test": npy("{'descr': '|O', 'fortran_order': False, 'shape': ()}", bytes(8))}, "object"),
        ({"test": npy("{'shape': " + "(" * 90)}, "damaged"),
        ({"test": b"words"}, "damaged"),
        ({"test": described("[" * 100_000)}, "its description cannot be read"),
        ({"test": described("9" * 5000)}, "its description cannot be read"),
        ({"test": described("[1]")}, "a description of another kind"),
        ({"test": described('{"format": 2, "pickmix": "9.9"}')}, "format 1, got format 2, written"),
        ({"test": described('{"format": 1, "a": {"array": "lost"}}')}, "KeyError: 'lost'"),
        ({"test": described('{"format": 1, "a": {"array": [1]}}')}, "TypeError"),
        ({"test": described('{"format": 1, "a": {"float": "x"}}')}, "could not convert"),
        ({"model": described("{}")}, r"got other arrays: \['model'\]"),
    ],
)
def test_foreign_content(tmp_path, members, message):
    write_members(tmp_path / "foreign.npz", **members)
    with pytest.raises(DamagedFileError, match=rf"foreign\.npz: .*{message}"):
        archive.read(tmp_path / "foreign.npz", kind="test")


def test_packed_archives_are_not_unpacked(tmp_path):
    write_members(tmp_path / "packed.npz", zipfile.ZIP_DEFLATED, test=bytes(10**6))
    with pytest.raises(DamagedFileError, match="an archive of another kind"):
        archive.read(tmp_path / "packed.npz", kind="test")


def test_a_reader_meanwhile_sees_the_file_before(tmp_path, monkeypatch):
    path = tmp_path / "any.npz"
    archive.write(path, {"a": 1}, kind="test")
    seen = []
    fsync = os.fsync

    def read(descriptor):
        fsync(descriptor)
        seen.append(archive.read(path, kind="test"))

    monkeypatch.setattr(os, "fsync", read)
    archive.write(path, {"a": 2}, kind="test")
    assert seen == [{"a": 1}]
    assert archive.read(path, kind="test") == {"a": 2}


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    old, new = (tmp_path / f".a[1].npz.{name}.tmp" for name in ("old", "new"))
    for leftover in (old, new):
        leftover.write_bytes(b"half")
    os.utime(old, (0, 0))
    archive.write(tmp_path / "a[1].npz", {}, kind="test")
    assert not old.exists()
    # Another process may be writing it.
    assert new.exists()

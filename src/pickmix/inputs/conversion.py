"""Rows converted once, into a .npy file that is then read in ranges.

In a folder that the user chose it is `rows-<columns and paths>-<sizes and times>.npy`, with what
the rows were made from in a .json file beside it: if that is still the same, the file serves again.
Otherwise it is in a temporary folder. Both files are written there first, and moved.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pickmix.inputs.arrays import check_shape
from pickmix.inputs.files import cast_into, working_dtype
from pickmix.inputs.readers import Reader
from pickmix.inputs.sources import ArrayFile, RowSource, open_npy

# Changes with what is in the files, so that old ones are not taken for new ones.
FORMAT = 2
_HEADER_BYTES = 128


def convert(reader: Reader, cache: Path | None, dtype: np.dtype[Any] | None) -> RowSource:
    """Convert rows into a .npy file, unless an old one in the folder `cache` serves.

    The dtype is float32 by default if the rows hold nothing wider, else float64.
    """
    if reader.n_rows == 0:
        raise ValueError(f"{reader.name}: expected rows, got none")
    key = {
        **reader.origin(),
        "columns": reader.numbers if reader.names is None else reader.names,
        "dtype": str(reader.dtype if dtype is None else dtype),
        "format": FORMAT,
    }
    # Rows that come from no files cannot be recognised.
    kept = None if cache is None or "files" not in key else _kept_path(cache, key)
    if kept is not None:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            description = json.loads(kept.with_suffix(".json").read_text(encoding="utf-8"))
            if description["key"] == json.loads(json.dumps(key)):
                return _source(reader.name, _open_kept(kept), description)
    with _folder_for(reader, cache, dtype) as folder:
        path = folder / "rows.npy"
        starts = _write(reader, path, dtype)
        reader.check_unchanged()
        description = {
            "key": key,
            "names": reader.names,
            "numbers": reader.numbers,
            "parts": [starts, reader.labels],
        }
        if kept is None:
            file = open_npy(path)
            # Views of the source share the file.
            weakref.finalize(file, _remove_folder, folder, os.getpid())
            return _source(reader.name, file, description)
        path.with_suffix(".json").write_text(json.dumps(description), encoding="utf-8")
        for suffix in (".npy", ".json"):
            os.replace(path.with_suffix(suffix), kept.with_suffix(suffix))
        folder.rmdir()
    for outdated in kept.parent.glob(f"{kept.stem.rsplit('-', 1)[0]}-*"):
        if outdated.stem != kept.stem:
            outdated.unlink(missing_ok=True)
    return _source(reader.name, _open_kept(kept), description)


def _kept_path(cache: Path, key: dict[str, Any]) -> Path:
    """Where rows are kept: two digests, so that outdated ones of the same files are found."""
    identity = {**key, "files": [file["path"] for file in key["files"]]}
    digests = [
        hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:16]
        for part in (identity, key["files"])
    ]
    return cache / f"rows-{'-'.join(digests)}.npy"


def _source(name: str, file: ArrayFile, description: dict[str, Any]) -> RowSource:
    starts, labels = description["parts"]
    key, names, numbers = (description[field] for field in ("key", "names", "numbers"))
    return RowSource(name, [file], (starts, labels), key, names, numbers)


def _open_kept(path: Path) -> ArrayFile:
    # Without a stamp: another process may replace it, by the same rows.
    return dataclasses.replace(open_npy(path), stamp=None)


def _remove_folder(path: Path, process: int) -> None:
    # A forked child has copies of its parent's objects, but not of their files.
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)


def _write(reader: Reader, path: Path, dtype: np.dtype[Any] | None) -> list[int]:
    """Write rows to a .npy file; returns the first row of each part."""
    starts: list[int] = []
    n_rows = width = 0
    fixed = reader.dtype if dtype is None else dtype
    with open(path, "wb") as file:
        _check_room(reader, path.parent, fixed)
        file.seek(_HEADER_BYTES)
        for part, rows in reader:
            starts.extend([n_rows] * (part + 1 - len(starts)))
            if rows.shape[0] == 0:
                continue
            if fixed is None:
                fixed = reader.dtype = working_dtype(rows.dtype)
                _check_room(reader, path.parent, fixed)
            if dtype is None and fixed != np.promote_types(fixed, working_dtype(rows.dtype)):
                raise ValueError(
                    f"{reader.name}: rows were float32 up to row {n_rows} and are {rows.dtype} "
                    "from there on; choose with dtype="
                )
            width = rows.shape[1]
            n_rows += rows.shape[0]
            check_shape(reader.name, n_rows, width)
            write_rows(file, rows, fixed)
        check_shape(reader.name, n_rows, width)
        assert fixed is not None
        # The number of rows is known only now.
        file.seek(0)
        header = {"descr": fixed.str, "fortran_order": False, "shape": (n_rows, width)}
        np.lib.format.write_array_header_1_0(file, header)
        assert file.tell() == _HEADER_BYTES
        file.flush()
        os.fsync(file.fileno())
    return starts


def write_rows(file: Any, rows: np.ndarray, dtype: np.dtype[Any]) -> None:
    """Append rows to a file, in its dtype."""
    if rows.dtype != dtype or not rows.flags.c_contiguous:
        stored, rows = rows, np.empty(rows.shape, dtype=dtype)
        cast_into(rows, stored)
    file.write(rows.data)


@contextlib.contextmanager
def _folder_for(reader: Reader, cache: Path | None, dtype: np.dtype[Any] | None) -> Iterator[Path]:
    """Make a temporary folder; if the block fails, remove it and explain a lack of room."""
    parent = Path(tempfile.gettempdir()) if cache is None else cache
    made = [path for path in (parent, *parent.parents) if not path.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(prefix="pickmix-rows-", dir=parent))
        yield folder
    except BaseException as error:
        free = shutil.disk_usage(parent).free
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            for path in made:
                path.rmdir()
        if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        needed = _needed(reader, reader.dtype if dtype is None else dtype)
        raise OSError(
            errno.ENOSPC,
            f"{reader.name}: not enough room for the converted rows in {parent}: {_size(free)} "
            f"are free, {_size(needed) if needed else 'more than that'} needed; choose another "
            "folder with cache=",
        ) from error


def _needed(reader: Reader, dtype: np.dtype[Any] | None) -> int:
    """Bytes of the file; 0 if that is not known yet."""
    if reader.n_rows is None or reader.n_columns is None or dtype is None:
        return 0
    return _HEADER_BYTES + reader.n_rows * reader.n_columns * dtype.itemsize


def _check_room(reader: Reader, folder: Path, dtype: np.dtype[Any] | None) -> None:
    if shutil.disk_usage(folder).free < _needed(reader, dtype):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _size(n_bytes: int) -> str:
    """A number of bytes for people.

    >>> _size(1_500_000_000), _size(10)
    ('1.5 GB', '10 bytes')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n_bytes >= unit:
            return f"{n_bytes / unit:.1f} {name}"
    return f"{n_bytes} bytes"

"""Rows converted once, into a raw file that is then read in ranges.

The file is `rows-<hash>.npy`, in the folder that the user chose or in a temporary one. Beside a
chosen one, `rows-<hash>.json` holds what the rows were made from: if that is still the same, the
file serves again. Everything is written into a temporary folder first and moved in one step.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pickmix.data.checks import check_shape
from pickmix.data.files import replacing
from pickmix.data.raw_files import RawFile, RawSource, open_npy
from pickmix.data.readers import Reader
from pickmix.data.sources import cast_into, working_dtype
from pickmix.data.temporary import TemporaryFolder

# Changes with what is in the files, so that old ones are not taken for new ones.
FORMAT = 1
_HEADER = 128


@dataclass
class Conversion:
    """What is known of converted rows beside the numbers; JSON-able."""

    key: dict[str, Any] | None
    kind: str
    origin: dict[str, Any] | None
    names: list[str] | None
    stored: list[int] | None
    labels: list[str] | None
    """Names of the parts that rows come from; None: they are counted."""
    starts: list[int]
    """First row of each part."""


class ConvertedSource(RawSource):
    """Rows of a raw file that was made from something else."""

    def __init__(
        self, name: str, file: RawFile, conversion: Conversion, folder: TemporaryFolder | None
    ) -> None:
        super().__init__(name, [file])
        self.names = conversion.names
        self._conversion = conversion
        # Views share it, so that it goes away with the last of them.
        self._folder = folder

    def place(self, row: int) -> str:
        """Where a row came from, for messages; numbers from 1."""
        conversion = self._conversion
        part = bisect_right(conversion.starts, row) - 1
        label = f"batch {part + 1} of {self.name}"
        if conversion.labels is not None:
            label = conversion.labels[part]
        return f"{label}, row {row - conversion.starts[part] + 1}"

    def column_labels(self) -> list[str] | list[int]:
        """Names of the columns, or their numbers where they came from."""
        labels = super().column_labels()
        if self.names is None and self._conversion.stored is not None:
            return [self._conversion.stored[int(label)] for label in labels]
        return labels

    def _origin(self) -> dict[str, Any]:
        if self._conversion.origin is not None:
            return self._conversion.origin
        return {"kind": self._conversion.kind, "sample": self._sample_hash()}

    def close(self) -> None:
        """End the use of the source; a temporary cache goes away."""
        super().close()
        if self._owner and self._folder is not None:
            self._folder.remove()


def convert(reader: Reader, cache: Path | None, dtype: np.dtype[Any] | None) -> ConvertedSource:
    """Convert rows into a raw file, unless an old one serves.

    Parameters
    ----------
    reader : Reader
    cache : path, optional
        Folder for the file. A temporary one by default.
    dtype : float32 or float64, optional
        Of the file; by default float32 if the rows hold nothing wider.
    """
    if reader.n_rows == 0:
        raise ValueError(f"{reader.name}: expected rows, got none")
    key = _cache_key(reader, dtype)
    if cache is not None and key is not None:
        found = _find(cache, key)
        if found is not None:
            return ConvertedSource(reader.name, *found, None)
    parent = Path(tempfile.gettempdir()) if cache is None else cache
    with _made(cache), _explaining_lack_of_room(parent, reader, dtype):
        folder = TemporaryFolder(parent)
        try:
            path = folder.path / "rows.npy"
            conversion = _write(reader, path, dtype, key)
            reader.check_unchanged()
            if cache is None or key is None:
                return ConvertedSource(reader.name, open_npy(path), conversion, folder)
            file = _publish(path, cache, key, conversion)
        except BaseException:
            folder.remove()
            raise
        folder.remove()
        _remove_outdated(cache, key)
        return ConvertedSource(reader.name, file, conversion, None)


def _cache_key(reader: Reader, dtype: np.dtype[Any] | None) -> dict[str, Any] | None:
    origin = reader.origin()
    if origin is None:
        return None
    stored = dtype if dtype is not None else reader.dtype
    return {
        **origin,
        "columns": reader.column_labels(),
        "dtype": None if stored is None else stored.name,
        "format": FORMAT,
    }


def _paths(cache: Path, key: dict[str, Any]) -> tuple[Path, Path]:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return cache / f"rows-{digest}.npy", cache / f"rows-{digest}.json"


def _find(cache: Path, key: dict[str, Any]) -> tuple[RawFile, Conversion] | None:
    rows_path, description_path = _paths(cache, key)
    try:
        conversion = Conversion(**json.loads(description_path.read_text(encoding="utf-8")))
        file = open_npy(rows_path)
    except (OSError, ValueError, TypeError):
        return None
    # Compared as JSON gives it back.
    if conversion.key != json.loads(json.dumps(key)) or file.fortran:
        return None
    return file, conversion


def _publish(path: Path, cache: Path, key: dict[str, Any], conversion: Conversion) -> RawFile:
    """Move a finished file to its place, and return it or the one that came there first."""
    rows_path, description_path = _paths(cache, key)
    # First, since rows without a description would be written again, under the readers' hands.
    with replacing(description_path) as temporary:
        temporary.write_text(json.dumps(asdict(conversion)), encoding="utf-8")
    try:
        try:
            # Unlike a move, it fails if another process has made the same and reads it already.
            os.link(path, rows_path)
        except OSError:
            found = _find(cache, key)
            if found is not None:
                return found[0]
            os.replace(path, rows_path)
    except BaseException:
        if not rows_path.exists():
            description_path.unlink(missing_ok=True)
        raise
    return open_npy(rows_path)


def _remove_outdated(cache: Path, key: dict[str, Any]) -> None:
    """Remove files that were made from what these were made from, before it changed."""

    def identity(key: dict[str, Any]) -> Any:
        fixed = {name: key[name] for name in ("kind", "columns", "dtype")}
        return json.loads(json.dumps([fixed, [file["path"] for file in key["files"]]]))

    for description_path in cache.glob("rows-*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            old = Conversion(**json.loads(description_path.read_text(encoding="utf-8"))).key
            if old is None or description_path == _paths(cache, key)[1]:
                continue
            if identity(old) == identity(key):
                description_path.with_suffix(".npy").unlink(missing_ok=True)
                description_path.unlink()


def _write(
    reader: Reader, path: Path, dtype: np.dtype[Any] | None, key: dict[str, Any] | None
) -> Conversion:
    starts: list[int] = []
    n_rows = 0
    width = 0
    fixed = dtype if dtype is not None else reader.dtype
    with open(path, "wb", buffering=0) as file:
        _check_room(reader, path.parent, fixed)
        file.seek(_HEADER)
        for part, rows in reader.batches():
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
            write_all(file, as_written(rows, fixed))
        check_shape(reader.name, n_rows, width)
        assert fixed is not None
        file.seek(0)
        write_all(file, npy_header(n_rows, width, fixed))
        os.fsync(file.fileno())
    stored = reader.stored
    return Conversion(
        key, reader.kind, reader.origin(), reader.names, stored, reader.labels, starts
    )


def as_written(rows: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Rows in the order and type of the file."""
    if rows.dtype == dtype and rows.flags.c_contiguous:
        return rows
    out = np.empty(rows.shape, dtype=dtype)
    cast_into(out, rows)
    return out


def write_all(file: BinaryIO, data: Any) -> None:
    """Write all bytes of an array or of bytes; the system may take less at a time."""
    view = memoryview(data).cast("B")
    while view:
        view = view[file.write(view) :]


def npy_header(n_rows: int, n_columns: int, dtype: np.dtype[Any]) -> bytes:
    """The first 128 bytes of a .npy file: of one length, as the number of rows is written last."""
    start: bytes = np.lib.format.magic(1, 0)
    text = f"{{'descr': '{dtype.newbyteorder('<').str}', 'fortran_order': False, "
    text += f"'shape': ({n_rows}, {n_columns}), }}"
    n_text = _HEADER - len(start) - 2
    return start + n_text.to_bytes(2, "little") + text.ljust(n_text - 1).encode() + b"\n"


@contextlib.contextmanager
def _made(folder: Path | None) -> Iterator[None]:
    """Make a folder, and remove it again if the block fails and nothing else is in it."""
    made = []
    if folder is not None:
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for path in made:
                path.rmdir()
        raise


def _needed(reader: Reader, dtype: np.dtype[Any] | None) -> int | None:
    if reader.n_rows is None or reader.n_columns is None or dtype is None:
        return None
    return _HEADER + reader.n_rows * reader.n_columns * dtype.itemsize


def _check_room(reader: Reader, folder: Path, dtype: np.dtype[Any] | None) -> None:
    needed = _needed(reader, dtype)
    if needed is not None and shutil.disk_usage(folder).free < needed:
        raise OSError(errno.ENOSPC, f"the rows need {_size(needed)}")


@contextlib.contextmanager
def _explaining_lack_of_room(
    folder: Path, reader: Reader, dtype: np.dtype[Any] | None
) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        needed = _needed(reader, reader.dtype if dtype is None else dtype)
        need = "more than that" if needed is None else _size(needed)
        free = _size(shutil.disk_usage(folder).free)
        raise OSError(
            errno.ENOSPC,
            f"{reader.name}: not enough room for the converted rows in {folder}: {free} are free, "
            f"{need} needed; choose another folder with cache=",
        ) from error


def _size(n_bytes: int) -> str:
    """A number of bytes for people.

    Examples
    --------
    >>> _size(1_500_000_000), _size(10)
    ('1.5 GB', '10 bytes')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n_bytes >= unit:
            return f"{n_bytes / unit:.1f} {name}"
    return f"{n_bytes} bytes"

"""Nested values in one file: arrays as they are, everything else as JSON, and no pickle.

An archive is an uncompressed .npz file. One member, named after the `kind` of archive ("model",
"checkpoint", ...), is a description in JSON, and the others are the arrays that it names. Values
may be None, bool, int, float, str, arrays and scalars of NumPy (not of objects), lists, tuples,
and dictionaries with str keys; a caller can add types (`Extension`). Reading makes nothing else,
so opening a file from elsewhere runs no foreign code.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     _ = write(f"{folder}/state.npz", {"step": 7, "chain": np.arange(3)}, kind="checkpoint")
...     read(f"{folder}/state.npz", kind="checkpoint")
{'step': 7, 'chain': array([0, 1, 2])}
"""

from __future__ import annotations

import contextlib
import glob
import json
import math
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from pickmix.inputs.files import replacing

AnyPath = str | os.PathLike[str]
FORMAT = 1
# A temporary file that has not grown for so many seconds was left by a process that was killed.
_ABANDONED = 3600.0


class DamagedFileError(ValueError):
    """A file that is damaged, or of another kind than expected."""

    def __init__(self, path: AnyPath, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class UnsupportedValueError(TypeError):
    """A value that no archive can hold."""


class Extension(NamedTuple):
    """A type of values, turned into plain values on writing and back on reading."""

    type: type
    to_plain: Callable[[Any], Any]
    from_plain: Callable[[Any], Any]


Extensions = Mapping[str, Extension]
_NONE: Extensions = {}


def write(
    path: AnyPath,
    content: Mapping[str, Any],
    *,
    kind: str,
    extensions: Extensions = _NONE,
) -> dict[str, Any]:
    """Replace the file at `path` by an archive of `content`, and return its description.

    Readers see the file before or the file after, never a part of it. What killed processes have
    left beside it is removed.
    """
    path = Path(path)
    encoded, arrays = encode(content, extensions)
    assert not {"format", "pickmix"} & encoded.keys()
    assert kind not in arrays
    description = {"format": FORMAT, "pickmix": _package_version(), **encoded}
    text = json.dumps(description, indent=2, allow_nan=False).encode()
    members = arrays | {kind: np.frombuffer(text, dtype=np.uint8)}
    with replacing(path) as temporary, open(temporary, "wb") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, array in members.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    _remove_abandoned(path)
    return description


def _remove_abandoned(path: Path) -> None:
    """Remove temporary files of saves of `path` that were killed."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        # Others may save to the same path, and remove the same files.
        with contextlib.suppress(OSError):
            if path.stat().st_mtime - leftover.stat().st_mtime > _ABANDONED:
                leftover.unlink()


def read(path: AnyPath, *, kind: str, extensions: Extensions = _NONE) -> dict[str, Any]:
    """Read an archive; raise a DamagedFileError unless it is whole and of the `kind`."""
    description, arrays = read_parts(path, kind)
    content = decode_content(path, description, arrays, kind=kind, extensions=extensions)
    return {name: content[name] for name in content if name not in ("format", "pickmix")}


def holds(path: AnyPath, kind: str) -> bool:
    """Whether a file looks like an archive of the `kind`; its content is not read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return f"{kind}.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def read_parts(path: AnyPath, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read the description and the arrays of an archive."""
    with open(path, "rb") as file, blaming(path, kind):
        arrays = _read_arrays(path, file, kind)
        try:
            description = json.loads(arrays.pop(kind).tobytes())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"its description cannot be read ({error})") from error
    if not isinstance(description, dict):
        raise DamagedFileError(path, f"expected a saved {kind}, got a description of another kind.")
    version = description.get("format")
    if version != FORMAT:
        raise DamagedFileError(
            path,
            f"this pickmix ({_package_version()}) reads {kind}s of format {FORMAT}, got format "
            f"{version!r}, written by pickmix {description.get('pickmix')}.",
        )
    return description, arrays


def _read_arrays(path: AnyPath, file: IO[bytes], kind: str) -> dict[str, np.ndarray]:
    expected = f"expected a saved {kind}, "
    try:
        archive = zipfile.ZipFile(file)
    except zipfile.BadZipFile as error:
        file.seek(0)
        single = file.read(6) == b"\x93NUMPY"
        what = "got a single array." if single else "but the file is damaged or of another kind."
        raise DamagedFileError(path, expected + what) from error
    members = archive.infolist()
    # `write` stores arrays as they are. So an archive with compressed members, or with members that
    # take more room than the archive itself, is another's, and is not unpacked.
    n_bytes = sum(member.file_size for member in members)
    is_packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
    if is_packed or n_bytes > os.fstat(file.fileno()).st_size:
        raise DamagedFileError(path, f"{expected}got an archive of another kind.")
    named = {member.filename.removesuffix(".npy"): member for member in members}
    if kind not in named:
        raise DamagedFileError(path, f"{expected}got other arrays: {list(named)}.")
    return {name: _read_array(archive, name, member) for name, member in named.items()}


def _read_array(archive: zipfile.ZipFile, name: str, member: zipfile.ZipInfo) -> np.ndarray:
    """Read an array after its header has been found to fit the size of the member."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read_header is None:
            raise ValueError(f"array {name!r} is of version {version}")
        shape, _, dtype = read_header(file)
        size = math.prod(shape) * dtype.itemsize
        n_bytes = member.file_size - file.tell()
        if dtype.hasobject or size != n_bytes:
            raise ValueError(
                f"array {name!r} of shape {shape} and type {dtype} must take {size} bytes, "
                f"got {n_bytes}."
            )
        file.seek(0)
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def encode(
    content: Mapping[str, Any], extensions: Extensions = _NONE
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Turn values into JSON and the arrays that it names; refuse values of other types."""
    arrays: dict[str, np.ndarray] = {}
    encoded = {name: _encode(value, name, arrays, extensions) for name, value in content.items()}
    return encoded, arrays


def _encode(value: Any, key: str, arrays: dict[str, np.ndarray], extensions: Extensions) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, np.ndarray | np.generic):
        # scikit-learn keeps feature names as str objects, which only pickle could save.
        if value.dtype == object and value.ndim == 1 and {*map(type, value.tolist())} <= {str}:
            return {"strings": value.tolist()}
        array = np.asarray(value)
        described = np.lib.format.dtype_to_descr(array.dtype)
        # Only types that come back from a file as they were.
        if not array.dtype.hasobject and np.lib.format.descr_to_dtype(described) == array.dtype:
            name = stem = re.sub(r"[^\w.]", "_", key)[:100]
            while name in arrays:
                name = f"{stem}.{len(arrays)}"
            arrays[name] = array
            return {"array" if isinstance(value, np.ndarray) else "scalar": name}
    elif type(value) in (list, tuple):
        places = enumerate(value)
        items = [_encode(item, f"{key}.{place}", arrays, extensions) for place, item in places]
        return items if type(value) is list else {"tuple": items}
    elif type(value) is dict and all(type(name) is str for name in value):
        pairs = value.items()
        entries = {name: _encode(v, f"{key}.{name}", arrays, extensions) for name, v in pairs}
        # A dictionary of one entry could be taken for a value of another kind.
        return {"dict": entries} if len(entries) == 1 else entries
    else:
        for kind, extension in extensions.items():
            if isinstance(value, extension.type):
                return {kind: _encode(extension.to_plain(value), key, arrays, extensions)}
    raise UnsupportedValueError(f"{key}: cannot save {value!r:.80}")


def decode_content(
    path: AnyPath,
    description: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    *,
    kind: str,
    extensions: Extensions = _NONE,
) -> dict[str, Any]:
    """Turn the parts of an archive into values."""
    with blaming(path, kind):
        return {name: _decode(value, arrays, extensions) for name, value in description.items()}


@contextlib.contextmanager
def blaming(path: AnyPath, kind: str) -> Iterator[None]:
    """Turn whatever foreign values make fail into a DamagedFileError."""
    try:
        yield
    except (DamagedFileError, MemoryError, OSError):
        raise
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DamagedFileError(path, f"the saved {kind} is damaged: {error}") from error
    except Exception as error:
        # What Python says of the others does not name their kind.
        raise DamagedFileError(
            path,
            f"the saved {kind} is damaged: its description makes no {kind} "
            f"({type(error).__name__}: {error})",
        ) from error


def _decode(value: Any, arrays: Mapping[str, np.ndarray], extensions: Extensions) -> Any:
    def decode(value: Any) -> Any:
        return _decode(value, arrays, extensions)

    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((kind, content),) = value.items()
        plain: dict[str, Callable[[], Any]] = {
            "float": lambda: float(content),
            "strings": lambda: np.array(content, dtype=object),
            "array": lambda: arrays[content],
            "scalar": lambda: arrays[content][()],
            "list": lambda: [decode(item) for item in content],
            "tuple": lambda: tuple(decode(item) for item in content),
            "dict": lambda: {name: decode(item) for name, item in content.items()},
        }
        if kind in plain:
            return plain[kind]()
        if kind in extensions:
            return extensions[kind].from_plain(decode(content))
    return {name: decode(item) for name, item in value.items()}


def _package_version() -> str:
    # Here and not above: this module is imported while pickmix itself is.
    from pickmix import __version__

    return __version__

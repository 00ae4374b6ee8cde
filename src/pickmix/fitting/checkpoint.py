"""Checkpoints: all that a fit needs to resume, in one file; the last two are kept.

A checkpoint is a description of the call in JSON, followed by the objects of the fit. These are
written by pickle, but read by a reader that makes only arrays and objects of pickmix's classes:
opening a checkpoint runs no foreign code. Rows, threads and kernels belong to the process; they are
named in the file, and the call that resumes provides them.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import pickle
import re
import sys
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from pickmix.inputs.files import replacing

_MAGIC = b"pickmix checkpoint 1\n"
_NAME = re.compile(r"checkpoint-(\d{6,})\.pickmix")
_KEPT = 2
# Constructors of arrays, and slices.
_MAKERS = {
    ("builtins", "slice"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy.core.numeric", "_frombuffer"),
}


# Modules of the classes of objects in a fit. They hold arrays and numbers; none of them
# touches files when it is made.
_HOMES = (
    "pickmix.closed_form.",
    "pickmix.data.rows",
    "pickmix.estimators.checkpointing",
    "pickmix.estimators.closed_form_fit",
    "pickmix.families.",
    "pickmix.fitting.loop",
    "pickmix.fitting.stopping",
    "pickmix.fitting.trace",
    "pickmix.gradient.",
    "pickmix.model.frame",
    "pickmix.selection.",
    "pickmix.sweep.",
)


class DamagedError(ValueError):
    """A checkpoint that cannot be read."""


class Checkpoints:
    """The checkpoints of one fit, in a folder of their own, `every` so many seconds.

    `call` (parameters, rows, versions) is compared on reading, and a checkpoint of another call is
    refused with a message of what differs; `notes` are not compared. Both are JSON.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Checkpoints(folder, 300.0, {"seed": 1}).write({"step": 7}, {})
    ...     Checkpoints(folder, 300.0, {"seed": 1}).read({})
    {'step': 7}
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every: float,
        call: dict[str, Any],
        notes: dict[str, Any] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.every = every
        self.notes = notes or {}
        # As it will come back from the file.
        self.call: dict[str, Any] = json.loads(json.dumps(call))
        self._last = time.monotonic()
        if self.folder.exists() and not self.folder.is_dir():
            raise FileExistsError(f"checkpoint={self.folder}: expected a folder, found a file.")
        self.folder.mkdir(parents=True, exist_ok=True)
        if not os.access(self.folder, os.W_OK):
            raise PermissionError(f"checkpoint={self.folder}: cannot write into this folder.")
        # Leftovers of a process that was killed while it wrote.
        for leftover in self.folder.glob(".checkpoint-*.tmp"):
            leftover.unlink(missing_ok=True)

    def within(self, name: str) -> Checkpoints:
        """Checkpoints of one of several fits of the same call, in a folder inside this one."""
        return Checkpoints(self.folder / name, self.every, self.call, self.notes)

    def due(self) -> bool:
        """True if a checkpoint is due."""
        return time.monotonic() - self._last >= self.every

    def _there(self) -> list[tuple[int, Path]]:
        """Numbers and paths of the existing checkpoints, the newest first."""
        found = ((_NAME.fullmatch(path.name), path) for path in self.folder.iterdir())
        return sorted(((int(match[1]), path) for match, path in found if match), reverse=True)

    def write(self, values: Any, here: Mapping[str, Any]) -> None:
        """Write a checkpoint atomically; `here` names the objects left out of it."""
        there = self._there()
        number = there[0][0] + 1 if there else 1
        path = self.folder / f"checkpoint-{number:06d}.pickmix"
        try:
            with replacing(path) as temporary, open(temporary, "wb") as file:
                _write(file, {"call": self.call, "notes": self.notes}, values, here)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OSError(
                error.errno,
                f"{path}: the checkpoint could not be written ({error.strerror}). "
                + (f"The one before is {there[0][1].name}." if there else "There is none yet."),
            ) from error
        for _, old in there[_KEPT - 1 :]:
            old.unlink(missing_ok=True)
        self._last = time.monotonic()

    def read(self, here: Mapping[str, Any], classes: tuple[type, ...] = ()) -> Any:
        """The newest readable checkpoint, or None; `classes` outside pickmix may be in it."""
        problems = []
        for _, path in self._there():
            try:
                with open(path, "rb") as file:
                    description = _read_description(file)
                    self._compare(path, description["call"])
                    self.notes = description["notes"]
                    return _Reader(file, here, classes).load()
            except (DamagedError, pickle.UnpicklingError, EOFError) as error:
                problems.append(f"{path.name}: {error}")
        if problems:
            raise ValueError(
                f"checkpoint={self.folder}: no checkpoint can be read ({'; '.join(problems)}). "
                "Remove them to start again."
            )
        return None

    def read_notes(self) -> dict[str, Any] | None:
        """Notes of the newest readable checkpoint, or None; raise if it is of another call."""
        for _, path in self._there():
            with contextlib.suppress(DamagedError), open(path, "rb") as file:
                description = _read_description(file)
                self._compare(path, description["call"])
                notes: dict[str, Any] = description["notes"]
                return notes
        return None

    def _compare(self, path: Path, call: dict[str, Any]) -> None:
        differences = list(_differences(call, self.call, ""))
        if differences:
            raise ValueError(
                f"{path}: this checkpoint belongs to another fit: {'; '.join(differences)}. Repeat "
                "the call it belongs to, or give checkpoint= another folder."
            )


def say_resumed(path: Path, text: str) -> None:
    print(f"pickmix: resuming from the checkpoint in {path}: {text}", file=sys.stderr, flush=True)


def _differences(was: Any, now: Any, name: str) -> Any:
    """Lines about the differences of two JSON values."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted(was.keys() | now.keys()):
            inner = f"{name}.{key}" if name else key
            yield from _differences(was.get(key), now.get(key), inner)
    elif was != now:
        yield f"{name} was {_short(was)}, is {_short(now)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


class _Summed(io.RawIOBase):
    """Writes to a file and its checksum."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.checksum = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.checksum = zlib.crc32(data, self.checksum)
        return self._file.write(data)


def _write(
    file: IO[bytes], description: dict[str, Any], values: Any, here: Mapping[str, Any]
) -> None:
    text = json.dumps(description).encode()
    file.write(_MAGIC + len(text).to_bytes(8, "big") + text)
    place = file.tell()
    file.write(bytes(8))
    summed = _Summed(file)
    _Writer(summed, here).dump(values)
    file.seek(place)
    file.write(summed.checksum.to_bytes(8, "big"))


def _read_description(file: IO[bytes]) -> dict[str, Any]:
    """The description at the beginning of a file, leaving the file before its objects."""
    if file.read(len(_MAGIC)) != _MAGIC:
        raise DamagedError("it is not a checkpoint of this version of pickmix")
    try:
        found: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "big")))
    except ValueError as error:
        raise DamagedError("its description is damaged") from error
    expected = int.from_bytes(file.read(8), "big")
    place, checksum = file.tell(), 0
    while block := file.read(2**22):
        checksum = zlib.crc32(block, checksum)
    if checksum != expected:
        raise DamagedError("it is damaged")
    file.seek(place)
    return found


class _Writer(pickle.Pickler):
    def __init__(self, file: Any, here: Mapping[str, Any]) -> None:
        super().__init__(file, protocol=5)
        self._names = {id(thing): name for name, thing in here.items() if thing is not None}

    def persistent_id(self, obj: Any) -> str | None:
        return self._names.get(id(obj))


class _Reader(pickle.Unpickler):
    def __init__(self, file: IO[bytes], here: Mapping[str, Any], classes: tuple[type, ...]) -> None:
        super().__init__(file)
        self._here = here
        self._classes = {(each.__module__, each.__qualname__): each for each in classes}

    def persistent_load(self, pid: str) -> Any:
        if pid not in self._here:
            raise DamagedError(f"it needs {pid!r}, which this fit does not have")
        return self._here[pid]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._classes:
            return self._classes[module, name]
        if module.startswith(_HOMES):
            # A class that is defined there; not one that the module has imported, and nothing that
            # a name with dots would lead to.
            found = getattr(importlib.import_module(module), name, None)
            if isinstance(found, type) and found.__module__ == module:
                return found
        elif (module, name) in _MAKERS:
            return super().find_class(module, name)
        raise DamagedError(f"it holds a {module}.{name}, which no checkpoint does")

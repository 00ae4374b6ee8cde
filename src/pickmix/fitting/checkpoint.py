"""Checkpoints: all that a fit needs to resume, in one file; the last two are kept.

A checkpoint is an archive of arrays and JSON (archive.py): a description of the call that it
belongs to, and the content of the fit, since the state of a fit is arrays. Rows, threads and
kernels belong to the process, and the call that resumes provides them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np

from pickmix import archive
from pickmix.fitting.loop import LoopState
from pickmix.selection.proposals import Proposal

_NAME = re.compile(r"checkpoint-(\d{6,})\.pickmix")
_KEPT = 2
_KIND = "checkpoint"
_FEW_ITEMS = 100  # Longer sequences are known by a checksum.
# Parameters that change how a fit is made, but not its result.
_FREE = ("n_jobs", "verbose", "callbacks", "checkpoint", "checkpoint_every", "max_time")


class Checkpoints:
    """The checkpoints of one fit, in a folder of their own, `every` so many seconds.

    `call` (parameters, rows, versions) is compared on reading, and a checkpoint of another call is
    refused with a message of what differs; `notes` are not compared. Both are JSON.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Checkpoints(folder, 300.0, {"seed": 1}).write({"step": 7})
    ...     Checkpoints(folder, 300.0, {"seed": 1}).read()
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

    def _existing(self) -> list[tuple[int, Path]]:
        """Numbers and paths of the existing checkpoints, the newest first."""
        matches = ((_NAME.fullmatch(path.name), path) for path in self.folder.iterdir())
        return sorted(((int(match[1]), path) for match, path in matches if match), reverse=True)

    def write(self, content: dict[str, Any]) -> None:
        """Write a checkpoint atomically."""
        existing = self._existing()
        number = existing[0][0] + 1 if existing else 1
        path = self.folder / f"checkpoint-{number:06d}.pickmix"
        try:
            kept = {"call": self.call, "notes": self.notes, "fit": content}
            archive.write(path, kept, kind=_KIND)
        except OSError as error:
            raise OSError(
                error.errno,
                f"{path}: the checkpoint could not be written ({error.strerror}). "
                + (
                    f"The one before is {existing[0][1].name}."
                    if existing
                    else "There is none yet."
                ),
            ) from error
        for _, old in existing[_KEPT - 1 :]:
            old.unlink(missing_ok=True)
        self._last = time.monotonic()

    def read(self) -> dict[str, Any] | None:
        """The content of the newest readable checkpoint, or None; `notes` become its notes."""
        problems = []
        for _, path in self._existing():
            try:
                kept = archive.read(path, kind=_KIND)
                call, notes, content = kept["call"], kept["notes"], kept["fit"]
            except (archive.DamagedFileError, KeyError) as error:
                problems.append(f"{path.name}: {getattr(error, 'reason', 'it is damaged')}")
                continue
            differences = list(_differences(call, self.call, ""))
            if differences:
                raise ValueError(
                    f"{path}: this checkpoint belongs to another fit: {'; '.join(differences)}. "
                    "Repeat the call it belongs to, or give checkpoint= another folder."
                )
            self.notes = notes
            return dict(content)
        if problems:
            raise ValueError(
                f"checkpoint={self.folder}: no checkpoint can be read ({'; '.join(problems)}). "
                "Remove them to start again."
            )
        return None

    @contextlib.contextmanager
    def about_damage(self) -> Iterator[None]:
        """Name the folder in errors of content that no fit has written."""
        try:
            yield
        except (MemoryError, OSError):
            raise
        except Exception as error:
            raise ValueError(
                f"checkpoint={self.folder}: the checkpoint is damaged ({error}). Remove it to "
                "start again."
            ) from error

    def say_resumed(self, state: LoopState) -> None:
        ended = f", where it had ended ({state.outcome})" if state.outcome else ""
        text = f"resuming from the checkpoint in {self.folder}: step {state.step}{ended}"
        print(f"pickmix: {text}", file=sys.stderr, flush=True)


def open_checkpoints(
    estimator: Any, folder: Any, rows: dict[str, Any], weights: np.ndarray | None, seeds: Any
) -> Checkpoints:
    """The checkpoints of an estimator's fit to rows with this fingerprint, in a folder.

    Seeds are noted, for a `random_state` that could not be drawn from again.
    """
    from pickmix import __version__

    parameters = estimator.get_params(deep=False)
    call = {
        "estimator": type(estimator).__name__,
        "parameters": {n: describe(value) for n, value in parameters.items() if n not in _FREE},
        "rows": rows,
        "sample_weight": describe(weights),
        "pickmix": __version__,
    }
    notes = {"seeds": seeds, "numpy": np.__version__, "numba": numba.__version__}
    return Checkpoints(folder, float(estimator.checkpoint_every), call, notes)


def check_proposal(proposal: Any) -> None:
    """Raise for a user's proposal that checkpoints cannot hold: now, not when one is needed."""
    if not isinstance(proposal, Proposal) or type(proposal).__module__.startswith("pickmix."):
        return
    try:
        archive.encode(proposal.content())
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            "checkpoint must be None, or the attributes of the proposal must be numbers, strings, "
            f"arrays or containers of them; a {type(proposal).__name__} cannot be kept: {error}"
        ) from error


def describe(value: Any, depth: int = 4) -> Any:
    """A value as JSON for comparison, nested objects to `depth` levels."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.integer | np.floating | np.bool_):
        return value.item()
    if isinstance(value, list | tuple) and len(value) <= _FEW_ITEMS:
        return [describe(item, depth - 1) for item in value]
    if isinstance(value, list | tuple):
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        checksum = zlib.crc32(np.ascontiguousarray(value).data)
        return f"array of shape {value.shape} and type {value.dtype}, checksum {checksum:08x}"
    if isinstance(value, dict):
        return {str(key): describe(item, depth - 1) for key, item in value.items()}
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    # Settings, schedules and components are what they hold; what a proposal holds, it has learnt.
    held = {} if isinstance(value, Proposal) else getattr(value, "__dict__", {})
    return {name: describe(held, depth - 1)} if held and depth > 0 else name


def fingerprint_of(rows: np.ndarray) -> dict[str, Any]:
    return {"array": describe(rows)}


def _differences(was: Any, now: Any, name: str) -> Iterator[str]:
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

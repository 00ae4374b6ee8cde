"""Temporary folders that are removed with their owner, at the latest after the process."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
import weakref
from pathlib import Path

PREFIX = "pickmix-rows-"
_LOCK = "lock"


class TemporaryFolder:
    """A folder that is removed with this object, or at exit.

    Its name holds the process's number. A killed process cannot remove its folder; the next one
    that makes a temporary folder in the same place does.

    Parameters
    ----------
    parent : path
        Where.
    """

    def __init__(self, parent: Path) -> None:
        remove_leftovers(parent)
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))
        try:
            lock = _lock(self.path)
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            raise
        self._finalizer = weakref.finalize(self, _remove, self.path, lock, os.getpid())

    def remove(self) -> None:
        """Remove it now."""
        self._finalizer()


def remove_leftovers(parent: Path) -> None:
    """Remove folders of processes that ended without doing so."""
    for path in parent.glob(f"{PREFIX}*-*"):
        found = re.fullmatch(rf"{PREFIX}(\d+)-.*", path.name)
        if found is None or _is_running(int(found.group(1))):
            continue
        # A process of another container has a number of its own there, but locks are the kernel's.
        with contextlib.suppress(OSError):
            if (path / _LOCK).exists():
                lock = _lock(path)
                if lock is None:
                    continue
                os.close(lock)
            elif time.time() - path.stat().st_mtime < 60:
                continue
            shutil.rmtree(path, ignore_errors=True)


def _is_running(process: int) -> bool:
    if os.name == "nt":
        # There, asking would end the process.
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _lock(folder: Path) -> int | None:
    """Lock a folder for as long as the descriptor is open; None if that cannot be."""
    try:
        import fcntl
    except ImportError:
        return None
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove(path: Path, lock: int | None, process: int) -> None:
    # A forked child has copies of its parent's objects, but not of their files.
    if os.getpid() != process:
        return
    shutil.rmtree(path, ignore_errors=True)
    if lock is not None:
        os.close(lock)

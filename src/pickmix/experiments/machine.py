"""Facts of the machine and its software, for rows of results."""

from __future__ import annotations

import contextlib
import math
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from pickmix import __version__


def versions(packages: Sequence[str]) -> str:
    """Versions of pickmix, Python and those of the packages that are installed."""
    parts = [f"pickmix {__version__}", f"python {platform.python_version()}"]
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            parts.append(f"{name} {metadata.version(name)}")
    return "; ".join(parts)


def cpu_count() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name() -> str:
    """Name of the processor."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def load_average() -> float:
    """Processes that wanted to run in the last minute; NaN where that is not known."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else math.nan

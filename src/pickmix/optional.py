"""Packages that only some features need."""

from __future__ import annotations

import importlib.util


def require(module: str, message: str) -> None:
    """Raise an ImportError with this message, which names the extra, if a package is missing."""
    if importlib.util.find_spec(module) is None:
        raise ImportError(message)

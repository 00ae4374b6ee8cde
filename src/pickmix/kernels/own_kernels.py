"""Layouts that bring kernels of their own, which serve both backends."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def serves_layouts(function: Callable[P, T]) -> Callable[P, T]:
    """A kernel that calls that of the same name in `layout.kernels`, if the layout names some.

    Modules that extend a backend get it first.
    """
    backend = function.__module__.rpartition(".")[0]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        layout: Any = args[0]
        if layout.kernels is None:
            return function(*args, **kwargs)
        module = importlib.import_module(f"pickmix.kernels.{layout.kernels}")
        other: Callable[..., T] = getattr(module, function.__name__)
        if getattr(module, "EXTENDS_BACKEND", False):
            return other(importlib.import_module(backend), *args, **kwargs)
        return other(*args, **kwargs)

    return call

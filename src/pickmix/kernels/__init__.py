"""Array work on rows and components, twice under the same names: in NumPy and in Numba.

A backend is one of the two modules, `numpy_kernels` (to read first; it compiles nothing and runs
small problems) and `numba_kernels`. Both draw the same numbers from the same keys; sums may differ
in their last bits. The compiled one runs on as many threads as `pickmix.threads` says.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from pickmix.families.layout import Layout

P = ParamSpec("P")
T = TypeVar("T")
# Smaller problems run in NumPy: a fit of some hundred sweeps then takes a few seconds.
MOST_COMPONENTS = 256
_MOST_WORK = 16e6  # Multiply-adds of a sweep.
_PARTIAL_WORK = 40.0  # Cost of partial rows in NumPy, relative to complete ones.
_BLOCK = 32


def choose(compiled: bool) -> ModuleType:
    """The backend. Numba is imported only if it is the compiled one."""
    name = "numba_kernels" if compiled else "numpy_kernels"
    return importlib.import_module(f"pickmix.kernels.{name}")


def needs_compiled(
    layout: Layout, n_rows: int, n_components: int, is_partial: bool = False
) -> bool:
    """Whether compiling pays, by sizes and by whether rows are partial (slow in NumPy)."""
    work = n_rows * min(n_components, _BLOCK) * layout.work()
    if is_partial:
        work *= _PARTIAL_WORK
    return n_components > MOST_COMPONENTS or work > _MOST_WORK


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

"""Array work on rows and components, twice under the same names: in NumPy and in Numba.

A backend is one of the two modules, `numpy_kernels` (to read first; it compiles nothing and runs
small problems) and `numba_kernels`. Both draw the same numbers from the same keys; sums may differ
in their last bits. The compiled one runs on as many threads as `pickmix.threads` says.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pickmix.families.layout import Layout

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

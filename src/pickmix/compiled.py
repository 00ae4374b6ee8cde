"""How functions are compiled: those that Python calls, and those that only compiled ones call.

Unless told otherwise Numba wraps every function twice, for callers in Python and in C. Code
that unpacks named tuples of many arrays there takes long to compile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from numba import njit
from numba.extending import register_jitable

F = TypeVar("F")

# No kernel divides by zero, and code that would complain of it takes long to compile.
_OPTIONS: dict[str, Any] = {"no_cfunc_wrapper": True, "error_model": "numpy"}

KERNELS: list[Any] = []  # All functions that `kernel` has decorated.


def kernel(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function that Python calls. It is kept on disk."""

    def decorate(function: Callable[..., Any]) -> Any:
        settings = {"cache": True, "nogil": True, **_OPTIONS} | options
        KERNELS.append(njit(**settings)(function))
        return KERNELS[-1]

    return decorate


#: Decorates a function that kernels call. For Python it stays what it is, so that a test or a
#: debugger can run it uncompiled; it is kept on disk inside of the kernels.
part: Callable[..., Callable[[F], F]] = partial(register_jitable, **_OPTIONS)

#: Called with a kind of kernels before they run. Fits replace it by what compiles them in another
#: process, so that all processes load the same machine code.
before_first_use: Callable[[str], object] = str

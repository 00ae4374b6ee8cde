"""How functions are compiled: those that Python calls, and those that only compiled ones call.

Unless told otherwise Numba wraps every function twice, for callers in Python and in C. Code
that unpacks named tuples of many arrays there takes long to compile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

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


_CACHE_LINE = 64


@intrinsic
def prefetch_row(typing_context, array, index):
    """Ask the processor to fetch `array[index]`, one row of a C-ordered 1-D or 2-D array."""
    signature = types.void(array, index)

    def codegen(context, builder, signature, args):
        array_type = signature.args[0]
        item_size = context.get_abi_sizeof(context.get_data_type(array_type.dtype))
        contents = context.make_array(array_type)(context, builder, args[0])
        byte_pointer = ir.IntType(8).as_pointer()
        word = ir.IntType(64)
        row_bytes = ir.Constant(word, item_size)
        if array_type.ndim == 2:
            width = cgutils.unpack_tuple(builder, contents.shape, 2)[1]
            row_bytes = builder.mul(width, row_bytes)
        offset = builder.mul(
            builder.sext(args[1], word) if args[1].type != word else args[1], row_bytes
        )
        base = builder.gep(builder.bitcast(contents.data, byte_pointer), [offset])
        hint = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(
                ir.VoidType(), [byte_pointer, ir.IntType(32), ir.IntType(32), ir.IntType(32)]
            ),
            "llvm.prefetch.p0",
        )
        flags = [ir.Constant(ir.IntType(32), value) for value in (0, 3, 1)]
        with cgutils.for_range_slice(
            builder, ir.Constant(word, 0), row_bytes, ir.Constant(word, _CACHE_LINE), word
        ) as (position, _):
            builder.call(hint, [builder.gep(base, [position]), *flags])
        if array_type.ndim == 2:
            # Rows do not begin where cache lines do, so the last byte may be on one line more.
            last = builder.sub(row_bytes, ir.Constant(word, 1))
            builder.call(hint, [builder.gep(base, [last]), *flags])
        return context.get_dummy_value()

    return signature, codegen

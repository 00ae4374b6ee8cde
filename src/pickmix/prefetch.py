"""A compiled hint that a row of an array will be needed soon.

With many components the rows that a step visits are scattered over memory, and waiting for them
would cost more than computing with them. The hint changes no result.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

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
        return context.get_dummy_value()

    return signature, codegen

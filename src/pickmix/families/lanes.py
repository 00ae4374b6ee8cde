"""Vector arithmetic on rows of LANES numbers, spelled out for the compiler.

Small matrices are factorised side by side, one per vector lane. Written as loops over lanes the
compiler must assume that rows of one array overlap, and falls back to scalar code; these
intrinsics load whole rows, compute, and store.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 8

_VECTOR = ir.VectorType(ir.DoubleType(), LANES)


def _row_pointer(context, builder, array_type, array, index):
    """Pointer to row `index` of a C-ordered (n, LANES) float64 array, as a vector."""
    data = context.make_array(array_type)(context, builder, array).data
    first = builder.mul(index, ir.Constant(index.type, LANES))
    return builder.bitcast(builder.gep(data, [first]), _VECTOR.as_pointer())


def _load(builder, pointer):
    # Rows are as aligned as their numbers, not as vectors.
    return builder.load(pointer, align=8)


@intrinsic
def subtract_product(typing_context, target, t, left, i, right, j):
    """target[t] -= left[i] * right[j], for rows of LANES numbers."""
    signature = types.void(target, types.int64, left, types.int64, right, types.int64)

    def codegen(context, builder, signature, args):
        pointers = [
            _row_pointer(context, builder, signature.args[n], args[n], args[n + 1])
            for n in (0, 2, 4)
        ]
        old, first, second = (_load(builder, pointer) for pointer in pointers)
        product = builder.fmul(first, second, flags=("contract",))
        builder.store(builder.fsub(old, product, flags=("contract",)), pointers[0], align=8)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def multiply(typing_context, target, t, left, i, right, j):
    """target[t] = left[i] * right[j], for rows of LANES numbers."""
    signature = types.void(target, types.int64, left, types.int64, right, types.int64)

    def codegen(context, builder, signature, args):
        target_pointer = _row_pointer(context, builder, signature.args[0], args[0], args[1])
        first, second = (
            _load(builder, _row_pointer(context, builder, signature.args[n], args[n], args[n + 1]))
            for n in (2, 4)
        )
        builder.store(builder.fmul(first, second), target_pointer, align=8)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def copy_row(typing_context, target, t, source, i):
    """target[t] = source[i], for rows of LANES numbers."""
    signature = types.void(target, types.int64, source, types.int64)

    def codegen(context, builder, signature, args):
        pointers = [
            _row_pointer(context, builder, signature.args[n], args[n], args[n + 1]) for n in (0, 2)
        ]
        builder.store(_load(builder, pointers[1]), pointers[0], align=8)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def invert_pivots(typing_context, factor, i, diagonal, j, reg_covar):
    """factor[i] = 1 / sqrt(factor[i] + reg_covar), for rows of LANES numbers.

    NaN where that pivot is lost in the rounding of diagonal[j] + reg_covar: it cancelled down to
    noise, which is a singular matrix and not a tiny variance.
    """
    signature = types.void(factor, types.int64, diagonal, types.int64, types.float64)

    def codegen(context, builder, signature, args):
        pointer = _row_pointer(context, builder, signature.args[0], args[0], args[1])
        original = _load(
            builder, _row_pointer(context, builder, signature.args[2], args[2], args[3])
        )
        reg = ir.Constant(_VECTOR, None)
        for lane in range(LANES):
            reg = builder.insert_element(reg, args[4], ir.Constant(ir.IntType(32), lane))
        noise = builder.fmul(builder.fadd(original, reg), ir.Constant(_VECTOR, [1e-15] * LANES))
        pivot = builder.fadd(_load(builder, pointer), reg)
        sound = builder.fcmp_ordered(">", pivot, noise)
        pivot = builder.select(sound, pivot, ir.Constant(_VECTOR, [float("nan")] * LANES))
        square_root = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_VECTOR, [_VECTOR]), f"llvm.sqrt.v{LANES}f64"
        )
        one = ir.Constant(_VECTOR, [1.0] * LANES)
        builder.store(builder.fdiv(one, builder.call(square_root, [pivot])), pointer, align=8)
        return context.get_dummy_value()

    return signature, codegen

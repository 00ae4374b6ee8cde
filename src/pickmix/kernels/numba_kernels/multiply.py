"""Products that the compiled sweeps are made of, as pieces of LLVM.

Numba's loops keep sums in memory and test arrays for overlap first; here sums stay in registers, as
in BLAS (`pickmix bench all --only products` measures the gain). BLAS itself would start threads,
and pays only for larger matrices. These are products of a small matrix with a tile of rows, four
rows at a time: evaluating by factors or products, and adding up moments. Both also exist as plain
loops.
"""

# Numba infers types here, as in the kernels.
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
from __future__ import annotations

import os

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pickmix.compiled import part

# Four sums of this many bytes are as many as fit into the registers. No result depends on it.
_BYTES = 128 if binding.get_host_cpu_features().get("avx512f", False) else 64
#: Columns of a product, in float32 and in float64.
SINGLE, DOUBLE = _BYTES // 4, _BYTES // 8
_FOUR = 4
_WORD, _SHORT = ir.IntType(64), ir.IntType(32)
_CONTRACT = ("contract",)


class _Emitter:
    """Writes the instructions of a product, in vectors of numbers of one type."""

    def __init__(self, context, builder, array_type):
        self.context = context
        self.builder = builder
        self.number = context.get_data_type(array_type.dtype)
        self.size = context.get_abi_sizeof(self.number)
        self.lanes = _BYTES // self.size
        self.vector = ir.VectorType(self.number, self.lanes)

    def locate(self, array_type, array, row, column):
        """Address of array[row, column], and the numbers from one row to the next."""
        contents = self.context.make_array(array_type)(self.context, self.builder, array)
        width = cgutils.unpack_tuple(self.builder, contents.shape, array_type.ndim)[-1]
        place = self.builder.add(self.builder.mul(row, width), column)
        return self.builder.gep(contents.data, [place]), width

    def at(self, pointer, row, width):
        """Address of what is `row` rows below a pointer."""
        return self.builder.gep(pointer, [self.builder.mul(row, width)])

    def load(self, pointer):
        pointer = self.builder.bitcast(pointer, self.vector.as_pointer())
        return self.builder.load(pointer, align=self.size)

    def store(self, value, pointer):
        pointer = self.builder.bitcast(pointer, self.vector.as_pointer())
        self.builder.store(value, pointer, align=self.size)

    def repeat(self, value):
        nothing = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(nothing, value, ir.Constant(_SHORT, 0))
        zeros = ir.Constant(ir.VectorType(_SHORT, self.lanes), None)
        return self.builder.shuffle_vector(first, nothing, zeros)

    def load_repeated(self, pointer, i):
        return self.repeat(self.builder.load(self.builder.gep(pointer, [ir.Constant(_WORD, i)])))

    def multiply(self, starts, n, left, left_width, right, right_width):
        """Four vectors: starts[i] + sum over n rows k of left[k, i] right[k]."""
        builder = self.builder
        sums = [cgutils.alloca_once(builder, self.vector) for _ in starts]
        for start, total in zip(starts, sums, strict=True):
            builder.store(start, total)
        with cgutils.for_range(builder, n, intp=_WORD) as loop:
            values = self.load(self.at(right, loop.index, right_width))
            factors = self.at(left, loop.index, left_width)
            for i, total in enumerate(sums):
                product = builder.fmul(self.load_repeated(factors, i), values, flags=_CONTRACT)
                builder.store(builder.fadd(builder.load(total), product, flags=_CONTRACT), total)
        return [builder.load(total) for total in sums]


@intrinsic
def add_product(typing_context, a, a_row, a_column, n, b, b_column, out, row, column):
    """out[row + i, column + j] += sum_k a[a_row + k, a_column + i] b[k, b_column + j].

    For i < 4, k < n, j < SINGLE or DOUBLE. All three are C-ordered, two-dimensional, of one type.
    """
    index = types.int64
    signature = types.void(a, index, index, index, b, index, out, index, index)

    def codegen(context, builder, signature, args):
        emit = _Emitter(context, builder, signature.args[0])
        left, left_width = emit.locate(signature.args[0], *args[:3])
        right, right_width = emit.locate(signature.args[4], args[4], ir.Constant(_WORD, 0), args[5])
        target, target_width = emit.locate(signature.args[6], *args[6:])
        places = [emit.at(target, ir.Constant(_WORD, i), target_width) for i in range(_FOUR)]
        starts = [emit.load(place) for place in places]
        sums = emit.multiply(starts, args[3], left, left_width, right, right_width)
        for total, place in zip(sums, places, strict=True):
            emit.store(total, place)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def subtract_squares(typing_context, a, a_row, n, b, b_row, column, floor, out, row):
    """Subtract squares of four sums of products from a row of `out`, each halved.

        out[row, j] -= sum_i (a[a_row, i] + sum_k a[a_row + 1 + k, i] b[b_row + k, j])^2 / 2

    for i < 4, k < n and column <= j < column + SINGLE or DOUBLE. All but n are of one type; floor
    has one dimension, the others have two. Returns whether any out[row, j] is not below floor[j].
    """
    index = types.int64
    signature = types.boolean(a, index, index, b, index, index, floor, out, index)

    def codegen(context, builder, signature, args):
        emit = _Emitter(context, builder, signature.args[0])
        zero = ir.Constant(_WORD, 0)
        left, left_width = emit.locate(signature.args[0], args[0], args[1], zero)
        right, right_width = emit.locate(signature.args[3], *args[3:6])
        floors, _ = emit.locate(signature.args[6], args[6], zero, args[5])
        place, _ = emit.locate(signature.args[7], args[7], args[8], args[5])
        starts = [emit.load_repeated(left, i) for i in range(_FOUR)]
        left = emit.at(left, ir.Constant(_WORD, 1), left_width)
        sums = emit.multiply(starts, args[2], left, left_width, right, right_width)
        total = builder.fmul(sums[0], sums[0])
        for value in sums[1:]:
            square = builder.fmul(value, value, flags=_CONTRACT)
            total = builder.fadd(total, square, flags=_CONTRACT)
        half = emit.repeat(ir.Constant(emit.number, 0.5))
        halved = builder.fmul(total, half, flags=_CONTRACT)
        value = builder.fsub(emit.load(place), halved, flags=_CONTRACT)
        emit.store(value, place)
        # Not a number is not below.
        above = builder.fcmp_unordered(">=", value, emit.load(floors))
        bits = builder.bitcast(above, ir.IntType(emit.lanes))
        return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

    return signature, codegen


@part(fastmath={"contract"})
def plain_add_product(a, a_row, a_column, n, b, b_column, out, row, column):
    """`add_product` as Numba's loops."""
    width = _BYTES // a.itemsize
    for i in range(_FOUR):
        for k in range(n):
            factor = a[a_row + k, a_column + i]
            for j in range(width):
                out[row + i, column + j] += factor * b[k, b_column + j]


@part(fastmath={"contract"})
def plain_subtract_squares(a, a_row, n, b, b_row, column, floor, out, row):
    """`subtract_squares` as Numba's loops."""
    width = _BYTES // a.itemsize
    sums, total = np.empty(width, dtype=a.dtype), np.zeros(width, dtype=a.dtype)
    for i in range(_FOUR):
        sums[:] = a[a_row, i]
        for k in range(n):
            factor = a[a_row + 1 + k, i]
            for j in range(width):
                sums[j] += factor * b[b_row + k, column + j]
        for j in range(width):
            total[j] += sums[j] * sums[j]
    is_above = False
    for j in range(width):
        out[row, column + j] -= total[j] / 2
        is_above = is_above or not out[row, column + j] < floor[column + j]
    return is_above


if os.environ.get("PICKMIX_PLAIN_PRODUCTS"):
    # For processors on which the pieces of LLVM fail, and to measure what they are worth.
    # Compiled kernels of both must not share a NUMBA_CACHE_DIR.
    add_product, subtract_squares = plain_add_product, plain_subtract_squares

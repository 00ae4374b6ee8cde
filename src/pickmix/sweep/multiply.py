"""The two products of matrices that the compiled sweep is made of, four rows at a time.

Evaluating by factors, evaluating by products, and adding up moments are all products of a small
matrix with a tile of rows. Loops in Numba keep their sums in memory, which makes them three times
slower; here they stay in registers, as in BLAS. Calling BLAS itself would bring threads of its own,
and pay only for larger matrices.
"""

# Numba infers types here, as in the kernels.
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
from __future__ import annotations

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

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
        """A vector of one number."""
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
    """Add a[k, i] b[k, j], summed over n rows k of `a` and `b`, to four rows of `out`.

        out[row + i, column + j] += sum_k a[a_row + k, a_column + i] b[k, b_column + j]

    for i < 4 and j < SINGLE or DOUBLE. All three are C-ordered, two-dimensional, of one type.
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

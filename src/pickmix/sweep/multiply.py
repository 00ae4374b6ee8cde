"""Products that the compiled sweeps are made of, as pieces of LLVM.

Numba's loops keep sums in memory and test arrays for overlap first; here sums stay in registers, as
in BLAS (benchmarks/products.py measures the gain). BLAS itself would start threads, and pays only
for larger matrices. First come products of a small matrix with a tile of rows, four rows at a time:
evaluating by factors or products, and adding up moments; both also as plain loops. Then, for
partial rows, arithmetic on many small matrices side by side: a row of an array holds one number for
each component of a block, in lanes. Those arrays are C-ordered float64 (n, width), of one width, a
multiple of LANES.
"""

# Numba infers types here, as in the kernels.
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
from __future__ import annotations

import contextlib
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
LANES = DOUBLE  # Lanes that are worked on together.
_ZERO = ir.Constant(_WORD, 0)


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


class _Lanes(_Emitter):
    """Writes instructions for rows of lanes."""

    @contextlib.contextmanager
    def columns(self, array_type, array):
        """A loop over the columns of an array, as many at a time as a vector has."""
        contents = self.context.make_array(array_type)(self.context, self.builder, array)
        width = cgutils.unpack_tuple(self.builder, contents.shape, array_type.ndim)[-1]
        step = ir.Constant(_WORD, self.lanes)
        with cgutils.for_range_slice(
            self.builder, _ZERO, width, step, intp=_WORD, inc=True
        ) as loop:
            yield loop[0]

    def add_products(self, start, n, left, left_step, right, right_step, is_added=True):
        """start +- sum over k < n of left[k] right[k], where steps lie between rows."""
        builder = self.builder
        total = cgutils.alloca_once(builder, self.vector)
        builder.store(start, total)
        with cgutils.for_range(builder, n, intp=_WORD) as loop:
            one = self.load(self.at(left, loop.index, left_step))
            other = self.load(self.at(right, loop.index, right_step))
            if not is_added:
                one = builder.fneg(one)
            product = builder.fmul(one, other, flags=_CONTRACT)
            builder.store(builder.fadd(builder.load(total), product, flags=_CONTRACT), total)
        return builder.load(total)


def _make_sum(is_added):
    @intrinsic
    def run(typing_context, a, a_row, a_step, b, b_row, b_step, n, out, row):
        index = types.int64
        signature = types.void(a, index, index, b, index, index, index, out, index)

        def codegen(context, builder, signature, args):
            emit, kinds = _Lanes(context, builder, signature.args[0]), signature.args
            a, a_row, a_step, b, b_row, b_step, n, out, row = args
            with emit.columns(kinds[0], a) as column:
                left, width = emit.locate(kinds[0], a, a_row, column)
                right, _ = emit.locate(kinds[3], b, b_row, column)
                place, _ = emit.locate(kinds[7], out, row, column)
                steps = builder.mul(a_step, width), builder.mul(b_step, width)
                total = emit.add_products(
                    emit.load(place), n, left, steps[0], right, steps[1], is_added
                )
                emit.store(total, place)
            return context.get_dummy_value()

        return signature, codegen

    return run


#: out[row] += sum over k < n of a[a_row + k a_step] b[b_row + k b_step].
add_products = _make_sum(is_added=True)
#: The same, subtracted.
subtract_products = _make_sum(is_added=False)


@intrinsic
def reduce_row(typing_context, base, s, number, a, a_row, b, b_row, b_step, n, scale, t, out, row):
    """out[row] = (base[s] + number - sum over k < n of a[a_row + k] b[b_row + k b_step]) scale[t].

    t = -1: without the scale.
    """
    index = types.int64
    signature = types.void(
        base, index, types.float64, a, index, b, index, index, index, scale, index, out, index
    )

    def codegen(context, builder, signature, args):
        emit, kinds = _Lanes(context, builder, signature.args[0]), signature.args
        base, s, number, a, a_row, b, b_row, b_step, n, scale, t, out, row = args
        number = emit.repeat(number)
        is_scaled = builder.icmp_signed(">=", t, _ZERO)
        with emit.columns(kinds[0], base) as column:
            start = emit.load(emit.locate(kinds[0], base, s, column)[0])
            left, width = emit.locate(kinds[3], a, a_row, column)
            right, _ = emit.locate(kinds[5], b, b_row, column)
            start, step = builder.fadd(start, number), builder.mul(b_step, width)
            total = emit.add_products(start, n, left, width, right, step, is_added=False)
            place, _ = emit.locate(kinds[11], out, row, column)
            with builder.if_else(is_scaled) as (then, otherwise):
                with then:
                    factor = emit.load(emit.locate(kinds[9], scale, t, column)[0])
                    emit.store(builder.fmul(total, factor), place)
                with otherwise:
                    emit.store(total, place)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def multiply_lower(typing_context, factor, height, low, high, x, x_row, places, out, row):
    """out[row + a] = sum over low <= b <= a of factor[a height + b] x[x_row + places[b]]."""
    index = types.int64
    signature = types.void(factor, index, index, index, x, index, places, out, index)

    def codegen(context, builder, signature, args):
        emit, kinds = _Lanes(context, builder, signature.args[0]), signature.args
        factor, height, low, high, x, x_row, places, out, row = args
        numbers = context.make_array(kinds[6])(context, builder, places).data
        one = ir.Constant(_WORD, 1)
        nothing = ir.Constant(emit.vector, None)
        with (
            emit.columns(kinds[0], factor) as column,
            cgutils.for_range_slice(builder, low, high, one, intp=_WORD, inc=True) as outer,
        ):
            a = outer[0]
            total = cgutils.alloca_once(builder, emit.vector)
            builder.store(nothing, total)
            last = builder.add(a, one)
            with cgutils.for_range_slice(builder, low, last, one, intp=_WORD, inc=True) as inner:
                b = inner[0]
                here = builder.add(builder.mul(a, height), b)
                own = emit.load(emit.locate(kinds[0], factor, here, column)[0])
                where = builder.add(x_row, builder.load(builder.gep(numbers, [b])))
                other = emit.load(emit.locate(kinds[4], x, where, column)[0])
                product = builder.fmul(own, other, flags=_CONTRACT)
                builder.store(builder.fadd(builder.load(total), product, flags=_CONTRACT), total)
            place, _ = emit.locate(kinds[7], out, builder.add(row, a), column)
            emit.store(builder.load(total), place)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def multiply_upper(typing_context, factor, height, low, high, x, row, out):
    """out[row + a] = sum over a <= k < high of factor[k height + a] x[row + k], low <= a < high."""
    index = types.int64
    signature = types.void(factor, index, index, index, x, index, out)

    def codegen(context, builder, signature, args):
        emit, kinds = _Lanes(context, builder, signature.args[0]), signature.args
        factor, height, low, high, x, row, out = args
        one = ir.Constant(_WORD, 1)
        nothing = ir.Constant(emit.vector, None)
        with (
            emit.columns(kinds[0], factor) as column,
            cgutils.for_range_slice(builder, low, high, one, intp=_WORD, inc=True) as outer,
        ):
            a = outer[0]
            begin = builder.add(builder.mul(a, height), a)
            left, width = emit.locate(kinds[0], factor, begin, column)
            right, _ = emit.locate(kinds[4], x, builder.add(row, a), column)
            step = builder.mul(height, width)
            size = builder.sub(high, a)
            total = emit.add_products(nothing, size, left, step, right, width)
            emit.store(total, emit.locate(kinds[6], out, builder.add(row, a), column)[0])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def add_weighted(typing_context, weights, sign, a, a_row, b, b_row, n, out, row):
    """out[row] += sign weights[0] sum over k < n of a[a_row + k] b[b_row + k]."""
    index = types.int64
    signature = types.void(weights, types.float64, a, index, b, index, index, out, index)

    def codegen(context, builder, signature, args):
        emit, kinds = _Lanes(context, builder, signature.args[0]), signature.args
        weights, sign, a, a_row, b, b_row, n, out, row = args
        sign, nothing = emit.repeat(sign), ir.Constant(emit.vector, None)
        with emit.columns(kinds[0], weights) as column:
            left, width = emit.locate(kinds[2], a, a_row, column)
            right, _ = emit.locate(kinds[4], b, b_row, column)
            total = emit.add_products(nothing, n, left, width, right, width)
            weight = emit.load(emit.locate(kinds[0], weights, _ZERO, column)[0])
            place, _ = emit.locate(kinds[7], out, row, column)
            product = builder.fmul(builder.fmul(weight, sign), total, flags=_CONTRACT)
            emit.store(builder.fadd(emit.load(place), product, flags=_CONTRACT), place)
        return context.get_dummy_value()

    return signature, codegen


def _make_elementwise(combine):
    @intrinsic
    def run(typing_context, source, s, number, target, t):
        index = types.int64
        signature = types.void(source, index, types.float64, target, index)

        def codegen(context, builder, signature, args):
            emit, kinds = _Lanes(context, builder, signature.args[0]), signature.args
            source, s, number, target, t = args
            with emit.columns(kinds[0], source) as column:
                place, _ = emit.locate(kinds[3], target, t, column)
                own = emit.load(emit.locate(kinds[0], source, s, column)[0])
                emit.store(combine(emit, own, emit.repeat(number), emit.load(place)), place)
            return context.get_dummy_value()

        return signature, codegen

    return run


def _over_root(emit, source, number, target):
    kind = ir.FunctionType(emit.vector, [emit.vector])
    name = f"llvm.sqrt.v{emit.lanes}f64"
    root = cgutils.get_or_insert_function(emit.builder.module, kind, name)
    return emit.builder.fdiv(number, emit.builder.call(root, [source]))


#: target[t] = number.
fill_row = _make_elementwise(lambda emit, s, x, t: x)
#: target[t] = source[s] + number.
load_row = _make_elementwise(lambda emit, s, x, t: emit.builder.fadd(s, x))
#: target[t] += number source[s].
add_row = _make_elementwise(
    lambda emit, s, x, t: emit.builder.fadd(
        t, emit.builder.fmul(s, x, flags=_CONTRACT), flags=_CONTRACT
    )
)
#: target[t] *= number source[s].
scale_row = _make_elementwise(lambda emit, s, x, t: emit.builder.fmul(t, emit.builder.fmul(s, x)))
#: target[t] = number / sqrt(source[s]).
invert_root = _make_elementwise(_over_root)


@intrinsic
def find_away(typing_context, rows, i, seen, n, location, targets, away):
    """away[targets[a]] = location[seen[a]] - rows[i, seen[a]] for a < n."""
    index = types.int64
    signature = types.void(rows, index, seen, index, location, targets, away)

    def codegen(context, builder, signature, args):
        emit, kinds = _Lanes(context, builder, signature.args[4]), signature.args
        rows, i, seen, n, location, targets, away = args
        places = context.make_array(kinds[2])(context, builder, seen).data
        aims = context.make_array(kinds[5])(context, builder, targets).data
        with cgutils.for_range(builder, n, intp=_WORD) as loop:
            c = builder.load(builder.gep(places, [loop.index]))
            target = builder.load(builder.gep(aims, [loop.index]))
            x = emit.repeat(builder.load(emit.locate(kinds[0], rows, i, c)[0]))
            with emit.columns(kinds[4], location) as column:
                own = emit.load(emit.locate(kinds[4], location, c, column)[0])
                place, _ = emit.locate(kinds[6], away, target, column)
                emit.store(builder.fsub(own, x), place)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def evaluate(typing_context, factor, height, begin, n, away, base, beta, least, squares, values):
    """Squared distances and log-joints, without sums for places a < begin[a].

    white[a] = sum over begin[a] <= b <= a of factor[a height + b] away[b], for a < n
    squares[0] = sum of white[a]^2
    values[0] = beta (base[0] - squares[0] / 2), or `least` if that is larger or no number
    """
    index, number = types.int64, types.float64
    signature = types.void(factor, index, begin, index, away, base, number, number, squares, values)

    def codegen(context, builder, signature, args):
        emit, kinds = _Lanes(context, builder, signature.args[0]), signature.args
        factor, height, begin, n, away, base, beta, least, squares, values = args
        begins = context.make_array(kinds[2])(context, builder, begin).data
        one = ir.Constant(_WORD, 1)
        nothing = ir.Constant(emit.vector, None)
        half = emit.repeat(ir.Constant(emit.number, 0.5))
        beta, least = emit.repeat(beta), emit.repeat(least)
        with emit.columns(kinds[0], factor) as column:
            total = cgutils.alloca_once(builder, emit.vector)
            builder.store(nothing, total)
            with cgutils.for_range(builder, n, intp=_WORD) as loop:
                first = builder.load(builder.gep(begins, [loop.index]))
                row = builder.add(builder.mul(loop.index, height), first)
                left, width = emit.locate(kinds[0], factor, row, column)
                right, _ = emit.locate(kinds[4], away, first, column)
                size = builder.add(builder.sub(loop.index, first), one)
                value = emit.add_products(nothing, size, left, width, right, width)
                square = builder.fmul(value, value, flags=_CONTRACT)
                builder.store(builder.fadd(builder.load(total), square, flags=_CONTRACT), total)
            found = builder.load(total)
            emit.store(found, emit.locate(kinds[8], squares, _ZERO, column)[0])
            start = emit.load(emit.locate(kinds[5], base, _ZERO, column)[0])
            found = builder.fsub(start, builder.fmul(half, found, flags=_CONTRACT))
            found = builder.fmul(beta, found)
            above = builder.fcmp_ordered(">", found, least)
            found = builder.select(above, found, least)
            emit.store(found, emit.locate(kinds[9], values, _ZERO, column)[0])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def add_moments(
    typing_context, weights, scale, away, height, begin, n, mass, squares, means, products
):
    """Scale weights, and add a row to the moments that they weigh.

    weights[0] *= scale, mass[0] += weights[0], squares[0] += weights[0]^2
    means[a] += weights[0] away[a]
    products[a height + b] += weights[0] away[a] away[b], for begin[a] <= b <= a < n
    """
    index, number = types.int64, types.float64
    signature = types.void(
        weights, number, away, index, begin, index, mass, squares, means, products
    )

    def codegen(context, builder, signature, args):
        emit, kinds = _Lanes(context, builder, signature.args[0]), signature.args
        weights, scale, away, height, begin, n, mass, squares, means, products = args
        begins = context.make_array(kinds[4])(context, builder, begin).data
        one = ir.Constant(_WORD, 1)
        scale = emit.repeat(scale)
        with emit.columns(kinds[0], weights) as column:
            place, _ = emit.locate(kinds[0], weights, _ZERO, column)
            weight = builder.fmul(emit.load(place), scale)
            emit.store(weight, place)
            place, _ = emit.locate(kinds[6], mass, _ZERO, column)
            emit.store(builder.fadd(emit.load(place), weight), place)
            place, _ = emit.locate(kinds[7], squares, _ZERO, column)
            square = builder.fmul(weight, weight, flags=_CONTRACT)
            emit.store(builder.fadd(emit.load(place), square, flags=_CONTRACT), place)
            with cgutils.for_range(builder, n, intp=_WORD) as loop:
                own = emit.load(emit.locate(kinds[2], away, loop.index, column)[0])
                scaled = builder.fmul(weight, own)
                place, _ = emit.locate(kinds[8], means, loop.index, column)
                emit.store(builder.fadd(emit.load(place), scaled), place)
                first = builder.load(builder.gep(begins, [loop.index]))
                others, width = emit.locate(kinds[2], away, first, column)
                row = builder.add(builder.mul(loop.index, height), first)
                target, _ = emit.locate(kinds[9], products, row, column)
                size = builder.add(builder.sub(loop.index, first), one)
                with cgutils.for_range(builder, size, intp=_WORD) as inner:
                    other = emit.load(emit.at(others, inner.index, width))
                    place = emit.at(target, inner.index, width)
                    product = builder.fmul(scaled, other, flags=_CONTRACT)
                    emit.store(builder.fadd(emit.load(place), product, flags=_CONTRACT), place)
        return context.get_dummy_value()

    return signature, codegen

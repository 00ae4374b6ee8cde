"""Factors of many small covariances: W with W' W = (C + diag(floors))^-1, packed as a layout says.

In NumPy, or compiled, LANES matrices side by side, with the shrinkage of `GaussianPrior`, so that a
covariance is loaded once. In loops over lanes the compiler must assume that rows of one array
overlap, and falls back to scalar code; the intrinsics load whole rows of LANES numbers, compute,
and store.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pickmix.compiled import kernel, part
from pickmix.families.layout import SCALE, SQUARE_SCALE
from pickmix.prefetch import prefetch_row

LANES = 8

_VECTOR = ir.VectorType(ir.DoubleType(), LANES)
HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_NOISE = 1e-15  # A pivot below this share of its diagonal is noise: singular.
_FAST_SUMS = {"reassoc", "contract", "nsz"}


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
    """target[t] -= left[i] * right[j]."""
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
    """target[t] = left[i] * right[j]."""
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
    """target[t] = source[i]."""
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

    NaN where that pivot is lost in the rounding of diagonal[j] + reg_covar: a singular matrix, not
    a tiny variance.
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


@part(fastmath=_FAST_SUMS)
def _factorise_lanes(layout, factor, floors, log_normaliser):
    """Replace C by W = L^-1 where L L' = C + diag(floors), packed (P, LANES), one per lane.

    Both halves run over independent entries in their inner loops, so that no sum waits for itself.
    """
    first, last, starts, _ = layout
    n = first.shape[0]
    # Row n of the scratch stays zero; the first rows hold the diagonal of C at first.
    scratch = np.zeros((n + 1, LANES))
    for j in range(n):
        copy_row(scratch, j, factor, starts[j + 1] - 1)
    # Right-looking Cholesky: finish column j, then take it out of everything to its right. The
    # diagonal is stored inverted.
    for j in range(n):
        diagonal = starts[j + 1] - 1
        invert_pivots(factor, diagonal, scratch, j, floors[j])
        for i in range(j + 1, last[j] + 1):
            row = starts[i] - first[i]
            multiply(factor, row + j, factor, row + j, factor, diagonal)
            for m in range(j + 1, i + 1):
                other = starts[m] - first[m] + j
                subtract_product(factor, row + m, factor, row + j, factor, other)
    # Invert, row by row: W_ij = W_ii (-sum_{j <= m < i} L_im W_mj).
    determinant = np.ones(LANES)
    log_normaliser[:] = -n * HALF_LOG_2PI
    for i in range(n):
        row = starts[i] - first[i]
        for j in range(first[i], i):
            copy_row(scratch, j, scratch, n)
        for m in range(first[i], i):
            for j in range(first[i], m + 1):
                subtract_product(scratch, j, factor, row + m, factor, starts[m] - first[m] + j)
        for j in range(first[i], i):
            multiply(factor, row + j, factor, row + i, scratch, j)
        for lane in range(LANES):
            determinant[lane] *= factor[row + i, lane]
        # One logarithm for five pivots. Columns spread less than 1e60, so their product cannot
        # underflow; if it overflows, variances are below 1e-120 and count as singular.
        if i % 5 == 4 or i == n - 1:
            for lane in range(LANES):
                log_normaliser[lane] += math.log(determinant[lane])
                determinant[lane] = 1.0


@kernel()
def factorise_components(
    layout,
    scatter,
    mass,
    squares,
    decay,
    members,
    in_order,
    least_count,
    pooled,
    averages,
    floors,
    factor,
    log_normaliser,
    failures,
    start,
    stop,
):
    """Factorise the covariances of the components members[start:stop].

    With a least count, components of fewer effective rows are shrunk to the pooled covariance (P,).
    `in_order`: row u of the scatter is that of members[u]. `averages`: all variances of a component
    are equal. Where there is no factor, failures[u] is True and the old one stays.
    """
    n_packed = scatter.shape[1]
    lanes = np.ones((n_packed, LANES))
    found = np.empty(LANES)
    for begin in range(start, stop, LANES):
        n_lanes = min(LANES, stop - begin)
        for lane in range(n_lanes):
            k = members[begin + lane]
            if begin + lane + LANES < stop:
                ahead = members[begin + lane + LANES]
                prefetch_row(factor, ahead)
                if not in_order:
                    prefetch_row(scatter, ahead)
            source = begin + lane if in_order else k
            for p in range(n_packed):
                lanes[p, lane] = scatter[source, p]
            if averages:
                total = 0.0
                for p in range(n_packed):
                    total += scatter[source, p]
                for p in range(n_packed):
                    lanes[p, lane] = total / n_packed
            trust = 1.0
            if least_count > 0.0:
                weight = mass[k] * decay[SCALE]
                spread = squares[k] * decay[SQUARE_SCALE] * least_count
                trust = min(1.0, weight * weight / spread) if spread > 0.0 else 0.0
            if trust < 1.0:
                for p in range(n_packed):
                    lanes[p, lane] = trust * lanes[p, lane] + (1.0 - trust) * pooled[p]
        _factorise_lanes(layout, lanes, floors, found)
        for lane in range(n_lanes):
            k = members[begin + lane]
            failures[begin + lane] = not found[lane] < np.inf
            if not failures[begin + lane]:
                for p in range(n_packed):
                    factor[k, p] = lanes[p, lane]
                log_normaliser[k] = found[lane]


def factorise(
    covariances: np.ndarray, n_features: int, floors: float | np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Factors (K, P), log-normalisers (K,) and failures (K,) of packed covariances plus floors.

    P = D means diagonals, else packed lower triangles. The floors are one number or (D,).
    """
    if covariances.shape[1] == n_features:
        variances = covariances + floors
        failures = np.asarray(~(variances > 0.0).all(axis=1))
        variances = np.where(failures[:, None], 1.0, variances)
        log_normaliser = -0.5 * np.log(variances).sum(axis=1) - n_features * HALF_LOG_2PI
        return 1.0 / np.sqrt(variances), log_normaliser, failures
    rows, columns = _triangle(n_features)
    matrices = unpack_symmetric(covariances, n_features)
    diagonal = np.arange(n_features)
    matrices[:, diagonal, diagonal] += floors
    lower = _cholesky(matrices)
    pivots = lower[:, diagonal, diagonal]
    sound = np.square(pivots) > _NOISE * matrices[:, diagonal, diagonal]
    failures = ~sound.all(axis=1)
    lower[failures] = np.eye(n_features)
    inverse = np.zeros_like(lower)
    for i in range(n_features):
        inverse[:, i, i] = 1.0 / lower[:, i, i]
        row = np.einsum("kj,kjl->kl", lower[:, i, :i], inverse[:, :i, :i])
        inverse[:, i, :i] = -row * inverse[:, i, i, None]
    log_normaliser = np.log(inverse[:, diagonal, diagonal]).sum(axis=1) - n_features * HALF_LOG_2PI
    return np.ascontiguousarray(inverse[:, rows, columns]), log_normaliser, failures


def _cholesky(matrices: np.ndarray) -> np.ndarray:
    """Lower Cholesky factors; NaN where there is none."""
    try:
        return np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        lower = np.full_like(matrices, np.nan)
        for k, matrix in enumerate(matrices):
            try:
                lower[k] = np.linalg.cholesky(matrix)
            except np.linalg.LinAlgError:
                continue
        return lower


@functools.cache
def _triangle(n_features: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of a lower triangle, row by row."""
    return np.tril_indices(n_features)


def unpack_lower(packed: np.ndarray, n_features: int) -> np.ndarray:
    """Packed lower triangles (K, P) as matrices (K, D, D)."""
    lower = np.zeros((packed.shape[0], n_features, n_features))
    rows, columns = _triangle(n_features)
    lower[:, rows, columns] = packed
    return lower


def unpack_symmetric(packed: np.ndarray, n_features: int) -> np.ndarray:
    """Packed symmetric matrices (K, P) as (K, D, D)."""
    full = unpack_lower(packed, n_features)
    rows, columns = _triangle(n_features)
    full[:, columns, rows] = packed
    return full


def pack(matrices: np.ndarray) -> np.ndarray:
    """Lower triangles of matrices (K, D, D), row by row, (K, P)."""
    rows, columns = _triangle(matrices.shape[-1])
    return np.ascontiguousarray(matrices[:, rows, columns])

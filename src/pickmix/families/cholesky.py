"""Factors of many small covariances: W with W' W = (C + diag(floors))^-1, packed as a layout says.

In NumPy, or compiled, LANES matrices side by side. In loops over lanes the compiler must assume
that rows of one array overlap, and falls back to scalar code; the intrinsics load whole rows of
LANES numbers, compute, and store.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from scipy.linalg.lapack import dtrtri

from pickmix.compiled import kernel, part, prefetch_row

LANES = 8

_VECTOR = ir.VectorType(ir.DoubleType(), LANES)
HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_NOISE = 1e-15  # A pivot below this share of its diagonal is noise: singular.
_FAST_SUMS = {"reassoc", "contract", "nsz"}


def _row_intrinsic(signature, compute):
    """What an intrinsic returns: compute(builder, rows, numbers) is stored in the first row.

    Arguments are rows of C-ordered (n, LANES) float64 arrays, as (array, index), then numbers.
    """
    n_rows = sum(isinstance(kind, types.Array) for kind in signature.args)

    def codegen(context, builder, signature, args):
        pointers = []
        for n in range(0, 2 * n_rows, 2):
            data = context.make_array(signature.args[n])(context, builder, args[n]).data
            first = builder.mul(args[n + 1], ir.Constant(args[n + 1].type, LANES))
            pointers.append(builder.bitcast(builder.gep(data, [first]), _VECTOR.as_pointer()))
        # Rows are as aligned as their numbers, not as vectors.
        rows = [builder.load(pointer, align=8) for pointer in pointers]
        builder.store(compute(builder, rows, args[2 * n_rows :]), pointers[0], align=8)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def subtract_product(typing_context, target, t, left, i, right, j):
    """target[t] -= left[i] * right[j]."""

    def compute(builder, rows, numbers):
        product = builder.fmul(rows[1], rows[2], flags=("contract",))
        return builder.fsub(rows[0], product, flags=("contract",))

    row = types.int64
    return _row_intrinsic(types.void(target, row, left, row, right, row), compute)


@intrinsic
def multiply(typing_context, target, t, left, i, right, j):
    """target[t] = left[i] * right[j]."""
    row = types.int64
    return _row_intrinsic(
        types.void(target, row, left, row, right, row),
        lambda builder, rows, numbers: builder.fmul(rows[1], rows[2]),
    )


@intrinsic
def copy_row(typing_context, target, t, source, i):
    """target[t] = source[i]."""
    signature = types.void(target, types.int64, source, types.int64)
    return _row_intrinsic(signature, lambda builder, rows, numbers: rows[1])


@intrinsic
def invert_pivots(typing_context, factor, i, diagonal, j, reg_covar):
    """factor[i] = 1 / sqrt(factor[i] + reg_covar), for rows of LANES numbers.

    NaN where that pivot is lost in the rounding of diagonal[j] + reg_covar: a singular matrix, not
    a tiny variance.
    """

    def compute(builder, rows, numbers):
        reg = ir.Constant(_VECTOR, None)
        for lane in range(LANES):
            reg = builder.insert_element(reg, numbers[0], ir.Constant(ir.IntType(32), lane))
        noise = builder.fmul(builder.fadd(rows[1], reg), ir.Constant(_VECTOR, [_NOISE] * LANES))
        pivot = builder.fadd(rows[0], reg)
        sound = builder.fcmp_ordered(">", pivot, noise)
        pivot = builder.select(sound, pivot, ir.Constant(_VECTOR, [float("nan")] * LANES))
        square_root = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_VECTOR, [_VECTOR]), f"llvm.sqrt.v{LANES}f64"
        )
        one = ir.Constant(_VECTOR, [1.0] * LANES)
        return builder.fdiv(one, builder.call(square_root, [pivot]))

    signature = types.void(factor, types.int64, diagonal, types.int64, types.float64)
    return _row_intrinsic(signature, compute)


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
    layout, covariances, members, floors, factor, log_normaliser, failures, start, stop
):
    """Factorise the covariances (U, P) of the components members[start:stop].

    Where there is no factor, failures[u] is True and the old one stays.
    """
    n_packed = covariances.shape[1]
    lanes = np.ones((n_packed, LANES))
    log_normalisers = np.empty(LANES)
    for begin in range(start, stop, LANES):
        n_lanes = min(LANES, stop - begin)
        for lane in range(n_lanes):
            if begin + lane + LANES < stop:
                prefetch_row(factor, members[begin + lane + LANES])
            for p in range(n_packed):
                lanes[p, lane] = covariances[begin + lane, p]
        _factorise_lanes(layout, lanes, floors, log_normalisers)
        for lane in range(n_lanes):
            k = members[begin + lane]
            failures[begin + lane] = not log_normalisers[lane] < np.inf
            if not failures[begin + lane]:
                for p in range(n_packed):
                    factor[k, p] = lanes[p, lane]
                log_normaliser[k] = log_normalisers[lane]


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
    matrices = unpack_symmetric(covariances, n_features)
    diagonal = np.arange(n_features)
    matrices[:, diagonal, diagonal] += floors
    lower = _cholesky(matrices)
    pivots = lower[:, diagonal, diagonal]
    sound = np.square(pivots) > _NOISE * matrices[:, diagonal, diagonal]
    failures = ~sound.all(axis=1)
    lower[failures] = np.eye(n_features)
    inverse = invert_lower(lower)
    log_normaliser = np.log(inverse[:, diagonal, diagonal]).sum(axis=1) - n_features * HALF_LOG_2PI
    return pack(inverse), log_normaliser, failures


def invert_lower(lower: np.ndarray) -> np.ndarray:
    """Inverses of lower triangles (K, D, D)."""
    inverse = lower.copy()
    for triangle in inverse:
        # In place: LAPACK sees the transpose of an array in C order.
        dtrtri(triangle.T, lower=0, overwrite_c=1)
    return inverse


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
def _triangle(n_features: int) -> np.ndarray:
    """Places (P,) of a lower triangle, row by row, in a flat matrix."""
    rows, columns = np.tril_indices(n_features)
    return np.asarray(rows * n_features + columns)


@functools.cache
def _symmetric(n_features: int) -> np.ndarray:
    """Places (D * D,) of the cells of a symmetric matrix in its packed lower triangle."""
    places = np.empty((n_features, n_features), dtype=np.int64)
    rows, columns = np.tril_indices(n_features)
    places[rows, columns] = places[columns, rows] = np.arange(rows.shape[0])
    return places.ravel()


def unpack_lower(packed: np.ndarray, n_features: int) -> np.ndarray:
    """Packed lower triangles (K, P) as matrices (K, D, D)."""
    lower = np.zeros((packed.shape[0], n_features * n_features))
    lower[:, _triangle(n_features)] = packed
    return lower.reshape(-1, n_features, n_features)


def unpack_symmetric(packed: np.ndarray, n_features: int) -> np.ndarray:
    """Packed symmetric matrices (K, P) as (K, D, D)."""
    return packed.take(_symmetric(n_features), axis=1).reshape(-1, n_features, n_features)


def pack(matrices: np.ndarray) -> np.ndarray:
    """Lower triangles of matrices (K, D, D), row by row, (K, P)."""
    n_features = matrices.shape[-1]
    return matrices.reshape(-1, n_features * n_features).take(_triangle(n_features), axis=1)

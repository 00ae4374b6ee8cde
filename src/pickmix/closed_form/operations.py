"""The operations that tell one covariance structure from another, inside compiled kernels.

The kernels of `kernels.py` are written once. They call the functions declared here with a
*model*, a named tuple of arrays whose class names the structure; Numba picks the structure's
implementation when it compiles. `full.py` and `diagonal.py` hold the implementations.

Fields common to all models, K components in D dimensions:

- mean (K, D): means, in coordinates centred on the data
- covariance (K, P): the covariance statistic about the mean, P numbers in the structure's packing
- factor (K, P): the same packing, a factor W of the precision, W' W = (covariance in use)^-1
- log_normaliser (K,): log |W| - D/2 log(2 pi)
- mass, squares (K,): sums of weights and of squared weights, up to the clock's scales
- log_mass (K,): log of mass
- clock (4,): scale of mass, scale of squares, log of the first, log of the weight floor

For the tied structure the arrays of shape (K, P) and log_normaliser have one row for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from numba import types
from numba.extending import overload

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)

SCALE, SQUARE_SCALE, LOG_SCALE, LOG_FLOOR = range(4)

# Operations of inner loops take arrays and row numbers: a view of a row costs two calls of Numba's
# reference counting, which is as much as the arithmetic on it.

# Sums may be reordered by the compiler (that is what lets it vectorise them), always in the same
# way for the same binary. NaN and infinity keep their meaning.
FAST_SUMS = {"reassoc", "contract", "nsz"}


def squared_distance(model, k, rows, i, scratch):
    """Squared Mahalanobis distance of rows[i] from component k."""


def squared_distances(model, k, columns, scratch, out):
    """Squared Mahalanobis distances of R rows, given as columns (D, R), from component k."""


def factor_index(model, k):
    """Row of `factor` and `log_normaliser` that component k uses."""


def add_outer(model, weight, difference, scatter, u):
    """Add weight * difference difference' to scatter[u] (P,), in the structure's packing."""


def add_outers(model, weights, differences, n, scatter):
    """Add sum_r weights[r] d_r d_r' over the first n columns d_r of differences (D, R)."""


def factorise_lanes(model, factor, reg_covar, log_normaliser):
    """Replace covariances in `factor` (P, LANES) by factors W of (covariance + reg_covar I)^-1.

    log_normaliser (LANES,) receives log |W| - D/2 log(2 pi), NaN where there is no factorisation.
    """


def has_own_covariance(model):
    """True if every component has a covariance of its own."""


def implements(operation: Callable[..., Any], *models: type) -> Callable[[Callable], Callable]:
    """Register an implementation of `operation` for models of the given classes."""

    def register(implementation: Callable) -> Callable:
        def choose(model, *args):
            if isinstance(model, types.BaseNamedTuple) and model.instance_class in models:
                return implementation
            return None

        overload(operation, jit_options={"fastmath": FAST_SUMS}, strict=False)(choose)
        return implementation

    return register

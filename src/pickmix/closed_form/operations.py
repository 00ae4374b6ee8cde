"""The operations that tell one covariance structure from another, inside compiled kernels.

The kernels of `evaluation.py` and `statistics.py` are written once. They call the functions
declared here with a *model*, a named tuple of arrays whose class names the structure, or with its
*layout* (`models.py`); Numba picks the structure's implementation when it compiles. `full.py` and
`diagonal.py` hold the implementations.
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


def layout_of(model):
    """Layout of the model's covariances."""


def factor_index(model, k):
    """Row of `factor` and `log_normaliser` that component k uses."""


def add_outer(layout, weight, difference, scatter, u):
    """Add weight * difference difference' to scatter[u] (P,), in the structure's packing."""


def add_outers(layout, weights, differences, n, scatter):
    """Add sum_r weights[r] d_r d_r' over the first n columns d_r of differences (D, R)."""


def factorise_lanes(layout, factor, reg_covar, log_normaliser):
    """Replace covariances in `factor` (P, LANES) by factors W of (covariance + reg_covar I)^-1.

    log_normaliser (LANES,) receives log |W| - D/2 log(2 pi), NaN where there is no factorisation.
    """


def has_own_covariance(model):
    """True if every component has a covariance of its own."""


def fill_products(layout, columns, features):
    """features[p] = the products of coordinates that a scatter has at p, for columns (D, R).

    Summed with weights over columns about a point they are the packed scatter about that point.
    """


def set_natural(model, k, shift, parameters, g, scratch):
    """Write the natural parameters of component k with its mean at `shift` (D,); return a constant.

    parameters[g, :P] belong to the products of `fill_products`, the next D to the coordinates:
    -1/2 (x - shift)' (W' W) (x - shift) = parameters . features - constant / 2. `scratch` is
    (D, D).
    """


def implements(operation: Callable[..., Any], *classes: type) -> Callable[[Callable], Callable]:
    """Register an implementation of `operation` for models or layouts of the given classes."""

    def register(implementation: Callable) -> Callable:
        def choose(model, *args):
            if isinstance(model, types.BaseNamedTuple) and model.instance_class in classes:
                return implementation
            return None

        overload(operation, jit_options={"fastmath": FAST_SUMS}, strict=False)(choose)
        return implementation

    return register

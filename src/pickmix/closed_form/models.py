"""The arrays of a mixture, as kernels see them: one named tuple class per covariance structure.

K components in D dimensions, P numbers per covariance in the structure's packing:

- mean (K, D): means, in coordinates centred on the data
- covariance (K, P): the covariance statistic about the mean
- factor (K, P): a factor W of the precision in use, W' W = (covariance in use)^-1
- log_normaliser (K,): log |W| - D/2 log(2 pi)
- mass, squares (K,): sums of weights and of squared weights, up to the clock's scales
- log_mass (K,): log of mass
- clock (4,): scale of mass, scale of squares, log of the first, log of the weight floor

For the tied structure covariance, factor and log_normaliser have one row for all components. The
classes differ in name only: the name is what Numba chooses implementations by.

A layout says how a scatter is packed and knows D. What needs no more of a model takes its layout:
that compiles faster, and once for full and tied covariances.
"""

from collections import namedtuple
from typing import Any

_FIELDS = "mean covariance factor log_normaliser mass squares log_mass clock"

FullModel: Any = namedtuple("FullModel", _FIELDS)  # type: ignore[misc]
TiedModel: Any = namedtuple("TiedModel", _FIELDS)  # type: ignore[misc]
DiagonalModel: Any = namedtuple("DiagonalModel", _FIELDS)  # type: ignore[misc]
SphericalModel: Any = namedtuple("SphericalModel", _FIELDS)  # type: ignore[misc]

TriangularLayout = namedtuple("TriangularLayout", "n_features")
DiagonalLayout = namedtuple("DiagonalLayout", "n_features")
SphericalLayout = namedtuple("SphericalLayout", "n_features")

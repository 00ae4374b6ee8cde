"""Rows as features, in float64: log-joints and statistics are matrix products.

Every family has the form log p(x, k) = theta_k . T(x) with the features T(x): products of
coordinates, coordinates, levels as ones and zeros, and 1. So the log-joints of many components are
theta T', and their statistics W T for weights W. Digits are lost where a component is far narrower
than the data are wide: `Natural` marks these components, which are evaluated about their
location instead.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pickmix.families.layout import Layout, Model, log_weights
from pickmix.kernels.statistics import Sums

_LEAST_SHARE = 1e-9  # Of a sum of squares that is about the mean.
_CONSTANT_SHARE = 1e-13  # The same of a coordinate that is taken for constant, at most,
_NO_SHARE = 1e-4  # if its variance is at most this share of the least variance.
_MOST_ERROR = 1e-5  # Of a log-joint in nats, by rounding.
LEAST = -1e300  # Log-joint of a row that nothing explains.
_ROUNDING = 4.0 * np.finfo(np.float64).eps


def features_of(layout: Layout, rows: np.ndarray) -> np.ndarray:
    """Features (R, F) of complete rows (R, D)."""
    C, P = layout.n_coordinates, layout.n_products
    out = np.empty((rows.shape[0], P + C + layout.n_levels + 1))
    coordinates = rows[:, :C]
    if layout.is_diagonal:
        np.square(coordinates, out=out[:, :P])
    else:
        # One coordinate at a time: no array of all products beside that of the features.
        for i, (first, begin) in enumerate(zip(layout.first, layout.starts[:-1], strict=True)):
            products = out[:, begin : begin + i + 1 - first]
            np.multiply(coordinates[:, first : i + 1], coordinates[:, i, None], out=products)
    out[:, P : P + C] = coordinates
    out[:, P + C : -1] = 0.0
    places = rows[:, C:].astype(np.int64) + (P + C + layout.offsets[:-1])
    np.put_along_axis(out, places, 1.0, axis=1)
    out[:, -1] = 1.0
    return out


class Features(NamedTuple):
    """Features of rows."""

    values: np.ndarray  # (R, F)
    largest: np.ndarray  # (F,) The largest absolute values.

    @classmethod
    def of(cls, layout: Layout, rows: np.ndarray) -> Features | None:
        """Features of complete rows (R, D); None if some leave float64."""
        with np.errstate(over="ignore"):
            values = features_of(layout, rows)
            largest = np.abs(values).max(axis=0, initial=0.0)
        return cls(values, largest) if np.isfinite(largest).all() else None

    def at(self, rows: np.ndarray) -> Features:
        """Those of some rows (B,), copied."""
        return Features(self.values.take(rows, axis=0), self.largest)


class Natural(NamedTuple):
    """Natural parameters of some components."""

    theta: np.ndarray  # (G, F)
    narrow: np.ndarray  # (G,) Whether a component is too narrow for products.


def natural_parameters(
    layout: Layout,
    model: Model,
    members: np.ndarray,
    largest: np.ndarray,
    most_error: float = _MOST_ERROR,
) -> Natural:
    """Natural parameters of components (G,); `largest` (F,) are the largest absolute features."""
    C, P = layout.n_coordinates, layout.n_products
    location = model.location[members]
    factors = np.zeros_like(members) if model.factor.shape[0] == 1 else members
    theta = np.empty((members.shape[0], largest.shape[0]))
    linear = theta[:, P : P + C]
    factor = model.factor[factors]
    if layout.is_diagonal:
        precision = np.square(factor)
        theta[:, :P] = -0.5 * precision
        np.multiply(precision, location, out=linear)
    elif P:
        i, j = layout.pairs()
        matrices = np.zeros((members.shape[0], C, C))
        matrices.reshape(-1, C * C)[:, C * i + j] = factor
        precision = matrices.transpose(0, 2, 1) @ matrices
        theta[:, :P] = precision[:, i, j] * np.where(i == j, -0.5, -1.0)
        linear[:] = (precision @ location[:, :, None])[:, :, 0]
    else:
        linear[:] = 0.0
    constant = log_weights(model, members) + model.log_normaliser[factors]
    constant -= 0.5 * np.einsum("gc,gc->g", linear, location)
    if model.linear.shape[0]:
        slopes = model.linear[members]
        linear += slopes
        constant -= np.einsum("gc,gc->g", slopes, location)
    # A finite number instead of minus infinity, which times 0 would be NaN.
    np.maximum(model.tables[members], LEAST, out=theta[:, P + C : -1])
    theta[:, -1] = constant
    sizes = np.abs(theta[:, : P + C]) @ largest[: P + C]
    return Natural(theta, _ROUNDING * (sizes + np.abs(constant)) > most_error)


def sums_of_products(
    layout: Layout, products: np.ndarray, squares: np.ndarray, least_variance: float
) -> tuple[Sums, np.ndarray]:
    """Mass, squares, mean, scatter and counts out of sums (G, F) of weighted features.

    Returns also which components (G,) are too narrow: their scatter has lost its digits.
    """
    C, P = layout.n_coordinates, layout.n_products
    mass = products[:, -1].copy()
    mean = products[:, P : P + C] / np.where(mass > 0.0, mass, 1.0)[:, None]
    i, j = layout.pairs()
    scatter = products[:, :P] - mass[:, None] * (mean.take(i, axis=1) * mean.take(j, axis=1))
    diagonal = np.flatnonzero(i == j)
    variances, sums = scatter[:, diagonal], products[:, diagonal]
    few_digits = variances < _LEAST_SHARE * sums
    # A coordinate that does not vary has nothing but rounding errors, which may not matter.
    constant = variances < _CONSTANT_SHARE * sums
    constant &= _CONSTANT_SHARE * sums <= _NO_SHARE * least_variance * mass[:, None]
    if constant.any():
        without = np.zeros((mass.shape[0], C), dtype=np.bool_)
        without[:, i[diagonal]] = constant
        scatter[without.take(i, axis=1) | without.take(j, axis=1)] = 0.0
    narrow = (few_digits & ~constant).any(axis=1)
    return (mass, squares, mean, scatter, products[:, P + C : -1].copy()), np.asarray(narrow)

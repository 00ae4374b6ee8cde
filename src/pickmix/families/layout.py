"""What flows between families and the sweep: layouts, models and moments, as plain arrays.

A family says which features its components look at. All families share one form,

    log p(x, k) = log w_k + c_k + l_k . (x - m_k) + sum_q t_k[level_q] - |F_k (x - m_k)|^2 / 2,

with a location m, a linear part l, tables t of levels and a lower triangular factor F. So one
compiled sweep serves every family: Gaussians have F, counts have l, categories have t.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Layout(NamedTuple):
    """The features of a family: products of coordinates, coordinates, and levels.

    A row holds C coordinates and then Q levels, which are whole numbers.

    Attributes
    ----------
    first : (C,) int64 array
        Coordinate i has products with the coordinates first[i]..i; with none if first[i] = i + 1.
    last : (C,) int64 array
        The last coordinate that has a product with coordinate i.
    starts : (C + 1,) int64 array
        Where the products of coordinate i stand among all P of them.
    offsets : (Q + 1,) int64 array
        Where the levels of column q stand among all L of them.
    """

    first: np.ndarray
    last: np.ndarray
    starts: np.ndarray
    offsets: np.ndarray

    @property
    def n_coordinates(self) -> int:
        """C."""
        return int(self.first.shape[0])

    @property
    def n_products(self) -> int:
        """P."""
        return int(self.starts[-1])

    @property
    def n_levels(self) -> int:
        """L, over all columns of levels."""
        return int(self.offsets[-1])

    @property
    def n_columns(self) -> int:
        """Columns of a row: C + Q."""
        return self.n_coordinates + int(self.offsets.shape[0]) - 1

    @property
    def is_diagonal(self) -> bool:
        """Whether the products are the squares of all coordinates; P = C alone does not say so."""
        return bool(np.array_equal(self.first, np.arange(self.n_coordinates)))

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Coordinates (i, j) of every product, (P,) each, j <= i."""
        sizes = np.diff(self.starts)
        rows = np.repeat(np.arange(self.n_coordinates), sizes)
        within = np.arange(self.n_products) - np.repeat(self.starts[:-1], sizes)
        return rows, np.repeat(self.first, sizes) + within

    def products(self, points: np.ndarray) -> np.ndarray:
        """Products of the coordinates of points (n, C), as (n, P)."""
        rows, columns = self.pairs()
        return np.asarray(points[:, rows] * points[:, columns])

    def work(self) -> float:
        """Multiply-adds of one evaluation, roughly."""
        return self.n_products + 3.0 * self.n_coordinates + 10.0 * len(self.offsets) + 10.0


def make_layout(groups: Sequence[tuple[str, int]], n_levels: Sequence[int] = ()) -> Layout:
    """Layout of groups of coordinates, ("full" | "diagonal" | "linear", size) each, and levels."""
    first: list[int] = []
    last: list[int] = []
    for kind, size in groups:
        start = len(first)
        for i in range(start, start + size):
            first.append({"full": start, "diagonal": i, "linear": i + 1}[kind])
            last.append(start + size - 1 if kind == "full" else i)
    sizes = [i - f + 1 for i, f in enumerate(first)]
    return Layout(
        np.array(first, dtype=np.int64),
        np.array(last, dtype=np.int64),
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        np.concatenate([[0], np.cumsum(n_levels)]).astype(np.int64),
    )


class Model(NamedTuple):
    """K components, ready to evaluate. Kernels read it; nothing but an M-step writes it.

    Attributes
    ----------
    location : (K, C) array
        m, in coordinates centred on the data.
    factor : (K, P) array, or (1, P) if all components share it
        F, packed as the products are.
    linear : (K, C) array, or (0, C) if there is no linear part
    tables : (K, L) array
        Log-probabilities of levels.
    log_normaliser : (K,) array, or (1,) if all components share it
        c, the log-density at the location, tables aside.
    log_mass : (K,) array
        Logarithm of the weights, up to the decay.
    decay : (4,) array
        Scale of masses, scale of squared weights, logarithm of the first, logarithm of the weight
        floor. A step forgets by changing these numbers, not K of them.
    """

    location: np.ndarray
    factor: np.ndarray
    linear: np.ndarray
    tables: np.ndarray
    log_normaliser: np.ndarray
    log_mass: np.ndarray
    decay: np.ndarray


SCALE, SQUARE_SCALE, LOG_SCALE, LOG_FLOOR = range(4)


class Moments(NamedTuple):
    """What components have seen, per unit of their mass.

    Attributes
    ----------
    mass, squares : (K,) arrays
        Sums of weights and of squared weights, up to the decay of the model.
    mean : (K, C) array
    scatter : (K, P) array
        Mean products of coordinates about the mean.
    counts : (K, L) array
        Shares of the levels.
    """

    mass: np.ndarray
    squares: np.ndarray
    mean: np.ndarray
    scatter: np.ndarray
    counts: np.ndarray


def merge_pairs(layout: Layout, one: Moments, other: Moments) -> Moments:
    """Moments of pairs of components (n,), each pair in one. Only non-negative terms are added."""
    mass = np.maximum(one.mass + other.mass, 1e-300)
    share = (other.mass / mass)[:, None]
    away = other.mean - one.mean
    spread = share * (1.0 - share) * layout.products(away)
    return Moments(
        mass,
        one.squares + other.squares,
        one.mean + share * away,
        (1.0 - share) * one.scatter + share * other.scatter + spread,
        (1.0 - share) * one.counts + share * other.counts,
    )


def merge_groups(layout: Layout, moments: Moments, labels: np.ndarray) -> Moments:
    """Moments of groups of components, each group in one; labels (K,) number them 0, 1, ..."""
    n_groups = int(labels.max()) + 1
    mass = np.maximum(np.bincount(labels, moments.mass, n_groups), 1e-300)
    shares = moments.mass / mass[labels]

    def mean_of(values: np.ndarray) -> np.ndarray:
        sums = np.zeros((n_groups, values.shape[1]))
        np.add.at(sums, labels, shares[:, None] * values)
        return sums

    mean = mean_of(moments.mean)
    spread = layout.products(moments.mean - mean[labels])
    squares = np.bincount(labels, moments.squares, n_groups)
    scatter, counts = mean_of(moments.scatter + spread), mean_of(moments.counts)
    return Moments(mass, squares, mean, scatter, counts)


def log_weights(model: Model) -> np.ndarray:
    """Logarithms of the weights in use, (K,), unnormalised."""
    return np.asarray(np.maximum(model.log_mass + model.decay[LOG_SCALE], model.decay[LOG_FLOOR]))

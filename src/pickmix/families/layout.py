"""Arrays between families and the sweep: layouts, models and moments. All families share one form,

    log p(x, k) = log w_k + c_k + l_k . (x - m_k) + sum_q t_k[level_q] - |F_k (x - m_k)|^2 / 2,

with a location m, a linear part l, tables t of levels and a lower triangular factor F. So one
compiled sweep serves every family: Gaussians have F, counts have l, categories have t.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Layout(NamedTuple):
    """The features of a family: a row holds C coordinates and then Q levels, whole numbers."""

    #: (C,) Coordinate i has products with the coordinates first[i]..i; with none if first[i] = i
    #: + 1.
    first: np.ndarray
    last: np.ndarray  # (C,) The last coordinate that has a product with coordinate i.
    starts: np.ndarray  # (C + 1,) Products of coordinate i are starts[i]..starts[i + 1] of P.
    offsets: np.ndarray  # (Q + 1,) Levels of column q are offsets[q]..offsets[q + 1] of L.

    @property
    def n_coordinates(self) -> int:
        return int(self.first.shape[0])

    @property
    def n_products(self) -> int:
        return int(self.starts[-1])

    @property
    def n_levels(self) -> int:
        """L, over all columns of levels."""
        return int(self.offsets[-1])

    @property
    def n_columns(self) -> int:
        """Columns of a row: C + Q."""
        return int(self.first.shape[0] + self.offsets.shape[0]) - 1

    @property
    def n_features(self) -> int:
        """Products, coordinates, levels and 1; see `kernels/numpy_kernels/features.py`."""
        return self.n_products + self.n_coordinates + self.n_levels + 1

    @property
    def kernels(self) -> str | None:
        """The module of `pickmix.kernels` that serves this layout in place of both backends."""
        return None

    @property
    def is_diagonal(self) -> bool:
        """Whether the products are the squares of all coordinates; P = C is not sufficient."""
        i, j = self.pairs()
        return i.shape[0] == self.n_coordinates and i is j

    def is_partial(self, rows: np.ndarray) -> bool:
        """Whether cells of rows (R, D) are missing, or have noise, in columns beyond these."""
        n_columns = self.first.shape[0] + self.offsets.shape[0] - 1
        return rows.shape[1] > n_columns or bool(np.isnan(rows).any())

    def beginning(self, joined: Layout) -> Layout:
        """The joined layout of groups, of which this is that of the first."""
        return joined

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Coordinates (i, j) of every product, (P,) each, j <= i."""
        return _pairs(self.first.tobytes())

    def log_masses(self, moments: Moments, components: np.ndarray | None = None) -> np.ndarray:
        """Logarithms (n,) of the weights of components, up to the decay."""
        return np.asarray(np.log(moments.mass if components is None else moments.mass[components]))

    def products(self, points: np.ndarray) -> np.ndarray:
        """Products of the coordinates of points (n, C), as (n, P)."""
        rows, columns = self.pairs()
        return np.asarray(points[:, rows] * points[:, columns])

    def work(self) -> float:
        """Multiply-adds of one evaluation, roughly."""
        return self.n_products + 3.0 * self.n_coordinates + 10.0 * len(self.offsets) + 10.0

    def take(self, scatters: np.ndarray, components: np.ndarray) -> np.ndarray:
        """Scatters (n, P) of components (n,) of (K, P), copied."""
        return np.asarray(scatters[components])

    def mixed_scatters(
        self,
        shares: np.ndarray,
        scatters: np.ndarray,
        away: np.ndarray,
        labels: np.ndarray,
        n_groups: int,
    ) -> np.ndarray:
        """Scatters (G, P) of groups of components with shares (K,), `away` (K, C) of the mean."""
        sums = np.zeros((n_groups, self.n_products))
        np.add.at(sums, labels, shares[:, None] * (scatters + self.products(away)))
        return sums

    def merged_scatters(
        self, share: np.ndarray, one: np.ndarray, other: np.ndarray, away: np.ndarray
    ) -> np.ndarray:
        """Scatters (n, P) of pairs; `share` (n, 1) is that of the other, `away` (n, C) from it."""
        spread = share * (1.0 - share) * self.products(away)
        return np.asarray((1.0 - share) * one + share * other + spread)


@functools.lru_cache(maxsize=64)
def _pairs(first: bytes) -> tuple[np.ndarray, np.ndarray]:
    """`Layout.pairs` of `Layout.first`; the same array twice if only squares are wanted."""
    columns = [range(start, i + 1) for i, start in enumerate(np.frombuffer(first, np.int64))]
    rows = np.repeat(np.arange(len(columns)), [len(some) for some in columns])
    if all(len(some) == 1 for some in columns):
        return rows, rows
    return rows, np.array([j for some in columns for j in some], dtype=np.int64)


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
    """K components, ready to evaluate. Only an M-step writes it."""

    location: np.ndarray  # (K, C) m, in coordinates centred on the data.
    factor: np.ndarray  # (K, P) F, or (1, P) if shared, packed as the products are.
    linear: np.ndarray  # (K, C), or (0, C) without a linear part.
    constants: np.ndarray  # As `linear`: what its coordinates add to the log-density at m.
    tables: np.ndarray  # (K, L) Log-probabilities of levels.
    log_normaliser: np.ndarray  # (K,) c, the log-density at the location, tables aside.
    log_mass: np.ndarray  # (K,) Logarithm of the weights, up to the decay.
    #: (5,) Scale of masses, scale of squared weights, logarithm of the first, logarithm of the
    #: weight floor, and the least variance that the M-step adds to every scatter. A step forgets by
    #: changing these numbers, not K of them.
    decay: np.ndarray


SCALE, SQUARE_SCALE, LOG_SCALE, LOG_FLOOR, LEAST_VARIANCE = range(5)


class Moments(NamedTuple):
    """Moments of the rows of components, per unit of their mass."""

    #: (K,) Sums of weights and of squared weights, up to the decay of the model.
    mass: np.ndarray
    squares: np.ndarray
    mean: np.ndarray  # (K, C)
    scatter: np.ndarray  # (K, P) Mean products of coordinates about the mean.
    counts: np.ndarray  # (K, L) Shares of the levels.


def moments_of_mass_one(
    mean: np.ndarray | None = None,
    scatter: np.ndarray | None = None,
    counts: np.ndarray | None = None,
) -> Moments:
    """Moments of components of mass one; what is not given has no columns."""
    (n,) = {len(array) for array in (mean, scatter, counts) if array is not None}
    nothing = np.zeros((n, 0))
    given = [nothing if array is None else array for array in (mean, scatter, counts)]
    return Moments(np.ones(n), np.ones(n), *given)


def halves(moments: Moments, **shifts: np.ndarray) -> tuple[Moments, Moments]:
    """Two halves of every component, with moments shifted to both sides of those of the whole."""
    halved = moments._replace(mass=0.5 * moments.mass, squares=0.5 * moments.squares)
    above = {name: getattr(moments, name) + shift for name, shift in shifts.items()}
    below = {name: getattr(moments, name) - shift for name, shift in shifts.items()}
    return halved._replace(**above), halved._replace(**below)


def merge_pairs(layout: Layout, one: Moments, other: Moments) -> Moments:
    """Moments of pairs of components (n,), each pair in one. Only non-negative terms are added."""
    mass = np.maximum(one.mass + other.mass, 1e-300)
    share = (other.mass / mass)[:, None]
    away = other.mean - one.mean
    return Moments(
        mass,
        one.squares + other.squares,
        one.mean + share * away,
        layout.merged_scatters(share, one.scatter, other.scatter, away),
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
    away = moments.mean - mean[labels]
    scatter = layout.mixed_scatters(shares, moments.scatter, away, labels, n_groups)
    squares = np.bincount(labels, moments.squares, n_groups)
    return Moments(mass, squares, mean, scatter, mean_of(moments.counts))


def log_weights(model: Model, some: Any = slice(None)) -> np.ndarray:
    """Logarithms of the weights in use of some components, unnormalised."""
    log_mass = model.log_mass[some] + model.decay[LOG_SCALE]
    return np.asarray(np.maximum(log_mass, model.decay[LOG_FLOOR]))

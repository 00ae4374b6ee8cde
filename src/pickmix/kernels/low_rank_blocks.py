"""Components of low rank as they are evaluated: one by one in float64, or a block in products.

A block's log-joints are products in float32 about its origin. Where rounding may reach a hundredth
of a nat, the components that matter to a row are evaluated again about their own locations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pickmix.families.layout import Layout, Model
from pickmix.families.low_rank_layout import LowRankLayout

_MOST_ERROR = 0.01  # Of a log-joint in nats, by rounding.
_MATTERS = 20.0  # Nats below the best component of a row.
_ROUNDINGS = 4.0  # In units of the precision, of terms that cancel.
_EXACT = 1e-10  # Error of a log-joint in nats that answers may have.


class Others:
    """Counts and levels, the columns of rows behind the first D, under components (G,)."""

    def __init__(
        self, layout: LowRankLayout, model: Model | None, members: Sequence[int] | np.ndarray
    ) -> None:
        D, G = layout.width, len(members)
        self.n_columns, self._offsets = layout.n_others, layout.offsets
        self._rates = self._slopes = self._constants = np.zeros((G, layout.n_coordinates - D))
        # A level that is missing adds nothing.
        self._tables = np.zeros((layout.n_levels + 1, G))
        if model is None or not self.n_columns:
            return
        self._tables[:-1] = model.tables[members].T
        if self._rates.shape[1]:
            each = model.location, model.linear, model.constants
            self._rates, self._slopes, self._constants = (some[members, D:] for some in each)

    def _split(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Counts (R, n), and places (R, Q) of levels in the tables, of rows (R, n + Q)."""
        values = values.astype(np.float64, copy=False)
        levels = values[:, self._rates.shape[1] :] + self._offsets[:-1]
        missing = float(self._offsets[-1])
        return values[:, : self._rates.shape[1]], np.nan_to_num(levels, nan=missing).astype(int)

    def log_terms(self, values: np.ndarray) -> np.ndarray:
        """What was seen of rows adds to log-joints (G, R) with the constants of all counts."""
        if not self.n_columns:
            return np.zeros((self._rates.shape[0], values.shape[0]))
        counts, places = self._split(values)
        out = self._tables.take(places, axis=0).sum(axis=1).T
        seen = ~np.isnan(counts)
        out += self._slopes @ np.where(seen, counts, 0.0).T
        out -= (self._slopes * self._rates) @ seen.T + self._constants @ ~seen.T
        return np.asarray(out)

    def sums(self, values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sums (n,) of counts and (L,) of levels under a single component; gaps as expected."""
        counts, places = self._split(values)
        L = int(self._offsets[-1])
        levels = np.zeros(L)
        for q, place in enumerate(places.T):
            found, its = np.bincount(place, weights, L + 1), slice(*self._offsets[q : q + 2])
            levels += found[:-1]
            levels[its] += found[-1] * np.exp(self._tables[its, 0])
        return weights @ np.where(np.isnan(counts), self._rates, counts), levels


class Component(NamedTuple):
    """One component in float64."""

    location: np.ndarray  # (D,)
    inverse: np.ndarray  # (D,) 1 / s.
    shares: np.ndarray  # (c,) f, 0 for spare directions.
    columns: np.ndarray  # (D, c) C, with spare directions.
    constant: float  # Log-joint at the location.
    weight: float  # Logarithm of the weight, and constants of counts.
    others: Others

    @property
    def n_real(self) -> int:
        return int((self.shares > 0.0).sum())

    @classmethod
    def of(cls, layout: Layout, model: Model, k: int, weights: np.ndarray) -> Component:
        assert isinstance(layout, LowRankLayout)
        inverse, shares, columns = layout.split(model.factor[k : k + 1])
        n = int((shares[0, : layout.rank] >= 0.0).sum())
        weight, location = float(weights[k]), model.location[k, : layout.width]
        constant = weight + float(model.log_normaliser[k])
        if model.constants.shape[0]:
            weight += float(model.constants[k, layout.width :].sum())
        parts = location, inverse[0], shares[0, :n], columns[0, :, :n], constant, weight
        return cls(*parts, Others(layout, model, [k]))

    def log_joints(self, rows: np.ndarray) -> np.ndarray:
        """Log-joints (R,) of rows (R, .), about the location."""
        n, D = self.n_real, self.location.shape[0]
        away, terms = rows[:, :D] - self.location, self.others.log_terms(rows[:, D:])[0]
        if np.isnan(away).any():
            return np.asarray(self.given(away).log_joints + terms)
        along = away @ self.columns[:, :n]
        away *= self.inverse
        squares = np.einsum("rd,rd->r", away, away) - np.square(along) @ self.shares[:n]
        return np.asarray(self.constant - 0.5 * squares + terms)

    def given(self, away: np.ndarray) -> Given:
        """What the seen cells of rows say, by deviations (R, D); others are NaN.

        The factors z of a row have the precision M = I + L_S' diag(1 / psi_S) L_S, of which the
        sums over seen cells are a product of matrices for all rows.
        """
        n, D = self.n_real, self.location.shape[0]
        seen = ~np.isnan(away)
        away = np.where(seen, away, 0.0).astype(np.float64, copy=False)
        shares = self.shares[:n]
        weights = self.columns[:, :n] * np.sqrt(shares / (1.0 - shares))
        precisions = np.square(self.inverse)
        loadings = weights / precisions[:, None]
        products = (loadings[:, :, None] * weights[:, None, :]).reshape(D, n * n)
        precision = np.eye(n) + (seen.astype(np.float64) @ products).reshape(len(away), n, n)
        lower = np.linalg.cholesky(precision)
        half = np.linalg.solve(lower, (away @ weights)[:, :, None])[:, :, 0]
        factors = np.linalg.solve(lower.transpose(0, 2, 1), half[:, :, None])[:, :, 0]
        distances = np.square(away) @ precisions - np.square(half).sum(axis=1)
        logs = 2.0 * np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
        logs += seen @ (math.log(2.0 * math.pi) - np.log(precisions))
        joint = self.weight - 0.5 * (logs + distances)
        return Given(joint, distances, seen, away, loadings, factors, precision)


class Given(NamedTuple):
    """Rows of which some cells were seen, under one component."""

    log_joints: np.ndarray  # (R,)
    distances: np.ndarray  # (R,)
    seen: np.ndarray  # (R, D)
    away: np.ndarray  # (R, D) From the location; 0 where nothing was seen.
    loadings: np.ndarray  # (D, n)
    factors: np.ndarray  # (R, n) Expected, and their precision.
    precision: np.ndarray  # (R, n, n)

    def completed(
        self, part: Component, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Expected rows (R, D), and weighted sums of what else their squares and T have."""
        n, c, R = self.loadings.shape[1], part.columns.shape[1], self.seen.shape[0]
        D, missing = part.location.shape[0], (~self.seen).astype(np.float64)
        rows = self.away + missing * (self.factors @ self.loadings.T)
        covariance = np.linalg.inv(self.precision)
        weighted = (missing * weights[:, None]).T
        spread = (weighted @ covariance.reshape(R, n * n)).reshape(D, n, n)
        noise = weighted.sum(axis=1) / np.square(part.inverse)
        squares = noise + np.einsum("dh,dhg,dg->d", self.loadings, spread, self.loadings)
        cross = (self.loadings[:, :, None] * part.columns[:, None, :]).reshape(D, n * c)
        along = covariance @ (missing @ cross).reshape(R, n, c)
        along = (weighted @ along.reshape(R, n * c)).reshape(D, n, c)
        directions = np.einsum("dh,dhc->dc", self.loadings, along) + noise[:, None] * part.columns
        return rows, squares, directions


class Block:
    """The components of a block about its origin, by default in float32."""

    def __init__(
        self,
        layout: LowRankLayout,
        model: Model,
        members: np.ndarray,
        weights: np.ndarray,
        dtype: Any = np.float32,
    ) -> None:
        self._eps = float(np.finfo(dtype).eps)
        self._largest = (_MOST_ERROR if dtype == np.float32 else _EXACT) / self._eps
        self._model = layout, model, members, weights
        locations = model.location[members]
        self.origin = layout.origin(locations.mean(axis=0))
        away = locations[:, : layout.width] - self.origin[: layout.width]
        self._others = Others(layout, model, members)
        inverse, shares, columns = layout.parts(model.factor, members)
        precisions = np.square(inverse)
        component, place = np.nonzero(shares > 0.0)
        # Directions (n, D) of all components, one after another.
        along = columns.transpose(0, 2, 1)[component, place]
        along *= np.sqrt(shares[component, place])[:, None]
        self._n_directions = along.shape[0]
        # What directions, squared, and linear parts add to the squares.
        self._sums = np.zeros((members.shape[0], along.shape[0] + members.shape[0]), dtype=dtype)
        self._sums[component, np.arange(along.shape[0])] = -1.0
        np.fill_diagonal(self._sums[:, along.shape[0] :], -2.0)
        self._linear = np.concatenate([along, precisions * away], dtype=dtype, casting="same_kind")
        self._precisions = precisions.astype(dtype)
        self._shifts = np.einsum("nd,nd->n", along, away[component]).astype(dtype)[:, None]
        self._at_location = np.einsum("gd,gd->g", precisions, np.square(away))
        self._constants = weights[members] + model.log_normaliser[members]

    def _part(self, g: int) -> Component:
        """One of the components by itself."""
        layout, model, members, weights = self._model
        return Component.of(layout, model, int(members[g]), weights)

    def log_joints(
        self, y: np.ndarray, is_partial: bool, rows: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """Log-joints (G, R) of deviations y (R, .) from the origin, which are overwritten.

        `rows` returns some of the R rows as they are.
        """
        D = self._linear.shape[1]
        y, others = y[:, :D], y[:, D:]
        if is_partial and np.isnan(y).any():
            values, n = rows(np.arange(y.shape[0])), self._constants.shape[0]
            return np.stack([self._part(g).log_joints(values) for g in range(n)])
        products = self._linear @ y.T
        along = products[: self._n_directions]
        along -= self._shifts
        np.square(along, out=along)
        np.square(y, out=y)
        squares = self._precisions @ y.T
        # Terms that cancel are no larger than these.
        sizes = squares.max(axis=1).astype(np.float64) + self._at_location
        rough = np.flatnonzero(sizes > self._largest)
        errors = (squares[rough] + self._at_location[rough, None]) * (_ROUNDINGS * self._eps)
        squares += self._sums @ products
        out = squares.astype(np.float64)
        out += self._at_location[:, None]
        out *= -0.5
        out += self._constants[:, None]
        out += self._others.log_terms(others)
        if rough.shape[0]:
            least = out.copy()
            least[rough] -= errors
            near = out[rough] + errors > least.max(axis=0) - _MATTERS
            for g, is_near in zip(rough.tolist(), near, strict=True):
                some = np.flatnonzero(is_near)
                if some.shape[0]:
                    out[g, some] = self._part(g).log_joints(rows(some))
        return np.asarray(out)

"""Kernels of low-rank covariances, for both backends: the work is products of matrices.

Log-joints of a block are products in float32 about the block's origin, with one shape per tile of
rows, so that bits do not depend on threads. Where rounding may reach a hundredth of a nat, the
components that matter to a row are evaluated again about their own locations, in float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import ThreadpoolController

from pickmix.families.layout import Layout, Model, Moments, log_weights
from pickmix.families.low_rank_layout import (
    LowRankLayout,
    canonical,
    em_step,
    whitened_step,
)
from pickmix.kernels.statistics import Rows, Statistics, Sums, Swept
from pickmix.selection.partitions import Partition
from pickmix.selection.randomness import uniforms
from pickmix.threads import run

_TILE = 256  # Rows evaluated together.
_PIECE = 4096  # Rows of a component summed up together.
_BLOCK = 16  # Components evaluated together, at most.
_NEGLIGIBLE = 1e-4  # Posterior weight of a component that leaves no trace in statistics.
_MOST_ERROR = 0.01  # Of a log-joint in nats, by rounding.
_MATTERS = 20.0  # Nats below the best component of a row.
_NUMBERS = 2**18  # Numbers of rows in float64 at a time: what the cache holds.
_EXACT = 1e-10  # Error of a log-joint in nats that answers may have.


@functools.cache
def _blas() -> Any:
    return ThreadpoolController()


def _run(work: Callable[[int, int], None], n_items: int, size: float) -> None:
    """`threads.run` with one thread of BLAS each: sums have one order whatever their number."""
    with _blas().limit(limits=1, user_api="blas"):
        run(work, n_items, size)


class _Component(NamedTuple):
    """One component in float64."""

    location: np.ndarray  # (D,)
    inverse: np.ndarray  # (D,) 1 / s.
    shares: np.ndarray  # (c,) f, 0 for spare directions.
    columns: np.ndarray  # (D, c) C, with spare directions.
    constant: float  # Log-joint at the location.
    weight: float  # Logarithm of the weight.

    @property
    def n_real(self) -> int:
        return int((self.shares > 0.0).sum())

    @classmethod
    def of(cls, layout: Layout, model: Model, k: int, weights: np.ndarray) -> _Component:
        assert isinstance(layout, LowRankLayout)
        inverse, shares, columns = layout.split(model.factor[k : k + 1])
        n = int((shares[0, : layout.rank] >= 0.0).sum())
        weight = float(weights[k])
        constant = weight + float(model.log_normaliser[k])
        return cls(
            model.location[k], inverse[0], shares[0, :n], columns[0, :, :n], constant, weight
        )

    def log_joints(self, rows: np.ndarray) -> np.ndarray:
        """Log-joints (R,) of rows (R, D), about the location."""
        if np.isnan(rows).any():
            return self.given(rows).log_joints
        n = self.n_real
        away = rows - self.location
        along = away @ self.columns[:, :n]
        away *= self.inverse
        squares = np.einsum("rd,rd->r", away, away) - np.square(along) @ self.shares[:n]
        return np.asarray(self.constant - 0.5 * squares)

    def given(self, rows: np.ndarray) -> _Given:
        """What the seen cells of rows (R, D) say; others are NaN.

        The factors z of a row have the precision M = I + L_S' diag(1 / psi_S) L_S, of which the
        sums over seen cells are a product of matrices for all rows.
        """
        n, D = self.n_real, self.location.shape[0]
        seen = ~np.isnan(rows)
        away = np.where(seen, rows - self.location, 0.0)
        shares = self.shares[:n]
        weights = self.columns[:, :n] * np.sqrt(shares / (1.0 - shares))
        precisions = np.square(self.inverse)
        loadings = weights / precisions[:, None]
        products = (loadings[:, :, None] * weights[:, None, :]).reshape(D, n * n)
        precision = np.eye(n) + (seen.astype(np.float64) @ products).reshape(len(rows), n, n)
        lower = np.linalg.cholesky(precision)
        half = np.linalg.solve(lower, (away @ weights)[:, :, None])[:, :, 0]
        factors = np.linalg.solve(lower.transpose(0, 2, 1), half[:, :, None])[:, :, 0]
        distances = np.square(away) @ precisions - np.square(half).sum(axis=1)
        logs = 2.0 * np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
        logs += seen @ (math.log(2.0 * math.pi) - np.log(precisions))
        joint = self.weight - 0.5 * (logs + distances)
        return _Given(joint, distances, seen, away, loadings, factors, precision)


class _Given(NamedTuple):
    """Rows of which some cells were seen, under one component."""

    log_joints: np.ndarray  # (R,)
    distances: np.ndarray  # (R,)
    seen: np.ndarray  # (R, D)
    away: np.ndarray  # (R, D) From the location; 0 where nothing was seen.
    loadings: np.ndarray  # (D, n)
    factors: np.ndarray  # (R, n) Expected, and their precision.
    precision: np.ndarray  # (R, n, n)

    def completed(
        self, part: _Component, weights: np.ndarray
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


def _by_component(components: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Components that occur, and their places."""
    order = np.argsort(components, kind="stable")
    ends = np.flatnonzero(np.diff(components[order], prepend=-2, append=-2))
    for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        yield int(components[order[first]]), order[first:last]


def log_joint(layout: Layout, model: Model, rows: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    out = np.full(candidates.shape, -np.inf)
    flat, which = out.ravel(), np.arange(candidates.size) // max(candidates.shape[1], 1)
    grouped = [pair for pair in _by_component(candidates.ravel()) if pair[0] >= 0]
    size, weights = max(1, _NUMBERS // rows.shape[1]), log_weights(model)

    def work(start: int, stop: int) -> None:
        for k, places in grouped[start:stop]:
            component = _Component.of(layout, model, k, weights)
            for first in range(0, places.shape[0], size):
                some = places[first : first + size]
                flat[some] = component.log_joints(rows[which[some]])

    _run(work, len(grouped), float(candidates.size) * layout.n_products)
    return flat.reshape(candidates.shape)


def log_joint_all(layout: Layout, model: Model, rows: np.ndarray) -> np.ndarray:
    assert isinstance(layout, LowRankLayout)
    K, weights = model.location.shape[0], log_weights(model)
    out = np.empty((K, rows.shape[0]))
    is_partial = bool(np.isnan(rows).any())
    blocks = [np.arange(first, min(first + _BLOCK, K)) for first in range(0, K, _BLOCK)]

    def work(start: int, stop: int) -> None:
        for members in blocks[start:stop]:
            block = _Block(layout, model, members, weights, np.float64)
            for first in range(0, rows.shape[0], _TILE):
                some = slice(first, first + _TILE)
                out[members, some] = block.log_joints(rows[some], is_partial).T

    _run(work, len(blocks), float(rows.shape[0]) * K * layout.n_products)
    return out


def condition_pairs(
    layout: Layout, model: Model, rows: np.ndarray, candidates: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    K, weights = model.location.shape[0], log_weights(model)
    if candidates is None:
        candidates = np.broadcast_to(np.arange(K), (rows.shape[0], K))
    joint, squares = np.full((2, *candidates.shape), -np.inf)
    for k, places in _by_component(candidates.ravel()):
        if k < 0:
            continue
        component = _Component.of(layout, model, k, weights)
        for first in range(0, places.shape[0], _TILE):
            row, column = np.divmod(places[first : first + _TILE], candidates.shape[1])
            given = component.given(rows[row])
            joint[row, column], squares[row, column] = given.log_joints, given.distances
    return joint, squares


class _Block:
    """The components of a block about its origin, by default in float32."""

    def __init__(
        self,
        layout: LowRankLayout,
        model: Model,
        members: np.ndarray,
        weights: np.ndarray,
        dtype: Any = np.float32,
    ) -> None:
        self.dtype = dtype
        self.largest = (_MOST_ERROR if dtype == np.float32 else _EXACT) / np.finfo(dtype).eps
        self._model = layout, model, members, weights
        locations = model.location[members]
        self.origin = locations.mean(axis=0)
        away = locations - self.origin
        inverse, shares, columns = layout.split(model.factor[members])
        precisions = np.square(inverse)
        component, place = np.nonzero(shares[:, : layout.rank] > 0.0)
        # Directions (n, D) of all components.
        along = columns[component, :, place] * np.sqrt(shares[component, place])[:, None]
        self.n_projections = along.shape[0]
        linear = np.concatenate([along, precisions * away])
        self.projections = np.ascontiguousarray(linear.T, dtype=dtype)
        self.precisions = np.ascontiguousarray(precisions.T, dtype=dtype)
        self.shifts = np.einsum("nd,nd->n", along, away[component]).astype(dtype)
        self.sums = np.zeros((self.n_projections, members.shape[0]), dtype=dtype)
        self.sums[np.arange(self.n_projections), component] = 1.0
        self.at_location = np.einsum("gd,gd->g", precisions, np.square(away))
        self.constants = weights[members] + model.log_normaliser[members]

    def part(self, g: int) -> _Component:
        """One of the components by itself."""
        layout, model, members, weights = self._model
        return _Component.of(layout, model, int(members[g]), weights)

    def log_joints(self, rows: np.ndarray, is_partial: bool) -> np.ndarray:
        """Log-joints (R, G) of rows (R, D)."""
        if is_partial and np.isnan(rows).any():
            n = self.constants.shape[0]
            return np.stack([self.part(g).log_joints(rows) for g in range(n)], axis=1)
        y = np.empty(rows.shape, dtype=self.dtype)
        np.subtract(rows, self.origin, out=y, casting="same_kind")
        products = y @ self.projections
        along = products[:, : self.n_projections]
        along -= self.shifts
        np.square(along, out=along)
        np.square(y, out=y)
        squares = y @ self.precisions
        # Terms that cancel are no larger than these.
        sizes = squares.max(axis=0).astype(np.float64) + self.at_location
        squares -= 2.0 * products[:, self.n_projections :]
        if self.n_projections:
            squares -= along @ self.sums
        out = squares.astype(np.float64)
        out += self.at_location
        out *= -0.5
        out += self.constants
        rough = np.flatnonzero(sizes > self.largest)
        if rough.shape[0]:
            near = out[:, rough] > out.max(axis=1, keepdims=True) - _MATTERS
            for place, g in enumerate(rough.tolist()):
                some = np.flatnonzero(near[:, place])
                if some.shape[0]:
                    out[some, g] = self.part(g).log_joints(rows[some])
        return np.asarray(out)


def sweep(
    layout: Layout,
    model: Model,
    source: Rows,
    numbers: np.ndarray,
    components: np.ndarray,
    partition: Partition,
    key: np.uint64,
    beta: float = 1.0,
    wants_statistics: bool = True,
    wants_log_sums: bool = True,
    greedy: bool = False,
) -> Swept:
    assert isinstance(layout, LowRankLayout)
    n_rows = numbers.shape[0]
    u = np.zeros(0) if greedy else uniforms(key, numbers, 1)[:, 0]
    block_of = np.empty(model.location.shape[0], dtype=np.int64)
    block_of[partition.members] = partition.block_of_position()
    blocks = block_of[components]
    order = np.argsort(blocks, kind="stable")
    ends = np.searchsorted(blocks[order], np.arange(partition.n_blocks + 1))
    drawn, log_sums = np.empty_like(components), np.empty(n_rows)
    weights, is_partial = log_weights(model), source.patterns_of(numbers[:1]) is not None
    tiles = [
        (b, first, min(first + _TILE, int(ends[b + 1])))
        for b in range(partition.n_blocks)
        for first in range(int(ends[b]), int(ends[b + 1]), _TILE)
    ]
    #: Rows, members and weights of the pairs that count, of every tile.
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = [(order[:0],) * 3] * len(tiles)

    def work(start: int, stop: int) -> None:
        at, block = -1, None
        for number in range(start, stop):
            b, first, last = tiles[number]
            members = partition.members[partition.offsets[b] : partition.offsets[b + 1]]
            if b != at:
                at, block = b, _Block(layout, model, members, weights)
            here = order[first:last]
            assert block is not None
            joint = block.log_joints(source.gather(numbers[here]), is_partial)
            if beta != 1.0:
                joint *= beta
            largest = joint.max(axis=1)
            posterior = np.exp(joint - largest[:, None])
            total = posterior.sum(axis=1)
            log_sums[here] = largest + np.log(total)
            if greedy:
                drawn[here] = members[joint.argmax(axis=1)]
            else:
                below = np.cumsum(posterior, axis=1)[:, :-1] <= (u[here] * total)[:, None]
                drawn[here] = members[below.sum(axis=1)]
            if wants_statistics:
                row, place = np.nonzero(posterior > _NEGLIGIBLE * total[:, None])
                found[number] = here[row], members[place], posterior[row, place] / total[row]

    sizes = np.diff(partition.offsets)
    evaluations = int(np.diff(ends) @ sizes)
    _run(work, len(tiles), float(evaluations) * layout.n_products)
    statistics = None
    if wants_statistics:
        row, k, weight = (
            (np.concatenate(part) for part in zip(*found, strict=True))
            if found
            else (
                order[:0],
                order[:0],
                np.zeros(0),
            )
        )
        row_weights, total_weight = source.weights_of(numbers)
        sums = _sums_of_pairs(
            layout, model, source.gather, numbers[row], k, weight * row_weights[row], partition
        )
        statistics = Statistics(partition.members, *sums, total_weight)
    return Swept(drawn, statistics, log_sums, evaluations)


def _sums_of_pairs(
    layout: LowRankLayout,
    model: Model,
    gather: Callable[[np.ndarray], np.ndarray],
    rows: np.ndarray,
    components: np.ndarray,
    weights: np.ndarray,
    partition: Partition,
) -> Sums:
    """Sums over pairs of rows (n,) and components (n,), in the order of the partition's members."""
    place = np.full(model.location.shape[0], -1)
    place[partition.members] = np.arange(partition.members.shape[0])
    sums = _no_sums(partition.members.shape[0], layout)
    grouped, log_weight = list(_by_component(components)), log_weights(model)

    def work(start: int, stop: int) -> None:
        for k, places in grouped[start:stop]:
            part = _Component.of(layout, model, k, log_weight)
            _add_component(sums, int(place[k]), layout, part, gather, rows[places], weights[places])

    _run(work, len(grouped), float(rows.shape[0]) * layout.n_products)
    return sums


def _no_sums(n: int, layout: LowRankLayout) -> Sums:
    D = layout.n_coordinates
    zeros = np.zeros((n, D)), np.zeros((n, layout.n_products)), np.zeros((n, 0))
    return np.zeros(n), np.zeros(n), *zeros


def _add_component(
    sums: Sums,
    place: int,
    layout: LowRankLayout,
    part: _Component,
    gather: Callable[[np.ndarray], np.ndarray],
    rows: np.ndarray,
    weights: np.ndarray,
    dtype: Any = np.float32,
) -> None:
    """Sums of the rows of one component, about its location."""
    mass, squares, mean, scatter, _ = sums
    D, c = layout.n_coordinates, part.columns.shape[1]
    columns = part.columns.astype(dtype)
    first, second, along = np.zeros(D), np.zeros(D), np.zeros((D, c))
    for start in range(0, rows.shape[0], _PIECE):
        some = slice(start, start + _PIECE)
        values = gather(rows[some])
        away, w = np.empty(values.shape, dtype=dtype), weights[some].astype(dtype)
        # A sum is NaN if a value is.
        if np.isnan(values.sum()):
            given = part.given(values)
            away[:], squared, crossed = given.completed(part, weights[some])
            second += squared
            along += crossed
        else:
            np.subtract(values, part.location, out=away, casting="same_kind")
        if c:
            along += away.T @ ((away @ columns) * w[:, None])
        first += w @ away
        second += w @ np.square(away, out=away)
    total = float(weights.sum())
    if not total > 0.0:
        return
    mass[place], squares[place] = total, float(weights @ weights)
    mean[place] = part.location + first / total
    variances, _, directions = layout.split(scatter[place : place + 1])
    variances[0] = np.maximum(second - np.square(first) / total, 0.0)
    directions[0, :, :c] = along


def sums_of_all(
    layout: Layout,
    rows: np.ndarray,
    weights: np.ndarray,
    responsibilities: np.ndarray,
    model: Model | None = None,
) -> Sums:
    assert isinstance(layout, LowRankLayout)
    K = responsibilities.shape[0]
    sums = _no_sums(K, layout)

    def work(start: int, stop: int) -> None:
        for k in range(start, stop):
            w = weights * responsibilities[k]
            some = np.flatnonzero(w)
            part = _start_at(layout, rows, w, model, k)
            _add_component(sums, k, layout, part, rows.__getitem__, some, w[some], np.float64)

    _run(work, K, float(rows.shape[0]) * K * layout.n_products)
    return sums


def _start_at(
    layout: LowRankLayout, rows: np.ndarray, weights: np.ndarray, model: Model | None, k: int
) -> _Component:
    """A component of a model; without one, at the row that counts most, without directions."""
    if model is not None:
        return _Component.of(layout, model, k, log_weights(model))
    D = layout.n_coordinates
    nothing = np.zeros(0), np.zeros((D, 0))
    return _Component(rows[int(weights.argmax())], np.ones(D), *nothing, 0.0, 0.0)


def pair_statistics(
    layout: Layout,
    n_components: int,
    rows: np.ndarray,
    weights: np.ndarray,
    components: np.ndarray,
    pair_weights: np.ndarray,
    total_weight: float,
    model: Model | None = None,
) -> Statistics:
    assert isinstance(layout, LowRankLayout)
    row, place = np.nonzero(components >= 0)
    w = pair_weights[row, place] * weights[row]
    grouped = list(_by_component(components[row, place]))
    sums = _no_sums(len(grouped), layout)

    def work(start: int, stop: int) -> None:
        for slot in range(start, stop):
            k, places = grouped[slot]
            its, shares = row[places], w[places]
            part = _start_at(layout, rows[its], shares, model, k)
            _add_component(sums, slot, layout, part, rows.__getitem__, its, shares, np.float64)

    _run(work, len(grouped), float(row.shape[0]) * layout.n_products)
    members = np.array([k for k, _ in grouped], dtype=np.int32)
    return Statistics(members, *sums, total_weight)


def blend(
    layout: Layout,
    moments: Moments,
    model: Model,
    statistics: Statistics,
    share: float,
    wants_gains: bool,
) -> None:
    """SA-step: the scatter along the model's directions, blended, gives the next directions.

    What was there before is seen along them by its own directions, and by variances elsewhere:
    exact where directions have settled.
    """
    assert isinstance(layout, LowRankLayout)
    scale, square_scale = model.decay[0], model.decay[1]
    members = statistics.members
    kept, added = moments.mass[members] * scale, share * statistics.mass
    total = kept + added
    old = kept / total

    def work(start: int, stop: int) -> None:
        for some in layout.pieces(stop, start):
            _blend_components(layout, moments, model, statistics, some, old[some, None])

    _run(work, members.shape[0], 4.0 * members.shape[0] * layout.n_products * (layout.rank + 1))
    away = statistics.mean - moments.mean[members]
    moments.mean[members] = statistics.mean - old[:, None] * away
    squares = moments.squares[members] * square_scale + share * share * statistics.squares
    moments.mass[members] = total / scale
    moments.squares[members] = squares / square_scale
    model.log_mass[members] = np.log(moments.mass[members])


def _blend_components(
    layout: LowRankLayout,
    moments: Moments,
    model: Model,
    statistics: Statistics,
    some: slice,
    old: np.ndarray,
) -> None:
    k, mass = statistics.members[some], statistics.mass[some, None]
    inverse, shares, columns = layout.split(model.factor[k])
    c = int((shares[:, : layout.rank] >= 0.0).sum(axis=1).max(initial=0))
    columns = columns[:, :, :c]
    diagonal, _, along = layout.split(statistics.scatter[some])
    mean = statistics.mean[some]
    shift = mean - model.location[k]
    diagonal, scatter = diagonal / mass, along[:, :, :c] / mass[:, :, None]
    scatter -= shift[:, :, None] * (shift[:, None, :] @ columns)
    out = moments.scatter[k] if old.any() else np.empty((k.shape[0], layout.n_products))
    if old.any():
        kept, away = old[:, :, None], mean - moments.mean[k]
        scatter = kept * layout.times(out, columns) + (1.0 - kept) * scatter
        scatter += kept * (1.0 - kept) * away[:, :, None] * (away[:, None, :] @ columns)
        before = layout.split(out)[0]
        diagonal = old * before + (1.0 - old) * (diagonal + old * np.square(away))
    if layout.monotone:
        for n in range(k.shape[0]):
            some_columns = shares[n, :c] >= 0.0
            loadings, noise = em_step(
                scatter[n][:, some_columns],
                diagonal[n],
                columns[n][:, some_columns],
                shares[n, :c][some_columns],
            )
            q, d = canonical(loadings, noise)
            total = noise + np.square(loadings).sum(axis=1)
            layout.write(out[n : n + 1], total, noise, q[None], 1.0 + d)
    else:
        noise = 1.0 / np.square(inverse)
        layout.write(out, diagonal, noise, *whitened_step(scatter, np.sqrt(noise)))
    moments.scatter[k] = out

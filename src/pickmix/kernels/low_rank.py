"""Kernels of low-rank covariances, for both backends: the work is products of matrices.

Tiles of rows and pieces of components are cut before they are given to threads, so that products
have one shape each, and bits do not depend on threads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from pickmix.families.layout import Layout, Model, Moments, log_weights
from pickmix.families.low_rank_layout import (
    LowRankLayout,
    canonical,
    em_step,
    whitened_step,
)
from pickmix.kernels.low_rank_blocks import Block, Component, Others
from pickmix.kernels.statistics import Rows, Statistics, Sums, Swept, no_sums
from pickmix.selection.partitions import Partition
from pickmix.selection.randomness import uniforms
from pickmix.threads import run

_TILE = 256  # Rows evaluated together.
_PIECE = 4096  # Rows of a component summed up together.
_BLOCK = 16  # Components evaluated together, at most.
_NEGLIGIBLE = 1e-4  # Posterior weight of a component that leaves no trace in statistics.
_NUMBERS = 2**18  # Numbers of rows in float64 at a time: what the cache holds.


@functools.cache
def _blas() -> Any:
    return ThreadpoolController()


def _run(work: Callable[[int, int], None], n_items: int, size: float) -> None:
    """`threads.run` with one thread of BLAS each: sums have one order whatever their number."""
    with _blas().limit(limits=1, user_api="blas"):
        run(work, n_items, size)


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
            component = Component.of(layout, model, k, weights)
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
            block = Block(layout, model, members, weights, np.float64)
            for first in range(0, rows.shape[0], _TILE):
                some = rows[first : first + _TILE]
                joint = block.log_joints(some - block.origin, is_partial, some.__getitem__)
                out[members, first : first + _TILE] = joint

    _run(work, len(blocks), float(rows.shape[0]) * K * layout.n_products)
    return out


def condition_pairs(
    layout: Layout, model: Model, rows: np.ndarray, candidates: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    assert isinstance(layout, LowRankLayout)
    K, D, weights = model.location.shape[0], layout.width, log_weights(model)
    if candidates is None:
        candidates = np.broadcast_to(np.arange(K), (rows.shape[0], K))
    joint, squares = np.full((2, *candidates.shape), -np.inf)
    for k, places in _by_component(candidates.ravel()):
        if k < 0:
            continue
        component = Component.of(layout, model, k, weights)
        for first in range(0, places.shape[0], _TILE):
            row, column = np.divmod(places[first : first + _TILE], candidates.shape[1])
            given = component.given(rows[row, :D] - component.location)
            joint[row, column], squares[row, column] = given.log_joints, given.distances
            joint[row, column] += component.others.log_terms(rows[row, D:])[0]
    return joint, squares


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
                at, block = b, Block(layout, model, members, weights)
            here = order[first:last]
            assert block is not None
            its = numbers[here]
            joint = block.log_joints(
                source.gather_about(its, block.origin),
                is_partial,
                lambda some, its=its: source.gather(its[some]),  # type: ignore[misc]
            )
            if beta != 1.0:
                joint *= beta
            largest = joint.max(axis=0)
            posterior = (joint - largest).astype(np.float32)
            np.exp(posterior, out=posterior)
            below = np.cumsum(posterior, axis=0)
            total = below[-1]
            log_sums[here] = largest + np.log(total)
            if greedy:
                drawn[here] = members[joint.argmax(axis=0)]
            else:
                # Rounded, a number below the total may become the total.
                target = np.minimum(u[here] * total, np.nextafter(total, np.float32(0.0)))
                place = (below[:-1] <= target.astype(np.float32)).sum(axis=0)
                drawn[here] = members[place]
            if wants_statistics:
                counted = np.flatnonzero(posterior > np.float32(_NEGLIGIBLE) * total)
                place, row = np.divmod(counted, here.shape[0])
                found[number] = here[row], members[place], posterior.ravel()[counted] / total[row]

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
            layout,
            model,
            source.gather_about,
            numbers[row],
            k,
            weight * row_weights[row],
            partition,
        )
        statistics = Statistics(partition.members, *sums, total_weight)
    return Swept(drawn, statistics, log_sums, evaluations)


def _sums_of_pairs(
    layout: LowRankLayout,
    model: Model,
    gather: Callable[[np.ndarray, np.ndarray], np.ndarray],
    rows: np.ndarray,
    components: np.ndarray,
    weights: np.ndarray,
    partition: Partition,
) -> Sums:
    """Sums over pairs of rows (n,) and components (n,), in the order of the partition's members."""
    place = np.full(model.location.shape[0], -1)
    place[partition.members] = np.arange(partition.members.shape[0])
    sums = no_sums(partition.members.shape[0], layout)
    grouped, log_weight = list(_by_component(components)), log_weights(model)

    def work(start: int, stop: int) -> None:
        for k, places in grouped[start:stop]:
            part = Component.of(layout, model, k, log_weight)
            _add_component(sums, int(place[k]), layout, part, gather, rows[places], weights[places])

    _run(work, len(grouped), float(rows.shape[0]) * layout.n_products)
    return sums


def _add_component(
    sums: Sums,
    place: int,
    layout: LowRankLayout,
    part: Component,
    gather: Callable[[np.ndarray, np.ndarray], np.ndarray],
    rows: np.ndarray,
    weights: np.ndarray,
) -> None:
    """Sums of the rows of one component, about its location."""
    mass, squares, mean, scatter, counts = sums
    D, c, origin = layout.width, part.columns.shape[1], layout.origin(part.location)
    second, along, totals = np.zeros(D), np.zeros((c + 1, D)), np.zeros(layout.n_coordinates - D)
    for start in range(0, rows.shape[0], _PIECE):
        some = slice(start, start + _PIECE)
        away = gather(rows[some], origin)
        if part.others.n_columns:
            added, levels = part.others.sums(away[:, D:], weights[some])
            totals += added
            counts[place] += levels
            away = away[:, :D]
        w = weights[some].astype(away.dtype)
        weighted = np.empty((away.shape[0], c + 1), dtype=away.dtype)
        weighted[:, c] = w
        first = w @ away
        # A sum is NaN if a value is.
        if np.isnan(first.sum()):
            completed, squared, crossed = part.given(away).completed(part, weights[some])
            away = completed.astype(away.dtype)
            second += squared
            along[:c] += crossed.T
        np.multiply(away @ part.columns.astype(away.dtype), w[:, None], out=weighted[:, :c])
        along += weighted.T @ away
        second += w @ np.square(away, out=away)
    total = float(weights.sum())
    if not total > 0.0:
        return
    first = along[c]
    mass[place], squares[place] = total, float(weights @ weights)
    mean[place, :D] = part.location + first / total
    mean[place, D:] = totals / total
    variances, _, directions = layout.split(scatter[place : place + 1])
    variances[0] = np.maximum(second - np.square(first) / total, 0.0)
    directions[0, :, :c] = along[:c].T


def _rows_about(rows: np.ndarray) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda some, origin: rows[some] - origin


def sums_of_all(
    layout: Layout,
    rows: np.ndarray,
    weights: np.ndarray,
    responsibilities: np.ndarray,
    model: Model | None = None,
) -> Sums:
    assert isinstance(layout, LowRankLayout)
    K = responsibilities.shape[0]
    sums, gather = no_sums(K, layout), _rows_about(rows)

    def work(start: int, stop: int) -> None:
        for k in range(start, stop):
            w = weights * responsibilities[k]
            some = np.flatnonzero(w)
            part = _start_at(layout, rows, w, model, k)
            _add_component(sums, k, layout, part, gather, some, w[some])

    _run(work, K, float(rows.shape[0]) * K * layout.n_products)
    return sums


def _start_at(
    layout: LowRankLayout, rows: np.ndarray, weights: np.ndarray, model: Model | None, k: int
) -> Component:
    """A component of a model; without one, at the row that counts most, without directions."""
    if model is not None:
        return Component.of(layout, model, k, log_weights(model))
    D, row = layout.width, rows[int(weights.argmax())]
    nothing = np.zeros(0), np.zeros((D, 0)), 0.0, 0.0
    return Component(row[:D], np.ones(D), *nothing, Others(layout, None, [0]))


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
    sums, gather = no_sums(len(grouped), layout), _rows_about(rows)

    def work(start: int, stop: int) -> None:
        for slot in range(start, stop):
            k, places = grouped[slot]
            its, shares = row[places], w[places]
            part = _start_at(layout, rows[its], shares, model, k)
            _add_component(sums, slot, layout, part, gather, its, shares)

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
    moments.counts[members] = old[:, None] * moments.counts[members]
    moments.counts[members] += (share / total)[:, None] * statistics.counts
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
    inverse, shares, columns = layout.parts(model.factor, k)
    c = shares.shape[1]
    diagonal, _, along = layout.split(statistics.scatter[some])
    D = layout.width
    mean = statistics.mean[some, :D]
    shift = mean - model.location[k, :D]
    diagonal, scatter = diagonal / mass, along[:, :, :c] / mass[:, :, None]
    scatter -= shift[:, :, None] * (shift[:, None, :] @ columns)
    out = np.zeros((k.shape[0], (c + 2) * D))
    if old.any():
        before = layout.narrow(moments.scatter, k)
        kept, away = old[:, :, None], mean - moments.mean[k, :D]
        scatter = kept * layout.times(before, columns) + (1.0 - kept) * scatter
        scatter += kept * (1.0 - kept) * away[:, :, None] * (away[:, None, :] @ columns)
        diagonal = old * layout.split(before)[0] + (1.0 - old) * (diagonal + old * np.square(away))
    if layout.monotone:
        for n in range(k.shape[0]):
            some_columns = shares[n] >= 0.0
            loadings, noise = em_step(
                scatter[n][:, some_columns],
                diagonal[n],
                columns[n][:, some_columns],
                shares[n][some_columns],
            )
            q, d = canonical(loadings, noise)
            total = noise + np.square(loadings).sum(axis=1)
            layout.write(out[n : n + 1], total, noise, q[None], 1.0 + d)
    else:
        noise = 1.0 / np.square(inverse)
        layout.write(out, diagonal, noise, *whitened_step(scatter, np.sqrt(noise)))
    layout.put(moments.scatter, k, out)

"""The sweep and its parts in Numba: compiled once for all families, on threads."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np

from pickmix.data.rows import find_patterns
from pickmix.families.layout import Layout, Model, Moments
from pickmix.kernels.numba_kernels import block_setup, pairs, partial
from pickmix.kernels.numba_kernels.blocks import sweep_blocks
from pickmix.kernels.numba_kernels.choices import group_rows
from pickmix.kernels.statistics import Rows, Statistics, Sums, Swept, merge, no_sums
from pickmix.selection.partitions import Partition
from pickmix.threads import n_threads, run

# Blocks with more rows than this are cut, so that a single block is work for many threads; each
# piece has its own sums.
_PIECE_ROWS = 8192
# Rows that a thread gathers at a time, at most and at least. How many changes no result.
_MOST_GATHERED, _LEAST_GATHERED = 16384, 512
_TOGETHER = 32  # Components evaluated together in dense E-steps.
_NO_NUMBERS, _NO_MATRIX = np.empty(0), np.empty((0, 0))
_NO_DRAWS, _NO_ROWS = np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)


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
    order, bounds = _group_by_block(source, numbers, components, partition, model)
    share = numbers.shape[0] // (4 * n_threads())
    pieces = _cut(partition, bounds, min(_MOST_GATHERED, max(_LEAST_GATHERED, share)))
    members, places, ends, chunks = pieces
    block_size = int(np.diff(places).max())
    has_patterns = source.patterns_of(_NO_ROWS) is not None
    numbered = np.arange(members.shape[0], dtype=np.int32)
    # No block was cut, so no component repeats, and sums can have the order of the components: to
    # absorb them then takes no jumps in memory.
    is_whole = members is partition.members and not has_patterns
    is_whole = is_whole and members.shape[0] == model.location.shape[0]
    slots = members if is_whole else numbered
    sums = no_sums(members.shape[0] if wants_statistics else 0, layout)
    drawn = np.empty_like(components)
    log_sums = np.empty(numbers.shape[0] if wants_log_sums else 0)
    tops = np.zeros(places.shape[0], dtype=np.int64)

    def work_on(start: int, stop: int) -> None:
        """Gather and sweep chunks of pieces, on one thread."""
        memory: Any = None if has_patterns else block_setup.make_workspace(layout, block_size)
        for chunk in range(start, stop):
            first, last = int(chunks[chunk]), int(chunks[chunk + 1])
            into = order[ends[first] : ends[last]]
            some = numbers[into]
            rows, weights = source.gather(some), source.weights_of(some)[0]
            draws = first, last, float(beta), key, greedy, into, drawn
            if not has_patterns:
                blocks = members, places, ends
                results = slots, sums, log_sums, memory
                sweep_blocks(layout, model, rows, weights, some, *blocks, *draws, *results)
                continue
            if memory is None:
                n_noise = rows.shape[1] - layout.n_columns
                memory = partial.make_workspace(layout, n_noise, block_size)
            patterns, offset = source.patterns_of(some), int(ends[first])
            bounds_of_rows = members, places, ends[:-1], ends[1:], offset
            nothing = tops, _NO_MATRIX, _NO_MATRIX, _NO_MATRIX
            seen = rows, weights, some, patterns
            partial.sweep_partial_blocks(
                layout, model, *seen, *bounds_of_rows, *draws, sums, log_sums, *nothing, memory
            )

    evaluations = int(np.diff(ends) @ np.diff(places))
    run(work_on, chunks.shape[0] - 1, 2.0 * evaluations * layout.work())
    statistics = None
    if wants_statistics:
        total_weight = source.weights_of(numbers)[1]
        if members is partition.members:
            statistics = Statistics(numbered if is_whole else members, *sums, total_weight)
        else:
            statistics = merge(members, sums, layout, total_weight)
    return Swept(drawn, statistics, log_sums, evaluations)


def _group_by_block(
    source: Rows, numbers: np.ndarray, components: np.ndarray, partition: Partition, model: Model
) -> tuple[np.ndarray, np.ndarray]:
    """An order (B,) of rows by the blocks of their components, and where each block ends.

    Partial rows are sorted by their missing cells within blocks.
    """
    patterns = source.patterns_of(numbers)
    position = np.full(model.location.shape[0], -1, dtype=np.int32)
    if patterns is not None:
        n_patterns = int(patterns.max(initial=0)) + 1
        order = group_rows(patterns, np.arange(n_patterns, dtype=np.int32), n_patterns)[0]
        position[partition.members] = partition.block_of_position()
        by_block, ends = group_rows(components[order], position, partition.n_blocks)
        return order[by_block], np.concatenate([[0], ends])
    n_places = partition.members.shape[0]
    position[partition.members] = np.arange(n_places, dtype=np.int32)
    order, place_ends = group_rows(components, position, n_places)
    return order, np.concatenate([[0], place_ends[partition.offsets[1:] - 1]])


class _Pieces(NamedTuple):
    """Blocks cut into pieces of at most _PIECE_ROWS rows, and chunks of pieces to gather.

    Piece q: components members[places[q]:places[q + 1]], rows ends[q]..ends[q + 1]. Chunk c: pieces
    chunks[c]..chunks[c + 1].
    """

    members: np.ndarray
    places: np.ndarray
    ends: np.ndarray
    chunks: np.ndarray


def _cut(partition: Partition, bounds: np.ndarray, chunk_rows: int) -> _Pieces:
    """Cut blocks whose rows lie between bounds (n_blocks + 1,) into chunks of `chunk_rows` rows."""
    counts = np.diff(bounds)
    n_pieces = np.maximum(1, -(-counts // _PIECE_ROWS))
    sizes = np.diff(partition.offsets)
    if n_pieces.max() == 1:
        members, places, ends = partition.members, partition.offsets, bounds
    else:
        block = np.repeat(np.arange(partition.n_blocks), n_pieces)
        number = np.arange(block.shape[0]) - np.repeat(np.cumsum(n_pieces) - n_pieces, n_pieces)
        first = bounds[:-1][block] + counts[block] * number // n_pieces[block]
        ends = np.append(first, bounds[-1])
        places = np.concatenate([[0], np.cumsum(sizes[block])])
        starts = np.repeat(partition.offsets[:-1][block] - places[:-1], sizes[block])
        members = partition.members[np.arange(places[-1]) + starts]
    wished = np.arange(chunk_rows, int(bounds[-1]), chunk_rows)
    cuts = np.unique(np.searchsorted(ends[1:-1], wished) + 1) if ends.shape[0] > 2 else wished[:0]
    cuts = cuts[cuts < ends.shape[0] - 1]
    chunks = np.concatenate([[0], cuts, [ends.shape[0] - 1]]).astype(np.int64)
    return _Pieces(members, places, ends, chunks)


def log_joint(layout: Layout, model: Model, rows: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    if layout.is_partial(rows):
        return condition_pairs(layout, model, rows, candidates)[0]
    out = np.empty(candidates.shape)
    work = candidates.size * layout.work()
    arguments = layout, model, rows, candidates, out
    run(pairs.evaluate_candidates, candidates.shape[0], work, *arguments)
    return out


def log_joint_all(layout: Layout, model: Model, rows: np.ndarray) -> np.ndarray:
    if layout.is_partial(rows):
        return _condition_all(layout, model, rows)[0]
    out = np.empty((model.location.shape[0], rows.shape[0]))
    arguments = layout, model, np.ascontiguousarray(rows.T), out
    run(pairs.evaluate_all, out.shape[0], out.size * layout.work(), *arguments)
    return out


def condition_pairs(
    layout: Layout, model: Model, rows: np.ndarray, candidates: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    if candidates is None:
        joint, squares = _condition_all(layout, model, rows)
        return joint.T.copy(), squares.T
    n_rows, width = candidates.shape
    # Rows with the same candidates are a block, those with the same cells missing neighbours.
    patterns = find_patterns(rows[:, : layout.n_columns])
    order = np.lexsort((patterns, *candidates.T))
    ordered = candidates[order]
    is_new = np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))
    begins = np.flatnonzero(is_new[:n_rows])
    blocks = _Blocks(
        members=np.maximum(ordered[begins], 0).astype(np.int32).ravel(),
        places=np.arange(len(begins) + 1) * width,
        begins=begins,
        ends=np.append(begins[1:], n_rows),
        tops=np.zeros_like(begins),
    )
    joint, squares = np.empty((2, width, n_rows))
    if candidates.size:
        work = candidates.size * _work_of_factors(layout)
        _run_blocks(
            layout, model, rows[order], patterns[order], blocks, work, values=(joint, squares)
        )
    out = np.empty((2, n_rows, width))
    out[:, order] = joint.T, squares.T
    out[0, candidates < 0], out[1, candidates < 0] = -np.inf, 0.0
    return out[0], out[1]


def _condition_all(layout: Layout, model: Model, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log-joints and squared distances (K, B) of all components."""
    patterns = find_patterns(rows[:, : layout.n_columns])
    order = np.argsort(patterns, kind="stable")
    joint, squares = np.empty((2, model.location.shape[0], rows.shape[0]))
    blocks, work = _all_components(*joint.shape), 2.0 * joint.size * layout.work()
    _run_blocks(layout, model, rows[order], patterns[order], blocks, work, values=(joint, squares))
    back = np.argsort(order)
    return joint.take(back, axis=1), squares.take(back, axis=1)


def _work_of_factors(layout: Layout) -> float:
    """Multiply-adds of one evaluation that factorises, roughly."""
    return layout.work() + layout.n_products * layout.n_coordinates


def sums_of_all(
    layout: Layout,
    rows: np.ndarray,
    weights: np.ndarray,
    responsibilities: np.ndarray,
    model: Model | None = None,
) -> Sums:
    n_components, work = responsibilities.shape[0], responsibilities.size * layout.work()
    sums = no_sums(n_components, layout)
    if layout.is_partial(rows):
        assert model is not None
        patterns = find_patterns(rows[:, : layout.n_columns])
        order = np.argsort(patterns, kind="stable")
        blocks = _all_components(*responsibilities.shape)
        given = weights[order], np.ascontiguousarray(responsibilities[:, order]), sums
        _run_blocks(layout, model, rows[order], patterns[order], blocks, 2.0 * work, given=given)
        return sums
    arguments = layout, np.ascontiguousarray(rows.T), weights, responsibilities, sums
    run(pairs.accumulate_all, n_components, work, *arguments)
    return sums


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
    members, offsets, row_of, grouped_weights = _group_pairs(
        n_components, weights, components, pair_weights
    )
    n = members.shape[0]
    sums = no_sums(n, layout)
    if layout.is_partial(rows):
        assert model is not None
        ends = offsets[: n + 1]
        row_of = row_of[: int(ends[-1])]
        tops = np.zeros(n, dtype=np.int64)
        blocks = _Blocks(members, np.arange(n + 1), ends[:-1], ends[1:], tops)
        patterns = find_patterns(rows[:, : layout.n_columns])[row_of]
        work = components.size * _work_of_factors(layout)
        given = grouped_weights, np.ones((1, row_of.shape[0])), sums
        _run_blocks(layout, model, rows[row_of], patterns, blocks, work, given=given)
    else:
        arguments = layout, rows, offsets, row_of, grouped_weights, sums
        run(pairs.accumulate_pairs, n, components.size * layout.work(), *arguments)
    return Statistics(members, *sums, total_weight)


_memory = threading.local()


def _group_pairs(
    n_components: int, weights: np.ndarray, components: np.ndarray, pair_weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Pairs by component: the components, where theirs begin, rows, and weights."""
    # Kept, because to fill K numbers takes longer than a small step; the kernel leaves it as it is.
    if getattr(_memory, "slot_of", _NO_DRAWS).shape[0] != n_components:
        _memory.slot_of = np.full(n_components, -1, dtype=np.int32)
    n_pairs = components.size
    most = min(n_pairs, n_components)
    members = np.empty(most, dtype=np.int32)
    offsets = np.empty(most + 2, dtype=np.int64)
    grouped = np.empty(n_pairs, dtype=np.int64), np.empty(n_pairs)
    n_slots = pairs.group_by_component(
        components, pair_weights, weights, _memory.slot_of, members, offsets, *grouped
    )
    return members[:n_slots], offsets, *grouped


class _Blocks(NamedTuple):
    """Components members[places[b]:places[b + 1]] and rows begins[b]..ends[b] for every block b.

    Weights or log-joints of block b begin in row tops[b] of an array.
    """

    members: np.ndarray
    places: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    tops: np.ndarray


def _all_components(n_components: int, n_rows: int) -> _Blocks:
    """All components, a few at a time, with all rows."""
    places = np.append(np.arange(0, n_components, _TOGETHER), n_components)
    begins = np.zeros(len(places) - 1, dtype=np.int64)
    members = np.arange(n_components, dtype=np.int32)
    return _Blocks(members, places, begins, begins + n_rows, places[:-1])


def _run_blocks(
    layout: Layout,
    model: Model,
    rows: np.ndarray,
    patterns: np.ndarray,
    blocks: _Blocks,
    work: float,
    values: tuple[np.ndarray, np.ndarray] = (_NO_MATRIX, _NO_MATRIX),
    given: tuple[np.ndarray, np.ndarray, Sums] | None = None,
) -> None:
    """Evaluate partial rows into log-joints and squares; or add them with given weights to sums."""
    weights, shares, sums = given or (np.ones(rows.shape[0]), _NO_MATRIX, no_sums(0, layout))
    most = int(np.diff(blocks.places).max(initial=1))
    n_noise = rows.shape[1] - layout.n_columns
    seen = rows, weights, _NO_ROWS, patterns
    no_draws = 1.0, np.uint64(0), False, _NO_ROWS, _NO_DRAWS

    def work_on(start: int, stop: int) -> None:
        memory = partial.make_workspace(layout, n_noise, most)
        outputs = sums, _NO_NUMBERS, blocks.tops, shares, *values, memory
        partial.sweep_partial_blocks(
            layout, model, *seen, *blocks[:4], 0, start, stop, *no_draws, *outputs
        )

    run(work_on, blocks.begins.shape[0], work)


def blend(
    layout: Layout,
    moments: Moments,
    model: Model,
    statistics: Statistics,
    share: float,
    wants_gains: bool,
) -> tuple[np.ndarray, ...] | None:
    members, sums = statistics.members, statistics.sums
    n_members = members.shape[0]
    gains = np.empty((n_members if wants_gains else 0, layout.n_products))
    freedom = np.empty(gains.shape[0])
    arguments = layout, moments, model, members, sums, float(share), gains, freedom
    run(pairs.blend, n_members, 2.0 * n_members * layout.work(), *arguments)
    if not wants_gains:
        return None
    add_up = np.add.reduce
    squares = share * share * add_up(statistics.squares)
    return share * add_up(statistics.mass), squares, add_up(freedom), add_up(gains)

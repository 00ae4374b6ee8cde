"""The sweep in Numba: one compilation for all families, threads over pieces of work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pickmix.data.partial_rows import find_patterns
from pickmix.families.layout import Layout, Model, Moments, log_weights
from pickmix.selection.compiled_operations import CompiledOperations
from pickmix.selection.operations import Operations
from pickmix.selection.partitions import Partition
from pickmix.sweep import block_setup, pair_kernels
from pickmix.sweep.blocks import sweep_blocks
from pickmix.sweep.contract import Rows, Swept
from pickmix.sweep.partial import Workspace as PartialWorkspace
from pickmix.sweep.partial import make_workspace as make_partial_workspace
from pickmix.sweep.partial import sweep_partial_blocks
from pickmix.sweep.partial_reference import as_complete, is_partial
from pickmix.sweep.statistics import Statistics, Sums, merge, no_sums
from pickmix.threads import Threads

# Blocks with more rows than this are cut, so that a single block is work for many threads; each
# piece has its own sums.
_PIECE_ROWS = 8192
# Rows that a thread gathers at a time, at most and at least. How many changes no result.
_MOST_GATHERED, _LEAST_GATHERED = 16384, 512
_TOGETHER = 32  # Components evaluated together in dense E-steps.
_NO_NUMBERS, _NO_MATRIX = np.empty(0), np.empty((0, 0))
_NO_DRAWS = np.empty(0, dtype=np.int32)


class _Blocks(NamedTuple):
    """Components members[places[b]:places[b + 1]] and rows begins[b]..ends[b] for every block b.

    Weights or log-joints of block b begin in row tops[b] of an array.
    """

    members: np.ndarray
    places: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    tops: np.ndarray

    @classmethod
    def of_all(cls, n_components: int, n_rows: int) -> _Blocks:
        """All components, a few at a time, with all rows."""
        places = np.append(np.arange(0, n_components, _TOGETHER), n_components)
        begins = np.zeros(len(places) - 1, dtype=np.int64)
        members = np.arange(n_components, dtype=np.int32)
        return cls(members, places, begins, begins + n_rows, places[:-1])


class Compiled:
    """The sweep and its parts in Numba; see `Reference`."""

    def __init__(self, threads: Threads) -> None:
        self.threads: Threads | None = threads
        self._threads = threads
        self.operations: Operations = CompiledOperations(threads)
        self._slot_of = np.empty(0, dtype=np.int32)
        self._known_layout: tuple[Layout, float] | None = None

    def _work_of(self, layout: Layout) -> float:
        """`Layout.work`, cached because small steps would spend long on it."""
        if self._known_layout is None or self._known_layout[0] is not layout:
            self._known_layout = layout, layout.work()
        return self._known_layout[1]

    def sweep(
        self,
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
        K = model.location.shape[0]
        order, bounds = self._group_rows(source, numbers, components, partition, K)
        share = numbers.shape[0] // (4 * self._threads.n_threads)
        pieces = _cut(partition, bounds, min(_MOST_GATHERED, max(_LEAST_GATHERED, share)))
        sums = no_sums(pieces.members.shape[0] if wants_statistics else 0, layout)
        drawn = np.empty_like(components)
        log_sums = np.empty(numbers.shape[0] if wants_log_sums else 0)

        outputs = float(beta), key, greedy, drawn, sums, log_sums

        def work_on(*bounds: int) -> None:
            """Gather and sweep chunks of pieces."""
            run = self._make_sweep(layout, model, source, pieces, *outputs)
            for chunk in range(*bounds):
                first, last = int(pieces.chunks[chunk]), int(pieces.chunks[chunk + 1])
                places = order[pieces.ends[first] : pieces.ends[last]]
                run(numbers[places], places, first, last)

        evaluations = int(np.diff(pieces.ends) @ np.diff(pieces.places))
        self._threads.run(
            work_on, pieces.chunks.shape[0] - 1, 2.0 * evaluations * self._work_of(layout)
        )
        statistics = None
        if wants_statistics:
            statistics = merge(pieces.members, sums, layout, source.weights_of(numbers)[1])
        return Swept(drawn, statistics, log_sums, evaluations)

    def _group_rows(
        self,
        source: Rows,
        numbers: np.ndarray,
        components: np.ndarray,
        partition: Partition,
        n_components: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """An order (B,) of rows by the blocks of their components, and where each block ends.

        Partial rows are sorted by their missing cells within blocks.
        """
        patterns = source.patterns_of(numbers)
        if patterns is not None:
            n_patterns = int(patterns.max(initial=0)) + 1
            order = self.operations.group_rows(
                patterns, np.arange(n_patterns, dtype=np.int32), n_patterns
            )[0]
            block = np.full(n_components, -1, dtype=np.int32)
            block[partition.members] = partition.block_of_position()
            by_block, ends = self.operations.group_rows(
                components[order], block, partition.n_blocks
            )
            return order[by_block], np.concatenate([[0], ends])
        n_places = partition.members.shape[0]
        position = np.full(n_components, -1, dtype=np.int32)
        position[partition.members] = np.arange(n_places, dtype=np.int32)
        order, place_ends = self.operations.group_rows(components, position, n_places)
        return order, np.concatenate([[0], place_ends[partition.offsets[1:] - 1]])

    def _make_sweep(
        self, layout: Layout, model: Model, source: Rows, pieces: Pieces, *outputs: Any
    ) -> Callable[..., None]:
        """Make a function of rows, their places in the output and pieces, for one thread."""
        block_size = int(np.diff(pieces.places).max())
        partial = source.patterns_of(np.empty(0, dtype=np.int64)) is not None
        partial_work: PartialWorkspace | None = None
        if partial:
            blocks = pieces.members, pieces.places, pieces.ends[:-1], pieces.ends[1:]
            tops = np.zeros(pieces.places.shape[0], dtype=np.int64)
        else:
            work = block_setup.make_workspace(layout, block_size)

        def run(numbers: np.ndarray, order: np.ndarray, first: int, last: int) -> None:
            rows, weights = source.gather(numbers), source.weights_of(numbers)[0]
            settings = first, last, *outputs[:3], order, *outputs[3:]
            if partial:
                nonlocal partial_work
                if partial_work is None:
                    n_noise = rows.shape[1] - layout.n_columns
                    partial_work = make_partial_workspace(layout, n_noise, block_size)
                patterns, offset = source.patterns_of(numbers), int(pieces.ends[first])
                nothing = tops, _NO_MATRIX, _NO_MATRIX, _NO_MATRIX, partial_work
                sweep_partial_blocks(
                    layout,
                    model,
                    rows,
                    weights,
                    numbers,
                    patterns,
                    *blocks,
                    offset,
                    *settings,
                    *nothing,
                )
            else:
                blocks_of_rows = pieces.members, pieces.places, pieces.ends
                sweep_blocks(
                    layout, model, rows, weights, numbers, *blocks_of_rows, *settings, work
                )

        return run

    def log_joint(
        self, layout: Layout, model: Model, rows: np.ndarray, candidates: np.ndarray
    ) -> np.ndarray:
        if is_partial(layout, rows):
            return self._partial_pairs(layout, model, rows, candidates)[0]
        out = np.empty(candidates.shape)
        work = candidates.size * self._work_of(layout)
        self._threads.run(
            pair_kernels.evaluate_candidates,
            candidates.shape[0],
            work,
            layout,
            model,
            rows,
            candidates,
            out,
        )
        return out

    def log_joint_all(self, layout: Layout, model: Model, rows: np.ndarray) -> np.ndarray:
        if is_partial(layout, rows):
            return self._partial_all(layout, model, rows)[0]
        out = np.empty((model.location.shape[0], rows.shape[0]))
        columns = np.ascontiguousarray(rows.T)
        work = out.size * self._work_of(layout)
        self._threads.run(
            pair_kernels.evaluate_all, out.shape[0], work, layout, model, columns, out
        )
        return out

    def likeness(
        self, layout: Layout, model: Model, rows: np.ndarray, candidates: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        if is_partial(layout, rows):
            if candidates is None:
                all_components = np.arange(model.location.shape[0], dtype=np.int32)
                joint, squares = self._partial_all(layout, model, rows)
                return joint.T.copy(), as_complete(model, all_components[None], squares.T)
            joint, squares = self._partial_pairs(layout, model, rows, candidates)
            return joint, as_complete(model, candidates, squares)
        if candidates is None:
            joint = np.ascontiguousarray(self.log_joint_all(layout, model, rows).T)
            return joint, joint - log_weights(model)
        joint = self.log_joint(layout, model, rows, candidates)
        return joint, joint - log_weights(model)[candidates]

    def sums_of_all(
        self,
        layout: Layout,
        rows: np.ndarray,
        weights: np.ndarray,
        responsibilities: np.ndarray,
        model: Model | None = None,
    ) -> Sums:
        if is_partial(layout, rows):
            assert model is not None
            order, patterns = _sort(layout, rows)
            sums = no_sums(responsibilities.shape[0], layout)
            self._run_blocks(
                layout,
                model,
                rows[order],
                patterns,
                _Blocks.of_all(*responsibilities.shape),
                weights[order],
                np.ascontiguousarray(responsibilities[:, order]),
                sums,
                _NO_MATRIX,
                _NO_MATRIX,
                2.0 * responsibilities.size * self._work_of(layout),
            )
            return sums
        sums = no_sums(responsibilities.shape[0], layout)
        self._threads.run(
            pair_kernels.accumulate_all,
            responsibilities.shape[0],
            responsibilities.size * self._work_of(layout),
            layout,
            np.ascontiguousarray(rows.T),
            weights,
            responsibilities,
            sums,
        )
        return sums

    def pair_statistics(
        self,
        layout: Layout,
        n_components: int,
        rows: np.ndarray,
        weights: np.ndarray,
        components: np.ndarray,
        pair_weights: np.ndarray,
        total_weight: float,
        model: Model | None = None,
    ) -> Statistics:
        members, offsets, pairs, grouped_weights = self._group_pairs(
            n_components, weights, components, pair_weights
        )
        sums = no_sums(members.shape[0], layout)
        if is_partial(layout, rows):
            assert model is not None
            n, n_pairs = members.shape[0], int(offsets[members.shape[0]])
            ends, pairs = offsets[: n + 1], pairs[:n_pairs]
            tops = np.zeros(n, dtype=np.int64)
            self._run_blocks(
                layout,
                model,
                rows[pairs],
                find_patterns(rows[:, : layout.n_columns])[pairs],
                _Blocks(members, np.arange(n + 1), ends[:-1], ends[1:], tops),
                grouped_weights,
                np.ones((1, n_pairs)),
                sums,
                _NO_MATRIX,
                _NO_MATRIX,
                components.size * self._partial_work(layout),
            )
        else:
            self._threads.run(
                pair_kernels.accumulate_pairs,
                members.shape[0],
                components.size * self._work_of(layout),
                layout,
                rows,
                offsets,
                pairs,
                grouped_weights,
                sums,
            )
        return Statistics.of_sums(members, sums, total_weight)

    def _run_blocks(
        self,
        layout: Layout,
        model: Model,
        rows: np.ndarray,
        patterns: np.ndarray,
        blocks: _Blocks,
        weights: np.ndarray,
        given: np.ndarray,
        sums: Sums,
        log_joint: np.ndarray,
        squares: np.ndarray,
        work: float,
    ) -> None:
        """Evaluate rows in blocks, or add them to sums, without drawing anything."""
        n_blocks = blocks.begins.shape[0]
        most = int(np.diff(blocks.places).max(initial=1))
        n_noise = rows.shape[1] - layout.n_columns

        def work_on(start: int, stop: int) -> None:
            sweep_partial_blocks(
                layout,
                model,
                rows,
                weights,
                _NO_DRAWS.astype(np.int64),
                patterns,
                *blocks[:4],
                0,
                start,
                stop,
                1.0,
                np.uint64(0),
                False,
                _NO_DRAWS.astype(np.int64),
                _NO_DRAWS,
                sums,
                _NO_NUMBERS,
                blocks.tops,
                given,
                log_joint,
                squares,
                make_partial_workspace(layout, n_noise, most),
            )

        self._threads.run(work_on, n_blocks, work)

    def _partial_pairs(
        self, layout: Layout, model: Model, rows: np.ndarray, candidates: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Log-joints and squared distances (B, W) of rows and their candidates."""
        n_rows, width = candidates.shape
        # Rows with the same candidates are a block, those with the same cells missing neighbours.
        patterns = find_patterns(rows[:, : layout.n_columns])
        order = np.lexsort((patterns, *candidates.T))
        ordered = candidates[order]
        is_new = np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))
        begins = np.flatnonzero(is_new[:n_rows])
        members = np.maximum(ordered[begins], 0).astype(np.int32).ravel()
        places = np.arange(len(begins) + 1) * width
        ends = np.append(begins[1:], n_rows)
        blocks = _Blocks(members, places, begins, ends, np.zeros_like(begins))
        joint, squares = np.empty((2, width, n_rows))
        if candidates.size:
            self._run_blocks(
                layout,
                model,
                rows[order],
                patterns[order],
                blocks,
                np.ones(n_rows),
                _NO_MATRIX,
                no_sums(0, layout),
                joint,
                squares,
                candidates.size * self._partial_work(layout),
            )
        out = np.empty((2, n_rows, width))
        out[:, order] = joint.T, squares.T
        out[0, candidates < 0], out[1, candidates < 0] = -np.inf, 0.0
        return out[0], out[1]

    def _partial_work(self, layout: Layout) -> float:
        """Multiply-adds of one evaluation that factorises, roughly."""
        return self._work_of(layout) + layout.n_products * layout.n_coordinates

    def _partial_all(
        self, layout: Layout, model: Model, rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Log-joints and squared distances (K, B) of all components."""
        order, patterns = _sort(layout, rows)
        joint, squares = np.empty((2, model.location.shape[0], rows.shape[0]))
        self._run_blocks(
            layout,
            model,
            rows[order],
            patterns,
            _Blocks.of_all(*joint.shape),
            np.ones(rows.shape[0]),
            _NO_MATRIX,
            no_sums(0, layout),
            joint,
            squares,
            2.0 * joint.size * self._work_of(layout),
        )
        back = np.argsort(order)
        return joint.take(back, axis=1), squares.take(back, axis=1)

    def _group_pairs(
        self,
        n_components: int,
        weights: np.ndarray,
        components: np.ndarray,
        pair_weights: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Pairs by component: the components, where theirs begin, rows, and weights."""
        if self._slot_of.shape[0] != n_components:
            self._slot_of = np.full(n_components, -1, dtype=np.int32)
        n_pairs = components.size
        most = min(n_pairs, n_components)
        members = np.empty(most, dtype=np.int32)
        offsets = np.empty(most + 2, dtype=np.int64)
        pairs = np.empty(n_pairs, dtype=np.int64)
        grouped_weights = np.empty(n_pairs)
        n_slots = pair_kernels.group_by_component(
            components,
            pair_weights,
            weights,
            self._slot_of,
            members,
            offsets,
            pairs,
            grouped_weights,
        )
        return members[:n_slots], offsets, pairs, grouped_weights

    def blend(
        self,
        layout: Layout,
        moments: Moments,
        model: Model,
        statistics: Statistics,
        share: float,
        wants_gains: bool,
    ) -> tuple[np.ndarray, ...] | None:
        n_members = statistics.members.shape[0]
        gains = np.empty((n_members if wants_gains else 0, layout.n_products))
        freedom = np.empty(gains.shape[0])
        self._threads.run(
            pair_kernels.blend,
            n_members,
            2.0 * n_members * self._work_of(layout),
            layout,
            moments,
            model,
            statistics.members,
            statistics.sums,
            float(share),
            gains,
            freedom,
        )
        if not wants_gains:
            return None
        add_up = np.add.reduce
        squares = share * share * add_up(statistics.squares)
        return share * add_up(statistics.mass), squares, add_up(freedom), add_up(gains)


@dataclass(frozen=True)
class Pieces:
    """Blocks cut into pieces of at most _PIECE_ROWS rows, and chunks of pieces to gather.

    Piece q: components members[places[q]:places[q + 1]], rows ends[q]..ends[q + 1]. Chunk c: pieces
    chunks[c]..chunks[c + 1].
    """

    members: np.ndarray
    places: np.ndarray
    ends: np.ndarray
    chunks: np.ndarray


def _cut(partition: Partition, bounds: np.ndarray, chunk_rows: int) -> Pieces:
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
    return Pieces(members, places, ends, chunks)


def _sort(layout: Layout, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An order of rows by which cells are missing, and their patterns in that order."""
    patterns = find_patterns(rows[:, : layout.n_columns])
    order = np.argsort(patterns, kind="stable")
    return order, patterns[order]

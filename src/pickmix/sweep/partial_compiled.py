"""The sweep in Numba, for rows seen in part; complete rows go the usual way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pickmix.data.partial_rows import find_patterns
from pickmix.families.layout import Layout, Model
from pickmix.selection.partitions import Partition
from pickmix.sweep.compiled import Compiled, Pieces
from pickmix.sweep.contract import Rows
from pickmix.sweep.partial_reference import as_complete, is_partial
from pickmix.sweep.partial_sweep import sweep_partial_blocks
from pickmix.sweep.partial_workspace import make_workspace
from pickmix.sweep.statistics import Statistics, Sums, no_sums

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


class PartialCompiled(Compiled):
    """The sweep and its parts in Numba, for partial rows; see `Backend`."""

    def _group_rows(
        self,
        source: Rows,
        numbers: np.ndarray,
        components: np.ndarray,
        partition: Partition,
        n_components: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        patterns = source.patterns_of(numbers)
        if patterns is None:
            return super()._group_rows(source, numbers, components, partition, n_components)
        n_patterns = int(patterns.max(initial=0)) + 1
        order = self.operations.group_rows(
            patterns, np.arange(n_patterns, dtype=np.int32), n_patterns
        )[0]
        block = np.full(n_components, -1, dtype=np.int32)
        block[partition.members] = partition.block_of_position()
        by_block, ends = self.operations.group_rows(components[order], block, partition.n_blocks)
        return order[by_block], np.concatenate([[0], ends])

    def _make_sweep(
        self, layout: Layout, model: Model, source: Rows, pieces: Pieces, *outputs: Any
    ) -> Callable[..., None]:
        if source.patterns_of(np.empty(0, dtype=np.int64)) is None:
            return super()._make_sweep(layout, model, source, pieces, *outputs)
        patterns_of = source.patterns_of
        nothing = np.zeros(pieces.places.shape[0], dtype=np.int64)
        blocks = pieces.members, pieces.places, pieces.ends[:-1], pieces.ends[1:]
        n_noise = source.gather(np.arange(1)).shape[1] - layout.n_columns
        work = make_workspace(layout, n_noise, int(np.diff(pieces.places).max()))

        def run(numbers: np.ndarray, order: np.ndarray, first: int, last: int) -> None:
            sweep_partial_blocks(
                layout,
                model,
                source.gather(numbers),
                source.weights_of(numbers)[0],
                numbers,
                patterns_of(numbers),
                *blocks,
                int(pieces.ends[first]),
                first,
                last,
                *outputs[:3],
                order,
                *outputs[3:],
                nothing,
                _NO_MATRIX,
                _NO_MATRIX,
                _NO_MATRIX,
                work,
            )

        return run

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
                make_workspace(layout, n_noise, most),
            )

        self._threads.run(work_on, n_blocks, work)

    def log_joint(
        self, layout: Layout, model: Model, rows: np.ndarray, candidates: np.ndarray
    ) -> np.ndarray:
        if not is_partial(layout, rows):
            return super().log_joint(layout, model, rows, candidates)
        return self._pairs(layout, model, rows, candidates)[0]

    def likeness(
        self, layout: Layout, model: Model, rows: np.ndarray, candidates: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        if not is_partial(layout, rows):
            return super().likeness(layout, model, rows, candidates)
        if candidates is None:
            everyone = np.arange(model.location.shape[0], dtype=np.int32)
            joint, squares = self._all(layout, model, rows)
            return joint.T.copy(), as_complete(model, everyone[None], squares.T)
        joint, squares = self._pairs(layout, model, rows, candidates)
        return joint, as_complete(model, candidates, squares)

    def _pairs(
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

    def _all(self, layout: Layout, model: Model, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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

    def log_joint_all(self, layout: Layout, model: Model, rows: np.ndarray) -> np.ndarray:
        if not is_partial(layout, rows):
            return super().log_joint_all(layout, model, rows)
        return self._all(layout, model, rows)[0]

    def sums_of_all(
        self,
        layout: Layout,
        rows: np.ndarray,
        weights: np.ndarray,
        responsibilities: np.ndarray,
        model: Model | None = None,
    ) -> Sums:
        if not is_partial(layout, rows):
            return super().sums_of_all(layout, rows, weights, responsibilities, model)
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
        if not is_partial(layout, rows):
            return super().pair_statistics(
                layout, n_components, rows, weights, components, pair_weights, total_weight
            )
        assert model is not None
        members, offsets, pairs, grouped_weights = self._group_pairs(
            n_components, weights, components, pair_weights
        )
        n, n_pairs = members.shape[0], int(offsets[members.shape[0]])
        ends, pairs = offsets[: n + 1], pairs[:n_pairs]
        tops = np.zeros(n, dtype=np.int64)
        sums = no_sums(n, layout)
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
        return Statistics.of_sums(members, sums, total_weight)


def _sort(layout: Layout, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An order of rows by which cells are missing, and their patterns in that order."""
    patterns = find_patterns(rows[:, : layout.n_columns])
    order = np.argsort(patterns, kind="stable")
    return order, patterns[order]

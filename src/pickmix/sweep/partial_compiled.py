"""The sweep in Numba, for rows seen in part; complete rows go the usual way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pickmix.data.partial_rows import find_patterns
from pickmix.families.layout import Layout, Model
from pickmix.selection.partitions import Partition
from pickmix.sweep import partial_sweep
from pickmix.sweep.compiled import Compiled
from pickmix.sweep.contract import Rows
from pickmix.sweep.partial_reference import as_complete, is_partial
from pickmix.sweep.statistics import Statistics, Sums, no_sums


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
        own = source.patterns_of(numbers)
        if own is None:
            return super()._group_rows(source, numbers, components, partition, n_components)
        n_patterns = int(own.max(initial=0)) + 1
        everyone = np.arange(n_patterns, dtype=np.int32)
        order = self.operations.group_rows(own, everyone, n_patterns)[0]
        block = np.full(n_components, -1, dtype=np.int32)
        block[partition.members] = partition.block_of_position()
        by_block, ends = self.operations.group_rows(components[order], block, partition.n_blocks)
        return order[by_block], np.concatenate([[0], ends])

    def _kernel(self, source: Rows) -> tuple[Callable[..., None], Callable[..., tuple[Any, ...]]]:
        if source.patterns_of(np.empty(0, dtype=np.int64)) is None:
            return super()._kernel(source)
        patterns_of = source.patterns_of
        return partial_sweep.sweep_partial_blocks, lambda numbers: (patterns_of(numbers),)

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
            candidates = np.tile(everyone, (rows.shape[0], 1))
        joint, squares = self._pairs(layout, model, rows, candidates)
        return joint, as_complete(model, candidates, squares)

    def _pairs(
        self, layout: Layout, model: Model, rows: np.ndarray, candidates: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Log-joints and squared distances (B, W) of rows and their candidates."""
        joint, squares = np.empty(candidates.shape), np.empty(candidates.shape)
        # Rows with the same candidates and the same cells missing one after another.
        patterns = find_patterns(rows[:, : layout.n_columns])
        order = np.lexsort((patterns, candidates[:, 0]))
        self._threads.run(
            partial_sweep.evaluate_partial_pairs,
            candidates.shape[0],
            candidates.size * self._partial_work(layout),
            layout,
            model,
            rows,
            patterns,
            order,
            candidates,
            joint,
            squares,
        )
        return joint, squares

    def _partial_work(self, layout: Layout) -> float:
        """Multiply-adds of one evaluation that factorises, roughly."""
        return self._work_of(layout) + layout.n_products * layout.n_coordinates

    def log_joint_all(self, layout: Layout, model: Model, rows: np.ndarray) -> np.ndarray:
        if not is_partial(layout, rows):
            return super().log_joint_all(layout, model, rows)
        K = model.location.shape[0]
        order, patterns = _sort(layout, rows)
        out = np.empty((K, rows.shape[0]))
        self._threads.run(
            partial_sweep.evaluate_partial,
            -(-K // partial_sweep.TOGETHER),
            2.0 * out.size * self._work_of(layout),
            layout,
            model,
            rows[order],
            patterns,
            out,
        )
        unsorted = np.empty_like(out)
        unsorted[:, order] = out
        return unsorted

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
        K = responsibilities.shape[0]
        sums = no_sums(K, layout)
        self._threads.run(
            partial_sweep.add_partial,
            -(-K // partial_sweep.TOGETHER),
            2.0 * responsibilities.size * self._work_of(layout),
            layout,
            model,
            rows[order],
            patterns,
            weights[order],
            np.ascontiguousarray(responsibilities[:, order]),
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
        if not is_partial(layout, rows):
            return super().pair_statistics(
                layout, n_components, rows, weights, components, pair_weights, total_weight
            )
        assert model is not None
        members, offsets, pairs, grouped_weights = self._group_pairs(
            n_components, weights, components, pair_weights
        )
        sums = no_sums(members.shape[0], layout)
        self._threads.run(
            partial_sweep.add_partial_pairs,
            members.shape[0],
            components.size * self._partial_work(layout),
            layout,
            model,
            rows,
            members,
            offsets,
            pairs,
            grouped_weights,
            sums,
        )
        return Statistics.of_sums(members, sums, total_weight)


def _sort(layout: Layout, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An order of rows by which cells are missing, and their patterns in that order."""
    patterns = find_patterns(rows[:, : layout.n_columns])
    order = np.argsort(patterns, kind="stable")
    return order, patterns[order]

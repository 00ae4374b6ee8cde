"""`Operations` by compiled kernels, on threads. For large problems."""

from __future__ import annotations

import math

import numpy as np

from pickmix.selection import kernels
from pickmix.selection.arrays import ArrayOperations, renormalise, root
from pickmix.selection.operations import Tree
from pickmix.selection.sparse import SparseNeighbours, SparseTable
from pickmix.threads import Threads

_FIRST_SPLITS = 15  # Nodes of a tree split one after another before the rest is handed to threads.


class CompiledOperations(ArrayOperations):
    """`ArrayOperations`, compiled where that is more than half as fast again."""

    def __init__(self, threads: Threads) -> None:
        self.threads = threads

    def __reduce__(self) -> tuple[type[CompiledOperations], tuple[Threads]]:
        # A copy has other threads: running ones cannot be copied.
        return CompiledOperations, (Threads(self.threads.n_threads),)

    def top_of_candidates(
        self, log_joint: np.ndarray, candidates: np.ndarray, beta: float, n_kept: int
    ) -> tuple[np.ndarray, np.ndarray]:
        shape = (log_joint.shape[0], n_kept)
        components, values = np.full(shape, -1, dtype=np.int32), np.full(shape, -np.inf)
        kernels.keep_largest(np.ascontiguousarray(log_joint), candidates, components, values)
        return components, renormalise(values, beta)

    def accept_or_stay(
        self,
        current: np.ndarray,
        candidates: np.ndarray,
        log_joint_current: np.ndarray,
        log_joint: np.ndarray,
        log_q_current: np.ndarray,
        log_q: np.ndarray,
        beta: float,
        rows: np.ndarray,
        key: np.uint64,
        first_draw: int,
        states: np.ndarray,
        acceptance: np.ndarray,
    ) -> None:
        self.threads.run(
            kernels.accept_or_stay,
            rows.shape[0],
            60.0 * candidates.size,
            current,
            candidates,
            log_joint_current,
            log_joint,
            log_q_current,
            log_q,
            beta,
            rows,
            key,
            first_draw,
            states,
            acceptance,
        )

    def grow_tree(
        self, points: np.ndarray, leaf_size: int, key: np.uint64, scales: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, Tree]:
        n_points, n_features = points.shape
        n_leaves = -(-n_points // leaf_size)
        order = np.arange(n_points, dtype=np.int32)
        offsets = np.zeros(n_leaves + 1, dtype=np.int64)
        offsets[-1] = n_points
        tree = Tree.unfilled(n_leaves - 1, n_features)
        if n_leaves == 1:
            return order, offsets, tree
        # (first point, last point, first leaf, last leaf) of subtrees that are not split yet.
        pending = np.zeros((_FIRST_SPLITS + 1, 4), dtype=np.int64)
        pending[0] = 0, n_points, 0, n_leaves
        arrays = tree.directions, tree.thresholds, tree.children
        arguments = (points, order, np.empty(n_points), key, scales, offsets, arrays)

        def split(spare: int, start: int, stop: int) -> None:
            waiting = np.empty((n_leaves + 2, 4), dtype=np.int64)
            kernels.split(pending, *arguments, spare, waiting, start, stop)

        n_pending = 1
        while n_pending < min(n_leaves, pending.shape[0]):
            widest = int((pending[:n_pending, 3] - pending[:n_pending, 2]).argmax())
            split(n_pending, widest, widest + 1)
            n_pending += 1
        if n_leaves > n_pending:
            self.threads.run(split, n_pending, 20.0 * n_points * (n_features + 2), -1)
        return order, offsets, Tree(*arrays, root=root(0, n_leaves, key))

    def leaf_of(self, tree: Tree, rows: np.ndarray) -> np.ndarray:
        leaves = np.zeros(rows.shape[0], dtype=np.int32)
        n_nodes = tree.thresholds.shape[0]
        if n_nodes:
            work = rows.size * (2.0 + math.log2(n_nodes))
            arrays = tree.directions, tree.thresholds, tree.children
            arguments = rows, tree.root, arrays, leaves
            self.threads.run(kernels.descend, rows.shape[0], work, *arguments)
        return leaves

    def group_rows(
        self, components: np.ndarray, position: np.ndarray, n_places: int
    ) -> tuple[np.ndarray, np.ndarray]:
        order = np.empty(components.shape[0], dtype=np.int64)
        ends = np.zeros(n_places, dtype=np.int64)
        kernels.group_rows(components, position, order, ends)
        return order, ends

    def start_table(self, n_rows: int, n_components: int) -> SparseTable:
        return SparseTable(n_rows, n_components)

    def start_neighbours(self, lists: np.ndarray) -> SparseNeighbours:
        return SparseNeighbours(lists)

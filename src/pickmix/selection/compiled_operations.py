"""`Operations` by compiled kernels, on threads. For large problems."""

from __future__ import annotations

import math

import numpy as np

from pickmix.selection import kernels
from pickmix.selection.operations import Tree
from pickmix.selection.sparse import SparseNeighbours, SparseTable
from pickmix.threads import Threads

_FIRST_SPLITS = 15  # Nodes of a tree split one after another before the rest is handed to threads.


class CompiledOperations:
    """The methods of `ArrayOperations`; see there."""

    def __init__(self, threads: Threads) -> None:
        self.threads = threads

    def __reduce__(self) -> tuple[type[CompiledOperations], tuple[Threads]]:
        # A copy has other threads: running ones cannot be copied.
        return CompiledOperations, (Threads(self.threads.n_threads),)

    def normalise_all(self, log_joint: np.ndarray, beta: float) -> np.ndarray:
        out = np.empty(log_joint.shape[1])
        work = 20.0 * log_joint.size
        self.threads.run(kernels.normalise_all, out.shape[0], work, log_joint, beta, out)
        return out

    def log_sum_exp(self, log_joint: np.ndarray) -> np.ndarray:
        out = np.empty(log_joint.shape[1])
        work = 15.0 * log_joint.size
        self.threads.run(kernels.log_sum_exp, out.shape[0], work, log_joint, out)
        return out

    def top_of_all(
        self, log_joint: np.ndarray, beta: float, n_kept: int
    ) -> tuple[np.ndarray, np.ndarray]:
        n_rows, work = log_joint.shape[1], 3.0 * log_joint.size
        components = np.empty((n_rows, n_kept), dtype=np.int32)
        weights = np.empty(components.shape)
        self.threads.run(kernels.top_of_all, n_rows, work, log_joint, beta, components, weights)
        return components, weights

    def top_of_candidates(
        self, log_joint: np.ndarray, candidates: np.ndarray, beta: float, n_kept: int
    ) -> tuple[np.ndarray, np.ndarray]:
        components = np.empty((candidates.shape[0], n_kept), dtype=np.int32)
        weights = np.empty(components.shape)
        self.threads.run(
            kernels.top_of_candidates,
            candidates.shape[0],
            3.0 * candidates.size,
            log_joint,
            candidates,
            beta,
            components,
            weights,
        )
        return components, weights

    def draw_from_posterior(
        self, log_joint: np.ndarray, beta: float, rows: np.ndarray, key: np.uint64, n_draws: int
    ) -> np.ndarray:
        states = np.empty((rows.shape[0], n_draws), dtype=np.int32)
        self.threads.run(
            kernels.draw_from_posterior,
            rows.shape[0],
            20.0 * log_joint.size,
            log_joint,
            beta,
            rows,
            key,
            states,
        )
        return states

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

    def count_states(
        self, states: np.ndarray, acceptance: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, float]:
        components = np.empty(states.shape, dtype=np.int32)
        weights = np.empty(states.shape)
        return components, weights, kernels.count_states(states, acceptance, components, weights)

    def draw_uniformly(
        self, rows: np.ndarray, n_components: int, key: np.uint64, first_draw: int, n_draws: int
    ) -> np.ndarray:
        components = np.empty((rows.shape[0], n_draws), dtype=np.int32)
        kernels.draw_uniformly(rows, n_components, key, first_draw, components)
        return components

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
        pending = np.empty((_FIRST_SPLITS + 1, 4), dtype=np.int64)
        arrays = tree.directions, tree.thresholds, tree.children
        arguments = (points, order, np.empty(n_points), key, scales, offsets, arrays)
        n_pending = kernels.split_widest(pending, *arguments)
        if n_leaves > n_pending:
            work = 20.0 * n_points * (n_features + 2)
            self.threads.run(kernels.split_all, n_pending, work, pending, *arguments)
        return order, offsets, Tree(*arrays, root=int(kernels.root(0, n_leaves, key)))

    def leaf_of(self, tree: Tree, rows: np.ndarray) -> np.ndarray:
        leaves = np.zeros(rows.shape[0], dtype=np.int32)
        n_nodes = tree.thresholds.shape[0]
        if n_nodes:
            work = rows.size * (2.0 + math.log2(n_nodes))
            arrays = tree.directions, tree.thresholds, tree.children
            arguments = rows, tree.root, arrays, leaves
            self.threads.run(kernels.descend, rows.shape[0], work, *arguments)
        return leaves

    def exchange(self, members: np.ndarray, share: float, key: np.uint64) -> None:
        kernels.exchange(members, share, key)

    def group_rows(
        self, components: np.ndarray, position: np.ndarray, n_places: int
    ) -> tuple[np.ndarray, np.ndarray]:
        order = np.empty(components.shape[0], dtype=np.int64)
        ends = np.empty(n_places, dtype=np.int64)
        kernels.group_rows(components, position, order, ends)
        return order, ends

    def start_table(self, n_rows: int, n_components: int) -> SparseTable:
        return SparseTable(n_rows, n_components)

    def start_neighbours(self, lists: np.ndarray) -> SparseNeighbours:
        return SparseNeighbours(lists)

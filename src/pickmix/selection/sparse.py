"""The stores of `CompiledOperations`: nothing of size N x K or K x K."""

from __future__ import annotations

import numpy as np

from pickmix.selection import store_kernels


class SparseTable:
    """Implements `Table` with the visited entries only, as a linked list per row in one pool.

    Both of the paper's tables only ever raise an entry above its start value, so n is the
    uniform distribution plus a non-negative *excess* on visited components.
    """

    def __init__(self, n_rows: int, n_components: int) -> None:
        self._n_components = n_components
        self._head = np.full(n_rows, -1, dtype=np.int64)
        self._excess_total = np.zeros(n_rows)
        self._n_used = 0
        capacity = max(1024, n_rows)
        #: Component, excess and next entry, of each entry of the pool.
        self._pool = (
            np.empty(capacity, dtype=np.int32),
            np.empty(capacity),
            np.empty(capacity, dtype=np.int64),
        )

    @property
    def n_stored(self) -> int:
        """Entries that left their start value."""
        return self._n_used

    def draw(
        self, rows: np.ndarray, current: np.ndarray, key: np.uint64, first_draw: int, n_draws: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Candidates (B, n_draws), their log q, and log q of `current`."""
        candidates = np.empty((rows.shape[0], n_draws), dtype=np.int32)
        log_q, log_q_current = np.empty(candidates.shape), np.empty(rows.shape[0])
        store_kernels.draw_from_table(
            rows,
            current,
            self._n_components,
            self._head,
            self._excess_total,
            *self._pool,
            key,
            first_draw,
            candidates,
            log_q,
            log_q_current,
        )
        return candidates, log_q, log_q_current

    def raise_visited(
        self, rows: np.ndarray, states: np.ndarray, decay: float, gain: float
    ) -> None:
        """Excess <- decay * excess + gain, for every state of states (B, M) in turn."""
        needed, capacity = self._n_used + states.size, self._pool[0].shape[0]
        if needed > capacity:
            more = max(needed - capacity, capacity)
            component, excess, following = (
                np.concatenate([array, np.empty(more, dtype=array.dtype)]) for array in self._pool
            )
            self._pool = component, excess, following
        self._n_used = store_kernels.update_table(
            rows, states, self._n_used, decay, gain, self._head, self._excess_total, *self._pool
        )


class SparseNeighbours:
    """Implements `Neighbours`; what is known of a component that leaves a list is forgotten.

    Parameters
    ----------
    lists : (K, G) int array
        Guesses.
    """

    def __init__(self, lists: np.ndarray) -> None:
        self.lists = np.array(lists, dtype=np.int32, order="C")
        # A guessed neighbour is as good as none: any evaluated distance replaces it.
        self._distances = np.full(self.lists.shape, np.inf)
        self._distances[:, 0] = 0.0
        self._counts = np.zeros(self.lists.shape, dtype=np.int64)

    def distances(self) -> tuple[np.ndarray, np.ndarray]:
        """Distances (K, G) of the members of `lists`, and row counts."""
        return self._distances, self._counts

    def collect(
        self, rows: np.ndarray, held: np.ndarray, n_explore: int, key: np.uint64
    ) -> tuple[np.ndarray, int]:
        """Search sets (B, C) and their number of candidates in all."""
        n_members = held.shape[1] * self.lists.shape[1] + n_explore
        candidates = np.empty((rows.shape[0], n_members), dtype=np.int32)
        return candidates, store_kernels.collect(rows, held, self.lists, n_explore, key, candidates)

    def learn(self, candidates: np.ndarray, log_joint: np.ndarray, winners: np.ndarray) -> None:
        """Update the lists of each row's winner from log-joints (B, C)."""
        store_kernels.learn_distances(
            candidates, log_joint, winners, self.lists, self._distances, self._counts
        )

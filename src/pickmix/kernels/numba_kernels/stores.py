# mypy: ignore-errors
"""Tables of proposals and lists of nearest components, compiled: nothing of size N x K or K x K."""

from __future__ import annotations

from typing import Any

import numpy as np

from pickmix.checks import check_restored
from pickmix.compiled import kernel, part
from pickmix.kernels.numba_kernels.choices import uniform


@part()
def _find(entry_component, entry_next, entry, component):
    while entry >= 0 and entry_component[entry] != component:
        entry = entry_next[entry]
    return entry


@kernel()
def draw_from_table(
    rows, current, n_components, lists, key, first_draw, candidates, log_q, log_q_current
):
    """Sample n_k / sum n: mass 1 spread uniformly, plus the excess of the stored entries."""
    head, excess_total, entry_component, entry_excess, entry_next = lists
    start_value = 1.0 / n_components
    for i in range(rows.shape[0]):
        row = rows[i]
        total = 1.0 + excess_total[row]
        entry = _find(entry_component, entry_next, head[row], current[i])
        value = start_value + (entry_excess[entry] if entry >= 0 else 0.0)
        log_q_current[i] = np.log(value / total)
        for j in range(candidates.shape[1]):
            target = uniform(key, row, first_draw + j) * total
            if target < 1.0:
                k = min(int(target * n_components), n_components - 1)
                entry = _find(entry_component, entry_next, head[row], k)
            else:
                target -= 1.0
                entry = head[row]
                # Rounding may carry the target past the last entry: then it is the last.
                while entry_next[entry] >= 0 and target >= entry_excess[entry]:
                    target -= entry_excess[entry]
                    entry = entry_next[entry]
                k = entry_component[entry]
            value = start_value + (entry_excess[entry] if entry >= 0 else 0.0)
            candidates[i, j] = k
            log_q[i, j] = np.log(value / total)


@kernel()
def update_table(rows, states, n_used, decay, gain, lists):
    """excess <- decay * excess + gain for every visited (row, component), adding new entries."""
    head, excess_total, entry_component, entry_excess, entry_next = lists
    for i in range(rows.shape[0]):
        row = rows[i]
        for j in range(states.shape[1]):
            k = states[i, j]
            entry = _find(entry_component, entry_next, head[row], k)
            if entry < 0:
                entry = n_used
                n_used += 1
                entry_component[entry] = k
                entry_excess[entry] = 0.0
                entry_next[entry] = head[row]
                head[row] = entry
            updated = decay * entry_excess[entry] + gain
            excess_total[row] += updated - entry_excess[entry]
            entry_excess[entry] = updated
    return n_used


@kernel()
def collect_sets(rows, held, neighbours, n_explore, key, candidates):
    """Fill candidates (B, C) with each row's distinct search set, then -1; return how many."""
    n_components, size = neighbours.shape
    total = 0
    for i in range(rows.shape[0]):
        n = 0
        for j in range(held.shape[1] + n_explore):
            explores = j >= held.shape[1]
            for m in range(1 if explores else size if held[i, j] >= 0 else 0):
                if explores:
                    k = min(int(uniform(key, rows[i], j) * n_components), n_components - 1)
                else:
                    k = neighbours[held[i, j], m]
                known = k < 0
                for d in range(n):
                    known = known or candidates[i, d] == k
                if not known:
                    candidates[i, n] = k
                    n += 1
        total += n
        for d in range(n, candidates.shape[1]):
            candidates[i, d] = -1
    return total


@kernel()
def learn_distances(candidates, log_joint, winners, neighbours, distances, counts):
    """Update the sorted lists of each row's winner c by running means over the rows that c wins."""
    n_neighbours = neighbours.shape[1]
    for i in range(candidates.shape[0]):
        c = winners[i]
        if c < 0:
            continue
        best = -np.inf
        for j in range(candidates.shape[1]):
            if candidates[i, j] == c:
                best = log_joint[i, j]
        for j in range(candidates.shape[1]):
            k = candidates[i, j]
            if k < 0 or k == c:
                continue
            distance = best - log_joint[i, j]
            place = n_neighbours
            for g in range(1, n_neighbours):
                if neighbours[c, g] == k:
                    place = g
                    break
            if place < n_neighbours:
                count = counts[c, place] + 1
                if count > 1:
                    distance = distances[c, place] + (distance - distances[c, place]) / count
            elif n_neighbours > 1 and distance < distances[c, n_neighbours - 1]:
                place = n_neighbours - 1
                count = 1
            else:
                continue
            # Take the entry out and put it back where it belongs in the order.
            g = place
            while g + 1 < n_neighbours and distances[c, g + 1] < distance:
                neighbours[c, g] = neighbours[c, g + 1]
                distances[c, g] = distances[c, g + 1]
                counts[c, g] = counts[c, g + 1]
                g += 1
            while g - 1 > 0 and distances[c, g - 1] > distance:
                neighbours[c, g] = neighbours[c, g - 1]
                distances[c, g] = distances[c, g - 1]
                counts[c, g] = counts[c, g - 1]
                g -= 1
            neighbours[c, g] = k
            distances[c, g] = distance
            counts[c, g] = count


class Table:
    """The visited entries only, as a linked list per row in one pool.

    Entries only rise above their start value, so n is uniform plus a non-negative *excess*.
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

    def draw(
        self, rows: np.ndarray, current: np.ndarray, key: np.uint64, first_draw: int, n_draws: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        candidates = np.empty((rows.shape[0], n_draws), dtype=np.int32)
        log_q, log_q_current = np.empty(candidates.shape), np.empty(rows.shape[0])
        lists, K = (self._head, self._excess_total, *self._pool), self._n_components
        draw_from_table(rows, current, K, lists, key, first_draw, candidates, log_q, log_q_current)
        return candidates, log_q, log_q_current

    def raise_visited(
        self, rows: np.ndarray, states: np.ndarray, decay: float, gain: float
    ) -> None:
        needed, capacity = self._n_used + states.size, self._pool[0].shape[0]
        if needed > capacity:
            more = max(needed - capacity, capacity)
            component, excess, following = (
                np.concatenate([array, np.empty(more, dtype=array.dtype)]) for array in self._pool
            )
            self._pool = component, excess, following
        lists = self._head, self._excess_total, *self._pool
        self._n_used = update_table(rows, states, self._n_used, decay, gain, lists)

    def content(self) -> dict[str, Any]:
        used = [array[: self._n_used] for array in self._pool]
        return {"head": self._head, "excess_total": self._excess_total, "pool": used}

    def restore(self, content: dict[str, Any]) -> None:
        n_used = len(content["pool"][0])
        component, excess, following = (
            check_restored("pool", value, np.empty(n_used, dtype=array.dtype))
            for value, array in zip(content["pool"], self._pool, strict=True)
        )
        check_restored("pool", component, component, self._n_components)
        # Entries lead to older ones, so that lists end.
        if not (following < np.arange(n_used)).all() or (n_used and following.min() < -1):
            raise ValueError("pool: expected lists of entries, got others")
        if n_used and component.min() < 0:
            raise ValueError("pool: expected components, got others")
        self._head = check_restored("head", content["head"], self._head, n_used)
        total = check_restored("excess_total", content["excess_total"], self._excess_total)
        self._excess_total, self._n_used = total, n_used
        self._pool = component, excess, following


class Neighbours:
    """Lists of nearest components; distances of those that leave a list are forgotten."""

    def __init__(self, lists: np.ndarray) -> None:
        self.lists = np.array(lists, dtype=np.int32, order="C")
        # A guessed neighbour is as good as none: any evaluated distance replaces it.
        self._distances = np.full(self.lists.shape, np.inf)
        self._distances[:, 0] = 0.0
        self._counts = np.zeros(self.lists.shape, dtype=np.int64)

    def collect(
        self, rows: np.ndarray, held: np.ndarray, n_explore: int, key: np.uint64
    ) -> tuple[np.ndarray, int]:
        n_members = held.shape[1] * self.lists.shape[1] + n_explore
        candidates = np.empty((rows.shape[0], n_members), dtype=np.int32)
        return candidates, collect_sets(rows, held, self.lists, n_explore, key, candidates)

    def learn(self, candidates: np.ndarray, log_joint: np.ndarray, winners: np.ndarray) -> None:
        learn_distances(candidates, log_joint, winners, self.lists, self._distances, self._counts)

    def content(self) -> dict[str, Any]:
        return {"lists": self.lists, "distances": self._distances, "counts": self._counts}

    def restore(self, content: dict[str, Any]) -> None:
        K = self.lists.shape[0]
        self.lists = check_restored("lists", content["lists"], self.lists, K)
        self._distances = check_restored("distances", content["distances"], self._distances)
        self._counts = check_restored("counts", content["counts"], self._counts)

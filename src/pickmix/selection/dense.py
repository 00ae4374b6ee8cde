"""The stores of `ArrayOperations`: tables of all rows or components by all components."""

from __future__ import annotations

import numpy as np

from pickmix.selection.randomness import uniforms


class DenseTable:
    """Implements `Table` as an array (N, K) of what stands above 1/K."""

    def __init__(self, n_rows: int, n_components: int) -> None:
        self._excess = np.zeros((n_rows, n_components))

    @property
    def n_stored(self) -> int:
        """Entries that left their start value."""
        return int(np.count_nonzero(self._excess))

    def draw(
        self, rows: np.ndarray, current: np.ndarray, key: np.uint64, first_draw: int, n_draws: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Candidates (B, n_draws), their log q, and log q of `current`."""
        n_components = self._excess.shape[1]
        table = self._excess[rows] + 1.0 / n_components
        cumulative = np.cumsum(table, axis=1)
        totals = cumulative[:, -1:]
        targets = uniforms(key, rows, n_draws, first_draw) * totals
        candidates = np.empty(targets.shape, dtype=np.int32)
        for draw in range(n_draws):
            candidates[:, draw] = (cumulative <= targets[:, draw, None]).sum(axis=1)
        # Rounding may carry a target up to the total.
        candidates = np.minimum(candidates, n_components - 1)
        log_q = np.log(table / totals)
        log_q_current = np.take_along_axis(log_q, current[:, None].astype(np.intp), axis=1)[:, 0]
        return candidates, np.take_along_axis(log_q, candidates, axis=1), log_q_current

    def raise_visited(
        self, rows: np.ndarray, states: np.ndarray, decay: float, gain: float
    ) -> None:
        """Excess <- decay * excess + gain, for every state of states (B, M) in turn."""
        for draw in range(states.shape[1]):
            visited = rows, states[:, draw]
            self._excess[visited] = decay * self._excess[visited] + gain


class DenseNeighbours:
    """Implements `Neighbours` with the distances of all pairs (K, K), of which none is forgotten.

    Parameters
    ----------
    lists : (K, G) int array
        Guesses.
    """

    def __init__(self, lists: np.ndarray) -> None:
        self.lists = np.array(lists, dtype=np.int32)
        n_components, n_neighbours = self.lists.shape
        every = np.arange(n_components)
        self._sums = np.zeros((n_components, n_components))
        self._counts = np.zeros((n_components, n_components), dtype=np.int64)
        # Pairs that no row has met stand in the order of the guesses.
        self._rank = np.full((n_components, n_components), n_neighbours)
        np.put_along_axis(self._rank, self.lists, np.arange(n_neighbours)[None], axis=1)
        self._rank[every, every] = -1

    def _means(self, components: np.ndarray) -> np.ndarray:
        """Distances (C, K) of all components from some."""
        counts = self._counts[components]
        means = np.full(counts.shape, np.inf)
        np.divide(self._sums[components], counts, out=means, where=counts > 0)
        means[np.arange(components.shape[0]), components] = 0.0
        return means

    def distances(self) -> tuple[np.ndarray, np.ndarray]:
        """Distances (K, G) of the members of `lists`, and row counts."""
        means = self._means(np.arange(self.lists.shape[0]))
        return (
            np.take_along_axis(means, self.lists, axis=1),
            np.take_along_axis(self._counts, self.lists, axis=1),
        )

    def collect(
        self, rows: np.ndarray, held: np.ndarray, n_explore: int, key: np.uint64
    ) -> tuple[np.ndarray, int]:
        """Search sets (B, C) and their number of candidates in all."""
        n_components = self.lists.shape[0]
        known = np.where(held[:, :, None] >= 0, self.lists[held], -1)
        drawn = (uniforms(key, rows, n_explore, held.shape[1]) * n_components).astype(np.int32)
        strangers = np.minimum(drawn, n_components - 1)
        candidates = np.concatenate([known.reshape(rows.shape[0], -1), strangers], axis=1)
        candidates.sort(axis=1)
        candidates[:, 1:][candidates[:, 1:] == candidates[:, :-1]] = -1
        return candidates, int((candidates >= 0).sum())

    def learn(self, candidates: np.ndarray, log_joint: np.ndarray, winners: np.ndarray) -> None:
        """Update the lists of each row's winner from log-joints (B, C)."""
        won = winners >= 0
        candidates, log_joint, winners = candidates[won], log_joint[won], winners[won, None]
        best = np.where(candidates == winners, log_joint, -np.inf).max(axis=1, keepdims=True)
        others = (candidates >= 0) & (candidates != winners)
        pairs = np.broadcast_to(winners, candidates.shape)[others], candidates[others]
        np.add.at(self._sums, pairs, (best - log_joint)[others])
        np.add.at(self._counts, pairs, 1)
        changed = np.unique(winners)
        nearest = np.lexsort((self._rank[changed], self._means(changed)), axis=1)
        self.lists[changed] = nearest[:, : self.lists.shape[1]]

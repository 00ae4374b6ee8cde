"""TSAEM's selection rule: each row searches the neighbourhood of the components it holds.

Truncated variational EM in its sublinear form (Forster and Luecke 2018; Hirschberger, Forster and
Luecke 2022): a row keeps M components, and its search set is the union of their lists of G nearest
components plus E uniform draws. Distances between components are learnt from log-joints that are
evaluated anyway, d(c, k) = average over the rows that c wins of log p(x, c) - log p(x, k).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pickmix.compiled import kernel
from pickmix.selection import kernels
from pickmix.selection.randomness import Stream, uniform
from pickmix.selection.rules import Selection, SelectionRule


@kernel()
def _collect(rows, held, neighbours, n_explore, n_components, key, candidates):
    """Fill candidates (B, C) with the distinct members of each row's search set, -1 after them.

    Returns the number of candidates in all.
    """
    total = 0
    for i in range(rows.shape[0]):
        n = 0
        row = rows[i]
        for j in range(held.shape[1] + n_explore):
            if j < held.shape[1]:
                c = held[row, j]
                if c < 0:
                    continue
                members = neighbours[c]
            else:
                u = uniform(key, row, j)
                members = np.array([min(int(u * n_components), n_components - 1)], dtype=np.int32)
            for k in members:
                known = k < 0
                for d in range(n):
                    if candidates[i, d] == k:
                        known = True
                        break
                if not known:
                    candidates[i, n] = k
                    n += 1
        total += n
        candidates[i, n:] = -1
    return total


@kernel()
def _learn_distances(candidates, log_joint, winners, neighbours, distances, counts):
    """Update the nearest-component lists of each row's winner c from the row's log-joints.

    Lists are sorted by distance and start with the component itself at distance zero. A member's
    distance is the running mean over the rows that c wins; a stranger enters with its first one.
    """
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


@dataclass(frozen=True)
class SearchSet:
    """TSAEM's search sets: G nearest components per held one, and E uniform draws.

    With `all_pairs` the nearest are those by distance of means, found anew among all K^2 pairs in
    every step, as in the paper's figures, instead of learnt on the way.
    """

    n_neighbours: int = 15
    n_explore: int = 1
    all_pairs: bool = False

    def __post_init__(self) -> None:
        if self.n_neighbours < 1 or self.n_explore < 0:
            raise ValueError(
                "n_neighbours must be >= 1 and n_explore >= 0, "
                f"got {self.n_neighbours!r} and {self.n_explore!r}."
            )


class TruncatedSearch(SelectionRule):
    """The M best components of each row's search set, renormalised: TSAEM.

    Parameters
    ----------
    n_kept : int
        M, components held per row.
    search : SearchSet
    first_neighbours : (K, G) int array
        Nearest components to start from, each list beginning with the component itself.
    """

    def __init__(self, n_kept: int, search: SearchSet, first_neighbours: np.ndarray) -> None:
        self.n_kept = n_kept
        self.search = search
        self.neighbours = np.array(first_neighbours, dtype=np.int32, order="C")

    @property
    def width(self):
        """M."""
        return self.n_kept

    def start(self, chain, n_components):
        """Begin a fit: every row holds the component that its chain stands on."""
        self.chain = chain
        self.held = np.full((chain.shape[0], self.n_kept), -1, dtype=np.int32)
        self.held[:, 0] = chain
        # A guessed neighbour is as good as none: any evaluated distance replaces it.
        self.distances = np.full(self.neighbours.shape, np.inf)
        self.distances[:, 0] = 0.0
        self.counts = np.zeros(self.neighbours.shape, dtype=np.int64)

    def select(self, evaluate, rows, beta, step_size, random):
        """Evaluate the search sets and keep the best M of each."""
        search = self.search
        if search.all_pairs:
            self.neighbours = evaluate.nearest_components(self.neighbours.shape[1])
        n_members = self.n_kept * self.neighbours.shape[1] + search.n_explore
        candidates = np.empty((rows.shape[0], n_members), dtype=np.int32)
        n_evaluated = _collect(
            rows,
            self.held,
            self.neighbours,
            search.n_explore,
            evaluate.n_components,
            random.key(Stream.EXPLORATION),
            candidates,
        )
        log_joint = evaluate.log_joint(candidates)
        components = np.empty((rows.shape[0], self.n_kept), dtype=np.int32)
        weights = np.empty(components.shape)
        evaluate.threads.run(
            kernels.top_of_candidates,
            rows.shape[0],
            3.0 * candidates.size,
            log_joint,
            candidates,
            beta,
            components,
            weights,
        )
        winners = components[:, 0]
        if not search.all_pairs:
            _learn_distances(
                candidates, log_joint, winners, self.neighbours, self.distances, self.counts
            )
        # A row that no candidate explains (all log-joints -inf) keeps what it held.
        found = winners >= 0
        self.held[rows[found]] = components[found]
        self.chain[rows[found]] = winners[found]
        return Selection(components, weights, n_evaluated)

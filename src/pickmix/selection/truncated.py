"""TSAEM's selection rule: each row searches the neighbourhood of the components it holds.

Truncated variational EM in its sublinear form (Forster and Luecke 2018; Hirschberger, Forster and
Luecke 2022): a row keeps M components, and its search set is the union of their lists of G nearest
components plus E uniform draws. Distances between components are learnt from log-joints that are
evaluated anyway, d(c, k) = average over the rows that c wins of log p(x, c) - log p(x, k).
"""

from __future__ import annotations

import numpy as np

from pickmix.selection.operations import Operations
from pickmix.selection.randomness import StepRandomness, Stream
from pickmix.selection.rules import Evaluator, SelectedPairs, SelectionRule
from pickmix.selection.settings import SearchSet


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
        self.first_neighbours = first_neighbours

    @property
    def width(self) -> int:
        """M."""
        return self.n_kept

    def start(self, chain: np.ndarray, n_components: int, operations: Operations) -> None:
        """Begin a fit: every row holds the component that its chain stands on."""
        self.chain = chain
        self.held = np.full((chain.shape[0], self.n_kept), -1, dtype=np.int32)
        self.held[:, 0] = chain
        self.neighbours = operations.start_neighbours(self.first_neighbours)

    def select(
        self,
        evaluate: Evaluator,
        rows: np.ndarray,
        beta: float,
        step_size: float,
        random: StepRandomness,
    ) -> SelectedPairs:
        """Evaluate the search sets and keep the best M of each."""
        search, neighbours = self.search, self.neighbours
        if search.all_pairs:
            neighbours.lists = evaluate.nearest_components(neighbours.lists.shape[1])
        candidates, n_evaluated = neighbours.collect(
            rows, self.held[rows], search.n_explore, random.key(Stream.EXPLORATION)
        )
        log_joint = evaluate.log_joint(candidates)
        components, weights = evaluate.operations.top_of_candidates(
            log_joint, candidates, beta, self.n_kept
        )
        winners = components[:, 0]
        if not search.all_pairs:
            neighbours.learn(candidates, log_joint, winners)
        # A row that no candidate explains (all log-joints -inf) keeps what it held.
        found = winners >= 0
        self.held[rows[found]] = components[found]
        self.chain[rows[found]] = winners[found]
        return SelectedPairs(components, weights, n_evaluated)

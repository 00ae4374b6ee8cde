"""From K components to one: a binary tree of merges, each with its cost.

Two components are merged into one with the weight, mean and covariance of both together (for other
families: with the same expected features). Runnalls (2007) bounds how far the mixture moves, as a
Kullback-Leibler divergence in nats per row. Two components that are each other's cheapest partner
are merged, and so on until one is left; sorted by cost, these are the merges that always taking
the cheapest pair would make, but for rare cases in which a merged component is nearer to others
than its parts were.

Only neighbours are compared: components that share a block of a few random trees. All merges of a
round are made at once, and trees are drawn again whenever half of the components are gone, so the
work grows as K log K.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pickmix.closed_form.pairing import BLOCKS_AT_ONCE, nearest_in_blocks
from pickmix.closed_form.state import MixtureState
from pickmix.families.base import Family
from pickmix.families.layout import Moments, merge_pairs
from pickmix.selection.partitions import draw_partition
from pickmix.selection.randomness import StepRandomness
from pickmix.sweep.contract import Backend

# Up to this many components all pairs are compared.
_ALL_PAIRS = 256
# Else those that share a block of one of these random trees.
_N_TREES = 6
_BLOCK_SIZE = 16
# A component keeps this many of these neighbours, the cheapest to merge with. It may be among the
# neighbours of more.
_MOST_NEIGHBOURS = 6
# Pairs evaluated at a time, so that their moments take little memory.
_PAIRS_AT_ONCE = 20_000


@dataclass(frozen=True)
class Merges:
    """The merges of K components, in their order.

    Attributes
    ----------
    children : (K - 1, 2) int64 array
        Nodes that merge i joins into node K + i; nodes 0, ..., K - 1 are the components.
    costs : (K - 1,) array
        Nats per row.
    moments : Moments
        Of all 2 K - 1 nodes.
    """

    children: np.ndarray
    costs: np.ndarray
    moments: Moments


def find_merges(
    family: Family, moments: Moments, backend: Backend, background: int | None = None
) -> Merges:
    """Merge K components, the cheapest pair of neighbours first, until one is left.

    `moments` are those of `Family.moments_of`, with weights as masses. A `background` is what
    explains rows that belong nowhere, so it is merged last.
    """
    return _Merger(family, moments, backend, background).run()


class _Merger:
    def __init__(
        self, family: Family, moments: Moments, backend: Backend, background: int | None
    ) -> None:
        self.family = family
        self.backend = backend
        n = moments.mass.shape[0]
        self.n_leaves = self.n_nodes = n
        self.background = background
        self.shared = moments.mass @ moments.scatter / moments.mass.sum()
        self.nodes = Moments(
            *(np.concatenate([part, np.zeros((n - 1, *part.shape[1:]))]) for part in moments)
        )
        #: Weight times negative entropy of each node.
        self.scores = np.zeros(2 * n - 1)
        self.scores[:n] = moments.mass * family.negative_entropy(moments, self.shared)
        self.children = np.zeros((n - 1, 2), dtype=np.int64)
        self.costs = np.zeros(n - 1)

    def run(self) -> Merges:
        """Merge until one node is left."""
        live = np.arange(self.n_leaves)
        if self.background is not None:
            live = np.delete(live, self.background)
        phase = 0
        while live.shape[0] > 1:
            phase += 1
            live = self._merge_half(live, phase)
        if self.background is not None and live.shape[0]:
            last = np.array([[live[0], self.background]])
            self._join(last, self._costs_of(last))
        return self._in_order()

    def _merge_half(self, live: np.ndarray, phase: int) -> np.ndarray:
        """Merge until half of the live nodes are left, or one if all pairs are compared."""
        compares_all = live.shape[0] <= _ALL_PAIRS
        enough = 1 if compares_all else live.shape[0] // 2
        pairs = self._candidates(live, phase)
        costs = self._costs_of(pairs)
        if not compares_all:
            kept = _among_cheapest(pairs, costs, _MOST_NEIGHBOURS)
            pairs, costs = pairs[kept], costs[kept]
        n_live = live.shape[0]
        is_live = np.zeros(self.scores.shape[0], dtype=np.bool_)
        is_live[live] = True
        while n_live > enough and pairs.shape[0]:
            chosen = _cheapest_of_both(pairs, costs, self.n_nodes)
            joined = pairs[chosen]
            made = self._join(joined, costs[chosen])
            is_live[joined] = False
            is_live[made] = True
            n_live -= made.shape[0]
            pairs, costs = self._follow(pairs, costs, joined, made)
        return np.flatnonzero(is_live)

    def _follow(
        self, pairs: np.ndarray, costs: np.ndarray, joined: np.ndarray, made: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of what is left: a merged node has the neighbours of its parts."""
        becomes = np.arange(self.n_nodes)
        becomes[joined] = made[:, None]
        following = np.sort(becomes[pairs], axis=1)
        is_old = (following == pairs).all(axis=1)
        new = _distinct(following[~is_old & (following[:, 0] != following[:, 1])])
        return (
            np.concatenate([pairs[is_old], new]),
            np.concatenate([costs[is_old], self._costs_of(new)]),
        )

    def _join(self, pairs: np.ndarray, costs: np.ndarray) -> np.ndarray:
        """Merge disjoint pairs (n, 2) of nodes; returns the new nodes (n,)."""
        made = np.arange(self.n_nodes, self.n_nodes + pairs.shape[0])
        merged = merge_pairs(self.family.layout, self._at(pairs[:, 0]), self._at(pairs[:, 1]))
        for all_of_them, new in zip(self.nodes, merged, strict=True):
            all_of_them[made] = new
        self.scores[made] = self.scores[pairs].sum(axis=1) - costs
        self.children[made - self.n_leaves] = pairs
        self.costs[made - self.n_leaves] = costs
        self.n_nodes += pairs.shape[0]
        return made

    def _at(self, nodes: np.ndarray) -> Moments:
        return Moments(*(part[nodes] for part in self.nodes))

    def _costs_of(self, pairs: np.ndarray) -> np.ndarray:
        """What merges of pairs (n, 2) cost, (n,); never below zero, which rounding may reach."""
        costs = np.empty(pairs.shape[0])
        for start in range(0, pairs.shape[0], _PAIRS_AT_ONCE):
            some = pairs[start : start + _PAIRS_AT_ONCE]
            merged = merge_pairs(self.family.layout, self._at(some[:, 0]), self._at(some[:, 1]))
            after = merged.mass * self.family.negative_entropy(merged, self.shared)
            costs[start : start + _PAIRS_AT_ONCE] = self.scores[some].sum(axis=1) - after
        return np.maximum(costs, 0.0)

    def _candidates(self, live: np.ndarray, phase: int) -> np.ndarray:
        """Pairs (n, 2) of live nodes that may be merged, the smaller number first."""
        n = live.shape[0]
        if n <= _ALL_PAIRS:
            return np.stack([live[side] for side in np.triu_indices(n, 1)], axis=1)
        moments = self._at(live)
        prior = self.family.make_prior(moments, "none", float(n))
        state = MixtureState(self.family, moments, self.backend, prior, 1e-300)
        places, widths = state.places(), state.widths()
        found = []
        random = StepRandomness(0, phase)
        for number in range(_N_TREES):
            partition = draw_partition(
                places, _BLOCK_SIZE, 0.0, random.child(number), self.backend.operations, widths
            )
            for first in range(0, partition.n_blocks, BLOCKS_AT_ONCE):
                found.append(nearest_in_blocks(partition, first, places / widths))
        return np.asarray(live[_distinct(np.sort(np.concatenate(found), axis=1))])

    def _in_order(self) -> Merges:
        """All merges by rising cost, but none before those of its parts."""
        n = self.n_leaves
        heights = np.zeros(2 * n - 1)
        for merge, (a, b) in enumerate(self.children.tolist()):
            heights[n + merge] = max(self.costs[merge], heights[a], heights[b])
        order = np.argsort(heights[n:], kind="stable")
        number = np.arange(2 * n - 1)
        number[n + order] = np.arange(n, 2 * n - 1)
        nodes = np.concatenate([np.arange(n), n + order])
        children = np.sort(number[self.children[order]], axis=1)
        return Merges(children, self.costs[order], self._at(nodes))


def _distinct(pairs: np.ndarray) -> np.ndarray:
    """Pairs (n, 2) of non-negative integers without repetition, in order."""
    # One number per pair: to sort pairs as such takes ten times as long.
    base = int(pairs.max(initial=0)) + 1
    return np.stack(np.divmod(np.unique(pairs[:, 0] * base + pairs[:, 1]), base), axis=1)


def _among_cheapest(pairs: np.ndarray, costs: np.ndarray, most: int) -> np.ndarray:
    """Numbers of the pairs (n, 2) that are among the `most` cheapest of one of their members."""
    both = pairs.ravel(order="F")
    order = np.lexsort((np.tile(costs, 2), both))
    members = both[order]
    starts = np.flatnonzero(np.diff(members, prepend=-1))
    ranks = np.arange(members.shape[0])
    ranks -= np.repeat(starts, np.diff(starts, append=members.shape[0]))
    return np.unique(order[ranks < most] % pairs.shape[0])


def _cheapest_of_both(pairs: np.ndarray, costs: np.ndarray, n_nodes: int) -> np.ndarray:
    """Numbers of disjoint pairs (n, 2) that are the cheapest of both members; one at least."""
    least = np.full(n_nodes, np.inf)
    np.minimum.at(least, pairs.ravel(), np.repeat(costs, 2))
    found = np.flatnonzero((costs[:, None] == least[pairs]).all(axis=1))
    # Where costs are equal, a node may be in several: the first of them counts.
    first = np.full(n_nodes, costs.shape[0])
    np.minimum.at(first, pairs[found].ravel(), np.repeat(found, 2))
    return np.asarray(found[(first[pairs[found]] == found[:, None]).all(axis=1)])

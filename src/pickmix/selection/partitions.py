"""Random partitions of the components into small blocks of neighbours.

A random tree over points (the means of components) is split by random directions at random
quantiles until at most G points are left: its leaves are the blocks. Neighbours mostly share a
block, and every tree draws the borders elsewhere. A small share of the components changes places
with each other afterwards, so that any two may meet in a block and the chain over components is
ergodic. The same tree tells in which block a row without a chain state belongs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pickmix.compiled import kernel, part
from pickmix.selection.randomness import StepRandomness, Stream, uniform
from pickmix.threads import Threads

# A split puts between this share of the blocks and the rest on its first side.
_LEAST_QUANTILE = 0.3
# Nodes split one after another before the rest is handed to threads.
_FIRST_SPLITS = 15


@dataclass(frozen=True)
class RandomPartition:
    """Settings of `proposal="partition"`: random-partition Gibbs.

    Every visit draws a random partition of the components into blocks of neighbours and replaces
    the component of each row by a draw from its posterior within the row's block. No proposal is
    rejected, and what a visit costs does not depend on the number of components.

    Parameters
    ----------
    block_size : int, default=32
        Components per block at most (G).
    shuffle : float, default=0.02
        Share of the components that change places between blocks at random.
    relocate : bool or "auto", default="auto"
        Move components that are hardly needed to where rows are badly explained, early in a fit.
        "auto" does so unless the start was given.

    Examples
    --------
    >>> from pickmix import GaussianMixture, RandomPartition
    >>> mixture = GaussianMixture(n_components=1000, proposal=RandomPartition(block_size=16))
    """

    block_size: int = 32
    shuffle: float = 0.02
    relocate: bool | str = "auto"

    def __post_init__(self) -> None:
        if isinstance(self.block_size, bool) or not isinstance(self.block_size, int | np.integer):
            raise ValueError(f"block_size must be an integer >= 2, got {self.block_size!r}.")
        if not 2 <= self.block_size <= 4096:
            raise ValueError(f"block_size must lie in [2, 4096], got {self.block_size!r}.")
        if not 0.0 <= self.shuffle <= 1.0:
            raise ValueError(f"shuffle must lie in [0, 1], got {self.shuffle!r}.")
        if self.relocate not in (True, False, "auto"):
            raise ValueError(f"relocate must be True, False or 'auto', got {self.relocate!r}.")


@dataclass(frozen=True)
class Tree:
    """Splits of space: row x goes to the second child where directions[n] . x >= thresholds[n].

    children (n, 2): another node, or leaf number l as -1 - l. Without nodes there is one leaf.
    """

    directions: np.ndarray
    thresholds: np.ndarray
    children: np.ndarray
    root: int

    def leaf_of(self, rows: np.ndarray, threads: Threads) -> np.ndarray:
        """Leaf of each row (B, D), as (B,) int32."""
        leaves = np.zeros(rows.shape[0], dtype=np.int32)
        if self.thresholds.shape[0]:
            depth = 2.0 + math.log2(self.thresholds.shape[0])
            threads.run(
                _descend,
                rows.shape[0],
                rows.size * depth,
                rows,
                self.root,
                (self.directions, self.thresholds, self.children),
                leaves,
            )
        return leaves


@dataclass(frozen=True)
class Partition:
    """Blocks of components.

    Attributes
    ----------
    members : (K,) int32 array
        Components, block after block.
    offsets : (n_blocks + 1,) int64 array
        Block b holds members[offsets[b] : offsets[b + 1]].
    tree : Tree
        Its leaf b is block b.
    """

    members: np.ndarray
    offsets: np.ndarray
    tree: Tree

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return self.offsets.shape[0] - 1

    def position(self) -> np.ndarray:
        """Inverse of `members`, (K,) int32."""
        position = np.empty_like(self.members)
        position[self.members] = np.arange(self.members.shape[0], dtype=np.int32)
        return position

    def block_of_position(self) -> np.ndarray:
        """Block of each place in `members`, (K,) int32."""
        return np.repeat(np.arange(self.n_blocks, dtype=np.int32), np.diff(self.offsets))


def draw_partition(
    means: np.ndarray,
    block_size: int,
    shuffle: float,
    random: StepRandomness,
    threads: Threads,
    widths: np.ndarray | None = None,
    number: int = 0,
) -> Partition:
    """Draw a partition of the components at `means` (K, D) into blocks of at most `block_size`.

    `widths` (D,) are typical widths of a component, in which distances along the columns are
    measured; `number` tells apart the partitions of one step. Nothing else is random: a partition
    does not depend on where the chains stand.

    Examples
    --------
    >>> means = np.arange(8.0)[:, None]
    >>> partition = draw_partition(means, 4, 0.0, StepRandomness(0, 1), Threads())
    >>> [sorted(block.tolist()) for block in np.split(partition.members, partition.offsets[1:-1])]
    [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    key = StepRandomness(random.seed, random.step * 1024 + number).key(Stream.PARTITION)
    scales = np.ones(means.shape[1]) if widths is None else 1.0 / widths
    members, offsets, tree = grow_tree(means, block_size, key, threads, scales)
    if shuffle > 0.0:
        _exchange(members, shuffle, key)
    return Partition(members, offsets, tree)


def grow_tree(
    points: np.ndarray, leaf_size: int, key: np.uint64, threads: Threads, scales: np.ndarray
) -> tuple[np.ndarray, np.ndarray, Tree]:
    """Split points (n, D) until at most `leaf_size` are together.

    Directions are normal with the standard deviations `scales` (D,). Returns the points' numbers
    leaf by leaf, the leaves' offsets among them, and the tree.
    """
    n_points, n_features = points.shape
    n_leaves = -(-n_points // leaf_size)
    order = np.arange(n_points, dtype=np.int32)
    n_nodes = n_leaves - 1
    arrays = (
        np.empty((n_nodes, n_features)),
        np.empty(n_nodes),
        np.empty((n_nodes, 2), dtype=np.int32),
    )
    offsets = np.zeros(n_leaves + 1, dtype=np.int64)
    offsets[-1] = n_points
    # (first point, last point, first leaf, last leaf) of subtrees that are not split yet.
    pending = np.empty((_FIRST_SPLITS + 1, 4), dtype=np.int64)
    arguments = (points, order, np.empty(n_points), key, scales, offsets, arrays)
    n_pending = _split_widest(pending, *arguments)
    if n_leaves > n_pending:
        work = 20.0 * n_points * (n_features + 2)
        threads.run(_split_all, n_pending, work, pending, *arguments)
    return order, offsets, Tree(*arrays, root=int(_root(0, n_leaves, key)))


@part()
def _fill_normal(key, node, scales, direction):
    for d in range(direction.shape[0]):
        u = uniform(key, node, 2 * d + 1)
        v = uniform(key, node, 2 * d + 2)
        direction[d] = scales[d] * math.sqrt(-2.0 * math.log(1.0 - u)) * math.cos(2 * math.pi * v)


@part()
def _select(values, order, first, last, cut):
    """Reorder first..last so that the smallest values come before `cut` (Hoare's selection)."""
    low, high = first, last - 1
    while low < high:
        pivot = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        if cut <= j:
            high = j
        elif cut >= i:
            low = i
        else:
            break


@part()
def _second_half(first_leaf, last_leaf, key):
    """The leaf, among first_leaf..last_leaf, at which the second half of their subtree begins.

    The subtree's node is that number less one, so that every number below n_leaves - 1 names one
    node and threads need not ask each other.
    """
    n_leaves = last_leaf - first_leaf
    u = uniform(key, first_leaf + 2 * last_leaf, 0)
    share = _LEAST_QUANTILE + (1.0 - 2.0 * _LEAST_QUANTILE) * u
    return first_leaf + max(1, min(n_leaves - 1, round(share * n_leaves)))


@kernel()
def _root(first_leaf, last_leaf, key):
    """The node that leaves first_leaf..last_leaf hang from; -1 - leaf if there is but one."""
    if last_leaf - first_leaf == 1:
        return -1 - first_leaf
    return _second_half(first_leaf, last_leaf, key) - 1


@part()
def _split(first, last, first_leaf, last_leaf, points, order, values, key, scales, offsets, tree):
    """Split one subtree; returns the point and the leaf at which its second half begins."""
    directions, thresholds, children = tree
    middle = _second_half(first_leaf, last_leaf, key)
    node = middle - 1
    direction = directions[node]
    _fill_normal(key, node, scales, direction)
    for i in range(first, last):
        total = 0.0
        for d in range(direction.shape[0]):
            total += points[order[i], d] * direction[d]
        values[i] = total
    cut = first + (last - first) * (middle - first_leaf) // (last_leaf - first_leaf)
    _select(values, order, first, last, cut)
    # Halfway between the two sides.
    below = values[first]
    for i in range(first, cut):
        below = max(below, values[i])
    thresholds[node] = 0.5 * (below + values[cut])
    children[node, 0] = _root(first_leaf, middle, key)
    children[node, 1] = _root(middle, last_leaf, key)
    offsets[middle] = cut
    return cut, middle


@part()
def _put(tasks, place, first, last, first_leaf, last_leaf):
    # One by one: Numba takes seconds to compile what an assignment of arrays might complain of.
    tasks[place, 0] = first
    tasks[place, 1] = last
    tasks[place, 2] = first_leaf
    tasks[place, 3] = last_leaf


@kernel()
def _split_widest(pending, points, order, values, key, scales, offsets, tree):
    """Split the subtree with the most leaves, again and again; returns how many are left."""
    _put(pending, 0, 0, points.shape[0], 0, offsets.shape[0] - 1)
    n_pending = 1
    while n_pending < pending.shape[0]:
        widest = 0
        for task in range(1, n_pending):
            n_leaves = pending[task, 3] - pending[task, 2]
            if n_leaves > pending[widest, 3] - pending[widest, 2]:
                widest = task
        first, last, first_leaf, last_leaf = pending[widest]
        if last_leaf - first_leaf < 2:
            break
        cut, middle = _split(
            first, last, first_leaf, last_leaf, points, order, values, key, scales, offsets, tree
        )
        pending[widest, 1], pending[widest, 3] = cut, middle
        _put(pending, n_pending, cut, last, middle, last_leaf)
        n_pending += 1
    return n_pending


@kernel()
def _split_all(pending, points, order, values, key, scales, offsets, tree, start, stop):
    """Split the pending subtrees start..stop down to their leaves."""
    # A subtree of m leaves is at most m - 1 deep, and each level leaves one half waiting.
    waiting = np.empty((offsets.shape[0] + 1, 4), dtype=np.int64)
    for task in range(start, stop):
        for column in range(4):
            waiting[0, column] = pending[task, column]
        n_waiting = 1
        while n_waiting:
            n_waiting -= 1
            first, last, first_leaf, last_leaf = waiting[n_waiting]
            if last_leaf - first_leaf < 2:
                continue
            cut, middle = _split(
                first,
                last,
                first_leaf,
                last_leaf,
                points,
                order,
                values,
                key,
                scales,
                offsets,
                tree,
            )
            _put(waiting, n_waiting, cut, last, middle, last_leaf)
            _put(waiting, n_waiting + 1, first, cut, first_leaf, middle)
            n_waiting += 2


@kernel()
def _descend(rows, root, tree, leaves, start, stop):
    directions, thresholds, children = tree
    for i in range(start, stop):
        node = root
        while node >= 0:
            total = 0.0
            for d in range(rows.shape[1]):
                total += rows[i, d] * directions[node, d]
            node = children[node, 1 if total >= thresholds[node] else 0]
        leaves[i] = -1 - node


@kernel()
def _exchange(members, share, key):
    """Let about `share` of the members change places at random (Fisher and Yates)."""
    chosen = np.empty(members.shape[0], dtype=np.int64)
    n_chosen = 0
    for place in range(members.shape[0]):
        if uniform(key, place, 2**19) < share:
            chosen[n_chosen] = place
            n_chosen += 1
    for i in range(n_chosen - 1, 0, -1):
        j = int(uniform(key, i, 2**19 + 1) * (i + 1))
        a, b = chosen[i], chosen[min(j, i)]
        members[a], members[b] = members[b], members[a]


@kernel()
def group_rows(chain, rows, position, n_places, ends, grouped):
    """Order rows by the place of the component that their chains stand on.

    chain (N,), rows (B,) row numbers, position (K,) of components; grouped (B,) receives the row
    numbers, and those whose component stands at place p end at ends[p] (n_places,) of it.
    """
    ends[:] = 0
    for i in range(rows.shape[0]):
        ends[position[chain[rows[i]]]] += 1
    total = 0
    for place in range(n_places):
        total, ends[place] = total + ends[place], total
    for i in range(rows.shape[0]):
        place = position[chain[rows[i]]]
        grouped[ends[place]] = rows[i]
        ends[place] += 1

"""Random partitions of the components into small blocks of neighbours, and settings of selection.

A random tree over the components' means is split by random directions at random quantiles until at
most G points are left: its leaves are the blocks. Neighbours mostly share a block, and every tree
has other borders. A small share of the components is exchanged afterwards, so that any two may
share a block and the chain over components is ergodic. The tree also gives the block of a new row.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from pickmix.checks import check_restored
from pickmix.selection.randomness import StepRandomness, Stream, uniforms

LEAST_QUANTILE = 0.3  # Splits of a tree put at least this share of blocks on each side.
_EXCHANGE_DRAW = 2**19  # First draw of exchanges, beyond those of directions.


@dataclass(frozen=True)
class Tree:
    """Splits of space: row x goes to the second child where directions[n] . x >= thresholds[n].

    children (n, 2): another node, or leaf number l as -1 - l. Without nodes there is one leaf.
    """

    directions: np.ndarray
    thresholds: np.ndarray
    children: np.ndarray
    root: int

    @classmethod
    def unfilled(cls, n_nodes: int, n_features: int) -> Tree:
        children = np.empty((n_nodes, 2), dtype=np.int32)
        return cls(np.empty((n_nodes, n_features)), np.empty(n_nodes), children, -1)


@dataclass(frozen=True)
class Partition:
    """Blocks of components."""

    members: np.ndarray  # (K,) Components, block after block.
    offsets: np.ndarray  # (n_blocks + 1,) Block b holds members[offsets[b] : offsets[b + 1]].
    tree: Tree | None = None  # Its leaf b is block b. None if the blocks were not made by a tree.

    @classmethod
    def of_blocks(cls, members: np.ndarray, size: int) -> Partition:
        """Blocks of `size` members one after the other, the last one maybe smaller; no tree.

        >>> Partition.of_blocks(np.array([3, 1, 0, 4, 2]), 2).offsets
        array([0, 2, 4, 5])
        """
        members = np.asarray(members, dtype=np.int32)
        n_members = members.shape[0]
        offsets = np.minimum(np.arange(-(-n_members // size) + 1) * size, n_members)
        return cls(members, offsets.astype(np.int64))

    @classmethod
    def checked(cls, members: Any, offsets: Any, n_components: int) -> Partition:
        """A partition of all components that comes from a file."""
        like = np.arange(n_components, dtype=np.int32)
        members = check_restored("members", members, like)
        ends = np.asarray(offsets, dtype=np.int64)
        rises = ends.ndim == 1 and ends.size > 1 and (np.diff(ends) > 0).all()
        if not rises or ends[0] != 0 or ends[-1] != n_components:
            raise ValueError("offsets: expected a partition of the components, got others")
        if (np.sort(members) != like).any():
            raise ValueError("members: expected a partition of the components, got others")
        return cls(members, ends)

    @property
    def n_blocks(self) -> int:
        return int(self.offsets.shape[0]) - 1

    def members_of(self, blocks: np.ndarray) -> np.ndarray:
        """Members of some blocks (B, P), all of a row of them after each other, padded with -1.

        Block -1 has none.
        """
        sizes = np.diff(self.offsets)
        numbers = np.arange(sizes.max())
        places = np.minimum(self.offsets[blocks][..., None] + numbers, self.members.shape[0] - 1)
        within = numbers < np.where(blocks >= 0, sizes[blocks], 0)[..., None]
        found = np.where(within, self.members[places], -1)
        return found.reshape(blocks.shape[0], -1).astype(np.int32)

    def block_of_position(self) -> np.ndarray:
        """Block of each place in `members`, (K,) int32."""
        return np.repeat(np.arange(self.n_blocks, dtype=np.int32), np.diff(self.offsets))


def draw_partition(
    places: np.ndarray,
    block_size: int,
    shuffle: float,
    random: StepRandomness,
    backend: ModuleType,
    widths: np.ndarray | None = None,
) -> Partition:
    """Draw a partition of the components at positions (K, d) into blocks of at most `block_size`.

    Distances are measured in `widths` (d,), typical scales of a component. The partition does not
    depend on the chains; several partitions of one step are drawn with children of `random`.

    >>> from pickmix.kernels import numpy_kernels
    >>> places = np.arange(8.0)[:, None]
    >>> partition = draw_partition(places, 4, 0.0, StepRandomness(0, 1), numpy_kernels)
    >>> [sorted(block.tolist()) for block in np.split(partition.members, partition.offsets[1:-1])]
    [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    n_components, n_features = places.shape
    if n_components <= block_size:
        all_components = np.arange(n_components, dtype=np.int32)
        return Partition(all_components, np.array([0, n_components]), Tree.unfilled(0, n_features))
    key = random.key(Stream.PARTITION)
    scales = np.ones(n_features) if widths is None else 1.0 / widths
    members, offsets, tree = backend.grow_tree(places, block_size, key, scales)
    if shuffle > 0.0:
        _exchange(members, shuffle, key)
    return Partition(members, offsets, tree)


def root(first_leaf: int, last_leaf: int, key: np.uint64) -> int:
    """The node that leaves first_leaf..last_leaf hang from; -1 - leaf if there is but one."""
    n = last_leaf - first_leaf
    if n == 1:
        return -1 - first_leaf
    u = float(uniforms(key, np.array([first_leaf + 2 * last_leaf]), 1)[0, 0])
    middle = round((LEAST_QUANTILE + (1.0 - 2.0 * LEAST_QUANTILE) * u) * n)
    return first_leaf + max(1, min(n - 1, middle)) - 1


def _exchange(members: np.ndarray, share: float, key: np.uint64) -> None:
    """Exchange about `share` of the members at random (Fisher and Yates)."""
    drawn = uniforms(key, np.arange(members.shape[0]), 2, _EXCHANGE_DRAW)
    chosen = np.flatnonzero(drawn[:, 0] < share)
    for i in range(chosen.shape[0] - 1, 0, -1):
        a, b = chosen[i], chosen[min(int(drawn[i, 1] * (i + 1)), i)]
        members[a], members[b] = members[b], members[a]


@dataclass(frozen=True)
class RandomPartition:
    """Settings of `proposal="partition"`: random-partition Gibbs.

    Every visit draws a random partition of the components into blocks of neighbours and replaces
    the component of each row by a draw from its posterior within the row's block. No proposal is
    rejected, and the cost of a visit does not depend on the number of components.

    Parameters
    ----------
    block_size : int, default=32
        G, the most components per block.
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
class SearchSet:
    """Settings of `algorithm="tsaem"`: the components that a visit of a row evaluates.

    Parameters
    ----------
    n_neighbours : int, default=15
        Nearest components of each component that the row holds.
    n_explore : int, default=1
        Components drawn uniformly.
    all_pairs : bool, default=False
        Find the nearest by the distances of all K^2 pairs of means in every step, as in the paper's
        figures, instead of learning them during the fit.
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

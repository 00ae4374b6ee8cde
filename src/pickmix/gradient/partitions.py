"""Random partitions for the gradient engine: when they are drawn, and how steps use them.

Random-partition Gibbs: at one of the sum nodes that a row's tree reaches, the children are divided
into blocks, and the tree's choice there is drawn again among the block that holds it. For any fixed
blocks that is a Gibbs step, so it leaves p(tree | x) invariant; blocks, and the node that is
chosen, do not depend on where the chains stand. A plain mixture has one node, its root.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pickmix.data.rows import Batches
from pickmix.gradient.compilation import compiled
from pickmix.gradient.network import Network, Tables
from pickmix.kernels import numba_kernels
from pickmix.selection.partitions import Partition, RandomPartition, draw_partition
from pickmix.selection.randomness import StepRandomness

# A partition serves at least this many steps: they run in one compiled call.
_FEWEST_STEPS = 16
# Evaluations made by steps for each one that finds a location.
_EVALUATIONS_PER_LOCATION = 10


class Blocks(NamedTuple):
    """A partition of the s children for each of the n_slots choices of a tree."""

    #: Children of each block (n_slots, n_blocks, G). Where there are fewer than G, -1 comes first:
    #: the last place always holds a child, so that rounding in a draw cannot lead to none.
    members: jax.Array
    #: (n_slots, s).
    block_of: jax.Array


def trees_of_block(
    blocks: Blocks, current: jax.Array, uniforms: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Trees (B, G, n_slots) of the blocks that hold the `current` trees (B, n_slots).

    They differ from the current ones in one choice; which one, `uniforms` (B,) decide. Also whether
    a place of the block holds a tree at all, (B, G).
    """
    n_slots = current.shape[1]
    slot = jnp.minimum((uniforms * n_slots).astype(jnp.int32), n_slots - 1)
    choice = jnp.take_along_axis(current, slot[:, None], axis=1)[:, 0]
    members = blocks.members[slot, blocks.block_of[slot, choice]]
    is_here = jnp.arange(n_slots, dtype=jnp.int32) == slot[:, None]
    trees = jnp.where(is_here[:, None], jnp.maximum(members, 0)[:, :, None], current[:, None])
    return trees, members >= 0


class Partitions:
    """Draws the partitions of a fit, a new one for every pass over the data.

    The children of the root are divided by random trees over their locations. Those depend on the
    parameters alone, never on the chains, so that the chains stay exact. Below the root every sum
    node has children of its own: one partition for all nodes of a slot cannot respect distances, so
    it is drawn uniformly. So it is for families without locations.
    """

    def __init__(
        self, network: Network, settings: RandomPartition, batches: Batches, seed: int
    ) -> None:
        self.network = network
        self.shuffle = settings.shuffle
        self.seed = seed
        most = max(network.n_choices)
        self.n_blocks = -(-most // settings.block_size)
        #: Children in the largest block: G, or less if all blocks can do with less.
        self.block_size = -(-most // self.n_blocks)
        self.n_evaluations = network.n_children * network.location_draws
        # Short passes share a partition, lest drawing it takes longer than using it.
        by_pass = batches.n_rows * self.block_size
        n_passes = max(
            _FEWEST_STEPS / batches.n_batches,
            _EVALUATIONS_PER_LOCATION * self.n_evaluations / by_pass,
        )
        self.n_steps = math.ceil(n_passes) * batches.n_batches

    def number(self, step: int) -> int:
        """Number of the partition that step 1, 2, ... uses."""
        return (step - 1) // self.n_steps

    def steps_left(self, step: int) -> int:
        """Steps until the next partition, this one included."""
        return self.n_steps - (step - 1) % self.n_steps

    def draw(self, number: int, tables: Tables) -> Blocks:
        """Draw a partition: a function of its number, the seed and the parameters."""
        random = StepRandomness(self.seed, number)
        n_choices = self.network.n_choices
        # Slots with fewer children leave places and blocks empty.
        members = np.full((len(n_choices), self.n_blocks, self.block_size), -1, np.int32)
        block_of = np.zeros((len(n_choices), max(n_choices)), np.int32)
        for slot, n_children in enumerate(n_choices):
            points, shuffle = np.zeros((n_children, 1)), 1.0
            if slot == 0 and self.network.location_draws:
                points, shuffle = self._locations(tables), self.shuffle
            partition = draw_partition(
                points,
                self.block_size,
                shuffle,
                random.child(slot),
                numba_kernels,
            )
            block_of[slot, partition.members] = partition.block_of_position()
            _fill(members[slot], partition)
        return Blocks(jnp.asarray(members), jnp.asarray(block_of))

    def _locations(self, tables: Tables) -> np.ndarray:
        points = np.asarray(
            compiled(type(self.network).locations, self.network)(tables), np.float64
        )
        # A component may be fine where rows are and overflow elsewhere; any place will do for it.
        return np.nan_to_num(points, posinf=0.0, neginf=0.0)


def _fill(members: np.ndarray, partition: Partition) -> None:
    """Write a partition's blocks into the ends of the rows of members (n_blocks, G)."""
    sizes = np.diff(partition.offsets)
    used = members[: sizes.shape[0]]
    used[np.arange(members.shape[1]) >= members.shape[1] - sizes[:, None]] = partition.members

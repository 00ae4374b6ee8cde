"""Random partitions for the gradient engine: when they are drawn, and around which points."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pickmix.data.rows import Batches
from pickmix.gradient.blocks import Blocks
from pickmix.gradient.network import Network, Tables
from pickmix.selection.compiled_operations import CompiledOperations
from pickmix.selection.partitions import Partition, draw_partition
from pickmix.selection.randomness import StepRandomness
from pickmix.selection.settings import RandomPartition
from pickmix.threads import Threads

# A partition serves at least this many steps: they run in one compiled call.
_FEWEST_STEPS = 16
# Evaluations made by steps for each one that finds a location.
_EVALUATIONS_PER_LOCATION = 10


class Partitions:
    """Draws the partitions of a fit, a new one for every pass over the data.

    The children of the root are divided by random trees over their locations. Those depend on the
    parameters alone, never on the chains, so that the chains stay exact. Below the root every sum
    node has children of its own: one partition for all nodes of a slot cannot know who is near, so
    it is drawn uniformly. So it is for families that do not say where a component lies.

    Parameters
    ----------
    network : Network
    settings : RandomPartition
    batches : Batches
    seed : int
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
                CompiledOperations(Threads()),
            )
            block_of[slot, partition.members] = partition.block_of_position()
            _fill(members[slot], partition)
        return Blocks(jnp.asarray(members), jnp.asarray(block_of))

    def _locations(self, tables: Tables) -> np.ndarray:
        points = np.asarray(_compiled_locations(self.network)(tables), np.float64)
        # A component may be fine where rows are and overflow elsewhere; any place will do for it.
        return np.nan_to_num(points, posinf=0.0, neginf=0.0)


@lru_cache(maxsize=64)
def _compiled_locations(network: Network) -> Any:
    return jax.jit(network.locations)


def _fill(members: np.ndarray, partition: Partition) -> None:
    """Write a partition's blocks into the ends of the rows of members (n_blocks, G)."""
    sizes = np.diff(partition.offsets)
    used = members[: sizes.shape[0]]
    used[np.arange(members.shape[1]) >= members.shape[1] - sizes[:, None]] = partition.members

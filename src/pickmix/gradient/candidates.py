"""The trees that a step may select: candidates of proposals, and blocks of random partitions.

A row's chain, and what a proposal learns of it, change only when the row is visited. So the
candidates of all steps up to a row's next visit can be drawn before the first of them is made.
Proposals see each slot of a row as a row of its own, with the children of a sum node to choose
from: the candidate tree is the product of independent choices.

Random-partition Gibbs: at one of the sum nodes that a row's tree reaches, the children are divided
into blocks, and the tree's choice there is drawn again among the block that holds it. For any fixed
blocks that is a Gibbs step, so it leaves p(tree | x) invariant; blocks, and the node that is
chosen, do not depend on where the chains stand. A plain mixture has one node, its root.
"""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pickmix.data.rows import Batches
from pickmix.gradient.compilation import compiled
from pickmix.gradient.network import Network, Tables, shape_of
from pickmix.kernels import numba_kernels
from pickmix.kernels.numba_kernels.stores import Table
from pickmix.selection.partitions import Partition, RandomPartition, draw_partition
from pickmix.selection.proposals import Proposal, UniformProposal, propose_checked
from pickmix.selection.randomness import StepRandomness, Stream

# A partition serves at least this many steps: they run in one compiled call.
_FEWEST_STEPS = 16
# Evaluations made by steps for each one that finds a location.
_EVALUATIONS_PER_LOCATION = 10


class TreeProposal:
    """A proposal for trees, made of one for single choices.

    Slots with equally many children (`n_choices`) share one proposal; if there are several numbers,
    each has a copy of it.
    """

    def __init__(
        self,
        proposal: Proposal,
        n_rows: int,
        n_choices: tuple[int, ...],
        n_draws: int,
        seed: int,
        dtype: np.dtype,
    ) -> None:
        self.proposal = proposal
        self.n_rows = n_rows
        self.n_slots = len(n_choices)
        self.n_draws = n_draws
        self.seed = seed
        self.dtype = dtype
        self._groups: list[_Group] = []
        for number, n_children in enumerate(dict.fromkeys(n_choices)):
            slots = np.flatnonzero(np.equal(n_choices, n_children))
            shared = copy.copy(proposal) if number else proposal
            shared.table_type = Table
            shared.start(n_rows * slots.shape[0], n_children)
            self._groups.append(_Group(shared, slots))

    @property
    def is_fixed(self) -> bool:
        """Whether q never changes, so that no step has to wait for another one."""
        return type(self.proposal) is UniformProposal

    @property
    def learns(self) -> bool:
        """Whether the proposal wants to see chain states."""
        return type(self.proposal).observe is not Proposal.observe

    def propose(
        self, rows: np.ndarray, current: np.ndarray, n_draws: int, first_draw: int, step: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Candidates (B, n_draws, n_slots), log_q (B, n_draws) and log_q_current (B,)."""
        n_rows = rows.shape[0]
        candidates = np.empty((n_rows, n_draws, self.n_slots), np.int32)
        log_q = np.zeros((n_rows, n_draws))
        log_q_current = np.zeros(n_rows)
        random = StepRandomness(self.seed, step)
        for number, (proposal, slots) in enumerate(self._groups):
            shape = (n_rows, slots.shape[0])
            drawn, slot_log_q, slot_log_q_current = propose_checked(
                proposal,
                _places(rows, slots),
                np.ascontiguousarray(current[:, slots], dtype=np.int32).ravel(),
                n_draws,
                first_draw,
                random.child(number) if number else random,
            )
            candidates[:, :, slots] = drawn.reshape(*shape, n_draws).swapaxes(1, 2)
            log_q += slot_log_q.reshape(*shape, n_draws).sum(axis=1)
            log_q_current += slot_log_q_current.reshape(shape).sum(axis=1)
        return candidates, log_q.astype(self.dtype), log_q_current.astype(self.dtype)

    def propose_again(
        self, rows: jax.Array, current: jax.Array, draw: int, step: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Propose from inside a compiled step, for draws that depend on the state before them."""
        n_rows = rows.shape[0]
        results = (
            shape_of((n_rows, 1, self.n_slots), np.dtype(np.int32)),
            shape_of((n_rows, 1), self.dtype),
            shape_of((n_rows,), self.dtype),
        )

        def propose(
            rows: jax.Array, current: jax.Array, step: jax.Array
        ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            # Padding rows lie past the end of the data; whatever they get is dropped.
            real = np.minimum(np.asarray(rows), self.n_rows - 1)
            return self.propose(real, np.asarray(current), 1, draw, int(step))

        drawn: tuple[jax.Array, jax.Array, jax.Array] = jax.pure_callback(
            propose, results, rows, current, step
        )
        return drawn

    def content(self) -> dict[str, Any]:
        """What the proposals have learnt."""
        return {"groups": [group.proposal.content() for group in self._groups]}

    def restore(self, content: dict[str, Any]) -> None:
        """Continue with what others have learnt."""
        for group, learnt in zip(self._groups, content["groups"], strict=True):
            group.proposal.restore(learnt)

    def uniforms(self, rows: np.ndarray, step: int) -> np.ndarray:
        """Uniforms (B, M) for acceptance."""
        random = StepRandomness(self.seed, step)
        return random.uniforms(Stream.ACCEPTANCE, rows, self.n_draws).astype(self.dtype)

    def observe(self, rows: np.ndarray, states: np.ndarray, step_size: float) -> None:
        """Let the proposal learn from states (B, M, n_slots)."""
        for proposal, slots in self._groups:
            by_place = states[:, :, slots].swapaxes(1, 2).reshape(-1, self.n_draws)
            proposal.observe(_places(rows, slots), np.ascontiguousarray(by_place), step_size)


class _Group(NamedTuple):
    """A proposal, and the slots (n,) of a tree that it draws for."""

    proposal: Proposal
    slots: np.ndarray


def _places(rows: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """Number of each of a group's slots of each row, (B * n,)."""
    places: np.ndarray = rows[:, None] * slots.shape[0] + np.arange(slots.shape[0])
    return places.ravel()


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
                points, self.block_size, shuffle, random.child(slot), numba_kernels
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

"""Blocks of children inside compiled steps: the trees of a block, and their posterior.

Random-partition Gibbs: at one of the sum nodes that a row's tree reaches, the children are divided
into blocks, and the tree's choice there is drawn again among the block that holds it. For any fixed
blocks that is a Gibbs step, so it leaves p(tree | x) invariant; blocks, and the place that is
looked at, do not depend on where the chains stand. A plain mixture has one place, its component.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp


class Blocks(NamedTuple):
    """A partition of the s children for each of the n_slots choices of a tree.

    Attributes
    ----------
    members : (n_slots, n_blocks, G) int array
        Children of each block. Where there are fewer than G, -1 comes first: the last place always
        holds a child, so that rounding in a draw cannot lead to none.
    block_of : (n_slots, s) int array
    """

    members: jax.Array
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


def posterior_in_block(scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Weights (B, G) that sum to one from log-scores (B, G), and the log of what they sum to."""
    total = logsumexp(scores, axis=1)
    return jnp.exp(scores - total[:, None]), total

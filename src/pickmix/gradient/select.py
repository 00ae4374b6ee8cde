"""Selection rules inside compiled steps: which trees each row of a batch learns from.

All of them read a frozen model, move the rows' chains and return pairs of rows and trees.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pickmix.gradient.blocks import posterior_in_block, trees_of_block
from pickmix.gradient.network import Network, Tables, draw_columns, gather
from pickmix.gradient.state import Batch, Options, State, log_weights_of


class Evaluation(NamedTuple):
    """Log-joints (B, C) of C trees per row, and what a gradient there wants to remember."""

    log_joint: jax.Array
    remembered: Any

    def pick(self, column: int) -> Evaluation:
        """One of the C trees of every row."""
        picked: Evaluation = jax.tree.map(lambda values: values[:, column], self)
        return picked


def evaluate(
    network: Network, tables: Tables, log_weights: jax.Array, trees: jax.Array, x: jax.Array
) -> Evaluation:
    """log p(x_i, trees[i, j]) for trees (B, C, n_slots)."""
    n_rows, n_candidates = trees.shape[:2]
    flat = trees.reshape(n_rows * n_candidates, -1)
    parameters = network.unpack(gather(tables, network.rows(flat)))
    repeated = jnp.repeat(x, n_candidates, axis=0)
    density, remembered = network.evaluate(parameters, flat, repeated)
    values = Evaluation(density + log_weights[flat[:, 0]], remembered)
    by_row: Evaluation = jax.tree.map(
        lambda v: v.reshape(n_rows, n_candidates, *v.shape[1:]), values
    )
    return by_row


class Selection(NamedTuple):
    """Pairs of rows and trees that a gradient step is made of, and where the chains went.

    Attributes
    ----------
    trees : (B, C, n_slots) int array
    weights : (B, C) array
        They sum to one for each row.
    remembered : arrays (B, C, ...) or None
        What a gradient wants to know of the trees' evaluation; None if it must look again.
    states : (B, M, n_slots) int array
        The chains' states, the last one to stay.
    log_joint : (B,) array
        log p(x, tree) at the last state.
    acceptance : (B,) array
        Mean over moves.
    sound : (B,) bool array
        Whether all values that the selection rests on are finite.
    """

    trees: jax.Array
    weights: jax.Array
    remembered: Any
    states: jax.Array
    log_joint: jax.Array
    acceptance: jax.Array
    sound: jax.Array


def select(
    network: Network, options: Options, state: State, batch: Batch, x: jax.Array
) -> Selection:
    """Run the chains of the batch for M moves: the S-step, Algorithm 1's loop over i and j."""
    log_weights = log_weights_of(state.root)
    # Set z^0_{i,t} := z^M_{i,t-1}.
    current = state.chain[batch.rows]
    candidates, log_q, log_q_current = batch.candidates, batch.log_q, batch.log_q_current

    def look(trees: jax.Array) -> Evaluation:
        evaluation = evaluate(network, state.tables, log_weights, trees, x)
        # What there is to remember of a tree's last visit is gone: a gradient must look again.
        return evaluation._replace(remembered=None) if options.reuse_log_joint else evaluation

    if options.reuse_log_joint:
        now = Evaluation(state.log_joint[batch.rows], None)
        evaluated = look(candidates)
    else:
        # log p(x, z_bar) at today's parameters, together with the candidates'.
        both = look(jnp.concatenate([current[:, None], candidates], axis=1))
        now = both.pick(0)
        evaluated = jax.tree.map(lambda values: values[:, 1:], both)
    states, evaluations = [], []
    acceptance = jnp.zeros(current.shape[0], x.dtype)
    for draw in range(options.n_samples):
        column = draw if options.propose_again is None else 0
        if draw and options.propose_again is not None:
            # Sample z ~ q(z | z_bar), where z_bar is known only now.
            candidates, log_q, log_q_current = options.propose_again(
                batch.rows, current, draw, batch.step
            )
            evaluated = look(candidates)
        # Compute alpha(z_bar, z); accept z or stay at z_bar.
        then = evaluated.pick(column)
        log_ratio = batch.beta * (then.log_joint - now.log_joint)
        log_ratio = log_ratio + log_q_current - log_q[:, column]
        alpha = jnp.exp(jnp.minimum(log_ratio, 0.0))
        acceptance = acceptance + alpha
        accepted = batch.uniforms[:, draw] < alpha
        current = _choose(accepted, candidates[:, column], current)
        now = _choose(accepted, then, now)
        log_q_current = jnp.where(accepted, log_q[:, column], log_q_current)
        states.append(current)
        evaluations.append(now)
    # Set z_{i,t} := (z^1_{i,t}, ..., z^M_{i,t}).
    together = jax.tree.map(lambda *values: jnp.stack(values, axis=1), *evaluations)
    sound = jnp.all(jnp.isfinite(together.log_joint), axis=1)
    trees = jnp.stack(states, axis=1)
    return Selection(
        trees,
        _equal_weights(trees, x),
        together.remembered,
        trees,
        now.log_joint,
        acceptance / options.n_samples,
        sound,
    )


def _choose(accepted: jax.Array, new: Any, old: Any) -> Any:
    """Take `new` where accepted (B,), else `old`, in every array (B, ...)."""
    return jax.tree.map(
        lambda a, b: jnp.where(accepted.reshape(-1, *[1] * (a.ndim - 1)), a, b), new, old
    )


def _equal_weights(trees: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.full(trees.shape[:2], 1.0 / trees.shape[1], x.dtype)


def select_in_blocks(
    network: Network, options: Options, state: State, batch: Batch, x: jax.Array
) -> Selection:
    """Move each chain within its block, and weigh all trees of the block by their posterior.

    If a chain follows p(tree | x), the weights' expectation is p(tree | x) (Rao and Blackwell).
    """
    assert state.blocks is not None
    current = jnp.take(state.chain, batch.rows, axis=0, mode="clip")
    trees, is_tree = trees_of_block(state.blocks, current, batch.uniforms[:, 0])
    evaluation = evaluate(network, state.tables, log_weights_of(state.root), trees, x)
    scores = jnp.where(is_tree, batch.beta * evaluation.log_joint, -jnp.inf)
    weights, total = posterior_in_block(scores)
    drawn = draw_columns(scores, batch.uniforms[:, 1:])
    return Selection(
        trees,
        weights,
        evaluation.remembered,
        jnp.take_along_axis(trees, drawn[:, :, None], axis=1),
        jnp.take_along_axis(evaluation.log_joint, drawn, axis=1)[:, 0],
        jnp.ones_like(total),
        jnp.isfinite(total),
    )


def select_exactly(
    network: Network, options: Options, state: State, batch: Batch, x: jax.Array
) -> Selection:
    """Draw M trees for each row from the posterior over all."""
    log_weights = log_weights_of(state.root)
    trees = network.draw(state.tables, log_weights, x, batch.uniforms, batch.beta)
    nothing, ones = jnp.zeros(x.shape[0], x.dtype), jnp.ones(x.shape[0], x.dtype)
    return Selection(
        trees, _equal_weights(trees, x), None, trees, nothing, ones, jnp.ones_like(ones, bool)
    )


SELECTION_RULES = {"mhsaem": select, "partition": select_in_blocks, "mcsaem": select_exactly}

"""One step of the paper's Algorithm 1 with gradients, and the dense steps it is compared with.

All functions are pure and meant to be compiled together: `(state, batch) -> (state, info)`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import compress

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from pickmix.gradient.adam import dense_update, row_update, sum_duplicates
from pickmix.gradient.network import Network, Tables, gather
from pickmix.gradient.select import SELECTION_RULES
from pickmix.gradient.state import Batch, Info, Options, Root, State, log_weights_of


def selection_step(
    network: Network, options: Options, data: jax.Array, state: State, batch: Batch
) -> tuple[State, Info]:
    """Select trees, then one gradient step on the rows of parameters that they touch."""
    x = _rows(options, data, batch)
    selection = SELECTION_RULES[options.algorithm](network, options, state, batch, x)
    n_rows, n_pairs = selection.trees.shape[:2]
    trees = selection.trees.reshape(n_rows * n_pairs, -1)
    # Rows that fill the batch up lie beyond the data: they visit nobody and are dropped. So are
    # trees that weigh nothing, whose density may have no gradient.
    real = batch.rows < data.shape[0]
    is_pair = (real[:, None] & (selection.weights > 0.0)).reshape(-1)
    pair_weights = (batch.weights[:, None] * selection.weights).reshape(-1)
    pair_weights = jnp.where(is_pair, pair_weights, 0.0)

    # Gradients with respect to the gathered rows: nothing of the size of a table.
    rows = network.rows(trees)
    parameters = network.unpack(gather(state.tables, rows))
    if selection.remembered is None:
        remembered = network.evaluate(parameters, trees, jnp.repeat(x, n_pairs, axis=0))[1]
    else:
        remembered = jax.tree.map(
            lambda values: values.reshape(n_rows * n_pairs, *values.shape[2:]),
            selection.remembered,
        )
    gradients = network.gradient(parameters, trees, remembered, -pair_weights)
    visited = [
        sum_duplicates(
            jnp.where(is_pair[:, None], row, table.shape[0]).reshape(-1),
            jnp.where(is_pair[:, None, None], gradient, 0.0).reshape(-1, table.shape[1]),
            table.shape[0],
        )
        for row, gradient, table in compress(
            zip(rows, network.pack(gradients), state.tables, strict=True), network.learns
        )
    ]
    shares = jnp.zeros_like(state.root.logits).at[trees[:, 0]].add(pair_weights)
    clip, keep = _clip_and_check([group.gradient for group in visited], options.gradient_clip)
    keep = keep & jnp.all(selection.sound | ~real)
    learning = compress(state.tables, network.learns)
    tables, adams = [], []
    for table, adam, group in zip(learning, state.adams, visited, strict=True):
        if options.gradient_clip is not None:
            group = group._replace(gradient=clip * group.gradient)
        if options.row_adam:
            table, adam = row_update(table, adam, group, batch.rate, keep)
        else:
            dense = jnp.zeros_like(table).at[group.rows].set(group.gradient, mode="drop")
            table, adam = dense_update(table, adam, dense, batch.rate, keep)
        tables.append(table)
        adams.append(adam)
    root = _update_root(state.root, shares, clip, batch, keep, options)
    moved = jnp.where(keep, batch.rows, data.shape[0])
    chain = state.chain.at[moved].set(selection.states[:, -1], mode="drop")
    last = state.log_joint
    if options.reuse_log_joint:
        last = last.at[moved].set(selection.log_joint, mode="drop")
    accepted = jnp.sum(jnp.where(real & keep, selection.acceptance, 0.0))
    info = Info(accepted, jnp.logical_not(keep), selection.states)
    learnt = with_fixed(network, state.tables, tables)
    return State(learnt, tuple(adams), root, chain, last, state.blocks), info


def dense_step(
    network: Network, options: Options, data: jax.Array, state: State, batch: Batch
) -> tuple[State, Info]:
    """Gradient step on all parameters: "sgd" on log p(x), "em" with exact responsibilities.

    The gradient of (1 / beta) log sum_z p(x, z)^beta is the mean of grad log p(x, z) under the
    responsibilities p(z | x)^beta: EM's, frozen for the step. At beta = 1 it is that of log p(x).
    """
    x = _rows(options, data, batch)

    def objective(
        learning: Tables, logits: jax.Array
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        log_weights = jax.nn.log_softmax(logits)
        tables = with_fixed(network, state.tables, learning)
        scores = batch.beta * log_weights + network.log_density_all(tables, x, batch.beta)
        total = logsumexp(scores, axis=1)
        return -jnp.sum(batch.weights * total) / batch.beta, (scores, total)

    learning = tuple(compress(state.tables, network.learns))
    (value, (scores, total)), gradients = jax.value_and_grad(objective, argnums=0, has_aux=True)(
        learning, state.root.logits
    )
    shares = batch.weights @ jnp.exp(scores - total[:, None])
    clip, keep = _clip_and_check(list(gradients), options.gradient_clip)
    keep = keep & jnp.isfinite(value)
    updates = [
        dense_update(table, adam, clip * gradient, batch.rate, keep)
        for table, adam, gradient in zip(learning, state.adams, gradients, strict=True)
    ]
    root = _update_root(state.root, shares, clip, batch, keep, options)
    tables, adams = zip(*updates, strict=True)
    info = Info(jnp.zeros((), x.dtype), jnp.logical_not(keep), jnp.zeros_like(batch.candidates))
    learnt = with_fixed(network, state.tables, tables)
    return State(learnt, adams, root, state.chain, state.log_joint, state.blocks), info


def _rows(options: Options, data: jax.Array, batch: Batch) -> jax.Array:
    """Rows (B, D) of a batch, with the noise that was drawn for them."""
    rows = jnp.take(data, batch.rows, axis=0, mode="clip")
    return rows + batch.noise if options.noise else rows


def with_fixed(network: Network, tables: Tables, learnt: Iterable[jax.Array]) -> Tables:
    """All tables: new ones where the network learns, else those that were there."""
    new = iter(learnt)
    return tuple(
        next(new) if learns else table for table, learns in zip(tables, network.learns, strict=True)
    )


def _clip_and_check(
    gradients: list[jax.Array], largest: float | None
) -> tuple[jax.Array, jax.Array]:
    """Return the factor that limits the gradient's norm, and whether the norm is finite."""
    square = sum(jnp.sum(gradient * gradient) for gradient in gradients)
    assert isinstance(square, jax.Array)
    keep = jnp.isfinite(square)
    if largest is None:
        return jnp.ones_like(square), keep
    return jnp.minimum(1.0, largest / jnp.maximum(jnp.sqrt(square), 1e-30)), keep


def _update_root(
    root: Root, shares: jax.Array, clip: jax.Array, batch: Batch, keep: jax.Array, options: Options
) -> Root:
    """Move the root's weights towards the batch's `shares` (s,) of its children."""
    log_weights = log_weights_of(root)
    if options.closed_form_weights:
        weights = jnp.exp(log_weights)
        mixed = weights + batch.gamma * (shares - jnp.sum(shares) * weights)
        # A child that batches miss keeps a weight at which it can still be selected.
        floor = 1e-4 / shares.shape[0]
        logits = jnp.where(keep, jnp.log(jnp.maximum(mixed, floor)), root.logits)
        return Root(logits, root.adam)
    # The gradient of the log-likelihood is e_z - pi, summed over pairs.
    gradient = clip * (jnp.sum(shares) * jnp.exp(log_weights) - shares)
    logits, adam = dense_update(root.logits[None], root.adam, gradient[None], batch.rate, keep)
    return Root(logits[0], adam)

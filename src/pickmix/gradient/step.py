"""One step of the paper's Algorithm 1 with gradients, and the dense steps it is compared with.

All functions are pure and meant to be compiled together: `(state, batch) -> (state, info)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from pickmix.gradient.adam import (
    Adam,
    dense_update,
    row_update,
    sum_duplicates,
)
from pickmix.gradient.network import Network, Tables, gather


class Root(NamedTuple):
    """Weights of the root: logits, whose moments `adam` holds; with closed form, log-masses."""

    logits: jax.Array
    adam: Adam


class State(NamedTuple):
    """What the next step needs.

    Attributes
    ----------
    tables : tuple of (R, P) arrays
    adams : tuple of Adam
    root : Root
    chain : (N, n_slots) int array
        The tree that each row's chain stands on.
    log_joint : (N,) array, or empty
        log p(x, tree) at the row's last visit, if it is to be reused.
    """

    tables: Tables
    adams: tuple[Adam, ...]
    root: Root
    chain: jax.Array
    log_joint: jax.Array


class Batch(NamedTuple):
    """What one step is given: rows, draws made ahead, and the schedules' values.

    Attributes
    ----------
    rows : (B,) int array
        Numbers beyond the data fill the batch up.
    weights : (B,) array
        Weight of each row in the objective; zero for rows that fill up.
    candidates : (B, M, n_slots) int array
    log_q, log_q_current : (B, M), (B,) arrays
        log q of the candidates, and of the current tree as the first draw sees it.
    uniforms : (B, M) or (B, M, n_slots) array
        For acceptance, or for draws from the posterior.
    beta, rate, gamma : scalars
        Inverse temperature, learning rate, step size of closed-form weights.
    step : int scalar
    """

    rows: jax.Array
    weights: jax.Array
    candidates: jax.Array
    log_q: jax.Array
    log_q_current: jax.Array
    uniforms: jax.Array
    beta: jax.Array
    rate: jax.Array
    gamma: jax.Array
    step: jax.Array


class Info(NamedTuple):
    """What a step tells: summed acceptance, whether it was refused, the chain states (B, M, S)."""

    acceptance: jax.Array
    refused: jax.Array
    states: jax.Array


#: (rows, current trees (B, S), draw, step) -> candidates (B, 1, S), log_q (B, 1) and log q of the
#: current trees (B,)
ProposeAgain = Callable[
    [jax.Array, jax.Array, int, jax.Array], tuple[jax.Array, jax.Array, jax.Array]
]


@dataclass(frozen=True)
class Options:
    """What a step does, fixed when it is compiled.

    Attributes
    ----------
    algorithm : {"mhsaem", "mcsaem", "em", "sgd"}
    n_samples : int
        M.
    row_adam : bool
        Adam on the visited rows only, instead of on all.
    closed_form_weights : bool
    reuse_log_joint : bool
    gradient_clip : float or None
        Largest norm of the gradient.
    propose_again : callable or None
        For proposals that depend on the current tree: draws all candidates but the first.
    """

    algorithm: str
    n_samples: int = 1
    row_adam: bool = True
    closed_form_weights: bool = False
    reuse_log_joint: bool = False
    gradient_clip: float | None = None
    propose_again: ProposeAgain | None = None


def log_weights_of(root: Root) -> jax.Array:
    """Log-weights (s,) of the root's children."""
    return jax.nn.log_softmax(root.logits)


class Evaluation(NamedTuple):
    """Log-joints (B, C) of C trees per row, and what a gradient there wants to remember."""

    log_joint: jax.Array
    remembered: Any

    def pick(self, column: int) -> Evaluation:
        """One of the C trees of every row."""
        return jax.tree.map(lambda values: values[:, column], self)


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
    return jax.tree.map(lambda v: v.reshape(n_rows, n_candidates, *v.shape[1:]), values)


def select(
    network: Network, options: Options, state: State, batch: Batch, x: jax.Array
) -> tuple[jax.Array, Evaluation, jax.Array]:
    """Run the chains of the batch for M moves: the S-step, Algorithm 1's loop over i and j.

    Returns the states (B, M, n_slots), their evaluations, and acceptance probabilities summed
    over draws (B,).
    """
    log_weights = log_weights_of(state.root)
    # Set z^0_{i,t} := z^M_{i,t-1}.
    current = state.chain[batch.rows]
    candidates, log_q, log_q_current = batch.candidates, batch.log_q, batch.log_q_current

    def look(trees):
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
    return jnp.stack(states, axis=1), together, acceptance


def _choose(accepted: jax.Array, new: Any, old: Any) -> Any:
    """Take `new` where accepted (B,), else `old`, in every array (B, ...)."""
    return jax.tree.map(
        lambda a, b: jnp.where(accepted.reshape(-1, *[1] * (a.ndim - 1)), a, b), new, old
    )


def selection_step(
    network: Network, options: Options, data: jax.Array, state: State, batch: Batch
) -> tuple[State, Info]:
    """Select trees, then one gradient step on the rows of parameters that they touch."""
    x = jnp.take(data, batch.rows, axis=0, mode="clip")
    if options.algorithm == "mhsaem":
        states, evaluation, acceptance = select(network, options, state, batch, x)
    else:
        log_weights = log_weights_of(state.root)
        states = network.draw(state.tables, log_weights, x, batch.uniforms, batch.beta)
        evaluation = Evaluation(jnp.zeros(states.shape[:2], x.dtype), None)
        acceptance = jnp.full(x.shape[0], float(options.n_samples), x.dtype)
    n_rows, n_samples = states.shape[:2]
    trees = states.reshape(n_rows * n_samples, -1)
    pair_weights = jnp.repeat(batch.weights / n_samples, n_samples)

    # Gradients with respect to the gathered rows: nothing of the size of a table.
    rows = network.rows(trees)
    parameters = network.unpack(gather(state.tables, rows))
    if evaluation.remembered is None:
        remembered = network.evaluate(parameters, trees, jnp.repeat(x, n_samples, axis=0))[1]
    else:
        remembered = jax.tree.map(
            lambda values: values.reshape(n_rows * n_samples, *values.shape[2:]),
            evaluation.remembered,
        )
    gradients = network.gradient(parameters, trees, remembered, -pair_weights)
    # Rows that fill the batch up lie beyond the data: they visit nobody and are dropped.
    real = batch.rows < data.shape[0]
    is_pair = jnp.repeat(real, n_samples)[:, None]
    visited = [
        sum_duplicates(
            jnp.where(is_pair, row, table.shape[0]).reshape(-1),
            gradient.reshape(-1, table.shape[1]),
            table.shape[0],
        )
        for row, gradient, table in zip(rows, network.pack(gradients), state.tables, strict=True)
    ]
    shares = jnp.zeros_like(state.root.logits).at[trees[:, 0]].add(pair_weights)
    clip, keep = _clip_and_check([group.gradient for group in visited], options.gradient_clip)
    keep = keep & jnp.all(jnp.isfinite(evaluation.log_joint) | ~real[:, None])
    tables, adams = [], []
    for table, adam, group in zip(state.tables, state.adams, visited, strict=True):
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
    chain = state.chain.at[moved].set(states[:, -1], mode="drop")
    last = state.log_joint
    if options.reuse_log_joint:
        last = last.at[moved].set(evaluation.log_joint[:, -1], mode="drop")
    accepted = jnp.sum(jnp.where(real & keep, acceptance, 0.0)) / n_samples
    info = Info(accepted, jnp.logical_not(keep), states)
    return State(tuple(tables), tuple(adams), root, chain, last), info


def dense_step(
    network: Network, options: Options, data: jax.Array, state: State, batch: Batch
) -> tuple[State, Info]:
    """Gradient step on all parameters: "sgd" on log p(x), "em" with exact responsibilities.

    The gradient of (1 / beta) log sum_z p(x, z)^beta is the mean of grad log p(x, z) under the
    responsibilities p(z | x)^beta: EM's, frozen for the step. At beta = 1 it is that of log p(x).
    """
    x = jnp.take(data, batch.rows, axis=0, mode="clip")

    def objective(tables, logits):
        log_weights = jax.nn.log_softmax(logits)
        scores = batch.beta * log_weights + network.log_density_all(tables, x, batch.beta)
        total = logsumexp(scores, axis=1)
        return -jnp.sum(batch.weights * total) / batch.beta, (scores, total)

    (value, (scores, total)), gradients = jax.value_and_grad(objective, argnums=0, has_aux=True)(
        state.tables, state.root.logits
    )
    shares = batch.weights @ jnp.exp(scores - total[:, None])
    clip, keep = _clip_and_check(list(gradients), options.gradient_clip)
    keep = keep & jnp.isfinite(value)
    updates = [
        dense_update(table, adam, clip * gradient, batch.rate, keep)
        for table, adam, gradient in zip(state.tables, state.adams, gradients, strict=True)
    ]
    root = _update_root(state.root, shares, clip, batch, keep, options)
    tables, adams = zip(*updates, strict=True)
    info = Info(jnp.zeros((), x.dtype), jnp.logical_not(keep), jnp.zeros_like(batch.candidates))
    return State(tables, adams, root, state.chain, state.log_joint), info


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

"""The paper's Algorithm 1 with gradients, and the dense steps it is compared with.

A step is a pure function `(state, batch) -> (state, info)`. Its S-step is a selection rule: it
reads a frozen model, moves the rows' chains and returns pairs of rows and trees. Then Adam moves
the parameters of the selected trees. `make_chunk` compiles many steps into one call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from itertools import compress
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from pickmix.gradient.adam import Adam, dense_update, row_update, sum_duplicates
from pickmix.gradient.candidates import Blocks, trees_of_block
from pickmix.gradient.network import Network, Tables, draw_columns
from pickmix.gradient.settings import StepSettings

# Weight of a child of the root at least, relative to equal ones.
_LEAST_SHARE = 1e-4


class Root(NamedTuple):
    """Weights of the root: logits, whose moments `adam` holds; with closed form, log-masses."""

    logits: jax.Array
    adam: Adam

    @property
    def log_weights(self) -> jax.Array:
        """Log-weights (s,) of the root's children."""
        return jax.nn.log_softmax(self.logits)


class State(NamedTuple):
    """What the next step needs."""

    tables: Tables  # (R, P) each.
    adams: tuple[Adam, ...]  # Of the tables that learn.
    root: Root
    chain: jax.Array  # The tree that each row's chain stands on, (N, n_slots).
    log_joint: jax.Array  # log p(x, tree) at the row's last visit (N,) if it is reused, else empty.
    blocks: Blocks | None = None  # For "partition". Steps read it and hand it on.


class Batch(NamedTuple):
    """What one step is given: rows, draws made ahead, and the schedules' values."""

    rows: jax.Array  # (B,); numbers past the end of the data are padding.
    weights: jax.Array  # Weight of each row in the objective (B,); zero for padding.
    candidates: jax.Array  # (B, M, n_slots).
    #: log q of the candidates (B, M), and of the current tree as the first draw sees it (B,).
    log_q: jax.Array
    log_q_current: jax.Array
    #: (B, M) for acceptance; (B, M, n_slots) for draws from the posterior; (B, 2) for the choice
    #: that a block is about and the draw within the block.
    uniforms: jax.Array
    noise: jax.Array  # What is added to the rows: (B, D), or empty.
    #: Scalars: inverse temperature, learning rate, step size of closed-form weights, and step.
    beta: jax.Array
    rate: jax.Array
    gamma: jax.Array
    step: jax.Array


class Info(NamedTuple):
    """Diagnostics of a step, or of a chunk of L steps."""

    #: Summed over rows. Step by step (L,): the last bits of a sum over a chunk would depend on L.
    acceptances: jax.Array
    refused: jax.Array  # Whether the step was refused, or how many of a chunk.
    states: jax.Array  # Of the chains, (B, M, S) or (L, B, M, S).


# -- S-step ---------------------------------------------------------------------------------


class Selection(NamedTuple):
    """Pairs of rows and trees that a gradient step is made of, and where the chains went."""

    trees: jax.Array  # (B, C, n_slots).
    weights: jax.Array  # (B, C); they sum to one for each row.
    states: jax.Array  # The chains' states (B, M, n_slots), the last one to stay.
    log_joint: jax.Array  # log p(x, tree) at the last state, (B,).
    acceptance: jax.Array  # Mean over moves, (B,).
    sound: jax.Array  # Whether all values that the selection rests on are finite, (B,).


def evaluate(network: Network, state: State, trees: jax.Array, x: jax.Array) -> jax.Array:
    """log p(x_i, trees[i, j]) (B, C) for trees (B, C, n_slots)."""
    n_rows, n_trees = trees.shape[:2]
    flat = trees.reshape(n_rows * n_trees, -1)
    repeated = jnp.repeat(x, n_trees, axis=0)
    density = network.log_density(network.gather(state.tables, flat), flat, repeated)
    return (density + state.root.log_weights[flat[:, 0]]).reshape(n_rows, n_trees)


def select(
    network: Network, settings: StepSettings, state: State, batch: Batch, x: jax.Array
) -> Selection:
    """Run the chains of the batch for M moves: the S-step, its loop over i and j."""
    # Set z^0_{i,t} := z^M_{i,t-1}.
    current = state.chain[batch.rows]
    candidates, log_q, log_q_current = batch.candidates, batch.log_q, batch.log_q_current
    if settings.reuse_log_joint:
        now, proposed = state.log_joint[batch.rows], evaluate(network, state, candidates, x)
    else:
        # log p(x, z_bar) at today's parameters, together with the candidates'.
        both = jnp.concatenate([current[:, None], candidates], axis=1)
        values = evaluate(network, state, both, x)
        now, proposed = values[:, 0], values[:, 1:]
    states, sound = [], jnp.ones(current.shape[0], bool)
    acceptance = jnp.zeros(current.shape[0], x.dtype)
    for draw in range(settings.n_samples):
        column = draw
        if settings.propose_again is not None:
            column = 0
            if draw:
                # Sample z ~ q(z | z_bar), where z_bar is known only now.
                candidates, log_q, log_q_current = settings.propose_again(
                    batch.rows, current, draw, batch.step
                )
                proposed = evaluate(network, state, candidates, x)
        # Compute alpha(z_bar, z); accept z or stay at z_bar.
        log_ratio = batch.beta * (proposed[:, column] - now)
        log_ratio = log_ratio + log_q_current - log_q[:, column]
        alpha = jnp.exp(jnp.minimum(log_ratio, 0.0))
        acceptance = acceptance + alpha
        accepted = batch.uniforms[:, draw] < alpha
        current = jnp.where(accepted[:, None], candidates[:, column], current)
        now = jnp.where(accepted, proposed[:, column], now)
        log_q_current = jnp.where(accepted, log_q[:, column], log_q_current)
        states.append(current)
        sound = sound & jnp.isfinite(now)
    # Set z_{i,t} := (z^1_{i,t}, ..., z^M_{i,t}).
    trees = jnp.stack(states, axis=1)
    weights = jnp.full(trees.shape[:2], 1.0 / settings.n_samples, x.dtype)
    return Selection(trees, weights, trees, now, acceptance / settings.n_samples, sound)


def select_in_blocks(
    network: Network, settings: StepSettings, state: State, batch: Batch, x: jax.Array
) -> Selection:
    """Move each chain within its block, and weigh all trees of the block by their posterior.

    If a chain follows p(tree | x), the weights' expectation is p(tree | x) (Rao and Blackwell).
    """
    assert state.blocks is not None
    current = jnp.take(state.chain, batch.rows, axis=0, mode="clip")
    trees, is_tree = trees_of_block(state.blocks, current, batch.uniforms[:, 0])
    log_joint = evaluate(network, state, trees, x)
    scores = jnp.where(is_tree, batch.beta * log_joint, -jnp.inf)
    total = logsumexp(scores, axis=1)
    drawn = draw_columns(scores, batch.uniforms[:, 1:])
    return Selection(
        trees,
        jnp.exp(scores - total[:, None]),
        jnp.take_along_axis(trees, drawn[:, :, None], axis=1),
        jnp.take_along_axis(log_joint, drawn, axis=1)[:, 0],
        jnp.ones_like(total),
        jnp.isfinite(total),
    )


def select_exactly(
    network: Network, settings: StepSettings, state: State, batch: Batch, x: jax.Array
) -> Selection:
    """Draw M trees for each row from the posterior over all."""
    trees = network.draw(state.tables, state.root.log_weights, x, batch.uniforms, batch.beta)
    weights = jnp.full(trees.shape[:2], 1.0 / settings.n_samples, x.dtype)
    ones = jnp.ones(x.shape[0], x.dtype)
    return Selection(trees, weights, trees, jnp.zeros_like(ones), ones, ones > 0.0)


SELECTION_RULES = {"mhsaem": select, "partition": select_in_blocks, "mcsaem": select_exactly}


# -- steps ----------------------------------------------------------------------------------


def selection_step(
    network: Network, settings: StepSettings, data: jax.Array, state: State, batch: Batch
) -> tuple[State, Info]:
    """Select trees, then one gradient step on the rows of parameters that they touch."""
    x = _rows(settings, data, batch)
    selection = SELECTION_RULES[settings.algorithm](network, settings, state, batch, x)
    n_rows, n_pairs = selection.trees.shape[:2]
    # Padding lies past the end of the data: it visits nothing and is dropped. So are trees of
    # weight zero, whose density may have no gradient.
    is_row = batch.rows < data.shape[0]
    pair_weights = jnp.where(is_row, batch.weights, 0.0)[:, None] * selection.weights
    pair_weights = pair_weights.reshape(-1)
    pair_weights = jnp.where(pair_weights > 0.0, pair_weights, 0.0)
    trees = selection.trees.reshape(n_rows * n_pairs, -1)
    if network.n_slots == 1:
        # Records of one table are long; sorting the choices of trees costs more than it saves.
        trees, pair_weights = _computed_once(trees), _computed_once(pair_weights)
    is_pair = pair_weights > 0.0

    # Gradients with respect to the gathered rows: nothing of the size of a table.
    repeated = jnp.repeat(x, n_pairs, axis=0)
    gradients = jax.grad(
        lambda parameters: -jnp.sum(pair_weights * network.log_density(parameters, trees, repeated))
    )(network.gather(state.tables, trees))
    visited = [
        sum_duplicates(
            jnp.where(is_pair[:, None], row, table.shape[0]).reshape(-1),
            jnp.where(is_pair[:, None, None], gradient, 0.0).reshape(-1, table.shape[1]),
            table.shape[0],
        )
        for row, gradient, table in compress(
            zip(network.rows(trees), network.pack(gradients), state.tables, strict=True),
            network.learns,
        )
    ]
    shares = jnp.zeros_like(state.root.logits).at[trees[:, 0]].add(pair_weights)
    clip, keep = _clip_and_check([group.gradient for group in visited], settings.gradient_clip)
    keep = keep & jnp.all(selection.sound | ~is_row)
    tables, adams = [], []
    learning = zip(compress(state.tables, network.learns), state.adams, visited, strict=True)
    for table, adam, group in learning:
        if settings.gradient_clip is not None:
            group = group._replace(gradient=clip * group.gradient)
        if settings.row_adam:
            table, adam = row_update(table, adam, group, batch.rate, keep)
        else:
            dense = jnp.zeros_like(table).at[group.rows].set(group.gradient, mode="drop")
            table, adam = dense_update(table, adam, dense, batch.rate, keep)
        tables.append(table)
        adams.append(adam)
    moved = jnp.where(keep, batch.rows, data.shape[0])
    chain = state.chain.at[moved].set(selection.states[:, -1], mode="drop")
    log_joint = state.log_joint
    if settings.reuse_log_joint:
        log_joint = log_joint.at[moved].set(selection.log_joint, mode="drop")
    accepted = jnp.sum(jnp.where(is_row & keep, selection.acceptance, 0.0))
    return state._replace(
        tables=with_fixed(network, state.tables, tables),
        adams=tuple(adams),
        root=_update_root(state.root, shares, clip, batch, keep, settings),
        chain=chain,
        log_joint=log_joint,
    ), Info(accepted, ~keep, selection.states)


def _computed_once(values: jax.Array) -> jax.Array:
    """Return values (B, ...) as they are, by a sort that leaves them in order.

    Else XLA fuses what computes them with what reads them, and computes them anew for each of the
    many numbers that a step gathers or multiplies by them.
    """
    numbers = jax.lax.broadcasted_iota(jnp.int32, values.shape, 0)
    return jax.lax.sort((numbers, values), dimension=0, num_keys=1)[1]


def dense_step(
    network: Network, settings: StepSettings, data: jax.Array, state: State, batch: Batch
) -> tuple[State, Info]:
    """Gradient step on all parameters: "sgd" on log p(x), "em" with exact responsibilities.

    The gradient of (1 / beta) log sum_z p(x, z)^beta is the mean of grad log p(x, z) under the
    responsibilities p(z | x)^beta: EM's, frozen for the step. At beta = 1 it is that of log p(x).
    """
    x = _rows(settings, data, batch)

    def objective(learning: Tables) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        tables = with_fixed(network, state.tables, learning)
        density = network.log_density_all(tables, x, batch.beta)
        scores = batch.beta * state.root.log_weights + density
        total = logsumexp(scores, axis=1)
        return -jnp.sum(batch.weights * total) / batch.beta, (scores, total)

    learning = tuple(compress(state.tables, network.learns))
    (value, (scores, total)), gradients = jax.value_and_grad(objective, has_aux=True)(learning)
    shares = batch.weights @ jnp.exp(scores - total[:, None])
    clip, keep = _clip_and_check(list(gradients), settings.gradient_clip)
    keep = keep & jnp.isfinite(value)
    updates = [
        dense_update(table, adam, clip * gradient, batch.rate, keep)
        for table, adam, gradient in zip(learning, state.adams, gradients, strict=True)
    ]
    tables, adams = zip(*updates, strict=True)
    return state._replace(
        tables=with_fixed(network, state.tables, tables),
        adams=adams,
        root=_update_root(state.root, shares, clip, batch, keep, settings),
    ), Info(jnp.zeros((), x.dtype), ~keep, jnp.zeros_like(batch.candidates))


def _rows(settings: StepSettings, data: jax.Array, batch: Batch) -> jax.Array:
    """Rows (B, D) of a batch, with the noise that was drawn for them."""
    rows = jnp.take(data, batch.rows, axis=0, mode="clip")
    return rows + batch.noise if settings.noise else rows


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
    root: Root,
    shares: jax.Array,
    clip: jax.Array,
    batch: Batch,
    keep: jax.Array,
    settings: StepSettings,
) -> Root:
    """Move the root's weights towards the batch's `shares` (s,) of its children.

    A child that batches miss keeps a weight at which it can still be selected.
    """
    floor = _LEAST_SHARE / shares.shape[0]
    weights = jnp.exp(root.log_weights)
    if settings.closed_form_weights:
        mixed = weights + batch.gamma * (shares - jnp.sum(shares) * weights)
        logits = jnp.where(keep, jnp.log(jnp.maximum(mixed, floor)), root.logits)
        return Root(logits, root.adam)
    # The gradient of the log-likelihood is e_z - pi, summed over pairs.
    gradient = clip * (jnp.sum(shares) * weights - shares)
    logits, adam = dense_update(root.logits[None], root.adam, gradient[None], batch.rate, keep)
    return Root(jnp.maximum(logits[0], logsumexp(logits[0]) + math.log(floor)), adam)


# -- many steps in one call -----------------------------------------------------------------


Chunk = Callable[[jax.Array, State, Batch, jax.Array], tuple[State, Info]]


@lru_cache(maxsize=64)
def make_chunk(network: Network, settings: StepSettings, returns_states: bool) -> Chunk:
    """Compile a function (data, state, batches, n_steps) -> (state, summary).

    `batches` holds the inputs of L steps, of which the first `n_steps` are made; so one compiled
    program serves chunks of any length. (A `lax.scan` has a fixed length: a loop with a bound that
    is known at run time is the same program without that.) The state's memory is reused.
    """
    step = dense_step if settings.algorithm in ("em", "sgd") else selection_step

    def chunk(
        data: jax.Array, state: State, batches: Batch, n_steps: jax.Array
    ) -> tuple[State, Info]:
        def body(number: jax.Array, carry: tuple[State, Info]) -> tuple[State, Info]:
            state, summary = carry
            batch = jax.tree.map(lambda values: values[number], batches)
            state, info = step(network, settings, data, state, batch)
            states = summary.states
            if returns_states:
                states = states.at[number].set(info.states)
            return state, Info(
                summary.acceptances.at[number].set(info.acceptances),
                summary.refused + info.refused,
                states,
            )

        shape = (*batches.rows.shape, settings.n_samples, network.n_slots)
        none = Info(
            jnp.zeros(batches.rows.shape[:1], data.dtype),
            jnp.zeros((), jnp.int32),
            jnp.zeros(shape if returns_states else (), jnp.int32),
        )
        end: tuple[State, Info] = jax.lax.fori_loop(0, n_steps, body, (state, none))
        return end

    return partial(jax.jit, donate_argnames="state")(chunk)

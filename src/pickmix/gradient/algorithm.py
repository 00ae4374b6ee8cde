"""The paper's Algorithm 1 with gradients, and the dense steps it is compared with.

A step is a pure function `(state, batch) -> (state, info)`. Its S-step is a selection rule: it
reads a frozen model, moves the rows' chains and returns pairs of rows and trees. Then Adam moves
the parameters of the selected trees. `make_chunk` compiles many steps into one call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from itertools import compress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from pickmix.gradient.adam import Adam, dense_update, row_update, sum_duplicates
from pickmix.gradient.network import Network, Tables, draw_columns, gather
from pickmix.gradient.partitions import Blocks, posterior_in_block, trees_of_block
from pickmix.gradient.settings import Settings


class Root(NamedTuple):
    """Weights of the root: logits, whose moments `adam` holds; with closed form, log-masses."""

    logits: jax.Array
    adam: Adam


class State(NamedTuple):
    """What the next step needs."""

    #: (R, P) each.
    tables: Tables
    #: Of the tables that learn.
    adams: tuple[Adam, ...]
    root: Root
    #: The tree that each row's chain stands on, (N, n_slots).
    chain: jax.Array
    #: log p(x, tree) at the row's last visit (N,) if it is to be reused, else empty.
    log_joint: jax.Array
    #: For "partition". Steps read it and hand it on.
    blocks: Blocks | None = None


class Batch(NamedTuple):
    """What one step is given: rows, draws made ahead, and the schedules' values."""

    #: (B,); numbers past the end of the data are padding.
    rows: jax.Array
    #: Weight of each row in the objective (B,); zero for padding.
    weights: jax.Array
    #: (B, M, n_slots).
    candidates: jax.Array
    #: log q of the candidates (B, M), and of the current tree as the first draw sees it (B,).
    log_q: jax.Array
    log_q_current: jax.Array
    #: (B, M) for acceptance; (B, M, n_slots) for draws from the posterior; (B, 2) for the choice
    #: that a block is about and the draw within the block.
    uniforms: jax.Array
    #: What is added to the rows: (B, D), or empty.
    noise: jax.Array
    #: Scalars: inverse temperature, learning rate, step size of closed-form weights, and step.
    beta: jax.Array
    rate: jax.Array
    gamma: jax.Array
    step: jax.Array


class Info(NamedTuple):
    """Diagnostics: summed acceptance, whether the step was refused, chain states (B, M, S)."""

    acceptance: jax.Array
    refused: jax.Array
    states: jax.Array


def log_weights_of(root: Root) -> jax.Array:
    """Log-weights (s,) of the root's children."""
    return jax.nn.log_softmax(root.logits)


# -- S-step ---------------------------------------------------------------------------------


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
    """Pairs of rows and trees that a gradient step is made of, and where the chains went."""

    #: (B, C, n_slots).
    trees: jax.Array
    #: (B, C); they sum to one for each row.
    weights: jax.Array
    #: Arrays (B, C, ...) that a gradient needs from the trees' evaluation; None to evaluate again.
    remembered: Any
    #: The chains' states (B, M, n_slots), the last one to stay.
    states: jax.Array
    #: log p(x, tree) at the last state, (B,).
    log_joint: jax.Array
    #: Mean over moves, (B,).
    acceptance: jax.Array
    #: Whether all values that the selection rests on are finite, (B,).
    sound: jax.Array


def select(
    network: Network, settings: Settings, state: State, batch: Batch, x: jax.Array
) -> Selection:
    """Run the chains of the batch for M moves: the S-step, its loop over i and j."""
    log_weights = log_weights_of(state.root)
    # Set z^0_{i,t} := z^M_{i,t-1}.
    current = state.chain[batch.rows]
    candidates, log_q, log_q_current = batch.candidates, batch.log_q, batch.log_q_current

    def evaluated_at(trees: jax.Array) -> Evaluation:
        evaluation = evaluate(network, state.tables, log_weights, trees, x)
        # What was computed at a tree's last visit is gone: a gradient must evaluate again.
        return evaluation._replace(remembered=None) if settings.reuse_log_joint else evaluation

    if settings.reuse_log_joint:
        now = Evaluation(state.log_joint[batch.rows], None)
        evaluated = evaluated_at(candidates)
    else:
        # log p(x, z_bar) at today's parameters, together with the candidates'.
        both = evaluated_at(jnp.concatenate([current[:, None], candidates], axis=1))
        now = both.pick(0)
        evaluated = jax.tree.map(lambda values: values[:, 1:], both)
    states, evaluations = [], []
    acceptance = jnp.zeros(current.shape[0], x.dtype)
    for draw in range(settings.n_samples):
        column = draw if settings.propose_again is None else 0
        if draw and settings.propose_again is not None:
            # Sample z ~ q(z | z_bar), where z_bar is known only now.
            candidates, log_q, log_q_current = settings.propose_again(
                batch.rows, current, draw, batch.step
            )
            evaluated = evaluated_at(candidates)
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
        acceptance / settings.n_samples,
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
    network: Network, settings: Settings, state: State, batch: Batch, x: jax.Array
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
    network: Network, settings: Settings, state: State, batch: Batch, x: jax.Array
) -> Selection:
    """Draw M trees for each row from the posterior over all."""
    log_weights = log_weights_of(state.root)
    trees = network.draw(state.tables, log_weights, x, batch.uniforms, batch.beta)
    nothing, ones = jnp.zeros(x.shape[0], x.dtype), jnp.ones(x.shape[0], x.dtype)
    return Selection(
        trees, _equal_weights(trees, x), None, trees, nothing, ones, jnp.ones_like(ones, bool)
    )


SELECTION_RULES = {"mhsaem": select, "partition": select_in_blocks, "mcsaem": select_exactly}


# -- steps ----------------------------------------------------------------------------------


def selection_step(
    network: Network, settings: Settings, data: jax.Array, state: State, batch: Batch
) -> tuple[State, Info]:
    """Select trees, then one gradient step on the rows of parameters that they touch."""
    x = _rows(settings, data, batch)
    selection = SELECTION_RULES[settings.algorithm](network, settings, state, batch, x)
    n_rows, n_pairs = selection.trees.shape[:2]
    trees = selection.trees.reshape(n_rows * n_pairs, -1)
    # Padding lies past the end of the data: it visits nothing and is dropped. So are trees of
    # weight zero, whose density may have no gradient.
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
    clip, keep = _clip_and_check([group.gradient for group in visited], settings.gradient_clip)
    keep = keep & jnp.all(selection.sound | ~real)
    learning = compress(state.tables, network.learns)
    tables, adams = [], []
    for table, adam, group in zip(learning, state.adams, visited, strict=True):
        if settings.gradient_clip is not None:
            group = group._replace(gradient=clip * group.gradient)
        if settings.row_adam:
            table, adam = row_update(table, adam, group, batch.rate, keep)
        else:
            dense = jnp.zeros_like(table).at[group.rows].set(group.gradient, mode="drop")
            table, adam = dense_update(table, adam, dense, batch.rate, keep)
        tables.append(table)
        adams.append(adam)
    root = _update_root(state.root, shares, clip, batch, keep, settings)
    moved = jnp.where(keep, batch.rows, data.shape[0])
    chain = state.chain.at[moved].set(selection.states[:, -1], mode="drop")
    last = state.log_joint
    if settings.reuse_log_joint:
        last = last.at[moved].set(selection.log_joint, mode="drop")
    accepted = jnp.sum(jnp.where(real & keep, selection.acceptance, 0.0))
    info = Info(accepted, jnp.logical_not(keep), selection.states)
    learnt = with_fixed(network, state.tables, tables)
    return State(learnt, tuple(adams), root, chain, last, state.blocks), info


def dense_step(
    network: Network, settings: Settings, data: jax.Array, state: State, batch: Batch
) -> tuple[State, Info]:
    """Gradient step on all parameters: "sgd" on log p(x), "em" with exact responsibilities.

    The gradient of (1 / beta) log sum_z p(x, z)^beta is the mean of grad log p(x, z) under the
    responsibilities p(z | x)^beta: EM's, frozen for the step. At beta = 1 it is that of log p(x).
    """
    x = _rows(settings, data, batch)

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
    clip, keep = _clip_and_check(list(gradients), settings.gradient_clip)
    keep = keep & jnp.isfinite(value)
    updates = [
        dense_update(table, adam, clip * gradient, batch.rate, keep)
        for table, adam, gradient in zip(learning, state.adams, gradients, strict=True)
    ]
    root = _update_root(state.root, shares, clip, batch, keep, settings)
    tables, adams = zip(*updates, strict=True)
    info = Info(jnp.zeros((), x.dtype), jnp.logical_not(keep), jnp.zeros_like(batch.candidates))
    learnt = with_fixed(network, state.tables, tables)
    return State(learnt, adams, root, state.chain, state.log_joint, state.blocks), info


def _rows(settings: Settings, data: jax.Array, batch: Batch) -> jax.Array:
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
    settings: Settings,
) -> Root:
    """Move the root's weights towards the batch's `shares` (s,) of its children."""
    log_weights = log_weights_of(root)
    if settings.closed_form_weights:
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


# -- many steps in one call -----------------------------------------------------------------


class Summary(NamedTuple):
    """Diagnostics of a chunk: acceptance by steps (L,), refused steps, chain states (L, B, M, S).

    Acceptance is summed step by step later: the last bits of a sum over a chunk would depend on
    its length.
    """

    acceptances: jax.Array
    refused: jax.Array
    states: jax.Array


Chunk = Callable[[jax.Array, State, Batch, jax.Array], tuple[State, Summary]]


@lru_cache(maxsize=64)
def make_chunk(network: Network, settings: Settings, returns_states: bool) -> Chunk:
    """Compile a function (data, state, batches, n_steps) -> (state, summary).

    `batches` holds the inputs of L steps, of which the first `n_steps` are made; so one compiled
    program serves chunks of any length. (A `lax.scan` has a fixed length: a loop with a bound that
    is known at run time is the same program without that.) The state's memory is reused.
    """
    step = dense_step if settings.algorithm in ("em", "sgd") else selection_step

    def chunk(
        data: jax.Array, state: State, batches: Batch, n_steps: jax.Array
    ) -> tuple[State, Summary]:
        def body(number: jax.Array, carry: tuple[State, Summary]) -> tuple[State, Summary]:
            state, summary = carry
            batch = jax.tree.map(lambda values: values[number], batches)
            state, info = step(network, settings, data, state, batch)
            states = summary.states
            if returns_states:
                states = states.at[number].set(info.states)
            return state, Summary(
                summary.acceptances.at[number].set(info.acceptance),
                summary.refused + info.refused,
                states,
            )

        shape = (*batches.rows.shape, settings.n_samples, network.n_slots)
        none = Summary(
            jnp.zeros(batches.rows.shape[:1], data.dtype),
            jnp.zeros((), jnp.int32),
            jnp.zeros(shape if returns_states else (), jnp.int32),
        )
        end: tuple[State, Summary] = jax.lax.fori_loop(0, n_steps, body, (state, none))
        return end

    return partial(jax.jit, donate_argnames="state")(chunk)

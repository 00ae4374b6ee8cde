"""What steps of the gradient engine are given, hand on and tell, and what is fixed about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax

from pickmix.gradient.adam import Adam
from pickmix.gradient.blocks import Blocks
from pickmix.gradient.network import Tables


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
        Of the tables that learn.
    root : Root
    chain : (N, n_slots) int array
        The tree that each row's chain stands on.
    log_joint : (N,) array, or empty
        log p(x, tree) at the row's last visit, if it is to be reused.
    blocks : Blocks or None
        For "partition". Steps look at it and hand it on.
    """

    tables: Tables
    adams: tuple[Adam, ...]
    root: Root
    chain: jax.Array
    log_joint: jax.Array
    blocks: Blocks | None = None


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
    uniforms : (B, M), (B, M, n_slots) or (B, 2) array
        For acceptance; for draws from the posterior; or for the choice that a block is about and
        the draw within the block.
    noise : (B, D) array, or empty
        What is added to the rows.
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
    noise: jax.Array
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
    algorithm : {"mhsaem", "partition", "mcsaem", "em", "sgd"}
    n_samples : int
        M; 1 for "partition".
    row_adam : bool
        Adam on the visited rows only, instead of on all.
    closed_form_weights : bool
    reuse_log_joint : bool
    gradient_clip : float or None
        Largest norm of the gradient.
    propose_again : callable or None
        For proposals that depend on the current tree: draws all candidates but the first.
    noise : float
        Standard deviation of the noise that is added to rows at each visit.
    """

    algorithm: str
    n_samples: int = 1
    row_adam: bool = True
    closed_form_weights: bool = False
    reuse_log_joint: bool = False
    gradient_clip: float | None = None
    propose_again: ProposeAgain | None = None
    noise: float = 0.0


def log_weights_of(root: Root) -> jax.Array:
    """Log-weights (s,) of the root's children."""
    return jax.nn.log_softmax(root.logits)

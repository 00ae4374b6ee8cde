from __future__ import annotations
import argparse
import statistics
import time
from pathlib import Path
from typing import Any
import jax
import jax.numpy as jnp
import numpy as np
from pickmix.gradient.adam import Adam
from pickmix.gradient.network import Network
from pickmix.gradient.step import Batch, Options, Root, State
N, D, B = 10_000, 30, 100
RATE = 1e-3
def make_inputs(network: Network, n_rows: int = N, n_steps: int = 100, dtype: str = "float32") -> tuple[jax.Array, State, Batch]:
    """Random data, a start, and the batches of `n_steps` steps."""
    rng = np.random.default_rng(0)
    tables = network.start(0, dtype)
    logits = jnp.zeros(network.n_children, dtype)
    s, n_slots = network.n_children, network.n_slots
    state = State(
        tables,
        tuple(Adam.start(table) for table in tables),
        Root(logits, Adam.start(logits[None])),
        jnp.asarray(rng.integers(s, size=(n_rows, n_slots)), jnp.int32),
        jnp.zeros(0),
    )
    batches = Batch(
        rows=jnp.asarray([rng.permutation(n_rows)[:B] for _ in range(n_steps)], jnp.int32),
        weights=jnp.full((n_steps, B), 1.0 / B),
        candidates=jnp.asarray(rng.integers(s, size=(n_steps, B, 1, n_slots)), jnp.int32),
        log_q=jnp.zeros((n_steps, B, 1)),
        log_q_current=jnp.zeros((n_steps, B)),
        uniforms=jnp.asarray(rng.random((n_steps, B, 1)), dtype),
        beta=jnp.ones(n_steps),
        rate=jnp.full(n_steps, RATE),
        gamma=jnp.full(n_steps, 0.01),
        step=jnp.arange(n_steps, dtype=jnp.int32),
    )
    return jnp.asarray(rng.normal(size=(n_rows, D)), dtype), state, batches

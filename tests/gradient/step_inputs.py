"""States and batches of the gradient engine's steps, made by hand."""

import jax
import jax.numpy as jnp
import numpy as np
from quick_jit import quick_compile
from scipy import stats

from pickmix.gradient.adam import Adam
from pickmix.gradient.algorithm import Batch, Root, State, make_chunk
from pickmix.gradient.compilation import precision


class DiagonalGaussian:
    """The smallest component there is."""

    def init(self, key, n_features):
        return {"mean": jax.random.normal(key, (n_features,)), "log_scale": jnp.zeros(n_features)}

    def log_prob(self, params, x):
        standardised = (x - params["mean"]) * jnp.exp(-params["log_scale"])
        constant = 0.5 * np.log(2 * np.pi) * x.shape[0]
        return -0.5 * jnp.sum(standardised**2) - jnp.sum(params["log_scale"]) - constant


def make_state(tables, logits, chain):
    """State without moments."""
    return State(
        tuple(tables),
        tuple(
            Adam(np.zeros_like(table), np.zeros_like(table), np.zeros(len(table)))
            for table in tables
        ),
        Root(logits, Adam(np.zeros((1, len(logits))), np.zeros((1, len(logits))), np.zeros(1))),
        np.asarray(chain, np.int32),
        np.zeros(0),
    )


def make_batches(network, n_rows, n_steps, n_samples, seed=0, beta=1.0, rate=0.0, gamma=0.1):
    """Batches of all rows in order, with uniform candidates; one weight for all."""
    rng = np.random.default_rng(seed)
    shape = (n_steps, n_rows, n_samples)
    return Batch(
        rows=np.tile(np.arange(n_rows, dtype=np.int32), (n_steps, 1)),
        weights=np.full(shape[:2], 1.0 / n_rows),
        candidates=rng.integers(network.n_choices, size=(*shape, network.n_slots)).astype(np.int32),
        log_q=np.zeros(shape),
        log_q_current=np.zeros(shape[:2]),
        uniforms=rng.random(shape),
        noise=np.zeros((*shape[:2], 0)),
        beta=np.full(n_steps, beta),
        rate=np.full(n_steps, rate),
        gamma=np.full(n_steps, gamma),
        step=np.arange(1, n_steps + 1, dtype=np.int32),
    )


class Program:
    """A chunk of steps in float64, compiled when it first runs; takes and gives NumPy arrays."""

    def __init__(self, network, options, returns_states=True):
        self.network, self.options, self.returns_states = network, options, returns_states
        self.compiled = None

    def __call__(self, data, state, batches, n_steps=None):
        n_steps = len(batches.step) if n_steps is None else n_steps
        # A compiled chunk reuses the memory of the state that it is given.
        arguments = (data, jax.tree.map(np.copy, state), batches, np.int32(n_steps))
        with precision("float64"):
            if self.compiled is None:
                chunk = make_chunk(self.network, self.options, self.returns_states)
                self.compiled = quick_compile(chunk, *arguments)
            result = self.compiled(*arguments)
        return jax.tree.map(np.asarray, result)


def same_bits(one, other):
    """Whether two trees of arrays are equal, NaNs and signs of zeros included."""
    return all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


def numbers_of(network, trees):
    """Number of each tree among all, as `every_tree` lists them."""
    return np.ravel_multi_index(np.moveaxis(trees, -1, 0), network.n_choices)


def p_value(numbers, probabilities):
    """Chi-square test of draws; outcomes that hardly ever come are counted together."""
    counts = np.bincount(np.ravel(numbers), minlength=len(probabilities))
    expected = probabilities * counts.sum()
    rare = expected < 10.0
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    value = stats.chisquare(counts, expected).pvalue
    print(f"p-value {value:.3g} with {len(expected)} cells")
    return value

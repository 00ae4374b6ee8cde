"""A small Gaussian mixture by gradients, with the error of each recorded step's gradient.

The error is that against exact EM's: the paper's equation "bias".
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pickmix.gradient.compilation import precision
from pickmix.gradient.components import ComponentMixture
from pickmix.gradient.engine import GradientEngine
from pickmix.gradient.network import Tables
from pickmix.gradient.settings import Settings
from pickmix.gradient.start import choose_start
from pickmix.selection.partitions import RandomPartition
from pickmix.selection.proposals import TableForgettingProposal, TableProposal, UniformProposal
from pickmix.selection.schedules import ConstantRate, ConstantStep
from pickmix_experiments import runs
from pickmix_experiments.fits import rows_of
from pickmix_experiments.runner import Recorder, record_steps
from pickmix_experiments.runs import ConvergenceRun

Params = dict[str, jax.Array]
_DTYPE = np.dtype(np.float64)
_BLOCK_SIZE = 4
_TABLES: dict[str, Any] = {
    runs.MHSAEM_U: UniformProposal,
    runs.MHSAEM_T: TableProposal,
    runs.MHSAEM_TF: TableForgettingProposal,
}
_STEPS = {runs.MHSAEM_O: "mcsaem", runs.MHSAEM_P: "partition"}


@dataclass(frozen=True)
class FullGaussian:
    """N(mean, L L^T) as a component, where L is lower triangular with a positive diagonal.

    It starts as the paper's: means uniform in the unit cube, unit covariances.
    """

    def init(self, key: jax.Array, n_features: int) -> Params:
        """Draw a mean; mean (D,), log_diagonal (D,) and lower (D, D) of L."""
        return {
            "mean": jax.random.uniform(key, (n_features,)),
            "log_diagonal": jnp.zeros(n_features),
            "lower": jnp.zeros((n_features, n_features)),
        }

    def place(self, params: Params, centre: jax.Array, scale: jax.Array) -> Params:
        return params | {"mean": centre, "log_diagonal": jnp.log(scale)}

    def location(self, params: Params) -> jax.Array:
        return params["mean"]

    def log_prob(self, params: Params, x: jax.Array) -> jax.Array:
        L = jnp.tril(params["lower"], -1) + jnp.diag(jnp.exp(params["log_diagonal"]))
        whitened = jax.scipy.linalg.solve_triangular(L, x - params["mean"], lower=True)
        constant = 0.5 * x.shape[0] * jnp.log(2.0 * jnp.pi)
        return -0.5 * jnp.sum(whitened**2) - jnp.sum(params["log_diagonal"]) - constant


class GradientError(NamedTuple):
    """Squared norm of the error of a step's mean gradient, and what to expect of exact draws."""

    squared_norm: float
    by_chance: float


def gradient_error(
    network: ComponentMixture,
    tables: Tables,
    log_weights: np.ndarray,
    rows: np.ndarray,
    chosen: np.ndarray,
) -> GradientError:
    """Compare the gradient from one chosen component per row with the one from all of them.

    With g_ik the gradient of log p(x_i, k) in all parameters and p_ik the posterior,

        || (1/B) sum_i sum_k (1[z_i = k] - p_ik) g_ik ||^2.

    One draw per row never makes this zero. Independent draws from the posterior itself have the
    expectation (1/B^2) sum_i sum_k p_ik (1 - p_ik) ||g_ik||^2 if the gradients of different
    components touch different parameters, which all but those of the weights' normaliser do; that
    one cancels in the difference. What lies above it is bias. Rows are (B, D), chosen is (B,).

    Examples
    --------
    With well separated components the posterior leaves no choice, and the right one has no error:

    >>> network = ComponentMixture(FullGaussian(), 2, 1)
    >>> table = jnp.array([[0.0, 0.0, -50.0], [0.0, 0.0, 50.0]])  # log_diagonal, lower, mean
    >>> rows = np.array([[-50.0], [50.0]])
    >>> gradient_error(network, (table,), np.log([0.5, 0.5]), rows, np.array([0, 1])).squared_norm
    0.0
    """
    weights = jnp.asarray(log_weights)
    squared_norm, by_chance = _errors(network, tables, weights, jnp.asarray(rows), chosen)
    return GradientError(float(squared_norm), float(by_chance))


@partial(jax.jit, static_argnums=0)
def _errors(
    network: ComponentMixture,
    tables: Tables,
    log_weights: jax.Array,
    rows: jax.Array,
    chosen: np.ndarray,
) -> tuple[jax.Array, jax.Array]:
    def log_prob(record: jax.Array, x: jax.Array) -> jax.Array:
        return network.component.log_prob(network.params_of((record,)), x)

    over_components = jax.vmap(jax.value_and_grad(log_prob), in_axes=(0, None))
    values, gradients = jax.vmap(over_components, in_axes=(None, 0))(tables[0], rows)
    posterior = jax.nn.softmax(values + log_weights, axis=1)
    # The gradient in the logits of the weights is e_k - pi; pi is common to all k and cancels.
    gradients = jnp.concatenate([gradients, jnp.ones((*values.shape, 1))], axis=2)
    difference = jax.nn.one_hot(jnp.asarray(chosen), values.shape[1]) - posterior
    mean = jnp.einsum("ik,ikp->kp", difference, gradients) / rows.shape[0]
    spread = posterior * (1.0 - posterior) * jnp.sum(gradients**2, axis=2)
    return jnp.sum(mean**2), jnp.sum(spread) / rows.shape[0] ** 2


def make_engine(run: ConvergenceRun) -> GradientEngine:
    """Make the engine of a run: the paper's start, Adam with a constant rate, no annealing."""
    X, _ = rows_of(run)
    network = ComponentMixture(FullGaussian(), run.K, run.D)
    start = choose_start(network, None, X, run.seed, _DTYPE)
    weights = np.random.default_rng(run.seed).uniform(size=run.K)
    start = replace(start, log_weights=np.log(weights / weights.sum()))
    proposal: Any = None
    if run.algorithm in _TABLES:
        proposal = _TABLES[run.algorithm]()
    elif run.algorithm == runs.MHSAEM_P:
        proposal = RandomPartition(block_size=_BLOCK_SIZE)
    settings = Settings(
        algorithm=_STEPS.get(run.algorithm, "mhsaem"),
        proposal=proposal,
        learning_rate=ConstantRate(run.step_size),
        step_size=ConstantStep(run.step_size),
        noise=0.0,
        batch_size=run.B,
        dtype=str(_DTYPE),
    )
    return GradientEngine(network, start, settings, X, None, None, run.seed)


def perform_convergence(
    run: ConvergenceRun, limit_seconds: float | None, threads: int, recorder: Recorder
) -> None:
    """Make the steps one record after the other; the clock runs only while steps are made."""
    X, true_scores = rows_of(run)
    engine = make_engine(run)
    recorder.know(
        outcome="max_steps",
        true_log_likelihood=float(true_scores.mean()),
        n_rows=run.N,
        n_features=run.D,
        compile_seconds=engine.compile(),
    )
    work, step, seen_rows, seen_acceptance = 0.0, 0, 0, 0.0
    for target in record_steps(run.T):
        started = time.perf_counter()
        while step < target - 1:
            step += engine.advance(step + 1, target - 1 - step)
        work += time.perf_counter() - started
        # The step's gradient belongs to the parameters before it, its draws to those after it.
        before: Any = engine.parameters()
        weights_before = engine.log_weights()
        started = time.perf_counter()
        step += engine.advance(target, 1)
        work += time.perf_counter() - started
        batch = engine.batches.rows(target)
        network: Any = engine.network
        with precision(_DTYPE):
            chosen = engine.chain()[batch, 0]
            error = gradient_error(network, before, weights_before, X[batch], chosen)
        counters = engine.counters
        recorder.add(
            step=step,
            seconds=work,
            evaluations=counters.evaluations / run.N,
            log_likelihood=engine.log_likelihood(),
            acceptance=(counters.acceptance_sum - seen_acceptance) / (counters.rows - seen_rows),
            bias=error.squared_norm,
            bias_by_chance=error.by_chance,
            live_components=engine.live_components(),
        )
        seen_rows, seen_acceptance = counters.rows, counters.acceptance_sum
        if counters.refused:
            recorder.know(outcome=engine.refusal)
            return
        if limit_seconds is not None and work >= limit_seconds:
            recorder.know(outcome="max_time")
            return

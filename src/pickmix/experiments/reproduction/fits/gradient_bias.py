"""The error of a step's gradient against exact EM's: the paper's equation "bias"."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pickmix.gradient.components import ComponentMixture
from pickmix.gradient.network import Tables


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
    one cancels in the difference. What lies above it is bias.

    Parameters
    ----------
    network : ComponentMixture
    tables, log_weights : parameters, weights (K,)
    rows : (B, D) array
    chosen : (B,) int array

    Examples
    --------
    With well separated components the posterior leaves no choice, and the right one has no error:

    >>> from pickmix.experiments.reproduction.fits.full_gaussian import FullGaussian
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
        return network.component.log_prob(network.unflatten(record), x)

    over_components = jax.vmap(jax.value_and_grad(log_prob), in_axes=(0, None))
    values, gradients = jax.vmap(over_components, in_axes=(None, 0))(tables[0], rows)
    posterior = jax.nn.softmax(values + log_weights, axis=1)
    # The gradient in the logits of the weights is e_k - pi; pi is common to all k and cancels.
    gradients = jnp.concatenate([gradients, jnp.ones((*values.shape, 1))], axis=2)
    difference = jax.nn.one_hot(jnp.asarray(chosen), values.shape[1]) - posterior
    mean = jnp.einsum("ik,ikp->kp", difference, gradients) / rows.shape[0]
    spread = posterior * (1.0 - posterior) * jnp.sum(gradients**2, axis=2)
    return jnp.sum(mean**2), jnp.sum(spread) / rows.shape[0] ** 2

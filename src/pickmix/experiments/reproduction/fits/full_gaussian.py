"""A Gaussian with full covariance as a component for the gradient engine."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

Params = dict[str, jax.Array]


@dataclass(frozen=True)
class FullGaussian:
    """N(mean, L L^T), where L is lower triangular with a positive diagonal.

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
        """Move to `centre` with standard deviations `scale`."""
        return params | {"mean": centre, "log_diagonal": jnp.log(scale)}

    def location(self, params: Params) -> jax.Array:
        """Return the mean."""
        return params["mean"]

    def log_prob(self, params: Params, x: jax.Array) -> jax.Array:
        """Log-density of one row x (D,)."""
        L = jnp.tril(params["lower"], -1) + jnp.diag(jnp.exp(params["log_diagonal"]))
        whitened = jax.scipy.linalg.solve_triangular(L, x - params["mean"], lower=True)
        constant = 0.5 * x.shape[0] * jnp.log(2.0 * jnp.pi)
        return -0.5 * jnp.sum(whitened**2) - jnp.sum(params["log_diagonal"]) - constant

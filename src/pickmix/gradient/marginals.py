"""Rows seen in part: networks without transforms, with what was not seen integrated out.

Without transforms the leaves are Gaussians over single columns, so a tree is a product over
columns. The integral over a column that was not seen is one: its leaf is left out. That is exact
for any pattern of gaps, and costs nothing.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from pickmix.gradient.layered_network import LOG_2_PI
from pickmix.gradient.network import Scalar, Tables
from pickmix.gradient.sptn import Combine, SumProductTransform
from pickmix.gradient.transforms import Params


class PartialSumProduct(SumProductTransform):
    """A network without transforms for rows in which NaN stands for a value that was not seen.

    A tree chooses a child also where nothing was seen; there the weights alone decide.

    Parameters
    ----------
    complete : SumProductTransform
        The network for complete rows. Both have the same tables.

    Examples
    --------
    >>> complete = SumProductTransform(2, 2, 2, 3, transforms=False)
    >>> PartialSumProduct(complete).shapes == complete.shapes
    True
    """

    def __init__(self, complete: SumProductTransform) -> None:
        if complete.transforms:
            raise TypeError(
                "Rows seen in part need a network with transforms=False, "
                f"got {complete.transforms!r}."
            )
        super().__init__(
            complete.children,
            complete.n_partitions,
            len(complete.children),
            complete.n_features,
            transforms=False,
        )
        self.complete = complete

    def evaluate(
        self, parameters: list[Params], choices: jax.Array, x: jax.Array
    ) -> tuple[jax.Array, list[jax.Array]]:
        """Log-density of what was seen, and what `gradient` wants to know."""
        seen = ~jnp.isnan(x)
        x = jnp.where(seen, x, 0.0)
        last = len(self.kinds) - 1
        kind, params = self.kinds[last], parameters[last]
        y = self._from_slots(kind.forward(params, self._to_slots(x, last)), last)
        y = jnp.where(seen, y, 0.0)
        log_scale = jnp.where(self._seen_at(seen), kind.log_scale(params), 0.0)
        total = jnp.sum(log_scale, axis=(1, 2)) - 0.5 * jnp.sum(
            jnp.where(seen, LOG_2_PI, 0.0) + y * y, axis=1
        )
        for depth in range(last):
            log_weights, chosen = self._weights_below(parameters[depth], choices, depth)
            total = total + jnp.sum(jnp.where(chosen, log_weights, 0.0), axis=(1, 2))
        return total, [*[x] * len(self.kinds), y, seen]

    def gradient(
        self,
        parameters: list[Params],
        choices: jax.Array,
        remembered: list[jax.Array],
        weights: jax.Array,
    ) -> list[Params]:
        """Gradient: leaves of columns that were not seen have none."""
        *arrived, seen = remembered
        gradients = super().gradient(parameters, choices, arrived, weights)
        own = gradients[-1]
        own["log_scale"] = jnp.where(self._seen_at(seen), own["log_scale"], 0.0)
        return gradients

    def take_gaussians_below(
        self, tables: Tables, chain: np.ndarray, rows: np.ndarray, seed: int
    ) -> tuple[Tables, np.ndarray]:
        """Fit the layers below; what was not seen of a row is drawn from the tree it stands on."""
        drawn = self.sample(tables, jnp.asarray(chain, jnp.int32), jax.random.key(seed))
        filled = np.where(np.isnan(rows), np.asarray(drawn, np.float64), rows)
        return self.complete.take_gaussians_below(tables, chain, filled, seed)

    def _seen_at(self, seen: jax.Array) -> jax.Array:
        """Columns (R, D) that were seen as places (R, slots, width) of the last layer."""
        return jnp.pad(seen, ((0, 0), (0, 1)))[:, self.layers[-1].coordinates]

    def upward(
        self,
        tables: Tables,
        x: jax.Array,
        beta: Scalar = 1.0,
        combine: Combine = logsumexp,
        observed: np.ndarray | None = None,
    ) -> list[jax.Array]:
        """Log-values of the children of all sum nodes, from the leaves up."""
        seen = ~jnp.isnan(x)
        if observed is not None:
            seen = seen & np.asarray(observed, bool)
        last = len(self.kinds) - 1
        kind, params = self.kinds[last], self._by_slot(tables, last)
        # (slots, 1, width, B): leaves look at the rows themselves.
        places = self._seen_at(seen).transpose(1, 2, 0)[:, None]
        rows = jnp.pad(jnp.where(seen, x, 0.0), ((0, 0), (0, 1)))
        at_slots = rows[:, self.layers[last].coordinates].transpose(1, 2, 0)[:, None]
        by_child = {name: value.swapaxes(0, 1) for name, value in params.items()}
        log_scale = kind.log_scale(by_child).swapaxes(0, 1)[..., None]
        y = kind.forward_all(params, at_slots)
        leaves = jnp.where(places, log_scale - 0.5 * (LOG_2_PI + y * y), 0.0)
        values = [beta * leaves.sum(axis=2)]
        for depth in reversed(range(last)):
            logits = self._by_slot(tables, depth)["logits"]
            nodes = self._sum_nodes(values[0], logits, depth + 1, beta, combine)
            members = np.array(self.layers[depth + 1].parents)
            parts = [nodes[members == slot].sum(0) for slot in range(self.slots[depth])]
            values.insert(0, jnp.stack(parts))
        return values

"""The nodes of a sum-product-transform network, and what one tree through them does.

Table j has a row for every slot of layer j and every way to get there, the own choice last. A row
holds its transform and the logits of the sum nodes on its parts.
"""

from __future__ import annotations

from collections.abc import Hashable

import jax
import jax.numpy as jnp
import numpy as np

from pickmix.gradient.network import LOCATION_DRAWS, Network, Tables, flatten, gather
from pickmix.gradient.scopes import divide
from pickmix.gradient.transforms import Params, Transforms

LOG_2_PI = float(np.log(2.0 * np.pi))


class LayeredNetwork(Network):
    """Layers of sum nodes, transforms and products.

    Parameters
    ----------
    n_children : int
        s.
    n_partitions : int
        b, clipped to the coordinates there are.
    n_layers : int
        l.
    n_features : int
        D.
    transforms : bool, default=True
        False leaves the transforms out; leaves are then Gaussians with a location and a scale for
        each coordinate.
    """

    def __init__(
        self,
        n_children: int,
        n_partitions: int,
        n_layers: int,
        n_features: int,
        transforms: bool = True,
    ) -> None:
        self.n_features = n_features
        self.n_children = n_children
        self.transforms = transforms
        self.n_partitions = n_partitions
        self.layers = divide(n_features, n_partitions, n_layers)
        self.slots = tuple(len(layer.sizes) for layer in self.layers)
        self.kinds: list[Transforms] = []
        for depth, layer in enumerate(self.layers):
            last = depth == n_layers - 1
            n_parts = 0 if last else 1 + max(self.layers[depth + 1].parts)
            self.kinds.append(
                Transforms(
                    layer,
                    (0, 0) if last else (n_parts, n_children),
                    rotates_in=transforms,
                    scales=transforms or last,
                    # What follows a lone part begins with a rotation of its own.
                    rotates_out=transforms and n_parts > 1,
                )
            )
        self.shapes = tuple(
            (n_slots * n_children ** (depth + 1), kind.unflatten.width)
            for depth, (n_slots, kind) in enumerate(zip(self.slots, self.kinds, strict=True))
        )

    @property
    def key(self) -> tuple[Hashable, ...]:
        """The parameters."""
        shape = (self.n_children, self.n_partitions, len(self.layers), self.n_features)
        return (*shape, self.transforms)

    @property
    def n_trees(self) -> int:
        """K: one child at every slot, so s to the number of slots."""
        return int(self.n_children**self.n_slots)

    @property
    def n_parameters(self) -> int:
        """Free parameters: no padding, and one weight less than children at every sum node."""
        total = 0
        for depth, kind in enumerate(self.kinds):
            paths_above = self.n_children**depth
            total += kind.n_parameters * paths_above * self.n_children
            total += self.slots[depth] * paths_above * (self.n_children - 1)
        return total

    # -- where things are ---------------------------------------------------------------

    def _paths(self, choices: jax.Array, depth: int) -> jax.Array:
        """Number of the way to each slot of a layer, the own choice included, (..., slots)."""
        number = jnp.zeros((), jnp.int32)
        for step in range(depth + 1):
            places = np.array([path[step] for path in self.layers[depth].paths])
            number = number * self.n_children + choices[..., places]
        return number

    def rows(self, choices: jax.Array) -> tuple[jax.Array, ...]:
        """Table rows of trees."""
        return tuple(
            self._paths(choices, depth)
            + np.arange(n_slots, dtype=np.int32) * self.n_children ** (depth + 1)
            for depth, n_slots in enumerate(self.slots)
        )

    def unpack(self, records: Tables) -> list[Params]:
        """Name the parameters of each layer."""
        return [kind.unflatten(record) for kind, record in zip(self.kinds, records, strict=True)]

    def pack(self, parameters: list[Params]) -> Tables:
        """Join named parameters to records."""
        return tuple(flatten(layer, 2) for layer in parameters)

    def _by_slot(self, tables: Tables, depth: int) -> Params:
        """Parameters of a whole table as (slots, paths * s, ...)."""
        table = tables[depth].reshape(self.slots[depth], -1, self.shapes[depth][1])
        by_slot: Params = self.kinds[depth].unflatten(table)
        return by_slot

    def _to_slots(self, x: jax.Array, depth: int) -> jax.Array:
        """Coordinates (R, D) as scopes (R, slots, width), with zeros where there is none."""
        layer = self.layers[depth]
        if layer.real.all():
            return x.reshape(x.shape[0], *layer.real.shape)
        padded = jnp.pad(x, ((0, 0), (0, 1)))
        return padded[:, layer.coordinates]

    def _from_slots(self, y: jax.Array, depth: int) -> jax.Array:
        """Scopes (R, slots, width) as coordinates (R, D)."""
        layer = self.layers[depth]
        flat = y.reshape(y.shape[0], -1)
        return flat if layer.real.all() else flat[:, np.flatnonzero(layer.real.ravel())]

    # -- one tree -----------------------------------------------------------------------

    def log_density(self, parameters: list[Params], choices: jax.Array, x: jax.Array) -> jax.Array:
        """Sum of log-dets, log weights below the root and the leaves' log-densities."""
        return self.evaluate(parameters, choices, x)[0]

    def evaluate(
        self, parameters: list[Params], choices: jax.Array, x: jax.Array
    ) -> tuple[jax.Array, list[jax.Array]]:
        """Log-density, and the outputs (R, slots, width) of every layer."""
        total = jnp.full(x.shape[0], -0.5 * self.n_features * LOG_2_PI, x.dtype)
        outputs = []
        y = x
        for depth, (kind, params) in enumerate(zip(self.kinds, parameters, strict=True)):
            outputs.append(kind.forward(params, self._to_slots(y, depth)))
            y = self._from_slots(outputs[-1], depth)
            if "log_scale" in params:
                total = total + jnp.sum(kind.log_scale(params), axis=(1, 2))
            if depth + 1 < len(self.kinds):
                log_weights, chosen = self._weights_below(params, choices, depth)
                total = total + jnp.sum(jnp.where(chosen, log_weights, 0.0), axis=(1, 2))
        return total - 0.5 * jnp.sum(y * y, axis=1), outputs

    def gradient(
        self,
        parameters: list[Params],
        choices: jax.Array,
        remembered: list[jax.Array],
        weights: jax.Array,
    ) -> list[Params]:
        """Gradient by undoing the transforms from the leaves up."""
        gradients: list[Params] = []
        by_row = weights[:, None, None]
        arriving = -weights[:, None] * self._from_slots(remembered[-1], len(self.kinds) - 1)
        for depth in reversed(range(len(self.kinds))):
            kind, params = self.kinds[depth], parameters[depth]
            own, leaving = kind.pull_back(
                params, remembered[depth], self._to_slots(arriving, depth)
            )
            if "log_scale" in own:
                own["log_scale"] = own["log_scale"] + jnp.where(kind.real, by_row, 0.0)
            if depth + 1 < len(self.kinds):
                log_weights, chosen = self._weights_below(params, choices, depth)
                logits = by_row * (chosen - jnp.exp(log_weights))
                own["logits"] = self._to_parents(logits, depth + 1)
            gradients.insert(0, own)
            arriving = self._from_slots(leaving, depth)
        return gradients

    def _weights_below(
        self, params: Params, choices: jax.Array, depth: int
    ) -> tuple[jax.Array, jax.Array]:
        """Log-weights (R, slots, s) of the next layer's sum nodes, and which child is chosen."""
        log_weights = jax.nn.log_softmax(params["logits"], axis=-1)
        first = sum(self.slots[: depth + 1])
        chosen = choices[:, first : first + self.slots[depth + 1], None]
        below = self._to_children(log_weights, depth + 1)
        return below, chosen == np.arange(self.n_children, dtype=np.int32)

    def _to_children(self, by_parent: jax.Array, depth: int) -> jax.Array:
        """Values (R, slots above, parts, s) as (R, slots, s)."""
        layer = self.layers[depth]
        flat = by_parent.reshape(by_parent.shape[0], -1, by_parent.shape[-1])
        if flat.shape[1] == len(layer.sizes):
            return flat
        return flat[:, np.array(layer.parents) * by_parent.shape[2] + np.array(layer.parts)]

    def _to_parents(self, by_child: jax.Array, depth: int) -> jax.Array:
        """Invert `_to_children`, with zeros where a slot has fewer parts than others."""
        layer = self.layers[depth]
        n_above, n_parts = self.slots[depth - 1], 1 + max(layer.parts)
        if n_above * n_parts != len(layer.sizes):
            place = np.full((n_above, n_parts), len(layer.sizes))
            place[layer.parents, layer.parts] = np.arange(len(layer.sizes))
            by_child = jnp.pad(by_child, ((0, 0), (0, 1), (0, 0)))[:, place.ravel()]
        return by_child.reshape(by_child.shape[0], n_above, n_parts, -1)

    def sample(self, tables: Tables, choices: jax.Array, key: jax.Array) -> jax.Array:
        """Draw the leaves and invert the transforms upwards."""
        y = jax.random.normal(key, (choices.shape[0], self.n_features), tables[0].dtype)
        return self._invert(tables, choices, y)

    def _invert(self, tables: Tables, choices: jax.Array, y: jax.Array) -> jax.Array:
        """Rows (R, D) that trees map to the points y (R, D) of the leaves."""
        parameters = self.unpack(gather(tables, self.rows(choices)))
        for depth in reversed(range(len(self.kinds))):
            z = self.kinds[depth].inverse(parameters[depth], self._to_slots(y, depth))
            y = self._from_slots(z, depth)
        return y

    @property
    def location_draws(self) -> int:
        """A few trees under each child, or the one that there is."""
        return LOCATION_DRAWS if self.n_slots > 1 else 1

    def locations(self, tables: Tables) -> jax.Array:
        """Mean of the centres of a few trees under each child, with the same choices for all."""
        below = np.random.default_rng(0).integers(
            self.n_children, size=(self.location_draws, self.n_slots - 1)
        )
        children = np.arange(self.n_children).repeat(self.location_draws)
        trees = np.column_stack([children, np.tile(below, (self.n_children, 1))])
        centres = self._invert(
            tables,
            jnp.asarray(trees, jnp.int32),
            jnp.zeros((trees.shape[0], self.n_features), tables[0].dtype),
        )
        return centres.reshape(self.n_children, self.location_draws, -1).mean(axis=1)

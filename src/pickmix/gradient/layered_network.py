"""The nodes of a sum-product-transform network, and what one tree through them does.

Table j has a row for every slot of layer j and every way to get there, the own choice last. A row
holds its transform and the logits of the sum nodes on its parts.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pickmix.gradient.network import LOCATION_DRAWS, Network, Tables, flatten, gather
from pickmix.gradient.transforms import Params, RotatedTransforms, Transforms, divide
from pickmix.gradient.triangular import TriangularTransforms

LOG_2_PI = float(np.log(2.0 * np.pi))


class LayeredNetwork(Network):
    """Layers of sum nodes, transforms and products.

    `n_children` are s for all layers, or for each, the root first. `transforms` are affine maps:
    "triangular" or "rotations" (also True). False leaves them out; leaves are then Gaussians with a
    location and a scale for each coordinate.
    """

    def __init__(
        self,
        n_children: int | Sequence[int],
        n_partitions: int,
        n_layers: int,
        n_features: int,
        transforms: str | bool = "triangular",
    ) -> None:
        self.n_features = n_features
        self.children = (
            tuple(n_children) if isinstance(n_children, Sequence) else (int(n_children),) * n_layers
        )
        if len(self.children) != n_layers:
            raise ValueError(
                f"n_children must have one number for each of the {n_layers} layers, "
                f"got {n_children!r}."
            )
        self.n_children = self.children[0]
        self.transforms = "rotations" if transforms is True else transforms
        self.n_partitions = n_partitions
        self.layers = divide(n_features, n_partitions, n_layers)
        self.slots = tuple(len(layer.sizes) for layer in self.layers)
        self.kinds = [self._kind(depth) for depth in range(n_layers)]
        # Ways to get to a slot of each layer, the own choice included.
        self.n_paths = tuple(math.prod(self.children[: depth + 1]) for depth in range(n_layers))
        self.shapes = tuple(
            (n_slots * n_paths, kind.unflatten.width)
            for n_slots, n_paths, kind in zip(self.slots, self.n_paths, self.kinds, strict=True)
        )

    def _kind(self, depth: int) -> Transforms:
        """Transforms of a layer."""
        layer, last = self.layers[depth], depth == len(self.layers) - 1
        n_parts = 0 if last else 1 + max(self.layers[depth + 1].parts)
        n_logits = (0, 0) if last else (n_parts, self.children[depth + 1])
        if self.transforms == "triangular":
            return TriangularTransforms(layer, n_logits)
        rotates = self.transforms == "rotations"
        return RotatedTransforms(
            layer,
            n_logits,
            rotates_in=rotates,
            scales=rotates or last,
            # What follows a lone part begins with a rotation of its own.
            rotates_out=rotates and n_parts > 1,
        )

    @property
    def key(self) -> tuple[Hashable, ...]:
        return (self.children, self.n_partitions, self.n_features, self.transforms)

    @property
    def n_choices(self) -> tuple[int, ...]:
        by_layer = zip(self.children, self.slots, strict=True)
        return tuple(count for count, n_slots in by_layer for _ in range(n_slots))

    @property
    def n_evaluated_by_all(self) -> int:
        return self.n_paths[-1]

    @property
    def n_trees(self) -> int:
        """K: one child at every slot."""
        return math.prod(self.n_choices)

    @property
    def n_parameters(self) -> int:
        total = 0
        for depth, kind in enumerate(self.kinds):
            n_children, n_paths = self.children[depth], self.n_paths[depth]
            total += kind.n_parameters * n_paths
            total += self.slots[depth] * (n_paths // n_children) * (n_children - 1)
        return total

    # -- where things are ---------------------------------------------------------------

    def _paths(self, choices: jax.Array, depth: int) -> jax.Array:
        """Number of the way to each slot of a layer, the own choice included, (..., slots)."""
        number = jnp.zeros((), jnp.int32)
        for step in range(depth + 1):
            places = np.array([path[step] for path in self.layers[depth].paths])
            number = number * self.children[step] + choices[..., places]
        return number

    def rows(self, choices: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(
            self._paths(choices, depth) + np.arange(n_slots, dtype=np.int32) * self.n_paths[depth]
            for depth, n_slots in enumerate(self.slots)
        )

    def unpack(self, records: Tables) -> list[Params]:
        return [kind.unflatten(record) for kind, record in zip(self.kinds, records, strict=True)]

    def pack(self, parameters: list[Params]) -> Tables:
        return tuple(flatten(layer, 2) for layer in parameters)

    def _by_slot(self, tables: Tables, depth: int) -> Params:
        """Parameters of a whole table as (slots, paths * s, ...)."""
        table = tables[depth].reshape(self.slots[depth], -1, self.shapes[depth][1])
        by_slot: Params = self.kinds[depth].unflatten(table)
        return by_slot

    def _to_slots(self, x: jax.Array, depth: int) -> jax.Array:
        """Coordinates (R, D) as scopes (R, slots, width), with zeros where there is none."""
        layer = self.layers[depth]
        if layer.real.all() and self.transforms != "triangular":
            return x.reshape(x.shape[0], *layer.real.shape)
        # A product with ones and zeros. XLA cannot see through it: else it would compute x anew,
        # from as far back as it can, in each of the many places where a triangle reads it.
        flat = x @ self._placement(depth).astype(x.dtype)
        return flat.reshape(x.shape[0], *layer.real.shape)

    def _from_slots(self, y: jax.Array, depth: int) -> jax.Array:
        """Scopes (R, slots, width) as coordinates (R, D)."""
        flat = y.reshape(y.shape[0], -1)
        if self.layers[depth].real.all():
            return flat
        return flat @ self._placement(depth).T.astype(y.dtype)

    def _placement(self, depth: int) -> np.ndarray:
        """Which coordinate is at which place of which scope, (D, slots * width)."""
        coordinates = self.layers[depth].coordinates.ravel()
        return np.asarray(np.arange(self.n_features)[:, None] == coordinates)

    # -- one tree -----------------------------------------------------------------------

    def log_density(self, parameters: list[Params], choices: jax.Array, x: jax.Array) -> jax.Array:
        return self.evaluate(parameters, choices, x)[0]

    def evaluate(
        self, parameters: list[Params], choices: jax.Array, x: jax.Array
    ) -> tuple[jax.Array, list[jax.Array]]:
        total = jnp.full(x.shape[0], -0.5 * self.n_features * LOG_2_PI, x.dtype)
        arrived = [x]
        y = x
        for depth, (kind, params) in enumerate(zip(self.kinds, parameters, strict=True)):
            y = self._from_slots(kind.forward(params, self._to_slots(y, depth)), depth)
            arrived.append(y)
            if "log_scale" in params:
                total = total + jnp.sum(kind.log_scale(params), axis=(1, 2))
            if depth + 1 < len(self.kinds):
                log_weights, chosen = self._weights_below(params, choices, depth)
                total = total + jnp.sum(jnp.where(chosen, log_weights, 0.0), axis=(1, 2))
        return total - 0.5 * jnp.sum(y * y, axis=1), arrived

    def gradient(
        self,
        parameters: list[Params],
        choices: jax.Array,
        remembered: list[jax.Array],
        weights: jax.Array,
    ) -> list[Params]:
        gradients: list[Params] = []
        by_row = weights[:, None, None]
        gradient = -weights[:, None] * remembered[-1]
        for depth in reversed(range(len(self.kinds))):
            kind, params = self.kinds[depth], parameters[depth]
            x, y, pulled = (
                self._to_slots(values, depth)
                for values in (remembered[depth], remembered[depth + 1], gradient)
            )
            by_name, pulled = kind.pull_back(params, x, y, pulled)
            if "log_scale" in by_name:
                by_name["log_scale"] = by_name["log_scale"] + jnp.where(kind.real, by_row, 0.0)
            if depth + 1 < len(self.kinds):
                log_weights, chosen = self._weights_below(params, choices, depth)
                logits = by_row * (chosen - jnp.exp(log_weights))
                by_name["logits"] = self._to_parents(logits, depth + 1)
            gradients.insert(0, by_name)
            gradient = self._from_slots(pulled, depth)
        return gradients

    def _weights_below(
        self, params: Params, choices: jax.Array, depth: int
    ) -> tuple[jax.Array, jax.Array]:
        """Log-weights (R, slots, s) of the next layer's sum nodes, and which child is chosen."""
        log_weights = jax.nn.log_softmax(params["logits"], axis=-1)
        first = sum(self.slots[: depth + 1])
        chosen = choices[:, first : first + self.slots[depth + 1], None]
        below = self._to_children(log_weights, depth + 1)
        return below, chosen == np.arange(self.children[depth + 1], dtype=np.int32)

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
        return LOCATION_DRAWS if self.n_slots > 1 else 1

    def locations(self, tables: Tables) -> jax.Array:
        below = np.random.default_rng(0).integers(
            self.n_choices[1:], size=(self.location_draws, self.n_slots - 1)
        )
        children = np.arange(self.n_children).repeat(self.location_draws)
        trees = np.column_stack([children, np.tile(below, (self.n_children, 1))])
        centres = self._invert(
            tables,
            jnp.asarray(trees, jnp.int32),
            jnp.zeros((trees.shape[0], self.n_features), tables[0].dtype),
        )
        return centres.reshape(self.n_children, self.location_draws, -1).mean(axis=1)

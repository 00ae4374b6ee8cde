"""Sum-product-transform networks (Pevny, Smidl, Trapp, Polacek and Oberhuber 2020).

A layer is a sum node over s children; a child is an affine transform, then a product over b
contiguous parts of its scope, with a sum node of the next layer on each part. The last layer ends
in N(0, I). No node is shared. A "component" is an induced tree: one child at every sum node that
it reaches; there are K_1 = s, K_l = s K_(l-1)^b of them.

The transform is y = U diag(d) V x + c with rotations U and V, so log|det| = sum log d. U is left
out where it adds nothing: in the last layer, since N(0, I) looks the same from every side, and
with b = 1, since each child below begins with a V of its own. The family of densities is the same.

Table j has a row for every slot of layer j and every way to get there, the own choice last. A row
holds its transform and the logits of the sum nodes on its parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from pickmix.gradient.network import LOCATION_DRAWS, Network, draw_columns, flatten, gather
from pickmix.gradient.scopes import divide
from pickmix.gradient.transforms import Transforms

_SMALLEST_SCALE = 1e-3
# How far the children of lower layers are placed apart, in spreads of their parent.
_SPREAD_BELOW = 0.5
_ANGLES_PLACED = 0.01
_LOG_2_PI = float(np.log(2.0 * np.pi))


class SumProductTransform(Network):
    """A sum-product-transform network; without transforms, a plain sum-product network.

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
    def key(self):
        """The parameters."""
        shape = (self.n_children, self.n_partitions, len(self.layers), self.n_features)
        return (*shape, self.transforms)

    @property
    def n_trees(self) -> int:
        """K: one child at every slot, so s to the number of slots."""
        return self.n_children**self.n_slots

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

    def rows(self, choices):
        """Table rows of trees."""
        return tuple(
            self._paths(choices, depth)
            + np.arange(n_slots, dtype=np.int32) * self.n_children ** (depth + 1)
            for depth, n_slots in enumerate(self.slots)
        )

    def unpack(self, records):
        """Name the parameters of each layer."""
        return [kind.unflatten(record) for kind, record in zip(self.kinds, records, strict=True)]

    def pack(self, parameters):
        """Join named parameters to records."""
        return tuple(flatten(layer, 2) for layer in parameters)

    def _by_slot(self, tables: Any, depth: int) -> Any:
        """Parameters of a whole table as (slots, paths * s, ...)."""
        table = tables[depth].reshape(self.slots[depth], -1, self.shapes[depth][1])
        return self.kinds[depth].unflatten(table)

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

    def log_density(self, parameters, choices, x):
        """Sum of log-dets, log weights below the root and the leaves' log-densities."""
        return self.evaluate(parameters, choices, x)[0]

    def evaluate(self, parameters, choices, x):
        """Log-density, and the outputs (R, slots, width) of every layer."""
        total = jnp.full(x.shape[0], -0.5 * self.n_features * _LOG_2_PI, x.dtype)
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

    def gradient(self, parameters, choices, remembered, weights):
        """Gradient by undoing the transforms from the leaves up."""
        gradients: list[Any] = [None] * len(self.kinds)
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
            gradients[depth] = own
            arriving = self._from_slots(leaving, depth)
        return gradients

    def _weights_below(
        self, params: Any, choices: jax.Array, depth: int
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

    def sample(self, tables, choices, key):
        """Draw the leaves and invert the transforms upwards."""
        y = jax.random.normal(key, (choices.shape[0], self.n_features), tables[0].dtype)
        return self._invert(tables, choices, y)

    def _invert(self, tables: Any, choices: jax.Array, y: jax.Array) -> jax.Array:
        """Rows (R, D) that trees map to the points y (R, D) of the leaves."""
        parameters = self.unpack(gather(tables, self.rows(choices)))
        for depth in reversed(range(len(self.kinds))):
            z = self.kinds[depth].inverse(parameters[depth], self._to_slots(y, depth))
            y = self._from_slots(z, depth)
        return y

    @property
    def location_draws(self):
        """A few trees under each child, or the one that there is."""
        return LOCATION_DRAWS if self.n_slots > 1 else 1

    def locations(self, tables):
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

    # -- all trees ----------------------------------------------------------------------

    def log_density_all(self, tables, x, beta=1.0):
        """Marginal over all trees under each child of the root."""
        return self.upward(tables, x, beta)[0][0].T

    def upward(
        self,
        tables: Any,
        x: jax.Array,
        beta: Any = 1.0,
        combine: Callable = logsumexp,
        observed: Any = None,
    ) -> list[jax.Array]:
        """Log-values of the children of all sum nodes, from the leaves up.

        Parameters
        ----------
        tables : tuple of arrays
        x : (B, D)
        beta : float
            Inverse temperature: values are of p(x, tree)^beta.
        combine : callable
            logsumexp sums over trees, max takes the most probable one.
        observed : (D,) bool array, optional
            Columns that are not observed are integrated out; for networks without transforms.

        Returns
        -------
        values : list of (slots, paths * s, B)
            One array per layer.
        """
        parameters = [self._by_slot(tables, depth) for depth in range(len(self.kinds))]
        outputs: list[jax.Array] = []
        y = x.T.reshape(1, 1, self.n_features, x.shape[0])
        for depth, (kind, params) in enumerate(zip(self.kinds, parameters, strict=True)):
            if depth:
                y = self._split(outputs[-1], depth)
            outputs.append(kind.forward_all(params, y))
        counts = self._observed(observed)
        values: list[jax.Array] = []
        for depth in reversed(range(len(self.kinds))):
            kind, params = self.kinds[depth], parameters[depth]
            if "log_scale" in params:
                by_child = {"log_scale": params["log_scale"].swapaxes(0, 1)}
                log_det = jnp.where(counts[depth], kind.log_scale(by_child), 0.0).sum(-1).T
            else:
                log_det = jnp.zeros(params["logits"].shape[:2], x.dtype)
            value = beta * log_det[..., None]
            if depth + 1 == len(self.kinds):
                seen = counts[depth].astype(x.dtype)
                square = jnp.sum(outputs[depth] ** 2 * seen[:, None, :, None], axis=2)
                constant = _LOG_2_PI * seen.sum(1)
                value = value - 0.5 * beta * (square + constant[:, None, None])
            else:
                nodes = self._sum_nodes(values[0], params["logits"], depth + 1, beta, combine)
                members = np.array(self.layers[depth + 1].parents)
                parts = [nodes[members == slot].sum(0) for slot in range(self.slots[depth])]
                value = value + jnp.stack(parts)
            values.insert(0, value)
        return values

    def _observed(self, observed: Any) -> list[np.ndarray]:
        """Places (slots, width) of each layer that hold an observed coordinate."""
        if observed is None:
            return [layer.real for layer in self.layers]
        padded = np.append(np.asarray(observed, dtype=bool), False)
        return [padded[layer.coordinates] for layer in self.layers]

    def _split(self, y: jax.Array, depth: int) -> jax.Array:
        """Outputs (slots, paths, width, B) of the layer above as inputs of this one."""
        above, layer = self.layers[depth - 1], self.layers[depth]
        n_parts = len(layer.sizes) // len(above.sizes)
        if layer.real.all() and above.real.all() and n_parts * layer.width == above.width:
            n_slots, n_paths, _, n_rows = y.shape
            split = y.reshape(n_slots, n_paths, n_parts, layer.width, n_rows).swapaxes(1, 2)
            return split.reshape(-1, n_paths, layer.width, n_rows)
        parts, place = [], 0
        for slot, size in enumerate(layer.sizes):
            parent = layer.parents[slot]
            place = 0 if layer.parts[slot] == 0 else place
            part = y[parent, :, place : place + size]
            parts.append(jnp.pad(part, ((0, 0), (0, layer.width - size), (0, 0))))
            place += size
        return jnp.stack(parts)

    def _log_weights(self, logits: jax.Array, depth: int) -> jax.Array:
        """Log-weights (slots, paths, s) of a layer, from the logits (slots, paths, parts, s)."""
        log_weights = jax.nn.log_softmax(logits, axis=-1)
        return self._to_children(log_weights.swapaxes(0, 1), depth).swapaxes(0, 1)

    def _sum_nodes(
        self, value: jax.Array, logits: jax.Array, depth: int, beta: Any, combine: Callable
    ) -> jax.Array:
        """Values (slots, paths, B) of the sum nodes of a layer, given their children's."""
        n_slots, n_rows = value.shape[0], value.shape[2]
        log_weights = self._log_weights(logits, depth)
        by_child = value.reshape(n_slots, -1, self.n_children, n_rows)
        return combine(beta * log_weights[..., None] + by_child, axis=2)

    def draw(self, tables, log_weights, x, uniforms, beta=1.0):
        """Draw trees from the posterior, from the root down."""
        values = self.upward(tables, x, beta)
        first = draw_columns(values[0][0].T + beta * log_weights, uniforms[:, :, 0])
        trees = []
        for draw in range(uniforms.shape[1]):

            def choose(scores, place, draw=draw):
                return draw_columns(scores, uniforms[:, draw, place, None])[:, 0]

            trees.append(self._downward(tables, values, first[:, draw], choose, beta))
        return jnp.stack(trees, axis=1)

    def draw_prior(self, tables, log_weights, uniforms):
        """Draw a child at the root, then at every sum node below that is reached."""
        choices = super().draw_prior(tables, log_weights, uniforms[:, :1])
        trees = [choices[:, 0]]
        for depth in range(1, len(self.kinds)):
            above = jnp.stack(trees, axis=1)
            rows = self._paths(above, depth - 1)
            rows = rows + np.arange(self.slots[depth - 1]) * self.n_children**depth
            logits = self.kinds[depth - 1].unflatten(tables[depth - 1][rows])["logits"]
            log_weights_below = self._to_children(jax.nn.log_softmax(logits, axis=-1), depth)
            for slot in range(self.slots[depth]):
                place = len(trees)
                drawn = draw_columns(log_weights_below[:, slot], uniforms[:, place, None])
                trees.append(drawn[:, 0])
        return jnp.stack(trees, axis=1)

    def most_probable_tree(self, tables: Any, log_root: jax.Array, x: jax.Array) -> jax.Array:
        """Choices (B, n_slots) of the most probable tree of each row."""
        values = self.upward(tables, x, combine=jnp.max)
        first = jnp.argmax(values[0][0].T + log_root, axis=1).astype(jnp.int32)
        return self._downward(
            tables, values, first, lambda scores, place: jnp.argmax(scores, axis=1), 1.0
        )

    def _downward(
        self, tables: Any, values: list[jax.Array], first: jax.Array, choose: Callable, beta: Any
    ) -> jax.Array:
        """Choose a child at every slot, given the first choice (B,): choices (B, n_slots)."""
        n_rows = first.shape[0]
        every = jnp.arange(n_rows)
        choices = [first]
        for depth in range(1, len(self.kinds)):
            logits = self._by_slot(tables, depth - 1)["logits"]
            log_weights = self._log_weights(logits, depth)
            for slot, path in enumerate(self.layers[depth].paths):
                node = jnp.zeros((), jnp.int32)
                for place in path[:-1]:
                    node = node * self.n_children + choices[place]
                by_child = values[depth][slot].reshape(-1, self.n_children, n_rows)
                scores = by_child[node, :, every] + beta * log_weights[slot, node]
                choices.append(choose(scores, path[-1]).astype(jnp.int32))
        return jnp.stack(choices, axis=1)

    # -- starts -------------------------------------------------------------------------

    def start(self, seed, dtype):
        """Angles uniform on (0, 2 pi), d on (0, 1), c ~ 0.01 N(0, 1), uniform weights."""
        generator = np.random.default_rng([seed, 3])
        tables = []
        for (n_rows, _), kind in zip(self.shapes, self.kinds, strict=True):
            params = {}
            for name, example in kind.example.items():
                shape = (n_rows, *example.shape)
                if name.startswith("angles"):
                    drawn = generator.uniform(0.0, 2.0 * np.pi, shape)
                elif name == "log_scale":
                    drawn = np.log(generator.uniform(_SMALLEST_SCALE, 1.0, shape))
                elif name == "shift":
                    drawn = 0.01 * generator.standard_normal(shape)
                else:
                    drawn = np.zeros(shape)
                params[name] = jnp.asarray(drawn, dtype)
            tables.append(flatten(params, 1))
        return tuple(tables)

    def place(self, tables, centres, scales, seed):
        """Place the root's children; below them, begin near the identity, each child elsewhere.

        With transforms, the first layer maps its centre to the origin and its spread to one.
        Without, the leaves have the place and the spread of the root's child that they are under.
        """
        generator = np.random.default_rng([seed, 4])
        dtype = tables[0].dtype
        centres, scales = jnp.asarray(centres, dtype), jnp.asarray(scales, dtype)
        placed = []
        for depth, (table, kind) in enumerate(zip(tables, self.kinds, strict=True)):
            params = dict(kind.unflatten(table))
            if "shift" in params:
                shape = params["shift"].shape
                apart = _SPREAD_BELOW * generator.standard_normal(shape)
                params["shift"] = jnp.asarray(apart, dtype)
                params["log_scale"] = jnp.asarray(0.1 * generator.standard_normal(shape), dtype)
            if self.transforms and depth == 0:
                # Hardly rotated, so that the scales are those of the columns.
                for name in params.keys() & {"angles_in", "angles_out"}:
                    drawn = _ANGLES_PLACED * generator.standard_normal(params[name].shape)
                    params[name] = jnp.asarray(drawn, dtype)
                params["log_scale"] = -jnp.log(scales)
                params["shift"] = jnp.zeros_like(centres)
                by_slot = {name: value[:, None] for name, value in params.items()}
                params["shift"] = -kind.forward(by_slot, centres[:, None])[:, 0]
            elif not self.transforms and "shift" in params:
                centre, spread = self._under(centres, depth), self._under(scales, depth)
                scale = jnp.exp(params["log_scale"])
                params["shift"] = params["shift"] - centre * scale / spread
                params["log_scale"] = params["log_scale"] - jnp.log(spread)
            placed.append(flatten(params, 1))
        return tuple(placed)

    def _under(self, values: jax.Array, depth: int) -> jax.Array:
        """Values (s, D) of the root's children at the places of each row of a table, (R, width)."""
        # Rows of a table go by slot, then by first choice, then by the choices below it.
        below = self.n_children**depth
        first = np.repeat(np.arange(self.n_children), below)
        coordinates = np.minimum(self.layers[depth].coordinates, self.n_features - 1)
        by_slot = values[first][:, coordinates]
        return by_slot.swapaxes(0, 1).reshape(-1, coordinates.shape[1])

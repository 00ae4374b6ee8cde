"""Sum-product-transform networks (Pevny, Smidl, Trapp, Polacek and Oberhuber 2020).

A layer is a sum node over s children; a child is an affine transform, then a product over b
contiguous parts of its scope, with a sum node of the next layer on each part. The last layer ends
in N(0, I). No node is shared. A "component" is an induced tree: one child at every sum node that
it reaches; there are K_1 = s, K_l = s K_(l-1)^b of them.

The transform is triangular, or it is the paper's y = U diag(d) V x + c with
rotations U and V, so log|det| = sum log d. U is left out where it adds nothing: in the last layer,
since N(0, I) looks the same from every side, and with b = 1, since each child below begins with a V
of its own. The family of densities is the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from pickmix.gradient.compilation import DType
from pickmix.gradient.network import LOCATION_DRAWS, Network, Scalar, Tables, draw_columns, flatten
from pickmix.gradient.start import fit_below
from pickmix.gradient.transforms import (
    Arrays,
    Params,
    RotatedTransforms,
    Transforms,
    TriangularTransforms,
    divide,
)

LOG_2_PI = float(np.log(2.0 * np.pi))
# Numbers in the covariances of all trees, up to which these are written out as Gaussians.
_MOST_IN_TREES = 10_000_000
# How far the children of lower layers are placed apart, in spreads of their parent.
_SPREAD_BELOW = 0.5

#: (values, axis=...) -> values without that axis.
Combine = Callable[..., jax.Array]
#: (scores (B, s), slot) -> columns (B,)
Choose = Callable[[jax.Array, int], jax.Array]


class SumProductTransform(Network):
    """A sum-product-transform network; without transforms, a plain sum-product network.

    `n_children` are s for all layers, or for each, the root first. `transforms` are affine maps:
    "triangular" or "rotations" (also True). False leaves them out; leaves are then Gaussians with a
    location and a scale for each coordinate.

    Table j has a row for every slot of layer j and every way to get there, the own choice last. A
    row holds its transform and the logits of the sum nodes on its parts.
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
        y = self.leaves(parameters, x)
        total = -0.5 * jnp.sum(y * y + LOG_2_PI, axis=1)
        for kind, params in zip(self.kinds, parameters, strict=True):
            if "log_scale" in params:
                total = total + jnp.sum(kind.log_scale(params), axis=(1, 2))
        return total + self._log_choices(parameters, choices)

    def leaves(self, parameters: list[Params], x: jax.Array) -> jax.Array:
        """Coordinates (R, D) of rows at the leaves of their trees."""
        for depth, (kind, params) in enumerate(zip(self.kinds, parameters, strict=True)):
            x = self._from_slots(kind.forward(params, self._to_slots(x, depth)), depth)
        return x

    def _log_choices(self, parameters: list[Params], choices: jax.Array) -> jax.Array:
        """Log-weights (R,) of the choices below the root."""
        total = jnp.zeros(choices.shape[0], parameters[-1]["shift"].dtype)
        first = self.slots[0]
        for depth, params in enumerate(parameters[:-1], 1):
            log_weights = self._to_children(jax.nn.log_softmax(params["logits"], axis=-1), depth)
            chosen = choices[:, first : first + self.slots[depth], None]
            is_chosen = chosen == np.arange(self.children[depth], dtype=np.int32)
            total = total + jnp.sum(jnp.where(is_chosen, log_weights, 0.0), axis=(1, 2))
            first += self.slots[depth]
        return total

    def _to_children(self, by_parent: jax.Array, depth: int) -> jax.Array:
        """Values (R, slots above, parts, s) as (R, slots, s)."""
        layer = self.layers[depth]
        flat = by_parent.reshape(by_parent.shape[0], -1, by_parent.shape[-1])
        if flat.shape[1] == len(layer.sizes):
            return flat
        return flat[:, np.array(layer.parents) * by_parent.shape[2] + np.array(layer.parts)]

    def sample(self, tables: Tables, choices: jax.Array, key: jax.Array) -> jax.Array:
        y = jax.random.normal(key, (choices.shape[0], self.n_features), tables[0].dtype)
        return self._invert(tables, choices, y)

    def _invert(self, tables: Tables, choices: jax.Array, y: jax.Array) -> jax.Array:
        """Rows (R, D) that trees map to the points y (R, D) of the leaves."""
        parameters = self.gather(tables, choices)
        for depth in reversed(range(len(self.kinds))):
            z = self.kinds[depth].inverse(parameters[depth], self._to_slots(y, depth))
            y = self._from_slots(z, depth)
        return y

    def normals(self, tables: Tables) -> tuple[Any, ...] | None:
        if self.n_trees * self.n_features**2 > _MOST_IN_TREES:
            return None
        trees = np.stack(np.unravel_index(np.arange(self.n_trees), self.n_choices), axis=1)
        choices = jnp.asarray(trees, jnp.int32)

        def invert(y: jax.Array) -> jax.Array:
            return self._invert(tables, choices, jnp.broadcast_to(y, (len(trees), y.shape[0])))

        base = jnp.zeros(self.n_features, tables[0].dtype)
        means, roots = invert(base), jax.vmap(invert, out_axes=2)(jnp.eye(self.n_features))
        shares = jnp.exp(self._log_choices(self.gather(tables, choices), choices))
        return choices[:, 0], shares, means, roots - means[:, :, None]

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

    # -- all trees ----------------------------------------------------------------------

    def log_density_all(self, tables: Tables, x: jax.Array, beta: Scalar = 1.0) -> jax.Array:
        return self.upward(tables, x, beta)[0][0].T

    def upward(
        self, tables: Tables, x: jax.Array, beta: Scalar = 1.0, combine: Combine = logsumexp
    ) -> list[jax.Array]:
        """Log-values (slots, paths * s, B) of the children of each layer's sum nodes.

        They are computed from the leaves up, of p(x, tree)^beta. `combine` is logsumexp over trees,
        or max for the most probable one.
        """
        parameters = [self._by_slot(tables, depth) for depth in range(len(self.kinds))]
        outputs: list[jax.Array] = []
        y = x.T.reshape(1, 1, self.n_features, x.shape[0])
        for depth, (kind, params) in enumerate(zip(self.kinds, parameters, strict=True)):
            if depth:
                y = self._split(outputs[-1], depth)
            outputs.append(kind.forward_all(params, y))
        values: list[jax.Array] = []
        for depth in reversed(range(len(self.kinds))):
            kind, params = self.kinds[depth], parameters[depth]
            if "log_scale" in params:
                by_child = {name: value.swapaxes(0, 1) for name, value in params.items()}
                log_det = kind.log_scale(by_child).sum(-1).T
            else:
                log_det = jnp.zeros(params["logits"].shape[:2], x.dtype)
            value = beta * log_det[..., None]
            if depth + 1 == len(self.kinds):
                real = kind.real.astype(x.dtype)
                square = jnp.sum(outputs[depth] ** 2 * real[:, None, :, None], axis=2)
                constant = LOG_2_PI * real.sum(1)
                value = value - 0.5 * beta * (square + constant[:, None, None])
            else:
                value = value + self._products(values[0], params["logits"], depth, beta, combine)
            values.insert(0, value)
        return values

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

    def _products(
        self, value: jax.Array, logits: jax.Array, depth: int, beta: Scalar, combine: Combine
    ) -> jax.Array:
        """Values (slots, paths, B) of a layer's products of the sum nodes below, given theirs."""
        n_slots, n_rows = value.shape[0], value.shape[2]
        log_weights = self._log_weights(logits, depth + 1)
        by_child = value.reshape(n_slots, -1, self.children[depth + 1], n_rows)
        nodes = combine(beta * log_weights[..., None] + by_child, axis=2)
        members = np.array(self.layers[depth + 1].parents)
        return jnp.stack([nodes[members == slot].sum(0) for slot in range(self.slots[depth])])

    def draw(
        self,
        tables: Tables,
        log_weights: jax.Array,
        x: jax.Array,
        uniforms: jax.Array,
        beta: Scalar = 1.0,
    ) -> jax.Array:
        values = self.upward(tables, x, beta)
        first = draw_columns(values[0][0].T + beta * log_weights, uniforms[:, :, 0])
        trees = []
        for draw in range(uniforms.shape[1]):

            def choose(scores: jax.Array, place: int, draw: int = draw) -> jax.Array:
                return draw_columns(scores, uniforms[:, draw, place, None])[:, 0]

            trees.append(self.downward(tables, values, first[:, draw], choose, beta))
        return jnp.stack(trees, axis=1)

    def draw_prior(self, tables: Tables, log_weights: jax.Array, uniforms: jax.Array) -> jax.Array:
        first = super().draw_prior(tables, log_weights, uniforms[:, :1])[:, 0]

        def choose(scores: jax.Array, place: int) -> jax.Array:
            return draw_columns(scores, uniforms[:, place, None])[:, 0]

        return self.downward(tables, None, first, choose, 1.0)

    def most_probable_tree(self, tables: Tables, log_root: jax.Array, x: jax.Array) -> jax.Array:
        """Choices (B, n_slots) of the most probable tree of each row."""
        values = self.upward(tables, x, combine=jnp.max)
        first = jnp.argmax(values[0][0].T + log_root, axis=1).astype(jnp.int32)
        return self.downward(
            tables, values, first, lambda scores, place: jnp.argmax(scores, axis=1), 1.0
        )

    def downward(
        self,
        tables: Tables,
        values: list[jax.Array] | None,
        first: jax.Array,
        choose: Choose,
        beta: Scalar,
    ) -> jax.Array:
        """Choose a child at every slot, given the first choice (B,): choices (B, n_slots).

        Weights decide, times the `values` of `upward` if there are any.
        """
        n_rows = first.shape[0]
        choices = [first]
        for depth in range(1, len(self.kinds)):
            log_weights = self._log_weights(self._by_slot(tables, depth - 1)["logits"], depth)
            for slot, path in enumerate(self.layers[depth].paths):
                node = jnp.zeros((), jnp.int32)
                for above, place in enumerate(path[:-1]):
                    node = node * self.children[above] + choices[place]
                scores = beta * log_weights[slot, node]
                if values is not None:
                    by_child = values[depth][slot].reshape(-1, self.children[depth], n_rows)
                    scores = by_child[node, :, jnp.arange(n_rows)] + scores
                choices.append(choose(scores, path[-1]).astype(jnp.int32))
        return jnp.stack(choices, axis=1)

    # -- starts -------------------------------------------------------------------------

    def start(self, seed: int, dtype: np.dtype) -> Tables:
        generator = np.random.default_rng([seed, 3])
        drawn = [
            kind.draw(generator, n_rows)
            for (n_rows, _), kind in zip(self.shapes, self.kinds, strict=True)
        ]
        return self._join(drawn, dtype)

    def _join(self, by_layer: Sequence[Arrays], dtype: DType) -> Tables:
        """Tables of transforms (rows, ...) by name; logits are zero where there are none."""
        tables = []
        for (n_rows, _), kind, given in zip(self.shapes, self.kinds, by_layer, strict=True):
            named = dict(given)
            if "logits" in kind.example:
                named.setdefault("logits", np.zeros((n_rows, *kind.example["logits"].shape)))
            assert named.keys() == kind.example.keys()
            arrays = {name: np.asarray(value, dtype) for name, value in named.items()}
            tables.append(flatten(arrays, 1))
        return tuple(tables)

    @property
    def places(self) -> bool:
        return True

    def place(self, tables: Tables, centres: np.ndarray, scales: np.ndarray, seed: int) -> Tables:
        root = self.kinds[0].place(centres, scales) if self.transforms else {}
        generator = np.random.default_rng([seed, 4])
        return self._arrange(root, centres, scales, tables[0].dtype, generator)

    @property
    def takes_gaussians(self) -> bool:
        return True

    @property
    def mixes_columns(self) -> bool:
        # Without transforms columns must stay apart, or there are no marginals.
        return bool(self.transforms)

    @property
    def gaussian_form(self) -> str:
        return "full" if self.transforms else "diag"

    def take_gaussians(
        self, tables: Tables, means: np.ndarray, cholesky: np.ndarray, seed: int
    ) -> Tables:
        root = self.kinds[0].take_gaussians(means, cholesky) if self.transforms else {}
        roots = np.linalg.inv(cholesky)
        spreads = np.sqrt((roots * roots).sum(axis=2))
        return self._arrange(root, means, spreads, tables[0].dtype)

    def _arrange(
        self,
        root: Arrays,
        centres: np.ndarray,
        spreads: np.ndarray,
        dtype: DType,
        generator: np.random.Generator | None = None,
    ) -> Tables:
        """Tables with these transforms of the root's children, and none below.

        Without transforms the leaves have centres and spreads (s, D) of the root's children. The
        `generator` sets children below the root apart.
        """
        by_layer = []
        for depth, kind in enumerate(self.kinds):
            if self.transforms and depth == 0:
                by_layer.append(root)
                continue
            if "log_scale" not in kind.example:
                by_layer.append({})
                continue
            shape = (self.shapes[depth][0], self.layers[depth].width)
            params = kind.place(np.zeros(shape), np.ones(shape))
            if generator is not None:
                params["shift"] = params["shift"] + _SPREAD_BELOW * generator.standard_normal(shape)
                params["log_scale"] = params["log_scale"] + 0.1 * generator.standard_normal(shape)
            if not self.transforms:
                centre, spread = self._under(centres, depth), self._under(spreads, depth)
                params["shift"] = params["shift"] - centre * np.exp(params["log_scale"]) / spread
                params["log_scale"] = params["log_scale"] - np.log(spread)
            by_layer.append(params)
        return self._join(by_layer, dtype)

    def take_gaussians_below(
        self, tables: Tables, chain: np.ndarray, rows: np.ndarray, seed: int
    ) -> tuple[Tables, np.ndarray]:
        """Fit the layers below the root, given the tables of `take_gaussians`.

        Of the trees that rows stand on, first choices stay; those below are drawn again where there
        is something to choose.
        """
        by_layer, chain = fit_below(self, tables, chain, rows, seed)
        return self._join(by_layer, tables[0].dtype), chain

    def _under(self, values: np.ndarray, depth: int) -> np.ndarray:
        """Values (s, D) of the root's children at the places of each row of a table, (R, width)."""
        # Rows of a table go by slot, then by first choice, then by the choices below it.
        below = self.n_paths[depth] // self.n_children
        first = np.repeat(np.arange(self.n_children), below)
        coordinates = np.minimum(self.layers[depth].coordinates, self.n_features - 1)
        by_slot = values[first][:, coordinates]
        return by_slot.swapaxes(0, 1).reshape(-1, coordinates.shape[1])


class PartialSumProduct(SumProductTransform):
    """A network without transforms for rows in which NaN stands for a value that was not seen.

    Its leaves are Gaussians over single columns, so a tree is a product over columns. The integral
    over a column that was not seen is one: its leaf is left out. That is exact for any pattern.
    A tree has a child also where nothing was seen; there the weights alone decide. It has the
    tables of `complete`, the network for complete rows.
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

    def log_density(self, parameters: list[Params], choices: jax.Array, x: jax.Array) -> jax.Array:
        seen = ~jnp.isnan(x)
        last = len(self.kinds) - 1
        kind, params = self.kinds[last], parameters[last]
        at_slots = self._to_slots(jnp.where(seen, x, 0.0), last)
        y = self._from_slots(kind.forward(params, at_slots), last)
        squares = jnp.sum(jnp.where(seen, LOG_2_PI + y * y, 0.0), axis=1)
        log_scale = jnp.where(self._seen_at(seen), kind.log_scale(params), 0.0)
        total = jnp.sum(log_scale, axis=(1, 2)) - 0.5 * squares
        return total + self._log_choices(parameters, choices)

    def take_gaussians_below(
        self, tables: Tables, chain: np.ndarray, rows: np.ndarray, seed: int
    ) -> tuple[Tables, np.ndarray]:
        drawn = self.sample(tables, jnp.asarray(chain, jnp.int32), jax.random.key(seed))
        filled = np.where(np.isnan(rows), np.asarray(drawn, np.float64), rows)
        return self.complete.take_gaussians_below(tables, chain, filled, seed)

    def _seen_at(self, seen: jax.Array) -> jax.Array:
        """Columns (R, D) that were seen as places (R, slots, width) of the last layer."""
        return jnp.pad(seen, ((0, 0), (0, 1)))[:, self.layers[-1].coordinates]

    def upward(
        self, tables: Tables, x: jax.Array, beta: Scalar = 1.0, combine: Combine = logsumexp
    ) -> list[jax.Array]:
        seen = ~jnp.isnan(x)
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
            values.insert(0, self._products(values[0], logits, depth, beta, combine))
        return values

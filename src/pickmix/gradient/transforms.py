"""The scopes of a network's layers, and their affine transforms: y = U diag(d) V x + c."""

from __future__ import annotations

import abc
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from pickmix.gradient.network import Unflatten
from pickmix.gradient.rotations import (
    angles_of,
    n_pairs,
    pull_back,
    rotate,
    rotate_back,
    rotation_mask,
)

#: Named parameters of the transforms of some rows.
Params = dict[str, jax.Array]
#: The same while a start is made.
Arrays = dict[str, np.ndarray]

_SMALLEST_SCALE = 1e-3


@dataclass(frozen=True)
class Layer:
    """The sum nodes that a tree reaches in one layer."""

    #: Coordinates in the scope of each slot; they lie side by side in the order of the slots.
    sizes: tuple[int, ...]
    #: The slot of the layer above that each slot hangs from, and as which of its parts.
    parents: tuple[int, ...]
    parts: tuple[int, ...]
    #: For each slot, the places of the choices above it and of its own one among all choices.
    paths: tuple[tuple[int, ...], ...]

    @property
    def width(self) -> int:
        """Coordinates of the largest scope; smaller ones are padded."""
        return max(self.sizes)

    @property
    def coordinates(self) -> np.ndarray:
        """Coordinate at each place of each padded scope, (slots, width); D where there is none."""
        starts = np.concatenate(([0], np.cumsum(self.sizes)[:-1]))
        places = starts[:, None] + np.arange(self.width)
        return np.where(self.real, places, sum(self.sizes))

    @property
    def real(self) -> np.ndarray:
        """Which places of the padded scopes hold a coordinate, (slots, width)."""
        return np.arange(self.width) < np.array(self.sizes)[:, None]


def divide(n_features: int, n_partitions: int, n_layers: int) -> list[Layer]:
    """Layers of a network over D coordinates, products of at most b contiguous parts.

    Examples
    --------
    >>> [layer.sizes for layer in divide(7, 2, 3)]
    [(7,), (4, 3), (2, 2, 2, 1)]
    >>> divide(7, 2, 3)[2].paths
    ((0, 1, 3), (0, 1, 4), (0, 2, 5), (0, 2, 6))
    """
    layers = [Layer((n_features,), (0,), (0,), ((0,),))]
    n_before = 1
    for _ in range(1, n_layers):
        above = layers[-1]
        sizes: list[int] = []
        parents: list[int] = []
        parts: list[int] = []
        paths: list[tuple[int, ...]] = []
        for slot, size in enumerate(above.sizes):
            n_parts = min(n_partitions, size)
            for part in range(n_parts):
                # As even as possible, the larger parts first.
                sizes.append(size // n_parts + (part < size % n_parts))
                parents.append(slot)
                parts.append(part)
                paths.append((*above.paths[slot], n_before + len(paths)))
        layers.append(Layer(tuple(sizes), tuple(parents), tuple(parts), tuple(paths)))
        n_before += len(sizes)
    return layers


class Transforms(abc.ABC):
    """The children of one layer: which parameters they have, and what they do to coordinates.

    `n_logits` are parts and children of the sum nodes below, (0, 0) in the last layer; `example`
    has the other parameters of one child.
    """

    #: Parameters that training leaves alone.
    constants: tuple[str, ...] = ()

    def __init__(self, layer: Layer, n_logits: tuple[int, int], example: Arrays) -> None:
        self.layer = layer
        if n_logits != (0, 0):
            example = example | {"logits": np.zeros(n_logits, np.float32)}
        self.unflatten = Unflatten(example)
        self.example = example
        # Places beyond a slot's own coordinates do nothing.
        self.real = layer.real

    @property
    @abc.abstractmethod
    def n_parameters(self) -> int:
        """Free parameters of one child in each slot, without logits and padding."""

    @abc.abstractmethod
    def log_scale(self, params: Params) -> jax.Array:
        """Numbers (R, slots, width) that sum to log|det|, zero where there is no coordinate."""

    @abc.abstractmethod
    def forward(self, params: Params, x: jax.Array) -> jax.Array:
        """Map x (R, slots, width) by its own parameters each."""

    @abc.abstractmethod
    def pull_back(
        self, params: Params, x: jax.Array, y: jax.Array, gradient: jax.Array
    ) -> tuple[Params, jax.Array]:
        """Gradients of the parameters and of x, given input, output and the output's gradient.

        That of `log_scale` is without the log-det's share.
        """

    @abc.abstractmethod
    def inverse(self, params: Params, y: jax.Array) -> jax.Array:
        """Invert `forward`."""

    @abc.abstractmethod
    def forward_all(self, params: Params, x: jax.Array) -> jax.Array:
        """Apply every child (slots, P * s, ...) to every row: x (slots, P, width, B).

        Returns (slots, P * s, width, B).
        """

    @abc.abstractmethod
    def draw(self, generator: np.random.Generator, n_rows: int) -> Arrays:
        """Draw transforms (n_rows, ...) as the paper does."""

    @abc.abstractmethod
    def place(self, centres: np.ndarray, spreads: np.ndarray) -> Arrays:
        """Transforms that map `centres` (n, width) to zero and `spreads` to one, not rotated."""

    @abc.abstractmethod
    def take_gaussians(self, means: np.ndarray, cholesky: np.ndarray) -> Arrays:
        """Transforms that map N(means[k], (L_k' L_k)^-1) to N(0, I), with L_k = cholesky[k].

        `means` is (n, m) and `cholesky` (n, m, m), lower triangular. Places beyond m coordinates
        stay what they are.
        """


class RotatedTransforms(Transforms):
    """Transforms with rotations; also those of networks that have none.

    Flags say whether there is a V, a diag(d) with a c, and a U.
    """

    def __init__(
        self,
        layer: Layer,
        n_logits: tuple[int, int],
        *,
        rotates_in: bool,
        scales: bool,
        rotates_out: bool,
    ) -> None:
        width = layer.width
        angles = np.zeros((width, n_pairs(width)), np.float32)
        example: Arrays = {}
        if rotates_in and width > 1:
            example["angles_in"] = angles
        if rotates_out and width > 1:
            example["angles_out"] = angles
        if scales:
            example["log_scale"] = np.zeros(width, np.float32)
            example["shift"] = np.zeros(width, np.float32)
        super().__init__(layer, n_logits, example)
        self.rotates = np.stack([rotation_mask(width, size) for size in layer.sizes])

    @property
    def n_parameters(self) -> int:
        total = 0
        if "log_scale" in self.example:
            total += 2 * int(self.real.sum())
        n_rotations = int(self.rotates.sum())
        return total + n_rotations * sum(name.startswith("angles") for name in self.example)

    def _angles(self, params: Params, name: str) -> jax.Array:
        """Masked angles (depth, pairs, R * slots) of parameters (R, slots, ...)."""
        angles = params[name] * self.rotates.astype(params[name].dtype)
        n_columns = angles.shape[0] * angles.shape[1]
        return angles.reshape(n_columns, *angles.shape[2:]).transpose(1, 2, 0)

    def log_scale(self, params: Params) -> jax.Array:
        return jnp.where(self.real, params["log_scale"], 0.0)

    def forward(self, params: Params, x: jax.Array) -> jax.Array:
        shape = x.shape
        y = self._columns(x)
        if "angles_in" in params:
            y = rotate(self._angles(params, "angles_in"), y)
        if "log_scale" in params:
            y = y * self._columns(jnp.exp(self.log_scale(params)))
        if "angles_out" in params:
            y = rotate(self._angles(params, "angles_out"), y)
        y = y[:, 0, :].T.reshape(shape)
        if "shift" in params:
            y = y + jnp.where(self.real, params["shift"], 0.0)
        return y

    def pull_back(
        self, params: Params, x: jax.Array, y: jax.Array, gradient: jax.Array
    ) -> tuple[Params, jax.Array]:
        shape = y.shape
        gradients = {}
        if "shift" in params:
            gradients["shift"] = jnp.where(self.real, gradient, 0.0)
            y = y - jnp.where(self.real, params["shift"], 0.0)
        y, gradient = self._columns(y), self._columns(gradient)
        if "angles_out" in params:
            angle_gradient, gradient, y = pull_back(self._angles(params, "angles_out"), y, gradient)
            gradients["angles_out"] = self._angle_gradient(angle_gradient, shape)
        if "log_scale" in params:
            moved = (y * gradient)[:, 0].T.reshape(shape)
            gradients["log_scale"] = jnp.where(self.real, moved, 0.0)
            scale = self._columns(jnp.exp(self.log_scale(params)))
            y, gradient = y / scale, gradient * scale
        if "angles_in" in params:
            angle_gradient, gradient, y = pull_back(self._angles(params, "angles_in"), y, gradient)
            gradients["angles_in"] = self._angle_gradient(angle_gradient, shape)
        return gradients, gradient[:, 0].T.reshape(shape)

    def _angle_gradient(self, gradient: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        by_slot = gradient.transpose(2, 0, 1).reshape(*shape[:2], *gradient.shape[:2])
        return jnp.where(self.rotates, by_slot, 0.0)

    @staticmethod
    def _columns(x: jax.Array) -> jax.Array:
        """Scopes (R, slots, width) as columns (width, 1, R * slots)."""
        return x.reshape(-1, x.shape[-1]).T[:, None, :]

    def inverse(self, params: Params, y: jax.Array) -> jax.Array:
        shape = y.shape
        if "shift" in params:
            y = y - jnp.where(self.real, params["shift"], 0.0)
        x = self._columns(y)
        if "angles_out" in params:
            x = rotate_back(self._angles(params, "angles_out"), x)
        if "log_scale" in params:
            x = x / self._columns(jnp.exp(self.log_scale(params)))
        if "angles_in" in params:
            x = rotate_back(self._angles(params, "angles_in"), x)
        return x[:, 0, :].T.reshape(shape)

    def forward_all(self, params: Params, x: jax.Array) -> jax.Array:
        n_slots, n_paths, width, n_rows = x.shape
        by_slot = {name: jnp.swapaxes(value, 0, 1) for name, value in params.items()}
        n_maps = by_slot[next(iter(by_slot))].shape[0]
        n_children = n_maps // n_paths
        if "angles_in" not in params and "angles_out" not in params:
            y = jnp.repeat(x, n_children, axis=1)
            if "log_scale" in params:
                scale = jnp.exp(self.log_scale(by_slot)).swapaxes(0, 1)
                y = y * scale[..., None]
        else:
            matrix = jnp.broadcast_to(
                jnp.eye(width, dtype=x.dtype)[:, :, None], (width, width, n_maps * n_slots)
            )
            if "angles_in" in params:
                matrix = rotate(self._angles(by_slot, "angles_in"), matrix)
            scale = jnp.exp(self.log_scale(by_slot)).reshape(-1, width).T[:, None, :]
            matrix = matrix * scale
            if "angles_out" in params:
                matrix = rotate(self._angles(by_slot, "angles_out"), matrix)
            # (row, column, path, child, slot) -> (slot, path, child and row, column)
            matrix = matrix.reshape(width, width, n_paths, n_children, n_slots)
            matrix = matrix.transpose(4, 2, 3, 0, 1)
            matrix = matrix.reshape(n_slots, n_paths, n_children * width, width)
            y = (matrix @ x).reshape(n_slots, n_maps, width, n_rows)
        if "shift" in params:
            shift = jnp.where(self.real, by_slot["shift"], 0.0).swapaxes(0, 1)
            y = y + shift[..., None]
        return y

    def draw(self, generator: np.random.Generator, n_rows: int) -> Arrays:
        drawn = {}
        for name, example in self.example.items():
            shape = (n_rows, *example.shape)
            if name.startswith("angles"):
                drawn[name] = generator.uniform(0.0, 2.0 * np.pi, shape)
            elif name == "log_scale":
                drawn[name] = draw_log_scale(generator, shape)
            elif name == "shift":
                drawn[name] = draw_shift(generator, shape)
        return drawn

    def place(self, centres: np.ndarray, spreads: np.ndarray) -> Arrays:
        placed = self._zeros(centres.shape[0], "angles_in", "angles_out")
        return placed | {"log_scale": -np.log(spreads), "shift": -centres / spreads}

    def take_gaussians(self, means: np.ndarray, cholesky: np.ndarray) -> Arrays:
        taken = self._zeros(means.shape[0], "angles_in", "angles_out")
        width = self.layer.width
        outer, scale, inner = np.linalg.svd(cholesky)
        # Both factors become rotations: det L > 0, so they are so together.
        mirrored = np.linalg.det(inner) < 0.0
        inner[mirrored, -1] *= -1.0
        outer[mirrored, :, -1] *= -1.0
        shift = -scale * (inner @ means[:, :, None])[:, :, 0]
        if "angles_in" in taken:
            taken["angles_in"] = angles_of(inner, width)
        if "angles_out" in taken:
            taken["angles_out"] = angles_of(outer, width)
            shift = (outer @ shift[:, :, None])[:, :, 0]
        missing = (0, 0), (0, width - means.shape[1])
        return taken | {
            "log_scale": np.pad(np.log(scale), missing),
            "shift": np.pad(shift, missing),
        }

    def _zeros(self, n_rows: int, *names: str) -> Arrays:
        """Zeros for those of the named parameters that exist."""
        shapes = {name: self.example[name].shape for name in names if name in self.example}
        return {name: np.zeros((n_rows, *shape)) for name, shape in shapes.items()}


def draw_log_scale(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Logs of scales that are uniform on (0, 1)."""
    return np.asarray(np.log(generator.uniform(_SMALLEST_SCALE, 1.0, shape)))


def draw_shift(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """0.01 N(0, 1)."""
    return 0.01 * generator.standard_normal(shape)

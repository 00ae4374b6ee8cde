"""The scopes of a network's layers, and the affine transforms of their children."""

from __future__ import annotations

import abc
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from pickmix.gradient.network import Unflatten
from pickmix.gradient.rotations import angles_of, n_pairs, rotate, rotate_back, rotation_mask

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
    """Layers of a network over D coordinates, products of at most b contiguous parts."""
    layers = [Layer((n_features,), (0,), (0,), ((0,),))]
    n_before = 1
    for _ in range(1, n_layers):
        above = layers[-1]
        slots: list[tuple[int, int, int, tuple[int, ...]]] = []
        for parent, size in enumerate(above.sizes):
            n_parts = min(n_partitions, size)
            for part in range(n_parts):
                # As even as possible, the larger parts first.
                part_size = size // n_parts + (part < size % n_parts)
                path = (*above.paths[parent], n_before + len(slots))
                slots.append((part_size, parent, part, path))
        layers.append(Layer(*zip(*slots, strict=True)))
        n_before += len(slots)
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
    """Transforms y = U diag(d) V x + c with rotations; also those of networks that have none.

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

    def _maps(self, params: Params, columns: jax.Array) -> jax.Array:
        """U diag(d) V of columns (width, M, R * slots)."""
        if "angles_in" in params:
            columns = rotate(self._angles(params, "angles_in"), columns)
        if "log_scale" in params:
            columns = columns * self._columns(jnp.exp(self.log_scale(params)))
        if "angles_out" in params:
            columns = rotate(self._angles(params, "angles_out"), columns)
        return columns

    def forward(self, params: Params, x: jax.Array) -> jax.Array:
        y = self._maps(params, self._columns(x))[:, 0, :].T.reshape(x.shape)
        if "shift" in params:
            y = y + jnp.where(self.real, params["shift"], 0.0)
        return y

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
        n_maps = next(iter(by_slot.values())).shape[0]
        if "angles_in" in params:
            shape = (width, width, n_maps * n_slots)
            units = jnp.broadcast_to(jnp.eye(width, dtype=x.dtype)[:, :, None], shape)
            matrices = self._maps(by_slot, units)
            # (row, column, path, child, slot) -> (slot, path, child and row, column)
            matrices = matrices.reshape(width, width, n_paths, -1, n_slots).transpose(4, 2, 3, 0, 1)
            matrices = matrices.reshape(n_slots, n_paths, -1, width)
            y = (matrices @ x).reshape(n_slots, n_maps, width, n_rows)
        else:
            y = jnp.repeat(x, n_maps // n_paths, axis=1)
            if "log_scale" in params:
                y = y * jnp.exp(self.log_scale(by_slot)).swapaxes(0, 1)[..., None]
        if "shift" in params:
            y = y + jnp.where(self.real, by_slot["shift"], 0.0).swapaxes(0, 1)[..., None]
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


def column_ends(n: int) -> np.ndarray:
    """Where the columns of a packed strict lower triangle begin and end, (n,)."""
    return np.concatenate(([0], np.cumsum(np.arange(n - 1, 0, -1)))).astype(np.intp)


def packed_places(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each number of a packed strict lower triangle, n (n - 1) / 2 each."""
    columns, rows = np.triu_indices(n, 1)
    return rows, columns


def _columns(packed: jax.Array, n: int) -> list[jax.Array]:
    """Columns (..., n - 1 - j) of packed triangles (..., n (n - 1) / 2)."""
    ends = column_ends(n)
    return [packed[..., ends[j] : ends[j + 1]] for j in range(n - 1)]


def _at_the_end(x: jax.Array, n: int) -> jax.Array:
    """Put zeros before x (..., m): (..., n)."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(n - x.shape[-1], 0)])


@jax.custom_vjp
def multiply(packed: jax.Array, v: jax.Array) -> jax.Array:
    """Product N v (..., n) of strict lower triangles N, packed (..., n (n - 1) / 2).

    Sums of padded columns are one pass over the numbers on a CPU. A square would need no padding
    and would be twice as long: in what a step gathers, differentiates and writes back.
    """
    n = v.shape[-1]
    total = jnp.zeros_like(v)
    for j, column in enumerate(_columns(packed, n)):
        total = total + _at_the_end(column * v[..., j : j + 1], n)
    return total


def _pull_back(saved: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gradients of N, which is g v' below the diagonal, and of v, which is N' g.

    One pass each, too; JAX would make one of every column.
    """
    packed, v = saved
    columns = _columns(packed, g.shape[-1])
    outer = [g[..., j + 1 :] * v[..., j : j + 1] for j in range(len(columns))]
    sums = [jnp.sum(column * g[..., j + 1 :], axis=-1) for j, column in enumerate(columns)]
    by_v = jnp.stack([*sums, jnp.zeros_like(g[..., 0])], axis=-1)
    return jnp.concatenate(outer, axis=-1), by_v


multiply.defvjp(lambda packed, v: (multiply(packed, v), (packed, v)), _pull_back)


def solve(packed: jax.Array, diagonal: jax.Array, y: jax.Array) -> jax.Array:
    """Solution v of (diag(diagonal) + N) v = y, column by column."""
    n = y.shape[-1]
    solved = []
    for j, column in enumerate(_columns(packed, n)):
        solved.append(y[..., :1] / diagonal[..., j : j + 1])
        y = y[..., 1:] - column * solved[-1]
    return jnp.concatenate([*solved, y / diagonal[..., n - 1 :]], axis=-1)


class TriangularTransforms(Transforms):
    """The children of one layer, with triangular matrices.

        v = exp(log_unit) (x - origin),    y = L v + shift,    log|det| = sum (log_unit + log_scale)

    L has the diagonal exp(log_scale), and `below` it the rest, packed column by column. Origin and
    unit are the child's frame: constants that say where it lies and how wide it is in each
    coordinate. With them a step of a given size means the same for a narrow child and for a wide
    one, and float32 keeps its digits where rows are near a narrow child far from zero.

    Maps with a triangular matrix have no rotation. A Gaussian needs none: N(0, I) looks the same
    from every side, so each covariance has its L. So with one layer, or with b = 1, the family of
    densities is that of general matrices. With b > 1 it is smaller: the first part sees its own
    coordinates, and the next ones see theirs less what is linear in the coordinates before.
    """

    constants = ("log_unit", "origin")

    def __init__(self, layer: Layer, n_logits: tuple[int, int]) -> None:
        width = layer.width
        vector = np.zeros(width, np.float32)
        example = {"log_scale": vector, "log_unit": vector, "origin": vector, "shift": vector}
        if width > 1:
            example["below"] = np.zeros(width * (width - 1) // 2, np.float32)
        super().__init__(layer, n_logits, example)

    @property
    def n_parameters(self) -> int:
        return sum(2 * size + size * (size - 1) // 2 for size in self.layer.sizes)

    def log_scale(self, params: Params) -> jax.Array:
        return self._real(params["log_scale"] + jax.lax.stop_gradient(params["log_unit"]))

    def _real(self, values: jax.Array, otherwise: jax.Array | float = 0.0) -> jax.Array:
        """Values (R, slots, width), and something else where there is no coordinate."""
        return values if self.real.all() else jnp.where(self.real, values, otherwise)

    def _in_frame(self, params: Params, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Coordinates v (R, slots, width) in the children's frames, and the units' inverses."""
        unit = jnp.exp(self._real(jax.lax.stop_gradient(params["log_unit"])))
        return unit * (x - self._real(jax.lax.stop_gradient(params["origin"]))), unit

    def forward(self, params: Params, x: jax.Array) -> jax.Array:
        v, _ = self._in_frame(params, x)
        y = jnp.exp(params["log_scale"]) * v + params["shift"]
        if "below" in params:
            y = y + multiply(params["below"], v)
        # Places beyond a slot's coordinates come last, so a triangle never mixes them into these.
        return self._real(y, x)

    def inverse(self, params: Params, y: jax.Array) -> jax.Array:
        diagonal = jnp.exp(self._real(params["log_scale"]))
        v = y - self._real(params["shift"])
        if "below" in params:
            v = solve(params["below"], diagonal, v)
        else:
            v = v / diagonal
        unit = jnp.exp(self._real(params["log_unit"]))
        return self._real(v / unit + self._real(params["origin"]), y)

    def forward_all(self, params: Params, x: jax.Array) -> jax.Array:
        n_slots, n_paths, width, n_rows = x.shape
        n_maps = params["log_scale"].shape[1]
        by_slot = {name: jnp.swapaxes(value, 0, 1) for name, value in params.items()}
        # (slots, maps, width), constants without gradients
        diagonal, shift = (
            self._real(by_slot[name]).swapaxes(0, 1) for name in ("log_scale", "shift")
        )
        log_unit, origin = (
            jax.lax.stop_gradient(self._real(by_slot[name]).swapaxes(0, 1))
            for name in self.constants
        )
        diagonal, unit = jnp.exp(diagonal), jnp.exp(log_unit)
        shape = (n_slots, n_paths, n_maps // n_paths)
        if "below" not in params:
            v = x[:, :, None] - origin.reshape(*shape, width, 1)
            y = (diagonal * unit).reshape(*shape, width, 1) * v
            return y.reshape(n_slots, n_maps, width, n_rows) + shift[..., None]
        matrices = self._squares(params["below"], diagonal) * unit[..., None, :]
        if n_paths == 1:
            # Rows minus origins first, which keeps the digits of narrow children.
            y = matrices @ (x - origin[..., None])
        else:
            # In lower layers coordinates are about one, and one product for all children of a
            # node is faster.
            shift = shift - (matrices @ origin[..., None])[..., 0]
            y = matrices.reshape(n_slots, n_paths, -1, width) @ x
            y = y.reshape(n_slots, n_maps, width, n_rows)
        return y + shift[..., None]

    @staticmethod
    def _squares(below: jax.Array, diagonal: jax.Array) -> jax.Array:
        """Matrices L (..., width, width) of packed triangles and diagonals (..., width)."""
        width = diagonal.shape[-1]
        columns = [
            _at_the_end(jnp.concatenate([diagonal[..., j : j + 1], column], axis=-1), width)
            for j, column in enumerate([*_columns(below, width), below[..., :0]])
        ]
        return jnp.stack(columns, axis=-1)

    def draw(self, generator: np.random.Generator, n_rows: int) -> Arrays:
        width = self.layer.width
        scale = np.exp(draw_log_scale(generator, (n_rows, width)))
        normal = generator.standard_normal((n_rows, width, width))
        rotated = scale[:, :, None] * np.linalg.qr(normal)[0]
        # With coordinates in reverse an upper triangle is a lower one.
        upper: np.ndarray = np.linalg.qr(rotated[:, :, ::-1])[1]
        cholesky = upper[:, ::-1, ::-1]
        cholesky = cholesky * np.sign(np.diagonal(cholesky, axis1=1, axis2=2))[:, :, None]
        params = self._of(np.zeros((n_rows, width)), np.ones((n_rows, width)), cholesky)
        return params | {"shift": draw_shift(generator, (n_rows, width))}

    def place(self, centres: np.ndarray, spreads: np.ndarray) -> Arrays:
        identity = np.broadcast_to(np.eye(centres.shape[1]), (*centres.shape, centres.shape[1]))
        return self._of(centres, spreads, identity / spreads[:, None, :])

    def take_gaussians(self, means: np.ndarray, cholesky: np.ndarray) -> Arrays:
        n, size = means.shape
        missing = (0, 0), (0, self.layer.width - size)
        whole = np.tile(np.eye(self.layer.width), (n, 1, 1))
        whole[:, :size, :size] = cholesky
        roots = np.linalg.inv(whole)
        return self._of(np.pad(means, missing), np.sqrt((roots * roots).sum(axis=2)), whole)

    def _of(self, origin: np.ndarray, spreads: np.ndarray, cholesky: np.ndarray) -> Arrays:
        """Parameters of L (x - origin), with these spreads (n, width) as units."""
        scaled = cholesky * spreads[:, None, :]
        diagonal = np.diagonal(scaled, axis1=1, axis2=2)
        params = {
            "log_scale": np.log(diagonal),
            "log_unit": -np.log(spreads),
            "origin": origin,
            "shift": np.zeros_like(origin),
        }
        if "below" in self.example:
            rows, columns = packed_places(self.layer.width)
            params["below"] = scaled[:, rows, columns]
        return params

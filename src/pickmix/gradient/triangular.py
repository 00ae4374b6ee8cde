"""Affine transforms of the scopes of one layer by lower triangular matrices.

    v = exp(log_unit) (x - origin),    y = L v + shift,    log|det| = sum (log_unit + log_scale)

L has the diagonal exp(log_scale), and `below` it the rest, packed column by column. Origin and
unit are the child's frame: constants that say where it lies and how wide it is in each coordinate.
They are not trained. With them a step of a given size means the same for a narrow child and for a
wide one, and float32 keeps its digits where rows are near a narrow child far from zero.

Maps with a triangular matrix have no rotation. A Gaussian needs none: N(0, I) looks the same from
every side, so each covariance has its L. So with one layer, or with b = 1, the family of densities
is that of general matrices. With b > 1 it is smaller: the first part sees its own coordinates, and
the next ones see theirs less what is linear in the coordinates before. Rotations let every part
look in directions across all coordinates.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pickmix.gradient.transforms import (
    Arrays,
    Layer,
    Params,
    Transforms,
    draw_log_scale,
    draw_shift,
)


def column_ends(n: int) -> np.ndarray:
    """Where the columns of a packed strict lower triangle begin and end, (n,).

    Examples
    --------
    >>> column_ends(4)
    array([0, 3, 5, 6])
    """
    return np.concatenate(([0], np.cumsum(np.arange(n - 1, 0, -1)))).astype(np.intp)


def packed_places(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each number of a packed strict lower triangle, n (n - 1) / 2 each.

    Examples
    --------
    >>> packed_places(3)
    (array([1, 2, 2]), array([0, 0, 1]))
    """
    columns, rows = np.triu_indices(n, 1)
    return rows, columns


def _columns(packed: jax.Array, n: int) -> list[jax.Array]:
    """Columns (..., n - 1 - j) of packed triangles (..., n (n - 1) / 2)."""
    ends = column_ends(n)
    return [packed[..., ends[j] : ends[j + 1]] for j in range(n - 1)]


def _at_the_end(x: jax.Array, n: int) -> jax.Array:
    """Put zeros before x (..., m): (..., n)."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(n - x.shape[-1], 0)])


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


def multiply_transposed(packed: jax.Array, g: jax.Array) -> jax.Array:
    """Product N' g (..., n); see `multiply`."""
    columns = _columns(packed, g.shape[-1])
    sums = [jnp.sum(column * g[..., j + 1 :], axis=-1) for j, column in enumerate(columns)]
    return jnp.stack([*sums, jnp.zeros_like(g[..., 0])], axis=-1)


def outer(g: jax.Array, v: jax.Array) -> jax.Array:
    """Packed strict lower triangle of g v', (..., n (n - 1) / 2)."""
    return jnp.concatenate(
        [g[..., j + 1 :] * v[..., j : j + 1] for j in range(v.shape[-1] - 1)], axis=-1
    )


def solve(packed: jax.Array, diagonal: jax.Array, y: jax.Array) -> jax.Array:
    """Solution v of (diag(diagonal) + N) v = y, column by column."""
    n = y.shape[-1]
    solved = []
    for j, column in enumerate(_columns(packed, n)):
        solved.append(y[..., :1] / diagonal[..., j : j + 1])
        y = y[..., 1:] - column * solved[-1]
    return jnp.concatenate([*solved, y / diagonal[..., n - 1 :]], axis=-1)


class TriangularTransforms(Transforms):
    """The children of one layer, with triangular matrices."""

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

    def pull_back(
        self, params: Params, x: jax.Array, y: jax.Array, gradient: jax.Array
    ) -> tuple[Params, jax.Array]:
        v, unit = self._in_frame(params, x)
        scaled = jnp.exp(self._real(params["log_scale"])) * gradient
        nothing = jnp.zeros_like(gradient)
        real = self._real(gradient)
        gradients = {"log_unit": nothing, "origin": nothing, "shift": real}
        gradients["log_scale"] = self._real(scaled * v)
        before = scaled
        if "below" in params:
            gradients["below"] = outer(real, self._real(v))
            before = before + multiply_transposed(params["below"], real)
        return gradients, self._real(unit * before, gradient)

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

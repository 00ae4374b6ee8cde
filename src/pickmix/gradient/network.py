"""What engine 2 needs of a model: tables of parameter rows, and log-joints of gathered rows.

A model is a root sum node over s children, perhaps with further sum nodes below. A *tree* picks
one child at every sum node that it reaches; for a plain mixture that is one choice, the component.
The number of sum nodes that a tree reaches, its *slots*, does not depend on the choices.

Parameters lie in one table per layer, one row per child; a tree touches `slots[j]` rows of table
j. The weights of the root are apart, since every row of data touches them all. Some tables may be
fixed: steps read them and do not change them.
"""

from __future__ import annotations

import abc
from collections.abc import Hashable, Sequence
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pickmix.gradient.compilation import DType

Tables = tuple[jax.Array, ...]
#: A number, inside a compiled step or outside.
Scalar = jax.Array | float
#: Tables of a fit that is under way, or of a fitted estimator.
AnyTables = Tables | Sequence[np.ndarray]

#: Draws whose mean is the location of a component that has no `location`.
LOCATION_DRAWS = 8


class Network(abc.ABC):
    """A family of components, or trees of components, for rows of D features."""

    n_features: int
    #: s, children of the root; K for a plain mixture.
    n_children: int
    #: Sum nodes that a tree reaches in each layer; the first is 1.
    slots: tuple[int, ...]
    #: Rows and width of each table.
    shapes: tuple[tuple[int, int], ...]

    @property
    def learns(self) -> tuple[bool, ...]:
        """Which tables change by gradients; the others stay as the start has left them."""
        return (True,) * len(self.shapes)

    @property
    @abc.abstractmethod
    def key(self) -> tuple[Hashable, ...]:
        """What makes two networks the same: they then share compiled programs."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.key == other.key

    def __hash__(self) -> int:
        return hash((type(self), self.key))

    @property
    def n_evaluated_by_all(self) -> int:
        """Components that are evaluated when all are: K, or s^l of a network with l layers."""
        return int(self.n_children ** len(self.slots))

    @property
    def n_slots(self) -> int:
        """Choices that make up a tree."""
        return sum(self.slots)

    @property
    def n_choices(self) -> tuple[int, ...]:
        """Children that each of the choices of a tree is made among, (n_slots,)."""
        return (self.n_children,) * self.n_slots

    @property
    def n_parameters(self) -> int:
        """Free parameters, weights included."""
        sizes = [rows * width for rows, width in self.shapes]
        return sum(compress(sizes, self.learns)) + self.n_children - 1

    @abc.abstractmethod
    def start(self, seed: int, dtype: np.dtype) -> Tables:
        """Draw parameters as the paper does, or as the component's author says."""

    @property
    def mixes_columns(self) -> bool:
        """Whether components may be made of mixed columns, as after whitening."""
        return False

    @property
    def gaussian_form(self) -> str:
        """Covariances of the Gaussians that a fit can begin with: "full" or "diag"."""
        return "full"

    @property
    def places(self) -> bool:
        """Whether the family says how to `place` its components."""
        return False

    def place(self, tables: Tables, centres: np.ndarray, scales: np.ndarray, seed: int) -> Tables:
        """Move the root's children to `centres` (s, D) with spreads `scales` (s, D)."""
        raise TypeError(f"{type(self).__name__} does not say how to place its components.")

    @property
    def takes_gaussians(self) -> bool:
        """Whether the root's children can be Gaussians with full covariances."""
        return False

    def take_gaussians(
        self, tables: Tables, means: np.ndarray, cholesky: np.ndarray, seed: int
    ) -> Tables:
        """Make the root's children N(means[k], (L_k' L_k)^-1).

        `means` is (s, D); `cholesky` (s, D, D) has the L_k, lower triangular with a positive
        diagonal.
        """
        raise TypeError(f"{type(self).__name__} does not say how to begin with Gaussians.")

    @property
    def location_draws(self) -> int:
        """Trees that `locations` looks at for each child; 0 if the family has no locations."""
        return 0

    def locations(self, tables: Tables) -> jax.Array:
        """Points (s, D) amid the rows that each child of the root stands for."""
        raise TypeError(f"{type(self).__name__} does not say where its components lie.")

    def normals(self, tables: Tables) -> tuple[Any, ...] | None:
        """Gaussians that children of the root are mixtures of, if that is known of any.

        Children (M,), shares of them (M,), which are zero of a child that is no such mixture, means
        (M, D), and square roots (M, D, D) of covariances F F'.
        """
        return None

    @abc.abstractmethod
    def rows(self, choices: jax.Array) -> tuple[jax.Array, ...]:
        """Table rows (..., slots[j]) of the trees with `choices` (..., n_slots)."""

    @abc.abstractmethod
    def unpack(self, records: Tables) -> Any:
        """Turn rows (..., slots[j], width[j]) of tables into named parameters."""

    def gather(self, tables: Tables, choices: jax.Array) -> Any:
        """Named parameters (R, ...) of the trees with `choices` (R, n_slots)."""
        by_table = zip(tables, self.rows(choices), strict=True)
        return self.unpack(
            tuple(jnp.take(table, row, axis=0, mode="clip") for table, row in by_table)
        )

    @abc.abstractmethod
    def pack(self, parameters: Any) -> Tables:
        """Invert `unpack`, also for gradients."""

    @abc.abstractmethod
    def log_density(self, parameters: Any, choices: jax.Array, x: jax.Array) -> jax.Array:
        """log p(x, tree | first choice) of R rows and a tree each, (R,).

        The weights below the root are part of it, the root's are not.
        """

    @abc.abstractmethod
    def log_density_all(self, tables: Tables, x: jax.Array, beta: Scalar = 1.0) -> jax.Array:
        """log sum over trees of p(x, tree | first choice)^beta, for each first choice: (R, s)."""

    def draw(
        self,
        tables: Tables,
        log_weights: jax.Array,
        x: jax.Array,
        uniforms: jax.Array,
        beta: Scalar = 1.0,
    ) -> jax.Array:
        """Trees (R, M, n_slots) drawn from p(tree | x)^beta, as `uniforms` (R, M, n_slots) decide.

        `log_weights` (s,) are the root's.
        """
        scores = beta * log_weights + self.log_density_all(tables, x, beta)
        return draw_columns(scores, uniforms[:, :, 0])[:, :, None]

    def draw_prior(self, tables: Tables, log_weights: jax.Array, uniforms: jax.Array) -> jax.Array:
        """Trees (R, n_slots) drawn from the weights alone, as `uniforms` (R, n_slots) decide."""
        scores = jnp.broadcast_to(log_weights, (uniforms.shape[0], log_weights.shape[0]))
        return draw_columns(scores, uniforms)

    @abc.abstractmethod
    def sample(self, tables: Tables, choices: jax.Array, key: jax.Array) -> jax.Array:
        """Draw one row (D,) from each of the trees with `choices` (R, n_slots): (R, D)."""


def to_jax(tables: AnyTables, dtype: DType) -> Tables:
    """Tables as JAX's arrays."""
    return tuple(
        jnp.asarray(table, dtype)
        if isinstance(table, jax.Array)
        else jax.device_put(cast(table, dtype))
        for table in tables
    )


def cast(values: Any, dtype: DType) -> np.ndarray:
    """Cast by NumPy: JAX would compile a program for every shape."""
    with np.errstate(over="ignore"):
        return np.asarray(values, dtype)


def flatten(parameters: Any, n_batch_axes: int) -> jax.Array:
    """Join the leaves of a tree of arrays along one last axis."""
    leaves = jax.tree.leaves(parameters)
    flat = [leaf.reshape(*leaf.shape[:n_batch_axes], -1) for leaf in leaves]
    if isinstance(flat[0], np.ndarray):
        joined: jax.Array = jax.device_put(np.concatenate(flat, axis=-1))
        return joined
    return flat[0] if len(flat) == 1 else jnp.concatenate(flat, axis=-1)


def shape_of(shape: tuple[int, ...], dtype: DType) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an array that is not there yet."""
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


class Unflatten:
    """Turns a last axis of numbers into the leaves of an example tree of arrays."""

    def __init__(self, example: Any) -> None:
        leaves, self._structure = jax.tree.flatten(example)
        sizes = [int(np.prod(leaf.shape)) for leaf in leaves]
        self.width = sum(sizes)
        begins = np.cumsum([0, *sizes]).tolist()
        self._parts = [
            (begin, size, leaf.shape)
            for begin, size, leaf in zip(begins, sizes, leaves, strict=False)
        ]

    def __call__(self, flat: jax.Array) -> Any:
        """Split (..., width) into leaves (..., *shape)."""
        leaves = [
            flat[..., begin : begin + size].reshape(*flat.shape[:-1], *shape)
            for begin, size, shape in self._parts
        ]
        return jax.tree.unflatten(self._structure, leaves)

    def gather(self, table: jax.Array, rows: jax.Array) -> Any:
        """Leaves (..., *shape) of some rows (...) of a table.

        Each leaf is read from the table once. Whole rows would be written first, and then read
        again part by part.
        """

        def read(begin: int, size: int, shape: tuple[int, ...]) -> jax.Array:
            def read_row(row: jax.Array) -> jax.Array:
                return jax.lax.dynamic_slice(table, (row, row.dtype.type(begin)), (1, size))

            return jax.vmap(read_row)(rows.reshape(-1)).reshape(*rows.shape, *shape)

        return jax.tree.unflatten(self._structure, [read(*part) for part in self._parts])


def draw_columns(scores: jax.Array, uniforms: jax.Array) -> jax.Array:
    """Columns (R, M) drawn from rows of log-scores (R, s) by inversion of uniforms (R, M)."""
    probabilities = jnp.exp(scores - scores.max(axis=1, keepdims=True))
    cumulative = jnp.cumsum(probabilities, axis=1)
    targets = uniforms * cumulative[:, -1:]
    columns = jax.vmap(lambda row, target: jnp.searchsorted(row, target, side="right"))(
        cumulative, targets
    )
    return jnp.minimum(columns, scores.shape[1] - 1).astype(jnp.int32)

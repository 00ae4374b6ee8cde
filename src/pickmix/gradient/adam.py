"""Adam (Kingma and Ba 2015) on all rows of a table, or on the visited ones only."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_FIRST, _SECOND, _EPSILON = 0.9, 0.999, 1e-8


class Adam(NamedTuple):
    """Moments of one table (R, P): first, second, and the updates made of each row (R,)."""

    first: jax.Array
    second: jax.Array
    updates: jax.Array

    @staticmethod
    def start(table: jax.Array | np.ndarray) -> Adam:
        """No updates yet."""
        # Made by NumPy: JAX would compile a program for every shape.
        shapes = table.shape, table.shape, table.shape[:1]
        return Adam(*(jax.device_put(np.zeros(shape, table.dtype)) for shape in shapes))


def _move(
    first: jax.Array, second: jax.Array, count: jax.Array, gradient: jax.Array, rate: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """New moments and the change of the parameters, for rows with their counts."""
    first = _FIRST * first + (1.0 - _FIRST) * gradient
    second = _SECOND * second + (1.0 - _SECOND) * gradient * gradient
    # expm1 keeps the digits of 1 - 0.999^t in float32; so do logarithms taken in float64.
    unbiased = first / -jnp.expm1(count * np.log(_FIRST))[:, None]
    spread = jnp.sqrt(second / -jnp.expm1(count * np.log(_SECOND))[:, None])
    return first, second, -rate * unbiased / (spread + _EPSILON)


def dense_update(
    table: jax.Array, adam: Adam, gradient: jax.Array, rate: jax.Array, keep: jax.Array
) -> tuple[jax.Array, Adam]:
    """Update every row of a table (R, P); where `keep` is false nothing changes."""
    count = adam.updates + 1.0
    first, second, change = _move(adam.first, adam.second, count, gradient, rate)
    new = (table + change, Adam(first, second, count))
    kept: tuple[jax.Array, Adam] = jax.tree.map(
        lambda a, b: jnp.where(keep, a, b), new, (table, adam)
    )
    return kept


class VisitedRows(NamedTuple):
    """Rows that a step visits, each once."""

    #: Distinct rows (n,), in order; then numbers past the end of the table.
    rows: jax.Array
    #: Sums over the visits, (n, P).
    gradient: jax.Array


def sum_duplicates(rows: jax.Array, gradient: jax.Array, table_rows: int) -> VisitedRows:
    """Sum gradients (n, P) of equal `rows` (n,).

    Row numbers past the end of the table are padding.
    """
    most = min(rows.shape[0], table_rows)
    order = jnp.argsort(rows, stable=True)
    ordered = rows[order]
    is_new = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
    group = jnp.cumsum(is_new) - 1
    # Gradients stay where they are; a stable order sums those of a row in their order all the same.
    place = jnp.zeros_like(group).at[order].set(group, unique_indices=True)
    total = jax.ops.segment_sum(gradient, place, num_segments=most)
    distinct = jnp.full(most, table_rows, rows.dtype).at[group].set(ordered)
    return VisitedRows(distinct, total)


def row_update(
    table: jax.Array, adam: Adam, visited: VisitedRows, rate: jax.Array, keep: jax.Array
) -> tuple[jax.Array, Adam]:
    """Update the visited rows of a table (R, P) in place: their moments, counts and values.

    A row's moments and its count move only when it is visited.
    """
    rows = jnp.minimum(visited.rows, table.shape[0] - 1)
    count = adam.updates[rows] + 1.0
    first, second, change = _move(
        adam.first[rows], adam.second[rows], count, visited.gradient, rate
    )
    value = table[rows] + change
    # Rows past the end of the table are dropped.
    where = jnp.where(keep, visited.rows, table.shape[0])
    table, first, second, count = (
        array.at[where].set(new, mode="drop", indices_are_sorted=True)
        for array, new in (
            (table, value),
            (adam.first, first),
            (adam.second, second),
            (adam.updates, count),
        )
    )
    return table, Adam(first, second, count)

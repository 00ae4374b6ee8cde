"""The layers of a network below its root, fitted from the top down.

Where a network begins with Gaussians at its root's children, the coordinates that arrive at the
parts below are about N(0, I). Where they are not, a small mixture is closer: its Gaussians become
the children of the sum node on that part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from pickmix.gradient.gaussian_start import Gaussians
from pickmix.gradient.layered_network import LayeredNetwork
from pickmix.gradient.network import Tables, flatten, gather
from pickmix.gradient.small_mixtures import better_mixture
from pickmix.gradient.transforms import Arrays

# Rows are seen with noise of this size. Else rows with the same value in a column, as in tables of
# integers, would make children narrower than any that gets through training.
_NOISE = 1e-3
# Rows of one compiled call.
_BLOCK = 1024


def fit_below(
    network: LayeredNetwork, tables: Tables, chain: np.ndarray, rows: np.ndarray, seed: int
) -> tuple[list[Arrays], np.ndarray]:
    """Fit a small mixture to the rows of every sum node, in the coordinates that arrive there.

    Below the root all transforms are the identity, or the same for all children of a node. Where
    no mixture is better, they stay so.

    Parameters
    ----------
    network : LayeredNetwork
    tables : tuple of arrays
    chain : (N, n_slots) int array
        The rows of a node are those whose chain passes it.
    rows : (N, D) array
    seed : int

    Returns
    -------
    by_layer : list of dict of arrays
        Named parameters (table rows, ...).
    chain : (N, n_slots) int array
        With choices that are drawn from the posterior among a fitted node's children.
    """
    chain = np.array(chain)
    generator = np.random.default_rng([seed, 7])
    rows = rows + _NOISE * generator.standard_normal(rows.shape)
    by_layer = [
        {name: np.array(value) for name, value in kind.unflatten(table).items()}
        for kind, table in zip(network.kinds, tables, strict=True)
    ]
    form = "full" if network.transforms else "diag"
    for depth in range(1, len(network.kinds)):
        # All that is not fitted yet does nothing, so what arrives here arrives at the leaves.
        joined = tuple(flatten(jax.tree.map(jnp.asarray, own), 1) for own in by_layer)
        arrived = _leaves(network, joined, chain, rows)
        layer, n_children = network.layers[depth], network.children[depth]
        for slot, coordinates in enumerate(layer.coordinates):
            parent, part, place = layer.parents[slot], layer.parts[slot], layer.paths[slot][-1]
            above = np.asarray(network.rows(jnp.asarray(chain))[depth - 1])[:, parent]
            for row, members in _groups(above):
                node = row - parent * network.n_paths[depth - 1]
                generator = np.random.default_rng([seed, 8, depth, slot, node])
                values = arrived[np.ix_(members, coordinates[: layer.sizes[slot]])]
                found = better_mixture(values, n_children, generator, form)
                if found is None:
                    continue
                drawn_by = int(generator.integers(2**31))
                found = found.repeated(n_children, drawn_by)
                chain[members, place] = found.draw_components(values, drawn_by)
                by_layer[depth - 1]["logits"][row, part] = np.log(found.weights)
                _write(network, by_layer, depth, slot, node, found)
    return by_layer, chain


def _groups(numbers: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each number that occurs, and where."""
    order = np.argsort(numbers, kind="stable")
    distinct, starts = np.unique(numbers[order], return_index=True)
    return zip(distinct.tolist(), np.split(order, starts[1:]), strict=True)


def _write(
    network: LayeredNetwork,
    by_layer: list[Arrays],
    depth: int,
    slot: int,
    node: int,
    found: Gaussians,
) -> None:
    """Make the children of a sum node Gaussians in the coordinates that arrive there."""
    n_children = found.n_components
    if network.transforms:
        begin = slot * network.n_paths[depth] + node * n_children
        taken = network.kinds[depth].take_gaussians(found.means, found.cholesky)
        for name, value in taken.items():
            by_layer[depth][name][begin : begin + n_children] = value
        return
    # Without transforms a child is where its leaves are: all those below it move alike.
    last, leaves = network.layers[-1], by_layer[-1]
    scales = np.diagonal(found.cholesky, axis1=1, axis2=2)
    first = network.layers[depth].coordinates[slot, 0]
    n_below = network.n_paths[-1] // network.n_paths[depth]
    for leaf, path in enumerate(last.paths):
        if path[depth] != network.layers[depth].paths[slot][-1]:
            continue
        columns = last.coordinates[leaf, : last.sizes[leaf]] - first
        begin = leaf * network.n_paths[-1] + node * n_children * n_below
        own = slice(begin, begin + n_children * n_below), slice(0, columns.shape[0])
        scale = np.repeat(scales[:, columns], n_below, axis=0)
        mean = np.repeat(found.means[:, columns], n_below, axis=0)
        leaves["log_scale"][own] += np.log(scale)
        leaves["shift"][own] = scale * (leaves["shift"][own] - mean)


def _leaves(
    network: LayeredNetwork, tables: Tables, chain: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Coordinates (N, D) of rows at the leaves of their trees."""
    arrive = _compiled_arrival(network)
    arrived = np.empty(rows.shape, tables[0].dtype)
    for start in range(0, rows.shape[0], _BLOCK):
        here = slice(start, start + _BLOCK)
        missing = (0, _BLOCK - rows[here].shape[0]), (0, 0)
        trees = jnp.asarray(np.pad(chain[here], missing), jnp.int32)
        x = jnp.asarray(np.pad(rows[here], missing), tables[0].dtype)
        arrived[here] = np.asarray(arrive(tables, trees, x))[: rows[here].shape[0]]
    return arrived


@lru_cache(maxsize=64)
def _compiled_arrival(
    network: LayeredNetwork,
) -> Callable[[Tables, jax.Array, jax.Array], jax.Array]:
    """Compile (tables, trees, rows) -> what arrives at the leaves."""

    @jax.jit
    def arrive(tables: Tables, trees: jax.Array, x: jax.Array) -> jax.Array:
        parameters = network.unpack(gather(tables, network.rows(trees)))
        return network.evaluate(parameters, trees, x)[1][-1]

    return arrive

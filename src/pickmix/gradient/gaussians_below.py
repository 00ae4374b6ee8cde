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
from scipy.special import logsumexp

from pickmix.gradient.layered_network import LayeredNetwork
from pickmix.gradient.network import Tables, flatten, gather
from pickmix.gradient.start import Gaussians
from pickmix.gradient.transforms import Arrays

# Rows are seen with noise of this size. Else rows with the same value in a column, as in tables of
# integers, would make children narrower than any that gets through training.
_NOISE = 1e-3
# Rows of one compiled call.
_BLOCK = 1024
# A share of the rows that decides whether a mixture is better than N(0, I).
_HELD_OUT = 5
# A component needs this many rows for each of its columns and one more. EM sees at most so many.
_ROWS_PER_COLUMN = 4
_MOST_ROWS = 1000
# Covariances are shrunk to the identity by some rows, and weights to equal ones by a row each.
_PRIOR_ROWS = 3.0
_SMALLEST_VARIANCE = 1e-3
_MOST_ITERATIONS = 50
_TOLERANCE = 1e-3


def fit_below(
    network: LayeredNetwork, tables: Tables, chain: np.ndarray, rows: np.ndarray, seed: int
) -> tuple[list[Arrays], np.ndarray]:
    """Fit a small mixture to the rows of every sum node, in the coordinates that arrive there.

    Below the root all transforms are the identity, or the same for all children of a node. Where
    no mixture is better, they stay so.

    The rows (N, D) of a node are those whose `chain` (N, n_slots) passes it. Returns the named
    parameters (table rows, ...) of each layer, and the chain with choices that are drawn from the
    posterior among a fitted node's children.
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
        joined = tuple(flatten(jax.tree.map(jnp.asarray, layer), 1) for layer in by_layer)
        arrived = _leaves(network, joined, chain, rows)
        layer, n_children = network.layers[depth], network.children[depth]
        for slot, coordinates in enumerate(layer.coordinates):
            parent, part, place = layer.parents[slot], layer.parts[slot], layer.paths[slot][-1]
            above = np.asarray(network.rows(jnp.asarray(chain))[depth - 1])[:, parent]
            for row, members in _groups(above):
                node = row - parent * network.n_paths[depth - 1]
                generator = np.random.default_rng([seed, 8, depth, slot, node])
                values = arrived[np.ix_(members, coordinates[: layer.sizes[slot]])]
                mixture = better_mixture(values, n_children, generator, form)
                if mixture is None:
                    continue
                drawn_by = int(generator.integers(2**31))
                mixture = mixture.repeated(n_children, drawn_by)
                chain[members, place] = mixture.draw_components(values, drawn_by)
                by_layer[depth - 1]["logits"][row, part] = np.log(mixture.weights)
                _write(network, by_layer, depth, slot, node, mixture)
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
    mixture: Gaussians,
) -> None:
    """Make the children of a sum node Gaussians in the coordinates that arrive there."""
    n_children = mixture.n_components
    if network.transforms:
        begin = slot * network.n_paths[depth] + node * n_children
        taken = network.kinds[depth].take_gaussians(mixture.means, mixture.cholesky)
        for name, value in taken.items():
            by_layer[depth][name][begin : begin + n_children] = value
        return
    # Without transforms a child is where its leaves are: all those below it move alike.
    last, leaves = network.layers[-1], by_layer[-1]
    scales = np.diagonal(mixture.cholesky, axis1=1, axis2=2)
    first = network.layers[depth].coordinates[slot, 0]
    n_below = network.n_paths[-1] // network.n_paths[depth]
    for leaf, path in enumerate(last.paths):
        if path[depth] != network.layers[depth].paths[slot][-1]:
            continue
        columns = last.coordinates[leaf, : last.sizes[leaf]] - first
        begin = leaf * network.n_paths[-1] + node * n_children * n_below
        where = slice(begin, begin + n_children * n_below), slice(0, columns.shape[0])
        scale = np.repeat(scales[:, columns], n_below, axis=0)
        mean = np.repeat(mixture.means[:, columns], n_below, axis=0)
        leaves["log_scale"][where] += np.log(scale)
        leaves["shift"][where] = scale * (leaves["shift"][where] - mean)


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


def better_mixture(
    rows: np.ndarray, most: int, generator: np.random.Generator, form: str = "full"
) -> Gaussians | None:
    """A mixture that explains rows better than N(0, I) does, if there is one.

    Mixtures are fitted to four fifths of the rows. The fifth that is left out chooses among them
    and N(0, I): a mixture must gain more there than the standard error of its gain. It then sees
    all rows.

    Rows (N, D) have about zero means and unit variances. There are at most `most` components, fewer
    for few rows. `form` of the covariances is "full" or "diag".

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> rows = 0.3 * rng.normal(size=(400, 2)) + rng.choice([-1.0, 1.0], size=(400, 1))
    >>> better_mixture(rows, 2, rng).means.round().tolist()
    [[-1.0, -1.0], [1.0, 1.0]]
    >>> better_mixture(rng.normal(size=(400, 2)), 4, rng)
    """
    n_rows = min(rows.shape[0], _MOST_ROWS * most)
    size = min(most, n_rows // (_ROWS_PER_COLUMN * (rows.shape[1] + 1)))
    if size < 2:
        return None
    seen = np.asarray(rows[generator.permutation(rows.shape[0])[:n_rows]], np.float64)
    held_out, kept = np.split(seen, [n_rows // _HELD_OUT])
    base = -0.5 * (held_out**2 + np.log(2.0 * np.pi)).sum(axis=1)
    best, best_gain = None, 0.0
    while size > 1:
        mixture = _maximise(kept, _begin_apart(kept, size, generator, form), form)
        gains = logsumexp(mixture.log_joint(held_out), axis=1) - base
        error = gains.std() / np.sqrt(held_out.shape[0])
        if gains.mean() > max(best_gain, error):
            best, best_gain = mixture, gains.mean()
        size //= 2
    return None if best is None else _maximise(seen, best, form)


def _begin_apart(
    rows: np.ndarray, size: int, generator: np.random.Generator, form: str
) -> Gaussians:
    """Gaussians of the rows nearest to centres that lie apart (k-means++)."""
    centres = rows[generator.integers(rows.shape[0], size=1)]
    nearest = np.square(rows - centres).sum(axis=1)
    for _ in range(1, size):
        # With fewer places than centres, any row will do.
        shares = nearest + 1e-12
        drawn = generator.choice(rows.shape[0], p=shares / shares.sum())
        centres = np.vstack([centres, rows[drawn]])
        nearest = np.minimum(nearest, np.square(rows - rows[drawn]).sum(axis=1))
    distances = np.square(rows[:, None] - centres).sum(axis=2)
    shares = np.equal(distances.argmin(axis=1)[:, None], np.arange(size)).astype(np.float64)
    return _gaussians(rows, shares, form)


def _maximise(rows: np.ndarray, mixture: Gaussians, form: str) -> Gaussians:
    """EM, until a row gains next to nothing."""
    last = -np.inf
    for _ in range(_MOST_ITERATIONS):
        scores = mixture.log_joint(rows)
        totals = logsumexp(scores, axis=1)
        if totals.mean() - last < _TOLERANCE:
            break
        last = totals.mean()
        mixture = _gaussians(rows, np.exp(scores - totals[:, None]), form)
    return mixture


def _gaussians(rows: np.ndarray, shares: np.ndarray, form: str) -> Gaussians:
    """The Gaussians of rows (N, D) that belong to them by shares (N, m)."""
    n_rows, n_features = rows.shape
    counts = shares.sum(axis=0)
    means = (shares.T @ rows) / np.maximum(counts, 1e-12)[:, None]
    away = rows - means[:, None]
    scatter = (shares.T[:, :, None] * away).swapaxes(1, 2) @ away
    identity = np.eye(n_features)
    covariances = (scatter + _PRIOR_ROWS * identity) / (counts + _PRIOR_ROWS)[:, None, None]
    covariances += _SMALLEST_VARIANCE * identity
    if form == "diag":
        covariances *= identity
    weights = (counts + 1.0) / (n_rows + counts.shape[0])
    return Gaussians(weights, means, np.tril(np.linalg.inv(np.linalg.cholesky(covariances))))

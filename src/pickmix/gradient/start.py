"""Starts for the gradient engine: the paper's, by clusters of the data, or from Gaussians."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from pickmix.gradient.compilation import DType, compiled, kept_programs, precision
from pickmix.gradient.network import AnyTables, Network, Tables, flatten
from pickmix.selection.randomness import StepRandomness, Stream

if TYPE_CHECKING:
    from pickmix.gradient.sptn import SumProductTransform
    from pickmix.gradient.transforms import Arrays

# k-means sees at most this many rows per centre, and no more centres than rows allow.
_ROWS_PER_CENTRE = 100
_FEWEST_ROWS = 5
_LLOYD_ITERATIONS = 10
_MOST_CENTRES = 4096
# A cluster's spread is shrunk towards the average one as if by this many rows.
_PRIOR_ROWS = 10.0
# Numbers of a block of rows times Gaussians.
_BLOCK_NUMBERS = 4_000_000


@dataclass
class Start:
    """Tables, log-weights of the root (s,), and the tree of each row's chain (N, n_slots)."""

    tables: AnyTables
    log_weights: np.ndarray
    chain: np.ndarray


def random_trees(network: Network, n_rows: int, seed: int) -> np.ndarray:
    """Uniformly drawn trees (n_rows, n_slots)."""
    random = StepRandomness(seed, 0)
    u = random.uniforms(Stream.START, np.arange(n_rows), network.n_slots)
    n_choices = np.array(network.n_choices, np.int32)
    return np.minimum((u * n_choices).astype(np.int32), n_choices - 1)


def choose_start(
    network: Network, clusters: Clusters | None, rows: np.ndarray, seed: int, dtype: DType
) -> Start:
    """Choose start parameters and chains for `rows` (N, D).

    The root's children are placed at the clusters' centres with their spreads, and each row's chain
    begins at the nearest. Without clusters it is the paper's start, which does not use the rows:
    drawn parameters and random trees.
    """
    n_children = network.n_children
    chain = random_trees(network, rows.shape[0], seed)
    with precision(dtype), kept_programs():
        tables = network.start(seed, np.dtype(dtype))
        if clusters is not None:
            centres, scales = clusters.repeated(n_children, seed)
            tables = network.place(tables, centres, scales, seed)
            chain[:, 0] = nearest(rows, centres, scales)
    return Start(tables, np.full(n_children, -np.log(n_children)), chain)


def find_clusters(rows: np.ndarray, n_centres: int, seed: int) -> tuple[Clusters, float]:
    """Clusters, at most `n_centres`, and their mean log-density on rows that k-means did not see.

    The latter decide how many clusters there are: many small ones overfit few rows.
    """
    generator = np.random.default_rng([seed, 1])
    order = generator.permutation(rows.shape[0])[: _ROWS_PER_CENTRE * min(n_centres, _MOST_CENTRES)]
    n_held_out = order.shape[0] // 5
    held_out = np.asarray(rows[order[:n_held_out]], np.float64)
    seen = np.asarray(rows[order[n_held_out:]], np.float64)
    most = max(1, min(n_centres, seen.shape[0] // _FEWEST_ROWS, _MOST_CENTRES))
    sizes = [1]
    while sizes[-1] < most:
        sizes.append(min(most, 4 * sizes[-1]))
    candidates = []
    for size in sizes:
        clusters = _cluster(seen, size, seed)
        candidates.append((clusters.score(held_out) if n_held_out else 0.0, clusters))
    score, best = max(candidates, key=lambda candidate: candidate[0])
    return best, score


@dataclass
class Clusters:
    """Centres (k, D), spreads (k, D) and sizes (k,) of clusters."""

    centres: np.ndarray
    scales: np.ndarray
    counts: np.ndarray

    def score(self, rows: np.ndarray) -> float:
        """Mean log-density of rows under the clusters as diagonal Gaussians, up to a constant."""
        log_weights = np.log((self.counts + 1.0) / (self.counts + 1.0).sum())
        half_distance = 0.5 * _distances(rows, self.centres, self.scales)
        return float(logsumexp(log_weights - half_distance, axis=1).mean())

    def repeated(self, n_centres: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Centres and spreads (n_centres, D), where several may lie about one cluster."""
        centres, scales, share = self.centres, self.scales, self.counts / self.counts.sum()
        n_copies = n_centres - centres.shape[0]
        if n_copies > 0:
            generator = np.random.default_rng([seed, 5])
            copies = generator.choice(centres.shape[0], n_copies, p=share)
            jitter = generator.normal(size=(n_copies, centres.shape[1]))
            centres = np.concatenate([centres, centres[copies] + 0.5 * scales[copies] * jitter])
            scales = np.concatenate([scales, scales[copies]])
        return centres, scales


def _cluster(rows: np.ndarray, n_clusters: int, seed: int) -> Clusters:
    with warnings.catch_warnings():
        # Duplicates: fewer distinct rows than clusters are no reason for a warning.
        warnings.simplefilter("ignore", ConvergenceWarning)
        means = KMeans(
            n_clusters, n_init=1, max_iter=_LLOYD_ITERATIONS, random_state=seed % 2**32
        ).fit(rows)
    centres, labels = means.cluster_centers_, means.labels_
    counts = np.bincount(labels, minlength=n_clusters)
    squares = np.zeros_like(centres)
    np.add.at(squares, labels, (rows - centres[labels]) ** 2)
    # Two rows in one place must not make a component of no width.
    pooled = np.maximum(squares.sum(axis=0) / rows.shape[0], 1e-4 * rows.var(axis=0).mean())
    pooled = np.where(pooled > 0.0, pooled, 1.0)
    variances = (squares + _PRIOR_ROWS * pooled) / (counts + _PRIOR_ROWS)[:, None]
    return Clusters(centres, np.sqrt(variances), counts)


def _distances(rows: np.ndarray, centres: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Minus twice the log-density (N, k) of rows under diagonal Gaussians, up to a constant."""
    precisions = 1.0 / scales**2
    constant = (centres**2 * precisions).sum(axis=1) + 2.0 * np.log(scales).sum(axis=1)
    return np.asarray(rows**2 @ precisions.T - 2.0 * rows @ (centres * precisions).T + constant)


def nearest(rows: np.ndarray, centres: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Most probable centre of each row (N,), as diagonal Gaussians see it."""
    labels = np.empty(rows.shape[0], np.int32)
    size = max(1, 10_000_000 // centres.shape[0])
    for start in range(0, rows.shape[0], size):
        block = np.asarray(rows[start : start + size], np.float64)
        labels[start : start + size] = _distances(block, centres, scales).argmin(axis=1)
    return labels


@dataclass(frozen=True)
class Gaussians:
    """A Gaussian mixture: sum_k weights[k] N(means[k], (L_k' L_k)^-1)."""

    #: (K,).
    weights: np.ndarray
    #: (K, D).
    means: np.ndarray
    #: The L_k (K, D, D), lower triangular with positive diagonals.
    cholesky: np.ndarray

    @property
    def n_components(self) -> int:
        """K."""
        return int(self.weights.shape[0])

    def repeated(self, n_components: int, seed: int) -> Gaussians:
        """The same density with more components: some of them several times, with their shares."""
        n_copies = n_components - self.n_components
        if n_copies == 0:
            return self
        generator = np.random.default_rng([seed, 6])
        copies = generator.choice(self.n_components, n_copies, p=self.weights / self.weights.sum())
        which = np.concatenate([np.arange(self.n_components), copies])
        shared = np.bincount(which, minlength=self.n_components)
        return Gaussians(
            self.weights[which] / shared[which], self.means[which], self.cholesky[which]
        )

    def log_joint(self, rows: np.ndarray) -> np.ndarray:
        """log p(x, k) of rows (N, D), as (N, K).

        NaN is a value that was not seen: it is integrated out, for diagonal L_k alone.
        """
        diagonals = np.diagonal(self.cholesky, axis1=1, axis2=2)
        if np.isnan(rows).any():
            return self._log_joint_of_seen(rows, diagonals)
        with np.errstate(divide="ignore"):
            constants = np.log(self.weights) + np.log(diagonals).sum(axis=1)
        constants -= 0.5 * rows.shape[1] * np.log(2.0 * np.pi)
        values = np.empty((rows.shape[0], self.n_components))
        for k, (mean, factor) in enumerate(zip(self.means, self.cholesky, strict=True)):
            whitened = (rows - mean) @ factor.T
            values[:, k] = constants[k] - 0.5 * np.einsum("ij,ij->i", whitened, whitened)
        return values

    def _log_joint_of_seen(self, rows: np.ndarray, diagonals: np.ndarray) -> np.ndarray:
        seen = ~np.isnan(rows)
        filled = np.where(seen, rows, 0.0)
        with np.errstate(divide="ignore"):
            log_weights = np.log(self.weights)
        values = seen @ (np.log(diagonals) - 0.5 * np.log(2.0 * np.pi)).T + log_weights
        for k, (mean, diagonal) in enumerate(zip(self.means, diagonals, strict=True)):
            whitened = np.where(seen, (filled - mean) * diagonal, 0.0)
            values[:, k] -= 0.5 * np.einsum("ij,ij->i", whitened, whitened)
        return np.asarray(values)

    def draw_components(self, rows: np.ndarray, seed: int) -> np.ndarray:
        """A component for each row (N, D), drawn from its posterior: (N,)."""
        random = StepRandomness(seed, 0)
        uniforms = random.uniforms(Stream.POSTERIOR, np.arange(rows.shape[0]), 1)
        components = np.empty(rows.shape[0], np.int32)
        size = max(1, _BLOCK_NUMBERS // self.n_components)
        for start in range(0, rows.shape[0], size):
            scores = self.log_joint(rows[start : start + size])
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            cumulative = weights.cumsum(axis=1)
            targets = uniforms[start : start + size] * cumulative[:, -1:]
            components[start : start + size] = (cumulative <= targets).sum(axis=1)
        return np.minimum(components, self.n_components - 1)


def gaussian_start(
    network: Network, gaussians: Gaussians, rows: np.ndarray, seed: int, dtype: DType
) -> Start:
    """Begin with the density of a Gaussian mixture, and with chains drawn from its posterior.

    Networks with several layers then fit small mixtures below, where rows left out gain by them.

    The root has at least as many children as there are Gaussians; if it has more, some Gaussians
    become several children.
    """
    gaussians = gaussians.repeated(network.n_children, seed)
    chain = random_trees(network, rows.shape[0], seed)
    chain[:, 0] = gaussians.draw_components(rows, seed)
    with precision(dtype), kept_programs():
        tables = network.start(seed, np.dtype(dtype))
        tables = network.take_gaussians(tables, gaussians.means, gaussians.cholesky, seed)
        below = getattr(network, "take_gaussians_below", None)
        if below is not None:
            tables, chain = below(tables, chain, rows, seed)
    with np.errstate(divide="ignore"):
        log_weights = np.log(gaussians.weights)
    return Start(tables, log_weights, chain)


# -- layers below the root ------------------------------------------------------------------

# Where a network begins with Gaussians at its root's children, the coordinates that arrive at the
# parts below are about N(0, I). Where they are not, a small mixture is closer: its Gaussians become
# the children of the sum node on that part.


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
_SHRINKAGE_ROWS = 3.0
_SMALLEST_VARIANCE = 1e-3
_MOST_ITERATIONS = 50
_TOLERANCE = 1e-3


def fit_below(
    network: SumProductTransform, tables: Tables, chain: np.ndarray, rows: np.ndarray, seed: int
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
        joined = tuple(flatten(layer, 1) for layer in by_layer)
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
    network: SumProductTransform,
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
    network: SumProductTransform, tables: Tables, chain: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Coordinates (N, D) of rows at the leaves of their trees."""
    arrive = compiled(_arrive, network)
    arrived = np.empty(rows.shape, tables[0].dtype)
    for start in range(0, rows.shape[0], _BLOCK):
        here = slice(start, start + _BLOCK)
        missing = (0, _BLOCK - rows[here].shape[0]), (0, 0)
        trees = jnp.asarray(np.pad(chain[here], missing), jnp.int32)
        x = jnp.asarray(np.pad(rows[here], missing), tables[0].dtype)
        arrived[here] = np.asarray(arrive(tables, trees, x))[: rows[here].shape[0]]
    return arrived


def _arrive(
    network: SumProductTransform, tables: Tables, trees: jax.Array, x: jax.Array
) -> jax.Array:
    return network.leaves(network.gather(tables, trees), x)


def better_mixture(
    rows: np.ndarray, most: int, generator: np.random.Generator, form: str = "full"
) -> Gaussians | None:
    """A mixture that explains rows better than N(0, I) does, if there is one.

    Mixtures are fitted to four fifths of the rows. The fifth that is left out chooses among them
    and N(0, I): a mixture must gain more there than the standard error of its gain. It then sees
    all rows.

    Rows (N, D) have about zero means and unit variances. There are at most `most` components, fewer
    for few rows. `form` of the covariances is "full" or "diag".
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
    covariances = (scatter + _SHRINKAGE_ROWS * identity) / (counts + _SHRINKAGE_ROWS)[:, None, None]
    covariances += _SMALLEST_VARIANCE * identity
    if form == "diag":
        covariances *= identity
    weights = (counts + 1.0) / (n_rows + counts.shape[0])
    return Gaussians(weights, means, np.tril(np.linalg.inv(np.linalg.cholesky(covariances))))

"""From K components to one: a binary tree of merges, each with its cost.

Two components are merged into one with the weight, mean and covariance of both together (for other
families: with the same expected features). Runnalls (2007) bounds how far the mixture moves, as a
Kullback-Leibler divergence in nats per row. Two components that are each other's cheapest partner
are merged, and so on until one is left; sorted by cost, these are the merges that always taking
the cheapest pair would make, but for rare cases in which a merged component is nearer to others
than its parts were.

Only neighbours are compared: components that share a block of a few random trees. All merges of a
round are made at once, and trees are drawn again whenever half of the components are gone, so the
work grows as K log K.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
from scipy.cluster.hierarchy import leaves_list
from scipy.sparse import csr_array

from pickmix.checks import check_integer, refuse_overflow
from pickmix.closed_form.pairing import BLOCKS_AT_ONCE, nearest_in_blocks
from pickmix.closed_form.state import MixtureState
from pickmix.families.base import Family
from pickmix.families.layout import Moments, merge_groups, merge_pairs
from pickmix.kernels import choose
from pickmix.model.mixture import LEAST_WEIGHT, MixtureModel
from pickmix.selection.partitions import draw_partition
from pickmix.selection.randomness import StepRandomness
from pickmix.threads import use_threads

_ALL_PAIRS = 256  # Up to this many components all pairs are compared.
_N_TREES = 6  # Else those that share a block of one of these random trees.
_BLOCK_SIZE = 16
_MOST_NEIGHBOURS = 6  # A component keeps the cheapest to merge with; it may be among those of more.
_PAIRS_AT_ONCE = 20_000  # Pairs evaluated at a time, so that their moments take little memory.
_COMPILED_FROM = 5000  # Trees of more components are drawn by compiled kernels.
_WIDENING = 1e-9  # Relative growth of variances where a covariance has no factor.
_TOO_SMALL = 1e-280  # Sums of exponentials below this have lost digits.


@dataclass(frozen=True, eq=False, repr=False)
class MergeTree:
    """From K components to one, two at a time, the cheapest merge first.

    Attributes
    ----------
    linkage : (K - 1, 4) array
        As `scipy.cluster.hierarchy` knows it: row i joins two clusters into cluster K + i; the
        components are clusters 0, ..., K - 1. Columns: the two clusters, the height, the number of
        components. The height is the largest cost so far, so heights never fall.
    costs : (K - 1,) array
        What each merge costs, in nats per row: a bound on how much the Kullback-Leibler divergence
        from the fitted mixture grows (Runnalls 2007). Their sum over the first merges bounds what
        a smaller mixture loses.
    weights : (K,) array
        Weights of the components; they sum to one.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.cluster.hierarchy import fcluster
    >>> from pickmix import GaussianMixture
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(centre, 1.0, (300, 2)) for centre in (0, 2, 20, 22)])
    >>> tree = GaussianMixture(4, random_state=0).fit(X).merge_tree()
    >>> tree.n_components, tree.costs.shape
    (4, (3,))
    >>> bool(tree.costs[-1] > 5 * tree.costs[-2])           # two groups that are far apart
    True
    >>> len(set(fcluster(tree.linkage, 2, "maxclust")))
    2
    """

    linkage: np.ndarray
    costs: np.ndarray
    weights: np.ndarray

    def __repr__(self) -> str:
        total = float(self.costs.sum())
        return f"<MergeTree of {self.n_components:,} components; merges cost {total:.4g} nats>"

    @property
    def n_components(self) -> int:
        """K."""
        return int(self.weights.shape[0])

    def labels(self, n_clusters: int) -> np.ndarray:
        """Cluster of each component, (K,), when `n_clusters` are left.

        Clusters are numbered 0, 1, ... by falling weight. ``mixture.reduce(n_clusters)`` has them
        as components, and ``mixture.predict(X, level=n_clusters)`` returns their numbers.
        """
        K = self.n_components
        check_integer("n_clusters", n_clusters, 1)
        if n_clusters > K:
            raise ValueError(
                f"n_clusters must be at most {K}, the number of components, got {n_clusters!r}."
            )
        n_merges = K - int(n_clusters)
        cluster = np.arange(K + n_merges)
        children = self.linkage[:n_merges, :2].astype(np.int64)
        # From the last merge down: a cluster hands its number to its parts.
        for merge in range(n_merges - 1, -1, -1):
            cluster[children[merge]] = cluster[K + merge]
        _, labels = np.unique(cluster[:K], return_inverse=True)
        by_weight = np.argsort(-np.bincount(labels, self.weights), kind="stable")
        number = np.empty_like(by_weight)
        number[by_weight] = np.arange(by_weight.shape[0])
        return np.asarray(number[labels])

    def order(self) -> np.ndarray:
        """Components (K,) in the order of the leaves, so that clusters stand together."""
        if self.n_components == 1:
            return np.zeros(1, dtype=np.int64)
        return np.asarray(leaves_list(self.linkage), dtype=np.int64)


@dataclass(frozen=True)
class Merges:
    """The merges of K components, in their order."""

    children: np.ndarray  # (K - 1, 2) Nodes that merge i joins into node K + i.
    costs: np.ndarray  # Nats per row, (K - 1,).
    moments: Moments  # Of all 2 K - 1 nodes.

    def tree(self) -> MergeTree:
        """The merges for users."""
        K = self.costs.shape[0] + 1
        sizes = np.ones(2 * K - 1)
        for merge, pair in enumerate(self.children):
            sizes[K + merge] = sizes[pair].sum()
        heights = np.maximum.accumulate(self.costs)
        linkage = np.column_stack([self.children, heights, sizes[K:]])
        return MergeTree(linkage, self.costs.copy(), self.moments.mass[:K].copy())


def merge_model(model: MixtureModel) -> Merges:
    """Merge the components of a mixture until one is left."""
    moments = model.moments(model.centre())
    # A component of weight zero can be merged like any other.
    mass = np.maximum(moments.mass / moments.mass.sum(), LEAST_WEIGHT)
    background = model.background
    if background is not None and model.n_rows > 0.0:
        # One that explains less than one row is like any other.
        background = background if model.weights[background] * model.n_rows >= 1.0 else None
    with use_threads(model.n_jobs):
        backend = choose(mass.shape[0] > _COMPILED_FROM)
        return find_merges(model.family, moments._replace(mass=mass), backend, background)


def group_components(model: MixtureModel, labels: np.ndarray) -> MixtureModel:
    """The mixture whose component g is made of the components with label g."""
    centre = model.centre()
    moments = merge_groups(model.family.layout, model.moments(centre), labels)
    background = model.background
    if background is not None:
        alone = np.count_nonzero(labels == labels[background]) == 1
        background = int(labels[background]) if alone else None
    return with_moments(replace(model, background=background), moments, centre)


def with_moments(model: MixtureModel, moments: Moments, centre: np.ndarray) -> MixtureModel:
    """The mixture of components with moments about a centre, in place of those of the model."""
    moments = _made_sound(model.family, moments)
    state = _state_of(model.family, moments).require_sound()
    return replace(
        model,
        weights=moments.mass / moments.mass.sum(),
        parameters=model.family.parameters(state.model, centre),
    )


def score_levels(
    model: MixtureModel, merges: Merges, rows: np.ndarray, levels: np.ndarray
) -> Iterator[np.ndarray]:
    """Yield log-densities (G, R) of the rows when `levels` (G,) components are left, rising.

    Every node of these levels is evaluated once, so all levels cost about as much as the mixture
    and its merges. Where components share parameters, each level is a mixture of its own.
    """
    if model.family.has_shared_parts:
        tree = merges.tree()
        smaller = (group_components(model, tree.labels(level)) for level in levels.tolist())
        yield np.stack([mixture.score_samples(rows) for mixture in smaller])
        return
    sums = LevelSums(merges.children, levels)
    moments = Moments(*(part[sums.nodes] for part in merges.moments))
    moments = _made_sound(model.family, moments)
    for log_joint, log_base, _ in model.log_joint_blocks(rows, moments=moments):
        scores = sums(log_joint)
        refuse_overflow(scores)
        yield scores + log_base


def _state_of(family: Family, moments: Moments) -> MixtureState:
    prior = family.make_prior(moments, "none", 1.0)
    return MixtureState(family, moments, choose(False), prior, LEAST_WEIGHT)


def _made_sound(family: Family, moments: Moments) -> Moments:
    """Moments whose covariances have factors; two distant points have none once merged."""
    failed = _state_of(family, moments).failures
    if not failed.any():
        return moments
    rows, columns = family.layout.pairs()
    scatter = moments.scatter.copy()
    scatter[np.ix_(failed, rows == columns)] *= 1.0 + _WIDENING
    return moments._replace(scatter=scatter)


def find_merges(
    family: Family, moments: Moments, backend: ModuleType, background: int | None = None
) -> Merges:
    """Merge K components, the cheapest pair of neighbours first, until one is left.

    `moments` are those of `Family.moments_of`, with weights as masses. A `background` is merged
    last.
    """
    return _Merger(family, moments, backend, background).run()


class _Merger:
    def __init__(
        self, family: Family, moments: Moments, backend: ModuleType, background: int | None
    ) -> None:
        self.family = family
        self.backend = backend
        n = moments.mass.shape[0]
        self.n_leaves = self.n_nodes = n
        self.background = background
        self.shared = moments.mass @ moments.scatter / moments.mass.sum()
        self.nodes = Moments(
            *(np.concatenate([part, np.zeros((n - 1, *part.shape[1:]))]) for part in moments)
        )
        #: Weight times negative entropy of each node.
        self.scores = np.zeros(2 * n - 1)
        self.scores[:n] = moments.mass * family.negative_entropy(moments, self.shared)
        self.children = np.zeros((n - 1, 2), dtype=np.int64)
        self.costs = np.zeros(n - 1)

    def run(self) -> Merges:
        live = np.arange(self.n_leaves)
        if self.background is not None:
            live = np.delete(live, self.background)
        phase = 0
        while live.shape[0] > 1:
            phase += 1
            live = self._merge_half(live, phase)
        if self.background is not None and live.shape[0]:
            last = np.array([[live[0], self.background]])
            self._join(last, self._costs_of(last))
        return self._in_order()

    def _merge_half(self, live: np.ndarray, phase: int) -> np.ndarray:
        """Merge until half of the live nodes are left, or one if all pairs are compared."""
        compares_all = live.shape[0] <= _ALL_PAIRS
        enough = 1 if compares_all else live.shape[0] // 2
        pairs = self._candidates(live, phase)
        costs = self._costs_of(pairs)
        if not compares_all:
            kept = _among_cheapest(pairs, costs, _MOST_NEIGHBOURS)
            pairs, costs = pairs[kept], costs[kept]
        n_live = live.shape[0]
        is_live = np.zeros(self.scores.shape[0], dtype=np.bool_)
        is_live[live] = True
        while n_live > enough and pairs.shape[0]:
            chosen = _cheapest_of_both(pairs, costs, self.n_nodes)
            joined = pairs[chosen]
            made = self._join(joined, costs[chosen])
            is_live[joined] = False
            is_live[made] = True
            n_live -= made.shape[0]
            pairs, costs = self._follow(pairs, costs, joined, made)
        return np.flatnonzero(is_live)

    def _follow(
        self, pairs: np.ndarray, costs: np.ndarray, joined: np.ndarray, made: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Pairs after merges: a merged node has the neighbours of its parts."""
        becomes = np.arange(self.n_nodes)
        becomes[joined] = made[:, None]
        following = np.sort(becomes[pairs], axis=1)
        is_old = (following == pairs).all(axis=1)
        new = _distinct(following[~is_old & (following[:, 0] != following[:, 1])])
        return (
            np.concatenate([pairs[is_old], new]),
            np.concatenate([costs[is_old], self._costs_of(new)]),
        )

    def _join(self, pairs: np.ndarray, costs: np.ndarray) -> np.ndarray:
        """Merge disjoint pairs (n, 2) of nodes; returns the new nodes (n,)."""
        made = np.arange(self.n_nodes, self.n_nodes + pairs.shape[0])
        merged = merge_pairs(self.family.layout, self._at(pairs[:, 0]), self._at(pairs[:, 1]))
        for all_of_them, new in zip(self.nodes, merged, strict=True):
            all_of_them[made] = new
        self.scores[made] = self.scores[pairs].sum(axis=1) - costs
        self.children[made - self.n_leaves] = pairs
        self.costs[made - self.n_leaves] = costs
        self.n_nodes += pairs.shape[0]
        return made

    def _at(self, nodes: np.ndarray) -> Moments:
        return Moments(*(part[nodes] for part in self.nodes))

    def _costs_of(self, pairs: np.ndarray) -> np.ndarray:
        """Costs (n,) of merging pairs (n, 2), at least zero, which rounding may pass."""
        costs = np.empty(pairs.shape[0])
        for start in range(0, pairs.shape[0], _PAIRS_AT_ONCE):
            some = pairs[start : start + _PAIRS_AT_ONCE]
            merged = merge_pairs(self.family.layout, self._at(some[:, 0]), self._at(some[:, 1]))
            after = merged.mass * self.family.negative_entropy(merged, self.shared)
            costs[start : start + _PAIRS_AT_ONCE] = self.scores[some].sum(axis=1) - after
        return np.maximum(costs, 0.0)

    def _candidates(self, live: np.ndarray, phase: int) -> np.ndarray:
        """Pairs (n, 2) of live nodes that may be merged, the smaller number first."""
        n = live.shape[0]
        if n <= _ALL_PAIRS:
            return np.stack([live[side] for side in np.triu_indices(n, 1)], axis=1)
        moments = self._at(live)
        prior = self.family.make_prior(moments, "none", float(n))
        state = MixtureState(self.family, moments, self.backend, prior, 1e-300)
        places, widths = state.positions(), state.scales()
        points = places / widths
        found = []
        random = StepRandomness(0, phase)
        for number in range(_N_TREES):
            partition = draw_partition(
                places, _BLOCK_SIZE, 0.0, random.child(number), self.backend, widths
            )
            for first in range(0, partition.n_blocks, BLOCKS_AT_ONCE):
                found.append(nearest_in_blocks(partition, first, points))
        return np.asarray(live[_distinct(np.sort(np.concatenate(found), axis=1))])

    def _in_order(self) -> Merges:
        """All merges by rising cost, but none before those of its parts."""
        n = self.n_leaves
        heights = np.zeros(2 * n - 1)
        for merge, (a, b) in enumerate(self.children.tolist()):
            heights[n + merge] = max(self.costs[merge], heights[a], heights[b])
        order = np.argsort(heights[n:], kind="stable")
        number = np.arange(2 * n - 1)
        number[n + order] = np.arange(n, 2 * n - 1)
        nodes = np.concatenate([np.arange(n), n + order])
        children = np.sort(number[self.children[order]], axis=1)
        return Merges(children, self.costs[order], self._at(nodes))


def _distinct(pairs: np.ndarray) -> np.ndarray:
    """Pairs (n, 2) of non-negative integers without repetition, in order."""
    # One number per pair: to sort pairs as such takes ten times as long.
    base = int(pairs.max(initial=0)) + 1
    return np.stack(np.divmod(np.unique(pairs[:, 0] * base + pairs[:, 1]), base), axis=1)


def _among_cheapest(pairs: np.ndarray, costs: np.ndarray, most: int) -> np.ndarray:
    """Numbers of the pairs (n, 2) that are among the `most` cheapest of one of their members."""
    both = pairs.ravel(order="F")
    order = np.lexsort((np.tile(costs, 2), both))
    members = both[order]
    starts = np.flatnonzero(np.diff(members, prepend=-1))
    ranks = np.arange(members.shape[0])
    ranks -= np.repeat(starts, np.diff(starts, append=members.shape[0]))
    return np.unique(order[ranks < most] % pairs.shape[0])


def _cheapest_of_both(pairs: np.ndarray, costs: np.ndarray, n_nodes: int) -> np.ndarray:
    """Numbers of disjoint pairs (n, 2) that are the cheapest of both members; one at least."""
    least = np.full(n_nodes, np.inf)
    np.minimum.at(least, pairs.ravel(), np.repeat(costs, 2))
    found = np.flatnonzero((costs[:, None] == least[pairs]).all(axis=1))
    # Where costs are equal, a node may be in several: the first of them counts.
    first = np.full(n_nodes, costs.shape[0])
    np.minimum.at(first, pairs[found].ravel(), np.repeat(found, 2))
    return np.asarray(found[(first[pairs[found]] == found[:, None]).all(axis=1)])


class LevelSums:
    """Sums log-joints of nodes over those that are left at each of `levels` (G,), rising.

    A node is left from the merge that makes it to the merge that takes it. So each is added to the
    few nodes of a binary tree over the levels that cover its range, and the sum of a level is along
    its path from the root. Nothing is subtracted, so nothing cancels. `children` (K - 1, 2) are as
    in `Merges`.

    >>> sums = LevelSums(np.array([[0, 2], [1, 3]]), np.array([1, 2, 3]))
    >>> np.exp(sums(np.log([[0.5], [0.25], [0.125], [0.75], [1.0]]))).ravel()
    array([1.   , 1.   , 0.875])
    """

    def __init__(self, children: np.ndarray, levels: np.ndarray) -> None:
        n_merges = children.shape[0]
        K = n_merges + 1
        # Merge i leaves K - 1 - i components.
        most = np.concatenate([np.full(K, K), K - 1 - np.arange(n_merges)])
        least = np.ones(2 * K - 1, dtype=np.int64)
        least[children] = (K - np.arange(n_merges))[:, None]
        self.n_levels = levels.shape[0]
        self.size = 1 << (self.n_levels - 1).bit_length()
        left = np.searchsorted(levels, least, side="left") + self.size
        right = np.searchsorted(levels, most, side="right") + self.size
        nodes = np.arange(2 * K - 1)
        covers: list[tuple[np.ndarray, np.ndarray]] = []
        while (left < right).any():
            inside = left < right
            at_left, at_right = inside & (left % 2 == 1), inside & (right % 2 == 1)
            covers.append((left[at_left], nodes[at_left]))
            covers.append((right[at_right] - 1, nodes[at_right]))
            left, right = (left + at_left) // 2, (right - at_right) // 2
        places, members = map(np.concatenate, zip(*covers, strict=True))
        shape = (2 * self.size, 2 * K - 1)
        covering = csr_array((np.ones(places.shape[0]), (places, members)), shape=shape)
        #: Nodes (M,) that are left at one of the levels at least.
        self.nodes = np.unique(members)
        self.covering = covering[:, self.nodes]

    def __call__(self, log_joint: np.ndarray) -> np.ndarray:
        """Log-densities (G, R) at all levels from log-joints (M, R) of `nodes`."""
        largest = log_joint.max(axis=0)
        sums = self.covering @ np.exp(log_joint - largest)
        for above, below in self._ways_down():
            sums[below] += np.repeat(sums[above], 2, axis=0)
        sums = sums[self.size : self.size + self.n_levels]
        # A few broad components may be nothing beside a narrow one that comes later.
        lost = np.flatnonzero((sums < _TOO_SMALL).any(axis=0))
        with np.errstate(divide="ignore"):
            found = np.log(sums) + largest
        if lost.shape[0]:
            found[:, lost] = self._in_logarithms(log_joint[:, lost])
        return np.asarray(found)

    def _in_logarithms(self, log_joint: np.ndarray) -> np.ndarray:
        """The same, exact for densities that differ widely, and ten times slower."""
        sums = np.full((2 * self.size, log_joint.shape[1]), -np.inf)
        filled = np.flatnonzero(np.diff(self.covering.indptr))
        starts = self.covering.indptr[filled]
        sums[filled] = np.logaddexp.reduceat(log_joint[self.covering.indices], starts, axis=0)
        for above, below in self._ways_down():
            sums[below] = np.logaddexp(sums[below], np.repeat(sums[above], 2, axis=0))
        return sums[self.size : self.size + self.n_levels]

    def _ways_down(self) -> Iterator[tuple[slice, slice]]:
        """Pairs of neighbouring rows of the binary tree, from its root down."""
        begin = 1
        while begin < self.size:
            yield slice(begin, 2 * begin), slice(2 * begin, 4 * begin)
            begin *= 2

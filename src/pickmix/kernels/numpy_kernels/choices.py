"""Trees, groups of rows, chains of rows and what they learn, in NumPy: nothing is compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from pickmix.checks import check_restored
from pickmix.kernels.statistics import renormalise
from pickmix.selection.partitions import Tree, root
from pickmix.selection.randomness import draw_uniformly, uniforms

_NUMBERS = 500_000  # Distances computed at a time.


def top_components(
    log_joint: np.ndarray, candidates: np.ndarray | None, beta: float, n_kept: int
) -> tuple[np.ndarray, np.ndarray]:
    """Each row's M largest log-joints (B, C) and their renormalised weights.

    `candidates` (B, C) are the components of each row, padded with -1; None: 0, 1, ... Returns
    components (B, M) int32 by decreasing log-joint, padded with -1 of weight 0, and weights (B, M).
    """
    if candidates is None:
        candidates = np.broadcast_to(np.arange(log_joint.shape[1]), log_joint.shape)
    # Neither -inf nor NaN is larger than anything.
    found = (candidates >= 0) & (log_joint > -np.inf)
    values = np.where(found, log_joint, -np.inf)
    best = np.argsort(-values, axis=1, kind="stable")[:, :n_kept]
    shape = (log_joint.shape[0], n_kept)
    components, kept = np.full(shape, -1, dtype=np.int32), np.full(shape, -np.inf)
    kept[:, : best.shape[1]] = np.take_along_axis(values, best, axis=1)
    components[:, : best.shape[1]] = np.take_along_axis(candidates, best, axis=1)
    components[kept == -np.inf] = -1
    return components, renormalise(kept, beta)


def accept_or_stay(
    current: np.ndarray,
    candidates: np.ndarray,
    log_joint_current: np.ndarray,
    log_joint: np.ndarray,
    log_q_current: np.ndarray,
    log_q: np.ndarray,
    beta: float,
    rows: np.ndarray,
    key: np.uint64,
    first_draw: int,
    states: np.ndarray,
    acceptance: np.ndarray,
) -> None:
    """Metropolis-Hastings: run each row's chain over its M candidates (B, M).

    Per row i and draw j, with z_bar the current state: draw u, accept z = candidates[i, j]
    if u < alpha(z_bar, z) = min(1, [p(x, z) / p(x, z_bar)]^beta q(z_bar) / q(z)).

    current, log_joint_current, log_q_current (B,) are replaced by their values after the last
    draw; states (B, M) receives the chain, and acceptance (B,) is raised by the alphas.
    """
    drawn = uniforms(key, rows, candidates.shape[1], first_draw)
    for draw in range(candidates.shape[1]):
        with np.errstate(invalid="ignore"):
            log_ratio = beta * (log_joint[:, draw] - log_joint_current)
            log_ratio += log_q_current - log_q[:, draw]
        alpha = np.exp(np.minimum(log_ratio, 0.0))
        acceptance += alpha
        accepted = drawn[:, draw] < alpha
        np.copyto(current, candidates[:, draw], where=accepted)
        np.copyto(log_joint_current, log_joint[:, draw], where=accepted)
        np.copyto(log_q_current, log_q[:, draw], where=accepted)
        states[:, draw] = current


def grow_tree(
    points: np.ndarray, leaf_size: int, key: np.uint64, scales: np.ndarray
) -> tuple[np.ndarray, np.ndarray, Tree]:
    """Split points (n, D) until at most `leaf_size` are together.

    Directions are normal with the standard deviations `scales` (D,). Returns the points'
    numbers (n,) int32 leaf by leaf, the leaves' offsets among them (int64), and the tree.
    """
    n_points, n_features = points.shape
    n_leaves = -(-n_points // leaf_size)
    order = np.arange(n_points, dtype=np.int32)
    offsets = np.zeros(n_leaves + 1, dtype=np.int64)
    offsets[-1] = n_points
    tree = Tree.unfilled(n_leaves - 1, n_features)
    drawn = uniforms(key, np.arange(n_leaves - 1), 2 * n_features, 1)
    radius = np.sqrt(-2.0 * np.log(1.0 - drawn[:, ::2]))
    tree.directions[:] = scales * radius * np.cos(2 * np.pi * drawn[:, 1::2])

    waiting = [(0, n_points, 0, n_leaves)]
    while waiting:
        first, last, first_leaf, last_leaf = waiting.pop()
        node = root(first_leaf, last_leaf, key)
        if node < 0:
            continue
        middle = node + 1
        cut = (last - first) * (middle - first_leaf) // (last_leaf - first_leaf)
        here = order[first:last]
        values = points[here] @ tree.directions[node]
        split = np.argpartition(values, cut)
        here[:] = here[split]
        # Halfway between the two sides.
        tree.thresholds[node] = 0.5 * (values[split[:cut]].max() + values[split[cut]])
        tree.children[node] = root(first_leaf, middle, key), root(middle, last_leaf, key)
        cut += first
        offsets[middle] = cut
        waiting += [(first, cut, first_leaf, middle), (cut, last, middle, last_leaf)]
    arrays = tree.directions, tree.thresholds, tree.children
    return order, offsets, Tree(*arrays, root(0, n_leaves, key))


def leaf_of(tree: Tree, rows: np.ndarray) -> np.ndarray:
    """Leaf of each row (B, D), as (B,) int32."""
    node = np.full(rows.shape[0], tree.root, dtype=np.int32)
    inside = np.flatnonzero(node >= 0)
    while inside.size:
        here = node[inside]
        along = np.einsum("ij,ij->i", rows[inside], tree.directions[here])
        node[inside] = tree.children[here, (along >= tree.thresholds[here]).astype(np.intp)]
        inside = inside[node[inside] >= 0]
    return np.asarray(-1 - node)


def group_rows(
    components: np.ndarray, position: np.ndarray, n_places: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sort rows by the place of their component, position[components[i]], keeping their order.

    Returns order (B,) int64, indices into `components`, and ends (n_places,) int64: those at
    place p end at ends[p]. Components (B,) are not negative.
    """
    places = position[components]
    ends = np.cumsum(np.bincount(places, minlength=n_places))
    return np.argsort(places, kind="stable"), ends


def nearest_in_regions(
    rows: np.ndarray,
    centres: np.ndarray,
    offsets: np.ndarray,
    regions: np.ndarray,
    n_nearest: int,
) -> np.ndarray:
    """The nearest centres (C, d) of float32 rows (B, d), among those in the regions (B, r) of each.

    Region r has the centres offsets[r]..offsets[r + 1]. Returns (B, n_nearest) int32, padded with
    -1.
    """
    nearest = np.full((rows.shape[0], n_nearest), -1, dtype=np.int32)
    region_of = np.repeat(np.arange(offsets.shape[0] - 1), np.diff(offsets))
    block = max(1, _NUMBERS // centres.size)
    for start in range(0, rows.shape[0], block):
        some = slice(start, start + block)
        away = rows[some, None, :].astype(np.float64) - centres
        squares = np.einsum("bcd,bcd->bc", away, away)
        if offsets.shape[0] > 2:
            squares[~(region_of == regions[some, :, None]).any(axis=1)] = np.inf
        best = np.argsort(squares, axis=1, kind="stable")[:, :n_nearest]
        there = np.take_along_axis(squares, best, axis=1) < np.inf
        nearest[some, : best.shape[1]] = np.where(there, best, -1)
    return nearest


class Table:
    """A table n (N, K) whose rows are proposal distributions, 1/K everywhere at first.

    Here an array of the excess over 1/K; compiled, of the entries that were visited.
    """

    def __init__(self, n_rows: int, n_components: int) -> None:
        self._excess = np.zeros((n_rows, n_components))

    def draw(
        self, rows: np.ndarray, current: np.ndarray, key: np.uint64, first_draw: int, n_draws: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Candidates (B, n_draws) int32 from n / sum n, their log q, and log q of `current`."""
        n_components = self._excess.shape[1]
        table = self._excess[rows] + 1.0 / n_components
        cumulative = np.cumsum(table, axis=1)
        totals = cumulative[:, -1:]
        targets = uniforms(key, rows, n_draws, first_draw) * totals
        candidates = np.empty(targets.shape, dtype=np.int32)
        for draw in range(n_draws):
            candidates[:, draw] = (cumulative <= targets[:, draw, None]).sum(axis=1)
        # Rounding may carry a target up to the total.
        candidates = np.minimum(candidates, n_components - 1)
        log_q = np.log(table / totals)
        log_q_current = np.take_along_axis(log_q, current[:, None].astype(np.intp), axis=1)[:, 0]
        return candidates, np.take_along_axis(log_q, candidates, axis=1), log_q_current

    def raise_visited(
        self, rows: np.ndarray, states: np.ndarray, decay: float, gain: float
    ) -> None:
        """Excess over 1/K <- decay * excess + gain, for every state of states (B, M) in turn."""
        for draw in range(states.shape[1]):
            visited = rows, states[:, draw]
            self._excess[visited] = decay * self._excess[visited] + gain

    def content(self) -> dict[str, Any]:
        return {"excess": self._excess}

    def restore(self, content: dict[str, Any]) -> None:
        self._excess = check_restored("excess", content["excess"], self._excess)


class Neighbours:
    """Lists of each component's G nearest, learnt from log-joints.

    d(c, k) is the mean over rows that c wins of log p(x, c) - log p(x, k).

    Begins with guessed lists (K, G): any distance that is learnt replaces a guess. Here from the
    distances of all pairs (K, K); compiled, distances of components that leave a list are
    forgotten.
    """

    def __init__(self, lists: np.ndarray) -> None:
        self.lists = np.array(lists, dtype=np.int32)
        n_components, n_neighbours = self.lists.shape
        every = np.arange(n_components)
        self._sums = np.zeros((n_components, n_components))
        self._counts = np.zeros((n_components, n_components), dtype=np.int64)
        # Pairs without an evaluation keep the order of the guesses.
        self._rank = np.full((n_components, n_components), n_neighbours)
        np.put_along_axis(self._rank, self.lists, np.arange(n_neighbours)[None], axis=1)
        self._rank[every, every] = -1

    def _means(self, components: np.ndarray) -> np.ndarray:
        """Distances (C, K) of all components from these."""
        counts = self._counts[components]
        means = np.full(counts.shape, np.inf)
        np.divide(self._sums[components], counts, out=means, where=counts > 0)
        means[np.arange(components.shape[0]), components] = 0.0
        return means

    def collect(
        self, rows: np.ndarray, held: np.ndarray, n_explore: int, key: np.uint64
    ) -> tuple[np.ndarray, int]:
        """Search sets: candidates (B, C) int32, padded with -1, and their total number.

        A row's set is the union of the lists of the components held (B, M), padded with -1, and of
        `n_explore` uniform draws.
        """
        n_components = self.lists.shape[0]
        known = np.where(held[:, :, None] >= 0, self.lists[held], -1)
        strangers = draw_uniformly(rows, n_components, key, held.shape[1], n_explore)
        candidates = np.concatenate([known.reshape(rows.shape[0], -1), strangers], axis=1)
        candidates.sort(axis=1)
        candidates[:, 1:][candidates[:, 1:] == candidates[:, :-1]] = -1
        return candidates, int((candidates >= 0).sum())

    def learn(self, candidates: np.ndarray, log_joint: np.ndarray, winners: np.ndarray) -> None:
        """Update the lists of each row's winner, winners (B,), from log-joints (B, C)."""
        won = winners >= 0
        candidates, log_joint, winners = candidates[won], log_joint[won], winners[won, None]
        best = np.where(candidates == winners, log_joint, -np.inf).max(axis=1, keepdims=True)
        others = (candidates >= 0) & (candidates != winners)
        pairs = np.broadcast_to(winners, candidates.shape)[others], candidates[others]
        np.add.at(self._sums, pairs, (best - log_joint)[others])
        np.add.at(self._counts, pairs, 1)
        changed = np.unique(winners)
        nearest = np.lexsort((self._rank[changed], self._means(changed)), axis=1)
        self.lists[changed] = nearest[:, : self.lists.shape[1]]

    def content(self) -> dict[str, Any]:
        return {"lists": self.lists, "sums": self._sums, "counts": self._counts, "rank": self._rank}

    def restore(self, content: dict[str, Any]) -> None:
        K = self.lists.shape[0]
        self.lists = check_restored("lists", content["lists"], self.lists, K)
        self._sums = check_restored("sums", content["sums"], self._sums)
        self._counts = check_restored("counts", content["counts"], self._counts)
        self._rank = check_restored("rank", content["rank"], self._rank)

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
"""Trees, groups of rows and chains of rows, compiled where that is more than half as fast again.

Kernels work on ranges start..stop.
"""

from __future__ import annotations

import math

import numpy as np

from pickmix.compiled import kernel, part, prefetch_row
from pickmix.kernels.statistics import renormalise
from pickmix.selection.partitions import LEAST_QUANTILE, Tree, root
from pickmix.selection.randomness import DRAW_BITS, HALF_WORD, TO_UNIT
from pickmix.threads import run

_FIRST_SPLITS = 15  # Nodes of a tree split one after another before the rest is handed to threads.
# Selection among more points than these begins with a sample of them: its size, and how far beside
# the quantile pivots are.
_MANY_POINTS, _SAMPLE, _MARGIN = 1024, 64, 7
_FEW_POINTS, _SMALL_SAMPLE, _SMALL_MARGIN = 64, 16, 3
_AHEAD = 8  # Points fetched ahead.
_ALL = np.empty((0, 0), dtype=np.int32)  # Candidates: all components.
_LANES = 16  # Distances compared together.
_INFINITE = 0x7F800000 << 32  # The key of an infinite distance.


def top_components(
    log_joint: np.ndarray, candidates: np.ndarray | None, beta: float, n_kept: int
) -> tuple[np.ndarray, np.ndarray]:
    shape = (log_joint.shape[0], n_kept)
    components, values = np.full(shape, -1, dtype=np.int32), np.full(shape, -np.inf)
    some = _ALL if candidates is None else candidates
    keep_largest(np.ascontiguousarray(log_joint), some, components, values)
    return components, renormalise(values, beta)


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
    on_rows = rows, key, first_draw, states, acceptance
    values = log_joint_current, log_joint, log_q_current, log_q, beta
    run(accept_rows, rows.shape[0], 60.0 * candidates.size, current, candidates, *values, *on_rows)


def grow_tree(
    points: np.ndarray, leaf_size: int, key: np.uint64, scales: np.ndarray
) -> tuple[np.ndarray, np.ndarray, Tree]:
    n_points, n_features = points.shape
    n_leaves = -(-n_points // leaf_size)
    order = np.arange(n_points, dtype=np.int32)
    offsets = np.zeros(n_leaves + 1, dtype=np.int64)
    offsets[-1] = n_points
    tree = Tree.unfilled(n_leaves - 1, n_features)
    if n_leaves == 1:
        return order, offsets, tree
    # (first point, last point, first leaf, last leaf) of subtrees that are not split yet.
    pending = np.zeros((_FIRST_SPLITS + 1, 4), dtype=np.int64)
    pending[0] = 0, n_points, 0, n_leaves
    arrays = tree.directions, tree.thresholds, tree.children
    arguments = (points, order, np.empty(n_points), key, scales, offsets, arrays)

    def split(spare: int, start: int, stop: int) -> None:
        waiting = np.empty((n_leaves + 2, 4), dtype=np.int64)
        split_pending(pending, *arguments, spare, waiting, start, stop)

    n_pending = 1
    while n_pending < min(n_leaves, pending.shape[0]):
        widest = int((pending[:n_pending, 3] - pending[:n_pending, 2]).argmax())
        split(n_pending, widest, widest + 1)
        n_pending += 1
    if n_leaves > n_pending:
        run(split, n_pending, 20.0 * n_points * (n_features + 2), -1)
    return order, offsets, Tree(*arrays, root=root(0, n_leaves, key))


def leaf_of(tree: Tree, rows: np.ndarray) -> np.ndarray:
    leaves = np.zeros(rows.shape[0], dtype=np.int32)
    n_nodes = tree.thresholds.shape[0]
    if n_nodes:
        work = rows.size * (2.0 + math.log2(n_nodes))
        arrays = tree.directions, tree.thresholds, tree.children
        arguments = rows, tree.root, arrays, leaves
        run(descend, rows.shape[0], work, *arguments)
    return leaves


def group_rows(
    components: np.ndarray, position: np.ndarray, n_places: int
) -> tuple[np.ndarray, np.ndarray]:
    order = np.empty(components.shape[0], dtype=np.int64)
    ends = np.zeros(n_places, dtype=np.int64)
    count_rows(components, position, order, ends)
    return order, ends


def nearest_in_regions(
    rows: np.ndarray,
    centres: np.ndarray,
    offsets: np.ndarray,
    regions: np.ndarray,
    n_nearest: int,
) -> np.ndarray:
    nearest = np.full((rows.shape[0], n_nearest), -1, dtype=np.int32)
    # Copies: arrays that have travelled may be read-only, which kernels are not compiled for.
    columns, offsets = np.array(centres.T, order="C"), offsets.copy()
    share = regions.shape[1] / (offsets.shape[0] - 1)
    work = float(rows.shape[0]) * centres.shape[0] * (centres.shape[1] + 4.0) * share
    arguments = rows, columns, offsets, regions, nearest
    run(find_nearest, rows.shape[0], work, *arguments)
    return nearest


@part()
def uniform(key, row, draw):
    """Uniform number in [0, 1) for (row, draw); up to 2^44 rows and 2^20 draws per step."""
    x = ((np.uint64(row) << DRAW_BITS) + np.uint64(draw) + np.uint64(1)) * key
    y = x
    z = y + key
    x = x * x + y
    x = (x >> HALF_WORD) | (x << HALF_WORD)
    x = x * x + z
    x = (x >> HALF_WORD) | (x << HALF_WORD)
    x = x * x + y
    x = (x >> HALF_WORD) | (x << HALF_WORD)
    x = x * x + z
    t = x
    x = (x >> HALF_WORD) | (x << HALF_WORD)
    word = t ^ ((x * x + y) >> HALF_WORD)
    return float(word >> np.uint64(11)) * TO_UNIT


@kernel()
def keep_largest(log_joint, candidates, components, values):
    """Sort the largest of each row's log-joints (B, C) into lists (B, M), which begin empty."""
    for i in range(components.shape[0]):
        last = components.shape[1] - 1
        for j in range(log_joint.shape[1]):
            value = log_joint[i, j]
            component = candidates[i, j] if candidates.shape[0] else j
            if component < 0 or not value > values[i, last]:
                continue
            m = last
            while m > 0 and values[i, m - 1] < value:
                values[i, m] = values[i, m - 1]
                components[i, m] = components[i, m - 1]
                m -= 1
            values[i, m] = value
            components[i, m] = component


@kernel()
def accept_rows(
    current,
    candidates,
    log_joint_current,
    log_joint,
    log_q_current,
    log_q,
    beta,
    rows,
    key,
    first_draw,
    states,
    acceptance,
    start,
    stop,
):
    for i in range(start, stop):
        total = 0.0
        for j in range(candidates.shape[1]):
            log_ratio = beta * (log_joint[i, j] - log_joint_current[i])
            log_ratio += log_q_current[i] - log_q[i, j]
            alpha = 1.0 if log_ratio >= 0.0 else np.exp(log_ratio)
            total += alpha
            # Drawn even when acceptance is certain, so that draws never depend on rounding.
            u = uniform(key, rows[i], first_draw + j)
            if u < alpha:
                current[i] = candidates[i, j]
                log_joint_current[i] = log_joint[i, j]
                log_q_current[i] = log_q[i, j]
            states[i, j] = current[i]
        acceptance[i] += total


@kernel()
def count_rows(components, position, order, ends):
    for i in range(components.shape[0]):
        ends[position[components[i]]] += 1
    total = 0
    for place in range(ends.shape[0]):
        total, ends[place] = total + ends[place], total
    for i in range(components.shape[0]):
        place = position[components[i]]
        order[ends[place]] = i
        ends[place] += 1


@part()
def _fill_normal(key, node, scales, direction):
    for d in range(direction.shape[0]):
        u = uniform(key, node, 2 * d + 1)
        v = uniform(key, node, 2 * d + 2)
        direction[d] = scales[d] * math.sqrt(-2.0 * math.log(1.0 - u)) * math.cos(2 * math.pi * v)


@part()
def _put_first(values, order, low, high, pivot):
    """Put what is below the pivot first, without branches; returns where the others begin."""
    middle = low
    for i in range(low, high + 1):
        value, point = values[i], order[i]
        values[i], order[i] = values[middle], order[middle]
        values[middle], order[middle] = value, point
        middle += 1 if value < pivot else 0
    return middle


@part()
def _select(values, order, sample, first, last, cut):
    """Reorder first..last so that the smallest values come before `cut` (Hoare's selection).

    Two pivots on both sides of the quantile of a sample leave ever fewer to select from (Floyd and
    Rivest), and branches that cannot be predicted are for the last of them.
    """
    low, high = first, last - 1
    n = last - first
    while n > _FEW_POINTS:
        size, margin = (_SAMPLE, _MARGIN) if n > _MANY_POINTS else (_SMALL_SAMPLE, _SMALL_MARGIN)
        apart, begin = n // size, low
        for i in range(size):
            value, place = values[begin + i * apart], i
            while place > 0 and sample[place - 1] > value:
                sample[place] = sample[place - 1]
                place -= 1
            sample[place] = value
        quantile = (cut - begin) * size // n
        for shift in (margin, -margin):
            pivot = sample[max(0, min(size - 1, quantile + shift))]
            middle = _put_first(values, order, low, high, pivot)
            if cut < middle:
                high = middle - 1
            else:
                low = middle
        if high - low + 1 > n // 2:
            break  # Too many are alike.
        n = high - low + 1
    while low < high:
        pivot = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        if cut <= j:
            high = j
        elif cut >= i:
            low = i
        else:
            break


@part()
def _second_half(first_leaf, last_leaf, key):
    """The leaf at which the second half of a subtree's leaves begins; its node is one less."""
    n_leaves = last_leaf - first_leaf
    u = uniform(key, first_leaf + 2 * last_leaf, 0)
    share = LEAST_QUANTILE + (1.0 - 2.0 * LEAST_QUANTILE) * u
    return first_leaf + max(1, min(n_leaves - 1, round(share * n_leaves)))


@part()
def _root(first_leaf, last_leaf, key):
    """The node that leaves first_leaf..last_leaf hang from; -1 - leaf if there is but one."""
    if last_leaf - first_leaf == 1:
        return -1 - first_leaf
    return _second_half(first_leaf, last_leaf, key) - 1


@part()
def _split(
    first, last, first_leaf, last_leaf, points, order, values, sample, key, scales, offsets, tree
):
    """Split one subtree; returns the point and the leaf at which its second half begins."""
    directions, thresholds, children = tree
    middle = _second_half(first_leaf, last_leaf, key)
    node = middle - 1
    direction = directions[node]
    _fill_normal(key, node, scales, direction)
    for i in range(first, last):
        if i + _AHEAD < last:
            prefetch_row(points, order[i + _AHEAD])
        total = 0.0
        for d in range(direction.shape[0]):
            total += points[order[i], d] * direction[d]
        values[i] = total
    cut = first + (last - first) * (middle - first_leaf) // (last_leaf - first_leaf)
    _select(values, order, sample, first, last, cut)
    # Halfway between the two sides.
    below = values[first]
    for i in range(first, cut):
        below = max(below, values[i])
    thresholds[node] = 0.5 * (below + values[cut])
    children[node, 0] = _root(first_leaf, middle, key)
    children[node, 1] = _root(middle, last_leaf, key)
    offsets[middle] = cut
    return cut, middle


@part()
def _put(tasks, place, first, last, first_leaf, last_leaf):
    # One by one: Numba takes seconds to compile what an assignment of arrays might complain of.
    tasks[place, 0] = first
    tasks[place, 1] = last
    tasks[place, 2] = first_leaf
    tasks[place, 3] = last_leaf


@kernel()
def split_pending(
    pending, points, order, values, key, scales, offsets, tree, spare, waiting, start, stop
):
    """Split the pending subtrees start..stop down to their leaves.

    If `spare` is not negative, only once: the second half of a subtree then goes to that place.
    waiting (n, 4) is scratch memory. A subtree of m leaves is at most m - 1 deep, and each level
    leaves one half waiting.
    """
    sample = np.empty(_SAMPLE)
    for task in range(start, stop):
        for column in range(4):
            waiting[0, column] = pending[task, column]
        n_waiting = 1
        while n_waiting:
            n_waiting -= 1
            first, last = waiting[n_waiting, 0], waiting[n_waiting, 1]
            begin, end = waiting[n_waiting, 2], waiting[n_waiting, 3]
            if end - begin < 2:
                continue
            cut, middle = _split(
                first, last, begin, end, points, order, values, sample, key, scales, offsets, tree
            )
            if spare < 0:
                _put(waiting, n_waiting, cut, last, middle, end)
                _put(waiting, n_waiting + 1, first, cut, begin, middle)
                n_waiting += 2
            else:
                _put(pending, spare, cut, last, middle, end)
                _put(pending, task, first, cut, begin, middle)


@kernel()
def descend(rows, root, tree, leaves, start, stop):
    directions, thresholds, children = tree
    for i in range(start, stop):
        node = root
        while node >= 0:
            total = 0.0
            for d in range(rows.shape[1]):
                total += rows[i, d] * directions[node, d]
            node = children[node, 1 if total >= thresholds[node] else 0]
        leaves[i] = -1 - node


@part(fastmath={"reassoc", "contract", "nsz"})
def _squared_distances(row, columns, first, last, out):
    """out[k] = |row - centre first + k|^2 up to `last`; four columns at a time, in registers."""
    n_columns = columns.shape[0]
    n = last - first
    for k in range(n):
        out[k] = np.float32(0.0)
    d = 0
    while d + 4 <= n_columns:
        a, b, c, e = row[d], row[d + 1], row[d + 2], row[d + 3]
        one, two = columns[d][first:last], columns[d + 1][first:last]
        three, four = columns[d + 2][first:last], columns[d + 3][first:last]
        for k in range(n):
            p, q, r, s = a - one[k], b - two[k], c - three[k], e - four[k]
            out[k] += (p * p + q * q) + (r * r + s * s)
        d += 4
    while d < n_columns:
        a = row[d]
        one = columns[d][first:last]
        for k in range(n):
            p = a - one[k]
            out[k] += p * p
        d += 1


@kernel(fastmath={"reassoc", "contract", "nsz"})
def find_nearest(rows, columns, offsets, regions, nearest, start, stop):
    """The nearest centres, as columns (d, C), among those in the regions of each row.

    Branch-free, because mispredicted branches cost more than the distances: the least of every
    _LANES-th distance are kept, and whenever the least of all is taken out, the next one of its
    lane follows. A key is a distance, whose bits are in order as they are not negative, and below
    it the number of the centre.
    """
    n_nearest = nearest.shape[1]
    size = columns.shape[1] + _LANES
    distance, numbers = np.empty(size, dtype=np.float32), np.empty(size, dtype=np.int32)
    bits, keys = distance.view(np.int32), np.empty(size, dtype=np.int64)
    lanes = np.empty(_LANES, dtype=np.int64)
    for i in range(start, stop):
        n = 0
        for r in range(regions.shape[1]):
            first, last = offsets[regions[i, r]], offsets[regions[i, r] + 1]
            _squared_distances(rows[i], columns, first, last, distance[n:])
            for k in range(last - first):
                numbers[n + k] = first + k
            n += last - first
        while n % _LANES:
            distance[n] = np.inf
            n += 1
        for k in range(n):
            keys[k] = (np.int64(bits[k]) << 32) | k
        for lane in range(_LANES):
            lanes[lane] = keys[lane]
        for group in range(_LANES, n, _LANES):
            some = keys[group : group + _LANES]
            for lane in range(_LANES):
                lanes[lane] = min(some[lane], lanes[lane])
        for place in range(n_nearest):
            best = lanes[0]
            for lane in range(1, _LANES):
                best = min(best, lanes[lane])
            if best >= _INFINITE:
                break
            k = best & 0xFFFFFFFF
            nearest[i, place] = numbers[k]
            follower = _INFINITE
            for other in range(k % _LANES, n, _LANES):
                follower = min(follower, keys[other] if keys[other] > best else _INFINITE)
            lanes[k % _LANES] = follower

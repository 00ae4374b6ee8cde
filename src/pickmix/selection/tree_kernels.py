# mypy: ignore-errors
"""Compiled: random trees over points, and exchanges between their leaves. See `operations.py`."""

from __future__ import annotations

import math

import numpy as np

from pickmix.compiled import kernel, part
from pickmix.selection.kernels import uniform
from pickmix.selection.operations import EXCHANGE_DRAW, LEAST_QUANTILE


@part()
def _fill_normal(key, node, scales, direction):
    for d in range(direction.shape[0]):
        u = uniform(key, node, 2 * d + 1)
        v = uniform(key, node, 2 * d + 2)
        direction[d] = scales[d] * math.sqrt(-2.0 * math.log(1.0 - u)) * math.cos(2 * math.pi * v)


@part()
def _select(values, order, first, last, cut):
    """Reorder first..last so that the smallest values come before `cut` (Hoare's selection)."""
    low, high = first, last - 1
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
    """The leaf, among first_leaf..last_leaf, at which the second half of their subtree begins.

    The subtree's node is that number less one, so that every number below n_leaves - 1 names one
    node and threads need not ask each other.
    """
    n_leaves = last_leaf - first_leaf
    u = uniform(key, first_leaf + 2 * last_leaf, 0)
    share = LEAST_QUANTILE + (1.0 - 2.0 * LEAST_QUANTILE) * u
    return first_leaf + max(1, min(n_leaves - 1, round(share * n_leaves)))


@kernel()
def root(first_leaf, last_leaf, key):
    """The node that leaves first_leaf..last_leaf hang from; -1 - leaf if there is but one."""
    if last_leaf - first_leaf == 1:
        return -1 - first_leaf
    return _second_half(first_leaf, last_leaf, key) - 1


@part()
def _split(first, last, first_leaf, last_leaf, points, order, values, key, scales, offsets, tree):
    """Split one subtree; returns the point and the leaf at which its second half begins."""
    directions, thresholds, children = tree
    middle = _second_half(first_leaf, last_leaf, key)
    node = middle - 1
    direction = directions[node]
    _fill_normal(key, node, scales, direction)
    for i in range(first, last):
        total = 0.0
        for d in range(direction.shape[0]):
            total += points[order[i], d] * direction[d]
        values[i] = total
    cut = first + (last - first) * (middle - first_leaf) // (last_leaf - first_leaf)
    _select(values, order, first, last, cut)
    # Halfway between the two sides.
    below = values[first]
    for i in range(first, cut):
        below = max(below, values[i])
    thresholds[node] = 0.5 * (below + values[cut])
    children[node, 0] = root(first_leaf, middle, key)
    children[node, 1] = root(middle, last_leaf, key)
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
def split_widest(pending, points, order, values, key, scales, offsets, tree):
    """Split the subtree with the most leaves, again and again; returns how many are left."""
    _put(pending, 0, 0, points.shape[0], 0, offsets.shape[0] - 1)
    n_pending = 1
    while n_pending < pending.shape[0]:
        widest = 0
        for task in range(1, n_pending):
            n_leaves = pending[task, 3] - pending[task, 2]
            if n_leaves > pending[widest, 3] - pending[widest, 2]:
                widest = task
        first, last, first_leaf, last_leaf = pending[widest]
        if last_leaf - first_leaf < 2:
            break
        cut, middle = _split(
            first, last, first_leaf, last_leaf, points, order, values, key, scales, offsets, tree
        )
        pending[widest, 1], pending[widest, 3] = cut, middle
        _put(pending, n_pending, cut, last, middle, last_leaf)
        n_pending += 1
    return n_pending


@kernel()
def split_all(pending, points, order, values, key, scales, offsets, tree, start, stop):
    """Split the pending subtrees start..stop down to their leaves."""
    # A subtree of m leaves is at most m - 1 deep, and each level leaves one half waiting.
    waiting = np.empty((offsets.shape[0] + 1, 4), dtype=np.int64)
    for task in range(start, stop):
        for column in range(4):
            waiting[0, column] = pending[task, column]
        n_waiting = 1
        while n_waiting:
            n_waiting -= 1
            first, last, first_leaf, last_leaf = waiting[n_waiting]
            if last_leaf - first_leaf < 2:
                continue
            cut, middle = _split(
                first,
                last,
                first_leaf,
                last_leaf,
                points,
                order,
                values,
                key,
                scales,
                offsets,
                tree,
            )
            _put(waiting, n_waiting, cut, last, middle, last_leaf)
            _put(waiting, n_waiting + 1, first, cut, first_leaf, middle)
            n_waiting += 2


@kernel()
def descend(rows, root, tree, leaves, start, stop):
    """Leaves of the rows start..stop."""
    directions, thresholds, children = tree
    for i in range(start, stop):
        node = root
        while node >= 0:
            total = 0.0
            for d in range(rows.shape[1]):
                total += rows[i, d] * directions[node, d]
            node = children[node, 1 if total >= thresholds[node] else 0]
        leaves[i] = -1 - node


@kernel()
def exchange(members, share, key):
    """Let about `share` of the members change places at random (Fisher and Yates)."""
    chosen = np.empty(members.shape[0], dtype=np.int64)
    n_chosen = 0
    for place in range(members.shape[0]):
        if uniform(key, place, EXCHANGE_DRAW) < share:
            chosen[n_chosen] = place
            n_chosen += 1
    for i in range(n_chosen - 1, 0, -1):
        j = int(uniform(key, i, EXCHANGE_DRAW + 1) * (i + 1))
        a, b = chosen[i], chosen[min(j, i)]
        members[a], members[b] = members[b], members[a]

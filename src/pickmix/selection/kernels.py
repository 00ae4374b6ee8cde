# mypy: ignore-errors
"""Compiled loops of `CompiledOperations`. Ranges are start..stop."""

from __future__ import annotations

import math

import numpy as np

from pickmix.compiled import kernel, part
from pickmix.selection.operations import LEAST_QUANTILE
from pickmix.selection.randomness import DRAW_BITS, HALF_WORD, TO_UNIT


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
def accept_or_stay(
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
def group_rows(components, position, order, ends):
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
def split(pending, points, order, values, key, scales, offsets, tree, spare, waiting, start, stop):
    """Split the pending subtrees start..stop down to their leaves.

    If `spare` is not negative, only once: the second half of a subtree then goes to that place.
    waiting (n, 4) is scratch memory. A subtree of m leaves is at most m - 1 deep, and each level
    leaves one half waiting.
    """
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
                first, last, begin, end, points, order, values, key, scales, offsets, tree
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

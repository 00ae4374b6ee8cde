# mypy: ignore-errors
"""Compiled loops of `CompiledOperations`; `operations.py` specifies them. Ranges are
start..stop."""

from __future__ import annotations

import math

import numpy as np

from pickmix.compiled import kernel, part
from pickmix.selection.operations import EXCHANGE_DRAW, LEAST_QUANTILE
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


@part()
def uniform_component(key, row, draw, n_components):
    """One of the components, all equally likely."""
    return min(int(uniform(key, row, draw) * n_components), n_components - 1)


@kernel()
def draw_uniformly(rows, n_components, key, first_draw, candidates):
    for i in range(candidates.shape[0]):
        for j in range(candidates.shape[1]):
            candidates[i, j] = uniform_component(key, rows[i], first_draw + j, n_components)


@kernel()
def normalise_all(log_joint, beta, log_likelihood, start, stop):
    n_components = log_joint.shape[0]
    n = stop - start
    largest = np.full(n, -np.inf)
    total = np.zeros(n)
    for k in range(n_components):
        for i in range(n):
            largest[i] = max(largest[i], log_joint[k, start + i])
    if beta != 1.0:
        for k in range(n_components):
            for i in range(n):
                total[i] += np.exp(log_joint[k, start + i] - largest[i])
        for i in range(n):
            log_likelihood[start + i] = largest[i] + np.log(total[i])
            total[i] = 0.0
    for k in range(n_components):
        for i in range(n):
            weight = np.exp(beta * (log_joint[k, start + i] - largest[i]))
            log_joint[k, start + i] = weight
            total[i] += weight
    for i in range(n):
        if beta == 1.0:
            log_likelihood[start + i] = largest[i] + np.log(total[i])
        total[i] = 1.0 / total[i]
    for k in range(n_components):
        for i in range(n):
            log_joint[k, start + i] *= total[i]


@kernel()
def log_sum_exp(log_joint, log_likelihood, start, stop):
    n_components = log_joint.shape[0]
    n = stop - start
    largest = np.full(n, -np.inf)
    total = np.zeros(n)
    for k in range(n_components):
        for i in range(n):
            largest[i] = max(largest[i], log_joint[k, start + i])
    for k in range(n_components):
        for i in range(n):
            total[i] += np.exp(log_joint[k, start + i] - largest[i])
    for i in range(n):
        log_likelihood[start + i] = largest[i] + np.log(total[i])


@part()
def _insert(value, component, values, components):
    """Insert into lists sorted by decreasing value, dropping the last entry."""
    j = values.shape[0] - 1
    while j > 0 and values[j - 1] < value:
        values[j] = values[j - 1]
        components[j] = components[j - 1]
        j -= 1
    values[j] = value
    components[j] = component


@part()
def _renormalise(values, components, beta, weights):
    """Weights proportional to exp(beta * value) over the entries that are filled, if any is."""
    if components[0] < 0:
        weights[:] = 0.0
        return
    total = 0.0
    for j in range(values.shape[0]):
        weights[j] = np.exp(beta * (values[j] - values[0])) if components[j] >= 0 else 0.0
        total += weights[j]
    for j in range(values.shape[0]):
        weights[j] /= total


@kernel()
def top_of_all(log_joint, beta, components, weights, start, stop):
    n_components = log_joint.shape[0]
    n_kept = components.shape[1]
    values = np.empty(n_kept)
    for i in range(start, stop):
        values[:] = -np.inf
        components[i, :] = -1
        for k in range(n_components):
            if log_joint[k, i] > values[n_kept - 1]:
                _insert(log_joint[k, i], k, values, components[i])
        _renormalise(values, components[i], beta, weights[i])


@kernel()
def top_of_candidates(log_joint, candidates, beta, components, weights, start, stop):
    n_kept = components.shape[1]
    values = np.empty(n_kept)
    for i in range(start, stop):
        values[:] = -np.inf
        components[i, :] = -1
        for j in range(candidates.shape[1]):
            if candidates[i, j] >= 0 and log_joint[i, j] > values[n_kept - 1]:
                _insert(log_joint[i, j], candidates[i, j], values, components[i])
        _renormalise(values, components[i], beta, weights[i])


@kernel()
def draw_from_posterior(log_joint, beta, rows, key, states, start, stop):
    n_components = log_joint.shape[0]
    cumulative = np.empty(n_components)
    for i in range(start, stop):
        largest = -np.inf
        for k in range(n_components):
            largest = max(largest, log_joint[k, i])
        total = 0.0
        for k in range(n_components):
            total += np.exp(beta * (log_joint[k, i] - largest))
            cumulative[k] = total
        for j in range(states.shape[1]):
            target = uniform(key, rows[i], j) * total
            k = np.searchsorted(cumulative, target, side="right")
            # target < total, so only a NaN among the log-joints can run off the end.
            states[i, j] = min(k, n_components - 1)


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
def count_states(states, acceptance, components, weights):
    accepted = 0.0
    n_draws = states.shape[1]
    share = 1.0 / n_draws
    for i in range(states.shape[0]):
        accepted += acceptance[i]
        n_distinct = 0
        for j in range(n_draws):
            found = False
            for d in range(n_distinct):
                if components[i, d] == states[i, j]:
                    weights[i, d] += share
                    found = True
                    break
            if not found:
                components[i, n_distinct] = states[i, j]
                weights[i, n_distinct] = share
                n_distinct += 1
        for d in range(n_distinct, n_draws):
            components[i, d] = -1
            weights[i, d] = 0.0
    return accepted


@kernel()
def group_rows(components, position, order, ends):
    ends[:] = 0
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

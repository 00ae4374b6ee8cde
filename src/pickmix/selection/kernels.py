# mypy: ignore-errors
"""The compiled inner loops of `CompiledOperations`. They know log-joints, not models.

What they compute is said in `operations.py`. Those that end in (start, stop) work on these rows
only, so that ranges can run on threads.
"""

from __future__ import annotations

import numpy as np

from pickmix.compiled import kernel, part
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
    """Fill candidates (B, n_draws)."""
    for i in range(candidates.shape[0]):
        for j in range(candidates.shape[1]):
            candidates[i, j] = uniform_component(key, rows[i], first_draw + j, n_components)


@kernel()
def normalise_all(log_joint, beta, log_likelihood, start, stop):
    """Replace log_joint (K, B) by responsibilities, p(x, k)^beta normalised over k.

    log_likelihood (B,) receives log sum_k p(x, k), at beta = 1 whatever beta is.
    """
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
    """log_likelihood (B,) = log sum_k exp(log_joint (K, B))."""
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
    """Keep each row's M largest of all K log-joints (K, B), weights renormalised over them."""
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
    """Keep each row's M largest of its candidates' log-joints (B, C); candidate -1 is no one."""
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
    """states (B, M): independent draws from p(k | x)^beta given log-joints (K, B)."""
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
    """Run each row's chain over its M candidates; acceptance (B,) is raised by the alphas."""
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
    """Merge the M chain states (B, M) of each row into distinct components with weights n/M.

    Returns the sum of acceptance (B,).
    """
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
    """Counting sort of rows by position[components[i]]."""
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

"""Posterior weights of rows out of log-joints, written once: NumPy is as fast as a kernel.

Log-joints of all components are (K, B), as they are computed. `rows` (B,) are distinct row numbers.
A row that no component explains has NaN weights and likelihood.
"""

from __future__ import annotations

import numpy as np

from pickmix.selection.randomness import uniforms


def normalise_all(log_joint: np.ndarray, beta: float) -> np.ndarray:
    """Replace log_joint (K, B) by responsibilities, p(x, k)^beta normalised over k.

    Returns log sum_k p(x, k), (B,), at beta = 1 whatever beta is.
    """
    largest = log_joint.max(axis=0)
    log_likelihood = None if beta == 1.0 else log_sum_exp(log_joint)
    log_joint[:] = _unnormalised(log_joint, beta)
    total = log_joint.sum(axis=0)
    log_joint /= total
    return np.asarray(largest + np.log(total)) if log_likelihood is None else log_likelihood


def log_sum_exp(log_joint: np.ndarray) -> np.ndarray:
    """Log sum_k exp(log_joint (K, B)), as (B,)."""
    return np.asarray(log_joint.max(axis=0) + np.log(_unnormalised(log_joint, 1.0).sum(axis=0)))


def draw_from_posterior(
    log_joint: np.ndarray, beta: float, rows: np.ndarray, key: np.uint64, n_draws: int
) -> np.ndarray:
    """States (B, M) int32: independent draws from p(k | x)^beta given log-joints (K, B)."""
    cumulative = np.cumsum(_unnormalised(log_joint, beta), axis=0)
    targets = uniforms(key, rows, n_draws) * cumulative[-1][:, None]
    states = np.empty(targets.shape, dtype=np.int32)
    for draw in range(n_draws):
        # "Not above" counts NaN as well: a row that nothing explains gets the last component.
        states[:, draw] = (~(cumulative > targets[:, draw])).sum(axis=0)
    return states.clip(max=log_joint.shape[0] - 1)


def count_states(
    states: np.ndarray, acceptance: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Distinct components (B, M) of states (B, M), weights n/M, and the sum of acceptance."""
    n_rows, n_draws = states.shape
    every = np.arange(n_rows)
    weights = np.zeros(states.shape)
    for draw in range(n_draws):
        first = (states[:, : draw + 1] == states[:, draw, None]).argmax(axis=1)
        weights[every, first] += 1.0 / n_draws
    components = np.where(weights > 0.0, states, -1).astype(np.int32)
    to_the_left = np.argsort(components < 0, axis=1, kind="stable")
    components = np.take_along_axis(components, to_the_left, axis=1)
    return components, np.take_along_axis(weights, to_the_left, axis=1), float(acceptance.sum())


def renormalise(values: np.ndarray, beta: float) -> np.ndarray:
    """Weights proportional to exp(beta * value) of sorted values (B, M); 0 where they are -inf."""
    weights = np.zeros(values.shape)
    some = values[:, 0] > -np.inf
    kept = _unnormalised(values[some].T, beta).T
    weights[some] = kept / kept.sum(axis=1, keepdims=True)
    return weights


def _unnormalised(log_joint: np.ndarray, beta: float) -> np.ndarray:
    """exp(beta log_joint (K, B)), scaled so that the largest of each column is one."""
    # Where all are -inf the weights are NaN, as they should be.
    with np.errstate(invalid="ignore"):
        weights: np.ndarray = np.exp(beta * (log_joint - log_joint.max(axis=0)))
    return weights

"""Kernels of Student-t components, around those of Gaussians of the backend in use.

A component is t with scale matrix (F'F)^-1 and nu degrees of freedom: with q = |F (x - m)|^2 and
the D cells that were seen of a row,

    log p(x, k) = log w_k + c_k - (nu_k + D) / 2 log(1 + q / nu_k).

Such a row is Gaussian with precision u F'F, u drawn from Gamma(nu / 2, nu / 2). Its expected
precision is u = (nu + D) / (nu + q), so moments are those of Gaussians with u times the weights
(Dempster, Laird and Rubin 1977; divided by sums of u, as Kent, Tyler and Vardi 1994). `counts` have
the weights themselves, and what they make of the expected logarithm of u.
"""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import numpy as np
from scipy.special import digamma

from pickmix.families.layout import Layout, Model, Moments, log_weights
from pickmix.families.student import FIRST_DEGREES, log_constant, log_gap
from pickmix.kernels.numpy_kernels.partial import LOG_2PI, partial_sums
from pickmix.kernels.statistics import Rows, Statistics, Sums, Swept, merge, stack
from pickmix.selection.partitions import Partition
from pickmix.selection.randomness import uniforms

EXTENDS_BACKEND = True  # Functions get the backend first.

_PAIRS = 2**17  # Pairs of rows and components evaluated together.
_NEGLIGIBLE = 1e-6  # Posterior weight of a component that leaves no trace in statistics.


def _evaluate(
    backend: ModuleType, layout: Layout, model: Model, rows: np.ndarray, which: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Log-joints and q of pairs (B, W) of rows and components `which`; (K, B) if that is None."""
    zeros, plain = np.zeros_like(model.log_mass), Layout(*layout)
    # Weights and normalisers of one leave the squares.
    bare = model._replace(
        log_mass=zeros, log_normaliser=zeros, decay=np.array([1.0, 1.0, 0.0, -np.inf])
    )
    some = np.arange(zeros.shape[0])[:, None] if which is None else np.maximum(which, 0)
    degrees = model.tables[:, 0].take(some)
    if layout.is_partial(rows):
        # Of Gaussians, of the cells that were seen.
        joint, squares = backend.condition_pairs(plain, bare, rows, which)
        n_seen = _count_seen(rows)[:, None]
        if which is None:
            joint, squares, n_seen = joint.T, squares.T, n_seen.T
        constant = joint + 0.5 * (squares + n_seen * LOG_2PI) + log_constant(degrees, n_seen)
        constant += log_weights(model)[some]
        half = 0.5 * (degrees + n_seen)
    else:
        if which is None:
            squares = backend.log_joint_all(plain, bare, rows)
        else:
            squares = backend.log_joint(plain, bare, rows, which)
        squares *= -2.0
        constant = (log_weights(model) + model.log_normaliser).take(some)
        half = (0.5 * (model.tables[:, 0] + layout.n_coordinates)).take(some)
    joint = squares / degrees
    np.log1p(joint, out=joint)
    joint *= half
    np.subtract(constant, joint, out=joint)
    if which is not None:
        joint[which < 0] = -np.inf
    return joint, squares


def _count_seen(rows: np.ndarray) -> np.ndarray:
    return np.asarray(np.count_nonzero(~np.isnan(rows), axis=1))


def _precisions(
    model: Model, components: np.ndarray, squares: np.ndarray, n_seen: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Expectations of u and log u for pairs (n,) that saw so many cells, (n,) or (1,)."""
    degrees = model.tables[components, 0]
    u = (degrees + n_seen) / (degrees + squares)
    numbers, which = np.unique(n_seen, return_inverse=True)
    half = 0.5 * (model.tables[:, 0] + numbers[:, None])
    logs = np.log(u) + (digamma(half) - np.log(half))[which.reshape(-1), components]
    # How far this is from what it was at the degrees of freedom in use counts as often as M-steps
    # of EM are too short.
    more = model.tables[components, 1] - 1.0
    return u, logs + more * (logs + log_gap(model.tables[:, 0])[components] - (u - 1.0))


def log_joint(
    backend: ModuleType, layout: Layout, model: Model, rows: np.ndarray, candidates: np.ndarray
) -> np.ndarray:
    return _evaluate(backend, layout, model, rows, candidates)[0]


def log_joint_all(
    backend: ModuleType, layout: Layout, model: Model, rows: np.ndarray
) -> np.ndarray:
    return np.ascontiguousarray(_evaluate(backend, layout, model, rows, None)[0])


def condition_pairs(
    backend: ModuleType,
    layout: Layout,
    model: Model,
    rows: np.ndarray,
    candidates: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """The squares are such that -1/2 of them is the log-density, but for that at the location."""
    joint, squares = _evaluate(backend, layout, model, rows, candidates)
    degrees = model.tables[:, 0] if candidates is None else model.tables[candidates, 0]
    if candidates is None:
        joint, squares = np.ascontiguousarray(joint.T), squares.T
    return joint, (degrees + layout.n_coordinates) * np.log1p(squares / degrees)


def sweep(
    backend: ModuleType,
    layout: Layout,
    model: Model,
    source: Rows,
    numbers: np.ndarray,
    components: np.ndarray,
    partition: Partition,
    key: np.uint64,
    beta: float = 1.0,
    wants_statistics: bool = True,
    wants_log_sums: bool = True,
    greedy: bool = False,
) -> Swept:
    sizes = np.diff(partition.offsets)
    places = partition.offsets[:-1, None] + np.arange(sizes.max())
    inside = np.arange(sizes.max()) < sizes[:, None]
    last = partition.members.shape[0] - 1
    members = np.where(inside, partition.members[np.minimum(places, last)], -1).astype(np.int32)
    K = model.location.shape[0]
    block_of = np.empty(K, dtype=np.int64)
    block_of[partition.members] = partition.block_of_position()
    blocks = block_of[components]
    order = np.argsort(blocks, kind="stable")
    u = None if greedy else uniforms(key, numbers, 1)
    row_weights, total_weight = source.weights_of(numbers)
    drawn, log_sums = np.empty_like(components), np.empty(numbers.shape[0])
    parts: list[Statistics] = []
    size = max(1, _PAIRS // members.shape[1])
    for start in range(0, numbers.shape[0], size):
        here = order[start : start + size]
        rows, candidates = source.gather(numbers[here]), members[blocks[here]]
        joint, squares = _evaluate(backend, layout, model, rows, candidates)
        if beta != 1.0:
            joint *= beta
        largest = joint.max(axis=1)
        posterior = np.exp(joint - largest[:, None])
        total = posterior.sum(axis=1)
        log_sums[here] = largest + np.log(total)
        posterior /= total[:, None]
        if u is None:
            choice = joint.argmax(axis=1)
        else:
            choice = (np.cumsum(posterior, axis=1)[:, :-1] <= u[here]).sum(axis=1)
        drawn[here] = candidates[np.arange(here.shape[0]), choice]
        if wants_statistics:
            row, place = np.nonzero(posterior > _NEGLIGIBLE)
            weights = posterior[row, place] * row_weights[here][row]
            pairs = row, candidates[row, place], weights
            given = rows, *pairs, squares[row, place], total_weight
            parts.append(_statistics(backend, layout, model, K, *given))
    evaluations = int(sizes[blocks].sum())
    statistics = None
    if wants_statistics:
        all_members = np.concatenate([part.members for part in parts])
        statistics = merge(all_members, stack([part.sums for part in parts]), layout, total_weight)
    return Swept(drawn, statistics, log_sums, evaluations)


def _statistics(
    backend: ModuleType,
    layout: Layout,
    model: Model | None,
    n_components: int,
    rows: np.ndarray,
    row: np.ndarray,
    components: np.ndarray,
    weights: np.ndarray,
    squares: np.ndarray | None,
    total_weight: float,
) -> Statistics:
    """Statistics of pairs (n,) of a row and a component; without a model, those of a start."""
    plain, is_partial = Layout(*layout), layout.is_partial(rows)
    u, logs = np.ones_like(weights), np.full(weights.shape, -log_gap(FIRST_DEGREES))
    if model is not None and squares is not None:
        n_seen = _count_seen(rows)[row] if is_partial else np.array([layout.n_coordinates])
        u, logs = _precisions(model, components, squares, n_seen)
    if is_partial:
        assert model is not None
        members = np.unique(components)
        parts = []
        for k in members.tolist():
            some = np.flatnonzero(components == k)
            w = weights[None, some]
            # The covariance of missing cells has a factor of 1 / u.
            parts.append(partial_sums(plain, model, np.array([k]), rows[row[some]], w * u[some], w))
        statistics = Statistics(members, *stack(parts), total_weight)
    else:
        pairs = components[:, None], (weights * u)[:, None]
        ones = np.ones_like(weights)
        statistics = backend.pair_statistics(
            plain, n_components, rows[row], ones, *pairs, total_weight
        )
    members = statistics.members
    in_order = np.argsort(members)
    slot = in_order[np.searchsorted(members[in_order], components)]
    counts = [np.bincount(slot, w, members.shape[0]) for w in (weights, weights * logs)]
    return replace(statistics, counts=np.stack(counts, axis=1))


def sums_of_all(
    backend: ModuleType,
    layout: Layout,
    rows: np.ndarray,
    weights: np.ndarray,
    responsibilities: np.ndarray,
    model: Model | None = None,
) -> Sums:
    K, B = responsibilities.shape
    squares = None if model is None else _evaluate(backend, layout, model, rows, None)[1]
    parts = []
    for some in np.array_split(np.arange(K), -(-K * B // _PAIRS)):
        w = (responsibilities[some] * weights).ravel()
        pairs = np.tile(np.arange(B), some.shape[0]), np.repeat(some, B).astype(np.int32), w
        distances = None if squares is None else squares[some].ravel()
        parts.append(_statistics(backend, layout, model, K, rows, *pairs, distances, 0.0).sums)
    return stack(parts)


def pair_statistics(
    backend: ModuleType,
    layout: Layout,
    n_components: int,
    rows: np.ndarray,
    weights: np.ndarray,
    components: np.ndarray,
    pair_weights: np.ndarray,
    total_weight: float,
    model: Model | None = None,
) -> Statistics:
    row, place = np.nonzero(components >= 0)
    squares = None
    if model is not None:
        squares = _evaluate(backend, layout, model, rows, components)[1][row, place]
    pairs = row, components[row, place], pair_weights[row, place] * weights[row]
    given = layout, model, n_components, rows
    return _statistics(backend, *given, *pairs, squares, total_weight)


def blend(
    backend: ModuleType,
    layout: Layout,
    moments: Moments,
    model: Model,
    statistics: Statistics,
    share: float,
    wants_gains: bool,
) -> tuple[np.ndarray, ...] | None:
    plain, members = Layout(*layout), statistics.members
    gains: tuple[np.ndarray, ...] | None = backend.blend(
        plain, moments, model, statistics, share, wants_gains
    )
    # Weights of components are sums of weights, not of precisions.
    model.log_mass[members] += np.log(moments.counts[members, 0])
    return gains

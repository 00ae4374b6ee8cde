"""Kernels of Student-t components, around those of Gaussians of the backend in use.

A component is t with scale matrix (F'F)^-1 and nu degrees of freedom: with q = |F (x - m)|^2 of the
D cells that were seen of a row,

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
_NEGLIGIBLE = 1e-7  # Posterior weight of a component that leaves no trace in statistics.


def _evaluate(
    backend: ModuleType, layout: Layout, model: Model, rows: np.ndarray, which: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Log-joints and q of pairs (B, W) of rows and components `which`; (K, B) if that is None."""
    zeros, plain = np.zeros_like(model.log_mass), Layout(*layout)
    # Weights and normalisers of one leave the squares.
    bare = model._replace(
        log_mass=zeros, log_normaliser=zeros, decay=np.array([1.0, 1.0, 0.0, -np.inf, 0.0])
    )
    some = np.arange(zeros.shape[0])[:, None] if which is None else np.maximum(which, 0)
    degrees, constant = model.tables[some, 0], log_weights(model, some)
    if layout.is_partial(rows):
        # Of Gaussians, of the cells that were seen.
        joint, squares = backend.condition_pairs(plain, bare, rows, which)
        n_seen = _count_seen(rows)[:, None]
        if which is None:
            joint, squares, n_seen = joint.T, squares.T, n_seen.T
        joint += 0.5 * (squares + n_seen * LOG_2PI) + log_constant(degrees, n_seen)
        constant, half = constant + joint, 0.5 * (degrees + n_seen)
    else:
        if which is None:
            squares = backend.log_joint_all(plain, bare, rows)
        else:
            squares = backend.log_joint(plain, bare, rows, which)
        squares *= -2.0
        constant += model.log_normaliser[some]
        half = 0.5 * (degrees + layout.n_coordinates)
    joint = squares / degrees
    np.log1p(joint, out=joint)
    joint *= half
    np.subtract(constant, joint, out=joint)
    if which is not None:
        joint[which < 0] = -np.inf
    return joint, squares


def _some_of(model: Model, members: np.ndarray) -> Model:
    return model._replace(
        location=model.location[members],
        factor=model.factor[members],
        tables=model.tables[members],
        log_normaliser=model.log_normaliser[members],
        log_mass=model.log_mass[members],
    )


def _count_seen(rows: np.ndarray) -> np.ndarray:
    return np.asarray(np.count_nonzero(~np.isnan(rows), axis=1))


def _precisions(
    model: Model, components: np.ndarray, squares: np.ndarray, n_seen: np.ndarray | int
) -> tuple[np.ndarray, np.ndarray]:
    """Expectations of u and log u for pairs of rows that saw so many cells."""
    degrees, more = model.tables.T[:, components]
    both = degrees + n_seen
    u = both / (degrees + squares)
    logs = np.log(u)
    logs += digamma(0.5 * both) - np.log(0.5 * both)
    # What differs from the expectation at the degrees of freedom in use counts as often as steps of
    # EM are too short.
    logs += (more - 1.0) * (logs + log_gap(degrees) - (u - 1.0))
    return u, logs


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
    block_of = np.empty(model.location.shape[0], dtype=np.int64)
    block_of[partition.members] = partition.block_of_position()
    blocks = block_of[components]
    order = np.argsort(blocks, kind="stable")
    ends = np.searchsorted(blocks[order], np.arange(partition.n_blocks + 1))
    u = None if greedy else uniforms(key, numbers, 1)[:, 0]
    row_weights, total_weight = source.weights_of(numbers)
    drawn, log_sums = np.empty_like(components), np.empty(numbers.shape[0])
    parts: list[tuple[np.ndarray, Sums]] = []
    for b in range(partition.n_blocks):
        members = partition.members[partition.offsets[b] : partition.offsets[b + 1]]
        some = _some_of(model, members)
        size = max(1, _PAIRS // members.shape[0])
        for start in range(ends[b], ends[b + 1], size):
            here = order[start : min(start + size, ends[b + 1])]
            rows = source.gather(numbers[here])
            posterior, squares = _evaluate(backend, layout, some, rows, None)
            if beta != 1.0:
                posterior *= beta
            largest = posterior.max(axis=0)
            posterior -= largest
            np.exp(posterior, out=posterior)
            total = posterior.sum(axis=0)
            log_sums[here] = largest + np.log(total)
            posterior /= total
            if u is None:
                choice = posterior.argmax(axis=0)
            else:
                choice = (np.cumsum(posterior, axis=0)[:-1] <= u[here]).sum(axis=0)
            drawn[here] = members[choice]
            if wants_statistics:
                posterior[posterior < _NEGLIGIBLE] = 0.0
                posterior *= row_weights[here]
                parts.append((members, _sums(backend, layout, some, rows, posterior, squares)))
    statistics = None
    if wants_statistics:
        all_members = np.concatenate([members for members, _ in parts])
        statistics = merge(all_members, stack([sums for _, sums in parts]), layout, total_weight)
    return Swept(drawn, statistics, log_sums, int(np.diff(ends) @ np.diff(partition.offsets)))


def _sums(
    backend: ModuleType,
    layout: Layout,
    model: Model | None,
    rows: np.ndarray,
    shares: np.ndarray,
    squares: np.ndarray | None,
) -> Sums:
    """Sums of all components with shares (K, B) of rows; without a model, those of a start."""
    (K, B), plain, is_partial = shares.shape, Layout(*layout), layout.is_partial(rows)
    u, logs = np.ones((1, 1)), np.full((1, 1), -log_gap(FIRST_DEGREES))
    if model is not None and squares is not None:
        n_seen = _count_seen(rows) if is_partial else layout.n_coordinates
        u, logs = _precisions(model, np.arange(K)[:, None], squares, n_seen)
    counts = np.stack([shares.sum(axis=1), (shares * logs).sum(axis=1)], axis=1)
    if not is_partial:
        return *backend.sums_of_all(plain, rows, np.ones(B), shares * u)[:4], counts
    assert model is not None
    parts = []
    for k in range(K):
        some = np.flatnonzero(shares[k])
        w = shares[[k]][:, some]
        # The covariance of missing cells has a factor of 1 / u.
        parts.append(partial_sums(plain, model, np.array([k]), rows[some], w * u[k, some], w))
    return *stack(parts)[:4], counts


def sums_of_all(
    backend: ModuleType,
    layout: Layout,
    rows: np.ndarray,
    weights: np.ndarray,
    responsibilities: np.ndarray,
    model: Model | None = None,
) -> Sums:
    squares = None if model is None else _evaluate(backend, layout, model, rows, None)[1]
    return _sums(backend, layout, model, rows, responsibilities * weights, squares)


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
    if layout.is_partial(rows):
        assert model is not None
        members, parts = np.unique(components[components >= 0]), []
        for k in members.tolist():
            row, place = np.nonzero(components == k)
            one, w = _some_of(model, np.array([k])), weights[row] * pair_weights[row, place]
            parts.append(sums_of_all(backend, layout, rows[row], w, np.ones((1, row.size)), one))
        return Statistics(members, *stack(parts), total_weight)
    u, logs = np.ones_like(pair_weights), np.full(pair_weights.shape, -log_gap(FIRST_DEGREES))
    chosen = components >= 0
    if model is not None:
        squares = _evaluate(backend, layout, model, rows, components)[1][chosen]
        found = _precisions(model, components[chosen], squares, layout.n_coordinates)
        u[chosen], logs[chosen] = found
    statistics: Statistics = backend.pair_statistics(
        Layout(*layout), n_components, rows, weights, components, pair_weights * u, total_weight
    )
    members, w = statistics.members, (pair_weights * weights[:, None])[chosen]
    order = np.argsort(members)
    slot = order[np.searchsorted(members[order], components[chosen])]
    counts = [np.bincount(slot, each, members.shape[0]) for each in (w, w * logs[chosen])]
    return replace(statistics, counts=np.stack(counts, axis=1))


def blend(
    backend: ModuleType,
    layout: Layout,
    moments: Moments,
    model: Model,
    statistics: Statistics,
    share: float,
    wants_gains: bool,
) -> tuple[np.ndarray, ...] | None:
    gains: tuple[np.ndarray, ...] | None = backend.blend(
        Layout(*layout), moments, model, statistics, share, wants_gains
    )
    # Weights of components are sums of weights, not of precisions.
    members = statistics.members
    model.log_mass[members] = layout.log_masses(moments, members)
    return gains

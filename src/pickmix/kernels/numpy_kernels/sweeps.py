"""The sweep in NumPy: what a newcomer reads, what the compiled one must equal.

It runs small problems without a compiler. All is float64 about each component's location.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from pickmix.families.layout import LEAST_VARIANCE, Layout, Model, Moments, log_weights
from pickmix.kernels.numpy_kernels.features import (
    LEAST,
    Features,
    natural_parameters,
    sums_of_products,
)
from pickmix.kernels.numpy_kernels.partial import (
    condition,
    condition_pairs,
    partial_pair_sums,
    partial_sums,
)
from pickmix.kernels.statistics import Rows, Statistics, Sums, Swept, merge, no_sums, stack
from pickmix.selection.partitions import Partition
from pickmix.selection.randomness import uniforms

_NEGLIGIBLE = 1e-17  # Weight of a row.
_CALL_WORK = 3_000  # Multiply-adds in array operations that take as long as a call per component.
_LEAST_COMPONENTS = 6  # For which features of rows are made for one evaluation.
_LITTLE_ERROR = 1e-9  # Of a log-joint in nats, by rounding.
_NUMBERS = 500_000  # Numbers in an array of all components of a part and all rows of a block.


def log_joints(layout: Layout, model: Model, members: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """log p(x, k) for components `members` (G,) and what was seen of rows (R, D), as (G, R)."""
    out = np.empty((members.shape[0], rows.shape[0]))
    if not rows.shape[0]:
        return out
    is_partial = layout.is_partial(rows)
    # A row whose squared distance leaves float64 has density zero.
    with np.errstate(over="ignore", invalid="ignore" if is_partial else None):
        for some in _parts(layout, members.shape[0], rows, is_partial):
            if is_partial:
                out[some] = condition(layout, model, members[some], rows).log_joint
            else:
                out[some] = _log_joints(layout, model, members[some], rows)
    return out


def _parts(layout: Layout, n: int, rows: np.ndarray, is_partial: bool) -> Iterator[slice]:
    """n components, so many at a time that arrays of numbers, or of matrices, stay small."""
    size, most = rows.size, _NUMBERS
    if is_partial:
        size, most = rows.shape[0] * max(1, layout.n_coordinates) ** 2, 2 * _NUMBERS
    step = max(1, most // max(size, 1))
    return (slice(start, start + step) for start in range(0, n, step))


def _log_joints(layout: Layout, model: Model, members: np.ndarray, rows: np.ndarray) -> np.ndarray:
    coordinates, levels = split_columns(layout, rows)
    factors = np.zeros_like(members) if model.factor.shape[0] == 1 else members
    away = coordinates - model.location[members][:, None, :]
    out: np.ndarray = (log_weights(model, members) + model.log_normaliser[factors])[:, None]
    if layout.is_diagonal:
        out = out - 0.5 * np.square(away * model.factor[factors][:, None, :]).sum(axis=2)
    elif layout.n_products:
        # The factors, transposed.
        matrices = np.zeros((members.shape[0], layout.n_coordinates, layout.n_coordinates))
        i, j = layout.pairs()
        matrices[:, j, i] = model.factor[factors]
        white = away @ matrices
        out = out - 0.5 * np.einsum("grc,grc->gr", white, white)
    if model.linear.shape[0]:
        out = out + np.einsum("grc,gc->gr", away, model.linear[members])
    for column in levels.T:
        out = out + model.tables[members][:, column]
    return np.broadcast_to(out, (members.shape[0], rows.shape[0]))


def split_columns(layout: Layout, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates (R, C) of rows, and their levels as places in the tables (R, Q)."""
    n = layout.n_coordinates
    return rows[:, :n], rows[:, n:].astype(np.int64) + layout.offsets[:-1]


def _summarise(layout: Layout, rows: np.ndarray, weights: np.ndarray) -> Sums:
    coordinates, levels = split_columns(layout, rows)
    n_components = weights.shape[0]
    mass, squares = weights.sum(axis=1), np.square(weights).sum(axis=1)
    mean = np.zeros((n_components, layout.n_coordinates))
    scatter = np.zeros((n_components, layout.n_products))
    counts = np.zeros((n_components, layout.n_levels))
    some = np.flatnonzero(mass > 0.0)
    if not some.shape[0]:
        return mass, squares, mean, scatter, counts
    w = weights[some][:, None, :]
    # About a row that counts first, so that no digits are lost far from the origin.
    guess = coordinates[weights[some].argmax(axis=1)]
    away = coordinates - guess[:, None, :]
    shift = (w @ away)[:, 0] / mass[some, None]
    mean[some] = guess + shift
    away -= shift[:, None, :]
    if layout.is_diagonal:
        scatter[some] = (w @ np.square(away))[:, 0]
    elif layout.n_products:
        i, j = layout.pairs()
        scatter[some] = (w * away.transpose(0, 2, 1) @ away)[:, i, j]
    for column in levels.T:
        for g in some.tolist():
            counts[g] += np.bincount(column, weights[g], layout.n_levels)
    return mass, squares, mean, scatter, counts


def _sums_of(
    layout: Layout, model: Model | None, members: np.ndarray, rows: np.ndarray, weights: np.ndarray
) -> Sums:
    """Mass, squares, mean, scatter and counts of rows (R, D) under weights (G, R)."""
    is_partial = layout.is_partial(rows)
    parts = []
    for some in _parts(layout, members.shape[0], rows, is_partial):
        if is_partial:
            assert model is not None
            parts.append(partial_sums(layout, model, members[some], rows, weights[some]))
        else:
            parts.append(_summarise(layout, rows, weights[some]))
    return stack(parts)


def _posterior(
    log_joint: np.ndarray, u: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Posterior (G, R) of log-joints (G, R), log-sums (R,), draws (R,); the best without u."""
    largest = log_joint.max(axis=0, initial=LEAST)
    weights = np.exp(np.maximum(log_joint, LEAST) - largest)
    total = weights.sum(axis=0)
    weights /= total
    log_sums = np.where(largest > LEAST, largest + np.log(total), -np.inf)
    if u is None:
        return weights, log_sums, weights.argmax(axis=0)
    return weights, log_sums, (np.cumsum(weights, axis=0)[:-1] <= u).sum(axis=0)


def _segments(begins: np.ndarray, end: int) -> list[slice]:
    """Slices from each of the rising `begins` to the next."""
    bounds = [*begins.tolist(), end]
    return [slice(first, last) for first, last in itertools.pairwise(bounds)]


def _sums_of_pairs(
    layout: Layout,
    rows: np.ndarray,
    row: np.ndarray,
    weights: np.ndarray,
    place: np.ndarray,
    n_places: int,
) -> Sums:
    """Sums (n_places, ...) of pairs of a row and a rising place, with weights (n,)."""
    sums = no_sums(n_places, layout)
    begins = np.flatnonzero(np.diff(place, prepend=-1))
    if not begins.shape[0]:
        return sums
    seen, group = place[begins], np.cumsum(np.diff(place, prepend=-1) > 0) - 1
    coordinates, levels = split_columns(layout, rows)

    def add_up(values: np.ndarray) -> np.ndarray:
        return np.asarray(np.add.reduceat(values, begins, axis=0))

    mass = add_up(weights)
    some = np.where(mass > 0.0, mass, 1.0)[:, None]
    values = coordinates[row]
    # About the first row of each, so that no digits are lost far from the origin.
    first = values[begins]
    mean = first + add_up(weights[:, None] * (values - first[group])) / some
    away = values - mean[group]
    sums[0][seen], sums[1][seen], sums[2][seen] = mass, add_up(np.square(weights)), mean
    i, j = layout.pairs()
    if row.shape[0] * layout.n_products < _CALL_WORK * begins.shape[0] or layout.is_diagonal:
        sums[3][seen] = add_up(weights[:, None] * (away[:, i] * away[:, j]))
    else:
        weighted = weights[:, None] * away
        for slot, segment in enumerate(_segments(begins, row.shape[0])):
            sums[3][seen[slot]] = (weighted[segment].T @ away[segment])[i, j]
    for column in levels.T:
        np.add.at(sums[4], (place, column[row]), weights)
    return sums


class _Runs(NamedTuple):
    """Blocks of one size, whose rows are in the order of the blocks."""

    size: int  # Members of a block.
    bounds: np.ndarray  # (n_blocks + 1,) The rows of block b are bounds[b] to bounds[b + 1].

    def of_rows(self) -> np.ndarray:
        """Place (R,) of the first member of each row's block."""
        return np.repeat(self.size * np.arange(self.bounds.shape[0] - 1), np.diff(self.bounds))

    def slices(self) -> Iterator[tuple[slice, slice]]:
        """Members and rows of each block that has rows."""
        for block, (first, last) in enumerate(itertools.pairwise(self.bounds.tolist())):
            if last > first:
                yield slice(block * self.size, (block + 1) * self.size), slice(first, last)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Sums (n_blocks, G) of values (G, R) over the rows of each block."""
        sums = np.zeros((self.bounds.shape[0] - 1, values.shape[0]))
        some = np.flatnonzero(self.bounds[1:] > self.bounds[:-1])
        sums[some] = np.add.reduceat(values, self.bounds[some], axis=1).T
        return sums

    def pairs_of(self, members: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of one of the members (n,), as its place there, and a row of its block."""
        first, last = self.bounds[:-1][members // self.size], self.bounds[1:][members // self.size]
        which = np.repeat(np.arange(members.shape[0]), last - first)
        return which, np.concatenate([np.arange(*run) for run in zip(first, last, strict=True)])


class _BlockRows:
    """The rows of a block, or of blocks in turn: log-joints and sums, by features if kept."""

    def __init__(
        self,
        layout: Layout,
        model: Model,
        source: Rows,
        numbers: np.ndarray,
        features: Features | None,
        runs: _Runs | None,
    ) -> None:
        self.layout, self.model = layout, model
        self.source, self.numbers, self.runs = source, numbers, runs
        self.values: np.ndarray | None = None
        if features is not None:
            whole = numbers.shape[0] == len(features.values) and (np.diff(numbers) == 1).all()
            self.values = features.values if whole else features.values.take(numbers, axis=0)
            self.largest = features.largest

    @cached_property
    def rows(self) -> np.ndarray:
        return self.source.gather(self.numbers)

    def log_joints(self, members: np.ndarray) -> np.ndarray:
        """log p(x, k) (G, R) of the members of a block."""
        if self.values is None:
            return log_joints(self.layout, self.model, members, self.rows)
        theta, narrow = natural_parameters(self.layout, self.model, members, self.largest)
        if self.runs is None:
            out = theta @ self.values.T
            if narrow.any():
                out[narrow] = log_joints(self.layout, self.model, members[narrow], self.rows)
            return np.asarray(out)
        out = np.empty((self.runs.size, self.numbers.shape[0]))
        for block, run in self.runs.slices():
            out[:, run] = theta[block] @ self.values[run].T
        if narrow.any():
            chosen = np.flatnonzero(narrow)
            which, row = self.runs.pairs_of(chosen)
            candidates = members[chosen[which]][:, None]
            exact = log_joint(self.layout, self.model, self.rows[row], candidates)[:, 0]
            out[chosen[which] % self.runs.size, row] = exact
        return out

    def sums(self, members: np.ndarray, weights: np.ndarray) -> Sums:
        """Statistics of the members (G,) under weights of each row in its block, (., R)."""
        if self.values is None:
            return _sums_of(self.layout, self.model, members, self.rows, weights)
        if self.runs is None:
            products = weights @ self.values
            squares = np.einsum("gr,gr->g", weights, weights)
        else:
            products = np.zeros((members.shape[0], self.values.shape[1]))
            for block, run in self.runs.slices():
                np.matmul(weights[:, run], self.values[run], out=products[block])
            squares = self.runs.sums(np.square(weights)).ravel()
        sums, narrow = sums_of_products(
            self.layout, products, squares, float(self.model.decay[LEAST_VARIANCE])
        )
        chosen = np.flatnonzero(narrow)
        if chosen.shape[0]:
            # Few rows have weight in so narrow a component.
            if self.runs is None:
                which, row = np.nonzero(weights[chosen] > _NEGLIGIBLE)
                pair_weights = weights[chosen[which], row]
            else:
                which, row = self.runs.pairs_of(chosen)
                pair_weights = weights[chosen[which] % self.runs.size, row]
            n = chosen.shape[0]
            exact = _sums_of_pairs(self.layout, self.rows, row, pair_weights, which, n)
            for all_sums, its in zip(sums, exact, strict=True):
                all_sums[chosen] = its
        return sums


def sweep(
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
    """Move the chains of rows once: random-partition Gibbs under a frozen model.

    The component of row `numbers[i]`, `components[i]`, is replaced by a draw from the posterior
    within its block. For any partition that does not depend on the chains this is a Gibbs step
    and leaves the posterior over components invariant. If a chain follows the posterior, the
    posterior weights within its block have the posterior as their mean: they, not the draw,
    weigh the statistics. `greedy` takes the best component of the block instead of a draw.
    """
    row_weights, total_weight = source.weights_of(numbers)
    u = None if greedy else uniforms(key, numbers, 1)[:, 0]
    n_rows = numbers.shape[0]
    drawn, log_sums = np.empty_like(components), np.empty(n_rows)
    parts: list[Sums] = []
    evaluations = 0
    features = None
    if source.patterns_of(numbers[:1]) is None:
        features = source.features(partial(Features.of, layout), layout.n_features)
    for members, here, runs in _blocks(model, components, partition, features):
        rows_here = _BlockRows(layout, model, source, numbers[here], features, runs)
        # Evaluate: log-joints of all components of the block.
        joint = rows_here.log_joints(members)
        evaluations += joint.size
        # The posterior within the block, and a draw from it for every row.
        weights, log_sums[here], choice = _posterior(
            joint if beta == 1.0 else beta * joint, None if u is None else u[here]
        )
        drawn[here] = members[choice if runs is None else runs.of_rows() + choice]
        # Add the statistics, weighted by the posterior and not by the draw.
        if wants_statistics:
            weights *= row_weights[here]
            parts.append(rows_here.sums(members, weights))
    statistics = None
    if wants_statistics:
        statistics = Statistics(partition.members, *stack(parts), total_weight)
    return Swept(drawn, statistics, log_sums, evaluations)


def _blocks(
    model: Model, components: np.ndarray, partition: Partition, features: Features | None
) -> Iterator[tuple[np.ndarray, np.ndarray | slice, _Runs | None]]:
    """Yield components and rows of each block; all blocks of one size at once, as runs."""
    n_blocks, members = partition.n_blocks, partition.members
    if n_blocks == 1:
        yield members, slice(None), None
        return
    block = np.empty(model.location.shape[0], dtype=np.int64)
    block[members] = partition.block_of_position()
    blocks, sizes = block[components], np.diff(partition.offsets)
    order = np.argsort(blocks, kind="stable")
    ends = np.concatenate([[0], np.cumsum(np.bincount(blocks, minlength=n_blocks))])
    if features is not None and sizes.min() == sizes.max():
        in_order = bool((blocks[1:] >= blocks[:-1]).all())
        yield members, slice(None) if in_order else order, _Runs(int(sizes[0]), ends)
        return
    for b in range(n_blocks):
        some = slice(partition.offsets[b], partition.offsets[b + 1])
        yield members[some], order[ends[b] : ends[b + 1]], None


def log_joint(layout: Layout, model: Model, rows: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """log p(x_i, candidates[i, j]) as (B, W); -inf where a candidate is negative."""
    if layout.is_partial(rows):
        return condition_pairs(layout, model, rows, candidates)[0]
    coordinates, levels = split_columns(layout, rows)
    chosen = np.maximum(candidates, 0)
    factors = np.zeros_like(chosen) if model.factor.shape[0] == 1 else chosen
    out: np.ndarray = log_weights(model, chosen) + model.log_normaliser[factors]
    away = coordinates[:, None, :] - model.location[chosen]
    if layout.is_diagonal:
        out -= 0.5 * np.square(away * model.factor[factors]).sum(axis=2)
    elif layout.n_products:
        i, j = layout.pairs()
        matrices = np.zeros((model.factor.shape[0], *2 * (layout.n_coordinates,)))
        matrices[:, i, j] = model.factor
        which = factors.ravel()
        order = np.argsort(which, kind="stable")
        begins = np.flatnonzero(np.diff(which[order], prepend=-1))
        flat, squares = away.reshape(-1, layout.n_coordinates), np.empty(which.shape[0])
        if which.shape[0] * matrices[0].size < _CALL_WORK * begins.shape[0]:
            white = np.einsum("pij,pj->pi", matrices[which], flat)
            squares = np.einsum("pi,pi->p", white, white)
        else:
            for segment in _segments(begins, which.shape[0]):
                pairs = order[segment]
                white = flat[pairs] @ matrices[which[pairs[0]]].T
                squares[pairs] = np.einsum("pi,pi->p", white, white)
        out -= 0.5 * squares.reshape(out.shape)
    if model.linear.shape[0]:
        out += (model.linear[chosen] * away).sum(axis=2)
    for column in levels.T:
        out += model.tables[chosen, column[:, None]]
    out[candidates < 0] = -np.inf
    return out


def log_joint_all(layout: Layout, model: Model, rows: np.ndarray) -> np.ndarray:
    """log p(x_i, k) of all components, (K, B), which the caller may overwrite."""
    members = np.arange(model.location.shape[0])
    features = None
    if members.shape[0] >= _LEAST_COMPONENTS and not layout.is_partial(rows):
        features = Features.of(layout, rows)
    if features is None:
        return log_joints(layout, model, members, rows)
    theta, narrow = natural_parameters(layout, model, members, features.largest, _LITTLE_ERROR)
    out = np.asarray(theta @ features.values.T)
    if narrow.any():
        out[narrow] = log_joints(layout, model, members[narrow], rows)
    return out


def sums_of_all(
    layout: Layout,
    rows: np.ndarray,
    weights: np.ndarray,
    responsibilities: np.ndarray,
    model: Model | None = None,
) -> Sums:
    """Mass, squares, mean, scatter and counts (K, ...) of rows (B, D).

    Row i has weights[i] * responsibilities[k, i] in component k. The model completes partial
    rows.
    """
    all_components = np.arange(responsibilities.shape[0])
    return _sums_of(layout, model, all_components, rows, responsibilities * weights)


def pair_statistics(
    layout: Layout,
    n_components: int,
    rows: np.ndarray,
    weights: np.ndarray,
    components: np.ndarray,
    pair_weights: np.ndarray,
    total_weight: float,
    model: Model | None = None,
) -> Statistics:
    """Statistics of pairs (row i, components[i, j]), weights[i] pair_weights[i, j].

    The paper's sparse rules: S_z += w T(x) for chosen pairs; component -1 is padding. The model
    completes partial rows.
    """
    if layout.is_partial(rows):
        assert model is not None
        members, sums = partial_pair_sums(layout, model, rows, weights, components, pair_weights)
        return merge(members, sums, layout, total_weight)
    row, place = np.nonzero(components >= 0)
    w = pair_weights[row, place] * weights[row]
    coordinates, levels = split_columns(layout, rows)
    levels_of_pairs = np.zeros((row.shape[0], layout.n_levels))
    for column in levels.T:
        levels_of_pairs[np.arange(row.shape[0]), column[row]] += w
    sums = (
        w,
        w * w,
        coordinates[row],
        np.zeros((row.shape[0], layout.n_products)),
        levels_of_pairs,
    )
    return merge(components[row, place], sums, layout, total_weight)


def blend(
    layout: Layout,
    moments: Moments,
    model: Model,
    statistics: Statistics,
    share: float,
    wants_gains: bool,
) -> tuple[np.ndarray, ...] | None:
    """SA-step for the components of the statistics, all of which have mass.

        s0 <- (1 - gamma) s0 + share * mass          (the decay has applied 1 - gamma already)
        mean <- mean + (share * mass / s0) (their mean - mean)
        scatter <- ((1 - gamma) s0_old scatter + share * their scatter + cross term) / s0,

    which is s_k <- (1 - gamma) s_k + gamma s_batch for the statistics (1, x, x x') about the
    component's mean. Returns, if wanted, the sums added to masses, squares, degrees of freedom
    (s0 - squares / s0) and mass times scatter.
    """
    k = statistics.members
    scale, square_scale = model.decay[0], model.decay[1]
    kept, added = moments.mass[k] * scale, share * statistics.mass
    total = kept + added
    old, new = (kept / total)[:, None], (1.0 / total)[:, None]
    gains, counts = share * statistics.scatter, share * statistics.counts
    mean = statistics.mean
    kept_squares = moments.squares[k] * square_scale
    squares = kept_squares + share * share * statistics.squares
    if kept.any():
        away = mean - moments.mean[k]
        gains += (kept * (added / total))[:, None] * layout.products(away)
        # Where kept = 0 the mean becomes that of the statistics to the last bit.
        mean = mean - old * away
        moments.scatter[k] = old * moments.scatter[k] + new * gains
        moments.counts[k] = old * moments.counts[k] + new * counts
    else:
        moments.scatter[k], moments.counts[k] = new * gains, new * counts
    moments.mean[k] = mean
    moments.mass[k] = total / scale
    moments.squares[k] = squares / square_scale
    model.log_mass[k] = np.log(moments.mass[k])
    if not wants_gains:
        return None
    freedom = np.divide(kept_squares, kept, out=np.zeros_like(kept), where=kept > 0.0)
    freedom = (total - squares / total) - (kept - freedom)
    return added.sum(), (share * share * statistics.squares).sum(), freedom.sum(), gains.sum(0)

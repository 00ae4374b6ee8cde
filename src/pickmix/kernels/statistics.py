"""What goes into a sweep and what comes out: rows, posterior weights, and additive statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pickmix.families.layout import Layout
from pickmix.selection.randomness import uniforms

_SUMMED_AT_ONCE = 2**16  # Components of log-joints.
#: Mass, squares, mean, scatter and counts of some components.
Sums = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class Rows(Protocol):
    """Where the rows of a chunk are: numbered 0, 1, ..., with weights, centred."""

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """The given rows, centred, as (B, D) float64."""

    def gather_about(self, rows: np.ndarray, origin: np.ndarray) -> np.ndarray:
        """Deviations of the given rows from an origin (D,), as (B, D) float32."""

    def weights_of(self, rows: np.ndarray) -> tuple[np.ndarray, float]:
        """Weights of the given rows, (B,), and what as many rows weigh on average."""

    def patterns_of(self, rows: np.ndarray) -> np.ndarray | None:
        """Numbers (B,) of the sets of cells that are missing; None if all rows are complete."""

    def features(self, make: Callable[[np.ndarray], Any], size: int) -> Any:
        """`make` of all rows, kept for later sweeps; None if `size` numbers per row are many."""


@dataclass(frozen=True)
class Statistics:
    """Sums of w T(x) over rows, for some components, with nothing that cancels.

    Second moments are about each component's mean, so merging adds only non-negative terms
    (Chan, Golub and LeVeque 1983), wherever the data lie.

    >>> from dataclasses import replace
    >>> from pickmix.families.layout import make_layout
    >>> one = Statistics(np.array([4]), np.ones(1), np.ones(1), np.zeros((1, 1)),
    ...                  np.zeros((1, 1)), np.zeros((1, 0)), 1.0)
    >>> other = replace(one, mean=np.full((1, 1), 2.0))
    >>> both = one.plus(other, make_layout([("full", 1)]))
    >>> both.mass, both.mean, both.scatter
    (array([2.]), array([[1.]]), array([[2.]]))
    """

    members: np.ndarray  # (U,) The components, each once.
    #: (U,) Sums of weights and of squared weights.
    mass: np.ndarray
    squares: np.ndarray
    mean: np.ndarray  # (U, C) Weighted mean of the coordinates.
    scatter: np.ndarray  # (U, P) Weighted sums of products of coordinates about the mean.
    counts: np.ndarray  # (U, L) Weights of the levels.
    #: What as many rows as were visited weigh on average. Divided by this, and not by the weight
    #: of the rows that happened to be visited, statistics average to those of all rows.
    total_weight: float

    @property
    def sums(self) -> Sums:
        """Everything but the members and the total weight."""
        return self.mass, self.squares, self.mean, self.scatter, self.counts

    def at(self, places: np.ndarray | slice) -> Statistics:
        """The statistics at these places of `members`."""
        mass, squares, mean, scatter, counts = (each[places] for each in self.sums)
        some = self.members[places]
        return Statistics(some, mass, squares, mean, scatter, counts, self.total_weight)

    def plus(self, other: Statistics, layout: Layout) -> Statistics:
        """Sum of both. Terms are added in call order, so results are bit-reproducible."""
        if np.array_equal(self.members, other.members):
            return self._plus_aligned(other, layout)
        members = np.union1d(self.members, other.members)
        one, two = self._spread_over(members), other._spread_over(members)
        return one._plus_aligned(two, layout)

    def _spread_over(self, members: np.ndarray) -> Statistics:
        """The same over rising `members`, a superset; the others have no mass."""
        places = np.searchsorted(members, self.members)

        def spread(values: np.ndarray) -> np.ndarray:
            wide = np.zeros((members.shape[0], *values.shape[1:]))
            wide[places] = values
            return wide

        mass, squares, mean, scatter, counts = map(spread, self.sums)
        return Statistics(members, mass, squares, mean, scatter, counts, self.total_weight)

    def _plus_aligned(self, other: Statistics, layout: Layout) -> Statistics:
        """`plus` for the same components in the same order."""
        mass = self.mass + other.mass
        share = np.divide(other.mass, mass, out=np.zeros_like(mass), where=mass > 0.0)
        away = np.where((self.mass * other.mass > 0.0)[:, None], other.mean - self.mean, 0.0)
        start = np.where((self.mass > 0.0)[:, None], self.mean, other.mean)
        spread = (self.mass * share)[:, None] * layout.products(away)
        return Statistics(
            self.members,
            mass,
            self.squares + other.squares,
            start + share[:, None] * away,
            self.scatter + other.scatter + spread,
            self.counts + other.counts,
            self.total_weight + other.total_weight,
        )


@dataclass(frozen=True)
class Swept:
    """What a sweep returns."""

    components: np.ndarray  # (B,) The component that each row's chain has moved to.
    statistics: Statistics | None  # The additive update.
    log_sums: np.ndarray  # (B,) log sum of p(x, k)^beta over the row's block; may be empty.
    evaluations: int  # Component evaluations made.


def stack(parts: Sequence[Sums]) -> Sums:
    """Sums of the components of all parts, one after another."""
    mass, squares, mean, scatter, counts = map(np.concatenate, zip(*parts, strict=True))
    return mass, squares, mean, scatter, counts


def merge(members: np.ndarray, sums: Sums, layout: Layout, total_weight: float) -> Statistics:
    """Statistics from sums whose `members` may repeat; terms add up in their order."""
    mass, squares, mean, scatter, counts = sums
    distinct, first, slot = np.unique(members, return_index=True, return_inverse=True)
    if distinct.shape[0] == members.shape[0]:
        return Statistics(members, *sums, total_weight)
    # Components in the order of their first appearance.
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(order.shape[0])
    slot = rank[slot.ravel()]
    n_slots = distinct.shape[0]
    firsts = first[order]
    merged_mass = np.bincount(slot, mass, n_slots)
    merged_squares = np.bincount(slot, squares, n_slots)
    share = np.divide(mass, merged_mass[slot], out=np.zeros_like(mass), where=mass > 0.0)
    # About the first mean of each, so that no digits are lost far from the origin.
    away = mean - mean[firsts][slot]
    shift = _sum_by(slot, share[:, None] * away, n_slots)
    merged_mean = mean[firsts] + shift
    residual = np.where(mass[:, None] > 0.0, mean - merged_mean[slot], 0.0)
    spread = mass[:, None] * layout.products(residual)
    return Statistics(
        members[firsts],
        merged_mass,
        merged_squares,
        merged_mean,
        _sum_by(slot, scatter + spread, n_slots),
        _sum_by(slot, counts, n_slots),
        total_weight,
    )


def _sum_by(slot: np.ndarray, values: np.ndarray, n_slots: int) -> np.ndarray:
    """Sums (n_slots, d) of values (n, d) by slot (n,); every slot occurs."""
    if not values.shape[1]:
        return np.zeros((n_slots, 0))
    order = np.argsort(slot, kind="stable")
    begins = np.searchsorted(slot[order], np.arange(n_slots))
    return np.add.reduceat(values[order], begins, axis=0)


def no_sums(n: int, layout: Layout) -> Sums:
    """Zeros for the mass, squares, mean, scatter and counts of n components."""
    return (
        np.zeros(n),
        np.zeros(n),
        np.zeros((n, layout.n_coordinates)),
        np.zeros((n, layout.n_products)),
        np.zeros((n, layout.n_levels)),
    )


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
    largest, total = log_joint.max(axis=0), np.zeros(log_joint.shape[1])
    # A copy of all log-joints takes longer to allocate than to sum.
    for first in range(0, log_joint.shape[0], _SUMMED_AT_ONCE):
        total += _unnormalised(log_joint[first : first + _SUMMED_AT_ONCE], 1.0, largest).sum(axis=0)
    return np.asarray(largest + np.log(total))


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


def _unnormalised(
    log_joint: np.ndarray, beta: float, largest: np.ndarray | None = None
) -> np.ndarray:
    """exp(beta log_joint (K, B)), scaled so that the largest (B,) of each column is one."""
    # Where all are -inf the weights are NaN, as they should be.
    with np.errstate(invalid="ignore"):
        largest = log_joint.max(axis=0) if largest is None else largest
        weights: np.ndarray = np.exp(beta * (log_joint - largest))
    return weights

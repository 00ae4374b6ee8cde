"""Rows in memory with the components of their chains: sweeps, leave-one-out sums, samples."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from pickmix.closed_form.evaluation import left_out_log_sums
from pickmix.closed_form.search import draw_routes, near_components
from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows, Batches
from pickmix.families.base import HeldOutRows
from pickmix.kernels.numpy_kernels.partial import noise_matrices
from pickmix.kernels.statistics import Rows, Statistics
from pickmix.selection.partitions import Partition
from pickmix.selection.randomness import StepRandomness, Stream

_HELD_OUT = 8  # Rows per column from which the shrinkage of a component is estimated.
_PARTIAL_HELD_OUT = 8000  # The least number for all components together, where rows are partial.
_BLOCK_ROWS = 65536
_FAR_ROWS = 256
_MOST_COMPARED = 10_000  # Components, all of which are compared with a background.


@dataclass(frozen=True)
class ChainSweep:
    """Result of a sweep through the rows."""

    statistics: Statistics | None
    evaluations: int  # Of a component on a row.


@dataclass(frozen=True)
class Relabelling:
    """Labels for a sweep under another mixture than that of the chains."""

    into: np.ndarray  # (K,) Component in the other mixture; -1 if its rows take no part.
    back: np.ndarray | None = None  # (K',) Its components in this one; None: chains stay.


class NumberedSource(Rows, Protocol):
    """Rows with their number and mean weight."""

    n_rows: int
    mean_weight: float

    def part(self, rows: np.ndarray, weights: np.ndarray) -> ArrayRows:
        """Some rows with other weights, copied."""


class Chains:
    """Components (N,) int32 of the chains of rows, updated in place.

    `batches` are the rows of each step.
    """

    def __init__(self, source: NumberedSource, chain: np.ndarray, batches: Batches) -> None:
        self.source = source
        self.chain = chain
        self.batches = batches
        self.n_rows = source.n_rows
        self.mean_weight = source.mean_weight
        self._numbers: np.ndarray | None = None

    def sweep(
        self,
        state: MixtureState,
        partition: Partition,
        step: int,
        random: StepRandomness,
        *,
        beta: float = 1.0,
        stream: Stream = Stream.POSTERIOR,
        wants_statistics: bool = True,
        relabelling: Relabelling | None = None,
    ) -> ChainSweep:
        """Move the chains of the rows of a step once, or sweep under another mixture."""
        numbers = self.batches.rows(step)
        total_weight = self.source.weights_of(numbers)[1]
        # All rows in their order need no gathering.
        is_whole = self.batches.n_batches == 1
        components = self.chain if is_whole else self.chain[numbers]
        if relabelling is not None:
            components = relabelling.into[components]
            takes_part = components >= 0
            if not takes_part.all():
                numbers, components = numbers[takes_part], components[takes_part]
        swept = state.backend.sweep(
            state.layout,
            state.model,
            self.source,
            numbers,
            components,
            partition,
            random.key(stream),
            beta,
            wants_statistics,
            wants_log_sums=False,
            # Nobody reads the draws where chains stay.
            greedy=relabelling is not None and relabelling.back is None,
        )
        if relabelling is None and is_whole:
            self.chain[:] = swept.components
        elif relabelling is None:
            self.chain[numbers] = swept.components
        elif relabelling.back is not None:
            self.chain[numbers] = relabelling.back[swept.components]
        statistics = swept.statistics
        if statistics is not None:
            # In units of all rows of the step, whether they took part or not.
            statistics = replace(statistics, total_weight=total_weight)
        return ChainSweep(statistics, swept.evaluations)

    def left_out_sums(
        self, state: MixtureState, partition: Partition, relabelling: Relabelling
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """Leave-one-out log-likelihood of the rows of each block of a partition.

        Returns sums over the rows of log sum_k p(x, k), components estimated without the row, and
        the weights of the rows, (n_blocks,) each; and the evaluations made.
        """
        block_of = _block_of(partition, state.n_components)
        sizes = np.diff(partition.offsets)
        components = relabelling.into[self.chain]
        numbers = np.flatnonzero(components >= 0)
        sums = np.zeros(partition.n_blocks)
        totals = np.zeros(partition.n_blocks)
        for start in range(0, numbers.shape[0], _BLOCK_ROWS):
            some = numbers[start : start + _BLOCK_ROWS]
            blocks = block_of[components[some]]
            weights = self.source.weights_of(some)[0]
            candidates = partition.members_of(blocks[:, None])
            values = left_out_log_sums(
                state, self.source.gather(some), weights / self.mean_weight, candidates
            )
            sums += np.bincount(blocks, weights * values, partition.n_blocks)
            totals += np.bincount(blocks, weights, partition.n_blocks)
        return sums, totals, int(sizes[block_of[components[numbers]]].sum())

    def rows_for_background(
        self, state: MixtureState, weight: float, random: StepRandomness
    ) -> tuple[float, np.ndarray]:
        """Gain of a background of this weight, and the rows (n,) that it explains best.

        Of very many components those nearest to a row stand for all.
        """
        gain, near, routes = 0.0, None, None
        found = [np.empty(0, dtype=np.int64)]
        for start in range(0, self.n_rows, _BLOCK_ROWS):
            numbers = np.arange(start, min(start + _BLOCK_ROWS, self.n_rows))
            rows = self.source.gather(numbers)
            weights = self.source.weights_of(numbers)[0] / self.mean_weight
            there = math.log(weight) + state.family.background_log_densities(state.prior, rows)
            here = left_out_log_sums(state, rows, weights, self.chain[numbers][:, None])
            far = np.flatnonzero(here < there)
            # The component of its chain may not be the one that explains a row best.
            for first in range(0, far.shape[0], _FAR_ROWS):
                some = far[first : first + _FAR_ROWS]
                if state.n_components > _MOST_COMPARED:
                    # With very many components, routes take longer than a sweep.
                    routes = routes or draw_routes(state, random)
                    near = near_components(state, rows[some], routes)
                gains = there[some] - left_out_log_sums(state, rows[some], weights[some], near)
                gain += float(weights[some] @ np.maximum(gains, 0.0))
                found.append(numbers[some[gains > 0.0]])
        return gain, np.concatenate(found)

    def shrinkage_sample(
        self, state: MixtureState, partition: Partition, step: int, components: np.ndarray
    ) -> HeldOutRows:
        """Some rows of the step whose chains are on the given components.

        Their weights are the posterior within the blocks of the partition. Chains are on a
        component with that probability, so these rows represent all.
        """
        numbers = self.batches.rows(step)
        most = _HELD_OUT * state.layout.n_coordinates
        if self.source.patterns_of(numbers[:1]) is not None:
            # Partial rows have less information each, and take long.
            most = max(most // 2, _PARTIAL_HELD_OUT // components.shape[0])
        position = np.full(state.n_components, -1, dtype=np.int32)
        position[components] = np.arange(components.shape[0], dtype=np.int32)
        places = position[self.chain[numbers]]
        keep = np.flatnonzero(places >= 0)
        keep = keep[np.argsort(places[keep], kind="stable")]
        keep = keep[thinned(places[keep], most)[0]]
        numbers, places = numbers[keep], places[keep]
        rank = _ranks(places)
        standing = components[places].astype(np.int32)
        swept = state.backend.sweep(
            state.layout,
            state.model,
            self.source,
            numbers,
            standing,
            partition,
            np.uint64(0),
            wants_statistics=False,
            greedy=True,
        )
        rows = self.source.gather(numbers)
        joint = state.backend.log_joint(state.layout, state.model, rows, standing[:, None])[:, 0]
        row_weights = self.source.weights_of(numbers)[0] / self.mean_weight
        width = int(rank.max(initial=0)) + 1
        weights = np.zeros((components.shape[0], width))
        weights[places, rank] = np.minimum(np.exp(joint - swept.log_sums), 1.0) * row_weights
        residuals = np.zeros((components.shape[0], width, state.layout.n_coordinates))
        coordinates = rows[:, : state.layout.n_coordinates]
        noise = None
        if rows.shape[1] > state.layout.n_columns:
            C = state.layout.n_coordinates
            noise = np.zeros((components.shape[0], width, C, C))
            noise[places, rank] = noise_matrices(state.layout, rows)
        residuals[places, rank] = coordinates - state.moments.mean[standing]
        return HeldOutRows(components, residuals, weights, noise)

    def relabel(self, new_label: np.ndarray) -> None:
        """Relabel chains after components have moved: k is now new_label[k]."""
        self.chain[:] = new_label[self.chain]

    def of_step(self, step: int, most: int | None = None) -> Chains:
        """The rows of one step, gathered by component, for repeated use.

        With `most`, at most so many rows per component, which weigh more instead.
        """
        numbers = self.batches.rows(step)
        components = self.chain[numbers]
        order = np.argsort(components, kind="stable")
        numbers, components = numbers[order], components[order]
        weights = self.source.weights_of(numbers)[0]
        if most is not None:
            used, share = thinned(components, most)
            numbers, weights = numbers[used], weights[used] * share
        return self._part(numbers, weights)

    def sample(self, n: int, seed: int) -> Chains:
        """At most n rows, the same for the same seed."""
        numbers = sample_numbers(self.n_rows, n, seed)
        return self._part(numbers, self.source.weights_of(numbers)[0])

    def _part(self, numbers: np.ndarray, weights: np.ndarray) -> Chains:
        local = self.source.part(numbers, weights)
        batches = Batches(local.n_rows, local.n_rows, 0)
        part = Chains(local, self.chain[numbers], batches)
        part.mean_weight = self.mean_weight
        part._numbers = numbers
        return part

    def take_back(self, part: Chains) -> None:
        """Copy back the chains of rows that `of_step` or `sample` gave."""
        assert part._numbers is not None
        self.chain[part._numbers] = part.chain


def thinned(groups: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of at most `most` of every group in rising `groups`, and their multiplicities.

    >>> thinned(np.array([0, 1, 1, 1, 1]), 2)
    (array([0, 1, 3]), array([1., 2., 2.]))
    """
    counts = np.bincount(groups)[groups]
    apart = -(-counts // most)
    used = np.flatnonzero(_ranks(groups) % apart == 0)
    kept = np.bincount(groups[used])[groups[used]]
    return used, counts[used] / kept


def _ranks(groups: np.ndarray) -> np.ndarray:
    """Rank of each place within its group, of rising `groups`."""
    counts = np.bincount(groups)
    begins = np.cumsum(counts) - counts
    return np.asarray(np.arange(groups.shape[0]) - begins[groups])


def sample_numbers(n_rows: int, n: int, seed: int) -> np.ndarray:
    """Numbers of at most n of n_rows rows, rising, without repetition."""
    if n >= n_rows:
        return np.arange(n_rows)
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, 2**63], np.uint64)))
    return np.sort(generator.choice(n_rows, n, replace=False))


def _block_of(partition: Partition, n_components: int) -> np.ndarray:
    """Block of each component, (K,)."""
    block = np.zeros(n_components, dtype=np.int64)
    block[partition.members] = partition.block_of_position()
    return block

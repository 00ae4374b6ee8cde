"""The fleet: where rows and the states of their chains are. Rows stay, statistics travel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows, Batches
from pickmix.selection.partitions import Partition
from pickmix.selection.randomness import StepRandomness, Stream
from pickmix.sweep.contract import Backend, Rows
from pickmix.sweep.statistics import Statistics


@dataclass(frozen=True)
class FleetSweep:
    """What a sweep over all shards adds up to.

    Attributes
    ----------
    statistics : Statistics or None
        Of all rows that took part.
    block_sums : (n_blocks,) array
        Sum over the rows of each block of log sum_k p(x, k)^beta, with their weights.
    block_weights : (n_blocks,) array
        Weights of the rows of each block.
    evaluations : int
        Component evaluations made.
    n_rows : int
        Rows that took part.
    """

    statistics: Statistics | None
    block_sums: np.ndarray
    block_weights: np.ndarray
    evaluations: int
    n_rows: int


@dataclass(frozen=True)
class Detour:
    """A sweep under another mixture than that of the chains.

    Attributes
    ----------
    into : (K,) int32 array
        Where the rows of a component stand in the other mixture; -1 if they take no part.
    back : (K',) int32 array or None
        Where the components of the other mixture stand in this one. None leaves chains alone.
    """

    into: np.ndarray
    back: np.ndarray | None = None


class ShardRows(Rows, Protocol):
    """The rows of a shard: how many, and what one weighs on average."""

    n_rows: int
    mean_weight: float


class Fleet(Protocol):
    """Shards of rows, each with one int32 of chain state."""

    n_rows: int
    #: What a row weighs on average.
    mean_weight: float

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
        detour: Detour | None = None,
    ) -> FleetSweep:
        """Move the chains of the rows of a step once, or make a detour; see `Backend.sweep`."""
        ...

    def rename(self, becomes: np.ndarray) -> None:
        """After components have moved: rows of component k now stand on becomes[k]."""
        ...

    def sample(self, n: int, seed: int) -> np.ndarray:
        """At most n rows (n, D), the same for the same seed, centred."""
        ...

    def focus(self, step: int) -> Fleet:
        """A fleet of the rows of one step, for clients that meet them many times."""
        ...

    def adopt(self, focused: Fleet) -> None:
        """Take over the states of a fleet that `focus` gave."""
        ...

    def snapshot(self) -> np.ndarray:
        """The states of all chains."""
        ...

    def restore(self, states: np.ndarray) -> None:
        """Come back to the states of a snapshot."""
        ...


class LocalFleet:
    """One shard, in memory.

    Parameters
    ----------
    backend : Backend
    source : ShardRows
    chain : (N,) int32 array
        The component that each row's chain stands on. Updated in place.
    batches : Batches
        Which rows belong to a step.
    """

    def __init__(
        self, backend: Backend, source: ShardRows, chain: np.ndarray, batches: Batches
    ) -> None:
        self.backend = backend
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
        detour: Detour | None = None,
    ) -> FleetSweep:
        """Move the chains of the rows of a step once, or make a detour."""
        numbers = self.batches.rows(step)
        total_weight = self.source.weights_of(numbers)[1]
        # All rows in their order need no gathering.
        is_whole = self.batches.n_batches == 1
        components = self.chain if is_whole else self.chain[numbers]
        if detour is not None:
            components = detour.into[components]
            takes_part = components >= 0
            if not takes_part.all():
                numbers, components = numbers[takes_part], components[takes_part]
        swept = self.backend.sweep(
            state.layout,
            state.model,
            self.source,
            numbers,
            components,
            partition,
            random.key(stream),
            beta,
            wants_statistics,
            wants_log_sums=detour is not None,
        )
        if detour is None and is_whole:
            self.chain[:] = swept.components
        elif detour is None:
            self.chain[numbers] = swept.components
        elif detour.back is not None:
            self.chain[numbers] = detour.back[swept.components]
        statistics = swept.statistics
        if statistics is not None:
            # In units of all rows of the step, whether they took part or not.
            statistics = replace(statistics, total_weight=total_weight)
        block_sums: np.ndarray = np.empty(0)
        block_weights: np.ndarray = np.empty(0)
        if detour is not None:
            block = _block_of(partition, state.n_components)[components]
            weights = self.source.weights_of(numbers)[0]
            block_weights = np.bincount(block, weights, partition.n_blocks)
            block_sums = np.bincount(block, weights * swept.log_sums, partition.n_blocks)
        return FleetSweep(
            statistics, block_sums, block_weights, swept.evaluations, numbers.shape[0]
        )

    def rename(self, becomes: np.ndarray) -> None:
        """After components have moved: rows of component k now stand on becomes[k]."""
        self.chain[:] = becomes[self.chain]

    def sample(self, n: int, seed: int) -> np.ndarray:
        """At most n rows (n, D), the same for the same seed, centred."""
        return self.source.gather(sample_numbers(self.n_rows, n, seed))

    def focus(self, step: int) -> LocalFleet:
        """A fleet of the rows of one step, gathered component by component."""
        numbers = self.batches.rows(step)
        numbers = numbers[np.argsort(self.chain[numbers], kind="stable")]
        rows = self.source.gather(numbers)
        weights = self.source.weights_of(numbers)[0]
        local = ArrayRows(rows, weights, np.zeros(rows.shape[1]), self.backend.threads is not None)
        fleet = LocalFleet(
            self.backend, local, self.chain[numbers], Batches(local.n_rows, local.n_rows, 0)
        )
        fleet.mean_weight = self.mean_weight
        fleet._numbers = numbers
        return fleet

    def adopt(self, focused: Fleet) -> None:
        """Take over the states of a fleet that `focus` gave."""
        assert isinstance(focused, LocalFleet)
        assert focused._numbers is not None
        self.chain[focused._numbers] = focused.chain

    def snapshot(self) -> np.ndarray:
        """The states of all chains."""
        return self.chain.copy()

    def restore(self, states: np.ndarray) -> None:
        """Come back to the states of a snapshot."""
        self.chain[:] = states


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

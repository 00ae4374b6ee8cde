"""The fleet: where rows and the states of their chains are. Rows stay, statistics travel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows
from pickmix.families.leave_one_out import Witnesses
from pickmix.selection.partitions import Partition
from pickmix.selection.randomness import StepRandomness, Stream
from pickmix.sweep.contract import Rows
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

    def part(self, rows: np.ndarray, weights: np.ndarray) -> ArrayRows:
        """Some rows with other weights, copied."""
        ...


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

    def judge(
        self, state: MixtureState, partition: Partition, detour: Detour
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """How well each block of a partition explains its rows, each of them left out once.

        Returns sums over the rows of the logarithm of sum_k p(x, k), components estimated without
        the row, and the weights of the rows, (n_blocks,) each; and the evaluations made.
        """
        ...

    def astray(self, state: MixtureState, weight: float) -> tuple[float, np.ndarray]:
        """What a background of this weight gains, and the rows (n,) that it explains best."""
        ...

    def put(self, rows: np.ndarray, component: int) -> None:
        """Let the chains of rows stand on a component."""
        ...

    def count(self, rows: np.ndarray, n_components: int) -> np.ndarray:
        """How many of the rows stand on each component, (K,)."""
        ...

    def witnesses(
        self, state: MixtureState, partition: Partition, step: int, components: np.ndarray
    ) -> Witnesses:
        """Some rows of the step whose chains stand on the given components."""
        ...

    def rename(self, becomes: np.ndarray) -> None:
        """After components have moved: rows of component k now stand on becomes[k]."""
        ...

    def sample(self, n: int, seed: int) -> np.ndarray:
        """At most n rows (n, D), the same for the same seed, centred."""
        ...

    def focus(self, step: int, most: int | None = None) -> Fleet:
        """A fleet of the rows of one step, for clients that meet them many times.

        With `most` it holds no more rows than that of each component, which weigh more instead.
        """
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

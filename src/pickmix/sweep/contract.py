"""The contract that the two implementations of a sweep share, and which one runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pickmix.families.layout import Layout, Model, Moments
from pickmix.selection.operations import Operations
from pickmix.selection.partitions import Partition
from pickmix.sweep.statistics import Statistics, Sums
from pickmix.threads import Threads

# Smaller problems run in NumPy: a fit of some hundred sweeps then takes a few seconds.
MOST_COMPONENTS = 256
_MOST_WORK = 8e6  # Multiply-adds of a sweep.
_PARTIAL_WORK = 20.0  # Cost of partial rows in NumPy, relative to complete ones.
_BLOCK = 32


class Rows(Protocol):
    """Where the rows of a chunk are: numbered 0, 1, ..., with weights, centred."""

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """The given rows, centred, as (B, D) float64."""

    def weights_of(self, rows: np.ndarray) -> tuple[np.ndarray, float]:
        """Weights of the given rows, (B,), and what as many rows weigh on average."""

    def patterns_of(self, rows: np.ndarray) -> np.ndarray | None:
        """Numbers (B,) of the sets of cells that are missing; None if all rows are complete."""


@dataclass(frozen=True)
class Swept:
    """What a sweep returns."""

    components: np.ndarray  # (B,) The component that each row's chain has moved to.
    statistics: Statistics | None  # The additive update.
    log_sums: np.ndarray  # (B,) log sum of p(x, k)^beta over the row's block; may be empty.
    evaluations: int  # Component evaluations made.


class Backend(Protocol):
    """Array work of an engine on rows: `Reference` in NumPy, `Compiled` in Numba."""

    operations: Operations
    threads: Threads | None  # Threads of the compiled implementation; None for the one in NumPy.

    def sweep(
        self,
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

    def log_joint(
        self, layout: Layout, model: Model, rows: np.ndarray, candidates: np.ndarray
    ) -> np.ndarray:
        """log p(x_i, candidates[i, j]) as (B, W); -inf where a candidate is negative."""

    def log_joint_all(self, layout: Layout, model: Model, rows: np.ndarray) -> np.ndarray:
        """log p(x_i, k) of all components, (K, B), which the caller may overwrite."""

    def likeness(
        self, layout: Layout, model: Model, rows: np.ndarray, candidates: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Log-joints (B, W) of candidates (None: all); log p(x | k) of complete rows as distant."""

    def sums_of_all(
        self,
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

    def pair_statistics(
        self,
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

    def blend(
        self,
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


def needs_compiled(
    layout: Layout, n_rows: int, n_components: int, is_partial: bool = False
) -> bool:
    """Whether compiling pays, by sizes and by whether rows are partial (slow in NumPy)."""
    work = n_rows * min(n_components, _BLOCK) * layout.work()
    if is_partial:
        work *= _PARTIAL_WORK
    return n_components > MOST_COMPONENTS or work > _MOST_WORK

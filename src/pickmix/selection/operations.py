"""Array operations of selection: one contract, for NumPy and for compiled kernels.

`ArrayOperations` compiles nothing and runs small problems; `CompiledOperations` runs large ones.
Both draw the same numbers from the same keys; sums may differ in their last bits. Log-joints of all
components are (K, B), as they are computed; those of a few candidates (B, C). `rows` (B,) are
distinct row numbers. A row that no component explains has NaN weights and likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

LEAST_QUANTILE = 0.3  # Splits of a tree put at least this share of blocks on each side.
EXCHANGE_DRAW = 2**19  # First draw of exchanges, beyond those of directions.


@dataclass(frozen=True)
class Tree:
    """Splits of space: row x goes to the second child where directions[n] . x >= thresholds[n].

    children (n, 2): another node, or leaf number l as -1 - l. Without nodes there is one leaf.
    """

    directions: np.ndarray
    thresholds: np.ndarray
    children: np.ndarray
    root: int

    @classmethod
    def unfilled(cls, n_nodes: int, n_features: int) -> Tree:
        children = np.empty((n_nodes, 2), dtype=np.int32)
        return cls(np.empty((n_nodes, n_features)), np.empty(n_nodes), children, -1)


class Table(Protocol):
    """A table n (N, K) of which each row is a proposal distribution, 1/K everywhere at first."""

    def draw(
        self, rows: np.ndarray, current: np.ndarray, key: np.uint64, first_draw: int, n_draws: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Candidates (B, n_draws) int32 from n / sum n, their log q, and log q of `current`."""

    def raise_visited(
        self, rows: np.ndarray, states: np.ndarray, decay: float, gain: float
    ) -> None:
        """Excess over 1/K <- decay * excess + gain, for every state of states (B, M) in turn."""

    def content(self) -> dict[str, Any]: ...

    def restore(self, content: dict[str, Any]) -> None: ...


class Neighbours(Protocol):
    """Lists of each component's G nearest, learnt from log-joints.

    d(c, k) is the mean over rows that c wins of log p(x, c) - log p(x, k).
    """

    lists: np.ndarray  # (K, G) Components by distance, each list beginning with its own.

    def collect(
        self, rows: np.ndarray, held: np.ndarray, n_explore: int, key: np.uint64
    ) -> tuple[np.ndarray, int]:
        """Search sets: candidates (B, C) int32, padded with -1, and their total number.

        A row's set is the union of the lists of the components held (B, M), padded with -1, and of
        `n_explore` uniform draws.
        """

    def learn(self, candidates: np.ndarray, log_joint: np.ndarray, winners: np.ndarray) -> None:
        """Update the lists of each row's winner, winners (B,), from log-joints (B, C)."""

    def content(self) -> dict[str, Any]: ...

    def restore(self, content: dict[str, Any]) -> None: ...


class Operations(Protocol):
    """The array work of selection. B rows, K components, M draws or kept components."""

    def normalise_all(self, log_joint: np.ndarray, beta: float) -> np.ndarray:
        """Replace log_joint (K, B) by responsibilities, p(x, k)^beta normalised over k.

        Returns log sum_k p(x, k), (B,), at beta = 1 whatever beta is.
        """

    def log_sum_exp(self, log_joint: np.ndarray) -> np.ndarray:
        """Log sum_k exp(log_joint (K, B)), as (B,)."""

    def top_of_all(
        self, log_joint: np.ndarray, beta: float, n_kept: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Each row's M largest of all log-joints (K, B) and their renormalised weights.

        Components (B, M) int32 by decreasing log-joint, padded with -1 of weight 0.
        """

    def top_of_candidates(
        self, log_joint: np.ndarray, candidates: np.ndarray, beta: float, n_kept: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """`top_of_all` among the candidates (B, C) of each row, padded with -1."""

    def draw_from_posterior(
        self, log_joint: np.ndarray, beta: float, rows: np.ndarray, key: np.uint64, n_draws: int
    ) -> np.ndarray:
        """States (B, M) int32: independent draws from p(k | x)^beta given log-joints (K, B)."""

    def accept_or_stay(
        self,
        current: np.ndarray,
        candidates: np.ndarray,
        log_joint_current: np.ndarray,
        log_joint: np.ndarray,
        log_q_current: np.ndarray,
        log_q: np.ndarray,
        beta: float,
        rows: np.ndarray,
        key: np.uint64,
        first_draw: int,
        states: np.ndarray,
        acceptance: np.ndarray,
    ) -> None:
        """Metropolis-Hastings: run each row's chain over its M candidates (B, M).

        Per row i and draw j, with z_bar the current state: draw u, accept z = candidates[i, j]
        if u < alpha(z_bar, z) = min(1, [p(x, z) / p(x, z_bar)]^beta q(z_bar) / q(z)).

        current, log_joint_current, log_q_current (B,) are replaced by their values after the last
        draw; states (B, M) receives the chain, and acceptance (B,) is raised by the alphas.
        """

    def count_states(
        self, states: np.ndarray, acceptance: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """Distinct components (B, M) of states (B, M), weights n/M, and the sum of acceptance."""

    def draw_uniformly(
        self, rows: np.ndarray, n_components: int, key: np.uint64, first_draw: int, n_draws: int
    ) -> np.ndarray: ...

    def grow_tree(
        self, points: np.ndarray, leaf_size: int, key: np.uint64, scales: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, Tree]:
        """Split points (n, D) until at most `leaf_size` are together.

        Directions are normal with the standard deviations `scales` (D,). Returns the points'
        numbers (n,) int32 leaf by leaf, the leaves' offsets among them (int64), and the tree.
        """

    def leaf_of(self, tree: Tree, rows: np.ndarray) -> np.ndarray:
        """Leaf of each row (B, D), as (B,) int32."""

    def exchange(self, members: np.ndarray, share: float, key: np.uint64) -> None:
        """Exchange about `share` of the members at random (Fisher and Yates)."""

    def group_rows(
        self, components: np.ndarray, position: np.ndarray, n_places: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sort rows by the place of their component, position[components[i]], keeping their order.

        Returns order (B,) int64, indices into `components`, and ends (n_places,) int64: those at
        place p end at ends[p]. Components (B,) are not negative.
        """

    def start_table(self, n_rows: int, n_components: int) -> Table: ...

    def start_neighbours(self, lists: np.ndarray) -> Neighbours:
        """Begin with guessed lists (K, G): any distance that is learnt replaces a guess."""

"""Engine 1: mixtures in closed form, by sparse sufficient statistics.

`RuleEngine.step` is the paper's Algorithm 1 with the closed-form M-step; the selection rule alone
decides which algorithm of Table 1 it is. `PartitionEngine` (partition_engine.py) is the same with
random-partition Gibbs, where selection and statistics are one sweep.
"""

from __future__ import annotations

import abc

import numpy as np

from pickmix.closed_form.evaluation import dense_block_rows, log_likelihoods
from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows, Batches
from pickmix.selection.counters import Counters
from pickmix.selection.operations import Operations
from pickmix.selection.randomness import StepRandomness
from pickmix.selection.rules import SelectedPairs, SelectionRule
from pickmix.selection.schedules import Schedule
from pickmix.sweep.statistics import Statistics

_SPARSE_BLOCK_ROWS = 65536


class ClosedFormEngine(abc.ABC):
    """Implements `fitting.loop.Engine` for closed-form engines; updates `state` in place.

    The log-likelihood is evaluated on the rows `probe`; None for rules that compute it anyway.
    `log_base` is the mean of the family's over these rows.
    """

    #: Name of the outcome when an update is refused.
    refusal = "singular_covariance"

    def __init__(
        self, state: MixtureState, source: ArrayRows, probe: np.ndarray | None, log_base: float
    ) -> None:
        self.state = state
        self.source = source
        self.counters = Counters()
        self.probe = probe
        self.log_base = log_base

    @property
    @abc.abstractmethod
    def chain(self) -> np.ndarray:
        """Components (N,) of the chains of all rows."""

    @abc.abstractmethod
    def step(self, t: int) -> None: ...

    def advance(self, first: int, most: int) -> int:
        self.step(first)
        return 1

    def validation(self) -> float | None:
        return None

    def may_end(self, step: int) -> bool:
        return True

    def log_likelihood(self) -> float:
        assert self.probe is not None
        values = log_likelihoods(self.state, self.source, self.probe)
        weights, _ = self.source.weights_of(self.probe)
        return float(weights @ values / weights.sum()) + self.log_base

    def live_components(self) -> int:
        """Number of components that weigh at least half a row."""
        return int(np.count_nonzero(self.state.weights * self.source.n_rows >= 0.5))


class BlockEvaluator:
    """log p(x_i, k) under a frozen mixture for one block of rows (see `Evaluator`)."""

    def __init__(self, state: MixtureState, rows: np.ndarray) -> None:
        self._state = state
        self.rows = rows
        self.n_components = state.n_components
        self.operations: Operations = state.backend.operations

    def log_joint(self, candidates: np.ndarray) -> np.ndarray:
        state = self._state
        return state.backend.log_joint(state.layout, state.model, self.rows, candidates)

    def log_joint_all(self) -> np.ndarray:
        state = self._state
        return state.backend.log_joint_all(state.layout, state.model, self.rows)

    def nearest_components(self, n_neighbours: int) -> np.ndarray:
        places = self._state.positions()
        squares = np.einsum("kd,kd->k", places, places)
        distances = squares[:, None] - 2.0 * places @ places.T + squares
        np.fill_diagonal(distances, -np.inf)
        return np.argsort(distances, axis=1, kind="stable")[:, :n_neighbours].astype(np.int32)


class RuleEngine(ClosedFormEngine):
    """Fits a mixture by one of the paper's selection rules, started with `chain` (N,) int32.

    step_size: t -> gamma_t; annealing: t -> beta_t counted from `first_step`, or None for beta = 1.
    """

    def __init__(
        self,
        state: MixtureState,
        source: ArrayRows,
        rule: SelectionRule,
        chain: np.ndarray,
        batches: Batches,
        step_size: Schedule,
        annealing: Schedule | None,
        seed: int,
        probe: np.ndarray | None,
        log_base: float = 0.0,
        first_step: int = 1,
    ) -> None:
        super().__init__(state, source, probe, log_base)
        self.rule = rule
        self._chain = chain
        self.batches = batches
        self.step_size = step_size
        self.annealing = annealing
        self.seed = seed
        self.first_step = first_step
        self._block_rows = _SPARSE_BLOCK_ROWS
        if rule.evaluates_all:
            self._block_rows = dense_block_rows(state.n_components)
        # Log-likelihoods that an exhaustive rule computes anyway, since the last estimate.
        self._log_likelihood_sum = 0.0
        self._log_likelihood_weight = 0.0

    @property
    def chain(self) -> np.ndarray:
        return self._chain

    def step(self, t: int) -> None:
        gamma = self.step_size(t)
        beta = 1.0 if self.annealing is None else self.annealing(t - self.first_step + 1)
        random = StepRandomness(self.seed, t)
        # Form the set I.
        batch = self.batches.rows(t)
        statistics: Statistics | None = None
        for start in range(0, batch.shape[0], self._block_rows):
            block = batch[start : start + self._block_rows]
            # S-step: select components for the rows of the block, under frozen parameters.
            evaluate = BlockEvaluator(self.state, self.source.gather(block))
            selected = self.rule.select(evaluate, block, beta, gamma, random)
            # Add the sufficient statistics of the selected pairs.
            added = self._statistics(evaluate.rows, block, selected)
            statistics = added if statistics is None else statistics.plus(added, self.state.layout)
        # SA-step and M-step for k in unique(z).
        assert statistics is not None
        self.counters.refused += self.state.absorb(statistics, gamma).shape[0]

    def _statistics(
        self, rows: np.ndarray, numbers: np.ndarray, selected: SelectedPairs
    ) -> Statistics:
        """Statistics of the selected pairs of a block, counted."""
        state, backend = self.state, self.state.backend
        weights, total_weight = self.source.weights_of(numbers)
        self._record(selected, weights)
        if selected.components is not None:
            return backend.pair_statistics(
                state.layout,
                state.n_components,
                rows,
                weights,
                selected.components,
                selected.weights,
                total_weight,
                state.model,
            )
        sums = backend.sums_of_all(state.layout, rows, weights, selected.weights, state.model)
        everyone = np.arange(state.n_components, dtype=np.int32)
        return Statistics.of_sums(everyone, sums, total_weight)

    def _record(self, selected: SelectedPairs, weights: np.ndarray) -> None:
        n_rows = weights.shape[0]
        self.counters.rows += n_rows
        self.counters.evaluations += selected.evaluations
        self.counters.acceptance_sum += selected.acceptance * n_rows
        if selected.log_likelihood is not None:
            self._log_likelihood_sum += float(weights @ selected.log_likelihood)
            self._log_likelihood_sum -= self.state.log_total() * float(weights.sum())
            self._log_likelihood_weight += float(weights.sum())

    def log_likelihood(self) -> float:
        if self.probe is not None:
            return super().log_likelihood()
        estimate = self._log_likelihood_sum / self._log_likelihood_weight
        self._log_likelihood_sum = self._log_likelihood_weight = 0.0
        return estimate + self.log_base

"""Engine 1 with random-partition Gibbs: Algorithm 1 whose S-step is a sweep through blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.closed_form.engine import ClosedFormEngine
from pickmix.closed_form.mixture import GaussianMixtureState
from pickmix.closed_form.partition_gibbs import sweep
from pickmix.closed_form.relocation import Relocation
from pickmix.data.rows import ArrayRows, Batches
from pickmix.selection.partitions import Partition, draw_partition
from pickmix.selection.randomness import StepRandomness, Stream
from pickmix.selection.rules import PartitionGibbs
from pickmix.selection.schedules import Schedule

# Steps between rounds of relocation, rounds at most, and the share of components that must move
# in a round for another to follow.
_RELOCATE_EVERY = 4
_MOST_ROUNDS = 12
# After rounds without moves, trials of daring rounds: how many may fail, with rounds after each,
# for up to how many components (beyond, they cost more than they bring), and what each must gain
# in nats per row.
_MOST_FAILURES = 4
_ROUNDS_PER_TRIAL = 1
_LARGEST_TRIAL = 150
_LEAST_GAIN = 2e-4
_WORTHWHILE_SHARE = 1.0 / 300.0
# Steps over which the statistics are averaged at the end, at least, and the power of gamma there.
_SETTLING_STEPS = 8
_SETTLING_POWER = 0.6


@dataclass(frozen=True)
class _Remembered:
    """The mixture and the chains before a trial, their log-likelihood, and what was split."""

    parameters: dict[str, np.ndarray]
    chain: np.ndarray
    log_likelihood: float
    split: np.ndarray


class PartitionEngine(ClosedFormEngine):
    """Fits a Gaussian mixture state by random-partition Gibbs, one step at a time.

    Without a given step size a fit has two phases. First every step replaces the statistics
    (gamma = 1), as in EM, and every few steps components are relocated. When the log-likelihood
    has stopped rising, or the last steps have come, statistics are averaged
    (gamma = 2^-0.6, 3^-0.6, ...), which takes the noise of the draws out of the parameters.

    Parameters
    ----------
    step_size : Schedule or None
        None for the two phases.
    relocates : bool
        Whether components are moved in the first phase.
    last_step : int
        The last step of this fit at most.

    The other parameters are those of `ClosedFormEngine`.
    """

    rule: PartitionGibbs

    def __init__(
        self,
        state: GaussianMixtureState,
        source: ArrayRows,
        rule: PartitionGibbs,
        batches: Batches,
        step_size: Schedule | None,
        annealing: Schedule | None,
        seed: int,
        probe: np.ndarray | None,
        first_step: int = 1,
        *,
        last_step: int,
        relocates: bool = False,
    ) -> None:
        unused: Any = None
        super().__init__(state, source, rule, batches, unused, annealing, seed, probe, first_step)
        self._given = step_size
        self._last_step = last_step
        n_steps = last_step - first_step + 1
        # Short fits have no time to settle.
        self._settling_steps = min(max(_SETTLING_STEPS, batches.n_batches), n_steps // 3)
        self._settling_since: int | None = None
        self._relocation = Relocation(state, source, rule.chain) if relocates else None
        self._rounds = 0
        self._failures = 0
        self._before_trial: _Remembered | None = None
        self._partitions: list[Partition] = []
        self._rows_to_go = 0

    def _step_size_of(self, t: int) -> float:
        if self._given is not None:
            return self._given(t)
        if self._settling_since is None and t > self._last_step - self._settling_steps:
            self._settling_since = t
        if self._settling_since is None:
            return 1.0
        return float((t - self._settling_since + 2) ** -_SETTLING_POWER)

    def may_end(self, step: int) -> bool:
        """Whether the statistics have settled; the first plateau lets them begin to."""
        if self._given is not None or self._settling_steps == 0:
            return True
        if self._relocation is not None:
            return False
        if self._settling_since is None:
            self._settling_since = step + 1
        return step - self._settling_since + 1 >= self._settling_steps

    def step(self, t: int) -> None:
        """Do step t of Algorithm 1, and relocate components if it is time to."""
        super().step(t)
        done = t - self.first_step + 1
        if self._relocation is None:
            return
        if self._settling_since is not None:
            self._relocation = None
        elif done % _RELOCATE_EVERY == 0:
            self._relocate(self._relocation, t)

    def _relocate(self, relocation: Relocation, t: int) -> None:
        """One round of relocation; rounds without moves are followed by daring ones, on trial."""
        relocation.evaluations = 0
        rows, random = self.batches.rows(t), StepRandomness(self.seed, t)
        moves = relocation.round(rows, random)
        self._rounds += 1
        enough = _WORTHWHILE_SHARE * self.state.n_components
        if moves <= enough or self._rounds >= _MOST_ROUNDS:
            self._take_back_if_failed(relocation)
            if not self._dare(relocation, rows, random):
                self._relocation = None
        self.counters.evaluations += relocation.evaluations

    def _dare(self, relocation: Relocation, rows: np.ndarray, random: StepRandomness) -> bool:
        """Begin a trial: moves that seem to lose, to be taken back unless they gain."""
        if self._failures == _MOST_FAILURES or self.state.n_components > _LARGEST_TRIAL:
            return False
        parameters, chain = self.state.remember(), self.rule.chain.copy()
        log_likelihood = self.log_likelihood()
        moves = relocation.round(rows, random, daring=True)
        self._before_trial = _Remembered(parameters, chain, log_likelihood, relocation.split)
        self._rounds = _MOST_ROUNDS - _ROUNDS_PER_TRIAL
        return moves > 0

    def _take_back_if_failed(self, relocation: Relocation) -> None:
        """If a trial has gained nothing, make the mixture what it was, and try other moves."""
        before = self._before_trial
        if before is None or self.log_likelihood() > before.log_likelihood + _LEAST_GAIN:
            relocation.avoided[:] = False
            return
        self.state.recall(before.parameters)
        self.rule.chain[:] = before.chain
        self._failures += 1
        relocation.avoided[before.split] = True

    def _select(self, batch: np.ndarray, beta: float, gamma: float, random: StepRandomness) -> None:
        """Sweep through the blocks of M partitions, and add the statistics of the block weights."""
        self._follow(batch, gamma, random)
        for number, partition in enumerate(self._partitions):
            key = StepRandomness(random.seed, random.step * 1024 + number).key(Stream.POSTERIOR)
            done = sweep(self.state, self.source, self.rule.chain, batch, partition, key, beta)
            total_weight = self.source.weights_of(batch)[1]
            self._increment.add_moments(done.members, done.moments, total_weight)
            self.counters.evaluations += done.evaluations
        self.counters.rows += batch.shape[0]
        self.counters.acceptance_sum += batch.shape[0]

    def _follow(self, batch: np.ndarray, gamma: float, random: StepRandomness) -> None:
        """Draw new partitions and pool the covariances, once per K rows or more."""
        state = self.state
        # Rows behind the statistics, if those of the steps were independent.
        before = (1.0 - gamma) ** 2 / max(state.n_rows, 1.0)
        state.n_rows = min(self.source.n_rows, 1.0 / (before + gamma**2 / batch.shape[0]))
        if self._rows_to_go <= 0:
            self._rows_to_go = state.n_components
            state.pool()
            settings = self.rule.settings
            self._partitions = [
                draw_partition(
                    state.model.mean,
                    settings.block_size,
                    settings.shuffle,
                    random,
                    state.threads,
                    state.widths(),
                    number,
                )
                for number in range(self.rule.n_partitions)
            ]
        self._rows_to_go -= batch.shape[0]

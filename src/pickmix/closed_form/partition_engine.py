"""Engine 1 with random-partition Gibbs: Algorithm 1 whose S-step is a sweep through blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pickmix.closed_form.engine import ClosedFormEngine
from pickmix.closed_form.fleet import LocalFleet
from pickmix.closed_form.relocation import Relocation
from pickmix.closed_form.state import MixtureState, Snapshot
from pickmix.data.rows import ArrayRows
from pickmix.selection.partitions import Partition, draw_partition
from pickmix.selection.randomness import StepRandomness
from pickmix.selection.schedules import Schedule
from pickmix.selection.settings import RandomPartition

# Steps between rounds of relocation, rounds at most, and the share of components that must move
# in a round for another to follow.
_RELOCATE_EVERY = 4
_MOST_ROUNDS = 12
_WORTHWHILE_SHARE = 1.0 / 300.0
# After rounds without moves, trials of daring rounds: how many may fail, with rounds after each,
# for up to how many components (beyond, they cost more than they bring), and what each must gain
# in nats per row.
_MOST_FAILURES = 4
_ROUNDS_PER_TRIAL = 1
_LARGEST_TRIAL = 150
_LEAST_GAIN = 2e-4
# Steps over which the statistics are averaged at the end, at least, and the power of gamma there.
_SETTLING_STEPS = 8
_SETTLING_POWER = 0.6


@dataclass(frozen=True)
class _Trial:
    """The mixture and the chains before a trial, their log-likelihood, and what was split."""

    parameters: Snapshot
    chains: np.ndarray
    log_likelihood: float
    split: np.ndarray


class PartitionSweeps:
    """Partitions of a mixture's components, drawn anew as rows go by, and sweeps through them."""

    def __init__(
        self,
        state: MixtureState,
        fleet: LocalFleet,
        settings: RandomPartition,
        n_partitions: int,
        most_rows: float | None = None,
    ) -> None:
        self.state = state
        self.fleet = fleet
        # Rows that may stand behind the statistics: those of the fleet, or more in a stream.
        self.most_rows = fleet.n_rows if most_rows is None else most_rows
        self.settings = settings
        self.n_partitions = n_partitions
        self.evaluations = 0
        self.n_rows = 0
        self.refused = 0
        self._partitions: list[Partition] = []
        self._rows_to_go = 0

    def step(self, t: int, gamma: float, beta: float, random: StepRandomness) -> None:
        """Sweep through the blocks of M partitions, and absorb the statistics."""
        state = self.state
        n_rows = self.fleet.batches.rows(t).shape[0]
        # Rows behind the statistics, if those of the steps were independent.
        before = (1.0 - gamma) ** 2 / max(state.prior.n_rows, 1.0)
        state.prior.n_rows = min(self.most_rows, 1.0 / (before + gamma**2 / n_rows))
        if self._rows_to_go <= 0:
            self._refresh(random)
        self._rows_to_go -= n_rows
        statistics = None
        for number, partition in enumerate(self._partitions):
            done = self.fleet.sweep(state, partition, t, random.child(number), beta=beta)
            self.evaluations += done.evaluations
            added = done.statistics
            assert added is not None
            statistics = added if statistics is None else statistics.plus(added, state.layout)
        self.n_rows += n_rows
        assert statistics is not None
        self.refused += state.absorb(statistics, gamma).shape[0]

    def _refresh(self, random: StepRandomness) -> None:
        """Draw new partitions and pool the components, once per K rows or more."""
        state = self.state
        self._rows_to_go = state.n_components
        state.pool()
        self._partitions = [
            draw_partition(
                state.places(),
                self.settings.block_size,
                self.settings.shuffle,
                random.child(number),
                state.backend.operations,
                state.widths(),
            )
            for number in range(self.n_partitions)
        ]


class PartitionEngine(ClosedFormEngine):
    """Fits a mixture by random-partition Gibbs, one step at a time.

    Without a given step size a fit has two phases. First every step replaces the statistics
    (gamma = 1), as in EM, and every few steps components are relocated. When the log-likelihood
    has stopped rising, or the last steps have come, statistics are averaged
    (gamma = 2^-0.6, 3^-0.6, ...), which takes the noise of the draws out of the parameters.

    Parameters
    ----------
    state : MixtureState
    source, fleet : the rows
    settings : RandomPartition
    n_partitions : int
        M, partitions per visit.
    step_size : Schedule or None
        None for the two phases.
    annealing : callable t -> beta_t, or None for beta = 1
    seed : int
    probe, log_base
        As in `ClosedFormEngine`.
    first_step, last_step : int
        The first step of this fit, and the last one at most.
    relocates : bool
        Whether components are moved in the first phase.
    """

    def __init__(
        self,
        state: MixtureState,
        source: ArrayRows,
        fleet: LocalFleet,
        settings: RandomPartition,
        n_partitions: int,
        step_size: Schedule | None,
        annealing: Schedule | None,
        seed: int,
        probe: np.ndarray | None,
        log_base: float = 0.0,
        *,
        first_step: int = 1,
        last_step: int,
        relocates: bool = False,
    ) -> None:
        super().__init__(state, source, probe, log_base)
        self.fleet = fleet
        self.annealing = annealing
        self.seed = seed
        self.first_step = first_step
        self._sweeps = PartitionSweeps(state, fleet, settings, n_partitions)
        self._given = step_size
        self._last_step = last_step
        n_steps = last_step - first_step + 1
        # Short fits have no time to settle.
        self._settling_steps = min(max(_SETTLING_STEPS, fleet.batches.n_batches), n_steps // 3)
        self._settling_since: int | None = None
        self._relocation = Relocation(state, fleet) if relocates else None
        self._rounds = 0
        self._failures = 0
        self._trial: _Trial | None = None

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
        gamma = self._step_size_of(t)
        beta = 1.0 if self.annealing is None else self.annealing(t - self.first_step + 1)
        random = StepRandomness(self.seed, t)
        self._sweeps.step(t, gamma, beta, random)
        relocation = self._relocation
        if relocation is not None and self._settling_since is not None:
            self._relocation = None
        elif relocation is not None and (t - self.first_step + 1) % _RELOCATE_EVERY == 0:
            self._relocate(relocation, t, random)
        self.counters.rows = self._sweeps.n_rows
        # Every draw is accepted.
        self.counters.acceptance_sum = self._sweeps.n_rows
        self.counters.refused = self._sweeps.refused
        self.counters.evaluations += self._sweeps.evaluations
        self._sweeps.evaluations = 0

    def _relocate(self, relocation: Relocation, t: int, random: StepRandomness) -> None:
        """One round of relocation; rounds without moves are followed by daring ones, on trial."""
        relocation.evaluations = 0
        moves = relocation.round(t, random)
        self._rounds += 1
        enough = _WORTHWHILE_SHARE * self.state.n_components
        if moves <= enough or self._rounds >= _MOST_ROUNDS:
            self._take_back_if_failed(relocation)
            if not self._dare(relocation, t, random):
                self._relocation = None
        self.counters.evaluations += relocation.evaluations

    def _dare(self, relocation: Relocation, t: int, random: StepRandomness) -> bool:
        """Begin a trial: moves that seem to lose, to be taken back unless they gain."""
        if self._failures == _MOST_FAILURES or self.state.n_components > _LARGEST_TRIAL:
            return False
        parameters, chains = self.state.snapshot(), self.fleet.snapshot()
        log_likelihood = self.log_likelihood()
        moves = relocation.round(t, random.child(1), daring=True)
        self._trial = _Trial(parameters, chains, log_likelihood, relocation.split)
        self._rounds = _MOST_ROUNDS - _ROUNDS_PER_TRIAL
        return moves > 0

    def _take_back_if_failed(self, relocation: Relocation) -> None:
        """If a trial has gained nothing, make the mixture what it was, and try other moves."""
        trial = self._trial
        if trial is None or self.log_likelihood() > trial.log_likelihood + _LEAST_GAIN:
            relocation.avoided[:] = False
            return
        self.state.restore(trial.parameters)
        self.fleet.restore(trial.chains)
        self._failures += 1
        relocation.avoided[trial.split] = True

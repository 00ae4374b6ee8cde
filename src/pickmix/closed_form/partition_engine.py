"""Engine 1 with random-partition Gibbs: Algorithm 1 whose S-step is a sweep through blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pickmix.closed_form.engine import ClosedFormEngine
from pickmix.closed_form.evaluation import left_out_log_sums
from pickmix.closed_form.local_fleet import LocalFleet, sample_numbers
from pickmix.closed_form.relocation import Relocation, Survey
from pickmix.closed_form.search import draw_routes, search
from pickmix.closed_form.state import MixtureState, Snapshot
from pickmix.data.rows import ArrayRows
from pickmix.selection.partitions import Partition, draw_partition
from pickmix.selection.randomness import StepRandomness
from pickmix.selection.schedules import Schedule
from pickmix.selection.settings import RandomPartition

_CHOICES = (1, 2, 4, 8, 14, 20)  # Steps with estimates of shrinkage; then periodically.
_MOST_ASKED = 500  # Components whose shrinkage is estimated at a time, at most.
_RELOCATE_EVERY = 3  # Steps between rounds of relocation.
_LARGEST_TRIAL = 150  # With more components trials cost more than they gain.
_MOST_FAILURES = 6  # Trials without enough gain, at most.
_LEAST_GAIN = 2e-3  # Nats per row that a trial must gain.
_JUDGING_ROWS = 4000  # Rows by which trials are judged.
_PATIENCE = 1  # Rounds after which exploratory moves are judged.
_BACKGROUND_ROUND = 3  # The round in which a background is tried first.
_MOST_BACKGROUNDS = 2  # Later attempts, at most.
_MOST_ROUNDS = 12  # Without trials.
_WORTHWHILE_SHARE = 1.0 / 300.0  # Without trials: moves per component for another round to follow.
# Components are relocated on _EARLY_ROWS (_MORE_COLUMNS + columns) rows each, if there are
# _EARLY_SHARE times as many. The other rows then find their components by a search.
_EARLY_ROWS = 30
_FEWER_EARLY_ROWS = 10  # Without trials.
_MORE_COLUMNS = 6
_EARLY_SHARE = 1.5
_LEAST_PASSES = 5  # Over all rows.
_MOST_PASSES = 15  # Over all rows, before averaging begins.
_SETTLING_STEPS = 8  # Over which statistics are averaged at the end, at least.
_SETTLING_POWER = 0.6  # Of gamma there.


@dataclass(frozen=True)
class _Trial:
    """The mixture and the chains before moves on trial."""

    parameters: Snapshot
    chains: np.ndarray


def estimate_shrinkage(
    fleet: LocalFleet, state: MixtureState, partition: Partition, step: int
) -> None:
    """Estimate each component's shrinkage from rows of a step that are assigned to it."""
    K = state.n_components
    some = np.arange(K)
    if K > _MOST_ASKED:
        some = np.unique(np.linspace(0, K - 1, _MOST_ASKED).astype(np.int64))
    state.estimate_shrinkage(fleet.held_out(state, partition, step, some))


class PartitionSweeps:
    """Random partitions of the components of a mixture, drawn repeatedly, and sweeps."""

    def __init__(
        self,
        state: MixtureState,
        fleet: LocalFleet,
        settings: RandomPartition,
        n_partitions: int,
        most_rows: float | None = None,
        first_step: int = 1,
        decides_first: bool = False,
    ) -> None:
        self.first_step = first_step
        # Whether a fit that continues estimates shrinkage before the first
        # M-step. A batch of a stream is too small for it.
        self.decides_first = decides_first
        self.state = state
        self.fleet = fleet
        # Rows that the statistics may come from: those in memory, or more in a stream.
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
        # Effective rows of the statistics, if steps were independent.
        before = (1.0 - gamma) ** 2 / max(state.prior.n_rows, 1.0)
        state.prior.n_rows = min(self.most_rows, 1.0 / (before + gamma**2 / n_rows))
        if self._rows_to_go <= 0:
            self._refresh(random)
        self._rows_to_go -= n_rows
        if self.decides_first and state.prior.undecided:
            self._choose(t)
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
        # Ever more seldom, as components settle.
        steps = t - self.first_step + 1
        if steps in _CHOICES or steps % _CHOICES[-1] == 0:
            self._choose(t)

    def _choose(self, t: int) -> None:
        """Estimate the shrinkage of components, from some of their rows."""
        if self.state.prior.estimates_shrinkage:
            estimate_shrinkage(self.fleet, self.state, self._partitions[0], t)

    def _refresh(self, random: StepRandomness) -> None:
        """Draw new partitions and pool the components, once per K rows or more."""
        state = self.state
        self._rows_to_go = state.n_components
        state.pool()
        self._partitions = [
            draw_partition(
                state.positions(),
                self.settings.block_size,
                self.settings.shuffle,
                random.child(number),
                state.backend.operations,
                state.scales(),
            )
            for number in range(self.n_partitions)
        ]


class PartitionEngine(ClosedFormEngine):
    """Fits a mixture by random-partition Gibbs, one step at a time.

    Without a given step size a fit has two phases. First every step replaces the statistics
    (gamma = 1), as in EM, and every few steps components are relocated, if `relocates`. When the
    log-likelihood has stopped rising, or the last steps have come, statistics are averaged
    (gamma = 2^-0.6, 3^-0.6, ...), which takes the noise of the draws out of the parameters.
    `n_partitions` is M, partitions per visit; the others are as in `RuleEngine`.
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
        self._sweeps = PartitionSweeps(
            state, fleet, settings, n_partitions, first_step=first_step, decides_first=True
        )
        self._given = step_size
        self._last_step = last_step
        n_steps = last_step - first_step + 1
        # Short fits have no time to settle.
        self._settling_steps = min(max(_SETTLING_STEPS, fleet.batches.n_batches), n_steps // 3)
        self._settling_since: int | None = None
        self._relocation: Relocation | None = None
        if relocates:
            self._relocation = Relocation(state, self._begin_with_some())
        self._rounds = 0
        self._backgrounds = 0
        self._patience = 0
        self._all_since: int | None = None
        self._failures = 0
        self._survey: Survey | None = None
        self._value: float | None = None
        self._trial: _Trial | None = None

    @property
    def chain(self) -> np.ndarray:
        return self.fleet.chain

    def _begin_with_some(self) -> LocalFleet:
        """Enough rows to distinguish components, or all rows."""
        K = self.state.n_components
        each = _EARLY_ROWS if K <= _LARGEST_TRIAL else _FEWER_EARLY_ROWS
        n_some = K * each * (self.state.layout.n_columns + _MORE_COLUMNS)
        most = self.fleet.n_rows / _EARLY_SHARE
        if n_some > most or self._given is not None or self.state.n_components < 3:
            return self.fleet
        some = self.fleet.some(n_some, self.seed)
        self._sweeps.fleet, self._sweeps.most_rows = some, some.n_rows
        return some

    def _go_on_with_all(self, step: int, random: StepRandomness) -> None:
        """Find components for the rows that were left out so far."""
        some, state = self._sweeps.fleet, self.state
        if some is self.fleet:
            return
        if state.n_components > self._sweeps.settings.block_size:
            chain, _, evaluations = search(state, self.source, draw_routes(state, random))
            self.fleet.restore(chain)
            self.counters.evaluations += evaluations
        self.fleet.adopt(some)
        self._sweeps.fleet, self._sweeps.most_rows = self.fleet, self.fleet.n_rows
        self._all_since = step

    def _step_size_of(self, t: int) -> float:
        if self._given is not None:
            return self._given(t)
        late = t > self._last_step - self._settling_steps
        if self._all_since is not None:
            # Parameters learnt from a sample need few more steps.
            late = late or t > self._all_since + _MOST_PASSES * self.fleet.batches.n_batches
        if self._settling_since is None and late:
            self._settling_since = t
        if self._settling_since is None:
            return 1.0
        return float((t - self._settling_since + 2) ** -_SETTLING_POWER)

    def may_end(self, step: int) -> bool:
        if self._given is not None or self._settling_steps == 0:
            return True
        if self._relocation is not None:
            return False
        if self._sweeps.fleet is not self.fleet:
            self._go_on_with_all(step, StepRandomness(self.seed, step).child(2))
            return False
        if self._settling_since is None:
            self._settling_since = step + 1
        return step - self._settling_since + 1 >= self._settling_steps

    def step(self, t: int) -> None:
        random = StepRandomness(self.seed, t)
        if t > self._last_step - self._settling_steps - _LEAST_PASSES:
            # The last steps are for all rows, and for averaging.
            self._stop_relocating(random)
            self._go_on_with_all(t, random)
        gamma = self._step_size_of(t)
        beta = 1.0 if self.annealing is None else self.annealing(t - self.first_step + 1)
        self._sweeps.step(t, gamma, beta, random)
        if self._relocation is not None and (t - self.first_step + 1) % _RELOCATE_EVERY == 0:
            self._relocate(self._relocation, t, random)
        self.counters.rows = self._sweeps.n_rows
        # Every draw is accepted.
        self.counters.acceptance_sum = self._sweeps.n_rows
        self.counters.refused = self._sweeps.refused
        self.counters.evaluations += self._sweeps.evaluations
        self._sweeps.evaluations = 0

    def _relocate(self, relocation: Relocation, t: int, random: StepRandomness) -> None:
        relocation.evaluations = 0
        if self.state.n_components > _LARGEST_TRIAL:
            moves = relocation.round(t, random)
            self._rounds += 1
            enough = _WORTHWHILE_SHARE * self.state.n_components
            going_on = moves > enough and self._rounds < _MOST_ROUNDS
            if self._rounds == _BACKGROUND_ROUND or not going_on:
                relocation.lay_background(t, random.child(1))
        elif self._patience > 0:
            # The components around an exploratory move have not followed yet.
            self._patience -= 1
            going_on = True
        else:
            going_on = self._judge_trial(relocation) and self._try(relocation, t, random)
        self.counters.evaluations += relocation.evaluations
        if not going_on:
            self._stop_relocating(random)

    def _try(self, relocation: Relocation, t: int, random: StepRandomness) -> bool:
        """Begin a trial: moves that gain, a background, or exploratory moves."""
        if self._survey is None:
            self._survey = relocation.survey(t, random)
        if self._survey is None:
            return False
        if self._value is None:
            self._value = self._left_out_log_likelihood()
        self._rounds += 1
        self._trial = _Trial(self.state.snapshot(), self._sweeps.fleet.snapshot())
        # A background is tried early, as outlying rows take components from others, and
        # again at the end.
        if self._rounds == _BACKGROUND_ROUND and relocation.lay_background(t, random):
            return True
        moves = relocation.move(self._survey, t, random)
        if not moves and self._backgrounds < _MOST_BACKGROUNDS:
            self._backgrounds += 1
            if relocation.lay_background(t, random):
                return True
        if not moves:
            moves = relocation.move(self._survey, t, random, daring=True)
            self._patience = _PATIENCE
        return moves > 0

    def _judge_trial(self, relocation: Relocation) -> bool:
        """Keep the moves of a trial if they gained, else undo them; True to continue."""
        trial = self._trial
        if trial is None:
            return True
        self._trial = None
        assert self._value is not None
        value = self._left_out_log_likelihood()
        gain = value - self._value
        if gain < _LEAST_GAIN:
            self._failures += 1
        if gain > 0.0:
            relocation.avoided[:] = False
            self._survey, self._value = None, value
        else:
            relocation.avoided[relocation.split] = True
            self.state.restore(trial.parameters)
            self._sweeps.fleet.restore(trial.chains)
        return self._failures < _MOST_FAILURES

    def _stop_relocating(self, random: StepRandomness) -> None:
        if self._relocation is not None:
            self._judge_trial(self._relocation)
        self._relocation = None

    def _left_out_log_likelihood(self) -> float:
        """Mean leave-one-out log-likelihood per row of a sample."""
        source = self._sweeps.fleet.source
        numbers = sample_numbers(source.n_rows, _JUDGING_ROWS, 0)
        weights = source.weights_of(numbers)[0]
        values = left_out_log_sums(
            self.state, source.gather(numbers), weights / self.source.mean_weight
        )
        return float(weights @ values / weights.sum()) - self.state.log_total()

"""The phases of a default fit: explore, all rows, average.

1. *Explore*: components are relocated every few steps, on as many rows as distinguish them.
2. *All rows*: the other rows find their components by a search, and every step replaces the
   statistics (gamma = 1), as in EM, until the log-likelihood has stopped rising.
3. *Average*: gamma = 2^-0.6, 3^-0.6, ..., which takes the noise of the draws out of the parameters.
   Where all components are in one block and all rows in one batch there is no noise: steps are
   those of EM, and gamma stays 1.

Up to `_LARGEST_TRIAL` components, moves are trials: they are undone if the leave-one-out
log-likelihood of some rows has not risen a few steps later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pickmix.checks import check_restored
from pickmix.closed_form.chains import Chains, sample_numbers
from pickmix.closed_form.evaluation import left_out_log_sums
from pickmix.closed_form.relocation import Relocation, Survey
from pickmix.closed_form.search import draw_routes, search
from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows
from pickmix.fitting.settings import FitSettings
from pickmix.selection.randomness import StepRandomness

if TYPE_CHECKING:
    from pickmix.closed_form.algorithm import PartitionSelection

_RELOCATE_EVERY = 3  # Steps between rounds of relocation.
_LARGEST_TRIAL = 150  # With more components trials cost more than they gain.
_MOST_FAILURES = 6  # Trials without enough gain, at most.
# Nats per row that a trial must gain. A fifth of it gained nothing more on five large tables.
_LEAST_GAIN = 0.01
_JUDGING_ROWS = 4000  # Rows by which trials are judged.
_PATIENCE = 1  # Rounds after which exploratory moves are judged.
_BACKGROUND_ROUND = 3  # The round in which a background is tried first.
_MOST_BACKGROUNDS = 2  # Later attempts, at most.
_MOST_ROUNDS = 12  # Without trials.
_WORTHWHILE_SHARE = 1.0 / 300.0  # Without trials: moves per component for another round to follow.
# Components are relocated on _EARLY_ROWS (_MORE_COLUMNS + columns) rows each, if there are
# _EARLY_SHARE times as many.
_EARLY_ROWS = 30
_FEWER_EARLY_ROWS = 10  # Without trials.
_MORE_COLUMNS = 6
_EARLY_SHARE = 1.5
_LEAST_PASSES = 5  # Over all rows.
_MOST_PASSES = 15  # Over all rows, before averaging begins.
_AVERAGING_STEPS = 8  # At least.
_AVERAGING_POWER = 0.6  # Of gamma.

# Facts about the course of a fit that a checkpoint keeps, all numbers.
_FACTS = (
    "_rounds",
    "_backgrounds",
    "_patience",
    "_failures",
    "_all_rows_since",
    "_averages_since",
    "_value",
)


class Phases:
    """Decides what a step of random-partition Gibbs does beside the step."""

    def __init__(
        self,
        state: MixtureState,
        source: ArrayRows,
        selection: PartitionSelection,
        settings: FitSettings,
        seed: int,
        first_step: int,
    ) -> None:
        self.state = state
        self.source = source
        self.selection = selection
        self.seed = seed
        self.first_step = first_step
        self._all_chains = selection.chains
        self._n_batches = settings.n_batches
        # A given step size: components are relocated on all rows, and nothing is averaged.
        self._given = settings.step_size
        n_steps = settings.limits.last_step
        self._last_step = first_step - 1 + n_steps
        # Short fits have no time to average.
        self._n_averaging = min(max(_AVERAGING_STEPS, self._n_batches), n_steps // 3)
        # Without draws there is no noise to average out.
        self._averages = not settings.is_exact
        self._relocation: Relocation | None = None
        if settings.relocates:
            selection.use(self._explored())
            self._relocation = Relocation(state, selection.chains)
        self._rounds = 0
        self._backgrounds = 0
        self._patience = 0
        self._failures = 0
        self._all_rows_since: int | None = None
        self._averages_since: int | None = None
        # Survey of moves under the parameters before a trial, what they are worth, and the
        # mixture and the chains to come back to.
        self._survey: Survey | None = None
        self._value: float | None = None
        self._before_trial: tuple[dict[str, Any], np.ndarray] | None = None

    def _explored(self) -> Chains:
        """Enough rows to distinguish components, or all rows."""
        K = self.state.n_components
        each = _EARLY_ROWS if K <= _LARGEST_TRIAL else _FEWER_EARLY_ROWS
        n_explored = K * each * (self.state.surveyed_columns + _MORE_COLUMNS)
        most = self._all_chains.n_rows / _EARLY_SHARE
        if n_explored > most or self._given is not None or K < 3:
            return self._all_chains
        return self._all_chains.sample(n_explored, self.seed)

    def prepare(self, t: int, random: StepRandomness) -> None:
        """Enter the next phase if it is time to: the last steps are for all rows, and averages."""
        if t > self._last_step - self._n_averaging - _LEAST_PASSES:
            self._stop_relocating(t, random.child(3))
            self._continue_with_all_rows(t, random)

    def step_size(self, t: int) -> float:
        if self._given is not None:
            return self._given(t)
        late = t > self._last_step - self._n_averaging
        if self._all_rows_since is not None:
            # Parameters learnt from a sample need few more steps.
            late = late or t > self._all_rows_since + _MOST_PASSES * self._n_batches
        if self._averages_since is None and late:
            self._averages_since = t
        if self._averages_since is None or not self._averages:
            return 1.0
        return float((t - self._averages_since + 2) ** -_AVERAGING_POWER)

    def may_end(self, step: int) -> bool:
        """Whether a plateau after this step ends the fit, and not only its phase."""
        if self._given is not None or self._n_averaging == 0:
            return True
        if self._relocation is not None:
            return False
        if self.selection.chains is not self._all_chains:
            self._continue_with_all_rows(step, StepRandomness(self.seed, step).child(2))
            return False
        if self.state.n_components == 1 and not self._averages:
            return True
        if self._averages_since is None:
            self._averages_since = step + 1
        return step - self._averages_since + 1 >= self._n_averaging

    def _continue_with_all_rows(self, step: int, random: StepRandomness) -> None:
        """Find components for the rows that were left out so far."""
        explored, state = self.selection.chains, self.state
        if explored is self._all_chains:
            return
        if state.n_components > self.selection.settings.block_size:
            chain, _, evaluations = search(state, self.source, draw_routes(state, random))
            self._all_chains.chain[:] = chain
            self.selection.counters.evaluations += evaluations
        self._all_chains.take_back(explored)
        self.selection.use(self._all_chains)
        self._all_rows_since = step

    def relocate(self, t: int, random: StepRandomness) -> None:
        """Move components that are hardly needed, in some steps of the first phase."""
        relocation = self._relocation
        if relocation is None or (t - self.first_step + 1) % _RELOCATE_EVERY:
            return
        relocation.evaluations = 0
        if self.state.n_components > _LARGEST_TRIAL:
            moves = relocation.round(t, random)
            self._rounds += 1
            enough = _WORTHWHILE_SHARE * self.state.n_components
            continues = moves > enough and self._rounds < _MOST_ROUNDS
            if self._rounds == _BACKGROUND_ROUND or not continues:
                relocation.lay_background(t, random.child(1))
        elif self._patience > 0:
            # The components around an exploratory move have not followed yet.
            self._patience -= 1
            continues = True
        else:
            continues = self._judge_trial(relocation) and self._try(relocation, t, random)
        self.selection.counters.evaluations += relocation.evaluations
        if not continues:
            self._stop_relocating(t, random.child(3))

    def _try(self, relocation: Relocation, t: int, random: StepRandomness) -> bool:
        """Begin a trial: moves that gain, a background, or exploratory moves."""
        if self._survey is None:
            self._survey = relocation.survey(t, random)
        if self._survey is None:
            return False
        if self._value is None:
            self._value = self._left_out_log_likelihood()
        self._rounds += 1
        self._before_trial = self.state.copied_content(), self.selection.chains.chain.copy()
        # A background is tried early, as outlying rows take components from others, and
        # again at the end.
        if self._rounds == _BACKGROUND_ROUND and relocation.lay_background(t, random):
            return True
        moves = relocation.move(self._survey, t, random)
        if not moves and self._backgrounds < _MOST_BACKGROUNDS:
            self._backgrounds += 1
            if relocation.lay_background(t, random):
                return True
        if not moves and self.state.family.most_surveyed is None:
            moves = relocation.move(self._survey, t, random, exploratory=True)
            self._patience = _PATIENCE
        return moves > 0

    def _judge_trial(self, relocation: Relocation) -> bool:
        """Keep the moves of a trial if they gained, else undo them; True to continue."""
        if self._before_trial is None:
            return True
        parameters, chain = self._before_trial
        self._before_trial = None
        assert self._value is not None
        value = self._left_out_log_likelihood()
        gain = value - self._value
        if gain < _LEAST_GAIN * self.state.family.rise_scale:
            self._failures += 1
        if gain > 0.0:
            relocation.avoided[:] = False
            self._survey, self._value = None, value
        else:
            relocation.avoided[relocation.split] = True
            self.state.restore(parameters)
            self.selection.chains.chain[:] = chain
        return self._failures < _MOST_FAILURES

    def _stop_relocating(self, t: int, random: StepRandomness) -> None:
        relocation, self._relocation = self._relocation, None
        if relocation is not None:
            self._judge_trial(relocation)
            # Without it a new row that differs where others are equal may cost thousands of nats.
            if self.state.prior.lacks_background:
                relocation.lay_background(t, random, needed=True)

    def _left_out_log_likelihood(self) -> float:
        """Mean leave-one-out log-likelihood per row of a sample."""
        source = self.selection.chains.source
        numbers = sample_numbers(source.n_rows, _JUDGING_ROWS, 0)
        weights = source.weights_of(numbers)[0]
        values = left_out_log_sums(
            self.state, source.gather(numbers), weights / self.source.mean_weight
        )
        return float(weights @ values / weights.sum()) - self.state.log_total()

    def content(self) -> dict[str, Any]:
        relocation, explored = self._relocation, self.selection.chains
        trial = self._before_trial
        return {
            "facts": {name: getattr(self, name) for name in _FACTS},
            "explored": None if explored is self._all_chains else explored.chain,
            "relocation": None if relocation is None else relocation.content(),
            "survey": None if self._survey is None else self._survey.content(),
            "trial": None if trial is None else {"state": trial[0], "chain": trial[1]},
        }

    def restore(self, content: dict[str, Any]) -> None:
        K = self.state.n_components
        for name in _FACTS:
            setattr(self, name, content["facts"][name])
        if content["explored"] is None:
            self.selection.use(self._all_chains)
        chain = self.selection.chains.chain
        if content["explored"] is not None:
            chain[:] = check_restored("explored", content["explored"], chain, K)
        if content["relocation"] is None:
            self._relocation = None
        elif self._relocation is not None:
            self._relocation.restore(content["relocation"])
        if content["survey"] is not None:
            self._survey = Survey.of_content(self.state, content["survey"])
        if content["trial"] is not None:
            before = check_restored("trial", content["trial"]["chain"], chain, K)
            self._before_trial = content["trial"]["state"], before

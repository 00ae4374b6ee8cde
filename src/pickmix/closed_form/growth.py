"""The number of components, and a start with that many: `n_components="auto"`.

A mixture of a few components grows. A round makes some steps, then splits every component whose
halves explain left-out rows better, and merges pairs that are better as one (the split and merge
gains of relocation.py). It ends when rounds no longer raise the leave-one-out log-likelihood of the
mixture. Of the mixtures on the way, the smallest is chosen that is not worse than the best by more
than a standard error, rows compared one by one. No rows are held back, so small tables lose none.
Rounds of few components use a part of many rows, so all rounds together cost about as much as some
fits with the number that they find.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.closed_form.algorithm import PartitionSelection, step
from pickmix.closed_form.chains import Chains, sample_numbers
from pickmix.closed_form.evaluation import left_out_log_sums
from pickmix.closed_form.relocation import Relocation
from pickmix.closed_form.search import draw_routes, search
from pickmix.closed_form.starts import Start, Starter
from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows, Batches
from pickmix.families.base import Family
from pickmix.families.layout import Moments
from pickmix.fitting.settings import FitSettings
from pickmix.kernels import choose
from pickmix.selection.randomness import StepRandomness

# Components that growth may begin with. The best of them grows; where at most _SOME come of it, so
# does the best of the others with few, as splits of few components find groups more exactly. A
# second growth from few is for tables of few rows, where a start matters most. Splits of 128 gave
# no worse mixtures than starts of 512 and more on 34 tables, in no more time.
_FIRST_COMPONENTS = (1, 2, 8, 32, 128)
_FEW, _SOME = 8, 64
_FEW_ROWS = 1000
# Leave-one-out likelihoods are too high by what choosing splits has adapted to single rows. A
# component must gain _PENALTY nats for each of its parameters and _MORE others, but at most for
# each of its rows. On nine real tables the optimism was 0.02 to 0.5 per parameter. Most levels of a
# column are not in a component of few rows: on three tables with levels it was 0.2 to 1 per row.
_PENALTY = 0.2
_MORE = 15
_MOST_OF_LEVELS = 0.5
_LEAST_ROWS_EACH = 10  # Of the components that growth begins with.
_FIRST_STEPS = 10  # Before the first round; later rounds make fewer, as most components stay.
_STEPS = 6
_LEAST_GAIN = 0.03  # Nats per row that a round must gain.
_MOST_FAILURES = 3  # Rounds without that gain.
_SHRINKING = 0.95  # Of the components left, in a round that may lose that much.
# Components grow on _ROWS_EACH (_MORE_COLUMNS + columns) rows each, of more on four times as many
# once no split of these gains.
_ROWS_EACH = 60
_MORE_COLUMNS = 6
_LEAST_ROWS = 2000
_NEARLY_ALL = 1.5
_JUDGING_ROWS = 4000
_MOST_NUMBERS = 10**8  # In the covariances of all components.


@dataclass(frozen=True)
class Growth:
    """What growth chose: a start, and a record of the rounds."""

    start: Start | None  # None where a checkpoint has what came of it.
    trace: np.ndarray  # Fields of `TRACE`, one record per round.

    @property
    def n_components(self) -> int:
        return int(self.trace["n_components"][self.trace["chosen"]][0])

    @property
    def seconds(self) -> float:
        return float(self.trace["seconds"].max())

    @classmethod
    def of_records(cls, records: list[Any] | None) -> Growth | None:
        """Growth whose trace had these records, if there are any."""
        if not records:
            return None
        return cls(None, np.array([tuple(record) for record in records], dtype=TRACE))


TRACE = np.dtype(
    [
        ("n_components", np.int64),
        ("n_rows", np.int64),
        ("log_likelihood", np.float64),
        ("standard_error", np.float64),
        ("seconds", np.float64),
        ("chosen", np.bool_),
    ]
)


@dataclass(frozen=True)
class _Round:
    state: MixtureState
    chain: np.ndarray  # (N,)
    part: Chains  # The rows that it used.
    scores: np.ndarray  # Leave-one-out log-likelihoods of the judging rows.
    seconds: float

    @property
    def score(self) -> float:
        return float(self.scores.mean())


def most_components(family: Family, n_rows: int, wanted: int | None) -> int:
    """The largest number of components that may be chosen."""
    each = family.n_parameters(2) - family.n_parameters(1)
    most = max(1, min(n_rows // 2, _MOST_NUMBERS // max(each, 1)))
    return most if wanted is None else min(most, wanted)


def grow(
    family: Family,
    source: ArrayRows,
    settings: FitSettings,
    seed: int,
    most: int,
    tell: Callable[[int, float], None] = lambda number, score: None,
) -> Growth:
    """Choose a number of components up to `most`, and a start with that many.

    `settings` are those of a fit of some number; `tell` is given the number and the leave-one-out
    log-likelihood per row after each round.
    """
    started = time.perf_counter()
    deadline = None if settings.max_time is None else started + 0.5 * settings.max_time
    growing = _Growing(family, source, settings, seed, most, started, deadline, tell)
    largest = max(1, min(most, source.n_rows // _LEAST_ROWS_EACH))
    beginnings: list[_Round] = []
    for n_first in _FIRST_COMPONENTS:
        n_first = min(n_first, largest)
        if beginnings and (growing.is_late or n_first == beginnings[-1].state.n_components):
            break
        beginnings.append(growing.begin(n_first))
        if n_first > _FEW and beginnings[-1].score < beginnings[-2].score:
            break
    rounds = list(beginnings)
    beginnings.sort(key=lambda done: -done.score)
    few = [done for done in beginnings[1:] if done.state.n_components <= _FEW]
    for beginning in beginnings[:1] + few[:1]:
        made = growing.rounds(beginning)
        rounds += made
        many_rows = source.n_rows > _FEW_ROWS and beginning.state.n_components <= _FEW
        if many_rows or (made and made[-1].state.n_components > _SOME):
            break
    rounds.sort(key=lambda done: done.seconds)
    best = max(rounds, key=lambda done: done.score)
    falls = [best.scores - done.scores for done in rounds]
    errors = [float(fall.std() / np.sqrt(max(fall.shape[0] - 1, 1))) for fall in falls]
    near = [
        done for done, error in zip(rounds, errors, strict=True) if best.score - done.score <= error
    ]
    # The fewest components; of several with that number the best.
    chosen = min(near, key=lambda done: (done.state.n_components, -done.score))
    trace = np.array(
        [
            (each.state.n_components, each.part.n_rows, each.score, e, each.seconds, each is chosen)
            for each, e in zip(rounds, errors, strict=True)
        ],
        dtype=TRACE,
    )
    state = chosen.state
    background = state.prior.background if state.prior.background >= 0 else None
    moments = state.moments_at(np.arange(state.n_components))
    return Growth(Start(moments, chosen.chain, growing.evaluations, background), trace)


class _Growing:
    """Rounds of growth from one beginning."""

    def __init__(
        self,
        family: Family,
        source: ArrayRows,
        settings: FitSettings,
        seed: int,
        most: int,
        started: float,
        deadline: float | None,
        tell: Callable[[int, float], None],
    ) -> None:
        self.family, self.source = family, source
        self.backend = choose(settings.compiled)
        self.settings, self.seed, self.most = settings, seed, most
        self.started, self.deadline, self.tell = started, deadline, tell
        self.evaluations = 0
        self._step = 0
        self._judging = sample_numbers(source.n_rows, _JUDGING_ROWS, 0)

    @property
    def is_late(self) -> bool:
        return self.deadline is not None and time.perf_counter() > self.deadline

    def begin(self, n_components: int) -> _Round:
        """Make a start of so many components, and some steps."""
        return self._round(*self._begin(n_components), _FIRST_STEPS, 1)

    def rounds(self, last: _Round) -> list[_Round]:
        """Grow until rounds gain too little; return them."""
        rounds: list[_Round] = []
        best, failures, spread = last.score, 0, 1
        while failures < _MOST_FAILURES and not self.is_late:
            changed = self._change(last.state, last.part)
            if changed is not None:
                state, new_label = changed
                chain = new_label[last.chain]
            elif last.part.n_rows < self.source.n_rows:
                # More rows may tell more.
                spread *= 4
                state, chain = last.state, last.chain
            else:
                break
            # A mixture that becomes smaller need not become better.
            shrinks = state.n_components < _SHRINKING * last.state.n_components
            last = self._round(state, chain, _STEPS, spread)
            rounds.append(last)
            failures += last.score < best + (-_LEAST_GAIN if shrinks else _LEAST_GAIN)
            best = max(best, last.score)
        return rounds

    def _round(self, state: MixtureState, chain: np.ndarray, n_steps: int, spread: int) -> _Round:
        chain = chain.copy()
        part = self._settle(state, chain, n_steps, spread)
        scores = self._judge(state)
        self.tell(state.n_components, float(scores.mean()))
        return _Round(state, chain, part, scores, time.perf_counter() - self.started)

    def _begin(self, n_components: int) -> tuple[MixtureState, np.ndarray]:
        settings, n_rows = self.settings, self.source.n_rows
        assert settings.partition is not None
        starter = Starter(self.family, self.source.filled(), n_components, self.seed, self.backend)
        start = starter.spread_out(settings.partition, n_rows)
        self.evaluations += start.evaluations
        prior = self.family.make_prior(start.moments, settings.shrinkage, float(n_rows))
        if settings.background:
            prior.allow_background(self.source.extent())
        floor = settings.weight_floor
        state = MixtureState(self.family, start.moments, self.backend, prior, floor)
        if state.failures.all():
            state.require_sound()
        return state, start.chain

    def _random(self) -> StepRandomness:
        return StepRandomness(self.seed, self._step)

    def _settle(self, state: MixtureState, chain: np.ndarray, n_steps: int, spread: int) -> Chains:
        """Make steps on as many rows as K components need; return their chains."""
        settings, n_rows = self.settings, self.source.n_rows
        assert settings.partition is not None
        K, n_columns = state.n_components, state.layout.n_columns
        everything = Chains(self.source, chain, Batches(n_rows, n_rows, self.seed))
        wanted = max(_LEAST_ROWS, spread * _ROWS_EACH * K * (n_columns + _MORE_COLUMNS))
        chains = everything
        if wanted * _NEARLY_ALL < n_rows:
            chains = everything.sample(wanted, self.seed + self._step)
            if settings.partition.block_size < K and isinstance(chains.source, ArrayRows):
                found, _, evaluations = search(
                    state, chains.source, draw_routes(state, self._random().child(2))
                )
                chains.chain[:] = found
                self.evaluations += evaluations
        selection = PartitionSelection(
            state, chains, settings.partition, settings.n_samples, self._step + 1, True
        )
        for _ in range(n_steps):
            self._step += 1
            step(state, selection, self._step, 1.0, 1.0, self._random())
        self.evaluations += selection.counters.evaluations
        if chains is not everything:
            everything.take_back(chains)
        return chains

    def _judge(self, state: MixtureState) -> np.ndarray:
        """Leave-one-out log-likelihoods of the judging rows."""
        weights = self.source.weights_of(self._judging)[0] / self.source.mean_weight
        rows = self.source.gather(self._judging)
        scores = left_out_log_sums(state, rows, weights) - state.log_total()
        penalty = self._penalty(state.n_components) * state.n_components / self.source.n_rows
        return np.asarray(scores * weights - penalty)

    def _penalty(self, n_components: int) -> float:
        """Nats that a component must gain."""
        each = float(self.family.n_parameters_each() + 1)
        most = _MOST_OF_LEVELS if self.family.layout.n_levels else _PENALTY
        return float(min(_PENALTY * (each + _MORE), most * self.source.n_rows / n_components))

    def _change(
        self, state: MixtureState, chains: Chains
    ) -> tuple[MixtureState, np.ndarray] | None:
        """Split and merge: the state with other components, and the new label of each, (K,)."""
        K, random = state.n_components, self._random().child(3)
        relocation = Relocation(state, chains)
        if state.prior.background < 0:
            relocation.lay_background(self._step, random)
        focused = chains.of_step(self._step)
        chosen, gains, halves = relocation.split_all(focused, self._step, random)
        good = np.flatnonzero(gains > self._penalty(K))
        good = good[np.argsort(-gains[good], kind="stable")][: max(0, self.most - K)]
        split = chosen[good]
        changes = np.zeros(K, dtype=np.bool_)
        changes[split] = True
        pairs, losses, wholes = relocation.merge_all(focused, random)
        merged = np.flatnonzero((losses < self._penalty(K)) & ~changes[pairs].any(axis=1))
        pairs = pairs[merged]
        changes[pairs] = True
        self.evaluations += relocation.evaluations
        if not changes.any():
            return None
        kept = np.flatnonzero(~changes)
        parts = [
            (state, kept, kept),
            (halves, 2 * good, split),
            (halves, 2 * good + 1, split),
            (wholes, merged, pairs[:, 0]),
        ]
        moments = [other.moments_at(which) for other, which, _ in parts]
        joined = Moments(*map(np.concatenate, zip(*moments, strict=True)))
        mass = np.maximum(joined.mass / joined.mass.sum(), np.finfo(np.float64).tiny)
        new_label = np.empty(K, dtype=np.int32)
        new_label[kept] = np.arange(kept.shape[0])
        # The next sweep lets rows of a split component choose between its halves.
        new_label[split] = kept.shape[0] + np.arange(split.shape[0])
        first_whole = kept.shape[0] + 2 * split.shape[0]
        new_label[pairs] = first_whole + np.arange(pairs.shape[0])[:, None]
        like = np.concatenate([like for _, _, like in parts])
        return state.with_components(joined._replace(mass=mass), like), new_label

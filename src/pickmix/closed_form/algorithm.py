"""The paper's Algorithm 1 in closed form.

    for t = 1, 2, ...
        form the set I of rows;
        S-step: select components for the rows of I, under frozen parameters;
        SA-step: s <- (1 - gamma) s + gamma (statistics of the selected pairs);
        M-step for the components that were selected.

`step` is one turn of this loop. Its S-step is one of two: `RuleSelection`, the rules of the paper's
Table 1 (rules.py), or `PartitionSelection`, random-partition Gibbs, which is what a default fit
does: every row draws from its posterior within a random block of components, and selection and
statistics are one sweep. `Engine` makes the steps of a fit to rows in memory; what changes in the
course of a default fit is in phases.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from pickmix.checks import check_restored
from pickmix.closed_form.chains import Chains, sample_numbers
from pickmix.closed_form.evaluation import dense_block_rows, left_out_log_sums, log_likelihoods
from pickmix.closed_form.phases import Phases
from pickmix.closed_form.rules import Evaluator, SelectedPairs, SelectionRule, make_rule
from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows, Batches
from pickmix.families.base import Family
from pickmix.fitting.loop import Counters
from pickmix.fitting.settings import FitSettings
from pickmix.kernels.statistics import Statistics, Sums
from pickmix.selection.partitions import Partition, RandomPartition, draw_partition
from pickmix.selection.randomness import StepRandomness
from pickmix.selection.schedules import ConstantStep

_SPARSE_BLOCK_ROWS = 65536
_SHRINKAGE_STEPS = (1, 2, 4, 8, 14, 20)  # Steps with estimates of shrinkage; then periodically.
_CHOOSING_ROWS = 600  # By which a prior is chosen.
_MOST_ESTIMATED = 500  # Components whose shrinkage is estimated at a time, at most.


class Selection(Protocol):
    """An S-step: selects components for the rows of a step, and adds up their statistics."""

    counters: Counters

    def select(self, t: int, gamma: float, beta: float, random: StepRandomness) -> Statistics: ...

    def follow(self, t: int) -> None:
        """Do what is due after the M-step."""

    def content(self) -> dict[str, Any]: ...

    def restore(self, content: dict[str, Any]) -> None: ...


def step(
    state: MixtureState,
    selection: Selection,
    t: int,
    gamma: float,
    beta: float,
    random: StepRandomness,
) -> None:
    """Make step t of Algorithm 1, with step size gamma and inverse temperature beta."""
    # Form the set I; S-step; sufficient statistics of the selected pairs.
    statistics = selection.select(t, gamma, beta, random)
    # SA-step and M-step for k in unique(z).
    selection.counters.refused += state.absorb(statistics, gamma).shape[0]
    selection.follow(t)


class RuleSelection:
    """S-step by one of the paper's rules."""

    def __init__(
        self, state: MixtureState, source: ArrayRows, rule: SelectionRule, batches: Batches
    ) -> None:
        self.state = state
        self.source = source
        self.rule = rule
        self.batches = batches
        self.counters = Counters()
        self._block_rows = _SPARSE_BLOCK_ROWS
        if rule.evaluates_all:
            self._block_rows = dense_block_rows(state.n_components)
        # Log-likelihoods that an exhaustive rule computes anyway, and the weight of their rows,
        # since the last estimate.
        self._log_likelihood = np.zeros(2)

    def select(self, t: int, gamma: float, beta: float, random: StepRandomness) -> Statistics:
        batch = self.batches.rows(t)
        statistics: Statistics | None = None
        for start in range(0, batch.shape[0], self._block_rows):
            block = batch[start : start + self._block_rows]
            evaluate = Evaluator(self.state, self.source.gather(block))
            selected = self.rule.select(evaluate, block, beta, gamma, random)
            added = self._statistics(evaluate.rows, block, selected)
            statistics = added if statistics is None else statistics.plus(added, self.state.layout)
        assert statistics is not None
        return statistics

    def _statistics(
        self, rows: np.ndarray, numbers: np.ndarray, selected: SelectedPairs
    ) -> Statistics:
        """Statistics of the selected pairs of a block, counted."""
        state, backend = self.state, self.state.backend
        weights, total_weight = self.source.weights_of(numbers)
        self._count(selected, weights)
        if selected.components is not None:
            statistics: Statistics = backend.pair_statistics(
                state.layout,
                state.n_components,
                rows,
                weights,
                selected.components,
                selected.weights,
                total_weight,
                state.model,
            )
            return statistics
        sums: Sums = backend.sums_of_all(state.layout, rows, weights, selected.weights, state.model)
        all_components = np.arange(state.n_components, dtype=np.int32)
        return Statistics(all_components, *sums, total_weight)

    def _count(self, selected: SelectedPairs, weights: np.ndarray) -> None:
        n_rows = weights.shape[0]
        self.counters.rows += n_rows
        self.counters.evaluations += selected.evaluations
        self.counters.acceptance_sum += selected.acceptance * n_rows
        if selected.log_likelihood is not None:
            self._log_likelihood[0] += float(weights @ selected.log_likelihood)
            self._log_likelihood[0] -= self.state.log_total() * float(weights.sum())
            self._log_likelihood[1] += float(weights.sum())

    def log_likelihood(self) -> float:
        """Mean log-likelihood per row of the rows visited since the last call."""
        total, weight = self._log_likelihood.tolist()
        self._log_likelihood[:] = 0.0
        return float(total / weight)

    def follow(self, t: int) -> None:
        """Nothing is due."""

    def content(self) -> dict[str, Any]:
        return {"rule": self.rule.content(), "log_likelihood": self._log_likelihood}

    def restore(self, content: dict[str, Any]) -> None:
        self.rule.restore(content["rule"])
        kept = check_restored("log_likelihood", content["log_likelihood"], self._log_likelihood)
        self._log_likelihood[:] = kept


class PartitionSelection:
    """S-step by random-partition Gibbs: sweeps through the blocks of M random partitions."""

    def __init__(
        self,
        state: MixtureState,
        chains: Chains,
        settings: RandomPartition,
        n_partitions: int,
        first_step: int = 1,
        estimates_first: bool = False,
    ) -> None:
        self.state = state
        self.chains = chains
        self.settings = settings
        self.n_partitions = n_partitions
        self.first_step = first_step
        # Whether a fit that continues estimates shrinkage before the first M-step. A batch of a
        # stream is too small for it.
        self.estimates_first = estimates_first
        self.counters = Counters()
        # Rows that the statistics may come from: those in memory, or more in a stream.
        self.most_rows: float = chains.n_rows
        self._partitions: list[Partition] = []
        self._rows_to_go = 0

    def use(self, chains: Chains, most_rows: float | None = None) -> None:
        """Go on with other rows."""
        self.chains = chains
        self.most_rows = chains.n_rows if most_rows is None else most_rows

    def select(self, t: int, gamma: float, beta: float, random: StepRandomness) -> Statistics:
        state = self.state
        n_rows = self.chains.batches.rows(t).shape[0]
        # Effective rows of the statistics, if steps were independent.
        before = (1.0 - gamma) ** 2 / max(state.prior.n_rows, 1.0)
        state.prior.n_rows = min(self.most_rows, 1.0 / (before + gamma**2 / n_rows))
        if self._rows_to_go <= 0:
            self._draw_partitions(random)
        self._rows_to_go -= n_rows
        if self.estimates_first and state.prior.undecided:
            estimate_shrinkage(self.chains, state, self._partitions[0], t)
        statistics: Statistics | None = None
        for number, partition in enumerate(self._partitions):
            done = self.chains.sweep(state, partition, t, random.child(number), beta=beta)
            self.counters.evaluations += done.evaluations
            added = done.statistics
            assert added is not None
            statistics = added if statistics is None else statistics.plus(added, state.layout)
        self.counters.rows += n_rows
        # Every draw is accepted.
        self.counters.acceptance_sum += n_rows
        assert statistics is not None
        return statistics

    def follow(self, t: int) -> None:
        """Estimate shrinkage, ever more seldom, as components settle."""
        n_steps = t - self.first_step + 1
        if n_steps in _SHRINKAGE_STEPS or n_steps % _SHRINKAGE_STEPS[-1] == 0:
            estimate_shrinkage(self.chains, self.state, self._partitions[0], t)

    def _draw_partitions(self, random: StepRandomness) -> None:
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
                state.backend,
                state.scales(),
            )
            for number in range(self.n_partitions)
        ]

    def content(self) -> dict[str, Any]:
        return {
            "rows_to_go": self._rows_to_go,
            "members": [partition.members for partition in self._partitions],
            "offsets": [partition.offsets for partition in self._partitions],
        }

    def restore(self, content: dict[str, Any]) -> None:
        self._rows_to_go = int(content["rows_to_go"])
        self._partitions = [
            Partition.checked(members, offsets, self.state.n_components)
            for members, offsets in zip(content["members"], content["offsets"], strict=True)
        ]


def estimate_shrinkage(chains: Chains, state: MixtureState, partition: Partition, t: int) -> None:
    """Estimate each component's shrinkage, if it is to be, from rows of a step assigned to it."""
    choose_prior(chains, state)
    if not state.prior.estimates_shrinkage:
        return
    K = state.n_components
    estimated = np.arange(K)
    if K > _MOST_ESTIMATED:
        estimated = np.unique(np.linspace(0, K - 1, _MOST_ESTIMATED).astype(np.int64))
    state.estimate_shrinkage(chains.shrinkage_sample(state, partition, t, estimated))


def choose_prior(chains: Chains, state: MixtureState) -> None:
    """Take the prior, of those to choose from, under which rows left out are most probable."""
    choices = state.prior.choices()
    if not choices:
        return
    numbers = sample_numbers(chains.n_rows, _CHOOSING_ROWS, 0)
    rows, weights = chains.source.gather(numbers), chains.source.weights_of(numbers)[0]
    scores = []
    for prior in choices:
        other = state.with_prior(prior)
        values = left_out_log_sums(other, rows, weights / chains.mean_weight)
        scores.append(float(weights @ values))
    state.take_prior(choices[int(np.argmax(scores))])


class Engine:
    """Steps of a fit to rows in memory, for `fitting.loop`.

    The state of a fit is arrays (`content`): the mixture, the chain of every row, and what the
    selection and the phases have learnt. Steps update them in place.
    """

    #: Name of the outcome when an update is refused.
    refusal = "singular_covariance"

    def __init__(
        self,
        state: MixtureState,
        source: ArrayRows,
        chain: np.ndarray,
        settings: FitSettings,
        seed: int,
        first_step: int = 1,
    ) -> None:
        self.state = state
        self.source = source
        self.chain = chain
        self.seed = seed
        self.first_step = first_step
        self.annealing = settings.annealing
        self.probe = probe_rows(settings)
        self.log_base = mean_log_base(state.family, source, self.probe)
        batches = Batches(settings.n_rows, settings.batch_size, seed)
        self.selection: RuleSelection | PartitionSelection
        self.phases: Phases | None = None
        if settings.partition is None:
            rule = make_rule(settings, state.positions())
            rule.start(chain, settings.n_components, state.backend)
            self.step_size: Callable[[int], float] = settings.step_size or ConstantStep(1.0)
            self.selection = RuleSelection(state, source, rule, batches)
        else:
            chains = Chains(source, chain, batches)
            self.selection = PartitionSelection(
                state, chains, settings.partition, settings.n_samples, first_step, True
            )
            self.phases = Phases(state, source, self.selection, settings, seed, first_step)
            self.step_size = self.phases.step_size
        self.counters = self.selection.counters

    def advance(self, first: int, most: int) -> int:
        """Make one step."""
        random = StepRandomness(self.seed, first)
        if self.phases is not None:
            self.phases.prepare(first, random)
        gamma = self.step_size(first)
        beta = 1.0 if self.annealing is None else self.annealing(first - self.first_step + 1)
        step(self.state, self.selection, first, gamma, beta, random)
        if self.phases is not None:
            self.phases.relocate(first, random)
        return 1

    def may_end(self, step: int) -> bool:
        return self.phases is None or self.phases.may_end(step)

    def log_likelihood(self) -> float:
        if self.probe is None:
            assert isinstance(self.selection, RuleSelection)
            return self.selection.log_likelihood() + self.log_base
        return mean_log_likelihood(self.state, self.source, self.probe) + self.log_base

    def validation(self) -> float | None:
        return None

    def live_components(self) -> int:
        """Number of components that weigh at least half a row."""
        return int(np.count_nonzero(self.state.weights * self.source.n_rows >= 0.5))

    def content(self) -> dict[str, Any]:
        """All that the next step depends on, as arrays and numbers."""
        return {
            "state": self.state.content(),
            "chain": self.chain,
            "counters": dataclasses.asdict(self.counters),
            "selection": self.selection.content(),
            "phases": None if self.phases is None else self.phases.content(),
        }

    def restore(self, content: dict[str, Any]) -> None:
        """Take back the content of an engine of the same fit."""
        self.state.restore(content["state"])
        self.chain[:] = check_chain(content["chain"], self.chain, self.state.n_components)
        self.selection.restore(content["selection"])
        if self.phases is not None:
            self.phases.restore(content["phases"])
        for name, value in content["counters"].items():
            setattr(self.counters, name, value)


def check_chain(value: Any, like: np.ndarray, n_components: int) -> np.ndarray:
    """Return the chain of a file if kernels can trust its indices."""
    chain = check_restored("chain", value, like, n_components)
    if chain.size and chain.min() < 0:
        raise ValueError("chain: expected components, got others")
    return chain


def probe_rows(settings: FitSettings) -> np.ndarray | None:
    """Rows on which the log-likelihood is evaluated; None for rules that compute it anyway."""
    if settings.n_probe is None:
        return None
    # The same rows for every start, so that their log-likelihoods can be compared.
    generator = np.random.Generator(np.random.Philox(key=0))
    return np.sort(generator.choice(settings.n_rows, settings.n_probe, replace=False))


def mean_log_likelihood(state: MixtureState, source: ArrayRows, rows: np.ndarray) -> float:
    """Mean log-likelihood per row, without `Family.log_base`."""
    values = log_likelihoods(state, source, rows)
    weights, _ = source.weights_of(rows)
    return float(weights @ values / weights.sum())


def mean_log_base(family: Family, source: ArrayRows, rows: np.ndarray | None) -> float:
    """Mean of `Family.log_base` over some rows or all, in the units of their table."""
    total, weight = 0.0, 0.0
    numbers = np.arange(source.n_rows) if rows is None else rows
    for start in range(0, numbers.shape[0], _SPARSE_BLOCK_ROWS):
        part = numbers[start : start + _SPARSE_BLOCK_ROWS]
        values = family.log_base(np.asarray(source.data[part], dtype=np.float64))
        if source.log_units is not None:
            values = source.log_units[part] + (0.0 if values is None else values)
        if values is None:
            return 0.0
        weights = source.weights_of(part)[0]
        total += float(weights @ values)
        weight += float(weights.sum())
    return total / weight

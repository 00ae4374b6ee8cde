"""Relocation of components that are hardly needed to badly explained rows.

With many components the optimum that EM finds depends on the start: here two of them share one
group of rows, there one covers two groups. A round of relocation

1. splits every component in two, by a few EM steps on its rows, which gives the gain in
   log-likelihood;
2. pairs components that overlap, and merges each pair, which gives the loss; 3. carries out the
best splits, as long as each gains more than the merge that makes room for it
   loses.

Splits and pairs are blocks of two components, and every number comes from the same sweep as that
through the blocks of a random partition (after the split and merge EM of Ueda and others, 2000).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.checks import check_restored
from pickmix.closed_form.chains import Chains, Relabelling
from pickmix.closed_form.pairing import (
    BLOCKS_AT_ONCE,
    match_disjointly,
    match_splits_to_merges,
    nearest_in_blocks,
)
from pickmix.closed_form.state import MixtureState
from pickmix.families.layout import Moments
from pickmix.families.shrinkage import FEWEST_ROWS
from pickmix.kernels.statistics import Statistics
from pickmix.selection.partitions import Partition, draw_partition
from pickmix.selection.randomness import StepRandomness, Stream

_SPLIT_STEPS = 12  # EM steps of a split. Eight cost bike, shuttle and skin 0.25 to 0.75 nats.
_FEWER_STEPS = 6  # With more components than these, and where rows are wide.
_MANY_COMPONENTS = 150
_FULL_STEPS = 2  # All steps but these use _SPLIT_ROWS (_MORE_COLUMNS + columns) rows per component.
_SPLIT_ROWS = 10
_MORE_COLUMNS = 4
_MARGIN = 0.05  # Least gain of a move, in nats per parameter of a component.
_MOST_COST = 0.25  # Nats per row that a background may cost where components have constant columns.
_PARTNER_PARTITIONS = 2  # Partitions in which partners of merges are found.
_PARTNER_BLOCK = 16  # Their block size.
_LARGEST_SHARE = 0.25  # At most this share of the components is merged in a round.
_FEW_COMPONENTS = 5000  # With more, only the most promising components are split.
_PROMISING_SHARE = 0.15
_EXPLORATORY_SHARE = 0.03  # Of the components are moved in an exploratory round, at most.
_EXPLORATORY_LOSS = 8.0  # Losses that it accepts, relative to the gain.
# Children of a round's randomness: the sweeps of splits come first.
_PARTNERING, _MOVING = 200, 300


@dataclass(frozen=True)
class Survey:
    """Gains of splits and losses of merges."""

    pairs: np.ndarray  # (m, 2) Components that may be merged, cheapest first.
    losses: np.ndarray  # (m,)
    wholes: MixtureState  # The merged components; that of pair i is number order[i].
    order: np.ndarray  # (m,)
    chosen: np.ndarray  # (S,) Components that may be split.
    gains: np.ndarray  # (S,)
    halves: MixtureState  # Those of component chosen[i] are 2 i and 2 i + 1.

    def content(self) -> dict[str, Any]:
        return {
            name: value.content() if isinstance(value, MixtureState) else value
            for name, value in vars(self).items()
        }

    @classmethod
    def of_content(cls, state: MixtureState, content: dict[str, Any]) -> Survey:
        """The survey of a state that had this content."""
        wholes, halves = (state.with_content(content[name]) for name in ("wholes", "halves"))
        survey = cls(**content | {"wholes": wholes, "halves": halves})
        n_pairs, n_chosen = survey.losses.shape[0], survey.gains.shape[0]
        numbers = (
            (survey.pairs, (n_pairs, 2), state.n_components),
            (survey.order, (n_pairs,), wholes.n_components),
            (survey.chosen, (n_chosen,), min(state.n_components, halves.n_components)),
        )
        for array, shape, most in numbers:
            check_restored("survey", array, np.empty(shape, dtype=np.int64), most)
        return survey


class Relocation:
    """Rounds of relocation on the rows of one step each; `caution` multiplies the margin."""

    def __init__(self, state: MixtureState, chains: Chains, caution: float = 1.0) -> None:
        self.state = state
        self.chains = chains
        family = state.family
        parameters_each = family.n_parameters(2) - family.n_parameters(1) + 1.0
        self.margin = _MARGIN * parameters_each * caution
        self.evaluations = 0
        #: Components that exploratory rounds leave alone, and those that the last round has split.
        self.avoided = np.zeros(state.n_components, dtype=np.bool_)
        self.split = np.empty(0, dtype=np.int64)

    def content(self) -> dict[str, Any]:
        return {"avoided": self.avoided, "split": self.split}

    def restore(self, content: dict[str, Any]) -> None:
        self.avoided[:] = check_restored("avoided", content["avoided"], self.avoided)
        like = np.empty(np.shape(content["split"]), dtype=np.int64)
        self.split = check_restored("split", content["split"], like, self.avoided.shape[0])

    def round(self, step: int, random: StepRandomness) -> int:
        """Survey and move, with the rows of a step; return the number of moves."""
        survey = self.survey(step, random)
        return 0 if survey is None else self.move(survey, step, random)

    def survey(self, step: int, random: StepRandomness) -> Survey | None:
        """Estimate gains of splits and losses of merges; None if there is nothing to merge."""
        if self.state.n_components < 3:
            return None
        # The rows are used many times.
        focused = self.chains.of_step(step)
        pairs, losses, wholes = self.merge_all(focused, random)
        if not pairs.shape[0]:
            return None
        chosen, gains, halves = self.split_all(focused, step, random)
        order = np.argsort(losses, kind="stable")
        return Survey(pairs[order], losses[order], wholes, order, chosen, gains, halves)

    def move(
        self, survey: Survey, step: int, random: StepRandomness, exploratory: bool = False
    ) -> int:
        """Carry out moves of a survey of the present state; return how many.

        An `exploratory` move may seem to lose a little: a split gains more once the
        components around it have followed.
        """
        state = self.state
        gains = np.where(self.avoided[survey.chosen], -np.inf, survey.gains)
        # The best split pays for the cheapest merge, and so on.
        best = np.argsort(-gains, kind="stable")
        which, made = match_splits_to_merges(survey.chosen, best, survey.pairs, state.n_components)
        gains, losses = gains[which], survey.losses[made]
        # A merge that gains needs no split to pay for it, and pays for none.
        worth = gains > np.maximum(losses, 0.0) + self.margin
        n = which.shape[0]
        if exploratory:
            n = min(n, max(1, int(_EXPLORATORY_SHARE * state.n_components)))
            worth = (gains > 2.0 * self.margin) & (losses < _EXPLORATORY_LOSS * gains)
        worth = worth[:n]
        n = n if worth.all() else int(np.argmin(worth))
        which, made = which[:n], made[:n]
        self.split = survey.chosen[which]
        if n == 0:
            return 0
        kept, freed = survey.pairs[made].T
        state.copy_from(kept, survey.wholes, survey.order[made])
        state.copy_from(self.split, survey.halves, 2 * which)
        state.copy_from(freed, survey.halves, 2 * which + 1)
        self._move_chains(step, which, kept, freed, survey.halves, random)
        return n

    def lay_background(self, step: int, random: StepRandomness, needed: bool = False) -> bool:
        """Make a component a background, if that gains more than it loses, or little is lost.

        It is one whose rows are all outlying, else the one that the cheapest merge makes free.
        """
        state, prior = self.state, self.state.prior
        if prior.background >= 0 or state.n_components < 3:
            return False
        if not state.family.has_background(prior):
            return False
        n_rows = float(self.chains.n_rows)
        gain, rows = self.chains.rows_for_background(state, 1.0 / n_rows, random)
        staying = state.effective_rows() - np.bincount(
            self.chains.chain[rows], minlength=state.n_components
        )
        emptiest = int(np.argmin(staying))
        is_free = bool(staying[emptiest] < FEWEST_ROWS)
        wanted = prior.wants_background
        if gain <= self.margin and not (wanted or needed):
            return False
        freed = emptiest
        if not is_free:
            pairs, losses, wholes = self.merge_all(self.chains.of_step(step), random)
            if not pairs.shape[0]:
                return False
            cheapest = int(np.argmin(losses))
            if gain <= float(losses[cheapest]) + self.margin and not (
                wanted or (needed and float(losses[cheapest]) < _MOST_COST * n_rows)
            ):
                return False
            kept, freed = pairs[cheapest].tolist()
            state.copy_from(np.array([kept]), wholes, np.array([cheapest]))
            new_label = np.arange(state.n_components, dtype=np.int32)
            new_label[freed] = kept
            self.chains.relabel(new_label)
        self.split = np.empty(0, dtype=np.int64)
        self.chains.chain[rows] = freed
        prior.background = freed
        state.weigh(np.array([freed]), max(rows.shape[0], 1) / n_rows)
        if wanted:
            # The last choice is the one that became possible.
            state.take_prior(prior.choices()[-1])
        return True

    def _move_chains(
        self,
        step: int,
        which: np.ndarray,
        kept: np.ndarray,
        freed: np.ndarray,
        halves: MixtureState,
        random: StepRandomness,
    ) -> None:
        """Move chains from freed components to their partner, from split ones to either half."""
        n_components = self.state.n_components
        new_label = np.arange(n_components, dtype=np.int32)
        new_label[freed] = kept
        self.chains.relabel(new_label)
        into = np.full(n_components, -1, dtype=np.int32)
        into[self.split] = 2 * which
        back = np.zeros(halves.n_components, dtype=np.int32)
        back[2 * which], back[2 * which + 1] = self.split, freed
        pairs = np.stack([2 * which, 2 * which + 1], axis=1).ravel()
        self._sweep(
            self.chains, step, halves, pairs, random.child(_MOVING), Relabelling(into, back)
        )

    def _sweep(
        self,
        chains: Chains,
        step: int,
        halves: MixtureState,
        members: np.ndarray,
        random: StepRandomness,
        relabelling: Relabelling,
    ) -> Statistics | None:
        """Sweep through blocks of two halves each; statistics are wanted where chains stay."""
        done = chains.sweep(
            halves,
            Partition.of_blocks(members, 2),
            step,
            random,
            stream=Stream.RELOCATION,
            wants_statistics=relabelling.back is None,
            relabelling=relabelling,
        )
        self.evaluations += done.evaluations
        return done.statistics

    def _left_out_sums(
        self,
        chains: Chains,
        state: MixtureState,
        members: np.ndarray,
        size: int,
        relabelling: Relabelling,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Leave-one-out log-likelihood and weight of blocks of `size` members."""
        sums, weights, evaluations = chains.left_out_sums(
            state, Partition.of_blocks(members, size), relabelling
        )
        self.evaluations += evaluations
        return sums, weights

    def _promising(self) -> np.ndarray:
        """Components that a split may gain from: all, or of very many the largest by volume.

        A split of n rows gains about n times a part of the logarithm of the volume that they fill.
        """
        state = self.state
        n_components = state.n_components
        if n_components <= _FEW_COMPONENTS or state.family.shared:
            return np.flatnonzero(np.arange(n_components) != state.prior.background)
        log_volume = -state.family.self_scores(state.model, state.moments)
        score = state.moments.mass * (log_volume - np.median(log_volume) + 1.0)
        if state.prior.background >= 0:
            score[state.prior.background] = -np.inf
        n_best = max(_FEW_COMPONENTS, int(_PROMISING_SHARE * n_components))
        return np.sort(np.argpartition(-score, n_best)[:n_best])

    def split_all(
        self, chains: Chains, step: int, random: StepRandomness
    ) -> tuple[np.ndarray, np.ndarray, MixtureState]:
        """Split the promising components (S,): these, the gain of each, and the 2 S halves."""
        state = self.state
        chosen = self._promising()
        n_chosen = chosen.shape[0]
        alone = np.full(state.n_components, -1, dtype=np.int32)
        alone[chosen] = chosen
        whole, weights = self._left_out_sums(chains, state, chosen, 1, Relabelling(alone))
        moments = state.moments_at(chosen)
        uniforms = random.uniforms(Stream.SPLIT, chosen, state.positions().shape[1])
        one, two = state.family.split(state.model, moments, state.prior, uniforms)
        both = Moments(
            *(
                np.stack([a, b], axis=1).reshape(2 * n_chosen, *a.shape[1:])
                for a, b in zip(one, two, strict=True)
            )
        )
        halves = state.with_components(
            both._replace(mass=np.maximum(both.mass, 1e-300)), np.repeat(chosen, 2)
        )
        # They come from these rows only, whatever the whole has seen in a stream.
        halves.prior.n_rows = min(halves.prior.n_rows, float(chains.n_rows))
        failed = halves.failures.copy()
        into = np.full(state.n_components, -1, dtype=np.int32)
        into[chosen] = 2 * np.arange(n_chosen, dtype=np.int32)
        all_halves = np.arange(2 * n_chosen)
        few, most = chains, _SPLIT_ROWS * (state.surveyed_columns + _MORE_COLUMNS)
        if np.bincount(chains.chain).max() > most:
            few = self.chains.of_step(step, most)
        is_wide = state.family.most_surveyed is not None
        is_fast = is_wide or state.n_components > _MANY_COMPONENTS
        n_steps = _FEWER_STEPS if is_fast else _SPLIT_STEPS
        for number in range(n_steps):
            statistics = self._sweep(
                few if number < n_steps - _FULL_STEPS else chains,
                1,
                halves,
                all_halves,
                random.child(number),
                Relabelling(into),
            )
            assert statistics is not None
            failed[halves.absorb(statistics, 1.0)] = True
        halved, _ = self._left_out_sums(chains, halves, all_halves, 2, Relabelling(into))
        gains = halved - whole
        # The same weight for a whole and for its halves.
        masses = halves.floored_masses
        log_ratio = np.log(masses[0::2] + masses[1::2]) - np.log(state.floored_masses[chosen])
        gains -= weights * log_ratio
        # A half that has no estimate is no half.
        gains[failed[0::2] | failed[1::2]] = -np.inf
        return chosen, gains / self.chains.mean_weight, halves

    def _find_pairs(self, random: StepRandomness) -> np.ndarray:
        """Disjoint pairs (m, 2) of components that may be merged."""
        state = self.state
        n_components = state.n_components
        partner = np.full(n_components, -1, dtype=np.int64)
        loss = np.full(n_components, np.inf)
        points = state.positions() / state.scales()
        scores = None
        if not state.family.shared:
            scores = state.family.self_scores(state.model, state.moments)
        # One block is the same in every partition.
        for number in range(_PARTNER_PARTITIONS if n_components > _PARTNER_BLOCK else 1):
            partition = draw_partition(
                state.positions(),
                _PARTNER_BLOCK,
                0.0,
                random.child(_PARTNERING + number),
                state.backend,
                state.scales(),
            )
            for first in range(0, partition.n_blocks, BLOCKS_AT_ONCE):
                neighbours = nearest_in_blocks(partition, first, points)
                if neighbours.shape[0]:
                    self._find_partners(neighbours, scores, partner, loss)
        share = _LARGEST_SHARE if n_components <= _FEW_COMPONENTS else 0.5 * _PROMISING_SHARE
        return match_disjointly(partner, loss, max(1, int(share * n_components)))

    def merge_all(
        self, chains: Chains, random: StepRandomness
    ) -> tuple[np.ndarray, np.ndarray, MixtureState]:
        """Merge disjoint pairs (m, 2): these, the loss of each, and the m merged components."""
        state = self.state
        n_components = state.n_components
        pairs = self._find_pairs(random)
        if not pairs.shape[0]:
            return pairs, np.empty(0), state
        first, second = pairs.T
        wholes = state.with_components(state.merged(first, second), first)
        paired = np.full(n_components, -1, dtype=np.int32)
        paired[pairs] = np.arange(pairs.shape[0], dtype=np.int32)[:, None]
        apart_from = np.where(paired >= 0, np.arange(n_components), -1).astype(np.int32)
        apart, _ = self._left_out_sums(chains, state, pairs.ravel(), 2, Relabelling(apart_from))
        alone = np.arange(pairs.shape[0])
        together, _ = self._left_out_sums(chains, wholes, alone, 1, Relabelling(paired))
        losses = (apart - together) / self.chains.mean_weight
        losses[wholes.failures] = np.inf
        return pairs, losses, wholes

    def _find_partners(
        self, pairs: np.ndarray, scores: np.ndarray | None, partner: np.ndarray, loss: np.ndarray
    ) -> None:
        """Lower loss[a] and set partner[a] where merging a pair (a, b) of neighbours loses less.

        The loss is that of the classification likelihood: with n rows of mean log-density s each,
        sum_j n_j (log n_j + s_j) - n (log n + s).
        """
        state, family = self.state, self.state.family
        a, b = pairs.T
        n_a, n_b = np.maximum(state.effective_rows(pairs.T), 1e-300 * state.prior.n_rows)
        n = n_a + n_b
        cost = n_a * np.log(n_a / n) + n_b * np.log(n_b / n)
        if scores is None:
            away = state.model.location[a] - state.model.location[b]
            factor = np.zeros((state.layout.n_coordinates, state.layout.n_coordinates))
            factor[state.layout.pairs()] = state.model.factor[0]
            cost += 0.5 * n_a * n_b / n * np.square(away @ factor.T).sum(axis=1)
        else:
            merged = state.with_components(state.merged(a, b), a)
            cost += n_a * scores[a] + n_b * scores[b]
            cost -= n * family.self_scores(merged.model, merged.moments)
            cost[merged.failures] = np.inf
        background = state.prior.background
        cost[(a == background) | (b == background)] = np.inf
        # The cheapest partner of each.
        order = np.lexsort((cost, a))
        best = order[np.flatnonzero(np.diff(a[order], prepend=-1))]
        better = best[cost[best] < loss[a[best]]]
        loss[a[better]] = cost[better]
        partner[a[better]] = b[better]

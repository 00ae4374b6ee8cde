"""Moving components that are hardly needed to where rows are badly explained.

With many components the optimum that EM finds depends on where they start: here two of them share
one group of rows, there one covers two groups. A round of relocation

1. splits every component in two, by a few EM steps on its own rows, which tells the gain in
   log-likelihood;
2. pairs components that overlap, and merges each pair, which tells the loss;
3. carries out the best splits, as long as each gains more than the merge that makes room for it
   loses.

Splits and pairs are blocks of two components, and every number comes from the same kernel that
sweeps through the blocks of a random partition (after the split and merge EM of Ueda and others,
2000, all moves of a round at once).
"""

from __future__ import annotations

import numpy as np

from pickmix.closed_form.lanes import LANES
from pickmix.closed_form.mixture import GaussianMixtureState, Increment
from pickmix.closed_form.operations import (
    SCALE,
    add_outer,
    factor_index,
    factorise_lanes,
    has_own_covariance,
    layout_of,
    squared_distance,
)
from pickmix.closed_form.partition_gibbs import sweep
from pickmix.closed_form.statistics import lean_by_prior
from pickmix.compiled import kernel
from pickmix.data.rows import ArrayRows
from pickmix.selection.partitions import Partition, Tree, draw_partition, group_rows
from pickmix.selection.randomness import StepRandomness, Stream

# EM steps that a split is given.
_SPLIT_STEPS = 6
# Halves begin this many standard deviations from the mean of the whole.
_SPLIT_DISTANCE = 0.8
# Partitions in which a component looks for a partner, of blocks of this size, and the nearest
# components in each that it compares.
_PARTNER_PARTITIONS = 2
_PARTNER_BLOCK = 16
_PARTNERS = 3
# Rows that tell the direction of a split, and power iterations to find it.
_DIRECTION_ROWS = 256
_DIRECTION_STEPS = 5
# At most this share of the components is merged in a round.
_LARGEST_SHARE = 0.25
# Beyond this many components only this share of them is split, those that promise most.
_FEW_COMPONENTS = 5000
_PROMISING_SHARE = 0.15
# A daring round moves at most this share, and accepts losses of this many times the gain.
_DARING_SHARE = 0.03
_DARING_LOSS = 8.0

_NO_TREE = Tree(np.empty((0, 0)), np.empty(0), np.empty((0, 2), dtype=np.int32), -1)


@kernel()
def _find_directions(rows, ends, means, whitener, unwhitener, directions, start, stop):
    """Direction, times standard deviation, along which each component's rows spread most.

    rows (R, D) grouped by component; measured in the metric of the pooled covariance, whose
    factor is `whitener` (D, D).
    """
    n_features = means.shape[1]
    vector = np.empty(n_features)
    following = np.empty(n_features)
    white = np.empty((_DIRECTION_ROWS, n_features))
    for k in range(start, stop):
        first = ends[k - 1] if k > 0 else 0
        n = min(_DIRECTION_ROWS, ends[k] - first)
        directions[k] = 0.0
        if n < 2:
            continue
        farthest, most = 0, -1.0
        for i in range(n):
            square = 0.0
            for d in range(n_features):
                total = 0.0
                for e in range(n_features):
                    total += whitener[d, e] * (rows[first + i, e] - means[k, e])
                white[i, d] = total
                square += total * total
            if square > most:
                farthest, most = i, square
        for d in range(n_features):
            vector[d] = white[farthest, d]
        variance = 0.0
        for _ in range(_DIRECTION_STEPS):
            norm = np.sqrt((vector * vector).sum())
            if not norm > 0.0:
                break
            vector /= norm
            following[:] = 0.0
            for i in range(n):
                product = 0.0
                for d in range(n_features):
                    product += white[i, d] * vector[d]
                for d in range(n_features):
                    following[d] += product / n * white[i, d]
            variance = (vector * following).sum()
            for d in range(n_features):
                vector[d] = following[d]
        norm = np.sqrt((vector * vector).sum())
        if norm > 0.0:
            for d in range(n_features):
                total = 0.0
                for e in range(n_features):
                    total += unwhitener[d, e] * vector[e]
                directions[k, d] = np.sqrt(variance) / norm * total


@kernel()
def _find_partners(
    model, pooled, prior, trace_weights, reg_covar, members, offsets, partner, loss, start, stop
):
    """Lower loss[a] and set partner[a] where merging a with another of its block loses less.

    The loss is that of the classification likelihood, each row counted to one component: with
    n rows, weight n and log-normaliser c, sum_j n_j (log n_j + c_j) - n (log n + c).
    """
    n_features, n_packed = model.mean.shape[1], model.covariance.shape[1]
    nearest = np.empty(_PARTNERS, dtype=np.int64)
    distance = np.empty(_PARTNERS)
    scratch = np.empty(n_features)
    difference = np.empty(n_features)
    merged = np.empty((1, n_packed))
    factor = np.ones((n_packed, LANES))
    log_normaliser = np.zeros(LANES)
    to_rows = model.clock[SCALE] * prior[1]
    for b in range(start, stop):
        for place in range(offsets[b], offsets[b + 1]):
            a = members[place]
            distance[:] = np.inf
            nearest[:] = -1
            for other in range(offsets[b], offsets[b + 1]):
                k = members[other]
                if k == a:
                    continue
                d = squared_distance(model, a, model.mean, k, scratch)
                j = _PARTNERS - 1
                if not d < distance[j]:
                    continue
                while j > 0 and distance[j - 1] > d:
                    distance[j], nearest[j] = distance[j - 1], nearest[j - 1]
                    j -= 1
                distance[j], nearest[j] = d, k
            n_a = model.mass[a] * to_rows
            for lane in range(_PARTNERS):
                if nearest[lane] < 0:
                    continue
                k = nearest[lane]
                n_k = model.mass[k] * to_rows
                share = n_k / max(n_a + n_k, 1e-300)
                f, h = factor_index(model, a), factor_index(model, k)
                for p in range(n_packed):
                    merged[0, p] = (1.0 - share) * model.covariance[f, p]
                    merged[0, p] += share * model.covariance[h, p]
                for d in range(n_features):
                    difference[d] = model.mean[a, d] - model.mean[k, d]
                add_outer(layout_of(model), share * (1.0 - share), difference, merged, 0)
                for p in range(n_packed):
                    factor[p, lane] = merged[0, p]
                lean_by_prior(factor, lane, n_a + n_k, prior[0], trace_weights, pooled)
            if has_own_covariance(model):
                factorise_lanes(layout_of(model), factor, reg_covar, log_normaliser)
            for lane in range(_PARTNERS):
                if nearest[lane] < 0:
                    continue
                k = nearest[lane]
                n_k = model.mass[k] * to_rows
                n = max(n_a + n_k, 1e-300)
                cost = 0.0
                if n_a > 0.0:
                    cost += n_a * np.log(n_a / n)
                if n_k > 0.0:
                    cost += n_k * np.log(n_k / n)
                if has_own_covariance(model):
                    cost += n_a * model.log_normaliser[a] + n_k * model.log_normaliser[k]
                    cost -= n * log_normaliser[lane]
                else:
                    cost += 0.5 * n_a * n_k / n * distance[lane]
                if cost < loss[a]:
                    loss[a] = cost
                    partner[a] = k


def _pairs_of(members: np.ndarray, size: int) -> Partition:
    """Blocks of `size` members each, one after the other."""
    offsets = np.arange(0, members.shape[0] + 1, size, dtype=np.int64)
    return Partition(members.astype(np.int32), offsets, _NO_TREE)


class Relocation:
    """Rounds of relocation for a mixture, on the rows of one batch at a time."""

    def __init__(self, state: GaussianMixtureState, source: ArrayRows, chain: np.ndarray) -> None:
        self.state = state
        self.source = source
        self.chain = chain
        n_features = state.n_features
        # What a component too many gains on the rows that it learns from, on average.
        self.margin = 0.5 * (state.structure.packed_size + n_features + 1.0)
        self.evaluations = 0
        #: Components that a daring round leaves alone, and those that the last round has split.
        self.avoided = np.zeros(state.n_components, dtype=bool)
        self.split = np.empty(0, dtype=np.int64)

    def round(self, rows: np.ndarray, random: StepRandomness, daring: bool = False) -> int:
        """Carry out one round with the chains of `rows` (B,); returns the number of moves.

        A `daring` round makes a few moves that seem to lose, but not much: what a split gains once
        the components around it have followed is more than it gains alone.
        """
        state = self.state
        if state.n_components < 3:
            return 0
        # The rows are met many times, so they are gathered once, component by component.
        ends = np.empty(state.n_components, dtype=np.int64)
        grouped = np.empty(rows.shape[0], dtype=np.int64)
        places = np.arange(state.n_components, dtype=np.int32)
        group_rows(self.chain, rows, places, state.n_components, ends, grouped)
        rows, chain = grouped, self.chain[grouped]
        local = self.source.local(rows)
        chosen, gains, halves, half_chain = self._split(local, chain, random)
        pairs, losses, wholes = self._merge(local, chain, random)
        order = np.argsort(losses, kind="stable")
        pairs, losses = pairs[order], losses[order]
        if daring:
            gains[self.avoided[chosen]] = -np.inf
        # The best split pays for the cheapest merge, and so on.
        best = np.argsort(-gains, kind="stable")
        which, made = _pay(chosen, best, pairs, state.n_components)
        n = which.shape[0]
        gains, losses = gains[which], losses[made]
        worth = gains > losses + self.margin
        if daring:
            n = min(n, max(1, int(_DARING_SHARE * state.n_components)))
            worth = (gains > 2.0 * self.margin) & (losses < _DARING_LOSS * gains)
        worth = worth[:n]
        n = n if worth.all() else int(np.argmin(worth))
        which, made = which[:n], made[:n]
        self.split = chosen[which]
        if n == 0:
            return 0
        kept, freed = pairs[made].T
        state.take(kept, wholes, order[made])
        state.take(self.split, halves, 2 * which)
        state.take(freed, halves, 2 * which + 1)
        self._move_chains(rows, which, kept, freed, half_chain)
        return n

    def _move_chains(
        self,
        rows: np.ndarray,
        which: np.ndarray,
        kept: np.ndarray,
        freed: np.ndarray,
        half_chain: np.ndarray,
    ) -> None:
        """Chains on a freed component go to its partner, those on a second half to the freed."""
        becomes = np.arange(self.state.n_components, dtype=np.int32)
        becomes[freed] = kept
        second = np.full(self.state.n_components, -1, dtype=np.int32)
        second[which] = freed
        target = second[half_chain // 2]
        moves = (half_chain % 2 == 1) & (half_chain >= 0) & (target >= 0)
        stands = self.chain >= 0
        self.chain[stands] = becomes[self.chain[stands]]
        self.chain[rows[moves]] = target[moves]

    def _sweep(self, state, local, chain, rows, blocks, key, wants_moments=False):
        done = sweep(state, local, chain, rows, blocks, key, wants_moments=wants_moments)
        self.evaluations += done.evaluations
        return done

    def _promising(self) -> np.ndarray:
        """Components that a split may gain from: all, or of very many those that fill most space.

        A split of n rows gains about n times a part of the logarithm of the volume that they fill.
        """
        state = self.state
        n_components = state.n_components
        if n_components <= _FEW_COMPONENTS or state.structure.shared:
            return np.arange(n_components)
        log_volume = -state.model.log_normaliser
        score = state.model.mass * (log_volume - np.median(log_volume) + 1.0)
        n_best = max(_FEW_COMPONENTS, int(_PROMISING_SHARE * n_components))
        return np.sort(np.argpartition(-score, n_best)[:n_best])

    def _split(
        self, local: ArrayRows, chain: np.ndarray, random: StepRandomness
    ) -> tuple[np.ndarray, np.ndarray, GaussianMixtureState, np.ndarray]:
        """Split the promising components.

        Returns them (S,), the gain of each, the 2 S halves, and the place in these of every row
        (B,), -1 where its component was not split.
        """
        state = self.state
        chosen = self._promising()
        place = np.full(state.n_components, -1, dtype=np.int32)
        place[chosen] = np.arange(chosen.shape[0], dtype=np.int32)
        rows = np.flatnonzero(place[chain] >= 0)
        alone = _pairs_of(chosen, 1)
        key = random.key(Stream.RELOCATION)
        whole = self._sweep(state, local, chain.copy(), rows, alone, key)
        directions = self._directions(chosen, local, whole.rows, whole.ends)
        model = state.model
        weights = np.repeat(model.mass[chosen] * model.clock[SCALE] / 2.0, 2)
        means = np.repeat(model.mean[chosen], 2, axis=0)
        means[0::2] += _SPLIT_DISTANCE * directions
        means[1::2] -= _SPLIT_DISTANCE * directions
        covariances = model.covariance
        if not state.structure.shared:
            covariances = np.repeat(0.5 * covariances[chosen], 2, axis=0)
        halves = state.like(np.maximum(weights, 1e-300), means, covariances)
        pairs = _pairs_of(np.arange(2 * chosen.shape[0]), 2)
        half_chain = np.where(place[chain] >= 0, 2 * place[chain], -1).astype(np.int32)
        # Weights stay in units of the whole mixture's.
        total_weight = local.weights_of(np.arange(local.n_rows))[1]
        for number in range(_SPLIT_STEPS):
            key = StepRandomness(random.seed, random.step * 64 + number).key(Stream.RELOCATION)
            done = self._sweep(halves, local, half_chain, rows, pairs, key, wants_moments=True)
            increment = Increment(halves, halves.n_components)
            increment.add_moments(done.members, done.moments, total_weight)
            halves.absorb(increment, 1.0)
        halved = self._sweep(halves, local, half_chain, rows, pairs, key)
        gains = halved.block_totals(local) - whole.block_totals(local)
        # The same weight for a whole and for its halves.
        masses = halves.floored_masses
        log_ratio = np.log(masses[0::2] + masses[1::2]) - np.log(state.floored_masses[chosen])
        gains -= whole.block_weights(local) * log_ratio
        return chosen, gains / local.mean_weight, halves, half_chain

    def _directions(
        self, chosen: np.ndarray, local: ArrayRows, rows: np.ndarray, ends: np.ndarray
    ) -> np.ndarray:
        """Widest direction of each component's rows (S, D), times the standard deviation there."""
        state = self.state
        directions = np.empty((chosen.shape[0], state.n_features))
        counts = np.diff(ends, prepend=0)
        kept = np.minimum(counts, _DIRECTION_ROWS)
        starts = np.repeat(ends - counts, kept)
        within = np.arange(kept.sum()) - np.repeat(np.cumsum(kept) - kept, kept)
        covariance = state.pooled_matrix()
        unwhitener = np.linalg.cholesky(covariance)
        state.threads.run(
            _find_directions,
            chosen.shape[0],
            float(kept.sum()) * state.n_features * (state.n_features + 2 * _DIRECTION_STEPS),
            local.gather(rows[starts + within]),
            np.cumsum(kept),
            state.model.mean[chosen],
            np.linalg.inv(unwhitener),
            unwhitener,
            directions,
        )
        return directions

    def _merge(
        self, local: ArrayRows, chain: np.ndarray, random: StepRandomness
    ) -> tuple[np.ndarray, np.ndarray, GaussianMixtureState]:
        """Disjoint pairs (m, 2), what merging each loses, and the m merged components."""
        state = self.state
        n_components = state.n_components
        partner = np.full(n_components, -1, dtype=np.int64)
        loss = np.full(n_components, np.inf)
        for number in range(_PARTNER_PARTITIONS):
            partition = draw_partition(
                state.model.mean,
                _PARTNER_BLOCK,
                0.0,
                random,
                state.threads,
                state.widths(),
                512 + number,
            )
            state.threads.run(
                _find_partners,
                partition.n_blocks,
                n_components * _PARTNER_BLOCK * 3.0 * state.structure.packed_size,
                state.model,
                *state.prior_arguments(),
                state.reg_covar,
                partition.members,
                partition.offsets,
                partner,
                loss,
            )
        share = _LARGEST_SHARE if n_components <= _FEW_COMPONENTS else 0.5 * _PROMISING_SHARE
        pairs = _match(partner, loss, max(1, int(share * n_components)))
        masses = np.maximum(state.model.mass * state.model.clock[SCALE], 1e-300)
        first, second = pairs.T
        weights = masses[first] + masses[second]
        share = (masses[second] / weights)[:, None]
        difference = state.model.mean[second] - state.model.mean[first]
        covariances = state.model.covariance
        if not state.structure.shared:
            spread = share * (1.0 - share) * state.structure.pack_outers(difference)
            covariances = (1.0 - share) * covariances[first] + share * covariances[second] + spread
        wholes = state.like(weights, state.model.mean[first] + share * difference, covariances)
        paired = np.full(n_components, -1, dtype=np.int32)
        paired[pairs] = np.arange(pairs.shape[0], dtype=np.int32)[:, None]
        rows = np.flatnonzero(paired[chain] >= 0)
        key = random.key(Stream.RELOCATION)
        blocks = _pairs_of(pairs.ravel(), 2)
        apart = self._sweep(state, local, chain.copy(), rows, blocks, key)
        alone = _pairs_of(np.arange(pairs.shape[0]), 1)
        together = self._sweep(wholes, local, paired[chain], rows, alone, key)
        losses = apart.block_totals(local) - together.block_totals(local)
        return pairs, losses / local.mean_weight, wholes


def _match(partner: np.ndarray, loss: np.ndarray, most: int) -> np.ndarray:
    """Disjoint pairs (m, 2) of components and partners, cheapest first, at most `most`."""
    used = np.zeros(partner.shape[0], dtype=bool)
    pairs = np.empty((most, 2), dtype=np.int64)
    n = _match_greedily(np.argsort(loss, kind="stable"), partner, used, pairs)
    return pairs[:n]


@kernel()
def _match_greedily(order, partner, used, pairs):
    n = 0
    for a in order:
        b = partner[a]
        if n == pairs.shape[0]:
            break
        if b < 0 or used[a] or used[b]:
            continue
        used[a] = True
        used[b] = True
        pairs[n, 0] = a
        pairs[n, 1] = b
        n += 1
    return n


@kernel()
def _pay(chosen, best, pairs, n_components):
    """Give every split a merge, the best one the cheapest; a component does one or the other.

    chosen (S,) components that may be split, best (S,) their places, best first; pairs (m, 2) that
    may be merged, cheapest first. Returns places in `chosen` and numbers of pairs.
    """
    split = np.zeros(n_components, dtype=np.bool_)
    merged = np.zeros(n_components, dtype=np.bool_)
    which = np.empty(pairs.shape[0], dtype=np.int64)
    made = np.empty(pairs.shape[0], dtype=np.int64)
    n = 0
    pair = 0
    for place in best:
        component = chosen[place]
        if merged[component]:
            continue
        split[component] = True
        while pair < pairs.shape[0] and (split[pairs[pair, 0]] or split[pairs[pair, 1]]):
            pair += 1
        if pair == pairs.shape[0]:
            break
        merged[pairs[pair, 0]] = True
        merged[pairs[pair, 1]] = True
        which[n] = place
        made[n] = pair
        n += 1
        pair += 1
    return which[:n], made[:n]

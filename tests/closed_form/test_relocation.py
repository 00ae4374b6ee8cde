"""Relocation: components go where they are needed, and only if that gains."""

import itertools

import numpy as np
import pytest
from known_states import both_backends, every_covariance, fleet_of, state_of
from scipy.spatial.distance import cdist

from pickmix.closed_form.evaluation import log_likelihoods
from pickmix.closed_form.relocation import (
    Relocation,
    match_disjointly,
    match_splits_to_merges,
    nearest_in_blocks,
)
from pickmix.selection.partitions import Partition
from pickmix.selection.randomness import StepRandomness

CENTRES = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0], [12.0, 12.0], [18.0, 12.0], [12.0, 18.0]])
# Two at the first centre, one between the fourth and the fifth.
BAD = np.concatenate([[[-0.5, 0.0], [0.5, 0.0]], CENTRES[1:3], [[15.0, 12.0]], CENTRES[5:]])


def rows_at(centres, n_each=300, seed=0):
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(centre, 1.0, (n_each, 2)) for centre in centres])


def relocation_from(
    means, X, name="full", weights=None, backend="reference", batch_size=None, caution=1.0
):
    """Components with the moments of the rows that are nearest to `means`."""
    K = len(means)
    chain = cdist(X, means).argmin(axis=1)
    own = [X[chain == k] for k in range(K)]
    state = state_of(
        name,
        np.bincount(chain, minlength=K) / X.shape[0],
        np.stack([rows.mean(axis=0) for rows in own]) - X.mean(axis=0),
        np.stack([np.cov(rows.T, bias=True) for rows in own]),
        reg_covar=1e-6,
        floor=1e-6,
        shrinkage="pooled",
        n_rows=X.shape[0],
        backend=backend,
    )
    fleet = fleet_of(state.backend, X, chain, weights, batch_size)
    return Relocation(state, fleet, caution)


def mean_log_likelihood(relocation):
    source = relocation.fleet.source
    return log_likelihoods(relocation.state, source, np.arange(source.n_rows)).mean()


def nearest_centres(relocation):
    means = relocation.state.model.location + relocation.fleet.source.center
    return np.sort(cdist(means, CENTRES).argmin(axis=1))


@pytest.mark.parametrize("weighted", [False, True])
@every_covariance
@both_backends
def test_a_component_too_many_goes_where_one_is_missing(backend, name, weighted):
    X = rows_at(CENTRES)
    weights = np.full(X.shape[0], 2.5) if weighted else None
    relocation = relocation_from(BAD, X, name, weights, backend)
    before = mean_log_likelihood(relocation)
    assert relocation.round(1, StepRandomness(0, 1)) == 1
    np.testing.assert_array_equal(nearest_centres(relocation), np.arange(6))
    assert mean_log_likelihood(relocation) > before + 0.1
    # Chains have followed: rows stand on the component at their centre.
    chain, centre = relocation.fleet.chain, relocation.fleet.source.center
    means = relocation.state.model.location[chain] + centre
    assert (np.abs(means - np.repeat(CENTRES, 300, axis=0)).max(axis=1) < 3.0).mean() > 0.98
    assert relocation.evaluations > 0
    assert relocation.split.shape == (1,)


@pytest.mark.parametrize("step_size", [0.0, 0.9])
@every_covariance
@both_backends
def test_nothing_moves_where_nothing_is_to_gain(backend, name, step_size):
    relocation = relocation_from(CENTRES, rows_at(CENTRES), name, backend=backend)
    # Masses need not sum to one: halves and wholes are compared at the same mass.
    relocation.state.decay(step_size)
    kept = relocation.state.snapshot()
    chain = relocation.fleet.snapshot()
    assert relocation.round(1, StepRandomness(0, 1)) == 0
    state = relocation.state
    for now, then in zip((*state.model, *state.moments), (*kept.model, *kept.moments), strict=True):
        np.testing.assert_array_equal(now, then)
    np.testing.assert_array_equal(relocation.fleet.chain, chain)


def test_fewer_than_three_components_stay():
    relocation = relocation_from(CENTRES[:2], rows_at(CENTRES[:2]))
    assert relocation.round(1, StepRandomness(0, 1)) == 0


@both_backends
def test_rows_outside_the_batch_follow_a_merge(backend):
    X = rows_at(CENTRES)
    relocation = relocation_from(BAD, X, backend=backend, batch_size=X.shape[0] // 2)
    fleet = relocation.fleet
    before = fleet.snapshot()
    outside = np.setdiff1d(np.flatnonzero(before < 2), fleet.batches.rows(1))
    assert np.bincount(before[outside]).min() > 50
    assert relocation.round(1, StepRandomness(0, 1)) == 1
    # Rows of the first centre stand on one component now, whether they were looked at or not.
    assert np.unique(fleet.chain[outside]).size == 1
    assert np.bincount(fleet.chain[:300]).max() > 290


def test_a_cautious_round_leaves_small_gains_alone():
    X = rows_at(CENTRES, n_each=25)
    assert relocation_from(BAD, X).round(1, StepRandomness(0, 1)) == 1
    # The split of 50 rows gains less than some hundred nats.
    assert relocation_from(BAD, X, caution=100.0).round(1, StepRandomness(0, 1)) == 0


@pytest.mark.parametrize("name", ["full", "tied", "spherical"])
def test_rounds_never_lower_the_likelihood(name):
    """From 12 random starts among 12 groups: every round that moves gains, and most starts gain."""
    rng = np.random.default_rng(3)
    centres = 20.0 * rng.random((12, 2))
    X = rows_at(centres, n_each=60, seed=1)
    gained = 0
    for seed in range(12):
        starts = X[np.random.default_rng(seed).choice(X.shape[0], 12, replace=False)]
        relocation = relocation_from(starts, X, name)
        before = mean_log_likelihood(relocation)
        moves = relocation.round(1, StepRandomness(seed, 1))
        after = mean_log_likelihood(relocation)
        assert after > before if moves else after == before
        gained += moves > 0
    assert gained >= 6


def test_a_daring_round_moves_where_a_plain_one_does_not():
    """Eight groups of two heaps: a split gains, but less than the merge that it needs loses."""
    centres = np.array([[5.0 * k, 0.0] for k in range(8)])
    heaps = np.concatenate([centres + np.array([0.0, 2.0]), centres - np.array([0.0, 2.0])])
    relocation = relocation_from(centres, rows_at(heaps, n_each=150))
    assert relocation.round(1, StepRandomness(0, 1)) == 0
    kept, chain = relocation.state.snapshot(), relocation.fleet.snapshot()
    before = mean_log_likelihood(relocation)
    split = []
    for _ in range(9):
        if not relocation.round(1, StepRandomness(0, 1), daring=True):
            break
        # One move at a time of so few components, and never one that was tried before.
        assert relocation.split.shape == (1,)
        split += relocation.split.tolist()
        relocation.avoided[relocation.split] = True
        assert mean_log_likelihood(relocation) != before
        relocation.state.restore(kept)
        relocation.fleet.restore(chain)
        assert mean_log_likelihood(relocation) == before
    assert 0 < len(split) == len(set(split)) <= 8


class TestMatching:
    def test_disjoint_pairs_are_the_greedy_choice(self):
        """By brute force: the cheapest pair left whose components are both free, repeatedly."""
        rng = np.random.default_rng(0)
        for _ in range(50):
            K, most = int(rng.integers(2, 9)), int(rng.integers(1, 5))
            partner = (np.arange(K) + rng.integers(1, K, K)) % K
            partner[rng.random(K) < 0.2] = -1
            loss = np.where(partner >= 0, rng.permutation(K).astype(float), np.inf)
            expected, free = [], set(range(K))
            while len(expected) < most:
                left = [a for a in free if partner[a] in free]
                if not left:
                    break
                a = min(left, key=lambda a: loss[a])
                expected.append((a, int(partner[a])))
                free -= {a, int(partner[a])}
            found = match_disjointly(partner, loss, most)
            assert [tuple(pair) for pair in found.tolist()] == expected

    def test_splits_and_merges_share_no_component(self):
        """Against a search by sets: each split in turn takes the cheapest merge that is left."""
        rng = np.random.default_rng(1)
        n_matched = 0
        for _ in range(200):
            K = int(rng.integers(3, 12))
            chosen = np.sort(rng.permutation(K)[: rng.integers(1, K + 1)])
            best = rng.permutation(chosen.shape[0])
            pairs = rng.permutation(K)[: 2 * (K // 2)].reshape(-1, 2)
            split, merged, expected = set(), set(), []
            for place in best.tolist():
                if chosen[place] in merged:
                    continue
                taken = split | merged | {chosen[place]}
                free = [
                    m
                    for m, pair in enumerate(pairs.tolist())
                    if not set(pair) & taken and all(m > made for _, made in expected)
                ]
                # A split without a merge leaves the pairs that it stands in to others.
                if not free:
                    continue
                split.add(chosen[place])
                merged |= set(pairs[free[0]].tolist())
                expected.append((place, free[0]))
            which, made = match_splits_to_merges(chosen, best, pairs, K)
            assert list(zip(which.tolist(), made.tolist(), strict=True)) == expected
            used = [*chosen[which].tolist(), *pairs[made].ravel().tolist()]
            assert len(used) == len(set(used))
            n_matched += which.size
        assert n_matched > 200

    def test_splits_without_conflict_take_merges_in_order(self):
        chosen = np.array([0, 1, 2])
        pairs = np.array([[3, 4], [5, 6], [7, 8], [9, 10]])
        which, made = match_splits_to_merges(chosen, np.array([2, 0, 1]), pairs, 11)
        np.testing.assert_array_equal(which, [2, 0, 1])
        np.testing.assert_array_equal(made, [0, 1, 2])

    def test_nearest_in_blocks_is_a_full_search(self):
        rng = np.random.default_rng(2)
        points = rng.normal(size=(23, 3))
        members = rng.permutation(23).astype(np.int32)
        partition = Partition(members, np.array([0, 7, 8, 10, 23]))
        distances = cdist(points, points)
        expected = set()
        for begin, end in itertools.pairwise(partition.offsets.tolist()):
            block = members[begin:end].tolist()
            for a in block:
                others = sorted((b for b in block if b != a), key=lambda b: distances[a, b])
                expected |= {(a, b) for b in others[:3]}
        found = nearest_in_blocks(partition, 0, points)
        assert sorted(map(tuple, found.tolist())) == sorted(expected)
        alone = Partition.of_blocks(np.arange(4), 1)
        assert nearest_in_blocks(alone, 0, points).shape == (0, 2)

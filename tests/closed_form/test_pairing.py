"""Pairs of components for splits and merges, against searches by sets."""

import itertools

import numpy as np
from scipy.spatial.distance import cdist

from pickmix.closed_form.pairing import match_disjointly, match_splits_to_merges, nearest_in_blocks
from pickmix.selection.partitions import Partition


def test_disjoint_pairs_are_the_greedy_choice():
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
        pairs = match_disjointly(partner, loss, most)
        assert [tuple(pair) for pair in pairs.tolist()] == expected


def test_splits_and_merges_share_no_component():
    """Each split in turn takes the cheapest merge that is left."""
    rng = np.random.default_rng(1)
    n_matched = 0
    for _ in range(100):
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
            # A split without a merge leaves the pairs that it is part of to others.
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
    assert n_matched > 100


def test_nearest_in_blocks_is_a_full_search():
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
    pairs = nearest_in_blocks(partition, 0, points)
    assert sorted(map(tuple, pairs.tolist())) == sorted(expected)
    alone = Partition.of_blocks(np.arange(4), 1)
    assert nearest_in_blocks(alone, 0, points).shape == (0, 2)

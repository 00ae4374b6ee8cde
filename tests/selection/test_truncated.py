"""TSAEM's rule against a plain Python account of METHOD: search sets, distances, top M."""

import numpy as np
import pytest

from pickmix.closed_form.rules import TruncatedSearch
from pickmix.kernels import numba_kernels, numpy_kernels
from pickmix.selection.partitions import SearchSet
from pickmix.selection.randomness import StepRandomness, Stream

N, K, D, G, M, E = 60, 25, 2, 5, 3, 2


class DistanceEvaluator:
    """log p(x, k) = -|x - mean_k|^2."""

    n_components = K

    def __init__(self, X, means, backend):
        self.table = -np.square(X[:, None, :] - means).sum(axis=2)
        self.backend = backend
        self.seen = None

    def nearest_components(self, n_neighbours):
        return self.nearest[:, :n_neighbours]

    def log_joint(self, candidates):
        self.seen = candidates.copy()
        values = np.take_along_axis(self.table, np.maximum(candidates, 0).astype(int), axis=1)
        return np.where(candidates >= 0, values, -np.inf)


@pytest.fixture
def setting(backend):
    rng = np.random.default_rng(1)
    X, means = rng.random((N, D)), rng.random((K, D))
    between = np.square(means[:, None] - means).sum(axis=2)
    first = np.argsort(between, axis=1, kind="stable")[:, :G]
    rule = TruncatedSearch(M, SearchSet(G, E), first)
    chain = rng.integers(0, K, N).astype(np.int32)
    rule.start(chain, K, backend)
    return X, means, first, chain, rule


def test_search_sets_are_unions_of_neighbours_plus_explorers(setting, backend):
    X, means, first, chain, rule = setting
    start = chain.copy()
    evaluate = DistanceEvaluator(X, means, backend)
    selection = rule.select(evaluate, np.arange(N), 1.0, 0.1, StepRandomness(0, 1))
    for i in range(N):
        members = evaluate.seen[i][evaluate.seen[i] >= 0]
        assert len(set(members.tolist())) == members.size
        assert set(first[start[i]].tolist()) <= set(members.tolist())
        assert members.size <= G + E
    assert selection.evaluations == (evaluate.seen >= 0).sum()


def test_both_implementations_collect_and_learn_the_same():
    """While lists are long enough for everyone, so that nobody is forgotten."""
    rng = np.random.default_rng(2)
    guesses = (np.arange(K)[:, None] + np.arange(K)) % K
    stores = [numpy_kernels.Neighbours(guesses)]
    stores += [numba_kernels.Neighbours(guesses)]
    table = -rng.random((N, K))
    met = np.eye(K, dtype=bool)
    for step in range(1, 4):
        rows, held = rng.permutation(N), rng.integers(-1, K, (N, M)).astype(np.int32)
        key = StepRandomness(0, step).key(Stream.EXPLORATION)
        found = []
        for store in stores:
            # Only some of each list, or everyone would be in every search set.
            whole, store.lists = store.lists, np.ascontiguousarray(store.lists[:, :4])
            candidates, n_candidates = store.collect(rows, held, E, key)
            store.lists = whole
            assert (candidates >= 0).sum() == n_candidates
            found.append([sorted(row[row >= 0].tolist()) for row in candidates])
            values = np.take_along_axis(table, np.maximum(candidates, 0).astype(int), axis=1)
            values[candidates < 0] = -np.inf
            winners = np.take_along_axis(candidates, values.argmax(axis=1)[:, None], axis=1)[:, 0]
            store.learn(candidates, values, winners)
        assert found[0] == found[1]
        met[winners[:, None], candidates] |= candidates >= 0
        known = np.take_along_axis(met, stores[0].lists, axis=1)
        np.testing.assert_array_equal(stores[0].lists[known], stores[1].lists[known])
        assert 0.1 < known.mean() < 1.0  # Some have not met yet.


def test_the_best_of_the_search_set_are_kept_with_renormalised_weights(setting, backend):
    X, means, _, chain, rule = setting
    evaluate = DistanceEvaluator(X, means, backend)
    beta = 0.7
    selection = rule.select(evaluate, np.arange(N), beta, 0.1, StepRandomness(0, 1))
    for i in range(N):
        members = evaluate.seen[i][evaluate.seen[i] >= 0]
        best = members[np.argsort(-evaluate.table[i, members], kind="stable")][:M]
        np.testing.assert_array_equal(selection.components[i], best)
        weights = np.exp(beta * evaluate.table[i, best])
        np.testing.assert_allclose(selection.weights[i], weights / weights.sum(), rtol=1e-12)
        assert chain[i] == best[0]


def test_distances_are_running_means_over_the_rows_that_a_component_wins(setting, backend):
    """With lists long enough for everyone, they are in the order of averages in a dictionary."""
    X, means, _, chain, _ = setting
    guesses = [np.concatenate(([k], np.delete(np.arange(K), k))) for k in range(K)]
    rule = TruncatedSearch(M, SearchSet(K, E), np.array(guesses))
    rule.start(chain, K, backend)
    differences = {}
    for t in range(1, 6):
        evaluate = DistanceEvaluator(X, means, backend)
        rule.select(evaluate, np.arange(N), 1.0, 0.1, StepRandomness(0, t))
        for i in range(N):
            winner = int(np.argmax(evaluate.table[i]))
            for k in range(K):
                if k != winner:
                    gap = evaluate.table[i, winner] - evaluate.table[i, k]
                    differences.setdefault((winner, k), []).append(gap)
    lists = rule.neighbours.lists
    winners = {c for c, _ in differences}
    assert len(winners) > K // 4
    for c in winners:
        means_of = {k: np.mean(gaps) for (winner, k), gaps in differences.items() if winner == c}
        assert lists[c].tolist() == [c, *sorted(means_of, key=means_of.get)]
    np.testing.assert_array_equal(lists[:, 0], np.arange(K))


def test_rows_find_their_best_component_by_search(setting, backend):
    """From random starts, local search with explorers reaches the best component of all."""
    X, means, _, chain, rule = setting
    evaluate = DistanceEvaluator(X, means, backend)
    for t in range(1, 40):
        rule.select(evaluate, np.arange(N), 1.0, 0.1, StepRandomness(0, t))
    np.testing.assert_array_equal(chain, evaluate.table.argmax(axis=1))


def test_all_pairs_ask_for_the_nearest_in_every_step(setting, backend):
    X, means, first, chain, _ = setting
    rule = TruncatedSearch(M, SearchSet(G, 0, all_pairs=True), np.zeros((K, G), np.int32))
    rule.start(chain, K, backend)
    evaluate = DistanceEvaluator(X, means, backend)
    evaluate.nearest = first.astype(np.int32)
    start = chain.copy()
    rule.select(evaluate, np.arange(N), 1.0, 0.1, StepRandomness(0, 1))
    for i in range(N):
        members = set(evaluate.seen[i][evaluate.seen[i] >= 0].tolist())
        assert members == set(first[start[i]].tolist())
    # Components have moved: the lists of before are forgotten.
    evaluate.nearest = ((first + 1) % K).astype(np.int32)
    held = rule.held.copy()
    rule.select(evaluate, np.arange(N), 1.0, 0.1, StepRandomness(0, 2))
    for i in range(N):
        members = set(evaluate.seen[i][evaluate.seen[i] >= 0].tolist())
        assert members == {k for c in held[i] if c >= 0 for k in evaluate.nearest[c].tolist()}

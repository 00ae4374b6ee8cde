"""Relocation: components go where they are needed, and only if that gains."""

import dataclasses
import itertools

import numpy as np
import pytest
from known_states import both_backends, every_covariance, fleet_of, in_use, project, state_of
from scipy.spatial.distance import cdist

from pickmix.closed_form.evaluation import log_likelihoods
from pickmix.closed_form.local_fleet import Detour
from pickmix.closed_form.pairing import (
    match_disjointly,
    match_splits_to_merges,
    nearest_in_blocks,
)
from pickmix.closed_form.relocation import Relocation
from pickmix.selection.partitions import Partition
from pickmix.selection.randomness import StepRandomness

CENTRES = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0], [12.0, 12.0], [18.0, 12.0], [12.0, 18.0]])
# Two at the first centre, one between the fourth and the fifth.
BAD = np.concatenate([[[-0.5, 0.0], [0.5, 0.0]], CENTRES[1:3], [[15.0, 12.0]], CENTRES[5:]])


def rows_at(centres, n_each=300, seed=0):
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(centre, 1.0, (n_each, 2)) for centre in centres])


def relocation_from(
    means,
    X,
    name="full",
    weights=None,
    backend="reference",
    batch_size=None,
    caution=1.0,
    shrinkage="pooled",
    reg_covar=1e-6,
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
        reg_covar=reg_covar,
        floor=1e-6,
        shrinkage=shrinkage,
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
    survey = relocation.survey(1, StepRandomness(0, 1))
    # Nobody dares to lose everything.
    hopeless = dataclasses.replace(survey, losses=1e3 * survey.losses)
    assert relocation.move(hopeless, 1, StepRandomness(0, 1), daring=True) == 0
    for _ in range(9):
        if not relocation.move(survey, 1, StepRandomness(0, 1), daring=True):
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


@both_backends
def test_singular_halves_are_no_halves(backend):
    """The rows of one component stand in four places: it is sound, its halves are not."""
    square = np.repeat([[39.0, 40.0], [41.0, 40.0], [40.0, 39.5], [40.0, 40.5]], 40, axis=0)
    X = np.concatenate([rows_at(CENTRES), square])
    means = np.concatenate([BAD, [[40.0, 40.0]]])
    relocation = relocation_from(means, X, backend=backend, shrinkage="none", reg_covar=0.0)
    assert not relocation.state.failures.any()
    survey = relocation.survey(1, StepRandomness(0, 1))
    np.testing.assert_array_equal(survey.chosen, np.arange(7))
    assert survey.gains[6] == -np.inf
    assert np.isfinite(survey.gains[:6]).all()
    # Another one goes where it is needed, and what is there stays sound.
    kept = in_use(relocation.state)[6]
    assert relocation.move(survey, 1, StepRandomness(0, 1)) == 1
    np.testing.assert_array_equal(in_use(relocation.state)[6], kept)
    assert np.isfinite(mean_log_likelihood(relocation))
    # Nor does anybody dare to.
    assert relocation.avoided.sum() == 0
    relocation.avoided[:6] = True
    assert relocation.move(survey, 1, StepRandomness(0, 1), daring=True) == 0


@pytest.mark.parametrize("n_away", [1, 20])
@both_backends
def test_a_component_of_a_single_row_is_worth_nothing(backend, n_away):
    """Six deviations from the next group stands one row, or stand twenty."""
    rng = np.random.default_rng(1)
    away = np.array([6.0, 0.0]) + 0.3 * rng.normal(size=(n_away, 2))
    X = np.concatenate([rows_at(CENTRES[[0, 3, 4]]), away])
    means = np.concatenate([CENTRES[[0, 3, 4]], away.mean(axis=0)[None]])
    relocation = relocation_from(means, X, backend=backend)
    pair = np.array([[0, 3]])
    losses, wholes = relocation._merge(relocation.fleet.focus(1), pair)
    # What its rows gain from it with themselves in it.
    apart = np.array([0, -1, -1, 3], dtype=np.int32)
    together = np.array([0, -1, -1, 0], dtype=np.int32)
    sums = [
        relocation._sweep(
            relocation.fleet, state, members, len(members), StepRandomness(0, 1), Detour(into)
        ).block_sums[0]
        for state, members, into in (
            (relocation.state, pair[0], apart),
            (wholes, np.array([0]), together),
        )
    ]
    assert sums[0] - sums[1] > 5.0 * n_away
    if n_away == 1:
        assert losses[0] < 1.0
    else:
        assert losses[0] > 5.0 * n_away


class TestBackground:
    """Two components at the first centre of three, and rows that are far from all."""

    MEANS = np.concatenate([BAD[:2], CENTRES[1:3]])

    WHOLE = Partition.of_blocks(np.arange(4), 4)

    def follow(self, relocation, n_steps, seed):
        """Steps of EM, chains and all."""
        for number in range(n_steps):
            done = relocation.fleet.sweep(
                relocation.state, self.WHOLE, 1, StepRandomness(seed, number)
            )
            assert relocation.state.absorb(done.statistics, 1.0).size == 0
            relocation.state.pool()

    def relocation(self, n_far, name="full", backend="reference"):
        """A mixture of three groups, and last the far rows: next to them are the last two."""
        X = rows_at(CENTRES[:3])
        clean = relocation_from(self.MEANS, X, name, backend=backend)
        self.follow(clean, 10, 0)
        X = np.concatenate([X, np.random.default_rng(2).uniform(15.0, 60.0, (n_far, 2))])
        chain = np.concatenate([clean.fleet.chain, cdist(X[900:], self.MEANS).argmin(axis=1)])
        assert (chain[900:] >= 2).all()
        fleet = fleet_of(clean.state.backend, X, chain)
        fleet.source.center = clean.fleet.source.center
        clean.state.prior.allow_background(fleet.source.extent())
        return Relocation(clean.state, fleet), 900 + np.arange(n_far)

    @pytest.mark.parametrize("name", ["full", "diag", "spherical"])
    @both_backends
    def test_a_few_far_rows_have_one(self, backend, name):
        relocation, far = self.relocation(12, name, backend)
        state, fleet = relocation.state, relocation.fleet
        before = fleet.snapshot()
        survey = relocation.survey(1, StepRandomness(0, 1))
        np.testing.assert_array_equal(np.sort(survey.pairs[0]), [0, 1])
        assert relocation.lay_background(1, StepRandomness(0, 1))
        kept, freed = survey.pairs[0]
        assert state.prior.background == freed
        # Rows that nothing else explains stand on it, those of the freed one on its partner.
        found = np.flatnonzero(fleet.chain == freed)
        assert np.isin(found, far).all()
        assert found.shape[0] >= 10
        assert state.weights[freed] == pytest.approx(found.shape[0] / 912, rel=0.05)
        others = np.delete(np.arange(912), found)
        expected = np.where(before == freed, kept, before)[others]
        np.testing.assert_array_equal(fleet.chain[others], expected)
        # Steps later it is where it was, and as wide; and it has kept its rows.
        broad = project(name, np.diag(np.square(0.5 * fleet.source.extent()))) + 1e-6 * np.eye(2)
        for number in range(4):
            self.follow(relocation, 1, number + 1)
            np.testing.assert_allclose(in_use(state)[freed], broad, rtol=1e-9)
            np.testing.assert_array_equal(state.model.location[freed], 0.0)
        assert np.isin(found, np.flatnonzero(fleet.chain == freed)).mean() > 0.8
        # There is one at most, and it is neither split nor merged.
        again = relocation.survey(1, StepRandomness(0, 2))
        assert not relocation.lay_background(1, StepRandomness(0, 2))
        np.testing.assert_array_equal(again.chosen, np.delete(np.arange(4), freed))
        assert not (again.pairs == freed).any()
        partner, loss = np.full(4, -1), np.full(4, np.inf)
        relocation._find_partners(self.WHOLE, 0, partner, loss)
        assert partner[freed] == -1
        assert (np.delete(partner, freed) >= 0).all()

    def test_a_component_whose_rows_belong_nowhere_becomes_it(self):
        """No merge is needed then."""
        far = np.array([[50.0, 45.0], [-40.0, 50.0]])
        X = np.concatenate([rows_at(CENTRES[:3]), far])
        relocation = relocation_from(np.concatenate([CENTRES[:3], [[5.0, 47.0]]]), X)
        state, fleet = relocation.state, relocation.fleet
        np.testing.assert_array_equal(fleet.chain[900:], 3)
        state.prior.allow_background(fleet.source.extent())
        before, places = fleet.snapshot(), state.model.location.copy()
        assert relocation.lay_background(1, StepRandomness(0, 1))
        assert state.prior.background == 3
        np.testing.assert_array_equal(fleet.chain, before)
        np.testing.assert_array_equal(state.model.location[:3], places[:3])
        assert state.masses[3] == pytest.approx(2 / 902)

    def test_clean_rows_have_none(self):
        for n_far in (0, 1):
            relocation, _ = self.relocation(n_far)
            relocation.state.prior.allow_background(np.array([60.0, 60.0]))
            kept, chain = relocation.state.snapshot(), relocation.fleet.snapshot()
            # A single row far away pays for one.
            assert relocation.lay_background(1, StepRandomness(0, 1)) == (n_far == 1)
            if n_far == 0:
                for now, then in zip(relocation.state.model, kept.model, strict=True):
                    np.testing.assert_array_equal(now, then)
                np.testing.assert_array_equal(relocation.fleet.chain, chain)

    def test_none_is_laid_where_none_is_allowed(self):
        relocation, _ = self.relocation(12)
        extent = relocation.fleet.source.extent()
        relocation.state.prior.allow_background(np.zeros(2))
        assert not relocation.lay_background(1, StepRandomness(0, 1))
        # Nor where there is one.
        relocation.state.prior.allow_background(extent)
        relocation.state.prior.background = 3
        assert not relocation.lay_background(1, StepRandomness(0, 1))
        relocation.state.prior.background = -1
        assert relocation.lay_background(1, StepRandomness(0, 1))

    def test_none_is_laid_at_the_price_of_a_group(self):
        """The cheapest merge loses two groups of some hundred rows; one row cannot pay for that."""
        X = np.concatenate([rows_at(CENTRES[:3]), [[15.0, 15.0]]])
        relocation = relocation_from(CENTRES[:3], X[:900])
        fleet = fleet_of(relocation.state.backend, X, np.append(relocation.fleet.chain, 1))
        fleet.source.center = relocation.fleet.source.center
        relocation = Relocation(relocation.state, fleet)
        relocation.state.prior.allow_background(fleet.source.extent())
        survey = relocation.survey(1, StepRandomness(0, 1))
        gain, _ = fleet.astray(relocation.state, 1.0 / 901)
        assert relocation.margin < gain < survey.losses[0]
        assert not relocation.lay_background(1, StepRandomness(0, 1))


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

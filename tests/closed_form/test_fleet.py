"""The contract of a fleet, held by the one in memory: rows stay, states move, statistics add up."""

import numpy as np
import pytest
from known_states import BACKENDS, fleet_of, state_of
from scipy import stats

from pickmix.closed_form.local_fleet import Detour, sample_numbers, thinned
from pickmix.selection.partitions import Partition
from pickmix.selection.randomness import StepRandomness, Stream

N, K, D = 600, 6, 2
RANDOM = StepRandomness(2, 9)
WHOLE = Partition.of_blocks(np.arange(K), K)
PAIRS = Partition.of_blocks(np.array([4, 1, 0, 3, 5, 2]), 2)
PARTNER = np.array([3, 4, 5, 0, 1, 2])


@pytest.fixture
def means():
    return 3.0 * np.random.default_rng(0).normal(size=(K, D))


@pytest.fixture
def X(means):
    rng = np.random.default_rng(1)
    return means[rng.integers(K, size=N)] + rng.normal(size=(N, D)) + 50.0


@pytest.fixture(params=list(BACKENDS))
def state(request, means, X):
    shift = X.mean(axis=0) - 50.0
    return state_of(
        "full", np.full(K, 1 / K), means - shift, [np.eye(D)] * K, backend=request.param
    )


@pytest.fixture
def chain():
    return np.random.default_rng(2).integers(K, size=N).astype(np.int32)


@pytest.fixture
def log_joint(means, X):
    """log p(x, k) by SciPy, (N, K)."""
    return stats.norm.logpdf(X[:, None] - 50.0 - means).sum(axis=2) - np.log(K)


def log_sum(values):
    return np.logaddexp.reduce(values, axis=1)


class TestSweep:
    def test_rows_of_the_step_move_and_no_others(self, state, X, chain):
        fleet = fleet_of(state.backend, X, chain, batch_size=200)
        for step in (1, 2, 5):
            before = fleet.snapshot()
            done = fleet.sweep(state, WHOLE, step, RANDOM)
            rows = fleet.batches.rows(step)
            others = np.delete(np.arange(N), rows)
            np.testing.assert_array_equal(fleet.chain[others], before[others])
            assert (fleet.chain[rows] != before[rows]).any()
            assert done.n_rows == 200
            assert done.evaluations == 200 * K
            assert done.statistics.total_weight == 200.0

    def test_the_chain_is_the_callers(self, state, X, chain):
        fleet = fleet_of(state.backend, X, chain)
        assert fleet.chain is chain
        fleet.sweep(state, WHOLE, 1, RANDOM)
        assert fleet.chain is chain

    def test_draws_follow_the_posterior(self, state, X, chain, log_joint):
        """Mean and variance of how many rows end on each component, over 60 sweeps."""
        fleet = fleet_of(state.backend, X, chain)
        posterior = np.exp(log_joint - log_sum(log_joint)[:, None])
        counts = np.zeros(K)
        for number in range(60):
            fleet.sweep(state, WHOLE, 1, RANDOM.child(number), wants_statistics=False)
            counts += np.bincount(fleet.chain, minlength=K)
        deviation = np.sqrt(60 * (posterior * (1 - posterior)).sum(axis=0))
        assert (np.abs(counts - 60 * posterior.sum(axis=0)) < 4.5 * deviation).all()

    def test_streams_and_children_draw_anew(self, state, X, chain):
        ends = []
        for settings in (
            {},
            {"stream": Stream.RELOCATION},
            {"random": RANDOM.child(1)},
            {"beta": 0.3},
        ):
            fleet = fleet_of(state.backend, X, chain.copy())
            random = settings.pop("random", RANDOM)
            fleet.sweep(state, WHOLE, 1, random, **settings)
            ends.append(fleet.chain)
        for i in range(4):
            for j in range(i):
                assert (ends[i] != ends[j]).any()

    def test_no_statistics_unless_they_are_wanted(self, state, X, chain):
        fleet = fleet_of(state.backend, X, chain)
        assert fleet.sweep(state, WHOLE, 1, RANDOM, wants_statistics=False).statistics is None


class TestDetour:
    def test_without_a_way_back_chains_stay(self, state, X, chain, log_joint):
        weights = np.random.default_rng(3).uniform(0.5, 2.0, N)
        fleet = fleet_of(state.backend, X, chain, weights)
        # The center is the weighted mean of the rows; the state's is the plain one.
        fleet.source.center = X.mean(axis=0)
        before = chain.copy()
        into = np.arange(K, dtype=np.int32)
        into[[2, 5]] = -1
        some = Partition.of_blocks(np.array([4, 1, 0, 3]), 2)
        done = fleet.sweep(state, some, 1, RANDOM, detour=Detour(into))
        np.testing.assert_array_equal(fleet.chain, before)
        # Rows on the components left out take no part, but count to the total weight.
        part = ~np.isin(before, [2, 5])
        assert done.n_rows == part.sum()
        assert done.evaluations == 2 * part.sum()
        assert done.statistics.total_weight == pytest.approx(weights.sum())
        assert done.statistics.mass.sum() == pytest.approx(weights[part].sum(), rel=1e-5)
        sums = log_sum(np.take_along_axis(log_joint, np.stack([before, PARTNER[before]], 1), 1))
        for block, pair in enumerate([(4, 1), (0, 3)]):
            own = np.isin(before, pair)
            assert done.block_weights[block] == pytest.approx(weights[own].sum())
            assert done.block_sums[block] == pytest.approx(weights[own] @ sums[own], rel=1e-5)

    def test_a_way_back_renames_where_rows_end(self, state, X, chain, log_joint):
        """A mixture of two of the components, which stand in another order there."""
        pair = np.array([5, 2])
        other = state.with_components(state.moments_at(pair), pair)
        fleet = fleet_of(state.backend, X, chain)
        before = chain.copy()
        into = np.full(K, -1, dtype=np.int32)
        into[[2, 3]] = 0
        back = pair.astype(np.int32)
        whole = Partition.of_blocks(np.arange(2), 2)
        fleet.sweep(other, whole, 1, RANDOM, detour=Detour(into, back))
        moved = np.isin(before, [2, 3])
        np.testing.assert_array_equal(fleet.chain[~moved], before[~moved])
        assert set(fleet.chain[moved].tolist()) == {2, 5}
        posterior = 1.0 / (1.0 + np.exp(log_joint[:, 2] - log_joint[:, 5])[moved])
        deviation = np.sqrt(np.sum(posterior * (1.0 - posterior)))
        found = np.count_nonzero(fleet.chain[moved] == 5)
        assert abs(found - posterior.sum()) < 4.0 * deviation


class TestRename:
    def test_every_chain_goes_along(self, state, X, chain):
        fleet = fleet_of(state.backend, X, chain, batch_size=100)
        becomes = np.array([3, 3, 0, 1, 5, 5], dtype=np.int32)
        before = chain.copy()
        fleet.rename(becomes)
        np.testing.assert_array_equal(fleet.chain, becomes[before])


class TestFocus:
    def test_a_focused_fleet_holds_the_rows_of_a_step(self, state, X, chain):
        weights = np.random.default_rng(3).uniform(0.5, 2.0, N)
        fleet = fleet_of(state.backend, X, chain, weights, batch_size=150)
        focused = fleet.focus(2)
        rows = fleet.batches.rows(2)
        assert focused.n_rows == rows.size == 150
        # What rows weigh on average is a matter of all rows.
        assert focused.mean_weight == fleet.mean_weight == pytest.approx(weights.mean())
        # Component by component, so that blocks lie together.
        assert (np.diff(focused.chain) >= 0).all()
        found = np.sort(focused.source.gather(np.arange(150)), axis=0)
        np.testing.assert_array_equal(found, np.sort(fleet.source.gather(rows), axis=0))

    def test_what_it_sums_up_is_what_the_fleet_does(self, state, X, chain):
        fleet = fleet_of(state.backend, X, chain, batch_size=150)
        focused = fleet.focus(2)
        identity = Detour(np.arange(K, dtype=np.int32))
        one = fleet.sweep(state, PAIRS, 2, RANDOM, detour=identity)
        other = focused.sweep(state, PAIRS, 1, RANDOM, detour=identity)
        np.testing.assert_allclose(one.block_sums, other.block_sums, rtol=1e-6)
        np.testing.assert_allclose(one.statistics.mass, other.statistics.mass, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(one.statistics.mean, other.statistics.mean, rtol=1e-4, atol=1e-4)

    def test_states_come_back_by_adoption_alone(self, state, X, chain):
        fleet = fleet_of(state.backend, X, chain, batch_size=150)
        before = chain.copy()
        focused = fleet.focus(2)
        focused.sweep(state, WHOLE, 1, RANDOM)
        np.testing.assert_array_equal(fleet.chain, before)
        fleet.adopt(focused)
        rows = fleet.batches.rows(2)
        others = np.delete(np.arange(N), rows)
        np.testing.assert_array_equal(fleet.chain[others], before[others])
        # Each row has its own state: it stands near its component.
        where = state.model.location[fleet.chain[rows]]
        distance = np.linalg.norm(fleet.source.gather(rows) - where, axis=1)
        # Half of two squared deviations: 1 - exp(-r^2 / 2) of rows are within r.
        assert (distance < 3.0).mean() > 0.95
        assert np.bincount(fleet.chain[rows]).sum() == np.bincount(focused.chain).sum()


class TestThinning:
    def test_some_of_each_group_stand_for_all(self):
        rng = np.random.default_rng(0)
        for _ in range(50):
            most = int(rng.integers(1, 9))
            groups = np.sort(rng.integers(0, 12, rng.integers(1, 200)))
            used, share = thinned(groups, most)
            counts, kept = np.bincount(groups), np.bincount(groups[used])
            assert (np.diff(used) > 0).all()
            assert kept.max() <= most
            np.testing.assert_array_equal(kept > 0, counts > 0)
            # No fewer than half of what is allowed; small groups are kept whole.
            assert (kept >= np.minimum(counts, most) / 2).all()
            np.testing.assert_allclose(np.bincount(groups[used], share), counts)
            assert (share[counts[groups[used]] <= most] == 1.0).all()

    def test_a_thinned_fleet_weighs_what_all_rows_do(self, state, X, chain):
        fleet = fleet_of(state.backend, X, chain, batch_size=300)
        fewer = fleet.focus(2, most=20)
        rows = fleet.batches.rows(2)
        counts = np.bincount(chain[rows], minlength=K)
        assert counts.min() > 20
        assert np.bincount(fewer.chain).max() <= 20
        weights = fewer.source.weights_of(np.arange(fewer.n_rows))[0]
        np.testing.assert_allclose(np.bincount(fewer.chain, weights), counts)
        assert fewer.mean_weight == fleet.mean_weight
        # Statistics are in units of all rows of the step.
        identity = Detour(np.arange(K, dtype=np.int32))
        done = fewer.sweep(state, PAIRS, 1, RANDOM, detour=identity)
        assert done.statistics.total_weight == pytest.approx(300.0)
        assert done.block_weights.sum() == pytest.approx(300.0)

    def test_weights_of_rows_are_kept_in_proportion(self, state, X, chain):
        weights = np.random.default_rng(3).uniform(0.5, 2.0, N)
        fewer = fleet_of(state.backend, X, chain, weights).focus(1, most=10)
        own = fewer.source.weights_of(np.arange(fewer.n_rows))[0]
        share = own / weights[fewer._numbers]
        counts = np.bincount(chain)
        for k in range(K):
            here = share[fewer.chain == k]
            np.testing.assert_allclose(here, counts[k] / here.shape[0])


class TestSome:
    def test_some_rows_are_a_fleet_of_their_own(self, state, X, chain):
        weights = np.random.default_rng(3).uniform(0.5, 2.0, N)
        fleet = fleet_of(state.backend, X, chain, weights, batch_size=100)
        some = fleet.some(150, 7)
        assert some.n_rows == 150
        assert some.batches.n_batches == 1
        assert some.mean_weight == fleet.mean_weight
        numbers = np.arange(150)
        sampled = fleet.source.gather(sample_numbers(N, 150, 7))
        np.testing.assert_array_equal(some.source.gather(numbers), sampled)
        # Each row comes with its weight and its chain.
        inside = {tuple(row): n for n, row in enumerate(fleet.source.gather(np.arange(N)))}
        which = np.array([inside[tuple(row)] for row in some.source.gather(numbers)])
        np.testing.assert_array_equal(some.source.weights_of(numbers)[0], weights[which])
        np.testing.assert_array_equal(some.chain, chain[which])
        before = chain.copy()
        some.chain[:] = 5
        np.testing.assert_array_equal(fleet.chain, before)
        fleet.adopt(some)
        assert (fleet.chain[which] == 5).all()
        others = np.delete(np.arange(N), which)
        np.testing.assert_array_equal(fleet.chain[others], before[others])
        assert fleet.some(10 * N, 7).n_rows == N


class TestSnapshots:
    def test_restored_chains_are_those_of_then(self, state, X, chain):
        fleet = fleet_of(state.backend, X, chain)
        kept = fleet.snapshot()
        fleet.sweep(state, WHOLE, 1, RANDOM)
        assert (fleet.chain != kept).any()
        fleet.restore(kept)
        np.testing.assert_array_equal(fleet.chain, kept)
        fleet.sweep(state, WHOLE, 1, RANDOM)
        # Neither the snapshot nor a restored chain is the other's memory.
        assert (fleet.chain != kept).any()
        assert fleet.chain is chain


class TestSample:
    def test_rows_are_distinct_and_the_seeds(self):
        numbers = sample_numbers(N, 100, 7)
        assert numbers.shape == (100,)
        assert (np.diff(numbers) > 0).all()
        assert numbers[0] >= 0
        assert numbers[-1] < N
        np.testing.assert_array_equal(numbers, sample_numbers(N, 100, 7))
        assert (numbers != sample_numbers(N, 100, 8)).any()
        np.testing.assert_array_equal(sample_numbers(N, N, 1), np.arange(N))
        np.testing.assert_array_equal(sample_numbers(N, 10 * N, 1), np.arange(N))

    def test_every_row_is_as_likely(self):
        counts = np.zeros(20)
        for seed in range(400):
            counts[sample_numbers(20, 5, seed)] += 1
        # Without repetition counts vary less than multinomially, by 15 / 19.
        statistic = np.sum(np.square(counts - 100.0)) / 100.0 * 19.0 / 15.0
        assert stats.chi2.sf(statistic, 19) > 1e-4

"""Sweeps through blocks against the dense answer: in NumPy, float32, own frames and float64."""

import numpy as np
import pytest
from dense_posteriors import (
    BACKENDS,
    EVERYONE,
    KEY,
    LOG_SUMS,
    SUMS,
    K,
    N,
    assert_sums,
    both_backends,
    by_component,
    every_covariance,
    make,
)

from pickmix.families.layout import LOG_FLOOR
from pickmix.kernels import numba_kernels
from pickmix.kernels.numba_kernels import blocks
from pickmix.kernels.numba_kernels import sweeps as compiled
from pickmix.selection.partitions import Partition
from pickmix.selection.randomness import uniforms
from pickmix.threads import use_threads


@pytest.mark.parametrize("beta", [1.0, 0.4])
@every_covariance
@both_backends
def test_blocks_sum_up_what_dense_algebra_does(backend, name, beta):
    problem = make(name)
    posterior, log_sums = problem.posterior(beta)
    done = problem.sweep(BACKENDS[backend], beta=beta)
    np.testing.assert_allclose(done.log_sums, log_sums, atol=LOG_SUMS[backend])
    # Single rows lose digits in float32, and hardly any on average.
    assert np.abs(done.log_sums - log_sums).mean() < 1e-4
    assert_sums(problem, posterior, done.statistics, SUMS[backend])


@pytest.mark.parametrize("beta", [1.0, 0.4])
@pytest.mark.parametrize("width", [1e-3, 1e-7])
@every_covariance
@both_backends
def test_narrow_components_of_wide_blocks(backend, name, width, beta):
    # A thousandth of the block's width needs the own frame, a ten millionth float64.
    problem = make(name, width)
    posterior, log_sums = problem.posterior(beta)
    done = problem.sweep(BACKENDS[backend], beta=beta)
    np.testing.assert_allclose(done.log_sums, log_sums, atol=0.02)
    assert_sums(problem, posterior, done.statistics, 2e-3)


@both_backends
@pytest.mark.parametrize("width", [0.15, 1e-3, 1e-7])
def test_decay_and_floor_reach_the_sweep(backend, width):
    """Forgetting lowers all weights but those that the floor holds up."""
    problem = make("full", width)
    step_size, floor = 0.99, 2e-4
    decayed = 0.01 * problem.weights
    assert 0 < np.count_nonzero(decayed < floor) < K
    problem.weights = np.maximum(decayed, floor)
    problem.state.decay(step_size)
    problem.state.model.decay[LOG_FLOOR] = np.log(floor)
    posterior, log_sums = problem.posterior()
    done = problem.sweep(BACKENDS[backend])
    np.testing.assert_allclose(done.log_sums, log_sums, atol=0.02)
    assert_sums(problem, posterior, done.statistics, 2e-3)


@both_backends
def test_an_outlier_spoils_nothing(backend):
    problem = make("full")
    problem.source.data[17] = 1e17
    posterior, log_sums = problem.posterior()
    done = problem.sweep(BACKENDS[backend])
    np.testing.assert_allclose(done.log_sums, log_sums, rtol=1e-9, atol=2e-3)
    others = np.flatnonzero(posterior[:, 17] == 0.0)
    assert others.size > K // 2
    mass = by_component(done.statistics)[0]
    expected = posterior[others].sum(axis=1)
    np.testing.assert_allclose(mass[others], expected, rtol=1e-4, atol=1e-4)


@both_backends
def test_repeated_rows_have_no_scatter(backend):
    problem = make("full", width=0.3)
    problem.source.data[:] = problem.source.data[0]
    done = problem.sweep(BACKENDS[backend], chain=np.zeros_like(problem.chain))
    found = done.statistics
    assert found.scatter[found.mass > 1.0].max() < 1e-20


def test_few_rows_keep_their_digits():
    """Sums that lost digits are made again from weights that were kept, over several tiles."""
    problem = make("diag", width=0.05, weights=np.random.default_rng(1).random(N) + 0.5)
    chain = np.repeat(np.arange(K, dtype=np.int32), 12)
    numbers, means = np.arange(chain.size), problem.state.moments.mean + problem.source.center
    noise = 0.01 * np.random.default_rng(0).standard_normal((chain.size, means.shape[1]))
    noise[:, 0] *= 0.03
    problem.source.data[numbers] = means[chain] + noise
    exact, found = (
        by_component(problem.sweep(backend, chain, numbers).statistics)
        for backend in BACKENDS.values()
    )
    own = exact[0] > 6.0
    assert own.sum() > K // 2
    np.testing.assert_allclose(found[0], exact[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[2][own], exact[2][own], rtol=0.01)


@both_backends
def test_draws_pass_through_the_posterior(backend):
    """A row moves to the component at which the running sum of weights passes its uniform."""
    problem = make("full")
    posterior, _ = problem.posterior()
    done = problem.sweep(BACKENDS[backend])
    running = np.cumsum(posterior[problem.partition.members], axis=0)
    # Other blocks have no weight: the running sum over all members is that of the own block.
    place = (running <= uniforms(KEY, EVERYONE, 1)[:, 0]).sum(axis=0)
    # A uniform within rounding of a border may fall on its other side.
    assert (done.components == problem.partition.members[place]).mean() > 0.999
    sizes = np.diff(problem.partition.offsets)
    assert done.evaluations == sizes[problem.block_of()[problem.chain]].sum()


@both_backends
def test_greedy_takes_the_best_of_the_block(backend):
    problem = make("full")
    posterior, _ = problem.posterior()
    done = problem.sweep(BACKENDS[backend], wants_statistics=False, greedy=True)
    best = np.sort(posterior, axis=0)
    clear = best[-1] - best[-2] > 1e-4
    assert clear.mean() > 0.99
    np.testing.assert_array_equal(done.components[clear], posterior.argmax(axis=0)[clear])
    assert done.statistics is None


@both_backends
def test_a_sweep_changes_nothing_but_what_it_returns(backend):
    problem = make("full")
    before = [array.copy() for array in (*problem.state.model, *problem.state.moments)]
    chain = problem.chain.copy()
    problem.sweep(BACKENDS[backend])
    for now, then in zip((*problem.state.model, *problem.state.moments), before, strict=True):
        np.testing.assert_array_equal(now, then)
    np.testing.assert_array_equal(problem.chain, chain)


@both_backends
def test_a_row_draws_alike_in_any_batch(backend):
    problem = make("full")
    engine = BACKENDS[backend]
    everyone = problem.sweep(engine)
    some = np.random.default_rng(0).permutation(N)[:701]
    part = problem.sweep(engine, numbers=some)
    # Float32 may round the reach of a block otherwise.
    assert (part.components == everyone.components[some]).mean() > 0.998
    np.testing.assert_allclose(part.log_sums, everyone.log_sums[some], atol=LOG_SUMS[backend])
    assert part.statistics.total_weight == 701.0
    assert part.statistics.mass.sum() == pytest.approx(701.0, rel=1e-5)


@both_backends
def test_blocks_without_rows_have_no_mass(backend):
    problem = make("diag")
    done = problem.sweep(BACKENDS[backend], chain=np.full_like(problem.chain, 5))
    own = problem.block_of() == problem.block_of()[5]
    mass, mean, scatter = by_component(done.statistics)
    assert mass[own].sum() == pytest.approx(N, rel=1e-5)
    assert (mass[~own] == 0.0).all()
    assert (mean[~own] == 0.0).all()
    assert (scatter[~own] == 0.0).all()
    assert own[done.components].all()


@pytest.mark.parametrize("weighted", [False, True])
def test_threads_change_nothing(weighted, monkeypatch):
    monkeypatch.setattr("pickmix.threads.MINIMUM_WORK", 1)
    monkeypatch.setattr(compiled, "_LEAST_GATHERED", 64)
    monkeypatch.setattr(compiled, "_PIECE_ROWS", 100)
    problem = make("full", weights=np.random.default_rng(0).random(N) + 0.5 if weighted else None)
    results = []
    for n_threads in (1, 3):
        with use_threads(n_threads):
            done = problem.sweep(numba_kernels)
        results.append((done.components, done.log_sums, *vars(done.statistics).values()))
    for alone, together in zip(*results, strict=True):
        np.testing.assert_array_equal(alone, together)


@both_backends
def test_row_weights_count(backend):
    problem = make("diag", weights=np.random.default_rng(0).random(N) + 0.5)
    posterior, _ = problem.posterior()
    done = problem.sweep(BACKENDS[backend])
    assert_sums(problem, posterior, done.statistics, SUMS[backend])


@pytest.mark.parametrize("gathered_rows", [50, 256, 10**6])
def test_blocks_with_many_rows_are_cut(gathered_rows, monkeypatch):
    problem = make("full")
    engine = BACKENDS["compiled"]
    whole = problem.sweep(engine)
    sweeps = []
    monkeypatch.setattr(compiled, "_PIECE_ROWS", 100)
    monkeypatch.setattr(compiled, "_MOST_GATHERED", gathered_rows)
    monkeypatch.setattr(compiled, "_LEAST_GATHERED", gathered_rows)
    monkeypatch.setattr(
        compiled, "sweep_blocks", lambda *a: sweeps.append(a[2].shape[0]) or blocks.sweep_blocks(*a)
    )
    cut = problem.sweep(engine)
    # Chunks hold whole pieces, so they may pass the wish by one.
    assert sum(sweeps) == N
    assert max(sweeps) <= gathered_rows + 200
    np.testing.assert_array_equal(cut.components, whole.components)
    np.testing.assert_allclose(cut.log_sums, whole.log_sums, atol=1e-5)
    assert cut.evaluations == whole.evaluations
    assert_sums(problem, problem.posterior()[0], cut.statistics, SUMS["compiled"])


@both_backends
def test_some_components_may_stand_apart(backend):
    """A partition of some components sweeps the rows that stand on them."""
    problem = make("full")
    some = np.array([7, 3, 31, 12, 5], dtype=np.int32)
    rows = np.flatnonzero(np.isin(problem.chain, some))
    partition = Partition.of_blocks(some, 2)
    done = problem.sweep(BACKENDS[backend], numbers=rows, partition=partition)
    np.testing.assert_array_equal(done.statistics.members, some)
    assert done.statistics.mass.sum() == pytest.approx(rows.size, rel=1e-5)
    partner = dict([(7, {7, 3}), (3, {7, 3}), (31, {31, 12}), (12, {31, 12}), (5, {5})])
    for before, after in zip(problem.chain[rows], done.components, strict=True):
        assert int(after) in partner[int(before)]
    # Alone, a component has all weight of its rows.
    own = problem.source.gather(rows[problem.chain[rows] == 5])
    np.testing.assert_allclose(done.statistics.mean[4], own.mean(axis=0), atol=1e-5)

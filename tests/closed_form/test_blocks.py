"""Sweeps through blocks against the dense answer, in float32, in own frames and in float64."""

import numpy as np
import pytest

from pickmix.closed_form import partition_gibbs
from pickmix.closed_form.engine import BatchEvaluator
from pickmix.closed_form.mixture import GaussianMixtureState
from pickmix.closed_form.partition_gibbs import sweep
from pickmix.closed_form.structures import STRUCTURES
from pickmix.data.rows import ArrayRows
from pickmix.selection.partitions import draw_partition
from pickmix.selection.randomness import StepRandomness, Stream
from pickmix.selection.rules import PartitionGibbs, RandomPartition
from pickmix.threads import Threads

N, K, D, G = 3000, 40, 4, 8
RANDOM = StepRandomness(3, 7)
KEY = RANDOM.key(Stream.POSTERIOR)


@pytest.fixture
def in_float32(monkeypatch):
    """Small problems are computed in float64 otherwise."""
    monkeypatch.setattr(partition_gibbs, "_SMALL_PROBLEM", 0)


def make(name, width=0.15, seed=0, n_threads=1, weights=None):
    rng = np.random.default_rng(seed)
    structure = STRUCTURES[name](D)
    means = rng.random((K, D))
    factors = width * rng.normal(size=(K, D, D + 2)) / np.sqrt(D + 2.0)
    covariances = factors @ factors.transpose(0, 2, 1) + 1e-3 * width**2 * np.eye(D)
    packed = structure.pack_matrices(covariances)
    if structure.shared:
        packed = packed.mean(axis=0, keepdims=True)
    chosen = rng.integers(K, size=N)
    noise = rng.normal(size=(N, D + 2))
    rows = means[chosen] + np.einsum("nij,nj->ni", factors[chosen], noise)
    source = ArrayRows(rows, weights)
    state = GaussianMixtureState(
        structure,
        rng.dirichlet(np.full(K, 3.0)),
        means - source.center,
        packed,
        reg_covar=0.0,
        threads=Threads(n_threads),
    )
    partition = draw_partition(state.model.mean, G, 0.1, RANDOM, Threads())
    return state, source, partition, chosen.astype(np.int32)


def dense(state, source, partition, chain, beta=1.0):
    """Block posteriors (K, N), zero outside the blocks, and the logarithms of their sums (N,)."""
    log_joint = beta * BatchEvaluator(state, source.gather(np.arange(N))).log_joint_all()
    block = np.empty(K, dtype=int)
    block[partition.members] = partition.block_of_position()
    log_joint[block[:, None] != block[chain][None]] = -np.inf
    largest = log_joint.max(axis=0)
    weights = np.exp(log_joint - largest)
    total = weights.sum(axis=0)
    return weights / total, largest + np.log(total)


def moments_of(done, size):
    """Mass (K,), mean and scatter of each component, pieces of blocks put together."""
    mass, mean, scatter = np.zeros(K), np.zeros((K, D)), np.zeros((K, size))
    for place, k in enumerate(done.members):
        assert mass[k] == 0.0, "one piece per block in these tests"
        mass[k], mean[k], scatter[k] = (
            done.moments[0][place],
            done.moments[2][place],
            done.moments[3][place],
        )
    return mass, mean, scatter


def assert_sums_are_those_of(weights, state, source, done, tolerance):
    rows = source.gather(np.arange(N))
    mass, mean, scatter = moments_of(done, state.structure.packed_size)
    weighted = weights * source.weights_of(np.arange(N))[0]
    expected_mass = weighted.sum(axis=1)
    np.testing.assert_allclose(mass, expected_mass, rtol=tolerance, atol=tolerance)
    for k in np.flatnonzero(expected_mass > 1e-3):
        expected_mean = weighted[k] @ rows / expected_mass[k]
        offsets = rows - expected_mean
        expected = (weighted[k][:, None] * offsets).T @ offsets
        packed = state.structure.pack_matrices(expected[None])[0]
        scale = np.sqrt(np.abs(packed).max() / expected_mass[k])
        np.testing.assert_allclose(mean[k], expected_mean, atol=10 * tolerance * scale)
        np.testing.assert_allclose(scatter[k], packed, atol=10 * tolerance * np.abs(packed).max())


@pytest.mark.parametrize("beta", [1.0, 0.4])
@pytest.mark.parametrize("name", STRUCTURES)
def test_float32_sums_up_what_dense_float64_does(name, beta, in_float32):
    state, source, partition, chain = make(name)
    weights, log_sums = dense(state, source, partition, chain, beta)
    done = sweep(state, source, chain.copy(), np.arange(N), partition, KEY, beta)
    np.testing.assert_allclose(done.log_sums, log_sums[done.rows], atol=2e-3)
    assert np.abs(done.log_sums - log_sums[done.rows]).mean() < 1e-4
    assert_sums_are_those_of(weights, state, source, done, 1e-4)


@pytest.mark.parametrize("name", STRUCTURES)
def test_float64_sums_up_what_dense_float64_does(name):
    state, source, partition, chain = make(name)
    weights, log_sums = dense(state, source, partition, chain)
    done = sweep(state, source, chain.copy(), np.arange(N), partition, KEY)
    np.testing.assert_allclose(done.log_sums, log_sums[done.rows], atol=1e-9)
    assert_sums_are_those_of(weights, state, source, done, 1e-9)


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("width", [1e-3, 1e-7])
def test_narrow_components_of_wide_blocks(name, width, in_float32):
    # A thousandth of the block's width needs the own frame, a ten millionth float64.
    state, source, partition, chain = make(name, width)
    weights, log_sums = dense(state, source, partition, chain)
    done = sweep(state, source, chain.copy(), np.arange(N), partition, KEY)
    np.testing.assert_allclose(done.log_sums, log_sums[done.rows], atol=0.02)
    assert_sums_are_those_of(weights, state, source, done, 2e-3)


def test_an_outlier_spoils_nothing(in_float32):
    state, source, partition, chain = make("full")
    source.data[17] = 1e17
    weights, log_sums = dense(state, source, partition, chain)
    done = sweep(state, source, chain.copy(), np.arange(N), partition, KEY)
    np.testing.assert_allclose(done.log_sums, log_sums[done.rows], rtol=1e-9, atol=2e-3)
    others = np.flatnonzero(weights[:, 17] == 0.0)
    mass = moments_of(done, 10)[0]
    np.testing.assert_allclose(mass[others], weights[others].sum(axis=1), rtol=1e-4, atol=1e-4)


def test_repeated_rows_have_no_scatter(in_float32):
    state, source, partition, chain = make("full", width=0.3)
    source.data[:] = source.data[0]
    done = sweep(state, source, np.zeros_like(chain), np.arange(N), partition, KEY)
    assert done.moments[3][done.moments[0] > 1.0].max() < 1e-20


def test_the_fused_sweep_is_the_rule(in_float32):
    state, source, partition, chain = make("full")
    rule = PartitionGibbs(RandomPartition(block_size=G))
    rule.start(chain.copy(), K)
    rule.partition = partition
    evaluate = BatchEvaluator(state, source.gather(np.arange(N)))
    selection = rule.select(evaluate, np.arange(N), 1.0, 1.0, RANDOM)
    moved = chain.copy()
    done = sweep(state, source, moved, np.arange(N), partition, KEY)
    assert done.evaluations == selection.evaluations
    # A uniform within rounding of a border may fall on its other side.
    assert (moved == rule.chain).mean() > 0.999


def test_greedy_takes_the_best_of_the_block():
    state, source, partition, chain = make("full")
    weights, _ = dense(state, source, partition, chain)
    done = sweep(
        state, source, chain, np.arange(N), partition, KEY, wants_moments=False, greedy=True
    )
    np.testing.assert_array_equal(chain, weights.argmax(axis=0))
    assert done.moments[0].shape == (0,)


@pytest.mark.parametrize("weighted", [False, True])
def test_threads_change_nothing(weighted, monkeypatch, in_float32):
    monkeypatch.setattr("pickmix.threads.MINIMUM_WORK", 1)
    monkeypatch.setattr(partition_gibbs, "_GATHERED_ROWS", 256)
    weights = np.random.default_rng(0).random(N) + 0.5 if weighted else None
    results = []
    for n_threads in (1, 3):
        state, source, partition, chain = make("full", n_threads=n_threads, weights=weights)
        done = sweep(state, source, chain, np.arange(N), partition, KEY)
        results.append((chain, done.log_sums, *done.moments))
        state.threads.close()
    for alone, together in zip(*results, strict=True):
        np.testing.assert_array_equal(alone, together)


def test_row_weights_count(in_float32):
    weights = np.random.default_rng(0).random(N) + 0.5
    state, source, partition, chain = make("diag", weights=weights)
    posterior, _ = dense(state, source, partition, chain)
    done = sweep(state, source, chain.copy(), np.arange(N), partition, KEY)
    assert_sums_are_those_of(posterior, state, source, done, 1e-4)


def test_blocks_with_many_rows_are_cut(monkeypatch):
    state, source, partition, chain = make("full")
    whole = sweep(state, source, chain.copy(), np.arange(N), partition, KEY)
    monkeypatch.setattr(partition_gibbs, "_PIECE_ROWS", 100)
    cut = sweep(state, source, chain.copy(), np.arange(N), partition, KEY)
    assert cut.members.shape[0] > whole.members.shape[0]
    np.testing.assert_array_equal(cut.log_sums, whole.log_sums)
    totals = np.zeros((2, K))
    for row, done in enumerate((whole, cut)):
        np.add.at(totals[row], done.members, done.moments[0])
    np.testing.assert_allclose(totals[0], totals[1], rtol=1e-12)
    assert cut.evaluations == whole.evaluations
    np.testing.assert_allclose(cut.block_totals(source), whole.block_totals(source))


def test_rows_that_stand_nowhere_are_led_to_a_block():
    state, source, partition, _ = make("full")
    chain = np.full(N, -1, dtype=np.int32)
    sweep(state, source, chain, np.arange(N), partition, KEY)
    leaves = partition.tree.leaf_of(source.gather(np.arange(N)), Threads())
    block = np.empty(K, dtype=int)
    block[partition.members] = partition.block_of_position()
    np.testing.assert_array_equal(block[chain], leaves)


def test_other_rows_stay_where_they_stand():
    state, source, partition, chain = make("full")
    before = chain.copy()
    sweep(state, source, chain, np.arange(0, N, 3), partition, KEY)
    others = np.delete(np.arange(N), np.arange(0, N, 3))
    np.testing.assert_array_equal(chain[others], before[others])

"""NumPy and the compiled kernels compute the same."""

import copy
import itertools

import numpy as np
import pytest

from pickmix.selection.arrays import ArrayOperations
from pickmix.selection.compiled_operations import CompiledOperations
from pickmix.selection.randomness import StepRandomness, Stream
from pickmix.threads import Threads

K, B = 11, 4000
KEY = StepRandomness(5, 3).key(Stream.POSTERIOR)
# Row numbers are not places in the batch.
ROWS = np.random.default_rng(4).permutation(10 * B)[:B]
ARRAYS = ArrayOperations()
COMPILED = CompiledOperations(Threads())
BETAS = [1.0, 0.4, 1.6]


def log_joints(shape, seed=0):
    """Some are -inf."""
    rng = np.random.default_rng(seed)
    values = 3.0 * rng.normal(size=shape)
    values[rng.random(shape) < 0.1] = -np.inf
    return values


def all_log_joints():
    """As (K, B), with a row that nothing explains and one with NaN."""
    values = log_joints((K, B))
    values[:, 7] = -np.inf
    values[3, 8] = np.nan
    return values


def assert_equal_pairs(one, other):
    np.testing.assert_array_equal(one[0], other[0])
    np.testing.assert_allclose(one[1], other[1], rtol=1e-13)
    assert one[0].dtype == other[0].dtype == np.int32


@pytest.mark.parametrize("beta", BETAS)
def test_normalise_all(beta):
    weights = all_log_joints()
    likelihood = ARRAYS.normalise_all(weights, beta)
    powers = np.exp(beta * all_log_joints()[:, 9:])
    np.testing.assert_allclose(weights[:, 9:], powers / powers.sum(axis=0), rtol=1e-12)
    expected = np.log(np.exp(all_log_joints()[:, 9:]).sum(axis=0))
    np.testing.assert_allclose(likelihood[9:], expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(likelihood, ARRAYS.log_sum_exp(all_log_joints()), rtol=1e-13)
    assert np.isnan(likelihood[7:9]).all()


@pytest.mark.parametrize("n_kept", [1, 3, K, K + 2])
@pytest.mark.parametrize("beta", BETAS)
def test_top_of_all(beta, n_kept):
    log_joint = all_log_joints()
    log_joint[2] = log_joint[4]  # Ties: the first comes first.
    one, other = (o.top_of_all(log_joint, beta, n_kept) for o in (ARRAYS, COMPILED))
    assert_equal_pairs(one, other)
    assert (one[0][7] == -1).all()


@pytest.mark.parametrize("n_kept", [1, 3, 7])
@pytest.mark.parametrize("beta", BETAS)
def test_top_of_candidates(beta, n_kept):
    rng = np.random.default_rng(1)
    candidates = np.argsort(rng.random((B, K)), axis=1)[:, :5].astype(np.int32)
    candidates[rng.random(candidates.shape) < 0.3] = -1
    log_joint = log_joints(candidates.shape)
    one, other = (
        o.top_of_candidates(log_joint, candidates, beta, n_kept) for o in (ARRAYS, COMPILED)
    )
    assert_equal_pairs(one, other)
    assert (one[0][(candidates < 0).all(axis=1)] == -1).all()


@pytest.mark.parametrize("beta", BETAS)
def test_draw_from_posterior(beta):
    log_joint = all_log_joints()
    states = ARRAYS.draw_from_posterior(log_joint, beta, ROWS, KEY, 6)
    assert states.dtype == np.int32
    explained = np.delete(np.arange(B), [7, 8])
    assert (log_joint[states[explained], explained[:, None]] > -np.inf).all()
    ARRAYS.normalise_all(log_joint, beta)
    shares = [(states[explained] == k).mean() for k in range(K)]
    np.testing.assert_allclose(shares, log_joint[:, explained].mean(axis=1), atol=0.01)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("first_draw", [0, 3])
def test_accept_or_stay(first_draw, beta):
    n_draws = 4
    rng = np.random.default_rng(2)
    candidates = rng.integers(K, size=(B, n_draws)).astype(np.int32)
    results = []
    for operations in (ARRAYS, COMPILED):
        current = np.arange(B, dtype=np.int32) % K
        log_joint, log_joint_current = log_joints((B, n_draws)), log_joints(B, seed=3)
        log_q = np.sin(np.arange(B * n_draws)).reshape(B, n_draws)
        log_q_current = np.cos(np.arange(B))
        states, acceptance = np.empty((B, n_draws), dtype=np.int32), np.ones(B)
        operations.accept_or_stay(
            current,
            candidates,
            log_joint_current,
            log_joint,
            log_q_current,
            log_q,
            beta,
            ROWS,
            KEY,
            first_draw,
            states,
            acceptance,
        )
        results.append((states, current, log_joint_current, log_q_current, acceptance))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13)
    np.testing.assert_array_equal(states[:, -1], current)
    assert (states[:, 0] != np.arange(B) % K).mean() > 0.2


@pytest.mark.parametrize("n_draws", [1, 2, 5])
def test_count_states(n_draws):
    states = np.random.default_rng(3).integers(4, size=(B, n_draws)).astype(np.int32)
    acceptance = np.random.default_rng(4).random(B)
    one = ARRAYS.count_states(states, acceptance)
    assert one[0].dtype == np.int32
    assert one[2] == pytest.approx(acceptance.sum())
    for row, components, weights in zip(states[:50], *one[:2], strict=False):
        expected = {int(k): (row == k).sum() / n_draws for k in row}
        kept = components >= 0
        assert dict(zip(components[kept].tolist(), weights[kept], strict=True)) == pytest.approx(
            expected
        )


@pytest.mark.parametrize(("n", "leaf_size"), [(5, 8), (9, 8), (64, 8), (2000, 16), (777, 1)])
@pytest.mark.parametrize("n_features", [1, 3])
def test_trees(n, leaf_size, n_features):
    rng = np.random.default_rng(n)
    points, scales = rng.random((n, n_features)), rng.random(n_features) + 0.5
    (order, offsets, tree), (order2, offsets2, tree2) = (
        o.grow_tree(points, leaf_size, KEY, scales) for o in (ARRAYS, COMPILED)
    )
    np.testing.assert_array_equal(offsets, offsets2)
    for first, last in itertools.pairwise(offsets):
        np.testing.assert_array_equal(np.sort(order[first:last]), np.sort(order2[first:last]))
    assert (order.dtype, offsets.dtype) == (order2.dtype, offsets2.dtype) == (np.int32, np.int64)
    assert tree.root == tree2.root
    np.testing.assert_array_equal(tree.children, tree2.children)
    np.testing.assert_allclose(tree.directions, tree2.directions, rtol=1e-12)
    np.testing.assert_allclose(tree.thresholds, tree2.thresholds, rtol=1e-9)
    elsewhere = rng.random((500, n_features))
    leaves = [o.leaf_of(tree, elsewhere) for o in (ARRAYS, COMPILED)]
    np.testing.assert_array_equal(*leaves)
    assert leaves[0].dtype == leaves[1].dtype == np.int32


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_exchange(share):
    one = np.arange(500, dtype=np.int32)
    ARRAYS.exchange(one, share, KEY)
    np.testing.assert_array_equal(np.sort(one), np.arange(500))
    assert (one != np.arange(500)).mean() > 0.8 * share


def test_group_rows():
    rng = np.random.default_rng(0)
    components = rng.integers(5, size=B).astype(np.int32)
    position = np.array([3, 0, 5, 1, 2], dtype=np.int32)  # Nobody stands at place 4.
    one, other = (o.group_rows(components, position, 6) for o in (ARRAYS, COMPILED))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype == np.int64
    places = position[components]
    np.testing.assert_array_equal(one[0], np.argsort(places, kind="stable"))
    np.testing.assert_array_equal(one[1], np.cumsum(np.bincount(places, minlength=6)))


def test_compiled_operations_can_be_copied_while_their_threads_run():
    operations = CompiledOperations(Threads(2))
    operations.threads.run(lambda start, stop: None, 100, 1e9)
    assert operations.threads._pool is not None
    other = copy.deepcopy(operations)
    assert other.threads.n_threads == 2
    operations.threads.close()
    other.threads.close()

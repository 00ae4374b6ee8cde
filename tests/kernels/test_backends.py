"""The two backends have the same names and signatures, and compute the same."""

import inspect
import itertools

import numpy as np
import pytest
from dense_posteriors import KEY as SWEEP_KEY
from dense_posteriors import G, N, make

from pickmix.data.rows import PartialRows
from pickmix.kernels import numba_kernels, numpy_kernels
from pickmix.kernels.statistics import count_states, draw_from_posterior, log_sum_exp, normalise_all
from pickmix.selection.partitions import _exchange
from pickmix.selection.randomness import StepRandomness, Stream

K, B = 11, 4000
KEY = StepRandomness(5, 3).key(Stream.POSTERIOR)
# Row numbers are not places in the batch.
ROWS = np.random.default_rng(4).permutation(10 * B)[:B]
BOTH = (numpy_kernels, numba_kernels)
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


def signatures(backend):
    """Signatures of the functions and classes of a backend, and of methods, by name."""
    found = {}
    for name, value in vars(backend).items():
        if callable(value) and name[0] != "_":
            assert value.__doc__ or backend is numba_kernels
            found[name] = inspect.signature(value)
            methods = inspect.getmembers(value, inspect.isfunction)
            found |= {f"{name}.{m}": inspect.signature(f) for m, f in methods if m[0] != "_"}
    return found


def test_names_and_signatures():
    assert signatures(numpy_kernels) == signatures(numba_kernels)
    assert {"sweep", "blend", "Table", "Table.draw"} <= set(signatures(numpy_kernels))
    assert (numpy_kernels.COMPILED, numba_kernels.COMPILED) == (False, True)


def results_of(backend, problem, source, wants_gains=True):
    """What the functions on rows and components return, as a flat list of arrays."""
    state, numbers = problem.state, np.arange(N)
    layout, model, n_components = state.layout, state.model, state.n_components
    rows, candidates = source.gather(numbers), np.stack([problem.chain, problem.chain[::-1]], 1)
    candidates[::7, 1] = -1
    joint = backend.log_joint_all(layout, model, rows)
    weights = source.weights_of(numbers)[0]
    shares = np.exp(joint - joint.max(axis=0))
    shares /= shares.sum(axis=0)
    chosen = backend.pair_statistics(
        layout, n_components, rows, weights, candidates, np.ones((N, 2)), 2.0 * N, model
    )
    order = np.argsort(chosen.members)
    swept = backend.sweep(
        layout, model, source, numbers, problem.chain, problem.partition, SWEEP_KEY
    )
    moments = state.moments_at(np.arange(n_components))
    own = model._replace(log_mass=model.log_mass.copy())
    gains = backend.blend(layout, moments, own, chosen, 0.1 / N, wants_gains)
    results = [joint, backend.log_joint(layout, model, rows, candidates)]
    results += [array[order] for array in chosen.sums] + [np.asarray(gain) for gain in gains]
    results += [*backend.sums_of_all(layout, rows, weights, shares, model), *moments, own.log_mass]
    if np.isnan(rows).any():
        for some in (candidates, None):
            results += backend.condition_pairs(layout, model, rows, some)
    return results, swept


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("name", ["full", "diag", "tied"])
def test_rows_and_components(name, gaps):
    problem = make(name, weights=np.random.default_rng(0).random(N) + 0.5)
    source = problem.source
    if gaps:
        rows = source.gather(np.arange(N))
        rows[np.random.default_rng(1).random(rows.shape) < 0.2] = np.nan
        source = PartialRows(rows, source.weights, np.zeros(rows.shape[1]))
    (expected, swept), (found, swept_too) = (results_of(o, problem, source) for o in BOTH)
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-7, atol=1e-9)
    # Sweeps are in float32, if rows are complete.
    assert (swept.components == swept_too.components).mean() > 0.99
    np.testing.assert_allclose(swept_too.log_sums, swept.log_sums, atol=2e-3)
    assert swept.evaluations == swept_too.evaluations == G * N
    one, other = swept.statistics, swept_too.statistics
    one, other = (each.at(np.argsort(each.members)) for each in (one, other))
    np.testing.assert_array_equal(one.members, other.members)
    for expected, found in zip(one.sums[:2], other.sums[:2], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_nearest_in_regions():
    rng = np.random.default_rng(0)
    rows, centres = (rng.normal(size=(n, 3)).astype(np.float32) for n in (200, 30))
    offsets = np.array([0, 4, 17, 30])
    regions = np.argsort(rng.random((200, 3)), axis=1)[:, :2].astype(np.int32)
    one, other = (o.nearest_in_regions(rows, centres, offsets, regions, 20) for o in BOTH)
    np.testing.assert_array_equal(one, other)
    in_regions = [sum(np.diff(offsets)[r]) for r in regions]
    np.testing.assert_array_equal((one >= 0).sum(axis=1), np.minimum(in_regions, 20))
    away = np.where(one >= 0, np.linalg.norm(rows[:, None] - centres[one], axis=2), np.inf)
    assert (np.diff(np.where(one >= 0, away, 1e9), axis=1) >= 0.0).all()


@pytest.mark.parametrize("beta", BETAS)
def test_normalise_all(beta):
    weights = all_log_joints()
    likelihood = normalise_all(weights, beta)
    powers = np.exp(beta * all_log_joints()[:, 9:])
    np.testing.assert_allclose(weights[:, 9:], powers / powers.sum(axis=0), rtol=1e-12)
    expected = np.log(np.exp(all_log_joints()[:, 9:]).sum(axis=0))
    np.testing.assert_allclose(likelihood[9:], expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(likelihood, log_sum_exp(all_log_joints()), rtol=1e-13)
    assert np.isnan(likelihood[7:9]).all()


@pytest.mark.parametrize("n_kept", [1, 3, K, K + 2])
@pytest.mark.parametrize("beta", BETAS)
def test_top_of_all(beta, n_kept):
    log_joint = all_log_joints()
    log_joint[2] = log_joint[4]  # Ties: the first comes first.
    one, other = (o.top_components(log_joint.T, None, beta, n_kept) for o in BOTH)
    assert_equal_pairs(one, other)
    assert (one[0][7] == -1).all()


@pytest.mark.parametrize("n_kept", [1, 3, 7])
@pytest.mark.parametrize("beta", BETAS)
def test_top_components_of_candidates(beta, n_kept):
    rng = np.random.default_rng(1)
    candidates = np.argsort(rng.random((B, K)), axis=1)[:, :5].astype(np.int32)
    candidates[rng.random(candidates.shape) < 0.3] = -1
    log_joint = log_joints(candidates.shape)
    one, other = (o.top_components(log_joint, candidates, beta, n_kept) for o in BOTH)
    assert_equal_pairs(one, other)
    assert (one[0][(candidates < 0).all(axis=1)] == -1).all()


@pytest.mark.parametrize("beta", BETAS)
def test_draw_from_posterior(beta):
    log_joint = all_log_joints()
    states = draw_from_posterior(log_joint, beta, ROWS, KEY, 6)
    assert states.dtype == np.int32
    explained = np.delete(np.arange(B), [7, 8])
    assert (log_joint[states[explained], explained[:, None]] > -np.inf).all()
    normalise_all(log_joint, beta)
    shares = [(states[explained] == k).mean() for k in range(K)]
    np.testing.assert_allclose(shares, log_joint[:, explained].mean(axis=1), atol=0.01)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("first_draw", [0, 3])
def test_accept_or_stay(first_draw, beta):
    n_draws = 4
    rng = np.random.default_rng(2)
    candidates = rng.integers(K, size=(B, n_draws)).astype(np.int32)
    results = []
    for backend in BOTH:
        current = np.arange(B, dtype=np.int32) % K
        log_joint, log_joint_current = log_joints((B, n_draws)), log_joints(B, seed=3)
        log_q = np.sin(np.arange(B * n_draws)).reshape(B, n_draws)
        log_q_current = np.cos(np.arange(B))
        states, acceptance = np.empty((B, n_draws), dtype=np.int32), np.ones(B)
        backend.accept_or_stay(
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
    one = count_states(states, acceptance)
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
        o.grow_tree(points, leaf_size, KEY, scales) for o in BOTH
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
    leaves = [o.leaf_of(tree, elsewhere) for o in BOTH]
    np.testing.assert_array_equal(*leaves)
    assert leaves[0].dtype == leaves[1].dtype == np.int32


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_exchange(share):
    one = np.arange(500, dtype=np.int32)
    _exchange(one, share, KEY)
    np.testing.assert_array_equal(np.sort(one), np.arange(500))
    assert (one != np.arange(500)).mean() > 0.8 * share


def test_group_rows():
    rng = np.random.default_rng(0)
    components = rng.integers(5, size=B).astype(np.int32)
    position = np.array([3, 0, 5, 1, 2], dtype=np.int32)  # Nobody stands at place 4.
    one, other = (o.group_rows(components, position, 6) for o in BOTH)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype == np.int64
    places = position[components]
    np.testing.assert_array_equal(one[0], np.argsort(places, kind="stable"))
    np.testing.assert_array_equal(one[1], np.cumsum(np.bincount(places, minlength=6)))

"""Searches for rows without a chain, and mixtures that follow a stream."""

from itertools import pairwise

import numpy as np
import pytest
from known_states import BACKENDS, both_backends, every_covariance, state_of
from scipy import stats

from pickmix.closed_form.search import _led_down, draw_routes, search
from pickmix.closed_form.stream import OnlineMixture, automatic_gamma
from pickmix.data.rows import ArrayRows
from pickmix.selection.randomness import StepRandomness
from pickmix.selection.settings import RandomPartition

N, K, D = 800, 60, 3
# What float32 leaves of a log-sum.
DIGITS = {"reference": 1e-9, "compiled": 2e-3}


def problem(backend, name="full", seed=0):
    """A state, its rows, and log p(x, k) of all by SciPy, (N, K)."""
    rng = np.random.default_rng(seed)
    means, weights = 2.0 * rng.normal(size=(K, D)), rng.dirichlet(np.full(K, 3.0))
    variances = rng.uniform(0.05, 0.3, K)
    if name == "tied":
        variances[:] = 0.1
    labels = rng.integers(K, size=N)
    X = means[labels] + np.sqrt(variances[labels])[:, None] * rng.normal(size=(N, D))
    X[:20] *= 5.0
    covariances = variances[:, None, None] * np.eye(D)
    source = ArrayRows(X)
    state = state_of(name, weights, means - source.center, covariances, backend=backend)
    deviations = np.sqrt(variances)[:, None]
    log_joint = stats.norm.logpdf(X[:, None], means, deviations).sum(axis=2) + np.log(weights)
    return state, source, log_joint


@every_covariance
@both_backends
def test_one_block_is_exact(backend, name):
    state, source, log_joint = problem(backend, name)
    routes = draw_routes(state, 2, K, StepRandomness(0, 1))
    components, bounds, evaluations = search(state, source, routes, 1)
    exact = np.logaddexp.reduce(log_joint, axis=1)
    np.testing.assert_allclose(bounds, exact, rtol=1e-5, atol=DIGITS[backend])
    assert (components == log_joint.argmax(axis=1)).mean() > 0.998
    assert evaluations == 2 * N * K


@pytest.mark.parametrize("n_routes", [1, 3])
@pytest.mark.parametrize("block_size", [4, 16])
@both_backends
def test_bounds_are_lower_bounds(backend, block_size, n_routes):
    state, source, log_joint = problem(backend)
    exact = np.logaddexp.reduce(log_joint, axis=1)
    last = np.full(N, -np.inf)
    for n_climbs in (0, 1, 2):
        routes = draw_routes(state, n_routes + n_climbs, block_size, StepRandomness(0, 1))
        components, bounds, evaluations = search(state, source, routes, n_routes)
        assert (bounds <= exact + DIGITS[backend] + 1e-5 * np.abs(exact)).all()
        # The component that is reported is one that the bound has met.
        own = log_joint[np.arange(N), components]
        assert (own <= bounds + DIGITS[backend] + 1e-5 * np.abs(own)).all()
        # Whoever looks further finds no less.
        assert (bounds >= last).all()
        last = bounds
        assert evaluations <= (n_routes + n_climbs) * N * block_size
    # Most rows find what matters to them.
    assert (bounds > exact - 0.1).mean() > (0.5 if block_size == 4 else 0.85)


@both_backends
def test_climbs_never_go_down(backend):
    state, source, log_joint = problem(backend)
    height = []
    for n_climbs in (0, 1, 2, 3):
        routes = draw_routes(state, 1 + n_climbs, 8, StepRandomness(0, 2))
        components, _, _ = search(state, source, routes, 1)
        height.append(log_joint[np.arange(N), components])
    for lower, upper in pairwise(height):
        assert (upper >= lower - DIGITS[backend] - 1e-5 * np.abs(lower)).all()
    assert height[-1].mean() > height[0].mean()


def leaf_by_hand(tree, x):
    """Down the tree, to the second child where the direction points."""
    node = tree.root
    while node >= 0:
        node = tree.children[node, int(tree.directions[node] @ x >= tree.thresholds[node])]
    return -1 - node


@both_backends
def test_rows_that_stand_nowhere_are_led_to_a_block(backend):
    state, source, _ = problem(backend)
    (partition,) = draw_routes(state, 1, 8, StepRandomness(0, 3))
    chain = _led_down(state, source, partition)
    block_of = np.empty(K, dtype=int)
    block_of[partition.members] = partition.block_of_position()
    for row in range(0, N, 7):
        x = source.gather(np.array([row]))[0]
        assert block_of[chain[row]] == leaf_by_hand(partition.tree, x)


@both_backends
def test_a_search_by_hand(backend):
    """The best of three blocks, and uphill through a block of a fourth partition."""
    state, source, log_joint = problem(backend)
    partitions = draw_routes(state, 4, 8, StepRandomness(0, 4))
    components, bounds, _ = search(state, source, partitions, 3)
    blocks = [np.split(p.members, p.offsets[1:-1]) for p in partitions]
    agreed = 0
    for row in range(0, N, 3):
        x = source.gather(np.array([row]))[0]
        met = [blocks[n][leaf_by_hand(partitions[n].tree, x)] for n in range(3)]
        sums = [np.logaddexp.reduce(log_joint[row, block]) for block in met]
        best = met[int(np.argmax(sums))]
        start = best[log_joint[row, best].argmax()]
        (last,) = (block for block in blocks[3] if start in block)
        bound = max(*sums, np.logaddexp.reduce(log_joint[row, last]))
        assert bounds[row] == pytest.approx(bound, rel=1e-5, abs=DIGITS[backend])
        agreed += components[row] == last[log_joint[row, last].argmax()]
    # Float32 may hold two components for equally good.
    assert agreed >= len(range(0, N, 3)) - 1


def test_step_sizes_of_a_stream():
    # A batch that is enough to learn all from replaces what was there, but for the past.
    assert automatic_gamma(5000, 0.0, 10) == 1.0
    assert automatic_gamma(5000, 5000.0, 10) == pytest.approx(2.0**-0.6)
    # Ten batches of a tenth forget as much as one that is ten times as large, to first order.
    assert automatic_gamma(100, 0.0, 10) == pytest.approx(0.1)
    sizes = [automatic_gamma(1000, 1000.0 * t, 10) for t in range(1000)]
    # What Robbins and Monro ask for: sums diverge, sums of squares do not.
    assert (np.diff(sizes) < 0).all()
    assert sum(sizes) > 30.0
    assert np.sum(np.square(sizes[500:])) < 0.5


@both_backends
def test_a_stream_of_batches_learns_what_all_rows_say(backend):
    """Two far groups: masses, means and covariances are those of all rows, by 1/t averaging."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(4000, 2)) * [1.0, 2.0] + 30.0 * (rng.random((4000, 1)) < 0.3)
    state = state_of(
        "full",
        [0.5, 0.5],
        np.array([[1.0, -1.0], [28.0, 31.0]]),
        [np.eye(2)] * 2,
        reg_covar=1e-6,
        floor=1e-5,
        shrinkage="few",
        n_rows=4000.0,
        backend=backend,
    )
    # Masses need not sum to one.
    state.decay(0.4)
    online = OnlineMixture(state, RandomPartition(), np.zeros(2), 0, 0.0, 0)
    bounds = []
    for t, batch in enumerate(np.split(X, 20), start=1):
        source = ArrayRows(batch, center=np.zeros(2))
        bound, refused = online.learn(source, 1.0 / t, relocates=False)
        bounds.append(bound)
        assert refused == 0
    assert online.n_seen == 4000.0
    assert online.n_batches == 20
    for k, own in enumerate([X[X[:, 0] < 15], X[X[:, 0] >= 15]]):
        assert state.weights[k] == pytest.approx(own.shape[0] / 4000, rel=1e-4)
        np.testing.assert_allclose(state.model.location[k], own.mean(axis=0), atol=1e-3)
        matrix = np.cov(own.T, bias=True)[[0, 1, 1], [0, 0, 1]]
        np.testing.assert_allclose(state.moments.scatter[k], matrix, atol=5e-3)
    # Bounds are of the batch before it is learnt from, under normalised weights.
    first = stats.norm.logpdf(X[:200, None] - [[1.0, -1.0], [28.0, 31.0]]).sum(axis=2)
    assert bounds[0] == pytest.approx(
        np.logaddexp.reduce(first - np.log(2), axis=1).mean(), rel=1e-4
    )
    truth = 0.0
    for k, own in enumerate([X[X[:, 0] < 15], X[X[:, 0] >= 15]]):
        density = stats.multivariate_normal(own.mean(axis=0), np.cov(own.T, bias=True))
        last = X[3800:][(X[3800:, 0] >= 15) == k]
        truth += (density.logpdf(last) + np.log(own.shape[0] / 4000)).sum()
    assert bounds[-1] == pytest.approx(truth / 200, abs=0.02)


def test_backends_search_alike():
    found = []
    for backend in BACKENDS:
        state, source, _ = problem(backend)
        routes = draw_routes(state, 4, 8, StepRandomness(0, 1))
        found.append(search(state, source, routes, 3))
    (one, lower, n), (other, upper, m) = found
    assert n == m
    assert (one == other).mean() > 0.99
    assert np.mean(np.abs(lower - upper) < 1e-2) > 0.99

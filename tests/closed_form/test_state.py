"""A mixture as the engine holds it: parameters in use, refusals, snapshots, merges and copies."""

import numpy as np
import pytest
from known_states import (
    BACKENDS,
    as_matrices,
    both_backends,
    every_covariance,
    in_use,
    project,
    state_of,
)

from pickmix.closed_form.state import SingularCovarianceError
from pickmix.families.gaussian import GAUSSIANS
from pickmix.sweep.statistics import Statistics

REG = 1e-3


def random_parts(n_components, n_features, seed=0):
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(n_components, n_features, n_features + 2))
    weights, means = rng.dirichlet(np.ones(n_components)), rng.normal(size=(n_components, 4))
    return weights, means, half @ half.transpose(0, 2, 1) / n_features


@every_covariance
@both_backends
def test_covariances_in_use_are_the_statistics_plus_reg(backend, name):
    weights, means, covariances = random_parts(20, 4)
    state = state_of(name, weights, means, covariances, reg_covar=REG, backend=backend)
    expected = project(name, covariances)
    if name == "tied":
        # One for all: the mean by weight.
        expected = np.repeat(np.tensordot(weights, covariances, 1)[None], 20, axis=0)
    expected = expected + REG * np.eye(4)
    np.testing.assert_allclose(in_use(state), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(state.weights, weights, rtol=1e-12)


@every_covariance
def test_packing_round_trips(name):
    covariances = random_parts(5, 4)[2]
    family = GAUSSIANS[name](4)
    packed = family.pack_matrices(covariances[:1] if family.shared else covariances)
    user = family.unpack(packed)
    assert user.shape == family.shape(5)
    np.testing.assert_array_equal(family.pack(user), packed)
    inverse = family.invert(user)
    both = as_matrices(name, user, 5, 4) @ as_matrices(name, inverse, 5, 4)
    np.testing.assert_allclose(both, [np.eye(4)] * 5, atol=1e-9)


@both_backends
def test_singular_covariances_are_refused_by_name(backend):
    state = state_of("full", [1.0], np.zeros((1, 2)), np.ones((1, 2, 2)), backend=backend)
    assert state.failures.all()
    with pytest.raises(SingularCovarianceError, match=r"1 component.*reg_covar=0\.0"):
        state.require_sound()


def statistics_of(state, rows, components):
    """Statistics of rows (n, D) that belong to `components` (n,) alone."""
    n = rows.shape[0]
    return state.backend.pair_statistics(
        state.layout,
        state.n_components,
        rows,
        np.ones(n),
        np.asarray(components, dtype=np.int32)[:, None],
        np.ones((n, 1)),
        float(n),
    )


@every_covariance
@both_backends
def test_an_update_without_an_estimate_keeps_the_last_good_covariance(backend, name):
    """Component 0 is given one row ten times, component 2 a cloud: only the first is refused."""
    K, D = 4, 3
    covariances = np.repeat(np.eye(D)[None], K, axis=0)
    state = state_of(name, np.full(K, 0.25), np.zeros((K, D)), covariances, backend=backend)
    rng = np.random.default_rng(1)
    cloud = rng.normal(size=(40, D))
    rows = np.concatenate([np.repeat([[1.0, 2.0, 3.0]], 10, axis=0), cloud])
    # Forgetting everything leaves nothing of the old covariance.
    refused = state.absorb(statistics_of(state, rows, np.repeat([0, 2], [10, 40])), 1.0)
    if name == "tied":
        # All share the cloud's, which is sound.
        assert refused.size == 0
        return
    np.testing.assert_array_equal(refused, [0])
    expected = project(name, np.cov(cloud.T, bias=True))
    found = in_use(state)
    np.testing.assert_allclose(found[0], np.eye(D), atol=1e-12)
    np.testing.assert_allclose(found[2], expected, rtol=1e-9, atol=1e-12)
    log_joint = state.backend.log_joint_all(state.layout, state.model, rows)
    assert np.isfinite(log_joint[[0, 2]]).all()


@both_backends
def test_a_tied_update_without_an_estimate_is_refused_for_all(backend):
    state = state_of(
        "tied", [0.5, 0.5], np.zeros((2, 2)), np.stack([np.eye(2)] * 2), backend=backend
    )
    rows = np.repeat([[0.0, 0.0], [1.0, 1.0]], 5, axis=0)
    refused = state.absorb(statistics_of(state, rows, np.repeat([0, 1], 5)), 1.0)
    np.testing.assert_array_equal(np.sort(refused), [0, 1])
    np.testing.assert_allclose(in_use(state), np.stack([np.eye(2)] * 2), atol=1e-12)


@every_covariance
@both_backends
def test_a_snapshot_brings_everything_back(backend, name):
    weights, means, covariances = random_parts(6, 4)
    state = state_of(
        name, weights, means, covariances, shrinkage="pooled", n_rows=300.0, backend=backend
    )
    rng = np.random.default_rng(3)

    def learn(seed):
        rows = np.random.default_rng(seed).normal(size=(80, 4))
        state.absorb(statistics_of(state, rows, np.arange(80) % 6), 0.4)
        state.pool()
        return [array.copy() for array in (*state.moments, *state.model, state.prior.pooled)]

    learn(1)
    kept = state.snapshot()
    first = learn(2)
    learn(3)
    state.model.location[:] += rng.normal()
    state.restore(kept)
    # What follows a restored state is what followed it the first time, and a second time.
    for _ in range(2):
        for now, then in zip(learn(2), first, strict=True):
            np.testing.assert_array_equal(now, then)
        state.restore(kept)


@every_covariance
@both_backends
def test_merged_pairs_have_the_moments_of_both(backend, name):
    """Of the rows of both: mixture moments by the laws of total mean and variance."""
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(300, 3)) + 3.0 * rng.integers(0, 2, (300, 1))
    labels = rng.integers(0, 4, 300)
    K = 4
    state = state_of(name, np.full(K, 1 / K), np.zeros((K, 3)), [np.eye(3)] * K, backend=backend)
    state.absorb(statistics_of(state, rows, labels), 1.0)
    state.decay(0.5)
    found = state.merged(np.array([0, 1]), np.array([3, 2]))
    wholes = state.with_components(found, np.array([0, 1]))
    assert not wholes.failures.any()
    for place, pair in enumerate([(0, 3), (1, 2)]):
        own = rows[np.isin(labels, pair)]
        assert found.mass[place] == pytest.approx(0.5 * own.shape[0] / 300)
        np.testing.assert_allclose(found.mean[place], own.mean(axis=0), rtol=1e-10)
        # One covariance for all is the parent's.
        expected = in_use(state)[0] if name == "tied" else project(name, np.cov(own.T, bias=True))
        np.testing.assert_allclose(in_use(wholes)[place], expected, rtol=1e-9, atol=1e-12)


@every_covariance
@both_backends
def test_copies_are_the_components_they_come_from(backend, name):
    weights, means, covariances = random_parts(5, 4)
    state = state_of(name, weights, means, covariances, backend=backend)
    some = np.array([4, 1, 3])
    other = state.with_components(state.moments_at(some), some)
    # Decays of both differ, masses in use do not.
    state.decay(0.3)
    other.decay(0.6)
    rows = np.random.default_rng(0).normal(size=(20, 4))
    before = state.backend.log_joint_all(state.layout, state.model, rows)
    theirs = other.backend.log_joint_all(other.layout, other.model, rows)
    state.copy_from(np.array([0, 2]), other, np.array([2, 0]))
    now = state.backend.log_joint_all(state.layout, state.model, rows)
    np.testing.assert_allclose(now[[0, 2]], theirs[[2, 0]], rtol=1e-12)
    np.testing.assert_array_equal(now[[1, 3, 4]], before[[1, 3, 4]])
    np.testing.assert_allclose(
        state.effective_counts()[[0, 2]], other.effective_counts()[[2, 0]], rtol=1e-12
    )
    # The copies are updated as the others are.
    assert state.absorb(statistics_of(state, rows, np.arange(20) % 5), 0.1).size == 0


@both_backends
def test_untouched_components_stay(backend):
    weights, means, covariances = random_parts(50, 4)
    state = state_of("full", weights, means, covariances, backend=backend)
    before = state.snapshot()
    members = np.array([7, 31], dtype=np.int32)
    sums = BACKENDS[backend]().sums_of_all(
        state.layout,
        np.random.default_rng(0).normal(size=(60, 4)),
        np.ones(60),
        np.random.default_rng(1).random((2, 60)),
    )
    state.absorb(Statistics(members, *sums, total_weight=60.0), 0.2)
    others = np.delete(np.arange(50), members)
    # Of the model all but the decay, which is for all, and of the moments all.
    for now, then in zip(state.model[:6], before.model[:6], strict=True):
        if now.shape[0]:
            np.testing.assert_array_equal(now[others], then[others])
            assert (now[members] != then[members]).any() or now.shape[1:] == (0,)
    np.testing.assert_allclose(state.masses[others], 0.8 * weights[others], rtol=1e-12)

"""The prior on covariances: pooled shapes, own sizes, and a weight that the components choose."""

import numpy as np
import pytest
from scipy import stats

from pickmix.closed_form.mixture import GaussianMixtureState
from pickmix.closed_form.statistics import pool_shapes, relative_size
from pickmix.closed_form.structures import STRUCTURES, DiagonalCovariance, FullCovariance

D = 4


def wishart(n, matrix, degrees, seed=0):
    draws = stats.wishart(degrees, matrix / degrees).rvs(n, random_state=seed)
    return np.asarray(draws).reshape(n, D, D)


def state_of(covariances, n_each=50.0, name="full", prior_count=10.0, reg_covar=0.0):
    structure = STRUCTURES[name](D)
    n = covariances.shape[0]
    return GaussianMixtureState(
        structure,
        np.full(n, 1.0 / n),
        np.random.default_rng(0).normal(size=(n, D)),
        structure.pack_matrices(covariances),
        reg_covar,
        prior_count=prior_count,
        n_rows=n_each * n,
    )


@pytest.mark.parametrize("name", ["full", "diag", "spherical"])
def test_trace_weights(name):
    structure = STRUCTURES[name](D)
    first, second = wishart(2, np.eye(D), 9)
    packed = structure.pack_matrices(np.stack([first, second]))
    as_matrices = [structure.unpack_pooled(row) for row in packed]
    expected = np.trace(np.linalg.solve(as_matrices[0], as_matrices[1])) / D
    assert structure.trace_weights(packed[0]) @ packed[1] == pytest.approx(expected)


def test_covariances_lean_on_the_pooled_shape_in_their_own_size():
    sizes = np.array([1e-4, 1e-2, 1.0, 100.0])[:, None, None]
    covariances = sizes * wishart(4, np.diag([1.0, 2.0, 3.0, 4.0]), 30)
    state = state_of(covariances, n_each=50.0)
    pooled = state.structure.unpack_pooled(state.pooled)
    n0 = state.prior_count
    for k, own in enumerate(covariances):
        size = np.trace(np.linalg.solve(pooled, own)) / D * 50.0 / 49.0
        size = size ** (49.0 / 51.0)
        expected = (50.0 * own + n0 * size * pooled) / (50.0 + n0)
        used = state.structure.unpack(state.covariances_in_use())[k]
        np.testing.assert_allclose(used, expected, rtol=1e-6)
        # The widest is a million times as wide as the narrowest, and neither rules the other.
        assert 0.5 < np.trace(used) / np.trace(own) < 2.0


def test_a_single_row_takes_the_pooled_covariance():
    assert relative_size(np.zeros((3, 8)), 0, np.ones(3), 1.0) == 1.0


def test_pooled_shape_of_equal_shapes():
    shape = np.array([1.0, 2.0, 5.0])
    covariances = shape * np.array([[0.01], [1.0], [100.0]])
    pooled = np.empty(3)
    weights = DiagonalCovariance(3).trace_weights(shape)
    assert pool_shapes(covariances, np.full(3, 1 / 3), 300.0, weights, pooled)
    # The geometric mean of the sizes is one.
    np.testing.assert_allclose(pooled, shape)


def test_components_of_one_shape_ask_for_a_strong_prior_and_others_for_a_weak_one():
    alike = wishart(100, np.diag([1.0, 2.0, 3.0, 4.0]), 49)
    rng = np.random.default_rng(0)
    rotations = np.linalg.qr(rng.normal(size=(100, D, D)))[0]
    spectra = np.exp(rng.normal(scale=2.0, size=(100, 1, D)))
    different = (rotations * spectra) @ rotations.transpose(0, 2, 1)
    counts = FullCovariance(D).prior_counts()
    assert state_of(alike).prior_count >= counts[-2]
    assert state_of(different).prior_count <= counts[1]


@pytest.mark.parametrize(("name", "size"), [("full", D), ("diag", 1)])
def test_evidence_is_that_of_the_conjugate_prior(name, size):
    """Differences of log p(scatter | prior) by Monte Carlo over the prior."""
    structure = STRUCTURES[name](D)
    rng = np.random.default_rng(1)
    target, found = np.diag([1.0, 1.5, 2.0, 0.5]), np.diag([1.3, 1.0, 2.5, 0.6])
    count, values = 6.0, []
    for prior in (8.0, 20.0):
        if name == "full":
            draws = stats.invwishart(prior + D + 1.0, prior * target).rvs(400_000, random_state=rng)
            log_det = np.linalg.slogdet(draws)[1]
            trace = np.trace(np.linalg.solve(draws, found), axis1=1, axis2=2)
            log_likelihood = -0.5 * count * (log_det + trace)
            values.append(np.log(np.mean(np.exp(log_likelihood))))
        else:
            shape, scale = 0.5 * (prior + 2.0), 0.5 * prior * np.diag(target)
            draws = stats.invgamma(shape, scale=scale).rvs((400_000, D), random_state=rng)
            log_likelihood = -0.5 * count * (np.log(draws) + np.diag(found) / draws)
            values.append(np.log(np.mean(np.exp(log_likelihood), axis=0)).sum())
    packed = [structure.pack_matrices(matrix[None]) for matrix in (found, target)]
    evidence = [
        structure.log_evidence(packed[0], np.array([count]), packed[1], prior)
        for prior in (8.0, 20.0)
    ]
    assert evidence[1] - evidence[0] == pytest.approx(values[1] - values[0], abs=0.03)

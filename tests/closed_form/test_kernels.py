"""Compiled kernels against NumPy and SciPy, for every covariance structure."""

import numpy as np
import pytest
from scipy import stats

from pickmix.closed_form.engine import BatchEvaluator, log_likelihood
from pickmix.closed_form.mixture import (
    GaussianMixtureState,
    Increment,
    SingularCovarianceError,
)
from pickmix.closed_form.structures import STRUCTURES
from pickmix.data.rows import ArrayRows

NAMES = list(STRUCTURES)
REG = 1e-3


def random_state(name, n_components, n_features, seed=0, reg_covar=REG):
    rng = np.random.default_rng(seed)
    structure = STRUCTURES[name](n_features)
    n_factors = 1 if structure.shared else n_components
    half = rng.normal(size=(n_factors, n_features, n_features + 2))
    covariances = structure.pack_matrices(half @ half.transpose(0, 2, 1) / n_features)
    weights = rng.dirichlet(np.ones(n_components))
    means = rng.normal(size=(n_components, n_features)) * 2
    return GaussianMixtureState(structure, weights, means, covariances, reg_covar)


def dense_covariances(state):
    """Full covariances (K, D, D) in use, by NumPy from the packed statistics."""
    structure, D = state.structure, state.n_features
    user = structure.unpack(state.model.covariance)
    full = {
        "full": lambda: user,
        "tied": lambda: np.repeat(user[None], state.n_components, axis=0),
        "diag": lambda: user[:, :, None] * np.eye(D),
        "spherical": lambda: user[:, None, None] * np.eye(D),
    }[structure.name]()
    return full + state.reg_covar * np.eye(D)


def expected_log_joint(state, X):
    covariances = dense_covariances(state)
    return np.array(
        [
            np.log(w) + stats.multivariate_normal(m, c).logpdf(X)
            for w, m, c in zip(state.weights, state.model.mean, covariances, strict=True)
        ]
    ).reshape(state.n_components, -1)


@pytest.mark.parametrize("n_features", [1, 2, 5, 13])
@pytest.mark.parametrize("name", NAMES)
def test_log_joints_equal_scipys(name, n_features):
    state = random_state(name, 11, n_features)
    X = np.random.default_rng(1).normal(size=(50, n_features)) * 3
    expected = expected_log_joint(state, X)
    evaluate = BatchEvaluator(state, X)
    np.testing.assert_allclose(evaluate.log_joint_all(), expected, rtol=1e-10)
    candidates = np.random.default_rng(2).integers(-1, 11, (50, 4)).astype(np.int32)
    picked = evaluate.log_joint(candidates)
    for i, j in np.ndindex(candidates.shape):
        k = candidates[i, j]
        assert picked[i, j] == pytest.approx(expected[k, i] if k >= 0 else -np.inf, rel=1e-10)
    likelihood = log_likelihood(state, ArrayRows(X, center=np.zeros(n_features)), np.arange(50))
    np.testing.assert_allclose(likelihood, np.logaddexp.reduce(expected), rtol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_covariances_in_use_are_the_statistics_plus_reg(name):
    state = random_state(name, 20, 4)
    unit = state.structure.pack_matrices(np.eye(4)[None])
    expected = state.model.covariance + REG * unit
    np.testing.assert_allclose(state.covariances_in_use(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_packing_round_trips(name):
    state = random_state(name, 5, 3)
    structure = state.structure
    user = structure.unpack(state.model.covariance)
    assert user.shape == structure.shape(5)
    np.testing.assert_array_equal(structure.pack(user), state.model.covariance)
    inverse = structure.invert(user)
    np.testing.assert_allclose(structure.invert(inverse), user, rtol=1e-9)


def test_singular_covariances_are_refused_by_name():
    structure = STRUCTURES["full"](2)
    singular = structure.pack_matrices(np.ones((1, 2, 2)))
    with pytest.raises(SingularCovarianceError, match=r"reg_covar=0\.0"):
        GaussianMixtureState(structure, np.ones(1), np.zeros((1, 2)), singular, 0.0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("offset", [0.0, 1e7])
def test_moments_of_pairs_in_blocks_equal_numpys(name, offset):
    """Sparse and dense accumulation, in uneven blocks, against weighted moments by NumPy."""
    K, D, N = 6, 3, 500
    rng = np.random.default_rng(3)
    state = random_state(name, K, D)
    X = rng.normal(size=(N, D)) + offset
    row_weights = rng.random(N)
    # Every row belongs to two of the first five components; the sixth is never touched.
    components = np.array([rng.choice(5, 2, replace=False) for _ in range(N)], dtype=np.int32)
    weights = rng.dirichlet(np.ones(2), N)
    sparse, dense = Increment(state, K), Increment(state, K)
    for block in np.split(np.arange(N), [7, 200, 201]):
        total = float(row_weights[block].sum())
        sparse.add_pairs(X[block], row_weights[block], total, components[block], weights[block])
        responsibilities = np.zeros((K, block.size))
        np.put_along_axis(responsibilities, components[block].T.astype(int), weights[block].T, 0)
        columns = np.ascontiguousarray(X[block].T)
        dense.add_all(columns, row_weights[block], total, responsibilities)
    full = np.zeros((N, K))
    np.put_along_axis(full, components.astype(int), weights, 1)
    full *= row_weights[:, None]
    mass = full.sum(axis=0)
    for increment in (sparse, dense):
        assert increment.total_weight == pytest.approx(row_weights.sum())
        got_mass, got_squares, got_mean, got_scatter = increment.gathered()
        np.testing.assert_allclose(got_mass, mass, rtol=1e-12)
        np.testing.assert_allclose(got_squares, np.square(full).sum(axis=0), rtol=1e-12)
        for k in range(5):
            mean = np.average(X, axis=0, weights=full[:, k])
            np.testing.assert_allclose(got_mean[k], mean, rtol=1e-12)
            centred = X - mean
            scatter = (full[:, k] * centred.T) @ centred
            packed = state.structure.pack_matrices(scatter[None])[0]
            # Means at 1e7 are rounded by 2e-9, the scatter by their products.
            np.testing.assert_allclose(
                got_scatter[k],
                packed,
                rtol=1e-7 if offset else 1e-11,
                atol=1e-6 if offset else 1e-11,
            )

"""The prior on covariances: pooled shapes, own sizes, and a weight that the components choose."""

import numpy as np
import pytest
from known_states import both_backends, in_use, project, state_of
from scipy import stats

from pickmix.families.gaussian import GAUSSIANS, DiagonalGaussian, FullGaussian
from pickmix.families.gaussian_prior import relative_sizes
from pickmix.families.layout import Moments

D = 4


def wishart(n, matrix, degrees, seed=0):
    draws = stats.wishart(degrees, matrix / degrees).rvs(n, random_state=seed)
    return np.asarray(draws).reshape(n, D, D)


def leaning(covariances, n_each=50.0, name="full", backend="reference"):
    n = covariances.shape[0]
    means = np.random.default_rng(0).normal(size=(n, D))
    return state_of(
        name,
        np.full(n, 1.0 / n),
        means,
        covariances,
        shrinkage="pooled",
        n_rows=n_each * n,
        backend=backend,
    )


def matrix_of(name, packed):
    """A packed covariance (P,) as (D, D)."""
    if packed.shape[0] == D:
        return np.diag(packed)
    matrix = np.zeros((D, D))
    matrix[np.tril_indices(D)] = packed
    return matrix + np.tril(matrix, -1).T


@pytest.mark.parametrize("name", ["full", "diag", "spherical"])
def test_trace_weights(name):
    family = GAUSSIANS[name](D)
    packed = family.pack_matrices(wishart(2, np.eye(D), 9))
    one, other = (matrix_of(name, row) for row in packed)
    expected = np.trace(np.linalg.solve(one, other)) / D
    assert family.trace_weights(packed[0]) @ packed[1] == pytest.approx(expected)


@pytest.mark.parametrize("name", ["full", "diag", "spherical"])
@both_backends
def test_covariances_lean_on_the_pooled_shape_in_their_own_size(backend, name):
    sizes = np.array([1e-4, 1e-2, 1.0, 100.0])[:, None, None]
    covariances = sizes * wishart(4, np.diag([1.0, 2.0, 3.0, 4.0]), 30)
    state = leaning(covariances, 50.0, name, backend)
    pooled = matrix_of(name, state.prior.pooled)
    n0 = state.prior.prior_count
    assert n0 > 0.0
    for k, own in enumerate(project(name, covariances)):
        # Sizes are estimated from n - 1 rows, and lean on 1 by two rows, in logarithms.
        size = np.trace(np.linalg.solve(pooled, own)) / D * 50.0 / 49.0
        size = size ** (49.0 / 51.0)
        expected = (50.0 * own + n0 * size * pooled) / (50.0 + n0)
        used = in_use(state)[k]
        np.testing.assert_allclose(used, expected, rtol=1e-6, atol=1e-12)
        # The widest is a million times as wide as the narrowest, and neither rules the other.
        assert 0.5 < np.trace(used) / np.trace(own) < 2.0


@both_backends
def test_a_component_of_few_rows_leans_by_its_effective_count(backend):
    """trust = min(1, n / (D + 1)), on the mean covariance by mass."""
    covariances = wishart(3, np.diag([1.0, 2.0, 3.0, 4.0]), 30)
    counts = np.array([1.0, 2.5, 1000.0])
    weights = np.array([0.2, 0.3, 0.5])
    state = state_of(
        "full",
        weights,
        np.zeros((3, D)),
        covariances,
        counts=counts,
        shrinkage="few",
        backend=backend,
    )
    pooled = np.tensordot(weights, covariances, 1)
    for used, own, count in zip(in_use(state), covariances, counts, strict=True):
        trust = min(1.0, count / (D + 1.0))
        np.testing.assert_allclose(used, trust * own + (1 - trust) * pooled, rtol=1e-9)


def test_a_single_row_takes_the_pooled_covariance():
    sizes = relative_sizes(np.zeros((2, 3)), np.ones(3), np.array([1.0, 0.3]))
    np.testing.assert_array_equal(sizes, 1.0)


@both_backends
def test_hardly_any_rows_take_the_pooled_covariance(backend):
    covariances = wishart(5, np.diag([1.0, 2.0, 3.0, 4.0]), 30)
    weights = np.array([1e-12, 0.25, 0.25, 0.25, 0.25])
    covariances[0] *= 1e6
    state = state_of(
        "full",
        weights,
        np.zeros((5, D)),
        covariances,
        shrinkage="pooled",
        n_rows=400.0,
        backend=backend,
    )
    # Its own million counts by 1e-10 rows of ten or more.
    np.testing.assert_allclose(in_use(state)[0], matrix_of("full", state.prior.pooled), rtol=1e-2)


def test_pooled_shape_of_equal_shapes():
    shape = np.array([1.0, 2.0, 5.0])
    covariances = shape * np.array([[0.01], [1.0], [100.0]])
    family = DiagonalGaussian(3, reg_covar=0.0)
    masses = np.full(3, 1 / 3)
    moments = Moments(masses, masses**2, np.zeros((3, 3)), covariances, np.zeros((3, 0)))
    prior = family.make_prior(moments, "pooled", 300.0)
    # The plain mean is ruled by the widest.
    np.testing.assert_allclose(prior.pooled, shape * 101.01 / 3)
    prior.pool(moments, masses)
    # The geometric mean of the sizes is one.
    np.testing.assert_allclose(prior.pooled, shape, rtol=1e-6)


def test_components_of_one_shape_ask_for_a_strong_prior_and_others_for_a_weak_one():
    alike = wishart(100, np.diag([1.0, 2.0, 3.0, 4.0]), 49)
    rng = np.random.default_rng(0)
    rotations = np.linalg.qr(rng.normal(size=(100, D, D)))[0]
    spectra = np.exp(rng.normal(scale=2.0, size=(100, 1, D)))
    different = (rotations * spectra) @ rotations.transpose(0, 2, 1)
    counts = FullGaussian(D).prior_counts()
    assert leaning(alike).prior.prior_count >= counts[-2]
    assert leaning(different).prior.prior_count <= counts[1]


def evidence_of(name, found, count, target, prior):
    """log p(found | prior) = log likelihood + log prior - log posterior, at any covariance."""
    if name == "full":
        freedom, at = prior + D + 1.0, np.diag([0.7, 1.1, 1.9, 0.8])
        before = stats.invwishart(freedom, prior * target)
        after = stats.invwishart(freedom + count, prior * target + count * found)
        misfit = np.trace(np.linalg.solve(at, found))
        likelihood = -0.5 * count * (np.linalg.slogdet(at)[1] + misfit)
        return likelihood + before.logpdf(at) - after.logpdf(at)
    found, target = np.diag(found), np.diag(target)
    repeats = 1.0
    if name == "spherical":
        # One variance, which has seen the values of all columns.
        found, target, repeats = found[:1], target[:1], D
    at, values, prior = 1.3, repeats * count, repeats * prior
    before = stats.invgamma(0.5 * prior + 1.0, scale=0.5 * prior * target)
    after = stats.invgamma(
        0.5 * (prior + values) + 1.0, scale=0.5 * (prior * target + values * found)
    )
    likelihood = -0.5 * values * (np.log(at) + found / at)
    return np.sum(likelihood + before.logpdf(at) - after.logpdf(at))


@pytest.mark.parametrize("name", ["full", "diag", "spherical"])
def test_evidence_is_that_of_the_conjugate_prior(name):
    """Of several components together; constants are those of the counts alone."""
    family = GAUSSIANS[name](D)
    target = project(name, np.diag([1.0, 1.5, 2.0, 0.5]))
    found = project(name, wishart(3, np.diag([1.3, 1.0, 2.5, 0.6]), 9))
    counts = np.array([6.0, 1.5, 40.0])
    targets = np.stack([target, 2.0 * target, 0.3 * target])
    differences = []
    for prior in (8.0, 20.0, 0.5):
        expected = sum(
            evidence_of(name, own, count, its, prior)
            for own, count, its in zip(found, counts, targets, strict=True)
        )
        packed = family.pack_matrices(found), family.pack_matrices(targets)
        got = family.log_evidence(packed[0], counts, packed[1], prior)
        differences.append(got - expected)
    np.testing.assert_allclose(differences, differences[0], atol=1e-8)

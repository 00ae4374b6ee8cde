"""Log-joints against SciPy, and sums over pairs and over all against NumPy."""

import numpy as np
import pytest
from dense_posteriors import BACKENDS, both_backends, every_covariance
from scipy import stats

from pickmix.closed_form.evaluation import log_likelihoods
from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows
from pickmix.families.gaussian import GAUSSIANS
from pickmix.families.layout import Model, make_layout
from pickmix.kernels.statistics import Statistics

REG = 1e-3


def random_mixture(name, n_components, n_features):
    """Weights, means, and covariances (K, D, D) of the form that the name says."""
    rng = np.random.default_rng(0)
    n_own = 1 if name == "tied" else n_components
    half = rng.normal(size=(n_own, n_features, n_features + 2))
    covariances = half @ half.transpose(0, 2, 1) / n_features
    unit = np.eye(n_features)
    diagonals = np.diagonal(covariances, axis1=1, axis2=2)
    covariances = {
        "full": covariances,
        "tied": np.repeat(covariances, n_components // n_own, axis=0),
        "diag": diagonals[:, :, None] * unit,
        "spherical": diagonals.mean(axis=1)[:, None, None] * unit,
    }[name]
    weights = rng.dirichlet(np.ones(n_components))
    return weights, rng.normal(size=(n_components, n_features)) * 2, covariances


@pytest.mark.parametrize("n_features", [1, 2, 5, 13])
@every_covariance
@both_backends
def test_log_joints_equal_scipys(backend, name, n_features):
    weights, means, covariances = random_mixture(name, 11, n_features)
    family = GAUSSIANS[name](n_features, REG)
    moments = family.moments_of(
        {
            "means": means,
            "covariances": family.unpack(family.pack_matrices(covariances)),
        },
        np.zeros(n_features),
    )._replace(mass=weights.copy())
    engine = BACKENDS[backend]
    prior = family.make_prior(moments, "none", 50.0)
    state = MixtureState(family, moments, engine, prior).require_sound()
    X = np.random.default_rng(1).normal(size=(50, n_features)) * 3
    expected = np.array(
        [
            np.log(w) + stats.multivariate_normal(m, c).logpdf(X)
            for w, m, c in zip(weights, means, covariances, strict=True)
        ]
    ).reshape(11, -1)
    found = engine.log_joint_all(state.layout, state.model, X)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    candidates = np.random.default_rng(2).integers(-1, 11, (50, 4)).astype(np.int32)
    picked = engine.log_joint(state.layout, state.model, X, candidates)
    wanted = np.take_along_axis(expected.T, np.maximum(candidates, 0).astype(int), axis=1)
    np.testing.assert_allclose(picked, np.where(candidates < 0, -np.inf, wanted), rtol=1e-9)
    rows = ArrayRows(X, center=np.zeros(n_features))
    likelihood = log_likelihoods(state, rows, np.arange(50))
    # The compiled sweep holds log-joints in float32.
    tolerance = 1e-9 if backend == "reference" else 1e-5
    np.testing.assert_allclose(likelihood, np.logaddexp.reduce(expected), rtol=tolerance)


@pytest.mark.parametrize("offset", [0.0, 1e7])
@every_covariance
@both_backends
def test_moments_of_pairs_in_blocks_equal_numpys(backend, name, offset):
    """Sparse and dense sums, of uneven blocks, against weighted moments by NumPy."""
    K, D, N = 6, 3, 500
    rng = np.random.default_rng(3)
    layout = GAUSSIANS[name](D).layout
    engine = BACKENDS[backend]
    X = rng.normal(size=(N, D)) + offset
    row_weights = rng.random(N)
    # Every row belongs to two of the first five components; the sixth is never touched.
    components = np.array([rng.choice(5, 2, replace=False) for _ in range(N)], dtype=np.int32)
    weights = rng.dirichlet(np.ones(2), N)
    sparse, dense = None, None
    for block in np.split(np.arange(N), [7, 200, 201]):
        total = float(row_weights[block].sum())
        pairs = engine.pair_statistics(
            layout, K, X[block], row_weights[block], components[block], weights[block], total
        )
        responsibilities = np.zeros((K, block.size))
        np.put_along_axis(responsibilities, components[block].T.astype(int), weights[block].T, 0)
        sums = engine.sums_of_all(layout, X[block], row_weights[block], responsibilities)
        everyone = Statistics(np.arange(K, dtype=np.int32), *sums, total_weight=total)
        sparse = pairs if sparse is None else sparse.plus(pairs, layout)
        dense = everyone if dense is None else dense.plus(everyone, layout)
    full = np.zeros((N, K))
    np.put_along_axis(full, components.astype(int), weights, 1)
    full *= row_weights[:, None]
    assert sorted(sparse.members.tolist()) == [0, 1, 2, 3, 4]
    assert dense.mass[5] == 0.0
    for found in (sparse, dense):
        assert found.total_weight == pytest.approx(row_weights.sum())
        for u, k in enumerate(found.members[:5]):
            own = full[:, k]
            assert found.mass[u] == pytest.approx(own.sum(), rel=1e-12)
            assert found.squares[u] == pytest.approx(np.square(own).sum(), rel=1e-12)
            mean = np.average(X, axis=0, weights=own)
            np.testing.assert_allclose(found.mean[u], mean, rtol=1e-12)
            scatter = (own * (X - mean).T) @ (X - mean)
            packed = np.diag(scatter) if layout.n_products == D else scatter[np.tril_indices(D)]
            # Means at 1e7 are rounded by 2e-9, the scatter by their products.
            np.testing.assert_allclose(
                found.scatter[u],
                packed,
                rtol=1e-7 if offset else 1e-11,
                atol=1e-6 if offset else 1e-11,
            )


@both_backends
def test_one_row_has_no_scatter(backend):
    layout = GAUSSIANS["full"](2).layout
    found = BACKENDS[backend].pair_statistics(
        layout,
        9,
        np.array([[1e8 / 3.0, -7.0]]),
        np.full(1, 0.3),
        np.array([[4]], dtype=np.int32),
        np.ones((1, 1)),
        1.0,
    )
    np.testing.assert_array_equal(found.members, [4])
    np.testing.assert_array_equal(found.scatter, np.zeros((1, 3)))
    np.testing.assert_allclose(found.mean, [[1e8 / 3.0, -7.0]], rtol=1e-15)


@both_backends
def test_as_many_products_as_coordinates_are_not_always_squares(backend):
    """A pair with all its products beside a coordinate with none: P = C = 3."""
    layout = make_layout([("full", 2), ("linear", 1)])
    assert layout.n_products == layout.n_coordinates == 3
    rng = np.random.default_rng(4)
    rows, shares = rng.normal(size=(40, 3)), rng.random((2, 40))
    engine = BACKENDS[backend]
    scatter = engine.sums_of_all(layout, rows, np.ones(40), shares)[3]
    for found, weights in zip(scatter, shares, strict=True):
        matrix = weights.sum() * np.cov(rows[:, :2].T, aweights=weights, bias=True)
        np.testing.assert_allclose(found, matrix[[0, 1, 1], [0, 0, 1]], rtol=1e-10)
    model = Model(
        location=rng.normal(size=(2, 3)),
        factor=np.array([[1.0, 0.5, 2.0], [0.3, -1.0, 0.7]]),
        linear=rng.normal(size=(2, 3)),
        constants=np.zeros((2, 3)),
        tables=np.zeros((2, 0)),
        log_normaliser=np.array([0.1, -0.2]),
        log_mass=np.log([0.4, 0.6]),
        decay=np.array([1.0, 1.0, 0.0, -np.inf]),
    )
    found = engine.log_joint_all(layout, model, rows)
    for k, (a, b, c) in enumerate(model.factor):
        away = rows - model.location[k]
        white = away[:, :2] @ np.array([[a, 0.0], [b, c]]).T
        expected = away @ model.linear[k] - 0.5 * np.square(white).sum(axis=1)
        expected += model.log_normaliser[k] + model.log_mass[k]
        np.testing.assert_allclose(found[k], expected, rtol=1e-10, atol=1e-12)

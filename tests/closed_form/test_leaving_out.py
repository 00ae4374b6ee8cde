"""Rows under a mixture that is estimated without them, against SciPy and a fit of the others."""

import numpy as np
import pytest
from scipy import stats

from pickmix.closed_form.chains import Chains
from pickmix.closed_form.evaluation import left_out_log_sums
from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows, Batches
from pickmix.families.categorical import Categorical
from pickmix.families.gaussian import FullGaussian
from pickmix.families.layout import Moments
from pickmix.families.product import Product
from pickmix.kernels import numba_kernels, numpy_kernels
from pickmix.selection.randomness import StepRandomness

K, D, N = 4, 2, 240
ALL = np.tile(np.arange(K), (N, 1))
both_backends = pytest.mark.parametrize(
    "backend", [numpy_kernels, numba_kernels], ids=["NumPy", "compiled"]
)


def covariances_of(state):
    return state.family.parameters(state.model, np.zeros(D))["covariances"]


def logpdf(x, mean, matrix):
    return stats.multivariate_normal(mean, matrix).logpdf(x)


def maximise(state):
    everyone = np.arange(K, dtype=np.int32)
    state.family.maximise(state.moments, everyone, state.prior, state.model, state.backend.COMPILED)


def brute_force(state, rows, row_weights, candidates):
    """log sum_k of p(x, k): moments and matrices without the row, densities by SciPy."""
    counts, matrices = state.effective_rows(), covariances_of(state)
    kept = state.prior.sample_shares(np.arange(K), counts)
    masses, means = state.floored_masses, state.model.location
    values = []
    for x, row_weight, considered in zip(rows, row_weights, candidates, strict=True):
        considered = [k for k in considered if k >= 0]
        joint = np.array([np.log(masses[k]) + logpdf(x, means[k], matrices[k]) for k in considered])
        shares = row_weight * np.exp(joint - np.logaddexp.reduce(joint))
        for place, k in enumerate(considered):
            w, n = shares[place], counts[k]
            if w > 1e-3 and k != state.prior.background:
                away = x - means[k]
                # A row makes up no more than 98 % of a covariance in its direction.
                most = 0.98 / (away @ np.linalg.solve(matrices[k], away))
                b = min(kept[k] * n / (n - 1.0) ** 2 * w, most)
                matrix = matrices[k] - b * np.outer(away, away)
                # The mean of the others.
                mean = (n * means[k] - w * x) / (n - w)
                joint[place] = np.log(masses[k]) + logpdf(x, mean, matrix)
        values.append(np.logaddexp.reduce(joint))
    return np.array(values)


def problem(backend, spread=1.5):
    """Components that overlap with shrinkage of all sizes, the rows behind them and labels."""
    rng = np.random.default_rng(0)
    labels = rng.integers(K, size=N)
    centres = spread * rng.normal(size=(K, D))
    factors = rng.normal(size=(K, D, D)) + 1.5 * np.eye(D)
    X = centres[labels] + np.einsum("nij,nj->ni", factors[labels], rng.normal(size=(N, D)))
    X -= X.mean(axis=0)
    groups = [X[labels == k] for k in range(K)]
    family = FullGaussian(D, 0.0)
    weights = np.bincount(labels) / N
    moments = Moments(
        weights,
        np.square(weights),
        np.stack([rows.mean(axis=0) for rows in groups]),
        family.pack_matrices(np.stack([np.cov(rows.T, bias=True) for rows in groups])),
        np.zeros((K, 0)),
    )
    prior = family.make_prior(moments, "pooled", float(N))
    state = MixtureState(family, moments, backend, prior, 0.0)
    state.prior.pseudo_rows = np.array([0.0, 3.0, 40.0, 1e12])
    maximise(state)
    return state, X, labels


@both_backends
def test_over_all_components_and_over_candidates(backend):
    state, rows, _ = problem(backend)
    weights = np.random.default_rng(1).uniform(0.3, 2.0, N)
    values = left_out_log_sums(state, rows, weights)
    np.testing.assert_allclose(values, brute_force(state, rows, weights, ALL), rtol=1e-9)
    candidates = np.random.default_rng(2).permuted(ALL, axis=1)[:, :3].astype(np.int32)
    candidates[::3, 2] = -1
    for some in (candidates, candidates[:, :1].copy()):
        values = left_out_log_sums(state, rows, 0.7 * weights, some)
        np.testing.assert_allclose(values, brute_force(state, rows, 0.7 * weights, some), rtol=1e-9)


@both_backends
def test_a_background_is_the_same_without_a_row(backend):
    state, rows, _ = problem(backend)
    state.prior.allow_background(np.abs(rows).max(axis=0))
    state.prior.background = 1
    maximise(state)
    values = left_out_log_sums(state, rows, np.ones(N))
    np.testing.assert_allclose(values, brute_force(state, rows, np.ones(N), ALL), rtol=1e-9)


@both_backends
def test_far_groups_are_fitted_to_the_others(backend):
    """Without shrinkage a left-out density is that of a plain fit to the other rows."""
    state, rows, labels = problem(backend, spread=300.0)
    state.prior.pseudo_rows = np.zeros(K)
    state.prior.freedoms = np.full(D, 1e-12)
    maximise(state)
    values = left_out_log_sums(state, rows, np.ones(N))
    for i in range(0, N, 7):
        others = rows[(labels == labels[i]) & (np.arange(N) != i)]
        density = logpdf(rows[i], others.mean(axis=0), np.cov(others.T, bias=True))
        expected = density + np.log(np.mean(labels == labels[i]))
        assert values[i] == pytest.approx(expected, rel=1e-8)


@both_backends
def test_a_row_that_nothing_explains_has_a_finite_value(backend):
    state, _, _ = problem(backend)
    values = left_out_log_sums(state, np.array([[1e160, -1e160], [0.0, 1e9]]), np.ones(2))
    assert np.isfinite(values).all()
    assert (values < -1e9).all()


@both_backends
@pytest.mark.parametrize("gaps", [False, True], ids=["complete", "gaps"])
def test_levels_beside_numbers_are_fitted_to_the_others(backend, gaps):
    """Of groups far apart: numbers as above, a level by its share and the prior's rows."""
    _, X, labels = problem(backend, spread=300.0)
    level = np.random.default_rng(3).integers(3, size=N)
    family = Product([(FullGaussian(D, 0.0), [0, 1]), (Categorical([3]), [2])])
    groups = [labels == k for k in range(K)]
    weights = np.bincount(labels) / N
    covariances = np.stack([np.cov(X[group].T, bias=True) for group in groups])
    moments = Moments(
        weights,
        np.square(weights),
        np.stack([X[group].mean(axis=0) for group in groups]),
        FullGaussian(D, 0.0).pack_matrices(covariances),
        np.stack([np.bincount(level[group], minlength=3) / group.sum() for group in groups]),
    )
    prior = family.make_prior(moments, "pooled", float(N))
    state = MixtureState(family, moments, backend, prior, 0.0)
    gaussian, levels = state.prior.parts
    gaussian.pseudo_rows, gaussian.freedoms = np.zeros(K), np.full(D, 1e-12)
    maximise(state)
    rows = np.column_stack([X, level.astype(float)])
    rows[::2, 2] = np.nan if gaps else rows[::2, 2]
    values = left_out_log_sums(state, rows, np.ones(N))
    pseudo, shares = levels.counts[0], levels.frequencies
    for i in range(0, N, 7):
        others = groups[labels[i]] & (np.arange(N) != i)
        expected = logpdf(X[i], X[others].mean(axis=0), np.cov(X[others].T, bias=True))
        expected += np.log(np.mean(labels == labels[i]))
        if not np.isnan(rows[i, 2]):
            same = np.count_nonzero(level[others] == level[i]) + pseudo * shares[level[i]]
            expected += np.log(same / (np.count_nonzero(others) + pseudo))
        assert values[i] == pytest.approx(expected, rel=1e-8)


def test_rows_for_a_background_are_those_that_it_explains_better(monkeypatch):
    """By all components, and by the cells near rows where components are very many."""
    rng = np.random.default_rng(3)
    places = rng.uniform(-50.0, 50.0, size=(300, D))
    labels = np.repeat(np.arange(300), 10)
    X = places[labels] + rng.normal(size=(3000, D))
    X[::100] = rng.uniform(-200.0, 200.0, size=(30, D))
    moments = Moments(
        np.full(300, 1.0 / 300),
        np.full(300, 1.0 / 300 / 3000),
        places,
        np.tile([1.0, 0.0, 1.0], (300, 1)),
        np.zeros((300, 0)),
    )
    family = FullGaussian(D, 0.0)
    prior = family.make_prior(moments, "pooled", 3000.0)
    state = MixtureState(family, moments, numba_kernels, prior, 0.0)
    state.prior.allow_background(np.abs(X).max(axis=0))
    chain = np.random.default_rng(4).integers(300, size=3000).astype(np.int32)
    chains = Chains(
        ArrayRows(X), np.where(np.arange(3000) % 2, labels, chain), Batches(3000, 3000, 0)
    )
    source = chains.source
    values = left_out_log_sums(state, source.gather(np.arange(3000)), np.ones(3000))
    background = family.background_log_densities(state.prior, source.gather(np.arange(3000)))
    gains = np.log(1e-3) + background - values
    assert 0 < (gains > 0.0).sum() < 100
    for most in (300, 299):
        monkeypatch.setattr("pickmix.closed_form.chains._MOST_COMPARED", most)
        gain, found = chains.rows_for_background(state, 1e-3, StepRandomness(0, 0))
        assert gain == pytest.approx(np.maximum(gains, 0.0).sum(), rel=1e-3)
        np.testing.assert_array_equal(np.sort(found), np.flatnonzero(gains > 0.0))

"""M-steps under priors on covariances, in NumPy and compiled: what is in use is what they say."""

import numpy as np
import pytest
from known_states import BACKENDS, both_backends, in_use, project, state_of
from scipy import stats

from pickmix.families.base import HeldOutRows
from pickmix.families.gaussian import GAUSSIANS, DiagonalGaussian
from pickmix.families.layout import Moments
from pickmix.sweep.statistics import Statistics

D = 4
every_form = pytest.mark.parametrize("name", ["full", "diag", "spherical"])
TYPICAL = np.diag([1.0, 2.0, 3.0, 4.0])


def wishart(n, matrix, degrees, seed=0):
    draws = stats.wishart(degrees, matrix / degrees).rvs(n, random_state=seed)
    return np.asarray(draws).reshape(n, D, D)


def leaning(covariances, n_each=50.0, name="full", backend="reference", reg_covar=0.0):
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
        reg_covar=reg_covar,
    )


def everyone(state):
    return np.arange(state.n_components, dtype=np.int32)


def expected_in_use(name, prior, own, pseudo_rows, n):
    """Own covariances, and common correlations between leaned deviations, by weight."""
    own = project(name, own)
    typical, trust = np.exp(prior.log_variances), (n - 1.0) / (n - 1.0 + prior.freedoms)
    variances = np.diag(own) * n / (n - 1.0) + prior.form.reg_covar
    size = stats.gmean(variances / typical) ** ((n - 1.0) / (n + 1.0))
    variances = variances**trust * (size * typical) ** (1.0 - trust) - prior.form.reg_covar
    # None is below reg_covar, which is added in the end.
    variances = np.maximum(variances, 0.0)
    if name != "full":
        return np.diag(variances + prior.form.reg_covar)
    common = np.zeros((D, D))
    common[np.tril_indices(D)] = (1.0 - prior.damping) * prior.correlations
    common = common + common.T
    np.fill_diagonal(common, 1.0)
    share = pseudo_rows / (n + pseudo_rows)
    target = common * np.sqrt(np.outer(variances, variances))
    found = (1.0 - share) * own * n / (n - 1.0) + share * target
    return found + prior.form.reg_covar * np.eye(D)


@every_form
def test_trace_weights(name):
    family = GAUSSIANS[name](D)
    packed = family.pack_matrices(wishart(2, np.eye(D), 9))
    one, other = (
        family.unpack(packed) if name == "full" else [np.diag(variances) for variances in packed]
    )
    expected = np.trace(np.linalg.solve(one, other)) / D
    assert family.trace_weights(packed[0]) @ packed[1] == pytest.approx(expected)


@pytest.mark.parametrize("reg_covar", [0.0, 0.3])
@every_form
@both_backends
def test_correlations_and_variances_lean_apart(backend, name, reg_covar):
    """Sizes differ by a million, components lean each by its own, and the decay is lazy."""
    sizes = np.array([1e-4, 1e-2, 1.0, 100.0])[:, None, None]
    covariances = sizes * wishart(4, TYPICAL + 0.5, 30)
    state = leaning(covariances, 50.0, name, backend, reg_covar)
    prior = state.prior
    prior.pseudo_rows = np.array([0.0, 2.0, 50.0, 1e12])
    # Half of the rows are forgotten, and twice as many are behind what is left.
    state.decay(0.5)
    prior.n_rows = 400.0
    state.family.maximise(state.moments, everyone(state), prior, state.model, state.backend.threads)
    for k, found in enumerate(in_use(state)):
        expected = expected_in_use(name, prior, covariances[k], prior.pseudo_rows[k], 50.0)
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-12)
    np.testing.assert_array_equal(state.model.location, state.moments.mean)


@every_form
def test_both_implementations_lean_alike(name):
    """After choices, for some of the components, with statistics of a batch."""
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(6, 9, D)) * np.exp(rng.normal(size=(6, 1, 1)))
    away = rows - rows.mean(axis=1, keepdims=True)
    covariances = away.transpose(0, 2, 1) @ away / 9
    some = np.array([4, 1, 5], dtype=np.int32)
    found = []
    for backend in BACKENDS:
        state = leaning(covariances, 9.0, name, backend, 1e-6)
        state.estimate_shrinkage(HeldOutRows(np.arange(6), away, np.ones((6, 9))))
        update = Statistics(some, *(array[some] for array in state.moments), total_weight=1.0)
        assert state.absorb(update, 0.2).size == 0
        found.append([*state.model, state.prior.pseudo_rows])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
    # Full covariances have chosen, and not all alike.
    assert (np.ptp(found[0][-1]) > 0.0) == (name == "full")


@both_backends
def test_a_component_of_few_rows_leans_by_its_effective_count(backend):
    """trust = min(1, n / (D + 1)), on the mean covariance by mass."""
    covariances = wishart(3, TYPICAL, 30)
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


@every_form
@both_backends
def test_hardly_any_rows_take_what_is_typical(backend, name):
    covariances = wishart(5, TYPICAL + 0.5, 30)
    covariances[0] *= 1e6
    state = state_of(
        name,
        np.array([1e-12, 0.25, 0.25, 0.25, 0.25]),
        np.zeros((5, D)),
        covariances,
        shrinkage="pooled",
        n_rows=400.0,
        backend=backend,
    )
    deviations = np.sqrt(np.exp(state.prior.log_variances))
    common = np.eye(D)
    if name == "full":
        common[np.tril_indices(D)] = state.prior.correlations * (1.0 - state.prior.damping)
        common = np.tril(common, -1) + np.tril(common, -1).T + np.eye(D)
    expected = common * np.outer(deviations, deviations)
    leaned = expected
    if name == "full":
        # By ten pseudo-rows at first: of its own million there is as much as 4e-10 rows have,
        # whose covariance counts three times, by half a degree of freedom.
        share = 400.0 * 1e-12 / (400.0 * 1e-12 + 10.0)
        leaned = (1.0 - share) * expected + share * 3.0 * covariances[0]
    np.testing.assert_allclose(in_use(state)[0], leaned, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(in_use(state)[0], expected, rtol=2e-3)
    assert 0.5 < np.trace(expected) / np.trace(covariances[1:].mean(axis=0)) < 2.0


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


def test_pooled_shape_is_not_ruled_by_the_widest():
    """Covariances count in units of their size, which is measured by the pooled one before."""
    covariances = np.array([[100.0, 300.0], [0.03, 0.01]])
    family = DiagonalGaussian(2, reg_covar=0.0)
    masses = np.full(2, 0.5)
    moments = Moments(masses, masses**2, np.zeros((2, 2)), covariances, np.zeros((2, 0)))
    prior = family.make_prior(moments, "pooled", 200.0)
    sizes = np.mean(covariances / covariances.mean(axis=0), axis=1)
    prior.pool(moments, masses)
    expected = np.mean(covariances / sizes[:, None], axis=0) * stats.gmean(sizes)
    np.testing.assert_allclose(prior.pooled, expected, rtol=1e-6)
    assert 0.7 < prior.pooled[0] / prior.pooled[1] < 0.9


@both_backends
def test_others_lean_as_those_they_are_like(backend):
    covariances = wishart(4, TYPICAL + 0.5, 30)
    state = leaning(covariances, backend=backend)
    state.prior.pseudo_rows = np.array([0.0, 5.0, 80.0, 1e12])
    state.family.maximise(
        state.moments, everyone(state), state.prior, state.model, state.backend.threads
    )
    some = np.array([3, 0, 1])
    other = state.with_components(state.moments_at(some), some)
    np.testing.assert_allclose(in_use(other), in_use(state)[some], rtol=1e-12)
    # Like another one they are others.
    turned = state.with_components(state.moments_at(some), np.array([0, 1, 3]))
    assert (np.abs(in_use(turned) - in_use(other)).max(axis=(1, 2)) > 1e-3).all()
    # A copy of a component leans as that one does from now on.
    state.copy_from(np.array([2]), other, np.array([0]))
    assert state.prior.pseudo_rows[2] == 1e12
    state.family.maximise(
        state.moments, everyone(state), state.prior, state.model, state.backend.threads
    )
    np.testing.assert_allclose(in_use(state)[2], in_use(state)[3], rtol=1e-12)


@both_backends
def test_a_snapshot_knows_who_leans_how_far(backend):
    state = leaning(wishart(4, TYPICAL + 0.5, 30), backend=backend)
    kept = state.snapshot()
    before = state.prior.pseudo_rows.copy()
    state.prior.pseudo_rows[1] = 77.0
    state.prior.background = 2
    state.restore(kept)
    np.testing.assert_array_equal(state.prior.pseudo_rows, before)
    assert state.prior.background == -1
    # A second time as well.
    state.prior.pseudo_rows[1] = 78.0
    state.restore(kept)
    np.testing.assert_array_equal(state.prior.pseudo_rows, before)


@every_form
@both_backends
def test_a_background_is_broad_and_stays_at_the_centre(backend, name):
    state = leaning(wishart(4, TYPICAL, 30), name=name, backend=backend, reg_covar=0.1)
    state.prior.allow_background(np.array([10.0, 20.0, 30.0, 40.0]))
    state.prior.background = 2
    away = np.random.default_rng(0).normal(size=(200, D)) + 5.0
    sums = state.backend.pair_statistics(
        state.layout,
        4,
        away,
        np.ones(200),
        (np.arange(200) % 4).astype(np.int32)[:, None],
        np.ones((200, 1)),
        200.0,
    )
    assert state.absorb(sums, 0.5).size == 0
    # Deviations of half the reach of the rows.
    expected = project(name, np.diag([25.0, 100.0, 225.0, 400.0])) + 0.1 * np.eye(D)
    np.testing.assert_allclose(in_use(state)[2], expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(state.model.location[2], 0.0)
    assert (np.abs(state.model.location[[0, 1, 3]]).max(axis=1) > 1.0).all()
    rows = np.random.default_rng(1).normal(scale=10.0, size=(7, D))
    found = state.family.background_log_densities(state.prior, rows)
    density = stats.multivariate_normal(np.zeros(D), expected)
    np.testing.assert_allclose(found, density.logpdf(rows), rtol=1e-10)
    joint = state.backend.log_joint_all(state.layout, state.model, rows)[2]
    np.testing.assert_allclose(joint - np.log(state.floored_masses[2]), found, rtol=1e-6)


@every_form
@both_backends
def test_fewer_rows_than_columns_are_sound(backend, name):
    """Three rows in four columns, or all rows in one place, or in two."""
    rows = np.random.default_rng(2).normal(size=(3, 3, D))
    rows[1] = 1.0
    rows[2] = np.array([0.0, 0.0, 1.0])[:, None]
    away = rows - rows.mean(axis=1, keepdims=True)
    state = leaning(
        away.transpose(0, 2, 1) @ away / 3, 3.0, name, backend, reg_covar=1e-6
    ).require_sound()
    state.estimate_shrinkage(HeldOutRows(np.arange(3), away, np.ones((3, 3))))
    state.pool()
    failed = state.family.maximise(
        state.moments, everyone(state), state.prior, state.model, state.backend.threads
    )
    assert not failed.any()
    assert np.isfinite(in_use(state)).all()
    assert (np.linalg.eigvalsh(in_use(state)) > 0.0).all()
    joint = state.backend.log_joint_all(state.layout, state.model, rows.reshape(9, D))
    assert np.isfinite(joint).all()

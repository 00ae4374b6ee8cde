"""Student-t components: SciPy's densities, EM's laws, conditionals by quadrature."""

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import logsumexp

from pickmix import FamilyMixture, load, save
from pickmix.closed_form.state import MixtureState
from pickmix.families.base import LeftOutPairs, Pairs, SeenRows
from pickmix.families.distributions import StudentMixture, student_quantiles
from pickmix.families.gaussian import FullGaussian
from pickmix.families.layout import Moments
from pickmix.families.student import MOST_DEGREES, StudentT, degrees_of_gap, log_gap
from pickmix.kernels import numba_kernels, numpy_kernels
from pickmix.kernels.statistics import Statistics
from pickmix.model.mixture import MixtureModel
from pickmix.selection.partitions import Partition

D, K = 3, 4
BACKENDS = {"reference": numpy_kernels, "compiled": numba_kernels}
both_backends = pytest.mark.parametrize("backend", BACKENDS)


def parameters_of(seed=0, n=K, d=D):
    random = np.random.default_rng(seed)
    factors = 0.5 * np.tril(random.standard_normal((n, d, d))) + np.eye(d)
    return {
        "means": 2.0 * random.standard_normal((n, d)),
        "scales": factors @ factors.transpose(0, 2, 1),
        "degrees_of_freedom": random.uniform(2.5, 9.0, n),
    }


WEIGHTS = np.array([0.1, 0.2, 0.3, 0.4])


def log_joints(parameters, rows, columns=slice(None)):
    """log p(x, k) by SciPy, (K, n), of some columns."""
    found = []
    for k, weight in enumerate(WEIGHTS):
        mean, scale, degrees = (values[k] for values in parameters.values())
        distribution = stats.multivariate_t(mean[columns], scale[columns][:, columns], degrees)
        found.append(np.log(weight) + np.atleast_1d(distribution.logpdf(rows[:, columns])))
    return np.stack(found)


def rows_of(parameters, n, seed=1):
    model = MixtureModel(StudentT(D, 0.0), WEIGHTS, parameters)
    random = np.random.default_rng(seed)
    return random.permutation(model.sample(n, random)[0])


def state_of(parameters, backend, weights=WEIGHTS):
    family = StudentT(D, 0.0)
    moments = family.moments_of(parameters, np.zeros(D))._replace(mass=weights.copy())
    prior = family.make_prior(moments, "none", 1.0)
    return MixtureState(family, moments, backend, prior).require_sound()


def with_gaps(rows, seed=2):
    gaps = np.random.default_rng(seed).random(rows.shape) < 0.3
    return np.where(gaps, np.nan, rows)


@both_backends
def test_densities_are_those_of_scipy(backend):
    parameters, engine = parameters_of(), BACKENDS[backend]
    rows = rows_of(parameters, 80)
    state = state_of(parameters, engine)
    expected = log_joints(parameters, rows)
    found = engine.log_joint_all(state.layout, state.model, rows)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
    candidates = np.random.default_rng(0).integers(-1, K, (80, 3)).astype(np.int32)
    pairs = engine.log_joint(state.layout, state.model, rows, candidates)
    chosen = np.take_along_axis(expected.T, np.maximum(candidates, 0), axis=1)
    np.testing.assert_allclose(pairs, np.where(candidates < 0, -np.inf, chosen), atol=1e-10)
    partial = with_gaps(rows)
    found = engine.log_joint_all(state.layout, state.model, partial)
    for i, row in enumerate(partial):
        seen = np.flatnonzero(~np.isnan(row))
        one = log_joints(parameters, row[None], seen)[:, 0] if seen.size else np.log(WEIGHTS)
        np.testing.assert_allclose(found[:, i], one, rtol=1e-9, atol=1e-9)


@both_backends
@pytest.mark.parametrize("partial", [False, True])
def test_a_sweep_is_the_posterior_and_its_expected_statistics(backend, partial):
    """Rows are weighted by r E[u]; of gaps, E[u v v'] is u m m' and the Gaussian's covariance."""
    parameters, engine = parameters_of(), BACKENDS[backend]
    rows = rows_of(parameters, 200)
    if partial:
        rows = with_gaps(rows)
    state = state_of(parameters, engine)
    weights = np.random.default_rng(4).uniform(0.5, 2.0, 200)

    class Source:
        def gather(self, numbers):
            return rows[numbers]

        def weights_of(self, numbers):
            return weights[numbers], float(numbers.shape[0])

        def patterns_of(self, numbers):
            return numbers if partial else None

    swept = engine.sweep(
        state.layout, state.model, Source(), np.arange(200), np.zeros(200, dtype=np.int32),
        Partition.of_blocks(np.arange(K), K), np.uint64(3),
    )  # fmt: skip
    joint = engine.log_joint_all(state.layout, state.model, rows)
    np.testing.assert_allclose(swept.log_sums, logsumexp(joint, axis=0), atol=1e-9)
    shares = weights * np.exp(joint - logsumexp(joint, axis=0))
    for k in range(K):
        mean, scale, degrees = (values[k] for values in parameters.values())
        total, first, second, logs = 0.0, np.zeros(D), np.zeros((D, D)), 0.0
        for row, r in zip(rows, shares[k], strict=True):
            seen = ~np.isnan(row)
            gain = scale[:, seen] @ np.linalg.inv(scale[seen][:, seen])
            away = row[seen] - mean[seen]
            q = away @ np.linalg.solve(scale[seen][:, seen], away)
            shape, rate = 0.5 * (degrees + seen.sum()), 0.5 * (degrees + q)
            u, filled = shape / rate, mean + gain @ away
            total, first, logs = total + r * u, first + r * u * filled, logs + r * (
                stats.loggamma.mean(shape) - np.log(rate)
            )  # fmt: skip
            rest = scale - gain @ scale[seen]
            second += r * (u * np.outer(filled, filled) + rest)
        place = np.flatnonzero(swept.statistics.members == k)[0]
        found = swept.statistics.at(np.array([place]))
        close = {"rtol": 1e-4, "atol": 1e-3}
        np.testing.assert_allclose(found.mass[0], total, **close)
        np.testing.assert_allclose(found.mean[0], first / total, **close)
        scatter = second - np.outer(first, first) / total
        np.testing.assert_allclose(found.scatter[0], scatter[np.tril_indices(D)], **close)
        np.testing.assert_allclose(found.counts[0], [shares[k].sum(), logs], **close)


def em_step(state, rows):
    joint = state.backend.log_joint_all(state.layout, state.model, rows)
    totals, n = logsumexp(joint, axis=0), rows.shape[0]
    shares = np.exp(joint - totals)
    sums = state.backend.sums_of_all(state.layout, rows, np.ones(n), shares, state.model)
    everyone = np.arange(state.n_components, dtype=np.int32)
    assert state.absorb(Statistics(everyone, *sums, total_weight=float(n)), 1.0).size == 0
    return totals.mean()


@both_backends
@pytest.mark.parametrize("partial", [False, True])
def test_em_never_descends(backend, partial):
    rows = rows_of(parameters_of(), 300)
    rows = with_gaps(rows) if partial else rows
    start = parameters_of()
    start["means"] = start["means"] + 0.7
    start["degrees_of_freedom"] = np.full(K, 20.0)
    state = state_of(start, BACKENDS[backend])
    climbed = np.array([em_step(state, rows) for _ in range(25)])
    assert (np.diff(climbed) > -1e-10).all()
    assert climbed[-1] > climbed[0] + 0.1
    assert state.weights.sum() == pytest.approx(1.0)


def test_one_component_is_the_maximum_of_the_likelihood():
    rows = stats.multivariate_t([1.0, -2.0], [[2.0, 0.6], [0.6, 0.5]], 4.0, seed=5).rvs(600)
    mixture = FamilyMixture(
        "student_t", 1, algorithm="em", reg_covar=0.0, tol=1e-12, max_iter=5000
    ).fit(rows)

    def loss(theta):
        lower = np.array([[np.exp(theta[2]), 0.0], [theta[3], np.exp(theta[4])]])
        density = stats.multivariate_t(theta[:2], lower @ lower.T, 2.0 + np.exp(theta[5]))
        return -density.logpdf(rows).mean()

    best = optimize.minimize(loss, np.zeros(6), method="BFGS", options={"gtol": 1e-7})
    assert mixture.score(rows) == pytest.approx(-best.fun, abs=1e-6)
    degrees = mixture.parameters_["degrees_of_freedom"][0]
    assert degrees == pytest.approx(2.0 + np.exp(best.x[5]), rel=2e-3)


def test_many_degrees_of_freedom_tend_to_a_gaussian():
    parameters = parameters_of()
    rows = rows_of(parameters, 200)
    parameters["degrees_of_freedom"] = np.full(K, MOST_DEGREES)
    gaussian = {"means": parameters["means"], "covariances": parameters["scales"]}
    # (1 + q / nu)^-(nu + D)/2 differs by about q^2 / (4 nu).
    near = rows[np.abs(rows).max(axis=1) < 4.0]
    one = MixtureModel(StudentT(D, 0.0), WEIGHTS, parameters).score_samples(near)
    other = MixtureModel(FullGaussian(D, 0.0), WEIGHTS, gaussian).score_samples(near)
    np.testing.assert_allclose(one, other, atol=0.1)
    rows = np.random.default_rng(0).standard_normal((4000, D))
    mixture = FamilyMixture("student_t", 1, random_state=0).fit(rows)
    assert mixture.parameters_["degrees_of_freedom"][0] > 30.0


def test_gaps_of_logarithms_have_their_degrees_of_freedom():
    degrees = np.array([2.2, 3.0, 10.0, 200.0])
    np.testing.assert_allclose(degrees_of_gap(log_gap(degrees)), degrees, rtol=1e-8)
    u = stats.gamma(1.5, scale=1.0 / 1.5)
    assert log_gap(3.0) == pytest.approx(-u.expect(np.log), abs=1e-6)


def test_draws_have_the_frequencies_of_the_density():
    parameters = parameters_of()
    drawn = rows_of(parameters, 20_000)
    for column in range(D):
        scales = np.sqrt(parameters["scales"][:, column, column])
        degrees = parameters["degrees_of_freedom"]
        marginal = StudentMixture(WEIGHTS, parameters["means"][:, column], scales, degrees)
        edges = np.quantile(drawn[:5000, column], np.linspace(0.0, 1.0, 21)[1:-1])
        expected = np.diff(marginal.cumulative(edges), prepend=0.0, append=1.0) * 15_000
        bins = np.searchsorted(edges, drawn[5000:, column])
        assert stats.chisquare(np.bincount(bins, minlength=20), expected).pvalue > 1e-4


@pytest.fixture(scope="module")
def fitted():
    parameters = parameters_of(3)
    return FamilyMixture("student_t", 3, random_state=0).fit(rows_of(parameters, 800))


def density(mixture, rows):
    p, w = mixture.parameters_, mixture.weights_
    found = [
        stats.multivariate_t(p["means"][k], p["scales"][k], p["degrees_of_freedom"][k]).pdf(rows)
        for k in range(3)
    ]
    return w @ np.stack(found)


def test_conditionals_are_those_of_quadrature(fitted):
    """Of column 1, given columns 0 and 2 far from the middle, where tails matter."""
    given = np.array([5.0, -4.0])
    x = np.tan(np.linspace(-1.0, 1.0, 40_001) * (0.5 * np.pi - 1e-4))
    rows = np.column_stack([np.full_like(x, given[0]), x, np.full_like(x, given[1])])
    heights = density(fitted, rows)
    heights /= np.trapezoid(heights, x)
    answer = fitted.conditional({0: given[0], 2: given[1]})
    mean = np.trapezoid(heights * x, x)
    variance = np.trapezoid(heights * (x - mean) ** 2, x)
    assert answer.mean()[0, 0] == pytest.approx(mean, rel=1e-3)
    assert answer.std()[0, 0] == pytest.approx(np.sqrt(variance), rel=1e-2)
    assert answer.covariance()[0, 0, 0] == pytest.approx(answer.std()[0, 0] ** 2)
    below = np.concatenate([[0.0], np.cumsum(0.5 * (heights[1:] + heights[:-1]) * np.diff(x))])
    for share in (0.02, 0.5, 0.9):
        expected = np.interp(share, below, x)
        assert answer.quantile(share)[0, 0, 0] == pytest.approx(expected, rel=1e-3, abs=1e-3)
    found = answer[0].score_samples(x[20_000:20_010, None])
    np.testing.assert_allclose(found, np.log(heights[20_000:20_010]), atol=1e-4)
    drawn = answer.sample(4000, random_state=0)[0, :, 0]
    uniform = np.interp(drawn, x, below)
    assert stats.kstest(uniform, "uniform").pvalue > 1e-3


def test_marginals_integrate_the_density(fitted):
    marginal = fitted.marginal([2, 0])
    p = fitted.parameters_
    rows = np.array([[0.3, -1.0], [9.0, 4.0]])
    expected = fitted.weights_ @ np.stack(
        [
            stats.multivariate_t(
                p["means"][k][[2, 0]], p["scales"][k][np.ix_([2, 0], [2, 0])],
                p["degrees_of_freedom"][k],
            ).pdf(rows)
            for k in range(3)
        ]
    )  # fmt: skip
    np.testing.assert_allclose(marginal.score_samples(rows), np.log(expected), rtol=1e-9)


def test_each_cell_left_out_is_its_conditional():
    parameters = parameters_of(d=4)
    (part,) = StudentT(4, 0.0).parts(parameters, np.zeros(4))
    seen, values = np.array([True, False, True, True]), rows_of(parameters_of(), 6)
    values = np.column_stack([values, values[:, 0]])
    found = part.leave_out(SeenRows(values, np.tile(seen, (6, 1)), np.zeros(6, dtype=int)))
    for m, j in enumerate([0, 2, 3]):
        left = seen.copy()
        left[j] = False
        rows = SeenRows(values, np.tile(left, (6, 1)), np.zeros(6, dtype=int))
        for k in range(K):
            pairs = Pairs(rows, np.arange(6), np.full(6, k))
            mean, variance = part.moments(pairs, np.array([j]))
            degrees = parameters["degrees_of_freedom"][k] + 2.0
            scale = np.sqrt(variance[:, 0] * (degrees - 2.0) / degrees)
            expected = stats.t(degrees, mean[:, 0], scale).logpdf(values[:, j])
            np.testing.assert_allclose(found.log_densities[k, :, m], expected, rtol=1e-8)
            np.testing.assert_allclose(found.means[k, :, m], mean[:, 0], rtol=1e-8, atol=1e-9)
            np.testing.assert_allclose(found.variances[k, :, m], variance[:, 0], rtol=1e-8)


def test_quantiles_of_random_mixtures():
    random = np.random.default_rng(4)
    sizes = random.integers(1, 9, 100)
    starts, total = np.cumsum(sizes) - sizes, sizes.sum()
    weights = random.gamma(0.3, size=total) + 1e-12
    weights /= np.repeat(np.add.reduceat(weights, starts), sizes)
    means, scales = 50.0 * random.normal(size=total), np.exp(random.normal(size=total))
    degrees = random.uniform(2.2, 20.0, total)
    for quantile in (1e-4, 0.3, 0.99):
        found = student_quantiles(weights, means, scales, degrees, starts, quantile)
        away = (np.repeat(found, sizes) - means) / scales
        reached = np.add.reduceat(weights * stats.t(degrees).cdf(away), starts)
        np.testing.assert_allclose(reached, quantile, rtol=1e-6)


def test_parts_of_a_column_have_their_share_and_draws():
    parameters = parameters_of()
    (part,) = StudentT(D, 0.0).parts(parameters, np.zeros(D))
    seen, values = np.array([[True, False, False]]), np.array([[6.0, 0.0, 0.0]])
    rows = SeenRows(values, seen, np.zeros(1, dtype=int))
    pairs = Pairs(rows, np.zeros(K, dtype=int), np.arange(K))
    ends = np.array([-1.0, 3.0]), np.array([1.0, np.inf])
    shares, inverse = part.within(pairs, 2, *ends)
    mean, variance = part.moments(pairs, np.array([2]))
    degrees = parameters["degrees_of_freedom"][:, None] + 1.0
    column = stats.t(degrees, mean, np.sqrt(variance * (degrees - 2.0) / degrees))
    np.testing.assert_allclose(shares, column.cdf(ends[1]) - column.cdf(ends[0]), atol=1e-12)
    inside = inverse(np.full((K, 2), 0.3))
    reached = (column.cdf(inside) - column.cdf(ends[0])) / shares
    # Uniforms count from either end.
    np.testing.assert_allclose(np.abs(reached - 0.5), 0.2, rtol=1e-7)


def test_leaving_out_a_row_is_estimating_without_it():
    """Of one component of full weight, against EM steps with the other rows."""
    random = np.random.default_rng(6)
    rows = stats.multivariate_t(np.zeros(D), np.eye(D), 4.0, seed=random).rvs(60)
    family = StudentT(D, 0.0)

    def fit(some):
        ones = np.ones((1, some.shape[0]))
        sums = numpy_kernels.sums_of_all(family.layout, some, ones[0], ones)
        mass, squares, *means = sums
        moments = Moments(np.ones(1), squares / mass**2, means[0], *(m / mass for m in means[1:]))
        state = MixtureState(
            family, moments, numpy_kernels, family.make_prior(moments, "none", some.shape[0])
        )
        for _ in range(200):
            em_step(state, some)
        return state

    state = fit(rows)
    here = numpy_kernels.log_joint_all(state.layout, state.model, rows)[0]
    zeros, ones = np.zeros(60, dtype=int), np.ones(60)
    pairs = LeftOutPairs(zeros, here, rows, np.arange(60), ones, 60.0 * ones)
    prior = family.make_prior(state.moments, "pooled", 60.0)
    prior.pseudo_rows[:] = 0.0
    falls = family.left_out_falls(state.model, prior, pairs)
    expected = []
    for i in range(0, 60, 3):
        other = fit(np.delete(rows, i, axis=0))
        there = numpy_kernels.log_joint_all(other.layout, other.model, rows[[i]])[0, 0]
        expected.append(here[i] - there)
    assert np.corrcoef(falls[::3], expected)[0, 1] > 0.9
    assert falls[::3].mean() == pytest.approx(np.mean(expected), rel=0.35)


def test_merges_files_and_messages(fitted, tmp_path):
    save(fitted, tmp_path / "t.pickmix")
    rows = rows_of(parameters_of(3), 50, seed=8)
    again = load(tmp_path / "t.pickmix")
    np.testing.assert_array_equal(again.score_samples(rows), fitted.score_samples(rows))
    one = fitted.reduce(1)
    assert one.parameters_["means"].shape == (1, D)
    np.testing.assert_allclose(
        one.parameters_["means"][0], fitted.weights_ @ fitted.parameters_["means"], rtol=1e-9
    )
    degrees = fitted.parameters_["degrees_of_freedom"]
    assert degrees.min() <= one.parameters_["degrees_of_freedom"][0] <= degrees.max()
    explained = fitted.explain(rows)
    np.testing.assert_allclose(explained.log_density, fitted.score_samples(rows), rtol=1e-9)
    with pytest.raises(ValueError, match="all columns together"):
        FamilyMixture([("student_t", [0, 1]), ("diag", [2])]).fit(rows)


def test_outliers_move_nothing():
    """One row in fifty is far away: means of t components stay, those of Gaussians move."""
    random = np.random.default_rng(0)
    rows = random.standard_normal((1000, 2))
    rows[::50] += 30.0
    heavy = FamilyMixture("student_t", 1, random_state=0).fit(rows)
    assert np.abs(heavy.parameters_["means"]).max() < 0.15
    assert FamilyMixture("full", 1, random_state=0).fit(rows).parameters_["means"].min() > 0.4

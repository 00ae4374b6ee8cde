"""Low-rank covariances against dense algebra, scikit-learn's factor analysis, and themselves."""

import numpy as np
import pytest
from scipy import stats
from sklearn.decomposition import FactorAnalysis

from pickmix import GaussianMixture, load, save
from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows
from pickmix.families.base import LeftOutPairs
from pickmix.families.layout import Moments, merge_groups, moments_of_mass_one
from pickmix.families.low_rank import LowRankGaussian
from pickmix.families.low_rank_layout import canonical, orthonormal, shrunk, unshrunk
from pickmix.kernels import numba_kernels, numpy_kernels
from pickmix.kernels.statistics import Statistics
from pickmix.model.mixture import MixtureModel
from pickmix.selection.partitions import Partition
from pickmix.threads import use_threads

K, D, H = 4, 12, 3


@pytest.fixture
def model():
    random = np.random.default_rng(1)
    parameters = {
        "means": random.normal(size=(K, D)),
        "loadings": random.normal(size=(K, D, H)),
        "noise_variances": random.uniform(0.1, 0.5, (K, D)),
    }
    parameters["loadings"][0, :, 1:] = 0.0
    return MixtureModel(LowRankGaussian(D, 0.0, H), np.array([0.1, 0.2, 0.3, 0.4]), parameters)


def _covariances(model):
    loadings, noise = model.parameters["loadings"], model.parameters["noise_variances"]
    return loadings @ loadings.transpose(0, 2, 1) + noise[:, :, None] * np.eye(noise.shape[1])


def _dense(model):
    """The same mixture with full covariances, whose queries are tested elsewhere."""
    made = GaussianMixture(model.n_components)
    made.weights_, made.n_features_in_ = model.weights, D
    made.means_, made.covariances_ = model.parameters["means"], _covariances(model)
    return made


def _low_rank(model):
    made = GaussianMixture(model.n_components, covariance_type="low_rank", rank=H)
    made.weights_, made.n_features_in_ = model.weights, D
    made._set_parameters(model.weights, model.parameters)
    return made


def _rows(model, n=200):
    return model.sample(n, np.random.default_rng(2))[0]


def test_log_densities_are_those_of_scipy(model):
    rows = _rows(model)
    expected = np.logaddexp.reduce(
        [
            np.log(w) + stats.multivariate_normal(mean, covariance).logpdf(rows)
            for w, mean, covariance in zip(
                model.weights, model.parameters["means"], _covariances(model), strict=True
            )
        ]
    )
    np.testing.assert_allclose(model.score_samples(rows), expected, rtol=1e-11)


def test_parameters_come_back(model):
    state = model.frozen(_rows(model, 3))[0]
    back = model.family.parameters(state.model, model.centre())
    np.testing.assert_allclose(back["means"], model.parameters["means"], rtol=1e-12)
    again = MixtureModel(model.family, model.weights, back)
    np.testing.assert_allclose(_covariances(again), _covariances(model), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("backend", [numpy_kernels, numba_kernels])
def test_float32_sweeps_are_the_exact_ones_to_rounding(model, backend):
    rows = _rows(model) + 1000.0
    model.parameters["means"][:] += 1000.0
    state, source, _ = model.frozen(rows)
    numbers, chain = np.arange(len(rows)), np.zeros(len(rows), dtype=np.int32)
    everything = Partition.of_blocks(np.arange(K), K)
    swept = backend.sweep(
        state.layout, state.model, source, numbers, chain, everything, np.uint64(3)
    )
    joint = backend.log_joint_all(state.layout, state.model, source.gather(numbers))
    np.testing.assert_allclose(swept.log_sums, np.logaddexp.reduce(joint), atol=2e-3)
    shares = np.exp(joint - np.logaddexp.reduce(joint))
    sums = backend.sums_of_all(
        state.layout, source.gather(numbers), np.ones(len(rows)), shares, state.model
    )
    exact = Statistics(everything.members, *sums, float(len(rows)))
    np.testing.assert_allclose(swept.statistics.mass, exact.mass, atol=0.05)
    np.testing.assert_allclose(swept.statistics.mean, exact.mean, atol=2e-3)
    np.testing.assert_allclose(swept.statistics.scatter, exact.scatter, atol=0.3, rtol=2e-3)


def test_components_too_narrow_for_float32_are_evaluated_by_themselves(model):
    parameters = model.parameters | {"noise_variances": np.full((K, D), 1e-9)}
    narrow = MixtureModel(model.family, model.weights, parameters)
    rows = narrow.sample(50, np.random.default_rng(0))[0]
    state, source, _ = narrow.frozen(rows)
    numbers, chain = np.arange(50), np.zeros(50, dtype=np.int32)
    everything = Partition.of_blocks(np.arange(K), K)
    swept = numpy_kernels.sweep(
        state.layout, state.model, source, numbers, chain, everything, np.uint64(3)
    )
    exact = narrow.score_samples(rows) + state.log_total()
    np.testing.assert_allclose(swept.log_sums, exact, atol=0.02)


def test_rounding_does_not_hide_a_narrow_component_behind_broad_ones(model):
    noise = np.full((K, D), 1e4)
    noise[0] = 1e-6
    parameters = model.parameters | {"noise_variances": noise}
    parameters["means"] = 300.0 * parameters["means"]
    mixed = MixtureModel(model.family, model.weights, parameters)
    rows = mixed.sample(200, np.random.default_rng(0))[0]
    state, source, _ = mixed.frozen(rows)
    swept = numpy_kernels.sweep(
        state.layout,
        state.model,
        source,
        np.arange(200),
        np.zeros(200, dtype=np.int32),
        Partition.of_blocks(np.arange(K), K),
        np.uint64(3),
    )
    exact = mixed.score_samples(rows) + state.log_total()
    np.testing.assert_allclose(swept.log_sums, exact, atol=0.02)


def test_threads_do_not_change_bits(model):
    rows = np.repeat(_rows(model, 400), 10, axis=0)
    rows += np.random.default_rng(0).normal(size=rows.shape)

    def fitted(n_jobs):
        return GaussianMixture(
            12, covariance_type="low_rank", rank=3, random_state=0, max_steps=8, n_jobs=n_jobs
        ).fit(rows)

    one, two = fitted(1), fitted(2)
    np.testing.assert_array_equal(one.loadings_, two.loadings_)
    np.testing.assert_array_equal(one.score_samples(rows), two.score_samples(rows))


def _sum_up(state, rows):
    sums = numpy_kernels.sums_of_all(
        state.layout, rows, np.ones(len(rows)), np.ones((1, len(rows))), state.model
    )
    return Statistics(np.zeros(1, dtype=np.int32), *sums, float(len(rows)))


@pytest.fixture
def factor_rows():
    random = np.random.default_rng(0)
    loadings = random.normal(size=(20, 3)) * 2.0
    return random.normal(size=(600, 3)) @ loadings.T + random.normal(size=(600, 20)) * 0.7


@pytest.mark.parametrize(("monotone", "n_steps"), [(False, 60), (True, 1500)])
def test_one_component_comes_to_the_maximum_of_factor_analysis(factor_rows, monotone, n_steps):
    rows = factor_rows
    best = FactorAnalysis(3, tol=1e-12, max_iter=20000, svd_method="lapack").fit(rows)
    family = LowRankGaussian(20, 0.0, 3, monotone)
    source = ArrayRows(rows)
    start = numpy_kernels.sums_of_all(
        family.layout, source.gather(np.arange(600)), np.ones(600), np.ones((1, 600))
    )
    mass, _, mean, scatter, counts = start
    moments = Moments(np.ones(1), np.ones(1) / 600.0, mean, scatter / mass[:, None], counts)
    prior = family.make_prior(moments, "none", 600.0)
    state = MixtureState(family, moments, numpy_kernels, prior)
    values = []
    for _ in range(n_steps):
        state.absorb(_sum_up(state, source.gather(np.arange(600))), 1.0)
        joint = numpy_kernels.log_joint_all(
            state.layout, state.model, source.gather(np.arange(600))
        )
        values.append(float(joint.mean()))
    if monotone:
        assert np.diff(values).min() > -1e-9
    assert values[-1] == pytest.approx(best.score(rows), abs=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_em_never_descends(factor_rows, share):
    rows = factor_rows.copy()
    rows[np.random.default_rng(0).uniform(size=rows.shape) < share] = np.nan
    mixture = GaussianMixture(
        3,
        covariance_type="low_rank",
        rank=2,
        algorithm="em",
        random_state=0,
        max_steps=60,
        evaluate_every=1,
    ).fit(rows)
    assert np.diff(mixture.lower_bounds_).min() > -1e-9
    assert len(mixture.lower_bounds_) == 60


def test_rank_zero_is_diagonal(factor_rows):
    low = GaussianMixture(
        3, covariance_type="low_rank", rank=0, algorithm="em", random_state=0, reg_covar=0.0
    ).fit(factor_rows)
    plain = GaussianMixture(
        3, covariance_type="diag", algorithm="em", random_state=0, reg_covar=0.0
    ).fit(factor_rows)
    np.testing.assert_allclose(low.noise_variances_, plain.covariances_, rtol=1e-9)
    np.testing.assert_allclose(
        low.score_samples(factor_rows), plain.score_samples(factor_rows), rtol=1e-9
    )


def test_the_largest_rank_tends_to_full(factor_rows):
    low = GaussianMixture(
        1, covariance_type="low_rank", rank=19, algorithm="em", tol=1e-7, max_iter=800
    ).fit(factor_rows)
    full = GaussianMixture(1, algorithm="em").fit(factor_rows)
    assert low.score(factor_rows) == pytest.approx(full.score(factor_rows), abs=0.02)


def test_answers_are_those_of_full_covariances(model):
    low, full, rows = _low_rank(model), _dense(model), _rows(model, 30)
    rows[5] += 8.0
    for name in ("score_samples", "predict_proba"):
        np.testing.assert_allclose(
            getattr(low, name)(rows), getattr(full, name)(rows), rtol=1e-9, atol=1e-12
        )
    np.testing.assert_allclose(low.covariances_, full.covariances_, rtol=1e-12)
    np.testing.assert_allclose(low.covariance(2), full.covariance(2), rtol=1e-12)
    columns = [7, 2, 9]
    np.testing.assert_allclose(
        low.marginal(columns).score_samples(rows[:, columns]),
        full.marginal(columns).score_samples(rows[:, columns]),
        rtol=1e-9,
    )
    known = {0: 0.5, 3: -1.0, 8: 2.0}
    one, other = low.conditional(known), full.conditional(known)
    np.testing.assert_allclose(one.mean(), other.mean(), rtol=1e-9)
    np.testing.assert_allclose(one.covariance(), other.covariance(), rtol=1e-9)
    np.testing.assert_allclose(one[0].covariances_, other[0].covariances_, rtol=1e-9)
    explained, expected = low.explain(rows), full.explain(rows)
    for name in ("log_density", "log_conditional", "expected", "spread"):
        np.testing.assert_allclose(getattr(explained, name), getattr(expected, name), rtol=1e-9)
    np.testing.assert_array_equal(explained.ranked, expected.ranked)
    gaps = rows.copy()
    gaps[np.random.default_rng(0).uniform(size=gaps.shape) < 0.3] = np.nan
    np.testing.assert_allclose(low.impute(gaps), full.impute(gaps), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(low.score_samples(gaps), full.score_samples(gaps), rtol=1e-9)


def test_a_group_has_the_moments_of_its_components(model):
    """With a rank that holds all of it, a merge is exact."""
    family = LowRankGaussian(D, 0.0, D - 1)
    wide = MixtureModel(family, model.weights, model.parameters)
    centre = wide.centre()
    merged = merge_groups(family.layout, wide.moments(centre), np.array([0, 1, 1, 0]))
    state = MixtureState(family, merged, numpy_kernels, family.make_prior(merged, "none", 1.0))
    parameters = family.parameters(state.model, centre)
    made = MixtureModel(family, merged.mass, parameters)
    for group, members in enumerate([[0, 3], [1, 2]]):
        shares = model.weights[members] / model.weights[members].sum()
        means = model.parameters["means"][members]
        mean = shares @ means
        away = means - mean
        expected = np.einsum("k,kij->ij", shares, _covariances(model)[members])
        expected += (shares[:, None] * away).T @ away
        np.testing.assert_allclose(made.parameters["means"][group], mean, rtol=1e-12)
        np.testing.assert_allclose(_covariances(made)[group], expected, rtol=1e-8, atol=1e-10)


def test_merges_of_all_that_fits_cost_what_full_ones_cost(model):
    wide = _low_rank(model)
    wide.loadings_ = np.concatenate([wide.loadings_, np.zeros((K, D, D - 1 - H))], axis=2)
    tree, expected = wide.merge_tree(), _dense(model).merge_tree()
    # The last merge has a larger rank than there is room for.
    np.testing.assert_allclose(tree.costs[:-1], expected.costs[:-1], rtol=1e-7)
    np.testing.assert_allclose(
        wide.reduce(2).covariances_, _dense(model).reduce(2).covariances_, rtol=1e-7, atol=1e-9
    )


def test_gaps_complete_statistics_as_full_covariances_do(model):
    """T and variances of rows with gaps are those of the expected rows and their covariance."""
    rows = _rows(model, 40)
    rows[np.random.default_rng(4).uniform(size=rows.shape) < 0.3] = np.nan
    state, source, _ = model.frozen(rows)
    gathered, weights = source.gather(np.arange(40)), np.random.default_rng(5).uniform(size=40)
    sums = numpy_kernels.sums_of_all(state.layout, gathered, weights, np.ones((K, 40)), state.model)
    columns = state.layout.split(state.model.factor)[2]
    for k, covariance in enumerate(_covariances(model)):
        total, first = np.zeros((D, D)), np.zeros(D)
        for row, w in zip(gathered - state.model.location[k], weights, strict=True):
            seen, gap = np.flatnonzero(~np.isnan(row)), np.flatnonzero(np.isnan(row))
            gain = covariance[np.ix_(gap, seen)] @ np.linalg.inv(covariance[np.ix_(seen, seen)])
            full = row.copy()
            full[gap] = gain @ row[seen]
            rest = np.zeros((D, D))
            rest[np.ix_(gap, gap)] = (
                covariance[np.ix_(gap, gap)] - gain @ covariance[np.ix_(seen, gap)]
            )
            total += w * (np.outer(full, full) + rest)
            first += w * full
        variances, _, along = state.layout.split(sums[3][k : k + 1])
        np.testing.assert_allclose(along[0], total @ columns[k], rtol=1e-8, atol=1e-8)
        expected = np.diagonal(total) - np.square(first) / weights.sum()
        np.testing.assert_allclose(variances[0], expected, rtol=1e-8)


def test_canonical_forms_are_the_same_covariance():
    random = np.random.default_rng(0)
    loadings, noise = random.normal(size=(9, 4)), random.uniform(0.1, 2.0, 9)
    q, d = canonical(loadings, noise)
    np.testing.assert_allclose(q.T @ q, np.eye(4), atol=1e-12)
    s = np.sqrt(noise)[:, None]
    np.testing.assert_allclose((s * q * d) @ (s * q).T, loadings @ loadings.T, atol=1e-12)
    for columns in (loadings, np.concatenate([loadings, loadings[:, :1] * (1 + 1e-12)], axis=1)):
        weights = np.arange(1.0, columns.shape[1] + 1)
        q, values = (found[0] for found in orthonormal(columns[None], weights[None]))
        np.testing.assert_allclose(q.T @ q, np.eye(columns.shape[1]), atol=1e-8)
        np.testing.assert_allclose((q * values) @ q.T, (columns * weights) @ columns.T, atol=1e-8)


def test_shrinkage_is_that_of_a_spike_found_in_noise():
    """Variance of new rows along the sample's first direction, one spike among noise."""
    random = np.random.default_rng(3)
    n, p, spike = 400, 200, 4.0
    scales = np.ones(p)
    scales[0] = np.sqrt(1.0 + spike)
    found, known = [], []
    for _ in range(20):
        rows = random.normal(size=(n, p)) * scales
        values, vectors = np.linalg.eigh(rows.T @ rows / n)
        found.append(shrunk(values[-1:], p / n)[0])
        known.append(np.square(scales * vectors[:, -1]).sum() - 1.0)
    assert np.mean(found) == pytest.approx(np.mean(known), rel=0.06)
    d = np.array([0.3, 1.0, 7.0])
    np.testing.assert_allclose(shrunk(unshrunk(d, np.asarray(0.5)), 0.5), d, rtol=1e-9)


def test_a_row_falls_by_about_what_the_others_make_of_it(factor_rows):
    """Against fits without the row."""
    rows = factor_rows[:60]

    def fitted(some):
        return GaussianMixture(
            1, covariance_type="low_rank", rank=3, random_state=0, background=False, max_steps=25
        ).fit(some)

    whole = fitted(rows)
    state, _, _ = whole.model_.frozen(rows)
    family = state.family
    moments = whole._fitted_moments(family, whole.model_.centre())
    prior = family.make_prior(moments, "pooled", 60.0)
    some = np.arange(0, 60, 4)
    pairs = LeftOutPairs(
        np.zeros(some.size, dtype=np.int64),
        np.zeros(some.size),
        rows - whole.model_.centre(),
        some,
        np.ones(some.size),
        np.full(some.size, 60.0),
    )
    falls = family.left_out_falls(state.model, prior, pairs)
    known = whole.score_samples(rows[some]) - np.array(
        [fitted(np.delete(rows, i, axis=0)).score_samples(rows[i : i + 1])[0] for i in some]
    )
    assert np.corrcoef(falls, known)[0, 1] > 0.9
    assert falls.mean() == pytest.approx(known.mean(), rel=0.35)


def test_fits_find_clusters_of_low_rank_and_prune():
    random = np.random.default_rng(0)
    labels = random.integers(3, size=1500)
    means, loadings = random.normal(size=(3, 40)) * 2.0, random.normal(size=(3, 40, 2))
    X = means[labels] + np.einsum("ndh,nh->nd", loadings[labels], random.normal(size=(1500, 2)))
    X += 0.5 * random.normal(size=X.shape)
    mixture = GaussianMixture(3, covariance_type="low_rank", random_state=0).fit(X)
    assert mixture.ranks_.tolist() == [2, 2, 2]
    assert mixture.loadings_.shape == (3, 40, 2)
    truth = np.logaddexp.reduce(
        [
            np.log(1 / 3) + stats.multivariate_normal(m, b @ b.T + 0.25 * np.eye(40)).logpdf(X)
            for m, b in zip(means, loadings, strict=True)
        ]
    )
    assert mixture.score(X) == pytest.approx(truth.mean(), abs=0.35)
    found = mixture.factors(X)
    own = mixture.predict(X)
    k = int(own[labels == 0][0])
    z = np.linalg.lstsq(mixture.loadings_[k], (X[own == k] - mixture.means_[k]).T, rcond=None)[0].T
    assert np.corrcoef(z[:, 0], found[own == k, 0])[0, 1] > 0.99


def test_saved_and_loaded(model, tmp_path):
    rows = _rows(model, 300)
    mixture = GaussianMixture(2, covariance_type="low_rank", rank=2, random_state=0).fit(rows)
    save(mixture, tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.score_samples(rows), mixture.score_samples(rows))
    np.testing.assert_array_equal(again.ranks_, mixture.ranks_)


def test_what_is_refused_says_what_to_use(model):
    low, full = _low_rank(model), _dense(model)
    with pytest.raises(AttributeError, match="covariance\\(k\\)"):
        _ = low.precisions_
    with pytest.raises(ValueError, match="low_rank"):
        full.factors(_rows(model, 2))
    with pytest.raises(AttributeError, match="low_rank"):
        _ = full.ranks_
    with pytest.raises(ValueError, match="component must be below 4"):
        low.covariance(4)
    with pytest.raises(AttributeError):
        _ = GaussianMixture().covariances_
    low.loadings_ = np.broadcast_to(0.0, (2000, 300, 1))
    with pytest.raises(AttributeError, match="180,000,000 numbers"):
        _ = low.covariances_
    with pytest.raises(ValueError, match="means_init"):
        GaussianMixture(1, covariance_type="low_rank", precisions_init=np.eye(D)[None]).fit(
            _rows(model)
        )
    with use_threads(1), pytest.raises(ValueError, match="rank must be"):
        GaussianMixture(1, covariance_type="low_rank", rank=-1).fit(_rows(model))


def test_halves_have_no_negative_variances():
    """A column may have less variance than its direction says, by rounding."""
    family = LowRankGaussian(3, 1e-6, 1)
    scatter = np.zeros((1, family.layout.n_products))
    q = np.full((1, 3, 1), 3.0**-0.5)
    family.layout.write(scatter, np.array([[5.0, 5.0, 0.0]]), np.ones((1, 3)), q, np.array([10.0]))
    moments = moments_of_mass_one(mean=np.zeros((1, 3)), scatter=scatter)
    prior = family.make_prior(moments, "pooled", 100.0)
    one, other = family.split(family.empty_model(1), moments, prior, np.zeros((1, 3)))
    assert one.scatter[0, 2] == other.scatter[0, 2] == 0.0


@pytest.mark.parametrize("missing", [False, True])
def test_columns_without_spread_or_with_too_much(missing):
    rows = np.column_stack([np.full(30, 0.125), np.arange(30.0) % 7, np.arange(30.0) % 4])
    rows[3, 1] = np.nan if missing else rows[3, 1]
    mixture = GaussianMixture(2, covariance_type="low_rank", axes="columns", random_state=0)
    assert np.isfinite(mixture.fit(rows).score(rows))
    with pytest.raises(ValueError, match="Increase reg_covar"):
        mixture.set_params(reg_covar=0.0).fit(rows)
    with pytest.raises(ValueError, match="Divide the columns by their standard deviations"):
        mixture.fit(np.column_stack([rows[:, 1], 1e40 * rows[:, 2]]))

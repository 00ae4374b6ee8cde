"""What components are shrunk to, and how far: laws of the prior on covariances."""

import numpy as np
import pytest
from scipy import stats

from pickmix.families.base import HeldOutRows
from pickmix.families.categorical import Categorical
from pickmix.families.gaussian import (
    GAUSSIANS,
    DiagonalGaussian,
    FullGaussian,
    SphericalGaussian,
)
from pickmix.families.layout import Moments
from pickmix.families.product import Product
from pickmix.families.shrinkage import ShrinkagePrior, without_row

FAMILIES = ["full", "diag", "spherical"]
every_form = pytest.mark.parametrize("name", FAMILIES)


def moments_of(family, means, covariances, counts):
    """Moments of components with covariances (K, D, D), each of so many rows."""
    counts = np.asarray(counts, dtype=float)
    mass = counts / counts.sum()
    return Moments(
        mass,
        mass**2 / counts,
        np.asarray(means, dtype=float),
        family.pack_matrices(np.asarray(covariances)),
        np.zeros((counts.shape[0], 0)),
    )


def asked(family, rows, chooses=True, components=None):
    """A prior that has pooled rows (K, n, D), and asked those of some components; and moments."""
    K, n = rows.shape[:2]
    away = rows - rows.mean(axis=1, keepdims=True)
    covariances = away.transpose(0, 2, 1) @ away / n
    moments = moments_of(family, rows.mean(axis=1), covariances, np.full(K, n))
    prior = family.make_prior(moments, "pooled", float(K * n))
    prior.pool(moments, moments.mass)
    if chooses:
        components = np.arange(K) if components is None else components
        weights = np.ones((components.shape[0], n))
        prior.estimate_shrinkage(
            moments, moments.mass, HeldOutRows(components, away[components], weights)
        )
    return prior, moments


def used(family, prior, moments):
    """The covariances in use (K, D, D), reg_covar included."""
    counts = moments.mass * prior.n_rows
    everyone = np.arange(counts.shape[0])
    packed = prior.shrink(moments, everyone, np.ones(4))
    matrices = (
        family.unpack(packed)
        if family.name == "full"
        else packed[:, :, None] * np.eye(family.n_features)
    )
    return matrices + family.reg_covar * np.eye(family.n_features)


def shrinkages_of(prior, moments):
    counts = moments.mass * prior.n_rows
    return prior.shrinkages(np.arange(counts.shape[0]), counts)


def autoregressive(D, share=0.8):
    """Correlations that fall by `share` from a column to the next."""
    return share ** np.abs(np.subtract.outer(np.arange(D), np.arange(D)))


def drawn(matrices, n, seed):
    """n rows of each of the Gaussians with covariances (K, D, D)."""
    rng = np.random.default_rng(seed)
    factors = np.linalg.cholesky(matrices)
    noise = rng.normal(size=(matrices.shape[0], n, matrices.shape[1]))
    return noise @ factors.transpose(0, 2, 1)


class TestLeanings:
    def test_few_rows_of_a_common_correlation_lean_on_it(self):
        D, n, K = 6, 10, 60
        family = FullGaussian(D, reg_covar=0.0)
        common = autoregressive(D)
        prior, moments = asked(family, drawn(np.repeat(common[None], K, axis=0), n, 0))
        assert shrinkages_of(prior, moments).mean() > 0.8
        # The density of new rows: near the truth's, and far better than that of ten rows alone.
        new = drawn(common[None], 4000, 1)[0]
        truth = stats.multivariate_normal(np.zeros(D), common).logpdf(new).mean()

        def loss(matrices):
            values = [stats.multivariate_normal(np.zeros(D), m).logpdf(new) for m in matrices]
            return truth - np.mean(values)

        own = family.unpack(moments.scatter) * n / (n - 1)
        # D variances of its own, by n - 1 rows each, cost some D / (2 (n - 1)).
        assert loss(used(family, prior, moments)) < 1.3 * D / (2 * (n - 1))
        assert loss(own) > 2.0

    @pytest.mark.parametrize("ties", ["equal", "equal elsewhere", "a sum"])
    def test_a_direction_of_hardly_any_variance_stays(self, ties):
        """Two columns differ by 1e-3, in each component other ones; or one is the sum of two."""
        D, n, K = 5, 60, 30
        rng = np.random.default_rng(2)
        rows = drawn(np.repeat(autoregressive(D, 0.5)[None], K, axis=0), n, 3)
        rows *= np.exp(0.5 * rng.normal(size=(K, 1, D)))
        for k in range(K):
            first, second, third = rng.permutation(D)[:3] if ties == "equal elsewhere" else range(3)
            rows[k, :, first] = rows[k, :, second] + 1e-3 * rng.normal(size=n)
            if ties == "a sum":
                rows[k, :, first] += rows[k, :, third]
        family = FullGaussian(D, reg_covar=0.0)
        prior, moments = asked(family, rows)
        least = np.linalg.eigvalsh(used(family, prior, moments))[:, 0]
        # The variance of 1e-6 is shared by two columns, or by three.
        truth = 1e-6 / (3.0 if ties == "a sum" else 2.0)
        assert (least > 0.5 * truth).all()
        assert (least < 2.0 * truth).all()

    def test_components_of_hardly_any_rows_lean_altogether(self):
        family = FullGaussian(3)
        rows = drawn(np.repeat(autoregressive(3)[None], 5, axis=0), 30, 0)
        prior, moments = asked(family, rows, chooses=False)
        counts = np.array([2.4, 2.6, 30.0, 30.0, 30.0])
        prior.n_rows = counts.sum()
        away = rows - rows.mean(axis=1, keepdims=True)
        prior.estimate_shrinkage(
            moments, counts / counts.sum(), HeldOutRows(np.arange(5), away, np.ones((5, 30)))
        )
        shrinkages = prior.shrinkages(np.arange(5), counts)
        assert shrinkages[0] == pytest.approx(1.0, abs=1e-9)
        # Two and a half are asked.
        assert (shrinkages[1:] < 1.0 - 1e-6).all()

    def test_common_correlations_of_few_rows_are_damped(self):
        """All rows together are as many as columns, or some hundred times as many."""
        D = 8
        common = np.repeat(autoregressive(D, 0.5)[None], 100, axis=0)
        few, _ = asked(FullGaussian(D), drawn(common[:3], 4, 0))
        many, _ = asked(FullGaussian(D), drawn(common, 30, 0))
        assert few.damping >= 0.1
        assert many.damping <= 0.01


class TestVariances:
    def one_row_among_three_sizes(self, name):
        """Variances of a component of one row, in units of the shape of three others."""
        D = 4
        family = GAUSSIANS[name](D, reg_covar=0.0)
        shape = np.full(D, 3.0) if name == "spherical" else np.array([1.0, 2.0, 4.0, 8.0])
        matrices = shape * np.eye(D) * np.array([0.1, 1.0, 10.0, 1.0])[:, None, None]
        counts = np.array([50.0, 50.0, 50.0, 1.0])
        matrices[3] = 0.0
        moments = moments_of(family, np.zeros((4, D)), matrices, counts)
        prior = family.make_prior(moments, "pooled", counts.sum())
        prior.pool(moments, moments.mass)
        return np.diagonal(used(family, prior, moments), axis1=1, axis2=2)[3] / shape

    @every_form
    def test_a_component_of_one_row_takes_a_typical_size(self, name):
        """The geometric mean of the sizes is one; variances count by n / (n - 1)."""
        found = self.one_row_among_three_sizes(name)
        # A full covariance leans by ten pseudo-rows at first; the row itself has no variance.
        share = 10.0 / 11.0 if name == "full" else 1.0
        np.testing.assert_allclose(found, share * 50.0 / 49.0, rtol=1e-6)

    @every_form
    def test_a_background_is_not_what_others_have_in_common(self, name):
        """What is pooled is what there would be without it."""
        D, K = 3, 5
        family = GAUSSIANS[name](D, reg_covar=0.0)
        rows = drawn(autoregressive(D)[None].repeat(K, axis=0), 40, 12)
        rows *= np.exp(np.random.default_rng(13).normal(size=(K, 1, D)))
        rows[2] *= 1e4
        matrices = np.stack([np.cov(own.T, bias=True) for own in rows])
        found = []
        for some, background in ((np.arange(K), 2), (np.array([0, 1, 3, 4]), -1)):
            n = some.shape[0]
            moments = moments_of(family, np.zeros((n, D)), matrices[some], np.full(n, 40.0))
            prior = family.make_prior(moments, "pooled", 40.0 * n)
            # The same start for both.
            start = family.pack_matrices(np.eye(D)[None])[0]
            prior.pooled, prior.log_variances = start, np.zeros(D)
            prior.background = background
            prior.pool(moments, moments.mass)
            found.append([prior.pooled, prior.log_variances, prior.freedoms, prior.correlations])
        for one, other in zip(*found, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9)

    @pytest.mark.parametrize(
        "family", [DiagonalGaussian(5, 0.0), SphericalGaussian(5, 0.0)], ids=lambda f: f.name
    )
    def test_variances_count_as_so_much_of_a_covariance(self, family):
        """Falls by distances alone are a bit more than those of variances without each row."""
        K, n, D = 12, 30, 5
        rows = drawn(np.eye(D)[None].repeat(K, axis=0), n, 4)
        prior, _ = asked(family, rows)
        prior.freedoms = np.full(D, 1e-9)  # Variances are not shrunk.
        own = prior.sample_shares(np.arange(K), np.full(K, float(n)))
        expected, found = [], []
        for k in range(K):
            away = rows[k] - rows[k].mean(axis=0)
            variances = away.var(axis=0, ddof=1)
            if family.averages:
                variances = np.full(D, variances.mean())
            here = stats.norm.logpdf(away, 0.0, np.sqrt(variances)).sum(axis=1)
            falls = without_row(np.sum(away**2 / variances, axis=1), np.ones(n), float(n), own[k])
            for i in range(n):
                rest = np.delete(rows[k], i, axis=0)
                left = rest.var(axis=0)
                left = np.full(D, left.mean()) if family.averages else left
                there = stats.norm.logpdf(rows[k, i], rest.mean(axis=0), np.sqrt(left)).sum()
                expected.append(here[i] - there)
            found.append(falls)
        assert 0.95 * np.mean(expected) < np.mean(found) < 1.4 * np.mean(expected)


class TestCopies:
    @pytest.fixture
    def prior(self):
        rows = drawn(autoregressive(3)[None].repeat(5, axis=0), 30, 0)
        prior, _ = asked(FullGaussian(3), rows)
        prior.pseudo_rows = np.arange(1.0, 6.0)
        prior.background = 3
        return prior

    def test_a_copy_learns_on_its_own(self, prior):
        rows = drawn(np.eye(3)[None].repeat(5, axis=0) * [1.0, 9.0, 4.0], 30, 7)
        _, moments = asked(FullGaussian(3), rows)
        before = {name: np.array(value) for name, value in vars(prior).items() if name != "form"}
        other = prior.copy()
        other.put(np.array([0]), prior, np.array([4]))
        other.pool(moments, moments.mass)
        away = rows - rows.mean(axis=1, keepdims=True)
        other.estimate_shrinkage(
            moments, moments.mass, HeldOutRows(np.arange(5), away, np.ones((5, 30)))
        )
        other.background = -1
        for name, value in before.items():
            np.testing.assert_array_equal(vars(prior)[name], value)
        assert (other.pseudo_rows != prior.pseudo_rows).any()
        assert (other.correlations != prior.correlations).any()


def product_and_part():
    """A product of Gaussians and levels, its moments and prior, and those of the first group."""
    rng = np.random.default_rng(6)
    K, D = 6, 3
    family = Product([(FullGaussian(D), [3, 0, 2]), (Categorical([2, 3]), [1, 4])])
    rows = drawn(autoregressive(D)[None].repeat(K, axis=0), 20, 8)
    part, own = asked(family.groups[0].family, rows, chooses=False)
    counts = np.hstack([rng.dirichlet(np.ones(n), K) for n in (2, 3)])
    moments = own._replace(counts=counts)
    prior = family.make_prior(moments, "pooled", 120.0)
    prior.pool(moments, moments.mass)
    return family, prior, moments, part, own, rows


def test_groups_of_a_product_choose_by_their_columns():
    _, prior, moments, part, own, rows = product_and_part()
    away = rows - rows.mean(axis=1, keepdims=True)
    held_out = HeldOutRows(np.arange(6), away, np.ones((6, 20)))
    assert prior.estimates_shrinkage
    prior.estimate_shrinkage(moments, moments.mass, held_out)
    part.estimate_shrinkage(own, own.mass, held_out)
    np.testing.assert_allclose(prior.parts[0].pseudo_rows, part.pseudo_rows, rtol=1e-12)
    assert (part.pseudo_rows != 10.0).all()


@pytest.mark.parametrize(("n_components", "reg_covar"), [(1, 0.0), (12, 1e-6)])
@every_form
def test_fewer_rows_than_columns_have_covariances(name, n_components, reg_covar):
    """Four rows in ten columns, of components that all together may have fewer as well."""
    D = 10
    family = GAUSSIANS[name](D, reg_covar)
    rows = drawn(autoregressive(D)[None].repeat(n_components, axis=0), 4, 11)
    prior, moments = asked(family, rows)
    assert isinstance(prior, ShrinkagePrior)
    matrices = used(family, prior, moments)
    least = np.linalg.eigvalsh(matrices)[:, 0]
    assert np.isfinite(matrices).all()
    assert (least > 1e-12).all()
    model = family.empty_model(n_components)
    everyone = np.arange(n_components, dtype=np.int32)
    assert not family.maximise(moments, everyone, prior, model, None).any()
    assert np.isfinite(model.factor).all()


@pytest.mark.parametrize("name", ["diag", "spherical"])
@pytest.mark.parametrize("freedoms", [2.0, 50.0])
@pytest.mark.parametrize("n", [4, 6, 10, 30])
def test_rows_left_out_of_shrunk_variances_fall_as_in_a_fit_of_the_others(name, freedoms, n):
    """The typical row of many components, by SciPy, with variances in use without it."""
    K, D = 600, 8
    family = GAUSSIANS[name](D, 0.0)
    rows = np.random.default_rng(n).normal(size=(K, n, D))
    prior, _ = asked(family, rows, chooses=False)
    prior.freedoms = np.full(D, freedoms)

    def log_density(others):
        count = others.shape[1]
        means = others.mean(axis=1)
        scatter = np.square(others - means[:, None]).mean(axis=1)
        masses = np.full(K, count / (K * n))
        moments = Moments(masses, np.zeros(K), means, scatter, np.zeros((K, 0)))
        variances = prior.shrink(moments, np.arange(K), np.ones(4))
        values = stats.norm(means, np.sqrt(variances)).logpdf(rows[:, 0]).sum(axis=1)
        return values, (np.square(rows[:, 0] - means) / variances).sum(axis=1)

    values, distances = log_density(rows)
    falls = values - log_density(rows[:, 1:])[0]
    counts = np.full(K, float(n))
    found = without_row(distances, np.ones(K), counts, prior.sample_shares(np.arange(K), counts))
    assert np.median(found) == pytest.approx(np.median(falls), rel=0.2)

"""Shares under the model are its integrals, shares of the rows are counts."""

import numpy as np
import pandas as pd
import pytest
from fitted_cases import (
    CLOSED_FORM,
    COVARIANCE_TYPES,
    as_matrices,
    categories,
    counts,
    deep,
    gaussian,
    table,
)
from scipy import stats

from pickmix import FamilyMixture, GaussianMixture, TableMixture
from pickmix.inspection.marginals import marginals


@pytest.mark.parametrize("kind", CLOSED_FORM)
def test_shares_sum_to_one(kind):
    model, X = CLOSED_FORM[kind]()
    for found in marginals(model, X):
        np.testing.assert_allclose([found.observed.sum(), found.expected.sum()], 1.0)
        assert (found.expected >= 0.0).all()
        assert found.exact
        assert found.observed.shape == found.expected.shape
        assert len(found.levels) == (found.observed.shape[0] if found.kind == "levels" else 0)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_shares_of_numbers_are_integrals_of_the_density(covariance_type):
    model, X = gaussian(covariance_type)
    covariances = as_matrices(model)
    for column, found in enumerate(marginals(model, X, n_bins=12)):
        deviations = np.sqrt(covariances[:, column, column])
        F = stats.norm.cdf(found.edges[:, None], model.means_[:, column], deviations)
        F = F @ model.weights_
        F[0], F[-1] = 0.0, 1.0
        np.testing.assert_allclose(found.expected, np.diff(F), atol=1e-12)
        np.testing.assert_allclose(
            found.observed[1:], np.histogram(-X[:, column], -found.edges[::-1])[0][::-1][1:] / 400
        )
        assert found.distance == 0.5 * np.abs(found.observed - found.expected).sum()


def test_shares_of_counts_are_sums_of_probabilities():
    model, X = counts()
    (found, _) = marginals(model, X, n_bins=100)
    whole = np.arange(found.edges[0] + 0.5, found.edges[-1])
    np.testing.assert_array_equal(found.edges, np.append(whole - 0.5, whole[-1] + 0.5))
    law = stats.poisson(model.parameters_["rates"][:, 0])
    expected = law.pmf(whole[:, None]) @ model.weights_
    expected[-1] += law.sf(whole[-1]) @ model.weights_
    expected[0] += law.cdf(whole[0] - 1) @ model.weights_
    np.testing.assert_allclose(found.expected, expected, atol=1e-12)
    np.testing.assert_allclose(found.observed, [(X[:, 0] == n).mean() for n in whole])


def test_shares_of_levels_are_weighted_probabilities():
    model, X = categories()
    first, second = marginals(model, X)
    tables = model.parameters_["probabilities"]
    np.testing.assert_allclose(first.expected, model.weights_ @ tables[:, :4], atol=1e-6)
    np.testing.assert_allclose(second.observed, [(X[:, 1] == level).mean() for level in range(4)])
    assert first.levels == ("0", "1", "2", "3")


def test_wide_counts_have_bins_of_several():
    X = np.random.default_rng(0).poisson(200.0, (500, 1))
    (found,) = marginals(FamilyMixture("poisson", 1).fit(X), X, n_bins=10)
    widths = np.diff(found.edges)
    assert (widths == widths[0]).all()
    assert widths[0] == np.floor(widths[0]) > 1.0
    assert found.observed.shape[0] <= 10


def test_a_table_keeps_names_levels_and_dates():
    model, frame = table()
    found = {marginal.name: marginal for marginal in marginals(model, frame)}
    assert list(found) == ["when", "kind", "age", "breath", "calls", "alive"]
    kind = found["kind"]
    assert kind.levels == ("blue", "green", "red")
    assert kind.n_rows == 379
    shares = frame["kind"].value_counts(normalize=True)
    np.testing.assert_allclose(kind.observed, shares[list(kind.levels)])
    assert found["alive"].levels == ("False", "True")
    when = found["when"]
    assert when.edges.dtype.kind == "M"
    inside = [
        ((frame["when"] > low) & (frame["when"] <= high)).mean()
        for low, high in zip(when.edges[:-1], when.edges[1:], strict=True)
    ]
    np.testing.assert_allclose(when.observed, inside)
    # Whole years are bins of their own, with edges half way between.
    assert (found["age"].edges % 1.0 == 0.5).all()
    # Against rows drawn from the model, in the table's own units.
    drawn = model.sample(20_000, 0)
    for name in ("age", "breath", "calls"):
        own = found[name]
        places = np.clip(np.searchsorted(own.edges, drawn[name]) - 1, 0, own.observed.shape[0] - 1)
        shares = np.bincount(places, minlength=own.observed.shape[0]) / 20_000
        np.testing.assert_allclose(own.expected, shares, atol=5.0 * np.sqrt(0.25 / 20_000))


def test_rare_levels_are_put_together():
    rng = np.random.default_rng(0)
    names = np.array([f"level {n}" for n in range(30)])
    shares = 0.8 ** np.arange(30)
    frame = pd.DataFrame({"name": rng.choice(names, 2000, p=shares / shares.sum())})
    model = TableMixture(1, random_state=0).fit(frame)
    (found,) = marginals(model, frame, max_levels=5)
    assert found.levels[:4] == ("level 0", "level 1", "level 2", "level 3")
    assert found.levels[4].endswith("others")
    np.testing.assert_allclose([found.observed.sum(), found.expected.sum()], 1.0)
    # Levels that share a probability in the model are one.
    pooled = TableMixture(1, max_levels=4, random_state=0).fit(frame)
    (found,) = marginals(pooled, frame)
    assert [name for name in found.levels if name.endswith("rare levels")]


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("step", [1.0, 0.1])
def test_rounded_numbers_have_bins_of_whole_steps(step, kind):
    X = np.round(np.random.default_rng(0).normal(0.0, 30.0, (2000, 1))) * step
    X = np.round(X, 1).astype(kind)
    model = GaussianMixture(1).fit(X)
    (found,) = marginals(model, X, n_bins=40)
    per_bin = np.diff(found.edges) / step
    np.testing.assert_allclose(per_bin, np.round(per_bin[0]), rtol=1e-4)
    # Edges lie between two values.
    np.testing.assert_allclose(found.edges / step % 1.0, 0.5, atol=1e-3)
    # Before rounding, the same shares.
    F = stats.norm.cdf(found.edges, model.means_[0, 0], np.sqrt(model.covariances_[0, 0, 0]))
    np.testing.assert_allclose(found.expected[1:-1], np.diff(F)[1:-1], atol=1e-12)


def test_a_few_values_have_a_bin_each():
    values = np.sqrt([2.0, 3.0, 5.0, 11.0])
    X = np.random.default_rng(0).choice(values, (300, 1), p=[0.1, 0.2, 0.3, 0.4])
    (found,) = marginals(GaussianMixture(2, random_state=0).fit(X), X)
    np.testing.assert_allclose(found.edges[1:-1], 0.5 * (values[1:] + values[:-1]))
    np.testing.assert_allclose(found.observed, [(X[:, 0] == v).mean() for v in values])


def test_a_few_rows_far_off_do_not_stretch_the_bins():
    model, X = gaussian("full")
    X = np.concatenate([np.repeat(X, 10, axis=0), np.full((1, 3), 1e6)])
    for found in marginals(model, X):
        assert found.edges[-1] < 100.0
        np.testing.assert_allclose(found.observed.sum(), 1.0)
        assert found.n_rows == 4001


def test_a_column_of_gaps_has_no_observed_shares():
    model, X = gaussian("full")
    X[:, 1] = np.nan
    found = marginals(model, X)[1]
    assert found.n_rows == 0
    np.testing.assert_array_equal(found.observed, 0.0)
    np.testing.assert_allclose(found.expected.sum(), 1.0)


def test_deep_mixtures_have_shares_of_drawn_rows():
    model, X = deep()
    found = marginals(model, X, n_bins=8)
    drawn = model.set_params(random_state=99).sample(50_000)[0]
    for column, marginal in enumerate(found):
        assert not marginal.exact
        np.testing.assert_allclose([marginal.observed.sum(), marginal.expected.sum()], 1.0)
        places = np.clip(np.searchsorted(marginal.edges, drawn[:, column]) - 1, 0, 7)
        shares = np.bincount(places, minlength=8) / 50_000
        # Five standard errors of both samples.
        np.testing.assert_allclose(marginal.expected, shares, atol=5 * np.sqrt(0.25 / 14_000))

"""Statistics and log-joints by features of rows, against sums about each component's mean."""

from functools import partial

import numpy as np
import pytest

from pickmix.data.rows import ArrayRows
from pickmix.families.gaussian import FullGaussian
from pickmix.families.layout import make_layout, moments_of_mass_one
from pickmix.kernels import numpy_kernels
from pickmix.kernels.numpy_kernels.features import Features, features_of, sums_of_products
from pickmix.kernels.statistics import Statistics

# The first coordinate, a count, has no products.
LAYOUT = make_layout([("linear", 1), ("full", 3)])
WEIGHTS = np.random.default_rng(1).dirichlet(np.ones(2), 40).T


def rows_with(third):
    """Rows (40, 4) of a count and numbers far from the origin, whose last column is given."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(5.0, 1.0, (40, 2))
    return np.column_stack([rng.poisson(3.0, 40), numbers, np.broadcast_to(third, 40)])


def sums_by_features(rows, least_variance):
    features = features_of(LAYOUT, rows)
    squares = np.square(WEIGHTS).sum(axis=1)
    return sums_of_products(LAYOUT, WEIGHTS @ features, squares, least_variance)


@pytest.mark.parametrize("least_variance", [0.0, 1e-6])
def test_scatter_of_a_constant_column_is_zero_or_left_to_others(least_variance):
    (_, _, _, scatter, _), narrow = sums_by_features(rows_with(-7.3), least_variance)
    i, j = LAYOUT.pairs()
    if least_variance == 0.0:
        # Rounding errors would be all that there is.
        assert narrow.all()
    else:
        assert not narrow.any()
        assert (scatter[:, (i == 3) | (j == 3)] == 0.0).all()
        assert (scatter[:, (i == j) & (i < 3)] > 1.0).all()


@pytest.mark.parametrize("width", [1e-5, 1e-2, 1.0])
def test_columns_that_vary_keep_their_digits_or_are_left_to_others(width):
    rows = rows_with(-7.3 + width * np.random.default_rng(2).normal(size=40))
    (mass, _, mean, scatter, _), narrow = sums_by_features(rows, 1e-6)
    away = rows - mean[:, None, :]
    expected = np.einsum("kr,kri,krj->kij", WEIGHTS, away, away)
    i, j = LAYOUT.pairs()
    for k in np.flatnonzero(~narrow):
        np.testing.assert_allclose(scatter[k], expected[k][i, j], rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(mass, WEIGHTS.sum(axis=1))
    assert narrow.all() == (width < 1e-3)


@pytest.mark.parametrize("n_components", [2, 12])
def test_log_joints_of_all_are_those_of_pairs(n_components):
    rng = np.random.default_rng(3)
    family = FullGaussian(3, 0.0)
    means = rng.normal(0.0, 3.0, (n_components, 3))
    covariances = np.tile(np.eye(3), (n_components, 1, 1))
    # One component is a million times narrower than the rows are wide.
    covariances[0] *= 1e-12
    rows = np.concatenate([means, rng.normal(0.0, 3.0, (30, 3))])
    model = family.empty_model(n_components)
    moments = family.moments_of({"means": means, "covariances": covariances}, np.zeros(3))
    prior = family.make_prior(moments, "none", 10.0)
    family.maximise(moments, np.arange(n_components), prior, model, False)
    candidates = np.tile(np.arange(n_components, dtype=np.int32), (len(rows), 1))
    expected = numpy_kernels.log_joint(family.layout, model, rows, candidates).T
    got = numpy_kernels.log_joint_all(family.layout, model, rows)
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize(
    "layout",
    [
        make_layout([("full", 3)]),
        make_layout([("diagonal", 3)]),
        make_layout([("linear", 1), ("full", 2), ("diagonal", 1)], [3, 2]),
    ],
)
def test_features_of_a_part_of_the_rows_are_those_of_its_rows(layout):
    rng = np.random.default_rng(4)
    levels = rng.integers(0, 2, (30, layout.n_columns - layout.n_coordinates))
    source = ArrayRows(np.column_stack([rng.normal(2.0, 1.0, (30, layout.n_coordinates)), levels]))
    source.center[layout.n_coordinates :] = 0.0

    def features(rows):
        return rows.features(partial(Features.of, layout), layout.n_features)

    numbers = np.array([3, 29, 0, 7])
    part = source.part(numbers, np.ones(4))
    alone = source.part(numbers, np.ones(4))
    expected = features(alone).values
    whole = features(source)
    np.testing.assert_array_equal(features(part).values, expected)
    np.testing.assert_array_equal(whole.values[numbers], expected)
    i, j = layout.pairs()
    rows = source.gather(numbers)
    np.testing.assert_array_equal(expected[:, : i.size], rows[:, i] * rows[:, j])
    # Not an array of the whole that later work may change.
    features(part).values[:] = 0.0
    np.testing.assert_array_equal(whole.values[numbers], expected)


def test_a_step_of_size_one_leaves_nothing_of_the_moments_before():
    rng = np.random.default_rng(5)
    rows, family = rng.normal(size=(60, 2)), FullGaussian(2, 0.0)
    source, weights = ArrayRows(rows), rng.dirichlet(np.ones(2), 60).T
    moments = moments_of_mass_one(mean=np.full((2, 2), 1e6), scatter=np.full((2, 3), 1e6))
    model = family.empty_model(2)
    model.decay[:2] = 1.0
    moments.mass[:] = moments.squares[:] = 0.0
    sums = numpy_kernels.sums_of_all(
        family.layout, source.gather(np.arange(60)), np.ones(60), weights
    )
    statistics = Statistics(np.arange(2), *sums, 60.0)
    numpy_kernels.blend(family.layout, moments, model, statistics, 1.0 / 60.0, False)
    for k in range(2):
        expected = np.cov(rows.T, aweights=weights[k], bias=True)
        np.testing.assert_allclose(moments.scatter[k], expected[[0, 1, 1], [0, 0, 1]])
        mean = np.average(rows, axis=0, weights=weights[k])
        np.testing.assert_allclose(moments.mean[k] + source.center, mean)
    np.testing.assert_allclose(moments.mass, weights.sum(axis=1) / 60.0)
    np.testing.assert_allclose(moments.squares, np.square(weights / 60.0).sum(axis=1))

"""Planes: columns as they are, principal axes, and components seen in them."""

import numpy as np
import pytest
from cases import CLOSED_FORM, as_matrices, deep, drawn_rows, gaussian, mixed, table

from pickmix import FamilyMixture, GaussianMixture
from pickmix.inspection.plane import Plane, choose_plane, component_moments, coordinates
from pickmix.inspection.view import sample_rows


def test_columns_are_a_plane_as_they_are():
    model, X = gaussian("full", 2)
    plane = choose_plane(model, X)
    np.testing.assert_array_equal(plane.project(X), X)
    assert plane.names == ("column 0", "column 1")
    model, frame = table()
    for columns in (["age", "when"], [2, 0]):
        plane = choose_plane(model, frame, columns)
        points = plane.project(coordinates(model, frame))
        days = (frame["when"] - frame["when"].min()).dt.days
        np.testing.assert_allclose(points, np.stack([frame["age"], days], axis=1), atol=1e-9)
    # A single column lies on a line.
    model, X = gaussian("full", 1)
    plane = choose_plane(model, X)
    np.testing.assert_array_equal(plane.project(X), np.stack([X[:, 0], np.zeros(400)], axis=1))
    assert plane.names == ("column 0", "")


def test_principal_axes_do_not_depend_on_units():
    model, X = gaussian("full", 5)
    plane = choose_plane(model, X)
    standard = (X - X.mean(axis=0)) / X.std(axis=0)
    values = np.linalg.eigvalsh(np.cov(standard.T, bias=True))[::-1]
    points = plane.project(X)
    np.testing.assert_allclose(points.var(axis=0), values[:2])
    np.testing.assert_allclose(points.mean(axis=0), 0.0, atol=1e-12)
    assert plane.names[0] == f"first principal axis ({20 * values[0]:.0f} % of the variance)"
    # Constant columns do not count.
    other = np.append(X * [1.0, 1000.0, 1.0, 0.01, 1.0], np.full((400, 1), 3.0), axis=1)
    again = choose_plane(GaussianMixture(1).fit(other), other)
    np.testing.assert_allclose(again.project(other), points, atol=1e-9)
    np.testing.assert_array_equal(again.basis[5], 0.0)


@pytest.mark.parametrize("kind", CLOSED_FORM)
def test_moments_of_components_are_those_of_their_rows(kind):
    model, X = CLOSED_FORM[kind]()
    weights = model.weights_
    points = coordinates(model, drawn_rows(model, 20_000))
    C = points.shape[1]
    means, covariances = component_moments(model, Plane(np.zeros(C), np.eye(C), ()))
    mean = weights @ means
    away = means - mean
    covariance = np.einsum("k,kij->ij", weights, covariances) + (away.T * weights) @ away
    spread = np.sqrt(np.diag(covariance))
    # Six standard errors of 20,000 rows; products of wide counts have heavier tails.
    np.testing.assert_allclose((points.mean(axis=0) - mean) / spread, 0.0, atol=0.045)
    scaled = np.cov(points.T, bias=True) / np.outer(spread, spread)
    np.testing.assert_allclose(scaled, covariance / np.outer(spread, spread), atol=0.08)
    if isinstance(model, GaussianMixture):
        np.testing.assert_allclose(covariances, as_matrices(model))
    plane = choose_plane(model, X)
    centres, inside = component_moments(model, plane, np.array([1, 0]))
    np.testing.assert_allclose(centres, plane.project(means[[1, 0]]))
    np.testing.assert_allclose(
        inside,
        plane.basis.T @ covariances[[1, 0]] @ plane.basis,
        atol=1e-9 * np.abs(plane.basis.T @ covariance @ plane.basis).max(),
    )


def test_levels_have_a_coordinate_each_and_very_many_none():
    model, X = mixed()
    points = coordinates(model, X)
    np.testing.assert_array_equal(points[:, :2], X[:, :2])
    np.testing.assert_array_equal(points[:, 2:6], X[:, [2]] == np.arange(4))
    np.testing.assert_array_equal(points[:, 6], X[:, 3])
    with pytest.raises(ValueError, match="'column 2', which holds levels"):
        choose_plane(model, X, [2, 0])
    rng = np.random.default_rng(0)
    X = np.stack([rng.integers(0, 60, 900), rng.integers(0, 3, 900), rng.normal(size=900)], axis=1)
    model = FamilyMixture([("categorical", [0, 1]), ("diag", [2])], 1, random_state=0).fit(X)
    assert coordinates(model, X).shape == (900, 4)
    assert component_moments(model, choose_plane(model, X))[1].shape == (1, 2, 2)


def test_gaps_have_no_place_among_columns_and_the_mean_among_axes():
    model, X = gaussian("full")
    X[0, 1] = np.nan
    points = choose_plane(model, X, [0, 1]).project(X)
    np.testing.assert_array_equal(np.isnan(points[0]), [False, True])
    plane = choose_plane(model, X)
    filled = np.where(np.isnan(X), np.nanmean(X, axis=0), X)
    np.testing.assert_allclose(plane.project(X), plane.project(filled), atol=1e-9)


@pytest.mark.parametrize("columns", [[0], [0, 1, 2], 1, [0, 0], ["a", "b"], [0, 5]])
def test_other_than_two_columns_are_refused(columns):
    model, X = gaussian("full")
    with pytest.raises(ValueError, match="columns must"):
        choose_plane(model, X, columns)


def test_sample_rows_are_sorted_and_the_same_each_time():
    some = sample_rows(1000, 50)
    assert some.shape == (50,)
    assert (np.diff(some) > 0).all()
    np.testing.assert_array_equal(some, sample_rows(1000, 50))
    np.testing.assert_array_equal(sample_rows(5, 50), np.arange(5))


def test_deep_mixtures_have_planes_but_no_covariances():
    model, X = deep(3)
    plane = choose_plane(model, X, [1, 0])
    np.testing.assert_array_equal(plane.project(X), X[:, [1, 0]])
    with pytest.raises(ValueError, match="mixture in closed form, got Mixture"):
        component_moments(model, plane)


def test_two_axes_of_many_levels_are_those_of_all(monkeypatch):
    rng = np.random.default_rng(0)
    group = rng.integers(0, 4, 600)
    levels = (9 * group[:, None] + rng.integers(0, 12, (600, 15))) % 40
    X = np.concatenate([levels, rng.normal(group)[:, None]], axis=1).astype(float)
    family = [("categorical", list(range(15))), ("diag", [15])]
    model = FamilyMixture(family, 2, random_state=0, max_iter=2, tol=0.0).fit(X)
    found = choose_plane(model, X)
    assert found.basis.shape[0] > 500
    monkeypatch.setattr("pickmix.inspection.plane._ALL_AXES", 10_000)
    every = choose_plane(model, X)
    assert found.names == every.names
    np.testing.assert_allclose(found.basis, every.basis, atol=1e-9)

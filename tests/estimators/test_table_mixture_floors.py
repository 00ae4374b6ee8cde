"""Variance floors of single columns: families, and rounded columns of tables."""

import numpy as np
import pytest
from scipy.stats import norm

from pickmix import TableMixture
from pickmix.families.gaussian import GAUSSIANS
from pickmix.families.layout import Moments
from pickmix.threads import Threads

FLOORS = np.array([0.1, 0.5, 2.0])


def moments_of_rows(family, n_components=9):
    """Moments of components that all have the same rows, and the covariance of these."""
    rows = np.random.default_rng(0).normal(size=(50, 3)) @ np.triu(np.ones((3, 3)))
    covariance = np.cov(rows.T, bias=True)
    packed = family.pack_matrices(np.repeat(covariance[None], n_components, axis=0))
    shares = np.full(n_components, 1.0 / n_components)
    means = np.zeros((n_components, 3))
    return Moments(shares, shares**2, means, packed, np.zeros((n_components, 0))), covariance


@pytest.mark.parametrize("threads", [None, Threads(1)], ids=["numpy", "compiled"])
@pytest.mark.parametrize("name", GAUSSIANS)
def test_every_column_has_its_floor_added(name, threads):
    family = GAUSSIANS[name](3, FLOORS)
    moments, covariance = moments_of_rows(family)
    model = family.empty_model(9)
    prior = family.make_prior(moments, "none", 1000.0)
    members = np.arange(9, dtype=np.int32)
    assert not family.maximise(moments, members, prior, model, threads).any()
    covariances = family.parameters(model, np.zeros(3))["covariances"]
    expected = covariance + np.diag(FLOORS)
    if name == "diag":
        expected = np.diag(expected)
    if name == "spherical":
        expected = np.trace(expected) / 3.0
    np.testing.assert_allclose(
        covariances if name == "tied" else covariances[-1], expected, rtol=1e-12
    )
    # And they are taken off again where a fit goes on.
    parameters = {"means": np.zeros((9, 3)), "covariances": covariances}
    back = family.moments_of(parameters, np.zeros(3)).scatter
    np.testing.assert_allclose(back[0], family.project(moments.scatter)[0], atol=1e-12)


@pytest.mark.parametrize(
    ("covariance_type", "step"), [("diag", 1.0), ("diag", 0.1), ("diag", 25.0), ("full", 1.0)]
)
def test_ties_do_not_make_densities_unbounded(covariance_type, step):
    rng = np.random.default_rng(0)
    # Six values only, far apart: without a floor every component would collapse on one of them.
    values = rng.permutation(np.repeat(np.array([1, 4, 11, 30, 61, 100]), 40)) * step
    table = {"x": np.round(values, 1), "y": rng.normal(size=240)}
    settings = {"covariance_type": covariance_type, "reg_covar": 1e-9, "random_state": 0}
    mixture = TableMixture(6, **settings).fit(table)
    assert mixture.schema_["x"].step == step
    alone = mixture.score_samples({"x": table["x"], "y": [None] * 240})
    bound = norm(0.0, step / np.sqrt(12.0)).logpdf(0.0)
    assert (alone <= bound + 1e-9).all()
    # The bound is what a component on a single value reaches, times its weight.
    if covariance_type == "diag":
        assert alone.max() > bound + np.log(1.0 / 6.0) - 0.5
    free = TableMixture(6, schema={"x": "number"}, **settings).fit(table)
    unbounded = free.score_samples({"x": table["x"], "y": [None] * 240})
    if covariance_type == "diag":
        assert unbounded.max() > bound + 1.0


def test_dates_of_ties_are_bounded_too():
    days = np.datetime64("2020-01-01") + np.repeat([0, 50, 400], 50)
    mixture = TableMixture(3, reg_covar=1e-9, random_state=0).fit({"day": days})
    bound = norm(0.0, 1.0 / np.sqrt(12.0)).logpdf(0.0)
    scores = mixture.score_samples({"day": days})
    assert (scores <= bound + np.log(1.0 / 3.0) + 1e-6).all()
    assert (scores > bound + np.log(1.0 / 3.0) - 0.1).all()

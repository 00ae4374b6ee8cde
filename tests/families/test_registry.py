"""Families by name, groups of columns, and messages that say what is wrong with them."""

import numpy as np
import pytest

from pickmix.families.categorical import Categorical
from pickmix.families.gaussian import DiagonalGaussian, TiedGaussian
from pickmix.families.poisson import Poisson
from pickmix.families.product import Product
from pickmix.families.registry import FAMILIES, make_family

ROWS = np.array([[0.5, 2.0, 7.0, 1.0], [-1.5, 0.0, 3.0, 0.0], [1.0, 4.0, 0.0, 1.0]])


def test_names_make_families():
    whole = np.abs(np.round(ROWS))
    for name in FAMILIES:
        family = make_family(name, whole, 1e-4)
        assert family.name == name
        assert family.layout.n_columns == 4
        assert family.reg_covar == (0.0 if name in ("poisson", "categorical") else 1e-4)


def test_groups_make_a_product():
    groups = [("categorical", [1, 3]), ("full", np.array([0])), ("poisson", (2,))]
    family = make_family(groups, ROWS, 1e-6)
    assert isinstance(family, Product)
    np.testing.assert_array_equal(family.column_order, [0, 2, 1, 3])
    np.testing.assert_array_equal(np.diff(family.layout.offsets), [5, 2])
    assert [group.label for group in family.groups] == ["categorical0", "full1", "poisson2"]


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ("round", r"family must be one of \['categorical', .*\], got 'round'"),
        ([("diag", [0, 1]), ("round", [2, 3])], "family must be one of .*, got 'round'"),
        ([("diag", [0, 1]), ("poisson", [2])], "column 3 stands in 0"),
        ([("diag", [0, 1, 3]), ("poisson", [1, 2])], "column 1 stands in 2"),
        ([("diag", [0, 1, 2, 3, 4])], "names column 4, but columns are numbered 0 to 3"),
        ([("diag", [0, 1, 2, -1])], "names column -1"),
        ([("diag", [0, 1, 2, 3]), ("poisson", [])], "a column in every group"),
        ([], "at least one group"),
        ([("diag", 3)], r"got the group \('diag', 3\)"),
        ([("diag", [0.5])], "numbers of columns"),
        (["diag"], "got the group 'diag'"),
        ([(3, [0])], "family must be a name or a list"),
        ("poisson", "column 0 must hold counts.*row 0 holds 0.5"),
        ([("poisson", [2, 3]), ("categorical", [1, 0])], "column 0 must hold levels.*holds 0.5"),
    ],
)
def test_messages_say_what_is_wrong(description, message):
    with pytest.raises(ValueError, match=message):
        make_family(description, ROWS, 1e-6)


@pytest.mark.parametrize("value", [-1.0, 0.5, np.inf])
@pytest.mark.parametrize("family", [Poisson(2), Categorical([9, 9])])
def test_check_names_column_row_and_value(family, value):
    rows = np.ones((4, 2))
    assert family.check(rows) is None
    rows[3, 1] = value
    problem = family.check(rows, columns=[10, 20])
    assert problem.startswith("column 20 must hold")
    assert problem.endswith(f"row 3 holds {value!r}")
    product = Product([(DiagonalGaussian(1), [0]), (family, [2, 1])])
    assert product.check(np.column_stack([np.zeros(4), rows[:, 1], rows[:, 0]])) == family.check(
        rows, [2, 1]
    )
    # NaN is a missing value.
    rows[3, 1] = np.nan
    assert family.check(rows) is None


def test_empirical_bayes_finds_the_spread_of_rates():
    """Means of a few rows are nearer to the true rates with the prior than without."""
    random = np.random.default_rng(0)
    K, rows = 4000, 5
    # Rates of the first column differ, those of the second do not.
    rates = np.column_stack([random.gamma(4.0, 0.5, K), np.full(K, 2.0)])
    means = random.poisson(rates * rows) / rows
    family = Poisson(2)
    moments = family.moments_of({"rates": means}, np.zeros(2))
    moments = moments._replace(mass=np.full(K, 1.0 / K))
    prior = family.make_prior(moments, "pooled", float(K * rows))
    assert prior.counts[0] == pytest.approx(2.0, rel=0.1)
    # At most as many as the mean component has.
    assert prior.counts[1] == pytest.approx(rows)
    model = family.empty_model(K)
    family.maximise(moments, np.arange(K), prior, model, None)
    error, raw = np.square(model.location - rates).mean(0), np.square(means - rates).mean(0)
    # The posterior mean of a gamma prior with b = 2 has 5 / 7 of the error.
    assert error[0] < 0.85 * raw[0]
    assert error[1] < 0.35 * raw[1]


def test_empirical_bayes_finds_the_spread_of_probabilities():
    random = np.random.default_rng(1)
    K, rows = 300, 12
    frequencies = np.array([0.5, 0.3, 0.2])
    apart = random.dirichlet(4.0 * frequencies, K)
    alike = np.tile(frequencies, (K, 1))
    shares = np.hstack(
        [[random.multinomial(rows, p) / rows for p in table] for table in (apart, alike)]
    )
    family = Categorical([3, 3])
    moments = family.moments_of({"probabilities": shares}, np.zeros(2))
    moments = moments._replace(mass=np.full(K, 1.0 / K))
    prior = family.make_prior(moments, "pooled", float(K * rows))
    assert prior.counts[0] in (2.0, 4.0, 8.0)
    assert prior.counts[1] == pytest.approx(rows)
    np.testing.assert_allclose(prior.frequencies, np.tile(frequencies, 2), atol=0.03)
    model = family.empty_model(K)
    family.maximise(moments, np.arange(K), prior, model, None)
    probabilities = np.exp(model.tables)
    np.testing.assert_allclose(probabilities[:, :3].sum(axis=1), 1.0)
    truth = np.hstack([apart, alike])
    error, raw = (
        np.square(p - truth).reshape(K, 2, 3).mean((0, 2)) for p in (probabilities, shares)
    )
    assert error[0] < 0.85 * raw[0]
    assert error[1] < 0.35 * raw[1]


def test_a_shared_covariance_reaches_components_that_were_not_touched():
    family = Product([(TiedGaussian(2, 0.0), [0, 1]), (Poisson(1), [2])])
    random = np.random.default_rng(2)
    parameters = {
        "tied0_means": random.standard_normal((4, 2)),
        "tied0_covariances": np.eye(2),
        "poisson1_rates": random.gamma(2.0, 2.0, (4, 1)),
    }
    moments = family.moments_of(parameters, np.zeros(3))
    model = family.empty_model(4)
    family.maximise(moments, np.arange(4), family.make_prior(moments, "none", 9.0), model, None)
    before = model.log_normaliser.copy()
    # A component that was copied from another mixture may come with another covariance.
    model.factor[3] *= 3.0
    model.log_normaliser[3] += 2.0 * np.log(3.0)
    wider = moments._replace(scatter=4.0 * moments.scatter)
    prior = family.make_prior(wider, "none", 9.0)
    family.maximise(wider, np.array([2]), prior, model, None)
    # Standard deviations have doubled in two columns.
    np.testing.assert_allclose(model.log_normaliser, before - 2.0 * np.log(2.0))
    np.testing.assert_allclose(model.factor, np.tile([0.5, 0.0, 0.5], (4, 1)), atol=1e-12)
    singular = family.make_prior(moments._replace(scatter=0.0 * moments.scatter), "none", 9.0)
    kept = [array.copy() for array in model]
    assert family.maximise(moments, np.array([1, 2]), singular, model, None).all()
    for array, old in zip(model, kept, strict=True):
        np.testing.assert_array_equal(array, old)

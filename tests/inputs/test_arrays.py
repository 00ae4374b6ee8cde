"""Tables that are not numbers: errors say what came, and where."""

import pickle

import numpy as np
import pandas
import pytest

import pickmix
from pickmix import FamilyMixture, FlowMixture, GaussianMixture, TableMixture
from pickmix.inputs.errors import InputError

ROWS = [[1.0, 2.0], [3.0, 4.0], [5.0, 7.0], [2.0, 0.0]]


class LazyFrame:
    """Behaves as that of polars, which warns when it is asked for its columns."""

    @property
    def columns(self):
        raise AssertionError("asked for the columns")

    def with_columns(self):
        return self


LazyFrame.__module__ = "polars.lazyframe.frame"


def estimators():
    return [GaussianMixture(2), FamilyMixture("diag", 2), FlowMixture(2, init_params="data")]


@pytest.mark.parametrize("mixture", estimators(), ids=lambda mixture: type(mixture).__name__)
@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([["a", "b"], ["c", "d"]], "X must hold numbers, got the text 'a' in row 0, column 0"),
        (np.array([["1", "2"], ["3", "x"]]), "got the text 'x' in row 1, column 1"),
        (np.array([[1, 2], [3, "?"]], dtype=object), r"got the text '\?' in row 1, column 1"),
        (pandas.DataFrame({"n": [1.0, 2.0], "w": ["x", "y"]}), "the text 'x' in row 0, column 'w'"),
        (
            pandas.DataFrame({"n": [1.0, 2.0], "day": pandas.to_datetime(["2020-01-01"] * 2)}),
            r"got dates \(datetime64.* in column 'day'\. Leave that column out\. TableMixture",
        ),
        (np.array([["2020-01-01"] * 2] * 3, dtype="datetime64[D]"), r"got dates \(datetime64\[D"),
        ([[1.0, 2.0], [3.0, np.inf]], r"expected finite numbers, got inf in row 1, column 1"),
        (pandas.DataFrame({"a": [1.0, -np.inf]}), r"got -inf in row 1, column 'a'"),
    ],
)
def test_a_cell_is_named(mixture, X, message):
    with pytest.raises(ValueError, match=message):
        mixture.fit(X)


@pytest.mark.parametrize("mixture", estimators(), ids=lambda mixture: type(mixture).__name__)
@pytest.mark.parametrize(
    ("X", "kind", "message"),
    [
        (LazyFrame(), TypeError, r"X must hold rows, got a polars LazyFrame, .* Call \.collect"),
        (None, ValueError, r"X must be an array, a data frame or a path .* got None"),
        ({"a": [1.0, 2.0]}, TypeError, r"got a dict\. Use a data frame.* TableMixture takes"),
        (b"1,2", TypeError, r"got bytes"),
    ],
)
def test_what_is_not_a_table_is_named(mixture, X, kind, message):
    with pytest.raises(kind, match=message):
        mixture.fit(X)


def test_lazy_frames_are_refused_everywhere():
    mixture = GaussianMixture(2, random_state=0, max_iter=2, tol=0.0).fit(ROWS)
    for ask in (mixture.score_samples, mixture.predict, mixture.impute, mixture.explain):
        with pytest.raises(TypeError, match=r"got a polars LazyFrame"):
            ask(LazyFrame())
    with pytest.raises(TypeError, match=r"A table must hold rows, got a polars LazyFrame"):
        TableMixture(2).fit(LazyFrame())
    with pytest.raises(TypeError, match=r"data must hold rows, got a polars LazyFrame"):
        pickmix.open_rows(LazyFrame())


def test_what_scikit_learn_says_stays():
    with pytest.raises(ValueError, match="Complex data not supported"):
        GaussianMixture(2).fit(np.ones((4, 2)) * 1j)
    with pytest.raises(ValueError, match="inhomogeneous"):
        GaussianMixture(2).fit([[1.0, 2.0], [3.0]])
    # Text that spells numbers is taken, as scikit-learn does.
    spelt = GaussianMixture(2, random_state=0).fit(np.array(ROWS).astype(str))
    assert np.array_equal(spelt.means_, GaussianMixture(2, random_state=0).fit(ROWS).means_)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_what_a_mask_hides_is_missing(dtype):
    rng = np.random.default_rng(0)
    values = (10 * rng.normal(size=(60, 3))).astype(dtype)
    mask = rng.random((60, 3)) < 0.2
    mask[0] = False
    plain = np.where(mask, np.nan, values).astype(dtype if dtype != np.int64 else np.float64)
    values[mask] = 9999
    masked = np.ma.masked_array(values, mask)
    settings = {"algorithm": "em", "max_iter": 5, "tol": 0.0, "random_state": 0}
    expected = GaussianMixture(2, **settings).fit(plain)
    mixture = GaussianMixture(2, **settings).fit(masked)
    np.testing.assert_array_equal(mixture.means_, expected.means_)
    np.testing.assert_array_equal(mixture.score_samples(masked), expected.score_samples(plain))
    np.testing.assert_array_equal(mixture.impute(masked), expected.impute(plain))
    with pytest.raises(ValueError, match="sample_weight"):
        mixture.fit(plain, sample_weight=np.ma.masked_array(np.ones(60), mask[:, 0]))


def test_errors_have_fields_and_can_be_pickled():
    with pytest.raises(InputError) as caught:
        GaussianMixture(2).fit([[1.0, 2.0], [3.0, "b"]])
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.row, error.column, error.value, error.expected) == (1, 1, "b", "numbers")
    assert str(error) == str(caught.value)

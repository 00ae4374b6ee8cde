"""The explanation of a row: bars are surprises, the largest on top, with what was expected."""

import numpy as np
import pytest
from displayed import flow, rows, table

from pickmix import ExplanationDisplay, GaussianMixture


def unusual():
    X = np.random.default_rng(0).normal(size=(500, 3)) * [1.0, 10.0, 0.1]
    model = GaussianMixture(1).fit(X)
    row = np.array([[0.0, 50.0, 0.2]])
    return model, np.concatenate([X[:4], row])


def test_bars_are_surprises_with_the_largest_on_top():
    model, X = unusual()
    display = ExplanationDisplay.from_estimator(model, X, row=4)
    found = model.explain(X)
    # Of a single Gaussian, half the squared distance in standard deviations.
    z = (X[4] - found.expected[4]) / found.spread[4]
    assert display.names == ["column 1", "column 2", "column 0"]
    np.testing.assert_allclose(display.surprise, 0.5 * np.square(z)[[1, 2, 0]], atol=1e-9)
    bars = display.ax_.patches
    np.testing.assert_allclose([bar.get_width() for bar in bars], display.surprise)
    labels = [text.get_text() for text in display.ax_.get_yticklabels()]
    assert labels == display.names
    low, high = display.ax_.get_ylim()
    assert low > high
    assert display.title == f"row 4: log p(row) = {found.log_density[4]:.2f}"


def test_values_stand_beside_what_was_expected():
    model, X = unusual()
    display = ExplanationDisplay.from_estimator(model, X, row=4)
    found = model.explain(X)
    expected, spread = found.expected[4, 1], found.spread[4, 1]
    assert display.texts[0] == f"50 (expected {expected:.1f} ± {spread:.2g})"
    assert display.ax_.texts[0].get_text() == display.texts[0]


def test_units_do_not_change_the_bars():
    model, X = unusual()
    units = np.array([1000.0, 10.0, 1.0])
    other = GaussianMixture(1).fit(
        np.random.default_rng(0).normal(size=(500, 3)) * [1, 10, 0.1] * units
    )
    first = ExplanationDisplay.from_estimator(model, X, row=4)
    second = ExplanationDisplay.from_estimator(other, X * units, row=4)
    np.testing.assert_allclose(second.surprise, first.surprise, rtol=1e-3, atol=1e-4)


def test_an_explanation_made_before_is_taken():
    model, X = unusual()
    found = model.explain(X)
    first = ExplanationDisplay.from_explanation(found, row=4)
    second = ExplanationDisplay.from_estimator(model, X, row=4)
    np.testing.assert_allclose(first.surprise, second.surprise, atol=1e-9)
    assert (first.names, first.texts, first.title) == (second.names, second.texts, second.title)
    assert len(ExplanationDisplay.from_explanation(found, row=4, top=2).names) == 2


def test_a_table_keeps_its_terms_and_leaves_gaps_out():
    model, frame = table()
    display = ExplanationDisplay.from_estimator(model, frame, row=3)
    assert set(display.names) == {"when", "kind", "age"}
    found = model.explain(frame)
    expected = [found.surprise[3, found.names.index(name)] for name in display.names]
    np.testing.assert_allclose(display.surprise, expected, atol=1e-9)
    texts = dict(zip(display.names, display.texts, strict=True))
    assert texts["kind"].startswith(f"{frame['kind'][3]} (expected ")
    assert texts["kind"].endswith("%)")
    assert texts["when"].endswith("days)")


def test_of_many_columns_the_most_surprising_are_shown():
    X = np.random.default_rng(0).normal(size=(300, 20))
    model = GaussianMixture(1).fit(X)
    display = ExplanationDisplay.from_estimator(model, X, row=7)
    assert len(display.names) == 15
    assert "the 15 most surprising of 20 columns" in display.title
    assert (np.diff(display.surprise) <= 0.0).all()


@pytest.mark.parametrize("row", [5, -1, 1.5, True])
def test_rows_that_are_not_there_are_refused(row):
    model, X = unusual()
    with pytest.raises(ValueError, match="row must be a number from 0 to 4"):
        ExplanationDisplay.from_estimator(model, X, row=row)
    with pytest.raises(ValueError, match="row must be a number from 0 to 4"):
        ExplanationDisplay.from_explanation(model.explain(X), row=row)


def test_deep_mixtures_are_refused():
    with pytest.raises(ValueError, match="must be able to explain rows, got FlowMixture"):
        ExplanationDisplay.from_estimator(flow(), rows())

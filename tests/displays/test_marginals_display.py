"""Marginals: bars are shares of rows, lines those of the model."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from displayed import flow, gaussian, rows, table

from pickmix import GaussianMixture, MarginalsDisplay, TableMixture
from pickmix.diagnostics.marginals import marginals


def test_bars_are_rows_and_lines_the_model():
    model, X = gaussian(3), rows(3)
    display = MarginalsDisplay.from_estimator(model, X, n_bins=10)
    for axes, expected in zip(display.axes_, marginals(model, X, 10), strict=True):
        observed, line = axes.patches
        np.testing.assert_array_equal(observed.get_data()[0], expected.observed)
        np.testing.assert_array_equal(line.get_data()[0], expected.expected)
        np.testing.assert_array_equal(line.get_data()[1], expected.edges)
        assert axes.get_title(loc="left") == expected.name
    shown = [text.get_text() for text in display.figure_.legends[0].get_texts()]
    assert shown == ["rows", "model"]


def test_levels_have_bars_with_their_names():
    model, frame = table()
    display = MarginalsDisplay.from_estimator(model, frame, columns=["kind", "when"])
    levels, dates = display.axes_
    assert [text.get_text() for text in levels.get_yticklabels()] == ["blue", "green", "red"]
    shares = frame["kind"].value_counts(normalize=True)[["blue", "green", "red"]]
    np.testing.assert_allclose([bar.get_width() for bar in levels.patches], shares)
    (marks,) = levels.get_lines()
    np.testing.assert_allclose(marks.get_xdata().sum(), 1.0)
    # Ticks are dates, and not days since some year.
    display.figure_.canvas.draw()
    said = [text.get_text() for text in dates.get_xticklabels()]
    assert any(month in "".join(said) for month in ("Jan", "Feb", "Mar", "Apr"))


@pytest.mark.parametrize("unit", ["s", "min", "h", "D", "W"])
@pytest.mark.parametrize("n_units", [3, 7, 40, 150, 700])
def test_dates_of_any_range_have_ticks(unit, n_units):
    steps = np.random.default_rng(0).integers(0, n_units, 200)
    frame = pd.DataFrame({"when": pd.Timestamp("2024-02-28") + pd.to_timedelta(steps, unit)})
    frame["x"] = np.arange(200.0) ** 0.5
    model = TableMixture(1, schema={"when": "date"}, random_state=0).fit(frame)
    display = MarginalsDisplay.from_estimator(model, frame, columns=["when"])
    # Locators warn of ranges that they do not know; warnings are errors here.
    display.figure_.canvas.draw()
    low, high = display.axes_[0].get_xlim()
    assert 2 <= np.count_nonzero(display.axes_[0].get_xticks() >= low) <= 14
    assert high > low


def test_deep_mixtures_say_that_rows_were_drawn():
    display = MarginalsDisplay.from_estimator(flow(), rows())
    shown = [text.get_text() for text in display.figure_.legends[0].get_texts()]
    assert shown == ["rows", "drawn from the model"]


def test_of_many_columns_those_that_differ_most_are_drawn():
    X = np.random.default_rng(0).normal(size=(500, 15))
    model = GaussianMixture(1).fit(X)
    other = X.copy()
    other[:, [2, 13]] = np.square(other[:, [2, 13]])
    display = MarginalsDisplay.from_estimator(model, other)
    names = [axes.get_title(loc="left") for axes in display.axes_]
    assert len(names) == 12
    assert {"column 2", "column 13"} <= set(names)
    assert display.figure_.get_suptitle().startswith("12 of 15 columns")
    given = MarginalsDisplay.from_estimator(model, other, columns=list(range(13)))
    assert len(given.axes_) == 13


def test_axes_are_taken_or_refused():
    _, grid = plt.subplots(1, 2)
    with pytest.raises(ValueError, match="axes must hold at least 3 axes"):
        MarginalsDisplay.from_estimator(gaussian(3), rows(3), axes=grid)
    display = MarginalsDisplay.from_estimator(gaussian(3), rows(3), columns=[2, 0], axes=grid)
    assert list(display.axes_) == list(grid)
    assert grid[0].get_legend() is not None

"""Marginals and calibration: rows against the model, and against the band of chance."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from displayed import flow, gaussian, rows, table
from matplotlib.colors import to_rgb
from scipy import stats

from pickmix import CalibrationDisplay, GaussianMixture, MarginalsDisplay, TableMixture
from pickmix.inspection.displays.colours import BLUE, VERMILION
from pickmix.inspection.marginals import marginals


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


@pytest.fixture(scope="module")
def drawn():
    model = gaussian(3)
    X = model.sample(3000, 1)[0]
    X[:, 1] += 3.0
    return model, X


def test_histograms_are_shares_over_what_they_should_be(drawn):
    display = CalibrationDisplay.from_estimator(*drawn, n_bins=10)
    for d, axes in enumerate(display.axes_):
        heights, edges, _ = axes.patches[0].get_data()
        u = display.calibration.values[d]
        np.testing.assert_allclose(heights, np.histogram(u, edges, density=True)[0])
        assert edges.shape == (11,)


def test_the_band_is_that_of_chance(drawn):
    display = CalibrationDisplay.from_estimator(*drawn, n_bins=10, level=0.9)
    band = display.axes_[0].patches[1]
    expected = 10 * stats.binom.ppf([0.05, 0.95], 3000, 0.1) / 3000
    np.testing.assert_allclose([band.get_y(), band.get_y() + band.get_height()], expected)


def test_columns_that_are_off_are_marked_in_colour_and_words(drawn):
    display = CalibrationDisplay.from_estimator(*drawn)
    titles = [axes.get_title(loc="left") for axes in display.axes_]
    assert [title.endswith("(off)") for title in titles] == [False, True, False]
    faces = [axes.patches[0].get_facecolor()[:3] for axes in display.axes_]
    assert faces == [to_rgb(BLUE), to_rgb(VERMILION), to_rgb(BLUE)]
    assert titles[1].startswith(f"column 1: {display.calibration.distances[1]:.3f}")


def test_curves_hold_the_largest_distance(drawn):
    display = CalibrationDisplay.from_estimator(*drawn, kind="curves")
    (axes,) = display.axes_
    _, *curves = axes.get_lines()
    order = np.argsort(-display.calibration.distances)
    for curve, d in zip(curves, order, strict=True):
        np.testing.assert_allclose(
            np.abs(curve.get_ydata()).max(), display.calibration.distances[d], atol=1e-12
        )
        assert curve.get_label().startswith(f"column {d}: ")
    limit = stats.kstwobign.ppf(0.99) / np.sqrt(3000)
    band = axes.patches[0]
    np.testing.assert_allclose([band.get_y(), band.get_height()], [-limit, 2.0 * limit])


def test_many_columns_are_those_farthest_off():
    X = np.random.default_rng(0).normal(size=(400, 14))
    model = GaussianMixture(1).fit(X)
    X[:, 9] += 1.0
    display = CalibrationDisplay.from_estimator(model, X)
    assert len(display.axes_) == 12
    assert any(axes.get_title(loc="left").startswith("column 9: ") for axes in display.axes_)
    curves = CalibrationDisplay.from_estimator(model, X, kind="curves")
    labels = [text.get_text() for text in curves.axes_[0].get_legend().get_texts()]
    assert labels[-1] == "6 more columns"
    assert len(labels) == 9


def test_the_lowest_panel_of_every_column_has_its_ticks_labelled():
    X = np.random.default_rng(0).normal(size=(200, 6))
    display = CalibrationDisplay.from_estimator(GaussianMixture(1).fit(X), X)
    labelled = [axes.xaxis.get_tick_params()["labelbottom"] for axes in display.axes_]
    assert labelled == [False, False, True, True, True, True]

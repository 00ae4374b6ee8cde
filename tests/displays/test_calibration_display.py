"""Calibration: histograms and curves against the band of chance."""

import numpy as np
import pytest
from displayed import gaussian, rows
from matplotlib.colors import to_rgb
from scipy import stats

from pickmix import CalibrationDisplay, GaussianMixture
from pickmix.displays.colours import BLUE, VERMILION


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "pies"}, "kind"),
        ({"level": 1.0}, "level must be between 0 and 1"),
        ({"columns": [5]}, "from 0 to 2, got 5"),
    ],
)
def test_wrong_parameters_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        CalibrationDisplay.from_estimator(gaussian(3), rows(3), **settings)

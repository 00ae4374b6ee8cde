"""Displays of columns, of one row's explanation, of the trace and of the path over K."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from cases import SETTINGS, mixture, table, trained, two_groups
from matplotlib.colors import to_rgb
from scipy import stats

from pickmix import (
    CalibrationDisplay,
    ExplanationDisplay,
    GaussianMixture,
    MarginalsDisplay,
    PathDisplay,
    TraceDisplay,
    path,
)
from pickmix.inspection.columns import Marginal, marginals
from pickmix.inspection.displays.colours import BLUE, VERMILION
from pickmix.inspection.displays.columns import draw_marginal


def legend_of(place):
    return [text.get_text() for text in place.get_texts()]


def test_bars_are_rows_and_lines_the_model():
    model, X = mixture(3), two_groups(3)
    display = MarginalsDisplay.from_estimator(model, X, n_bins=10)
    for axes, expected in zip(display.axes_, marginals(model, X, 10), strict=True):
        observed, line = axes.patches
        np.testing.assert_array_equal(observed.get_data()[0], expected.observed)
        np.testing.assert_array_equal(line.get_data()[0], expected.expected)
        np.testing.assert_array_equal(line.get_data()[1], expected.edges)
        assert axes.get_title(loc="left") == expected.name
    assert legend_of(display.figure_.legends[0]) == ["rows", "model"]
    deep = MarginalsDisplay.from_estimator(trained(), two_groups())
    assert legend_of(deep.figure_.legends[0]) == ["rows", "drawn from the model"]
    _, grid = plt.subplots(1, 2)
    with pytest.raises(ValueError, match="axes must hold at least 3 axes"):
        MarginalsDisplay.from_estimator(model, X, axes=grid)
    display = MarginalsDisplay.from_estimator(model, X, columns=[2, 0], axes=grid)
    assert list(display.axes_) == list(grid)
    assert grid[0].get_legend() is not None


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
    labels = dates.xaxis.get_major_formatter().format_ticks(dates.get_xticks())
    assert any(month in "".join(labels) for month in ("Jan", "Feb", "Mar", "Apr", "May"))


def test_dates_of_any_range_have_ticks():
    shares, (_, axes) = np.full(10, 0.1), plt.subplots()
    for unit in ("s", "m", "h", "D", "W"):
        for n_units in (3, 7, 40, 150, 700):
            axes.clear()
            seconds = np.timedelta64(n_units, unit).astype("m8[s]").astype(float)
            steps = np.linspace(0.0, seconds, 11)
            edges = np.datetime64("2024-02-28T00:00:00") + steps.astype("m8[s]")
            draw_marginal(axes, Marginal("", "number", edges, (), shares, shares, 200, True))
            # Locators warn of ranges that they do not know; warnings are errors here.
            low, high = axes.get_xlim()
            assert 2 <= np.count_nonzero(axes.get_xticks() >= low) <= 14
            assert high > low


def test_of_many_columns_those_that_differ_most_are_drawn():
    X = np.random.default_rng(0).normal(size=(500, 14))
    model = GaussianMixture(1).fit(X)
    X[:, [2, 13]] = np.square(X[:, [2, 13]])
    display = MarginalsDisplay.from_estimator(model, X)
    names = [axes.get_title(loc="left") for axes in display.axes_]
    assert len(names) == 12
    assert {"column 2", "column 13"} <= set(names)
    assert display.figure_.get_suptitle().startswith("12 of 14 columns")
    display = CalibrationDisplay.from_estimator(model, X)
    assert len(display.axes_) == 12
    assert any(axes.get_title(loc="left").startswith("column 13: ") for axes in display.axes_)
    curves = CalibrationDisplay.from_estimator(model, X, kind="curves")
    labels = legend_of(curves.axes_[0].get_legend())
    assert labels[-1] == "6 more columns"
    assert len(labels) == 9
    # The lowest panel of every column has its ticks labelled.
    display = CalibrationDisplay.from_estimator(model, X, columns=list(range(6)))
    labelled = [axes.xaxis.get_tick_params()["labelbottom"] for axes in display.axes_]
    assert labelled == [False, False, True, True, True, True]


@pytest.fixture(scope="module")
def drawn():
    model = mixture(3)
    X = model.sample(3000, 1)[0]
    X[:, 1] += 3.0
    return model, X


def test_histograms_have_a_band_and_mark_what_is_off(drawn):
    display = CalibrationDisplay.from_estimator(*drawn, n_bins=10, level=0.9)
    for d, axes in enumerate(display.axes_):
        heights, edges, _ = axes.patches[0].get_data()
        u = display.calibration.values[d]
        np.testing.assert_allclose(heights, np.histogram(u, edges, density=True)[0])
        assert edges.shape == (11,)
    band = display.axes_[0].patches[1]
    expected = 10 * stats.binom.ppf([0.05, 0.95], 3000, 0.1) / 3000
    np.testing.assert_allclose([band.get_y(), band.get_y() + band.get_height()], expected)
    display.plot()
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


# Explanations.


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
    bars = [bar.get_width() for bar in display.ax_.patches]
    np.testing.assert_allclose(bars, display.surprise)
    assert [text.get_text() for text in display.ax_.get_yticklabels()] == display.names
    low, high = display.ax_.get_ylim()
    assert low > high
    assert display.title == f"row 4: log p(row) = {found.log_density[4]:.2f}"
    expected, spread = found.expected[4, 1], found.spread[4, 1]
    assert display.texts[0] == f"50 (expected {expected:.1f} ± {spread:.2g})"
    assert display.ax_.texts[0].get_text() == display.texts[0]


def test_an_explanation_made_before_is_taken():
    model, X = unusual()
    found = model.explain(X)
    first = ExplanationDisplay.from_explanation(found, row=4)
    second = ExplanationDisplay.from_estimator(model, X, row=4)
    np.testing.assert_allclose(first.surprise, second.surprise, atol=1e-9)
    assert (first.names, first.texts, first.title) == (second.names, second.texts, second.title)
    assert len(ExplanationDisplay.from_explanation(found, row=4, top=2).names) == 2
    for row in (5, -1, 1.5):
        with pytest.raises(ValueError, match="row must be a number from 0 to 4"):
            ExplanationDisplay.from_explanation(found, row=row)


def test_a_table_keeps_its_terms_and_leaves_gaps_out():
    model, frame = table()
    display = ExplanationDisplay.from_estimator(model, frame, row=3)
    assert set(display.names) == {"when", "kind", "age", "calls", "alive"}
    found = model.explain(frame)
    expected = [found.surprise[3, found.names.index(name)] for name in display.names]
    np.testing.assert_allclose(display.surprise, expected, atol=1e-9)
    texts = dict(zip(display.names, display.texts, strict=True))
    assert texts["kind"].startswith(f"{frame['kind'][3]} (expected ")
    assert texts["kind"].endswith("%)")
    assert texts["when"].endswith("days)")


def test_of_many_columns_the_most_surprising_are_shown():
    X = np.random.default_rng(0).normal(size=(300, 20))
    display = ExplanationDisplay.from_estimator(GaussianMixture(1).fit(X), X, row=7)
    assert len(display.names) == 15
    assert "the 15 most surprising of 20 columns" in display.title
    assert (np.diff(display.surprise) <= 0.0).all()


# Traces and paths.


def test_lines_are_the_records():
    model = GaussianMixture(3, proposal="uniform", **SETTINGS).fit(two_groups())
    for work in ("seconds", "epoch", "evaluations", "step"):
        display = TraceDisplay.from_estimator(model, work=work, references={"true": -2.0})
        curve, line = display.ax_.get_lines()
        np.testing.assert_array_equal(curve.get_xdata(), model.trace_[work])
        np.testing.assert_array_equal(curve.get_ydata(), model.trace_["log_likelihood"])
        assert set(line.get_ydata()) == {-2.0}
        (accepted,) = display.acceptance_ax_.get_lines()
        np.testing.assert_array_equal(accepted.get_ydata(), model.trace_["acceptance"])


def test_acceptance_and_validation_are_drawn_where_they_say_anything():
    trace = mixture().trace_.copy()
    trace["acceptance"] = 1.0
    trace["acceptance"][0] = np.nan
    display = TraceDisplay(trace).plot()
    # One by construction.
    assert display.acceptance_ax_ is None
    assert len(display.figure_.axes) == len(display.ax_.get_lines()) == 1
    trace["acceptance"][-1] = 0.999
    trace["validation"] = trace["log_likelihood"] - 1.0
    display = TraceDisplay(trace).plot()
    assert display.acceptance_ax_ is not None
    training, validation = display.ax_.get_lines()
    np.testing.assert_array_equal(validation.get_ydata(), training.get_ydata() - 1.0)
    assert legend_of(display.ax_.get_legend()) == ["training rows", "validation rows"]


@pytest.fixture(scope="module")
def found():
    return path(mixture(2, 12), two_groups(2, 300), two_groups(2, 300))


@pytest.mark.parametrize("rule", ["one-standard-error", "aic"])
def test_curves_are_those_of_the_path(found, rule):
    display = PathDisplay.from_path(found, rule=rule)
    above, below = display.axes_
    curve = above.get_lines()[0]
    np.testing.assert_array_equal(curve.get_xdata(), found.n_components)
    np.testing.assert_array_equal(curve.get_ydata(), found.log_likelihood)
    band = above.collections[0].get_paths()[0].vertices
    widest = np.argmax(found.standard_error)
    at = band[band[:, 0] == found.n_components[widest], 1]
    np.testing.assert_allclose(np.ptp(at), 2.0 * found.standard_error[widest])
    bic, _, aic, *_ = below.get_lines()
    np.testing.assert_array_equal(bic.get_ydata(), found.bic)
    np.testing.assert_array_equal(aic.get_ydata(), found.aic)
    lowest = found.n_components[np.argmin(found.bic)]
    assert legend_of(below.get_legend())[0] == f"BIC, lowest at {lowest}"
    assert above.get_xscale() == below.get_xscale() == "log"
    # The chosen number is marked.
    assert display.chosen == found.choose(rule)
    for axes in display.axes_:
        assert any(set(line.get_xdata()) == {display.chosen} for line in axes.get_lines())
    assert above.texts[0].get_text() == f"{display.chosen} chosen ({rule})"


def test_an_estimator_gives_the_same_picture(found):
    few = PathDisplay.from_estimator(mixture(2, 12), two_groups(2, 300), n_components=[2, 4, 8])
    np.testing.assert_array_equal(few.axes_[0].get_lines()[0].get_xdata(), [2, 4, 8])
    kept = np.searchsorted(found.n_components, [2, 4, 8])
    np.testing.assert_allclose(few.path.log_likelihood, found.log_likelihood[kept])
    # A single axes has the criteria on the right.
    _, axes = plt.subplots()
    display = PathDisplay.from_path(found, ax=axes)
    assert display.axes_[0] is axes
    assert display.axes_[1].get_shared_x_axes().joined(axes, display.axes_[1])
    np.testing.assert_array_equal(display.axes_[1].get_lines()[0].get_ydata(), found.bic)
    with pytest.raises(TypeError, match="got a pickmix Mixture"):
        PathDisplay.from_estimator(trained(), two_groups())
    with pytest.raises(ValueError, match="rule"):
        PathDisplay.from_path(found, rule="mdl")

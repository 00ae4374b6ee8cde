"""Pictures: errors at t95 over a parameter."""

import numpy as np
from drawn_histories import (
    by_key,
    error_histories,
    gaussian,
    kinds,
    labelled,
    rising,
    words,
)
from matplotlib.collections import LineCollection

from pickmix.experiments.reproduction.drawing.figures import compose
from pickmix.experiments.reproduction.drawing.style import SHAPES
from pickmix.experiments.reproduction.panels import ErrorPanel, Figure


def test_errors_against_the_time_to_t95():
    histories = error_histories()
    # The order of the runs does not matter.
    runs = tuple(history.run for history in histories[::-1])
    page = compose(Figure("F", (ErrorPanel("P", "K", runs),)), by_key(*histories))
    for axes, scale in zip(page.axes, (1.0, 100.0), strict=True):
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        (line,) = labelled(axes, "MHSAEM-P")
        # t95 is the second record, -20.8 after (1, 2, 3) x 10^rank seconds; the truth of the
        # middle seed is -19.9 + 0.2 rank.
        np.testing.assert_allclose(line.get_xdata(), scale * np.array([2.0, 20.0, 200.0]))
        np.testing.assert_allclose(line.get_ydata(), [0.9, 1.1, 1.3])
        points = [found for found in axes.lines if found is not line]
        assert [point.get_marker() for point in points] == list(SHAPES[:3])
        np.testing.assert_allclose([point.get_ydata()[0] for point in points], [0.9, 1.1, 1.3])
        bars = [bar.get_segments()[0] for bar in kinds(axes, LineCollection)]
        for bar, x, y in zip(bars, line.get_xdata(), line.get_ydata(), strict=True):
            np.testing.assert_allclose(bar, [[x, y - 0.098], [x, y + 0.098]])
    assert words(page) == ["MHSAEM-P", "K = 25", "K = 50", "K = 100"]
    assert page.axes[0].get_ylabel().replace("\n", " ") == "absolute error at t95 (nats per row)"


def test_an_algorithm_without_the_parameter_is_a_point():
    histories = [
        rising(gaussian("EM"), truth=-19.0),
        rising(gaussian("MCSAEM", M=1), truth=-19.0),
        rising(gaussian("MCSAEM", M=5), truth=-19.0, factor=2.0),
    ]
    runs = tuple(history.run for history in histories)
    page = compose(Figure("F", (ErrorPanel("P", "M", runs),)), by_key(*histories))
    np.testing.assert_allclose(labelled(page.axes[0], "EM")[0].get_xydata(), [[1.0, 1.8]])
    assert [line.get_marker() for line in labelled(page.axes[0], "_None")] == ["*"]
    assert words(page) == ["EM", "MCSAEM", "M = 1", "M = 5", "without M"]
    assert not kinds(page.axes[0], LineCollection)  # one seed


def test_shapes_of_values_are_the_same_in_all_panels():
    histories = error_histories()
    panels = tuple(
        ErrorPanel("P", "K", tuple(h.run for h in histories if h.run.K in kept))
        for kept in ((25, 50, 100), (100,))
    )
    page = compose(Figure("F", panels), by_key(*histories))
    assert [line.get_marker() for line in labelled(page.axes[1], "_100")] == [SHAPES[2]]


def test_an_error_of_zero_makes_the_axis_linear():
    one = rising(gaussian(K=25), truth=-20.8)
    page = compose(Figure("F", (ErrorPanel("P", "K", (one.run,)),)), by_key(one))
    assert page.axes[0].get_yscale() == "linear"


def test_errors_without_a_truth_are_left_out():
    one = rising(gaussian())
    assert compose(Figure("F", (ErrorPanel("P", "K", (one.run,)),)), by_key(one)) is None

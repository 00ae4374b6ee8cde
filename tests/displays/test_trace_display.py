"""The trace: lines are the records, and acceptance is drawn where it says anything."""

import numpy as np
import pytest
from displayed import SETTINGS, gaussian, rows

from pickmix import GaussianMixture, TraceDisplay


@pytest.mark.parametrize("work", ["seconds", "epoch", "evaluations", "step"])
def test_lines_are_the_records(work):
    model = GaussianMixture(3, proposal="uniform", **SETTINGS).fit(rows())
    display = TraceDisplay.from_estimator(model, work=work, references={"true": -2.0})
    curve, line = display.ax_.get_lines()
    np.testing.assert_array_equal(curve.get_xdata(), model.trace_[work])
    np.testing.assert_array_equal(curve.get_ydata(), model.trace_["log_likelihood"])
    assert set(line.get_ydata()) == {-2.0}
    (accepted,) = display.acceptance_ax_.get_lines()
    np.testing.assert_array_equal(accepted.get_ydata(), model.trace_["acceptance"])


def test_acceptance_of_one_by_construction_is_not_drawn():
    trace = gaussian().trace_.copy()
    trace["acceptance"] = 1.0
    trace["acceptance"][0] = np.nan
    display = TraceDisplay(trace).plot()
    assert display.acceptance_ax_ is None
    assert len(display.figure_.axes) == 1
    trace["acceptance"][-1] = 0.999
    assert TraceDisplay(trace).plot().acceptance_ax_ is not None


def test_a_fit_by_blocks_accepts_everything():
    model = GaussianMixture(40, proposal="partition", **SETTINGS).fit(rows(2, 2000))
    finite = np.isfinite(model.trace_["acceptance"])
    assert (model.trace_["acceptance"][finite] == 1.0).all()
    assert not TraceDisplay.from_estimator(model).has_acceptance


def test_validation_has_a_line_of_its_own():
    trace = gaussian().trace_.copy()
    assert len(TraceDisplay(trace).plot().ax_.get_lines()) == 1
    trace["validation"] = trace["log_likelihood"] - 1.0
    display = TraceDisplay(trace).plot()
    training, validation = display.ax_.get_lines()
    np.testing.assert_array_equal(validation.get_ydata(), training.get_ydata() - 1.0)
    labels = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert labels == ["training rows", "validation rows"]


def test_an_unknown_axis_is_named():
    with pytest.raises(ValueError, match="work"):
        TraceDisplay.from_estimator(gaussian(), work="hours")

"""The trace and the path: lines are the records, curves the arrays of the path."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from displayed import SETTINGS, flow, gaussian, rows

from pickmix import GaussianMixture, PathDisplay, TraceDisplay, path


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


@pytest.fixture(scope="module")
def found():
    return path(gaussian(2, 12), rows(2, 300))


@pytest.mark.parametrize("rule", ["one-standard-error", "best", "bic"])
def test_curves_are_those_of_the_path(found, rule):
    display = PathDisplay.from_path(found, rule=rule)
    above, below = display.axes_
    curve = above.get_lines()[0]
    np.testing.assert_array_equal(curve.get_xdata(), found.n_components)
    np.testing.assert_array_equal(curve.get_ydata(), found.log_likelihood)
    band = above.collections[0].get_paths()[0].vertices
    best = np.argmax(found.log_likelihood)
    widest = np.argmax(found.standard_error)
    at = band[band[:, 0] == found.n_components[widest], 1]
    np.testing.assert_allclose(np.ptp(at), 2.0 * found.standard_error[widest])
    assert found.standard_error[best] == 0.0
    bic, _, aic, *_ = below.get_lines()
    np.testing.assert_array_equal(bic.get_ydata(), found.bic)
    np.testing.assert_array_equal(aic.get_ydata(), found.aic)
    labels = [text.get_text() for text in below.get_legend().get_texts()]
    assert labels[0] == f"BIC, lowest at {found.n_components[np.argmin(found.bic)]}"
    assert above.get_xscale() == below.get_xscale() == "log"


@pytest.mark.parametrize("rule", ["one-standard-error", "aic"])
def test_the_chosen_number_is_marked(found, rule):
    display = PathDisplay.from_path(found, rule=rule)
    assert display.chosen == found.choose(rule)
    for axes in display.axes_:
        marks = [line for line in axes.get_lines() if set(line.get_xdata()) == {display.chosen}]
        assert marks
    assert display.axes_[0].texts[0].get_text() == f"{display.chosen} chosen ({rule})"


def test_an_estimator_gives_the_same_picture(found):
    display = PathDisplay.from_estimator(gaussian(2, 12), rows(2, 300))
    np.testing.assert_allclose(display.path.log_likelihood, found.log_likelihood)
    few = PathDisplay.from_estimator(gaussian(2, 12), rows(2, 300), n_components=[2, 4, 8])
    np.testing.assert_array_equal(few.axes_[0].get_lines()[0].get_xdata(), [2, 4, 8])


def test_a_single_axes_has_the_criteria_on_the_right(found):
    _, axes = plt.subplots()
    display = PathDisplay.from_path(found, ax=axes)
    assert display.axes_[0] is axes
    assert display.axes_[1].get_shared_x_axes().joined(axes, display.axes_[1])
    np.testing.assert_array_equal(display.axes_[1].get_lines()[0].get_ydata(), found.bic)


def test_what_has_no_path_is_named(found):
    with pytest.raises(TypeError, match="got a pickmix FlowMixture"):
        PathDisplay.from_estimator(flow(), rows())
    with pytest.raises(ValueError, match="rule"):
        PathDisplay.from_path(found, rule="mdl")

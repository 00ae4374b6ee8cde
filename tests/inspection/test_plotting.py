"""Pictures of fits in files, of every shape of model."""

import copy
import sys
from pathlib import Path

import numpy as np
import pytest
from cases import Bell, deep, gaussian, two_groups
from matplotlib.collections import EllipseCollection
from matplotlib.figure import Figure

from pickmix import GaussianMixture, SumProductTransformNetwork
from pickmix.inspection.columns import calibration
from pickmix.inspection.displays.base import describe
from pickmix.inspection.plane import choose_plane
from pickmix.plotting import plot_fit


def test_a_picture_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    model, X = gaussian("full", 2)
    picture = plot_fit(model, X, tmp_path / "fit.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 20_000

    def fail(self, place, **settings):
        assert settings["format"] == "svg"
        Path(place).write_text("half a picture")
        raise OSError("disk full")

    target = tmp_path / "fit.svg"
    target.write_text("old")
    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        plot_fit(model, X, target)
    assert target.read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["fit.png", "fit.svg"]


def test_without_matplotlib_the_extra_is_offered(tmp_path, monkeypatch):
    model, X = gaussian("full", 2)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install pickmix\[plot\]"):
        plot_fit(model, X, tmp_path / "fit.png")


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draw a model, and return the figure, which is not rendered."""
    saved = []

    def remember(self, place, **settings):
        saved.append(self)
        Path(place).write_bytes(b"a picture")

    monkeypatch.setattr(Figure, "savefig", remember)

    def draw(model, X, **settings):
        assert plot_fit(model, X, tmp_path / "fit.png", **settings).read_bytes() == b"a picture"
        return saved.pop()

    return draw


def test_components_and_trace_stand_side_by_side(drawn):
    X = two_groups(5)
    settings = {"proposal": "uniform", "random_state": 0, "max_iter": 4, "tol": 0.0}
    model = GaussianMixture(3, **settings).fit(X)
    left, right, second = drawn(model, X, references={"true": -1.25}).axes
    assert left.get_xlabel().startswith("first principal axis (")
    assert [type(c) is EllipseCollection for c in left.collections] == [False, True]
    curve, line = right.get_lines()
    np.testing.assert_array_equal(curve.get_ydata(), model.trace_["log_likelihood"])
    assert set(line.get_ydata()) == {-1.25}
    assert [text.get_text() for text in right.texts] == ["true: -1.250"]
    np.testing.assert_array_equal(second.get_lines()[0].get_ydata(), model.trace_["acceptance"])
    # A model without records, and so without acceptance.
    model = copy.copy(model)
    model.trace_ = model.trace_[:0]
    assert len(drawn(model, X).axes) == 2


# Mixtures without ellipses: a curve, contours, or rows drawn from them.


def test_one_column_is_a_curve_of_the_density(drawn):
    model, X = deep(1)
    left = drawn(model, X).axes[0]
    (curve,) = left.get_lines()
    grid, density = curve.get_data()
    np.testing.assert_array_equal(density, np.exp(model.score_samples(grid[:, None])))
    assert left.get_title(loc="left") == "2 components, by mhsaem"


def test_two_columns_have_contours_that_hold_shares_of_the_rows(drawn):
    model, X = deep()
    model.feature_names_in_ = np.array(["height", "width"], dtype=object)
    left, right, second = drawn(model, X, references={"true": -1.25}).axes
    # On a line, where no point of the grid has the densities of the rows.
    flat = drawn(model, X * [1.0, 0.0] + [0.0, 7.0]).axes[0]
    del model.feature_names_in_
    assert len(flat.collections) >= 1
    assert (left.get_xlabel(), left.get_ylabel()) == ("height", "width")
    points, contours = left.collections
    np.testing.assert_array_equal(points.get_offsets(), X)
    scores = model.score_samples(X)
    inside = [(scores >= level).mean() for level in contours.levels]
    np.testing.assert_allclose(inside, [0.99, 0.9, 0.7, 0.5, 0.3, 0.1], atol=0.006)
    for level, path in zip(contours.levels, contours.get_paths(), strict=True):
        # Lines through a grid of 250 points a side.
        np.testing.assert_allclose(model.score_samples(path.vertices), level, atol=0.02)
    # Training and validation over the work.
    training, validation, line = right.get_lines()
    for curve, column in ((training, "log_likelihood"), (validation, "validation")):
        np.testing.assert_array_equal(curve.get_xdata(), model.trace_["seconds"])
        np.testing.assert_array_equal(curve.get_ydata(), model.trace_[column])
    assert set(line.get_ydata()) == {-1.25}
    shown = [text.get_text() for text in right.get_legend().get_texts()]
    assert shown == ["training rows", "validation rows"]
    np.testing.assert_array_equal(second.get_lines()[0].get_ydata(), model.trace_["acceptance"])


def test_more_columns_have_drawn_rows_beside(drawn):
    model, X = deep(3)
    expected = choose_plane(model, X).project(model.sample(400)[0])
    model.random_state = np.random.RandomState(0)
    before = model.random_state.get_state()[1].copy()
    left, middle, *_ = drawn(model, X).axes
    # Drawing leaves the random state alone.
    np.testing.assert_array_equal(model.random_state.get_state()[1], before)
    model.random_state = 0
    (data,), (sampled,) = left.collections, middle.collections
    largest = np.linalg.eigvalsh(np.corrcoef(X.T))[::-1][:2]
    np.testing.assert_allclose(data.get_offsets().var(axis=0), largest)
    np.testing.assert_allclose(sampled.get_offsets(), expected)
    assert left.get_xlim() == middle.get_xlim()
    assert left.get_ylim() == middle.get_ylim()
    assert middle.get_title(loc="left") == "Drawn from the model:\n2 components, by mhsaem"


def test_a_network_is_named_by_its_shape():
    for n_children, shown in ((8, "8"), ((8, 4, 4), "8/4/4"), ("auto", "8/4/4")):
        network = SumProductTransformNetwork(n_children, 2, 3, algorithm="em")
        # What a fit to ten columns leaves behind.
        network.tables_, network.center_, network.weights_ = [], np.zeros(10), np.full(8, 0.125)
        title = describe(network)
        assert title == f"network of 3 layers, {shown} children, 2 parts, by em"


def test_components_that_cannot_draw_leave_the_data_alone(drawn):
    class Silent:
        init, log_prob = Bell.init, Bell.log_prob

    model, X = deep(3)
    model = copy.copy(model)
    model.component = Silent()
    left = drawn(model, X).axes[0]
    assert left.get_title(loc="left") == "Data for 2 components, by mhsaem"
    with pytest.raises(ValueError, match="must be able to draw rows"):
        calibration(model, X)

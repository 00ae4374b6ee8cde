"""Displays: components in a plane, pairs of columns, and what all displays share."""

import copy
import re
import sys
from importlib import resources

import matplotlib.pyplot as plt
import numpy as np
import pytest
from cases import as_matrices, counts, mixture, table, trained, two_groups
from matplotlib.collections import EllipseCollection
from matplotlib.colors import to_rgba_array
from scipy import stats

import pickmix
from pickmix import ComponentsDisplay, GaussianMixture, PairsDisplay
from pickmix.inspection.displays.base import cluster_colours, overlap, shorten

DISPLAYS = [name for name in dir(pickmix) if name.endswith("Display")]


def test_all_displays_are_public():
    assert DISPLAYS == [
        "CalibrationDisplay",
        "ComponentsDisplay",
        "ExplanationDisplay",
        "MarginalsDisplay",
        "PairsDisplay",
        "PathDisplay",
        "TraceDisplay",
    ]


@pytest.mark.parametrize("name", DISPLAYS)
def test_without_matplotlib_the_extra_is_offered(name, monkeypatch):
    model, X = mixture(3), two_groups(3)
    for module in [module for module in sys.modules if module.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    arguments = (model,) if name == "TraceDisplay" else (model, X)
    with pytest.raises(ImportError, match=r"pip install pickmix\[plot\]"):
        getattr(pickmix, name).from_estimator(*arguments)


def test_displays_are_imported_without_matplotlib():
    package = resources.files("pickmix.inspection.displays")
    for file in package.iterdir():
        if file.name.endswith(".py"):
            assert not re.search(r"^(import|from) matplotlib", file.read_text("utf-8"), re.M)


def test_clusters_near_each_other_have_different_colours():
    centers = np.random.default_rng(0).normal(size=(60, 2))
    colours = cluster_colours(centers)
    assert len(set(colours[:10])) == 10
    distances = np.linalg.norm(centers[:, None] - centers, axis=-1) + 1e9 * np.eye(60)
    assert all(colours[i] != colours[j] for i, j in enumerate(distances.argmin(axis=1)))
    names = [shorten(f"country number {n}", 14) for n in (7, 12)]
    assert names == ["country n…er 7", "country n…r 12"]
    assert shorten("short", 10) == "short"


@pytest.mark.parametrize(
    ("name", "make", "settings", "message"),
    [
        ("Components", mixture, {"level": 7}, "level must be a number of clusters from 1 to 6"),
        ("Components", mixture, {"level": 0}, "level must be a number of clusters from 1 to 6"),
        ("Components", mixture, {"level": 2.0}, "level must be a number of clusters"),
        ("Components", trained, {"level": 2}, "level must be None for Mixture"),
        ("Components", mixture, {"columns": [0, 3]}, "numbers of columns, from 0 to 2, got 3"),
        ("Components", mixture, {"columns": ["a", "b"]}, "columns must hold numbers"),
        ("Calibration", mixture, {"kind": "pies"}, "kind"),
        ("Calibration", mixture, {"level": 1.0}, "level must be between 0 and 1"),
        ("Calibration", mixture, {"columns": [5]}, "from 0 to 2, got 5"),
        ("Pairs", mixture, {"level": 9}, "level must be a number of clusters from 1 to 6"),
        ("Pairs", mixture, {"columns": [1]}, "columns must be two to 8"),
        ("Pairs", mixture, {"columns": ["a", "b"]}, "columns must hold numbers of columns"),
        ("Pairs", trained, {}, "Mixture, which has no merge tree"),
        ("Explanation", trained, {}, "must be able to explain rows, got Mixture"),
        ("Explanation", mixture, {"row": 400}, "row must be a number from 0 to 399"),
        ("Explanation", mixture, {"row": True}, "row must be a number from 0 to 399"),
        ("Trace", mixture, {"work": "hours"}, "work"),
        ("Components", lambda n: GaussianMixture(n), {}, "not fitted"),
    ],
)
def test_wrong_parameters_are_named(name, make, settings, message):
    arguments = (make(3),) if name == "Trace" else (make(3), two_groups(3))
    with pytest.raises(ValueError, match=message):
        getattr(pickmix, f"{name}Display").from_estimator(*arguments, **settings)


@pytest.mark.parametrize("name", ["Components", "Pairs", "Explanation"])
def test_paths_are_refused(name):
    with pytest.raises(ValueError, match="X must be a table in memory, got the path"):
        getattr(pickmix, f"{name}Display").from_estimator(mixture(3), "rows.csv")


def test_levels_and_single_columns_that_cannot_be_drawn_are_named():
    model, frame = table()
    for display in (ComponentsDisplay, PairsDisplay):
        with pytest.raises(ValueError, match="'kind', which holds levels"):
            display.from_estimator(model, frame, columns=["kind", "age"])
    with pytest.raises(ValueError, match="Near ones are 'age'"):
        ComponentsDisplay.from_estimator(model, frame, columns=["agee", "when"])
    with pytest.raises(ValueError, match="level must be None for a single column"):
        ComponentsDisplay.from_estimator(mixture(1), two_groups(1), level=2)
    with pytest.raises(ValueError, match="two columns of numbers to draw pairs of, got 1"):
        PairsDisplay.from_estimator(*counts(1))


# Components.


def ellipses_in(axes):
    (found,) = [c for c in axes.collections if isinstance(c, EllipseCollection)]
    return found


@pytest.mark.parametrize("covariance_type", ["full", "spherical"])
def test_an_ellipse_for_each_component_at_its_mean(covariance_type):
    model, X = mixture(2, 6, covariance_type), two_groups()
    _, axes = plt.subplots()
    settings = {"rows_kwargs": {"color": "red"}, "ellipse_kwargs": {"linewidths": 3.0}}
    display = ComponentsDisplay.from_estimator(model, X, ax=axes, **settings)
    assert display.ax_ is axes
    assert display.figure_ is axes.figure
    found = ellipses_in(axes)
    heaviest = np.argsort(-model.weights_)
    np.testing.assert_allclose(found.get_offsets(), model.means_[heaviest])
    covariances = as_matrices(model)[heaviest]
    lengths = 2.0 * display.ellipses.n_std * np.sqrt(np.linalg.eigvalsh(covariances))
    np.testing.assert_allclose(found.get_widths(), lengths[:, 1])
    np.testing.assert_allclose(found.get_heights(), lengths[:, 0])
    # The long axis is an eigenvector.
    for angle, covariance in zip(np.radians(found.get_angles()), covariances, strict=True):
        along = np.array([np.cos(angle), np.sin(angle)])
        largest = np.linalg.eigvalsh(covariance)[1]
        np.testing.assert_allclose(covariance @ along, largest * along, atol=1e-9)
    np.testing.assert_array_equal(axes.collections[0].get_offsets(), X)
    np.testing.assert_array_equal(axes.collections[0].get_facecolor()[0, :3], [1.0, 0.0, 0.0])
    np.testing.assert_array_equal(found.get_linewidths(), 3.0)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("column 0", "column 1")
    # Heavier components are darker.
    for colours in (found.get_facecolor(), found.get_edgecolor()):
        alpha = colours[:, 3]
        assert (np.diff(alpha)[np.diff(model.weights_[heaviest]) < 0.0] < 0.0).all()
        assert 0.0 < alpha.min() < alpha.max() <= 1.0


def crowded(n):
    """Components all over each other."""
    model = copy.copy(mixture())
    random = np.random.default_rng(0)
    model.means_ = random.normal(size=(n, 2))
    model.covariances_ = np.tile(np.eye(2), (n, 1, 1))
    model.weights_ = random.dirichlet(np.ones(n))
    return model


def test_ellipses_that_hide_each_other_are_smaller_and_fainter():
    apart = ComponentsDisplay.from_estimator(mixture(), two_groups())
    display = ComponentsDisplay.from_estimator(crowded(200), two_groups())
    found = ellipses_in(display.ax_)
    np.testing.assert_allclose(found.get_widths(), 2.0)
    assert display.ax_.get_title(loc="left").endswith("one standard deviation")
    assert (
        found.get_facecolor()[:, 3].max() < 0.5 * ellipses_in(apart.ax_).get_facecolor()[:, 3].max()
    )
    # The stack of them does not turn black.
    over = np.percentile(overlap(display.ellipses.centers, display.ellipses.covariances, 1.0), 90)
    assert (1.0 - found.get_facecolor()[:, 3].max()) ** over > 0.1
    wide = ComponentsDisplay.from_estimator(crowded(200), two_groups(), n_std=3.0)
    np.testing.assert_allclose(ellipses_in(wide.ax_).get_widths(), 6.0)


def test_of_very_many_components_the_heaviest_are_drawn():
    model = crowded(5100)
    X = np.random.default_rng(0).normal(size=(30_000, 2))
    display = ComponentsDisplay.from_estimator(model, X)
    # And of very many rows a sample.
    assert display.ax_.collections[0].get_offsets().shape == (20_000, 2)
    assert ellipses_in(display.ax_).get_offsets().shape == (5000, 2)
    kept = np.sort(model.weights_)[-5000:]
    np.testing.assert_allclose(np.sort(display.ellipses.weights), kept)
    said = f"the 5,000 heaviest, {100 * kept.sum():.0f} % of the weight"
    assert said in display.ax_.get_title(loc="left")


def test_a_level_colours_components_by_their_cluster():
    model, X = mixture(), two_groups()
    display = ComponentsDisplay.from_estimator(model, X, level=2)
    labels = model.merge_tree().labels(2)[np.argsort(-model.weights_)]
    np.testing.assert_array_equal(display.ellipses.clusters, labels)
    colours = ellipses_in(display.ax_).get_facecolor()[:, :3]
    assert np.unique(colours, axis=0).shape == (2, 3)
    assert len({tuple(colour) for colour in colours[labels == 0]}) == 1
    assert [text.get_text() for text in display.ax_.texts] == ["0", "1"]
    first = model.merge_tree().labels(2) == 0
    center = np.average(model.means_[first], axis=0, weights=model.weights_[first])
    np.testing.assert_allclose(display.ax_.texts[0].xy, center)
    assert display.ax_.get_title(loc="left").endswith("2 clusters of the merge tree")


def test_numbers_of_clusters_do_not_lie_over_each_other():
    display = ComponentsDisplay.from_estimator(crowded(20), two_groups(), level=20)
    written = [text.get_text() for text in display.ax_.texts]
    assert 0 < len(written) < 20
    # The heaviest one is always there.
    assert written[0] == "0"
    display.figure_.canvas.draw()
    boxes = [text.get_window_extent() for text in display.ax_.texts]
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:i])
    assert len(np.unique(ellipses_in(display.ax_).get_facecolor()[:, :3], axis=0)) == 10


def test_one_column_is_a_histogram_and_the_density():
    model, X = mixture(1), two_groups(1)
    display = ComponentsDisplay.from_estimator(model, X)
    *parts, whole = display.ax_.get_lines()
    grid, density = whole.get_data()
    deviations = np.sqrt(model.covariances_[:, 0, 0])
    expected = model.weights_ * stats.norm.pdf(grid[:, None], model.means_[:, 0], deviations)
    np.testing.assert_allclose(density, expected.sum(axis=1))
    drawn = np.stack([p.get_ydata() for p in parts], axis=1)
    np.testing.assert_allclose(drawn, expected, atol=1e-12)
    assert sum(bar.get_height() * bar.get_width() for bar in display.ax_.patches) == pytest.approx(
        1
    )
    assert display.ax_.get_xlabel() == "column 0"
    # A column of counts has shares.
    model, X = counts(1)
    display = ComponentsDisplay.from_estimator(model, X)
    for drawn, values in zip(
        display.ax_.patches, (display.bars.observed, display.bars.expected), strict=True
    ):
        np.testing.assert_array_equal(drawn.get_data()[0], values)


def test_a_table_is_drawn_with_levels_and_gaps():
    model, frame = table()
    display = ComponentsDisplay.from_estimator(model, frame)
    assert display.points.shape == (400, 2)
    assert ellipses_in(display.ax_).get_offsets().shape == (3, 2)
    assert display.ax_.get_xlabel().startswith("first principal axis (")
    assert display.ax_.get_ylabel().startswith("second principal axis (")
    display = ComponentsDisplay.from_estimator(model, frame, columns=["breath", "when"])
    # 21 rows have no breath.
    assert display.points.shape == (379, 2)
    assert display.ax_.get_ylabel() == "when (days since 2024-01-01)"


def test_contours_of_two_columns_in_another_order():
    model, X = trained(), two_groups()
    display = ComponentsDisplay.from_estimator(model, X, columns=[1, 0])
    (contours,) = [c for c in display.ax_.collections if hasattr(c, "levels")]
    for level, path in zip(contours.levels, contours.get_paths(), strict=True):
        np.testing.assert_allclose(model.score_samples(path.vertices[:, ::-1]), level, atol=0.05)


def test_a_deep_mixture_of_more_columns_has_drawn_rows():
    model, X = trained(3), two_groups(3)
    display = ComponentsDisplay.from_estimator(model, X)
    data, drawn = display.ax_.collections
    assert data.get_offsets().shape == drawn.get_offsets().shape == (400, 2)
    assert "drawn from the model" in display.ax_.get_title(loc="left")
    _, both = plt.subplots(1, 2)
    display.plot(both)
    assert [len(axes.collections) for axes in both] == [1, 1]
    assert display.axes_ == list(both)


# Pairs.


def test_pairs_show_the_reduced_mixture():
    model, X = mixture(3), two_groups(3)
    display = PairsDisplay.from_estimator(model, X, level=2)
    reduced, labels = model.reduce(2), model.predict(X, level=2)
    colours = [line.get_color() for line in display.axes_[0, 0].get_lines()]
    of_cluster = to_rgba_array(colours)[:, :3]
    assert set(labels) == {0, 1}
    assert not np.array_equal(*of_cluster)
    assert display.axes_.shape == (3, 3)
    for i, j in np.ndindex(3, 3):
        panel = display.axes_[i, j]
        assert (panel is None) == (j > i)
        if j < i:
            points, ellipses = panel.collections
            assert isinstance(ellipses, EllipseCollection)
            np.testing.assert_allclose(ellipses.get_offsets(), reduced.means_[:, [j, i]])
            covariances = reduced.covariances_[:, [j, i]][:, :, [j, i]]
            lengths = 4.0 * np.sqrt(np.linalg.eigvalsh(covariances))
            np.testing.assert_allclose(ellipses.get_widths(), lengths[:, 1])
            np.testing.assert_array_equal(points.get_offsets(), X[:, [j, i]])
            # Rows and ellipses have the colours of their clusters, in all panels.
            np.testing.assert_array_equal(ellipses.get_facecolor()[:, :3], of_cluster)
            np.testing.assert_array_equal(points.get_facecolor()[:, :3], of_cluster[labels])
    # The diagonal has the curves of the clusters.
    for d in range(3):
        for k, line in enumerate(display.axes_[d, d].get_lines()):
            grid, density = line.get_data()
            deviation = np.sqrt(reduced.covariances_[k, d, d])
            expected = stats.norm.pdf(grid, reduced.means_[k, d], deviation)
            np.testing.assert_allclose(density, reduced.weights_[k] * expected, atol=1e-12)
    shown = [text.get_text() for text in display.legend_ax_.get_legend().get_texts()]
    assert shown == [f"{k}: {weight:.1%}" for k, weight in enumerate(reduced.weights_)]
    assert "2 clusters of the merge tree" in display.title


def test_columns_in_which_clusters_differ_are_chosen():
    # Neither copies, nor flags, nor columns in which nothing differs.
    random = np.random.default_rng(0)
    X = random.normal(size=(600, 8))
    X[:300, :6] += np.linspace(8.0, 9.0, 6)
    X[:, 1], X[:, 6] = X[:, 0], X[:, 5] > 4.0
    model = GaussianMixture(2, random_state=0).fit(X)
    names = PairsDisplay.from_estimator(model, X).names
    assert len(set(names)) == 4
    assert not {"column 0", "column 1"} <= set(names)
    assert not {"column 6", "column 7"} & set(names)
    figure = plt.figure()
    display = PairsDisplay.from_estimator(model, X, columns=[5, 0], figure=figure)
    np.testing.assert_array_equal(display.rows, X[:, [5, 0]])
    assert display.figure_ is figure


def test_a_table_leaves_levels_out_and_keeps_gaps():
    model, frame = table()
    display = PairsDisplay.from_estimator(model, frame, level=2)
    assert display.names == ["when (days since 2024-01-01)", "age", "breath", "calls"]
    points, _ = display.axes_[2, 1].collections
    assert points.get_offsets().shape == (379, 2)
    np.testing.assert_array_equal(display.labels, model.predict(frame, level=2))


def test_many_rows_are_thinned_and_many_clusters_not_named():
    display = PairsDisplay.from_estimator(crowded(14), two_groups(2, 5000), level=14)
    assert display.rows.shape == (4000, 2)
    shown = [text.get_text() for text in display.legend_ax_.get_legend().get_texts()]
    assert len(shown) == 13
    assert shown[-1].startswith("2 more: ")
    assert not display.axes_[1, 0].texts

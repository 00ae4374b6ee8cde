"""Components: where ellipses are, how dark, in which colours, and what stands in for them."""

import copy

import matplotlib.pyplot as plt
import numpy as np
import pytest
from displayed import counts, flow, gaussian, rows, table
from fitted_cases import as_matrices
from matplotlib.collections import EllipseCollection
from scipy import stats

from pickmix import ComponentsDisplay, GaussianMixture
from pickmix.inspection.displays.base import CLUSTER_COLOURS
from pickmix.inspection.displays.ellipses import overlap


def ellipses_in(axes):
    (found,) = [c for c in axes.collections if isinstance(c, EllipseCollection)]
    return found


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_an_ellipse_for_each_component_at_its_mean(covariance_type):
    model, X = gaussian(2, 6, covariance_type), rows()
    display = ComponentsDisplay.from_estimator(model, X)
    found = ellipses_in(display.ax_)
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
    np.testing.assert_array_equal(display.ax_.collections[0].get_offsets(), X)
    assert display.figure_ is display.ax_.figure
    assert (display.ax_.get_xlabel(), display.ax_.get_ylabel()) == ("column 0", "column 1")


def test_many_rows_are_thinned():
    X = np.random.default_rng(0).normal(size=(30_000, 2))
    display = ComponentsDisplay.from_estimator(gaussian(), X)
    assert display.ax_.collections[0].get_offsets().shape == (20_000, 2)


def test_heavier_components_are_darker():
    found = ellipses_in(ComponentsDisplay.from_estimator(gaussian(), rows()).ax_)
    weights = np.sort(gaussian().weights_)[::-1]
    assert weights[0] > weights[-1]
    for colours in (found.get_facecolor(), found.get_edgecolor()):
        alpha = colours[:, 3]
        assert (np.diff(alpha)[np.diff(weights) < 0.0] < 0.0).all()
        assert 0.0 < alpha.min() < alpha.max() <= 1.0


def crowded(n):
    """Components all over each other."""
    model = copy.copy(gaussian())
    random = np.random.default_rng(0)
    model.means_ = random.normal(size=(n, 2))
    model.covariances_ = np.tile(np.eye(2), (n, 1, 1))
    model.weights_ = random.dirichlet(np.ones(n))
    return model


def test_ellipses_that_hide_each_other_are_smaller_and_fainter():
    apart = ComponentsDisplay.from_estimator(gaussian(), rows())
    display = ComponentsDisplay.from_estimator(crowded(200), rows())
    found = ellipses_in(display.ax_)
    np.testing.assert_allclose(found.get_widths(), 2.0)
    assert display.ax_.get_title(loc="left").endswith("one standard deviation")
    assert (
        found.get_facecolor()[:, 3].max() < 0.5 * ellipses_in(apart.ax_).get_facecolor()[:, 3].max()
    )
    # The stack of them does not turn black.
    over = np.percentile(overlap(display.ellipses.centers, display.ellipses.covariances, 1.0), 90)
    assert (1.0 - found.get_facecolor()[:, 3].max()) ** over > 0.1
    wide = ComponentsDisplay.from_estimator(crowded(200), rows(), n_std=3.0)
    np.testing.assert_allclose(ellipses_in(wide.ax_).get_widths(), 6.0)


def test_of_very_many_components_the_heaviest_are_drawn():
    model = crowded(6000)
    display = ComponentsDisplay.from_estimator(model, rows())
    assert ellipses_in(display.ax_).get_offsets().shape == (5000, 2)
    kept = np.sort(model.weights_)[-5000:]
    np.testing.assert_allclose(np.sort(display.ellipses.weights), kept)
    said = f"the 5,000 heaviest, {100 * kept.sum():.0f} % of the weight"
    assert said in display.ax_.get_title(loc="left")


def test_columns_are_chosen_and_principal_axes_are_the_default():
    model, X = gaussian(4), rows(4)
    display = ComponentsDisplay.from_estimator(model, X, columns=[3, 1])
    np.testing.assert_array_equal(display.ax_.collections[0].get_offsets(), X[:, [3, 1]])
    heaviest = np.argsort(-model.weights_)
    np.testing.assert_allclose(
        ellipses_in(display.ax_).get_offsets(), model.means_[heaviest][:, [3, 1]]
    )
    display = ComponentsDisplay.from_estimator(model, X)
    assert display.ax_.get_xlabel().startswith("first principal axis (")
    assert display.ax_.get_ylabel().startswith("second principal axis (")


def test_a_level_colours_components_by_their_cluster():
    model, X = gaussian(), rows()
    display = ComponentsDisplay.from_estimator(model, X, level=2)
    labels = model.merge_tree().labels(2)[np.argsort(-model.weights_)]
    np.testing.assert_array_equal(display.ellipses.clusters, labels)
    colours = ellipses_in(display.ax_).get_facecolor()[:, :3]
    assert np.unique(colours, axis=0).shape == (2, 3)
    assert len({tuple(colour) for colour in colours[labels == 0]}) == 1
    assert [text.get_text() for text in display.ax_.texts] == ["0", "1"]
    center = np.average(
        model.means_[model.merge_tree().labels(2) == 0],
        axis=0,
        weights=model.weights_[model.merge_tree().labels(2) == 0],
    )
    np.testing.assert_allclose(display.ax_.texts[0].xy, center)
    assert display.ax_.get_title(loc="left").endswith("2 clusters of the merge tree")


def test_numbers_of_clusters_do_not_lie_over_each_other():
    display = ComponentsDisplay.from_estimator(crowded(20), rows(), level=20)
    written = [text.get_text() for text in display.ax_.texts]
    assert 0 < len(written) < 20
    # The heaviest one is always there.
    assert written[0] == "0"
    display.figure_.canvas.draw()
    boxes = [text.get_window_extent() for text in display.ax_.texts]
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:i])


def test_one_column_is_a_histogram_and_the_density():
    model, X = gaussian(1), rows(1)
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


def test_one_column_of_counts_has_shares():
    model, X = counts()
    display = ComponentsDisplay.from_estimator(model, X)
    observed, expected = display.ax_.patches
    values, edges, _ = observed.get_data()
    np.testing.assert_allclose(values, [(n == X).mean() for n in edges[:-1] + 0.5])
    law = stats.poisson.pmf(edges[1:-2, None] + 0.5, model.parameters_["rates"][:, 0])
    np.testing.assert_allclose(expected.get_data()[0][1:-1], law @ model.weights_, atol=1e-12)


def test_a_table_is_drawn_with_levels_and_gaps():
    model, frame = table()
    display = ComponentsDisplay.from_estimator(model, frame)
    assert display.points.shape == (300, 2)
    assert ellipses_in(display.ax_).get_offsets().shape == (4, 2)
    display = ComponentsDisplay.from_estimator(model, frame, columns=["breath", "when"])
    # 21 rows have no breath.
    assert display.points.shape == (279, 2)
    assert display.ax_.get_ylabel() == "when (days since 2024-01-01)"


def test_a_flow_of_two_columns_in_another_order():
    model, X = flow(), rows()
    display = ComponentsDisplay.from_estimator(model, X, columns=[1, 0])
    (contours,) = [c for c in display.ax_.collections if hasattr(c, "levels")]
    for level, path in zip(contours.levels, contours.get_paths(), strict=True):
        np.testing.assert_allclose(model.score_samples(path.vertices[:, ::-1]), level, atol=0.05)


def test_a_flow_of_more_columns_has_drawn_rows():
    model, X = flow(3), rows(3)
    display = ComponentsDisplay.from_estimator(model, X)
    data, drawn = display.ax_.collections
    assert data.get_offsets().shape == drawn.get_offsets().shape == (400, 2)
    assert "drawn from the model" in display.ax_.get_title(loc="left")
    _, both = plt.subplots(1, 2)
    display.plot(both)
    assert [len(axes.collections) for axes in both] == [1, 1]
    assert display.axes_ == list(both)


def test_axes_and_settings_are_taken():
    _, axes = plt.subplots()
    display = ComponentsDisplay.from_estimator(
        gaussian(),
        rows(),
        ax=axes,
        rows_kwargs={"color": "red"},
        ellipse_kwargs={"linewidths": 3.0},
    )
    assert display.ax_ is axes
    np.testing.assert_array_equal(axes.collections[0].get_facecolor()[0, :3], [1.0, 0.0, 0.0])
    np.testing.assert_array_equal(ellipses_in(axes).get_linewidths(), 3.0)


def test_colours_of_clusters_repeat_far_from_each_other():
    display = ComponentsDisplay.from_estimator(crowded(12), rows(), level=12)
    assert len(np.unique(ellipses_in(display.ax_).get_facecolor()[:, :3], axis=0)) == 10
    assert len(set(CLUSTER_COLOURS)) == 10


def test_a_single_column_has_no_level():
    with pytest.raises(ValueError, match="level must be None for a single column"):
        ComponentsDisplay.from_estimator(gaussian(1), rows(1), level=2)


def test_levels_span_no_plane():
    model, frame = table()
    with pytest.raises(ValueError, match="'kind', which holds levels"):
        ComponentsDisplay.from_estimator(model, frame, columns=["kind", "age"])
    with pytest.raises(ValueError, match="Near ones are 'age'"):
        ComponentsDisplay.from_estimator(model, frame, columns=["agee", "when"])


def test_unfitted_models_are_refused():
    with pytest.raises(ValueError, match="not fitted"):
        ComponentsDisplay.from_estimator(GaussianMixture(2), rows())

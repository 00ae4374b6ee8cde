"""Pairs: merged components as ellipses, rows in the colours of their clusters."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from displayed import counts, flow, gaussian, rows, table
from matplotlib.collections import EllipseCollection
from matplotlib.colors import to_rgba_array
from scipy import stats

from pickmix import GaussianMixture, PairsDisplay


def test_ellipses_are_those_of_the_reduced_mixture():
    model, X = gaussian(3), rows(3)
    display = PairsDisplay.from_estimator(model, X, level=2)
    reduced = model.reduce(2)
    assert display.axes_.shape == (3, 3)
    for i in range(3):
        for j in range(3):
            assert (display.axes_[i, j] is None) == (j > i)
            if j >= i:
                continue
            points, ellipses = display.axes_[i, j].collections
            assert isinstance(ellipses, EllipseCollection)
            np.testing.assert_allclose(ellipses.get_offsets(), reduced.means_[:, [j, i]])
            own = reduced.covariances_[:, [j, i]][:, :, [j, i]]
            lengths = 4.0 * np.sqrt(np.linalg.eigvalsh(own))
            np.testing.assert_allclose(ellipses.get_widths(), lengths[:, 1])
            np.testing.assert_array_equal(points.get_offsets(), X[:, [j, i]])


def test_rows_have_the_colour_of_their_cluster():
    model, X = gaussian(3), rows(3)
    display = PairsDisplay.from_estimator(model, X, level=2)
    points, ellipses = display.axes_[1, 0].collections
    labels = model.predict(X, level=2)
    assert set(labels) == {0, 1}
    of_cluster = ellipses.get_facecolor()[:, :3]
    assert not np.array_equal(*of_cluster)
    np.testing.assert_array_equal(points.get_facecolor()[:, :3], of_cluster[labels])


def test_the_diagonal_has_the_curves_of_the_clusters():
    model, X = gaussian(3), rows(3)
    display = PairsDisplay.from_estimator(model, X, level=2)
    reduced = model.reduce(2)
    for d in range(3):
        for k, line in enumerate(display.axes_[d, d].get_lines()):
            grid, density = line.get_data()
            deviation = np.sqrt(reduced.covariances_[k, d, d])
            expected = stats.norm.pdf(grid, reduced.means_[k, d], deviation)
            np.testing.assert_allclose(density, reduced.weights_[k] * expected, atol=1e-12)


def test_the_legend_has_the_weights():
    display = PairsDisplay.from_estimator(gaussian(3), rows(3), level=2)
    shown = [text.get_text() for text in display.legend_ax_.get_legend().get_texts()]
    weights = gaussian(3).reduce(2).weights_
    assert shown == [f"{k}: {weight:.1%}" for k, weight in enumerate(weights)]
    assert "2 clusters of the merge tree" in display.title


def test_columns_in_which_clusters_differ_are_chosen():
    random = np.random.default_rng(0)
    X = random.normal(size=(600, 7))
    X[:300, [1, 3, 4, 6]] += 8.0
    model = GaussianMixture(2, random_state=0).fit(X)
    display = PairsDisplay.from_estimator(model, X)
    assert display.names == ["column 1", "column 3", "column 4", "column 6"]
    display = PairsDisplay.from_estimator(model, X, columns=[5, 0])
    np.testing.assert_array_equal(display.rows, X[:, [5, 0]])


def test_copies_and_flags_are_not_chosen():
    random = np.random.default_rng(0)
    X = random.normal(size=(600, 7))
    X[:300] += np.linspace(8.0, 9.0, 7)
    X[:, 1] = X[:, 0]
    X[:, 6] = X[:, 5] > 4.0
    model = GaussianMixture(2, random_state=0).fit(X)
    names = PairsDisplay.from_estimator(model, X).names
    assert len(set(names)) == 4
    assert not {"column 0", "column 1"} <= set(names)
    assert "column 6" not in names


def test_a_table_leaves_levels_out_and_keeps_gaps():
    model, frame = table()
    display = PairsDisplay.from_estimator(model, frame, level=2)
    assert display.names == ["when (days since 2024-01-01)", "breath", "age"]
    points, _ = display.axes_[2, 1].collections
    assert points.get_offsets().shape == (279, 2)
    np.testing.assert_array_equal(display.labels, model.predict(frame, level=2))


def test_many_rows_are_thinned_and_many_clusters_not_named():
    X = rows(2, 9000)
    model = GaussianMixture(14, random_state=0, max_iter=2, tol=0.0).fit(X)
    display = PairsDisplay.from_estimator(model, X, level=14)
    assert display.rows.shape == (4000, 2)
    shown = [text.get_text() for text in display.legend_ax_.get_legend().get_texts()]
    assert len(shown) == 13
    assert shown[-1].startswith("2 more: ")
    assert not display.axes_[1, 0].texts


def test_a_figure_is_taken():
    figure = plt.figure()
    assert PairsDisplay.from_estimator(gaussian(3), rows(3), figure=figure).figure_ is figure


def test_colours_are_those_of_the_ellipses_in_all_panels():
    display = PairsDisplay.from_estimator(gaussian(3), rows(3), level=3)
    colours = [line.get_color() for line in display.axes_[0, 0].get_lines()]
    ellipses = display.axes_[2, 1].collections[1]
    np.testing.assert_array_equal(ellipses.get_facecolor()[:, :3], to_rgba_array(colours)[:, :3])


def test_what_cannot_be_drawn_in_pairs_is_named():
    with pytest.raises(ValueError, match="FlowMixture, which has no merge tree"):
        PairsDisplay.from_estimator(flow(), rows())
    with pytest.raises(ValueError, match="two columns of numbers to draw pairs of, got 1"):
        PairsDisplay.from_estimator(*counts())
    model, frame = table()
    with pytest.raises(ValueError, match="'kind', which holds levels"):
        PairsDisplay.from_estimator(model, frame, columns=["kind", "age"])

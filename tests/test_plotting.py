"""Pictures of fits: drawn for every shape of model, and where they should be."""

import builtins

import numpy as np
import pytest
from matplotlib.collections import EllipseCollection
from matplotlib.figure import Figure

from pickmix import GaussianMixture
from pickmix.plotting import plot_fit


@pytest.fixture
def figures(monkeypatch):
    """Figures that were saved."""
    saved = []
    original = Figure.savefig

    def remember(self, *args, **kwargs):
        saved.append(self)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", remember)
    return saved


def fitted(X, **parameters):
    settings = {"n_components": 3, "random_state": 0, "max_iter": 4, "tol": 0.0, **parameters}
    return GaussianMixture(**settings).fit(X)


def rows(n_columns):
    return np.random.default_rng(0).normal(size=(200, n_columns)) * np.arange(1, n_columns + 1)


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
@pytest.mark.parametrize("n_columns", [1, 2, 5])
def test_a_picture_of_every_kind_of_model(tmp_path, covariance_type, n_columns):
    X = rows(n_columns)
    path = plot_fit(fitted(X, covariance_type=covariance_type), X, tmp_path / "fit.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_ellipses_are_two_standard_deviations_around_the_means(tmp_path, figures, covariance_type):
    X = rows(2)
    model = fitted(X, covariance_type=covariance_type)
    plot_fit(model, X, tmp_path / "fit.png")
    left = figures[0].axes[0]
    (ellipses,) = [c for c in left.collections if isinstance(c, EllipseCollection)]
    heaviest = np.argsort(-model.weights_)
    np.testing.assert_allclose(ellipses.get_offsets(), model.means_[heaviest])
    covariances = np.linalg.inv(np.broadcast_to(_full(model.precisions_, 3), (3, 2, 2)))
    axes = 4.0 * np.sqrt(np.linalg.eigvalsh(covariances))[heaviest]
    np.testing.assert_allclose(ellipses.get_heights(), axes[:, 0])
    np.testing.assert_allclose(ellipses.get_widths(), axes[:, 1])


def _full(precisions, n_components):
    if precisions.ndim == 3 or precisions.shape == (2, 2):
        return precisions
    return precisions.reshape(n_components, -1, 1) * np.eye(2)


def test_more_than_two_columns_are_seen_along_principal_axes(tmp_path, figures):
    X = rows(5)
    plot_fit(fitted(X), X, tmp_path / "fit.png")
    left = figures[0].axes[0]
    points = left.collections[0].get_offsets()
    largest = np.sqrt(np.linalg.eigvalsh(np.cov(X.T, bias=True))[::-1][:2])
    np.testing.assert_allclose(points.std(axis=0), largest)
    assert left.get_xlabel() == "first principal axis"


def test_the_trace_is_drawn_with_acceptance_and_references(tmp_path, figures):
    X = rows(2)
    model = fitted(X, proposal="uniform")
    plot_fit(model, X, tmp_path / "fit.png", references={"true": -1.25})
    _, right, second = figures[0].axes
    curve, line = right.get_lines()
    np.testing.assert_array_equal(curve.get_xdata(), model.trace_["seconds"])
    np.testing.assert_array_equal(curve.get_ydata(), model.trace_["log_likelihood"])
    assert set(line.get_ydata()) == {-1.25}
    assert [text.get_text() for text in right.texts] == ["true: -1.250"]
    np.testing.assert_array_equal(second.get_lines()[0].get_ydata(), model.trace_["acceptance"])


def test_em_has_no_acceptance_axis(tmp_path, figures):
    X = rows(2)
    plot_fit(fitted(X, algorithm="em"), X, tmp_path / "fit.png")
    assert len(figures[0].axes) == 2


def test_large_data_are_thinned(tmp_path, figures):
    X = np.random.default_rng(0).normal(size=(30_000, 2))
    plot_fit(fitted(X, max_iter=1), X, tmp_path / "fit.png")
    assert figures[0].axes[0].collections[0].get_offsets().shape == (20_000, 2)


def test_a_model_without_records_can_be_drawn(tmp_path):
    X = rows(2)
    model = fitted(X)
    model.trace_ = model.trace_[:0]
    assert plot_fit(model, X, tmp_path / "fit.png").is_file()


def test_without_matplotlib_the_extra_is_offered(tmp_path, monkeypatch):
    original = builtins.__import__

    def without_matplotlib(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    X = rows(2)
    model = fitted(X)
    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    with pytest.raises(ImportError, match=r"pip install pickmix\[plot\]"):
        plot_fit(model, X, tmp_path / "fit.png")

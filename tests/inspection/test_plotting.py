"""Pictures of fits: drawn for every shape of model, and where they should be."""

import builtins

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.collections import EllipseCollection
from matplotlib.figure import Figure

from pickmix import FlowMixture, GaussianMixture, Mixture, SumProductTransformNetwork
from pickmix.inspection.displays.base import describe
from pickmix.inspection.plane import choose_plane
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


def test_a_picture_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    X = rows(2)
    target = tmp_path / "fit.svg"
    plot_fit(fitted(X), X, target)
    old = target.read_bytes()
    assert b"<svg" in old

    def fail(self, place, **settings):
        with open(place, "w") as file:
            file.write("half a picture")
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        plot_fit(fitted(X), X, target)
    assert target.read_bytes() == old
    assert [file.name for file in tmp_path.iterdir()] == ["fit.svg"]


def test_components_and_trace_stand_side_by_side(tmp_path, figures):
    X = rows(5)
    model = fitted(X, proposal="uniform")
    plot_fit(model, X, tmp_path / "fit.png", references={"true": -1.25})
    left, right, second = figures[0].axes
    assert left.get_xlabel().startswith("first principal axis (")
    assert [type(c) is EllipseCollection for c in left.collections] == [False, True]
    curve, line = right.get_lines()
    np.testing.assert_array_equal(curve.get_ydata(), model.trace_["log_likelihood"])
    assert set(line.get_ydata()) == {-1.25}
    assert [text.get_text() for text in right.texts] == ["true: -1.250"]
    np.testing.assert_array_equal(second.get_lines()[0].get_ydata(), model.trace_["acceptance"])
    plot_fit(fitted(X, algorithm="em"), X, tmp_path / "fit.png")
    # EM has no acceptance.
    assert len(figures[1].axes) == 2


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


class TestDeep:
    """Mixtures without ellipses: a curve, contours, or rows drawn from them."""

    @pytest.fixture(autouse=True, scope="class")
    @staticmethod
    def quick_compilation():
        # Short fits: compiling them well costs more than it saves.
        jax.config.update("jax_disable_most_optimizations", True)
        yield
        jax.config.update("jax_disable_most_optimizations", False)

    @staticmethod
    def fitted(X, **settings):
        settings = {"batch_size": 50, "max_steps": 20, "random_state": 0} | settings
        return FlowMixture(4, hidden=3, **settings).fit(X)

    def test_one_column_is_a_curve_of_the_density(self, tmp_path, figures):
        X = rows(1)
        model = self.fitted(X)
        assert plot_fit(model, X, tmp_path / "fit.png").stat().st_size > 20_000
        left = figures[0].axes[0]
        (curve,) = left.get_lines()
        grid, density = curve.get_data()
        np.testing.assert_array_equal(density, np.exp(model.score_samples(grid[:, None])))
        assert left.get_title(loc="left") == "4 flows, by mhsaem"

    def test_two_columns_have_contours_that_hold_shares_of_the_rows(self, tmp_path, figures):
        X = rows(2)
        model = self.fitted(X)
        model.feature_names_in_ = np.array(["height", "width"], dtype=object)
        plot_fit(model, X, tmp_path / "fit.png")
        left = figures[0].axes[0]
        assert (left.get_xlabel(), left.get_ylabel()) == ("height", "width")
        points, contours = left.collections
        np.testing.assert_array_equal(points.get_offsets(), X)
        del model.feature_names_in_
        scores = model.score_samples(X)
        inside = [(scores >= level).mean() for level in contours.levels]
        np.testing.assert_allclose(inside, [0.99, 0.9, 0.7, 0.5, 0.3, 0.1], atol=0.006)
        for level, path in zip(contours.levels, contours.get_paths(), strict=True):
            # Lines through a grid of 250 points a side.
            np.testing.assert_allclose(model.score_samples(path.vertices), level, atol=0.02)

    def test_training_and_validation_are_drawn_over_the_work(self, tmp_path, figures):
        X = rows(2)
        model = self.fitted(X)
        plot_fit(model, X, tmp_path / "fit.png", references={"true": -1.25})
        _, right, second = figures[0].axes
        training, validation, line = right.get_lines()
        for curve, column in ((training, "log_likelihood"), (validation, "validation")):
            np.testing.assert_array_equal(curve.get_xdata(), model.trace_["seconds"])
            np.testing.assert_array_equal(curve.get_ydata(), model.trace_[column])
        assert set(line.get_ydata()) == {-1.25}
        shown = [text.get_text() for text in right.get_legend().get_texts()]
        assert shown == ["training rows", "validation rows"]
        np.testing.assert_array_equal(second.get_lines()[0].get_ydata(), model.trace_["acceptance"])

    def test_without_validation_rows_there_is_one_curve(self, tmp_path, figures):
        X = rows(2)[:180]
        plot_fit(self.fitted(X, validation_fraction=None), X, tmp_path / "fit.png")
        right = figures[0].axes[1]
        assert len(right.get_lines()) == 1
        assert right.get_legend() is None

    def test_rows_on_a_line_can_be_drawn(self, tmp_path):
        X = rows(2)
        X[:, 1] = 7.0
        assert plot_fit(self.fitted(X), X, tmp_path / "fit.png").is_file()

    def test_more_columns_have_drawn_rows_beside(self, tmp_path, figures):
        X = rows(3)
        random_state = np.random.RandomState(0)
        model = self.fitted(X, n_layers=1, random_state=random_state)
        state = random_state.get_state()[1].copy()
        plot_fit(model, X, tmp_path / "fit.png")
        np.testing.assert_array_equal(random_state.get_state()[1], state)
        left, middle, *_ = figures[0].axes
        (data,), (drawn,) = left.collections, middle.collections
        largest = np.linalg.eigvalsh(np.corrcoef(X.T))[::-1][:2]
        np.testing.assert_allclose(data.get_offsets().var(axis=0), largest)
        plane = choose_plane(model, X)
        expected = plane.project(model.set_params(random_state=0).sample(200)[0])
        np.testing.assert_allclose(drawn.get_offsets(), expected)
        assert left.get_xlim() == middle.get_xlim()
        assert left.get_ylim() == middle.get_ylim()
        assert middle.get_title(loc="left") == "Drawn from the model:\n4 flows, by mhsaem"

    def test_a_network_is_named_by_its_shape(self):
        for asked, shown in ((8, "8"), ((8, 4, 4), "8/4/4"), ("auto", "8/4/4")):
            network = SumProductTransformNetwork(asked, 2, 3, algorithm="em")
            # What a fit to ten columns leaves behind.
            network.tables_, network.center_, network.weights_ = [], np.zeros(10), np.full(8, 0.125)
            title = describe(network)
            assert title == f"network of 3 layers, {shown} children, 2 parts, by em"

    def test_components_that_cannot_draw_leave_the_data_alone(self, tmp_path, figures):
        class Laplace:
            def init(self, key, n_features):
                return jax.random.normal(key, (n_features,))

            def log_prob(self, params, x):
                return -jnp.sum(jnp.abs(x - params) + jnp.log(2.0))

        X = rows(3)
        model = Mixture(Laplace(), 4, algorithm="em", batch_size=50, max_steps=20).fit(X)
        plot_fit(model, X, tmp_path / "fit.png")
        # No drawn rows, and no acceptance.
        left, _ = figures[0].axes
        assert left.get_title(loc="left") == "Data for 4 components, by em"

import numpy as np
import pytest
from made_up import made_up
from matplotlib.figure import Figure

from pickmix.experiments.curves import STYLES, draw, median_curve
from pickmix.experiments.results import Results, Run
from pickmix.experiments.rivals import RIVALS


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


def test_every_rival_looks_different():
    assert set(STYLES) == set(RIVALS)
    assert len(set(STYLES.values())) == len(STYLES)
    # Without colours, too.
    assert len({style[1:] for style in STYLES.values()}) == len(STYLES)


def test_ends_and_curves_are_where_they_belong(tmp_path, figures):
    path = draw(made_up(tmp_path / "r.csv"), "small", tmp_path / "small.png")
    assert path.stat().st_size > 10_000
    seconds, evaluations = figures[0].axes
    assert seconds.get_xscale() == evaluations.get_xscale() == "log"
    markers = {line.get_label(): line for line in seconds.lines if line.get_marker() != "None"}
    assert set(markers) == {
        "sklearn-kmeans",
        "sklearn-kmeans-one-thread",
        "sklearn-k-means++",
        "em",
        "faiss-kmeans",
    }
    np.testing.assert_allclose(markers["em"].get_xydata(), [[0.75, 0.5]])
    curves = [line for line in seconds.lines if len(line.get_xdata()) > 2]
    assert len(curves) == 1
    x = curves[0].get_xdata()
    assert (x[0], x[-1]) == (pytest.approx(0.02), pytest.approx(0.75))
    # Faiss evaluates no densities; it is in one panel only.
    assert "faiss-kmeans" not in [line.get_label() for line in evaluations.lines]
    bottom, top = seconds.get_ylim()
    assert bottom < 0.2  # the lowest end
    assert top > 0.6  # the truth
    assert bottom > -1.0  # not the first point of the curve


def test_a_fit_that_was_ended_keeps_its_curve(tmp_path, figures):
    results = made_up(tmp_path / "r.csv")
    curve = [
        {"kind": "curve", "seconds": s, "evaluations_per_row": s, "held_out_some": s}
        for s in (0.1, 0.2)
    ]
    end = {"kind": "end", "outcome": "timed out after 1 s"}
    results.add(Run("small", "tsaem", 0), [*curve, end])
    draw(results, "small", tmp_path / "small.png")
    for axes in figures[0].axes:
        (line,) = [line for line in axes.lines if line.get_label() == "tsaem (not finished)"]
        np.testing.assert_allclose(line.get_xdata()[[0, -1]], [0.1, 0.2])


def test_nothing_measured_nothing_drawn(tmp_path):
    results = Results(tmp_path / "r.csv")
    results.add(Run("small", "em", 0), [{"kind": "end", "outcome": "failed: x"}])
    assert draw(results, "small", tmp_path / "small.png") is None
    assert not (tmp_path / "small.png").exists()


def test_median_of_three_curves():
    curves = [
        np.array([[1.0, 0.0], [100.0, 2.0]]),
        np.array([[0.5, 1.0], [10.0, 1.0]]),
        np.array([[2.0, -9.0], [1000.0, -9.0]]),
    ]
    x, y = median_curve(curves)
    assert (x[0], x[-1]) == (pytest.approx(2.0), pytest.approx(100.0))
    # The first crosses the second, which has ended at 10 and stays.
    assert np.interp(3.0, x, y) == pytest.approx(np.log10(3.0), abs=0.01)
    assert np.interp(50.0, x, y) == pytest.approx(1.0)

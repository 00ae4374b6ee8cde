"""Pictures: what is on the axes of curves and errors, and what every picture has."""

import numpy as np
import pytest
from made_rows import bench, by_key, gaussian, row
from matplotlib.collections import LineCollection, PolyCollection

from pickmix_experiments.catalogue import Figure, Panel
from pickmix_experiments.drawing import compose, draw, look_of
from pickmix_experiments.methods import METHODS
from pickmix_experiments.runs import ALGORITHMS, DEFAULTS
from pickmix_experiments.store import make_row

RUNS = [gaussian("EM", seed) for seed in range(3)]


def figure_of(shows="log_likelihood", marks="", **settings):
    return Figure("Figure 0", (Panel("left", shows, None, marks),), **settings)


def labelled(axes, label):
    return [line for line in axes.lines if line.get_label() == label]


def kinds(axes, kind):
    return [found for found in axes.collections if isinstance(found, kind)]


@pytest.mark.parametrize("names", [set(ALGORITHMS) - set(DEFAULTS), METHODS])
def test_every_algorithm_and_every_rival_looks_different(names):
    looks = [look_of(name) for name in names]
    assert len(set(looks)) == len(looks)


def test_lines_are_medians_and_bands_percentiles_over_seeds():
    lifted = [(-30.0 + h, -20.8 + h, -20.0 + h) for h in (0.0, 1.0, 5.0)]
    rows = [row(run, values=values) for run, values in zip(RUNS, lifted, strict=True)]
    failed = row(gaussian("SAEM"), "failed: nothing")
    page = compose(figure_of(percentiles=(0.0, 100.0)), by_key(*rows, failed))
    assert "(median and 0th to 100th percentile over 3 seeds)" in page.get_suptitle()
    for axes, factor in zip(page.axes, (1.0, 10.0), strict=True):
        (line,) = labelled(axes, "EM")
        assert line.get_xdata()[[0, -1]] == pytest.approx([0.1 * factor, 10.0 * factor])
        assert line.get_ydata()[[0, -1]] == pytest.approx([-29.0, -19.0])
        assert not labelled(axes, "SAEM")
        (band,) = kinds(axes, PolyCollection)
        ends = band.get_paths()[0].vertices
        assert (ends[:, 1].min(), ends[:, 1].max()) == pytest.approx((-30.0, -15.0))
        assert axes.get_xscale() == "log"


@pytest.mark.parametrize(("truth", "where"), [(-19.9, ""), (50.0, "above"), (-300.0, "below")])
def test_t95_and_the_true_mixture_are_marked(truth, where):
    rows = by_key(row(RUNS[0], true_log_likelihood=truth))
    page = compose(figure_of(marks="t95"), rows)
    (mark,) = labelled(page.axes[0], "_t95")
    assert (mark.get_xdata()[0], mark.get_ydata()[0]) == (1.0, -20.8)
    (line,) = labelled(page.axes[0], "_true mixture")
    assert line.get_ydata()[0] == truth
    words = [text.get_text() for text in page.axes[0].texts]
    assert words == ([f"true mixture {truth:g} ({where})"] if where else [])
    # A far truth does not press ends together.
    bottom, top = page.axes[0].get_ylim()
    assert top - bottom < 5.0
    legend = {text.get_text() for text in page.legends[0].get_texts()}
    assert legend == {"EM", "t95", "true mixture"}


def test_bias_is_logarithmic_and_acceptance_has_a_line_at_one_over_K():
    records = [
        {"seconds": s, "evaluations": s, "bias": b, "bias_by_chance": 0.5, "acceptance": 0.3}
        for s, b in ((0.1, 2.0), (1.0, np.nan), (10.0, 1.0))
    ]
    rows = by_key(make_row(gaussian("MHSAEM-U", K=20), records, {"outcome": "max_steps"}))
    panels = tuple(Panel(name, name) for name in ("bias", "acceptance"))
    page = compose(Figure("Figure 0", panels), rows)
    bias, acceptance = page.axes[:2]
    assert bias.get_yscale() == "log"
    assert labelled(bias, "MHSAEM-U")[0].get_ydata()[[0, -1]] == pytest.approx([2.0, 1.0])
    assert labelled(bias, "_chance")[0].get_ydata()[0] == 0.5
    assert labelled(acceptance, "_1/K")[0].get_ydata()[0] == pytest.approx(1 / 20)


def test_ends_and_curves_of_a_bench_are_where_they_belong():
    curve = [(0.5, 10.0, -3.0), (1.0, 20.0, -2.0)]
    rows = by_key(
        bench("small", "em", 0, -1.0, seconds=4.0, curve=curve, true_validation=-0.5),
        bench("small", "sklearn-kmeans", 0, -1.5, seconds=9.0, true_validation=-0.5),
        bench("small", "tsaem", 0, curve=curve),
    )
    page = compose(figure_of("validation", "ends", percentiles=(50.0, 50.0)), rows)
    axes = page.axes[0]
    ends = [(line.get_xdata()[0], line.get_ydata()[0]) for line in labelled(axes, "_end")]
    assert ends == [(4.0, pytest.approx(-0.9)), (9.0, pytest.approx(-1.4))]
    assert (len(labelled(axes, "em")), len(labelled(axes, "sklearn-kmeans"))) == (1, 0)
    assert "tsaem (not finished)" in [text.get_text() for text in page.legends[0].get_texts()]


def test_errors_against_the_time_to_t95():
    rows = [
        row(gaussian("MHSAEM-P", seed, K=K), true_log_likelihood=-20.0 + 0.2 * rank + 0.1 * seed)
        for rank, K in enumerate((25, 50, 100))
        for seed in range(3)
    ]
    rows.append(row(gaussian("EM", K=50), true_log_likelihood=-20.8))
    page = compose(figure_of("K"), by_key(*rows))
    axes = page.axes[0]
    (line,) = labelled(axes, "MHSAEM-P")
    assert line.get_ydata() == pytest.approx([0.9, 1.1, 1.3])
    assert line.get_xdata() == pytest.approx([1.0, 1.0, 1.0])
    assert len(kinds(axes, LineCollection)) == 3
    # An error of zero makes the axis linear.
    assert axes.get_yscale() == "linear"
    words = [text.get_text() for text in page.legends[0].get_texts()]
    assert [word for word in words if "K" in word] == ["K = 25", "K = 50", "K = 100"]


def test_files_are_written_and_equal_results_make_equal_files(tmp_path):
    assert draw(figure_of(), by_key(row(RUNS[0], "failed: x")), tmp_path / "a.png") is None
    for name in ("a", "b"):
        assert draw(figure_of(), by_key(row(RUNS[0])), tmp_path / f"{name}.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.pdf").read_bytes() == (tmp_path / "b.pdf").read_bytes()

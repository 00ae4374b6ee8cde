"""Pictures: what is on the axes of curves, and what every picture has."""

import numpy as np
import pytest
from drawn_histories import (
    by_key,
    curve_figure,
    error_histories,
    gaussian,
    history,
    kinds,
    labelled,
    rising,
    words,
)
from matplotlib.collections import PolyCollection

from pickmix.experiments.reproduction import runs as names
from pickmix.experiments.reproduction.drawing.curve_axes import Line, limits
from pickmix.experiments.reproduction.drawing.figures import compose, draw
from pickmix.experiments.reproduction.drawing.style import LOOKS
from pickmix.experiments.reproduction.panels import CurvePanel, ErrorPanel, Figure
from pickmix.experiments.reproduction.runs import ConvergenceRun


def test_every_algorithm_looks_different():
    every = {
        value
        for name, value in vars(names).items()
        if name.isupper() and isinstance(value, str) and not name.startswith("_")
    }
    assert set(LOOKS) == every
    # Without colours, too; circles are for t95.
    assert len({(look.marker, look.dashes) for look in LOOKS.values()}) == len(LOOKS)
    assert "o" not in {look.marker for look in LOOKS.values()}
    assert {name for name, look in LOOKS.items() if look.ours} == {"MHSAEM-P", "pickmix"}


def test_lines_are_medians_and_bands_percentiles_over_seeds():
    # Seeds have records at times of their own and end at times of their own.
    generator = np.random.default_rng(0)
    histories = []
    for seed in range(5):
        seconds = np.sort(generator.uniform(0.5, 10.0 + seed, 12))
        levels = np.sort(generator.normal(size=12))
        run = gaussian(seed=seed)
        histories.append(
            history(run, seconds=seconds, evaluations=3.0 * seconds, log_likelihood=levels)
        )
    page = compose(curve_figure(histories), by_key(*histories))
    for axes, x_name in zip(page.axes, ("seconds", "evaluations"), strict=True):
        assert axes.get_xscale() == "log"
        (line,) = labelled(axes, "EM")
        x, y = line.get_data()
        begins = [h.series[x_name][0] for h in histories]
        ends = [h.series[x_name][-1] for h in histories]
        np.testing.assert_allclose([x[0], x[-1]], [max(begins), np.median(ends)])
        expected = np.array(
            [
                np.interp(np.log(x), np.log(h.series[x_name]), h.series["log_likelihood"])
                for h in histories
            ]
        )
        np.testing.assert_allclose(y, np.median(expected, axis=0))
        (band,) = kinds(axes, PolyCollection)
        vertices = band.get_paths()[0].vertices
        for percent, side in ((1.0, min), (99.0, max)):
            for index in (0, 57, 199):
                at = vertices[np.isclose(vertices[:, 0], x[index], rtol=1e-12), 1]
                assert side(at) == pytest.approx(np.percentile(expected[:, index], percent))
    assert page.axes[0].get_ylim() == page.axes[1].get_ylim()
    title = page.get_suptitle().replace("\n", " ")
    assert title == "Figure 0 (median and 1st to 99th percentile over 5 seeds)"


def test_other_percentiles():
    histories = [rising(gaussian(seed=seed), height=float(seed)) for seed in range(5)]
    figure = curve_figure(histories)
    page = compose(Figure("F", figure.panels, (25.0, 75.0)), by_key(*histories))
    vertices = kinds(page.axes[0], PolyCollection)[0].get_paths()[0].vertices
    np.testing.assert_allclose(vertices[np.isclose(vertices[:, 0], 10.0), 1].min(), -19.0)
    np.testing.assert_allclose(vertices[np.isclose(vertices[:, 0], 10.0), 1].max(), -17.0)
    assert page.get_suptitle() == "F (median and 25th to 75th percentile over 5 seeds)"


def test_t95_is_marked():
    histories = [rising(gaussian(seed=seed), factor=1.0 + seed) for seed in range(3)]
    page = compose(curve_figure(histories, marks_t95=True), by_key(*histories))
    for axes, x in zip(page.axes, (2.0, 200.0), strict=True):
        (mark,) = labelled(axes, "_t95")
        np.testing.assert_allclose(mark.get_xydata(), [[x, -20.8]])
        assert mark.get_marker() == "o"
        assert mark.get_markerfacecolor() == "none"
        assert axes.get_ylim()[0] < -20.8
    assert words(page) == ["EM", "t95"]
    page = compose(curve_figure(histories), by_key(*histories))
    assert not labelled(page.axes[0], "_t95")


def test_t95_at_the_start_is_not_marked():
    # There is no place for 0 seconds on a logarithmic axis.
    one = history(
        gaussian(), seconds=[0.0, 1.0], evaluations=[0.0, 5.0], log_likelihood=[-20.0, -20.1]
    )
    page = compose(curve_figure([one], marks_t95=True), by_key(one))
    assert not labelled(page.axes[0], "_t95")
    np.testing.assert_allclose(labelled(page.axes[0], "EM")[0].get_xydata(), [[1.0, -20.1]])


def test_the_true_mixture_is_a_dotted_line():
    # SAEM's truth of seed 1 must not count twice.
    histories = [
        rising(gaussian(seed=seed), truth=truth) for seed, truth in enumerate((-20.3, -20.1, -19.9))
    ]
    histories.append(rising(gaussian("SAEM", 2), truth=-19.9))
    page = compose(curve_figure(histories), by_key(*histories))
    for axes in page.axes:
        (line,) = labelled(axes, "_true mixture")
        np.testing.assert_allclose(line.get_ydata(), -20.1)
        bottom, top = axes.get_ylim()
        assert bottom < -20.1 < -20.0 < top
        assert bottom > -25.0  # not the steep rise
    assert words(page) == ["EM", "SAEM", "true mixture"]
    assert "1 to 3 seeds" in page.get_suptitle()


@pytest.mark.parametrize(("truth", "where"), [(500.0, "above"), (-500.0, "below")])
def test_a_far_truth_does_not_press_ends_together(truth, where):
    one = rising(gaussian(), truth=truth)
    page = compose(curve_figure([one]), by_key(one))
    bottom, top = page.axes[0].get_ylim()
    assert -30.0 < bottom < top < -15.0
    assert [text.get_text() for text in page.axes[0].texts] == [f"true mixture {truth:g} ({where})"]


def test_no_truth_no_line():
    one = rising(gaussian())
    page = compose(curve_figure([one]), by_key(one))
    assert not labelled(page.axes[0], "_true mixture")
    assert words(page) == ["EM"]


def test_limits_hold_the_ends_and_cut_the_rise_and_a_far_outlier():
    def line(*y, mark=np.nan):
        y = np.array(y)
        return Line(np.arange(1.0, 1.0 + y.size), y, y, y, mark)

    lines = [line(-1e6, -10.0 - 0.1 * rank) for rank in range(20)] + [line(-1e6, -900.0)]
    bottom, top = limits(lines, np.nan)
    assert -30.0 < bottom < -11.9
    assert -10.0 < top < -9.0
    bottom, _ = limits([*lines, line(-1e6, -10.0, mark=-14.0)], np.nan)
    assert bottom < -14.0
    bottom, top = limits([line(0.0)], np.nan)
    assert bottom < 0.0 < top


def test_bias_is_logarithmic_with_what_exact_draws_give():
    histories = [
        history(
            ConvergenceRun("MHSAEM-T", 10, seed),
            seconds=[1.0, 10.0],
            evaluations=[2.0, 20.0],
            bias=[1.0 + seed, 0.1 + seed],
            bias_by_chance=[0.01 * (1 + seed)] * 2,
        )
        for seed in range(3)
    ]
    page = compose(curve_figure(histories, "bias"), by_key(*histories))
    for axes in page.axes:
        assert axes.get_yscale() == "log"
        (line,) = labelled(axes, "MHSAEM-T")
        np.testing.assert_allclose(line.get_ydata()[[0, -1]], [2.0, 1.1])
        (chance,) = labelled(axes, "_chance")
        np.testing.assert_allclose(chance.get_ydata(), 0.02)
        assert chance.get_color() == line.get_color() == LOOKS["MHSAEM-T"].colour
        assert axes.get_ylabel().replace("\n", " ") == "squared norm of the gradient's error"
    assert words(page) == ["MHSAEM-T", "exact draws"]


def test_a_bias_of_zero_is_left_out():
    one = history(
        ConvergenceRun("MHSAEM-O", 10, 0),
        seconds=[1.0, 2.0, 3.0],
        evaluations=[1.0, 2.0, 3.0],
        bias=[0.5, 0.2, 0.0],
        bias_by_chance=[0.0, 0.0, 0.0],
    )
    page = compose(curve_figure([one], "bias"), by_key(one))
    assert labelled(page.axes[0], "MHSAEM-O")[0].get_xdata()[-1] == pytest.approx(2.0)
    assert not labelled(page.axes[0], "_chance")


@pytest.mark.parametrize(("other_K", "drawn"), [(25, True), (50, False)])
def test_acceptance_has_a_line_at_one_over_K(other_K, drawn):
    given = {"seconds": [1.0, 2.0], "evaluations": [1.0, 2.0], "acceptance": [0.04, 0.8]}
    histories = [
        history(gaussian("MHSAEM-U", K=25), **given),
        history(gaussian("MHSAEM-T", K=other_K), **given),
    ]
    page = compose(curve_figure(histories, "acceptance"), by_key(*histories))
    for axes in page.axes:
        assert axes.get_ylim() == (0.0, 1.05)
        across = labelled(axes, "_1/K")
        assert len(across) == drawn
        assert [text.get_text() for text in axes.texts] == ["1/K"] * drawn
        if drawn:
            np.testing.assert_allclose(across[0].get_ydata(), 0.04)


def test_missing_and_failed_runs_are_left_out():
    histories = [rising(gaussian(seed=seed), height=float(seed)) for seed in range(4)]
    nothing = [np.nan] * 3
    histories[2] = rising(gaussian(seed=2), outcome="failed: diverged", log_likelihood=[5.0] * 3)
    histories[3] = rising(gaussian(seed=3), log_likelihood=nothing)
    figure = curve_figure([*histories, rising(gaussian("SAEM"))])
    page = compose(figure, by_key(*histories))
    (line,) = labelled(page.axes[0], "EM")
    np.testing.assert_allclose(line.get_ydata()[[0, -1]], [-29.5, -19.5])
    assert words(page) == ["EM"]
    assert "over 2 seeds" in page.get_suptitle()


def test_records_with_nan_are_skipped():
    one = history(
        gaussian(),
        seconds=[0.0, 1.0, 10.0, 100.0, np.nan],
        evaluations=[0.0, 1.0, 10.0, 100.0, 1000.0],
        log_likelihood=[-9.0, -4.0, np.nan, -2.0, -1.0],
    )
    page = compose(curve_figure([one], marks_t95=True), by_key(one))
    x, y = labelled(page.axes[0], "EM")[0].get_data()
    np.testing.assert_allclose([x[0], x[-1], y[0], y[-1]], [1.0, 100.0, -4.0, -2.0])
    np.testing.assert_allclose(np.interp(1.0, np.log10(x), y), -3.0)
    assert labelled(page.axes[1], "EM")[0].get_ydata()[-1] == -1.0


@pytest.mark.parametrize("n_seeds", [1, 3])
def test_a_single_record_is_a_point(n_seeds, tmp_path):
    histories = [
        history(gaussian(seed=seed), seconds=[2.0], evaluations=[4.0], log_likelihood=[-1.0 - seed])
        for seed in range(n_seeds)
    ]
    figure = curve_figure(histories, marks_t95=True)
    page = compose(figure, by_key(*histories))
    expected = [[2.0, -1.0 - (n_seeds - 1) / 2]]
    np.testing.assert_allclose(labelled(page.axes[0], "EM")[0].get_xydata(), expected)
    assert draw(figure, by_key(*histories), tmp_path / "f.png") is not None


def test_one_seed_has_no_band():
    one = rising(gaussian("MHSAEM-P"))
    page = compose(curve_figure([one]), by_key(one))
    assert not kinds(page.axes[0], PolyCollection)
    assert page.get_suptitle() == "Figure 0 (one seed)"


def test_an_algorithm_of_no_paper_is_drawn():
    one = rising(gaussian("other"))
    assert words(compose(curve_figure([one]), by_key(one))) == ["other"]


def test_nothing_to_draw(tmp_path):
    path = tmp_path / "figure.png"
    failed = rising(gaussian(), outcome="failed: singular")
    assert draw(curve_figure([failed]), by_key(failed), path) is None
    assert draw(curve_figure([failed]), {}, path) is None
    assert draw(Figure("F", ()), by_key(failed), path) is None
    assert not list(tmp_path.iterdir())


def test_files_are_written(tmp_path):
    histories = error_histories()
    given = {"acceptance": [0.1, 0.5, 0.9], "bias": [3.0, 2.0, 1.0], "bias_by_chance": [1.0] * 3}
    histories += [rising(gaussian("EM", seed), truth=-19.0, **given) for seed in range(2)]
    runs = tuple(history.run for history in histories)
    panels = (
        CurvePanel(
            "log-likelihood, with a long title that has to be broken", "log_likelihood", runs, True
        ),
        CurvePanel("bias", "bias", runs),
        CurvePanel("acceptance of $K = 100$", "acceptance", runs),
        CurvePanel("empty", "validation", runs),
        ErrorPanel("errors", "K", runs),
    )
    path = tmp_path / "figure.png"
    assert draw(Figure("Figure 1", panels), by_key(*histories), path) == path
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    pdf = tmp_path / "figure.pdf"
    assert pdf.read_bytes()[:5] == b"%PDF-"
    first = pdf.read_bytes()
    draw(Figure("Figure 1", panels), by_key(*histories), path)
    assert pdf.read_bytes() == first


@pytest.mark.parametrize("factor", [1.05, 2.0, 30.0, 1e5])
def test_axes_that_span_little_have_ticks(factor):
    histories = [
        rising(gaussian(K=K), truth=-20.8 + error, factor=error)
        for K, error in ((25, 0.37), (50, 0.37 * factor))
    ]
    runs = tuple(history.run for history in histories)
    page = compose(Figure("F", (ErrorPanel("P", "K", runs),)), by_key(*histories))
    page.draw_without_rendering()
    for axis in (page.axes[0].xaxis, page.axes[0].yaxis):
        low, high = axis.get_view_interval()
        ticks = [
            label.get_text()
            for minor in (False, True)
            for label, at in zip(
                axis.get_ticklabels(minor=minor), axis.get_ticklocs(minor=minor), strict=False
            )
            if low <= at <= high and label.get_text()
        ]
        assert len(ticks) >= 2

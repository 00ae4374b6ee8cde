"""Pictures: what is on the axes of curves, and what every picture has."""

import numpy as np
import pytest
from made_histories import (
    bench,
    by_key,
    drawn,
    error_histories,
    figure_of,
    gaussian,
    kinds,
    labelled,
    rising,
    words,
)
from matplotlib.collections import LineCollection, PolyCollection

from pickmix_experiments.baselines import BASELINES
from pickmix_experiments.catalogue import Figure, Panel
from pickmix_experiments.drawing import LOOKS, SHAPES, compose, draw, look_of
from pickmix_experiments.runs import ALGORITHMS, DEFAULTS, ConvergenceRun


@pytest.mark.parametrize("names", [set(ALGORITHMS) - set(DEFAULTS), set(BASELINES)])
def test_every_algorithm_and_every_rival_looks_different(names):
    looks = [look_of(name) for name in names]
    # Without colours, too; circles are for t95.
    assert len({(look.marker, look.dashes, look.hollow) for look in looks}) == len(names)
    assert "o" not in {look.marker for look in looks}
    assert {name for name in names if look_of(name).ours} <= {"MHSAEM-P", "pickmix"}


def test_lines_are_medians_and_bands_percentiles_over_seeds():
    # Seeds have records at times of their own and end at times of their own.
    generator = np.random.default_rng(0)
    histories = []
    for seed in range(5):
        seconds = np.sort(generator.uniform(0.5, 10.0 + seed, 12))
        levels = np.sort(generator.normal(size=12))
        run = gaussian(seed=seed)
        histories.append(
            drawn(run, seconds=seconds, evaluations=3.0 * seconds, log_likelihood=levels)
        )
    page = compose(figure_of(histories), by_key(*histories))
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


def test_t95_is_marked():
    histories = [rising(gaussian(seed=seed), factor=1.0 + seed) for seed in range(3)]
    page = compose(figure_of(histories, marks="t95"), by_key(*histories))
    for axes, x in zip(page.axes, (2.0, 200.0), strict=True):
        (mark,) = labelled(axes, "_t95")
        np.testing.assert_allclose(mark.get_xydata(), [[x, -20.8]])
        assert mark.get_marker() == "o"
        assert mark.get_markerfacecolor() == "none"
        assert axes.get_ylim()[0] < -20.8
    assert words(page) == ["EM", "t95"]
    page = compose(figure_of(histories), by_key(*histories))
    assert not labelled(page.axes[0], "_t95")


def test_the_true_mixture_is_a_dotted_line():
    # SAEM's truth of seed 1 must not count twice.
    histories = [
        rising(gaussian(seed=seed), truth=truth) for seed, truth in enumerate((-20.3, -20.1, -19.9))
    ]
    histories.append(rising(gaussian("SAEM", 2), truth=-19.9))
    page = compose(figure_of(histories), by_key(*histories))
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
    page = compose(figure_of([one]), by_key(one))
    bottom, top = page.axes[0].get_ylim()
    assert -30.0 < bottom < top < -15.0
    assert [text.get_text() for text in page.axes[0].texts] == [f"true mixture {truth:g} ({where})"]


def test_bias_is_logarithmic_with_what_exact_draws_give():
    histories = [
        drawn(
            ConvergenceRun("MHSAEM-T", 10, seed),
            seconds=[1.0, 10.0],
            evaluations=[2.0, 20.0],
            bias=[1.0 + seed, 0.1 + seed],
            bias_by_chance=[0.01 * (1 + seed)] * 2,
        )
        for seed in range(3)
    ]
    page = compose(figure_of(histories, "bias"), by_key(*histories))
    for axes in page.axes:
        assert axes.get_yscale() == "log"
        (line,) = labelled(axes, "MHSAEM-T")
        np.testing.assert_allclose(line.get_ydata()[[0, -1]], [2.0, 1.1])
        (chance,) = labelled(axes, "_chance")
        np.testing.assert_allclose(chance.get_ydata(), 0.02)
        assert chance.get_color() == line.get_color() == LOOKS["MHSAEM-T"].colour
        assert axes.get_ylabel().replace("\n", " ") == "squared norm of the gradient's error"
    assert words(page) == ["MHSAEM-T", "exact draws"]


@pytest.mark.parametrize(("other_K", "there"), [(25, True), (50, False)])
def test_acceptance_has_a_line_at_one_over_K(other_K, there):
    given = {"seconds": [1.0, 2.0], "evaluations": [1.0, 2.0], "acceptance": [0.04, 0.8]}
    histories = [
        drawn(gaussian("MHSAEM-U", K=25), **given),
        drawn(gaussian("MHSAEM-T", K=other_K), **given),
    ]
    page = compose(figure_of(histories, "acceptance"), by_key(*histories))
    for axes in page.axes:
        assert axes.get_ylim() == (0.0, 1.05)
        across = labelled(axes, "_1/K")
        assert len(across) == there
        assert [text.get_text() for text in axes.texts] == ["1/K"] * there
        if there:
            np.testing.assert_allclose(across[0].get_ydata(), 0.04)


def test_missing_and_failed_runs_are_left_out():
    histories = [rising(gaussian(seed=seed), height=float(seed)) for seed in range(4)]
    nothing = [np.nan] * 3
    histories[2] = rising(gaussian(seed=2), outcome="failed: diverged", log_likelihood=[5.0] * 3)
    histories[3] = rising(gaussian(seed=3), log_likelihood=nothing)
    figure = figure_of([*histories, rising(gaussian("SAEM"))])
    page = compose(figure, by_key(*histories))
    (line,) = labelled(page.axes[0], "EM")
    np.testing.assert_allclose(line.get_ydata()[[0, -1]], [-29.5, -19.5])
    assert words(page) == ["EM"]
    assert "over 2 seeds" in page.get_suptitle()


def test_records_with_nan_are_skipped():
    one = drawn(
        gaussian(),
        seconds=[0.0, 1.0, 10.0, 100.0, np.nan],
        evaluations=[0.0, 1.0, 10.0, 100.0, 1000.0],
        log_likelihood=[-9.0, -4.0, np.nan, -2.0, -1.0],
    )
    page = compose(figure_of([one], marks="t95"), by_key(one))
    x, y = labelled(page.axes[0], "EM")[0].get_data()
    np.testing.assert_allclose([x[0], x[-1], y[0], y[-1]], [1.0, 100.0, -4.0, -2.0])
    np.testing.assert_allclose(np.interp(1.0, np.log10(x), y), -3.0)
    assert labelled(page.axes[1], "EM")[0].get_ydata()[-1] == -1.0


def test_nothing_to_draw(tmp_path):
    path = tmp_path / "figure.png"
    failed = rising(gaussian(), outcome="failed: singular")
    assert draw(figure_of([failed]), by_key(failed), path) is None
    assert draw(figure_of([failed]), {}, path) is None
    assert draw(Figure("F", ()), by_key(failed), path) is None
    assert not list(tmp_path.iterdir())


def test_ends_and_curves_of_a_bench_are_where_they_belong():
    histories = []
    for seed in (0, 1):
        curve = [(0.01 * (1 + seed), 10.0, -5.0 + seed), (0.1 * (1 + seed), 100.0, -0.3 + seed)]
        facts = {"seed": seed, "true_validation": 0.1 + seed}
        histories += [
            bench("small", "em", test=-0.1 + seed, seconds=0.5 * (1 + seed), curve=curve, **facts),
            bench("small", "sklearn-kmeans", test=-0.2 + seed, seconds=8.0 * (1 + seed), **facts),
            bench("small", "tsaem", curve=curve, **facts),
            bench("small", "gmmx", outcome="failed: x", **facts),
        ]
    page = compose(figure_of(histories, "validation", marks="ends"), by_key(*histories))
    for axes, x in zip(page.axes, ((0.02, 0.75), (10.0, 1234.0)), strict=True):
        (line,) = labelled(axes, "em")
        np.testing.assert_allclose(line.get_xdata()[[0, -1]], x)
        ends = [mark.get_xydata()[0].tolist() for mark in labelled(axes, "_end")]
        # The median of both seeds, on the rows of the curves.
        assert ends[0] == pytest.approx([x[1], 0.5])
        assert ends[1] == pytest.approx([12.0 if axes is page.axes[0] else 1234.0, 0.4])
        assert len(ends) == 2
        (truth,) = labelled(axes, "_true mixture")
        np.testing.assert_allclose(truth.get_ydata(), 0.6)
        bottom, top = axes.get_ylim()
        assert -4.5 < bottom < 0.4 < 0.6 < top  # not the first point of the curve
    np.testing.assert_allclose(labelled(page.axes[1], "tsaem")[0].get_ydata()[-1], 0.2)
    assert set(words(page)) == {"em", "sklearn-kmeans", "tsaem (not finished)", "true mixture"}


def test_errors_against_the_time_to_t95():
    histories = error_histories()
    # The order of the runs does not matter.
    runs = tuple(history.run for history in histories[::-1])
    page = compose(Figure("F", (Panel("P", "K", runs),)), by_key(*histories))
    for axes, scale in zip(page.axes, (1.0, 100.0), strict=True):
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        (line,) = labelled(axes, "MHSAEM-P")
        # t95 is the second record, -20.8 after (1, 2, 3) x 10^rank seconds; the truth of the
        # middle seed is -19.9 + 0.2 rank.
        np.testing.assert_allclose(line.get_xdata(), scale * np.array([2.0, 20.0, 200.0]))
        np.testing.assert_allclose(line.get_ydata(), [0.9, 1.1, 1.3])
        points = [found for found in axes.lines if found is not line]
        assert [point.get_marker() for point in points] == list(SHAPES[:3])
        np.testing.assert_allclose([point.get_ydata()[0] for point in points], [0.9, 1.1, 1.3])
        bars = [bar.get_segments()[0] for bar in kinds(axes, LineCollection)]
        for bar, x, y in zip(bars, line.get_xdata(), line.get_ydata(), strict=True):
            np.testing.assert_allclose(bar, [[x, y - 0.098], [x, y + 0.098]])
    assert words(page) == ["MHSAEM-P", "K = 25", "K = 50", "K = 100"]
    assert page.axes[0].get_ylabel().replace("\n", " ") == "absolute error at t95 (nats per row)"


@pytest.mark.parametrize(("truth", "scale"), [(-20.8, "linear"), (-20.0, "log"), (np.nan, None)])
def test_an_error_of_zero_makes_the_axis_linear(truth, scale):
    one = rising(gaussian(K=25), truth=truth)
    page = compose(Figure("F", (Panel("P", "K", (one.run,)),)), by_key(one))
    assert (page and page.axes[0].get_yscale()) == scale


def test_files_are_written_and_equal_results_make_equal_files(tmp_path):
    one = rising(gaussian())
    path, pdf = tmp_path / "figure.png", tmp_path / "figure.pdf"
    contents = []
    for _ in range(2):
        assert draw(figure_of([one]), by_key(one), path) == path
        contents.append(pdf.read_bytes())
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert contents[0] == contents[1]
    assert contents[0][:5] == b"%PDF-"

"""The numbers in the repository are those of the runs in the repository."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pickmix.data import mixsim
from pickmix_experiments import deep_tables
from pickmix_experiments.bench_pages import Cases, ends_of, setting_table
from pickmix_experiments.catalogue import EXPERIMENTS, Scale
from pickmix_experiments.store import Store
from pickmix_experiments.tables import csv_text, figure_tables

BENCHES = Path(__file__).parents[2] / "benchmarks" / "results"
RESULTS = BENCHES / "reproduction"
# As docs/reproduction.md says they were made.
SIX_SETS = ("ecoli", "iris", "page-blocks", "pima-indians", "wine", "yeast")
GRID = Scale(repetitions=1, step_factor=0.25, sets=SIX_SETS, reduced_grid=True)
SCALES = {
    "figure-1": Scale(repetitions=10),
    "figure-2": Scale(repetitions=3),
    "figure-3": Scale(repetitions=3, step_factor=0.25),
    "figure-annealing": Scale(repetitions=3),
    "figure-batchsize": Scale(repetitions=1),
    "figure-samples": Scale(repetitions=1),
    "figure-dimension": Scale(repetitions=3, step_factor=0.05),
    "figure-proposals": Scale(repetitions=3),
    "table-fixed": Scale(repetitions=3, step_factor=0.25),
    "table-start": Scale(repetitions=1, step_factor=0.25),
    "table-best": GRID,
    "table-all": GRID,
}


@pytest.fixture(scope="module")
def histories():
    return Store(RESULTS / "results.jsonl").histories()


@pytest.mark.parametrize("name", SCALES)
def test_numbers_of_figures_and_tables(name, histories):
    experiment, scale = EXPERIMENTS[name], SCALES[name]
    if experiment.draws:
        tables = figure_tables(experiment.figure(scale), histories)
    else:
        make = getattr(deep_tables, f"{name.removeprefix('table-')}_tables")
        tables = make(experiment.runs(scale), histories)
    made = pd.read_csv(io.StringIO(csv_text(tables)))
    pd.testing.assert_frame_equal(made, pd.read_csv(RESULTS / f"{name}.csv"), rtol=1e-9)


def numbers(page):
    """Cells of all tables of a page, by line; what is no number is a word."""
    lines = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines if "---" not in line[0]]


def test_numbers_of_benches():
    page = numbers((BENCHES / "gaussian" / "gaussian.md").read_text("utf-8"))
    ends = ends_of(Store(BENCHES / "gaussian" / "gaussian.jsonl"))
    for setting in ends["setting"].unique():
        for line in numbers(setting_table(ends[ends["setting"] == setting])):
            assert line in page
    cases = Cases(ends_of(Store(BENCHES / "tables" / "tables.jsonl")))
    page = numbers((BENCHES / "tables" / "tables.md").read_text("utf-8"))
    comparison = cases.compare("pickmix")
    counts = [*comparison[:3], f"{comparison.median_gain:+.3f}"]
    (line,) = [line for line in page if line[:3] == ["pickmix", "scikit-learn", "all"]]
    assert line[4:8] == [str(count) for count in counts]


def test_defaults_on_uci_sets(histories):
    """What docs/deep.md counts."""
    test = {
        (one.run.dataset, one.run.algorithm.split()[1]): one.facts["test"]
        for one in histories.values()
        if one.run.kind == "default"
    }
    sets = {dataset for dataset, _ in test}
    assert len(sets) == 19
    for model, n_not_below, n_above in (("flows", 18, 9), ("networks", 18, 10)):
        gains = [test[name, model] - test[name, "Gaussians"] for name in sets]
        assert sum(gain > -0.05 for gain in gains) == n_not_below
        assert sum(gain > 0.3 for gain in gains) == n_above
    columns = [name for name in deep_tables.PAPER if name.startswith(("fixed_test", "best_test"))]
    printed = deep_tables.PAPER[columns].max(axis=1).groupby("dataset").max()
    models = ("Gaussians", "flows", "networks")
    assert sum(max(test[name, m] for m in models) > printed[name] for name in sets) == 16


def test_committed_results_are_small():
    assert sum(path.stat().st_size for path in RESULTS.iterdir()) < 10_000_000


class TestSentencesOfThePage:
    """Numbers in docs/reproduction.md that no table holds."""

    def test_how_much_was_computed(self, histories):
        def hours(values):
            return round(sum(values) / 3600.0, 1)

        assert len(histories) == 1566
        assert hours(one.facts["wall_seconds"] for one in histories.values()) == 6.6
        assert hours(one.series["seconds"][-1] for one in histories.values()) == 4.9

    @pytest.mark.parametrize(
        ("model", "n_cut", "n_higher", "n_sets", "work"),
        [("sptn", 13, 10, 13, 2.9), ("flow", 11, 11, 14, 2.6)],
    )
    def test_fixed_architectures(self, model, n_cut, n_higher, n_sets, work, histories):
        runs = [
            run
            for run in EXPERIMENTS["table-fixed"].runs(SCALES["table-fixed"])
            if run.kind == "deep" and run.model == model and run.key in histories
        ]
        ends = {run: histories[run.key].facts["outcome"] for run in runs if run.algorithm == "SGD"}
        assert len({run.dataset for run, end in ends.items() if end == "max_time"}) == n_cut
        firsts = {(r.dataset, r.algorithm): histories[r.key] for r in runs if r.seed == 0}
        sets = [name for name, algorithm in firsts if algorithm == "MHSAEM-P"]
        pairs = [(firsts[name, "MHSAEM-P"], firsts[name, "MHSAEM-U"]) for name in sets]
        assert len(pairs) == n_sets
        assert sum(ours.facts["test"] > theirs.facts["test"] for ours, theirs in pairs) == n_higher
        ratios = [a.series["seconds"][-1] / b.series["seconds"][-1] for a, b in pairs]
        assert round(float(np.median(ratios)), 1) == work

    @pytest.mark.parametrize(
        ("seconds", "highest"), [(3.0, "MHSAEM-U"), (7.0, "MHSAEM-U"), (10.0, "MCSAEM")]
    )
    def test_who_is_highest_in_figure_2(self, seconds, highest, histories):
        by_algorithm = {}
        for run in EXPERIMENTS["figure-2"].runs(SCALES["figure-2"]):
            if run.algorithm in ("MHSAEM-P", "pickmix"):
                continue
            series = histories[run.key].series
            last = np.searchsorted(series["seconds"], seconds, side="right") - 1
            by_algorithm.setdefault(run.algorithm, []).append(series["log_likelihood"][last])
        assert len(by_algorithm) == 7
        medians = {name: np.median(values) for name, values in by_algorithm.items()}
        assert max(medians, key=medians.get) == highest

    @pytest.mark.parametrize("K", [20, 40, 80])
    def test_variances_on_the_unit_interval(self, K):
        truth = mixsim.generate(K, 1, 0.001, random_state=0)
        assert np.median(truth.covariances) < 3e-9

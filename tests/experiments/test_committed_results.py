"""The numbers in the repository are those of the runs in the repository."""

from pathlib import Path

import numpy as np
import pytest

from pickmix.data import mixsim
from pickmix.experiments.catalogue import EXPERIMENTS, Scale
from pickmix.experiments.store import Store
from pickmix.experiments.tables import deep, paper_numbers
from pickmix.experiments.tables.figures import figure_tables
from pickmix.experiments.tables.table import markdown

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "reproduction"
# As docs/reproduction.md says they were made.
SIX_SETS = ("ecoli", "iris", "page-blocks", "pima-indians", "wine", "yeast")
SCALES = {
    "figure-1": Scale(repetitions=10),
    "figure-2": Scale(repetitions=3),
    "figure-3": Scale(repetitions=3, step_factor=0.25),
    "figure-annealing": Scale(repetitions=3),
    "figure-batchsize": Scale(repetitions=1),
    "figure-samples": Scale(repetitions=1),
    "figure-dimension": Scale(repetitions=3, step_factor=0.05),
    "figure-proposals": Scale(repetitions=3),
}


@pytest.fixture(scope="module")
def histories():
    return Store(RESULTS / "results.parquet").histories()


def text_of(name):
    return (RESULTS / f"{name}.md").read_text("utf-8")


@pytest.mark.parametrize("name", sorted(SCALES))
def test_numbers_behind_figures(name, histories):
    figure = EXPERIMENTS[name].figure(SCALES[name])
    assert markdown(figure_tables(figure, histories)) == text_of(name)


def test_fixed_table(histories):
    runs = EXPERIMENTS["table-fixed"].runs(Scale(repetitions=3, step_factor=0.25))
    assert markdown(deep.fixed_tables(runs, histories)) == text_of("table-fixed")


def test_start_table(histories):
    runs = EXPERIMENTS["table-start"].runs(Scale(repetitions=1, step_factor=0.25))
    assert markdown(deep.start_tables(runs, histories)) == text_of("table-start")


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
    printed = [*paper_numbers.FIXED_TEST.items(), *paper_numbers.BEST_TEST.items()]
    models = ("Gaussians", "flows", "networks")
    above = [
        max(test[name, model] for model in models)
        > max(value for (dataset, *_), value in printed if dataset == name)
        for name in sets
    ]
    assert sum(above) == 16


@pytest.mark.parametrize(
    ("name", "make"), [("table-best", deep.best_tables), ("table-all", deep.all_tables)]
)
def test_best_tables(name, make, histories):
    scale = Scale(repetitions=1, step_factor=0.25, sets=SIX_SETS, reduced_grid=True)
    runs = EXPERIMENTS[name].runs(scale)
    assert markdown(make(runs, histories)) == text_of(name)


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

    @pytest.mark.parametrize(("model", "n_cut"), [("sptn", 13), ("flow", 11)])
    def test_sets_on_which_sgd_was_cut(self, model, n_cut, histories):
        runs = EXPERIMENTS["table-fixed"].runs(Scale(repetitions=3, step_factor=0.25))
        cut = {
            run.dataset
            for run in runs
            if run.kind == "deep"
            and (run.model, run.algorithm) == (model, "SGD")
            and run.key in histories
            and histories[run.key].facts["outcome"] == "max_time"
        }
        assert len(cut) == n_cut

    @pytest.mark.parametrize(
        ("model", "n_higher", "n_sets", "work"), [("sptn", 10, 13, 2.9), ("flow", 11, 14, 2.6)]
    )
    def test_partitions_on_first_seeds(self, model, n_higher, n_sets, work, histories):
        runs = EXPERIMENTS["table-fixed"].runs(Scale(repetitions=1, step_factor=0.25))
        found = {
            (run.dataset, run.algorithm): histories[run.key]
            for run in runs
            if run.kind == "deep" and run.model == model and run.key in histories
        }
        pairs = [
            (found[name, "MHSAEM-P"], found[name, "MHSAEM-U"])
            for name, algorithm in found
            if algorithm == "MHSAEM-P"
        ]
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

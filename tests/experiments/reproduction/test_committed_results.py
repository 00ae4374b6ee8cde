"""The numbers in the repository are those of the runs in the repository."""

from pathlib import Path

import pytest

from pickmix.experiments.reproduction.experiments import EXPERIMENTS, SIX_SETS, Scale
from pickmix.experiments.reproduction.store import Store
from pickmix.experiments.reproduction.tables import deep_tables, render
from pickmix.experiments.reproduction.tables.figure_tables import figure_tables

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "reproduction"
# As docs/reproduction.md says they were made.
SCALES = {
    "figure-1": Scale(repetitions=10),
    "figure-2": Scale(repetitions=3),
    "figure-3": Scale(repetitions=3, step_factor=0.25),
    "figure-annealing": Scale(repetitions=3),
    "figure-batchsize": Scale(repetitions=3, step_factor=0.05),
    "figure-samples": Scale(repetitions=3, step_factor=0.05),
    "figure-dimension": Scale(repetitions=3, step_factor=0.05),
    "figure-proposals": Scale(repetitions=3),
}


@pytest.fixture(scope="module")
def histories():
    return Store(RESULTS).histories()


def text_of(name):
    return (RESULTS / f"{name}.md").read_text("utf-8")


@pytest.mark.parametrize("name", sorted(SCALES))
def test_numbers_behind_figures(name, histories):
    figure = EXPERIMENTS[name].figure(SCALES[name])
    assert render.markdown(figure_tables(figure, histories)) == text_of(name)


def test_fixed_table(histories):
    runs = EXPERIMENTS["table-fixed"].runs(Scale(repetitions=3, step_factor=0.25))
    assert render.markdown(deep_tables.fixed_table(runs, histories)) == text_of("table-fixed")


@pytest.mark.parametrize(
    ("name", "make"),
    [("table-best", deep_tables.best_table), ("table-all", deep_tables.all_table)],
)
def test_best_tables(name, make, histories):
    scale = Scale(repetitions=1, step_factor=0.25, sets=SIX_SETS, reduced_grid=True)
    runs = EXPERIMENTS[name].runs(scale)
    assert render.markdown(make(runs, histories)) == text_of(name)


def test_committed_results_are_small():
    assert sum(path.stat().st_size for path in RESULTS.iterdir()) < 10_000_000

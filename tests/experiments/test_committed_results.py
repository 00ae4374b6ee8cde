"""The numbers in the repository are those of the runs in the repository."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pickmix_experiments import deep_tables
from pickmix_experiments.bench_pages import Cases, page
from pickmix_experiments.catalogue import EXPERIMENTS, Scale
from pickmix_experiments.store import Store, frame_of
from pickmix_experiments.tables import csv_text, figure_tables, markdown

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
def rows():
    return Store(RESULTS / "results.jsonl").rows


@pytest.fixture(scope="module")
def frame(rows):
    return frame_of(rows)


# These have most runs.
LONG = ("figure-dimension", "table-fixed", "table-start")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in SCALES],
)
def test_numbers_of_figures_and_tables(name, rows):
    experiment, scale = EXPERIMENTS[name], SCALES[name]
    if experiment.draws:
        tables = figure_tables(experiment.figure(scale), rows)
    else:
        make = getattr(deep_tables, f"{name.removeprefix('table-')}_tables")
        tables = make(experiment.runs(scale), rows)
    made = pd.read_csv(io.StringIO(csv_text(tables)))
    pd.testing.assert_frame_equal(made, pd.read_csv(RESULTS / f"{name}.csv"), rtol=1e-9)
    assert markdown(tables) == (RESULTS / f"{name}.md").read_text("utf-8")


@pytest.mark.parametrize(("name", "title"), [("gaussian", "Gaussian mixtures"), ("tables", "Real")])
def test_pages_of_benches(name, title):
    text = (BENCHES / name / f"{name}.md").read_text("utf-8")
    cases = Cases(Store(BENCHES / name / f"{name}.jsonl").rows)
    lines = page(title, cases, None).splitlines()
    assert text.startswith(f"# {title}")
    assert set(lines[1:]) <= set(text.splitlines())


def test_defaults_on_uci_sets(frame):
    """What docs/deep.md counts."""
    defaults = frame[frame["kind"] == "default"]
    test = defaults.pivot(index="dataset", columns="algorithm", values="test")
    test.columns = [name.split()[1] for name in test]
    assert len(test) == 19
    for model, n_not_below, n_above in (("flows", 18, 9), ("networks", 18, 10)):
        gains = test[model] - test["Gaussians"]
        assert ((gains > -0.05).sum(), (gains > 0.3).sum()) == (n_not_below, n_above)
    columns = [name for name in deep_tables.PAPER if name.startswith(("fixed_test", "best_test"))]
    printed = deep_tables.PAPER[columns].max(axis=1).groupby("dataset").max()
    assert (test.max(axis=1) > printed).sum() == 16


def test_how_much_was_computed(frame):
    assert len(frame) == 1590
    hours = frame[["wall_seconds", "seconds"]].sum() / 3600.0
    assert hours.round(1).tolist() == [6.7, 4.9]
    assert sum(path.stat().st_size for path in RESULTS.iterdir()) < 4_000_000


@pytest.mark.parametrize(
    ("model", "n_cut", "n_higher", "n_sets", "work"),
    [("sptn", 13, 10, 13, 2.9), ("flow", 11, 11, 14, 2.6)],
)
def test_fixed_architectures(model, n_cut, n_higher, n_sets, work, rows):
    """Numbers in docs/reproduction.md that no table holds."""
    runs = frame_of(rows, EXPERIMENTS["table-fixed"].runs(SCALES["table-fixed"]))
    runs = runs[runs["model"] == model]
    cut = runs[(runs["algorithm"] == "SGD") & (runs["outcome"] == "max_time")]
    assert cut["dataset"].nunique() == n_cut
    firsts = runs[runs["seed"] == 0].set_index(["algorithm", "dataset"])[["test", "seconds"]]
    partitions, uniform = firsts.loc["MHSAEM-P"], firsts.loc["MHSAEM-U"]
    uniform = uniform.loc[partitions.index]
    assert len(partitions) == n_sets
    assert (partitions["test"] > uniform["test"]).sum() == n_higher
    assert round(float((partitions["seconds"] / uniform["seconds"]).median()), 1) == work


def test_full_length_on_three_seeds(frame):
    deep = frame[(frame["kind"] == "deep") & (frame["start"] == "paper")]
    deep = deep[((deep["model"] == "flow") & (deep["K"] == 128)) | (deep["s"] == 32)]
    by = ["model", "dataset", "seed"]
    whole, sgd = (
        deep[(deep["algorithm"] == algorithm) & (deep["T"] == T)].set_index(by)["test"]
        for algorithm, T in (("MHSAEM-U", 20_000), ("SGD", 5_000))
    )
    gains = (whole - sgd).unstack().dropna()
    page = (RESULTS.parents[2] / "docs" / "reproduction.md").read_text("utf-8")
    for name in gains.loc["sptn"].index:
        known = (gains.loc[model].loc[name] for model in ("sptn", "flow"))
        cells = (f"{g.mean():+.2f} ± {g.std() / 3**0.5:.2f}" for g in known)
        assert f"| {name} | {' | '.join(cells)} |" in page
    assert (gains.mean(axis=1) > 0.0).groupby("model").sum().to_dict() == {"flow": 2, "sptn": 3}


@pytest.mark.parametrize(
    ("seconds", "highest"), [(3.0, "MHSAEM-U"), (7.0, "MHSAEM-U"), (10.0, "MCSAEM")]
)
def test_who_is_highest_in_figure_2(seconds, highest, rows):
    runs = frame_of(rows, EXPERIMENTS["figure-2"].runs(SCALES["figure-2"]))
    runs = runs[~runs["algorithm"].isin(["MHSAEM-P", "pickmix"])]
    reached = [
        trace["log_likelihood"][np.searchsorted(trace["seconds"], seconds, side="right") - 1]
        for trace in runs["trace"]
    ]
    medians = runs.assign(reached=reached).groupby("algorithm")["reached"].median()
    assert (len(medians), medians.idxmax()) == (7, highest)

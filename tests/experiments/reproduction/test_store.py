"""The store keeps whole runs, through crashes and compaction."""

import numpy as np
import pyarrow.compute
import pyarrow.parquet
import pytest
from made_histories import history

from pickmix.experiments.reproduction.history import FACTS, SERIES
from pickmix.experiments.reproduction.runs import ConvergenceRun, GaussianRun, flow, sptn
from pickmix.experiments.reproduction.store import Store

RUNS = [
    GaussianRun("MHSAEM-U", 100, 0),
    GaussianRun("MHSAEM-U", 100, 1),
    GaussianRun("EM", 100, 0, annealing=False),
    GaussianRun("pickmix", 0, 0),
    ConvergenceRun("MHSAEM-O", 100, 3),
    flow("wine", "SGD", 8),
    sptn("wine", "MHSAEM-P", 8, 2, 3),
]


def equal(one, other):
    assert one.run == other.run
    for name in SERIES:
        np.testing.assert_array_equal(one.series[name], other.series[name])
    for name in FACTS:
        np.testing.assert_equal(one.facts[name], other.facts[name])


@pytest.mark.parametrize("compacted", [False, True])
def test_what_goes_in_comes_out(tmp_path, compacted):
    store = Store(tmp_path)
    histories = [history(run, test=float(n)) for n, run in enumerate(RUNS)]
    histories[0].series["bias"][1] = np.nan
    for one in histories:
        store.add(one)
    if compacted:
        store.compact()
    again = Store(tmp_path)
    assert len(again.histories()) == len(RUNS)
    for one in histories:
        equal(again.get(one.run), one)


def test_runs_that_were_not_made_are_not_there(tmp_path):
    store = Store(tmp_path)
    store.add(history(RUNS[0]))
    assert store.get(RUNS[1]) is None
    assert store.has(RUNS[0])
    assert not store.has(RUNS[1])


def test_compaction_adds_to_what_is_there(tmp_path):
    for run in RUNS[:3]:
        store = Store(tmp_path)
        store.add(history(run))
        store.compact()
    assert {path.name for path in tmp_path.iterdir()} == {"results.parquet"}
    assert all(Store(tmp_path).has(run) for run in RUNS[:3])


def test_the_file_does_not_depend_on_the_order_of_runs(tmp_path):
    for folder, runs in (("a", RUNS), ("b", RUNS[::-1])):
        store = Store(tmp_path / folder)
        for run in runs:
            store.add(history(run))
        store.compact()
    one, other = ((tmp_path / name / "results.parquet").read_bytes() for name in "ab")
    assert one == other


def test_killed_between_gathering_and_clearing_away(tmp_path):
    store = Store(tmp_path)
    store.add(history(RUNS[0], test=1.0))
    part = next((tmp_path / "runs").iterdir())
    content = part.read_bytes()
    store.compact()
    (tmp_path / "runs").mkdir()
    part.write_bytes(content)
    again = Store(tmp_path)
    assert list(again.histories()) == [RUNS[0].key]
    again.compact()
    assert list(Store(tmp_path).histories()) == [RUNS[0].key]


def test_a_write_that_was_cut_short_leaves_nothing_to_read(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.add(history(RUNS[0]))

    def fail(*arguments, **settings):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(pyarrow.parquet, "write_table", fail)
        with pytest.raises(OSError, match="disk full"):
            store.add(history(RUNS[1]))
    again = Store(tmp_path)
    assert list(again.histories()) == [RUNS[0].key]


def test_a_later_history_takes_the_place_of_a_former_one(tmp_path):
    store = Store(tmp_path)
    store.add(history(RUNS[0], test=1.0))
    store.compact()
    store.add(history(RUNS[0], test=2.0))
    assert Store(tmp_path).get(RUNS[0]).facts["test"] == 2.0
    store.compact()
    assert Store(tmp_path).get(RUNS[0]).facts["test"] == 2.0


@pytest.mark.parametrize(
    ("outcome", "limit", "asked", "there"),
    [
        ("max_steps", 5.0, None, True),
        ("converged", np.nan, 1.0, True),
        ("non_finite", np.nan, None, True),
        ("failed: ValueError: no", np.nan, None, True),
        ("max_time", 5.0, None, False),
        ("max_time", 5.0, 6.0, False),
        ("max_time", 5.0, 5.0, True),
        ("max_time", 5.0, 4.0, True),
    ],
)
def test_a_run_that_may_now_take_longer_is_made_again(tmp_path, outcome, limit, asked, there):
    store = Store(tmp_path)
    one = history(RUNS[0], outcome)
    one.facts["limit_seconds"] = limit
    store.add(one)
    assert store.has(RUNS[0], asked) is there


def test_the_file_is_tidy(tmp_path):
    store = Store(tmp_path)
    for run in RUNS:
        store.add(history(run, versions="pickmix 1"))
    store.compact()
    table = pyarrow.parquet.read_table(tmp_path / "results.parquet")
    assert table.num_rows == 3 * len(RUNS)
    wanted = {"spec", "seed", "versions", "cpu", "threads", "seconds", "evaluations", "dataset"}
    assert wanted <= set(table.column_names)
    rows = table.filter(pyarrow.compute.equal(table["algorithm"], "MHSAEM-U")).to_pylist()
    assert len({row["spec"] for row in rows}) == 1
    assert [row["seed"] for row in rows] == [0, 0, 0, 1, 1, 1]
    assert all(row["dataset"] is None and row["K"] == 100.0 for row in rows)


def test_results_of_another_version_are_left_alone(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.add(history(RUNS[0]))
    monkeypatch.setattr("pickmix.experiments.reproduction.runs.VERSION", 999)
    assert Store(tmp_path).histories() == {}


def test_a_file_without_rows_is_an_empty_store(tmp_path):
    store = Store(tmp_path)
    store.add(history(RUNS[0]))
    store.compact()
    path = tmp_path / "results.parquet"
    pyarrow.parquet.write_table(pyarrow.parquet.read_table(path).slice(0, 0), path)
    assert Store(tmp_path).histories() == {}

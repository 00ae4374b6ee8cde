"""The store keeps whole runs, through crashes and compaction."""

import json

import numpy as np
import pandas as pd
import pytest
from made_histories import history

from pickmix.experiments.runs import BenchRun, ConvergenceRun, DefaultRun, GaussianRun, flow, sptn
from pickmix.experiments.store import FACTS, SERIES, Store

RUNS = [
    GaussianRun("MHSAEM-U", 100, 0),
    GaussianRun("MHSAEM-U", 100, 1),
    GaussianRun("EM", 100, 0, annealing=False),
    GaussianRun("pickmix", 0, 0),
    ConvergenceRun("MHSAEM-O", 100, 3),
    flow("wine", "SGD", 8),
    sptn("wine", "MHSAEM-P", 8, 2, 3),
    DefaultRun("pickmix flows", 0, 2, dataset="wine"),
    BenchRun("em", 0, 1, setting="mixsim"),
]


@pytest.fixture(params=["results.parquet", "results.csv"])
def path(request, tmp_path):
    return tmp_path / request.param


def equal(one, other):
    assert one.run == other.run
    for name in SERIES:
        np.testing.assert_array_equal(one.series[name], other.series[name])
    for name in FACTS:
        np.testing.assert_equal(one.facts[name], other.facts[name])


@pytest.mark.parametrize("compacted", [False, True])
def test_what_goes_in_comes_out(path, compacted):
    store = Store(path)
    histories = [history(run, test=1.0 / (n + 3)) for n, run in enumerate(RUNS)]
    histories[0].series["bias"][1] = 1.0 / 3.0
    histories[1].facts["outcome"] = 'failed: a, "quoted"\nline'
    for one in histories:
        store.add(one)
    if compacted:
        store.compact()
    again = Store(path)
    assert len(again.histories()) == len(RUNS)
    for one in histories:
        equal(again.get(one.run), one)


def test_runs_that_were_not_made_are_not_there(path):
    store = Store(path)
    store.add(history(RUNS[0]))
    assert store.get(RUNS[1]) is None
    assert store.has(RUNS[0])
    assert not store.has(RUNS[1])


def test_compaction_adds_to_what_is_there(path):
    for run in RUNS[:3]:
        store = Store(path)
        store.add(history(run))
        store.compact()
    assert list(path.parent.iterdir()) == [path]
    assert all(Store(path).has(run) for run in RUNS[:3])


def test_the_file_does_not_depend_on_the_order_of_runs(path):
    contents = []
    for runs in (RUNS, RUNS[::-1]):
        store = Store(path)
        for run in runs:
            store.add(history(run))
        store.compact()
        contents.append(path.read_bytes())
        path.unlink()
    assert contents[0] == contents[1]


@pytest.mark.parametrize("cut", [2, 60, 400])
def test_a_run_cut_short_is_made_again_and_leaves_nothing(path, cut):
    store = Store(path)
    store.add(history(RUNS[0]))
    store.add(history(RUNS[1]))
    journal = path.with_suffix(".jsonl")
    journal.write_bytes(journal.read_bytes()[:-cut])
    again = Store(path)
    assert again.has(RUNS[0])
    assert not again.has(RUNS[1])
    again.add(history(RUNS[2]))
    assert set(Store(path).histories()) == {RUNS[0].key, RUNS[2].key}


def test_killed_between_gathering_and_clearing_away(path):
    store = Store(path)
    store.add(history(RUNS[0], test=1.0))
    journal = path.with_suffix(".jsonl")
    content = journal.read_bytes()
    store.compact()
    journal.write_bytes(content)
    again = Store(path)
    assert list(again.histories()) == [RUNS[0].key]
    again.compact()
    assert list(Store(path).histories()) == [RUNS[0].key]


def test_a_write_that_fails_leaves_the_journal(path, monkeypatch):
    store = Store(path)
    store.add(history(RUNS[0]))

    def fail(*arguments, **settings):
        raise OSError("disk full")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", fail)
    monkeypatch.setattr(pd.DataFrame, "to_csv", fail)
    with pytest.raises(OSError, match="disk full"):
        store.compact()
    assert not path.exists()
    assert list(Store(path).histories()) == [RUNS[0].key]


def test_two_processes_share_a_folder(path):
    one, other = Store(path), Store(path)
    one.add(history(RUNS[0]))
    other.add(history(RUNS[1]))
    one.compact()
    other.add(history(RUNS[2]))
    other.compact()
    assert set(Store(path).histories()) == {run.key for run in RUNS[:3]}


def test_a_later_history_takes_the_place_of_a_former_one(path):
    store = Store(path)
    store.add(history(RUNS[0], test=1.0))
    store.compact()
    store.add(history(RUNS[0], test=2.0))
    assert Store(path).get(RUNS[0]).facts["test"] == 2.0
    store.compact()
    assert Store(path).get(RUNS[0]).facts["test"] == 2.0


@pytest.mark.parametrize(
    ("outcome", "limit", "asked", "there"),
    [
        ("max_steps", 5.0, None, True),
        ("converged", np.nan, 1.0, True),
        ("non_finite", np.nan, None, True),
        ("failed: ValueError: no", np.nan, None, True),
        ("timed out after 5 s", 5.0, 6.0, True),
        ("max_time", 5.0, None, False),
        ("max_time", 5.0, 6.0, False),
        ("max_time", 5.0, 5.0, True),
        ("max_time", 5.0, 4.0, True),
        ("not installed: faiss", 5.0, 5.0, False),
        ("no data: nothing there", 5.0, 5.0, False),
    ],
)
def test_a_run_that_may_now_end_otherwise_is_made_again(tmp_path, outcome, limit, asked, there):
    store = Store(tmp_path / "results.csv")
    store.add(history(RUNS[0], outcome, limit_seconds=limit))
    assert store.has(RUNS[0], asked) is there


def test_the_file_is_tidy(path):
    store = Store(path)
    for run in RUNS:
        store.add(history(run, versions="pickmix 1"))
    store.compact()
    table = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    assert len(table) == 3 * len(RUNS)
    assert list(table)[:3] == ["spec", "settings", "seed"]
    assert {*SERIES, *FACTS} < set(table)
    rows = table[[json.loads(text)["algorithm"] == "MHSAEM-U" for text in table["settings"]]]
    assert rows["spec"].nunique() == 1
    assert list(rows["seed"]) == [0, 0, 0, 1, 1, 1]
    assert json.loads(rows["settings"].iloc[0])["K"] == 100


def test_settings_of_later_have_their_defaults(path):
    store = Store(path)
    store.add(history(RUNS[5]))
    journal = path.with_suffix(".jsonl")
    text = journal.read_text()
    assert r", \"start\": \"paper\"" in text
    journal.write_text(text.replace(r", \"start\": \"paper\"", ""))
    assert Store(path).has(RUNS[5])


def test_results_of_another_version_are_left_alone(path, monkeypatch):
    store = Store(path)
    store.add(history(RUNS[0]))
    store.compact()
    store.add(history(RUNS[1]))
    monkeypatch.setattr("pickmix.experiments.runs.VERSION", 999)
    assert Store(path).histories() == {}


def test_a_file_without_rows_is_an_empty_store(path):
    store = Store(path)
    store.add(history(RUNS[0]))
    store.compact()
    if path.suffix == ".csv":
        path.write_text(path.read_text().splitlines()[0])
    else:
        pd.read_parquet(path).iloc[:0].to_parquet(path)
    assert Store(path).histories() == {}


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(
        ValueError, match=r"expected the columns settings, seed, .*settings is miss"
    ):
        Store(path)

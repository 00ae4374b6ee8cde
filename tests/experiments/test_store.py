"""The store keeps whole runs, through crashes and compaction."""

import json

import numpy as np
import pandas as pd
import pytest
from made_histories import history

from pickmix_experiments.runs import BenchRun, ConvergenceRun, DefaultRun, GaussianRun, flow, sptn
from pickmix_experiments.store import NUMBERS, SERIES, TEXTS, Store

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


def filled(path, *runs, compact=False):
    store = Store(path)
    for run in runs:
        store.add(history(run))
    if compact:
        store.compact()
    return store


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
        other = again.get(one.run)
        assert one.run == other.run
        for name in SERIES:
            np.testing.assert_array_equal(one.series[name], other.series[name])
        for name in (*TEXTS, *NUMBERS):
            np.testing.assert_equal(one.facts[name], other.facts[name])


def test_compaction_adds_to_the_table(path):
    for run in RUNS[:3]:
        filled(path, run, compact=True)
    assert list(path.parent.iterdir()) == [path]
    store = Store(path)
    assert [store.has(run) for run in RUNS[:4]] == [True, True, True, False]
    assert store.get(RUNS[3]) is None


def test_the_file_does_not_depend_on_the_order_of_runs(path):
    contents = []
    for runs in (RUNS, RUNS[::-1]):
        filled(path, *runs, compact=True)
        contents.append(path.read_bytes())
        path.unlink()
    assert contents[0] == contents[1]


@pytest.mark.parametrize("cut", [2, 60, 400])
def test_a_run_cut_short_is_made_again_and_leaves_nothing(path, cut):
    filled(path, *RUNS[:2])
    journal = path.with_suffix(".jsonl")
    journal.write_bytes(journal.read_bytes()[:-cut])
    again = Store(path)
    assert (again.has(RUNS[0]), again.has(RUNS[1])) == (True, False)
    again.add(history(RUNS[2]))
    assert set(Store(path).histories()) == {RUNS[0].key, RUNS[2].key}


def test_killed_between_writing_the_table_and_removing_the_journal(path):
    store = filled(path, RUNS[0])
    journal = path.with_suffix(".jsonl")
    content = journal.read_bytes()
    store.compact()
    journal.write_bytes(content)
    again = Store(path)
    assert list(again.histories()) == [RUNS[0].key]
    again.compact()
    assert list(Store(path).histories()) == [RUNS[0].key]


def test_a_write_that_fails_leaves_the_journal(path, monkeypatch):
    store = filled(path, RUNS[0])

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


def test_a_later_history_replaces_an_earlier_one(path):
    store = filled(path, RUNS[0], compact=True)
    store.add(history(RUNS[0], test=2.0))
    assert Store(path).get(RUNS[0]).facts["test"] == 2.0
    store.compact()
    assert Store(path).get(RUNS[0]).facts["test"] == 2.0


@pytest.mark.parametrize(
    ("outcome", "limit", "new_limit", "expected"),
    [
        ("max_steps", 5.0, None, True),
        ("converged", np.nan, 1.0, True),
        ("failed: ValueError: no", np.nan, None, True),
        ("timed out after 5 s", 5.0, 6.0, True),
        ("max_time", 5.0, None, False),
        ("max_time", 5.0, 6.0, False),
        ("max_time", 5.0, 5.0, True),
        ("not installed: faiss", 5.0, 5.0, False),
        ("no data: nothing there", 5.0, 5.0, False),
    ],
)
def test_a_run_that_may_now_end_otherwise_is_made_again(
    tmp_path, outcome, limit, new_limit, expected
):
    store = Store(tmp_path / "results.csv")
    store.add(history(RUNS[0], outcome, limit_seconds=limit))
    assert store.has(RUNS[0], new_limit) is expected


def test_the_file_is_tidy(path):
    filled(path, *RUNS, compact=True)
    table = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    assert len(table) == 3 * len(RUNS)
    assert list(table) == ["spec", "settings", "seed", *SERIES, *TEXTS, *NUMBERS]
    rows = table[[json.loads(text)["algorithm"] == "MHSAEM-U" for text in table["settings"]]]
    assert rows["spec"].nunique() == 1
    assert list(rows["seed"]) == [0, 0, 0, 1, 1, 1]


def test_files_of_other_versions(path, monkeypatch):
    filled(path, RUNS[5])
    journal = path.with_suffix(".jsonl")
    line = json.loads(journal.read_text())
    # Settings that were added later have their defaults; 0.2 had measurements one level down.
    settings = json.loads(line["settings"])
    assert settings.pop("start") == "paper"
    series, facts = ({name: line[name] for name in names} for names in (SERIES, (*TEXTS, *NUMBERS)))
    earlier = {"settings": json.dumps(settings), "seed": 0, "series": series, "facts": facts}
    journal.write_text(json.dumps(earlier))
    assert Store(path).get(RUNS[5]).series["step"].tolist() == series["step"]
    monkeypatch.setattr("pickmix_experiments.runs.VERSION", 999)
    assert Store(path).histories() == {}


def test_a_file_without_rows_is_an_empty_store(path):
    filled(path, RUNS[0], compact=True)
    if path.suffix == ".csv":
        path.write_text(path.read_text().splitlines()[0])
    else:
        pd.read_parquet(path).iloc[:0].to_parquet(path)
    assert Store(path).histories() == {}


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"expected the columns .*; settings is missing"):
        Store(path)

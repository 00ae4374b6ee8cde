"""The store keeps whole runs, through crashes, and reads files of earlier versions."""

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


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results.jsonl"


def filled(path, *runs):
    store = Store(path)
    for run in runs:
        store.add(history(run))
    return store


def made_up():
    histories = [history(run, test=1.0 / (n + 3)) for n, run in enumerate(RUNS)]
    histories[0].series["bias"][1] = 1.0 / 3.0
    histories[1].facts["outcome"] = 'failed: a, "quoted"\nline'
    histories[2].facts["test"] = -np.inf
    return histories


def check_same(store, histories):
    assert len(store.histories()) == len(histories)
    for one in histories:
        other = store.get(one.run)
        assert one.run == other.run
        np.testing.assert_equal(other.series, one.series)
        np.testing.assert_equal(other.facts, one.facts)


def test_what_goes_in_comes_out(path):
    histories = made_up()
    store = Store(path)
    for one in histories:
        store.add(one)
    check_same(Store(path), histories)
    frame = pd.read_json(path, lines=True)
    assert list(frame["seed"]) == [run.seed for run in RUNS]
    assert frame["spec"].nunique() == len(RUNS) - 1
    assert Store(path).get(GaussianRun("SAEM", 9, 0)) is None


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_tables_of_version_0_2_are_read_and_added_to(path, suffix):
    """They had a row for each measurement, which repeated what is known of its run."""
    histories = made_up()
    parts = []
    for one in histories:
        names = {"settings": json.dumps(one.run.settings()), "seed": one.run.seed}
        parts.append(pd.DataFrame({**names, **one.series, **one.facts}))
    table = pd.concat(parts)
    assert list(table) == ["settings", "seed", *SERIES, *TEXTS, *NUMBERS]
    if suffix == ".csv":
        table.to_csv(path.with_suffix(suffix), index=False)
    else:
        table.to_parquet(path.with_suffix(suffix), index=False)
    store = Store(path)
    check_same(store, histories)
    histories[0] = history(RUNS[0], test=5.0)
    store.add(histories[0])
    check_same(Store(path), histories)


def test_another_table_is_refused(path):
    path.with_suffix(".csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"expected the columns .*; settings is missing"):
        Store(path)


def test_lines_of_other_versions(path, monkeypatch):
    filled(path, RUNS[5])
    line = json.loads(path.read_text())
    # Settings that were added later have their defaults; 0.2 had measurements one level down.
    settings = json.loads(line["settings"])
    assert settings.pop("start") == "paper"
    series = {name: line[name] for name in SERIES if name in line}
    facts = {name: line[name] for name in (*TEXTS, *NUMBERS) if name in line}
    earlier = {"settings": json.dumps(settings), "seed": 0, "series": series, "facts": facts}
    path.write_text(json.dumps(earlier))
    assert Store(path).get(RUNS[5]).series["step"].tolist() == series["step"]
    monkeypatch.setattr("pickmix_experiments.runs.VERSION", 999)
    assert Store(path).histories() == {}


@pytest.mark.parametrize("cut", [2, 60, 200])
def test_a_run_cut_short_is_made_again_and_leaves_nothing(path, cut):
    filled(path, *RUNS[:2])
    path.write_bytes(path.read_bytes()[:-cut])
    again = Store(path)
    assert (again.has(RUNS[0]), again.has(RUNS[1])) == (True, False)
    again.add(history(RUNS[2]))
    assert set(Store(path).histories()) == {RUNS[0].key, RUNS[2].key}


def test_two_processes_share_a_folder(path):
    one, other = Store(path), Store(path)
    one.add(history(RUNS[0]))
    other.add(history(RUNS[1]))
    one.add(history(RUNS[2]))
    assert set(Store(path).histories()) == {run.key for run in RUNS[:3]}


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
def test_a_run_that_may_now_end_otherwise_is_made_again(path, outcome, limit, new_limit, expected):
    store = Store(path)
    store.add(history(RUNS[0], outcome, limit_seconds=limit))
    assert store.has(RUNS[0], new_limit) is expected

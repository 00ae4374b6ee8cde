"""Work on the partitions of Dask collections: the bits of a local run, whatever workers do."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import cluster_tasks as tasks
import numpy as np
import pytest
from cluster_tasks import Setting

from pickmix.closed_form import dask_cluster, dask_leg
from pickmix.closed_form.dask_shards import DaskShards
from pickmix.closed_form.shards import LocalShards
from pickmix.data.dask_data import is_dask
from pickmix.data.open_rows import open_rows
from pickmix.sweep.partial_reference import PartialReference

distributed = pytest.importorskip("distributed")
dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

ROWS = np.random.default_rng(0).normal(size=(77, 3))
CUT = 7  # 11 chunks
ALL = list(range(11))
NOTHING = [None] * 11


def start_cluster(n_workers):
    return distributed.LocalCluster(
        n_workers=n_workers,
        threads_per_worker=1,
        processes=True,
        dashboard_address=":0",
        protocol="tcp",
        silence_logs=logging.CRITICAL + 1,
    )


@pytest.fixture(scope="module")
def cluster():
    settings = dask.config.set(
        {
            # A worker that wants something from a dead one tries for so long, by default 30 s.
            "distributed.comm.timeouts.connect": "3s",
            # So long after a death it is seen whether that worker is back. If it has been killed
            # again just then, a LocalCluster forgets it for ever.
            "distributed.deploy.lost-worker-timeout": "1h",
        }
    )
    with settings, start_cluster(2) as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with distributed.Client(cluster, timeout=20) as client:
        await_workers(client, 2)
        yield client


@pytest.fixture(autouse=True)
def limit():
    """No test hangs for ever."""

    def stop(number, frame):
        raise TimeoutError("the test took too long")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def array(rows=ROWS, cut=CUT):
    return da.from_array(rows, chunks=(cut, -1))


def local(rows=ROWS, cut=CUT, weights=None):
    return LocalShards(open_rows(rows), cut, PartialReference(), weights)


def check_equal(one, other):
    results, sums = one
    expected, expected_sums = other
    assert len(results) == len(expected)
    for result, known in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result.pop("states"), known.pop("states"))
        assert result == known
    assert len(sums) == len(expected_sums)
    for total, known in zip(sums, expected_sums, strict=True):
        np.testing.assert_array_equal(total, known)


def check_run(shards, task=tasks.weigh, setting=None, own=NOTHING, **options):
    """A run on the cluster equals one here, bit for bit."""
    setting = setting or Setting()
    expected = local(**options).run(tasks.weigh, ALL, Setting(), NOTHING, tasks.plus)
    check_equal(shards.run(task, ALL, setting, own, tasks.plus), expected)


def keys(client):
    return {str(key) for held in client.has_what().values() for key in held}


def await_only(client, n):
    """Wait until that many keys are on the cluster."""
    until = time.monotonic() + 10.0
    while len(keys(client)) != n:
        assert time.monotonic() < until, keys(client)
        time.sleep(0.02)


def await_workers(client, n):
    until = time.monotonic() + 60.0
    while len(client.nthreads()) != n:
        assert time.monotonic() < until, client.nthreads()
        time.sleep(0.02)


def worker_pids(client):
    return client.run(os.getpid)


def test_dask_is_recognised_and_not_imported():
    assert is_dask(array())
    assert not is_dask(ROWS)
    code = (
        "import sys, pickmix, pickmix.closed_form.dask_shards as d; d.is_dask([1]);"
        "assert not {'dask', 'distributed', 'jax', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_no_client():
    with pytest.raises(RuntimeError, match=r"no client is active.*Client\(\)"):
        DaskShards(array())


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 9, 11])
def test_results_in_order_and_sums_in_the_order_of_pairs(client, n):
    shards, known = DaskShards(array()), local()
    np.testing.assert_array_equal(shards.offsets, known.offsets)
    assert (shards.n_columns, shards.dtype, shards.names) == (3, np.float64, None)
    chunks, own = ALL[:n], [np.arange(i + 1, dtype=np.uint16) for i in range(n)]
    setting = Setting(factor=0.37)
    check_equal(
        shards.run(tasks.weigh, chunks, setting, own, tasks.plus),
        known.run(tasks.weigh, chunks, setting, own, tasks.plus),
    )


def test_the_order_of_the_additions_matters_here():
    setting = Setting()
    _, parts = zip(
        *(tasks.weigh(setting, PartialReference(), local()._read(c), None) for c in ALL),
        strict=True,
    )
    in_a_row = sum(part[0] for part in parts)
    _, sums = local().run(tasks.weigh, ALL, setting, NOTHING, tasks.plus)
    assert not np.array_equal(in_a_row, sums[0])


def test_no_parts_and_no_chunks(client):
    shards = DaskShards(array())
    results, sums = shards.run(tasks.weigh, [4, 2], Setting(n_parts=0), [None] * 2, tasks.plus)
    assert [result["first"] for result in results] == [28, 14]
    assert sums == []
    assert shards.run(tasks.weigh, [], Setting(), [], tasks.plus) == ([], [])


def test_the_number_of_parts_changes(client):
    shards = DaskShards(array())
    for n_parts in (3, 5, 0, 1, 1):
        setting = Setting(n_parts=n_parts)
        check_equal(
            shards.run(tasks.weigh, ALL, setting, NOTHING, tasks.plus),
            local().run(tasks.weigh, ALL, setting, NOTHING, tasks.plus),
        )


def test_a_task_has_one_thread(client):
    shards = DaskShards(array())
    for compiled, expected in ((True, ("PartialCompiled", 1)), (False, ("PartialReference", None))):
        setting = Setting(compiled=compiled)
        (result,), _ = shards.run(tasks.weigh, [3], setting, [None], tasks.plus)
        assert (result["backend"], result["threads"]) == expected


def test_legs(client):
    assert DaskShards(array()).chunks_per_leg == 8
    assert DaskShards(array(cut=26)).chunks_per_leg == 4
    assert DaskShards(array(cut=40)).chunks_per_leg == 2
    assert DaskShards(array(cut=80)).chunks_per_leg == 1


def test_columns_in_several_chunks(client):
    shards = DaskShards(da.from_array(ROWS, chunks=(CUT, 2)))
    check_run(shards)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("f2", "f4"), ("f4", "f4"), (">f4", "f4"), ("f8", "f8"), ("i4", "f8"), ("?", "f8")],
)
def test_dtypes(client, dtype, expected):
    rows = np.asfortranarray((ROWS * 10).astype(dtype))
    shards = DaskShards(array(rows))
    assert shards.dtype == np.dtype(expected)
    check_run(shards, rows=rows.astype(expected))
    results, _ = shards.run(tasks.weigh, [0], Setting(), [None], tasks.plus)
    assert results[0]["plain"]


def test_dataframe(client):
    dd = pytest.importorskip("dask.dataframe")
    import pandas as pd

    frame = pd.DataFrame({"a": np.arange(20), "b": np.linspace(0, 1, 20, dtype="f4")})
    frame["c"] = pd.array([None, *range(19)], dtype="Int64")
    shards = DaskShards(dd.from_pandas(frame, npartitions=3))
    assert (shards.names, shards.n_columns, shards.dtype) == (["a", "b", "c"], 3, np.float64)
    assert shards.offsets[-1] == 20
    results, _ = shards.run(tasks.weigh, [1, 2], Setting(), [None] * 2, tasks.plus)
    assert [result["plain"] for result in results] == [True, True]
    small = DaskShards(dd.from_pandas(frame[["b"]], npartitions=3))
    assert small.dtype == np.float32
    with pytest.raises(ValueError, match=r"dtype .* in column 'd'"):
        DaskShards(dd.from_pandas(frame.assign(d="text"), npartitions=2))


def test_dataframe_whose_partitions_differ(client):
    dd = pytest.importorskip("dask.dataframe")
    import pandas as pd

    good = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})

    def collection(other):
        parts = [dask.delayed(good), dask.delayed(other)]
        return dd.from_delayed(parts, meta=good.iloc[:0], verify_meta=False)

    for other, words in (
        (good.rename(columns={"b": "z"}), r"partition 1: \['b', 'z'\]"),
        (good.assign(b=["x", "y"]), "column 'b' of partition 1"),
    ):
        with pytest.raises(ValueError, match=words):
            DaskShards(collection(other))


def test_weights(client):
    weights = np.random.default_rng(1).uniform(size=77)
    check_run(DaskShards(array(), weights=weights), weights=weights)
    check_run(DaskShards(array(), weights=da.from_array(weights, chunks=CUT)), weights=weights)
    with pytest.raises(ValueError, match=r"sample_weight must have shape \(77,\), got \(76,\)"):
        DaskShards(array(), weights=weights[1:])
    with pytest.raises(ValueError, match="the 11 partitions of X"):
        DaskShards(array(), weights=da.from_array(weights, chunks=11))
    cuts = (8, 6, *[7] * 9)
    with pytest.raises(ValueError, match=r"8 weight\(s\) for 7 row\(s\) in partition 0"):
        DaskShards(array(), weights=da.from_array(weights, chunks=(cuts,)))
    weights[30] = -1.0
    with pytest.raises(ValueError, match="not negative, got others in partition 4"):
        DaskShards(array(), weights=da.from_array(weights, chunks=CUT))


def test_partitions_without_rows(client):
    shards = DaskShards(array().map_blocks(tasks.spoil, 4, "empty", dtype=float))
    assert shards.offsets.tolist() == [*range(0, 71, 7)]
    assert shards.place(27) == "partition 3, row 7 of it"
    assert shards.place(28) == "partition 5, row 1 of it"
    with pytest.raises(ValueError, match="X must hold rows"):
        DaskShards(array()[:0])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("columns", "got 6 in partition 4 and 3 in partition 0"),
        ("dtype", "got dtype object in partition 4"),
        ("flat", r"got \(7,\) in partition 4"),
    ],
)
def test_partitions_that_are_not_what_they_should_be(client, kind, words):
    with pytest.raises(ValueError, match=words):
        DaskShards(array().map_blocks(tasks.spoil, 4, kind, dtype=float))


def test_collections_that_are_no_tables(client):
    with pytest.raises(ValueError, match=r"got shape \(5,\)"):
        DaskShards(da.zeros(5))
    with pytest.raises(ValueError, match="got dtype complex128"):
        DaskShards(da.zeros((5, 2), dtype=complex))


def test_a_partition_that_cannot_be_read(client):
    with pytest.raises(OSError, match="partition 3: the disk is broken"):
        DaskShards(array().map_blocks(tasks.fail_at, 3, dtype=float))


def test_an_error_in_a_task_names_the_partition_and_leaves_nothing_behind(client):
    shards = DaskShards(array())
    with pytest.raises(ValueError, match="partition 5: a row is not finite"):
        shards.run(tasks.refuse, ALL, Setting(), [35] * 11, tasks.plus)
    await_only(client, 11 + 1)
    with pytest.raises(MemoryError, match=r"partition 2: a worker is out of memory.*smaller"):
        shards.run(tasks.run_out_of_memory, [2], Setting(), [None], tasks.plus)
    check_run(shards)


def test_only_partitions_and_one_model_stay(client):
    shards = DaskShards(array())
    setting = Setting(ballast=np.zeros(200_000))
    own = [np.zeros(5, dtype=np.int32)] * 4
    shards.run(tasks.weigh, ALL[:4], setting, own, tasks.plus)
    first = shards.bytes_sent
    assert first > setting.ballast.nbytes
    # It is there once, and is not sent again.
    await_only(client, 11 + 1)
    (model,) = [key for key in keys(client) if key.startswith("Parcel")]
    shards.run(tasks.weigh, ALL[4:], setting, [None] * 7, tasks.plus)
    assert 0 < shards.bytes_sent < 10_000
    await_only(client, 11 + 1)
    assert model in keys(client)
    # The next one takes its place.
    shards.run(tasks.weigh, ALL[:2], Setting(), [None] * 2, tasks.plus)
    await_only(client, 11 + 1)
    assert model not in keys(client)
    shards.close()
    await_only(client, 0)


def test_several_messages_and_graphs(client, monkeypatch):
    monkeypatch.setattr(dask_cluster, "_MESSAGE", 500)
    monkeypatch.setattr(dask_leg, "_TASKS", 5)
    own = [np.zeros(50, dtype=np.int32)] * 11
    check_run(DaskShards(array()), own=own)


def test_fingerprint(client):
    shards = DaskShards(array())
    print_ = shards.fingerprint()
    assert json.loads(json.dumps(print_)) == print_ == DaskShards(array()).fingerprint()
    assert print_["shape"] == [77, 3]
    assert DaskShards(array(ROWS + 1)).fingerprint() != print_
    many = DaskShards(array(cut=1)).fingerprint()
    assert many["chunks"] != DaskShards(array(cut=2)).fingerprint()["chunks"]
    assert isinstance(many["chunks"], str)


@pytest.mark.parametrize("which", ["holder of the model", "other"])
def test_a_worker_is_killed_while_tasks_run(client, tmp_path, which):
    shards = DaskShards(array(), weights=np.zeros(77))
    setting = Setting(seconds=0.1, folder=str(tmp_path))
    own = [np.zeros(3, dtype=np.int32)] * 11
    pids = worker_pids(client)

    def kill():
        while len(list(tmp_path.iterdir())) < 3:
            time.sleep(0.01)
        holders = client.who_has([shards._shared.future])
        (held,) = holders.values()
        others = [address for address in pids if address not in held[:1]]
        os.kill(pids[held[0] if which == "holder of the model" else others[0]], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    check_run(shards, tasks.note, setting, own)
    killer.join(10)
    await_workers(client, 2)
    check_run(shards, tasks.note, setting, own)


@pytest.mark.parametrize("first", [0, 35, 70])
def test_a_task_kills_its_worker_once(client, tmp_path, first):
    shards = DaskShards(array())
    check_run(shards, tasks.die_once, Setting(folder=str(tmp_path)), [first] * 11)
    assert (tmp_path / "killed").exists()


def test_all_workers_are_killed_at_once(client, tmp_path):
    shards = DaskShards(array(), weights=np.zeros(77))
    setting = Setting(seconds=0.05, folder=str(tmp_path))

    def kill():
        while len(list(tmp_path.iterdir())) < 4:
            time.sleep(0.01)
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)

    pids = worker_pids(client)
    killer = threading.Thread(target=kill)
    killer.start()
    check_run(shards, tasks.note, setting)
    killer.join(10)


def test_the_cluster_is_restarted_between_two_runs(client):
    shards = DaskShards(array(), weights=da.zeros(77, chunks=CUT))
    check_run(shards)
    client.restart(timeout=30)
    check_run(shards)


def test_a_task_that_no_worker_survives(client):
    shards = DaskShards(array())
    with pytest.raises(RuntimeError, match=r"partition 5: workers died again.*smaller"):
        shards.run(tasks.die, ALL, Setting(), [35] * 11, tasks.plus)
    await_workers(client, 2)
    check_run(shards)


def test_a_worker_joins_and_another_leaves(cluster, client, tmp_path):
    shards = DaskShards(array())
    first, *_ = worker_pids(client)
    setting = Setting(seconds=0.1, folder=str(tmp_path))
    cluster.scale(3)

    def leave():
        await_workers(client, 3)
        client.retire_workers([first])

    leaver = threading.Thread(target=leave)
    leaver.start()
    check_run(shards, tasks.note, setting)
    check_run(shards, tasks.note, setting)
    leaver.join(20)
    assert first not in client.nthreads()
    check_run(shards, tasks.note, setting)
    pids = {Path(path).name.split("-")[1] for path in tmp_path.iterdir()}
    assert len(pids) == 3
    cluster.scale(2)


def test_no_workers(cluster, client):
    shards = DaskShards(array(), patience=1.0)
    cluster.scale(0)
    await_workers(client, 0)
    for attempt in (
        lambda: shards.run(tasks.weigh, ALL, Setting(), NOTHING, tasks.plus),
        lambda: DaskShards(array(), patience=0.1),
    ):
        with pytest.raises(RuntimeError, match="no worker that takes tasks"):
            attempt()
    # Workers that come in time are enough.
    shards.patience = 30.0
    threading.Timer(0.5, lambda: cluster.scale(2)).start()
    check_run(shards)


def test_the_scheduler_is_gone():
    with start_cluster(1) as cluster:
        client = distributed.Client(cluster, timeout=20)
        shards = DaskShards(array(), client)
        client.close()
        with pytest.raises(RuntimeError, match="connection to the Dask scheduler"):
            shards.run(tasks.weigh, ALL, Setting(), NOTHING, tasks.plus)


def test_who_gives_up_shows_the_last_error(client, monkeypatch):
    shards = DaskShards(array())

    def broken(*args, **options):
        raise ValueError("a parcel that cannot be opened")

    with monkeypatch.context() as patched:
        patched.setattr(shards.client, "gather", broken)
        patched.setattr(dask_leg, "_ATTEMPTS", 3)
        with pytest.raises(RuntimeError) as caught:
            shards.run(tasks.note, ALL, Setting(), NOTHING, tasks.plus)
    assert "cannot be opened" in str(caught.value.__cause__)
    check_run(shards)

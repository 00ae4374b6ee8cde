"""Work on the partitions of Dask collections: the bits of a local run, whatever workers do."""

import json
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

from pickmix.closed_form.chunks import LocalChunks
from pickmix.closed_form.dask_chunks import DaskChunks
from pickmix.inputs.open_rows import is_dask, open_rows
from pickmix.sweep.reference import Reference

distributed = pytest.importorskip("distributed")
dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

ROWS = np.random.default_rng(0).normal(size=(77, 3))
CUT = 7  # 11 chunks
ALL = list(range(11))
NOTHING = [None] * 11


@pytest.fixture
def client(cluster):
    """Have Dask give up all tasks of a worker that dies, so that runs must be repeated.

    Where it does not, it makes them again itself; fits are tested with that.
    """

    def set_allowed_failures(number, dask_scheduler):
        dask_scheduler.allowed_failures = number

    with distributed.Client(cluster, timeout=60) as client:
        await_workers(client, 2)
        client.run_on_scheduler(set_allowed_failures, 0)
        yield client
        client.run_on_scheduler(set_allowed_failures, 3)


@pytest.fixture(autouse=True)
def limit():
    """End a test that hangs."""

    def stop(number, frame):
        raise TimeoutError("the test took too long")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def array(rows=ROWS, cut=CUT):
    return da.from_array(rows, chunks=(cut, -1))


def local(rows=ROWS, cut=CUT, weights=None):
    return LocalChunks(open_rows(rows), cut, Reference(), weights)


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


def check_run(chunks, task=tasks.weigh, setting=None, states=NOTHING, **options):
    """A run on the cluster equals one here, bit for bit."""
    setting = setting or Setting()
    expected = local(**options).run(tasks.weigh, ALL, Setting(), NOTHING, tasks.plus)
    check_equal(chunks.run(task, ALL, setting, states, tasks.plus), expected)


def keys(client):
    return {str(key) for held in client.has_what().values() for key in held}


def await_only(client, n):
    """Wait until that many keys are on the cluster."""
    until = time.monotonic() + 60.0
    while len(keys(client)) != n:
        assert time.monotonic() < until, keys(client)
        time.sleep(0.02)


def await_workers(client, n):
    until = time.monotonic() + 120.0
    while len(client.nthreads()) != n:
        assert time.monotonic() < until, client.nthreads()
        time.sleep(0.02)


def await_other_workers(client, pids):
    """Wait until two workers run, none of which is one of those."""
    until = time.monotonic() + 120.0
    while len(set(client.nthreads()) - set(pids)) != 2 or len(client.nthreads()) != 2:
        assert time.monotonic() < until, client.nthreads()
        time.sleep(0.02)


def keys_without_lineage(dask_scheduler):
    return [key for key, task in dask_scheduler.tasks.items() if task.run_spec is None]


def worker_pids(client):
    return client.run(os.getpid)


def test_dask_is_recognised_and_not_imported():
    assert is_dask(array())
    assert not is_dask(ROWS)
    code = (
        "import sys, pickmix, pickmix.closed_form.dask_chunks;"
        "from pickmix.inputs.open_rows import is_dask; is_dask([1]);"
        "assert not {'dask', 'distributed', 'jax', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_no_client():
    with pytest.raises(RuntimeError, match=r"no client is active.*Client\(\)"):
        DaskChunks(array())


@pytest.mark.parametrize("n", [1, 2, 5, 11])
def test_results_in_order_and_sums_in_the_order_of_pairs(client, n):
    chunks, known = DaskChunks(array()), local()
    np.testing.assert_array_equal(chunks.offsets, known.offsets)
    assert (chunks.n_columns, chunks.dtype, chunks.names) == (3, np.float64, None)
    subset, states = ALL[:n], [np.arange(i + 1, dtype=np.uint16) for i in range(n)]
    setting = Setting(factor=0.37)
    check_equal(
        chunks.run(tasks.weigh, subset, setting, states, tasks.plus),
        known.run(tasks.weigh, subset, setting, states, tasks.plus),
    )


def test_the_number_of_parts_changes(client):
    chunks = DaskChunks(array())
    for n_parts in (3, 0, 1):
        setting = Setting(n_parts=n_parts)
        check_equal(
            chunks.run(tasks.weigh, ALL, setting, NOTHING, tasks.plus),
            local().run(tasks.weigh, ALL, setting, NOTHING, tasks.plus),
        )
    results, _ = chunks.run(tasks.weigh, [4, 2], Setting(), [None] * 2, tasks.plus)
    assert [result["first"] for result in results] == [28, 14]
    assert chunks.run(tasks.weigh, [], Setting(), [], tasks.plus) == ([], [])


def test_a_task_has_one_thread(client):
    chunks = DaskChunks(array())
    for compiled, expected in ((True, ("Compiled", 1)), (False, ("Reference", None))):
        setting = Setting(compiled=compiled)
        (result,), _ = chunks.run(tasks.weigh, [3], setting, [None], tasks.plus)
        assert (result["backend"], result["threads"]) == expected


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("f2", "f4"), (">f4", "f4"), ("f8", "f8"), ("i4", "f8"), ("?", "f8")],
)
def test_dtypes(client, dtype, expected):
    rows = np.asfortranarray((ROWS * 10).astype(dtype))
    chunks = DaskChunks(array(rows))
    assert chunks.dtype == np.dtype(expected)
    check_run(chunks, rows=rows.astype(expected))
    results, _ = chunks.run(tasks.weigh, [0], Setting(), [None], tasks.plus)
    assert results[0]["plain"]


def test_dataframe(client):
    dd = pytest.importorskip("dask.dataframe")
    import pandas as pd

    frame = pd.DataFrame({"a": np.arange(20), "b": np.linspace(0, 1, 20, dtype="f4")})
    frame["c"] = pd.array([None, *range(19)], dtype="Int64")
    chunks = DaskChunks(dd.from_pandas(frame, npartitions=3))
    assert (chunks.names, chunks.n_columns, chunks.dtype) == (["a", "b", "c"], 3, np.float64)
    assert chunks.offsets[-1] == 20
    results, _ = chunks.run(tasks.weigh, [1, 2], Setting(), [None] * 2, tasks.plus)
    assert [result["plain"] for result in results] == [True, True]
    small = DaskChunks(dd.from_pandas(frame[["b"]], npartitions=3))
    assert small.dtype == np.float32
    with pytest.raises(ValueError, match=r"dtype .* in column 'd'"):
        DaskChunks(dd.from_pandas(frame.assign(d="text"), npartitions=2))


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
            DaskChunks(collection(other))


def test_weights(client):
    weights = np.random.default_rng(1).uniform(size=77)
    check_run(DaskChunks(array(), weights=weights), weights=weights)
    check_run(DaskChunks(array(), weights=da.from_array(weights, chunks=CUT)), weights=weights)
    with pytest.raises(ValueError, match=r"sample_weight must have shape \(77,\), got \(76,\)"):
        DaskChunks(array(), weights=weights[1:])
    with pytest.raises(ValueError, match="the 11 partitions of X"):
        DaskChunks(array(), weights=da.from_array(weights, chunks=11))
    cuts = (8, 6, *[7] * 9)
    with pytest.raises(ValueError, match=r"8 weight\(s\) for 7 row\(s\) in partition 0"):
        DaskChunks(array(), weights=da.from_array(weights, chunks=(cuts,)))
    weights[30] = -1.0
    with pytest.raises(ValueError, match="not negative, got others in partition 4"):
        DaskChunks(array(), weights=da.from_array(weights, chunks=CUT))


def test_partitions_without_rows(client):
    chunks = DaskChunks(array().map_blocks(tasks.spoil, 4, "empty", dtype=float))
    assert chunks.offsets.tolist() == [*range(0, 71, 7)]
    assert chunks.place(27) == "partition 3, row 7 of it"
    assert chunks.place(28) == "partition 5, row 1 of it"
    with pytest.raises(ValueError, match="X must hold rows"):
        DaskChunks(array()[:0])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("columns", "got 6 in partition 4 and 3 in partition 0"),
        ("dtype", "got dtype object in partition 4"),
        ("flat", r"got \(7,\) in partition 4"),
    ],
)
def test_partitions_of_another_shape_or_type(client, kind, words):
    with pytest.raises(ValueError, match=words):
        DaskChunks(array().map_blocks(tasks.spoil, 4, kind, dtype=float))


def test_collections_that_are_no_tables(client):
    with pytest.raises(ValueError, match=r"got shape \(5,\)"):
        DaskChunks(da.zeros(5))
    with pytest.raises(ValueError, match="got dtype complex128"):
        DaskChunks(da.zeros((5, 2), dtype=complex))


def test_a_partition_that_cannot_be_read(client):
    with pytest.raises(OSError, match="partition 3: the disk is broken"):
        DaskChunks(array().map_blocks(tasks.fail_at, 3, dtype=float))


def test_an_error_in_a_task_names_the_partition_and_leaves_nothing_behind(client):
    chunks = DaskChunks(array())
    with pytest.raises(ValueError, match="partition 5: a row is not finite"):
        chunks.run(tasks.refuse, ALL, Setting(), [35] * 11, tasks.plus)
    await_only(client, 11 + 1)
    with pytest.raises(MemoryError, match=r"partition 2: a worker is out of memory.*smaller"):
        chunks.run(tasks.run_out_of_memory, [2], Setting(), [None], tasks.plus)
    check_run(chunks)


def test_only_partitions_and_one_model_stay(client):
    chunks = DaskChunks(array())
    setting = Setting(ballast=np.zeros(200_000))
    states = [np.zeros(5, dtype=np.int32)] * 4
    chunks.run(tasks.weigh, ALL[:4], setting, states, tasks.plus)
    # It is there once, and is not sent again. All that is there can be made again.
    await_only(client, 11 + 1)
    assert client.run_on_scheduler(keys_without_lineage) == []
    (model,) = [key for key in keys(client) if key.startswith("pickmix-model")]
    chunks.run(tasks.weigh, ALL[4:], setting, [None] * 7, tasks.plus)
    await_only(client, 11 + 1)
    assert model in keys(client)
    # The next one takes its place.
    chunks.run(tasks.weigh, ALL[:2], Setting(), [None] * 2, tasks.plus)
    await_only(client, 11 + 1)
    assert model not in keys(client)
    chunks.close()
    await_only(client, 0)


def test_fingerprint(client):
    chunks = DaskChunks(array())
    print_ = chunks.fingerprint()
    assert json.loads(json.dumps(print_)) == print_ == DaskChunks(array()).fingerprint()
    assert print_["shape"] == [77, 3]
    assert DaskChunks(array(ROWS + 1)).fingerprint() != print_
    many = DaskChunks(array(cut=1)).fingerprint()
    assert many["chunks"] != DaskChunks(array(cut=2)).fingerprint()["chunks"]
    assert isinstance(many["chunks"], str)


def test_a_task_kills_its_worker_once(client, tmp_path):
    chunks = DaskChunks(array())
    check_run(chunks, tasks.die_once, Setting(folder=str(tmp_path)), [35] * 11)
    assert (tmp_path / "killed").exists()


def test_all_workers_are_killed_at_once(client, tmp_path):
    chunks = DaskChunks(array(), weights=np.zeros(77))
    setting = Setting(seconds=0.05, folder=str(tmp_path))

    def kill():
        while len(list(tmp_path.iterdir())) < 4:
            time.sleep(0.01)
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)

    pids = worker_pids(client)
    killer = threading.Thread(target=kill)
    killer.start()
    check_run(chunks, tasks.note, setting)
    killer.join(60)


def test_a_source_that_fails_after_workers_died_is_read_again(client, tmp_path):
    """The file of all partitions is away for a while."""
    np.save(tmp_path / "rows.npy", ROWS)
    read = dask.delayed(tasks.read_block)
    blocks = [
        da.from_delayed(read(str(tmp_path / "rows.npy"), number, CUT), (CUT, 3), dtype=float)
        for number in ALL
    ]
    chunks = DaskChunks(da.concatenate(blocks))
    check_run(chunks)
    (tmp_path / "rows.npy").rename(tmp_path / "away.npy")
    pids = worker_pids(client)
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    await_other_workers(client, pids)
    with pytest.raises(FileNotFoundError, match=r"rows\.npy"):
        chunks.run(tasks.weigh, ALL, Setting(), NOTHING, tasks.plus)
    (tmp_path / "away.npy").rename(tmp_path / "rows.npy")
    check_run(chunks)


def test_the_cluster_is_restarted_during_a_run(client, tmp_path):
    chunks = DaskChunks(array(), weights=da.zeros(77, chunks=CUT))

    def restart():
        while len(list(tmp_path.iterdir())) < 3:
            time.sleep(0.01)
        client.restart(timeout=120)

    restarter = threading.Thread(target=restart)
    restarter.start()
    check_run(chunks, tasks.note, Setting(seconds=0.1, folder=str(tmp_path)))
    restarter.join(120)
    check_run(chunks)


def test_a_task_that_no_worker_survives(client):
    chunks = DaskChunks(array())
    with pytest.raises(RuntimeError, match=r"partition 5: workers died again.*smaller"):
        chunks.run(tasks.die, ALL, Setting(), [35] * 11, tasks.plus)
    await_workers(client, 2)
    check_run(chunks)


def test_a_worker_joins_and_another_leaves(cluster, client, tmp_path):
    chunks = DaskChunks(array())
    first, *_ = worker_pids(client)
    setting = Setting(seconds=0.1, folder=str(tmp_path))
    cluster.scale(3)

    def leave():
        await_workers(client, 3)
        client.retire_workers([first])

    leaver = threading.Thread(target=leave)
    leaver.start()
    check_run(chunks, tasks.note, setting)
    check_run(chunks, tasks.note, setting)
    leaver.join(120)
    assert first not in client.nthreads()
    check_run(chunks, tasks.note, setting)
    pids = {Path(path).name.split("-")[1] for path in tmp_path.iterdir()}
    assert len(pids) == 3
    cluster.scale(2)


def test_no_workers(cluster, client):
    chunks = DaskChunks(array(), patience=1.0)
    cluster.scale(0)
    await_workers(client, 0)
    for attempt in (
        lambda: chunks.run(tasks.weigh, ALL, Setting(), NOTHING, tasks.plus),
        lambda: DaskChunks(array(), patience=0.1),
    ):
        with pytest.raises(RuntimeError, match="no worker that takes tasks"):
            attempt()
    # Workers that come in time are enough.
    chunks.patience = 120.0
    threading.Timer(0.5, lambda: cluster.scale(2)).start()
    check_run(chunks)


def test_a_client_that_was_closed(cluster):
    client = distributed.Client(cluster, timeout=60, set_as_default=False)
    chunks = DaskChunks(array(), client)
    client.close()
    with pytest.raises(RuntimeError, match="connection to the Dask scheduler"):
        chunks.run(tasks.weigh, ALL, Setting(), NOTHING, tasks.plus)

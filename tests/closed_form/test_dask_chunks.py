"""Work on the partitions of Dask collections: the bits of a local run, whatever workers do."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pandas as pd
import pytest
from cluster_tasks import Weigh, read_block, spoil

from pickmix.closed_form import dask_chunks
from pickmix.closed_form.chunks import LocalChunks
from pickmix.closed_form.dask_chunks import DaskChunks
from pickmix.inputs.open_rows import is_dask, open_rows
from pickmix.threads import use_threads

distributed = pytest.importorskip("distributed")
dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
dd = pytest.importorskip("dask.dataframe")

ROWS = np.random.default_rng(0).normal(size=(77, 3))
CUT = 7  # 11 chunks
ALL = list(range(11))


def set_allowed_failures(number, dask_scheduler):
    dask_scheduler.allowed_failures = number


@pytest.fixture
def client(cluster):
    """Have Dask give up all tasks of a worker that dies, so that runs must be repeated.

    Where it does not, it makes them again itself; fits are tested with that.
    """
    with distributed.Client(cluster, timeout=60) as client:
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


def spoilt(kind):
    return array().map_blocks(spoil, 4, kind, dtype=float)


def check_run(chunks, job=None, rows=ROWS, weights=None, some=ALL, states=None):
    """A run on the cluster equals one here, bit for bit."""
    states = states or [None] * len(some)
    local = LocalChunks(open_rows(rows), CUT, weights)
    expected, expected_total = local.run(Weigh(), some, states)
    results, total = chunks.run(job or Weigh(), some, states)
    assert results == expected
    np.testing.assert_array_equal(total, expected_total)


def await_that(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def keys(client):
    return {str(key) for held in client.has_what().values() for key in held}


def kill_a_worker(client):
    """Kill the one that holds most."""
    await_that(lambda: len(client.nthreads()) == 2)
    worker = max(client.has_what().items(), key=lambda item: len(item[1]))[0]
    os.kill(client.run(os.getpid)[worker], signal.SIGKILL)
    return worker


def test_dask_is_recognised_and_neither_it_nor_jax_is_imported():
    assert is_dask(array())
    assert not is_dask(ROWS)
    code = (
        "import sys, pickmix, pickmix.cli, pickmix.closed_form.dask_chunks, pickmix.plotting;"
        "from pickmix.inputs.open_rows import is_dask; is_dask([1]);"
        "pickmix.FlowMixture(3); pickmix.SumProductTransformNetwork(); pickmix.Mixture(None);"
        "assert not {'dask', 'distributed', 'jax', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)
    with pytest.raises(RuntimeError, match=r"no client is active.*Client\(\)"):
        DaskChunks(array())


def test_results_in_order_and_sums_in_the_order_of_pairs(client):
    chunks = DaskChunks(array())
    assert chunks.offsets.tolist() == [*range(0, 78, 7)]
    assert (chunks.n_columns, chunks.dtype, chunks.names) == (3, np.float64, None)
    for n in (1, 2, 5, 11):
        states = [np.arange(i + 1, dtype=np.uint16) for i in range(n)]
        check_run(chunks, some=ALL[:n], states=states)
    check_run(chunks, some=[4, 2])
    # A worker gives each of its threads a task.
    with use_threads(2):
        (result,), _ = chunks.run(Weigh(), [3], [None])
    assert result["threads"] == 1


@pytest.mark.parametrize(
    ("dtype", "expected"), [("f2", "f4"), (">f4", "f4"), ("f8", "f8"), ("i4", "f8"), ("?", "f8")]
)
def test_dtypes(client, dtype, expected):
    rows = np.asfortranarray((ROWS * 10).astype(dtype))
    chunks = DaskChunks(array(rows))
    assert chunks.dtype == np.dtype(expected)
    check_run(chunks, rows=np.ascontiguousarray(rows, dtype=expected))


def test_dataframe(client):
    frame = pd.DataFrame({"a": np.arange(20), "b": np.linspace(0, 1, 20, dtype="f4")})
    frame["c"] = pd.array([None, *range(19)], dtype="Int64")
    chunks = DaskChunks(dd.from_pandas(frame, npartitions=3))
    assert (chunks.names, chunks.n_columns, chunks.dtype) == (["a", "b", "c"], 3, np.float64)
    assert chunks.offsets[-1] == 20
    results, _ = chunks.run(Weigh(), [1, 2], [None] * 2)
    assert [result["plain"] for result in results] == [True, True]
    assert DaskChunks(dd.from_pandas(frame[["b"]], npartitions=3)).dtype == np.float32
    with pytest.raises(ValueError, match=r"dtype .* in column 'd'"):
        DaskChunks(dd.from_pandas(frame.assign(d="text"), npartitions=2))
    good = frame[["a", "b"]]
    for other, words in (
        (good.rename(columns={"b": "z"}), r"partition 1: \['b', 'z'\]"),
        (good.assign(b="text"), "column 'b' of partition 1"),
    ):
        parts = [dask.delayed(good), dask.delayed(other)]
        with pytest.raises(ValueError, match=words):
            DaskChunks(dd.from_delayed(parts, meta=good.iloc[:0], verify_meta=False))


def test_weights(client):
    weights = np.random.default_rng(1).uniform(size=77)
    check_run(DaskChunks(array(), weights=weights), weights=weights)
    check_run(DaskChunks(array(), weights=da.from_array(weights, chunks=CUT)), weights=weights)
    bad = weights.copy()
    bad[30] = -1.0
    for other, message in (
        (weights[1:], r"sample_weight must have shape \(77,\), got \(76,\)"),
        (da.from_array(weights, chunks=11), "the 11 partitions of X"),
        (
            da.from_array(weights, chunks=((8, 6, *[7] * 9),)),
            r"8 weight\(s\) for 7 row\(s\) in partition 0",
        ),
        (da.from_array(bad, chunks=CUT), "not negative, got others in partition 4"),
    ):
        with pytest.raises(ValueError, match=message):
            DaskChunks(array(), weights=other)


@pytest.mark.parametrize(
    ("collection", "words"),
    [
        (spoilt("columns"), "got 6 in partition 4 and 3 in partition 0"),
        (spoilt("dtype"), "got dtype object in partition 4"),
        (spoilt("flat"), r"got \(7,\) in partition 4"),
        (spoilt("disk"), "partition 4: the disk is broken"),
        (array()[:0], "X must hold rows"),
        (da.zeros(5), r"got shape \(5,\)"),
        (da.zeros((5, 2), dtype=complex), "got dtype complex128"),
    ],
)
def test_collections_that_are_no_tables(client, collection, words):
    with pytest.raises((ValueError, OSError), match=words):
        DaskChunks(collection)


def test_partitions_without_rows(client):
    chunks = DaskChunks(spoilt("empty"))
    assert chunks.offsets.tolist() == [*range(0, 71, 7)]
    assert chunks.place(27) == "partition 3, row 7 of it"
    assert chunks.place(28) == "partition 5, row 1 of it"


def test_fingerprint(client):
    chunks = DaskChunks(array())
    print_ = chunks.fingerprint()
    assert json.loads(json.dumps(print_)) == print_ == DaskChunks(array()).fingerprint()
    assert print_["shape"] == [77, 3]
    assert DaskChunks(array(ROWS + 1)).fingerprint() != print_
    assert print_["chunks"] != DaskChunks(array(cut=8)).fingerprint()["chunks"]


def test_only_partitions_and_one_job_stay_also_after_errors(client):
    chunks = DaskChunks(array())
    for action, error, message in (
        ("refuse", ValueError, "partition 5: a row is not finite"),
        ("run out of memory", MemoryError, "partition 5: a worker is out of memory.*smaller"),
    ):
        with pytest.raises(error, match=message):
            chunks.run(Weigh(action), ALL, [None] * 11)
    job = Weigh()
    check_run(chunks, job, some=ALL[:4])
    check_run(chunks, job)
    await_that(lambda: len(keys(client)) == 11 + 1)

    def keys_without_lineage(dask_scheduler):
        return [key for key, task in dask_scheduler.tasks.items() if task.run_spec is None]

    assert client.run_on_scheduler(keys_without_lineage) == []
    chunks.close()
    await_that(lambda: not keys(client))


def test_a_task_kills_its_worker_once(client, tmp_path):
    check_run(DaskChunks(array()), Weigh("die once", folder=str(tmp_path)))
    assert (tmp_path / "killed").exists()


def test_a_task_that_no_worker_survives(client, tmp_path, monkeypatch):
    monkeypatch.setattr(dask_chunks, "_ATTEMPTS", 1)
    with pytest.raises(RuntimeError, match=r"partition 5: workers died again.*smaller"):
        DaskChunks(array()).run(Weigh("die", folder=str(tmp_path)), ALL, [None] * 11)


@pytest.mark.slow
def test_the_cluster_is_restarted_during_a_run(client, tmp_path):
    chunks = DaskChunks(array(), weights=da.zeros(77, chunks=CUT))

    def restart():
        await_that(lambda: len(list(tmp_path.iterdir())) > 3)
        client.restart(timeout=120)

    thread = threading.Thread(target=restart)
    thread.start()
    check_run(chunks, Weigh(seconds=0.05, folder=str(tmp_path)), weights=np.zeros(77))
    thread.join(120)


def test_a_source_that_fails_after_a_worker_died_is_read_again(client, tmp_path):
    """The file of all partitions is away for a while."""
    np.save(tmp_path / "rows.npy", ROWS)
    read = dask.delayed(read_block)
    blocks = [
        da.from_delayed(read(str(tmp_path / "rows.npy"), number, CUT), (CUT, 3), dtype=float)
        for number in ALL
    ]
    chunks = DaskChunks(da.concatenate(blocks))
    check_run(chunks)
    (tmp_path / "rows.npy").rename(tmp_path / "away.npy")
    dead = kill_a_worker(client)
    await_that(lambda: dead not in client.nthreads())
    with pytest.raises(FileNotFoundError, match=r"rows\.npy"):
        chunks.run(Weigh(), ALL, [None] * 11)
    (tmp_path / "away.npy").rename(tmp_path / "rows.npy")
    check_run(chunks)


def test_no_workers(client, monkeypatch):
    chunks = DaskChunks(array(), patience=0.1)
    with monkeypatch.context() as patch:
        patch.setattr(client, "sync", lambda *args, **options: {})
        with pytest.raises(RuntimeError, match="no worker that takes tasks"):
            chunks.run(Weigh(), ALL, [None] * 11)
    check_run(chunks)


def test_a_client_that_was_closed(cluster):
    client = distributed.Client(cluster, timeout=60, set_as_default=False)
    chunks = DaskChunks(array(), client)
    client.close()
    with pytest.raises(RuntimeError, match="connection to the Dask scheduler"):
        chunks.run(Weigh(), ALL, [None] * 11)

"""Runs spread over processes, and over a Dask cluster."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from pickmix.experiments.reproduction import workers
from pickmix.experiments.reproduction.fits.perform import NoData, perform
from pickmix.experiments.reproduction.runs import GaussianRun, flow
from pickmix.experiments.reproduction.store import Store
from pickmix.experiments.reproduction.workers import cluster_workers, local_workers, make_all

RUNS = [GaussianRun("EM", 3, seed, D=2, K=3, N=100) for seed in range(4)]


def made_by(where, runs):
    results = {}
    with where as ready:
        make_all(runs, ready, None, results.__setitem__)
    return results


def check_equal_to_runs_made_here(results):
    assert set(results) == set(RUNS)
    for run, history in results.items():
        np.testing.assert_array_equal(
            history.series["log_likelihood"], perform(run).series["log_likelihood"]
        )


def test_processes_make_the_same_runs():
    results = made_by(local_workers(2), RUNS)
    check_equal_to_runs_made_here(results)
    assert {history.facts["threads"] for history in results.values()} == {
        max(1, len(os.sched_getaffinity(0)) // 2)
    }


def test_a_process_has_no_more_threads_in_blas_than_cores():
    with local_workers(2) as ready:
        pools = ready.executor.submit(threadpool_info).result()
    assert pools
    assert {pool["num_threads"] for pool in pools} == {max(1, len(os.sched_getaffinity(0)) // 2)}


def test_a_set_that_is_not_there_is_reported_and_the_rest_goes_on(tmp_path, monkeypatch):
    # Workers look for it where this process would: nowhere.
    monkeypatch.setenv("PICKMIX_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    results = made_by(local_workers(1), [flow("wine", "SGD", 2, T=5), RUNS[0]])
    assert isinstance(results[flow("wine", "SGD", 2, T=5)], NoData)
    assert results[RUNS[0]].facts["outcome"] == "max_steps"


def test_an_error_in_a_report_ends_the_workers():
    def stop(run, history):
        raise KeyboardInterrupt

    long_run = GaussianRun("SAEM", 10**9, 0, D=2, K=3, N=100)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), local_workers(2) as ready:
        make_all([RUNS[0], long_run], ready, None, stop)
    # The other run would take hours; its process is gone, and nothing waits for it.
    assert time.monotonic() - started < 300.0
    assert multiprocessing.active_children() == []


def test_dask_cluster():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=":0", protocol="tcp"
    ) as cluster:
        check_equal_to_runs_made_here(made_by(cluster_workers(cluster.scheduler_address), RUNS))


def test_no_cluster_at_that_address(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(workers, "_CONNECT_SECONDS", 0.5)
    with pytest.raises(OSError), cluster_workers("tcp://127.0.0.1:9"):
        pass


def reproduce(folder):
    command = [sys.executable, "-m", "pickmix", "reproduce", "figure-proposals", "--steps", "0.002"]
    for name in ("MHSAEM-U", "MHSAEM-TF"):
        command += ["--algorithm", name]
    return [*command, "--repetitions", "4", "--out", str(folder)]


def test_killed_and_started_again_ends_like_an_uninterrupted_run(tmp_path):
    process = subprocess.Popen(
        reproduce(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not list(tmp_path.glob("runs/*.parquet")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    n_before = len(list(tmp_path.glob("runs/*.parquet")))
    assert 0 < n_before < 8

    again = subprocess.run(reproduce(tmp_path), check=True, capture_output=True, text=True)
    assert f"8 runs, {n_before} of them there from before" in again.stdout
    histories = Store(tmp_path).histories()
    assert len(histories) == 8
    for history in histories.values():
        uninterrupted = perform(history.run)
        assert history.facts["outcome"] == uninterrupted.facts["outcome"] == "max_steps"
        for name in ("step", "evaluations", "log_likelihood", "acceptance", "live_components"):
            np.testing.assert_array_equal(history.series[name], uninterrupted.series[name])
    assert (tmp_path / "figure-proposals.png").is_file()

"""Runs spread over processes, and over a Dask cluster."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from click.testing import CliRunner
from threadpoolctl import threadpool_info

from pickmix.cli import main
from pickmix.experiments import workers
from pickmix.experiments.fits.perform import perform
from pickmix.experiments.runs import GaussianRun, flow
from pickmix.experiments.store import Store
from pickmix.experiments.workers import cluster_workers, local_workers, make_all

RUNS = [GaussianRun("EM", 3, seed, D=2, K=3, N=100) for seed in range(3)]


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


def test_processes_make_the_same_runs_with_threads_of_their_own(tmp_path, monkeypatch):
    # Workers look for sets where this process would: nowhere.
    monkeypatch.setenv("PICKMIX_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    missing = flow("wine", "SGD", 2, T=5)
    results = {}
    with local_workers(2) as ready:
        make_all([missing, *RUNS], ready, None, results.__setitem__)
        pools = ready.executor.submit(threadpool_info).result()
    assert results.pop(missing).facts["outcome"].startswith("no data: wine: found its files now")
    check_equal_to_runs_made_here(results)
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert {history.facts["threads"] for history in results.values()} == {threads}
    # No more in BLAS than cores.
    assert {pool["num_threads"] for pool in pools} == {threads}


def test_an_error_in_a_report_ends_the_workers():
    def stop(run, history):
        raise KeyboardInterrupt

    long_run = GaussianRun("SAEM", 10**9, 0, D=2, K=3, N=100)
    # A cluster of other tests may be there.
    before = set(multiprocessing.active_children())
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), local_workers(2) as ready:
        make_all([RUNS[0], long_run], ready, None, stop)
    # The other run would take hours; its process is gone, and nothing waits for it.
    assert time.monotonic() - started < 300.0
    assert set(multiprocessing.active_children()) <= before


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


def test_killed_and_started_again_ends_like_an_uninterrupted_run(tmp_path):
    journal, table = tmp_path / "results.jsonl", tmp_path / "results.parquet"
    reproduce = ["reproduce", "figure-proposals", "--steps", "0.002", "--algorithm", "MHSAEM-TF"]
    reproduce += ["--repetitions", "3", "--out", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "pickmix", *reproduce],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not journal.exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    n_before = len(Store(table).histories())

    again = CliRunner().invoke(main, reproduce)
    assert again.exit_code == 0, again.output
    assert f"3 runs, {n_before} of them there from before" in again.output
    histories = Store(table).histories()
    assert len(histories) == 3
    assert not journal.exists()
    for history in histories.values():
        uninterrupted = perform(history.run)
        assert history.facts["outcome"] == uninterrupted.facts["outcome"] == "max_steps"
        for name in ("step", "evaluations", "log_likelihood", "acceptance", "live_components"):
            np.testing.assert_array_equal(history.series[name], uninterrupted.series[name])
    assert (tmp_path / "figure-proposals.png").is_file()

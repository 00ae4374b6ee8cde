"""Runs in processes of their own, on a Dask cluster, and under a meter."""

import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from pickmix_experiments import runner
from pickmix_experiments.runner import (
    Meter,
    Worker,
    cluster_workers,
    cpu_count,
    local_workers,
    make_all,
    perform,
    record_steps,
)
from pickmix_experiments.runs import GaussianRun

RUNS = [GaussianRun("EM", 3, seed, D=2, K=3, N=100) for seed in range(2)]


def test_records_are_even_on_a_log_axis():
    steps = record_steps(10_000)
    assert (steps[0], steps[-1]) == (1, 10_000)
    late = np.array([step for step in steps if step > 100])
    assert np.ptp(late[1:] / late[:-1]) < 0.05


def test_a_process_makes_the_same_run_with_threads_of_its_own():
    with local_workers(2) as (executor, make):
        rows = list(make_all(RUNS[:1], executor, make, None))
    assert [row["trace"]["log_likelihood"] for row in rows] == [
        perform(RUNS[0])["trace"]["log_likelihood"]
    ]
    assert rows[0]["threads"] == max(1, cpu_count() // 2)


@pytest.mark.parametrize(
    ("number", "outcome"),
    [
        (signal.SIGALRM, "timed out after 5 s"),
        (signal.SIGKILL, "killed by SIGKILL (out of memory?)"),
        (-3, "failed: exit code 3"),
    ],
)
def test_outcomes_of_processes_that_died(number, outcome):
    assert runner._outcome(-number, 5.0) == outcome


def test_what_was_sent_before_the_end_is_kept():
    sent = [("add", {"seconds": 0.5}), ("know", {"n_rows": 8}), ("shift", {"seconds": 2.0})]
    worker = object.__new__(Worker)
    worker._connection = mock.Mock(recv=mock.Mock(side_effect=[*sent, EOFError]))
    worker.process = mock.Mock(exitcode=-signal.SIGKILL)
    row = worker.perform(RUNS[0])
    assert row["trace"] == {"seconds": [2.5]}
    assert (row["n_rows"], row["outcome"]) == (8, "killed by SIGKILL (out of memory?)")


def test_dask_cluster():
    distributed = pytest.importorskip("distributed")
    # In this process, but by TCP: runs and rows are sent as to any other.
    with (
        distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            dashboard_address=":0",
            protocol="tcp",
        ) as cluster,
        cluster_workers(cluster.scheduler_address) as (executor, make),
    ):
        (row,) = make_all(RUNS[:1], executor, make, None)
    assert row["trace"]["log_likelihood"] == perform(RUNS[0])["trace"]["log_likelihood"]


def test_the_clock_stops_in_pauses(monkeypatch):
    ticks = iter([0.0, 2.0, 10.0, 13.0])
    monkeypatch.setattr(runner.time, "perf_counter", lambda: next(ticks))
    meter = Meter()
    meter.start()
    with meter.paused():
        pass
    meter.stop()
    assert meter.seconds == 5.0


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="only Linux resets the peak memory"
)
def test_the_peak_is_of_the_work_alone():
    def use(megabytes):
        np.ones(megabytes * 125_000).sum()

    use(300)
    meter = Meter()
    meter.start()
    use(100)
    with meter.paused():
        use(200)
    meter.stop()
    assert 90 < meter.peak_megabytes < 150


def test_the_limit_ends_the_process_and_does_not_count_pauses():
    program = """
import time
from pickmix_experiments.runner import Meter
meter = Meter(0.5)
meter.start()
with meter.paused():
    time.sleep(0.8)
print("after the pause", flush=True)
time.sleep(20)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "after the pause\n"
    assert done.returncode == -signal.SIGALRM

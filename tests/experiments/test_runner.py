"""Runs in processes of their own, on a Dask cluster, and under a meter."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from click.testing import CliRunner

from pickmix_experiments import drawing, runner
from pickmix_experiments.reproduce import reproduce
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
from pickmix_experiments.runs import BenchRun, GaussianRun, flow
from pickmix_experiments.store import Store

RUN = BenchRun("em", 0, 0, setting="small")
RUNS = [GaussianRun("EM", 3, seed, D=2, K=3, N=100) for seed in range(3)]
RECORD = ["add", {"seconds": 0.5, "validation": -1.0}]
KILL = "import os, signal; os.kill(os.getpid(), signal.{})"


def made_by(where, runs):
    results = {}
    with where as ready:
        make_all(runs, ready, None, results.__setitem__)
    return results


def check_equal_to_runs_made_here(results, runs=RUNS):
    assert set(results) == set(runs)
    for run, history in results.items():
        np.testing.assert_array_equal(
            history.series["log_likelihood"], perform(run).series["log_likelihood"]
        )


@pytest.fixture
def program(monkeypatch):
    """Let another program take the place of a worker; it first writes `lines`."""

    def put(text, *lines):
        written = "".join(json.dumps(line) + "\n" for line in lines)
        start = f"import sys; sys.stdin.readline(); print({written!r}, end='', flush=True)\n"
        monkeypatch.setattr(Worker, "COMMAND", (sys.executable, "-c", start + text))

    return put


def test_records_are_even_on_a_log_axis():
    steps = record_steps(10_000)
    assert (steps[0], steps[-1]) == (1, 10_000)
    late = np.array([step for step in steps if step > 100])
    assert np.ptp(late[1:] / late[:-1]) < 0.05
    assert record_steps(1) == [1]


def test_what_a_process_sends_comes_back(program):
    facts = ["know", {"outcome": "converged", "test": -0.5}]
    program("sys.stdin.read()", RECORD, facts, ["shift", {"seconds": 2.0}], ["end", {}])
    with Worker() as worker:
        history = worker.perform(RUN)
    assert history.run == RUN
    assert history.series["seconds"].tolist() == [2.5]
    assert (history.facts["outcome"], history.facts["test"]) == ("converged", -0.5)


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (KILL.format("SIGALRM"), "timed out after 5 s"),
        (KILL.format("SIGKILL"), "killed by SIGKILL (out of memory?)"),
        ("raise SystemError('broken')", "failed: SystemError: broken"),
        ("sys.exit(3)", "failed: exit code 3"),
        ('print(\'["know", {"outcome": "conv\', end=\'\')', "failed: exit code 0"),
    ],
)
def test_a_process_that_dies_leaves_its_curve_and_an_outcome(program, text, outcome):
    program(text, ["know", {"n_rows": 8000}], RECORD)
    with Worker() as worker:
        history = worker.perform(RUN, 5.0)
        assert worker.ended
    assert history.series["validation"].tolist() == [-1.0]
    assert (history.facts["outcome"], history.facts["n_rows"]) == (outcome, 8000)


def test_a_worker_ends_with_the_process_that_started_it():
    process = subprocess.Popen(
        Worker.COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    process.communicate(timeout=100)  # closes its standard input
    assert process.returncode == 1


def test_processes_make_the_same_runs_with_threads_of_their_own(tmp_path, monkeypatch):
    # Workers look for sets where this process would: nowhere.
    monkeypatch.setenv("PICKMIX_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    missing = flow("wine", "SGD", 2, T=5)
    results = made_by(local_workers(2), [missing, *RUNS])
    assert results.pop(missing).facts["outcome"].startswith("no data: wine: found its files now")
    check_equal_to_runs_made_here(results)
    threads = max(1, cpu_count() // 2)
    assert {history.facts["threads"] for history in results.values()} == {threads}


def test_a_worker_that_dies_ends_everything(program):
    program(KILL.format("SIGKILL"))
    with pytest.raises(OSError, match=r"a worker died, .*; the same command resumes from here"):
        made_by(local_workers(1), RUNS)


def test_an_error_in_a_report_ends_the_workers():
    workers = []

    def stop(run, history):
        raise KeyboardInterrupt

    class Watched(Worker):
        def __init__(self, *cores):
            super().__init__(*cores)
            workers.append(self)

    # The other run would take hours.
    long_run = GaussianRun("SAEM", 10**9, 0, D=2, K=3, N=100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "Worker", Watched)
        with pytest.raises(KeyboardInterrupt), local_workers(2) as ready:
            make_all([RUNS[0], long_run], ready, None, stop)
    assert len(workers) == 2
    assert all(worker.ended for worker in workers)


def test_dask_cluster():
    distributed = pytest.importorskip("distributed")
    # In this process, but by TCP: runs and histories are sent as to any other.
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0", protocol="tcp"
    ) as cluster:
        results = made_by(cluster_workers(cluster.scheduler_address), RUNS[:1])
    check_equal_to_runs_made_here(results, RUNS[:1])


def test_killed_and_started_again_ends_like_an_uninterrupted_run(tmp_path, monkeypatch):
    monkeypatch.setattr(drawing, "draw", lambda *arguments, **settings: None)
    table = tmp_path / "results.jsonl"
    arguments = ["figure-proposals", "--steps", "0.002", "--algorithm", "MHSAEM-TF"]
    arguments += ["--repetitions", "2", "--out", str(tmp_path)]
    program = "from pickmix_experiments.reproduce import reproduce; reproduce()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not table.exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    n_before = len(Store(table).histories())

    again = CliRunner().invoke(reproduce, arguments)
    assert again.exit_code == 0, again.output
    assert f"2 runs, {n_before} of them there from before" in again.output
    histories = Store(table).histories()
    assert len(histories) == 2
    for history in histories.values():
        uninterrupted = perform(history.run)
        assert history.facts["outcome"] == uninterrupted.facts["outcome"] == "max_steps"
        for name in ("step", "evaluations", "log_likelihood", "acceptance", "live_components"):
            np.testing.assert_array_equal(history.series[name], uninterrupted.series[name])


def test_the_clock_stops_in_pauses(monkeypatch):
    ticks = iter([0.0, 2.0, 10.0, 13.0])
    monkeypatch.setattr(runner.time, "perf_counter", lambda: next(ticks))
    meter = Meter()
    meter.start()
    with meter.paused():
        pass
    meter.stop()
    assert meter.seconds == 5.0


@pytest.mark.skipif(not runner._CLEAR.exists(), reason="only Linux resets the peak memory")
def test_the_peak_is_of_the_work_alone():
    def use(megabytes):
        np.ones(megabytes * 125_000).sum()

    use(300)
    meter = Meter()
    meter.start()
    use(100)
    with meter.paused():
        use(200)
    use(50)
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

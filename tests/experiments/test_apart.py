"""Runs in processes of their own, whatever happens to those."""

import json
import subprocess
import sys

import numpy as np
import pytest

from pickmix.experiments import apart
from pickmix.experiments.apart import perform_apart
from pickmix.experiments.fits.perform import perform
from pickmix.experiments.runs import BenchRun, GaussianRun

RUN = BenchRun("em", 0, 0, setting="small")
RECORD = {"record": {"seconds": 0.5, "validation": -1.0}}


@pytest.fixture
def program(monkeypatch):
    """Let a program of our own take the place of a run; `out` is where its lines go."""

    def put(text, *lines):
        said = "".join(json.dumps(line) + "\n" for line in lines)

        def command(run, out, limit_seconds):
            start = f"out = {str(out)!r}; open(out, 'w').write({said!r})\n"
            return [sys.executable, "-c", start + text]

        monkeypatch.setattr(apart, "_command", command)

    return put


def test_what_a_process_says_comes_back(program):
    program("", {"n_rows": 8000}, RECORD, {"outcome": "converged", "test": -0.5})
    history = perform_apart(RUN)
    assert history.run == RUN
    assert history.series["seconds"].tolist() == [0.5]
    facts = history.facts
    assert (facts["outcome"], facts["test"], facts["n_rows"]) == ("converged", -0.5, 8000)


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGALRM)", "timed out after 5 s"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "killed by SIGKILL (out of memory?)",
        ),
        ("raise SystemError('broken')", "failed: SystemError: broken"),
        ("import sys; sys.exit(3)", "failed: exit code 3"),
        ("open(out, 'a').write('{\"outcome\": \"conv')", "failed: exit code 0"),
    ],
)
def test_a_process_that_dies_leaves_its_curve_and_a_name(program, text, outcome):
    program(text, {"n_rows": 8000}, RECORD)
    history = perform_apart(RUN, 5.0)
    assert history.series["validation"].tolist() == [-1.0]
    assert (history.facts["outcome"], history.facts["n_rows"]) == (outcome, 8000)


def test_a_run_apart_is_the_same_run():
    run = GaussianRun("EM", 3, 0, D=2, K=3, N=100)
    history, here = perform_apart(run, 300.0), perform(run)
    np.testing.assert_array_equal(history.series["log_likelihood"], here.series["log_likelihood"])
    assert history.facts["outcome"] == here.facts["outcome"]


def test_the_process_leaves_with_the_one_that_started_it():
    program = (
        "from pickmix.experiments.apart import leave_with_parent; import time\n"
        "leave_with_parent(); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    process.communicate(timeout=50)  # closes its standard input
    assert process.returncode == 1

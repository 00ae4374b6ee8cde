"""Ranges of work on threads: all of it once, on as many threads as were allowed, and no more."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from pickmix.threads import MINIMUM_WORK, n_threads, resolve_n_jobs, run, use_threads

PROGRAM = """
import os, signal, sys, time
from pickmix.threads import run, use_threads
done = []
with use_threads(2):
    run(lambda start, stop: None, 8, 1e9)
    time.sleep(0.3)  # Until its threads wait for work.
    child = os.fork()
    signal.alarm(20)
    run(lambda start, stop: done.append(stop - start), 8, 1e9)
assert done == [4, 4]
if not child:
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("n_items", [0, 1, 2, 7, 100])
@pytest.mark.parametrize("n_jobs", [1, 3])
def test_every_item_is_done_once(n_items, n_jobs):
    visits, workers = np.zeros(n_items, dtype=int), set()

    def kernel(step, start, stop):
        visits[start:stop] += step
        workers.add(threading.get_ident())

    with use_threads(n_jobs):
        run(kernel, n_items, 1e9, 1)
    assert (visits == 1).all()
    assert len(workers) <= n_jobs


def test_little_work_stays_on_this_thread():
    ranges = []
    with use_threads(4):
        run(lambda *bounds: ranges.append(bounds), 100, 1.9 * MINIMUM_WORK)
        run(lambda *bounds: ranges.append(bounds), 100, 2.1 * MINIMUM_WORK)
    assert sorted(ranges) == [(0, 50), (0, 100), (50, 100)]


def test_threads_are_those_of_the_innermost_block_and_of_this_thread():
    seen = []
    with use_threads(3):
        with use_threads(None):
            assert n_threads() == resolve_n_jobs(None)
        with pytest.raises(KeyError), use_threads(2):
            raise KeyError
        assert n_threads() == 3
        other = threading.Thread(target=lambda: seen.append(n_threads()))
        other.start()
        other.join()
    assert (seen, n_threads()) == ([1], 1)


def test_what_a_range_raises_is_raised():
    def kernel(start, stop):
        if start > 0:
            raise ZeroDivisionError

    with use_threads(2), pytest.raises(ZeroDivisionError):
        run(kernel, 10, 1e9)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_threads_of_its_own():
    subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], check=True, timeout=60)

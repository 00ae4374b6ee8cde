import subprocess
import sys
import time

import numpy as np
import pytest

from pickmix.experiments import meter as meter_module
from pickmix.experiments.meter import Meter

linux = pytest.mark.skipif(
    not meter_module._CLEAR.exists(), reason="only Linux sets the peak memory back"
)


def use(megabytes):
    np.ones(megabytes * 125_000).sum()


def test_clock_stops_in_pauses():
    meter = Meter()
    meter.start()
    time.sleep(0.02)
    with meter.paused():
        time.sleep(0.3)
    time.sleep(0.02)
    meter.stop()
    assert 0.04 <= meter.seconds < 0.3


@linux
def test_peak_is_of_the_work_alone():
    use(300)
    meter = Meter()
    meter.start()
    use(100)
    with meter.paused():
        use(200)
    use(50)
    meter.stop()
    assert 90 < meter.peak_megabytes < 150


def test_limit_ends_the_process_and_does_not_count_pauses():
    program = """
import time
from pickmix.experiments.meter import Meter
meter = Meter(0.5)
meter.start()
with meter.paused():
    time.sleep(0.8)
print("after the pause", flush=True)
time.sleep(20)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "after the pause\n"
    assert done.returncode == -14  # SIGALRM

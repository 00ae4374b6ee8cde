"""What the pieces of LLVM in `numba_kernels/multiply.py` are worth: registers against plain loops.

Processor seconds of six passes of a default fit of 300 full covariances to rows of 8 columns, one
thread, the least of five. Each kind runs in a process with a folder of compiled kernels.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from pickmix_experiments.evidence import Line, Question

_CODE = """
import time, warnings
import numpy as np
from pickmix import GaussianMixture
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
rows = rng.normal(size=(300, 8))[rng.integers(0, 300, {n_rows})]
rows += 0.1 * rng.normal(size=rows.shape)
def seconds(max_iter):
    mixture = GaussianMixture(300, max_iter=max_iter, tol=0.0, n_jobs=1, random_state=0)
    started = time.process_time()
    mixture.fit(rows)
    return time.process_time() - started
seconds(1)
print(min(seconds(8) for _ in range(5)) - min(seconds(2) for _ in range(5)))
"""


def cells(quick: bool) -> Iterator[Line]:
    # Both kinds are compiled anew, which takes most of a minute.
    yield from () if quick else ({"n_rows": 60_000},)


def measure(n_rows: int) -> Iterator[Line]:
    for method, plain in (("in registers", ""), ("plain loops", "1")):
        with tempfile.TemporaryDirectory() as folder:
            settings = {"PICKMIX_PLAIN_PRODUCTS": plain, "NUMBA_CACHE_DIR": folder}
            command = [sys.executable, "-c", _CODE.format(n_rows=n_rows)]
            printed = subprocess.check_output(command, env=os.environ | settings, text=True)
        yield {"method": method, "cpu_seconds": float(printed)}


QUESTION = Question(cells, measure, "method", "cpu_seconds")

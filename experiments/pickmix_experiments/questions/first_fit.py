"""The first fit on a machine: seconds with an empty folder of compiled kernels.

Each row is a process of its own, in order: what one compiles, the next ones find. Import and
making the rows do not count.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from pickmix_experiments.evidence import Line, Question

_CODE = """
import sys, time
import numpy as np
from pickmix import FamilyMixture, GaussianMixture
from pickmix.data.rotated import generate
from sklearn.datasets import load_iris
kind, K, n_rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng, mixture = np.random.default_rng(0), FamilyMixture("poisson", K, random_state=0)
if kind == "poisson":
    X = rng.poisson(np.exp(rng.normal(1.0, 1.0, (K, 8)))[rng.integers(K, size=n_rows)])
else:
    X = generate(300, 8, 0.09, random_state=0).sample(n_rows, random_state=1)[0]
    X, kind = (load_iris().data, "full") if kind == "iris" else (X, kind)
    mixture = GaussianMixture(K, covariance_type=kind, random_state=0)
started = time.perf_counter()
mixture.fit(X)
print(time.perf_counter() - started, mixture.compile_seconds_)
"""


def cells(quick: bool) -> Iterator[Line]:
    yield {"n_rows": 20_000 if quick else 60_000, "all_kinds": not quick}


def measure(n_rows: int, all_kinds: bool) -> Iterator[Line]:
    kinds = ("iris", "full", "full", "diag", "tied", "poisson")
    with tempfile.TemporaryDirectory() as cache:
        for number, kind in enumerate(kinds if all_kinds else kinds[:1]):
            words = [kind, "3" if kind == "iris" else "300", str(n_rows)]
            environment = os.environ | {"NUMBA_CACHE_DIR": cache}
            command = [sys.executable, "-c", _CODE, *words]
            printed = subprocess.check_output(command, env=environment, text=True)
            seconds, compiling = map(float, printed.split())
            method = f"{kind}, again" if kind in kinds[:number] else kind
            yield {"method": method, "seconds": seconds, "of_which_compiling": compiling}


QUESTION = Question(cells, measure, "method n_rows", "seconds of_which_compiling")

"""The first fit on a machine: seconds with an empty cache of compiled kernels.

Each line is a process of its own. iris needs no kernels; (D, K, N) = (8, 300, 60000) compiles them;
after that other covariances and families find them there. Import is not counted, nor is making the
rows. Writes first_fit.csv.

    python benchmarks/first_fit.py
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from reporting import write_lines

IRIS = """
import time
from sklearn.datasets import load_iris
from pickmix import GaussianMixture
X = load_iris().data
started = time.perf_counter()
GaussianMixture(3, random_state=0).fit(X)
print(time.perf_counter() - started, 0.0)
"""
LARGE = """
import time
from pickmix import GaussianMixture
from pickmix.data.rotated import generate
X, _ = generate(300, 8, 0.09, random_state=0).sample(60_000, random_state=1)
started = time.perf_counter()
mixture = GaussianMixture(300, covariance_type="{}", random_state=0).fit(X)
print(time.perf_counter() - started, mixture.compile_seconds_)
"""
COUNTS = """
import time
import numpy as np
from pickmix import FamilyMixture
rng = np.random.default_rng(0)
X = rng.poisson(np.exp(rng.normal(1.0, 1.0, (300, 8)))[rng.integers(300, size=60_000)])
started = time.perf_counter()
mixture = FamilyMixture("poisson", 300, random_state=0).fit(X)
print(time.perf_counter() - started, mixture.compile_seconds_)
"""


def run(code: str, cache: str) -> tuple[float, float]:
    """Seconds of a fit in a new process, and those that compiling or loading took of them."""
    environment = os.environ | {"NUMBA_CACHE_DIR": cache}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    seconds, compiling = done.stdout.split()
    return float(seconds), float(compiling)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as cache:
        for name, code in (
            ("iris, K = 3", IRIS),
            ("(8, 300, 60k), full, nothing compiled yet", LARGE.format("full")),
            ("(8, 300, 60k), full, again", LARGE.format("full")),
            ("(8, 300, 60k), diag", LARGE.format("diag")),
            ("(8, 300, 60k), tied", LARGE.format("tied")),
            ("(8, 300, 60k), poisson", COUNTS),
        ):
            seconds, compiling = run(code, cache)
            lines.append({"fit": name, "seconds": seconds, "of_which_compiling": compiling})
            print(f"{name}: {seconds:.2f} s, of which compiling {compiling:.2f} s", flush=True)
    write_lines(arguments.out, "first_fit.csv", lines)


if __name__ == "__main__":
    main()

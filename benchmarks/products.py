"""What the pieces of LLVM in `numba_kernels/multiply.py` are worth on a default fit.

Fits 300 full covariances to rows of 8 columns, with the products in registers and as plain loops,
in processes of their own, and prints processor seconds (one thread; the least of five; compilation
and start apart). Kernels of both kinds are kept in folders of their own under --cache.

Two cores shared with other work, 60,000 rows: 0.175 s in registers, 0.727 s in plain loops, 4.2
times as long; a whole fit of 20,000 rows with its start 0.30 and 0.76 s. Lanes of rows with gaps
(`numba_kernels/partial.py`), once pieces of LLVM too, are plain: fits took 0.8 to 1.2 times as
long after that (10, 30 and 50 % gaps, noise, 30 columns; the less of two runs each).

    python benchmarks/products.py [--rows 60000] [--cache /tmp/products]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import warnings

import numpy as np


def measure(n_rows: int) -> float:
    """Processor seconds of six passes of a fit: those of eight less those of two."""
    from pickmix import GaussianMixture
    from pickmix.estimators import compilation

    warnings.simplefilter("ignore")
    compilation.compile_kinds(["partition"])
    rng = np.random.default_rng(0)
    group = rng.integers(0, 300, n_rows)
    rows = rng.normal(size=(300, 8))[group] + 0.1 * rng.normal(size=(n_rows, 8))

    def seconds(max_iter: int) -> float:
        mixture = GaussianMixture(300, max_iter=max_iter, tol=0.0, n_jobs=1, random_state=0)
        started = time.process_time()
        mixture.fit(rows)
        return time.process_time() - started

    return min(seconds(8) for _ in range(5)) - min(seconds(2) for _ in range(5))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--cache", default="/tmp/products")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(f"{measure(arguments.rows):.3f}")
        return
    for name, plain in {"in registers": "", "plain loops": "1"}.items():
        folder = os.path.join(arguments.cache, name.replace(" ", "-"))
        environment = {"PICKMIX_PLAIN_PRODUCTS": plain, "NUMBA_CACHE_DIR": folder}
        result = subprocess.run(
            [sys.executable, __file__, "--measure", "--rows", str(arguments.rows)],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=True,
        )
        print(f"{name:>14} {result.stdout.strip()} s for six passes", flush=True)


if __name__ == "__main__":
    main()

"""Peak memory of a fit above the data itself: N = 1,000,000, D = 10, K = 1,000, float32.

python benchmarks/memory.py --out benchmarks/results
"""

from __future__ import annotations

import argparse
import csv
import resource
import time
from pathlib import Path

import numpy as np

from pickmix import GaussianMixture


def peak_bytes() -> int:
    """Largest resident size of this process so far (Linux counts kilobytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=10)
    parser.add_argument("--components", type=int, default=1000)
    parser.add_argument("--width", type=float, default=0.2, help="0.2 overlaps, 0.05 separates")
    parser.add_argument("--passes", type=int, default=100, help="at most; the fit's own default")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    n_rows, n_features = arguments.rows, arguments.features
    rng = np.random.default_rng(0)
    means = rng.random((arguments.components, n_features), dtype=np.float32)
    X = np.empty((n_rows, n_features), dtype=np.float32)
    for block in range(0, n_rows, 10_000):
        part = X[block : block + 10_000]
        labels = rng.integers(0, arguments.components, part.shape[0])
        noise = rng.standard_normal(part.shape, dtype=np.float32)
        part[:] = means[labels] + np.float32(arguments.width) * noise
    before = peak_bytes()
    start = time.perf_counter()
    mixture = GaussianMixture(arguments.components, max_iter=arguments.passes, random_state=0).fit(
        X
    )
    seconds = time.perf_counter() - start
    above = peak_bytes() - before
    print(
        f"N = {n_rows}, D = {n_features}, K = {arguments.components}: "
        f"data {X.nbytes / 1e6:.0f} MB, "
        f"peak above it {above / 1e6:.0f} MB, {seconds:.1f} s for {mixture.n_iter_} passes with "
        f"the start and compilation, proposal {mixture.proposal_}, {mixture.outcome_}, "
        f"log-likelihood {mixture.lower_bound_:.3f}"
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    with open(arguments.out / "memory.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["rows", "features", "components", "data_bytes", "peak_bytes_above_data"])
        writer.writerow([n_rows, n_features, arguments.components, X.nbytes, above])


if __name__ == "__main__":
    main()

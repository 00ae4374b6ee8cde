"""MHSAEM-U's steps in the time of one scikit-learn EM iteration, at the paper's setting.

(D, K, N, omega, B, M) = (10, 100, 10k, 0.1, 200, 2). How all algorithms fare there is
`pickmix reproduce figure-2`.

    python benchmarks/paper_speed.py --out benchmarks/results
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
import warnings
from pathlib import Path

from sklearn.mixture import GaussianMixture as RivalMixture
from threadpoolctl import threadpool_limits

from pickmix import GaussianMixture
from pickmix.data.mixsim import generate

D, K, N, OMEGA, B, M = 10, 100, 10_000, 0.1, 200, 2


def time_of_one_rival_iteration(X):
    """Seconds per EM iteration of scikit-learn, by the difference of a long and a short run."""

    def run(n_iterations):
        rival = RivalMixture(
            K, max_iter=n_iterations, tol=0.0, init_params="random_from_data", random_state=0
        )
        start = time.perf_counter()
        rival.fit(X)
        return time.perf_counter() - start

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (run(11) - run(1)) / 10


def time_of_one_step(X, n_steps=2000):
    """Seconds of work per step after warm-up."""
    mixture = GaussianMixture(
        K,
        proposal="uniform",
        batch_size=B,
        n_samples=M,
        step_size="paper",
        init_params="paper",
        max_steps=n_steps,
        random_state=0,
    ).fit(X)
    half = mixture.trace_.size // 2
    trace = mixture.trace_
    return (trace["seconds"][-1] - trace["seconds"][half]) / (
        trace["step"][-1] - trace["step"][half]
    )


def compare_speed(X, repeats=5):
    """Median ratio of one scikit-learn iteration to one step, in alternation."""
    time_of_one_step(X, 500)  # compile
    rows = []
    for threads in (None, 1):
        with threadpool_limits(threads):
            ratios = []
            for _ in range(repeats):
                rival, ours = time_of_one_rival_iteration(X), time_of_one_step(X)
                ratios.append(rival / ours)
        rows.append(("default" if threads is None else "1", rival, ours, statistics.median(ratios)))
        print(
            f"BLAS threads {rows[-1][0]:8s} scikit-learn iteration {rival * 1e3:6.1f} ms, step "
            f"{ours * 1e6:6.1f} us: {rows[-1][3]:.0f} steps per iteration (median of {repeats})",
            flush=True,
        )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    X, _ = generate(K, D, OMEGA, random_state=0).sample(N, random_state=0)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with open(arguments.out / "paper_speed.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["blas_threads", "sklearn_iteration_seconds", "step_seconds", "ratio"])
        writer.writerows(compare_speed(X))


if __name__ == "__main__":
    main()

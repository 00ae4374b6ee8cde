"""Default settings against scikit-learn's default GaussianMixture, on MixSim data.

Wall time includes each library's own start; compilation is outside and reported beside it.

    python benchmarks/against_sklearn.py --out benchmarks/results
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from pathlib import Path

from sklearn.mixture import GaussianMixture as RivalMixture

from pickmix import GaussianMixture
from pickmix.data.mixsim import generate

# (D, K, N, omega)
SETTINGS = [(10, 100, 10_000, 0.1), (5, 300, 30_000, 0.05), (8, 500, 100_000, 0.1)]
CONTENDERS = {
    "pickmix, default": lambda k, seed: GaussianMixture(k, random_state=seed),
    "pickmix, tsaem M=3": lambda k, seed: GaussianMixture(
        k, algorithm="tsaem", n_samples=3, random_state=seed
    ),
    "pickmix, em": lambda k, seed: GaussianMixture(k, algorithm="em", random_state=seed),
    "scikit-learn": lambda k, seed: RivalMixture(k, random_state=seed),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for n_features, n_components, n_rows, overlap in SETTINGS:
        truth = generate(n_components, n_features, overlap, random_state=arguments.seed)
        X, _ = truth.sample(n_rows, random_state=arguments.seed)
        held_out, _ = truth.sample(20_000, random_state=arguments.seed + 1)
        name = f"D={n_features} K={n_components} N={n_rows} omega={overlap}"
        print(f"{name}: true mixture {truth.score_samples(held_out).mean():.4f} held out")
        for label, make in CONTENDERS.items():
            model = make(n_components, arguments.seed)
            start = time.perf_counter()
            model.fit(X)
            compiling = getattr(model, "compile_seconds_", 0.0)
            seconds = time.perf_counter() - start - compiling
            record = (name, label, seconds, compiling, model.score(X), model.score(held_out))
            rows.append(record)
            print(
                f"  {label:20s} {seconds:7.2f} s (compiling {compiling:.1f} s)  log-likelihood per "
                f"row {record[4]:.4f}, held out {record[5]:.4f}",
                flush=True,
            )
    arguments.out.mkdir(parents=True, exist_ok=True)
    with open(arguments.out / "against_sklearn.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["data", "model", "seconds", "compile_seconds", "train", "held_out"])
        writer.writerows(rows)


if __name__ == "__main__":
    main()

"""Why MHSAEM-U ends below EM in figure-2: more steps, or no lean on the pooled covariance?

A component with fewer than D + 1 effective rows leans on the covariance that components have in
common. This fits MHSAEM-U at the paper's setting with five times the steps, and without that lean.

    python benchmarks/uniform_gap.py [--seeds 2] [--out benchmarks/results]
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from unittest import mock

from pickmix.closed_form.mixture import GaussianMixtureState
from pickmix.estimators import gaussian_mixture
from pickmix.experiments.reproduction.fits.perform import perform
from pickmix.experiments.reproduction.runs import MHSAEM_U, GaussianRun


class WithoutLean(GaussianMixtureState):
    """Every covariance is that of its own rows, however few they are."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **{**settings, "least_count": 0.0})


VARIANTS = {
    "five times the steps": ({"T": 100_000}, GaussianMixtureState),
    "no lean": ({}, WithoutLean),
    "no lean, no annealing": ({"annealing": False}, WithoutLean),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    with open(arguments.out / "uniform_gap.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["variant", "seed", "log_likelihood", "true_log_likelihood"])
        for seed in range(arguments.seeds):
            for name, (settings, state) in VARIANTS.items():
                run = GaussianRun(**{"algorithm": MHSAEM_U, "T": 20_000, "seed": seed, **settings})
                with mock.patch.object(gaussian_mixture, "GaussianMixtureState", state):
                    history = perform(run)
                end = history.series["log_likelihood"][-1]
                writer.writerow([name, seed, end, history.facts["true_log_likelihood"]])
                print(f"{name}, seed {seed}: {end:.3f}", flush=True)


if __name__ == "__main__":
    main()

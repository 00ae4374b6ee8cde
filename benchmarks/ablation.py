"""What each part of a partition fit brings: starts, relocation, step sizes, batches, blocks.

Held-out log-likelihood and seconds, start included, of variants of the default fit, medians over
seeds. Writes ablation.csv and ablation.md.

    python benchmarks/ablation.py
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from pathlib import Path

import numpy as np

from pickmix import GaussianMixture, RandomPartition
from pickmix.data import rotated

D, K, N = 8, 300, 60_000
VARIANTS = {
    "default": {},
    "no relocation": {"proposal": RandomPartition(relocate=False)},
    "rows as start": {
        "init_params": "random_from_data",
        "proposal": RandomPartition(relocate=False),
    },
    "rows as start, relocation": {
        "init_params": "random_from_data",
        "proposal": RandomPartition(relocate=True),
    },
    "G = 8": {"proposal": RandomPartition(block_size=8)},
    "G = 16": {"proposal": RandomPartition(block_size=16)},
    "G = 64": {"proposal": RandomPartition(block_size=64)},
    "M = 2 partitions per visit": {"n_samples": 2},
    "gamma = 1 throughout": {"step_size": 1.0},
    "gamma = 0.3 throughout": {"step_size": 0.3},
    "gamma = t^-0.6": {"step_size": lambda t: t**-0.6},
    "batches of 10 rows per component": {"batch_size": 10 * K},
    "batches of 40 rows per component": {"batch_size": 40 * K},
}


def main() -> None:
    """Fit every variant to separated and to overlapping components."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = []
    for setting, width in (("separated", 0.09), ("overlapping", 0.2)):
        truth = rotated.generate(K, D, width, random_state=0)
        X, _ = truth.sample(N, random_state=0)
        held_out, _ = truth.sample(20_000, random_state=1)
        for name, settings in VARIANTS.items():
            for seed in range(arguments.seeds):
                mixture = GaussianMixture(K, random_state=seed, **settings)
                started = time.perf_counter()
                mixture.fit(X)
                seconds = time.perf_counter() - started - mixture.compile_seconds_
                evaluations = mixture.n_component_evaluations_ + mixture.n_start_evaluations_
                lines.append(
                    {
                        "setting": setting,
                        "variant": name,
                        "seed": seed,
                        "held_out": round(mixture.score(held_out), 4),
                        "seconds": round(seconds, 2),
                        "evaluations_per_row": round(evaluations / N),
                    }
                )
                print(lines[-1], flush=True)
    with (arguments.out / "ablation.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)
    text = "| variant | separated | overlapping |\n|---|---|---|\n"
    for name in VARIANTS:
        cells = []
        for setting in ("separated", "overlapping"):
            own = [line for line in lines if (line["setting"], line["variant"]) == (setting, name)]
            score, seconds, evaluations = (
                np.median([line[key] for line in own])
                for key in ("held_out", "seconds", "evaluations_per_row")
            )
            cells.append(f"{score:.3f} ({seconds:.1f} s, {evaluations:.0f})")
        text += f"| {name} | {cells[0]} | {cells[1]} |\n"
    (arguments.out / "ablation.md").write_text(text)


if __name__ == "__main__":
    main()

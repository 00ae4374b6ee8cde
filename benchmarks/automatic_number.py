"""What `n_components="auto"` chooses, beside the best of a grid of fits.

The paper's UCI sets, the tables of PICKMIX_DATA/tables, BIRCH1 and generated mixtures with 5, 50
and 300 components (overlap 0.05, 8 columns, 200 rows per component and 2,000 at least). 80 % of the
rows to fit, at most --rows of them. The grid is K = 1, 2, 4, ..., 256, and its best is chosen on
the held-out rows, which "auto" has not seen. "ratio" is the time of "auto" over that of a fit with
the number that it chose. Processor seconds, one thread.

    python benchmarks/automatic_number.py --rows 3000 --out automatic_number.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from small_tables import split, uci_tables
from threadpoolctl import threadpool_limits

from pickmix import GaussianMixture
from pickmix.data.mixsim import generate


def tables() -> Iterator[tuple[str, np.ndarray]]:
    yield from uci_tables()
    folder = Path(os.environ.get("PICKMIX_DATA", ""))
    for path in sorted((folder / "tables").glob("*.npz")):
        yield path.stem, np.load(path)["X"].astype(float)
    if (folder / "birch/birch1.txt").is_file():
        yield "birch1", np.loadtxt(folder / "birch/birch1.txt")
    for K in (5, 50, 300):
        truth = generate(K, 8, max_overlap=0.05, random_state=1)
        yield f"generated-{K}", truth.sample(max(2500, 250 * K), random_state=0)[0]


def timed(n_components: int | str, train: np.ndarray, seed: int) -> tuple[GaussianMixture, float]:
    started = time.process_time()
    mixture = GaussianMixture(n_components, random_state=seed, n_jobs=1).fit(train)
    return mixture, time.process_time() - started


def measure(rows: np.ndarray, seed: int, most: int) -> dict[str, float]:
    train, held_out = split(rows, seed)
    train, held_out = train[:most], held_out[:most]
    chosen, seconds = timed("auto", train, seed)
    fixed, fixed_seconds = timed(chosen.n_components_, train, seed)
    numbers = [K for K in 2 ** np.arange(9) if 0.5 * len(train) >= K]
    grid = {int(K): timed(int(K), train, seed)[0].score(held_out) for K in numbers}
    best = max(grid, key=lambda K: grid[K])
    return {
        "n_rows": len(train),
        "n_columns": train.shape[1],
        "K": chosen.n_components_,
        "held_out": chosen.score(held_out),
        "fixed": fixed.score(held_out),
        "best_K": best,
        "best": grid[best],
        "seconds": seconds,
        "ratio": seconds / fixed_seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=3000, help="rows to fit, at most")
    parser.add_argument("--seeds", type=int, default=1, help="splits 0, 1, ..., so many")
    parser.add_argument("--only", nargs="+", help="names of tables")
    parser.add_argument("--out", type=Path, default=Path("automatic_number.jsonl"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    threadpool_limits(1)
    timed("auto", np.random.default_rng(0).normal(size=(100_000, 4)), 0)  # Compiles kernels.
    lines = []
    with arguments.out.open("w", encoding="utf-8") as file:
        for name, rows in tables():
            if arguments.only and name not in arguments.only:
                continue
            # A generated mixture is drawn with its rows per component.
            most = len(rows) if name.startswith("generated") else arguments.rows
            for seed in range(arguments.seeds):
                line = {"table": name, "seed": seed, **measure(rows, seed, most)}
                line["load_average"] = os.getloadavg()[0]
                lines.append(line)
                print(json.dumps(line), file=file, flush=True)
    frame = pd.DataFrame(lines).drop(columns=["seed", "load_average"])
    frame = frame.groupby("table", sort=False).mean()
    frame["difference"] = frame["held_out"] - frame["best"]
    print(frame.to_string(float_format=lambda x: f"{x:.2f}"))
    print(f"mean difference {frame['difference'].mean():.3f}, ratio {frame['ratio'].mean():.2f}")


if __name__ == "__main__":
    main()

"""A Gaussian mixture with a million components: K = 10^4, 10^5, 10^6 on the same ten million rows.

The rows come from a hierarchical mixture: 1,000 groups uniform in the unit cube of D = 8, in each
1,000 modes at normal distances of 0.05, and rows at normal distances of 0.005 from the modes: a
million modes of equal weight, ten rows each. Of 1,000 points of a normal distribution in 8
dimensions the nearest neighbour of each is about 1.5 standard deviations away, so neighbouring
modes are some 15 widths apart, and ten rows are enough to tell one from another.

Every fit has all defaults but covariance_type="diag". The held-out log-likelihood is exact, over
all components, on rows that no fit sees; scoring stops the library's clock. Writes million.csv and
million.png.

    python benchmarks/million.py

With --file the rows are written to a file, which the fit reads in chunks; ten million components on
forty million rows, four from each of ten million modes:

    python benchmarks/million.py --groups 10000 --rows 40000000 --components 10000000 1000000 \
        --file rows.npy
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

from pickmix import GaussianMixture

D, GROUPS, MODES = 8, 1000, 1000
GROUP_WIDTH, MODE_WIDTH = 0.05, 0.005
RESULTS = Path(__file__).parent / "results"


class Hierarchy:
    """Groups of modes of rows."""

    def __init__(self, n_groups: int, n_modes: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        groups = self.rng.random((n_groups, 1, D))
        offsets = GROUP_WIDTH * self.rng.standard_normal((n_groups, n_modes, D))
        self.modes = (groups + offsets).reshape(-1, D).astype(np.float32)

    def sample(self, n_rows: int) -> np.ndarray:
        """Rows (n_rows, D) of float32."""
        chosen = self.rng.integers(self.modes.shape[0], size=n_rows)
        noise = self.rng.standard_normal((n_rows, D), dtype=np.float32)
        return self.modes[chosen] + np.float32(MODE_WIDTH) * noise

    def write(self, n_rows: int, path: Path) -> np.memmap:
        """Rows (n_rows, D) in a file, drawn a million at a time."""
        rows = np.lib.format.open_memmap(path, "w+", np.float32, (n_rows, D))
        for start in range(0, n_rows, 10**6):
            rows[start : start + 10**6] = self.sample(min(10**6, n_rows - start))
        rows.flush()
        return np.load(path, mmap_mode="r")

    def truth(self) -> GaussianMixture:
        """The mixture that the rows come from, to score with."""
        mixture = GaussianMixture(self.modes.shape[0], covariance_type="diag")
        mixture.means_ = self.modes.astype(np.float64)
        mixture.weights_ = np.full(self.modes.shape[0], 1.0 / self.modes.shape[0])
        mixture.covariances_ = np.full(self.modes.shape, MODE_WIDTH**2)
        mixture.n_features_in_ = D
        return mixture


def fit(rows: np.ndarray, held_out: np.ndarray, n_components: int, out: Path) -> None:
    """Fit K components and append one line per evaluation to million.csv."""
    scoring = 0.0
    started = time.perf_counter()

    def record(info: Any) -> None:
        nonlocal scoring
        wall = time.perf_counter() - started - scoring
        score = info.estimator().score(held_out)
        scoring = time.perf_counter() - started - wall
        line = {
            "n_components": n_components,
            "n_rows": rows.shape[0],
            "step": info.step,
            "epoch": round(info.epoch, 3),
            "wall_seconds": round(wall, 1),
            "work_seconds": round(info.seconds, 1),
            "evaluations_per_row": round(info.evaluations / rows.shape[0], 1),
            "held_out": round(score, 4),
            "live_components": info.live_components,
            "peak_gigabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
            "threads": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
        }
        append(out / "million.csv", line)
        print(line, flush=True)

    mixture = GaussianMixture(
        n_components, covariance_type="diag", random_state=0, callbacks=record
    )
    mixture.fit(rows)
    wall = time.perf_counter() - started - scoring
    print(
        f"K = {n_components:,}: {wall:.0f} s in all without scoring, of these start "
        f"{mixture.start_seconds_:.0f} s and compilation {mixture.compile_seconds_:.0f} s; "
        f"{mixture.outcome_} after {mixture.n_steps_} steps",
        flush=True,
    )


def append(path: Path, line: dict) -> None:
    """Append a line to a CSV file, with a header if it is new."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, line)
        if new:
            writer.writeheader()
        writer.writerow(line)


def draw(out: Path) -> None:
    """Held-out log-likelihood against time, from million.csv."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with (out / "million.csv").open() as file:
        lines = list(csv.DictReader(file))
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    sizes = sorted({int(line["n_components"]) for line in lines})
    for size, style, colour in zip(sizes, ("o:", "s--", "^-"), ("C1", "C2", "C0"), strict=False):
        own = [line for line in lines if int(line["n_components"]) == size]
        seconds = [float(line["wall_seconds"]) for line in own]
        axes.plot(
            seconds,
            [float(line["held_out"]) for line in own],
            style,
            color=colour,
            label=f"K = {size:,}",
        )
    axes.set_xlabel("seconds, seeding included")
    axes.set_ylabel("held-out log-likelihood per row (nats)")
    axes.set_title(f"{int(lines[0]['n_rows']):,} rows, D = {D}, diagonal covariances, 2 cores")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(out / "million.png", dpi=150)


def main() -> None:
    """Run the fits that were asked for, and draw all that were run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--components", type=int, nargs="*", default=[10**6, 10**5, 10**4])
    parser.add_argument("--rows", type=int, default=10**7)
    parser.add_argument("--groups", type=int, default=GROUPS)
    parser.add_argument("--held-out", type=int, default=1000)
    parser.add_argument("--file", type=Path, help="write the rows to this file and fit from it")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    hierarchy = Hierarchy(arguments.groups, MODES, seed=0)
    held_out = hierarchy.sample(arguments.held_out)
    if arguments.file is None:
        rows = hierarchy.sample(arguments.rows)
    else:
        rows = hierarchy.write(arguments.rows, arguments.file)
    for n_components in arguments.components:
        fit(rows, held_out, n_components, arguments.out)
    print(f"true mixture: {hierarchy.truth().score(held_out):.4f} held out", flush=True)
    draw(arguments.out)


if __name__ == "__main__":
    main()

"""Default fits of another state of the sources and of this one, in turns.

Six settings of `pickmix bench gaussian`, three seeds: held-out log-likelihood per row, seconds with
the start (compilation aside), evaluations per row. Each fit is a process of its own, and fits of
both states alternate, so that a busy machine is busy for both. scikit-learn's `GaussianMixture`
takes its turn on the settings that --rival names. A setting NAME@K is a real table: NAME.npz among
the tables of the folder that PICKMIX_DATA names, its columns standardised, 80 % of at most 30,000
rows to fit and the others held out, K components. Writes before_after.csv, or what --name says.

    git worktree add /tmp/before COMMIT
    python benchmarks/before_after.py /tmp/before/src
    python benchmarks/before_after.py /tmp/before/src --settings skin@50 --name real_tables
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from reporting import parser_for, write_lines

SETTINGS = (
    "mixsim",
    "k300-overlapping",
    "k300-overlapping-power",
    "k300-separated",
    "k300-separated-power",
    "k1000-overlapping",
)
FIT = """
import json, os, sys, time, warnings
import numpy as np
from pickmix import GaussianMixture
warnings.simplefilter("ignore")
name, seed, rival = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "scikit-learn"
table, _, K = name.partition("@")
if K:
    rows = np.load(f"{os.environ['PICKMIX_DATA']}/tables/{table}.npz")["X"].astype(float)
    rows = rows[np.random.default_rng(0).permutation(len(rows))][:30_000]
    n = int(0.8 * len(rows))
    scale = rows[:n].std(axis=0)
    rows = (rows - rows[:n].mean(axis=0)) / np.where(scale > 0.0, scale, 1.0)
    train, held_out, K = rows[:n], rows[n:], int(K)
else:
    # The module has another name in states before it was a registry.
    from importlib import import_module, util
    new = util.find_spec("pickmix_experiments.datasets")
    module = import_module(f"pickmix_experiments.{'datasets' if new else 'bench_data'}")
    setting = module.SETTINGS[name]
    data, K = setting.make(seed), setting.n_components
    train, held_out = data.train, data.held_out
if rival:
    from sklearn.mixture import GaussianMixture
mixture = GaussianMixture(K, random_state=seed)
started = time.perf_counter()
mixture.fit(train)
seconds = time.perf_counter() - started - getattr(mixture, "compile_seconds_", 0.0)
everything = mixture.n_iter_ * len(train) * K
evaluations = getattr(mixture, "n_component_evaluations_", everything)
print(json.dumps({
    "held_out": float(mixture.score(held_out)),
    "seconds": seconds,
    "evaluations_per_row": evaluations / len(train),
}))
"""


def fit(source: Path, cache: Path, name: str, seed: int, who: str) -> dict[str, float]:
    """One fit in a new process with the package of a folder."""
    paths = os.pathsep.join([str(source), str(source.parent / "experiments")])
    environment = os.environ | {"PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(cache)}
    if who == "scikit-learn":
        # The faster form on matrices so small.
        environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FIT, name, str(seed), who],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout))


def main() -> None:
    """Measure, print and write."""
    parser = parser_for(__doc__, seeds=3)
    parser.add_argument("before", type=Path, help="folder that holds the package as it was")
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS))
    parser.add_argument("--rival", nargs="*", default=["k300-separated"])
    parser.add_argument("--name", default="before_after", help="of the file to write")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.settings, arguments.seeds, arguments.rival = ["small"], 1, []
    sources = {"before": arguments.before, "after": Path(__file__).parents[1] / "src"}
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.settings:
            states = [*sources, *(["scikit-learn"] if name in arguments.rival else [])]
            for seed in range(arguments.seeds):
                for who in states:
                    source = sources.get(who, sources["after"])
                    cache = Path(folder) / ("before" if who == "before" else "after")
                    found = fit(source, cache, name, seed, who)
                    rounded = {key: round(value, 4) for key, value in found.items()}
                    lines.append({"setting": name, "seed": seed, "who": who, **rounded})
                    print(lines[-1], flush=True)
            for who in states:
                own = [line for line in lines if (line["setting"], line["who"]) == (name, who)]
                seconds = statistics.median(float(line["seconds"]) for line in own)
                held_out = statistics.mean(float(line["held_out"]) for line in own)
                print(f"{name}, {who}: {held_out:.4f} in {seconds:.2f} s", flush=True)
    if not arguments.quick:
        write_lines(arguments.out, f"{arguments.name}.csv", lines)


if __name__ == "__main__":
    main()

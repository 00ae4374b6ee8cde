"""Flows against Gaussians at equal seconds, on tables that are not small.

Tables: all normal rows of magic-telescope and pendigits, shuttle, and generated rows in curved
clusters (200,000 rows, D = 16, 40 clusters; each is a Gaussian bent along a parabola in random
directions). A tenth of the rows is watched, a fifth is for the test. `FlowMixture()` is fitted as
it comes, and so is `GaussianMixture("auto")`. Gaussian mixtures then get the seconds that the flows
took (without compilation): K = 1, 2, 4, ... as long as there is time left, and the K that explains
the watched rows best is tested.

    OMP_NUM_THREADS=1 XLA_FLAGS=--xla_cpu_multi_thread_eigen=false PICKMIX_DATA=... \\
        python benchmarks/deep_tables.py --clock cpu [--quick] [--seeds 1] [--only shuttle]
"""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pandas as pd
from reporting import begin, data_folder, now, parser_for, print_table, write_lines

from pickmix import FlowMixture, GaussianMixture
from pickmix.data import uci
from pickmix.fitting import loop
from pickmix.gradient import engine

TABLES = ("magic-telescope", "pendigits", "shuttle", "curved clusters")
N_CLUSTERS, N_FEATURES = 40, 16


def curved_clusters(n_rows: int, seed: int) -> np.ndarray:
    """Rows (N, D) in clusters that are bent."""
    rng = np.random.default_rng([seed, 15])
    rows = np.empty((n_rows, N_FEATURES))
    labels = rng.integers(N_CLUSTERS, size=n_rows)
    for cluster in range(N_CLUSTERS):
        axes = np.linalg.qr(rng.normal(size=(N_FEATURES, N_FEATURES)))[0]
        widths = rng.uniform(0.05, 0.5, N_FEATURES)
        widths[0] = rng.uniform(1.0, 2.0)
        drawn = rng.normal(size=(np.count_nonzero(labels == cluster), N_FEATURES)) * widths
        # The first coordinate bends some of the others.
        bends = rng.normal(size=4) * 0.7
        drawn[:, 1:5] += bends * (drawn[:, :1] ** 2 - widths[0] ** 2)
        centre = rng.normal(size=N_FEATURES) * 2.0
        rows[labels == cluster] = drawn @ axes.T + centre
    return rows


def table(name: str, quick: bool, seed: int) -> np.ndarray:
    """The rows of a table."""
    if name == "curved clusters":
        return curved_clusters(4_000 if quick else 200_000, seed)
    if name == "shuttle":
        with np.load(data_folder() / "tables" / "shuttle.npz") as arrays:
            return np.asarray(arrays["X"], np.float64)
    return uci.read(name)[0]


def measure(name: str, X: np.ndarray, seed: int) -> list[dict[str, Any]]:
    """A line for the flows and two for Gaussians."""
    order = np.random.default_rng([seed, 16]).permutation(X.shape[0])
    n_test, n_watched = X.shape[0] // 5, X.shape[0] // 10
    test, watched = X[order[:n_test]], X[order[n_test : n_test + n_watched]]
    train = X[order[n_test + n_watched :]]
    started = now()
    flows = FlowMixture(random_state=seed).fit(train, validation_data=watched)
    seconds = now() - started - flows.compile_seconds_
    lines = [
        {
            "table": name,
            "rows": X.shape[0],
            "D": X.shape[1],
            "seed": seed,
            "who": "flows",
            "K": len(flows.weights_),
            "test": float(flows.score(test)),
            "seconds": seconds,
        }
    ]
    started = now()
    chosen = GaussianMixture("auto", random_state=seed).fit(train)
    found = {"who": "Gaussians, auto", "K": chosen.n_components_, "test": float(chosen.score(test))}
    lines.append(lines[0] | found | {"seconds": now() - started})
    best, n_components, started = -np.inf, 1, now()
    line: dict[str, Any] = {}
    while now() - started < seconds and 2 * n_components <= train.shape[0]:
        mixture = GaussianMixture(n_components, random_state=seed).fit(train)
        value = float(mixture.score(watched))
        if value > best:
            best = value
            found = {"who": "Gaussians", "K": n_components, "test": float(mixture.score(test))}
            line = lines[0] | found
        n_components *= 2
    lines.append(line | {"seconds": now() - started})
    return lines


def main() -> None:
    """Measure, print and write."""
    parser = parser_for(__doc__, seeds=1)
    parser.add_argument("--only", nargs="*", default=TABLES, choices=TABLES)
    arguments = begin(parser)
    # Seconds of compilation by the clock that was chosen.
    for module in (loop, engine):
        vars(module)["time"] = types.SimpleNamespace(perf_counter=now)
    path = arguments.out / "deep_tables.csv"
    lines = pd.read_csv(path).to_dict("records") if path.exists() else []
    for seed in range(1 if arguments.quick else arguments.seeds):
        for name in TABLES[-1:] if arguments.quick else arguments.only:
            lines = [line for line in lines if (line["table"], line["seed"]) != (name, seed)]
            lines += measure(name, table(name, arguments.quick, seed), seed)
            print(*lines[-3:], sep="\n", flush=True)
            write_lines(arguments.out, path.name, lines)
    print_table("test log-likelihood per row, nats", lines)


if __name__ == "__main__":
    main()

"""Time of one visit of one row against K, and evaluations per second against a matrix product.

A step of a partition fit (partition, sweep, update of all components) on the same rows for
K = 10^3 to 10^6, diagonal covariances, D = 8; and for K = 1,000 the rate of evaluations with their
statistics beside that of the same multiply-adds in a plain float32 matrix product of NumPy
(features (N, F) times parameters (F, G), and its transpose for the statistics), on one thread.
Writes visit_cost.csv.

    python benchmarks/visit_cost.py [--components 1000 1000000] [--rows 4000000] [--steps 4]
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from pickmix.closed_form.local_fleet import LocalFleet
from pickmix.closed_form.partition_engine import PartitionEngine
from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows, Batches
from pickmix.families.gaussian import GAUSSIANS
from pickmix.families.layout import Moments
from pickmix.selection.partitions import draw_partition
from pickmix.selection.randomness import StepRandomness, Stream
from pickmix.selection.schedules import ConstantStep
from pickmix.selection.settings import RandomPartition
from pickmix.sweep.compiled import Compiled
from pickmix.threads import Threads, resolve_n_jobs


def make_state(name: str, n_components: int, n_features: int, n_rows: int, threads: Threads):
    """A mixture, rows from it (float32), and the components that they come from."""
    rng = np.random.default_rng(0)
    means = rng.random((n_components, n_features))
    # Components are about as wide as half their distance.
    width = 0.3 * n_components ** (-1.0 / n_features)
    chain = rng.integers(n_components, size=n_rows).astype(np.int32)
    rows = means[chain] + width * rng.standard_normal((n_rows, n_features))
    source = ArrayRows(rows.astype(np.float32))
    family = GAUSSIANS[name](n_features, reg_covar=1e-9)
    weights = np.full(n_components, 1.0 / n_components)
    unit = family.pack_matrices(width**2 * np.eye(n_features)[None])
    moments = Moments(
        weights,
        np.square(weights),
        means - source.center,
        np.repeat(unit, n_components, axis=0),
        np.zeros((n_components, 0)),
    )
    prior = family.make_prior(moments, "pooled", float(n_rows))
    state = MixtureState(family, moments, Compiled(threads), prior, 1e-4 / n_components)
    return state, source, chain


def time_visits(n_components: int, n_rows: int, n_steps: int, block_size: int) -> float:
    """Least seconds per row visit of a step."""
    threads = Threads(resolve_n_jobs(None))
    state, source, chain = make_state("diag", n_components, 8, n_rows, threads)
    engine = PartitionEngine(
        state,
        source,
        LocalFleet(state.backend, source, chain, Batches(n_rows, n_rows, 0)),
        RandomPartition(block_size=block_size),
        1,
        ConstantStep(1.0),
        None,
        0,
        None,
        last_step=n_steps,
    )
    seconds = []
    for step in range(1, n_steps + 1):
        started = time.perf_counter()
        engine.step(step)
        seconds.append(time.perf_counter() - started)
    threads.close()
    return min(seconds) / n_rows


def time_kernel(name: str, n_features: int, block_size: int = 32) -> tuple[float, float]:
    """Evaluations with statistics per second on one thread: ours, and of a matrix product."""
    n_rows = 200_000
    state, source, chain = make_state(name, 1000, n_features, n_rows, Threads())
    random = StepRandomness(0, 1)
    backend, numbers = state.backend, np.arange(n_rows)
    partition = draw_partition(state.positions(), block_size, 0.0, random, backend.operations)
    ours, plain = [], []
    n_products = state.layout.n_products + n_features
    features = np.random.default_rng(0).random((n_rows, n_products), dtype=np.float32)
    parameters = np.random.default_rng(1).random((n_products, block_size), dtype=np.float32)
    key = random.key(Stream.POSTERIOR)
    for _ in range(7):
        started = time.perf_counter()
        done = backend.sweep(state.layout, state.model, source, numbers, chain, partition, key)
        ours.append((time.perf_counter() - started) / done.evaluations)
        chain = done.components
        with threadpool_limits(1):
            started = time.perf_counter()
            weights = features @ parameters
            _ = weights.T @ features
            plain.append((time.perf_counter() - started) / (n_rows * block_size))
    return 1.0 / min(ours), 1.0 / min(plain)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--components", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    time_visits(100, 10_000, 2, 32)
    lines = []
    for n_components in arguments.components:
        seconds = time_visits(n_components, arguments.rows, arguments.steps, 32)
        lines.append({"what": f"visit, diag, D = 8, K = {n_components}", "value": 1e9 * seconds})
        print(f"K = {n_components:>9,}: {1e9 * seconds:.0f} ns per row visit", flush=True)
    ratio = lines[-1]["value"] / lines[0]["value"]
    what = f"visit, K = {arguments.components[-1]} / K = {arguments.components[0]}"
    lines.append({"what": what, "value": ratio})
    print(f"ratio {ratio:.2f}", flush=True)
    for name, n_features in (("full", 8), ("full", 16), ("full", 32), ("diag", 8), ("diag", 32)):
        ours, plain = time_kernel(name, n_features)
        what = f"{name}, D = {n_features}"
        lines.append({"what": f"million evaluations per second, {what}", "value": ours / 1e6})
        lines.append({"what": f"the same in matrix products, {what}", "value": plain / 1e6})
        print(f"{what}: {ours / 1e6:.0f} M/s, matrix product {plain / 1e6:.0f} M/s", flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / "visit_cost.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)


if __name__ == "__main__":
    main()

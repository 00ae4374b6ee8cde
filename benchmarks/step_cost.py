"""Cost of one MHSAEM-U step against the number of components: K must not matter.

Same data, B, M and D; the data are drawn around the components' own means, so that chains sit
where they would after a fit. Times are medians over alternating rounds in one run.

    python benchmarks/step_cost.py --out benchmarks/results
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from pathlib import Path

import numpy as np

from pickmix.closed_form.engine import RuleEngine
from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows, Batches
from pickmix.families.gaussian import FullGaussian
from pickmix.families.layout import Moments
from pickmix.selection.proposals import UniformProposal
from pickmix.selection.rules import MetropolisHastings
from pickmix.selection.schedules import ConstantStep
from pickmix.sweep.compiled import Compiled
from pickmix.threads import Threads

D, N, B, M = 10, 200_000, 200, 2


def make_engine(n_components: int) -> RuleEngine:
    rng = np.random.default_rng(0)
    means = rng.random((n_components, D))
    labels = rng.integers(0, n_components, N)
    # Components are as wide as their distance to the next ones, whatever K.
    width = 0.3 * n_components ** (-1.0 / D)
    X = means[labels] + width * rng.normal(size=(N, D))
    source = ArrayRows(X)
    family = FullGaussian(D)
    weights = np.full(n_components, 1.0 / n_components)
    covariance = family.pack_matrices(width**2 * np.eye(D)[None])
    moments = Moments(
        weights,
        np.square(weights) / (D + 1.0),
        means - source.center,
        np.repeat(covariance, n_components, axis=0),
        np.zeros((n_components, 0)),
    )
    prior = family.make_prior(moments, "few", float(N))
    state = MixtureState(family, moments, Compiled(Threads()), prior, 1e-4 / n_components)
    rule = MetropolisHastings(UniformProposal(), M)
    rule.start(labels.astype(np.int32), n_components, state.backend.operations)
    batches = Batches(N, B, 0)
    return RuleEngine(state, source, rule, batches, ConstantStep(0.05), None, 0, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--components", type=int, nargs="+", default=[100, 1000, 10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    engines = {k: make_engine(k) for k in arguments.components}
    done = dict.fromkeys(engines, 0)
    times: dict[int, list[float]] = {k: [] for k in engines}
    for round_number in range(arguments.rounds + 2):
        for k, engine in engines.items():
            start = time.perf_counter()
            for _ in range(arguments.steps):
                done[k] += 1
                engine.step(done[k])
            if round_number >= 2:  # the first two are warm-up
                times[k].append((time.perf_counter() - start) / arguments.steps)
    base = statistics.median(times[arguments.components[0]])
    rows = []
    for k in engines:
        median = statistics.median(times[k])
        counters = engines[k].counters
        rows.append((k, median, median / base, counters.evaluations / counters.rows))
        print(
            f"K = {k:7d}: {median * 1e6:6.1f} us per step, {median / base:.2f} times K = "
            f"{arguments.components[0]}, {rows[-1][3]:.0f} evaluations per row, acceptance "
            f"{counters.acceptance_sum / counters.rows:.4f}"
        )
    arguments.out.mkdir(parents=True, exist_ok=True)
    with open(arguments.out / "step_cost.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["components", "step_seconds", "ratio", "evaluations_per_row"])
        writer.writerows(rows)


if __name__ == "__main__":
    main()

"""Rows with known noise, each its own, at K = 200: against ignoring it, and against exact EM.

Rows of 200 rotated ellipsoids in 6 dimensions, 40,000 of them, each cell with Gaussian noise of its
own standard deviation, uniform in 0.5 to 1.5 times the width of the components. Measured: the mean
log-density of 20,000 rows without noise that were not fitted, over time. The rival is extreme
deconvolution (Bovy, Hogg and Roweis 2011), exact EM in `deconvolution.py`, from k-means, on as many
threads, until its likelihood per row rises by less than 1e-4 per iteration or time is up. Clocks
stop while measuring. `to_clean` is when a fit came to the worse of the best values of pickmix and
EM less 0.01, which both have reached; `times` is that as a multiple of pickmix's. `to_seen` and
`seen_times` say the same of held-out rows with noise, which is what EM pursues. `to_pass` is when a
fit came to the end of pickmix on rows without noise, if it did. `best` is the best value of all
times; EM without a prior can get worse again.

    python benchmarks/noisy_rows.py [--seeds 3] [--max-seconds 300] [--quick]
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import deconvolution
import numpy as np
from reporting import (
    Line,
    begin,
    medians,
    now,
    parser_for,
    print_table,
    write_lines,
)
from sklearn.exceptions import ConvergenceWarning

from pickmix import GaussianMixture
from pickmix.data.rotated import generate
from pickmix_experiments.datasets import GaussianParameters
from pickmix_experiments.runner import cpu_count

N_FEATURES, WIDTH, HELD_OUT = 6, 0.1, 20_000
TOLERANCE = 0.01
# Curves are measured on so many of the held-out rows.
SOME = 5_000
# Seconds, and log-densities of rows that were not fitted: with noise, and without.
Curve = list[tuple[float, float, float]]
SEEN, CLEAN = 1, 2


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Rows to measure on: as they are, and as they are seen, with the variances of their noise."""

    clean: np.ndarray
    seen: np.ndarray
    noise: np.ndarray

    def values(self, model: deconvolution.Parameters) -> tuple[float, float]:
        """Mean log-density of some rows, with noise and without."""
        return (
            float(deconvolution.log_density(self.seen[:SOME], self.noise[:SOME], model).mean()),
            float(GaussianParameters(*model).score_samples(self.clean[:SOME]).mean()),
        )

    def end(self, model: deconvolution.Parameters) -> float:
        """Mean log-density of all rows without noise."""
        return float(GaussianParameters(*model).score_samples(self.clean).mean())


def first_time(curve: Curve, level: float, which: int) -> float:
    """Seconds until a curve is at a level; NaN if it never is."""
    return next((point[0] for point in curve if point[which] >= level), np.nan)


def common_level(first: Curve, second: Curve, which: int) -> float:
    """The highest level that both curves reach, less the tolerance."""
    return min(max(point[which] for point in curve) for curve in (first, second)) - TOLERANCE


def parameters(mixture: GaussianMixture) -> deconvolution.Parameters:
    """Weights, means and covariances."""
    return mixture.weights_, mixture.means_, mixture.covariances_


def fit_ours(
    rows: np.ndarray, noise: np.ndarray | None, held_out: HeldOut, n_components: int, seed: int
) -> tuple[Curve, Line]:
    """The curve of a fit, and what came out."""
    curve: Curve = []
    measuring = 0.0

    def watch(info: Any) -> None:
        nonlocal measuring
        began = now()
        curve.append((began - started - measuring, *held_out.values(parameters(info.estimator()))))
        measuring += now() - began

    mixture = GaussianMixture(n_components, random_state=seed, callbacks=watch)
    started = now()
    if noise is None:
        mixture.fit(rows)
    else:
        mixture.fit(rows, noise=noise)
    seconds = now() - started - measuring
    curve.append((seconds, *held_out.values(parameters(mixture))))
    facts = {
        "held_out": held_out.end(parameters(mixture)),
        "seconds": seconds,
        "passes": float(mixture.trace_[-1]["epoch"]),
    }
    return curve, facts


def fit_rival(
    rows: np.ndarray,
    noise: np.ndarray,
    held_out: HeldOut,
    n_components: int,
    seed: int,
    max_seconds: float,
) -> tuple[Curve, Line]:
    """The same of exact EM."""
    curve: Curve = []
    last: list[deconvolution.Parameters] = []

    def watch(model: deconvolution.Parameters, seconds: float) -> None:
        last[:] = [model]
        curve.append((seconds, *held_out.values(model)))

    n_iterations, converged = deconvolution.fit(
        rows,
        noise,
        n_components,
        max_seconds=max_seconds,
        tol=1e-4,
        score=watch,
        seed=seed,
        n_threads=cpu_count(),
        clock=now,
    )
    if not converged:
        print(f"{seed} exact EM: time is up", flush=True)
    facts = {
        "held_out": held_out.end(last[0]),
        "seconds": curve[-1][0],
        "passes": float(n_iterations),
    }
    return curve, facts


def measure(seed: int, sizes: tuple[int, int], max_seconds: float) -> list[Line]:
    """Ours with noise, ours without, and the rival, on one draw."""
    n_components, n_rows = sizes
    rng = np.random.default_rng(seed)
    truth = generate(n_components, N_FEATURES, WIDTH, random_state=rng)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        clean, _ = truth.sample(n, rng)
        deviations = WIDTH * rng.uniform(0.5, 1.5, clean.shape)
        return clean, clean + deviations * rng.standard_normal(clean.shape), np.square(deviations)

    clean, rows, noise = draw(n_rows)
    held_out = HeldOut(*draw(HELD_OUT))
    known = float(truth.score_samples(held_out.clean).mean())
    # The first fit pays for what processes do once.
    GaussianMixture(n_components, max_iter=2, random_state=seed).fit(rows, noise=noise)
    GaussianMixture(n_components, max_iter=2, random_state=seed).fit(rows)
    found = {
        "pickmix, noise given": fit_ours(rows, noise, held_out, n_components, seed),
        "pickmix, noise ignored": fit_ours(rows, None, held_out, n_components, seed),
        "pickmix, rows without noise": fit_ours(clean, None, held_out, n_components, seed),
        "exact EM": fit_rival(rows, noise, held_out, n_components, seed, max_seconds),
    }
    ours, theirs = found["pickmix, noise given"][0], found["exact EM"][0]
    lines: list[Line] = []
    for who, (curve, facts) in found.items():
        line: Line = {"seed": seed, "K": n_components, "N": n_rows, "known": known, "who": who}
        line |= facts | {"best": max(point[CLEAN] for point in curve)}
        line["pass_s"] = line["seconds"] / line["passes"]
        for to, ratio, which in (("to_clean", "times", CLEAN), ("to_seen", "seen_times", SEEN)):
            level = common_level(ours, theirs, which)
            base = first_time(ours, level, which)
            line[to] = first_time(curve, level, which)
            line[ratio] = line[to] / base
        line["to_pass"] = first_time(curve, ours[-1][CLEAN], CLEAN)
        lines.append(line)
        print(line, flush=True)
    return lines


def plain_iteration_seconds(sizes: tuple[int, int]) -> float:
    """Seconds that numpy.linalg.inv alone would take for one iteration's pairs, one matrix each."""
    n_pairs = 100_000
    matrices = np.tile(np.eye(N_FEATURES), (n_pairs, 1, 1))
    began = now()
    np.linalg.inv(matrices)
    return (now() - began) * sizes[0] * sizes[1] / n_pairs


def main() -> None:
    """Measure, print and write."""
    parser = parser_for(__doc__, seeds=3)
    parser.add_argument("--max-seconds", type=float, default=300.0, help="limit of the rival")
    parser.add_argument("--components", type=int, default=200)
    parser.add_argument("--rows", type=int, default=40_000)
    arguments = begin(parser)
    sizes, seeds = (arguments.components, arguments.rows), arguments.seeds
    if arguments.quick:
        sizes, seeds, arguments.max_seconds = (30, 5_000), 1, 10.0
    warnings.simplefilter("ignore", ConvergenceWarning)
    lines: list[Line] = []
    for seed in range(seeds):
        lines += measure(seed, sizes, arguments.max_seconds)
        if not arguments.quick:
            write_lines(arguments.out, "noisy_rows.csv", lines)
    values = ("known", "held_out", "best", "seconds", "passes", "pass_s")
    values += ("to_clean", "times", "to_seen", "seen_times", "to_pass")
    print_table(
        f"K = {sizes[0]}, D = {N_FEATURES}, N = {sizes[1]}: medians over {seeds} seeds",
        medians(lines, ("who",), values),
    )
    print(
        f"numpy.linalg.inv of every pair's matrix, as published code does, would take "
        f"{plain_iteration_seconds(sizes):.1f} s per iteration on its own."
    )


if __name__ == "__main__":
    main()

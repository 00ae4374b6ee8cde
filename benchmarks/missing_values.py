"""Fits to rows with holes against filling the holes first, at K = 300.

Rows of 300 rotated ellipsoids in 8 dimensions, 60,000 of them, separated or overlapping. 10, 30
and 50 % of the cells are removed completely at random. Measured: the mean log-density of 20,000
complete rows that were not fitted, seconds (filling included, compilation not), and seconds per
pass over the rows, also as a multiple of the fit to complete rows in the same run. Rivals fill the
holes, then fit the same mixture: by the columns' means, and by scikit-learn's IterativeImputer (a
regression of each column on the others). `closed` is the part of the difference between mean
filling and the fit to complete rows that a method makes up for: 0 is mean filling, 1 as if nothing
had been missing.

    python benchmarks/missing_values.py [--seeds 3] [--quick]
"""

from __future__ import annotations

import warnings
from typing import Any

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
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, SimpleImputer

from pickmix import GaussianMixture
from pickmix.data.rotated import generate

WIDTHS = {"separated": 0.09, "overlapping": 0.2}
N_FEATURES, HELD_OUT = 8, 20_000


def remove(rows: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """The rows with a share of the cells missing; every row keeps at least one."""
    gone = rng.random(rows.shape) < share
    empty = np.flatnonzero(gone.all(axis=1))
    gone[empty, rng.integers(rows.shape[1], size=empty.size)] = False
    return np.where(gone, np.nan, rows)


def fit(
    filler: Any, rows: np.ndarray, held_out: np.ndarray, n_components: int, seed: int, clock: str
) -> Line:
    """Fill holes if there is something to fill them with, fit, and measure."""
    started = now()
    if filler is not None:
        rows = filler.fit_transform(rows)
    filling = now() - started
    mixture = GaussianMixture(n_components, random_state=seed).fit(rows)
    seconds = now() - started - mixture.compile_seconds_
    last = mixture.trace_[-1]
    # The trace has wall time only; what the whole processor spent on a pass has the start in it.
    working = float(last["seconds"]) if clock == "wall" else seconds - filling
    return {
        "held_out": float(mixture.score(held_out)),
        "seconds": seconds,
        "filling": filling,
        "pass_seconds": working / float(last["epoch"]),
        "passes": float(last["epoch"]),
    }


def measure(
    setting: str, seed: int, shares: list[float], sizes: tuple[int, int], clock: str
) -> list[Line]:
    """All methods at all shares of missing cells, for one mixture."""
    n_components, n_rows = sizes
    rng = np.random.default_rng(seed)
    truth = generate(n_components, N_FEATURES, WIDTHS[setting], random_state=rng)
    complete, _ = truth.sample(n_rows, rng)
    held_out, _ = truth.sample(HELD_OUT, rng)
    known = float(truth.score_samples(held_out).mean())
    # The first fit pays for what processes do once.
    GaussianMixture(n_components, max_iter=2, random_state=seed).fit(complete)
    best = fit(None, complete, held_out, n_components, seed, clock)
    lines: list[Line] = []

    def add(share: float, who: str, found: Line, mean: float) -> None:
        lines.append(
            {"setting": setting, "seed": seed, "missing": share, "who": who, "known": known}
            | found
            | {
                "closed": (found["held_out"] - mean) / (best["held_out"] - mean),
                "pass_ratio": found["pass_seconds"] / best["pass_seconds"],
                "time_ratio": found["seconds"] / best["seconds"],
            }
        )
        shown = {key: round(value, 3) for key, value in found.items()}
        print(setting, seed, share, who, shown, flush=True)

    add(0.0, "complete rows", best, np.nan)
    for share in shares:
        rows = remove(complete, share, rng)
        mean = fit(SimpleImputer(), rows, held_out, n_components, seed, clock)
        regression = fit(
            IterativeImputer(random_state=seed), rows, held_out, n_components, seed, clock
        )
        ours = fit(None, rows, held_out, n_components, seed, clock)
        add(share, "pickmix on holes", ours, mean["held_out"])
        add(share, "mean filling", mean, mean["held_out"])
        add(share, "IterativeImputer", regression, mean["held_out"])
    return lines


def main() -> None:
    """Measure, print and write."""
    parser = parser_for(__doc__, seeds=3)
    parser.add_argument("--missing", type=float, nargs="+", default=[0.1, 0.3, 0.5])
    parser.add_argument("--settings", nargs="+", choices=list(WIDTHS), default=list(WIDTHS))
    arguments = begin(parser)
    sizes, seeds = (300, 60_000), arguments.seeds
    if arguments.quick:
        sizes, seeds = (60, 10_000), 1
    warnings.simplefilter("ignore", ConvergenceWarning)
    lines: list[Line] = []
    for setting in arguments.settings:
        for seed in range(seeds):
            lines += measure(setting, seed, arguments.missing, sizes, arguments.clock)
        values = ("known", "held_out", "closed", "seconds", "pass_seconds", "passes")
        values += ("pass_ratio", "time_ratio")
        here = [line for line in lines if line["setting"] == setting]
        print_table(
            f"{setting}, K = {sizes[0]}, N = {sizes[1]}: medians over {seeds} seeds",
            medians(here, ("missing", "who"), values),
        )
        if not arguments.quick:
            write_lines(arguments.out, "missing_values.csv", lines)


if __name__ == "__main__":
    main()

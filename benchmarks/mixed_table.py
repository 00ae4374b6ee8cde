"""A mixed table with holes, 200,000 rows and 20 columns, K = 200: seconds and memory.

Nine numbers, two columns of integers, three of counts, three of categories (of 5, 20 and 60
levels), two of booleans and a date, drawn from 400 groups; 5 % of the cells are missing. Measured:
seconds of the fit (compilation not in it), per pass too, seconds to score and to fill 20,000 rows,
the mean log-density of 20,000 rows that were not fitted, and how far the resident memory of the
process rises during the fit above what it was with the table there.

    python benchmarks/mixed_table.py [--rows 200000] [--components 200] [--quick]
"""

from __future__ import annotations

import resource
import warnings

import numpy as np
import pandas as pd
from reporting import (
    Line,
    begin,
    parser_for,
    print_table,
    timed,
    write_lines,
)
from sklearn.exceptions import ConvergenceWarning

from pickmix import TableMixture

N_GROUPS, LEVELS, MISSING, ASKED = 400, (5, 20, 60), 0.05, 20_000


def peak_megabytes() -> float:
    """Largest resident size of this process so far (Linux counts kilobytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def draw(n_rows: int, seed: int) -> pd.DataFrame:
    """A table with columns of all types that depend on each other through groups."""
    rng = np.random.default_rng(seed)
    group = rng.integers(N_GROUPS, size=n_rows)
    columns: dict[str, object] = {}
    for number in range(9):
        center, width = rng.normal(0.0, 3.0, N_GROUPS), rng.uniform(0.2, 1.0, N_GROUPS)
        values = center[group] + width[group] * rng.standard_normal(n_rows)
        # Some columns are skewed, and one of them is large.
        columns[f"number{number}"] = np.exp(values / 3.0) if number >= 7 else values
    columns["number8"] = 1e5 * np.asarray(columns["number8"])
    for number in range(2):
        center = rng.integers(0, 200, N_GROUPS)
        columns[f"integer{number}"] = center[group] + rng.integers(-10, 11, n_rows)
    for number in range(3):
        rates = np.exp(rng.normal(1.0, 1.0, N_GROUPS))
        columns[f"count{number}"] = rng.poisson(rates[group])
    for number, n_levels in enumerate(LEVELS):
        ends = np.cumsum(rng.dirichlet(np.full(n_levels, 0.3), N_GROUPS), axis=1)
        levels = (rng.random(n_rows)[:, None] > ends[group]).sum(axis=1).clip(max=n_levels - 1)
        names = [f"level{level}" for level in range(n_levels)]
        columns[f"category{number}"] = pd.Categorical.from_codes(levels, names)
    for number in range(2):
        columns[f"flag{number}"] = rng.random(n_rows) < rng.random(N_GROUPS)[group]
    days = rng.integers(0, 3650, N_GROUPS)[group] + rng.integers(0, 60, n_rows)
    columns["date"] = pd.Timestamp("2015-01-01") + pd.to_timedelta(days, unit="D")
    frame = pd.DataFrame(columns)
    frame["flag0"] = frame["flag0"].astype("boolean")
    frame["flag1"] = frame["flag1"].astype("boolean")
    for name in [name for name in frame.columns if name.startswith(("integer", "count"))]:
        frame[name] = frame[name].astype("Int64")
    for name in frame.columns:
        frame.loc[rng.random(n_rows) < MISSING, name] = None
    return frame


def main() -> None:
    """Measure, print and write."""
    parser = parser_for(__doc__, seeds=1)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--components", type=int, default=200)
    arguments = begin(parser)
    if arguments.quick:
        arguments.rows, arguments.components = 10_000, 20
    warnings.simplefilter("ignore", ConvergenceWarning)
    lines: list[Line] = []
    for seed in range(arguments.seeds):
        frame = draw(arguments.rows + ASKED, seed)
        train, asked = frame[: arguments.rows], frame[arguments.rows :].reset_index(drop=True)
        # Loads kernels, so that their memory and time are not the fit's.
        TableMixture(arguments.components, max_iter=1, random_state=seed).fit(train[:5000])
        before = peak_megabytes()
        mixture, seconds = timed(
            lambda train=train, seed=seed: TableMixture(
                arguments.components, random_state=seed
            ).fit(train)
        )
        above = peak_megabytes() - before
        scores, scoring = timed(lambda mixture=mixture, asked=asked: mixture.score_samples(asked))
        _, filling = timed(lambda mixture=mixture, asked=asked: mixture.impute(asked))
        trace = mixture.trace_
        lines.append(
            {
                "rows": arguments.rows,
                "columns": frame.shape[1],
                "K": arguments.components,
                "seconds": seconds - getattr(mixture, "compile_seconds_", 0.0),
                "passes": float(trace[-1]["epoch"]),
                "pass_s": float(trace[-1]["seconds"] / trace[-1]["epoch"]),
                "score_s": scoring,
                "fill_s": filling,
                "held_out": float(np.mean(scores)),
                "table_MB": frame.memory_usage(deep=True).sum() / 1e6,
                "rise_MB": above,
                "peak_MB": peak_megabytes(),
            }
        )
    print_table("A mixed table with 5 % of the cells missing", lines)
    if not arguments.quick:
        write_lines(arguments.out, "mixed_table.csv", lines)


if __name__ == "__main__":
    main()

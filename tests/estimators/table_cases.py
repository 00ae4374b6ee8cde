"""Tables with columns of several kinds, for tests of TableMixture."""

import numpy as np


def mixed_table(n=300, seed=0, gaps=0.0):
    """Three groups of rows in a dict: numbers, integers, counts, booleans, text and dates."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 3, n)
    table = {
        "weight": 3.0 * group + rng.normal(size=n),
        "age": np.round(20.0 * group + 30.0 + 5.0 * rng.normal(size=n)),
        "visits": rng.poisson(1.0 + 2.0 * group).astype(np.float64),
        "smokes": np.array([bool(b) for b in rng.random(n) < 0.2 + 0.3 * group], dtype=object),
        "city": np.array(["Lyon", "Oslo", "Rome"], dtype=object)[
            np.where(rng.random(n) < 0.8, group, rng.integers(0, 3, n))
        ],
        "since": np.datetime64("2020-01-01")
        + np.round(200.0 * group + 20.0 * rng.normal(size=n)).astype("m8[D]"),
    }
    for name, column in table.items():
        hole = rng.random(n) < gaps
        column[hole] = {"f": np.nan, "M": np.datetime64("NaT"), "O": None}[column.dtype.kind]
        table[name] = column
    return table


def rows_of(table, which):
    """Some rows of a dict of arrays."""
    return {name: column[which] for name, column in table.items()}

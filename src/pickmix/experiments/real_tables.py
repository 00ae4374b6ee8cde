"""Real tables: where their rows come from, and how many components each of them is fitted with.

Which rows are fitted and which are held out does not depend on the seed of a run: a seed is another
start on the same rows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pickmix.data import uci
from pickmix.data.files import read_table
from pickmix.experiments.settings import BenchData, Setting, data_file, standardised

COMPONENTS = (8, 32, 128)
# With fewer rows to fit than this for each component, a K is left out.
LEAST_ROWS_EACH = 4
MOST_TRAINING_ROWS, MOST_HELD_OUT_ROWS = 30_000, 15_000
# Files tables/<name>.npz, with an array `X`.
_FILES = {
    "shuttle": "49,097 x 9, UCI Statlog shuttle: ties, extreme outliers",
    "cytometry": "60,000 x 16, a flow-cytometry sample: smooth, overlapping",
    "kegg-directed": "48,827 x 21, UCI KEGG metabolic network: ties",
    "bike": "17,379 x 18, UCI bike sharing: columns with few values",
    "elevators": "16,599 x 19, UCI elevators: nearly constant columns",
    "uk-accidents": "60,000 x 2, places of road accidents: hundreds of towns",
    "mammography": "11,183 x 6, ADBench mammography: many equal rows",
    "kin40k": "40,000 x 9, a robot arm: uniform inputs",
    "tamielectric": "45,781 x 4, electric load: bounded columns",
    "skin": "60,000 x 3, UCI skin segmentation: integers 0 to 255",
    "kdd-log": "60,000 x 22, KDD Cup 99 traffic: rates at 0 and 1",
}
# Scikit-learn's own sets; the last is not part of its package.
_CALIFORNIA = "california_housing"
_SKLEARN = {"iris": "150 x 4", "wine": "178 x 13", "breast_cancer": "569 x 30"}
_SKLEARN |= {"digits": "1,797 x 61", "diabetes": "442 x 10", _CALIFORNIA: "20,640 x 8"}
Parts = tuple[np.ndarray, np.ndarray]


class Table(NamedTuple):
    """A named table; `split` reads rows to fit (N, D) and held-out rows (M, D), standardised."""

    name: str
    summary: str
    split: Callable[[], Parts]


def _read_file(name: str) -> Parts:
    return split_rows(name, read_table(data_file(name, f"tables/{name}.npz"), key="X")[0])


def _read_uci(name: str) -> Parts:
    """The normal rows of one of the paper's UCI sets, as the paper's authors scaled them."""
    parts = uci.load(name, "paper")
    return parts.train, parts.test


def _read_sklearn(name: str, data_name: str) -> Parts:
    """One of scikit-learn's own sets, without its target and without constant columns."""
    from sklearn import datasets

    if data_name == _CALIFORNIA:
        # Looked for here: the function that fetches it would make an empty folder.
        folder = Path(os.environ.get("SCIKIT_LEARN_DATA", "~/scikit_learn_data")).expanduser()
        if not any(folder.glob("cal_housing*")):
            raise FileNotFoundError(f"{name}: expected it in scikit-learn's cache, not there")
        loaded = datasets.fetch_california_housing(download_if_missing=False)
    else:
        loaded = getattr(datasets, f"load_{data_name}")()
    rows = np.asarray(loaded.data, dtype=np.float64)
    return split_rows(name, rows[:, rows.min(axis=0) < rows.max(axis=0)])


def split_rows(name: str, rows: np.ndarray) -> Parts:
    """Shuffle rows (N, D), cut them into two parts and standardise both by the first.

    The first part has three quarters, at most 30,000 rows, the second the next, at most 15,000.
    """
    if not np.isfinite(rows).all():
        raise ValueError(f"{name}: expected finite numbers, got others among them")
    N = rows.shape[0]
    n_train = min(3 * N // 4, MOST_TRAINING_ROWS)
    if n_train == 0:
        raise ValueError(f"{name}: expected at least 2 rows, got {N}")
    order = np.random.default_rng(0).permutation(N)[: n_train + MOST_HELD_OUT_ROWS]
    return standardised(rows[order[:n_train]], rows[order[n_train:]])


def _all_tables() -> Iterable[Table]:
    for name, summary in _FILES.items():
        yield Table(name, summary, partial(_read_file, name))
    for name, (n_rows, n_features) in uci.SIZES.items():
        summary = f"{n_rows:,} x {n_features}, UCI, normal rows, the paper's protocol"
        yield Table(name, summary, partial(_read_uci, name))
    for name, size in _SKLEARN.items():
        summary = f"{size}, scikit-learn's {name}"
        summary += ", if it was fetched before" if name == _CALIFORNIA else ""
        full_name = f"sklearn-{name.replace('_', '-')}"
        yield Table(full_name, summary, partial(_read_sklearn, full_name, name))


TABLES = {table.name: table for table in _all_tables()}


def setting_of(table: Table, K: int) -> Setting:
    """A table with a number of components, as a setting of a bench."""
    summary = f"{table.summary}, K = {K:,}"
    return Setting(f"{table.name}-k{K}", summary, K, lambda seed: BenchData(*table.split(), K))


def parse_name(setting: str) -> tuple[str, int] | None:
    """Name of the table and K that the name of a setting holds, if it is one of a table.

    Examples
    --------
    >>> parse_name("waveform-1-k32"), parse_name("small")
    (('waveform-1', 32), None)
    """
    found = re.fullmatch(r"(.+)-k(\d+)", setting)
    return None if found is None else (found[1], int(found[2]))


class Choice(NamedTuple):
    """What can be fitted; of which tables rows are too few for some K, or missing, and why."""

    settings: list[Setting]
    too_few_rows: dict[str, list[int]]
    missing: dict[str, str]


def choose(tables: Iterable[Table], components: Iterable[int]) -> Choice:
    """Read the tables, and see which K their rows allow."""
    components = sorted(set(components))
    choice = Choice([], {}, {})
    for table in tables:
        try:
            n_rows = table.split()[0].shape[0]
        except Exception as error:
            # Whatever is wrong with one table, the others can be measured.
            reason = [*str(error).strip().splitlines(), type(error).__name__][0]
            choice.missing[table.name] = reason.removeprefix(f"{table.name}: ")
            continue
        for K in components:
            if n_rows >= LEAST_ROWS_EACH * K:
                choice.settings.append(setting_of(table, K))
            else:
                choice.too_few_rows.setdefault(table.name, []).append(K)
    return choice

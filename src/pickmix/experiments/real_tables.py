"""Real tables: where their rows come from, and how many components each of them is fitted with.

Which rows are fitted and which are held out does not depend on the seed of a run: a seed is another
start on the same rows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pickmix.data import uci
from pickmix.data.files import read_table
from pickmix.experiments.settings import BenchData, data_file, standardised

COMPONENTS = (8, 32, 128)
# With fewer rows to fit than this for each component, a K is left out.
LEAST_ROWS_EACH = 4
MOST_TRAINING_ROWS, MOST_HELD_OUT_ROWS = 30_000, 15_000
# The only set of scikit-learn's that is not part of its package.
_CALIFORNIA = "california_housing"


class Table(Protocol):
    """A named table."""

    @property
    def name(self) -> str:
        """How the command line calls it."""
        ...

    @property
    def summary(self) -> str:
        """What it is, in a line."""
        ...

    def split(self) -> tuple[np.ndarray, np.ndarray]:
        """Read it: rows to fit (N, D) and held-out rows (M, D), float64 and standardised."""
        ...


@dataclass(frozen=True)
class FileTable:
    """The array `X` of `tables/<name>.npz` in the folder that PICKMIX_DATA names."""

    name: str
    summary: str

    def split(self) -> tuple[np.ndarray, np.ndarray]:
        """Read the file and split it by `split_rows`."""
        rows, _ = read_table(data_file(self.name, f"tables/{self.name}.npz"), key="X")
        return split_rows(self.name, rows)


@dataclass(frozen=True)
class UciTable:
    """The normal rows of one of the paper's UCI sets, as the paper's authors scaled them."""

    name: str

    @property
    def summary(self) -> str:
        """What it is, in a line."""
        n_rows, n_features = uci.SIZES[self.name]
        return f"{n_rows:,} x {n_features}, UCI, normal rows, the paper's protocol"

    def split(self) -> tuple[np.ndarray, np.ndarray]:
        """Load the set: the training part and the test part."""
        split = uci.load(self.name, "paper")
        return split.train, split.test


@dataclass(frozen=True)
class SklearnTable:
    """One of scikit-learn's own sets, without its target and without constant columns."""

    name: str
    data_name: str
    size: str

    @property
    def summary(self) -> str:
        """What it is, in a line."""
        fetched = ", if it was fetched before" if self.data_name == _CALIFORNIA else ""
        return f"{self.size}, scikit-learn's {self.data_name}{fetched}"

    def split(self) -> tuple[np.ndarray, np.ndarray]:
        """Load the set and split it by `split_rows`; nothing is downloaded."""
        rows = np.asarray(self._load().data, dtype=np.float64)
        return split_rows(self.name, rows[:, rows.min(axis=0) < rows.max(axis=0)])

    def _load(self) -> Any:
        from sklearn import datasets

        if self.data_name != _CALIFORNIA:
            return getattr(datasets, f"load_{self.data_name}")()
        # Looked for here: the function that fetches it would make an empty folder.
        folder = Path(os.environ.get("SCIKIT_LEARN_DATA", "~/scikit_learn_data")).expanduser()
        if not any(folder.glob("cal_housing*")):
            raise FileNotFoundError(f"{self.name}: expected it in scikit-learn's cache, not there")
        return datasets.fetch_california_housing(download_if_missing=False)


def split_rows(name: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shuffle rows, cut them into two parts and standardise both by the first.

    Parameters
    ----------
    name : str
        For messages.
    rows : (N, D) array

    Returns
    -------
    train : array
        The first three quarters, at most 30,000 rows.
    held_out : array
        The next rows, at most 15,000.

    Examples
    --------
    >>> train, held_out = split_rows("made-up", np.arange(200.0).reshape(100, 2))
    >>> train.shape, held_out.shape
    ((75, 2), (25, 2))
    """
    if not np.isfinite(rows).all():
        raise ValueError(f"{name}: expected finite numbers, got others among them")
    N = rows.shape[0]
    n_train = min(3 * N // 4, MOST_TRAINING_ROWS)
    if n_train == 0:
        raise ValueError(f"{name}: expected at least 2 rows, got {N}")
    order = np.random.default_rng(0).permutation(N)[: n_train + MOST_HELD_OUT_ROWS]
    return standardised(rows[order[:n_train]], rows[order[n_train:]])


@dataclass(frozen=True)
class TableSetting:
    """A table with a number of components: one of the bench's settings.

    Examples
    --------
    >>> setting = parse_setting("sklearn-wine-k8")
    >>> setting.table.name, setting.n_components, setting.make(0).train.shape
    ('sklearn-wine', 8, (133, 13))
    """

    table: Table
    n_components: int
    dense: bool = True

    @property
    def name(self) -> str:
        """The table's name and K, as results have it."""
        return f"{self.table.name}-k{self.n_components}"

    @property
    def summary(self) -> str:
        """What it is, in a line."""
        return f"{self.table.summary}, K = {self.n_components:,}"

    def make(self, seed: int) -> BenchData:
        """Read the table; the seed is for the start alone."""
        return BenchData(*self.table.split(), self.n_components)


_ALL: tuple[Table, ...] = (
    FileTable("shuttle", "49,097 x 9, UCI Statlog shuttle: ties, extreme outliers"),
    FileTable("cytometry", "60,000 x 16, a flow-cytometry sample: smooth, overlapping"),
    FileTable("kegg-directed", "48,827 x 21, UCI KEGG metabolic network: ties"),
    FileTable("bike", "17,379 x 18, UCI bike sharing: columns with few values"),
    FileTable("elevators", "16,599 x 19, UCI elevators: nearly constant columns"),
    FileTable("uk-accidents", "60,000 x 2, places of road accidents: hundreds of towns"),
    FileTable("mammography", "11,183 x 6, ADBench mammography: many equal rows"),
    FileTable("kin40k", "40,000 x 9, a robot arm: uniform inputs"),
    FileTable("tamielectric", "45,781 x 4, electric load: bounded columns"),
    FileTable("skin", "60,000 x 3, UCI skin segmentation: integers 0 to 255"),
    FileTable("kdd-log", "60,000 x 22, KDD Cup 99 traffic: rates at 0 and 1"),
    *(UciTable(name) for name in uci.NAMES),
    SklearnTable("sklearn-iris", "iris", "150 x 4"),
    SklearnTable("sklearn-wine", "wine", "178 x 13"),
    SklearnTable("sklearn-breast-cancer", "breast_cancer", "569 x 30"),
    SklearnTable("sklearn-digits", "digits", "1,797 x 61"),
    SklearnTable("sklearn-diabetes", "diabetes", "442 x 10"),
    SklearnTable("sklearn-california-housing", _CALIFORNIA, "20,640 x 8"),
)
TABLES: dict[str, Table] = {table.name: table for table in _ALL}


def find_tables(names: Iterable[str]) -> list[Table]:
    """Tables by name, in the order of `TABLES`.

    Examples
    --------
    >>> [table.name for table in find_tables(["wine", "skin"])]
    ['skin', 'wine']
    >>> find_tables(["skim"])
    Traceback (most recent call last):
    ValueError: table must be one of shuttle, ..., sklearn-california-housing; got 'skim'
    """
    names = list(names)
    for name in names:
        if name not in TABLES:
            raise ValueError(f"table must be one of {', '.join(TABLES)}; got {name!r}")
    return [table for table in TABLES.values() if table.name in names]


def parse_name(setting: str) -> tuple[str, int] | None:
    """Name of the table and K that the name of a setting holds, if it is one of a table.

    Examples
    --------
    >>> parse_name("waveform-1-k32"), parse_name("small")
    (('waveform-1', 32), None)
    """
    found = re.fullmatch(r"(.+)-k(\d+)", setting)
    return None if found is None else (found[1], int(found[2]))


def parse_setting(name: str) -> TableSetting:
    """Make the setting that has this name; `KeyError` if there is no such table."""
    parsed = parse_name(name)
    if parsed is None:
        raise KeyError(name)
    table, n_components = parsed
    return TableSetting(TABLES[table], n_components)


@dataclass(frozen=True, eq=False)
class Choice:
    """What can be fitted, of what was asked for.

    Attributes
    ----------
    settings : list of TableSetting
    too_few_rows : dict of str to list of int
        Table to those K that it has fewer than 4 K rows to fit for.
    missing : dict of str to str
        Table to the reason why it could not be read.
    """

    settings: list[TableSetting]
    too_few_rows: dict[str, list[int]]
    missing: dict[str, str]


def choose(tables: Iterable[Table], components: Iterable[int]) -> Choice:
    """Read the tables, and see which K their rows allow.

    Examples
    --------
    >>> choice = choose(find_tables(["sklearn-iris"]), COMPONENTS)
    >>> [setting.name for setting in choice.settings], choice.too_few_rows
    (['sklearn-iris-k8'], {'sklearn-iris': [32, 128]})
    """
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
        for n_components in components:
            if n_rows >= LEAST_ROWS_EACH * n_components:
                choice.settings.append(TableSetting(table, n_components))
            else:
                choice.too_few_rows.setdefault(table.name, []).append(n_components)
    return choice

"""Data of the benches: drawn mixtures and real tables, and with how many components.

A seed of a drawn mixture is other rows. Which rows of a real table are fitted and which are held
out does not depend on it: there, a seed is another start on the same rows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pickmix import GaussianMixture
from pickmix.data import mixsim, rotated
from pickmix_experiments import uci

HELD_OUT_ROWS = 20_000
SEPARATED, OVERLAPPING = 0.09, 0.2
# A fifth of a file's rows is held out.
_TRAINING_SHARE = 0.8
# A component that weighs less than half a row of the training data explains none of them.
_LEAST_ROWS = 0.5
# Of real tables. With fewer rows to fit than this for each component, a K is left out.
COMPONENTS = (8, 32, 128)
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


@dataclass(frozen=True, eq=False)
class GaussianParameters:
    """Weights (K,), means (K, D) and covariances (K, D, D) of a mixture, from any library.

    Precisions and types differ between libraries; these are float64 arrays.
    """

    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray

    def __post_init__(self) -> None:
        for name in ("weights", "means", "covariances"):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            if not np.isfinite(values).all():
                raise ValueError(f"{name} must be finite; got {values[~np.isfinite(values)][0]}")
            object.__setattr__(self, name, values)

    def score_samples(self, X: np.ndarray) -> np.ndarray:
        """Return the log-density of each row of X (N, D); raise if a covariance is singular."""
        # The estimator's kernels: many times faster than NumPy at thousands of components.
        mixture = GaussianMixture(len(self.weights))
        mixture.weights_ = self.weights / self.weights.sum()
        mixture.means_, mixture.covariances_ = self.means, self.covariances
        mixture.n_features_in_ = self.means.shape[1]
        return np.asarray(mixture.score_samples(X), dtype=np.float64)

    def live_components(self, n_rows: int) -> int:
        """Count the components that weigh at least half a row of n_rows."""
        shares = self.weights / self.weights.sum()
        return int(np.count_nonzero(shares * n_rows >= _LEAST_ROWS))


@dataclass(frozen=True, eq=False)
class BenchData:
    """Rows to fit (N, D) and to measure on (M, D), and K, the same for every baseline."""

    train: np.ndarray
    held_out: np.ndarray
    n_components: int
    #: Of the held-out rows (M,) under the mixture that made them, where it is known.
    true_log_density: np.ndarray | None = None


@dataclass(frozen=True)
class Setting:
    """A named source of `BenchData`; the same seed gives the same rows."""

    name: str
    summary: str
    n_components: int
    make: Callable[[int], BenchData]
    #: Baselines that evaluate every component on every row take part.
    dense: bool = True


def _draw(generate: Callable[..., Any], n_rows: int, seed: int) -> BenchData:
    """Draw a mixture, and training and held-out rows of it."""
    rng = np.random.default_rng(seed)
    mixture = generate(random_state=rng)
    train, held_out = (mixture.sample(n, rng)[0] for n in (n_rows, HELD_OUT_ROWS))
    truth = GaussianParameters(mixture.weights, mixture.means, mixture.covariances)
    return BenchData(train, held_out, len(truth.weights), truth.score_samples(held_out))


def from_mixsim(name: str, D: int, K: int, N: int, max_overlap: float) -> Setting:
    """Describe rows of a MixSim mixture with a given largest overlap of a pair."""
    summary = f"MixSim, D = {D}, K = {K:,}, N = {N:,}, largest overlap {max_overlap:g}"
    return Setting(name, summary, K, partial(_draw, partial(mixsim.generate, K, D, max_overlap), N))


def ellipsoids(
    name: str, D: int, K: int, N: int, width: float, weights: str = "equal", dense: bool = True
) -> Setting:
    """Describe rows of a mixture of rotated ellipsoids in the unit cube."""
    kind = "power-law" if weights == "power" else "equal"
    summary = f"ellipsoids in the unit cube, D = {D}, K = {K:,}, N = {N:,}, width {width:g}, "
    generate = partial(rotated.generate, K, D, width, weights=weights)
    return Setting(name, f"{summary}{kind} weights", K, partial(_draw, generate, N), dense)


def from_uci(data_name: str, K: int) -> Setting:
    """Describe normal rows of a UCI set: the 64 % for training, and the 20 % for testing."""

    def make(seed: int) -> BenchData:
        split = uci.load(data_name, random_state=seed)
        return BenchData(split.train, split.test, K)

    return Setting(f"{data_name}-{K}", f"UCI {data_name}, standardised, K = {K:,}", K, make)


def from_file(name: str, file: str, origin: str, K: int) -> Setting:
    """Describe rows of a text file in the folder that PICKMIX_DATA names, split 80/20."""

    def make(seed: int) -> BenchData:
        rows = np.loadtxt(data_file(name, file), ndmin=2)
        rows = rows[np.random.default_rng(seed).permutation(rows.shape[0])]
        train, held_out = np.split(rows, [round(_TRAINING_SHARE * rows.shape[0])])
        return BenchData(*standardised(train, held_out), K)

    return Setting(name, f"{origin}, standardised, K = {K:,}", K, make)


def data_file(name: str, file: str) -> Path:
    """Find a file of the setting `name` in the folder that PICKMIX_DATA names."""
    folder = os.environ.get("PICKMIX_DATA")
    if folder and Path(folder, file).is_file():
        return Path(folder, file)
    problem = "there is no such file" if folder else "it is not set"
    raise FileNotFoundError(
        f"{name}: expected {file} in the folder that the environment variable PICKMIX_DATA names, "
        f"but {problem}"
    )


def standardised(train: np.ndarray, held_out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Centre and scale the columns of both by those of the training rows, in float64.

    A column that is constant over the training rows is centred only.
    """
    train, held_out = train.astype(np.float64), held_out.astype(np.float64)
    # Not the standard deviation of it: that of equal numbers need not come out as zero.
    constant = train.min(axis=0) == train.max(axis=0)
    mean = np.where(constant, train[0], train.mean(axis=0))
    scale = np.where(constant, 1.0, train.std(axis=0))
    return (train - mean) / scale, (held_out - mean) / scale


_ALL = (
    ellipsoids("small", 4, 80, 8_000, SEPARATED),
    from_mixsim("mixsim", 10, 100, 10_000, 0.1),
    *(
        ellipsoids(f"k{K}-{kind}{suffix}", 8, K, 200 * K, width, weights)
        for K in (300, 1000)
        for weights, suffix in (("equal", ""), ("power", "-power"))
        for kind, width in (("separated", SEPARATED), ("overlapping", OVERLAPPING))
    ),
    from_file("birch1", "birch/birch1.txt", "BIRCH1, 100,000 rows on a grid", 100),
    *(from_uci(name, K) for name in ("magic-telescope", "pendigits") for K in (50, 200)),
    ellipsoids("k10000", 16, 10_000, 1_000_000, SEPARATED, dense=False),
)
SETTINGS = {setting.name: setting for setting in _ALL}

Parts = tuple[np.ndarray, np.ndarray]


class Table(NamedTuple):
    """A named table; `split` reads rows to fit (N, D) and held-out rows (M, D), standardised."""

    name: str
    summary: str
    split: Callable[[], Parts]


def _read_file(name: str) -> Parts:
    with np.load(data_file(name, f"tables/{name}.npz")) as arrays:
        if "X" not in arrays:
            raise ValueError(f"{name}: expected an array X, got {', '.join(arrays)}")
        return split_rows(name, arrays["X"])


def _read_uci(name: str) -> Parts:
    """Read the normal rows of one of the paper's UCI sets, as the paper's authors scaled them."""
    parts = uci.load(name, "paper")
    return parts.train, parts.test


def _read_sklearn(name: str, data_name: str) -> Parts:
    """Read one of scikit-learn's own sets, without its target and without constant columns."""
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
    summary = f"{table.summary}, K = {K:,}"
    return Setting(f"{table.name}-k{K}", summary, K, lambda seed: BenchData(*table.split(), K))


def parse_name(setting: str) -> tuple[str, int] | None:
    """Return the table and K in the name of a setting, if it is one of a table.

    Examples
    --------
    >>> parse_name("waveform-1-k32"), parse_name("small")
    (('waveform-1', 32), None)
    """
    match = re.fullmatch(r"(.+)-k(\d+)", setting)
    return None if match is None else (match[1], int(match[2]))


def find_setting(name: str) -> Setting:
    """Return a setting of either bench by its name; `KeyError` if there is none."""
    if name in SETTINGS:
        return SETTINGS[name]
    table, K = parse_name(name) or ("", 0)
    return setting_of(TABLES[table], K)


class Choice(NamedTuple):
    """What can be fitted; tables with too few rows for some K; tables that are missing, and why."""

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

"""Data sets of the benches in one registry: drawn mixtures with their K, and real tables.

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
    """Weights (K,), means (K, D) and covariances (K, D, D) of a mixture, from any library."""

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


class Rows(NamedTuple):
    """Rows to fit (N, D) and to measure on (M, D)."""

    train: np.ndarray
    held_out: np.ndarray
    #: Of the held-out rows (M,) under the mixture that made them, where it is known.
    true_log_density: np.ndarray | None = None


@dataclass(frozen=True)
class Dataset:
    """A named source of rows; the same seed gives the same rows."""

    name: str
    summary: str
    make: Callable[[int], Rows]
    #: Given to every method; None for real tables, whose K is chosen.
    n_components: int | None = None
    #: Methods that evaluate every component on every row take part.
    dense: bool = True


def _draw(generate: Callable[..., Any], n_rows: int, seed: int) -> Rows:
    """Draw a mixture, and training and held-out rows of it."""
    rng = np.random.default_rng(seed)
    mixture = generate(random_state=rng)
    train, held_out = (mixture.sample(n, rng)[0] for n in (n_rows, HELD_OUT_ROWS))
    truth = GaussianParameters(mixture.weights, mixture.means, mixture.covariances)
    return Rows(train, held_out, truth.score_samples(held_out))


def ellipsoids(
    name: str, D: int, K: int, N: int, width: float, weights: str = "equal", dense: bool = True
) -> Dataset:
    """Describe rows of a mixture of rotated ellipsoids in the unit cube."""
    kind = "power-law" if weights == "power" else "equal"
    summary = f"ellipsoids in the unit cube, D = {D}, K = {K:,}, N = {N:,}, width {width:g}, "
    generate = partial(rotated.generate, K, D, width, weights=weights)
    return Dataset(name, f"{summary}{kind} weights", partial(_draw, generate, N), K, dense)


def _read_birch(seed: int) -> Rows:
    rows = np.loadtxt(data_file("birch1", "birch/birch1.txt"), ndmin=2)
    rows = rows[np.random.default_rng(seed).permutation(rows.shape[0])]
    return standardised(*np.split(rows, [round(0.8 * rows.shape[0])]))


def _read_uci(name: str, protocol: str, seed: int) -> Rows:
    """Read the normal rows of a UCI set: the 64 % for training, and the 20 % for testing."""
    parts = uci.load(name, protocol, random_state=0 if protocol == "paper" else seed)
    return Rows(parts.train, parts.test)


def _read_file(name: str, seed: int) -> Rows:
    with np.load(data_file(name, f"tables/{name}.npz")) as arrays:
        if "X" not in arrays:
            raise ValueError(f"{name}: expected an array X, got {', '.join(arrays)}")
        return split_rows(name, arrays["X"])


def _read_sklearn(name: str, data_name: str, seed: int) -> Rows:
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


def data_file(name: str, file: str) -> Path:
    """Find a file of the data set `name` in the folder that PICKMIX_DATA names."""
    folder = os.environ.get("PICKMIX_DATA")
    if folder and Path(folder, file).is_file():
        return Path(folder, file)
    problem = "there is no such file" if folder else "it is not set"
    raise FileNotFoundError(
        f"{name}: expected {file} in the folder that the environment variable PICKMIX_DATA names, "
        f"but {problem}"
    )


def split_rows(name: str, rows: np.ndarray) -> Rows:
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


def standardised(train: np.ndarray, held_out: np.ndarray) -> Rows:
    """Centre and scale the columns of both by those of the training rows, in float64.

    A column that is constant over the training rows is centred only.
    """
    train, held_out = train.astype(np.float64), held_out.astype(np.float64)
    # Not the standard deviation of it: that of equal numbers need not come out as zero.
    constant = train.min(axis=0) == train.max(axis=0)
    mean = np.where(constant, train[0], train.mean(axis=0))
    scale = np.where(constant, 1.0, train.std(axis=0))
    return Rows((train - mean) / scale, (held_out - mean) / scale)


def _drawn() -> Iterable[Dataset]:
    yield ellipsoids("small", 4, 80, 8_000, SEPARATED)
    summary = "MixSim, D = 10, K = 100, N = 10,000, largest overlap 0.1"
    generate = partial(mixsim.generate, 100, 10, 0.1)
    yield Dataset("mixsim", summary, partial(_draw, generate, 10_000), 100)
    for K in (300, 1000):
        for weights, suffix in (("equal", ""), ("power", "-power")):
            for kind, width in (("separated", SEPARATED), ("overlapping", OVERLAPPING)):
                yield ellipsoids(f"k{K}-{kind}{suffix}", 8, K, 200 * K, width, weights)
    summary = "BIRCH1, 100,000 rows on a grid, standardised, K = 100"
    yield Dataset("birch1", summary, _read_birch, 100)
    for name in ("magic-telescope", "pendigits"):
        for K in (50, 200):
            summary = f"UCI {name}, standardised, K = {K:,}"
            yield Dataset(f"{name}-{K}", summary, partial(_read_uci, name, "clean"), K)
    yield ellipsoids("k10000", 16, 10_000, 1_000_000, SEPARATED, dense=False)


def _real() -> Iterable[Dataset]:
    for name, summary in _FILES.items():
        yield Dataset(name, summary, partial(_read_file, name))
    for name, (n_rows, n_features) in uci.SIZES.items():
        summary = f"{n_rows:,} x {n_features}, UCI, normal rows, the paper's protocol"
        yield Dataset(name, summary, partial(_read_uci, name, "paper"))
    for data_name, size in _SKLEARN.items():
        summary = f"{size}, scikit-learn's {data_name}"
        summary += ", if it was fetched before" if data_name == _CALIFORNIA else ""
        name = f"sklearn-{data_name.replace('_', '-')}"
        yield Dataset(name, summary, partial(_read_sklearn, name, data_name))


DATASETS = {data.name: data for data in (*_drawn(), *_real())}
# Those with a number of components of their own, and the real tables.
SETTINGS = {name: data for name, data in DATASETS.items() if data.n_components}
TABLES = {name: data for name, data in DATASETS.items() if not data.n_components}


def parse_setting(setting: str) -> tuple[str, int] | None:
    """Return the table and K in the name of a setting, if it is one of a table.

    Examples
    --------
    >>> parse_setting("waveform-1-k32"), parse_setting("small")
    (('waveform-1', 32), None)
    """
    match = re.fullmatch(r"(.+)-k(\d+)", setting)
    return None if match is None else (match[1], int(match[2]))


def find(setting: str) -> tuple[Dataset, int]:
    """Return the data set and K of a setting's name; `KeyError` if there is none."""
    if setting in SETTINGS:
        return SETTINGS[setting], SETTINGS[setting].n_components or 0
    name, K = parse_setting(setting) or ("", 0)
    return TABLES[name], K


class Choice(NamedTuple):
    """What can be fitted; tables with too few rows for some K; tables that are missing, and why."""

    settings: list[str]
    too_few_rows: dict[str, list[int]]
    missing: dict[str, str]


def choose(names: Iterable[str], components: Iterable[int]) -> Choice:
    """Read the tables, and see which K their rows allow."""
    components = sorted(set(components))
    choice = Choice([], {}, {})
    for name in names:
        try:
            n_rows = TABLES[name].make(0).train.shape[0]
        except Exception as error:
            # Whatever is wrong with one table, the others can be measured.
            reason = [*str(error).strip().splitlines(), type(error).__name__][0]
            choice.missing[name] = reason.removeprefix(f"{name}: ")
            continue
        for K in components:
            if n_rows >= LEAST_ROWS_EACH * K:
                choice.settings.append(f"{name}-k{K}")
            else:
                choice.too_few_rows.setdefault(name, []).append(K)
    return choice

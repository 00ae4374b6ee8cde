"""Data settings: what is fitted, with how many components, and what the fit is measured on."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from pickmix.data import mixsim, rotated, uci
from pickmix.data.files import read_table
from pickmix.data.known_mixture import KnownMixture
from pickmix.experiments.scoring import GaussianParameters

HELD_OUT_ROWS = 20_000
SEPARATED, OVERLAPPING = 0.09, 0.2
# A fifth of a file's rows is held out.
_TRAINING_SHARE = 0.8


@dataclass(frozen=True, eq=False)
class BenchData:
    """Rows to fit and rows to measure on.

    Attributes
    ----------
    train : (N, D) array
    held_out : (M, D) array
    n_components : int
        K, as told to every rival.
    true_log_density : (M,) array or None
        Of the held-out rows under the mixture that made them, where it is known.
    """

    train: np.ndarray
    held_out: np.ndarray
    n_components: int
    true_log_density: np.ndarray | None = None


class Setting(Protocol):
    """A named source of `BenchData`."""

    @property
    def name(self) -> str:
        """How the command line calls it."""
        ...

    @property
    def n_components(self) -> int:
        """K."""
        ...

    @property
    def dense(self) -> bool:
        """Whether rivals that evaluate every component on every row take part."""
        ...

    @property
    def summary(self) -> str:
        """What it is, in a line."""
        ...

    def make(self, seed: int) -> BenchData:
        """Make or read the rows; the same seed gives the same ones."""
        ...


def _draw(mixture: KnownMixture, n_rows: int, rng: np.random.Generator) -> BenchData:
    """Training and held-out rows of a known mixture."""
    train, _ = mixture.sample(n_rows, rng)
    held_out, _ = mixture.sample(HELD_OUT_ROWS, rng)
    truth = GaussianParameters(mixture.weights, mixture.means, mixture.covariances)
    return BenchData(train, held_out, mixture.weights.shape[0], truth.score_samples(held_out))


@dataclass(frozen=True)
class MixSimSetting:
    """Rows of a MixSim mixture: the largest overlap of a pair is given."""

    name: str
    n_features: int
    n_components: int
    n_rows: int
    max_overlap: float
    dense: bool = True

    @property
    def summary(self) -> str:
        """What it is, in a line."""
        sizes = _sizes(self.n_features, self.n_components, self.n_rows)
        return f"MixSim, {sizes}, largest overlap {self.max_overlap:g}"

    def make(self, seed: int) -> BenchData:
        """Draw a mixture and rows from it."""
        rng = np.random.default_rng(seed)
        mixture = mixsim.generate(
            self.n_components, self.n_features, self.max_overlap, random_state=rng
        )
        return _draw(mixture, self.n_rows, rng)


@dataclass(frozen=True)
class RotatedSetting:
    """Rows of a mixture of rotated ellipsoids in the unit cube."""

    name: str
    n_features: int
    n_components: int
    n_rows: int
    width: float
    weights: str = "equal"
    dense: bool = True

    @property
    def summary(self) -> str:
        """What it is, in a line."""
        sizes = _sizes(self.n_features, self.n_components, self.n_rows)
        law = "power-law" if self.weights == "power" else "equal"
        return f"ellipsoids in the unit cube, {sizes}, width {self.width:g}, {law} weights"

    def make(self, seed: int) -> BenchData:
        """Draw a mixture and rows from it."""
        rng = np.random.default_rng(seed)
        mixture = rotated.generate(
            self.n_components, self.n_features, self.width, weights=self.weights, random_state=rng
        )
        return _draw(mixture, self.n_rows, rng)


@dataclass(frozen=True)
class UciSetting:
    """Normal rows of a UCI set, standardised: the 64 % for training, and the 20 % for testing."""

    name: str
    data_name: str
    n_components: int
    dense: bool = True

    @property
    def summary(self) -> str:
        """What it is, in a line."""
        return f"UCI {self.data_name}, standardised, K = {self.n_components:,}"

    def make(self, seed: int) -> BenchData:
        """Read the set and split it."""
        split = uci.load(self.data_name, random_state=seed)
        return BenchData(split.train, split.test, self.n_components)


@dataclass(frozen=True)
class FileSetting:
    """Rows of a file in the folder that the environment variable PICKMIX_DATA names."""

    name: str
    file: str
    origin: str
    n_components: int
    dense: bool = True

    @property
    def summary(self) -> str:
        """What it is, in a line."""
        return f"{self.origin}, standardised, K = {self.n_components:,}"

    def make(self, seed: int) -> BenchData:
        """Read the file, split its rows 80/20 and standardise the columns by the first part."""
        rows, _ = read_table(data_file(self.name, self.file))
        rows = rows[np.random.default_rng(seed).permutation(rows.shape[0])]
        train, held_out = np.split(rows, [round(_TRAINING_SHARE * rows.shape[0])])
        return BenchData(*standardised(train, held_out), self.n_components)


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

    Examples
    --------
    >>> train, held_out = standardised(np.array([[0.0, 5.0], [2.0, 5.0]]), np.array([[3.0, 7.0]]))
    >>> train
    array([[-1., 0.],
           [ 1., 0.]])
    >>> held_out
    array([[2., 2.]])
    """
    train, held_out = train.astype(np.float64), held_out.astype(np.float64)
    # Not the standard deviation of it: that of equal numbers need not come out as zero.
    constant = train.min(axis=0) == train.max(axis=0)
    mean = np.where(constant, train[0], train.mean(axis=0))
    scale = np.where(constant, 1.0, train.std(axis=0))
    return (train - mean) / scale, (held_out - mean) / scale


def _sizes(n_features: int, n_components: int, n_rows: int) -> str:
    return f"D = {n_features}, K = {n_components:,}, N = {n_rows:,}"


def _four(n_components: int, n_rows: int) -> list[RotatedSetting]:
    """Separated or overlapping, with equal or power-law weights."""
    return [
        RotatedSetting(
            f"k{n_components}-{kind}{suffix}", 8, n_components, n_rows, width, weights=weights
        )
        for weights, suffix in (("equal", ""), ("power", "-power"))
        for kind, width in (("separated", SEPARATED), ("overlapping", OVERLAPPING))
    ]


_ALL: tuple[Setting, ...] = (
    RotatedSetting("small", 4, 80, 8_000, SEPARATED),
    MixSimSetting("mixsim", 10, 100, 10_000, 0.1),
    *_four(300, 60_000),
    *_four(1000, 200_000),
    FileSetting("birch1", "birch/birch1.txt", "BIRCH1, 100,000 rows on a grid", 100),
    *(
        UciSetting(f"{name}-{n_components}", name, n_components)
        for name in ("magic-telescope", "pendigits")
        for n_components in (50, 200)
    ),
    RotatedSetting("k10000", 16, 10_000, 1_000_000, SEPARATED, dense=False),
)
SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _ALL}


def find_settings(names: Iterable[str]) -> list[Setting]:
    """Settings by name, in the order of `SETTINGS`.

    Examples
    --------
    >>> [setting.n_components for setting in find_settings(["k10000", "mixsim"])]
    [100, 10000]
    >>> find_settings(["mixim"])
    Traceback (most recent call last):
    ValueError: setting must be one of small, mixsim, ..., k10000; got 'mixim'
    """
    names = list(names)
    for name in names:
        if name not in SETTINGS:
            raise ValueError(f"setting must be one of {', '.join(SETTINGS)}; got {name!r}")
    return [setting for setting in SETTINGS.values() if setting.name in names]

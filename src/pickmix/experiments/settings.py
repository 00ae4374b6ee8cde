"""Data of the benches: what is fitted, with how many components, and what it is measured on."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

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
    """Rows to fit (N, D) and to measure on (M, D), and K, which every rival is given.

    `true_log_density` (M,) is that of the held-out rows under the mixture that made them, where it
    is known.
    """

    train: np.ndarray
    held_out: np.ndarray
    n_components: int
    true_log_density: np.ndarray | None = None


@dataclass(frozen=True)
class Setting:
    """A named source of `BenchData`; the same seed gives the same rows.

    `dense` says whether rivals that evaluate every component on every row take part.
    """

    name: str
    summary: str
    n_components: int
    make: Callable[[int], BenchData]
    dense: bool = True


def _draw(generate: Callable[..., KnownMixture], n_rows: int, seed: int) -> BenchData:
    """Draw a mixture, and training and held-out rows of it."""
    rng = np.random.default_rng(seed)
    mixture = generate(random_state=rng)
    train, held_out = (mixture.sample(n, rng)[0] for n in (n_rows, HELD_OUT_ROWS))
    truth = GaussianParameters(mixture.weights, mixture.means, mixture.covariances)
    return BenchData(train, held_out, len(truth.weights), truth.score_samples(held_out))


def from_mixsim(name: str, D: int, K: int, N: int, max_overlap: float) -> Setting:
    """Rows of a MixSim mixture: the largest overlap of a pair is given."""
    summary = f"MixSim, D = {D}, K = {K:,}, N = {N:,}, largest overlap {max_overlap:g}"
    return Setting(name, summary, K, partial(_draw, partial(mixsim.generate, K, D, max_overlap), N))


def ellipsoids(
    name: str, D: int, K: int, N: int, width: float, weights: str = "equal", dense: bool = True
) -> Setting:
    """Rows of a mixture of rotated ellipsoids in the unit cube."""
    law = "power-law" if weights == "power" else "equal"
    summary = f"ellipsoids in the unit cube, D = {D}, K = {K:,}, N = {N:,}, width {width:g}, "
    generate = partial(rotated.generate, K, D, width, weights=weights)
    return Setting(name, f"{summary}{law} weights", K, partial(_draw, generate, N), dense)


def from_uci(data_name: str, K: int) -> Setting:
    """Normal rows of a UCI set, standardised: the 64 % for training, and the 20 % for testing."""

    def make(seed: int) -> BenchData:
        split = uci.load(data_name, random_state=seed)
        return BenchData(split.train, split.test, K)

    return Setting(f"{data_name}-{K}", f"UCI {data_name}, standardised, K = {K:,}", K, make)


def from_file(name: str, file: str, origin: str, K: int) -> Setting:
    """Rows of a file in the folder that PICKMIX_DATA names, split 80/20 and standardised."""

    def make(seed: int) -> BenchData:
        rows, _ = read_table(data_file(name, file))
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

"""What is read off a history: t95, the time to a target, absolute errors, speed-ups and ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

# The names of `history.SERIES` with an array each.
Series = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Point:
    """A place on a curve."""

    step: float
    seconds: float
    evaluations: float
    log_likelihood: float


def t95_index(values: np.ndarray) -> int:
    """First record with L_t >= L_max - 0.05 |L_max|; -1 if no value is finite.

    Examples
    --------
    >>> t95_index(np.array([-200.0, -104.0, -100.0])), t95_index(np.array([1.0, 94.0, 95.0, 100.0]))
    (1, 2)
    """
    values = np.where(np.isfinite(values), values, -np.inf)
    if values.size == 0 or values.max() == -np.inf:
        return -1
    highest = values.max()
    return int(np.argmax(values >= highest - 0.05 * abs(highest)))


def t95(series: Series) -> Point:
    """The point of a history's series at t95, all NaN if there is none."""
    return _point(series, t95_index(series["log_likelihood"]))


def first_reaching(series: Series, target: float) -> Point:
    """The first point whose log-likelihood is at least the target, all NaN if there is none."""
    reached = np.flatnonzero(series["log_likelihood"] >= target)
    return _point(series, int(reached[0]) if reached.size else -1)


def _point(series: Series, index: int) -> Point:
    if index < 0:
        return Point(math.nan, math.nan, math.nan, math.nan)
    names = ("step", "seconds", "evaluations", "log_likelihood")
    return Point(*(float(series[name][index]) for name in names))


def common_target(one: Series, other: Series) -> float:
    """The lower of two histories' final training log-likelihoods: both reach it, nearly always.

    Near L = 0 a share of |L_max| means nothing, so that t95 breaks; this does not.
    """
    return min(float(one["log_likelihood"][-1]), float(other["log_likelihood"][-1]))


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean of the positive, finite values; NaN if there are none.

    Examples
    --------
    >>> round(geometric_mean([1.0, 100.0, float("nan")]), 9)
    10.0
    """
    logs = [math.log(value) for value in values if math.isfinite(value) and value > 0.0]
    return math.exp(math.fsum(logs) / len(logs)) if logs else math.nan


def competition_ranks(values: Sequence[float]) -> list[float]:
    """Standard competition ("1224") ranks, the highest value first; NaN has no rank.

    Examples
    --------
    >>> competition_ranks([2.0, 5.0, 5.0, 1.0])
    [3.0, 1.0, 1.0, 4.0]
    """
    return [
        math.nan if math.isnan(value) else 1.0 + sum(other > value for other in values)
        for value in values
    ]

"""Runs of deep mixtures, gathered by data set, model, algorithm and architecture."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pickmix.experiments.reproduction import measures
from pickmix.experiments.reproduction.history import COMPLETE, History
from pickmix.experiments.reproduction.runs import DeepRun
from pickmix.experiments.reproduction.tables.table import Number, Spread

Measure = Callable[[History], float]
# Data set, model, algorithm.
Place = tuple[str, str, str]
# A way to find the two points, of one run and of another, whose times are compared.
Points = Callable[[History, History], tuple[measures.Point, measures.Point]]


@dataclass
class Group:
    """All seeds of one model, on one set, by one algorithm.

    Attributes
    ----------
    runs : dict of int to DeepRun
        What was asked for, by seed.
    histories : dict of int to History
        What there is of it, failures left out, by seed.
    """

    runs: dict[int, DeepRun] = field(default_factory=dict)
    histories: dict[int, History] = field(default_factory=dict)

    def spread(self, measure: Measure) -> Spread:
        """Mean and standard deviation (divisor n - 1) over the seeds with a finite value."""
        found = self.finite(measure)
        values = list(found.values())
        return Spread(
            statistics.fmean(values) if values else math.nan,
            statistics.stdev(values) if len(values) > 1 else math.nan,
            cut=any(is_cut(self.histories[seed]) for seed in found),
        )

    def finite(self, measure: Measure) -> dict[int, float]:
        """The finite values, by seed."""
        values = {seed: measure(history) for seed, history in self.histories.items()}
        return {seed: value for seed, value in values.items() if math.isfinite(value)}


def gather(
    runs: Iterable[DeepRun], histories: Mapping[str, History]
) -> dict[Place, dict[str, Group]]:
    """Sort runs into groups, by (data set, model, algorithm) and then by architecture.

    Parameters
    ----------
    runs : iterable of DeepRun
        All seeds; runs that differ in more than the above and the seed cannot share a table.
    histories : mapping of str to History
        By `Run.key`; runs without one are missing.
    """
    found: dict[Place, dict[str, Group]] = {}
    for run in runs:
        architectures = found.setdefault((run.dataset, run.model, run.algorithm), {})
        group = architectures.setdefault(run.architecture, Group())
        known = group.runs.setdefault(run.seed, run)
        if known != run:
            raise ValueError(f"two runs for one cell of a table: {known} and {run}")
        history = histories.get(run.key)
        if history is not None and not history.failed:
            group.histories[run.seed] = history
    return found


def fact(name: str) -> Measure:
    """What reads a number off a history's facts."""
    return lambda history: float(history.facts.get(name, math.nan))


TEST, VALIDATION = fact("test"), fact("best_validation")


def train_at_t95(history: History) -> float:
    """Mean log-likelihood of training rows at t95."""
    return measures.t95(history.series).log_likelihood


def is_cut(history: History) -> bool:
    """Whether the run was broken off, most often by its time limit."""
    return history.facts.get("outcome") not in COMPLETE


def best_architecture(architectures: Mapping[str, Group]) -> Group:
    """The group with the highest mean validation value; the first of equal ones.

    The mean is over the seeds that have a value. If no group has any, an empty group.
    """
    means = {name: group.spread(VALIDATION).value for name, group in architectures.items()}
    known = {name: mean for name, mean in means.items() if math.isfinite(mean)}
    return architectures[max(known, key=known.__getitem__)] if known else Group()


def at_t95(one: History, other: History) -> tuple[measures.Point, measures.Point]:
    """The points at t95 of each."""
    return measures.t95(one.series), measures.t95(other.series)


def at_common_target(one: History, other: History) -> tuple[measures.Point, measures.Point]:
    """The first points at the lower of the two final training log-likelihoods."""
    # A minimum with NaN may be either of its arguments.
    if not (_ends_finite(one) and _ends_finite(other)):
        target = math.nan
    else:
        target = measures.common_target(one.series, other.series)
    return (
        measures.first_reaching(one.series, target),
        measures.first_reaching(other.series, target),
    )


def speed_up(slow: Group, fast: Group, points: Points, clock: str) -> Number:
    """How many times less of a clock `fast` takes: the median over seeds of ratios.

    Parameters
    ----------
    slow, fast : Group
        Seeds that only one of them has do not count.
    points : callable
        `at_t95` or `at_common_target`.
    clock : {"seconds", "evaluations"}
    """
    ratios, cut = [], False
    for seed in sorted(slow.histories.keys() & fast.histories.keys()):
        pair = slow.histories[seed], fast.histories[seed]
        above, below = (getattr(point, clock) for point in points(*pair))
        # Zero is the time of the start: whoever is best there was not fitted.
        if math.isfinite(above) and math.isfinite(below) and above > 0.0 and below > 0.0:
            ratios.append(above / below)
            cut = cut or any(is_cut(history) for history in pair)
    return Number(statistics.median(ratios) if ratios else math.nan, cut=cut)


def _ends_finite(history: History) -> bool:
    values = history.series["log_likelihood"]
    return len(values) > 0 and math.isfinite(float(values[-1]))

"""What the panels of the figures share: which histories they see and what they say they drew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from pickmix.experiments.reproduction.history import History
from pickmix.experiments.reproduction.runs import Run


@dataclass
class Shown:
    """What is in a panel, for the legend and the title.

    Attributes
    ----------
    algorithms : set of str
    counts : list of int
        Seeds behind each line or point.
    values : set of (str, value or None)
        Parameters and their values that have a shape.
    notes : set of str
        "truth", "t95" and "chance", if anything of the kind was drawn.
    """

    algorithms: set[str] = field(default_factory=set)
    counts: list[int] = field(default_factory=list)
    values: set[tuple[str, float | None]] = field(default_factory=set)
    notes: set[str] = field(default_factory=set)

    def update(self, other: Shown) -> None:
        """Add what is in another panel."""
        self.algorithms |= other.algorithms
        self.counts += other.counts
        self.values |= other.values
        self.notes |= other.notes


def by_algorithm(runs: Iterable[Run], histories: Mapping[str, History]) -> dict[str, list[History]]:
    """Histories of the runs that were measured and did not fail, each once."""
    groups: dict[str, list[History]] = {}
    for run in dict.fromkeys(runs):
        history = histories.get(run.key)
        if history is not None and not history.failed:
            groups.setdefault(run.algorithm, []).append(history)
    return groups


def median_truth(histories: Iterable[History]) -> float:
    """Median over seeds of the true mixture's log-likelihood, each seed once; NaN if not known."""
    truths = {}
    for history in histories:
        truth = float(history.facts["true_log_likelihood"])
        if np.isfinite(truth):
            truths[history.run.seed] = truth
    return float(np.median(list(truths.values()))) if truths else float("nan")

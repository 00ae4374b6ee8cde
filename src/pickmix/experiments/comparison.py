"""Results of `pickmix bench tables`, case by case, and who is better how often."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from pickmix.experiments.real_tables import TABLES, parse_name
from pickmix.experiments.results import END, NOT_TRIED, Results, Row
from pickmix.experiments.rivals import YARDSTICKS
from pickmix.experiments.tables import find_yardstick, measured, median, median_of, rivals_of

# Stands for the better of scikit-learn's starts, in the faster of its two forms.
SCIKIT_LEARN = "scikit-learn"
# Differences in held-out log-likelihood per row up to this many nats are ties.
TIE = 0.1
_SKLEARN_RIVALS = tuple(name for pair in YARDSTICKS for name in pair)


@dataclass(frozen=True, eq=False)
class Case:
    """A table with a number of components: medians over seeds.

    Attributes
    ----------
    table : str
    n_components : int
    n_rows, n_features : float
        Of the rows to fit; NaN if no run got so far.
    held_out, seconds : dict of str to float
        Of each rival that was tried, and of `SCIKIT_LEARN`; NaN where no run came to its end.
    ends : dict of str to list of Row
        Last rows of the runs of each rival.
    """

    table: str
    n_components: int
    n_rows: float
    n_features: float
    held_out: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    ends: dict[str, list[Row]] = field(default_factory=dict)

    def gain(self, rival: str, other: str = SCIKIT_LEARN) -> float:
        """Held-out log-likelihood per row above the other's; NaN if one of them has none."""
        return self.held_out.get(rival, math.nan) - self.held_out.get(other, math.nan)

    def seconds_ratio(self, rival: str, other: str = SCIKIT_LEARN) -> float:
        """Seconds divided by the other's; NaN if one of them has none."""
        theirs = self.seconds.get(other, math.nan)
        return self.seconds.get(rival, math.nan) / theirs if theirs else math.nan


def cases_of(results: Results) -> list[Case]:
    """All cases that there are results of, by table in the order of `TABLES` and by K."""
    settings = dict.fromkeys(row["setting"] for row in results.rows)
    found = [(*parsed, name) for name in settings if (parsed := parse_name(name)) is not None]
    # Tables that are no longer known come last.
    places = {name: place for place, name in enumerate(TABLES)}
    found.sort(key=lambda case: (places.get(case[0], len(places)), case))
    return [_case(results, setting, table, K) for table, K, setting in found]


def _case(results: Results, setting: str, table: str, n_components: int) -> Case:
    ends = {rival: results.of(setting, rival, END) for rival in rivals_of(results, setting)}
    rows = [row for of_rival in ends.values() for row in of_rival]
    case = Case(table, n_components, median(rows, "n_rows"), median(rows, "n_features"), ends=ends)
    for rival, of_rival in ends.items():
        if any(not row["outcome"].startswith(NOT_TRIED) for row in of_rival):
            good = measured(of_rival)
            case.held_out[rival] = median(good, "held_out")
            case.seconds[rival] = median(good, "seconds")
    tried = [rival for rival in _SKLEARN_RIVALS if rival in case.held_out]
    if tried:
        yardstick = find_yardstick(ends) or tried[0]
        case.held_out[SCIKIT_LEARN] = case.held_out[yardstick]
        case.seconds[SCIKIT_LEARN] = case.seconds[yardstick]
    return case


def challengers(cases: Iterable[Case]) -> list[str]:
    """Rivals that are not scikit-learn's, in the order of `RIVALS`; the library's default first."""
    rivals = dict.fromkeys(rival for case in cases for rival in case.ends)
    others = [rival for rival in rivals if rival not in _SKLEARN_RIVALS]
    return sorted(others, key=lambda rival: rival != "pickmix")


@dataclass(frozen=True)
class Comparison:
    """How one rival did against another over some cases.

    Attributes
    ----------
    wins, ties, losses : int
        A gain of more than 0.1 nats per row is a win. Who came to no end where the other did has
        lost; cases in which neither did, or which one of them was not tried on, do not count.
    median_gain : float
        Over the cases that both came to the end of.
    median_seconds_ratio : float
        Of the rival's seconds and the other's, over the same cases.

    Examples
    --------
    >>> case = Case("wine", 8, 68, 13, {"em": -11.0, "pickmix": -10.0}, {"em": 2.0, "pickmix": 1.0})
    >>> compare([case], "pickmix", "em")
    Comparison(wins=1, ties=0, losses=0, median_gain=1.0, median_seconds_ratio=0.5)
    """

    wins: int
    ties: int
    losses: int
    median_gain: float
    median_seconds_ratio: float

    @property
    def n_cases(self) -> int:
        """Cases that count."""
        return self.wins + self.ties + self.losses


def compare(cases: Iterable[Case], rival: str, other: str = SCIKIT_LEARN) -> Comparison:
    """Compare two rivals over all cases that both were tried on."""
    shared = [case for case in cases if rival in case.held_out and other in case.held_out]
    verdicts = [_verdict(case, rival, other) for case in shared]
    return Comparison(
        verdicts.count("win"),
        verdicts.count("tie"),
        verdicts.count("loss"),
        median_of(case.gain(rival, other) for case in shared),
        median_of(case.seconds_ratio(rival, other) for case in shared),
    )


def _verdict(case: Case, rival: str, other: str) -> str | None:
    ended, other_ended = (not math.isnan(case.held_out[name]) for name in (rival, other))
    if not (ended and other_ended):
        return "win" if ended else "loss" if other_ended else None
    gain = case.gain(rival, other)
    # Of two that are minus infinity the difference is no number.
    return "win" if gain > TIE else "loss" if gain < -TIE else "tie"

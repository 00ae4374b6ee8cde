"""Runs of deep mixtures, gathered, compared and summed up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pickmix.data.uci import NAMES
from pickmix.experiments import measures, runs
from pickmix.experiments.store import History
from pickmix.experiments.tables import paper_numbers as paper
from pickmix.experiments.tables.table import Cell, Row, with_best

Histories = Mapping[str, History]
# Endings of the keys of columns.
KEYS = {runs.SGD: "sgd", runs.MHSAEM_U: "mhsaem_u", runs.MHSAEM_P: "mhsaem_p"}
KEYS |= {name: name.split()[-1].lower() for name in runs.DEFAULTS}
_PLACE = ["dataset", "model", "algorithm"]


def gather(some: Iterable[runs.Run], histories: Histories, best: bool = False) -> Any:
    """A frame of all deep runs, also of those without a result; `shown` are those of the tables.

    With `best`, they are those of the architecture with the highest mean validation value over the
    seeds that have one; else there may be one architecture for each set, model and algorithm.
    """
    deep = [run for run in some if isinstance(run, runs.DeepRun)]
    frame = measures.frame_of(deep, histories, every=True)
    if not len(frame):
        return frame
    frame["architecture"] = [run.architecture for run in frame["run"]]
    twice = frame.loc[frame.duplicated([*_PLACE, "architecture", "seed"]), "run"]
    if len(twice):
        raise ValueError(f"two runs for one cell of a table: one of them is {twice.iloc[0]}")
    if best:
        known = finite(frame, "best_validation").groupby([*_PLACE, "architecture"], sort=False)
        # The first of equal ones.
        chosen = known["best_validation"].mean().groupby(_PLACE).idxmax()
        cells = frame[[*_PLACE, "architecture"]].itertuples(index=False, name=None)
        frame["shown"] = [cell in set(chosen) for cell in cells]
        return frame
    for place, names in frame.groupby(_PLACE)["architecture"].unique().items():
        if len(names) > 1:
            raise ValueError(f"expected one architecture for {place}, got {list(names)}")
    return frame.assign(shown=True)


def in_order(names: Iterable[str]) -> list[str]:
    """Names of sets in the order of `NAMES`, each once, others last."""
    there = set(names)
    return [name for name in NAMES if name in there] + sorted(there - set(NAMES))


def finite(frame: Any, name: str) -> Any:
    """Rows of a frame whose value is finite."""
    return frame[np.isfinite(frame[name].astype(float))]


def spread(frame: Any, name: str = "test") -> Cell:
    """Mean and standard deviation (divisor n - 1) over the seeds with a finite value."""
    known = finite(frame, name)
    if not len(known):
        return Cell()
    return Cell(float(known[name].mean()), float(known[name].std()), cut=bool(known["cut"].any()))


def pairs_of(one: Any, other: Any) -> list[tuple[History, History]]:
    """Histories of the seeds that two frames both have."""
    first, second = ({h.run.seed: h for h in f["history"] if not h.failed} for f in (one, other))
    return [(first[seed], second[seed]) for seed in sorted(first.keys() & second.keys())]


def reached(pair: tuple[History, History], point: str, clock: str) -> list[float]:
    """What a clock, "seconds" or "evaluations", shows at t95 or at the "common" target."""
    indices = list(measures.at_common_target(*pair))
    if point == "t95":
        indices = [measures.t95_index(h.series["log_likelihood"]) for h in pair]
    return [measures.at(h, index, clock) for h, index in zip(pair, indices, strict=True)]


def speed_up(slow: Any, fast: Any, point: str, clock: str) -> Cell:
    """How many times less of a clock `fast` takes: the median over seeds of ratios."""
    ratios, cut = [], False
    for pair in pairs_of(slow, fast):
        above, below = reached(pair, point, clock)
        # Zero is the time of the start: whoever is best there was not fitted.
        if 0.0 < above < math.inf and 0.0 < below < math.inf:
            ratios.append(above / below)
            cut = cut or any(history.cut for history in pair)
    return Cell(measures.median(ratios), cut=cut)


def summary_rows(
    rows: Sequence[Row], compared: Iterable[str], speed_ups: Sequence[str] = ()
) -> list[dict[str, Cell]]:
    """Sum up the rows of sets: mean ranks, how often which is higher, means of speed-ups.

    What is compared are log-likelihoods, column keys without `_sgd` and `_mhsaem_u`; sets where
    either is missing do not count. Of the columns of speed-ups the geometric mean is taken.
    """
    import pandas as pd

    numbers = pd.DataFrame([{c.key: cell.number for c, cell in row.items()} for row in rows])
    cuts = pd.DataFrame([{c.key: cell.cut for c, cell in row.items()} for row in rows])
    numbers = numbers.replace([np.inf, -np.inf], np.nan)
    ranks, higher = {"dataset": Cell("mean rank")}, {"dataset": Cell("sets where higher")}
    for key in compared:
        names = [f"{key}_{KEYS[a]}" for a in paper.ALGORITHMS]
        pairs = numbers[names].dropna()
        cut = bool(cuts.loc[pairs.index, names].any(axis=None))
        places = pairs.rank(axis=1, method="min", ascending=False)
        means, wins = places.mean(), (pairs > pairs[names[::-1]].to_numpy()).astype(float).sum()
        wins = wins if len(pairs) else means
        ranks |= with_best({n: Cell(float(means[n]), cut=cut) for n in names}, lowest=True)
        higher |= with_best({n: Cell(float(wins[n]), digits=0, cut=cut) for n in names})
    overall = {"dataset": Cell("geometric mean")}
    for key in speed_ups:
        known = numbers[key].dropna()
        cut = bool(cuts.loc[known.index, key].any())
        overall[key] = Cell(measures.geometric_mean(known), cut=cut)
    return [ranks, higher, overall] if speed_ups else [ranks, higher]

"""Rows that sum up sets: mean ranks, how often which is higher, geometric means of speed-ups."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from pickmix.experiments.reproduction.measures import competition_ranks, geometric_mean
from pickmix.experiments.reproduction.tables.table import Cell, Number, Row, Spread, Text, with_best

_ENDINGS = ("_sgd", "_mhsaem_u")


def summary_rows(
    sets: Sequence[Row], compared: Sequence[str], speed_ups: Sequence[str] = ()
) -> list[Row]:
    """Sum up the rows of sets.

    Parameters
    ----------
    sets : sequence of Row
        One per set.
    compared : sequence of str
        Column keys without `_sgd` and `_mhsaem_u`: log-likelihoods, higher is better. Sets where
        either is missing do not count.
    speed_ups : sequence of str
        Column keys of which the geometric mean is taken.
    """
    ranks: dict[str, Cell] = {"dataset": Text("mean rank")}
    higher: dict[str, Cell] = {"dataset": Text("sets where higher")}
    for key in compared:
        names = [key + ending for ending in _ENDINGS]
        pairs = [pair for row in sets if len(pair := _known(row, names)) == 2]
        cut = any(cell.cut for pair in pairs for cell in pair)
        values = [[cell.value for cell in pair] for pair in pairs]
        means, wins = [Number(), Number()], [Number(), Number()]
        if values:
            per_set = zip(*map(competition_ranks, values), strict=True)
            means = [Number(statistics.fmean(of_one), cut=cut) for of_one in per_set]
            wins = [
                Number(sum(pair[place] > pair[1 - place] for pair in values), digits=0, cut=cut)
                for place in (0, 1)
            ]
        ranks |= zip(names, with_best(means, lowest=True), strict=True)
        higher |= zip(names, with_best(wins), strict=True)
    found = [Row(ranks, summary=True), Row(higher, summary=True)]
    if speed_ups:
        means_of: dict[str, Cell] = {"dataset": Text("geometric mean")}
        for key in speed_ups:
            cells = [cell for row in sets for cell in _known(row, [key])]
            mean = geometric_mean([cell.value for cell in cells])
            means_of[key] = Number(mean, cut=any(cell.cut for cell in cells))
        found.append(Row(means_of, summary=True))
    return found


def _known(row: Row, keys: Sequence[str]) -> list[Number | Spread]:
    cells = [row.cells.get(key) for key in keys]
    return [
        cell for cell in cells if isinstance(cell, Number | Spread) and math.isfinite(cell.value)
    ]

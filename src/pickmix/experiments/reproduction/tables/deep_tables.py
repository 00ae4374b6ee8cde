"""Tables of deep mixtures, ours beside the paper's: its Tables 2 (best), 3 (fixed) and 4 (all).

Each function gives a table per model family. Ranks, counts and what is marked as best compare SGD
with MHSAEM-U, as in the paper; MHSAEM-P stands beside them if there are runs of it. In rows that
sum up sets, the paper's numbers are computed anew from those that it prints for the sets shown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from pickmix.data.uci import NAMES
from pickmix.experiments.reproduction.history import History
from pickmix.experiments.reproduction.runs import MHSAEM_P, MHSAEM_U, SGD, DeepRun
from pickmix.experiments.reproduction.tables import deep_groups as groups
from pickmix.experiments.reproduction.tables import paper_numbers as paper
from pickmix.experiments.reproduction.tables.deep_groups import Group, Place
from pickmix.experiments.reproduction.tables.deep_summaries import summary_rows
from pickmix.experiments.reproduction.tables.table import (
    Cell,
    Column,
    Number,
    Row,
    Spread,
    Table,
    Text,
    with_best,
)

FAMILIES = {
    paper.SPTN: "Sum-product-transform networks",
    paper.FLOW: "Mixtures of real NVP flows",
}
KEYS = {SGD: "sgd", MHSAEM_U: "mhsaem_u", MHSAEM_P: "mhsaem_p"}
_SET = Column("dataset", "data set")
_CLOCKS = {"seconds": "speed-up in time", "evaluations": "speed-up in evaluations"}
_POINTS = {"t95": groups.at_t95, "common": groups.at_common_target}
_POINT_HEADINGS = {"t95": "to t95", "common": "to common target"}
_ABOUT_SPEED_UP = (
    "Speed-up: SGD's time, or component evaluations, over MHSAEM-U's; the median over seeds. The "
    "common target is the lower of the two final training log-likelihoods."
)
_ABOUT_SPREAD = "Log-likelihoods are per row: mean ± standard deviation over seeds."


def fixed_table(runs: Iterable[DeepRun], histories: Mapping[str, History]) -> list[Table]:
    """One architecture per data set for all algorithms: the paper's Table 3.

    Parameters
    ----------
    runs : iterable of DeepRun
        All seeds; at most one architecture per data set and model.
    histories : mapping of str to History
        By `Run.key`.

    Returns
    -------
    list of Table
        One per model family there are runs of.
    """
    gathered = groups.gather(runs, histories)
    chosen = {}
    for place, architectures in gathered.items():
        if len(architectures) > 1:
            raise ValueError(f"expected one architecture for {place}, got {list(architectures)}")
        chosen[place] = next(iter(architectures.values()))
    tables = []
    for model, algorithms in _families(gathered):
        columns = [
            _SET,
            *[Column(f"test_{KEYS[a]}", a, "test", spread=True) for a in algorithms],
            *[Column(f"seeds_{KEYS[a]}", a, "seeds") for a in algorithms],
            *[
                Column(f"{clock}_{point}", _POINT_HEADINGS[point], heading)
                for clock, heading in _CLOCKS.items()
                for point in _POINTS
            ],
            *[Column(f"paper_test_{KEYS[a]}", f"test {a}", "paper") for a in paper.ALGORITHMS],
            Column("paper_speed_up", "speed-up", "paper"),
        ]
        rows = []
        for name in _sets(gathered, model):
            found = {a: chosen.get((name, model, a), Group()) for a in algorithms}
            cells: dict[str, Cell] = {"dataset": Text(name)}
            cells |= _spreads("test", found, groups.TEST) | _seeds(found)
            cells |= _speed_ups(found, _CLOCKS)
            cells |= _papers("paper_test", paper.FIXED_TEST, name, model)
            cells["paper_speed_up"] = Number(paper.FIXED_SPEED_UP.get((name, model), math.nan))
            rows.append(Row(cells))
        speed_ups = [f"{clock}_{point}" for clock in _CLOCKS for point in _POINTS]
        rows += summary_rows(rows, ["test", "paper_test"], [*speed_ups, "paper_speed_up"])
        notes = [_ABOUT_SPREAD, _ABOUT_SPEED_UP, *_about_runs(gathered, chosen, model)]
        title = f"{FAMILIES[model]}: fixed architecture"
        tables.append(Table(model, title, tuple(columns), tuple(rows), tuple(notes)))
    return tables


def best_table(runs: Iterable[DeepRun], histories: Mapping[str, History]) -> list[Table]:
    """Each algorithm with the architecture of the best validation value: the paper's Table 2.

    Parameters and what is returned are as in `fixed_table`, with any number of architectures.
    """
    gathered = groups.gather(runs, histories)
    chosen = {place: groups.best_architecture(found) for place, found in gathered.items()}
    tables = []
    for model, algorithms in _families(gathered):
        columns = [_SET]
        for a in algorithms:
            # The architecture of a mixture of flows is its K.
            if model == paper.SPTN:
                columns.append(Column(f"architecture_{KEYS[a]}", "architecture", a))
            columns.append(Column(f"K_{KEYS[a]}", "K", a))
            columns.append(Column(f"test_{KEYS[a]}", "test", a, spread=True))
            columns.append(Column(f"seeds_{KEYS[a]}", "seeds", a))
        columns += [
            Column(f"seconds_{point}", heading, _CLOCKS["seconds"])
            for point, heading in _POINT_HEADINGS.items()
        ]
        for a in paper.ALGORITHMS:
            columns.append(Column(f"paper_K_{KEYS[a]}", f"K {a}", "paper"))
            columns.append(Column(f"paper_test_{KEYS[a]}", f"test {a}", "paper", spread=True))
        columns.append(Column("paper_speed_up", "speed-up", "paper"))
        rows = []
        for name in _sets(gathered, model):
            found = {a: chosen.get((name, model, a), Group()) for a in algorithms}
            cells: dict[str, Cell] = {"dataset": Text(name)}
            for a, group in found.items():
                run = next(iter(group.runs.values()), None)
                if model == paper.SPTN:
                    cells[f"architecture_{KEYS[a]}"] = Text(run.architecture if run else "")
                cells[f"K_{KEYS[a]}"] = Number(run.K if run else math.nan, digits=0)
            cells |= _spreads("test", found, groups.TEST) | _seeds(found)
            cells |= _speed_ups(found, ["seconds"])
            cells |= _papers("paper_test", paper.BEST_TEST, name, model, paper.BEST_STD)
            for a in paper.ALGORITHMS:
                K = paper.BEST_K.get((name, model, a), math.nan)
                cells[f"paper_K_{KEYS[a]}"] = Number(K, digits=0)
            cells["paper_speed_up"] = Number(paper.BEST_SPEED_UP.get((name, model), math.nan))
            rows.append(Row(cells))
        speed_ups = [*[f"seconds_{point}" for point in _POINTS], "paper_speed_up"]
        rows += summary_rows(rows, ["test", "paper_test"], speed_ups)
        chosen_by = "The architecture is the one with the best mean validation value over seeds."
        notes = [chosen_by, _ABOUT_SPREAD, _ABOUT_SPEED_UP, *_about_runs(gathered, chosen, model)]
        title = f"{FAMILIES[model]}: best architecture by validation"
        tables.append(Table(model, title, tuple(columns), tuple(rows), tuple(notes)))
    return tables


def all_table(runs: Iterable[DeepRun], histories: Mapping[str, History]) -> list[Table]:
    """Training, validation and test values of the models of `best_table`: the paper's Table 4.

    Parameters and what is returned are as in `best_table`.
    """
    gathered = groups.gather(runs, histories)
    chosen = {place: groups.best_architecture(found) for place, found in gathered.items()}
    quantities = {
        "train": ("training at t95", groups.train_at_t95, paper.TRAIN),
        "validation": ("validation", groups.VALIDATION, paper.VALIDATION),
        "test": ("test", groups.TEST, paper.TEST),
    }
    tables = []
    for model, algorithms in _families(gathered):
        columns = [_SET]
        for key, (heading, _, _) in quantities.items():
            columns += [Column(f"{key}_{KEYS[a]}", a, heading, spread=True) for a in algorithms]
            columns += [
                Column(f"paper_{key}_{KEYS[a]}", f"paper {a}", heading) for a in paper.ALGORITHMS
            ]
        rows = []
        for name in _sets(gathered, model):
            found = {a: chosen.get((name, model, a), Group()) for a in algorithms}
            cells: dict[str, Cell] = {"dataset": Text(name)}
            for key, (_, measure, papers) in quantities.items():
                cells |= _spreads(key, found, measure)
                cells |= _papers(f"paper_{key}", papers, name, model)
            rows.append(Row(cells))
        rows += summary_rows(rows, [f"{who}{key}" for key in quantities for who in ("", "paper_")])
        notes = ["The architectures are the best by validation.", _ABOUT_SPREAD]
        notes += _about_runs(gathered, chosen, model)
        title = f"{FAMILIES[model]}: all log-likelihoods of the best architectures"
        tables.append(Table(model, title, tuple(columns), tuple(rows), tuple(notes)))
    return tables


def _families(gathered: Iterable[Place]) -> list[tuple[str, list[str]]]:
    """Models that there are runs of, each with the algorithms that have columns."""
    found = []
    for model in FAMILIES:
        there = {algorithm for _, its_model, algorithm in gathered if its_model == model}
        if there:
            found.append((model, [a for a in KEYS if a in there or a in paper.ALGORITHMS]))
    return found


def _sets(gathered: Iterable[Place], model: str) -> list[str]:
    there = {dataset for dataset, its_model, _ in gathered if its_model == model}
    return [name for name in NAMES if name in there] + sorted(there - set(NAMES))


def _spreads(key: str, found: Mapping[str, Group], measure: groups.Measure) -> dict[str, Cell]:
    spreads = {a: group.spread(measure) for a, group in found.items()}
    compared = with_best([spreads[a] for a in paper.ALGORITHMS])
    spreads |= zip(paper.ALGORITHMS, compared, strict=True)
    return {f"{key}_{KEYS[a]}": spread for a, spread in spreads.items()}


def _seeds(found: Mapping[str, Group]) -> dict[str, Cell]:
    return {
        f"seeds_{KEYS[a]}": Number(len(group.finite(groups.TEST)), digits=0)
        for a, group in found.items()
    }


def _speed_ups(found: Mapping[str, Group], clocks: Iterable[str]) -> dict[str, Cell]:
    return {
        f"{clock}_{point}": groups.speed_up(found[SGD], found[MHSAEM_U], points, clock)
        for clock in clocks
        for point, points in _POINTS.items()
    }


def _papers(
    key: str,
    numbers: paper.ByAlgorithm,
    dataset: str,
    model: str,
    stds: paper.ByAlgorithm | None = None,
) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    values = [Number(numbers.get((dataset, model, a), math.nan)) for a in paper.ALGORITHMS]
    for a, number in zip(paper.ALGORITHMS, with_best(values), strict=True):
        cells[f"{key}_{KEYS[a]}"] = number
        if stds is not None:
            std = stds.get((dataset, model, a), math.nan)
            cells[f"{key}_{KEYS[a]}"] = Spread(number.value, std, best=number.best)
    return cells


def _about_runs(
    gathered: Mapping[Place, Mapping[str, Group]], chosen: Mapping[Place, Group], model: str
) -> list[str]:
    """Notes on runs without a result and on shown runs that were cut."""
    notes = []
    compared = [
        group
        for (_, its_model, _), architectures in gathered.items()
        for group in architectures.values()
        if its_model == model
    ]
    asked = sum(len(group.runs) for group in compared)
    lost = asked - sum(len(group.finite(groups.TEST)) for group in compared)
    if lost:
        notes.append(f"{lost} of {asked} runs have no result: not run, failed or not finite.")
    shown = [group for (_, its_model, _), group in chosen.items() if its_model == model]
    histories = [history for group in shown for history in group.histories.values()]
    ends = Counter(str(h.facts.get("outcome")) for h in histories if groups.is_cut(h))
    if ends:
        counts = ", ".join(f"{count} by {end}" for end, count in sorted(ends.items()))
        notes.append(
            f"† Rests on a run that was cut ({counts}); it counts with what it had reached."
        )
    return notes

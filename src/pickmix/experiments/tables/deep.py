"""Tables of deep mixtures, ours beside the paper's: its Tables 2 (best), 3 (fixed) and 4 (all).

Each function takes runs of all seeds and histories by `Run.key`, and gives a table for each model
family there are runs of. Ranks, counts and what is marked as best compare SGD with MHSAEM-U, as in
the paper; MHSAEM-P stands beside them if there are runs of it. In rows that sum up sets, the
paper's numbers are computed again from those that it prints for the sets shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pickmix.experiments.measures import frame_of, median
from pickmix.experiments.runs import DEFAULTS, MHSAEM_U, SGD, DeepRun, DefaultRun, Run
from pickmix.experiments.tables import deep_parts as parts
from pickmix.experiments.tables import paper_numbers as paper
from pickmix.experiments.tables.deep_parts import KEYS, Histories, finite, spread
from pickmix.experiments.tables.table import Cell, Column, Row, Table, with_best

# Frames of the algorithms that have columns.
Found = dict[str, Any]

FAMILIES = {paper.SPTN: "Sum-product-transform networks", paper.FLOW: "Mixtures of real NVP flows"}
_SET = Column("dataset", "data set")
_CLOCKS = {"seconds": "speed-up in time", "evaluations": "speed-up in evaluations"}
_POINTS = {"t95": "to t95", "common": "to common target"}
_STARTS = {"gaussian": "Gaussian start", "paper": "paper's start"}
_ABOUT_SPREAD = "Log-likelihoods are per row: mean ± standard deviation over seeds."
_ABOUT = [
    _ABOUT_SPREAD,
    "Speed-up: SGD's time, or component evaluations, over MHSAEM-U's; the median over seeds. The "
    "common target is the lower of the two final training log-likelihoods.",
]


def _each(
    key: str, group: str, cells: Mapping[str, Cell], heading: str = "{}", spread: bool = False
) -> Row:
    """A column for each algorithm."""
    names = {a: Column(f"{key}_{KEYS[a]}", heading.format(a), group, spread) for a in cells}
    return {names[a]: cell for a, cell in cells.items()}


def _means(found: Found, name: str = "test") -> dict[str, Cell]:
    """Means over seeds by algorithm; the better of the paper's two is marked."""
    cells = {a: spread(frame, name) for a, frame in found.items()}
    return cells | with_best({a: cells[a] for a in paper.ALGORITHMS})


def _seeds(found: Found) -> dict[str, Cell]:
    return {a: Cell(len(finite(frame, "test")), digits=0) for a, frame in found.items()}


def _speed_ups(found: Found, clocks: Iterable[str] = _CLOCKS) -> Row:
    pair = found[SGD], found[MHSAEM_U]
    places = [(clock, point) for clock in clocks for point in _POINTS]
    return {
        Column(f"{c}_{p}", _POINTS[p], _CLOCKS[c]): parts.speed_up(*pair, p, c) for c, p in places
    }


def _printed(
    numbers: paper.ByAlgorithm, name: str, model: str, stds: paper.ByAlgorithm | None = None
) -> dict[str, Cell]:
    """The paper's numbers of a set and model, by algorithm, the better one marked."""
    keys = {a: (name, model, a) for a in paper.ALGORITHMS}
    nan = math.nan
    return with_best(
        {a: Cell(numbers.get(k, nan), (stds or {}).get(k, nan)) for a, k in keys.items()}
    )


def _printed_speed_up(numbers: paper.ByModel, name: str, model: str) -> Row:
    cell = Cell(numbers.get((name, model), math.nan))
    return {Column("paper_speed_up", "speed-up", "paper"): cell}


def _tables(
    frame: Any,
    title: str,
    notes: list[str],
    make: Callable[[str, str, Found], Row],
    compared: Sequence[str],
    speed_ups: Sequence[str] = (),
) -> list[Table]:
    """A table per family; `make` gives a set's cells beyond its name."""
    tables = []
    for model, family in FAMILIES.items() if len(frame) else ():
        of_model = frame[frame["model"] == model]
        there = set(of_model["algorithm"])
        algorithms = [a for a in KEYS if a in there or a in paper.ALGORITHMS]
        shown = of_model[of_model["shown"]]
        rows = []
        for name in parts.in_order(of_model["dataset"]):
            here = shown[shown["dataset"] == name]
            found = {a: here[here["algorithm"] == a] for a in algorithms}
            rows.append({_SET: Cell(name)} | make(name, model, found))
        if rows:
            about = [*notes, *_about_runs(of_model)]
            summaries = parts.summary_rows(rows, compared, speed_ups)
            tables.append(Table(model, f"{family}: {title}", rows, about, summaries))
    return tables


def _about_runs(frame: Any) -> list[str]:
    """Notes on runs without a result and on shown runs that were cut."""
    notes = []
    lost = len(frame) - len(finite(frame, "test"))
    if lost:
        notes.append(f"{lost} of {len(frame)} runs have no result: not run, failed or not finite.")
    ends = list(frame.loc[frame["shown"] & frame["cut"] & ~frame["failed"], "outcome"])
    if ends:
        counts = ", ".join(f"{ends.count(end)} by {end}" for end in sorted(set(ends)))
        notes.append(
            f"† Rests on a run that was cut ({counts}); it counts with what it had reached."
        )
    return notes


def fixed_tables(runs: Iterable[Run], histories: Histories) -> list[Table]:
    """One architecture per data set for all algorithms: the paper's Table 3; and our defaults."""
    runs = list(runs)

    def make(name: str, model: str, found: Found) -> Row:
        row = _each("test", "test", _means(found), spread=True)
        row |= _each("seeds", "seeds", _seeds(found)) | _speed_ups(found)
        row |= _each("paper_test", "paper", _printed(paper.FIXED_TEST, name, model), "test {}")
        return row | _printed_speed_up(paper.FIXED_SPEED_UP, name, model)

    speed_ups = [f"{clock}_{point}" for clock in _CLOCKS for point in _POINTS]
    compared = ["test", "paper_test"]
    frame = parts.gather(runs, histories)
    speed_ups.append("paper_speed_up")
    tables = _tables(frame, "fixed architecture", _ABOUT, make, compared, speed_ups)
    return tables + _default_table(runs, histories)


def best_tables(runs: Iterable[Run], histories: Histories) -> list[Table]:
    """Each algorithm with the architecture of the best validation value: the paper's Table 2."""

    def make(name: str, model: str, found: Found) -> Row:
        row: Row = {}
        means, seeds = _means(found), _seeds(found)
        for a, frame in found.items():
            run = frame["run"].iloc[0] if len(frame) else None
            cells = {"architecture": Cell(run.architecture if run else "")}
            cells["K"] = Cell(run.K if run else math.nan, digits=0)
            cells |= {"test": means[a], "seeds": seeds[a]}
            # The architecture of a mixture of flows is its K.
            if model == paper.FLOW:
                del cells["architecture"]
            for key, cell in cells.items():
                row[Column(f"{key}_{KEYS[a]}", key, a, spread=key == "test")] = cell
        row |= _speed_ups(found, ["seconds"])
        for a, cell in _printed(paper.BEST_TEST, name, model, paper.BEST_STD).items():
            K = Cell(paper.BEST_K.get((name, model, a), math.nan), digits=0)
            row |= _each("paper_K", "paper", {a: K}, "K {}")
            row |= _each("paper_test", "paper", {a: cell}, "test {}", spread=True)
        return row | _printed_speed_up(paper.BEST_SPEED_UP, name, model)

    frame = parts.gather(runs, histories, best=True)
    chosen_by = "The architecture is the one with the best mean validation value over seeds."
    title, compared = "best architecture by validation", ["test", "paper_test"]
    speed_ups = [*(f"seconds_{point}" for point in _POINTS), "paper_speed_up"]
    return _tables(frame, title, [chosen_by, *_ABOUT], make, compared, speed_ups)


def all_tables(runs: Iterable[Run], histories: Histories) -> list[Table]:
    """Training, validation and test values of the models of `best_tables`: the paper's Table 4."""
    quantities = {
        "train": ("training at t95", "t95", paper.TRAIN),
        "validation": ("validation", "best_validation", paper.VALIDATION),
        "test": ("test", "test", paper.TEST),
    }

    def make(name: str, model: str, found: Found) -> Row:
        row: Row = {}
        for key, (heading, values, numbers) in quantities.items():
            row |= _each(key, heading, _means(found, values), spread=True)
            row |= _each(f"paper_{key}", heading, _printed(numbers, name, model), "paper {}")
        return row

    frame = parts.gather(runs, histories, best=True)
    title = "all log-likelihoods of the best architectures"
    notes = ["The architectures are the best by validation.", _ABOUT_SPREAD]
    compared = [f"{who}{key}" for key in quantities for who in ("", "paper_")]
    return _tables(frame, title, notes, make, compared)


def start_tables(runs: Iterable[Run], histories: Histories) -> list[Table]:
    """SGD and MHSAEM-U from a Gaussian start, and beside them from the paper's."""
    deep = [run for run in runs if isinstance(run, DeepRun)]
    frames = {s: parts.gather([run for run in deep if run.start == s], histories) for s in _STARTS}

    def make(name: str, model: str, _: Found) -> Row:
        row: Row = {}
        for start, words in _STARTS.items():
            here = frames[start]
            here = here[(here["dataset"] == name) & (here["model"] == model)]
            found = {a: here[here["algorithm"] == a] for a in paper.ALGORITHMS}
            row |= _each(f"{start}_test", f"test, {words}", _means(found), spread=True)
            both = found[SGD], found[MHSAEM_U]
            pairs = parts.pairs_of(*both)
            times = [parts.reached(pair, "common", "seconds") for pair in pairs]
            cells = {
                a: Cell(median([t[place] for t in times]), cut=any(p[place].cut for p in pairs))
                for place, a in enumerate(paper.ALGORITHMS)
            }
            row |= _each(f"{start}_to_target", f"seconds to target, {words}", cells)
            for clock, group in _CLOCKS.items():
                cell = parts.speed_up(*both, "common", clock)
                row[Column(f"{start}_{clock}", words, group)] = cell
        return row

    compared = [f"{start}_test" for start in _STARTS]
    speed_ups = [f"{start}_{clock}" for start in _STARTS for clock in _CLOCKS]
    frame, title = frames["gaussian"], "where the fit starts"
    tables = _tables(frame, title, _ABOUT, make, compared, speed_ups)
    for table in tables:
        papers = frames["paper"][frames["paper"]["model"] == table.name]
        table.notes.extend(f"From the paper's start: {note}" for note in _about_runs(papers))
    return tables


def _default_table(runs: Iterable[Run], histories: Histories) -> list[Table]:
    """Estimators as they come, beside the best number that the paper prints for a set."""
    frame = frame_of([run for run in runs if isinstance(run, DefaultRun)], histories)
    rows: list[Row] = []
    best_of_paper = Column("paper_best", "best of Tables 2 and 3", "paper")
    ours = Column("test_chosen", "the best by validation", "test", spread=True)
    for name in parts.in_order(frame["dataset"]) if len(frame) else ():
        here = frame[frame["dataset"] == name]
        found = {a: here[here["algorithm"] == a] for a in DEFAULTS}
        tests = with_best({a: spread(some) for a, some in found.items()})
        row = {_SET: Cell(name)} | _each("test", "test", tests, spread=True)
        # For each seed, what one would deliver who knows no test rows.
        known = finite(finite(here, "test"), "best_validation")
        row[ours] = spread(known.loc[known.groupby("seed")["best_validation"].idxmax()])
        printed = [*paper.FIXED_TEST.items(), *paper.BEST_TEST.items()]
        values = [value for (dataset, *_), value in printed if dataset == name]
        row[best_of_paper] = Cell(max(values, default=math.nan))
        for fact, heading, digits in (("seconds", "seconds", 1), ("n_components", "components", 0)):
            cells = {a: Cell(median(some[fact]), digits=digits) for a, some in found.items()}
            row |= _each(heading, heading, cells)
        rows.append(row | _each("seeds", "seeds", _seeds(found)))
    if not rows:
        return []
    above = {"dataset": Cell("sets above the paper's best")}
    for column in rows[0]:
        if column.group == "test":
            wins = [row[column].number > row[best_of_paper].number for row in rows]
            above[column.key] = Cell(sum(wins), digits=0)
    notes = [
        "Estimators as they come; the number of components is chosen on validation rows.",
        "Seconds are start and work, without compilation; medians over seeds.",
    ]
    return [Table("defaults", "Our defaults", rows, notes, [above])]

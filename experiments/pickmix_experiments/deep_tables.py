"""Tables of deep mixtures, ours beside the paper's: its Tables 2 (best), 3 (fixed) and 4 (all).

Each function takes runs of all seeds and the rows of a store, and gives a table for each model
family there are runs of. Ranks, counts and what is marked as best compare SGD with MHSAEM-U, as in
the paper; MHSAEM-P stands beside them if there are runs of it. In rows that sum up sets, the
paper's numbers are computed again from those that it prints for the sets shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pickmix_experiments.runs import DEFAULTS, MHSAEM_P, MHSAEM_U, SGD, DeepRun, DefaultRun, Run
from pickmix_experiments.store import Rows, at, frame_of, median
from pickmix_experiments.tables import Cell, Column, Row, Table, with_best
from pickmix_experiments.uci import NAMES

# Frames of the algorithms that have columns.
Frames = dict[str, Any]

SPTN, FLOW = "sptn", "flow"
FAMILIES = {SPTN: "Sum-product-transform networks", FLOW: "Mixtures of real NVP flows"}
# Those that the paper compares, and the endings of the keys of columns.
COMPARED = (SGD, MHSAEM_U)
KEYS = {SGD: "sgd", MHSAEM_U: "mhsaem_u", MHSAEM_P: "mhsaem_p"}
KEYS |= {name: name.split()[-1].lower() for name in DEFAULTS}
# The numbers that the paper prints, by data set and model: M. Papež, T. Pevný, V. Šmídl: Fitting
# large mixture models using stochastic component selection, arXiv:2110.04776. Columns `best_...`
# are Table 2 (the architecture with the best validation value for each algorithm), `fixed_...`
# Table 3 (one architecture: K = 1024 for networks, 128 for flows), the others Table 4 (training at
# t95, test and validation means of Table 2). Digits are as printed, means are over five
# repetitions. Tables 2 and 4 leave out statlog-satimage, although the text counts wins "out of 19"
# there. The speed-up is the time of SGD over that of MHSAEM-U; the captions say it the other way
# round.
PAPER = pd.read_csv(Path(__file__).with_name("paper_numbers.csv"), index_col=["dataset", "model"])

_SET = Column("dataset", "data set")
_PLACE = ["dataset", "model", "algorithm"]
_COLUMNS = [*_PLACE, "architecture", "K", "seed", "shown", "outcome", "failed", "cut", "trace"]
_COLUMNS += ["t95", "t95_index", "best_validation", "test"]
_CLOCKS = {"seconds": "speed-up in time", "evaluations": "speed-up in evaluations"}
_POINTS = {"t95": "to t95", "common": "to common target"}
_STARTS = {"gaussian": "Gaussian start", "paper": "paper's start"}
_ABOUT_SPREAD = "Log-likelihoods are per row: mean ± standard deviation over seeds."
_ABOUT = [
    _ABOUT_SPREAD,
    "Speed-up: SGD's time, or component evaluations, over MHSAEM-U's; the median over seeds. The "
    "common target is the lower of the two final training log-likelihoods.",
]


def printed(column: str, name: str, model: str) -> float:
    """Return a number of the paper, NaN if it prints none."""
    return float(PAPER[column].get((name, model), math.nan))


def gather(runs: Iterable[Run], rows: Rows, best: bool = False) -> pd.DataFrame:
    """Return a frame of all deep runs, also without a result; `shown` are those of the tables.

    With `best`, they are those of the architecture with the highest mean validation value over the
    seeds that have one; else there is one architecture for each set, model and algorithm.
    """
    frame = frame_of(rows, [run for run in runs if isinstance(run, DeepRun)], every=True)
    architectures = [
        f"K={row.K}" if row.model == FLOW else f"s={row.s:g} b={row.b:g} l={row.l:g}"
        for row in frame.itertuples()
    ]
    frame = frame.assign(architecture=architectures, shown=True)[_COLUMNS]
    if best:
        known = _finite(frame, "best_validation").groupby([*_PLACE, "architecture"], sort=False)
        # The first of equal ones.
        chosen = set(known["best_validation"].mean().groupby(_PLACE).idxmax())
        cells = frame[[*_PLACE, "architecture"]].itertuples(index=False, name=None)
        frame["shown"] = [cell in chosen for cell in cells]
    return frame


def _in_order(names: Iterable[str]) -> list[str]:
    """Return names of sets in the order of `NAMES`, each once, others last."""
    present = set(names)
    return [name for name in NAMES if name in present] + sorted(present - set(NAMES))


def _finite(frame: Any, name: str) -> Any:
    return frame[np.isfinite(frame[name])]


def spread(frame: Any, name: str = "test") -> Cell:
    """Return mean and standard deviation (divisor n - 1) over the seeds with a finite value."""
    known = _finite(frame, name)
    return Cell(float(known[name].mean()), float(known[name].std()), cut=bool(known["cut"].any()))


Reached = tuple[float, float, bool, bool]


def _reached(slow: Any, fast: Any, point: str, clock: str) -> list[Reached]:
    """Return "seconds" or "evaluations" of two algorithms, and whether they were cut, by seed.

    They are those at t95 or at the "common" target, the lower of two final training
    log-likelihoods: near L = 0 a share of |L_max| means nothing, so that t95 breaks.
    """
    one, other = (
        {row.seed: row for row in frame.itertuples() if not row.failed} for frame in (slow, fast)
    )
    reached = []
    for seed in sorted(one.keys() & other.keys()):
        first, second = one[seed], other[seed]
        indices = first.t95_index, second.t95_index
        if point == "common":
            curves = [row.trace["log_likelihood"] for row in (first, second)]
            indices = first_at_common_target(*curves)
        values = at(first.trace, indices[0], clock), at(second.trace, indices[1], clock)
        reached.append((*values, first.cut, second.cut))
    return reached


def first_at_common_target(one: np.ndarray, other: np.ndarray) -> tuple[int, int]:
    """Return the first records at the lower of two ends of curves, -1 if an end is not finite.

    Examples
    --------
    >>> first_at_common_target(np.array([0.0, 5.0, 9.0]), np.array([0.0, 4.0, 4.5]))
    (1, 2)
    """
    target = np.min([one[-1], other[-1]])
    if not np.isfinite(target):
        return -1, -1
    return int(np.argmax(one >= target)), int(np.argmax(other >= target))


def speed_up(slow: Any, fast: Any, point: str, clock: str) -> Cell:
    """Return how many times less of a clock `fast` takes: the median over seeds of ratios."""
    # Zero is the time of the start: a run that is best there was not fitted.
    pairs = [p for p in _reached(slow, fast, point, clock) if p[0] > 0.0 and p[1] > 0.0]
    ratios = [above / below for above, below, *_ in pairs]
    return Cell(median(ratios), cut=any(pair[2] or pair[3] for pair in pairs))


def summary_rows(
    rows: Sequence[Row], compared: Iterable[str], speed_ups: Sequence[str] = ()
) -> list[dict[str, Cell]]:
    """Sum up the rows of sets: mean ranks, how often which is higher, means of speed-ups.

    What is compared are log-likelihoods, column keys without `_sgd` and `_mhsaem_u`; sets where
    either is missing do not count. Of the columns of speed-ups the geometric mean is taken.
    """
    numbers = pd.DataFrame([{c.key: cell.number for c, cell in row.items()} for row in rows])
    cuts = pd.DataFrame([{c.key: cell.cut for c, cell in row.items()} for row in rows])
    numbers = numbers.replace([np.inf, -np.inf], np.nan)
    ranks, higher = {"dataset": Cell("mean rank")}, {"dataset": Cell("sets where higher")}
    for key in compared:
        names = [f"{key}_{KEYS[a]}" for a in COMPARED]
        pairs = numbers[names].dropna()
        cut = bool(cuts.loc[pairs.index, names].any(axis=None))
        means = pairs.rank(axis=1, method="min", ascending=False).mean()
        wins = (pairs > pairs[names[::-1]].to_numpy()).astype(float).sum()
        wins = wins if len(pairs) else means
        ranks |= with_best({n: Cell(float(means[n]), cut=cut) for n in names}, lowest=True)
        higher |= with_best({n: Cell(float(wins[n]), digits=0, cut=cut) for n in names})
    overall = {"dataset": Cell("geometric mean")}
    for key in speed_ups:
        known = numbers[key].dropna()
        cut = bool(cuts.loc[known.index, key].any())
        overall[key] = Cell(math.exp(np.log(known).mean()) if len(known) else math.nan, cut=cut)
    return [ranks, higher, overall] if speed_ups else [ranks, higher]


def _each(
    key: str, group: str, cells: Mapping[str, Cell], heading: str = "{}", spread: bool = False
) -> Row:
    return {
        Column(f"{key}_{KEYS[a]}", heading.format(a), group, spread): cell
        for a, cell in cells.items()
    }


def _means(frames: Frames, name: str = "test") -> dict[str, Cell]:
    """Return means over seeds by algorithm; the better of the paper's two is marked."""
    cells = {a: spread(frame, name) for a, frame in frames.items()}
    return cells | with_best({a: cells[a] for a in COMPARED})


def _seeds(frames: Frames) -> dict[str, Cell]:
    return {a: Cell(len(_finite(frame, "test")), digits=0) for a, frame in frames.items()}


def _speed_ups(frames: Frames, clocks: Iterable[str] = _CLOCKS) -> Row:
    pair = frames[SGD], frames[MHSAEM_U]
    places = [(clock, point) for clock in clocks for point in _POINTS]
    return {Column(f"{c}_{p}", _POINTS[p], _CLOCKS[c]): speed_up(*pair, p, c) for c, p in places}


def _printed(column: str, name: str, model: str, stds: str = "") -> dict[str, Cell]:
    """Return the paper's numbers of a set and model, by algorithm, the better one marked."""
    return with_best(
        {
            a: Cell(
                printed(f"{column}_{KEYS[a]}", name, model),
                printed(f"{stds}_{KEYS[a]}", name, model) if stds else math.nan,
            )
            for a in COMPARED
        }
    )


def _printed_speed_up(column: str, name: str, model: str) -> Row:
    return {Column("paper_speed_up", "speed-up", "paper"): Cell(printed(column, name, model))}


def _tables(
    frame: Any,
    title: str,
    notes: list[str],
    make: Callable[[str, str, Frames], Row],
    compared: Sequence[str],
    speed_ups: Sequence[str] = (),
) -> list[Table]:
    """Return a table per family; `make` gives a set's cells beyond its name."""
    tables = []
    for model, family in FAMILIES.items():
        of_model = frame[frame["model"] == model]
        present = set(of_model["algorithm"])
        algorithms = [a for a in KEYS if a in present or a in COMPARED]
        shown = of_model[of_model["shown"]]
        rows = []
        for name in _in_order(of_model["dataset"]):
            of_set = shown[shown["dataset"] == name]
            frames = {a: of_set[of_set["algorithm"] == a] for a in algorithms}
            rows.append({_SET: Cell(name)} | make(name, model, frames))
        if rows:
            about = [*notes, *_about_runs(of_model)]
            summaries = summary_rows(rows, compared, speed_ups)
            tables.append(Table(model, f"{family}: {title}", rows, about, summaries))
    return tables


def _about_runs(frame: Any) -> list[str]:
    """Return notes on runs without a result and on shown runs that were cut."""
    notes = []
    lost = len(frame) - len(_finite(frame, "test"))
    if lost:
        notes.append(f"{lost} of {len(frame)} runs have no result: not run, failed or not finite.")
    ends = list(frame.loc[frame["shown"] & frame["cut"] & ~frame["failed"], "outcome"])
    if ends:
        counts = ", ".join(f"{ends.count(end)} by {end}" for end in sorted(set(ends)))
        notes.append(
            f"† Rests on a run that was cut ({counts}); it counts with what it had reached."
        )
    return notes


def fixed_tables(runs: Iterable[Run], rows: Rows) -> list[Table]:
    """Compare algorithms on one architecture for all sets: Table 3; and our defaults."""
    runs = list(runs)

    def make(name: str, model: str, frames: Frames) -> Row:
        row = _each("test", "test", _means(frames), spread=True)
        row |= _each("seeds", "seeds", _seeds(frames)) | _speed_ups(frames)
        row |= _each("paper_test", "paper", _printed("fixed_test", name, model), "test {}")
        return row | _printed_speed_up("fixed_speed_up", name, model)

    speed_ups = [f"{clock}_{point}" for clock in _CLOCKS for point in _POINTS]
    speed_ups.append("paper_speed_up")
    frame, compared = gather(runs, rows), ["test", "paper_test"]
    tables = _tables(frame, "fixed architecture", _ABOUT, make, compared, speed_ups)
    return tables + _default_table(runs, rows)


def best_tables(runs: Iterable[Run], rows: Rows) -> list[Table]:
    """Compare algorithms, each with the architecture of the best validation value: Table 2."""

    def make(name: str, model: str, frames: Frames) -> Row:
        row: Row = {}
        means, seeds = _means(frames), _seeds(frames)
        for a, frame in frames.items():
            first: Any = frame.iloc[0] if len(frame) else {"architecture": "", "K": math.nan}
            cells = {"architecture": Cell(first["architecture"])}
            cells["K"] = Cell(float(first["K"]), digits=0)
            cells |= {"test": means[a], "seeds": seeds[a]}
            # The architecture of a mixture of flows is its K.
            if model == FLOW:
                del cells["architecture"]
            for key, cell in cells.items():
                row[Column(f"{key}_{KEYS[a]}", key, a, spread=key == "test")] = cell
        row |= _speed_ups(frames, ["seconds"])
        for a, cell in _printed("best_test", name, model, "best_std").items():
            K = Cell(printed(f"best_k_{KEYS[a]}", name, model), digits=0)
            row |= _each("paper_K", "paper", {a: K}, "K {}")
            row |= _each("paper_test", "paper", {a: cell}, "test {}", spread=True)
        return row | _printed_speed_up("best_speed_up", name, model)

    frame = gather(runs, rows, best=True)
    chosen_by = "The architecture is the one with the best mean validation value over seeds."
    title, compared = "best architecture by validation", ["test", "paper_test"]
    speed_ups = [*(f"seconds_{point}" for point in _POINTS), "paper_speed_up"]
    return _tables(frame, title, [chosen_by, *_ABOUT], make, compared, speed_ups)


def all_tables(runs: Iterable[Run], rows: Rows) -> list[Table]:
    """Return training, validation and test values of the models of `best_tables`: Table 4."""
    quantities = {
        "train": ("training at t95", "t95"),
        "validation": ("validation", "best_validation"),
        "test": ("test", "test"),
    }

    def make(name: str, model: str, frames: Frames) -> Row:
        row: Row = {}
        for key, (heading, values) in quantities.items():
            row |= _each(key, heading, _means(frames, values), spread=True)
            row |= _each(f"paper_{key}", heading, _printed(key, name, model), "paper {}")
        return row

    frame = gather(runs, rows, best=True)
    title = "all log-likelihoods of the best architectures"
    notes = ["The architectures are the best by validation.", _ABOUT_SPREAD]
    compared = [f"{who}{key}" for key in quantities for who in ("", "paper_")]
    return _tables(frame, title, notes, make, compared)


def start_tables(runs: Iterable[Run], rows: Rows) -> list[Table]:
    """Compare SGD and MHSAEM-U from a Gaussian start, and beside them from the paper's."""
    deep = [run for run in runs if isinstance(run, DeepRun)]
    frames = {s: gather([run for run in deep if run.start == s], rows) for s in _STARTS}

    def make(name: str, model: str, _: Frames) -> Row:
        row: Row = {}
        for start, words in _STARTS.items():
            frame = frames[start]
            frame = frame[(frame["dataset"] == name) & (frame["model"] == model)]
            both = {a: frame[frame["algorithm"] == a] for a in COMPARED}
            row |= _each(f"{start}_test", f"test, {words}", _means(both), spread=True)
            times = _reached(both[SGD], both[MHSAEM_U], "common", "seconds")
            cells = {
                a: Cell(median([t[n] for t in times]), cut=any(t[2 + n] for t in times))
                for n, a in enumerate(COMPARED)
            }
            row |= _each(f"{start}_to_target", f"seconds to target, {words}", cells)
            for clock, group in _CLOCKS.items():
                cell = speed_up(both[SGD], both[MHSAEM_U], "common", clock)
                row[Column(f"{start}_{clock}", words, group)] = cell
        return row

    compared = [f"{start}_test" for start in _STARTS]
    speed_ups = [f"{start}_{clock}" for start in _STARTS for clock in _CLOCKS]
    title = "where the fit starts"
    tables = _tables(frames["gaussian"], title, _ABOUT, make, compared, speed_ups)
    for table in tables:
        papers = frames["paper"][frames["paper"]["model"] == table.name]
        table.notes.extend(f"From the paper's start: {note}" for note in _about_runs(papers))
    return tables


def _default_table(runs: Iterable[Run], rows: Rows) -> list[Table]:
    """Compare estimators with all defaults with the best number that the paper prints for a set."""
    frame = frame_of(rows, [run for run in runs if isinstance(run, DefaultRun)])
    lines: list[Row] = []
    best_of_paper = Column("paper_best", "best of Tables 2 and 3", "paper")
    ours = Column("test_chosen", "the best by validation", "test", spread=True)
    tests = [f"{table}_test_{KEYS[a]}" for table in ("fixed", "best") for a in COMPARED]
    for name in _in_order(frame["dataset"]):
        of_set = frame[frame["dataset"] == name]
        frames = {a: of_set[of_set["algorithm"] == a] for a in DEFAULTS}
        means = with_best({a: spread(f) for a, f in frames.items()})
        row = {_SET: Cell(name)} | _each("test", "test", means, spread=True)
        # For each seed, the model that one would choose without test rows.
        known = _finite(_finite(of_set, "test"), "best_validation")
        row[ours] = spread(known.loc[known.groupby("seed")["best_validation"].idxmax()])
        row[best_of_paper] = Cell(float(PAPER[PAPER.index.isin([name], 0)][tests].max(axis=None)))
        for fact, heading, digits in (("seconds", "seconds", 1), ("n_components", "components", 0)):
            cells = {a: Cell(median(f[fact]), digits=digits) for a, f in frames.items()}
            row |= _each(heading, heading, cells)
        lines.append(row | _each("seeds", "seeds", _seeds(frames)))
    if not lines:
        return []
    above = {"dataset": Cell("sets above the paper's best")}
    for column in lines[0]:
        if column.group == "test":
            wins = [row[column].number > row[best_of_paper].number for row in lines]
            above[column.key] = Cell(sum(wins), digits=0)
    notes = [
        "Estimators as they come; the number of components is chosen on validation rows.",
        "Seconds are start and work, without compilation; medians over seeds.",
    ]
    return [Table("defaults", "Our defaults", lines, notes, [above])]

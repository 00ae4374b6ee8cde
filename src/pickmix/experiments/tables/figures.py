"""The numbers behind a figure: one table per panel, medians over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pickmix.experiments.catalogue import Figure, Panel
from pickmix.experiments.measures import frame_of, median
from pickmix.experiments.store import COMPLETE, History
from pickmix.experiments.tables.table import Cell, Column, Row, Table, with_best

_ALGORITHM, _SEEDS = Column("algorithm", "algorithm"), Column("seeds", "seeds")
_LEVEL, _TIME, _COST = "log-likelihood per row", "seconds", "evaluations per row"
_BIAS, _OVER = "squared error of the gradient", "over what exact draws give"
_MEAN = "mean acceptance"
# A column, where its values are read, and the digits it is shown with.
Reading = tuple[Column, str | Callable[[History], float], int]


def _part(name: str, first: float, last: float, over: str = "") -> Callable[[History], float]:
    """Mean of a part of a series, or its sum over that of another."""

    def read(history: History) -> float:
        n = history.series["step"].shape[0]
        begin = min(int(first * n), n - 1)
        part = slice(begin, max(begin + 1, round(last * n)))
        values = history.series[name][part]
        return float(values.sum() / (history.series[over][part].sum() if over else len(values)))

    return read


_READINGS: dict[str, list[Reading]] = {
    "log_likelihood": [
        (Column("final", "at the end", _LEVEL), "final", 3),
        (Column("lowest", "lowest seed", _LEVEL), "final", 3),
        (Column("highest", "highest seed", _LEVEL), "final", 3),
        (Column("t95", "at t95", _LEVEL), "t95", 3),
        (Column("true", "true mixture", _LEVEL), "true_log_likelihood", 3),
        (Column("seconds_to_t95", "to t95", _TIME), "t95_seconds", 2),
        (Column("seconds", "in all", _TIME), "seconds", 2),
        (Column("evaluations_to_t95", "to t95", _COST), "t95_evaluations", 0),
        (Column("evaluations", "in all", _COST), "evaluations", 0),
    ],
    "bias": [
        (Column("first", "first tenth of the records", _BIAS), _part("bias", 0.0, 0.1), 3),
        (Column("last", "last tenth", _BIAS), _part("bias", 0.9, 1.0), 3),
        (Column("ratio_first", "first half", _OVER), _part("bias", 0.0, 0.5, "bias_by_chance"), 2),
        (Column("ratio_last", "last half", _OVER), _part("bias", 0.5, 1.0, "bias_by_chance"), 2),
        (Column("ratio_end", "last fifth", _OVER), _part("bias", 0.8, 1.0, "bias_by_chance"), 2),
    ],
    "acceptance": [
        (Column("first", "first tenth of the records", _MEAN), _part("acceptance", 0.0, 0.1), 3),
        (Column("last", "last tenth", _MEAN), _part("acceptance", 0.9, 1.0), 3),
    ],
}


def figure_tables(figure: Figure, histories: Mapping[str, History]) -> list[Table]:
    """One table for each panel that something was measured for; histories are by `Run.key`."""
    tables = []
    for number, panel in enumerate(figure.panels, start=1):
        frame = frame_of(panel.runs, histories)
        if len(frame):
            title = f"{figure.title}: {panel.title}" if panel.title else figure.title
            rows, notes = (_error_rows if panel.errors else _curve_rows)(panel, frame)
            outcomes = sorted(set(frame["outcome"]) - set(COMPLETE))
            if outcomes:
                notes.append(f"† ended by {', '.join(outcomes)}.")
            tables.append(Table(f"panel-{number}", title, rows, notes))
    return tables


def _median(group: Any, reading: str | Callable[[History], float], digits: int) -> Cell:
    """Median over seeds; marked if one of the runs was cut."""
    values = group[reading] if isinstance(reading, str) else group["history"].map(reading)
    return Cell(median(values), digits=digits, cut=bool(group["cut"].any()))


def _curve_rows(panel: Panel, frame: Any) -> tuple[list[Row], list[str]]:
    """One row per algorithm: its name, its seeds, and the median of each reading."""
    rows: list[Row] = []
    for algorithm, group in frame.groupby("algorithm", sort=False):
        row = {_ALGORITHM: Cell(str(algorithm)), _SEEDS: Cell(len(group), digits=0)}
        for column, reading, digits in _READINGS[panel.shows]:
            row[column] = _median(group, reading, digits)
            if how := {"lowest": "min", "highest": "max"}.get(column.key):
                row[column] = Cell(float(group["final"].agg(how)), digits=digits)
        rows.append(row)
    if panel.shows == "log_likelihood":
        final = _READINGS[panel.shows][0][0]
        for place, cell in with_best({n: row[final] for n, row in enumerate(rows)}).items():
            rows[place][final] = cell
    about = "Means over records of sums, medians over seeds."
    return rows, [about] if panel.shows == "bias" else []


def _error_rows(panel: Panel, frame: Any) -> tuple[list[Row], list[str]]:
    """AE and time to t95, one row per algorithm, the values of the parameter side by side."""
    varies = panel.shows
    values = sorted(int(value) for value in set(frame[varies].dropna()))
    rows = []
    for algorithm, group in frame.groupby("algorithm", sort=False):
        row = {_ALGORITHM: Cell(str(algorithm))}
        for heading, key, reading, digits in (
            ("absolute error at t95", "error", "error", 3),
            ("seconds to t95", "seconds", "t95_seconds", 2),
        ):
            for value in values:
                # An algorithm that knows no such parameter has the same runs for all its values.
                here = group[group[varies].isna() | (group[varies] == value)]
                column = Column(f"{key}_{varies}{value}", f"{varies} = {value}", heading)
                row[column] = _median(here, reading, digits)
        rows.append(row)
    n_seeds = frame["seed"].nunique()
    return rows, [f"Medians over {n_seeds} seed{'s' if n_seeds > 1 else ''}."]

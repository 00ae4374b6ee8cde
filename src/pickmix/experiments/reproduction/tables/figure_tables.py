"""The numbers behind a figure: one table per panel, medians over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pickmix.experiments.reproduction.drawing.shown import by_algorithm
from pickmix.experiments.reproduction.history import COMPLETE, History
from pickmix.experiments.reproduction.measures import t95
from pickmix.experiments.reproduction.panels import CurvePanel, ErrorPanel, Figure
from pickmix.experiments.reproduction.tables.table import (
    Cell,
    Column,
    Number,
    Row,
    Table,
    Text,
    with_best,
)

_ALGORITHM = Column("algorithm", "algorithm")
_SEEDS = Column("seeds", "seeds")


def figure_tables(figure: Figure, histories: Mapping[str, History]) -> list[Table]:
    """One table for each panel that something was measured for.

    Parameters
    ----------
    figure : Figure
    histories : mapping of Run.key to History
    """
    tables = []
    for number, panel in enumerate(figure.panels, start=1):
        title = f"{figure.title}: {panel.title}" if panel.title else figure.title
        groups = by_algorithm(panel.runs, histories)
        if groups and isinstance(panel, ErrorPanel):
            tables.append(_error_table(f"panel-{number}", title, panel, groups))
        elif groups and isinstance(panel, CurvePanel):
            tables.append(_CURVES[panel.y](f"panel-{number}", title, groups))
    return tables


def _number(histories: Sequence[History], value: Callable[[History], float], digits: int) -> Number:
    """Median over seeds; marked if one of the runs was cut."""
    values = [value(history) for history in histories]
    finite = [found for found in values if np.isfinite(found)]
    cut = any(history.facts["outcome"] not in COMPLETE for history in histories)
    return Number(float(np.median(finite)) if finite else float("nan"), digits, cut=cut)


def _notes(groups: Mapping[str, Sequence[History]]) -> tuple[str, ...]:
    outcomes = {
        str(history.facts["outcome"])
        for histories in groups.values()
        for history in histories
        if history.facts["outcome"] not in COMPLETE
    }
    return (f"† ended by {', '.join(sorted(outcomes))}.",) if outcomes else ()


# What is read off each history of an algorithm, and the digits it is shown with.
Reading = tuple[Callable[[History], float], int]


def _rows(groups: Mapping[str, Sequence[History]], readings: Mapping[str, Reading]) -> list[Row]:
    """One row per algorithm: its name, its seeds, and the median of each reading."""
    rows = []
    for algorithm, group in groups.items():
        cells: dict[str, Cell] = {"algorithm": Text(algorithm), "seeds": Number(len(group), 0)}
        for key, (value, digits) in readings.items():
            cells[key] = _number(group, value, digits)
        rows.append(Row(cells))
    return rows


def _likelihood_table(name: str, title: str, groups: Mapping[str, Sequence[History]]) -> Table:
    columns = (
        _ALGORITHM,
        _SEEDS,
        Column("final", "at the end", "log-likelihood per row"),
        Column("lowest", "lowest seed", "log-likelihood per row"),
        Column("highest", "highest seed", "log-likelihood per row"),
        Column("t95", "at t95", "log-likelihood per row"),
        Column("true", "true mixture", "log-likelihood per row"),
        Column("seconds_to_t95", "to t95", "seconds"),
        Column("seconds", "in all", "seconds"),
        Column("evaluations_to_t95", "to t95", "evaluations per row"),
        Column("evaluations", "in all", "evaluations per row"),
    )
    readings: dict[str, Reading] = {
        "t95": (lambda history: t95(history.series).log_likelihood, 3),
        "true": (_truth, 3),
        "seconds_to_t95": (_seconds_to_t95, 2),
        "seconds": (lambda history: history.series["seconds"][-1], 2),
        "evaluations_to_t95": (lambda history: t95(history.series).evaluations, 0),
        "evaluations": (lambda history: history.series["evaluations"][-1], 0),
    }
    finals = with_best([_number(group, _final, 3) for group in groups.values()])
    rows = []
    for row, group, final in zip(_rows(groups, readings), groups.values(), finals, strict=True):
        ends = [_final(history) for history in group]
        spread = {"lowest": Number(min(ends), 3), "highest": Number(max(ends), 3)}
        rows.append(Row({**row.cells, "final": final, **spread}))
    return Table(name, title, columns, tuple(rows), _notes(groups))


def _bias_table(name: str, title: str, groups: Mapping[str, Sequence[History]]) -> Table:
    columns = (
        _ALGORITHM,
        _SEEDS,
        Column("first", "first tenth of the records", "squared error of the gradient"),
        Column("last", "last tenth", "squared error of the gradient"),
        Column("ratio_first", "first half", "over what exact draws give"),
        Column("ratio_last", "last half", "over what exact draws give"),
        Column("ratio_end", "last fifth", "over what exact draws give"),
    )
    readings: dict[str, Reading] = {
        "first": (lambda history: _part(history, "bias", 0.0, 0.1), 3),
        "last": (lambda history: _part(history, "bias", 0.9, 1.0), 3),
        "ratio_first": (lambda history: _ratio(history, 0.0, 0.5), 2),
        "ratio_last": (lambda history: _ratio(history, 0.5, 1.0), 2),
        "ratio_end": (lambda history: _ratio(history, 0.8, 1.0), 2),
    }
    notes = ("Means over records of sums, medians over seeds.", *_notes(groups))
    return Table(name, title, columns, tuple(_rows(groups, readings)), notes)


def _acceptance_table(name: str, title: str, groups: Mapping[str, Sequence[History]]) -> Table:
    columns = (
        _ALGORITHM,
        _SEEDS,
        Column("first", "first tenth of the records", "mean acceptance"),
        Column("last", "last tenth", "mean acceptance"),
    )
    readings: dict[str, Reading] = {
        "first": (lambda history: _part(history, "acceptance", 0.0, 0.1), 3),
        "last": (lambda history: _part(history, "acceptance", 0.9, 1.0), 3),
    }
    return Table(name, title, columns, tuple(_rows(groups, readings)), _notes(groups))


_CURVES = {
    "log_likelihood": _likelihood_table,
    "bias": _bias_table,
    "acceptance": _acceptance_table,
}


def _error_table(
    name: str, title: str, panel: ErrorPanel, groups: Mapping[str, Sequence[History]]
) -> Table:
    """AE and time to t95, one row per algorithm, the values of the parameter side by side."""
    found = {getattr(history.run, panel.varies) for group in groups.values() for history in group}
    values = sorted(value for value in found if value is not None)
    columns = [_ALGORITHM]
    for heading, key in (("absolute error at t95", "error"), ("seconds to t95", "seconds")):
        columns += [
            Column(f"{key}_{panel.varies}{value}", f"{panel.varies} = {value}", heading)
            for value in values
        ]
    rows = []
    for algorithm, group in groups.items():
        cells: dict[str, Cell] = {"algorithm": Text(algorithm)}
        for value in values:
            # An algorithm that knows no such parameter has the same runs for all of its values.
            here = [h for h in group if getattr(h.run, panel.varies) in (None, value)]
            cells[f"error_{panel.varies}{value}"] = _number(here, _error, 3)
            cells[f"seconds_{panel.varies}{value}"] = _number(here, _seconds_to_t95, 2)
        rows.append(Row(cells))
    seeds = sorted({history.run.seed for group in groups.values() for history in group})
    notes = (f"Medians over {len(seeds)} seed{'s' if len(seeds) > 1 else ''}.", *_notes(groups))
    return Table(name, title, tuple(columns), tuple(rows), notes)


def _final(history: History) -> float:
    return float(history.series["log_likelihood"][-1])


def _truth(history: History) -> float:
    return float(history.facts["true_log_likelihood"])


def _seconds_to_t95(history: History) -> float:
    return t95(history.series).seconds


def _error(history: History) -> float:
    return abs(t95(history.series).log_likelihood - _truth(history))


def _slice(history: History, first: float, last: float) -> slice:
    n = history.series["step"].shape[0]
    begin = min(int(first * n), n - 1)
    return slice(begin, max(begin + 1, round(last * n)))


def _part(history: History, name: str, first: float, last: float) -> float:
    return float(history.series[name][_slice(history, first, last)].mean())


def _ratio(history: History, first: float, last: float) -> float:
    part = _slice(history, first, last)
    return float(history.series["bias"][part].sum() / history.series["bias_by_chance"][part].sum())

"""Tables as Markdown and CSV, and the numbers behind figures."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from pickmix_experiments.catalogue import Figure
from pickmix_experiments.store import COMPLETE, Rows, median

MISSING = "–"
# From here on, digits behind the point say nothing and those before it fill the page.
_LARGE = 1e6
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Cell:
    """Words, or a number; no words, NaN and infinities are shown as missing."""

    value: str | float = math.nan
    #: Standard deviation, if the value is a mean.
    std: float = math.nan
    #: Digits behind the point.
    digits: int = 2
    #: The better one of those that are compared.
    best: bool = False
    #: Rests on a run that did not come to its end.
    cut: bool = False

    @property
    def number(self) -> float:
        """The value; NaN for words."""
        return math.nan if isinstance(self.value, str) else float(self.value)

    @property
    def text(self) -> str:
        if isinstance(self.value, str):
            return self.value or MISSING
        values = [self.number, self.std] if math.isfinite(self.std) else [self.number]
        texts = [f"{v:.2e}" if abs(v) >= _LARGE else f"{v:.{self.digits}f}" for v in values]
        return " ± ".join(texts) if math.isfinite(self.number) else MISSING


class Column(NamedTuple):
    """What stands above a column; one with `spread` may have standard deviations."""

    #: In CSV files.
    key: str
    heading: str
    #: A heading that neighbours share.
    group: str = ""
    spread: bool = False


Row = dict[Column, Cell]


@dataclass(frozen=True)
class Table:
    """A table; all rows have the same columns, and the first one names the rows."""

    #: Distinguishes the tables of one file.
    name: str
    title: str
    rows: list[Row]
    #: Sentences to stand below.
    notes: list[str] = field(default_factory=list)
    #: Rows that sum up others, such as one of mean ranks, by the keys of columns.
    summaries: list[dict[str, Cell]] = field(default_factory=list)

    @property
    def columns(self) -> list[Column]:
        return list(self.rows[0])

    def lines(self) -> list[list[Cell | None]]:
        """Return the cells of all rows, the summaries last; None is an empty cell."""
        summaries = [[summary.get(c.key) for c in self.columns] for summary in self.summaries]
        return [*([row.get(c) for c in self.columns] for row in self.rows), *summaries]


def with_best(cells: Mapping[Key, Cell], *, lowest: bool = False) -> dict[Key, Cell]:
    """Mark the highest or lowest of some cells, all of them in a tie, none if any is missing."""
    values = [cell.number for cell in cells.values()]
    if not all(math.isfinite(value) for value in values):
        return dict(cells)
    best = min(values) if lowest else max(values)
    return {key: replace(cell, best=cell.value == best) for key, cell in cells.items()}


def write(tables: Sequence[Table], folder: Path, stem: str) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{stem}.md", folder / f"{stem}.csv"]
    for path, text in zip(paths, (markdown(tables), csv_text(tables)), strict=True):
        path.write_text(text, encoding="utf-8", newline="")
    return paths


def pipes(
    header: Sequence[str], lines: Iterable[Sequence[str]], words: Sequence[int] = (0,)
) -> str:
    """Put cells into Markdown; columns of words are aligned to the left."""
    words = [place % len(header) for place in words]
    dashes = ["---" if place in words else "---:" for place in range(len(header))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, dashes, *lines))


def markdown(tables: Sequence[Table]) -> str:
    """Return GitHub Markdown: each table under a heading, the best in bold.

    Examples
    --------
    >>> row = {Column("dataset", "data set"): Cell("iris")}
    >>> row[Column("test", "SGD", "test", spread=True)] = Cell(-1.0, 0.25, best=True)
    >>> print(markdown([Table("t", "Small", [row])]), end="")
    ## Small
    <BLANKLINE>
    | data set | test, SGD |
    | --- | ---: |
    | iris | **-1.00 ± 0.25** |
    """
    parts = []
    for table in tables:
        names = [_escaped(", ".join(filter(None, (c.group, c.heading)))) for c in table.columns]
        lines = [[_markdown_cell(cell) for cell in cells] for cells in table.lines()]
        for line in lines[len(table.rows) :]:
            line[0] = f"*{line[0]}*"
        parts += [f"## {_escaped(table.title)}", pipes(names, lines), *map(_escaped, table.notes)]
    return "\n\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    return re.sub(r"([\\|*_<>`])", r"\\\1", text)


def _markdown_cell(cell: Cell | None) -> str:
    if cell is None or isinstance(cell.value, str):
        return "" if cell is None else _escaped(cell.text)
    return (f"**{cell.text}**" if cell.best else cell.text) + ("†" if cell.cut else "")


def csv_text(tables: Sequence[Table]) -> str:
    """Return CSV of all tables in one, with plain numbers; missing values are empty.

    Columns: `table` (its name), `summary` (1 in rows that sum up others), `cut` (1 if any number of
    the row rests on a run that was cut), then those of the tables, by key. One that may hold
    standard deviations is followed by theirs, `<key>_std`.
    """
    lines = []
    for table in tables:
        for number, cells in enumerate(table.lines()):
            cut = any(cell.cut for cell in cells if cell)
            line: dict[str, Any] = {"table": table.name, "summary": int(number >= len(table.rows))}
            line["cut"] = int(cut)
            for column, cell in zip(table.columns, cells, strict=True):
                if cell:
                    line[column.key] = _plain(cell.value, cell.digits)
                    if column.spread:
                        line[f"{column.key}_std"] = _plain(cell.std, cell.digits)
            lines.append(line)
    return str(pd.DataFrame(lines).to_csv(index=False, lineterminator="\n"))


def _plain(value: str | float, digits: int) -> str:
    """Return five significant digits, all of those before the point."""
    if isinstance(value, str) or not math.isfinite(value):
        return value if isinstance(value, str) else ""
    return str(round(value)) if digits == 0 else repr(float(f"{value:.5g}"))


Reading = str | Callable[[dict[str, np.ndarray]], float]


def _part(name: str, first: float, last: float, over: str = "") -> Reading:
    """Return a reading: the mean of a part of a series, or its sum over that of another."""

    def read(trace: dict[str, np.ndarray]) -> float:
        n = len(trace[name])
        begin = min(int(first * n), n - 1)
        part = slice(begin, max(begin + 1, round(last * n)))
        values = trace[name][part]
        return float(values.sum() / (trace[over][part].sum() if over else len(values)))

    return read


_LEVEL, _TIME, _COST = "log-likelihood per row", "seconds", "evaluations per row"
_BIAS, _OVER = "squared error of the gradient", "over what exact draws give"
_MEAN, _CHANCE = "mean acceptance", "bias_by_chance"
# Columns: key, heading, shared heading, where values are read, digits; and how, if not the median.
_READINGS: dict[str, list[tuple[Any, ...]]] = {
    "log_likelihood": [
        ("final", "at the end", _LEVEL, "final", 3),
        ("lowest", "lowest seed", _LEVEL, "final", 3, min),
        ("highest", "highest seed", _LEVEL, "final", 3, max),
        ("t95", "at t95", _LEVEL, "t95", 3),
        ("true", "true mixture", _LEVEL, "true_log_likelihood", 3),
        ("seconds_to_t95", "to t95", _TIME, "t95_seconds", 2),
        ("seconds", "in all", _TIME, "seconds", 2),
        ("evaluations_to_t95", "to t95", _COST, "t95_evaluations", 0),
        ("evaluations", "in all", _COST, "evaluations", 0),
    ],
    "bias": [
        ("first", "first tenth of the records", _BIAS, _part("bias", 0.0, 0.1), 3),
        ("last", "last tenth", _BIAS, _part("bias", 0.9, 1.0), 3),
        ("ratio_first", "first half", _OVER, _part("bias", 0.0, 0.5, _CHANCE), 2),
        ("ratio_last", "last half", _OVER, _part("bias", 0.5, 1.0, _CHANCE), 2),
        ("ratio_end", "last fifth", _OVER, _part("bias", 0.8, 1.0, _CHANCE), 2),
    ],
    "acceptance": [
        ("first", "first tenth of the records", _MEAN, _part("acceptance", 0.0, 0.1), 3),
        ("last", "last tenth", _MEAN, _part("acceptance", 0.9, 1.0), 3),
    ],
}


def figure_tables(figure: Figure, rows: Rows) -> list[Table]:
    """Return one table for each panel with measurements, medians over seeds."""
    tables = []
    for number, panel in enumerate(figure.panels, start=1):
        frame = panel.frame(rows)
        if len(frame):
            title = f"{figure.title}: {panel.title}" if panel.title else figure.title
            lines, notes = (_error_rows if panel.errors else _curve_rows)(panel.shows, frame)
            if outcomes := sorted(set(frame["outcome"]) - set(COMPLETE)):
                notes.append(f"† ended by {', '.join(outcomes)}.")
            tables.append(Table(f"panel-{number}", title, lines, notes))
    return tables


def _summary(
    group: Any, reading: Reading, digits: int, summarise: Callable[[Any], float] = median
) -> Cell:
    """Return the median over seeds, or another summary; marked if one of the runs was cut."""
    values = group[reading] if isinstance(reading, str) else group["trace"].map(reading)
    cut = bool(group["cut"].any()) and summarise is median
    return Cell(float(summarise(values)), digits=digits, cut=cut)


def _curve_rows(shows: str, frame: Any) -> tuple[list[Row], list[str]]:
    """Return one row per algorithm: its name, its seeds, and the median of each reading."""
    rows: list[Row] = []
    for algorithm, group in frame.groupby("algorithm", sort=False):
        row = {Column("algorithm", "algorithm"): Cell(str(algorithm))}
        row[Column("seeds", "seeds")] = Cell(len(group), digits=0)
        for key, heading, shared, *reading in _READINGS[shows]:
            row[Column(key, heading, shared)] = _summary(group, *reading)
        rows.append(row)
    if shows == "log_likelihood":
        final = Column(*_READINGS[shows][0][:3])
        for place, cell in with_best({n: row[final] for n, row in enumerate(rows)}).items():
            rows[place][final] = cell
    return rows, ["Means over records of sums, medians over seeds."] if shows == "bias" else []


def _error_rows(varies: str, frame: Any) -> tuple[list[Row], list[str]]:
    """Return AE and time to t95 per algorithm, the values of the parameter side by side."""
    values = sorted(int(value) for value in set(frame[varies].dropna()))
    rows = []
    for algorithm, group in frame.groupby("algorithm", sort=False):
        row = {Column("algorithm", "algorithm"): Cell(str(algorithm))}
        for heading, key, reading, digits in (
            ("absolute error at t95", "error", "error", 3),
            ("seconds to t95", "seconds", "t95_seconds", 2),
        ):
            for value in values:
                # An algorithm without this parameter has the same runs for all its values.
                of_value = group[group[varies].isna() | (group[varies] == value)]
                column = Column(f"{key}_{varies}{value}", f"{varies} = {value}", heading)
                row[column] = _summary(of_value, reading, digits)
        rows.append(row)
    n_seeds = frame["seed"].nunique()
    return rows, [f"Medians over {n_seeds} seed{'s' if n_seeds > 1 else ''}."]

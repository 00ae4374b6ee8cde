"""A table's content, and how it is written: Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, TypeVar

from pickmix.data.files import replacing

MISSING = "–"
# From here on, digits behind the point say nothing and those before it fill the page.
_LARGE = 1e6
_LATEX = {
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    **{"–": "--", "†": r"$^\dagger$", "±": r"$\pm$", "×": r"$\times$"},
}
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Cell:
    """Words, or a number; no words, NaN and infinities are shown as missing.

    A mean may have a standard deviation. `digits` are those behind the point. The `best` is the
    better one of those that are compared; what is `cut` rests on a run that did not come to its
    end.
    """

    value: str | float = math.nan
    std: float = math.nan
    digits: int = 2
    best: bool = False
    cut: bool = False

    @property
    def number(self) -> float:
        """The value; NaN for words."""
        return math.nan if isinstance(self.value, str) else float(self.value)


class Column(NamedTuple):
    """What stands above a column: its key in CSV files, its heading, and one that neighbours share.

    If cells may have standard deviations (`spread`), the column is two in CSV files.
    """

    key: str
    heading: str
    group: str = ""
    spread: bool = False


Row = dict[Column, Cell]


@dataclass(frozen=True)
class Table:
    """A table; its name distinguishes the tables of one file.

    All rows have the same columns; the first one names the rows. Notes are sentences to stand
    below. Summaries are rows that sum up others, such as one of mean ranks, by the keys of columns.
    """

    name: str
    title: str
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    summaries: list[dict[str, Cell]] = field(default_factory=list)

    @property
    def columns(self) -> list[Column]:
        """The columns of the rows."""
        return list(self.rows[0])

    def lines(self) -> list[tuple[bool, list[Cell | None]]]:
        """Whether it is a summary, and the cells, of each row; None is an empty cell."""
        plain = [(False, [row.get(column) for column in self.columns]) for row in self.rows]
        return plain + [(True, [s.get(c.key) for c in self.columns]) for s in self.summaries]


def with_best(cells: Mapping[Key, Cell], *, lowest: bool = False) -> dict[Key, Cell]:
    """Mark the highest or lowest of some cells, all of them in a tie, none if any is missing."""
    values = [cell.number for cell in cells.values()]
    if not all(math.isfinite(value) for value in values):
        return dict(cells)
    best = min(values) if lowest else max(values)
    return {key: replace(cell, best=cell.value == best) for key, cell in cells.items()}


def write(tables: Sequence[Table], folder: Path, stem: str) -> list[Path]:
    """Write stem.md, stem.csv and stem.tex; each appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for suffix, render in ((".md", markdown), (".csv", csv_text), (".tex", latex)):
        paths.append(folder / f"{stem}{suffix}")
        with replacing(paths[-1]) as temporary:
            temporary.write_text(render(tables), encoding="utf-8", newline="")
    return paths


def pipes(
    header: Sequence[str], lines: Iterable[Sequence[str]], words: Sequence[int] = (0,)
) -> str:
    """Put cells into Markdown; columns of words are aligned to the left."""
    words = [place % len(header) for place in words]
    dashes = ["---" if place in words else "---:" for place in range(len(header))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, dashes, *lines))


def markdown(tables: Sequence[Table]) -> str:
    """GitHub Markdown: each table under a heading, the best in bold.

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
        lines = []
        for summary, cells in table.lines():
            first, *others = (_shown(cell, _escaped, _markdown_number) for cell in cells)
            lines.append([f"*{first}*" if summary else first, *others])
        parts += [f"## {_escaped(table.title)}", pipes(names, lines), *map(_escaped, table.notes)]
    return "\n\n".join(parts) + "\n"


def csv_text(tables: Sequence[Table]) -> str:
    """CSV of all tables in one, with plain numbers; what is missing is empty.

    Columns: `table` (its name), `summary` (1 in rows that sum up others), `cut` (1 if any number of
    the row rests on a run that was cut), then those of the tables, by key. One that may hold
    standard deviations is followed by theirs, `<key>_std`.
    """
    lines = []
    for table in tables:
        for summary, cells in table.lines():
            there = [(c, cell) for c, cell in zip(table.columns, cells, strict=True) if cell]
            cut = any(cell.cut for _, cell in there)
            line = {"table": table.name, "summary": str(int(summary)), "cut": str(int(cut))}
            for column, cell in there:
                line[column.key] = _plain(cell.value, cell.digits)
                if column.spread:
                    line[f"{column.key}_std"] = _plain(cell.std, cell.digits)
            lines.append(line)
    header = dict.fromkeys(["table", "summary", "cut", *(key for line in lines for key in line)])
    file = io.StringIO()
    writer = csv.DictWriter(file, header, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def latex(tables: Sequence[Table]) -> str:
    r"""LaTeX for `\input` into a document that loads booktabs: a `tabular` for each table."""
    return "\n\n".join(_latex_table(table) for table in tables) + "\n"


def _latex_table(table: Table) -> str:
    columns = table.columns
    body = [
        _latex_line(_shown(c, _latex_text, _latex_number) for c in cells)
        for _, cells in table.lines()
    ]
    if table.summaries:
        body.insert(len(table.rows), r"\midrule")
    notes = " ".join(map(_latex_text, table.notes))
    return "\n".join(
        [
            r"\begingroup\scriptsize\setlength{\tabcolsep}{3pt}%",
            rf"\noindent\textbf{{{_latex_text(table.title)}}}\par\smallskip",
            rf"\noindent\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
            r"\toprule",
            *(_latex_groups(columns) if any(column.group for column in columns) else ()),
            _latex_line(_latex_text(column.heading) for column in columns),
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}\par",
            *([rf"\smallskip\noindent {notes}\par"] if notes else ()),
            r"\endgroup",
        ]
    )


def _latex_groups(columns: Sequence[Column]) -> list[str]:
    """The line of shared headings and the rules below it."""
    cells, rules, start = [], [], 1
    for group, members in groupby(columns, key=lambda column: column.group):
        width = len(list(members))
        cells.append(" & " * (width - 1))
        if group:
            cells[-1] = rf"\multicolumn{{{width}}}{{c}}{{{_latex_text(group)}}}"
            rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
        start += width
    return [_latex_line(cells), " ".join(rules)]


def _latex_line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _shown(
    cell: Cell | None, escape: Callable[[str], str], number: Callable[[Cell, str], str]
) -> str:
    """A cell's text; `number` adds the marks of a number to its text."""
    if cell is None or isinstance(cell.value, str):
        return "" if cell is None else escape(str(cell.value) or MISSING)
    values = [cell.number, cell.std] if math.isfinite(cell.std) else [cell.number]
    texts = [f"{v:.2e}" if abs(v) >= _LARGE else f"{v:.{cell.digits}f}" for v in values]
    return number(cell, " ± ".join(texts) if math.isfinite(cell.number) else MISSING)


def _markdown_number(cell: Cell, text: str) -> str:
    return (f"**{text}**" if cell.best else text) + ("†" if cell.cut else "")


def _latex_number(cell: Cell, text: str) -> str:
    if text == MISSING:
        return "--"
    text = re.sub(r"e([+-]\d+)", lambda found: rf" \times 10^{{{int(found[1])}}}", text)
    text = text.replace("±", r"\pm")
    text = rf"\mathbf{{{text}}}" if cell.best else text
    return f"${text}^\\dagger$" if cell.cut else f"${text}$"


def _plain(value: str | float, digits: int) -> str:
    """All digits, as who reads a CSV file may want to round for themselves."""
    if isinstance(value, str) or not math.isfinite(value):
        return value if isinstance(value, str) else ""
    return str(round(value)) if digits == 0 else repr(float(value))


def _escaped(text: str) -> str:
    return re.sub(r"([\\|*_<>`])", r"\\\1", text)


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)

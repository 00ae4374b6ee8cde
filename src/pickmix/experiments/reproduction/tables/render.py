"""Tables as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from pickmix.data.files import replacing
from pickmix.experiments.reproduction.tables.table import Cell, Column, Number, Spread, Table, Text

_MISSING = "–"
# From here on, digits behind the point say nothing and those before it fill the page.
_LARGE = 1e6
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "–": "--",
    "†": r"$^\dagger$",
    "±": r"$\pm$",
    "×": r"$\times$",
}


def write(tables: Sequence[Table], folder: str | os.PathLike[str], stem: str) -> list[Path]:
    """Write stem.md, stem.csv and stem.tex; each appears whole or not at all.

    Parameters
    ----------
    tables : sequence of Table
    folder : path
        Made if it is not there.
    stem : str

    Returns
    -------
    list of Path
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for suffix, text in (
        (".md", markdown(tables)),
        (".csv", csv_text(tables)),
        (".tex", latex(tables)),
    ):
        path = folder / f"{stem}{suffix}"
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8", newline="")
        paths.append(path)
    return paths


def markdown(tables: Sequence[Table]) -> str:
    """GitHub Markdown: each table under a heading, the best in bold.

    Examples
    --------
    >>> from pickmix.experiments.reproduction.tables.table import Row
    >>> columns = (Column("dataset", "data set"), Column("test", "SGD", "test", spread=True))
    >>> row = Row({"dataset": Text("iris"), "test": Spread(-1.0, 0.25, best=True)})
    >>> print(markdown([Table("t", "Small", columns, (row,))]), end="")
    ## Small
    <BLANKLINE>
    | data set | test, SGD |
    | --- | ---: |
    | iris | **-1.00 ± 0.25** |
    """
    parts = []
    for table in tables:
        lines = [
            [_markdown_text(", ".join(filter(None, (c.group, c.heading)))) for c in table.columns],
            ["---"] + ["---:"] * (len(table.columns) - 1),
        ]
        for row in table.rows:
            cells = [_markdown_cell(row.cells.get(column.key)) for column in table.columns]
            if row.summary:
                cells[0] = f"*{cells[0]}*"
            lines.append(cells)
        parts.append(f"## {_markdown_text(table.title)}")
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
        parts += [_markdown_text(note) for note in table.notes]
    return "\n\n".join(parts) + "\n"


def csv_text(tables: Sequence[Table]) -> str:
    """CSV of all tables in one, with plain numbers; what is missing is empty.

    Columns: `table` (its name), `summary` (1 in rows that sum up others), `cut` (1 if any number of
    the row rests on a run that was cut), then those of the tables, by key. One that may hold
    spreads is followed by that of its standard deviations, `<key>_std`.
    """
    columns: dict[str, Column] = {}
    for table in tables:
        for column in table.columns:
            columns.setdefault(column.key, column)
    header = ["table", "summary", "cut"]
    for column in columns.values():
        header += [column.key, f"{column.key}_std"] if column.spread else [column.key]
    file = io.StringIO()
    writer = csv.DictWriter(file, header, restval="", lineterminator="\n")
    writer.writeheader()
    for table in tables:
        for row in table.rows:
            cells = {c.key: row.cells.get(c.key) for c in table.columns}
            cut = any(isinstance(cell, Number | Spread) and cell.cut for cell in cells.values())
            fields = {"table": table.name, "summary": str(int(row.summary)), "cut": str(int(cut))}
            for key, cell in cells.items():
                if isinstance(cell, Text):
                    fields[key] = cell.text
                elif cell is not None:
                    fields[key] = _plain(cell.value, cell.digits)
                if isinstance(cell, Spread) and columns[key].spread:
                    fields[f"{key}_std"] = _plain(cell.std, cell.digits)
            writer.writerow(fields)
    return file.getvalue()


def latex(tables: Sequence[Table]) -> str:
    r"""LaTeX for `\input` into a document that loads booktabs: a `tabular` for each table."""
    return "\n\n".join(_latex_table(table) for table in tables) + "\n"


def _latex_table(table: Table) -> str:
    columns = table.columns
    lines = [
        r"\begingroup\scriptsize\setlength{\tabcolsep}{3pt}%",
        rf"\noindent\textbf{{{_latex_text(table.title)}}}\par\smallskip",
        rf"\noindent\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
        r"\toprule",
    ]
    if any(column.group for column in columns):
        lines += _latex_groups(columns)
    lines += [_latex_line([_latex_text(column.heading) for column in columns]), r"\midrule"]
    was_summary = False
    for row in table.rows:
        if row.summary and not was_summary:
            lines.append(r"\midrule")
        was_summary = row.summary
        lines.append(_latex_line([_latex_cell(row.cells.get(column.key)) for column in columns]))
    lines += [r"\bottomrule", r"\end{tabular}\par"]
    if table.notes:
        lines.append(rf"\smallskip\noindent {' '.join(map(_latex_text, table.notes))}\par")
    return "\n".join([*lines, r"\endgroup"])


def _latex_groups(columns: Sequence[Column]) -> list[str]:
    """The line of shared headings and the rules below it."""
    cells, rules, start = [], [], 1
    for group, members in groupby(columns, key=lambda column: column.group):
        width = len(list(members))
        if group:
            cells.append(rf"\multicolumn{{{width}}}{{c}}{{{_latex_text(group)}}}")
            rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
        else:
            cells += [""] * width
        start += width
    return [_latex_line(cells), " ".join(rules)]


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _markdown_cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    if isinstance(cell, Text):
        return _markdown_text(cell.text or _MISSING)
    text = _number(cell.value, cell.digits)
    if isinstance(cell, Spread) and math.isfinite(cell.std):
        text += f" ± {_number(cell.std, cell.digits)}"
    return (f"**{text}**" if cell.best else text) + ("†" if cell.cut else "")


def _latex_cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    if isinstance(cell, Text):
        return _latex_text(cell.text or _MISSING)
    if not math.isfinite(cell.value):
        return "--"
    text = _latex_number(cell.value, cell.digits)
    if isinstance(cell, Spread) and math.isfinite(cell.std):
        text += rf" \pm {_latex_number(cell.std, cell.digits)}"
    text = rf"\mathbf{{{text}}}" if cell.best else text
    return f"${text}^\\dagger$" if cell.cut else f"${text}$"


def _number(value: float, digits: int) -> str:
    if not math.isfinite(value):
        return _MISSING
    return f"{value:.2e}" if abs(value) >= _LARGE else f"{value:.{digits}f}"


def _latex_number(value: float, digits: int) -> str:
    mantissa, mark, exponent = _number(value, digits).partition("e")
    return rf"{mantissa} \times 10^{{{int(exponent)}}}" if mark else mantissa


def _plain(value: float, digits: int) -> str:
    """All digits, as who reads a CSV file may want to round for themselves."""
    if not math.isfinite(value):
        return ""
    return str(round(value)) if digits == 0 else repr(float(value))


def _markdown_text(text: str) -> str:
    return re.sub(r"([\\|*_<>`])", r"\\\1", text)


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)

"""`pickmix impute`: the missing cells of a table, filled; all others as they were written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from pickmix.cli.asking import Saved, asking_options, load_model, need_questions, read_for
from pickmix.cli.console import clear_errors, notes
from pickmix.cli.delivery import SHOWN, Delivery, more_rows, out_option
from pickmix.cli.preparing import name_of, ready
from pickmix.cli.reading import Place, explained
from pickmix.cli.whole_tables import WholeTable
from pickmix.data.text_cells import Cells, as_text, quoted


@dataclass
class Filled:
    """What is known of the missing cells of some columns.

    Attributes
    ----------
    missing : dict of (N,) bool arrays
        By name of the column: which of its cells are missing.
    tables : list of dict of (N,) arrays
        Filled columns, by draw.
    """

    missing: dict[str, np.ndarray]
    tables: list[dict[str, np.ndarray]]


@click.command()
@asking_options
@click.option(
    "--strategy",
    type=click.Choice(["mean", "mode", "draw"]),
    default="mean",
    show_default=True,
    help="mean: the expected value, or the most probable level; mode: values of one row that fit "
    "together; draw: random values, which vary as real ones do.",
)
@click.option(
    "--draws",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Filled tables to make with --strategy draw, one below the other.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed of draws.")
@out_option
@clear_errors
def impute(
    model: Path,
    strategy: str,
    draws: int,
    seed: int,
    out: Path | None,
    **place: Any,
) -> None:
    """Fill in the missing cells of DATA, given the other cells of their rows, under MODEL.

    The result has all columns of DATA, in their order. Cells that have a value keep their text to
    the letter: in a .csv, only missing cells change. Columns that MODEL does not know stay as they
    are. With several --draws, a first column `draw` counts from 1. DATA is as in `pickmix score`,
    but it must fit into memory. Models of flows and networks cannot do this.

    \b
    Example:
      pickmix impute pickmix-model people.csv --out filled.csv
      pickmix impute pickmix-model people.csv --strategy draw --draws 20 --out filled.csv.gz
    """
    if draws > 1 and strategy != "draw":
        raise ValueError(f"--draws {draws} needs --strategy draw, got --strategy {strategy}")
    saved = load_model(model)
    need_questions(saved, "impute")
    asked = Place(**place)
    with notes(), Delivery(out) as delivery, ready(asked) as kept, explained(name_of(asked)):
        table, names, rows = read_for(saved, kept, name_of(asked))
        if draws > 1 and "draw" in table.names:
            raise ValueError(
                f"{name_of(asked)}: the result of several --draws has a column 'draw' of its own; "
                "rename that of the data"
            )
        filled = _fill(saved, table, names, rows, strategy, draws, seed)
        n_filled = sum(int(flags.sum()) for flags in filled.missing.values())
        some = f"{n_filled:,} of {table.n_rows * len(filled.missing):,} cells filled"
        delivery.say(some if n_filled else f"no missing cell in {name_of(asked)}")
        if out is None:
            _show(table, filled)
        elif delivery.is_text and table.cells is not None:
            _write_text(delivery, table.cells, table.names, filled)
        else:
            _write_columns(delivery, table, filled)
    if out is not None:
        delivery.tell()


def _fill(
    saved: Saved,
    table: WholeTable,
    names: dict[str, str],
    rows: Any,
    strategy: str,
    draws: int,
    seed: int,
) -> Filled:
    """Ask the model. `names` are those of the model's columns in the table."""
    if saved.is_table:
        # What --columns and --exclude leave out is no surprise.
        left_out = [name for name in saved.labels if name in table.names and name not in names]
        answer = saved.estimator._impute(rows, strategy, draws, seed, left_out)
    else:
        answer = saved.estimator.impute(rows, strategy, n_draws=draws, random_state=seed)
    answers = list(answer) if draws > 1 else [answer]
    missing, tables = {}, []
    for label, name in names.items():
        if isinstance(rows, np.ndarray):
            missing[name] = np.isnan(rows[:, saved.labels.index(label)])
        else:
            missing[name] = table.missing(name, saved.estimator.schema_[label])
    for found in answers:
        if isinstance(found, np.ndarray):
            found = dict(zip(saved.labels, found.T, strict=True))
        tables.append({name: np.asarray(found[label]) for label, name in names.items()})
    return Filled(missing, tables)


def _write_text(delivery: Delivery, cells: Cells, names: list[str], filled: Filled) -> None:
    """Write the lines of a text again, with what was missing in its place."""
    delimiter = delivery.delimiter_of(cells.layout.delimiter)
    if delimiter is not None and delimiter != cells.layout.delimiter:
        cells = _with_delimiter(cells, delimiter)
    several = len(filled.tables) > 1
    *before, header = [*cells.before, ""] if cells.layout.names is None else cells.before
    delivery.add_text("".join(before))
    if header:
        delivery.add_text(f"draw{delimiter or ' '}{header}" if several else header)
    for number, table in enumerate(filled.tables, start=1):
        texts = _texts(table, filled, names, cells)
        for row_number, row in enumerate(cells.rows):
            found = texts.get(row_number)
            if found:
                row = row.copy()
                for column, text in found:
                    row[column] = text
            line = cells.line(row)
            delivery.add_text(f"{number}{delimiter or ' '}{line}" if several else line)


def _texts(
    table: dict[str, np.ndarray], filled: Filled, names: list[str], cells: Cells
) -> dict[int, list[tuple[int, str]]]:
    """By row, the columns that were missing and what to write there."""
    found: dict[int, list[tuple[int, str]]] = {}
    for name, flags in filled.missing.items():
        column = names.index(name)
        for row in np.flatnonzero(flags).tolist():
            text = as_text(table[name][row], cells.layout.decimal)
            found.setdefault(row, []).append((column, quoted(text, cells.layout.delimiter)))
    return found


def _with_delimiter(cells: Cells, delimiter: str) -> Cells:
    """The same cells for another delimiter, in quotes where they need them now."""

    def changed(row: list[str]) -> list[str]:
        # Those in quotes are the same in every dialect.
        return [cell if cell.lstrip().startswith('"') else quoted(cell, delimiter) for cell in row]

    names = cells.layout.names
    before = [] if names is None else [delimiter.join(quoted(n, delimiter) for n in names) + "\n"]
    layout = replace(cells.layout, delimiter=delimiter)
    return Cells(layout, before, [changed(row) for row in cells.rows], cells.end)


def _write_columns(delivery: Delivery, table: WholeTable, filled: Filled) -> None:
    """Write columns with their types."""
    several = len(filled.tables) > 1
    for number, found in enumerate(filled.tables, start=1):
        columns: dict[str, np.ndarray] = {}
        if several:
            columns["draw"] = np.full(table.n_rows, number)
        for name in table.names:
            columns[name] = found[name] if name in found else table.values(name)
        delivery.add(columns)


def _show(table: WholeTable, filled: Filled) -> None:
    """Show the first rows that had gaps."""
    some = np.zeros(table.n_rows, dtype=np.bool_)
    for flags in filled.missing.values():
        some |= flags
    rows = np.flatnonzero(some)
    for row in rows[:SHOWN].tolist():
        cells = [
            f"{name}={_short(filled.tables[0][name][row])}"
            for name, flags in filled.missing.items()
            if flags[row]
        ]
        click.echo(f"row {row + 1:,}: {', '.join(cells)}")
    if rows.size > SHOWN:
        click.echo(more_rows(rows.size - SHOWN))


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else as_text(value)

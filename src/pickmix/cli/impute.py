"""`pickmix impute`: the missing cells of a table, filled; all others as they were written."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from pickmix.cli.console import clear_errors, notes
from pickmix.cli.data import DataFiles, WholeTable, open_data
from pickmix.cli.output import (
    SHOWN,
    Output,
    count_option,
    more_rows,
    out_option,
    seed_option,
    short_float,
)
from pickmix.cli.saved import SavedModel, load_model, query_options
from pickmix.inputs.columns import TypedColumn
from pickmix.inputs.kinds import as_fitted, as_numbers, settled
from pickmix.inputs.text import as_text, open_text, quoted, raw_cells, written_rows


@dataclass
class Filled:
    #: By name of the column: which of its cells (N,) were missing.
    missing: dict[str, np.ndarray]
    #: Filled columns (N,) by name, one table for each draw.
    tables: list[dict[str, np.ndarray]]


@click.command()
@query_options
@click.option(
    "--strategy",
    type=click.Choice(["mean", "mode", "draw"]),
    default="mean",
    show_default=True,
    help="mean: the expected value, or the most probable level; mode: values of one row that fit "
    "together; draw: random values, which vary as real ones do.",
)
@count_option(
    "--draws",
    default=1,
    metavar="N",
    help="Filled tables to make with --strategy draw, one below the other.",
)
@seed_option("Random seed of draws.")
@out_option
@clear_errors
def impute(
    model: Path, strategy: str, draws: int, seed: int, out: Path | None, **data: Any
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
    saved.require_conditionals("impute")
    with notes(), Output(out) as output, open_data(**data) as files:
        table = files.read_table()
        if draws > 1 and "draw" in table.names:
            raise ValueError(
                f"{files.name}: the result of several --draws has a column 'draw' of its own; "
                "rename that of the data"
            )
        answer = {"strategy": strategy, "n_draws": draws, "random_state": seed}
        fill = _fill_table if saved.is_table else _fill_array
        filled = fill(saved, files, table, answer)
        n_filled = sum(int(flags.sum()) for flags in filled.missing.values())
        share = f"{n_filled:,} of {table.n_rows * len(filled.missing):,} cells filled"
        output.say(share if n_filled else f"no missing cell in {files.name}")
        if out is None:
            _show(table, filled)
        elif output.is_text and table.texts:
            _write_text(output, table, filled)
        else:
            _write_columns(output, table, filled)
    if out is not None:
        output.show()


def _fill_table(
    saved: SavedModel, files: DataFiles, table: WholeTable, answer: dict[str, Any]
) -> Filled:
    names, _ = saved.table_columns(files, table)
    schema, columns = saved.estimator.schema_, saved.estimator._columns
    typed = table.typed(names).columns
    rows: Any = table.content.select(names)
    if table.texts:
        rows = {name: _as_list(as_fitted(schema[name], typed[name])) for name in names}
    # What --columns and --exclude leave out is no surprise.
    left_out = [name for name in saved.labels if name in table.names and name not in names]
    answers = saved.estimator._impute(columns, *columns.filling(rows, left_out), **answer)
    missing = {name: settled(schema[name], typed[name]).missing for name in names}
    tables = answers if answer["n_draws"] > 1 else [answers]
    return Filled(missing, [{name: np.asarray(one[name]) for name in names} for one in tables])


def _fill_array(
    saved: SavedModel, files: DataFiles, table: WholeTable, answer: dict[str, Any]
) -> Filled:
    columns, present = saved.array_columns(files)
    numbers = range(len(table.names)) if columns is None else files.find(columns)
    names = [table.names[number] for number in numbers]
    saved.check_width(files, len(names), present)
    rows = np.full((table.n_rows, saved.estimator.n_features_in_), np.nan)
    for place, (name, column) in zip(present, table.typed(names).columns.items(), strict=True):
        if not column.missing.all():
            # Text may spell numbers, such as 0123.
            values = as_numbers(name, column).values
            rows[:, place] = np.where(column.missing, np.nan, values)
    answers = saved.estimator.impute(rows, **answer).reshape(-1, *rows.shape)
    places = dict(zip(names, present, strict=True))
    missing = {name: np.isnan(rows[:, place]) for name, place in places.items()}
    tables = [{name: one[:, place] for name, place in places.items()} for one in answers]
    return Filled(missing, tables)


def _as_list(column: TypedColumn) -> list[Any]:
    """Values as Python has them, so that whole numbers stay whole; None where one is missing."""
    if column.missing.all():
        return [None] * column.missing.shape[0]
    values = column.values if column.levels is None else column.levels[column.values]
    pairs = zip(values.tolist(), column.missing.tolist(), strict=True)
    return [None if is_missing else value for value, is_missing in pairs]


def _write_text(output: Output, table: WholeTable, filled: Filled) -> None:
    """Write the lines of a text again, with what was missing in its place."""
    path, layout = table.texts[0]
    delimiter = output.delimiter_after(layout.delimiter)
    mark, several = delimiter or " ", len(filled.tables) > 1
    with open_text(path) as file:
        before = list(itertools.islice(file, layout.n_skipped + 1))[: layout.n_skipped or 1]
    end = "\r\n" if before[0].endswith("\r\n") else "\n"
    before = before[: layout.n_skipped]
    if delimiter != layout.delimiter:
        before = [mark.join(quoted(name, mark) for name in layout.names or ()) + "\n"]
    if layout.names is not None:
        before[-1] = f"draw{mark}{before[-1]}" if several else before[-1]
        output.add_text("".join(before))
    for number, columns in enumerate(filled.tables, start=1):
        gaps = [
            (table.names.index(name), flags, columns[name])
            for name, flags in filled.missing.items()
            if flags.any()
        ]
        rows = (row for path, layout in table.texts for row in written_rows(path, layout))
        for place, row in enumerate(rows):
            new = [(column, values[place]) for column, flags, values in gaps if flags[place]]
            if new or delimiter != layout.delimiter:
                cells = raw_cells(row, layout.delimiter)
                if delimiter != layout.delimiter:
                    # Those in quotes are the same in every dialect.
                    cells = [c if c.lstrip()[:1] == '"' else quoted(c, delimiter) for c in cells]
                for column, value in new:
                    cells[column] = quoted(as_text(value, layout.decimal), delimiter)
                row = mark.join(cells)
            output.add_text(f"{number}{mark}{row}{end}" if several else row + end)


def _write_columns(output: Output, table: WholeTable, filled: Filled) -> None:
    others = {name: _unchanged(table, name) for name in table.names if name not in filled.missing}
    for number, columns in enumerate(filled.tables, start=1):
        draw = {"draw": np.full(table.n_rows, number)} if len(filled.tables) > 1 else {}
        output.add(draw | {name: (others | columns)[name] for name in table.names})


def _unchanged(table: WholeTable, name: str) -> np.ndarray:
    column = table.typed([name]).columns[name]
    if column.storage == "number" and not column.missing.any():
        return column.values
    return np.fromiter(table.cells(name), dtype=object, count=table.n_rows)


def _show(table: WholeTable, filled: Filled) -> None:
    with_gaps = np.zeros(table.n_rows, dtype=np.bool_)
    for flags in filled.missing.values():
        with_gaps |= flags
    rows = np.flatnonzero(with_gaps)
    for row in rows[:SHOWN].tolist():
        values = {n: filled.tables[0][n][row] for n, flags in filled.missing.items() if flags[row]}
        cells = [f"{name}={short_float(value)}" for name, value in values.items()]
        click.echo(f"row {row + 1:,}: {', '.join(cells)}")
    if rows.size > SHOWN:
        click.echo(more_rows(rows.size - SHOWN))

"""`pickmix explain`: the most unusual rows, and which of their cells make them so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from pickmix.cli.console import clear_errors, notes
from pickmix.cli.output import Output, count_option, out_option, short_float
from pickmix.cli.saved import Chunk, SavedModel, load_model, query_options, querying, take_rows
from pickmix.inputs.text import as_text


@dataclass
class UnusualRow:
    log_density: float
    #: Its number, from 1.
    row: int
    #: The column that names the rows and what it holds here, if there is one.
    id: dict[str, Any]
    #: Column, observed, expected, spread and log p(observed | others), most surprising first.
    reasons: list[tuple[str, Any, Any, float, float]]


@click.command()
@query_options
@count_option("--top", default=10, metavar="N", help="How many rows, the most unusual first.")
@count_option(
    "--reasons",
    default=3,
    metavar="M",
    help="How many columns of each row, the most surprising first.",
)
@out_option
@clear_errors
def explain(model: Path, top: int, reasons: int, out: Path | None, **data: Any) -> None:
    """The most unusual rows of DATA under MODEL, and what makes them so.

    Rows with the lowest log-density are the most unusual. For each of their columns you get the
    observed value, the value expected given all other columns of the row, the spread of values
    about it, and log p(observed | others), exact under the mixture: the lower, the more surprising.
    For a category, the expected value is the most probable level and the spread is its probability.

    --out writes a line per row and column: `row` (from 1), `log_density`, `column`, `observed`,
    `expected`, `spread`, `log_conditional`, and first the column of --id. DATA is as in `pickmix
    score`. Models of flows and networks cannot do this.

    \b
    Example:
      pickmix explain pickmix-model rows.csv --top 5
      pickmix explain pickmix-model people.csv --id name --top 100 --out reasons.csv
    """
    saved = load_model(model)
    saved.require_conditionals("explain")
    unusual: list[UnusualRow] = []
    n_rows = 0
    with notes(), Output(out, data["id"]) as output, querying(saved, **data) as chunks:
        for chunk in chunks:
            n_rows += len(chunk)
            unusual += _explain(saved, chunk, top, reasons)
            unusual = sorted(unusual, key=lambda row: (row.log_density, row.row))[:top]
        if not unusual:
            raise ValueError(f"{data['data']}: expected a row with a value, got only missing ones")
        if out is not None:
            output.add(*_columns(unusual))
    if out is None:
        _show(unusual)
        return
    output.say(f"{len(unusual):,} of {n_rows:,} rows")
    output.show()


def _explain(saved: SavedModel, chunk: Chunk, top: int, n_reasons: int) -> list[UnusualRow]:
    log_density = saved.estimator.score_samples(chunk.rows)
    lowest = np.argsort(log_density, kind="stable")[:top]
    explanation = saved.estimator.explain(take_rows(chunk.rows, lowest), top=n_reasons)
    names = explanation.names if saved.is_table else saved.labels
    unusual: list[UnusualRow] = []
    for place, number in enumerate(lowest.tolist()):
        reasons = [
            (
                names[column],
                explanation.values[place, column],
                explanation.expected[place, column],
                float(explanation.spread[place, column]),
                float(explanation.log_conditional[place, column]),
            )
            for column in explanation.ranked[place].tolist()
            if column >= 0
        ]
        # Without reasons, nothing was observed of this row.
        if reasons:
            id = {name: values[number] for name, values in chunk.ids.items()}
            row = chunk.first + number + 1
            unusual.append(UnusualRow(float(log_density[number]), row, id, reasons))
    return unusual


def _columns(unusual: list[UnusualRow]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The explanation as a table, and what names its rows."""
    names = ("row", "log_density", "column", "observed", "expected", "spread", "log_conditional")
    records = [(row.row, row.log_density, *reason) for row in unusual for reason in row.reasons]
    columns = dict(zip(names, map(_array, zip(*records, strict=True)), strict=True))
    ids = {
        name: _array([row.id[name] for row in unusual for _ in row.reasons])
        for name in unusual[0].id
    }
    return columns, ids


def _array(values: Any) -> np.ndarray:
    array = np.array(values)
    if array.dtype.kind in "if":
        return array
    # Columns of numbers and of words make one of words.
    return np.fromiter(map(as_text, values), dtype=object, count=len(values))


def _show(unusual: list[UnusualRow]) -> None:
    for row in unusual:
        id = "".join(f", {name} {value}" for name, value in row.id.items())
        click.echo(f"row {row.row:,}{id}: log-density {row.log_density:.3f}")
        lines = [("column", "observed", "expected", "spread", "log p(observed | others)")]
        lines += [
            (
                column,
                short_float(observed),
                short_float(expected),
                f"{spread:.3g}",
                f"{surprise:.3f}",
            )
            for column, observed, expected, spread, surprise in row.reasons
        ]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        for column, *cells in lines:
            padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
            click.echo("  " + "  ".join([column.ljust(widths[0]), *padded]))

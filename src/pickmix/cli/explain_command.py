"""`pickmix explain`: the most unusual rows, and which of their cells make them so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from pickmix.cli.asking import Piece, Saved, asking, asking_options, load_model, need_questions
from pickmix.cli.console import clear_errors, notes
from pickmix.cli.delivery import Delivery, out_option
from pickmix.cli.reading import Place
from pickmix.data.text_cells import as_text


@dataclass
class Unusual:
    """An unusual row and its explanation.

    Attributes
    ----------
    log_density : float
    row : int
        Its number, from 1.
    id : dict of Any
        The column that names the rows and what it holds here, if there is one.
    reasons : list of tuples
        Column, observed, expected, spread and log p(observed | others), the most surprising first.
    """

    log_density: float
    row: int
    id: dict[str, Any]
    reasons: list[tuple[str, Any, Any, float, float]]


@click.command()
@asking_options
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="How many rows, the most unusual first.",
)
@click.option(
    "--reasons",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="M",
    help="How many columns of each row, the most surprising first.",
)
@out_option
@clear_errors
def explain(model: Path, top: int, reasons: int, out: Path | None, **place: Any) -> None:
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
    need_questions(saved, "explain")
    found: list[Unusual] = []
    n_rows = 0
    with notes(), Delivery(out, place["id"]) as delivery, asking(saved, Place(**place)) as pieces:
        for piece in pieces:
            n_rows += piece.n_rows
            found = sorted(found + _explain(saved, piece, top, reasons), key=_how_usual)[:top]
        if not found:
            raise ValueError(f"{place['data']}: expected a row with a value, got only missing ones")
        if out is not None:
            delivery.add(*_columns(found))
    if out is None:
        _show(found)
        return
    delivery.say(f"{len(found):,} of {n_rows:,} rows")
    delivery.tell()


def _how_usual(unusual: Unusual) -> tuple[float, int]:
    return unusual.log_density, unusual.row


def _explain(saved: Saved, piece: Piece, top: int, reasons: int) -> list[Unusual]:
    """The most unusual rows of a piece."""
    log_density = saved.estimator.score_samples(piece.rows)
    lowest = np.argsort(log_density, kind="stable")[:top]
    explanation = saved.estimator.explain(piece.take(lowest), top=reasons)
    names = explanation.names if saved.is_table else saved.labels
    found: list[Unusual] = []
    for place, number in enumerate(lowest.tolist()):
        columns = [int(column) for column in explanation.ranked[place] if column >= 0]
        why = [
            (
                names[column],
                explanation.values[place, column],
                explanation.expected[place, column],
                float(explanation.spread[place, column]),
                float(explanation.log_conditional[place, column]),
            )
            for column in columns
        ]
        if not why:
            # Nothing was seen of this row.
            continue
        id = {name: values[number] for name, values in piece.ids.items()}
        found.append(Unusual(float(log_density[number]), piece.first + number + 1, id, why))
    return found


def _columns(found: list[Unusual]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The explanation as a table, and what names its rows."""
    lines = [
        {
            "row": unusual.row,
            "log_density": unusual.log_density,
            "column": column,
            "observed": observed,
            "expected": expected,
            "spread": spread,
            "log_conditional": log_conditional,
        }
        for unusual in found
        for column, observed, expected, spread, log_conditional in unusual.reasons
    ]
    ids = [unusual.id for unusual in found for _ in unusual.reasons]
    columns, named = (
        {name: _array([line[name] for line in some]) for name in some[0]} for some in (lines, ids)
    )
    return columns, named


def _array(values: list[Any]) -> np.ndarray:
    array = np.array(values)
    if array.dtype.kind in "if":
        return array
    # Columns of numbers and of words make one of words.
    return np.fromiter(map(as_text, values), dtype=object, count=len(values))


def _show(found: list[Unusual]) -> None:
    for unusual in found:
        named = "".join(f", {name} {value}" for name, value in unusual.id.items())
        click.echo(f"row {unusual.row:,}{named}: log-density {unusual.log_density:.3f}")
        lines = [("column", "observed", "expected", "spread", "log p(observed | others)")]
        lines += [
            (column, _shown(observed), _shown(expected), f"{spread:.3g}", f"{surprise:.3f}")
            for column, observed, expected, spread, surprise in unusual.reasons
        ]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        for column, *cells in lines:
            padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
            click.echo("  " + "  ".join([column.ljust(widths[0]), *padded]))


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)

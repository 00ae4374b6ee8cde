"""`pickmix score`, `assign`, `explain` and `sample`: queries of a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from pickmix.cli.console import clear_errors, notes
from pickmix.cli.data import option_wording
from pickmix.cli.output import Output, count_option, out_option, seed_option, short_float
from pickmix.cli.saved import (
    Chunk,
    SavedModel,
    load_model,
    model_argument,
    query_options,
    querying,
)
from pickmix.inputs.files import column_numbers
from pickmix.inputs.kinds import as_fitted
from pickmix.inputs.text import as_text, is_missing, is_number, text_column


@click.command()
@query_options
@out_option
@clear_errors
def score(model: Path, out: Path | None, **data: Any) -> None:
    """Log-density of each row of DATA under MODEL.

    Prints the mean and the first rows; --out writes all of them, in a column `log_density`. Rows
    far below the others are outliers; `pickmix explain` says why. If a row has missing values, the
    score is that of the values it has.

    DATA is a file, a folder of Parquet files, a pattern in quotes, or - for standard input. Files
    above 256 MB, folders and patterns are read piece by piece.

    \b
    Example:
      pickmix score pickmix-model rows.csv --out scores.csv
      pickmix score pickmix-model "parts/*.parquet" --out scores.csv
      zcat rows.csv.gz | pickmix score pickmix-model - --out - | sort -t, -g | head
    """
    saved = load_model(model)
    total, n_rows = 0.0, 0
    with notes(), Output(out, data["id"]) as output, querying(saved, **data) as chunks:
        for chunk in chunks:
            log_density = saved.estimator.score_samples(chunk.rows)
            total += float(log_density.sum())
            n_rows += len(log_density)
            output.add({"log_density": log_density}, chunk.ids)
    output.say(f"mean log-density of {n_rows:,} rows: {total / n_rows:.6f}")
    output.show()


@click.command()
@query_options
@count_option(
    "--top", default=1, metavar="M", help="How many components per row, most probable first."
)
@out_option
@clear_errors
def assign(model: Path, top: int, out: Path | None, **data: Any) -> None:
    """Most probable components of each row of DATA under MODEL.

    The result has columns `component_1`, `probability_1`, `component_2`, ... with components
    numbered from 0. The components of a sum-product-transform network are the children of its
    root. DATA is as in `pickmix score`.

    \b
    Example:
      pickmix assign pickmix-model rows.csv --top 3 --out components.csv
    """
    saved = load_model(model)
    total, n_rows = 0.0, 0
    used: np.ndarray = np.empty(0, dtype=np.int64)
    with notes(), Output(out, data["id"]) as output, querying(saved, **data) as chunks:
        for chunk in chunks:
            components, probabilities = saved.estimator.top_components(chunk.rows, top)
            used = np.union1d(used, components[:, 0])
            total += float(probabilities[:, 0].sum())
            n_rows += len(components)
            result = {}
            for number in range(top):
                result[f"component_{number + 1}"] = components[:, number]
                result[f"probability_{number + 1}"] = probabilities[:, number]
            output.add(result, chunk.ids)
    output.say(
        f"{n_rows:,} rows, {used.shape[0]:,} components in use, "
        f"mean probability of the first: {total / n_rows:.4f}"
    )
    output.show()


class _UnusualRow(NamedTuple):
    """A row and its explanation; they sort by how unusual they are."""

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
    unusual: list[_UnusualRow] = []
    n_rows = 0
    with notes(), Output(out, data["id"]) as output, querying(saved, **data) as chunks:
        for chunk in chunks:
            n_rows += len(chunk)
            unusual += _explain(saved, chunk, top, reasons)
            unusual = sorted(unusual, key=lambda row: row[:2])[:top]
        if not unusual:
            raise ValueError(f"{data['data']}: expected a row with a value, got only missing ones")
        if out is not None:
            output.add(*_columns(unusual))
    if out is None:
        _show(unusual)
        return
    output.say(f"{len(unusual):,} of {n_rows:,} rows")
    output.show()


def _explain(saved: SavedModel, chunk: Chunk, top: int, n_reasons: int) -> list[_UnusualRow]:
    log_density = saved.estimator.score_samples(chunk.rows)
    lowest = np.argsort(log_density, kind="stable")[:top]
    explanation = saved.estimator.explain(chunk.rows.take(lowest, axis=0), top=n_reasons)
    names = explanation.names if saved.is_table else saved.labels
    unusual: list[_UnusualRow] = []
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
            unusual.append(_UnusualRow(float(log_density[number]), row, id, reasons))
    return unusual


def _columns(unusual: list[_UnusualRow]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
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


def _show(unusual: list[_UnusualRow]) -> None:
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


@click.command()
@model_argument
@count_option("-n", "--rows", "n_rows", default=1, help="How many rows.")
@click.option(
    "--given",
    multiple=True,
    metavar="NAME=VALUE",
    help="A column that has this value in all rows; the others are drawn given it. May be given "
    "several times.",
)
@seed_option("Random seed.")
@out_option
@clear_errors
def sample(model: Path, n_rows: int, given: tuple[str, ...], seed: int, out: Path | None) -> None:
    """Draw rows from MODEL.

    The result has the columns of the fitted data. For rows of numbers drawn without --given there
    is one more, `component`: the component that each row came from. An .npy file has the columns of
    the data only. Flows and networks do not take --given.

    \b
    Example:
      pickmix sample pickmix-model -n 10000 --seed 1 --out made.csv
      pickmix sample penguins -n 100 --given species=Adelie --given year=2008
    """
    output = Output(out)
    saved = load_model(model)
    with notes(), option_wording():
        result = _draw(saved, n_rows, given, seed)
    if out is not None and out.suffix.lower() == ".npy":
        result.pop("component", None)
    with output:
        output.add(result)
    output.show()


def _draw(
    saved: SavedModel, n_rows: int, given: tuple[str, ...], seed: int
) -> dict[str, np.ndarray]:
    conditions = dict(_condition(saved, text) for text in given)
    if len(conditions) < len(given):
        raise ValueError(f"--given must name each column once, got {', '.join(given)}")
    if saved.is_table:
        known = saved.estimator.schema_
        values = {
            name: as_fitted(known[name], text_column([text])).value(0)
            for name, text in conditions.items()
        }
        table = saved.estimator.sample(n_rows, random_state=seed, given=values or None)
        columns = table if isinstance(table, dict) else {n: table[n] for n in table.column_names}
        return {name: np.asarray(column) for name, column in columns.items()}
    if given:
        saved.require_conditionals("sample --given")
        rows = np.full((n_rows, saved.estimator.n_features_in_), np.nan)
        for name, text in conditions.items():
            if not is_number(text):
                raise ValueError(f"--given {name} must be a number, got {text!r}")
            rows[:, saved.labels.index(name)] = float(text)
        rows = saved.estimator.sample_conditional(rows, random_state=seed)
        return dict(zip(saved.labels, rows.T, strict=True))
    saved.estimator.random_state = seed
    rows, components = saved.estimator.sample(n_rows)
    # The estimator groups rows by component; the first few rows should be a mixed lot.
    order = np.random.default_rng(seed).permutation(n_rows)
    result = dict(zip(saved.labels, rows[order].T, strict=True))
    return {**result, "component": components[order]}


def _condition(saved: SavedModel, text: str) -> tuple[str, str]:
    """Name and value of a --given; a name may hold the sign if the model has such a column."""
    places = [place for place, letter in enumerate(text) if letter == "="]
    if not places:
        raise ValueError(f"--given must be NAME=VALUE, got {text!r}")
    labels = saved.labels
    if saved.is_table:
        # Constants may be given, too, though they say nothing.
        columns = saved.estimator.schema_.columns.values()
        labels = labels + [column.name for column in columns if column.kind == "constant"]
    place = next((p for p in reversed(places) if text[:p].strip() in labels), places[0])
    name, value = text[:place].strip(), text[place + 1 :].strip()
    (number,) = column_numbers(saved.path, [name], labels, len(labels), "--given")
    if is_missing(value):
        raise ValueError(f"--given {name} must have a value, got {value!r}")
    return labels[number], value

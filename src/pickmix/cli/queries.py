"""`pickmix score`, `assign`, `explain`, `sample` and `impute`: queries of a saved model."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import click
import numpy as np

from pickmix.cli.console import clear_errors, notes
from pickmix.cli.data import DataFiles, WholeTable, open_data, option_wording, quote_names
from pickmix.cli.output import (
    SHOWN,
    Output,
    count_option,
    more_rows,
    out_option,
    seed_option,
    short_float,
)
from pickmix.cli.saved import Chunk, SavedModel, load_model, model_argument, query_options, querying
from pickmix.families.column_trees import TreeOfColumnsError
from pickmix.inputs.columns import TypedColumn
from pickmix.inputs.conditions import split_condition
from pickmix.inputs.errors import InputError, aligned, warn_caller
from pickmix.inputs.files import column_numbers
from pickmix.inputs.kinds import as_fitted, as_numbers, settled
from pickmix.inputs.text import (
    as_text,
    is_missing,
    is_number,
    open_text,
    quoted,
    raw_cells,
    text_column,
    written_rows,
)

Columns = dict[str, np.ndarray]
# Nats by which given values are less probable than all of so many drawn ones, to be called far.
_TYPICAL_ROWS, _FAR = 1000, 5.0
# What `explain` writes of a cell.
_CELL = (
    *("row", "log_density", "column", "observed", "expected", "spread"),
    *("log_conditional", "surprise", "together"),
)
# Which cells (N,) of columns were missing, and filled columns, once for each draw.
Filled = tuple[Columns, list[Columns]]


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
    about it, and the surprise: how much less probable the observed value is than the expected one,
    in nats. For a category, the expected value is the most probable level and the spread is its
    probability. Columns that are unusual together are named together: each explains the other.

    --out writes a line per row and column: `row` (from 1), `log_density`, `column`, `observed`,
    `expected`, `spread`, `log_conditional` (log p(observed | others)), `surprise`, `together`, and
    first the column of --id. DATA is as in `pickmix score`. Models of flows and networks cannot do
    this.

    \b
    Example:
      pickmix explain pickmix-model rows.csv --top 5
      pickmix explain pickmix-model people.csv --id name --top 100 --out reasons.csv
    """
    saved = load_model(model)
    saved.require_conditionals("explain")
    cells: list[dict[str, Any]] = []
    rows: list[int] = []
    n_rows = 0
    with notes(), Output(out, data["id"]) as output, querying(saved, **data) as chunks:
        for chunk in chunks:
            n_rows += len(chunk)
            cells += _unusual_cells(saved, chunk, top, reasons)
            cells.sort(key=lambda cell: (cell["log_density"], cell["row"]))
            rows = list(dict.fromkeys(cell["row"] for cell in cells))[:top]
            cells = [cell for cell in cells if cell["row"] in rows]
        if not cells:
            raise ValueError(f"{data['data']}: expected a row with a value, got only missing ones")
        if out is not None:
            columns = {name: _array([cell[name] for cell in cells]) for name in _CELL}
            ids = {name: _array([cell["ids"][name] for cell in cells]) for name in cells[0]["ids"]}
            output.add(columns, ids)
    if out is None:
        _show_unusual(cells)
        return
    output.say(f"{len(rows):,} of {n_rows:,} rows")
    output.show()


def _unusual_cells(
    saved: SavedModel, chunk: Chunk, top: int, n_reasons: int
) -> list[dict[str, Any]]:
    """The most surprising cells of the most unusual rows; rows without a value have none."""
    lowest = np.argsort(saved.estimator.score_samples(chunk.rows), kind="stable")[:top]
    explanation = saved.estimator.explain(chunk.rows.take(lowest, axis=0), top=n_reasons)
    labels = explanation.names if saved.is_table else saved.labels
    label = dict(zip(explanation.names, labels, strict=True))
    cells: list[dict[str, Any]] = explanation.records()
    for cell in cells:
        number = int(lowest[cell["row"]])
        cell |= {"row": chunk.first + number + 1, "column": label[cell["column"]]}
        cell["observed"] = cell.pop("value")
        cell["ids"] = {name: values[number] for name, values in chunk.ids.items()}
    return cells


def _array(values: Any) -> np.ndarray:
    array = np.array(values)
    if array.dtype.kind in "if":
        return array
    # Columns of numbers and of words make one of words.
    return np.fromiter(map(as_text, values), dtype=object, count=len(values))


def _show_unusual(cells: list[dict[str, Any]]) -> None:
    for row, group in itertools.groupby(cells, key=lambda cell: cell["row"]):
        reasons = list(group)
        id = "".join(f", {name} {value}" for name, value in reasons[0]["ids"].items())
        click.echo(f"row {row:,}{id}: log-density {reasons[0]['log_density']:.3f}")
        lines = [("column", "observed", "expected", "spread", "surprise")]
        for cell in reasons:
            texts = [short_float(cell[name]) for name in ("observed", "expected")]
            beside = f" with {cell['together']}" if cell["together"] else ""
            numbers = f"{cell['spread']:.3g}", f"{cell['surprise']:.2f}{beside}"
            lines.append((cell["column"], *texts, *numbers))
        click.echo("\n".join(f"  {line}" for line in aligned(lines, 1)))


@click.command()
@model_argument
@count_option("-n", "--rows", "n_rows", default=1, help="How many rows.")
@click.option(
    "--given",
    multiple=True,
    metavar="NAME=VALUE",
    help="A column that has this value in all rows; the others are drawn given it. Or a condition, "
    "in quotes: 'x > 0', '0 < x <= 5', 'x in [0, 5]', 'colour in {red, blue}'. May be given "
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
      pickmix sample penguins -n 100 --given species=Adelie --given 'mass > 4000'
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


def _draw(saved: SavedModel, n_rows: int, given: tuple[str, ...], seed: int) -> Columns:
    values, where = _conditions(saved, given)
    if saved.is_table:
        known = saved.estimator.schema_
        typed = {
            name: as_fitted(known[name], text_column([text])).value(0)
            for name, text in values.items()
        }
        table = saved.estimator.sample(n_rows, random_state=seed, given=typed or None, where=where)
        if typed:
            _warn_of_rare({name: [value] for name, value in typed.items()}, saved.estimator)
        columns = table if isinstance(table, dict) else {n: table[n] for n in table.column_names}
        return {name: np.asarray(column) for name, column in columns.items()}
    if given:
        saved.require_conditionals("sample --given")
        rows = np.full((n_rows, saved.estimator.n_features_in_), np.nan)
        for name, text in values.items():
            if not is_number(text):
                raise ValueError(f"--given {name} must be a number, got {text!r}")
            rows[:, saved.labels.index(name)] = float(text)
        numbers = np.flatnonzero(~np.isnan(rows[0]))
        if numbers.size:
            _warn_of_rare(rows[:1, numbers], saved.estimator, numbers.tolist())
        by_number = {saved.labels.index(name): text for name, text in where.items()}
        try:
            rows = saved.estimator.sample_conditional(rows, random_state=seed, where=by_number)
        except InputError as error:
            raise error.replaced(column=saved.labels[int(error.column)]) from error
        return dict(zip(saved.labels, rows.T, strict=True))
    saved.estimator.random_state = seed
    rows, components = saved.estimator.sample(n_rows)
    # The estimator groups rows by component; the first few rows should be a mixed lot.
    order = np.random.default_rng(seed).permutation(n_rows)
    result = dict(zip(saved.labels, rows[order].T, strict=True))
    return {**result, "component": components[order]}


def _warn_of_rare(given: Any, estimator: Any, columns: list[int] | None = None) -> None:
    """Warn if given values are far less probable than those that the model draws."""
    modelled = list(given) if columns is None else columns
    if columns is None:
        modelled = [name for name in given if estimator.schema_[name].is_modelled]
        given = {name: given[name] for name in modelled}
    if not modelled:
        return
    try:
        marginal = estimator.marginal(modelled)
    except TreeOfColumnsError:
        # Draws do not need the marginal; only this note does.
        return
    drawn = marginal.sample(_TYPICAL_ROWS, random_state=0)
    typical = marginal.score_samples(drawn[0] if isinstance(drawn, tuple) else drawn).min()
    if marginal.score_samples(given)[0] < typical - _FAR:
        warn_caller("The --given values are far from all rows of the fit; so may be the others.")


def _conditions(saved: SavedModel, given: tuple[str, ...]) -> tuple[dict[str, str], dict[str, str]]:
    """Values of columns by name, and other conditions."""
    splits = [split_condition(text, saved.labels) for text in given]
    where = dict(split for split in splits if split and not split[1].startswith("="))
    texts = [t for t, split in zip(given, splits, strict=True) if not split or split[1][0] == "="]
    values = dict(_condition(saved, text) for text in texts)
    if len(values.keys() | where.keys()) < len(given):
        raise ValueError(f"--given must name each column once, got {', '.join(given)}")
    return values, where


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


# Filling


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
                f"{files.name}: the result of several --draws has a column 'draw'; "
                "rename that of the data"
            )
        answer = {"strategy": strategy, "n_draws": draws, "random_state": seed}
        fill = _fill_table if saved.is_table else _fill_array
        missing, filled = fill(saved, files, table, answer)
        n_filled = sum(int(flags.sum()) for flags in missing.values())
        share = f"{n_filled:,} of {table.n_rows * len(missing):,} cells filled"
        output.say(share if n_filled else f"no missing cell in {files.name}")
        for name in _mostly_filled(saved, missing):
            output.say(
                f"note: most cells of category {name!r} were missing. If that is an answer, such "
                f"as None, keep it: fit with --gap-levels {quote_names([name])}."
            )
        if out is None:
            _show_filled(missing, filled[0])
        elif output.is_text and table.texts:
            _write_text(output, table, missing, filled)
        else:
            others = {name: _unchanged(table, name) for name in table.names if name not in missing}
            for number, columns in enumerate(filled, start=1):
                draw = {"draw": np.full(table.n_rows, number)} if len(filled) > 1 else {}
                output.add(draw | {name: (others | columns)[name] for name in table.names})
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
    missing = {
        name: settled(schema[name], typed[name]).missing & (not schema[name].has_gap_level)
        for name in names
    }
    tables = answers if answer["n_draws"] > 1 else [answers]
    return missing, [{name: np.asarray(one[name]) for name in names} for one in tables]


def _mostly_filled(saved: SavedModel, missing: Columns) -> list[str]:
    """Categories that were missing in more than half of the rows."""
    return [
        name
        for name, flags in missing.items()
        if saved.is_table
        and saved.estimator.schema_[name].kind == "category"
        and flags.mean() > 0.5
    ]


def _fill_array(
    saved: SavedModel, files: DataFiles, table: WholeTable, answer: dict[str, Any]
) -> Filled:
    columns, present = saved.array_columns(files)
    numbers = range(len(table.names)) if columns is None else files.find(columns)
    names = [table.names[number] for number in numbers]
    known = np.full((table.n_rows, len(names)), np.nan)
    for place, (name, column) in enumerate(table.typed(names).columns.items()):
        if not column.missing.all():
            # Text may spell numbers, such as 0123.
            values = as_numbers(name, column).values
            known[:, place] = np.where(column.missing, np.nan, values)
    rows = saved.complete(files, known, present)
    answers = saved.estimator.impute(rows, **answer).reshape(-1, *rows.shape)
    places = dict(zip(names, present, strict=True))
    missing = {name: np.isnan(rows[:, place]) for name, place in places.items()}
    return missing, [{n: one[:, place] for n, place in places.items()} for one in answers]


def _as_list(column: TypedColumn) -> list[Any]:
    """Values as Python has them, so that whole numbers stay whole; None where one is missing."""
    if column.missing.all():
        return [None] * column.missing.shape[0]
    values = column.values if column.levels is None else column.levels[column.values]
    pairs = zip(values.tolist(), column.missing.tolist(), strict=True)
    return [None if is_missing else value for value, is_missing in pairs]


def _write_text(output: Output, table: WholeTable, missing: Columns, filled: list[Columns]) -> None:
    """Write the lines of a text again, with what was missing in its place."""
    path, layout = table.texts[0]
    delimiter = output.delimiter_after(layout.delimiter)
    mark, several = delimiter or " ", len(filled) > 1
    with open_text(path) as file:
        start = list(itertools.islice(file, layout.n_skipped + 1))
    end = "\r\n" if start[0].endswith("\r\n") else "\n"
    before = start[: layout.n_skipped]
    if delimiter != layout.delimiter:
        before = [mark.join(quoted(name, mark) for name in layout.names or ()) + "\n"]
    if layout.names is not None:
        before[-1] = f"draw{mark}{before[-1]}" if several else before[-1]
        output.add_text("".join(before))
    for number, columns in enumerate(filled, start=1):
        gaps = [
            (table.names.index(name), flags, columns[name])
            for name, flags in missing.items()
            if flags.any()
        ]
        rows = (
            (row, part.delimiter) for path, part in table.texts for row in written_rows(path, part)
        )
        for place, (row, original) in enumerate(rows):
            new = [(column, values[place]) for column, flags, values in gaps if flags[place]]
            if new or delimiter != original:
                cells = raw_cells(row, original)
                if delimiter != original:
                    # Those in quotes are the same in every dialect.
                    cells = [c if c.lstrip()[:1] == '"' else quoted(c, delimiter) for c in cells]
                for column, value in new:
                    cells[column] = quoted(as_text(value, layout.decimal), delimiter)
                row = mark.join(cells)
            output.add_text(f"{number}{mark}{row}{end}" if several else row + end)


def _unchanged(table: WholeTable, name: str) -> np.ndarray:
    column = table.typed([name]).columns[name]
    if column.storage == "number" and not column.missing.any():
        return column.values
    return np.fromiter(table.cells(name), dtype=object, count=table.n_rows)


def _show_filled(missing: Columns, filled: Columns) -> None:
    rows = np.flatnonzero(np.any(list(missing.values()), axis=0))
    for row in rows[:SHOWN].tolist():
        values = {name: filled[name][row] for name, flags in missing.items() if flags[row]}
        cells = [f"{name}={short_float(value)}" for name, value in values.items()]
        click.echo(f"row {row + 1:,}: {', '.join(cells)}")
    if rows.size > SHOWN:
        click.echo(more_rows(rows.size - SHOWN))

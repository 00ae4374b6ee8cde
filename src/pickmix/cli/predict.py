"""`pickmix predict`: some columns of a table, given the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from pickmix.cli.console import clear_errors, notes
from pickmix.cli.data import split_names
from pickmix.cli.output import Output, out_option
from pickmix.cli.saved import Chunk, SavedModel, load_model, query_options, querying
from pickmix.inputs.columns import TypedTable
from pickmix.inputs.files import column_numbers
from pickmix.inputs.kinds import as_fitted
from pickmix.inputs.schema import LEVEL_KINDS

Columns = dict[str, np.ndarray]


@click.command()
@query_options
@click.option(
    "--target",
    "targets",
    required=True,
    metavar="NAMES",
    callback=split_names,
    help="Columns to predict, separated by commas. DATA may be without them.",
)
@click.option("--std", is_flag=True, help="Write standard deviations, too.")
@click.option(
    "--quantiles",
    metavar="LIST",
    callback=split_names,
    help="Quantiles of numbers and dates to write, too, such as 0.05,0.95.",
)
@out_option
@clear_errors
def predict(
    model: Path,
    targets: list[str],
    std: bool,
    quantiles: list[str] | None,
    out: Path | None,
    **data: Any,
) -> None:
    """Predict columns of DATA from the other columns of each row, under MODEL.

    The result has the expected value of each target: of a category the most probable level, and its
    probability in NAME_probability. --std adds NAME_std, --quantiles adds NAME_q0.05 and so on.
    Values that DATA has of a target are not used: if there are any, you see how close the
    predictions are. Other cells may be missing. DATA is as in `pickmix score`. Models of flows and
    networks cannot do this.

    \b
    Example:
      pickmix predict pickmix-model houses.csv --target price --quantiles 0.05,0.95 --out prices.csv
      pickmix predict penguins new.csv --target species
    """
    saved = load_model(model)
    saved.require_conditionals("predict")
    labels = saved.labels
    numbers = column_numbers(saved.path, targets, labels, len(labels), "--target")
    names = [labels[number] for number in numbers]
    levels = _quantiles(quantiles)
    pairs: list[tuple[Columns, Columns]] = []
    with notes(), Output(out, data["id"]) as output, querying(saved, names, **data) as chunks:
        for chunk in chunks:
            rows, observed = _without_targets(saved, chunk, names)
            answers = _answers(saved, rows, names, std, levels)
            pairs.append((answers, observed))
            output.add(answers, chunk.ids)
    for name in names:
        predicted, seen = (
            np.concatenate([part[name] for part in parts]) for parts in zip(*pairs, strict=True)
        )
        if (closeness := _closeness(predicted, seen)) is not None:
            output.say(f"{name}: {closeness}")
    output.show()


def _quantiles(texts: list[str] | None) -> list[float]:
    try:
        return [float(text) for text in texts or ()]
    except ValueError as error:
        listed = ",".join(texts or ())
        raise ValueError(f"--quantiles must be numbers such as 0.05,0.95, got {listed}") from error


def _without_targets(
    saved: SavedModel, chunk: Chunk, names: list[str]
) -> tuple[np.ndarray | TypedTable, Columns]:
    """Rows without the targets, and the values that the targets have: None where missing."""
    rows, observed = chunk.rows, {}
    if isinstance(rows, TypedTable):
        schema = saved.estimator.schema_
        for name in names:
            observed[name] = np.full(len(rows), None, dtype=object)
            if name in rows.columns:
                column = as_fitted(schema[name], rows.columns[name])
                for row in np.flatnonzero(~column.missing).tolist():
                    observed[name][row] = column.value(row)
        kept = {name: column for name, column in rows.columns.items() if name not in names}
        return replace(rows, columns=kept), observed
    given = rows.copy()
    for name in names:
        number = saved.labels.index(name)
        observed[name] = rows[:, number].astype(object)
        observed[name][np.isnan(rows[:, number])] = None
        given[:, number] = np.nan
    return given, observed


def _answers(
    saved: SavedModel,
    rows: np.ndarray | TypedTable,
    names: list[str],
    std: bool,
    levels: list[float],
) -> Columns:
    """Columns of the result, those of one target after the other."""
    estimator, answers = saved.estimator, {}
    terms = estimator._columns
    for name in names:
        targets = terms.find(name if saved.is_table else saved.labels.index(name))
        # Other than those of `conditional`, rows may have levels that the fit has not seen.
        mixtures = estimator._conditionals(terms, terms.read_without(rows, targets), targets)

        def single(answer: Any, name: str = name) -> np.ndarray:
            return np.asarray(answer[name] if saved.is_table else answer[:, 0])

        mean, deviation = mixtures.describe(std)
        answers[name] = single(mean)
        if saved.is_table and estimator.schema_[name].kind in LEVEL_KINDS:
            answers[f"{name}_probability"] = mixtures.probabilities(name)[1].max(axis=1)
            continue
        if std:
            answers[f"{name}_std"] = single(deviation)
        for number, level in enumerate(levels):
            if number == 0:
                values = single(mixtures.quantile(levels))
            answers[f"{name}_q{level:g}"] = values[:, number]
    return answers


def _closeness(predicted: np.ndarray, observed: np.ndarray) -> str | None:
    """How close predictions are to what was observed; None if that is not known."""
    seen = observed != None  # noqa: E711
    n_rows = int(np.count_nonzero(seen))
    if not n_rows or predicted.dtype.kind == "M":
        return None
    predicted, observed = predicted[seen], observed[seen]
    if predicted.dtype.kind not in "if":
        return f"right in {np.mean(predicted == observed):.1%} of the {n_rows:,} rows that have it"
    values = observed.astype(np.float64)
    errors = predicted - values
    spread = float(np.square(values - values.mean()).sum())
    share = "" if spread == 0.0 else f", R2 {1.0 - np.square(errors).sum() / spread:.3f}"
    mean = f"{np.abs(errors).mean():.4g}"
    return f"mean absolute error {mean}{share} in the {n_rows:,} rows that have it"

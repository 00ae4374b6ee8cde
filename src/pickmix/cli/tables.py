"""`pickmix detect` and `pickmix synthesize`: of a table alone, without a saved model."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import click
import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import pickmix
from pickmix.cli.console import clear_errors, notes
from pickmix.cli.data import data_options, kind_option, kinds_of, open_data, option_wording
from pickmix.cli.output import Output, count_option, out_option, seed_option, short_float
from pickmix.cli.saved import data_argument
from pickmix.estimators.detector import MixtureDetector
from pickmix.estimators.table_mixture import TableMixture
from pickmix.inputs.columns import TypedTable
from pickmix.inspection.comparison import compare
from pickmix.model.columns import LEVEL_KINDS
from pickmix.model.explanation import Explanation

# Rows from which on some are held out for the comparison, and the share of them.
_FEWEST_ROWS, _HELD_OUT = 300, 0.1
# More components are tried in such steps, if each has so many rows on average.
_FACTOR, _ROWS_EACH = 4, 10


@click.command()
@data_argument
@data_options
@click.option(
    "--contamination",
    type=click.FloatRange(0.0, 0.5, min_open=True),
    default=0.05,
    show_default=True,
    help="Share of rows to flag.",
)
@kind_option
@count_option("--reasons", default=3, metavar="M", help="How many columns to name for each row.")
@click.option("--all", "write_all", is_flag=True, help="Write all rows, in the order of DATA.")
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    help="Save the detector there, for pickmix.load in Python.",
)
@seed_option("Random seed.")
@out_option
@clear_errors
def detect(
    contamination: float,
    kinds: tuple[str, ...],
    reasons: int,
    write_all: bool,
    model: Path | None,
    seed: int,
    out: Path | None,
    **data: Any,
) -> None:
    """Flag the unusual rows of DATA, and say what is unusual in them.

    No model is needed: small mixtures are fitted to parts of the rows, and each row is scored by
    those that have not seen it. Columns may hold numbers, text, dates and gaps.

    The result has a line for each flagged row, the most unusual first: `row` (from 1), `score`,
    `flagged`, `reasons` and `scale`, and first the column of --id. The score is minus the logarithm
    of the share of rows that are as unusual. Reasons name the most surprising cells, with what was
    expected there given the others. DATA must fit into memory.

    \b
    Example:
      pickmix detect people.csv --id name --out flagged.csv
      pickmix detect people.csv --contamination 0.01 --reasons 5 --all --out scores.csv
    """
    with notes(), Output(out, data["id"]) as output, open_data(**data) as files:
        whole = files.read_table()
        names = [whole.names[number] for number in files.chosen_numbers()]
        table = whole.typed(names)
        schema = kinds_of(kinds) or None
        detector = MixtureDetector(contamination, schema=schema, random_state=seed).fit(table)
        flagged = np.flatnonzero(detector.labels_)
        flagged = flagged[np.argsort(-detector.decision_scores_[flagged], kind="stable")]
        shown = np.arange(table.n_rows) if write_all else flagged
        if not shown.size:
            # Ties at the threshold: the most unusual rows are all alike.
            shown = np.argsort(-detector.decision_scores_, kind="stable")[:1]
        texts, scales = np.full(table.n_rows, "", object), np.full(table.n_rows, "", object)
        if flagged.size:
            explanation = detector.explain(table.take(flagged), top=reasons)
            texts[flagged] = [_reasons(explanation, place) for place in range(len(flagged))]
            scales[flagged] = explanation.scales
        columns = {
            "row": shown + 1,
            "score": detector.decision_scores_[shown],
            "flagged": detector.labels_[shown],
            "reasons": texts[shown],
            "scale": scales[shown],
        }
        ids = {}
        if files.id_column is not None:
            number, name = files.id_column
            cells = whole.cells(whole.names[number])
            ids[name] = np.array([cells[row] for row in shown.tolist()], dtype=object)
        output.add(columns, ids)
        if model is not None:
            pickmix.save(detector, model)
    output.say(f"{flagged.size:,} of {table.n_rows:,} rows flagged")
    output.show()


def _reasons(explanation: Explanation, row: int) -> str:
    """What is unusual in a row, as one line of text."""
    texts = []
    for column in explanation.ranked[row].tolist():
        if column < 0:
            continue
        value, expected = explanation.values[row, column], explanation.expected[row, column]
        spread = f"± {explanation.spread[row, column]:.3g}"
        if explanation.kinds[column] in LEVEL_KINDS:
            spread = f"{100.0 * explanation.spread[row, column]:.0f} %"
        text = f"{explanation.names[column]} {short_float(value)}"
        text += f" (expected {short_float(expected)} {spread})"
        texts.append(text + explanation.beside(row, column))
    return "; ".join(texts)


@click.command()
@data_argument
@data_options
@click.option(
    "-n",
    "n_rows",
    type=click.IntRange(min=1),
    metavar="N",
    help="Rows to draw. Without it as many as DATA has.",
)
@click.option(
    "--components",
    type=click.IntRange(min=1),
    help="Number of components. Without it the number is chosen.",
)
@kind_option
@click.option("--no-check", is_flag=True, help="Do not compare drawn rows with those of DATA.")
@seed_option("Random seed.")
@out_option
@clear_errors
def synthesize(
    n_rows: int | None,
    components: int | None,
    kinds: tuple[str, ...],
    no_check: bool,
    seed: int,
    out: Path | None,
    **data: Any,
) -> None:
    """Draw rows like those of DATA, and say how well they can be told from them.

    A mixture is fitted to the table, as `pickmix fit --model table` does. A tenth of the rows is
    held out of the fit if there are 300 or more, and more components are taken as long as these
    rows are explained better. The check prints how well a classifier tells drawn
    rows from real and from held-out ones, which columns and pairs of columns differ most, and how
    many drawn rows are near copies of real ones. DATA must fit into memory.

    Drawn rows are no protection of persons: look at the near copies, and at rare levels.

    \b
    Example:
      pickmix synthesize people.csv -n 10000 --exclude name --out drawn.csv
    """
    with notes(), Output(out) as output, open_data(**data) as files:
        whole = files.read_table()
        names = [whole.names[number] for number in files.chosen_numbers()]
        table = whole.typed(names)
        with option_wording():
            held_out, fitted = None, table
            if not no_check and table.n_rows >= _FEWEST_ROWS:
                order = np.random.default_rng(seed).permutation(table.n_rows)
                n_held_out = int(_HELD_OUT * table.n_rows)
                held_out, fitted = (
                    table.take(np.sort(part)) for part in (order[:n_held_out], order[n_held_out:])
                )
            schema = kinds_of(kinds) or None
            number: int | str = "auto" if components is None else components
            mixture = TableMixture(number, schema=schema, random_state=seed).fit(fitted)
            if components is None and held_out is not None:
                mixture = _with_more_components(mixture, fitted, held_out)
        drawn = mixture.sample(table.n_rows if n_rows is None else n_rows, random_state=seed)
        columns = drawn if isinstance(drawn, dict) else {n: drawn[n] for n in drawn.column_names}
        columns = {name: np.asarray(column) for name, column in columns.items()}
        output.add(columns)
    size = len(next(iter(columns.values())))
    output.say(f"{size:,} rows of {mixture.n_components_:,} components")
    if not no_check:
        output.say(str(compare(fitted, columns, held_out)))
    output.show()


def _with_more_components(
    mixture: TableMixture, fitted: TypedTable, held_out: TypedTable
) -> TableMixture:
    """Fit ever more components as long as held-out rows gain by more than chance."""
    scores = mixture.score_samples(held_out)
    while mixture.n_components_ * _FACTOR <= fitted.n_rows / _ROWS_EACH:
        larger = clone(mixture).set_params(n_components=mixture.n_components_ * _FACTOR)
        with warnings.catch_warnings():
            # Held-out rows judge the fit, converged or not.
            warnings.simplefilter("ignore", ConvergenceWarning)
            larger.fit(fitted)
        gains = larger.score_samples(held_out) - scores
        if gains.mean() <= gains.std() / np.sqrt(gains.shape[0]):
            break
        mixture, scores = larger, scores + gains
    return mixture

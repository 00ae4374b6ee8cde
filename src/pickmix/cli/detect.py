"""`pickmix detect`: the unusual rows of a table, with reasons, in one go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

import pickmix
from pickmix.cli.console import clear_errors, notes
from pickmix.cli.data import data_options, kind_option, kinds_of, open_data
from pickmix.cli.output import Output, count_option, out_option, seed_option, short_float
from pickmix.cli.saved import data_argument
from pickmix.estimators.detector import MixtureDetector
from pickmix.model.columns import LEVEL_KINDS
from pickmix.model.explanation import Explanation


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

"""`pickmix synthesize`: rows like those of a table, and how well they can be told from them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import click
import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from pickmix.cli.console import clear_errors, notes
from pickmix.cli.data import data_options, kind_option, kinds_of, open_data, option_wording
from pickmix.cli.output import Output, out_option, seed_option
from pickmix.cli.saved import data_argument
from pickmix.estimators.table_mixture import TableMixture
from pickmix.inputs.columns import TypedTable
from pickmix.inspection.comparison import compare

# Rows from which on some are held out for the comparison, and the share of them.
_FEWEST_ROWS, _HELD_OUT = 300, 0.1
# More components are tried in such steps, if each has so many rows on average.
_FACTOR, _ROWS_EACH = 4, 10


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

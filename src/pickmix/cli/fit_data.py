"""The data of `pickmix fit`: rows of numbers or a table of all types, and the model for them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import click
import numpy as np

from pickmix.cli.models import DEEP
from pickmix.cli.preparing import chosen_columns, id_name, name_of, ready
from pickmix.cli.reading import (
    Place,
    column_label,
    explained,
    first_gap,
    open_place,
    read_rows,
    sample_rows,
)
from pickmix.cli.whole_tables import chosen_names, read_whole
from pickmix.data.files import column_numbers
from pickmix.data.mixsim import generate
from pickmix.data.open_rows import find_files
from pickmix.data.sources import RowSource
from pickmix.data.text_files import TEXT, table_suffix, text_layout
from pickmix.data.typed_inference import infer_schema
from pickmix.data.typed_readers import read_typed
from pickmix.data.typed_schema import TableSchema
from pickmix.data.typed_tables import TypedTable
from pickmix.experiments.scoring import GaussianParameters


@dataclass
class Data:
    """What is fitted: rows, where they come from, and the truth if it is known."""

    rows: np.ndarray | RowSource | TypedTable
    origin: str
    names: list[str] | None = None
    true_log_likelihood: float | None = None
    id: str | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows and columns."""
        if isinstance(self.rows, TypedTable):
            return self.rows.n_rows, len(self.rows.columns)
        if isinstance(self.rows, RowSource):
            return self.rows.n_rows, self.rows.n_columns
        n_rows, n_columns = self.rows.shape
        return n_rows, n_columns

    @property
    def by_pieces(self) -> bool:
        """Whether the rows are read piece by piece."""
        return isinstance(self.rows, RowSource)

    def some(self) -> Any:
        """All rows, or a sample of them."""
        return sample_rows(self.rows) if isinstance(self.rows, RowSource) else self.rows


def example(n_rows: int, n_components: int, as_table: bool) -> Data:
    """Make rows of a known mixture, with component sizes that leave a picture readable."""
    mixture = generate(n_components, 2, max_overlap=0.75, random_state=0)
    rows, _ = mixture.sample(n_rows, random_state=0)
    # The estimator's kernels give the mixture's own scores several times faster.
    truth = GaussianParameters(mixture.weights, mixture.means, mixture.covariances)
    log_likelihood = float(truth.score_samples(rows).mean())
    made = read_typed({"x": rows[:, 0], "y": rows[:, 1]}) if as_table else rows
    return Data(made, "the embedded example", true_log_likelihood=log_likelihood)


def read_data(
    asked: Place, model: str, takes_gaps: bool, stack: contextlib.ExitStack, quiet: bool
) -> tuple[Data, str]:
    """Read the data of a fit, and choose the model.

    `takes_gaps` says whether the model that was asked for takes rows with missing values.
    """
    name = name_of(asked)
    place = stack.enter_context(ready(asked))
    id = None if place.id is None else id_name(place)
    data: Data | None = None
    if model != "table":
        data = _read_numbers(place, name, model, takes_gaps, stack, quiet)
    if data is None:
        data = _read_table(place, name)
        model = "table"
    elif model == "auto":
        model = "gaussian"
    data.id = id
    return data, model


def _read_numbers(
    place: Place,
    name: str,
    model: str,
    takes_gaps: bool,
    stack: contextlib.ExitStack,
    quiet: bool,
) -> Data | None:
    """Rows of numbers; None if there is something else and the model may be chosen."""
    chosen = replace(place, columns=chosen_columns(place))
    if model == "auto" and _begins_with_words(chosen):
        return None
    try:
        if not place.is_small:
            if not quiet:
                click.echo(f"Opening {name} ...", err=True)
            source = stack.enter_context(open_place(chosen))
            return Data(source, name, source.names)
        rows, names = read_rows(chosen)
    except ValueError as error:
        if "expected numbers in column" not in str(error):
            raise
        if model == "auto":
            return None
        raise ValueError(f"{error}{_other_models(model)}") from error
    gap = first_gap(rows)
    if gap is None:
        return Data(rows, name, names)
    if model == "auto":
        return None
    if not takes_gaps:
        row, column = gap[0] + 1, column_label(names, gap[1])
        plain = ", use --transforms none" if model == "sptn" else ""
        raise ValueError(
            f"{name}: a missing value in row {row} of column {column}; --model {model} needs "
            f"complete rows: leave the column out with --exclude{plain}{_other_models(model)}"
        )
    return Data(rows, name, names)


def _other_models(model: str) -> str:
    remedy = ", or use --model table, which takes text, dates and missing values"
    if model in DEEP:
        remedy += " (`pickmix impute` with it fills in missing values)"
    return remedy


def _begins_with_words(place: Place) -> bool:
    """Whether the first rows of a text hold words in the chosen columns: a quick look."""
    # A file that does not exist is refused when it is read.
    path = place.data if place.is_small else find_files(str(place.data))[0]
    if table_suffix(path) not in TEXT or not path.is_file() or not path.stat().st_size:
        return False
    layout = text_layout(path, place.decimal)
    chosen = list(range(layout.n_columns))
    if place.columns is not None:
        with explained():
            chosen = column_numbers(path, place.columns, layout.names, layout.n_columns)
    return not layout.words.isdisjoint(chosen)


def _read_table(place: Place, name: str) -> Data:
    table = read_whole(place)
    names = chosen_names(place, table)
    return Data(table.typed(names), name, names)


def find_schema(data: Data, estimator: Any) -> TableSchema:
    """The kinds of the columns of a table, as the fit will find them."""
    assert isinstance(data.rows, TypedTable)
    names = list(data.rows.columns)
    if estimator.schema:
        column_numbers(data.origin, list(estimator.schema), names, len(names), "--kind")
    with explained(data.origin):
        return infer_schema(data.rows, estimator.schema, (), estimator.max_levels)

"""Saved models, and the rows that they are asked about, piece by piece."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from sklearn.utils import get_tags

from pickmix.cli.preparing import chosen_columns, heading, id_name, name_of, read_ids, ready
from pickmix.cli.reading import (
    Place,
    chunks,
    column_label,
    explained,
    first_gap,
    open_place,
    place_options,
    read_rows,
)
from pickmix.cli.whole_tables import WholeTable, all_missing, chosen_names, read_whole, take
from pickmix.data.files import column_numbers
from pickmix.data.typed_tables import TypedTable
from pickmix.estimators.deep_mixture import DeepMixture
from pickmix.estimators.mixture import Mixture
from pickmix.estimators.persistence import load
from pickmix.estimators.table_mixture import TableMixture

model_argument = click.argument("model", type=click.Path(path_type=Path))
data_argument = click.argument("data", type=click.Path(path_type=Path, allow_dash=True))


def asking_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command MODEL, DATA and the options of the latter."""
    return model_argument(data_argument(place_options(command)))


@dataclass
class Saved:
    """A saved model for the commands that use it.

    Attributes
    ----------
    path : Path
    estimator : fitted estimator
        Without the names of its columns if it takes plain arrays.
    names : list of str, or None
        Names of the columns that it was fitted to; of a table, of those in its model.
    id : str or None
        The column that named the rows.
    """

    path: Path
    estimator: Any
    names: list[str] | None
    id: str | None

    @property
    def is_table(self) -> bool:
        """Whether it takes typed tables instead of arrays."""
        return isinstance(self.estimator, TableMixture)

    @property
    def labels(self) -> list[str]:
        """Names of the columns, or what stands for them."""
        return self.names or [f"column_{d}" for d in range(self.estimator.n_features_in_)]


@dataclass
class Piece:
    """Rows that a model is asked about at a time.

    Attributes
    ----------
    rows : (n, D) array or TypedTable
        NaN is a missing value.
    ids : dict of (n,) arrays
        The column that names the rows, if there is one.
    first : int
        Number of the first row, from 0.
    """

    rows: np.ndarray | TypedTable
    ids: dict[str, np.ndarray]
    first: int

    @property
    def n_rows(self) -> int:
        """How many there are."""
        return self.rows.n_rows if isinstance(self.rows, TypedTable) else len(self.rows)

    def take(self, numbers: np.ndarray) -> np.ndarray | TypedTable:
        """Some of the rows."""
        if isinstance(self.rows, TypedTable):
            return take(self.rows, numbers)
        return np.asarray(self.rows[numbers])


def load_model(path: Path) -> Saved:
    """Load a model without its column names, as rows are plain arrays here."""
    estimator = load(path)
    if isinstance(estimator, Mixture):
        raise ValueError(
            f"{path}: a Mixture of components of your own can be used from Python only: "
            "pickmix.load(path, component=...)"
        )
    remembered = vars(estimator).pop("id_column_", None)
    if isinstance(estimator, TableMixture):
        known = estimator.schema_.columns.values()
        return Saved(path, estimator, [c.name for c in known if c.is_modelled], remembered)
    names = vars(estimator).pop("feature_names_in_", None)
    return Saved(path, estimator, None if names is None else names.tolist(), remembered)


@contextlib.contextmanager
def asking(saved: Saved, place: Place) -> Iterator[Iterator[Piece]]:
    """The rows to ask a model about, all at once or chunk by chunk."""
    with ready(place) as kept, explained(name_of(place)):
        kept = _with_id(saved, kept)
        pieces = _pieces(saved, kept, name_of(place))
        with contextlib.closing(pieces):
            yield _with_ids(pieces, kept, not saved.is_table)


def _with_id(saved: Saved, place: Place) -> Place:
    """The place with the column of --id, or the one that the model remembers if it is there."""
    if place.id is None and saved.id is not None:
        names, _ = heading(place)
        if names is not None and saved.id in names:
            return replace(place, id=saved.id)
    return place


def _with_ids(pieces: Iterator[Piece], place: Place, numbers: bool) -> Iterator[Piece]:
    if place.id is None:
        yield from pieces
        return
    name, ids = id_name(place), read_ids(place, numbers)
    for piece in pieces:
        # Objects, so that neither long names nor numbers of several kinds are changed.
        values = np.fromiter(itertools.islice(ids, piece.n_rows), dtype=object)
        if len(values) < piece.n_rows:
            raise ValueError(f"{place.data}: expected an --id in every row, got fewer")
        piece.ids = {name: values}
        yield piece
    if next(ids, None) is not None:
        raise ValueError(f"{place.data}: expected as many --id as rows of numbers, got more")


def _pieces(saved: Saved, place: Place, name: str) -> Generator[Piece, None, None]:
    if saved.is_table:
        table = read_whole(place)
        names, left_out = _table_columns(saved, place, table, name)
        typed = table.typed(names)
        for column in left_out:
            # All their values count as missing.
            typed.columns[column] = all_missing(column, table.n_rows)
        yield Piece(typed, {}, 0)
        return
    columns, absent = _columns(saved, place)
    estimator, n_columns = saved.estimator, saved.estimator.n_features_in_

    def check(n_found: int) -> None:
        if n_found + len(absent) != n_columns:
            raise ValueError(
                f"{name}: expected the {n_columns} columns that {saved.path} was fitted to, got "
                f"{n_found}; choose them with --columns"
            )

    def complete(rows: np.ndarray) -> np.ndarray:
        if not absent:
            return rows
        whole = np.full((rows.shape[0], n_columns), np.nan, dtype=rows.dtype)
        whole[:, np.setdiff1d(np.arange(n_columns), absent)] = rows
        return whole

    place = replace(place, columns=columns)
    if place.is_small:
        rows, _ = read_rows(place)
        check(rows.shape[1])
        rows = complete(rows)
        _refuse_gaps(saved, rows, name)
        yield Piece(rows, {}, 0)
        return
    with open_place(place) as source:
        check(source.n_columns)
        first = 0
        for rows in chunks(source, gaps=takes_gaps(estimator)):
            yield Piece(complete(rows), {}, first)
            first += rows.shape[0]


def _columns(saved: Saved, place: Place) -> tuple[list[Any] | None, list[int]]:
    """Columns to read, and the places of those of the model that count as missing."""
    if place.columns is not None or saved.names is None:
        return chosen_columns(place), []
    names, _ = heading(place)
    if names is None:
        return chosen_columns(place), []
    # Names that do not exist are refused when they are read.
    chosen_columns(replace(place, columns=None))
    left_out = set(place.exclude or ())
    absent = [number for number, name in enumerate(saved.names) if name in left_out]
    columns = [name for name in saved.names if name not in left_out]
    if not columns:
        raise ValueError(f"{place.data}: --exclude leaves no column of {saved.path}")
    return columns, absent


def need_questions(saved: Saved, verb: str) -> None:
    """Refuse models that cannot answer questions about columns given others."""
    if not hasattr(saved.estimator, "impute"):
        raise ValueError(
            f"{saved.path}: `pickmix {verb}` needs a model of Gaussians or of a table, got a "
            f"{type(saved.estimator).__name__}; fit one with --model gaussian or table"
        )


def _table_columns(
    saved: Saved, place: Place, table: WholeTable, name: str
) -> tuple[list[str], list[str]]:
    """Columns of a table that a model knows, and those that were left out on purpose."""
    known = [c.name for c in saved.estimator.schema_.columns.values() if c.kind != "skip"]
    chosen = chosen_names(place, table)
    names = [column for column in known if column in chosen]
    if not set(names) & set(saved.labels):
        raise ValueError(
            f"{name}: expected columns that {saved.path} was fitted to "
            f"({', '.join(saved.labels)}), got {', '.join(chosen)}"
        )
    return names, [column for column in known if column in table.names and column not in chosen]


def read_for(saved: Saved, place: Place, name: str) -> tuple[WholeTable, dict[str, str], Any]:
    """A whole table, its names of the columns of the model, and the rows to ask about."""
    table = read_whole(place)
    if saved.is_table:
        own, _ = _table_columns(saved, place, table, name)
        rows = table.original(own, saved.estimator.schema_)
        return table, {column: column for column in own}, rows
    columns, absent = _columns(saved, place)
    numbers = range(len(table.names)) if columns is None else columns
    names, _ = heading(place)
    chosen = column_numbers(name, list(numbers), names, len(table.names))
    own = [table.names[number] for number in chosen]
    D = saved.estimator.n_features_in_
    if len(own) + len(absent) != D:
        raise ValueError(
            f"{name}: expected the {D} columns that {saved.path} was fitted to, got {len(own)}; "
            "choose them with --columns"
        )
    rows = np.full((table.n_rows, D), np.nan)
    present = np.setdiff1d(np.arange(D), absent)
    rows[:, present] = table.numbers(own)
    labels = [saved.labels[number] for number in present.tolist()]
    return table, dict(zip(labels, own, strict=True)), rows


def takes_gaps(estimator: Any) -> bool:
    """Whether a model takes rows with missing values."""
    return not isinstance(estimator, DeepMixture) or get_tags(estimator).input_tags.allow_nan


def _refuse_gaps(saved: Saved, rows: np.ndarray, name: str) -> None:
    gap = None if takes_gaps(saved.estimator) else first_gap(rows)
    if gap is not None:
        row, column = gap[0] + 1, column_label(saved.names, gap[1])
        raise ValueError(
            f"{name}: a missing value in row {row} of column {column}; a "
            f"{type(saved.estimator).__name__} needs complete rows: fill them with `pickmix "
            "impute` and a model of another kind"
        )

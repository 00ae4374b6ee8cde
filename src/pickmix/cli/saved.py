"""Saved models, and the rows that they are queried about, chunk by chunk."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from pickmix.cli.data import DataFiles, WholeTable, data_options, open_data
from pickmix.estimators.mixture import Mixture
from pickmix.estimators.persistence import load
from pickmix.estimators.row_sources import read_chunks
from pickmix.estimators.table_mixture import TableMixture
from pickmix.inputs.columns import TypedTable
from pickmix.inputs.text import text_column

model_argument = click.argument("model", type=click.Path(path_type=Path))
data_argument = click.argument("data", type=click.Path(path_type=Path, allow_dash=True))


def query_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return model_argument(data_argument(data_options(command)))


@dataclass
class SavedModel:
    path: Path
    #: Without the names of its columns if it takes plain arrays.
    estimator: Any
    #: Names of the columns that it was fitted to; of a table, of those in its model.
    names: list[str] | None
    #: The column that named the rows.
    id: str | None

    @property
    def is_table(self) -> bool:
        """Whether it takes typed tables instead of arrays."""
        return isinstance(self.estimator, TableMixture)

    @property
    def labels(self) -> list[str]:
        """Names of the columns, or what stands for them."""
        return self.names or [f"column_{d}" for d in range(self.estimator.n_features_in_)]

    def require_conditionals(self, verb: str) -> None:
        """Refuse models without distributions of some columns given others."""
        if not hasattr(self.estimator, "explain" if verb == "explain" else "impute"):
            raise ValueError(
                f"{self.path}: `pickmix {verb}` needs a model of Gaussians or of a table, got a "
                f"{type(self.estimator).__name__}; fit one with --model gaussian or table"
            )

    def table_columns(self, files: DataFiles, table: WholeTable) -> tuple[list[str], list[str]]:
        """Columns of a table that the model knows, and those that were left out on purpose."""
        known = [c.name for c in self.estimator.schema_.columns.values() if c.kind != "skip"]
        chosen = [table.names[number] for number in files.chosen_numbers()]
        names = [column for column in known if column in chosen]
        if not set(names) & set(self.labels):
            raise ValueError(
                f"{files.name}: expected columns that {self.path} was fitted to "
                f"({', '.join(self.labels)}), got {', '.join(chosen)}"
            )
        return names, [name for name in known if name in table.names and name not in chosen]

    def array_columns(
        self, files: DataFiles, optional: Sequence[str] = ()
    ) -> tuple[list[Any] | None, np.ndarray]:
        """Columns to read, and the numbers of those of the model that they are.

        DATA may be without the columns `optional`.
        """
        numbers = np.arange(self.estimator.n_features_in_)
        by_name = files.columns is None and self.names is not None
        held = files.heading[0]
        if not by_name or held is None:
            others = numbers[[name not in optional for name in self.labels]]
            n_read = len(files.chosen_numbers())
            return files.chosen(), others if n_read == others.size else numbers
        if files.exclude is not None or files.id is not None:
            # Names that do not exist are refused.
            files.chosen_numbers()
        absent = {name for name in optional if name not in held} | set(files.exclude or ())
        present = [name not in absent for name in self.labels]
        columns = [name for name, kept in zip(self.labels, present, strict=True) if kept]
        if not columns:
            raise ValueError(f"{files.name}: --exclude leaves no column of {self.path}")
        return columns, numbers[present]

    def complete(self, files: DataFiles, rows: np.ndarray, present: np.ndarray) -> np.ndarray:
        """Rows with all columns of the model; those that were left out are missing."""
        n_columns = self.estimator.n_features_in_
        if rows.shape[1] != len(present):
            raise ValueError(
                f"{files.name}: expected the {n_columns} columns that {self.path} was fitted to, "
                f"got {rows.shape[1]}; choose them with --columns"
            )
        if len(present) == n_columns:
            return rows
        whole = np.full((rows.shape[0], n_columns), np.nan, dtype=rows.dtype)
        whole[:, present] = rows
        return whole


def load_model(path: Path) -> SavedModel:
    estimator = load(path)
    if isinstance(estimator, Mixture):
        raise ValueError(
            f"{path}: a Mixture of a density that you wrote can be used from Python only: "
            "pickmix.load(path, component=...)"
        )
    id = vars(estimator).pop("id_column_", None)
    if isinstance(estimator, TableMixture):
        columns = estimator.schema_.columns.values()
        return SavedModel(path, estimator, [c.name for c in columns if c.is_modelled], id)
    names = vars(estimator).pop("feature_names_in_", None)
    return SavedModel(path, estimator, None if names is None else names.tolist(), id)


@dataclass
class Chunk:
    """Rows that a model is queried about at a time."""

    #: (n, D), NaN for missing values; or a table.
    rows: np.ndarray | TypedTable
    #: Number of the first row, from 0.
    first: int
    #: The column that names the rows, if there is one.
    ids: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.rows)


@contextlib.contextmanager
def querying(
    saved: SavedModel, optional: Sequence[str] = (), **options: Any
) -> Iterator[Iterator[Chunk]]:
    """The rows of DATA that a model is queried about, all at once or chunk by chunk.

    They may be without the columns `optional`.
    """
    with open_data(**options) as files:
        if files.id is None and saved.id is not None and saved.id in (files.heading[0] or ()):
            files = replace(files, id=saved.id)
        with contextlib.closing(_chunks(saved, files, optional)) as chunks:
            yield chunks


def _chunks(
    saved: SavedModel, files: DataFiles, optional: Sequence[str]
) -> Generator[Chunk, None, None]:
    named, first = files.id_column, 0
    ids: Iterator[Any] = iter(()) if named is None else files.read_ids()
    blocks = _typed_rows(saved, files) if saved.is_table else _arrays(saved, files, optional)
    for rows in blocks:
        chunk = Chunk(rows, first, {})
        first += len(chunk)
        if named is not None:
            # Objects, so that neither long names nor numbers of several kinds are changed.
            values = np.fromiter(itertools.islice(ids, len(chunk)), dtype=object)
            if len(values) < len(chunk):
                raise ValueError(f"{files.name}: expected an --id in every row, got fewer")
            chunk.ids[named[1]] = values
        yield chunk
    if next(ids, None) is not None:
        raise ValueError(f"{files.name}: expected as many --id as rows of numbers, got more")


def _typed_rows(saved: SavedModel, files: DataFiles) -> Iterator[TypedTable]:
    table = files.read_table()
    names, left_out = saved.table_columns(files, table)
    typed = table.typed(names)
    # All their values count as missing.
    missing = {name: text_column([""] * table.n_rows) for name in left_out}
    yield replace(typed, columns=typed.columns | missing)


def _arrays(saved: SavedModel, files: DataFiles, optional: Sequence[str]) -> Iterator[np.ndarray]:
    columns, present = saved.array_columns(files, optional)
    if files.is_small:
        yield saved.complete(files, files.read_rows(columns)[0], present)
        return
    with files.open_rows(columns) as source:
        for _, rows in read_chunks(source, allow_nan=True):
            yield saved.complete(files, rows, present)

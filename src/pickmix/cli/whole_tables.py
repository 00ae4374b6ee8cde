"""Tables that are read as a whole, with all their columns: text, dates, numbers and gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pickmix.cli.preparing import chosen_columns
from pickmix.cli.reading import Place
from pickmix.data.files import import_parquet, read_table
from pickmix.data.open_rows import find_files
from pickmix.data.readers import naming_parquet
from pickmix.data.text_cells import Cells, read_cells
from pickmix.data.text_files import TEXT, table_suffix
from pickmix.data.typed_checks import as_numbers, settled
from pickmix.data.typed_levels import as_fitted
from pickmix.data.typed_readers import read_typed
from pickmix.data.typed_schema import ColumnSchema, TableSchema
from pickmix.data.typed_tables import TypedColumn, TypedTable, make_table
from pickmix.data.typed_text import column_of_cells, name_columns, text_column


@dataclass
class WholeTable:
    """All columns of a table.

    Attributes
    ----------
    names : list of str
        Names of the columns, or what stands for them.
    n_rows : int
    cells : Cells or None
        Of a text: every cell as it is written.
    columns : Any
        Of others: a pyarrow Table, or a dict of arrays.
    """

    names: list[str]
    n_rows: int
    cells: Cells | None
    columns: Any = None

    def typed(self, names: Sequence[str]) -> TypedTable:
        """Some columns with the types that their values have."""
        if self.cells is not None:
            return make_table([(name, self._text_column(name)) for name in names], "dict")
        if isinstance(self.columns, dict):
            return read_typed({name: self.columns[name] for name in names})
        return read_typed(self.columns.select(list(names)))

    def original(self, names: Sequence[str], schema: TableSchema) -> Any:
        """Some columns as a table that a model gives back filled: of pyarrow, or a dict."""
        if self.cells is not None:
            columns = self.typed(names).columns
            return {
                name: _as_list(as_fitted(schema[name], column)) for name, column in columns.items()
            }
        if isinstance(self.columns, dict):
            return {name: self.columns[name] for name in names}
        return self.columns.select(list(names))

    def missing(self, name: str, schema: ColumnSchema) -> np.ndarray:
        """Which cells (N,) of a column are missing to a model."""
        return settled(schema, self.typed([name]).columns[name]).missing

    def _text_column(self, name: str) -> TypedColumn:
        assert self.cells is not None
        return column_of_cells(name, self.cells, self.names.index(name))

    def values(self, name: str) -> np.ndarray:
        """A column as it is, for tables of another form."""
        if self.cells is not None:
            column = self._text_column(name)
            if column.storage == "number" and not column.missing.any():
                return column.values
            return np.array(self.cells.values(self.names.index(name)), dtype=object)
        if isinstance(self.columns, dict):
            return np.asarray(self.columns[name])
        column = self.columns.column(name)
        return np.fromiter(column.to_pylist(), dtype=object, count=self.n_rows)

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """Some columns as numbers (N, D), NaN where nothing is known."""
        rows = np.full((self.n_rows, len(names)), np.nan)
        for place, (name, column) in enumerate(self.typed(names).columns.items()):
            if not column.missing.all():
                # Text may spell numbers, such as 0123.
                values = as_numbers(name, column).values
                rows[:, place] = np.where(column.missing, np.nan, values)
        return rows


def _as_list(column: TypedColumn) -> list[Any]:
    """Values as Python has them, so that whole numbers stay whole; None where one is missing."""
    if column.missing.all():
        return [None] * column.missing.shape[0]
    values = column.values if column.levels is None else column.levels[column.values]
    pairs = zip(values.tolist(), column.missing.tolist(), strict=True)
    return [None if is_missing else value for value, is_missing in pairs]


def read_whole(place: Place) -> WholeTable:
    """Read all columns of a place, from one file or several."""
    tables = [_read_file(path, place) for path in find_files(str(place.data))]
    first = tables[0]
    for path, table in zip(find_files(str(place.data)), tables, strict=True):
        if table.names != first.names:
            raise ValueError(
                f"{path}: expected columns {', '.join(first.names)} as in the first file, got "
                f"{', '.join(table.names)}"
            )
    if len(tables) == 1:
        return first
    n_rows = sum(table.n_rows for table in tables)
    if first.cells is not None:
        rows = [row for table in tables if table.cells is not None for row in table.cells.rows]
        return WholeTable(first.names, n_rows, replace(first.cells, rows=rows))
    if isinstance(first.columns, dict):
        joined = {
            name: np.concatenate([table.columns[name] for table in tables]) for name in first.names
        }
        return WholeTable(first.names, n_rows, None, joined)
    import pyarrow

    return WholeTable(
        first.names, n_rows, None, pyarrow.concat_tables([table.columns for table in tables])
    )


def _read_file(path: Path, place: Place) -> WholeTable:
    suffix = table_suffix(path)
    if suffix in TEXT:
        cells = read_cells(path, place.decimal)
        names = name_columns(path, cells.layout.names, cells.layout.n_columns)
        return WholeTable(names, len(cells.rows), cells)
    if suffix == ".parquet":
        with naming_parquet(path), import_parquet(path).ParquetFile(path) as file:
            columns = file.read()
        names = name_columns(path, columns.column_names, columns.num_columns)
        return WholeTable(names, columns.num_rows, None, columns)
    rows, found = read_table(path, key=place.key)
    names = name_columns(path, found, rows.shape[1])
    return WholeTable(names, rows.shape[0], None, dict(zip(names, rows.T, strict=True)))


def chosen_names(place: Place, table: WholeTable) -> list[str]:
    """Names of the columns that --columns, --exclude and --id leave."""
    chosen = chosen_columns(replace(place, columns=place.columns, exclude=place.exclude or []))
    if chosen is None:
        return list(table.names)
    return [table.names[number] for number in chosen]


def take(table: TypedTable, rows: np.ndarray) -> TypedTable:
    """Some rows of a typed table."""
    return table.take(rows)


def all_missing(name: str, n_rows: int) -> TypedColumn:
    """A column of which nothing is known."""
    return text_column(name, [""] * n_rows)

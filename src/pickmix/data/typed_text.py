"""Typed tables out of text files, by the same rules as rows of numbers: see `text_layout`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pickmix.data.text_cells import Cells, read_cells
from pickmix.data.text_files import MISSING_CELLS, is_missing, is_number, with_points
from pickmix.data.typed_tables import (
    TypedColumn,
    TypedTable,
    factorise,
    from_codes,
    make_table,
    whole_array,
)

_BOOLEANS = {word: True for word in ("true", "True", "TRUE")}
_BOOLEANS |= {word: False for word in ("false", "False", "FALSE")}
_INTEGER = re.compile(r"[+-]?\d{1,300}\Z")
# A number would lose the zeros of a zip code.
_LEADING_ZERO = re.compile(r"[+-]?0\d")


def read_text(path: Path, decimal: str | None = None) -> TypedTable:
    """Read a text file as a typed table.

    The delimiter (tab, semicolon, comma, | or blanks), the header and the decimal mark are found
    from the first rows. Columns without a name are called column_0, column_1, ... by their place.

    Parameters
    ----------
    path : Path
        Ends in .csv, .tsv or .txt, perhaps with .gz.
    decimal : {".", ","}, default=None
        Decimal mark. None: it is found; a comma only between semicolons or tabs.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "rows.csv"
    ...     _ = path.write_text("1,5;red\\n2,5;NA\\n")
    ...     table = read_text(path)
    >>> {name: column.value(0) for name, column in table.columns.items()}
    {'column_0': 1.5, 'column_1': 'red'}
    """
    cells = read_cells(path, decimal)
    names = name_columns(path, cells.layout.names, cells.layout.n_columns)
    columns = [(name, column_of_cells(name, cells, place)) for place, name in enumerate(names)]
    return make_table(columns, "dict")


def name_columns(path: Path, names: Sequence[str] | None, n_columns: int) -> list[str]:
    """Names of columns, each once; those without one are named by their place.

    Examples
    --------
    >>> name_columns(Path("rows.csv"), ["", "x"], 2), name_columns(Path("rows.csv"), None, 2)
    (['column_0', 'x'], ['column_0', 'column_1'])
    """
    # Spreadsheets and R leave the name of the row numbers empty.
    found = [name or f"column_{number}" for number, name in enumerate(names or [""] * n_columns)]
    for name in found:
        if found.count(name) > 1:
            raise ValueError(f"{path}: two columns are named {name!r}; rename one of them")
    return found


def column_of_cells(name: str, cells: Cells, place: int) -> TypedColumn:
    """A column of a text file, by the file's decimal mark."""
    return text_column(name, cells.values(place), cells.layout.decimal)


def text_column(name: str, cells: Sequence[str], decimal: str = ".") -> TypedColumn:
    """A column of text cells: numbers or booleans where all cells are, else text.

    Parameters
    ----------
    name : str
        For messages.
    cells : sequence of N str
    decimal : {".", ","}, default="."
        Decimal mark of numbers.

    Examples
    --------
    >>> text_column("size", ["1,5", "", "2"], ",").values
    array([1.5, 0. , 2. ])
    >>> text_column("zip", ["01234", "80331"]).storage
    'text'
    """
    codes, raw = factorise(name, cells)
    distinct = [cell.strip() for cell in raw]
    absent = np.array([cell in MISSING_CELLS for cell in distinct], dtype=np.bool_)
    there = [cell for cell in distinct if cell not in MISSING_CELLS]
    form = {"dtype": "list"} | ({"decimal": decimal} if decimal != "." else {})
    values: np.ndarray | None = None
    if there and all(cell in _BOOLEANS for cell in there):
        values = np.array([_BOOLEANS.get(cell, False) for cell in distinct])
    elif there and not any(map(_LEADING_ZERO.match, there)):
        values = _parse_cells(["0" if is_missing(cell) else cell for cell in distinct], decimal)
    plain = [None if cell in MISSING_CELLS else cell for cell in distinct]
    written = from_codes(codes, plain, form)
    if values is None:
        return written
    missing = absent[codes]
    storage = "boolean" if values.dtype == np.bool_ else "number"
    values = values[codes]
    if storage == "number":
        missing |= np.isnan(values)
    return TypedColumn(storage, values, missing, form=form, written=written)


def _parse_cells(cells: list[str], decimal: str) -> np.ndarray | None:
    """Whole numbers, or numbers; None if there are others, or whole ones beyond 64 bits."""
    if all(map(_INTEGER.match, cells)):
        return whole_array(list(map(int, cells)))
    if not all(is_number(cell, decimal) for cell in cells):
        return None
    if decimal == ",":
        cells = list(map(with_points, cells))
    return np.array(list(map(float, cells)))

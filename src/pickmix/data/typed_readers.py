"""Typed tables out of what users have: pandas, polars, pyarrow, dicts of arrays, CSV, Parquet.

No library is imported that the user's table does not come from.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pickmix.data.typed_tables import (
    TypedColumn,
    TypedTable,
    as_objects,
    check_name,
    factorise,
    from_array,
    from_codes,
    from_objects,
    make_table,
)
from pickmix.data.typed_writers import numpy_array

#: Cells of a CSV file that mean: nothing is known.
MISSING_CELLS = frozenset(
    ["", "NA", "N/A", "n/a", "<NA>", "NaN", "nan", "NAN", "-nan", "null", "NULL", "None", "NaT"]
)
_BOOLEANS = {"true": True, "false": False, "True": True, "False": False, "TRUE": True}
_BOOLEANS["FALSE"] = False
_INTEGER = re.compile(r"[+-]?\d{1,18}\Z")
# A number would lose the zeros of a zip code.
_LEADING_ZERO = re.compile(r"[+-]?0\d")
_SUFFIXES = (".csv", ".tsv", ".txt")


def read_typed(table: Any) -> TypedTable:
    """Read a table of any kind.

    Parameters
    ----------
    table : DataFrame of pandas or polars, Table or RecordBatch of pyarrow, dict, or path
        A dict has arrays or lists of one length as values. A path ends in .csv, .tsv or .txt
        (perhaps .gz after it), or in .parquet, or is a folder of Parquet files.

    Returns
    -------
    table : TypedTable

    Examples
    --------
    >>> table = read_typed({"age": [31, None, 50], "city": ["Lyon", "Oslo", ""]})
    >>> [column.storage for column in table.columns.values()]
    ['number', 'text']
    >>> table.columns["city"].missing
    array([False, False,  True])
    """
    if isinstance(table, TypedTable):
        return table
    if isinstance(table, str | os.PathLike):
        return _read_file(Path(table))[1]
    library = type(table).__module__.partition(".")[0]
    if library == "pandas" and hasattr(table, "columns"):
        return make_table(_pandas_columns(table), "pandas")
    if library == "polars" and hasattr(table, "get_column"):
        return make_table(_polars_columns(table), "polars")
    if library == "pyarrow" and hasattr(table, "schema"):
        return make_table(_arrow_columns(table), "pyarrow")
    if isinstance(table, Mapping):
        return make_table(_dict_columns(table), "dict")
    if type(table).__module__ in sys.modules and hasattr(table, "to_pandas"):
        return make_table(_pandas_columns(table.to_pandas()), "pandas")
    raise TypeError(
        "A table must be a pandas or polars DataFrame, a pyarrow Table, a dict of arrays, or a "
        f"path to a .csv or .parquet file, got {type(table).__name__}."
    )


def open_table(table: Any) -> tuple[Any, TypedTable]:
    """A table in memory, and the same as a typed one.

    A Parquet file becomes a pyarrow Table, a CSV file a dict of arrays, other tables stay.
    """
    if not isinstance(table, str | os.PathLike):
        return table, read_typed(table)
    original, typed = _read_file(Path(table))
    if original is None:
        original = {name: numpy_array(column) for name, column in typed.columns.items()}
    return original, typed


def _dict_columns(table: Mapping[Any, Any]) -> Iterator[tuple[Any, TypedColumn]]:
    for name, values in table.items():
        check_name(name)
        if isinstance(values, np.ndarray):
            yield name, from_array(name, values)
        elif hasattr(values, "dtype") and hasattr(values, "to_numpy"):
            # A column of another library.
            yield name, from_array(name, np.asarray(values.to_numpy()))
        elif isinstance(values, str) or not hasattr(values, "__len__"):
            raise ValueError(f"Column {name!r} must be an array or a list, got {values!r}.")
        else:
            yield name, from_objects(name, list(values), {"dtype": "list"})


# pandas


def _pandas_columns(table: Any) -> Iterator[tuple[Any, TypedColumn]]:
    for place, name in enumerate(table.columns):
        check_name(name)
        yield name, _pandas_column(name, table.iloc[:, place])


def _pandas_column(name: str, series: Any) -> TypedColumn:
    pd: Any = importlib.import_module("pandas")

    dtype = series.dtype
    form: dict[str, Any] = {"dtype": str(dtype)}
    types = pd.api.types
    if isinstance(dtype, pd.CategoricalDtype):
        categories = dtype.categories.tolist()
        form |= {"ordered": bool(dtype.ordered), "categories": _plain(name, categories)}
        codes = series.cat.codes.to_numpy().astype(np.int64)
        missing = codes < 0
        values = np.where(missing, 0, codes)
        return TypedColumn("text", values, missing, as_objects(form["categories"]), form)
    if isinstance(dtype, pd.ArrowDtype):
        array = importlib.import_module("pyarrow").array(series)
        array = array.combine_chunks() if hasattr(array, "combine_chunks") else array
        column = _arrow_column(name, array)
        return replace(column, form=column.form | {"arrow": True})
    missing = series.isna().to_numpy(dtype=np.bool_)
    if isinstance(dtype, pd.PeriodDtype | pd.IntervalDtype) or types.is_complex_dtype(dtype):
        raise ValueError(
            f"Column {name!r} must hold numbers, booleans, text or times, got {dtype}. "
            "Convert it, for example with .dt.to_timestamp()."
        )
    if types.is_bool_dtype(dtype):
        values = series.to_numpy(dtype=np.bool_, na_value=False) if missing.any() else series
        return TypedColumn("boolean", np.asarray(values, dtype=np.bool_), missing, form=form)
    if types.is_numeric_dtype(dtype):
        if isinstance(dtype, np.dtype):
            return TypedColumn("number", series.to_numpy(), missing, form=form)
        width = np.int64 if types.is_integer_dtype(dtype) else np.float64
        return TypedColumn("number", series.to_numpy(width, na_value=0), missing, form=form)
    if isinstance(dtype, pd.DatetimeTZDtype):
        series = series.dt.tz_convert("UTC").dt.tz_localize(None)
    if types.is_datetime64_any_dtype(dtype) or types.is_timedelta64_dtype(dtype):
        return TypedColumn("time", series.to_numpy(), missing, form=form)
    codes, distinct = pd.factorize(series)
    return from_codes(np.asarray(codes, dtype=np.int64), list(distinct), form)


def _plain(name: str, levels: list[Any]) -> list[Any]:
    """Levels as plain text, numbers or booleans; others as text."""
    if all(isinstance(level, str | bool | int | float) for level in levels):
        return levels
    return [str(level) for level in levels]


# pyarrow and polars


def _arrow_columns(table: Any) -> Iterator[tuple[Any, TypedColumn]]:
    for name, column in zip(table.schema.names, table.columns, strict=True):
        column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
        yield name, _arrow_column(name, column)


def _arrow_column(name: str, column: Any) -> TypedColumn:
    import pyarrow as pa

    types, kind = pa.types, column.type
    form: dict[str, Any] = {"dtype": str(kind)}
    missing = column.is_null().to_numpy(zero_copy_only=False)
    if types.is_decimal(kind):
        column, kind = column.cast(pa.float64()), pa.float64()
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        column = column.dictionary_encode()
    elif types.is_dictionary(kind):
        form |= {"ordered": bool(kind.ordered), "value_type": str(kind.value_type)}
        form |= {"index_type": str(kind.index_type)}
        form |= {"categories": _plain(name, column.dictionary.to_pylist())}
    elif types.is_null(kind):
        return TypedColumn("text", missing.astype(np.int64), missing, as_objects([]), form)
    if types.is_dictionary(column.type):
        codes = column.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        if "categories" in form:
            levels = as_objects(form["categories"])
            return TypedColumn("text", np.maximum(codes, 0), missing, levels, form)
        return from_codes(codes, column.dictionary.to_pylist(), form)
    if types.is_timestamp(kind) or types.is_duration(kind) or types.is_date(kind):
        unit = "D" if types.is_date(kind) else kind.unit
        width = np.int32 if types.is_date32(kind) else np.int64
        counts = column.view(pa.from_numpy_dtype(width)).fill_null(0)
        whole = counts.to_numpy(zero_copy_only=False).astype(np.int64)
        if types.is_date64(kind):
            whole = whole // 86_400_000
        letter = "m" if types.is_duration(kind) else "M"
        return TypedColumn("time", whole.view(f"{letter}8[{unit}]"), missing, form=form)
    if types.is_boolean(kind):
        values = column.fill_null(False).to_numpy(zero_copy_only=False)
        return TypedColumn("boolean", values, missing, form=form)
    if types.is_integer(kind) or types.is_floating(kind):
        values = column.fill_null(0).to_numpy(zero_copy_only=False)
        if types.is_floating(kind):
            missing = missing | np.isnan(values)
        return TypedColumn("number", values, missing, form=form)
    raise ValueError(
        f"Column {name!r} must hold numbers, booleans, text or times, got {kind}. Leave it out: "
        f'schema={{"{name}": "skip"}}, or drop it from the table.'
    )


def _polars_columns(table: Any) -> Iterator[tuple[Any, TypedColumn]]:
    for name in table.columns:
        series = table.get_column(name)
        dtype = str(series.dtype)
        form: dict[str, Any] = {"dtype": dtype.partition("(")[0]}
        if form["dtype"] in ("Datetime", "Duration"):
            form |= {"unit": series.dtype.time_unit}
            form |= {"time_zone": getattr(series.dtype, "time_zone", None)}
        if form["dtype"] in ("Categorical", "Enum"):
            form["categories"] = series.cat.get_categories().to_list()
        yield name, from_objects(name, series.to_list(), form)


# Files


def _read_file(path: Path) -> tuple[Any, TypedTable]:
    """A table of pyarrow, or None for a text file; and the same as a typed one."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: expected a table, found nothing there.")
    inner = path.with_suffix("") if path.suffix == ".gz" else path
    if inner.suffix.lower() in _SUFFIXES:
        return None, make_table(_csv_columns(path), "dict")
    if path.suffix.lower() in (".parquet", ".pq") or path.is_dir():
        table = _read_parquet(path)
        return table, make_table(_arrow_columns(table), "pyarrow")
    raise ValueError(
        f"{path}: expected a name that ends in .csv, .tsv, .txt (perhaps .gz) or .parquet."
    )


def _read_parquet(path: Path) -> Any:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ImportError(
            f"{path}: Parquet needs pyarrow. Install it: pip install pyarrow."
        ) from error
    try:
        return parquet.read_table(path)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: expected a Parquet file, but {error}") from error


def _csv_columns(path: Path) -> list[tuple[str, TypedColumn]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        file.seek(0)
        lines = csv.reader(file, delimiter=_delimiter(first))
        names = [name.strip() for name in next(lines, [])]
        rows = [line for line in lines if line]
    if not names:
        raise ValueError(f"{path}: expected a first line with the names of columns, got none.")
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    if (lengths != len(names)).any():
        number = int((lengths != len(names)).argmax())
        raise ValueError(
            f"{path}: expected {len(names)} cells in each row, as in the first line, but row "
            f"{number} has {lengths[number]}."
        )
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    return [(name, _csv_column(name, cells)) for name, cells in zip(names, columns, strict=True)]


def _delimiter(line: str) -> str:
    """The mark that parts the most cells of the first line."""
    return max(",;\t|", key=line.count)


def _csv_column(name: str, cells: tuple[str, ...]) -> TypedColumn:
    """A column of text cells: numbers or booleans where all cells are."""
    codes, raw = factorise(name, cells)
    distinct = [cell.strip() for cell in raw]
    absent = np.array([cell in MISSING_CELLS for cell in distinct], dtype=np.bool_)
    there = [cell for cell in distinct if cell not in MISSING_CELLS]
    form = {"dtype": "list"}
    values: np.ndarray | None = None
    if there and all(cell in _BOOLEANS for cell in there):
        values = np.array([_BOOLEANS.get(cell, False) for cell in distinct])
    elif there and not any(map(_LEADING_ZERO.match, there)):
        values = _parse_cells(["0" if cell in MISSING_CELLS else cell for cell in distinct])
    if values is None:
        plain = [None if cell in MISSING_CELLS else cell for cell in distinct]
        return from_codes(codes, plain, form)
    missing = absent[codes]
    storage = "boolean" if values.dtype == np.bool_ else "number"
    values = values[codes]
    if storage == "number":
        missing |= np.isnan(values)
    return TypedColumn(storage, values, missing, form=form)


def _parse_cells(cells: list[str]) -> np.ndarray | None:
    """Whole numbers, or numbers, or None if there are others."""
    if all(map(_INTEGER.match, cells)):
        return np.array(list(map(int, cells)), dtype=np.int64)
    try:
        return np.array(list(map(float, cells)))
    except ValueError:
        return None

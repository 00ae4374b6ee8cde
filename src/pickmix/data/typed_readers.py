"""Typed tables out of what users have: pandas, polars, pyarrow, dicts of arrays, CSV, Parquet.

No library is imported that the user's table does not come from.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pickmix.data.checks import refuse_lazy_frame
from pickmix.data.text_files import TEXT, table_suffix
from pickmix.data.typed_tables import (
    TypedColumn,
    TypedTable,
    as_objects,
    check_name,
    from_array,
    from_codes,
    from_objects,
    make_table,
    unusable,
)
from pickmix.data.typed_text import read_text
from pickmix.data.typed_writers import numpy_array


def read_typed(table: Any) -> TypedTable:
    """Read a table of any kind.

    Parameters
    ----------
    table : DataFrame of pandas or polars, Table or RecordBatch of pyarrow, dict, or path
        A dict has arrays or lists of one length as values. A path ends in .csv, .tsv or .txt
        (perhaps .gz after it), or in .parquet, or is a folder of Parquet files. How a text is
        written is found, see `read_text`.

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
    refuse_lazy_frame("A table", table)
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


def _tried(read: Callable[[str, Any], TypedColumn], name: str, values: Any) -> TypedColumn:
    """A column, or what is wrong with it: perhaps nobody asks for that column."""
    try:
        return read(name, values)
    except (ValueError, NotImplementedError) as error:
        return unusable(len(values), str(error))


def _dict_columns(table: Mapping[Any, Any]) -> Iterator[tuple[Any, TypedColumn]]:
    for name, values in table.items():
        check_name(name)
        zero_dimensions = isinstance(values, np.ndarray) and values.ndim == 0
        if isinstance(values, str) or not hasattr(values, "__len__") or zero_dimensions:
            raise ValueError(f"Column {name!r} must be an array or a list, got {values!r}.")
        yield name, _tried(_dict_column, name, values)


def _dict_column(name: str, values: Any) -> TypedColumn:
    if isinstance(values, np.ndarray):
        return from_array(name, values)
    if hasattr(values, "dtype") and hasattr(values, "to_numpy"):
        # A column of another library.
        return from_array(name, np.asarray(values.to_numpy()))
    return from_objects(name, list(values), {"dtype": "list"})


# pandas


def _pandas_columns(table: Any) -> Iterator[tuple[Any, TypedColumn]]:
    for place, name in enumerate(table.columns):
        check_name(name)
        yield name, _tried(_pandas_column, name, table.iloc[:, place])


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
        width: Any = np.int64 if types.is_integer_dtype(dtype) else np.float64
        width = np.uint64 if types.is_unsigned_integer_dtype(dtype) else width
        return TypedColumn("number", series.to_numpy(width, na_value=0), missing, form=form)
    if isinstance(dtype, pd.DatetimeTZDtype):
        series = series.dt.tz_convert("UTC").dt.tz_localize(None)
    if types.is_datetime64_any_dtype(dtype) or types.is_timedelta64_dtype(dtype):
        return TypedColumn("time", series.to_numpy(), missing, form=form)
    try:
        codes, distinct = pd.factorize(series)
    except TypeError:
        # Values that have no hash, such as lists; this says which.
        return from_objects(name, series.tolist(), form)
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
        yield name, _tried(_arrow_column, name, column)


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
        yield name, _tried(_polars_column, name, table.get_column(name))


def _polars_column(name: str, series: Any) -> TypedColumn:
    dtype = str(series.dtype)
    form: dict[str, Any] = {"dtype": dtype.partition("(")[0]}
    if form["dtype"] in ("Datetime", "Duration"):
        form |= {"unit": series.dtype.time_unit}
        form |= {"time_zone": getattr(series.dtype, "time_zone", None)}
    if form["dtype"] in ("Categorical", "Enum"):
        form["categories"] = series.cat.get_categories().to_list()
    return from_objects(name, series.to_list(), form)


# Files


def _read_file(path: Path) -> tuple[Any, TypedTable]:
    """A table of pyarrow, or None for a text file; and the same as a typed one."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: expected a table, found nothing there.")
    if path.is_file() and table_suffix(path) in TEXT:
        return None, read_text(path)
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

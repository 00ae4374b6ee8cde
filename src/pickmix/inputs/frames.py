"""Tables of any kind as typed columns, and typed columns as the user's kind of table.

narwhals reads the data frames; types that it does not tell apart (nullable or not, of Arrow or
not) are kept by their names, so that answers have the types of the fitted table.
"""

from __future__ import annotations

import datetime
import importlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pickmix.inputs.arrays import refuse_lazy_frame
from pickmix.inputs.columns import (
    TypedColumn,
    TypedTable,
    as_objects,
    check_names,
    from_array,
    from_codes,
    from_objects,
    make_table,
    read_column,
    unknown_type,
)
from pickmix.inputs.errors import InputError, InputTypeError, shown
from pickmix.inputs.text import TEXT, read_text, table_suffix

_ZONE = re.compile(r"\[\w+, *(?:tz=)?([^\]]+)\]")
_TEXT_TYPES = ("str", "string", "large_string", "string_view", "String", "Utf8")


def read_typed(table: Any) -> TypedTable:
    """Read a table of any kind.

    That is a data frame of pandas, polars or another library that narwhals knows, a Table or
    RecordBatch of pyarrow, a dict of arrays or lists, or a path: of a text (.csv, .tsv, .txt,
    perhaps .gz), a Parquet file, or a folder of those.
    """
    if isinstance(table, TypedTable):
        return table
    if isinstance(table, str | os.PathLike):
        return _read_file(Path(table))[1]
    refuse_lazy_frame("A table", table)
    if isinstance(table, Mapping):
        check_names(list(table))
        return make_table(_dict_columns(table), "dict")
    frame, origin = _as_frame(table)
    return make_table(
        ((series.name, read_column(_frame_column, series.name, series)) for series in frame), origin
    )


def open_table(table: Any) -> tuple[Any, TypedTable]:
    """Return a table in memory, and the same as a typed one.

    A Parquet file becomes a pyarrow Table, a CSV file a dict of arrays, other tables stay.
    """
    if not isinstance(table, str | os.PathLike):
        return table, read_typed(table)
    original, typed = _read_file(Path(table))
    if original is None:
        original = {name: numpy_array(column) for name, column in typed.columns.items()}
    return original, typed


def _dict_columns(table: Mapping[str, Any]) -> Iterator[tuple[str, TypedColumn]]:
    for name, values in table.items():
        if isinstance(values, str) or not hasattr(values, "__len__") or np.ndim(values) == 0:
            raise InputError(f"must be an array or a list, got {shown(values)}", column=name)
        yield name, read_column(_dict_column, name, values)


def _dict_column(name: str, values: Any) -> TypedColumn:
    if hasattr(values, "dtype") and hasattr(values, "to_numpy"):
        # A column of a data frame.
        values = np.asarray(values.to_numpy())
    if isinstance(values, np.ndarray):
        return from_array(name, values)
    return from_objects(name, list(values), {"dtype": "list"})


def _read_file(path: Path) -> tuple[Any, TypedTable]:
    """Read a table of pyarrow, or None for a text file; and the same as a typed one."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: expected a table, found nothing there.")
    if path.is_file() and table_suffix(path) in TEXT:
        return None, read_text(path)
    if path.suffix.lower() in (".parquet", ".pq") or path.is_dir():
        parquet = importlib.import_module("pyarrow.parquet")
        try:
            table = parquet.read_table(path)
        except (ValueError, OSError) as error:
            raise ValueError(f"{path}: expected a Parquet file, but {error}") from error
        return table, read_typed(table)
    raise ValueError(
        f"{path}: expected a name that ends in .csv, .tsv, .txt (perhaps .gz) or .parquet."
    )


# Reading


def _as_frame(table: Any) -> tuple[Any, str]:
    """Return the columns of a data frame as series of narwhals, and the library they are from."""
    nw = importlib.import_module("narwhals.stable.v2")
    library = type(table).__module__.partition(".")[0]
    if library == "pyarrow" and type(table).__name__ == "RecordBatch":
        table = importlib.import_module("pyarrow").Table.from_batches([table])
    if library == "pyarrow" and hasattr(table, "schema"):
        check_names(table.schema.names)
    elif library == "pandas" and hasattr(table, "columns"):
        check_names(list(table.columns))
    try:
        frame = nw.from_native(table, eager_only=True)
    except TypeError as error:
        if library != "pandas" and hasattr(table, "to_pandas"):
            return _as_frame(table.to_pandas())
        raise InputTypeError(
            "must be a pandas or polars DataFrame, a pyarrow Table, a dict of arrays, or a path to "
            f"a .csv or .parquet file, got {type(table).__name__}"
        ) from error
    if library not in ("pandas", "polars", "pyarrow"):
        return _as_frame(frame.to_pandas())
    return frame.iter_columns(), library


def _frame_column(name: str, series: Any) -> TypedColumn:
    native = series.to_native()
    library = type(native).__module__.partition(".")[0]
    form: dict[str, Any] = {"dtype": str(getattr(native, "dtype", ""))}
    if library == "polars":
        form = _polars_form(series)
        if form["dtype"] == "Object":
            return from_objects(name, native.to_list(), form)
    elif library == "pandas":
        if hasattr(native, "cat"):
            levels = _plain(native.cat.categories.tolist())
            form |= {"ordered": bool(native.cat.ordered), "categories": levels}
            codes = native.cat.codes.to_numpy().astype(np.int64)
            return TypedColumn("text", np.maximum(codes, 0), codes < 0, as_objects(levels), form)
        if hasattr(native, "sparse"):
            return replace(from_array(name, native.to_numpy()), form=form)
        if native.dtype == object:
            return _pandas_objects(name, native, form)
    try:
        array = series.to_arrow()
    except (ValueError, TypeError, NotImplementedError) as error:
        raise unknown_type(name, form["dtype"]) from error
    array = array.combine_chunks() if hasattr(array, "combine_chunks") else array
    column = _arrow_column(name, array, form["dtype"])
    if library == "pyarrow":
        return column
    if form["dtype"].endswith("[pyarrow]"):
        return replace(column, form=column.form | {"arrow": True})
    return replace(column, form=form)


def _plain(levels: list[Any]) -> list[Any]:
    """Return categories as JSON has them: as text unless they are text or numbers."""
    plain = all(isinstance(level, str | bool | int | float) for level in levels)
    return levels if plain else [str(level) for level in levels]


def _pandas_objects(name: str, series: Any, form: dict[str, Any]) -> TypedColumn:
    try:
        codes, distinct = importlib.import_module("pandas").factorize(series)
    except TypeError:
        # Values that have no hash, such as lists; this says which.
        return from_objects(name, series.tolist(), form)
    return from_codes(np.asarray(codes, dtype=np.int64), list(distinct), form)


def _polars_form(series: Any) -> dict[str, Any]:
    dtype = series.to_native().dtype
    form: dict[str, Any] = {"dtype": str(dtype).partition("(")[0]}
    if form["dtype"] in ("Datetime", "Duration"):
        form |= {"unit": dtype.time_unit, "time_zone": getattr(dtype, "time_zone", None)}
    if form["dtype"] in ("Categorical", "Enum"):
        form["categories"] = series.cat.get_categories().to_list()
    if form["dtype"] == "Decimal":
        form |= {"precision": dtype.precision, "scale": dtype.scale}
    return form


def _arrow_column(name: str, column: Any, label: str) -> TypedColumn:
    import pyarrow as pa

    types, kind = pa.types, column.type
    form: dict[str, Any] = {"dtype": str(kind)}
    missing = column.is_null().to_numpy(zero_copy_only=False)
    if types.is_null(kind):
        return TypedColumn("text", np.zeros(missing.shape, np.int64), missing, as_objects([]), form)
    if types.is_decimal(kind):
        # By their digits, as Arrow's own conversion may miss the nearest float.
        column, kind = column.cast(pa.string()).cast(pa.float64()), pa.float64()
    if str(kind) in _TEXT_TYPES:
        column = column.cast(pa.large_string()).dictionary_encode()
        codes = column.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        return from_codes(codes, column.dictionary.to_pylist(), form)
    if types.is_dictionary(kind):
        levels = _plain(column.dictionary.to_pylist())
        form |= {"ordered": bool(kind.ordered), "value_type": str(kind.value_type)}
        form |= {"index_type": str(kind.index_type), "categories": levels}
        codes = column.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        return TypedColumn("text", codes, missing, as_objects(levels), form)
    if types.is_timestamp(kind) or types.is_duration(kind) or types.is_date(kind):
        unit = "D" if types.is_date(kind) else kind.unit
        counts = column.view(pa.int32() if types.is_date32(kind) else pa.int64()).fill_null(0)
        whole = counts.to_numpy(zero_copy_only=False).astype(np.int64)
        whole = whole // 86_400_000 if types.is_date64(kind) else whole
        letter = "m" if types.is_duration(kind) else "M"
        return TypedColumn("time", whole.view(f"{letter}8[{unit}]"), missing, form=form)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        zero = False if types.is_boolean(kind) else 0
        values = column.fill_null(zero).to_numpy(zero_copy_only=False)
        missing = missing | np.isnan(values) if types.is_floating(kind) else missing
        storage = "boolean" if types.is_boolean(kind) else "number"
        return TypedColumn(storage, values, missing, form=form)
    advice = "Convert it with .dt.to_timestamp(). " if label.startswith("period") else ""
    raise unknown_type(name, label or kind, f"{advice}Leave it out: {{exclude}} or {{skip}}.")


def zone_of(form: Mapping[str, Any]) -> str | None:
    match = _ZONE.search(str(form.get("dtype", "")))
    zone = match[1].strip() if match else form.get("time_zone") or form.get("text_zone")
    return str(zone) if zone else None


# Writing


def write_typed(table: TypedTable) -> Any:
    """Return a table of the kind that `table.origin` names, with the types of its columns."""
    write = _WRITERS[table.origin]
    columns = {name: write(column) for name, column in table.columns.items()}
    if table.origin == "dict":
        return columns
    module: Any = importlib.import_module(table.origin)
    return module.table(columns) if table.origin == "pyarrow" else module.DataFrame(columns)


def replace_columns(table: Any, origin: str, columns: Mapping[str, TypedColumn]) -> Any:
    """Return a copy of the user's table with some columns replaced, all else as it was."""
    write = _WRITERS[origin]
    if origin == "pandas":
        out = table.copy()
        for name, column in columns.items():
            out[name] = write(column, table[name].dtype).set_axis(table.index)
        return out
    if origin == "pyarrow":
        for name, column in columns.items():
            place = table.schema.get_field_index(name)
            old = table.schema.field(place)
            array = write(column, old.type)
            table = table.set_column(place, old.with_type(array.type), array)
        return table
    if origin == "polars":
        return table.with_columns(**{n: write(c, table.schema[n]) for n, c in columns.items()})
    return dict(table) | {name: write(column, table[name]) for name, column in columns.items()}


def _texts(column: TypedColumn) -> np.ndarray:
    if column.levels is not None:
        return np.asarray(column.levels[column.values])
    if "text_unit" not in column.form:
        return as_objects([str(value) for value in column.values.tolist()])
    texts = column.values.astype(f"M8[{column.form['text_unit']}]").astype(str).tolist()
    mark, zone = column.form["text_mark"], column.form["text_zone"]
    return as_objects([text.replace("T", mark) + zone for text in texts])


def _is_text(column: TypedColumn) -> bool:
    """Whether values are text in the user's table, perhaps text of numbers or dates."""
    texts = column.form.get("dtype") in _TEXT_TYPES
    return column.levels is not None or "text_unit" in column.form or texts


def _objects(column: TypedColumn) -> np.ndarray:
    if _is_text(column):
        return _texts(column)
    if column.storage != "time":
        return as_objects(column.values.tolist())
    if column.values.dtype == np.dtype("M8[D]") and "datetime" not in column.form:
        return as_objects(column.values.tolist())
    # Finer units have no objects in Python.
    plain = column.values.astype(f"{column.values.dtype.kind}8[us]").tolist()
    zone = column.form.get("time_zone")
    return as_objects([value.replace(tzinfo=datetime.UTC) for value in plain] if zone else plain)


def _clipped(values: np.ndarray, dtype: Any) -> np.ndarray:
    """Return numbers in another type; whole ones beyond its range become its limits."""
    target = np.dtype(dtype)
    if target.kind not in "iu" or values.dtype == target:
        return values.astype(target)
    limits = np.iinfo(target)
    if values.dtype.kind in "iu":
        # Without floats, which would lose digits.
        present = np.iinfo(values.dtype)
        low, high = max(limits.min, present.min), min(limits.max, present.max)
        return np.asarray(np.clip(values, low, high), dtype=target)
    # The limits themselves may be no floats.
    rounded = np.rint(values)
    below, above = rounded <= float(limits.min), rounded >= float(limits.max)
    whole = np.where(below | above, 0.0, rounded).astype(target)
    whole[below], whole[above] = limits.min, limits.max
    return whole


def numpy_array(column: TypedColumn) -> np.ndarray:
    """Return a column as an array (N,); gaps are NaN, NaT or None."""
    if not column.missing.any():
        return np.asarray(_dict_array(column))
    if column.storage == "number":
        return np.where(column.missing, np.nan, column.values.astype(np.float64))
    if column.storage == "time":
        return np.where(column.missing, np.array("NaT", column.values.dtype), column.values)
    objects = np.full(column.missing.shape, None, dtype=object)
    observed = column.observed
    known = observed.tolist() if column.levels is None else column.levels[observed]
    objects[~column.missing] = known
    return objects


def _dict_array(column: TypedColumn, old: Any = None) -> Any:
    """Write an array, or a list if that is what the old column was."""
    dtype, array = str(column.form.get("dtype", "list")), column.values
    if _is_text(column):
        array = _texts(column).astype(str) if dtype == "str" else _texts(column)
    elif dtype == "object":
        array = _objects(column)
    elif column.storage == "number" and re.fullmatch(r"(u?int|float)\d+", dtype):
        array = _clipped(column.values, dtype)
    elif column.storage == "time" and dtype[1:2] in ("m", "M"):
        array = column.values.astype(dtype)
    return array.tolist() if isinstance(old, list) else array


def _pandas_series(column: TypedColumn, old: Any = None) -> Any:
    """Write a series, in the categorical type of the old column if it had one."""
    pd: Any = importlib.import_module("pandas")
    form, dtype = column.form, str(column.form.get("dtype", ""))
    if getattr(old, "categories", None) is not None:
        assert column.levels is not None
        place = {str(level): code for code, level in enumerate(old.categories.tolist())}
        codes = np.array([place.get(str(level), -1) for level in column.levels], dtype=np.int64)
        return pd.Series(pd.Categorical.from_codes(codes[column.values], dtype=old))
    if not dtype:
        # Of a table of another kind, so that pandas' own choice is as good as any.
        return pd.Series(_objects(column) if column.levels is not None else column.values)
    if "arrow" in form:
        return pd.Series(pd.arrays.ArrowExtensionArray(_arrow_array(column)))
    if "categories" in form:
        return pd.Series(pd.Categorical(_objects(column), form["categories"], form["ordered"]))
    if dtype == "object" or _is_text(column):
        return pd.Series(_objects(column), dtype=dtype)
    plain = re.fullmatch(r"(u?int|float)\d+", dtype.lower())
    if column.storage == "number" and plain:
        return pd.Series(_clipped(column.values, plain.group()), dtype=dtype)
    series = pd.Series(column.values)
    if column.storage == "time" and zone_of(form) is not None:
        series = series.dt.tz_localize("UTC").dt.tz_convert(zone_of(form))
    return series.astype(dtype)


def _arrow_array(column: TypedColumn, old: Any = None) -> Any:
    """Write an Arrow array, of the type of the old column if that can hold the values."""
    import pyarrow as pa

    kind = _type_of(column) if old is None else _fitting_type(column, old)
    types = pa.types
    if types.is_dictionary(kind):
        values = _objects(column).tolist()
        levels = list(dict.fromkeys([*column.form.get("categories", ()), *values]))
        place = {level: number for number, level in enumerate(levels)}
        indices = pa.array([place[value] for value in values], type=kind.index_type)
        dictionary = pa.array(levels, type=kind.value_type)
        return pa.DictionaryArray.from_arrays(indices, dictionary, ordered=kind.ordered)
    if _is_text(column):
        return pa.array(_objects(column).tolist(), type=kind)
    if types.is_integer(kind):
        return pa.array(_clipped(column.values, kind.to_pandas_dtype()), type=kind)
    if types.is_timestamp(kind) or types.is_duration(kind) or types.is_date(kind):
        letter = "m" if types.is_duration(kind) else "M"
        unit = "D" if types.is_date(kind) else kind.unit
        return pa.array(column.values.astype(f"{letter}8[{unit}]")).cast(kind)
    if types.is_decimal(kind):
        return pa.array(column.values.astype(np.float64)).cast(kind, safe=False)
    return pa.array(column.values).cast(kind)


def _arrow_type(form: Mapping[str, Any]) -> Any:
    """Return the type of an Arrow column out of its name."""
    import pyarrow as pa

    name = str(form["dtype"])
    if "value_type" in form:
        values, index = map(pa.type_for_alias, (form["value_type"], form["index_type"]))
        return pa.dictionary(index, values, form["ordered"])
    if zoned := re.fullmatch(r"timestamp\[(\w+), tz=(.+)\]", name):
        return pa.timestamp(zoned[1], tz=zoned[2])
    if decimals := re.fullmatch(r"(decimal\d+)\((\d+), (-?\d+)\)", name):
        return getattr(pa, decimals[1])(int(decimals[2]), int(decimals[3]))
    return pa.type_for_alias(name)


def _type_of(column: TypedColumn) -> Any:
    """Return the Arrow type of a column by its form, or else by its values."""
    import pyarrow as pa

    if column.form.get("dtype"):
        return _arrow_type(column.form)
    return pa.string() if column.levels is not None else pa.array(column.values).type


def _fitting_type(column: TypedColumn, kind: Any) -> Any:
    """Return the type of an Arrow column, or another if that cannot hold values of this storage."""
    from pyarrow import types

    texts = ("string", "large_string", "string_view", "dictionary")
    numbers, times = ("integer", "floating", "decimal"), ("timestamp", "duration", "date")
    fitting = {"text": texts, "number": texts + numbers, "time": texts + times}
    fitting["boolean"] = (*texts, *numbers, "boolean")
    name = next((n for n in fitting[column.storage] if getattr(types, f"is_{n}")(kind)), None)
    # What had no value had no zone either, perhaps.
    lacks_zone = name in times and zone_of(column.form) and getattr(kind, "tz", None) is None
    return _type_of(column) if name is None or lacks_zone else kind


def _polars_series(column: TypedColumn, old: Any = None) -> Any:
    """Write a series, of the type of the old column if that can hold levels."""
    polars: Any = importlib.import_module("polars")
    form, kind = column.form, old
    is_text = str(old).partition("(")[0] in ("String", "Utf8", "Categorical", "Enum")
    if str(old) == "Null" or (column.levels is not None and not is_text):
        kind = None
    if kind is None and "dtype" in form:
        kind = getattr(polars, str(form["dtype"]), None)
        # A saved schema may be of anybody: nothing else of polars is called.
        if not (isinstance(kind, type) and issubclass(kind, polars.DataType)):
            raise InputError(f"must be a type of polars, got {shown(form['dtype'])}")
        if "unit" in form:
            has_zone = form["dtype"] == "Datetime"
            kind = kind(form["unit"], form["time_zone"]) if has_zone else kind(form["unit"])
        elif form["dtype"] == "Enum":
            kind = polars.Enum(form["categories"])
        elif "scale" in form:
            kind = polars.Decimal(form["precision"], form["scale"])
    if _is_text(column):
        series = polars.Series(_texts(column).tolist())
    elif column.storage == "number" and kind is not None and kind.is_integer():
        series = polars.Series(_clipped(column.values, str(kind).lower()))
    else:
        series = polars.Series(importlib.import_module("pyarrow").array(column.values))
        if zone := getattr(kind, "time_zone", None):
            series = series.dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
    return series if kind is None else series.cast(kind)


_WRITERS: dict[str, Callable[..., Any]] = {
    "dict": _dict_array,
    "pandas": _pandas_series,
    "polars": _polars_series,
    "pyarrow": _arrow_array,
}

"""Typed tables as the user's kind of table: pandas, polars, pyarrow, or a dict of arrays."""

from __future__ import annotations

import datetime
import importlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from pickmix.data.typed_checks import zone_of
from pickmix.data.typed_tables import TypedColumn, TypedTable, as_objects

_TEXT_TYPES = ("str", "string", "large_string", "string_view", "String", "Utf8")


def write_typed(table: TypedTable) -> Any:
    """A table of the kind that `table.origin` names, with the types of its columns.

    Examples
    --------
    >>> from pickmix.data.typed_readers import read_typed
    >>> write_typed(read_typed({"x": np.array([1, 2]), "y": ["a", "b"]}))
    {'x': array([1, 2]), 'y': array(['a', 'b'], dtype=object)}
    """
    if table.origin == "pandas":
        pd: Any = importlib.import_module("pandas")

        return pd.DataFrame({name: _pandas_series(c) for name, c in table.columns.items()})
    if table.origin == "pyarrow":
        import pyarrow as pa

        return pa.table({name: _arrow_array(c) for name, c in table.columns.items()})
    if table.origin == "polars":
        polars: Any = importlib.import_module("polars")

        return polars.DataFrame([_polars_series(name, c) for name, c in table.columns.items()])
    return {name: _numpy_array(column) for name, column in table.columns.items()}


def replace_columns(table: Any, origin: str, columns: Mapping[str, TypedColumn]) -> Any:
    """A copy of the user's table with some columns replaced, all else as it was."""
    if origin == "pandas":
        out = table.copy()
        for name, column in columns.items():
            categories = getattr(table[name].dtype, "categories", None)
            if categories is None:
                series = _pandas_series(column)
            else:
                series = _pandas_categories(column, table[name].dtype)
            out[name] = series.set_axis(table.index)
        return out
    if origin == "pyarrow":
        for name, column in columns.items():
            place = table.schema.get_field_index(name)
            field = table.schema.field(place)
            array = _arrow_array(column, _fitting_type(column, field.type))
            table = table.set_column(place, field.with_type(array.type), array)
        return table
    if origin == "polars":
        found = [
            _polars_series(n, c, _fitting_polars(c, table.schema[n])) for n, c in columns.items()
        ]
        return table.with_columns(found)
    out = dict(table)
    for name, column in columns.items():
        filled = _numpy_array(column)
        out[name] = filled.tolist() if isinstance(out[name], list) else filled
    return out


def texts_of(column: TypedColumn) -> np.ndarray:
    """Values of a column as text, (N,) objects; dates as they were written."""
    if column.levels is not None:
        return np.asarray(column.levels[column.values])
    if column.storage != "time" or "text_unit" not in column.form:
        return as_objects([str(value) for value in column.values.tolist()])
    unit = str(column.form["text_unit"])
    texts = column.values.astype(f"M8[{unit}]").astype(str)
    mark, zone = column.form["text_mark"], column.form["text_zone"]
    return as_objects([text.replace("T", mark) + zone for text in texts.tolist()])


def _is_text(column: TypedColumn) -> bool:
    """Whether values that are no text were text in the user's table."""
    return "text_unit" in column.form or (
        column.storage != "text" and column.form.get("dtype") in _TEXT_TYPES
    )


def _objects(column: TypedColumn) -> np.ndarray:
    """Values of a column as Python objects, (N,)."""
    if column.levels is not None or _is_text(column):
        return texts_of(column)
    if column.storage != "time":
        return as_objects(column.values.tolist())
    # Finer units have no objects in Python.
    days = column.values.dtype == np.dtype("M8[D]") and "datetime" not in column.form
    values = column.values if days else column.values.astype(f"{column.values.dtype.kind}8[us]")
    zone = datetime.UTC if column.form.get("time_zone") and not days else None
    plain = values.tolist()
    return as_objects([value.replace(tzinfo=zone) for value in plain] if zone else plain)


def _clipped(values: np.ndarray, dtype: Any) -> np.ndarray:
    """Numbers in another type; whole ones beyond its range become its limits."""
    target = np.dtype(dtype)
    if target.kind not in "iu" or values.dtype == target:
        return values.astype(target)
    limits = np.iinfo(target)
    if values.dtype.kind in "iu":
        # Without floats, which would lose digits.
        own = np.iinfo(values.dtype)
        lowest, highest = max(limits.min, own.min), min(limits.max, own.max)
        return np.asarray(np.clip(values, lowest, highest), dtype=target)
    # The limits themselves may be no floats.
    rounded = np.rint(values)
    low, high = rounded <= float(limits.min), rounded >= float(limits.max)
    whole = np.where(low | high, 0.0, rounded).astype(target)
    whole[low], whole[high] = limits.min, limits.max
    return whole


def numpy_array(column: TypedColumn) -> np.ndarray:
    """A column as an array (N,); gaps are NaN, NaT or None."""
    if not column.missing.any():
        return _numpy_array(column)
    if column.storage == "number":
        return np.where(column.missing, np.nan, column.values.astype(np.float64))
    if column.storage == "time":
        return np.where(column.missing, np.array("NaT", column.values.dtype), column.values)
    objects = np.full(column.missing.shape, None, dtype=object)
    there = ~column.missing
    kept = column.values[there]
    objects[there] = kept.tolist() if column.levels is None else column.levels[kept]
    return objects


def _numpy_array(column: TypedColumn) -> np.ndarray:
    dtype = str(column.form.get("dtype", "list"))
    if column.levels is not None or _is_text(column):
        texts = texts_of(column)
        return texts.astype(str) if dtype == "str" else texts
    if dtype == "object":
        return _objects(column)
    if column.storage == "number" and re.fullmatch(r"(u?int|float)\d+", dtype):
        return _clipped(column.values, dtype)
    if column.storage == "time" and dtype[1:2] in ("m", "M"):
        return column.values.astype(dtype)
    return column.values


def _pandas_series(column: TypedColumn) -> Any:
    pd: Any = importlib.import_module("pandas")

    dtype = str(column.form.get("dtype", ""))
    if not dtype:
        # Of a table of another kind, so that pandas' own choice is as good as any.
        return pd.Series(_objects(column) if column.levels is not None else column.values)
    if "arrow" in column.form:
        return pd.Series(pd.arrays.ArrowExtensionArray(_arrow_array(column)))
    if "categories" in column.form:
        categories = column.form["categories"]
        values = pd.Categorical(
            _objects(column), categories=categories, ordered=column.form["ordered"]
        )
        return pd.Series(values)
    if column.levels is not None or dtype == "object" or _is_text(column):
        return pd.Series(_objects(column), dtype=dtype)
    if column.storage == "time":
        series = pd.Series(column.values)
        if "," in dtype:
            zone = dtype.partition(",")[2].strip(" ]")
            series = series.dt.tz_localize("UTC").dt.tz_convert(zone)
        return series.astype(dtype)
    if column.storage == "number":
        plain = re.fullmatch(r"(u?int|float)\d+", dtype.lower())
        if plain:
            return pd.Series(_clipped(column.values, plain.group()), dtype=dtype)
    return pd.Series(column.values).astype(dtype)


def _pandas_categories(column: TypedColumn, dtype: Any) -> Any:
    """Values in a categorical type that is there already, whatever its categories are."""
    pd: Any = importlib.import_module("pandas")
    assert column.levels is not None
    place = {str(level): code for code, level in enumerate(dtype.categories.tolist())}
    codes = np.array([place.get(str(level), -1) for level in column.levels], dtype=np.int64)
    return pd.Series(pd.Categorical.from_codes(codes[column.values], dtype=dtype))


def _arrow_array(column: TypedColumn, kind: Any = None) -> Any:
    import pyarrow as pa

    kind = _arrow_type(column) if kind is None else kind
    types = pa.types
    if types.is_dictionary(kind):
        return _arrow_dictionary(column, kind)
    if column.levels is not None or _is_text(column):
        return pa.array(_objects(column).tolist(), type=kind)
    if types.is_integer(kind):
        return pa.array(_clipped(column.values, kind.to_pandas_dtype()), type=kind)
    if types.is_timestamp(kind):
        plain = pa.array(column.values.astype(f"M8[{kind.unit}]"), type=pa.timestamp(kind.unit))
        return plain.cast(kind)
    if types.is_duration(kind):
        return pa.array(column.values.astype(f"m8[{kind.unit}]"), type=kind)
    if types.is_date(kind):
        return pa.array(column.values.astype("M8[D]")).cast(kind)
    if types.is_decimal(kind):
        return pa.array(column.values.astype(np.float64)).cast(kind, safe=False)
    return pa.array(column.values).cast(kind)


def _arrow_dictionary(column: TypedColumn, kind: Any) -> Any:
    import pyarrow as pa

    values = _objects(column).tolist()
    levels = list(dict.fromkeys([*column.form.get("categories", ()), *values]))
    place = {level: number for number, level in enumerate(levels)}
    indices = pa.array([place[value] for value in values], type=kind.index_type)
    dictionary = pa.array(levels, type=kind.value_type)
    return pa.DictionaryArray.from_arrays(indices, dictionary, ordered=kind.ordered)


def _fitting_type(column: TypedColumn, kind: Any) -> Any:
    """The type of an Arrow column, or another if that cannot hold values of this storage."""
    import pyarrow as pa

    types = pa.types
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    is_text = is_text or types.is_dictionary(kind)
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    is_time = types.is_timestamp(kind) or types.is_duration(kind) or types.is_date(kind)
    fits = {"text": is_text, "number": is_number or is_text, "time": is_time or is_text}
    if column.storage == "boolean":
        is_fitting = types.is_boolean(kind) or is_number or is_text
    else:
        is_fitting = fits[column.storage]
    if is_time and column.storage == "time" and zone_of(column.form) is not None:
        # What had no value had no zone either, perhaps.
        is_fitting = getattr(kind, "tz", None) is not None
    return kind if is_fitting else _arrow_type(column)


def _fitting_polars(column: TypedColumn, kind: Any) -> Any:
    """The type of a column of polars, or None if that cannot hold levels."""
    texts = ("String", "Utf8", "Categorical", "Enum")
    is_text = str(kind).partition("(")[0] in texts
    return None if str(kind) == "Null" or (column.levels is not None and not is_text) else kind


def _arrow_type(column: TypedColumn) -> Any:
    """The type of an Arrow column out of its name."""
    import pyarrow as pa

    if "dtype" not in column.form:
        return pa.string() if column.levels is not None else pa.array(column.values).type
    name = str(column.form.get("dtype", ""))
    if "value_type" in column.form:
        values = pa.type_for_alias(column.form["value_type"])
        index = pa.type_for_alias(column.form["index_type"])
        return pa.dictionary(index, values, column.form["ordered"])
    timed = re.fullmatch(r"(timestamp|duration)\[(\w+)(?:, tz=(.+))?\]", name)
    if timed:
        if timed[1] == "duration":
            return pa.duration(timed[2])
        return pa.timestamp(timed[2], tz=timed[3])
    if name.startswith("date"):
        return pa.date32() if name.startswith("date32") else pa.date64()
    decimal = re.fullmatch(r"decimal(\d+)\((\d+), (-?\d+)\)", name)
    if decimal:
        make = pa.decimal256 if decimal[1] == "256" else pa.decimal128
        return make(int(decimal[2]), int(decimal[3]))
    return pa.type_for_alias(name)


def _polars_series(name: str, column: TypedColumn, kind: Any = None) -> Any:
    polars: Any = importlib.import_module("polars")

    if kind is None and "dtype" in column.form:
        kind = getattr(polars, str(column.form["dtype"]))
        if "unit" in column.form and column.form["dtype"] == "Datetime":
            kind = polars.Datetime(column.form["unit"], column.form["time_zone"])
        elif "unit" in column.form:
            kind = polars.Duration(column.form["unit"])
        elif column.form["dtype"] == "Enum":
            kind = polars.Enum(column.form["categories"])
    values: Any = _objects(column).tolist()
    if column.storage == "number" and not _is_text(column):
        values = column.values
    series = polars.Series(name, values)
    if column.storage == "time" and not _is_text(column):
        zone = getattr(kind, "time_zone", None)
        if zone:
            series = series.dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
    return series if kind is None else series.cast(kind)

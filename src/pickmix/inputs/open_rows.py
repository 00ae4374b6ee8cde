"""`open_rows`: rows of numbers from anywhere, as a source that is read in ranges."""

from __future__ import annotations

import copy
import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pickmix.inputs import readers
from pickmix.inputs.arrays import check_integer, refuse_lazy_frame, without_mask
from pickmix.inputs.errors import InputError
from pickmix.inputs.files import find_files, known_suffix
from pickmix.inputs.sources import RowSource, array_source, check_columns, open_npy_files
from pickmix.inputs.text import TEXT

# Of Python: no arrays, though they have lengths and slices, or are taken for rows by NumPy.
_COLLECTIONS = (list, tuple, Mapping, bytes, set, frozenset, range)


def open_rows(
    data: Any,
    *,
    columns: Sequence[str | int] | None = None,
    chunk_size: int | str = "auto",
    cache: str | os.PathLike[str] | None = None,
    dtype: Any = None,
    decimal: str | None = None,
) -> RowSource:
    """Open rows of numbers that need not fit into memory.

    Raw numbers in files (.npy files, mapped arrays) are read in place. Everything else is
    converted once, into a raw file.

    Parameters
    ----------
    data : source, array, path, Arrow data, object with slices, or function
        One of

        - a 2-D array of real numbers (what is masked is missing), a data frame, or a source (which
          is returned);
        - an `np.memmap`;
        - a path or a glob to .npy, .npz, .csv, .tsv, .txt (also packed: .csv.gz) or .parquet files,
          or a folder of Parquet files. Several files, sorted by name, are one table and have the
          same columns;
        - a `pyarrow.dataset.Dataset` or a `pyarrow.Table`;
        - a sparse array of SciPy, which is made dense batch by batch, or an AnnData, of which `X`
          is read, with the names of its variables;
        - an object with a length whose slices `data[a:b]` are 2-D arrays, data frames or tables,
          like `lightgbm.Sequence`;
        - a function that returns an iterator of such batches, a fresh one at each call.
    columns : sequence of str or int, optional
        Which columns, in which order: names, or numbers from 0. Columns that are not numbers must
        be left out here.
    chunk_size : int or "auto"
        Rows that a fit visits at a time.
    cache : path, optional
        Folder for converted rows. They are kept there, and used again as long as the original
        files keep their size and time of change. Without it they go to the system's folder for
        temporary files, and are removed with the source. Rows of functions, of objects with slices,
        and of Arrow data that are not local Parquet files cannot be recognised: they are converted
        each time and never kept.
    dtype : {"float32", "float64"}, optional
        Type of the rows. By default float32 if all columns are float32 or float16, else float64.
    decimal : {".", ","}, optional
        Decimal mark of text files. By default it is found: a comma only between semicolons or tabs.

    Returns
    -------
    source : RowSource
        Rows are in the order of the data. Missing values are NaN.

    Examples
    --------
    >>> import tempfile
    >>> from pickmix.inputs.files import write_table
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for part in range(2):
    ...         columns = {"x": [part, 2.5], "y": [3.0, 4.0], "kind": [7.0, 7.0]}
    ...         written = write_table(f"{folder}/part-{part}.csv", columns)
    ...     with open_rows(f"{folder}/part-*.csv", columns=["y", "x"]) as source:
    ...         print(source.n_rows, source.names, source.place(3))
    ...         print(source.read(1, 3))
    4 ['y', 'x'] part-1.csv, row 2
    [[4.  2.5]
     [3.  1. ]]

    Batches come from a function, as an iterator would be used up after one pass.

    >>> def batches():
    ...     for start in range(0, 6, 3):
    ...         yield np.arange(start, start + 3.0)[:, None]
    >>> with open_rows(batches, dtype="float32") as source:
    ...     print(source.read(0, 6).ravel(), source.place(4))
    [0. 1. 2. 3. 4. 5.] batch 2 of batches(), row 2
    """
    if columns is not None:
        check_columns(columns)
        columns = list(columns)
    if chunk_size != "auto":
        check_integer("chunk_size", chunk_size, 1, ' or "auto"')
    chosen = None if dtype is None else np.dtype(dtype)
    if chosen is not None and chosen not in (np.float32, np.float64):
        raise ValueError(f"dtype must be float32 or float64; got {dtype!r}")
    if decimal not in (None, ".", ","):
        raise ValueError(f'decimal must be "." or ",", or None; got {decimal!r}')
    refuse_lazy_frame("data", data)
    source: RowSource = data
    if not isinstance(data, RowSource):
        source = _open(data, columns, None if cache is None else Path(cache), chosen, decimal)
    elif columns is not None or chosen is not None or chunk_size != "auto":
        source = copy.copy(data) if columns is None else data.with_columns(columns)
    if chosen is not None:
        source.dtype = chosen
    if chunk_size != "auto":
        source.chunk_size = int(chunk_size)
    return source


def is_dask(data: Any) -> bool:
    """Whether data is a Dask array or dataframe; Dask is not imported to find out."""
    return type(data).__module__.startswith(("dask.array", "dask.dataframe", "dask_expr"))


def is_source(data: Any) -> bool:
    """Whether `open_rows` reads this, rather than scikit-learn's validation of arrays.

    True for sources, paths, mapped arrays, Arrow tables and datasets, functions, and objects with
    slices that are not arrays; also for iterators, which `open_rows` refuses with a reason.
    """
    is_source_or_path = isinstance(data, RowSource | str | os.PathLike)
    if is_source_or_path or is_annotated(data) or readers.is_arrow(data, "Table", "Dataset"):
        return True
    if isinstance(data, np.memmap):
        # What is computed from a mapped array may have its type, but lies in memory.
        return getattr(data, "_mmap", None) is not None
    # Arrays, data frames and sparse matrices of all libraries.
    of_arrays = ("__array__", "__dataframe__", "tocsr")
    is_array = readers.is_frame(data) or any(hasattr(data, name) for name in of_arrays)
    if isinstance(data, _COLLECTIONS) or is_array:
        return False
    return callable(data) or hasattr(data, "__next__") or _has_slices(data)


def is_annotated(data: Any) -> bool:
    """Whether data is an AnnData, or looks like one: rows `X` with notes about rows and columns."""
    return all(hasattr(data, name) for name in ("X", "obs", "obsm", "var_names"))


class _DenseRows:
    """Slices of a sparse array, or of one in a file, as dense arrays or named columns."""

    def __init__(self, rows: Any, names: list[str] | None = None) -> None:
        # Formats without slices, such as COO, have a CSR form.
        self._rows = rows.tocsr() if hasattr(rows, "tocsr") else rows
        self._names = names

    def __len__(self) -> int:
        return int(self._rows.shape[0])

    def __getitem__(self, some: slice) -> Any:
        rows = self._rows[some]
        dense = rows.toarray() if hasattr(rows, "toarray") else np.asarray(rows)
        if self._names is None:
            return dense
        table = importlib.import_module("pyarrow").Table
        return table.from_arrays(list(dense.T), names=self._names)


def _has_slices(data: Any) -> bool:
    return hasattr(data, "__len__") and hasattr(data, "__getitem__")


def _open(
    data: Any,
    columns: list[str | int] | None,
    cache: Path | None,
    dtype: np.dtype[Any] | None,
    decimal: str | None,
) -> RowSource:
    """A source with the chosen columns; only converted rows have the dtype already."""
    reader: readers.Reader
    source: RowSource | None = None
    names: list[str] | None = None
    if is_annotated(data):
        data, names = data.X, [str(name) for name in data.var_names]
        if isinstance(data, np.ndarray):
            source = array_source(data, "X of the AnnData", names)
            return source if columns is None else source.with_columns(columns)
        data = _DenseRows(data, names)
    elif hasattr(data, "tocsr"):
        data = _DenseRows(data)
    if isinstance(data, str | os.PathLike):
        name = os.fspath(data)
        paths = find_files(name)
        suffixes = map(known_suffix, paths)
        kinds = sorted({".csv" if suffix in TEXT else suffix for suffix in suffixes})
        if len(kinds) > 1:
            raise InputError(f"expected files of one kind, got {' and '.join(kinds)}", path=name)
        if kinds == [".npy"]:
            source = open_npy_files(name, paths)
        else:
            reader = readers.file_reader(kinds[0], name, paths, columns, decimal)
    elif isinstance(data, np.ndarray):
        mapped = getattr(data, "filename", None)
        source = array_source(without_mask(data), "the array" if mapped is None else str(mapped))
    elif readers.is_arrow(data, "Table", "Dataset"):
        reader = readers.arrow_reader(data, columns)
    elif readers.is_frame(data):
        name = f"the {type(data).__name__}"
        rows, names, _ = readers.batch_rows(name, data, columns)
        return array_source(rows, name, names)
    elif hasattr(data, "__next__"):
        raise TypeError(
            f"rows are read from the start again, but a {type(data).__name__} is used up after "
            "one pass; give the function that makes it instead, for example lambda: "
            "make_batches(path)"
        )
    elif isinstance(data, _COLLECTIONS):
        raise TypeError(f"expected rows of numbers, got a {type(data).__name__}; use np.asarray")
    elif _has_slices(data):
        reader = readers.sequence_reader(data, columns)
    elif callable(data):
        reader = readers.function_reader(data, columns)
    else:
        raise TypeError(
            "expected an array, a path, Arrow data, an object with len() and slices, or a function "
            f"that returns an iterator of batches; got {type(data).__name__}"
        )
    if source is None:
        return readers.convert(reader, cache, dtype)
    if columns is not None:
        source.choose_columns(columns)
    return source

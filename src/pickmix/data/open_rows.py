"""`open_rows`: rows of numbers from anywhere, as a source that is read in ranges."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pickmix.data.checks import check_integer, refuse_lazy_frame
from pickmix.data.conversion import convert
from pickmix.data.files import PACKABLE, READABLE
from pickmix.data.object_readers import (
    arrow_table_reader,
    dataset_reader,
    frame_rows,
    function_reader,
    is_arrow,
    is_frame,
    sequence_reader,
)
from pickmix.data.raw_files import RawSource, find_mapped_file, open_npy_files
from pickmix.data.readers import ArchiveReader, ParquetReader, Reader, ScatteredReader, TextReader
from pickmix.data.sources import ArraySource, RowSource, check_columns, read_ahead
from pickmix.data.text_files import TEXT, table_suffix

__all__ = ["RowSource", "is_source", "open_rows", "read_ahead"]


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

        - a 2-D array of real numbers, a data frame, or a source (which is returned);
        - an `np.memmap`. The file behind it is read, not the mapping;
        - a path or a glob to .npy, .npz, .csv, .tsv, .txt (also packed: .csv.gz) or .parquet files,
          or a folder of Parquet files. Several files, sorted by name, are one table and have the
          same columns;
        - a `pyarrow.dataset.Dataset` or a `pyarrow.Table`;
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
    >>> from pickmix.data.files import write_table
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
    asked = None if dtype is None else np.dtype(dtype)
    if asked is not None and asked not in (np.float32, np.float64):
        raise ValueError(f"dtype must be float32 or float64; got {dtype!r}")
    if decimal not in (None, ".", ","):
        raise ValueError(f'decimal must be "." or ",", or None; got {decimal!r}')
    folder = None if cache is None else Path(cache)
    source = _open(data, columns, folder, asked, decimal)
    if asked is not None and asked != source.dtype:
        source = source.with_dtype(asked)
    if chunk_size != "auto":
        source = source.with_chunk_size(int(chunk_size))
    if not isinstance(data, RowSource):
        # It is used here only, so its temporary files can go when it is closed.
        source.own()
    return source


def is_source(data: Any) -> bool:
    """Whether `open_rows` reads this, rather than scikit-learn's validation of arrays.

    True for sources, paths, mapped arrays, Arrow tables and datasets, functions, and objects with
    slices that are not arrays; also for iterators, which `open_rows` refuses with a reason.

    Examples
    --------
    >>> is_source("rows.npy"), is_source(lambda: iter([])), is_source(iter([]))
    (True, True, True)
    >>> is_source(np.ones((2, 2))), is_source([[1.0, 2.0]])
    (False, False)
    """
    if isinstance(data, RowSource | str | os.PathLike):
        return True
    if isinstance(data, np.memmap):
        # What is computed from a mapped array may have its type, but lies in memory.
        return getattr(data, "_mmap", None) is not None
    if is_arrow(data, "Table", "Dataset"):
        return True
    if isinstance(data, list | tuple | Mapping | bytes | set | frozenset | range):
        return False
    # Arrays, data frames and sparse matrices of all libraries.
    if is_frame(data) or any(hasattr(data, n) for n in ("__array__", "__dataframe__", "tocsr")):
        return False
    return callable(data) or hasattr(data, "__next__") or _has_slices(data)


def _has_slices(data: Any) -> bool:
    return hasattr(data, "__len__") and hasattr(data, "__getitem__")


def _open(
    data: Any,
    columns: list[str | int] | None,
    cache: Path | None,
    dtype: np.dtype[Any] | None,
    decimal: str | None,
) -> RowSource:
    """A source of its own with the chosen columns; only converted rows have the dtype already."""
    refuse_lazy_frame("data", data)
    if isinstance(data, RowSource):
        return data if columns is None else data.with_columns(columns)
    if isinstance(data, str | os.PathLike):
        return _open_path(data, columns, cache, dtype, decimal)
    if isinstance(data, np.ndarray):
        source = _open_array(data)
        return source if columns is None else source.with_columns(columns)
    reader: Reader
    if is_arrow(data, "Table"):
        reader = arrow_table_reader(data, columns)
    elif is_arrow(data, "Dataset"):
        reader = dataset_reader(data, columns)
    elif is_frame(data):
        rows, names, _ = frame_rows(f"the {type(data).__name__}", data, columns)
        return ArraySource(rows, f"the {type(data).__name__}", names)
    elif hasattr(data, "__next__"):
        raise TypeError(
            f"rows are read from the start again, but a {type(data).__name__} is used up after "
            "one pass; give the function that makes it instead, for example lambda: "
            "make_batches(path)"
        )
    elif isinstance(data, list | tuple | Mapping | set | frozenset | bytes | range):
        raise TypeError(f"expected rows of numbers, got a {type(data).__name__}; use np.asarray")
    elif _has_slices(data):
        reader = sequence_reader(data, columns)
    elif callable(data):
        reader = function_reader(data, columns)
    else:
        raise TypeError(
            "expected an array, a path, Arrow data, an object with len() and slices, or a function "
            f"that returns an iterator of batches; got {type(data).__name__}"
        )
    return convert(reader, cache, dtype)


def _open_array(array: np.ndarray) -> RowSource:
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError("expected a plain array, got one with a mask; use .filled(np.nan)")
    if isinstance(array, np.memmap):
        name = "the mapped array" if array.filename is None else str(array.filename)
        file = find_mapped_file(array)
        return ArraySource(array, name) if file is None else RawSource(name, [file])
    return ArraySource(array, "the array")


def _open_path(
    data: str | os.PathLike[str],
    columns: list[str | int] | None,
    cache: Path | None,
    dtype: np.dtype[Any] | None,
    decimal: str | None,
) -> RowSource:
    name = os.fspath(data)
    paths = find_files(name)
    kinds = sorted({_kind(path) for path in paths})
    if len(kinds) > 1:
        raise ValueError(f"{name}: expected files of one kind, got {' and '.join(kinds)}")
    if kinds == [".npy"]:
        source = open_npy_files(name, paths)
        chosen = source if columns is None else source.with_columns(columns)
        return convert(ScatteredReader(chosen), cache, dtype) if chosen.any_fortran else chosen
    reader: Reader
    if kinds == [".parquet"]:
        reader = ParquetReader(name, paths, columns)
    elif kinds == [".npz"]:
        reader = ArchiveReader(name, paths, columns)
    else:
        reader = TextReader(name, paths, columns, decimal)
    return convert(reader, cache, dtype)


def find_files(name: str) -> list[Path]:
    """Files of a path, a folder or a glob, sorted."""
    path = Path(name)
    if path.is_dir():
        return _files_of_folder(path)
    if path.exists():
        return [path]
    if not glob.has_magic(name):
        raise FileNotFoundError(f"{name}: expected a file or a folder, found nothing there")
    found = [Path(match) for match in sorted(glob.glob(name, recursive=True))]
    files = []
    for match in found:
        files += _files_of_folder(match) if match.is_dir() else [match]
    if not files:
        raise FileNotFoundError(f"{name}: no file matches")
    return files


def _files_of_folder(folder: Path) -> list[Path]:
    # Others begin with a mark: what Spark and pyarrow leave beside the rows.
    files = [
        path
        for path in sorted(folder.rglob("*.parquet"))
        if path.is_file()
        and not any(part.startswith(("_", ".")) for part in path.relative_to(folder).parts)
    ]
    if not files:
        raise FileNotFoundError(
            f"{folder}: expected Parquet files in the folder, found none; files of another kind "
            f"are chosen by a glob, such as {folder}/*.npy"
        )
    return files


def _kind(path: Path) -> str:
    suffix = table_suffix(path)
    if suffix not in READABLE:
        known = ", ".join((*PACKABLE, *READABLE))
        raise ValueError(f"{path}: expected a file ending in {known}, got {suffix!r}")
    return ".csv" if suffix in TEXT else suffix

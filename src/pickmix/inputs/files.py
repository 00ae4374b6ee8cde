"""Tables in files: .npy, .npz, .csv (.tsv, .txt, also packed) and .parquet, read and written."""

from __future__ import annotations

import contextlib
import csv
import difflib
import errno
import os
import types
import uuid
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pickmix.inputs.arrays import check_matrix
from pickmix.inputs.errors import InputError, listed, shown
from pickmix.inputs.text import (
    TEXT,
    is_packed,
    number_blocks,
    table_suffix,
    text_layout,
    write_text,
)

READABLE = (".npy", ".npz", ".csv", ".tsv", ".txt", ".parquet")
WRITABLE = (".csv", ".tsv", ".npy", ".npz", ".parquet")
PACKABLE = (".csv.gz", ".tsv.gz")
PICKLED = "expected numbers, got pickled objects, which are not read: they can run code"
# Bytes at the beginning of a file that identify its format.
_MAGIC_BYTES = 6
# Names that a message lists, and their letters.
_SHOWN_NAMES, _LONGEST_NAME = 30, 40


def read_table(
    path: str | os.PathLike[str],
    *,
    columns: Sequence[str | int] | None = None,
    key: str | None = None,
    decimal: str | None = None,
) -> tuple[np.ndarray, list[str] | None]:
    """Read rows of numbers (N, D), and the names of the columns if the file has them.

    The path ends in .npy, .npz, .csv, .tsv, .txt (perhaps .gz) or .parquet. `columns` chooses
    columns by names or numbers from 0, `key` an array of an .npz (by default the only one, or `X`),
    `decimal` the decimal mark of a text (by default it is found: a comma only between semicolons or
    tabs). Rows are float32 if the file holds nothing wider, else float64; missing values are NaN.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = write_table(f"{folder}/a.csv", {"x": [1.5, 2.0], "y": [3.0, 4.0]})
    ...     read_table(written, columns=["y"])
    (array([[3.],
           [4.]]), ['y'])
    """
    path = Path(path)
    suffix = known_suffix(path)
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing there"
        raise FileNotFoundError(f"{path}: expected a file, found {found}")
    check_size(path, path.stat().st_size)
    names: list[str] | None
    if suffix == ".parquet":
        rows, names = _read_parquet(path, columns)
    elif suffix in (".npy", ".npz"):
        rows, names = _read_numpy(path, key)
        if columns is not None:
            numbers = column_numbers(path, columns, names, rows.shape[1])
            names = names and [names[number] for number in numbers]
            rows = np.ascontiguousarray(rows[:, numbers])
    else:
        layout = text_layout(path, decimal)
        names, numbers = layout.names, list(range(layout.n_columns))
        if names is not None and not layout.has_rows:
            problem = f"expected rows of numbers, got only a header: {listed(names, str)}"
            raise InputError(problem, path=path)
        if columns is not None:
            numbers = column_numbers(path, columns, names, layout.n_columns)
            names = names and [names[number] for number in numbers]
        blocks = number_blocks(path, layout, numbers)
        rows = np.concatenate([np.empty((0, len(numbers))), *blocks])
    if rows.shape[0] == 0 or rows.shape[1] == 0:
        raise ValueError(f"{path}: expected at least one row and column, got shape {rows.shape}")
    return rows, names


def write_table(path: str | os.PathLike[str], columns: Mapping[str, Any]) -> Path:
    """Write named columns (N,) of equal length; the suffix says how.

    .csv, .tsv (.gz packs them) and .parquet keep names and types, .npy holds one (N, D) array, .npz
    that array as `X` and the names as `columns`. The file appears whole or not at all.
    """
    path = check_writable(path)
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    if len({array.shape for array in arrays.values()}) != 1:
        shapes = listed(arrays.items(), lambda pair: f"{shown(pair[0])}: {pair[1].shape}")
        raise ValueError(f"columns must be vectors of one length, got shapes {{{shapes}}}")
    suffix = table_suffix(path)
    with replacing(path) as temporary:
        if suffix in TEXT:
            with write_text(temporary, is_packed(path)) as file:
                writer = csv.writer(file, delimiter="\t" if suffix == ".tsv" else ",")
                writer.writerow(arrays)
                # Python's floats print the shortest digits that read back to the same number.
                writer.writerows(zip(*(array.tolist() for array in arrays.values()), strict=True))
        elif suffix == ".parquet":
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.table(arrays), temporary)
        else:
            stacked = np.column_stack(list(arrays.values()))
            with open(temporary, "wb") as raw:
                if suffix == ".npy":
                    # Not as a file, to which NumPy writes without saying why it fails.
                    np.lib.format.write_array(types.SimpleNamespace(write=raw.write), stacked)
                else:
                    np.savez(raw, X=stacked, columns=np.array(list(arrays), dtype=np.str_))
    return path


def check_writable(path: str | os.PathLike[str]) -> Path:
    """Return the path of a table to be written, if its suffix is known and its folder exists."""
    path = Path(path)
    if table_suffix(path) not in WRITABLE:
        known = ", ".join((*PACKABLE, *WRITABLE))
        raise ValueError(
            f"{path}: expected a file name ending in {known}, got {table_suffix(path)!r}"
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: the folder {path.parent} does not exist")
    return path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path` that takes its place if the block succeeds.

    An error of a full disk names `path`.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or error.filename2:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def _read_numpy(path: Path, key: str | None) -> tuple[np.ndarray, list[str] | None]:
    # Opened here, as NumPy leaves damaged archives open.
    with open(path, "rb") as file:
        check_beginning(path, file)
        try:
            if path.suffix.lower() == ".npy":
                _check_header(file)
                file.seek(0)
            loaded: Any = np.load(file, allow_pickle=False)
            names: list[str] = []
            if not isinstance(loaded, np.ndarray):
                if key is None:
                    key = loaded.files[0] if len(loaded.files) == 1 else "X"
                if key not in loaded.files:
                    stored = listed(loaded.files, str)
                    raise ValueError(f"expected one array, or one named {key!r}, got {stored}")
                with loaded.zip.open(f"{key}.npy") as header:
                    _check_header(header)
                names = loaded["columns"].tolist() if "columns" in loaded.files else []
                loaded = loaded[key]
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path}: {error}") from error
    check_matrix(str(path), loaded)
    rows = loaded.astype(working_dtype(loaded.dtype), copy=False)
    return rows, names if len(names) == rows.shape[1] else None


def _check_header(file: Any) -> None:
    if read_npy_header(file)[2].hasobject:
        raise ValueError(PICKLED)


def read_npy_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return the shape of an array in a file, whether it goes by columns, and its dtype."""
    formats: Any = np.lib.format
    is_first = formats.read_magic(file) == (1, 0)
    read = formats.read_array_header_1_0 if is_first else formats.read_array_header_2_0
    header: tuple[tuple[int, ...], bool, np.dtype[Any]] = read(file)
    return header


def check_beginning(path: Path, file: BinaryIO) -> None:
    """Refuse an open file that does not begin as those of NumPy do."""
    found = file.read(_MAGIC_BYTES)
    file.seek(0)
    if not found.startswith((b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06")):
        raise ValueError(
            f"{path}: expected a {path.suffix} file, but it begins with {found!r}: it is damaged "
            "or of another kind"
        )


def known_suffix(path: Path) -> str:
    """Return the suffix of a file, if files of that kind are read."""
    suffix = table_suffix(path)
    if suffix not in READABLE:
        known = ", ".join((*PACKABLE, *READABLE))
        raise ValueError(f"{path}: expected a file ending in {known}, got {suffix!r}")
    return suffix


def check_size(path: Path, n_bytes: int) -> None:
    """Refuse an empty file."""
    if n_bytes == 0:
        raise ValueError(f"{path}: expected rows of numbers, got an empty file")


def working_dtype(*stored: np.dtype[Any]) -> np.dtype[Any]:
    """float32 if nothing wider is stored, else float64."""
    narrow = all(dtype.kind == "f" and dtype.itemsize <= 4 for dtype in stored)
    return np.dtype(np.float32 if narrow else np.float64)


def cast_into(out: np.ndarray, rows: np.ndarray) -> None:
    """Copy rows; what float32 cannot hold becomes infinite, which a fit reports by its place."""
    with np.errstate(over="ignore", invalid="ignore"):
        out[...] = rows


def column_numbers(
    path: str | Path,
    columns: Sequence[str | int],
    names: list[str] | None,
    n_columns: int,
    parameter: str = "columns",
) -> list[int]:
    """Return numbers from 0 of columns that are chosen by name or number."""
    if len(columns) == 0:
        raise ValueError(f"{path}: expected at least one column in {parameter}, got none")
    numbers = []
    for column in columns:
        if names is not None and column in names:
            if names.count(str(column)) > 1:
                raise ValueError(f"{path}: two columns are named {shown(column)}; choose by number")
            numbers.append(names.index(str(column)))
        elif str(column).isdecimal() and int(column) < n_columns:
            numbers.append(int(column))
        else:
            missing = _no_column(column, names, n_columns)
            where = "" if parameter == "columns" else f" ({parameter})"
            raise InputError(f"{missing}{where}", path=path, column=column)
    return numbers


def _no_column(column: str | int, names: list[str] | None, n_columns: int) -> str:
    """Say that there is no such column, and which columns there are, similar names first."""
    known = f"0 to {n_columns - 1}"
    if names is None:
        return f"no column {shown(column)}; there are {known}"
    by_letters = {name.lower(): name for name in names}
    alike = difflib.get_close_matches(str(column).lower(), by_letters, 3)
    near = f", but {' and '.join(shown(by_letters[name]) for name in alike)}" if alike else ""
    kept = [name[:_LONGEST_NAME] for name in names[:_SHOWN_NAMES]]
    more = ", ..." if len(names) > _SHOWN_NAMES else ""
    return f"no column {shown(column)}{near}; there are {', '.join(kept)}{more} or {known}"


@contextlib.contextmanager
def open_parquet(path: Path, **options: Any) -> Iterator[Any]:
    """Open a Parquet file; errors of pyarrow name it."""
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path, **options) as file:
            yield file
    except (pyarrow.ArrowException, EOFError) as error:
        raise ValueError(f"{path}: expected a Parquet file, but {error}") from error
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(f"{path}: {error}") from error


def _read_parquet(path: Path, columns: Sequence[str | int] | None) -> tuple[np.ndarray, list[str]]:
    with open_parquet(path) as file:
        chosen, dtype = numeric_fields(path, file.schema_arrow, columns)
        names = [field.name for field in chosen]
        return arrow_rows(file.read(columns=names), names, dtype), names


def arrow_rows(batch: Any, names: Sequence[str], dtype: np.dtype[Any]) -> np.ndarray:
    """Columns of an Arrow batch or table as rows; a missing value becomes NaN."""
    rows = np.empty((batch.num_rows, len(names)), dtype=dtype)
    for position, name in enumerate(names):
        column = batch.column(name)
        options = {} if hasattr(column, "combine_chunks") else {"zero_copy_only": False}
        cast_into(rows[:, position], column.to_numpy(**options))
    return rows


def numeric_fields(
    path: str | Path, schema: Any, columns: Sequence[str | int] | None
) -> tuple[list[Any], np.dtype[Any]]:
    """Fields of the chosen columns of an Arrow schema, and the dtype that holds all of them.

    Columns that are not numbers are refused; `path` is for messages.
    """
    from pyarrow import types

    numbers = list(range(len(schema)))
    if columns is not None:
        numbers = column_numbers(path, columns, schema.names, len(schema))
    chosen = [schema.field(number) for number in numbers]
    for field in chosen:
        if schema.names.count(field.name) > 1:
            raise ValueError(f"{path}: two columns are named {shown(field.name)}")
        kind = field.type
        if not (types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)):
            raise InputError(
                path=path,
                column=field.name,
                expected="numbers",
                got=str(kind)[:80],
                remedy="leave that column out with {columns}",
            )
    return chosen, working_dtype(*(np.dtype(field.type.to_pandas_dtype()) for field in chosen))

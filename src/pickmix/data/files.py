"""Tables in files: .npy, .npz, .csv (.tsv, .txt, also packed) and .parquet, read and written."""

from __future__ import annotations

import contextlib
import csv
import difflib
import errno
import os
import re
import uuid
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pickmix.data.checks import check_rows
from pickmix.data.text_files import TEXT as TEXT
from pickmix.data.text_files import is_packed, table_suffix, write_text
from pickmix.data.text_files import parse_text as parse_text
from pickmix.data.text_files import text_layout as text_layout

READABLE = (".npy", ".npz", ".csv", ".tsv", ".txt", ".parquet")
WRITABLE = (".csv", ".tsv", ".npy", ".npz", ".parquet")
PACKABLE = (".csv.gz", ".tsv.gz")
PICKLED = "expected numbers, got pickled objects, which are not read: they can run code"
# Bytes at the beginning of a file that identify its format.
_MAGIC_BYTES = 6
# Names that a message lists.
_SHOWN_NAMES = 30


def read_table(
    path: str | os.PathLike[str],
    *,
    columns: Sequence[str | int] | None = None,
    key: str | None = None,
    decimal: str | None = None,
) -> tuple[np.ndarray, list[str] | None]:
    """Read rows of numbers.

    Parameters
    ----------
    path : path
        .npy, .npz, .csv, .tsv, .txt (the delimiter is found: tab, semicolon, comma, | or blanks; a
        header is found too; they may be packed, .csv.gz) or .parquet (needs the extra `parquet`).
    columns : sequence of str or int, optional
        Which columns, in which order: names, or numbers from 0.
    key : str, optional
        Which array of an .npz; by default the only one, or `X`.
    decimal : {".", ","}, optional
        Decimal mark of a text. By default it is found: a comma only between semicolons or tabs.

    Returns
    -------
    rows : (N, D) array
        float32 if the file holds nothing wider, else float64. Missing values are NaN.
    names : list of D str, or None
        Column names, if the file has them.

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
    suffix = table_suffix(path)
    if suffix not in READABLE:
        known = ", ".join((*PACKABLE, *READABLE))
        raise ValueError(f"{path}: expected a file ending in {known}, got {suffix!r}")
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing there"
        raise FileNotFoundError(f"{path}: expected a file, found {found}")
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: expected rows of numbers, got an empty file")
    if suffix == ".parquet":
        rows, names = _read_parquet(path, columns)
    elif suffix in (".npy", ".npz"):
        rows, names = _read_numpy(path, key)
        rows, names = _select(path, rows, names, columns)
    else:
        rows, names = _read_text(path, columns, decimal)
    if rows.shape[0] == 0 or rows.shape[1] == 0:
        raise ValueError(f"{path}: expected at least one row and column, got shape {rows.shape}")
    return rows, names


def write_table(path: str | os.PathLike[str], columns: Mapping[str, Any]) -> Path:
    """Write named columns of equal length; the suffix says how.

    .csv, .tsv and .parquet keep names and types, .npy holds one (N, D) array, .npz that array as
    `X` and the names as `columns`. The file appears whole or not at all.

    Parameters
    ----------
    path : path
        Ends in .csv, .tsv (.gz packs them), .npy, .npz or .parquet (needs the extra `parquet`).
    columns : mapping of str to (N,) arrays
    """
    path = check_writable(path)
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    if len({array.shape for array in arrays.values()}) != 1:
        shapes = {name: array.shape for name, array in arrays.items()}
        raise ValueError(f"columns must be vectors of one length, got shapes {shapes}")
    suffix = table_suffix(path)
    with replacing(path) as temporary:
        if suffix in TEXT:
            with write_text(temporary, is_packed(path)) as file:
                writer = csv.writer(file, delimiter="\t" if suffix == ".tsv" else ",")
                writer.writerow(arrays)
                # Python's floats print the shortest digits that read back to the same number.
                writer.writerows(zip(*(array.tolist() for array in arrays.values()), strict=True))
        elif suffix == ".parquet":
            parquet = import_parquet(path)
            import pyarrow

            parquet.write_table(pyarrow.table(arrays), temporary)
        else:
            stacked = np.column_stack(list(arrays.values()))
            with open(temporary, "wb") as raw:
                if suffix == ".npy":
                    np.save(raw, stacked, allow_pickle=False)
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
    if path.suffix.lower() == ".parquet":
        import_parquet(path)
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
        number = _full_disk(error)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def _full_disk(error: OSError) -> int | None:
    """The number of an error that says only that a disk is full; None for others."""
    if error.errno is None:
        # NumPy counts the items that it could write.
        return errno.ENOSPC if re.fullmatch(r"\d+ requested and \d+ written", str(error)) else None
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return None
    said = error.strerror or ""
    is_plain = said == os.strerror(error.errno) or said.startswith("Error writing bytes to file")
    return error.errno if is_plain else None


def _read_numpy(path: Path, key: str | None) -> tuple[np.ndarray, list[str] | None]:
    # Opened here, as NumPy leaves damaged archives open.
    with open(path, "rb") as file:
        check_beginning(path, file)
        try:
            loaded = np.load(file, allow_pickle=False)
            names: list[str] = []
            if isinstance(loaded, np.ndarray):
                array = loaded
            else:
                if key is None:
                    key = loaded.files[0] if len(loaded.files) == 1 else "X"
                if key not in loaded.files:
                    held = ", ".join(loaded.files)
                    raise ValueError(f"expected one array, or one named {key!r}, got {held}")
                array = loaded[key]
                names = loaded["columns"].tolist() if "columns" in loaded.files else []
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            reason = PICKLED if "allow_pickle" in str(error) else str(error)
            raise ValueError(f"{path}: {reason}") from error
    rows = _as_rows(path, array)
    return rows, names if len(names) == rows.shape[1] else None


def check_beginning(path: Path, file: BinaryIO) -> None:
    """Refuse an open file that does not begin as those of NumPy do."""
    found = file.read(_MAGIC_BYTES)
    file.seek(0)
    if not found.startswith((b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06")):
        raise ValueError(
            f"{path}: expected a {path.suffix} file, but it begins with {found!r}: it is damaged "
            "or of another kind"
        )


def _as_rows(path: Path, array: np.ndarray) -> np.ndarray:
    check_rows(str(path), array)
    if array.dtype in (np.float32, np.float64):
        return array
    return array.astype(np.float32 if array.dtype == np.float16 else np.float64)


def _select(
    path: Path,
    rows: np.ndarray,
    names: list[str] | None,
    columns: Sequence[str | int] | None,
) -> tuple[np.ndarray, list[str] | None]:
    if columns is None:
        return rows, names
    numbers = column_numbers(path, columns, names, rows.shape[1])
    chosen = None if names is None else [names[number] for number in numbers]
    return np.ascontiguousarray(rows[:, numbers]), chosen


def column_numbers(
    path: str | Path,
    columns: Sequence[str | int],
    names: list[str] | None,
    n_columns: int,
    parameter: str = "columns",
) -> list[int]:
    """Numbers from 0 of columns that are chosen by name or number.

    `path` and `parameter` are for messages.
    """
    if len(columns) == 0:
        raise ValueError(f"{path}: expected at least one column in {parameter}, got none")
    numbers = []
    for column in columns:
        if names is not None and column in names:
            if names.count(str(column)) > 1:
                raise ValueError(f"{path}: two columns are named {column!r}; choose by number")
            numbers.append(names.index(str(column)))
        elif str(column).isdecimal() and int(column) < n_columns:
            numbers.append(int(column))
        else:
            missing = _no_column(column, names, n_columns)
            where = "" if parameter == "columns" else f" ({parameter})"
            raise ValueError(f"{path}: {missing}{where}")
    return numbers


def _no_column(column: str | int, names: list[str] | None, n_columns: int) -> str:
    """Say that there is no such column, and which columns there are, similar names first."""
    known = f"0 to {n_columns - 1}"
    if names is None:
        return f"no column {column!r}; there are {known}"
    by_letters = {name.lower(): name for name in names}
    alike = difflib.get_close_matches(str(column).lower(), by_letters, 3)
    near = f", but {' and '.join(repr(by_letters[name]) for name in alike)}" if alike else ""
    shown = ", ".join(names[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")
    return f"no column {column!r}{near}; there are {shown} or {known}"


def _read_text(
    path: Path, columns: Sequence[str | int] | None, decimal: str | None
) -> tuple[np.ndarray, list[str] | None]:
    layout = text_layout(path, decimal)
    names = layout.names
    if names is not None and not layout.has_rows:
        raise ValueError(f"{path}: expected rows of numbers, got only a header: {', '.join(names)}")
    numbers = None if columns is None else column_numbers(path, columns, names, layout.n_columns)
    rows = parse_text(path, path, layout, numbers)
    if names is not None and numbers is not None:
        names = [names[number] for number in numbers]
    return rows, names


def import_parquet(path: str | Path) -> Any:
    """Import and return pyarrow.parquet; `path` is for the message if it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            f"{path}: .parquet needs pyarrow: pip install pickmix[parquet]"
        ) from error
    return pyarrow.parquet


def _read_parquet(
    path: Path, columns: Sequence[str | int] | None
) -> tuple[np.ndarray, list[str] | None]:
    parquet = import_parquet(path)
    import pyarrow

    try:
        with parquet.ParquetFile(path) as file:
            chosen, dtype = numeric_fields(path, file.schema_arrow, columns)
            table = file.read(columns=[field.name for field in chosen])
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path}: expected a Parquet file, but {error}") from error
    rows = np.empty((table.num_rows, len(chosen)), dtype=dtype)
    for place, field in enumerate(chosen):
        # A missing value becomes NaN, which the estimators refuse by name.
        rows[:, place] = table.column(field.name).to_numpy()
    return rows, [field.name for field in chosen]


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
            raise ValueError(f"{path}: two columns are named {field.name!r}")
        kind = field.type
        if not (types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)):
            raise ValueError(
                f"{path}: expected numbers in column {field.name!r}, got {kind}; leave "
                "that column out with columns="
            )
    narrow = all(types.is_float32(f.type) or types.is_float16(f.type) for f in chosen)
    return chosen, np.dtype(np.float32 if narrow else np.float64)

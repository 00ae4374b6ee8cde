"""Tables in files: .npy, .npz, .csv (.tsv, .txt) and .parquet, read and written."""

from __future__ import annotations

import contextlib
import csv
import os
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

READABLE = (".npy", ".npz", ".csv", ".tsv", ".txt", ".parquet")
WRITABLE = (".csv", ".npy", ".npz", ".parquet")


def read_table(
    path: str | os.PathLike[str],
    *,
    columns: Sequence[str | int] | None = None,
    key: str | None = None,
) -> tuple[np.ndarray, list[str] | None]:
    """Read rows of numbers.

    Parameters
    ----------
    path : path
        .npy, .npz, .csv, .tsv, .txt (the delimiter is found: tab, semicolon, comma or blanks; a
        header is found too) or .parquet (needs the extra `parquet`).
    columns : sequence of str or int, optional
        Which columns, in which order: names, or numbers from 0.
    key : str, optional
        Which array of an .npz; by default the only one, or `X`.

    Returns
    -------
    rows : (N, D) array
        float32 if the file holds nothing wider, else float64.
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
    suffix = path.suffix.lower()
    if suffix not in READABLE:
        raise ValueError(f"{path}: expected a file ending in {', '.join(READABLE)}, got {suffix!r}")
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
        rows, names = _read_text(path, columns)
    if rows.shape[0] == 0 or rows.shape[1] == 0:
        raise ValueError(f"{path}: expected at least one row and column, got shape {rows.shape}")
    return rows, names


def write_table(path: str | os.PathLike[str], columns: Mapping[str, Any]) -> Path:
    """Write named columns of equal length; the suffix says how.

    .csv and .parquet keep names and types, .npy holds one (N, D) array, .npz that array as `X`
    and the names as `columns`. The file appears whole or not at all.

    Parameters
    ----------
    path : path
        Ends in .csv, .npy, .npz or .parquet (needs the extra `parquet`).
    columns : mapping of str to (N,) arrays
    """
    path = check_writable(path)
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    if len({array.shape for array in arrays.values()}) != 1:
        shapes = {name: array.shape for name, array in arrays.items()}
        raise ValueError(f"columns must be vectors of one length, got shapes {shapes}")
    with replacing(path) as temporary:
        if path.suffix.lower() == ".csv":
            with open(temporary, "w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(arrays)
                # Python's floats print the shortest digits that read back to the same number.
                writer.writerows(zip(*(array.tolist() for array in arrays.values()), strict=True))
        elif path.suffix.lower() == ".parquet":
            parquet = import_parquet(path)
            import pyarrow

            parquet.write_table(pyarrow.table(arrays), temporary)
        else:
            stacked = np.column_stack(list(arrays.values()))
            with open(temporary, "wb") as file:
                if path.suffix.lower() == ".npy":
                    np.save(file, stacked, allow_pickle=False)
                else:
                    np.savez(file, X=stacked, columns=np.array(list(arrays), dtype=np.str_))
    return path


def check_writable(path: str | os.PathLike[str]) -> Path:
    """Return the path of a table to be written, if its suffix is known and its folder exists."""
    path = Path(path)
    if path.suffix.lower() not in WRITABLE:
        raise ValueError(
            f"{path}: expected a file name ending in {', '.join(WRITABLE)}, got {path.suffix!r}"
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: the folder {path.parent} does not exist")
    if path.suffix.lower() == ".parquet":
        import_parquet(path)
    return path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path` that takes its place if the block succeeds."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _read_numpy(path: Path, key: str | None) -> tuple[np.ndarray, list[str] | None]:
    # Opened here, as NumPy leaves damaged archives open.
    with open(path, "rb") as file:
        try:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return _as_rows(loaded), None
            if key is None:
                key = loaded.files[0] if len(loaded.files) == 1 else "X"
            if key not in loaded.files:
                held = ", ".join(loaded.files)
                raise ValueError(f"expected one array, or one named {key!r}, got {held}")
            rows = _as_rows(loaded[key])
            names = loaded["columns"].tolist() if "columns" in loaded.files else []
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path}: {error}") from error
    return rows, names if len(names) == rows.shape[1] else None


def _as_rows(array: np.ndarray) -> np.ndarray:
    if array.ndim != 2:
        raise ValueError(f"expected an array of rows and columns, got shape {array.shape}")
    if array.dtype.kind not in "fiub":
        raise ValueError(f"expected real numbers, got dtype {array.dtype}")
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
    path: str | Path, columns: Sequence[str | int], names: list[str] | None, n_columns: int
) -> list[int]:
    """Numbers from 0 of columns that are chosen by name or number; `path` is for messages."""
    if len(columns) == 0:
        raise ValueError(f"{path}: expected at least one column in columns, got none")
    numbers = []
    for column in columns:
        if names is not None and column in names:
            if names.count(str(column)) > 1:
                raise ValueError(f"{path}: two columns are named {column!r}; choose by number")
            numbers.append(names.index(str(column)))
        elif str(column).isdecimal() and int(column) < n_columns:
            numbers.append(int(column))
        else:
            known = f"0 to {n_columns - 1}"
            if names is not None:
                known = ", ".join(names) + f" or {known}"
            raise ValueError(f"{path}: no column {column!r}; there are {known}")
    return numbers


@dataclass(frozen=True)
class TextLayout:
    """How a text file is written: what is found from its first two rows."""

    delimiter: str | None
    names: list[str] | None
    n_columns: int
    n_skipped: int
    """Lines before the first row of numbers."""
    has_rows: bool


def text_layout(path: Path) -> TextLayout:
    """Find the delimiter, the header and the number of columns of a text file."""
    delimiter, first, second, header_line = _look_at_start(path)
    # A header is a first row whose words stand over numbers, or one of words only.
    words = [not _is_number(field) for field in first]
    over_numbers = second is not None and any(
        word and _is_number(below) for word, below in zip(words, second, strict=False)
    )
    if all(words) or over_numbers:
        return TextLayout(delimiter, first, len(first), header_line, second is not None)
    return TextLayout(delimiter, None, len(first), 0, True)


def parse_text(
    path: Path,
    lines: Path | Iterable[str],
    layout: TextLayout,
    numbers: list[int] | None,
    n_rows: int | None = None,
) -> np.ndarray:
    """Parse rows of numbers, (N, D) float64.

    `lines` is the path again for all rows, or the lines from some row on, without blank ones, of
    which `n_rows` rows are taken.
    """
    try:
        rows: np.ndarray = np.loadtxt(
            lines,
            delimiter=layout.delimiter,
            skiprows=layout.n_skipped if isinstance(lines, Path) else 0,
            usecols=numbers,
            quotechar='"',
            ndmin=2,
            encoding="utf-8-sig",
            max_rows=n_rows,
        )
    except ValueError as error:
        raise ValueError(_explain(path, layout, numbers)) from error
    return rows


def _read_text(
    path: Path, columns: Sequence[str | int] | None
) -> tuple[np.ndarray, list[str] | None]:
    layout = text_layout(path)
    names = layout.names
    if names is not None and not layout.has_rows:
        raise ValueError(f"{path}: expected rows of numbers, got only a header: {', '.join(names)}")
    numbers = None if columns is None else column_numbers(path, columns, names, layout.n_columns)
    rows = parse_text(path, path, layout, numbers)
    if names is not None and numbers is not None:
        names = [names[number] for number in numbers]
    return rows, names


def _fields(line: str, delimiter: str | None) -> list[str]:
    if delimiter is None:
        return line.split()
    return [field.strip() for field in next(csv.reader([line], delimiter=delimiter))]


def _look_at_start(path: Path) -> tuple[str | None, list[str], list[str] | None, int]:
    """Find the delimiter, the first two rows and the number of the first row's line."""
    found: list[list[str]] = []
    delimiter: str | None = None
    first_line = 0
    for number, line in _lines(path):
        if not found:
            delimiter = next((mark for mark in "\t;," if mark in line), None)
            first_line = number
        found.append(_fields(line, delimiter))
        if len(found) == 2:
            break
    if not found:
        raise ValueError(f"{path}: expected rows of numbers, got only blank lines and comments")
    return delimiter, found[0], found[1] if len(found) == 2 else None, first_line


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text) of the lines that hold something."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                text = line.split("#", 1)[0].rstrip("\r\n")
                if text.strip():
                    yield number, text
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected text in UTF-8, but {error}") from error


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _explain(path: Path, layout: TextLayout, numbers: list[int] | None) -> str:
    """Say what is wrong with a text file that NumPy refused: the first bad line and column."""
    names, n_columns = layout.names, layout.n_columns
    lines = _lines(path)
    if names is not None:
        next(lines)
    for line_number, line in lines:
        fields = _fields(line, layout.delimiter)
        if len(fields) != n_columns:
            return f"{path}: expected {n_columns} columns, got {len(fields)} in line {line_number}"
        for number in range(n_columns) if numbers is None else numbers:
            if not _is_number(fields[number]):
                column = number if names is None else repr(names[number])
                return (
                    f"{path}: expected numbers in column {column}, got {fields[number]!r} in line "
                    f"{line_number}; leave that column out with columns="
                )
    return f"{path}: expected rows of numbers"


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

"""Tables in files: .npy, .npz, .csv (.tsv, .txt, also packed) and .parquet, read and written."""

from __future__ import annotations

import contextlib
import csv
import difflib
import errno
import glob
import os
import types
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

import numpy as np

from pickmix.inputs.arrays import check_matrix, check_shape
from pickmix.inputs.errors import FileError, InputError, listed, shown
from pickmix.inputs.text import (
    PACKED,
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
# Bytes of a batch of rows as they are written: small enough for the processor's cache.
BATCH = 2 << 20


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
    """
    path = Path(path)
    known_suffix(path)
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "nothing there"
        raise FileNotFoundError(f"{path}: expected a file, found {kind}")
    check_size(path, path.stat().st_size)
    part = describe_file(path, decimal, key)
    if part.names is not None and part.n_rows == 0:
        problem = f"expected rows of numbers, got only a header: {listed(part.names, str)}"
        raise InputError(problem, path=path)
    chosen = range(part.n_columns) if columns is None else columns
    numbers = column_numbers(path, chosen, part.names, part.n_columns)
    dtype = part.dtype(numbers)
    rows = np.concatenate([np.empty((0, len(numbers)), dtype), *part.read(numbers, dtype)])
    check_shape(str(path), *rows.shape)
    return rows, part.names and [part.names[number] for number in numbers]


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
                write_csv(file, arrays, "\t" if suffix == ".tsv" else ",")
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


def write_csv(
    file: IO[str],
    columns: Mapping[str, np.ndarray],
    delimiter: str,
    end: str = "\r\n",
    header: bool = True,
) -> None:
    """Write columns (N,) to an open text."""
    writer = csv.writer(file, delimiter=delimiter, lineterminator=end)
    if header:
        writer.writerow(columns)
    # Python's floats print the shortest digits that read back to the same number.
    writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))


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
            loaded: Any = np.load(file, allow_pickle=False)
            names: list[str] = []
            if not isinstance(loaded, np.ndarray):
                if key is None:
                    key = loaded.files[0] if len(loaded.files) == 1 else "X"
                if key not in loaded.files:
                    stored = listed(loaded.files, str)
                    raise ValueError(f"expected one array, or one named {key!r}, got {stored}")
                names = loaded["columns"].tolist() if "columns" in loaded.files else []
                loaded = loaded[key]
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            problem = PICKLED if "allow_pickle" in str(error) else str(error)
            raise InputError(problem, path=path) from error
    check_matrix(str(path), loaded)
    rows = loaded.astype(working_dtype(loaded.dtype), copy=False)
    return rows, names if len(names) == rows.shape[1] else None


def check_beginning(path: Path, file: BinaryIO) -> None:
    start = file.read(_MAGIC_BYTES)
    file.seek(0)
    if not start.startswith((b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06")):
        raise InputError(
            f"expected a {path.suffix} file, but it begins with {start!r}: it is damaged or of "
            "another kind",
            path=path,
        )


def known_suffix(path: Path) -> str:
    suffix = table_suffix(path)
    if suffix not in READABLE:
        known = ", ".join((*(text + PACKED for text in TEXT), *READABLE))
        raise InputError(f"expected a file ending in {known}, got {suffix!r}", path=path)
    return suffix


def check_size(path: Path, n_bytes: int) -> None:
    if n_bytes == 0:
        raise InputError("expected rows of numbers, got an empty file", path=path)


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
    if isinstance(columns, range):
        return list(columns)
    if len(columns) == 0:
        raise InputError(f"expected at least one column in {parameter}, got none", path=path)
    numbers = []
    for column in columns:
        if names is not None and column in names:
            if names.count(str(column)) > 1:
                problem = f"two columns are named {shown(column)}; choose by number"
                raise InputError(problem, path=path)
            numbers.append(names.index(str(column)))
        elif str(column).isdecimal() and int(column) < n_columns:
            numbers.append(int(column))
        else:
            missing = _no_column(column, names, n_columns)
            where = "" if parameter == "columns" else f" ({parameter})"
            raise InputError(f"{missing}{where}", path=path, column=column)
    return numbers


def _no_column(column: str | int, names: list[str] | None, n_columns: int) -> str:
    known = f"0 to {n_columns - 1}"
    if names is None:
        return f"no column {shown(column)}; there are {known}"
    by_letters = {name.lower(): name for name in names}
    similar = difflib.get_close_matches(str(column).lower(), by_letters, 3)
    near = f", but {' and '.join(shown(by_letters[name]) for name in similar)}" if similar else ""
    kept = [name[:_LONGEST_NAME] for name in names[:_SHOWN_NAMES]]
    more = ", ..." if len(names) > _SHOWN_NAMES else ""
    return f"no column {shown(column)}{near}; there are {', '.join(kept)}{more} or {known}"


@contextlib.contextmanager
def open_parquet(path: Path, **options: Any) -> Iterator[Any]:
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path, **options) as file:
            yield file
    except (pyarrow.ArrowException, EOFError) as error:
        raise InputError(f"expected a Parquet file, but {error}", path=path) from error
    except OSError as error:
        if error.filename is not None:
            raise
        raise FileError(str(error), path=path) from error


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
            raise InputError(f"two columns are named {shown(field.name)}", path=path)
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


class FilePart(NamedTuple):
    """What is known of a file before its rows are read."""

    n_rows: int | None
    names: list[str] | None
    n_columns: int
    #: From numbers of columns to a dtype that holds them; refuses what is not numbers.
    dtype: Callable[[list[int]], np.dtype[Any]]
    #: From numbers of columns and a dtype to batches of rows.
    read: Callable[[list[int], np.dtype[Any]], Iterable[np.ndarray]]


def describe_file(path: Path, decimal: str | None = None, key: str | None = None) -> FilePart:
    suffix = table_suffix(path)
    if suffix in TEXT:
        layout = text_layout(path, decimal)
        n_rows, double = None if layout.has_rows else 0, np.dtype(np.float64)
        return FilePart(
            n_rows,
            layout.names,
            layout.n_columns,
            lambda _: double,
            lambda numbers, _: number_blocks(path, layout, numbers),
        )
    if suffix == ".parquet":
        return _describe_parquet(path)
    rows, names = _read_numpy(path, key)
    shape, stored = rows.shape, rows.dtype
    # Read once more, as not all files may fit into memory together.
    return FilePart(
        shape[0],
        names,
        shape[1],
        lambda _: stored,
        lambda numbers, _: [_read_numpy(path, key)[0][:, numbers]],
    )


def _describe_parquet(path: Path) -> FilePart:
    with open_parquet(path) as file:
        schema, n_rows = file.schema_arrow, file.metadata.num_rows

    def read(numbers: list[int], dtype: np.dtype[Any]) -> Iterator[np.ndarray]:
        names = [schema.names[number] for number in numbers]
        n_read = 0
        # Otherwise pyarrow reads all that a group of rows holds at once, and keeps it to the end.
        with open_parquet(path, pre_buffer=False, buffer_size=1 << 20) as file:
            # Not `Dataset.to_batches`, which keeps what was read, too (arrow#39808).
            for batch in file.iter_batches(batch_size(len(names), dtype), columns=names):
                n_read += batch.num_rows
                yield arrow_rows(batch, names, dtype)
        if n_read != n_rows:
            raise FileError(f"expected {n_rows} rows, got {n_read}", path=path)

    def find_dtype(numbers: list[int]) -> np.dtype[Any]:
        return numeric_fields(path, schema, numbers)[1]

    return FilePart(n_rows, schema.names, len(schema), find_dtype, read)


def batch_size(n_columns: int, dtype: np.dtype[Any]) -> int:
    return max(1, BATCH // (dtype.itemsize * max(1, n_columns)))


def find_files(name: str) -> list[Path]:
    path = Path(name)
    if path.exists():
        return _files_of_folder(path) if path.is_dir() else [path]
    if not glob.has_magic(name):
        raise FileNotFoundError(f"{name}: expected a file or a folder, found nothing there")
    files = []
    for match in map(Path, sorted(glob.glob(name, recursive=True))):
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

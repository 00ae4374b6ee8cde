"""Rows that come in batches, from first to last: files, Arrow data, slices and functions.

Before they can be read in ranges they are converted once, into a .npy file with a description in
JSON behind the numbers. In a folder that the user chose it is
`rows-<columns and paths>-<sizes and times>.npy`, and serves again while its description is right.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pickmix.inputs.arrays import check_matrix, check_numbers, check_shape, without_mask
from pickmix.inputs.errors import InputError, NoRoomError
from pickmix.inputs.files import (
    FilePart,
    arrow_rows,
    batch_size,
    cast_into,
    check_size,
    column_numbers,
    describe_file,
    numeric_fields,
    open_parquet,
    working_dtype,
)
from pickmix.inputs.sources import ArrayFile, RowSource, Stamp, open_npy, short_labels

# Changes with what is in the files, so that old ones are not taken for new ones.
FORMAT = 3
_HEADER_BYTES = 128
Columns = Sequence[str | int] | None


@dataclasses.dataclass
class Reader:
    """Rows in batches. What is None is known once the first batch was read."""

    kind: str  # for fingerprints
    name: str  # for messages
    #: Makes pairs of the number of a part from 0 and an array, data frame or Arrow table.
    make: Callable[[], Iterable[tuple[int, Any]]]
    columns: Columns = None  # to choose from each batch
    n_rows: int | None = None
    n_columns: int | None = None
    dtype: np.dtype[Any] | None = None
    names: list[str] | None = None
    numbers: list[int] | None = None  # of the columns in the data
    labels: list[str] | None = None  # of the parts, for messages; None: batches are counted
    stamps: Sequence[tuple[Path, Stamp]] = ()  # of the files that rows come from
    decimal: str | None = None

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (number of the part from 0, rows): 2-D arrays of real numbers."""
        n_read, expected = 0, ""
        for part, batch in self.make():
            label = f"batch {part + 1} of {self.name}"
            if self.labels is not None:
                label = f"{self.name}, rows from {n_read + 1}"
            rows, names, numbers = batch_rows(label, batch, self.columns)
            if rows.shape[0] > 0 and not self.stamps:
                got = f"{rows.shape[1]} columns" if names is None else "columns " + ", ".join(names)
                if not expected:
                    expected = got
                    self.names, self.n_columns, self.numbers = names, rows.shape[1], numbers
                if got != expected:
                    raise InputError(f"expected {expected} as before, got {got}", path=label)
            n_read += rows.shape[0]
            yield part, rows
            # Not kept while the next one is made.
            del batch, rows
        if not self.stamps and self.n_rows is not None and n_read != self.n_rows:
            raise InputError(f"expected {self.n_rows} rows, got {n_read}", path=self.name)


def batch_rows(
    label: str, batch: Any, columns: Columns
) -> tuple[np.ndarray, list[str] | None, list[int]]:
    """Return rows of an array, a data frame or Arrow data, and names and numbers of columns."""
    try:
        if is_frame(batch):
            import narwhals.stable.v2 as nw

            n_columns = len(batch.columns)
            batch = nw.from_native(batch, eager_only=True).to_arrow()
            # Behind the columns pyarrow keeps the index of pandas.
            batch = batch.select(range(n_columns))
        if is_arrow(batch, "Table", "RecordBatch"):
            fields, dtype = numeric_fields(label, batch.schema, columns)
            names = [field.name for field in fields]
            numbers = [batch.schema.names.index(name) for name in names]
            return arrow_rows(batch, names, dtype), names, numbers
        rows = np.asarray(without_mask(batch))
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"expected rows of numbers, but {error}", path=label) from error
    if rows.ndim == 2 and rows.shape[0] == 0:
        return rows, None, []
    if rows.ndim != 2:
        check_matrix(label, rows)
    check_numbers(label, rows.dtype)
    if columns is None:
        return rows, None, list(range(rows.shape[1]))
    numbers = column_numbers(label, columns, None, rows.shape[1])
    return rows[:, numbers], None, numbers


def is_arrow(data: object, *kinds: str) -> bool:
    """Whether data is one of pyarrow's objects of these names, without importing pyarrow."""
    return any(
        base.__module__.split(".")[0] == "pyarrow" and base.__name__ in kinds
        for base in type(data).__mro__
    )


def is_frame(data: object) -> bool:
    # In this order: a LazyFrame has columns, but warns when they are asked for.
    is_table = hasattr(data, "to_numpy") and hasattr(data, "columns")
    return is_table and not is_arrow(data, "Table", "RecordBatch")


# Readers


def file_reader(
    kind: str,  # .parquet, .npz, or .csv for all texts
    name: str,
    paths: Sequence[Path],
    columns: Columns = None,
    decimal: str | None = None,
) -> Reader:
    """Rows of files of one kind, one after the other; the first with rows defines the columns."""

    def make() -> Iterator[tuple[int, np.ndarray]]:
        for place, part, numbers in parts:
            for rows in part.read(numbers, dtype):
                yield place, rows

    reader = Reader(kind, name, make, n_rows=0, decimal=decimal)
    reader.labels, reader.stamps = short_labels(paths), [(path, _stamp(path)) for path in paths]
    parts: list[tuple[int, FilePart, list[int]]] = []
    dtypes, first = [], paths[0]
    for place, path in enumerate(paths):
        part = describe_file(path, decimal)
        if reader.n_rows is not None:
            reader.n_rows = None if part.n_rows is None else reader.n_rows + part.n_rows
        # Often columns of a file without rows have no types either.
        if part.n_rows == 0:
            continue
        numbers = _choose(path, part, columns, reader, first)
        dtypes.append(part.dtype(numbers))
        parts.append((place, part, numbers))
        if reader.n_columns is None:
            first, reader.numbers, reader.n_columns = path, numbers, len(numbers)
            reader.names = part.names and [part.names[number] for number in numbers]
    dtype = reader.dtype = working_dtype(*dtypes)
    return reader


def _choose(path: Path, part: FilePart, columns: Columns, reader: Reader, first: Path) -> list[int]:
    """Numbers of the columns of a file that are chosen, or that the first file has."""
    chosen: Sequence[str | int] = range(part.n_columns) if columns is None else columns
    if reader.n_columns is not None and (columns is None or reader.names is not None):
        names, is_equally_wide = reader.names or [], part.n_columns == reader.n_columns
        if is_equally_wide and part.names == reader.names:
            chosen = range(part.n_columns)
        elif names and set(names) <= set(part.names or ()) and (is_equally_wide or columns):
            # In another order they are the same columns.
            chosen = names
        else:
            expected, got = (
                f"{table.n_columns} without names"
                if table.names is None
                else ", ".join(table.names)
                for table in (reader, part)
            )
            problem = f"expected columns {expected} as in {first.name}, got {got}"
            raise InputError(problem, path=path)
    return column_numbers(path, chosen, part.names, part.n_columns)


def _stamp(path: Path) -> Stamp:
    # Opened, so that what may not be read is refused at once and by name.
    with open(path, "rb") as file:
        stamp = Stamp.of(os.fstat(file.fileno()))
    check_size(path, stamp.size)
    return stamp


def function_reader(function: Callable[[], Any], columns: Columns) -> Reader:
    name = getattr(function, "__qualname__", None) or type(function).__name__
    name = f"{name.rsplit('.', 1)[-1]}()"

    def make() -> Iterable[tuple[int, Any]]:
        batches = function()
        got = "" if isinstance(batches, Iterable) else type(batches).__name__
        if isinstance(batches, np.ndarray) or is_frame(batches) or is_arrow(batches, "Table"):
            got = "one table"
        if got:
            raise TypeError(f"{name}: expected an iterator of batches, got {got}")
        return enumerate(batches)

    return Reader("batches", name, make, columns)


def sequence_reader(sequence: Any, columns: Columns) -> Reader:
    n_rows, name = len(sequence), type(sequence).__name__

    def make() -> Iterator[tuple[int, Any]]:
        n_batch = getattr(sequence, "batch_size", None)
        if not isinstance(n_batch, int) or n_batch < 1:
            width = np.shape(sequence[0:1])[-1] if n_rows else 1
            n_batch = batch_size(width, np.dtype(np.float64))
        for start in range(0, n_rows, n_batch):
            stop = min(start + n_batch, n_rows)
            batch = sequence[start:stop]
            if len(batch) != stop - start:
                problem = f"expected {stop - start} rows in [{start}:{stop}], got {len(batch)}"
                raise InputError(problem, path=name)
            yield 0, batch

    return Reader("sequence", name, make, columns, n_rows, labels=[name])


def arrow_reader(data: Any, columns: Columns) -> Reader:
    """Rows of a pyarrow.Table or Dataset; of the files of one, if they are local Parquet files."""
    is_table = is_arrow(data, "Table")
    name = "the Arrow table" if is_table else "the Arrow dataset"
    fields, dtype = numeric_fields(name, data.schema, columns)
    names = [field.name for field in fields]
    n_rows = data.num_rows if is_table else data.count_rows()
    by_file = None if is_table else _local_parquet(data, names)
    # Fewer rows: the dataset has a filter, which only its own scanner knows.
    if by_file is not None and by_file.n_rows == n_rows:
        return by_file
    n_batch = batch_size(len(names), dtype)

    def make() -> Iterator[tuple[int, Any]]:
        if is_table:
            batches = data.select(names).to_batches(n_batch)
        else:
            options = {"batch_readahead": 1, "fragment_readahead": 1}
            batches = data.to_batches(columns=names, batch_size=n_batch, **options)
        return ((0, batch) for batch in batches)

    return Reader("arrow", name, make, names, n_rows, len(names), dtype, labels=[name])


def _local_parquet(dataset: Any, names: list[str]) -> Reader | None:
    if not is_arrow(dataset, "FileSystemDataset"):
        return None
    is_local = is_arrow(dataset.filesystem, "LocalFileSystem")
    paths = [Path(path) for path in dataset.files]
    if not is_local or not paths or not is_arrow(dataset.format, "ParquetFileFormat"):
        return None
    for path in paths:
        with open_parquet(path) as file:
            # Columns may also come from the names of folders.
            if file.metadata.num_rows > 0 and not set(names) <= set(file.schema_arrow.names):
                return None
    name = str(paths[0]) if len(paths) == 1 else f"{paths[0].parent} ({len(paths)} files)"
    return file_reader(".parquet", name, paths, names)


# Conversion


def convert(reader: Reader, cache: Path | None, dtype: np.dtype[Any] | None) -> RowSource:
    """Convert rows into a .npy file, unless an old one in the folder `cache` serves.

    The dtype is float32 by default if the rows hold nothing wider, else float64.
    """
    if reader.n_rows == 0:
        raise InputError("expected rows, got none", path=reader.name)
    files = [stamp.describe(path) for path, stamp in reader.stamps]
    key: dict[str, Any] = {"kind": reader.kind}
    key |= {"files": files, "decimal": reader.decimal} if files else {}
    key |= {
        "columns": reader.numbers if reader.names is None else reader.names,
        "dtype": str(reader.dtype if dtype is None else dtype),
        "format": FORMAT,
    }
    kept = None
    # Rows that come from no files cannot be recognised.
    if cache is not None and files:
        identity = _digest(key | {"files": [file["path"] for file in files]})
        kept = cache / f"rows-{identity}-{_digest(files)}.npy"
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            source, description = _open_converted(reader.name, kept)
            if description["key"] == json.loads(json.dumps(key)):
                return source
    with _folder_for(reader, cache, dtype) as folder:
        path = folder / "rows.npy"
        _write(reader, path, dtype, key)
        if kept is None:
            source, _ = _open_converted(reader.name, path)
            # Views of the source share the file.
            weakref.finalize(source._arrays[0], _remove_folder, folder, os.getpid())
            return source
        os.replace(path, kept)
        folder.rmdir()
    for outdated in kept.parent.glob(f"{kept.stem.rsplit('-', 1)[0]}-*"):
        if outdated != kept:
            outdated.unlink(missing_ok=True)
    return _open_converted(reader.name, kept)[0]


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _open_converted(name: str, path: Path) -> tuple[RowSource, dict[str, Any]]:
    # Without a stamp: another process may replace what is kept, by the same rows.
    file: ArrayFile = dataclasses.replace(open_npy(path), stamp=None)
    with open(path, "rb") as raw:
        raw.seek(file.offset + file.shape[0] * file.shape[1] * file.dtype.itemsize)
        description = json.loads(raw.read())
    parts = description["starts"], description["labels"]
    key, names, numbers = (description[field] for field in ("key", "names", "numbers"))
    return RowSource(name, [file], parts, key, names, numbers), description


def _remove_folder(path: Path, process: int) -> None:
    # A forked child has copies of its parent's objects, but not of their files.
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)


def _write(reader: Reader, path: Path, dtype: np.dtype[Any] | None, key: dict[str, Any]) -> None:
    """Write rows to a .npy file, and behind them what they are."""
    starts: list[int] = []
    n_rows = width = 0
    fixed = reader.dtype if dtype is None else dtype
    with open(path, "wb") as file:
        _check_room(reader, path.parent, fixed)
        file.seek(_HEADER_BYTES)
        for part, rows in reader:
            starts.extend([n_rows] * (part + 1 - len(starts)))
            if rows.shape[0] == 0:
                continue
            if fixed is None:
                fixed = reader.dtype = working_dtype(rows.dtype)
                _check_room(reader, path.parent, fixed)
            if dtype is None and fixed != np.promote_types(fixed, working_dtype(rows.dtype)):
                raise InputError(
                    f"rows were float32 up to row {n_rows} and are {rows.dtype} from there on; "
                    "choose with dtype=",
                    path=reader.name,
                )
            width = rows.shape[1]
            n_rows += rows.shape[0]
            check_shape(reader.name, n_rows, width)
            write_rows(file, rows, fixed)
        check_shape(reader.name, n_rows, width)
        for original, stamp in reader.stamps:
            stamp.check(original, original.stat())
        described = {"names": reader.names, "numbers": reader.numbers, "labels": reader.labels}
        file.write(json.dumps({"key": key, "starts": starts} | described).encode())
        assert fixed is not None
        # The number of rows is known only now.
        file.seek(0)
        header = {"descr": fixed.str, "fortran_order": False, "shape": (n_rows, width)}
        np.lib.format.write_array_header_1_0(file, header)
        assert file.tell() == _HEADER_BYTES
        file.flush()
        os.fsync(file.fileno())


def write_rows(file: Any, rows: np.ndarray, dtype: np.dtype[Any]) -> None:
    if rows.dtype != dtype or not rows.flags.c_contiguous:
        stored, rows = rows, np.empty(rows.shape, dtype=dtype)
        cast_into(rows, stored)
    file.write(rows.data)


@contextlib.contextmanager
def _folder_for(reader: Reader, cache: Path | None, dtype: np.dtype[Any] | None) -> Iterator[Path]:
    """Make a temporary folder; if the block fails, remove it and explain a lack of room."""
    parent = Path(tempfile.gettempdir()) if cache is None else cache
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="pickmix-rows-", dir=parent))
    try:
        yield folder
    except BaseException as error:
        free = shutil.disk_usage(parent).free
        shutil.rmtree(folder, ignore_errors=True)
        if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        needed = _needed(reader, reader.dtype if dtype is None else dtype)
        raise NoRoomError(
            f"not enough room for the converted rows in {parent}: {_size(free)} are free, "
            f"{_size(needed) if needed else 'more than that'} needed",
            path=reader.name,
            remedy="choose another folder with {cache}",
        ) from error


def _needed(reader: Reader, dtype: np.dtype[Any] | None) -> int:
    """Bytes of the file; 0 if that is not known yet."""
    if reader.n_rows is None or reader.n_columns is None or dtype is None:
        return 0
    return _HEADER_BYTES + reader.n_rows * reader.n_columns * dtype.itemsize


def _check_room(reader: Reader, folder: Path, dtype: np.dtype[Any] | None) -> None:
    if shutil.disk_usage(folder).free < _needed(reader, dtype):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _size(n_bytes: int) -> str:
    units = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    named = (f"{n_bytes / unit:.1f} {name}" for unit, name in units if n_bytes >= unit)
    return next(named, f"{n_bytes} bytes")

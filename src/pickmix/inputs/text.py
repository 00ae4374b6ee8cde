"""Tables in text files: .csv, .tsv and .txt, plain or packed by gzip.

The delimiter, the header and the decimal mark are found from the first rows; pyarrow splits and
parses the rest. Missing values (empty cells, NA, nan, ...) become NaN or gaps.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import itertools
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from pickmix.inputs.columns import TypedColumn, TypedTable, from_codes, make_table, whole_array
from pickmix.inputs.errors import InputError, listed

TEXT = (".csv", ".tsv", ".txt")
PACKED = ".gz"
#: Cells that mean: nothing is known.
MISSING_CELLS = frozenset(
    ["", "NA", "N/A", "n/a", "<NA>", "NaN", "nan", "NAN", "-nan", "null", "NULL", "None", "NaT"]
)
# Rows that are looked at to find the layout, and bytes that are parsed at a time.
_START, _BLOCK = 200, 1 << 25
_DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+(?:[eE][-+]?\d+)?")
_QUOTED = re.compile(r'"[^"]*"')
_OPEN_QUOTES = re.compile(r'(?:^|[\t;,|])\s*"')
_HEADER_LINES = 20  # Lines of a header at most, beside the first.
_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")
_COMMENT = re.compile(r"\s#")
_BOOLEANS = {"true": True, "True": True, "TRUE": True}
_BOOLEANS |= {"false": False, "False": False, "FALSE": False}
_INTEGER = r"^[+-]?\p{Nd}{1,300}$"
# A number would lose the zeros of a zip code.
_LEADING_ZERO = r"^[+-]?0\p{Nd}"


def table_suffix(path: str | os.PathLike[str]) -> str:
    """Return the suffix that says how a table is written, in lower case, without that of gzip."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix != PACKED:
        return suffix
    inner = Path(path.stem).suffix.lower()
    return inner if inner in TEXT else inner + suffix


def is_packed(path: str | os.PathLike[str]) -> bool:
    return Path(path).suffix.lower() == PACKED and table_suffix(path) in TEXT


@contextlib.contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """Open a text in UTF-8, packed by gzip or not; what is wrong with it is an InputError."""
    opener: Callable[..., Any] = open
    if is_packed(path):
        with open(path, "rb") as start:
            if start.read(2) != b"\x1f\x8b":
                raise InputError(
                    f"expected a file packed by gzip, got another kind; if it is plain text, name "
                    f"it {path.stem}",
                    path=path,
                )
        opener = gzip.open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            yield file
    except UnicodeDecodeError as error:
        convert = f"iconv -f latin1 -t utf-8 {path.name} > utf8-{path.name}"
        raise InputError(
            f"expected text in UTF-8, got the byte {error.object[error.start]:#04x}; if it is in "
            f"Latin-1, convert it: {convert}",
            path=path,
        ) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"the file is damaged or cut short: {error}", path=path) from error


@contextlib.contextmanager
def write_text(path: Path, packed: bool) -> Iterator[IO[str]]:
    with contextlib.ExitStack() as stack:
        raw: Any = stack.enter_context(open(path, "wb"))
        if packed:
            # Without name and time, so that the same rows give the same bytes. Level 6 is gzip's
            # own; Python's 9 takes three times as long for a hundredth of the bytes.
            packing = gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0)
            raw = stack.enter_context(packing)
        yield stack.enter_context(io.TextIOWrapper(raw, encoding="utf-8", newline=""))


# Layout


@dataclass(frozen=True)
class TextLayout:
    """How a text file is written: what is found from its first rows."""

    #: None stands for blanks.
    delimiter: str | None
    names: list[str] | None
    n_columns: int
    #: Lines before the first row.
    n_skipped: int
    has_rows: bool
    decimal: str = "."
    #: Columns whose first rows hold neither numbers nor gaps.
    words: frozenset[int] = frozenset()


def text_layout(path: Path, decimal: str | None = None) -> TextLayout:
    """Find the delimiter, the header, the number of columns and the decimal mark of a text file.

    A comma is taken for the decimal mark if semicolons or tabs are between the cells, some cells
    are numbers with a comma and none is one with a point. `decimal` says it instead.
    """
    start = list(itertools.islice(_text_lines(path), _START))
    if not start:
        raise InputError("expected rows of numbers, got only blank lines and comments", path=path)
    lines = [line for _, line in start]
    delimiters = _find_delimiters(lines[0], "\t;|" if decimal == "," else "\t;,|")
    # Marks within words are not in all rows, or not as often.
    split = {mark: [_fields(line, mark) for line in lines] for mark in delimiters}
    alike = [mark for mark, rows in split.items() if len(set(map(len, rows))) == 1]
    delimiter = (alike or delimiters)[0]
    rows = split[delimiter]
    if delimiter is None and all(len(row) == 1 for row in rows[1:]) and len(rows) > 1:
        # A name with blanks over a single column.
        rows[0] = [lines[0].strip().strip('"')]
    if decimal is None:
        decimal = "," if delimiter in ("\t", ";") and _has_decimal_commas(rows) else "."
    first = rows[0]
    # A header is a first row whose words stand over numbers, or one of words only.
    number = [is_number(field, decimal) for field in first]
    # NA is a name (of sodium, say) unless numbers stand beside it.
    no_word = is_missing if any(number) else lambda field: not field
    words = [not (is_one or no_word(field)) for is_one, field in zip(number, first, strict=True)]
    over_numbers = len(rows) > 1 and any(
        word and is_number(below, decimal) for word, below in zip(words, rows[1], strict=False)
    )
    has_header = over_numbers or all(
        word for word, field in zip(words, first, strict=True) if field
    )
    below = rows[1:] if has_header else rows
    with_words = frozenset(
        column
        for row in below
        for column, cell in enumerate(row)
        if not _are_numbers([_COMMENT.split(cell)[0]], decimal)
    )
    names, n_skipped = (first, start[0][0]) if has_header else (None, 0)
    return TextLayout(delimiter, names, len(first), n_skipped, bool(below), decimal, with_words)


def _text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that hold cells, each with its number; the first may be a header of several.

    A name in quotes may hold line breaks. The number is then that of the last line.
    """
    with open_text(path) as file:
        lines = enumerate(file, start=1)
        header: list[tuple[int, str]] = []
        for number, line in lines:
            if _holds_cells(line):
                header = _header_lines(number, line, lines)
                break
        yield from (
            (number, line.rstrip("\r\n"))
            for number, line in itertools.chain(header, lines)
            if _holds_cells(line)
        )


def _holds_cells(line: str) -> bool:
    text = line.split("#", 1)[0].rstrip("\r\n")
    # Tabs alone are a row of empty cells.
    return bool(text.strip(" ") if "\t" in text else text.strip())


def _header_lines(
    number: int, line: str, lines: Iterator[tuple[int, str]]
) -> list[tuple[int, str]]:
    """Return the first line, with those in which its names go on, and lines that were read."""
    if not _OPEN_QUOTES.search(_QUOTED.sub("", line)):
        return [(number, line)]
    following = list(itertools.islice(lines, _HEADER_LINES))
    ends = (i for i, (_, more) in enumerate(following, start=1) if more.count('"') % 2)
    n_joined = next(ends, 0)
    joined = line + "".join(more for _, more in following[:n_joined])
    return [(number + n_joined, joined), *following[n_joined:]]


def _find_delimiters(line: str, marks: str) -> list[str | None]:
    """Return marks that may part the cells of a line, the likeliest first."""
    # A mark within quotes is part of a name, one within a comment only what a # may begin.
    outside = _QUOTED.sub("", line)
    kept = outside.split("#", 1)[0]
    for text in (kept, outside):
        present: list[str | None] = [mark for mark in marks if mark in text]
        if present or all(map(is_number, kept.split())):
            break
    return present or [None]


def _fields(line: str, delimiter: str | None) -> list[str]:
    """Split a line. After numbers, # begins a comment; among words it is a letter."""
    kept = _COMMENT.split(line, maxsplit=1)[0]
    fields = split_cells(kept, delimiter)
    # The decimal mark may not be known yet.
    is_comment = kept != line and any(_are_numbers(fields, mark) for mark in ".,")
    return fields if is_comment else split_cells(line, delimiter)


def _are_numbers(fields: list[str], decimal: str) -> bool:
    return all(is_number(field, decimal) or is_missing(field) for field in fields)


def is_number(field: str, decimal: str = ".") -> bool:
    if decimal == ",":
        if "." in field:
            return False
        field = field.replace(",", ".", 1)
    try:
        float(field)
    except ValueError:
        return False
    # Python takes underscores between digits for nothing; tables do not.
    return "_" not in field


def is_missing(field: str) -> bool:
    return field.strip() in MISSING_CELLS


def with_points(text: str) -> str:
    """Turn decimal commas into points; what had points is no number any more."""
    return text.translate({ord(","): ".", ord("."): "\u00b7"})


def _has_decimal_commas(rows: list[list[str]]) -> bool:
    cells = [cell for row in rows for cell in row]
    points = any("." in cell and is_number(cell) for cell in cells)
    return not points and any(_DECIMAL_COMMA.fullmatch(cell) for cell in cells)


# Cells


def _dialect(delimiter: str | None) -> dict[str, Any]:
    # Cells may be longer than Python's csv takes by default.
    csv.field_size_limit(max(csv.field_size_limit(), 2**31 - 1))
    return {"delimiter": delimiter or " ", "skipinitialspace": True}


def split_cells(line: str, delimiter: str | None) -> list[str]:
    """Split a line into what its cells mean: without blanks and quotes around them."""
    if '"' not in line:
        return [cell.strip() for cell in line.split(delimiter)]
    return [cell.strip() for cell in next(csv.reader([line], **_dialect(delimiter)), [""])]


def raw_cells(record: str, delimiter: str | None) -> list[str]:
    """Split a row into its cells as they are written, with blanks and quotes."""
    closed = r'"(?:[^"]|"")*+"(?!")'
    if delimiter is None:
        return re.findall(rf"{closed}|\S+", record)
    mark = re.escape(delimiter)
    return re.findall(rf"(?:^|{mark})((?:[ ]*{closed})?[^{mark}]*)", record)


def quoted(text: str, delimiter: str | None) -> str:
    """Write a value as a cell, in quotes only where it needs them."""
    special = {delimiter or " ", '"', "\n", "\r"}
    if text.strip() != text or any(mark in text for mark in special):
        return '"' + text.replace('"', '""') + '"'
    return text


def as_text(value: Any, decimal: str = ".") -> str:
    if isinstance(value, np.datetime64):
        return str(value)
    value = value.item() if isinstance(value, np.generic) else value
    # The shortest digits that read back to the same number.
    return repr(value).replace(".", decimal) if isinstance(value, float) else str(value)


def read_cells(path: Path, decimal: str | None = None) -> tuple[Any, TextLayout]:
    """Return what the cells of a text mean, as a pyarrow Table, and its layout.

    Rows of another length are refused by line.
    """
    import pyarrow as pa

    if path.stat().st_size == 0:
        raise InputError("expected rows, got an empty file", path=path)
    layout = text_layout(path, decimal)
    tables = list(_tables(path, layout, range(layout.n_columns)))
    if not tables:
        names = listed(layout.names or [], str)
        raise InputError(f"expected rows, got only a header: {names}", path=path)
    return pa.concat_tables(tables), layout


def written_rows(path: Path, layout: TextLayout) -> Iterator[str]:
    """Yield the rows of a text as they are written, without ends of lines."""
    with open_text(path) as file:
        lines = itertools.islice(file, layout.n_skipped, None)
        for _, record, _ in _records(path, layout, lines):
            yield record.rstrip("\r\n")


def column_cells(path: Path, layout: TextLayout, column: int) -> Iterator[str]:
    """Yield what the cells of one column mean, row by row."""
    for table in _tables(path, layout, [column]):
        yield from (cell.strip() for cell in table.column(0).to_pylist())


def number_blocks(path: Path, layout: TextLayout, numbers: list[int]) -> Iterator[np.ndarray]:
    """Yield rows of numbers, (N, D) float64, block by block; a missing value becomes NaN."""
    for table in _tables(path, layout, numbers, floats=True):
        try:
            columns = [_floats(column, layout.decimal) for column in table.columns]
        except ValueError as error:
            raise _wrong_cell(path, layout, numbers) from error
        yield np.column_stack(columns)


def _blocks(path: Path, layout: TextLayout) -> Iterator[tuple[int, str]]:
    """Yield texts of whole rows, each with the number of its first line."""
    with open_text(path) as file:
        for _ in range(layout.n_skipped):
            file.readline()
        first, block = layout.n_skipped + 1, file.read(_BLOCK)
        while block:
            more = file.read(_BLOCK)
            end = max(block.rfind("\n"), block.rfind("\r")) + 1 if more else len(block)
            # A cell in quotes may go on in the next line.
            if more and (end == 0 or block.count('"', 0, end) % 2):
                block += more
                continue
            if block[:end].strip("\r\n"):
                yield first, block[:end]
            first += block.count("\n", 0, end) or block.count("\r", 0, end)
            block = block[end:] + more


def _tables(
    path: Path, layout: TextLayout, columns: Sequence[int], floats: bool = False
) -> Iterator[Any]:
    """Yield pyarrow Tables of cells as texts; with `floats` as numbers where that is quick."""
    import pyarrow as pa

    for first, block in _blocks(path, layout):
        if "#" not in block and not _has_odd_quotes(block, layout):
            try:
                yield _parse(block, layout, columns, floats)
                continue
            except pa.ArrowInvalid:
                # Blank lines, or words for missing values with blanks around them; or a mistake.
                pass
        rows = [cells for *_, cells in _records(path, layout, _LINE.findall(block), first)]
        if rows:
            arrays = [
                pa.array([row[column] for row in rows], pa.large_string()) for column in columns
            ]
            yield pa.table(arrays, names=[str(place) for place in range(len(arrays))])


def _has_odd_quotes(block: str, layout: TextLayout) -> bool:
    """Whether quotes may be others than pyarrow knows: open, after blanks, or between blanks."""
    if '"' not in block:
        return False
    odd = layout.delimiter is None or block.count('"') % 2
    return bool(odd or re.search(r'[^\w"] +"', block, re.ASCII))


def _parse(block: str, layout: TextLayout, columns: Sequence[int], floats: bool) -> Any:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    if layout.delimiter is None:
        block = "\n".join(["\t".join(line.split()) for line in _LINE.findall(block)])
    names = [str(number) for number in range(layout.n_columns)]
    chosen = [names[number] for number in columns]
    mark, quotes, content = layout.delimiter or "\t", '"' in block, block.encode()
    # One block, so that a row may be of any length.
    size = min(len(content) + 1, 2**31 - 1)
    table = arrow_csv.read_csv(
        pa.BufferReader(content),
        arrow_csv.ReadOptions(column_names=names, block_size=size),
        arrow_csv.ParseOptions(
            delimiter=mark, quote_char='"' if quotes else False, newlines_in_values=quotes
        ),
        arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.float64() if floats else pa.large_string()),
            null_values=sorted(MISSING_CELLS),
            decimal_point=layout.decimal,
            include_columns=list(dict.fromkeys(chosen)),
        ),
    )
    return table.select(chosen)


def _records(
    path: Path, layout: TextLayout, lines: Iterable[str], first: int = 1
) -> Iterator[tuple[int, str, list[str]]]:
    """Yield (number of its first line, text, cells) of each row; `first` numbers the first line.

    This is what Python's csv makes of them, without comments. Rows of another length are refused.
    """
    record: list[str] = []
    last, blank = first - 1, " \r\n" if layout.delimiter == "\t" else None

    def lines_of_rows() -> Iterator[str]:
        nonlocal last
        for line in lines:
            last += 1
            if not record:
                line = _without_comment(line, layout)
                if not line.strip(blank):
                    continue
            record.append(line)
            # Blanks at the end would be one more cell of those between blanks.
            yield f"{line.strip()}\n" if layout.delimiter is None else line

    for cells in csv.reader(lines_of_rows(), **_dialect(layout.delimiter)):
        text, start = "".join(record), last - len(record) + 1
        record.clear()
        if cells and cells[-1].endswith(("\n", "\r")) and not text.rstrip().endswith('"'):
            raise InputError(f"a quotation mark in line {start} has no end", path=path)
        if len(cells) != layout.n_columns:
            expected = f"{layout.n_columns} columns"
            raise InputError(path=path, line=start, expected=expected, value=len(cells))
        yield start, text, cells


def _without_comment(line: str, layout: TextLayout) -> str:
    """Return a line without what follows # at its beginning, or after a whole row of numbers."""
    if "#" not in line:
        return line
    n_columns = layout.n_columns
    if line.lstrip().startswith("#"):
        # A colour may be #ff0000, but a comment has as many cells as a row by chance only.
        is_row = 0 in layout.words and len(split_cells(line, layout.delimiter)) == n_columns
        return line if is_row else ""
    for match in _COMMENT.finditer(line) if n_columns - 1 not in layout.words else ():
        cells = split_cells(line[: match.start()], layout.delimiter)
        if len(cells) == n_columns and cells[-1] and _are_numbers(cells[-1:], layout.decimal):
            return line[: match.start()]
    return line


def _with_nulls(cells: Any) -> Any:
    """Return Arrow texts without blanks around, and null for words that mean a missing value."""
    import pyarrow as pa
    from pyarrow import compute as pc

    cells = pc.utf8_trim_whitespace(cells)
    return pc.if_else(pc.is_in(cells, pa.array(sorted(MISSING_CELLS), cells.type)), None, cells)


def _floats(cells: Any, decimal: str) -> np.ndarray:
    """Return cells as numbers, NaN where one is missing; raise ValueError for other words."""
    import pyarrow as pa
    from pyarrow import compute as pc

    if not pa.types.is_floating(cells.type):
        cells = _with_nulls(cells)
        if decimal == ",":
            cells = pc.replace_substring(pc.replace_substring(cells, ".", "\u00b7"), ",", ".")
        try:
            cells = cells.cast(pa.float64())
        except pa.ArrowInvalid:
            # Python reads some numbers that Arrow does not, such as +1.
            texts = ["nan" if cell is None else cell for cell in cells.to_pylist()]
            if any("_" in text for text in texts):
                raise
            return np.array(list(map(float, texts)))
    return np.asarray(cells.to_numpy(zero_copy_only=False))


def _wrong_cell(path: Path, layout: TextLayout, columns: Sequence[int]) -> InputError:
    """Find the first cell of these columns that is no number."""
    with open_text(path) as file:
        lines = itertools.islice(file, layout.n_skipped, None)
        line, column, cell = next(
            (line, column, cells[column].strip())
            for line, _, cells in _records(path, layout, lines, layout.n_skipped + 1)
            for column in columns
            if not _are_numbers([cells[column].strip()], layout.decimal)
        )
    remedy = "leave that column out with {columns}"
    if _DECIMAL_COMMA.fullmatch(cell):
        remedy = "is the comma a decimal one? say so with {comma}"
    elif layout.decimal == "," and is_number(cell):
        remedy = "is the point a decimal one? say so with {point}"
    label = column if layout.names is None else layout.names[column]
    return InputError(
        path=path, line=line, column=label, value=cell, expected="numbers", remedy=remedy
    )


# Typed columns


def read_text(path: Path, decimal: str | None = None) -> TypedTable:
    """Read a text file as a typed table.

    The delimiter (tab, semicolon, comma, | or blanks), the header and the decimal mark are found
    from the first rows. Columns without a name are called column_0, column_1, ... by their place.
    """
    cells, layout = read_cells(path, decimal)
    names = name_columns(layout.names, layout.n_columns)
    columns = [text_column(column, layout.decimal) for column in cells.columns]
    return make_table(zip(names, columns, strict=True), "dict")


def name_columns(names: Sequence[str] | None, n_columns: int) -> list[str]:
    """Return names of columns, each once: a second "x" is "x.1", as in pandas."""
    # Spreadsheets and R leave the name of the row numbers empty.
    wanted = [name or f"column_{number}" for number, name in enumerate(names or [""] * n_columns)]
    named: dict[str, None] = {}
    taken = set(wanted)
    for name in wanted:
        if name in named:
            others = (f"{name}.{number}" for number in itertools.count(1))
            name = next(other for other in others if other not in taken)
            taken.add(name)
        named[name] = None
    return list(named)


def text_column(cells: Any, decimal: str = ".") -> TypedColumn:
    """Make a column of texts or an Arrow array: numbers or booleans where all are, else text."""
    import pyarrow as pa

    array = pa.array(cells, pa.large_string()) if isinstance(cells, Sequence) else cells
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    array = array.dictionary_encode()
    codes = array.indices.to_numpy().astype(np.int64)
    distinct = _with_nulls(array.dictionary)
    form = {"dtype": "list"} | ({"decimal": decimal} if decimal != "." else {})

    def as_written() -> TypedColumn:
        return from_codes(codes, distinct.to_pylist(), form)

    values = _numbers_or_booleans(distinct, decimal)
    if values is None:
        return as_written()
    storage = "boolean" if values.dtype == np.bool_ else "number"
    missing = distinct.is_null().to_numpy(zero_copy_only=False)
    missing = (missing | (np.isnan(values) if storage == "number" else False))[codes]
    return TypedColumn(storage, values[codes], missing, form=form, as_written=as_written)


def _numbers_or_booleans(distinct: Any, decimal: str) -> np.ndarray | None:
    """Return the values that all texts spell, any for null; None if some are other words."""
    from pyarrow import compute as pc

    cells = distinct.drop_null()
    if not len(cells) or pc.any(pc.match_substring_regex(cells, _LEADING_ZERO)).as_py():
        return None
    if len(cells) <= len(_BOOLEANS) and all(cell in _BOOLEANS for cell in cells.to_pylist()):
        return np.array([_BOOLEANS.get(cell, False) for cell in distinct.to_pylist()])
    if pc.all(pc.match_substring_regex(cells, _INTEGER)).as_py():
        return whole_array([int(cell or 0) for cell in distinct.to_pylist()])
    try:
        return _floats(distinct, decimal)
    except ValueError:
        return None

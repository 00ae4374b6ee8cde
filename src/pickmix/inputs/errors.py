"""Errors about what users pass: fields for programs, and a short message made of them."""

from __future__ import annotations

import errno
import functools
import json
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import sklearn

# Packages whose frames stand between a warning and the user: this one, and scikit-learn, which
# calls fits for callbacks and searches.
_PACKAGES = str(Path(__file__).resolve().parents[1]), str(Path(sklearn.__file__).parent)
# Longest value, name and list of names in a message, in characters.
_LONGEST, _LONGEST_LIST = 80, 300


def shown(value: Any) -> str:
    """Return the value as Python writes it, cut if it is long."""
    text = repr(value[: 2 * _LONGEST] if isinstance(value, str | bytes) else value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def listed(names: Iterable[Any], show: Any = shown) -> str:
    """Join names by commas; of a long list the first ones and how many more there are."""
    texts = [show(name) for name in names]
    kept, length = 0, 0
    while kept < len(texts) and length + len(texts[kept]) <= _LONGEST_LIST:
        length += len(texts[kept]) + 2
        kept += 1
    more = f" and {len(texts) - kept:,} more" if kept < len(texts) else ""
    return ", ".join(texts[:kept]) + more


def aligned(lines: Sequence[Sequence[str]], n_left: int) -> Iterator[str]:
    """Yield lines of cells in columns, the first `n_left` of them aligned at the left."""
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line[:n_left], widths, strict=False)]
        pairs = zip(line[n_left:], widths[n_left:], strict=True)
        yield "  ".join(cells + [cell.rjust(width) for cell, width in pairs]).rstrip()


class Wording:
    """How messages spell settings and count rows: as in Python code."""

    first_row = 0
    #: Settings that a remedy may ask for, by their key in its text.
    columns, cache, comma, point = "columns=", "cache=", "decimal=','", "decimal='.'"

    def literal(self, name: Any) -> str:
        return json.dumps(name, ensure_ascii=False) if len(str(name)) <= _LONGEST else "name"

    def kind(self, column: Any, kind: str) -> str:
        return f'schema={{{self.literal(column)}: "{kind}"}}'

    def exclude(self, columns: Iterable[Any]) -> str:
        return f"exclude=[{', '.join(map(self.literal, columns))}]"

    def parameter(self, parameter: str, column: Any) -> str:
        """Name an entry of a parameter that has one for each column."""
        return f"{parameter}[{shown(column) if parameter == 'given' else self.literal(column)}]"

    def settings(self, column: Any) -> dict[str, str]:
        kinds = "skip", "number", "date", "category"
        settings = {kind: self.kind(column, kind) for kind in kinds}
        settings |= {key: getattr(self, key) for key in ("columns", "cache", "comma", "point")}
        return settings | {"exclude": self.exclude((column,))}


class Described(Exception):
    """Error with fields, of which the message is made."""

    def __init__(
        self,
        problem: str = "",  # after the name of the column; by default "must hold" `expected`
        *,
        parameter: str = "",  # "given" or "schema" if the column is named in such a parameter
        column: Any = None,
        row: int | None = None,  # from 0
        line: int | None = None,  # from 1
        value: Any = None,
        got: str = "",  # the value in words, if Python's spelling is not right
        expected: str = "",
        remedy: str = "",  # names in braces are those of `Wording.settings`
        path: Any = None,
        message: str = "",  # the whole message, where the other fields do not make it
        also: Sequence[Any] = (),  # columns that must be left out as well
    ) -> None:
        self.problem, self.parameter, self.column = problem, parameter, column
        self.row, self.line, self.value, self.got = row, line, value, got
        self.expected, self.remedy, self.path, self.message = expected, remedy, path, message
        self.also = tuple(also)
        super().__init__(self.worded(Wording()))

    @property
    def is_of_content(self) -> bool:
        """Whether the error is about a table, or a column of it, and not about a parameter."""
        return not (self.path or self.parameter or self.message)

    def __reduce__(self) -> Any:
        return functools.partial(type(self), **self.__dict__), ()

    def replaced(self, **fields: Any) -> Self:
        return type(self)(**(self.__dict__ | fields))

    def worded(self, words: Wording) -> str:
        if self.message:
            return self.message
        got = self.got or ("" if self.value is None else shown(self.value))
        remedy = self.remedy.format(**words.settings(self.column)) if self.remedy else ""
        if self.path is not None:
            where = "" if self.column is None else f" in column {shown(self.column)}"
            text = f"{self.path}: {self.problem or f'expected {self.expected}{where}'}"
            text += f", got {got}" if got else ""
            text += f" in line {self.line}" if self.line is not None else ""
            return f"{text}; {remedy}" if remedy else text
        if self.parameter:
            text = words.parameter(self.parameter, self.column)
        else:
            text = "The table" if self.column is None else f"Column {shown(self.column)}"
        text += f" {self.problem or f'must hold {self.expected}'}"
        if self.row is not None:
            text += f", but row {self.row + words.first_row} holds {got}"
        elif got:
            text += f", got {got}"
        text = f"{text}. {remedy}" if remedy else f"{text}."
        if self.also:
            remedy = words.exclude((self.column, *self.also))
            text += f" {listed(self.also)} cannot be used either; without all of them: {remedy}."
        return text


class InputError(Described, ValueError):
    """A table, array or file whose content cannot be used.

    Examples
    --------
    >>> error = InputError(column="age", row=3, value="old", expected="numbers")
    >>> print(error)
    Column 'age' must hold numbers, but row 3 holds 'old'.
    >>> error.column, error.row, error.value
    ('age', 3, 'old')
    """


class InputTypeError(Described, TypeError):
    """Something that is no table, array or file at all."""


class FileError(Described, OSError):
    """A file that cannot be read or written."""


class NoRoomError(FileError):
    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.errno, self.strerror = errno.ENOSPC, self.args[0]


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGES):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)

"""Tables of numbers that users pass in; an error says what came instead, and where.

scikit-learn checks the tables. Its messages do not say which cell is wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from pickmix.data.checks import refuse_lazy_frame

_TABLE_MIXTURE = "TableMixture takes tables with text and dates."


def read_numbers(estimator: Any, X: Any, reset: bool = False, parameter: str = "X") -> np.ndarray:
    """Return rows (N, D) in float64 or float32, in which NaN is a missing value.

    Parameters
    ----------
    estimator : estimator
        Learns the columns of X if `reset`; else X must have its columns.
    X : array-like of shape (N, D)
    reset : bool
    parameter : str
        What messages call X.
    """
    with naming_cells(X, parameter):
        return np.asarray(
            validate_data(
                estimator,
                X,
                dtype=[np.float64, np.float32],
                reset=reset,
                ensure_all_finite="allow-nan",
            )
        )


@contextlib.contextmanager
def naming_cells(X: Any, parameter: str = "X") -> Iterator[None]:
    """Name the cell of X that makes the block fail, if it is text, a date or infinite."""
    _refuse_other_objects(X, parameter)
    _refuse_dates(X, parameter)
    try:
        yield
    except (ValueError, TypeError) as error:
        found = _first_text(X)
        if found is not None:
            text, row, column = found
            raise ValueError(
                f"{parameter} must hold numbers, got the text {text!r} in row {row}, column "
                f"{column!r}. Leave that column out. {_TABLE_MIXTURE}"
            ) from error
        infinite = _first_infinite(X)
        if infinite is not None:
            value, row, column = infinite
            raise ValueError(
                f"{parameter} contains infinity: expected finite numbers, got {value} in row "
                f"{row}, column {column!r}."
            ) from error
        raise


def _refuse_other_objects(X: Any, parameter: str) -> None:
    """Refuse what is not a table at all."""
    refuse_lazy_frame(parameter, X)
    expected = f"{parameter} must be an array, a data frame or a path to rows of numbers"
    if X is None:
        raise ValueError(f"{expected}, got None.")
    # A sparse array of dictionaries is a mapping too; scikit-learn refuses it as sparse.
    if isinstance(X, Mapping) and not hasattr(X, "tocsr"):
        raise TypeError(
            f"{expected}, got a {type(X).__name__}. Use a data frame, or np.column_stack of its "
            f"columns. {_TABLE_MIXTURE}"
        )
    if isinstance(X, bytes | bytearray):
        raise TypeError(f"{expected}, got {type(X).__name__}.")


def _refuse_dates(X: Any, parameter: str) -> None:
    """Refuse dates, which NumPy would turn into numbers of some unit."""
    if isinstance(X, np.ndarray):
        if X.dtype.kind in "mM":
            raise ValueError(
                f"{parameter} must hold numbers, got dates ({X.dtype}). {_TABLE_MIXTURE}"
            )
        return
    dtypes = getattr(X, "dtypes", None) if hasattr(X, "columns") else None
    if dtypes is None:
        return
    for column, dtype in zip(X.columns, dtypes, strict=False):
        # polars has no kinds of types, but names.
        is_date = getattr(dtype, "kind", "") in ("m", "M")
        if is_date or str(dtype).startswith(("Date", "Duration", "Time")):
            raise ValueError(
                f"{parameter} must hold numbers, got dates ({dtype}) in column {column!r}. Leave "
                f"that column out. {_TABLE_MIXTURE}"
            )


def _columns(X: Any) -> Iterator[tuple[Any, np.ndarray]]:
    """Names or numbers of columns, and their values."""
    if hasattr(X, "columns") and hasattr(X, "to_numpy"):
        for number, name in enumerate(X.columns):
            values = X.iloc[:, number] if hasattr(X, "iloc") else X[name]
            yield name, np.asarray(values)
        return
    try:
        # Lists become objects, so that numbers among text stay numbers.
        cells = X if isinstance(X, np.ndarray) else np.array(X, dtype=object)
    except ValueError:
        # Rows of several lengths have no columns.
        return
    if cells.ndim == 2:
        yield from enumerate(cells.T)


def _first_text(X: Any) -> tuple[str, int, Any] | None:
    """The first text that is not a number, with its row and column."""
    found = [
        (row, place, name, values[row])
        for place, (name, values) in enumerate(_columns(X))
        if values.dtype.kind not in "fiubc"
        and (row := next((row for row, cell in enumerate(values) if _is_text(cell)), None))
        is not None
    ]
    if not found:
        return None
    row, _, name, cell = min(found, key=lambda cell: cell[:2])
    return str(cell), row, name


def _is_text(cell: Any) -> bool:
    if not isinstance(cell, str | bytes):
        return False
    try:
        float(cell)
    except ValueError:
        return True
    return False


def _first_infinite(X: Any) -> tuple[float, int, Any] | None:
    """The first infinite number, with its row and column."""
    for name, values in _columns(X):
        if values.dtype.kind == "c":
            continue
        try:
            infinite = np.isinf(values.astype(np.float64))
        except (TypeError, ValueError):
            continue
        if infinite.any():
            row = int(infinite.argmax())
            return float(values[row]), row, name
    return None

"""Columns by name or number, and tables with missing cells, for queries of a mixture."""

from __future__ import annotations

import difflib
import importlib
import numbers
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pickmix.data.checks import is_lazy_frame
from pickmix.estimators.reading_numbers import read_numbers
from pickmix.estimators.row_sources import is_large


def names_of(mixture: Any) -> list[str] | None:
    """Names of the columns that a mixture was fitted to, if they had any."""
    names = getattr(mixture, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


def labels_of(mixture: Any) -> list[str]:
    """Names of the columns, or their numbers as text."""
    return names_of(mixture) or [str(column) for column in range(mixture.n_features_in_)]


def is_single(column: Any) -> bool:
    """Whether this is one column, and not a list of them."""
    return isinstance(column, str | numbers.Integral)


def find_column(mixture: Any, column: Any, parameter: str) -> int:
    """The number of a column that is given by name or number."""
    names, D = names_of(mixture), int(mixture.n_features_in_)
    if isinstance(column, str):
        if names is None:
            raise ValueError(
                f"{parameter} must hold numbers of columns, from 0 to {D - 1}, as the mixture was "
                f"fitted to columns without names, got {column!r}."
            )
        if column in names:
            return names.index(column)
        near = difflib.get_close_matches(column, names, n=3) or names[:10]
        listed = ", ".join(map(repr, near))
        said = f"Near ones are {listed}" if near != names[:10] else f"There are {listed}"
        raise ValueError(
            f"{parameter} must name columns that the mixture was fitted to, got {column!r}. {said}."
        )
    whole = isinstance(column, numbers.Integral) and not isinstance(column, bool | np.bool_)
    if whole and 0 <= int(column) < D:
        return int(column)
    kind = "numbers" if names is None else "names, or numbers"
    raise ValueError(f"{parameter} must hold {kind} of columns, from 0 to {D - 1}, got {column!r}.")


def find_columns(mixture: Any, columns: Any, parameter: str = "columns") -> np.ndarray:
    """Numbers of columns, in the order given, each once."""
    if is_single(columns):
        columns = [columns]
    if isinstance(columns, Mapping) or not isinstance(columns, Iterable):
        raise ValueError(f"{parameter} must be a list of names or numbers, got {columns!r}.")
    listed = list(columns)
    found = [find_column(mixture, column, parameter) for column in listed]
    if not found or len(set(found)) < len(found):
        raise ValueError(f"{parameter} must hold at least one column, each once, got {listed!r}.")
    return np.array(found, dtype=np.int64)


def is_frame(X: Any) -> bool:
    """Whether X is a data frame of pandas or polars."""
    if is_lazy_frame(X):
        return False
    return hasattr(X, "columns") and (hasattr(X, "iloc") or hasattr(X, "with_columns"))


def read_rows(mixture: Any, X: Any, parameter: str = "X") -> np.ndarray:
    """Checked rows (N, D) in float64 or float32, with NaN for missing values."""
    refuse_large(X, parameter)
    return check_cells(mixture, read_numbers(mixture, X, parameter=parameter), parameter)


def refuse_large(X: Any, parameter: str) -> None:
    """Refuse rows that are not in memory, and say what helps."""
    if is_large(X):
        is_path = isinstance(X, str | os.PathLike)
        found = f"the path {str(X)!r}" if is_path else repr(type(X))
        raise ValueError(
            f"{parameter} must be an array or a data frame in memory, got {found}. Read it first, "
            "for example by numpy.load or pandas.read_csv; read a large one piece by piece: "
            "pickmix.open_rows(...).read(first, last). On the command line, `pickmix impute` and "
            "`pickmix explain` read files."
        )


def check_cells(mixture: Any, rows: np.ndarray, parameter: str) -> np.ndarray:
    """Refuse infinities, and values that a column cannot have. NaN marks missing cells."""
    if np.isinf(rows).any():
        raise ValueError(f"{parameter} must hold finite numbers, or NaN for missing values.")
    # A zero is a count, a level and a number.
    problem = mixture._fitted_family().check(np.where(np.isnan(rows), 0.0, rows))
    if problem is not None:
        raise ValueError(f"{parameter}: {problem}.")
    return rows


def read_given(mixture: Any, given: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rows (n, D) with NaN for values that are not given, and flags (D,) of given columns.

    `given` is as in `Questions.conditional`.
    """
    D = int(mixture.n_features_in_)
    if isinstance(given, Mapping):
        numbers_of = [find_column(mixture, column, "given") for column in given]
        values = [np.asarray(value, dtype=np.float64) for value in given.values()]
        wrong = [value.shape for value in values if value.ndim > 1]
        if wrong:
            raise ValueError(f"given must hold numbers or arrays (n,), got a shape of {wrong[0]}.")
        try:
            (n_rows,) = np.broadcast_shapes((1,), *(value.shape for value in values))
        except ValueError as error:
            shapes = [value.shape for value in values]
            raise ValueError(
                f"given must hold numbers, or arrays of one length, got shapes {shapes}."
            ) from error
        columns = dict(zip(numbers_of, values, strict=True))
        if len(columns) < len(values):
            raise ValueError(f"given must hold each column once, got {list(given)!r}.")
        if not n_rows:
            raise ValueError("given must hold at least one row, got arrays of length 0.")
        rows = np.full((n_rows, D), np.nan)
        for column, value in columns.items():
            rows[:, column] = value
    elif is_frame(given):
        columns = {name: _numbers(given[name]) for name in given.columns}
        return read_given(mixture, columns)
    else:
        rows = read_rows(mixture, given, "given").astype(np.float64)
    return check_cells(mixture, rows, "given"), ~np.isnan(rows).all(axis=0)


def read_others(mixture: Any, X: Any, targets: np.ndarray) -> np.ndarray:
    """Rows (N, D) with NaN in the target columns, from rows that may have them or not."""
    refuse_large(X, "X")
    D = int(mixture.n_features_in_)
    others = np.setdiff1d(np.arange(D), targets)
    if is_frame(X) and names_of(mixture) is not None:
        labels = labels_of(mixture)
        present = [find_column(mixture, str(name), "X") for name in X.columns]
        absent = np.setdiff1d(others, present)
        if absent.size:
            listed = ", ".join(repr(labels[column]) for column in absent[:5])
            raise ValueError(
                "X must have all columns beside those to predict (NaN where nothing is known), "
                f"got none named {listed}."
            )
        rows = np.full((len(X), D), np.nan)
        for name, column in zip(X.columns, present, strict=True):
            rows[:, column] = _numbers(X[name])
    else:
        values = np.asarray(X)
        if values.ndim != 2 or values.shape[1] not in (D, others.size):
            raise ValueError(
                f"X must have all {D} columns, or the {others.size} beside those to predict, "
                f"got an array of shape {values.shape}."
            )
        rows = np.full((values.shape[0], D), np.nan)
        rows[:, others if values.shape[1] < D else slice(None)] = values
    rows[:, targets] = np.nan
    if not rows.shape[0]:
        raise ValueError("X must hold at least one row, got none.")
    return check_cells(mixture, rows, "X")


def _numbers(column: Any) -> np.ndarray:
    """A column of a frame in float64, NaN for what is missing."""
    if hasattr(column, "iloc"):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.asarray(column, dtype=np.float64)


def fill_frame(frame: Any, filled: np.ndarray, is_missing: np.ndarray) -> Any:
    """A frame like this one with the cells that were missing taken from an array (N, D).

    Columns without holes stay as they are; others keep a floating type, or become float64.
    """
    new = {}
    for column, name in enumerate(frame.columns):
        if is_missing[:, column].any():
            kind = getattr(frame[name].dtype, "kind", "O")
            values = filled[:, column]
            if kind == "f" and isinstance(frame[name].dtype, np.dtype):
                values = values.astype(frame[name].dtype)
            new[name] = values
    if hasattr(frame, "iloc"):
        out = frame.copy()
        for name, values in new.items():
            out[name] = values
        return out
    # Here, as only those who have polars come here.
    polars = importlib.import_module("polars")
    return frame.with_columns([polars.Series(name, values) for name, values in new.items()])

"""Rows for deep fits, which need them in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import get_tags

from pickmix.estimators.row_sources import (
    is_large,
    learn_names,
    open_fitted,
    open_for,
    read_all,
)
from pickmix.inputs.arrays import (
    check_partial_table,
    read_numbers,
    refuse_empty_columns,
    warn_about_unseen,
    without_weightless,
)
from pickmix.inputs.open_rows import is_dask
from pickmix.inputs.sources import RowSource, refuse_bad


def read_table(
    estimator: Any, X: Any, sample_weight: Any, columns: Any
) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows to fit (N, D) and their weights (N,), without those of weight zero.

    The estimator learns the columns. `columns` are chosen of rows that do not come as an array.
    NaN stands for a missing value, for estimators that take them.
    """
    if columns is None and not is_large(X):
        return _check(estimator, X, sample_weight)
    refuse_dask("X", X)
    source = open_for(X, columns)
    # A source that the user has opened is the user's to close.
    rows = _read(estimator, "X", source, closes=source is not X)
    rows, weights = _check(estimator, rows, sample_weight)
    learn_names(estimator, source.n_columns, source.names)
    return rows, weights


def read_batch(
    estimator: Any, X: Any, sample_weight: Any, reset: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows (B, D) of a batch of a stream, and their weights; none if nothing was seen of them."""
    if reset:
        return _check(estimator, X, sample_weight)
    rows = read_numbers(estimator, X)
    if _takes_missing(estimator) and np.isnan(rows).all():
        warn_about_unseen(rows.shape[0], stacklevel=3)
        return rows[:0], None
    return _check(estimator, X, sample_weight, reset=False)


def check_seen(estimator: Any, X: Any, parameter: str = "X") -> np.ndarray:
    """Rows (N, D) with the columns that an estimator has learnt, with NaN if it takes them."""
    rows = read_numbers(estimator, X)
    if not _takes_missing(estimator):
        _refuse_missing(estimator, rows, parameter)
    return rows


def _check(
    estimator: Any, X: Any, sample_weight: Any, reset: bool = True
) -> tuple[np.ndarray, np.ndarray | None]:
    if _takes_missing(estimator):
        rows, weights, _ = check_partial_table(estimator, X, sample_weight, None, reset)
        if reset:
            refuse_empty_columns(rows)
        return rows, weights
    rows = read_numbers(estimator, X, reset)
    _refuse_missing(estimator, rows, "X")
    return without_weightless(rows, sample_weight, None)[:2]


def _takes_missing(estimator: Any) -> bool:
    return bool(get_tags(estimator).input_tags.allow_nan)


def _refuse_missing(estimator: Any, rows: np.ndarray, parameter: str) -> None:
    missing = np.isnan(rows)
    if missing.any():
        row, column = np.argwhere(missing)[0].tolist()
        raise ValueError(
            f"{parameter} must hold no missing values for this {type(estimator).__name__}, got "
            f"NaN in row {row}, column {column}. GaussianMixture, TableMixture and "
            "SumProductTransformNetwork with transforms=False (not whitened) take them."
        )


def read_validation(estimator: Any, validation_data: Any) -> np.ndarray | None:
    """Validation rows (V, D) with the columns that an estimator has learnt, if there are any."""
    if validation_data is None:
        return None
    if not is_large(validation_data):
        return check_seen(estimator, validation_data, "validation_data")
    refuse_dask("validation_data", validation_data)
    source = open_fitted(estimator, validation_data)
    return _read(estimator, "validation_data", source, closes=source is not validation_data)


def refuse_dask(parameter: str, data: Any) -> None:
    """Refuse rows that are on a cluster."""
    if is_dask(data):
        raise TypeError(
            f"{parameter} must not be a Dask collection: deep fits need their rows in memory. If "
            f"they fit there, pass {parameter}.compute(); GaussianMixture takes them as they are."
        )


def _read(estimator: Any, parameter: str, source: RowSource, closes: bool) -> np.ndarray:
    """All rows of a source, without infinite values."""
    try:
        rows = read_all(source, "deep fits need their rows in memory")
        refuse_bad(source, 0, rows, parameter, allow_nan=_takes_missing(estimator))
    finally:
        if closes:
            source.close()
    return rows

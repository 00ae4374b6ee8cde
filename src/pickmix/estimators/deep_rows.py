"""Rows for deep fits, which need them in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from pickmix.data.dask_data import is_dask
from pickmix.data.sources import RowSource, refuse_bad
from pickmix.estimators.row_sources import (
    is_large,
    learn_names,
    open_fitted,
    open_for,
    read_all,
)
from pickmix.estimators.validation import check_table


def read_table(
    estimator: Any, X: Any, sample_weight: Any, columns: Any
) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows to fit (N, D) and their weights (N,), without those of weight zero.

    The estimator learns the columns. `columns` are chosen of rows that do not come as an array.
    """
    if columns is None and not is_large(X):
        return check_table(estimator, X, sample_weight)
    _refuse_dask("X", X)
    source = open_for(X, columns)
    # A source that the user has opened is the user's to close.
    rows = _read("X", source, closes=source is not X)
    rows, weights = check_table(estimator, rows, sample_weight)
    learn_names(estimator, source.n_columns, source.names)
    return rows, weights


def read_watched(estimator: Any, validation_data: Any) -> np.ndarray | None:
    """Validation rows (V, D) with the columns that an estimator has learnt, if there are any."""
    if validation_data is None:
        return None
    if not is_large(validation_data):
        kinds = [np.float64, np.float32]
        return np.asarray(validate_data(estimator, validation_data, dtype=kinds, reset=False))
    _refuse_dask("validation_data", validation_data)
    source = open_fitted(estimator, validation_data)
    return _read("validation_data", source, closes=source is not validation_data)


def _refuse_dask(parameter: str, data: Any) -> None:
    if is_dask(data):
        raise TypeError(
            f"{parameter} must not be a Dask collection: deep fits need their rows in memory. If "
            f"they fit there, pass {parameter}.compute(); GaussianMixture takes them as they are."
        )


def _read(parameter: str, source: RowSource, closes: bool) -> np.ndarray:
    """All rows of a source, finite ones."""
    try:
        rows = read_all(source, "deep fits need their rows in memory")
        refuse_bad(source, 0, rows, parameter)
    finally:
        if closes:
            source.close()
    return rows

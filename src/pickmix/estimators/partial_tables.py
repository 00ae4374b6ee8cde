"""Checks of rows that are known in part: missing values, and noise of known variance."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from pickmix.estimators.reading_numbers import read_numbers
from pickmix.estimators.validation import without_weightless

# Squares of variances must stay within float64.
_LARGEST_NOISE = 1e120


def check_rows(estimator: Any, X: Any, reset: bool = False) -> np.ndarray:
    """Return rows (N, D) in which NaN stands for a missing value."""
    return read_numbers(estimator, X, reset)


def check_partial_table(
    estimator: Any, X: Any, sample_weight: Any, noise: Any, reset: bool = True
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Return the rows to fit with their weights and noise.

    Rows of weight zero, and rows with missing values only, are left out.
    """
    rows = check_rows(estimator, X, reset)
    checked = check_noise(noise, rows)
    return _without_unseen(*without_weightless(rows, sample_weight, checked))


def _without_unseen(
    rows: np.ndarray, weights: np.ndarray | None, noise: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    missing = np.isnan(rows)
    if not missing.any():
        return rows, weights, noise
    nothing = missing.all(axis=1)
    n_nothing = int(nothing.sum())
    if n_nothing == rows.shape[0]:
        raise ValueError(f"X must hold a value, got {n_nothing} row(s) of missing values only.")
    if n_nothing:
        warn_about_unseen(n_nothing, stacklevel=6)
        rows = rows[~nothing]
        weights = None if weights is None else weights[~nothing]
        noise = None if noise is None else noise[~nothing]
    return rows, weights, noise


def warn_about_unseen(n_rows: int, stacklevel: int) -> None:
    """Warn about rows with missing values only."""
    if n_rows:
        message = f"{n_rows} row(s) of X hold missing values only, and are left out of the fit."
        warnings.warn(message, UserWarning, stacklevel=stacklevel)


def refuse_empty(masses: np.ndarray, names: Sequence[Any]) -> None:
    """Refuse columns without a value: the weights (D,) of their values are zero."""
    if not (masses > 0.0).all():
        column = names[int((masses > 0.0).argmin())]
        raise ValueError(
            "X must hold a value in every column, got only missing values in column "
            f"{column!r}. Leave that column out."
        )


def refuse_empty_columns(rows: np.ndarray) -> None:
    """Refuse columns of rows (N, D) without a value."""
    refuse_empty((~np.isnan(rows)).sum(axis=0), range(rows.shape[1]))


def check_noise(noise: Any, rows: np.ndarray) -> np.ndarray | None:
    """Return the noise of rows (N, D): variances (N, D), or lower triangles of covariances.

    Noise of a missing value does not matter, and may be anything.
    """
    if noise is None:
        return None
    n_rows, n_columns = rows.shape
    given = _as_numbers(noise)
    shapes = (n_rows, n_columns), (n_rows, n_columns, n_columns)
    if given.shape not in shapes:
        raise ValueError(
            f"noise must have the shape {shapes[0]} for variances, or {shapes[1]} for covariances, "
            f"as X has {n_rows} rows of {n_columns} columns; got {given.shape}."
        )
    seen = ~np.isnan(rows)
    if given.ndim == 2:
        variances = np.where(seen, given, 0.0)
        _refuse_variances(variances)
        return variances
    given = np.where(seen[:, :, None] & seen[:, None, :], given, 0.0)
    _refuse_variances(np.diagonal(given, axis1=1, axis2=2))
    _refuse_covariances(given)
    i, j = np.tril_indices(n_columns)
    return np.asarray(given[:, i, j])


def _as_numbers(noise: Any) -> np.ndarray:
    """Noise as float64; what a frame has not is NaN."""
    try:
        if hasattr(noise, "to_numpy") and hasattr(noise, "dtypes"):
            return np.asarray(noise.to_numpy(dtype=np.float64, na_value=np.nan))
        given = np.asarray(noise)
        kind = "unsafe" if given.dtype == object else "same_kind"
        return given.astype(np.float64, casting=kind)  # type: ignore[call-overload,no-any-return]
    except (TypeError, ValueError) as error:
        what = type(noise).__name__
        raise ValueError(f"noise must be an array of real numbers, got {what}: {error}.") from error


def _refuse_variances(variances: np.ndarray) -> None:
    wrong = ~((variances <= _LARGEST_NOISE) & (variances >= 0.0))
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        raise ValueError(
            f"noise must hold variances from 0 to {_LARGEST_NOISE:.0e} (a value that says nothing "
            f"is NaN in X), got {float(variances[row, column])!r} for row {row}, column {column}."
        )


def _refuse_covariances(given: np.ndarray) -> None:
    # In units of the columns' own noise, which may be very different.
    deviations = np.sqrt(np.diagonal(given, axis1=1, axis2=2))
    scale = np.where(deviations > 0.0, deviations, 1.0)
    given = given / (scale[:, :, None] * scale[:, None, :])
    uneven = ~(np.abs(given - given.transpose(0, 2, 1)).max(axis=(1, 2)) <= 1e-8)
    if uneven.any():
        raise ValueError(
            "noise must hold symmetric covariances of finite numbers; that of row "
            f"{int(uneven.argmax())} is none."
        )
    smallest = np.linalg.eigvalsh(given)[:, 0]
    if (smallest < -1e-8).any():
        row = int(smallest.argmin())
        raise ValueError(
            "noise must hold covariances without negative eigenvalues, got "
            f"{float(smallest[row]):.3g} for the correlations of row {row}."
        )

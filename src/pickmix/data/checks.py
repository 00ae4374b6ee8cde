"""Checks of what generators, loaders and sources are given."""

from __future__ import annotations

from typing import Any

import numpy as np

# What dtypes hold beside real numbers.
_OTHER_KINDS = {
    "U": "text",
    "S": "bytes of text",
    "O": "Python objects",
    "c": "complex numbers",
    "M": "dates",
    "m": "spans of time",
}


def check_integer(name: str, value: object, least: int, why: str = "") -> None:
    """Refuse what is no integer >= least; `why` says what that is good for.

    Examples
    --------
    >>> check_integer("n", 0, 1)
    Traceback (most recent call last):
    ValueError: n must be an integer >= 1; got 0
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be an integer >= {least}{why}; got {value!r}")


def check_rows(name: str, array: np.ndarray) -> None:
    """Refuse what is no 2-D array of real numbers, with rows and columns."""
    if array.ndim == 1:
        raise ValueError(
            f"{name}: expected rows and columns, got an array of shape {array.shape}; "
            "reshape(-1, 1) makes it one column, reshape(1, -1) one row"
        )
    if array.ndim != 2:
        raise ValueError(f"{name}: expected rows and columns, got shape {array.shape}")
    check_numbers(name, array.dtype)
    check_shape(name, *array.shape)


def check_shape(name: str, n_rows: int, n_columns: int) -> None:
    """Refuse no rows and no columns."""
    if n_rows == 0:
        raise ValueError(f"{name}: expected rows, got none")
    if n_columns == 0:
        raise ValueError(f"{name}: expected columns, got none")


def check_numbers(name: str, dtype: np.dtype[Any]) -> None:
    """Refuse a dtype that does not hold real numbers."""
    if dtype.kind not in "fiub":
        kind = _OTHER_KINDS.get(dtype.kind, "something else")
        raise ValueError(f"{name}: expected real numbers, got dtype {dtype} ({kind})")


def is_lazy_frame(data: object) -> bool:
    """Whether data is a LazyFrame of polars, which holds no rows yet."""
    kind = type(data)
    return kind.__module__.split(".")[0] == "polars" and kind.__name__ == "LazyFrame"


def refuse_lazy_frame(name: str, data: object) -> None:
    """Refuse a LazyFrame, and say what to do with it."""
    if is_lazy_frame(data):
        raise TypeError(
            f"{name} must hold rows, got a polars LazyFrame, which is a plan to read them. Call "
            ".collect() on it first."
        )


def check_weights(sample_weight: Any, n_rows: int | None) -> np.ndarray | None:
    """Weights of the rows of a table (N,), or None; `n_rows` None leaves their number open."""
    if sample_weight is None:
        return None
    weights = np.asarray(sample_weight, dtype=np.float64)
    if n_rows is not None and weights.shape != (n_rows,):
        raise ValueError(f"sample_weight must have shape ({n_rows},), got {weights.shape}.")
    if not np.isfinite(weights).all() or (weights < 0.0).any():
        raise ValueError("sample_weight must hold finite numbers >= 0.")
    if not weights.any():
        raise ValueError("sample_weight must hold a positive weight, got only zeros.")
    # As for arrays: only ratios matter.
    return np.asarray(np.ldexp(weights, 1 - np.frexp(weights.max())[1]))

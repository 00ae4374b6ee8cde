"""Checks of what generators, loaders and sources are given."""

from __future__ import annotations

from typing import Any

import numpy as np


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

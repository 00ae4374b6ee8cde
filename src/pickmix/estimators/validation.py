"""Checks of what users pass in. Every message names the parameter, what was expected, what came."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

# Squares and their products must stay within float64.
LARGEST_SPREAD = 1e60


def check_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Return `value` if it is one of `choices`."""
    if isinstance(value, str) and value in choices:
        return value
    raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def check_integer(name: str, value: Any, least: int) -> int:
    """Return `value` as an int if it is an integer >= least."""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool) and value >= least:
        return int(value)
    raise ValueError(f"{name} must be an integer >= {least}, got {value!r}.")


def check_number(name: str, value: Any, least: float, strict: bool = False) -> float:
    """Return `value` as a float if it is a finite number >= least (> least if strict)."""
    if isinstance(value, numbers.Real) and not isinstance(value, bool) and np.isfinite(value):
        if value > least or (value == least and not strict):
            return float(value)
    sign = ">" if strict else ">="
    raise ValueError(f"{name} must be a finite number {sign} {least}, got {value!r}.")


def check_callbacks(callbacks: Any) -> list:
    """Return callbacks as a list of callables."""
    listed = [callbacks] if callable(callbacks) else list(callbacks)
    for callback in listed:
        if not callable(callback):
            raise ValueError(f"callbacks must be callables, got {callback!r}.")
    return listed


def check_array_parameter(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return a start parameter as a finite float64 array of the given shape."""
    array = np.array(value, dtype=np.float64)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must hold finite numbers only, got NaN or infinity.")
    return array


def check_weights_init(value: Any, n_components: int) -> np.ndarray:
    """Return start weights: non-negative and summing to one."""
    weights = check_array_parameter("weights_init", value, (n_components,))
    if (weights < 0.0).any() or not np.isclose(weights.sum(), 1.0, rtol=1e-6):
        raise ValueError(
            "weights_init must be non-negative and sum to 1, "
            f"got a smallest value of {weights.min()!r} and a sum of {weights.sum()!r}."
        )
    return weights / weights.sum()


def check_positive_definite(name: str, matrices: np.ndarray, covariance_type: str) -> np.ndarray:
    """Check start precisions: symmetric and positive definite, or positive."""
    if covariance_type in ("diag", "spherical"):
        if (matrices <= 0.0).any():
            raise ValueError(
                f"{name} must be positive, got a smallest value of {matrices.min()!r}."
            )
        return matrices
    stacked = matrices if matrices.ndim == 3 else matrices[None]
    symmetric = np.allclose(stacked, stacked.transpose(0, 2, 1))
    if not symmetric or (np.linalg.eigvalsh(stacked) <= 0.0).any():
        raise ValueError(f"{name} must be symmetric, positive definite matrices.")
    return matrices

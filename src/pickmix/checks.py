"""Checks of parameters. Every message names the parameter, what was expected and what came."""

from __future__ import annotations

import importlib.util
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np


def check_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    if isinstance(value, str) and value in choices:
        return value
    raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def check_integer(name: str, value: Any, least: int) -> int:
    """Return `value` as an int if it is an integer >= least."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if whole and int(value) >= least:
        return int(value)
    raise ValueError(f"{name} must be an integer >= {least}, got {value!r}.")


def check_number(name: str, value: Any, least: float, strict: bool = False) -> float:
    """Return `value` as a float if it is a finite number >= least (> least if strict)."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if real and np.isfinite(float(value)) and (value > least or (value == least and not strict)):
        return float(value)
    sign = ">" if strict else ">="
    raise ValueError(f"{name} must be a finite number {sign} {least}, got {value!r}.")


def check_flag(name: str, value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise ValueError(f"{name} must be True or False, got {value!r}.")


def check_n_jobs(n_jobs: Any) -> None:
    whole = isinstance(n_jobs, numbers.Integral) and not isinstance(n_jobs, bool)
    if n_jobs is not None and not (whole and n_jobs != 0):
        raise ValueError(f"n_jobs must be None or an integer other than 0, got {n_jobs!r}.")


RandomSeed = int | np.random.RandomState | np.random.Generator | None


def as_random_state(random_state: Any) -> Any:
    """A `random_state` for scikit-learn: a Generator becomes a RandomState."""
    if isinstance(random_state, np.random.Generator):
        return np.random.RandomState(int(random_state.integers(2**32)))
    return random_state


def check_randomness(random_state: Any) -> np.random.RandomState:
    # Imported here: scikit-learn imports pandas, which workers and kernels do not need.
    from sklearn.utils import check_random_state

    try:
        random: np.random.RandomState = check_random_state(as_random_state(random_state))
    except ValueError as error:
        raise ValueError(
            "random_state must be None, an integer in [0, 2**32), a numpy RandomState or a "
            f"Generator, got {random_state!r}."
        ) from error
    return random


def check_generator(random_state: Any) -> np.random.Generator | np.random.RandomState:
    """Turn `random_state` into a source of random numbers; a Generator is returned unchanged."""
    if isinstance(random_state, np.random.Generator):
        return random_state
    return check_randomness(random_state)


def check_restored(name: str, value: Any, like: np.ndarray, most: int | None = None) -> np.ndarray:
    """Return an array of a file if it has the type and shape of `like`.

    With `most` it holds numbers of things, from -1 to below `most`.
    """
    if not isinstance(value, np.ndarray) or value.dtype != like.dtype or value.shape != like.shape:
        came = getattr(value, "shape", type(value).__name__)
        raise ValueError(f"{name}: expected {like.dtype} of shape {like.shape}, got {came}")
    if most is not None and value.size and not (value.min() >= -1 and value.max() < most):
        raise ValueError(f"{name}: expected numbers below {most}, got others")
    return value


def refuse_overflow(log_densities: np.ndarray) -> None:
    """Raise if rows are so far out that no component has a log-joint in float64."""
    n_lost = int(np.count_nonzero(~np.isfinite(log_densities)))
    if n_lost:
        raise ValueError(
            "X must hold rows whose squared distances from the components fit into float64, "
            f"got {n_lost} row(s) beyond that. Remove, clip or rescale them."
        )


def check_array_parameter(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return a start parameter as a finite float64 array of the given shape."""
    try:
        # "same_kind" refuses complex numbers, whose imaginary parts would be dropped.
        array = np.array(value).astype(np.float64, casting="same_kind")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be an array of real numbers of shape {shape}, got {value!r:.200}."
        ) from error
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must hold finite numbers only, got NaN or infinity.")
    return array


def check_weights_init(value: Any, n_components: int) -> np.ndarray:
    weights = check_array_parameter("weights_init", value, (n_components,))
    if (weights < 0.0).any() or not np.isclose(weights.sum(), 1.0, rtol=1e-6):
        raise ValueError(
            "weights_init must be non-negative and sum to 1, "
            f"got a smallest value of {weights.min()!r} and a sum of {weights.sum()!r}."
        )
    return np.asarray(weights / weights.sum())


def check_fitted_weights(weights: Any) -> np.ndarray:
    """Return the weights of a mixture from elsewhere: finite, non-negative, not all zero."""
    checked = check_array_parameter("weights", weights, (np.size(weights),))
    if (checked < 0.0).any() or not checked.any():
        raise ValueError(
            "weights must be non-negative and not all zero, "
            f"got a smallest value of {float(checked.min())!r}."
        )
    return checked


def require(module: str, message: str) -> None:
    """Raise an ImportError with this message, which names the extra, if a package is missing."""
    if importlib.util.find_spec(module) is None:
        raise ImportError(message)

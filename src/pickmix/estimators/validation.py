"""Checks of parameters and data, and warnings about how a fit ended.

Every message names the parameter, what was expected and what came.
"""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight

from pickmix.data.rows import ArrayRows
from pickmix.fitting.stopping import Outcome

# Squares and their products must stay within float64.
LARGEST_SPREAD = 1e60


def check_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Return `value` if it is one of `choices`."""
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
    """Return `value` if it is True or False."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise ValueError(f"{name} must be True or False, got {value!r}.")


def check_n_jobs(n_jobs: Any) -> None:
    """Check scikit-learn's number of jobs: None, or an integer other than 0."""
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
    """Turn `random_state` into a RandomState."""
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


def check_callbacks(callbacks: Any) -> list[Callable[..., object]]:
    """Return callbacks as a list of callables."""
    listed = [callbacks] if callable(callbacks) else callbacks
    for callback in listed if isinstance(listed, (list, tuple)) else ():
        if isinstance(callback, type):
            name = callback.__name__
            raise ValueError(f"callbacks must be objects, got the class {name}: write {name}(...).")
    if not isinstance(listed, (list, tuple)) or not all(map(callable, listed)):
        raise ValueError(f"callbacks must be a callable or a list of them, got {callbacks!r}.")
    return list(listed)


def without_weightless(
    X: np.ndarray, sample_weight: Any, noise: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Rows with their weights and noise, without those of weight zero."""
    if sample_weight is None:
        return X, None, noise
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not weights.any():
        raise ValueError("sample_weight must hold a positive weight, got only zeros.")
    # Only ratios of weights matter. A power of two keeps every digit, and brings weights
    # whose squares would leave float64 back to about one.
    weights = np.ldexp(weights, 1 - np.frexp(weights.max())[1])
    if not weights.all():
        heavy = weights > 0.0
        X, weights = X[heavy], weights[heavy]
        noise = None if noise is None else noise[heavy]
    return X, weights, noise


def check_enough_rows(n_rows: int, n_components: int) -> None:
    """Refuse more components than rows."""
    if n_rows < n_components:
        raise ValueError(
            f"n_components must be at most the number of rows (n_samples={n_rows}, rows of "
            f"zero weight not counted), got n_components={n_components}."
        )


def warn_about_reg_covar(source: ArrayRows, reg_covar: float) -> None:
    """Warn if the regularisation is larger than the variance of every column."""
    variance = float(source.spread().max())
    if 0.0 < variance < reg_covar:
        warnings.warn(
            f"reg_covar={reg_covar!r} exceeds the variance of every column of X "
            f"(largest: {variance:.3g}) and will hide its structure. "
            "Rescale X or lower reg_covar.",
            UserWarning,
            stacklevel=5,
        )


def check_spread(source: ArrayRows) -> float:
    """Return the largest standard deviation of a column; refuse what would overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        spread = float(np.sqrt(source.spread().max()))
    if not spread < LARGEST_SPREAD:
        raise ValueError(
            f"X must have columns with a spread below {LARGEST_SPREAD:.0e}, so that squares fit "
            f"into float64, got {spread:.3g}. Rescale it."
        )
    return spread


def check_array_parameter(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return a start parameter as a finite float64 array of the given shape."""
    try:
        # "same_kind" refuses complex numbers, whose imaginary parts would be dropped.
        array = np.array(value).astype(np.float64, casting="same_kind")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be an array of real numbers of shape {shape}, got {value!r}."
        ) from error
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


def check_positive_definite(name: str, matrices: np.ndarray, covariance_type: str) -> np.ndarray:
    """Check precisions or covariances: symmetric and positive definite, or positive."""
    if covariance_type in ("diag", "spherical"):
        if (matrices <= 0.0).any():
            raise ValueError(
                f"{name} must be positive, got a smallest value of {float(matrices.min())!r}."
            )
        return matrices
    stacked = matrices if matrices.ndim == 3 else matrices[None]
    # Relative to each matrix: precisions of data in small units are huge, in large units tiny.
    asymmetry = np.abs(stacked - stacked.transpose(0, 2, 1)).max(axis=(1, 2))
    if (asymmetry > 1e-8 * np.abs(stacked).max(axis=(1, 2))).any():
        raise ValueError(
            f"{name} must be symmetric, got matrices that differ from their transposes by up to "
            f"{asymmetry.max():.3g}."
        )
    try:
        # Much faster for many matrices, and what those near the edge are used through.
        np.linalg.cholesky(stacked)
        return matrices
    except np.linalg.LinAlgError:
        smallest = np.linalg.eigvalsh(stacked).min()
    if not smallest > 0.0:
        raise ValueError(
            f"{name} must be positive definite, got a smallest eigenvalue of {smallest:.3g}."
        )
    return matrices


def warn_about_outcome(mixture: Any) -> None:
    """Warn if a fit ended early, and say what helps."""
    outcome = mixture.outcome_
    if outcome == Outcome.MAX_ITER and mixture.annealing is None and mixture.tol > 0.0:
        message = (
            f"The log-likelihood still rose by more than tol={mixture.tol!r} after "
            f"max_iter={mixture.max_iter} passes. Increase max_iter or tol."
        )
        warnings.warn(message, ConvergenceWarning, stacklevel=3)
    elif outcome == Outcome.SINGULAR:
        message = (
            "The fit ended early: a component's covariance became singular, and its last good "
            f"value was kept. Increase reg_covar (now {mixture.reg_covar!r}) or decrease "
            f"n_components (now {mixture.n_components})."
        )
        warnings.warn(message, ConvergenceWarning, stacklevel=3)
    elif outcome == Outcome.NON_FINITE:
        message = "The fit ended early: the log-likelihood was not finite. Rescale X."
        warnings.warn(message, ConvergenceWarning, stacklevel=3)
    elif outcome == Outcome.INTERRUPTED:
        message = f"The fit was interrupted after {mixture.n_steps_} steps; the model is usable."
        warnings.warn(message, UserWarning, stacklevel=3)


def resolve_evaluate_every(value: Any, automatic: int) -> int | list[int]:
    """Steps between evaluations, or the steps after which they come; "auto" is `automatic`."""
    if isinstance(value, str) and value == "auto":
        return automatic
    if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str):
        steps = np.asarray(value)
        whole = steps.ndim == 1 and steps.size > 0 and np.issubdtype(steps.dtype, np.integer)
        if whole and steps[0] >= 1 and np.all(np.diff(steps) > 0):
            return [int(step) for step in steps]
    elif isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 1:
        return int(value)
    raise ValueError(
        "evaluate_every must be 'auto', an integer >= 1 or a rising sequence of steps >= 1, "
        f"got {value!r}."
    )

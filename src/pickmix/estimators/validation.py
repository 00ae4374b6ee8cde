"""Checks of parameters and data, and warnings about how a fit ended."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from pickmix.checks import RandomSeed as RandomSeed
from pickmix.checks import as_random_state as as_random_state
from pickmix.checks import check_choice as check_choice
from pickmix.checks import check_flag as check_flag
from pickmix.checks import check_generator as check_generator
from pickmix.checks import check_integer as check_integer
from pickmix.checks import check_n_jobs as check_n_jobs
from pickmix.checks import check_number as check_number
from pickmix.checks import check_randomness as check_randomness
from pickmix.fitting.settings import check_callbacks as check_callbacks
from pickmix.fitting.settings import resolve_evaluate_every as resolve_evaluate_every
from pickmix.fitting.stopping import Outcome
from pickmix.inputs.errors import warn_caller


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


def warn_about_outcome(mixture: Any) -> None:
    outcome, category = mixture.outcome_, ConvergenceWarning
    if outcome == Outcome.MAX_ITER and mixture.annealing is None and mixture.tol > 0.0:
        message = (
            f"The log-likelihood still rose by more than tol={mixture.tol!r} after "
            f"max_iter={mixture.max_iter} passes. Increase max_iter or tol."
        )
    elif outcome == Outcome.SINGULAR:
        message = (
            "The fit ended early: a component's covariance became singular, and its last good "
            f"value was kept. Increase reg_covar (now {mixture.reg_covar!r}) or decrease "
            f"n_components (now {mixture.n_components})."
        )
    elif outcome == Outcome.NON_FINITE:
        message = "The fit ended early: the log-likelihood was not finite. Rescale X."
    elif outcome == Outcome.INTERRUPTED:
        category = UserWarning
        message = f"The fit was interrupted after {mixture.n_steps_} steps; the model is usable."
    else:
        return
    warn_caller(message, category)

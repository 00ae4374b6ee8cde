"""Checks of loaded models: the copy of the description, and parameters that make no sense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from pickmix.estimators import validation
from pickmix.families.categorical import Categorical
from pickmix.families.gaussian import GAUSSIANS
from pickmix.families.product import Product

# Sums of probabilities differ from 1 by rounding only.
_SUM_TOLERANCE = 1e-6


class DifferentCopyError(ValueError):
    """The description in model.json is not the one that the arrays hold."""


def check_copy(copy: Path, arrays: Path, description: dict[str, Any]) -> None:
    """Check model.json, a copy of the description in the arrays; a missing copy is fine.

    Parameters
    ----------
    copy, arrays : path
        The two files of a saved model.
    description : dict
        The description that the arrays hold.
    """
    try:
        text = copy.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    except UnicodeDecodeError as error:
        raise DifferentCopyError(f"{copy}: expected JSON, got bytes that are not UTF-8.") from error
    remedy = (
        f"The model itself is in {arrays.name}, and {copy.name} is a copy of its description for "
        f"people to read: delete {copy.name}, or save the model again."
    )
    try:
        written = json.loads(text)
    except json.JSONDecodeError as error:
        raise DifferentCopyError(f"{copy}: expected JSON, but {error}. {remedy}") from error
    found = _first_difference(written, description, ())
    if found is not None:
        where, there, expected = found
        raise DifferentCopyError(
            f"{copy}: expected {where} = {_shown(expected)} as in {arrays.name}, got "
            f"{_shown(there)}. {remedy}"
        )


_ABSENT = object()


def _first_difference(
    written: Any, expected: Any, names: tuple[str, ...]
) -> tuple[str, Any, Any] | None:
    """Where two descriptions differ first, and what stands there."""
    if isinstance(written, dict) and isinstance(expected, dict):
        for name in [*expected, *(name for name in written if name not in expected)]:
            inner = written.get(name, _ABSENT), expected.get(name, _ABSENT)
            found = _first_difference(*inner, (*names, name))
            if found is not None:
                return found
        return None
    # True == 1 in Python, but not in JSON.
    if type(written) is type(expected) and written == expected:
        return None
    return ".".join(names) or "the description", written, expected


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_parameters(model: Any) -> None:
    """Refuse fitted parameters that make no mixture.

    Parameters
    ----------
    model : estimator
        As it was read from a file.

    Raises
    ------
    ValueError
        Names the parameter, what was expected and what came.
    """
    if hasattr(model, "mixture_"):
        n_columns, model = len(model.schema_.modelled), model.mixture_
        if model.n_features_in_ != n_columns:
            raise ValueError(
                f"mixture_ must have the {n_columns} columns of the schema, got "
                f"{model.n_features_in_}."
            )
    check = getattr(model, "_check_fitted", None)
    if check is not None:
        check()
        _check_family(model)
    elif hasattr(model, "tables_"):
        _check_deep(model)


def _check_family(model: Any) -> None:
    """Check what only the family knows: rates, probabilities and covariances."""
    family = model._fitted_family()
    groups = [("", family)]
    if isinstance(family, Product):
        groups = [(f"{group.label}_", group.family) for group in family.groups]
    parameters = model._get_parameters()
    n_columns = family.layout.n_columns
    if n_columns != model.n_features_in_:
        raise ValueError(
            f"n_features_in_ must be the number of columns of the family, {n_columns}, got "
            f"{model.n_features_in_!r}."
        )
    K = model.weights_.shape[0]
    expected = {
        f"{start}{name}": shape
        for start, part in groups
        for name, shape in _shapes(part, K).items()
    }
    if set(parameters) != set(expected):
        raise ValueError(f"parameters must be {sorted(expected)}, got {sorted(parameters)}.")
    for name, shape in expected.items():
        validation.check_array_parameter(name, parameters[name], shape)
    for start, part in groups:
        if f"{start}covariances" in parameters and part.name in GAUSSIANS:
            name = f"{start}covariances"
            validation.check_positive_definite(name, parameters[name], part.name)
        if f"{start}rates" in parameters:
            _check_not_negative(f"{start}rates", parameters[f"{start}rates"])
        if isinstance(part, Categorical):
            name = f"{start}probabilities"
            _check_not_negative(name, parameters[name])
            _check_sums(name, parameters[name], part.layout.offsets)


def _shapes(family: Any, K: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters of K components of a family."""
    if isinstance(family, Categorical):
        return {"probabilities": (K, int(family.layout.offsets[-1]))}
    n_columns = family.layout.n_columns
    if family.name in GAUSSIANS:
        return {"means": (K, n_columns), "covariances": family.shape(K)}
    return {"rates": (K, n_columns)}


def _check_sums(name: str, probabilities: np.ndarray, offsets: np.ndarray) -> None:
    """Check that the levels of every column of every component sum to one."""
    sums = np.add.reduceat(probabilities, offsets[:-1], axis=1)
    off = np.abs(sums - 1.0).max()
    if off > _SUM_TOLERANCE:
        worst = float(sums.flat[np.abs(sums - 1.0).argmax()])
        raise ValueError(f"{name} must sum to 1 for each column, got a sum of {worst!r}.")


def _check_not_negative(name: str, values: np.ndarray) -> None:
    if (values < 0.0).any():
        raise ValueError(
            f"{name} must not be negative, got a smallest value of {float(values.min())!r}."
        )


def _check_deep(model: Any) -> None:
    validation.check_fitted_weights(model.weights_)
    named = {f"tables_[{number}]": table for number, table in enumerate(model.tables_)}
    named |= {"center_": model.center_, "scale_": model.scale_}
    if model.whitening_ is not None:
        named["whitening_"] = model.whitening_
    for name, values in named.items():
        validation.check_array_parameter(name, values, np.shape(values))
    if (model.scale_ <= 0.0).any():
        raise ValueError(
            f"scale_ must be positive, got a smallest value of {float(model.scale_.min())!r}."
        )

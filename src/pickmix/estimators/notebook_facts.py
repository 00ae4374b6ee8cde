"""What a notebook shows of a fitted estimator, as plain values."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pickmix.data.typed_encoding import decode
from pickmix.estimators.questions_columns import labels_of

#: How a fit ended, in words.
_ENDS = {
    "converged": "converged",
    "max_iter": "reached max_iter",
    "max_steps": "reached max_steps",
    "max_time": "reached max_time",
    "callback": "ended by a callback",
    "interrupted": "interrupted",
    "singular_covariance": "stopped: singular covariance",
    "non_finite": "stopped: values that are not finite",
}
# Parameters that say nothing about the model, and may be long.
_NOT_SHOWN = ("callbacks", "verbose")
_FIRST = ("n_components", "n_children")


def changed_parameters(estimator: Any) -> list[tuple[str, str]]:
    """Names and values of the parameters that are not at their defaults, sizes first.

    Examples
    --------
    >>> from pickmix import GaussianMixture
    >>> changed_parameters(GaussianMixture(5, algorithm="em", tol=1e-3))
    [('n_components', '5'), ('algorithm', "'em'")]
    """
    given = estimator.get_params(deep=False)
    defaults = inspect.signature(type(estimator)).parameters
    shown = []
    for name in sorted(given, key=lambda name: (name not in _FIRST, name)):
        text = repr(given[name])
        if name not in _NOT_SHOWN and text != repr(defaults[name].default):
            shown.append((name, text if len(text) <= 40 else text[:37] + "..."))
    return shown


def facts(estimator: Any) -> list[tuple[str, str]]:
    """What a fit came to: a list of names and values."""
    trace: Any = getattr(estimator, "trace_", None)
    has_trace = trace is not None and len(trace) > 0
    weights = estimator.weights_
    n_live = int(trace["live_components"][-1]) if has_trace else None
    components = f"{weights.shape[0]:,}"
    if n_live is not None:
        components += f", {n_live:,} of them live"
    found = [("components", components)]
    inner = getattr(estimator, "mixture_", estimator)
    n_rows = getattr(inner, "n_rows_seen_", None)
    n_columns = getattr(estimator, "n_features_in_", None)
    if n_columns is not None:
        size = f"{n_columns:,} columns" if n_columns != 1 else "1 column"
        found.append(("data", size if n_rows is None else f"{n_rows:,.0f} rows, {size}"))
    if has_trace:
        of = " of encoded rows" if inner is not estimator else ""
        found.append(("log-likelihood per row", f"{trace['log_likelihood'][-1]:.4f}{of}"))
    best = getattr(estimator, "best_validation_", math.nan)
    if math.isfinite(best):
        found.append(("on validation rows", f"{best:.4f}"))
    ended = _ENDS.get(str(getattr(estimator, "outcome_", "")), "")
    if ended:
        n_passes = getattr(estimator, "n_iter_", 0)
        seconds = float(trace["seconds"][-1]) if has_trace else 0.0
        seconds += float(getattr(inner, "start_seconds_", 0.0))
        passes = "1 pass" if n_passes == 1 else f"{n_passes:,} passes"
        found.append(("fit", f"{ended}, {passes} in {seconds:.3g} s"))
    return found


def curves(estimator: Any) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Curves of the trace, if it has two records: a name, passes (n,) and values (n,)."""
    trace: Any = getattr(estimator, "trace_", None)
    found: list[tuple[str, np.ndarray, np.ndarray]] = []
    if trace is None:
        return found
    for name in ("log_likelihood", "validation"):
        if name not in trace.dtype.names:
            # A model of version 0.1.
            continue
        kept = trace[np.isfinite(trace[name])]
        if kept.shape[0] >= 2:
            found.append((name.replace("_", "-"), kept["epoch"], kept[name]))
    return found


def heaviest(weights: np.ndarray, most: int) -> np.ndarray:
    """Numbers of the heaviest components, the heaviest first; equal ones by number.

    Examples
    --------
    >>> heaviest(np.array([0.1, 0.5, 0.1, 0.3]), 3)
    array([1, 3, 0])
    """
    return np.argsort(-weights, kind="stable")[:most]


def typical_values(
    estimator: Any, members: np.ndarray, most: int
) -> tuple[Sequence[str], list[list[str]]]:
    """Names of the first columns, and what is typical of components in them: a row of texts each.

    Means, rates, and the most probable level. Deep components have no centre: there is nothing.
    """
    inner = getattr(estimator, "mixture_", estimator)
    if not hasattr(inner, "_get_parameters"):
        return [], []
    centres = _centres(inner, members)
    if inner is estimator:
        names = list(map(str, labels_of(estimator)))[:most]
        return names, [[f"{value:.4g}" for value in row[:most]] for row in centres]
    columns = [column.name for column in estimator.schema_.modelled][:most]
    table = decode(estimator.schema_, centres, columns)
    rows = [
        [_text(table.columns[name].value(row)) for name in columns]
        for row in range(members.shape[0])
    ]
    return columns, rows


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)


def _centres(mixture: Any, members: np.ndarray) -> np.ndarray:
    """What is typical of components in the columns of encoded rows, (n, D)."""
    parameters = mixture._get_parameters()
    description = getattr(mixture, "_fitted_description", "full")
    groups = [("", list(range(mixture.n_features_in_)))]
    if not isinstance(description, str):
        groups = [(f"{name}{k}_", columns) for k, (name, columns) in enumerate(description)]
    centres = np.empty((members.shape[0], mixture.n_features_in_))
    for prefix, columns in groups:
        for kind in ("means", "rates"):
            if f"{prefix}{kind}" in parameters:
                centres[:, columns] = parameters[f"{prefix}{kind}"][members]
        if f"{prefix}probabilities" in parameters:
            probabilities = parameters[f"{prefix}probabilities"][members]
            ends = np.cumsum(mixture.column_limits_[columns].astype(np.int64) + 1)[:-1]
            for column, own in zip(columns, np.split(probabilities, ends, axis=1), strict=True):
                centres[:, column] = own.argmax(axis=1)
    return centres

"""The numbers behind a verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.families.base import Part
from pickmix.inspection.calibration import Calibration
from pickmix.inspection.components import ComponentTable
from pickmix.inspection.view import Looked, view_of
from pickmix.model.path import ComponentPath

# What merges may cost in all, in nats per row, and still be called free.
FREE_MERGES = 0.01
# The record of a fit comes from a sample of its rows, seldom fewer than these.
_FEW_RECORDED = 500.0


@dataclass(frozen=True)
class Evidence:
    """Numbers about a fit and about rows that were looked at; NaN where one is not known."""

    n_components: int
    #: Components that the fit's record counted last; without a record, those that have rows.
    n_live: int
    n_parameters: int
    #: Components whose weight stands for fewer rows of the fit than `thin_below`.
    n_thin: int
    thin_below: int
    #: Rows that there are, those that were looked at, and those of the fit.
    n_rows: int
    n_looked_at: int
    n_rows_fit: float
    #: Whether the fit has not seen the rows; None if that is not known.
    held_out: bool | None
    #: Mean log-density per row, and its standard error.
    score: float
    standard_error: float
    #: The same above independent columns: one normal distribution, Poisson distribution or list of
    #: shares for each, fitted to these very rows.
    gain: float
    #: How far these rows score below rows of the fit, its standard error, and whether rows of the
    #: fit were scored for it; else it comes from the fit's record.
    gap: float = math.nan
    gap_error: float = math.nan
    is_gap_scored: bool = False
    #: How the fit ended; empty if not known.
    outcome: str = ""
    #: Passes, nats per row that the last of them brought each, and what is a plateau.
    passes: float = math.nan
    rise: float = math.nan
    tol: float = math.nan
    #: The column that is spread least as the mixture says, how far off, and what chance does.
    worst_column: str = ""
    worst_distance: float = math.nan
    chance_distance: float = math.nan
    #: Columns that are off by more than chance.
    n_off: int = 0
    #: Components that are left if merges may cost `merge_cost` nats per row in all.
    n_after_merges: int | None = None
    merge_cost: float = math.nan
    #: Components that are enough for held-out rows, by the path over K; scores of the path's rows
    #: with so many, and with all.
    n_enough: int | None = None
    enough_score: float = math.nan
    path_score: float = math.nan
    #: Of deep mixtures: the validation log-likelihood, and how far it is above the start's.
    validation: float = math.nan
    validation_gain: float = math.nan


def gather(
    model: Any,
    table: ComponentTable,
    *,
    calibration: Calibration | None = None,
    costs: np.ndarray | None = None,
    path: ComponentPath | None = None,
    held_out: bool | None = None,
    n_rows: int | None = None,
    fitted: Looked | None = None,
) -> Evidence:
    """Collect the numbers about a fitted mixture from rows that were looked at.

    `costs` are nats per row that merges cost at most, as `merge_tree().costs`; `path` is how
    held-out rows score by the number of components. `held_out` says whether the fit has not seen
    the rows; None: it has if there are as many as it had. There are `n_rows` rows, if those looked
    at are a sample. `fitted` are rows of the fit.
    """
    view = view_of(model)
    estimator, looked = view.estimator, table.looked
    n_looked_at = looked.component.shape[0]
    n_rows = n_looked_at if n_rows is None else n_rows
    n_rows_fit = float(getattr(estimator, "n_rows_seen_", math.nan))
    if held_out is None and n_rows == n_rows_fit:
        held_out = False
    scores = looked.log_density - looked.log_units
    trace: Any = getattr(estimator, "trace_", ())
    recorded = len(trace) > 0
    # A component is thin if it has no more rows than columns to describe.
    thin_below = table.centre.shape[1] + 1
    known = n_rows_fit if math.isfinite(n_rows_fit) else float(n_rows)
    n_live = int(trace["live_components"][-1]) if recorded else int(np.count_nonzero(table.rows))
    n_after, cost = _free_merges(costs, len(table))
    validation = float(getattr(estimator, "best_validation_", math.nan))
    gap, gap_error = math.nan, math.nan
    if held_out is not False:
        gap, gap_error = _gap(looked, fitted, trace if recorded else None, known)
    return Evidence(
        n_components=len(table),
        n_live=min(n_live, len(table)),
        n_parameters=int(view.model.n_parameters),
        n_thin=int(np.count_nonzero(table.weight * known < thin_below)),
        thin_below=thin_below,
        n_rows=n_rows,
        n_looked_at=n_looked_at,
        n_rows_fit=n_rows_fit,
        held_out=held_out,
        score=float(looked.log_density.mean()),
        standard_error=float(looked.log_density.std() / math.sqrt(n_looked_at)),
        gain=float(scores.mean()) - independent_score(view, looked),
        gap=gap,
        gap_error=gap_error,
        is_gap_scored=fitted is not None,
        outcome=str(getattr(estimator, "outcome_", "")),
        passes=float(trace["epoch"][-1]) if recorded else math.nan,
        rise=_rise(trace) if recorded else math.nan,
        tol=float(getattr(estimator, "tol", math.nan)),
        n_after_merges=n_after,
        merge_cost=cost,
        validation=validation,
        validation_gain=validation - float(getattr(estimator, "start_validation_", math.nan)),
        **_enough(path),
        **_worst(calibration),
    )


def _gap(
    looked: Looked, fitted: Looked | None, trace: np.ndarray | None, n_rows_fit: float
) -> tuple[float, float]:
    """How far rows score below rows of the fit, and the standard error of that."""
    if fitted is not None:
        samples = fitted.log_density, looked.log_density
        variance = sum(float(scores.var()) / scores.shape[0] for scores in samples)
        return float(samples[0].mean() - samples[1].mean()), math.sqrt(variance)
    if trace is None:
        return math.nan, math.nan
    # The record is in the coordinates of the mixture.
    scores = looked.log_density - looked.log_units
    n_recorded = min(n_rows_fit, _FEW_RECORDED)
    error = float(scores.std()) * math.sqrt(1.0 / scores.shape[0] + 1.0 / n_recorded)
    return float(trace["log_likelihood"][-1] - scores.mean()), error


def _rise(trace: np.ndarray) -> float:
    """Nats per row and pass by which the last quarter of the record is above the one before."""
    values, passes = trace["log_likelihood"], trace["epoch"]
    n = values.shape[0] // 4
    if n < 1 or not np.isfinite(values[-2 * n :]).all():
        return math.nan
    between = passes[-n:].mean() - passes[-2 * n : -n].mean()
    if between <= 0.0:
        return math.nan
    return float((values[-n:].mean() - values[-2 * n : -n].mean()) / between)


def _worst(calibration: Calibration | None) -> dict[str, Any]:
    if calibration is None or not np.isfinite(calibration.distances).any():
        return {}
    limits = calibration.limit()
    worst = int(np.nanargmax(calibration.distances))
    return {
        "worst_column": calibration.names[worst],
        "worst_distance": float(calibration.distances[worst]),
        "chance_distance": float(limits[worst]),
        "n_off": int(np.count_nonzero(calibration.distances > limits)),
    }


def _enough(path: ComponentPath | None) -> dict[str, Any]:
    if path is None:
        return {}
    enough = path.choose()
    place = int(np.searchsorted(path.n_components, enough))
    return {
        "n_enough": enough,
        "enough_score": float(path.log_likelihood[place]),
        "path_score": float(path.log_likelihood[-1]),
    }


def _free_merges(costs: np.ndarray | None, n_components: int) -> tuple[int | None, float]:
    """How many components are left after merges that cost little in all, and what they cost."""
    if costs is None or not costs.size:
        return None, math.nan
    totals = np.cumsum(np.maximum(costs, 0.0))
    n_merges = int(np.searchsorted(totals, FREE_MERGES, side="right"))
    return n_components - n_merges, float(totals[n_merges - 1]) if n_merges else 0.0


def independent_score(model: Any, looked: Looked) -> float:
    """Mean log-density per row of columns that have nothing to do with each other.

    Each has one distribution, fitted to the cells that were seen: normal, Poisson, or shares of
    levels. That is what a reader knows without any mixture.
    """
    rows = looked.rows
    baselines = {column: part.baseline for part in view_of(model).parts for column in part.columns}
    total = 0.0
    for column, values in enumerate(rows.T):
        seen = values[~np.isnan(values)]
        if seen.size:
            total += baselines.get(column, Part.baseline)(seen)
    return total / len(rows)

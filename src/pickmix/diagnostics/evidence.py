"""The numbers behind a verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import gammaln

from pickmix.diagnostics.calibration import Calibration
from pickmix.diagnostics.columns import is_closed_form
from pickmix.diagnostics.component_table import ComponentTable
from pickmix.diagnostics.looking import Looked
from pickmix.estimators.path import ComponentPath
from pickmix.estimators.questions_rows import AskedRows
from pickmix.families.conditioning import CountPart, LevelPart

# What merges may cost in all, in nats per row, and still be called free.
FREE_MERGES = 0.01
# The record of a fit comes from a sample of its rows, seldom fewer than these.
_FEW_RECORDED = 500.0


@dataclass(frozen=True)
class Evidence:
    """Numbers about a fit and about rows that were looked at; NaN where one is not known.

    Attributes
    ----------
    n_components, n_live, n_parameters : int
        Live components are those that the fit's record counted last; without a record, those that
        have rows.
    n_thin, thin_below : int
        Components whose weight stands for fewer rows of the fit than that.
    n_rows, n_looked_at : int
        Rows that there are, and those that were looked at.
    n_rows_fit : float
        Rows of the fit.
    held_out : bool or None
        Whether the fit has not seen the rows; None if that is not known.
    score, standard_error : float
        Mean log-density per row, and its standard error.
    gain : float
        The same above independent columns: one normal distribution, Poisson distribution or list
        of shares for each, fitted to these very rows.
    fitted_score, gap, gap_error : float
        Log-likelihood of rows of the fit at its end, how far these rows are below it, both in the
        coordinates of the mixture, and the standard error of that.
    outcome : str
        How the fit ended; empty if not known.
    passes, rise, tol : float
        Passes, nats per row that the last of them brought each, and what is a plateau.
    worst_column : str
    worst_distance, chance_distance : float
        The column that is spread least as the mixture says, how far off, and what chance does.
    n_off : int
        Columns that are off by more than chance.
    n_after_merges : int or None
        Components that are left if merges may cost `merge_cost` nats per row in all.
    merge_cost : float
    n_enough : int or None
        Components that are enough for held-out rows, by the path over K.
    enough_score, path_score : float
        Mean log-density of the rows of the path with so many components, and with all.
    validation, validation_gain : float
        Of deep mixtures: the validation log-likelihood, and how far it is above the start's.
    """

    n_components: int
    n_live: int
    n_parameters: int
    n_thin: int
    thin_below: int
    n_rows: int
    n_looked_at: int
    n_rows_fit: float
    held_out: bool | None
    score: float
    standard_error: float
    gain: float
    fitted_score: float = math.nan
    gap: float = math.nan
    gap_error: float = math.nan
    outcome: str = ""
    passes: float = math.nan
    rise: float = math.nan
    tol: float = math.nan
    worst_column: str = ""
    worst_distance: float = math.nan
    chance_distance: float = math.nan
    n_off: int = 0
    n_after_merges: int | None = None
    merge_cost: float = math.nan
    n_enough: int | None = None
    enough_score: float = math.nan
    path_score: float = math.nan
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
) -> Evidence:
    """Collect the numbers; parameters as in `verdict`."""
    looked = table.looked
    n_looked_at = looked.component.shape[0]
    n_rows = n_looked_at if n_rows is None else n_rows
    mixture = getattr(model, "mixture_", model)
    n_rows_fit = float(getattr(mixture, "n_rows_seen_", math.nan))
    if held_out is None and n_rows == n_rows_fit:
        held_out = False
    own = looked.log_density - looked.log_units
    trace: Any = getattr(model, "trace_", ())
    recorded = len(trace) > 0
    fitted_score = float(trace["log_likelihood"][-1]) if recorded else math.nan
    # A component is thin if it has no more rows than columns to describe.
    thin_below = table.centre.shape[1] + 1
    known = n_rows_fit if math.isfinite(n_rows_fit) else float(n_rows)
    worst = _worst(calibration)
    n_after, cost = _free_merges(costs, len(table))
    validation = float(getattr(model, "best_validation_", math.nan))
    return Evidence(
        n_components=len(table),
        n_live=_live(table, trace if recorded else None),
        n_parameters=int(model._n_parameters()),
        n_thin=int(np.count_nonzero(table.weight * known < thin_below)),
        thin_below=thin_below,
        n_rows=n_rows,
        n_looked_at=n_looked_at,
        n_rows_fit=n_rows_fit,
        held_out=held_out,
        score=float(looked.log_density.mean()),
        standard_error=float(looked.log_density.std() / math.sqrt(n_looked_at)),
        gain=float(own.mean()) - independent_score(model, looked),
        fitted_score=fitted_score,
        gap_error=float(own.std()) * math.sqrt(1.0 / n_looked_at + 1.0 / min(known, _FEW_RECORDED)),
        gap=math.nan if held_out is False else fitted_score - float(own.mean()),
        outcome=str(getattr(model, "outcome_", "")),
        passes=float(trace["epoch"][-1]) if recorded else math.nan,
        rise=_rise(trace) if recorded else math.nan,
        tol=float(getattr(model, "tol", math.nan)),
        n_after_merges=n_after,
        merge_cost=cost,
        validation=validation,
        validation_gain=validation - float(getattr(model, "start_validation_", math.nan)),
        **_enough(path),
        **worst,
    )


def _live(table: ComponentTable, trace: np.ndarray | None) -> int:
    if trace is not None:
        return min(int(trace["live_components"][-1]), len(table))
    return int(np.count_nonzero(table.rows))


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
    kinds = ["number"] * rows.shape[1]
    if is_closed_form(model):
        mixture = getattr(model, "mixture_", model)
        for part in AskedRows(mixture, np.full((1, rows.shape[1]), np.nan)).parts:
            for column in part.columns.tolist():
                is_other = isinstance(part, CountPart | LevelPart)
                kinds[column] = part.kind if is_other else "number"
    total: float = 0.0
    for column, kind in enumerate(kinds):
        values = rows[~np.isnan(rows[:, column]), column]
        if values.size:
            total += _own_score(values, kind)
    return float(total / rows.shape[0])


def _own_score(values: np.ndarray, kind: str) -> float:
    """Sum of the log-densities of values (n,) under the best distribution of their kind."""
    n = values.shape[0]
    if kind == "level":
        counts = np.bincount(values.astype(np.int64))
        counts = counts[counts > 0]
        return float((counts * np.log(counts / n)).sum())
    mean = values.mean()
    if kind == "count":
        rate = max(float(mean), 1e-300)
        return float((values * math.log(rate) - rate - gammaln(values + 1.0)).sum())
    # One value over and over has a normal distribution of any narrowness; this one is narrow.
    variance = max(float(values.var()), 1e-12 * max(1.0, float(mean) ** 2))
    return float(-0.5 * n * (math.log(2.0 * math.pi * variance) + 1.0))

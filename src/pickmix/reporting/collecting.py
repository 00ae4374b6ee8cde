"""Everything that a report shows, as plain values for JSON."""

from __future__ import annotations

import datetime
import math
from dataclasses import replace
from typing import Any

import numpy as np

import pickmix
from pickmix.data.typed_tables import TypedTable
from pickmix.diagnostics.calibration import Calibration, calibration
from pickmix.diagnostics.columns import is_closed_form, is_table
from pickmix.diagnostics.component_table import ComponentTable, component_table
from pickmix.diagnostics.looking import look_at
from pickmix.diagnostics.marginals import Marginal, marginals
from pickmix.diagnostics.unusual import UnusualRow, unusual_rows
from pickmix.diagnostics.verdict import Verdict, verdict
from pickmix.estimators.path import ComponentPath, path
from pickmix.reporting.chosen_rows import choose_shown
from pickmix.reporting.plain import cells_of, centres_of, number, numbers, shortened
from pickmix.reporting.plane_map import make_map
from pickmix.reporting.subject import Subject, take_rows

# Evaluations of components that calibration may cost: some tenths of a second.
_CALIBRATION_WORK = 1e7
# The same for the path over K, and points of it that are shown.
_PATH_WORK = 4e6
_MOST_LEVELS = 150
# Cells of centres, which take some seven bytes each.
_MOST_CENTRES = 150_000
_MOST_RECORDS = 400
# Columns with pictures of their own.
_MOST_COLUMNS = 100


def collect(
    subject: Subject, *, title: str | None, held_out: bool | None, n_unusual: int
) -> dict[str, Any]:
    """Ask the model all that a report shows.

    Returns
    -------
    payload : dict
        Lists, numbers and texts only. Lists over components have K values, those over rows as many
        as there are rows in the report.
    """
    model, rows, names = subject.model, subject.rows, subject.names
    looked = look_at(model, rows)
    table = component_table(model, rows, looked=looked)
    unusual = unusual_rows(model, rows, n_unusual, looked=looked, names=names)
    fitted, spread = _columns(subject, names[:_MOST_COLUMNS])
    tree = model.merge_tree() if hasattr(model, "merge_tree") and len(table) > 1 else None
    way = None if tree is None or not held_out else _path(subject)
    found = verdict(
        model,
        table,
        calibration=fitted,
        costs=None if tree is None else np.asarray(tree.costs),
        path=way,
        held_out=held_out,
        n_rows=subject.n_rows,
    )
    shown = choose_shown(table, unusual, len(names))
    map_of = make_map(subject, table, shown.rows)
    return {
        "title": title or f"{type(model).__name__} of {len(table):,} components",
        "made": datetime.datetime.now().astimezone().isoformat(timespec="minutes"),
        "version": pickmix.__version__,
        "about": _about(subject),
        "verdict": _verdict(found),
        "trace": _trace(model),
        "path": None if way is None else _path_values(way),
        "tree": _tree(tree, model),
        "columns": names,
        "components": _components(subject, table, shown.place),
        "rows": _rows(subject, table, shown.rows, shown.n_sampled),
        "map": map_of,
        "marginals": _marginals(spread, names),
        "calibration": _calibration(fitted),
        "unusual": [_unusual(row, names, shown.place) for row in unusual],
        "unusualWhy": "" if hasattr(model, "explain") else _no_explanations(model),
    }


def _columns(subject: Subject, names: list[str]) -> tuple[Calibration | None, list[Marginal]]:
    """Calibration and marginals of the first columns, with the names they have."""
    model, rows = subject.model, subject.rows
    columns: Any = names if is_table(model) else list(range(len(names)))
    work = len(names) * int(model.weights_.shape[0])
    most = int(max(500, min(20_000, _CALIBRATION_WORK / work)))
    if not is_closed_form(model) and not hasattr(getattr(model, "component", model), "sample"):
        # Nothing is known of the columns of a mixture that cannot draw rows.
        return None, []
    fitted = calibration(model, rows, columns, max_rows=most)
    spread = marginals(model, rows, columns=columns)
    return replace(fitted, names=tuple(names)), spread


def _no_explanations(model: Any) -> str:
    return (
        f"A {type(model).__name__} does not say which cells make a row unusual. Mixtures in "
        "closed form do: GaussianMixture, FamilyMixture, TableMixture."
    )


def _about(subject: Subject) -> list[list[str]]:
    """What was fitted: names and values."""
    model = subject.model
    mixture = getattr(model, "mixture_", model)
    lines = [("model", type(model).__name__)]
    for name in ("algorithm", "covariance_type", "family", "n_layers", "random_state"):
        value = getattr(model, name, None)
        if value is not None:
            lines.append((name.replace("_", " "), shortened(value)))
    seen = getattr(mixture, "n_rows_seen_", None)
    if seen is not None:
        lines.append(("rows of the fit", f"{seen:,.0f}"))
    lines.append(("columns", f"{len(subject.names):,}"))
    trace: Any = getattr(model, "trace_", ())
    if len(trace):
        lines.append(("seconds of work", f"{float(trace['seconds'][-1]):,.1f}"))
    lines.append(("rows of this report", f"{subject.numbers.shape[0]:,} of {subject.n_rows:,}"))
    return [list(line) for line in lines]


def _path(subject: Subject) -> ComponentPath | None:
    """The path over K on some of the held-out rows; None if it cannot be computed."""
    n_rows, K = subject.numbers.shape[0], subject.model.weights_.shape[0]
    most = int(max(200, min(10_000, _PATH_WORK / K)))
    some = np.unique(np.linspace(0, n_rows - 1, min(n_rows, most)).astype(np.int64))
    try:
        return path(subject.model, take_rows(subject.rows, some))
    except ValueError:
        # Merges far up the tree can be of components that no arithmetic joins well (covariances
        # that are not positive definite any more). The report says much without them.
        return None


def _path_values(way: ComponentPath) -> dict[str, Any]:
    """A path in at most some hundred points."""
    last = way.n_components.shape[0] - 1
    kept = np.unique(np.round(np.geomspace(1, last + 1, _MOST_LEVELS)).astype(np.int64) - 1)
    return {
        "n": way.n_components[kept].tolist(),
        "score": numbers(way.log_likelihood[kept], 6),
        "chosen": way.choose(),
    }


def _verdict(found: Verdict) -> dict[str, Any]:
    return {
        "headline": found.headline,
        "next": found.next,
        "facts": [list(fact) for fact in found.facts],
        "findings": [[f.kind, f.about, f.text, f.advice] for f in found.findings],
    }


def _trace(model: Any) -> dict[str, Any] | None:
    """The course of the fit, thinned."""
    trace: Any = getattr(model, "trace_", ())
    if not len(trace):
        return None
    kept = np.unique(np.linspace(0, len(trace) - 1, _MOST_RECORDS).astype(np.int64))
    found = {
        name: numbers(trace[name][kept], 6)
        for name in ("epoch", "seconds", "log_likelihood", "live_components")
    }
    validation = trace["validation"][kept]
    found["validation"] = numbers(validation, 6) if np.isfinite(validation).any() else []
    return {**found, "isEncoded": is_table(model)}


def _tree(tree: Any, model: Any) -> dict[str, Any]:
    if tree is None:
        why = "A single component has nothing to be merged with."
        if not hasattr(model, "merge_tree"):
            why = (
                f"Components of a {type(model).__name__} cannot be merged in closed form, so there "
                "is no tree of them."
            )
        return {"why": why}
    linkage = np.asarray(tree.linkage)
    return {
        "left": linkage[:, 0].astype(np.int64).tolist(),
        "right": linkage[:, 1].astype(np.int64).tolist(),
        "height": numbers(linkage[:, 2]),
        "cost": numbers(tree.costs, 4),
        "order": np.asarray(tree.order()).tolist(),
    }


def _components(subject: Subject, table: ComponentTable, place: dict[int, int]) -> dict[str, Any]:
    n_centres = min(len(table), max(1, _MOST_CENTRES // len(subject.names)))
    largest = np.argsort(-table.weight, kind="stable")[:n_centres]
    known = np.full_like(table.centre, np.nan)
    known[largest] = table.centre[largest]
    return {
        # All digits: the page adds them up and numbers clusters by them, as the tree does.
        "weight": numbers(table.weight, 17),
        "rows": table.rows.tolist(),
        "side": numbers(table.side, 3),
        "neighbour": table.neighbour.tolist(),
        "separation": numbers(table.separation, 3),
        "typical": [place.get(row, -1) for row in table.typical.tolist()],
        "centre": centres_of(subject.model, subject.names, known),
    }


def _rows(
    subject: Subject, table: ComponentTable, shown: np.ndarray, n_sampled: int
) -> dict[str, Any]:
    rows = take_rows(subject.rows, shown)
    if isinstance(rows, TypedTable):
        kept = {name: rows.columns[name] for name in subject.names if name in rows.columns}
        cells = cells_of(TypedTable(kept, rows.n_rows, rows.origin))
        there = dict(zip(kept, cells, strict=True))
        cells = [there.get(name, [None] * rows.n_rows) for name in subject.names]
    else:
        cells = cells_of(rows)
    ids = subject.ids
    return {
        "n": int(shown.shape[0]),
        "nSampled": n_sampled,
        "number": (subject.numbers[shown] + 1).tolist(),
        "id": None if ids is None else [shortened(ids[row]) for row in shown.tolist()],
        "idName": subject.id_name,
        "component": table.looked.component[shown].tolist(),
        "density": numbers(table.looked.log_density[shown]),
        "cells": cells,
    }


def _marginals(found: list[Marginal], names: list[str]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "kind": marginal.kind,
            "edges": _edges(marginal.edges),
            "levels": [shortened(level) for level in marginal.levels],
            "observed": numbers(marginal.observed, 4),
            "expected": numbers(marginal.expected, 4),
            "distance": number(marginal.distance, 3),
            "n": marginal.n_rows,
            "exact": marginal.exact,
        }
        for marginal, name in zip(found, names, strict=False)
    ]


def _edges(edges: np.ndarray) -> list[Any]:
    if edges.dtype.kind == "M":
        return [str(edge).replace("T", " ")[:10] for edge in edges]
    return list(numbers(edges))


def _calibration(found: Calibration | None) -> dict[str, Any] | None:
    if found is None:
        return None
    low, high = found.band()
    return {
        "shares": [numbers(shares, 3) for shares in found.shares],
        "distance": numbers(found.distances, 3),
        "limit": numbers(found.limit(), 3),
        "low": numbers(low, 3),
        "high": numbers(high, 3),
    }


def _unusual(row: UnusualRow, names: list[str], place: dict[int, int]) -> dict[str, Any]:
    reasons = [
        [
            reason.column,
            _said(reason.observed),
            _said(reason.expected),
            number(reason.spread, 3),
            number(reason.log_conditional, 4),
            reason.is_level,
            reason.unit,
        ]
        for reason in row.reasons
    ]
    return {
        "row": place[row.row],
        "density": number(row.log_density),
        "component": row.component,
        "reasons": reasons,
    }


def _said(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None if value is None else shortened(value)
    return number(value, 6) if math.isfinite(value) else None

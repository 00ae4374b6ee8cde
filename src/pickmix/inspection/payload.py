"""Everything that a report shows, as plain values for JSON."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import pickmix
from pickmix.inspection.calibration import Calibration, calibration
from pickmix.inspection.components import ComponentTable, component_table
from pickmix.inspection.evidence import gather
from pickmix.inspection.marginals import Marginal, marginals
from pickmix.inspection.page import cells, number, numbers, plain, shortened
from pickmix.inspection.shown_rows import choose_shown, make_map
from pickmix.inspection.summaries import cluster_labels, describe_clusters, summarise_columns
from pickmix.inspection.unusual import Reason, UnusualRow, unusual_rows
from pickmix.inspection.verdict import judge
from pickmix.inspection.view import Looked, Rows, View
from pickmix.model.path import ComponentPath, path

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


@dataclass(frozen=True)
class Subject:
    """A fitted mixture, and rows that stand for all of the data."""

    view: View
    rows: Rows
    #: What names the rows (n,), and what the column that names them is called.
    ids: Sequence[str] | None = None
    id_name: str = "id"
    #: Rows of the fit, if they are not those of the report.
    fitted: Rows | None = None


def collect(
    subject: Subject, *, title: str | None, held_out: bool | None, n_unusual: int
) -> dict[str, Any]:
    """Compute all that a report shows, as lists, numbers and texts.

    Lists over components have K values, those over rows as many as there are rows in the report.
    """
    view, rows = subject.view, subject.rows
    estimator, names = view.estimator, view.names
    looked = view.look(rows)
    table = component_table(view, rows, looked=looked)
    unusual = unusual_rows(view, rows, n_unusual, looked=looked)
    fitted, spread = _columns(view, rows)
    tree = estimator.merge_tree() if view.is_closed_form and len(table) > 1 else None
    way = None if tree is None or not held_out else _path(view, rows)
    evidence = gather(
        view,
        table,
        calibration=fitted,
        costs=None if tree is None else np.asarray(tree.costs),
        path=way,
        held_out=held_out,
        n_rows=rows.n_data,
        fitted=None if subject.fitted is None else view.look(subject.fitted),
    )
    shown = choose_shown(table, unusual, len(names))
    return {
        "title": title or f"{type(estimator).__name__} of {len(table):,} components",
        "made": datetime.datetime.now().astimezone().isoformat(timespec="minutes"),
        "version": pickmix.__version__,
        "about": _about(view, rows),
        "verdict": asdict(judge(evidence)),
        "trace": _trace(estimator, rows),
        "path": None if way is None else _path_values(way),
        "tree": _tree(tree, estimator),
        "clusters": _clusters(view, looked, tree),
        "columns": names,
        "summaries": plain(summarise_columns(view, rows)),
        "components": _components(view, table, shown.place),
        "rows": _rows(subject, looked, shown.rows, shown.n_sampled),
        "map": make_map(view, rows, table, shown.rows),
        "marginals": plain(spread),
        "calibration": _calibration(fitted),
        "unusual": [_unusual(row, shown.place) for row in unusual],
        "unusualWhy": "" if view.is_closed_form else _no_explanations(estimator),
    }


def _columns(view: View, rows: Rows) -> tuple[Calibration | None, list[Marginal]]:
    """Calibration and marginals of the first columns."""
    if not view.can_draw:
        # Nothing is known of the columns of a mixture that cannot draw rows.
        return None, []
    columns = list(range(len(view.columns)))[:_MOST_COLUMNS]
    work = len(columns) * view.n_components
    most = int(max(500, min(20_000, _CALIBRATION_WORK / work)))
    return (calibration(view, rows, columns, max_rows=most), marginals(view, rows, columns=columns))


def _no_explanations(estimator: Any) -> str:
    return (
        f"A {type(estimator).__name__} does not say which cells make a row unusual. Mixtures in "
        "closed form do: GaussianMixture, FamilyMixture, TableMixture."
    )


def _about(view: View, rows: Rows) -> list[list[str]]:
    """What was fitted: names and values."""
    estimator = view.estimator
    lines = [("model", type(estimator).__name__)]
    for name in ("algorithm", "covariance_type", "family", "n_layers", "random_state"):
        value = getattr(estimator, name, None)
        if value is not None:
            lines.append((name.replace("_", " "), shortened(value)))
    n_fitted = getattr(estimator, "n_rows_seen_", None)
    if n_fitted is not None:
        lines.append(("rows of the fit", f"{n_fitted:,.0f}"))
    lines.append(("columns", f"{len(view.columns):,}"))
    trace: Any = getattr(estimator, "trace_", ())
    if len(trace):
        lines.append(("seconds of work", f"{float(trace['seconds'][-1]):,.1f}"))
    lines.append(("rows of this report", f"{len(rows):,} of {rows.n_data:,}"))
    return [list(line) for line in lines]


def _path(view: View, rows: Rows) -> ComponentPath | None:
    """The path over K on some of the held-out rows; None if it cannot be computed."""
    most = int(max(200, min(10_000, _PATH_WORK / view.n_components)))
    few = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(np.int64))
    try:
        with view.unnamed():
            return path(view.estimator, rows.take(few).source)
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


def _trace(estimator: Any, rows: Rows) -> dict[str, Any] | None:
    """The course of the fit, thinned."""
    trace: Any = getattr(estimator, "trace_", ())
    if not len(trace):
        return None
    kept = np.unique(np.linspace(0, len(trace) - 1, _MOST_RECORDS).astype(np.int64))
    names = ("epoch", "seconds", "log_likelihood", "live_components")
    course: dict[str, Any] = {name: numbers(trace[name][kept], 6) for name in names}
    validation = trace["validation"][kept]
    course["validation"] = numbers(validation, 6) if np.isfinite(validation).any() else []
    return {**course, "isEncoded": rows.table is not None}


def _tree(tree: Any, estimator: Any) -> dict[str, Any]:
    if tree is None:
        why = "A single component has nothing to be merged with."
        if not hasattr(estimator, "merge_tree"):
            why = (
                f"Components of a {type(estimator).__name__} cannot be merged in closed form, so "
                "there is no tree of them."
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


def _clusters(view: View, looked: Looked, tree: Any) -> Any:
    labels = cluster_labels(view, tree)
    return [] if labels is None else plain(describe_clusters(view, looked, labels))


def _components(view: View, table: ComponentTable, place: dict[int, int]) -> dict[str, Any]:
    n_centres = min(len(table), max(1, _MOST_CENTRES // len(view.columns)))
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
        "centre": [_centres(c, known[:, d]) for d, c in enumerate(view.columns)],
    }


def _centres(column: Any, values: np.ndarray) -> Any:
    """Centres (K,) of components in one column, in the user's terms."""
    if column.levels and column.kind != "level":
        return cells([None if code != code else column.levels[int(code)] for code in values])
    if column.start is not None:
        return cells([None if date == "NaT" else date for date in column.dates(values)])
    return numbers(values)


def _rows(subject: Subject, looked: Looked, shown: np.ndarray, n_sampled: int) -> dict[str, Any]:
    rows, ids = subject.rows.take(shown), subject.ids
    return {
        "n": int(shown.shape[0]),
        "nSampled": n_sampled,
        "number": (rows.numbers + 1).tolist(),
        "id": None if ids is None else [shortened(ids[row]) for row in shown.tolist()],
        "idName": subject.id_name,
        "component": looked.component[shown].tolist(),
        "density": numbers(looked.log_density[shown]),
        "cells": [cells(column) for column in subject.view.cells(rows)],
    }


def _calibration(fitted: Calibration | None) -> dict[str, Any] | None:
    if fitted is None:
        return None
    low, high = fitted.band()
    return {
        "shares": [numbers(shares, 3) for shares in fitted.shares],
        "distance": numbers(fitted.distances, 3),
        "limit": numbers(fitted.limit(), 3),
        "low": numbers(low, 3),
        "high": numbers(high, 3),
    }


def _unusual(row: UnusualRow, place: dict[int, int]) -> dict[str, Any]:
    return {
        "row": place[row.row],
        "density": number(row.log_density),
        "component": row.component,
        "reasons": [_reason(reason) for reason in row.reasons],
    }


def _reason(reason: Reason) -> list[Any]:
    cells = {"observed": reason.observed, "expected": reason.expected}
    # Booleans are levels, with the names that Python gives them.
    named = {name: str(value) for name, value in cells.items() if isinstance(value, bool)}
    return list((plain(reason) | named).values())

"""The page of a report: plain values for JSON, a template, a style sheet and scripts."""

from __future__ import annotations

import datetime
import html
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from importlib import resources
from typing import Any

import numpy as np

import pickmix
from pickmix.inspection.columns import calibration, marginals, summarise_columns
from pickmix.inspection.components import (
    ComponentTable,
    UnusualRow,
    cluster_labels,
    component_table,
    describe_clusters,
    detector_of,
    unusual_rows,
)
from pickmix.inspection.plane import choose_plane, component_moments, coordinates
from pickmix.inspection.verdict import gather, judge
from pickmix.inspection.view import Rows, View, sample_rows
from pickmix.model.path import ComponentPath, path

# Evaluations of components for calibration (tenths of a second) and for the path over K.
_CALIBRATION_WORK, _PATH_WORK = 1e7, 4e6
# Points of the path, records of the trace, and columns with pictures.
_MOST_LEVELS, _MOST_RECORDS, _MOST_COLUMNS = 150, 400, 100
# Cells of centres, about seven bytes each, and of rows, about six.
_MOST_CENTRES, _MOST_CELLS = 150_000, 120_000
_LOADINGS = 3  # Loadings of a component that are shown as pictures.
# Rows of the sample, of each component if there is room, and for principal axes.
_MOST_SAMPLED, _OF_EACH, _FOR_AXES = 3_000, 8, 5_000
_TRACE = ("epoch", "seconds", "log_likelihood", "live_components")
# Scripts in the order in which they run: later ones use what earlier ones define.
_SCRIPTS = ["base", "clusters", "charts", "map", "tree", "table", "details", "columns"]
_SCRIPTS += ["summaries", "unusual", "main"]
# Halves of characters, from texts that were read with the wrong encoding: UTF-8 cannot hold them.
_SURROGATES = re.compile("[\ud800-\udfff]")
# Characters of a text from the data that are shown.
_LONGEST = 120


@dataclass(frozen=True)
class Subject:
    """A fitted mixture, and rows that stand for all of the data."""

    view: View
    rows: Rows
    #: Names of the rows (n,), and of the column that holds them.
    ids: Sequence[str] | None = None
    id_name: str = "id"
    #: Rows of the fit, if they are not those of the report.
    fitted: Rows | None = None


def collect(
    subject: Subject,
    *,
    title: str | None,
    held_out: bool | None,
    n_unusual: int,
    column_shape: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Compute all that a report shows, as lists, numbers and texts.

    Lists over components have K values, those over rows as many as there are rows in the report.
    """
    view, rows, ids = subject.view, subject.rows, subject.ids
    estimator, name, scores = view.estimator, type(view.estimator).__name__, view.score(rows)
    table = component_table(view, rows, scores=scores)
    detector = detector_of(view, rows) if n_unusual else None
    unusual = unusual_rows(view, rows, n_unusual, scores=scores, detector=detector)
    calibrated, spread = None, []
    if view.can_draw:
        columns = list(range(len(view.columns)))[:_MOST_COLUMNS]
        affordable = _CALIBRATION_WORK / (len(columns) * view.n_components)
        most = int(max(500, min(20_000, affordable)))
        calibrated = calibration(view, rows, columns, max_rows=most)
        spread = marginals(view, rows, columns=columns)
    tree = estimator.merge_tree() if view.is_closed_form and len(table) > 1 else None
    over_k = _path(view, rows) if tree is not None and held_out else None
    evidence = gather(
        view,
        table,
        calibration=calibrated,
        costs=None if tree is None else np.asarray(tree.costs),
        path=over_k,
        held_out=held_out,
        n_rows=rows.n_data,
        fitted=None if subject.fitted is None else view.score(subject.fitted),
    )
    labels = cluster_labels(view, tree)
    shown = choose_shown(table, unusual, len(view.columns))
    at = shown.rows
    chosen = rows.take(at)
    return {
        "title": title or f"{name} of {len(table):,} components",
        "made": datetime.datetime.now().astimezone().isoformat(timespec="minutes"),
        "version": pickmix.__version__,
        "about": _about(view, rows),
        "verdict": asdict(judge(evidence)),
        "trace": _trace(estimator, rows),
        "path": None if over_k is None else _path_values(over_k),
        "tree": _tree(tree, estimator),
        "clusters": [] if labels is None else plain(describe_clusters(view, scores, labels)),
        "columns": view.names,
        "summaries": plain(summarise_columns(view, rows)),
        "components": _components(view, table, shown.place),
        "pictures": None if column_shape is None else _pictures(view, table, column_shape),
        "rows": {
            "n": len(chosen),
            "nSampled": shown.n_sampled,
            "number": (chosen.numbers + 1).tolist(),
            "id": None if ids is None else [shortened(ids[row]) for row in at.tolist()],
            "idName": subject.id_name,
            "component": scores.component[at].tolist(),
            "density": plain(scores.log_density[at], 5),
            "cells": [cells(column) for column in view.cells(chosen)],
        },
        "map": _map(view, rows, table, at),
        "marginals": plain(spread),
        "calibration": None
        if calibrated is None
        else {
            "shares": plain(calibrated.shares, 3),
            "distance": plain(calibrated.distances, 3),
            "limit": plain(calibrated.limit(), 3),
            **dict(zip(("low", "high"), plain(calibrated.band(), 3), strict=True)),
        },
        "unusual": [
            {
                "row": shown.place[row.row],
                "density": plain(row.log_density, 5),
                "component": row.component,
                "score": plain(row.score, 3),
                "scale": row.scale,
                "reasons": plain(row.reasons),
            }
            for row in unusual
        ],
        "unusualBy": _unusual_by(view, detector is not None, held_out),
    }


def _unusual_by(view: View, detected: bool, held_out: bool | None) -> str:
    """Which scores the unusual rows are chosen by."""
    reasons = "Each cell is compared with what the other cells of its row suggest."
    if detected:
        return (
            "Rows with the highest scores of a MixtureDetector that was fitted to the rows of this "
            "report. A row is scored by small mixtures that were fitted without it, at several "
            "scales, so that unusual rows cannot hide in a component of their own. The score is "
            "minus the logarithm of the share of these rows that are as unusual. " + reasons
        )
    lowest = "Rows with the lowest log-density under this mixture, of those looked at."
    if not held_out:
        lowest += " If it was fitted to them, some may have a component of their own, and hide."
    name = type(view.estimator).__name__
    return f"{lowest} " + (
        reasons
        if view.is_closed_form
        else f"A {name} does not say which cells make a row unusual. Mixtures in closed form do: "
        "GaussianMixture, FamilyMixture, TableMixture."
    )


def _about(view: View, rows: Rows) -> list[list[str]]:
    """Names and values of what was fitted."""
    estimator = view.estimator
    lines = [["model", type(estimator).__name__]]
    for name in ("algorithm", "covariance_type", "family", "n_layers", "random_state"):
        value = getattr(estimator, name, None)
        if value is not None:
            lines.append([name.replace("_", " "), shortened(value)])
    n_fitted = getattr(estimator, "n_rows_seen_", None)
    if n_fitted is not None:
        lines.append(["rows of the fit", f"{n_fitted:,.0f}"])
    lines.append(["columns", f"{len(view.columns):,}"])
    trace: Any = getattr(estimator, "trace_", ())
    if len(trace):
        lines.append(["seconds of work", f"{float(trace['seconds'][-1]):,.1f}"])
    return [*lines, ["rows of this report", f"{len(rows):,} of {rows.n_data:,}"]]


def _path(view: View, rows: Rows) -> ComponentPath | None:
    """The path over K on a part of the held-out rows; None if it cannot be computed."""
    most = int(max(200, min(10_000, _PATH_WORK / view.n_components)))
    few = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(np.int64))
    try:
        with view.unnamed():
            return path(view.estimator, rows.take(few).source)
    except ValueError:
        # Merges far up the tree may not be computable (covariances that are not positive definite
        # any more). The rest of the report does not need them.
        return None


def _path_values(over_k: ComponentPath) -> dict[str, Any]:
    """A path in at most `_MOST_LEVELS` points."""
    last = over_k.n_components.shape[0] - 1
    kept = np.unique(np.round(np.geomspace(1, last + 1, _MOST_LEVELS)).astype(np.int64) - 1)
    score, chosen = plain(over_k.log_likelihood[kept]), over_k.choose()
    return {"n": over_k.n_components[kept].tolist(), "score": score, "chosen": chosen}


def _trace(estimator: Any, rows: Rows) -> dict[str, Any] | None:
    """The course of the fit, thinned."""
    trace: Any = getattr(estimator, "trace_", ())
    if not len(trace):
        return None
    kept = trace[np.unique(np.linspace(0, len(trace) - 1, _MOST_RECORDS).astype(np.int64))]
    course: dict[str, Any] = {name: plain(kept[name]) for name in _TRACE}
    validated = np.isfinite(kept["validation"]).any()
    course["validation"] = plain(kept["validation"]) if validated else []
    return {**course, "isEncoded": rows.table is not None}


def _tree(tree: Any, estimator: Any) -> dict[str, Any]:
    if tree is None and hasattr(estimator, "merge_tree"):
        return {"why": "A single component has nothing to be merged with."}
    if tree is None:
        reason = "cannot be merged in closed form, so there is no tree of them."
        return {"why": f"Components of a {type(estimator).__name__} {reason}"}
    left, right, height = np.asarray(tree.linkage).T[:3]
    return {
        "left": left.astype(np.int64).tolist(),
        "right": right.astype(np.int64).tolist(),
        "height": plain(height, 5),
        "cost": plain(np.asarray(tree.costs), 4),
        "order": np.asarray(tree.order()).tolist(),
    }


def _components(view: View, table: ComponentTable, place: dict[int, int]) -> dict[str, Any]:
    n_centres = min(len(table), max(1, _MOST_CENTRES // len(view.columns)))
    largest = np.argsort(-table.weight, kind="stable")[:n_centres]
    centres = np.full_like(table.centre, np.nan)
    centres[largest] = table.centre[largest]
    return {
        # All digits: the page adds them up and numbers clusters by them, as the tree does.
        "weight": plain(table.weight, 17),
        "rows": table.rows.tolist(),
        "side": plain(table.side, 3),
        "neighbour": table.neighbour.tolist(),
        "separation": plain(table.separation, 3),
        "typical": [place.get(row, -1) for row in table.typical.tolist()],
        "centre": [_centres(c, centres[:, d]) for d, c in enumerate(view.columns)],
    }


def _pictures(view: View, table: ComponentTable, shape: Sequence[int]) -> dict[str, Any]:
    """The shape of pictures, and the first loadings of the heaviest components that have some."""
    found = np.asarray(getattr(view.estimator, "loadings_", np.zeros((len(table), 1, 0))))
    n_shown = _MOST_CENTRES // (_LOADINGS * len(view.columns))
    loadings: list[Any] = [[] for _ in range(len(table))]
    for k in np.argsort(-table.weight, kind="stable")[:n_shown].tolist():
        first = found[k, :, :_LOADINGS].T
        loadings[k] = plain(first[first.any(axis=1)], 3)
    return {"shape": [int(size) for size in shape], "loadings": loadings}


def _centres(column: Any, values: np.ndarray) -> Any:
    """Centres (K,) of components in one column, in the user's terms."""
    if column.levels and column.kind != "level":
        return cells([None if code != code else column.levels[int(code)] for code in values])
    if column.start is not None:
        return cells([None if date == "NaT" else date for date in column.dates(values)])
    return plain(values, 5)


# Rows and the map.


@dataclass(frozen=True)
class Shown:
    """Rows of a report."""

    #: Their numbers (n,) among those that were read. The sample comes first.
    rows: np.ndarray
    #: How many of them are the sample, which stands for all rows.
    n_sampled: int
    #: From the number of a row to its place in the report.
    place: dict[int, int]


def choose_shown(table: ComponentTable, unusual: Sequence[UnusualRow], n_columns: int) -> Shown:
    """Choose the rows of a report.

    First a sample, for the map. Then unusual rows, the typical rows of all components, the heaviest
    first, and a few more of each component, as far as there is room.
    """
    component = table.scores.component
    room = max(600, _MOST_CELLS // n_columns)
    sample = sample_rows(component.shape[0], min(_MOST_SAMPLED, room // 2))
    typical = table.typical[np.argsort(-table.weight, kind="stable")]
    # The first rows of every component, then the second ones, and so on.
    order = np.argsort(component, kind="stable")
    turn = np.arange(order.shape[0]) - np.searchsorted(component[order], component[order])
    few = turn < _OF_EACH
    of_each = order[few][np.argsort(turn[few], kind="stable")]
    every = np.concatenate(
        [
            sample,
            np.array([row.row for row in unusual], dtype=np.int64),
            typical[typical >= 0][: room // 2],
            of_each[: max(0, room - sample.size)],
        ]
    )
    # The first of each, in this order.
    _, first = np.unique(every, return_index=True)
    rows = every[np.sort(first)]
    place = {row: place for place, row in enumerate(rows.tolist())}
    return Shown(rows, int(sample.shape[0]), place)


def _map(view: View, rows: Rows, table: ComponentTable, shown: np.ndarray) -> dict[str, Any]:
    """Positions of rows, and centres and covariances of components, in a plane."""
    plane = choose_plane(view, rows.take(sample_rows(len(rows), _FOR_AXES)))
    points = plane.project(coordinates(view, rows.take(shown)))
    if view.is_closed_form:
        centres, covariances = component_moments(view, plane)
    else:
        projected = plane.project(coordinates(view, rows))
        centres, covariances = _moments(projected, table.scores.component, view.n_components)
    names = list(plane.names)
    if not names[1]:
        # A single column has no second axis: rows are spread along one at random.
        names[1] = "spread at random"
        width = 0.2 * max(float(np.nanstd(points[:, 0])), 1e-12)
        points[:, 1] = width * np.random.default_rng(0).uniform(-1.0, 1.0, points.shape[0])
        centres[:, 1] = 0.0
        covariances[:, 0, 1] = covariances[:, 1, 0] = 0.0
        covariances[:, 1, 1] = 0.25 * width**2
    positions = zip(("x", "y", "cx", "cy"), (*points.T, *centres.T), strict=True)
    shapes = zip(("xx", "xy", "yy"), covariances[:, [0, 0, 1], [0, 1, 1]].T, strict=True)
    return {
        "names": names,
        **{name: plain(values, 4) for name, values in positions},
        **{name: plain(values, 3) for name, values in shapes},
    }


def _moments(
    points: np.ndarray, component: np.ndarray, n_components: int
) -> tuple[np.ndarray, np.ndarray]:
    """Means (K, 2) and covariances (K, 2, 2) of the points of each component; NaN without any."""
    complete = ~np.isnan(points).any(axis=1)
    points, component = points[complete], component[complete]
    counts = np.bincount(component, minlength=n_components).astype(np.float64)
    counts[counts == 0.0] = np.nan
    sums, squares = np.zeros((n_components, 2)), np.zeros((n_components, 2, 2))
    np.add.at(sums, component, points)
    centres = sums / counts[:, None]
    away = points - centres[component]
    np.add.at(squares, component, away[:, :, None] * away[:, None, :])
    return centres, squares / counts[:, None, None]


# The page and its values.


def render(payload: dict[str, Any]) -> str:
    """Fill the template: one text without any reference to another file."""
    script = "\n".join(_read(f"{name}.js") for name in _SCRIPTS)
    parts = {
        "TITLE": html.escape(str(payload["title"])),
        "STYLE": _read("report.css"),
        "SCRIPT": f"(() => {{\n'use strict';\n{script}\n}})();",
        "DATA": embeddable(payload),
    }
    # Split once, so that nothing is replaced in the data.
    pieces = _read("report.html").split("@@")
    page = "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces))
    return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", page)


def _read(name: str) -> str:
    return resources.files("pickmix.inspection").joinpath("assets", name).read_text("utf-8")


def embeddable(payload: Any) -> str:
    """JSON that cannot end the element it stands in, or start another one.

    >>> embeddable(["</script>"])
    '["\\\\u003c/script\\\\u003e"]'
    """
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        # Outside strings JSON has none of them.
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def shortened(text: Any) -> str:
    """A text that is not too long to show."""
    text = str(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def plain(value: Any, digits: int = 6) -> Any:
    """Values, arrays and data classes as lists, dicts, short numbers and texts; None is NaN.

    >>> plain((0.123456789, np.array([0.0, np.nan]), 1234567.0, True, "a", None))
    [0.123457, [0, None], 1234567, True, 'a', None]
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        number = float(value)
        if not math.isfinite(number):
            return None
        is_whole = number == int(number) and abs(number) < 1e15
        return int(number) if is_whole else float(f"{number:.{digits}g}")
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name), digits) for f in fields(value)}
    if isinstance(value, np.ndarray) and value.dtype.kind == "M":
        return [str(date).replace("T", " ")[:10] for date in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist(), digits)
    if isinstance(value, list | tuple):
        return [plain(each, digits) for each in value]
    return shortened(value)


def cells(column: list[Any]) -> list[int | float | None] | dict[str, Any]:
    """A column of plain objects: numbers, or codes and distinct texts. None and -1 are missing.

    >>> cells(["a", "b", None, "a"])
    {'texts': ['a', 'b'], 'codes': [0, 1, -1, 0]}
    """
    if not any(isinstance(value, bool | str) for value in column):
        return [plain(value) for value in column]
    known: dict[str, int] = {}
    codes = [
        -1 if value is None else known.setdefault(shortened(value), len(known)) for value in column
    ]
    return {"texts": list(known), "codes": codes}

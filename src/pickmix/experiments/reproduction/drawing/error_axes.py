"""Errors of a panel: AE at t95 against the time and the evaluations to t95."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pickmix.experiments.reproduction.drawing.shown import Shown, by_algorithm
from pickmix.experiments.reproduction.drawing.style import (
    SHAPES,
    WITHOUT,
    X_LABELS_AT_T95,
    Look,
    look_of,
)
from pickmix.experiments.reproduction.history import History
from pickmix.experiments.reproduction.measures import t95
from pickmix.experiments.reproduction.panels import ErrorPanel

Shapes = Mapping[tuple[str, float | None], str]


def shapes_of(panels: list[ErrorPanel]) -> dict[tuple[str, float | None], str]:
    """Marker of each value of each parameter, the same in all panels of a figure."""
    shapes: dict[tuple[str, float | None], str] = {}
    for varies in dict.fromkeys(panel.varies for panel in panels):
        runs = [run for panel in panels if panel.varies == varies for run in panel.runs]
        values = {getattr(run, varies, None) for run in runs}
        for rank, value in enumerate(sorted(value for value in values if value is not None)):
            shapes[varies, value] = SHAPES[rank % len(SHAPES)]
        if None in values:
            shapes[varies, None] = WITHOUT
    return shapes


def draw_errors(
    column: Any,
    panel: ErrorPanel,
    histories: Mapping[str, History],
    percentiles: tuple[float, float],
    shapes: Shapes,
) -> Shown:
    """Draw a panel into its column of two axes."""
    shown = Shown()
    smallest = np.inf
    for axes, x in zip(column, X_LABELS_AT_T95, strict=True):
        for algorithm, records in by_algorithm(panel.runs, histories).items():
            points = _points(records, panel.varies, x)
            if not points:
                continue
            look = look_of(algorithm)
            middles = np.array([np.median(seeds, axis=0) for seeds in points.values()])
            axes.plot(*middles.T, **look.line, label=algorithm)
            for (value, seeds), middle in zip(points.items(), middles, strict=True):
                _draw_value(axes, middle, shapes[panel.varies, value], look, value)
                if len(seeds) > 1:
                    ends = np.percentile(seeds[:, 1], percentiles)
                    axes.vlines(middle[0], *ends, color=look.colour, linewidth=0.9, alpha=0.6)
                shown.values.add((panel.varies, value))
                shown.counts.append(len(seeds))
                smallest = min(smallest, float(seeds[:, 1].min()))
            shown.algorithms.add(algorithm)
        if axes.lines:
            axes.set_xscale("log")
    if shown.counts and smallest > 0.0:
        column[0].set_yscale("log")
    return shown


def _points(records: list[History], varies: str, x: str) -> dict[float | None, np.ndarray]:
    """x at t95 and AE of each seed, (S, 2), by rising value of the parameter."""
    found: dict[float | None, list[tuple[float, float]]] = {}
    for record in records:
        point = t95(record.series)
        truth = float(record.facts["true_log_likelihood"])
        pair = (getattr(point, x), abs(point.log_likelihood - truth))
        if np.isfinite(pair).all():
            found.setdefault(getattr(record.run, varies, None), []).append(pair)
    rising = sorted(found, key=lambda value: -np.inf if value is None else value)
    points = {value: np.array(found[value]) for value in rising}
    # A start that is never left has no place on a logarithmic axis.
    return {value: seeds for value, seeds in points.items() if np.median(seeds[:, 0]) > 0.0}


def _draw_value(axes: Any, middle: np.ndarray, shape: str, look: Look, value: float | None) -> None:
    axes.plot(
        *middle[:, None],
        linestyle="none",
        marker=shape,
        markersize=7.5 if shape in "+*" else 5.0,
        markerfacecolor=look.colour,
        # A plus is all edge.
        markeredgecolor=look.colour if shape == "+" else "white",
        markeredgewidth=1.8 if shape == "+" else 0.5,
        label=f"_{value}",
        zorder=4,
    )

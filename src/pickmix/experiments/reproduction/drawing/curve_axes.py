"""Curves of a panel: medians over seeds with bands, against time and against evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pickmix.experiments.colours import INK
from pickmix.experiments.curves import median_curve
from pickmix.experiments.reproduction.drawing.shown import Shown, by_algorithm, median_truth
from pickmix.experiments.reproduction.drawing.style import (
    DOTS,
    SPARSE_DOTS,
    X_LABELS,
    Look,
    look_of,
    marker_size,
)
from pickmix.experiments.reproduction.history import History
from pickmix.experiments.reproduction.measures import t95_index
from pickmix.experiments.reproduction.panels import CurvePanel

# Drawn over a logarithmic y axis.
_LOG = ("bias", "bias_by_chance")
# Of the level of the log-likelihood; where ends are closer, no more is made of the difference.
_SMALLEST_SPREAD = 0.02
# In spreads of the ends.
_FURTHEST_TRUTH = 2.0
_MARKERS = 4


class Line(NamedTuple):
    """A line as it is drawn: x, median and band, (P,) each, and y of its t95 mark or NaN."""

    x: np.ndarray
    median: np.ndarray
    low: np.ndarray
    high: np.ndarray
    mark: float = math.nan


def draw_curves(
    column: Any,
    panel: CurvePanel,
    histories: Mapping[str, History],
    percentiles: tuple[float, float],
) -> Shown:
    """Draw a panel into its column of two axes."""
    groups = by_algorithm(panel.runs, histories)
    shown = Shown()
    rows: list[list[Line]] = []
    for axes, x in zip(column, X_LABELS, strict=True):
        lines = []
        for position, (algorithm, records) in enumerate(groups.items()):
            curves = curves_of(records, x, panel.y)
            if not curves:
                continue
            look = look_of(algorithm)
            line = line_of(curves, percentiles)
            _draw_line(axes, line, algorithm, look, position / len(groups))
            shown.algorithms.add(algorithm)
            shown.counts.append(len(curves))
            if panel.marks_t95:
                line = line._replace(mark=_draw_t95(axes, records, x, panel.y, look))
                shown.notes |= set() if math.isnan(line.mark) else {"t95"}
            if panel.y == "bias":
                by_chance = curves_of(records, x, "bias_by_chance")
                if by_chance:
                    _draw_chance(axes, by_chance, look)
                    shown.notes.add("chance")
            lines.append(line)
        if axes.lines:
            axes.set_xscale("log")
        rows.append(lines)
    if shown.counts and panel.y == "log_likelihood":
        truth = median_truth(record for records in groups.values() for record in records)
        _finish_likelihood(column, rows, truth)
        shown.notes |= {"truth"} if math.isfinite(truth) else set()
    elif shown.counts:
        _finish_y(column, panel)
    return shown


def curves_of(records: list[History], x: str, y: str) -> list[np.ndarray]:
    """Points (P, 2) of each history that has any a figure can show, by rising x > 0."""
    curves = []
    for record in records:
        points = np.column_stack([record.series[x], record.series[y]]).astype(float)
        kept = np.isfinite(points).all(axis=1) & (points[:, 0] > 0.0)
        if y in _LOG:
            kept &= points[:, 1] > 0.0
        points = points[kept]
        if len(points):
            curves.append(points[np.argsort(points[:, 0], kind="stable")])
    return curves


def line_of(curves: list[np.ndarray], percentiles: tuple[float, float]) -> Line:
    """Median and percentiles over curves with points of their own, as `median_curve` joins them.

    Examples
    --------
    >>> curves = [np.array([[1.0, y], [100.0, y + 2.0]]) for y in (0.0, 1.0, 5.0)]
    >>> line = line_of(curves, (0.0, 100.0))
    >>> float(line.median[0]), float(line.low[-1]), float(line.high[-1])
    (1.0, 2.0, 7.0)
    """
    x, middle = median_curve(curves)
    values = [np.interp(np.log(x), np.log(curve[:, 0]), curve[:, 1]) for curve in curves]
    low, high = np.percentile(values, percentiles, axis=0)
    if x[0] == x[-1]:
        return Line(x[:1], middle[:1], low[:1], high[:1])
    return Line(x, middle, low, high)


def _draw_line(axes: Any, line: Line, label: str, look: Look, shift: float) -> None:
    # Markers of different lines are shifted, so that lines on top of each other show both.
    gap = max(line.x.size // _MARKERS, 1)
    axes.plot(
        line.x,
        line.median,
        **look.line,
        label=label,
        marker=look.marker,
        markersize=marker_size(look),
        markevery=(int(shift * gap), gap) if line.x.size > 1 else None,
        markeredgecolor="white",
        markeredgewidth=0.4,
    )
    if line.x.size == 1:
        axes.vlines(line.x, line.low, line.high, color=look.colour, linewidth=0.9, alpha=0.6)
    elif (line.high > line.low).any():
        axes.fill_between(
            line.x, line.low, line.high, color=look.colour, alpha=0.13, linewidth=0.0, zorder=1.5
        )


def _draw_t95(axes: Any, records: list[History], x: str, y: str, look: Look) -> float:
    """Mark the median over seeds of where t95 is; its y, NaN if there is none."""
    points = []
    for record in records:
        index = t95_index(record.series["log_likelihood"])
        if index >= 0:
            points.append((float(record.series[x][index]), float(record.series[y][index])))
    points = [point for point in points if np.isfinite(point).all()]
    if not points:
        return math.nan
    at, height = np.median(points, axis=0)
    # A start that is never left has no place on a logarithmic axis.
    if at <= 0.0 or (y in _LOG and height <= 0.0):
        return math.nan
    axes.plot(
        [at],
        [height],
        linestyle="none",
        marker="o",
        markersize=6.0,
        markerfacecolor="none",
        markeredgecolor=look.colour,
        markeredgewidth=1.2,
        label="_t95",
        zorder=4,
    )
    return float(height)


def _draw_chance(axes: Any, curves: list[np.ndarray], look: Look) -> None:
    x, y = median_curve(curves)
    axes.plot(x, y, color=look.colour, linewidth=0.9, linestyle=DOTS, label="_chance", zorder=2)


def _finish_y(column: Any, panel: CurvePanel) -> None:
    """Scale, limits and 1/K; the axes of a column share y."""
    if panel.y in _LOG:
        column[0].set_yscale("log")
    elif panel.y == "acceptance":
        column[0].set_ylim(0.0, 1.05)
        K = {getattr(run, "K", None) for run in panel.runs}
        common = K.pop()
        if not K and common is not None:
            _draw_across(column, 1.0 / common, "1/K")
            for axes in column:
                # On the right, where chains have left it.
                _write(axes, "1/K", (0.99, 1.0 / common), "right", "bottom")


def _finish_likelihood(column: Any, rows: list[list[Line]], truth: float) -> None:
    """Limits, and a line at the truth; where that is far from all ends, words instead."""
    bottom, top = limits([line for lines in rows for line in lines], truth)
    column[0].set_ylim(bottom, top)
    if math.isfinite(truth):
        _draw_across(column, truth, "true mixture")
    for axes, lines in zip(column, rows, strict=True):
        if truth > top:
            _write(axes, f"true mixture {truth:.4g} (above)", (0.02, top), "left", "top")
        elif truth < bottom:
            _write(axes, f"true mixture {truth:.4g} (below)", (0.02, bottom), "left", "bottom")
        # What is cut off below would leave the left empty.
        begins = [line.x[line.median >= bottom][:1] for line in lines]
        if np.concatenate([*begins, []]).size:
            axes.set_xlim(left=float(np.concatenate(begins).min()) / 1.4)


def limits(lines: list[Line], truth: float) -> tuple[float, float]:
    """Range of a log-likelihood that holds the ends; the steep rise before is cut off below.

    Bands count for one spread of the ends at most: seeds have data of their own and may differ by
    more than algorithms do. Marks and the truth are in it unless they would press ends together.
    """
    ends = np.array([line.median[-1] for line in lines])
    highest = max(float(line.median.max()) for line in lines)
    low = float(np.percentile(ends, 10.0))
    spread = max(highest - low, _SMALLEST_SPREAD * max(abs(highest), 0.5))
    bottom = low - 0.6 * spread
    # Of a line that ends below, the mark is below, too.
    marks = [line.mark for line in lines if line.median[-1] >= bottom and math.isfinite(line.mark)]
    bottom = min([bottom, *(mark - 0.3 * spread for mark in marks)])
    top = min(max(float(line.high.max()) for line in lines), highest + spread)
    if top < truth < highest + _FURTHEST_TRUTH * spread:
        top = truth
    if low - _FURTHEST_TRUTH * spread < truth < bottom:
        bottom = truth
    margin = 0.06 * (top - bottom)
    return bottom - margin, top + margin


def _draw_across(column: Any, y: float, label: str) -> None:
    for axes in column:
        axes.axhline(
            y, color=INK, linewidth=1.0, linestyle=SPARSE_DOTS, label=f"_{label}", zorder=2
        )


def _write(axes: Any, text: str, at: tuple[float, float], ha: str, va: str) -> None:
    """Write at a share of the width and a value of y."""
    axes.annotate(
        text,
        xy=at,
        xycoords=("axes fraction", "data"),
        xytext=(0, -2 if va == "top" else 2),
        textcoords="offset points",
        ha=ha,
        va=va,
        color=INK,
        fontsize=7.0,
        zorder=5,
    )

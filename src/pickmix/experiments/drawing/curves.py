"""Curves of a panel: medians over seeds with bands, against time and against evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pickmix.displays.colours import INK
from pickmix.experiments.catalogue import Panel
from pickmix.experiments.drawing.style import DOTS, RING, SPARSE_DOTS, X_LABELS, Legend, look_of
from pickmix.experiments.measures import at, median, t95_index
from pickmix.experiments.store import History

# Drawn over a logarithmic y axis.
_LOG = ("bias", "bias_by_chance")
_TRUTHS = {"log_likelihood": "true_log_likelihood", "validation": "true_validation"}
# Of the level of the log-likelihood; where ends are closer, no more is made of the difference.
_SMALLEST_SPREAD = 0.02
# In spreads of the ends.
_FURTHEST_TRUTH = 2.0
_MARKERS, _POINTS = 4, 200


class Line(NamedTuple):
    """A line as it is drawn: x, median and band, (P,) each, and y of its t95 mark or NaN."""

    x: np.ndarray
    median: np.ndarray
    low: np.ndarray
    high: np.ndarray
    mark: float = math.nan


def draw_curves(
    column: Any,
    panel: Panel,
    histories: Mapping[str, History],
    percentiles: tuple[float, float],
    legend: Legend,
) -> None:
    """Draw a panel into its column of two axes; failed runs are left out."""
    groups: dict[str, list[History]] = {}
    for key in dict.fromkeys(run.key for run in panel.runs if run.key in histories):
        if not histories[key].failed:
            groups.setdefault(histories[key].run.algorithm, []).append(histories[key])
    lines: list[list[Line]] = [[], []]
    for axes, x, of_axes in zip(column, X_LABELS, lines, strict=True):
        for position, records in enumerate(groups.values()):
            curves = curves_of(records, x, panel.shows)
            if curves:
                legend.counts.append(len(curves))
                line = line_of(curves, percentiles)
                shift = position / len(groups)
                of_axes.append(_draw_line(axes, panel, records, x, line, shift, legend))
        if axes.lines:
            axes.set_xscale("log")
    if any(lines) and panel.shows in _TRUTHS:
        # Each seed once.
        known = [h for records in groups.values() for h in records]
        truth = median(list({h.run.seed: h.facts[_TRUTHS[panel.shows]] for h in known}.values()))
        _finish_likelihood(column, lines, truth)
        if math.isfinite(truth):
            legend.add(2, "true mixture", color=INK, linestyle=SPARSE_DOTS, linewidth=1.0)
    elif panel.shows in _LOG and any(lines):
        column[0].set_yscale("log")
    elif panel.shows == "acceptance" and any(lines):
        column[0].set_ylim(0.0, 1.05)
        numbers = [getattr(run, "K", math.nan) for run in panel.runs]
        if len(set(numbers)) == 1:
            for axes in column:
                # Its name is on the right, where chains have left it.
                _draw_across(axes, 1.0 / numbers[0], "1/K", "1/K", "right", "bottom")


def curves_of(records: list[History], x: str, y: str) -> list[np.ndarray]:
    """Points (P, 2) of each history that has any a figure can show, by rising x > 0."""
    curves = []
    for record in records:
        points = np.column_stack([record.series[x], record.series[y]]).astype(float)
        kept = np.isfinite(points).all(axis=1) & (points[:, 0] > 0.0)
        if y in _LOG:
            kept &= points[:, 1] > 0.0
        if kept.any():
            curves.append(points[kept][np.argsort(points[kept, 0], kind="stable")])
    return curves


def line_of(curves: list[np.ndarray], percentiles: tuple[float, float]) -> Line:
    """Median and percentiles over seeds of curves with points of their own.

    Curves are arrays (P, 2) of points by rising x > 0. Each is interpolated linearly over the
    logarithm of x, and stays at its end once it has ended. The line runs from where all have begun
    to the median of their ends; if that is one place, it has one point, else 200.
    """
    first = max(curve[0, 0] for curve in curves)
    last = max(first, float(np.median([curve[-1, 0] for curve in curves])))
    x = np.geomspace(first, last, _POINTS) if last > first else np.array([first])
    values = [np.interp(np.log(x), np.log(curve[:, 0]), curve[:, 1]) for curve in curves]
    low, high = np.percentile(values, percentiles, axis=0)
    return Line(x, np.median(values, axis=0), low, high)


def _draw_with_end(
    axes: Any, shows: str, records: list[History], x: str, line: Line, legend: Legend
) -> Line:
    """Draw a line and the end of fits that came to one."""
    algorithm = records[0].run.algorithm
    look = look_of(algorithm)
    ended = [record for record in records if math.isfinite(record.facts["test"])]
    words = algorithm if ended else f"{algorithm} (not finished)"
    legend.add(0, words, **look.line, **look.points)
    if line.x.size > 1 or not ended:
        axes.plot(line.x, line.median, **look.line, label=algorithm)
    ends = [median([h.series[name][-1] for h in ended]) for name in (x, shows)]
    if ends[0] > 0.0:
        large = {"markersize": 1.6 * look.points["markersize"], "linestyle": "none"}
        axes.plot(*ends, **{**look.points, **large}, label="_end", zorder=4)
    return line


def _draw_line(
    axes: Any,
    panel: Panel,
    records: list[History],
    x: str,
    line: Line,
    shift: float,
    legend: Legend,
) -> Line:
    """Draw a line, its band and what is marked on it; the line with its mark."""
    if panel.marks == "ends":
        return _draw_with_end(axes, panel.shows, records, x, line, legend)
    algorithm = records[0].run.algorithm
    look = look_of(algorithm)
    legend.add(0, algorithm, **look.line, **look.points)
    # Markers of different lines are shifted, so that lines on top of each other show both.
    gap = max(line.x.size // _MARKERS, 1)
    every = (int(shift * gap), gap) if line.x.size > 1 else None
    axes.plot(line.x, line.median, **look.line, **look.points, label=algorithm, markevery=every)
    if line.x.size == 1:
        axes.vlines(line.x, line.low, line.high, color=look.colour, linewidth=0.9, alpha=0.6)
    elif (line.high > line.low).any():
        band = {"color": look.colour, "alpha": 0.13, "linewidth": 0.0, "zorder": 1.5}
        axes.fill_between(line.x, line.low, line.high, **band)
    by_chance = curves_of(records, x, "bias_by_chance") if panel.shows == "bias" else []
    if by_chance:
        chance, dots = line_of(by_chance, (0.0, 100.0)), {"linestyle": DOTS, "linewidth": 0.9}
        axes.plot(chance.x, chance.median, **dots, color=look.colour, label="_chance", zorder=2)
        legend.add(2, "exact draws", color=INK, **dots)
    if panel.marks == "t95":
        indices = [t95_index(record.series["log_likelihood"]) for record in records]
        marks = [
            median([at(h, i, name) for h, i in zip(records, indices, strict=True)])
            for name in (x, panel.shows)
        ]
        # A start that is never left has no place on a logarithmic axis.
        if marks[0] > 0.0:
            ring = {**RING, "markersize": 6.0, "markeredgecolor": look.colour}
            axes.plot(*marks, **ring, label="_t95", zorder=4)
            legend.add(2, "t95", color=INK, **RING)
            return line._replace(mark=marks[1])
    return line


def _finish_likelihood(column: Any, rows: list[list[Line]], truth: float) -> None:
    """Limits, and a line at the truth; where that is far from all ends, words as well."""
    bottom, top = limits([line for lines in rows for line in lines], truth)
    column[0].set_ylim(bottom, top)
    for axes, lines in zip(column, rows, strict=True):
        if math.isfinite(truth):
            above, below = truth > top, truth < bottom
            words = f"true mixture {truth:.4g} ({'above' if above else 'below'})"
            place = (words if above or below else "", "left", "top" if above else "bottom")
            _draw_across(axes, truth, "true mixture", *place, at=min(max(truth, bottom), top))
        # What is cut off below would leave the left empty.
        begins = np.concatenate([[], *(line.x[line.median >= bottom][:1] for line in lines)])
        if begins.size:
            axes.set_xlim(left=float(begins.min()) / 1.4)


def limits(lines: list[Line], truth: float) -> tuple[float, float]:
    """Range of a log-likelihood that holds the ends; the steep rise before is cut off below.

    Bands count for one spread of the ends at most: seeds have data of their own and may differ by
    more than algorithms do. Marks and the truth are in it unless they would press ends together.
    """
    highest = max(float(line.median.max()) for line in lines)
    low = float(np.percentile([line.median[-1] for line in lines], 10.0))
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


def _draw_across(
    axes: Any, y: float, label: str, words: str, ha: str, va: str, at: float | None = None
) -> None:
    """A level that lines are compared with, and words at it or at another height."""
    look = {"color": INK, "linewidth": 1.0, "linestyle": SPARSE_DOTS, "zorder": 2}
    axes.axhline(y, **look, label=f"_{label}")
    if words:
        place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        text = {"ha": ha, "va": va, "color": INK, "fontsize": 7.0, "zorder": 5}
        corner = (0.99 if ha == "right" else 0.02, y if at is None else at)
        axes.annotate(words, corner, (0, -2 if va == "top" else 2), **place, **text)

"""Pictures of a bench's results: held-out log-likelihood against time and against evaluations."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pickmix.experiments.colours import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    GRID,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
)
from pickmix.experiments.results import CURVE, END, Results, Row
from pickmix.experiments.tables import median, rivals_of


class Style(NamedTuple):
    """How a rival looks: also told apart by marker and dashes, in print and without colours."""

    colour: str
    marker: str
    dashes: str = "-"
    hollow: bool = False


STYLES = {
    "sklearn-kmeans": Style(BLACK, "s"),
    "sklearn-k-means++": Style(BLACK, "d"),
    "sklearn-kmeans-one-thread": Style(BLACK, "s", hollow=True),
    "sklearn-k-means++-one-thread": Style(BLACK, "d", hollow=True),
    "pickmix": Style(VERMILION, "o"),
    "em": Style(BLUE, "^"),
    "saem": Style(SKY, "v", "--"),
    "ssaem": Style(SKY, "<", ":"),
    "tsaem": Style(GREEN, "D"),
    "mcsaem": Style(ORANGE, ">", "--"),
    "mhsaem-uniform": Style(ORANGE, "P", ":"),
    "mhsaem-table-forgetting": Style(PURPLE, "X", "-."),
    "faiss-kmeans": Style(GREY, "p"),
    "gmmx": Style(GREY, "*"),
    "pomegranate": Style(GREY, "h"),
}
_OTHER = Style(GREY, ".")
_POINTS = 200
# In spreads of the ends.
_FURTHEST_TRUTH = 2.0
_AXES = {
    "seconds": "seconds, with the start",
    "evaluations_per_row": "evaluations of a component per row",
}


def draw(results: Results, setting: str, path: Path) -> Path | None:
    """Draw one setting; None if no run of it was measured.

    Lines are medians over seeds of what our algorithms reached on the way, markers the ends of all
    rivals. Both are measured on the first 5,000 held-out rows at most.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Plots need matplotlib: pip install pickmix[plot]") from error
    rivals = [
        rival
        for rival in rivals_of(results, setting)
        if _curves(results, setting, rival, "seconds")
    ]
    if not rivals:
        return None
    # A Figure of its own needs no display and leaves pyplot's state alone.
    figure = Figure(figsize=(13.0, 5.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (column, label) in zip(panels, _AXES.items(), strict=True):
        for rival in rivals:
            _draw_rival(axes, results, setting, rival, column)
        axes.set_xscale("log")
        axes.set_xlabel(label, color=INK)
        axes.grid(color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=INK, labelsize=9)
    panels[0].set_ylabel("held-out log-likelihood per row", color=INK)
    truth = _truth(results, setting)
    bottom, top = _limits(results, setting, rivals, truth)
    panels[0].set_ylim(bottom, top)
    if not math.isnan(truth):
        _draw_truth(panels, truth, top)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9)
    n_seeds = len({row["seed"] for row in results.rows if row["setting"] == setting})
    over = f", median over {n_seeds} seeds" if n_seeds > 1 else ""
    panels[0].set_title(f"{setting}{over}", loc="left", fontsize=11)
    figure.savefig(path, dpi=200)
    return path


def _draw_truth(panels: Any, truth: float, top: float) -> None:
    """Draw a line at the truth, or where it is far above all rivals only say so."""
    for axes in panels:
        axes.axhline(truth, color=INK, linewidth=1.2, linestyle=(0, (1, 3)))
    panels[0].annotate(
        f"true mixture {truth:.3f}" + (" (above)" if truth > top else ""),
        xy=(0.01, min(truth, top)),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3 if truth <= top else -11),
        textcoords="offset points",
        color=INK,
        fontsize=9,
    )


def _measured(results: Results, setting: str, rival: str) -> list[Row]:
    ends = results.of(setting, rival, END)
    return [row for row in ends if not math.isnan(row["held_out_some"])]


def _truth(results: Results, setting: str) -> float:
    rows = [row for row in results.rows if row["setting"] == setting and row["kind"] == END]
    by_seed = {row["seed"]: row for row in rows if not math.isnan(row["true_held_out_some"])}
    return median(by_seed.values(), "true_held_out_some")


def _draw_rival(axes: Any, results: Results, setting: str, rival: str, column: str) -> None:
    style = STYLES.get(rival, _OTHER)
    wide = rival == "pickmix"
    curves = [curve for curve in _curves(results, setting, rival, column) if len(curve) > 1]
    ends = _measured(results, setting, rival)
    if curves:
        axes.plot(
            *median_curve(curves),
            color=style.colour,
            linestyle=style.dashes,
            linewidth=2.4 if wide else 1.6,
            # Fits that were ended on the way have no marker to carry it.
            label=None if ends else f"{rival} (not finished)",
        )
    x, y = median(ends, column), median(ends, "held_out_some")
    if math.isnan(x):
        return
    axes.plot(
        [x],
        [y],
        color=style.colour,
        marker=style.marker,
        markersize=11 if wide or style.marker == "*" else 8,
        markerfacecolor="white" if style.hollow else style.colour,
        markeredgecolor=style.colour if style.hollow else "white",
        markeredgewidth=1.6 if style.hollow else 0.8,
        # The legend shows the dashes of those that have a line.
        linestyle=style.dashes if curves else "none",
        label=rival,
        zorder=3,
    )


def _curves(results: Results, setting: str, rival: str, column: str) -> list[np.ndarray]:
    """Points (P, 2) of each seed that was measured, the end among them, by rising x > 0."""
    rows = results.of(setting, rival, CURVE) + _measured(results, setting, rival)
    curves = []
    for seed in dict.fromkeys(row["seed"] for row in rows):
        points = np.array(
            [(row[column], row["held_out_some"]) for row in rows if row["seed"] == seed]
        )
        points = points[np.isfinite(points).all(axis=1) & (points[:, 0] > 0.0)]
        if len(points):
            curves.append(points[np.argsort(points[:, 0], kind="stable")])
    return curves


def median_curve(curves: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Median over seeds of curves with points of their own.

    Each is interpolated linearly over the logarithm of x, and stays at its end once it has ended.
    The median runs from where all have begun to the median of their ends.

    Parameters
    ----------
    curves : list of (P, 2) arrays
        Points by rising x > 0.

    Returns
    -------
    x, y : (200,) arrays

    Examples
    --------
    >>> x, y = median_curve([np.array([[1.0, 0.0], [100.0, 2.0]])])
    >>> np.interp([1.0, 10.0, 100.0], x, y).round(2)
    array([0., 1., 2.])
    """
    first = max(curve[0, 0] for curve in curves)
    last = max(first, float(np.median([curve[-1, 0] for curve in curves])))
    x = np.geomspace(first, last, _POINTS)
    values = [np.interp(np.log(x), np.log(curve[:, 0]), curve[:, 1]) for curve in curves]
    return x, np.median(values, axis=0)


def _limits(results: Results, setting: str, rivals: list[str], truth: float) -> tuple[float, float]:
    """Range of y that holds all ends; what curves did long before is cut off below.

    The truth is in it unless it would press the rivals together.
    """
    curves = [_curves(results, setting, rival, "seconds") for rival in rivals]
    ends = [float(np.median([curve[-1, 1] for curve in seeds])) for seeds in curves]
    low, top = min(ends), max(ends)
    spread = max(top - low, 0.005)
    if top < truth < top + _FURTHEST_TRUTH * spread:
        top = truth
    return low - 0.3 * spread, top + 0.15 * max(top - low, spread)

"""Panels of one column each: which columns, shares of rows, and what the model says of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from pickmix.diagnostics.marginals import Marginal
from pickmix.displays.base import ROWS, matplotlib_part, shorten
from pickmix.displays.colours import BLUE, INK

# Panels of a figure, unless columns are asked for.
MOST_PANELS = 12
# Characters of a level's name.
_MOST_CHARACTERS = 16


def worst(distances: np.ndarray, most: int) -> np.ndarray:
    """Numbers of the columns with the largest distances, in the order of the columns.

    >>> worst(np.array([0.1, 0.3, 0.0, 0.2]), 2)
    array([1, 3])
    """
    distances = np.where(np.isnan(distances), -1.0, distances)
    return np.sort(np.argsort(-distances, kind="stable")[:most])


def draw_marginal(axes: Any, marginal: Marginal) -> None:
    """Rows as grey bars, the model as a blue line; levels side by side, with blue marks."""
    model = "model" if marginal.exact else "drawn from the model"
    if marginal.kind == "levels":
        places = np.arange(len(marginal.levels))
        axes.barh(places, marginal.observed, color=ROWS, alpha=0.5, label="rows")
        axes.plot(
            marginal.expected, places, "D", color=BLUE, markersize=5, label=model, clip_on=False
        )
        axes.set_yticks(places, [shorten(level, _MOST_CHARACTERS) for level in marginal.levels])
        # The first level on top, as in a list.
        axes.set_ylim(len(places) - 0.5, -0.5)
        axes.set_xlim(left=0.0)
        axes.set_xlabel("share", color=INK)
        return
    axes.stairs(marginal.observed, marginal.edges, fill=True, color=ROWS, alpha=0.5, label="rows")
    axes.stairs(
        marginal.expected, marginal.edges, color=BLUE, linewidth=1.5, label=model, baseline=None
    )
    axes.set_ylim(bottom=0.0)
    axes.set_ylabel("share", color=INK)
    axes.set_xlabel(marginal.name, color=INK)
    if marginal.edges.dtype.kind == "M":
        mark_dates(axes)
    else:
        axes.locator_params(axis="x", nbins=5)


def mark_dates(axes: Any) -> None:
    """A few ticks along an axis of dates, whatever its range."""
    dates = matplotlib_part("dates")
    locator = dates.AutoDateLocator(minticks=3, maxticks=5)
    # Usual lists end too soon for so few ticks.
    for unit, longest in ((dates.HOURLY, 24), (dates.MINUTELY, 60), (dates.SECONDLY, 60)):
        locator.intervald[unit] = [*locator.intervald[unit], longest]
    locator.intervald[dates.DAILY] = [*locator.intervald[dates.DAILY], 28]
    locator.intervald[dates.MONTHLY] = [*locator.intervald[dates.MONTHLY], 12]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))

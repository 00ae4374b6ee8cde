"""The picture of `pickmix bench tables`: gain over scikit-learn and ratio of seconds, in dots."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from pickmix.experiments.colours import BLACK, BLUE, GREEN, GRID, INK, ORANGE, PURPLE, VERMILION
from pickmix.experiments.comparison import TIE, Case, cases_of, challengers
from pickmix.experiments.curves import STYLES
from pickmix.experiments.results import Results

_COLOURS = (BLUE, ORANGE, VERMILION, GREEN, PURPLE, BLACK)
# Of the height of a table's line: what the dots of its numbers of components spread over.
_SPREAD = 0.5
_INCHES_PER_TABLE = 0.32


def draw(results: Results, path: Path) -> Path | None:
    """Draw all cases; None if none of them can be compared with scikit-learn.

    A line is a table. Colours are numbers of components, markers are rivals: full for the first,
    hollow for the others.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
    except ImportError as error:
        raise ImportError("Plots need matplotlib: pip install pickmix[plot]") from error
    every_case = cases_of(results)
    rivals = challengers(every_case)
    cases = [
        case for case in every_case if any(math.isfinite(case.gain(rival)) for rival in rivals)
    ]
    if not cases:
        return None
    tables = list(dict.fromkeys(case.table for case in cases))
    # A Figure of its own needs no display and leaves pyplot's state alone.
    figure = Figure(figsize=(11.0, 2.2 + _INCHES_PER_TABLE * len(tables)), layout="constrained")
    gains, ratios = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    # Linear within ties, which would otherwise fill the picture with noise.
    gains.set_xscale("symlog", linthresh=TIE)
    ratios.set_xscale("log")
    for axes, value in ((gains, Case.gain), (ratios, Case.seconds_ratio)):
        _draw_dots(axes, cases, rivals, tables, value)
    gains.axvspan(-TIE, TIE, color=GRID, zorder=0)
    gains.axvline(0.0, color=INK, linewidth=1.0, zorder=1)
    gains.set_xlabel("gain over scikit-learn, nats per held-out row (grey: ties)", color=INK)
    gains.set_yticks(range(len(tables)), tables)
    gains.set_ylim(len(tables) - 0.4, -0.6)
    ratios.axvline(1.0, color=INK, linewidth=1.0, zorder=1)
    ratios.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ratios.xaxis.set_minor_locator(NullLocator())
    ratios.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))
    ratios.set_xlabel("seconds ÷ scikit-learn's", color=INK)
    handles, labels = gains.get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    figure.legend(
        by_label.values(), by_label, loc="outside upper center", ncols=6, frameon=False, fontsize=9
    )
    figure.savefig(path, dpi=150)
    return path


def _draw_dots(
    axes: Any, cases: list[Case], rivals: list[str], tables: list[str], value: Any
) -> None:
    components = sorted({case.n_components for case in cases})
    for rank, K in enumerate(components):
        shift = _SPREAD * ((rank + 0.5) / len(components) - 0.5)
        colour = _COLOURS[rank % len(_COLOURS)]
        for rival in rivals:
            first = rival == rivals[0]
            known = [
                (value(case, rival), tables.index(case.table) + shift)
                for case in cases
                if case.n_components == K and math.isfinite(value(case, rival))
            ]
            if not known:
                continue
            axes.plot(
                *zip(*known, strict=True),
                linestyle="none",
                marker=STYLES[rival].marker if rival in STYLES else ".",
                markersize=7 if first else 6,
                markerfacecolor=colour if first else "none",
                markeredgecolor=colour,
                label=f"{rival}, K = {K:,}",
                # Dots at the edge are drawn whole.
                clip_on=False,
                zorder=3 if first else 2,
            )
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)

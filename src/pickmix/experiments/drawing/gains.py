"""The picture of `pickmix bench tables`: gain over scikit-learn and ratio of seconds, in dots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pickmix.displays.colours import BLACK, BLUE, GREEN, GRID, INK, ORANGE, PURPLE, VERMILION
from pickmix.experiments.drawing.figures import require_matplotlib
from pickmix.experiments.drawing.style import RC, look_of
from pickmix.experiments.tables.bench import SCIKIT_LEARN, TIE, Cases

_COLOURS = (BLUE, ORANGE, VERMILION, GREEN, PURPLE, BLACK)
# Of the height of a table's line: what the dots of its numbers of components spread over.
_SPREAD = 0.5
_INCHES_PER_TABLE = 0.32


def draw_gains(cases: Cases, path: Path) -> Path | None:
    """Draw all cases; None if none of them can be compared with scikit-learn.

    A line is a table. Colours are numbers of components, markers are rivals: full for the first,
    hollow for the others.
    """
    require_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    rivals = cases.challengers()
    gained = cases.held_out[rivals].notna().any(axis=1) & cases.held_out[SCIKIT_LEARN].notna()
    tables = list(dict.fromkeys(cases.cases[name][0] for name in gained.index[gained]))
    if not tables:
        return None
    with rc_context({**RC, "axes.grid.axis": "y"}):
        figure = Figure(figsize=(11.0, 2.2 + _INCHES_PER_TABLE * len(tables)), layout="constrained")
        gains, ratios = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        # Linear within ties, which would otherwise fill the picture with noise.
        gains.set_xscale("symlog", linthresh=TIE)
        ratios.set_xscale("log")
        for axes, values in ((gains, cases.gains), (ratios, cases.ratios)):
            for rival in rivals:
                _draw_dots(axes, cases, values(rival).dropna(), rival, tables)
        gains.axvspan(-TIE, TIE, color=GRID, zorder=0)
        gains.axvline(0.0, color=INK, linewidth=1.0, zorder=1)
        gains.set_xlabel("gain over scikit-learn, nats per held-out row (grey: ties)")
        gains.set_yticks(range(len(tables)), tables)
        gains.set_ylim(len(tables) - 0.4, -0.6)
        ratios.axvline(1.0, color=INK, linewidth=1.0, zorder=1)
        ratios.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ratios.xaxis.set_minor_locator(NullLocator())
        ratios.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))
        ratios.set_xlabel("seconds ÷ scikit-learn's")
        handles, labels = gains.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=6, frameon=False)
        figure.savefig(path, dpi=150)
    return path


def _draw_dots(axes: Any, cases: Cases, values: Any, rival: str, tables: list[str]) -> None:
    components = sorted({K for table, K in cases.cases.values() if table in tables})
    first = rival == cases.challengers()[0]
    for rank, K in enumerate(components):
        shift = _SPREAD * ((rank + 0.5) / len(components) - 0.5)
        colour = _COLOURS[rank % len(_COLOURS)]
        some = values[[cases.cases[name][1] == K for name in values.index]]
        if len(some):
            places = [tables.index(cases.cases[name][0]) + shift for name in some.index]
            look = {"marker": look_of(rival).marker, "markersize": 7 if first else 6}
            look |= {"markerfacecolor": colour if first else "none", "markeredgecolor": colour}
            # Dots at the edge are drawn whole.
            look |= {"linestyle": "none", "clip_on": False, "zorder": 3 if first else 2}
            axes.plot(some, places, **look, label=f"{rival}, K = {K:,}")

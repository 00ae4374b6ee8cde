"""Figures of the reproduction: panels drawn side by side, with one title and one legend."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pickmix.experiments.colours import INK
from pickmix.experiments.reproduction import panels
from pickmix.experiments.reproduction.drawing.curve_axes import draw_curves
from pickmix.experiments.reproduction.drawing.error_axes import draw_errors, shapes_of
from pickmix.experiments.reproduction.drawing.legend import write_legend
from pickmix.experiments.reproduction.drawing.log_ticks import write_plain_ticks
from pickmix.experiments.reproduction.drawing.shown import Shown
from pickmix.experiments.reproduction.drawing.style import (
    ERROR_LABEL,
    RC,
    WIDTH,
    X_LABELS,
    X_LABELS_AT_T95,
    fold,
    over_seeds,
    y_label,
)
from pickmix.experiments.reproduction.history import History

# In inches: of a row of axes with its labels, of the title, of a row of the legend.
_ROW, _TITLE, _LEGEND_ROW = 2.2, 0.35, 0.19
# Characters of a figure's title, and of all its panels' titles, that fit into the page's width.
_TITLE_WIDTH, _TITLES_WIDTH = 96, 76


def draw(figure: panels.Figure, histories: Mapping[str, History], path: Path) -> Path | None:
    """Draw a figure; None, and nothing written, if none of its runs can be shown.

    Parameters
    ----------
    figure : panels.Figure
    histories : mapping of Run.key to History
        Runs that are missing, failed or have nothing finite are left out.
    path : Path
        Of the PNG; a PDF for print is written beside it.
    """
    page = compose(figure, histories)
    if page is None:
        return None
    from matplotlib import rc_context

    with rc_context(RC):
        page.savefig(path, dpi=200, format="png")
        # Without a date, equal results make equal files.
        page.savefig(path.with_suffix(".pdf"), format="pdf", metadata={"CreationDate": None})
    return path


def compose(figure: panels.Figure, histories: Mapping[str, History]) -> Any | None:
    """The figure as a `matplotlib.figure.Figure`, or None if there is nothing to show.

    Each panel is a column of two axes: over work seconds above, over evaluations below.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Plots need matplotlib: pip install pickmix[plot]") from error
    if not figure.panels:
        return None
    shapes = shapes_of([panel for panel in figure.panels if isinstance(panel, panels.ErrorPanel)])
    everything = Shown()
    with rc_context(RC):
        # A Figure of its own needs no display and leaves pyplot's state alone.
        page = Figure(layout="constrained")
        grid = page.subplots(2, len(figure.panels), sharey="col", squeeze=False)
        for panel, column in zip(figure.panels, grid.T, strict=True):
            if isinstance(panel, panels.ErrorPanel):
                shown = draw_errors(column, panel, histories, figure.percentiles, shapes)
            else:
                shown = draw_curves(column, panel, histories, figure.percentiles)
            everything.update(shown)
        if not everything.counts:
            return None
        _write_labels(figure, grid)
        title = f"{figure.title} ({over_seeds(figure.percentiles, everything.counts)})"
        page.suptitle(fold(title, _TITLE_WIDTH), x=0.01, ha="left", color=INK)
        curves = any(isinstance(panel, panels.CurvePanel) for panel in figure.panels)
        n_rows = write_legend(page, everything, shapes, curves)
        page.set_size_inches(WIDTH, 2 * _ROW + _TITLE + n_rows * _LEGEND_ROW)
    return page


def _write_labels(figure: panels.Figure, grid: Any) -> None:
    n_columns = len(figure.panels)
    width = _TITLES_WIDTH // n_columns
    # Where a label is longer than its axis, it breaks at places that suit our labels.
    x_width = {1: 60, 2: 40, 3: 22}.get(n_columns, 12)
    previous = ""
    for panel, column in zip(figure.panels, grid.T, strict=True):
        if isinstance(panel, panels.ErrorPanel):
            label, x_labels = ERROR_LABEL, X_LABELS_AT_T95
        else:
            label, x_labels = y_label(panel.y), X_LABELS
        column[0].set_title(fold(panel.title, width), loc="left", color=INK)
        for axes, x_label in zip(column, x_labels.values(), strict=True):
            if not axes.lines:
                _say_empty(axes)
                continue
            axes.set_xlabel(fold(x_label, x_width))
            # Neighbours that show the same need to say it once.
            if label != previous:
                axes.set_ylabel(fold(label, 24) if len(label) > 33 else label)
            write_plain_ticks(axes.xaxis)
            write_plain_ticks(axes.yaxis)
        previous = label


def _say_empty(axes: Any) -> None:
    axes.text(
        0.5, 0.5, "nothing measured", transform=axes.transAxes, ha="center", va="center", color=INK
    )
    # Tick positions of the other axes in the column stay: they are shared.
    axes.tick_params(which="both", bottom=False, left=False, labelbottom=False, labelleft=False)
    axes.grid(False)

"""Figures: panels drawn side by side, with one title and one legend."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pickmix.displays.colours import INK
from pickmix.experiments import catalogue
from pickmix.experiments.catalogue import Panel
from pickmix.experiments.drawing import style
from pickmix.experiments.drawing.curves import draw_curves
from pickmix.experiments.drawing.style import RC, SHAPES, Legend, fold, look_of
from pickmix.experiments.measures import frame_of
from pickmix.experiments.store import History

# In inches: of a row of axes with its labels, of the title, of a row of the legend.
_ROW, _TITLE, _LEGEND_ROW = 2.2, 0.35, 0.19
# Characters of a figure's title, and of all its panels' titles, that fit into the page's width.
_TITLE_WIDTH, _TITLES_WIDTH = 96, 76
# Marker of each value of each parameter, the same in all panels of a figure.
Shapes = dict[tuple[str, float | None], str]


def require_matplotlib() -> None:
    """Say what to install if it is not there."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("Plots need matplotlib: pip install pickmix[plot]") from error


def draw(
    figure: catalogue.Figure, histories: Mapping[str, History], path: Path, *, pdf: bool = True
) -> Path | None:
    """Draw a figure as PNG, and a PDF for print beside it.

    Histories are by `Run.key`. Runs that are missing, failed or have nothing finite are left out.
    If none can be shown, nothing is written, and None returned.
    """
    page = compose(figure, histories)
    if page is None:
        return None
    from matplotlib import rc_context

    with rc_context(RC):
        page.savefig(path, dpi=200, format="png")
        if pdf:
            # Without a date, equal results make equal files.
            page.savefig(path.with_suffix(".pdf"), format="pdf", metadata={"CreationDate": None})
    return path


def compose(figure: catalogue.Figure, histories: Mapping[str, History]) -> Any | None:
    """The figure as a `matplotlib.figure.Figure`, or None if there is nothing to show.

    Each panel is a column of two axes: over work seconds above, over evaluations below.
    """
    require_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    if not figure.panels:
        return None
    shapes = _shapes_of([panel for panel in figure.panels if panel.errors])
    legend = Legend()
    with rc_context(RC):
        # A Figure of its own needs no display and leaves pyplot's state alone.
        page = Figure(layout="constrained")
        grid = page.subplots(2, len(figure.panels), sharey="col", squeeze=False)
        for panel, column in zip(figure.panels, grid.T, strict=True):
            if panel.errors:
                _draw_errors(column, panel, histories, figure.percentiles, shapes, legend)
            else:
                draw_curves(column, panel, histories, figure.percentiles, legend)
        if not legend.counts:
            return None
        _write_labels(figure, grid)
        title = f"{figure.title} ({style.over_seeds(figure.percentiles, legend.counts)})"
        page.suptitle(fold(title, _TITLE_WIDTH), x=0.01, ha="left", color=INK)
        n_rows = legend.write(page)
        page.set_size_inches(style.WIDTH, 2 * _ROW + _TITLE + n_rows * _LEGEND_ROW)
    return page


def _shapes_of(panels: list[Panel]) -> Shapes:
    shapes: Shapes = {}
    for varies in dict.fromkeys(panel.shows for panel in panels):
        runs = [run for panel in panels if panel.shows == varies for run in panel.runs]
        values: list[Any] = sorted({getattr(run, varies, None) for run in runs} - {None})
        shapes |= {(varies, v): SHAPES[rank % len(SHAPES)] for rank, v in enumerate(values)}
        shapes[varies, None] = style.WITHOUT
    return shapes


def _draw_errors(
    column: Any,
    panel: Panel,
    histories: Mapping[str, History],
    percentiles: tuple[float, float],
    shapes: Shapes,
    legend: Legend,
) -> None:
    """AE at t95 against the time and the evaluations to t95."""
    frame = frame_of(panel.runs, histories)
    smallest, shown = np.inf, set()
    for axes, x in zip(column, style.X_LABELS_AT_T95, strict=True):
        for algorithm, group in frame.groupby("algorithm", sort=False) if len(frame) else ():
            points = _points(group, panel.shows, f"t95_{x}")
            if not points:
                continue
            look = look_of(algorithm)
            legend.add(0, algorithm, **look.line)
            middles = np.array([np.median(seeds, axis=0) for seeds in points.values()])
            axes.plot(*middles.T, **look.line, label=algorithm)
            for (value, seeds), middle in zip(points.items(), middles, strict=True):
                label = "_None" if value is None else f"_{value:g}"
                marker = look.value(shapes[panel.shows, value])
                axes.plot(*middle[:, None], linestyle="none", **marker, label=label, zorder=4)
                if len(seeds) > 1:
                    ends = np.percentile(seeds[:, 1], percentiles)
                    axes.vlines(middle[0], *ends, color=look.colour, linewidth=0.9, alpha=0.6)
                shown.add(value)
                legend.counts.append(len(seeds))
                smallest = min(smallest, float(seeds[:, 1].min()))
        if axes.lines:
            axes.set_xscale("log")
    for (varies, value), shape in shapes.items():
        if varies == panel.shows and value in shown:
            words = f"without {varies}" if value is None else f"{varies} = {value:g}"
            legend.add(1, words, color=INK, linestyle="none", marker=shape)
    if 0.0 < smallest < np.inf:
        column[0].set_yscale("log")


def _points(group: Any, varies: str, x: str) -> dict[float | None, np.ndarray]:
    """x at t95 and AE of each seed, (S, 2), by rising value of the parameter."""
    known = group[np.isfinite(group[[x, "error"]].astype(float)).all(axis=1)]
    points: dict[float | None, np.ndarray] = {}
    for value, seeds in known.groupby(known[varies].fillna(-np.inf)):
        found = seeds[[x, "error"]].to_numpy(dtype=float)
        # A start that is never left has no place on a logarithmic axis.
        if np.median(found[:, 0]) > 0.0:
            points[None if value == -np.inf else value] = found
    return points


def _write_labels(figure: catalogue.Figure, grid: Any) -> None:
    n_columns = len(figure.panels)
    # Where a label is longer than its axis, it breaks at places that suit our labels.
    x_width = {1: 60, 2: 40, 3: 22}.get(n_columns, 12)
    previous = ""
    for panel, column in zip(figure.panels, grid.T, strict=True):
        label = style.Y_LABELS.get(panel.shows, panel.shows.replace("_", " "))
        x_labels = style.X_LABELS
        if panel.errors:
            label, x_labels = style.ERROR_LABEL, style.X_LABELS_AT_T95
        elif panel.marks == "ends":
            x_labels = style.X_LABELS | {"seconds": "seconds, with the start"}
        title = fold(panel.title, _TITLES_WIDTH // n_columns)
        column[0].set_title(title, loc="left", color=INK)
        for axes, x_label in zip(column, x_labels.values(), strict=True):
            if not axes.lines:
                _say_empty(axes)
                continue
            axes.set_xlabel(fold(x_label, x_width))
            # Neighbours that show the same need to say it once.
            if label != previous:
                axes.set_ylabel(fold(label, 24) if len(label) > 33 else label)
            style.write_plain_ticks(axes.xaxis)
            style.write_plain_ticks(axes.yaxis)
        previous = label


def _say_empty(axes: Any) -> None:
    middle = {"ha": "center", "va": "center", "color": INK}
    axes.text(0.5, 0.5, "nothing measured", transform=axes.transAxes, **middle)
    # Tick positions of the other axes in the column stay: they are shared.
    axes.tick_params(which="both", bottom=False, left=False, labelbottom=False, labelleft=False)
    axes.grid(False)

"""Pictures: panels side by side, with one title and one legend."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.figure
import numpy as np
from matplotlib import rc_context
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from pickmix.inspection.displays import colours
from pickmix.inspection.displays.colours import BLACK, BLUE, GREY, GRID, INK, VERMILION
from pickmix_experiments import runs
from pickmix_experiments.catalogue import Figure, Panel
from pickmix_experiments.store import Rows, at, median

Percentiles = tuple[float, float]


class Look(NamedTuple):
    """How an algorithm is drawn; dashes and markers differ too, for grey print."""

    colour: str
    marker: str
    #: On and off in line widths; solid if empty.
    dashes: tuple[float, ...] = ()
    ours: bool = False
    hollow: bool = False

    @property
    def line(self) -> dict[str, Any]:
        style = (0, self.dashes) if self.dashes else "-"
        width, order = (2.0, 3.0) if self.ours else (1.2, 2.5)
        return {"color": self.colour, "linestyle": style, "linewidth": width, "zorder": order}

    @property
    def points(self) -> dict[str, Any]:
        # A star of the same width covers less than other shapes.
        size = 7.5 if self.marker == "*" else 4.5
        if self.hollow:
            return _marker(self.marker, size, "white", self.colour, 1.0)
        return _marker(self.marker, size, self.colour, "white", 0.4)

    def value(self, shape: str) -> dict[str, Any]:
        # A plus is all edge.
        edge, width = (self.colour, 1.8) if shape == "+" else ("white", 0.5)
        return _marker(shape, 7.5 if shape in "+*" else 5.0, self.colour, edge, width)


def _marker(shape: str, size: float, face: str, edge: str, width: float) -> dict[str, Any]:
    colours = {"markerfacecolor": face, "markeredgecolor": edge, "markeredgewidth": width}
    return {"marker": shape, "markersize": size, **colours}


# There are more algorithms than colours. Those that share one are kin: black evaluates all
# components, grey draws from the exact posterior or is another library's, vermilion is ours.
# Circles are left to t95, dots to what lines are compared with.
LOOKS = {
    runs.EM: Look(BLACK, "s"),
    runs.SAEM: Look(BLACK, "v", (5, 2)),
    runs.SGD: Look(BLACK, "^", (5, 1.5, 1, 1.5)),
    runs.SSAEM: Look(colours.SKY, "<", (4, 1, 1, 1, 1, 1)),
    runs.TSAEM: Look(colours.GREEN, "p", (9, 2)),
    runs.MCSAEM: Look(GREY, ">"),
    runs.MHSAEM_O: Look(GREY, "h", (5, 2)),
    runs.MHSAEM_U: Look(colours.ORANGE, "P", (2, 1)),
    runs.MHSAEM_T: Look(BLUE, "d", (7, 1.5, 2, 1.5)),
    runs.MHSAEM_TF: Look(colours.PURPLE, "X", (6, 1.5, 1, 1.5, 1, 1.5)),
    runs.MHSAEM_P: Look(VERMILION, "D", ours=True),
    runs.PICKMIX: Look(VERMILION, "*", (3, 1), ours=True),
    # Baselines of benches. Those of other libraries are points.
    "sklearn-kmeans": Look(BLUE, "D"),
    "sklearn-k-means++": Look(BLUE, "^"),
    "sklearn-kmeans-one-thread": Look(BLUE, "D", hollow=True),
    "sklearn-k-means++-one-thread": Look(BLUE, "^", hollow=True),
    "faiss-kmeans": Look(GREY, "h"),
    "gmmx": Look(GREY, "8", hollow=True),
    "pomegranate": Look(GREY, "H", hollow=True),
}
# Ours have the names of the algorithms there.
_SAME = {"mhsaem-uniform": runs.MHSAEM_U, "mhsaem-table-forgetting": runs.MHSAEM_TF}
_OTHER = Look(GREY, ".", (1, 3))
# Of levels that lines are compared with: the truth and 1/K; and of what exact draws would give.
SPARSE_DOTS, DOTS = (0, (1, 3)), (0, (1, 1.2))
RING: dict[str, Any] = {"linestyle": "none", "marker": "o", "markerfacecolor": "none"}
# Of the values of a parameter, in rising order; the last is for algorithms without it.
SHAPES = ("+", "s", "o", "^", "D", "v", "X", "p", "<", ">")
WITHOUT = "*"

X_LABELS = {"seconds": "work time (seconds)", "evaluations": "component evaluations per row"}
X_LABELS_AT_T95 = {"seconds": "work time to t95 (seconds)"}
X_LABELS_AT_T95["evaluations"] = "component evaluations per row to t95"
Y_LABELS = {
    "log_likelihood": "training log-likelihood per row",
    "validation": "held-out log-likelihood per row",
    "acceptance": "average acceptance ratio",
    "bias": "squared norm of the gradient's error",
}
ERROR_LABEL = "absolute error at t95 (nats per row)"

# 17 cm, the width of a printed page's text: sizes of fonts are what the reader gets.
WIDTH = 17.0 / 2.54
RC: dict[str, Any] = {
    **{"font.family": "sans-serif", "font.size": 8.0, "figure.titlesize": 9.5},
    **{"axes.labelsize": 8.0, "axes.titlesize": 8.5, "axes.linewidth": 0.7},
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 7.5),
    **dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"), INK),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    **{"axes.grid": True, "axes.axisbelow": True, "grid.color": GRID, "grid.linewidth": 0.6},
    # Journals refuse the default, Type 3.
    **{"lines.markersize": 4.5, "pdf.fonttype": 42},
}


def look_of(algorithm: str) -> Look:
    """Return the look of an algorithm or a baseline, also of an unknown one."""
    name = _SAME.get(algorithm, algorithm)
    return LOOKS.get(name) or LOOKS.get(name.upper(), _OTHER)


class Legend:
    """What was drawn: algorithms, values of parameters, notes; and the seeds behind each line."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self._handles: tuple[dict[str, Any], ...] = ({}, {}, {})

    def add(self, group: int, words: str, **look: Any) -> None:
        """Explain an algorithm (group 0), a value (1), or what lines are compared with (2)."""
        self._handles[group].setdefault(words, Line2D([], [], label=words, **look))

    def write(self, page: Any) -> int:
        """Write it below the axes; the number of rows that takes."""
        handles = [handle for group in self._handles for handle in group.values()]
        longest = max(len(handle.get_label()) for handle in handles)
        # The page is about 64 letters "m" of the legend wide, a handle with its gaps five.
        n_columns = min(len(handles), 6, int(64.0 / (5.4 + 0.55 * longest)))
        place = {"loc": "outside lower center", "ncols": n_columns, "frameon": False}
        page.legend(handles=handles, **place, handlelength=3.2, columnspacing=1.2)
        return -(-len(handles) // n_columns)


def fold(text: str, width: int) -> str:
    """Break a text into lines, unless it holds formulas, which do not go across lines."""
    if "$" in text:
        return text
    return textwrap.fill(text, max(width, 1), break_long_words=False, break_on_hyphens=False)


def over_seeds(percentiles: Percentiles, counts: list[int]) -> str:
    """What lines and bands are, for a title."""
    fewest, most = min(counts), max(counts)
    if most == 1:
        return "one seed"
    number = f"{most}" if fewest == most else f"{fewest} to {most}"
    low, high = (f"{percent:g}{'st' if percent == 1.0 else 'th'}" for percent in percentiles)
    band = f" and {low} to {high} percentile" if low != high else ""
    return f"median{band} over {number} seeds"


def write_plain_ticks(axis: Any) -> None:
    """Write 0.5 rather than 5 x 10^-1 where powers of ten alone would be too few ticks."""
    if axis.get_scale() != "log":
        return
    low, high = sorted(axis.get_view_interval())
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    if high < 3.0 * low:
        axis.set_major_locator(MaxNLocator(4))
        axis.set_minor_locator(NullLocator())
    elif high < 100.0 * low:
        axis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
        axis.set_minor_formatter(plain)
    if high < 100.0 * low:
        axis.set_major_formatter(plain)


# Drawn over a logarithmic y axis.
_LOG = ("bias", "bias_by_chance")
_TRUTHS = {"log_likelihood": "true_log_likelihood", "validation": "true_validation"}
# Least spread of ends, as a share of the log-likelihood; furthest truth shown, in spreads.
_SMALLEST_SPREAD, _FURTHEST_TRUTH = 0.02, 2.0
_MARKERS, _POINTS = 4, 200


class Line(NamedTuple):
    """A line as it is drawn: x, median and band, (P,) each, and y of its t95 mark or NaN."""

    x: np.ndarray
    median: np.ndarray
    low: np.ndarray
    high: np.ndarray
    mark: float = math.nan


def _draw_curves(
    column: Any, panel: Panel, frame: Any, percentiles: Percentiles, legend: Legend
) -> None:
    """Draw a panel into its column of two axes."""
    groups = list(frame.groupby("algorithm", sort=False))
    lines: list[list[Line]] = [[], []]
    for axes, x, of_axes in zip(column, X_LABELS, lines, strict=True):
        for position, (_, group) in enumerate(groups):
            if curves := curves_of(group["trace"], x, panel.shows):
                legend.counts.append(len(curves))
                line = line_of(curves, percentiles)
                shift = position / len(groups)
                of_axes.append(_draw_line(axes, panel, group, x, line, shift, legend))
        if axes.lines:
            axes.set_xscale("log")
    if not any(lines):
        return
    if panel.shows in _TRUTHS:
        # Each seed once.
        truth = median(frame.drop_duplicates("seed", keep="last")[_TRUTHS[panel.shows]])
        _finish_likelihood(column, lines, truth)
        if math.isfinite(truth):
            legend.add(2, "true mixture", color=INK, linestyle=SPARSE_DOTS, linewidth=1.0)
    elif panel.shows in _LOG:
        column[0].set_yscale("log")
    elif panel.shows == "acceptance":
        column[0].set_ylim(0.0, 1.05)
        if frame["K"].nunique(dropna=False) == 1:
            for axes in column:
                # Its name is on the right, where chains have left it.
                _draw_across(axes, 1.0 / frame["K"].iloc[0], "1/K", "1/K", "right", "bottom")


def curves_of(traces: Iterable[Any], x: str, y: str) -> list[np.ndarray]:
    """Points (P, 2) of each trace that has any a figure can show, by rising x > 0."""
    curves = []
    for trace in traces:
        points = np.column_stack([trace[x], trace[y]])
        kept = np.isfinite(points).all(axis=1) & (points[:, 0] > 0.0)
        if y in _LOG:
            kept &= points[:, 1] > 0.0
        if kept.any():
            curves.append(points[kept][np.argsort(points[kept, 0], kind="stable")])
    return curves


def line_of(curves: list[np.ndarray], percentiles: Percentiles) -> Line:
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


def _draw_line(
    axes: Any, panel: Panel, group: Any, x: str, line: Line, shift: float, legend: Legend
) -> Line:
    """Draw a line, its band and what is marked on it; return the line with its mark."""
    algorithm, traces = group["algorithm"].iloc[0], list(group["trace"])
    look = look_of(algorithm)
    if panel.marks == "ends":
        _draw_end(axes, panel, group, x, line, legend)
        return line
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
    if panel.shows == "bias" and (by_chance := curves_of(traces, x, "bias_by_chance")):
        chance, dots = line_of(by_chance, (0.0, 100.0)), {"linestyle": DOTS, "linewidth": 0.9}
        axes.plot(chance.x, chance.median, **dots, color=look.colour, label="_chance", zorder=2)
        legend.add(2, "exact draws", color=INK, **dots)
    if panel.marks == "t95":
        places = list(zip(traces, group["t95_index"], strict=True))
        marks = [median([at(*place, name) for place in places]) for name in (x, panel.shows)]
        # A start that is never left has no place on a logarithmic axis.
        if marks[0] > 0.0:
            ring = {**RING, "markersize": 6.0, "markeredgecolor": look.colour}
            axes.plot(*marks, **ring, label="_t95", zorder=4)
            legend.add(2, "t95", color=INK, **RING)
            return line._replace(mark=marks[1])
    return line


def _draw_end(axes: Any, panel: Panel, group: Any, x: str, line: Line, legend: Legend) -> None:
    """Draw a line and the end of fits that came to one."""
    algorithm = group["algorithm"].iloc[0]
    look = look_of(algorithm)
    ended = group.loc[np.isfinite(group["test"]), "trace"]
    words = algorithm if len(ended) else f"{algorithm} (not finished)"
    legend.add(0, words, **look.line, **look.points)
    if line.x.size > 1 or not len(ended):
        axes.plot(line.x, line.median, **look.line, label=algorithm)
    ends = [median([trace[name][-1] for trace in ended]) for name in (x, panel.shows)]
    if ends[0] > 0.0:
        large = {"markersize": 1.6 * look.points["markersize"], "linestyle": "none"}
        axes.plot(*ends, **{**look.points, **large}, label="_end", zorder=4)


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


# In inches: of a row of axes with its labels, of the title, of a row of the legend.
_ROW, _TITLE, _LEGEND_ROW = 2.2, 0.35, 0.19
# Characters of a figure's title, and of all its panels' titles, that fit into the page's width.
_TITLE_WIDTH, _TITLES_WIDTH = 96, 76
# Marker of each value of each parameter, the same in all panels of a figure.
Shapes = dict[tuple[str, float | None], str]


def draw(figure: Figure, rows: Rows, path: Path, *, pdf: bool = True) -> Path | None:
    """Draw a figure as PNG, and a PDF for print beside it.

    Runs that are missing, failed or have nothing finite are left out. If none can be shown, nothing
    is written, and None returned.
    """
    page = compose(figure, rows)
    if page is None:
        return None
    with rc_context(RC):
        page.savefig(path, dpi=200, format="png")
        if pdf:
            # Without a date, equal results make equal files.
            page.savefig(path.with_suffix(".pdf"), format="pdf", metadata={"CreationDate": None})
    return path


def compose(figure: Figure, rows: Rows) -> Any | None:
    """The figure as a `matplotlib.figure.Figure`, or None if there is nothing to show.

    Each panel is a column of two axes: over work seconds above, over evaluations below.
    """
    frames = [panel.frame(rows) for panel in figure.panels]
    shapes: Shapes = {}
    for varies in dict.fromkeys(panel.shows for panel in figure.panels if panel.errors):
        shown = [f for panel, f in zip(figure.panels, frames, strict=True) if panel.shows == varies]
        values = np.unique(np.concatenate([frame[varies].dropna() for frame in shown]))
        shapes |= {(varies, v): SHAPES[rank % len(SHAPES)] for rank, v in enumerate(values)}
        shapes[varies, None] = WITHOUT
    legend = Legend()
    with rc_context(RC):
        # A Figure of its own needs no display and leaves pyplot's state alone.
        page = matplotlib.figure.Figure(layout="constrained")
        grid = page.subplots(2, len(figure.panels), sharey="col", squeeze=False)
        for panel, frame, column in zip(figure.panels, frames, grid.T, strict=True):
            if panel.errors:
                _draw_errors(column, panel.shows, frame, figure.percentiles, shapes, legend)
            else:
                _draw_curves(column, panel, frame, figure.percentiles, legend)
        if not legend.counts:
            return None
        _write_labels(figure, grid)
        title = f"{figure.title} ({over_seeds(figure.percentiles, legend.counts)})"
        page.suptitle(fold(title, _TITLE_WIDTH), x=0.01, ha="left", color=INK)
        n_rows = legend.write(page)
        page.set_size_inches(WIDTH, 2 * _ROW + _TITLE + n_rows * _LEGEND_ROW)
    return page


def _draw_errors(
    column: Any, varies: str, frame: Any, percentiles: Percentiles, shapes: Shapes, legend: Legend
) -> None:
    """AE at t95 against the time and the evaluations to t95."""
    smallest, shown = np.inf, set()
    for axes, x in zip(column, X_LABELS_AT_T95, strict=True):
        for algorithm, group in frame.groupby("algorithm", sort=False):
            points = _points(group, varies, f"t95_{x}")
            if not points:
                continue
            look = look_of(algorithm)
            legend.add(0, algorithm, **look.line)
            middles = np.array([np.median(seeds, axis=0) for seeds in points.values()])
            axes.plot(*middles.T, **look.line, label=algorithm)
            for (value, seeds), middle in zip(points.items(), middles, strict=True):
                label = "_None" if value is None else f"_{value:g}"
                marker = look.value(shapes[varies, value])
                axes.plot(*middle[:, None], linestyle="none", **marker, label=label, zorder=4)
                if len(seeds) > 1:
                    ends = np.percentile(seeds[:, 1], percentiles)
                    axes.vlines(middle[0], *ends, color=look.colour, linewidth=0.9, alpha=0.6)
                shown.add(value)
                legend.counts.append(len(seeds))
                smallest = min(smallest, float(seeds[:, 1].min()))
        if axes.lines:
            axes.set_xscale("log")
    for (name, value), shape in shapes.items():
        if name == varies and value in shown:
            words = f"without {varies}" if value is None else f"{varies} = {value:g}"
            legend.add(1, words, color=INK, linestyle="none", marker=shape)
    if 0.0 < smallest < np.inf:
        column[0].set_yscale("log")


def _points(group: Any, varies: str, x: str) -> dict[float | None, np.ndarray]:
    """x at t95 and AE of each seed, (S, 2), by rising value of the parameter."""
    known = group[np.isfinite(group[[x, "error"]].astype(float)).all(axis=1)]
    points: dict[float | None, np.ndarray] = {}
    for value, seeds in known.groupby(known[varies].fillna(-np.inf)):
        values = seeds[[x, "error"]].to_numpy(dtype=float)
        # A start that is never left has no place on a logarithmic axis.
        if np.median(values[:, 0]) > 0.0:
            points[None if value == -np.inf else value] = values
    return points


def _write_labels(figure: Figure, grid: Any) -> None:
    n_columns = len(figure.panels)
    # Where a label is longer than its axis, it breaks at places that suit our labels.
    x_width = {1: 60, 2: 40, 3: 22}.get(n_columns, 12)
    previous = ""
    for panel, column in zip(figure.panels, grid.T, strict=True):
        label = Y_LABELS.get(panel.shows, panel.shows.replace("_", " "))
        x_labels = X_LABELS
        if panel.errors:
            label, x_labels = ERROR_LABEL, X_LABELS_AT_T95
        elif panel.marks == "ends":
            x_labels = X_LABELS | {"seconds": "seconds, with the start"}
        title = fold(panel.title, _TITLES_WIDTH // n_columns)
        column[0].set_title(title, loc="left", color=INK)
        for axes, x_label in zip(column, x_labels.values(), strict=True):
            if not axes.lines:
                axes.set_axis_off()
                continue
            axes.set_xlabel(fold(x_label, x_width))
            # Neighbours that show the same need to say it once.
            if label != previous:
                axes.set_ylabel(fold(label, 24) if len(label) > 33 else label)
            write_plain_ticks(axes.xaxis)
            write_plain_ticks(axes.yaxis)
        previous = label
